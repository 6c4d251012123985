//! What operators see and do.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::{FencingToken, Holder, Reason, Settings, Status};

use super::{Admission, Cell, Refused};
use crate::cooldowns::CooldownView;

/// A bulkhead as operators see it.
#[derive(Debug)]
pub struct View {
    /// Its name.
    pub name: Arc<str>,
    /// What was decided about it.
    pub settings: Settings,
    /// How it stands.
    pub status: Status,
    /// Since when its totals count.
    pub counted_since: SystemTime,
}

/// A lease as operators see it.
#[derive(Debug)]
pub struct LeaseView {
    /// The bulkhead that granted it.
    pub bulkhead: Arc<str>,
    /// Names it, with its bulkhead.
    pub token: FencingToken,
    /// How many permits.
    pub permits: u32,
    /// What it runs for.
    pub partition: Box<str>,
    /// Who has it.
    pub holder: Holder,
    /// Since when.
    pub granted_at: SystemTime,
    /// What is left of its ttl.
    pub ttl_left: Duration,
}

impl Admission {
    /// Moves the limit in force, at once (R4).
    pub fn set_limit(&self, name: &str, limit: u32) -> Result<View, Refused> {
        let (cell, answer) = self.on(name, Self::find, |cell, state, now| {
            state.kept = true;
            let step = state.bulkhead.set_limit(now, limit);
            self.finish(cell, state, step)
        })?;
        match answer {
            Ok(()) => Ok(self.view(&cell)),
            Err(invalid) => Err(Refused::early(Reason::InvalidField, name, Some(invalid))),
        }
    }

    /// A bulkhead as it stands now.
    pub fn bulkhead(&self, name: &str) -> Result<View, Refused> {
        let cell = self.find(name)?;
        Ok(self.view(&cell))
    }

    /// The bulkheads with names after `after`, by name, at most `most`.
    pub fn bulkheads(&self, after: Option<&str>, most: usize) -> Vec<View> {
        let names = self.names(|name| after.is_none_or(|after| name > after));
        names.iter().filter_map(|name| self.bulkhead(name).ok()).take(most).collect()
    }

    /// Live leases by bulkhead and token, of one bulkhead or of all, from a place on, at most `most`.
    pub fn leases(
        &self,
        only: Option<&str>,
        from: (&str, FencingToken),
        most: usize,
    ) -> Result<Vec<LeaseView>, Refused> {
        if let Some(only) = only {
            self.bulkhead(only)?;
        }
        let (from_name, from_token) = from;
        let mut leases = Vec::new();
        for name in self.names(|name| name >= from_name && only.is_none_or(|only| name == only)) {
            let Some(cell) = self.find_exact(&name) else { continue };
            let from = if *name == *from_name { from_token } else { FencingToken::default() };
            let (mut state, now) = self.enter(&cell);
            let settled = state.bulkhead.advance(now);
            self.finish(&cell, &mut state, settled);
            let held = state.bulkhead.leases_from(from).take(most - leases.len());
            leases.extend(held.map(|lease| LeaseView {
                bulkhead: name.clone(),
                token: lease.token,
                permits: lease.permits,
                partition: lease.partition.unwrap_or(&name).into(),
                holder: lease.holder.clone(),
                granted_at: self.clock.wall(lease.granted_at),
                ttl_left: lease.end.since(now),
            }));
            if leases.len() == most {
                break;
            }
        }
        Ok(leases)
    }

    /// The partitions that cool, ramp, or are remembered to have, with names after `after`, by name, at most `most`.
    pub fn cooldowns(&self, after: Option<&str>, most: usize) -> Vec<CooldownView> {
        self.cooldowns.list(self.clock.now(), after, most)
    }

    /// Ends the cooldown of a partition and its ramp, at once. Answers whether there was one.
    pub fn clear_cooldown(&self, partition: &str) -> bool {
        let Some(cells) = self.cooldowns.clear(partition) else { return false };
        for cell in cells {
            let (mut state, now) = self.enter(&cell);
            let own = (*partition != *cell.name).then_some(partition);
            let step = state.bulkhead.calm(now, own);
            self.finish(&cell, &mut state, step);
        }
        true
    }

    fn names(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.cells.iter().map(|cell| cell.key().clone()).filter(|name| wanted(name)).collect();
        names.sort_unstable();
        names
    }

    fn view(&self, cell: &Arc<Cell>) -> View {
        let (mut state, now) = self.enter(cell);
        let settled = state.bulkhead.advance(now);
        self.finish(cell, &mut state, settled);
        View {
            name: cell.name.clone(),
            settings: state.bulkhead.settings().clone(),
            status: state.bulkhead.status(),
            counted_since: cell.counted_since,
        }
    }
}
