//! The shell around the core: who owns the clock, the locks and the parked callers.
//!
//! A map leads from a name to a *cell*: one core bulkhead and the callers parked on it, behind one mutex. A change of
//! state is one synchronous call under that lock, and what it did to waiters is delivered before the lock goes. Nothing
//! is awaited inside, so a dropped handler can be interrupted only between changes. Locks are taken one at a time: a cell
//! is cloned out of the map first.

mod ask;
mod audit;
mod bulkheads;
mod listing;
mod operator;
mod reload;
mod sweep;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{
    Bulkhead, Decision, Effect, FencingToken, Grant, Instant, Reason, Release, Renewal, RequestKey, Room, Step,
    WaiterId,
};
use tokio::sync::oneshot;

use crate::caps::Caps;
use crate::clock::Clock;
use crate::cooldowns::{Cooldowns, Reported, Rules};
use crate::quiet::Quiet;
use crate::seal::{LeaseId, Seal};
use crate::settings::{Plan, ServerSettings, Template};
use crate::streams::{Push, Streams};
use crate::ticker::Ticker;
use crate::waiting::{Verdict, Waiting};
use crate::waits::Place;

pub use crate::cooldowns::CooldownView;
pub use ask::{Ask, Granted, Refused};
use audit::Audit;
pub use audit::{AuditChange, AuditEvent, Change};
pub use listing::{LeaseView, ServerView, View, WaiterView};
use reload::Names;
pub use reload::NoRoom;
pub(crate) use sweep::shrink;

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
    parked: HashMap<WaiterId, oneshot::Sender<Verdict>>,
    /// When the ticker will come.
    alarm: Option<Instant>,
    /// What it has borrowed of the server's caps.
    room: Room,
    /// Since when nobody holds, waits or is remembered here.
    idle_since: Option<Instant>,
    /// An operator changed it: it stays, idle or not.
    kept: bool,
    /// What made it or changed it last, if nobody named it.
    template: Option<Arc<Template>>,
    /// Grows with each change that somebody decided.
    revision: u64,
    /// It was deleted and goes with its last lease.
    leaving: bool,
    /// How many of its expired leases were logged.
    told_expired: u64,
    /// Taken out of the map, or about to be: look the name up again.
    dead: bool,
}

/// A request that has reached its cell.
struct Reached<'a> {
    cell: Arc<Cell>,
    decided: Decided<'a>,
    /// Held as long as the call waits; a call that does not is soon gone.
    place: Place,
    received: Instant,
    asked_for: String,
    partition: Option<Box<str>>,
    request: Option<RequestKey>,
    deadline: Option<Instant>,
}

enum Decided<'a> {
    Now(Verdict),
    Waits(Waiting<'a>),
}

/// Decides who may start now. All methods return at once, but [`acquire`](Self::acquire) and those that list much.
#[derive(Debug)]
pub struct Admission {
    clock: Clock,
    seal: Seal,
    cells: DashMap<Arc<str>, Arc<Cell>>,
    incarnations: DashMap<u32, Arc<Cell>>,
    next_incarnation: AtomicU32,
    epoch: u32,
    started: SystemTime,
    /// New cells count their fencing tokens from above this.
    floor: AtomicU64,
    ticker: Ticker,
    /// What the configuration said last. Locked before any cell, never after one.
    plan: Mutex<Plan>,
    names: ArcSwap<Names>,
    cooldowns: Cooldowns,
    caps: Caps,
    audit: Audit,
    /// Lines about lost leases.
    lost: Quiet,
    pub(crate) streams: Streams,
    /// Nobody new is let in any more.
    draining: AtomicBool,
}

