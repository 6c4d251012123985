//! How soon permits are freed: the measure of retry hints.
//!
//! By Little's law as many permits run as are freed in a second times the seconds that each is held. So they are freed at
//! the rate of those that run over how long they are held. Counted per second instead, idle time would count as well, and
//! whoever is refused after a quiet minute would be told to come back in a minute.

use std::time::Duration;

/// How many permits of before weigh as much as those that have just ended: the latest dozen or two are what counts.
const INERTIA: u128 = 7;

/// How long permits are held, on the average of those that ended lately.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    held: Option<Duration>,
}

impl Rate {
    /// That many permits were freed, held for so long.
    pub(crate) fn count(&mut self, held: Duration, permits: u32) {
        let before = self.held.unwrap_or(held).as_nanos();
        let permits = u128::from(permits);
        let mean = (before * INERTIA + held.as_nanos() * permits) / (INERTIA + permits);
        self.held = Some(nanos(mean));
    }

    /// How long it takes to free that many permits while `running` run, and have run for `age` on the average; `None` if
    /// none was freed yet, or none runs. They are held for at least as long as they have been.
    pub(crate) fn time_for(&self, permits: u64, running: u32, age: Duration) -> Option<Duration> {
        let held = self.held?.max(age).as_nanos();
        Some(nanos((held * u128::from(permits)).checked_div(u128::from(running))?))
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_runs_is_freed_at_the_pace_of_what_ended() {
        let mut rate = Rate::default();
        assert_eq!(rate.time_for(1, 1, SECOND), None);
        rate.count(4 * SECOND, 2);
        assert_eq!(rate.time_for(1, 0, SECOND), None);
        assert_eq!(rate.time_for(3, 4, SECOND), Some(3 * SECOND));
        // They have run for longer than those before them.
        assert_eq!(rate.time_for(3, 4, 8 * SECOND), Some(6 * SECOND));
        rate.count(12 * SECOND, 1);
        assert_eq!(rate.time_for(1, 1, SECOND), Some(5 * SECOND), "an eighth of what is new");
        rate.count(19 * SECOND, 7);
        assert_eq!(rate.time_for(1, 1, SECOND), Some(12 * SECOND), "seven permits are as much as all before");
    }

    #[test]
    fn numbers_out_of_this_world_are_no_more_than_the_longest() {
        let mut rate = Rate::default();
        rate.count(Duration::MAX, u32::MAX);
        assert_eq!(rate.time_for(u64::MAX, 1, Duration::ZERO), Some(Duration::from_nanos(u64::MAX)));
    }
}
