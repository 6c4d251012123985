//! Any bytes as the bodies of a few calls, one after the other: each is answered, and in the end nothing is held.
//!
//! An input is a sequence of calls: which rpc, which time-out, the length of the body, the body. Lease ids are sealed with a
//! key that is drawn anew, so a run of the letter L that is as long as one stands for the id of the latest lease.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use tidegate_core::{Acquire, Draft, Release, Settings};
use tidegate_server::{Admission, Ask, Change, ServerSettings, Template, Waits, grpc};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

const RPCS: [&str; 11] = [
    "AdmissionService/Acquire",
    "AdmissionService/Release",
    "AdmissionService/Renew",
    "AdmissionService/RenewLeases",
    "AdmissionService/ReportRetryAfter",
    "AdminService/SetLimit",
    "AdminService/ListBulkheads",
    "AdminService/GetBulkhead",
    "AdminService/ListLeases",
    "AdminService/ListCooldowns",
    "AdminService/ClearCooldown",
];
const TIMEOUTS: [Option<&str>; 6] = [None, Some("1S"), Some("30m"), Some("0n"), Some("x"), Some("99999999H")];
const TTL: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_millis(250);
const MOST_CALLS: usize = 16;

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let admission = admission();
        tokio::select! {
            () = admission.run() => unreachable!("it runs for ever"),
            () = calls(&admission, input) => {}
        }
    });
});

fn admission() -> Arc<Admission> {
    let draft = Draft {
        limit: Some(2),
        ceiling: Some(4),
        max_queued: Some(2),
        max_wait: Some(Duration::from_millis(200)),
        lease_ttl: Some(TTL),
        ..Draft::default()
    };
    let settings = Settings::try_from(draft).unwrap();
    let server = ServerSettings { max_partitions: 2, max_bulkheads: 4, ..ServerSettings::default() };
    let template = Template { pattern: "made/*".into(), settings: settings.clone() };
    let admission = Admission::new(server, vec![template]);
    admission.create(&Change::default(), "db", settings).unwrap();
    Arc::new(admission)
}

async fn calls(admission: &Arc<Admission>, mut input: &[u8]) {
    let mut lease_id = take(admission).await;
    for _ in 0..MOST_CALLS {
        let [rpc, timeout, length, rest @ ..] = input else { break };
        let (body, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        input = rest;
        // The upper half of the numbers: the body brings its own frame.
        let framed = *rpc < 128;
        let rpc = RPCS[usize::from(rpc % 128) % RPCS.len()];
        let timeout = TIMEOUTS[usize::from(*timeout) % TIMEOUTS.len()];
        let body = with_lease_id(body, &lease_id);
        let mut bytes = Vec::new();
        if framed {
            bytes.push(0);
            bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        }
        bytes.extend(body);
        let status = tokio::time::timeout(Duration::from_mins(1), call(admission, rpc, timeout, bytes)).await;
        let status = status.unwrap_or_else(|_| panic!("{rpc} was never answered"));
        assert!(status <= 16 && status != 2, "{rpc}: grpc-status {status}");
        if rpc == "AdmissionService/Release" {
            lease_id = take(admission).await;
        }
    }
    for cooldown in admission.cooldowns(None, 100) {
        admission.clear_cooldown(&Change::default(), &cooldown.partition);
    }
    tokio::time::sleep(TTL + SLACK).await;
    for view in admission.bulkheads(None, 100) {
        assert_eq!((view.status.running, view.status.queued), (0, 0), "{}", view.name);
    }
    let lease_id = take(admission).await;
    assert_eq!(admission.release(&lease_id), Release::Released, "a permit is free");
}

/// A lease of `db` if there is a permit, else nothing that opens anything.
async fn take(admission: &Admission) -> String {
    let acquire = Acquire { max_wait: Some(Duration::ZERO), ..Acquire::default() };
    let ask = Ask { received: admission.clock().now(), bulkhead: "db".into(), request_id: None, waits: Waits::default(), acquire };
    admission.acquire(ask).await.map_or_else(|_| String::new(), |granted| granted.lease_id)
}

fn with_lease_id(body: &[u8], lease_id: &str) -> Vec<u8> {
    let mut body = body.to_vec();
    let places = body.windows(lease_id.len().max(1)).position(|part| part.iter().all(|byte| *byte == b'L'));
    if let (Some(at), false) = (places, lease_id.is_empty()) {
        body[at..at + lease_id.len()].copy_from_slice(lease_id.as_bytes());
    }
    body
}

/// Calls an rpc with that body. Answers its grpc-status.
async fn call(admission: &Arc<Admission>, rpc: &str, timeout: Option<&str>, body: Vec<u8>) -> u8 {
    let mut request = http::Request::builder()
        .method("POST")
        .uri(format!("http://test/tidegate.v1.{rpc}"))
        .header("content-type", "application/grpc");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    let request = request.body(tonic::body::Body::new(Full::new(Bytes::from(body)))).unwrap();
    let response = if rpc.starts_with("Admin") && !rpc.starts_with("Admission") {
        grpc::admin_service(admission.clone(), CancellationToken::new()).oneshot(request).await.unwrap()
    } else {
        grpc::admission_service(admission.clone(), CancellationToken::new()).oneshot(request).await.unwrap()
    };
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned();
    let status = head.headers.get("grpc-status").cloned().or_else(|| trailers?.get("grpc-status").cloned());
    status.expect("an answer has a status").to_str().unwrap().parse().unwrap()
}
