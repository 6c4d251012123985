//! The core's figures: time of an acquire and a release, alone and in a crowd, and memory of a lease.
//!
//! Prints the median of several runs, with the range. `cargo bench -p tidegate-core`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::cast_precision_loss, missing_docs)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use tidegate_core::{
    Acquire, Bulkhead, Decision, Draft, Effect, FencingToken, Holder, Instant, OnCooldown, Priority, RequestKey,
    Settings,
};

const RUNS: usize = 9;
const OPS: u64 = 1_000_000;
/// Time between two operations: a bulkhead as busy as one gRPC server can make it.
const STEP: Duration = Duration::from_micros(10);

fn main() {
    let alone = median("acquire + release, uncontended, a remembered minute of them", alone);
    let crowd = median("the same with 100,000 leases and 10,000 waiters", crowd);
    println!("ratio {:.2}", crowd / alone);
    memory();
}

fn bulkhead(limit: u32, max_queued: u32) -> Bulkhead {
    let draft = Draft {
        limit: Some(limit),
        max_queued: Some(max_queued),
        max_wait: Some(Duration::from_hours(1)),
        lease_ttl: Some(Duration::from_mins(5)),
        ..Draft::default()
    };
    Bulkhead::new(Settings::try_from(draft).unwrap(), FencingToken::default())
}

fn ask() -> Acquire {
    Acquire {
        permits: 1,
        priority: Priority::Normal,
        max_wait: None,
        deadline: None,
        answer_by: None,
        ttl: None,
        request: None,
        fingerprint: 0,
        partition: None,
        cooldown: None,
        on_cooldown: OnCooldown::Refuse,
        crowded: false,
        holder: Holder::default(),
    }
}

/// Ten million operations first, so that a minute of ended leases is remembered and the oldest are being forgotten.
fn alone() -> f64 {
    let mut bulkhead = bulkhead(1, 8);
    let mut now = Instant::ORIGIN;
    let mut turn = |ops: u64| {
        for _ in 0..ops {
            now = now + STEP;
            let Decision::Granted(grant) = bulkhead.acquire(now, black_box(ask())).answer else { unreachable!() };
            let _ = black_box(bulkhead.release(now, grant.token));
        }
    };
    turn(7_000_000);
    timed(|| turn(OPS))
}

/// The limit is reached, so each acquire queues, and each release grants the head of the queue.
fn crowd() -> f64 {
    let mut bulkhead = bulkhead(100_000, 1_000_000);
    let mut now = Instant::ORIGIN;
    let mut held = VecDeque::new();
    for _ in 0..100_000 {
        let Decision::Granted(grant) = bulkhead.acquire(now, ask()).answer else { unreachable!() };
        held.push_back(grant.token);
    }
    for _ in 0..10_000 {
        let _ = bulkhead.acquire(now, ask());
    }
    let mut turn = |ops: u64| {
        for _ in 0..ops {
            now = now + STEP;
            let Decision::Queued(_) = black_box(bulkhead.acquire(now, black_box(ask())).answer) else { unreachable!() };
            let released = bulkhead.release(now, held.pop_front().unwrap());
            let Some(&Effect::Granted(_, grant)) = released.effects.first() else { unreachable!() };
            held.push_back(grant.token);
        }
    };
    turn(7_000_000);
    timed(|| turn(OPS))
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / OPS as f64
}

fn median(what: &str, run: impl Fn() -> f64) -> f64 {
    let mut figures: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    figures.sort_by(f64::total_cmp);
    let median = figures[RUNS / 2];
    println!("{what}: {median:.0} ns ({:.0} to {:.0}, {RUNS} runs)", figures[0], figures[RUNS - 1]);
    median
}

fn memory() {
    let before = resident();
    let mut bulkheads: Vec<_> = (0..10_000).map(|_| bulkhead(100, 8)).collect();
    let idle = resident();
    for request in 0..1_000_000_u64 {
        let holder = Holder { name: "worker-0123456789".into(), address: Some(([127, 0, 0, 1], 80).into()) };
        let index = usize::try_from(request % 10_000).unwrap();
        let request = Some(RequestKey { identity: 0, request });
        let answer = bulkheads[index].acquire(Instant::ORIGIN, Acquire { request, holder, ..ask() }).answer;
        assert!(matches!(answer, Decision::Granted(_)));
    }
    let full = resident();
    println!("an idle bulkhead: {} bytes resident", (idle - before) / 10_000);
    println!("a lease with request id and holder: {} bytes resident", (full - idle) / 1_000_000);
    drop(bulkheads);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}
