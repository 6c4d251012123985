//! Where a story is played: one bulkhead, its time, and who stands behind each name.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{Bulkhead, Decision, Effect, FencingToken, Instant, Mode, Room, Stall, Step, WaiterId, extend};

use super::told::Told;
use super::words;

/// How far to the right the answers stand.
const ANSWERS: usize = 48;
/// How far to the right what happened to others stands.
const EFFECTS: usize = 11;

pub struct Stage {
    core: Bulkhead,
    now: Instant,
    forgiven: Duration,
    /// The server is stopping: nobody is let in any more.
    drained: bool,
    /// By the name of each call: what it got so far.
    callers: BTreeMap<String, Caller>,
    told: Told,
    /// As the shell keeps them: when the cooldown of each partition ends or ended; `None` is the bulkhead's own name.
    cooldowns: BTreeMap<Option<Box<str>>, Instant>,
}

/// A call: its place in the queue, if it ever had one, and its lease.
#[derive(Clone, Copy, Default)]
struct Caller {
    place: Option<WaiterId>,
    lease: Option<FencingToken>,
}

impl Stage {
    pub fn new(settings: &[&str]) -> Result<Self, String> {
        Ok(Self {
            core: Bulkhead::new(words::settings(settings)?, FencingToken::default()),
            now: Instant::ORIGIN,
            forgiven: Duration::ZERO,
            drained: false,
            callers: BTreeMap::new(),
            told: Told::default(),
            cooldowns: BTreeMap::new(),
        })
    }

    /// One command: the lines that tell it and what came of it.
    pub fn play(&mut self, time: &str, command: &[&str]) -> Result<String, String> {
        let now = words::instant(time)?;
        if now < self.now {
            return Err(format!("time goes back from {} to {time}", words::at(self.now)));
        }
        self.now = now;
        let until_arrow = command.iter().position(|word| *word == "->").unwrap_or(command.len());
        let command = &command[..until_arrow];
        let (answer, effects) = self.act(command)?;
        let told = format!("at {time:<width$}{}", command.join(" "), width = EFFECTS - 3);
        let mut told = match answer.as_str() {
            "" => told,
            answer => format!("{told:<ANSWERS$} -> {answer}"),
        };
        self.told.effects(&effects);
        for effect in effects {
            if let Some(what) = self.note(&effect) {
                told += &format!("\n{:EFFECTS$}{what}", "");
            }
        }
        Ok(told + "\n")
    }

    fn act(&mut self, command: &[&str]) -> Result<(String, Vec<Effect>), String> {
        let now = self.now;
        match *command {
            ["time", "passes"] => Ok(done(self.core.advance(now))),
            ["status"] => {
                let status = self.core.status();
                Ok(tell(format!("limit {}, running {}, queued {}", status.limit, status.running, status.queued)))
            }
            ["totals"] => Ok(tell(words::totals(&self.core.status().totals))),
            ["leases"] => {
                let leases = self.core.leases_from(FencingToken::default());
                let leases = leases.map(|held| format!("{} until {}", words::token(held.token), words::at(held.end)));
                Ok(tell(leases.collect::<Vec<_>>().join(", ")))
            }
            ["deadline"] => Ok(tell(self.core.next_deadline().map_or("nobody waits".into(), words::at))),
            [name, "acquires", ref ask @ ..] => {
                if self.callers.contains_key(name) {
                    return Err(format!("{name} has called before: a new call needs a new name"));
                }
                let mut ask = words::acquire(ask)?;
                ask.cooldown = self.cooldowns.get(&ask.partition).copied();
                let partition = ask.partition.clone();
                let step = self.core.acquire(now, ask);
                let mut caller = Caller::default();
                let answer = match step.answer {
                    Decision::Granted(grant) => {
                        caller.lease = Some(grant.token);
                        words::granted(&grant, now)
                    }
                    Decision::Queued(id) => {
                        caller.place = Some(id);
                        self.told.queued(id, partition);
                        "queued".into()
                    }
                    Decision::Refused(refusal) => words::refused(&refusal),
                };
                self.callers.insert(name.into(), caller);
                Ok((answer, step.effects))
            }
            [name, "renews", ref stream @ ..] => {
                let stream = match *stream {
                    ["on", "stream", stream] => Some(words::number(stream)?),
                    _ => None,
                };
                let step = self.core.renew(now, self.token(name)?, stream);
                Ok((words::renewed(step.answer, now), step.effects))
            }
            [name, "releases"] => {
                let step = self.core.release(now, self.token(name)?);
                Ok((words::released(step.answer).into(), step.effects))
            }
            ["request", request, "is", "released"] => {
                let step = self.core.release_request(now, words::request(request));
                Ok((words::released(step.answer).into(), step.effects))
            }
            [name, "leaves"] => {
                let place = self.caller(name)?.place.ok_or(format!("{name} never waited"))?;
                self.told.left(place);
                Ok(done(self.core.leave(now, place)))
            }
            [name, "hears"] => {
                self.core.confirm(self.token(name)?);
                Ok(tell(String::new()))
            }
            [name, "vanishes"] => Ok(done(self.core.give_back(now, self.token(name)?))),
            _ => self.operate(command),
        }
    }

