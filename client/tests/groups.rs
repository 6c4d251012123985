//! Groups, the same work once, and work that belongs to something; with virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{SECOND, local, waits_for};
use tidegate_client::{Draft, Error, Groups, LocalBulkhead, Mode, Scope, SingleFlight};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

/// A bulkhead with that limit, and up to 6, where waits are long.
fn patient(limit: u32) -> LocalBulkhead {
    let draft = Draft { limit: Some(limit), ceiling: Some(6), max_wait: Some(60 * SECOND), ..Draft::default() };
    LocalBulkhead::with_settings("api", draft).unwrap()
}

/// Begins so many pieces of work that take a second; lets them begin.
async fn begin(groups: &Groups, name: &'static str, count: usize) -> Vec<tokio::task::JoinHandle<Duration>> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..count {
        let groups = groups.clone();
        tasks.push(tokio::spawn(async move {
            groups.get(name).run(async { sleep(SECOND).await }).await.unwrap();
            start.elapsed()
        }));
        yield_now().await;
    }
    tasks
}

fn numbers(groups: &Groups, name: &str) -> (usize, usize, usize) {
    let status = groups.named(name).unwrap().status();
    (status.running, status.waiting, status.executions)
}

#[tokio::test(start_paused = true)]
async fn q01_twenty_started_at_limit_five_run_five_at_a_time_in_order() {
    let groups = Groups::builder().limit(5).build().unwrap();
    let tasks = begin(&groups, "any", 20).await;
    assert_eq!(numbers(&groups, "default"), (5, 15, 20));
    let mut ends = Vec::new();
    for task in tasks {
        ends.push(task.await.unwrap().as_secs());
    }
    let in_order: Vec<u64> = (0..20).map(|number| 1 + number / 5).collect();
    assert_eq!(ends, in_order);
    assert_eq!(numbers(&groups, "default"), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn q02_without_any_limit_all_run() {
    let groups = Groups::builder().build().unwrap();
    for task in begin(&groups, "any", 1_000).await {
        assert_eq!(task.await.unwrap(), SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn q03_groups_are_independent_and_the_rest_runs_in_the_default_one() {
    let groups = Groups::builder().limit(2).group("images", patient(1)).build().unwrap();
    let mut tasks = begin(&groups, "images", 3).await;
    tasks.extend(begin(&groups, "no such group", 3).await);
    assert_eq!((numbers(&groups, "images"), numbers(&groups, "default")), ((1, 2, 3), (2, 1, 3)));
    for task in tasks {
        task.await.unwrap();
    }
    let explicit = Groups::builder().limit(2).default_group(local(3)).build().unwrap();
    let tasks = begin(&explicit, "", 5).await;
    assert_eq!(numbers(&explicit, "default"), (3, 2, 5), "the explicit default wins over the general limit");
    drop(tasks);
}

#[tokio::test(start_paused = true)]
async fn q03_a_group_called_default_is_the_default_one() {
    let one = LocalBulkhead::new("one", 1).unwrap();
    let groups = Groups::builder().group("default", one.clone()).build().unwrap();
    let _permit = one.acquire().await.unwrap();
    for name in ["default", "whichever"] {
        let refused = groups.get(name).run(async {}).await;
        assert!(refused.is_err(), "{name} runs under the limit of the default group");
    }
    assert_eq!(groups.status().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn q09_diagnostics_are_numbers_and_names_of_groups() {
    let groups = Groups::builder().limit(1).group("images", local(1)).build().unwrap();
    let _tasks = begin(&groups, "images", 2).await;
    let status = groups.status();
    assert_eq!(status.iter().map(|group| &group.name[..]).collect::<Vec<_>>(), ["default", "images"]);
    let shown = format!("{:?}", status[1]);
    assert_eq!(shown, r#"GroupStatus { name: "images", running: 1, waiting: 1, executions: 2 }"#);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_group_cannot_be_watched_or_changed() {
    let groups = Groups::builder().group("images", local(1)).build().unwrap();
    let error = groups.named("imgaes").unwrap_err();
    assert!(error.to_string().contains(r#"no group is called "imgaes"; there are: images, default"#), "{error}");
    assert!(Groups::builder().limit(0).build().unwrap_err().to_string().starts_with("limit must be 1 to"));
}

#[tokio::test(start_paused = true)]
async fn s01_the_limit_moves_while_running_and_a_pause_keeps_the_places() {
    let api = patient(2);
    let groups = Groups::builder().group("api", api.clone()).build().unwrap();
    let tasks = begin(&groups, "api", 9).await;
    assert_eq!(numbers(&groups, "api").0, 2);
    api.set_limit(6).unwrap();
    yield_now().await;
    assert_eq!(numbers(&groups, "api").0, 6);
    api.set_mode(Mode::Paused, "");
    sleep(10 * SECOND).await;
    assert_eq!(numbers(&groups, "api"), (0, 3, 3), "those that ran have ended, the others kept their places");
    api.set_mode(Mode::Enforcing, "");
    let mut ends = Vec::new();
    for task in tasks {
        ends.push(task.await.unwrap().as_secs());
    }
    assert_eq!(ends, [1, 1, 1, 1, 1, 1, 11, 11, 11]);
    api.set_mode(Mode::Closed, "night shift");
    let closed = api.acquire().await.unwrap_err();
    assert!(closed.to_string().contains("night shift"), "{closed}");
}

#[tokio::test(start_paused = true)]
async fn s03_the_same_key_runs_once_and_is_free_again_afterwards() {
    let (flight, begun) = (SingleFlight::default(), Arc::new(AtomicU32::new(0)));
    let run = || {
        let begun = begun.clone();
        flight.run("user/7", async move {
            sleep(SECOND).await;
            begun.fetch_add(1, Ordering::Relaxed) + 1
        })
    };
    let (one, two, three) = tokio::join!(run(), run(), run());
    assert_eq!(([one, two, three], flight.running()), ([1, 1, 1], 0));
    assert_eq!(run().await, 2, "the key is free again");
    drop(run());
    assert_eq!((flight.running(), begun.load(Ordering::Relaxed)), (0, 2), "nobody awaits it: it is dropped");
}

#[tokio::test(start_paused = true)]
async fn q08_shared_work_survives_one_observers_leaving() {
    let (db, flight) = (local(1), SingleFlight::default());
    let run = || {
        let db = db.clone();
        flight.run("key", async move { db.run(sleep(5 * SECOND)).await })
    };
    let first = tokio::spawn(run());
    yield_now().await;
    let second = tokio::spawn(run());
    yield_now().await;
    assert_eq!(db.status().running, 1);
    first.abort();
    let start = Instant::now();
    assert_eq!(second.await.unwrap(), Ok(()));
    assert_eq!((start.elapsed(), db.status().running), (5 * SECOND, 0));
}

#[tokio::test(start_paused = true)]
async fn q08_disposing_a_scope_cancels_what_it_has_and_nothing_waiting_starts() {
    let (db, scope) = (local(1), Scope::new());
    let started = Arc::new(AtomicU32::new(0));
    let jobs: Vec<_> = (0..3)
        .map(|_| {
            let started = started.clone();
            scope.spawn(&db, move |cancelled| async move {
                started.fetch_add(1, Ordering::Relaxed);
                cancelled.cancelled().await;
            })
        })
        .collect();
    while db.status().queued < 2 {
        yield_now().await;
    }
    drop(scope);
    for job in jobs {
        assert_eq!(job.outcome().await, Err(Error::Cancelled));
    }
    while db.status().running > 0 || db.status().queued > 0 {
        yield_now().await;
    }
    assert_eq!(started.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn q07_a_cancelled_job_answers_at_once_and_its_permit_goes_when_the_work_has_ended() {
    let (db, scope) = (local(1), Scope::new());
    let (end, ends) = oneshot::channel::<()>();
    let job = scope.spawn(&db, |cancelled| async move {
        cancelled.cancelled().await;
        let _ = ends.await;
    });
    while db.status().running == 0 {
        yield_now().await;
    }
    job.cancel();
    assert_eq!(job.outcome().await, Err(Error::Cancelled));
    let next = waits_for(&db, &db).await;
    assert_eq!(db.status().running, 1, "the work has not ended");
    end.send(()).unwrap();
    drop(next.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn q07_a_job_that_is_cancelled_while_it_waits_is_never_started() {
    let (db, scope) = (local(1), Scope::new());
    let permit = db.acquire().await.unwrap();
    let job = scope.spawn(&db, |_| async { unreachable!("it was cancelled") });
    while db.status().queued == 0 {
        yield_now().await;
    }
    job.cancel();
    assert_eq!(job.outcome().await, Err(Error::Cancelled));
    while db.status().queued > 0 {
        yield_now().await;
    }
    drop(permit);
    assert_eq!(scope.run(db.run(async { 7 })).await, Ok(Ok(7)), "only that job was cancelled");
    scope.cancel();
    assert_eq!(scope.run(db.run(async { 7 })).await, Err(Error::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_says_so_and_gives_its_permit_back() {
    let (db, scope) = (local(1), Scope::new());
    let job = scope.spawn(&db, |_| async { panic!("on purpose") });
    assert_eq!(job.outcome().await, Err::<(), _>(Error::Panicked));
    assert_eq!(db.status().running, 0);
}
