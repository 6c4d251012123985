//! Configurations that must be refused, each for the right key, with its source and what would be right, before a port is
//! bound.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;
use tidegate_tests::{Said, run};

/// A configuration of which nothing is wrong; cases add what is.
const DB: &str = "[[bulkhead]]\nname='db'\nlimit=4\n";

/// Text of a file; where `+` begins it, it follows `DB`. The key that must be told, with its line; and what is allowed.
const FILES: &[(&str, &str, usize, &str)] = &[
    // The whole.
    ("", "[[bulkhead]] or [[template]]", 0, "must be there at least once"),
    ("[server]\n[defaults]\n", "[[bulkhead]] or [[template]]", 0, "must be there at least once"),
    ("not = toml = at all\n", "TOML", 1, "cannot be understood"),
    ("+limit=5\n", "TOML", 4, "duplicate key: limit=5"),
    ("+[server]\n[server]\n", "TOML", 5, "duplicate key: [server]"),
    ("+ceiling=\n", "TOML", 4, "cannot be understood"),
    ("+max_wait='5s\n", "TOML", 4, "cannot be understood"),
    ("+[sever]\n", "sever", 4, "[server], [defaults], [[bulkhead]], [[template]]"),
    ("listen='127.0.0.1:1'\n+", "listen", 1, "[server], [defaults]"),
    ("'server.listen'='127.0.0.1:1'\n+", "server.listen", 1, "[server], [defaults]"),
    ("server=3\n+", "server", 1, "must be a table, [server], not 3"),
    ("bulkhead=[4]\n", "[[bulkhead]]", 1, "must be a table, not 4"),
    ("[bulkhead]\nname='db'\nlimit=4\n", "bulkhead", 1, "must be written [[bulkhead]]"),
    ("+[template]\npattern='x*'\nlimit=1\n", "template", 4, "must be written [[template]]"),
    ("+[[defaults]]\nlimit=1\n", "defaults", 4, "must be a table, [defaults], not an array"),
    ("+[server.tls]\n", "[server] tls", 4, "there are: listen"),
    // The server.
    ("+[server]\nport=3\n", "[server] port", 5, "there are: listen, admin_listen"),
    ("+[server]\nLISTEN='127.0.0.1:0'\n", "[server] LISTEN", 5, "there are: listen"),
    ("+[server]\nlimit=3\n", "[server] limit", 5, "there are: listen"),
    ("+[server]\nlisten='here'\n", "[server] listen", 5, "an address and a port"),
    ("+[server]\nadmin_listen='127.0.0.1'\n", "[server] admin_listen", 5, "an address and a port"),
    ("+[server]\nops_listen='127.0.0.1:65536'\n", "[server] ops_listen", 5, "an address and a port"),
    ("+[server]\nlisten=7600\n", "[server] listen", 5, "an address and a port"),
    ("+[server]\nlisten='localhost:7600'\n", "[server] listen", 5, "an address and a port"),
    ("+[server]\nlisten='127.0.0.1:7601'\n", "[server] admin_listen", 0, "another address than listen has"),
    ("+[server]\nops_listen='0.0.0.0:7600'\n", "[server] ops_listen", 5, "another address than listen has"),
    ("+[server]\nops_listen='[::]:7600'\n", "[server] ops_listen", 5, "another address than listen has"),
    ("+[server]\nkeepalive_interval='1ms'\n", "[server] keepalive_interval", 5, "\"1s\" to \"1h\""),
    ("+[server]\nkeepalive_timeout='2h'\n", "[server] keepalive_timeout", 5, "\"1s\" to \"1h\""),
    ("+[server]\nmax_leases=0\n", "[server] max_leases", 5, "a whole number, 1 to"),
    ("+[server]\nmax_waiters=-1\n", "[server] max_waiters", 5, "a whole number, 1 to"),
    ("+[server]\nmax_partitions='many'\n", "[server] max_partitions", 5, "a whole number, 1 to"),
    ("+[server]\nmax_remembered=1.5\n", "[server] max_remembered", 5, "a whole number, 1 to"),
    (
        "+[server]\nmax_bulkheads=1\n[[bulkhead]]\nname='b'\nlimit=1\n",
        "[server] max_bulkheads",
        5,
        "a whole number, 2 to ",
    ),
    ("+[server]\nmax_cooldown='25h'\n", "[server] max_cooldown", 5, "\"1s\" to \"1day\""),
    ("+[server]\nmax_cooldown='0s'\n", "[server] max_cooldown", 5, "\"1s\" to \"1day\""),
    ("+[server]\ncooldown_grace='61m'\n", "[server] cooldown_grace", 5, "\"0s\" to \"1h\""),
    ("+[server]\nramp_step='61s'\n", "[server] ramp_step", 5, "\"0s\" to \"1m\""),
    ("+[server]\nramp_step=1\n", "[server] ramp_step", 5, "a duration"),
    ("+[server]\nidle_after='8days'\n", "[server] idle_after", 5, "\"1s\" to \"7days\""),
    ("+[server]\nmin_retry_hint='0s'\n", "[server] min_retry_hint", 5, "\"1ms\" to \"1h\""),
    ("+[server]\nmax_retry_hint='2h'\n", "[server] max_retry_hint", 5, "\"50ms\" to \"1h\""),
    ("+[server]\nmin_retry_hint='2m'\n", "[server] max_retry_hint", 0, "\"2m\" to \"1h\", not \"1m\""),
    // Defaults.
    ("+[defaults]\nmax_waits='3s'\n", "[defaults] max_waits", 5, "there are: limit, ceiling"),
    ("+[defaults]\nname='x'\n", "[defaults] name", 5, "there are: limit"),
    ("+[defaults]\npattern='x'\n", "[defaults] pattern", 5, "there are: limit"),
    ("+[defaults]\nlimit=0\n", "[defaults] limit", 5, "1 to 1000000000"),
    ("+[defaults]\nceiling=1000000001\n", "[defaults] ceiling", 5, "1 to 1000000000"),
    ("+[defaults]\nmax_wait='61m'\n", "[defaults] max_wait", 5, "\"0s\" to \"1h\""),
    ("+[defaults]\ndisplace='yes'\n", "[defaults] displace", 5, "true or false"),
    ("+[defaults]\nceiling=3\n", "[[bulkhead]] \"db\" limit", 3, "1 to 3, not 4"),
    // Bulkheads.
    ("[[bulkhead]]\nlimit=4\n", "[[bulkhead]] number 1 name", 1, "given, 1 to 256 bytes"),
    ("[[bulkhead]]\nname=''\nlimit=4\n", "[[bulkhead]] number 1 name", 2, "1 to 256 bytes"),
    ("[[bulkhead]]\nname=\"a\\nb\"\nlimit=4\n", "[[bulkhead]] number 1 name", 2, "without control characters"),
    ("[[bulkhead]]\nname=7\nlimit=4\n", "[[bulkhead]] number 1 name", 2, "a text, not 7"),
    ("+[[bulkhead]]\nname='db'\nlimit=4\n", "[[bulkhead]] \"db\" name", 5, "must be there only once"),
    ("[[bulkhead]]\nname='db'\n", "[[bulkhead]] \"db\" limit", 1, "given, 1 to 1000000000"),
    ("+limits=3\n", "[[bulkhead]] \"db\" limits", 4, "there are: name, limit"),
    ("+pattern='x*'\n", "[[bulkhead]] \"db\" pattern", 4, "there are: name, limit"),
    ("+listen='x'\n", "[[bulkhead]] \"db\" listen", 4, "there are: name, limit"),
    ("+ceiling=3\n", "[[bulkhead]] \"db\" limit", 3, "1 to 3, not 4"),
    ("+ceiling=99999999999999999999999999999999999999999999\n", "[[bulkhead]] \"db\" ceiling", 4, "1 to 1000000000"),
    ("+max_queued=1000001\n", "[[bulkhead]] \"db\" max_queued", 4, "0 to 1000000, not 1000001"),
    ("+max_queued=true\n", "[[bulkhead]] \"db\" max_queued", 4, "a whole number, 0 to 1000000, not true"),
    ("+max_queued='8'\n", "[[bulkhead]] \"db\" max_queued", 4, "a whole number"),
    ("+max_wait='soon'\n", "[[bulkhead]] \"db\" max_wait", 4, "a duration, \"0s\" to \"1h\", not \"soon\""),
    ("+max_wait=3\n", "[[bulkhead]] \"db\" max_wait", 4, "a duration"),
    ("+max_wait='-1s'\n", "[[bulkhead]] \"db\" max_wait", 4, "a duration"),
    ("+max_wait=1979-05-27\n", "[[bulkhead]] \"db\" max_wait", 4, "a duration"),
    ("+lease_ttl='1s'\n", "[[bulkhead]] \"db\" lease_ttl", 4, "\"2s\" to \"5m\""),
    ("+lease_ttl='20s'\nmax_lease_ttl='15s'\n", "[[bulkhead]] \"db\" lease_ttl", 4, "2s to 15s, not 20s"),
    ("+max_lease_ttl='301s'\n", "[[bulkhead]] \"db\" max_lease_ttl", 4, "\"2s\" to \"5m\""),
    ("+aging_step='2h'\n", "[[bulkhead]] \"db\" aging_step", 4, "\"0s\" to \"1h\""),
    ("+displace=1\n", "[[bulkhead]] \"db\" displace", 4, "true or false"),
    ("+mode='off'\n", "[[bulkhead]] \"db\" mode", 4, "enforcing, shadow, paused or closed"),
    ("+limit.now=3\n", "TOML", 4, "cannot be understood"),
    ("+ramp_step='1s'\n", "[[bulkhead]] \"db\" ramp_step", 4, "there are: name, limit"),
    // Templates.
    ("[[template]]\nlimit=1\n", "[[template]] number 1 pattern", 1, "given, 1 to 256 bytes"),
    ("[[template]]\npattern='a*b'\nlimit=1\n", "[[template]] number 1 pattern", 2, "at most one *, at its end"),
    ("[[template]]\npattern='**'\nlimit=1\n", "[[template]] number 1 pattern", 2, "at most one *, at its end"),
    ("+[[template]]\npattern='x*'\nname='x'\nlimit=1\n", "[[template]] \"x*\" name", 6, "there are: pattern, limit"),
    (
        "[[template]]\npattern='x'\nlimit=1\n[[template]]\npattern='x'\nlimit=2\n",
        "[[template]] \"x\" pattern",
        5,
        "only once",
    ),
    ("+[[template]]\npattern='db'\nlimit=1\n", "[[template]] \"db\" pattern", 5, "only once"),
    ("[[template]]\npattern='x*'\n", "[[template]] \"x*\" limit", 1, "given, 1 to 1000000000"),
];

