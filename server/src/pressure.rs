//! How near the server is to the memory it may have, and what it refuses then: first new waiters, then new calls, then
//! new connections. Release and renewals are served on every rung, since they give memory back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tracing::{info, warn};

/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// A rung is left when the share is so many percent below where it begins, so that it is not left and entered in turns.
const SLACK: u64 = 5;

/// How much is refused. Each rung refuses what those before it do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rung {
    /// Nothing.
    #[default]
    Calm,
    /// Waiters, from 80 % of the memory: an Acquire is granted at once or not at all.
    Waiters,
    /// Calls but Release, renewals and health, from 90 %.
    Calls,
    /// Connections, from 95 %.
    Connections,
}

impl Rung {
    const ALL: [(Self, u64); 4] = [(Self::Connections, 95), (Self::Calls, 90), (Self::Waiters, 80), (Self::Calm, 0)];

    /// Where the server stands that stood here, with `resident` of `most` bytes.
    fn next(self, resident: u64, most: u64) -> Self {
        let share = u128::from(resident) * 100 / u128::from(most.max(1));
        let above = |slack: u64| {
            let reached = |&&(_, from): &&(Self, u64)| share >= u128::from(from.saturating_sub(slack));
            Self::ALL.iter().find(reached).map_or(Self::Calm, |(rung, _)| *rung)
        };
        above(0).max(self.min(above(SLACK)))
    }
}

/// The rung that the server stands on. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pressure(Arc<AtomicU8>);

impl Pressure {
    /// Whether that is refused now.
    pub(crate) fn refuses(&self, rung: Rung) -> bool {
        self.0.load(Ordering::Relaxed) >= rung as u8
    }

    /// Moves to a rung.
    pub(crate) fn set(&self, rung: Rung) {
        self.0.store(rung as u8, Ordering::Relaxed);
    }

    /// Looks at the memory for ever. `most` is what the process may have, in bytes; 0 stands for three quarters of what
    /// the machine or its control group has. Where neither is told, nothing is ever refused.
    pub(crate) async fn watch(&self, most: u64) {
        let most = if most > 0 { Some(most) } else { granted().map(|granted| granted / 4 * 3) };
        let (Some(most), Some(_)) = (most, resident()) else {
            info!("no memory is told here: none is watched");
            return std::future::pending().await;
        };
        let mut rung = Rung::Calm;
        loop {
            if let Some(resident) = resident() {
                let next = rung.next(resident, most);
                if next > rung {
                    warn!(refused = ?next, resident, max_memory = most, "short of memory");
                } else if next < rung {
                    info!(refused = ?next, resident, max_memory = most, "less short of memory");
                }
                rung = next;
                self.set(rung);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What the process has in memory, in bytes.
fn resident() -> Option<u64> {
    kilobytes("/proc/self/status", "VmRSS:")
}

/// What the machine has, or less if a control group of ours may not have that.
fn granted() -> Option<u64> {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let limits =
        [root.join(own).join("memory.max"), root.join("memory.max"), root.join("memory/memory.limit_in_bytes")];
    let limits = limits.iter().filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.chain(kilobytes("/proc/meminfo", "MemTotal:")).min()
}

fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::Rung::{Calls, Calm, Connections, Waiters};
    use super::*;

    #[test]
    fn a_rung_is_entered_where_it_begins_and_left_a_little_below() {
        let mut rung = Rung::Calm;
        let walk = [79, 80, 76, 75, 74, 89, 90, 86, 84, 95, 90, 89, 85, 84, 74, 100, 10];
        let told = walk.map(|share| {
            rung = rung.next(share, 100);
            rung
        });
        let expected = [
            Calm,
            Waiters,
            Waiters,
            Waiters,
            Calm,
            Waiters,
            Calls,
            Calls,
            Waiters,
            Connections,
            Connections,
            Calls,
            Calls,
            Waiters,
            Calm,
            Connections,
            Calm,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn no_number_is_too_large() {
        assert_eq!(Rung::Calm.next(u64::MAX, u64::MAX), Rung::Connections);
        assert_eq!(Rung::Calm.next(u64::MAX, 0), Rung::Connections);
        assert_eq!(Rung::Connections.next(0, u64::MAX), Rung::Calm);
    }

    #[test]
    fn each_rung_refuses_what_those_before_it_do() {
        let pressure = Pressure::default();
        let refused =
            |pressure: &Pressure| [Rung::Waiters, Rung::Calls, Rung::Connections].map(|rung| pressure.refuses(rung));
        assert_eq!(refused(&pressure), [false, false, false]);
        pressure.set(Rung::Calls);
        assert_eq!(refused(&pressure), [true, true, false]);
    }

    #[test]
    fn memory_is_told_on_linux() {
        let (resident, granted) = (resident().unwrap(), granted().unwrap());
        assert!(resident > 1 << 20 && resident < granted, "{resident} of {granted}");
    }
}
