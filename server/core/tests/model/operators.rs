//! What operators do, on both.

use std::time::Duration;

use tidegate_core::{FencingToken, Instant, Mode};

use super::commands::{Limit, Token};
use super::convert;
use super::pair::Pair;
use super::plain::{MS, Rules};
use super::tally::Outcome;

impl Pair {
    pub fn set_limit(&mut self, limit: Limit, revert_after: Option<u64>) {
        let (now, at, ceiling) = (self.now, Instant::from_nanos(self.now), self.oracle.rules.ceiling);
        let limit = match limit {
            Limit::Within(nth) => 1 + nth % ceiling,
            Limit::Above(more) => ceiling + 1 + more,
            Limit::Zero => 0,
        };
        let done = self.core.set_limit(at, limit, revert_after.map(Duration::from_millis));
        let (mut was_pending, after) = (false, revert_after.map(|after| after * MS));
        let expected = self.oracle.step(now, |oracle| {
            was_pending = oracle.revert.is_some();
            oracle.set_limit(now, limit, after)
        });
        if was_pending {
            self.tally.count("pending revert", if expected && after.is_none() { "cancelled" } else { "kept" });
        }
        self.compare("set limit", &done.answer.is_ok(), done.effects, &expected);
    }

    pub fn configure(&mut self, limit: Option<u32>, ceiling: u32, mode: Option<Mode>) {
        let (now, at) = (self.now, Instant::from_nanos(self.now));
        let moves_limit = limit.is_some();
        let limit = limit.unwrap_or(self.oracle.rules.limit).min(ceiling);
        let mode = mode.unwrap_or(self.oracle.rules.mode);
        let rules = Rules { limit, ceiling, mode, ..self.oracle.rules };
        let done = self.core.configure(at, convert::settings(&rules), moves_limit);
        self.oracle.step(now, |oracle| oracle.configure(now, rules, moves_limit));
        self.compare("configure", &done.answer, done.effects, &());
    }

    pub fn set_mode(&mut self, mode: Mode) {
        let (now, at, detail) = (self.now, Instant::from_nanos(self.now), format!("since {}", self.now));
        self.tally.count("set mode", mode.as_str());
        let done = self.core.set_mode(at, mode, &detail);
        self.oracle.step(now, |oracle| {
            (oracle.rules.mode, oracle.detail) = (mode, detail);
            oracle.empty_queue(now);
        });
        self.compare("mode", &done.answer, done.effects, &());
    }

    pub fn revoke(&mut self, token: Token, immediate: bool) {
        let (now, at, token) = (self.now, Instant::from_nanos(self.now), self.token(token));
        let done = self.core.revoke(at, FencingToken::from_u64(token), immediate);
        let (mut again, mut told) = (false, true);
        let expected = self.oracle.step(now, |oracle| {
            let lease = oracle.leases.all.get(&token);
            (again, told) = (lease.is_some_and(|lease| lease.revoked), lease.is_none_or(|lease| lease.told));
            oracle.leases.revoke(now, token, immediate).map(convert::revoked)
        });
        if let Some(revoked) = expected {
            self.tally.count("revoke at once", immediate.outcome());
            self.tally.count("revoke again", again.outcome());
            self.tally.count("revoke one that nobody heard of", (!told).outcome());
            self.tally.count("revoke is told on a stream", revoked.stream.is_some().outcome());
        }
        self.compare("revoke", &done.answer, done.effects, &expected);
    }

    /// A newcomer was granted; what the rule would have done before was counted so.
    pub fn count_forecast(&mut self, before: (u64, u64)) {
        if self.oracle.rules.mode == Mode::Shadow {
            let forecast = match before {
                (wait, _) if wait < self.oracle.would_wait => "would wait",
                (_, refuse) if refuse < self.oracle.would_refuse => "would refuse",
                _ => "marked",
            };
            self.tally.count("forecast", forecast);
        }
    }

    /// What an acquire is counted as, where a mode has a say.
    pub fn in_mode(&self) -> &'static str {
        match self.oracle.rules.mode {
            Mode::Closed => "acquire, shut",
            _ if self.oracle.draining => "acquire, shut",
            Mode::Enforcing => "acquire, enforcing",
            Mode::Shadow => "acquire, shadow",
            Mode::Paused => "acquire, paused",
        }
    }
}
