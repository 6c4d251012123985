//! The client's own thread: it renews leases, gives late permits back and withdraws what was given up, whatever the
//! application's runtime does.
//!
//! A busy application does not starve renewals, and a permit that is dropped in a stopping runtime is given back. The
//! thread ends when nobody holds the client, a bulkhead or a permit any more, after it has done what it was told.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_proto::v1;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::backoff::{Backoff, Jitter};
use crate::client::Config;
use crate::error::Error;
use crate::lease::{Lease, Loss};
use crate::line::{Line, PROMPT, Place, Session, left};
use crate::permit::{Outcome, Report};
use crate::refusal::{is_passing, refusal};
use crate::renewals::Renewals;

/// The most Releases that are open at once: the others wait their turn.
const MOST_RELEASES: usize = 32;
/// Between two attempts to release.
const AGAIN: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1), Jitter::Full);
/// How long a given-up request is tried to be withdrawn: the longest a lease of it could last.
const WITHDRAW: Duration = tidegate_core::MAX_LEASE_TTL;
/// New leases are looked at this much later: their first renewal is far away, and most are released before.
const SETTLE: Duration = Duration::from_millis(250);
/// Between two attempts to open the stream of renewals.
const REOPEN: Duration = Duration::from_millis(100);
/// Requests on their way into the stream: more than there are unless nobody reads them.
const MOST_REQUESTS: usize = 1_000;
/// The most commands that are taken in one turn: renewals are looked at between two.
const MOST_ALONG: usize = 64;
/// How long the thread goes on for what it was told when the last handle is gone.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The time that leases end by: the machine's monotonic clock, never paused, as the server does not pause.
#[allow(clippy::disallowed_methods, reason = "a lease of the server's ends by real time, also in a paused runtime")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) config: Arc<Config>,
    lines: [Arc<Line>; 2],
    commands: mpsc::UnboundedSender<Command>,
    /// Leases that the thread does not know yet.
    granted: Arc<Mutex<Vec<Arc<Lease>>>>,
}

#[derive(Debug)]
enum Command {
    /// There are new leases.
    Hold,
    Release {
        request: v1::ReleaseRequest,
        /// Not tried any longer after this: the lease has ended by itself.
        until: Instant,
        answer: Option<oneshot::Sender<Result<v1::ReleaseState, Error>>>,
    },
    /// Answered when everything before it is done.
    Flush(oneshot::Sender<()>),
}

/// What becomes of a Release.
#[derive(Debug)]
pub(crate) struct Released(oneshot::Receiver<Result<v1::ReleaseState, Error>>);

impl Released {
    pub(crate) async fn wait(self, bulkhead: &str) -> Result<(), Error> {
        use v1::ReleaseState as State;
        let silent = |detail: &str| Error::Unreachable { endpoints: "the server".into(), detail: detail.into() };
        let lost = |loss| Err(Error::Lost { bulkhead: bulkhead.into(), loss });
        match timeout(PROMPT, self.0).await {
            Err(_) => Err(silent("the Release was not answered yet and goes on to be tried")),
            Ok(Err(_)) => Err(silent("the client's thread is gone")),
            Ok(Ok(state)) => match state? {
                State::Expired => lost(Loss::Expired),
                State::Revoked => lost(Loss::Revoked),
                State::Ended | State::Unknown => lost(Loss::Ended),
                State::Released | State::AlreadyReleased | State::Withdrawn | State::Unspecified => Ok(()),
            },
        }
    }
}

impl Keeper {
    /// Starts the thread.
    pub(crate) fn start(config: Arc<Config>) -> Result<Self, Error> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let lines = [Arc::new(Line::new()), Arc::new(Line::new())];
        let granted = Arc::new(Mutex::new(Vec::new()));
        let thread = Thread {
            config: config.clone(),
            line: lines[0].clone(),
            granted: granted.clone(),
            renewals: Renewals::default(),
            stream: None,
            opening: None,
            look: None,
            open_at: now(),
            releases: Arc::new(Semaphore::new(MOST_RELEASES)),
            tasks: JoinSet::new(),
            flushes: Vec::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let failed = |error: std::io::Error| config.no_answer(&error);
        let (runtime, run_lines) = (runtime.map_err(failed)?, lines.clone());
        let run = move || runtime.block_on(thread.run(run_lines, receiver));
        std::thread::Builder::new().name("tidegate-client".into()).spawn(run).map_err(failed)?;
        Ok(Self { config, lines, commands, granted })
    }

