//! Configuration: read once, valid by construction.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use config::{File, FileFormat};
use serde::Deserialize;
use tidegate_core::{Draft, Invalid, Settings};

use crate::name;

/// All that the server is told at its start.
#[derive(Debug)]
pub struct Config {
    /// The server itself.
    pub server: ServerConfig,
    /// Its bulkheads: name and settings, in the order of the file.
    pub bulkheads: Vec<(String, Settings)>,
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
    /// A silent connection is asked for a sign of life after this time, 1 s to 1 h.
    pub keepalive_interval: Duration,
    /// It is dropped when none comes within this time, 1 s to 1 h.
    pub keepalive_timeout: Duration,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or understood, or has a key that nobody knows.
    #[error(transparent)]
    File(#[from] config::ConfigError),
    /// A value of the server is out of its range.
    #[error("[server] {0}")]
    Server(Invalid),
    /// A value of a bulkhead, given for it or for all in `[defaults]`, is out of its range.
    #[error("[[bulkhead]] {name:?}: {invalid}")]
    Bulkhead {
        /// Whose.
        name: String,
        /// Which, and what would be right.
        invalid: Invalid,
    },
    /// Two bulkheads have one name.
    #[error("[[bulkhead]] {0:?}: name must be there only once")]
    Duplicate(String),
    /// What is for all has no name.
    #[error("[defaults] name must not be there")]
    NameOfDefaults,
    /// Nothing to decide.
    #[error("[[bulkhead]] must be there at least once")]
    NoBulkhead,
}

impl Config {
    /// Reads a TOML file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::build(File::from(path).format(FileFormat::Toml))
    }

    /// The same from text, for tests and embedders.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::build(File::from_str(text, FileFormat::Toml))
    }

    fn build(source: impl config::Source + Send + Sync + 'static) -> Result<Self, ConfigError> {
        let raw: RawConfig = config::Config::builder().add_source(source).build()?.try_deserialize()?;
        if raw.bulkhead.is_empty() {
            return Err(ConfigError::NoBulkhead);
        }
        // Each bulkhead remembers within its share until they borrow from one store.
        let max_remembered = raw.server.max_remembered.unwrap_or(4_000_000) / raw.bulkhead.len();
        let mut names = HashSet::new();
        let mut bulkheads = Vec::new();
        if !raw.defaults.name.is_empty() {
            return Err(ConfigError::NameOfDefaults);
        }
        for rule in raw.bulkhead {
            let name = rule.name;
            let refuse = |invalid| ConfigError::Bulkhead { name: name.clone(), invalid };
            name::check("name", &name).map_err(refuse)?;
            if !names.insert(name.clone()) {
                return Err(ConfigError::Duplicate(name));
            }
            let draft = Draft {
                limit: rule.limit.or(raw.defaults.limit),
                ceiling: rule.ceiling.or(raw.defaults.ceiling),
                max_queued: rule.max_queued.or(raw.defaults.max_queued),
                max_wait: rule.max_wait.or(raw.defaults.max_wait),
                lease_ttl: rule.lease_ttl.or(raw.defaults.lease_ttl),
                max_lease_ttl: rule.max_lease_ttl.or(raw.defaults.max_lease_ttl),
                aging_step: rule.aging_step.or(raw.defaults.aging_step),
                min_retry_hint: raw.server.min_retry_hint,
                max_retry_hint: raw.server.max_retry_hint,
                max_remembered: Some(max_remembered),
            };
            let settings = Settings::try_from(draft).map_err(refuse)?;
            bulkheads.push((name, settings));
        }
        Ok(Self { server: raw.server.try_into().map_err(ConfigError::Server)?, bulkheads })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    server: RawServer,
    #[serde(default)]
    defaults: RawRule,
    #[serde(default)]
    bulkhead: Vec<RawRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    listen: Option<SocketAddr>,
    admin_listen: Option<SocketAddr>,
    ops_listen: Option<SocketAddr>,
    #[serde(default, with = "humantime_serde")]
    keepalive_interval: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    keepalive_timeout: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    min_retry_hint: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    max_retry_hint: Option<Duration>,
    max_remembered: Option<usize>,
}

