//! The sweep: every cell is visited about once a second, in bounded steps (R14).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Room;
use tokio::time::Instant;
use tracing::info;

use super::{Admission, Cell};

/// How long one round takes.
const ROUND: Duration = Duration::from_secs(1);
/// The most cells visited before others get the processor.
const BATCH: usize = 256;

impl Admission {
    /// Ends what is due where nobody comes by, takes back what is borrowed and not used, and drops idle dynamic
    /// bulkheads and old cooldowns, for ever.
    pub(super) async fn sweep(&self) {
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            self.cooldowns.sweep(self.clock.now());
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
        state.bulkhead.shrink();
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
        } else if now.since(*state.idle_since.get_or_insert(now)) >= self.names.load().idle_after {
            self.bury(cell, &mut state);
            return false;
        }
        let room = self.caps.take_back(state.room, used);
        state.room = room;
        state.bulkhead.set_room(room);
        false
    }
}
