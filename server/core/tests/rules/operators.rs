//! What operators do beside moving the limit: modes, taking leases back, limits that go back, a server that stops (R4, R7,
//! R12).

use tidegate_core::{Acquire, Decision, Draft, Mode, Reason, Release, Renewal, Room};

use super::desk::{Desk, NANO, ask, at, at_once, check, cooling, limit, millis, named, of, patient, seconds};

/// What SHADOW has counted: would wait, would refuse.
fn forecast(desk: &Desk) -> (u64, u64) {
    let totals = desk.status().totals;
    (totals.would_wait, totals.would_refuse)
}

#[test]
fn r12_entering_shadow_grants_the_passed_over_in_their_order_and_marks_none_of_them() {
    check(Draft { ceiling: Some(4), ..limit(2) }, |desk| {
        let marked = [desk.granted(ask(1)), desk.granted(ask(1))];
        let cooling = desk.queued(patient("a", seconds(5)));
        let aside = desk.queued(ask(3));
        let plain = desk.queued(ask(1));
        let ramped = desk.queued(Acquire { permits: 2, ..patient("a", seconds(5)) });
        desk.set_mode(Mode::Shadow);
        assert_eq!(desk.woken(), [cooling, aside, plain, ramped]);
        assert_eq!((desk.running(), desk.core.next_deadline()), (9, None));
        // Two of the nine fill the rule's two.
        desk.granted(ask(1));
        assert_eq!(forecast(desk), (1, 0));
        for token in marked {
            desk.release(token);
        }
        desk.granted(ask(2));
        assert_eq!(forecast(desk), (1, 0));
        desk.granted(at_once(ask(1)));
        assert_eq!(forecast(desk), (1, 1));
    });
}

#[test]
fn r12_the_ramp_that_shadow_plays_counts_marked_leases_of_its_partition() {
    check(Draft { mode: Some(Mode::Shadow), ..limit(8) }, |desk| {
        desk.at(seconds(5));
        let ramped = || cooling("a", seconds(5));
        let marked = desk.granted(ramped());
        let unmarked = desk.granted(ramped());
        assert_eq!(forecast(desk), (1, 0));
        desk.granted(at_once(ramped()));
        assert_eq!(forecast(desk), (1, 1));
        // Others notice nothing.
        desk.granted(of("b"));
        desk.granted(of("b"));
        assert_eq!(forecast(desk), (1, 1));
        // The ramp allows two: one is marked, however many run.
        desk.at(seconds(6));
        desk.granted(ramped());
        assert_eq!(forecast(desk), (1, 1));
        desk.release(unmarked);
        desk.granted(ramped());
        assert_eq!(forecast(desk), (2, 1));
        desk.release(marked);
        desk.granted(ramped());
        assert_eq!(forecast(desk), (2, 1));
    });
}

#[test]
fn r12_in_shadow_caps_and_deadlines_refuse_and_are_no_forecast() {
    check(Draft { mode: Some(Mode::Shadow), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        desk.core.set_room(Room { leases: 1, ..Room::default() });
        assert_eq!(desk.refused(ask(1)).reason, Reason::ServerCapReached);
        desk.core.set_room(Room::default());
        let late = desk.refused(Acquire { deadline: Some(desk.now), ..ask(1) });
        assert_eq!((late.reason, forecast(desk)), (Reason::WaitTimeout, (0, 0)));
    });
}

#[test]
fn r12_leaving_shadow_is_a_lowering_and_marks_are_not_asked_for() {
    check(limit(2), |desk| {
        desk.set_mode(Mode::Shadow);
        let tokens: Vec<_> = (0..4).map(|_| desk.granted(ask(1))).collect();
        assert_eq!(forecast(desk), (2, 0));
        desk.set_mode(Mode::Enforcing);
        let waiter = desk.queued(ask(1));
        // The two that the rule granted, then one of the others.
        desk.release(tokens[0]);
        desk.release(tokens[1]);
        assert_eq!((desk.woken(), desk.running()), (vec![], 2));
        desk.release(tokens[3]);
        assert_eq!(desk.woken(), [waiter]);
    });
}

