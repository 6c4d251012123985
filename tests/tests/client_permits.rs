//! The Rust client against the built server: permits, how they are given back, and what a caller is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_client::{Bulkhead, Client, Error, LeaseState, OnCooldown, Outcome, Permit, Priority};
use tidegate_tests::{Instant, PATIENCE, Server, drain_and_refill, exercised, in_time, size};

const SECOND: Duration = Duration::from_secs(1);

async fn connect(server: &Server) -> Client {
    Client::connect(format!("http://{}", server.admission_address())).await.expect("the server serves")
}

/// A server with one bulkhead whose leases are long: what is free soon was given back, not expired.
async fn with_db(rest: &str) -> (Server, Client, Bulkhead) {
    let server = Server::start(&format!("[[bulkhead]]\nname='db'\nlease_ttl='60s'\nmax_lease_ttl='5m'\n{rest}"));
    let client = connect(&server).await;
    let db = client.bulkhead("db");
    (server, client, db)
}

#[tokio::test]
async fn w13_a_block_runs_under_a_permit_of_the_servers() {
    let (server, client, db) = with_db("limit=1").await;
    let running = db.run(async { server.status("db").await.running }).await.unwrap();
    assert_eq!(running, 1);
    server.until("db", |now| now.running == 0).await;
    let permit = db.acquire().await.unwrap();
    assert_eq!((permit.bulkhead(), permit.permits(), permit.state()), ("db", 1, LeaseState::Held));
    let next = permit.fencing_token() + 1;
    assert_eq!(permit.fencing_floor(), permit.fencing_token());
    permit.release().await.unwrap();
    assert_eq!(db.acquire().await.unwrap().fencing_token(), next);
    client.flush().await;
    assert_eq!(server.status("db").await.running, 0, "flushed is given back");
    drain_and_refill(&server, "db").await;
}

/// A lease of 2 s is first renewed after 0.9 s and given up after 1.9: too little for a machine that may stall for a second.
const RENEWED: &str = "[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='2s'\nmax_lease_ttl='4s'\n";

#[tokio::test]
async fn l01_a_lease_is_renewed_while_its_permit_lives() {
    let server = Server::start(RENEWED);
    let db = connect(&server).await.bulkhead("db").with_lease_ttl(4 * SECOND);
    let permit = db.acquire().await.unwrap();
    let bare = server.client().await;
    for expired in 1..=3 {
        // Nobody renews this one: its end is the clock of the test.
        bare.take("db").await;
        server.until("db", |now| now.expired == expired).await;
        still_has(&server, &permit).await;
    }
    permit.release().await.unwrap();
    drain_and_refill(&server, "db").await;
}

