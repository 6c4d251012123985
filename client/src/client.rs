//! The connection of an application to its Tidegate, and what is decided about it once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::propagation::Injector;
use parking_lot::Mutex;
use tidegate_core::MAX_CEILING;
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::bulkhead::Bulkhead;
use crate::counters::{Counters, Counts};
use crate::error::Error;
use crate::fallback::{Fallback, Standing};
use crate::keeper::Keeper;
use crate::line::{PROMPT, State};
use crate::remote::Remote;

/// The most that a holder's name may be, in bytes.
const LONGEST_HOLDER: usize = 256;

/// How often an idle connection with open calls is asked for a sign of life by the transport. Servers and proxies close
/// those that ask oftener.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// An application's side of Tidegate. Cheap to clone; all clones share one connection (two when more than 200 calls wait;
/// at most 400 may) and one thread, which renews leases and gives late permits back. Make one for each process.
///
/// ```no_run
/// # async fn work() {}
/// # #[tokio::main] async fn main() -> Result<(), tidegate_client::Error> {
/// let client = tidegate_client::Client::connect("http://127.0.0.1:7600").await?;
/// client.bulkhead("orders-db").run(work()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    keeper: Arc<Keeper>,
    /// So that all handles of a bulkhead share its local fallback.
    bulkheads: Arc<Mutex<HashMap<Arc<str>, Weak<Remote>>>>,
    unrenewed: Option<Duration>,
}

impl Client {
    /// Connects to a server's admission port, such as `http://127.0.0.1:7600`. [`Error::Unreachable`] and
    /// [`Error::WrongServer`] say what is wrong with the address.
    pub async fn connect(endpoint: impl Into<String>) -> Result<Self, Error> {
        Self::builder(endpoint).connect().await
    }

    /// Decides more about the connection. Further servers: [`ClientBuilder::endpoint`].
    pub fn builder(endpoint: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            endpoints: vec![endpoint.into()],
            transport: None,
            metadata: None,
            holder: String::new(),
            fallback: Fallback::Closed,
            fallback_longest: Duration::from_mins(10),
            grace: Duration::from_secs(1),
            unrenewed: None,
            seed: None,
        }
    }

    /// The handle of a bulkhead. Asks nobody: a name that the server does not know is refused with the first Acquire.
    pub fn bulkhead(&self, name: impl Into<Arc<str>>) -> Bulkhead {
        let name = name.into();
        let mut bulkheads = self.bulkheads.lock();
        if let Some(remote) = bulkheads.get(&name).and_then(Weak::upgrade) {
            return Bulkhead::remote(remote, self.unrenewed);
        }
        // Names may come from callers: those that nobody uses any more go before the map would grow.
        if bulkheads.len() == bulkheads.capacity() {
            bulkheads.retain(|_, remote| remote.strong_count() > 0);
        }
        let remote = Arc::new(Remote::new(name.clone(), self.keeper.clone()));
        bulkheads.insert(name, Arc::downgrade(&remote));
        Bulkhead::remote(remote, self.unrenewed)
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.keeper.config.counters.read()
    }

    /// Whether work goes on without the server now.
    pub fn is_falling_back(&self) -> bool {
        self.keeper.config.fallback.carries()
    }

    /// Completes when every permit that was dropped before is given back, and every request that was given up before is
    /// withdrawn; while the server is away that may take as long as their leases last. Call it before the process ends.
    pub async fn flush(&self) {
        self.keeper.flush().await;
    }
}

type TransportHook = Arc<dyn Fn(Endpoint) -> Result<Endpoint, tonic::transport::Error> + Send + Sync>;
type MetadataHook = Arc<dyn Fn(&mut MetadataMap) + Send + Sync>;

