//! What is wrong with a configuration, and where it came from.

use std::fmt;
use std::sync::Arc;

/// At most so many faults are told.
const MOST: usize = 50;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody gave it.
    Default,
    /// The file, and the line there.
    File {
        /// As it was named on the command line.
        path: Arc<str>,
        /// Counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path, line } => write!(f, "file {path}, line {line}"),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it is about: `[server] listen`, `[[bulkhead]] "db" limit`.
    pub key: String,
    /// What is wrong and what would be right: `must be 1 to 16, not 17`.
    pub problem: String,
    /// Who said it.
    pub source: Source,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, problem, source } = self;
        write!(f, "{key} {problem} ({source})")
    }
}

/// All that is wrong with a configuration; at least one thing is.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError(pub Vec<Fault>);

impl ConfigError {
    /// A line for each fault, as many as a person may want to read at once.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = self.0.len().saturating_sub(MOST);
        let rest = (more > 0).then(|| format!("and {more} more"));
        self.0.iter().take(MOST).map(ToString::to_string).chain(rest)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.lines().enumerate() {
            write!(f, "{}{line}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}
