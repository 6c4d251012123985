//! The client's own thread: it renews leases, gives late permits back and withdraws what was given up, whatever the
//! application's runtime does.
//!
//! A busy application does not starve renewals, and a permit that is dropped in a stopping runtime is given back. The
//! thread ends when nobody holds the client, a bulkhead or a permit any more, after it has done what it was told.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_proto::v1;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Streaming};

use crate::client::Config;
use crate::error::Error;
use crate::lease::Lease;
use crate::line::{Line, PROMPT, Place, Session, Sockets};
use crate::permit::{Outcome, Report};
use crate::releases::{Jobs, Released, Releases};
use crate::renewals::Renewals;

/// How long a given-up request is tried to be withdrawn: the longest a lease of it could last.
const WITHDRAW: Duration = tidegate_core::MAX_LEASE_TTL;
/// New leases are looked at this much later: their first renewal is far away, and most are released before.
const SETTLE: Duration = Duration::from_millis(250);
/// Between two attempts to open the stream of renewals.
const REOPEN: Duration = Duration::from_millis(100);
/// Requests on their way into the stream: more than there are unless nobody reads them.
const MOST_REQUESTS: usize = 1_000;
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
    releases: Releases,
    granted: Arc<NewLeases>,
    /// Dropped with the handle, which ends the thread.
    _running: DropGuard,
}

/// Leases that the thread does not know yet.
#[derive(Debug, Default)]
struct NewLeases {
    leases: Mutex<Vec<Arc<Lease>>>,
    /// Told when there are some again.
    some: Notify,
    /// Told when one cannot wait.
    urgent: Notify,
}

impl Keeper {
    /// Starts the thread.
    pub(crate) fn start(config: Arc<Config>) -> Result<Self, Error> {
        let stopped = CancellationToken::new();
        let running = stopped.clone().drop_guard();
        let (releases, jobs) = Releases::new();
        let lines = [Arc::new(Line::new()), Arc::new(Line::new())];
        let granted = Arc::new(NewLeases::default());
        let thread = Thread {
            config: config.clone(),
            line: lines[0].clone(),
            granted: granted.clone(),
            renewals: Renewals::default(),
            stream: None,
            opening: None,
            look: None,
            open_at: now(),
        };
        let failed = |error: std::io::Error| config.no_answer(&error);
        let (run_lines, open) = (lines.clone(), releases.open());
        let (told, started) = std::sync::mpsc::sync_channel(1);
        // A runtime must not be dropped by the caller's, so all of it lives and dies on the thread.
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(told.send(Err(error))),
            };
            drop(told.send(Ok(())));
            runtime.block_on(async {
                tokio::select! {
                    // First, so that what was handed in is begun in any case.
                    biased;
                    () = thread.run(run_lines, jobs) => {}
                    () = stopped.cancelled() => {}
                }
                let _ = timeout(LAST_WORDS, open.done()).await;
            });
        };
        std::thread::Builder::new().name("tidegate-client".into()).spawn(run).map_err(failed)?;
        let gone = |_| std::io::Error::other("the client's thread ended at once");
        started.recv().map_err(gone).flatten().map_err(failed)?;
        Ok(Self { config, lines, releases, granted, _running: running })
    }

    /// The line of renewals, releases and reports.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.lines[0]
    }

    /// A place for a wait: on the first line while it has one, then on the second; beyond that, when one comes free.
    pub(crate) async fn place(&self) -> Place {
        let free = || self.lines.iter().find_map(Line::place);
        if let Some(place) = free() {
            return place;
        }
        loop {
            // From here on whoever leaves is noticed, so that the look comes after it.
            let (mut first, mut second) = (pin!(self.lines[0].left()), pin!(self.lines[1].left()));
            first.as_mut().enable();
            second.as_mut().enable();
            if let Some(place) = free() {
                return place;
            }
            tokio::select! {
                () = first => {}
                () = second => {}
            }
        }
    }

    /// Looks after a new lease.
    pub(crate) fn hold(&self, lease: Arc<Lease>) {
        let first = lease.granted().renew_interval.unwrap_or_default().saturating_mul(2).saturating_add(SETTLE);
        let is_urgent = lease.deadline().saturating_duration_since(now()) <= first;
        let mut leases = self.granted.leases.lock();
        leases.push(lease);
        // Told when it is there to be found.
        if is_urgent {
            self.granted.urgent.notify_one();
        } else if leases.len() == 1 {
            self.granted.some.notify_one();
        }
    }

    /// Gives a lease back; answers where to wait for that, if `wanted`.
    pub(crate) fn release(&self, lease: &Lease, report: Report, wanted: bool) -> Option<Released> {
        lease.release();
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
        self.releases.start(request, until, wanted)
    }

    /// Withdraws a request that was given up: it may wait, or have been granted unheard.
    pub(crate) fn withdraw(&self, bulkhead: &str, request_id: String) {
        self.config.counters.count(|counts| &counts.withdrawn);
        let request = v1::ReleaseRequest { bulkhead: bulkhead.into(), request_id, ..v1::ReleaseRequest::default() };
        self.releases.start(request, now() + WITHDRAW, false);
    }

    /// Completes when everything it was told before is done.
    pub(crate) async fn flush(&self) {
        self.releases.open().done().await;
    }
}

/// What the thread has.
struct Thread {
    config: Arc<Config>,
    line: Arc<Line>,
    granted: Arc<NewLeases>,
    renewals: Renewals,
    stream: Option<Stream>,
    opening: Option<Opening>,
    /// When to look at new leases.
    look: Option<Instant>,
    /// The stream is not opened before.
    open_at: Instant,
}

/// The stream of renewals, and the connection it runs on.
struct Stream {
    requests: mpsc::Sender<v1::RenewLeasesRequest>,
    answers: Streaming<v1::RenewLeasesResponse>,
    session: Session,
}

type Opening = Pin<Box<dyn Future<Output = Option<Stream>> + Send>>;

impl Thread {
    async fn run(mut self, lines: [Arc<Line>; 2], jobs: Jobs) {
        let sockets = Sockets::new(lines.len());
        for (number, line) in lines.into_iter().enumerate() {
            tokio::spawn(line.run(self.config.clone(), sockets.clone(), number > 0));
        }
        jobs.work(&self.config, &self.line);
        loop {
            let due = self.renewals.next().into_iter().chain(self.look).min();
            let silent = self.renewals.unanswered_since().map(|since| since + PROMPT);
            if self.stream.is_none() && self.opening.is_none() && !self.renewals.is_empty() {
                self.opening = Some(Box::pin(open(self.config.clone(), self.line.clone(), self.open_at)));
            }
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
                () = self.granted.urgent.notified() => self.look = Some(now()),
                () = self.granted.some.notified() => self.look = self.look.or(Some(now() + SETTLE)),
            }
        }
    }

    /// Takes new leases in, and sends the renewals that are due.
    fn renew(&mut self) {
        let granted = std::mem::take(&mut *self.granted.leases.lock());
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
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            tracing::warn!(problem = %config.wrong_server("RenewLeases"), "leases cannot be renewed");
        }
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
