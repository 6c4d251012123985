//! Races at the edge, ten thousand of each, with real threads and real time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{ask, refill, with};
use tidegate_core::{Draft, OnCooldown, Reason, Release, Renewal};
use tidegate_server::{Admission, Change, Granted};
use tokio::time::Instant;

const RACES: u32 = 10_000;
/// The most, where one side of a race waits for the other.
const LONGEST: u32 = 100 * RACES;
const TTL: Duration = Duration::from_secs(2);
/// How often to try, each time with half as many, since a busy machine may be late for all of the ends, or so slow that
/// what was renewed first has ended before the last one was.
const ATTEMPTS: u32 = 6;

fn admission(limit: u32) -> Arc<Admission> {
    let settings = Draft { limit: Some(limit), ceiling: Some(4), lease_ttl: Some(TTL), ..Draft::default() };
    with(Draft { max_queued: Some(1_000), max_wait: Some(Duration::from_mins(1)), ..settings })
}

/// In how many bulkheads: the invariants, checked at each call, look at every lease of one.
const BULKHEADS: u32 = 100;

/// A lease, when it was granted, and how long the server had stood still until then.
type Held = (Granted, Instant, Duration);

async fn leases(admission: &Admission, races: u32) -> Vec<Held> {
    let settings = Draft { limit: Some(RACES / BULKHEADS), lease_ttl: Some(TTL), ..Draft::default() };
    for number in 0..BULKHEADS {
        admission.create(&Change::default(), &format!("db/{number}"), settings.clone().try_into().unwrap()).unwrap();
    }
    let mut leases = Vec::new();
    for number in 0..races {
        let mut ask = ask(admission, None);
        ask.bulkhead = format!("db/{}", number % BULKHEADS);
        leases.push((admission.acquire(ask).await.unwrap(), Instant::now(), admission.clock().stalled()));
    }
    leases
}

/// Permits running and leases expired in all of them.
fn sums(admission: &Admission) -> (usize, usize) {
    let views = admission.bulkheads(None, 1_000);
    let sum = |of: fn(&tidegate_core::Status) -> usize| views.iter().map(|view| of(&view.status)).sum();
    (sum(|status| status.running as usize), sum(|status| usize::try_from(status.totals.expired).unwrap()))
}

