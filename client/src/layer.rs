//! tower layers: a server that asks before it works, and a client that asks before it calls.
//!
//! Both hold the permit from before the inner service is called until the response's body has ended or is dropped. They
//! understand HTTP and gRPC alike: a request of content type `application/grpc` is refused with a status of gRPC's that
//! carries Tidegate's own details, any other with `429` (or `503`) and `Retry-After`.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceExt};

use crate::bulkhead::Bulkhead;
use crate::classify::{Verdict, grpc_verdict, http_verdict};
use crate::error::Error;
use crate::permit::{Outcome, Permit};
use crate::refusal::Refusal;

mod body;

pub use body::PermitBody;

/// Says why on refusals over HTTP: the reason as on the wire, such as `QUEUE_FULL`.
const REASON: HeaderName = HeaderName::from_static("tidegate-reason");

type Choice = Arc<dyn Fn(&Parts) -> Bulkhead + Send + Sync>;

/// For servers: asks for a permit before a request is handled, and refuses it if there is none.
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_client::{LocalBulkhead, Priority, layer::ServerLayer};
///
/// # fn main() -> Result<(), tidegate_client::Error> {
/// let api = LocalBulkhead::new("api", 4)?;
/// let choose = ServerLayer::choose(move |request| match request.headers.get("x-batch") {
///     Some(_) => api.with_priority(Priority::Sheddable),
///     None => (*api).clone(),
/// });
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(choose);
/// # let _ = app; Ok(()) }
/// ```
#[derive(Clone)]
pub struct ServerLayer(Choice);

/// For clients: asks for a permit before a call is made, and reports what comes back: a `Retry-After`, a pushback or a
/// `RetryInfo` cools the partition down with the Release. Without a permit the call fails with [`Error`], or, if it is
/// one of gRPC's, with the status that says the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::{LocalBulkhead, layer::ClientLayer};
/// use tower::{Layer, Service, ServiceExt, service_fn};
///
/// let api = LocalBulkhead::new("payments-api", 4)?;
/// let bare = service_fn(|_: http::Request<String>| async {
///     let busy = http::Response::builder().status(429).header("retry-after", "30");
///     busy.body(String::new())
/// });
/// let mut guarded = ClientLayer::new(api.clone()).layer(bare);
/// let response = guarded.ready().await.unwrap().call(http::Request::default()).await.unwrap();
/// drop(response); // the permit goes with the body
/// assert!(api.cooldown("payments-api").is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ClientLayer(Choice);

/// What [`ServerLayer`] makes of a service.
#[derive(Clone)]
pub struct ServerGuard<S> {
    inner: S,
    choice: Choice,
}

/// What [`ClientLayer`] makes of a service.
#[derive(Clone)]
pub struct ClientGuard<S> {
    inner: S,
    choice: Choice,
}

impl ServerLayer {
    /// All requests ask this bulkhead.
    pub fn new(bulkhead: impl Into<Bulkhead>) -> Self {
        let bulkhead = bulkhead.into();
        Self::choose(move |_| bulkhead.clone())
    }

    /// Each request asks the bulkhead that `choose` says: by path, by tenant, with a priority or a partition.
    pub fn choose(choose: impl Fn(&Parts) -> Bulkhead + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }
}

impl ClientLayer {
    /// All calls ask this bulkhead.
    pub fn new(bulkhead: impl Into<Bulkhead>) -> Self {
        let bulkhead = bulkhead.into();
        Self::choose(move |_| bulkhead.clone())
    }

    /// Each call asks the bulkhead that `choose` says.
    pub fn choose(choose: impl Fn(&Parts) -> Bulkhead + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }
}

impl<S> Layer<S> for ServerLayer {
    type Service = ServerGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ServerGuard { inner, choice: self.0.clone() }
    }
}

impl<S> Layer<S> for ClientLayer {
    type Service = ClientGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientGuard { inner, choice: self.0.clone() }
    }
}

impl<S, A, B> Service<Request<A>> for ServerGuard<S>
where
    S: Service<Request<A>, Response = Response<B>, Future: Send> + Clone + Send + 'static,
    A: Send + 'static,
{
    type Response = Response<PermitBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The permit comes first; the inner service is made ready under it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (request, is_grpc, bulkhead) = choose(request, &self.choice);
        let inner = self.inner.clone();
        Box::pin(async move {
            let mut permit = match bulkhead.acquire().await {
                Ok(permit) => permit,
                Err(error) => return Ok(refuse(&error, is_grpc)),
            };
            permit.start_latency();
            let response = tokio::select! {
                biased;
                response = inner.oneshot(request) => response?,
                loss = permit.lost() => {
                    let error = Error::Lost { bulkhead: permit.bulkhead().into(), loss };
                    return Ok(refuse(&error, is_grpc));
                }
            };
            permit.set_outcome(match response.status() {
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Outcome::Overloaded,
                status if status.is_server_error() => Outcome::Ignored,
                _ => Outcome::Success,
            });
            Ok(response.map(|body| PermitBody::new(body, permit, false)))
        })
    }
}

