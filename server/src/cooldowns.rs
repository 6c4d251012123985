//! Which partitions cool down, in every bulkhead at once, and which cells have waiters of them (R10).
//!
//! One entry of one map holds both: a report writes the end and reads the cells under the entry's lock, a cell that gets
//! its first waiter of a partition enters itself and reads the end under the same lock. So whichever comes second sees
//! the other. A cell's lock may be held while an entry is locked, never the other way round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tidegate_core::{Instant, calm_at, extend};

use crate::admission::{Cell, shrink};
use crate::caps::Cap;
use crate::settings::ServerSettings;

/// How cooldowns go, for the whole server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) max_cooldown: Duration,
    pub(crate) grace: Duration,
    pub(crate) ramp_step: Duration,
    /// The most partitions that keep a cooldown or ramp.
    pub(crate) max_partitions: usize,
}

impl From<&ServerSettings> for Rules {
    fn from(settings: &ServerSettings) -> Self {
        Self {
            max_cooldown: settings.max_cooldown,
            grace: settings.cooldown_grace,
            ramp_step: settings.ramp_step,
            max_partitions: settings.max_partitions,
        }
    }
}

/// A partition that cools or ramps, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooldownView {
    /// Its name.
    pub partition: Arc<str>,
    /// What is left of its cooldown; zero while it ramps.
    pub remaining: Duration,
    /// Why, as told by the latest report that extended it.
    pub detail: String,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    end: Option<Instant>,
    detail: String,
    cells: BTreeMap<u32, Arc<Cell>>,
}

/// What a report did.
pub(crate) struct Reported {
    pub(crate) remaining: Duration,
    pub(crate) extended: bool,
    /// Until when, and in which cells waiters must be told.
    pub(crate) cooling: Option<(Instant, Vec<Arc<Cell>>)>,
}

/// The partitions of the server that cool, ramp, or have waiters.
#[derive(Debug)]
pub(crate) struct Cooldowns {
    rules: ArcSwap<Rules>,
    entries: DashMap<Arc<str>, Entry>,
    /// How many entries have an end: while there is none, an Acquire looks nothing up.
    cooling: AtomicUsize,
}

impl Cooldowns {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules: ArcSwap::from_pointee(rules), entries: DashMap::new(), cooling: AtomicUsize::new(0) }
    }

    /// Other rules from now on. A cooldown that is longer than they allow stays.
    pub(crate) fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    /// How many keep a cooldown.
    pub(crate) fn cap(&self) -> Cap {
        let taken = self.cooling.load(Ordering::Relaxed);
        Cap { name: "max_partitions", taken, most: self.rules.load().max_partitions }
    }

    /// When the cooldown of that partition ends or ended.
    pub(crate) fn end(&self, partition: &str) -> Option<Instant> {
        if self.cooling.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.entries.get(partition)?.end
    }

    /// A partition was told to come back after `wait`; `None` if that were one partition too many.
    pub(crate) fn report(&self, now: Instant, partition: &str, wait: Duration, detail: &str) -> Option<Reported> {
        let nothing = |remaining| Some(Reported { remaining, extended: false, cooling: None });
        if wait.is_zero() {
            return nothing(self.end(partition).map_or(Duration::ZERO, |end| end.since(now)));
        }
        let mut entry = self.entries.entry(partition.into()).or_default();
        let old = entry.end;
        if old.is_none() && !self.begin() {
            let is_empty = entry.cells.is_empty();
            drop(entry);
            if is_empty {
                self.entries.remove_if(partition, |_, entry| entry.end.is_none() && entry.cells.is_empty());
            }
            return None;
        }
        let end = extend(old, now, wait, self.rules.load().max_cooldown)?;
        if old == Some(end) {
            return nothing(end.since(now));
        }
        entry.end = Some(end);
        detail.clone_into(&mut entry.detail);
        let cells = entry.cells.values().cloned().collect();
        Some(Reported { remaining: end.since(now), extended: true, cooling: Some((end, cells)) })
    }

    /// One partition more keeps a cooldown, if the cap allows.
    fn begin(&self) -> bool {
        let more = |cooling| (cooling < self.rules.load().max_partitions).then_some(cooling + 1);
        self.cooling.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// A cell has its first waiter of a partition. Answers the end it must know of.
    pub(crate) fn enter(&self, partition: &str, cell: &Arc<Cell>) -> Option<Instant> {
        let mut entry = self.entries.entry(partition.into()).or_default();
        entry.cells.insert(cell.incarnation, cell.clone());
        entry.end
    }

    /// A cell has no waiter of a partition any more.
    pub(crate) fn leave(&self, partition: &str, cell: &Cell) {
        if let Some(mut entry) = self.entries.get_mut(partition) {
            entry.cells.remove(&cell.incarnation);
        }
        self.entries.remove_if(partition, |_, entry| entry.end.is_none() && entry.cells.is_empty());
    }

    /// Ends a cooldown and its ramp. Answers the cells whose waiters must be told, or `None` if there was none.
    pub(crate) fn clear(&self, partition: &str) -> Option<Vec<Arc<Cell>>> {
        let mut entry = self.entries.get_mut(partition)?;
        entry.end.take()?;
        self.cooling.fetch_sub(1, Ordering::AcqRel);
        let cells = entry.cells.values().cloned().collect();
        drop(entry);
        self.entries.remove_if(partition, |_, entry| entry.end.is_none() && entry.cells.is_empty());
        Some(cells)
    }

    /// Drops what is over since the grace, and the memory that many needed.
    pub(crate) fn sweep(&self, now: Instant) {
        self.entries.retain(|_, entry| {
            if entry.end.is_some_and(|end| calm_at(end, self.rules.load().ramp_step) + self.rules.load().grace <= now) {
                entry.end = None;
                self.cooling.fetch_sub(1, Ordering::AcqRel);
            }
            entry.end.is_some() || !entry.cells.is_empty()
        });
        shrink(&self.entries);
    }

    /// Those that cool, or keep what they know of a cooldown, with names after `after`, by name, at most `most`.
    pub(crate) fn list(&self, now: Instant, after: Option<&str>, most: usize) -> Vec<CooldownView> {
        // Never more than the page, however many there are.
        let mut page = BTreeMap::new();
        let later = self.entries.iter().filter(|entry| after.is_none_or(|after| **entry.key() > *after));
        for entry in later {
            let Some(end) = entry.end else { continue };
            if page.len() < most || page.last_key_value().is_some_and(|(last, _)| entry.key() < last) {
                let view = CooldownView {
                    partition: entry.key().clone(),
                    remaining: end.since(now),
                    detail: entry.detail.clone(),
                };
                page.insert(entry.key().clone(), view);
            }
            if page.len() > most {
                page.pop_last();
            }
        }
        page.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_partitions_needed_is_given_back() {
        let cooldowns = Cooldowns::new(Rules::from(&ServerSettings::default()));
        let now = Instant::ORIGIN;
        for number in 0..50_000 {
            cooldowns.report(now, &number.to_string(), Duration::from_secs(1), "").unwrap();
        }
        cooldowns.sweep(now);
        assert_eq!(cooldowns.entries.len(), 50_000);
        cooldowns.sweep(now + Duration::from_hours(1));
        assert!(cooldowns.entries.is_empty() && cooldowns.entries.capacity() < 4_096, "{cooldowns:?}");
    }
}
