//! Configuration: read once, valid by construction.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use config::{File, FileFormat};
use serde::Deserialize;
use tidegate_core::{Draft, Invalid, Settings};

use crate::name;
use crate::settings::{ServerSettings, Template};

/// All that the server is told at its start.
#[derive(Debug)]
pub struct Config {
    /// The server itself.
    pub server: ServerConfig,
    /// What holds for all bulkheads together.
    pub admission: ServerSettings,
    /// Which other names get a bulkhead, in the order of the file.
    pub templates: Vec<Template>,
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
    /// How long a stop waits for those who hold leases, 0 to 10 min.
    pub drain_grace: Duration,
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
    /// A value of a template is out of its range.
    #[error("[[template]] {pattern:?}: {invalid}")]
    Template {
        /// Whose.
        pattern: String,
        /// Which, and what would be right.
        invalid: Invalid,
    },
    /// Two bulkheads have one name.
    #[error("[[bulkhead]] {0:?}: name must be there only once")]
    Duplicate(String),
    /// A key in a place where it means nothing.
    #[error("{0} must not be there")]
    Misplaced(&'static str),
    /// Nothing to decide.
    #[error("[[bulkhead]] or [[template]] must be there at least once")]
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
        let RawConfig { server, defaults, bulkhead, template } =
            config::Config::builder().add_source(source).build()?.try_deserialize()?;
        if bulkhead.is_empty() && template.is_empty() {
            return Err(ConfigError::NoBulkhead);
        }
        if !defaults.name.is_empty() || !defaults.pattern.is_empty() {
            return Err(ConfigError::Misplaced("[defaults] name or pattern"));
        }
        let admission = server.admission().map_err(ConfigError::Server)?;
        let mut names = HashSet::new();
        let mut bulkheads = Vec::new();
        for rule in bulkhead {
            let name = rule.name.clone();
            let refuse = |invalid| ConfigError::Bulkhead { name: name.clone(), invalid };
            name::check("name", &name).map_err(refuse)?;
            if !rule.pattern.is_empty() {
                return Err(ConfigError::Misplaced("[[bulkhead]] pattern"));
            }
            if !names.insert(name.clone()) {
                return Err(ConfigError::Duplicate(name));
            }
            let settings = rule.settings(&defaults, &server).map_err(refuse)?;
            bulkheads.push((name, settings));
        }
        let mut templates = Vec::new();
        for rule in template {
            let pattern = rule.pattern.clone();
            let refuse = |invalid| ConfigError::Template { pattern: pattern.clone(), invalid };
            check_pattern(&pattern).map_err(refuse)?;
            if !rule.name.is_empty() {
                return Err(ConfigError::Misplaced("[[template]] name"));
            }
            if !names.insert(pattern.clone()) {
                return Err(ConfigError::Duplicate(pattern));
            }
            let settings = rule.settings(&defaults, &server).map_err(refuse)?;
            templates.push(Template { pattern, settings });
        }
        Ok(Self { server: server.try_into().map_err(ConfigError::Server)?, admission, templates, bulkheads })
    }
}

/// A name, or the beginning of one and `*`.
fn check_pattern(pattern: &str) -> Result<(), Invalid> {
    name::check("pattern", pattern)?;
    if pattern.strip_suffix('*').unwrap_or(pattern).contains('*') {
        return Err(Invalid { field: "pattern", allowed: "a name with at most one *, at its end".into() });
    }
    Ok(())
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
    #[serde(default)]
    template: Vec<RawRule>,
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
    drain_grace: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    min_retry_hint: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    max_retry_hint: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    max_cooldown: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    cooldown_grace: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    ramp_step: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    idle_after: Option<Duration>,
    max_bulkheads: Option<usize>,
    max_leases: Option<usize>,
    max_waiters: Option<usize>,
    max_partitions: Option<usize>,
    max_remembered: Option<usize>,
}

/// What `[defaults]`, each `[[bulkhead]]` and each `[[template]]` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    /// Of a bulkhead; left out it is empty, which is no name.
    #[serde(default)]
    name: String,
    /// Of a template.
    #[serde(default)]
    pattern: String,
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
    displace: Option<bool>,
}

impl RawRule {
    fn settings(&self, defaults: &Self, server: &RawServer) -> Result<Settings, Invalid> {
        Settings::try_from(Draft {
            limit: self.limit.or(defaults.limit),
            ceiling: self.ceiling.or(defaults.ceiling),
            max_queued: self.max_queued.or(defaults.max_queued),
            max_wait: self.max_wait.or(defaults.max_wait),
            lease_ttl: self.lease_ttl.or(defaults.lease_ttl),
            max_lease_ttl: self.max_lease_ttl.or(defaults.max_lease_ttl),
            aging_step: self.aging_step.or(defaults.aging_step),
            displace: self.displace.or(defaults.displace),
            mode: None,
            ramp_step: server.ramp_step,
            min_retry_hint: server.min_retry_hint,
            max_retry_hint: server.max_retry_hint,
        })
    }
}

