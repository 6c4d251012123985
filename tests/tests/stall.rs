//! The server itself is stopped for longer than its leases last, and goes on: nobody loses a lease by it (R6, P12).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_tests::v1::RenewalState;
use tidegate_tests::{
    Client, Instant, PATIENCE, Server, ask, drain_and_refill, exercised, in_time, millis, size, slack, v1,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

const TTL: Duration = Duration::from_secs(2);

/// A client that keeps one lease alive over a stream, as it should.
struct Holder {
    client: Client,
    lease: v1::Lease,
    log: Arc<Mutex<Log>>,
    on: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Log {
    /// When each renewal was sent; its place is its number.
    sent: Vec<Instant>,
    /// How many were answered, all of them as they should be.
    answered: usize,
}

impl Holder {
    async fn start(server: &Server) -> Self {
        let client = server.client().await;
        let lease = client.take("db").await;
        let (sender, receiver) = mpsc::channel(1000);
        let mut answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let log = Arc::new(Mutex::new(Log::default()));
        let (on, mut go_on) = watch::channel(true);
        let (sending, reading, lease_id) = (log.clone(), log.clone(), lease.lease_id.clone());
        let send = async move {
            let mut every = tokio::time::interval(TTL / 10);
            loop {
                tokio::select! {
                    _ = every.tick() => {}
                    _ = go_on.changed() => return,
                }
                let seq = {
                    let mut log = sending.lock();
                    log.sent.push(Instant::now());
                    log.sent.len() as u64
                };
                let request = v1::RenewLeasesRequest { seq, lease_ids: vec![lease_id.clone()] };
                sender.send(request).await.expect("the stream is open");
            }
        };
        let read = async move {
            while let Some(answer) = answers.next().await {
                let answer = answer.expect("the stream goes on");
                let mut log = reading.lock();
                log.answered += 1;
                assert_eq!(answer.seq, log.answered as u64, "in order, each once");
                assert_eq!(answer.renewals[0].state(), RenewalState::Renewed, "renewal {}", answer.seq);
            }
        };
        let tasks = [tokio::spawn(send), tokio::spawn(read)];
        Self { client, lease, log, on, tasks }
    }

    fn sent_within(&self, from: Instant, to: Instant) -> usize {
        self.log.lock().sent.iter().filter(|&&sent| sent >= from && sent < to).count()
    }

    /// Whether all that was sent until then has been answered.
    fn is_answered(&self, until: Instant) -> bool {
        let log = self.log.lock();
        log.sent.iter().filter(|&&sent| sent < until).count() <= log.answered
    }

    /// Renews no more, and gives the lease back when the stream has ended as it should.
    async fn end(self) {
        self.on.send_replace(false);
        for task in self.tasks {
            task.await.unwrap();
        }
        assert_eq!(self.client.release(&self.lease.lease_id).await, v1::ReleaseState::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_stopped_server_takes_no_lease_from_those_who_renewed() {
    const HOLDERS: usize = 50;
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=50\nmax_queued=100\nmax_wait='10m'\nlease_ttl='2s'\n");
    let mut holders = Vec::new();
    for _ in 0..HOLDERS {
        holders.push(Holder::start(&server).await);
    }
    // These would take what the others lose.
    let waiting = server.client().await;
    let waiters: Vec<_> = (0..20).map(|_| waiting.start(ask("db"))).collect();
    server.until("db", |now| now.queued == 20).await;

    let rounds = size(1, 2, 20);
    let mut renewed_while_stopped = 0;
    for _ in 0..rounds {
        let stopped = Instant::now();
        server.stop();
        // The stop itself is what is tested.
        tokio::time::sleep(2 * TTL).await;
        server.cont();
        let resumed = Instant::now();
        renewed_while_stopped += holders.iter().map(|holder| holder.sent_within(stopped, resumed)).sum::<usize>();
        while !holders.iter().all(|holder| holder.is_answered(resumed)) {
            assert!(resumed.elapsed() < PATIENCE, "renewals are not answered");
            assert!(holders.iter().all(|holder| !holder.tasks[1].is_finished()), "a stream has ended or told bad news");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("all renewals sent until then were answered {:?} after the resume", resumed.elapsed());
        // Two more ttls, in which a lease that had not moved would end.
        while resumed.elapsed() < 2 * TTL + slack(TTL) {
            let status = server.status("db").await;
            assert_eq!((status.running, status.queued, status.expired), (50, 20, 0), "{:?}", resumed.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    server.until_logged("stood still", 1).await;
    let answered: usize = holders.iter().map(|holder| holder.log.lock().answered).sum();
    exercised("renewals answered, all RENEWED", answered, HOLDERS * 8 * rounds);
    exercised("of them sent while the server was stopped", renewed_while_stopped, HOLDERS * 3 * rounds);

    for holder in holders {
        holder.end().await;
    }
    for waiter in waiters {
        let lease = waiter.await.unwrap().unwrap().lease.unwrap();
        waiting.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r6_an_abandoned_lease_ends_later_by_the_stall_and_a_wait_does_not() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100\nmax_wait='10m'\nlease_ttl='2s'\n");
    let client = server.client().await;
    let stall = TTL + TTL / 2;
    for _ in 0..size(1, 2, 20) {
        // How late both were, counted from the resume.
        in_time(slack(TTL), async || {
            let (sent, stalled) = (Instant::now(), server.stalled());
            client.take("db").await;
            let granted = Instant::now();
            let next = client.start(ask("db"));
            server.until("db", |now| now.queued == 1).await;
            let brief = client.start(v1::AcquireRequest { max_wait: millis(2500), ..ask("db") });
            server.until("db", |now| now.queued == 2).await;
            server.stop();
            tokio::time::sleep(stall).await;
            server.cont();
            let resumed = Instant::now();
            // The wait was over before, in real time.
            let refusal = brief.await.unwrap().unwrap_err();
            let refused = resumed.elapsed();
            assert_eq!(tidegate_tests::reason(&refusal), "WAIT_TIMEOUT");
            let lease = next.await.unwrap().unwrap().lease.unwrap();
            let now = Instant::now();
            client.release(&lease.lease_id).await;
            // Clocks of two processes, read one after the other.
            let rounding = Duration::from_millis(5);
            assert!(now - sent + rounding >= TTL + stall, "handed on {:?} after it was sent", now - sent);
            // What it counts as its stall is what it missed since its last beat, and what else the machine did to it.
            let stalled = server.stalled().saturating_sub(stalled);
            refused.max((now - granted).saturating_sub(TTL + stalled))
        })
        .await;
    }
    drain_and_refill(&server, "db").await;
}
