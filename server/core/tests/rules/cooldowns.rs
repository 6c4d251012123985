//! Partitions that pause together (R9, R10).

use tidegate_core::{Acquire, Draft, Priority, Reason};

use super::desk::{NANO, ask, at, at_once, check, cooling, limit, millis, named, of, patient, seconds};

#[test]
fn r10_a_newcomer_that_does_not_wait_for_it_is_refused_at_once_and_takes_nothing() {
    check(limit(2), |desk| {
        let until =
            |deadline| Acquire { deadline: Some(at(deadline)), request: named(1).request, ..cooling("a", seconds(5)) };
        for (deadline, reason) in [
            (seconds(5) - NANO, Reason::CooldownExceedsDeadline),
            (seconds(5), Reason::CooldownActive),
            (seconds(9), Reason::CooldownActive),
        ] {
            assert_eq!(desk.refused(until(deadline)).reason, reason);
        }
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::CooldownActive);
        assert_eq!((desk.running(), desk.status().queued, desk.status().totals.held_back), (0, 0, 4));
        // Others notice nothing, and from the end on it is granted.
        desk.granted(of("b"));
        desk.at(seconds(5)).granted(until(seconds(9)));
    });
}

#[test]
fn r10_one_that_waits_is_passed_over_and_granted_when_the_cooldown_ends_with_no_other_event() {
    check(limit(2), |desk| {
        let patient = desk.queued(patient("a", seconds(5)));
        assert_eq!((desk.core.next_deadline(), desk.running()), (Some(at(seconds(5))), 0));
        desk.at(seconds(1)).granted(of("b"));
        desk.at(seconds(5) - NANO).advance();
        assert_eq!(desk.woken(), []);
        desk.at(seconds(5)).advance();
        assert_eq!(desk.woken(), [patient]);
    });
}

#[test]
fn r10_a_wait_must_be_longer_than_the_cooldown() {
    check(limit(1), |desk| {
        let wait = |span| Acquire { max_wait: Some(span), ..patient("a", seconds(5)) };
        assert_eq!(desk.refused(wait(seconds(5))).reason, Reason::CooldownExceedsDeadline);
        desk.queued(wait(seconds(5) + NANO));
        // Also if it would get a permit now, and does not want to wait.
        assert_eq!(desk.refused(wait(seconds(0))).reason, Reason::CooldownExceedsDeadline);
        let by =
            Acquire { answer_by: Some(at(seconds(5))), deadline: Some(at(seconds(6))), ..patient("a", seconds(5)) };
        assert_eq!(desk.refused(by).reason, Reason::CooldownExceedsDeadline);
    });
}

#[test]
fn r10_a_report_judges_the_waiters_of_its_partition_at_once_and_no_others() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let calm = |ask: Acquire| Acquire { cooldown: None, ..ask };
        let refuses = desk.queued(of("a"));
        let has_no_time = desk.queued(Acquire { deadline: Some(at(seconds(4))), ..of("a") });
        let short = desk.queued(Acquire { max_wait: Some(seconds(5)), ..calm(patient("a", seconds(0))) });
        let long = desk.queued(calm(patient("a", seconds(0))));
        let other = desk.queued(of("b"));
        desk.cool(Some("a"), at(seconds(5)));
        let mut others = desk.others();
        others.sort_unstable();
        let mut right = [
            (refuses, Err(Reason::CooldownActive)),
            (has_no_time, Err(Reason::CooldownExceedsDeadline)),
            (short, Err(Reason::CooldownExceedsDeadline)),
        ];
        right.sort_unstable();
        assert_eq!((others, desk.status().queued), (right.to_vec(), 2));
        // The head cools: nobody waits for it.
        desk.release(token);
        let token = desk.handed_to(other);
        desk.release(token);
        assert_eq!((desk.woken(), desk.core.next_deadline()), (vec![], Some(at(seconds(5)))));
        desk.at(seconds(5)).advance();
        desk.handed_to(long);
    });
}

#[test]
fn r10_a_cooldown_grows_and_never_shrinks() {
    check(limit(2), |desk| {
        let long = desk.queued(patient("a", seconds(3)));
        let short = desk.queued(Acquire { max_wait: Some(seconds(4)), ..patient("a", seconds(3)) });
        desk.cool(Some("a"), at(seconds(1)));
        assert_eq!((desk.others(), desk.core.next_deadline()), (vec![], Some(at(seconds(3)))));
        desk.cool(Some("a"), at(seconds(4)));
        assert_eq!(desk.others(), [(short, Err(Reason::CooldownExceedsDeadline))]);
        // A newcomer that was told less than the bulkhead knows.
        assert_eq!(desk.refused(cooling("a", seconds(3))).hint, Some(seconds(4)));
        desk.at(seconds(4) - NANO).advance();
        assert_eq!(desk.others(), []);
        desk.at(seconds(4)).advance();
        assert_eq!(desk.woken(), [long]);
    });
}

#[test]
fn r10_the_bulkheads_own_name_is_a_partition_like_others() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let own = desk.queued(ask(1));
        let other = desk.queued(of("a"));
        desk.cool(None, at(seconds(5)));
        assert_eq!(desk.others(), [(own, Err(Reason::CooldownActive))]);
        desk.release(token);
        desk.handed_to(other);
    });
}

