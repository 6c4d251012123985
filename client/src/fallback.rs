//! What happens to work while no answer of the server's arrives: a choice, bounded in time and never silent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::counters::Counters;

/// What happens to work while no answer of Tidegate's arrives, or only that it is stopping, is not the decider, or has
/// lost its store. A refusal never starts it: that is an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The work does not run: the error is passed on.
    #[default]
    Closed,
    /// Each bulkhead is a local one with this limit, for this client alone. Choose it so that all clients together stay
    /// bearable: about the server's limit divided by the number of clients.
    Local(u32),
    /// All work runs.
    Open,
}

/// A sign of silence that is older than this was of another silence.
const STALE: Duration = Duration::from_mins(1);

/// Whether a client falls back now, and since when it has heard nothing.
#[derive(Debug)]
pub(crate) struct Standing {
    kind: Fallback,
    /// The longest it may last at a stretch.
    longest: Duration,
    /// There is something in `trouble`: while all is well nobody locks it.
    is_troubled: AtomicBool,
    trouble: Mutex<Trouble>,
}

#[derive(Debug, Default)]
struct Trouble {
    silence: Option<Silence>,
    /// When work began to go on without the server.
    fell_back: Option<Instant>,
    /// Its time was over, and that was told.
    is_over: bool,
}

/// No answer, from the first sign of that to the latest.
#[derive(Debug)]
struct Silence {
    since: Instant,
    latest: Instant,
}

impl Standing {
    pub(crate) fn new(kind: Fallback, longest: Duration) -> Self {
        Self { kind, longest, is_troubled: AtomicBool::new(false), trouble: Mutex::default() }
    }

    /// A sign of silence: a call found no connection, or lost it, or was told that this server or this moment is the
    /// wrong one, or its answer is overdue `since` then. Answers since when there was nothing but such signs.
    pub(crate) fn silent(&self, since: Instant, now: Instant) -> Instant {
        let mut trouble = self.trouble.lock();
        self.is_troubled.store(true, Ordering::Relaxed);
        let is_stale = |silence: &Silence| now.saturating_duration_since(silence.latest) > STALE;
        if trouble.silence.as_ref().is_none_or(is_stale) {
            trouble.silence = Some(Silence { since, latest: now });
        }
        trouble.silence.as_mut().map_or(since, |silence| {
            silence.latest = now;
            silence.since
        })
    }

    /// A new connection has answered.
    pub(crate) fn heard(&self) {
        if self.is_troubled.load(Ordering::Relaxed) {
            self.trouble.lock().silence = None;
        }
    }

    /// Whether there was nothing but signs of silence for so long.
    pub(crate) fn is_silent_for(&self, grace: Duration, now: Instant) -> bool {
        let silence = &self.trouble.lock().silence;
        silence.as_ref().is_some_and(|silence| now.saturating_duration_since(silence.since) >= grace)
    }

    /// Whether it has begun, so that there is no use in being patient again.
    pub(crate) fn is_on(&self) -> bool {
        self.is_troubled.load(Ordering::Relaxed) && self.trouble.lock().fell_back.is_some()
    }

    /// No answer came. How work goes on; `Closed` when it must not, or no longer.
    pub(crate) fn begin(&self, now: Instant, counters: &Counters) -> Fallback {
        if self.kind == Fallback::Closed {
            return Fallback::Closed;
        }
        let mut trouble = self.trouble.lock();
        self.is_troubled.store(true, Ordering::Relaxed);
        let start = *trouble.fell_back.get_or_insert_with(|| {
            tracing::warn!(fallback = ?self.kind, longest = ?self.longest, "no answer of the server's: falling back");
            counters.count(|counts| &counts.fallbacks);
            now
        });
        if now.saturating_duration_since(start) < self.longest {
            counters.count(|counts| &counts.fallback_grants);
            self.kind
        } else {
            if !std::mem::replace(&mut trouble.is_over, true) {
                tracing::warn!(longest = ?self.longest, "the fallback has lasted as long as it may: work is refused");
            }
            Fallback::Closed
        }
    }

    /// Whether work goes on without the server now.
    pub(crate) fn carries(&self) -> bool {
        let trouble = self.trouble.lock();
        trouble.fell_back.is_some() && !trouble.is_over
    }

    /// An answer of the server's came.
    pub(crate) fn end(&self, now: Instant) {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return;
        }
        let mut trouble = self.trouble.lock();
        self.is_troubled.store(false, Ordering::Relaxed);
        if let Some(start) = std::mem::take(&mut *trouble).fell_back {
            tracing::info!(lasted = ?now.saturating_duration_since(start), "the server answers: no longer falling back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_once_is_bounded_and_ends_with_an_answer() {
        let (start, counters) = (crate::keeper::now(), Counters::default());
        let standing = Standing::new(Fallback::Local(2), Duration::from_mins(1));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(standing.begin(at(0), &counters), Fallback::Local(2));
        assert_eq!(standing.begin(at(59), &counters), Fallback::Local(2));
        assert!(standing.carries());
        assert_eq!(standing.begin(at(60), &counters), Fallback::Closed, "never silently for ever");
        assert_eq!(standing.begin(at(999), &counters), Fallback::Closed);
        assert!(standing.is_on() && !standing.carries());
        standing.end(at(1_000));
        assert!(!standing.is_on());
        assert_eq!(standing.begin(at(1_001), &counters), Fallback::Local(2));
        let counts = counters.read();
        assert_eq!((counts.fallbacks, counts.fallback_grants), (2, 3));
    }

    #[test]
    fn closed_never_begins() {
        let counters = Counters::default();
        let standing = Standing::new(Fallback::Closed, Duration::from_mins(1));
        assert_eq!(standing.begin(crate::keeper::now(), &counters), Fallback::Closed);
        assert_eq!((standing.is_on(), counters.read().fallbacks), (false, 0));
    }

    #[test]
    fn a_silence_is_one_until_an_answer_a_connection_or_a_minute_without_a_sign_of_it() {
        let start = crate::keeper::now();
        let standing = Standing::new(Fallback::Open, Duration::from_mins(1));
        let at = |seconds| start + Duration::from_secs(seconds);
        let grace = Duration::from_secs(3);
        let sign = |seconds| standing.silent(at(seconds), at(seconds));
        assert_eq!([0, 1, 2].map(sign), [at(0); 3]);
        assert!(!standing.is_silent_for(grace, at(2)) && standing.is_silent_for(grace, at(3)));
        standing.heard();
        assert!(!standing.is_silent_for(grace, at(3)));
        assert_eq!(sign(4), at(4));
        standing.end(at(5));
        assert_eq!(sign(6), at(6));
        // Signs that are a minute apart are of one silence, and no more than that.
        assert_eq!([66, 127].map(sign), [at(6), at(127)]);
        // An answer was overdue for longer.
        standing.end(at(127));
        assert_eq!(standing.silent(at(120), at(128)), at(120));
    }
}
