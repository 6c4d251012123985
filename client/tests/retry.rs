//! Trying again, with virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use common::{SECOND, local, millis};
use tidegate_client::{Backoff, Draft, Error, Jitter, LocalBulkhead, Retry, RetryError, Verdict};
use tokio::time::Instant;

/// An error that says itself whether it may be retried.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Failed(Verdict);

fn retry(backoff: Backoff) -> Retry<Failed> {
    Retry::new(backoff, |failed: &Failed| failed.0).seed(7)
}

/// Work that fails in that way each time, and how often it was begun.
fn failing(verdict: Verdict) -> (Arc<AtomicU32>, impl FnMut() -> std::future::Ready<Result<(), Failed>>) {
    let begun = Arc::new(AtomicU32::new(0));
    let counter = begun.clone();
    let work = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Err(Failed(verdict)))
    };
    (begun, work)
}

fn plain(delay: Duration) -> Backoff {
    Backoff::constant(delay)
}

#[tokio::test(start_paused = true)]
async fn l01_the_permit_is_not_held_during_a_delay() {
    let db = local(1);
    let (begun, work) = failing(Verdict::Retry);
    let retrying = tokio::spawn({
        let db = db.clone();
        async move { retry(plain(10 * SECOND)).run(&db, work).await }
    });
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(db.status().running, 0);
    drop(db.with_max_wait(Duration::ZERO).acquire().await.expect("it is free"));
    assert!(retrying.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn q04_a_retry_joins_the_tail_of_its_queue() {
    let db = LocalBulkhead::with_settings(
        "db",
        Draft { limit: Some(1), max_wait: Some(Duration::from_mins(1)), ..Draft::default() },
    )
    .unwrap();
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let retrying = tokio::spawn({
        let (db, order) = (db.clone(), order.clone());
        async move {
            let work = || {
                order.lock().push("retried");
                std::future::ready(Err::<(), _>(Failed(Verdict::Retry)))
            };
            retry(plain(SECOND)).retries(1).run(&db, work).await
        }
    });
    while order.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    // While it sleeps, two others come: one runs, one waits.
    let permit = db.acquire().await.unwrap();
    let other = tokio::spawn({
        let (db, order) = (db.clone(), order.clone());
        async move { db.run(async { order.lock().push("other") }).await }
    });
    while db.status().queued < 2 {
        tokio::time::sleep(millis(100)).await;
    }
    drop(permit);
    other.await.unwrap().unwrap();
    let _ = retrying.await.unwrap();
    assert_eq!(*order.lock(), ["retried", "other", "retried"]);
}

#[tokio::test(start_paused = true)]
async fn q06_two_retries_are_the_first_attempt_and_two_more_for_each_call() {
    let (db, policy) = (local(4), retry(plain(SECOND)).retries(2));
    for _ in 0..2 {
        let (begun, work) = failing(Verdict::Retry);
        let start = Instant::now();
        let failed = policy.run(&db, work).await.unwrap_err();
        assert_eq!(failed, RetryError::Work { error: Failed(Verdict::Retry), attempts: 3 });
        assert_eq!((begun.load(Ordering::Relaxed), start.elapsed()), (3, 2 * SECOND));
    }
}

#[tokio::test(start_paused = true)]
async fn q05_delays_are_spread_by_the_injected_randomness() {
    let db = local(4);
    let mut seen = Vec::new();
    for seed in [1, 1, 2] {
        let policy = retry(Backoff::full_jitter()).retries(4).seed(seed);
        let start = Instant::now();
        policy.run(&db, failing(Verdict::Retry).1).await.unwrap_err();
        assert!(start.elapsed() <= 15 * SECOND);
        seen.push(start.elapsed());
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
}

#[tokio::test(start_paused = true)]
async fn s04_one_budget_covers_queueing_attempts_and_delays() {
    let db = local(1);
    // A delay that would spend it is not begun.
    let (begun, work) = failing(Verdict::Retry);
    let start = Instant::now();
    let failed = retry(plain(SECOND)).retries(9).budget(3 * SECOND).run(&db, work).await.unwrap_err();
    let RetryError::Budget { error: Error::BudgetSpent { budget, spent, delay }, last } = failed else {
        panic!("{failed:?}")
    };
    assert_eq!((budget, spent, delay), (3 * SECOND, 2 * SECOND, SECOND), "spent + delay >= budget");
    assert_eq!((last, begun.load(Ordering::Relaxed)), (Some(Failed(Verdict::Retry)), 3));
    assert_eq!(start.elapsed(), 2 * SECOND, "it fails now instead of sleeping");

    // Queueing counts.
    let _permit = db.acquire().await.unwrap();
    let start = Instant::now();
    let failed = retry(plain(SECOND)).budget(SECOND).run(&db, failing(Verdict::Retry).1).await.unwrap_err();
    assert!(matches!(failed, RetryError::Budget { last: None, .. }), "{failed:?}");
    assert!(start.elapsed() <= SECOND + millis(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn s04_an_attempt_that_outlasts_the_budget_is_dropped() {
    let db = local(1);
    let start = Instant::now();
    let never = std::future::pending::<Result<(), Failed>>;
    let failed = retry(plain(SECOND)).budget(2 * SECOND).run(&db, never).await.unwrap_err();
    assert!(matches!(failed, RetryError::Budget { .. }), "{failed:?}");
    assert_eq!((start.elapsed(), db.status().running), (2 * SECOND, 0));
}

#[tokio::test(start_paused = true)]
async fn s05_what_is_not_retryable_fails_at_once_and_so_does_a_cancel() {
    let db = local(1);
    let (begun, work) = failing(Verdict::Fail);
    let failed = retry(plain(SECOND)).run(&db, work).await.unwrap_err();
    assert_eq!(failed, RetryError::Work { error: Failed(Verdict::Fail), attempts: 1 });
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    assert_eq!(Error::Cancelled.verdict(), Verdict::Fail);
}

#[tokio::test(start_paused = true)]
async fn s06_and_s07_three_quick_attempts_in_virtual_time() {
    let db = local(1);
    let (begun, work) = failing(Verdict::Retry);
    let start = Instant::now();
    retry(Backoff::quick()).run(&db, work).await.unwrap_err();
    assert_eq!(begun.load(Ordering::Relaxed), 3);
    assert!((millis(240)..=millis(360)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn l09_a_wait_that_was_told_is_a_floor_and_cools_the_partition() {
    let db = local(4);
    let shop = db.with_partition("shop/prod/catalog-api");
    let (begun, work) = failing(Verdict::RetryAfter(5 * SECOND));
    let start = Instant::now();
    let backoff = Backoff::exponential(SECOND, SECOND, Jitter::Full);
    let retrying = tokio::spawn(async move { retry(backoff).retries(1).run(&shop, work).await });
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(db.cooldown("shop/prod/catalog-api"), Some(5 * SECOND));
    let failed = retrying.await.unwrap().unwrap_err();
    assert!(matches!(failed, RetryError::Work { attempts: 2, .. }), "{failed:?}");
    assert_eq!((start.elapsed(), begun.load(Ordering::Relaxed)), (5 * SECOND, 2), "never before, and not refused then");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_retried_after_its_hint() {
    let draft = Draft { limit: Some(1), max_queued: Some(0), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    let permit = db.acquire().await.unwrap();
    let retrying = tokio::spawn({
        let db = db.clone();
        async move { retry(plain(Duration::ZERO)).retries(1).run(&db, || async { Ok::<_, Failed>(7) }).await }
    });
    while db.status().held_back == 0 {
        tokio::task::yield_now().await;
    }
    drop(permit);
    let start = Instant::now();
    assert_eq!(retrying.await.unwrap(), Ok(7));
    assert!(start.elapsed() >= millis(50), "the server's hint is a floor: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn y01_and_y02_stored_operations_learn_their_next_time_five_times() {
    let (now, policy) = (SystemTime::UNIX_EPOCH + SECOND, retry(Backoff::stored()).retries(5));
    for done in 0..5 {
        let next = policy.next_time(Failed(Verdict::Retry), done, now).expect("it may be retried");
        let delay = next.duration_since(now).unwrap();
        let middle = SECOND * (1 << done);
        assert!(delay >= middle * 8 / 10 && delay <= middle * 12 / 10, "{done}: {delay:?}");
        assert_eq!(delay.subsec_nanos() % 1_000_000, 0, "whole milliseconds");
    }
    let told = policy.next_time(Failed(Verdict::RetryAfter(Duration::from_hours(1))), 0, now).unwrap();
    assert_eq!(told, now + Duration::from_hours(1));
    assert!(policy.next_time(Failed(Verdict::Retry), 5, now).is_err());
    assert!(policy.next_time(Failed(Verdict::Fail), 0, now).is_err());
}

#[tokio::test(start_paused = true)]
async fn y03_after_the_last_one_it_has_failed_for_good_and_the_hook_runs_once() {
    let rolled_back = Arc::new(AtomicU32::new(0));
    let counter = rolled_back.clone();
    let policy = retry(plain(SECOND)).on_failure(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let db = local(1);
    policy.run(&db, failing(Verdict::Retry).1).await.unwrap_err();
    assert_eq!(rolled_back.load(Ordering::Relaxed), 1);
    let failed = policy.next_time(Failed(Verdict::Retry), 2, SystemTime::UNIX_EPOCH).unwrap_err();
    assert_eq!(failed, RetryError::Work { error: Failed(Verdict::Retry), attempts: 3 });
    assert_eq!(rolled_back.load(Ordering::Relaxed), 2);
    policy.run(&db, || async { Ok::<_, Failed>(()) }).await.unwrap();
    policy.next_time(Failed(Verdict::Retry), 0, SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(rolled_back.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn q07_a_cancel_during_a_delay_never_comes_back() {
    let db = local(1);
    let (begun, work) = failing(Verdict::Retry);
    let cancelled = tokio::time::timeout(SECOND, retry(plain(9 * SECOND)).run(&db, work)).await;
    assert!(cancelled.is_err());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((begun.load(Ordering::Relaxed), db.status().queued), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_zero_says_what_would_be_right() {
    let failed = retry(plain(SECOND)).budget(Duration::ZERO).run(&local(1), failing(Verdict::Retry).1).await;
    assert_eq!(failed.unwrap_err().to_string(), "attempt 0: budget must be more than zero, or none");
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn no_delay_and_no_budget_is_too_long() {
    let now = SystemTime::UNIX_EPOCH;
    let most = Duration::MAX;
    let told = tidegate_client::retry_after("18446744073709551615", now).unwrap();
    assert!(told < Duration::from_secs(1 << 33), "{told:?}");
    for delay in [most, told] {
        let next = retry(plain(delay)).next_time(Failed(Verdict::Retry), 0, now).unwrap();
        assert!(next > now + Duration::from_secs(1 << 31));
    }
    let db = LocalBulkhead::new("db", 1).unwrap();
    retry(plain(SECOND)).budget(most).run(&db, async || Ok(())).await.unwrap();
    assert_eq!(Backoff::exponential(SECOND, SECOND, Jitter::Within(f64::NAN)).delay(1, 0.5), SECOND);
}
