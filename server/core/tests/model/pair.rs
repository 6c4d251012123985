//! The bulkhead and the oracle side by side: each command runs on both, and all that can be seen is compared.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use tidegate_core::{
    Bulkhead, Decision, Effect, FencingToken, Grant, Instant, Reason, Release, Renewal, Stall, WaiterId,
};

use super::commands::{Border, Call, Command, Limit, Step, Token, Wish};
use super::convert;
use super::oracle::Oracle;
use super::plain::{Answer, Ask, MS, Rules, SECOND, Waiter};
use super::tally::{Outcome, Tally};

const START: u64 = 1_000 * SECOND;

pub struct Pair {
    core: Bulkhead,
    oracle: Oracle,
    now: u64,
    /// When time was last acted on.
    settled: u64,
    stall: Stall,
    /// What the core calls each call that was queued.
    ids: Vec<WaiterId>,
    /// The fencing floors told in this step.
    floors: Vec<u64>,
    /// What may run after this step: the limit before or after it, or what ran before.
    may_run: u32,
    refused: BTreeMap<Reason, u64>,
    tally: Tally,
    /// Tells each step on stderr.
    loud: bool,
}

impl Pair {
    pub fn new(rules: Rules, loud: bool) -> Self {
        let after = FencingToken::floor_of(7);
        let mut oracle = Oracle { rules, limit: rules.limit, ..Oracle::default() };
        oracle.leases.last_token = after.as_u64();
        oracle.leases.ttl = rules.ttl;
        oracle.leases.keep_spent = rules.max_ttl + 250 * MS;
        Self {
            core: Bulkhead::new(convert::settings(&rules), after),
            oracle,
            now: START,
            settled: 0,
            stall: Stall::default(),
            ids: Vec::new(),
            floors: Vec::new(),
            may_run: 0,
            refused: BTreeMap::new(),
            tally: Tally::default(),
            loud,
        }
    }

    pub fn run(&mut self, step: Step, command: &Command) {
        self.now = self.after(step);
        self.may_run = self.oracle.limit.max(self.oracle.leases.running());
        // The shell tells it before each call; only the first time counts.
        self.core.forgive(self.stall);
        let (now, at) = (self.now, Instant::from_nanos(self.now));
        if self.loud {
            eprintln!("{} ns: {command:?}", now - START);
        }
        if !matches!(command, Command::Confirm(_) | Command::Stall(_)) {
            self.settled = now;
        }
        match *command {
            Command::Acquire(ref wish) => self.acquire(wish),
            Command::Release(token) => {
                let token = self.token(token);
                let done = self.core.release(at, FencingToken::from_u64(token));
                let expected = self.oracle.step(now, |oracle| oracle.leases.release(now, token));
                self.compare("release", &done.answer, done.effects, &expected);
            }
            Command::ReleaseRequest(request) => {
                let done = self.core.release_request(at, convert::request(request));
                let expected = self.oracle.step(now, |oracle| oracle.release_request(now, request));
                self.compare("release by request id", &done.answer, done.effects, &expected);
            }
            Command::Renew(token) => {
                let token = self.token(token);
                let done = self.core.renew(at, FencingToken::from_u64(token));
                let expected = self.oracle.step(now, |oracle| oracle.leases.renew(now, token));
                if let Renewal::Renewed { floor, .. } = done.answer {
                    self.floors.push(floor.as_u64());
                }
                self.compare("renew", &convert::renewed(done.answer), done.effects, &expected);
            }
            Command::SetLimit(limit) => {
                let ceiling = self.oracle.rules.ceiling;
                let limit = match limit {
                    Limit::Within(nth) => 1 + nth % ceiling,
                    Limit::Above(more) => ceiling + 1 + more,
                    Limit::Zero => 0,
                };
                let done = self.core.set_limit(at, limit);
                let expected = self.oracle.step(now, |oracle| {
                    let within = (1..=ceiling).contains(&limit);
                    oracle.limit = if within { limit } else { oracle.limit };
                    within
                });
                self.compare("set limit", &done.answer.is_ok(), done.effects, &expected);
            }
            Command::Leave(call) => {
                let Some(call) = self.call(call) else { return };
                let done = self.core.leave(at, self.ids[call - 1]);
                self.oracle.queue.retain(|waiter| waiter.call != call);
                self.oracle.step(now, |_| ());
                self.compare("leave", &done.answer, done.effects, &());
            }
            Command::Confirm(token) => {
                let token = self.token(token);
                self.core.confirm(FencingToken::from_u64(token));
                self.oracle.leases.confirm(token);
                self.compare("confirm", &(), Vec::new(), &());
            }
            Command::GiveBack(token) => {
                let token = self.token(token);
                let done = self.core.give_back(at, FencingToken::from_u64(token));
                let unheard = self.oracle.step(now, |oracle| oracle.leases.give_back(token));
                self.tally.count("take back", unheard.outcome());
                self.compare("give back", &done.answer, done.effects, &());
            }
            Command::Configure(limit, ceiling) => {
                let limit = limit.unwrap_or(self.oracle.rules.limit).min(ceiling);
                let rules = Rules { limit, ceiling, ..self.oracle.rules };
                let done = self.core.configure(at, convert::settings(&rules));
                self.oracle.step(now, |oracle| {
                    oracle.limit = if limit == oracle.rules.limit { oracle.limit } else { limit }.min(ceiling);
                    oracle.rules = rules;
                    while oracle.refuse_waiter(Reason::PermitsExceedCeiling, |waiter| waiter.ask.permits > ceiling) {}
                });
                self.compare("configure", &done.answer, done.effects, &());
            }
            Command::Stall(millis) => {
                let gap = Duration::from_millis(millis);
                self.now += millis * MS;
                self.stall = Stall { total: self.stall.total + gap, resumed: Instant::from_nanos(self.now) };
                self.core.forgive(self.stall);
                self.oracle.leases.forgive(millis * MS, self.now);
                self.oracle.grants_resume = self.now + 50 * MS;
                self.compare("stall", &(), Vec::new(), &());
            }
            Command::Advance => {
                let done = self.core.advance(at);
                self.oracle.step(now, |_| ());
                self.compare("advance", &done.answer, done.effects, &());
            }
        }
    }

