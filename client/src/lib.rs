//! The Rust client of Tidegate: guard a dependency in three lines, and never leak a permit.
//!
//! ```no_run
//! # async fn write_order() {}
//! # #[tokio::main] async fn main() -> Result<(), tidegate_client::Error> {
//! let client = tidegate_client::Client::connect("http://127.0.0.1:7600").await?;
//! let db = client.bulkhead("orders-db");
//! db.run(write_order()).await?;
//! # Ok(()) }
//! ```
//!
//! A [`Bulkhead`] is asked for a [`Permit`], or runs a block ([`Bulkhead::run`]) or a stream ([`Bulkhead::run_stream`])
//! under one. A permit is a guard: dropped, it is given back, also by a cancelled task, a panic, or a runtime that stops;
//! while it lives, its lease is renewed, off the application's own threads. [`LocalBulkhead`] is the same without a server.
//!
//! Beyond that: [`Retry`] with a budget, [`Groups`] of work, the same work once ([`SingleFlight`]), work that ends with what
//! it belongs to ([`Scope`]), [tower layers](layer), and a [fake server](testing). The [guide] tells how to choose the
//! numbers and what to do when a lease is lost.
//!
//! # Time and randomness
//!
//! What the application waits for is on tokio's clock, so that with paused time a [`LocalBulkhead`], a retry or a group
//! is tested without waiting. Leases of a server's end by the machine's monotonic clock, and are renewed on a thread with
//! a runtime of its own: tests against a server, or a fake one, run in real time.

mod backoff;
mod bulkhead;
mod classify;
mod client;
mod counters;
mod deadline;
mod engine;
mod error;
mod fallback;
mod flight;
mod groups;
mod keeper;
pub mod layer;
mod lease;
mod line;
mod local;
mod permit;
mod refusal;
mod releases;
mod remote;
mod renewals;
mod retry;
mod scope;
pub mod testing;

#[doc = include_str!("guide.md")]
pub mod guide {}

use tidegate_proto::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::v1::admission_service_client::AdmissionServiceClient;
use tonic::transport::{Channel, Endpoint};

pub use backoff::{Backoff, Jitter};
pub use bulkhead::Bulkhead;
pub use classify::{Verdict, grpc_verdict, http_verdict, retry_after};
pub use client::{Client, ClientBuilder};
pub use counters::Counts;
pub use error::Error;
pub use fallback::Fallback;
pub use flight::SingleFlight;
pub use groups::{Group, GroupStatus, Groups, GroupsBuilder};
pub use lease::{LeaseState, Loss};
pub use local::{LocalBulkhead, LocalStatus};
pub use permit::{Outcome, Permit};
pub use refusal::{Pushback, Refusal, Violation, refusal};
pub use retry::{Retry, RetryError};
pub use scope::{Job, Scope};
pub use tidegate_core::{Draft, Mode, OnCooldown, Priority};

/// The generated stub of the side of applications, on a new connection to an endpoint such as `http://127.0.0.1:7600`:
/// for tools that need the bare calls. Applications use [`Client`].
pub async fn admission(
    endpoint: impl Into<String>,
) -> Result<AdmissionServiceClient<Channel>, tonic::transport::Error> {
    Ok(AdmissionServiceClient::new(connect(endpoint.into()).await?))
}

/// The side of operators, on a new connection to an endpoint such as `http://127.0.0.1:7601`.
pub async fn admin(endpoint: impl Into<String>) -> Result<AdminServiceClient<Channel>, tonic::transport::Error> {
    Ok(AdminServiceClient::new(connect(endpoint.into()).await?))
}

async fn connect(endpoint: String) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(endpoint)?.tcp_nodelay(true);
    endpoint.http2_keep_alive_interval(client::KEEPALIVE_INTERVAL).connect().await
}
