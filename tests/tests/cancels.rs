//! Those who go away: cancelled calls, killed processes, connections that fall silent. None takes a permit with it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::Rng;
use tidegate_tests::v1::ReleaseState;
use tidegate_tests::{
    Client, Faults, Instant, Proxy, Server, ask, at_once, drain_and_refill, exercised, in_time, reason, seconds, size,
    slack, v1,
};

/// How long a waiter whose call was cancelled, or whose process died, may still be seen in the queue: less by far than the
/// minute after which a lost lease ends, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Of the short leases here.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn w05_a_cancelled_waiter_leaves_its_place_and_takes_no_permit() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='10m'\nlease_ttl='1m'\n");
    let (client, other) = (server.client().await, server.client().await);
    for _ in 0..size(20, 100, 1000) {
        let held = client.take("db").await;
        let gone = client.start(ask("db"));
        server.until("db", |now| now.queued == 1).await;
        let behind = other.start(ask("db"));
        server.until("db", |now| now.queued == 2).await;
        gone.abort();
        server.until_within(AT_ONCE, "db", |now| now.queued == 1).await;
        client.release(&held.lease_id).await;
        // The one behind it is granted now, and not when a lost lease has ended.
        let lease = tokio::time::timeout(AT_ONCE, behind).await.expect("at once").unwrap().unwrap().lease.unwrap();
        other.release(&lease.lease_id).await;
    }
    assert_eq!(server.status("db").await.expired, 0);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w05_a_cancelled_head_of_the_queue_lets_those_behind_it_run() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=3\nmax_wait='10m'\nlease_ttl='1m'\n");
    let (client, other) = (server.client().await, server.client().await);
    for _ in 0..size(20, 100, 1000) {
        let held = client.take("db").await;
        let large = client.start(v1::AcquireRequest { permits: 3, ..ask("db") });
        server.until("db", |now| now.queued == 1).await;
        let behind = [other.start(ask("db")), other.start(ask("db"))];
        server.until("db", |now| now.queued == 3).await;
        large.abort();
        for waiter in behind {
            let lease = tokio::time::timeout(AT_ONCE, waiter).await.expect("at once").unwrap().unwrap().lease.unwrap();
            other.release(&lease.lease_id).await;
        }
        client.release(&held.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

/// What those who cancel have seen.
#[derive(Default)]
struct Seen {
    cancelled: AtomicUsize,
    withdrawn: AtomicUsize,
    released: AtomicUsize,
}

/// Asks, and drops the call after 0 to 5 ms; a lease is kept for about 1 ms. Whoever gave up says so by its request id,
/// but for one in a hundred, whose lease (if there is one) waits for its end.
async fn ask_and_cancel(client: &Client, seen: &Seen) {
    let start = Instant::now();
    let request_id = format!("{:032x}", rand::random::<u128>());
    let request = v1::AcquireRequest { request_id: request_id.clone(), ..ask("db") };
    let patience = Duration::from_micros(rand::rng().random_range(0..5000));
    if let Ok(response) = tokio::time::timeout(patience, client.acquire(request)).await {
        let response = response.unwrap_or_else(|status| panic!("{}", reason(&status)));
        tokio::time::sleep(Duration::from_millis(1)).await;
        give_back(client, &response).await;
        return;
    }
    seen.cancelled.fetch_add(1, Ordering::Relaxed);
    if rand::random_ratio(1, 100) {
        return;
    }
    match client.release_request("db", &request_id).await {
        ReleaseState::Withdrawn => seen.withdrawn.fetch_add(1, Ordering::Relaxed),
        ReleaseState::Released => seen.released.fetch_add(1, Ordering::Relaxed),
        // The cancel was quicker, or the call never left.
        ReleaseState::Unknown => 0,
        // Its own lease ended meanwhile.
        ReleaseState::Expired if start.elapsed() >= TTL => 0,
        other => panic!("a call that gave up found {other:?}"),
    };
}

/// Releases what was granted just now. Only a machine that paused for a whole ttl may be too late for it.
async fn give_back(client: &Client, response: &v1::AcquireResponse) {
    let heard = Instant::now();
    let state = client.release(&response.lease.as_ref().unwrap().lease_id).await;
    let is_late = state == ReleaseState::Expired && heard.elapsed() >= TTL / 2;
    assert!(state == ReleaseState::Released || is_late, "{state:?} after {:?}", heard.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_thousands_of_cancels_at_any_moment_leak_nothing_and_stall_nobody() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=3\nmax_queued=1000\nmax_wait='1m'\nlease_ttl='2s'\n");
    let clients = server.clients(4).await;
    let cancels = size(500, 5000, 200_000);
    let seen = Arc::new(Seen::default());
    let mut tasks = Vec::new();
    for client in clients.iter().cycle().take(32) {
        let (client, seen) = (client.clone(), seen.clone());
        tasks.push(tokio::spawn(async move {
            while seen.cancelled.load(Ordering::Relaxed) < cancels {
                ask_and_cancel(&client, &seen).await;
            }
        }));
    }
    // Beside them somebody works as they should, and is granted within the wait, however often others leave.
    let mut longest = Duration::ZERO;
    let steady = server.client().await;
    while tasks.iter().any(|task| !task.is_finished()) {
        let start = Instant::now();
        let response = steady.acquire(ask("db")).await.expect("its turn comes");
        longest = longest.max(start.elapsed());
        give_back(&steady, &response).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    // At worst every permit is a lost reply's and waits for its lease to end.
    assert!(longest <= TTL + slack(TTL) + AT_ONCE, "{longest:?}");
    let status = server.until_within(AT_ONCE, "db", |now| now.queued == 0).await;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    // No wait was over, so whoever was queued and neither granted nor withdrawn was taken out by its cancel. At least:
    // not all who were granted had waited.
    let [queued, granted] = [status.waited, status.granted].map(|count| usize::try_from(count).unwrap());
    let left = queued.saturating_sub(granted + count(&seen.withdrawn));
    println!("{queued} queued, {granted} granted, longest wait of the steady one {longest:?}");
    exercised("cancelled calls", count(&seen.cancelled), cancels);
    exercised("of them taken out of the queue by it, at least", left, cancels / 10);
    exercised("of them granted before it, and released by request id", count(&seen.released), cancels / 500);
    drain_and_refill(&server, "db").await;
}

/// A client in a process of its own.
struct Process(Child);

impl Process {
    /// Starts it, and returns when it has said that it is ready.
    fn start(server: &Server, what: &str, count: usize) -> Self {
        Self::launch(server, what, count).ready()
    }

    fn launch(server: &Server, what: &str, count: usize) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_wire-client"))
            .args([&server.admission_address().to_string(), "db", what, &count.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn ready(mut self) -> Self {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "a client that does not start");
        self
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn p3_a_client_that_is_killed_while_it_waits_leaves_at_once() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100\nmax_wait='10m'\nlease_ttl='1m'\n");
    let client = server.client().await;
    let kills = size(5, 30, 500);
    for _ in 0..kills {
        let held = client.take("db").await;
        let process = Process::start(&server, "wait", 5);
        server.until("db", |now| now.queued == 5).await;
        let behind = client.start(ask("db"));
        server.until("db", |now| now.queued == 6).await;
        process.kill();
        server.until_within(AT_ONCE, "db", |now| now.queued == 1).await;
        client.release(&held.lease_id).await;
        let lease = tokio::time::timeout(AT_ONCE, behind).await.expect("at once").unwrap().unwrap().lease.unwrap();
        client.release(&lease.lease_id).await;
    }
    exercised("waiters killed", 5 * kills, 25);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p3_what_a_killed_client_held_is_reclaimed_when_its_lease_ends() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=20\nlease_ttl='2s'\n");
    let mut killed = 0;
    for _ in 0..size(1, 5, 100) {
        in_time(TTL + slack(TTL), async || {
            let (before, stalled) = (server.status("db").await.expired, server.stalled());
            let start = Instant::now();
            let processes: Vec<_> = (0..5).map(|_| Process::launch(&server, "hold", 4)).collect();
            let processes: Vec<_> = processes.into_iter().map(Process::ready).collect();
            let ready = Instant::now();
            let holds_all = async || {
                let running = server.status("db").await.running;
                assert!(running == 20 || start.elapsed() >= TTL, "{running} running");
            };
            holds_all().await;
            for process in processes {
                process.kill();
                killed += 4;
            }
            // The end of a connection is no release.
            holds_all().await;
            server.until("db", |now| now.running == 0).await;
            let took = ready.elapsed();
            assert_eq!(server.status("db").await.expired, before + 20);
            took.saturating_sub(server.stalled().saturating_sub(stalled))
        })
        .await;
    }
    exercised("holders killed", killed, 20);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p3_clients_that_are_killed_at_any_moment_lose_no_permit() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nmax_queued=1000\nmax_wait='1m'\nlease_ttl='2s'\n");
    let kills = size(10, 60, 2000);
    let mut processes = Vec::new();
    for kill in 0.. {
        // A slow machine needs longer for as many grants.
        if kill >= kills && (kill >= 3 * kills || server.status("db").await.granted >= 10 * kills as u64) {
            break;
        }
        processes.push(Process::start(&server, "churn", 8));
        if processes.len() == 3 {
            // The moment is what is random here.
            tokio::time::sleep(Duration::from_micros(rand::rng().random_range(0..20_000))).await;
            processes.remove(0).kill();
        }
    }
    for process in processes {
        process.kill();
    }
    let status = server.until_within(AT_ONCE, "db", |now| now.queued == 0).await;
    exercised("grants to clients that were killed", usize::try_from(status.granted).unwrap(), 10 * kills);
    exercised("requests queued", usize::try_from(status.waited).unwrap(), kills);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r5_a_waiter_that_fell_silent_is_noticed_by_keepalive() {
    let server = Server::start(
        "[server]\nkeepalive_interval='1s'\nkeepalive_timeout='3s'\n\
         [[bulkhead]]\nname='db'\nlimit=1\nmax_wait='10m'\nlease_ttl='2s'\nmax_lease_ttl='1m'\n",
    );
    let proxy = Proxy::start(server.admission_address()).await;
    let (client, silent) = (server.client().await, Client::connect(proxy.address()).await);
    let held = client.granted(v1::AcquireRequest { lease_ttl: seconds(60), ..ask("db") }).await;
    let waiters = [silent.start(ask("db")), silent.start(ask("db"))];
    server.until("db", |now| now.queued == 2).await;
    proxy.set(Faults::BLACK_HOLE);
    let start = Instant::now();
    // 1 s and 3 s, and what a busy machine may add; the defaults are 15 s.
    server.until_within(Duration::from_secs(9), "db", |now| now.queued == 0).await;
    println!("noticed after {:?}", start.elapsed());
    client.release(&held.lease_id).await;
    assert_eq!(server.status("db").await.running, 0, "nobody was granted");
    for waiter in waiters {
        waiter.abort();
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r5_a_silent_waiter_that_is_granted_before_it_is_noticed_idles_until_its_lease_ends() {
    let server = Server::start(
        "[server]\nkeepalive_interval='1s'\nkeepalive_timeout='3s'\n\
         [[bulkhead]]\nname='db'\nlimit=1\nmax_wait='10m'\nlease_ttl='2s'\nmax_lease_ttl='1m'\n",
    );
    let mut expired = 0;
    in_time(TTL + slack(TTL), async || {
        let proxy = Proxy::start(server.admission_address()).await;
        let (client, silent) = (server.client().await, Client::connect(proxy.address()).await);
        let held = client.granted(v1::AcquireRequest { lease_ttl: seconds(60), ..ask("db") }).await;
        let waiter = silent.start(ask("db"));
        server.until("db", |now| now.queued == 1).await;
        let next = client.start(ask("db"));
        server.until("db", |now| now.queued == 2).await;
        let stalled = server.stalled();
        proxy.set(Faults::BLACK_HOLE);
        let start = Instant::now();
        client.release(&held.lease_id).await;
        let status = server.status("db").await;
        if start.elapsed() < TTL {
            // The silent one has it, and cannot know.
            at_once(&server, "db", &status, (0, 2), (1, 1)).await;
        }
        let response = next.await.unwrap().unwrap();
        let took = start.elapsed();
        assert!(took >= TTL, "{took:?}");
        expired += 1;
        assert_eq!(server.status("db").await.expired, expired);
        client.release(&response.lease.unwrap().lease_id).await;
        waiter.abort();
        took.saturating_sub(server.stalled().saturating_sub(stalled))
    })
    .await;
    drain_and_refill(&server, "db").await;
}
