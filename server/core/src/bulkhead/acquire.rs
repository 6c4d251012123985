//! Acquire: the rules by which a request is granted, queued or refused (R1 to R3, R8).

use super::Bulkhead;
use crate::decision::{Acquire, Decision, Effect, Grant, Invalid, Reason, Refusal, Release, Step};
use crate::id::FencingToken;
use crate::lease::Lease;
use crate::ledger::Fate;
use crate::queue::Newcomer;
use crate::replay::Seen;
use crate::settings::{MIN_LEASE_TTL, span};
use crate::time::Instant;

impl Bulkhead {
    /// Asks for permits: granted if they fit and no eligible waiter comes before, else queued or refused (R1 to R3, R8).
    /// A [`Decision::Queued`] is answered later by an [`Effect`] of some call.
    pub fn acquire(&mut self, now: Instant, ask: Acquire) -> Step<Decision> {
        let mut effects = self.settle(now);
        let seen = ask.request.and_then(|key| self.replay.get(key));
        let answer = match seen {
            Some((seen, fingerprint)) => self.repeat(now, &ask, seen, fingerprint, &mut effects),
            None => self.decide(now, ask),
        };
        self.grant_waiters(now, &mut effects);
        self.step(answer, effects)
    }

    fn decide(&mut self, now: Instant, ask: Acquire) -> Decision {
        if !(1..=self.settings.ceiling()).contains(&ask.permits) {
            let allowed = format!("1 to {}, not {}", self.settings.ceiling(), ask.permits);
            return self.invalid(now, Reason::PermitsExceedCeiling, Invalid { field: "permits", allowed });
        }
        let longest = self.settings.max_lease_ttl();
        let ttl = match ask.ttl.map(|ttl| span("lease_ttl", ttl, MIN_LEASE_TTL, longest)).transpose() {
            Ok(ttl) => ttl.unwrap_or(self.settings.lease_ttl()),
            Err(invalid) => return self.invalid(now, Reason::InvalidField, invalid),
        };
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return self.hold_back(now, Reason::WaitTimeout);
        }
        let order = self.queue.order(now, ask.priority, self.settings.aging_step());
        let is_first = self.queue.first().is_none_or(|(_, first)| order < first.order);
        if is_first && self.fits(ask.permits) {
            let Acquire { permits, request, partition, holder, .. } = ask;
            let granted_at = now;
            let lease = Lease {
                token: FencingToken::default(),
                permits,
                ttl,
                granted_at,
                request,
                partition,
                holder,
                told: true,
            };
            let grant = self.grant(lease);
            self.totals.granted += 1;
            if let Some(key) = request {
                self.replay.insert(key, Seen::Live(grant.token), ask.fingerprint);
            }
            return Decision::Granted(grant);
        }
        let end = match self.wait_end(now, &ask) {
            Ok(end) => end,
            Err(reason) => return self.hold_back(now, reason),
        };
        if self.queue.len() >= self.settings.max_queued() as usize {
            return self.hold_back(now, Reason::QueueFull);
        }
        let Acquire { permits, priority, request, partition, holder, .. } = ask;
        let id = self.queue.push(Newcomer { order, end, priority, permits, ttl, request, partition, holder });
        if let Some(key) = request {
            self.replay.insert(key, Seen::Waiting(id.slot), ask.fingerprint);
        }
        self.totals.waited += 1;
        self.totals.held_back += 1;
        Decision::Queued(id)
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
            Seen::Spent(_) => self.refuse(now, Reason::RequestIdSpent),
            _ if fingerprint != ask.fingerprint => {
                let allowed = "new: its first request had other permits, partition or lease_ttl".into();
                self.invalid(now, Reason::RequestIdReused, Invalid { field: "request_id", allowed })
            }
            Seen::Live(token) => match self.fate(now, token) {
                Fate::Live(slot) => {
                    self.leases.renew(now, slot);
                    self.tell(slot);
                    let Lease { permits, ttl, granted_at, .. } = *self.leases.get(slot);
                    let floor = self.ledger.floor();
                    Decision::Granted(Grant { token, floor, permits, ttl, granted_at, replayed: true })
                }
                _ => self.refuse(now, Reason::RequestIdSpent),
            },
            Seen::Waiting(slot) => {
                let superseded = self.queue.id(slot);
                let refusal = self.refusal(now, Reason::Superseded);
                effects.push(Effect::Refused(superseded, refusal));
                self.totals.count_refused(Reason::Superseded);
                match self.wait_end(now, ask) {
                    Ok(end) => Decision::Queued(self.queue.take_over(slot, end)),
                    Err(reason) => {
                        self.drop_waiter(slot);
                        self.refuse(now, reason)
                    }
                }
            }
        }
    }

    /// Refuses a newcomer for want of room.
    fn hold_back(&mut self, now: Instant, reason: Reason) -> Decision {
        self.totals.held_back += 1;
        self.refuse(now, reason)
    }

    fn refuse(&mut self, now: Instant, reason: Reason) -> Decision {
        self.totals.count_refused(reason);
        Decision::Refused(self.refusal(now, reason))
    }

    fn invalid(&mut self, now: Instant, reason: Reason, invalid: Invalid) -> Decision {
        self.totals.count_refused(reason);
        Decision::Refused(Refusal { invalid: Some(invalid), ..self.refusal(now, reason) })
    }
}
