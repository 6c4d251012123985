//! One core bulkhead and the callers parked on it, in this process: what the server has in a cell, without a server.
//!
//! Each change is one synchronous call of the core under one lock, and what it did to waiters is delivered before the lock
//! goes. There is no task of its own: whoever waits also sleeps until its end, and while a partition cools or ramps, until
//! the next turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{
    Acquire, Bulkhead, Decision, Effect, FencingToken, Grant, Instant, Mode, Refusal, Release, Renewal, RequestKey,
    Room, Settings, Stall, Status, Step, WaiterId, calm_at, extend,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant as Now;

/// The longest cooldown a report can start.
const MAX_COOLDOWN: Duration = Duration::from_hours(1);
/// How long a partition's state is kept after its cooldown and ramp.
const COOLDOWN_GRACE: Duration = Duration::from_mins(1);
/// The most partitions that cool or ramp; a report of one more is refused.
const MOST_PARTITIONS: usize = 100_000;
/// How often lease ends are moved on where leases have no end: well within the shortest ttl.
const FORGIVE_EVERY: Duration = Duration::from_millis(500);

/// Decides who may start now in this process.
#[derive(Debug)]
pub(crate) struct Engine {
    name: Arc<str>,
    /// When the core's clock began.
    origin: Now,
    /// Holders in this process are guards that cannot vanish, so their leases have no end; those of a fake server do.
    leases_end: bool,
    state: Mutex<State>,
    /// A partition's standing changed: waiters look again when they must wake.
    turned: Notify,
}

#[derive(Debug)]
struct State {
    bulkhead: Bulkhead,
    parked: HashMap<WaiterId, oneshot::Sender<Verdict>>,
    /// When the cooldowns of partitions end or ended.
    cooldowns: HashMap<Box<str>, Instant>,
    /// The latest time that was seen; the core's never goes back.
    now: Instant,
    /// How much of `held_back` was taken.
    taken: u64,
}

pub(crate) type Verdict = Result<Grant, Refusal>;

impl Engine {
    pub(crate) fn new(name: Arc<str>, settings: Settings, leases_end: bool) -> Self {
        let mut bulkhead = Bulkhead::new(settings, FencingToken::floor_of(1));
        if !leases_end {
            // Guards give back once and never ask again.
            bulkhead.set_room(Room { remembered: 1_000, ..Room::default() });
        }
        let state =
            State { bulkhead, parked: HashMap::new(), cooldowns: HashMap::new(), now: Instant::ORIGIN, taken: 0 };
        Self { name, origin: Now::now(), leases_end, state: Mutex::new(state), turned: Notify::new() }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The core's time.
    pub(crate) fn now(&self) -> Instant {
        let nanos = Now::now().saturating_duration_since(self.origin).as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, at: Instant) -> tokio::time::Sleep {
        tokio::time::sleep_until(self.origin + Duration::from_nanos(at.as_nanos()))
    }

    /// Locks and reads the time, in that order.
    fn enter(&self) -> (MutexGuard<'_, State>, Instant) {
        let mut state = self.state.lock();
        state.now = state.now.max(self.now());
        let now = state.now;
        let passed = now.since(Instant::ORIGIN);
        if !self.leases_end && passed.saturating_sub(state.bulkhead.forgiven()) > FORGIVE_EVERY {
            // To the core all the time so far is a stall of the server's, which moves lease ends and nothing else.
            state.bulkhead.forgive(Stall { total: passed, resumed: Instant::ORIGIN });
        }
        (state, now)
    }

    /// Asks for permits. Without a wait nothing is awaited, so that the common case is one call under one lock.
    pub(crate) fn acquire(&self, mut ask: Acquire) -> Asked<'_> {
        let (mut state, now) = self.enter();
        if !state.cooldowns.is_empty() {
            ask.cooldown = state.cooldown(now, ask.partition.as_deref().unwrap_or(&self.name));
        }
        ask.partition = ask.partition.filter(|partition| **partition != *self.name);
        let end = wait_end(now, &ask, state.bulkhead.settings());
        let step = state.bulkhead.acquire(now, ask);
        state.finish(step, |state, decision| match decision {
            Decision::Granted(grant) => Asked::Answered(Ok(grant)),
            Decision::Refused(refusal) => Asked::Answered(Err(refusal)),
            Decision::Queued(id) => {
                let (sender, verdict) = oneshot::channel();
                state.parked.insert(id, sender);
                Asked::Waits(Waiting { engine: self, id, end, verdict, heard: false })
            }
        })
    }

