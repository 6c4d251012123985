//! How many calls of one connection wait. A waiter occupies a stream, so some streams are kept from them: Release and
//! renewals on that connection always find one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pressure::{Pressure, Rung};

/// The waiters of a connection. Clones share the count; the default has no bound.
#[derive(Clone, Debug)]
pub struct Waits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    now: AtomicUsize,
    pressure: Pressure,
}

impl Waits {
    /// For a connection of so many streams: an eighth of them, at least 16 and at most half, is kept free of waiters.
    pub(crate) fn of(streams: u32, pressure: Pressure) -> Self {
        let kept = (streams / 8).max(16).min(streams.div_ceil(2));
        let most = usize::try_from(streams - kept).unwrap_or(usize::MAX);
        Self(Arc::new(Inner { most, now: AtomicUsize::new(0), pressure }))
    }

    /// Counts one call more, which may come to wait.
    pub(crate) fn enter(&self) -> Place {
        let before = self.0.now.fetch_add(1, Ordering::Relaxed);
        Place { crowded: before >= self.0.most || self.0.pressure.refuses(Rung::Waiters), waits: self.clone() }
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self(Arc::new(Inner { most: usize::MAX, now: AtomicUsize::new(0), pressure: Pressure::default() }))
    }
}

/// A call that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    waits: Waits,
    /// The connection, or the server, has no room for one more waiter.
    pub(crate) crowded: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waits.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_streams_is_kept_at_least_16_and_at_most_half() {
        let most = |streams| Waits::of(streams, Pressure::default()).0.most;
        assert_eq!([1, 2, 3, 16, 32, 100, 256, 1000].map(most), [0, 1, 1, 8, 16, 84, 224, 875]);
    }

    #[test]
    fn a_place_is_free_again_when_its_call_is_gone() {
        let waits = Waits::of(4, Pressure::default());
        let (first, second) = (waits.enter(), waits.enter());
        assert!(!first.crowded && !second.crowded);
        assert!(waits.enter().crowded);
        drop(first);
        assert!(!waits.enter().crowded);
    }

    #[test]
    fn a_server_short_of_memory_has_no_room_for_waiters() {
        let pressure = Pressure::default();
        let waits = Waits::of(256, pressure.clone());
        pressure.set(Rung::Waiters);
        assert!(waits.enter().crowded);
        pressure.set(Rung::Calm);
        assert!(!waits.enter().crowded);
    }
}
