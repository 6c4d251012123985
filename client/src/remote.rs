//! A bulkhead of a server's: an Acquire over the wire, from the first try to a permit, a refusal or the fallback.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use tidegate_core::{OnCooldown, Priority};
use tidegate_proto::v1;
use tonic::Code;
use tracing::Instrument;

use crate::backoff::{Backoff, Jitter};
use crate::bulkhead::Options;
use crate::deadline;
use crate::error::Error;
use crate::fallback::Fallback;
use crate::keeper::{Keeper, now};
use crate::lease::{Granted, Lease, Loss};
use crate::line::{Line, MOST_WAITS, Session, left};
use crate::local::LocalBulkhead;
use crate::permit::{Permit, Report};
use crate::refusal::{Refusal, is_passing, refusal};
use crate::releases::Released;

/// Between two tries of one Acquire.
const AGAIN: Backoff = Backoff::exponential(Duration::from_millis(20), Duration::from_millis(500), Jitter::Full);
/// Leases are renewed no more often, whatever the server says.
const OFTENEST: Duration = Duration::from_millis(100);
/// The longest span that is told to a server, or believed of one: more is as good as for ever, and clocks may overflow.
const LONGEST: Duration = Duration::from_hours(10_000);
/// The reason of a refusal by this client itself.
const CROWDED: &str = "CLIENT_CAP_REACHED";
/// The reason when what a request id was granted has ended.
const SPENT: &str = "REQUEST_ID_SPENT";
/// How much later than it should have come an answer is no longer waited for.
const LATE: Duration = Duration::from_secs(1);

/// A bulkhead of a server's.
pub(crate) struct Remote {
    name: Arc<str>,
    keeper: Arc<Keeper>,
    local: OnceLock<Result<LocalBulkhead, Error>>,
    /// Of this process.
    waiting: AtomicUsize,
    running: AtomicUsize,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A call that waits for its answer.
struct Waiting<'a>(&'a Remote);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One logical Acquire: given up without an answer, it is withdrawn, wherever its future is dropped.
struct Asking<'a> {
    remote: &'a Remote,
    request_id: Option<String>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(request_id) = self.request_id.take() {
            self.remote.keeper.withdraw(&self.remote.name, request_id);
        }
    }
}

