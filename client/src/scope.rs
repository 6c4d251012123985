//! Work that belongs to something and ends with it: a page, a request, a session.

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bulkhead::Bulkhead;
use crate::error::Error;

/// What work belongs to. Dropped, it cancels all of its work, and nothing of it that waits is started.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::{LocalBulkhead, Scope};
///
/// let db = LocalBulkhead::new("orders-db", 4)?;
/// let page = Scope::new();
/// let job = page.spawn(&db, |cancelled| async move {
///     tokio::select! {
///         () = cancelled.cancelled() => "cleaned up",
///         () = std::future::pending() => "never",
///     }
/// });
/// drop(page); // the user left
/// assert_eq!(job.outcome().await.unwrap_err().reason(), "CANCELLED");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Scope {
    cancelled: CancellationToken,
    _guard: DropGuard,
}

/// Work in a task of its own.
#[derive(Debug)]
pub struct Job<T> {
    outcome: oneshot::Receiver<Result<T, Error>>,
    cancelled: CancellationToken,
}

impl Default for Scope {
    fn default() -> Self {
        Self::new()
    }
}

impl Scope {
    /// A scope without work.
    pub fn new() -> Self {
        let cancelled = CancellationToken::new();
        Self { _guard: cancelled.clone().drop_guard(), cancelled }
    }

    /// Cancels all of its work, and what is begun later.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Drives a future, such as [`Bulkhead::run`] or [`Retry::run`](crate::Retry::run), until it ends or is cancelled:
    /// then it is dropped, and with it the work, the place in the queue, or the delay.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(Error::Cancelled),
            output = future => Ok(output),
        }
    }

    /// Runs work that is told of its cancellation and takes time to end, in a task of its own. A job that is cancelled
    /// while it waits is never started. One that runs is told, and its caller is answered at once, but its permit is given
    /// back only when it has really ended. It is told of a lost lease in the same way.
    ///
    /// Needs a tokio runtime.
    pub fn spawn<W, F>(&self, bulkhead: &Bulkhead, work: W) -> Job<F::Output>
    where
        W: FnOnce(CancellationToken) -> F + Send + 'static,
        F: Future<Output: Send> + Send + 'static,
    {
        let cancelled = self.cancelled.child_token();
        let (sender, outcome) = oneshot::channel();
        let (bulkhead, token) = (bulkhead.clone(), cancelled.clone());
        tokio::spawn(async move {
            // Whoever asked may have been answered before.
            let _ = sender.send(start(&bulkhead, token, work).await);
        });
        Job { outcome, cancelled }
    }
}

async fn start<W, F>(bulkhead: &Bulkhead, cancelled: CancellationToken, work: W) -> Result<F::Output, Error>
where
    W: FnOnce(CancellationToken) -> F,
    F: Future,
{
    let permit = tokio::select! {
        biased;
        () = cancelled.cancelled() => return Err(Error::Cancelled),
        permit = bulkhead.acquire() => permit?,
    };
    // Its own: a lost lease is told to the work and is no cancellation to whoever asked.
    let told = cancelled.child_token();
    let work = work(told.clone());
    tokio::pin!(work);
    tokio::select! {
        biased;
        output = &mut work => Ok(output),
        loss = permit.lost() => {
            told.cancel();
            work.await;
            Err(Error::Lost { bulkhead: permit.bulkhead().into(), loss })
        }
    }
}

impl<T> Job<T> {
    /// Cancels this job alone.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// How it ended; at once with [`Error::Cancelled`] when it is cancelled. Dropped, the job goes on without an observer.
    pub async fn outcome(self) -> Result<T, Error> {
        tokio::select! {
            biased;
            outcome = self.outcome => outcome.unwrap_or(Err(Error::Panicked)),
            () = self.cancelled.cancelled() => Err(Error::Cancelled),
        }
    }
}
