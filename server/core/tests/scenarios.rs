//! The rules of admission as stories: each file in `scenarios/` is run and must come out as it is written.
//!
//! A story begins with a paragraph that tells what it shows. Then come the settings, a command in each line with what it
//! answers, and indented below it what it did to others. A line that starts with `#` is a remark. An unknown word is an
//! error. `UPDATE_SCENARIOS=1 cargo test -p tidegate-core --test scenarios` writes what came out into the files; review
//! the diff.
#![allow(clippy::expect_used, clippy::format_push_string, clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;

use stage::Stage;

#[path = "scenarios/stage.rs"]
mod stage;
#[path = "shared/told.rs"]
mod told;
#[path = "scenarios/words.rs"]
mod words;

#[test]
fn every_story_comes_out_as_it_is_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut stories: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    stories.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    stories.sort();
    assert!(stories.len() >= 14, "there are only {} stories in {}", stories.len(), folder.display());
    let mut wrong = String::new();
    for path in stories {
        let written = fs::read_to_string(&path).unwrap();
        let told = tell(&written).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        if std::env::var("UPDATE_SCENARIOS").is_ok_and(|update| update == "1") {
            fs::write(&path, told).unwrap();
        } else if told != written {
            wrong += &format!("{}:\n{}", path.display(), difference(&written, &told));
        }
    }
    assert!(wrong.is_empty(), "UPDATE_SCENARIOS=1 writes what came out (+) over what was written (-):\n{wrong}");
}

#[test]
fn what_is_no_story_is_an_error() {
    let prose = "Ten words of prose at the head, of which the eleventh is here.\n\n";
    for (script, problem) in [
        ("", "nothing happens"),
        ("at 0s status", "line 3: the settings must come first"),
        ("bulkhead limit 1 colour red", "line 3: no such setting: colour red"),
        ("bulkhead limit 0", "line 3: limit must be 1 to 1000000000, not 0"),
        ("bulkhead limit 1\nat 0 status", "line 4: `0` is no time"),
        ("bulkhead limit 1\nat 0s a acquires 1 soon", "line 4: unknown word `soon` in a request"),
        ("bulkhead limit 1\nat 0s a dances", "line 4: unknown command"),
        ("bulkhead limit 1\nat 0s a releases", "line 4: nobody is called a"),
        ("bulkhead limit 1\nat 2s status\nat 1s status", "line 5: time goes back"),
        ("bulkhead limit 1\nbulkhead limit 1", "line 4: a line must be a command"),
    ] {
        let told = tell(&format!("{prose}{script}\n"));
        assert!(told.as_ref().is_err_and(|told| told.starts_with(problem)), "{script}: {told:?}, not {problem}");
    }
}

/// The story as it comes out.
fn tell(written: &str) -> Result<String, String> {
    let (prose, script) = written.split_once("\n\n").ok_or("no paragraph of prose at its head")?;
    if prose.split_whitespace().count() < 10 || prose.starts_with("bulkhead") {
        return Err("the paragraph of prose at its head says nothing".into());
    }
    let mut told = format!("{prose}\n\n");
    let mut stage = None;
    for (line, number) in script.lines().zip(prose.lines().count() + 2..) {
        let result = match (line.split_whitespace().collect::<Vec<_>>().as_slice(), &mut stage) {
            ([] | ["#", ..], _) => Ok(format!("{}\n", line.trim_end())),
            // What came out last time.
            (_, Some(_)) if line.starts_with(' ') => Ok(String::new()),
            (["bulkhead", settings @ ..], None) => Stage::new(settings).map(|new| {
                stage = Some(new);
                format!("bulkhead {}\n", settings.join(" "))
            }),
            (["at", time, command @ ..], Some(stage)) => stage.play(time, command),
            (_, None) => Err("the settings must come first: bulkhead limit 1 ...".into()),
            _ => Err("a line must be a command (at 1.5s ...), a remark (# ...) or indented".into()),
        };
        told += &result.map_err(|problem| format!("line {number}: {problem}\n    {line}"))?;
    }
    stage.ok_or("nothing happens")?.drain_and_refill();
    Ok(told)
}

fn difference(written: &str, told: &str) -> String {
    let (mut written, mut told): (Vec<_>, Vec<_>) = (written.lines().collect(), told.lines().collect());
    while !written.is_empty() && written.first() == told.first() {
        written.remove(0);
        told.remove(0);
    }
    while !written.is_empty() && written.last() == told.last() {
        written.pop();
        told.pop();
    }
    let minus = written.iter().map(|line| format!("- {line}\n"));
    let plus = told.iter().map(|line| format!("+ {line}\n"));
    minus.chain(plus).collect()
}
