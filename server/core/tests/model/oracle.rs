//! What a bulkhead has to do, told as simply as it can be: a list of waiters, a map of every lease there ever was, and
//! all else found anew by looking through them. What one line can tell (a waiter leaves) stands in `pair.rs`.
use std::collections::BTreeMap;

use tidegate_core::{Reason, Release};

use super::plain::{Answer, Ask, Lease, MINUTE, Rules, Waiter};

#[derive(Default)]
pub struct Oracle {
    pub rules: Rules,
    pub limit: u32,
    pub queue: Vec<Waiter>,
    pub leases: BTreeMap<u64, Lease>,
    pub spent: Vec<(Option<u64>, Release, u64)>,
    pub refused: Vec<Reason>,
    pub effects: Vec<(Waiter, Answer)>,
    pub held_back: u64,
    pub waited: u64,
    pub now: u64,
    pub quiet_until: u64,
    pub grants_resume: u64,
    pub calls: usize,
    pub tokens: u64,
}

impl Oracle {
    /// First what time has done, then the call's own work; what either frees goes to the queue.
    pub fn step<T>(&mut self, now: u64, work: impl FnOnce(&mut Self) -> T) -> T {
        self.now = now;
        while let Some(end) = self.queue.iter().map(|waiter| waiter.end).min().filter(|&end| end <= now) {
            self.refuse_waiter(Reason::WaitTimeout, |waiter| waiter.end == end);
        }
        for token in self.live(|lease| lease.end.max(self.quiet_until) <= now) {
            self.end(token, Release::Expired);
        }
        self.grant_waiters();
        let answer = work(self);
        self.grant_waiters();
        answer
    }
    pub fn acquire(&mut self, ask: &Ask) -> Answer {
        let wait_end = ask.wait_end(self.now, &self.rules);
        let repeats = |first: &Ask| ask.request.is_some() && first.request == ask.request;
        let live = self.live(|lease| repeats(&lease.ask)).pop();
        let waiting = self.queue.iter().position(|waiter| repeats(&waiter.ask));
        let mut firsts = self.leases.values().filter(|lease| lease.over.is_none()).map(|l| &l.ask).chain(self.queue.iter().map(|w| &w.ask));
        if ask.request.is_some_and(|request| self.spent_as(request).is_some()) {
            self.refuse(Reason::RequestIdSpent)
        } else if firsts.any(|first| repeats(first) && first.print != ask.print) {
            self.refuse(Reason::RequestIdReused)
        } else if let Some(token) = live {
            self.renew(token, true)
        } else if let Some(at) = waiting {
            let superseded = self.refuse(Reason::Superseded);
            let waiter = self.queue.remove(at);
            self.effects.push((waiter.clone(), superseded));
            match wait_end { 
               Ok(end) => self.enqueue(Waiter { end: end.min(waiter.end), ..waiter }),
               Err(reason) => self.refuse(reason)
            }
        } else if let Some(reason) = ask.wrong(self.now, &self.rules) {
            self.held_back += u64::from(reason == Reason::WaitTimeout);
            self.refuse(reason)
        } else if fits && first {
            self.grant(ask, true)
        } else {
            self.held_back += 1;
            match wait_end {
                Err(reason) => self.refuse(reason),
                Ok(_) if self.queue.len() >= self.rules.max_queued => self.refuse(Reason::QueueFull),
                Ok(end) => {
                    self.waited += 1;
                    self.enqueue(Waiter { call: 0, end, place, ask: ask.clone() })
                }
            }
        }
    }
}