/// Ports that are taken: who gets so far as to bind one ends with 1.
struct Taken(Vec<TcpListener>);

impl Taken {
    fn new() -> Self {
        Self((0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect())
    }

    fn variables(&self) -> Vec<(String, String)> {
        let keys = ["LISTEN", "ADMIN_LISTEN", "OPS_LISTEN"].into_iter();
        keys.zip(&self.0)
            .map(|(key, port)| (format!("TIDEGATE__SERVER__{key}"), port.local_addr().unwrap().to_string()))
            .collect()
    }
}

fn text(case: &str) -> String {
    match case.split_once('+') {
        Some((before, after)) if before.is_empty() || before.ends_with('\n') => format!("{before}{DB}{after}"),
        _ => case.to_owned(),
    }
}

fn write(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("tidegate.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn source(path: &str, line: usize) -> String {
    if line == 0 { "(default)".into() } else { format!("(file {path}, line {line})") }
}

#[track_caller]
fn refused(said: &Said, key: &str, problem: &str, source: &str) {
    let Said { code, out, err } = said;
    let told = |line: &str| {
        let (_, fault) = line.split_once("bad configuration: ")?;
        Some(fault.starts_with(&format!("{key} ")) && fault.contains(problem) && fault.trim_end().ends_with(source))
    };
    assert_eq!(*code, Some(64), "{err}");
    assert!(err.lines().any(|line| told(line) == Some(true)), "{key} ... {problem} ... {source} is not in:\n{err}");
    assert!(out.is_empty() && !err.contains("serving"), "{out}{err}");
}

#[tokio::test]
async fn each_file_is_refused_for_the_right_key_before_a_port_is_bound() {
    assert!(FILES.len() >= 50);
    let (folder, taken) = (TempDir::new().unwrap(), Taken::new());
    let variables = taken.variables();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    for &(case, key, line, problem) in FILES {
        let path = write(&folder, &text(case));
        // A case about the listeners would not be one under other listeners.
        let variables = if key.ends_with("listen") { &[] } else { &variables[..] };
        let said = run(&["serve", "--config", &path], variables).await;
        refused(&said, key, problem, &source(&path, line));
        assert_eq!(said.err.lines().count(), 1, "{case}: {}", said.err);
        let checked = run(&["check-config", "--config", &path], variables).await;
        refused(&checked, key, problem, &source(&path, line));
    }
    // The ports were really taken.
    let said = run(&["serve", "--config", &write(&folder, DB)], &variables).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
}

#[tokio::test]
async fn variables_are_refused_by_their_names() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, DB);
    let of = |table: &str| format!("they are named TIDEGATE__SERVER__key and TIDEGATE__DEFAULTS__key{table}");
    for (name, value, key, problem) in [
        ("TIDEGATE_SERVER__LISTEN", "127.0.0.1:0", "TIDEGATE_SERVER__LISTEN", of("")),
        ("TIDEGATE_LISTEN", "127.0.0.1:0", "TIDEGATE_LISTEN", of("")),
        ("TIDEGATE__LISTEN", "127.0.0.1:0", "TIDEGATE__LISTEN", of("")),
        ("TIDEGATE__SEVER__LISTEN", "127.0.0.1:0", "TIDEGATE__SEVER__LISTEN", of("")),
        ("TIDEGATE__SERVER__", "x", "TIDEGATE__SERVER__", of("")),
        ("TIDEGATE__SERVER__LISTEN__X", "x", "TIDEGATE__SERVER__LISTEN__X", of("")),
        ("TIDEGATE__SERVER__LISTNE", "x", "[server] listne", "there are: listen".into()),
        ("TIDEGATE__SERVER__LISTEN", "here", "[server] listen", "an address and a port".into()),
        ("TIDEGATE__SERVER__LISTEN", "", "[server] listen", "an address and a port".into()),
        ("TIDEGATE__SERVER__MAX_LEASES", "0", "[server] max_leases", "1 to".into()),
        ("TIDEGATE__SERVER__MAX_LEASES", "1e3", "[server] max_leases", "a whole number".into()),
        ("TIDEGATE__DEFAULTS__MAX_WAIT", "2h", "[defaults] max_wait", "\"0s\" to \"1h\"".into()),
        ("TIDEGATE__DEFAULTS__DISPLACE", "1", "[defaults] displace", "true or false".into()),
        ("tidegate__defaults__mode", "on", "[defaults] mode", "enforcing, shadow".into()),
        ("TIDEGATE__BULKHEAD__0__LIMIT", "3", "TIDEGATE__BULKHEAD__0__LIMIT", "come from the file only".into()),
        ("TIDEGATE__TEMPLATE__LIMIT", "3", "TIDEGATE__TEMPLATE__LIMIT", "come from the file only".into()),
        // What a bulkhead inherits is told with the variable that it comes from.
        ("TIDEGATE__DEFAULTS__CEILING", "3", "[[bulkhead]] \"db\" limit", "1 to 3, not 4".into()),
    ] {
        let said = run(&["serve", "--config", &path], &[(name, value)]).await;
        let source = if key.contains("\"db\"") { source(&path, 3) } else { format!("(environment {name})") };
        refused(&said, key, &problem, &source);
    }
    let twice = [("TIDEGATE__DEFAULTS__MAX_WAIT", "1s"), ("TIDEGATE__DEFAULTS__max_wait", "2s")];
    let said = run(&["serve", "--config", &path], &twice).await;
    refused(&said, "[defaults] max_wait", "must be given only once", "max_wait)".to_lowercase().as_str());
}

