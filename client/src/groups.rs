//! Groups: names of kinds of work, each with a bulkhead of its own, and a default one for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::{Draft, MAX_CEILING};

use crate::bulkhead::Bulkhead;
use crate::error::Error;
use crate::local::LocalBulkhead;
use crate::retry::{Retry, RetryError};

/// Kinds of work by name, independent of each other. Work without a group, or of an unknown one, runs in the default one;
/// without a default and without a general limit that is unlimited.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use tidegate_client::{Groups, LocalBulkhead};
///
/// # async fn download() {}
/// let groups = Groups::builder()
///     .limit(8) // for all that has no group of its own
///     .group("images", LocalBulkhead::new("images", 2)?) // or client.bulkhead("images")
///     .build()?;
/// groups.get("images").run(download()).await?;
/// groups.get("unheard of").run(download()).await?;
/// assert_eq!(groups.named("imgaes").unwrap_err().reason(), "UNKNOWN_GROUP");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Groups {
    default: Group,
    named: Arc<BTreeMap<String, Group>>,
}

/// Decides about [`Groups`].
#[derive(Debug, Default)]
#[must_use]
pub struct GroupsBuilder {
    limit: Option<u32>,
    default: Option<Bulkhead>,
    named: BTreeMap<String, Group>,
}

/// One kind of work. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Group {
    name: Arc<str>,
    bulkhead: Bulkhead,
    executions: Arc<AtomicUsize>,
}

/// What a group does now: numbers only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Permits of this process that are not given back.
    pub running: usize,
    /// Requests of this process that wait.
    pub waiting: usize,
    /// Calls that have begun and not ended, those that wait for a permit or for their next attempt among them.
    pub executions: usize,
}

impl Groups {
    /// Begins without any group and without a limit.
    pub fn builder() -> GroupsBuilder {
        GroupsBuilder::default()
    }

    /// The group of that name; the default one if there is none.
    pub fn get(&self, name: &str) -> &Group {
        self.named.get(name).unwrap_or(&self.default)
    }

    /// The default group.
    pub fn default_group(&self) -> &Group {
        &self.default
    }

    /// The group of that name, to change or to watch it; [`Error::UnknownGroup`] if there is none.
    pub fn named(&self, name: &str) -> Result<&Group, Error> {
        let all = || self.named.keys().map(String::as_str).chain([DEFAULT]).collect::<Vec<_>>().join(", ");
        if name == DEFAULT {
            return Ok(&self.default);
        }
        self.named.get(name).ok_or_else(|| Error::UnknownGroup { name: name.into(), known: all() })
    }

    /// What each group does now, the default one first.
    pub fn status(&self) -> Vec<GroupStatus> {
        [&self.default].into_iter().chain(self.named.values()).map(Group::status).collect()
    }
}

/// What the default group is called.
const DEFAULT: &str = "default";

impl GroupsBuilder {
    /// The limit of the default group, unless [`default_group`](Self::default_group) says more.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The default group's own bulkhead; it wins over [`limit`](Self::limit).
    pub fn default_group(mut self, bulkhead: impl Into<Bulkhead>) -> Self {
        self.default = Some(bulkhead.into());
        self
    }

    /// A group with its bulkhead: a server's, or one in this process.
    pub fn group(mut self, name: impl Into<String>, bulkhead: impl Into<Bulkhead>) -> Self {
        let name = name.into();
        if name == DEFAULT {
            return self.default_group(bulkhead);
        }
        self.named.insert(name.clone(), Group::new(name, bulkhead.into()));
        self
    }

    /// Checks the limit.
    pub fn build(self) -> Result<Groups, Error> {
        let bulkhead = match (self.default, self.limit) {
            (Some(bulkhead), _) => bulkhead,
            (None, Some(limit)) => {
                // Work that was started waits, however long and however many.
                let max_wait = Some(tidegate_core::MAX_WAIT);
                let max_queued = Some(tidegate_core::MAX_QUEUED);
                let draft = Draft { limit: Some(limit), max_wait, max_queued, ..Draft::default() };
                LocalBulkhead::with_settings(DEFAULT, draft)?.into()
            }
            (None, None) => LocalBulkhead::new(DEFAULT, MAX_CEILING)?.into(),
        };
        Ok(Groups { default: Group::new(DEFAULT.into(), bulkhead), named: Arc::new(self.named) })
    }
}

impl Group {
    fn new(name: String, bulkhead: Bulkhead) -> Self {
        Self { name: name.into(), bulkhead, executions: Arc::default() }
    }

    /// Its bulkhead.
    pub fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }

    /// Runs the work under a permit; see [`Bulkhead::run`].
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Error> {
        let _execution = self.begin();
        self.bulkhead.run(work).await
    }

    /// Runs the work, again if need be; see [`Retry::run`]. Each attempt queues at the tail of this group.
    pub async fn retry<E, T, W, F>(&self, retry: &Retry<E>, work: W) -> Result<T, RetryError<E>>
    where
        W: FnMut() -> F,
        F: Future<Output = Result<T, E>>,
    {
        let _execution = self.begin();
        retry.run(&self.bulkhead, work).await
    }

    /// What it does now.
    pub fn status(&self) -> GroupStatus {
        let (running, waiting) = self.bulkhead.activity();
        let executions = self.executions.load(Ordering::Relaxed);
        GroupStatus { name: self.name.to_string(), running, waiting, executions }
    }

    fn begin(&self) -> Execution<'_> {
        self.executions.fetch_add(1, Ordering::Relaxed);
        Execution(&self.executions)
    }
}

/// A call that has begun.
struct Execution<'a>(&'a AtomicUsize);

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl From<LocalBulkhead> for Bulkhead {
    fn from(local: LocalBulkhead) -> Self {
        (*local).clone()
    }
}
