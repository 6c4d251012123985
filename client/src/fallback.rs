//! What happens to work while no answer of the server's arrives: a choice, bounded in time and never silent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::counters::Counters;

/// What happens to work while no answer of Tidegate's arrives, or only that it is stopping, is not the decider, or has
/// lost its store. A refusal never starts it: that is an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The work does not run: the error is passed on.
    #[default]
    Closed,
    /// Each bulkhead is a local one with this limit, for this client alone. Choose it so that all clients together stay
    /// bearable: about the server's limit divided by the number of clients.
    Local(u32),
    /// All work runs.
    Open,
}

/// Whether a client falls back now.
#[derive(Debug)]
pub(crate) struct Standing {
    kind: Fallback,
    /// The longest it may last at a stretch.
    longest: Duration,
    is_on: AtomicBool,
    since: Mutex<Option<Instant>>,
    /// Its time was over, and that was told.
    is_over: AtomicBool,
}

impl Standing {
    pub(crate) fn new(kind: Fallback, longest: Duration) -> Self {
        Self { kind, longest, is_on: AtomicBool::new(false), since: Mutex::new(None), is_over: AtomicBool::new(false) }
    }

    /// Whether it has begun, so that there is no use in being patient again.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// No answer came. How work goes on; `Closed` when it must not, or no longer.
    pub(crate) fn begin(&self, now: Instant, counters: &Counters) -> Fallback {
        if self.kind == Fallback::Closed {
            return Fallback::Closed;
        }
        let mut since = self.since.lock();
        let start = *since.get_or_insert_with(|| {
            tracing::warn!(fallback = ?self.kind, longest = ?self.longest, "no answer of the server's: falling back");
            counters.count(|counts| &counts.fallbacks);
            now
        });
        self.is_on.store(true, Ordering::Relaxed);
        if now.saturating_duration_since(start) < self.longest {
            counters.count(|counts| &counts.fallback_grants);
            self.kind
        } else {
            if !self.is_over.swap(true, Ordering::Relaxed) {
                tracing::warn!(longest = ?self.longest, "the fallback has lasted as long as it may: work is refused");
            }
            Fallback::Closed
        }
    }

    /// Whether work goes on without the server now.
    pub(crate) fn carries(&self) -> bool {
        self.is_on() && !self.is_over.load(Ordering::Relaxed)
    }

    /// An answer of the server's came.
    pub(crate) fn end(&self, now: Instant) {
        self.is_over.store(false, Ordering::Relaxed);
        if self.is_on.swap(false, Ordering::Relaxed)
            && let Some(start) = self.since.lock().take()
        {
            tracing::info!(lasted = ?now.saturating_duration_since(start), "the server answers: no longer falling back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_once_is_bounded_and_ends_with_an_answer() {
        let (start, counters) = (crate::keeper::now(), Counters::default());
        let standing = Standing::new(Fallback::Local(2), Duration::from_mins(1));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(standing.begin(at(0), &counters), Fallback::Local(2));
        assert_eq!(standing.begin(at(59), &counters), Fallback::Local(2));
        assert!(standing.carries());
        assert_eq!(standing.begin(at(60), &counters), Fallback::Closed, "never silently for ever");
        assert_eq!(standing.begin(at(999), &counters), Fallback::Closed);
        assert!(standing.is_on() && !standing.carries());
        standing.end(at(1_000));
        assert!(!standing.is_on());
        assert_eq!(standing.begin(at(1_001), &counters), Fallback::Local(2));
        let counts = counters.read();
        assert_eq!((counts.fallbacks, counts.fallback_grants), (2, 3));
    }

    #[test]
    fn closed_never_begins() {
        let counters = Counters::default();
        let standing = Standing::new(Fallback::Closed, Duration::from_mins(1));
        assert_eq!(standing.begin(crate::keeper::now(), &counters), Fallback::Closed);
        assert_eq!((standing.is_on(), counters.read().fallbacks), (false, 0));
    }
}
