//! Hundreds of clients, everything that goes wrong at once, and a history that must be possible.
//!
//! `TIDEGATE_SEED=7` repeats the load of seed 7 alone: the same choices, on a machine that does as it likes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tidegate_tests::history::Totals;
use tidegate_tests::load::Load;
use tidegate_tests::{Instant, Server, drain_and_refill, size};

/// What a run must have met for each twenty seconds of it: no more than a machine does that is several times slower.
const FLOORS: [(&str, usize); 17] = [
    ("grants", 500),
    ("grants after a wait", 200),
    ("grants after a long wait", 50),
    ("leases that expired", 5),
    ("cancels", 50),
    ("replays", 20),
    ("renewals", 5),
    ("moves of limits", 20),
    ("cooldowns reported", 2),
    ("connections cut", 10),
    ("calls that failed on their way", 10),
    ("refused WAIT_TIMEOUT", 20),
    ("refused CONCURRENCY_CAPACITY_EXHAUSTED", 5),
    ("refused QUEUE_FULL", 5),
    ("refused DISPLACED", 1),
    ("refused COOLDOWN_ACTIVE", 5),
    ("refused COOLDOWN_EXCEEDS_DEADLINE", 1),
];

/// One run: the load, what it says of the order and the count, the server's totals, and all permits still there.
async fn run(load: Load) -> Totals {
    let seed = load.seed;
    let tests = std::env::var("TIDEGATE_TESTS").unwrap_or_default();
    let again = format!("TIDEGATE_TESTS={tests} TIDEGATE_SEED={seed} cargo test -p tidegate-tests --test history");
    let server = Server::start(&load.config());
    let start = Instant::now();
    let history = load.run(&server).await;
    let parts = usize::try_from(load.span.as_secs() / 20).unwrap().max(1);
    let floors = FLOORS.map(|(what, at_least)| (what, at_least * parts));
    let took = start.elapsed();
    let judging = Instant::now();
    let totals = history.judge(&floors).unwrap_or_else(|told| panic!("again with: {again}\n{told}"));
    println!("seed {seed}, {took:.1?}, judged in {:.1?}; again with: {again}\n{totals}", judging.elapsed());
    for (bulkhead, rule) in load.rules.iter().enumerate() {
        let rested = server.until(&rule.name, |now| now.running == 0 && now.queued == 0).await;
        history.agrees(bulkhead, &rested).unwrap_or_else(|told| panic!("again with: {again}\n{told}"));
        drain_and_refill(&server, &rule.name).await;
    }
    totals
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_p7_p8_p18_hundreds_of_clients_see_only_what_is_promised() {
    let span = Duration::from_secs(size(5, 60, 60));
    let seeds: Vec<u64> = if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        vec![seed.parse().expect("TIDEGATE_SEED is a number")]
    } else {
        let first = rand::random::<u32>().into();
        (first..first + size(1, 3, 100)).collect()
    };
    let mut all = Totals::default();
    for seed in seeds {
        all += &run(Load { span, ..Load::of(seed) }).await;
    }
    println!("all together:\n{all}");
}