#[test]
fn r10_an_operator_clears_a_cooldown_and_its_ramp() {
    check(limit(2), |desk| {
        let first = desk.queued(patient("a", seconds(5)));
        let second = desk.queued(patient("a", seconds(5)));
        desk.at(seconds(1)).calm(Some("a"));
        assert_eq!(desk.woken(), [first, second]);
        desk.calm(Some("b"));
    });
}

#[test]
fn r9_the_bulkhead_answers_first_but_only_to_refuse() {
    check(Draft { max_queued: Some(2), ceiling: Some(3), ..limit(1) }, |desk| {
        // It could be granted.
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::CooldownActive);
        assert_eq!(desk.refused(at_once(cooling("a", seconds(5)))).reason, Reason::CooldownActive);
        let token = desk.granted(ask(1));
        assert_eq!(desk.refused(at_once(cooling("a", seconds(5)))).reason, Reason::ConcurrencyCapacityExhausted);
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::CooldownActive);
        desk.queued(ask(2));
        desk.queued(ask(2));
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::QueueFull);
        // It could be granted although the queue is full: those in it ask for more than the limit.
        desk.release(token);
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::CooldownActive);
        assert_eq!(desk.refused(patient("a", seconds(5))).reason, Reason::QueueFull);
    });
}

#[test]
fn r10_those_in_trouble_take_at_most_half_of_the_queue() {
    check(Draft { max_queued: Some(5), ..limit(4) }, |desk| {
        let token = desk.granted(ask(4));
        for partition in ["a", "b", "a"] {
            desk.queued(patient(partition, seconds(5)));
        }
        for wish in [patient("a", seconds(5)), patient("c", seconds(5)), cooling("c", seconds(0))] {
            assert_eq!(desk.refused(wish).reason, Reason::QueueFull);
        }
        desk.queued(of("c"));
        let last = desk.queued(of("c"));
        desk.leave(last);
        // Those already in stay, also when they come to be more than half.
        let waiter = desk.queued(Acquire { cooldown: None, ..patient("d", seconds(0)) });
        desk.cool(Some("d"), at(seconds(5)));
        assert_eq!((desk.others(), desk.status().queued), (vec![], 5));
        desk.leave(waiter);
        desk.release(token);
    });
}

#[test]
fn r10_a_newcomer_that_hears_of_a_cooldown_before_the_bulkhead_does_not_hide_those_before_it() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let before = desk.queued(of("a"));
        // The report has written the end, and comes by only now.
        let patient = desk.queued(patient("a", seconds(5)));
        desk.cool(Some("a"), at(seconds(5)));
        assert_eq!(desk.others(), [(before, Err(Reason::CooldownActive))]);
        desk.release(token);
        assert_eq!(desk.woken(), []);
        desk.at(seconds(5)).advance();
        desk.handed_to(patient);
    });
}

#[test]
fn r10_a_cooldown_long_over_does_not_hide_waiters_from_the_next() {
    check(Draft { ceiling: Some(2), ramp_step: Some(seconds(0)), ..limit(1) }, |desk| {
        let token = desk.granted(ask(1));
        // It asks for more than the limit, so that nobody looks at its partition when the cooldown ends.
        let large = desk.queued(Acquire { permits: 2, ..patient("a", seconds(1)) });
        let small = desk.at(seconds(2)).queued(cooling("a", seconds(1)));
        // Also when a newcomer hears of it before the bulkhead does.
        let patient = desk.queued(patient("a", seconds(5)));
        desk.cool(Some("a"), at(seconds(5)));
        assert_eq!(desk.others(), [(small, Err(Reason::CooldownActive))]);
        desk.release(token);
        assert_eq!(desk.woken(), []);
        desk.leave(large);
        desk.leave(patient);
    });
}

#[test]
fn r8_a_repeat_keeps_on_cooldown_and_is_judged_by_its_own_end_and_deadline() {
    check(limit(1), |desk| {
        desk.granted(ask(1));
        let wish = |ask: Acquire| Acquire { request: named(1).request, ..ask };
        desk.queued(wish(patient("a", seconds(5))));
        // It says REFUSE now, and has a deadline: the place waits.
        let repeat = desk.queued(wish(Acquire { deadline: Some(at(seconds(8))), ..cooling("a", seconds(5)) }));
        desk.others();
        desk.cool(Some("a"), at(seconds(6)));
        assert_eq!(desk.others(), []);
        desk.cool(Some("a"), at(seconds(9)));
        assert_eq!(desk.others(), [(repeat, Err(Reason::CooldownExceedsDeadline))]);
        // One that refuses is refused when the cooldown begins, with the reason of the repeat's deadline.
        desk.queued(wish(of("b")));
        let repeat = desk.queued(wish(Acquire { deadline: Some(at(seconds(4))), ..patient("b", seconds(0)) }));
        desk.others();
        desk.cool(Some("b"), at(seconds(5)));
        assert_eq!(desk.others(), [(repeat, Err(Reason::CooldownExceedsDeadline))]);
    });
}

#[test]
fn r10_a_cooling_waiter_blocks_neither_the_less_urgent_nor_newcomers() {
    check(limit(2), |desk| {
        let urgent = desk.queued(Acquire { priority: Priority::Critical, permits: 2, ..patient("a", seconds(5)) });
        desk.granted(Acquire { priority: Priority::Sheddable, ..of("b") });
        desk.granted(at_once(of("b")));
        for (token, _) in desk.leases() {
            desk.release(token);
        }
        desk.at(seconds(5) + millis(1)).advance();
        desk.handed_to(urgent);
    });
}
