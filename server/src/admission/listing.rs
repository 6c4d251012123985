//! What operators see: bulkheads, leases, waiters, cooldowns, changes, and the server itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::{Bulkhead, FencingToken, Holder, Place, Priority, Settings, Status};

use super::{Admission, AuditEvent, Cell, Refused, State};
use crate::caps::Cap;
use crate::cooldowns::CooldownView;

/// The most bulkheads looked at before others get the processor.
const BATCH: usize = 256;

/// A bulkhead as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Its name.
    pub name: Arc<str>,
    /// What was decided about it.
    pub settings: Settings,
    /// How it stands.
    pub status: Status,
    /// Since when its totals count.
    pub counted_since: SystemTime,
    /// When its limit goes back, on the wall clock as it goes now.
    pub revert_time: Option<SystemTime>,
    /// Why it is in its mode; may be empty.
    pub mode_detail: Box<str>,
    /// It was deleted and goes with its last lease.
    pub deleting: bool,
    /// Stands for all that was decided about it; empty for one that would be made.
    pub etag: String,
}

impl View {
    /// One that is not there, as it would be.
    pub(super) fn unmade(name: &str, settings: Settings) -> Self {
        let bulkhead = Bulkhead::new(settings, FencingToken::default());
        Self {
            name: name.into(),
            settings: bulkhead.settings().clone(),
            status: bulkhead.status(),
            counted_since: SystemTime::now(),
            revert_time: None,
            mode_detail: Box::default(),
            deleting: false,
            etag: String::new(),
        }
    }
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
    /// An operator took it back.
    pub revoked: bool,
}

/// A waiter as operators see it.
#[derive(Debug)]
pub struct WaiterView {
    /// The bulkhead it waits for.
    pub bulkhead: Arc<str>,
    /// Its place in the queue.
    pub place: Place,
    /// How many permits it asks for.
    pub permits: u32,
    /// How urgent it is.
    pub priority: Priority,
    /// What it will run for.
    pub partition: Box<str>,
    /// Who waits.
    pub holder: Holder,
    /// Since when.
    pub queued_at: SystemTime,
    /// What is left of its wait.
    pub wait_left: Duration,
    /// Not eligible now.
    pub passed_over: bool,
}

/// The server as operators see it.
#[derive(Debug)]
pub struct ServerView {
    /// Grows with each start.
    pub epoch: u32,
    /// When it started.
    pub started: SystemTime,
    /// It is stopping.
    pub draining: bool,
    /// How long it stood still so far.
    pub stalled: Duration,
    /// Its caps, by the names of their settings.
    pub caps: Vec<Cap>,
}

impl Admission {
    /// A bulkhead as it stands now.
    pub fn bulkhead(&self, name: &str) -> Result<View, Refused> {
        let cell = self.find(name)?;
        Ok(self.look_at(&cell))
    }

    /// The bulkheads with names after `after`, by name, at most `most`; fewer only where there are no more.
    pub fn bulkheads(&self, after: Option<&str>, most: usize) -> Vec<View> {
        let (mut views, mut after) = (Vec::new(), after.map(Arc::<str>::from));
        loop {
            let wanted = most - views.len();
            let names = first(self.names(|name| after.as_deref().is_none_or(|after| name > after)), wanted);
            // Some may go meanwhile: others come in their place.
            views.extend(names.iter().filter_map(|name| self.bulkhead(name).ok()));
            if names.len() < wanted || views.len() == most {
                return views;
            }
            after = names.last().cloned();
        }
    }

