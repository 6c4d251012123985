//! A partition's pause and the careful start after it (R10, R11), as arithmetic on one instant: the cooldown's end.

use std::time::Duration;

use crate::time::Instant;

/// Where a partition stands, seen from a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing of it is granted until then.
    Cooling(Instant),
    /// So many permits of it may run, until the next step.
    Ramp { permits: u32, next: Instant },
    /// Neither.
    Calm,
}

impl Phase {
    /// The phase at `now` of a partition whose cooldown ends, or ended, at `end`, under that limit.
    pub(crate) fn at(now: Instant, end: Instant, ramp_step: Duration, limit: u32) -> Self {
        if now < end {
            return Self::Cooling(end);
        }
        let Some(steps) = now.since(end).as_nanos().checked_div(ramp_step.as_nanos()) else { return Self::Calm };
        // Limits are at most 2^30, so 31 steps are more than any ramp has.
        let steps = u32::try_from(steps).unwrap_or(31).min(31);
        let permits = 1 << steps;
        if permits >= limit { Self::Calm } else { Self::Ramp { permits, next: end + ramp_step * (steps + 1) } }
    }

    /// Whether a request of that size must wait for the ramp when so many permits of its partition run: a larger one
    /// than the ramp allows runs alone.
    pub(crate) fn holds(self, running: u32, asked: u32) -> bool {
        match self {
            Self::Ramp { permits, .. } => running > 0 && running.saturating_add(asked) > permits,
            _ => false,
        }
    }
}

/// When a cooldown that ends at `end` and the ramp after it are over in every bulkhead.
pub fn calm_at(end: Instant, ramp_step: Duration) -> Instant {
    end + ramp_step * 30
}

/// The end of a cooldown after a report: it extends and never shortens.
pub fn extend(old: Option<Instant>, now: Instant, wait: Duration, max_cooldown: Duration) -> Option<Instant> {
    if wait.is_zero() {
        return old;
    }
    let end = now + wait.min(max_cooldown);
    Some(old.map_or(end, |old| old.max(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(millis)
    }

    #[test]
    fn a_ramp_doubles_each_step_until_the_limit() {
        let phase = |now| Phase::at(at(now), at(5_000), STEP, 5);
        assert_eq!(phase(4_999), Phase::Cooling(at(5_000)));
        assert_eq!(phase(5_000), Phase::Ramp { permits: 1, next: at(6_000) });
        assert_eq!(phase(6_999), Phase::Ramp { permits: 2, next: at(7_000) });
        assert_eq!(phase(7_000), Phase::Ramp { permits: 4, next: at(8_000) });
        assert_eq!(phase(8_000), Phase::Calm);
        assert_eq!(Phase::at(at(5_000), at(5_000), STEP, 1), Phase::Calm);
        assert_eq!(Phase::at(at(5_000), at(5_000), Duration::ZERO, 9), Phase::Calm);
        assert_eq!(Phase::at(Instant::NEVER, at(0), STEP, u32::MAX >> 2), Phase::Calm);
    }

    #[test]
    fn a_larger_request_than_the_ramp_allows_runs_alone() {
        let ramp = Phase::Ramp { permits: 2, next: at(0) };
        assert_eq!(
            [(0, 9), (1, 1), (1, 2), (9, 1)].map(|(running, asked)| ramp.holds(running, asked)),
            [false, false, true, true]
        );
    }

    #[test]
    fn a_report_extends_and_never_shortens() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        assert_eq!(extend(None, at(0), Duration::ZERO, hour), None);
        assert_eq!(extend(Some(at(7)), at(0), Duration::ZERO, hour), Some(at(7)));
        assert_eq!(extend(None, at(500), second, hour), Some(at(1_500)));
        assert_eq!(extend(Some(at(2_000)), at(500), second, hour), Some(at(2_000)));
        assert_eq!(extend(None, at(0), Duration::MAX, hour), Some(Instant::ORIGIN + hour));
        assert_eq!(extend(Some(at(9)), Instant::NEVER, Duration::MAX, hour), Some(Instant::NEVER));
    }
}
