//! Configuration: defaults under the file, under the environment, under flags. What leaves here is valid by construction;
//! else everything that is wrong is told at once, with key, allowed values and source.

mod fault;
mod file;
mod rule;
mod section;
mod server;
mod show;
mod sources;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_core::{Draft, Invalid, Settings};

use crate::name;
use crate::settings::{Plan, ServerSettings, Template, TransportSettings};
use section::{Given, Keys, Section, Written};
use show::Table;

pub use fault::{ConfigError, Fault, Source};
pub(crate) use server::needs_restart;
pub use show::Effective;
pub use sources::{Flag, Sources};

/// All that the server is told at its start.
#[derive(Debug)]
pub struct Config {
    /// The server itself.
    pub server: ServerConfig,
    /// Its bulkheads.
    pub plan: Plan,
    pub(crate) running: Running,
}

/// What a reload compares with.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// What stands in the file.
    pub(crate) text: String,
    pub(crate) effective: Effective,
}

/// Where the server listens, and what it grants its connections.
#[derive(Debug)]
pub struct ServerConfig {
    /// For applications.
    pub listen: SocketAddr,
    /// For operators.
    pub admin_listen: SocketAddr,
    /// For probes.
    pub ops_listen: SocketAddr,
    /// How long a stop waits for those who hold leases, 0 to 10 min.
    pub drain_grace: Duration,
    /// What connections are granted.
    pub transport: TransportSettings,
}

impl Config {
    /// Reads what is there now. The error tells everything that is wrong.
    pub fn read(sources: &Sources) -> Result<Self, ConfigError> {
        let text = sources.text().map_err(|fault| ConfigError(vec![fault]))?;
        Self::build(sources, &text)
    }

    /// The same from text alone, for tests and embedders.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::build(&Sources::default(), text)
    }

    /// What holds, and where each value came from.
    pub fn effective(&self) -> &Effective {
        &self.running.effective
    }

    pub(crate) fn build(sources: &Sources, text: &str) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let keys = sources.keys(text, &mut faults);
        let mut root = Root { keys, faults, tables: Vec::new() };
        let config = root.config();
        if root.faults.is_empty() {
            let (server, plan) = config;
            let effective = Effective { tables: root.tables };
            Ok(Self { server, plan, running: Running { text: text.into(), effective } })
        } else {
            Err(ConfigError(root.faults))
        }
    }
}

/// The whole, while it is read.
struct Root {
    keys: Keys,
    faults: Vec<Fault>,
    tables: Vec<Table>,
}

impl Root {
    fn config(&mut self) -> (ServerConfig, Plan) {
        let (server, settings) = self.server();
        let shared = settings.shared();
        let defaults = self.defaults();
        let mut names = HashMap::new();
        let bulkheads = self.rules("bulkhead", "name", &defaults, &shared, &mut names);
        let templates = self.rules("template", "pattern", &defaults, &shared, &mut names);
        if bulkheads.is_empty() && templates.is_empty() && self.faults.is_empty() {
            let problem = "must be there at least once".into();
            self.faults.push(Fault { key: "[[bulkhead]] or [[template]]".into(), problem, source: Source::Default });
        }
        let known = "[server], [defaults], [[bulkhead]], [[template]]";
        for (key, Given { source, .. }) in std::mem::take(&mut self.keys) {
            self.faults.push(Fault { key, problem: format!("is no table; there are: {known}"), source });
        }
        let templates = templates.into_iter().map(|(pattern, settings)| Template { pattern, settings }).collect();
        (server, Plan { settings, bulkheads, templates })
    }

    fn server(&mut self) -> (ServerConfig, ServerSettings) {
        let bulkheads = match self.keys.get("bulkhead") {
            Some(Given { written: Written::Array(bulkheads), .. }) => bulkheads.len(),
            _ => 0,
        };
        let keys = self.table("server");
        let mut keys = Section::new("[server]", keys, &mut self.faults);
        let server = server::connections(&mut keys);
        let settings = server::admission(&mut keys, bulkheads);
        let (lines, _) = keys.end();
        self.tables.push(Table { header: "[server]", name: None, lines });
        (server, settings)
    }

