//! Never more running than the limit (P1, P2).
//!
//! A lease was granted at some moment of its window; at one of them the definite holds of all others and its own permits
//! must have fitted the largest limit that could be in force. One sweep over the changes of *holds less limit*, which
//! keeps the least value since any earlier moment at hand.

use super::lease::Lease;
use super::{At, History};

/// From then on until the next one holds less limit have this value.
struct Level {
    until: At,
    value: i64,
}

pub(super) fn check(history: &History, leases: &[Lease], findings: &mut Vec<String>) {
    for (bulkhead, rule) in history.rules.iter().enumerate() {
        let mut changes = Vec::new();
        let mut limit = i64::from(rule.limit);
        let mut level = -limit;
        let mut moves: Vec<_> = history.moves.iter().filter(|step| step.bulkhead == bulkhead).collect();
        moves.sort_by_key(|step| step.window.from);
        for pair in moves.windows(2) {
            assert!(pair[0].window.to <= pair[1].window.from, "two operators moved one limit");
        }
        for step in moves {
            // Until the answer either may be in force.
            let (old, new) = (limit, i64::from(step.limit));
            changes.push((step.window.from, old - old.max(new)));
            changes.push((step.window.to, old.max(new) - new));
            limit = new;
        }
        let mut leases: Vec<_> = leases.iter().filter(|lease| lease.bulkhead == bulkhead).collect();
        for lease in leases.iter().filter(|lease| lease.heard < lease.until) {
            changes.push((lease.heard, i64::from(lease.permits)));
            changes.push((lease.until, -i64::from(lease.permits)));
        }
        changes.sort_unstable();
        leases.sort_by_key(|lease| lease.heard);

        let mut changes = changes.into_iter().peekable();
        // Values grow from first to last: each is the least since the one before it ended.
        let mut least = vec![Level { until: At::MAX, value: level }];
        for lease in leases {
            while let Some((now, change)) = changes.next_if(|(now, _)| *now < lease.heard) {
                level += change;
                if let Some(last) = least.last_mut() {
                    last.until = now;
                }
                while least.last().is_some_and(|last| last.value >= level) {
                    least.pop();
                }
                least.push(Level { until: At::MAX, value: level });
            }
            let first = least.partition_point(|level| level.until <= lease.from);
            let beyond = least[first].value + i64::from(lease.permits);
            if beyond > 0 {
                findings.push(format!("{beyond} permits above the limit at {:?}: {lease:?}", lease.heard));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease;
    use super::super::made::{Made, granted, granted_after, heavy};
    use super::*;

    fn findings(made: &Made) -> usize {
        let mut findings = Vec::new();
        let leases = lease::all(&made.history, &mut findings);
        check(&made.history, &leases, &mut findings);
        findings.len()
    }

    #[test]
    fn a_grant_beside_a_definite_hold_is_one_too_many() {
        let first = || Made::default().call(granted(1, 0, 10));
        assert_eq!(findings(&first().call(granted(2, 20, 30))), 1);
        assert_eq!(findings(&first().call(granted(2, 20, 30)).limit(2, 12, 14)), 0, "the limit was raised");
        assert_eq!(findings(&first().call(granted(2, 5, 30))), 0, "which one was first?");
        assert_eq!(findings(&first().call(granted(2, 5, 30)).call(granted(3, 20, 40))), 1, "but not a third");
        assert_eq!(findings(&first().call(granted(2, 2000, 2010))), 0, "its client ended it");
    }

    #[test]
    fn a_waiter_may_be_granted_from_when_the_release_was_sent() {
        let first = || Made::default().call(granted(1, 0, 10)).release(1, 100, 110);
        assert_eq!(findings(&first().call(granted_after(2, 20, 130, 81))), 0);
        assert_eq!(findings(&first().call(granted_after(2, 20, 99, 70))), 1);
        assert_eq!(findings(&first().call(granted_after(2, 20, 99, 70)).call(granted(3, 150, 160))), 2);
    }

    #[test]
    fn a_move_may_be_in_force_while_it_is_under_way_and_is_so_once_it_is_answered() {
        let raised = |sent, answered| {
            Made::default().call(granted(1, 0, 10)).limit(2, 50, 60).limit(1, 100, 110).call(granted(2, sent, answered))
        };
        assert_eq!(findings(&raised(20, 30)), 1, "not yet");
        assert_eq!(findings(&raised(20, 51)), 0);
        assert_eq!(findings(&raised(105, 120)), 0, "perhaps still");
        assert_eq!(findings(&raised(115, 120)), 1, "no more");
    }

    #[test]
    fn weights_count() {
        let made = Made::default().limit(5, 0, 1).call(heavy(3, granted(1, 10, 20))).call(heavy(2, granted(2, 30, 40)));
        assert_eq!(findings(&made), 0);
        assert_eq!(findings(&made.call(granted(3, 50, 60))), 1);
    }
}
