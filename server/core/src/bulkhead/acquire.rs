//! Acquire: the rules by which a request is granted, queued or refused (R1 to R3, R8 to R11).

use super::Bulkhead;
use crate::cooldown::Phase;
use crate::decision::{Acquire, Decision, Effect, Grant, Invalid, OnCooldown, Reason, Refusal, Release, Step};
use crate::lease::{Claim, Lease};
use crate::ledger::Fate;
use crate::queue::{Newcomer, Order};
use crate::replay::Seen;
use crate::settings::{MIN_LEASE_TTL, Mode, span};
use crate::time::Instant;

/// How a newcomer stands.
struct Standing {
    order: Order,
    /// Where its partition stands.
    phase: Phase,
    /// The ramp of its partition has no room for it now.
    held_by_ramp: bool,
}

impl Bulkhead {
    /// Asks for permits: granted if they fit and no eligible waiter comes before, else queued or refused (R1 to R3, R8 to
    /// R11). A [`Decision::Queued`] is answered later by an [`Effect`] of some call.
    pub fn acquire(&mut self, now: Instant, ask: Acquire) -> Step<Decision> {
        let mut effects = self.settle(now);
        let seen = ask.request.and_then(|key| self.replay.get(key));
        let answer = match seen {
            Some((seen, fingerprint)) => self.repeat(now, &ask, seen, fingerprint, &mut effects),
            None => match self.gate(now).and_then(|()| self.check(now, &ask)) {
                Ok(()) => self.decide(now, ask, &mut effects),
                Err(refusal) => Decision::Refused(refusal),
            },
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    /// Whether anybody new is let in at all (R12).
    fn gate(&mut self, now: Instant) -> Result<(), Refusal> {
        match self.settings.mode() {
            _ if self.draining => Err(self.refuse(now, Reason::Draining, 0)),
            Mode::Closed => Err(self.refuse(now, Reason::BulkheadClosed, 0)),
            Mode::Enforcing | Mode::Shadow | Mode::Paused => Ok(()),
        }
    }

    /// What is wrong with the request in itself.
    fn check(&mut self, now: Instant, ask: &Acquire) -> Result<(), Refusal> {
        let ceiling = self.settings.ceiling();
        if !(1..=ceiling).contains(&ask.permits) {
            let allowed = format!("1 to {ceiling}, the ceiling of the bulkhead, not {}", ask.permits);
            return Err(self.invalid(now, Reason::PermitsExceedCeiling, Invalid { field: "permits", allowed }));
        }
        if let Some(ttl) = ask.ttl
            && let Err(invalid) = span("lease_ttl", ttl, MIN_LEASE_TTL, self.settings.max_lease_ttl())
        {
            return Err(self.invalid(now, Reason::InvalidField, invalid));
        }
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(self.hold_back(now, Reason::WaitTimeout, ask.permits));
        }
        Ok(())
    }

    fn decide(&mut self, now: Instant, ask: Acquire, effects: &mut Vec<Effect>) -> Decision {
        // Forgets a ramp that is over and that nobody looked at since, as all its waiters ask for more than the limit: a
        // partition is held as a whole or not at all.
        if let Some(slot) = self.partitions.find(ask.partition.as_deref()) {
            self.touch(now, slot);
        }
        let standing = self.standing(now, &ask);
        let is_first = self.queue.first().is_none_or(|(_, first)| standing.order < first.order);
        let could_run = is_first && !standing.held_by_ramp && self.fits(ask.permits);
        let is_granted = could_run && !matches!(standing.phase, Phase::Cooling(_));
        let is_shadow = self.settings.mode() == Mode::Shadow;
        if is_granted || is_shadow {
            if self.leases.len() + self.queue.len() >= self.room.leases || !self.is_countable(ask.permits) {
                return Decision::Refused(self.hold_back(now, Reason::ServerCapReached, 0));
            }
            if !is_granted {
                self.forecast(now, &ask, &standing);
            }
            let request = ask.request;
            let fingerprint = ask.fingerprint;
            let claim = self.claim(ask);
            let grant = self.grant(now, claim, true, is_granted);
            self.totals.granted += 1;
            if let Some(key) = request {
                self.replay.insert(key, Seen::Live(grant.token), fingerprint);
            }
            return Decision::Granted(grant);
        }
        match self.place(now, &ask, &standing, could_run, effects) {
            Ok(end) => Decision::Queued(self.enqueue(now, ask, &standing, end)),
            Err(refusal) => Decision::Refused(refusal),
        }
    }

    /// Counts what the rule, played without a queue, would do with a request that it would not grant now (R12).
    fn forecast(&mut self, now: Instant, ask: &Acquire, standing: &Standing) {
        let would_wait = self.wait_end(now, ask).is_ok_and(|end| match standing.phase {
            Phase::Cooling(cooldown) => ask.on_cooldown == OnCooldown::Wait && cooldown < end,
            Phase::Ramp { .. } | Phase::Calm => true,
        });
        if would_wait {
            self.totals.would_wait += 1;
        } else {
            self.totals.would_refuse += 1;
        }
    }

    fn standing(&self, now: Instant, ask: &Acquire) -> Standing {
        let order = self.queue.order(now, ask.priority, self.settings.aging_step());
        let known = self.partitions.find(ask.partition.as_deref());
        let running = known.map_or(0, |slot| match self.settings.mode() {
            Mode::Shadow => self.partitions.get(slot).marked,
            _ => self.partitions.get(slot).running,
        });
        let here = known.and_then(|slot| self.partitions.get(slot).cooldown);
        let phase = match here.max(ask.cooldown) {
            Some(end) => Phase::at(now, end, self.settings.ramp_step(), self.limit),
            None => Phase::Calm,
        };
        let is_behind = known.is_some_and(|slot| self.queue.first_held(slot).is_some());
        let ramps = matches!(phase, Phase::Ramp { .. });
        let held_by_ramp = ramps && (is_behind || phase.holds(running, ask.permits));
        Standing { order, phase, held_by_ramp }
    }

    /// Until when a newcomer may wait, or why not at all: the bulkhead answers first, but only to refuse, then the
    /// cooldown (R9, R10). Pushes out the last waiter if that makes the room.
    fn place(
        &mut self,
        now: Instant,
        ask: &Acquire,
        standing: &Standing,
        could_run: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Instant, Refusal> {
        let end = self.wait_end(now, ask);
        let is_full = self.queue.len() >= self.settings.max_queued() as usize;
        let displaced = if is_full { self.displaceable(ask) } else { None };
        if !could_run {
            if let Err(reason) = end {
                return Err(self.held_back(now, reason, standing, ask));
            }
            if is_full && displaced.is_none() {
                return Err(self.held_back(now, Reason::QueueFull, standing, ask));
            }
        }
        if let Phase::Cooling(cooldown) = standing.phase {
            let reason = match ask.on_cooldown {
                OnCooldown::Refuse => Some(refused_by(cooldown, ask.deadline)),
                OnCooldown::Wait if end.is_ok_and(|end| cooldown < end) => None,
                OnCooldown::Wait => Some(Reason::CooldownExceedsDeadline),
            };
            if let Some(reason) = reason {
                return Err(self.held_back(now, reason, standing, ask));
            }
        }
        let half = self.settings.max_queued().div_ceil(2) as usize;
        let crowds = standing.phase != Phase::Calm && self.queue.held() >= half;
        if crowds || (is_full && displaced.is_none()) {
            return Err(self.held_back(now, Reason::QueueFull, standing, ask));
        }
        // Each waiter has the room of a lease as well, so that its grant cannot meet the cap.
        let is_capped =
            self.queue.len() >= self.room.waiters || self.leases.len() + self.queue.len() >= self.room.leases;
        if ask.crowded || (displaced.is_none() && is_capped) {
            return Err(self.held_back(now, Reason::ServerCapReached, standing, ask));
        }
        if let Some(last) = displaced {
            self.refuse_waiter(now, last, Reason::Displaced, effects);
        }
        end.map_err(|reason| self.hold_back(now, reason, ask.permits))
    }

    /// The last waiter in order, if a newcomer may push it out (R3).
    fn displaceable(&self, ask: &Acquire) -> Option<u32> {
        let last = self.queue.last().filter(|_| self.settings.displace())?;
        (self.queue.get(last).priority > ask.priority).then_some(last)
    }

    fn enqueue(&mut self, now: Instant, ask: Acquire, standing: &Standing, end: Instant) -> crate::id::WaiterId {
        let Acquire { priority, request, fingerprint, deadline, on_cooldown, cooldown, .. } = ask;
        let held = standing.phase != Phase::Calm;
        let claim = self.claim(ask);
        let partition = claim.partition;
        let waits_for_cooldown = on_cooldown == OnCooldown::Wait;
        let newcomer =
            Newcomer { order: standing.order, end, priority, claim, waits_for_cooldown, deadline, since: now, held };
        let id = self.queue.push(newcomer);
        self.partitions.add_waiter(partition);
        if held {
            let account = self.partitions.get_mut(partition);
            let was_calm = account.cooldown.is_none();
            account.cooldown = account.cooldown.max(cooldown);
            if was_calm && self.partitions.waiters(partition) > 1 {
                // Those that came while it was calm know of the trouble from now on: a partition is held as a whole.
                for waiter in self.queue.of_partition(partition, false) {
                    self.queue.hold(waiter);
                }
            }
            self.refresh(now, partition);
        }
        if let Some(key) = request {
            self.replay.insert(key, Seen::Waiting(id.slot), fingerprint);
        }
        self.totals.waited += 1;
        self.totals.held_back += 1;
        id
    }

    /// What is asked for, with a slot for its partition. Give it a lease or a place.
    fn claim(&mut self, ask: Acquire) -> Claim {
        let Acquire { permits, ttl, request, partition, holder, .. } = ask;
        // Checked before: in whole milliseconds it is in its range as well.
        let ttl = ttl.map_or(self.settings.lease_ttl(), crate::settings::whole_millis);
        Claim { permits, ttl, request, partition: self.partitions.enter(partition), holder }
    }

    /// Until when that call may wait, or why not at all (R3).
    fn wait_end(&self, now: Instant, ask: &Acquire) -> Result<Instant, Reason> {
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Reason::WaitTimeout);
        }
        let longest = self.settings.max_wait();
        let max_wait = ask.max_wait.map_or(longest, |asked| asked.min(longest));
        if max_wait.is_zero() || self.settings.max_queued() == 0 {
            return Err(Reason::ConcurrencyCapacityExhausted);
        }
        let bounds = ask.answer_by.into_iter().chain(ask.deadline);
        let end = bounds.fold(now + max_wait, Instant::min);
        if end <= now { Err(Reason::WaitTimeout) } else { Ok(end) }
    }

