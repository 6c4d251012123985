//! The shell under random schedules: which thread runs next at each lock is drawn, many times. Time stands still, so
//! only the order of things can go wrong.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::thread;
use tidegate_core::{Acquire, Draft, OnCooldown, Reason, Release};
use tidegate_server::{Admission, Ask, Change, Granted, Plan, Refused, ServerSettings, Template, Waits};

#[path = "schedules/operators.rs"]
mod operators;

/// How many schedules: quick, in CI, in a soak.
fn schedules() -> usize {
    match std::env::var("TIDEGATE_TESTS").as_deref() {
        Ok("ci") => 7_500,
        Ok("soak") => 500_000,
        _ => 2_000,
    }
}

fn check(test: impl Fn() + Send + Sync + 'static) {
    // A paused clock that nobody moves: a busy machine must not look like a stall of the server.
    let time = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _inside = time.enter();
    shuttle::check_random(test, schedules());
}

fn admission(limit: u32) -> Arc<Admission> {
    let admission = Arc::new(Admission::default());
    admission.create(&Change::default(), "db", settings(limit)).unwrap();
    admission
}

fn settings(limit: u32) -> tidegate_core::Settings {
    Draft { limit: Some(limit), ceiling: Some(4), max_wait: Some(Duration::from_hours(1)), ..Draft::default() }
        .try_into()
        .unwrap()
}

fn running(admission: &Admission) -> u32 {
    admission.bulkhead("db").unwrap().status.running
}

/// Waits for a permit, on a thread of its own.
fn waits(admission: &Arc<Admission>) -> thread::JoinHandle<Result<Granted, Refused>> {
    let admission = admission.clone();
    thread::spawn(move || block_on(admission.acquire(ask(&admission, None, true))))
}

fn ask(admission: &Admission, request_id: Option<&str>, waits: bool) -> Ask {
    Ask {
        received: admission.clock().now(),
        bulkhead: "db".into(),
        waits: Waits::default(),
        request_id: request_id.map(Into::into),
        acquire: Acquire {
            max_wait: (!waits).then_some(Duration::ZERO),
            on_cooldown: OnCooldown::Wait,
            ..Acquire::default()
        },
    }
}

fn try_acquire(admission: &Admission) -> Result<Granted, Refused> {
    block_on(admission.acquire(ask(admission, None, false)))
}

fn release(admission: &Admission, granted: &Granted) {
    assert_eq!(admission.release(&granted.lease_id), Release::Released);
}

fn release_all<'a>(admission: &Admission, granted: impl IntoIterator<Item = &'a Granted>) {
    for granted in granted {
        release(admission, granted);
    }
}

/// Polls a call once and drops it. Answers what it had said by then.
fn poll_once(call: impl Future<Output = Result<Granted, Refused>>) -> Option<Result<Granted, Refused>> {
    let mut call = pin!(call);
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => {
            thread::yield_now();
            None
        }
    }
}

/// Nobody holds or waits; the whole limit is to be had at once and nothing more.
fn refill(admission: &Admission) {
    let status = admission.bulkhead("db").unwrap().status;
    assert_eq!((status.running, status.queued), (0, 0));
    let held: Vec<_> = (0..status.limit).map(|_| try_acquire(admission).unwrap()).collect();
    assert!(try_acquire(admission).is_err());
    release_all(admission, &held);
}

#[test]
fn a_call_that_vanishes_against_a_grant_loses_no_permit() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let vanishing = admission.clone();
        let vanishing = thread::spawn(move || {
            if let Some(Ok(granted)) = poll_once(vanishing.acquire(ask(&vanishing, Some("r"), true))) {
                release(&vanishing, &granted);
            }
        });
        let next = admission.clone();
        let next = thread::spawn(move || {
            let granted = block_on(next.acquire(ask(&next, None, true))).unwrap();
            release(&next, &granted);
        });
        release(&admission, &held);
        vanishing.join().unwrap();
        next.join().unwrap();
        refill(&admission);
    });
}

#[test]
fn a_repeat_against_its_original_is_granted_once() {
    check(|| {
        let admission = admission(2);
        let other = try_acquire(&admission).unwrap();
        let calls: Vec<_> = (0..2)
            .map(|_| {
                let admission = admission.clone();
                thread::spawn(move || block_on(admission.acquire(ask(&admission, Some("same"), true))).ok())
            })
            .collect();
        let granted: Vec<_> = calls.into_iter().filter_map(|call| call.join().unwrap()).collect();
        assert_eq!(granted.len(), 2);
        assert_eq!(granted[0].grant.token, granted[1].grant.token);
        assert_eq!(admission.bulkhead("db").unwrap().status.running, 2);
        release(&admission, &other);
        release(&admission, &granted[0]);
        assert_eq!(admission.release(&granted[1].lease_id), Release::AlreadyReleased);
        refill(&admission);
    });
}

#[test]
fn a_repeat_against_the_drop_of_a_waiting_original_keeps_its_place_or_its_lease() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let original = admission.clone();
        let original = thread::spawn(move || {
            if let Some(Ok(granted)) = poll_once(original.acquire(ask(&original, Some("same"), true))) {
                drop(granted);
            }
        });
        let repeat = admission.clone();
        let repeat = thread::spawn(move || block_on(repeat.acquire(ask(&repeat, Some("same"), true))));
        release(&admission, &held);
        original.join().unwrap();
        match repeat.join().unwrap() {
            Ok(granted) => release(&admission, &granted),
            // The original came second and took the place over, then went: nothing was granted.
            Err(refused) => {
                assert_eq!(refused.refusal.reason, Reason::Superseded);
                assert_eq!(admission.release_request("db", "same").unwrap(), Release::Unknown);
            }
        }
        refill(&admission);
    });
}