    /// When a waiter must wake whose wait ends at `end`.
    fn wake_at(&self, end: Instant) -> Instant {
        let (state, _) = self.enter();
        let turn = if state.cooldowns.is_empty() { None } else { state.bulkhead.next_deadline() };
        turn.map_or(end, |turn| turn.min(end))
    }

    fn advance(&self) {
        self.change(|state, now| state.bulkhead.advance(now));
    }

    /// One change of the core's, with what it did to waiters delivered.
    fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> Step<T>) -> T {
        let (mut state, now) = self.enter();
        let step = change(&mut state, now);
        state.finish(step, |_, answer| answer)
    }

    pub(crate) fn renew(&self, token: FencingToken) -> Renewal {
        self.change(|state, now| state.bulkhead.renew(now, token, None))
    }

    pub(crate) fn release(&self, token: FencingToken) -> Release {
        self.change(|state, now| state.bulkhead.release(now, token))
    }

    pub(crate) fn release_request(&self, key: RequestKey) -> Release {
        self.change(|state, now| state.bulkhead.release_request(now, key))
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), tidegate_core::Invalid> {
        self.change(|state, now| state.bulkhead.set_limit(now, limit, None))
    }

    pub(crate) fn set_mode(&self, mode: Mode, detail: &str) {
        self.change(|state, now| state.bulkhead.set_mode(now, mode, detail));
    }

    /// Takes all leases back: they run until their release or their end, and are not renewed.
    pub(crate) fn revoke_all(&self) {
        let (mut state, now) = self.enter();
        let leases = state.bulkhead.leases_from(FencingToken::default());
        let tokens: Vec<_> = leases.map(|lease| lease.token).collect();
        for token in tokens {
            let step = state.bulkhead.revoke(now, token, false);
            state.finish(step, |_, _| ());
        }
    }

    /// The partition of a live lease.
    pub(crate) fn partition_of(&self, token: FencingToken) -> Option<Box<str>> {
        let (state, _) = self.enter();
        state.bulkhead.partition_of(token).map(|partition| partition.unwrap_or(&self.name).into())
    }

    /// A partition was told to come back later; what is left of its cooldown, and whether this moved its end. `None`: too
    /// many cool already.
    pub(crate) fn report(&self, partition: &str, wait: Duration) -> Option<(Duration, bool)> {
        let (mut state, now) = self.enter();
        let old = state.cooldown(now, partition);
        let Some(end) = extend(old, now, wait, MAX_COOLDOWN) else { return Some((Duration::ZERO, false)) };
        if Some(end) == old {
            return Some((end.since(now), false));
        }
        if old.is_none() {
            state.forget_calm(now);
            if state.cooldowns.len() >= MOST_PARTITIONS {
                return None;
            }
        }
        state.cooldowns.insert(partition.into(), end);
        let own = (*partition != *self.name).then_some(partition);
        let step = state.bulkhead.cool(now, own, end);
        state.finish(step, |_, ()| ());
        drop(state);
        self.turned.notify_waiters();
        Some((end.since(now), true))
    }

    /// What is left of a partition's cooldown.
    pub(crate) fn cooldown(&self, partition: &str) -> Option<Duration> {
        let (mut state, now) = self.enter();
        state.cooldown(now, partition).map(|end| end.since(now)).filter(|left| !left.is_zero())
    }

    pub(crate) fn partitions(&self) -> usize {
        let (mut state, now) = self.enter();
        state.forget_calm(now);
        state.cooldowns.len()
    }

    /// How it stands by now.
    pub(crate) fn status(&self) -> (Settings, Status) {
        let (mut state, now) = self.enter();
        let step = state.bulkhead.advance(now);
        state.finish(step, |_, ()| ());
        (state.bulkhead.settings().clone(), state.bulkhead.status())
    }

    /// How many had to wait or were refused since this was last asked.
    pub(crate) fn take_held_back(&self) -> u64 {
        let (mut state, _) = self.enter();
        let held_back = state.bulkhead.status().totals.held_back;
        held_back - std::mem::replace(&mut state.taken, held_back)
    }
}

