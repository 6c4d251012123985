//! What operators do, seen from the shell in paused time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{TTL, acquire, admission, ask, drain_and_refill, try_acquire};
use tidegate_core::{Draft, Mode, Reason, Release, Renewal, Settings};
use tidegate_server::{Admission, Change, Plan, ServerSettings, Template};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_cell_made_while_the_server_drains_lets_nobody_in() {
    let settings = Draft { limit: Some(1), ..Draft::default() }.try_into().unwrap();
    let templates = vec![Template { pattern: "made/*".into(), settings }];
    let admission = Arc::new(Admission::new(ServerSettings::default(), templates));
    let made = |name: &str| {
        let mut ask = ask(&admission, None);
        ask.bulkhead = name.into();
        ask
    };
    let before = admission.acquire(made("made/a")).await.unwrap();
    admission.drain();
    assert!(admission.is_draining());
    for name in ["made/a", "made/b"] {
        assert_eq!(admission.acquire(made(name)).await.unwrap_err().refusal.reason, Reason::Draining, "{name}");
    }
    // Who holds a lease goes on.
    assert_eq!(admission.running(), 1);
    assert!(matches!(admission.renew(&before.lease_id, None), Some(Renewal::Renewed { .. })));
    assert_eq!(admission.release(&before.lease_id), Release::Released);
    assert_eq!(admission.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_a_live_lease_is_answered_also_while_the_server_drains() {
    let admission = admission(1);
    let held = admission.acquire(ask(&admission, Some("r"))).await.unwrap();
    admission.drain();
    let again = admission.acquire(ask(&admission, Some("r"))).await.unwrap();
    assert_eq!((again.grant.token, again.grant.replayed), (held.grant.token, true));
    assert_eq!(try_acquire(&admission).await.unwrap_err().refusal.reason, Reason::Draining);
}

#[tokio::test(start_paused = true)]
async fn s01_a_paused_bulkhead_keeps_places_and_their_ends_and_goes_on_in_order() {
    let admission = admission(1);
    admission.set_mode(&Change::default(), "db", Mode::Paused).unwrap();
    let waiter = tokio::spawn({
        let admission = admission.clone();
        async move { acquire(&admission).await }
    });
    sleep(Duration::from_secs(29)).await;
    assert!(!waiter.is_finished(), "nothing is granted, nothing is refused");
    admission.set_mode(&Change::default(), "db", Mode::Enforcing).unwrap();
    let granted = waiter.await.unwrap().unwrap();
    assert_eq!(granted.waited.as_secs(), 29);
    admission.release(&granted.lease_id);
    // Paused past the end of a wait: the wait ends all the same.
    admission.set_mode(&Change::default(), "db", Mode::Paused).unwrap();
    assert_eq!(acquire(&admission).await.unwrap_err().refusal.reason, Reason::WaitTimeout);
    admission.set_mode(&Change::default(), "db", Mode::Enforcing).unwrap();
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn the_audit_remembers_the_latest_ten_thousand_changes_and_no_more() {
    const REMEMBERED: usize = 10_000;
    let admission = admission(1);
    let remembered = |before| {
        let events = admission.audit_events(None, before, usize::MAX);
        events.into_iter().map(|event| event.id).collect::<Vec<_>>()
    };
    let first = remembered(None)[0];
    for change in 1..REMEMBERED as u64 + 100 {
        let mode = if change % 2 == 0 { Mode::Enforcing } else { Mode::Paused };
        admission.set_mode(&Change::default(), "db", mode).unwrap();
    }
    let ids = remembered(None);
    let newest = first + REMEMBERED as u64 + 99;
    assert_eq!(ids, (newest - REMEMBERED as u64 + 1..=newest).rev().collect::<Vec<_>>(), "the oldest are forgotten");
    // A list that was read up to there goes on with nothing.
    assert!(remembered(ids.last().copied()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn shadow_grants_all_and_tells_what_enforcing_would_do() {
    let admission = admission(2);
    admission.set_mode(&Change::default(), "db", Mode::Shadow).unwrap();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(acquire(&admission).await.unwrap());
    }
    held.push(try_acquire(&admission).await.unwrap());
    let status = admission.bulkhead("db").unwrap().status;
    assert_eq!((status.running, status.totals.would_wait, status.totals.would_refuse), (6, 3, 1));
    admission.set_mode(&Change::default(), "db", Mode::Enforcing).unwrap();
    // A lowering: with two or more of them nobody new runs.
    while let Some(granted) = held.pop() {
        if !held.is_empty() {
            try_acquire(&admission).await.unwrap_err();
        }
        assert_eq!(admission.release(&granted.lease_id), Release::Released);
    }
    drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_goes_back_in_time_for_those_who_wait_and_is_remembered() {
    let admission = admission(1);
    let held = acquire(&admission).await.unwrap();
    let settings =
        Draft { limit: Some(1), ceiling: Some(4), max_wait: Some(Duration::from_secs(30)), ..Draft::default() };
    admission.configure(&Change::default(), "db", |_| Ok((settings.try_into()?, false))).unwrap();
    // Down to one for ten seconds: whoever waits is granted when it goes back up, with no other event.
    admission.set_limit(&Change::default(), "db", 2, None).unwrap();
    admission.set_limit(&Change::default(), "db", 1, Some(Duration::from_secs(8))).unwrap();
    let granted = acquire(&admission).await.unwrap();
    assert_eq!(granted.waited.as_secs(), 8);
    let events = admission.audit_events(Some("db"), None, 1);
    assert_eq!((events[0].action, &events[0].actor[..]), ("Revert", "server"));
    for lease_id in [&held.lease_id, &granted.lease_id] {
        admission.release(lease_id);
    }
    drain_and_refill(&admission).await;
}

#[test]
fn a_page_is_short_only_at_the_end_though_bulkheads_come_and_go() {
    let admission = Arc::new(Admission::default());
    let settings = || tidegate_core::Settings::try_from(Draft { limit: Some(1), ..Draft::default() }).unwrap();
    for number in 0..200 {
        admission.create(&Change::default(), &format!("{number:03}/stays"), settings()).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for number in 0..20 {
                    let name = format!("{:03}/goes", number * 5);
                    admission.create(&Change::default(), &name, settings()).unwrap();
                    admission.delete(&Change::default(), &name, false).unwrap();
                }
            }
        });
        for _ in 0..1_000 {
            assert_eq!(admission.bulkheads(None, 101).len(), 101);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[tokio::test(start_paused = true)]
async fn what_the_file_names_again_stays_also_if_its_last_lease_ends_in_that_moment() {
    // Nobody sweeps here: what is due stays until somebody comes by.
    let admission = Arc::new(Admission::default());
    let beating = admission.clone();
    tokio::spawn(async move { beating.clock().beat().await });
    let plan = |limit: Option<u32>| {
        let draft = |limit| Draft { limit: Some(limit), lease_ttl: Some(TTL), ..Draft::default() };
        let bulkheads = limit.map(|limit| ("db".into(), draft(limit).try_into().unwrap())).into_iter().collect();
        Plan { bulkheads, ..Plan::default() }
    };
    admission.reload(plan(Some(1))).unwrap();
    try_acquire(&admission).await.unwrap();
    admission.reload(plan(None)).unwrap();
    assert!(admission.bulkhead("db").unwrap().deleting);
    sleep(TTL).await;
    assert_eq!(admission.reload(plan(Some(2))), Ok(1));
    let view = admission.bulkhead("db").unwrap();
    assert_eq!((view.deleting, view.status.limit, view.status.running), (false, 2, 0));
    assert_eq!(admission.audit_events(Some("db"), None, 1)[0].action, "Reload");
    try_acquire(&admission).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_only_validated_is_told_as_it_would_be() {
    let admission = admission(1);
    let closed = Change { detail: "moved away", ..Change::default() };
    let view = admission.set_mode(&closed, "db", Mode::Closed).unwrap();
    let change = Change { etag: &view.etag, ..Change::default() };
    let opens = |settings: &Settings| Ok((settings.clone().with_mode(Mode::Enforcing), false));
    let told = admission.would_configure(&change, "db", opens).unwrap();
    let done = admission.configure(&change, "db", opens).unwrap();
    assert_eq!((&*told.mode_detail, told.settings), (&*done.mode_detail, done.settings));
    assert_eq!(&*done.mode_detail, "");
    // What time has changed since, but nobody has come by for, is another state.
    let stale = admission.set_limit(&Change::default(), "db", 1, Some(Duration::from_secs(1))).unwrap().etag;
    admission.set_limit(&Change::default(), "db", 1, None).unwrap();
    let change = Change { etag: &stale, ..Change::default() };
    let told = admission.would_configure(&change, "db", opens).map(drop);
    assert_eq!(told, admission.configure(&change, "db", opens).map(drop));
}

#[tokio::test(start_paused = true)]
async fn what_the_file_says_of_all_bulkheads_undoes_no_deletion() {
    let admission = Admission::default();
    let plan = |max_retry_hint: Option<Duration>| {
        let mut settings = ServerSettings::default();
        settings.max_retry_hint = max_retry_hint.unwrap_or(settings.max_retry_hint);
        let of = Draft { limit: Some(2), max_retry_hint: Some(settings.max_retry_hint), ..Draft::default() };
        let bulkheads = ["there", "drains", "gone"].map(|name| (name.into(), of.clone().try_into().unwrap())).into();
        Plan { settings, bulkheads, ..Plan::default() }
    };
    admission.reload(plan(None)).unwrap();
    let mut held = ask(&admission, None);
    held.bulkhead = "drains".into();
    admission.acquire(held).await.unwrap();
    for name in ["drains", "gone"] {
        admission.delete(&Change::default(), name, true).unwrap();
    }
    let shorter = Duration::from_secs(30);
    assert_eq!(admission.reload(plan(Some(shorter))), Ok(1));
    assert_eq!(admission.bulkhead("there").unwrap().settings.max_retry_hint(), shorter);
    assert!(admission.bulkhead("drains").unwrap().deleting);
    admission.bulkhead("gone").unwrap_err();
}
