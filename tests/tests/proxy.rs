//! The fault proxy does to bytes what it says, shown with a plain echo behind it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io;
use std::time::Duration;

use tidegate_tests::{Faults, Instant, PATIENCE, Proxy, Way, in_time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Long enough to see that nothing comes where an echo takes well below a millisecond, also if the machine pauses.
const SILENCE: Duration = Duration::from_secs(1);

/// An echo behind a proxy, and one connection to it.
struct Echo {
    proxy: Proxy,
    stream: TcpStream,
    /// What the echo has read, and how its connections ended.
    seen: mpsc::UnboundedReceiver<io::Result<Vec<u8>>>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await;
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream, tell.clone()));
            }
        });
        let stream = TcpStream::connect(proxy.address()).await.unwrap();
        let mut echo = Self { proxy, stream, seen };
        assert_eq!(echo.ask(b"hello").await, b"hello");
        assert_eq!(echo.seen().await.unwrap(), b"hello");
        echo
    }

    async fn say(&mut self, text: &[u8]) {
        self.stream.write_all(text).await.unwrap();
    }

    /// What comes back next, at most that long; empty at the end of the connection.
    async fn hear(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; most];
        let read = timeout(PATIENCE, self.stream.read(&mut buffer)).await.expect("something comes back")?;
        buffer.truncate(read);
        Ok(buffer)
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.stream.read_u8()).await.is_err()
    }

    async fn ask(&mut self, text: &[u8]) -> Vec<u8> {
        self.say(text).await;
        let mut answer = vec![0; text.len()];
        timeout(PATIENCE, self.stream.read_exact(&mut answer)).await.expect("an echo comes").unwrap();
        answer
    }

    async fn seen(&mut self) -> io::Result<Vec<u8>> {
        timeout(PATIENCE, self.seen.recv()).await.expect("the echo sees something").unwrap()
    }
}

async fn echo(mut stream: TcpStream, tell: mpsc::UnboundedSender<io::Result<Vec<u8>>>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = stream.read(&mut buffer).await;
        let is_last = !matches!(read, Ok(1..));
        let seen = read.map(|read| buffer[..read].to_vec());
        if let Ok(bytes) = &seen {
            let _ = stream.write_all(bytes).await;
        }
        if tell.send(seen).is_err() || is_last {
            return;
        }
    }
}

#[tokio::test]
async fn a_delay_holds_for_each_way_and_many_bytes_share_it() {
    let mut echo = Echo::start().await;
    let delay = Duration::from_millis(50);
    echo.proxy.set(Faults { delay, ..Faults::NONE });
    in_time(8 * delay, async || {
        let start = Instant::now();
        for _ in 0..10 {
            echo.say(b"many").await;
            tokio::task::yield_now().await;
        }
        let mut all = vec![0; 40];
        echo.stream.read_exact(&mut all).await.unwrap();
        let took = start.elapsed();
        assert!(took >= 2 * delay, "{took:?}");
        took
    })
    .await;
    echo.proxy.set(Faults::NONE);
    in_time(delay, async || {
        let start = Instant::now();
        assert_eq!(echo.ask(b"again").await, b"again");
        start.elapsed()
    })
    .await;
}

#[tokio::test]
async fn bandwidth_bounds_bytes_a_second() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults { bandwidth: Some(100_000), ..Faults::NONE });
    let start = Instant::now();
    assert_eq!(echo.ask(&vec![7; 20_000]).await.len(), 20_000);
    // The two ways overlap, at most wholly.
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_black_hole_towards_the_server_hides_what_is_said_until_it_is_gone() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults { to_server: Way::Held, ..Faults::NONE });
    echo.say(b"late").await;
    assert!(echo.is_silent().await);
    assert!(echo.seen.try_recv().is_err(), "the echo has seen nothing");
    echo.proxy.set(Faults::NONE);
    assert_eq!(echo.seen().await.unwrap(), b"late");
    assert_eq!(echo.hear(9).await.unwrap(), b"late");
}

#[tokio::test]
async fn a_black_hole_towards_the_client_hides_answers_until_it_is_gone() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults { to_client: Way::Held, ..Faults::NONE });
    echo.say(b"late").await;
    assert_eq!(echo.seen().await.unwrap(), b"late");
    assert!(echo.is_silent().await);
    echo.proxy.set(Faults::NONE);
    assert_eq!(echo.hear(9).await.unwrap(), b"late");
}

#[tokio::test]
async fn a_black_hole_hides_the_end_of_a_connection_too() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults::BLACK_HOLE);
    echo.stream.shutdown().await.unwrap();
    assert!(timeout(SILENCE, echo.seen.recv()).await.is_err(), "the echo has seen no end");
    echo.proxy.set(Faults::NONE);
    assert_eq!(echo.seen().await.unwrap(), b"");
}

#[tokio::test]
async fn dropped_replies_never_come() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults::DROP_REPLIES);
    echo.say(b"lost").await;
    assert_eq!(echo.seen().await.unwrap(), b"lost");
    assert!(echo.is_silent().await);
    echo.proxy.set(Faults::NONE);
    assert_eq!(echo.ask(b"here").await, b"here");
}

#[tokio::test]
async fn a_cut_comes_after_exactly_that_many_bytes() {
    let mut echo = Echo::start().await;
    echo.proxy.set(Faults { cut_after: Some(6), ..Faults::NONE });
    assert_eq!(echo.ask(b"four").await, b"four");
    assert_eq!(echo.seen().await.unwrap(), b"four");
    echo.say(b"five!").await;
    assert_eq!(echo.seen().await.unwrap(), b"fi");
    assert!(matches!(echo.seen().await.as_deref(), Ok([]) | Err(_)));
    // Of its answer at most those two can have come through.
    while let Ok(more) = echo.hear(9).await
        && !more.is_empty()
    {
        assert!(b"fi".ends_with(&more), "{more:?}");
    }
    assert_eq!(echo.proxy.ended(), 1);
    // Others start to count anew.
    let mut next = TcpStream::connect(echo.proxy.address()).await.unwrap();
    next.write_all(b"four").await.unwrap();
    next.read_exact(&mut [0; 4]).await.unwrap();
}

#[tokio::test]
async fn a_reset_ends_open_connections_with_an_rst_and_no_new_ones() {
    let mut echo = Echo::start().await;
    echo.proxy.reset();
    assert_eq!(echo.hear(9).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(echo.seen().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(echo.proxy.ended(), 1);
    let mut next = TcpStream::connect(echo.proxy.address()).await.unwrap();
    next.write_all(b"hello").await.unwrap();
    next.read_exact(&mut [0; 5]).await.unwrap();
}
