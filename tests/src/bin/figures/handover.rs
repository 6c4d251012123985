//! From a Release to the answer of the waiter that it lets run, with 1,000 waiters, against a call of a bare echo.

use std::time::Duration;

use tidegate_tests::{Client, Instant, Server, ask, drain_and_refill, exercised, v1};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::echo::Echo;
use crate::{millis, percentile, tell, tell_goal, tell_stalls};

const WAITERS: usize = 1_000;
const CONNECTIONS: usize = 5;
/// Hand-overs in each run, each followed by an echo.
const TIMES: usize = 1_000;

/// When a waiter was answered, with which lease, and on which connection: the next one waits there, so that none gets more
/// than its share of streams.
type Answer = (Instant, v1::Lease, usize);

struct Waiters {
    clients: Vec<Client>,
    answers: mpsc::UnboundedSender<Answer>,
    calls: JoinSet<()>,
}

impl Waiters {
    fn add(&mut self, connection: usize) {
        let call = self.clients[connection].acquire(ask("db"));
        let answers = self.answers.clone();
        while self.calls.try_join_next().is_some() {}
        self.calls.spawn(async move {
            let response = call.await.expect("the wait is longer than this");
            let _ = answers.send((Instant::now(), response.lease.expect("a grant has a lease"), connection));
        });
    }
}

pub(crate) async fn measure(runs: usize) {
    let echo = Echo::start();
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=1000\nmax_wait='1h'\nlease_ttl='5m'\n");
    let (releasing, echoing) = (server.client().await, Client::connect(echo.address).await);
    let (answers, mut answered) = mpsc::unbounded_channel();
    let mut waiters = Waiters { clients: server.clients(CONNECTIONS).await, answers, calls: JoinSet::new() };
    let mut lease = releasing.take("db").await;
    for waiter in 0..WAITERS {
        waiters.add(waiter % CONNECTIONS);
    }
    server.until("db", |now| now.queued == 1_000).await;

    let (mut ratios, mut ours, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=runs {
        let (mut handovers, mut echoes) = (Vec::<Duration>::new(), Vec::new());
        for _ in 0..TIMES {
            let start = Instant::now();
            let (_, answer) = tokio::join!(releasing.release(&lease.lease_id), answered.recv());
            let (at, next, connection) = answer.unwrap();
            handovers.push(at - start);
            lease = next;
            waiters.add(connection);
            server.until("db", |now| now.queued == 1_000).await;
            let start = Instant::now();
            echoing.acquire(ask("db")).await.unwrap();
            echoes.push(start.elapsed());
        }
        let [handover, echo] = [&mut handovers, &mut echoes].map(|spans| percentile(spans, 99));
        // The first run only warms up.
        if run > 0 {
            ratios.push(millis(handover) / millis(echo));
            ours.push(millis(handover));
            bare.push(millis(echo));
        }
    }
    tell("Release to the next waiter's answer, 1,000 waiters, p99", ours, " ms");
    tell("a bare echo call in turn with it, p99", bare, " ms");
    tell_goal("ratio of the two", ratios, "", 5.0);
    tell_stalls(&server);
    exercised("hand-overs", usize::try_from(server.status("db").await.granted).unwrap(), runs * TIMES);

    waiters.calls.shutdown().await;
    server.until("db", |now| now.queued == 0).await;
    releasing.release(&lease.lease_id).await;
    drain_and_refill(&server, "db").await;
}
