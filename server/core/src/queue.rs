//! Who waits, in which order, and who of them is eligible (R2, R3).
//!
//! The order is `arrival + rank × aging_step`, fixed at arrival, ties by arrival. Within one rank that is plain FIFO, so
//! the line is three linked lists and its head is the earliest of three heads: nothing is sorted or scanned on the way of
//! an ordinary waiter. A waiter that asks for more than the present limit is not eligible: it steps *aside*. When it
//! becomes eligible again it has *returned* to its place between others, which a list cannot find quickly; those few
//! stand in a small sorted map beside the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slab::Slab;

use crate::decision::{Holder, Priority};
use crate::ends::Ends;
use crate::id::{RequestKey, WaiterId};
use crate::time::Instant;

const NONE: u32 = u32::MAX;

/// A place in the order: when it counts from, then the number of the arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(Instant, u64);

/// A call in the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) call: u64,
    pub(crate) order: Order,
    pub(crate) priority: Priority,
    pub(crate) permits: u32,
    pub(crate) ttl: Duration,
    pub(crate) request: Option<RequestKey>,
    pub(crate) partition: Option<Box<str>>,
    pub(crate) holder: Holder,
    stand: Stand,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// In the list of its rank, between two neighbours.
    Line { before: u32, behind: u32 },
    /// Back in the line after it stood aside.
    Returned,
    /// Passed over: it asks for more than the limit.
    Aside,
}

/// What a newcomer brings to the queue.
pub(crate) struct Newcomer {
    pub(crate) order: Order,
    pub(crate) end: Instant,
    pub(crate) priority: Priority,
    pub(crate) permits: u32,
    pub(crate) ttl: Duration,
    pub(crate) request: Option<RequestKey>,
    pub(crate) partition: Option<Box<str>>,
    pub(crate) holder: Holder,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// What is known of the waiters of one rank, wherever they stand.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    waiters: u32,
    /// From when the latest one counts.
    latest: Instant,
}

/// The waiters of one bulkhead.
#[derive(Debug)]
pub(crate) struct Queue {
    waiters: Slab<Waiter>,
    lines: [List; 3],
    ranks: [Rank; 3],
    returned: BTreeMap<Order, u32>,
    /// Waiters for more than one permit: those whom a moved limit may concern.
    by_permits: BTreeSet<(u32, u32)>,
    ends: Ends,
    /// Up to how many permits a request is eligible.
    limit: u32,
    arrivals: u64,
}

impl Queue {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            waiters: Slab::new(),
            lines: [List { head: NONE, tail: NONE }; 3],
            ranks: [Rank::default(); 3],
            returned: BTreeMap::new(),
            by_permits: BTreeSet::new(),
            ends: Ends::default(),
            limit,
            arrivals: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn get(&self, slot: u32) -> &Waiter {
        &self.waiters[slot as usize]
    }

    /// The slot of that call's place, if it still has one.
    pub(crate) fn find(&self, id: WaiterId) -> Option<u32> {
        self.waiters.get(id.slot as usize).filter(|waiter| waiter.call == id.call).map(|_| id.slot)
    }

    /// The id of the call that has the place in that slot.
    pub(crate) fn id(&self, slot: u32) -> WaiterId {
        WaiterId { slot, call: self.get(slot).call }
    }

    /// The order of a newcomer. A shorter `aging_step` than before never lets it overtake its own rank.
    pub(crate) fn order(&self, now: Instant, priority: Priority, aging_step: Duration) -> Order {
        let at = now + aging_step * priority as u32;
        let rank = self.ranks[priority as usize];
        Order(if rank.waiters == 0 { at } else { at.max(rank.latest) }, self.arrivals)
    }

    /// The eligible waiter whose turn is next.
    pub(crate) fn first(&self) -> Option<(u32, &Waiter)> {
        let mut first = self.returned.first_key_value().map(|(_, &slot)| (slot, self.get(slot)));
        for line in &self.lines {
            if line.head != NONE {
                let waiter = self.get(line.head);
                if first.is_none_or(|(_, first)| waiter.order < first.order) {
                    first = Some((line.head, waiter));
                }
            }
        }
        first
    }

    /// When the wait of the one in that slot ends.
    pub(crate) fn end(&self, slot: u32) -> Instant {
        self.ends.get(slot)
    }

    /// The waiter whose wait ends first, and when.
    pub(crate) fn first_end(&self) -> Option<(Instant, u32)> {
        self.ends.first()
    }

    /// A waiter that asks for more than that, if there is one.
    pub(crate) fn any_above(&self, permits: u32) -> Option<u32> {
        self.by_permits.range((permits + 1, 0)..).next().map(|&(_, slot)| slot)
    }

