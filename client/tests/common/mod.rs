//! What the tests of the library share.

#![allow(clippy::unwrap_used, dead_code, reason = "part of several tests, which fail by panicking")]

use std::time::Duration;

use tidegate_client::{Bulkhead, Error, LocalBulkhead, Permit};
use tokio::task::JoinHandle;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A bulkhead with that limit.
pub(crate) fn local(limit: u32) -> LocalBulkhead {
    LocalBulkhead::new("db", limit).unwrap()
}

/// Why there is no permit.
pub(crate) fn reason(outcome: Result<Permit, Error>) -> String {
    outcome.expect_err("no permit is free").reason().to_owned()
}

/// A caller that is in the queue when this returns; `local` is the bulkhead that `handle` asks.
pub(crate) async fn waits_for(local: &LocalBulkhead, handle: &Bulkhead) -> JoinHandle<Result<Permit, Error>> {
    let queued = local.status().queued;
    let handle = handle.clone();
    let waiter = tokio::spawn(async move { handle.acquire().await });
    while local.status().queued == queued {
        tokio::task::yield_now().await;
    }
    waiter
}
