//! The rules that the repository keeps about itself. What fails here is to be mended there, not here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::case_sensitive_file_extension_comparisons)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words for which this project has another one (ARCHITECTURE.md, "Words"), as parts of public names.
const BANNED: [&str; 26] = [
    "semaphore",
    "pool",
    "limiter",
    "capacity",
    "size",
    "seat",
    "slot",
    "lock",
    "peer",
    "owner",
    "pending",
    "inflight",
    "used",
    "ghost",
    "ghosts",
    "tenant",
    "flow",
    "ban",
    "penalty",
    "rejection",
    "rejected",
    "term",
    "master",
    "leader",
    "primary",
    "warmup",
];
/// Names that others gave: paging as everybody pages, and a reason that comes from one of our origins.
const GIVEN: [&str; 2] = ["page_size", "CONCURRENCY_CAPACITY_EXHAUSTED"];
/// More lines than this are two things.
const LONGEST: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The repository's files with that ending, relative to its root.
fn files(ending: &str) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<_> =
        listed.lines().filter(|file| file.ends_with(ending) && root().join(file).exists()).map(str::to_owned).collect();
    assert!(!files.is_empty(), "no {ending} files: this checks nothing");
    files
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Fails with all findings at once.
fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// The lines of a file before its unit tests.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn no_file_is_two_things_and_each_says_what_it_is() {
    let mut findings = Vec::new();
    for file in files(".rs") {
        let text = read(&file);
        let lines = text.lines().count();
        if lines > LONGEST {
            findings.push(format!("{file}: {lines} lines, at most {LONGEST}"));
        }
        if !text.starts_with("//! ") {
            findings.push(format!("{file}: does not begin with `//!`, what it is"));
        }
    }
    assert_none(&findings);
}

#[test]
fn nothing_unfinished_without_an_issue() {
    let marks = ["TO\u{44}O", "FIX\u{4d}E", "XX\u{58}", "todo\u{21}(", "unimplemented\u{21}(", "db\u{67}!("];
    let mut findings = Vec::new();
    for file in [".rs", ".proto", ".py", ".sh"].into_iter().flat_map(files) {
        for (number, line) in read(&file).lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) && !line.contains("issue ") {
                findings.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&findings);
}

/// The parts of a name: `PermitsExceedCeiling`, `max_wait` and `QUEUE_FULL` are made of words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before_is_lower = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && before_is_lower) {
            words.push(String::new());
        }
        before_is_lower = letter.is_lowercase();
        if letter != '_' {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    words
}

/// The name that a line of the contract or of the core declares to everybody, if it does.
fn public_name<'a>(file: &str, line: &'a str) -> Option<&'a str> {
    let mut tokens =
        line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|token| !token.is_empty());
    if file.ends_with(".proto") {
        let first = tokens.next()?;
        let keyword = matches!(first, "message" | "enum" | "service" | "rpc");
        return if keyword { tokens.next() } else { line.split(" =").next()?.split_whitespace().last() };
    }
    if !line.trim_start().starts_with("pub ") {
        return None;
    }
    tokens.find(|token| !matches!(*token, "pub" | "const" | "fn" | "struct" | "enum" | "mod" | "use" | "type"))
}

#[test]
fn public_names_use_one_word_for_each_thing() {
    let mut findings = Vec::new();
    let core = files(".rs").into_iter().filter(|file| file.starts_with("server/core/src/"));
    for file in files(".proto").into_iter().chain(core) {
        let text = read(&file);
        for name in code(&text).filter_map(|line| public_name(&file, line)).filter(|name| !GIVEN.contains(name)) {
            for banned in words(name).iter().filter(|word| BANNED.contains(&word.as_str())) {
                findings.push(format!("{file}: {name} says {banned:?}"));
            }
        }
    }
    for key in settings() {
        for banned in words(&key).iter().filter(|word| BANNED.contains(&word.as_str())) {
            findings.push(format!("setting {key} says {banned:?}"));
        }
    }
    assert_none(&findings);
    let sample = [
        ("x.proto", "  uint32 pool_limit = 1;"),
        ("x.rs", "    pub fn free_slots(&self)"),
        ("x.rs", "pub struct SlotId(u32);"),
    ];
    let seen: Vec<_> = sample.iter().filter_map(|(file, line)| public_name(file, line)).collect();
    assert_eq!(seen, ["pool_limit", "free_slots", "SlotId"]);
    assert_eq!(words("SlotId"), ["slot", "id"]);
}