/// Decides about a [`Client`] before it connects.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), tidegate_client::Error> {
/// use std::time::Duration;
/// use tidegate_client::{Client, Fallback};
///
/// let client = Client::builder("http://tidegate-0:7600")
///     .endpoint("http://tidegate-1:7600")
///     .holder("shop-7")
///     .metadata(|metadata| {
///         metadata.insert("authorization", "Bearer …".parse().unwrap());
///     })
///     .fallback(Fallback::Local(2), Duration::from_secs(600))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct ClientBuilder {
    endpoints: Vec<String>,
    transport: Option<TransportHook>,
    metadata: Option<MetadataHook>,
    holder: String,
    fallback: Fallback,
    fallback_longest: Duration,
    grace: Duration,
    unrenewed: Option<Duration>,
    seed: Option<u64>,
}

impl ClientBuilder {
    /// Another server of the same Tidegate, tried when one cannot be reached.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Changes how connections are made, for each endpoint: TLS, proxies' origins, windows. TLS needs feature `tls` of this
    /// crate, or one of tonic's own:
    ///
    /// ```no_run
    /// use tidegate_client::Client;
    /// use tonic::transport::{Certificate, ClientTlsConfig};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read("ca.pem")?));
    /// let client = Client::builder("https://tidegate:7600")
    ///     .transport(move |endpoint| endpoint.tls_config(tls.clone()))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn transport(
        mut self,
        hook: impl Fn(Endpoint) -> Result<Endpoint, tonic::transport::Error> + Send + Sync + 'static,
    ) -> Self {
        self.transport = Some(Arc::new(hook));
        self
    }

    /// Adds metadata to each call, such as credentials. Runs for each call and must not block.
    pub fn metadata(mut self, hook: impl Fn(&mut MetadataMap) + Send + Sync + 'static) -> Self {
        self.metadata = Some(Arc::new(hook));
        self
    }

    /// What operators see as the holder of its leases: free text of at most 256 bytes.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// What happens to work while no answer arrives, and for how long at a stretch; then errors are passed on until the
    /// server answers again. Default: [`Fallback::Closed`].
    pub fn fallback(mut self, fallback: Fallback, longest: Duration) -> Self {
        (self.fallback, self.fallback_longest) = (fallback, longest);
        self
    }

    /// How long an Acquire goes on to be tried while no answer arrives, before it fails or falls back. Default 1 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// No lease is renewed, as all work stops by itself after `work`; see
    /// [`Bulkhead::without_renewal`](crate::Bulkhead::without_renewal).
    pub fn without_renewal(mut self, work: Duration) -> Self {
        self.unrenewed = Some(work);
        self
    }

    /// Makes the jitter of reconnects repeatable, for tests. Request ids stay random: they must differ between clients.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Connects, and fails if no server answers within a few seconds.
    pub async fn connect(self) -> Result<Client, Error> {
        let attempts = self.endpoints.len();
        let client = self.connect_lazy()?;
        let mut states = client.keeper.line().watch();
        let mut failures = 0;
        let waiting = async {
            loop {
                match &*states.borrow_and_update() {
                    State::Up(_) => return Ok(()),
                    State::Down(Some(problem)) => {
                        failures += 1;
                        if failures == attempts {
                            return Err(problem.clone());
                        }
                    }
                    State::Down(None) => {}
                }
                if states.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        match tokio::time::timeout((PROMPT * 2).saturating_mul(attempts), waiting).await {
            Ok(up) => up.map(|()| client),
            Err(_) => Err(client.keeper.config.silent()),
        }
    }

    /// The same without waiting: for programs that may start before their Tidegate. Bad values fail at once.
    pub fn connect_lazy(self) -> Result<Client, Error> {
        if self.holder.len() > LONGEST_HOLDER {
            let allowed = format!("at most {LONGEST_HOLDER} bytes, not {}", self.holder.len());
            return Err(Error::Invalid { field: "holder", allowed });
        }
        if let Fallback::Local(limit) = self.fallback
            && !(1..=MAX_CEILING).contains(&limit)
        {
            let allowed = format!("a limit of 1 to {MAX_CEILING}, or Closed, not {limit}");
            return Err(Error::Invalid { field: "fallback", allowed });
        }
        let mut endpoints = Vec::new();
        for text in &self.endpoints {
            endpoints.push(endpoint(text, self.transport.as_deref())?);
        }
        let config = Config {
            names: self.endpoints.join(", "),
            endpoints,
            metadata: self.metadata,
            holder: self.holder,
            grace: self.grace,
            fallback: Standing::new(self.fallback, self.fallback_longest),
            seed: self.seed,
            counters: Counters::default(),
        };
        let keeper = Arc::new(Keeper::start(Arc::new(config))?);
        Ok(Client { keeper, bulkheads: Arc::default(), unrenewed: self.unrenewed })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

fn endpoint(
    text: &str,
    hook: Option<&(dyn Fn(Endpoint) -> Result<Endpoint, tonic::transport::Error> + Send + Sync)>,
) -> Result<Endpoint, Error> {
    let wrong = |what: &dyn fmt::Display| Error::Invalid {
        field: "endpoint",
        allowed: format!("an address such as http://127.0.0.1:7600, not {text:?} ({what})"),
    };
    let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|error| wrong(&error))?;
    if !matches!(endpoint.uri().scheme_str(), Some("http" | "https")) || endpoint.uri().host().is_none() {
        return Err(wrong(&"it needs http:// or https:// and a host"));
    }
    let endpoint = endpoint.http2_keep_alive_interval(KEEPALIVE_INTERVAL);
    match hook {
        Some(hook) => hook(endpoint).map_err(|error| wrong(&error)),
        None => Ok(endpoint),
    }
}

/// Runs what is the application's own also on the client's thread, which renews every lease and must go on.
fn guarded(what: &str, run: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
        tracing::error!("{what} panicked: the request goes without it");
    }
}

/// What was decided about a client, and what it has done.
pub(crate) struct Config {
    /// The endpoints as they were written, for messages.
    names: String,
    pub(crate) endpoints: Vec<Endpoint>,
    metadata: Option<MetadataHook>,
    pub(crate) holder: String,
    pub(crate) grace: Duration,
    pub(crate) fallback: Standing,
    pub(crate) seed: Option<u64>,
    pub(crate) counters: Counters,
}

impl Config {
    /// A request with the user's metadata and the trace context of the present span.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(hook) = &self.metadata {
            guarded("the hook for metadata", || hook(request.metadata_mut()));
        }
        guarded("the propagator of OpenTelemetry", || {
            opentelemetry::global::get_text_map_propagator(|propagator| {
                propagator.inject_context(&tracing::Span::current().context(), &mut Carrier(request.metadata_mut()));
            });
        });
        request
    }

    /// Something failed before there was an answer.
    pub(crate) fn no_answer(&self, error: &dyn std::error::Error) -> Error {
        Error::Unreachable { endpoints: self.names.clone(), detail: chain(error) }
    }

    /// A status that is no answer of Tidegate's.
    pub(crate) fn unreachable(&self, status: &Status) -> Error {
        let source = std::error::Error::source(status).map(|source| format!(": {}", chain(source))).unwrap_or_default();
        let detail = format!("{:?} {:?}{source}", status.code(), status.message());
        Error::Unreachable { endpoints: self.names.clone(), detail }
    }

    pub(crate) fn silent(&self) -> Error {
        Error::Unreachable { endpoints: self.names.clone(), detail: "silence".into() }
    }

    pub(crate) fn wrong_server(&self, rpc: &'static str) -> Error {
        Error::WrongServer { endpoints: self.names.clone(), rpc }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("endpoints", &self.names).finish_non_exhaustive()
    }
}

/// An error with its causes: those of the transport say nothing by themselves.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Where a trace context is written to.
struct Carrier<'a>(&'a mut MetadataMap);

impl Injector for Carrier<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (MetadataKey::from_bytes(key.as_bytes()), value.parse()) {
            self.0.insert(key, value);
        }
    }
}
