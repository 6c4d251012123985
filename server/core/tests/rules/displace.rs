//! A full queue, and a newcomer that is more urgent than the last in it (R3).

use tidegate_core::{Acquire, Draft, OnCooldown, Priority, Reason};

use super::desk::{ask, at, check, cooling, limit, patient, seconds};

fn displacing(max_queued: u32) -> Draft {
    Draft { displace: Some(true), max_queued: Some(max_queued), ..limit(1) }
}

fn rank(priority: Priority) -> Acquire {
    Acquire { priority, ..ask(1) }
}

#[test]
fn r3_the_last_in_order_goes_if_it_is_less_urgent() {
    check(displacing(3), |desk| {
        desk.granted(ask(1));
        let first = desk.queued(rank(Priority::Sheddable));
        let last = desk.queued(rank(Priority::Sheddable));
        let normal = desk.queued(ask(1));
        let urgent = desk.queued(rank(Priority::Critical));
        assert_eq!(desk.others(), [(last, Err(Reason::Displaced))]);
        let other = desk.queued(ask(1));
        assert_eq!(desk.others(), [(first, Err(Reason::Displaced))]);
        // A normal one is last now: only a critical one is more urgent.
        assert_eq!(desk.refused(ask(1)).reason, Reason::QueueFull);
        assert_eq!(desk.refused(rank(Priority::Sheddable)).reason, Reason::QueueFull);
        desk.queued(rank(Priority::Critical));
        assert_eq!(desk.others(), [(other, Err(Reason::Displaced))]);
        let totals = desk.status().totals;
        assert_eq!((totals.refused(Reason::Displaced), desk.status().queued), (3, 3));
        // A displaced one was queued before: it counts once.
        assert_eq!((totals.waited, totals.held_back), (6, 8));
        for id in [normal, urgent] {
            desk.leave(id);
        }
    });
}

#[test]
fn r3_the_last_in_order_is_not_the_least_urgent_when_that_one_has_waited_longer() {
    check(Draft { aging_step: Some(seconds(1)), ..displacing(2) }, |desk| {
        desk.granted(ask(1));
        desk.queued(rank(Priority::Sheddable));
        desk.at(seconds(3));
        let last = desk.queued(ask(1));
        assert_eq!(desk.refused(ask(1)).reason, Reason::QueueFull);
        desk.queued(rank(Priority::Critical));
        assert_eq!(desk.others(), [(last, Err(Reason::Displaced))]);
    });
}

#[test]
fn r3_nobody_is_displaced_unless_the_setting_says_so() {
    check(Draft { displace: None, ..displacing(1) }, |desk| {
        desk.granted(ask(1));
        desk.queued(rank(Priority::Sheddable));
        assert_eq!(desk.refused(rank(Priority::Critical)).reason, Reason::QueueFull);
        assert_eq!(desk.others(), []);
    });
}

#[test]
fn r3_one_that_is_passed_over_is_displaced_too_and_its_id_is_free() {
    check(Draft { ceiling: Some(4), ..displacing(1) }, |desk| {
        let request = Some(super::desk::key(1));
        desk.granted(ask(1));
        let large = desk.queued(Acquire { request, permits: 4, ..rank(Priority::Sheddable) });
        let next = desk.queued(Acquire { request: Some(super::desk::key(2)), ..ask(1) });
        assert_eq!(desk.others(), [(large, Err(Reason::Displaced))]);
        desk.leave(next);
        desk.queued(Acquire { request, ..ask(1) });
    });
}

#[test]
fn r9_a_newcomer_that_does_not_come_in_pushes_nobody_out() {
    check(displacing(2), |desk| {
        desk.granted(ask(1));
        desk.queued(rank(Priority::Sheddable));
        desk.queued(rank(Priority::Sheddable));
        let urgent = |ask: Acquire| Acquire { priority: Priority::Critical, ..ask };
        // It does not wait, its partition cools, it asks for too much, it comes too late.
        let refused = [
            Acquire { max_wait: Some(seconds(0)), ..ask(1) },
            cooling("a", seconds(5)),
            patient("a", seconds(60)),
            ask(2),
            Acquire { deadline: Some(at(seconds(0))), ..ask(1) },
        ]
        .map(|ask| desk.refused(urgent(ask)).reason);
        assert_eq!(
            refused,
            [
                Reason::ConcurrencyCapacityExhausted,
                Reason::CooldownActive,
                Reason::CooldownExceedsDeadline,
                Reason::PermitsExceedCeiling,
                Reason::WaitTimeout
            ]
        );
        assert_eq!((desk.others(), desk.status().queued), (vec![], 2));
    });
}

#[test]
fn r10_half_the_queue_is_the_most_for_those_in_trouble_also_if_one_could_be_displaced() {
    check(displacing(2), |desk| {
        desk.granted(ask(1));
        let sheddable = |ask: Acquire| Acquire { priority: Priority::Sheddable, ..ask };
        desk.queued(sheddable(patient("a", seconds(5))));
        desk.queued(sheddable(ask(1)));
        let urgent = Acquire { priority: Priority::Critical, ..patient("b", seconds(5)) };
        assert_eq!(desk.refused(urgent.clone()).reason, Reason::QueueFull);
        assert_eq!((desk.others(), urgent.on_cooldown), (vec![], OnCooldown::Wait));
    });
}
