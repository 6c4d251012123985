//! When collections give memory back. They keep what they once needed, and after a burst that would be for ever.
//!
//! Whoever shrinks does it under the lock of a bulkhead, so only so much is moved at once that nobody waits long for it.

use slab::Slab;

use crate::lease::Lease;
use crate::partition::Partition;
use crate::queue::Waiter;

/// The most entries that are moved as they lie: a few MiB, about a millisecond.
pub(crate) const MOST_COPIED: usize = 262_144;
/// The most entries that are looked at one by one, or hashed again: about a millisecond, too.
pub(crate) const MOST_TOUCHED: usize = 32_768;
/// Less than this is not worth it. Where invariants are checked, tests shall meet what follows.
const SPARE: usize = if cfg!(debug_assertions) { 8 } else { 1024 };

/// Whether a collection with that many entries has far more room than it will use soon.
pub(crate) fn is_roomy(entries: usize, room: usize) -> bool {
    room > 4 * entries + SPARE
}

/// What was given up as a whole. To drop it takes as long as it was large: do it where nobody waits for it.
#[derive(Debug)]
#[must_use]
#[expect(dead_code, reason = "it is there to be dropped")]
pub struct Shed {
    pub(crate) leases: Slab<Lease>,
    pub(crate) waiters: Slab<Waiter>,
    pub(crate) partitions: Slab<Partition>,
}

/// The same for a slab, down to its last occupied slot: keys stay as they are. One that was large gives its memory back when
/// it is empty, since every slot of another would have to be looked at; it is answered.
pub(crate) fn shrink_slab<T>(slab: &mut Slab<T>) -> Slab<T> {
    if !is_roomy(slab.len(), slab.capacity()) {
        return Slab::new();
    }
    if slab.is_empty() {
        return std::mem::take(slab);
    }
    if slab.capacity() <= MOST_TOUCHED {
        slab.shrink_to_fit();
    }
    Slab::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_needed_is_given_back_and_keys_stay_as_they_are() {
        let mut slab: Slab<usize> = (0..100_000).map(|number| (number, number)).collect();
        assert_eq!(shrink_slab(&mut slab).capacity(), 0);
        assert!(slab.capacity() >= 100_000, "all of it is needed");
        slab.retain(|key, _| key == 40_000);
        assert_eq!(shrink_slab(&mut slab).capacity(), 0);
        assert!(slab.capacity() >= 100_000, "it would take too long now");
        assert_eq!(slab.get(40_000), Some(&40_000));
        slab.remove(40_000);
        assert!(shrink_slab(&mut slab).capacity() >= 100_000);
        assert_eq!(slab.capacity(), 0);
        // A small one as far as it can.
        slab = (0..10_000).map(|number| (number, number)).collect();
        slab.retain(|key, _| key == 10 || key == 20);
        assert_eq!(shrink_slab(&mut slab).capacity(), 0);
        assert!(slab.capacity() < 100, "{}", slab.capacity());
        assert_eq!((slab.get(10), slab.get(20)), (Some(&10), Some(&20)));
        assert!(slab.insert(7) < 20);
    }
}
