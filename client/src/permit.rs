//! The right to run: a guard that gives its permits back when it is dropped, wherever and however that happens.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{FencingToken, Grant};
use tokio::time::Instant as Now;

use crate::engine::Engine;
use crate::error::Error;
use crate::lease::{Lease, LeaseState, Loss};
use crate::releases::Released;
use crate::remote::Remote;

/// How the work under a permit ended. Limits that move by themselves learn from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The guarded thing did its work.
    Success,
    /// The guarded thing was overloaded: it timed out, or said so.
    Overloaded,
    /// Says nothing about load: cancelled, failed for another reason, or nobody said.
    #[default]
    Ignored,
}

/// The right to run one unit of work, for as long as it lives. Drop it when the work has *really* ended.
///
/// Dropped in a cancelled task, in a panic or with a runtime that stops, it is given back all the same: that is done by a
/// thread of the client's own. Leaked by [`std::mem::forget`] it is renewed until the process ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// # let db = tidegate_client::LocalBulkhead::new("orders-db", 4)?;
/// # async fn write_order(_fencing_token: u64) {}
/// let permit = db.acquire().await?;
/// tokio::select! {
///     () = write_order(permit.fencing_token()) => {}
///     loss = permit.lost() => eprintln!("stopped, {loss}"),
/// }
/// drop(permit);
/// # Ok(()) }
/// ```
#[must_use = "a permit is given back when it is dropped"]
pub struct Permit {
    /// `None` once it was given back.
    source: Option<Source>,
    report: Report,
    since: Option<Now>,
}

enum Source {
    Local(Arc<Engine>, Grant),
    Remote(Arc<Remote>, Arc<Lease>, Arc<str>),
    /// Nobody counts: the fallback `open`.
    Open(Arc<str>),
}

/// What a Release tells besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) latency: Option<Duration>,
    pub(crate) retry_after: Option<Duration>,
}

impl Permit {
    pub(crate) fn local(engine: Arc<Engine>, grant: Grant) -> Self {
        Self::new(Source::Local(engine, grant))
    }

    pub(crate) fn remote(remote: Arc<Remote>, lease: Arc<Lease>, bulkhead: Arc<str>) -> Self {
        Self::new(Source::Remote(remote, lease, bulkhead))
    }

    pub(crate) fn open(bulkhead: Arc<str>) -> Self {
        Self::new(Source::Open(bulkhead))
    }

    fn new(source: Source) -> Self {
        Self { source: Some(source), report: Report::default(), since: None }
    }

    /// The bulkhead that granted it: the asked one, or the server's `default`.
    pub fn bulkhead(&self) -> &str {
        match &self.source {
            Some(Source::Local(engine, _)) => engine.name(),
            Some(Source::Remote(_, _, bulkhead) | Source::Open(bulkhead)) => bulkhead,
            None => "",
        }
    }

    /// How many permits it is worth, at least 1.
    pub fn permits(&self) -> u32 {
        match &self.source {
            Some(Source::Local(_, grant)) => grant.permits,
            Some(Source::Remote(_, lease, _)) => lease.granted().permits,
            Some(Source::Open(_)) | None => 1,
        }
    }

    /// Grows with each grant of the bulkhead. A resource that can compare it rejects those below the highest
    /// [`fencing_floor`](Self::fencing_floor) it has seen. 0 for a permit of the fallback `open`.
    pub fn fencing_token(&self) -> u64 {
        match &self.source {
            Some(Source::Local(_, grant)) => FencingToken::as_u64(grant.token),
            Some(Source::Remote(_, lease, _)) => lease.granted().fencing_token,
            Some(Source::Open(_)) | None => 0,
        }
    }

    /// The lowest token of the bulkhead that may still be live, as of the latest renewal; it may lag and never leads. 0
    /// means not known.
    pub fn fencing_floor(&self) -> u64 {
        match &self.source {
            Some(Source::Local(_, grant)) => FencingToken::as_u64(grant.floor),
            Some(Source::Remote(_, lease, _)) => lease.fencing_floor(),
            Some(Source::Open(_)) | None => 0,
        }
    }

    /// How far it may be trusted now. A permit granted in this process is always [`Held`](LeaseState::Held).
    pub fn state(&self) -> LeaseState {
        match &self.source {
            Some(Source::Remote(_, lease, _)) => lease.state(crate::keeper::now()),
            _ => LeaseState::Held,
        }
    }

    /// When it will be lost unless a renewal is answered before; `None` for one granted in this process. By the machine's
    /// monotonic clock, also in a runtime with paused time: the server does not pause.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.source {
            Some(Source::Remote(_, lease, _)) => Some(lease.deadline()),
            _ => None,
        }
    }

    /// Completes when the lease is lost, in time to stop before the server grants its permits again; never for a permit
    /// granted in this process. Cancel safe; may be awaited by many.
    pub async fn lost(&self) -> Loss {
        match &self.source {
            Some(Source::Remote(_, lease, _)) => lease.lost().await,
            _ => std::future::pending().await,
        }
    }

    /// The same without the permit; `None` for one that is never lost.
    pub(crate) fn loss(&self) -> Option<impl Future<Output = Error> + Send + Sync + 'static> {
        let Some(Source::Remote(_, lease, bulkhead)) = &self.source else { return None };
        let (lease, bulkhead) = (lease.clone(), bulkhead.to_string());
        Some(async move { Error::Lost { bulkhead, loss: lease.lost().await } })
    }

    /// Tells how the work ended, for when the permit is given back. The time since
    /// [`start_latency`](Self::start_latency) goes along.
    pub fn set_outcome(&mut self, outcome: Outcome) {
        self.report.outcome = outcome;
        self.report.latency = self.since.map(|since| since.elapsed());
    }

    /// From now on counts how long the guarded thing takes to answer, until [`set_outcome`](Self::set_outcome).
    pub fn start_latency(&mut self) {
        self.since = Some(Now::now());
    }

    /// The guarded thing said to come back after this time: told when the permit is given back, and before its permits
    /// are free, so that its whole partition cools down.
    pub fn set_retry_after(&mut self, wait: Duration) {
        self.report.retry_after = Some(wait);
    }

    /// Gives it back now and waits until that is known to have happened. [`Error::Lost`] says that the lease had ended
    /// before, so others may have run beside the work; [`Error::Unreachable`], that nobody answered in 5 s, which goes on
    /// to be tried.
    ///
    /// Cancel safe: once this was called, the permit is given back.
    pub fn release(mut self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let bulkhead = self.bulkhead().to_owned();
        let answer = self.give_back(true);
        async move {
            match answer {
                Some(answer) => answer.wait(&bulkhead).await,
                None => Ok(()),
            }
        }
    }

    fn give_back(&mut self, wanted: bool) -> Option<Released> {
        match self.source.take()? {
            Source::Local(engine, Grant { token, .. }) => {
                if let Some(wait) = self.report.retry_after
                    && let Some(partition) = engine.partition_of(token)
                {
                    engine.report(&partition, wait);
                }
                engine.release(token);
                None
            }
            Source::Remote(remote, lease, _) => remote.release(&lease, self.report, wanted),
            Source::Open(_) => None,
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Permit");
        text.field("bulkhead", &self.bulkhead()).field("permits", &self.permits());
        text.field("fencing_token", &self.fencing_token()).field("state", &self.state()).finish()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(false);
    }
}