    pub(crate) fn push(&mut self, newcomer: Newcomer) -> WaiterId {
        let Newcomer { order, end, priority, permits, ttl, request, partition, holder } = newcomer;
        let call = self.next_number();
        let waiter = Waiter { call, order, priority, permits, ttl, request, partition, holder, stand: Stand::Aside };
        #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED waiters
        let slot = self.waiters.insert(waiter) as u32;
        self.ends.insert(slot, end);
        let rank = &mut self.ranks[priority as usize];
        *rank = Rank { waiters: rank.waiters + 1, latest: order.0 };
        if permits > 1 {
            self.by_permits.insert((permits, slot));
        }
        if permits <= self.limit {
            self.join_line(slot);
        }
        WaiterId { slot, call }
    }

    /// A repeat takes the place in that slot over; the wait ends at the earlier of both ends.
    pub(crate) fn take_over(&mut self, slot: u32, end: Instant) -> WaiterId {
        let call = self.next_number();
        self.waiters[slot as usize].call = call;
        self.ends.update(slot, end.min(self.ends.get(slot)));
        WaiterId { slot, call }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Waiter {
        self.step_aside(slot);
        self.ends.remove(slot);
        let waiter = self.waiters.remove(slot as usize);
        self.ranks[waiter.priority as usize].waiters -= 1;
        if waiter.permits > 1 {
            self.by_permits.remove(&(waiter.permits, slot));
        }
        waiter
    }

    /// The limit moved: those it now excludes step aside, those it now admits return.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        let (low, high) = (self.limit.min(limit), self.limit.max(limit));
        self.limit = limit;
        let concerned: Vec<u32> = self.by_permits.range((low + 1, 0)..(high + 1, 0)).map(|&(_, slot)| slot).collect();
        for slot in concerned {
            if self.get(slot).permits <= limit {
                self.returned.insert(self.get(slot).order, slot);
                self.waiters[slot as usize].stand = Stand::Returned;
            } else {
                self.step_aside(slot);
            }
        }
    }

    /// Each arrival and each repeat gets the next one.
    fn next_number(&mut self) -> u64 {
        let number = self.arrivals;
        self.arrivals += 1;
        number
    }

    fn join_line(&mut self, slot: u32) {
        let line = &mut self.lines[self.waiters[slot as usize].priority as usize];
        let before = std::mem::replace(&mut line.tail, slot);
        if before == NONE {
            line.head = slot;
        } else {
            self.stand_between(before, |_, behind| *behind = slot);
        }
        self.waiters[slot as usize].stand = Stand::Line { before, behind: NONE };
    }

    fn step_aside(&mut self, slot: u32) {
        let waiter = &mut self.waiters[slot as usize];
        match std::mem::replace(&mut waiter.stand, Stand::Aside) {
            Stand::Aside => {}
            Stand::Returned => {
                self.returned.remove(&waiter.order);
            }
            Stand::Line { before, behind } => {
                let line = &mut self.lines[waiter.priority as usize];
                if before == NONE {
                    line.head = behind;
                }
                if behind == NONE {
                    line.tail = before;
                }
                self.stand_between(before, |_, its_behind| *its_behind = behind);
                self.stand_between(behind, |its_before, _| *its_before = before);
            }
        }
    }

    /// Changes the neighbours of the one in that slot of a line; `NONE` has none.
    fn stand_between(&mut self, slot: u32, change: impl FnOnce(&mut u32, &mut u32)) {
        if let Some(Waiter { stand: Stand::Line { before, behind }, .. }) = self.waiters.get_mut(slot as usize) {
            change(before, behind);
        }
    }

    /// Panics where the parts contradict each other.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        let mut in_line = 0;
        for (rank, line) in self.lines.iter().enumerate() {
            let (mut at, mut last) = (line.head, NONE);
            while at != NONE {
                let waiter = self.get(at);
                let Stand::Line { before, behind } = waiter.stand else { panic!("in a list and not in line") };
                assert!(before == last && waiter.priority as usize == rank && waiter.permits <= self.limit);
                assert!(last == NONE || self.get(last).order < waiter.order, "a rank is not in order");
                (last, at, in_line) = (at, behind, in_line + 1);
            }
            assert_eq!(line.tail, last);
        }
        let aside = self.waiters.iter().filter(|(_, waiter)| waiter.stand == Stand::Aside);
        let aside = aside.inspect(|(_, waiter)| assert!(waiter.permits > self.limit)).count();
        assert!(self.returned.values().all(|&slot| self.get(slot).stand == Stand::Returned));
        assert_eq!(in_line + self.returned.len() + aside, self.len());
    }
}
