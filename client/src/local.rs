//! A bulkhead in this process: the server's engine without a server.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Draft, MIN_LEASE_TTL, Mode, Settings};

use crate::bulkhead::Bulkhead;
use crate::engine::Engine;
use crate::error::Error;

/// A bulkhead in this process, for unit tests, small programs and as a fallback. It is used as any other [`Bulkhead`], to
/// which it dereferences; what an operator does to a server's is here a method. Time is tokio's pausable clock.
///
/// Leases have no end here, since their holders are guards that cannot vanish. A partition cools down in this bulkhead
/// only.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::{Bulkhead, Draft, Error, LocalBulkhead};
///
/// async fn write_order(db: &Bulkhead) -> Result<(), Error> {
///     db.run(async { /* … */ }).await
/// }
///
/// let db = LocalBulkhead::with_settings("orders-db", Draft { limit: Some(4), ceiling: Some(16), ..Draft::default() })?;
/// write_order(&db).await?;
/// db.set_limit(2)?;
/// assert_eq!(db.status().limit, 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LocalBulkhead {
    engine: Arc<Engine>,
    bulkhead: Bulkhead,
}

/// How a bulkhead in this process stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStatus {
    /// Its name.
    pub name: String,
    /// How many permits may run now.
    pub limit: u32,
    /// The limit it began with.
    pub start_limit: u32,
    /// The most the limit may ever be.
    pub ceiling: u32,
    /// What it does with those who ask.
    pub mode: Mode,
    /// Permits granted and not given back.
    pub running: u32,
    /// Waiters in the queue.
    pub queued: u32,
    /// The most waiters.
    pub max_queued: u32,
    /// The longest wait.
    pub max_wait: Duration,
    /// Requests that were queued or refused so far, each counted once.
    pub held_back: u64,
}

impl LocalBulkhead {
    /// A bulkhead with that limit, 1 to 1,000,000,000, which is also its ceiling; all else has the server's defaults.
    pub fn new(name: impl Into<Arc<str>>, limit: u32) -> Result<Self, Error> {
        Self::with_settings(name, Draft { limit: Some(limit), ..Draft::default() })
    }

    /// A bulkhead with those settings; what is `None` takes the server's default. [`Error::Invalid`] names a field that is
    /// out of its range.
    #[allow(clippy::needless_pass_by_value, reason = "drafts are written where they are handed over")]
    pub fn with_settings(name: impl Into<Arc<str>>, draft: Draft) -> Result<Self, Error> {
        // Leases have no end here, but where nothing is known of the rate, a retry hint is the time to the next one.
        let settings = Settings::try_from(Draft { lease_ttl: Some(MIN_LEASE_TTL), max_lease_ttl: None, ..draft })?;
        let engine = Arc::new(Engine::new(name.into(), settings, false));
        Ok(Self { bulkhead: Bulkhead::local(engine.clone()), engine })
    }

    /// One whose leases end: of a fake server.
    pub(crate) fn with_lease_ends(name: &str, draft: Draft) -> Result<Self, Error> {
        let engine = Arc::new(Engine::new(name.into(), Settings::try_from(draft)?, true));
        Ok(Self { bulkhead: Bulkhead::local(engine.clone()), engine })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Moves the limit, 1 to the ceiling, at once. Lowering cancels nobody; raising wakes as many waiters as now fit.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.engine.set_limit(limit)?)
    }

    /// Changes what it does with those who ask: [`Mode::Paused`] grants nothing and keeps every place in the queue,
    /// [`Mode::Closed`] refuses with the detail, [`Mode::Enforcing`] goes on.
    pub fn set_mode(&self, mode: Mode, detail: &str) {
        self.engine.set_mode(mode, detail);
    }

    /// How it stands now.
    pub fn status(&self) -> LocalStatus {
        let (settings, status) = self.engine.status();
        LocalStatus {
            name: self.engine.name().to_string(),
            limit: status.limit,
            start_limit: settings.limit(),
            ceiling: settings.ceiling(),
            mode: settings.mode(),
            running: status.running,
            queued: status.queued,
            max_queued: settings.max_queued(),
            max_wait: settings.max_wait(),
            held_back: status.totals.held_back,
        }
    }

    /// How many requests had to wait or were refused since this was last called, each counted once. Taken and reset in
    /// one step: nothing is counted twice or lost between two readers.
    pub fn take_held_back(&self) -> u64 {
        self.engine.take_held_back()
    }

    /// What is left of that partition's cooldown; `None` if it does not cool.
    pub fn cooldown(&self, partition: &str) -> Option<Duration> {
        self.engine.cooldown(partition)
    }

    /// How many partitions are remembered: those that cool or ramp, and for a minute after.
    pub fn partitions(&self) -> usize {
        self.engine.partitions()
    }
}

impl Deref for LocalBulkhead {
    type Target = Bulkhead;

    fn deref(&self) -> &Bulkhead {
        &self.bulkhead
    }
}
