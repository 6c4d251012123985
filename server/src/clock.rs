//! The server's one clock, which notices when the server itself stood still (R6).
//!
//! A beat stamps the clock every 25 ms, on the runtime that reads the sockets. Every reading compares with the stamp, so
//! whichever call comes first after a stop finds the gap, before it decides anything. Gaps add up; cells apply what they
//! have not seen yet. Built on tokio's pausable clock: in tests time is moved by sleeping, since an `advance` is a gap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tidegate_core::{Instant, Stall};
use tracing::warn;

/// How often the clock is stamped.
const BEAT: Duration = Duration::from_millis(25);
/// A gap between stamps longer than this means that the server stood still.
const LONGEST_BEAT: Duration = Duration::from_millis(100);

/// Reads the time, and knows of the times when nobody could have read it.
#[derive(Debug)]
pub struct Clock {
    origin: tokio::time::Instant,
    stamp: AtomicU64,
    /// Nanoseconds of all gaps: what [`Clock::stall`] will tell in full.
    stalled: AtomicU64,
    stall: Mutex<Stall>,
}

impl Clock {
    /// A clock whose origin is now. Needs [`beat`](Self::beat) to run from now on.
    pub fn start() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
            stamp: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            stall: Mutex::default(),
        }
    }

    /// Now. Finds a gap that has just ended.
    pub fn now(&self) -> Instant {
        let now = self.read();
        if now.since(self.stamped()) > LONGEST_BEAT {
            self.find_gap(now);
        }
        now
    }

    /// All gaps so far, added up; cheap.
    pub fn stalled(&self) -> Duration {
        Duration::from_nanos(self.stalled.load(Ordering::Acquire))
    }

    /// All gaps so far and when the latest of them ended.
    pub fn stall(&self) -> Stall {
        *self.stall.lock()
    }

    /// Stamps the clock for ever.
    pub async fn beat(&self) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let now = self.now();
            self.stamp.fetch_max(now.as_nanos(), Ordering::AcqRel);
        }
    }

    /// That instant on tokio's clock, to sleep until it.
    pub fn tokio(&self, at: Instant) -> tokio::time::Instant {
        // Further away than tokio can count is as good as a year.
        let away = at.since(Instant::ORIGIN).min(Duration::from_hours(24 * 365));
        self.origin + away
    }

    /// That instant on the wall clock as it goes now, for people to read.
    pub fn wall(&self, at: Instant) -> SystemTime {
        let (wall, now) = (SystemTime::now(), self.read());
        wall.checked_sub(now.since(at))
            .and_then(|wall| wall.checked_add(at.since(now)))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn read(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }

    fn stamped(&self) -> Instant {
        Instant::from_nanos(self.stamp.load(Ordering::Acquire))
    }

    #[cold]
    fn find_gap(&self, now: Instant) {
        let mut stall = self.stall.lock();
        // Another call may have found it meanwhile: it counts once.
        let gap = now.since(self.stamped());
        if gap > LONGEST_BEAT {
            let total = stall.total + gap;
            *stall = Stall { total, resumed: now };
            // The total is published before the stamp: whoever sees no gap any more sees the total.
            self.stalled.store((Instant::ORIGIN + total).as_nanos(), Ordering::Release);
            self.stamp.fetch_max(now.as_nanos(), Ordering::AcqRel);
            warn!(?gap, ?total, "the server stood still; lease ends moved by the gap");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_jump_counts_once_and_a_sleep_does_not() {
        let clock = std::sync::Arc::new(Clock::start());
        let beating = clock.clone();
        tokio::spawn(async move { beating.beat().await });
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(clock.stalled(), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        let (now, again) = (clock.now(), clock.now());
        assert_eq!(now, again);
        let Stall { total, resumed } = clock.stall();
        assert_eq!((total, resumed), (clock.stalled(), now));
        assert!((Duration::from_secs(3)..Duration::from_millis(3026)).contains(&total), "{total:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(clock.stalled(), total);
    }
}
