//! Repeats: one request id never gets a second lease, whatever became of the first call (R8).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tidegate_tests::v1::{ReleaseState, RenewalState};
use tidegate_tests::{
    Client, Faults, Instant, Proxy, Server, ask, drain_and_refill, exercised, in_time, millis, reason, seconds, size,
    slack, span, v1,
};
use tonic::{Code, Status};

fn with_id(request_id: &str) -> v1::AcquireRequest {
    v1::AcquireRequest { request_id: request_id.into(), ..ask("db") }
}

fn refused(result: Result<v1::AcquireResponse, Status>) -> (Code, String) {
    let status = result.expect_err("this is refused");
    (status.code(), reason(&status))
}

#[tokio::test]
async fn p6_a_repeat_of_a_live_request_gets_the_same_lease_renewed() {
    let ttl = Duration::from_secs(2);
    in_time(ttl + slack(ttl), repeated).await;
}

/// Repeats for longer than a ttl; how long after the last repeat the lease ended.
async fn repeated() -> Duration {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='2s'\nmax_wait='1m'\n");
    let (client, other) = (server.client().await, server.client().await);
    let ttl = Duration::from_secs(2);
    let first = client.acquire(with_id("r")).await.unwrap();
    assert!(!first.replayed);
    let first = first.lease.unwrap();
    client.take("db").await;
    // Later than one ttl in all: each repeat renews.
    let mut repeated = Instant::now();
    for _ in 0..12 {
        tokio::time::sleep(ttl / 8).await;
        // It needs no permit of its own, so a full bulkhead does not matter; neither do urgency and patience.
        let repeat =
            v1::AcquireRequest { priority: v1::Priority::Sheddable.into(), max_wait: seconds(0), ..with_id("r") };
        repeated = Instant::now();
        let response = other.acquire(repeat).await.unwrap();
        assert!(response.replayed);
        assert_eq!(span(response.waited), Duration::ZERO);
        let lease = response.lease.unwrap();
        assert_eq!((lease.fencing_token, lease.permits), (first.fencing_token, 1));
        assert_eq!(lease.lease_id, first.lease_id);
    }
    let status = server.until("db", |now| now.running == 0).await;
    let took = repeated.elapsed();
    assert!(took >= ttl, "{took:?} after its last repeat");
    assert_eq!((status.granted, status.expired), (2, 2));
    assert_eq!(refused(client.acquire(with_id("r")).await), (Code::Aborted, "REQUEST_ID_SPENT".into()));
    drain_and_refill(&server, "db").await;
    took.saturating_sub(server.stalled())
}

