//! First come, first served, shown by fencing tokens (P7).
//!
//! Two rules. *Growth*: a lease that somebody had heard of before another one can have been granted has the smaller token.
//! *Order*: who certainly waited before another one was granted, and came before it by arrival and rank, is granted first.
//!
//! The second one judges only who is certainly eligible: one permit, in a partition that neither cools nor ramps. It had
//! been received at the latest when its answer came less the wait that the answer tells (or less the whole wait, where that
//! ended with `WAIT_TIMEOUT`; then it was in the queue at least until it was sent plus that wait). From the receipt a
//! thread may still be held up on its way to the queue: [`room`](History::room) for that must lie between it and the other
//! one. Whoever came later may be of any weight and partition.

use super::cooldowns::Cooldowns;
use super::lease::Lease;
use super::{At, End, History};

/// Someone who waited and should have been next.
struct Waiter {
    rank: u32,
    /// Certainly in the queue from then on.
    arrived: At,
    /// Its grant; or when it was still there.
    end: Result<u64, At>,
}

pub(super) fn check(history: &History, leases: &[Lease], findings: &mut Vec<String>) {
    let cooldowns = Cooldowns::of(history);
    for bulkhead in 0..history.rules.len() {
        let mut leases: Vec<_> = leases.iter().filter(|lease| lease.bulkhead == bulkhead).collect();
        growth(&mut leases, findings);
        let mut waiters = waiters(history, bulkhead, &leases, &cooldowns);
        waiters.sort_by_key(|waiter| waiter.arrived);
        for before in 0..3 {
            for after in 0..3 {
                let waiters = waiters.iter().filter(|waiter| waiter.rank == before);
                let aging = history.rules[bulkhead].aging_step;
                let (ahead, behind) = (aging * before.saturating_sub(after), aging * after.saturating_sub(before));
                // Whoever waited by then is before it: it was not granted yet, and its place is not better.
                let mut others: Vec<_> = leases
                    .iter()
                    .filter(|lease| lease.rank == after)
                    .map(|lease| (lease.from.min((lease.asked + behind).saturating_sub(ahead)), *lease))
                    .collect();
                others.sort_by_key(|(before, _)| *before);
                order(waiters, &others, findings);
            }
        }
    }
}

fn growth(leases: &mut [&Lease], findings: &mut Vec<String>) {
    leases.sort_by_key(|lease| lease.heard);
    let heard: Vec<_> = leases.iter().map(|lease| (lease.heard, lease.token)).collect();
    let mut heard = heard.into_iter().peekable();
    leases.sort_by_key(|lease| lease.from);
    let mut highest = 0;
    for lease in leases {
        while let Some((_, token)) = heard.next_if(|(at, _)| *at < lease.from) {
            highest = highest.max(token);
        }
        if highest >= lease.token {
            findings.push(format!("its token does not grow, {highest} had been heard of: {lease:?}"));
        }
    }
}

fn waiters(history: &History, bulkhead: usize, leases: &[&Lease], cooldowns: &Cooldowns) -> Vec<Waiter> {
    let mut waiters = Vec::new();
    for lease in leases.iter().filter(|lease| lease.permits == 1) {
        if let Some(received) = lease.received
            && !cooldowns.may_hold_back(lease.partition, lease.window())
        {
            let arrived = received + history.room(lease.window());
            waiters.push(Waiter { rank: lease.rank, arrived, end: Ok(lease.token) });
        }
    }
    // A repeat takes over another one's end, and a deadline is cut by a margin.
    let alone = |call: &&super::Call| call.bulkhead == bulkhead && call.request_id.is_none() && call.timeout.is_none();
    for call in history.calls.iter().filter(alone).filter(|call| call.permits == 1) {
        let wait = history.longest_wait(call);
        if call.end == End::Refused("WAIT_TIMEOUT".into()) && !cooldowns.may_hold_back(call.partition, call.window) {
            let (received, left) = (call.window.to.saturating_sub(wait), call.window.from + wait);
            let arrived = received + history.room(call.window);
            waiters.push(Waiter { rank: call.rank, arrived, end: Err(left) });
        }
    }
    waiters
}

