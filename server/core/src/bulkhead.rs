//! A bulkhead: its limit, the leases under it and the queue before it, changed one call at a time.
//!
//! Each call first settles what time has done: waits that ended are refused, leases that fell due expire, and what that
//! freed goes to the queue. Then it does its own work, and whatever it freed goes to the queue as well. Check comes
//! before commit: a refusal leaves nothing taken.

mod acquire;
mod cool;
mod operate;
mod settle;

use std::time::Duration;

use crate::decision::{Effect, Reason, Release, Renewal, Revert, Status, Step, Totals};
use crate::id::{FencingToken, RequestKey, WaiterId};
use crate::lease::Leases;
use crate::ledger::{Fate, Ledger};
use crate::memory::Shed;
use crate::partition::Partitions;
use crate::queue::Queue;
use crate::rate::Rate;
use crate::replay::{Replay, Seen};
use crate::settings::Settings;
use crate::time::{Instant, Stall};

/// After a stall no waiter is granted for this long: those that want to leave, or to renew, are read first.
const GRANT_PAUSE: Duration = Duration::from_millis(50);
/// The guarded thing with its rule and its queue. `now` never goes back from one call to the next.
#[derive(Debug)]
pub struct Bulkhead {
    settings: Settings,
    limit: u32,
    leases: Leases,
    ledger: Ledger,
    queue: Queue,
    replay: Replay,
    partitions: Partitions,
    rate: Rate,
    room: Room,
    /// No waiter is granted before.
    grants_resume: Option<Instant>,
    revert: Option<Revert>,
    /// Why it is in its mode, as an operator told.
    mode_detail: Box<str>,
    /// The server is stopping: nobody new is let in.
    draining: bool,
    totals: Totals,
}

/// How much of what is capped for the whole server this bulkhead may have (R14). The shell lends it in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The most leases.
    pub leases: usize,
    /// The most waiters.
    pub waiters: usize,
    /// The most ended leases and spent request ids remembered, together.
    pub remembered: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { leases: usize::MAX, waiters: usize::MAX, remembered: usize::MAX }
    }
}

impl Bulkhead {
    /// An idle one with its start limit in force. Its first fencing token is the one after `after`.
    pub fn new(settings: Settings, after: FencingToken) -> Self {
        let limit = settings.limit();
        Self {
            settings,
            limit,
            leases: Leases::default(),
            ledger: Ledger::new(after),
            queue: Queue::new(limit),
            replay: Replay::default(),
            partitions: Partitions::new(),
            rate: Rate::default(),
            room: Room::default(),
            grants_resume: None,
            revert: None,
            mode_detail: Box::default(),
            draining: false,
            totals: Totals::default(),
        }
    }