    /// The line of renewals, releases and reports.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.lines[0]
    }

    /// A place for a wait: on the first line while it has one, then on the second; beyond that, when one comes free.
    pub(crate) async fn place(&self) -> Place {
        loop {
            if let Some(place) = self.lines.iter().find_map(Line::place) {
                return place;
            }
            tokio::select! {
                () = self.lines[0].left() => {}
                () = self.lines[1].left() => {}
            }
        }
    }

    /// Looks after a new lease.
    pub(crate) fn hold(&self, lease: Arc<Lease>) {
        let mut granted = self.granted.lock();
        granted.push(lease);
        if granted.len() == 1 {
            self.send(Command::Hold);
        }
    }

    /// Gives a lease back; answers where to wait for that, if `wanted`.
    pub(crate) fn release(&self, lease: &Lease, report: Report, wanted: bool) -> Option<Released> {
        lease.release();
        let (answer, released) = if wanted {
            let (sender, receiver) = oneshot::channel();
            (Some(sender), Some(Released(receiver)))
        } else {
            (None, None)
        };
        let outcome = match report.outcome {
            Outcome::Success => v1::Outcome::Success,
            Outcome::Overloaded => v1::Outcome::Overloaded,
            Outcome::Ignored => v1::Outcome::Unspecified,
        };
        let request = v1::ReleaseRequest {
            lease_id: lease.granted().lease_id.clone(),
            outcome: outcome.into(),
            latency: report.latency.and_then(|latency| latency.try_into().ok()),
            retry_after: report.retry_after.and_then(|wait| wait.try_into().ok()),
            ..v1::ReleaseRequest::default()
        };
        // A little longer than it can be trusted: the server may have it in the count for that long.
        let until = lease.deadline().max(now()) + PROMPT;
        self.send(Command::Release { request, until, answer });
        released
    }

    /// Withdraws a request that was given up: it may wait, or have been granted unheard.
    pub(crate) fn withdraw(&self, bulkhead: &str, request_id: String) {
        self.config.counters.count(|counts| &counts.withdrawn);
        let request = v1::ReleaseRequest { bulkhead: bulkhead.into(), request_id, ..v1::ReleaseRequest::default() };
        self.send(Command::Release { request, until: now() + WITHDRAW, answer: None });
    }

    /// Completes when everything it was told before is done.
    pub(crate) async fn flush(&self) {
        let (sender, done) = oneshot::channel();
        self.send(Command::Flush(sender));
        let _ = done.await;
    }

    fn send(&self, command: Command) {
        // The thread outlives its handle.
        let _ = self.commands.send(command);
    }
}

/// What the thread has.
struct Thread {
    config: Arc<Config>,
    line: Arc<Line>,
    granted: Arc<Mutex<Vec<Arc<Lease>>>>,
    renewals: Renewals,
    stream: Option<Stream>,
    opening: Option<Opening>,
    /// When to look at new leases.
    look: Option<Instant>,
    /// The stream is not opened before.
    open_at: Instant,
    releases: Arc<Semaphore>,
    tasks: JoinSet<()>,
    flushes: Vec<oneshot::Sender<()>>,
}

/// The stream of renewals, and the connection it runs on.
struct Stream {
    requests: mpsc::Sender<v1::RenewLeasesRequest>,
    answers: Streaming<v1::RenewLeasesResponse>,
    session: Session,
}

type Opening = Pin<Box<dyn Future<Output = Option<Stream>> + Send>>;

