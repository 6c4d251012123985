//! Any sequence of calls on one bulkhead of the core. Its invariants are checked after each call (debug assertions), and here:
//! every waiter ends once, no grant exceeds the limit, and when time has passed nothing is held.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tidegate_core::{
    Acquire, Bulkhead, Decision, Draft, Effect, FencingToken, Instant, Mode, OnCooldown, Priority, Release, Renewal,
    RequestKey, Room, Settings, Stall, Step, WaiterId,
};
use told::Told;

#[allow(dead_code, reason = "others use the rest")]
#[path = "../../server/core/tests/shared/told.rs"]
mod told;

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Rules {
    limit: u8,
    above: u8,
    max_queued: u8,
    max_wait: u16,
    aging_step: u16,
    ramp_step: u16,
    displace: bool,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Acquire {
        permits: u8,
        rank: u8,
        max_wait: Option<u16>,
        deadline: Option<(u16, u8)>,
        long: bool,
        request: Option<u8>,
        print: bool,
        partition: u8,
        waits: bool,
    },
    Release(u8),
    ReleaseRequest(u8),
    Renew(u8),
    Leave(u8),
    Confirm(u8),
    GiveBack(u8),
    SetLimit(u8, Option<u16>),
    SetMode(u8),
    Revoke(u8, bool),
    Configure(Rules),
    Stall(u16),
    Advance,
    Report {
        partition: u8,
        wait: u16,
    },
    Clear(u8),
    Room {
        leases: u8,
        waiters: u8,
        remembered: u8,
    },
}

const MOST_OPERATIONS: usize = 200;
const PARTITIONS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

struct World {
    core: Bulkhead,
    now: Instant,
    stall: Stall,
    /// The limit before the present call.
    limit_before: u32,
    told: Told,
    waiting: Vec<WaiterId>,
    tokens: Vec<FencingToken>,
    /// When each partition's cooldown ends or ended.
    cooldowns: [Option<Instant>; 3],
}

fuzz_target!(|input: (Rules, Vec<(u16, Operation)>)| {
    let (rules, operations) = input;
    let Ok(settings) = settings(rules) else { return };
    let mut world = World {
        core: Bulkhead::new(settings, FencingToken::default()),
        now: Instant::ORIGIN,
        stall: Stall::default(),
        limit_before: 0,
        told: Told::default(),
        waiting: Vec::new(),
        tokens: Vec::new(),
        cooldowns: [None; 3],
    };
    for (pause, operation) in operations.into_iter().take(MOST_OPERATIONS) {
        world.now = world.now + millis(pause);
        world.run(operation);
    }
    world.end();
});

fn millis(millis: u16) -> Duration {
    Duration::from_millis(millis.into())
}

fn settings(rules: Rules) -> Result<Settings, tidegate_core::Invalid> {
    let limit = u32::from(rules.limit);
    Settings::try_from(Draft {
        limit: Some(limit),
        ceiling: Some(limit + u32::from(rules.above)),
        max_queued: Some(rules.max_queued.into()),
        max_wait: Some(millis(rules.max_wait)),
        aging_step: Some(millis(rules.aging_step)),
        ramp_step: Some(millis(rules.ramp_step).min(Duration::from_mins(1))),
        lease_ttl: Some(Duration::from_secs(2)),
        max_lease_ttl: Some(Duration::from_secs(20)),
        displace: Some(rules.displace),
        ..Draft::default()
    })
}

fn key(number: u8) -> RequestKey {
    RequestKey { identity: 0, request: u64::from(number % 8) }
}

