//! Accepts connections and serves each on a task of its own. Knows nothing of the calls they carry.
//!
//! *Caps*: so many connections, and so many from one address; one more is closed at once. *Errors* of accepting never end
//! the loop. Each listener counts for itself, so that applications cannot keep operators out.

mod connection;
mod frames;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use connection::Connection;

use crate::pressure::{Pressure, Rung};
use crate::quiet::Quiet;
use crate::settings::TransportSettings;
use crate::waits::Waits;

/// After an error that a next try would meet again, such as no file descriptor left.
const PAUSE: Duration = Duration::from_millis(50);
/// For networks that forget silent connections.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// For whom a listener is: what part of the files that the process may have open its connections may take. The rest is
/// for logs and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Three quarters.
    Applications,
    /// An eighth.
    Operators,
    /// A sixteenth.
    Probes,
}

/// Serves calls over HTTP/2 until `stopping` is cancelled, and then until the last connection has ended. Dropped, it cuts
/// them.
pub(crate) async fn serve<A, F, R, B>(
    listener: TcpListener,
    whom: For,
    settings: TransportSettings,
    pressure: Pressure,
    answer: A,
    stopping: CancellationToken,
) where
    A: Fn(&Arc<Connection>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes, Error = R> + Send + 'static,
    R: Into<Box<dyn Error + Send + Sync>> + Send + Sync,
{
    let shared = Arc::new(settings.clone());
    let (short, stop) = (pressure.clone(), stopping.clone());
    let open = move |socket, address| {
        let waits = Waits::of(shared.max_streams_per_connection, pressure.clone());
        let (held, closing) = (AtomicUsize::new(0), CancellationToken::new());
        let connection = Arc::new(Connection { address, waits, held, closing });
        let (settings, answer, stopping) = (shared.clone(), answer.clone(), stopping.clone());
        async move { connection::serve(socket, connection, &settings, answer, stopping).await }
    };
    accept(listener, whom, &settings, short, open, stop).await;
}

/// Accepts connections until `stopping` is cancelled, and then waits until the last one has ended. Each is what `open`
/// makes of it. Dropped, it cuts them.
pub(crate) async fn accept<F>(
    listener: TcpListener,
    whom: For,
    settings: &TransportSettings,
    pressure: Pressure,
    open: impl Fn(TcpStream, SocketAddr) -> F,
    stopping: CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let most = most_connections(whom, settings.max_connections, open_files());
    // Probes come from a few hosts: none of them keeps the others out.
    let of_one = if whom == For::Probes { (most / 4).max(1) } else { most };
    let crowd = Arc::new(Crowd::new(most, settings.max_connections_per_address.min(of_one)));
    let (refusals, errors) = (Quiet::default(), Quiet::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopping.cancelled() => break,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(held_back) = errors.pass() {
                    warn!(%error, held_back, "cannot accept a connection");
                }
                if !is_of_one_connection(&error) {
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
        };
        let entry = if pressure.refuses(Rung::Connections) { Err("memory") } else { crowd.enter(address.ip()) };
        let place = match entry {
            Ok(place) => place,
            Err(cap) => {
                if let Some(held_back) = refusals.pass() {
                    warn!(cap, %address, held_back, "connection refused");
                }
                continue;
            }
        };
        tune(&socket);
        let connection = open(socket, address);
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// An error of the connection that was to be accepted: the next one may be sound.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Best effort: a connection without these options works as well.
fn tune(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// How many files the process may have open, after it asked for as many as it can get.
fn open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

fn most_connections(whom: For, setting: usize, open_files: u64) -> usize {
    let share = match whom {
        For::Applications => open_files / 4 * 3,
        For::Operators => open_files / 8,
        For::Probes => open_files / 16,
    };
    let share = usize::try_from(share).unwrap_or(usize::MAX).max(1);
    if whom == For::Applications && share < setting {
        info!(max_connections = share, setting, open_files, "fewer connections: no more files may be open");
    }
    setting.min(share)
}

/// The open connections of a listener.
#[derive(Debug)]
struct Crowd {
    most: usize,
    most_per_address: usize,
    now: Mutex<Count>,
}

#[derive(Debug, Default)]
struct Count {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// An open connection, counted until this is dropped.
struct Place {
    crowd: Arc<Crowd>,
    address: IpAddr,
}

impl Crowd {
    fn new(most: usize, most_per_address: usize) -> Self {
        Self { most, most_per_address, now: Mutex::default() }
    }

    /// Counts one more, or tells which cap it meets.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Place, &'static str> {
        let address = host(address);
        let mut now = self.now.lock();
        if now.all >= self.most {
            return Err("max_connections");
        }
        let here = now.by_address.entry(address).or_default();
        // One that is not there yet may come in any case, so none is left behind empty.
        if *here >= self.most_per_address {
            return Err("max_connections_per_address");
        }
        *here += 1;
        now.all += 1;
        Ok(Place { crowd: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = self.crowd.now.lock();
        now.all -= 1;
        if let Some(here) = now.by_address.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                now.by_address.remove(&self.address);
            }
        }
    }
}

/// What stands for one host: an address of IPv4, or the 64 bits that a host of IPv6 is given.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_are_capped_in_all_and_for_each_host() {
        let crowd = Arc::new(Crowd::new(3, 2));
        let enter = |text| crowd.enter(address(text)).map(drop).err();
        let _first = crowd.enter(address("10.0.0.1")).unwrap();
        let second = crowd.enter(address("::ffff:10.0.0.1")).unwrap();
        assert_eq!(enter("10.0.0.1"), Some("max_connections_per_address"));
        assert_eq!(enter("10.0.0.2"), None);
        let _other = crowd.enter(address("10.0.0.2")).unwrap();
        assert_eq!(enter("10.0.0.3"), Some("max_connections"));
        drop(second);
        assert_eq!(enter("10.0.0.1"), None);
        assert_eq!(crowd.now.lock().by_address.len(), 2);
    }

    #[test]
    fn a_host_of_ipv6_has_64_bits() {
        assert_eq!(host(address("2001:db8:1:2:3:4:5:6")), address("2001:db8:1:2::"));
        assert_ne!(host(address("2001:db8:1:3::1")), host(address("2001:db8:1:2::1")));
    }

    #[tokio::test]
    async fn silent_connections_are_looked_after_and_small_messages_not_held_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let open = move |socket: TcpStream, _| {
            let options = SockRef::from(&socket);
            tell.send((options.keepalive().unwrap(), options.tcp_keepalive_time().unwrap(), socket.nodelay().unwrap()))
                .unwrap();
            std::future::ready(())
        };
        let settings = TransportSettings::default();
        let accepting = accept(listener, For::Probes, &settings, Pressure::default(), open, CancellationToken::new());
        tokio::select! {
            () = accepting => panic!("nobody stops it"),
            told = async {
                let _connected = TcpStream::connect(address).await.unwrap();
                told.recv().await.unwrap()
            } => assert_eq!(told, (true, TCP_KEEPALIVE, true)),
        }
    }

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(most_connections(For::Applications, 10_000, 256), 192);
        assert_eq!(most_connections(For::Operators, 10_000, 256), 32);
        assert_eq!(most_connections(For::Probes, 10_000, 256), 16);
        assert_eq!(most_connections(For::Applications, 10_000, 1 << 20), 10_000);
        assert_eq!(most_connections(For::Operators, 10_000, 0), 1);
    }
}
