//! All that can be seen of the bulkhead after a step, compared with the oracle.

use std::fmt::Debug;

use tidegate_core::{Effect, FencingToken, Grant, Instant, Mode, QueuedWaiter, Reason, Refusal, Release};

use super::convert;
use super::cooldowns::{Phase, phase};
use super::pair::Pair;
use super::plain::{Answer, Rules, Waiter};
use super::shell;
use super::tally::Outcome;

impl Pair {
    pub fn compare<T>(&mut self, verb: &'static str, answer: &T, effects: Vec<Effect>, expected: &T)
    where
        T: Debug + Outcome + PartialEq,
    {
        if self.loud {
            eprintln!("    {answer:?}");
            effects.iter().for_each(|effect| eprintln!("        {effect:?}"));
        }
        assert_eq!(answer, expected, "core, then oracle: the answer to {verb}");
        self.tally.count(verb, expected.outcome());
        self.compare_effects(effects);
        self.compare_status();
        self.compare_leases();
        self.compare_waiters();
        self.compare_deadline();
    }

    fn compare_effects(&mut self, effects: Vec<Effect>) {
        self.told.effects(&effects);
        let (mut calls, mut answers, mut reverted) = (Vec::new(), Vec::new(), None);
        for effect in effects {
            let (id, answer) = match effect {
                Effect::Granted(id, grant) => (id, self.granted(&grant)),
                Effect::Refused(id, refusal) => (id, self.refused(&refusal)),
                Effect::Waits(_) | Effect::WaitsNoMore(_) => continue,
                Effect::Reverted { before, after } => {
                    assert_eq!(reverted.replace((before, after)), None, "it went back twice");
                    continue;
                }
            };
            calls.push(self.ids.iter().position(|known| *known == id).expect("a call that was queued") + 1);
            answers.push(answer);
        }
        assert_eq!(reverted, self.oracle.reverted.take(), "core, then oracle: the limit went back");
        self.tally.count("revert", reverted.is_some().outcome());
        let expected = std::mem::take(&mut self.oracle.effects);
        // Waits that end at the same instant, those above a new ceiling, and those that one cooldown refuses may be
        // refused in any order.
        let rank = |at: usize| match expected[at] {
            (ref waiter, Answer::Refused { reason: Reason::WaitTimeout, .. }) => (0, waiter.end),
            (_, Answer::Refused { reason: Reason::PermitsExceedCeiling, .. }) => (1, 0),
            (_, Answer::Refused { cooldown: Some(_), .. }) => (2, 0),
            _ => (3, at as u64),
        };
        let plain = |answer: &Answer| answer.clone().apart().0;
        let (told, right): (Vec<_>, Vec<_>) =
            (answers.iter().map(plain).collect(), expected.iter().map(|(_, answer)| plain(answer)).collect());
        assert_eq!(told, right, "core, then oracle: what waiters are told");
        let whom = |(at, (call, answer)): (usize, (usize, &Answer))| (rank(at), call, answer.clone().apart().1);
        let mut told: Vec<_> = calls.into_iter().zip(&answers).enumerate().map(whom).collect();
        let mut right: Vec<_> =
            expected.iter().map(|(waiter, answer)| (waiter.call, answer)).enumerate().map(whom).collect();
        told.sort_unstable();
        right.sort_unstable();
        assert_eq!(told, right, "core, then oracle: whom {expected:?} concerns");
        for (waiter, answer) in &expected {
            self.tally.count("waiter", answer.outcome());
            match *answer {
                Answer::Granted { .. } => self.count_grant(waiter),
                Answer::Refused { reason, .. } => *self.refused.entry(reason).or_default() += 1,
                Answer::Queued(_) => unreachable!(),
            }
        }
    }

    /// A waiter was granted: whom it passed over, and what its partition has to do with it.
    fn count_grant(&mut self, waiter: &Waiter) {
        let (partition, oracle) = (waiter.ask.partition, &self.oracle);
        if oracle.rules.mode == Mode::Shadow {
            return self.tally.count("shadow grants a waiter", "done");
        }
        assert!(!self.shell.forbids(self.now, partition), "R10: a waiter is granted during its cooldown");
        let is_before = |other: &&Waiter| other.place < waiter.place;
        let large = oracle.queue.iter().filter(is_before).any(|other| other.ask.permits > oracle.limit);
        let held = oracle.held().filter(is_before).any(|other| other.ask.partition != partition);
        let ramps = self.ramps(partition);
        self.tally.count("waiter passes over a large one", large.outcome());
        self.tally.count("waiter passes over a held one", held.outcome());
        self.tally.count("waiter is granted in a ramp", ramps.outcome());
    }

    /// A newcomer of that partition would meet its ramp.
    pub fn ramps(&self, partition: usize) -> bool {
        let Rules { ramp_step, .. } = self.oracle.rules;
        let end = self.shell.end(self.now, partition, ramp_step);
        matches!(phase(self.now, end, ramp_step, self.oracle.limit), Phase::Ramp(..))
    }

    /// What is counted: all of it follows from the answers and the leases.
    fn compare_status(&mut self) {
        let (status, oracle) = (self.core.status(), &self.oracle);
        assert_eq!(self.core.last_token().as_u64(), oracle.leases.last_token, "core, then oracle: last token");
        let running = oracle.leases.running();
        assert_eq!((status.limit, status.running), (oracle.limit, running), "core, then oracle: limit, running");
        assert_eq!(status.queued as usize, oracle.queue.len(), "core, then oracle: queued");
        let is_shadow = oracle.rules.mode == Mode::Shadow;
        assert!(is_shadow || running <= self.may_run.max(oracle.limit), "P1: {running} run");
        assert_eq!(status.revert, oracle.revert.map(convert::revert), "core, then oracle: revert");
        let mode = (oracle.rules.mode, oracle.detail.as_str());
        assert_eq!((self.core.settings().mode(), self.core.mode_detail()), mode, "core, then oracle: mode");
        assert!(oracle.queue.len() <= oracle.rules.max_queued, "R3: too many wait");
        self.tally.count("more run than the limit", (running > oracle.limit).outcome());
        let leases = oracle.leases.all.values();
        let expired = leases.clone().filter(|lease| matches!(lease.over, Some((Release::Expired, _)))).count() as u64;
        let granted = leases.filter(|lease| lease.told).count() as u64;
        let waited = self.tally.get("acquire", "queued");
        let turned_away = [
            Reason::ConcurrencyCapacityExhausted,
            Reason::QueueFull,
            Reason::WaitTimeout,
            Reason::CooldownActive,
            Reason::CooldownExceedsDeadline,
            Reason::ServerCapReached,
        ];
        let turned_away: u64 = turned_away.iter().map(|reason| self.tally.get("acquire", reason.as_str())).sum();
        let (totals, used) = (status.totals, self.core.occupied());
        let leases = oracle.leases.live(|_| true).len() + oracle.queue.len();
        assert_eq!((used.leases, used.waiters), (leases, oracle.queue.len()), "core, then oracle: room");
        assert_eq!((totals.granted, totals.expired, totals.forgotten), (granted, expired, 0), "core, then oracle");
        let forecast = (oracle.leases.revoked, oracle.would_wait, oracle.would_refuse);
        assert_eq!((totals.revoked, totals.would_wait, totals.would_refuse), forecast, "core, then oracle");
        assert_eq!((totals.waited, totals.held_back), (waited, waited + turned_away), "core, then oracle");
        for reason in Reason::ALL {
            let expected = self.refused.get(&reason).copied().unwrap_or_default();
            assert_eq!(totals.refused(reason), expected, "core, then oracle: refused {reason:?}");
        }
    }

    fn compare_leases(&mut self) {
        let held = self.core.leases_from(FencingToken::default());
        let held = held.map(|held| {
            let times = (held.granted_at.as_nanos(), held.end.as_nanos());
            (held.token.as_u64(), held.permits, held.partition.map(str::to_owned), times, held.revoked)
        });
        let all = &self.oracle.leases.all;
        let live = all.iter().filter(|(_, lease)| lease.over.is_none());
        let live = live.map(|(&token, lease)| {
            let partition = shell::name(lease.ask.partition).map(str::to_owned);
            (token, lease.ask.permits, partition, (lease.granted_at, lease.end), lease.revoked)
        });
        let (held, live): (Vec<_>, Vec<_>) = (held.collect(), live.collect());
        assert_eq!(held, live, "core, then oracle: live leases");
        let lowest = live.first().map_or(u64::MAX, |lease| lease.0).min(self.oracle.leases.last_token + 1);
        assert!(self.floors.drain(..).all(|floor| floor <= lowest), "a fencing floor leads {lowest}");
    }

    /// In order, two by two: who waits, since when and until when, and who is passed over.
    fn compare_waiters(&self) {
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let page: Vec<QueuedWaiter> = self.core.waiters_after(after, 2).collect();
            let Some(last) = page.last() else { break };
            after = Some(last.place);
            listed.extend(page.into_iter().map(|waiter| {
                let (place, partition) = ((waiter.place.nanos, waiter.place.arrival), waiter.partition);
                let times = (waiter.since.as_nanos(), waiter.end.as_nanos());
                (place, waiter.permits, waiter.priority, partition, times, waiter.passed_over)
            }));
        }
        let mut waiters: Vec<_> = self.oracle.queue.iter().collect();
        waiters.sort_by_key(|waiter| waiter.place);
        let expected = waiters.into_iter().map(|waiter| {
            let &Waiter { since, end, place, ref ask, .. } = waiter;
            let (place, partition) = ((place.0, place.1 as u64), shell::name(ask.partition));
            let passed_over = !self.oracle.is_eligible(self.settled, waiter);
            (place, ask.permits, convert::priority(ask.rank), partition, (since, end), passed_over)
        });
        assert_eq!(listed, expected.collect::<Vec<_>>(), "core, then oracle: waiters");
    }

