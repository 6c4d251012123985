//! A fake Tidegate for the tests of applications: a real server on loopback, with the real rules, in this process.
//!
//! It speaks the wire contract to this client and to any other, on a free port, in real time. What it leaves out is what a
//! server does for many and for long: templates, a store, recovery, caps, operators. Where time should be virtual and the
//! wire does not matter, a [`LocalBulkhead`] is the better stand-in.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use tidegate_core::{Acquire, Draft, FencingToken, Holder, OnCooldown, Priority, Release, Renewal, RequestKey};
use tidegate_proto::v1;
use tidegate_proto::v1::admission_service_server::{AdmissionService, AdmissionServiceServer};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::client::Client;
use crate::error::Error;
use crate::local::LocalBulkhead;
use crate::refusal::Refusal;

/// A running fake. Dropped, it takes no more connections; those there are end with the runtime.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::Draft;
/// use tidegate_client::testing::FakeServer;
///
/// let fake = FakeServer::start([("orders-db", Draft { limit: Some(1), ..Draft::default() })]).await?;
/// let client = fake.client().await?;
/// let permit = client.bulkhead("orders-db").acquire().await?;
/// assert_eq!(fake.bulkhead("orders-db").status().running, 1);
///
/// fake.revoke("orders-db"); // the application is told, as by an operator
/// permit.lost().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FakeServer {
    address: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct State {
    bulkheads: Vec<LocalBulkhead>,
    last_metadata: Mutex<MetadataMap>,
}

