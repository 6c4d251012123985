//! Histories made by hand, to show what each rule passes and what it finds. Times are in milliseconds.

use std::time::Duration;

use super::{At, Call, End, Grant, History, Move, Release, Renewal, Report, Rule, What, Window};
use crate::v1::{ReleaseState, RenewalState};

const TTL: Duration = Duration::from_secs(2);

pub(super) fn at(millis: u64) -> At {
    Duration::from_millis(millis)
}

pub(super) fn window(from: u64, to: u64) -> Window {
    Window { from: at(from), to: at(to) }
}

/// A call for one permit, granted as soon as it was received.
pub(super) fn granted(token: u64, sent: u64, answered: u64) -> Call {
    granted_after(token, sent, answered, 0)
}

/// A call that was granted after a wait.
pub(super) fn granted_after(token: u64, sent: u64, answered: u64, waited: u64) -> Call {
    let grant = Grant { token, permits: 1, ttl: TTL, waited: at(waited), replayed: false };
    Call {
        bulkhead: 0,
        permits: 1,
        partition: None,
        rank: 1,
        max_wait: None,
        timeout: None,
        waits_for_cooldown: false,
        request_id: None,
        is_faulty: false,
        window: window(sent, answered),
        end: End::Granted(grant),
    }
}

/// The same for more permits.
pub(super) fn heavy(permits: u32, mut call: Call) -> Call {
    call.permits = permits;
    if let End::Granted(grant) = &mut call.end {
        grant.permits = permits;
    }
    call
}

pub(super) fn refused(reason: &str, sent: u64, answered: u64) -> Call {
    Call { end: End::Refused(reason.into()), ..granted(0, sent, answered) }
}

/// One bulkhead with a limit of 1 and waits of 1 s.
pub(super) struct Made {
    pub(super) history: History,
}

impl Default for Made {
    fn default() -> Self {
        let rule = Rule {
            name: "db".into(),
            limit: 1,
            ceiling: 9,
            max_queued: 9,
            max_wait: at(1000),
            lease_ttl: TTL,
            aging_step: at(200),
            displace: false,
        };
        Self { history: History { rules: vec![rule], ramp: at(100), ..Default::default() } }
    }
}

impl Made {
    pub(super) fn call(mut self, call: Call) -> Self {
        self.history.calls.push(call);
        self
    }

    pub(super) fn release(mut self, token: u64, sent: u64, answered: u64) -> Self {
        let (what, window) = (What::Lease(token), window(sent, answered));
        self.history.releases.push(Release { bulkhead: 0, what, window, state: Some(ReleaseState::Released) });
        self
    }

    pub(super) fn release_as(mut self, token: u64, sent: u64, state: ReleaseState) -> Self {
        self = self.release(token, sent, sent + 1);
        self.history.releases.last_mut().expect("one was pushed").state = Some(state);
        self
    }

    pub(super) fn renewal(mut self, token: u64, sent: u64, state: RenewalState) -> Self {
        let answer = Some((TTL, state));
        self.history.renewals.push(Renewal { bulkhead: 0, token, window: window(sent, sent + 1), answer });
        self
    }

    pub(super) fn limit(mut self, limit: u32, sent: u64, answered: u64) -> Self {
        self.history.moves.push(Move { bulkhead: 0, limit, window: window(sent, answered) });
        self
    }

    pub(super) fn report(mut self, partition: usize, sent: u64, answered: u64, retry_after: u64) -> Self {
        let retry_after = at(retry_after);
        self.history.reports.push(Report { partition, retry_after, window: window(sent, answered) });
        self
    }
}
