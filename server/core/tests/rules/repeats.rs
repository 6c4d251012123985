//! Request ids: what a repeat gets, and when an id is spent (R8, R5).

use tidegate_core::{Acquire, Decision, Draft, Reason, Release, RequestKey};

use super::desk::{Desk, NANO, ask, at, check, key, limit, named, seconds};

/// The lease that a repeat is answered with.
fn replayed(desk: &mut Desk, ask: Acquire) -> tidegate_core::Grant {
    match desk.acquire(ask) {
        Decision::Granted(grant) if grant.replayed => grant,
        other => panic!("{other:?}, not replayed"),
    }
}

#[test]
fn r8_equal_request_ids_are_granted_once_and_the_repeat_renews() {
    check(limit(4), |desk| {
        let token = desk.granted(named(1));
        let grant = replayed(desk.at(seconds(4)), named(1));
        assert_eq!((grant.token, grant.permits, grant.granted_at), (token, 1, at(seconds(0))));
        assert_eq!((desk.leases(), desk.running()), (vec![(token, at(seconds(14)))], 1));
        assert_eq!(desk.status().totals.granted, 1);
        // Of two that were queued, too.
        desk.granted(ask(3));
        let first = desk.queued(named(2));
        let second = desk.queued(named(2));
        assert_eq!((desk.others(), desk.status().queued), (vec![(first, Err(Reason::Superseded))], 1));
        desk.release(token);
        let handed = desk.handed_to(second);
        assert_eq!((replayed(desk, named(2)).token, desk.running()), (handed, 4));
    });
}

#[test]
fn r8_an_id_is_its_callers_own() {
    check(limit(4), |desk| {
        let tokens: Vec<_> = (0..3)
            .map(|identity| desk.granted(Acquire { request: Some(RequestKey { identity, request: 1 }), ..ask(1) }))
            .collect();
        assert_eq!((desk.running(), desk.release_request(1)), (3, Release::Released));
        let live: Vec<_> = desk.leases().iter().map(|(token, _)| *token).collect();
        assert_eq!(live, [tokens[0], tokens[2]]);
    });
}

#[test]
fn r8_a_repeat_that_asks_for_something_else_is_refused_and_changes_nothing() {
    check(limit(1), |desk| {
        desk.granted(Acquire { fingerprint: 7, ..named(1) });
        desk.queued(Acquire { fingerprint: 7, ..named(2) });
        let before = (desk.leases(), desk.core.next_deadline(), desk.status().queued);
        desk.at(seconds(1));
        for request in [1, 2] {
            let refusal = desk.refused(Acquire { fingerprint: 8, ..named(request) });
            assert_eq!((refusal.reason, refusal.invalid.unwrap().field), (Reason::RequestIdReused, "request_id"));
        }
        assert_eq!(before, (desk.leases(), desk.core.next_deadline(), desk.status().queued));
        assert_eq!(desk.others(), []);
    });
}

#[test]
fn r8_a_repeat_takes_over_place_arrival_and_the_earlier_end() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        desk.queued(named(1));
        let behind = desk.at(seconds(1)).queued(ask(1));
        let later = desk.at(seconds(2)).queued(named(1));
        assert_eq!((desk.core.next_deadline(), desk.others().len()), (Some(at(seconds(10))), 1));
        let sooner = desk.at(seconds(3)).queued(Acquire { max_wait: Some(seconds(4)), ..named(1) });
        assert_eq!(desk.others(), [(later, Err(Reason::Superseded))]);
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(7))));
        desk.release(token);
        let token = desk.handed_to(sooner);
        desk.release(token);
        desk.handed_to(behind);
    });
}

#[test]
fn r8_who_was_superseded_can_no_longer_withdraw_the_place() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let old = desk.queued(named(1));
        let new = desk.queued(named(1));
        desk.others();
        desk.leave(old);
        assert_eq!((desk.status().queued, desk.others()), (1, vec![]));
        desk.release(token);
        desk.handed_to(new);
        // Also not when somebody else waits where it did.
        let other = desk.queued(ask(1));
        desk.leave(old);
        desk.leave(new);
        assert_eq!((desk.status().queued, old == other), (1, false));
    });
}

#[test]
fn r8_a_repeat_that_will_not_wait_gives_the_place_up_and_wakes_those_behind() {
    check(limit(2), |desk| {
        desk.granted(ask(1));
        let old = desk.queued(Acquire { permits: 2, ..named(1) });
        let next = desk.queued(ask(1));
        let refusal = desk.refused(Acquire { permits: 2, max_wait: Some(seconds(0)), ..named(1) });
        assert_eq!(refusal.reason, Reason::ConcurrencyCapacityExhausted);
        let others = desk.others();
        assert_eq!((others[0], others[1].0, others[1].1.is_ok()), ((old, Err(Reason::Superseded)), next, true));
        // It was refused, so the id is free.
        desk.queued(named(1));
    });
}

#[test]
fn r8_a_spent_id_is_not_free_for_the_longest_ttl_and_the_slack() {
    check(Draft { max_lease_ttl: Some(seconds(20)), ..limit(4) }, |desk| {
        let token = desk.granted(named(1));
        desk.granted(Acquire { ttl: Some(seconds(2)), ..named(2) });
        desk.at(seconds(2)).release(token);
        let keep = seconds(20) + tidegate_core::slack(seconds(20));
        for span in [seconds(0), keep - NANO] {
            desk.at(seconds(2) + span);
            assert_eq!(desk.refused(named(1)).reason, Reason::RequestIdSpent);
            // Also when it asks for something else now, and when its lease expired.
            assert_eq!(desk.refused(Acquire { fingerprint: 9, ..named(2) }).reason, Reason::RequestIdSpent);
        }
        assert_eq!(desk.running(), 0);
        desk.at(seconds(2) + keep);
        assert!(desk.granted(named(1)) > token);
        desk.granted(named(2));
    });
}

