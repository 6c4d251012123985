//! One connection to the server, made again for ever.
//!
//! tonic's own channels reconnect unseen, and may leave an old socket draining beside the new one. Here each channel is
//! exactly one socket: its connector works once, its end is seen, and it can be cut. All sockets of a client come out of
//! one count, so there are never more than two, whatever happens.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate_proto::v1;
use tidegate_proto::v1::admission_service_client::AdmissionServiceClient;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::backoff::{Backoff, Jitter};
use crate::client::Config;
use crate::error::Error;
use crate::refusal::refusal;

/// The most waits on one connection: the server's default of 256 streams, less a reserve for renewals and releases.
pub(crate) const MOST_WAITS: usize = 200;
/// Between two attempts to connect.
const RECONNECT: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2), Jitter::Full);
/// How long a connection may take to open, and an answer that the server gives at once to come.
pub(crate) const PROMPT: Duration = Duration::from_secs(5);
/// How often a connection with open calls is asked for a sign of life.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time a doubted connection has for a sign of life.
const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// How long a connection that takes no more calls may finish those it has, when its place is wanted.
const RETIRE: Duration = Duration::from_millis(250);

pub(crate) type Stub = AdmissionServiceClient<Channel>;

/// One connection that is kept up.
#[derive(Debug)]
pub(crate) struct Line {
    state: watch::Sender<State>,
    waits: AtomicUsize,
    /// Other calls that are open, and need the connection to be alive.
    calls: AtomicUsize,
    wanted: Notify,
    left: Notify,
    doubted: Notify,
}

/// How a line stands.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Not yet, or no longer; the failure of the latest attempt, if one has failed since it was up, or that it was silent.
    Down(Option<Error>),
    /// Calls can be made.
    Up(Session),
}

/// One connection's lifetime.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) stub: Stub,
    /// Ends the connection.
    cut: CancellationToken,
}

impl Session {
    /// Ends the connection: it does not answer. Its calls fail and can be made on the next one.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

/// A wait's place on a line.
#[derive(Debug)]
pub(crate) struct Place(pub(crate) Arc<Line>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
        self.0.left.notify_one();
    }
}

/// A call other than a wait, while it is open.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Line);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Down(None)),
            waits: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            wanted: Notify::new(),
            left: Notify::new(),
            doubted: Notify::new(),
        }
    }

    /// A call had no answer in its time: the connection, if there is one, is asked for a sign of life now.
    pub(crate) fn doubt(&self) {
        if self.session().is_some() {
            self.doubted.notify_one();
        }
    }

    /// A place for a wait, if there is one.
    pub(crate) fn place(self: &Arc<Self>) -> Option<Place> {
        let place = |waits| (waits < MOST_WAITS).then_some(waits + 1);
        self.waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).ok()?;
        self.wanted.notify_one();
        Some(Place(self.clone()))
    }

    /// Completes when a wait has left, perhaps.
    pub(crate) fn left(&self) -> Notified<'_> {
        self.left.notified()
    }

    pub(crate) fn call(&self) -> Call<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Call(self)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// The session, if the line is up.
    pub(crate) fn session(&self) -> Option<Session> {
        match &*self.state.borrow() {
            State::Up(session) => Some(session.clone()),
            State::Down(_) => None,
        }
    }

    /// The session as soon as the line is up.
    pub(crate) async fn up(&self) -> Session {
        if let Some(session) = self.session() {
            return session;
        }
        let mut states = self.watch();
        loop {
            if let Some(session) = self.session() {
                return session;
            }
            // The sender lives in `self`, so this never fails.
            let _ = states.changed().await;
        }
    }

    /// How the latest attempt to connect failed, while the line is down.
    pub(crate) fn problem(&self) -> Option<Error> {
        match &*self.state.borrow() {
            State::Down(problem) => problem.clone(),
            State::Up(_) => None,
        }
    }

    /// Keeps the connection up for ever, with jitter between attempts; `on_demand`, only while somebody wants a place.
    pub(crate) async fn run(self: Arc<Self>, config: Arc<Config>, sockets: Sockets, on_demand: bool) {
        let mut random = config.seed.map_or_else(|| SmallRng::from_rng(&mut rand::rng()), SmallRng::seed_from_u64);
        let mut failures = 0u32;
        loop {
            while on_demand && self.waits.load(Ordering::Relaxed) == 0 {
                self.wanted.notified().await;
            }
            let socket = sockets.one().await;
            let endpoint = &config.endpoints[failures as usize % config.endpoints.len()];
            match Opened::connect(endpoint, socket, &config).await {
                Ok(opened) => {
                    failures = 0;
                    config.fallback.heard();
                    self.state.send_replace(State::Up(opened.session.clone()));
                    tracing::debug!(endpoint = %endpoint.uri(), "connected");
                    self.watch_over(&opened, &config).await;
                    // Cut, it was silent; else it may just have come of age.
                    let problem = opened.session.cut.is_cancelled().then(|| config.silent());
                    self.state.send_replace(State::Down(problem));
                    config.counters.count(|counts| &counts.connections_lost);
                    sockets.retire(opened);
                }
                Err(problem) => {
                    if failures == 0 {
                        tracing::warn!(endpoint = %endpoint.uri(), %problem, "cannot connect; trying for ever");
                    }
                    failures = failures.saturating_add(1);
                    self.state.send_replace(State::Down(Some(problem)));
                }
            }
            tokio::time::sleep(RECONNECT.delay(failures + 1, random.random())).await;
        }
    }

    /// Returns when the connection takes no more calls.
    async fn watch_over(&self, opened: &Opened, config: &Config) {
        loop {
            let is_doubted = tokio::select! {
                () = opened.closed.cancelled() => return,
                () = opened.retired.cancelled() => return,
                () = self.doubted.notified() => true,
                () = tokio::time::sleep(PROBE_INTERVAL) => false,
            };
            let is_needed = [&self.waits, &self.calls].iter().any(|open| open.load(Ordering::Relaxed) > 0);
            let patience = if is_doubted { config.grace.clamp(LEAST_PATIENCE, PROMPT) } else { PROMPT };
            if (is_doubted || is_needed) && timeout(patience, probe(&opened.session.stub, config)).await.is_err() {
                tracing::warn!("the server does not answer; connecting anew");
                opened.session.cut();
            }
        }
    }
}

