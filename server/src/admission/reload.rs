//! The configuration is applied: at the start, and whenever it is read again. Leases and waiters stay.
//!
//! Two people decide about a bulkhead, who writes the file and an operator. What the file says counts when it differs from
//! what it said last, value by value; until then the operator's value stays.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dashmap::mapref::entry::Entry;
use tidegate_core::{Draft, Instant, Settings};

use super::{Admission, Cell, Conflict, State};
use crate::cooldowns::Rules;
use crate::settings::{Plan, ServerSettings, Template, told};

/// Which names get a bulkhead, and for how long.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) idle_after: Duration,
    /// In the order of the file.
    pub(super) templates: Vec<Arc<Template>>,
}

impl Names {
    pub(super) fn new(settings: &ServerSettings, templates: &[Template]) -> Self {
        Self { idle_after: settings.idle_after, templates: templates.iter().cloned().map(Arc::new).collect() }
    }
}

/// What a reload changed about a bulkhead. One that is not there says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub bulkhead: Arc<str>,
    /// The values that changed, as they were: `limit 4, max_wait 2s`.
    pub before: String,
    /// And as they are now.
    pub after: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bulkhead, before, after } = self;
        write!(f, "bulkhead {bulkhead:?}: {before} -> {after}")
    }
}

const ABSENT: &str = "absent";

impl Admission {
    /// Applies what the configuration says now, whole or not at all, and answers what that changed. It is refused only if
    /// it has more new bulkheads than there is room for. What people said of bulkheads that the configuration does not
    /// name stays; a bulkhead that it named before and names no more is deleted.
    pub fn reload(&self, plan: Plan) -> Result<Vec<Change>, Conflict> {
        let mut last = self.plan.lock();
        let before: HashMap<&str, &Settings> = last.bulkheads.iter().map(|(name, of)| (&name[..], of)).collect();
        let wanted: HashSet<&str> = plan.bulkheads.iter().map(|(name, _)| &name[..]).collect();
        let differs = |(name, new): &&(String, Settings)| before.get(&name[..]) != Some(&new);
        let different: Vec<_> = plan.bulkheads.iter().filter(differs).collect();
        let absent: HashSet<&str> =
            different.iter().map(|(name, _)| &name[..]).filter(|name| self.find_exact(name).is_none()).collect();
        // From here on nothing can fail.
        let mut room = self.take_bulkheads(absent.len())?;
        self.names.store(Arc::new(Names::new(&plan.settings, &plan.templates)));
        let settings = ServerSettings { max_partitions: last.settings.max_partitions, ..plan.settings.clone() };
        self.cooldowns.set_rules(Rules::from(&settings));
        let mut changes = Vec::new();
        for (name, new) in different {
            let made = absent.contains(&name[..]).then(|| self.place_named(name, new)).flatten();
            room -= usize::from(made.is_some());
            changes.extend(made.or_else(|| self.rewrite_named(name, before.get(&name[..]).copied(), new)));
        }
        (0..room).for_each(|_| self.caps.give_bulkhead());
        for name in before.keys().filter(|name| !wanted.contains(*name)) {
            changes.extend(self.retire(name));
        }
        let cells: Vec<Arc<Cell>> = self.incarnations.iter().map(|cell| cell.clone()).collect();
        for cell in cells.iter().filter(|cell| !wanted.contains(&*cell.name)) {
            changes.extend(self.follow_template(cell).or_else(|| self.follow_server(cell, &plan.settings)));
        }
        *last = plan;
        Ok(changes)
    }

    /// Room for that many bulkheads, or none.
    fn take_bulkheads(&self, count: usize) -> Result<usize, Conflict> {
        for taken in 0..count {
            if !self.caps.take_bulkhead() {
                (0..taken).for_each(|_| self.caps.give_bulkhead());
                return Err(Conflict::TooMany);
            }
        }
        Ok(count)
    }

