//! The queue: its order over many connections, priorities, and limits that move while hundreds wait.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tidegate_tests::{
    Client, Instant, Server, Waiter, ask, at_once, drain_and_refill, exercised, in_time, reason, seconds, size, slack,
    span, v1,
};
use tokio::task::{JoinError, JoinSet};
use tonic::{Code, Status};

/// Lets that many wait, each seen in the queue before the next one asks; over all those connections in turn.
async fn line_up(server: &Server, clients: &[Client], count: usize, request: &v1::AcquireRequest) -> Vec<Waiter> {
    let already = server.status("db").await.queued;
    let mut waiters = Vec::new();
    for (place, client) in (already + 1..).zip(clients.iter().cycle()).take(count) {
        waiters.push(client.start(request.clone()));
        server.until("db", |now| now.queued == place).await;
    }
    waiters
}

/// The lease of a waiter that was granted.
async fn lease(waiter: Waiter) -> v1::Lease {
    granted(Some(waiter.await))
}

/// That many wait at once, over all those connections.
fn crowd(clients: &[Client], count: u32) -> JoinSet<Result<v1::AcquireResponse, Status>> {
    clients.iter().cycle().take(count as usize).map(|client| client.acquire(ask("db"))).collect()
}

/// The lease of one of a crowd, who must have been granted.
fn granted(waiter: Option<Result<Result<v1::AcquireResponse, Status>, JoinError>>) -> v1::Lease {
    match waiter.expect("some still wait").expect("nobody is aborted") {
        Ok(response) => response.lease.expect("a grant has a lease"),
        Err(status) => panic!("a waiter was refused: {}", reason(&status)),
    }
}