/// Its lease is in the count, and trusted; in doubt it may be, where an answer takes its time.
async fn still_has(server: &Server, permit: &Permit) {
    assert_ne!(permit.state(), LeaseState::Lost);
    assert_eq!(server.status("db").await.running, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l01_a_busy_application_does_not_starve_renewals() {
    let server = Server::start(RENEWED);
    let db = connect(&server).await.bulkhead("db").with_lease_ttl(4 * SECOND);
    let permit = db.acquire().await.unwrap();
    // The application's own runtime stands still for longer than a ttl.
    let bare = server.client().await;
    bare.take("db").await;
    tokio::task::block_in_place(|| std::thread::sleep(6 * SECOND));
    server.until("db", |now| now.expired == 1).await;
    still_has(&server, &permit).await;
}

#[tokio::test]
async fn a_permit_comes_back_from_a_panic_an_abort_and_a_losing_select() {
    let (server, _client, db) = with_db("limit=3").await;
    let held = db.clone();
    let panicking = tokio::spawn(async move {
        let _permit = held.acquire().await.unwrap();
        panic!("on purpose");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    server.until("db", |now| now.running == 0).await;
    let held = db.clone();
    let aborted = tokio::spawn(async move { held.run(std::future::pending::<()>()).await });
    server.until("db", |now| now.running == 1).await;
    aborted.abort();
    tokio::select! {
        _ = db.run(std::future::pending::<()>()) => {}
        _ = server.until("db", |now| now.granted == 3) => {}
    }
    server.until("db", |now| now.running == 0).await;
    drain_and_refill(&server, "db").await;
}

#[test]
fn a_permit_comes_back_from_a_runtime_that_stops() {
    // The test's own connections live on a runtime that goes on.
    let watching = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, client, db) = watching.block_on(with_db("limit=2"));
    watching.block_on(server.status("db"));
    let stopping = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = db.clone();
    stopping.spawn(async move { held.run(std::future::pending::<()>()).await });
    stopping.block_on(server.until("db", |now| now.running == 1));
    // One waits in vain and is withdrawn.
    let waits = db.with_permits(2);
    stopping.spawn(async move { waits.acquire().await });
    stopping.block_on(server.until("db", |now| now.running == 1 && now.queued == 1));
    stopping.shutdown_background();
    drop((client, db));
    watching.block_on(async {
        let status = server.until("db", |now| now.running == 0 && now.queued == 0).await;
        assert_eq!(status.expired, 0);
        drain_and_refill(&server, "db").await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w05_whatever_is_given_up_is_withdrawn() {
    let (server, client, db) = with_db("limit=4\nmax_queued=1000").await;
    let acquires = size(2_000, 20_000, 1_000_000);
    let tasks = (0..16u64).map(|seed| {
        let db = db.clone();
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut granted, mut dropped) = (0, 0);
            for _ in 0..acquires / 16 {
                // A third waits for as long as it takes, so that permits go round however slow the machine is.
                let patient = random.random_range(0..3) == 0;
                let patience = if patient { PATIENCE } else { Duration::from_micros(random.random_range(0..3_000)) };
                match tokio::time::timeout(patience, db.acquire()).await {
                    Ok(Ok(permit)) => {
                        granted += 1;
                        if random.random() {
                            tokio::task::yield_now().await;
                        }
                        drop(permit);
                    }
                    Ok(Err(error)) => panic!("{error}"),
                    Err(_) => dropped += 1,
                }
            }
            (granted, dropped)
        })
    });
    let (mut granted, mut dropped) = (0, 0);
    for task in tasks.collect::<Vec<_>>() {
        let (more, fewer) = task.await.unwrap();
        (granted, dropped) = (granted + more, dropped + fewer);
    }
    exercised("grants", granted, acquires / 50);
    exercised("dropped acquires", dropped, acquires / 50);
    client.flush().await;
    let status = server.status("db").await;
    assert_eq!((status.running, status.queued, status.expired), (0, 0, 0));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w03_a_refusal_tells_its_reason_its_numbers_and_when_to_come_back() {
    let (_server, client, db) = with_db("limit=1\nmax_queued=0").await;
    let _permit = db.acquire().await.unwrap();
    let Err(Error::Refused(refusal)) = db.acquire().await else { panic!("nothing is free") };
    assert_eq!((&refusal.reason[..], &refusal.metadata["limit"][..]), ("CONCURRENCY_CAPACITY_EXHAUSTED", "1"));
    let error = Error::Refused(refusal);
    assert!(error.hint().is_some_and(|hint| hint >= Duration::from_millis(50)));
    assert!(error.to_string().contains("come back in"), "{error}");
    assert_eq!(client.counts().refused, 1);
}

#[tokio::test]
async fn w04_zero_wait_is_granted_or_refused_at_once() {
    let (_server, _client, db) = with_db("limit=1").await;
    let at_once = db.with_max_wait(Duration::ZERO);
    let permit = at_once.acquire().await.unwrap();
    assert_eq!(at_once.acquire().await.unwrap_err().reason(), "CONCURRENCY_CAPACITY_EXHAUSTED");
    drop(permit);
}

#[tokio::test]
async fn s02_priorities_partitions_and_weights_reach_the_server() {
    let (server, client, db) = with_db("limit=2\nmax_wait='20s'").await;
    let permit = db.with_permits(2).acquire().await.unwrap();
    assert_eq!(permit.permits(), 2);
    let mut waiters = Vec::new();
    for (number, rank) in [(1, Priority::Sheddable), (2, Priority::Normal), (3, Priority::Critical)] {
        let asks = db.with_priority(rank).with_partition("shop/prod/catalog-api").with_permits(2);
        waiters.push(tokio::spawn(async move { asks.acquire().await.unwrap().fencing_token() }));
        server.until("db", |now| now.queued == number).await;
    }
    permit.release().await.unwrap();
    let mut tokens = Vec::new();
    for waiter in waiters {
        tokens.push(waiter.await.unwrap());
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier > later), "the last to come was first: {tokens:?}");
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn l05_a_retry_after_that_is_told_with_the_release_cools_the_partition() {
    let (server, client, db) = with_db("limit=2\nmax_wait='20s'").await;
    let shop = db.with_partition("shop/prod/catalog-api");
    let mut permit = shop.acquire().await.unwrap();
    permit.start_latency();
    permit.set_outcome(Outcome::Overloaded);
    permit.set_retry_after(5 * SECOND);
    drop(permit);
    client.flush().await;
    let refused = shop.acquire().await.unwrap_err();
    assert_eq!(refused.reason(), "COOLDOWN_ACTIVE");
    drop(db.acquire().await.unwrap());
    assert_eq!(shop.with_timeout(2 * SECOND).acquire().await.unwrap_err().reason(), "COOLDOWN_EXCEEDS_DEADLINE");
    let start = Instant::now();
    drop(shop.with_on_cooldown(OnCooldown::Wait).acquire().await.unwrap());
    assert!(start.elapsed() > SECOND / 2);
    let left = shop.report_retry_after(9 * SECOND).await.unwrap();
    assert_eq!(left, 9 * SECOND);
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w08_a_stream_holds_its_permit_until_its_last_item_or_its_drop() {
    let (server, _client, db) = with_db("limit=1").await;
    let rows = || stream::iter([Ok::<_, Error>(1), Ok(2)]);
    let mut whole = Box::pin(db.run_stream(rows()));
    assert_eq!(server.status("db").await.running, 0, "not polled yet");
    assert_eq!(whole.next().await, Some(Ok(1)));
    assert_eq!(server.status("db").await.running, 1);
    assert_eq!((whole.next().await, whole.next().await), (Some(Ok(2)), None));
    server.until("db", |now| now.running == 0).await;
    let mut dropped = Box::pin(db.run_stream(rows()));
    assert_eq!(dropped.next().await, Some(Ok(1)));
    drop(dropped);
    server.until("db", |now| now.running == 0).await;
}

#[tokio::test]
async fn w09_and_w10_at_limit_one_permits_go_round() {
    let (server, _client, db) = with_db("limit=1").await;
    let mut permit = db.acquire().await.unwrap();
    for _ in 0..5 {
        permit = db.with_max_wait(Duration::ZERO).reacquire(permit).await.expect("the old permit is given back first");
    }
    drop(permit);
    assert_eq!((db.run(async { 1 }).await, db.run(async { 2 }).await), (Ok(1), Ok(2)));
    server.until("db", |now| now.running == 0).await;
}

#[tokio::test]
async fn l02_an_unrenewed_lease_must_outlive_its_work() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='2s'\nmax_lease_ttl='10s'\n");
    let db = connect(&server).await.bulkhead("db");
    for asked in [db.without_renewal(SECOND), db.without_renewal(8 * SECOND).with_lease_ttl(9 * SECOND)] {
        let error = asked.acquire().await.unwrap_err();
        assert_eq!(error.reason(), "LEASE_TOO_SHORT");
        assert!(error.to_string().contains("ask for a longer one"), "{error}");
    }
    server.until("db", |now| now.running == 0).await;
    // Not renewed, and told in time: before it is another's, which is a tenth of a second later.
    let mut expired = 0;
    in_time(Duration::ZERO, async || {
        let permit = db.without_renewal(SECOND / 2).acquire().await.unwrap();
        let deadline = permit.deadline().unwrap();
        permit.lost().await;
        assert_eq!(permit.state(), LeaseState::Lost);
        let is_early = server.status("db").await.expired == expired;
        let late = if is_early { Duration::ZERO } else { deadline.elapsed() };
        expired += 1;
        server.until("db", |now| now.expired == expired).await;
        assert_eq!(permit.release().await.unwrap_err().reason(), "LEASE_LOST");
        late
    })
    .await;
}

#[tokio::test]
async fn more_waits_than_one_connection_takes_use_a_second() {
    let (server, _client, db) = with_db("limit=1\nmax_queued=1000\nmax_wait='60s'").await;
    let permit = db.acquire().await.unwrap();
    let waiters: Vec<_> = (0..300)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.acquire().await.map(drop) })
        })
        .collect();
    server.until("db", |now| now.queued == 300).await;
    drop(permit);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    server.until("db", |now| now.running == 0 && now.granted == 301).await;
}

