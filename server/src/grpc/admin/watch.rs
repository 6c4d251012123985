//! `WatchBulkheads`: how bulkheads stand, told again as they change.
//!
//! A watcher looks for itself: at each interval it compares every bulkhead with what it last told. So changes cost nothing
//! where nobody watches, and a caller that does not read is not looked for.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_proto::v1;
use tokio::time::{Interval, MissedTickBehavior};

use crate::admission::{Admission, View};

/// The most bulkheads in one message, told or gone, and the most looked at before others get the processor.
const BATCH: usize = 500;

/// What one caller was told.
pub(super) struct Watch {
    admission: Arc<Admission>,
    /// Only these; empty means all.
    names: Vec<Arc<str>>,
    interval: Interval,
    hasher: RandomState,
    /// What was last told of each, as a hash.
    told: HashMap<Arc<str>, u64>,
    /// Gone since the last round and not yet told, last first.
    gone: Vec<String>,
    /// Still to be looked at in this round, last first.
    round: Vec<Arc<str>>,
    /// It was not told yet that it knows all there is.
    owes: bool,
}

impl Watch {
    pub(super) fn new(admission: Arc<Admission>, names: Vec<String>, interval: Duration) -> Self {
        let mut interval = tokio::time::interval(interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let names = names.into_iter().map(Into::into).collect();
        Self {
            admission,
            names,
            interval,
            hasher: RandomState::new(),
            told: HashMap::new(),
            gone: Vec::new(),
            round: Vec::new(),
            owes: true,
        }
    }

    /// The next message, when there is something to tell. The first round tells all there is, be it nothing.
    pub(super) async fn next(&mut self) -> v1::WatchBulkheadsResponse {
        loop {
            let mut message = v1::WatchBulkheadsResponse::default();
            if self.round.is_empty() && self.gone.is_empty() {
                self.interval.tick().await;
                self.begin_round();
            }
            if self.gone.is_empty() {
                self.look(&mut message);
            } else {
                let rest = self.gone.len().saturating_sub(BATCH);
                message.deleted = self.gone.split_off(rest);
                message.deleted.reverse();
            }
            message.complete = self.round.is_empty() && self.gone.is_empty();
            if !message.bulkheads.is_empty() || !message.deleted.is_empty() || (message.complete && self.owes) {
                self.owes = !message.complete;
                return message;
            }
            tokio::task::yield_now().await;
        }
    }

    fn begin_round(&mut self) {
        self.round = if self.names.is_empty() { self.admission.all_names() } else { self.names.clone() };
        self.round.sort_unstable_by(|a, b| b.cmp(a));
        let there: HashSet<&Arc<str>> = self.round.iter().collect();
        self.told.retain(|name, _| {
            let stays = there.contains(name) && self.admission.has(name);
            if !stays {
                self.gone.push(name.to_string());
            }
            stays
        });
        self.gone.sort_unstable_by(|a, b| b.cmp(a));
    }

    fn look(&mut self, message: &mut v1::WatchBulkheadsResponse) {
        for _ in 0..BATCH {
            let Some(name) = self.round.pop() else { break };
            let Ok(view) = self.admission.bulkhead(&name) else { continue };
            // When the limit goes back is told as an instant; on the wall clock it trembles.
            let hash = self.hasher.hash_one(&View { revert_time: None, ..view.clone() });
            if self.told.insert(name, hash) != Some(hash) {
                message.bulkheads.push(view.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Draft, Settings};

    use super::*;
    use crate::admission::Change;

    #[tokio::test(start_paused = true)]
    async fn a_deletion_is_told_to_the_end() {
        let admission = Arc::new(Admission::default());
        for name in ["a", "b"] {
            let settings = Settings::try_from(Draft { limit: Some(1), ..Draft::default() }).unwrap();
            admission.create(&Change::default(), name, settings).unwrap();
        }
        let mut watch = Watch::new(admission.clone(), Vec::new(), Duration::from_secs(1));
        let first = watch.next().await;
        assert_eq!((first.bulkheads.len(), first.complete), (2, true));
        admission.delete(&Change::default(), "b", false).unwrap();
        let gone = watch.next().await;
        assert_eq!((gone.deleted, gone.complete), (vec!["b".into()], false));
        let rest = watch.next().await;
        assert!(rest.bulkheads.is_empty() && rest.complete, "nothing else has changed, and that is told");
        // And no more than that.
        assert!(tokio::time::timeout(Duration::from_mins(1), watch.next()).await.is_err());
    }
}
