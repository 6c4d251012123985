//! The sweep: every cell is visited about once a second, in bounded steps (R14).

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tidegate_core::Room;
use tokio::time::Instant;
use tracing::info;

use super::{Admission, Cell};

/// How long one round takes.
const ROUND: Duration = Duration::from_secs(1);
/// The most cells visited before others get the processor.
const BATCH: usize = 256;
/// So much memory is large to the allocator: freed, it has it look whether anything is to be given back.
const PUFF: usize = 1 << 20;
/// Less room in a map than this is not worth it.
const SPARE: usize = 4096;

/// Gives back what a map needed for many more entries than it has.
pub(crate) fn shrink<K: Eq + Hash + Ord, V>(map: &DashMap<K, V>) {
    if map.capacity() > 4 * map.len() + SPARE {
        map.shrink_to_fit();
    }
}

impl Admission {
    /// Ends what is due where nobody comes by, takes back what is borrowed and not used, and drops idle dynamic
    /// bulkheads and old cooldowns, for ever.
    pub(super) async fn sweep(&self) {
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // What was freed a second ago goes back to the system only when something large is freed, and not by itself.
            while tokio::time::timeout(ROUND / 4, rounds.tick()).await.is_err() {
                drop(std::hint::black_box(Vec::<u8>::with_capacity(PUFF)));
            }
            self.cooldowns.sweep(self.clock.now());
            shrink(&self.cells);
            shrink(&self.incarnations);
            let began = Instant::now();
            let mut cells: Vec<Arc<Cell>> = self.incarnations.iter().map(|cell| cell.clone()).collect();
            // Again where more is due, until all have their turn again.
            while !cells.is_empty() && began.elapsed() < ROUND {
                let mut due = Vec::new();
                for batch in cells.chunks(BATCH) {
                    due.extend(batch.iter().filter(|cell| self.visit(cell)).cloned());
                    tokio::task::yield_now().await;
                }
                cells = due;
            }
        }
    }

    /// Answers whether more is due there.
    fn visit(&self, cell: &Arc<Cell>) -> bool {
        let (mut state, now) = self.enter(cell);
        if state.dead {
            return false;
        }
        let step = state.bulkhead.advance(now);
        self.finish(cell, &mut state, step);
        if state.dead {
            return false;
        }
        if state.bulkhead.is_due(now) {
            return true;
        }
        let shed = state.bulkhead.shrink();
        if state.parked.is_empty() {
            state.parked.shrink_to_fit();
        }
        let expired = state.bulkhead.status().totals.expired;
        let lost = expired - state.told_expired;
        if lost > 0
            && let Some(held_back) = self.lost.pass()
        {
            // What no line told is told by the next one.
            state.told_expired = expired;
            info!(bulkhead = %cell.name, lost, held_back, "leases expired: their holders did not renew them");
        }
        let used = state.bulkhead.occupied();
        if used != (Room { leases: 0, waiters: 0, remembered: 0 }) || state.kept {
            state.idle_since = None;
        } else if now.since(*state.idle_since.get_or_insert(now)) >= self.names.load().settings.idle_after {
            self.bury(cell, &mut state);
        }
        if !state.dead {
            let room = self.caps.take_back(state.room, used);
            state.room = room;
            state.bulkhead.set_room(room);
        }
        // In this order: nobody waits for the cell while it is dropped.
        drop(state);
        drop(shed);
        false
    }
}
