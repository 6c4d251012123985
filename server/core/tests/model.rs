//! The bulkhead against an oracle: random commands with random time between them, compared after every step.
//!
//! `TIDEGATE_TESTS=ci` and `=soak` run more cases. A failing one is shrunk and told step by step; its seed is kept in
//! `proptest-regressions/model.txt`, and whoever runs the test again, in any size, starts with the seeds in that file.
#![allow(clippy::expect_used, clippy::needless_for_each, clippy::unwrap_used, unreachable_pub)]

use std::cell::RefCell;
use std::panic::{set_hook, take_hook};

use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

use commands::{Case, case};
use pair::Pair;
use tally::Tally;

#[path = "model/commands.rs"]
mod commands;
#[path = "model/compare.rs"]
mod compare;
#[path = "model/convert.rs"]
mod convert;
#[path = "model/cooldowns.rs"]
mod cooldowns;
#[path = "model/leases.rs"]
mod leases;
#[path = "model/newcomer.rs"]
mod newcomer;
#[path = "model/operators.rs"]
mod operators;
#[path = "model/oracle.rs"]
mod oracle;
#[path = "model/pair.rs"]
mod pair;
#[path = "model/plain.rs"]
mod plain;
#[path = "model/resolve.rs"]
mod resolve;
#[path = "model/shell.rs"]
mod shell;
#[path = "model/tally.rs"]
mod tally;
#[path = "shared/told.rs"]
mod told;

/// Commands in a case, on average. The same in all sizes, or else a seed would mean another case in each.
const LENGTH: usize = 200;
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proptest-regressions/model.txt");

#[test]
fn the_bulkhead_does_what_the_oracle_does() {
    let cases = match std::env::var("TIDEGATE_TESTS").as_deref() {
        Ok("soak") => 100_000,
        Ok("ci") => 5_000,
        _ => 1_000,
    };
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 5_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(SEEDS))),
        ..Config::default()
    });
    let tally = RefCell::new(Tally::default());
    // Shrinking fails some hundred times: silently, and the smallest case aloud.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let outcome = runner.run(&case(LENGTH), |case| {
        tally.borrow_mut().add(&run(&case, false));
        Ok(())
    });
    set_hook(hook);
    if let Err(TestError::Fail(reason, smallest)) = &outcome {
        eprintln!("{reason}\nThe smallest case found, under {:?}:", smallest.rules);
        eprintln!("To replay: cargo test -p tidegate-core --test model (it starts with the seeds in {SEEDS})\n");
        run(smallest, true);
    }
    outcome.expect("a case to pass");
    let tally = tally.into_inner();
    println!("{tally}");
    for &(verb, outcome) in tally::FLOORS {
        let count = tally.get(verb, outcome);
        assert!(count >= u64::from(cases) / 100, "tested nothing: {verb} -> {outcome} only {count} times");
    }
}

fn run(case: &Case, loud: bool) -> Tally {
    let mut pair = Pair::new(case.rules, loud);
    case.commands.iter().for_each(|(step, command)| pair.run(*step, command));
    pair.drain_and_refill()
}