/// What `[defaults]` and each `[[bulkhead]]` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    /// Of a bulkhead; left out it is empty, which is no name.
    #[serde(default)]
    name: String,
    limit: Option<u32>,
    ceiling: Option<u32>,
    max_queued: Option<u32>,
    #[serde(default, with = "humantime_serde")]
    max_wait: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    lease_ttl: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    max_lease_ttl: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    aging_step: Option<Duration>,
}

impl TryFrom<RawServer> for ServerConfig {
    type Error = Invalid;

    fn try_from(raw: RawServer) -> Result<Self, Invalid> {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            listen: raw.listen.unwrap_or(local(7600)),
            admin_listen: raw.admin_listen.unwrap_or(local(7601)),
            ops_listen: raw.ops_listen.unwrap_or(local(9464)),
            keepalive_interval: seconds("keepalive_interval", raw.keepalive_interval, Duration::from_secs(10))?,
            keepalive_timeout: seconds("keepalive_timeout", raw.keepalive_timeout, Duration::from_secs(5))?,
        })
    }
}

fn seconds(field: &'static str, value: Option<Duration>, default: Duration) -> Result<Duration, Invalid> {
    let value = value.unwrap_or(default);
    if (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&value) {
        Ok(value)
    } else {
        Err(Invalid { field, allowed: format!("1s to 1h, not {value:?}") })
    }
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
        assert!(config.bulkheads.iter().any(|(name, settings)| name == "orders-db" && settings.ceiling() == 16));
    }

    #[test]
    fn a_bulkhead_takes_the_defaults_of_the_file_and_overrides_them() {
        let text = "[defaults]\nmax_wait='7s'\nlimit=3\n[[bulkhead]]\nname='A'\n[[bulkhead]]\nname='a'\nmax_wait='1s'";
        let config = Config::parse(text).unwrap();
        let told: Vec<_> = config.bulkheads.iter().map(|(name, of)| (&name[..], of.limit(), of.max_wait())).collect();
        assert_eq!(told, [("A", 3, Duration::from_secs(7)), ("a", 3, Duration::from_secs(1))]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = "[[bulkhead]]\nname='db'\nlimit=4\n";
        check("", "[[bulkhead]] must be there");
        check("[[bulkhead]]\nlimit=1", "name must be 1 to 256 bytes");
        check("[[bulkhead]]\nname='db'", "[[bulkhead]] \"db\": limit must be given");
        check(&format!("{one}limits=3"), "unknown field `limits`");
        check(&format!("{one}[server]\nport=3"), "unknown field `port`");
        check(&format!("{one}[defaults]\nmax_waits='3s'"), "unknown field `max_waits`");
        check(&format!("{one}[sever]\nlisten='127.0.0.1:1'"), "unknown field `sever`");
        check(&format!("{one}[defaults]\nname='x'"), "[defaults] name must not be there");
        check(&format!("{one}{one}"), "\"db\": name must be there only once");
        check(&format!("{one}ceiling=3"), "\"db\": limit must be 1 to 3, not 4");
        check(&format!("{one}max_wait='2h'"), "\"db\": max_wait must be 0ns to 3600s, not 7200s");
        check(&format!("{one}max_wait='soon'"), "max_wait");
        check(&format!("{one}max_wait=3"), "max_wait");
        check(&format!("{one}max_queued=-1"), "max_queued");
        check(&format!("{one}[server]\nlisten='here'"), "listen");
        check(
            &format!("{one}[server]\nkeepalive_timeout='0s'"),
            "[server] keepalive_timeout must be 1s to 1h, not 0ns",
        );
        check("[[bulkhead]]\nname=''\nlimit=4", "name must be 1 to 256 bytes");
        check("not toml", "");
    }
}
