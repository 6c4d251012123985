//! A TCP proxy between clients and the server that does to their bytes what networks do.
//!
//! What it does is one value, [`Faults`], that can be set while connections are open and holds for all of them. Cuts that
//! happen once are methods: [`Proxy::reset`]. It knows nothing of what it carries, and nothing but its faults delays it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::Instant;

/// The most bytes that are carried at once.
const CHUNK: usize = 16 << 10;
/// How many chunks may be on their way in each direction of a connection; beyond it the sender is not read.
const UNDER_WAY: usize = 64;

/// What becomes of bytes that go one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// They arrive.
    #[default]
    Open,
    /// They, and the end of the connection, arrive when the way is open again: a black hole, as TCP sees it.
    Held,
    /// They never arrive. What goes that way later does, so the connection is of no use afterwards.
    Lost,
}

/// What a proxy does with all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How much later bytes arrive, each way; many may be on their way.
    pub delay: Duration,
    /// The most bytes a second, for each connection and way; `None` is no bound.
    pub bandwidth: Option<u32>,
    /// Bytes of clients.
    pub to_server: Way,
    /// Bytes of the server.
    pub to_client: Way,
    /// A connection ends when that many more bytes have gone one way, counted from when this became another
    /// number or the connection opened. The rest of them is lost.
    pub cut_after: Option<usize>,
}

impl Faults {
    /// None.
    pub const NONE: Self =
        Self { delay: Duration::ZERO, bandwidth: None, to_server: Way::Open, to_client: Way::Open, cut_after: None };
    /// To either side the other one has fallen silent, while all sockets stay open.
    pub const BLACK_HOLE: Self = Self { to_server: Way::Held, to_client: Way::Held, ..Self::NONE };
    /// The server is asked, and its answers are lost.
    pub const DROP_REPLIES: Self = Self { to_client: Way::Lost, ..Self::NONE };
}

/// A running proxy. Dropped, it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    resets: watch::Sender<()>,
    ended: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of that address.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (faults, watching) = watch::channel(Faults::NONE);
        let (resets, resetting) = watch::channel(());
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = ended.clone();
        let accepting = tokio::spawn(async move {
            // Aborted together with this task.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (watching, resetting, counter) = (watching.clone(), resetting.clone(), counter.clone());
                connections.spawn(async move {
                    if connection(client, upstream, watching, resetting).await.is_ok_and(|end| end == End::ByProxy) {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { address, faults, resets, ended, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happens to bytes from now on, also to those that are under way.
    pub fn set(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// Ends every open connection with an RST to both sides. New ones are accepted as ever.
    pub fn reset(&self) {
        self.resets.send_replace(());
    }

    /// How many connections it ended itself: by `cut_after` and resets.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Who ended a connection.
#[derive(PartialEq, Eq)]
enum End {
    BySides,
    ByProxy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

async fn connection(
    client: TcpStream,
    upstream: SocketAddr,
    faults: watch::Receiver<Faults>,
    mut resets: watch::Receiver<()>,
) -> io::Result<End> {
    resets.mark_unchanged();
    let server = TcpStream::connect(upstream).await?;
    for side in [&client, &server] {
        side.set_nodelay(true)?;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let ends = tokio::select! {
        ends = async {
            tokio::try_join!(
                pump(&mut from_client, &mut to_server, faults.clone(), Direction::ToServer),
                pump(&mut from_server, &mut to_client, faults, Direction::ToClient),
            )
        } => ends.map(|_| End::BySides),
        reset = resets.changed() => {
            reset.map_err(io::Error::other)?;
            // Closed like this, a socket sends an RST. No end of a half may go before it.
            for (from, to) in [(from_client, to_client), (from_server, to_server)] {
                from.as_ref().set_zero_linger()?;
                to.forget();
            }
            return Ok(End::ByProxy);
        }
    };
    ends.or_else(|error| if error.kind() == CUT { Ok(End::ByProxy) } else { Err(error) })
}

/// How a pump tells that it ended the connection by `cut_after`; no socket says so.
const CUT: io::ErrorKind = io::ErrorKind::QuotaExceeded;

/// Carries bytes one way until the sender ends, through a line in which they age.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    let (line, chunks) = mpsc::channel(UNDER_WAY);
    tokio::try_join!(take(from, line), give(chunks, to, faults, direction))?;
    Ok(())
}

async fn take(from: &mut OwnedReadHalf, line: mpsc::Sender<(Instant, Vec<u8>)>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        line.send((Instant::now(), buffer[..read].to_vec())).await.map_err(io::Error::other)?;
    }
}

async fn give(
    mut chunks: mpsc::Receiver<(Instant, Vec<u8>)>,
    to: &mut OwnedWriteHalf,
    mut faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    let way = |faults: &Faults| match direction {
        Direction::ToServer => faults.to_server,
        Direction::ToClient => faults.to_client,
    };
    let mut cut_after = faults.borrow().cut_after;
    let mut left = cut_after;
    loop {
        let next = chunks.recv().await;
        let Faults { delay, bandwidth, .. } = *faults.borrow();
        if let Some((taken, bytes)) = &next {
            tokio::time::sleep_until(*taken + delay).await;
            if let Some(bandwidth) = bandwidth {
                let share = u32::try_from(bytes.len()).expect("a chunk is small");
                tokio::time::sleep(Duration::from_secs(1) * share / bandwidth.max(1)).await;
            }
        }
        let now = *faults.wait_for(|faults| way(faults) != Way::Held).await.map_err(io::Error::other)?;
        if now.cut_after != cut_after {
            cut_after = now.cut_after;
            left = cut_after;
        }
        let Some((_, mut bytes)) = next else { return to.shutdown().await };
        if let Some(left) = &mut left {
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        if way(&now) == Way::Open {
            to.write_all(&bytes).await?;
        }
        if left == Some(0) {
            return Err(CUT.into());
        }
    }
}