    /// The request id was seen before (R8).
    fn repeat(
        &mut self,
        now: Instant,
        ask: &Acquire,
        seen: Seen,
        fingerprint: u64,
        effects: &mut Vec<Effect>,
    ) -> Decision {
        // One that is due has ended, also when there were too many to settle at once.
        let seen = match seen {
            Seen::Live(token) if !matches!(self.fate(now, token), Fate::Live(_)) => Seen::Spent(Release::Expired),
            seen => seen,
        };
        match seen {
            Seen::Spent(_) => Decision::Refused(self.refuse(now, Reason::RequestIdSpent, 0)),
            _ if fingerprint != ask.fingerprint => {
                let allowed = "new: its first request had other permits, partition or lease_ttl".into();
                let invalid = Invalid { field: "request_id", allowed };
                Decision::Refused(self.invalid(now, Reason::RequestIdReused, invalid))
            }
            Seen::Live(token) => match self.fate(now, token) {
                Fate::Live(slot) if !self.leases.get(slot).revoked => {
                    self.leases.renew(now, slot, None);
                    self.tell(slot);
                    let Lease { granted_at, claim: Claim { permits, ttl, .. }, .. } = *self.leases.get(slot);
                    let floor = self.ledger.floor();
                    Decision::Granted(Grant { token, floor, permits, ttl, granted_at, replayed: true })
                }
                _ => Decision::Refused(self.refuse(now, Reason::RequestIdSpent, 0)),
            },
            Seen::Waiting(slot) => {
                let superseded = self.queue.id(slot);
                effects.push(Effect::Refused(superseded, self.refuse(now, Reason::Superseded, 0)));
                match self.takes_over(now, ask, slot) {
                    Ok(end) => Decision::Queued(self.queue.take_over(slot, end, ask.deadline)),
                    Err(reason) => {
                        let cooldown = self.partitions.get(self.queue.get(slot).claim.partition).cooldown;
                        self.drop_waiter(now, slot);
                        let mut refusal = self.refuse(now, reason, ask.permits);
                        if reason == Reason::CooldownExceedsDeadline {
                            refusal.hint = cooldown.map(|end| end.since(now));
                        }
                        Decision::Refused(refusal)
                    }
                }
            }
        }
    }