#[test]
fn r12_paused_grants_nobody_whatever_happens_and_everybody_who_fits_when_it_ends() {
    check(Draft { ceiling: Some(4), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        let large = desk.queued(ask(2));
        let small = desk.queued(ask(1));
        desk.set_mode(Mode::Paused);
        desk.set_limit(4).unwrap();
        desk.at(seconds(10) - NANO).advance();
        let newcomer = desk.queued(ask(1));
        assert_eq!(desk.woken(), []);
        // The lease ends with the first two waits: they are over, and nobody takes its permit.
        desk.at(seconds(10)).advance();
        assert_eq!(desk.others(), [(large, Err(Reason::WaitTimeout)), (small, Err(Reason::WaitTimeout))]);
        assert_eq!((desk.running(), desk.core.next_deadline()), (0, Some(at(seconds(20) - NANO))));
        desk.set_mode(Mode::Enforcing);
        assert_eq!(desk.woken(), [newcomer]);
    });
}

#[test]
fn r12_closed_refuses_waiters_and_answers_the_repeat_of_a_live_lease() {
    check(limit(1), |desk| {
        let token = desk.granted(named(1));
        let waiter = desk.queued(ask(1));
        desk.set_mode(Mode::Closed);
        assert_eq!((desk.turned_away(waiter).reason, desk.status().queued), (Reason::BulkheadClosed, 0));
        assert!(matches!(desk.acquire(named(1)), Decision::Granted(grant) if grant.replayed && grant.token == token));
        assert_eq!(desk.refused(named(2)).reason, Reason::BulkheadClosed);
        desk.release(token);
        assert_eq!(desk.refused(named(1)).reason, Reason::RequestIdSpent);
    });
}

#[test]
fn r7_a_revoked_grant_that_nobody_heard_of_counts_as_never_granted() {
    check(limit(1), |desk| {
        let first = desk.granted(ask(1));
        let waiter = desk.queued(named(1));
        desk.release(first);
        let token = desk.handed_to(waiter);
        assert_eq!(desk.revoke(token, false).map(|revoked| revoked.permits), Some(1));
        desk.give_back(token);
        assert_eq!((desk.running(), desk.status().totals.granted), (0, 1));
        assert_eq!((desk.release(token), desk.revoke(token, true)), (Release::Ended, None));
        let again = desk.granted(named(1));
        // Taken back at once, it has ended: nothing is left to give back.
        desk.release(again);
        let first = desk.granted(ask(1));
        let waiter = desk.queued(named(2));
        desk.release(first);
        let token = desk.handed_to(waiter);
        desk.revoke(token, true);
        desk.give_back(token);
        assert_eq!((desk.running(), desk.release(token)), (0, Release::Revoked));
        assert_eq!(desk.refused(named(2)).reason, Reason::RequestIdSpent);
    });
}

#[test]
fn r7_the_first_release_of_a_revoked_lease_frees_it() {
    check(limit(1), |desk| {
        let token = desk.granted(named(1));
        desk.revoke(token, false);
        let waiter = desk.queued(ask(1));
        assert_eq!((desk.release_request(1), desk.running()), (Release::Revoked, 1));
        desk.handed_to(waiter);
        assert_eq!((desk.release(token), desk.release_request(1)), (Release::Revoked, Release::Revoked));
        assert_eq!(desk.running(), 1);
    });
}

#[test]
fn r7_a_revoked_lease_runs_to_its_end_which_only_a_stall_moves() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        desk.at(seconds(1)).revoke(token, false);
        desk.at(seconds(2));
        assert_eq!(desk.renew(token), Renewal::Revoked);
        desk.at(seconds(8)).resume_after(seconds(5));
        let waiter = desk.queued(ask(1));
        assert_eq!(desk.leases(), [(token, at(seconds(15)))]);
        desk.at(seconds(15) - NANO).advance();
        assert_eq!(desk.woken(), []);
        desk.at(seconds(15)).advance();
        desk.handed_to(waiter);
        assert_eq!((desk.release(token), desk.renew(token)), (Release::Revoked, Renewal::Revoked));
        let totals = desk.status().totals;
        assert_eq!((totals.revoked, totals.expired), (1, 0));
    });
}

#[test]
fn r4_a_limit_that_goes_back_up_as_a_lease_and_a_wait_end() {
    check(limit(2), |desk| {
        desk.set_limit_for(1, seconds(10));
        desk.granted(ask(1));
        let over = desk.queued(ask(1));
        desk.at(seconds(1));
        let next = [desk.queued(ask(1)), desk.queued(ask(1)), desk.queued(ask(1))];
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(10))));
        desk.at(seconds(10)).advance();
        let others = desk.others();
        assert_eq!(others[0], (over, Err(Reason::WaitTimeout)));
        assert!(matches!(others[1..], [(first, Ok(_)), (second, Ok(_))] if [first, second] == next[..2]), "{others:?}");
        assert_eq!((desk.status().limit, desk.status().revert), (2, None));
    });
}

