//! What the oracle tells a request it has not seen before (R2, R3, R9 to R11, R14).

use tidegate_core::{Mode, Reason};

use super::cooldowns::{Phase, phase};
use super::oracle::Oracle;
use super::plain::{Answer, Ask, Waiter};

impl Oracle {
    pub fn newcomer(&mut self, now: u64, ask: &Ask) -> Answer {
        if self.draining || self.rules.mode == Mode::Closed {
            return self.refuse(if self.draining { Reason::Draining } else { Reason::BulkheadClosed });
        }
        if let Some(reason) = ask.wrong(&self.rules) {
            return self.refuse(reason);
        }
        if ask.is_late(now) {
            return self.refuse(Reason::WaitTimeout);
        }
        let phase = phase(now, self.ends[ask.partition].max(ask.cooldown), self.rules.ramp_step, self.limit);
        let place = (now + ask.rank * self.rules.aging_step, self.calls);
        let is_first = self.first(now).is_none_or(|first| place < self.queue[first].place);
        let ramp = self.held_by_ramp(phase, ask);
        let could_run = is_first && ramp.is_none() && self.fits(ask.permits) && self.rules.mode != Mode::Paused;
        let by_rule = could_run && !matches!(phase, Phase::Cooling(_));
        if by_rule || self.rules.mode == Mode::Shadow {
            if !self.has_room_for_lease() {
                return self.refuse(Reason::ServerCapReached);
            }
            if !by_rule {
                // As if there were always room in the queue for one more.
                let place = self.place(now, ask, phase, could_run, true);
                *(if place.is_ok() { &mut self.would_wait } else { &mut self.would_refuse }) += 1;
            }
            return self.leases.grant(now, ask, true, by_rule);
        }
        let displaced = self.displaced(ask);
        match self.place(now, ask, phase, could_run, displaced.is_some()) {
            Ok(end) => {
                if let Some(at) = displaced {
                    let waiter = self.take(at);
                    self.effects.push((waiter, self.refuse(Reason::Displaced)));
                }
                if phase != Phase::Calm {
                    self.ends[ask.partition] = self.ends[ask.partition].max(ask.cooldown);
                }
                self.calls += 1;
                self.queue.push(Waiter { call: self.calls, since: now, end, place, ask: ask.clone() });
                Answer::Queued(self.calls)
            }
            Err(reason) => match (reason, phase) {
                (Reason::CooldownActive | Reason::CooldownExceedsDeadline, Phase::Cooling(end)) => {
                    self.refuse(reason).with_cooldown(end - now)
                }
                _ => self.refuse(reason).with_ramp(ramp),
            },
        }
    }

    /// What the ramp allows, if that is what holds a newcomer: there is no room, or one of its partition is held before.
    fn held_by_ramp(&self, phase: Phase, ask: &Ask) -> Option<u32> {
        let Phase::Ramp(ramp, _) = phase else { return None };
        let is_behind = self.held().any(|held| held.ask.partition == ask.partition);
        (is_behind || !self.ramp_has_room(ask.partition, ramp, ask.permits)).then_some(ramp)
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= self.rules.max_queued
    }

    /// The last in order, if the queue is full and that one is less urgent.
    fn displaced(&self, ask: &Ask) -> Option<usize> {
        let last = (0..self.queue.len()).max_by_key(|&at| self.queue[at].place)?;
        let may = self.is_full() && self.rules.displace && self.queue[last].ask.rank > ask.rank;
        may.then_some(last)
    }

    /// Each waiter needs a lease one day.
    fn has_room_for_lease(&self) -> bool {
        self.leases.live(|_| true).len() + self.queue.len() < self.room.leases
    }

    /// Until when it may wait.
    fn place(&self, now: u64, ask: &Ask, phase: Phase, could_run: bool, displaces: bool) -> Result<u64, Reason> {
        let end = ask.wait_end(now, &self.rules);
        let is_full = self.is_full() && !displaces;
        // The bulkhead first, if it would not let it wait; then the cooldown; then the rest of the bulkhead.
        if !could_run {
            end?;
            if is_full {
                return Err(Reason::QueueFull);
            }
        }
        if let Phase::Cooling(cooldown) = phase {
            match (ask.waits, end) {
                (true, Ok(end)) if cooldown < end => {}
                (true, _) => return Err(Reason::CooldownExceedsDeadline),
                (false, _) => return Err(ask.cooldown_reason(cooldown)),
            }
        }
        if is_full || (phase != Phase::Calm && 2 * self.held().count() >= self.rules.max_queued) {
            return Err(Reason::QueueFull);
        }
        if !displaces && (self.queue.len() >= self.room.waiters || !self.has_room_for_lease()) {
            return Err(Reason::ServerCapReached);
        }
        end
    }
}
