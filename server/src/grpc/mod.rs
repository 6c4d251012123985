//! The services on the wire. The only module that sees both protobuf and core.

mod admin;
mod bulkhead;
mod convert;
mod held;
mod status;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Incoming;
use tidegate_proto::v1::admin_service_server::AdminServiceServer;
use tidegate_proto::v1::admission_service_server::AdmissionServiceServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;
use tower::Service;

pub use admin::AdminApi;
pub use bulkhead::AdmissionApi;
use held::{Answering, Asked, Kind, Room};

use crate::Life;
use crate::admission::Admission;
use crate::config::ServerConfig;
use crate::pressure::{Pressure, Rung};
use crate::transport::{self, Connection, For};

/// 1,000 lease ids fit; nobody has more to say.
const LARGEST_REQUEST: usize = 256 << 10;
const LARGEST_ADMIN_REQUEST: usize = 1 << 20;
const LARGEST_RESPONSE: usize = 1 << 20;
/// A page of 1,000 bulkheads with the longest texts; what stock clients accept.
const LARGEST_ADMIN_RESPONSE: usize = 4 << 20;
/// How many calls an operator's connection may have at once: each may look at whatever there is.
const ADMIN_STREAMS: u32 = 32;
/// What the messages under way may hold, on each connection for itself: the largest one, and an Acquire on every stream.
const HELD: usize = LARGEST_REQUEST + (128 << 10);
const ADMIN_HELD: usize = 2 * LARGEST_ADMIN_REQUEST;
/// The same for all connections beyond that: some 80 renewals of 1,000 leases each, with their answers.
const HELD_TOGETHER: usize = 16 << 20;
/// Reflection, and what an answer of its that nobody takes holds: whole descriptors, behind a channel of its own.
const REFLECTION: &str = "/grpc.reflection.";
const DESCRIPTORS: usize = 128 << 10;
const OURS: &str = "/tidegate.v1.";
const RENEWAL_STREAM: &str = "/tidegate.v1.AdmissionService/RenewLeases";
/// How the paths begin that are answered however short memory is: they free some, keep what was granted (both forms of
/// Renew), or tell that we live.
const SPARED: [&str; 3] =
    ["/tidegate.v1.AdmissionService/Release", "/tidegate.v1.AdmissionService/Renew", "/grpc.health.v1.Health/"];

/// `AdmissionService` as a tower service.
pub fn admission_service(
    admission: Arc<Admission>,
    stopping: CancellationToken,
) -> AdmissionServiceServer<AdmissionApi> {
    AdmissionServiceServer::new(AdmissionApi::new(admission, stopping))
        .max_decoding_message_size(LARGEST_REQUEST)
        .max_encoding_message_size(LARGEST_RESPONSE)
}

/// `AdminService` as a tower service.
pub fn admin_service(admission: Arc<Admission>, stopping: CancellationToken) -> AdminServiceServer<AdminApi> {
    AdminServiceServer::new(AdminApi::new(admission, stopping))
        .max_decoding_message_size(LARGEST_ADMIN_REQUEST)
        .max_encoding_message_size(LARGEST_ADMIN_RESPONSE)
}

/// Serves applications until it shall stop, then until the last stream has ended.
pub(crate) async fn serve_admission(
    config: &ServerConfig,
    listener: TcpListener,
    admission: Arc<Admission>,
    life: Life,
) {
    let service = admission_service(admission, life.stopping.clone());
    let (reporter, others) = others(&service).await;
    let pressure = Pressure::default();
    let answer = answer(service.clone(), others, pressure.clone(), Room::new(HELD, HELD_TOGETHER));
    let settings = config.transport.clone();
    let most = settings.max_memory;
    let serving =
        transport::serve(listener, For::Applications, settings, pressure.clone(), answer, life.stopping.clone());
    tokio::select! {
        ((), ()) = async { tokio::join!(serving, sign_off(reporter, &service, life)) } => {}
        () = pressure.watch(most) => {}
    }
}

/// Serves operators until it shall stop, then until the last stream has ended. They are never refused for want of memory.
pub(crate) async fn serve_admin(config: &ServerConfig, listener: TcpListener, admission: Arc<Admission>, life: Life) {
    let service = admin_service(admission, life.stopping.clone());
    let (reporter, others) = others(&service).await;
    let pressure = Pressure::default();
    let answer = answer(service.clone(), others, pressure.clone(), Room::new(ADMIN_HELD, HELD_TOGETHER));
    let mut settings = config.transport.clone();
    settings.max_streams_per_connection = settings.max_streams_per_connection.min(ADMIN_STREAMS);
    let serving = transport::serve(listener, For::Operators, settings, pressure, answer, life.stopping.clone());
    tokio::join!(serving, sign_off(reporter, &service, life));
}

/// Health and reflection, for that service.
async fn others<S: NamedService>(_: &S) -> (HealthReporter, Routes) {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<Named<S>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tidegate_proto::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(S::NAME)
            .with_service_name("grpc.health.v1.Health")
    };
    #[allow(clippy::expect_used)]
    let (v1, v1alpha) = (
        reflection().build_v1().expect("the descriptors are compiled in"),
        reflection().build_v1alpha().expect("the descriptors are compiled in"),
    );
    (reporter, Routes::new(health).add_service(v1).add_service(v1alpha))
}

