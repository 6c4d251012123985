//! How fast permits are freed: the measure of retry hints.

use std::time::Duration;

use crate::time::Instant;

/// The window, in seconds.
const WINDOW: u64 = 30;
const SECONDS: usize = 30;

/// Permits freed in each of the last seconds.
#[derive(Debug)]
pub(crate) struct Rate {
    begin: Option<Instant>,
    seconds: [u32; SECONDS],
    /// The number of the latest second counted.
    latest: u64,
}

impl Rate {
    pub(crate) fn new() -> Self {
        Self { begin: None, seconds: [0; SECONDS], latest: 0 }
    }

    /// That many permits were freed.
    pub(crate) fn count(&mut self, now: Instant, permits: u32) {
        self.begin.get_or_insert(now);
        self.forget(now);
        let second = &mut self.seconds[Self::index(self.latest)];
        *second = second.saturating_add(permits);
    }

    /// How long it takes to free that many permits at the rate of the window; `None` if none was freed in it.
    pub(crate) fn time_for(&mut self, now: Instant, permits: u64) -> Option<Duration> {
        self.forget(now);
        let freed: u64 = self.seconds.iter().map(|&second| u64::from(second)).sum();
        let window = now.since(self.begin?).clamp(Duration::from_secs(1), Duration::from_secs(WINDOW));
        let nanos = (window.as_nanos() * u128::from(permits)).checked_div(u128::from(freed))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Moves the window to `now`.
    fn forget(&mut self, now: Instant) {
        let second = now.as_nanos() / 1_000_000_000;
        if second <= self.latest {
            return;
        }
        for gone in (self.latest + 1)..=second.min(self.latest + WINDOW) {
            self.seconds[Self::index(gone)] = 0;
        }
        self.latest = second;
    }

    #[allow(clippy::cast_possible_truncation)] // below WINDOW
    fn index(second: u64) -> usize {
        (second % WINDOW) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn a_steady_rate_is_measured_and_a_quiet_half_minute_forgets_it() {
        let mut rate = Rate::new();
        assert_eq!(rate.time_for(at(99), 1), None);
        for second in 100..200 {
            rate.count(at(second), 4);
        }
        assert_eq!(rate.time_for(at(199), 8), Some(Duration::from_secs(2)));
        assert_eq!(rate.time_for(at(214), 8), Some(Duration::from_secs(4)));
        assert_eq!(rate.time_for(at(229), 8), None);
        rate.count(at(10_000), 3);
        assert_eq!(rate.time_for(at(10_000), 3), Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_young_bulkhead_measures_over_its_own_age() {
        let mut rate = Rate::new();
        rate.count(at(100), 1);
        rate.count(at(103), 1);
        assert_eq!(rate.time_for(at(104), 2), Some(Duration::from_secs(4)));
    }
}
