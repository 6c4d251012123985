//! How long a lease lasts, how it ends, and what is remembered of it (R6, R7).

use std::time::Duration;

use tidegate_core::{Acquire, Decision, Draft, FencingToken, Reason, Release, Renewal};

use super::desk::{NANO, ask, at, check, check_after, limit, millis, named, seconds};

#[test]
fn r6_a_lease_starts_when_it_is_granted_and_not_when_it_was_asked_for() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        let waiter = desk.queued(ask(1));
        desk.at(seconds(7)).release(token);
        let token = desk.handed_to(waiter);
        assert_eq!(desk.leases(), [(token, at(seconds(17)))]);
        desk.at(seconds(17) - NANO).advance();
        assert_eq!(desk.running(), 1);
        desk.at(seconds(17)).advance();
        assert_eq!(desk.running(), 0);
    });
}

#[test]
fn r6_a_lease_is_never_reclaimed_before_its_ttl_has_passed_since_the_last_renewal() {
    check(limit(1), |desk| {
        let token = desk.granted(Acquire { ttl: Some(seconds(3)), ..ask(1) });
        for nth in 1..=10 {
            desk.at((seconds(3) - NANO) * nth);
            assert!(matches!(desk.renew(token), Renewal::Renewed { ttl, .. } if ttl == seconds(3)));
        }
        desk.at((seconds(3) - NANO) * 10 + seconds(3));
        assert_eq!(desk.renew(token), Renewal::Expired);
        assert_eq!((desk.running(), desk.status().totals.expired), (0, 1));
    });
}

#[test]
fn r6_each_of_many_leases_ends_at_its_own_end_also_when_some_are_renewed_or_released() {
    check(Draft { max_lease_ttl: Some(seconds(300)), ..limit(300) }, |desk| {
        // 2 to 300 s, up and down.
        let ttls: Vec<_> = (0..290).map(|nth| seconds(2 + nth * 97 % 299)).collect();
        let tokens: Vec<_> = ttls.iter().map(|ttl| desk.granted(Acquire { ttl: Some(*ttl), ..ask(1) })).collect();
        let mut ends = vec![];
        desk.at(millis(1500));
        for (nth, (token, ttl)) in tokens.into_iter().zip(ttls).enumerate() {
            match nth % 3 {
                0 => assert_eq!(desk.release(token), Release::Released),
                1 => {
                    assert_eq!(desk.renew(token), Renewal::Renewed { ttl, floor: desk.leases()[0].0 });
                    ends.push((millis(1500) + ttl, token));
                }
                _ => ends.push((ttl, token)),
            }
        }
        ends.sort_unstable();
        while !ends.is_empty() {
            let (end, token) = ends.remove(0);
            desk.at(end - NANO).advance();
            assert_eq!(desk.running() as usize, ends.len() + 1);
            assert_eq!((desk.at(end).renew(token), desk.running() as usize), (Renewal::Expired, ends.len()));
        }
    });
}

#[test]
fn r6_of_more_due_leases_than_one_call_settles_none_is_renewed_and_the_rest_follow() {
    check(Draft { max_queued: Some(0), ..limit(1000) }, |desk| {
        // A nanosecond apart, so that it is known which are settled first.
        let tokens: Vec<_> = (0..1000).map(|nth| desk.at(Duration::from_nanos(nth)).granted(named(nth))).collect();
        desk.at(seconds(11));
        // 256 by time, and the one that is asked for; so with each of the three.
        assert_eq!((desk.renew(tokens[999]), desk.running()), (Renewal::Expired, 1000 - 257));
        assert_eq!((desk.release(tokens[998]), desk.running()), (Release::Expired, 1000 - 2 * 257));
        assert_eq!((desk.release_request(997), desk.running()), (Release::Expired, 1000 - 3 * 257));
        assert_eq!(desk.refused(named(996)).reason, Reason::RequestIdSpent);
        desk.give_back(tokens[995]);
        assert_eq!((desk.running(), desk.status().totals.expired), (0, 1000));
        for token in tokens {
            assert_eq!((desk.renew(token), desk.release(token)), (Renewal::Expired, Release::Expired));
        }
    });
}

