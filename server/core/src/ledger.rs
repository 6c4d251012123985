//! What became of each fencing token: live in some slot, how it ended, or forgotten (R7).
//!
//! Tokens are counted up one by one, so the record is a ring indexed by token: a look-up, a grant and an end touch
//! memory that lies side by side, also with millions remembered. A lease that outlives all its neighbours would keep the
//! ring long; such stragglers move to a small map.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::id::FencingToken;
use crate::memory::{MOST_COPIED, is_roomy};
use crate::time::Instant;

/// How long an ended lease is remembered.
pub(crate) const REMEMBERED: Duration = Duration::from_mins(1);
/// How many tokens the ring may hold beyond twice those it still needs.
const SPARE: usize = 1024;
/// How many tokens one call looks at for the floor, which may lag.
const FLOOR_STEPS: usize = 256;

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its lease is live, in that slot.
    Live(u32),
    /// Its lease was released.
    Released,
    /// Its lease expired.
    Expired,
    /// An operator had revoked its lease, and then it ended.
    Revoked,
    /// Never granted as far as anybody was told, or ended too long ago.
    Forgotten,
}

/// The fate of every token of one bulkhead.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The token of `ring[0]`.
    first: u64,
    ring: VecDeque<Fate>,
    /// How many in `ring` are not forgotten.
    kept: usize,
    /// Those below `first` that are not forgotten.
    stragglers: BTreeMap<u64, Fate>,
    /// Ended leases in the order of their ends, and when to forget them.
    ended: VecDeque<(Instant, FencingToken)>,
    /// No token below it is live.
    floor: u64,
}

impl Ledger {
    /// An empty ledger; the first token granted will be the one after `after`.
    pub(crate) fn new(after: FencingToken) -> Self {
        let first = after.next().as_u64();
        Self {
            first,
            ring: VecDeque::new(),
            kept: 0,
            stragglers: BTreeMap::new(),
            ended: VecDeque::new(),
            floor: first,
        }
    }

    /// Takes the next token, for the lease in that slot.
    pub(crate) fn grant(&mut self, slot: u32) -> FencingToken {
        let token = self.first + self.ring.len() as u64;
        self.ring.push_back(Fate::Live(slot));
        self.kept += 1;
        // Two out for one in: the ring shrinks to its bound, whatever it was before.
        for _ in 0..2 {
            if self.is_long() {
                self.retire_first();
            }
        }
        FencingToken::from_u64(token)
    }

    /// The ring holds more than it should.
    fn is_long(&self) -> bool {
        self.ring.len() > 2 * self.kept + SPARE
    }

    fn retire_first(&mut self) {
        let Some(fate) = self.ring.pop_front() else { return };
        if fate != Fate::Forgotten {
            self.stragglers.insert(self.first, fate);
            self.kept -= 1;
        }
        self.first += 1;
    }

