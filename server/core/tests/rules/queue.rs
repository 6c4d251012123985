//! Who is granted, who waits, in which order and until when (R2, R3, R5).

use tidegate_core::{Acquire, Draft, Holder, Priority, Reason};

use super::desk::{NANO, ask, at, check, limit, millis, seconds};

#[test]
fn w01_one_limit_for_all_whoever_asks_and_however() {
    check(limit(2), |desk| {
        let holder = Holder { name: "page".into(), address: Some(([127, 0, 0, 1], 80).into()) };
        desk.granted(Acquire { holder, priority: Priority::Critical, ..ask(1) });
        desk.granted(Acquire { partition: Some("other".into()), ..ask(1) });
        desk.queued(Acquire { priority: Priority::Critical, ..ask(1) });
        assert_eq!(desk.running(), 2);
    });
}

#[test]
fn w03_a_free_permit_is_taken_at_once() {
    check(limit(3), |desk| {
        for running in 1..=3 {
            desk.granted(Acquire { max_wait: Some(seconds(0)), ..ask(1) });
            assert_eq!((desk.running(), desk.status().totals.waited), (running, 0));
        }
    });
}

#[test]
fn w03_a_full_queue_refuses_at_once_with_a_retry_hint() {
    check(Draft { max_queued: Some(1), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        desk.queued(ask(1));
        let refusal = desk.at(seconds(4)).refused(ask(1));
        assert_eq!((refusal.reason, refusal.limit, refusal.running, refusal.queued), (Reason::QueueFull, 1, 1, 1));
        assert!(refusal.hint.is_some_and(|hint| (millis(50)..=seconds(60)).contains(&hint)), "{refusal:?}");
    });
}

#[test]
fn w03_a_wait_that_is_over_is_refused_then_and_not_before_with_a_retry_hint() {
    check(limit(1), |desk| {
        desk.granted(Acquire { ttl: Some(seconds(10)), ..ask(1) });
        let waiter = desk.queued(Acquire { max_wait: Some(seconds(3)), ..ask(1) });
        desk.at(seconds(3) - NANO).advance();
        assert_eq!(desk.others(), []);
        desk.at(seconds(3)).advance();
        assert_eq!(desk.others(), [(waiter, Err(Reason::WaitTimeout))]);
        let refusal = desk.refused(Acquire { max_wait: Some(seconds(0)), ..ask(1) });
        assert!(refusal.hint.is_some_and(|hint| (millis(50)..=seconds(60)).contains(&hint)), "{refusal:?}");
    });
}

#[test]
fn w04_without_a_wait_or_a_queue_a_free_permit_is_granted_and_else_refused_at_once() {
    for draft in [Draft { max_wait: Some(seconds(0)), ..limit(1) }, Draft { max_queued: Some(0), ..limit(1) }] {
        check(draft, |desk| {
            let token = desk.granted(ask(1));
            assert_eq!(desk.refused(ask(1)).reason, Reason::ConcurrencyCapacityExhausted);
            desk.release(token);
            desk.granted(ask(1));
        });
    }
}

#[test]
fn w05_a_cancelled_head_wakes_those_behind_it() {
    check(limit(2), |desk| {
        desk.granted(ask(1));
        let big = desk.queued(ask(2));
        let next = desk.queued(ask(1));
        desk.leave(big);
        desk.handed_to(next);
        assert_eq!((desk.running(), desk.status().queued), (2, 0));
    });
}

#[test]
fn w05_a_waiter_that_leaves_in_the_instant_a_permit_falls_free_takes_none() {
    check(limit(1), |desk| {
        desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) });
        let gone = desk.queued(ask(1));
        let next = desk.queued(ask(1));
        desk.at(seconds(2)).leave(gone);
        desk.handed_to(next);
    });
}

#[test]
fn w05_a_permit_handed_over_in_that_instant_goes_to_the_next_and_counts_as_never_granted() {
    check(limit(1), |desk| {
        let first = desk.granted(ask(1));
        let gone = desk.queued(ask(1));
        let next = desk.queued(ask(1));
        desk.release(first);
        let token = desk.handed_to(gone);
        desk.give_back(token);
        let handed = desk.handed_to(next);
        assert_eq!((desk.running(), desk.status().totals.granted), (1, 1));
        // The next one hears of it; who comes with the old one gets nothing.
        desk.core.confirm(handed);
        desk.give_back(handed);
        desk.give_back(token);
        assert_eq!((desk.running(), desk.status().totals.granted, desk.woken()), (1, 2, vec![]));
    });
}

