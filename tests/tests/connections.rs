//! What the server grants connections: how many, how long, and what room on each is not for waiters.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_tests::{Client, Instant, PATIENCE, Server, ask, drain_and_refill, exercised, reason, seconds, size, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

const DB: &str =
    "[[bulkhead]]\nname='db'\nlimit=4\nmax_wait='1m'\nmax_queued=1000\nlease_ttl='2s'\nmax_lease_ttl='1m'\n";

/// Whether the server closes that connection at once.
async fn is_refused(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // What is kept begins with SETTINGS of the server.
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 64])).await.expect("it is kept or closed");
    !matches!(read, Ok(1..))
}

async fn hold(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.read_exact(&mut [0; 9]).await.expect("the server begins");
        held.push(stream);
    }
    held
}

/// Waits until what was closed is gone from the counts.
async fn until_accepted(address: SocketAddr) {
    let start = Instant::now();
    while is_refused(address).await {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn r14_no_more_connections_than_the_cap_and_operators_have_their_own() {
    let server = Server::start(&format!("[server]\nmax_connections=5\n{DB}"));
    assert_eq!(server.status("db").await.running, 0);
    let files = server.open_files();
    let held = hold(server.admission_address(), 5).await;
    assert!(is_refused(server.admission_address()).await);
    assert_eq!(server.status("db").await.running, 0);
    server.until_logged(r#"cap="max_connections" "#, 1).await;
    drop(held);
    until_accepted(server.admission_address()).await;
    server.until_open_files(files).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r14_no_more_connections_from_one_address_than_its_cap() {
    let server = Server::start(&format!("[server]\nmax_connections_per_address=3\n{DB}"));
    let address = server.admission_address();
    let _held = hold(address, 3).await;
    assert!(is_refused(address).await);
    // Another address of this machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(address).await.unwrap();
    other.read_exact(&mut [0; 9]).await.expect("it has a cap of its own");
}

/// What a probe is answered; nothing, if its connection is closed at once.
async fn probe(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Both fail on a connection that was closed already.
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: probe\r\n\r\n").await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn r14_probes_have_a_cap_of_their_own_and_whoever_says_nothing_is_dropped() {
    // A quarter of them is one host's.
    let server = Server::start(&format!("[server]\nmax_connections=8\n{DB}"));
    let address = server.ops_address();
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(probe(address).await, "");
    // Operators and applications do not notice.
    let client = server.client().await;
    client.release(&client.take("db").await.lease_id).await;
    for mut stream in silent {
        let mut told = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("it is dropped in time").unwrap();
    }
    let start = Instant::now();
    while !probe(address).await.starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < PATIENCE);
    }
    drain_and_refill(&server, "db").await;
}

/// What a client is told first over HTTP/2: entries of 6 bytes.
async fn settings_of(address: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut header = [0; 9];
    stream.read_exact(&mut header).await.unwrap();
    let mut settings = vec![0; usize::from(header[2])];
    stream.read_exact(&mut settings).await.unwrap();
    settings
}

#[tokio::test]
async fn p22_probes_may_say_little() {
    let server = Server::start(DB);
    let address = server.ops_address();
    // Longer headers than it reads, over HTTP/1.
    let mut stream = TcpStream::connect(address).await.unwrap();
    let long = format!("GET /livez HTTP/1.1\r\nHost: probe\r\nX: {}\r\n\r\n", "x".repeat(100 << 10));
    // Both fail on a connection that was closed already.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(!answer.contains(" 200 "), "{answer}");
    // Few streams (3), short headers (6).
    let settings = settings_of(address).await;
    for told in [[0, 3, 0, 0, 0, 8], [0, 6, 0, 0, 8 << 2, 0]] {
        assert!(settings.chunks(6).any(|setting| setting == told), "{settings:?}");
    }
    assert!(probe(address).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn p21_operators_may_do_few_things_at_once_on_a_connection() {
    let server = Server::start(DB);
    let settings = settings_of(server.admin_address()).await;
    assert!(settings.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 32]), "{settings:?}");
    assert_eq!(server.status("db").await.running, 0);
}

#[tokio::test]
async fn as_many_files_are_opened_as_may_be() {
    // At first too few for so many connections.
    let server = Server::start_with_files(DB, 128, 1_024);
    let held = hold(server.admission_address(), 100).await;
    drain_and_refill(&server, "db").await;
    drop(held);
}

#[tokio::test]
async fn p22_the_largest_renewals_all_at_once_on_one_connection_are_answered() {
    let server = Server::start(DB);
    let client = server.client().await;
    let lease = client.take("db").await;
    let calls: tokio::task::JoinSet<_> = (0..30)
        .map(|_| {
            let (client, lease_id) = (client.clone(), lease.lease_id.clone());
            async move { client.renew(vec![&*lease_id; 1000]).await.len() }
        })
        .collect();
    assert_eq!(calls.join_all().await, [1000; 30]);
    client.release(&lease.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p23_a_waiting_acquire_outlives_the_age_of_its_connection_and_a_renewal_stream_ends_with_it() {
    let server = Server::start(&format!("[server]\nmax_connection_age='1s'\n{DB}"));
    let holder = server.client().await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(holder.granted(v1::AcquireRequest { lease_ttl: seconds(60), ..ask("db") }).await);
    }
    let client = server.client().await;
    let waiter = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;
    let start = Instant::now();
    let mut stub = server.client().await.stub();
    let mut stream = stub.renew_leases(tokio_stream::pending()).await.unwrap().into_inner();
    let end = tokio::time::timeout(PATIENCE, stream.message()).await.expect("it ends");
    assert!(end.unwrap().is_none(), "that is no error");
    let age = start.elapsed();
    // 1 s, a tenth less or more; without it, half an hour.
    assert!(age >= Duration::from_millis(850), "{age:?}");
    // Long past the age of the waiter's connection: the next one has come of age, too.
    let mut stub = server.client().await.stub();
    let mut stream = stub.renew_leases(tokio_stream::pending()).await.unwrap().into_inner();
    assert!(tokio::time::timeout(PATIENCE, stream.message()).await.expect("it ends").unwrap().is_none());
    assert!(!waiter.is_finished(), "{waiter:?}");
    let now = server.status("db").await;
    assert_eq!(now.queued, 1);
    for lease in leases {
        assert_eq!(holder.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    let lease = waiter.await.unwrap().expect("it is granted on the old connection").lease.unwrap();
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

/// How many lines that one says were held back.
fn held_back(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("cannot accept a connection")?;
    rest.split_whitespace().find_map(|word| word.strip_prefix("held_back=")?.parse().ok())
}

#[tokio::test]
async fn p22_an_error_of_accepting_does_not_end_the_loop() {
    let server = Server::start(DB);
    drain_and_refill(&server, "db").await;
    server.allow_files(3);
    let mut waiting = Vec::new();
    let start = Instant::now();
    while !server.logged("cannot accept a connection") {
        assert!(start.elapsed() < PATIENCE);
        waiting.push(TcpStream::connect(server.admission_address()).await.unwrap());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // It does not try as fast as it can: 20 times a second, and 10 of these are told.
    server.until_logged("cannot accept a connection", 15).await;
    let tried: Vec<u64> = server.log().lines().filter_map(held_back).collect();
    assert!(tried.iter().max().is_some_and(|most| *most < 50), "{tried:?}");
    server.allow_files(512);
    let start = Instant::now();
    let client = server.client().await;
    client.release(&client.take("db").await.lease_id).await;
    // At once; a debug build has all those to accept that came meanwhile.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p23_waiters_leave_room_on_their_connection_for_release_and_renewals() {
    let server = Server::start(&format!("[server]\nmax_streams_per_connection=64\n{DB}"));
    let client = server.client().await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(client.granted(v1::AcquireRequest { lease_ttl: seconds(60), ..ask("db") }).await);
    }
    // 16 of 64 streams are no waiter's.
    let waiters: Vec<_> = (0..48).map(|_| client.start(ask("db"))).collect();
    server.until("db", |now| now.queued == 48).await;
    let bound = PATIENCE;
    let refused = tokio::time::timeout(bound, client.refused(ask("db"))).await.expect("it finds a stream");
    assert_eq!((refused.code, &refused.reason[..]), (Code::ResourceExhausted, "SERVER_CAP_REACHED"));
    assert!(refused.retry_delay.is_some());
    // Another connection has room, and one that needs no place is served.
    let other = server.client().await;
    let elsewhere = other.start(ask("db"));
    server.until("db", |now| now.queued == 49).await;
    elsewhere.abort();
    server.until("db", |now| now.queued == 48).await;
    let renewed = tokio::time::timeout(bound, client.renew_one(&leases[0].lease_id)).await.expect("it finds a stream");
    assert_eq!(renewed, v1::RenewalState::Renewed);
    for lease in leases {
        client.release(&lease.lease_id).await;
    }
    for waiter in waiters {
        let lease = waiter.await.unwrap().expect("its turn came").lease.unwrap();
        client.release(&lease.lease_id).await;
    }
    assert_eq!(client.release(&client.take("db").await.lease_id).await, v1::ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p21_without_memory_no_connection_is_taken_but_operators_are_served() {
    let server = Server::start(&format!("[server]\nmax_memory=1048576\n{DB}"));
    let start = Instant::now();
    while !server.logged("short of memory") {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // It says so just before it does so.
    while !is_refused(server.admission_address()).await {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(server.status("db").await.running, 0);
}

/// The names and partitions that callers invent take no more memory than the caps allow.
#[tokio::test(flavor = "multi_thread")]
async fn p21_a_flood_of_invented_names_and_partitions_grows_nothing_beyond_the_caps() {
    let bulkheads = 1_000;
    let config = "[server]\nmax_bulkheads=1000\nmax_partitions=1000\nmax_remembered=10000\n\
        [[bulkhead]]\nname='db'\nlimit=4\nlease_ttl='2s'\n[[template]]\npattern='invented/*'\nlimit=1\nlease_ttl='2s'\n";
    let server = Server::start(config);
    let clients = server.clients(4).await;
    let flood = async |names: std::ops::Range<usize>| {
        let calls = clients.iter().map(|client| {
            let (client, names) = (client.clone(), names.clone());
            tokio::spawn(async move { invent(&client, names).await })
        });
        let mut refused = 0;
        for call in calls.collect::<Vec<_>>() {
            refused += call.await.unwrap();
        }
        refused
    };
    // All caps are reached, then ten times as many come.
    flood(0..bulkheads).await;
    let before = server.resident();
    let names = size(1_000, 2_500, 125_000);
    let refused = flood(bulkheads..bulkheads + names).await;
    exercised("refused for a cap", refused, names);
    let grown = server.resident().saturating_sub(before);
    println!("{} names and partitions: {} KiB at the caps, {} KiB more", names * 8, before >> 10, grown >> 10);
    assert!(grown <= 32 << 20, "{grown}");
    drain_and_refill(&server, "db").await;
}

/// After a minute nobody is told any more how a lease ended, and its memory is free.
#[tokio::test(flavor = "multi_thread")]
async fn p21_a_minute_after_a_burst_its_memory_is_given_back() {
    if size(true, true, false) {
        return println!("SKIPPED: it needs a minute and a burst that is worth it, so it is one for `make soak`");
    }
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=100\nlease_ttl='1m'\n");
    drain_and_refill(&server, "db").await;
    let before = server.resident();
    let calls: tokio::task::JoinSet<_> = server
        .clients(16)
        .await
        .into_iter()
        .map(|client| async move {
            for _ in 0..60_000 {
                let request_id = format!("{:0>64}", rand::random::<u64>());
                let lease = client.granted(v1::AcquireRequest { request_id, ..ask("db") }).await;
                client.release(&lease.lease_id).await;
            }
        })
        .collect();
    calls.join_all().await;
    let (most, start) = (server.resident(), Instant::now());
    assert!(most > before + (96 << 20), "tested nothing: {} KiB more", (most - before) >> 10);
    // What ended last is remembered for a minute, the sweep comes by within a second, and the allocator gives it back a
    // second or two later.
    while server.resident() > before + before / 10 + (32 << 20) {
        assert!(start.elapsed() < Duration::from_secs(62), "{} KiB", server.resident() >> 10);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (after, took) = (server.resident(), start.elapsed());
    println!("{} KiB before, {} KiB at the most, {} KiB after {took:?}", before >> 10, most >> 10, after >> 10);
    drain_and_refill(&server, "db").await;
}

/// Asks for permits of names, and reports partitions, that nobody has asked for before; answers how many were refused.
async fn invent(client: &Client, names: std::ops::Range<usize>) -> usize {
    let mut refused = 0;
    let mut see = |code: Option<(Code, String)>| {
        if let Some((code, reason)) = code {
            assert_eq!((code, &reason[..]), (Code::ResourceExhausted, "SERVER_CAP_REACHED"));
            refused += 1;
        }
    };
    let told = |status: tonic::Status| (status.code(), reason(&status));
    for _ in names {
        let number: u64 = rand::random();
        let partition = format!("{number:0>200}");
        let acquire = v1::AcquireRequest { max_wait: seconds(0), ..ask(&format!("invented/{number:0>200}")) };
        see(client.acquire(acquire).await.err().map(told));
        let report = v1::ReportRetryAfterRequest { partition, retry_after: seconds(60), ..Default::default() };
        see(client.stub().report_retry_after(report).await.err().map(told));
    }
    refused
}