#[tokio::test]
async fn flags_are_refused_by_their_names() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, DB);
    for (flags, key, problem, source) in [
        (&["--listen", "here"][..], "[server] listen", "an address and a port", "(flag --listen)"),
        (
            &["--ops-listen", "127.0.0.1:7600"],
            "[server] ops_listen",
            "another address than listen",
            "(flag --ops-listen)",
        ),
        (&["--set", "server.port=3"], "[server] port", "there are: listen", "(flag --set server.port)"),
        (&["--set", "port=3"], "port", "server.key and defaults.key", "(flag --set port)"),
        (&["--set", "bulkhead.limit=3"], "bulkhead.limit", "from the file only", "(flag --set bulkhead.limit)"),
        (&["--set", "defaults.max_wait=2h"], "[defaults] max_wait", "\"0s\" to", "(flag --set defaults.max_wait)"),
        (
            &["--listen", "127.0.0.1:0", "--set", "server.listen=127.0.0.1:0"],
            "[server] listen",
            "must be given only once",
            "(flag --set server.listen)",
        ),
    ] {
        let arguments = [&["serve", "--config", &path], flags].concat();
        refused(&run(&arguments, &[]).await, key, problem, source);
    }
    let gone = folder.path().join("gone.toml");
    let gone = gone.to_str().unwrap();
    let source = format!("(flag --config {gone})");
    refused(&run(&["serve", "--config", gone], &[]).await, "--config", "a file that can be read", &source);
    let folder = Path::new(gone).parent().unwrap().to_str().unwrap();
    let source = format!("(flag --config {folder})");
    refused(&run(&["serve", "--config", folder], &[]).await, "--config", "a file that can be read", &source);
    // A wrong command line is not a bad configuration.
    assert_eq!(run(&["serve"], &[]).await.code, Some(2));
    assert_eq!(run(&["serve", "--config", &path, "--set", "x"], &[]).await.code, Some(2));
}

#[tokio::test]
async fn all_that_is_wrong_is_told_at_once() {
    let folder = TempDir::new().unwrap();
    let path =
        write(&folder, "[server]\nmax_leases=0\nport=1\n[[bulkhead]]\nname='a'\nlimit=0\nmax_wait='x'\n[[bulkhead]]\n");
    let said = run(&["check-config", "--config", &path, "--listen", "x"], &[("TIDEGATE_X", "1")]).await;
    assert_eq!((said.code, said.err.lines().count()), (Some(64), 8), "{}", said.err);
    // But not more than somebody would read.
    let many: Vec<_> = (0..1000).map(|number| format!("x{number}=1\n")).collect();
    let many = many.concat();
    let said = run(&["check-config", "--config", &write(&folder, &format!("[server]\n{many}{DB}"))], &[]).await;
    assert_eq!((said.code, said.err.lines().count()), (Some(64), 51));
    assert!(said.err.ends_with("and 950 more\n"), "{}", said.err);
}
