//! The same work once: callers with one key share one execution.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use parking_lot::Mutex;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs work with the same key once: who comes while it runs or waits gets its result; afterwards the key is free again.
/// Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::{LocalBulkhead, SingleFlight};
///
/// # async fn load(user: u32) -> u32 { user }
/// let db = LocalBulkhead::new("users-db", 2)?;
/// let flight = SingleFlight::default();
/// let load_user = |user| {
///     let db = db.clone();
///     flight.run(format!("user/{user}"), async move { db.run(load(user)).await })
/// };
/// let (one, same) = tokio::join!(load_user(7), load_user(7)); // one permit, one query
/// assert_eq!((one?, same?), (7, 7));
/// # Ok(()) }
/// ```
pub struct SingleFlight<T> {
    running: Arc<Mutex<Running<T>>>,
}

struct Running<T> {
    works: HashMap<String, (u64, WeakShared<Work<T>>)>,
    /// Tells an execution from a later one with the same key.
    number: u64,
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// The result of the work with that key: of the one that runs, or else of `work`, which then runs.
    ///
    /// The work goes on as long as one caller awaits it, whoever began it; when the last one leaves it is dropped. If it
    /// panics, all panic.
    pub fn run(&self, key: impl Into<String>, work: impl Future<Output = T> + Send + 'static) -> Shared<Work<T>> {
        let key = key.into();
        let mut running = self.running.lock();
        if let Some(shared) = running.works.get(&key).and_then(|(_, work)| work.upgrade()) {
            return shared;
        }
        running.number += 1;
        let ends = Ends { running: self.running.clone(), key: key.clone(), number: running.number };
        let work: Work<T> = Box::pin(async move {
            let _ends = ends;
            work.await
        });
        let shared = work.shared();
        if let Some(weak) = shared.downgrade() {
            let number = running.number;
            running.works.insert(key, (number, weak));
        }
        shared
    }

    /// How many keys are taken.
    pub fn running(&self) -> usize {
        self.running.lock().works.len()
    }
}

/// Frees the key when the work has ended or was dropped.
struct Ends<T> {
    running: Arc<Mutex<Running<T>>>,
    key: String,
    number: u64,
}

impl<T> Drop for Ends<T> {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if running.works.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            running.works.remove(&self.key);
        }
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { running: Arc::new(Mutex::new(Running { works: HashMap::new(), number: 0 })) }
    }
}

impl<T> Clone for SingleFlight<T> {
    fn clone(&self) -> Self {
        Self { running: self.running.clone() }
    }
}

impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("running", &self.running.lock().works.len()).finish()
    }
}
