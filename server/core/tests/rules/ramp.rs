//! The careful start after a cooldown (R11).

use tidegate_core::{Acquire, Draft, Priority, Reason};

use super::desk::{NANO, ask, at, at_once, check, cooling, limit, millis, of, patient, seconds};

#[test]
fn r11_one_two_four_and_then_all_with_no_other_event() {
    check(Draft { max_queued: Some(20), ..limit(8) }, |desk| {
        let waiters: Vec<_> = (0..9).map(|_| desk.queued(patient("a", seconds(5)))).collect();
        for (second, granted) in [(5, 1), (6, 2), (7, 4), (8, 8)] {
            assert_eq!(desk.core.next_deadline(), Some(at(seconds(second))));
            desk.at(seconds(second) - NANO).advance();
            assert_eq!(desk.woken(), []);
            desk.at(seconds(second)).advance();
            assert_eq!((desk.woken().len(), desk.running()), (granted - granted / 2, 1 << (second - 5)));
        }
        // The ninth waits for a permit, and for no step.
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(10))));
        desk.leave(waiters[8]);
    });
}

#[test]
fn r11_leases_from_before_count_and_a_larger_request_runs_alone() {
    check(limit(8), |desk| {
        let before: Vec<_> = (0..2).map(|_| desk.granted(of("a"))).collect();
        desk.at(seconds(5));
        let ramped = || cooling("a", seconds(5));
        let refusal = desk.refused(at_once(ramped()));
        assert_eq!((refusal.reason, refusal.ramp), (Reason::ConcurrencyCapacityExhausted, Some(1)));
        desk.at(seconds(6));
        assert_eq!(desk.refused(at_once(ramped())).ramp, Some(2));
        desk.release(before[0]);
        let one = desk.granted(at_once(ramped()));
        let large = || Acquire { permits: 5, ..ramped() };
        desk.release(before[1]);
        assert_eq!(desk.refused(at_once(large())).ramp, Some(2));
        desk.release(one);
        let large = desk.granted(at_once(large()));
        assert_eq!(desk.refused(at_once(ramped())).ramp, Some(2));
        // Another partition takes the rest.
        desk.granted(Acquire { permits: 3, ..at_once(of("b")) });
        desk.release(large);
        desk.granted(at_once(ramped()));
    });
}

#[test]
fn r11_a_partition_takes_its_ramp_in_queue_order_and_others_pass_over_it() {
    check(limit(8), |desk| {
        let first = desk.granted(of("a"));
        desk.at(seconds(5));
        // The first one held asks for two, and the ramp is one: behind it nobody of it goes, also if it would fit.
        let large = desk.queued(Acquire { permits: 2, ..cooling("a", seconds(5)) });
        let small = desk.queued(cooling("a", seconds(5)));
        desk.granted(of("b"));
        desk.at(seconds(6)).advance();
        assert_eq!((desk.woken(), desk.core.next_deadline()), (vec![], Some(at(seconds(7)))));
        // One runs, two are allowed, and one would be enough for a newcomer.
        let newcomer = desk.refused(at_once(cooling("a", seconds(5))));
        assert_eq!((newcomer.reason, newcomer.ramp), (Reason::ConcurrencyCapacityExhausted, Some(2)));
        desk.release(first);
        desk.handed_to(large);
        desk.at(seconds(7)).advance();
        assert_eq!(desk.woken(), [small]);
    });
}

#[test]
fn r11_a_more_urgent_one_of_the_same_partition_stands_before_those_held() {
    check(limit(8), |desk| {
        let token = desk.granted(of("a"));
        desk.at(seconds(5));
        let normal = desk.queued(cooling("a", seconds(5)));
        let urgent = desk.queued(Acquire { priority: Priority::Critical, ..cooling("a", seconds(5)) });
        desk.release(token);
        let token = desk.handed_to(urgent);
        desk.release(token);
        desk.handed_to(normal);
    });
}

