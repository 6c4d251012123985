//! A stop in every phase: nobody new is let in, waiters are told, leases are served, and the end comes in bounded time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_tests::{
    Client, Instant, PATIENCE, Server, ask, drain_and_refill, exercised, in_time, millis, reason, size, v1,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const GRACE: Duration = Duration::from_secs(2);
const DB: &str = "[server]\ndrain_grace='2s'\n[[bulkhead]]\nname='db'\nlimit=2\nmax_wait='1m'\nlease_ttl='2s'\n";
/// A stop ends at most so long after its grace.
const AFTER: Duration = Duration::from_secs(1);
/// By when a drain of any kind has ended (P25).
const ENDED: Duration = Duration::from_secs(10);

/// With leases that outlast any pause of the machine, and another grace.
fn long(drain_grace: &str) -> String {
    DB.replace("drain_grace='2s'", &format!("drain_grace='{drain_grace}'")).replace("lease_ttl='2s'", "lease_ttl='1m'")
}

fn renewal(seq: u64, lease: &v1::Lease) -> v1::RenewLeasesRequest {
    v1::RenewLeasesRequest { seq, lease_ids: vec![lease.lease_id.clone()] }
}

#[tokio::test]
async fn p25_a_draining_server_lets_nobody_in_and_serves_who_holds_a_lease() {
    let server = Server::start(&long("1m"));
    let client = server.client().await;
    let (kept, other) = (client.take("db").await, client.take("db").await);
    let (sender, receiver) = mpsc::channel(1);
    let mut answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    sender.send(renewal(1, &kept)).await.unwrap();
    assert!(!answers.message().await.unwrap().unwrap().draining);
    let waiter = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;

    let start = Instant::now();
    server.ask_to_end();
    // Told at once: who waits, and who renews on a stream.
    assert_eq!(reason(&waiter.await.unwrap().unwrap_err()), "DRAINING");
    let told = answers.message().await.unwrap().unwrap();
    assert_eq!((told.seq, told.draining, told.renewals.len()), (0, true, 0));
    assert!(start.elapsed() < ENDED, "{:?}", start.elapsed());
    let refused = client.acquire(ask("db")).await.unwrap_err();
    assert_eq!((refused.code(), &reason(&refused)[..]), (Code::Unavailable, "DRAINING"));
    // Release, renewals of both kinds and what operators read go on, also on new connections.
    assert_eq!(client.release(&other.lease_id).await, v1::ReleaseState::Released);
    let late = server.client().await;
    assert_eq!(late.renew_one(&kept.lease_id).await, v1::RenewalState::Renewed);
    sender.send(renewal(2, &kept)).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!((answer.seq, answer.draining, answer.renewals[0].state()), (2, true, v1::RenewalState::Renewed));
    assert_eq!(server.status("db").await.running, 1);
    let info = server.admin().await.stub().get_server_info(v1::GetServerInfoRequest {}).await.unwrap().into_inner();
    assert!(info.draining);
    // With the last lease given back nothing is left to wait for.
    assert_eq!(late.release(&kept.lease_id).await, v1::ReleaseState::Released);
    let exit = server.ended().await;
    assert_eq!(exit.code, Some(0), "{}", exit.log);
    assert!(exit.took < ENDED, "{:?}", exit.took);
    assert!(!matches!(answers.message().await, Ok(Some(_))), "the stream ends");
}

/// What health says of each listener, as a whole and by the name of its service, asked on new connections.
async fn health(server: &Server) -> Vec<ServingStatus> {
    let mut told = Vec::new();
    for (address, service) in [
        (server.admission_address(), "tidegate.v1.AdmissionService"),
        (server.admin_address(), "tidegate.v1.AdminService"),
    ] {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        for service in ["", service] {
            let request = HealthCheckRequest { service: service.into() };
            told.push(health.check(request).await.unwrap().into_inner().status());
        }
    }
    told
}

