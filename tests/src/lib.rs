//! What the tests over the wire are made of: the built server as a process, calls to it, and faults between the two.
//!
//! A test starts its own [`Server`] on free ports, talks to it through [`Client`]s and the [`Admin`] side, and ends with
//! [`drain_and_refill`]: whatever happened, no permit may be lost. Nothing here decides anything, and nothing depends on it.
//!
//! # Load, history, faults
//!
//! - [`Proxy`] stands between clients and the server and does what networks do: delays, narrow lines, black holes either
//!   way, lost replies, cuts and resets. A test sets its [`Faults`] at any time.
//! - [`load::Load`] is hundreds of clients and an operator, whose choices come from a seed: waits, weights, ranks, partitions,
//!   cooldowns, deadlines, cancels, repeats, renewals, abandoned leases, some of it behind proxies. Change its fields for what
//!   a test is about; [`Load::config`](load::Load::config) starts the server, [`Load::run`](load::Load::run) gives a history.
//! - [`history::History`] is what was sent and answered, and when. [`History::judge`](history::History::judge) finds what
//!   cannot have been, and refuses a run that was too quiet; [`History::agrees`](history::History::agrees) holds the server's
//!   totals against it. A test that records calls of its own can be judged by it as well.
//!
//! - [`attack`] are clients that do harm on raw sockets, and how good clients fare meanwhile.
//!
//! `tests/history.rs` uses them all but the last; each rule of the judge has an example beside it that it passes and one that it finds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the only users are tests, and a test fails by panicking"
)]

pub mod attack;
mod binary;
mod calls;
pub mod history;
mod lateness;
pub mod load;
mod proxy;
mod raw;
mod refill;
mod server;

pub use binary::example;
pub use calls::{Admin, Client, Waiter, ask, millis, reason, renewal_states, seconds, span};
pub use lateness::{at_once, idles, in_time};
pub use proxy::{Faults, Proxy, Way};
pub use raw::{Raw, Reply};
pub use refill::{drain_and_refill, slack};
pub use server::{Exit, PATIENCE, Said, Server, exit_of, run};
pub use tidegate_client::{Pushback, Refusal, Violation};
pub use tidegate_proto::v1;
/// Of the machine's monotonic clock; no test over the wire moves time.
pub use tokio::time::Instant;

/// The size of a test: quick while one works, larger in CI, largest in `make soak`.
pub fn size<T>(quick: T, ci: T, soak: T) -> T {
    match std::env::var("TIDEGATE_TESTS").as_deref() {
        Err(_) | Ok("") => quick,
        Ok("ci") => ci,
        Ok("soak") => soak,
        Ok(other) => panic!("TIDEGATE_TESTS is {other:?}: leave it unset, or say ci or soak"),
    }
}

/// Tells how often something happened, and fails a test that met less of it than it needs to prove anything.
pub fn exercised(what: &str, times: usize, at_least: usize) {
    println!("{what}: {times}");
    assert!(times >= at_least, "tested nothing: {what} {times} times, at least {at_least} are needed");
}
