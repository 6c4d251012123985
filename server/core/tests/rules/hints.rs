//! Retry hints, without the spread that the shell adds: when coming back is likely to help (design: retry hint).

use std::time::Duration;

use tidegate_core::{Acquire, Decision, Draft, OnCooldown, Priority, Reason};

use super::desk::{Desk, NANO, ask, at, at_once, check, cooling, limit, millis, named, of, patient, seconds};

/// One second after the other, up to that one, so many permits are taken and held for so long.
fn busy(desk: &mut Desk, until: u64, permits: u32, held: Duration) {
    for second in 0..until {
        let token = desk.at(seconds(second)).granted(ask(permits));
        desk.at(seconds(second) + held).release(token);
    }
    desk.at(seconds(until));
}

fn hint(desk: &mut Desk, ask: Acquire) -> Option<Duration> {
    desk.refused(ask).hint
}

#[test]
fn no_permit_free_takes_what_the_queue_and_it_ask_for_at_the_pace_of_those_that_run() {
    check(limit(4), |desk| {
        busy(desk, 40, 2, seconds(1));
        desk.granted(ask(4));
        // Four run, and each is held for a second.
        assert_eq!(hint(desk, at_once(ask(3))), Some(millis(750)));
        desk.queued(ask(3));
        desk.queued(ask(1));
        assert_eq!(hint(desk, at_once(ask(3))), Some(millis(1750)));
        // These take longer than those before them.
        assert_eq!(hint(desk.at(millis(41_600)), at_once(ask(1))), Some(seconds(2)));
    });
}

#[test]
fn a_quiet_time_changes_nothing() {
    check(limit(4), |desk| {
        busy(desk, 2, 2, seconds(1));
        for quiet in [20, 40, 4000] {
            let token = desk.at(seconds(quiet)).granted(ask(4));
            assert_eq!(hint(desk, at_once(ask(3))), Some(millis(750)), "after {quiet} s");
            desk.at(seconds(quiet + 1)).release(token);
        }
    });
}

#[test]
fn the_first_that_ended_is_the_measure_and_later_ones_move_it() {
    check(Draft { lease_ttl: Some(seconds(60)), ..limit(4) }, |desk| {
        let token = desk.granted(ask(2));
        desk.at(seconds(4)).release(token);
        let token = desk.granted(ask(4));
        assert_eq!(hint(desk, at_once(ask(3))), Some(seconds(3)));
        // Four permits that were held for 15 s, beside seven of 4 s.
        desk.at(seconds(19)).release(token);
        desk.granted(ask(4));
        assert_eq!(hint(desk, at_once(ask(2))), Some(seconds(4)));
    });
}

#[test]
fn an_ended_wait_and_a_displaced_one_take_the_same() {
    check(Draft { displace: Some(true), max_queued: Some(2), ..limit(4) }, |desk| {
        busy(desk, 40, 1, seconds(1));
        desk.granted(ask(4));
        desk.queued(ask(2));
        let waiter = desk.queued(Acquire { max_wait: Some(millis(500)), ..ask(3) });
        desk.at(millis(40_500)).advance();
        let refusal = desk.turned_away(waiter);
        assert_eq!((refusal.reason, refusal.hint), (Reason::WaitTimeout, Some(millis(1250))));
        let waiter = desk.queued(Acquire { priority: Priority::Sheddable, ..ask(4) });
        desk.queued(ask(1));
        let refusal = desk.turned_away(waiter);
        assert_eq!((refusal.reason, refusal.hint), (Reason::Displaced, Some(millis(1500))));
        // Past its deadline on arrival, too: the queue asks for three, and it for one.
        let late = Acquire { deadline: Some(desk.now), ..ask(1) };
        assert_eq!(hint(desk, late), Some(seconds(1)));
    });
}

#[test]
fn a_full_queue_takes_one_permit_at_that_pace_whatever_the_queue_asks_for() {
    check(Draft { max_queued: Some(1), ..limit(4) }, |desk| {
        busy(desk, 40, 2, seconds(1));
        desk.granted(ask(4));
        desk.queued(ask(4));
        let refusal = desk.refused(ask(3));
        assert_eq!((refusal.reason, refusal.hint), (Reason::QueueFull, Some(millis(250))));
    });
}

#[test]
fn an_expired_lease_frees_and_one_that_was_never_heard_of_does_not() {
    check(limit(1), |desk| {
        desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) });
        let waiter = desk.queued(ask(1));
        desk.at(seconds(2)).advance();
        let token = desk.handed_to(waiter);
        desk.give_back(token);
        desk.granted(ask(1));
        assert_eq!(hint(desk.at(seconds(6)), at_once(ask(1))), Some(seconds(4)));
    });
}

