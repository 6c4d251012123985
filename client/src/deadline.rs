//! How long a lease may be trusted, as its holder counts it: arithmetic on points of the holder's monotonic clock.
//!
//! Nothing here reads a clock. The holder never knows when the server granted or renewed; it knows when it *sent*, which
//! was earlier. So it counts from there, takes a margin off, and stops before the server gives the permits to another.

use std::time::{Duration, Instant};

use tidegate_core::MAX_LEASE_TTL;

/// The least that is taken off a ttl.
const LEAST_MARGIN: Duration = Duration::from_millis(50);
/// The least by which the ttl of a lease that nobody renews must exceed the time-out of its work.
const LEAST_SPARE: Duration = Duration::from_secs(1);

/// What is taken off a ttl: for clocks that run at different speeds and for the time it takes to stop.
pub(crate) fn margin(ttl: Duration) -> Duration {
    LEAST_MARGIN.max(ttl / 20)
}

/// Until when a granted lease may be trusted. `answered` bounds what the server says of the wait: a grant lies between
/// the two.
pub(crate) fn granted(sent: Instant, answered: Instant, waited: Duration, ttl: Duration) -> Instant {
    renewed(sent + waited.min(answered.saturating_duration_since(sent)), ttl)
}

/// Until when a renewed lease may be trusted, `sent` being when the batch was sent that this answer is for.
pub(crate) fn renewed(sent: Instant, ttl: Duration) -> Instant {
    // A longer one is none of ours, and no clock must overflow.
    let ttl = ttl.min(MAX_LEASE_TTL);
    sent + ttl.saturating_sub(margin(ttl))
}

/// The shortest ttl of a lease that nobody renews, for work that stops after `work`.
pub(crate) fn least_unrenewed(work: Duration, ttl: Duration) -> Duration {
    work.saturating_add(LEAST_SPARE.max(margin(ttl)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_grant_counts_from_the_sending_and_the_wait() {
        let sent = crate::keeper::now();
        let end = granted(sent, sent + 9 * SECOND, 8 * SECOND, 10 * SECOND);
        assert_eq!(end, sent + millis(8_000 + 10_000 - 500));
        // Short ttls lose at least 50 ms, not a twentieth.
        assert_eq!(granted(sent, sent, Duration::ZERO, millis(400)), sent + millis(350));
    }

    #[test]
    fn a_wait_longer_than_the_call_is_not_believed() {
        let sent = crate::keeper::now();
        assert_eq!(granted(sent, sent + SECOND, 60 * SECOND, 10 * SECOND), sent + millis(10_500));
        assert_eq!(granted(sent + SECOND, sent, 60 * SECOND, 10 * SECOND), sent + millis(10_500));
    }

    #[test]
    fn a_renewal_counts_from_the_sending_of_its_batch() {
        let sent = crate::keeper::now();
        assert_eq!(renewed(sent, 2 * SECOND), sent + millis(1_900));
        assert_eq!(renewed(sent, millis(10)), sent);
    }

    #[test]
    fn l02_an_unrenewed_lease_outlives_its_work_by_a_second_or_the_margin() {
        assert_eq!(least_unrenewed(5 * SECOND, 10 * SECOND), 6 * SECOND);
        assert_eq!(least_unrenewed(60 * SECOND, 100 * SECOND), 65 * SECOND);
    }
}
