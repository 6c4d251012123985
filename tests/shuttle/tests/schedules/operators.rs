//! What operators do, against everybody else.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate_core::{Mode, Renewal};

use super::*;

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn reason(refused: Refused) -> Reason {
    refused.refusal.reason
}

#[test]
fn once_drained_nobody_waits_and_nothing_is_granted() {
    check(|| {
        let admission = admission(2);
        let held = try_acquire(&admission).unwrap();
        let callers = [waits(&admission), waits(&admission)];
        // One that the drain may not know of.
        let maker = admission.clone();
        let maker = thread::spawn(move || {
            maker.create(&Change::default(), "late", settings(1)).unwrap();
            let late = || Ask { bulkhead: "late".into(), ..ask(&maker, None, true) };
            [poll_once(maker.acquire(late())), poll_once(maker.acquire(late()))]
        });
        admission.drain();
        let stands = |name: &str| admission.bulkhead(name).map(|view| (view.status.running, view.status.queued));
        let (db, late) = (stands("db").unwrap(), stands("late").unwrap_or_default());
        assert_eq!((db.1, late.1), (0, 0), "somebody waits still");
        release(&admission, &held);
        let granted: Vec<_> = callers.into_iter().filter_map(|caller| caller.join().unwrap().ok()).collect();
        maker.join().unwrap();
        assert_eq!(stands("db").unwrap(), (db.0 - 1, 0), "granted after the drain");
        assert!(stands("late").unwrap() <= late, "granted in a new bulkhead after the drain");
        release_all(&admission, &granted);
        assert_eq!(try_acquire(&admission).map_err(reason).unwrap_err(), Reason::Draining);
        assert_eq!(running(&admission), 0);
    });
}

#[test]
fn a_bulkhead_on_its_way_out_goes_with_its_last_lease_and_never_runs_beside_its_successor() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let live = Arc::new(AtomicU32::new(1));
        // It may vanish before it hears that its bulkhead goes.
        let (vanishing, count) = (admission.clone(), live.clone());
        let vanishing = thread::spawn(move || {
            let granted = poll_once(vanishing.acquire(ask(&vanishing, None, true)))?.ok()?;
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two run under one name and limit 1");
            Some(granted)
        });
        let deleter = admission.clone();
        let deleter = thread::spawn(move || deleter.delete(&Change::default(), "db", true).unwrap());
        let maker = admission.clone();
        let maker = thread::spawn(move || {
            (0..3).any(|_| match maker.create(&Change::default(), "db", settings(1)).map_err(reason) {
                Ok(_) => true,
                Err(Reason::BulkheadExists | Reason::BulkheadInUse) => false,
                Err(other) => panic!("{other:?}"),
            })
        });
        let (caller, count) = (admission.clone(), live.clone());
        let caller = thread::spawn(move || {
            for _ in 0..2 {
                if let Ok(granted) = try_acquire(&caller) {
                    assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two run under one name and limit 1");
                    count.fetch_sub(1, Ordering::SeqCst);
                    release(&caller, &granted);
                }
            }
        });
        live.fetch_sub(1, Ordering::SeqCst);
        release(&admission, &held);
        let vanished = vanishing.join().unwrap();
        let made = maker.join().unwrap();
        deleter.join().unwrap();
        caller.join().unwrap();
        release_all(&admission, &vanished);
        let there = admission.bulkhead("db");
        assert_eq!(there.is_ok(), made, "the last lease did not take it along: {there:?}");
        if made {
            assert_eq!(admission.delete(&Change::default(), "db", false).map_err(reason), Ok(0));
        }
        let caps = admission.server().caps;
        assert!(caps.iter().all(|cap| cap.taken == 0), "one that is gone has borrowed: {caps:?}");
    });
}

#[test]
fn once_revoked_a_lease_is_renewed_no_more_and_its_permit_is_free_once() {
    check(|| {
        let admission = admission(1);
        let held = Arc::new(try_acquire(&admission).unwrap());
        let is_revoked = Arc::new(AtomicBool::new(false));
        let (revoker, lease, done) = (admission.clone(), held.clone(), is_revoked.clone());
        let revoker = thread::spawn(move || {
            let answer = revoker.revoke(&Change::default(), "db", lease.grant.token, false);
            done.store(answer.is_ok(), Ordering::SeqCst);
            assert!(!matches!(revoker.renew(&lease.lease_id, None), Some(Renewal::Renewed { .. }) if answer.is_ok()));
            answer.is_ok()
        });
        let (renewer, lease) = (admission.clone(), held.clone());
        let renewer = thread::spawn(move || {
            for _ in 0..3 {
                let before = is_revoked.load(Ordering::SeqCst);
                let renewal = renewer.renew(&lease.lease_id, None).unwrap();
                assert!(!before || renewal == Renewal::Revoked, "{renewal:?} after it was revoked");
            }
        });
        let (releaser, lease) = (admission.clone(), held.clone());
        let releaser = thread::spawn(move || [releaser.release(&lease.lease_id), releaser.release(&lease.lease_id)]);
        let next = block_on(admission.acquire(ask(&admission, None, true))).unwrap();
        assert_eq!(running(&admission), 1);
        let came_first = revoker.join().unwrap();
        renewer.join().unwrap();
        let expected = if came_first {
            [Release::Revoked, Release::Revoked]
        } else {
            [Release::Released, Release::AlreadyReleased]
        };
        assert_eq!(releaser.join().unwrap(), expected);
        release(&admission, &next);
        refill(&admission);
    });
}

