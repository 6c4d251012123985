//! The configuration is applied: at the start, and whenever it is read again. Leases and waiters stay.
//!
//! Two people decide about a bulkhead, who writes the file and an operator. What the file says counts when it differs from
//! what it said last, value by value; until then the operator's value stays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dashmap::mapref::entry::Entry;
use tidegate_core::{Instant, Settings};
use tracing::warn;

use super::audit::differences;
use super::bulkheads::Maker;
use super::{Admission, AuditChange, Cell, Change, State, View};
use crate::cooldowns::Rules;
use crate::settings::{Plan, ServerSettings, Template};

/// What new bulkheads are made by.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) settings: ServerSettings,
    /// In the order of the file.
    pub(super) templates: Vec<Arc<Template>>,
}

impl Names {
    pub(super) fn new(settings: &ServerSettings, templates: &[Template]) -> Self {
        Self { settings: settings.clone(), templates: templates.iter().cloned().map(Arc::new).collect() }
    }
}

/// More new bulkheads than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[[bulkhead]]: the running server has no room for {0} more (max_bulkheads)")]
pub struct NoRoom(pub usize);

impl Admission {
    /// Applies what the configuration says now, whole or not at all, and answers how many bulkheads that changed. It is
    /// refused only if it has more new bulkheads than there is room for. What people said of bulkheads that the
    /// configuration does not name stays; one that it named before and names no more is deleted.
    pub fn reload(&self, plan: Plan) -> Result<usize, NoRoom> {
        let mut last = self.plan.lock();
        let mut plan = Plan { settings: last.settings.reloaded(&plan.settings), ..plan };
        let before: HashMap<&str, &Settings> = last.bulkheads.iter().map(|(name, of)| (&name[..], of)).collect();
        let wanted: HashSet<&str> = plan.bulkheads.iter().map(|(name, _)| &name[..]).collect();
        // What it says of all of them alone is nothing new about one: an operator's deletion stays.
        let differs = |(name, new): &&(String, Settings)| {
            before.get(&name[..]).is_none_or(|old| plan.settings.apply((*old).clone()) != *new)
        };
        let different: Vec<_> = plan.bulkheads.iter().filter(differs).collect();
        let rewritten: HashSet<&str> = different.iter().map(|(name, _)| &name[..]).collect();
        let absent: HashSet<&str> =
            different.iter().map(|(name, _)| &name[..]).filter(|name| self.find_exact(name).is_none()).collect();
        // From here on nothing can fail.
        let mut room = self.take_bulkheads(absent.len())?;
        self.names.store(Arc::new(Names::new(&plan.settings, &plan.templates)));
        self.cooldowns.set_rules(Rules::from(&plan.settings));
        self.note(&"".into(), server_changes(&last.settings, &plan.settings));
        self.note_templates(&last.templates, &plan.templates);
        let (mut changed, mut missed) = (0, HashSet::new());
        for (name, new) in different {
            let made = absent.contains(&name[..]) && self.place_named(name, new);
            room -= usize::from(made);
            if made {
                changed += 1;
            } else if let Some(is_other) = self.rewrite_named(name, before.get(&name[..]).copied(), new) {
                changed += usize::from(is_other);
            } else if self.caps.take_bulkhead() {
                // It went in this moment, and is made anew.
                let made = self.place_named(name, new);
                changed += usize::from(made);
                if !made {
                    self.caps.give_bulkhead();
                }
            } else {
                warn!(bulkhead = name, "it went in this moment, and its room is taken: the next reload makes it");
                missed.insert(name.clone());
            }
        }
        (0..room).for_each(|_| self.caps.give_bulkhead());
        for name in before.keys().filter(|name| !wanted.contains(*name)) {
            changed += usize::from(self.retire(name));
        }
        let cells: Vec<Arc<Cell>> = self.incarnations.iter().map(|cell| cell.clone()).collect();
        for cell in cells.iter().filter(|cell| !rewritten.contains(&*cell.name)) {
            changed += usize::from(self.follow_template(cell) || self.follow_server(cell, &plan.settings));
        }
        plan.bulkheads.retain(|(name, _)| !missed.contains(name));
        *last = plan;
        Ok(changed)
    }

    /// Room for that many bulkheads, or none.
    fn take_bulkheads(&self, count: usize) -> Result<usize, NoRoom> {
        for taken in 0..count {
            if !self.caps.take_bulkhead() {
                (0..taken).for_each(|_| self.caps.give_bulkhead());
                return Err(NoRoom(count));
            }
        }
        Ok(count)
    }

    /// Makes a bulkhead that the configuration names, unless somebody else just did.
    fn place_named(&self, name: &str, settings: &Settings) -> bool {
        let Entry::Vacant(vacant) = self.cells.entry(name.into()) else { return false };
        self.place(vacant, settings.clone(), Maker::Somebody(Change::file()));
        true
    }