/// Calls each within 5 ms of the end of its lease, on a thread of its own: some come before it and some after. Answers when
/// it began, too.
async fn at_the_end<T: Send + 'static>(
    admission: &Arc<Admission>,
    leases: Vec<Held>,
    call: impl Fn(&Admission, &str) -> T + Send + 'static,
) -> (Instant, Vec<T>) {
    let admission = admission.clone();
    tokio::task::spawn_blocking(move || {
        let offset = |number: usize| Duration::from_micros((number as u64 * 7_919) % 10_000);
        let due =
            |(number, (granted, at, stalled))| (at + TTL - Duration::from_millis(5) + offset(number), stalled, granted);
        let mut calls: Vec<(Instant, Duration, Granted)> = leases.into_iter().enumerate().map(due).collect();
        calls.sort_by_key(|(due, ..)| *due);
        let (start, mut answers) = (Instant::now(), Vec::new());
        let first = calls.first().map_or(start, |(due, ..)| *due);
        for (due, stalled, granted) in calls {
            // A stall since then moved the end.
            while Instant::now() < due + admission.clock().stalled().saturating_sub(stalled) {
                std::hint::spin_loop();
            }
            answers.push(call(&admission, &granted.lease_id));
        }
        (first.max(start), answers)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_renewal_at_the_end_is_answered_renewed_only_if_it_is_in_the_count() {
    for attempt in 0..ATTEMPTS {
        let (admission, races) = (admission(1), RACES >> attempt);
        let leases = leases(&admission, races).await;
        let renew = |admission: &Admission, lease_id: &str| admission.renew(lease_id, None).unwrap();
        let (first, answers) = at_the_end(&admission, leases, renew).await;
        let renewed = answers.iter().filter(|answer| matches!(answer, Renewal::Renewed { .. })).count();
        let expired = answers.iter().filter(|answer| **answer == Renewal::Expired).count();
        assert_eq!(renewed + expired, races as usize);
        // A renewed lease lasts two seconds, and all renewals were within half a second or so; else this is too slow to tell.
        let sums = sums(&admission);
        let is_quick = first.elapsed() < TTL;
        if is_quick {
            assert_eq!(sums, (renewed, expired));
        }
        common::drain_and_refill(&admission).await;
        if is_quick && renewed.min(expired) > races as usize / 100 {
            return;
        }
    }
    panic!("tested nothing: the machine never let both happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_release_at_the_end_frees_once() {
    for attempt in 0..ATTEMPTS {
        let (admission, races) = (admission(1), RACES >> attempt);
        let leases = leases(&admission, races).await;
        let (_, answers) = at_the_end(&admission, leases, Admission::release).await;
        let released = answers.iter().filter(|answer| **answer == Release::Released).count();
        let expired = answers.iter().filter(|answer| **answer == Release::Expired).count();
        assert_eq!(sums(&admission), (0, expired));
        assert_eq!(released + expired, races as usize);
        refill(&admission).await;
        if released.min(expired) > races as usize / 100 {
            return;
        }
    }
    panic!("tested nothing: the machine never let both happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_moved_limit_against_releases_never_lets_more_run_than_the_limit_was() {
    let admission = admission(4);
    let (running, moves) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (admission, running, moves) = (admission.clone(), running.clone(), moves.clone());
        tasks.spawn(async move {
            // Also until there were enough moves: a machine that stalls may have let only one side go on.
            let enough = |round| round >= RACES / 8 && moves.load(Ordering::Relaxed) > 100;
            for _ in (0..LONGEST).take_while(|round| !enough(*round)) {
                let granted = admission.acquire(ask(&admission, None)).await.unwrap();
                assert!(running.fetch_add(1, Ordering::SeqCst) < 4, "more run than the limit ever was");
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(admission.release(&granted.lease_id), Release::Released);
            }
        });
    }
    while !tasks.is_empty() {
        let limit = 1 + moves.fetch_add(1, Ordering::Relaxed) % 4;
        admission.set_limit(&Change::default(), "db", limit, None).unwrap();
        while let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
        tokio::task::yield_now().await;
    }
    assert!(moves.load(Ordering::Relaxed) > 100, "tested nothing: {moves:?} moves");
    admission.set_limit(&Change::default(), "db", 4, None).unwrap();
    refill(&admission).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p18_nothing_of_a_partition_is_granted_to_a_call_after_its_report() {
    let admission = admission(1);
    let granted = Arc::new(AtomicU32::new(0));
    let (reporter, enough) = (admission.clone(), granted.clone());
    let reporter = tokio::task::spawn_blocking(move || {
        // Also until there were enough grants.
        let enough = |round| round >= RACES && enough.load(Ordering::Relaxed) > 100;
        for round in (0..LONGEST).take_while(|round| !enough(*round)) {
            let partition = format!("{}", round % 64);
            let (_, extended) = reporter.report(&partition, Duration::from_mins(1), "").unwrap();
            // The call below is received after the report was answered.
            let mut ask = ask(&reporter, None);
            ask.acquire.partition = Some(partition.as_str().into());
            ask.acquire.max_wait = Some(Duration::ZERO);
            let refused = futures_util::FutureExt::now_or_never(reporter.acquire(ask)).unwrap().unwrap_err();
            let reason = refused.refusal.reason;
            assert!(matches!(reason, Reason::CooldownActive | Reason::ConcurrencyCapacityExhausted), "{reason:?}");
            assert!(extended && reporter.clear_cooldown(&Change::default(), &partition));
        }
    });
    let mut round = 0_u32;
    while !reporter.is_finished() {
        let mut ask = ask(&admission, None);
        ask.acquire.partition = Some(format!("{}", round % 64).into());
        ask.acquire.on_cooldown = OnCooldown::Refuse;
        round = round.wrapping_add(1);
        if let Ok(lease) = admission.acquire(ask).await {
            granted.fetch_add(1, Ordering::Relaxed);
            admission.release(&lease.lease_id);
        }
        tokio::task::yield_now().await;
    }
    reporter.await.unwrap();
    assert!(granted.load(Ordering::Relaxed) > 100, "tested nothing: {granted:?} granted beside the reports");
    refill(&admission).await;
}