#[test]
fn r11_the_first_that_the_ramp_has_room_for_waits_for_a_free_permit_in_its_place() {
    check(limit(2), |desk| {
        let token = desk.granted(Acquire { permits: 2, ..of("b") });
        desk.queued(Acquire { max_wait: Some(seconds(4)), ..of("b") });
        let held = desk.queued(patient("a", seconds(5)));
        let behind = desk.at(seconds(1)).queued(of("c"));
        desk.at(seconds(5)).advance();
        desk.others();
        // Eligible now, and first: it fits, the one behind it does, too.
        desk.release(token);
        assert_eq!(desk.woken(), [held, behind]);
    });
}

#[test]
fn r11_it_is_over_at_the_limit_and_a_new_cooldown_starts_it_again() {
    check(limit(4), |desk| {
        desk.at(seconds(7));
        for _ in 0..3 {
            desk.granted(cooling("a", seconds(5)));
        }
        let held: Vec<_> = (0..3).map(|_| desk.queued(patient("a", seconds(9)))).collect();
        let tokens: Vec<_> = desk.leases().into_iter().map(|(token, _)| token).collect();
        desk.release(tokens[0]);
        desk.at(seconds(9)).advance();
        assert_eq!((desk.woken(), desk.running()), (vec![], 2));
        desk.release(tokens[1]);
        desk.release(tokens[2]);
        assert_eq!((desk.woken(), desk.running()), (held[..1].to_vec(), 1));
    });
}

#[test]
fn r11_a_step_of_zero_turns_it_off() {
    check(Draft { ramp_step: Some(seconds(0)), ..limit(4) }, |desk| {
        let waiters: Vec<_> = (0..4).map(|_| desk.queued(patient("a", seconds(5)))).collect();
        desk.at(seconds(5)).advance();
        assert_eq!(desk.woken(), waiters);
    });
}

#[test]
fn r11_a_lower_limit_ends_it_sooner_and_a_higher_one_does_not_bring_it_back_for_those_who_wait() {
    check(Draft { ceiling: Some(8), ..limit(8) }, |desk| {
        desk.granted(of("a"));
        desk.at(seconds(5));
        let waiters: Vec<_> = (0..3).map(|_| desk.queued(cooling("a", seconds(5)))).collect();
        desk.at(millis(6500)).set_limit(2).unwrap();
        assert_eq!(desk.woken(), waiters[..1], "as many as it allows: two");
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(10))), "nobody waits for a step");
        desk.set_limit(8).unwrap();
        assert_eq!(desk.woken(), waiters[1..]);
    });
}

#[test]
fn r11_a_higher_limit_does_not_bring_it_back_either_for_those_who_asked_for_more_than_the_lower() {
    check(Draft { ceiling: Some(5), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        let waiters: Vec<_> = (0..2).map(|_| desk.queued(Acquire { permits: 2, ..patient("a", seconds(5)) })).collect();
        // Under a limit of one no ramp follows the cooldown.
        desk.at(seconds(5)).set_limit(5).unwrap();
        assert_eq!(desk.woken(), waiters);
    });
}

#[test]
fn r11_one_that_asks_for_more_than_the_limit_does_not_hold_its_partition() {
    check(Draft { ceiling: Some(8), ..limit(4) }, |desk| {
        let large = desk.queued(Acquire { permits: 5, ..patient("a", seconds(5)) });
        let small = desk.queued(patient("a", seconds(5)));
        desk.at(seconds(5)).advance();
        let token = desk.handed_to(small);
        // It returns to its place, and runs alone.
        desk.set_limit(8).unwrap();
        assert_eq!(desk.woken(), []);
        desk.release(token);
        desk.handed_to(large);
        assert_eq!(desk.refused(at_once(cooling("a", seconds(5)))).ramp, Some(1));
        desk.granted(ask(1));
    });
}

#[test]
fn r6_the_ramp_follows_real_time_and_waits_for_the_pause_after_a_stall() {
    check(limit(4), |desk| {
        let waiters: Vec<_> = (0..3).map(|_| desk.queued(patient("a", seconds(5)))).collect();
        desk.at(seconds(6)).resume_after(seconds(3));
        desk.advance();
        assert_eq!(desk.woken(), []);
        desk.at(seconds(6) + millis(50)).advance();
        assert_eq!(desk.woken(), waiters[..2]);
    });
}
