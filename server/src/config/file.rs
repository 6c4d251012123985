//! The file: TOML into keys that know their line.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Source};
use super::section::{Given, Keys, Written};

/// Reads the text. What is no TOML is told, and nothing else then.
pub(super) fn read(path: &Arc<str>, text: &str, faults: &mut Vec<Fault>) -> Keys {
    let ends = text.bytes().enumerate().filter_map(|(at, byte)| (byte == b'\n').then_some(at)).collect();
    let lines = Lines { path, text, ends };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let problem = format!("cannot be understood: {}: {}", error.message(), lines.line(at));
        let source = lines.source(at);
        // What follows in a line is mostly a consequence.
        if faults.last().is_none_or(|last| last.source != source) {
            faults.push(Fault { key: "TOML".into(), problem, source });
        }
    }
    if errors.is_empty() { lines.keys(table.into_inner()) } else { Keys::new() }
}

struct Lines<'a> {
    path: &'a Arc<str>,
    text: &'a str,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Lines<'_> {
    fn keys(&self, table: DeTable<'_>) -> Keys {
        let key = |(key, value): (Spanned<_>, _)| {
            let at = key.span().start;
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            (key.into_owned(), self.given(at, value))
        };
        table.into_iter().map(key).collect()
    }

    fn given(&self, at: usize, value: Spanned<DeValue<'_>>) -> Given {
        let span = value.span();
        let written = match value.into_inner() {
            DeValue::String(text) => Written::Text(text.into_owned()),
            DeValue::Integer(number) => Written::Number(decimal(number.as_str(), number.radix())),
            DeValue::Boolean(value) => Written::Boolean(value),
            DeValue::Float(number) => Written::Other(number.as_str().to_owned()),
            DeValue::Datetime(date) => Written::Other(date.to_string()),
            DeValue::Table(table) => Written::Table(self.keys(table)),
            DeValue::Array(array) => {
                let array = array.into_iter().map(|value| self.given(value.span().start, value));
                Written::Array(array.collect())
            }
        };
        // A header stands where the table does, its key may stand in an earlier one.
        let at = if matches!(written, Written::Table(_)) { span.start } else { at };
        Given { written, source: self.source(at), inherited: false }
    }

    fn source(&self, at: usize) -> Source {
        Source::File { path: self.path.clone(), line: self.before(at) + 1 }
    }

    /// How many lines end before that place.
    fn before(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at)
    }

    fn line(&self, at: usize) -> &str {
        let start = self.before(at).checked_sub(1).map_or(0, |line| self.ends[line] + 1);
        self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim()
    }
}

/// The number in decimal digits; one that is too large for any setting stays as it is written.
fn decimal(digits: &str, radix: u32) -> String {
    i128::from_str_radix(digits, radix).map_or_else(|_| digits.to_owned(), |number| number.to_string())
}
