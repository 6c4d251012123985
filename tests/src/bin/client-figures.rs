//! What the Rust client costs, against the built server: `cargo run --release -p tidegate-tests --bin client-figures`.
//!
//! Processor time of this process, which the server's is no part of; in pairs, so that what else the machine does falls on
//! both alike.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement, which fails by panicking")]

use std::time::Duration;

use tidegate_client::{Bulkhead, Client, LocalBulkhead};
use tidegate_tests::{Instant, Server, ask, v1};

const TASKS: u32 = 64;
const CALLS: u32 = 1_000;
const PAIRS: usize = 7;
const ROUNDS: usize = 11;
const LOCAL_CALLS: u32 = 1_000_000;
const LEASES: usize = 50_000;
const WATCHED: Duration = Duration::from_secs(20);

const CONFIG: &str = "[[bulkhead]]\nname='db'\nlimit=1000000\nlease_ttl='10s'\n";

#[tokio::main(worker_threads = 2)]
async fn main() {
    cost_in_this_process().await;
    cost_of_a_call().await;
    cost_of_many_leases().await;
}

async fn cost_in_this_process() {
    let db = LocalBulkhead::new("db", 1_000).unwrap();
    let mut nanos = Vec::new();
    for _ in 0..ROUNDS {
        let spent = cpu_time_of(async || {
            for _ in 0..LOCAL_CALLS {
                drop(db.acquire().await.unwrap());
            }
        });
        nanos.push(spent.await.as_nanos() / u128::from(LOCAL_CALLS));
    }
    nanos.sort_unstable();
    let (least, median, most) = (nanos[0], nanos[ROUNDS / 2], nanos[ROUNDS - 1]);
    println!("LocalBulkhead, acquire + release: {median} ns ({least} to {most}), goal at most 300 ns");
}

async fn cost_of_a_call() {
    let server = Server::start(CONFIG);
    let bare = server.client().await;
    let client = connect(&server).await;
    let db = client.bulkhead("db");
    let mut ratios = Vec::new();
    for pair in 0..=PAIRS {
        let of_stub = cpu_time_of(async || {
            let tasks = (0..TASKS).map(|_| tokio::spawn(with_stub(bare.clone()))).collect();
            all(tasks).await;
        });
        let of_stub = of_stub.await;
        let of_client = cpu_time_of(async || {
            let tasks = (0..TASKS).map(|_| tokio::spawn(with_client(db.clone()))).collect();
            all(tasks).await;
            client.flush().await;
        });
        let of_client = of_client.await;
        // The first pair warms up.
        if pair > 0 {
            println!("  stub {of_stub:?}, client {of_client:?} for {} calls", TASKS * CALLS);
            ratios.push(of_client.as_secs_f64() / of_stub.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "acquire + release through the client, as a multiple of the bare stub: {:.2} ({:.2} to {:.2}), goal at most 1.35",
        ratios[PAIRS / 2],
        ratios[0],
        ratios[PAIRS - 1]
    );
    assert_eq!(server.status("db").await.running, 0, "a permit was lost");
}

async fn with_stub(client: tidegate_tests::Client) {
    let mut stub = client.stub();
    for _ in 0..CALLS {
        let lease = stub.acquire(ask("db")).await.unwrap().into_inner().lease.unwrap();
        let request = v1::ReleaseRequest { lease_id: lease.lease_id, ..v1::ReleaseRequest::default() };
        stub.release(request).await.unwrap();
    }
}

async fn with_client(db: Bulkhead) {
    for _ in 0..CALLS {
        drop(db.acquire().await.unwrap());
    }
}

async fn cost_of_many_leases() {
    let server = Server::start(CONFIG);
    let db = connect(&server).await.bulkhead("db");
    let mut permits = Vec::new();
    while permits.len() < LEASES {
        let some = (0..500).map(|_| {
            tokio::spawn({
                let db = db.clone();
                async move { db.acquire().await.unwrap() }
            })
        });
        for permit in some.collect::<Vec<_>>() {
            permits.push(permit.await.unwrap());
        }
    }
    let start = Instant::now();
    let spent = cpu_time_of(async || tokio::time::sleep(WATCHED).await).await;
    let share = spent.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    println!("{LEASES} leases kept alive for {WATCHED:?}: {share:.2} % of a core, goal under 2 %");
    let status = server.status("db").await;
    assert_eq!((status.running as usize, status.expired), (LEASES, 0), "a lease was lost");
}

async fn connect(server: &Server) -> Client {
    Client::connect(format!("http://{}", server.admission_address())).await.unwrap()
}

async fn all(tasks: Vec<tokio::task::JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// The processor time of this process while that runs.
async fn cpu_time_of(run: impl AsyncFnOnce()) -> Duration {
    let before = cpu_time();
    run().await;
    cpu_time().saturating_sub(before)
}

fn cpu_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()].into_iter().fold(Duration::ZERO, |sum, time| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec()).unwrap());
        sum + seconds + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap())
    })
}
