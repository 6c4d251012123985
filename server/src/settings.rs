//! What people decide about the server and about bulkheads that do not exist yet. Settings of a bulkhead are the core's.

use std::time::Duration;

use tidegate_core::{Draft, Settings};

/// What holds for the whole server; the defaults are those of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// The shortest retry hint, 1 ms to 1 h.
    pub min_retry_hint: Duration,
    /// The longest retry hint, `min_retry_hint` to 1 h.
    pub max_retry_hint: Duration,
    /// The longest cooldown, 1 s to 24 h; a longer report is cut to it.
    pub max_cooldown: Duration,
    /// How long a cooldown is remembered after its end and ramp, 0 to 1 h.
    pub cooldown_grace: Duration,
    /// How long each doubling of the ramp takes, 0 (no ramp) to 1 min.
    pub ramp_step: Duration,
    /// How long a dynamic bulkhead stays without leases, waiters and memories, 1 s to 7 d.
    pub idle_after: Duration,
    /// The most bulkheads.
    pub max_bulkheads: usize,
    /// The most leases and waiters together, since each waiter may become a lease.
    pub max_leases: usize,
    /// The most waiters.
    pub max_waiters: usize,
    /// The most partitions that keep a cooldown or ramp.
    pub max_partitions: usize,
    /// The most ended leases and spent request ids remembered.
    pub max_remembered: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            min_retry_hint: Duration::from_millis(50),
            max_retry_hint: Duration::from_mins(1),
            max_cooldown: Duration::from_hours(1),
            cooldown_grace: Duration::from_mins(1),
            ramp_step: Duration::from_secs(1),
            idle_after: Duration::from_mins(10),
            max_bulkheads: 100_000,
            max_leases: 2_000_000,
            max_waiters: 200_000,
            max_partitions: 200_000,
            max_remembered: 4_000_000,
        }
    }
}

impl ServerSettings {
    /// What all bulkheads have in common, for a draft of one.
    pub fn shared(&self) -> Draft {
        Draft {
            min_retry_hint: Some(self.min_retry_hint),
            max_retry_hint: Some(self.max_retry_hint),
            ramp_step: Some(self.ramp_step),
            ..Draft::default()
        }
    }

    /// What holds of `new` without a restart: caps stay as they are.
    pub(crate) fn reloaded(&self, new: &Self) -> Self {
        let Self { max_bulkheads, max_leases, max_waiters, max_partitions, max_remembered, .. } = *self;
        Self { max_bulkheads, max_leases, max_waiters, max_partitions, max_remembered, ..new.clone() }
    }

    /// Settings of a bulkhead with what all of them have in common.
    pub(crate) fn apply(&self, settings: Settings) -> Settings {
        let Draft { ramp_step, min_retry_hint, max_retry_hint, .. } = self.shared();
        let draft = Draft { ramp_step, min_retry_hint, max_retry_hint, ..Draft::from(&settings) };
        // Each is within its range, whatever the others are.
        Settings::try_from(draft).unwrap_or(settings)
    }
}

/// What the configuration says about bulkheads: all that a reload may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What holds for the whole server. Of these a reload takes the hints, `max_cooldown`, `cooldown_grace`, `ramp_step` and
    /// `idle_after`; caps stay as they are.
    pub settings: ServerSettings,
    /// Name and settings of bulkheads that are there from the start.
    pub bulkheads: Vec<(String, Settings)>,
    /// Which other names get a bulkhead; the first that matches.
    pub templates: Vec<Template>,
}

/// Which names get a bulkhead of their own when they are first asked for (R13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// A name, or the beginning of one with `*` for the rest.
    pub pattern: String,
    /// What such a bulkhead is made with.
    pub settings: Settings,
}

impl Template {
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.pattern,
        }
    }
}

/// What connections are granted; the defaults are those of the configuration.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// A silent connection is asked for a sign of life after this time, 1 s to 1 h.
    pub keepalive_interval: Duration,
    /// It is dropped when none comes within this time, 1 s to 1 h.
    pub keepalive_timeout: Duration,
    /// A connection that has not begun to speak HTTP/2 by then is dropped, 1 s to 1 min.
    pub handshake_timeout: Duration,
    /// A connection takes no new calls after this time, a tenth less or more, 1 s to 7 d. Calls under way end first.
    pub max_connection_age: Duration,
    /// The most connections of applications, the most of operators, and the most of probes, at least 1.
    pub max_connections: usize,
    /// The most of one address, at least 1.
    pub max_connections_per_address: usize,
    /// The most calls at once on a connection, at least 1.
    pub max_streams_per_connection: u32,
    /// How much memory the process may have before it refuses everything, in bytes; 0 is three quarters of the machine's.
    pub max_memory: u64,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            max_connection_age: Duration::from_mins(30),
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            max_streams_per_connection: 256,
            max_memory: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_takes_times_and_no_caps() {
        let (old, day) = (ServerSettings::default(), Duration::from_hours(24));
        let times = ServerSettings { max_cooldown: day, ramp_step: Duration::ZERO, idle_after: day, ..old.clone() };
        let caps = ServerSettings { max_partitions: 1, max_bulkheads: 2, max_leases: 3, ..times.clone() };
        assert_eq!(old.reloaded(&ServerSettings { max_waiters: 4, max_remembered: 5, ..caps }), times);
    }
}
