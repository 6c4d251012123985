//! The bulkhead and the oracle side by side: each command runs on both, and all that can be seen is compared.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use tidegate_core::{Bulkhead, Decision, FencingToken, Instant, Mode, Reason, Renewal, Room, Stall, WaiterId};

use super::commands::{Call, Command, Step, Token, Wish};
use super::convert;
use super::cooldowns::PARTITIONS;
use super::oracle::Oracle;
use super::plain::{Answer, MS, Rules, SECOND};
use super::shell::{self, Shell};
use super::tally::{Outcome, Tally};
use super::told::Told;

const START: u64 = 1_000 * SECOND;

pub struct Pair {
    pub core: Bulkhead,
    pub oracle: Oracle,
    pub now: u64,
    /// When time was last acted on.
    pub settled: u64,
    pub stall: Stall,
    /// What the core calls each call that was queued.
    pub ids: Vec<WaiterId>,
    pub told: Told,
    pub shell: Shell,
    /// The fencing floors told in this step.
    pub floors: Vec<u64>,
    /// What may run after this step: the limit before or after it, or what ran before.
    pub may_run: u32,
    pub refused: BTreeMap<Reason, u64>,
    /// The mode before this step, and the operator's words.
    pub mode: (Mode, String),
    pub tally: Tally,
    /// Tells each step on stderr.
    pub loud: bool,
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
            told: Told::default(),
            shell: Shell::default(),
            floors: Vec::new(),
            may_run: 0,
            refused: BTreeMap::new(),
            mode: (Mode::Enforcing, String::new()),
            tally: Tally::default(),
            loud,
        }
    }

    pub fn run(&mut self, step: Step, command: &Command) {
        self.now = self.after(step);
        self.visit();
        self.command(command);
    }

    /// Reports reach the bulkhead, if it has waiters that they concern.
    fn visit(&mut self) {
        for (partition, end) in self.shell.due_visits() {
            if self.told.has(&shell::name(partition).map(Into::into)) {
                self.prepare(&format_args!("the bulkhead is told of partition {partition}"));
                let done =
                    self.core.cool(Instant::from_nanos(self.now), shell::name(partition), Instant::from_nanos(end));
                let now = self.now;
                self.oracle.step(now, |oracle| oracle.cool(now, partition, end));
                self.compare("cool", &done.answer, done.effects, &());
            }
        }
        self.shell.visited();
    }

    /// A call comes that settles what is due.
    fn prepare(&mut self, what: &dyn Debug) {
        if self.loud {
            eprintln!("{} ns: {what:?}", self.now - START);
        }
        let reverted = self.oracle.revert.filter(|&(at, _)| at <= self.now).map_or(0, |(_, limit)| limit);
        self.may_run = self.oracle.limit.max(self.oracle.leases.running()).max(reverted);
        self.mode = (self.oracle.rules.mode, self.oracle.detail.clone());
        // The shell tells it before each call; only the first time counts.
        self.core.forgive(self.stall);
        self.settled = self.now;
    }

    fn command(&mut self, command: &Command) {
        let (now, at, settled) = (self.now, Instant::from_nanos(self.now), self.settled);
        self.prepare(command);
        if matches!(command, Command::Confirm(_) | Command::Stall(_) | Command::Report(..) | Command::Room(..)) {
            self.settled = settled;
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
            Command::Renew(token, stream) => {
                let token = self.token(token);
                let done = self.core.renew(at, FencingToken::from_u64(token), stream);
                let expected = self.oracle.step(now, |oracle| oracle.leases.renew(now, token, stream));
                if let Renewal::Renewed { floor, .. } = done.answer {
                    self.floors.push(floor.as_u64());
                }
                self.compare("renew", &convert::renewed(done.answer), done.effects, &expected);
            }
            Command::SetLimit(limit, revert_after) => self.set_limit(limit, revert_after),
            Command::SetMode(mode) => self.set_mode(mode),
            Command::Revoke(token, immediate) => self.revoke(token, immediate),
            Command::Drain => {
                let done = self.core.drain(at);
                self.oracle.step(now, |oracle| {
                    oracle.draining = true;
                    oracle.empty_queue(now);
                });
                self.compare("drain", &done.answer, done.effects, &());
            }
            Command::Leave(call) => {
                let Some(call) = self.call(call) else { return };
                let done = self.core.leave(at, self.ids[call - 1]);
                self.told.left(self.ids[call - 1]);
                self.oracle.leave(call);
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
            Command::Configure(limit, ceiling, mode) => self.configure(limit, ceiling, mode),
            Command::Stall(millis) => {
                let gap = Duration::from_millis(millis);
                self.now += millis * MS;
                self.stall = Stall { total: self.stall.total + gap, resumed: Instant::from_nanos(self.now) };
                self.core.forgive(self.stall);
                self.oracle.leases.forgive(millis * MS, self.now);
                self.oracle.grants_resume = self.now + 50 * MS;
                self.compare("stall", &(), Vec::new(), &());
            }
            Command::Report(partition, millis, visit_after) => self.report(partition, millis, visit_after),
            Command::Clear(partition) => {
                self.shell.clear(partition);
                let done = self.core.calm(at, shell::name(partition));
                self.oracle.step(now, |oracle| oracle.ends[partition] = None);
                self.compare("clear", &done.answer, done.effects, &());
            }
            Command::Room(leases, waiters) => {
                self.oracle.room = Room { leases, waiters, ..Room::default() };
                self.core.set_room(self.oracle.room);
                self.compare("room", &(), Vec::new(), &());
            }
            Command::Advance => {
                let done = self.core.advance(at);
                self.oracle.step(now, |_| ());
                self.compare("advance", &done.answer, done.effects, &());
                // There is never so much that one step is not enough.
                assert!(!self.core.is_due(at), "what is due is done");
                drop(self.core.shrink());
            }
        }
    }

    fn report(&mut self, partition: usize, millis: u64, visit_after: u32) {
        let extended = self.shell.report(self.now, partition, millis * MS, visit_after);
        self.compare("report", &extended, Vec::new(), &extended);
        if visit_after == 0 {
            self.visit();
        }
    }

    fn acquire(&mut self, wish: &Wish) {
        let (now, ask) = (self.now, self.ask(wish));
        let before = (self.oracle.would_wait, self.oracle.would_refuse);
        let done = self.core.acquire(Instant::from_nanos(now), convert::acquire(&ask));
        let expected = self.oracle.step(now, |oracle| oracle.acquire(now, &ask));
        let answer = match done.answer {
            Decision::Granted(grant) => self.granted(&grant),
            Decision::Refused(refusal) => self.refused(&refusal),
            Decision::Queued(id) => {
                assert!(!self.ids.contains(&id), "{id:?} was used before");
                self.ids.push(id);
                self.told.queued(id, shell::name(ask.partition).map(Into::into));
                Answer::Queued(self.ids.len())
            }
        };
        if let Answer::Refused { reason, .. } = expected {
            *self.refused.entry(reason).or_default() += 1;
        }
        let superseded = |answer: &Answer| matches!(answer, Answer::Refused { reason: Reason::Superseded, .. });
        let takes_over = self.oracle.effects.iter().any(|(_, answer)| superseded(answer));
        match expected {
            Answer::Granted { replayed: false, .. } => {
                let forbidden = self.shell.forbids(now, ask.partition) && self.oracle.rules.mode != Mode::Shadow;
                assert!(!forbidden, "R10: granted during its cooldown");
                self.count_forecast(before);
                self.tally.count("acquire is granted in a ramp", self.ramps(ask.partition).outcome());
            }
            Answer::Refused { ramp: Some(_), .. } => self.tally.count("acquire is held by the ramp", "done"),
            Answer::Refused { reason: Reason::QueueFull, queued, .. } if queued < self.oracle.rules.max_queued => {
                self.tally.count("half the queue is held", "done");
            }
            _ => {}
        }
        self.tally.count(self.in_mode(), expected.outcome());
        self.compare(if takes_over { "repeat" } else { "acquire" }, &answer, done.effects, &expected);
    }

    /// Everybody leaves, releases or expires: then nothing runs, nobody waits, and the limit can be taken at once.
    pub fn drain_and_refill(mut self) -> Tally {
        self.run(Step::None, &Command::Room(usize::MAX, usize::MAX));
        self.run(Step::None, &Command::SetMode(Mode::Enforcing));
        (0..PARTITIONS).for_each(|partition| self.run(Step::None, &Command::Clear(partition)));
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
        (0..self.oracle.leases.ran_out).for_each(|_| self.tally.count("a revoked one runs out", "done"));
        let wish = Wish { permits: 1, ..Wish::default() };
        (0..self.oracle.limit).for_each(|_| self.run(Step::None, &Command::Acquire(wish.clone())));
        let expected = if self.oracle.draining { 0 } else { self.oracle.limit };
        assert_eq!(self.core.status().running, expected, "P3: a permit is lost, or granted by a server that stops");
        self.tally
    }
}