    fn acquire(&mut self, wish: &Wish) {
        let (now, ask) = (self.now, self.ask(wish));
        let done = self.core.acquire(Instant::from_nanos(now), convert::acquire(&ask));
        let expected = self.oracle.step(now, |oracle| oracle.acquire(now, &ask));
        let answer = match done.answer {
            Decision::Granted(grant) => self.granted(&grant),
            Decision::Refused(refusal) => convert::refused(&refusal),
            Decision::Queued(id) => {
                assert!(!self.ids.contains(&id), "{id:?} was used before");
                self.ids.push(id);
                Answer::Queued(self.ids.len())
            }
        };
        if let Answer::Refused { reason, .. } = expected {
            *self.refused.entry(reason).or_default() += 1;
        }
        let superseded = |answer: &Answer| matches!(answer, Answer::Refused { reason: Reason::Superseded, .. });
        let takes_over = self.oracle.effects.iter().any(|(_, answer)| superseded(answer));
        self.compare(if takes_over { "repeat" } else { "acquire" }, &answer, done.effects, &expected);
    }

    fn compare<T>(&mut self, verb: &'static str, answer: &T, effects: Vec<Effect>, expected: &T)
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
        self.compare_deadline();
    }

    fn compare_effects(&mut self, effects: Vec<Effect>) {
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for effect in effects {
            let (id, answer) = match effect {
                Effect::Granted(id, grant) => (id, self.granted(&grant)),
                Effect::Refused(id, refusal) => (id, convert::refused(&refusal)),
            };
            calls.push(self.ids.iter().position(|known| *known == id).expect("a call that was queued") + 1);
            answers.push(answer);
        }
        let expected = std::mem::take(&mut self.oracle.effects);
        assert!(answers.iter().eq(expected.iter().map(|(_, answer)| answer)), "{answers:?}, not {expected:?}");
        // Waits that end at the same instant, and those above a new ceiling, may be refused in any order.
        let rank = |at: usize| match expected[at] {
            (ref waiter, Answer::Refused { reason: Reason::WaitTimeout, .. }) => (0, waiter.end),
            (_, Answer::Refused { reason: Reason::PermitsExceedCeiling, .. }) => (1, 0),
            _ => (2, at as u64),
        };
        let mut told: Vec<_> = calls.iter().enumerate().map(|(at, &call)| (rank(at), call)).collect();
        let mut right: Vec<_> = expected.iter().enumerate().map(|(at, (waiter, _))| (rank(at), waiter.call)).collect();
        told.sort_unstable();
        right.sort_unstable();
        assert_eq!(told, right, "core, then oracle: whom {expected:?} concerns");
        for (waiter, answer) in &expected {
            self.tally.count("waiter", answer.outcome());
            match *answer {
                Answer::Granted { .. } => {
                    let is_before =
                        |other: &Waiter| other.ask.permits > self.oracle.limit && other.place < waiter.place;
                    let passes = self.oracle.queue.iter().any(is_before);
                    self.tally.count("waiter passes over another", passes.outcome());
                }
                Answer::Refused { reason, .. } => *self.refused.entry(reason).or_default() += 1,
                Answer::Queued(_) => unreachable!(),
            }
        }
    }