/// The sockets of all lines of a client: never more than there are lines.
#[derive(Clone, Debug)]
pub(crate) struct Sockets {
    free: Arc<Semaphore>,
    /// Connections that take no more calls, oldest first.
    retired: Arc<Mutex<VecDeque<Opened>>>,
}

impl Sockets {
    pub(crate) fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), retired: Arc::default() }
    }

    /// One for a new connection. Where there is none, the connection that retired first gives its own up, whichever line's
    /// it was.
    async fn one(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(Ok(socket)) = timeout(RETIRE, self.free.clone().acquire_owned()).await {
                return socket;
            }
            if let Some(oldest) = self.retired.lock().pop_front() {
                oldest.session.cut();
            }
        }
    }

    fn retire(&self, opened: Opened) {
        let mut retired = self.retired.lock();
        retired.retain(|opened| !opened.closed.is_cancelled());
        retired.push_back(opened);
    }
}

/// A sign of life: renews nothing.
async fn probe(stub: &Stub, config: &Config) -> Result<(), Error> {
    let request = config.request(v1::RenewRequest::default());
    match stub.clone().renew(request).await {
        Ok(_) => Ok(()),
        // An answer, too; calls will tell it to those whom it concerns.
        Err(status) if refusal(&status).is_some() => Ok(()),
        Err(status) if status.code() == Code::Unimplemented => Err(config.wrong_server("Renew")),
        Err(status) => Err(config.unreachable(&status)),
    }
}

/// A connection that has answered once.
#[derive(Debug)]
struct Opened {
    session: Session,
    /// Its socket is gone.
    closed: CancellationToken,
    /// It takes no more calls; those it has go on.
    retired: CancellationToken,
}

impl Opened {
    async fn connect(endpoint: &Endpoint, socket: OwnedSemaphorePermit, config: &Config) -> Result<Self, Error> {
        let [cut, closed, retired] = std::array::from_fn(|_| CancellationToken::new());
        // Whatever goes wrong from here, the socket goes.
        let failed = cut.clone().drop_guard();
        let parts = Arc::new(Mutex::new(Some((socket, closed.clone().drop_guard()))));
        let connector = {
            let (cut, retired) = (cut.clone(), retired.clone());
            tower::service_fn(move |uri: http::Uri| {
                let (parts, cut) = (parts.lock().take(), cut.clone());
                if parts.is_none() {
                    retired.cancel();
                }
                async move {
                    let Some((count, closed)) = parts else { return Err(io::Error::other("this connection is over")) };
                    let stream = TcpStream::connect(address(&uri)?).await?;
                    stream.set_nodelay(true)?;
                    let cut = Box::pin(cut.cancelled_owned());
                    Ok(TokioIo::new(Socket { stream, cut, _count: count, _closed: closed }))
                }
            })
        };
        let opening = async {
            let channel = endpoint.connect_with_connector(connector).await.map_err(|error| config.no_answer(&error))?;
            let stub = AdmissionServiceClient::new(channel);
            probe(&stub, config).await?;
            Ok::<_, Error>(stub)
        };
        let late = || config.no_answer(&io::Error::new(io::ErrorKind::TimedOut, format!("silent for {PROMPT:?}")));
        let stub = timeout(PROMPT, opening).await.map_err(|_| late())??;
        failed.disarm();
        Ok(Self { session: Session { stub, cut }, closed, retired })
    }
}

/// Host and port of an endpoint.
fn address(uri: &http::Uri) -> io::Result<(String, u16)> {
    let host = uri.host().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the address has no host"))?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Ok((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
}

/// A socket that can be cut, and whose end is seen.
struct Socket {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _count: OwnedSemaphorePermit,
    _closed: DropGuard,
}

impl Socket {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server does not answer")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Since when somebody waits, as a bound: `left` is what there is of `patience`.
pub(crate) fn left(since: Instant, now: Instant, patience: Duration) -> Duration {
    patience.saturating_sub(now.saturating_duration_since(since))
}