#[tokio::test]
async fn as_many_waits_as_may_be_hold_up_no_other_bulkhead() {
    let (server, client, db) =
        with_db("limit=1\nmax_queued=1000\nmax_wait='60s'\n[[bulkhead]]\nname='idle'\nlimit=1").await;
    let permit = db.acquire().await.unwrap();
    let waiters: Vec<_> = (0..400)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.acquire().await.map(drop) })
        })
        .collect();
    server.until("db", |now| now.queued == 400).await;
    let idle = client.bulkhead("idle");
    // Answered at once, so it takes nobody's place.
    drop(idle.with_max_wait(Duration::ZERO).acquire().await.unwrap());
    server.until("idle", |now| now.running == 0).await;
    // Which might wait finds no place for that, and learns it in its time.
    for handle in [idle.with_max_wait(Duration::from_millis(50)), idle.with_timeout(Duration::from_millis(50))] {
        let error = handle.acquire().await.unwrap_err();
        assert_eq!(error.reason(), "CLIENT_CAP_REACHED");
        assert!(error.to_string().contains("400 calls of this client wait already"), "{error}");
    }
    drop(permit);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    drop(idle.acquire().await.unwrap());
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn every_misuse_says_what_to_do() {
    let (server, client, db) = with_db("limit=1").await;
    let unknown = client.bulkhead("orders-bd").acquire().await.unwrap_err();
    assert_eq!(unknown.reason(), "BULKHEAD_NOT_FOUND");
    assert!(unknown.to_string().contains("define it"), "{unknown}");
    let too_many = db.with_permits(2).acquire().await.unwrap_err();
    assert!(
        too_many.to_string().contains("permits must be 1 to 1, the ceiling of the bulkhead, not 2; ask for fewer"),
        "{too_many}"
    );

    let nobody = Client::connect("http://127.0.0.1:1").await.unwrap_err();
    assert_eq!(nobody.reason(), "UNREACHABLE");
    assert!(nobody.to_string().contains("check the address"), "{nobody}");
    let admin = Client::connect(format!("http://{}", server.admin_address())).await.unwrap_err();
    assert_eq!(admin.reason(), "WRONG_SERVER");
    assert!(admin.to_string().contains("use the admission port"), "{admin}");
    let probes = Client::connect(format!("http://{}", server.ops_address())).await.unwrap_err();
    assert_eq!(probes.reason(), "WRONG_SERVER");
    for wrong in ["", "127.0.0.1:7600", "ftp://127.0.0.1", "http://"] {
        let error = Client::connect(wrong).await.unwrap_err();
        assert!(error.to_string().starts_with("endpoint must be an address such as http://"), "{wrong:?}: {error}");
    }
    let holder = Client::builder("http://127.0.0.1:1").holder("h".repeat(257)).connect_lazy().unwrap_err();
    assert_eq!(holder.to_string(), "holder must be at most 256 bytes, not 257");
}

#[tokio::test]
async fn operators_see_the_holder() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let endpoint = format!("http://{}", server.admission_address());
    let client = Client::builder(endpoint).holder("shop-7").connect().await.unwrap();
    let _permit = client.bulkhead("db").acquire().await.unwrap();
    assert_eq!(server.admin().await.leases("db").await[0].holder, "shop-7");
}
