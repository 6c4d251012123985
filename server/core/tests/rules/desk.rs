//! A desk to play at: one bulkhead and its time. Each answer comes back plain; what happened to others is kept apart.

use std::time::Duration;

use tidegate_core::{
    Acquire, Bulkhead, Decision, Draft, Effect, FencingToken, Grant, Instant, Invalid, Mode, OnCooldown, Reason,
    Refusal, Release, Renewal, RequestKey, Revoked, Room, Settings, Stall, Status, WaiterId,
};

use super::told::Told;

pub struct Desk {
    pub core: Bulkhead,
    pub now: Instant,
    stall: Stall,
    others: Vec<(WaiterId, Result<Grant, Refusal>)>,
    waiters: Vec<WaiterId>,
    told: Told,
    draining: bool,
}

/// Plays on a bulkhead with those settings; then everybody leaves and releases, and the limit can be taken at once.
pub fn check(draft: Draft, play: impl FnOnce(&mut Desk)) {
    check_after(FencingToken::default(), draft, play);
}

/// The same, with tokens that go on after that one.
pub fn check_after(token: FencingToken, draft: Draft, play: impl FnOnce(&mut Desk)) {
    let mut desk = Desk {
        core: Bulkhead::new(Settings::try_from(draft).unwrap(), token),
        now: Instant::ORIGIN,
        stall: Stall::default(),
        others: Vec::new(),
        waiters: Vec::new(),
        told: Told::default(),
        draining: false,
    };
    play(&mut desk);
    desk.drain_and_refill();
}

/// A limit that is the ceiling, a queue of 8, waits of 10 s, leases of 10 s.
pub fn limit(limit: u32) -> Draft {
    Draft { limit: Some(limit), max_queued: Some(8), max_wait: Some(seconds(10)), ..Draft::default() }
}

/// A plain request.
pub fn ask(permits: u32) -> Acquire {
    Acquire { permits, ..Acquire::default() }
}

/// A request for one permit for a partition.
pub fn of(partition: &str) -> Acquire {
    Acquire { partition: Some(partition.into()), ..ask(1) }
}

/// The same, told by the shell when the cooldown of that partition ends or ended.
pub fn cooling(partition: &str, end: Duration) -> Acquire {
    Acquire { cooldown: Some(at(end)), ..of(partition) }
}

/// The same, and it waits for that.
pub fn patient(partition: &str, end: Duration) -> Acquire {
    Acquire { on_cooldown: OnCooldown::Wait, ..cooling(partition, end) }
}

/// It does not wait.
pub fn at_once(ask: Acquire) -> Acquire {
    Acquire { max_wait: Some(Duration::ZERO), ..ask }
}

/// A request for one permit under a request id.
pub fn named(request: u64) -> Acquire {
    Acquire { request: Some(key(request)), ..ask(1) }
}

