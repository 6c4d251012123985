//! The largest and the smallest of everything: nothing panics, nothing wraps (R3, R6).

use std::time::Duration;

use tidegate_core::{
    Acquire, Decision, Draft, FencingToken, Instant, MAX_CEILING, MAX_LEASE_TTL, MAX_WAIT, OnCooldown, Priority, Stall,
};

use super::desk::{Desk, ask, check, check_after, key, limit, seconds};

const SPANS: [Option<Duration>; 4] = [None, Some(Duration::ZERO), Some(Duration::from_nanos(1)), Some(Duration::MAX)];
const INSTANTS: [Option<Instant>; 4] =
    [None, Some(Instant::ORIGIN), Some(Instant::from_nanos(u64::MAX - 1)), Some(Instant::NEVER)];

/// Asks with every mix of extremes.
fn storm(desk: &mut Desk) {
    for max_wait in SPANS {
        for ttl in SPANS {
            for deadline in INSTANTS {
                for answer_by in INSTANTS {
                    for priority in [Priority::Critical, Priority::Sheddable] {
                        let request = Some(key(u64::MAX));
                        let ask = Acquire { max_wait, ttl, deadline, answer_by, priority, request, ..ask(u32::MAX) };
                        desk.acquire(ask.clone());
                        desk.acquire(Acquire { permits: 1, ..ask });
                    }
                }
            }
        }
    }
    desk.release_request(u64::MAX);
    desk.advance();
}

#[test]
fn the_ends_of_time_and_the_longest_spans_never_panic() {
    let draft = Draft {
        ceiling: Some(MAX_CEILING),
        max_wait: Some(MAX_WAIT),
        aging_step: Some(MAX_WAIT),
        lease_ttl: Some(MAX_LEASE_TTL),
        ..limit(2)
    };
    check(draft, |desk| {
        for nanos in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            desk.now = Instant::from_nanos(nanos);
            storm(desk);
            let tokens: Vec<_> = desk.leases().iter().map(|(token, _)| *token).collect();
            for token in tokens {
                desk.renew(token);
            }
            let _ = desk.core.next_deadline();
        }
    });
}

#[test]
fn the_ends_of_time_as_ends_of_cooldowns_never_panic() {
    let draft = Draft { max_wait: Some(MAX_WAIT), ramp_step: Some(seconds(60)), ..limit(2) };
    check(Draft { ceiling: Some(MAX_CEILING), ..draft }, |desk| {
        for nanos in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            desk.now = Instant::from_nanos(nanos);
            desk.acquire(ask(2));
            for cooldown in INSTANTS {
                for on_cooldown in [OnCooldown::Refuse, OnCooldown::Wait] {
                    for partition in [None, Some("a".into())] {
                        desk.acquire(Acquire { partition, cooldown, on_cooldown, ..ask(1) });
                    }
                }
                let step = desk.core.cool(desk.now, Some("a"), cooldown.unwrap_or_default());
                desk.keep(step.effects);
                desk.set_limit(MAX_CEILING).unwrap();
                desk.set_limit(1).unwrap();
                let _ = desk.core.next_deadline();
            }
            desk.calm(Some("a"));
            desk.calm(None);
        }
    });
}

#[test]
fn a_stall_longer_than_time_itself_never_panics() {
    for (total, resumed) in
        [(seconds(1), Instant::NEVER), (Duration::MAX, Instant::ORIGIN), (Duration::MAX, Instant::NEVER)]
    {
        check(limit(2), |desk| {
            let token = desk.granted(ask(1));
            desk.now = Instant::from_nanos(5);
            desk.core.forgive(Stall { total, resumed });
            storm(desk);
            desk.renew(token);
            desk.now = Instant::NEVER;
            storm(desk);
        });
    }
}

#[test]
fn the_highest_ceiling_can_be_taken_whole() {
    check(Draft { limit: Some(3), ceiling: Some(MAX_CEILING), ..limit(3) }, |desk| {
        desk.set_limit(MAX_CEILING).unwrap();
        let one = desk.granted(ask(1));
        let rest = desk.granted(ask(MAX_CEILING - 1));
        let all = desk.queued(ask(MAX_CEILING));
        assert_eq!(desk.running(), MAX_CEILING);
        desk.release(rest);
        desk.release(one);
        let token = desk.handed_to(all);
        desk.set_limit(1).unwrap();
        assert!(matches!(desk.acquire(Acquire { max_wait: Some(seconds(0)), ..ask(1) }), Decision::Refused(_)));
        desk.release(token);
    });
}

#[test]
fn the_last_epoch_is_below_the_sign_bit() {
    check_after(FencingToken::floor_of(u32::MAX), limit(2), |desk| {
        let token = desk.granted(ask(1));
        assert_eq!(token.as_u64(), (0x7FFF_FFFF << 32) + 1);
    });
}
