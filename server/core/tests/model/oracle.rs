//! What a bulkhead has to do, told simply: a list of waiters, a map of leases, all else found by looking through them.

use super::cooldowns::PARTITIONS;
use super::leases::{Lease, Leases};
use super::plain::{Answer, Ask, Rules, Waiter};
use tidegate_core::{Mode, Reason, Release, Room};

#[derive(Default)]
pub struct Oracle {
    pub rules: Rules,
    pub limit: u32,
    pub queue: Vec<Waiter>,
    pub leases: Leases,
    /// When the cooldown of each partition ends or ended, while it has waiters that it concerns.
    pub ends: [Option<u64>; PARTITIONS],
    pub room: Room,
    pub effects: Vec<(Waiter, Answer)>,
    pub grants_resume: u64,
    pub calls: usize,
    /// When the limit goes back, and to what.
    pub revert: Option<(u64, u32)>,
    /// From what to what it went back in this step.
    pub reverted: Option<(u32, u32)>,
    /// Why it is in its mode.
    pub detail: String,
    pub draining: bool,
    pub would_wait: u64,
    pub would_refuse: u64,
}

impl Oracle {
    /// First what time has done, then the call's own work; what either frees goes to the queue.
    pub fn step<T>(&mut self, now: u64, work: impl FnOnce(&mut Self) -> T) -> T {
        while let Some(end) = self.queue.iter().map(|waiter| waiter.end).min().filter(|&end| end <= now) {
            self.refuse_waiter(Reason::WaitTimeout, |waiter| waiter.end == end);
        }
        self.leases.expire(now);
        self.forget_calm(now);
        if let Some((_, limit)) = self.revert.take_if(|revert| revert.0 <= now) {
            let before = std::mem::replace(&mut self.limit, limit.min(self.rules.ceiling));
            self.reverted = Some((before, self.limit));
            self.forget_calm(now);
        }
        self.grant_waiters(now);
        let answer = work(self);
        self.forget_calm(now);
        self.grant_waiters(now);
        answer
    }

    pub fn acquire(&mut self, now: u64, ask: &Ask) -> Answer {
        if let Some(answer) = self.leases.replay(now, ask) {
            return answer.unwrap_or_else(|reason| self.refuse(reason));
        }
        match self.queue.iter().position(|waiter| ask.repeats(&waiter.ask)) {
            Some(at) if self.queue[at].ask.print != ask.print => self.refuse(Reason::RequestIdReused),
            Some(at) => self.take_over(now, ask, at),
            None => self.newcomer(now, ask),
        }
    }

    /// A repeat takes a place over: its own end if that is earlier, and its own deadline.
    fn take_over(&mut self, now: u64, ask: &Ask, at: usize) -> Answer {
        self.effects.push((self.queue[at].clone(), self.refuse(Reason::Superseded)));
        let partition = self.queue[at].ask.partition;
        let end = ask.wait_end(now, &self.rules).map(|end| end.min(self.queue[at].end));
        match end.and_then(|end| self.outlasted(now, partition, end).map_or(Ok(end), Err)) {
            Ok(end) => {
                self.calls += 1;
                let waiter = &mut self.queue[at];
                (waiter.call, waiter.end, waiter.ask.deadline) = (self.calls, end, ask.deadline);
                Answer::Queued(self.calls)
            }
            Err(reason) => {
                let cooldown = self.ends[partition].filter(|_| reason == Reason::CooldownExceedsDeadline);
                self.take(at);
                let answer = self.refuse(reason);
                cooldown.map_or(answer.clone(), |end| answer.with_cooldown(end - now))
            }
        }
    }

    pub fn release_request(&mut self, now: u64, request: u64) -> Release {
        let withdrawn = self.refuse_waiter(Reason::RequestIdSpent, |waiter| waiter.ask.request == Some(request));
        self.leases.release_request(now, request, if withdrawn { Release::Withdrawn } else { Release::Unknown })
    }

