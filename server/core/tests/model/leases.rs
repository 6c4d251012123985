//! The oracle's map: every lease there ever was, live or over, and beside it the request ids that are spent.

use std::collections::BTreeMap;

use tidegate_core::{Reason, Release};

use super::plain::{Answer, Ask, MS, SECOND};

pub struct Lease {
    pub ask: Ask,
    pub ttl: u64,
    pub granted_at: u64,
    pub end: u64,
    /// Somebody heard of it.
    pub told: bool,
    /// The rule granted it, or would have (R12).
    pub marked: bool,
    /// An operator took it back.
    pub revoked: bool,
    /// The stream that last renewed it.
    pub stream: Option<u64>,
    /// What a release answers now that it is over, and until when that is remembered.
    pub over: Option<(Release, u64)>,
}

#[derive(Default)]
pub struct Leases {
    pub all: BTreeMap<u64, Lease>,
    /// A request id, what a release by it answers, and until when.
    pub spent: Vec<(u64, Release, u64)>,
    pub ttl: u64,
    pub keep_spent: u64,
    pub last_token: u64,
    pub quiet_until: u64,
    /// How many were taken back.
    pub revoked: u64,
    /// How many of those ran to their end.
    pub ran_out: u64,
}

impl Leases {
    pub fn live(&self, which: impl Fn(&Lease) -> bool) -> Vec<u64> {
        self.all.iter().filter(|(_, lease)| lease.over.is_none() && which(lease)).map(|(&token, _)| token).collect()
    }

    pub fn running(&self) -> u32 {
        self.running_of(|_| true)
    }

    pub fn running_of(&self, which: impl Fn(&Lease) -> bool) -> u32 {
        self.live(which).iter().map(|token| self.all[token].ask.permits).sum()
    }

    pub fn grant(&mut self, now: u64, ask: &Ask, told: bool, marked: bool) -> Answer {
        self.last_token += 1;
        let ttl = ask.ttl.unwrap_or(self.ttl);
        let (ask, end) = (ask.clone(), now + ttl);
        let lease = Lease { ask, ttl, granted_at: now, end, told, marked, revoked: false, stream: None, over: None };
        self.all.insert(self.last_token, lease);
        self.answer(self.last_token, false)
    }

    fn answer(&self, token: u64, replayed: bool) -> Answer {
        let Lease { ask, ttl, granted_at, .. } = &self.all[&token];
        Answer::Granted { token, permits: ask.permits, ttl: *ttl, granted_at: *granted_at, replayed }
    }

    pub fn expire(&mut self, now: u64) {
        for token in self.live(|lease| lease.end.max(self.quiet_until) <= now) {
            self.ran_out += u64::from(self.all[&token].revoked);
            self.end(now, token, Release::Expired);
        }
    }

    fn end(&mut self, now: u64, token: u64, answer: Release) {
        let lease = self.all.get_mut(&token).unwrap();
        let answer = if lease.revoked { Release::Revoked } else { answer };
        (lease.told, lease.over) = (true, Some((answer, now + 60 * SECOND)));
        self.spent.extend(lease.ask.request.map(|request| (request, answer, now + self.keep_spent)));
    }

    /// What a release of it answers, unless it is live.
    fn fate(&self, now: u64, token: u64) -> Option<Release> {
        let forgotten = Some((Release::Ended, u64::MAX));
        let over = self.all.get(&token).map_or(forgotten, |lease| lease.over)?;
        Some(if now < over.1 { over.0 } else { Release::Ended })
    }

    pub fn renew(&mut self, now: u64, token: u64, stream: Option<u64>) -> Result<u64, Release> {
        self.fate(now, token).map_or(Ok(()), Err)?;
        let lease = self.all.get_mut(&token).unwrap();
        if lease.revoked {
            return Err(Release::Revoked);
        }
        (lease.end, lease.stream) = (now + lease.ttl, stream.or(lease.stream));
        Ok(lease.ttl)
    }

    pub fn release(&mut self, now: u64, token: u64) -> Release {
        self.fate(now, token).unwrap_or_else(|| {
            self.end(now, token, Release::AlreadyReleased);
            if self.all[&token].revoked { Release::Revoked } else { Release::Released }
        })
    }

    /// A request id that neither a lease nor the past knows answers `otherwise`, and is spent.
    pub fn release_request(&mut self, now: u64, request: u64, otherwise: Release) -> Release {
        if let Some(token) = self.live(|lease| lease.ask.request == Some(request)).pop() {
            return self.release(now, token);
        }
        self.spent_as(now, Some(request)).unwrap_or_else(|| {
            self.spent.push((request, otherwise, now + self.keep_spent));
            otherwise
        })
    }

    fn spent_as(&self, now: u64, request: Option<u64>) -> Option<Release> {
        self.spent.iter().find(|spent| Some(spent.0) == request && now < spent.2).map(|spent| spent.1)
    }

    /// The answer to a repeat of an ask that got a lease.
    pub fn replay(&mut self, now: u64, ask: &Ask) -> Option<Result<Answer, Reason>> {
        if self.spent_as(now, ask.request).is_some() {
            return Some(Err(Reason::RequestIdSpent));
        }
        let token = self.live(|lease| ask.repeats(&lease.ask)).pop()?;
        if self.all[&token].ask.print != ask.print {
            return Some(Err(Reason::RequestIdReused));
        }
        if self.renew(now, token, None).is_err() {
            return Some(Err(Reason::RequestIdSpent));
        }
        self.confirm(token);
        Some(Ok(self.answer(token, true)))
    }

    /// Answers what there was to take back.
    pub fn revoke(&mut self, now: u64, token: u64, immediate: bool) -> Option<&Lease> {
        if self.fate(now, token).is_some() {
            return None;
        }
        let again = std::mem::replace(&mut self.all.get_mut(&token)?.revoked, true);
        self.revoked += u64::from(!again);
        if immediate {
            self.end(now, token, Release::Revoked);
        }
        self.all.get(&token)
    }

    pub fn confirm(&mut self, token: u64) {
        self.all.entry(token).and_modify(|lease| lease.told = true);
    }

    /// Answers whether it counts as never granted now.
    pub fn give_back(&mut self, token: u64) -> bool {
        let unheard = self.all.get(&token).is_some_and(|lease| !lease.told);
        unheard && self.all.remove(&token).is_some()
    }

    pub fn forgive(&mut self, gap: u64, resumed: u64) {
        self.all.values_mut().for_each(|lease| lease.end += gap);
        self.quiet_until = self.quiet_until.max(resumed + gap.min(500 * MS));
    }
}
