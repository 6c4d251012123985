//! The server itself stood still: lease ends move by the gap, and nothing else (R6).

use tidegate_core::{Acquire, Draft, Instant, Reason, Renewal, Stall};

use super::desk::{NANO, ask, at, check, limit, millis, seconds};

#[test]
fn r6_lease_ends_move_by_the_gap_once_and_waits_do_not() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let waiter = desk.queued(Acquire { max_wait: Some(seconds(6)), ..ask(1) });
        desk.at(seconds(5)).resume_after(seconds(3));
        for _ in 0..3 {
            // Told again, as before every call.
            desk.core.forgive(Stall { total: seconds(3), resumed: at(seconds(5)) });
        }
        assert_eq!((desk.leases(), desk.core.forgiven()), (vec![(token, at(seconds(13)))], seconds(3)));
        desk.at(seconds(6)).advance();
        assert_eq!(desk.others(), [(waiter, Err(Reason::WaitTimeout))]);
        desk.at(seconds(13) - NANO).advance();
        assert_eq!(desk.running(), 1);
        desk.at(seconds(13)).advance();
        assert_eq!(desk.running(), 0);
    });
}

#[test]
fn r6_leases_granted_or_renewed_after_a_gap_are_not_moved_by_it() {
    check(limit(2), |desk| {
        let old = desk.granted(ask(1));
        desk.at(seconds(5)).resume_after(seconds(3));
        let new = desk.granted(ask(1));
        desk.renew(old);
        assert_eq!(desk.leases(), [(old, at(seconds(15))), (new, at(seconds(15)))]);
        // Gaps add up.
        desk.at(seconds(8)).resume_after(seconds(1));
        assert_eq!(desk.leases(), [(old, at(seconds(16))), (new, at(seconds(16)))]);
    });
}

#[test]
fn r6_a_bulkhead_made_after_a_gap_is_not_moved_by_it() {
    check(limit(1), |desk| {
        desk.at(seconds(60)).resume_after(seconds(30));
        let token = desk.at(seconds(70)).granted(ask(1));
        desk.core.forgive(Stall { total: seconds(30), resumed: at(seconds(60)) });
        assert_eq!(desk.leases(), [(token, at(seconds(80)))]);
    });
}

#[test]
fn r6_no_lease_falls_due_for_the_gap_or_half_a_second_whichever_is_shorter() {
    for (gap, quiet) in [(millis(101), millis(101)), (millis(500), millis(500)), (seconds(9), millis(500))] {
        check(Draft { max_wait: Some(seconds(60)), ..limit(2) }, |desk| {
            let renewed = desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) });
            let silent = desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) });
            desk.queued(ask(2));
            // Both would have ended with the gap, 1 ns after its start.
            let resumed = seconds(2) - NANO + gap;
            desk.at(resumed).resume_after(gap);
            desk.at(resumed + quiet - NANO).advance();
            assert_eq!(desk.running(), 2);
            assert!(matches!(desk.renew(renewed), Renewal::Renewed { .. }));
            assert_eq!(desk.core.next_deadline(), Some(at(resumed + quiet)));
            desk.at(resumed + quiet);
            assert_eq!((desk.renew(silent), desk.running()), (Renewal::Expired, 1));
        });
    }
}

#[test]
fn r6_no_waiter_is_granted_for_50_ms_and_then_without_another_event() {
    check(limit(2), |desk| {
        let token = desk.granted(ask(2));
        let late = desk.queued(Acquire { max_wait: Some(millis(5010)), ..ask(1) });
        let gone = desk.queued(ask(1));
        let patient = desk.queued(ask(1));
        let last = desk.queued(ask(1));
        desk.at(seconds(5)).resume_after(seconds(2));
        desk.release(token);
        assert_eq!((desk.woken(), desk.running()), (vec![], 0));
        // Two are free, but a newcomer does not overtake those who wait.
        assert_eq!(desk.refused(Acquire { max_wait: Some(seconds(0)), ..ask(1) }).queued, 4);
        desk.at(millis(5010)).leave(gone);
        assert_eq!(desk.others(), [(late, Err(Reason::WaitTimeout))]);
        assert_eq!(desk.core.next_deadline(), Some(at(millis(5050))));
        desk.at(millis(5050) - NANO).advance();
        assert_eq!(desk.woken(), []);
        desk.at(millis(5050)).advance();
        assert_eq!(desk.woken(), [patient, last]);
    });
}

#[test]
fn r6_the_limit_raised_in_the_pause_wakes_after_it() {
    check(Draft { ceiling: Some(3), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        let waiter = desk.queued(ask(1));
        desk.at(seconds(5)).resume_after(seconds(2));
        desk.set_limit(2).unwrap();
        assert_eq!(desk.woken(), []);
        desk.at(millis(5050)).advance();
        assert_eq!(desk.woken(), [waiter]);
    });
}

#[test]
fn r6_two_gaps_that_are_told_at_once_count_as_one() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        // The first gap, of 4 s, ended at 6 s; the second, of 0.2 s, at 6.3 s; nobody called in between.
        desk.at(millis(6300));
        desk.core.forgive(Stall { total: millis(4200), resumed: desk.now });
        assert_eq!(desk.leases(), [(token, Instant::ORIGIN + millis(14_200))]);
    });
}
