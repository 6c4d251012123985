//! What time does, and what freed permits do: the inner moves that all verbs share.

use std::time::Duration;

use super::Bulkhead;
use crate::decision::{Effect, Grant, Reason, Refusal, Release, Revert, Status};
use crate::id::{FencingToken, RequestKey};
use crate::lease::{Claim, Lease};
use crate::ledger::Fate;
use crate::settings::Mode;
use crate::time::{Instant, slack};

/// The most ended waits, due leases, changed partitions and old memories that one call settles each before its own work.
const MOST_SETTLED: usize = 256;
/// The retry hint when nothing better is known.
const BLIND_HINT: Duration = Duration::from_secs(1);

impl Bulkhead {
    /// What time has done: ends of waits first, so that nobody is granted past the end of its wait.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Effect> {
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
                Some(slot) => drop(self.end(now, slot, Fate::Expired)),
                None => break,
            }
        }
        if let Some(Revert { at, limit }) = self.revert
            && at <= now
        {
            let before = self.limit;
            self.revert = None;
            self.move_limit(now, limit.min(self.settings.ceiling()));
            effects.push(Effect::Reverted { before, after: self.limit });
        }
        for _ in 0..MOST_SETTLED {
            match self.partitions.first_turn() {
                Some((at, slot)) if at <= now => self.refresh(now, slot),
                _ => break,
            }
        }
        self.ledger.forget(now, MOST_SETTLED);
        self.replay.forget(now, MOST_SETTLED);
        self.grant_waiters(now, &mut effects);
        effects
    }

    /// Whether something is due: time did more than one call settles, or nobody has come by since.
    pub fn is_due(&self, now: Instant) -> bool {
        self.queue.first_end().is_some_and(|(end, _)| end <= now)
            || self.leases.first_due(now).is_some()
            || self.partitions.first_turn().is_some_and(|(at, _)| at <= now)
            || self.ledger.forgets(now)
            || self.replay.forgets(now)
    }

    /// Grants the first eligible waiter while it fits; behind one that does not, nobody (R2).
    pub(super) fn grant_waiters(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.grants_resume.is_some() {
            return;
        }
        while self.fits(1)
            && let Some((slot, first)) = self.queue.first()
            && self.fits(first.claim.permits)
        {
            self.grant_waiter(now, slot, true, effects);
        }
    }

    /// Grants a waiter, unless its wait has ended.
    pub(super) fn grant_waiter(&mut self, now: Instant, slot: u32, marked: bool, effects: &mut Vec<Effect>) {
        if self.queue.end(slot) <= now {
            return self.refuse_waiter(now, slot, Reason::WaitTimeout, effects);
        }
        let id = self.queue.id(slot);
        let claim = self.queue.remove(slot).claim;
        let (request, partition) = (claim.request, claim.partition);
        let grant = self.grant(now, claim, false, marked);
        self.partitions.remove_waiter(partition);
        self.touch(now, partition);
        if let Some(key) = request {
            self.replay.grant(key, grant.token);
        }
        effects.push(Effect::Granted(id, grant));
    }

    /// The grant rule (R1) where it is in force, and where it is played (R12).
    pub(super) fn fits(&self, permits: u32) -> bool {
        let running = match self.settings.mode() {
            Mode::Enforcing => self.leases.running(),
            Mode::Shadow => self.leases.marked(),
            Mode::Paused | Mode::Closed => return false,
        };
        self.limit.checked_sub(running).is_some_and(|free| permits <= free)
    }

    /// Whether so many permits more can be counted: where the rule is only played, no limit bounds them.
    pub(super) fn is_countable(&self, permits: u32) -> bool {
        self.leases.running().checked_add(permits).is_some()
    }

    /// Starts a lease, under the next token.
    pub(super) fn grant(&mut self, now: Instant, claim: Claim, told: bool, marked: bool) -> Grant {
        let Claim { permits, ttl, partition, .. } = claim;
        let token = self.ledger.grant(self.leases.vacant());
        let lease = Lease { token, granted_at: now, claim, told, marked, revoked: false, stream: None };
        let account = self.partitions.get_mut(partition);
        account.running += permits;
        account.marked += lease.counted_by_rule();
        self.leases.insert(now, lease);
        Grant { token, floor: self.ledger.floor(), permits, ttl, granted_at: now, replayed: false }
    }

    /// What became of a token by now: one that is due has expired, also when there were too many to settle at once.
    pub(super) fn fate(&mut self, now: Instant, token: FencingToken) -> Fate {
        match self.ledger.fate(token) {
            Fate::Live(slot) if self.leases.is_due(now, slot) => self.end(now, slot, Fate::Expired),
            fate => fate,
        }
    }

    /// A lease ends; its permits are free. Answers what became of it: of a revoked one always that.
    pub(super) fn end(&mut self, now: Instant, slot: u32, fate: Fate) -> Fate {
        self.tell(slot);
        let Lease { token, claim, revoked, granted_at, .. } = self.remove_lease(now, slot);
        let fate = if revoked { Fate::Revoked } else { fate };
        self.rate.count(now.since(granted_at), claim.permits);
        self.totals.forgotten += self.ledger.end(now, token, fate, self.memory_beside(self.replay.remembered()));
        let answer = match fate {
            Fate::Expired => Release::Expired,
            Fate::Revoked => Release::Revoked,
            _ => Release::AlreadyReleased,
        };
        self.totals.expired += u64::from(fate == Fate::Expired);
        if let Some(key) = claim.request {
            self.spend(now, key, answer);
        }
        fate
    }

    pub(super) fn remove_lease(&mut self, now: Instant, slot: u32) -> Lease {
        let lease = self.leases.remove(slot);
        let Claim { permits, partition, .. } = lease.claim;
        let account = self.partitions.get_mut(partition);
        account.running -= permits;
        account.marked -= lease.counted_by_rule();
        self.touch(now, partition);
        lease
    }

    pub(super) fn spend(&mut self, now: Instant, key: RequestKey, answer: Release) {
        let longest = self.settings.max_lease_ttl();
        let keep = longest + slack(longest);
        let most = self.memory_beside(self.ledger.remembered());
        self.totals.forgotten += self.replay.spend(now, key, answer, keep, most);
    }

    /// How much one kind may remember beside so much of the other; each has half the room in any case.
    fn memory_beside(&self, other: usize) -> usize {
        self.room.remembered.saturating_sub(other).max(self.room.remembered / 2)
    }

    /// Its holder knows of it: it counts as granted from now on.
    pub(super) fn tell(&mut self, slot: u32) {
        let told = std::mem::replace(&mut self.leases.get_mut(slot).told, true);
        self.totals.granted += u64::from(!told);
    }

    /// A waiter goes without an answer of its own; its request id is free.
    pub(super) fn drop_waiter(&mut self, now: Instant, slot: u32) -> Claim {
        let claim = self.queue.remove(slot).claim;
        self.partitions.remove_waiter(claim.partition);
        self.touch(now, claim.partition);
        if let Some(key) = claim.request {
            self.replay.free(key);
        }
        claim
    }

    pub(super) fn refuse_waiter(&mut self, now: Instant, slot: u32, reason: Reason, effects: &mut Vec<Effect>) {
        let id = self.queue.id(slot);
        let permits = self.drop_waiter(now, slot).permits;
        self.totals.count_refused(reason);
        effects.push(Effect::Refused(id, self.refusal(now, reason, permits)));
    }

    /// A refusal with the numbers of now, for one that asked for so many permits.
    pub(super) fn refusal(&self, now: Instant, reason: Reason, asked: u32) -> Refusal {
        let permits = match reason {
            Reason::ConcurrencyCapacityExhausted | Reason::WaitTimeout | Reason::Displaced => {
                Some(self.queue.asked() + u64::from(asked))
            }
            Reason::QueueFull => Some(1),
            _ => None,
        };
        let hint = match permits {
            Some(permits) => {
                let first_end = |leases: &crate::lease::Leases| leases.first_end().map(|end| end.since(now));
                let measured = self.rate.time_for(permits, self.leases.running(), self.leases.age(now));
                let hint = measured.or_else(|| first_end(&self.leases)).unwrap_or(BLIND_HINT);
                Some(self.settings.clamp_hint(hint))
            }
            None if matches!(reason, Reason::ServerCapReached | Reason::Draining) => {
                Some(self.settings.clamp_hint(BLIND_HINT))
            }
            None => None,
        };
        let Status { limit, running, queued, .. } = self.status();
        // Where nobody is let in, people are told why.
        let is_told = match self.settings.mode() {
            Mode::Paused => permits.is_some(),
            Mode::Enforcing | Mode::Shadow | Mode::Closed => reason == Reason::BulkheadClosed,
        };
        let detail = is_told.then(|| self.mode_detail.clone());
        Refusal { reason, limit, running, queued, ramp: None, hint, invalid: None, detail }
    }
}
