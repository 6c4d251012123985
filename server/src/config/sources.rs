//! Where settings come from: the file, under the environment, under flags. Defaults stand where settings are read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fault::{Fault, Source};
use super::file;
use super::section::{Given, Keys, Written};

/// What variables of ours begin with.
const PREFIX: &str = "TIDEGATE_";
/// Variables of other programs of this project: the command line `tidegate`, and the tests.
const OF_OTHERS: [&str; 3] = ["TIDEGATE_ENDPOINT", "TIDEGATE_ADMIN_ENDPOINT", "TIDEGATE_TESTS"];
/// The tables that hold one value for each key. Bulkheads and templates come from the file only.
const SINGLE: [&str; 2] = ["server", "defaults"];

/// Where a configuration comes from. Kept, so that the file can be read again under the same environment and flags.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    path: PathBuf,
    environment: Vec<(OsString, OsString)>,
    flags: Vec<Flag>,
}

/// A setting given on the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// As it was written: `--listen`, `--set server.max_leases`.
    pub name: String,
    /// `server.listen`.
    pub key: String,
    /// What follows it.
    pub value: String,
}

impl Sources {
    /// That file, under those variables and flags. Of the variables only those that begin with `TIDEGATE_` are looked at.
    pub fn new(
        path: impl Into<PathBuf>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: Vec<Flag>,
    ) -> Self {
        let ours = |(name, _): &(OsString, OsString)| {
            name.to_string_lossy().get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        };
        Self { path: path.into(), environment: environment.into_iter().filter(ours).collect(), flags }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the file as it is now.
    pub(crate) fn text(&self) -> Result<String, Fault> {
        std::fs::read_to_string(&self.path).map_err(|error| Fault {
            key: "--config".into(),
            problem: format!("must be a file that can be read: {error}"),
            source: Source::Flag(format!("--config {}", self.path.display())),
        })
    }

    /// All that was given, the strongest source of each key.
    pub(super) fn keys(&self, text: &str, faults: &mut Vec<Fault>) -> Keys {
        let path: Arc<str> = self.path.display().to_string().into();
        let mut keys = file::read(&path, text, faults);
        lay(&mut keys, self.variables(faults), faults);
        lay(&mut keys, self.flags(faults), faults);
        keys
    }

    fn variables(&self, faults: &mut Vec<Fault>) -> Vec<Single> {
        let mut singles = Vec::new();
        for (name, value) in &self.environment {
            let name = name.to_string_lossy().into_owned();
            if OF_OTHERS.contains(&name.as_str()) || is_link(&name) {
                continue;
            }
            let mut fault = |problem: String| {
                faults.push(Fault { key: name.clone(), problem, source: Source::Environment(name.clone()) });
            };
            let lower = name.to_lowercase();
            let path: Vec<_> = lower.split("__").collect();
            match (&path[..], value.to_str()) {
                (["tidegate", "bulkhead" | "template", ..], _) => {
                    fault("is no setting: [[bulkhead]] and [[template]] come from the file only".into());
                }
                (["tidegate", table, key], Some(text)) if SINGLE.contains(table) && !key.is_empty() => {
                    singles.push(Single::new(table, key, text, Source::Environment(name)));
                }
                (["tidegate", table, _], None) if SINGLE.contains(table) => fault("must be UTF-8".into()),
                _ => fault("is no setting; they are named TIDEGATE__SERVER__key and TIDEGATE__DEFAULTS__key".into()),
            }
        }
        singles
    }

    fn flags(&self, faults: &mut Vec<Fault>) -> Vec<Single> {
        let mut singles = Vec::new();
        for Flag { name, key, value } in &self.flags {
            let source = Source::Flag(name.clone());
            match key.split_once('.') {
                Some((table, key)) if SINGLE.contains(&table) && !key.is_empty() => {
                    singles.push(Single::new(table, key, value, source));
                }
                Some(("bulkhead" | "template", _)) => faults.push(Fault {
                    key: key.clone(),
                    problem: "is no flag: [[bulkhead]] and [[template]] come from the file only".into(),
                    source,
                }),
                _ => faults.push(Fault {
                    key: key.clone(),
                    problem: "is no setting; they are named server.key and defaults.key".into(),
                    source,
                }),
            }
        }
        singles
    }
}

/// A value for one key of one table.
struct Single {
    table: String,
    key: String,
    given: Given,
}

impl Single {
    fn new(table: &str, key: &str, value: &str, source: Source) -> Self {
        let given = Given { written: Written::Plain(value.into()), source, inherited: false };
        Self { table: table.into(), key: key.into(), given }
    }
}

/// Puts one layer over what is there. Twice the same key in one layer is a fault.
fn lay(keys: &mut Keys, layer: Vec<Single>, faults: &mut Vec<Fault>) {
    let mut laid = Vec::new();
    for Single { table, key, given } in layer {
        if laid.contains(&(table.clone(), key.clone())) {
            let problem = "must be given only once".into();
            faults.push(Fault { key: format!("[{table}] {key}"), problem, source: given.source });
            continue;
        }
        laid.push((table.clone(), key.clone()));
        let under = keys.entry(table).or_insert_with(|| Given {
            written: Written::Table(Keys::new()),
            source: given.source.clone(),
            inherited: false,
        });
        // What is no table stays, and is told as such.
        if let Written::Table(under) = &mut under.written {
            under.insert(key, given);
        }
    }
}

/// Whether Kubernetes may have put the variable there, for a Service whose name begins with `tidegate`:
/// `TIDEGATE_SERVICE_HOST`, `TIDEGATE_SERVICE_PORT_GRPC`, `TIDEGATE_PORT`, `TIDEGATE_PORT_7600_TCP_ADDR`.
fn is_link(name: &str) -> bool {
    if name.contains("__") || name.chars().any(|char| char.is_ascii_lowercase()) {
        return false;
    }
    let numbered = |rest: &str| {
        let mut words = rest.split('_');
        words.next().is_some_and(|port| port.parse::<u16>().is_ok())
            && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
            && matches!(words.next(), None | Some("PROTO" | "PORT" | "ADDR"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.match_indices("_PORT_").any(|(at, found)| numbered(&name[at + found.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_kubernetes_makes_for_a_service_are_not_ours() {
        for name in [
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_SERVICE_PORT",
            "TIDEGATE_SERVICE_PORT_GRPC",
            "TIDEGATE_ADMIN_SERVICE_HOST",
            "TIDEGATE_PORT",
            "TIDEGATE_PORT_7600_TCP",
            "TIDEGATE_PORT_7600_TCP_PORT",
            "TIDEGATE_ADMIN_PORT_7601_TCP_ADDR",
        ] {
            assert!(is_link(name), "{name}");
        }
        for name in
            ["TIDEGATE_LISTEN", "TIDEGATE__SERVER__PORT", "TIDEGATE_PORTS", "TIDEGATE_PORT_X_TCP", "TIDEGATE_port"]
        {
            assert!(!is_link(name), "{name}");
        }
    }
}
