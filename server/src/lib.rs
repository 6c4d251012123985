//! Tidegate's server: a thin shell around `tidegate-core` that owns clocks, sockets, locks and tasks.
//!
//! [`Admission`] decides; [`grpc`] translates; [`run`] puts them on listeners.

mod admission;
mod caps;
mod clock;
pub mod config;
mod cooldowns;
pub mod grpc;
mod name;
mod ops;
mod pressure;
mod quiet;
mod reload;
mod seal;
mod settings;
mod streams;
mod ticker;
mod transport;
mod waiting;
mod waits;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use admission::{
    Admission, Ask, AuditChange, AuditEvent, Change, CooldownView, DEFAULT, Granted, LeaseView, NoRoom, Refused,
    ServerView, View, WaiterView,
};
pub use caps::Cap;
pub use clock::Clock;
use config::{Config, ServerConfig};
pub use reload::Reloads;
pub use settings::{Plan, ServerSettings, Template, TransportSettings};
pub use waits::Waits;

/// After the drain, open calls may end by themselves for this long.
const STOP_BOUND: Duration = Duration::from_millis(750);
/// How often a drain looks whether anybody still holds a lease.
const LOOK: Duration = Duration::from_millis(50);

/// How far a server has gone towards its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    /// Nobody new is let in, and health says so.
    draining: CancellationToken,
    /// Streams end, connections close.
    stopping: CancellationToken,
}

/// The sockets of a server, bound before anything else starts.
#[derive(Debug)]
pub struct Listeners {
    admission: TcpListener,
    admin: TcpListener,
    ops: TcpListener,
}

impl Listeners {
    /// Binds all three.
    pub async fn bind(config: &ServerConfig) -> anyhow::Result<Self> {
        Ok(Self {
            admission: bind("listen", config.listen).await?,
            admin: bind("admin_listen", config.admin_listen).await?,
            ops: bind("ops_listen", config.ops_listen).await?,
        })
    }
}

async fn bind(setting: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ([server] {setting})"))
}

/// Serves until `shutdown`; then nobody new is let in, waiters are told, and who holds a lease may release and renew it until
/// none is left, or for `drain_grace`. Ends within a second after that, and right away when `at_once` comes meanwhile. Until
/// then its bulkheads are reloaded whenever `reloads` says so.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reloads: Reloads,
    shutdown: impl Future<Output = ()>,
    at_once: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Listeners { admission: listener, admin, ops } = listeners;
    let addresses = (listener.local_addr()?, admin.local_addr()?, ops.local_addr()?);
    let Config { server, plan, running } = config;
    let admission = Arc::new(Admission::new(plan.settings.clone(), plan.templates.clone()));
    admission.reload(plan)?;
    let reloading = tokio::spawn(reloads.run(running, admission.clone()));
    let mut moving = tokio::spawn({
        let admission = admission.clone();
        async move { admission.run().await }
    });
    let life = Life::default();
    let mut probes = tokio::spawn(ops::serve(ops, server.transport.clone(), life.draining.clone()));
    let serve = async {
        tokio::join!(
            grpc::serve_admission(&server, listener, admission.clone(), life.clone()),
            grpc::serve_admin(&server, admin, admission.clone(), life.clone()),
        )
    };
    tokio::pin!(serve);
    info!(admission = %addresses.0, admin = %addresses.1, ops = %addresses.2, "serving");
    tokio::select! {
        _ = &mut serve => {}
        // Without these nothing ends in time, or nobody sees that it serves.
        ended = &mut moving => anyhow::bail!("time stands still: {ended:?}"),
        ended = &mut probes => anyhow::bail!("probes are not answered any more: {ended:?}"),
        () = shutdown => {
            info!(drain_grace = ?server.drain_grace, "draining");
            life.draining.cancel();
            admission.drain();
            tokio::select! {
                () = drained(&admission, server.drain_grace) => {}
                () = at_once => warn!("stopping at once: asked again"),
                _ = &mut serve => {}
            }
            info!(running = admission.running(), "stopping");
            life.stopping.cancel();
            // A graceful stop waits for every open stream, for ever if a client keeps one.
            if tokio::time::timeout(STOP_BOUND, serve).await.is_err() {
                warn!("calls were still open; their connections are cut");
            }
        }
    }
    reloading.abort();
    moving.abort();
    probes.abort();
    info!("stopped");
    Ok(())
}

/// Until nobody holds a lease any more, or for that long.
async fn drained(admission: &Admission, drain_grace: Duration) {
    let end = tokio::time::Instant::now() + drain_grace;
    loop {
        // Not before the first look: streams are being told.
        tokio::time::sleep(LOOK.min(drain_grace)).await;
        if admission.running() == 0 || tokio::time::Instant::now() >= end {
            return;
        }
    }
}
