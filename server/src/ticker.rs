//! Wakes the cells where somebody waits for a moment, and nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::Instant;
use tokio::sync::Notify;

use crate::admission::{Admission, Cell};

/// The most cells advanced before others get the processor.
const BATCH: usize = 64;

/// When which cell wants to be advanced; each has at most one alarm.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    /// Incarnations make the keys of equal instants differ.
    alarms: Mutex<BTreeMap<(Instant, u32), Arc<Cell>>>,
    earlier: Notify,
}

impl Ticker {
    /// Moves the alarm of a cell to `at`.
    pub(crate) fn set(&self, cell: &Arc<Cell>, old: Option<Instant>, at: Instant) {
        let mut alarms = self.alarms.lock();
        if let Some(old) = old {
            alarms.remove(&(old, cell.incarnation));
        }
        alarms.insert((at, cell.incarnation), cell.clone());
        let is_first = alarms.first_key_value().is_some_and(|(&first, _)| first == (at, cell.incarnation));
        drop(alarms);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Takes the alarm of a cell away.
    pub(crate) fn clear(&self, cell: &Cell, at: Instant) {
        self.alarms.lock().remove(&(at, cell.incarnation));
    }

    /// Advances cells as their alarms come, for ever. Sleeps until the earliest.
    pub(crate) async fn run(&self, admission: &Admission) {
        loop {
            let earlier = self.earlier.notified();
            let first = self.alarms.lock().first_key_value().map(|(&(at, _), _)| at);
            match first {
                None => earlier.await,
                Some(at) => {
                    let at = admission.clock().tokio(at);
                    // Either way there may be something due, or something earlier to sleep for.
                    let _ = tokio::time::timeout_at(at, earlier).await;
                }
            }
            let now = admission.clock().now();
            for _ in 0..BATCH {
                let Some(cell) = self.take_due(now) else { break };
                admission.advance(&cell);
            }
            tokio::task::yield_now().await;
        }
    }

    fn take_due(&self, now: Instant) -> Option<Arc<Cell>> {
        let mut alarms = self.alarms.lock();
        let first = alarms.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
