//! The handle of a bulkhead, the same for one of a server's and for one in this process.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tidegate_core::{OnCooldown, Priority};

use crate::engine::Engine;
use crate::error::Error;
use crate::permit::Permit;
use crate::refusal::Refusal;
use crate::remote::Remote;

/// A guarded thing with its limit and its queue, and how this caller wants to ask it for permits. Cheap to clone; the
/// `with_…` methods give another handle of the same bulkhead that asks differently.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use std::time::Duration;
/// use tidegate_client::{LocalBulkhead, Priority};
///
/// # async fn write_order() -> u32 { 7 }
/// let db = LocalBulkhead::new("orders-db", 4)?; // or client.bulkhead("orders-db")
/// let order = db.run(write_order()).await?;
///
/// let urgent = db.with_priority(Priority::Critical).with_max_wait(Duration::from_millis(200));
/// let permit = urgent.acquire().await?;
/// # let _ = (order, permit); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a handle does nothing until it is asked"]
pub struct Bulkhead {
    source: Source,
    options: Options,
}

#[derive(Clone, Debug)]
enum Source {
    Local(Arc<Engine>),
    Remote(Arc<Remote>),
}

/// How permits are asked for. What is `None` is the bulkhead's own.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) permits: u32,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) lease_ttl: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) partition: Option<Arc<str>>,
    pub(crate) priority: Priority,
    pub(crate) on_cooldown: OnCooldown,
    /// The work stops by itself after this time, and its lease is not renewed.
    pub(crate) unrenewed: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            permits: 1,
            max_wait: None,
            lease_ttl: None,
            timeout: None,
            partition: None,
            priority: Priority::default(),
            on_cooldown: OnCooldown::default(),
            unrenewed: None,
        }
    }
}

impl Bulkhead {
    pub(crate) fn local(engine: Arc<Engine>) -> Self {
        Self { source: Source::Local(engine), options: Options::default() }
    }

