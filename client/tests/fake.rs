//! The client against the fake server: what crosses the wire besides permits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::SECOND;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tidegate_client::testing::FakeServer;
use tidegate_client::{Client, Draft, Error, LeaseState, Loss};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

async fn fake(limit: u32) -> FakeServer {
    let draft = Draft { limit: Some(limit), lease_ttl: Some(2 * SECOND), ..Draft::default() };
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
