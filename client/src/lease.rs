//! A lease as its holder keeps it: until when it may be trusted, and who is to be told when it no longer may.
//!
//! The permit reads it, the keeper's thread renews it. Which of the three states it is in follows from the time and never
//! waits for the keeper; only waking those that await the loss is the keeper's.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::deadline;

/// How far a lease may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The server has it in the count.
    Held,
    /// Renewals fail, but it has not ended yet: finish or stop soon, begin nothing.
    InDoubt,
    /// It has ended, or may have: its permits may be another's. Stop. It stays lost.
    Lost,
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No renewal was answered in time.
    Unrenewed,
    /// The server says that it expired.
    Expired,
    /// An operator revoked it.
    Revoked,
    /// The server says that it ended, or does not know it: it restarted without its state.
    Ended,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unrenewed => "no renewal was answered in time",
            Self::Expired => "it expired",
            Self::Revoked => "an operator revoked it",
            Self::Ended => "the server no longer knows it",
        })
    }
}

/// What was granted.
#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) lease_id: String,
    pub(crate) permits: u32,
    pub(crate) fencing_token: u64,
    pub(crate) fencing_floor: u64,
    pub(crate) ttl: Duration,
    /// How often to renew it; `None` is never.
    pub(crate) renew_interval: Option<Duration>,
    /// Until when it may be trusted unless renewed.
    pub(crate) deadline: Instant,
}

/// Without the id: it is as good as a password.
impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { permits, fencing_token, ttl, .. } = self;
        let mut text = f.debug_struct("Granted");
        text.field("permits", permits).field("fencing_token", fencing_token).field("ttl", ttl).finish_non_exhaustive()
    }
}

/// A lease of the server's, shared by its permit and the keeper.
#[derive(Debug)]
pub(crate) struct Lease {
    granted: Granted,
    fencing_floor: AtomicU64,
    trust: Mutex<Trust>,
    /// The permit is gone: nothing is to be renewed.
    released: AtomicBool,
    lost: Notify,
}

#[derive(Debug)]
struct Trust {
    deadline: Instant,
    /// Renewals sent since the last one that was answered.
    unanswered: u32,
    in_doubt: bool,
    loss: Option<Loss>,
}

impl Trust {
    /// The loss, if there is one by `now`; from then on it stays.
    fn settle(&mut self, now: Instant) -> Option<Loss> {
        if self.loss.is_none() && now >= self.deadline {
            self.loss = Some(Loss::Unrenewed);
        }
        self.loss
    }
}

impl Lease {
    pub(crate) fn new(granted: Granted) -> Self {
        let trust = Trust { deadline: granted.deadline, unanswered: 0, in_doubt: false, loss: None };
        Self {
            fencing_floor: AtomicU64::new(granted.fencing_floor),
            granted,
            trust: Mutex::new(trust),
            released: AtomicBool::new(false),
            lost: Notify::new(),
        }
    }

    pub(crate) fn granted(&self) -> &Granted {
        &self.granted
    }

    pub(crate) fn fencing_floor(&self) -> u64 {
        self.fencing_floor.load(Ordering::Relaxed)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.trust.lock().deadline
    }

    pub(crate) fn state(&self, now: Instant) -> LeaseState {
        let mut trust = self.trust.lock();
        match trust.settle(now) {
            Some(_) => LeaseState::Lost,
            None if trust.in_doubt => LeaseState::InDoubt,
            None => LeaseState::Held,
        }
    }

    /// Completes when it is lost. The keeper wakes it; nothing here depends on a timer of the application's.
    pub(crate) async fn lost(&self) -> Loss {
        loop {
            let lost = self.lost.notified();
            tokio::pin!(lost);
            lost.as_mut().enable();
            if let Some(loss) = self.trust.lock().loss {
                return loss;
            }
            lost.await;
        }
    }

    /// Its permit is gone.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// A renewal is sent; one before it that was never answered puts the lease in doubt.
    pub(crate) fn asked(&self) {
        let mut trust = self.trust.lock();
        trust.in_doubt |= trust.unanswered > 0;
        trust.unanswered += 1;
    }

    /// A renewal could not be sent, or its answer will not come.
    pub(crate) fn doubt(&self) {
        self.trust.lock().in_doubt = true;
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.trust.lock().in_doubt
    }

    /// The server renewed it; `sent` is when the batch was sent that the answer is for. A lease that is lost stays lost:
    /// somebody may have been told.
    pub(crate) fn renewed(&self, now: Instant, sent: Instant, ttl: Duration, fencing_floor: u64) {
        let mut trust = self.trust.lock();
        if trust.settle(now).is_none() {
            trust.deadline = trust.deadline.max(deadline::renewed(sent, ttl));
            (trust.unanswered, trust.in_doubt) = (0, false);
            self.fencing_floor.fetch_max(fencing_floor, Ordering::Relaxed);
        }
    }

    /// It is lost, and whoever awaits that is woken.
    pub(crate) fn lose(&self, loss: Loss) {
        self.trust.lock().loss.get_or_insert(loss);
        self.lost.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    pub(crate) fn lease(deadline: Instant) -> Lease {
        Lease::new(Granted {
            lease_id: "id".into(),
            permits: 1,
            fencing_token: 7,
            fencing_floor: 3,
            ttl: 10 * SECOND,
            renew_interval: Some(10 * SECOND / 3),
            deadline,
        })
    }

    #[test]
    fn the_state_follows_from_the_time_alone() {
        let start = crate::keeper::now();
        let lease = lease(start + SECOND);
        assert_eq!(lease.state(start + SECOND / 2), LeaseState::Held);
        lease.doubt();
        assert_eq!(lease.state(start + SECOND / 2), LeaseState::InDoubt);
        assert_eq!(lease.state(start + SECOND), LeaseState::Lost);
    }

    #[test]
    fn a_second_unanswered_renewal_puts_it_in_doubt_and_an_answer_ends_that() {
        let start = crate::keeper::now();
        let lease = lease(start + 9 * SECOND);
        lease.asked();
        assert_eq!(lease.state(start), LeaseState::Held);
        lease.asked();
        assert_eq!(lease.state(start), LeaseState::InDoubt);
        lease.renewed(start + SECOND, start, 10 * SECOND, 5);
        assert_eq!((lease.state(start + SECOND), lease.fencing_floor()), (LeaseState::Held, 5));
        assert_eq!(lease.deadline(), start + SECOND * 19 / 2);
    }

    #[test]
    fn an_answer_that_comes_too_late_brings_nothing_back() {
        let start = crate::keeper::now();
        let lease = lease(start + SECOND);
        lease.renewed(start + SECOND, start + SECOND / 2, 10 * SECOND, 5);
        assert_eq!(lease.state(start + SECOND), LeaseState::Lost);
        assert_eq!(lease.state(start), LeaseState::Lost, "it stays lost");
    }

    #[test]
    fn an_older_answer_never_shortens() {
        let start = crate::keeper::now();
        let lease = lease(start + 18 * SECOND);
        lease.renewed(start + 8 * SECOND, start, 10 * SECOND, 1);
        assert_eq!((lease.deadline(), lease.fencing_floor()), (start + 18 * SECOND, 3));
    }
}
