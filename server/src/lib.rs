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
mod seal;
mod settings;
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

pub use admission::{Admission, Ask, Conflict, CooldownView, DEFAULT, Granted, LeaseView, Refused, View};
pub use clock::Clock;
use config::{Config, ServerConfig};
pub use settings::{ServerSettings, Template, TransportSettings};
pub use waits::Waits;

/// After a stop was asked for, open calls may end by themselves for this long.
const STOP_BOUND: Duration = Duration::from_secs(2);

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

/// Serves until `shutdown`, then ends within two seconds.
pub async fn run(config: Config, listeners: Listeners, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let Listeners { admission: listener, admin, ops } = listeners;
    let addresses = (listener.local_addr()?, admin.local_addr()?, ops.local_addr()?);
    let Config { server, admission, templates, bulkheads } = config;
    let admission = Arc::new(Admission::new(admission, templates));
    for (name, settings) in bulkheads {
        admission.create(&name, settings)?;
    }
    let moving = tokio::spawn({
        let admission = admission.clone();
        async move { admission.run().await }
    });
    let stopping = CancellationToken::new();
    let probes = tokio::spawn(ops::serve(ops, stopping.clone()));
    let serve = async {
        tokio::join!(
            grpc::serve_admission(&server, listener, admission.clone(), stopping.clone()),
            grpc::serve_admin(&server, admin, admission.clone(), stopping.clone()),
        )
    };
    tokio::pin!(serve);
    info!(admission = %addresses.0, admin = %addresses.1, ops = %addresses.2, "serving");
    tokio::select! {
        _ = &mut serve => {}
        () = shutdown => {
            info!("stopping");
            stopping.cancel();
            // A graceful stop waits for every open stream, for ever if a client keeps one.
            if tokio::time::timeout(STOP_BOUND, serve).await.is_err() {
                warn!("calls were still open; their connections are cut");
            }
        }
    }
    moving.abort();
    probes.abort();
    info!("stopped");
    Ok(())
}