    /// Whether a bulkhead of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.find_exact(name).is_some()
    }

    /// The names of all bulkheads, in no order.
    pub fn all_names(&self) -> Vec<Arc<str>> {
        self.names(|_| true)
    }

    /// Live leases by bulkhead and token, of one bulkhead or of all, from a place on, at most `most`.
    pub async fn leases(
        &self,
        only: Option<&str>,
        from: (&str, FencingToken),
        most: usize,
    ) -> Result<Vec<LeaseView>, Refused> {
        let (from_name, from_token) = from;
        self.visit_each(only, from_name, most, |name, state, now, most| {
            let from = if **name == *from_name { from_token } else { FencingToken::default() };
            let held = state.bulkhead.leases_from(from).take(most);
            held.map(|lease| LeaseView {
                bulkhead: name.clone(),
                token: lease.token,
                permits: lease.permits,
                partition: lease.partition.unwrap_or(name).into(),
                holder: lease.holder.clone(),
                granted_at: self.clock.wall(lease.granted_at),
                ttl_left: lease.end.since(now),
                revoked: lease.revoked,
            })
            .collect()
        })
        .await
    }

    /// Waiters by bulkhead and place, of one bulkhead or of all, after a place, at most `most`.
    pub async fn waiters(
        &self,
        only: Option<&str>,
        after: (&str, Option<Place>),
        most: usize,
    ) -> Result<Vec<WaiterView>, Refused> {
        let (after_name, after_place) = after;
        self.visit_each(only, after_name, most, |name, state, now, most| {
            let after = if **name == *after_name { after_place } else { None };
            let waiters = state.bulkhead.waiters_after(after, most);
            waiters
                .map(|waiter| WaiterView {
                    bulkhead: name.clone(),
                    place: waiter.place,
                    permits: waiter.permits,
                    priority: waiter.priority,
                    partition: waiter.partition.unwrap_or(name).into(),
                    holder: waiter.holder.clone(),
                    queued_at: self.clock.wall(waiter.since),
                    wait_left: waiter.end.since(now),
                    passed_over: waiter.passed_over,
                })
                .collect()
        })
        .await
    }

    /// The partitions that cool, ramp, or are remembered to have, with names after `after`, by name, at most `most`.
    pub fn cooldowns(&self, after: Option<&str>, most: usize) -> Vec<CooldownView> {
        self.cooldowns.list(self.clock.now(), after, most)
    }

    /// The latest changes with ids below `before`, newest first, of one bulkhead or of all, at most `most`.
    pub fn audit_events(&self, only: Option<&str>, before: Option<u64>, most: usize) -> Vec<AuditEvent> {
        self.audit.list(only, before, most)
    }

    /// The server itself.
    pub fn server(&self) -> ServerView {
        let mut caps = self.caps.list();
        caps.push(self.cooldowns.cap());
        ServerView {
            epoch: self.epoch,
            started: self.started,
            draining: self.is_draining(),
            stalled: self.clock.stalled(),
            caps,
        }
    }

    /// Collects from each cell, by name, until there are `most`; others get the processor in between.
    async fn visit_each<T>(
        &self,
        only: Option<&str>,
        from: &str,
        most: usize,
        list: impl Fn(&Arc<str>, &State, tidegate_core::Instant, usize) -> Vec<T>,
    ) -> Result<Vec<T>, Refused> {
        let mut names = match only {
            Some(only) => vec![self.find(only)?.name.clone()],
            None => self.names(|name| name >= from),
        };
        names.sort_unstable();
        let mut found = Vec::new();
        for (number, name) in names.iter().enumerate() {
            if number % BATCH == BATCH - 1 {
                tokio::task::yield_now().await;
            }
            let Some(cell) = self.find_exact(name) else { continue };
            let (mut state, now) = self.enter(&cell);
            let settled = state.bulkhead.advance(now);
            self.finish(&cell, &mut state, settled);
            found.extend(list(name, &state, now, most - found.len()));
            if found.len() == most {
                break;
            }
        }
        Ok(found)
    }

    fn names(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.cells.iter().map(|cell| cell.key().clone()).filter(|name| wanted(name)).collect()
    }

    pub(super) fn look_at(&self, cell: &Arc<Cell>) -> View {
        let (mut state, now) = self.enter(cell);
        let settled = state.bulkhead.advance(now);
        self.finish(cell, &mut state, settled);
        self.view(cell, &state)
    }

    /// A bulkhead as it stands under its lock.
    pub(super) fn view(&self, cell: &Cell, state: &State) -> View {
        let status = state.bulkhead.status();
        View {
            name: cell.name.clone(),
            settings: state.bulkhead.settings().clone(),
            revert_time: status.revert.map(|revert| self.clock.wall(revert.at)),
            status,
            counted_since: cell.counted_since,
            mode_detail: state.bulkhead.mode_detail().into(),
            deleting: state.leaving,
            etag: state.etag(cell),
        }
    }
}

/// The first `most` in order.
fn first(mut names: Vec<Arc<str>>, most: usize) -> Vec<Arc<str>> {
    if most < names.len() {
        names.select_nth_unstable(most);
        names.truncate(most);
    }
    names.sort_unstable();
    names
}
