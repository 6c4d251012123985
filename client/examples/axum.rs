//! An HTTP server whose handlers ask before they work: `cargo run -p tidegate-client --example axum`.
//!
//! With `TIDEGATE_ENDPOINT` it asks a Tidegate for the bulkhead `payments-api`, else a local one of two permits. Try it
//! with `for n in 1 2 3 4; do curl -si localhost:8080/charge & done`: two work, the others wait up to a tenth of a
//! second, and are refused with 429 and Retry-After.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate_client::layer::ServerLayer;
use tidegate_client::{Bulkhead, Client, Fallback, LocalBulkhead};

async fn charge() -> &'static str {
    tokio::time::sleep(Duration::from_secs(1)).await;
    "charged\n"
}

/// The bulkhead that the environment says.
fn payments_api() -> Result<Bulkhead, tidegate_client::Error> {
    match std::env::var("TIDEGATE_ENDPOINT") {
        Ok(endpoint) => {
            let client = Client::builder(endpoint).holder("axum-example");
            // Lazily: it also starts while its Tidegate is away.
            let client = client.fallback(Fallback::Local(1), Duration::from_mins(10)).connect_lazy()?;
            Ok(client.bulkhead("payments-api"))
        }
        Err(_) => Ok(LocalBulkhead::new("payments-api", 2)?.into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let payments = payments_api()?.with_max_wait(Duration::from_millis(100));
    let app = Router::new().route("/charge", get(charge)).layer(ServerLayer::new(payments));
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("serving http://{}/charge", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
