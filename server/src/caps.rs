//! What is capped for the whole server, lent to cells in blocks (R14).
//!
//! A hot cell borrows rarely and a quiet one holds little: a block is half of what its cell uses, at least one.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::Room;

/// The largest block.
const LARGEST: usize = 1024;
/// What one call can need of memory at once: it settles 256 ends of leases with their request ids, and may spend one id
/// more that nobody has seen.
const MEMORY_A_CALL: usize = 600;

/// Something that is capped, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The setting.
    pub name: &'static str,
    /// How many are taken or lent.
    pub taken: usize,
    /// How many there may be.
    pub most: usize,
}

/// What nobody has borrowed.
#[derive(Debug)]
pub(crate) struct Caps {
    most_bulkheads: usize,
    most: Room,
    bulkheads: AtomicUsize,
    leases: AtomicUsize,
    waiters: AtomicUsize,
    remembered: AtomicUsize,
}

impl Caps {
    pub(crate) fn new(bulkheads: usize, most: Room) -> Self {
        Self {
            most_bulkheads: bulkheads,
            most,
            bulkheads: AtomicUsize::new(bulkheads),
            leases: AtomicUsize::new(most.leases),
            waiters: AtomicUsize::new(most.waiters),
            remembered: AtomicUsize::new(most.remembered),
        }
    }

    /// What is taken of each.
    pub(crate) fn list(&self) -> Vec<Cap> {
        let cap = |name, most: usize, free: &AtomicUsize| Cap {
            name,
            taken: most.saturating_sub(free.load(Ordering::Relaxed)),
            most,
        };
        vec![
            cap("max_bulkheads", self.most_bulkheads, &self.bulkheads),
            cap("max_leases", self.most.leases, &self.leases),
            cap("max_waiters", self.most.waiters, &self.waiters),
            cap("max_remembered", self.most.remembered, &self.remembered),
        ]
    }

    /// Room for one bulkhead more, if there is any.
    pub(crate) fn take_bulkhead(&self) -> bool {
        self.bulkheads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1)).is_ok()
    }

    /// Whether there is room for one bulkhead more.
    pub(crate) fn has_bulkhead(&self) -> bool {
        self.bulkheads.load(Ordering::Relaxed) > 0
    }

    /// One bulkhead less.
    pub(crate) fn give_bulkhead(&self) {
        self.bulkheads.fetch_add(1, Ordering::Relaxed);
    }

    /// Lends what a cell needs for its next call, as far as there is any. `None`: it has enough.
    pub(crate) fn lend(&self, room: Room, used: Room) -> Option<Room> {
        let leases = lend(&self.leases, room.leases, used.leases, 1);
        let waiters = lend(&self.waiters, room.waiters, used.waiters, 1);
        let memories = used.leases.min(MEMORY_A_CALL) + 1;
        let remembered = lend(&self.remembered, room.remembered, used.remembered, memories);
        (leases + waiters + remembered > 0).then_some(Room {
            leases: room.leases + leases,
            waiters: room.waiters + waiters,
            remembered: room.remembered + remembered,
        })
    }

    /// Takes back what a cell has borrowed and does not use.
    pub(crate) fn take_back(&self, room: Room, used: Room) -> Room {
        Room {
            leases: take_back(&self.leases, room.leases, used.leases),
            waiters: take_back(&self.waiters, room.waiters, used.waiters),
            remembered: take_back(&self.remembered, room.remembered, used.remembered),
        }
    }
}

fn lend(free: &AtomicUsize, has: usize, used: usize, needed: usize) -> usize {
    if used + needed <= has {
        return 0;
    }
    let wanted = (used / 2).clamp(needed, LARGEST.max(needed));
    let mut lent = 0;
    let _ = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
        lent = wanted.min(free);
        Some(free - lent)
    });
    lent
}

fn take_back(free: &AtomicUsize, has: usize, used: usize) -> usize {
    // Half as much again stays, so that a cell does not borrow and give back in turns.
    let keeps = has.min(used + used / 2);
    free.fetch_add(has - keeps, Ordering::Relaxed);
    keeps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(leases: usize, waiters: usize, remembered: usize) -> Room {
        Room { leases, waiters, remembered }
    }

    #[test]
    fn what_is_lent_and_taken_back_adds_up() {
        let caps = Caps::new(1, room(10, 5, 5));
        assert!(caps.take_bulkhead() && !caps.take_bulkhead());
        caps.give_bulkhead();
        assert!(caps.take_bulkhead());
        let mut cell = room(0, 0, 0);
        let mut leases = 0;
        loop {
            cell = caps.lend(cell, room(leases, 0, 0)).unwrap_or(cell);
            if leases == cell.leases {
                break;
            }
            leases += 1;
        }
        assert_eq!((leases, cell.leases), (10, 10));
        assert_eq!(caps.lend(room(0, 9, 0), room(0, 0, 0)), None);
        let cell = caps.take_back(cell, room(2, 0, 0));
        assert_eq!((cell.leases, caps.leases.load(Ordering::Relaxed)), (3, 7));
    }
}
