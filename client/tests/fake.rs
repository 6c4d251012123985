//! The client against the fake server: what crosses the wire besides permits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use bytes::Bytes;
use common::SECOND;
use futures_util::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tidegate_client::layer::{ClientLayer, ServerLayer};
use tidegate_client::testing::FakeServer;
use tidegate_client::{Client, Draft, Error, Fallback, LeaseState, Loss, Scope};
use tokio::sync::oneshot;
use tower::{Layer, ServiceExt};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

async fn fake(limit: u32) -> FakeServer {
    let draft = Draft { limit: Some(limit), lease_ttl: Some(6 * SECOND), ..Draft::default() };
    FakeServer::start([("db", draft)]).await.unwrap()
}

/// Waits for what must come soon.
async fn until(mut holds: impl FnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < 20 * SECOND, "it never came");
        tokio::time::sleep(SECOND / 500).await;
    }
}

/// The error that ends what never waits by itself. So the thread that hears of the loss is waited for here.
async fn first_error<T, E>(mut next: impl AsyncFnMut() -> Option<Result<T, E>>) -> E {
    let start = tokio::time::Instant::now();
    loop {
        match next().await.expect("it is endless") {
            Ok(_) => assert!(start.elapsed() < 20 * SECOND, "it goes on"),
            Err(error) => return error,
        }
        tokio::time::sleep(SECOND / 500).await;
    }
}

#[tokio::test]
async fn it_grants_renews_refuses_and_takes_back() {
    let fake = fake(1).await;
    let db = fake.client().await.unwrap().bulkhead("db");
    let permit = db.acquire().await.unwrap();
    let deadline = permit.deadline().unwrap();
    until(|| permit.deadline().unwrap() > deadline).await;
    assert_ne!(permit.state(), LeaseState::Lost);
    assert_eq!(fake.bulkhead("db").status().running, 1);
    let Err(Error::Refused(refusal)) = db.with_max_wait(SECOND / 100).acquire().await else { panic!("it is full") };
    assert_eq!((&refusal.reason[..], &refusal.metadata["running"][..]), ("WAIT_TIMEOUT", "1"));
    let shown = format!("{permit:?} {db:?}");
    assert!(shown.contains("fencing_token") && !shown.contains("fake-0-"), "the id is a secret: {shown}");
    fake.revoke("db");
    assert_eq!(permit.lost().await, Loss::Revoked);
    assert_eq!(permit.release().await.unwrap_err().reason(), "LEASE_LOST");
    until(|| fake.bulkhead("db").status().running == 0).await;
}

#[tokio::test]
async fn work_is_stopped_when_its_lease_is_lost() {
    let fake = fake(1).await;
    let client = fake.client().await.unwrap();
    let db = client.bulkhead("db");
    let running = tokio::spawn(async move { db.run(std::future::pending::<()>()).await });
    until(|| fake.bulkhead("db").status().running == 1).await;
    fake.revoke("db");
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error, Error::Lost { bulkhead: "db".into(), loss: Loss::Revoked });
    assert!(error.to_string().contains("an operator revoked it; the work was stopped"), "{error}");
}

#[tokio::test]
async fn w08_a_stream_whose_items_are_always_ready_ends_when_its_lease_is_lost() {
    let fake = fake(1).await;
    let db = fake.client().await.unwrap().bulkhead("db");
    let endless = stream::iter(0..).map(Ok::<u64, Error>);
    let mut rows = std::pin::pin!(db.run_stream(endless));
    assert_eq!(rows.next().await, Some(Ok(0)));
    fake.revoke("db");
    let error = first_error(async || rows.next().await).await;
    assert_eq!(error, Error::Lost { bulkhead: "db".into(), loss: Loss::Revoked });
    assert_eq!(rows.next().await, None);
}

#[tokio::test]
async fn a_scoped_job_is_told_that_its_lease_is_lost_and_so_is_who_asked() {
    let fake = fake(1).await;
    let db = fake.client().await.unwrap().bulkhead("db");
    let scope = Scope::new();
    // It takes time to end, and whoever asked waits for that.
    let (tell, told) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let job = scope.spawn(&db, async move |token| {
        token.cancelled().await;
        tell.send(()).unwrap();
        ended.await.unwrap();
    });
    let asked = tokio::spawn(job.outcome());
    until(|| fake.bulkhead("db").status().running == 1).await;
    fake.revoke("db");
    told.await.unwrap();
    assert!(!asked.is_finished());
    end.send(()).unwrap();
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error, Error::Lost { bulkhead: "db".into(), loss: Loss::Revoked });
    until(|| fake.bulkhead("db").status().running == 0).await;
}

