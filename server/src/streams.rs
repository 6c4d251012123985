//! The renewal streams that are open, by number: whom to tell what they did not ask.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::mpsc;

/// How much may wait to be read. A stream that does not read learns the rest when it renews.
const BACKLOG: usize = 8;

/// What a renewal stream is told unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// An operator took back the lease with that id.
    Revoked(String),
    /// The server is stopping.
    Draining,
}

/// All open streams.
#[derive(Debug)]
pub(crate) struct Streams {
    last: AtomicU64,
    open: DashMap<u64, mpsc::Sender<Push>>,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { last: AtomicU64::new(0), open: DashMap::new() }
    }

    /// One more: its number, and what it is told.
    pub(crate) fn open(&self) -> (u64, mpsc::Receiver<Push>) {
        let (sender, pushes) = mpsc::channel(BACKLOG);
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.insert(number, sender);
        (number, pushes)
    }

    /// It ended.
    pub(crate) fn close(&self, number: u64) {
        self.open.remove(&number);
    }

    /// Tells a stream, if it is open and reads what it is told; never waits.
    pub(crate) fn push(&self, number: u64, push: Push) -> bool {
        self.open.get(&number).is_some_and(|stream| stream.try_send(push).is_ok())
    }

    /// Tells all of them.
    pub(crate) fn push_all(&self, push: &Push) {
        for stream in self.open.iter() {
            let _ = stream.try_send(push.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_does_not_read_is_told_so_much_and_then_left_alone() {
        let streams = Streams::new();
        let (number, mut pushes) = streams.open();
        assert!((0..BACKLOG).all(|_| streams.push(number, Push::Draining)));
        assert!(!streams.push(number, Push::Draining));
        assert_eq!(pushes.try_recv(), Ok(Push::Draining));
        assert!(streams.push(number, Push::Draining));
        streams.close(number);
        assert!(!streams.push(number, Push::Draining));
    }
}
