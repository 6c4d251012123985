//! The bulkhead and the oracle side by side: each command runs on both, and all that can be seen is compared.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tidegate_core::{Bulkhead, Effect, FencingToken, Reason, Release, Renewal, Settings, Stall, Step as Done, WaiterId};

use super::commands::{Border, Call, Command, Step, Token, Wish};
use super::convert::{decision, draft, granted, instant, refused, request, to_core};
use super::oracle::Oracle;
use super::plain::{Answer, Ask, MS, Rules, SECOND};

/// How often each thing happened, by name: what never happened was not tested.
pub type Tally = BTreeMap<String, u64>;

pub struct Pair {
    core: Bulkhead,
    oracle: Oracle,
    now: u64,
    stall: Stall,
    /// What the core calls each call that was queued.
    ids: Vec<WaiterId>,
    /// Leases of waiters that have not heard of them.
    unheard: Vec<u64>,
    limit_before: u32,
    running_before: u32,
    refused: BTreeMap<Reason, u64>,
    waited: u64,
    held_back: u64,
    pub tally: Tally,
}

impl Pair {
    pub fn new(rules: Rules) -> Self {
        let mut oracle = Oracle { rules, limit: rules.limit, ..Oracle::default() };
        oracle.leases.ttl = rules.ttl;
        oracle.leases.keep_spent = rules.max_ttl + 250 * MS;
        oracle.leases.last_token = FencingToken::floor_of(7).as_u64();
        let settings = Settings::try_from(draft(&rules)).unwrap();
        Self {
            core: Bulkhead::new(settings, FencingToken::floor_of(7)),
            oracle,
            now: 1_000 * SECOND,
            stall: Stall::default(),
            ids: Vec::new(),
            unheard: Vec::new(),
            limit_before: rules.limit,
            running_before: 0,
            refused: BTreeMap::new(),
            waited: 0,
            held_back: 0,
            tally: Tally::new(),
        }
    }

    pub fn run(&mut self, step: Step, command: &Command) {
        self.now = self.after(step);
        let (now, at) = (self.now, instant(self.now));
        // The shell says so before each call; only the first time counts.
        self.core.forgive(self.stall);
        match *command {
            Command::Acquire(ref wish) => {
                let ask = self.ask(wish);
                let done = self.core.acquire(at, to_core(&ask));
                let answer = self.oracle.step(now, |oracle| oracle.acquire(now, &ask));
                self.count_acquire(&answer);
                self.compare(done, |answer, pair| decision(answer, pair), answer)
            }
            Command::Release(token) => {
                let token = self.token(token);
                let done = self.core.release(at, FencingToken::from_u64(token));
                let answer = self.oracle.step(now, |oracle| oracle.leases.release(now, token));
                self.compare(done, answer);
            }
            ...
        }
    }
}