impl<S, A, B> Service<Request<A>> for ClientGuard<S>
where
    S: Service<Request<A>, Response = Response<B>, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    A: Send + 'static,
{
    type Response = Response<PermitBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (request, is_grpc, bulkhead) = choose(request, &self.choice);
        let inner = self.inner.clone();
        Box::pin(async move {
            let failed = |error: Error| -> BoxError {
                // tonic's clients take a status out of the error.
                if is_grpc { Box::new(status(&error)) } else { error.into() }
            };
            let mut permit = bulkhead.acquire().await.map_err(failed)?;
            permit.start_latency();
            let response = tokio::select! {
                biased;
                response = inner.oneshot(request) => response.map_err(Into::into)?,
                loss = permit.lost() => {
                    return Err(failed(Error::Lost { bulkhead: permit.bulkhead().into(), loss }));
                }
            };
            if is_grpc {
                report_grpc(&mut permit, response.headers());
            } else {
                let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok());
                report(
                    &mut permit,
                    response.status().is_success(),
                    http_verdict(response.status().as_u16(), after, SystemTime::now()),
                );
            }
            Ok(response.map(|body| PermitBody::new(body, permit, is_grpc)))
        })
    }
}

/// What a status of gRPC's in headers or trailers says about the guarded thing, if there is one.
fn report_grpc(permit: &mut Permit, headers: &HeaderMap) {
    if let Some(status) = tonic::Status::from_header_map(headers) {
        report(permit, status.code() == tonic::Code::Ok, grpc_verdict(&status));
    }
}

fn report(permit: &mut Permit, succeeded: bool, verdict: Verdict) {
    permit.set_outcome(match verdict.report() {
        Some(_) => Outcome::Overloaded,
        None if succeeded => Outcome::Success,
        None => Outcome::Ignored,
    });
    if let Some(wait) = verdict.report() {
        permit.set_retry_after(wait);
    }
}

fn choose<A>(request: Request<A>, choice: &Choice) -> (Request<A>, bool, Bulkhead) {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_grpc = content_type.is_some_and(|text| text.starts_with(b"application/grpc"));
    let bulkhead = choice(&parts);
    (Request::from_parts(parts, body), is_grpc, bulkhead)
}

/// The status that tells an error to callers over gRPC.
fn status(error: &Error) -> tonic::Status {
    match error {
        Error::Refused(refusal) => match refusal.code {
            // Between this service and its Tidegate, and none of the caller's business.
            tonic::Code::Unauthenticated | tonic::Code::PermissionDenied | tonic::Code::NotFound => {
                tonic::Status::internal(refusal.reason.clone())
            }
            _ => Refusal::to_status(refusal),
        },
        Error::Invalid { .. } | Error::LeaseTooShort { .. } => tonic::Status::internal(error.to_string()),
        // Not where the Tidegate is.
        Error::Unreachable { .. } => tonic::Status::unavailable("nobody answers whether this may start now"),
        _ => tonic::Status::unavailable(error.to_string()),
    }
}

fn refuse<B>(error: &Error, is_grpc: bool) -> Response<PermitBody<B>> {
    if is_grpc {
        return status(error).into_http();
    }
    let mut response = Response::new(PermitBody::default());
    *response.status_mut() = match error {
        Error::Refused(refusal) if refusal.code == tonic::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Error::Invalid { .. } | Error::LeaseTooShort { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    if let Ok(reason) = error.reason().parse() {
        response.headers_mut().insert(REASON, reason);
    }
    if let Some(hint) = error.hint() {
        // Whole seconds, and never too early.
        let seconds = hint.as_secs() + u64::from(hint.subsec_nanos() > 0);
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

impl fmt::Debug for ServerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerLayer")
    }
}

impl fmt::Debug for ClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientLayer")
    }
}

impl<S: fmt::Debug> fmt::Debug for ServerGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerGuard").field(&self.inner).finish()
    }
}

impl<S: fmt::Debug> fmt::Debug for ClientGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientGuard").field(&self.inner).finish()
    }
}
