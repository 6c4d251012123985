//! Partitions that cool down together, seen from one bulkhead (R10, R11).

use super::Bulkhead;
use super::acquire::refused_by;
use crate::cooldown::Phase;
use crate::decision::{Effect, Reason, Step};
use crate::time::Instant;

impl Bulkhead {
    /// A partition cools until `end`, or longer if it did already: its waiters are judged again at once. `None` is the
    /// bulkhead's own name. Newcomers bring what they must know with them.
    pub fn cool(&mut self, now: Instant, partition: Option<&str>, end: Instant) -> Step<()> {
        let mut effects = self.settle(now);
        if let Some(slot) = self.partitions.find(partition).filter(|&slot| self.partitions.waiters(slot) > 0) {
            let account = self.partitions.get_mut(slot);
            let was_held = account.cooldown.is_some();
            let end = account.cooldown.map_or(end, |old| old.max(end));
            account.cooldown = Some(end);
            for waiter in self.queue.of_partition(slot, was_held) {
                self.judge(now, waiter, end, &mut effects);
            }
            if self.partitions.find(partition) == Some(slot) {
                self.touch(now, slot);
            }
        }
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
    }

    /// An operator ends a partition's cooldown and the ramp after it.
    pub fn calm(&mut self, now: Instant, partition: Option<&str>) -> Step<()> {
        let mut effects = self.settle(now);
        if let Some(slot) = self.partitions.find(partition) {
            self.partitions.get_mut(slot).cooldown = None;
            self.refresh(now, slot);
        }
        self.grant_waiters(now, &mut effects);
        self.step((), effects)
    }

    /// A waiter of a partition that cools until `end`: kept if it waits for that and long enough.
    fn judge(&mut self, now: Instant, slot: u32, end: Instant, effects: &mut Vec<Effect>) {
        let waiter = self.queue.get(slot);
        let reason = match waiter.waits_for_cooldown {
            _ if end <= now => return self.queue.hold(slot),
            true if end < self.queue.end(slot) => return self.queue.hold(slot),
            true => Reason::CooldownExceedsDeadline,
            false => refused_by(end, waiter.deadline),
        };
        self.refuse_waiter(now, slot, reason, effects);
        if let Some(Effect::Refused(_, refusal)) = effects.last_mut() {
            refusal.hint = Some(end.since(now));
        }
    }

    /// Brings a partition that cools or ramps up to `now`: whether its first waiter may be granted, and when to look again.
    pub(super) fn refresh(&mut self, now: Instant, slot: u32) {
        let account = self.partitions.get(slot);
        let running = account.running;
        let phase = match account.cooldown {
            Some(end) => Phase::at(now, end, self.settings.ramp_step(), self.limit),
            None => Phase::Calm,
        };
        let (has_room, turn) = match phase {
            Phase::Cooling(end) => (false, Some(end)),
            Phase::Ramp { next, .. } => {
                let first = self.queue.first_held(slot).map(|(_, first)| first.claim.permits);
                (first.is_some_and(|asked| !phase.holds(running, asked)), Some(next))
            }
            Phase::Calm => {
                self.partitions.get_mut(slot).cooldown = None;
                self.queue.calm(slot);
                (false, None)
            }
        };
        self.queue.offer(slot, has_room);
        let waits = self.queue.first_held(slot).is_some();
        self.partitions.set_turn(slot, turn.filter(|_| waits));
    }

    /// Something changed for a partition: its leases or its waiters.
    pub(super) fn touch(&mut self, now: Instant, slot: u32) {
        if self.partitions.get(slot).cooldown.is_some() {
            self.refresh(now, slot);
        }
        self.partitions.forget(slot);
    }
}
