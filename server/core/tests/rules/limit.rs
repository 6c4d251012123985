//! The limit that moves, the settings, and the numbers (R1, R4, R16).

use tidegate_core::{Acquire, Draft, FencingToken, Invalid, Priority, Reason};

use super::desk::{ask, check, key, limit, millis, named, seconds};

#[test]
fn w07_lowering_keeps_back_free_permits_first_then_those_of_ending_leases() {
    check(limit(4), |desk| {
        let tokens: Vec<_> = (0..3).map(|_| desk.granted(ask(1))).collect();
        desk.set_limit(2).unwrap();
        assert_eq!(desk.leases().len(), 3, "it cancels nobody");
        let waiters: Vec<_> = (0..2).map(|_| desk.queued(ask(1))).collect();
        // Three run, then two: both keep their permits to themselves.
        desk.release(tokens[0]);
        assert_eq!((desk.woken(), desk.running()), (vec![], 2));
        desk.release(tokens[1]);
        assert_eq!((desk.woken(), desk.running()), (waiters[..1].to_vec(), 2));
        // No newcomer gets what is kept back either.
        desk.set_limit(1).unwrap();
        desk.release(tokens[2]);
        assert_eq!((desk.woken(), desk.running()), (vec![], 1));
        assert_eq!(desk.refused(Acquire { max_wait: Some(seconds(0)), ..ask(1) }).limit, 1);
    });
}

#[test]
fn w07_a_lowered_limit_holds_also_when_leases_end_by_themselves() {
    check(limit(3), |desk| {
        for second in 2..5 {
            desk.granted(Acquire { ttl: Some(seconds(second)), ..ask(1) });
        }
        desk.set_limit(1).unwrap();
        let waiter = desk.queued(ask(1));
        desk.at(seconds(2)).advance();
        desk.at(seconds(3)).advance();
        assert_eq!((desk.woken(), desk.running()), (vec![], 1));
        desk.at(seconds(4)).advance();
        assert_eq!((desk.woken(), desk.running()), (vec![waiter], 1));
    });
}

#[test]
fn w07_raising_wakes_as_many_as_now_fit_at_once_and_in_order() {
    check(Draft { ceiling: Some(9), max_queued: Some(500), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        let waiters: Vec<_> = [2, 1, 3, 1].into_iter().map(|permits| desk.queued(ask(permits))).collect();
        desk.set_limit(6).unwrap();
        assert_eq!((desk.woken(), desk.running()), (waiters[..2].to_vec(), 4));
        desk.set_limit(9).unwrap();
        assert_eq!((desk.woken(), desk.running()), (waiters[2..].to_vec(), 8));
    });
}

#[test]
fn w07_a_limit_out_of_range_is_an_error_and_changes_nothing() {
    check(Draft { ceiling: Some(4), ..limit(2) }, |desk| {
        desk.granted(ask(2));
        let waiter = desk.queued(ask(3));
        desk.queued(ask(1));
        for limit in [0, 5, u32::MAX] {
            let before = (desk.status(), desk.leases(), desk.core.next_deadline(), desk.core.settings().clone());
            let allowed = format!("1 to 4, its ceiling, not {limit}");
            assert_eq!(desk.set_limit(limit), Err(Invalid { field: "limit", allowed }));
            assert_eq!(before, (desk.status(), desk.leases(), desk.core.next_deadline(), desk.core.settings().clone()));
            assert_eq!(desk.others(), []);
        }
        let (token, _) = desk.leases()[0];
        desk.set_limit(4).unwrap();
        desk.release(token);
        assert_eq!(desk.woken()[0], waiter);
    });
}

#[test]
fn r1_a_request_out_of_range_says_what_is_right_takes_nothing_and_leaves_its_id_free() {
    check(Draft { ceiling: Some(4), max_lease_ttl: Some(seconds(20)), ..limit(4) }, |desk| {
        let request = Some(key(1));
        for (wrong, reason, field, allowed) in [
            (ask(0), Reason::PermitsExceedCeiling, "permits", "1 to 4, the ceiling of the bulkhead, not 0"),
            (ask(5), Reason::PermitsExceedCeiling, "permits", "1 to 4, the ceiling of the bulkhead, not 5"),
            (
                ask(u32::MAX),
                Reason::PermitsExceedCeiling,
                "permits",
                "1 to 4, the ceiling of the bulkhead, not 4294967295",
            ),
            (Acquire { ttl: Some(millis(1999)), ..ask(1) }, Reason::InvalidField, "lease_ttl", "2s to 20s, not 1.999s"),
            (Acquire { ttl: Some(seconds(21)), ..ask(1) }, Reason::InvalidField, "lease_ttl", "2s to 20s, not 21s"),
        ] {
            let refusal = desk.refused(Acquire { request, ..wrong });
            assert_eq!((refusal.reason, refusal.hint), (reason, None));
            assert_eq!(refusal.invalid, Some(Invalid { field, allowed: allowed.into() }));
            assert_eq!((desk.running(), desk.leases()), (0, vec![]));
        }
        let totals = desk.status().totals;
        assert_eq!((totals.refused(Reason::PermitsExceedCeiling), totals.refused(Reason::InvalidField)), (3, 2));
        desk.granted(Acquire { request, ..ask(4) });
    });
}

#[test]
fn r1_a_ttl_may_be_anything_within_its_range() {
    check(Draft { max_lease_ttl: Some(seconds(20)), ..limit(2) }, |desk| {
        desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) });
        desk.granted(Acquire { ttl: Some(seconds(20)), ..ask(1) });
        let spans: Vec<_> = desk.leases().iter().map(|(_, end)| end.since(desk.now)).collect();
        assert_eq!(spans, [seconds(2), seconds(20)]);
    });
}

