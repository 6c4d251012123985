//! The figures of the server under load: hand-over, raising, moving a limit, a storm of expiries, a million cancels (`make figures`).
//!
//! `figures [handover] [raise] [operator] [storm] [cancels]` measures those, or all. Each figure is measured several times in one run
//! of the program; the median and the range are told beside the goal. A missed goal is only told, since the machine may
//! be busy; what is *wrong*, such as a lost permit, ends the program with a panic. RUNS and CANCELS change how often.
//!
//! The client is one thread, so that of two processors one is left to the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what is wrong ends it by a panic")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

mod cancels;
mod echo;
mod handover;
mod operator;
mod raise;
mod storm;

use std::time::Duration;

use tidegate_tests::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let runs = number("RUNS", 7);
    for figure in ["handover", "raise", "operator", "storm", "cancels"] {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == figure) {
            continue;
        }
        match figure {
            "handover" => handover::measure(runs).await,
            "raise" => raise::measure(runs).await,
            "operator" => operator::measure(runs).await,
            "storm" => storm::measure(runs).await,
            _ => cancels::measure(number("CANCELS", 1_000_000)).await,
        }
    }
}

fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")),
        Err(_) => default,
    }
}

/// One figure, as it came out in each run.
fn tell(what: &str, mut runs: Vec<f64>, unit: &str) -> f64 {
    runs.sort_by(f64::total_cmp);
    let median = runs[runs.len() / 2];
    let (least, most) = (runs[0], runs[runs.len() - 1]);
    println!("{what}: {median:.2}{unit} ({least:.2} to {most:.2}, {} runs)", runs.len());
    median
}

/// The same for one that has a goal; its median counts.
fn tell_goal(what: &str, runs: Vec<f64>, unit: &str, at_most: f64) {
    let median = tell(what, runs, unit);
    let verdict = if median <= at_most { "met" } else { "MISSED" };
    println!("  goal: at most {at_most}{unit}: {verdict}");
}

/// Whoever measured while the server stood still (R6) measured the machine.
fn tell_stalls(server: &Server) {
    let stalled = server.stalled();
    if !stalled.is_zero() {
        println!("  the machine let the server stand still for {stalled:?} meanwhile");
    }
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// What so many percent of the spans do not exceed.
fn percentile(spans: &mut [Duration], percent: usize) -> Duration {
    spans.sort_unstable();
    spans[(spans.len() * percent).div_ceil(100).max(1) - 1]
}
