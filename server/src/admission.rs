//! The shell around the core: who owns the clock, the locks and the parked callers.
//!
//! A map leads from a name to a *cell*: one core bulkhead and the callers parked on it, behind one mutex. A change of
//! state is one synchronous call under that lock, and what it did to waiters is delivered before the lock goes. Nothing
//! is awaited inside, so a dropped handler can be interrupted only between changes. Locks are taken one at a time: a cell
//! is cloned out of the map first.

mod operator;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{
    Acquire, Bulkhead, Decision, Effect, FencingToken, Grant, Instant, Invalid, Reason, Refusal, Release, Renewal,
    RequestKey, Settings, Status, Step, WaiterId,
};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::name;
use crate::seal::{LeaseId, Seal};
use crate::ticker::Ticker;
use crate::waiting::{Verdict, Waiting};

pub use operator::{LeaseView, View};

/// The bulkhead that takes the names nobody configured, if it is configured itself (R13).
pub const DEFAULT: &str = "default";
/// 2026-01-01, from where epochs count their seconds.
const EPOCHS_BEGIN: Duration = Duration::from_hours(20_454 * 24);
/// Seconds from there that are believed.
const LAST_EPOCH: u64 = 1 << 30;

/// A bulkhead and the callers parked on it. One made again under the same name is another cell.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) incarnation: u32,
    name: Arc<str>,
    counted_since: SystemTime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bulkhead: Bulkhead,
    /// By the waiters' slots.
    parked: Vec<Option<oneshot::Sender<Verdict>>>,
    /// When the ticker will come.
    alarm: Option<Instant>,
    /// Taken out of the map, or about to be: look the name up again.
    dead: bool,
}

/// A request as it came in, its fields checked.
#[derive(Debug)]
pub struct Ask {
    /// When the call was received.
    pub received: Instant,
    /// The name asked for.
    pub bulkhead: String,
    /// Recognises repeats; `None` recognises none.
    pub request_id: Option<String>,
    /// The rest of it; `request` and `fingerprint` are filled in here.
    pub acquire: Acquire,
}

/// A granted request.
#[derive(Debug)]
pub struct Granted {
    /// Names the lease, for its holder alone.
    pub lease_id: String,
    /// The bulkhead that granted it.
    pub bulkhead: Arc<str>,
    /// The lease.
    pub grant: Grant,
    /// From the receipt of the call to the grant.
    pub waited: Duration,
}

/// A refusal, and of whom.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why, and the numbers it was decided on.
    pub refusal: Refusal,
    /// The bulkhead that refused, or the name asked for when there is none.
    pub bulkhead: Arc<str>,
    /// The partition of the request; `None` when no bulkhead was reached.
    pub partition: Option<Box<str>>,
    /// The call's own deadline.
    pub deadline: Option<Instant>,
}

/// Why a bulkhead cannot be made or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// One of that name is there.
    #[error("a bulkhead of that name exists")]
    Exists,
    /// Permits run or waiters wait.
    #[error("the bulkhead has leases or waiters")]
    InUse,
    /// None of that name is there.
    #[error("no bulkhead has that name")]
    NotFound,
}

/// Decides who may start now. All methods but [`acquire`](Self::acquire) return at once.
#[derive(Debug)]
pub struct Admission {
    clock: Clock,
    seal: Seal,
    cells: DashMap<Arc<str>, Arc<Cell>>,
    incarnations: DashMap<u32, Arc<Cell>>,
    next_incarnation: AtomicU32,
    /// New cells count their fencing tokens from above this.
    floor: AtomicU64,
    ticker: Ticker,
}

