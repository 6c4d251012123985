//! What a `SetLimit` costs the server among 10,000 waiters, compared with one where nobody waits.

use std::time::Duration;

use tidegate_tests::{Server, ask, drain_and_refill, v1};
use tokio::task::JoinSet;

use crate::{tell, tell_goal, tell_stalls};

const WAITERS: u32 = 10_000;
/// Some of the streams of a connection are no waiter's.
const CONNECTIONS: usize = 50;
const CALLS: u32 = 2_000;

pub(crate) async fn measure(runs: usize) {
    // A lease of the whole ceiling: however the limit moves, nobody is granted.
    let bulkhead = |name| {
        format!(
            "[[bulkhead]]\nname='{name}'\nlimit=500\nceiling=1000\nmax_queued=10000\nmax_wait='1h'\nlease_ttl='5m'\n"
        )
    };
    let server = Server::start(&(bulkhead("crowded") + &bulkhead("idle")));
    let (admin, operator) = (server.admin().await, server.client().await);
    let mut held = Vec::new();
    for name in ["crowded", "idle"] {
        admin.set_limit(name, 1000).await;
        held.push(operator.granted(v1::AcquireRequest { permits: 1000, ..ask(name) }).await);
    }
    let mut calls = JoinSet::new();
    for client in server.clients(CONNECTIONS).await.iter().cycle().take(WAITERS as usize) {
        calls.spawn(client.acquire(ask("crowded")));
    }
    server.until("crowded", |now| now.queued == WAITERS).await;
    let cost = async |name: &str| {
        let before = server.cpu_time();
        for call in 0..CALLS {
            admin.set_limit(name, 400 + call % 2 * 100).await;
        }
        micros(server.cpu_time().saturating_sub(before)) / f64::from(CALLS)
    };
    cost("idle").await;
    let (mut crowded, mut ratio) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let (with, without) = (cost("crowded").await, cost("idle").await);
        crowded.push(with);
        ratio.push(with / without);
    }
    tell("processor time of the server for a SetLimit, 10,000 waiters", crowded, " us");
    tell_goal("the same to one without waiters, in pairs", ratio, " times", 5.0);
    tell_stalls(&server);

    assert_eq!(server.status("crowded").await.queued, WAITERS, "nobody was granted or lost");
    calls.shutdown().await;
    server.until("crowded", |now| now.queued == 0).await;
    for lease in held {
        operator.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "crowded").await;
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}
