//! Who waits, in which order, and who of them is eligible (R2, R3).
//!
//! The order is `arrival + rank × aging_step`, fixed at arrival, ties by arrival. Within one rank that is plain FIFO, so
//! the line is three linked lists and its head is the earliest of three heads: nothing is sorted or scanned on the way of
//! an ordinary waiter. A waiter that asks for more than the present limit is not eligible: it steps *aside*. Waiters of a
//! partition that cools or ramps are *held*, in the order of their partition, and its first one is *offered* to the line
//! while the ramp has room for it. When one becomes eligible again it has *returned* to its place between others, which a
//! list cannot find quickly; those few stand in small sorted maps beside the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slab::Slab;

use crate::decision::{Place, Priority};
use crate::ends::Ends;
use crate::id::WaiterId;
use crate::lease::Claim;
use crate::memory::shrink_slab;
use crate::time::Instant;

const NONE: u32 = u32::MAX;

/// A place in the order: when it counts from, then the number of the arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(Instant, u64);

impl Order {
    const FIRST: Self = Self(Instant::ORIGIN, 0);
    const LAST: Self = Self(Instant::NEVER, u64::MAX);

    pub(crate) fn place(self) -> Place {
        Place { nanos: self.0.as_nanos(), arrival: self.1 }
    }
}

/// A call in the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) call: u64,
    pub(crate) order: Order,
    pub(crate) priority: Priority,
    pub(crate) claim: Claim,
    /// It keeps its place while its partition cools down, if its wait lasts longer.
    pub(crate) waits_for_cooldown: bool,
    /// The call's own deadline.
    pub(crate) deadline: Option<Instant>,
    pub(crate) since: Instant,
    stand: Stand,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// In the list of its rank, between two neighbours.
    Line { before: u32, behind: u32 },
    /// Back in the line after it stood aside.
    Returned,
    /// Passed over with its partition, or offered for it.
    Held,
    /// Passed over: it asks for more than the limit.
    Aside,
}