    pub(crate) fn remote(remote: Arc<Remote>, unrenewed: Option<Duration>) -> Self {
        Self { source: Source::Remote(remote), options: Options { unrenewed, ..Options::default() } }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Local(engine) => engine.name(),
            Source::Remote(remote) => remote.name(),
        }
    }

    /// Asks for so many permits at once, 1 to the bulkhead's ceiling; default 1.
    pub fn with_permits(&self, permits: u32) -> Self {
        self.with(|options| options.permits = permits)
    }

    /// Waits at most so long in the queue; the bulkhead's own `max_wait` bounds it, too. Zero: do not wait.
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        self.with(|options| options.max_wait = Some(max_wait))
    }

    /// Wants the answer within this time, as the deadline of the call: it bounds the wait, and a cooldown that lasts
    /// longer refuses at once.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with(|options| options.timeout = Some(options.timeout.map_or(timeout, |old| old.min(timeout))))
    }

    /// Asks on behalf of this partition, the key that cools down together; default: the bulkhead's name.
    pub fn with_partition(&self, partition: impl Into<Arc<str>>) -> Self {
        let partition = partition.into();
        self.with(|options| options.partition = Some(partition))
    }

    /// How urgent it is; default [`Priority::Normal`]. The less urgent are delayed, never starved.
    pub fn with_priority(&self, priority: Priority) -> Self {
        self.with(|options| options.priority = priority)
    }

    /// What to do while the partition cools down; default [`OnCooldown::Refuse`].
    pub fn with_on_cooldown(&self, on_cooldown: OnCooldown) -> Self {
        self.with(|options| options.on_cooldown = on_cooldown)
    }

    /// Asks for a lease of this length, 2 s to the bulkhead's `max_lease_ttl`: how long the permits stay taken if this
    /// process vanishes, and how long an outage of the server may last before the lease is lost. In this process leases
    /// have no end, and this changes nothing.
    pub fn with_lease_ttl(&self, lease_ttl: Duration) -> Self {
        self.with(|options| options.lease_ttl = Some(lease_ttl))
    }

    /// Leases are not renewed, as the work stops by itself after `work`. The lease must be longer than that by more than
    /// 1 s and its margin, else [`acquire`](Self::acquire) answers [`Error::LeaseTooShort`].
    pub fn without_renewal(&self, work: Duration) -> Self {
        self.with(|options| options.unrenewed = Some(work))
    }

    fn with(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.options);
        changed
    }

    /// Permits of this process that are not given back, and requests that wait.
    pub(crate) fn activity(&self) -> (usize, usize) {
        match &self.source {
            Source::Local(engine) => {
                let (_, status) = engine.status();
                (status.running as usize, status.queued as usize)
            }
            Source::Remote(remote) => remote.activity(),
        }
    }

    /// Asks for a permit, and waits in the queue if it must.
    ///
    /// Cancel safe: dropped before it has answered, it leaves the queue, and a permit that was granted in that instant is
    /// given back.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        match &self.source {
            Source::Local(engine) => self.options.acquire(engine).await,
            // Large, and none of the futures of those who call it should be.
            Source::Remote(remote) => Box::pin(remote.acquire(&self.options)).await,
        }
    }

    /// Gives a permit back between two chunks of work and takes one again, at the tail of the queue: so that others get
    /// their turn, and a lowered limit reaches long work.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
    /// # let db = tidegate_client::LocalBulkhead::new("orders-db", 4)?;
    /// # async fn read_chunk(chunk: u32) -> bool { chunk < 3 }
    /// let mut permit = db.acquire().await?;
    /// for chunk in 0.. {
    ///     if !read_chunk(chunk).await {
    ///         break;
    ///     }
    ///     permit = db.reacquire(permit).await?;
    /// }
    /// # drop(permit); Ok(()) }
    /// ```
    pub async fn reacquire(&self, permit: Permit) -> Result<Permit, Error> {
        // Known to be given back, or the new request could wait for the old permit.
        permit.release().await?;
        self.acquire().await
    }

    /// Runs the work under a permit. The work is first polled when the permit is there. If the lease is lost, the work is
    /// dropped where it stands and [`Error::Lost`] tells so.
    ///
    /// Cancel safe as far as `work` is: dropped, it drops the work first and then gives the permit back.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Error> {
        let permit = self.acquire().await?;
        // This moves the work behind the permit, so that it is gone before the permit goes.
        tokio::pin!(work);
        tokio::select! {
            biased;
            output = &mut work => Ok(output),
            loss = permit.lost() => Err(Error::Lost { bulkhead: permit.bulkhead().into(), loss }),
        }
    }

    /// Runs a stream under a permit: taken when it is first polled, held until its last item, its first error, or until
    /// the consumer drops it. If the lease is lost, the stream is dropped and ends with [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
    /// use futures_util::{TryStreamExt, stream};
    ///
    /// # let db = tidegate_client::LocalBulkhead::new("orders-db", 4)?;
    /// let rows = stream::iter([Ok::<_, tidegate_client::Error>(1), Ok(2)]);
    /// let rows: Vec<i32> = db.run_stream(rows).try_collect().await?;
    /// assert_eq!(rows, [1, 2]);
    /// # Ok(()) }
    /// ```
    pub fn run_stream<S, T, E>(&self, stream: S) -> impl Stream<Item = Result<T, E>> + use<S, T, E>
    where
        S: Stream<Item = Result<T, E>>,
        E: From<Error>,
    {
        let first = Streaming::Waits(Box::pin(stream), self.clone());
        stream::unfold(Some(first), async |state| {
            let mut running = match state? {
                Streaming::Waits(stream, bulkhead) => match bulkhead.acquire().await {
                    Ok(permit) => Running { stream, permit },
                    Err(error) => return Some((Err(error.into()), None)),
                },
                Streaming::Runs(running) => running,
            };
            let item = tokio::select! {
                // The loss first: a stream whose items are always ready must stop as well.
                biased;
                loss = running.permit.lost() => {
                    Err(Error::Lost { bulkhead: running.permit.bulkhead().into(), loss }.into())
                }
                item = running.stream.next() => item?,
            };
            let next = item.is_ok().then_some(Streaming::Runs(running));
            Some((item, next))
        })
        .fuse()
    }

    /// Tells that the partition was asked to come back after `wait`: it cools down in every bulkhead of the server, for
    /// all its callers; in this process, in this bulkhead. Answers what is left of the cooldown. Zero changes nothing.
    pub async fn report_retry_after(&self, wait: Duration) -> Result<Duration, Error> {
        let partition = self.options.partition.as_deref();
        match &self.source {
            Source::Local(engine) => {
                let partition = partition.unwrap_or(engine.name());
                let too_many =
                    || Error::Invalid { field: "partition", allowed: "one of those that cool already".into() };
                engine.report(partition, wait).map(|(remaining, _)| remaining).ok_or_else(too_many)
            }
            Source::Remote(remote) => remote.report(partition, wait).await,
        }
    }
}

/// A stream on its way to its permit, or under it.
enum Streaming<S> {
    Waits(Pin<Box<S>>, Bulkhead),
    Runs(Running<S>),
}

/// In this order: the stream is gone before the permit goes.
struct Running<S> {
    stream: Pin<Box<S>>,
    permit: Permit,
}

impl Options {
    /// Asks a bulkhead in this process.
    pub(crate) async fn acquire(&self, engine: &Arc<Engine>) -> Result<Permit, Error> {
        match engine.acquire(self.ask(engine)).verdict().await {
            Ok(grant) => Ok(Permit::local(engine.clone(), grant)),
            Err(refusal) => {
                let partition = self.partition.as_deref().unwrap_or(engine.name());
                Err(Refusal::decided(&refusal, engine.name(), partition).into())
            }
        }
    }

    fn ask(&self, engine: &Engine) -> tidegate_core::Acquire {
        let deadline = self.timeout.map(|timeout| engine.now() + timeout);
        tidegate_core::Acquire {
            permits: self.permits,
            priority: self.priority,
            max_wait: self.max_wait,
            deadline,
            answer_by: deadline,
            ttl: None,
            request: None,
            fingerprint: 0,
            partition: self.partition.as_deref().map(Into::into),
            cooldown: None,
            crowded: false,
            on_cooldown: self.on_cooldown,
            holder: tidegate_core::Holder::default(),
        }
    }
}