/// A response that never ends.
fn endless() -> http::Response<StreamBody<impl Stream<Item = Result<Frame<Bytes>, std::io::Error>>>> {
    let frame = || Ok(Frame::data(Bytes::from_static(b"x")));
    http::Response::new(StreamBody::new(stream::repeat_with(frame)))
}

#[tokio::test]
async fn a_response_under_a_layer_ends_when_its_lease_is_lost() {
    let fake = fake(2).await;
    let db = fake.client().await.unwrap().bulkhead("db");
    let inner = || tower::service_fn(async |_: http::Request<()>| Ok::<_, std::io::Error>(endless()));
    let request = || http::Request::new(());
    let mut bodies = [
        ServerLayer::new(db.clone()).layer(inner()).oneshot(request()).await.unwrap().into_body(),
        ClientLayer::new(db.clone()).layer(inner()).oneshot(request()).await.unwrap().into_body(),
    ];
    for body in &mut bodies {
        assert!(body.frame().await.unwrap().is_ok());
    }
    fake.revoke("db");
    for body in &mut bodies {
        let error = first_error(async || body.frame().await).await;
        assert!(error.to_string().contains("an operator revoked it"), "{error}");
        assert!(body.frame().await.is_none());
    }
    until(|| fake.bulkhead("db").status().running == 0).await;
}

#[tokio::test]
async fn a_hook_that_panics_stops_neither_renewals_nor_releases() {
    let fake = fake(1).await;
    let client = Client::builder(fake.endpoint()).metadata(|_| panic!("on purpose")).connect().await.unwrap();
    let permit = client.bulkhead("db").acquire().await.unwrap();
    let deadline = permit.deadline().unwrap();
    until(|| permit.deadline().unwrap() > deadline).await;
    permit.release().await.unwrap();
}

#[tokio::test]
async fn no_time_is_too_long() {
    let fake = fake(1).await;
    let db = fake.client().await.unwrap().bulkhead("db");
    let most = std::time::Duration::MAX;
    for patient in [db.with_max_wait(most), db.with_timeout(most), db.with_timeout(most).with_max_wait(most)] {
        drop(patient.acquire().await.unwrap());
    }
    let error = db.with_lease_ttl(2 * SECOND).without_renewal(most).acquire().await.unwrap_err();
    assert_eq!(error.reason(), "LEASE_TOO_SHORT");
}

#[tokio::test]
async fn credentials_and_the_trace_context_are_sent_along() {
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    let subscriber = tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer));
    let _default = tracing::subscriber::set_default(subscriber);

    let fake = fake(1).await;
    let hook = |metadata: &mut tonic::metadata::MetadataMap| {
        metadata.insert("authorization", "Bearer xyz".parse().unwrap());
    };
    let client = Client::builder(fake.endpoint()).metadata(hook).connect().await.unwrap();
    let work = async { client.bulkhead("db").acquire().await.unwrap() };
    drop(work.instrument(tracing::info_span!("a request of the application's")).await);
    let metadata = fake.last_metadata();
    assert_eq!(metadata.get("authorization").unwrap(), "Bearer xyz");
    let parent = metadata.get("traceparent").expect("W3C's header").to_str().unwrap();
    let parts: Vec<_> = parent.split('-').collect();
    assert!(parts.len() == 4 && parts[0] == "00" && parts[1].len() == 32 && parts[1].bytes().any(|byte| byte != b'0'));
}

#[test]
fn a_fallback_that_no_bulkhead_can_be_fails_at_once() {
    for limit in [0, 1_000_000_001] {
        let builder = Client::builder("http://127.0.0.1:1").fallback(Fallback::Local(limit), 60 * SECOND);
        let Err(Error::Invalid { field, allowed }) = builder.connect_lazy() else { panic!("{limit} is out of range") };
        assert_eq!((field, allowed), ("fallback", format!("a limit of 1 to 1000000000, or Closed, not {limit}")));
    }
}