#[test]
fn none_freed_takes_the_earliest_lease_end_or_a_second() {
    check(Draft { ceiling: Some(3), ..limit(2) }, |desk| {
        assert_eq!(hint(desk, at_once(ask(3))), Some(seconds(1)));
        desk.granted(ask(1));
        desk.granted(Acquire { ttl: Some(seconds(7)), ..ask(1) });
        assert_eq!(hint(desk.at(seconds(3)), at_once(ask(1))), Some(seconds(4)));
        // The server stood still for 2 s: so the lease ends 2 s later.
        desk.at(seconds(5)).resume_after(seconds(2));
        assert_eq!(hint(desk, at_once(ask(1))), Some(seconds(4)));
    });
}

#[test]
fn what_is_measured_is_clamped() {
    let draft = Draft { min_retry_hint: Some(millis(200)), max_retry_hint: Some(seconds(2)), ..limit(4) };
    check(draft.clone(), |desk| {
        desk.granted(ask(4));
        assert_eq!(hint(desk, at_once(ask(1))), Some(seconds(2)));
        assert_eq!(hint(desk.at(seconds(10) - NANO), at_once(ask(1))), Some(millis(200)));
    });
    check(draft, |desk| {
        busy(desk, 40, 4, seconds(1));
        desk.granted(ask(4));
        (0..8).for_each(|_| assert!(matches!(desk.acquire(ask(1)), Decision::Queued(_))));
        assert_eq!(desk.refused(ask(1)).hint, Some(millis(250)));
        // 12 permits at 4 in a second: 3 s.
        assert_eq!(hint(desk, at_once(ask(4))), Some(seconds(2)));
    });
}

#[test]
fn held_by_the_ramp_takes_at_least_the_next_step() {
    check(limit(8), |desk| {
        busy(desk, 40, 8, millis(125));
        desk.granted(of("a"));
        let ramped = |ask: Acquire| at_once(Acquire { cooldown: Some(at(seconds(40))), ..ask });
        // One runs, for 300 ms by now.
        let refusal = desk.at(millis(40_300)).refused(ramped(of("a")));
        assert_eq!((refusal.reason, refusal.ramp), (Reason::ConcurrencyCapacityExhausted, Some(1)));
        assert_eq!(refusal.hint, Some(millis(700)));
        let refusal = desk.at(millis(41_300)).refused(ramped(Acquire { permits: 4, ..of("a") }));
        // More than a step: four permits like the one that has run for 1.3 s.
        assert_eq!((refusal.ramp, refusal.hint), (Some(2), Some(millis(5200))));
        // Less than one: 8 wait, 8 are asked for, and 8 run, on the average for 162.5 ms.
        desk.granted(ask(7));
        desk.queued(ask(8));
        let refusal = desk.refused(ramped(Acquire { permits: 8, ..of("a") }));
        assert_eq!(refusal.hint, Some(millis(700)));
        // Another partition is not held by it.
        assert_eq!(desk.refused(at_once(of("b"))).ramp, None);
    });
}

#[test]
fn a_cooldown_takes_its_remainder_and_is_never_clamped() {
    for left in [NANO, millis(7), seconds(3600)] {
        check(Draft { max_wait: Some(seconds(10)), ..limit(1) }, |desk| {
            desk.at(seconds(5));
            let end = seconds(5) + left;
            let refusal = desk.refused(cooling("a", end));
            assert_eq!((refusal.reason, refusal.hint), (Reason::CooldownActive, Some(left)));
            let refusal = desk.refused(Acquire { max_wait: Some(NANO), ..patient("a", end) });
            assert_eq!((refusal.reason, refusal.hint), (Reason::CooldownExceedsDeadline, Some(left)));
            // Those that wait are told the same.
            desk.granted(ask(1));
            let waiter = desk.queued(of("a"));
            desk.cool(Some("a"), at(end));
            let refusal = desk.turned_away(waiter);
            assert_eq!((refusal.reason, refusal.hint), (Reason::CooldownActive, Some(left)));
        });
    }
}

#[test]
fn a_repeat_that_cannot_wait_for_the_cooldown_of_its_place_is_told_the_remainder() {
    check(limit(1), |desk| {
        desk.granted(ask(1));
        let patient = Acquire { on_cooldown: OnCooldown::Wait, partition: Some("a".into()), ..named(1) };
        desk.queued(patient.clone());
        desk.cool(Some("a"), at(seconds(3)));
        let refusal = desk.at(seconds(1)).refused(Acquire { max_wait: Some(seconds(2)), ..patient });
        assert_eq!((refusal.reason, refusal.hint), (Reason::CooldownExceedsDeadline, Some(seconds(2))));
    });
}

#[test]
fn what_coming_back_later_does_not_change_has_no_hint() {
    check(limit(1), |desk| {
        desk.granted(named(1));
        let waiter = desk.queued(named(2));
        assert_eq!(hint(desk, ask(2)), None);
        assert_eq!(hint(desk, Acquire { ttl: Some(seconds(1)), ..ask(1) }), None);
        assert_eq!(hint(desk, Acquire { fingerprint: 1, ..named(1) }), None);
        desk.release_request(2);
        assert_eq!(desk.turned_away(waiter).hint, None);
        assert_eq!(hint(desk, named(2)), None);
    });
}
