//! What is capped for the whole server: leases, waiters, and memory (R14, R7).

use tidegate_core::{Acquire, Draft, Priority, Reason, Release, Room};

use super::desk::{ask, at_once, check, cooling, limit, named, seconds};

#[test]
fn r14_beyond_the_leases_lent_a_free_permit_is_refused_and_taken_again_when_one_ends() {
    check(limit(4), |desk| {
        desk.core.set_room(Room { leases: 2, ..Room::default() });
        let token = desk.granted(ask(1));
        desk.granted(ask(1));
        for wish in [ask(1), at_once(ask(1)), named(1)] {
            let refusal = desk.refused(wish);
            assert_eq!(
                (refusal.reason, refusal.hint, refusal.running),
                (Reason::ServerCapReached, Some(seconds(1)), 2)
            );
        }
        assert_eq!((desk.status().totals.refused(Reason::ServerCapReached), desk.status().totals.held_back), (3, 3));
        desk.release(token);
        desk.granted(named(1));
    });
}

#[test]
fn r14_a_waiter_has_the_room_of_its_lease_so_its_grant_never_meets_the_cap() {
    check(limit(1), |desk| {
        desk.core.set_room(Room { leases: 2, ..Room::default() });
        let token = desk.granted(ask(1));
        let waiter = desk.queued(ask(1));
        assert_eq!(desk.refused(ask(1)).reason, Reason::ServerCapReached);
        assert_eq!((desk.core.occupied().leases, desk.core.occupied().waiters), (2, 1));
        desk.release(token);
        desk.handed_to(waiter);
        assert_eq!((desk.core.occupied().leases, desk.core.occupied().waiters), (1, 0));
    });
}

#[test]
fn r14_beyond_the_waiters_lent_a_newcomer_is_refused_but_not_one_that_is_granted_or_told_more_to_the_point() {
    check(Draft { max_queued: Some(2), ..limit(2) }, |desk| {
        desk.core.set_room(Room { waiters: 1, ..Room::default() });
        desk.granted(ask(1));
        desk.granted(ask(1));
        desk.queued(ask(1));
        assert_eq!(desk.refused(ask(1)).reason, Reason::ServerCapReached);
        assert_eq!(desk.refused(at_once(ask(1))).reason, Reason::ConcurrencyCapacityExhausted);
        assert_eq!(desk.refused(cooling("a", seconds(5))).reason, Reason::CooldownActive);
        desk.core.set_room(Room { waiters: 0, ..Room::default() });
        assert_eq!(desk.status().queued, 1, "less room takes nothing away");
        let (token, _) = desk.leases()[0];
        desk.release(token);
        assert_eq!(desk.woken().len(), 1);
        let (token, _) = desk.leases()[0];
        desk.release(token);
        desk.granted(ask(1));
    });
}

#[test]
fn r14_a_repeat_needs_no_room_of_its_own() {
    check(limit(1), |desk| {
        let lease = desk.granted(named(1));
        let old = desk.queued(named(2));
        desk.core.set_room(Room { leases: 0, waiters: 0, remembered: 0 });
        assert!(matches!(desk.acquire(named(1)), tidegate_core::Decision::Granted(grant) if grant.token == lease));
        let new = desk.queued(named(2));
        assert_eq!(desk.others(), [(old, Err(Reason::Superseded))]);
        desk.leave(new);
    });
}

#[test]
fn r7_ended_leases_and_spent_ids_share_their_room_and_each_has_half_in_any_case() {
    check(limit(9), |desk| {
        desk.remember(4);
        // Alone, ids may have all of it.
        (0..4).for_each(|request| assert_eq!(desk.release_request(request), Release::Unknown));
        assert_eq!((desk.status().totals.forgotten, desk.core.occupied().remembered), (0, 4));
        // Leases take their half nevertheless: two are remembered, and the next id is kept beside one other.
        let tokens: Vec<_> = (0..3).map(|_| desk.granted(ask(1))).collect();
        tokens.iter().for_each(|token| assert_eq!(desk.release(*token), Release::Released));
        let answers: Vec<_> = tokens.iter().map(|token| desk.release(*token)).collect();
        assert_eq!(answers, [Release::Ended, Release::AlreadyReleased, Release::AlreadyReleased]);
        assert_eq!((desk.status().totals.forgotten, desk.core.occupied().remembered), (1, 6));
        assert_eq!(desk.release_request(9), Release::Unknown);
        assert_eq!((desk.status().totals.forgotten, desk.core.occupied().remembered), (4, 4));
        assert_eq!(desk.refused(named(3)).reason, Reason::RequestIdSpent);
        desk.granted(Acquire { fingerprint: 1, ..named(2) });
    });
}

#[test]
fn r14_where_the_shell_has_no_room_for_a_waiter_a_newcomer_is_granted_at_once_or_refused() {
    check(Draft { displace: Some(true), max_queued: Some(1), ..limit(2) }, |desk| {
        let crowded = |ask: Acquire| Acquire { crowded: true, ..ask };
        let token = desk.granted(crowded(ask(2)));
        assert_eq!(desk.refused(crowded(ask(1))).reason, Reason::ServerCapReached);
        // What it would be refused for in any case comes first.
        assert_eq!(desk.refused(crowded(at_once(ask(1)))).reason, Reason::ConcurrencyCapacityExhausted);
        desk.queued(Acquire { priority: Priority::Sheddable, ..ask(1) });
        assert_eq!(desk.refused(crowded(ask(1))).reason, Reason::ServerCapReached, "it displaces nobody either");
        assert_eq!(desk.status().queued, 1);
        desk.release(token);
    });
}
