//! Who ends when, with every end free to be moved or taken out.
//!
//! Ends mostly come in order: leases of one ttl, waits of one `max_wait`. So an end that is not before the latest one is
//! appended to a *run*, and taking it out leaves a gap there, which goes when the front reaches it or when there are more
//! gaps than ends. Whatever comes out of order stands in an indexed 4-ary heap beside it. The first is the earlier of two
//! firsts; in order everything is O(1), out of order O(log n).

use std::collections::VecDeque;

use crate::memory::{MOST_COPIED, is_roomy};
use crate::time::Instant;

const CHILDREN: usize = 4;
/// Gaps that the run may have beyond the number of its ends.
const SPARE: usize = 64;

/// The ends of those in the slots of a slab; each slot has at most one.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    run: VecDeque<(Instant, u32)>,
    /// The number of the run's first entry; entries are numbered on, around the end of u32 if need be.
    run_begin: u32,
    /// Entries of the run that are no gaps.
    in_run: usize,
    heap: Vec<(Instant, u32)>,
    /// Where a slot's end stands; stale for slots that have none.
    places: Vec<Place>,
}

/// Where an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere.
    Gone,
    /// That entry of the run.
    Run(u32),
    /// There in the heap.
    Heap(u32),
}

#[allow(clippy::cast_possible_truncation)] // slots are u32, and there are at most twice as many places
impl Ends {
    /// The earliest end and whose it is.
    pub(crate) fn first(&self) -> Option<(Instant, u32)> {
        match (self.run.front(), self.heap.first()) {
            (Some(run), Some(heap)) => Some(*if heap.0 < run.0 { heap } else { run }),
            (run, heap) => run.or(heap).copied(),
        }
    }