impl Thread {
    async fn run(mut self, lines: [Arc<Line>; 2], mut commands: mpsc::UnboundedReceiver<Command>) {
        let sockets = Arc::new(Semaphore::new(lines.len()));
        for (number, line) in lines.into_iter().enumerate() {
            tokio::spawn(line.run(self.config.clone(), sockets.clone(), number > 0));
        }
        loop {
            let due = self.renewals.next().into_iter().chain(self.look).min();
            let silent = self.renewals.unanswered_since().map(|since| since + PROMPT);
            if self.stream.is_none() && self.opening.is_none() && !self.renewals.is_empty() {
                self.opening = Some(Box::pin(open(self.config.clone(), self.line.clone(), self.open_at)));
            }
            // Renewals first: a flood of Releases must not starve them.
            tokio::select! {
                biased;
                () = until(due) => {
                    self.look = None;
                    self.renew();
                }
                () = until(silent) => {
                    // Its connection is cut: whatever waits for it fails and starts anew.
                    if let Some(stream) = &self.stream {
                        tracing::warn!("renewals are not answered; connecting anew");
                        stream.session.cut();
                    }
                    self.lose_stream();
                }
                answer = message(&mut self.stream) => match answer {
                    Some(answer) => self.renewals.answered(now(), &answer),
                    None => self.lose_stream(),
                },
                stream = opened(&mut self.opening) => {
                    self.opening = None;
                    self.open_at = now() + REOPEN;
                    self.stream = stream;
                    if self.stream.is_some() {
                        self.renewals.resume(now());
                    }
                }
                Some(_) = self.tasks.join_next() => {}
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break,
                },
            }
            // What has come meanwhile goes along, within bounds, so that many Releases cost few turns of this loop.
            for command in std::iter::from_fn(|| commands.try_recv().ok()).take(MOST_ALONG) {
                self.obey(command);
            }
            while self.tasks.try_join_next().is_some() {}
            if self.tasks.is_empty() {
                self.flushes.drain(..).for_each(|done| {
                    // Whoever asked may be gone.
                    let _ = done.send(());
                });
            }
        }
        let last = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(LAST_WORDS, last).await;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Hold => self.look = Some(now() + SETTLE),
            Command::Release { request, until, answer } => self.start_release(request, until, answer),
            Command::Flush(done) => self.flushes.push(done),
        }
    }

    /// Takes new leases in, and sends the renewals that are due.
    fn renew(&mut self) {
        let granted = std::mem::take(&mut *self.granted.lock());
        for lease in granted.into_iter().filter(|lease| !lease.is_released()) {
            self.renewals.hold(now(), lease);
        }
        for request in self.renewals.take_due(now(), self.stream.is_some()) {
            if let Some(stream) = &self.stream
                && stream.requests.try_send(request).is_err()
            {
                self.lose_stream();
            }
        }
    }

    fn lose_stream(&mut self) {
        self.stream = None;
        self.renewals.broken();
    }

    fn start_release(
        &mut self,
        request: v1::ReleaseRequest,
        until: Instant,
        answer: Option<oneshot::Sender<Result<v1::ReleaseState, Error>>>,
    ) {
        let (config, line, turns) = (self.config.clone(), self.line.clone(), self.releases.clone());
        self.tasks.spawn(async move {
            let Ok(_turn) = turns.acquire_owned().await else { return };
            let released = release(&config, &line, request, until).await;
            if let Some(answer) = answer {
                // Whoever asked may be gone.
                let _ = answer.send(released);
            }
        });
    }
}

/// Releases, for as long as it takes.
async fn release(
    config: &Config,
    line: &Line,
    request: v1::ReleaseRequest,
    until: Instant,
) -> Result<v1::ReleaseState, Error> {
    let start = now();
    let mut failures = 0;
    loop {
        let time_left = left(start, now(), until.saturating_duration_since(start));
        let problem = match timeout(time_left, line.up()).await {
            Err(_) => return Err(line.problem().unwrap_or_else(|| config.silent())),
            Ok(session) => {
                let _call = line.call();
                let mut stub = session.stub;
                match timeout(PROMPT, stub.release(config.request(request.clone()))).await {
                    Ok(Ok(response)) => return Ok(response.into_inner().state()),
                    Ok(Err(status)) => match refusal(&status) {
                        Some(refusal) if !is_passing(&refusal.reason) => return Err(refusal.into()),
                        Some(refusal) => refusal.into(),
                        None => config.unreachable(&status),
                    },
                    Err(_) => config.silent(),
                }
            }
        };
        failures += 1;
        if now() >= until {
            return Err(problem);
        }
        tokio::time::sleep(AGAIN.delay(failures, rand::random())).await;
    }
}

/// The next answer of the stream; `None` when it has ended. Never without a stream.
async fn message(stream: &mut Option<Stream>) -> Option<v1::RenewLeasesResponse> {
    match stream {
        Some(stream) => stream.answers.message().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Opens the stream as soon as the line is up, not before `at`. A server that accepts streams does so at once.
async fn open(config: Arc<Config>, line: Arc<Line>, at: Instant) -> Option<Stream> {
    tokio::time::sleep_until(at.into()).await;
    let session = line.up().await;
    let (requests, receiver) = mpsc::channel(MOST_REQUESTS);
    let mut stub = session.stub.clone();
    match timeout(PROMPT, stub.renew_leases(config.request(ReceiverStream::new(receiver)))).await {
        Ok(Ok(answers)) => return Some(Stream { requests, answers: answers.into_inner(), session }),
        Ok(Err(status)) => tracing::debug!(%status, "the stream of renewals did not open"),
        Err(_) => session.cut(),
    }
    None
}

/// The stream when it has opened, or failed to. Never while it is not being opened.
async fn opened(opening: &mut Option<Opening>) -> Option<Stream> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
