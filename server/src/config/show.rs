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

impl Effective {
    /// The keys of `[server]` that have other values.
    pub(crate) fn differs(&self, other: &Self) -> Vec<&'static str> {
        let server = |of: &Self| of.tables.first().map(|table| table.lines.clone()).unwrap_or_default();
        let pairs = server(self).into_iter().zip(server(other));
        pairs.filter(|(one, other)| one.value != other.value).map(|(line, _)| line.key).collect()
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
