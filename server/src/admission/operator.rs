//! What operators do.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::{FencingToken, Instant, Invalid, Mode, Reason, RequestKey, Settings, Status};

use super::audit::{AuditChange, Change, differences};
use super::{Admission, Cell, Refused, State, View};
use crate::seal::LeaseId;
use crate::streams::Push;

impl Admission {
    /// Moves the limit in force, at once (R4), for that time or for good.
    pub fn set_limit(
        &self,
        change: &Change<'_>,
        name: &str,
        limit: u32,
        revert_after: Option<Duration>,
    ) -> Result<View, Refused> {
        self.change(change, name, |cell, state, now| {
            let step = state.bulkhead.set_limit(now, limit, revert_after);
            self.finish(cell, state, step).map_err(|invalid| Refused::invalid(name, invalid))
        })
    }

    /// Changes the mode (R12). Those whom a closed bulkhead refuses are told the change's detail.
    pub fn set_mode(&self, change: &Change<'_>, name: &str, mode: Mode) -> Result<View, Refused> {
        self.change(change, name, |cell, state, now| {
            let step = state.bulkhead.set_mode(now, mode, change.detail);
            self.finish(cell, state, step);
            Ok(())
        })
    }

    /// Replaces the settings by what `merge` makes of the present ones, all at once or not at all. It also tells whether
    /// the limit in force moves to the start limit.
    pub fn configure(
        &self,
        change: &Change<'_>,
        name: &str,
        merge: impl FnOnce(&Settings) -> Result<(Settings, bool), Invalid>,
    ) -> Result<View, Refused> {
        self.change(change, name, |cell, state, now| {
            let merged = merge(state.bulkhead.settings()).map_err(|invalid| Refused::invalid(name, invalid))?;
            let (settings, moves_limit) = merged;
            let step = state.bulkhead.configure(now, settings, moves_limit);
            self.finish(cell, state, step);
            Ok(())
        })
    }

    /// What [`configure`](Self::configure) would do.
    pub fn would_configure(
        &self,
        change: &Change<'_>,
        name: &str,
        merge: impl FnOnce(&Settings) -> Result<(Settings, bool), Invalid>,
    ) -> Result<View, Refused> {
        let cell = self.find(name)?;
        let mut view = self.look_at(&cell);
        self.enter(&cell).0.expect(&cell, change.etag)?;
        let (settings, moves_limit) = merge(&view.settings).map_err(|invalid| Refused::invalid(name, invalid))?;
        if moves_limit {
            view.status = Status { limit: settings.limit(), revert: None, ..view.status };
            view.revert_time = None;
        }
        view.status.limit = view.status.limit.min(settings.ceiling());
        if settings.mode() != view.settings.mode() {
            view.mode_detail = Box::default();
        }
        Ok(View { settings, ..view })
    }

    /// Takes a lease back (R7). Answers whether its holder was told; else it learns of it with its next renewal.
    pub fn revoke(
        &self,
        change: &Change<'_>,
        name: &str,
        token: FencingToken,
        immediate: bool,
    ) -> Result<(View, bool), Refused> {
        let cell = self.find(name)?;
        let (mut state, now) = self.enter(&cell);
        let step = state.bulkhead.revoke(now, token, immediate);
        let Some(revoked) = self.finish(&cell, &mut state, step) else {
            return Err(Refused::early(Reason::LeaseNotFound, name, None));
        };
        let view = self.view(&cell, &state);
        let after = if immediate { "free" } else { "revoked" };
        let lease = AuditChange { field: "lease", before: format!("{}", token.as_u64()), after: after.into() };
        self.audit.bulkhead(*change, cell.name.clone(), vec![lease]);
        drop(state);
        let request = revoked.request.unwrap_or(RequestKey { identity: 0, request: 0 });
        let (incarnation, permits, ttl) = (cell.incarnation, revoked.permits, revoked.ttl);
        let lease_id = self.seal.seal(&LeaseId { token, incarnation, permits, ttl, request });
        let told = revoked.stream.is_some_and(|stream| self.streams.push(stream, Push::Revoked(lease_id)));
        Ok((view, told))
    }

    /// Nothing is unheard any more. With the store `memory` nothing ever is.
    pub fn end_recovery(&self, change: &Change<'_>, name: &str) -> Result<View, Refused> {
        self.change(change, name, |_, _, _| Ok(()))
    }

    /// Ends the cooldown of a partition and its ramp, at once. Answers whether there was one.
    pub fn clear_cooldown(&self, change: &Change<'_>, partition: &str) -> bool {
        let Some(cells) = self.cooldowns.clear(partition) else { return false };
        for cell in cells {
            let (mut state, now) = self.enter(&cell);
            if self.cooldowns.end(partition).is_some() {
                // It was reported anew meanwhile, and whoever reported it tells the cells.
                break;
            }
            let own = (*partition != *cell.name).then_some(partition);
            let step = state.bulkhead.calm(now, own);
            self.finish(&cell, &mut state, step);
        }
        let cleared = AuditChange { field: "cooldown", before: "there".into(), after: String::new() };
        self.audit.partition(*change, partition, vec![cleared]);
        true
    }

    /// A limit went back by itself.
    pub(super) fn note_revert(&self, cell: &Cell, state: &mut State, before: u32, after: u32) {
        state.revision += 1;
        let change = Change { action: "Revert", actor: "server", ..Change::default() };
        let limit = AuditChange::between("limit", before.to_string(), after.to_string());
        self.audit.bulkhead(change, cell.name.clone(), limit.into_iter().collect());
    }

    /// One change of a bulkhead by an operator, under its lock: checked, done, and remembered with what is different.
    fn change(
        &self,
        change: &Change<'_>,
        name: &str,
        act: impl FnOnce(&Arc<Cell>, &mut State, Instant) -> Result<(), Refused>,
    ) -> Result<View, Refused> {
        let (_, answer) = self.on(name, Self::find, |cell, state, now| {
            let settled = state.bulkhead.advance(now);
            self.finish(cell, state, settled);
            state.expect(cell, change.etag)?;
            let before = self.view(cell, state);
            act(cell, state, now)?;
            let changes = differences(Some(&before), Some(&self.view(cell, state)));
            // What changes nothing is meant, and on record, all the same.
            state.kept = true;
            state.revision += u64::from(!changes.is_empty());
            self.audit.bulkhead(*change, cell.name.clone(), changes);
            Ok(self.view(cell, state))
        })?;
        answer
    }
}

impl State {
    /// It is as its changer believes, and not on its way out.
    pub(super) fn expect(&self, cell: &Cell, etag: &str) -> Result<(), Refused> {
        if self.leaving {
            return Err(Refused::early(Reason::BulkheadInUse, &cell.name, None));
        }
        if !etag.is_empty() && etag != self.etag(cell) {
            return Err(Refused::early(Reason::EtagMismatch, &cell.name, None));
        }
        Ok(())
    }

    /// Another one after every change that somebody decided, and after a restart.
    pub(super) fn etag(&self, cell: &Cell) -> String {
        let made = cell.counted_since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("\"{:x}-{}\"", made.as_nanos(), self.revision)
    }
}