pub fn key(request: u64) -> RequestKey {
    RequestKey { identity: 1, request }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(span: Duration) -> Instant {
    Instant::ORIGIN + span
}

pub const NANO: Duration = Duration::from_nanos(1);

impl Desk {
    /// Time moves to that long after the origin.
    pub fn at(&mut self, span: Duration) -> &mut Self {
        self.now = at(span);
        self
    }

    pub fn acquire(&mut self, ask: Acquire) -> Decision {
        let partition = ask.partition.clone();
        let step = self.core.acquire(self.now, ask);
        if let Decision::Queued(id) = step.answer {
            self.waiters.push(id);
            self.told.queued(id, partition);
        }
        self.keep(step.effects);
        step.answer
    }

    pub fn granted(&mut self, ask: Acquire) -> FencingToken {
        match self.acquire(ask) {
            Decision::Granted(grant) => grant.token,
            other => panic!("{other:?}, not granted"),
        }
    }

    pub fn queued(&mut self, ask: Acquire) -> WaiterId {
        match self.acquire(ask) {
            Decision::Queued(id) => id,
            other => panic!("{other:?}, not queued"),
        }
    }

    pub fn refused(&mut self, ask: Acquire) -> Refusal {
        match self.acquire(ask) {
            Decision::Refused(refusal) => refusal,
            other => panic!("{other:?}, not refused"),
        }
    }

    pub fn release(&mut self, token: FencingToken) -> Release {
        let step = self.core.release(self.now, token);
        self.keep(step.effects);
        step.answer
    }

    pub fn release_request(&mut self, request: u64) -> Release {
        let step = self.core.release_request(self.now, key(request));
        self.keep(step.effects);
        step.answer
    }

    pub fn renew(&mut self, token: FencingToken) -> Renewal {
        let step = self.core.renew(self.now, token, None);
        self.keep(step.effects);
        step.answer
    }

    pub fn leave(&mut self, id: WaiterId) {
        let step = self.core.leave(self.now, id);
        self.told.left(id);
        self.keep(step.effects);
    }

    pub fn give_back(&mut self, token: FencingToken) {
        let step = self.core.give_back(self.now, token);
        self.keep(step.effects);
    }

    pub fn set_limit(&mut self, limit: u32) -> Result<(), Invalid> {
        let step = self.core.set_limit(self.now, limit, None);
        self.keep(step.effects);
        step.answer
    }

    /// It goes back after that time.
    pub fn set_limit_for(&mut self, limit: u32, span: Duration) {
        let step = self.core.set_limit(self.now, limit, Some(span));
        self.keep(step.effects);
        step.answer.unwrap();
    }

    pub fn set_mode(&mut self, mode: Mode) {
        let step = self.core.set_mode(self.now, mode, "");
        self.keep(step.effects);
    }

    pub fn revoke(&mut self, token: FencingToken, immediate: bool) -> Option<Revoked> {
        let step = self.core.revoke(self.now, token, immediate);
        self.keep(step.effects);
        step.answer
    }

    /// The server is stopping.
    pub fn drain(&mut self) {
        self.draining = true;
        let step = self.core.drain(self.now);
        self.keep(step.effects);
    }

    /// The limit in force stays, if it can.
    pub fn configure(&mut self, draft: Draft) {
        let step = self.core.configure(self.now, Settings::try_from(draft).unwrap(), false);
        self.keep(step.effects);
    }

    /// The limit in force moves, too.
    pub fn configure_limit(&mut self, draft: Draft) {
        let step = self.core.configure(self.now, Settings::try_from(draft).unwrap(), true);
        self.keep(step.effects);
    }

    pub fn advance(&mut self) {
        let step = self.core.advance(self.now);
        self.keep(step.effects);
    }

    /// A partition cools until then; `None` is the bulkhead's own name.
    pub fn cool(&mut self, partition: Option<&str>, end: Instant) {
        assert!(self.told.has(&partition.map(Into::into)), "the shell would not visit it");
        let step = self.core.cool(self.now, partition, end);
        self.keep(step.effects);
    }

    pub fn calm(&mut self, partition: Option<&str>) {
        let step = self.core.calm(self.now, partition);
        self.keep(step.effects);
    }

    /// It may remember so many ended leases and spent request ids together.
    pub fn remember(&mut self, remembered: usize) {
        self.core.set_room(Room { remembered, ..Room::default() });
    }

    /// The server stood still for so long, until now.
    pub fn resume_after(&mut self, gap: Duration) {
        self.stall = Stall { total: self.stall.total + gap, resumed: self.now };
        self.core.forgive(self.stall);
    }

    pub fn keep(&mut self, effects: Vec<Effect>) {
        self.told.effects(&effects);
        self.others.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Granted(id, grant) => Some((id, Ok(grant))),
            Effect::Refused(id, refusal) => Some((id, Err(refusal))),
            Effect::Waits(_) | Effect::WaitsNoMore(_) | Effect::Reverted { .. } => None,
        }));
    }

    /// What happened to waiters since somebody asked.
    pub fn others(&mut self) -> Vec<(WaiterId, Result<FencingToken, Reason>)> {
        let plain = |told: Result<Grant, Refusal>| told.map(|grant| grant.token).map_err(|refusal| refusal.reason);
        self.others.drain(..).map(|(id, told)| (id, plain(told))).collect()
    }

    /// The one refusal that somebody who waited was told since somebody asked, and nothing else happened.
    pub fn turned_away(&mut self, id: WaiterId) -> Refusal {
        match &std::mem::take(&mut self.others)[..] {
            [(told, Err(refusal))] if *told == id => refusal.clone(),
            others => panic!("{others:?}, not {id:?} refused"),
        }
    }

    /// Which waiters were granted since somebody asked, and nothing else happened.
    pub fn woken(&mut self) -> Vec<WaiterId> {
        let others = self.others();
        assert!(others.iter().all(|(_, told)| told.is_ok()), "{others:?}");
        others.into_iter().map(|(id, _)| id).collect()
    }

    /// The lease that the one waiter was granted that was told anything since somebody asked.
    pub fn handed_to(&mut self, id: WaiterId) -> FencingToken {
        match self.others()[..] {
            [(told, Ok(token))] if told == id => token,
            ref others => panic!("{others:?}, not {id:?} granted"),
        }
    }

    pub fn status(&self) -> Status {
        self.core.status()
    }

    pub fn running(&self) -> u32 {
        self.core.status().running
    }

    /// The live leases and when they end.
    pub fn leases(&self) -> Vec<(FencingToken, Instant)> {
        self.core.leases_from(FencingToken::default()).map(|held| (held.token, held.end)).collect()
    }

    fn drain_and_refill(mut self) {
        self.core.set_room(Room::default());
        self.set_mode(Mode::Enforcing);
        for id in std::mem::take(&mut self.waiters) {
            self.leave(id);
        }
        for (token, _) in self.leases() {
            self.release(token);
        }
        assert_eq!((self.status().running, self.status().queued), (0, 0), "a permit or a place is lost");
        let limit = self.status().limit;
        if self.draining {
            assert_eq!(self.refused(ask(1)).reason, Reason::Draining);
            return;
        }
        // One by one, where that takes no minutes.
        let (times, permits) = if limit <= 10_000 { (limit, 1) } else { (1, limit) };
        (0..times).for_each(|_| assert!(self.granted(ask(permits)) > FencingToken::default()));
    }
}
