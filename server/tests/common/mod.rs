//! What the tests of the shell share.
#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Acquire, Draft, Settings};
use tidegate_server::{Admission, Ask, Change, Granted, Refused, Waits};

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// *g* at that ttl.
pub(crate) const SLACK: Duration = Duration::from_millis(250);

/// How many rounds: quick, in CI, in a soak.
pub(crate) fn rounds(quick: usize, ci: usize, soak: usize) -> usize {
    match std::env::var("TIDEGATE_TESTS").as_deref() {
        Ok("ci") => ci,
        Ok("soak") => soak,
        _ => quick,
    }
}

/// A running admission with the bulkhead `db`.
pub(crate) fn admission(limit: u32) -> Arc<Admission> {
    with(Draft { limit: Some(limit), max_wait: Some(Duration::from_secs(30)), ..Draft::default() })
}

pub(crate) fn with(draft: Draft) -> Arc<Admission> {
    let admission = Arc::new(Admission::default());
    admission.create(&Change::default(), "db", Settings::try_from(draft).unwrap()).unwrap();
    let running = admission.clone();
    tokio::spawn(async move { running.run().await });
    admission
}

pub(crate) fn ask(admission: &Admission, request_id: Option<&str>) -> Ask {
    Ask {
        received: admission.clock().now(),
        bulkhead: "db".into(),
        waits: Waits::default(),
        request_id: request_id.map(Into::into),
        acquire: Acquire::default(),
    }
}

pub(crate) async fn acquire(admission: &Admission) -> Result<Granted, Refused> {
    admission.acquire(ask(admission, None)).await
}

/// Asks without waiting.
pub(crate) async fn try_acquire(admission: &Admission) -> Result<Granted, Refused> {
    let mut ask = ask(admission, None);
    ask.acquire.max_wait = Some(Duration::ZERO);
    admission.acquire(ask).await
}

/// Nobody holds or waits any more, at the latest when the leases have run out; then the whole limit is to be had.
pub(crate) async fn drain_and_refill(admission: &Admission) {
    // A stall of the process moves the ends, and what is due comes up to as much later.
    let (end, stalled) = (tokio::time::Instant::now() + TTL + SLACK, admission.clock().stalled());
    loop {
        let status = admission.bulkhead("db").unwrap().status;
        if (status.running, status.queued) == (0, 0) {
            break;
        }
        let late = 2 * admission.clock().stalled().saturating_sub(stalled);
        assert!(tokio::time::Instant::now() < end + late, "not drained: {status:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    refill(admission).await;
}

/// The whole limit is to be had at once, and nothing more; then it is free again.
pub(crate) async fn refill(admission: &Admission) {
    let limit = admission.bulkhead("db").unwrap().status.limit;
    let mut held = Vec::new();
    for _ in 0..limit {
        held.push(try_acquire(admission).await.unwrap());
    }
    try_acquire(admission).await.unwrap_err();
    for granted in held {
        assert_eq!(admission.release(&granted.lease_id), tidegate_core::Release::Released);
    }
}
