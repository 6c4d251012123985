//! The bulkhead in this process, with virtual time: what the sources of this project do for one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{SECOND, local, millis, reason, waits_for};
use futures_util::{StreamExt, stream};
use tidegate_client::{Draft, Error, LeaseState, LocalBulkhead, OnCooldown, Priority};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn w01_one_bulkhead_is_shared_through_every_handle() {
    let db = local(1);
    let door = (*db).clone().with_priority(Priority::Critical);
    let permit = db.acquire().await.unwrap();
    assert_eq!(reason(door.with_max_wait(Duration::ZERO).acquire().await), "CONCURRENCY_CAPACITY_EXHAUSTED");
    drop(permit);
    assert_eq!(door.acquire().await.unwrap().bulkhead(), "db");
}

#[tokio::test(start_paused = true)]
async fn w02_settings_have_the_servers_defaults() {
    let status = local(4).status();
    assert_eq!((status.limit, status.start_limit, status.ceiling, status.max_queued), (4, 4, 4, 32));
    assert_eq!(status.max_wait, 2 * SECOND);
    let draft =
        Draft { limit: Some(2), ceiling: Some(9), max_queued: Some(5), max_wait: Some(SECOND), ..Draft::default() };
    let status = LocalBulkhead::with_settings("db", draft).unwrap().status();
    assert_eq!((status.limit, status.ceiling, status.max_queued, status.max_wait), (2, 9, 5, SECOND));
}