    pub fn leave(&mut self, call: usize) {
        if let Some(at) = self.queue.iter().position(|waiter| waiter.call == call) {
            self.take(at);
        }
    }

    pub fn refuse_waiter(&mut self, reason: Reason, which: impl Fn(&Waiter) -> bool) -> bool {
        let Some(at) = self.queue.iter().position(which) else { return false };
        let waiter = self.take(at);
        self.effects.push((waiter, self.refuse(reason)));
        true
    }

    /// A waiter goes; with the last one of a partition all that is known of that.
    pub fn take(&mut self, at: usize) -> Waiter {
        let waiter = self.queue.remove(at);
        let partition = waiter.ask.partition;
        if !self.queue.iter().any(|other| other.ask.partition == partition) {
            self.ends[partition] = None;
        }
        waiter
    }

    fn grant_waiters(&mut self, now: u64) {
        while let Some(at) = self.first(now)
            && self.fits(self.queue[at].ask.permits)
            && self.rules.mode == Mode::Enforcing
            && self.grants_resume <= now
        {
            self.grant_waiter(now, at, true);
        }
    }

    fn grant_waiter(&mut self, now: u64, at: usize, marked: bool) {
        let waiter = self.take(at);
        let granted = self.leases.grant(now, &waiter.ask, false, marked);
        self.effects.push((waiter, granted));
    }

    /// Which leases fill the rule's `running`.
    pub fn counts(&self, lease: &Lease) -> bool {
        self.rules.mode != Mode::Shadow || lease.marked
    }

    pub fn fits(&self, permits: u32) -> bool {
        self.leases.running_of(|lease| self.counts(lease)) + permits <= self.limit
    }

    /// Answers whether there is such a limit.
    pub fn set_limit(&mut self, now: u64, limit: u32, revert_after: Option<u64>) -> bool {
        let within = (1..=self.rules.ceiling).contains(&limit);
        if within {
            let before = self.revert.map_or(self.limit, |revert| revert.1);
            self.revert = revert_after.map(|after| (now + after, before));
            self.limit = limit;
        }
        within
    }

    pub fn configure(&mut self, now: u64, rules: Rules, moves_limit: bool) {
        let Rules { limit, ceiling, mode, .. } = rules;
        if moves_limit {
            (self.limit, self.revert) = (limit, None);
        }
        if mode != self.rules.mode {
            self.detail.clear();
        }
        (self.rules, self.limit) = (rules, self.limit.min(ceiling));
        while self.refuse_waiter(Reason::PermitsExceedCeiling, |waiter| waiter.ask.permits > ceiling) {}
        self.empty_queue(now);
    }

    /// Where nobody waits, everybody goes: first come, first served.
    pub fn empty_queue(&mut self, now: u64) {
        let mode = self.rules.mode;
        if !self.draining && matches!(mode, Mode::Enforcing | Mode::Paused) {
            return;
        }
        while let Some(at) = (0..self.queue.len()).min_by_key(|&at| self.queue[at].place) {
            let call = self.queue[at].call;
            if mode == Mode::Shadow && !self.draining {
                self.grant_waiter(now, at, false);
            } else {
                let reason = if self.draining { Reason::Draining } else { Reason::BulkheadClosed };
                self.refuse_waiter(reason, |waiter| waiter.call == call);
            }
        }
    }

    pub fn refuse(&self, reason: Reason) -> Answer {
        let (running, queued) = (self.leases.running(), self.queue.len());
        Answer::Refused { reason, limit: self.limit, running, queued, ramp: None, cooldown: None }
    }

    /// The first eligible waiter.
    pub fn first(&self, now: u64) -> Option<usize> {
        let eligible = (0..self.queue.len()).filter(|&at| self.is_eligible(now, &self.queue[at]));
        eligible.min_by_key(|&at| self.queue[at].place)
    }
}