#[test]
fn r8_refusals_are_not_remembered() {
    check(Draft { max_queued: Some(1), ..limit(1) }, |desk| {
        let token = desk.granted(ask(1));
        desk.refused(Acquire { max_wait: Some(seconds(0)), ..named(1) });
        let waiter = desk.queued(Acquire { max_wait: Some(seconds(1)), ..named(1) });
        desk.refused(named(2));
        desk.at(seconds(1)).advance();
        assert_eq!(desk.others(), [(waiter, Err(Reason::WaitTimeout))]);
        let waiter = desk.queued(named(2));
        desk.leave(waiter);
        desk.release(token);
        desk.granted(Acquire { fingerprint: 1, ..named(2) });
        desk.queued(Acquire { fingerprint: 1, ..named(1) });
    });
}

#[test]
fn r8_released_by_request_id_an_id_is_spent_whatever_it_stood_for() {
    check(limit(1), |desk| {
        desk.granted(named(1));
        let waiter = desk.queued(named(2));
        assert_eq!(desk.release_request(2), Release::Withdrawn);
        assert_eq!(desk.others(), [(waiter, Err(Reason::RequestIdSpent))]);
        assert_eq!(desk.release_request(1), Release::Released);
        assert_eq!(desk.release_request(3), Release::Unknown);
        desk.granted(Acquire { ttl: Some(seconds(2)), ..named(4) });
        desk.at(seconds(2));
        let again = [2, 1, 3, 4].map(|request| desk.release_request(request));
        assert_eq!(again, [Release::Withdrawn, Release::AlreadyReleased, Release::Unknown, Release::Expired]);
        for request in 1..=4 {
            assert_eq!(desk.refused(named(request)).reason, Reason::RequestIdSpent);
        }
    });
}

#[test]
fn r8_withdrawing_the_head_by_request_id_wakes_those_behind() {
    check(limit(2), |desk| {
        desk.granted(ask(1));
        desk.queued(Acquire { permits: 2, ..named(1) });
        let next = desk.queued(ask(1));
        desk.release_request(1);
        assert_eq!(desk.others().last().map(|(id, told)| (*id, told.is_ok())), Some((next, true)));
    });
}

#[test]
fn r5_a_grant_that_was_never_heard_of_leaves_its_request_id_free() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let waiter = desk.queued(named(1));
        desk.release(token);
        let handed = desk.handed_to(waiter);
        desk.give_back(handed);
        assert_eq!((desk.running(), desk.status().totals.granted), (0, 1));
        let next = desk.granted(Acquire { fingerprint: 5, ..named(1) });
        // Its token is not used again, and a release by it frees nothing.
        assert!(next > handed);
        assert_eq!((desk.release(handed), desk.running()), (Release::Ended, 1));
    });
}

#[test]
fn r5_a_grant_that_a_repeat_was_answered_with_stays() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let waiter = desk.queued(named(1));
        desk.release(token);
        let handed = desk.handed_to(waiter);
        assert_eq!(replayed(desk, named(1)).token, handed);
        desk.give_back(handed);
        assert_eq!((desk.running(), desk.status().totals.granted), (1, 2));
    });
}

#[test]
fn r5_a_grant_released_by_request_id_before_it_was_heard_of_is_not_given_back_twice() {
    check(limit(2), |desk| {
        let token = desk.granted(ask(2));
        let waiter = desk.queued(Acquire { permits: 2, ..named(1) });
        desk.release(token);
        let handed = desk.handed_to(waiter);
        assert_eq!(desk.release_request(1), Release::Released);
        desk.granted(ask(1));
        desk.give_back(handed);
        assert_eq!((desk.running(), desk.refused(named(1)).reason), (1, Reason::RequestIdSpent));
    });
}

#[test]
fn a_repeat_past_its_deadline_is_told_so() {
    let late = |desk: &mut Desk, ask: Acquire| {
        let answer = desk.acquire(Acquire { deadline: Some(desk.now), ..ask });
        assert!(matches!(&answer, Decision::Refused(refusal) if refusal.reason == Reason::WaitTimeout), "{answer:?}");
    };
    check(limit(1), |desk| {
        desk.granted(ask(1));
        desk.queued(named(1));
        // As the one that does not want to wait is told, and as a newcomer would be.
        late(desk, Acquire { max_wait: Some(seconds(0)), answer_by: Some(desk.now), ..named(1) });
        desk.queued(named(1));
        late(desk, named(1));
        assert_eq!(desk.status().queued, 0);
    });
}

#[test]
fn r8_memory_of_ids_is_bounded_and_forgets_the_oldest_first() {
    check(limit(1), |desk| {
        desk.remember(3);
        for request in 0..6 {
            assert_eq!(desk.release_request(request), Release::Unknown);
        }
        assert_eq!(desk.status().totals.forgotten, 3);
        assert_eq!(desk.refused(named(3)).reason, Reason::RequestIdSpent);
        desk.granted(Acquire { request: Some(key(2)), ..ask(1) });
    });
}