impl Remote {
    pub(crate) fn new(name: Arc<str>, keeper: Arc<Keeper>) -> Self {
        Self { name, keeper, local: OnceLock::new(), waiting: AtomicUsize::new(0), running: AtomicUsize::new(0) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Permits of this process that are not given back, and calls that wait.
    pub(crate) fn activity(&self) -> (usize, usize) {
        (self.running.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }

    /// A permit is given back.
    pub(crate) fn release(&self, lease: &Lease, report: Report, wanted: bool) -> Option<Released> {
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.keeper.release(lease, report, wanted)
    }

    pub(crate) async fn acquire(self: &Arc<Self>, options: &Options) -> Result<Permit, Error> {
        if let (Some(ttl), Some(work)) = (options.lease_ttl, options.unrenewed) {
            check_unrenewed(ttl, work)?;
        }
        let span = tracing::info_span!("tidegate.acquire", otel.kind = "client", bulkhead = &*self.name);
        let config = &self.keeper.config;
        let start = now();
        // Pinned before it is wrapped: a future of kilobytes is not moved.
        let asking = pin!(self.ask(options));
        let asked = asking.instrument(span).await;
        match asked {
            // A caller's own impatience is no sign that the server is away. Whether it is will be known soon.
            Err(Error::Unreachable { .. }) if !self.is_away() && self.keeper.line().problem().is_none() => {
                self.keeper.line().doubt();
                asked
            }
            Err(Error::Unreachable { .. }) => self.fall_back(options, start, asked).await,
            Err(Error::Refused(ref refusal)) if is_passing(&refusal.reason) && self.is_away() => {
                self.fall_back(options, start, asked).await
            }
            // Not for long yet, or by this client itself.
            Err(Error::Refused(ref refusal)) if is_passing(&refusal.reason) || refusal.reason == CROWDED => asked,
            Err(Error::Refused(_)) => {
                config.counters.count(|counts| &counts.refused);
                config.fallback.end(now());
                asked
            }
            Ok(_) => {
                config.counters.count(|counts| &counts.granted);
                config.fallback.end(now());
                asked
            }
            Err(_) => asked,
        }
    }

    /// Whether the server was silent for as long as the patience with that lasts, whoever noticed it. Once work goes on
    /// without the server, nobody is asked to wait.
    fn is_away(&self) -> bool {
        let config = &self.keeper.config;
        config.fallback.is_on() || config.fallback.is_silent_for(config.grace, now())
    }

    /// Asks until an answer comes, the patience with silence is over, or the caller's time is.
    async fn ask(self: &Arc<Self>, options: &Options) -> Result<Permit, Error> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(self);
        let config = &self.keeper.config;
        // Once work goes on without the server, nobody is patient again.
        let grace = if config.fallback.is_on() { Duration::ZERO } else { config.grace };
        let start = now();
        let mut request_id = fresh_id();
        // An earlier try may have been granted unheard.
        let mut is_unheard = false;
        let mut asking = Asking { remote: self, request_id: None };
        let mut failures = 0;
        loop {
            // Nothing yet: patience is whole.
            let mut silent_since = None;
            let left_to_all = || options.timeout.map(|timeout| left(start, now(), timeout));
            let left_to_wait = || options.max_wait.map(|max_wait| left(start, now(), max_wait));
            let place = match options.max_wait {
                // It is answered at once, and needs none.
                Some(Duration::ZERO) => None,
                _ => match left_to_all().into_iter().chain(left_to_wait()).min() {
                    Some(longest) => Some(wait(longest, self.keeper.place()).await.ok_or_else(crowded)?),
                    None => Some(self.keeper.place().await),
                },
            };
            let line = place.as_ref().map_or(self.keeper.line(), |place| &place.0).clone();
            let call = place.is_none().then(|| line.call());
            let problem = match self.session(&line, grace, left_to_all()).await {
                // As if the second line had no room.
                Err(None) if left_to_wait().is_some_and(|left| left.is_zero()) => return Err(crowded()),
                Err(None) => crowded(),
                Err(since) => {
                    silent_since = since;
                    line.problem().unwrap_or_else(|| config.silent())
                }
                Ok(session) => {
                    asking.request_id.get_or_insert_with(|| request_id.clone());
                    let sent = now();
                    let request = self.request(options, &request_id, start, sent);
                    // Whoever knows how long the wait is also knows when an answer is overdue.
                    let longest = options.max_wait.map(|max_wait| left(start, sent, max_wait).saturating_add(LATE));
                    let mut stub = session.stub;
                    let mut answer = pin!(stub.acquire(request));
                    let answer = match longest {
                        Some(longest) => wait(longest, answer.as_mut()).await,
                        None => Some(answer.as_mut().await),
                    };
                    match answer {
                        Some(Ok(response)) => {
                            asking.request_id = None;
                            return self.granted(options, sent, response.into_inner());
                        }
                        None => {
                            let answered_by = now().checked_sub(LATE).unwrap_or(sent);
                            config.fallback.silent(answered_by, now());
                            self.keeper.line().doubt();
                            return Err(config.silent());
                        }
                        Some(Err(status)) => match refusal(&status) {
                            // What an earlier try was granted has ended since; this one asks anew.
                            Some(refusal) if is_unheard && refusal.reason == SPENT => {
                                (request_id, is_unheard) = (fresh_id(), false);
                                asking.request_id = None;
                                refusal.into()
                            }
                            Some(refusal) => {
                                if !is_unheard {
                                    asking.request_id = None;
                                }
                                if !is_passing(&refusal.reason) {
                                    return Err(refusal.into());
                                }
                                silent_since = Some(config.fallback.silent(now(), now()));
                                refusal.into()
                            }
                            None if status.code() == Code::Unimplemented => {
                                asking.request_id = None;
                                return Err(config.wrong_server("Acquire"));
                            }
                            None => {
                                is_unheard = true;
                                // Unless it was the caller's own time that was over.
                                if left_to_all().is_none_or(|left| !left.is_zero()) {
                                    silent_since = Some(config.fallback.silent(now(), now()));
                                }
                                config.unreachable(&status)
                            }
                        },
                    }
                }
            };
            drop((call, place));
            failures += 1;
            let is_over = options.timeout.is_some_and(|timeout| left(start, now(), timeout).is_zero());
            if is_over || silent_since.is_some_and(|since| left(since, now(), grace).is_zero()) {
                return Err(problem);
            }
            let delay = AGAIN.delay(failures, rand::random());
            tokio::time::sleep(left_to_all().map_or(delay, |left| left.min(delay))).await;
        }
    }

    /// A session of that line, within the patience that is left. Without one: since when the server is silent, or nothing
    /// if it is only the second line that does not open.
    async fn session(
        &self,
        line: &Line,
        grace: Duration,
        longest: Option<Duration>,
    ) -> Result<Session, Option<Instant>> {
        if let Some(session) = line.session() {
            return Ok(session);
        }
        let is_up = self.keeper.line().session().is_some();
        let silent_since = (!is_up).then(|| self.keeper.config.fallback.silent(now(), now()));
        let patience = left(silent_since.unwrap_or_else(now), now(), grace);
        wait(longest.map_or(patience, |longest| longest.min(patience)), line.up()).await.ok_or(silent_since)
    }

    fn request(
        &self,
        options: &Options,
        request_id: &str,
        start: Instant,
        sent: Instant,
    ) -> tonic::Request<v1::AcquireRequest> {
        let field = |span: Duration| span.try_into().ok();
        let priority = match options.priority {
            Priority::Critical => v1::Priority::Critical,
            Priority::Normal => v1::Priority::Normal,
            Priority::Sheddable => v1::Priority::Sheddable,
        };
        let on_cooldown = match options.on_cooldown {
            OnCooldown::Refuse => v1::OnCooldown::Refuse,
            OnCooldown::Wait => v1::OnCooldown::Wait,
        };
        let mut request = self.keeper.config.request(v1::AcquireRequest {
            bulkhead: self.name.to_string(),
            permits: options.permits,
            max_wait: options.max_wait.and_then(|max_wait| field(left(start, sent, max_wait))),
            lease_ttl: options.lease_ttl.and_then(field),
            partition: options.partition.as_deref().map(Into::into),
            priority: priority.into(),
            on_cooldown: on_cooldown.into(),
            request_id: request_id.into(),
            holder: self.keeper.config.holder.clone(),
        });
        if let Some(timeout) = options.timeout {
            request.set_timeout(left(start, sent, timeout).min(LONGEST));
        }
        request
    }

    /// A grant becomes a permit, if it can still be trusted.
    fn granted(
        self: &Arc<Self>,
        options: &Options,
        sent: Instant,
        response: v1::AcquireResponse,
    ) -> Result<Permit, Error> {
        let answered = now();
        let Some(v1::Lease { lease_id, bulkhead, permits, fencing_token, fencing_floor, ttl, renew_interval }) =
            response.lease
        else {
            return Err(self.keeper.config.wrong_server("Acquire"));
        };
        let ttl = span(ttl);
        let waited = span(response.waited);
        let renew_interval = renew_interval.map_or(ttl / 3, |interval| span(Some(interval)));
        let renew_interval = options.unrenewed.is_none().then(|| renew_interval.max(OFTENEST));
        let deadline = deadline::granted(sent, answered, waited, ttl);
        let granted = Granted { lease_id, permits, fencing_token, fencing_floor, ttl, renew_interval, deadline };
        let lease = Arc::new(Lease::new(granted));
        let checked = match options.unrenewed {
            Some(work) => check_unrenewed(ttl, work),
            None => Ok(()),
        };
        if checked.is_err() || answered >= deadline {
            self.keeper.release(&lease, Report::default(), false);
            checked?;
            return Err(Error::Lost { bulkhead, loss: Loss::Unrenewed });
        }
        self.keeper.hold(lease.clone());
        let bulkhead = if *bulkhead == *self.name { self.name.clone() } else { bulkhead.into() };
        self.running.fetch_add(1, Ordering::Relaxed);
        Ok(Permit::remote(self.clone(), lease, bulkhead))
    }

    /// No answer came: work goes on as was decided, or the error is passed on.
    async fn fall_back(
        &self,
        options: &Options,
        start: Instant,
        asked: Result<Permit, Error>,
    ) -> Result<Permit, Error> {
        let config = &self.keeper.config;
        match config.fallback.begin(now(), &config.counters) {
            Fallback::Closed => asked,
            Fallback::Open => Ok(Permit::open(self.name.clone())),
            Fallback::Local(limit) => {
                let local = self.local.get_or_init(|| LocalBulkhead::new(self.name.clone(), limit));
                // What was waited for the server counts.
                let rest = |span: Option<Duration>| span.map(|span| left(start, now(), span));
                let (timeout, max_wait) = (rest(options.timeout), rest(options.max_wait));
                let options = Options { max_wait, timeout, ..options.clone() };
                options.acquire(local.as_ref().map_err(Clone::clone)?.engine()).await
            }
        }
    }

    pub(crate) async fn report(&self, partition: Option<&str>, wait: Duration) -> Result<Duration, Error> {
        let config = &self.keeper.config;
        let line = self.keeper.line();
        let _call = line.call();
        let Ok(session) = tokio::time::timeout(config.grace, line.up()).await else {
            return Err(line.problem().unwrap_or_else(|| config.silent()));
        };
        let mut request = config.request(v1::ReportRetryAfterRequest {
            partition: partition.unwrap_or(&self.name).into(),
            retry_after: wait.try_into().ok(),
            detail: String::new(),
        });
        request.set_timeout(crate::line::PROMPT);
        let mut stub = session.stub;
        match stub.report_retry_after(request).await {
            Ok(response) => Ok(span(response.into_inner().remaining)),
            Err(status) if status.code() == Code::Unimplemented => Err(config.wrong_server("ReportRetryAfter")),
            Err(status) => Err(refusal(&status).map_or_else(|| config.unreachable(&status), Refusal::into)),
        }
    }
}

/// Random for each logical Acquire.
fn fresh_id() -> String {
    BASE64URL_NOPAD.encode(&rand::random::<[u8; 16]>())
}

/// As many calls of this client wait as may.
fn crowded() -> Error {
    let message = format!("{} calls of this client wait already, for whichever bulkhead", 2 * MOST_WAITS);
    Refusal::plain(Code::ResourceExhausted, CROWDED, message).into()
}

/// A lease that nobody renews must outlive its work.
fn check_unrenewed(ttl: Duration, work: Duration) -> Result<(), Error> {
    let least = deadline::least_unrenewed(work, ttl);
    if ttl > least { Ok(()) } else { Err(Error::LeaseTooShort { ttl, least, work }) }
}

fn span(field: Option<prost_types::Duration>) -> Duration {
    let span: Duration = field.and_then(|span| span.try_into().ok()).unwrap_or_default();
    span.min(LONGEST)
}

/// What comes within that time. Zero still takes what is there already.
async fn wait<F: Future>(longest: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(longest, future).await.ok()
}