    /// What bulkheads and templates inherit: what is right of it.
    fn defaults(&mut self) -> Keys {
        let mut inherited = self.table("defaults");
        let mut keys = Section::new("[defaults]", inherited.clone(), &mut self.faults);
        let draft = rule::read(&mut keys);
        rule::hold(&mut keys, &draft);
        let (lines, faulty) = keys.end();
        inherited.retain(|key, _| lines.iter().any(|line| line.key == key) && !faulty.contains(&key[..]));
        for given in inherited.values_mut() {
            given.inherited = true;
        }
        self.tables.push(Table { header: "[defaults]", name: None, lines });
        inherited
    }

    /// Bulkheads or templates, in the order of the file.
    fn rules(
        &mut self,
        table: &'static str,
        name_key: &'static str,
        defaults: &Keys,
        shared: &Draft,
        names: &mut HashMap<String, Source>,
    ) -> Vec<(String, Settings)> {
        let header = if table == "bulkhead" { "[[bulkhead]]" } else { "[[template]]" };
        let mut rules = Vec::new();
        for (index, Given { written, source, .. }) in self.array(table, header).into_iter().enumerate() {
            let Written::Table(mut given) = written else {
                let problem = format!("must be a table, not {written}");
                self.faults.push(Fault { key: header.into(), problem, source });
                continue;
            };
            for (key, value) in defaults {
                given.entry(key.clone()).or_insert_with(|| value.clone());
            }
            let mut keys = Section::new(format!("{header} number {}", index + 1), given, &mut self.faults);
            keys.header = source;
            let name: Option<String> = keys.given(name_key);
            match &name {
                Some(name) => match check(name_key, name) {
                    Ok(()) => keys.place = format!("{header} {}", section::quoted(name)),
                    Err(invalid) => keys.fault(name_key, &invalid.allowed),
                },
                None => keys.fault(name_key, "given, 1 to 256 bytes"),
            }
            if let Some(name) = &name {
                let here = keys.source(name_key);
                if let Some(first) = names.get(name) {
                    keys.fault_at(name_key, format!("must be there only once; it also stands in {first}"), here);
                } else {
                    names.insert(name.clone(), here);
                }
            }
            let settings = rule::settings(&mut keys, shared);
            let (lines, _) = keys.end();
            let name = name.unwrap_or_default();
            self.tables.push(Table { header, name: Some((name_key, name.clone())), lines });
            rules.extend(settings.map(|settings| (name, settings)));
        }
        rules
    }

    /// The keys of a table that may be there once.
    fn table(&mut self, name: &str) -> Keys {
        match self.keys.remove(name) {
            None => Keys::new(),
            Some(Given { written: Written::Table(keys), .. }) => keys,
            Some(Given { written, source, .. }) => {
                let problem = format!("must be a table, [{name}], not {written}");
                self.faults.push(Fault { key: name.into(), problem, source });
                Keys::new()
            }
        }
    }

    /// The tables of a kind that may be there many times.
    fn array(&mut self, name: &str, header: &str) -> Vec<Given> {
        match self.keys.remove(name) {
            None => Vec::new(),
            Some(Given { written: Written::Array(array), .. }) => array,
            Some(Given { written, source, .. }) => {
                let problem = format!("must be written {header}, not {written}");
                self.faults.push(Fault { key: name.into(), problem, source });
                Vec::new()
            }
        }
    }
}

