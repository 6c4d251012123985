//! A million calls that are cancelled while they wait: no permit is lost, and memory stays.
//!
//! Counted are those that had a place in the queue and left it, as the server tells; not those that never left the client.

use std::time::Duration;

use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised, v1};
use tokio::task::JoinSet;

use crate::tell_stalls;

/// Many, with few callers each: h2 ends a connection on which 20 calls were cancelled before the server took them.
const CONNECTIONS: usize = 64;
const CALLERS: usize = 192;
/// How long a caller waits before it drops its call.
const PATIENCE: Duration = Duration::from_millis(20);
const MIB: f64 = 1_048_576.0;

pub(crate) async fn measure(cancels: usize) {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nmax_queued=1000\nmax_wait='10m'\nlease_ttl='2s'\n");
    let clients = server.clients(CONNECTIONS).await;
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for client in clients.iter().cycle().take(CALLERS) {
        callers.spawn(cancel(client.clone()));
    }
    let resident_after = async |cancels: usize| {
        while left(&server.status("db").await) < cancels {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.resident()
    };
    let early = resident_after(cancels / 10).await;
    let late = resident_after(cancels).await;
    let took = start.elapsed();
    callers.shutdown().await;
    let status = server.until("db", |now| now.queued == 0).await;
    println!("{} waiters left their queue in {took:.1?}; {} were granted", left(&status), status.granted);
    exercised("leases that ended meanwhile", usize::try_from(status.expired).unwrap(), 1);
    drain_and_refill(&server, "db").await;
    println!("0 permits lost: the whole limit is free again");

    let (early, late) = (early as f64 / MIB, late as f64 / MIB);
    println!("memory of the server after a tenth of them {early:.1} MiB, after all {late:.1} MiB");
    let bound = early * 1.1 + 32.0;
    println!("  goal: at most {bound:.1} MiB: {}", if late <= bound { "met" } else { "MISSED" });
    tell_stalls(&server);
}

/// Asks and drops the call, for ever. Who is granted after all keeps its lease to its end.
async fn cancel(client: Client) {
    loop {
        if let Ok(answer) = tokio::time::timeout(PATIENCE, client.acquire(ask("db"))).await {
            answer.expect("who does not leave is granted");
        }
    }
}

/// How many waited and are gone, and were not granted. No wait is over so soon.
fn left(status: &v1::BulkheadStatus) -> usize {
    let gone = status.waited.saturating_sub(status.granted + u64::from(status.queued));
    usize::try_from(gone).unwrap()
}
