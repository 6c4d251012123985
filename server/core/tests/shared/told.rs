//! What a shell knows of a bulkhead's waiters from its answers alone: which calls wait, and which partitions it was told
//! have waiters. Both must agree after every call, or a cooldown would miss someone (R10).

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Effect, WaiterId};

type Partition = Option<Box<str>>;

#[derive(Default)]
pub struct Told {
    waiters: BTreeMap<WaiterId, Partition>,
    partitions: BTreeSet<Partition>,
}

impl Told {
    /// A call was queued.
    pub fn queued(&mut self, id: WaiterId, partition: Partition) {
        assert!(self.waiters.insert(id, partition).is_none(), "{id:?} waits twice");
    }

    /// A call left by itself.
    pub fn left(&mut self, id: WaiterId) {
        self.waiters.remove(&id);
    }

    /// All that a call did to others: the last of what it did.
    pub fn effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Granted(id, _) | Effect::Refused(id, _) => {
                    assert!(self.waiters.remove(id).is_some(), "{effect:?}, and it does not wait");
                }
                Effect::Waits(partition) => {
                    assert!(self.partitions.insert(partition.clone()), "{effect:?} twice");
                }
                Effect::Reverted { .. } => {}
                Effect::WaitsNoMore(partition) => {
                    assert!(self.partitions.remove(partition), "{effect:?}, and it did not");
                }
            }
        }
        let have_waiters: BTreeSet<_> = self.waiters.values().cloned().collect();
        assert_eq!(self.partitions, have_waiters, "told, then true: which partitions have waiters");
    }

    /// A report of that partition must visit this bulkhead.
    pub fn has(&self, partition: &Partition) -> bool {
        self.partitions.contains(partition)
    }
}
