//! Who ends when: an indexed 4-ary min-heap, so that an end can be moved or taken out wherever it stands.
//!
//! Four children share a cache line, and the common case of the project, an end later than all others, costs one
//! comparison.

use crate::time::Instant;

const CHILDREN: usize = 4;

/// The ends of those in the slots of a slab; each slot has at most one.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    heap: Vec<(Instant, u32)>,
    /// Where in `heap` a slot stands; stale for slots that have no end.
    places: Vec<u32>,
}

impl Ends {
    /// The earliest end and whose it is.
    pub(crate) fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Adds the end of a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, end: Instant) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, 0);
        }
        let place = self.heap.len();
        self.heap.push((end, slot));
        self.rise(place);
    }

    /// The end of a slot that has one.
    pub(crate) fn get(&self, slot: u32) -> Instant {
        self.heap[self.places[slot as usize] as usize].0
    }

    /// Moves the end of a slot that has one.
    pub(crate) fn update(&mut self, slot: u32, end: Instant) {
        let place = self.places[slot as usize] as usize;
        let later = self.heap[place].0 < end;
        self.heap[place].0 = end;
        self.settle(place, later);
    }

    /// Takes out the end of a slot that has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let place = self.places[slot as usize] as usize;
        let (gone, _) = self.heap.swap_remove(place);
        if let Some(&(end, _)) = self.heap.get(place) {
            self.settle(place, gone < end);
        }
    }

    /// The entry there is now later than the one before, or earlier.
    fn settle(&mut self, place: usize, later: bool) {
        if later { self.sink(place) } else { self.rise(place) }
    }

    #[allow(clippy::cast_possible_truncation)] // slots are u32, and there are no more places than slots
    fn put(&mut self, place: usize, entry: (Instant, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
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

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(ops in prop::collection::vec((0_u8..3, 0_u32..20, 0_u64..50), 0..200)) {
            let mut ends = Ends::default();
            let mut model = std::collections::BTreeMap::new();
            for (op, slot, end) in ops {
                match (op, model.contains_key(&slot)) {
                    (_, false) => ends.insert(slot, Instant::from_nanos(end)),
                    (0, true) => ends.update(slot, Instant::from_nanos(end)),
                    (_, true) => ends.remove(slot),
                }
                if op == 0 || !model.contains_key(&slot) { model.insert(slot, end); } else { model.remove(&slot); }
                prop_assert_eq!(ends.first().map(|(end, _)| end.as_nanos()), model.values().min().copied());
                for (slot, end) in &model {
                    prop_assert_eq!(ends.get(*slot).as_nanos(), *end);
                }
            }
        }
    }
}