#[test]
fn r4_a_lower_ceiling_lowers_the_start_limit_and_never_raises_the_limit_in_force() {
    check(Draft { ceiling: Some(16), ..limit(8) }, |desk| {
        desk.set_limit_for(2, seconds(5));
        desk.configure(Draft { ceiling: Some(4), ..limit(4) });
        assert_eq!((desk.status().limit, desk.status().revert.map(|revert| revert.limit)), (2, Some(8)));
        desk.at(seconds(5)).advance();
        assert_eq!(desk.status().limit, 4, "it goes back as far as it can");
    });
}

#[test]
fn r4_only_a_limit_that_was_sent_or_a_lower_ceiling_moves_the_limit_in_force() {
    check(Draft { ceiling: Some(9), ..limit(4) }, |desk| {
        desk.set_limit(6).unwrap();
        desk.configure(Draft { ceiling: Some(8), ..limit(4) });
        assert_eq!(desk.status().limit, 6);
        desk.configure(Draft { ceiling: Some(5), ..limit(4) });
        assert_eq!(desk.status().limit, 5);
        desk.configure(Draft { ceiling: Some(9), ..limit(4) });
        assert_eq!(desk.status().limit, 5);
        desk.configure_limit(Draft { ceiling: Some(9), ..limit(7) });
        assert_eq!(desk.status().limit, 7);
    });
}

#[test]
fn r4_a_higher_start_limit_wakes_waiters_as_raising_does() {
    check(Draft { ceiling: Some(9), ..limit(1) }, |desk| {
        desk.granted(ask(1));
        let waiters: Vec<_> = (0..3).map(|_| desk.queued(ask(1))).collect();
        desk.configure_limit(Draft { ceiling: Some(9), ..limit(3) });
        assert_eq!(desk.woken(), waiters[..2]);
    });
}

#[test]
fn r4_a_lower_ceiling_refuses_those_who_ask_for_more_wakes_those_behind_and_frees_their_ids() {
    check(limit(4), |desk| {
        desk.granted(ask(1));
        let first = desk.queued(Acquire { permits: 4, ..named(1) });
        let small = desk.queued(ask(1));
        let second = desk.queued(ask(3));
        desk.configure(limit(2));
        let mut others = desk.others();
        assert_eq!(others.pop().map(|(id, told)| (id, told.is_ok())), Some((small, true)));
        others.sort_unstable_by_key(|(id, _)| *id);
        let refused = Err(Reason::PermitsExceedCeiling);
        assert_eq!(others, [(first, refused), (second, refused)]);
        desk.queued(named(1));
    });
}

#[test]
fn r4_settings_that_change_leave_waits_and_leases_that_began_as_they_are() {
    check(limit(1), |desk| {
        desk.granted(ask(1));
        let waiter = desk.queued(ask(1));
        let before = (desk.leases(), desk.core.next_deadline());
        let draft = Draft { max_wait: Some(seconds(1)), lease_ttl: Some(seconds(2)), ..limit(1) };
        desk.configure(Draft { max_queued: Some(0), ..draft });
        assert_eq!(before, (desk.leases(), desk.core.next_deadline()));
        assert_eq!((desk.status().queued, desk.others()), (1, vec![]));
        desk.at(seconds(9)).leave(waiter);
    });
}

#[test]
fn w11_all_of_it_is_readable_at_any_time() {
    check(Draft { ceiling: Some(9), max_queued: Some(7), ..limit(2) }, |desk| {
        desk.granted(ask(1));
        desk.queued(ask(2));
        desk.set_limit(1).unwrap();
        let (status, settings) = (desk.status(), desk.core.settings());
        assert_eq!((status.limit, settings.limit(), settings.ceiling()), (1, 2, 9));
        assert_eq!((status.running, status.queued), (1, 1));
        assert_eq!((settings.max_queued(), settings.max_wait()), (7, seconds(10)));
        let held: Vec<_> = desk.core.leases_from(FencingToken::default()).collect();
        assert_eq!((held.len(), held[0].permits, held[0].partition), (1, 1, None));
    });
}

#[test]
fn w12_who_waited_or_was_turned_away_counts_once_and_never_less() {
    check(Draft { max_queued: Some(2), ..limit(1) }, |desk| {
        let mut counts = vec![];
        let token = desk.granted(ask(1));
        counts.push(desk.status().totals.held_back);
        // Queued, and later granted, refused, or gone: once.
        desk.queued(named(1));
        desk.queued(Acquire { max_wait: Some(seconds(1)), ..ask(1) });
        counts.push(desk.status().totals.held_back);
        // Full, not willing to wait, and a repeat that takes its own place over.
        desk.refused(ask(1));
        desk.refused(Acquire { max_wait: Some(seconds(0)), ..ask(1) });
        counts.push(desk.status().totals.held_back);
        desk.queued(named(1));
        counts.push(desk.status().totals.held_back);
        desk.at(seconds(1)).release(token);
        counts.push(desk.status().totals.held_back);
        assert_eq!(counts, [0, 2, 4, 4, 4]);
        let totals = desk.status().totals;
        assert_eq!((totals.waited, totals.refused(Reason::QueueFull), totals.refused(Reason::WaitTimeout)), (2, 1, 1));
    });
}

#[test]
fn r2_a_newcomer_that_fits_is_granted_also_when_the_queue_is_full_of_passed_over_ones() {
    check(Draft { ceiling: Some(4), max_queued: Some(2), ..limit(2) }, |desk| {
        desk.queued(Acquire { priority: Priority::Critical, ..ask(3) });
        desk.queued(ask(4));
        desk.granted(ask(1));
        desk.granted(ask(1));
        assert_eq!(desk.refused(ask(1)).reason, Reason::QueueFull);
    });
}
