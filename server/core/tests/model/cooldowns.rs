//! The oracle's partitions: where each stands at an instant, and who of it is eligible (R10, R11).

use tidegate_core::Reason;

use super::oracle::Oracle;
use super::plain::Waiter;

/// The bulkhead's own name, then three others.
pub const PARTITIONS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Until then.
    Cooling(u64),
    /// So many permits may run, until then.
    Ramp(u32, u64),
    Calm,
}

/// One permit from the end on, and twice as many after each step, until that is the limit.
pub fn phase(now: u64, end: Option<u64>, step: u64, limit: u32) -> Phase {
    let Some(end) = end else { return Phase::Calm };
    if now < end {
        return Phase::Cooling(end);
    }
    let (mut permits, mut next) = (1, end + step);
    while step > 0 && permits < limit && next <= now {
        (permits, next) = (permits * 2, next + step);
    }
    if step == 0 || permits >= limit { Phase::Calm } else { Phase::Ramp(permits, next) }
}

impl Oracle {
    pub fn phase(&self, now: u64, partition: usize) -> Phase {
        phase(now, self.ends[partition], self.rules.ramp_step, self.limit)
    }

    /// A report reached it. Whoever came without waiters here brings what it must know.
    pub fn cool(&mut self, now: u64, partition: usize, end: u64) {
        if !self.queue.iter().any(|waiter| waiter.ask.partition == partition) {
            return;
        }
        let end = self.ends[partition].map_or(end, |old| old.max(end));
        self.ends[partition] = Some(end);
        let is_refused = |waiter: &Waiter| {
            let patient = waiter.ask.waits && end < waiter.end;
            waiter.ask.partition == partition && now < end && !patient
        };
        while let Some(at) = self.queue.iter().position(is_refused) {
            let reason = self.queue[at].ask.cooldown_reason(end);
            let waiter = self.take(at);
            let answer = self.refuse(reason).with_cooldown(end - now);
            self.effects.push((waiter, answer));
        }
    }

    /// A repeat that may wait until then meets the cooldown of the place it takes over.
    pub fn outlasted(&self, now: u64, partition: usize, end: u64) -> Option<Reason> {
        match self.phase(now, partition) {
            Phase::Cooling(cooldown) if end <= cooldown => Some(Reason::CooldownExceedsDeadline),
            _ => None,
        }
    }

    /// A ramp that is over is over, and without waiters nothing is kept of a partition.
    pub fn forget_calm(&mut self, now: u64) {
        for partition in 0..PARTITIONS {
            let waits = self.queue.iter().any(|waiter| waiter.ask.partition == partition);
            if !waits || self.phase(now, partition) == Phase::Calm {
                self.ends[partition] = None;
            }
        }
    }

    /// Those that their partition holds: it cools or ramps, and the limit does not exclude them anyway.
    pub fn held(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().filter(|waiter| self.ends[waiter.ask.partition].is_some() && waiter.ask.permits <= self.limit)
    }

    /// No permit of a partition runs, or so many more would be within its ramp.
    pub fn ramp_has_room(&self, partition: usize, ramp: u32, permits: u32) -> bool {
        let running = self.leases.running_of(|lease| lease.ask.partition == partition && self.counts(lease));
        running == 0 || running + permits <= ramp
    }

    pub fn is_eligible(&self, now: u64, waiter: &Waiter) -> bool {
        let (partition, permits) = (waiter.ask.partition, waiter.ask.permits);
        let is_first = |waiter: &Waiter| {
            self.held().filter(|held| held.ask.partition == partition).all(|held| waiter.place <= held.place)
        };
        permits <= self.limit
            && match self.phase(now, partition) {
                Phase::Cooling(_) => false,
                Phase::Ramp(ramp, _) => is_first(waiter) && self.ramp_has_room(partition, ramp, permits),
                Phase::Calm => true,
            }
    }

    /// When something changes for those that are held, as of that instant.
    pub fn turns(&self, now: u64) -> impl Iterator<Item = u64> {
        self.held().filter_map(move |waiter| match self.phase(now, waiter.ask.partition) {
            Phase::Cooling(at) | Phase::Ramp(_, at) => Some(at),
            Phase::Calm => None,
        })
    }
}
