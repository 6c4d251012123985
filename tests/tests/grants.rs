//! Grants and refusals: free permits, full queues, waits that end, names, several permits at once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tidegate_tests::{
    Instant, Pushback, Refusal, Server, ask, drain_and_refill, exercised, in_time, millis, reason, seconds, size,
    slack, span, v1,
};
use tonic::Code;

const NO_WAIT: Option<prost_types::Duration> = Some(prost_types::Duration { seconds: 0, nanos: 0 });

#[tokio::test]
async fn w03_a_free_permit_is_taken_at_once() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\n");
    let client = server.client().await;
    let response = client.acquire(ask("db")).await.unwrap();
    let lease = response.lease.unwrap();
    assert_eq!((&lease.bulkhead[..], lease.permits, response.replayed), ("db", 1, false));
    assert!(lease.lease_id.len() <= 96, "{}", lease.lease_id);
    assert!(lease.lease_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    assert!((1..1 << 63).contains(&lease.fencing_token), "{}", lease.fencing_token);
    assert_eq!(lease.fencing_floor, lease.fencing_token, "it is the only one that is live");
    assert_eq!(span(lease.ttl), Duration::from_secs(10));
    assert_eq!(span(lease.renew_interval), Duration::from_secs(10) / 3);
    assert!(span(response.waited) < Duration::from_secs(1), "{:?}", response.waited);

    let second = client.take("db").await;
    assert!(second.fencing_token > lease.fencing_token);
    assert_eq!(second.fencing_floor, lease.fencing_token);
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    assert_eq!(client.release(&second.lease_id).await, v1::ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w01_everyone_shares_the_named_bulkhead_whichever_connection_they_came_by() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\n[[bulkhead]]\nname='DB'\nlimit=1\n");
    let (one, other) = (server.client().await, server.client().await);
    let leases = [one.take("db").await, other.take("db").await];
    for client in [&one, &other] {
        let refusal = client.refused(v1::AcquireRequest { max_wait: NO_WAIT, ..ask("db") }).await;
        assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");
    }
    // Names are compared byte by byte, so this is another one.
    let elsewhere = other.take("DB").await;
    assert_eq!(elsewhere.bulkhead, "DB");
    // A lease belongs to nobody's connection.
    for lease in leases.iter().chain([&elsewhere]) {
        assert_eq!(one.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    drain_and_refill(&server, "db").await;
    drain_and_refill(&server, "DB").await;
}

/// The hint stands in three places and is the same; the rest stands in two.
fn assert_consistent(refusal: &Refusal, bulkhead: &str, partition: &str) {
    let typed = refusal.typed.as_ref().expect("a refusal has a typed detail");
    assert_eq!((&typed.reason, &typed.bulkhead[..], &typed.partition[..]), (&refusal.reason, bulkhead, partition));
    let told = |key: &str| refusal.metadata.get(key).map_or("absent", String::as_str);
    assert_eq!((told("bulkhead"), told("partition")), (bulkhead, partition));
    for (key, number) in
        [("limit", typed.limit), ("running", typed.running), ("unheard", typed.unheard), ("queued", typed.queued)]
    {
        assert_eq!(told(key), number.to_string(), "{key}");
    }
    let hint = refusal.hint().expect("coming back later helps");
    assert_eq!((refusal.retry_delay, refusal.retry_after), (Some(hint), Some(hint)));
    assert_eq!(refusal.pushback, Some(Pushback::After(hint)), "the call has no deadline that the hint could outlast");
    assert!(hint >= Duration::from_millis(50), "{hint:?} is less than min_retry_hint");
    assert!(hint <= Duration::from_secs(72), "{hint:?} is more than max_retry_hint and its spread");
}

#[tokio::test]
async fn w03_a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=2\nmax_wait='1m'\nlease_ttl='1m'\n");
    let client = server.client().await;
    let lease = client.take("db").await;
    let first = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;
    let second = client.start(ask("db"));
    server.until("db", |now| now.queued == 2).await;

    let start = Instant::now();
    let request = v1::AcquireRequest { partition: Some("nightly".into()), ..ask("db") };
    let refusal = client.refused(request).await;
    assert!(start.elapsed() < Duration::from_secs(10), "at once, not after {:?}", start.elapsed());
    assert_eq!((refusal.code, &refusal.reason[..]), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert_consistent(&refusal, "db", "nightly");
    let typed = refusal.typed.unwrap();
    assert_eq!((typed.limit, typed.running, typed.unheard, typed.queued), (1, 1, 0, 2));

    client.release(&lease.lease_id).await;
    for waiter in [first, second] {
        let lease = waiter.await.unwrap().unwrap().lease.unwrap();
        client.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w03_a_wait_that_is_over_is_refused_then_and_says_when_to_come_back() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='300ms'\n");
    let client = server.client().await;
    let held = client.take("db").await;
    // The request may ask for less than the bulkhead's wait, and not for more.
    for (max_wait, least) in [(None, 300), (millis(100), 100), (seconds(10), 300)] {
        let least = Duration::from_millis(least);
        in_time(least + slack(Duration::from_secs(10)), async || {
            let start = Instant::now();
            let refusal = client.refused(v1::AcquireRequest { max_wait, ..ask("db") }).await;
            let took = start.elapsed();
            assert!(took >= least, "{took:?}");
            assert_eq!((refusal.code, &refusal.reason[..]), (Code::ResourceExhausted, "WAIT_TIMEOUT"));
            assert_consistent(&refusal, "db", "db");
            took
        })
        .await;
    }
    client.release(&held.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w04_without_waiting_a_permit_is_granted_if_free_and_else_refused_at_once() {
    let server = Server::start(
        "[[bulkhead]]\nname='asked'\nlimit=1\n[[bulkhead]]\nname='no-wait'\nlimit=1\nmax_wait='0s'\n\
         [[bulkhead]]\nname='no-queue'\nlimit=1\nmax_queued=0\n",
    );
    let client = server.client().await;
    for name in ["asked", "no-wait", "no-queue"] {
        let max_wait = if name == "asked" { NO_WAIT } else { seconds(5) };
        let request = || v1::AcquireRequest { max_wait, ..ask(name) };
        for _ in 0..3 {
            let lease = client.granted(request()).await;
            let start = Instant::now();
            let refusal = client.refused(request()).await;
            assert!(start.elapsed() < Duration::from_secs(4), "{name}: at once, not after {:?}", start.elapsed());
            assert_eq!(
                (refusal.code, &refusal.reason[..]),
                (Code::ResourceExhausted, "CONCURRENCY_CAPACITY_EXHAUSTED")
            );
            assert_consistent(&refusal, name, name);
            client.release(&lease.lease_id).await;
        }
        assert_eq!(server.status(name).await.waited, 0);
        drain_and_refill(&server, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w10_page_and_count_one_after_the_other_do_not_deadlock_at_limit_1() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=1000\nmax_wait='1m'\n");
    let queries: Vec<_> = server
        .clients(4)
        .await
        .into_iter()
        .flat_map(|client| vec![client; size(10, 50, 200)])
        .map(|client| {
            tokio::spawn(async move {
                for _page_then_count in 0..2 {
                    let lease = client.granted(ask("db")).await;
                    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
                }
            })
        })
        .collect();
    let count = queries.len();
    for query in queries {
        query.await.unwrap();
    }
    let status = server.status("db").await;
    assert_eq!(status.granted, 2 * count as u64);
    exercised("requests that had to queue", usize::try_from(status.waited).unwrap(), count / 2);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r1_several_permits_are_granted_together_or_not_at_all() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nceiling=8\nmax_wait='1m'\n");
    let client = server.client().await;
    let large = client.granted(v1::AcquireRequest { permits: 3, ..ask("db") }).await;
    assert_eq!(large.permits, 3);
    // Two do not fit; a request for several holds up those behind it, though one permit is free.
    let two = client.start(v1::AcquireRequest { permits: 2, ..ask("db") });
    server.until("db", |now| now.queued == 1).await;
    let one = client.start(ask("db"));
    let status = server.until("db", |now| now.queued == 2).await;
    assert_eq!(status.running, 3);
    assert_eq!(client.release(&large.lease_id).await, v1::ReleaseState::Released);
    let two = two.await.unwrap().unwrap().lease.unwrap();
    let one = one.await.unwrap().unwrap().lease.unwrap();
    assert_eq!((two.permits, one.permits), (2, 1));
    assert!(two.fencing_token < one.fencing_token);
    assert_eq!(server.status("db").await.running, 3);

    // More than the present limit waits for it to rise, and holds nobody up meanwhile.
    let six = client.start(v1::AcquireRequest { permits: 6, ..ask("db") });
    server.until("db", |now| now.queued == 1).await;
    let passing = client.take("db").await;
    for lease in [two, one, passing] {
        client.release(&lease.lease_id).await;
    }
    assert_eq!(server.status("db").await.queued, 1);
    server.admin().await.set_limit("db", 6).await;
    let six = six.await.unwrap().unwrap().lease.unwrap();
    assert_eq!((six.permits, server.status("db").await.running), (6, 6));
    client.release(&six.lease_id).await;

    let refusal = client.refused(v1::AcquireRequest { permits: 9, ..ask("db") }).await;
    assert_eq!((refusal.code, &refusal.reason[..]), (Code::InvalidArgument, "PERMITS_EXCEED_CEILING"));
    assert_eq!(refusal.violations[0].field, "permits");
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r13_an_unknown_name_is_not_found_where_no_default_is_configured() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let client = server.client().await;
    let refusal = client.refused(ask("dB")).await;
    assert_eq!((refusal.code, &refusal.reason[..]), (Code::NotFound, "BULKHEAD_NOT_FOUND"));
    assert_eq!((refusal.hint(), refusal.retry_delay, refusal.pushback), (None, None, None));
    assert_eq!(refusal.typed.unwrap().bulkhead, "dB");
    for name in ["", "default"] {
        let refusal = client.refused(ask(name)).await;
        assert_eq!((refusal.code, &refusal.reason[..]), (Code::InvalidArgument, "INVALID_FIELD"), "{name:?}");
        assert_eq!(refusal.violations[0].field, "bulkhead");
    }
    let request = v1::ReleaseRequest { bulkhead: "dB".into(), request_id: "r".into(), ..Default::default() };
    assert_eq!(reason(&client.stub().release(request).await.unwrap_err()), "BULKHEAD_NOT_FOUND");
    let request = v1::GetBulkheadRequest { name: "dB".into() };
    let status = server.admin().await.stub().get_bulkhead(request).await.unwrap_err();
    assert_eq!((status.code(), &reason(&status)[..]), (Code::NotFound, "BULKHEAD_NOT_FOUND"));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r13_an_unknown_name_takes_the_default_bulkhead_and_becomes_the_partition() {
    let server = Server::start("[[bulkhead]]\nname='default'\nlimit=4\n[[bulkhead]]\nname='db'\nlimit=1\n");
    let client = server.client().await;
    let mut held = Vec::new();
    for (name, partition, expected) in [
        ("tenant/7", None, "tenant/7"),
        ("tenant/8", Some("eu"), "eu"),
        ("", None, "default"),
        ("default", None, "default"),
    ] {
        let lease = client.granted(v1::AcquireRequest { partition: partition.map(Into::into), ..ask(name) }).await;
        assert_eq!(lease.bulkhead, "default", "{name:?}");
        let leases = server.admin().await.leases("default").await;
        assert_eq!(leases.last().unwrap().partition, expected, "{name:?}");
        held.push(lease);
    }
    // The refusal speaks of the bulkhead that refused, and of the partition asked for.
    let refusal = client.refused(v1::AcquireRequest { max_wait: NO_WAIT, ..ask("tenant/7") }).await;
    assert_consistent(&refusal, "default", "tenant/7");
    assert_eq!(client.take("db").await.bulkhead, "db");
    for lease in held {
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    drain_and_refill(&server, "default").await;
}
