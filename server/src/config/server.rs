//! What `[server]` says.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_core::MAX_WAIT;

use super::ServerConfig;
use super::section::Section;
use crate::settings::{ServerSettings, TransportSettings};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

/// Keys of `[server]` that say how bulkheads behave: a reload applies them.
const RELOADED: [&str; 6] =
    ["min_retry_hint", "max_retry_hint", "max_cooldown", "cooldown_grace", "ramp_step", "idle_after"];

/// Whether another value of that key of `[server]` is in force only after a restart.
pub(crate) fn needs_restart(key: &str) -> bool {
    !RELOADED.contains(&key)
}

/// Where to listen, and how to treat connections.
pub(super) fn connections(keys: &mut Section<'_>) -> ServerConfig {
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let config = ServerConfig {
        listen: keys.set("listen", local(7600)),
        admin_listen: keys.set("admin_listen", local(7601)),
        ops_listen: keys.set("ops_listen", local(9464)),
        drain_grace: keys.set_within("drain_grace", 10 * SECOND, Duration::ZERO..=600 * SECOND),
        transport: transport(keys),
    };
    let listeners =
        [("listen", config.listen), ("admin_listen", config.admin_listen), ("ops_listen", config.ops_listen)];
    for (index, (key, address)) in listeners.iter().enumerate() {
        for (other, taken) in &listeners[..index] {
            if meet(*address, *taken) {
                keys.fault(key, &format!("another address than {other} has, not {address:?}"));
            }
        }
    }
    config
}

/// What connections are granted.
fn transport(keys: &mut Section<'_>) -> TransportSettings {
    let default = TransportSettings::default();
    let some = || 1..=usize::MAX;
    let age = SECOND..=7 * 24 * HOUR;
    TransportSettings {
        keepalive_interval: keys.set_within("keepalive_interval", default.keepalive_interval, SECOND..=HOUR),
        keepalive_timeout: keys.set_within("keepalive_timeout", default.keepalive_timeout, SECOND..=HOUR),
        handshake_timeout: keys.set_within("handshake_timeout", default.handshake_timeout, SECOND..=60 * SECOND),
        max_connection_age: keys.set_within("max_connection_age", default.max_connection_age, age),
        max_connections: keys.set_within("max_connections", default.max_connections, some()),
        max_connections_per_address: keys.set_within(
            "max_connections_per_address",
            default.max_connections_per_address,
            some(),
        ),
        max_streams_per_connection: keys.set_within(
            "max_streams_per_connection",
            default.max_streams_per_connection,
            1..=u32::MAX,
        ),
        max_memory: keys.set_within("max_memory", default.max_memory, 0..=u64::MAX),
    }
}

/// Whether two listeners cannot be there at once.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    // All of IPv6 is, unless the host was told otherwise, all of IPv4 too.
    let takes = |all: SocketAddr, it: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || it.is_ipv4());
    one.port() != 0 && one.port() == other.port() && (one.ip() == other.ip() || takes(one, other) || takes(other, one))
}

/// What holds for all bulkheads together; so many stand in the file.
pub(super) fn admission(keys: &mut Section<'_>, bulkheads: usize) -> ServerSettings {
    let default = ServerSettings::default();
    let some = || 1..=usize::MAX;
    let least_hint = Duration::from_millis(1)..=MAX_WAIT;
    let min_retry_hint = keys.set_within("min_retry_hint", default.min_retry_hint, least_hint);
    ServerSettings {
        min_retry_hint,
        max_retry_hint: keys.set_within("max_retry_hint", default.max_retry_hint, min_retry_hint..=MAX_WAIT),
        max_cooldown: keys.set_within("max_cooldown", default.max_cooldown, SECOND..=24 * HOUR),
        cooldown_grace: keys.set_within("cooldown_grace", default.cooldown_grace, Duration::ZERO..=HOUR),
        ramp_step: keys.set_within("ramp_step", default.ramp_step, Duration::ZERO..=60 * SECOND),
        idle_after: keys.set_within("idle_after", default.idle_after, SECOND..=7 * 24 * HOUR),
        max_bulkheads: keys.set_within("max_bulkheads", default.max_bulkheads, bulkheads.max(1)..=usize::MAX),
        max_leases: keys.set_within("max_leases", default.max_leases, some()),
        max_waiters: keys.set_within("max_waiters", default.max_waiters, some()),
        max_partitions: keys.set_within("max_partitions", default.max_partitions, some()),
        max_remembered: keys.set_within("max_remembered", default.max_remembered, some()),
    }
}
