//! One table of the configuration: hands out its keys one by one, finds what is wrong with their values, and remembers
//! what holds. A key that nobody asked for is unknown, so each setting is named once, where it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_core::Mode;

use super::fault::{Fault, Source};

/// Keys and what was written for them.
pub(super) type Keys = BTreeMap<String, Given>;

/// A value as somebody wrote it.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) written: Written,
    pub(super) source: Source,
    /// Given in `[defaults]`, for a bulkhead that says nothing.
    pub(super) inherited: bool,
}

/// How it was written.
#[derive(Clone, Debug)]
pub(super) enum Written {
    /// In a variable or a flag, where everything is text.
    Plain(String),
    Text(String),
    Number(String),
    Boolean(bool),
    Table(Keys),
    Array(Vec<Given>),
    /// A fraction, a date: no setting is one.
    Other(String),
}

/// A kind of value.
pub(super) trait Kind: Sized {
    /// What is expected, for people.
    const EXPECTED: &'static str;

    fn read(written: &Written) -> Option<Self>;

    /// As the file would say it.
    fn show(&self) -> String;
}

/// A setting that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) from: String,
}

/// See the module.
pub(super) struct Section<'a> {
    /// `[server]`, `[[bulkhead]] "db"`.
    pub(super) place: String,
    pub(super) keys: Keys,
    pub(super) lines: Vec<Line>,
    /// Where the table begins: what is missing is missing there.
    pub(super) header: Source,
    faults: &'a mut Vec<Fault>,
    known: Vec<&'static str>,
    sources: BTreeMap<&'static str, (Source, bool)>,
    faulty: BTreeSet<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn new(place: impl Into<String>, keys: Keys, faults: &'a mut Vec<Fault>) -> Self {
        Self {
            place: place.into(),
            keys,
            lines: Vec::new(),
            header: Source::Default,
            faults,
            known: Vec::new(),
            sources: BTreeMap::new(),
            faulty: BTreeSet::new(),
        }
    }

    /// A setting without a range that somebody may have given.
    pub(super) fn given<T: Kind>(&mut self, key: &'static str) -> Option<T> {
        self.known.push(key);
        let Given { written, source, inherited } = self.keys.remove(key)?;
        self.sources.insert(key, (source, inherited));
        let value = T::read(&written);
        if value.is_none() {
            self.fault(key, &format!("{}, not {written}", T::EXPECTED));
        }
        value
    }

    /// A setting within a range that somebody may have given.
    pub(super) fn given_within<T: Kind + PartialOrd>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        self.known.push(key);
        let Given { written, source, inherited } = self.keys.remove(key)?;
        self.sources.insert(key, (source, inherited));
        let value = T::read(&written).filter(|value| range.contains(value));
        if value.is_none() {
            let (least, most) = (range.start().show(), range.end().show());
            self.fault(key, &format!("{}, {least} to {most}, not {written}", T::EXPECTED));
        }
        value
    }

    /// A setting with a default.
    pub(super) fn set<T: Kind>(&mut self, key: &'static str, default: T) -> T {
        let value = self.given(key).unwrap_or(default);
        self.hold(key, &value, "default");
        value
    }

    /// A setting with a default, within a range.
    pub(super) fn set_within<T: Kind + PartialOrd + Clone>(
        &mut self,
        key: &'static str,
        default: T,
        range: RangeInclusive<T>,
    ) -> T {
        let (least, most) = (range.start().show(), range.end().show());
        let fits = range.contains(&default);
        let within = range.start().clone();
        let given = self.given_within(key, range);
        if given.is_none() && !fits {
            // The range depends on another setting. What follows from this one is not to be told as well.
            self.fault(key, &format!("{}, {least} to {most}, not {}", T::EXPECTED, default.show()));
        }
        let value = given.unwrap_or(if fits { default } else { within });
        self.hold(key, &value, "default");
        value
    }

    /// Remembers that this holds; `default` says where it came from if nobody gave it.
    pub(super) fn hold<T: Kind>(&mut self, key: &'static str, value: &T, default: &str) {
        let from = match self.sources.get(key) {
            _ if self.faulty.contains(key) => default.to_owned(),
            None => default.to_owned(),
            Some((source, inherited)) => {
                let source = match source {
                    Source::File { line, .. } => format!("file, line {line}"),
                    other => other.to_string(),
                };
                if *inherited { format!("[defaults], {source}") } else { source }
            }
        };
        self.lines.push(Line { key, value: value.show(), from });
    }

    /// A value is wrong; told once for each key. `allowed` completes "must be".
    pub(super) fn fault(&mut self, key: &'static str, allowed: &str) {
        if !self.faulty.insert(key) {
            return;
        }
        let (source, inherited) = self.sources.get(key).cloned().unwrap_or_else(|| {
            // What must be given and is not is missing from its table; else it is a default that does not fit.
            let is_missing = allowed.starts_with("given");
            (if is_missing { self.header.clone() } else { Source::Default }, false)
        });
        let place = if inherited { format!("{} (by [defaults])", self.place) } else { self.place.clone() };
        self.faults.push(Fault { key: format!("{place} {key}"), problem: format!("must be {allowed}"), source });
    }

    /// Where the value of a key came from.
    pub(super) fn source(&self, key: &str) -> Source {
        self.sources.get(key).map_or(Source::Default, |(source, _)| source.clone())
    }

    /// Something else is wrong.
    pub(super) fn fault_at(&mut self, key: &str, problem: impl Into<String>, source: Source) {
        self.faults.push(Fault { key: format!("{} {key}", self.place), problem: problem.into(), source });
    }

    /// What is left over is unknown. Answers what holds, and the keys whose values are of no use.
    pub(super) fn end(self) -> (Vec<Line>, BTreeSet<&'static str>) {
        let known = self.known.join(", ");
        for (key, given) in self.keys {
            let problem = format!("is no setting; there are: {known}");
            self.faults.push(Fault { key: format!("{} {key}", self.place), problem, source: given.source });
        }
        (self.lines, self.faulty)
    }
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(text) | Self::Text(text) => write!(f, "{}", quoted(text)),
            Self::Number(text) | Self::Other(text) => write!(f, "{text}"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Table(_) => write!(f, "a table"),
            Self::Array(_) => write!(f, "an array"),
        }
    }
}

