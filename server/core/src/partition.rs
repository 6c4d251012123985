//! What a bulkhead knows of each partition that has leases or waiters in it.

use std::collections::BTreeMap;

use slab::Slab;

use crate::decision::Effect;
use crate::ends::Ends;
use crate::memory::shrink_slab;
use crate::time::Instant;

/// The bulkhead's own name as a partition: what most requests run for. It is always there.
pub(crate) const OWN: u32 = 0;

/// A partition in this bulkhead.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    /// `None` is the bulkhead's own name.
    name: Option<Box<str>>,
    /// Permits of its leases.
    pub(crate) running: u32,
    /// Permits of those that are marked (R12).
    pub(crate) marked: u32,
    waiters: u32,
    /// When the cooldown of its waiters ends or ended; `None` as soon as it is calm, or nobody waits.
    pub(crate) cooldown: Option<Instant>,
}

/// All partitions with leases or waiters, by slot.
#[derive(Debug)]
pub(crate) struct Partitions {
    slots: Slab<Partition>,
    names: BTreeMap<Box<str>, u32>,
    /// When something changes for the waiters of a partition that cools or ramps.
    turns: Ends,
    /// What the shell must be told.
    news: Vec<Effect>,
}

impl Partitions {
    pub(crate) fn new() -> Self {
        let mut slots = Slab::new();
        slots.insert(Partition::default());
        Self { slots, names: BTreeMap::new(), turns: Ends::default(), news: Vec::new() }
    }

    pub(crate) fn find(&self, name: Option<&str>) -> Option<u32> {
        match name {
            None => Some(OWN),
            Some(name) => self.names.get(name).copied(),
        }
    }

    /// The slot of that partition, made if need be. Give it a lease or a waiter, or [`forget`](Self::forget) it.
    #[allow(clippy::cast_possible_truncation)] // at most one for each lease and each waiter
    pub(crate) fn enter(&mut self, name: Option<Box<str>>) -> u32 {
        let Some(name) = name else { return OWN };
        *self.names.entry(name).or_insert_with_key(|name| {
            self.slots.insert(Partition { name: Some(name.clone()), ..Partition::default() }) as u32
        })
    }

    pub(crate) fn get(&self, slot: u32) -> &Partition {
        &self.slots[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Partition {
        &mut self.slots[slot as usize]
    }

    pub(crate) fn name(&self, slot: u32) -> Option<&str> {
        self.get(slot).name.as_deref()
    }

    /// It has one waiter more.
    pub(crate) fn add_waiter(&mut self, slot: u32) {
        let partition = &mut self.slots[slot as usize];
        partition.waiters += 1;
        if partition.waiters == 1 {
            self.news.push(Effect::Waits(partition.name.clone()));
        }
    }

    /// It has one waiter less. Without any, it knows no cooldown.
    pub(crate) fn remove_waiter(&mut self, slot: u32) {
        let partition = &mut self.slots[slot as usize];
        partition.waiters -= 1;
        if partition.waiters == 0 {
            partition.cooldown = None;
            self.news.push(Effect::WaitsNoMore(partition.name.clone()));
            self.turns.set(slot, None);
        }
    }

    /// What the shell must be told since it was last asked.
    pub(crate) fn take_news(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.news)
    }

    /// Drops a partition that has neither leases nor waiters any more.
    pub(crate) fn forget(&mut self, slot: u32) {
        let Partition { running: 0, waiters: 0, .. } = self.get(slot) else { return };
        if slot != OWN
            && let Some(name) = self.slots.remove(slot as usize).name
        {
            self.names.remove(&name);
        }
    }

    /// When [`first_turn`](Self::first_turn) shall name it.
    pub(crate) fn set_turn(&mut self, slot: u32, at: Option<Instant>) {
        self.turns.set(slot, at);
    }

    /// The partition for which something changes first, and when.
    pub(crate) fn first_turn(&self) -> Option<(Instant, u32)> {
        self.turns.first()
    }

    /// Those that cool or ramp, as far as they were looked at.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn troubled(&self) -> Vec<u32> {
        self.slots.iter().filter(|(_, partition)| partition.cooldown.is_some()).map(|(slot, _)| slot as u32).collect()
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) -> Slab<Partition> {
        self.turns.shrink();
        if self.slots.len() > 1 {
            return shrink_slab(&mut self.slots);
        }
        // Only its own name is left, which moves.
        let own = self.slots.remove(OWN as usize);
        let shed = shrink_slab(&mut self.slots);
        self.slots.insert(own);
        shed
    }

    /// How many waiters it has.
    pub(crate) fn waiters(&self, slot: u32) -> u32 {
        self.get(slot).waiters
    }

    #[cfg(debug_assertions)]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Partition)> {
        self.slots.iter().map(|(slot, partition)| (slot as u32, partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_partitions_needed_is_given_back() {
        let mut partitions = Partitions::new();
        let slots: Vec<_> = (0..100_000).map(|number| partitions.enter(Some(number.to_string().into()))).collect();
        partitions.get_mut(OWN).running = 3;
        for slot in slots {
            partitions.forget(slot);
        }
        assert!(partitions.shrink().capacity() >= 100_000);
        assert!(partitions.slots.capacity() <= 4, "{}", partitions.slots.capacity());
        assert_eq!((partitions.get(OWN).running, partitions.find(None)), (3, Some(OWN)));
        assert_ne!(partitions.enter(Some("next".into())), OWN);
    }
}
