//! Gives leases back and withdraws requests, on the client's own thread and for as long as it takes.
//!
//! A fixed number of tasks takes what is to be released, first come, first served. So a Release needs no task of its own,
//! and a flood of them leaves room on the connection for renewals. A permit is given back before a request is withdrawn: the
//! one is held, the other perhaps.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_proto::v1;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Code;

use crate::backoff::{Backoff, Jitter};
use crate::client::Config;
use crate::error::Error;
use crate::keeper::now;
use crate::lease::Loss;
use crate::line::{Line, PROMPT, left};
use crate::refusal::{is_passing, refusal};

/// The most Releases that are open at once: the others wait their turn.
const MOST_RELEASES: usize = 32;
/// Between two attempts to release.
const AGAIN: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1), Jitter::Full);

/// Where to hand in what is to be released.
#[derive(Debug)]
pub(crate) struct Releases {
    leases: mpsc::UnboundedSender<Job>,
    requests: mpsc::UnboundedSender<Job>,
    open: Open,
}

/// What is not done yet. Each wait for it begins a new generation, so that it does not wait for what comes later.
#[derive(Clone, Debug)]
pub(crate) struct Open(Arc<parking_lot::Mutex<Vec<TaskTracker>>>);

impl Open {
    fn new() -> Self {
        Self(Arc::new(parking_lot::Mutex::new(vec![Self::generation()])))
    }

    fn generation() -> TaskTracker {
        let generation = TaskTracker::new();
        // Closed, it can be waited for; it goes on to count.
        generation.close();
        generation
    }

    fn token(&self) -> TaskTrackerToken {
        // There is always a latest one.
        self.0.lock().last().map_or_else(|| Self::generation().token(), TaskTracker::token)
    }

    /// Completes when all that was handed in before is done.
    pub(crate) async fn done(&self) {
        let before = {
            let mut generations = self.0.lock();
            generations.retain(|generation| !generation.is_empty());
            let before = generations.clone();
            generations.push(Self::generation());
            before
        };
        for generation in before {
            generation.wait().await;
        }
    }
}

/// What was handed in and not taken yet.
#[derive(Debug)]
pub(crate) struct Jobs {
    leases: mpsc::UnboundedReceiver<Job>,
    requests: mpsc::UnboundedReceiver<Job>,
}

#[derive(Debug)]
struct Job {
    request: v1::ReleaseRequest,
    /// Not tried any longer after this: the lease has ended by itself.
    until: Instant,
    answer: Option<oneshot::Sender<Result<v1::ReleaseState, Error>>>,
    /// Counts it as open until it is dropped.
    _open: TaskTrackerToken,
}

impl Releases {
    pub(crate) fn new() -> (Self, Jobs) {
        let (lease, request) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let jobs = Jobs { leases: lease.1, requests: request.1 };
        (Self { leases: lease.0, requests: request.0, open: Open::new() }, jobs)
    }

    /// Releases, and tries it until then; answers where to wait for that, if `wanted`.
    pub(crate) fn start(&self, request: v1::ReleaseRequest, until: Instant, wanted: bool) -> Option<Released> {
        let (answer, released) = if wanted {
            let (sender, receiver) = oneshot::channel();
            (Some(sender), Some(Released(receiver)))
        } else {
            (None, None)
        };
        let queue = if request.lease_id.is_empty() { &self.requests } else { &self.leases };
        // The thread outlives this handle.
        let _ = queue.send(Job { request, until, answer, _open: self.open.token() });
        released
    }

    /// What is not done yet.
    pub(crate) fn open(&self) -> Open {
        self.open.clone()
    }
}

impl Jobs {
    /// The next one; `None` when nobody hands in any more.
    async fn next(&mut self) -> Option<Job> {
        tokio::select! {
            biased;
            Some(job) = self.leases.recv() => Some(job),
            job = self.requests.recv() => job,
        }
    }

    /// Starts the tasks that do them, on this runtime.
    pub(crate) fn work(self, config: &Arc<Config>, line: &Arc<Line>) {
        let jobs = Arc::new(Mutex::new(self));
        for _ in 0..MOST_RELEASES {
            let (jobs, config, line) = (jobs.clone(), config.clone(), line.clone());
            tokio::spawn(async move {
                loop {
                    let job = jobs.lock().await.next().await;
                    let Some(Job { request, until, answer, _open }) = job else { return };
                    let released = release(&config, &line, request, until).await;
                    if let Some(answer) = answer {
                        // Whoever asked may be gone.
                        let _ = answer.send(released);
                    }
                }
            });
        }
    }
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

/// Releases, for as long as it takes.
async fn release(
    config: &Config,
    line: &Line,
    request: v1::ReleaseRequest,
    until: Instant,
) -> Result<v1::ReleaseState, Error> {
    let start = now();
    let mut failures = 0;
    if start >= until {
        // It waited for its turn until the lease had ended by itself.
        return Err(config.silent());
    }
    loop {
        let time_left = left(start, now(), until.saturating_duration_since(start));
        let problem = match timeout(time_left, line.up()).await {
            Err(_) => return Err(line.problem().unwrap_or_else(|| config.silent())),
            Ok(session) => {
                let _call = line.call();
                let mut stub = session.stub;
                let answer = pin!(stub.release(config.request(request.clone())));
                match timeout(PROMPT, answer).await {
                    Ok(Ok(response)) => return Ok(response.into_inner().state()),
                    Ok(Err(status)) => match refusal(&status) {
                        // One that says when to come back was of the server's moment, and not of this Release.
                        Some(refusal) if refusal.hint().is_some() || is_passing(&refusal.reason) => refusal.into(),
                        Some(refusal) => return Err(refusal.into()),
                        None if status.code() == Code::Unimplemented => return Err(config.wrong_server("Release")),
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
        let hint = problem.hint().unwrap_or_default();
        tokio::time::sleep(AGAIN.delay(failures, rand::random()).max(hint)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_waits_for_what_came_before_and_for_nothing_later() {
        let open = Open::new();
        let early = open.token();
        let mut first = Box::pin(open.done());
        assert!(first.as_mut().now_or_never().is_none());
        let late = open.token();
        let mut second = Box::pin(open.done());
        assert!(second.as_mut().now_or_never().is_none());
        drop(early);
        assert!(first.as_mut().now_or_never().is_some());
        assert!(second.as_mut().now_or_never().is_none());
        drop(late);
        assert!(second.as_mut().now_or_never().is_some());
        assert!(open.done().now_or_never().is_some());
        assert!(open.0.lock().len() <= 2, "those that are over are forgotten");
    }

    #[tokio::test]
    async fn permits_are_given_back_before_requests_are_withdrawn() {
        let (releases, mut jobs) = Releases::new();
        let hand_in = |lease_id: &str| {
            let request = v1::ReleaseRequest { lease_id: lease_id.into(), ..Default::default() };
            releases.start(request, now(), false);
        };
        for lease_id in ["", "a", "", "b"] {
            hand_in(lease_id);
        }
        drop(releases);
        let mut order = Vec::new();
        while let Some(job) = jobs.next().await {
            order.push(job.request.lease_id);
        }
        assert_eq!(order, ["a", "b", "", ""]);
    }
}