impl RawServer {
    fn admission(&self) -> Result<ServerSettings, Invalid> {
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        let default = ServerSettings::default();
        let at_least_one = |field, value: Option<usize>, default| match value.unwrap_or(default) {
            0 => Err(Invalid { field, allowed: "at least 1, not 0".into() }),
            some => Ok(some),
        };
        Ok(ServerSettings {
            max_cooldown: span("max_cooldown", self.max_cooldown, default.max_cooldown, second, hour * 24)?,
            cooldown_grace: span("cooldown_grace", self.cooldown_grace, default.cooldown_grace, Duration::ZERO, hour)?,
            ramp_step: span("ramp_step", self.ramp_step, default.ramp_step, Duration::ZERO, Duration::from_mins(1))?,
            idle_after: span("idle_after", self.idle_after, default.idle_after, second, hour * 24 * 7)?,
            max_bulkheads: at_least_one("max_bulkheads", self.max_bulkheads, default.max_bulkheads)?,
            max_leases: at_least_one("max_leases", self.max_leases, default.max_leases)?,
            max_waiters: at_least_one("max_waiters", self.max_waiters, default.max_waiters)?,
            max_partitions: at_least_one("max_partitions", self.max_partitions, default.max_partitions)?,
            max_remembered: at_least_one("max_remembered", self.max_remembered, default.max_remembered)?,
        })
    }
}

impl TryFrom<RawServer> for ServerConfig {
    type Error = Invalid;

    fn try_from(raw: RawServer) -> Result<Self, Invalid> {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            listen: raw.listen.unwrap_or(local(7600)),
            admin_listen: raw.admin_listen.unwrap_or(local(7601)),
            ops_listen: raw.ops_listen.unwrap_or(local(9464)),
            keepalive_interval: keepalive("keepalive_interval", raw.keepalive_interval, 10)?,
            keepalive_timeout: keepalive("keepalive_timeout", raw.keepalive_timeout, 5)?,
            drain_grace: span(
                "drain_grace",
                raw.drain_grace,
                Duration::from_secs(10),
                Duration::ZERO,
                Duration::from_mins(10),
            )?,
        })
    }
}

fn keepalive(field: &'static str, value: Option<Duration>, default: u64) -> Result<Duration, Invalid> {
    span(field, value, Duration::from_secs(default), Duration::from_secs(1), Duration::from_hours(1))
}

fn span(
    field: &'static str,
    value: Option<Duration>,
    default: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration, Invalid> {
    let value = value.unwrap_or(default);
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Invalid { field, allowed: format!("{least:?} to {most:?}, not {value:?}") })
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
        check("", "[[bulkhead]] or [[template]] must be there");
        check("[[bulkhead]]\nlimit=1", "name must be 1 to 256 bytes");
        check(&format!("{one}[[template]]\npattern='a*b'\nlimit=1"), "pattern must be a name with at most one *");
        check(&format!("{one}[[template]]\nlimit=1"), "pattern must be 1 to 256 bytes");
        check(&format!("{one}[[template]]\npattern='x*'\nname='x'\nlimit=1"), "[[template]] name must not be there");
        check(&format!("{one}pattern='x*'"), "[[bulkhead]] pattern must not be there");
        check(&format!("{one}[server]\nmax_leases=0"), "[server] max_leases must be at least 1");
        check(&format!("{one}[server]\nramp_step='2m'"), "[server] ramp_step must be 0ns to 60s");
        check("[[bulkhead]]\nname='db'", "[[bulkhead]] \"db\": limit must be given");
        check(&format!("{one}limits=3"), "unknown field `limits`");
        check(&format!("{one}[server]\nport=3"), "unknown field `port`");
        check(&format!("{one}[defaults]\nmax_waits='3s'"), "unknown field `max_waits`");
        check(&format!("{one}[sever]\nlisten='127.0.0.1:1'"), "unknown field `sever`");
        check(&format!("{one}[defaults]\nname='x'"), "[defaults] name or pattern must not be there");
        check(&format!("{one}{one}"), "\"db\": name must be there only once");
        check(&format!("{one}ceiling=3"), "\"db\": limit must be 1 to 3, not 4");
        check(&format!("{one}max_wait='2h'"), "\"db\": max_wait must be 0ns to 3600s, not 7200s");
        check(&format!("{one}max_wait='soon'"), "max_wait");
        check(&format!("{one}max_wait=3"), "max_wait");
        check(&format!("{one}max_queued=-1"), "max_queued");
        check(&format!("{one}[server]\nlisten='here'"), "listen");
        check(
            &format!("{one}[server]\nkeepalive_timeout='0s'"),
            "[server] keepalive_timeout must be 1s to 3600s, not 0ns",
        );
        check("[[bulkhead]]\nname=''\nlimit=4", "name must be 1 to 256 bytes");
        check("not toml", "");
    }
}
