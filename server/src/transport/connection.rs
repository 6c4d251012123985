//! One connection from its first byte to its last: the time it has to open, its age, and its end.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::frames::Counted;
use crate::settings::TransportSettings;
use crate::waits::Waits;

/// How much later than its age a connection is cut: no Acquire waits longer, so none is cut.
const GRACE: Duration = Duration::from_mins(61);
/// Ages differ by so much either way, so that clients which came together do not come back together.
const SPREAD: f64 = 0.1;
/// What one stream may have unsent.
const SEND_BUFFER: usize = 64 << 10;

/// What a call can know of the connection it came on.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Of the client.
    pub(crate) address: SocketAddr,
    /// Its calls that wait.
    pub(crate) waits: Waits,
    /// Bytes that the messages under way on it hold.
    pub(crate) held: AtomicUsize,
    /// Cancelled when no new calls are taken any more: streams without an end of their own end then.
    pub(crate) closing: CancellationToken,
}

#[cfg(test)]
impl Connection {
    /// A connection that carries so many calls.
    pub(crate) fn of_test(streams: u32) -> Arc<Self> {
        Arc::new(Self {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            waits: Waits::of(streams, crate::pressure::Pressure::default()),
            held: AtomicUsize::new(0),
            closing: CancellationToken::new(),
        })
    }
}

/// Serves until the client goes, or until it is told to: at its age or when `stopping` is cancelled. Then no new calls
/// are taken, and those that are under way end.
pub(crate) async fn serve<T, F, R, B>(
    socket: T,
    connection: Arc<Connection>,
    settings: &TransportSettings,
    answer: impl Fn(&Arc<Connection>, Request<Incoming>) -> F,
    stopping: CancellationToken,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes, Error = R> + Send + 'static,
    R: Into<Box<dyn Error + Send + Sync>> + Send + Sync,
{
    let socket = Counted::new(socket);
    let opened = socket.opened();
    let serving =
        builder(settings).serve_connection(TokioIo::new(socket), service_fn(|request| answer(&connection, request)));
    let mut serving = pin!(serving);
    let began = Instant::now();
    let mut opening = pin!(sleep_until(began + settings.handshake_timeout));
    let mut age = pin!(sleep_until(began + spread(settings.max_connection_age, rand::random())));
    let mut opening_is_over = false;
    loop {
        tokio::select! {
            served = &mut serving => return told(&connection, served),
            () = &mut opening, if !opening_is_over => {
                if !opened.load(Ordering::Relaxed) {
                    return debug!(address = %connection.address, "did not open in time");
                }
                opening_is_over = true;
            }
            () = &mut age => break,
            () = stopping.cancelled() => break,
        }
    }
    connection.closing.cancel();
    serving.as_mut().graceful_shutdown();
    if let Ok(served) = tokio::time::timeout(GRACE, serving).await {
        told(&connection, served);
    } else {
        debug!(address = %connection.address, "kept calls open beyond its age and was cut");
    }
}

fn told(connection: &Connection, served: hyper::Result<()>) {
    if let Err(error) = served {
        // Clients cause these: no more than a word for who looks for it.
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        debug!(address = %connection.address, %error, cause, "connection ended");
    }
}

fn builder(settings: &TransportSettings) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(settings.keepalive_interval))
        .keep_alive_timeout(settings.keepalive_timeout)
        .max_concurrent_streams(settings.max_streams_per_connection)
        .max_header_list_size(8 << 10)
        .max_frame_size(16 << 10)
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(256 << 10)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(128);
    builder
}

/// That age, up to a tenth less or more; `at` is 0 to 1.
fn spread(age: Duration, at: f64) -> Duration {
    age.mul_f64(1.0 - SPREAD + 2.0 * SPREAD * at)
}

#[cfg(test)]
mod tests;
