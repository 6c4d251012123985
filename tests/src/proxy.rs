//! A TCP proxy between clients and the server that stops carrying, while all its sockets stay open.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What a proxy does with the bytes of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Carries them both ways.
    Carry,
    /// Carries them to the server; what comes back is lost. A connection is of no use to its client afterwards.
    DropReplies,
    /// Carries none and reads none: to either side the other one has fallen silent.
    BlackHole,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// A running proxy. Dropped, it cuts its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of that address.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (mode, watching) = watch::channel(Mode::Carry);
        let accepting = tokio::spawn(async move {
            // Aborted together with this task.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(connection(client, upstream, watching.clone()));
            }
        });
        Self { address, mode, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happens to bytes from now on, also to those that are under way.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connection(client: TcpStream, upstream: SocketAddr, mode: watch::Receiver<Mode>) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::try_join!(
        pump(from_client, to_server, mode.clone(), Direction::ToServer),
        pump(from_server, to_client, mode, Direction::ToClient),
    )?;
    Ok(())
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    direction: Direction,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        flowing(&mut mode).await?;
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            _ = mode.changed() => continue,
        };
        if read == 0 {
            return to.shutdown().await;
        }
        flowing(&mut mode).await?;
        let is_lost = *mode.borrow() == Mode::DropReplies && direction == Direction::ToClient;
        if !is_lost {
            to.write_all(&buffer[..read]).await?;
        }
    }
}

/// Waits until bytes may flow.
async fn flowing(mode: &mut watch::Receiver<Mode>) -> io::Result<()> {
    mode.wait_for(|&mode| mode != Mode::BlackHole).await.map_err(io::Error::other)?;
    Ok(())
}
