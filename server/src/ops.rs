//! Probes over plain HTTP: is the process alive, may it be sent calls.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::pressure::Pressure;
use crate::settings::TransportSettings;
use crate::transport::{self, For};

/// How long a connection may take. Over HTTP/1 it carries one request.
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
    let http = http();
    let open = move |socket, address| {
        let (http, router) = (http.clone(), router.clone());
        async move {
            let serving = http.serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
            // Whoever probes sees it; nobody else is concerned.
            match timeout(LONGEST, serving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%address, error, "probe failed"),
                Err(_) => debug!(%address, "probe did not end in time"),
            }
        }
    };
    transport::accept(listener, For::Probes, &settings, Pressure::default(), open, CancellationToken::new()).await;
}

/// HTTP/1 for probes; HTTP/2 as well, so that a gRPC client that is sent here by mistake is told so and not hung up on.
fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // Its own timers are not needed: the connection as a whole has one.
    http.http1().keep_alive(false).header_read_timeout(None).max_buf_size(8 << 10);
    http.http2().max_concurrent_streams(8).max_header_list_size(8 << 10).initial_connection_window_size(64 << 10);
    http
}
