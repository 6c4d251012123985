//! The live leases of a bulkhead and when they end (R6).
//!
//! Lease ends stand still while the server does. They are kept on a clock of their own, which runs behind the server's
//! by all the gaps so far, so forgiving a gap is one addition however many leases there are.

use std::time::Duration;

use slab::Slab;

use crate::decision::Holder;
use crate::ends::Ends;
use crate::id::{FencingToken, RequestKey};
use crate::memory::shrink_slab;
use crate::time::{Instant, Stall};

/// After a stall no lease falls due for this long, or for the gap if that is shorter: renewals that were in the sockets
/// are read first.
const MOST_QUIET: Duration = Duration::from_millis(500);

/// What is asked for, waits and then runs.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) permits: u32,
    pub(crate) ttl: Duration,
    pub(crate) request: Option<RequestKey>,
    /// Its partition's slot.
    pub(crate) partition: u32,
    pub(crate) holder: Holder,
}

/// A grant that has not ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) token: FencingToken,
    pub(crate) granted_at: Instant,
    pub(crate) claim: Claim,
    /// Somebody was told of it: it can no longer count as never granted.
    pub(crate) told: bool,
    /// In SHADOW: the rule would have granted it, so it fills the rule's `running`.
    pub(crate) marked: bool,
    /// An operator took it back: it is not renewed any more.
    pub(crate) revoked: bool,
    /// The shell's number for the stream that last renewed it.
    pub(crate) stream: Option<u64>,
}

impl Lease {
    /// The permits by which it fills the rule's `running` in SHADOW.
    pub(crate) fn counted_by_rule(&self) -> u32 {
        if self.marked { self.claim.permits } else { 0 }
    }

    /// When it was granted, once for each of its permits.
    fn granted(&self) -> u128 {
        u128::from(self.granted_at.as_nanos()) * u128::from(self.claim.permits)
    }
}

/// All live leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    slots: Slab<Lease>,
    /// On the leases' own clock.
    ends: Ends,
    running: u32,
    marked: u32,
    /// The sum of when each of the permits was granted.
    granted: u128,
    /// How far the leases' clock runs behind.
    forgiven: Duration,
    quiet_until: Instant,
}

impl Leases {
    /// The permits of all of them.
    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// The permits of those that the rule granted, or would have granted.
    pub(crate) fn marked(&self) -> u32 {
        self.marked
    }

    /// For how long they have run by now, on the average of permits.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        let granted = self.granted.checked_div(u128::from(self.running));
        granted.and_then(|at| u64::try_from(at).ok()).map_or(Duration::ZERO, |at| now.since(Instant::from_nanos(at)))
    }

    pub(crate) fn get(&self, slot: u32) -> &Lease {
        &self.slots[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Lease {
        &mut self.slots[slot as usize]
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot that the next lease will be in.
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CEILING leases
    pub(crate) fn vacant(&self) -> u32 {
        self.slots.vacant_key() as u32
    }

    pub(crate) fn insert(&mut self, now: Instant, lease: Lease) {
        let slot = self.vacant();
        self.running += lease.claim.permits;
        self.marked += lease.counted_by_rule();
        self.granted += lease.granted();
        self.ends.insert(slot, now + lease.claim.ttl - self.forgiven);
        self.slots.insert(lease);
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Lease {
        self.ends.remove(slot);
        let lease = self.slots.remove(slot as usize);
        self.running -= lease.claim.permits;
        self.marked -= lease.counted_by_rule();
        self.granted -= lease.granted();
        lease
    }

    /// Starts its ttl anew, as asked on that stream.
    pub(crate) fn renew(&mut self, now: Instant, slot: u32, stream: Option<u64>) {
        let lease = &mut self.slots[slot as usize];
        lease.stream = stream.or(lease.stream);
        self.ends.update(slot, now + self.slots[slot as usize].claim.ttl - self.forgiven);
    }

    /// Its end has come.
    pub(crate) fn is_due(&self, now: Instant, slot: u32) -> bool {
        now >= self.quiet_until && self.ends.get(slot) <= now - self.forgiven
    }

    /// One whose end has come.
    pub(crate) fn first_due(&self, now: Instant) -> Option<u32> {
        self.ends.first().map(|(_, slot)| slot).filter(|&slot| self.is_due(now, slot))
    }

    /// When the next one falls due.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| (end + self.forgiven).max(self.quiet_until))
    }

    /// Moves all ends by what is new in `stall`, and nothing else.
    pub(crate) fn forgive(&mut self, stall: Stall) {
        let gap = stall.total.saturating_sub(self.forgiven);
        self.forgiven = stall.total;
        self.quiet_until = self.quiet_until.max(stall.resumed + gap.min(MOST_QUIET));
    }

    /// All gaps forgiven so far.
    pub(crate) fn forgiven(&self) -> Duration {
        self.forgiven
    }

    /// When the lease in that slot ends.
    pub(crate) fn end(&self, slot: u32) -> Instant {
        self.ends.get(slot) + self.forgiven
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) -> Slab<Lease> {
        self.ends.shrink();
        shrink_slab(&mut self.slots)
    }

    /// All of them with their slots.
    #[cfg(debug_assertions)]
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CEILING leases
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Lease)> {
        self.slots.iter().map(|(slot, lease)| (slot as u32, lease))
    }
}
