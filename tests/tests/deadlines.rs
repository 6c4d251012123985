//! Ends of waits: by the call's deadline, by `max_wait`, with many at once and with nothing else going on.
//!
//! These tests measure time, so they take turns.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tidegate_client::refusal;
use tidegate_tests::{
    Client, Instant, Pushback, Raw, Server, ask, drain_and_refill, exercised, idles, in_time, millis, reason, seconds,
    size, slack, v1,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tonic::Status;

static TURN: Mutex<()> = Mutex::const_new(());

const MINUTE: Duration = Duration::from_mins(1);

/// How long before its deadline a call is answered (R3).
fn margin(timeout: Duration) -> Duration {
    Duration::from_millis(20).max(timeout / 100).min(timeout / 4)
}

/// One permit, which is taken for as long as the test lasts.
async fn full_server(rest: &str) -> (Server, Client, v1::Lease) {
    let server = Server::start(&format!(
        "{rest}\n[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100000\nmax_wait='5m'\nlease_ttl='5m'\n"
    ));
    let client = server.client().await;
    let lease = client.take("db").await;
    (server, client, lease)
}

async fn end(server: &Server, client: &Client, lease: v1::Lease) {
    // One whose cancel is still on its way would be granted, and hold its lease for minutes.
    server.until("db", |now| now.queued == 0).await;
    assert_eq!(server.status("db").await.granted, 1, "no wait ended with a grant");
    client.release(&lease.lease_id).await;
    drain_and_refill(server, "db").await;
}

/// How a call that was given that long ended, and when.
struct Ended {
    timeout: Duration,
    start: Instant,
    took: Duration,
    status: Status,
}

async fn wait_within(client: Client, timeout: Duration) -> Ended {
    let start = Instant::now();
    let result = client.acquire_within(ask("db"), timeout).await;
    Ended { timeout, start, took: start.elapsed(), status: result.expect_err("no permit is free") }
}

/// A wait of that `max_wait`, within that deadline, ends in that window of milliseconds. It is never early.
async fn ends_in(client: &Client, max_wait: Option<prost_types::Duration>, within: Duration, least: u64, most: u64) {
    let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
    in_time(most, async || {
        let start = Instant::now();
        let request = v1::AcquireRequest { max_wait, ..ask("db") };
        let result = client.acquire_within(request, within).await;
        let took = start.elapsed();
        assert!(took >= least, "{took:?}");
        if took <= most {
            assert_eq!(reason(&result.expect_err("no permit is free")), "WAIT_TIMEOUT");
        }
        took
    })
    .await;
}

impl Ended {
    /// The server answered, and not the client's own time-out. In any case never early, counted from before it was sent.
    fn is_ours(&self) -> bool {
        assert!(self.took + margin(self.timeout) >= self.timeout, "{:?} of {:?}", self.took, self.timeout);
        let reason = reason(&self.status);
        assert!(reason == "WAIT_TIMEOUT" || self.took >= self.timeout, "{reason}");
        reason == "WAIT_TIMEOUT"
    }
}

/// Shows when the machine had no time: a short sleep and a call that touches no bulkhead, again and again; when each
/// such beat began, and how long it took.
#[derive(Clone, Default)]
struct Pulse(Arc<parking_lot::Mutex<Vec<(Instant, Duration)>>>);

impl Pulse {
    /// What a beat takes on a machine that has time.
    const BEAT: Duration = Duration::from_millis(4);

    /// Beats until it is aborted. Once a minute it also renews the lease that the waits are for.
    async fn beat(self, client: Client, held: String) {
        let mut renewed = Instant::now();
        loop {
            if renewed.elapsed() > Duration::from_mins(1) {
                assert_eq!(client.renew_one(&held).await, v1::RenewalState::Renewed);
                renewed = Instant::now();
            }
            let start = Instant::now();
            tokio::time::sleep(Self::BEAT / 4).await;
            client.renew([]).await;
            self.0.lock().push((start, start.elapsed()));
        }
    }

    /// Whether a beat took so long, while that call was on its way there or back, that half of its margin went with it.
    /// Then its miss says nothing about the ends of waits.
    fn excuses(&self, missed: &Ended) -> bool {
        let (sent, end, room) = (missed.start, missed.start + missed.timeout, margin(missed.timeout));
        let overlaps = |beat: Instant, took: Duration, from: Instant, to: Instant| beat < to && beat + took > from;
        self.0.lock().iter().any(|&(beat, took)| {
            let slow = took >= Self::BEAT + room / 2;
            slow && (overlaps(beat, took, sent, sent + room) || overlaps(beat, took, end - room, end))
        })
    }
}

/// Waits bounded by many deadlines; how many were not answered by us without an excuse, and how many were judged.
async fn missed(server: &Server, clients: &[Client], lease: &v1::Lease) -> (usize, usize) {
    let pulse = Pulse::default();
    let beating = tokio::spawn(pulse.clone().beat(server.client().await, lease.lease_id.clone()));
    let mut calls = JoinSet::new();
    // Short ones follow each other and do not come in crowds: what they leave for the way back is 5 to 20 ms.
    for (lane, timeout) in [20, 25, 30, 40, 50, 75, 100, 150, 200, 300].into_iter().enumerate() {
        let (client, timeout) = (clients[lane % 4].clone(), Duration::from_millis(timeout));
        let calls_of_lane = size(3000, 10_000, 600_000) / timeout.as_millis();
        calls.spawn(async move {
            let mut ended = Vec::new();
            for _ in 0..calls_of_lane {
                ended.push(wait_within(client.clone(), timeout).await);
            }
            ended
        });
    }
    // Long ones wait all together. They are not sent in one burst: the server cannot know how long a call was on its way.
    for timeout in [5000, 3000, 2000, 1500, 1000, 750, 500] {
        for call in 0..size(30, 60, 120) {
            let (client, timeout) = (clients[call % 4].clone(), Duration::from_millis(timeout + call as u64));
            calls.spawn(async move { vec![wait_within(client, timeout).await] });
            if call % 4 == 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    server.until("db", |now| now.queued >= 100).await;
    let ended: Vec<Ended> = calls.join_all().await.into_iter().flatten().collect();
    beating.abort();

    let (ours, missed): (Vec<_>, Vec<_>) = ended.iter().partition(|ended| ended.is_ours());
    for Ended { status, .. } in ours {
        let refusal = refusal(status).unwrap();
        // The permit is held for minutes, so a stock client would sleep into its deadline and never tell why.
        assert_eq!(refusal.pushback, Some(Pushback::Never));
        let hint = refusal.hint().unwrap();
        assert!(hint >= Duration::from_mins(1), "{hint:?}");
        assert_eq!((refusal.retry_after, refusal.retry_delay), (Some(hint), Some(hint)));
    }
    let (excused, missed): (Vec<_>, Vec<_>) = missed.iter().partition(|missed| pulse.excuses(missed));
    let timeouts = |ended: &[&&Ended]| ended.iter().map(|ended| ended.timeout).collect::<Vec<_>>();
    println!("of {} not answered by us: {:?}", ended.len(), timeouts(&missed));
    println!("nor these, while the machine was busy: {:?}", timeouts(&excused));
    (missed.len(), ended.len() - excused.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_wait_bounded_by_the_deadline_is_answered_by_us_and_not_by_a_local_time_out() {
    let _turn = TURN.lock().await;
    let (server, client, lease) = full_server("").await;
    let clients = server.clients(4).await;
    // A busy machine makes some miss that no beat excuses, and not each time as many.
    for attempt in 1.. {
        let (missed, judged) = missed(&server, &clients, &lease).await;
        exercised("waits bounded by a deadline, while the machine had time", judged, 200);
        if missed * size(100, 100, 1000) <= judged {
            break;
        }
        assert!(attempt < 5, "too many not answered by us");
    }
    end(&server, &client, lease).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_max_wait_ends_waits_in_its_window_also_many_at_once() {
    let _turn = TURN.lock().await;
    let (server, client, lease) = full_server("").await;
    let clients = server.clients(size(4, 4, 10)).await;
    let crowd = || clients.iter().cycle().take(size(250, 800, 2000)).cloned();
    in_time(slack(Duration::from_secs(10)), async || {
        // A crowd is on its way for a while, whatever it asks for.
        let (sent, mut calls) = (Instant::now(), JoinSet::new());
        for client in crowd() {
            calls.spawn(async move { client.renew([]).await });
        }
        calls.join_all().await;
        let way = sent.elapsed();

        let (stalled, mut calls) = (server.stalled(), JoinSet::new());
        for (call, client) in crowd().enumerate() {
            let max_wait = 200 + 5 * (call % 200) as u64;
            calls.spawn(async move {
                let start = Instant::now();
                let result = client.acquire(v1::AcquireRequest { max_wait: millis(max_wait), ..ask("db") }).await;
                (Duration::from_millis(max_wait), start.elapsed(), result.expect_err("no permit is free"))
            });
        }
        let ended = calls.join_all().await;
        let mut latest = Duration::ZERO;
        for (max_wait, took, status) in &ended {
            assert_eq!(reason(status), "WAIT_TIMEOUT");
            assert!(took >= max_wait, "{took:?} is early for {max_wait:?}");
            latest = latest.max(took.saturating_sub(*max_wait));
        }
        println!("at most {latest:?} late, after {way:?} for as many calls that do not wait");
        exercised("waits bounded by max_wait", ended.len(), 250);
        latest.saturating_sub(way + server.stalled().saturating_sub(stalled))
    })
    .await;
    end(&server, &client, lease).await;
}

#[tokio::test]
async fn p8_a_lone_wait_ends_in_time_though_nothing_else_happens() {
    let _turn = TURN.lock().await;
    let (server, client, lease) = full_server("").await;
    let rounds: usize = size(5, 10, 100);
    let mut ours = 0;
    for _ in 0..rounds {
        ends_in(&client, millis(200), MINUTE, 200, 450).await;
        for _ in 0..5 {
            if wait_within(client.clone(), Duration::from_millis(400)).await.is_ours() {
                ours += 1;
                break;
            }
        }
    }
    assert!(ours + rounds.div_ceil(4) >= rounds, "{ours} of {rounds} answered by us");
    // One whose end comes sooner than the one that is slept for.
    let long = client.start(v1::AcquireRequest { max_wait: seconds(100), ..ask("db") });
    server.until("db", |now| now.queued == 1).await;
    ends_in(&client, millis(100), MINUTE, 100, 350).await;
    long.abort();
    exercised("lone waits", 2 * rounds, 10);
    end(&server, &client, lease).await;
}

#[tokio::test]
async fn nobody_is_busy_while_hundreds_wait() {
    let _turn = TURN.lock().await;
    let (server, client, lease) = full_server("").await;
    let waiters: JoinSet<_> = (0..200).map(|_| client.acquire(ask("db"))).collect();
    server.until("db", |now| now.queued == 200).await;
    idles(&server, Duration::from_secs(2)).await;
    drop(waiters);
    end(&server, &client, lease).await;
}

#[tokio::test]
async fn the_smallest_of_all_bounds_ends_a_wait() {
    let _turn = TURN.lock().await;
    let (server, client, lease) = full_server("").await;
    ends_in(&client, millis(100), Duration::from_secs(10), 100, 350).await;
    ends_in(&client, seconds(10), Duration::from_secs(3), 2970, 3000).await;
    end(&server, &client, lease).await;
}

#[tokio::test]
async fn pushback_is_the_hint_where_it_fits_the_deadline_and_never_where_not() {
    let _turn = TURN.lock().await;
    let request = || v1::AcquireRequest { max_wait: seconds(0), ..ask("db") };
    for (bounds, fits) in [("min_retry_hint='5ms'\nmax_retry_hint='10ms'", true), ("", false)] {
        let (server, client, lease) = full_server(&format!("[server]\n{bounds}")).await;
        for _ in 0..20 {
            let status = client.acquire_within(request(), Duration::from_secs(5)).await.unwrap_err();
            let refusal = refusal(&status).expect("an answer of ours");
            assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");
            let hint = refusal.hint().unwrap();
            let expected = if fits { Pushback::After(hint) } else { Pushback::Never };
            assert_eq!(refusal.pushback, Some(expected), "the hint is {hint:?}");
        }
        end(&server, &client, lease).await;
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_on_arrival_is_never_granted() {
    let _turn = TURN.lock().await;
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let raw = Raw::connect(server.admission_address()).await;
    let request = prost::Message::encode_to_vec(&ask("db"));
    let count: usize = size(100, 1000, 10_000);
    for _ in 0..count {
        let reply = raw.call("tidegate.v1.AdmissionService/Acquire", &[("grpc-timeout", b"1n")], &request).await;
        // RESOURCE_EXHAUSTED is ours; the transport's own time-out would be CANCELLED.
        assert_eq!(reply.code, Some(8), "{reply:?}");
    }
    let status = server.status("db").await;
    assert_eq!((status.granted, status.running, status.refused["WAIT_TIMEOUT"]), (0, 0, count as u64));
    exercised("calls past their deadline", count, 100);
    drain_and_refill(&server, "db").await;
}
