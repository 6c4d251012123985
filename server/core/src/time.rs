//! Time as a value: points on a clock that somebody else reads.

use std::time::Duration;

/// A point on the server's monotonic clock, in nanoseconds since an origin the shell chose. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The first instant of the clock.
    pub const ORIGIN: Self = Self(0);
    /// Later than anything that will happen.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant that many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl std::ops::Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(span.subsec_nanos()))
}

/// What the shell knows of the times the server itself stood still (R6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// All gaps since the clock's origin, added up.
    pub total: Duration,
    /// When the latest gap ended.
    pub resumed: Instant,
}

/// *g*: how much later than its ttl a lease may be reclaimed, `max(250 ms, ttl / 1000)`.
pub fn slack(ttl: Duration) -> Duration {
    Duration::from_millis(250).max(ttl / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::ORIGIN - Duration::from_secs(1), Instant::ORIGIN);
        assert_eq!(Instant::from_nanos(5) + Duration::MAX, Instant::NEVER);
        assert_eq!(Instant::ORIGIN.since(Instant::NEVER), Duration::ZERO);
    }
}