/// A name; a pattern may end in `*`.
fn check(key: &'static str, name: &str) -> Result<(), Invalid> {
    name::check(key, name)?;
    if key == "pattern" && name.strip_suffix('*').unwrap_or(name).contains('*') {
        return Err(Invalid { field: key, allowed: "a name with at most one *, at its end".into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, told: &str) {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn the_example_is_accepted() {
        let config = Config::parse(include_str!("../../examples/tidegate.toml")).unwrap();
        assert_eq!(config.server.listen.port(), 7600);
        assert!(config.plan.bulkheads.iter().any(|(name, settings)| name == "orders-db" && settings.ceiling() == 16));
    }

    #[test]
    fn a_bulkhead_takes_the_defaults_of_the_file_and_overrides_them() {
        let text = "[defaults]\nmax_wait='7s'\nlimit=3\n[[bulkhead]]\nname='A'\n[[bulkhead]]\nname='a'\nmax_wait='1s'";
        let config = Config::parse(text).unwrap();
        let told: Vec<_> =
            config.plan.bulkheads.iter().map(|(name, of)| (&name[..], of.limit(), of.max_wait())).collect();
        assert_eq!(told, [("A", 3, Duration::from_secs(7)), ("a", 3, Duration::from_secs(1))]);
    }

    #[test]
    fn short_equals_long_and_empty_tables_equal_none() {
        let short = Config::parse("[[bulkhead]]\nname='db'\nlimit=4").unwrap();
        let long = Config::parse(&short.effective().to_string()).unwrap();
        assert_eq!(short.plan.bulkheads, long.plan.bulkheads);
        assert!(short.effective().differs(long.effective()).is_empty());
        let empty = Config::parse("[server]\n[defaults]\n[[bulkhead]]\nname='db'\nlimit=4").unwrap();
        assert_eq!(short.plan.bulkheads, empty.plan.bulkheads);
        let inline = Config::parse("bulkhead = [{ name = \"db\", limit = 0x4 }]").unwrap();
        assert_eq!(short.plan.bulkheads, inline.plan.bulkheads);
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_each_with_its_line() {
        let text = "[server]\nlisten='here'\nport=1\n[defaults]\nmax_wait='2h'\n\n[[bulkhead]]\nname='db'\nlimit=9\nceiling=8\n\
                    lease_ttl='1s'\nmax_queued=1e3\n[extra]\n";
        let error = Config::parse(text).unwrap_err();
        let told: Vec<_> = error.lines().collect();
        let expected = [
            "[server] listen must be an address and a port, such as \"127.0.0.1:7600\" or \"[::1]:0\", not \"here\" (file , line 2)",
            "[server] port is no setting; there are: listen, ",
            "[defaults] max_wait must be a duration, \"0s\" to \"1h\", not \"2h\" (file , line 5)",
            "[[bulkhead]] \"db\" max_queued must be a whole number, 0 to 1000000, not 1e3 (file , line 12)",
            "[[bulkhead]] \"db\" lease_ttl must be a duration, \"2s\" to \"5m\", not \"1s\" (file , line 11)",
            "[[bulkhead]] \"db\" limit must be 1 to 8, not 9 (file , line 9)",
            "extra is no table; there are: [server], [defaults], [[bulkhead]], [[template]] (file , line 13)",
        ];
        assert_eq!(told.len(), expected.len(), "{error}");
        assert!(told.iter().zip(expected).all(|(told, expected)| told.starts_with(expected)), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = "[[bulkhead]]\nname='db'\nlimit=4\n";
        check("", "[[bulkhead]] or [[template]] must be there");
        check("[[bulkhead]]\nlimit=1", "[[bulkhead]] number 1 name must be given, 1 to 256 bytes");
        check(&format!("{one}[[template]]\npattern='a*b'\nlimit=1"), "pattern must be a name with at most one *");
        check(&format!("{one}[[template]]\npattern='x*'\nname='x'\nlimit=1"), "[[template]] \"x*\" name is no setting");
        check(&format!("{one}pattern='x*'"), "[[bulkhead]] \"db\" pattern is no setting");
        check("[[bulkhead]]\nname='db'", "[[bulkhead]] \"db\" limit must be given");
        check(&format!("{one}{one}"), "\"db\" name must be there only once; it also stands in file , line 2");
        check(&format!("{one}max_lease_ttl='5s'"), "\"db\" lease_ttl must be 2s to 5s, not 10s (default)");
        check("not toml", "TOML cannot be understood");
    }
}
