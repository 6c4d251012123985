//! Request ids: which call, lease or end each of them stands for (R8).

use std::collections::VecDeque;
use std::time::Duration;

use crate::decision::Release;
use crate::id::{FencingToken, RequestKey, RequestMap};
use crate::memory::{MOST_COPIED, MOST_TOUCHED, is_roomy};
use crate::time::Instant;

/// What a request id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A waiter, in that slot of the queue.
    Waiting(u32),
    /// A live lease.
    Live(FencingToken),
    /// A lease that ended, or a withdrawal: what a Release by this id answers from now on.
    Spent(Release),
}

/// The request ids of one bulkhead.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What each stands for, and the fingerprint of its request.
    seen: RequestMap<(Seen, u64)>,
    /// Spent ones in the order of their ends, and when to forget them.
    spent: VecDeque<(Instant, RequestKey)>,
}

impl Replay {
    /// What it stands for and its fingerprint.
    pub(crate) fn get(&self, key: RequestKey) -> Option<(Seen, u64)> {
        self.seen.get(&key).copied()
    }

    /// A request with that id was queued or granted.
    pub(crate) fn insert(&mut self, key: RequestKey, seen: Seen, fingerprint: u64) {
        self.seen.insert(key, (seen, fingerprint));
    }

    /// A waiter with that id was granted.
    pub(crate) fn grant(&mut self, key: RequestKey, token: FencingToken) {
        if let Some((seen, _)) = self.seen.get_mut(&key) {
            *seen = Seen::Live(token);
        }
    }

    /// Nothing came of it: the id is free again.
    pub(crate) fn free(&mut self, key: RequestKey) {
        self.seen.remove(&key);
    }

    /// An id that is not spent is so from now on, and remembered for `keep`. Answers how many others were forgotten early
    /// for want of room.
    pub(crate) fn spend(
        &mut self,
        now: Instant,
        key: RequestKey,
        answer: Release,
        keep: Duration,
        max_remembered: usize,
    ) -> u64 {
        self.seen.entry(key).or_insert((Seen::Spent(answer), 0)).0 = Seen::Spent(answer);
        self.spent.push_back((now + keep, key));
        let mut early = 0;
        while self.spent.len() > max_remembered {
            self.forget_oldest();
            early += 1;
        }
        early
    }

    /// Forgets those whose time is over, at most `most`.
    pub(crate) fn forget(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            match self.spent.front() {
                Some(&(at, _)) if at <= now => self.forget_oldest(),
                _ => return,
            }
        }
    }

    /// Whether the time of any is over.
    pub(crate) fn forgets(&self, now: Instant) -> bool {
        self.spent.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Gives back memory that is not needed any more.
    pub(crate) fn shrink(&mut self) {
        if self.seen.len() <= MOST_TOUCHED && is_roomy(self.seen.len(), self.seen.capacity()) {
            self.seen.shrink_to(2 * self.seen.len());
        }
        if self.spent.len() <= MOST_COPIED && is_roomy(self.spent.len(), self.spent.capacity()) {
            self.spent.shrink_to(2 * self.spent.len());
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.spent.pop_front() {
            self.seen.remove(&key);
        }
    }

    /// How many spent ids are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.spent.len()
    }

    /// How many ids stand for something else than their end.
    #[cfg(debug_assertions)]
    pub(crate) fn active(&self) -> usize {
        self.seen.len() - self.spent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_needed_is_given_back() {
        let mut replay = Replay::default();
        let keep = Duration::from_secs(10);
        for request in 0..100_000 {
            replay.spend(Instant::ORIGIN, RequestKey { identity: 0, request }, Release::Expired, keep, usize::MAX);
        }
        replay.shrink();
        assert!(replay.seen.capacity() >= 100_000, "all of it is needed");
        assert!(!replay.forgets(Instant::ORIGIN) && replay.forgets(Instant::ORIGIN + keep));
        replay.forget(Instant::ORIGIN + keep, usize::MAX);
        replay.shrink();
        assert!(replay.seen.capacity() <= 4_096 && replay.spent.capacity() <= 4_096, "{}", replay.seen.capacity());
    }

    #[test]
    fn a_spent_id_is_remembered_as_long_as_told_and_within_the_bound() {
        let mut replay = Replay::default();
        let key = |request| RequestKey { identity: 0, request };
        let keep = Duration::from_secs(10);
        let early: u64 =
            (1..=3).map(|request| replay.spend(Instant::ORIGIN, key(request), Release::Expired, keep, 2)).sum();
        assert_eq!(
            (early, replay.get(key(1)), replay.get(key(3))),
            (1, None, Some((Seen::Spent(Release::Expired), 0)))
        );
        replay.forget(Instant::ORIGIN + Duration::from_secs(9), 9);
        assert_eq!(replay.get(key(3)), Some((Seen::Spent(Release::Expired), 0)));
        replay.forget(Instant::ORIGIN + keep, 9);
        assert_eq!((replay.get(key(3)), replay.seen.len()), (None, 0));
    }
}
