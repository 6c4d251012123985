//! The tower layers over HTTP and gRPC bodies, and what they report.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use common::{SECOND, local};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tidegate_client::layer::{ClientLayer, ServerLayer};
use tidegate_client::{LocalBulkhead, refusal};
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceExt, service_fn};

fn http(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

fn grpc() -> Request<Body> {
    let mut request = http("/shop.v1.Shop/Order");
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request
}

async fn serve(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_server_holds_the_permit_until_the_body_has_ended() {
    let api = local(1);
    let app = Router::new().route("/", get(|| async { "hello" })).layer(ServerLayer::new(api.clone()));
    let response = serve(&app, http("/")).await;
    assert_eq!((response.status(), api.status().running), (StatusCode::OK, 1));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(api.status().running, 0);
    drop(serve(&app, http("/")).await);
    assert_eq!(api.status().running, 0, "a dropped body gives it back, too");
}

#[tokio::test(start_paused = true)]
async fn a_server_refuses_with_429_and_retry_after() {
    let api = local(1);
    let layer = ServerLayer::new(api.with_max_wait(Duration::ZERO));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let _permit = api.acquire().await.unwrap();
    let refused = serve(&app, http("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["tidegate-reason"], "CONCURRENCY_CAPACITY_EXHAUSTED");
    let seconds: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1, "rounded up: never too early");
}

#[tokio::test(start_paused = true)]
async fn a_server_refuses_grpc_with_resource_exhausted_and_the_same_details() {
    let api = local(1);
    let layer = ServerLayer::new(api.with_max_wait(Duration::ZERO));
    let app = Router::new().fallback(get(|| async { "hello" })).layer(layer);
    let _permit = api.acquire().await.unwrap();
    let refused = serve(&app, grpc()).await;
    assert_eq!(refused.status(), StatusCode::OK, "as gRPC wants it");
    let status = Status::from_header_map(refused.headers()).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let told = refusal(&status).unwrap();
    assert_eq!((&told.reason[..], told.metadata["limit"].as_str()), ("CONCURRENCY_CAPACITY_EXHAUSTED", "1"));
    assert!(told.hint().is_some() && told.retry_delay == told.hint() && told.retry_after == told.hint());
}

#[tokio::test(start_paused = true)]
async fn each_request_may_ask_differently() {
    let [reads, writes] = [local(1), local(1)];
    let (for_reads, for_writes) = ((*reads).clone(), (*writes).clone());
    let choose = ServerLayer::choose(move |request| {
        let chosen = if request.method == http::Method::GET { &for_reads } else { &for_writes };
        chosen.with_max_wait(Duration::ZERO)
    });
    let app = Router::new().route("/", get(|| async { "r" }).post(|| async { "w" })).layer(choose);
    let _permit = reads.acquire().await.unwrap();
    assert_eq!(serve(&app, http("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let post = Request::post("/").body(Body::empty()).unwrap();
    assert_eq!(serve(&app, post).await.status(), StatusCode::OK);
}

/// A client whose calls are answered with that response.
async fn call(api: &LocalBulkhead, request: Request<Body>, answer: fn() -> Response<Body>) -> Response<()> {
    let inner = service_fn(move |_: Request<Body>| async move { Ok::<_, Infallible>(answer()) });
    let mut guarded = ClientLayer::new(api.clone()).layer(inner);
    let response = guarded.ready().await.unwrap().call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    assert_eq!(api.status().running, 1);
    body.collect().await.unwrap();
    assert_eq!(api.status().running, 0);
    Response::from_parts(parts, ())
}

#[tokio::test(start_paused = true)]
async fn a_client_reports_retry_after_with_the_release() {
    let api = local(4);
    call(&api, http("/"), || Response::new(Body::from("fine"))).await;
    assert_eq!(api.cooldown("db"), None);
    let busy = || Response::builder().status(503).header("retry-after", "30").body(Body::from("busy")).unwrap();
    assert_eq!(call(&api, http("/"), busy).await.status(), 503);
    assert_eq!(api.cooldown("db"), Some(30 * SECOND));
}

/// A call of gRPC's that is told to come back in 7 s, at its end or at once.
fn pushed_back(in_trailers: bool) -> Response<Body> {
    let mut headers = HeaderMap::new();
    let mut status = Status::resource_exhausted("busy");
    status.metadata_mut().insert("grpc-retry-pushback-ms", 7_000.into());
    status.add_header(&mut headers).unwrap();
    if in_trailers {
        let frames = [Ok::<_, Infallible>(Frame::<Bytes>::trailers(headers))];
        return Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))));
    }
    let mut response = Response::new(Body::empty());
    response.headers_mut().extend(headers);
    response
}

#[tokio::test(start_paused = true)]
async fn a_client_reports_what_grpc_trailers_and_headers_say() {
    let api = local(4);
    call(&api, grpc(), || pushed_back(true)).await;
    assert_eq!(api.cooldown("db"), Some(7 * SECOND));
    let api = local(4);
    call(&api, grpc(), || pushed_back(false)).await;
    assert_eq!(api.cooldown("db"), Some(7 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_permit_does_not_call() {
    let api = local(1);
    let _permit = api.acquire().await.unwrap();
    let inner = service_fn(|_: Request<Body>| async {
        unreachable!("there is no permit");
        #[allow(unreachable_code)]
        Ok::<Response<Body>, Infallible>(Response::new(Body::empty()))
    });
    let mut guarded = ClientLayer::new(api.with_max_wait(Duration::ZERO)).layer(inner);
    let error = guarded.ready().await.unwrap().call(http("/")).await.unwrap_err();
    let error = error.downcast_ref::<tidegate_client::Error>().unwrap();
    assert_eq!(error.reason(), "CONCURRENCY_CAPACITY_EXHAUSTED");
    let error = guarded.ready().await.unwrap().call(grpc()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Status>().unwrap().code(), Code::ResourceExhausted);
}