#[test]
fn r6_what_very_many_due_leases_held_goes_to_those_who_wait_until_nothing_is_due() {
    check(Draft { max_queued: Some(1000), ..limit(600) }, |desk| {
        for _ in 0..600 {
            desk.granted(ask(1));
        }
        let waiters: Vec<_> = (0..600).map(|_| desk.at(seconds(1)).queued(ask(1))).collect();
        desk.at(seconds(10));
        let mut woken = vec![];
        // Somebody must come by at once, as long as it takes.
        while desk.core.next_deadline().is_some_and(|next| next <= desk.now) {
            desk.advance();
            woken.extend(desk.woken());
            assert!(desk.running() <= 600);
        }
        assert_eq!(woken, waiters);
    });
}

#[test]
fn r6_what_a_due_lease_held_is_handed_on_also_when_its_own_holder_finds_it_due() {
    check(Draft { max_queued: Some(600), ..limit(600) }, |desk| {
        let tokens: Vec<_> = (0..600).map(|nth| desk.at(Duration::from_nanos(nth)).granted(ask(1))).collect();
        let waiters: Vec<_> = (0..600).map(|_| desk.at(seconds(1)).queued(ask(1))).collect();
        desk.at(seconds(11) - NANO);
        assert_eq!(desk.renew(tokens[599]), Renewal::Expired);
        assert_eq!((desk.running(), desk.woken()), (600, waiters[..257].to_vec()));
    });
}

#[test]
fn r7_only_the_first_release_changes_anything() {
    check(limit(2), |desk| {
        let (once, expired) = (desk.granted(ask(1)), desk.granted(Acquire { ttl: Some(seconds(2)), ..ask(1) }));
        assert_eq!((desk.release(once), desk.running()), (Release::Released, 1));
        assert_eq!((desk.release(once), desk.running()), (Release::AlreadyReleased, 1));
        assert_eq!(desk.renew(once), Renewal::Released);
        desk.at(seconds(2));
        assert_eq!((desk.release(expired), desk.running()), (Release::Expired, 0));
        let live = desk.granted(ask(1));
        for made_up in [0, live.as_u64() + 1, live.as_u64() + 2, 1 << 32, u64::MAX] {
            let made_up = FencingToken::from_u64(made_up);
            assert_eq!((desk.release(made_up), desk.renew(made_up)), (Release::Ended, Renewal::Ended));
            desk.give_back(made_up);
            desk.core.confirm(made_up);
            assert_eq!((desk.running(), desk.status().totals.granted), (1, 3));
        }
        // What was made up before is granted as ever.
        let next = desk.granted(ask(1));
        assert_eq!((next.as_u64(), desk.release(next)), (live.as_u64() + 1, Release::Released));
    });
}

#[test]
fn r7_an_ended_lease_is_remembered_for_a_minute_and_not_longer() {
    check(limit(1), |desk| {
        let token = desk.granted(ask(1));
        desk.at(seconds(1)).release(token);
        desk.at(seconds(61) - NANO);
        assert_eq!((desk.release(token), desk.renew(token)), (Release::AlreadyReleased, Renewal::Released));
        desk.at(seconds(61));
        assert_eq!((desk.release(token), desk.renew(token)), (Release::Ended, Renewal::Ended));
        assert_eq!(desk.status().totals.forgotten, 0);
    });
}