/// A text as TOML writes it.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The text of a value that may stand in quotes.
fn text(written: &Written) -> Option<&str> {
    match written {
        Written::Plain(text) | Written::Text(text) => Some(text),
        _ => None,
    }
}

/// The text of a value that stands without quotes.
fn bare(written: &Written) -> Option<&str> {
    match written {
        Written::Plain(text) | Written::Number(text) => Some(text),
        _ => None,
    }
}

impl Kind for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn read(written: &Written) -> Option<Self> {
        bare(written)?.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Kind for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn read(written: &Written) -> Option<Self> {
        bare(written)?.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Kind for usize {
    const EXPECTED: &'static str = "a whole number";

    fn read(written: &Written) -> Option<Self> {
        bare(written)?.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Kind for Duration {
    const EXPECTED: &'static str = "a duration";

    fn read(written: &Written) -> Option<Self> {
        humantime::parse_duration(text(written)?).ok()
    }

    fn show(&self) -> String {
        quoted(&humantime::format_duration(*self).to_string())
    }
}

impl Kind for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(written: &Written) -> Option<Self> {
        match written {
            Written::Boolean(value) => Some(*value),
            Written::Plain(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Kind for SocketAddr {
    const EXPECTED: &'static str = "an address and a port, such as \"127.0.0.1:7600\" or \"[::1]:0\"";

    fn read(written: &Written) -> Option<Self> {
        text(written)?.parse().ok()
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

impl Kind for Mode {
    const EXPECTED: &'static str = "enforcing, shadow, paused or closed";

    fn read(written: &Written) -> Option<Self> {
        let all = [Self::Enforcing, Self::Shadow, Self::Paused, Self::Closed];
        all.into_iter().find(|mode| text(written) == Some(mode.as_str()))
    }

    fn show(&self) -> String {
        quoted(self.as_str())
    }
}

impl Kind for String {
    const EXPECTED: &'static str = "a text";

    fn read(written: &Written) -> Option<Self> {
        text(written).map(str::to_owned)
    }

    fn show(&self) -> String {
        quoted(self)
    }
}