    /// How many ended leases are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.ended.len()
    }

    /// The token granted last, or the one the ledger began after.
    pub(crate) fn last(&self) -> FencingToken {
        FencingToken::from_u64(self.first + self.ring.len() as u64 - 1)
    }

    /// What became of it.
    pub(crate) fn fate(&self, token: FencingToken) -> Fate {
        let token = token.as_u64();
        match token.checked_sub(self.first) {
            Some(index) => usize::try_from(index).ok().and_then(|index| self.ring.get(index)),
            None => self.stragglers.get(&token),
        }
        .copied()
        .unwrap_or(Fate::Forgotten)
    }

    fn set(&mut self, token: FencingToken, fate: Fate) {
        let token = token.as_u64();
        let Some(index) = token.checked_sub(self.first) else {
            match fate {
                Fate::Forgotten => self.stragglers.remove(&token),
                fate => self.stragglers.insert(token, fate),
            };
            return;
        };
        #[allow(clippy::cast_possible_truncation)] // the ring is in memory
        let Some(entry) = self.ring.get_mut(index as usize) else { return };
        *entry = fate;
        if fate == Fate::Forgotten {
            self.kept -= 1;
            while self.ring.front() == Some(&Fate::Forgotten) {
                self.retire_first();
            }
        }
    }

    /// A live lease ended; it is remembered for a while. Answers how many older ones were forgotten early for want of
    /// room.
    pub(crate) fn end(&mut self, now: Instant, token: FencingToken, fate: Fate, max_remembered: usize) -> u64 {
        self.set(token, fate);
        self.ended.push_back((now + REMEMBERED, token));
        let mut early = 0;
        while self.ended.len() > max_remembered {
            self.forget_oldest();
            early += 1;
        }
        early
    }

    /// A live lease counts as never granted.
    pub(crate) fn erase(&mut self, token: FencingToken) {
        self.set(token, Fate::Forgotten);
    }

    /// Forgets those whose time is over, at most `most`, and moves stragglers out of the ring, at most as many.
    pub(crate) fn forget(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            match self.ended.front() {
                Some(&(at, _)) if at <= now => self.forget_oldest(),
                _ => break,
            }
        }
        for _ in 0..most {
            if !self.is_long() {
                break;
            }
            self.retire_first();
        }
    }

    /// Whether there is more to forget.
    pub(crate) fn forgets(&self, now: Instant) -> bool {
        self.is_long() || self.ended.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) {
        if self.ring.len() <= MOST_COPIED && is_roomy(self.ring.len(), self.ring.capacity()) {
            self.ring.shrink_to(2 * self.ring.len());
        }
        if self.ended.len() <= MOST_COPIED && is_roomy(self.ended.len(), self.ended.capacity()) {
            self.ended.shrink_to(2 * self.ended.len());
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, token)) = self.ended.pop_front() {
            self.set(token, Fate::Forgotten);
        }
    }

    /// The lowest token that may still be live, or the next one: may lag, never leads.
    pub(crate) fn floor(&mut self) -> FencingToken {
        let next = self.first + self.ring.len() as u64;
        for _ in 0..FLOOR_STEPS {
            if self.floor < self.first {
                self.floor = self.stragglers.range(self.floor..).next().map_or(self.first, |(&token, _)| token);
            }
            let live = matches!(self.fate(FencingToken::from_u64(self.floor)), Fate::Live(_));
            if live || self.floor >= next {
                break;
            }
            self.floor += 1;
        }
        FencingToken::from_u64(self.floor)
    }

    /// The live tokens from `from` on with their slots, in grant order.
    pub(crate) fn live_from(&self, from: FencingToken) -> impl Iterator<Item = (FencingToken, u32)> {
        let from = from.as_u64();
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.ring.len());
        let stragglers = self.stragglers.range(from..).map(|(&token, &fate)| (token, fate));
        let ring = self.ring.range(skip..).copied().zip(self.first + skip as u64..).map(|(fate, token)| (token, fate));
        stragglers.chain(ring).filter_map(|(token, fate)| match fate {
            Fate::Live(slot) => Some((FencingToken::from_u64(token), slot)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 1_000_000;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_outlives_a_million_others_keeps_neither_memory_nor_its_fate() {
        let mut ledger = Ledger::new(FencingToken::from_u64(7));
        let old = ledger.grant(0);
        for second in 0..10_000 {
            let token = ledger.grant(1);
            ledger.end(at(second), token, Fate::Released, MANY);
            ledger.forget(at(second), usize::MAX);
            assert_eq!(ledger.fate(old), Fate::Live(0));
        }
        assert!(ledger.ring.len() <= 2 * 61 + SPARE + 1, "{}", ledger.ring.len());
        assert_eq!((old.as_u64(), ledger.floor()), (8, old));
        assert_eq!(ledger.live_from(FencingToken::default()).collect::<Vec<_>>(), [(old, 0)]);
        ledger.end(at(10_000), old, Fate::Expired, MANY);
        assert_eq!(ledger.fate(old), Fate::Expired);
        ledger.forget(at(10_060), usize::MAX);
        assert_eq!((ledger.fate(old), ledger.kept, ledger.stragglers.len()), (Fate::Forgotten, 0, 0));
    }

    #[test]
    fn what_a_burst_needed_is_given_back() {
        let mut ledger = Ledger::new(FencingToken::default());
        for _ in 0..100_000 {
            let token = ledger.grant(0);
            ledger.end(at(0), token, Fate::Released, MANY);
        }
        ledger.shrink();
        assert!(ledger.ring.capacity() >= 100_000, "all of it is needed");
        assert!(!ledger.forgets(at(59)) && ledger.forgets(at(60)));
        // One of them outlives the others.
        let old = ledger.grant(0);
        for _ in 0..100_000 {
            let token = ledger.grant(0);
            ledger.end(at(0), token, Fate::Released, MANY);
        }
        ledger.forget(at(60), usize::MAX);
        assert!(!ledger.forgets(at(60)));
        assert_eq!((ledger.fate(old), ledger.floor()), (Fate::Live(0), old));
        ledger.shrink();
        assert!(ledger.ring.capacity() <= 4 * SPARE && ledger.ended.capacity() <= 4 * SPARE, "{ledger:?}");
    }

    #[test]
    fn an_ended_lease_is_remembered_for_a_minute_and_not_longer() {
        let mut ledger = Ledger::new(FencingToken::default());
        let token = ledger.grant(0);
        ledger.end(at(0), token, Fate::Released, MANY);
        ledger.forget(at(59), usize::MAX);
        assert_eq!(ledger.fate(token), Fate::Released);
        ledger.forget(at(60), usize::MAX);
        assert_eq!(ledger.fate(token), Fate::Forgotten);
    }

    #[test]
    fn want_of_room_forgets_the_oldest_first_and_counts_it() {
        let mut ledger = Ledger::new(FencingToken::default());
        let tokens: Vec<_> = (0..3).map(|slot| ledger.grant(slot)).collect();
        let early: u64 = tokens.iter().map(|&token| ledger.end(at(0), token, Fate::Released, 2)).sum();
        assert_eq!(early, 1);
        assert_eq!(
            tokens.iter().map(|&token| ledger.fate(token)).collect::<Vec<_>>(),
            [Fate::Forgotten, Fate::Released, Fate::Released]
        );
    }

    #[test]
    fn the_floor_never_leads_and_catches_up() {
        let mut ledger = Ledger::new(FencingToken::default());
        let tokens: Vec<_> = (0..1000).map(|slot| ledger.grant(slot)).collect();
        assert_eq!(ledger.floor(), tokens[0]);
        for &token in &tokens[..999] {
            ledger.end(at(0), token, Fate::Released, MANY);
            assert!(ledger.floor() <= tokens[999]);
        }
        for _ in 0..4 {
            ledger.floor();
        }
        assert_eq!(ledger.floor(), tokens[999]);
    }
}