impl Admission {
    /// An admission without bulkheads. Needs [`run`](Self::run) from now on.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + EPOCHS_BEGIN).unwrap_or_default();
        let epoch = u32::try_from(since.as_secs().min(LAST_EPOCH)).unwrap_or(0).max(1);
        Self {
            clock: Clock::start(),
            seal: Seal::draw(),
            cells: DashMap::new(),
            incarnations: DashMap::new(),
            next_incarnation: AtomicU32::new(1),
            floor: AtomicU64::new(FencingToken::floor_of(epoch).as_u64()),
            ticker: Ticker::default(),
        }
    }

    /// Moves time: notices the server's own stalls and ends what nobody else would end. Runs for ever.
    pub async fn run(&self) {
        tokio::join!(self.clock.beat(), self.ticker.run(self));
    }

    /// The clock that everything here is decided by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Makes a bulkhead. One made again counts its fencing tokens from above those of the old one (R13).
    pub fn create(&self, name: &str, settings: Settings) -> Result<(), Conflict> {
        let Entry::Vacant(vacant) = self.cells.entry(name.into()) else { return Err(Conflict::Exists) };
        let after = FencingToken::from_u64(self.floor.load(Ordering::Acquire));
        let incarnation = self.next_incarnation.fetch_add(1, Ordering::Relaxed);
        let state = State { bulkhead: Bulkhead::new(settings, after), parked: Vec::new(), alarm: None, dead: false };
        let (name, counted_since) = (vacant.key().clone(), SystemTime::now());
        let cell = Arc::new(Cell { incarnation, name, counted_since, state: Mutex::new(state) });
        self.incarnations.insert(incarnation, cell.clone());
        vacant.insert(cell);
        Ok(())
    }

    /// Deletes a bulkhead that nobody holds a lease of or waits for. Ids of its leases answer `Ended` from then on.
    pub fn delete(&self, name: &str) -> Result<(), Conflict> {
        let cell = self.find_exact(name).ok_or(Conflict::NotFound)?;
        let (mut state, now) = self.enter(&cell);
        if state.dead {
            return Err(Conflict::NotFound);
        }
        let settled = state.bulkhead.advance(now);
        self.finish(&cell, &mut state, settled);
        let Status { running, queued, .. } = state.bulkhead.status();
        if running > 0 || queued > 0 {
            return Err(Conflict::InUse);
        }
        // It leaves the map under its own lock: whoever waits for that lock finds it dead, looks the name up again and
        // does not find it there. No map guard is ever held while a cell is locked, so the order is safe.
        state.dead = true;
        self.floor.fetch_max(state.bulkhead.last_token().as_u64(), Ordering::AcqRel);
        self.incarnations.remove(&cell.incarnation);
        self.cells.remove(name);
        Ok(())
    }

    /// Asks for permits; waits in the queue if it must (R1 to R8).
    ///
    /// Cancel safe: dropped while it waits it leaves the queue and takes no permit. Dropped later, the lease stays until
    /// its end, since its holder may have been told.
    pub async fn acquire(&self, ask: Ask) -> Result<Granted, Refused> {
        let Ask { received, bulkhead, request_id, mut acquire } = ask;
        let deadline = acquire.deadline;
        if let Some(request_id) = request_id {
            acquire.request = Some(self.seal.request_key(&request_id));
            acquire.fingerprint = self.seal.fingerprint(acquire.permits, acquire.ttl, acquire.partition.as_deref());
        }
        let (request, partition) = (acquire.request, acquire.partition.clone());
        let (cell, verdict) = self.on(&bulkhead, Self::find, |cell, state, now| {
            if acquire.partition.is_none() && *cell.name != *bulkhead {
                acquire.partition = Some(bulkhead.as_str().into());
            }
            let step = state.bulkhead.acquire(now, acquire);
            match self.finish(cell, state, step) {
                Decision::Granted(grant) => Ok(Verdict::Granted(grant)),
                Decision::Refused(refusal) => Ok(Verdict::Refused(refusal)),
                Decision::Queued(id) => Err(Waiting::new(self, cell.clone(), id, state.park(id))),
            }
        })?;
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(waiting) => waiting.verdict().await,
        };
        let asked_for = bulkhead;
        let bulkhead = cell.name.clone();
        match verdict {
            Verdict::Granted(grant) => {
                let waited = if grant.replayed { Duration::ZERO } else { grant.granted_at.since(received) };
                Ok(Granted { lease_id: self.seal_lease(&cell, &grant, request), bulkhead, grant, waited })
            }
            Verdict::Refused(refusal) => {
                let partition = Some(partition.unwrap_or_else(|| asked_for.into()));
                Err(Refused { refusal, bulkhead, partition, deadline })
            }
        }
    }

    /// Starts the ttl of a lease anew; `None` if the id is not genuine.
    pub fn renew(&self, lease_id: &str) -> Option<Renewal> {
        let LeaseId { token, incarnation, .. } = self.seal.open(lease_id)?;
        let Some(cell) = self.find_incarnation(incarnation) else { return Some(Renewal::Ended) };
        let (mut state, now) = self.enter(&cell);
        let step = state.bulkhead.renew(now, token);
        Some(self.finish(&cell, &mut state, step))
    }

    /// Gives a lease back, exactly once.
    pub fn release(&self, lease_id: &str) -> Release {
        let Some(LeaseId { token, incarnation, .. }) = self.seal.open(lease_id) else { return Release::Unknown };
        let Some(cell) = self.find_incarnation(incarnation) else { return Release::Ended };
        let (mut state, now) = self.enter(&cell);
        let step = state.bulkhead.release(now, token);
        self.finish(&cell, &mut state, step)
    }

    /// The same by request id: withdraws a waiter or releases a lease. The id is spent.
    pub fn release_request(&self, bulkhead: &str, request_id: &str) -> Result<Release, Refused> {
        let key = self.seal.request_key(request_id);
        let (_, release) = self.on(bulkhead, Self::find, |cell, state, now| {
            let step = state.bulkhead.release_request(now, key);
            self.finish(cell, state, step)
        })?;
        Ok(release)
    }

    /// A waiter heard of its grant.
    pub(crate) fn confirm(&self, cell: &Arc<Cell>, token: FencingToken) {
        self.enter(cell).0.bulkhead.confirm(token);
    }

    /// A waiter's call is gone before it heard its verdict.
    pub(crate) fn abandon(&self, cell: &Arc<Cell>, id: WaiterId, verdict: &mut oneshot::Receiver<Verdict>) {
        let (mut state, now) = self.enter(cell);
        let step = match verdict.try_recv() {
            Ok(Verdict::Granted(grant)) => state.bulkhead.give_back(now, grant.token),
            Ok(Verdict::Refused(_)) => return,
            Err(_) => {
                state.parked[id.index()] = None;
                state.bulkhead.leave(now, id)
            }
        };
        self.finish(cell, &mut state, step);
    }

    /// The ticker came.
    pub(crate) fn advance(&self, cell: &Arc<Cell>) {
        let (mut state, now) = self.enter(cell);
        state.alarm = None;
        let step = state.bulkhead.advance(now);
        self.finish(cell, &mut state, step);
    }

    /// Locks a cell and reads the time, in that order; a stall of our own is forgiven before anything else (R6).
    fn enter<'a>(&self, cell: &'a Cell) -> (MutexGuard<'a, State>, Instant) {
        let mut state = cell.state.lock();
        let now = self.clock.now();
        if self.clock.stalled() > state.bulkhead.forgiven() {
            state.bulkhead.forgive(self.clock.stall());
        }
        (state, now)
    }

    /// Delivers what a call did to waiters and sets the alarm that the cell now needs.
    fn finish<T>(&self, cell: &Arc<Cell>, state: &mut State, step: Step<T>) -> T {
        for effect in step.effects {
            let (id, verdict) = match effect {
                Effect::Granted(id, grant) => (id, Verdict::Granted(grant)),
                Effect::Refused(id, refusal) => (id, Verdict::Refused(refusal)),
            };
            let told = state.parked[id.index()].take().map(|parked| parked.send(verdict).is_ok());
            debug_assert_eq!(told, Some(true), "receivers go under the lock, after their place");
        }
        if let Some(deadline) = state.bulkhead.next_deadline()
            && state.alarm.is_none_or(|alarm| deadline < alarm)
        {
            self.ticker.set(cell, state.alarm.replace(deadline), deadline);
        }
        step.answer
    }

    /// Does one call on the cell that `find` finds for that name, under its lock. A dead one is looked up again.
    fn on<T>(
        &self,
        name: &str,
        find: fn(&Self, &str) -> Option<Arc<Cell>>,
        change: impl FnOnce(&Arc<Cell>, &mut State, Instant) -> T,
    ) -> Result<(Arc<Cell>, T), Refused> {
        loop {
            let cell = find(self, name).ok_or_else(|| not_found(name))?;
            let (mut state, now) = self.enter(&cell);
            if !state.dead {
                let answer = change(&cell, &mut state, now);
                drop(state);
                return Ok((cell, answer));
            }
        }
    }

    /// The cell that answers for that name: its own, or the default one (R13).
    fn find(&self, name: &str) -> Option<Arc<Cell>> {
        self.find_exact(name).or_else(|| self.find_exact(DEFAULT))
    }

    fn find_exact(&self, name: &str) -> Option<Arc<Cell>> {
        self.cells.get(name).map(|cell| cell.clone())
    }

    fn find_incarnation(&self, incarnation: u32) -> Option<Arc<Cell>> {
        self.incarnations.get(&incarnation).map(|cell| cell.clone())
    }

    fn seal_lease(&self, cell: &Cell, grant: &Grant, request: Option<RequestKey>) -> String {
        let &Grant { token, permits, ttl, .. } = grant;
        let request = request.unwrap_or(RequestKey { identity: 0, request: 0 });
        self.seal.seal(&LeaseId { token, incarnation: cell.incarnation, permits, ttl, request })
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Where the waiter's verdict will come in.
    fn park(&mut self, id: WaiterId) -> oneshot::Receiver<Verdict> {
        let (sender, receiver) = oneshot::channel();
        if self.parked.len() <= id.index() {
            self.parked.resize_with(id.index() + 1, || None);
        }
        self.parked[id.index()] = Some(sender);
        receiver
    }
}

impl Refused {
    /// Refused before any bulkhead was asked. A name that is too long to be one is not repeated.
    pub fn early(reason: Reason, bulkhead: &str, invalid: Option<Invalid>) -> Self {
        let refusal = Refusal { reason, limit: 0, running: 0, queued: 0, hint: None, invalid };
        let bulkhead = if bulkhead.len() <= name::LONGEST { bulkhead } else { "" };
        Self { refusal, bulkhead: bulkhead.into(), partition: None, deadline: None }
    }
}

fn not_found(name: &str) -> Refused {
    if name.is_empty() || name == DEFAULT {
        let allowed = format!("the name of a bulkhead: none is called {DEFAULT}");
        return Refused::early(Reason::InvalidField, name, Some(Invalid { field: "bulkhead", allowed }));
    }
    Refused::early(Reason::BulkheadNotFound, name, None)
}