    /// Makes a bulkhead that the configuration names, unless somebody else just did.
    fn place_named(&self, name: &str, settings: &Settings) -> Option<Change> {
        let Entry::Vacant(vacant) = self.cells.entry(name.into()) else { return None };
        let cell = self.place(vacant, settings.clone(), None);
        let values: Vec<_> = told(settings).into_iter().map(|(key, value)| format!("{key} {value}")).collect();
        Some(Change { bulkhead: cell.name.clone(), before: ABSENT.into(), after: values.join(", ") })
    }

    /// The configuration says something else of a bulkhead than before, or speaks of it for the first time.
    fn rewrite_named(&self, name: &str, old: Option<&Settings>, new: &Settings) -> Option<Change> {
        let rewritten = self.on(name, Self::find, |cell, state, now| {
            state.kept = true;
            state.template = None;
            self.rewrite(cell, state, now, old, new)
        });
        // One that an operator deleted in this moment stays deleted.
        rewritten.ok()?.1
    }

    /// The configuration names a bulkhead no more: it goes when nobody holds a lease of it or waits for it.
    fn retire(&self, name: &str) -> Option<Change> {
        let cell = self.find_exact(name)?;
        let after = match self.delete(name) {
            Ok(()) => "deleted",
            Err(Conflict::NotFound) => return None,
            Err(_) => {
                self.enter(&cell).0.kept = false;
                "goes when it is idle"
            }
        };
        Some(Change { bulkhead: cell.name.clone(), before: "there".into(), after: after.into() })
    }

    /// A dynamic bulkhead takes what is different in the template that made it.
    pub(super) fn follow_template(&self, cell: &Arc<Cell>) -> Option<Change> {
        let (mut state, now) = self.enter(cell);
        let old = state.template.clone().filter(|_| !state.dead)?;
        let names = self.names.load();
        let new = names.templates.iter().find(|template| template.pattern == old.pattern)?;
        state.template = Some(new.clone());
        self.rewrite(cell, &mut state, now, Some(&old.settings), &new.settings)
    }

    /// A bulkhead that the configuration does not name takes what it says of all of them.
    fn follow_server(&self, cell: &Arc<Cell>, settings: &ServerSettings) -> Option<Change> {
        let (mut state, now) = self.enter(cell);
        let old = state.bulkhead.settings().clone();
        let Draft { ramp_step, min_retry_hint, max_retry_hint, .. } = settings.shared();
        let new = Draft { ramp_step, min_retry_hint, max_retry_hint, ..Draft::from(&old) };
        let new = Settings::try_from(new).ok().filter(|_| !state.dead)?;
        self.rewrite(cell, &mut state, now, Some(&old), &new)
    }

    /// What was `old` in the configuration is `new` there now.
    fn rewrite(
        &self,
        cell: &Arc<Cell>,
        state: &mut State,
        now: Instant,
        old: Option<&Settings>,
        new: &Settings,
    ) -> Option<Change> {
        let before = values(state);
        let present = state.bulkhead.settings().clone();
        let merged = old.map_or_else(|| new.clone(), |old| present.merge(old, new));
        let limit = merged.limit();
        if merged != present {
            let step = state.bulkhead.configure(now, merged);
            self.finish(cell, state, step);
        }
        if old.is_none_or(|old| old.limit() != new.limit()) {
            // Also if an operator moved the limit in force away from a start limit that is the same.
            let step = state.bulkhead.set_limit(now, limit);
            let _ = self.finish(cell, state, step);
        }
        let after = values(state);
        let differ: Vec<_> = before.into_iter().zip(after).filter(|(before, after)| before != after).collect();
        let (before, after): (Vec<_>, Vec<_>) = differ.into_iter().unzip();
        let change = Change { bulkhead: cell.name.clone(), before: before.join(", "), after: after.join(", ") };
        (!before.is_empty()).then_some(change)
    }
}

/// All that is decided about a bulkhead, told for people.
fn values(state: &State) -> Vec<String> {
    let now = format!("limit now {}", state.bulkhead.status().limit);
    told(state.bulkhead.settings()).into_iter().map(|(key, value)| format!("{key} {value}")).chain([now]).collect()
}
