//! Rows of the origins that one call shows, cooldowns above all: the Rust client against the built server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use parking_lot::Mutex;
use tidegate_client::{Backoff, Bulkhead, Client, Error, OnCooldown, Pushback, Refusal, Retry, RetryError, Verdict};
use tidegate_tests::{Instant, PATIENCE, Server, drain_and_refill, seconds, span, v1};

const SECOND: Duration = Duration::from_secs(1);
/// The partition that cools in these tests.
const SHOP: &str = "shop/prod/catalog-api";

async fn connect(server: &Server) -> Client {
    Client::connect(format!("http://{}", server.admission_address())).await.expect("the server serves")
}

/// A server with one bulkhead whose leases and waits are long: no end of time frees or refuses anything.
async fn with_db(rest: &str) -> (Server, Client, Bulkhead) {
    let server = Server::start(&format!("[[bulkhead]]\nname='db'\nlease_ttl='60s'\nmax_wait='60s'\n{rest}"));
    let client = connect(&server).await;
    let db = client.bulkhead("db");
    (server, client, db)
}

/// How a bulkhead refuses work, which must not start.
async fn refused(bulkhead: &Bulkhead) -> Refusal {
    loop {
        let (sent, mut started) = (Instant::now(), false);
        let answer = bulkhead.run(async { started = true }).await;
        assert!(!started, "the work has started");
        match answer {
            Err(Error::Refused(refusal)) => return *refusal,
            // With a wait of its own the client gives up on an answer that is a second late, as on a machine that stalls.
            Err(error) => assert!(sent.elapsed() >= SECOND, "no refusal: {error}"),
            Ok(()) => unreachable!("the work has not started"),
        }
    }
}

async fn reason(bulkhead: &Bulkhead) -> String {
    refused(bulkhead).await.reason
}

/// The partitions that operators see cooling, and what is left.
async fn cooldowns(server: &Server) -> Vec<(String, Duration)> {
    let listed = server.admin().await.stub().list_cooldowns(v1::ListCooldownsRequest::default()).await.unwrap();
    let listed = listed.into_inner().cooldowns.into_iter();
    listed.map(|cooldown| (cooldown.partition, span(cooldown.remaining))).collect()
}

async fn clear(server: &Server, partition: &str) {
    let request = v1::ClearCooldownRequest { partition: partition.into(), detail: String::new() };
    assert!(server.admin().await.stub().clear_cooldown(request).await.unwrap().into_inner().cleared);
}

/// The error of work that was told when to come back.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Busy(Duration);

fn retry(backoff: Backoff) -> Retry<Busy> {
    Retry::new(backoff, |busy: &Busy| Verdict::RetryAfter(busy.0))
}

