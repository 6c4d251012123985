//! Leases put together from the answers about them, and what can be wrong with one alone.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{At, End, Grant, History, What, Window};
use crate::v1::{ReleaseState, RenewalState};

/// A lease as its clients knew it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) bulkhead: usize,
    pub(super) token: u64,
    pub(super) permits: u32,
    pub(super) partition: Option<usize>,
    pub(super) rank: u32,
    /// When the first call of its request was sent.
    pub(super) asked: At,
    /// The server had received its request by then: its answer came, less what the server says it waited.
    pub(super) received: Option<At>,
    /// Granted then or later: when a call was sent, plus what it waited.
    pub(super) from: At,
    /// Granted by then: its first answer. The definite hold begins.
    pub(super) heard: At,
    /// The definite hold is over: its Release is sent, or its client's deadline has come.
    pub(super) until: At,
    /// The longest that the server told it had waited.
    pub(super) waited: Duration,
    /// A Release of it was sent.
    pub(super) is_released: bool,
    /// A Release of it was answered to have freed it.
    pub(super) was_freed: bool,
}

/// How much earlier than the server a client ends a lease.
fn margin(ttl: Duration) -> Duration {
    Duration::from_millis(50).max(ttl / 20)
}

/// What happened to one lease, in the order in which it was sent.
enum Step {
    /// A grant, a replay or a renewal: it lasts at least until then.
    Lasts(At),
    /// A renewal that says it does not.
    Lost(RenewalState),
    Release(Option<ReleaseState>),
}

/// All leases that anybody heard of. Finds tokens and request ids with two meanings, and leases that ended early.
pub(super) fn all(history: &History, findings: &mut Vec<String>) -> Vec<Lease> {
    let mut asked: HashMap<(usize, u64), At> = HashMap::new();
    for call in &history.calls {
        if let Some(id) = call.request_id {
            let first = asked.entry((call.bulkhead, id)).or_insert(call.window.from);
            *first = call.window.from.min(*first);
        }
    }
    let mut leases: BTreeMap<(usize, u64), Lease> = BTreeMap::new();
    let mut steps: HashMap<(usize, u64), Vec<(Window, Step)>> = HashMap::new();
    let mut tokens: HashMap<(usize, u64), u64> = HashMap::new();
    let mut requests: HashMap<(usize, u64), Option<u64>> = HashMap::new();
    for call in &history.calls {
        let End::Granted(Grant { token, permits, ttl, waited, replayed }) = call.end else { continue };
        let (key, window) = ((call.bulkhead, token), call.window);
        steps
            .entry(key)
            .or_default()
            .push((window, Step::Lasts(window.from + waited + ttl.saturating_sub(margin(ttl)))));
        if permits != call.permits {
            findings.push(format!("not what was asked for: {call:?}"));
        }
        let other_request = requests.insert(key, call.request_id).is_some_and(|other| other != call.request_id);
        let other_token = call
            .request_id
            .and_then(|id| tokens.insert((call.bulkhead, id), token))
            .is_some_and(|other| other != token);
        if other_request || other_token {
            findings.push(format!("one request and one token belong together: {call:?}"));
        }
        let asked = call.request_id.map_or(window.from, |id| asked[&(call.bulkhead, id)]);
        let (from, received) =
            if replayed { (asked, None) } else { (window.from + waited, Some(window.to.saturating_sub(waited))) };
        let new = Lease {
            bulkhead: call.bulkhead,
            token,
            permits,
            partition: call.partition,
            rank: call.rank,
            asked,
            received,
            from,
            heard: window.to,
            until: At::ZERO,
            waited,
            is_released: false,
            was_freed: false,
        };
        match leases.entry(key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(new);
            }
            std::collections::btree_map::Entry::Occupied(entry) => {
                let lease = entry.into_mut();
                if !replayed && lease.received.is_some() {
                    findings.push(format!("token granted twice: {call:?}"));
                }
                lease.received = lease.received.or(new.received);
                lease.from = lease.from.max(new.from);
                lease.heard = lease.heard.min(new.heard);
                lease.waited = lease.waited.max(new.waited);
            }
        }
    }
    for renewal in &history.renewals {
        let step = match renewal.answer {
            Some((ttl, RenewalState::Renewed)) => Step::Lasts(renewal.window.from + ttl.saturating_sub(margin(ttl))),
            Some((_, state)) => Step::Lost(state),
            None => continue,
        };
        steps.entry((renewal.bulkhead, renewal.token)).or_default().push((renewal.window, step));
    }
    for release in &history.releases {
        let token = match release.what {
            What::Lease(token) => Some(token),
            What::Request(id) => tokens.get(&(release.bulkhead, id)).copied(),
        };
        if let Some(token) = token {
            let step = (release.window, Step::Release(release.state));
            steps.entry((release.bulkhead, token)).or_default().push(step);
        }
    }
    for (key, lease) in &mut leases {
        let mut steps = steps.remove(key).unwrap_or_default();
        steps.sort_by_key(|(window, _)| window.from);
        lease.live(&steps, findings);
    }
    leases.into_values().collect()
}

