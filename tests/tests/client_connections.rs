//! The Rust client's connections: how many there are, and that their coming and going is not noticed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_client::{Client, Error, LeaseState};
use tidegate_tests::{Instant, PATIENCE, Server, drain_and_refill, exercised, in_time, size};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
/// By when a client is back after a fault has ended.
const BACK: Duration = Duration::from_secs(30);

/// Carries connections to a server, counts the open ones, and ends all at once when told.
struct Doors {
    address: SocketAddr,
    most: Arc<AtomicUsize>,
    made: Arc<AtomicUsize>,
    cut: watch::Sender<()>,
}

impl Doors {
    async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, cuts) = watch::channel(());
        let [open, most, made] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let doors = Self { address, most: most.clone(), made: made.clone(), cut };
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (open, mut cuts) = (open.clone(), cuts.clone());
                cuts.mark_unchanged();
                made.fetch_add(1, Ordering::SeqCst);
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(upstream).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cuts.changed() => {}
                    }
                    // Counted out before the client can see the end.
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        doors
    }
}

#[tokio::test]
async fn a_wait_outlasts_more_broken_connections_than_the_grace_is_long() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='5m'\nlease_ttl='60s'\n");
    let doors = Doors::start(server.admission_address()).await;
    let client = Client::builder(format!("http://{}", doors.address)).grace(3 * SECOND).connect().await.unwrap();
    let db = client.bulkhead("db");
    let permit = db.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { db.acquire().await });
    let (start, mut made) = (Instant::now(), 1);
    while start.elapsed() < 6 * SECOND || made < 5 {
        server.until("db", |now| now.queued == 1).await;
        doors.cut.send_replace(());
        made += 1;
        while doors.made.load(Ordering::SeqCst) < made {
            assert!(start.elapsed() < BACK, "{made} were made");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    exercised("broken connections", made, 5);
    drop(permit);
    drop(waiting.await.unwrap().expect("each connection had answered"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_forced_reconnects_leave_at_most_two_connections_open() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nmax_queued=1000\nmax_wait='60s'\nlease_ttl='60s'\n");
    let doors = Doors::start(server.admission_address()).await;
    let client = Client::builder(format!("http://{}", doors.address)).grace(BACK).connect().await.unwrap();
    let db = client.bulkhead("db");
    let mut permits = vec![db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    let waiters: Vec<_> = (0..250)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.with_max_wait(PATIENCE * 100).acquire().await.map(drop) })
        })
        .collect();
    let rounds = size(20, 100, 1_000);
    for round in 0..rounds {
        // Both lines are up again, and in use.
        let start = Instant::now();
        while doors.made.load(Ordering::SeqCst) < 2 * (round + 1) {
            assert!(start.elapsed() < BACK, "{} were made", doors.made.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        doors.cut.send_replace(());
    }
    exercised("connections made", doors.made.load(Ordering::SeqCst), rounds * 2);
    assert_eq!(doors.most.load(Ordering::SeqCst), 2);
    permits.clear();
    for waiter in waiters {
        waiter.abort();
    }
    client.flush().await;
    server.until("db", |now| now.running == 0 && now.queued == 0).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_age_of_connections_is_not_noticed() {
    let config =
        "[server]\nmax_connection_age='1s'\n[[bulkhead]]\nname='db'\nlimit=3\nmax_wait='5m'\nlease_ttl='30s'\n";
    let server = Server::start(config);
    let doors = Doors::start(server.admission_address()).await;
    let client = Client::builder(format!("http://{}", doors.address)).grace(BACK).connect().await.unwrap();
    let db = client.bulkhead("db");
    let held = db.acquire().await.unwrap();
    // One waits through all of it.
    let all = db.with_permits(3);
    let waits = tokio::spawn(async move { all.acquire().await });
    let made = || doors.made.load(Ordering::SeqCst);
    let (start, mut calls) = (Instant::now(), 0);
    while made() < 5 {
        assert!(start.elapsed() < PATIENCE * 4, "{} connections were made", made());
        // Behind the one that waits these are refused: an answer, too. Once there have been three connections, the first
        // is cut, and whoever waited there asks again.
        let sent = Instant::now();
        match db.with_max_wait(Duration::ZERO).acquire().await {
            Ok(permit) => drop(permit),
            Err(Error::Refused(refusal)) => assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED"),
            // The client gives up on an answer that is a second late, as on a machine that stalls.
            Err(error) => assert!(sent.elapsed() >= SECOND, "noticed: {error}"),
        }
        assert_ne!(held.state(), LeaseState::Lost);
        calls += 1;
    }
    exercised("calls while connections came and went", calls, 50);
    held.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_age_with_long_waits_does_not_keep_the_second_one_from_opening() {
    let config = "[server]\nmax_connection_age='2s'\n[[bulkhead]]\nname='free'\nlimit=1000\n\
        [[bulkhead]]\nname='db'\nlimit=1\nmax_queued=1000\nmax_wait='5m'\nlease_ttl='60s'\n";
    // Within the patience that a client has by default.
    in_time(SECOND, async || {
        let server = Server::start(config);
        let _held = server.client().await.take("db").await;
        let doors = Doors::start(server.admission_address()).await;
        let client = Client::builder(format!("http://{}", doors.address)).grace(BACK).connect().await.unwrap();
        let db = client.bulkhead("db");
        // As many as the first connection takes. It comes of age, and stays for them beside the next one.
        let waits: Vec<_> = (0..200)
            .map(|_| {
                tokio::spawn({
                    let db = db.clone();
                    async move { db.acquire().await }
                })
            })
            .collect();
        server.until("db", |now| now.queued == 200).await;
        let start = Instant::now();
        while doors.made.load(Ordering::SeqCst) < 2 {
            assert!(start.elapsed() < PATIENCE, "it does not come of age");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // So this one is for the second.
        let sent = Instant::now();
        drop(client.bulkhead("free").acquire().await.expect("a place is made for it"));
        let took = sent.elapsed();
        waits.iter().for_each(JoinHandle::abort);
        took
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p25_rolling_restarts_are_ridden_out() {
    const LIMIT: usize = 2;
    let config =
        "drain_grace='10s'\n[[bulkhead]]\nname='db'\nlimit=2\nmax_queued=100\nmax_wait='60s'\nlease_ttl='30s'\n";
    let mut server = Server::start(&format!("[server]\n{config}"));
    let address = server.admission_address();
    let client = Client::builder(format!("http://{address}")).grace(BACK).connect().await.unwrap();
    let (running, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (stop, stopped) = watch::channel(false);
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (db, running, done, stopped) = (client.bulkhead("db"), running.clone(), done.clone(), stopped.clone());
            tokio::spawn(async move {
                while !*stopped.borrow() {
                    // Whatever happens to the server, no error comes through.
                    let permit = db.acquire().await.unwrap();
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= LIMIT, "{now} run at once");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    permit.release().await.unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let restarts = size(2, 5, 50);
    for _ in 0..restarts {
        let before = done.load(Ordering::SeqCst);
        let start = Instant::now();
        while done.load(Ordering::SeqCst) < before + 20 {
            assert!(start.elapsed() < BACK, "nobody gets on");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.ask_to_end();
        let exit = server.ended().await;
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        server = Server::start(&format!("[server]\nlisten='{address}'\n{config}"));
    }
    stop.send_replace(true);
    for worker in workers {
        worker.await.unwrap();
    }
    exercised("grants over restarts", done.load(Ordering::SeqCst), restarts * 20);
    client.flush().await;
    drain_and_refill(&server, "db").await;
}
