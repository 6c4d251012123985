//! A bulkhead: its limit, the leases under it and the queue before it, changed one call at a time.
//!
//! Each call first settles what time has done: waits that ended are refused, leases that fell due expire, and what that
//! freed goes to the queue. Then it does its own work, and whatever it freed goes to the queue as well. Check comes
//! before commit: a refusal leaves nothing taken.

mod acquire;

use std::time::Duration;

use crate::decision::{Effect, Grant, HeldLease, Invalid, Reason, Refusal, Release, Renewal, Status, Step, Totals};
use crate::id::{FencingToken, RequestKey, WaiterId};
use crate::lease::{Lease, Leases};
use crate::ledger::{Fate, Ledger};
use crate::queue::Queue;
use crate::replay::{Replay, Seen};
use crate::settings::Settings;
use crate::time::{Instant, Stall, slack};

/// The most ended waits, due leases and old memories that one call settles each before its own work.
const MOST_SETTLED: usize = 256;
/// After a stall no waiter is granted for this long: those that want to leave, or to renew, are read first.
const GRANT_PAUSE: Duration = Duration::from_millis(50);
/// The retry hint when no lease's end is in sight.
const BLIND_HINT: Duration = Duration::from_secs(1);

/// The guarded thing with its rule and its queue. `now` never goes back from one call to the next.
#[derive(Debug)]
pub struct Bulkhead {
    settings: Settings,
    limit: u32,
    leases: Leases,
    ledger: Ledger,
    queue: Queue,
    replay: Replay,
    /// No waiter is granted before.
    grants_resume: Option<Instant>,
    totals: Totals,
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
            grants_resume: None,
            totals: Totals::default(),
        }
    }

    /// Starts the ttl of a lease anew (R6). Answered `Renewed`, its permits are in the count.
    pub fn renew(&mut self, now: Instant, token: FencingToken) -> Step<Renewal> {
        let mut effects = self.settle(now);
        let answer = match self.fate(now, token) {
            Fate::Live(slot) => {
                self.leases.renew(now, slot);
                Renewal::Renewed { ttl: self.leases.get(slot).ttl, floor: self.ledger.floor() }
            }
            Fate::Released => Renewal::Released,
            Fate::Expired => Renewal::Expired,
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
                let withdrawn = self.queue.id(slot);
                self.queue.remove(slot);
                self.spend(now, key, Release::Withdrawn);
                self.totals.count_refused(Reason::RequestIdSpent);
                effects.push(Effect::Refused(withdrawn, self.refusal(now, Reason::RequestIdSpent)));
                Release::Withdrawn
            }
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    fn release_token(&mut self, now: Instant, token: FencingToken) -> Release {
        match self.fate(now, token) {
            Fate::Live(slot) => {
                self.end(now, slot, Fate::Released);
                Release::Released
            }
            Fate::Released => Release::AlreadyReleased,
            Fate::Expired => Release::Expired,
            Fate::Forgotten => Release::Ended,
        }
    }

    /// A waiter's call is gone: it takes no permit, and whoever stood behind it may be next (R5). Its request id is free.
    /// Does nothing for an id that no longer waits.
    pub fn leave(&mut self, now: Instant, id: WaiterId) -> Step<()> {
        // Before anything else: what time has freed must not be granted to it.
        if let Some(slot) = self.queue.find(id) {
            self.drop_waiter(slot);
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
            let lease = self.leases.remove(slot);
            self.ledger.erase(token);
            if let Some(key) = lease.request {
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

    /// Moves the limit in force, 1 to the ceiling, at once (R4). Lowering cancels nobody; raising grants as many waiters
    /// as now fit.
    pub fn set_limit(&mut self, now: Instant, limit: u32) -> Step<Result<(), Invalid>> {
        let mut effects = self.settle(now);
        let ceiling = self.settings.ceiling();
        let answer = if (1..=ceiling).contains(&limit) {
            self.limit = limit;
            self.queue.set_limit(limit);
            Ok(())
        } else {
            Err(Invalid { field: "limit", allowed: format!("1 to {ceiling}, not {limit}") })
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    /// Replaces the settings (R4). A changed start limit moves the limit in force; a lower ceiling lowers it too, and
    /// waiters that ask for more than the new ceiling are refused. Waits begun keep their ends and their places.
    pub fn configure(&mut self, now: Instant, settings: Settings) -> Step<()> {
        let mut effects = self.settle(now);
        let wanted = if settings.limit() == self.settings.limit() { self.limit } else { settings.limit() };
        self.limit = wanted.min(settings.ceiling());
        self.settings = settings;
        self.queue.set_limit(self.limit);
        while let Some(slot) = self.queue.any_above(self.settings.ceiling()) {
            self.refuse_waiter(now, slot, Reason::PermitsExceedCeiling, &mut effects);
        }
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
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

    /// Does what is due. Spurious calls are harmless.
    pub fn advance(&mut self, now: Instant) -> Step<()> {
        let effects = self.settle(now);
        self.step((), effects)
    }

    /// When [`advance`](Self::advance) is next needed because somebody waits for it; `None` while nobody waits. May
    /// change after any call.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (wait_end, _) = self.queue.first_end()?;
        let others = self.leases.first_end().into_iter().chain(self.grants_resume);
        Some(others.fold(wait_end, Instant::min))
    }

    /// How it stands, as of the last call that was handed the time.
    pub fn status(&self) -> Status {
        Status { limit: self.limit, running: self.leases.running(), queued: self.queued(), totals: self.totals }
    }

    /// The token of the latest grant, or the one it was made with.
    pub fn last_token(&self) -> FencingToken {
        self.ledger.last()
    }

    /// What was decided about it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The live leases with tokens from `from` on, in grant order.
    pub fn leases_from(&self, from: FencingToken) -> impl Iterator<Item = HeldLease<'_>> {
        self.ledger.live_from(from).map(|(_, slot)| self.leases.held(slot))
    }

    /// What time has done: ends of waits first, so that nobody is granted past the end of its wait.
    fn settle(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.grants_resume.is_some_and(|at| at <= now) {
            self.grants_resume = None;
        }
        for _ in 0..MOST_SETTLED {
            match self.queue.first_end() {
                Some((end, slot)) if end <= now => self.refuse_waiter(now, slot, Reason::WaitTimeout, &mut effects),
                _ => break,
            }
        }
        for _ in 0..MOST_SETTLED {
            match self.leases.first_due(now) {
                Some(slot) => self.end(now, slot, Fate::Expired),
                None => break,
            }
        }
        self.ledger.forget(now, MOST_SETTLED);
        self.replay.forget(now, MOST_SETTLED);
        self.grant_waiters(now, &mut effects);
        effects
    }

    /// Grants the first eligible waiter while it fits; behind one that does not, nobody (R2).
    fn grant_waiters(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.grants_resume.is_some() {
            return;
        }
        while self.fits(1)
            && let Some((slot, first)) = self.queue.first()
            && self.fits(first.permits)
        {
            if self.queue.end(slot) <= now {
                self.refuse_waiter(now, slot, Reason::WaitTimeout, effects);
                continue;
            }
            let id = self.queue.id(slot);
            let waiter = self.queue.remove(slot);
            let grant = self.grant(Lease {
                token: FencingToken::default(),
                permits: waiter.permits,
                ttl: waiter.ttl,
                granted_at: now,
                request: waiter.request,
                partition: waiter.partition,
                holder: waiter.holder,
                told: false,
            });
            if let Some(key) = waiter.request {
                self.replay.grant(key, grant.token);
            }
            effects.push(Effect::Granted(id, grant));
        }
    }

    /// The grant rule (R1).
    fn fits(&self, permits: u32) -> bool {
        self.limit.checked_sub(self.leases.running()).is_some_and(|free| permits <= free)
    }

    /// Starts a lease, under the next token.
    fn grant(&mut self, mut lease: Lease) -> Grant {
        lease.token = self.ledger.grant(self.leases.vacant());
        let Lease { token, permits, ttl, granted_at, .. } = lease;
        self.leases.insert(granted_at, lease);
        Grant { token, floor: self.ledger.floor(), permits, ttl, granted_at, replayed: false }
    }

    /// What became of a token by now: one that is due has expired, also when there were too many to settle at once.
    fn fate(&mut self, now: Instant, token: FencingToken) -> Fate {
        match self.ledger.fate(token) {
            Fate::Live(slot) if self.leases.is_due(now, slot) => {
                self.end(now, slot, Fate::Expired);
                Fate::Expired
            }
            fate => fate,
        }
    }

    /// A lease ends; its permits are free.
    fn end(&mut self, now: Instant, slot: u32, fate: Fate) {
        self.tell(slot);
        let lease = self.leases.remove(slot);
        self.totals.forgotten += self.ledger.end(now, lease.token, fate, self.settings.max_remembered());
        let answer = if fate == Fate::Expired { Release::Expired } else { Release::AlreadyReleased };
        if fate == Fate::Expired {
            self.totals.expired += 1;
        }
        if let Some(key) = lease.request {
            self.spend(now, key, answer);
        }
    }

    fn spend(&mut self, now: Instant, key: RequestKey, answer: Release) {
        let longest = self.settings.max_lease_ttl();
        let keep = longest + slack(longest);
        self.totals.forgotten += self.replay.spend(now, key, answer, keep, self.settings.max_remembered());
    }

    fn tell(&mut self, slot: u32) {
        let told = std::mem::replace(&mut self.leases.get_mut(slot).told, true);
        self.totals.granted += u64::from(!told);
    }

    fn drop_waiter(&mut self, slot: u32) {
        let waiter = self.queue.remove(slot);
        if let Some(key) = waiter.request {
            self.replay.free(key);
        }
    }

    fn refuse_waiter(&mut self, now: Instant, slot: u32, reason: Reason, effects: &mut Vec<Effect>) {
        let id = self.queue.id(slot);
        self.drop_waiter(slot);
        self.totals.count_refused(reason);
        effects.push(Effect::Refused(id, self.refusal(now, reason)));
    }

    fn refusal(&self, now: Instant, reason: Reason) -> Refusal {
        let hint = match reason {
            Reason::ConcurrencyCapacityExhausted | Reason::QueueFull | Reason::WaitTimeout => {
                let free = self.leases.first_end().map_or(BLIND_HINT, |end| end.since(now));
                Some(self.settings.clamp_hint(free))
            }
            _ => None,
        };
        let Status { limit, running, queued, .. } = self.status();
        Refusal { reason, limit, running, queued, hint, invalid: None }
    }

    #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED
    fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    fn step<T>(&self, answer: T, effects: Vec<Effect>) -> Step<T> {
        #[cfg(debug_assertions)]
        self.check_invariants();
        Step { answer, effects }
    }

    /// Panics where the parts contradict each other or a rule (see the crate's head).
    #[cfg(debug_assertions)]
    fn check_invariants(&self) {
        let sum: u64 = self.leases.iter().map(|(_, lease)| u64::from(lease.permits)).sum();
        assert_eq!(u64::from(self.leases.running()), sum, "R16: running is the sum of the leases");
        for (slot, lease) in self.leases.iter() {
            assert_eq!(self.ledger.fate(lease.token), Fate::Live(slot));
        }
        self.queue.check_invariants();
        let fits = self.queue.first().is_some_and(|(_, first)| self.fits(first.permits));
        assert!(!fits || self.grants_resume.is_some(), "R2: the first eligible waiter fits and was not granted");
        assert!((1..=self.settings.ceiling()).contains(&self.limit), "R1: the limit is within 1..=ceiling");
        let with_id = self.leases.iter().filter(|(_, lease)| lease.request.is_some()).count();
        let active = self.replay.active();
        assert!((with_id..=with_id + self.queue.len()).contains(&active), "R8: ids lead to a waiter or a lease");
    }
}