/// Those with a later time than a waiter's arrival are granted after it, or after it left.
fn order<'a>(waiters: impl Iterator<Item = &'a Waiter>, others: &[(At, &Lease)], findings: &mut Vec<String>) {
    let mut waiters = waiters.peekable();
    let (mut highest, mut last) = (0, At::ZERO);
    for (before, other) in others {
        while let Some(waiter) = waiters.next_if(|waiter| waiter.arrived < *before) {
            match waiter.end {
                Ok(token) => highest = highest.max(token),
                Err(left) => last = last.max(left),
            }
        }
        if highest > other.token {
            findings.push(format!("overtook one that waited, {highest}: {other:?}"));
        }
        if last > other.heard {
            findings.push(format!("overtook one that still waited at {last:?}: {other:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Call;
    use super::super::lease;
    use super::super::made::{Made, granted, granted_after, heavy, refused};
    use super::*;

    fn findings(made: &Made) -> usize {
        let mut findings = Vec::new();
        let leases = lease::all(&made.history, &mut findings);
        check(&made.history, &leases, &mut findings);
        findings.len()
    }

    #[test]
    fn tokens_grow() {
        assert_eq!(findings(&Made::default().call(granted(1, 0, 10)).call(granted(2, 20, 30))), 0);
        assert_eq!(findings(&Made::default().call(granted(2, 0, 10)).call(granted(1, 20, 30))), 1);
        assert_eq!(findings(&Made::default().call(granted(2, 0, 10)).call(granted(1, 5, 30))), 0, "at once");
        assert_eq!(findings(&Made::default().call(granted(2, 0, 10)).call(granted_after(1, 5, 30, 20))), 1);
    }

    #[test]
    fn who_was_sent_long_after_another_one_waited_comes_after_it() {
        let waited = |token| granted_after(token, 0, 910, 900);
        assert_eq!(findings(&Made::default().call(waited(1)).call(granted_after(2, 300, 920, 600))), 0);
        assert_eq!(findings(&Made::default().call(waited(2)).call(granted_after(1, 300, 920, 600))), 1);
        assert_eq!(
            findings(&Made::default().call(waited(2)).call(granted_after(1, 200, 920, 600))),
            0,
            "nearly together"
        );
        let heavier = Made::default().call(heavy(2, waited(2))).call(granted_after(1, 300, 920, 600));
        assert_eq!(findings(&heavier), 0, "perhaps more than the limit");
        let heavier = Made::default().call(waited(2)).call(heavy(2, granted_after(1, 300, 920, 600)));
        assert_eq!(findings(&heavier), 1);
    }

    #[test]
    fn who_waits_in_vain_is_not_overtaken_either() {
        let waited = || Made::default().call(refused("WAIT_TIMEOUT", 0, 1010));
        assert_eq!(findings(&waited().call(granted(1, 300, 310))), 1);
        assert_eq!(findings(&waited().call(granted_after(1, 300, 1020, 710))), 0);
        assert_eq!(findings(&waited().call(granted(1, 100, 110))), 0, "nearly together");
    }

    #[test]
    fn ranks_are_steps_of_aging() {
        let pair = |rank, other| {
            let first = Call { rank, ..granted_after(2, 0, 910, 900) };
            findings(&Made::default().call(first).call(Call { rank: other, ..granted_after(1, 300, 920, 600) }))
        };
        assert_eq!([pair(1, 1), pair(0, 1), pair(0, 2)], [1, 1, 1]);
        // A more urgent one may overtake the other by 200 ms a rank,
        assert_eq!([pair(1, 0), pair(2, 0)], [0, 0]);
        // and must.
        let urgent = |other| {
            let first = Call { rank: other, ..granted_after(1, 0, 910, 900) };
            findings(&Made::default().call(first).call(Call { rank: 0, ..granted_after(2, 50, 960, 905) }))
        };
        assert_eq!([urgent(2), urgent(1)], [1, 0]);
    }

    #[test]
    fn who_may_be_held_back_by_a_cooldown_is_no_witness() {
        let cooled = Call { partition: Some(3), ..granted_after(2, 0, 910, 900) };
        let made = || Made::default().call(cooled.clone()).call(granted_after(1, 300, 920, 600));
        assert_eq!(findings(&made()), 1);
        assert_eq!(findings(&made().report(3, 100, 110, 50)), 0);
        assert_eq!(findings(&made().report(4, 100, 110, 50)), 1);
    }
}