#[test]
fn w06_a_freed_permit_goes_to_the_longest_waiter_also_when_a_lease_ends() {
    check(limit(2), |desk| {
        let released = desk.granted(ask(1));
        desk.granted(Acquire { ttl: Some(seconds(4)), ..ask(1) });
        let waiters: Vec<_> = (1..=3).map(|second| desk.at(seconds(second)).queued(ask(1))).collect();
        desk.release(released);
        assert_eq!(desk.woken(), waiters[..1]);
        desk.at(seconds(4)).advance();
        assert_eq!(desk.woken(), waiters[1..2]);
    });
}

#[test]
fn w10_page_and_count_one_after_the_other_do_not_deadlock_at_limit_1() {
    check(limit(1), |desk| {
        for _ in 0..10 {
            let page = desk.granted(ask(1));
            desk.release(page);
            let count = desk.granted(ask(1));
            desk.release(count);
        }
        // Two of them at once take turns.
        let page = desk.granted(ask(1));
        let other = desk.queued(ask(1));
        desk.release(page);
        let page = desk.handed_to(other);
        let count = desk.queued(ask(1));
        desk.release(page);
        desk.handed_to(count);
    });
}

#[test]
fn r2_a_newcomer_never_overtakes_the_queue() {
    check(limit(2), |desk| {
        desk.granted(ask(1));
        let big = desk.queued(ask(2));
        // One permit is free, and would fit.
        let small = desk.queued(ask(1));
        assert_eq!(desk.refused(Acquire { max_wait: Some(seconds(0)), ..ask(1) }).queued, 2);
        let (holder, _) = desk.leases()[0];
        desk.release(holder);
        let token = desk.handed_to(big);
        desk.release(token);
        desk.handed_to(small);
    });
}

#[test]
fn r2_a_passed_over_waiter_returns_to_its_place_when_the_limit_rises() {
    check(Draft { ceiling: Some(3), ..limit(1) }, |desk| {
        let holder = desk.granted(ask(1));
        let big = desk.queued(ask(3));
        let small = desk.queued(ask(1));
        desk.release(holder);
        let token = desk.handed_to(small);
        let other = desk.queued(ask(1));
        desk.set_limit(3).unwrap();
        assert_eq!(desk.others(), []);
        desk.release(token);
        let token = desk.handed_to(big);
        desk.release(token);
        desk.handed_to(other);
    });
}

#[test]
fn r2_the_urgent_go_first_and_nobody_starves() {
    check(Draft { aging_step: Some(seconds(1)), ..limit(1) }, |desk| {
        let mut token = desk.granted(ask(1));
        let patient = desk.queued(Acquire { priority: Priority::Sheddable, ..ask(1) });
        for tenth in 1..=30 {
            // A critical one comes each 100 ms, and as often a permit falls free.
            let urgent = desk.at(millis(tenth * 100)).queued(Acquire { priority: Priority::Critical, ..ask(1) });
            desk.release(token);
            if tenth < 20 {
                token = desk.handed_to(urgent);
            } else {
                // 2 s and a tie: the sheddable one came first.
                token = desk.handed_to(patient);
                break;
            }
        }
        assert_eq!((desk.now, desk.leases()[0].0), (at(seconds(2)), token));
    });
}

#[test]
fn r2_a_shorter_aging_step_never_lets_a_newcomer_overtake_its_own_rank() {
    check(Draft { aging_step: Some(seconds(4)), ..limit(1) }, |desk| {
        let token = desk.granted(ask(1));
        let first = desk.queued(ask(1));
        desk.configure(Draft { aging_step: Some(seconds(0)), ..limit(1) });
        let second = desk.at(seconds(1)).queued(ask(1));
        desk.release(token);
        let token = desk.handed_to(first);
        desk.release(token);
        desk.handed_to(second);
    });
}

#[test]
fn r2_a_shorter_aging_step_never_lets_a_newcomer_overtake_its_own_rank_when_it_was_passed_over() {
    let draft = Draft { ceiling: Some(2), ..limit(1) };
    check(Draft { aging_step: Some(seconds(4)), ..draft.clone() }, |desk| {
        let token = desk.granted(ask(1));
        let first = desk.queued(ask(2));
        desk.configure(Draft { aging_step: Some(seconds(0)), ..draft });
        let second = desk.at(seconds(1)).queued(ask(2));
        desk.set_limit(2).unwrap();
        desk.release(token);
        let token = desk.handed_to(first);
        desk.release(token);
        desk.handed_to(second);
    });
}

