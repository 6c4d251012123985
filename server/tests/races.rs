//! Calls that vanish at the worst moment.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::task::Poll;

use common::{acquire, admission, ask, refill, rounds, try_acquire};
use futures_util::{FutureExt, poll};
use tidegate_core::{Reason, Release};

/// The permit was sent to a waiter whose call goes before it looks: it is the next one's, at once.
#[tokio::test(start_paused = true)]
async fn w05_a_permit_handed_to_a_vanished_waiter_goes_to_the_next_one() {
    let admission = admission(1);
    for round in 0..10_000 {
        let id = format!("{round}");
        let held = acquire(&admission).await.unwrap();
        let mut vanishing = Box::pin(admission.acquire(ask(&admission, Some(&id))));
        let mut next = Box::pin(acquire(&admission));
        assert!(poll!(&mut vanishing).is_pending() && poll!(&mut next).is_pending());
        admission.release(&held.lease_id);
        drop(vanishing);
        let granted = next.now_or_never().expect("granted at once").unwrap();
        assert_eq!(admission.release(&granted.lease_id), Release::Released);
        // Its request id counts as never granted: it is free, not spent.
        let again = admission.acquire(ask(&admission, Some(&id))).await.unwrap();
        assert!(!again.grant.replayed);
        admission.release(&again.lease_id);
        assert_eq!(admission.release_request("db", &id).unwrap(), Release::AlreadyReleased);
        tokio::task::yield_now().await;
    }
    refill(&admission).await;
}

/// A repeat was answered with the very lease whose first call then vanishes: it stays.
#[tokio::test(start_paused = true)]
async fn what_a_repeat_was_told_the_drop_of_the_original_does_not_free() {
    let admission = admission(1);
    for round in 0..10_000 {
        let id = format!("{round}");
        let held = acquire(&admission).await.unwrap();
        let mut original = Box::pin(admission.acquire(ask(&admission, Some(&id))));
        assert!(poll!(&mut original).is_pending());
        admission.release(&held.lease_id);
        let repeat = admission.acquire(ask(&admission, Some(&id))).await.unwrap();
        assert!(repeat.grant.replayed);
        drop(original);
        try_acquire(&admission).await.expect_err("the repeat holds the only permit");
        assert_eq!(admission.release(&repeat.lease_id), Release::Released);
    }
    refill(&admission).await;
}

/// A repeat took the place of a waiting call, which can from then on neither withdraw it nor give its grant back.
#[tokio::test(start_paused = true)]
async fn the_drop_of_a_superseded_call_changes_nothing() {
    let admission = admission(1);
    for round in 0..10_000 {
        let id = format!("{round}");
        let held = acquire(&admission).await.unwrap();
        let mut original = Box::pin(admission.acquire(ask(&admission, Some(&id))));
        assert!(poll!(&mut original).is_pending());
        let mut repeat = Box::pin(admission.acquire(ask(&admission, Some(&id))));
        assert!(poll!(&mut repeat).is_pending());
        if round % 2 == 0 {
            let refused = original.await.unwrap_err();
            assert_eq!(refused.refusal.reason, Reason::Superseded);
            admission.release(&held.lease_id);
        } else {
            admission.release(&held.lease_id);
            drop(original);
        }
        // A poll may be put off to let other tasks run; not after a yield.
        tokio::task::yield_now().await;
        let Poll::Ready(Ok(granted)) = poll!(&mut repeat) else { panic!("the repeat has the place") };
        assert_eq!(admission.release(&granted.lease_id), Release::Released);
    }
    refill(&admission).await;
}

/// The same with threads and real time: grants race with drops, releases with repeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_permit_is_lost_where_drops_race_with_grants() {
    let admission = admission(2);
    let mut tasks = tokio::task::JoinSet::new();
    let rounds = rounds(2_000, 10_000, 200_000);
    for task in 0..4_usize {
        let admission = admission.clone();
        tasks.spawn(async move {
            let (mut granted, mut dropped) = (0, 0);
            for round in 0..rounds {
                let id = format!("{}-{round}", task / 2);
                let request_id = (round % 3 == 0).then_some(id.as_str());
                let mut acquiring = Box::pin(admission.acquire(ask(&admission, request_id)));
                let mut answer = Poll::Pending;
                for _ in 0..(round * 7 + task) % 4 {
                    answer = poll!(&mut acquiring);
                    if answer.is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(acquiring);
                match answer {
                    Poll::Ready(Ok(lease)) => {
                        granted += 1;
                        if round % 5 > 0 {
                            tokio::task::yield_now().await;
                        }
                        admission.release(&lease.lease_id);
                    }
                    Poll::Ready(Err(_)) => {}
                    Poll::Pending => dropped += 1,
                }
            }
            (granted, dropped)
        });
    }
    let ends = tasks.join_all().await;
    let (granted, dropped) = ends.iter().fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1));
    assert!(granted > 1000 && dropped > 100, "tested nothing: {granted} granted, {dropped} dropped");
    common::drain_and_refill(&admission).await;
}
