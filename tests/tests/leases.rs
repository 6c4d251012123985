//! Leases: renewal on its own and on streams, release, expiry, and what is told of those that ended.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tidegate_tests::v1::{ReleaseState, RenewalState};
use tidegate_tests::{
    Client, Instant, Server, ask, drain_and_refill, exercised, in_time, reason, renewal_states, seconds, size, slack,
    span, v1,
};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// A renewal stream that is asked and answered step by step.
async fn renewals(client: &Client) -> (mpsc::Sender<v1::RenewLeasesRequest>, Streaming<v1::RenewLeasesResponse>) {
    let (sender, receiver) = mpsc::channel(100);
    let answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.expect("the stream begins");
    (sender, answers.into_inner())
}

/// That many different texts which no server ever gave away.
fn made_up(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("made-up-{number}-{}", "A".repeat(70))).collect()
}

#[tokio::test]
async fn a_renewal_tells_what_became_of_each_lease_in_order() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=4\nlease_ttl='2s'\nmax_lease_ttl='5m'\n");
    let client = server.client().await;
    let expired = client.take("db").await;
    let long = client.granted(v1::AcquireRequest { lease_ttl: seconds(120), ..ask("db") }).await;
    let released = client.take("db").await;
    client.release(&released.lease_id).await;
    server.until("db", |now| now.expired == 1).await;
    let live = client.take("db").await;

    let ids = [&live.lease_id, &expired.lease_id, "nobody's", &long.lease_id, &released.lease_id, "", &live.lease_id];
    let renewals = client.renew(ids).await;
    assert_eq!(renewals.iter().map(|renewal| &renewal.lease_id[..]).collect::<Vec<_>>(), ids);
    let states: Vec<_> = renewals.iter().map(v1::Renewal::state).collect();
    let [renewed, unknown] = [RenewalState::Renewed, RenewalState::Unknown];
    let expected = [renewed, RenewalState::Expired, unknown, renewed, RenewalState::Released, unknown, renewed];
    assert_eq!(states, expected);
    for renewal in &renewals {
        let is_live = renewal.state() == renewed;
        assert_eq!(renewal.ttl.is_some(), is_live, "{renewal:?}");
        assert_eq!(renewal.fencing_floor, if is_live { long.fencing_token } else { 0 }, "the lowest live token");
    }
    assert_eq!((span(renewals[0].ttl), span(renewals[3].ttl)), (Duration::from_secs(2), Duration::from_mins(2)));

    assert_eq!(client.release(&long.lease_id).await, ReleaseState::Released);
    let floor = client.renew([&live.lease_id[..]]).await[0].fencing_floor;
    assert_eq!(floor, live.fencing_token, "the floor follows");
    assert_eq!(client.release(&live.lease_id).await, ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_release_tells_what_it_found_and_gives_back_once() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='2s'\n");
    let client = server.client().await;
    let expired = client.take("db").await;
    let live = client.granted(v1::AcquireRequest { request_id: "live".into(), ..ask("db") }).await;
    server.until("db", |now| now.expired == 2).await;
    assert_eq!(client.release(&expired.lease_id).await, ReleaseState::Expired);
    assert_eq!(client.release_request("db", "live").await, ReleaseState::Expired);

    let [one, two] = [client.take("db").await, client.take("db").await];
    assert_eq!(client.release(&one.lease_id).await, ReleaseState::Released);
    for _ in 0..size(20, 200, 2000) {
        for id in [&one.lease_id, &live.lease_id, &expired.lease_id, "made up"] {
            assert_ne!(client.release(id).await, ReleaseState::Released);
        }
        assert_eq!(client.renew_one(&two.lease_id).await, RenewalState::Renewed);
        assert_eq!(server.status("db").await.running, 1);
    }
    assert_eq!(client.release(&one.lease_id).await, ReleaseState::AlreadyReleased);
    assert_eq!(client.release("made up").await, ReleaseState::Unknown);
    assert_eq!(client.release(&two.lease_id).await, ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r7_what_is_no_longer_remembered_has_ended() {
    let server = Server::start("[server]\nmax_remembered=1\n[[bulkhead]]\nname='db'\nlimit=1\n");
    let client = server.client().await;
    let first = client.granted(v1::AcquireRequest { request_id: "1".into(), ..ask("db") }).await;
    client.release(&first.lease_id).await;
    assert_eq!(client.release(&first.lease_id).await, ReleaseState::AlreadyReleased);
    let second = client.granted(v1::AcquireRequest { request_id: "2".into(), ..ask("db") }).await;
    client.release(&second.lease_id).await;
    assert_eq!(client.release(&first.lease_id).await, ReleaseState::Ended);
    assert_eq!(client.renew_one(&first.lease_id).await, RenewalState::Ended);
    assert_eq!(client.release(&second.lease_id).await, ReleaseState::AlreadyReleased);
    assert_eq!(client.renew_one(&second.lease_id).await, RenewalState::Released);
    // The first one's request id is as good as new, and nothing was refused for want of memory.
    let again = client.granted(v1::AcquireRequest { request_id: "1".into(), ..ask("db") }).await;
    client.release(&again.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r6_a_renewed_lease_lasts_and_ends_a_ttl_after_its_last_renewal() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='2s'\nmax_wait='1m'\n");
    let client = server.client().await;
    let ttl = Duration::from_secs(2);
    in_time(ttl + slack(ttl), async || {
        let lease = client.take("db").await;
        let waiter = client.start(ask("db"));
        server.until("db", |now| now.queued == 1).await;
        let (mut renewed, stalled) = ((Instant::now(), Instant::now()), server.stalled());
        for _ in 0..12 {
            // What is tested is the passing of time: longer than one ttl in all.
            tokio::time::sleep(ttl / 8).await;
            let sent = Instant::now();
            assert_eq!(client.renew_one(&lease.lease_id).await, RenewalState::Renewed);
            renewed = (sent, Instant::now());
        }
        let next = waiter.await.unwrap().unwrap().lease.unwrap();
        let now = Instant::now();
        assert!(now - renewed.0 >= ttl, "{:?} after it was renewed", now - renewed.0);
        assert_eq!(client.renew_one(&lease.lease_id).await, RenewalState::Expired);
        client.release(&next.lease_id).await;
        (now - renewed.1).saturating_sub(server.stalled().saturating_sub(stalled))
    })
    .await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_renewal_stream_answers_each_request_once_and_in_order() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=100\nlease_ttl='1m'\n");
    let client = server.client().await;
    let mut leases = Vec::new();
    for _ in 0..100 {
        leases.push(client.take("db").await);
    }
    let (sender, mut answers) = renewals(&client).await;
    let mut random = rand::rng();
    let requests: Vec<_> = (0..size(300, 1000, 10_000))
        .map(|_| {
            let count = rand::Rng::random_range(&mut random, 0..5);
            let ids = rand::seq::IndexedRandom::choose_multiple(&leases[..], &mut random, count);
            // Any number may be chosen, also twice, also 0.
            let seq = rand::Rng::random_range(&mut random, 0..10);
            v1::RenewLeasesRequest { seq, lease_ids: ids.map(|lease| lease.lease_id.clone()).collect() }
        })
        .collect();
    let sent = requests.clone();
    tokio::spawn(async move {
        for request in sent {
            sender.send(request).await.expect("the stream goes on");
        }
    });
    let mut renewed = 0;
    for request in &requests {
        let answer = answers.next().await.expect("each request has an answer").unwrap();
        let ids: Vec<_> = answer.renewals.iter().map(|renewal| renewal.lease_id.clone()).collect();
        assert_eq!((answer.seq, &ids, answer.draining), (request.seq, &request.lease_ids, false));
        assert!(answer.renewals.iter().all(|renewal| renewal.state() == RenewalState::Renewed));
        renewed += ids.len();
    }
    assert!(answers.next().await.is_none(), "a stream that its client ended ends");
    exercised("renewals on the stream", renewed, 300);
    for lease in &leases {
        client.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_thousand_leases_are_renewed_by_one_request_and_more_are_refused() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let client = server.client().await;
    let lease = client.take("db").await;
    let mut ids = vec![lease.lease_id.clone()];
    ids.extend(made_up(999));
    let answer = client.renew(ids.iter().map(String::as_str)).await;
    assert_eq!(renewal_states(&answer), [(RenewalState::Renewed, 1), (RenewalState::Unknown, 999)].into());

    let (sender, mut answers) = renewals(&client).await;
    sender.send(v1::RenewLeasesRequest { seq: 3, lease_ids: ids.clone() }).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap().renewals.len(), 1000);

    ids.extend(made_up(1));
    let request = v1::RenewRequest { seq: 0, lease_ids: ids.clone() };
    let unary = client.stub().renew(request).await.unwrap_err();
    sender.send(v1::RenewLeasesRequest { seq: 4, lease_ids: ids }).await.unwrap();
    let streamed = answers.next().await.unwrap().unwrap_err();
    for status in [unary, streamed] {
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(tidegate_client::refusal(&status).unwrap().violations[0].field, "lease_ids");
    }
    client.release(&lease.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r5_the_end_of_a_stream_or_a_connection_is_no_release() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nlease_ttl='4s'\n");
    let lease = {
        let client = server.client().await;
        let lease = client.take("db").await;
        let (sender, mut answers) = renewals(&client).await;
        sender.send(v1::RenewLeasesRequest { seq: 1, lease_ids: vec![lease.lease_id.clone()] }).await.unwrap();
        answers.next().await.unwrap().unwrap();
        lease
    };
    let start = Instant::now();
    let client = server.client().await;
    // Its holder comes back on another connection.
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(server.status("db").await.running, 1);
    }
    assert_eq!(client.renew_one(&lease.lease_id).await, RenewalState::Renewed);
    server.until("db", |now| now.expired == 1).await;
    drain_and_refill(&server, "db").await;
}
