//! Two people decide about a bulkhead: who writes the file, and an operator.

use super::Settings;

impl Settings {
    /// What holds when the file says `new` where it last said `old`: what it changed, and else what holds now. A bound
    /// that one of them set wins over a value that the other one set.
    #[must_use]
    pub fn merge(&self, old: &Self, new: &Self) -> Self {
        let ceiling = newer(self.ceiling, old.ceiling, new.ceiling);
        let max_lease_ttl = newer(self.max_lease_ttl, old.max_lease_ttl, new.max_lease_ttl);
        let min_retry_hint = newer(self.min_retry_hint, old.min_retry_hint, new.min_retry_hint);
        Self {
            limit: newer(self.limit, old.limit, new.limit).min(ceiling),
            ceiling,
            max_queued: newer(self.max_queued, old.max_queued, new.max_queued),
            max_wait: newer(self.max_wait, old.max_wait, new.max_wait),
            lease_ttl: newer(self.lease_ttl, old.lease_ttl, new.lease_ttl).min(max_lease_ttl),
            max_lease_ttl,
            aging_step: newer(self.aging_step, old.aging_step, new.aging_step),
            min_retry_hint,
            max_retry_hint: newer(self.max_retry_hint, old.max_retry_hint, new.max_retry_hint).max(min_retry_hint),
            displace: newer(self.displace, old.displace, new.displace),
            ramp_step: newer(self.ramp_step, old.ramp_step, new.ramp_step),
            mode: newer(self.mode, old.mode, new.mode),
        }
    }
}

fn newer<T: PartialEq + Copy>(present: T, old: T, new: T) -> T {
    if new == old { present } else { new }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Draft;

    fn settings(limit: u32, ceiling: u32, max_wait: u64) -> Settings {
        let max_wait = Some(Duration::from_secs(max_wait));
        let draft =
            Draft { limit: Some(limit), ceiling: Some(ceiling), max_queued: Some(9), max_wait, ..Draft::default() };
        Settings::try_from(draft).unwrap()
    }

    #[test]
    fn each_field_is_the_files_if_it_changed_there_and_else_what_it_was() {
        let (file, operator) = (settings(4, 16, 2), settings(8, 16, 5));
        assert_eq!(operator.merge(&file, &file), operator);
        assert_eq!(operator.merge(&file, &settings(6, 16, 2)), settings(6, 16, 5));
        let aging_step = operator.aging_step;
        assert_eq!(
            operator.merge(&file, &settings(4, 16, 3)),
            Settings { aging_step: Duration::from_millis(750), ..settings(8, 16, 3) }
        );
        assert_eq!(aging_step, Duration::from_millis(1250));
    }

    #[test]
    fn bounds_win() {
        let operator = settings(12, 16, 2);
        assert_eq!(operator.merge(&settings(4, 16, 2), &settings(4, 8, 2)), settings(8, 8, 2), "a lowered ceiling");
        let operator = settings(4, 6, 2);
        assert_eq!(
            operator.merge(&settings(4, 16, 2), &settings(9, 16, 2)),
            settings(6, 6, 2),
            "an operator's ceiling"
        );
        let ttls = |lease_ttl, max_lease_ttl| {
            let some = |seconds| Some(Duration::from_secs(seconds));
            let draft = Draft { lease_ttl: some(lease_ttl), max_lease_ttl: some(max_lease_ttl), ..Draft::default() };
            Settings::try_from(Draft { limit: Some(1), ..draft }).unwrap()
        };
        assert_eq!(ttls(50, 60).merge(&ttls(10, 60), &ttls(10, 30)), ttls(30, 30));
    }

    #[test]
    fn what_comes_out_is_valid() {
        let all: Vec<_> = [(1, 1, 0), (1, 9, 2), (5, 9, 2), (9, 9, 60), (2, 2, 1), (30, 40, 2)]
            .map(|(limit, ceiling, max_wait)| settings(limit, ceiling, max_wait))
            .into();
        for present in &all {
            for old in &all {
                for new in &all {
                    let merged = present.merge(old, new);
                    assert_eq!(Settings::try_from(Draft::from(&merged)), Ok(merged));
                }
            }
        }
    }
}
