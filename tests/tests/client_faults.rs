//! The Rust client against a server that is killed, stopped, black-holed and restarted: what its holders are told and
//! when, how it comes back, and what work does meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_client::{Bulkhead, Client, Error, Fallback, LeaseState, Loss, Permit};
use tidegate_tests::{
    Faults, Instant, PATIENCE, Proxy, Server, Way, drain_and_refill, exercised, in_time, seconds, size, v1,
};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
/// By when a client is back after a fault has ended.
const BACK: Duration = Duration::from_secs(30);

const SHORT: &str = "[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='2s'\nmax_wait='60s'\n";

async fn connect(address: SocketAddr) -> Client {
    Client::connect(format!("http://{address}")).await.expect("the server serves")
}

/// The same server, started again where it was.
fn again(address: SocketAddr, rest: &str) -> Server {
    let named = format!("[server]\nlisten='{address}'\n{rest}");
    Server::start(&named)
}

/// Acquires until it works.
async fn is_back(db: &Bulkhead) -> Permit {
    let start = Instant::now();
    loop {
        match db.acquire().await {
            Ok(permit) => return permit,
            Err(error) => assert!(start.elapsed() < BACK, "still away after {BACK:?}: {error}"),
        }
    }
}

/// The client learns of its loss before the server gives the permit to the next one. What tells it may be held up on the
/// way; that its lease is lost follows from the time alone.
async fn loss_comes_first(server: &Server, permit: Permit) -> Loss {
    let next = server.client().await.start(v1::AcquireRequest {
        bulkhead: "db".into(),
        max_wait: seconds(60),
        ..v1::AcquireRequest::default()
    });
    let granted = async {
        next.await.unwrap().expect("the permit comes free");
        assert_eq!(permit.state(), LeaseState::Lost, "two that trust their lease");
    };
    let told = async {
        let loss = permit.lost().await;
        assert_eq!(permit.state(), LeaseState::Lost);
        loss
    };
    let told = tokio::time::timeout(PATIENCE, told);
    let ((), loss) = tokio::join!(granted, told);
    loss.expect("it is told")
}

#[tokio::test]
async fn a_black_hole_is_told_before_the_permit_is_anothers_and_the_client_comes_back() {
    for round in 0..size(2, 4, 100) {
        let server = Server::start(SHORT);
        let proxy = Proxy::start(server.admission_address()).await;
        let db = connect(proxy.address()).await.bulkhead("db");
        let permit = db.acquire().await.unwrap();
        // Once everything falls silent, once only the answers are lost: then the connection is of no use afterwards.
        proxy.set(if round % 2 == 0 { Faults::BLACK_HOLE } else { Faults::DROP_REPLIES });
        let loss = loss_comes_first(&server, permit).await;
        // With lost answers the server renews what the client no longer trusts.
        assert_eq!(loss, Loss::Unrenewed);
        proxy.set(Faults::NONE);
        server.until("db", |now| now.running == 1).await;
        let admin = server.admin().await.leases("db").await;
        assert_eq!(admin.len(), 1);
        server.until("db", |now| now.running == 0).await;
        drop(is_back(&db).await);
    }
}