#[test]
fn once_closed_nobody_waits_and_nothing_is_granted() {
    check(|| {
        let admission = admission(1);
        let held = try_acquire(&admission).unwrap();
        let waiters = [waits(&admission), waits(&admission)];
        let releaser = admission.clone();
        let releaser = thread::spawn(move || release(&releaser, &held));
        let closed = admission.set_mode(&Change::default(), "db", Mode::Closed).unwrap().status;
        assert_eq!(closed.queued, 0);
        assert_eq!(try_acquire(&admission).map_err(reason).unwrap_err(), Reason::BulkheadClosed);
        releaser.join().unwrap();
        let answers = waiters.map(|waiter| waiter.join().unwrap().map_err(reason));
        let granted: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        assert!(granted.len() <= 1 && running(&admission) <= closed.running, "granted after it was closed");
        assert!(answers.iter().all(|answer| matches!(answer, Ok(_) | Err(Reason::BulkheadClosed))), "{answers:?}");
        release_all(&admission, granted);
        admission.set_mode(&Change::default(), "db", Mode::Enforcing).unwrap();
        refill(&admission);
    });
}

#[test]
fn of_two_changes_with_one_etag_one_is_made() {
    check(|| {
        let admission = admission(1);
        let etag = Arc::new(admission.bulkhead("db").unwrap().etag);
        let changers = [2, 3].map(|limit| {
            let (admission, etag) = (admission.clone(), etag.clone());
            thread::spawn(move || {
                let change = Change { etag: &etag, ..Change::default() };
                admission.set_limit(&change, "db", limit, None).map(|view| view.status.limit).map_err(reason)
            })
        });
        let answers = changers.map(|changer| changer.join().unwrap());
        let made = answers.iter().flatten().copied().collect::<Vec<_>>();
        assert_eq!(made, [admission.bulkhead("db").unwrap().status.limit]);
        assert!(answers.contains(&Err(Reason::EtagMismatch)));
        refill(&admission);
    });
}

#[test]
fn what_the_file_names_again_is_there_though_its_last_lease_is_released() {
    check(|| {
        let admission = Arc::new(Admission::default());
        let plan = |limit: Option<u32>| {
            let bulkheads = limit.map(|limit| ("db".into(), settings(limit))).into_iter().collect();
            Plan { bulkheads, ..Plan::default() }
        };
        admission.reload(plan(Some(1))).unwrap();
        let held = try_acquire(&admission).unwrap();
        admission.reload(plan(None)).unwrap();
        let releaser = admission.clone();
        let releaser = thread::spawn(move || releaser.release(&held.lease_id));
        admission.reload(plan(Some(2))).unwrap();
        releaser.join().unwrap();
        let view = admission.bulkhead("db").unwrap();
        assert_eq!((view.deleting, view.status.limit), (false, 2));
        refill(&admission);
    });
}

#[test]
fn what_is_reported_while_a_cooldown_is_cleared_holds() {
    check(|| {
        let admission = admission(1);
        admission.report("db", Duration::from_mins(1), "").unwrap();
        let waiter = waits(&admission);
        while admission.bulkhead("db").unwrap().status.queued == 0 {
            thread::yield_now();
        }
        let operator = admission.clone();
        let operator = thread::spawn(move || operator.clear_cooldown(&Change::default(), "db"));
        admission.report("db", Duration::from_mins(2), "").unwrap();
        let at_report = admission.bulkhead("db").unwrap().status.running;
        operator.join().unwrap();
        let cools = !admission.cooldowns(None, 1).is_empty();
        let after = admission.bulkhead("db").unwrap().status.running;
        assert!(!cools || at_report == after, "granted after the report was answered");
        admission.clear_cooldown(&Change::default(), "db");
        release(&admission, &waiter.join().unwrap().unwrap());
        refill(&admission);
    });
}
