//! Which leases to renew when: a state machine that is handed the time. The keeper sends what it says.
//!
//! Every lease stands once in a calendar, at the moment it needs attention next: a third of its ttl after it was last
//! looked at, or its deadline if that is earlier. So what becomes of it never depends on an answer's coming.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_proto::v1;

use crate::lease::{Lease, LeaseState, Loss};

/// The most leases in one request.
const MOST_RENEWED: usize = 1_000;
/// What is due this much later is renewed along, so that many leases make few requests.
const ALONG: Duration = Duration::from_millis(50);

/// All leases of a client, and the renewals that were not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    /// Leases that were looked at together stay together, so there are few instants however many leases there are.
    calendar: BTreeMap<Instant, Vec<Arc<Lease>>>,
    sent: VecDeque<Batch>,
    last_seq: u64,
    /// Nothing is sent before, so that many leases make few requests.
    rested: Option<Instant>,
}

#[derive(Debug)]
struct Batch {
    seq: u64,
    sent: Instant,
    leases: Vec<Arc<Lease>>,
}

impl Renewals {
    /// A lease was granted: it is looked after until it is released or lost. One that was heard of so late that its first
    /// renewal would have little time left is renewed at once.
    pub(crate) fn hold(&mut self, now: Instant, lease: Arc<Lease>) {
        let is_late = lease
            .granted()
            .renew_interval
            .is_some_and(|interval| lease.deadline().saturating_duration_since(now) <= interval.saturating_mul(2));
        if is_late {
            self.calendar.entry(now).or_default().push(lease);
        } else {
            self.enter(now, lease);
        }
    }

    fn enter(&mut self, now: Instant, lease: Arc<Lease>) {
        let deadline = lease.deadline();
        let at = lease.granted().renew_interval.map_or(deadline, |interval| deadline.min(now + interval));
        self.calendar.entry(at).or_default().push(lease);
    }

    /// When [`take_due`](Self::take_due) is needed next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let (&at, _) = self.calendar.first_key_value()?;
        Some(self.rested.map_or(at, |rested| at.max(rested)))
    }

    /// Looks at what is due: what is past its deadline is lost, the rest goes into requests, which the caller sends at
    /// once. Not `connected`, nothing can be sent, and what is due is in doubt.
    pub(crate) fn take_due(&mut self, now: Instant, connected: bool) -> Vec<v1::RenewLeasesRequest> {
        self.rested = Some(now + ALONG);
        let (mut due, mut unrenewed) = (Vec::new(), Vec::new());
        let later = self.calendar.split_off(&(now + ALONG + Duration::from_nanos(1)));
        for lease in std::mem::replace(&mut self.calendar, later).into_values().flatten() {
            if lease.is_released() {
                continue;
            }
            match lease.state(now) {
                LeaseState::Lost => lease.lose(Loss::Unrenewed),
                _ if lease.granted().renew_interval.is_none() => unrenewed.push(lease),
                _ => due.push(lease),
            }
        }
        for lease in &due {
            if connected {
                lease.asked();
            } else {
                lease.doubt();
            }
            self.enter(now, lease.clone());
        }
        for lease in unrenewed {
            self.enter(now, lease);
        }
        if !connected {
            return Vec::new();
        }
        due.chunks(MOST_RENEWED).map(|leases| self.batch(now, leases)).collect()
    }

    fn batch(&mut self, now: Instant, leases: &[Arc<Lease>]) -> v1::RenewLeasesRequest {
        // 0 is what the server tells unasked.
        self.last_seq += 1;
        self.sent.push_back(Batch { seq: self.last_seq, sent: now, leases: leases.to_vec() });
        let lease_ids = leases.iter().map(|lease| lease.granted().lease_id.clone()).collect();
        v1::RenewLeasesRequest { seq: self.last_seq, lease_ids }
    }

    /// What the server answered, or told unasked.
    pub(crate) fn answered(&mut self, now: Instant, answer: &v1::RenewLeasesResponse) {
        let batch = self.sent.iter().position(|batch| batch.seq == answer.seq).and_then(|at| self.sent.remove(at));
        match batch {
            Some(batch) => {
                for (lease, renewal) in batch.leases.iter().zip(&answer.renewals) {
                    if lease.granted().lease_id == renewal.lease_id {
                        take(now, lease, batch.sent, renewal);
                    }
                }
            }
            None => {
                for renewal in &answer.renewals {
                    let told =
                        self.calendar.values().flatten().find(|lease| lease.granted().lease_id == renewal.lease_id);
                    if let Some(lease) = told
                        && renewal.state() != v1::RenewalState::Renewed
                    {
                        take(now, lease, now, renewal);
                    }
                }
            }
        }
    }

    /// Since when the oldest request waits for its answer.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        self.sent.front().map(|batch| batch.sent)
    }

    /// Answers to what was sent will not come any more.
    pub(crate) fn broken(&mut self) {
        for lease in self.sent.drain(..).flat_map(|batch| batch.leases) {
            lease.doubt();
        }
    }

    /// Requests can be sent again: what is in doubt is due now.
    pub(crate) fn resume(&mut self, now: Instant) {
        let mut due = Vec::new();
        for leases in self.calendar.values_mut() {
            due.extend(leases.extract_if(.., |lease| lease.is_in_doubt()));
        }
        self.calendar.retain(|_, leases| !leases.is_empty());
        if !due.is_empty() {
            self.calendar.entry(now).or_default().append(&mut due);
        }
        self.rested = None;
    }

    /// Whether no lease is looked after.
    pub(crate) fn is_empty(&self) -> bool {
        self.calendar.is_empty()
    }
}

