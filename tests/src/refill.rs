//! The check that every test over the wire ends with: no permit is lost.

use std::collections::HashSet;
use std::time::Duration;

use crate::{Server, ask, seconds, span, v1};

/// What a busy machine may add.
const ROOM: Duration = Duration::from_secs(2);
/// The most calls at once; each takes its share of the permits.
const CALLS: u32 = 200;

/// *g*: how much later than its ttl a lease may be reclaimed.
pub fn slack(ttl: Duration) -> Duration {
    Duration::from_millis(250).max(ttl / 1000)
}

/// Waits until nobody runs or waits, at the latest when the longest lease has ended; then takes the whole limit at once,
/// and gives it back. Needs the bulkhead for itself: nobody else may ask for permits or renew.
pub async fn drain_and_refill(server: &Server, bulkhead: &str) {
    assert!(!server.logged("panicked"), "the server panicked");
    let settings = server.admin().await.bulkhead(bulkhead).await.settings.expect("a bulkhead has settings");
    let ttl = span(settings.max_lease_ttl);
    let bound = ttl + slack(ttl) + ROOM;
    let rested = server.until_within(bound, bulkhead, |now| now.running == 0 && now.queued == 0).await;

    let client = server.client().await;
    let calls = rested.limit.min(CALLS);
    let all: Vec<_> = (0..calls)
        .map(|call| {
            let permits = rested.limit / calls + u32::from(call < rested.limit % calls);
            client.start(v1::AcquireRequest { permits, max_wait: seconds(0), ..ask(bulkhead) })
        })
        .collect();
    let mut leases = Vec::new();
    for call in all {
        let response = call.await.expect("the call is not aborted");
        leases.push(response.expect("every permit up to the limit is free").lease.expect("a grant has a lease"));
    }
    let full = server.status(bulkhead).await;
    assert_eq!((full.running, full.queued), (rested.limit, 0), "the limit is taken");
    assert_eq!(full.granted, rested.granted + u64::from(calls), "each grant is counted once");
    let tokens: HashSet<_> = leases.iter().map(|lease| lease.fencing_token).collect();
    assert_eq!(tokens.len(), leases.len(), "each grant has a token of its own");
    let refusal = client.refused(v1::AcquireRequest { max_wait: seconds(0), ..ask(bulkhead) }).await;
    assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");

    for lease in &leases {
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    assert_eq!(server.status(bulkhead).await.running, 0, "every permit is given back");
}