impl World {
    fn run(&mut self, operation: Operation) {
        let now = self.now;
        self.limit_before = self.core.status().limit;
        match operation {
            Operation::Acquire { permits, rank, max_wait, deadline, long, request, print, partition, waits } => {
                let which = usize::from(partition) % 3;
                let partition: Option<Box<str>> = PARTITIONS[which].map(Into::into);
                let ask = Acquire {
                    permits: u32::from(permits).max(1),
                    priority: [Priority::Critical, Priority::Normal, Priority::Sheddable][usize::from(rank) % 3],
                    max_wait: max_wait.map(millis),
                    deadline: deadline.map(|(end, _)| now + millis(end)),
                    answer_by: deadline.map(|(end, margin)| now + millis(end.saturating_sub(margin.into()))),
                    ttl: long.then_some(Duration::from_secs(20)),
                    request: request.map(key),
                    // As the shell makes it: of all that a repeat must not change, and something else.
                    fingerprint: u64::from(permits)
                        | u64::from(long) << 8
                        | (which as u64) << 9
                        | u64::from(print) << 11,
                    partition: partition.clone(),
                    cooldown: self.cooldowns[which],
                    on_cooldown: if waits { OnCooldown::Wait } else { OnCooldown::Refuse },
                    ..Acquire::default()
                };
                let step = self.core.acquire(now, ask);
                if let Decision::Queued(id) = step.answer {
                    self.told.queued(id, partition);
                    self.waiting.push(id);
                }
                if let Decision::Granted(grant) = self.see(step) {
                    self.tokens.push(grant.token);
                    assert!(grant.replayed || self.fits(), "R1: granted above the limit");
                }
            }
            Operation::Release(which) => {
                if let Some(token) = self.token(which) {
                    let step = self.core.release(now, token);
                    self.see(step);
                    let again = self.core.release(now, token);
                    assert_ne!(self.see(again), Release::Released, "R7: exactly once");
                }
            }
            Operation::ReleaseRequest(request) => {
                let step = self.core.release_request(now, key(request));
                self.see(step);
            }
            Operation::Renew(which) => {
                if let Some(token) = self.token(which) {
                    let step = self.core.renew(now, token, None);
                    self.see(step);
                }
            }
            Operation::Leave(which) => {
                if !self.waiting.is_empty() {
                    let id = self.waiting.swap_remove(usize::from(which) % self.waiting.len());
                    self.told.left(id);
                    let step = self.core.leave(now, id);
                    self.see(step);
                }
            }
            Operation::Confirm(which) => {
                if let Some(token) = self.token(which) {
                    self.core.confirm(token);
                }
            }
            Operation::GiveBack(which) => {
                if let Some(token) = self.token(which) {
                    let step = self.core.give_back(now, token);
                    self.see(step);
                }
            }
            Operation::SetLimit(limit, revert_after) => {
                let step = self.core.set_limit(now, limit.into(), revert_after.map(millis));
                let _ = self.see(step);
            }
            Operation::SetMode(mode) => {
                let mode = [Mode::Enforcing, Mode::Shadow, Mode::Paused, Mode::Closed][usize::from(mode) % 4];
                let step = self.core.set_mode(now, mode, "");
                self.see(step);
            }
            Operation::Revoke(which, immediate) => {
                if let Some(token) = self.token(which) {
                    let step = self.core.revoke(now, token, immediate);
                    self.see(step);
                    let step = self.core.renew(now, token, None);
                    assert!(!matches!(self.see(step), Renewal::Renewed { .. }), "R7: renewed no more");
                }
            }
            Operation::Configure(rules) => {
                if let Ok(settings) = settings(rules) {
                    let step = self.core.configure(now, settings);
                    self.see(step);
                }
            }
            Operation::Stall(gap) => {
                self.now = now + millis(gap);
                self.stall = Stall { total: self.stall.total + millis(gap), resumed: self.now };
                self.core.forgive(self.stall);
            }
            Operation::Advance => {
                let step = self.core.advance(now);
                self.see(step);
            }
            Operation::Report { partition, wait } => {
                let which = usize::from(partition) % 3;
                let end = self.cooldowns[which].unwrap_or_default().max(now + millis(wait));
                self.cooldowns[which] = Some(end);
                let step = self.core.cool(now, PARTITIONS[which], end);
                self.see(step);
            }
            Operation::Clear(partition) => {
                let which = usize::from(partition) % 3;
                self.cooldowns[which] = None;
                let step = self.core.calm(now, PARTITIONS[which]);
                self.see(step);
            }
            Operation::Room { leases, waiters, remembered } => {
                let [leases, waiters, remembered] = [leases, waiters, remembered].map(usize::from);
                self.core.set_room(Room { leases, waiters, remembered });
            }
        }
    }

    /// What a call did to others, and whether it could.
    fn see<T>(&mut self, step: Step<T>) -> T {
        self.told.effects(&step.effects);
        for effect in step.effects {
            match effect {
                Effect::Granted(id, grant) => {
                    self.waiting.retain(|waiting| *waiting != id);
                    self.tokens.push(grant.token);
                    assert!(self.fits(), "R1: granted above the limit");
                }
                Effect::Refused(id, _) => self.waiting.retain(|waiting| *waiting != id),
                Effect::Waits(_) | Effect::WaitsNoMore(_) | Effect::Reverted { .. } => {}
            }
        }
        step.answer
    }

    /// What was granted was so under the limit of now, or, before this call lowered it, under the one before.
    fn fits(&self) -> bool {
        let status = self.core.status();
        status.running <= status.limit.max(self.limit_before) || self.core.settings().mode() == Mode::Shadow
    }

    fn token(&self, which: u8) -> Option<FencingToken> {
        let last = self.tokens.len().checked_sub(1)?;
        // Counted from the latest, since old ones have ended.
        Some(self.tokens[last.saturating_sub(usize::from(which))])
    }

    /// Every wait and lease ends by itself.
    fn end(mut self) {
        self.now = self.now + Duration::from_mins(10);
        for _ in 0..4 {
            self.now = self.now + Duration::from_mins(1);
            let step = self.core.advance(self.now);
            self.see(step);
        }
        let status = self.core.status();
        assert_eq!((status.running, status.queued, self.waiting.len()), (0, 0, 0));
    }
}