/// What a renewal did to a lease; `sent` is when the batch it answers was sent.
fn take(now: Instant, lease: &Lease, sent: Instant, renewal: &v1::Renewal) {
    match renewal.state() {
        v1::RenewalState::Renewed => {
            let ttl = renewal.ttl.and_then(|ttl| ttl.try_into().ok()).unwrap_or(lease.granted().ttl);
            lease.renewed(now, sent, ttl, renewal.fencing_floor);
        }
        v1::RenewalState::Expired => lease.lose(Loss::Expired),
        v1::RenewalState::Revoked => lease.lose(Loss::Revoked),
        v1::RenewalState::Ended | v1::RenewalState::Unknown => lease.lose(Loss::Ended),
        v1::RenewalState::Unavailable | v1::RenewalState::Unspecified => lease.doubt(),
        // By its own permit, whose Release overtook this.
        v1::RenewalState::Released => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Granted;

    const TTL: Duration = Duration::from_secs(9);

    fn lease(number: usize, now: Instant) -> Arc<Lease> {
        Arc::new(Lease::new(Granted {
            lease_id: number.to_string(),
            permits: 1,
            fencing_token: 1,
            fencing_floor: 0,
            ttl: TTL,
            renew_interval: Some(TTL / 3),
            deadline: crate::deadline::renewed(now, TTL),
        }))
    }

    fn renewal(lease_id: &str, state: v1::RenewalState) -> v1::Renewal {
        let ttl = Some(prost_types::Duration { seconds: 9, nanos: 0 });
        v1::Renewal { lease_id: lease_id.into(), state: state.into(), ttl, fencing_floor: 0 }
    }

    fn answer(request: &v1::RenewLeasesRequest, state: v1::RenewalState) -> v1::RenewLeasesResponse {
        let renewals = request.lease_ids.iter().map(|id| renewal(id, state)).collect();
        v1::RenewLeasesResponse { seq: request.seq, renewals, draining: false }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn each_lease_is_renewed_every_third_of_its_ttl_in_batches() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let leases: Vec<_> = (0..2_500).map(|number| lease(number, start)).collect();
        for lease in &leases {
            renewals.hold(start, lease.clone());
        }
        assert_eq!(renewals.next(), Some(at(start, 3)));
        let requests = renewals.take_due(at(start, 3), true);
        assert_eq!(requests.iter().map(|request| request.lease_ids.len()).collect::<Vec<_>>(), [1_000, 1_000, 500]);
        for request in &requests {
            renewals.answered(at(start, 4), &answer(request, v1::RenewalState::Renewed));
        }
        assert!(leases.iter().all(|lease| lease.deadline() == at(start, 3) + TTL * 19 / 20));
        assert_eq!(renewals.next(), Some(at(start, 6)));
    }

    #[test]
    fn an_answer_counts_from_its_own_batch() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let lease = lease(1, start);
        renewals.hold(start, lease.clone());
        let first = renewals.take_due(at(start, 3), true);
        let second = renewals.take_due(at(start, 6), true);
        assert_eq!(lease.state(at(start, 6)), LeaseState::InDoubt);
        renewals.answered(at(start, 7), &answer(&first[0], v1::RenewalState::Renewed));
        assert_eq!(lease.deadline(), crate::deadline::renewed(at(start, 3), TTL));
        renewals.answered(at(start, 8), &answer(&second[0], v1::RenewalState::Renewed));
        assert_eq!(lease.deadline(), crate::deadline::renewed(at(start, 6), TTL));
        assert_eq!(renewals.unanswered_since(), None);
    }

    #[test]
    fn nobody_renews_after_the_deadline_and_the_loss_is_told_by_then() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let lease = lease(1, start);
        renewals.hold(start, lease.clone());
        let (mut now, mut sent) = (start, 0);
        while let Some(next) = renewals.next() {
            now = next;
            sent += renewals.take_due(now, true).len();
        }
        assert_eq!(lease.state(start), LeaseState::Lost);
        assert!(now >= lease.deadline() && now <= lease.deadline() + 2 * ALONG, "{:?}", now - start);
        assert_eq!(sent, 2, "at a third and at two thirds");
    }

    #[test]
    fn what_is_released_is_forgotten_and_what_the_server_ended_is_lost() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let [released, expired, revoked] = [1, 2, 3].map(|number| lease(number, start));
        for lease in [&released, &expired, &revoked] {
            renewals.hold(start, lease.clone());
        }
        released.release();
        let requests = renewals.take_due(at(start, 3), true);
        assert_eq!(requests[0].lease_ids, ["2", "3"]);
        let mut told = answer(&requests[0], v1::RenewalState::Expired);
        told.renewals.truncate(1);
        renewals.answered(at(start, 3), &told);
        let push = v1::RenewLeasesResponse {
            renewals: vec![renewal("3", v1::RenewalState::Revoked)],
            ..v1::RenewLeasesResponse::default()
        };
        renewals.answered(at(start, 3), &push);
        let states = [&expired, &revoked].map(|lease| lease.state(at(start, 3)));
        assert_eq!(states, [LeaseState::Lost; 2]);
        renewals.take_due(at(start, 6), true);
        assert!(renewals.is_empty() && renewals.next().is_none());
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_lost_in_time() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let granted = Granted { renew_interval: None, ..lease(1, start).granted().clone() };
        let lease = Arc::new(Lease::new(granted));
        renewals.hold(start, lease.clone());
        assert_eq!(renewals.next(), Some(lease.deadline()));
        let before = at(start, 8);
        assert_eq!(renewals.take_due(before, true), []);
        assert_eq!(lease.state(before), LeaseState::Held);
        assert_eq!(renewals.take_due(lease.deadline(), true), []);
        assert_eq!((lease.state(start), renewals.next()), (LeaseState::Lost, None));
    }

    #[test]
    fn a_lease_that_was_heard_of_late_is_renewed_at_once_and_then_as_ever() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let lease = lease(1, start);
        // A second before its deadline, when a third of its ttl is longer.
        let heard = at(start, 8);
        renewals.hold(heard, lease.clone());
        assert_eq!(renewals.next(), Some(heard));
        let asked = renewals.take_due(heard, true);
        renewals.answered(heard + Duration::from_millis(100), &answer(&asked[0], v1::RenewalState::Renewed));
        assert_eq!(lease.state(at(start, 16)), LeaseState::Held);
        // So is one that would have little left after its first interval.
        let mut renewals = Renewals::default();
        let lease = self::lease(1, start);
        renewals.hold(at(start, 5), lease);
        assert_eq!(renewals.next(), Some(at(start, 5)));
    }

    #[test]
    fn after_a_break_what_is_in_doubt_comes_first() {
        let start = crate::keeper::now();
        let mut renewals = Renewals::default();
        let lease = lease(1, start);
        renewals.hold(start, lease.clone());
        assert_eq!(renewals.take_due(at(start, 3), true).len(), 1);
        renewals.broken();
        assert_eq!((lease.state(at(start, 3)), renewals.unanswered_since()), (LeaseState::InDoubt, None));
        renewals.resume(at(start, 4));
        assert_eq!(renewals.next(), Some(at(start, 4)));
        let again = renewals.take_due(at(start, 4), true);
        renewals.answered(at(start, 4), &answer(&again[0], v1::RenewalState::Renewed));
        assert_eq!(lease.state(at(start, 12)), LeaseState::Held);
    }
}
