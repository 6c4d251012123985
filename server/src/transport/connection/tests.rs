//! A connection's times, on a paused clock.

use h2::client::{ResponseFuture, SendRequest};
use http_body_util::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;

const AGE: Duration = Duration::from_mins(30);

/// A connection whose calls are answered when `free` is notified.
struct Served {
    socket: DuplexStream,
    end: JoinHandle<Instant>,
    free: Arc<Notify>,
    closing: CancellationToken,
    stopping: CancellationToken,
}

fn served(settings: TransportSettings) -> Served {
    let (socket, theirs) = tokio::io::duplex(1 << 16);
    let (free, stopping) = (Arc::new(Notify::new()), CancellationToken::new());
    let connection = Connection::of_test(settings.max_streams_per_connection);
    let closing = connection.closing.clone();
    let (freed, stop) = (free.clone(), stopping.clone());
    let served = tokio::spawn(async move {
        let answer = |_: &Arc<Connection>, _| {
            let free = freed.clone();
            async move {
                free.notified().await;
                Ok(Response::new(Empty::<Bytes>::new()))
            }
        };
        serve(theirs, connection, &settings, answer, stop).await;
        Instant::now()
    });
    Served { socket, end: served, free, closing, stopping }
}

/// A client that answers what HTTP/2 asks it, PINGs for one.
async fn client(socket: DuplexStream) -> SendRequest<Bytes> {
    let (sender, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn call(sender: &mut SendRequest<Bytes>) -> Result<ResponseFuture, h2::Error> {
    Ok(sender.send_request(http::Request::get("http://x/").body(()).unwrap(), true)?.0)
}

#[tokio::test(start_paused = true)]
async fn p22_a_client_that_says_nothing_or_too_little_is_dropped() {
    let begun = [
        &b""[..],
        b"PRI",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x03",
    ];
    for begun in begun {
        let settings = TransportSettings::default();
        let Served { mut socket, end, .. } = served(settings.clone());
        let start = Instant::now();
        socket.write_all(begun).await.unwrap();
        assert_eq!(end.await.unwrap() - start, settings.handshake_timeout, "{begun:?}");
        socket.read_to_end(&mut Vec::new()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_speaks_stays_until_its_age() {
    let Served { socket, end, closing, .. } = served(TransportSettings::default());
    let start = Instant::now();
    let sender = client(socket).await;
    let age = end.await.unwrap() - start;
    assert!(age >= AGE * 9 / 10 && age <= AGE * 11 / 10 + Duration::from_secs(1), "{age:?}");
    assert!(closing.is_cancelled());
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn p23_a_call_under_way_outlives_the_age_of_its_connection_and_new_ones_are_not_taken() {
    let Served { socket, end, free, closing, .. } = served(TransportSettings::default());
    let mut sender = client(socket).await;
    let waiting = call(&mut sender).unwrap();
    closing.cancelled().await;
    // Close to the longest wait there is.
    tokio::time::sleep(Duration::from_mins(59)).await;
    assert!(!end.is_finished());
    assert!(std::future::poll_fn(|cx| sender.poll_ready(cx)).await.is_err(), "the client heard GOAWAY");
    free.notify_one();
    assert_eq!(waiting.await.unwrap().status(), 200);
    let done = Instant::now();
    assert!(end.await.unwrap() - done < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn p23_a_client_that_ignores_goaway_is_cut_at_age_and_grace() {
    let Served { socket, end, closing, .. } = served(TransportSettings::default());
    let mut sender = client(socket).await;
    let waiting = call(&mut sender).unwrap();
    closing.cancelled().await;
    let asked = Instant::now();
    assert_eq!(end.await.unwrap() - asked, GRACE);
    assert!(waiting.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn p23_a_silent_client_is_dropped_after_the_interval_and_the_timeout_of_keepalive() {
    let settings = TransportSettings::default();
    let Served { mut socket, end, .. } = served(settings.clone());
    let start = Instant::now();
    // The preface, empty SETTINGS and their acknowledgement; the PING is not answered.
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0").await.unwrap();
    let bound = settings.keepalive_interval + settings.keepalive_timeout;
    let gone = end.await.unwrap() - start;
    assert!(gone >= bound && gone <= bound + Duration::from_secs(1), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_an_idle_connection_at_once_and_a_busy_one_with_its_call() {
    let Served { socket, end: idle, stopping, .. } = served(TransportSettings::default());
    let sender = client(socket).await;
    stopping.cancel();
    let start = Instant::now();
    assert!(idle.await.unwrap() - start < Duration::from_secs(1));
    drop(sender);

    let Served { socket, end: busy, free, stopping, .. } = served(TransportSettings::default());
    let mut sender = client(socket).await;
    let waiting = call(&mut sender).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    stopping.cancel();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!busy.is_finished());
    free.notify_one();
    assert!(waiting.await.is_ok());
    busy.await.unwrap();
}

#[test]
fn ages_differ_by_a_tenth_either_way() {
    assert_eq!([0.0, 0.5, 1.0].map(|at| spread(Duration::from_secs(100), at).as_millis()), [90_000, 100_000, 110_000]);
}

/// Two bytes of a kind of setting, and its value.
fn settings_of(frame: &[u8]) -> std::collections::HashMap<u16, u32> {
    let pair = |entry: &[u8]| {
        let (key, value) = entry.split_at(2);
        (u16::from_be_bytes(key.try_into().unwrap()), u32::from_be_bytes(value.try_into().unwrap()))
    };
    frame.chunks(6).map(pair).collect()
}

#[tokio::test(start_paused = true)]
async fn a_client_is_told_how_much_it_may_send() {
    let settings = TransportSettings { max_streams_per_connection: 77, ..TransportSettings::default() };
    let Served { mut socket, end: _end, .. } = served(settings);
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut header = [0; 9];
    socket.read_exact(&mut header).await.unwrap();
    assert_eq!(header[3], 4, "SETTINGS come first");
    let mut payload = vec![0; usize::from(header[1]) << 8 | usize::from(header[2])];
    socket.read_exact(&mut payload).await.unwrap();
    let told = settings_of(&payload);
    let [streams, window, frame, headers] = [3, 4, 5, 6].map(|key| told.get(&key).copied());
    assert_eq!((streams, headers), (Some(77), Some(8 << 10)));
    assert_eq!((window.unwrap_or(65_535), frame.unwrap_or(16_384)), (64 << 10, 16 << 10));
    // The connection's window, by how much it is wider than at first.
    let (mut header, mut wider) = ([0; 9], [0; 4]);
    while header[3] != 8 {
        socket.read_exact(&mut header).await.unwrap();
        socket.read_exact(&mut wider[..usize::from(header[2])]).await.unwrap();
    }
    assert_eq!(65_535 + u32::from_be_bytes(wider), 256 << 10);
}

#[tokio::test(start_paused = true)]
async fn p22_whoever_makes_mistake_after_mistake_is_ended() {
    let settings = TransportSettings::default();
    let Served { mut socket, end, .. } = served(settings.clone());
    let start = Instant::now();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // `:method: GET` and nothing else, on stream after stream: each is reset, and counts.
    for number in 0..200_u32 {
        let mut headers = *b"\0\0\x01\x01\x05\0\0\0\0\x82";
        headers[5..9].copy_from_slice(&(2 * number + 1).to_be_bytes());
        if socket.write_all(&headers).await.is_err() {
            break;
        }
    }
    assert!(end.await.unwrap() - start < settings.keepalive_interval);
}

/// An answer without an end, which tells how much of it was asked for.
struct Endless(Arc<AtomicUsize>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(1 << 10, Ordering::Relaxed);
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[0; 1 << 10])))))
    }
}

#[tokio::test(start_paused = true)]
async fn p23_an_answer_that_nobody_reads_is_made_64_kib_ahead_and_no_more() {
    let (mut socket, theirs) = tokio::io::duplex(1 << 10);
    let made = Arc::new(AtomicUsize::new(0));
    let settings = TransportSettings::default();
    let connection = Connection::of_test(1);
    let counted = made.clone();
    tokio::spawn(async move {
        let answer = |_: &Arc<Connection>, _| std::future::ready(Ok(Response::new(Endless(counted.clone()))));
        serve(theirs, connection, &settings, answer, CancellationToken::new()).await;
    });
    // SETTINGS and a WINDOW_UPDATE that open both windows as wide as they go, and `GET / http`.
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff").await.unwrap();
    socket.write_all(b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0").await.unwrap();
    socket.write_all(b"\0\0\x03\x01\x05\0\0\0\x01\x82\x84\x86").await.unwrap();
    let mut before = 0;
    // Until it makes no more.
    while before == 0 || made.load(Ordering::Relaxed) > before {
        before = made.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // What it handed to the codec on top is a frame at most.
    assert!((32 << 10..=96 << 10).contains(&before), "{before}");
}
