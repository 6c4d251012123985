//! 100,000 leases in 1,000 bulkheads that expire together: how soon their permits are free, and what others notice.
//!
//! In every tenth bulkhead a call waits, so that it is seen from outside when a permit is handed on. To look at a bulkhead
//! settles it, so the look at all of them comes last.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_tests::v1::RenewalState;
use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised, millis as field, renewal_states, v1};
use tokio::task::JoinSet;

use crate::{millis, percentile, tell, tell_goal, tell_stalls};

const BULKHEADS: usize = 1_000;
const LEASES_EACH: usize = 100;
const TTL: Duration = Duration::from_secs(5);
/// Of those that are there within this after their ttl, all are free.
const GOAL: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 8;
/// Between two calls of somebody who has nothing to do with it.
const PACE: Duration = Duration::from_millis(2);

const CONFIG: &str = "[[bulkhead]]\nname='calm'\nlimit=4\n\
                      [[template]]\npattern='storm/*'\nlimit=100\nlease_ttl='5s'\nmax_wait='1m'\n";

pub(crate) async fn measure(runs: usize) {
    let (mut spreads, mut handed_on, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let (mut idle_p99, mut storm_p99, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let server = Server::start(CONFIG);
    let clients = server.clients(CONNECTIONS).await;
    let mut expired = 0;
    for _ in 0..runs {
        let lease_ids = fill(&clients).await;
        let mut witnesses = JoinSet::new();
        for (number, client) in (0..BULKHEADS).step_by(10).zip(clients.iter().cycle()) {
            witnesses.spawn(witness(client.clone(), bulkhead(number)));
        }
        for number in (0..BULKHEADS).step_by(10) {
            server.until(&bulkhead(number), |now| now.queued == 1).await;
        }
        let first = Instant::now();
        renew(&clients, &lease_ids).await;
        let last = Instant::now();

        let stop = Arc::new(Mutex::new(false));
        let beside = tokio::spawn(others(server.client().await, stop.clone()));
        tokio::time::sleep_until(first + TTL).await;
        let mut latest = last;
        while let Some(at) = witnesses.join_next().await {
            latest = latest.max(at.unwrap());
        }
        tokio::time::sleep_until(first + TTL + GOAL).await;
        *stop.lock() = true;
        let looked = Instant::now();
        let running = running(&server).await;
        assert_eq!(running, 0, "leases are still there {:?} after the last renewal", looked - last);

        spreads.push(millis(last - first));
        handed_on.push(millis(latest.saturating_duration_since(first + TTL)));
        gone.push(millis(looked - (first + TTL)));
        let calls = beside.await.unwrap();
        let within = |from: Instant, to: Instant| {
            calls.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, took)| *took).collect::<Vec<_>>()
        };
        let mut idle = within(last + TTL / 10, first + TTL - TTL / 10);
        let mut storm = within(first + TTL, first + TTL + GOAL);
        exercised("calls beside it while nothing happened", idle.len(), 200);
        exercised("calls beside it during the storm", storm.len(), 100);
        let [idle, storm] = [&mut idle, &mut storm].map(|spans| millis(percentile(spans, 99)));
        idle_p99.push(idle);
        storm_p99.push(storm);
        ratios.push(storm / idle);

        let total = all(&server).await.iter().map(|status| status.expired).sum::<u64>();
        exercised("leases that expired", usize::try_from(total - expired).unwrap(), BULKHEADS * LEASES_EACH);
        expired = total;
    }
    tell("100,000 leases were renewed for the last time within", spreads, " ms");
    tell_goal("permits of all 100 waited-for bulkheads handed on after the first ttl", handed_on, " ms", millis(GOAL));
    tell("ListBulkheads said that nothing runs after the first ttl +", gone, " ms");
    tell("Acquire + Release beside it while nothing happens, p99", idle_p99, " ms");
    tell("the same during the storm, p99", storm_p99, " ms");
    tell_goal("ratio of the two", ratios, "", 5.0);
    tell_stalls(&server);
    drain_and_refill(&server, "calm").await;
    drain_and_refill(&server, &bulkhead(7)).await;
}

fn bulkhead(number: usize) -> String {
    format!("storm/{number}")
}

/// Takes all permits of all bulkheads. What is there is renewed now and then, so that it outlives the rest being made.
async fn fill(clients: &[Client]) -> Vec<String> {
    let mut lease_ids = Vec::new();
    for part in 0..10 {
        let mut tasks = JoinSet::new();
        for (number, client) in (0..64).zip(clients.iter().cycle()) {
            let client = client.clone();
            tasks.spawn(async move {
                let mut lease_ids = Vec::new();
                for bulkhead in (0..BULKHEADS).skip(number).step_by(64).map(bulkhead) {
                    for _ in 0..LEASES_EACH / 10 {
                        lease_ids.push(client.take(&bulkhead).await.lease_id);
                    }
                }
                lease_ids
            });
        }
        while let Some(made) = tasks.join_next().await {
            lease_ids.extend(made.unwrap());
        }
        if part < 9 {
            renew(clients, &lease_ids).await;
        }
    }
    lease_ids
}

/// All of them, 1,000 in each request, one after the other on each connection: of such requests a connection may have
/// only some under way.
async fn renew(clients: &[Client], lease_ids: &[String]) {
    let mut tasks = JoinSet::new();
    for (client, share) in clients.iter().zip(lease_ids.chunks(lease_ids.len().div_ceil(clients.len()).max(1))) {
        let (client, share) = (client.clone(), share.to_vec());
        tasks.spawn(async move {
            for batch in share.chunks(1_000) {
                let states = renewal_states(&client.renew(batch.iter().map(String::as_str)).await);
                assert_eq!(states.get(&RenewalState::Renewed), Some(&batch.len()), "{states:?}");
            }
        });
    }
    while let Some(renewed) = tasks.join_next().await {
        renewed.unwrap();
    }
}

/// Waits for a permit, gives it back, and tells when it came.
async fn witness(client: Client, bulkhead: String) -> Instant {
    let lease = client.granted(ask(&bulkhead)).await;
    let at = Instant::now();
    client.release(&lease.lease_id).await;
    at
}

/// Somebody else's calls, one after the other: when each began, and how long Acquire and Release took together.
async fn others(client: Client, stop: Arc<Mutex<bool>>) -> Vec<(Instant, Duration)> {
    let mut calls = Vec::new();
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !*stop.lock() {
        pace.tick().await;
        let start = Instant::now();
        let lease = client.granted(v1::AcquireRequest { max_wait: field(0), ..ask("calm") }).await;
        client.release(&lease.lease_id).await;
        calls.push((start, start.elapsed()));
    }
    calls
}

async fn running(server: &Server) -> u32 {
    let of_storm = all(server).await;
    assert_eq!(of_storm.len(), BULKHEADS);
    of_storm.iter().map(|status| status.running).sum()
}

/// How every bulkhead of the storm stands.
async fn all(server: &Server) -> Vec<v1::BulkheadStatus> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListBulkheadsRequest { page_size: 1_000, page_token };
        let page = server.admin().await.stub().list_bulkheads(request).await.unwrap().into_inner();
        let storm = page.bulkheads.into_iter().filter(|bulkhead| bulkhead.name.starts_with("storm/"));
        all.extend(storm.map(|bulkhead| bulkhead.status.expect("a bulkhead has a status")));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return all;
        }
    }
}