    /// Starts the ttl of a lease anew (R6), as asked on the stream with that number, if on one. Answered `Renewed`, its
    /// permits are in the count.
    pub fn renew(&mut self, now: Instant, token: FencingToken, stream: Option<u64>) -> Step<Renewal> {
        let mut effects = self.settle(now);
        let answer = match self.fate(now, token) {
            Fate::Live(slot) if self.leases.get(slot).revoked => Renewal::Revoked,
            Fate::Live(slot) => {
                self.leases.renew(now, slot, stream);
                Renewal::Renewed { ttl: self.leases.get(slot).claim.ttl, floor: self.ledger.floor() }
            }
            Fate::Released => Renewal::Released,
            Fate::Expired => Renewal::Expired,
            Fate::Revoked => Renewal::Revoked,
            Fate::Forgotten => Renewal::Ended,
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    /// Gives the permits of a lease back, exactly once (R7).
    pub fn release(&mut self, now: Instant, token: FencingToken) -> Step<Release> {
        let mut effects = self.settle(now);
        let answer = self.release_token(now, token);
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    /// The same by request id, for one who does not know the lease: withdraws a waiter, releases a live lease. The id is
    /// spent in any case (R8).
    pub fn release_request(&mut self, now: Instant, key: RequestKey) -> Step<Release> {
        let mut effects = self.settle(now);
        let answer = match self.replay.get(key).map(|(seen, _)| seen) {
            None => {
                self.spend(now, key, Release::Unknown);
                Release::Unknown
            }
            Some(Seen::Spent(answer)) => answer,
            Some(Seen::Live(token)) => self.release_token(now, token),
            Some(Seen::Waiting(slot)) => {
                self.refuse_waiter(now, slot, Reason::RequestIdSpent, &mut effects);
                self.spend(now, key, Release::Withdrawn);
                Release::Withdrawn
            }
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    fn release_token(&mut self, now: Instant, token: FencingToken) -> Release {
        match self.fate(now, token) {
            Fate::Live(slot) => match self.end(now, slot, Fate::Released) {
                Fate::Revoked => Release::Revoked,
                _ => Release::Released,
            },
            Fate::Released => Release::AlreadyReleased,
            Fate::Expired => Release::Expired,
            Fate::Revoked => Release::Revoked,
            Fate::Forgotten => Release::Ended,
        }
    }

    /// A waiter's call is gone: it takes no permit, and whoever stood behind it may be next (R5). Its request id is free.
    /// Does nothing for an id that no longer waits.
    pub fn leave(&mut self, now: Instant, id: WaiterId) -> Step<()> {
        // Before anything else: what time has freed must not be granted to it.
        if let Some(slot) = self.queue.find(id) {
            self.drop_waiter(now, slot);
        }
        let effects = self.settle(now);
        self.step((), effects)
    }

    /// A waiter was granted and never heard of it: its lease counts as never granted, unless a repeat was answered with
    /// it meanwhile (R5).
    pub fn give_back(&mut self, now: Instant, token: FencingToken) -> Step<()> {
        let mut effects = self.settle(now);
        if let Fate::Live(slot) = self.fate(now, token)
            && !self.leases.get(slot).told
        {
            let lease = self.remove_lease(now, slot);
            self.ledger.erase(token);
            if let Some(key) = lease.claim.request {
                self.replay.free(key);
            }
        }
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
    }

    /// A waiter heard of its grant: from now on only a release or its end gives it back.
    pub fn confirm(&mut self, token: FencingToken) {
        if let Fate::Live(slot) = self.ledger.fate(token) {
            self.tell(slot);
        }
    }

    /// The server itself stood still: lease ends move by what is new in `stall`, waits do not (R6). Comes before any
    /// other call that follows the gap; does nothing when there is no new gap.
    pub fn forgive(&mut self, stall: Stall) {
        if stall.total > self.forgiven() {
            self.leases.forgive(stall);
            self.grants_resume = Some(stall.resumed + GRANT_PAUSE);
        }
    }

    /// All gaps forgiven so far.
    pub fn forgiven(&self) -> Duration {
        self.leases.forgiven()
    }

    /// Does what is due, in a bounded step: [`is_due`](Self::is_due) tells whether it needs another. Spurious calls are
    /// harmless.
    pub fn advance(&mut self, now: Instant) -> Step<()> {
        let effects = self.settle(now);
        self.step((), effects)
    }

    /// Gives back memory that a burst needed and that is not needed any more. What moves for it is bounded; what goes as a
    /// whole is answered.
    pub fn shrink(&mut self) -> Shed {
        self.ledger.shrink();
        self.replay.shrink();
        Shed { leases: self.leases.shrink(), waiters: self.queue.shrink(), partitions: self.partitions.shrink() }
    }

    /// When [`advance`](Self::advance) is next needed because somebody waits for it; `None` while nobody waits. May
    /// change after any call.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (wait_end, _) = self.queue.first_end()?;
        let turn = self.partitions.first_turn().map(|(at, _)| at);
        let revert = self.revert.map(|revert| revert.at);
        let others = self.leases.first_end().into_iter().chain(self.grants_resume).chain(turn).chain(revert);
        Some(others.fold(wait_end, Instant::min))
    }

    /// How it stands, as of the last call that was handed the time.
    pub fn status(&self) -> Status {
        let (limit, running, queued) = (self.limit, self.leases.running(), self.queued());
        Status { limit, running, queued, revert: self.revert, totals: self.totals }
    }

    /// Nobody runs and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.leases.len() == 0 && self.queue.len() == 0
    }

    /// The token of the latest grant, or the one it was made with.
    pub fn last_token(&self) -> FencingToken {
        self.ledger.last()
    }

    /// How much of what is capped for the whole server it may have.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// How much of that it has now.
    pub fn occupied(&self) -> Room {
        Room {
            leases: self.leases.len() + self.queue.len(),
            waiters: self.queue.len(),
            remembered: self.ledger.remembered() + self.replay.remembered(),
        }
    }

    /// The partition of a live lease; `Some(None)` is the bulkhead's own name.
    pub fn partition_of(&self, token: FencingToken) -> Option<Option<&str>> {
        match self.ledger.fate(token) {
            Fate::Live(slot) => Some(self.partitions.name(self.leases.get(slot).claim.partition)),
            _ => None,
        }
    }

    /// The same of the one that was granted to a request.
    pub fn partition_of_request(&self, key: RequestKey) -> Option<Option<&str>> {
        match self.replay.get(key)?.0 {
            Seen::Live(token) => self.partition_of(token),
            Seen::Waiting(_) | Seen::Spent(_) => None,
        }
    }

    #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED
    fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    fn step<T>(&mut self, answer: T, mut effects: Vec<Effect>) -> Step<T> {
        let news = self.partitions.take_news();
        if !news.is_empty() {
            effects.extend(news);
        }
        #[cfg(debug_assertions)]
        self.check_invariants();
        Step { answer, effects }
    }

    /// Panics where the parts contradict each other or a rule (see the crate's head).
    #[cfg(debug_assertions)]
    fn check_invariants(&self) {
        let sum: u64 = self.leases.iter().map(|(_, lease)| u64::from(lease.claim.permits)).sum();
        assert_eq!(u64::from(self.leases.running()), sum, "R16: running is the sum of the leases");
        let marked: u32 = self.leases.iter().map(|(_, lease)| lease.counted_by_rule()).sum();
        assert_eq!(self.leases.marked(), marked, "R12: the rule's running is the sum of the marked leases");
        for (slot, lease) in self.leases.iter() {
            assert_eq!(self.ledger.fate(lease.token), Fate::Live(slot));
        }
        self.queue.check_invariants();
        for (slot, partition) in self.partitions.iter() {
            let of = self.leases.iter().filter(|(_, lease)| lease.claim.partition == slot);
            let (running, marked) = of.fold((0, 0), |(running, marked), (_, lease)| {
                (running + lease.claim.permits, marked + lease.counted_by_rule())
            });
            let waiters = self.queue.of_partition(slot, false).len();
            assert_eq!(
                (partition.running, partition.marked, self.partitions.waiters(slot) as usize),
                (running, marked, waiters),
                "R11: a partition's account"
            );
            assert!(running > 0 || waiters > 0 || slot == crate::partition::OWN, "an empty partition stays");
            let is_held = self.queue.first_held(slot).is_some();
            assert!(!is_held || partition.cooldown.is_some(), "R10: held without a cause");
        }
        let fits = self.queue.first().is_some_and(|(_, first)| self.fits(first.claim.permits));
        assert!(!fits || self.grants_resume.is_some(), "R2: the first eligible waiter fits and was not granted");
        assert!((1..=self.settings.ceiling()).contains(&self.limit), "R1: the limit is within 1..=ceiling");
        let with_id = self.leases.iter().filter(|(_, lease)| lease.claim.request.is_some()).count();
        let active = self.replay.active();
        assert!((with_id..=with_id + self.queue.len()).contains(&active), "R8: ids lead to a waiter or a lease");
    }
}