impl Lease {
    /// From the first call of its request to its first answer.
    pub(super) fn window(&self) -> Window {
        Window { from: self.asked, to: self.heard }
    }

    /// Goes through what happened to it. Whoever is answered before the client's own deadline still has it: what was
    /// sent by then may have been on its way for long. A second Release finds it released.
    fn live(&mut self, steps: &[(Window, Step)], findings: &mut Vec<String>) {
        let mut deadline = At::ZERO;
        let mut released = None;
        for (Window { from: sent, to: answered }, step) in steps {
            let is_held = *answered <= deadline && !self.is_released;
            match step {
                Step::Lasts(until) => deadline = deadline.max(*until),
                Step::Lost(state) if is_held => findings.push(format!("lost early, {state:?} at {sent:?}: {self:?}")),
                Step::Lost(_) => {}
                Step::Release(state) => {
                    if let Some(state) = state
                        && is_held
                        && *state != ReleaseState::Released
                    {
                        findings.push(format!("lost early, {state:?} at {sent:?}: {self:?}"));
                    }
                    if self.was_freed && state.is_some_and(|state| state != ReleaseState::AlreadyReleased) {
                        findings.push(format!("released again, and {state:?} at {sent:?}: {self:?}"));
                    }
                    released = released.or(Some(*sent));
                    self.is_released = true;
                    self.was_freed |= *state == Some(ReleaseState::Released);
                }
            }
        }
        self.until = released.map_or(deadline, |released| deadline.min(released));
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::{Made, at, granted};
    use super::super::{Call, End, Renewal};
    use super::*;

    fn findings(made: &Made) -> usize {
        let mut findings = Vec::new();
        all(&made.history, &mut findings);
        findings.len()
    }

    fn replay(token: u64, sent: u64, answered: u64) -> Call {
        let mut call = granted(token, sent, answered);
        call.request_id = Some(7);
        if let End::Granted(grant) = &mut call.end {
            grant.replayed = true;
        }
        call
    }

    #[test]
    fn a_token_is_one_grant_and_a_request_one_token() {
        let first = Call { request_id: Some(7), ..granted(1, 0, 10) };
        assert_eq!(findings(&Made::default().call(first.clone()).call(replay(1, 20, 30))), 0);
        assert_eq!(
            findings(&Made::default().call(first.clone()).call(replay(2, 20, 30))),
            1,
            "two tokens of one request"
        );
        assert_eq!(findings(&Made::default().call(granted(1, 0, 10)).call(granted(1, 20, 30))), 1, "twice");
        let other = Call { request_id: Some(8), ..replay(1, 20, 30) };
        assert_eq!(findings(&Made::default().call(first).call(other)), 1, "a token of two requests");
    }

    #[test]
    fn a_lease_is_held_until_its_release_or_the_deadline_of_its_client() {
        let until = |made: Made| all(&made.history, &mut Vec::new())[0].until;
        let made = || Made::default().call(granted(1, 0, 10));
        assert_eq!(until(made()), at(1900), "ttl less margin, from when it was sent");
        assert_eq!(until(made().release(1, 500, 510)), at(500));
        assert_eq!(until(made().release(1, 5000, 5010)), at(1900));
        assert_eq!(until(made().renewal(1, 1000, RenewalState::Renewed)), at(2900));
    }

    #[test]
    fn who_renews_or_releases_in_time_still_has_it_and_a_second_release_says_so() {
        let made = || Made::default().call(granted(1, 0, 10));
        assert_eq!(findings(&made().renewal(1, 1800, RenewalState::Expired)), 1);
        assert_eq!(findings(&made().renewal(1, 2000, RenewalState::Expired)), 0);
        assert_eq!(findings(&made().release_as(1, 1800, ReleaseState::Expired)), 1);
        assert_eq!(findings(&made().release_as(1, 2000, ReleaseState::Expired)), 0);
        assert_eq!(findings(&made().release(1, 100, 110).release_as(1, 200, ReleaseState::AlreadyReleased)), 0);
        assert_eq!(findings(&made().release(1, 100, 110).release_as(1, 200, ReleaseState::Released)), 1);
        let silent = Renewal { bulkhead: 0, token: 1, window: Window::default(), answer: None };
        let mut unanswered = made();
        unanswered.history.renewals.push(silent);
        assert_eq!(findings(&unanswered), 0);
    }
}