/// Each waiter that is granted releases at once, so the next one is. Answers the tokens.
async fn hand_on(client: &Client, waiters: Vec<Waiter>) -> Vec<u64> {
    let mut tokens = Vec::new();
    for waiter in waiters {
        let lease = lease(waiter).await;
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
        tokens.push(lease.fencing_token);
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn w06_a_freed_permit_goes_to_the_longest_waiter_over_many_connections() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=5000\nmax_wait='10m'\nlease_ttl='5m'\n");
    let clients = server.clients(20).await;
    let held = clients[0].take("db").await;
    let count = size(200, 1000, 4000);
    let waiters = line_up(&server, &clients, count, &ask("db")).await;
    // A newcomer does not overtake, also when it asks in the moment a permit is freed.
    let (released, newcomer) = tokio::join!(
        clients[0].release(&held.lease_id),
        clients[1].acquire(v1::AcquireRequest { max_wait: seconds(0), ..ask("db") })
    );
    assert_eq!(released, v1::ReleaseState::Released);
    assert_eq!(reason(&newcomer.unwrap_err()), "CONCURRENCY_CAPACITY_EXHAUSTED");
    let tokens = hand_on(&clients[2], waiters).await;
    assert!(tokens.is_sorted(), "granted out of turn: {tokens:?}");
    exercised("waiters granted in turn", tokens.len(), 200);
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_who_was_seen_waiting_before_another_asked_is_granted_before_it() {
    // Many at once and a limit above 1: here only the order that somebody could see is asserted.
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=3\nmax_queued=5000\nmax_wait='10m'\nlease_ttl='5m'\n");
    let clients = server.clients(10).await;
    let mut held = Vec::new();
    for client in &clients[..3] {
        held.push(client.take("db").await);
    }
    let (waves, each) = (size(10, 40, 100), 20);
    let mut waiting = Vec::new();
    for wave in 1..=waves {
        waiting.extend((0..each).map(|call: usize| (wave, clients[call % 10].start(ask("db")))));
        server.until("db", |now| now.queued == wave * 20).await;
    }
    let tasks: Vec<_> = waiting
        .into_iter()
        .map(|(wave, waiter)| {
            let client = clients[0].clone();
            tokio::spawn(async move {
                let lease = lease(waiter).await;
                client.release(&lease.lease_id).await;
                (lease.fencing_token, wave)
            })
        })
        .collect();
    for lease in held {
        clients[0].release(&lease.lease_id).await;
    }
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.unwrap());
    }
    tokens.sort_unstable();
    let waves: Vec<_> = tokens.iter().map(|(_, wave)| wave).collect();
    assert!(waves.is_sorted(), "granted out of turn: {waves:?}");
    exercised("waiters granted", tokens.len(), 200);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r2_more_urgent_waiters_come_first_and_equal_ones_in_turn() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100\nmax_wait='10m'\naging_step='1m'\n");
    let clients = server.clients(3).await;
    let held = clients[0].take("db").await;
    let mut waiters = Vec::new();
    // The least urgent ask first.
    for priority in [v1::Priority::Sheddable, v1::Priority::Normal, v1::Priority::Unspecified, v1::Priority::Critical] {
        let request = v1::AcquireRequest { priority: priority.into(), ..ask("db") };
        waiters.push(line_up(&server, &clients, 4, &request).await);
    }
    clients[0].release(&held.lease_id).await;
    // Unspecified means NORMAL: those two groups are one line.
    let [sheddable, normal, unspecified, critical] = <[Vec<Waiter>; 4]>::try_from(waiters).unwrap();
    let order = [critical, normal, unspecified, sheddable].into_iter().flatten().collect();
    let tokens = hand_on(&clients[0], order).await;
    assert!(tokens.is_sorted(), "{tokens:?}");
    exercised("waiters granted by urgency", tokens.len(), 16);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r2_priority_is_a_head_start_and_starves_nobody() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100\nmax_wait='10m'\naging_step='50ms'\n");
    let clients = server.clients(2).await;
    let held = clients[0].take("db").await;
    let of = |priority: v1::Priority| v1::AcquireRequest { priority: priority.into(), ..ask("db") };
    let early = line_up(&server, &clients, 2, &of(v1::Priority::Sheddable)).await;
    // Two steps later the head start of the most urgent is used up; that time is what is tested here.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let late = line_up(&server, &clients, 2, &of(v1::Priority::Critical)).await;
    clients[0].release(&held.lease_id).await;
    let tokens = hand_on(&clients[0], early.into_iter().chain(late).collect()).await;
    assert!(tokens.is_sorted(), "{tokens:?}");
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p7_an_expiry_hands_on_as_a_release_does() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\nlease_ttl='2s'\n");
    let clients = server.clients(2).await;
    let ttl = Duration::from_secs(2);
    let mut expired = 0;
    // Not earlier than the ttl after it was sent, at the latest ttl + g after it was received.
    in_time(ttl + slack(ttl), async || {
        let stalled = server.stalled();
        let (sent, held) = (Instant::now(), clients[0].take("db").await);
        let (received, next) = (Instant::now(), clients[1].acquire(ask("db")).await.unwrap());
        let now = Instant::now();
        assert!(now - sent >= ttl, "handed on {:?} after it was sent", now - sent);
        let waited = span(next.waited);
        assert!(waited <= now - received, "{waited:?}");
        // What is missing is how long the question was under way, before it waited: it counts as lateness.
        let missing = ttl.saturating_sub(waited + (received - sent));
        let next = next.lease.unwrap();
        assert!(next.fencing_token > held.fencing_token && next.fencing_floor > held.fencing_token);
        expired += 1;
        assert_eq!(server.status("db").await.expired, expired);
        assert_eq!(clients[0].release(&held.lease_id).await, v1::ReleaseState::Expired);
        assert_eq!(server.status("db").await.running, 1, "a late release takes nothing from the next holder");
        clients[1].release(&next.lease_id).await;
        (now - received).saturating_sub(server.stalled().saturating_sub(stalled)) + missing
    })
    .await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_raising_by_k_wakes_k_of_hundreds_at_once() {
    let server = Server::start(
        "[[bulkhead]]\nname='db'\nlimit=1\nceiling=10000\nmax_queued=10000\nmax_wait='10m'\nlease_ttl='5m'\n",
    );
    let clients = server.clients(10).await;
    let held = clients[0].take("db").await;
    let count: u32 = size(300, 1000, 2000);
    let mut waiters = crowd(&clients, count);
    server.until("db", |now| now.queued == count).await;

    let mut limit = 1;
    let mut leases = vec![held];
    for k in [1, 7, 50, 100] {
        limit += k;
        let start = Instant::now();
        let status = server.admin().await.set_limit("db", limit).await;
        assert_eq!(status.limit, limit);
        let waiting = count - (limit - 1);
        at_once(&server, "db", &status, (limit - k, waiting + k), (limit, waiting)).await;
        while leases.len() < limit as usize {
            leases.push(granted(waiters.join_next().await));
        }
        println!("raising by {k} with {} waiting: all {k} had heard of it after {:?}", waiting + k, start.elapsed());
        // No more than that nobody was forgotten; how soon is measured elsewhere (`figures raise`).
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
    exercised("waiters woken by raising", leases.len() - 1, 158);
    waiters.shutdown().await;
    let status = server.until("db", |now| now.queued == 0).await;
    assert_eq!(status.running, limit, "nobody else was woken");
    for lease in leases {
        clients[0].release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_lowering_keeps_back_permits_and_cancels_nobody() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=10\nmax_queued=1000\nmax_wait='10m'\nlease_ttl='1m'\n");
    let clients = server.clients(5).await;
    let mut held = Vec::new();
    for client in clients.iter().cycle().take(6) {
        held.push(client.take("db").await);
    }
    // Free permits are kept back first: four were free, one is left.
    let status = server.admin().await.set_limit("db", 7).await;
    assert_eq!((status.limit, status.running), (7, 6));
    held.push(clients[0].take("db").await);
    let refusal = clients[0].refused(v1::AcquireRequest { max_wait: seconds(0), ..ask("db") }).await;
    assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");

    // Then those of ending leases, while hundreds wait.
    let count: u32 = size(200, 500, 900);
    let mut waiters = crowd(&clients, count);
    server.until("db", |now| now.queued == count).await;
    let status = server.admin().await.set_limit("db", 3).await;
    assert_eq!((status.limit, status.running, status.queued), (3, 7, count));
    for still in [6, 5, 4, 3] {
        let lease = held.pop().unwrap();
        assert_eq!(clients[1].renew_one(&lease.lease_id).await, v1::RenewalState::Renewed, "leases run on");
        assert_eq!(clients[1].release(&lease.lease_id).await, v1::ReleaseState::Released);
        let status = server.status("db").await;
        assert_eq!((status.running, status.queued), (still, count), "nothing is granted at or above the limit");
    }
    assert_eq!(clients[1].release(&held.pop().unwrap().lease_id).await, v1::ReleaseState::Released);
    // Below it the next one is granted.
    at_once(&server, "db", &server.status("db").await, (2, count), (3, count - 1)).await;

    // Raised again, exactly as many are granted as now fit, and all get their turn.
    let status = server.admin().await.set_limit("db", 10).await;
    at_once(&server, "db", &status, (3, count - 1), (10, count - 8)).await;
    for lease in held {
        clients[1].release(&lease.lease_id).await;
    }
    let mut heard = 0;
    while let Some(waiter) = waiters.join_next().await {
        assert_eq!(clients[2].release(&granted(Some(waiter)).lease_id).await, v1::ReleaseState::Released);
        heard += 1;
    }
    exercised("waiters granted after a lowering and a raising", heard, 200);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w07_a_limit_outside_1_to_the_ceiling_is_an_error_and_changes_nothing() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nceiling=5\n");
    let before = server.status("db").await;
    for limit in [0, 6, u32::MAX] {
        let request = v1::SetLimitRequest { name: "db".into(), limit, ..Default::default() };
        let status = server.admin().await.stub().set_limit(request).await.unwrap_err();
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"), "{limit}");
        assert_eq!(tidegate_client::refusal(&status).unwrap().violations[0].field, "limit");
        assert_eq!(server.status("db").await, before);
    }
    for limit in [5, 1] {
        assert_eq!(server.admin().await.set_limit("db", limit).await.limit, limit);
        drain_and_refill(&server, "db").await;
    }
    let settings = server.admin().await.bulkhead("db").await.settings.unwrap();
    assert_eq!((settings.limit, settings.ceiling), (Some(2), Some(5)), "the start limit stays");
}