#[test]
fn r4_a_limit_that_goes_back_down_as_leases_end_grants_no_more_than_it_is_then() {
    check(Draft { ceiling: Some(2), ..limit(1) }, |desk| {
        desk.set_limit_for(2, seconds(10));
        desk.granted(ask(1));
        desk.granted(ask(1));
        desk.at(millis(500));
        let waiters = [desk.queued(ask(1)), desk.queued(ask(1))];
        // A wait ends before, and who comes by then must not hide the revert.
        desk.queued(Acquire { max_wait: Some(seconds(1)), ..ask(1) });
        desk.at(seconds(2)).advance();
        desk.others();
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(10))));
        desk.at(seconds(10)).advance();
        assert_eq!((desk.woken(), desk.running()), (vec![waiters[0]], 1));
    });
}

#[test]
fn r4_a_limit_goes_back_to_what_it_was_first_unless_somebody_moves_it_for_good() {
    check(limit(4), |desk| {
        desk.set_limit_for(3, seconds(5));
        desk.at(seconds(1)).set_limit_for(2, seconds(5));
        assert_eq!(desk.status().revert.map(|revert| (revert.at, revert.limit)), Some((at(seconds(6)), 4)));
        desk.at(seconds(2)).set_limit(1).unwrap();
        assert_eq!(desk.status().revert, None);
        desk.at(seconds(9)).advance();
        assert_eq!(desk.status().limit, 1);
    });
}

#[test]
fn r4_a_revert_is_a_reason_to_come_by() {
    check(limit(2), |desk| {
        desk.granted(ask(1));
        desk.set_limit_for(1, seconds(3));
        let waiter = desk.queued(ask(1));
        assert_eq!(desk.core.next_deadline(), Some(at(seconds(3))));
        desk.at(seconds(3)).advance();
        assert_eq!(desk.woken(), [waiter]);
    });
}

#[test]
fn r8_a_server_that_stops_answers_the_repeat_of_a_live_lease_and_lets_nobody_in() {
    check(limit(1), |desk| {
        let token = desk.granted(named(1));
        let waiter = desk.queued(named(2));
        desk.at(seconds(1)).drain();
        assert_eq!(desk.others(), [(waiter, Err(Reason::Draining))]);
        assert_eq!(desk.core.next_deadline(), None);
        assert!(matches!(desk.acquire(named(1)), Decision::Granted(grant) if grant.replayed && grant.token == token));
        // Its id is free, and no place is taken.
        assert_eq!(desk.refused(named(2)).reason, Reason::Draining);
        assert!(matches!(desk.renew(token), Renewal::Renewed { .. }));
        // Nothing an operator does lets anybody in.
        desk.set_mode(Mode::Shadow);
        assert_eq!(desk.refused(ask(1)).reason, Reason::Draining);
        assert_eq!(desk.release(token), Release::Released);
        assert_eq!(desk.refused(named(1)).reason, Reason::RequestIdSpent);
        assert_eq!((desk.running(), desk.status().queued), (0, 0));
    });
}

#[test]
fn r12_in_shadow_no_more_permits_run_than_can_be_counted() {
    const MOST: u32 = 1_000_000_000;
    check(Draft { mode: Some(Mode::Shadow), ..limit(MOST) }, |desk| {
        let tokens: Vec<_> = (0..4).map(|_| desk.granted(ask(MOST))).collect();
        assert_eq!(desk.refused(ask(MOST)).reason, Reason::ServerCapReached);
        let rest = desk.granted(ask(u32::MAX - 4 * MOST));
        assert_eq!(desk.running(), u32::MAX);
        for token in tokens.into_iter().chain([rest]) {
            desk.release(token);
        }
        desk.set_mode(Mode::Enforcing);
    });
    check(limit(MOST), |desk| {
        let held = desk.granted(ask(MOST));
        let waiters: Vec<_> = (0..5).map(|_| desk.queued(ask(MOST))).collect();
        desk.set_mode(Mode::Shadow);
        let told = desk.others();
        assert_eq!(told[3..], [3, 4].map(|number| (waiters[number], Err(Reason::ServerCapReached))));
        assert!(told[..3].iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
        assert_eq!((desk.running(), desk.status().queued), (4 * MOST, 0));
        desk.release(held);
        desk.set_mode(Mode::Enforcing);
    });
}