impl FakeServer {
    /// Starts a server with these bulkheads on a free port of 127.0.0.1.
    pub async fn start(bulkheads: impl IntoIterator<Item = (&str, Draft)>) -> Result<Self, Error> {
        let made = bulkheads.into_iter().map(|(name, draft)| LocalBulkhead::with_lease_ends(name, draft));
        let state = Arc::new(State { bulkheads: made.collect::<Result<_, _>>()?, last_metadata: Mutex::default() });
        let failed = |error: std::io::Error| Error::Unreachable {
            endpoints: "127.0.0.1".into(),
            detail: format!("the fake server could not listen: {error}"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = CancellationToken::new();
        let (stopped, service) = (stop.clone(), AdmissionServiceServer::from_arc(state.clone()));
        tokio::spawn(async move {
            let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
            tokio::select! {
                _ = serving => {}
                () = stopped.cancelled() => {}
            }
        });
        Ok(Self { address, state, _stop: stop.drop_guard() })
    }

    /// Where clients connect, such as `http://127.0.0.1:40123`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client of it.
    pub async fn client(&self) -> Result<Client, Error> {
        Client::connect(self.endpoint()).await
    }

    /// One of its bulkheads, to look at or to change.
    ///
    /// # Panics
    /// If it was not started with a bulkhead of that name.
    pub fn bulkhead(&self, name: &str) -> &LocalBulkhead {
        let bulkhead = self.state.bulkheads.iter().find(|bulkhead| bulkhead.name() == name);
        bulkhead.unwrap_or_else(|| panic!("the fake server has no bulkhead {name:?}"))
    }

    /// Takes all leases of a bulkhead back, as an operator might: their holders are told with their next renewal.
    ///
    /// # Panics
    /// If it was not started with a bulkhead of that name.
    pub fn revoke(&self, name: &str) {
        self.bulkhead(name).engine().revoke_all();
    }

    /// The metadata of the latest Acquire, for tests of credentials and trace contexts.
    pub fn last_metadata(&self) -> MetadataMap {
        self.state.last_metadata.lock().clone()
    }
}

impl State {
    fn find(&self, name: &str) -> Result<(usize, &LocalBulkhead), Status> {
        let found = self.bulkheads.iter().enumerate().find(|(_, bulkhead)| bulkhead.name() == name);
        found.ok_or_else(|| {
            let message = format!("no bulkhead is called {name:?}");
            Refusal::plain(tonic::Code::NotFound, "BULKHEAD_NOT_FOUND", message).to_status()
        })
    }

    /// The bulkhead and the token that an id names, if it is one of this server's.
    fn open(&self, lease_id: &str) -> Option<(&LocalBulkhead, FencingToken)> {
        let (number, token) = lease_id.strip_prefix("fake-")?.split_once('-')?;
        let bulkhead = self.bulkheads.get(number.parse::<usize>().ok()?)?;
        Some((bulkhead, FencingToken::from_u64(token.parse().ok()?)))
    }

    fn renew(&self, lease_id: String) -> v1::Renewal {
        let renewal = self.open(&lease_id).map(|(bulkhead, token)| bulkhead.engine().renew(token));
        let state = match &renewal {
            None => v1::RenewalState::Unknown,
            Some(Renewal::Renewed { .. }) => v1::RenewalState::Renewed,
            Some(Renewal::Released) => v1::RenewalState::Released,
            Some(Renewal::Expired) => v1::RenewalState::Expired,
            Some(Renewal::Revoked) => v1::RenewalState::Revoked,
            Some(Renewal::Ended) => v1::RenewalState::Ended,
        };
        let (ttl, fencing_floor) = match renewal {
            Some(Renewal::Renewed { ttl, floor }) => (field(ttl), floor.as_u64()),
            _ => (None, 0),
        };
        v1::Renewal { lease_id, state: state.into(), ttl, fencing_floor }
    }
}

#[tonic::async_trait]
impl AdmissionService for State {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        *self.last_metadata.lock() = request.metadata().clone();
        let timeout = request.metadata().get("grpc-timeout").and_then(|text| timeout(text.to_str().ok()?));
        let message = request.into_inner();
        let (number, bulkhead) = self.find(&message.bulkhead)?;
        let engine = bulkhead.engine();
        let partition = message.partition.clone().unwrap_or_else(|| message.bulkhead.clone());
        let received = engine.now();
        let ask = Acquire {
            permits: message.permits.max(1),
            priority: match message.priority() {
                v1::Priority::Critical => Priority::Critical,
                v1::Priority::Normal | v1::Priority::Unspecified => Priority::Normal,
                v1::Priority::Sheddable => Priority::Sheddable,
            },
            max_wait: message.max_wait.and_then(|max_wait| max_wait.try_into().ok()),
            deadline: timeout.map(|timeout| received + timeout),
            answer_by: timeout.map(|timeout| received + timeout.saturating_sub(Duration::from_millis(20))),
            ttl: message.lease_ttl.and_then(|ttl| ttl.try_into().ok()),
            request: (!message.request_id.is_empty()).then(|| key(&message.request_id)),
            fingerprint: 0,
            partition: Some(partition.as_str().into()),
            cooldown: None,
            crowded: false,
            on_cooldown: match message.on_cooldown() {
                v1::OnCooldown::Wait => OnCooldown::Wait,
                v1::OnCooldown::Refuse | v1::OnCooldown::Unspecified => OnCooldown::Refuse,
            },
            holder: Holder { name: message.holder.as_str().into(), address: None },
        };
        let grant = engine.acquire(ask).verdict().await;
        let grant = grant.map_err(|refusal| Refusal::decided(&refusal, engine.name(), &partition).to_status())?;
        let lease = v1::Lease {
            lease_id: format!("fake-{number}-{}", grant.token.as_u64()),
            bulkhead: message.bulkhead,
            permits: grant.permits,
            fencing_token: grant.token.as_u64(),
            fencing_floor: grant.floor.as_u64(),
            ttl: field(grant.ttl),
            renew_interval: field(grant.ttl / 3),
        };
        let waited = if grant.replayed { Duration::ZERO } else { grant.granted_at.since(received) };
        Ok(Response::new(v1::AcquireResponse { lease: Some(lease), waited: field(waited), replayed: grant.replayed }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        let message = request.into_inner();
        let release = if message.lease_id.is_empty() {
            let (_, bulkhead) = self.find(&message.bulkhead)?;
            bulkhead.engine().release_request(key(&message.request_id))
        } else if let Some((bulkhead, token)) = self.open(&message.lease_id) {
            let partition = message.partition.map(Into::into).or_else(|| bulkhead.engine().partition_of(token));
            let wait = message.retry_after.and_then(|wait| wait.try_into().ok());
            if let (Some(partition), Some(wait)) = (partition, wait) {
                for bulkhead in &self.bulkheads {
                    bulkhead.engine().report(&partition, wait);
                }
            }
            bulkhead.engine().release(token)
        } else {
            Release::Unknown
        };
        let state = match release {
            Release::Released => v1::ReleaseState::Released,
            Release::AlreadyReleased => v1::ReleaseState::AlreadyReleased,
            Release::Expired => v1::ReleaseState::Expired,
            Release::Revoked => v1::ReleaseState::Revoked,
            Release::Withdrawn => v1::ReleaseState::Withdrawn,
            Release::Ended => v1::ReleaseState::Ended,
            Release::Unknown => v1::ReleaseState::Unknown,
        };
        Ok(Response::new(v1::ReleaseResponse { state: state.into() }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let v1::RenewRequest { seq, lease_ids } = request.into_inner();
        let renewals = lease_ids.into_iter().map(|lease_id| State::renew(self, lease_id)).collect();
        Ok(Response::new(v1::RenewResponse { seq, renewals, draining: false }))
    }

    type RenewLeasesStream = Pin<Box<dyn Stream<Item = Result<v1::RenewLeasesResponse, Status>> + Send>>;

    async fn renew_leases(
        &self,
        request: Request<Streaming<v1::RenewLeasesRequest>>,
    ) -> Result<Response<Self::RenewLeasesStream>, Status> {
        let state = Self { bulkheads: self.bulkheads.clone(), last_metadata: Mutex::default() };
        let answers = request.into_inner().map(move |message| {
            let v1::RenewLeasesRequest { seq, lease_ids } = message?;
            let renewals = lease_ids.into_iter().map(|lease_id| State::renew(&state, lease_id)).collect();
            Ok(v1::RenewLeasesResponse { seq, renewals, draining: false })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn report_retry_after(
        &self,
        request: Request<v1::ReportRetryAfterRequest>,
    ) -> Result<Response<v1::ReportRetryAfterResponse>, Status> {
        let message = request.into_inner();
        let wait = message.retry_after.and_then(|wait| wait.try_into().ok()).unwrap_or_default();
        let reports = self.bulkheads.iter().filter_map(|bulkhead| bulkhead.engine().report(&message.partition, wait));
        let (remaining, extended) = reports.max().unwrap_or_default();
        Ok(Response::new(v1::ReportRetryAfterResponse { remaining: field(remaining), extended }))
    }
}

fn field(span: Duration) -> Option<prost_types::Duration> {
    span.try_into().ok()
}

/// What the rules remember of a request id; there is one identity.
fn key(request_id: &str) -> RequestKey {
    let mut hasher = DefaultHasher::new();
    request_id.hash(&mut hasher);
    RequestKey { identity: 0, request: hasher.finish() }
}

/// The time-out of a call, as gRPC writes it: digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u32 = number.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_hours(1),
        "M" => Duration::from_mins(1),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}
