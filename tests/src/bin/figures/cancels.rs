//! A million calls that are cancelled while they wait: no permit is lost, and memory stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised};

use crate::tell_stalls;

/// Many, with few callers each: h2 ends a connection on which 20 calls were cancelled before the server took them.
const CONNECTIONS: usize = 64;
const CALLERS: usize = 128;
/// How long a caller waits before it drops its call.
const PATIENCE: Duration = Duration::from_millis(20);
const MIB: f64 = 1_048_576.0;

pub(crate) async fn measure(cancels: usize) {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nmax_queued=1000\nmax_wait='10m'\nlease_ttl='2s'\n");
    let clients = server.clients(CONNECTIONS).await;
    let (cancelled, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for client in clients.iter().cycle().take(CALLERS) {
        tasks.push(tokio::spawn(cancel(client.clone(), cancelled.clone(), failed.clone(), cancels)));
    }
    let resident_after = async |calls: usize| {
        while cancelled.load(Ordering::Relaxed) < calls {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.resident()
    };
    let early = resident_after(cancels / 10).await;
    let late = resident_after(cancels).await;
    let took = start.elapsed();
    for task in tasks {
        task.await.unwrap();
    }
    let status = server.until("db", |now| now.queued == 0).await;
    let left = usize::try_from(status.waited).unwrap().saturating_sub(usize::try_from(status.granted).unwrap());
    let failed = failed.load(Ordering::Relaxed);
    println!("{cancels} cancelled calls in {took:.1?}; {failed} failed otherwise, {} were granted", status.granted);
    exercised("cancelled calls that had waited on the server, at least", left, cancels * 9 / 10);
    exercised("leases that ended while others cancelled", usize::try_from(status.expired).unwrap(), 4);
    drain_and_refill(&server, "db").await;
    println!("0 permits lost: the whole limit is free again");

    let (early, late) = (early as f64 / MIB, late as f64 / MIB);
    println!("memory of the server after a tenth of them {early:.1} MiB, after all {late:.1} MiB");
    let bound = early * 1.1 + 32.0;
    println!("  goal: at most {bound:.1} MiB: {}", if late <= bound { "met" } else { "MISSED" });
    tell_stalls(&server);
}

/// Asks and drops the call, again and again. Who is granted after all keeps its lease to its end.
async fn cancel(client: Client, cancelled: Arc<AtomicUsize>, failed: Arc<AtomicUsize>, enough: usize) {
    while cancelled.load(Ordering::Relaxed) < enough {
        match tokio::time::timeout(PATIENCE, client.acquire(ask("db"))).await {
            Err(_) => cancelled.fetch_add(1, Ordering::Relaxed),
            Ok(Err(_)) => failed.fetch_add(1, Ordering::Relaxed),
            Ok(Ok(_)) => continue,
        };
    }
}