#[tokio::test]
async fn a_lease_is_in_doubt_while_renewals_fail_and_held_again_when_they_succeed() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='30s'\n");
    let proxy = Proxy::start(server.admission_address()).await;
    let db = connect(proxy.address()).await.bulkhead("db");
    let permit = db.with_lease_ttl(30 * SECOND).acquire().await.unwrap();
    let first_deadline = permit.deadline().unwrap();
    // Renewals begin after a third of the ttl; then the line goes.
    let state = async |wanted: LeaseState| {
        let start = Instant::now();
        while permit.state() != wanted {
            assert!(start.elapsed() < PATIENCE, "still {:?}", permit.state());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let renewed = async {
        let start = Instant::now();
        while permit.deadline().unwrap() == first_deadline {
            assert!(start.elapsed() < PATIENCE, "never renewed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    renewed.await;
    proxy.set(Faults::BLACK_HOLE);
    state(LeaseState::InDoubt).await;
    proxy.set(Faults::NONE);
    state(LeaseState::Held).await;
    assert_eq!(server.status("db").await.expired, 0);
    permit.release().await.unwrap();
}

#[tokio::test]
async fn a_killed_server_is_told_and_the_client_comes_back_to_the_next_one() {
    // Before a server that remembered it could give it away.
    in_time(2 * SECOND, async || {
        let server = Server::start(SHORT);
        let address = server.admission_address();
        let db = connect(address).await.bulkhead("db");
        let permit = db.acquire().await.unwrap();
        let granted = Instant::now();
        drop(server);
        permit.lost().await;
        let told = granted.elapsed();
        let server = again(address, SHORT);
        drop(permit);
        drop(is_back(&db).await);
        server.until("db", |now| now.running == 0).await;
        drain_and_refill(&server, "db").await;
        told
    })
    .await;
}

#[tokio::test]
async fn a_stopped_server_never_has_two_holders_that_trust_their_lease() {
    for round in 0..size(2, 6, 100u32) {
        let server = Server::start(SHORT);
        let db = connect(server.admission_address()).await.bulkhead("db");
        let permit = db.acquire().await.unwrap();
        server.stop();
        // Shorter than the lease, as long, longer.
        let stop = SECOND * (1 + 2 * (round % 3)) / 2 + SECOND / 4;
        let lost = tokio::time::timeout(stop, permit.lost()).await;
        server.cont();
        if lost.is_err() && permit.state() != LeaseState::Lost {
            // The server forgives its own stop, and has the lease in the count for as long as it is trusted.
            let next = server.client().await.start(tidegate_tests::ask("db"));
            let status = server.until("db", |now| now.queued == 1 || now.granted > 1).await;
            assert!(status.granted == 1 || permit.state() == LeaseState::Lost, "two that trust their lease");
            drop(permit);
            next.await.unwrap().unwrap();
            continue;
        }
        drop(permit);
        drop(is_back(&db).await);
    }
}

#[tokio::test]
async fn an_acquire_is_tried_again_while_the_server_is_away_for_a_moment() {
    let server = Server::start(SHORT);
    let address = server.admission_address();
    let client = Client::builder(format!("http://{address}")).grace(BACK).connect().await.unwrap();
    let db = client.bulkhead("db");
    drop(server);
    let waiting = tokio::spawn(async move { db.acquire().await.map(drop) });
    let server = again(address, SHORT);
    waiting.await.unwrap().expect("the second server answers within the grace");
    server.until("db", |now| now.running == 0 && now.granted == 1).await;
}

#[tokio::test]
async fn a_lost_answer_gets_the_same_lease_again() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='60s'\nmax_lease_ttl='60s'\n");
    let proxy = Proxy::start(server.admission_address()).await;
    let client = Client::builder(format!("http://{}", proxy.address())).grace(BACK).connect().await.unwrap();
    let db = client.bulkhead("db");
    let mut replays = 0;
    for _ in 0..size(5, 20, 500) {
        proxy.set(Faults { to_client: Way::Lost, ..Faults::NONE });
        let asking = tokio::spawn({
            let db = db.clone();
            async move { db.acquire().await }
        });
        let granted = server.status("db").await.granted;
        server.until("db", |now| now.granted > granted || now.running == 1).await;
        proxy.set(Faults::NONE);
        proxy.reset();
        let permit = asking.await.unwrap().unwrap();
        assert_eq!(server.status("db").await.running, 1, "never a second lease");
        replays += 1;
        permit.release().await.unwrap();
    }
    exercised("lost answers", replays, 5);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn closed_passes_the_error_on_and_says_what_is_wrong() {
    // A second of grace, not more.
    in_time(3 * SECOND, async || {
        let server = Server::start(SHORT);
        let client = connect(server.admission_address()).await;
        let db = client.bulkhead("db");
        drop(server);
        let start = Instant::now();
        let error = db.acquire().await.unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.reason(), "UNREACHABLE");
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!((client.counts().fallbacks, client.is_falling_back()), (0, false));
        took
    })
    .await;
}

#[tokio::test]
async fn a_local_fallback_is_bounded_counted_and_ends_with_the_servers_answer() {
    let server = Server::start(SHORT);
    let address = server.admission_address();
    let builder = Client::builder(format!("http://{address}")).fallback(Fallback::Local(2), Duration::from_mins(1));
    let client = builder.grace(SECOND / 4).connect().await.unwrap();
    let db = client.bulkhead("db");
    drop(server);
    let permits = [db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    // Another handle of the same bulkhead counts together with the first.
    let third = client.bulkhead("db").with_max_wait(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(third.reason(), "CONCURRENCY_CAPACITY_EXHAUSTED");
    assert!(client.is_falling_back());
    assert_eq!((client.counts().fallbacks, client.counts().fallback_grants), (1, 3));
    drop(permits);
    let server = again(address, SHORT);
    let start = Instant::now();
    while client.is_falling_back() {
        assert!(start.elapsed() < BACK);
        drop(db.acquire().await.unwrap());
    }
    server.until("db", |now| now.granted > 0 && now.running == 0).await;
}

#[tokio::test]
async fn an_open_fallback_ends_in_time() {
    let server = Server::start(SHORT);
    let builder = Client::builder(format!("http://{}", server.admission_address())).grace(SECOND / 4);
    let client = builder.fallback(Fallback::Open, 3 * SECOND).connect().await.unwrap();
    let db = client.bulkhead("db");
    drop(server);
    let start = Instant::now();
    let permits = [db.acquire().await.unwrap(), db.acquire().await.unwrap()];
    assert_eq!(permits.map(|permit| permit.fencing_token()), [0, 0]);
    while let Ok(permit) = db.acquire().await {
        drop(permit);
        assert!(start.elapsed() < BACK, "never silently for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(start.elapsed() >= 3 * SECOND);
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_starts_no_fallback() {
    let server = Server::start(SHORT);
    let builder = Client::builder(format!("http://{}", server.admission_address()));
    let client = builder.fallback(Fallback::Open, Duration::from_mins(1)).connect().await.unwrap();
    let db = client.bulkhead("db").with_max_wait(Duration::ZERO);
    let _permit = db.acquire().await.unwrap();
    assert!(matches!(db.acquire().await, Err(Error::Refused(_))));
    assert_eq!(client.counts().fallbacks, 0);
}

#[tokio::test]
async fn an_impatient_caller_starts_no_fallback() {
    let server = Server::start(SHORT);
    let proxy = Proxy::start(server.admission_address()).await;
    let builder = Client::builder(format!("http://{}", proxy.address())).grace(BACK);
    let client = builder.fallback(Fallback::Open, Duration::from_mins(1)).connect().await.unwrap();
    proxy.set(Faults { delay: SECOND / 2, ..Faults::NONE });
    let db = client.bulkhead("db").with_timeout(SECOND / 10);
    assert_eq!(db.acquire().await.unwrap_err().reason(), "UNREACHABLE");
    assert_eq!(client.counts().fallbacks, 0);
    proxy.set(Faults::NONE);
    client.flush().await;
    server.until("db", |now| now.running == 0 && now.queued == 0).await;
}

#[tokio::test]
async fn a_full_bulkhead_over_a_slow_line_starts_no_fallback_and_a_black_hole_does() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\nlease_ttl='1m'\n");
    let _held = server.client().await.take("db").await;
    let proxy = Proxy::start(server.admission_address()).await;
    let builder = Client::builder(format!("http://{}", proxy.address())).grace(2 * SECOND);
    let client = builder.fallback(Fallback::Open, Duration::from_mins(1)).connect().await.unwrap();
    // The answer comes after the caller's own time is over, and that is longer than the patience with silence.
    proxy.set(Faults { delay: SECOND / 10, ..Faults::NONE });
    let db = client.bulkhead("db").with_timeout(3 * SECOND);
    for _ in 0..2 {
        let error = db.acquire().await.unwrap_err();
        assert!(["UNREACHABLE", "WAIT_TIMEOUT"].contains(&error.reason()), "{error}");
    }
    assert_eq!((client.counts().fallbacks, client.is_falling_back()), (0, false));
    // Whoever meets the black hole first is told; then it is known.
    proxy.set(Faults::BLACK_HOLE);
    let mut failed = 0;
    while db.acquire().await.is_err() {
        failed += 1;
        assert!(failed <= 2, "nobody notices");
    }
    assert!(client.is_falling_back());
}

#[tokio::test]
async fn an_impatient_caller_starts_no_fallback_while_a_server_drains() {
    let server = Server::start("[server]\ndrain_grace='1m'\n[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='1m'\n");
    let _held = server.client().await.take("db").await;
    let builder = Client::builder(format!("http://{}", server.admission_address())).grace(BACK);
    let client = builder.fallback(Fallback::Open, Duration::from_mins(1)).connect().await.unwrap();
    server.ask_to_end();
    server.until_logged("draining", 1).await;
    let db = client.bulkhead("db").with_timeout(SECOND / 20);
    let start = Instant::now();
    // On a busy machine its time may be over before any answer.
    while db.acquire().await.unwrap_err().reason() != "DRAINING" {
        assert!(start.elapsed() < BACK, "it is never told");
    }
    assert_eq!(client.counts().fallbacks, 0);
}

#[tokio::test]
async fn a_timeout_holds_also_while_the_server_is_away() {
    let server = Server::start(SHORT);
    let proxy = Proxy::start(server.admission_address()).await;
    let client = Client::builder(format!("http://{}", proxy.address())).grace(BACK).connect().await.unwrap();
    let db = client.bulkhead("db").with_timeout(SECOND / 10);
    drop(server);
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(db.acquire().await.unwrap_err().reason(), "UNREACHABLE");
        assert!(start.elapsed() < BACK / 3, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn an_operators_revocation_is_told_at_once() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='12s'\n");
    let admin = server.admin().await;
    let client = connect(server.admission_address()).await;
    let db = client.bulkhead("db");
    for attempt in 1.. {
        let permit = db.acquire().await.unwrap();
        let granted = permit.deadline();
        // Once it was renewed the server knows which stream to tell; from then on the next renewal is 4 s away.
        while permit.deadline() == granted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let start = Instant::now();
        let revoke = v1::RevokeLeaseRequest {
            bulkhead: "db".into(),
            fencing_token: permit.fencing_token(),
            ..v1::RevokeLeaseRequest::default()
        };
        admin.stub().revoke_lease(revoke).await.unwrap();
        assert_eq!(permit.lost().await, Loss::Revoked);
        let took = start.elapsed();
        drop(permit);
        client.flush().await;
        if took <= SECOND {
            break;
        }
        assert!(attempt < 5, "told after {took:?}");
    }
    drain_and_refill(&server, "db").await;
}

/// A client that works without its server after such a silence.
async fn open_after(grace: Duration, address: SocketAddr) -> Client {
    let builder = Client::builder(format!("http://{address}")).grace(grace);
    builder.fallback(Fallback::Open, Duration::from_mins(1)).connect().await.unwrap()
}

/// How long it took from now until work goes on without a permit.
async fn falls_back(db: &Bulkhead) -> Duration {
    let start = Instant::now();
    while db.acquire().await.is_err() {
        assert!(start.elapsed() < BACK, "it never falls back");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

#[tokio::test]
async fn what_impatient_callers_meet_adds_up_to_a_fallback() {
    // A second of grace and a call; before that, at the latest, a probe that has a second, too.
    in_time(5 * SECOND, async || {
        let server = Server::start("[server]\ndrain_grace='1m'\n[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='1m'\n");
        let _held = server.client().await.take("db").await;
        let client = open_after(SECOND, server.admission_address()).await;
        server.ask_to_end();
        server.until_logged("draining", 1).await;
        let draining = falls_back(&client.bulkhead("db").with_timeout(SECOND / 5)).await;
        assert!(draining >= SECOND, "{draining:?}");
        assert_eq!(client.counts().fallbacks, 1);

        let server = Server::start(SHORT);
        let _held = server.client().await.take("db").await;
        let proxy = Proxy::start(server.admission_address()).await;
        let client = open_after(SECOND, proxy.address()).await;
        proxy.set(Faults::BLACK_HOLE);
        draining.max(falls_back(&client.bulkhead("db").with_timeout(SECOND / 5)).await)
    })
    .await;
}

#[tokio::test]
async fn an_overdue_answer_has_the_connection_asked_for_a_sign_of_life() {
    in_time(4 * SECOND, async || {
        let server = Server::start(SHORT);
        let proxy = Proxy::start(server.admission_address()).await;
        let client = open_after(SECOND, proxy.address()).await;
        let db = client.bulkhead("db");
        proxy.set(Faults::BLACK_HOLE);
        falls_back(&db.with_max_wait(Duration::ZERO)).await;
        // Nobody waits any more, also if nothing bounds the wait.
        let start = Instant::now();
        drop(db.acquire().await.unwrap());
        start.elapsed()
    })
    .await;
}

#[tokio::test]
async fn one_who_waited_long_has_patience_with_a_drain() {
    let server = Server::start("[server]\ndrain_grace='1m'\n[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='1m'\n");
    let _held = server.client().await.take("db").await;
    let client = open_after(SECOND, server.admission_address()).await;
    let db = client.bulkhead("db");
    let waiting = tokio::spawn(async move { db.acquire().await });
    server.until("db", |now| now.queued == 1).await;
    tokio::time::sleep(3 * SECOND / 2).await;
    let start = Instant::now();
    server.ask_to_end();
    drop(waiting.await.unwrap().unwrap());
    assert!(start.elapsed() >= SECOND, "after {:?}", start.elapsed());
}

/// So many calls of a client at once.
fn crowd(client: &Client, count: usize) -> Vec<JoinHandle<Result<Permit, Error>>> {
    let ask = |_| {
        let db = client.bulkhead("db");
        tokio::spawn(async move { db.acquire().await })
    };
    (0..count).map(ask).collect()
}

#[tokio::test]
async fn a_reconnect_of_a_crowded_client_starts_no_fallback() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=1000\nmax_wait='60s'\nlease_ttl='1m'\n");
    let _held = server.client().await.take("db").await;
    let proxy = Proxy::start(server.admission_address()).await;
    let client = open_after(3 * SECOND, proxy.address()).await;
    // As many as may wait, and some for whom there is no place.
    let waits = crowd(&client, 420);
    server.until("db", |now| now.queued == 400).await;
    // All have waited for longer than that.
    tokio::time::sleep(4 * SECOND).await;
    let waited = server.status("db").await.waited;
    proxy.reset();
    server.until("db", |now| now.queued == 400 && now.waited >= waited + 400).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    assert_eq!(client.counts().fallbacks, 0);
}

#[tokio::test]
async fn a_second_connection_that_cannot_be_had_starts_no_fallback() {
    let config = "[server]\nmax_connections_per_address=2\n[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=1000\nmax_wait='60s'\nlease_ttl='1m'\n";
    let server = Server::start(config);
    // This one and the client's first are all there may be.
    let holder = server.client().await;
    let _held = holder.take("db").await;
    let client = open_after(SECOND, server.admission_address()).await;
    let waits = crowd(&client, 200);
    server.until("db", |now| now.queued == 200).await;
    let start = Instant::now();
    let error = client.bulkhead("db").with_max_wait(3 * SECOND).acquire().await.unwrap_err();
    assert_eq!(error.reason(), "CLIENT_CAP_REACHED");
    assert!(start.elapsed() >= 3 * SECOND);
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    assert_eq!(client.counts().fallbacks, 0);
}