    /// What operators and time do.
    fn operate(&mut self, command: &[&str]) -> Result<(String, Vec<Effect>), String> {
        let now = self.now;
        match *command {
            ["limit", "becomes", limit] => self.set_limit(limit, None),
            ["limit", "becomes", limit, "for", span] => self.set_limit(limit, Some(words::span(span)?)),
            ["mode", "becomes", mode, ref detail @ ..] => {
                Ok(done(self.core.set_mode(now, words::mode(mode)?, &detail.join(" "))))
            }
            ["server", "drains"] => {
                self.drained = true;
                Ok(done(self.core.drain(now)))
            }
            ["waiters"] => {
                let waiters: Vec<_> = self.core.waiters_after(None, usize::MAX).map(|waiter| waiter.place).collect();
                let page = self.core.waiters_after(waiters.first().copied(), 1).map(|waiter| waiter.place);
                assert!(page.eq(waiters.get(1).copied()), "a page goes on behind the one before");
                let waiters = self.core.waiters_after(None, usize::MAX).map(|waiter| words::waiter(&waiter));
                Ok(tell(waiters.collect::<Vec<_>>().join(", ")))
            }
            ["settings", "become", ref settings @ ..] => {
                let settings = words::settings(settings)?;
                let moves_limit = settings.limit() != self.core.settings().limit();
                Ok(done(self.core.configure(now, settings, moves_limit)))
            }
            ["room", "becomes", ref room @ ..] => {
                self.core.set_room(words::room(room)?);
                Ok(tell(String::new()))
            }
            ["partition", name, "cools", span] => Ok(self.cool(Some(name), words::span(span)?)),
            ["bulkhead", "cools", span] => Ok(self.cool(None, words::span(span)?)),
            ["partition", name, "is", "cleared"] => {
                self.cooldowns.remove(&Some(name.into()));
                Ok(done(self.core.calm(now, Some(name))))
            }
            ["bulkhead", "is", "cleared"] => {
                self.cooldowns.remove(&None);
                Ok(done(self.core.calm(now, None)))
            }
            ["server", "resumes", "after", gap] => {
                let gap = words::span(gap)?;
                self.forgiven += gap;
                self.core.forgive(Stall { total: self.forgiven, resumed: now });
                Ok(tell(String::new()))
            }
            [name, "is", "revoked", ref at_once @ ..] => {
                let immediate = matches!(at_once, ["at", "once"]);
                let step = self.core.revoke(now, self.token(name)?, immediate);
                let answer = step.answer.map_or("no such lease".into(), |revoked| match revoked.stream {
                    Some(stream) => format!("told on stream {stream}"),
                    None => "done".into(),
                });
                Ok((answer, step.effects))
            }
            _ => Err("unknown command".into()),
        }
    }

    /// Notes what became of a waiter, and tells it.
    fn note(&mut self, effect: &Effect) -> Option<String> {
        let (id, lease, what) = match effect {
            Effect::Granted(id, grant) => (*id, Some(grant.token), words::granted(grant, self.now)),
            Effect::Refused(id, refusal) => (*id, None, words::refused(refusal)),
            Effect::Reverted { before, after } => return Some(format!("limit {before} goes back to {after}")),
            Effect::Waits(_) | Effect::WaitsNoMore(_) => return None,
        };
        let found = self.callers.iter_mut().find(|(_, caller)| caller.place == Some(id));
        let (name, caller) = found.expect("an effect concerns a waiter");
        caller.lease = lease;
        Some(format!("{name} {what}"))
    }

    fn set_limit(&mut self, limit: &str, revert_after: Option<Duration>) -> Result<(String, Vec<Effect>), String> {
        let step = self.core.set_limit(self.now, words::number(limit)?, revert_after);
        Ok((step.answer.map_or_else(|invalid| format!("refused: {invalid}"), |()| "done".into()), step.effects))
    }

    /// A report, as the shell does it: the end is written first, then the bulkhead is told if it has waiters of it.
    fn cool(&mut self, partition: Option<&str>, span: Duration) -> (String, Vec<Effect>) {
        let partition: Option<Box<str>> = partition.map(Into::into);
        let old = self.cooldowns.get(&partition).copied();
        let end = extend(old, self.now, span, Duration::from_hours(1));
        if end == old {
            return tell(end.map_or("nothing".into(), |end| format!("not extended, until {}", words::at(end))));
        }
        let end = end.expect("an end does not go");
        self.cooldowns.insert(partition.clone(), end);
        let told = format!("until {}", words::at(end));
        if !self.told.has(&partition) {
            return tell(told);
        }
        (told, self.core.cool(self.now, partition.as_deref(), end).effects)
    }

    fn caller(&self, name: &str) -> Result<Caller, String> {
        self.callers.get(name).copied().ok_or(format!("nobody is called {name}"))
    }

    fn token(&self, name: &str) -> Result<FencingToken, String> {
        self.caller(name)?.lease.ok_or(format!("{name} has no lease"))
    }

    /// Everybody leaves and releases: then the whole limit can be taken at once.
    pub fn drain_and_refill(mut self) {
        let now = self.now + Duration::from_secs(1);
        if self.drained {
            return;
        }
        let _ = self.core.set_mode(now, Mode::Enforcing, "");
        self.core.set_room(Room::default());
        for (partition, _) in std::mem::take(&mut self.cooldowns) {
            let step = self.core.calm(now, partition.as_deref());
            step.effects.iter().for_each(|effect| drop(self.note(effect)));
        }
        for place in self.callers.values().filter_map(|caller| caller.place) {
            let _ = self.core.leave(now, place);
        }
        loop {
            let Some(token) = self.core.leases_from(FencingToken::default()).next().map(|held| held.token) else {
                break;
            };
            let _ = self.core.release(now, token);
        }
        let status = self.core.status();
        assert_eq!((status.running, status.queued), (0, 0), "a permit or a place is lost");
        for _ in 0..status.limit {
            let answer = self.core.acquire(now, words::acquire(&["1"]).unwrap()).answer;
            assert!(matches!(answer, Decision::Granted(_)), "a permit is lost: {answer:?}");
        }
    }
}

fn done(step: Step<()>) -> (String, Vec<Effect>) {
    (String::new(), step.effects)
}

fn tell(answer: String) -> (String, Vec<Effect>) {
    (answer, Vec::new())
}
