//! Renewals and releases that arrive in the very moment a lease ends: what is told is true (P11).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::time::Duration;

use tidegate_tests::v1::{ReleaseState, RenewalState};
use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised, size, v1};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(2);
const LEASES: usize = 300;

/// How it ended, and the lease.
struct Answer<S> {
    state: S,
    lease: v1::Lease,
}

/// Takes all permits one after the other, lets as many others wait, and makes a call for each lease within 5 ms of its
/// end.
async fn at_the_edge<S, F>(clients: &[Client], call: impl Fn(Client, String) -> F) -> Vec<Answer<S>>
where
    S: Send + 'static,
    F: Future<Output = S> + Send + 'static,
{
    let mut calls = JoinSet::new();
    // Spread, so that the ends do not come in a crowd.
    let mut pace = tokio::time::interval(Duration::from_millis(3));
    for client in clients.iter().cycle().take(LEASES) {
        pace.tick().await;
        let lease = client.take("db").await;
        let end = Instant::now() + TTL;
        let at = end + Duration::from_micros(rand::random_range(0..10_000)) - Duration::from_millis(6);
        let call = call(client.clone(), lease.lease_id.clone());
        calls.spawn(async move {
            tokio::time::sleep_until(at).await;
            Answer { state: call.await, lease }
        });
    }
    calls.join_all().await
}

/// Waiters that would take every permit that gets free, and keep it.
async fn thieves(server: &Server, clients: &[Client]) -> JoinSet<v1::Lease> {
    let mut thieves = JoinSet::new();
    // Some streams of each connection are no waiter's.
    for client in clients.iter().cycle().take(LEASES) {
        let client = client.clone();
        thieves.spawn(async move {
            client.granted(v1::AcquireRequest { lease_ttl: tidegate_tests::seconds(60), ..ask("db") }).await
        });
    }
    server.until("db", |now| u64::from(now.queued) + now.expired >= LEASES as u64).await;
    thieves
}

fn config() -> String {
    format!(
        "[[bulkhead]]\nname='db'\nlimit={LEASES}\nmax_queued=1000\nmax_wait='10m'\nlease_ttl='2s'\nmax_lease_ttl='1m'\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_lease_that_was_renewed_in_time_is_not_given_to_another() {
    let server = Server::start(&config());
    let clients = server.clients(4).await;
    let waiting = server.clients(2).await;
    let mut totals = HashMap::<RenewalState, usize>::new();
    for _ in 0..size(1, 3, 300) {
        let before = server.status("db").await;
        let renewing = at_the_edge(&clients, |client, id| async move { client.renew_one(&id).await });
        // All permits are taken within a second; waiters come before the first lease ends.
        let stealing = async {
            server.until("db", |now| now.running as usize == LEASES).await;
            thieves(&server, &waiting).await
        };
        let (answers, mut thieves) = tokio::join!(renewing, stealing);
        let renewed = answers.iter().filter(|answer| answer.state == RenewalState::Renewed).count();
        let status = server.status("db").await;
        let stolen = LEASES - status.queued as usize;
        // Renewed ones still run, and exactly the others were handed on.
        assert_eq!((status.running as usize, stolen), (LEASES, LEASES - renewed), "{status:?}");
        assert_eq!(status.expired - before.expired, stolen as u64);
        for Answer { state, lease } in answers {
            *totals.entry(state).or_default() += 1;
            let expected = match state {
                RenewalState::Renewed => ReleaseState::Released,
                RenewalState::Expired => ReleaseState::Expired,
                other => panic!("a renewal at the edge was answered {other:?}"),
            };
            assert_eq!(clients[0].release(&lease.lease_id).await, expected);
        }
        while let Some(lease) = thieves.join_next().await {
            clients[0].release(&lease.unwrap().lease_id).await;
        }
    }
    for state in [RenewalState::Renewed, RenewalState::Expired] {
        exercised(&format!("renewals at the edge answered {state:?}"), totals[&state], LEASES / 20);
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_a_release_at_the_edge_gives_back_once() {
    let server = Server::start(&config());
    let clients = server.clients(4).await;
    let mut totals = HashMap::<ReleaseState, usize>::new();
    for _ in 0..size(1, 3, 300) {
        let before = server.status("db").await;
        for Answer { state, .. } in at_the_edge(&clients, |client, id| async move { client.release(&id).await }).await {
            *totals.entry(state).or_default() += 1;
        }
        let status = server.status("db").await;
        assert_eq!(status.running, 0);
        let expired: u64 = totals.get(&ReleaseState::Expired).map_or(0, |&count| count as u64);
        assert_eq!(status.expired, expired);
        assert_eq!(status.granted - before.granted, LEASES as u64);
    }
    for state in [ReleaseState::Released, ReleaseState::Expired] {
        exercised(&format!("releases at the edge answered {state:?}"), totals[&state], LEASES / 20);
    }
    assert_eq!(totals.len(), 2, "{totals:?}");
    drain_and_refill(&server, "db").await;
}