    /// What is counted: all of it follows from the answers and the leases.
    fn compare_status(&mut self) {
        let (status, oracle) = (self.core.status(), &self.oracle);
        assert_eq!(self.core.last_token().as_u64(), oracle.leases.last_token, "core, then oracle: last token");
        let running = oracle.leases.running();
        assert_eq!((status.limit, status.running), (oracle.limit, running), "core, then oracle: limit, running");
        assert_eq!(status.queued as usize, oracle.queue.len(), "core, then oracle: queued");
        assert!(running <= self.may_run.max(oracle.limit), "P1: {running} run");
        assert!(oracle.queue.len() <= oracle.rules.max_queued, "R3: too many wait");
        self.tally.count("more run than the limit", (running > oracle.limit).outcome());
        let leases = oracle.leases.all.values();
        let expired = leases.clone().filter(|lease| matches!(lease.over, Some((Release::Expired, _)))).count() as u64;
        let granted = leases.filter(|lease| lease.told).count() as u64;
        let waited = self.tally.get("acquire", "queued");
        let turned_away: u64 = [Reason::ConcurrencyCapacityExhausted, Reason::QueueFull, Reason::WaitTimeout]
            .iter()
            .map(|reason| self.tally.get("acquire", reason.as_str()))
            .sum();
        let totals = status.totals;
        assert_eq!((totals.granted, totals.expired, totals.forgotten), (granted, expired, 0), "core, then oracle");
        assert_eq!((totals.waited, totals.held_back), (waited, waited + turned_away), "core, then oracle");
        for reason in Reason::ALL {
            let expected = self.refused.get(&reason).copied().unwrap_or_default();
            assert_eq!(totals.refused(reason), expected, "core, then oracle: refused {reason:?}");
        }
    }

    fn compare_leases(&mut self) {
        let held = self.core.leases_from(FencingToken::default());
        let held =
            held.map(|held| (held.token.as_u64(), held.permits, held.granted_at.as_nanos(), held.end.as_nanos()));
        let all = &self.oracle.leases.all;
        let live = all.iter().filter(|(_, lease)| lease.over.is_none());
        let live = live.map(|(&token, lease)| (token, lease.ask.permits, lease.granted_at, lease.end));
        let (held, live): (Vec<_>, Vec<_>) = (held.collect(), live.collect());
        assert_eq!(held, live, "core, then oracle: live leases");
        let lowest = live.first().map_or(u64::MAX, |lease| lease.0).min(self.oracle.leases.last_token + 1);
        assert!(self.floors.drain(..).all(|floor| floor <= lowest), "a fencing floor leads {lowest}");
    }

    /// Somebody must come by no later than the next thing that a waiter waits for.
    fn compare_deadline(&self) {
        let ends = self.oracle.queue.iter().map(|waiter| waiter.end);
        let live = self.oracle.leases.all.values().filter(|lease| lease.over.is_none());
        let due = live.map(|lease| lease.end.max(self.oracle.leases.quiet_until));
        let pause = Some(self.oracle.grants_resume).filter(|&at| at > self.settled);
        let next = ends.chain(due).chain(pause).min().filter(|_| !self.oracle.queue.is_empty());
        assert_eq!(self.core.next_deadline().map(Instant::as_nanos), next, "core, then oracle: next deadline");
    }

