//! Plain values that go into the oracle and come out of it, and what each tells by itself. Times are nanoseconds.

use tidegate_core::{Mode, Reason};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// The settings of a bulkhead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub limit: u32,
    pub ceiling: u32,
    pub max_queued: usize,
    pub max_wait: u64,
    pub aging_step: u64,
    pub ttl: u64,
    pub max_ttl: u64,
    pub displace: bool,
    pub ramp_step: u64,
    pub mode: Mode,
}

/// A request for permits.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub permits: u32,
    pub rank: u64,
    pub max_wait: Option<u64>,
    pub deadline: Option<u64>,
    pub answer_by: Option<u64>,
    pub ttl: Option<u64>,
    pub request: Option<u64>,
    pub print: u64,
    pub partition: usize,
    /// When the cooldown of its partition ends or ended, if the shell knows one.
    pub cooldown: Option<u64>,
    /// It waits while its partition cools.
    pub waits: bool,
}

/// A call in the queue.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Its number, as in [`Answer::Queued`].
    pub call: usize,
    pub since: u64,
    pub end: u64,
    /// From when it counts, then which arrival it was.
    pub place: (u64, usize),
    pub ask: Ask,
}

/// What a request for permits is told. Answers `Queued` are numbered from 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Granted { token: u64, permits: u32, ttl: u64, granted_at: u64, replayed: bool },
    Refused { reason: Reason, limit: u32, running: u32, queued: usize, ramp: Option<u32>, cooldown: Option<u64> },
    Queued(usize),
}

impl Answer {
    /// Those that one cooldown refuses may be refused in any order: what does not depend on it, and what does.
    pub fn apart(mut self) -> (Self, Option<Reason>) {
        match &mut self {
            Self::Refused { reason, cooldown: Some(_), .. } => {
                let why = std::mem::replace(reason, Reason::CooldownActive);
                (self, Some(why))
            }
            _ => (self, None),
        }
    }

    /// A refusal because of a cooldown that lasts so much longer.
    pub fn with_cooldown(mut self, left: u64) -> Self {
        if let Self::Refused { cooldown, .. } = &mut self {
            *cooldown = Some(left);
        }
        self
    }

    /// A refusal because of a ramp that allows so many, if it is one.
    pub fn with_ramp(mut self, permits: Option<u32>) -> Self {
        if let Self::Refused { ramp, .. } = &mut self {
            *ramp = permits;
        }
        self
    }
}

impl Ask {
    /// Why a cooldown until then refuses it.
    pub fn cooldown_reason(&self, end: u64) -> Reason {
        match self.deadline {
            _ if self.waits => Reason::CooldownExceedsDeadline,
            Some(deadline) if deadline < end => Reason::CooldownExceedsDeadline,
            _ => Reason::CooldownActive,
        }
    }

    /// It repeats that earlier one.
    pub fn repeats(&self, first: &Self) -> bool {
        self.request.is_some() && self.request == first.request
    }

    /// It is past its deadline.
    pub fn is_late(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// What is wrong with it, whatever the state.
    pub fn wrong(&self, rules: &Rules) -> Option<Reason> {
        if !(1..=rules.ceiling).contains(&self.permits) {
            Some(Reason::PermitsExceedCeiling)
        } else if self.ttl.is_some_and(|ttl| !(2 * SECOND..=rules.max_ttl).contains(&ttl)) {
            Some(Reason::InvalidField)
        } else {
            None
        }
    }

    /// Until when it may wait, or why not at all.
    pub fn wait_end(&self, now: u64, rules: &Rules) -> Result<u64, Reason> {
        let max_wait = self.max_wait.unwrap_or(u64::MAX).min(rules.max_wait);
        let answer_by = self.answer_by.unwrap_or(u64::MAX).min(self.deadline.unwrap_or(u64::MAX));
        let end = answer_by.min(now + max_wait);
        if self.is_late(now) {
            Err(Reason::WaitTimeout)
        } else if max_wait == 0 || rules.max_queued == 0 {
            Err(Reason::ConcurrencyCapacityExhausted)
        } else if end <= now {
            Err(Reason::WaitTimeout)
        } else {
            Ok(end)
        }
    }
}
