//! The configuration in force, as TOML that the server would accept again, with where each value came from.

use std::fmt;

use super::section::{Line, quoted};

/// What holds, table by table.
#[derive(Clone, Debug, Default)]
pub struct Effective {
    pub(super) tables: Vec<Table>,
}

/// One table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) header: &'static str,
    /// `name` or `pattern` and its value, if it has one.
    pub(super) name: Option<(&'static str, String)>,
    pub(super) lines: Vec<Line>,
}

/// A value of `[server]` that is another one now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) key: &'static str,
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Effective {
    /// What differs in `[server]`.
    pub(crate) fn differs(&self, other: &Self) -> Vec<Difference> {
        let server = |of: &Self| of.tables.first().map(|table| table.lines.clone()).unwrap_or_default();
        let pairs = server(self).into_iter().zip(server(other));
        let difference =
            |(one, other): (Line, Line)| Difference { key: one.key, before: one.value, after: other.value };
        pairs.map(difference).filter(|Difference { before, after, .. }| before != after).collect()
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Table { header, name, lines }) in self.tables.iter().enumerate() {
            writeln!(f, "{}{header}", if index == 0 { "" } else { "\n" })?;
            if let Some((key, name)) = name {
                writeln!(f, "{key} = {}", quoted(name))?;
            }
            for Line { key, value, from } in lines {
                writeln!(f, "{:<40} # {from}", format!("{key} = {value}"))?;
            }
        }
        Ok(())
    }
}