/// How calls are answered on a connection: by our service, which finds the [`Connection`] among the extensions, or by the
/// others. When memory is short, only by what helps.
fn answer<S>(
    service: S,
    others: Routes,
    pressure: Pressure,
    room: Room,
) -> impl Fn(&Arc<Connection>, http::Request<Incoming>) -> Answering<Answer> + Clone + Send + Sync + 'static
where
    S: Service<http::Request<Asked<Incoming>>, Response = http::Response<Body>, Error = Infallible, Future = Answer>,
    S: NamedService + Clone + Send + Sync + 'static,
{
    let others = others.prepare();
    move |connection, mut request| {
        request.extensions_mut().insert(connection.clone());
        let path = request.uri().path();
        let is_spared = || SPARED.iter().any(|spared| path.starts_with(spared));
        let is_refused = pressure.refuses(Rung::Calls) && !is_spared();
        let is_ours = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(S::NAME))
            .is_some_and(|rest| rest.starts_with('/'));
        let is_elsewhere = !is_ours && path.starts_with(OURS);
        let is_reflection = path.starts_with(REFLECTION);
        let kind = Kind {
            beside: if is_reflection { DESCRIPTORS } else { 0 },
            streams: is_reflection || path == RENEWAL_STREAM,
        };
        let (head, asked) = request.into_parts();
        room.call(connection, kind, asked, |asked, is_full| {
            let request = http::Request::from_parts(head, asked);
            if is_refused || is_full {
                Box::pin(std::future::ready(Ok(status::too_much_under_way().into_http())))
            } else if is_ours {
                // Not by way of the routes, which box each call and its bodies once more.
                service.clone().call(request)
            } else if is_elsewhere {
                Box::pin(std::future::ready(Ok(status::elsewhere().into_http()))) as Answer
            } else {
                Box::pin(others.clone().call(request))
            }
        })
    }
}

type Answer = tonic::codegen::BoxFuture<http::Response<Body>, Infallible>;

/// When a stream of ours has to end: with the server, or with its connection. The caller opens another one.
fn end_of_streams<T>(
    request: &tonic::Request<T>,
    stopping: CancellationToken,
) -> impl Future<Output = ()> + Send + use<T> {
    let closing = request.extensions().get::<Arc<Connection>>().map(|on| on.closing.clone()).unwrap_or_default();
    async move {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = closing.cancelled() => {}
        }
    }
}

/// Waits for the stop; says that it comes to those who ask for our health.
fn sign_off<S: NamedService>(reporter: HealthReporter, _: &S, life: Life) -> impl Future<Output = ()> + use<S> {
    async move {
        life.draining.cancelled().await;
        reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        reporter.set_not_serving::<Named<S>>().await;
        life.stopping.cancelled().await;
    }
}

/// Lets a service's name be given without its type.
struct Named<S>(std::marker::PhantomData<S>);

impl<S: NamedService> NamedService for Named<S> {
    const NAME: &'static str = S::NAME;
}

#[cfg(test)]
mod tests {
    use tidegate_proto::v1;
    use tidegate_proto::v1::admission_service_client::AdmissionServiceClient;
    use tidegate_proto::v1::admission_service_server::AdmissionService;
    use tonic::Code;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::settings::TransportSettings;

    /// 10,000 calls may wait: what stays of each is looked after. The request goes before the wait.
    #[test]
    fn p21_a_call_that_waits_is_small() {
        let api = AdmissionApi::new(Arc::new(Admission::default()), CancellationToken::new());
        let call = api.acquire(tonic::Request::new(v1::AcquireRequest::default()));
        assert!(size_of_val(&*call) <= 900, "{} bytes", size_of_val(&*call));
    }

    #[tokio::test]
    async fn p21_short_of_memory_only_what_helps_is_answered() {
        let (pressure, stopping) = (Pressure::default(), CancellationToken::new());
        let service = admission_service(Arc::new(Admission::default()), stopping.clone());
        let (_reporter, others) = others(&service).await;
        let answer = answer(service, others, pressure.clone(), Room::new(HELD, HELD_TOGETHER));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let settings = TransportSettings::default();
        tokio::spawn(transport::serve(listener, For::Applications, settings, pressure.clone(), answer, stopping));

        let channel = tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let (mut client, mut health) = (AdmissionServiceClient::new(channel.clone()), HealthClient::new(channel));
        for (rung, refused) in [(Rung::Waiters, false), (Rung::Calls, true), (Rung::Calm, false)] {
            pressure.set(rung);
            let code = client.acquire(v1::AcquireRequest::default()).await.unwrap_err().code();
            // There is no bulkhead here: who asks it is told so.
            assert_eq!(code, if refused { Code::ResourceExhausted } else { Code::InvalidArgument }, "{rung:?}");
            let lease_id = String::from("x");
            let released =
                client.release(v1::ReleaseRequest { lease_id: lease_id.clone(), ..Default::default() }).await;
            assert_eq!(released.unwrap().into_inner().state(), v1::ReleaseState::Unknown);
            let renew = v1::RenewRequest { seq: 1, lease_ids: vec![lease_id.clone()] };
            assert_eq!(client.renew(renew).await.unwrap().into_inner().renewals.len(), 1);
            let renew = v1::RenewLeasesRequest { seq: 2, lease_ids: vec![lease_id] };
            let mut answers = client.renew_leases(tokio_stream::iter([renew])).await.unwrap().into_inner();
            assert_eq!(answers.message().await.unwrap().unwrap().seq, 2);
            health.check(HealthCheckRequest::default()).await.unwrap();
        }
    }
}