    fn granted(&mut self, grant: &Grant) -> Answer {
        assert!(grant.floor <= grant.token);
        self.floors.push(grant.floor.as_u64());
        convert::granted(grant)
    }

    /// Everybody leaves, releases or expires: then nothing runs, nobody waits, and the limit can be taken at once.
    pub fn drain_and_refill(mut self) -> Tally {
        while let Some(waiter) = self.oracle.queue.first() {
            let at = waiter.call - 1;
            self.run(Step::None, &Command::Leave(Call::Any(at)));
        }
        for nth in 0..self.oracle.leases.running() as usize / 2 {
            self.run(Step::None, &Command::Release(Token::Live(nth)));
        }
        self.run(Step::Millis(10_000), &Command::Advance);
        let status = self.core.status();
        assert_eq!((status.running, status.queued), (0, 0), "P3: a permit or a place is lost");
        let wish = Wish { permits: 1, ..Wish::default() };
        (0..self.oracle.limit).for_each(|_| self.run(Step::None, &Command::Acquire(wish.clone())));
        assert_eq!(self.core.status().running, self.oracle.limit, "P3: a permit is lost");
        self.tally
    }

    // --- What a command's numbers stand for ------------------------------------------------------------------------

    fn ask(&self, wish: &Wish) -> Ask {
        let deadline = wish.deadline.map(|(millis, _)| self.now.saturating_add_signed(millis * MS.cast_signed()));
        let mut ask = Ask {
            permits: wish.permits,
            rank: wish.rank,
            max_wait: wish.max_wait.map(|millis| millis * MS),
            deadline,
            answer_by: deadline.zip(wish.deadline).map(|(deadline, (_, margin))| deadline - margin * MS),
            ttl: wish.ttl.map(|millis| millis * MS),
            request: wish.request,
            print: 1,
        };
        if let (Some(request), true) = (wish.request, wish.as_usual) {
            (ask.permits, ask.print) = (1 + u32::try_from(request).unwrap() / 2, 0);
            ask.ttl = (request % 2 == 0).then_some(4 * SECOND);
        }
        ask
    }

    /// The next instant of that kind at which something is due, moved by that much; now, if there is none.
    fn after(&self, step: Step) -> u64 {
        let leases = &self.oracle.leases;
        let (border, side) = match step {
            Step::None => return self.now,
            Step::Millis(millis) => return self.now + millis * MS,
            Step::Border(border, side) => (border, side),
        };
        let ends: Vec<u64> = match border {
            Border::Wait => self.oracle.queue.iter().map(|waiter| waiter.end).collect(),
            Border::Lease => leases.live(|_| true).iter().map(|token| leases.all[token].end).collect(),
            Border::Stall => vec![leases.quiet_until, self.oracle.grants_resume],
            Border::Memory => {
                let ended = leases.all.values().filter_map(|lease| lease.over).map(|(_, until)| until);
                ended.chain(leases.spent.iter().map(|spent| spent.2)).collect()
            }
        };
        let moved = ends.into_iter().map(|end| end.saturating_add_signed(side));
        moved.filter(|&end| end > self.now).min().unwrap_or(self.now)
    }

    fn token(&self, token: Token) -> u64 {
        let last = self.oracle.leases.last_token;
        let (of, nth) = match token {
            Token::Live(nth) => (self.oracle.leases.live(|_| true), nth),
            Token::Unheard(nth) => (self.oracle.leases.live(|lease| !lease.told), nth),
            Token::Any(nth) => (self.oracle.leases.all.keys().copied().collect(), nth),
            Token::MadeUp(more) => return last.wrapping_add(more),
        };
        if of.is_empty() { last + 1 } else { of[nth % of.len()] }
    }

    fn call(&self, call: Call) -> Option<usize> {
        match call {
            Call::Waiting(nth) => self.oracle.queue.get(nth % self.oracle.queue.len().max(1)).map(|waiter| waiter.call),
            Call::Any(nth) => (!self.ids.is_empty()).then(|| 1 + nth % self.ids.len()),
        }
    }
}