#[test]
fn r7_want_of_room_forgets_the_oldest_first_counts_it_and_refuses_nothing() {
    check(limit(9), |desk| {
        desk.remember(4);
        let tokens: Vec<_> = (0..3).map(|request| desk.granted(named(request))).collect();
        tokens.iter().rev().for_each(|token| assert_eq!(desk.release(*token), Release::Released));
        let answers = tokens.iter().map(|token| desk.release(*token)).collect::<Vec<_>>();
        assert_eq!(answers, [Release::AlreadyReleased, Release::AlreadyReleased, Release::Ended]);
        // One lease and one request id.
        assert_eq!(desk.status().totals.forgotten, 2);
        assert_eq!(desk.refused(named(0)).reason, Reason::RequestIdSpent);
        desk.granted(named(2));
        // A live lease is never forgotten, however many end after it.
        let old = desk.leases()[0].0;
        for _ in 0..3000 {
            let token = desk.granted(ask(1));
            desk.release(token);
        }
        assert!(matches!(desk.renew(old), Renewal::Renewed { .. }));
        assert!(matches!(desk.acquire(named(2)), Decision::Granted(grant) if grant.replayed));
    });
}

#[test]
fn tokens_grow_by_one_and_an_overflow_carries_into_the_epoch() {
    let last_but_one = FencingToken::from_u64(FencingToken::floor_of(2).as_u64() - 2);
    check_after(last_but_one, limit(9), |desk| {
        assert_eq!(desk.core.last_token(), last_but_one);
        let tokens: Vec<_> = (0..3).map(|_| desk.granted(ask(1))).collect();
        let numbers: Vec<_> = tokens.iter().map(|token| token.as_u64()).collect();
        assert_eq!(numbers, [(1 << 32 | 0xFFFF_FFFF), 2 << 32, 2 << 32 | 1]);
        assert_eq!((desk.core.last_token(), tokens[2].as_u64() >> 63), (tokens[2], 0));
        tokens.iter().for_each(|token| assert_eq!(desk.release(*token), Release::Released));
    });
}

#[test]
fn the_fencing_floor_never_leads_and_catches_up() {
    check(limit(2000), |desk| {
        let tokens: Vec<_> = (0..1500).map(|_| desk.granted(ask(1))).collect();
        let floor = |renewal| match renewal {
            Renewal::Renewed { floor, .. } => floor,
            other => panic!("{other:?}"),
        };
        assert_eq!(floor(desk.renew(tokens[1499])), tokens[0]);
        for nth in (1..1400).chain([0]) {
            desk.release(tokens[nth]);
            assert!(floor(desk.renew(tokens[1499])) <= if nth == 0 { tokens[1400] } else { tokens[0] });
        }
        // The lowest live one is 1,400 tokens on: it may take some calls.
        let floors: Vec<_> = (0..10).map(|_| floor(desk.renew(tokens[1499]))).collect();
        assert!(floors.is_sorted() && floors[9] == tokens[1400], "{floors:?}");
        let granted = desk.granted(ask(1));
        assert!(floor(desk.renew(granted)) == tokens[1400]);
    });
}

#[test]
fn the_fencing_floor_waits_for_one_that_outlives_thousands() {
    check(limit(9), |desk| {
        desk.remember(1);
        let old = desk.granted(ask(1));
        for _ in 0..5000 {
            let Decision::Granted(grant) = desk.acquire(ask(1)) else { panic!("not granted") };
            assert_eq!(grant.floor, old);
            desk.release(grant.token);
        }
        assert!(matches!(desk.renew(old), Renewal::Renewed { floor, .. } if floor == old));
        let released = desk.release(old);
        let next = desk.granted(ask(1));
        assert!(matches!(desk.renew(next), Renewal::Renewed { floor, .. } if floor == next), "{released:?}");
    });
}

#[test]
fn live_leases_can_be_read_from_any_token_on() {
    check(limit(9), |desk| {
        let tokens: Vec<_> = (0..4).map(|_| desk.granted(ask(1))).collect();
        desk.release(tokens[1]);
        let from = |token| desk.core.leases_from(token).map(|held| held.token).collect::<Vec<_>>();
        assert_eq!(from(FencingToken::default()), [tokens[0], tokens[2], tokens[3]]);
        assert_eq!(from(tokens[1]), [tokens[2], tokens[3]]);
        assert_eq!(from(tokens[3]), [tokens[3]]);
        assert_eq!(from(FencingToken::from_u64(u64::MAX)), []);
    });
}
