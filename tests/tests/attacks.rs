//! Hostile and broken clients hurt only themselves (P22, P23). One attack at a time: they are measured.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_tests::attack::{Attack, Flood, Siege, stand};
use tidegate_tests::{
    Admin, Client, Faults, Instant, PATIENCE, Proxy, Server, ask, drain_and_refill, in_time, seconds, size, v1,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

const DB: &str =
    "[[bulkhead]]\nname='db'\nlimit=4\nmax_wait='1m'\nmax_queued=20000\nlease_ttl='2s'\nmax_lease_ttl='1m'\n";

/// 1 s and 3 s of keepalive, or 1 s of a handshake, and what a busy machine may add; the defaults last longer.
const KEPT: Duration = Duration::from_secs(9);
const SOON_SILENT: &str = "keepalive_interval='1s'\nkeepalive_timeout='3s'\n";
const SOON_OPEN: &str = "handshake_timeout='1s'\n";

/// Whoever is ended here is ended for what it sends, and not because it answers no PING.
const PATIENT: &str = "keepalive_interval='1h'\n";

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn rapid_reset() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::RapidReset, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn continuation() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::Continuation, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_data() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::EmptyData, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_flood() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::Settings, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ping_flood() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::Ping, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_bomb() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::HeaderBomb, PATIENT, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_message() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::OversizeMessage, "", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_window_reader() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::ZeroWindow, "", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_renewal_stream() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::UnreadRenewals, "", false).await;
    // It answers no PING either, though it sends all the time.
    gone(Attack::UnreadRenewals, SOON_SILENT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_on_every_stream() {
    let _turn = ONE_AT_A_TIME.lock().await;
    // A waiter costs some 6 KiB with its stream, and it is this cap that bounds them all. A debug build looks at the whole
    // queue after each change of it, so there it is shorter.
    let most = size(300, 300, 10_000);
    let crowded =
        format!("max_waiters={most}\n[[bulkhead]]\nname='crowded'\nlimit=1\nmax_queued=100000\nmax_wait='1m'\n");
    stand(Attack::Waiters, &crowded, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn black_holed_peer() {
    let _turn = ONE_AT_A_TIME.lock().await;
    // With the defaults of keepalive at last, when a silent peer is promised to be gone within 30 s.
    let (keepalive, bound) = size((SOON_SILENT, KEPT), (SOON_SILENT, KEPT), ("", Duration::from_secs(30)));
    let streams = size(2, 20, 200);
    for connections in [1, 50] {
        let waits = connections * (streams - 1);
        let server = Server::start(&Siege::config(&format!("{keepalive}{DB}")));
        let mut siege = Siege::start(&server).await;
        let holder = server.client().await;
        drain_and_refill(&server, "db").await;
        while siege.goes_on() {
            let mut leases = Vec::new();
            for _ in 0..4 {
                leases.push(holder.granted(v1::AcquireRequest { lease_ttl: seconds(60), ..ask("db") }).await);
            }
            let (before, proxy) = (server.open_files(), Proxy::start(server.admission_address()).await);
            let mut clients = Vec::new();
            for _ in 0..connections {
                let client = Client::connect(proxy.address()).await;
                let stream = client.stub().renew_leases(tokio_stream::pending()).await.unwrap();
                let waiters: Vec<_> = (1..streams).map(|_| client.start(ask("db"))).collect();
                clients.push((client, stream, waiters));
            }
            server.until("db", |now| now.queued as usize == waits).await;
            siege
                .bout(async |_| {
                    proxy.set(Faults::BLACK_HOLE);
                    let start = Instant::now();
                    server.until_within(bound, "db", |now| now.queued == 0).await;
                    while server.open_files() > before {
                        assert!(start.elapsed() < bound, "{} files are open", server.open_files());
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    println!(
                        "{} streams, {connections} black-holed: gone within {:?}",
                        connections * streams,
                        start.elapsed()
                    );
                    for lease in leases {
                        assert_eq!(holder.release(&lease.lease_id).await, v1::ReleaseState::Released);
                    }
                    Duration::ZERO
                })
                .await;
            drain_and_refill(&server, "db").await;
        }
        siege.end().await;
    }
}

/// Whether the server closes that connection at once.
async fn is_refused(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // What is kept begins with SETTINGS of the server.
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 64])).await.expect("it is kept or closed");
    !matches!(read, Ok(1..))
}

/// Waits until what was closed is gone from the counts.
async fn until_accepted(address: SocketAddr) {
    let start = Instant::now();
    while is_refused(address).await {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_connections_at_256_file_descriptors() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start_with_files(&Siege::config(DB), 256, 256);
    let client = server.client().await;
    drain_and_refill(&server, "db").await;
    let mut siege = Siege::start(&server).await;
    while siege.goes_on() {
        siege
            .bout(async |span| {
                let is_over = Cell::new(false);
                let crowds = async {
                    while !is_over.get() {
                        crowded(&server, &client).await;
                    }
                };
                tokio::join!(crowds, async {
                    span.await;
                    is_over.set(true);
                });
                Duration::ZERO
            })
            .await;
    }
    siege.end().await;
    let mut rounds = size(1, 2, 10);
    in_time(Duration::from_secs(1), async || {
        let mut slowest = Duration::ZERO;
        for _ in 0..std::mem::replace(&mut rounds, 1) {
            slowest = slowest.max(crowded(&server, &client).await);
        }
        slowest
    })
    .await;
    assert!(!server.logged("cannot accept"), "files are left for the rest");
    drain_and_refill(&server, "db").await;
}

/// A thousand connections come and go again; how long it takes until another one is accepted.
async fn crowded(server: &Server, client: &Client) -> Duration {
    let (address, files) = (server.admission_address(), server.open_files());
    let mut crowd = Vec::new();
    for _ in 0..1000 {
        crowd.push(TcpStream::connect(address).await.unwrap());
    }
    // Who was there is served, operators come in, and so do newcomers when the crowd is gone.
    client.release(&client.take("db").await.lease_id).await;
    assert!(is_refused(address).await);
    let admin = Admin::connect(server.admin_address()).await;
    assert_eq!(admin.bulkhead("db").await.status.unwrap().limit, 4);
    assert!(server.open_files() < 256);
    drop(crowd);
    let start = Instant::now();
    until_accepted(address).await;
    let took = start.elapsed();
    // The next ones find room, too. The operator's connection may be there still.
    server.until_open_files(files + 1).await;
    took
}

/// From one connection and from fifty: gone within what keepalive promises, with the room they took.
async fn gone(attack: Attack, settings: &str) {
    for connections in [1, 50] {
        let server = Server::start(&format!("[server]\n{settings}{DB}"));
        drain_and_refill(&server, "db").await;
        let start = Instant::now();
        let flood = Flood::start(attack, server.admission_address(), connections, 1_000);
        flood.active(true);
        while flood.ended() < connections as u64 {
            assert!(start.elapsed() < KEPT, "{} are still open", flood.open());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(start.elapsed() >= Duration::from_millis(900), "they had no time");
        println!("{attack:?} from {connections}: gone within {:?}", start.elapsed());
        drop(flood);
        drain_and_refill(&server, "db").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_peer() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::HalfOpen, SOON_SILENT, true).await;
    gone(Attack::HalfOpen, SOON_SILENT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshake() {
    let _turn = ONE_AT_A_TIME.lock().await;
    stand(Attack::SlowHandshake, SOON_OPEN, true).await;
    gone(Attack::SlowHandshake, SOON_OPEN).await;
}
