//! Nothing of a cooling partition is granted, and nobody else is refused for it (P18).
//!
//! A cooldown has certainly begun when its report was answered, and lasts certainly until the report was sent plus its
//! time. In between nothing of the partition may have been granted to whoever was sent after the answer; nor to whoever
//! waited by then, certainly if for longer than the [`room`](History::room) of a thread on its way to the queue. It may
//! hold somebody back from when the report was sent until it was answered plus its time, and the ramp.

use std::collections::HashMap;

use super::lease::Lease;
use super::{At, End, History, SLACK, Window};

/// When partitions may have cooled.
pub(super) struct Cooldowns {
    /// Of each partition by when it was sent: the latest end of all until then.
    ends: HashMap<usize, Vec<(At, At)>>,
    /// The ramp, and the room of whoever is on the way.
    after: At,
}

impl Cooldowns {
    pub(super) fn of(history: &History) -> Self {
        let mut ends: HashMap<_, Vec<(At, At)>> = HashMap::new();
        for report in &history.reports {
            let end = report.window.to + report.retry_after;
            ends.entry(report.partition).or_default().push((report.window.from, end));
        }
        for ends in ends.values_mut() {
            ends.sort_unstable();
            let mut latest = At::ZERO;
            for (_, end) in ends {
                latest = latest.max(*end);
                *end = latest;
            }
        }
        Self { ends, after: history.ramp + SLACK + history.stalled }
    }

    /// Whether it may have cooled at some moment of that window.
    fn may_cool(&self, partition: Option<usize>, window: Window) -> bool {
        let Some(ends) = partition.and_then(|partition| self.ends.get(&partition)) else { return false };
        let begun = ends.partition_point(|(from, _)| *from <= window.to);
        begun > 0 && ends[begun - 1].1 >= window.from
    }

    /// The same with the ramp.
    pub(super) fn may_hold_back(&self, partition: Option<usize>, window: Window) -> bool {
        self.may_cool(partition, Window { from: window.from.saturating_sub(self.after), ..window })
    }
}

pub(super) fn check(history: &History, leases: &[Lease], findings: &mut Vec<String>) {
    // Each report judges the leases heard of before its end; who is late in that order is judged by the next one.
    let mut by_partition: HashMap<usize, Vec<&Lease>> = HashMap::new();
    for lease in leases {
        if let Some(partition) = lease.partition {
            by_partition.entry(partition).or_default().push(lease);
        }
    }
    for leases in by_partition.values_mut() {
        leases.sort_by_key(|lease| lease.heard);
    }
    for report in &history.reports {
        let Some(leases) = by_partition.get(&report.partition) else { continue };
        let (begun, end) = (report.window.to, report.window.from + report.retry_after);
        let first = leases.partition_point(|lease| lease.heard <= begun);
        for lease in leases[first..].iter().take_while(|lease| lease.heard < end) {
            let waited_long = lease.from > begun && lease.waited > history.room(lease.window());
            if lease.asked > begun || waited_long {
                findings.push(format!("granted while it cooled, {begun:?} to {end:?}: {lease:?}"));
            }
        }
    }
    let cooldowns = Cooldowns::of(history);
    for call in &history.calls {
        let is_cooling = matches!(&call.end, End::Refused(reason) if reason.starts_with("COOLDOWN"));
        if is_cooling && !cooldowns.may_cool(call.partition, call.window) {
            findings.push(format!("refused for a cooldown that was not: {call:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Call;
    use super::super::lease;
    use super::super::made::{Made, granted, granted_after, refused};
    use super::*;

    fn findings(call: Call) -> usize {
        let call = Call { partition: Some(3), ..call };
        let made = Made::default().report(3, 100, 110, 500).call(call);
        let mut findings = Vec::new();
        let leases = lease::all(&made.history, &mut findings);
        check(&made.history, &leases, &mut findings);
        findings.len()
    }

    #[test]
    fn nothing_is_granted_from_the_answer_to_a_report_to_its_end() {
        assert_eq!(findings(granted(1, 115, 120)), 1);
        assert_eq!(findings(granted(1, 105, 120)), 0, "perhaps before");
        assert_eq!(findings(granted(1, 115, 605)), 0, "perhaps after");
        assert_eq!(findings(granted_after(1, 0, 300, 20)), 0, "perhaps before");
        assert_eq!(findings(granted_after(1, 0, 300, 295)), 1, "it waited");
        assert_eq!(findings(granted_after(1, 0, 120, 115)), 0, "perhaps on its way to the queue");
    }

    #[test]
    fn who_is_refused_for_a_cooldown_met_one() {
        assert_eq!(findings(refused("COOLDOWN_ACTIVE", 115, 120)), 0);
        assert_eq!(findings(refused("COOLDOWN_ACTIVE", 50, 90)), 1);
        assert_eq!(findings(refused("COOLDOWN_EXCEEDS_DEADLINE", 611, 620)), 1);
        assert_eq!(findings(refused("QUEUE_FULL", 611, 620)), 0);
        let own = Call { partition: None, ..refused("COOLDOWN_ACTIVE", 115, 120) };
        let mut found = Vec::new();
        check(&Made::default().report(3, 100, 110, 500).call(own).history, &[], &mut found);
        assert_eq!(found.len(), 1);
    }
}