#[tokio::test]
async fn r10_a_release_by_request_id_reports_for_the_partition_of_its_lease() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nmax_wait='1m'\n");
    let client = server.client().await;
    client.granted(v1::AcquireRequest { partition: Some("shop/prod/api".into()), ..with_id("r") }).await;
    let release = v1::ReleaseRequest {
        bulkhead: "db".into(),
        request_id: "r".into(),
        retry_after: seconds(60),
        ..Default::default()
    };
    assert_eq!(client.stub().release(release).await.unwrap().into_inner().state(), ReleaseState::Released);
    let refusal = client.refused(v1::AcquireRequest { partition: Some("shop/prod/api".into()), ..ask("db") }).await;
    assert_eq!(refusal.reason, "COOLDOWN_ACTIVE");
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p6_a_repeat_of_a_waiting_request_takes_over_its_place() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=2\nmax_wait='1m'\n");
    let clients = server.clients(3).await;
    let held = clients[0].take("db").await;
    let old = clients[0].start(with_id("r"));
    server.until("db", |now| now.queued == 1).await;
    let behind = clients[1].start(ask("db"));
    server.until("db", |now| now.queued == 2).await;
    // The queue is full, and the repeat is no newcomer.
    let new = clients[2].start(with_id("r"));
    assert_eq!(refused(old.await.unwrap()), (Code::Aborted, "SUPERSEDED".into()));
    let newer = clients[0].start(with_id("r"));
    assert_eq!(refused(new.await.unwrap()), (Code::Aborted, "SUPERSEDED".into()));
    assert_eq!(server.status("db").await.queued, 2);
    clients[0].release(&held.lease_id).await;
    let first = newer.await.unwrap().unwrap();
    assert!(!first.replayed);
    let first = first.lease.unwrap();
    clients[0].release(&first.lease_id).await;
    let second = behind.await.unwrap().unwrap().lease.unwrap();
    assert!(first.fencing_token < second.fencing_token, "the repeat kept the place");
    clients[1].release(&second.lease_id).await;
    let status = server.status("db").await;
    assert_eq!((status.granted, status.waited, status.refused["SUPERSEDED"]), (3, 2, 2));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r8_a_superseded_call_that_goes_away_takes_nothing_with_it() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\n");
    let (client, other) = (server.client().await, server.client().await);
    let mut superseded = 0;
    for round in 0..size(50, 500, 20_000) {
        let held = client.take("db").await;
        let request_id = format!("r{round}");
        let old = client.start(with_id(&request_id));
        server.until("db", |now| now.queued == 1).await;
        let new = other.start(with_id(&request_id));
        // Cancelled before, while or after it is told; sooner or later after it, also on a slow machine.
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..1000 + 100 * (round % 200)))).await;
        old.abort();
        superseded += usize::from(old.await.is_ok());
        client.release(&held.lease_id).await;
        let lease = new.await.unwrap().unwrap().lease.unwrap();
        assert_eq!(other.release(&lease.lease_id).await, ReleaseState::Released);
    }
    exercised("calls told that they were superseded", superseded, 5);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r8_the_wait_of_a_repeat_ends_at_the_earlier_of_both_ends() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\nlease_ttl='1m'\n");
    let client = server.client().await;
    let held = client.take("db").await;
    for (round, (old_wait, new_wait, expected)) in [(4000, 60_000, 4000), (60_000, 300, 300)].into_iter().enumerate() {
        let request_id = format!("r{round}");
        let expected = Duration::from_millis(expected);
        in_time(expected + slack(Duration::from_secs(10)) * 2, async || {
            let start = Instant::now();
            let old = client.start(v1::AcquireRequest { max_wait: millis(old_wait), ..with_id(&request_id) });
            server.until("db", |now| now.queued == 1).await;
            let new = client.acquire(v1::AcquireRequest { max_wait: millis(new_wait), ..with_id(&request_id) }).await;
            let took = start.elapsed();
            assert_eq!(refused(new).1, "WAIT_TIMEOUT");
            assert_eq!(refused(old.await.unwrap()).1, "SUPERSEDED");
            assert!(took >= expected, "{took:?}");
            // A refusal is not remembered: the id is free.
            let again = client.acquire(v1::AcquireRequest { max_wait: seconds(0), ..with_id(&request_id) }).await;
            assert_eq!(refused(again).1, "CONCURRENCY_CAPACITY_EXHAUSTED");
            took
        })
        .await;
    }
    client.release(&held.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p6_a_lost_reply_costs_no_second_lease() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\nlease_ttl='1m'\n");
    let client = server.client().await;
    let rounds = size(20, 200, 20_000);
    let mut lost = 0;
    for round in 0..rounds {
        let request_id = format!("r{round}");
        let proxy = Proxy::start(server.admission_address()).await;
        let unlucky = Client::connect(proxy.address()).await;
        let waits = round % 2 == 1;
        let held = if waits { Some(client.take("db").await) } else { None };
        proxy.set(Faults::DROP_REPLIES);
        let granted = server.status("db").await.granted;
        let call = unlucky.start(with_id(&request_id));
        if let Some(held) = held {
            server.until("db", |now| now.queued == 1).await;
            client.release(&held.lease_id).await;
        }
        server.until("db", |now| now.granted == granted + 1).await;
        // Its client gives up and repeats over another connection, some after the first one is gone.
        if round % 4 < 2 {
            call.abort();
            drop(proxy);
            lost += usize::from(call.await.is_err());
        } else {
            lost += usize::from(!call.is_finished());
        }
        let response = client.acquire(with_id(&request_id)).await.unwrap();
        assert!(response.replayed);
        let status = server.status("db").await;
        assert_eq!((status.running, status.granted), (1, granted + 1));
        assert_eq!(client.release(&response.lease.unwrap().lease_id).await, ReleaseState::Released);
    }
    exercised("lost replies", lost, rounds);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r8_who_knows_no_lease_id_releases_by_request_id() {
    let server =
        Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\n[[bulkhead]]\nname='other'\nlimit=1\n");
    let (client, other) = (server.client().await, server.client().await);
    // A live lease.
    let lease = client.granted(with_id("live")).await;
    // A waiter.
    let waiter = client.start(with_id("waiting"));
    server.until("db", |now| now.queued == 1).await;
    assert_eq!(other.release_request("other", "waiting").await, ReleaseState::Unknown, "ids belong to a bulkhead");
    assert_eq!(other.release_request("db", "waiting").await, ReleaseState::Withdrawn);
    assert_eq!(refused(waiter.await.unwrap()), (Code::Aborted, "REQUEST_ID_SPENT".into()));
    assert_eq!(server.status("db").await.queued, 0);
    assert_eq!(other.release_request("db", "waiting").await, ReleaseState::Withdrawn);

    assert_eq!(other.release_request("db", "live").await, ReleaseState::Released);
    assert_eq!(server.status("db").await.running, 0);
    assert_eq!(other.release_request("db", "live").await, ReleaseState::AlreadyReleased);
    assert_eq!(client.release(&lease.lease_id).await, ReleaseState::AlreadyReleased);
    assert_eq!(client.renew_one(&lease.lease_id).await, RenewalState::Released);
    // An id that nobody has sent yet is spent, too: the Acquire that comes late gets nothing.
    assert_eq!(other.release_request("db", "late").await, ReleaseState::Unknown);
    for spent in ["waiting", "live", "late"] {
        assert_eq!(refused(client.acquire(with_id(spent)).await), (Code::Aborted, "REQUEST_ID_SPENT".into()));
    }
    assert_eq!(
        client.granted(v1::AcquireRequest { bulkhead: "other".into(), ..with_id("live") }).await.bulkhead,
        "other"
    );
    client.release_request("other", "live").await;
    drain_and_refill(&server, "other").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r8_a_repeat_that_asks_for_something_else_is_refused() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nmax_lease_ttl='1m'\nmax_wait='1m'\n");
    let (client, other) = (server.client().await, server.client().await);
    let lease = client.granted(v1::AcquireRequest { permits: 3, ..with_id("r") }).await;
    let waiter = client.start(v1::AcquireRequest { permits: 3, ..with_id("w") });
    server.until("db", |now| now.queued == 1).await;
    for id in ["r", "w"] {
        let same = v1::AcquireRequest { permits: 3, ..with_id(id) };
        for different in [
            v1::AcquireRequest { permits: 2, ..same.clone() },
            v1::AcquireRequest { permits: 0, ..same.clone() },
            v1::AcquireRequest { partition: Some("db".into()), ..same.clone() },
            v1::AcquireRequest { lease_ttl: seconds(10), ..same.clone() },
        ] {
            let refusal = other.refused(different).await;
            assert_eq!((refusal.code, &refusal.reason[..]), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
            assert_eq!(refusal.violations[0].field, "request_id");
        }
    }
    let status = server.status("db").await;
    assert_eq!((status.running, status.queued), (3, 1), "nobody lost a place or a lease by it");
    client.release(&lease.lease_id).await;
    let lease = waiter.await.unwrap().unwrap().lease.unwrap();
    client.release(&lease.lease_id).await;
    // 0 permits mean 1, so these two are the same.
    let one = client.granted(with_id("one")).await;
    let repeat = other.acquire(v1::AcquireRequest { permits: 1, ..with_id("one") }).await.unwrap();
    assert!(repeat.replayed);
    client.release(&one.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_two_equal_requests_at_the_same_instant_never_get_two_leases() {
    let server = Server::start(
        "[[bulkhead]]\nname='db'\nlimit=4\nmax_wait='1m'\n[[bulkhead]]\nname='full'\nlimit=1\nmax_wait='1m'\n",
    );
    let (one, other) = (server.client().await, server.client().await);
    let mut replayed = [0, 0];
    for round in 0..size(1000, 5000, 100_000) {
        let request = with_id(&format!("r{round}"));
        // Two tasks on two threads, over two connections.
        let (a, b) = (one.start(request.clone()), other.start(request));
        let (a, b) = (a.await.unwrap().unwrap(), b.await.unwrap().unwrap());
        replayed[usize::from(b.replayed)] += 1;
        assert_ne!(a.replayed, b.replayed, "one of them was first");
        let (a, b) = (a.lease.unwrap(), b.lease.unwrap());
        assert_eq!((a.fencing_token, &a.lease_id), (b.fencing_token, &b.lease_id));
        assert_eq!(one.release(&a.lease_id).await, ReleaseState::Released);
        assert_eq!(other.release(&b.lease_id).await, ReleaseState::AlreadyReleased);
    }
    println!("the one and the other were first {replayed:?} times");
    exercised("pairs of equal requests", replayed[0] + replayed[1], 1000);

    // The same with a queue before it: one place, one lease, and one of the two is told that it lost the place.
    let mut pairs = 0;
    for round in 0..size(200, 1000, 20_000) {
        let held = one.take("full").await;
        let request = v1::AcquireRequest { bulkhead: "full".into(), ..with_id(&format!("r{round}")) };
        let (a, b) = (one.start(request.clone()), other.start(request));
        server.until("full", |now| now.queued == 1 && now.refused.get("SUPERSEDED") == Some(&(round + 1))).await;
        one.release(&held.lease_id).await;
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        let (granted, lost) = if a.is_ok() { (a, b) } else { (b, a) };
        assert_eq!(refused(lost).1, "SUPERSEDED");
        assert_eq!(one.release(&granted.unwrap().lease.unwrap().lease_id).await, ReleaseState::Released);
        pairs += 1;
    }
    assert_eq!(server.status("full").await.waited, pairs);
    for name in ["db", "full"] {
        drain_and_refill(&server, name).await;
    }
}