#[tokio::test]
async fn p25_health_is_not_serving_everywhere_for_as_long_as_a_lease_keeps_a_drain_going() {
    let server = Server::start(&long("1m"));
    let client = server.client().await;
    let lease = client.take("db").await;
    assert_eq!(health(&server).await, [ServingStatus::Serving; 4]);
    let start = Instant::now();
    server.ask_to_end();
    while health(&server).await != [ServingStatus::NotServing; 4] {
        assert!(start.elapsed() < ENDED, "{:?}", health(&server).await);
    }
    // For good: while the holder goes on, and operators change things.
    for _ in 0..20 {
        assert_eq!(client.renew_one(&lease.lease_id).await, v1::RenewalState::Renewed);
        assert_eq!(server.admin().await.set_limit("db", 1).await.running, 1);
        assert_eq!(health(&server).await, [ServingStatus::NotServing; 4]);
    }
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    let exit = server.ended().await;
    assert_eq!(exit.code, Some(0), "{}", exit.log);
}

#[tokio::test]
async fn p25_a_drain_ends_within_a_second_after_its_grace_whatever_clients_hold() {
    in_time(GRACE + AFTER, async || {
        let server = Server::start(&long("2s"));
        let client = server.client().await;
        let lease = client.take("db").await;
        let (sender, receiver) = mpsc::channel(1);
        let mut answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let watching = server.admin().await.stub().watch_bulkheads(v1::WatchBulkheadsRequest::default()).await.unwrap();
        let start = Instant::now();
        server.ask_to_end();
        // The holder renews as long as it can, so the drain lasts its whole grace.
        let renewing = tokio::spawn(async move {
            for seq in 1.. {
                if sender.send(renewal(seq, &lease)).await.is_err() || !matches!(answers.message().await, Ok(Some(_))) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            start.elapsed()
        });
        let exit = server.ended().await;
        let took = start.elapsed();
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        assert!(took >= GRACE, "{took:?}");
        assert!(renewing.await.unwrap() >= GRACE, "renewals were served to the end of the grace");
        drop(watching);
        took
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_ends_a_drain_now() {
    let server = Server::start(&long("10m"));
    let client = server.client().await;
    let _held = [client.take("db").await, client.take("db").await];
    let waiter = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;
    server.ask_to_end();
    let _ = waiter.await.unwrap();
    server.until_logged("draining", 1).await;
    let exit = server.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", exit.log);
    assert!(exit.took < ENDED, "{:?}", exit.took);
    assert!(exit.log.contains("at once"), "{}", exit.log);
}

/// One unit of work by a client that retries: whatever happens to the server, it goes on with the next one.
async fn work(client: &Client, running: &AtomicUsize, granted: &AtomicUsize) -> Result<(), tonic::Status> {
    let lease = client.acquire(v1::AcquireRequest { max_wait: millis(300), ..ask("db") }).await?.lease.unwrap();
    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(now <= 2, "{now} run under limit 2 of one server");
    granted.fetch_add(1, Ordering::SeqCst);
    tokio::task::yield_now().await;
    running.fetch_sub(1, Ordering::SeqCst);
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p25_rolling_restarts_under_load_lose_nothing_and_drain_in_time() {
    let restarts = size(3, 8, 50);
    let granted = Arc::new(AtomicUsize::new(0));
    let mut drained = 0;
    for _ in 0..restarts {
        let server = Server::start(&long("5s"));
        let (running, before) = (Arc::new(AtomicUsize::new(0)), granted.load(Ordering::SeqCst));
        let mut workers = tokio::task::JoinSet::new();
        for client in server.clients(8).await {
            let (running, granted) = (running.clone(), granted.clone());
            workers.spawn(async move {
                // Its own retry: until the server says that it drains.
                loop {
                    match work(&client, &running, &granted).await {
                        Ok(()) => {}
                        Err(status) if reason(&status) == "DRAINING" => return true,
                        Err(status) if status.code() == Code::ResourceExhausted => {}
                        Err(_) => return false,
                    }
                }
            });
        }
        let start = Instant::now();
        while granted.load(Ordering::SeqCst) < before + 50 {
            assert!(start.elapsed() < PATIENCE, "no work is done");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let start = Instant::now();
        server.ask_to_end();
        let exit = server.ended().await;
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        assert!(start.elapsed() < ENDED, "{:?}", start.elapsed());
        drained += workers.join_all().await.into_iter().filter(|told| *told).count();
        // Everything was given back before the end: the log of the stop says so.
        assert!(exit.log.contains("stopping running=0"), "{}", exit.log);
    }
    exercised("clients told DRAINING", drained, restarts * 2);
    exercised("grants", granted.load(Ordering::SeqCst), restarts * 50);
}

#[tokio::test]
async fn p25_a_stop_waits_for_the_last_lease_of_a_bulkhead_that_was_deleted_before() {
    let server = Server::start(&format!("{}[[bulkhead]]\nname='idle'\nlimit=1\n", long("1m")));
    let client = server.client().await;
    let lease = client.take("db").await;
    let delete = v1::DeleteBulkheadRequest { name: "db".into(), drain: true, ..Default::default() };
    let deleted = server.admin().await.stub().delete_bulkhead(delete).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.to_drain), (false, 1));
    server.ask_to_end();
    server.until_logged("draining", 1).await;
    let status = server.until("db", |now| now.running == 1).await;
    assert!(status.deleting);
    assert_eq!(reason(&client.acquire(ask("idle")).await.unwrap_err()), "DRAINING");
    // For longer than a drain takes that sees no lease.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(client.renew_one(&lease.lease_id).await, v1::RenewalState::Renewed);
    }
    assert!(!server.logged("stopping"), "it did not wait");
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    let exit = server.ended().await;
    assert_eq!(exit.code, Some(0), "{}", exit.log);
    assert!(exit.took < ENDED && exit.log.contains("stopping running=0"), "{:?} {}", exit.took, exit.log);
}

#[tokio::test]
async fn p25_a_stop_during_a_reload_lets_nobody_into_what_the_reload_makes() {
    // It comes while the file is read, or when the first of so many are made.
    for is_late in [false, true] {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, long("1m")).unwrap();
        let server = Server::start_on(&file, &[]);
        let client = server.client().await;
        let lease = client.take("db").await;
        let made: Vec<_> = (0..2_000).map(|number| format!("[[bulkhead]]\nname='made/{number}'\nlimit=1\n")).collect();
        std::fs::write(&file, long("1m") + &made.concat()).unwrap();
        server.hang_up();
        server.until_logged("reading", 1).await;
        let start = Instant::now();
        let first = v1::GetBulkheadRequest { name: "made/0".into() };
        while is_late && server.admin().await.stub().get_bulkhead(first.clone()).await.is_err() {
            assert!(start.elapsed() < PATIENCE, "nothing is made");
        }
        server.ask_to_end();
        server.until_logged("configuration reloaded", 1).await;
        server.until_logged("draining", 1).await;
        for number in (0..2_000).step_by(20) {
            let asked = client.acquire(ask(&format!("made/{number}"))).await;
            assert_eq!(reason(&asked.unwrap_err()), "DRAINING", "made/{number}");
        }
        assert_eq!(client.renew_one(&lease.lease_id).await, v1::RenewalState::Renewed);
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
        let exit = server.ended().await;
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        assert!(exit.log.contains("stopping running=0") && !exit.log.contains("panicked"), "{}", exit.log);
    }
}

#[tokio::test]
async fn a_stop_while_it_starts_ends_with_0_or_by_the_signal() {
    for delay in [0, 1, 3, 10, 30] {
        let exit = Server::stopped_after(DB, Duration::from_millis(delay)).await;
        // Before the handlers are there the signal itself ends the process, which holds nothing yet.
        assert!(matches!(exit.code, Some(0) | None), "{delay} ms: {:?} {}", exit.code, exit.log);
        assert!(exit.took < ENDED, "{:?}", exit.took);
    }
    let server = Server::start(DB);
    drain_and_refill(&server, "db").await;
}