#[test]
fn deleting_and_making_again_never_doubles_the_limit() {
    check(|| {
        let admission = admission(1);
        let maker = admission.clone();
        let maker = thread::spawn(move || {
            if maker.delete(&Change::default(), "db", false).is_ok() {
                maker.create(&Change::default(), "db", settings(1)).unwrap();
            }
        });
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let admission = admission.clone();
                thread::spawn(move || try_acquire(&admission))
            })
            .collect();
        maker.join().unwrap();
        let (granted, refused): (Vec<_>, Vec<_>) =
            callers.into_iter().map(|caller| caller.join().unwrap()).partition(Result::is_ok);
        let granted: Vec<_> = granted.into_iter().flatten().collect();
        assert!(granted.len() <= 1, "two run under limit 1");
        for refused in refused.into_iter().filter_map(Result::err) {
            // Before, after, or in between; never by the one that is gone.
            let reason = refused.refusal.reason;
            assert!(matches!(reason, Reason::ConcurrencyCapacityExhausted | Reason::BulkheadNotFound), "{reason:?}");
        }
        release_all(&admission, &granted);
        refill(&admission);
        let again = admission.create(&Change::default(), "db", settings(1));
        assert_eq!(again.map_err(|refused| refused.refusal.reason), Err(Reason::BulkheadExists));
    });
}

#[test]
fn once_a_report_is_answered_nothing_of_the_partition_is_granted() {
    check(|| {
        let admission = admission(2);
        let held = try_acquire(&admission).unwrap();
        let second = try_acquire(&admission).unwrap();
        // It waits, or it is granted before the report; the first waiter enters its cell while the report looks for it.
        let waiter = admission.clone();
        let waiter = thread::spawn(move || {
            let call = poll_once(waiter.acquire(ask(&waiter, None, true)));
            call.and_then(Result::ok)
        });
        let releaser = admission.clone();
        let releaser = thread::spawn(move || release(&releaser, &held));
        admission.report("db", Duration::from_mins(1), "").unwrap();
        let at_report = admission.bulkhead("db").unwrap().status.totals.granted;
        let late = try_acquire(&admission).unwrap_err().refusal.reason;
        assert!(matches!(late, Reason::CooldownExceedsDeadline | Reason::ConcurrencyCapacityExhausted), "{late:?}");
        let granted = waiter.join().unwrap();
        releaser.join().unwrap();
        let after = admission.bulkhead("db").unwrap().status.totals.granted;
        assert_eq!(at_report, after, "granted after the report was answered");
        release_all(&admission, &granted);
        release(&admission, &second);
        assert!(admission.clear_cooldown(&Change::default(), "db"));
        refill(&admission);
    });
}

#[test]
fn a_waiter_that_enters_while_a_report_is_made_is_held() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let waiter = admission.clone();
        let waiter = thread::spawn(move || block_on(waiter.acquire(ask(&waiter, None, true))));
        let reporter = admission.clone();
        let reporter = thread::spawn(move || reporter.report("db", Duration::from_mins(1), "").unwrap());
        reporter.join().unwrap();
        release(&admission, &held);
        assert_eq!(admission.bulkhead("db").unwrap().status.running, 0, "a cooling waiter was granted");
        assert!(admission.clear_cooldown(&Change::default(), "db"));
        let granted = waiter.join().unwrap().unwrap();
        release(&admission, &granted);
        refill(&admission);
    });
}

#[test]
fn a_moved_limit_against_a_release_wakes_whoever_fits() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let admission = admission.clone();
                thread::spawn(move || block_on(admission.acquire(ask(&admission, None, true))).unwrap())
            })
            .collect();
        let mover = admission.clone();
        let mover = thread::spawn(move || {
            mover.set_limit(&Change::default(), "db", 3, None).unwrap();
            mover.set_limit(&Change::default(), "db", 2, None).unwrap();
        });
        release(&admission, &held);
        mover.join().unwrap();
        let granted: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        assert_eq!(admission.bulkhead("db").unwrap().status.running, 2);
        release_all(&admission, &granted);
        refill(&admission);
    });
}

#[test]
fn a_withdrawal_against_a_grant_leaves_nothing_behind() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let waiter = admission.clone();
        let waiter = thread::spawn(move || block_on(waiter.acquire(ask(&waiter, Some("r"), true))));
        let withdrawer = admission.clone();
        let withdrawer = thread::spawn(move || withdrawer.release_request("db", "r").unwrap());
        release(&admission, &held);
        let (answer, release) = (waiter.join().unwrap(), withdrawer.join().unwrap());
        match release {
            Release::Released | Release::Withdrawn | Release::Unknown => {}
            other => panic!("{other:?}"),
        }
        if let Err(refused) = answer {
            assert_eq!(refused.refusal.reason, Reason::RequestIdSpent);
        }
        refill(&admission);
    });
}

#[test]
fn a_name_first_asked_for_while_its_template_changes_takes_the_new_one() {
    check(|| {
        let template = |limit| vec![Template { pattern: "d*".into(), settings: settings(limit) }];
        let admission = Arc::new(Admission::new(ServerSettings::default(), template(1)));
        let reloading = thread::spawn({
            let admission = admission.clone();
            move || admission.reload(Plan { templates: template(2), ..Plan::default() }).unwrap()
        });
        let granted = try_acquire(&admission).unwrap();
        reloading.join().unwrap();
        let view = admission.bulkhead("db").unwrap();
        assert_eq!((view.settings.limit(), view.status.limit), (2, 2));
        release(&admission, &granted);
    });
}
