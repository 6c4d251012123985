//! What a client has done so far, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a client has done so far. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases that the server granted.
    pub granted: u64,
    /// Requests that the server refused.
    pub refused: u64,
    /// Requests that were given up, and then withdrawn.
    pub withdrawn: u64,
    /// Connections that were lost, after each of which a new one was made.
    pub connections_lost: u64,
    /// How often it fell back.
    pub fallbacks: u64,
    /// Permits handed out, or asked of a local bulkhead, meanwhile.
    pub fallback_grants: u64,
}

/// The same, while it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) granted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) withdrawn: AtomicU64,
    pub(crate) connections_lost: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) fallback_grants: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, which: impl FnOnce(&Self) -> &AtomicU64) {
        which(self).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            granted: read(&self.granted),
            refused: read(&self.refused),
            withdrawn: read(&self.withdrawn),
            connections_lost: read(&self.connections_lost),
            fallbacks: read(&self.fallbacks),
            fallback_grants: read(&self.fallback_grants),
        }
    }
}
