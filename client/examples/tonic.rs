//! A gRPC service and a client of it, both behind bulkheads: `cargo run -p tidegate-client --example tonic`.
//!
//! The service here is gRPC's health check, so that nothing needs to be generated. The server may handle one call at a
//! time and refuses the rest; the client keeps its own calls at three, and each refusal comes to it as `RESOURCE_EXHAUSTED`
//! with the same details that a Tidegate sends.

use std::time::Duration;

use tidegate_client::layer::{ClientLayer, ServerLayer};
use tidegate_client::{LocalBulkhead, refusal};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ours = LocalBulkhead::new("our-service", 1)?; // or client.bulkhead("our-service")
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    let layer = ServerLayer::new(ours.with_max_wait(Duration::ZERO));
    let serving = Server::builder().layer(layer).add_service(health);
    tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));

    let theirs = LocalBulkhead::new("their-service", 3)?;
    let channel = Endpoint::from_shared(endpoint)?.connect().await?;
    let mut client = HealthClient::new(ClientLayer::new(theirs).layer(channel));
    let answer = client.check(HealthCheckRequest::default()).await?;
    println!("answered: {:?}", answer.into_inner().status());

    let busy = ours.acquire().await?;
    let Err(refused) = client.check(HealthCheckRequest::default()).await else {
        return Err("no permit was free".into());
    };
    let told = refusal(&refused).ok_or("a refusal carries its details")?;
    println!("refused: {:?} {}, come back in {:?}", refused.code(), told.reason, told.hint());
    drop(busy);
    Ok(())
}