impl Admission {
    /// An admission without bulkheads; names that match a template get one when they are first asked for. Needs
    /// [`run`](Self::run) from now on.
    pub fn new(settings: ServerSettings, templates: Vec<Template>) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + EPOCHS_BEGIN).unwrap_or_default();
        let epoch = u32::try_from(since.as_secs().min(LAST_EPOCH)).unwrap_or(0).max(1);
        Self {
            clock: Clock::start(),
            seal: Seal::draw(),
            cells: DashMap::new(),
            incarnations: DashMap::new(),
            next_incarnation: AtomicU32::new(1),
            epoch,
            started: SystemTime::now(),
            floor: AtomicU64::new(FencingToken::floor_of(epoch).as_u64()),
            ticker: Ticker::default(),
            cooldowns: Cooldowns::new(Rules::from(&settings)),
            caps: Caps::new(
                settings.max_bulkheads,
                Room {
                    leases: settings.max_leases,
                    waiters: settings.max_waiters,
                    remembered: settings.max_remembered,
                },
            ),
            names: ArcSwap::from_pointee(Names::new(&settings, &templates)),
            plan: Mutex::new(Plan { settings, templates, bulkheads: Vec::new() }),
            audit: Audit::default(),
            lost: Quiet::default(),
            streams: Streams::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// Moves time: notices the server's own stalls and ends what nobody else would end. Runs for ever.
    pub async fn run(&self) {
        tokio::join!(self.clock.beat(), self.ticker.run(self), self.sweep());
    }

    /// The clock that everything here is decided by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// From now on nobody new is let in; waiters are refused at once, renewal streams are told. Leases run on, and may be
    /// renewed and released. There is no way back.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.streams.push_all(&Push::Draining);
        let cells: Vec<Arc<Cell>> = self.incarnations.iter().map(|cell| cell.clone()).collect();
        for cell in cells {
            let (mut state, now) = self.enter(&cell);
            self.drain_cell(&cell, &mut state, now);
        }
    }

    /// Whether nobody new is let in any more.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The permits that run, in all bulkheads; visits each.
    pub fn running(&self) -> u64 {
        let cells: Vec<Arc<Cell>> = self.incarnations.iter().map(|cell| cell.clone()).collect();
        cells.iter().map(|cell| u64::from(self.enter(cell).0.bulkhead.status().running)).sum()
    }

    fn drain_cell(&self, cell: &Arc<Cell>, state: &mut State, now: Instant) {
        let step = state.bulkhead.drain(now);
        self.finish(cell, state, step);
    }

    /// Asks for permits; waits in the queue if it must (R1 to R8).
    ///
    /// Cancel safe: dropped while it waits it leaves the queue and takes no permit. Dropped later, the lease stays until
    /// its end, since its holder may have been told.
    pub async fn acquire(&self, ask: Ask) -> Result<Granted, Refused> {
        // What stays while it waits is kept small: thousands may.
        let Reached { cell, decided, place: _place, received, asked_for, partition, request, deadline } =
            self.ask(ask)?;
        let verdict = match decided {
            Decided::Now(verdict) => verdict,
            Decided::Waits(waiting) => waiting.verdict().await,
        };
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

    /// All of an Acquire but its wait.
    fn ask(&self, ask: Ask) -> Result<Reached<'_>, Refused> {
        let Ask { received, bulkhead, waits, request_id, mut acquire } = ask;
        let place = waits.enter();
        acquire.crowded = place.crowded;
        let deadline = acquire.deadline;
        if let Some(request_id) = request_id {
            acquire.request = Some(self.seal.request_key(&request_id));
            acquire.fingerprint = self.seal.fingerprint(acquire.permits, acquire.ttl, acquire.partition.as_deref());
        }
        let (request, partition) = (acquire.request, acquire.partition.clone());
        let (cell, decided) = self.on(&bulkhead, Self::find_or_make, |cell, state, now| {
            if self.is_draining() {
                // This cell may be visited later, or is new.
                self.drain_cell(cell, state, now);
            }
            if acquire.partition.is_none() && *cell.name != *bulkhead {
                acquire.partition = Some(bulkhead.as_str().into());
            }
            // The bulkhead's own name is its default partition, said or not.
            acquire.partition = acquire.partition.filter(|partition| **partition != *cell.name);
            acquire.cooldown = self.cooldowns.end(acquire.partition.as_deref().unwrap_or(&cell.name));
            let cooling = acquire.cooldown.map(|_| acquire.partition.clone());
            let step = state.bulkhead.acquire(now, acquire);
            // Parked before anything is delivered: what is delivered may be its own verdict.
            let waiting = match step.answer {
                Decision::Queued(id) => Some(Waiting::new(self, cell.clone(), id, state.park(id))),
                _ => None,
            };
            let decision = self.finish(cell, state, step);
            if let (Some(_), Some(partition)) = (&waiting, cooling)
                && self.cooldowns.end(partition.as_deref().unwrap_or(&cell.name)).is_none()
            {
                // Cleared between the look-up and here, where the cell is known to wait: nobody else would tell it.
                let step = state.bulkhead.calm(now, partition.as_deref());
                self.finish(cell, state, step);
            }
            match (decision, waiting) {
                (_, Some(waiting)) => Decided::Waits(waiting),
                (Decision::Granted(grant), None) => Decided::Now(Verdict::Granted(grant)),
                (Decision::Refused(refusal), None) => Decided::Now(Verdict::Refused(refusal)),
                (Decision::Queued(_), None) => unreachable!("whoever is queued was parked"),
            }
        })?;
        Ok(Reached { cell, decided, place, received, asked_for: bulkhead, partition, request, deadline })
    }

    /// Starts the ttl of a lease anew, as asked on the renewal stream with that number, if on one; `None` if the id is not
    /// genuine.
    pub fn renew(&self, lease_id: &str, stream: Option<u64>) -> Option<Renewal> {
        let LeaseId { token, incarnation, .. } = self.seal.open(lease_id)?;
        let Some(cell) = self.find_incarnation(incarnation) else { return Some(Renewal::Ended) };
        let (mut state, now) = self.enter(&cell);
        let step = state.bulkhead.renew(now, token, stream);
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
        let (_, release) = self.on(bulkhead, Self::find_or_make, |cell, state, now| {
            let step = state.bulkhead.release_request(now, key);
            self.finish(cell, state, step)
        })?;
        Ok(release)
    }

    /// A partition was told to come back after `wait` (R10): it cools in every bulkhead. Answers what is left of its
    /// cooldown and whether this report moved the end. Once it returned, nothing of the partition is granted until then.
    pub fn report(&self, partition: &str, wait: Duration, detail: &str) -> Result<(Duration, bool), Refused> {
        let now = self.clock.now();
        let Some(reported) = self.cooldowns.report(now, partition, wait, detail) else {
            return Err(Refused {
                partition: Some(partition.into()),
                ..Refused::early(Reason::ServerCapReached, "", None)
            });
        };
        let Reported { remaining, extended, cooling } = reported;
        if let Some((end, cells)) = cooling {
            for cell in cells {
                let (mut state, now) = self.enter(&cell);
                let own = (*partition != *cell.name).then_some(partition);
                let step = state.bulkhead.cool(now, own, end);
                self.finish(&cell, &mut state, step);
            }
        }
        Ok((remaining, extended))
    }

    /// The partition that a live lease runs for.
    pub fn partition_of(&self, lease_id: &str) -> Option<String> {
        let LeaseId { token, incarnation, .. } = self.seal.open(lease_id)?;
        let cell = self.find_incarnation(incarnation)?;
        let (state, _) = self.enter(&cell);
        let partition = state.bulkhead.partition_of(token)?;
        Some(partition.unwrap_or(&cell.name).to_owned())
    }

    /// The same of the one that was granted to a request.
    pub fn partition_of_request(&self, bulkhead: &str, request_id: &str) -> Option<String> {
        let key = self.seal.request_key(request_id);
        let of = |cell: &Arc<Cell>, state: &mut State, _| {
            let partition = state.bulkhead.partition_of_request(key)?;
            Some(partition.unwrap_or(&cell.name).to_owned())
        };
        self.on(bulkhead, Self::find_or_make, of).ok()?.1
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
                state.parked.remove(&id);
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
        let now = self.forgiving(&mut state);
        // What is gone gives nothing back.
        if !state.dead
            && let Some(room) = self.caps.lend(state.room, state.bulkhead.occupied())
        {
            state.room = room;
            state.bulkhead.set_room(room);
        }
        (state, now)
    }

    /// Reads the time for a cell, which learns of a stall first.
    fn forgiving(&self, state: &mut State) -> Instant {
        let now = self.clock.now();
        if self.clock.stalled() > state.bulkhead.forgiven() {
            state.bulkhead.forgive(self.clock.stall());
        }
        now
    }

    /// Delivers what a call did to waiters and sets the alarm that the cell now needs.
    fn finish<T>(&self, cell: &Arc<Cell>, state: &mut State, step: Step<T>) -> T {
        for effect in step.effects {
            let (id, verdict) = match effect {
                Effect::Granted(id, grant) => (id, Verdict::Granted(grant)),
                Effect::Refused(id, refusal) => (id, Verdict::Refused(refusal)),
                Effect::Waits(partition) => {
                    if let Some(end) = self.cooldowns.enter(partition.as_deref().unwrap_or(&cell.name), cell) {
                        let now = self.forgiving(state);
                        let step = state.bulkhead.cool(now, partition.as_deref(), end);
                        self.finish(cell, state, step);
                    }
                    continue;
                }
                Effect::WaitsNoMore(partition) => {
                    self.cooldowns.leave(partition.as_deref().unwrap_or(&cell.name), cell);
                    continue;
                }
                Effect::Reverted { before, after } => {
                    self.note_revert(cell, state, before, after);
                    continue;
                }
            };
            let told = state.parked.remove(&id).map(|parked| parked.send(verdict).is_ok());
            debug_assert_eq!(told, Some(true), "receivers go under the lock, after their place");
        }
        if let Some(deadline) = state.bulkhead.next_deadline()
            && state.alarm.is_none_or(|alarm| deadline < alarm)
        {
            self.ticker.set(cell, state.alarm.replace(deadline), deadline);
        }
        if state.leaving && !state.dead && state.bulkhead.is_empty() {
            self.bury(cell, state);
        }
        step.answer
    }

    /// Does one call on the cell that `find` finds for that name, under its lock. A dead one is looked up again.
    fn on<T>(
        &self,
        name: &str,
        find: fn(&Self, &str) -> Result<Arc<Cell>, Refused>,
        change: impl FnOnce(&Arc<Cell>, &mut State, Instant) -> T,
    ) -> Result<(Arc<Cell>, T), Refused> {
        loop {
            let cell = find(self, name)?;
            let (mut state, now) = self.enter(&cell);
            if !state.dead {
                let answer = change(&cell, &mut state, now);
                drop(state);
                return Ok((cell, answer));
            }
        }
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
        Self::new(ServerSettings::default(), Vec::new())
    }
}

impl State {
    /// Where the waiter's verdict will come in.
    fn park(&mut self, id: WaiterId) -> oneshot::Receiver<Verdict> {
        let (sender, receiver) = oneshot::channel();
        self.parked.insert(id, sender);
        receiver
    }
}
