//! Cooldowns and the ramp after them across bulkheads, in paused time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{ask, drain_and_refill, with};
use tidegate_core::{Draft, OnCooldown, Reason};
use tidegate_server::{Admission, Ask, Change, Granted, Refused};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn admission(limit: u32) -> Arc<Admission> {
    with(Draft { limit: Some(limit), max_wait: Some(Duration::from_secs(30)), max_queued: Some(8), ..Draft::default() })
}

fn of(admission: &Admission, partition: &str, on_cooldown: OnCooldown) -> Ask {
    let mut ask = ask(admission, None);
    ask.acquire.partition = Some(partition.into());
    ask.acquire.on_cooldown = on_cooldown;
    ask
}

async fn try_of(admission: &Admission, partition: &str) -> Result<Granted, Refused> {
    let mut ask = of(admission, partition, OnCooldown::Refuse);
    ask.acquire.max_wait = Some(Duration::ZERO);
    admission.acquire(ask).await
}

/// Puts a caller into the queue.
async fn wait_of(
    admission: &Arc<Admission>,
    partition: &str,
    wait: OnCooldown,
) -> JoinHandle<Result<Granted, Refused>> {
    let queued = admission.bulkhead("db").unwrap().status.queued;
    let (waiting, ask) = (admission.clone(), of(admission, partition, wait));
    let call = tokio::spawn(async move { waiting.acquire(ask).await });
    while admission.bulkhead("db").unwrap().status.queued == queued && !call.is_finished() {
        tokio::task::yield_now().await;
    }
    call
}

#[tokio::test(start_paused = true)]
async fn l05_l06_a_cooldown_extends_never_shortens_and_defers_new_work() {
    let admission = admission(4);
    assert_eq!(admission.report("p", Duration::ZERO, "").unwrap(), (Duration::ZERO, false));
    assert_eq!(admission.report("p", millis(3_000), "429").unwrap(), (millis(3_000), true));
    assert_eq!(admission.report("p", millis(1_000), "").unwrap(), (millis(3_000), false));
    let refused = try_of(&admission, "p").await.unwrap_err().refusal;
    assert_eq!((refused.reason, refused.hint), (Reason::CooldownActive, Some(millis(3_000))));
    let mut hasty = of(&admission, "p", OnCooldown::Refuse);
    hasty.acquire.deadline = Some(hasty.received + millis(2_000));
    assert_eq!(admission.acquire(hasty).await.unwrap_err().refusal.reason, Reason::CooldownExceedsDeadline);
    let other = try_of(&admission, "q").await.unwrap();
    assert_eq!(admission.report("p", Duration::MAX, "").unwrap(), (Duration::from_hours(1), true));
    assert_eq!(admission.cooldowns(None, 9)[0].remaining, Duration::from_hours(1));
    assert!(admission.clear_cooldown(&Change::default(), "p") && !admission.clear_cooldown(&Change::default(), "p"));
    let again = try_of(&admission, "p").await.unwrap();
    admission.release(&other.lease_id);
    admission.release(&again.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_are_judged_again_at_once_and_those_that_wait_become_eligible_with_no_other_event() {
    let admission = admission(1);
    let held = try_of(&admission, "q").await.unwrap();
    let refusing = wait_of(&admission, "p", OnCooldown::Refuse).await;
    let waiting = wait_of(&admission, "p", OnCooldown::Wait).await;
    let other = wait_of(&admission, "q", OnCooldown::Refuse).await;
    admission.report("p", millis(5_000), "").unwrap();
    let reported = Instant::now();
    assert_eq!(refusing.await.unwrap().unwrap_err().refusal.reason, Reason::CooldownActive);
    // The cooling head is passed over.
    admission.release(&held.lease_id);
    let other = other.await.unwrap().unwrap();
    admission.release(&other.lease_id);
    let granted = waiting.await.unwrap().unwrap();
    assert!((millis(5_000)..=millis(5_005)).contains(&reported.elapsed()), "{:?}", reported.elapsed());
    admission.release(&granted.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_longer_cooldown_than_the_wait_refuses_and_a_crowd_of_cooling_waiters_leaves_half_the_queue() {
    let admission = admission(1);
    admission.report("p", millis(29_000), "").unwrap();
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(wait_of(&admission, "p", OnCooldown::Wait).await);
    }
    let fifth = wait_of(&admission, "p", OnCooldown::Wait).await.await.unwrap().unwrap_err();
    assert_eq!(fifth.refusal.reason, Reason::QueueFull);
    let free = try_of(&admission, "q").await.unwrap();
    admission.report("p", millis(31_000), "").unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().refusal.reason, Reason::CooldownExceedsDeadline);
    }
    admission.release(&free.lease_id);
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_cooldown_one_then_two_then_four_may_run_in_queue_order() {
    let admission = admission(8);
    admission.report("p", millis(1_000), "").unwrap();
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(wait_of(&admission, "p", OnCooldown::Wait).await);
    }
    let running = || admission.bulkhead("db").unwrap().status.running;
    sleep(millis(1_010)).await;
    assert_eq!(running(), 1);
    let newcomer = try_of(&admission, "p").await.unwrap_err().refusal;
    assert_eq!((newcomer.reason, newcomer.ramp), (Reason::ConcurrencyCapacityExhausted, Some(1)));
    assert!(newcomer.hint.unwrap() >= millis(990));
    let other = try_of(&admission, "q").await.unwrap();
    sleep(millis(1_000)).await;
    assert_eq!(running(), 3);
    sleep(millis(1_000)).await;
    assert_eq!(running(), 5);
    sleep(millis(1_000)).await;
    let more = try_of(&admission, "p").await.unwrap();
    for lease in [other, more] {
        admission.release(&lease.lease_id);
    }
    for call in calls {
        admission.release(&call.await.unwrap().unwrap().lease_id);
    }
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn l07_a_cooldown_is_forgotten_a_minute_after_its_ramp() {
    let admission = admission(1);
    admission.report("p", millis(1_000), "why").unwrap();
    sleep(millis(1_000 + 30_000 + 59_000)).await;
    assert_eq!(admission.cooldowns(None, 9).len(), 1);
    sleep(millis(3_000)).await;
    assert!(admission.cooldowns(None, 9).is_empty());
    drain_and_refill(&admission).await;
}