#[tokio::test(start_paused = true)]
async fn w03_a_free_permit_is_taken_at_once_then_the_queue_then_a_refusal_with_a_hint() {
    let draft = Draft { limit: Some(1), max_queued: Some(1), max_wait: Some(SECOND), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    let start = Instant::now();
    let _permit = db.acquire().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let waiter = waits_for(&db, &db).await;
    let full = db.acquire().await.unwrap_err();
    assert_eq!((full.reason(), start.elapsed()), ("QUEUE_FULL", Duration::ZERO));
    assert!(full.hint().is_some_and(|hint| hint < 4 * SECOND), "nothing is known: {:?}", full.hint());
    let over = waiter.await.unwrap().unwrap_err();
    assert_eq!((over.reason(), over.hint().is_some()), ("WAIT_TIMEOUT", true));
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + millis(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn w04_without_waiting_it_is_granted_now_or_refused_now() {
    for draft in [
        Draft { limit: Some(1), max_wait: Some(Duration::ZERO), ..Draft::default() },
        Draft { limit: Some(1), max_queued: Some(0), ..Draft::default() },
    ] {
        let db = LocalBulkhead::with_settings("db", draft).unwrap();
        let _permit = db.acquire().await.unwrap();
        assert_eq!(reason(db.acquire().await), "CONCURRENCY_CAPACITY_EXHAUSTED");
    }
}

#[tokio::test(start_paused = true)]
async fn w05_a_cancelled_waiter_takes_no_permit_also_in_the_instant_of_its_grant() {
    let db = local(1);
    let permit = db.acquire().await.unwrap();
    let cancelled = waits_for(&db, &db).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    assert_eq!(db.status().queued, 0);

    // Granted, and dropped before it heard of it: the permit goes on to the next.
    let mut unheard = Box::pin(db.acquire());
    assert!(futures_util::poll!(unheard.as_mut()).is_pending());
    let next = waits_for(&db, &db).await;
    drop(permit);
    drop(unheard);
    drop(next.await.unwrap().unwrap());
    assert_eq!(db.status().running, 0);
}

#[tokio::test(start_paused = true)]
async fn w06_a_freed_permit_goes_to_the_longest_waiter() {
    let db = local(1);
    let mut permit = db.acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waits_for(&db, &db).await);
    }
    for waiter in waiters {
        let token = permit.fencing_token();
        drop(permit);
        permit = waiter.await.unwrap().unwrap();
        assert_eq!(permit.fencing_token(), token + 1, "in the order they came");
    }
}

#[tokio::test(start_paused = true)]
async fn w07_the_limit_moves_and_lowering_keeps_back_permits() {
    let draft = Draft { limit: Some(3), ceiling: Some(4), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    let permits = [db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    db.set_limit(1).unwrap();
    let waiter = waits_for(&db, &db).await;
    assert_eq!((db.status().running, db.status().limit), (2, 1), "nobody is cancelled");
    let [first, second] = permits;
    drop(first);
    assert_eq!(db.status().queued, 1, "kept back");
    drop(second);
    drop(waiter.await.unwrap().unwrap());
    for wrong in [0, 5] {
        let Err(Error::Invalid { field, allowed }) = db.set_limit(wrong) else { panic!("{wrong} is out of range") };
        assert_eq!((field, allowed), ("limit", format!("1 to 4, its ceiling, not {wrong}")));
    }
    assert_eq!(db.status().limit, 1, "unchanged");
}

fn rows(count: u32) -> impl futures_util::Stream<Item = Result<u32, Error>> {
    stream::iter((0..count).map(Ok))
}

#[tokio::test(start_paused = true)]
async fn w08_a_stream_holds_its_permit_from_the_first_poll_to_its_end_failure_or_drop() {
    let db = local(1);
    let running = |expected| assert_eq!(db.status().running, expected);

    let mut whole = Box::pin(db.run_stream(rows(2)));
    running(0);
    assert_eq!(whole.next().await, Some(Ok(0)));
    running(1);
    assert_eq!(whole.next().await, Some(Ok(1)));
    running(1);
    assert_eq!(whole.next().await, None);
    running(0);
    assert_eq!(whole.next().await, None);

    let failing = stream::iter([Ok(1), Err(Error::Cancelled), Ok(2)]);
    let mut failing = Box::pin(db.run_stream(failing));
    assert_eq!(failing.next().await, Some(Ok(1)));
    assert_eq!(failing.next().await, Some(Err(Error::Cancelled)));
    running(0);
    assert_eq!(failing.next().await, None, "after a failure nothing is read");

    let mut dropped = Box::pin(db.run_stream(rows(9)));
    assert_eq!(dropped.next().await, Some(Ok(0)));
    running(1);
    drop(dropped);
    running(0);
}

#[tokio::test(start_paused = true)]
async fn w08_a_stream_that_gets_no_permit_ends_with_the_refusal() {
    let db = local(1);
    let _permit = db.acquire().await.unwrap();
    let mut refused = Box::pin(db.with_max_wait(Duration::ZERO).run_stream(rows(3)));
    assert_eq!(refused.next().await.unwrap().unwrap_err().reason(), "CONCURRENCY_CAPACITY_EXHAUSTED");
    assert_eq!(refused.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn w09_between_two_chunks_the_permit_goes_round_and_a_lowered_limit_reaches_it() {
    let db = local(2);
    let [mut first, second] = [db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    let other = waits_for(&db, &db).await;
    let token = first.fencing_token();
    let turns = tokio::spawn({
        let db = db.clone();
        async move {
            first = db.reacquire(first).await.unwrap();
            first.fencing_token()
        }
    });
    let other = other.await.unwrap().unwrap();
    db.set_limit(1).unwrap();
    assert_eq!(db.status().queued, 1, "behind the other one");
    drop(other);
    assert_eq!((db.status().running, db.status().queued), (1, 1), "the lowered limit reaches it");
    drop(second);
    assert!(turns.await.unwrap() > token + 1);
}

#[tokio::test(start_paused = true)]
async fn w10_page_and_count_take_one_permit_each_and_do_not_deadlock() {
    let db = local(1);
    let page = db.run(async { vec![1, 2, 3] }).await.unwrap();
    let count = db.run(async { 3 }).await.unwrap();
    assert_eq!((page.len(), count), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn w11_everything_is_readable_at_any_time() {
    let db = local(2);
    let _permits = [db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    let _waiter = waits_for(&db, &db).await;
    let status = db.status();
    assert_eq!((&status.name[..], status.limit, status.start_limit, status.ceiling), ("db", 2, 2, 2));
    assert_eq!((status.running, status.queued, status.max_queued, status.max_wait), (2, 1, 16, 2 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn w12_held_back_is_taken_and_reset_in_one_step() {
    let db = local(1);
    let permit = db.acquire().await.unwrap();
    assert_eq!(db.take_held_back(), 0);
    let waiter = waits_for(&db, &db).await;
    let _ = db.with_max_wait(Duration::ZERO).acquire().await;
    assert_eq!((db.take_held_back(), db.take_held_back()), (2, 0));
    drop(permit);
    drop(waiter.await.unwrap().unwrap());
    assert_eq!((db.take_held_back(), db.status().held_back), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn w13_a_block_runs_under_a_permit() {
    let db = local(1);
    let seen = db.clone();
    let output = db.run(async move { seen.status().running }).await.unwrap();
    assert_eq!((output, db.status().running), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn w13_the_work_is_gone_before_its_permit_goes() {
    struct Work(LocalBulkhead, Arc<AtomicU32>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.1.store(self.0.status().running, Ordering::Relaxed);
        }
    }
    let (db, running) = (local(1), Arc::new(AtomicU32::new(9)));
    let work = Work(db.clone(), running.clone());
    let mut cancelled = Box::pin(db.run(async move {
        std::future::pending::<()>().await;
        drop(work);
    }));
    assert!(futures_util::poll!(cancelled.as_mut()).is_pending());
    drop(cancelled);
    assert_eq!((running.load(Ordering::Relaxed), db.status().running), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn l03_reentrant_use_at_limit_one_is_refused_and_no_deadlock() {
    let db = local(1);
    let inner = db.clone();
    let outcome = db.run(async move { inner.run(async { "never" }).await }).await.unwrap();
    assert_eq!(outcome.unwrap_err().reason(), "WAIT_TIMEOUT");
    assert_eq!(db.status().running, 0);
    let inner = db.clone();
    let at_once = db.run(async move { inner.with_max_wait(Duration::ZERO).run(async {}).await }).await.unwrap();
    assert_eq!(at_once.unwrap_err().reason(), "CONCURRENCY_CAPACITY_EXHAUSTED");
}

#[tokio::test(start_paused = true)]
async fn l04_a_cooldown_concerns_its_partition_and_no_other() {
    let db = local(4);
    let [cooling, calm] = ["shop/prod/catalog-api", "shop/prod/orders-api"].map(|name| db.with_partition(name));
    assert_eq!(cooling.report_retry_after(5 * SECOND).await.unwrap(), 5 * SECOND);
    assert_eq!(reason(cooling.acquire().await), "COOLDOWN_ACTIVE");
    drop(calm.acquire().await.unwrap());
    drop(db.acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn l05_every_positive_wait_extends_and_nothing_else_does() {
    let db = local(4);
    db.report_retry_after(Duration::ZERO).await.unwrap();
    assert_eq!(db.cooldown("db"), None);
    db.report_retry_after(3 * SECOND).await.unwrap();
    assert_eq!(db.report_retry_after(SECOND).await.unwrap(), 3 * SECOND, "it never shortens");
    assert_eq!(db.report_retry_after(9 * SECOND).await.unwrap(), 9 * SECOND);
    let mut permit = db.with_partition("other").acquire().await.unwrap();
    permit.set_retry_after(7 * SECOND);
    drop(permit);
    assert_eq!(db.cooldown("other"), Some(7 * SECOND), "told with the Release, for the permit's partition");
}

#[tokio::test(start_paused = true)]
async fn l06_while_it_lasts_work_is_deferred_or_refused_and_never_started() {
    let db = local(4);
    db.report_retry_after(5 * SECOND).await.unwrap();
    let refused = db.acquire().await.unwrap_err();
    assert_eq!(refused.reason(), "COOLDOWN_ACTIVE");
    assert!(refused.hint().unwrap() >= 5 * SECOND);
    assert_eq!(reason(db.with_timeout(SECOND).acquire().await), "COOLDOWN_EXCEEDS_DEADLINE");

    let draft = Draft { limit: Some(4), max_wait: Some(9 * SECOND), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    db.report_retry_after(5 * SECOND).await.unwrap();
    let start = Instant::now();
    drop(db.with_on_cooldown(OnCooldown::Wait).acquire().await.unwrap());
    assert!(start.elapsed() >= 5 * SECOND && start.elapsed() < 5 * SECOND + millis(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn l07_a_partition_is_forgotten_a_while_after_its_pause() {
    let db = local(4);
    db.with_partition("p").report_retry_after(SECOND).await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!((db.cooldown("p"), db.partitions()), (None, 1), "it ramps");
    sleep(Duration::from_mins(2)).await;
    assert_eq!(db.partitions(), 0);
}

#[tokio::test(start_paused = true)]
async fn l08_the_bulkhead_refuses_before_the_cooldown_and_a_refusal_leaves_nothing_taken() {
    let db = local(1);
    let permit = db.acquire().await.unwrap();
    db.report_retry_after(5 * SECOND).await.unwrap();
    assert_eq!(reason(db.with_max_wait(Duration::ZERO).acquire().await), "CONCURRENCY_CAPACITY_EXHAUSTED");
    assert_eq!(reason(db.acquire().await), "COOLDOWN_ACTIVE");
    drop(permit);
    assert_eq!(reason(db.acquire().await), "COOLDOWN_ACTIVE");
    assert_eq!((db.status().running, db.status().queued), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn l10_a_ramp_follows_the_cooldown_all_in_virtual_time() {
    let draft = Draft { limit: Some(4), max_wait: Some(9 * SECOND), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    db.report_retry_after(SECOND).await.unwrap();
    let start = Instant::now();
    let waiting = db.with_on_cooldown(OnCooldown::Wait);
    let mut waiters = Vec::new();
    for _ in 0..2 {
        waiters.push(waits_for(&db, &waiting).await);
    }
    let mut permits = Vec::new();
    for (waiter, seconds) in waiters.into_iter().zip([1, 2]) {
        permits.push(waiter.await.unwrap().unwrap());
        let late = start.elapsed().saturating_sub(seconds * SECOND);
        assert!(late < millis(5) && start.elapsed() >= seconds * SECOND, "one permit, then two: {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s02_priorities_come_first_and_the_last_is_not_starved() {
    let draft = Draft { limit: Some(1), max_wait: Some(8 * SECOND), ..Draft::default() };
    let db = LocalBulkhead::with_settings("db", draft).unwrap();
    let permit = db.acquire().await.unwrap();
    let [sheddable, critical] = [Priority::Sheddable, Priority::Critical].map(|rank| db.with_priority(rank));
    let last = waits_for(&db, &sheddable).await;
    let first = waits_for(&db, &critical).await;
    drop(permit);
    let permit = first.await.unwrap().unwrap();
    // Two aging steps (2 s each) later, newcomers no longer overtake.
    sleep(5 * SECOND).await;
    let late = waits_for(&db, &critical).await;
    drop(permit);
    drop(last.await.unwrap().unwrap());
    drop(late.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_permit_in_this_process_outlives_any_lease() {
    let db = local(1);
    let permit = db.acquire().await.unwrap();
    for _ in 0..50 {
        sleep(Duration::from_mins(7)).await;
        assert_eq!(reason(db.acquire().await), "WAIT_TIMEOUT");
    }
    assert_eq!((permit.state(), db.status().running), (LeaseState::Held, 1));
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_given_back_by_a_panic_an_abort_and_a_losing_select() {
    let db = local(1);
    let held = db.clone();
    let panicking = tokio::spawn(async move {
        let _permit = held.acquire().await.unwrap();
        panic!("on purpose");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let held = db.clone();
    let aborted = tokio::spawn(async move { held.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    assert_eq!(db.status().running, 1);
    aborted.abort();
    let _ = aborted.await;
    tokio::select! {
        _ = db.run(std::future::pending::<()>()) => {}
        () = sleep(SECOND) => {}
    }
    assert_eq!((db.status().running, db.status().queued), (0, 0));
}

#[test]
fn a_permit_is_given_back_by_a_runtime_that_stops() {
    let db = local(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let held = db.clone();
    runtime.spawn(async move { held.run(std::future::pending::<()>()).await });
    runtime.block_on(tokio::task::yield_now());
    assert_eq!(db.status().running, 1);
    drop(runtime);
    assert_eq!(db.status().running, 0);
}

#[tokio::test(start_paused = true)]
async fn bad_values_name_the_field_and_its_range() {
    let Err(Error::Invalid { field, allowed }) = LocalBulkhead::new("db", 0) else { panic!("a limit is at least 1") };
    assert_eq!((field, &allowed[..]), ("limit", "1 to 1000000000, not 0"));
    let refused = local(2).with_permits(3).acquire().await.unwrap_err();
    assert_eq!(refused.reason(), "PERMITS_EXCEED_CEILING");
    assert!(
        refused.to_string().contains("permits must be 1 to 2, the ceiling of the bulkhead, not 3; ask for fewer"),
        "{refused}"
    );
}
