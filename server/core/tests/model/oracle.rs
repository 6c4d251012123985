//! What a bulkhead has to do, told simply: a list of waiters, a map of leases, all else found by looking through them.

use super::leases::Leases;
use super::plain::{Answer, Ask, Rules, Waiter};
use tidegate_core::{Reason, Release};

#[derive(Default)]
pub struct Oracle {
    pub rules: Rules,
    pub limit: u32,
    pub queue: Vec<Waiter>,
    pub leases: Leases,
    pub effects: Vec<(Waiter, Answer)>,
    pub grants_resume: u64,
    pub calls: usize,
}

impl Oracle {
    /// First what time has done, then the call's own work; what either frees goes to the queue.
    pub fn step<T>(&mut self, now: u64, work: impl FnOnce(&mut Self) -> T) -> T {
        while let Some(end) = self.queue.iter().map(|waiter| waiter.end).min().filter(|&end| end <= now) {
            self.refuse_waiter(Reason::WaitTimeout, |waiter| waiter.end == end);
        }
        self.leases.expire(now);
        self.grant_waiters(now);
        let answer = work(self);
        self.grant_waiters(now);
        answer
    }

    pub fn acquire(&mut self, now: u64, ask: &Ask) -> Answer {
        if let Some(answer) = self.leases.replay(now, ask) {
            return answer.unwrap_or_else(|reason| self.refuse(reason));
        }
        let wait_end = ask.wait_end(now, &self.rules);
        if let Some(at) = self.queue.iter().position(|waiter| ask.repeats(&waiter.ask)) {
            if self.queue[at].ask.print != ask.print {
                return self.refuse(Reason::RequestIdReused);
            }
            let (superseded, waiter) = (self.refuse(Reason::Superseded), self.queue.remove(at));
            self.effects.push((waiter.clone(), superseded));
            return match wait_end {
                Ok(end) => self.enqueue(Waiter { end: end.min(waiter.end), ..waiter }),
                Err(reason) => self.refuse(reason),
            };
        }
        let place = (now + ask.rank * self.rules.aging_step, self.calls);
        let is_first = self.first().is_none_or(|first| place < self.queue[first].place);
        match (ask.wrong(&self.rules), wait_end) {
            (None, _) if is_first && self.fits(ask.permits) && !ask.is_late(now) => self.leases.grant(now, ask, true),
            (Some(reason), _) | (None, Err(reason)) => self.refuse(reason),
            (None, Ok(_)) if self.queue.len() >= self.rules.max_queued => self.refuse(Reason::QueueFull),
            (None, Ok(end)) => self.enqueue(Waiter { call: 0, end, place, ask: ask.clone() }),
        }
    }

    pub fn release_request(&mut self, now: u64, request: u64) -> Release {
        let withdrawn = self.refuse_waiter(Reason::RequestIdSpent, |waiter| waiter.ask.request == Some(request));
        self.leases.release_request(now, request, if withdrawn { Release::Withdrawn } else { Release::Unknown })
    }

    pub fn refuse_waiter(&mut self, reason: Reason, which: impl Fn(&Waiter) -> bool) -> bool {
        let Some(at) = self.queue.iter().position(which) else { return false };
        let waiter = self.queue.remove(at);
        self.effects.push((waiter, self.refuse(reason)));
        true
    }

    fn grant_waiters(&mut self, now: u64) {
        while let Some(at) = self.first()
            && self.fits(self.queue[at].ask.permits)
            && self.grants_resume <= now
        {
            let waiter = self.queue.remove(at);
            let granted = self.leases.grant(now, &waiter.ask, false);
            self.effects.push((waiter, granted));
        }
    }

    fn enqueue(&mut self, waiter: Waiter) -> Answer {
        self.calls += 1;
        self.queue.push(Waiter { call: self.calls, ..waiter });
        Answer::Queued(self.calls)
    }

    fn refuse(&self, reason: Reason) -> Answer {
        Answer::Refused { reason, limit: self.limit, running: self.leases.running(), queued: self.queue.len() }
    }

    fn first(&self) -> Option<usize> {
        let eligible = (0..self.queue.len()).filter(|&at| self.queue[at].ask.permits <= self.limit);
        eligible.min_by_key(|&at| self.queue[at].place)
    }

    fn fits(&self, permits: u32) -> bool {
        self.leases.running() + permits <= self.limit
    }
}
