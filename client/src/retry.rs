//! Trying again: each attempt queues anew, the permit is given back before the delay, and one budget covers it all.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::bulkhead::Bulkhead;
use crate::classify::Verdict;
use crate::error::Error;
use crate::permit::{Outcome, Permit};

/// How work is tried again. Cheap to clone; the count of retries belongs to each call.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tidegate_client::{Backoff, LocalBulkhead, Retry, Verdict};
///
/// # let api = LocalBulkhead::new("payments-api", 4)?;
/// # async fn charge() -> Result<u32, std::io::Error> { Ok(7) }
/// let retry = Retry::new(Backoff::quick(), |error: &std::io::Error| match error.kind() {
///     std::io::ErrorKind::TimedOut => Verdict::Retry,
///     _ => Verdict::Fail,
/// })
/// .retries(2)
/// .budget(Duration::from_secs(5));
/// let receipt = retry.run(&api, charge).await?;
/// # let _ = receipt; Ok(()) }
/// ```
pub struct Retry<E> {
    backoff: Backoff,
    retries: u32,
    budget: Option<Duration>,
    classify: Classify<E>,
    on_failure: Option<FailureHook<E>>,
    random: Arc<Mutex<SmallRng>>,
}

type Classify<E> = Arc<dyn Fn(&E) -> Verdict + Send + Sync>;
type FailureHook<E> = Arc<dyn Fn(&RetryError<E>) + Send + Sync>;

/// Why work that was tried again failed in the end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RetryError<E> {
    /// The work failed, and is not to be retried, or not any more.
    #[error("failed in attempt {attempts}: {error}")]
    Work {
        /// Of the last attempt.
        error: E,
        /// How many there were, at least 1.
        attempts: u32,
    },
    /// There was no permit, or it was lost.
    #[error("attempt {attempts}: {error}")]
    Permit {
        /// Why.
        error: Error,
        /// How many attempts there were, this one included.
        attempts: u32,
    },
    /// The budget is spent, or the next delay would spend it.
    #[error("{error}")]
    Budget {
        /// Says how much was spent, with [`Error::BudgetSpent`].
        error: Error,
        /// How the last attempt failed, if the work had one that ended.
        last: Option<E>,
    },
}

impl<E> Retry<E> {
    /// Retries what `classify` says may be retried, at most twice.
    pub fn new(backoff: Backoff, classify: impl Fn(&E) -> Verdict + Send + Sync + 'static) -> Self {
        Self {
            backoff,
            retries: 2,
            budget: None,
            classify: Arc::new(classify),
            on_failure: None,
            random: Arc::new(Mutex::new(SmallRng::from_rng(&mut rand::rng()))),
        }
    }