#[test]
fn r3_a_wait_ends_when_the_answer_is_due_also_when_the_bulkhead_would_wait_longer() {
    check(limit(1), |desk| {
        desk.granted(ask(1));
        let waiter =
            desk.queued(Acquire { deadline: Some(at(seconds(2))), answer_by: Some(at(millis(1980))), ..ask(1) });
        assert_eq!(desk.core.next_deadline(), Some(at(millis(1980))));
        desk.at(millis(1980)).advance();
        assert_eq!(desk.others(), [(waiter, Err(Reason::WaitTimeout))]);
    });
}

#[test]
fn r3_a_call_past_its_deadline_is_refused_also_when_a_permit_is_free() {
    check(limit(1), |desk| {
        let late = Acquire { deadline: Some(at(seconds(5))), answer_by: Some(at(millis(4980))), ..ask(1) };
        assert_eq!(desk.at(seconds(5)).refused(late.clone()).reason, Reason::WaitTimeout);
        assert_eq!((desk.running(), desk.status().totals.held_back), (0, 1));
        desk.at(seconds(5) - NANO).granted(late);
    });
}

#[test]
fn r3_a_waiter_is_not_granted_past_its_deadline_also_when_nobody_said_by_when_to_answer() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let waiter = desk.queued(Acquire { deadline: Some(at(seconds(2))), ..ask(1) });
        desk.at(seconds(3)).release(token);
        assert_eq!(desk.others(), [(waiter, Err(Reason::WaitTimeout))]);
    });
}

#[test]
fn r3_a_wait_that_ended_is_never_granted_also_among_very_many() {
    check(Draft { max_queued: Some(1000), ..limit(1) }, |desk| {
        let token = desk.granted(ask(1));
        let late: Vec<_> = (0..600).map(|_| desk.queued(Acquire { max_wait: Some(seconds(1)), ..ask(1) })).collect();
        let in_time = desk.queued(ask(1));
        desk.at(seconds(1)).release(token);
        let mut others = desk.others();
        // All before it are in its way and are told so in the same call.
        assert_eq!(others.pop().map(|(id, told)| (id, told.is_ok())), Some((in_time, true)));
        assert!(others.iter().all(|(_, told)| *told == Err(Reason::WaitTimeout)), "{others:?}");
        others.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(others.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), late);
    });
}

#[test]
fn r3_very_many_waits_that_end_at_once_are_told_in_bounded_steps() {
    check(Draft { max_queued: Some(1000), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        for _ in 0..600 {
            desk.queued(Acquire { max_wait: Some(seconds(1)), ..ask(1) });
        }
        desk.at(seconds(1)).advance();
        assert_eq!((desk.others().len(), desk.core.next_deadline()), (256, Some(at(seconds(1)))));
        desk.advance();
        desk.advance();
        assert_eq!((desk.others().len(), desk.status().queued, desk.core.next_deadline()), (344, 0, None));
    });
}

#[test]
fn r3_each_of_many_waits_ends_at_its_own_end_in_whatever_order_they_came() {
    check(Draft { max_queued: Some(1000), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        // 1 to 1008 ms, each once, up and down: 7 generates all residues of the prime 1009.
        let spans = std::iter::successors(Some(7_u64), |span| Some(span * 11 % 1009)).take(1000);
        let mut waits: Vec<_> =
            spans.map(|span| (millis(span), desk.queued(Acquire { max_wait: Some(millis(span)), ..ask(1) }))).collect();
        let mut nth = 0;
        waits.retain(|&(_, id)| {
            nth += 1;
            nth % 3 > 0 || {
                desk.leave(id);
                false
            }
        });
        waits.sort_unstable();
        for (end, id) in waits {
            assert_eq!(desk.core.next_deadline(), Some(at(end)));
            desk.at(end - NANO).advance();
            assert_eq!(desk.others(), []);
            desk.at(end).advance();
            assert_eq!(desk.others(), [(id, Err(Reason::WaitTimeout))]);
        }
    });
}

#[test]
fn somebody_must_come_by_only_while_somebody_waits() {
    check(Draft { ceiling: Some(2), ..limit(1) }, |desk| {
        assert_eq!(desk.core.next_deadline(), None);
        desk.granted(Acquire { ttl: Some(seconds(3)), ..ask(1) });
        assert_eq!(desk.core.next_deadline(), None);
        // The end of a lease, then the end of a wait, whichever is first.
        let waiter = desk.queued(Acquire { max_wait: Some(seconds(5)), ..ask(1) });
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(3))));
        let other = desk.queued(Acquire { max_wait: Some(seconds(2)), ..ask(2) });
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(2))));
        desk.at(seconds(2)).advance();
        assert_eq!(desk.others(), [(other, Err(Reason::WaitTimeout))]);
        desk.leave(waiter);
        assert_eq!(desk.core.next_deadline(), None);
    });
}
