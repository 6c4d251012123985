//! A limit raised by 500 with 10,000 waiters: how soon all 500 are answered.

use tidegate_tests::{Instant, Server, ask, drain_and_refill};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::{millis, tell_goal, tell_stalls};

const WAITERS: u32 = 10_000;
/// Of the 256 streams of a connection 32 are no waiter's.
const CONNECTIONS: usize = 46;
const RAISE: u32 = 500;

pub(crate) async fn measure(runs: usize) {
    let server = Server::start(
        "[[bulkhead]]\nname='db'\nlimit=1\nceiling=501\nmax_queued=10000\nmax_wait='1h'\nlease_ttl='5m'\n",
    );
    let (admin, operator) = (server.admin().await, server.client().await);
    let clients = server.clients(CONNECTIONS).await;
    let held = operator.take("db").await;
    let (answers, mut answered) = mpsc::unbounded_channel();
    let (mut since_send, mut since_answer) = (Vec::new(), Vec::new());
    let mut calls = JoinSet::new();
    // A waiter that was answered is followed by one on its connection, so that none gets more than its share of streams.
    let mut missing: Vec<usize> = (0..CONNECTIONS).cycle().take(WAITERS as usize).collect();
    for run in 0..=runs {
        for connection in missing.drain(..) {
            let (call, answers) = (clients[connection].acquire(ask("db")), answers.clone());
            calls.spawn(async move {
                let response = call.await.expect("the wait is longer than this");
                let _ = answers.send((Instant::now(), response.lease.expect("a grant has a lease"), connection));
            });
        }
        server.until("db", |now| now.queued == WAITERS).await;

        let sent = Instant::now();
        let status = admin.set_limit("db", 1 + RAISE).await;
        let answer = Instant::now();
        assert_eq!((status.running, status.queued), (1 + RAISE, WAITERS - RAISE), "raising wakes them at once");
        let mut leases = Vec::new();
        for _ in 0..RAISE {
            leases.push(answered.recv().await.unwrap());
        }
        let last = leases.iter().map(|(at, ..)| *at).max().unwrap();
        // The first run only warms up.
        if run > 0 {
            since_send.push(millis(last - sent));
            since_answer.push(millis(last.saturating_duration_since(answer)));
        }
        admin.set_limit("db", 1).await;
        for (_, lease, connection) in leases {
            operator.release(&lease.lease_id).await;
            missing.push(connection);
        }
        assert!(answered.try_recv().is_err(), "nobody runs above the limit");
    }
    tell_goal("all 500 answered after SetLimit +500 was sent, 10,000 waiters", since_send, " ms", 50.0);
    tell_goal("all 500 answered after SetLimit was answered", since_answer, " ms", 50.0);
    tell_stalls(&server);

    calls.shutdown().await;
    server.until("db", |now| now.queued == 0).await;
    operator.release(&held.lease_id).await;
    drain_and_refill(&server, "db").await;
}
