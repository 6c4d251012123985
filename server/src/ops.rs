//! Probes over plain HTTP: is the process alive, may it be sent calls.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::pressure::Pressure;
use crate::settings::TransportSettings;
use crate::transport::{self, For};

/// How long a connection may take. It carries one request.
const LONGEST: Duration = Duration::from_secs(10);

/// Serves `/livez`, `/readyz` and `/startupz` for as long as it is polled; ready until `draining`.
pub(crate) async fn serve(listener: TcpListener, settings: TransportSettings, draining: CancellationToken) {
    let ready = move || {
        let answer = if draining.is_cancelled() {
            (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
        } else {
            (StatusCode::OK, "ok\n")
        };
        std::future::ready(answer)
    };
    let alive = || std::future::ready("ok\n");
    let router = Router::new().route("/livez", get(alive)).route("/startupz", get(alive)).route("/readyz", get(ready));
    let mut http = http1::Builder::new();
    http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(LONGEST);
    let open = move |socket, address| {
        let serving = http.serve_connection(TokioIo::new(socket), TowerToHyperService::new(router.clone()));
        async move {
            // Whoever probes sees it; nobody else is concerned.
            match timeout(LONGEST, serving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%address, %error, "probe failed"),
                Err(_) => debug!(%address, "probe did not end in time"),
            }
        }
    };
    transport::accept(listener, For::Probes, &settings, Pressure::default(), open, CancellationToken::new()).await;
}
