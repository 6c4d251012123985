//! `tidegate-server check-config`: what holds, and where it came from.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;

use tempfile::TempDir;
use tidegate_tests::run;

/// What it printed; it must accept.
async fn effective(path: &Path, flags: &[&str], variables: &[(&str, &str)]) -> String {
    let said = run(&[&["check-config", "--config", path.to_str().unwrap()], flags].concat(), variables).await;
    assert_eq!((said.code, &said.err[..]), (Some(0), ""), "{}", said.out);
    said.out
}

/// The settings without where they came from.
fn settings(effective: &str) -> Vec<&str> {
    effective.lines().map(|line| line.split(" # ").next().unwrap().trim()).collect()
}

fn says(effective: &str, key: &str, value: &str, from: &str) {
    let said = |line: &str| line.split_once(" # ").map(|(setting, from)| (setting.trim().to_owned(), from.to_owned()));
    let wanted = (format!("{key} = {value}"), from.to_owned());
    assert!(effective.lines().any(|line| said(line).as_ref() == Some(&wanted)), "{wanted:?} is not in\n{effective}");
}

#[tokio::test]
async fn each_value_says_where_it_came_from_and_the_strongest_source_wins() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tidegate.toml");
    let text = "[server]\nlisten='127.0.0.1:1'\nadmin_listen='127.0.0.1:2'\nops_listen='127.0.0.1:3'\n\
                [defaults]\nmax_wait='4s'\nlease_ttl='20s'\n[[bulkhead]]\nname='db'\nlimit=4\nmax_queued=0x10\n\
                [[bulkhead]]\nname='all'\nlimit=2\nmax_wait='8s'\nmode='paused'\n";
    std::fs::write(&file, text).unwrap();
    let variables = [
        ("TIDEGATE__SERVER__ADMIN_LISTEN", "127.0.0.1:12"),
        ("TIDEGATE__SERVER__OPS_LISTEN", "127.0.0.1:13"),
        ("TIDEGATE__SERVER__MAX_LEASES", "14"),
        ("tidegate__defaults__max_wait", "15s"),
    ];
    let flags = ["--ops-listen", "127.0.0.1:23", "--set", "defaults.displace=true"];
    let effective = effective(&file, &flags, &variables).await;
    let says = |key, value, from| says(&effective, key, value, from);
    says("listen", "\"127.0.0.1:1\"", "file, line 2");
    says("admin_listen", "\"127.0.0.1:12\"", "environment TIDEGATE__SERVER__ADMIN_LISTEN");
    says("ops_listen", "\"127.0.0.1:23\"", "flag --ops-listen");
    says("max_leases", "14", "environment TIDEGATE__SERVER__MAX_LEASES");
    says("max_waiters", "200000", "default");
    says("displace", "true", "flag --set defaults.displace");
    says("displace", "true", "[defaults], flag --set defaults.displace");
    says("lease_ttl", "\"20s\"", "[defaults], file, line 7");
    says("limit", "4", "file, line 10");
    says("ceiling", "4", "default, limit");
    says("max_queued", "16", "file, line 11");
    says("max_queued", "16", "default, limit x 8");
    says("max_wait", "\"15s\"", "[defaults], environment tidegate__defaults__max_wait");
    says("max_wait", "\"8s\"", "file, line 15");
    says("aging_step", "\"3s 750ms\"", "default, max_wait / 4");
    says("max_lease_ttl", "\"20s\"", "default, lease_ttl");
    says("mode", "\"paused\"", "file, line 16");
    says("mode", "\"enforcing\"", "default");
}

#[tokio::test]
async fn what_it_prints_is_accepted_and_means_the_same() {
    let folder = TempDir::new().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples/tidegate.toml");
    let full = folder.path().join("full.toml");
    // Also with all that stands in it as a comment.
    let text = std::fs::read_to_string(&example).unwrap();
    let is_setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let shown = |line| str::strip_prefix(line, "# ").filter(|line| is_setting(line)).unwrap_or(line);
    let text: Vec<_> = text.lines().map(shown).collect();
    std::fs::write(&full, text.join("\n")).unwrap();
    for file in [example, full] {
        let first = effective(&file, &[], &[]).await;
        let printed = folder.path().join("printed.toml");
        std::fs::write(&printed, &first).unwrap();
        let second = effective(&printed, &[], &[]).await;
        assert_eq!(settings(&first), settings(&second));
        assert!(second.lines().all(|line| line.is_empty() || !line.contains(" # default")), "{second}");
    }
}