    /// Somebody must come by no later than the next thing that a waiter waits for.
    fn compare_deadline(&self) {
        let ends = self.oracle.queue.iter().map(|waiter| waiter.end);
        let live = self.oracle.leases.all.values().filter(|lease| lease.over.is_none());
        let due = live.map(|lease| lease.end.max(self.oracle.leases.quiet_until));
        let pause = Some(self.oracle.grants_resume).filter(|&at| at > self.settled);
        let turns = self.oracle.turns(self.settled);
        let revert = self.oracle.revert.map(|revert| revert.0);
        let next =
            ends.chain(due).chain(pause).chain(turns).chain(revert).min().filter(|_| !self.oracle.queue.is_empty());
        assert_eq!(self.core.next_deadline().map(Instant::as_nanos), next, "core, then oracle: next deadline");
    }

    pub fn refused(&self, refusal: &Refusal) -> Answer {
        let is_closed = refusal.reason == Reason::BulkheadClosed;
        let of_a_pause = matches!(
            refusal.reason,
            Reason::WaitTimeout | Reason::ConcurrencyCapacityExhausted | Reason::QueueFull | Reason::Displaced
        );
        let now = (self.oracle.rules.mode, self.oracle.detail.clone());
        // A step that changes the mode settles first what was due under the one before.
        let told = [&self.mode, &now].map(|(mode, detail)| {
            let is_told = if of_a_pause { *mode == Mode::Paused } else { is_closed };
            is_told.then_some(detail.as_str())
        });
        let allowed = if of_a_pause { &told[..] } else { &told[1..] };
        let detail = refusal.detail.as_deref();
        assert!(allowed.contains(&detail), "core, then oracle: the operator's words, {detail:?}, {allowed:?}");
        convert::refused(refusal)
    }

    pub fn granted(&mut self, grant: &Grant) -> Answer {
        assert!(grant.floor <= grant.token);
        self.floors.push(grant.floor.as_u64());
        convert::granted(grant)
    }
}
