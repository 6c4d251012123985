//! The least that a tonic server can do for an Acquire: decode it, answer a lease of the usual size. What the server
//! itself costs is told against this (`make figures`).
#![allow(clippy::unwrap_used, missing_docs)]

use std::pin::Pin;

use futures_util::Stream;
use tidegate_proto::v1;
use tidegate_proto::v1::admission_service_server::{AdmissionService, AdmissionServiceServer};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// The server's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Echo;

#[tonic::async_trait]
impl AdmissionService for Echo {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let v1::AcquireRequest { bulkhead, .. } = request.into_inner();
        let span = |nanos| Some(prost_types::Duration { seconds: 2, nanos });
        let lease = v1::Lease {
            lease_id: "x".repeat(71),
            bulkhead,
            permits: 1,
            fencing_token: 123_665_693_433_397_249,
            fencing_floor: 123_665_693_433_397_249,
            ttl: span(0),
            renew_interval: span(666_666_666),
        };
        let waited = Some(prost_types::Duration { seconds: 0, nanos: 9_000 });
        Ok(Response::new(v1::AcquireResponse { lease: Some(lease), waited, replayed: false }))
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        Err(Status::unimplemented("only Acquire"))
    }

    async fn renew(&self, _: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        Err(Status::unimplemented("only Acquire"))
    }

    type RenewLeasesStream = Pin<Box<dyn Stream<Item = Result<v1::RenewLeasesResponse, Status>> + Send>>;

    async fn renew_leases(
        &self,
        _: Request<Streaming<v1::RenewLeasesRequest>>,
    ) -> Result<Response<Self::RenewLeasesStream>, Status> {
        Err(Status::unimplemented("only Acquire"))
    }

    async fn report_retry_after(
        &self,
        _: Request<v1::ReportRetryAfterRequest>,
    ) -> Result<Response<v1::ReportRetryAfterResponse>, Status> {
        Err(Status::unimplemented("only Acquire"))
    }
}

#[tokio::main]
async fn main() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // As the server says it, so that one script finds both.
    eprintln!("serving admission={}", listener.local_addr().unwrap());
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = AdmissionServiceServer::new(Echo);
    tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
}
