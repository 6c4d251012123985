//! Which bulkheads there are: made, found, deleted (R13).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use dashmap::mapref::entry::{Entry, VacantEntry};
use parking_lot::Mutex;
use tidegate_core::{Bulkhead, FencingToken, Mode, Reason, Room, Settings, Status};

use super::ask::not_found;
use super::audit::{Change, differences};
use super::{Admission, Cell, DEFAULT, Refused, State, View};
use crate::settings::Template;

/// What makes a bulkhead.
pub(super) enum Maker<'a> {
    /// A call for a name that the template matches.
    Template(Arc<Template>),
    /// Somebody, on record.
    Somebody(Change<'a>),
}

impl Admission {
    /// Makes a bulkhead, with what the configuration says of all of them. One made again counts its fencing tokens from
    /// above those of the old one (R13).
    pub fn create(&self, change: &Change<'_>, name: &str, settings: Settings) -> Result<View, Refused> {
        let names = self.names.load_full();
        let (cell, view) = self.make(name, names.settings.apply(settings), Maker::Somebody(*change))?;
        let latest = self.names.load();
        // A reload that came meanwhile may not have seen it.
        if !Arc::ptr_eq(&names, &latest) && self.follow_server(&cell, &latest.settings) {
            return self.bulkhead(name);
        }
        Ok(view)
    }

    /// What [`create`](Self::create) would make.
    pub fn would_create(&self, name: &str, settings: Settings) -> Result<View, Refused> {
        if let Some(cell) = self.find_exact(name) {
            return Err(self.taken(&cell));
        }
        if !self.caps.has_bulkhead() {
            return Err(Refused::early(Reason::ServerCapReached, name, None));
        }
        Ok(View::unmade(name, self.names.load().settings.apply(settings)))
    }

    fn make(&self, name: &str, settings: Settings, maker: Maker<'_>) -> Result<(Arc<Cell>, View), Refused> {
        if let Some(cell) = self.find_exact(name) {
            return Err(self.taken(&cell));
        }
        let Entry::Vacant(vacant) = self.cells.entry(name.into()) else {
            return Err(Refused::early(Reason::BulkheadExists, name, None));
        };
        if !self.caps.take_bulkhead() {
            return Err(Refused::early(Reason::ServerCapReached, name, None));
        }
        Ok(self.place(vacant, settings, maker))
    }

    /// Puts a bulkhead where there is none; the cap was asked. Answers how it begins.
    pub(super) fn place(
        &self,
        vacant: VacantEntry<'_, Arc<str>, Arc<Cell>>,
        settings: Settings,
        maker: Maker<'_>,
    ) -> (Arc<Cell>, View) {
        let (template, change) = match maker {
            Maker::Template(template) => (Some(template), None),
            Maker::Somebody(change) => (None, Some(change)),
        };
        let after = FencingToken::from_u64(self.floor.load(Ordering::Acquire));
        let incarnation = self.next_incarnation.fetch_add(1, Ordering::Relaxed);
        let room = Room { leases: 0, waiters: 0, remembered: 0 };
        let mut bulkhead = Bulkhead::new(settings, after);
        bulkhead.set_room(room);
        let state = State {
            bulkhead,
            parked: HashMap::new(),
            alarm: None,
            room,
            idle_since: None,
            kept: template.is_none(),
            template,
            revision: 0,
            leaving: false,
            told_expired: 0,
            dead: false,
        };
        let (name, counted_since) = (vacant.key().clone(), SystemTime::now());
        let cell = Arc::new(Cell { incarnation, name, counted_since, state: Mutex::new(state) });
        // Nobody else knows the cell yet.
        let view = self.view(&cell, &cell.state.lock());
        if let Some(change) = change {
            // Before anybody can change it.
            self.audit.bulkhead(change, cell.name.clone(), differences(None, Some(&view)));
        }
        self.incarnations.insert(incarnation, cell.clone());
        vacant.insert(cell.clone());
        (cell, view)
    }

    /// Why no bulkhead of that name can be made.
    fn taken(&self, cell: &Cell) -> Refused {
        let leaving = self.enter(cell).0.leaving;
        let reason = if leaving { Reason::BulkheadInUse } else { Reason::BulkheadExists };
        Refused::early(reason, &cell.name, None)
    }

    /// Deletes a bulkhead; ids of its leases answer `Ended` once it is gone. One with leases or waiters is in use, unless
    /// it may `drain`: then its waiters are refused, nobody new is let in, and it goes with its last lease. Answers how
    /// many permits still run: with none it is gone.
    pub fn delete(&self, change: &Change<'_>, name: &str, drain: bool) -> Result<u32, Refused> {
        let (_, answer) = self.on(name, Self::find, |cell, state, now| {
            let settled = state.bulkhead.advance(now);
            self.finish(cell, state, settled);
            if !state.leaving {
                state.expect(cell, change.etag)?;
            }
            let before = self.view(cell, state);
            let Status { running, queued, .. } = before.status;
            if !drain && (running > 0 || queued > 0) {
                return Err(Refused::early(Reason::BulkheadInUse, name, None));
            }
            if !state.leaving {
                self.audit.bulkhead(*change, cell.name.clone(), differences(Some(&before), None));
                state.leaving = true;
                let detail = if change.detail.is_empty() { "it was deleted" } else { change.detail };
                let step = state.bulkhead.set_mode(now, Mode::Closed, detail);
                self.finish(cell, state, step);
            }
            Ok(running)
        })?;
        answer
    }

    /// Takes a cell that nobody holds or waits for out of the map.
    pub(super) fn bury(&self, cell: &Cell, state: &mut State) {
        // It leaves the map under its own lock: whoever waits for that lock finds it dead, looks the name up again and
        // does not find it there. No map guard is ever held while a cell is locked, so the order is safe.
        state.dead = true;
        self.floor.fetch_max(state.bulkhead.last_token().as_u64(), Ordering::AcqRel);
        self.incarnations.remove(&cell.incarnation);
        self.cells.remove(&cell.name);
        self.caps.give_bulkhead();
        state.room = self.caps.take_back(state.room, Room { leases: 0, waiters: 0, remembered: 0 });
        if let Some(alarm) = state.alarm.take() {
            self.ticker.clear(cell, alarm);
        }
    }

    /// The cell that answers for that name: its own, one made from a template, or the default one (R13).
    pub(super) fn find_or_make(&self, name: &str) -> Result<Arc<Cell>, Refused> {
        if let Some(cell) = self.find_exact(name) {
            return Ok(cell);
        }
        let names = self.names.load_full();
        if let Some(template) = names.templates.iter().find(|template| template.matches(name)) {
            return match self.make(name, template.settings.clone(), Maker::Template(template.clone())) {
                Ok((cell, _)) => {
                    // A reload that came meanwhile may not have seen it.
                    if !Arc::ptr_eq(&names, &self.names.load()) {
                        self.follow_template(&cell);
                    }
                    Ok(cell)
                }
                Err(refused) if refused.refusal.reason == Reason::ServerCapReached => Err(refused),
                // Somebody else made it meanwhile.
                Err(_) => self.find_or_make(name),
            };
        }
        self.find_exact(DEFAULT).ok_or_else(|| not_found(name))
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Cell>, Refused> {
        self.find_exact(name).ok_or_else(|| match name {
            DEFAULT => Refused::early(Reason::BulkheadNotFound, name, None),
            name => not_found(name),
        })
    }

    pub(super) fn find_exact(&self, name: &str) -> Option<Arc<Cell>> {
        self.cells.get(name).map(|cell| cell.clone())
    }
}
