//! Probes over plain HTTP: is the process alive, may it be sent calls.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves `/livez`, `/readyz` and `/startupz` for as long as it is polled; ready until `draining`.
pub(crate) async fn serve(listener: TcpListener, draining: CancellationToken) -> std::io::Result<()> {
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
    axum::serve(listener, router).await
}