#[tokio::test]
async fn l03_without_a_wait_work_is_refused_unstarted_and_reentrant_use_is_no_deadlock() {
    let impatient = "[[bulkhead]]\nname='impatient'\nlimit=1\nmax_wait='0s'\nlease_ttl='60s'\n";
    let (server, client, db) = with_db(&format!("limit=1\n{impatient}")).await;
    let at_once = db.with_max_wait(Duration::ZERO);
    let permit = db.acquire().await.unwrap();
    let refusal = refused(&at_once).await;
    assert_eq!(&refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");
    assert_eq!((&refusal.metadata["running"][..], &refusal.metadata["queued"][..]), ("1", "0"));
    permit.release().await.unwrap();
    // Whether the caller wants no wait or the bulkhead allows none.
    for (outer, inner) in [(&db, &at_once), (&client.bulkhead("impatient"), &client.bulkhead("impatient"))] {
        let nested = outer.run(async { reason(inner).await }).await.unwrap();
        assert_eq!(nested, "CONCURRENCY_CAPACITY_EXHAUSTED");
    }
    client.flush().await;
    drain_and_refill(&server, "db").await;
    drain_and_refill(&server, "impatient").await;
}

#[tokio::test]
async fn l04_l06_while_a_partition_cools_its_work_is_refused_unstarted_and_others_go_on() {
    let (server, client, db) = with_db("limit=8\n[[bulkhead]]\nname='other'\nlimit=1\n").await;
    let shop = db.with_partition(SHOP);
    assert_eq!(shop.report_retry_after(120 * SECOND).await.unwrap(), 120 * SECOND);
    let active = refused(&shop).await;
    assert_eq!((&active.reason[..], &active.metadata["partition"][..]), ("COOLDOWN_ACTIVE", SHOP));
    assert!(active.hint().is_some_and(|hint| hint > 90 * SECOND), "{active:?}");
    // It does not fit the caller's deadline; or the wait, where it would wait: the bulkhead's ends after a minute.
    let hasty = refused(&shop.with_timeout(30 * SECOND)).await;
    assert_eq!((&hasty.reason[..], hasty.pushback), ("COOLDOWN_EXCEEDS_DEADLINE", Some(Pushback::Never)));
    assert_eq!(reason(&shop.with_on_cooldown(OnCooldown::Wait)).await, "COOLDOWN_EXCEEDS_DEADLINE");
    // It is the same partition in every bulkhead, and for every client.
    let another = connect(&server).await;
    assert_eq!(reason(&another.bulkhead("other").with_partition(SHOP)).await, "COOLDOWN_ACTIVE");
    // All three parts are the scope, and no part of them is.
    for name in ["shop/prod/orders-api", "shop/test/catalog-api", "blog/prod/catalog-api", "shop/prod", "shop"] {
        db.with_partition(name).run(async {}).await.unwrap();
    }
    db.run(async {}).await.unwrap();
    let listed = cooldowns(&server).await;
    assert_eq!(listed.iter().map(|(partition, _)| &partition[..]).collect::<Vec<_>>(), [SHOP]);
    client.flush().await;
    let status = server.status("db").await;
    assert_eq!((status.granted, status.refused.values().sum::<u64>(), status.waited), (6, 3, 0));
    clear(&server, SHOP).await;
    shop.run(async {}).await.unwrap();
    client.flush().await;
    drain_and_refill(&server, "db").await;
    drain_and_refill(&server, "other").await;
}

#[tokio::test]
async fn l07_a_cooldown_is_kept_for_its_grace_and_then_dropped() {
    let server = Server::start(
        "[server]\ncooldown_grace='1s'\nramp_step='0s'\n[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='60s'\n",
    );
    let client = connect(&server).await;
    let kept = async || {
        let info = server.admin().await.stub().get_server_info(v1::GetServerInfoRequest {}).await.unwrap();
        info.into_inner().caps.into_iter().find(|cap| cap.name == "max_partitions").unwrap().taken
    };
    let start = Instant::now();
    let (shop, pause) = (client.bulkhead("db").with_partition(SHOP), SECOND / 2);
    shop.report_retry_after(pause).await.unwrap();
    while let [(partition, left)] = &cooldowns(&server).await[..] {
        assert!(partition == SHOP && *left <= pause && start.elapsed() < PATIENCE, "{partition} {left:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A sweep drops it, up to a second later.
    assert!(start.elapsed() >= pause + SECOND, "dropped after {:?}", start.elapsed());
    assert_eq!(kept().await, 0);
    // Nothing is remembered: a shorter one than before is one of its own.
    assert_eq!(shop.report_retry_after(30 * SECOND).await.unwrap(), 30 * SECOND);
    assert_eq!((kept().await, reason(&shop).await), (1, "COOLDOWN_ACTIVE".into()));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn l08_the_bulkhead_is_asked_first_and_a_refusal_by_the_cooldown_gives_back_what_it_gave() {
    let (server, client, db) = with_db("limit=1\nmax_queued=1\n").await;
    let shop = db.with_partition(SHOP);
    let permit = db.acquire().await.unwrap();
    shop.report_retry_after(120 * SECOND).await.unwrap();
    // What the bulkhead refuses is told as that, also during a cooldown.
    assert_eq!(reason(&shop.with_max_wait(Duration::ZERO)).await, "CONCURRENCY_CAPACITY_EXHAUSTED");
    // A place in the queue was free, and still is: there is one.
    assert_eq!(reason(&shop).await, "COOLDOWN_ACTIVE");
    let waits = tokio::spawn({
        let db = db.clone();
        async move { db.acquire().await }
    });
    server.until("db", |now| now.queued == 1).await;
    assert_eq!(reason(&shop).await, "QUEUE_FULL");
    permit.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    // A permit was free, and still is: there is one.
    assert_eq!(reason(&shop).await, "COOLDOWN_ACTIVE");
    let status = server.status("db").await;
    assert_eq!((status.running, status.queued, status.granted), (0, 0, 2));
    db.run(async {}).await.unwrap();
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn l09_what_a_classifier_makes_of_an_error_cools_the_partition_on_the_server() {
    let (server, client, db) = with_db("limit=4\n").await;
    let shop = db.with_partition(SHOP);
    let fail = |wait| move || std::future::ready(Err::<(), _>(Busy(wait)));
    let once = retry(Backoff::constant(Duration::ZERO)).retries(0);
    let failed = once.run(&shop, fail(60 * SECOND)).await.unwrap_err();
    assert_eq!(failed, RetryError::Work { error: Busy(60 * SECOND), attempts: 1 });
    client.flush().await;
    let listed = cooldowns(&server).await;
    assert!(matches!(&listed[..], [(name, left)] if name == SHOP && *left > 30 * SECOND), "{listed:?}");
    // Everybody is told, and a shorter wait that is told later changes nothing.
    let another = connect(&server).await;
    assert_eq!(reason(&another.bulkhead("db").with_partition(SHOP)).await, "COOLDOWN_ACTIVE");
    assert!(shop.report_retry_after(SECOND).await.unwrap() > 30 * SECOND);
    // An error that concerns its call alone cools nobody.
    let alone = Retry::new(Backoff::constant(Duration::ZERO), |busy: &Busy| Verdict::NotBefore(busy.0)).retries(0);
    alone.run(&db, fail(60 * SECOND)).await.unwrap_err();
    client.flush().await;
    db.run(async {}).await.unwrap();
    clear(&server, SHOP).await;
    // The next attempt comes when the wait is over, however short the usual delay is.
    let (wait, begun) = (SECOND / 2, Mutex::new(Vec::new()));
    let work = || {
        begun.lock().push(Instant::now());
        std::future::ready(if begun.lock().len() == 1 { Err(Busy(wait)) } else { Ok(()) })
    };
    let again = retry(Backoff::constant(Duration::ZERO)).retries(1);
    again.run(&shop.with_on_cooldown(OnCooldown::Wait), work).await.unwrap();
    let begun = begun.into_inner();
    assert!(begun.len() == 2 && begun[1] - begun[0] >= wait, "{begun:?}");
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w02_max_queued_and_ceiling_follow_from_the_start_limit_unless_they_are_said() {
    let (server, client, db) = with_db(
        "limit=1\n[[bulkhead]]\nname='two'\nlimit=2\nceiling=9\n[[bulkhead]]\nname='large'\nlimit=200000\n\
         [[bulkhead]]\nname='said'\nlimit=2\nceiling=9\nmax_queued=3\nmax_wait='5s'\n",
    )
    .await;
    for (name, limit, ceiling, max_queued, max_wait) in
        [("db", 1, 1, 8, 60), ("two", 2, 9, 16, 2), ("large", 200_000, 200_000, 1_000_000, 2), ("said", 2, 9, 3, 5)]
    {
        let told = server.admin().await.bulkhead(name).await.settings.unwrap();
        let told = (told.limit, told.ceiling, told.max_queued, told.max_wait);
        assert_eq!(told, (Some(limit), Some(ceiling), Some(max_queued), seconds(max_wait)), "{name}");
    }
    // A limit that an operator moves is not the start limit.
    server.admin().await.set_limit("two", 9).await;
    assert_eq!(server.admin().await.bulkhead("two").await.settings.unwrap().max_queued, Some(16));
    // They are in force.
    assert_eq!(reason(&db.with_permits(2)).await, "PERMITS_EXCEED_CEILING");
    let permit = db.acquire().await.unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.run(async {}).await })
        })
        .collect();
    server.until("db", |now| now.queued == 8).await;
    assert_eq!(reason(&db).await, "QUEUE_FULL");
    drop(permit);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    client.flush().await;
    drain_and_refill(&server, "db").await;
}