/// The keys of the configuration file: what its readers ask for.
fn settings() -> BTreeSet<String> {
    let mut settings = BTreeSet::new();
    for file in ["server/src/config/server.rs", "server/src/config/rule.rs"] {
        let text = read(file);
        let calls = ["keys.set(\"", "keys.set_within(\"", "keys.given(\"", "keys.given_within(\""];
        let asked = calls.iter().flat_map(|call| text.split(call).skip(1).filter_map(|rest| rest.split('"').next()));
        settings.extend(asked.map(str::to_owned));
    }
    assert!(settings.len() > 20, "the settings were not found");
    settings
}

#[test]
fn every_setting_is_shown_in_the_example() {
    let example = read("examples/tidegate.toml");
    let shown =
        |key: &String| example.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} =")));
    assert_none(&settings().into_iter().filter(|key| !shown(key)).collect::<Vec<_>>());
}

#[test]
fn the_core_depends_on_what_the_architecture_says() {
    let manifest = read("server/core/Cargo.toml");
    let section = manifest.split("[dependencies]").nth(1).unwrap().split('[').next().unwrap();
    let names: Vec<_> =
        section.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty()).collect();
    let told = format!("Dependencies of the core: `{}`.", names.join("`, `"));
    assert!(read("ARCHITECTURE.md").contains(&told), "ARCHITECTURE.md does not say: {told}");
}

/// Each room, and what it must not name.
#[test]
fn arrows_point_one_way() {
    const ROOMS: [(&str, &[&str]); 14] = [
        (
            "server/core/src/",
            &[
                "tokio",
                "tonic",
                "tracing",
                "std::time::Instant",
                "SystemTime",
                "std::sync",
                "rand::",
                "std::fs",
                "std::net::Tcp",
                "async ",
                "HashMap<String",
            ],
        ),
        ("server/src/admission", &["crate::grpc", "crate::config", "crate::ops", "tidegate_proto", "tonic"]),
        ("server/src/caps.rs", &["crate::", "tokio", "tidegate_proto", "tonic"]),
        ("server/src/cooldowns.rs", &["crate::grpc", "crate::config", "tokio", "tidegate_proto", "tonic"]),
        ("server/src/waiting.rs", &["crate::grpc", "crate::config", "tidegate_proto", "tonic"]),
        ("server/src/ticker.rs", &["crate::grpc", "crate::config", "tidegate_proto", "tonic"]),
        ("server/src/transport", &["crate::grpc", "crate::config", "crate::admission", "tidegate_proto", "tonic"]),
        ("server/src/waits.rs", &["crate::grpc", "crate::transport", "crate::admission", "tokio", "tonic"]),
        ("server/src/pressure.rs", &["crate::", "tidegate_proto", "tonic"]),
        ("server/src/clock.rs", &["crate::", "tidegate_proto", "tonic"]),
        ("server/src/seal.rs", &["crate::", "tokio", "tidegate_proto", "tonic"]),
        ("server/src/config", &["crate::admission", "crate::grpc", "tidegate_proto", "tonic"]),
        ("server/src/ops.rs", &["crate::grpc", "tidegate_core", "tidegate_proto", "tonic"]),
        ("client/src/", &["tidegate_server", "tidegate_tests"]),
    ];
    let mut findings = Vec::new();
    for (room, banned) in ROOMS {
        let inside: Vec<_> = files(".rs").into_iter().filter(|file| file.starts_with(room)).collect();
        assert!(!inside.is_empty(), "{room} is gone: this checks nothing");
        for file in inside {
            let text = read(&file);
            for line in code(&text) {
                findings.extend(
                    banned
                        .iter()
                        .filter(|word| line.contains(*word))
                        .map(|word| format!("{file} names {word}: {}", line.trim())),
                );
            }
        }
    }
    for file in
        files(".rs").iter().filter(|file| file.starts_with("server/src/") && *file != "server/src/grpc/status.rs")
    {
        let text = read(file);
        let made = code(&text).filter(|line| line.contains("Status::") && !line.contains("ServingStatus::"));
        findings.extend(made.map(|line| format!("{file} makes a status: {}", line.trim())));
    }
    for file in files("Cargo.toml").iter().filter(|file| !file.starts_with("tests/")) {
        let text = read(file);
        findings.extend(text.contains("tidegate-tests").then(|| format!("{file} depends on the tests")));
    }
    assert_none(&findings);
}
