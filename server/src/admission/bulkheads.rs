//! Which bulkheads there are: made, found, deleted (R13).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use dashmap::mapref::entry::{Entry, VacantEntry};
use parking_lot::Mutex;
use tidegate_core::{Bulkhead, FencingToken, Reason, Room, Settings, Status};

use super::ask::not_found;
use super::{Admission, Cell, DEFAULT, Refused, State};
use crate::settings::Template;

/// Why a bulkhead cannot be made or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// One of that name is there.
    #[error("a bulkhead of that name exists")]
    Exists,
    /// There are as many as there may be.
    #[error("there are as many bulkheads as max_bulkheads allows")]
    TooMany,
    /// Permits run or waiters wait.
    #[error("the bulkhead has leases or waiters")]
    InUse,
    /// None of that name is there.
    #[error("no bulkhead has that name")]
    NotFound,
}

impl Admission {
    /// Makes a bulkhead. One made again counts its fencing tokens from above those of the old one (R13).
    pub fn create(&self, name: &str, settings: Settings) -> Result<(), Conflict> {
        self.make(name, settings, None).map(drop)
    }

    fn make(&self, name: &str, settings: Settings, template: Option<Arc<Template>>) -> Result<Arc<Cell>, Conflict> {
        let Entry::Vacant(vacant) = self.cells.entry(name.into()) else { return Err(Conflict::Exists) };
        if !self.caps.take_bulkhead() {
            return Err(Conflict::TooMany);
        }
        Ok(self.place(vacant, settings, template))
    }

    /// Puts a bulkhead where there is none; the cap was asked.
    pub(super) fn place(
        &self,
        vacant: VacantEntry<'_, Arc<str>, Arc<Cell>>,
        settings: Settings,
        template: Option<Arc<Template>>,
    ) -> Arc<Cell> {
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
            dead: false,
        };
        let (name, counted_since) = (vacant.key().clone(), SystemTime::now());
        let cell = Arc::new(Cell { incarnation, name, counted_since, state: Mutex::new(state) });
        self.incarnations.insert(incarnation, cell.clone());
        vacant.insert(cell.clone());
        cell
    }

    /// Deletes a bulkhead that nobody holds a lease of or waits for. Ids of its leases answer `Ended` from then on.
    pub fn delete(&self, name: &str) -> Result<(), Conflict> {
        let cell = self.find_exact(name).ok_or(Conflict::NotFound)?;
        let (mut state, now) = self.enter(&cell);
        if state.dead {
            return Err(Conflict::NotFound);
        }
        let settled = state.bulkhead.advance(now);
        self.finish(&cell, &mut state, settled);
        let Status { running, queued, .. } = state.bulkhead.status();
        if running > 0 || queued > 0 {
            return Err(Conflict::InUse);
        }
        self.bury(&cell, &mut state);
        Ok(())
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
    }

    /// The cell that answers for that name: its own, one made from a template, or the default one (R13).
    pub(super) fn find_or_make(&self, name: &str) -> Result<Arc<Cell>, Refused> {
        if let Some(cell) = self.find_exact(name) {
            return Ok(cell);
        }
        let names = self.names.load_full();
        if let Some(template) = names.templates.iter().find(|template| template.matches(name)) {
            return match self.make(name, template.settings.clone(), Some(template.clone())) {
                Ok(cell) => {
                    // A reload that came meanwhile may not have seen it.
                    if !Arc::ptr_eq(&names, &self.names.load()) {
                        self.follow_template(&cell);
                    }
                    Ok(cell)
                }
                Err(Conflict::TooMany) => Err(Refused::early(Reason::ServerCapReached, name, None)),
                // Somebody else made it meanwhile.
                Err(_) => self.find_or_make(name),
            };
        }
        self.find_exact(DEFAULT).ok_or_else(|| not_found(name))
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Cell>, Refused> {
        self.find_exact(name).ok_or_else(|| not_found(name))
    }

    pub(super) fn find_exact(&self, name: &str) -> Option<Arc<Cell>> {
        self.cells.get(name).map(|cell| cell.clone())
    }
}