impl State {
    /// Takes the answer of a step and delivers the rest.
    fn finish<T, U>(&mut self, step: Step<T>, take: impl FnOnce(&mut Self, T) -> U) -> U {
        // The answer first: it may park the very caller that an effect is for.
        let answer = take(self, step.answer);
        for effect in step.effects {
            let (id, verdict) = match effect {
                Effect::Granted(id, grant) => (id, Ok(grant)),
                Effect::Refused(id, refusal) => (id, Err(refusal)),
                // There is one bulkhead, which every report reaches.
                Effect::Waits(_) | Effect::WaitsNoMore(_) | Effect::Reverted { .. } => continue,
            };
            if let Some(parked) = self.parked.remove(&id) {
                // Receivers go under the lock, after their place.
                let _ = parked.send(verdict);
            }
        }
        answer
    }

    /// When the cooldown of that partition ends or ended, if it cools or ramps.
    fn cooldown(&mut self, now: Instant, partition: &str) -> Option<Instant> {
        if self.cooldowns.is_empty() {
            return None;
        }
        let end = self.cooldowns.get(partition).copied()?;
        if now < self.kept_until(end) {
            return Some(end);
        }
        self.cooldowns.remove(partition);
        None
    }

    fn kept_until(&self, end: Instant) -> Instant {
        calm_at(end, self.bulkhead.settings().ramp_step()) + COOLDOWN_GRACE
    }

    fn forget_calm(&mut self, now: Instant) {
        let keep = self.kept_until(Instant::ORIGIN).since(Instant::ORIGIN);
        self.cooldowns.retain(|_, end| now < *end + keep);
    }
}

/// Until when that call may wait, as the core sees it (R3).
fn wait_end(now: Instant, ask: &Acquire, settings: &Settings) -> Instant {
    let max_wait = ask.max_wait.map_or(settings.max_wait(), |asked| asked.min(settings.max_wait()));
    ask.answer_by.into_iter().chain(ask.deadline).fold(now + max_wait, Instant::min)
}

/// An Acquire that has its answer, or its place in the queue.
pub(crate) enum Asked<'a> {
    Answered(Verdict),
    Waits(Waiting<'a>),
}

/// A caller's place in the queue. Dropped before the verdict was heard, it leaves nothing behind.
pub(crate) struct Waiting<'a> {
    engine: &'a Engine,
    id: WaiterId,
    /// Of the wait.
    end: Instant,
    verdict: oneshot::Receiver<Verdict>,
    heard: bool,
}

impl Asked<'_> {
    /// The answer. Cancel safe: dropped while it waits, it leaves the queue and takes no permit; once it has answered it
    /// does not exist, so a grant is never left over.
    pub(crate) async fn verdict(self) -> Verdict {
        match self {
            Self::Answered(verdict) => verdict,
            Self::Waits(waiting) => waiting.verdict().await,
        }
    }
}

impl Waiting<'_> {
    async fn verdict(mut self) -> Verdict {
        let engine = self.engine;
        loop {
            let turned = engine.turned.notified();
            let at = engine.wake_at(self.end);
            tokio::select! {
                biased;
                verdict = &mut self.verdict => {
                    self.heard = true;
                    let Ok(verdict) = verdict else { unreachable!("a parked caller is told before its sender goes") };
                    if let Ok(grant) = &verdict {
                        engine.enter().0.bulkhead.confirm(grant.token);
                    }
                    return verdict;
                }
                () = engine.sleep_until(at) => engine.advance(),
                () = turned => {}
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.heard {
            return;
        }
        self.engine.change(|state, now| match self.verdict.try_recv() {
            Ok(Ok(grant)) => state.bulkhead.give_back(now, grant.token),
            Ok(Err(_)) => state.bulkhead.advance(now),
            Err(_) => {
                state.parked.remove(&self.id);
                state.bulkhead.leave(now, self.id)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Draft;

    use super::*;

    #[tokio::test]
    async fn what_guards_gave_back_is_not_remembered_for_a_minute() {
        let settings = Draft { limit: Some(1), ..Draft::default() }.try_into().unwrap();
        let engine = Engine::new("db".into(), settings, false);
        for _ in 0..10_000 {
            let grant = engine.acquire(Acquire::default()).verdict().await.unwrap();
            assert_eq!(engine.release(grant.token), Release::Released);
        }
        assert!(engine.enter().0.bulkhead.occupied().remembered <= 1_000);
    }
}
