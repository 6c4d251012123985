//! Any bytes: as the body of any rpc, as a lease id, as a configuration. Nothing panics, everything is answered, and
//! nothing is lost. Real requests, altered at random, for a bounded time; a failure prints the seed and the bytes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_proto::v1;
use tidegate_server::config::Config;
use tidegate_server::{Admission, Change, grpc};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// For how long each of the three tries.
#[allow(clippy::disallowed_methods)]
fn tries() -> impl Iterator<Item = u64> {
    let seconds = common::rounds(1, 40, 3_600);
    let end = Instant::now() + Duration::from_secs(seconds as u64);
    let first = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let only = first.is_some();
    let first = first.unwrap_or_else(rand::random::<u64>);
    println!("replay one with TIDEGATE_SEED=<seed>; the first seed is {first}");
    (0..)
        .map(move |number| first.wrapping_add(number))
        .take_while(move |seed| Instant::now() < end && (!only || *seed == first))
}

/// Some bytes changed, put in, taken out, doubled.
fn alter(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..6) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..5) {
            0 => bytes.insert(at, random.random()),
            1 if at < bytes.len() => bytes[at] = random.random(),
            2 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            3 => bytes.truncate(at),
            _ => {
                let end = random.random_range(at..=bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

fn span(random: &mut StdRng) -> Option<prost_types::Duration> {
    let seconds = [0, 1, 2, 5, 300, -1, i64::MAX, i64::MIN][random.random_range(0..8)];
    let nanos = [0, 1, 999_999_999, 1_000_000_000, -1, i32::MIN][random.random_range(0..6)];
    random.random_bool(0.5).then_some(prost_types::Duration { seconds, nanos })
}

/// A request of some rpc, real enough to get past the decoder when it is not altered.
fn request(random: &mut StdRng, lease_id: &str) -> (&'static str, Vec<u8>) {
    let name = ["db", "", "made/a", "made/b", "nobody", "\u{0}", "db\n"][random.random_range(0..7)].to_owned();
    let request_id = ["", "a", "b", "c"][random.random_range(0..4)].to_owned();
    let partition = random.random_bool(0.5).then(|| name.clone());
    match random.random_range(0..10) {
        0..4 => {
            let message = v1::AcquireRequest {
                bulkhead: name,
                permits: [0, 1, 3, u32::MAX][random.random_range(0..4)],
                max_wait: span(random),
                lease_ttl: span(random),
                partition,
                priority: random.random_range(-1..5),
                on_cooldown: random.random_range(-1..4),
                request_id,
                holder: "h".repeat(random.random_range(0..300)),
            };
            ("AdmissionService/Acquire", message.encode_to_vec())
        }
        4 => {
            let lease_id = if random.random_bool(0.7) { lease_id.to_owned() } else { String::new() };
            let message = v1::ReleaseRequest {
                lease_id,
                bulkhead: if random.random_bool(0.5) { String::new() } else { name },
                request_id,
                outcome: random.random_range(-1..5),
                latency: span(random),
                retry_after: span(random),
                partition,
            };
            ("AdmissionService/Release", message.encode_to_vec())
        }
        5 => {
            let lease_ids = vec![lease_id.to_owned(); [0, 1, 2, 1001][random.random_range(0..4)]];
            let message = v1::RenewRequest { seq: random.random(), lease_ids };
            let rpc = ["AdmissionService/Renew", "AdmissionService/RenewLeases"][random.random_range(0..2)];
            (rpc, message.encode_to_vec())
        }
        6 => {
            let message =
                v1::ReportRetryAfterRequest { partition: name, retry_after: span(random), detail: request_id };
            ("AdmissionService/ReportRetryAfter", message.encode_to_vec())
        }
        7 => {
            let limit = [0, 1, 2, 9, u32::MAX][random.random_range(0..5)];
            let message = v1::SetLimitRequest { name, limit, detail: request_id, ..Default::default() };
            ("AdminService/SetLimit", message.encode_to_vec())
        }
        8 => {
            let message =
                v1::ListLeasesRequest { bulkhead: partition, page_size: random.random(), page_token: request_id };
            ("AdminService/ListLeases", message.encode_to_vec())
        }
        _ => {
            let message = v1::ClearCooldownRequest { partition: name, detail: request_id };
            ("AdminService/ClearCooldown", message.encode_to_vec())
        }
    }
}

/// Calls an rpc with that body. Answers its grpc-status.
async fn call(admission: &Arc<Admission>, rpc: &str, timeout: &str, body: Vec<u8>) -> String {
    let request = http::Request::builder()
        .method("POST")
        .uri(format!("http://test/tidegate.v1.{rpc}"))
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .body(tonic::body::Body::new(Full::new(Bytes::from(body))))
        .unwrap();
    let response = if rpc.starts_with("Admin") {
        grpc::admin_service(admission.clone(), CancellationToken::new()).call(request).await.unwrap()
    } else {
        grpc::admission_service(admission.clone(), CancellationToken::new()).call(request).await.unwrap()
    };
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned();
    let status = head.headers.get("grpc-status").cloned().or_else(|| trailers?.get("grpc-status").cloned());
    status.expect("an answer has a status").to_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn p24_any_bytes_as_any_request_are_answered_and_lose_nothing() {
    let admission = common::admission(2);
    let (mut calls, mut well_formed) = (0, 0);
    for seed in tries() {
        let mut random = StdRng::seed_from_u64(seed);
        let granted = common::try_acquire(&admission).await;
        let lease_id = granted.as_ref().map_or("none", |granted| &granted.lease_id);
        for _ in 0..20 {
            let (rpc, mut message) = request(&mut random, lease_id);
            if random.random_bool(0.5) {
                alter(&mut random, &mut message);
            }
            let mut body = vec![0];
            body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            body.extend(message);
            if random.random_bool(0.2) {
                alter(&mut random, &mut body);
            }
            let timeout = ["1S", "20m", "0n", "x", "99999999H"][random.random_range(0..5)];
            let told = format!("seed {seed}: {rpc} {timeout} {body:02x?}");
            let status = tokio::time::timeout(Duration::from_hours(2), call(&admission, rpc, timeout, body)).await;
            let status = status.unwrap_or_else(|_| panic!("never answered: {told}"));
            assert!(status.parse::<u8>().is_ok_and(|code| code <= 16 && code != 2), "{status}: {told}");
            calls += 1;
            well_formed += u32::from(status == "0");
        }
        if let Ok(granted) = granted {
            admission.release(&granted.lease_id);
        }
        for cooldown in admission.cooldowns(None, 100) {
            admission.clear_cooldown(&Change::default(), &cooldown.partition);
        }
        tokio::time::sleep(common::TTL + common::SLACK).await;
    }
    assert!(calls > 100 && well_formed > calls / 20, "tested nothing: {well_formed} of {calls} were answered OK");
    admission.set_limit(&Change::default(), "db", 2, None).unwrap();
    common::drain_and_refill(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn p24_an_altered_lease_id_opens_nothing() {
    let admission = common::admission(1);
    let granted = common::acquire(&admission).await.unwrap();
    let mut genuine = 0;
    for seed in tries() {
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..1_000 {
            let mut bytes = granted.lease_id.clone().into_bytes();
            alter(&mut random, &mut bytes);
            let text = String::from_utf8_lossy(&bytes);
            let answer = admission.renew(&text, None);
            assert_eq!(answer.is_some(), *text == *granted.lease_id, "seed {seed}: {text}");
            genuine += u32::from(answer.is_some());
        }
    }
    assert!(genuine > 10, "tested nothing");
    admission.release(&granted.lease_id);
    common::drain_and_refill(&admission).await;
}

#[test]
fn p24_any_configuration_is_taken_or_refused() {
    let example = include_str!("../../examples/tidegate.toml").replace("# ", "");
    let (mut taken, mut refused) = (0, 0);
    for seed in tries() {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = example.clone().into_bytes();
        alter(&mut random, &mut bytes);
        match Config::parse(&String::from_utf8_lossy(&bytes)) {
            Ok(_) => taken += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty(), "seed {seed}");
                refused += 1;
            }
        }
    }
    assert!(taken + refused > 20 && refused > 0, "tested nothing: {taken} taken, {refused} refused");
}
