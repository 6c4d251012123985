//! The check that every test over the wire ends with: no permit is lost.

use std::collections::HashSet;
use std::time::Duration;

use crate::{Instant, Server, ask, in_time, reason, seconds, span, v1};

/// What a busy machine may add. How late a lease may end is asserted elsewhere; what is lost never comes back.
const ROOM: Duration = Duration::from_secs(10);
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
    server.until_within(bound, bulkhead, |now| now.running == 0 && now.queued == 0).await;
    in_time(ttl, async || refill(server, bulkhead, settings.max_lease_ttl).await).await;
}

/// Takes the whole limit and gives it back. Answers how long that took: beyond the ttl leases ended by themselves, so that
/// only what was granted is judged.
async fn refill(server: &Server, bulkhead: &str, lease_ttl: Option<prost_types::Duration>) -> Duration {
    let rested = server.until(bulkhead, |now| now.running == 0 && now.queued == 0).await;
    let client = server.client().await;
    let calls = rested.limit.min(CALLS);
    let start = Instant::now();
    let all: Vec<_> = (0..calls)
        .map(|call| {
            let permits = rested.limit / calls + u32::from(call < rested.limit % calls);
            client.start(v1::AcquireRequest { permits, lease_ttl, max_wait: seconds(0), ..ask(bulkhead) })
        })
        .collect();
    let mut leases = Vec::new();
    for call in all {
        let response = call.await.expect("the call is not aborted");
        leases.push(response.expect("every permit up to the limit is free").lease.expect("a grant has a lease"));
    }
    let full = server.status(bulkhead).await;
    let one_more = client.acquire(v1::AcquireRequest { max_wait: seconds(0), ..ask(bulkhead) }).await;
    assert_eq!(full.granted, rested.granted + u64::from(calls), "each grant is counted once");
    let tokens: HashSet<_> = leases.iter().map(|lease| lease.fencing_token).collect();
    assert_eq!(tokens.len(), leases.len(), "each grant has a token of its own");

    // All at once, since leases may be short.
    let released = leases.iter().map(|lease| client.release(&lease.lease_id));
    let released = futures_util::future::join_all(released).await;
    let took = start.elapsed();
    if took <= span(lease_ttl) {
        assert_eq!((full.running, full.queued), (rested.limit, 0), "the limit is taken");
        assert_eq!(reason(&one_more.expect_err("and no more")), "CONCURRENCY_CAPACITY_EXHAUSTED");
        assert!(released.iter().all(|state| *state == v1::ReleaseState::Released), "{released:?}");
        assert_eq!(server.status(bulkhead).await.running, 0, "every permit is given back");
    }
    took
}
