//! The services on the wire, and the transport they are served on. The only module that sees both protobuf and core.

mod admin;
mod bulkhead;
mod convert;
mod status;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_proto::v1::admin_service_server::AdminServiceServer;
use tidegate_proto::v1::admission_service_server::AdmissionServiceServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};
use tonic_health::server::HealthReporter;

pub use admin::AdminApi;
pub use bulkhead::AdmissionApi;

use crate::Life;
use crate::admission::Admission;
use crate::config::ServerConfig;

/// 1,000 lease ids fit; nobody has more to say.
const LARGEST_REQUEST: usize = 256 << 10;
const LARGEST_ADMIN_REQUEST: usize = 1 << 20;
const LARGEST_RESPONSE: usize = 1 << 20;
/// A page of 1,000 bulkheads with the longest texts; what stock clients accept.
const LARGEST_ADMIN_RESPONSE: usize = 4 << 20;

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
) -> Result<(), tonic::transport::Error> {
    let service = admission_service(admission, life.stopping.clone());
    let (reporter, router) = router(config, &service).await;
    let stop = sign_off(reporter, &service, life);
    router.add_service(service).serve_with_incoming_shutdown(incoming(listener), stop).await
}

/// Serves operators until it shall stop, then until the last stream has ended.
pub(crate) async fn serve_admin(
    config: &ServerConfig,
    listener: TcpListener,
    admission: Arc<Admission>,
    life: Life,
) -> Result<(), tonic::transport::Error> {
    let service = admin_service(admission, life.stopping.clone());
    let (reporter, router) = router(config, &service).await;
    let stop = sign_off(reporter, &service, life);
    router.add_service(service).serve_with_incoming_shutdown(incoming(listener), stop).await
}

/// The transport with health and reflection on it.
async fn router<S: NamedService>(config: &ServerConfig, _: &S) -> (HealthReporter, Router) {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<Named<S>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tidegate_proto::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    #[allow(clippy::expect_used)]
    let (v1, v1alpha) = (
        reflection().build_v1().expect("the descriptors are compiled in"),
        reflection().build_v1alpha().expect("the descriptors are compiled in"),
    );
    let router = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive_interval))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
        .max_concurrent_streams(256)
        .http2_max_header_list_size(8 << 10)
        .max_frame_size(16 << 10)
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(256 << 10)
        .http2_max_local_error_reset_streams(Some(128))
        .add_service(health)
        .add_service(v1)
        .add_service(v1alpha);
    (reporter, router)
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

fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(Duration::from_secs(30)))
}

/// Lets a service's name be given without its type.
struct Named<S>(std::marker::PhantomData<S>);

impl<S: NamedService> NamedService for Named<S> {
    const NAME: &'static str = S::NAME;
}
