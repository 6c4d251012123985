//! The shell in paused time: queueing, ends of waits and leases, stalls, cells made and deleted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{SLACK, TTL, acquire, admission, ask, drain_and_refill, try_acquire, with};
use tidegate_core::{Draft, FencingToken, Reason, Release, Renewal};
use tidegate_server::{Admission, Change, Refused, ServerSettings, Template};
use tokio::time::{Instant, advance, sleep};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits, in paused time, until that many callers are in the queue.
async fn queued(admission: &tidegate_server::Admission, waiters: u32) {
    while admission.bulkhead("db").unwrap().status.queued != waiters {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn w06_a_freed_permit_goes_to_the_longest_waiter() {
    let admission = admission(1);
    let first = acquire(&admission).await.unwrap();
    let mut waiters = Vec::new();
    for waiter in 0..3 {
        let waiting = admission.clone();
        waiters.push(tokio::spawn(async move { acquire(&waiting).await }));
        queued(&admission, waiter + 1).await;
    }
    let mut lease = first;
    for waiter in waiters {
        sleep(millis(100)).await;
        assert_eq!(admission.release(&lease.lease_id), Release::Released);
        lease = waiter.await.unwrap().unwrap();
    }
    assert_eq!(lease.waited.as_millis(), 300);
    admission.release(&lease.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_with_no_other_event_in_the_system() {
    let admission = admission(1);
    let held = try_acquire(&admission).await.unwrap();
    for (max_wait, answer_by, end) in [(700, None, 700), (5_000, Some(321), 321), (90_000, Some(8_765), 8_765)] {
        // The ticker has gone to sleep with nothing to wake for.
        sleep(millis(100)).await;
        let start = Instant::now();
        let mut ask = ask(&admission, None);
        ask.acquire.max_wait = Some(millis(max_wait));
        ask.acquire.answer_by = answer_by.map(|by| ask.received + millis(by));
        let answer =
            tokio::time::timeout(millis(end + 1_000), admission.acquire(ask)).await.expect("an answer in time");
        assert_eq!(answer.unwrap_err().refusal.reason, Reason::WaitTimeout);
        assert!((millis(end)..=millis(end + 5)).contains(&start.elapsed()), "{:?}", start.elapsed());
        admission.renew(&held.lease_id, None).unwrap();
    }
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn an_expiry_hands_over_as_a_release_would() {
    let admission = admission(1);
    let gone = acquire(&admission).await.unwrap();
    let start = Instant::now();
    let next = acquire(&admission).await.unwrap();
    assert!((TTL..=TTL + SLACK).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(admission.renew(&gone.lease_id, None), Some(Renewal::Expired));
    assert_eq!(admission.release(&gone.lease_id), Release::Expired);
    assert!(next.grant.token > gone.grant.token && next.grant.floor == next.grant.token);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn r14_the_sweep_does_all_that_is_due_where_nobody_comes_by() {
    let admission = with(Draft { limit: Some(5_000), ..Draft::default() });
    for number in 0..5_000 {
        let mut ask = ask(&admission, Some(&format!("{number}")));
        ask.acquire.max_wait = Some(Duration::ZERO);
        admission.acquire(ask).await.unwrap();
    }
    let remembered = || admission.server().caps.iter().find(|cap| cap.name == "max_remembered").unwrap().taken;
    // One round of the sweep comes each second.
    sleep(TTL + SLACK + millis(1_000)).await;
    assert_eq!(admission.bulkhead("db").unwrap().status.running, 0);
    assert!(remembered() >= 10_000, "leases and request ids");
    sleep(Duration::from_secs(61)).await;
    assert!(remembered() < 1_000, "{}", remembered());
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_the_server_moves_lease_ends_and_nothing_else() {
    let admission = admission(2);
    let renewed = acquire(&admission).await.unwrap();
    let silent = acquire(&admission).await.unwrap();
    sleep(millis(4_000)).await;
    let waiting = admission.clone();
    let mut next = tokio::spawn(async move {
        let mut ask = ask(&waiting, None);
        ask.acquire.max_wait = Some(millis(20_000));
        waiting.acquire(ask).await
    });
    queued(&admission, 1).await;
    // Stopped for twice the ttl: the wait is over, no lease is.
    advance(TTL * 2).await;
    assert!(matches!(admission.renew(&renewed.lease_id, None), Some(Renewal::Renewed { .. })));
    assert_eq!((&mut next).await.unwrap().unwrap_err().refusal.reason, Reason::WaitTimeout);
    let resumed = Instant::now();
    assert!(matches!(admission.renew(&silent.lease_id, None), Some(Renewal::Renewed { .. })));
    while admission.bulkhead("db").unwrap().status.running > 0 {
        sleep(millis(10)).await;
    }
    assert!((TTL..=TTL + SLACK).contains(&resumed.elapsed()), "{:?}", resumed.elapsed());
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_stall_no_lease_falls_due_and_no_waiter_is_granted_for_a_moment() {
    let admission = admission(1);
    let held = acquire(&admission).await.unwrap();
    let waiting = admission.clone();
    let next = tokio::spawn(async move { acquire(&waiting).await });
    queued(&admission, 1).await;
    advance(millis(3_000)).await;
    let resumed = Instant::now();
    assert_eq!(admission.release(&held.lease_id), Release::Released);
    assert_eq!(try_acquire(&admission).await.unwrap_err().refusal.reason, Reason::ConcurrencyCapacityExhausted);
    let granted = next.await.unwrap().unwrap();
    assert!((millis(50)..=millis(56)).contains(&resumed.elapsed()), "{:?}", resumed.elapsed());
    admission.release(&granted.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn w07_a_moved_limit_wakes_as_many_as_now_fit_and_lowering_takes_none_away() {
    let admission = with(Draft { limit: Some(1), ceiling: Some(9), max_queued: Some(50), ..Draft::default() });
    let held = acquire(&admission).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let waiting = admission.clone();
        waiters.spawn(async move { acquire(&waiting).await });
    }
    queued(&admission, 20).await;
    assert_eq!(
        admission.set_limit(&Change::default(), "db", 10, None).unwrap_err().refusal.invalid.unwrap().field,
        "limit"
    );
    assert_eq!(
        admission.set_limit(&Change::default(), "db", 0, None).unwrap_err().refusal.invalid.unwrap().field,
        "limit"
    );
    let status = admission.set_limit(&Change::default(), "db", 6, None).unwrap().status;
    assert_eq!((status.limit, status.running, status.queued), (6, 6, 15));
    let status = admission.set_limit(&Change::default(), "db", 2, None).unwrap().status;
    assert_eq!((status.limit, status.running, status.queued), (2, 6, 15));
    admission.release(&held.lease_id);
    let status = admission.bulkhead("db").unwrap().status;
    assert_eq!((status.running, status.queued), (5, 15));
    for _ in 0..5 {
        waiters.join_next().await.unwrap().unwrap().unwrap();
    }
    waiters.shutdown().await;
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_nobody_configured_takes_the_default_bulkhead() {
    let admission = admission(1);
    let mut other = ask(&admission, None);
    other.bulkhead = "other".into();
    assert_eq!(admission.acquire(other).await.unwrap_err().refusal.reason, Reason::BulkheadNotFound);
    let settings = Draft { limit: Some(1), ..Draft::default() }.try_into().unwrap();
    admission.create(&Change::default(), "default", settings).unwrap();
    let mut other = ask(&admission, None);
    other.bulkhead = "other".into();
    let granted = admission.acquire(other).await.unwrap();
    assert_eq!(&*granted.bulkhead, "default");
    let leases = admission.leases(None, ("", FencingToken::default()), 9).await.unwrap();
    assert_eq!((&*leases[0].bulkhead, &*leases[0].partition), ("default", "other"));
    admission.bulkhead("other").unwrap_err();
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_bulkhead_made_again_is_another_one_with_higher_tokens() {
    let admission = admission(3);
    let held = acquire(&admission).await.unwrap();
    let reason = |refused: Refused| refused.refusal.reason;
    let delete = || admission.delete(&Change::default(), "db", false).map_err(reason);
    let create = |limit| {
        let settings = Draft { limit: Some(limit), ..Draft::default() }.try_into().unwrap();
        admission.create(&Change::default(), "db", settings).map(drop).map_err(reason)
    };
    assert_eq!(delete(), Err(Reason::BulkheadInUse));
    assert_eq!(create(1), Err(Reason::BulkheadExists));
    admission.release(&held.lease_id);
    assert_eq!((delete(), delete()), (Ok(0), Err(Reason::BulkheadNotFound)));
    assert_eq!(acquire(&admission).await.unwrap_err().refusal.reason, Reason::BulkheadNotFound);
    assert_eq!(admission.renew(&held.lease_id, None), Some(Renewal::Ended));
    assert_eq!(admission.release(&held.lease_id), Release::Ended);
    create(2).unwrap();
    let again = acquire(&admission).await.unwrap();
    assert!(again.grant.token > held.grant.token);
    assert_eq!(admission.release(&held.lease_id), Release::Ended);
    assert_eq!(admission.bulkhead("db").unwrap().status.running, 1);
    drain_and_refill(&admission).await;
}

/// Time is real here, and so are the threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_and_deleting_never_doubles_a_limit() {
    let admission = admission(1);
    let start = Instant::now();
    let [running, grants, over] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (admission, running, grants, over) = (admission.clone(), running.clone(), grants.clone(), over.clone());
        tasks.spawn(async move {
            while over.load(Ordering::SeqCst) == 0 {
                if let Ok(granted) = try_acquire(&admission).await {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two run under limit 1");
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(admission.release(&granted.lease_id), Release::Released);
                    grants.fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let mut deleted = 0;
    let is_enough = |deleted: u32| grants.load(Ordering::SeqCst) > 100 && deleted > 20;
    // For as long as it takes until there was enough of both.
    while start.elapsed() < millis(300) || !is_enough(deleted) && start.elapsed() < millis(30_000) {
        if admission.delete(&Change::default(), "db", false).is_ok() {
            deleted += 1;
            admission
                .create(&Change::default(), "db", Draft { limit: Some(1), ..Draft::default() }.try_into().unwrap())
                .unwrap();
        }
        tokio::task::yield_now().await;
    }
    over.store(1, Ordering::SeqCst);
    tasks.join_all().await;
    assert!(is_enough(deleted), "tested nothing: {grants:?} grants, {deleted} deletions");
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn r13_a_bulkhead_made_from_a_template_goes_when_it_was_idle_unless_an_operator_changed_it() {
    let settings: tidegate_core::Settings = Draft { limit: Some(1), ..Draft::default() }.try_into().unwrap();
    let templates = vec![Template { pattern: "made/*".into(), settings: settings.clone() }];
    let admission = Arc::new(Admission::new(ServerSettings { max_bulkheads: 3, ..Default::default() }, templates));
    admission.create(&Change::default(), "db", settings).unwrap();
    let running = admission.clone();
    tokio::spawn(async move { running.run().await });
    let no_wait = |name: &str| {
        let mut ask = ask(&admission, None);
        ask.bulkhead = name.into();
        ask.acquire.max_wait = Some(Duration::ZERO);
        ask
    };
    let made = admission.acquire(no_wait("made/a")).await.unwrap();
    let kept = admission.acquire(no_wait("made/b")).await.unwrap();
    admission.set_limit(&Change::default(), "made/b", 1, None).unwrap();
    let refused = admission.acquire(no_wait("made/c")).await.unwrap_err().refusal;
    assert_eq!((refused.reason, refused.hint), (Reason::ServerCapReached, Some(millis(1_000))));
    let names = || admission.bulkheads(None, 9).iter().map(|view| view.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["db", "made/a", "made/b"]);
    admission.release(&made.lease_id);
    admission.release(&kept.lease_id);
    // Remembered for a minute, then idle for ten.
    sleep(Duration::from_mins(10)).await;
    assert_eq!(names().len(), 3);
    sleep(Duration::from_secs(65)).await;
    assert_eq!(names(), ["db", "made/b"]);
    let again = admission.acquire(no_wait("made/a")).await.unwrap();
    assert!(again.grant.token > made.grant.token, "its tokens go on above the old ones");
    assert_eq!(admission.renew(&made.lease_id, None), Some(Renewal::Ended));
    admission.release(&again.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn r14_leases_and_waiters_beyond_the_cap_are_refused_and_what_is_given_back_serves_others() {
    let wide: tidegate_core::Settings = Draft { limit: Some(50), ..Draft::default() }.try_into().unwrap();
    let settings = ServerSettings { max_leases: 10, max_remembered: 3, ..Default::default() };
    let admission = Arc::new(Admission::new(settings, Vec::new()));
    admission.create(&Change::default(), "db", wide.clone()).unwrap();
    admission.create(&Change::default(), "other", wide).unwrap();
    let running = admission.clone();
    tokio::spawn(async move { running.run().await });
    let mut held = Vec::new();
    let refused = loop {
        match try_acquire(&admission).await {
            Ok(granted) => held.push(granted),
            Err(refused) => break refused.refusal.reason,
        }
    };
    assert_eq!((held.len(), refused), (10, Reason::ServerCapReached));
    let mut other = ask(&admission, None);
    other.bulkhead = "other".into();
    assert_eq!(admission.acquire(other).await.unwrap_err().refusal.reason, Reason::ServerCapReached);
    for granted in held {
        assert_eq!(admission.release(&granted.lease_id), Release::Released);
    }
    // Nothing was refused for want of memory; the oldest were forgotten.
    assert_eq!(admission.bulkhead("db").unwrap().status.totals.forgotten, 7);
    sleep(millis(2_500)).await;
    let mut elsewhere = Vec::new();
    for _ in 0..9 {
        let mut other = ask(&admission, None);
        other.bulkhead = "other".into();
        elsewhere.push(admission.acquire(other).await.unwrap());
    }
    assert!(elsewhere.iter().all(|granted| admission.release(&granted.lease_id) == Release::Released));
}
