//! Calls as tests make them: short to write, and panicking where the test did not expect a refusal.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_client::{Refusal, refusal};
use tidegate_proto::v1;
use tidegate_proto::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::v1::admission_service_client::AdmissionServiceClient;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// An Acquire that is under way. Aborting it cancels the call.
pub type Waiter = JoinHandle<Result<v1::AcquireResponse, Status>>;

/// A request for one permit of that bulkhead, with nothing else in it.
pub fn ask(bulkhead: &str) -> v1::AcquireRequest {
    v1::AcquireRequest { bulkhead: bulkhead.into(), ..Default::default() }
}

/// A duration as it goes into a field.
#[allow(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub fn millis(millis: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration::try_from(Duration::from_millis(millis)).expect("tests write short durations"))
}

/// A duration as it goes into a field.
pub fn seconds(seconds: u64) -> Option<prost_types::Duration> {
    millis(seconds * 1000)
}

/// A duration as it comes in a field that must be there.
pub fn span(field: Option<prost_types::Duration>) -> Duration {
    field.expect("the duration is there").try_into().expect("the duration is positive")
}

/// The reason of a refusal; for what is not an answer of ours, how it failed.
pub fn reason(status: &Status) -> String {
    refusal(status).map_or_else(|| format!("not ours: {:?} {:?}", status.code(), status.message()), |ours| ours.reason)
}

/// How many renewals came out how.
pub fn renewal_states(renewals: &[v1::Renewal]) -> HashMap<v1::RenewalState, usize> {
    let mut states = HashMap::new();
    for renewal in renewals {
        *states.entry(renewal.state()).or_default() += 1;
    }
    states
}

/// The side of applications, on one connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    stub: AdmissionServiceClient<Channel>,
}

impl Client {
    /// A client on a new connection.
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stub: tidegate_client::admission(format!("http://{address}")).await.expect("the server accepts") }
    }

    /// The generated stub, for what has no shorthand here.
    pub fn stub(&self) -> AdmissionServiceClient<Channel> {
        self.stub.clone()
    }

    /// Acquires. Dropping the future cancels the call.
    pub fn acquire(
        &self,
        request: v1::AcquireRequest,
    ) -> impl Future<Output = Result<v1::AcquireResponse, Status>> + Send + 'static {
        self.call(Request::new(request))
    }

    /// The same with a deadline of gRPC's, which the client keeps, too.
    pub fn acquire_within(
        &self,
        request: v1::AcquireRequest,
        timeout: Duration,
    ) -> impl Future<Output = Result<v1::AcquireResponse, Status>> + Send + 'static {
        let mut request = Request::new(request);
        request.set_timeout(timeout);
        self.call(request)
    }

    fn call(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> impl Future<Output = Result<v1::AcquireResponse, Status>> + Send + 'static {
        let mut stub = self.stub();
        async move { stub.acquire(request).await.map(tonic::Response::into_inner) }
    }

    /// Acquires on a task of its own.
    pub fn start(&self, request: v1::AcquireRequest) -> Waiter {
        tokio::spawn(self.acquire(request))
    }

    /// Takes a permit that must be free.
    pub async fn take(&self, bulkhead: &str) -> v1::Lease {
        self.granted(v1::AcquireRequest { max_wait: seconds(0), ..ask(bulkhead) }).await
    }

    /// Acquires what must be granted.
    pub async fn granted(&self, request: v1::AcquireRequest) -> v1::Lease {
        let told = format!("{request:?}");
        match self.acquire(request).await {
            Ok(response) => response.lease.expect("a grant has a lease"),
            Err(status) => panic!("{told} was refused: {}", reason(&status)),
        }
    }

    /// Acquires what must be refused.
    pub async fn refused(&self, request: v1::AcquireRequest) -> Refusal {
        match self.acquire(request).await {
            Ok(response) => panic!("was granted: {response:?}"),
            Err(status) => refusal(&status).unwrap_or_else(|| panic!("is not an answer of ours: {status:?}")),
        }
    }

    /// Gives a lease back; tells what was found.
    pub async fn release(&self, lease_id: &str) -> v1::ReleaseState {
        let request = v1::ReleaseRequest { lease_id: lease_id.into(), ..Default::default() };
        self.stub().release(request).await.expect("a Release is answered").into_inner().state()
    }

    /// The same by request id.
    pub async fn release_request(&self, bulkhead: &str, request_id: &str) -> v1::ReleaseState {
        let (bulkhead, request_id) = (bulkhead.into(), request_id.into());
        let request = v1::ReleaseRequest { bulkhead, request_id, ..Default::default() };
        self.stub().release(request).await.expect("a Release is answered").into_inner().state()
    }

    /// Renews leases; tells what became of each.
    pub async fn renew(&self, lease_ids: impl IntoIterator<Item = &str>) -> Vec<v1::Renewal> {
        let lease_ids = lease_ids.into_iter().map(Into::into).collect();
        let request = v1::RenewRequest { seq: 7, lease_ids };
        let answer = self.stub().renew(request).await.expect("a Renew is answered").into_inner();
        assert_eq!(answer.seq, 7);
        answer.renewals
    }

    /// Renews one lease.
    pub async fn renew_one(&self, lease_id: &str) -> v1::RenewalState {
        self.renew([lease_id]).await[0].state()
    }
}

/// The side of operators, on one connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Admin {
    stub: AdminServiceClient<Channel>,
}

impl Admin {
    /// An operator on a new connection.
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stub: tidegate_client::admin(format!("http://{address}")).await.expect("the server accepts") }
    }

    /// The generated stub, for what has no shorthand here.
    pub fn stub(&self) -> AdminServiceClient<Channel> {
        self.stub.clone()
    }

    /// A bulkhead that must exist.
    pub async fn bulkhead(&self, name: &str) -> v1::Bulkhead {
        let request = v1::GetBulkheadRequest { name: name.into() };
        let response = self.stub().get_bulkhead(request).await.expect("the bulkhead exists");
        response.into_inner().bulkhead.expect("it is in the answer")
    }

    /// Moves a limit to where it may be.
    pub async fn set_limit(&self, name: &str, limit: u32) -> v1::BulkheadStatus {
        let request = v1::SetLimitRequest { name: name.into(), limit, detail: "a test".into(), ..Default::default() };
        let response = self.stub().set_limit(request).await.expect("the limit is within its range");
        response.into_inner().bulkhead.and_then(|bulkhead| bulkhead.status).expect("it is in the answer")
    }

    /// The leases of a bulkhead, on one page.
    pub async fn leases(&self, bulkhead: &str) -> Vec<v1::HeldLease> {
        let request = v1::ListLeasesRequest { bulkhead: Some(bulkhead.into()), page_size: 1000, ..Default::default() };
        self.stub().list_leases(request).await.expect("the bulkhead exists").into_inner().leases
    }
}
