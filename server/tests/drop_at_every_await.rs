//! Every rpc, through the whole tonic service, polled k times and then dropped: for every k it was either without effect
//! or left something that the server knows of, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use common::{TTL, acquire, admission, drain_and_refill};
use futures_util::{FutureExt, poll};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use prost::Message;
use tidegate_proto::v1;
use tidegate_server::{Admission, grpc};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// A request body that makes the server wait before each message and before the end.
struct Reluctant {
    messages: Vec<Bytes>,
    waited: bool,
}

impl Body for Reluctant {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.waited = !self.waited;
        if self.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.messages.pop().map(|message| Ok(Frame::data(message))))
    }
}

fn frame(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

/// Calls an rpc and reads its whole answer.
async fn call(admission: Arc<Admission>, path: String, messages: Vec<Bytes>) -> Bytes {
    let body = tonic::body::Body::new(Reluctant { messages, waited: false });
    let request = http::Request::builder()
        .method("POST")
        .uri(format!("http://test/tidegate.v1.{path}"))
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap();
    let response = if path.starts_with("Admin") {
        grpc::admin_service(admission, CancellationToken::new()).call(request).await.unwrap()
    } else {
        grpc::admission_service(admission, CancellationToken::new()).call(request).await.unwrap()
    };
    let collected = response.into_body().collect().await.unwrap();
    let status = collected.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
    assert_eq!(status.unwrap(), "0");
    collected.to_bytes()
}

/// A lease is held, and the rpc is polled k times. If it came to wait in the queue, somebody else queues behind it, and
/// the permit is freed for it with that many polls left: with none left it was granted and never hears of it. Answers
/// whether the rpc was over before k polls were.
async fn dropped_after(k: usize, polls_left: usize, path: &str, request: &impl Fn(&str) -> Vec<Bytes>) -> bool {
    let admission = admission(1);
    let held = acquire(&admission).await.unwrap();
    let mut behind = None;
    let mut over = false;
    {
        let call = call(admission.clone(), path.into(), request(&held.lease_id));
        tokio::pin!(call);
        for at in 0..k {
            if let Poll::Ready(answer) = poll!(&mut call) {
                assert!(!answer.is_empty());
                over = true;
                break;
            }
            let queued = admission.bulkhead("db").unwrap().status.queued;
            if queued == 1 && behind.is_none() {
                let mut waiting = Box::pin(acquire(&admission));
                assert!(poll!(&mut waiting).is_pending());
                behind = Some(waiting);
            }
            if queued > 0 && at + 1 + polls_left == k {
                admission.release(&held.lease_id);
            }
        }
    }
    if let (Some(behind), false) = (&mut behind, over) {
        // Dropped without an answer, it holds up nobody: once the holder is done the next one runs.
        admission.release(&held.lease_id);
        let granted = behind.now_or_never().expect("granted at once").unwrap();
        admission.release(&granted.lease_id);
    }
    drop(behind);
    admission.release(&held.lease_id);
    tokio::time::sleep(TTL + Duration::from_millis(250)).await;
    drain_and_refill(&admission).await;
    over
}

async fn check(path: &str, request: impl Fn(&str) -> Vec<Bytes>) {
    let mut k = 0;
    while !dropped_after(k, 1, path, &request).await {
        dropped_after(k, 0, path, &request).await;
        k += 1;
        assert!(k < 100, "{path} never ends");
    }
    assert!(k > 1, "{path} was over after {k} polls: the body did not make it wait");
}

#[tokio::test(start_paused = true)]
async fn acquire_is_without_effect_or_known() {
    check("AdmissionService/Acquire", |_| {
        vec![frame(&v1::AcquireRequest { bulkhead: "db".into(), request_id: "r".into(), ..Default::default() })]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn release_is_without_effect_or_known() {
    check("AdmissionService/Release", |lease_id| {
        vec![frame(&v1::ReleaseRequest { lease_id: lease_id.into(), ..Default::default() })]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renewals_are_without_effect_or_known() {
    check("AdmissionService/Renew", |lease_id| {
        vec![frame(&v1::RenewRequest { seq: 1, lease_ids: vec![lease_id.into()] })]
    })
    .await;
    check("AdmissionService/RenewLeases", |lease_id| {
        let message = |seq| frame(&v1::RenewLeasesRequest { seq, lease_ids: vec![lease_id.into()] });
        vec![message(2), message(1)]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reports_are_without_effect_or_known() {
    // Of a partition that nobody here waits for: what it does to waiters is told elsewhere.
    let retry_after = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    check("AdmissionService/ReportRetryAfter", |_| {
        vec![frame(&v1::ReportRetryAfterRequest { partition: "p".into(), retry_after, detail: String::new() })]
    })
    .await;
    check("AdminService/ListCooldowns", |_| vec![frame(&v1::ListCooldownsRequest::default())]).await;
    check("AdminService/ClearCooldown", |_| {
        vec![frame(&v1::ClearCooldownRequest { partition: "p".into(), detail: String::new() })]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn admin_calls_are_without_effect_or_known() {
    check("AdminService/GetBulkhead", |_| vec![frame(&v1::GetBulkheadRequest { name: "db".into() })]).await;
    check("AdminService/ListBulkheads", |_| vec![frame(&v1::ListBulkheadsRequest::default())]).await;
    check("AdminService/ListLeases", |_| vec![frame(&v1::ListLeasesRequest::default())]).await;
    check("AdminService/SetLimit", |_| {
        vec![frame(&v1::SetLimitRequest { name: "db".into(), limit: 1, ..Default::default() })]
    })
    .await;
    check("AdminService/SetMode", |_| {
        let mode = v1::Mode::Enforcing.into();
        vec![frame(&v1::SetModeRequest { name: "db".into(), mode, ..Default::default() })]
    })
    .await;
    check("AdminService/UpdateBulkhead", |_| {
        let settings = v1::BulkheadSettings { max_queued: Some(3), ..Default::default() };
        let bulkhead = v1::Bulkhead { name: "db".into(), settings: Some(settings), ..Default::default() };
        vec![frame(&v1::UpdateBulkheadRequest { bulkhead: Some(bulkhead), ..Default::default() })]
    })
    .await;
    check("AdminService/CreateBulkhead", |_| {
        let settings = Some(v1::BulkheadSettings { limit: Some(1), ..Default::default() });
        vec![frame(&v1::CreateBulkheadRequest { name: "new".into(), settings, ..Default::default() })]
    })
    .await;
    check("AdminService/ListWaiters", |_| vec![frame(&v1::ListWaitersRequest::default())]).await;
    check("AdminService/ListAuditEvents", |_| vec![frame(&v1::ListAuditEventsRequest::default())]).await;
    check("AdminService/EndRecovery", |_| {
        vec![frame(&v1::EndRecoveryRequest { name: "db".into(), ..Default::default() })]
    })
    .await;
    check("AdminService/GetServerInfo", |_| vec![frame(&v1::GetServerInfoRequest {})]).await;
}
