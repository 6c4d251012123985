//! The same server, seen by a stock gRPC client in Python: the scripts in `tests/python/`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_core::Reason;
use tidegate_tests::{Server, drain_and_refill, exercised, size};

/// Runs a script, or those of its tests that are named behind it; answers how many tests it had. Without Python's tools that is none, which only the quick size allows.
fn run(server: &Server, script: &str) -> Option<usize> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = tests.parent().unwrap().join(".tools/venv/bin/python");
    if !python.exists() {
        assert!(size(true, false, false), "{} is missing: run `make tools`", python.display());
        println!("SKIPPED: {} is missing (make tools brings it)", python.display());
        return None;
    }
    let mut words = script.split(' ');
    let output = Command::new(python)
        .arg(tests.join("python").join(words.next().unwrap()))
        .args([server.admission_address().to_string(), server.admin_address().to_string()])
        .args(words)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SERVER", server.process().to_string())
        .env("REASONS", Reason::ALL.map(Reason::as_str).join(","))
        .stdin(Stdio::null())
        .output()
        .expect("python starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} failed:\n{}{told}", String::from_utf8_lossy(&output.stdout));
    // Its last lines are: Ran 6 tests in 1.234s, OK.
    let ran = told.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    Some(ran.expect("unittest tells how many tests it ran"))
}

async fn check(script: &str, at_least: usize) {
    let server = Server::start(
        "[[bulkhead]]\nname='db'\nlimit=1\nmax_queued=100\nmax_wait='1m'\nlease_ttl='2s'\nmax_lease_ttl='1m'\n",
    );
    if let Some(ran) = run(&server, script) {
        exercised("tests in Python", ran, at_least);
        assert!(server.status("db").await.granted >= ran as u64);
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn grants_renewals_repeats_and_refusals_work_from_python() {
    check("leases.py", 6).await;
}

#[tokio::test]
async fn waiting_deadlines_and_leaving_work_from_python() {
    check("queue_order.py", 5).await;
}

#[tokio::test]
async fn p20_refusals_work_from_python() {
    check("refusals.py", 2).await;
}

#[tokio::test]
async fn p20_every_reason_is_decoded_by_python() {
    // As in the table of `refusals.rs`; none is left when it is over.
    let server = Server::start(
        "[server]\nmax_bulkheads=4\n[defaults]\nlimit=1\nmax_wait='1m'\nlease_ttl='30s'\n\
         [[bulkhead]]\nname='db'\nceiling=4\n[[bulkhead]]\nname='full'\nmax_queued=1\n\
         [[bulkhead]]\nname='displacing'\nmax_queued=1\ndisplace=true\n[[bulkhead]]\nname='last'\n\
         [[template]]\npattern='made/*'\n",
    );
    if let Some(ran) = run(&server, "table.py") {
        exercised("rows in Python", ran, Reason::ALL.len());
        assert_eq!(server.ended().await.code, Some(0));
    }
}

#[tokio::test]
async fn p20_a_retry_policy_in_python_obeys_the_pushback() {
    // Each on a server that has freed nothing yet: the hint is the end of the lease.
    check("pushback.py Pushback.test_a_retry_policy_comes_back_when_the_pushback_says_and_not_before", 1).await;
    check("pushback.py Pushback.test_the_pushback_is_not_slept_through_when_it_outlasts_the_deadline", 1).await;
}