    /// At most so many attempts after the first one.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Bounds queueing, attempts and delays together. An attempt that runs when it is spent is dropped; a delay that would
    /// spend it is not begun. Zero is an error.
    #[must_use]
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Runs when a call has failed for good, to roll back what was done locally. Not when it is cancelled.
    #[must_use]
    pub fn on_failure(mut self, hook: impl Fn(&RetryError<E>) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(hook));
        self
    }

    /// Makes the jitter repeatable, for tests.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { random: Arc::new(Mutex::new(SmallRng::seed_from_u64(seed))), ..self }
    }

    /// Runs the work, again if need be. Each attempt asks for a permit at the tail of the queue and gives it back before
    /// the delay. When the work was told to come back later, that is told with the Release. A refusal that has a hint
    /// counts as an attempt that failed.
    ///
    /// Cancel safe: dropped while it waits for a permit or for the next attempt, it never starts the work again.
    pub async fn run<T, W, F>(&self, bulkhead: &Bulkhead, work: W) -> Result<T, RetryError<E>>
    where
        W: FnMut() -> F,
        F: Future<Output = Result<T, E>>,
    {
        let outcome = self.attempts(bulkhead, work).await;
        if let Err(error) = &outcome {
            self.tell(error);
        }
        outcome
    }

    /// When an operation that failed after so many retries is to be tried next, as a time to store; or that it has failed
    /// for good, after the hook of [`on_failure`](Self::on_failure) has run. For operations that are stored and retried by
    /// whoever comes by.
    pub fn next_time(&self, error: E, retries: u32, now: SystemTime) -> Result<SystemTime, RetryError<E>> {
        if let Some(delay) = self.delay((self.classify)(&error), retries) {
            return Ok(now.checked_add(delay).unwrap_or(now + FAR));
        }
        let error = RetryError::Work { error, attempts: retries.saturating_add(1) };
        self.tell(&error);
        Err(error)
    }

    async fn attempts<T, W, F>(&self, bulkhead: &Bulkhead, mut work: W) -> Result<T, RetryError<E>>
    where
        W: FnMut() -> F,
        F: Future<Output = Result<T, E>>,
    {
        let start = Instant::now();
        if self.budget.is_some_and(|budget| budget.is_zero()) {
            let error = Error::Invalid { field: "budget", allowed: "more than zero, or none".into() };
            return Err(RetryError::Permit { error, attempts: 0 });
        }
        let mut retries = 0;
        loop {
            let asks = match self.budget {
                Some(budget) => bulkhead.with_timeout(budget.saturating_sub(start.elapsed())),
                None => bulkhead.clone(),
            };
            let attempt = match asks.acquire().await {
                // Scoped, so that the permit is back before the delay.
                Ok(permit) => self.attempt(start, permit, &mut work).await,
                Err(error) => Err(Failed::Permit(error)),
            };
            let failed = match attempt {
                Ok(output) => return Ok(output),
                Err(failed) => failed,
            };
            let verdict = match &failed {
                Failed::Work(_, verdict) => *verdict,
                Failed::Permit(error) => error.verdict(),
                Failed::Budget => return Err(self.spent(start, Duration::ZERO, None)),
            };
            let Some(delay) = self.delay(verdict, retries) else {
                let attempts = retries + 1;
                return Err(match failed {
                    Failed::Work(error, _) => RetryError::Work { error, attempts },
                    Failed::Permit(error) => RetryError::Permit { error, attempts },
                    Failed::Budget => self.spent(start, Duration::ZERO, None),
                });
            };
            if self.budget.is_some_and(|budget| start.elapsed().saturating_add(delay) >= budget) {
                let last = if let Failed::Work(error, _) = failed { Some(error) } else { None };
                return Err(self.spent(start, delay, last));
            }
            tokio::time::sleep(delay).await;
            retries += 1;
        }
    }

    /// One attempt under a permit, which is given back when this returns.
    async fn attempt<T, F>(&self, start: Instant, mut permit: Permit, work: impl FnOnce() -> F) -> Result<T, Failed<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        permit.start_latency();
        let ended = {
            let work = work();
            tokio::pin!(work);
            tokio::select! {
                biased;
                output = &mut work => output,
                loss = permit.lost() => {
                    let bulkhead = permit.bulkhead().into();
                    return Err(Failed::Permit(Error::Lost { bulkhead, loss }));
                }
                () = spent(start, self.budget) => return Err(Failed::Budget),
            }
        };
        let error = match ended {
            Ok(output) => {
                permit.set_outcome(Outcome::Success);
                return Ok(output);
            }
            Err(error) => error,
        };
        let verdict = (self.classify)(&error);
        if let Some(wait) = verdict.report() {
            permit.set_outcome(Outcome::Overloaded);
            permit.set_retry_after(wait);
            // The cooldown has begun before the delay does, so that the next attempt does not meet its end.
            let told = tokio::time::timeout(LONGEST_REPORT, permit.release());
            tokio::select! {
                _ = told => {}
                () = spent(start, self.budget) => {}
            }
        }
        Err(Failed::Work(error, verdict))
    }

    /// The delay before the next attempt, if there is one. What the guarded thing or the server said is a floor.
    fn delay(&self, verdict: Verdict, retries: u32) -> Option<Duration> {
        let floor = verdict.floor().filter(|_| retries < self.retries)?;
        // Not while a function of the caller's runs.
        let random = self.random.lock().random();
        Some(self.backoff.delay(retries + 1, random).max(floor))
    }

    fn spent(&self, start: Instant, delay: Duration, last: Option<E>) -> RetryError<E> {
        let budget = self.budget.unwrap_or_default();
        RetryError::Budget { error: Error::BudgetSpent { budget, spent: start.elapsed(), delay }, last }
    }

    fn tell(&self, error: &RetryError<E>) {
        if let Some(hook) = &self.on_failure {
            hook(error);
        }
    }
}

/// As good as never, for a time that no clock can show.
const FAR: Duration = Duration::from_secs(u32::MAX as u64);

/// How long a Release that tells of a wait is waited for.
const LONGEST_REPORT: Duration = Duration::from_secs(1);

/// How an attempt failed.
enum Failed<E> {
    Work(E, Verdict),
    Permit(Error),
    Budget,
}

/// Completes when the budget is spent.
async fn spent(start: Instant, budget: Option<Duration>) {
    match budget.and_then(|budget| start.checked_add(budget)) {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

impl<E> Clone for Retry<E> {
    fn clone(&self) -> Self {
        Self {
            backoff: self.backoff.clone(),
            retries: self.retries,
            budget: self.budget,
            classify: self.classify.clone(),
            on_failure: self.on_failure.clone(),
            random: self.random.clone(),
        }
    }
}

impl<E> fmt::Debug for Retry<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backoff, retries, budget, .. } = self;
        let mut text = f.debug_struct("Retry");
        text.field("backoff", backoff).field("retries", retries).field("budget", budget).finish_non_exhaustive()
    }
}
