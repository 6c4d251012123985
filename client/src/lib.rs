//! The Rust client of Tidegate: connections to its two services, and refusals as values.
//!
//! [`admission`] and [`admin`] give the generated stubs on a channel of their own; [`refusal`] reads what a refusing
//! status carries. What a lease needs beyond a stub (a guard, renewal, retries) is not here yet.

mod refusal;

use std::time::Duration;

use tidegate_proto::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::v1::admission_service_client::AdmissionServiceClient;
use tonic::transport::{Channel, Endpoint, Error};

pub use refusal::{Pushback, Refusal, Violation, refusal};

/// How often a connection with open calls is asked for a sign of life. Servers and proxies close those that ask oftener.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// The side of applications, on a new connection to an endpoint such as `http://127.0.0.1:7600`.
pub async fn admission(endpoint: impl Into<String>) -> Result<AdmissionServiceClient<Channel>, Error> {
    Ok(AdmissionServiceClient::new(connect(endpoint.into()).await?))
}

/// The side of operators, on a new connection to an endpoint such as `http://127.0.0.1:7601`.
pub async fn admin(endpoint: impl Into<String>) -> Result<AdminServiceClient<Channel>, Error> {
    Ok(AdminServiceClient::new(connect(endpoint.into()).await?))
}

async fn connect(endpoint: String) -> Result<Channel, Error> {
    Endpoint::from_shared(endpoint)?.tcp_nodelay(true).http2_keep_alive_interval(KEEPALIVE_INTERVAL).connect().await
}
