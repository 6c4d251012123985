//! What operators do to a bulkhead and see of it (R4, R7, R12).

use std::time::Duration;

use super::Bulkhead;
use crate::decision::{Effect, HeldLease, Invalid, Place, QueuedWaiter, Reason, Revert, Revoked, Step};
use crate::id::FencingToken;
use crate::lease::{Claim, Lease};
use crate::ledger::Fate;
use crate::queue::Waiter;
use crate::settings::{Mode, Settings};
use crate::time::Instant;

impl Bulkhead {
    /// Moves the limit in force, 1 to the ceiling, at once (R4). Lowering cancels nobody; raising grants as many waiters
    /// as now fit. With `revert_after` it goes back after that time to what it was before the first change that is still
    /// to be reverted; without, no revert is pending any more.
    pub fn set_limit(&mut self, now: Instant, limit: u32, revert_after: Option<Duration>) -> Step<Result<(), Invalid>> {
        let mut effects = self.settle(now);
        let ceiling = self.settings.ceiling();
        let answer = if (1..=ceiling).contains(&limit) {
            let before = self.revert.map_or(self.limit, |revert| revert.limit);
            self.revert = revert_after.map(|after| Revert { at: now + after, limit: before });
            self.move_limit(now, limit);
            Ok(())
        } else {
            Err(Invalid { field: "limit", allowed: format!("1 to {ceiling}, its ceiling, not {limit}") })
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    pub(super) fn move_limit(&mut self, now: Instant, limit: u32) {
        // A ramp that was over under the old limit does not come back with the new one.
        for partition in self.partitions.troubled() {
            self.refresh(now, partition);
        }
        self.limit = limit;
        self.queue.set_limit(limit, |partition| self.partitions.get(partition).cooldown.is_some());
        // How long a ramp lasts depends on the limit.
        for partition in self.partitions.troubled() {
            self.refresh(now, partition);
        }
    }

    /// Replaces the settings (R4). With `moves_limit` the limit in force becomes their start limit, for good. A lower
    /// ceiling lowers it in any case, and waiters that ask for more than the new ceiling are refused. Waits begun keep their
    /// ends and their places.
    pub fn configure(&mut self, now: Instant, settings: Settings, moves_limit: bool) -> Step<()> {
        let mut effects = self.settle(now);
        let mut wanted = self.limit;
        if moves_limit {
            wanted = settings.limit();
            self.revert = None;
        }
        if settings.mode() != self.settings.mode() {
            self.mode_detail = Box::default();
        }
        self.settings = settings;
        self.move_limit(now, wanted.min(self.settings.ceiling()));
        while let Some(slot) = self.queue.any_above(self.settings.ceiling()) {
            self.refuse_waiter(now, slot, Reason::PermitsExceedCeiling, &mut effects);
        }
        self.empty_queue(now, &mut effects);
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
    }

    /// Changes the mode (R12), for a reason that the refused are told. Leases run on.
    pub fn set_mode(&mut self, now: Instant, mode: Mode, detail: &str) -> Step<()> {
        let mut effects = self.settle(now);
        self.settings = self.settings.clone().with_mode(mode);
        self.mode_detail = detail.into();
        self.empty_queue(now, &mut effects);
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
    }

    /// The server is stopping: waiters are refused, and so is everybody new, from now on. Leases run on.
    pub fn drain(&mut self, now: Instant) -> Step<()> {
        let mut effects = self.settle(now);
        self.draining = true;
        self.empty_queue(now, &mut effects);
        self.step((), effects)
    }

    /// In some modes nobody waits.
    fn empty_queue(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let reason = match self.settings.mode() {
            _ if self.draining => Some(Reason::Draining),
            Mode::Closed => Some(Reason::BulkheadClosed),
            // The rule let them wait, and is played without a queue from now on.
            Mode::Shadow => None,
            Mode::Enforcing | Mode::Paused => return,
        };
        for slot in self.queue.after(None, usize::MAX) {
            match reason {
                Some(reason) => self.refuse_waiter(now, slot, reason, effects),
                None if self.is_countable(self.queue.get(slot).claim.permits) => {
                    self.grant_waiter(now, slot, false, effects);
                }
                None => self.refuse_waiter(now, slot, Reason::ServerCapReached, effects),
            }
        }
    }

    /// Takes a lease back (R7): it is not renewed any more, and its permits are free at its release or its end, or with
    /// `immediate` now. Answers what the shell needs to tell its holder; `None`: no such lease is live. Again on the same
    /// one it changes nothing but, with `immediate`, its end.
    pub fn revoke(&mut self, now: Instant, token: FencingToken, immediate: bool) -> Step<Option<Revoked>> {
        let mut effects = self.settle(now);
        let answer = match self.fate(now, token) {
            Fate::Live(slot) => {
                let lease = self.leases.get_mut(slot);
                self.totals.revoked += u64::from(!std::mem::replace(&mut lease.revoked, true));
                let Lease { claim: Claim { permits, ttl, request, .. }, stream, .. } = *lease;
                if immediate {
                    self.end(now, slot, Fate::Revoked);
                }
                Some(Revoked { permits, ttl, request, stream })
            }
            _ => None,
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    /// What was decided about it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Why it is in its mode, as an operator told; may be empty.
    pub fn mode_detail(&self) -> &str {
        &self.mode_detail
    }

    /// The live leases with tokens from `from` on, in grant order.
    pub fn leases_from(&self, from: FencingToken) -> impl Iterator<Item = HeldLease<'_>> {
        self.ledger.live_from(from).map(|(token, slot)| {
            let Lease { granted_at, claim: Claim { permits, partition, holder, .. }, revoked, .. } =
                self.leases.get(slot);
            let (permits, granted_at, end) = (*permits, *granted_at, self.leases.end(slot));
            let partition = self.partitions.name(*partition);
            HeldLease { token, permits, partition, holder, granted_at, end, revoked: *revoked }
        })
    }

    /// The first `most` waiters after a place, in order (R2). Looks at every waiter.
    pub fn waiters_after(&self, place: Option<Place>, most: usize) -> impl Iterator<Item = QueuedWaiter<'_>> {
        self.queue.after(place, most).into_iter().map(|slot| {
            let Waiter { order, priority, claim: Claim { permits, partition, holder, .. }, since, .. } =
                self.queue.get(slot);
            QueuedWaiter {
                place: order.place(),
                permits: *permits,
                priority: *priority,
                partition: self.partitions.name(*partition),
                holder,
                since: *since,
                end: self.queue.end(slot),
                passed_over: self.queue.is_passed_over(slot),
            }
        })
    }
}
