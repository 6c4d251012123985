//! Renewals and releases that arrive in the very moment a lease ends: what is told is true (P11).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tidegate_tests::v1::{ReleaseState, RenewalState};
use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised, size, v1};
use tokio::task::JoinSet;

/// Long enough that a slow machine takes all permits, and later asks what became of them, within one.
const TTL: Duration = Duration::from_secs(5);
const LEASES: usize = 300;
/// What must have been answered each way.
const EACH: usize = LEASES / 20;

/// How it ended, when it was called, and the lease.
struct Answer<S> {
    state: S,
    called: Instant,
    lease: v1::Lease,
}

/// Takes all permits one after the other, lets as many others wait, and makes a call for each lease within 5 ms of its
/// end, or further away by `spread` times that.
async fn at_the_edge<S, F>(
    server: &Arc<Server>,
    clients: &[Client],
    spread: u32,
    call: impl Fn(Client, String) -> F,
) -> Vec<Answer<S>>
where
    S: Send + 'static,
    F: Future<Output = S> + Send + 'static,
{
    let mut calls = JoinSet::new();
    // Spread, so that the ends do not come in a crowd.
    let mut pace = tokio::time::interval(Duration::from_millis(3));
    for client in clients.iter().cycle().take(LEASES) {
        pace.tick().await;
        let (server, stalled) = (server.clone(), server.stalled());
        let lease = client.take("db").await;
        let end = Instant::now() + TTL;
        let at =
            end + Duration::from_micros(rand::random_range(0..10_000)) * spread - Duration::from_millis(6) * spread;
        let call = call(client.clone(), lease.lease_id.clone());
        calls.spawn(async move {
            // A server that stood still moved the end.
            let moved = || at + server.stalled().saturating_sub(stalled);
            while Instant::now() < moved() {
                tokio::time::sleep_until(moved()).await;
            }
            let called = Instant::now();
            Answer { state: call.await, called, lease }
        });
    }
    calls.join_all().await
}

/// Makes rounds until there were so many, and enough was answered each way: a slow machine comes too late for the edge,
/// and needs calls that are further away from it. A round answers what was counted, or nothing if it was too slow to tell.
async fn rounds<S: Copy + Eq + Hash + Debug>(
    least: usize,
    both: [S; 2],
    mut round: impl AsyncFnMut(u32) -> Option<HashMap<S, usize>>,
) {
    let (mut totals, mut told) = (HashMap::<S, usize>::new(), 0);
    let is_enough = |totals: &HashMap<S, usize>| both.iter().all(|state| totals.get(state).is_some_and(|n| *n >= EACH));
    for number in 0..least + 8 {
        if told >= least && is_enough(&totals) {
            break;
        }
        // The first ones are as close as can be.
        let spread = 1 << number.saturating_sub(least);
        if let Some(counted) = round(spread).await {
            told += 1;
            for (state, times) in counted {
                *totals.entry(state).or_default() += times;
            }
        }
    }
    exercised("rounds quick enough to tell", told, least);
    for state in both {
        exercised(
            &format!("calls at the edge answered {state:?}"),
            totals.get(&state).copied().unwrap_or_default(),
            EACH,
        );
    }
    assert_eq!(totals.len(), 2, "{totals:?}");
}

/// Waiters that would take every permit that gets free, and keep it.
async fn thieves(server: &Server, clients: &[Client]) -> JoinSet<v1::Lease> {
    let expired = server.status("db").await.expired;
    let mut thieves = JoinSet::new();
    // Some streams of each connection are no waiter's.
    for client in clients.iter().cycle().take(LEASES) {
        let client = client.clone();
        thieves.spawn(async move {
            client.granted(v1::AcquireRequest { lease_ttl: tidegate_tests::seconds(60), ..ask("db") }).await
        });
    }
    server.until("db", |now| u64::from(now.queued) + now.expired - expired >= LEASES as u64).await;
    thieves
}

fn config() -> String {
    let ttl = TTL.as_secs();
    format!(
        "[[bulkhead]]\nname='db'\nlimit={LEASES}\nmax_queued=1000\nmax_wait='10m'\nlease_ttl='{ttl}s'\nmax_lease_ttl='1m'\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_lease_that_was_renewed_in_time_is_not_given_to_another() {
    let server = Arc::new(Server::start(&config()));
    let clients = server.clients(4).await;
    let waiting = server.clients(2).await;
    rounds(size(1, 3, 300), [RenewalState::Renewed, RenewalState::Expired], async |spread| {
        let before = server.status("db").await;
        let renewing = at_the_edge(&server, &clients, spread, |client, id| async move { client.renew_one(&id).await });
        // All permits are taken within a second; waiters come before the first lease ends.
        let stealing = async {
            server.until("db", |now| now.running as usize == LEASES).await;
            thieves(&server, &waiting).await
        };
        let (answers, mut thieves) = tokio::join!(renewing, stealing);
        let first = answers.iter().map(|answer| answer.called).min().expect("there are leases");
        let mut counted = HashMap::new();
        for answer in &answers {
            *counted.entry(answer.state).or_default() += 1;
        }
        let renewed = counted.get(&RenewalState::Renewed).copied().unwrap_or_default();
        let status = server.status("db").await;
        let in_time = first.elapsed() < TTL;
        let stolen = LEASES - status.queued as usize;
        if in_time {
            // Renewed ones still run, and exactly the others were handed on.
            assert_eq!((status.running as usize, stolen), (LEASES, LEASES - renewed), "{status:?}");
            assert_eq!(status.expired - before.expired, stolen as u64);
        }
        // All at once: those renewed first end soon.
        let released = answers.iter().map(|answer| clients[0].release(&answer.lease.lease_id));
        let released = futures_util::future::join_all(released).await;
        let in_time = in_time && first.elapsed() < TTL;
        for (Answer { state, .. }, released) in answers.iter().zip(released) {
            match state {
                RenewalState::Renewed if in_time => assert_eq!(released, ReleaseState::Released),
                RenewalState::Renewed => {}
                RenewalState::Expired => assert_eq!(released, ReleaseState::Expired),
                other => panic!("a renewal at the edge was answered {other:?}"),
            }
        }
        while let Some(lease) = thieves.join_next().await {
            clients[0].release(&lease.unwrap().lease_id).await;
        }
        in_time.then_some(counted)
    })
    .await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_a_release_at_the_edge_gives_back_once() {
    let server = Arc::new(Server::start(&config()));
    let clients = server.clients(4).await;
    rounds(size(1, 3, 300), [ReleaseState::Released, ReleaseState::Expired], async |spread| {
        let before = server.status("db").await;
        let mut counted = HashMap::new();
        let release = |client: Client, id: String| async move { client.release(&id).await };
        for Answer { state, .. } in at_the_edge(&server, &clients, spread, release).await {
            *counted.entry(state).or_default() += 1;
        }
        let status = server.status("db").await;
        assert_eq!(status.running, 0);
        let expired: usize = counted.get(&ReleaseState::Expired).copied().unwrap_or_default();
        assert_eq!(status.expired - before.expired, expired as u64);
        assert_eq!(status.granted - before.granted, LEASES as u64);
        Some(counted)
    })
    .await;
    drain_and_refill(&server, "db").await;
}