    /// Until when a repeat may wait in the place it takes over, judged again by its cooldown.
    fn takes_over(&self, now: Instant, ask: &Acquire, slot: u32) -> Result<Instant, Reason> {
        let end = self.wait_end(now, ask)?.min(self.queue.end(slot));
        match self.partitions.get(self.queue.get(slot).claim.partition).cooldown {
            Some(cooldown) if now < cooldown && end <= cooldown => Err(Reason::CooldownExceedsDeadline),
            _ => Ok(end),
        }
    }

    /// Refuses a newcomer for want of room, and tells what its partition has to do with it.
    fn held_back(&mut self, now: Instant, reason: Reason, standing: &Standing, ask: &Acquire) -> Refusal {
        let mut refusal = self.hold_back(now, reason, ask.permits);
        match standing.phase {
            Phase::Cooling(end) if matches!(reason, Reason::CooldownActive | Reason::CooldownExceedsDeadline) => {
                refusal.hint = Some(end.since(now));
            }
            Phase::Ramp { permits, next } if standing.held_by_ramp => {
                refusal.ramp = Some(permits);
                refusal.hint = refusal.hint.map(|hint| hint.max(next.since(now)));
            }
            _ => {}
        }
        refusal
    }

    /// Refuses a newcomer for want of room.
    fn hold_back(&mut self, now: Instant, reason: Reason, asked: u32) -> Refusal {
        self.totals.held_back += 1;
        self.refuse(now, reason, asked)
    }

    fn refuse(&mut self, now: Instant, reason: Reason, asked: u32) -> Refusal {
        self.totals.count_refused(reason);
        self.refusal(now, reason, asked)
    }

    fn invalid(&mut self, now: Instant, reason: Reason, invalid: Invalid) -> Refusal {
        Refusal { invalid: Some(invalid), ..self.refuse(now, reason, 0) }
    }
}

/// Why a cooldown refuses a call that does not wait for it.
pub(super) fn refused_by(cooldown: Instant, deadline: Option<Instant>) -> Reason {
    if deadline.is_some_and(|deadline| deadline < cooldown) {
        Reason::CooldownExceedsDeadline
    } else {
        Reason::CooldownActive
    }
}