    /// Adds the end of a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, end: Instant) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, Place::Gone);
        }
        if self.run.back().is_none_or(|(latest, _)| *latest <= end) {
            self.places[slot as usize] = Place::Run(self.run_begin.wrapping_add(self.run.len() as u32));
            self.run.push_back((end, slot));
            self.in_run += 1;
        } else {
            let place = self.heap.len();
            self.heap.push((end, slot));
            self.rise(place);
        }
    }

    /// Gives the slot that end, or none, whatever it had.
    pub(crate) fn set(&mut self, slot: u32, end: Option<Instant>) {
        self.remove(slot);
        if let Some(end) = end {
            self.insert(slot, end);
        }
    }

    /// The end of a slot that has one.
    pub(crate) fn get(&self, slot: u32) -> Instant {
        match self.places[slot as usize] {
            Place::Run(number) => self.run[number.wrapping_sub(self.run_begin) as usize].0,
            Place::Heap(place) => self.heap[place as usize].0,
            Place::Gone => Instant::NEVER,
        }
    }

    /// Moves the end of a slot that has one.
    pub(crate) fn update(&mut self, slot: u32, end: Instant) {
        self.remove(slot);
        self.insert(slot, end);
    }

    /// Takes out the end of a slot, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize) else { return };
        match std::mem::replace(place, Place::Gone) {
            Place::Run(_) => {
                self.in_run -= 1;
                self.close_gaps();
            }
            Place::Heap(place) => {
                let place = place as usize;
                let (gone, _) = self.heap.swap_remove(place);
                match self.heap.get(place) {
                    Some(&(end, _)) if gone < end => self.sink(place),
                    Some(_) => self.rise(place),
                    None => {}
                }
            }
            Place::Gone => {}
        }
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) {
        if self.run.len() <= MOST_COPIED && is_roomy(self.run.len(), self.run.capacity()) {
            self.run.shrink_to(2 * self.run.len());
        }
        if self.heap.len() <= MOST_COPIED && is_roomy(self.heap.len(), self.heap.capacity()) {
            self.heap.shrink_to(2 * self.heap.len());
        }
        // Without an end there is no gap either.
        if self.first().is_none() && is_roomy(0, self.places.capacity()) {
            self.places = Vec::new();
        }
    }

    /// The run begins with an end, and has not many more gaps than ends.
    fn close_gaps(&mut self) {
        while let Some(&(_, slot)) = self.run.front()
            && self.places[slot as usize] != Place::Run(self.run_begin)
        {
            self.run.pop_front();
            self.run_begin = self.run_begin.wrapping_add(1);
        }
        if self.run.len() > 2 * self.in_run + SPARE {
            let (mut number, mut kept) = (self.run_begin, self.run_begin);
            self.run.retain(|&(_, slot)| {
                let place = &mut self.places[slot as usize];
                let is_end = *place == Place::Run(number);
                if is_end {
                    *place = Place::Run(kept);
                    kept = kept.wrapping_add(1);
                }
                number = number.wrapping_add(1);
                is_end
            });
        }
    }

    fn put(&mut self, place: usize, entry: (Instant, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = Place::Heap(place as u32);
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// Down to a leaf along the earliest children, then up again to its place: an entry that comes from the end of the
    /// heap nearly always belongs near the bottom, so it is not compared on the way down.
    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while let Some(child) = self.earliest_child(place) {
            self.put(place, self.heap[child]);
            place = child;
        }
        self.heap[place] = entry;
        self.rise(place);
    }

    fn earliest_child(&self, place: usize) -> Option<usize> {
        let first = place * CHILDREN + 1;
        if let Some(&[a, b, c, d]) = self.heap.get(first..first + CHILDREN) {
            let (left, left_end) = if b.0 < a.0 { (first + 1, b.0) } else { (first, a.0) };
            let (right, right_end) = if d.0 < c.0 { (first + 3, d.0) } else { (first + 2, c.0) };
            return Some(if right_end < left_end { right } else { left });
        }
        (first..self.heap.len()).min_by_key(|&child| self.heap[child].0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_burst_needed_is_given_back() {
        let mut ends = Ends::default();
        for slot in 0..100_000 {
            // Half of them out of order.
            ends.insert(slot, Instant::from_nanos(if slot % 2 == 0 { slot } else { 0 }.into()));
        }
        (1..100_000).for_each(|slot| ends.remove(slot));
        ends.shrink();
        assert_eq!((ends.get(0), ends.first()), (Instant::from_nanos(0), Some((Instant::from_nanos(0), 0))));
        ends.remove(0);
        ends.shrink();
        assert!(
            ends.run.capacity() + ends.heap.capacity() + ends.places.capacity() <= 4_096,
            "{}",
            ends.run.capacity()
        );
        // Slots that it does not know any more have no end.
        ends.remove(99_999);
        ends.set(99_999, None);
        assert_eq!(ends.first(), None);
        ends.insert(5, Instant::from_nanos(5));
        assert_eq!(ends.get(5), Instant::from_nanos(5));
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(
            ops in prop::collection::vec((0_u8..4, 0_u32..200, 0_u64..500, prop::bool::weighted(0.6)), 0..1500),
        ) {
            let mut ends = Ends { run_begin: u32::MAX - 30, ..Ends::default() };
            let mut model = std::collections::BTreeMap::new();
            for (number, (op, slot, end, in_order)) in (0..).zip(ops) {
                let end = if in_order { number } else { end };
                let at = Instant::from_nanos(end);
                match model.insert(slot, end) {
                    None => ends.insert(slot, at),
                    Some(_) if op > 1 => ends.update(slot, at),
                    Some(_) if op > 0 => {
                        ends.remove(slot);
                        model.remove(&slot);
                        ends.shrink();
                    }
                    Some(_) => {
                        ends.remove(slot);
                        model.remove(&slot);
                    }
                }
                prop_assert_eq!(ends.first().map(|(end, _)| end.as_nanos()), model.values().min().copied());
                prop_assert!(ends.run.len() <= 2 * ends.in_run + SPARE + 1);
                for (slot, end) in &model {
                    prop_assert_eq!(ends.get(*slot).as_nanos(), *end);
                }
            }
        }
    }
}