    /// The configuration says something else of a bulkhead than before, or speaks of it for the first time. Answers
    /// whether that changed it; `None` if it is not there any more.
    fn rewrite_named(&self, name: &str, old: Option<&Settings>, new: &Settings) -> Option<bool> {
        let rewritten = self.on(name, Self::find, |cell, state, now| {
            state.kept = true;
            // One that drains stays. It takes all that the configuration says of it, as one does that a template made.
            let old = old.filter(|_| !state.leaving && state.template.is_none());
            state.template = None;
            self.rewrite(cell, state, now, old, new)
        });
        rewritten.ok().map(|(_, changed)| changed)
    }

    /// The configuration names a bulkhead no more: its waiters are told, and it goes with its last lease.
    fn retire(&self, name: &str) -> bool {
        let there = self.bulkhead(name).is_ok_and(|view| !view.deleting);
        there && self.delete(&Change::file(), name, true).is_ok()
    }

    /// A dynamic bulkhead takes what is different in the template that made it.
    pub(super) fn follow_template(&self, cell: &Arc<Cell>) -> bool {
        let (mut state, now) = self.enter(cell);
        let Some(old) = state.template.clone().filter(|_| !state.dead && !state.leaving) else { return false };
        let names = self.names.load();
        let Some(new) = names.templates.iter().find(|template| template.pattern == old.pattern) else { return false };
        state.template = Some(new.clone());
        new.settings != old.settings && self.rewrite(cell, &mut state, now, Some(&old.settings), &new.settings)
    }

    /// A bulkhead of which the configuration says nothing new takes what it says of all of them.
    pub(super) fn follow_server(&self, cell: &Arc<Cell>, settings: &ServerSettings) -> bool {
        let (mut state, now) = self.enter(cell);
        let old = state.bulkhead.settings().clone();
        let new = settings.apply(old.clone());
        new != old && !state.dead && !state.leaving && self.rewrite(cell, &mut state, now, Some(&old), &new)
    }

    /// What was `old` in the configuration is `new` there now.
    fn rewrite(
        &self,
        cell: &Arc<Cell>,
        state: &mut State,
        now: Instant,
        old: Option<&Settings>,
        new: &Settings,
    ) -> bool {
        // It stays, also if time takes its last lease now.
        let deleting = std::mem::take(&mut state.leaving);
        let settled = state.bulkhead.advance(now);
        self.finish(cell, state, settled);
        let before = View { deleting, ..self.view(cell, state) };
        let merged = old.map_or_else(|| new.clone(), |old| before.settings.merge(old, new));
        let limit = merged.limit();
        if merged != before.settings {
            let step = state.bulkhead.configure(now, merged, false);
            self.finish(cell, state, step);
        }
        if old.is_none_or(|old| old.limit() != new.limit()) {
            // Also if an operator moved the limit in force away from a start limit that is the same.
            let step = state.bulkhead.set_limit(now, limit, None);
            let _ = self.finish(cell, state, step);
        }
        let changes = differences(Some(&before), Some(&self.view(cell, state)));
        state.revision += u64::from(!changes.is_empty());
        self.note(&cell.name, changes)
    }

    /// Remembers what changed of the templates, under their patterns.
    fn note_templates(&self, before: &[Template], after: &[Template]) {
        let of = |all: &[Template], pattern: &str| {
            let template = all.iter().find(|template| template.pattern == pattern)?;
            Some(View::unmade(pattern, template.settings.clone()))
        };
        let gone = before.iter().filter(|old| after.iter().all(|new| new.pattern != old.pattern));
        for Template { pattern, .. } in after.iter().chain(gone) {
            let changes = differences(of(before, pattern).as_ref(), of(after, pattern).as_ref());
            self.note(&pattern.as_str().into(), changes);
        }
    }

    /// Remembers what changed. Answers whether anything did.
    fn note(&self, bulkhead: &Arc<str>, changes: Vec<AuditChange>) -> bool {
        let any = !changes.is_empty();
        if any {
            self.audit.bulkhead(Change::file(), bulkhead.clone(), changes);
        }
        any
    }
}

/// What changed of what a reload takes of the server.
fn server_changes(before: &ServerSettings, after: &ServerSettings) -> Vec<AuditChange> {
    let spans = |of: &ServerSettings| {
        [
            ("min_retry_hint", of.min_retry_hint),
            ("max_retry_hint", of.max_retry_hint),
            ("max_cooldown", of.max_cooldown),
            ("cooldown_grace", of.cooldown_grace),
            ("ramp_step", of.ramp_step),
            ("idle_after", of.idle_after),
        ]
    };
    let told = |span: Duration| humantime::format_duration(span).to_string();
    let pairs = spans(before).into_iter().zip(spans(after));
    pairs.filter_map(|((key, before), (_, after))| AuditChange::between(key, told(before), told(after))).collect()
}