/// What a newcomer brings to the queue.
pub(crate) struct Newcomer {
    pub(crate) order: Order,
    pub(crate) end: Instant,
    pub(crate) priority: Priority,
    pub(crate) claim: Claim,
    pub(crate) waits_for_cooldown: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) since: Instant,
    /// Its partition cools or ramps.
    pub(crate) held: bool,
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
    /// By partition, then in order.
    held: BTreeMap<(u32, Order), u32>,
    /// The first held waiter of each partition that has room for it.
    offers: BTreeMap<Order, u32>,
    /// The offer of each partition that has one.
    offered: BTreeMap<u32, Order>,
    /// All that are not in line: whoever is last in order is there, or at the end of a line.
    elsewhere: BTreeMap<Order, u32>,
    /// Permits asked for by all of them.
    asked: u64,
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
            held: BTreeMap::new(),
            offers: BTreeMap::new(),
            offered: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            asked: 0,
            by_permits: BTreeSet::new(),
            ends: Ends::default(),
            limit,
            arrivals: 0,
        }
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) -> Slab<Waiter> {
        self.ends.shrink();
        shrink_slab(&mut self.waiters)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many are held, with their partitions.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Permits asked for by all of them.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
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
        let others = [self.returned.first_key_value(), self.offers.first_key_value()].into_iter().flatten();
        let mut first = others.min().map(|(_, &slot)| (slot, self.get(slot)));
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

    /// The last in order, eligible or not.
    pub(crate) fn last(&self) -> Option<u32> {
        let tails = self.lines.iter().map(|line| line.tail).filter(|&tail| tail != NONE);
        tails.chain(self.elsewhere.last_key_value().map(|(_, &slot)| slot)).max_by_key(|&slot| self.get(slot).order)
    }

    /// The first `most` waiters that come after a place, in order, wherever they stand. Looks at every waiter.
    pub(crate) fn after(&self, place: Option<Place>, most: usize) -> Vec<u32> {
        let after = place.map(|Place { nanos, arrival }| Order(Instant::from_nanos(nanos), arrival));
        #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED waiters
        let all = self.waiters.iter().map(|(slot, waiter)| (waiter.order, slot as u32));
        let mut wanted: Vec<_> = all.filter(|(order, _)| after.is_none_or(|after| *order > after)).collect();
        if most < wanted.len() {
            wanted.select_nth_unstable(most);
            wanted.truncate(most);
        }
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Whether the one in that slot is not eligible now.
    pub(crate) fn is_passed_over(&self, slot: u32) -> bool {
        let waiter = self.get(slot);
        match waiter.stand {
            Stand::Line { .. } | Stand::Returned => false,
            Stand::Held => !self.offers.contains_key(&waiter.order),
            Stand::Aside => true,
        }
    }

    /// The first of a partition that is held.
    pub(crate) fn first_held(&self, partition: u32) -> Option<(u32, &Waiter)> {
        let mut held = self.held.range((partition, Order::FIRST)..);
        held.next().filter(|((of, _), _)| *of == partition).map(|(_, &slot)| (slot, self.get(slot)))
    }

    /// All waiters of a partition; looks at every waiter unless it is held.
    pub(crate) fn of_partition(&self, partition: u32, is_held: bool) -> Vec<u32> {
        let of = |slot: &u32| self.get(*slot).claim.partition == partition;
        if is_held {
            let held = self.held.range((partition, Order::FIRST)..=(partition, Order::LAST)).map(|(_, &slot)| slot);
            let aside = self.by_permits.range((self.limit + 1, 0)..).map(|&(_, slot)| slot).filter(of);
            held.chain(aside).collect()
        } else {
            #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED waiters
            let all = self.waiters.iter().map(|(slot, _)| slot as u32);
            all.filter(of).collect()
        }
    }

    /// Holds the waiter in that slot with its partition, unless it stands aside anyway.
    pub(crate) fn hold(&mut self, slot: u32) {
        if !matches!(self.get(slot).stand, Stand::Aside | Stand::Held) {
            self.leave_place(slot);
            self.join(slot, Stand::Held);
        }
    }

    /// Offers the first held waiter of a partition to the line, or none of it.
    pub(crate) fn offer(&mut self, partition: u32, has_room: bool) {
        if let Some(order) = self.offered.remove(&partition) {
            self.offers.remove(&order);
        }
        if has_room && let Some((slot, first)) = self.first_held(partition) {
            let order = first.order;
            self.offers.insert(order, slot);
            self.offered.insert(partition, order);
        }
    }

    /// The partition neither cools nor ramps any more: its waiters return.
    pub(crate) fn calm(&mut self, partition: u32) {
        self.offer(partition, false);
        while let Some((slot, _)) = self.first_held(partition) {
            self.leave_place(slot);
            self.join(slot, Stand::Returned);
        }
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
        let Newcomer { order, end, priority, claim, waits_for_cooldown, deadline, since, held } = newcomer;
        let call = self.next_number();
        let permits = claim.permits;
        self.asked += u64::from(permits);
        let waiter = Waiter { call, order, priority, claim, waits_for_cooldown, deadline, since, stand: Stand::Aside };
        #[allow(clippy::cast_possible_truncation)] // at most MAX_QUEUED waiters
        let slot = self.waiters.insert(waiter) as u32;
        self.ends.insert(slot, end);
        let rank = &mut self.ranks[priority as usize];
        *rank = Rank { waiters: rank.waiters + 1, latest: order.0 };
        if permits > 1 {
            self.by_permits.insert((permits, slot));
        }
        if permits > self.limit {
            self.join(slot, Stand::Aside);
        } else if held {
            self.join(slot, Stand::Held);
        } else {
            self.join_line(slot);
        }
        WaiterId { slot, call }
    }

    /// A repeat takes the place in that slot over; the wait ends at the earlier of both ends.
    pub(crate) fn take_over(&mut self, slot: u32, end: Instant, deadline: Option<Instant>) -> WaiterId {
        let call = self.next_number();
        let waiter = &mut self.waiters[slot as usize];
        waiter.call = call;
        waiter.deadline = deadline;
        self.ends.update(slot, end.min(self.ends.get(slot)));
        WaiterId { slot, call }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Waiter {
        self.leave_place(slot);
        self.ends.remove(slot);
        let waiter = self.waiters.remove(slot as usize);
        self.ranks[waiter.priority as usize].waiters -= 1;
        let permits = waiter.claim.permits;
        self.asked -= u64::from(permits);
        if permits > 1 {
            self.by_permits.remove(&(permits, slot));
        }
        waiter
    }

    /// The limit moved: those it now excludes step aside, those it now admits return, or are held with their partition.
    pub(crate) fn set_limit(&mut self, limit: u32, is_held: impl Fn(u32) -> bool) {
        let (low, high) = (self.limit.min(limit), self.limit.max(limit));
        self.limit = limit;
        let concerned: Vec<u32> = self.by_permits.range((low + 1, 0)..(high + 1, 0)).map(|&(_, slot)| slot).collect();
        for slot in concerned {
            self.leave_place(slot);
            let Claim { permits, partition, .. } = self.get(slot).claim;
            let stand = match permits <= limit {
                true if is_held(partition) => Stand::Held,
                true => Stand::Returned,
                false => Stand::Aside,
            };
            self.join(slot, stand);
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

    /// A waiter that has no place takes one that is not in line.
    fn join(&mut self, slot: u32, stand: Stand) {
        let waiter = &mut self.waiters[slot as usize];
        waiter.stand = stand;
        let (order, partition) = (waiter.order, waiter.claim.partition);
        self.elsewhere.insert(order, slot);
        match stand {
            Stand::Returned => {
                self.returned.insert(order, slot);
            }
            Stand::Held => {
                self.held.insert((partition, order), slot);
            }
            Stand::Aside | Stand::Line { .. } => {}
        }
    }

    fn leave_place(&mut self, slot: u32) {
        let Waiter { order, priority, stand, .. } = self.waiters[slot as usize];
        let partition = self.get(slot).claim.partition;
        match stand {
            Stand::Aside => {}
            Stand::Returned => {
                self.returned.remove(&order);
            }
            Stand::Held => {
                self.held.remove(&(partition, order));
                if self.offers.remove(&order).is_some() {
                    self.offered.remove(&partition);
                }
            }
            Stand::Line { before, behind } => {
                let line = &mut self.lines[priority as usize];
                if before == NONE {
                    line.head = behind;
                }
                if behind == NONE {
                    line.tail = before;
                }
                self.stand_between(before, |_, its_behind| *its_behind = behind);
                self.stand_between(behind, |its_before, _| *its_before = before);
                return;
            }
        }
        self.elsewhere.remove(&order);
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
                assert!(before == last && waiter.priority as usize == rank && waiter.claim.permits <= self.limit);
                assert!(last == NONE || self.get(last).order < waiter.order, "a rank is not in order");
                (last, at, in_line) = (at, behind, in_line + 1);
            }
            assert_eq!(line.tail, last);
        }
        let mut elsewhere = 0;
        for (slot, waiter) in &self.waiters {
            let slot = u32::try_from(slot).unwrap_or(NONE);
            let (order, Claim { permits, partition, .. }) = (waiter.order, &waiter.claim);
            let (returned, held) = (self.returned.get(&order), self.held.get(&(*partition, order)));
            let stands = match waiter.stand {
                Stand::Line { .. } => continue,
                Stand::Aside => (*permits > self.limit, returned.is_none(), held.is_none()),
                Stand::Returned => (*permits <= self.limit, returned == Some(&slot), held.is_none()),
                Stand::Held => (*permits <= self.limit, returned.is_none(), held == Some(&slot)),
            };
            assert_eq!(stands, (true, true, true), "a waiter stands in two places");
            assert_eq!(self.elsewhere.get(&order), Some(&slot));
            elsewhere += 1;
        }
        assert_eq!((in_line + elsewhere, elsewhere), (self.len(), self.elsewhere.len()));
        assert!(self.offers.values().all(|&slot| self.get(slot).stand == Stand::Held));
        assert_eq!(self.offers.len(), self.offered.len());
        assert_eq!(self.asked, self.waiters.iter().map(|(_, waiter)| u64::from(waiter.claim.permits)).sum::<u64>());
    }
}
