//! What clients and operators saw of a run, and whether the promises can have been kept.
//!
//! A history is all calls with the windows in which they were under way, as one monotonic clock showed them; the server is
//! not asked. [`History::judge`] knows from it what is certain and finds what cannot have been: a permit too many, a waiter
//! overtaken, a call that nobody answered in time, a grant during a cooldown, a lease lost early. Its rules raise no false
//! alarms; where a rule must allow for a thread that was not scheduled, it says so and leaves room. All of it is
//! O(n log n), but for the few pauses of the machine.

mod cooldowns;
mod ends;
mod lease;
#[cfg(test)]
mod made;
mod order;
mod safety;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::v1::{BulkheadStatus, ReleaseState, RenewalState};

use lease::Lease;

/// A moment of a run: how long after its start.
pub type At = Duration;

/// How many findings a judgement tells in words.
const TOLD: usize = 20;

/// From the moment that something was sent to the one at which its answer was there, or nobody waited for it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Sent.
    pub from: At,
    /// Answered, or given up.
    pub to: At,
}

/// A bulkhead as it is configured.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// The start limit.
    pub limit: u32,
    /// The most it may be.
    pub ceiling: u32,
    /// The most waiters.
    pub max_queued: u32,
    /// The longest wait.
    pub max_wait: Duration,
    /// How long a lease lasts.
    pub lease_ttl: Duration,
    /// How much later each rank is placed.
    pub aging_step: Duration,
    /// More urgent ones push out waiters.
    pub displace: bool,
}

/// One Acquire.
#[derive(Clone, Debug)]
pub struct Call {
    /// The place of its bulkhead in [`History::rules`].
    pub bulkhead: usize,
    /// How many permits.
    pub permits: u32,
    /// Its partition; `None` is the bulkhead's own, which no one reports.
    pub partition: Option<usize>,
    /// 0 is the most urgent.
    pub rank: u32,
    /// The longest wait that it asked for.
    pub max_wait: Option<Duration>,
    /// Its gRPC deadline, from when it was sent.
    pub timeout: Option<Duration>,
    /// It keeps its place while its partition cools.
    pub waits_for_cooldown: bool,
    /// Calls of one bulkhead with one id are one request.
    pub request_id: Option<u64>,
    /// It went through a proxy that may have done anything to it.
    pub is_faulty: bool,
    /// When.
    pub window: Window,
    /// How it ended.
    pub end: End,
}

/// How an Acquire ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With a lease.
    Granted(Grant),
    /// With a refusal of ours, and its reason.
    Refused(String),
    /// Its client dropped it.
    Cancelled,
    /// At its gRPC deadline, by the client itself.
    TimedOut,
    /// By anything else, which tells how.
    Failed(String),
}

/// What a grant told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    /// The fencing token.
    pub token: u64,
    /// How many permits.
    pub permits: u32,
    /// How long the lease lasts.
    pub ttl: Duration,
    /// From the server's receipt of this call to the grant.
    pub waited: Duration,
    /// An earlier call of this request was granted it.
    pub replayed: bool,
}

/// One Release.
#[derive(Clone, Debug)]
pub struct Release {
    /// Where.
    pub bulkhead: usize,
    /// The lease, or else the request.
    pub what: What,
    /// When.
    pub window: Window,
    /// The answer; `None` if there was none.
    pub state: Option<ReleaseState>,
}

/// What a Release names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A lease, here by its token.
    Lease(u64),
    /// A request id.
    Request(u64),
}

/// One lease renewed, or not.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Where.
    pub bulkhead: usize,
    /// The lease.
    pub token: u64,
    /// When.
    pub window: Window,
    /// How long it lasts from its receipt, and the answer; `None` if there was none.
    pub answer: Option<(Duration, RenewalState)>,
}

/// A limit moved. Moves of one bulkhead follow each other.
#[derive(Clone, Debug)]
pub struct Move {
    /// Where.
    pub bulkhead: usize,
    /// To what.
    pub limit: u32,
    /// When.
    pub window: Window,
}

/// A partition told to come back later. Always answered.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which.
    pub partition: usize,
    /// When to come back, counted from its receipt.
    pub retry_after: Duration,
    /// When.
    pub window: Window,
}

/// A run as it was seen from outside.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The bulkheads.
    pub rules: Vec<Rule>,
    /// Every Acquire.
    pub calls: Vec<Call>,
    /// Every Release.
    pub releases: Vec<Release>,
    /// Every renewal.
    pub renewals: Vec<Renewal>,
    /// Every move of a limit.
    pub moves: Vec<Move>,
    /// Every Retry-After reported.
    pub reports: Vec<Report>,
    /// How long a partition's careful start can go on after a cooldown.
    pub ramp: Duration,
    /// When a short sleep and a call that touches no bulkhead took more than [`SLOW`] together: the machine had no time.
    pub slow_beats: Vec<Window>,
    /// How long the server itself stood still, as it told.
    pub stalled: Duration,
    /// Connections that proxies ended.
    pub cut_connections: usize,
}

/// A beat that takes longer than this is slow; one that takes longer than [`PAUSE`] tells of a pause of the machine.
pub const SLOW: Duration = Duration::from_millis(10);
/// From here on a beat says that whatever ran beside it may be as late.
pub const PAUSE: Duration = Duration::from_millis(100);
/// *g* of the leases and waits of a history, none of which is long.
const SLACK: Duration = Duration::from_millis(250);

/// How often what happened, by what.
#[derive(Clone, Debug, Default)]
pub struct Totals(BTreeMap<String, usize>);

impl Totals {
    /// How often that happened.
    pub fn of(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or_default()
    }

    fn add(&mut self, what: &str, times: usize) {
        *self.0.entry(what.to_owned()).or_default() += times;
    }
}

impl std::ops::AddAssign<&Self> for Totals {
    fn add_assign(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in &self.0 {
            writeln!(f, "{times:>9}  {what}")?;
        }
        Ok(())
    }
}

impl History {
    /// Adds what another one saw of the same run.
    pub fn append(&mut self, mut other: Self) {
        self.calls.append(&mut other.calls);
        self.releases.append(&mut other.releases);
        self.renewals.append(&mut other.renewals);
        self.moves.append(&mut other.moves);
        self.reports.append(&mut other.reports);
        self.slow_beats.append(&mut other.slow_beats);
    }

    /// Finds what cannot have been, and which of the floors (what must have happened, and how often at least) the run was
    /// too quiet for. Without findings: how often everything happened.
    pub fn judge(&self, floors: &[(&str, usize)]) -> Result<Totals, String> {
        let mut findings = Vec::new();
        let leases = lease::all(self, &mut findings);
        safety::check(self, &leases, &mut findings);
        order::check(self, &leases, &mut findings);
        ends::check(self, &mut findings);
        cooldowns::check(self, &leases, &mut findings);
        let totals = self.totals(&leases);
        for (what, at_least) in floors {
            let times = totals.of(what);
            if times < *at_least {
                findings.push(format!("tested nothing: {what} {times} times, at least {at_least} are needed"));
            }
        }
        if findings.is_empty() {
            return Ok(totals);
        }
        let told = findings.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("\n");
        Err(format!("{} findings:\n{told}\n{totals}", findings.len()))
    }

    /// Finds where the server's own totals of a bulkhead at rest disagree with what was seen of it: each answer was
    /// counted, and what was counted beyond them must belong to calls without an answer.
    pub fn agrees(&self, bulkhead: usize, status: &BulkheadStatus) -> Result<(), String> {
        let leases = lease::all(self, &mut Vec::new());
        let leases = || leases.iter().filter(|lease| lease.bulkhead == bulkhead);
        let calls = || self.calls.iter().filter(|call| call.bulkhead == bulkhead);
        let unseen = calls().filter(|call| !matches!(call.end, End::Granted(_) | End::Refused(_))).count();
        let left = leases().filter(|lease| !lease.is_released).count();
        // Its Release may have come too late, or not at all.
        let doubtful = leases().filter(|lease| lease.is_released && !lease.was_freed).count();
        let mut checks = vec![
            ("granted".to_owned(), status.granted, leases().count(), unseen),
            ("expired".to_owned(), status.expired, left, doubtful + unseen),
        ];
        let mut refused: BTreeMap<&str, usize> = status.refused.keys().map(|reason| (reason.as_str(), 0)).collect();
        for call in calls() {
            if let End::Refused(reason) = &call.end {
                *refused.entry(reason).or_default() += 1;
            }
        }
        for (reason, seen) in refused {
            let counted = status.refused.get(reason).copied().unwrap_or_default();
            checks.push((format!("refused {reason}"), counted, seen, unseen));
        }
        for (what, counted, seen, more) in checks {
            let counted = usize::try_from(counted).expect("totals of a test are small");
            if counted < seen || counted > seen + more {
                let name = &self.rules[bulkhead].name;
                return Err(format!(
                    "{name}: the server counts {counted} {what}, seen are {seen} and at most {more} more"
                ));
            }
        }
        Ok(())
    }

    /// What a rule allows for a thread that was not scheduled between two of its steps in that window.
    fn room(&self, window: Window) -> Duration {
        SLACK + self.pauses(window)
    }

    /// How long the machine paused in that window, all told. A pause of the server shows in the beats, too.
    fn pauses(&self, window: Window) -> Duration {
        let pauses = self.slow_beats.iter().filter(|beat| beat.to.saturating_sub(beat.from) >= PAUSE);
        pauses.map(|beat| beat.to.min(window.to).saturating_sub(beat.from.max(window.from))).sum()
    }

    /// How long a call of that bulkhead may wait in its queue.
    fn longest_wait(&self, call: &Call) -> Duration {
        let rule = self.rules[call.bulkhead].max_wait;
        call.max_wait.unwrap_or(rule).min(rule).min(call.timeout.unwrap_or(rule))
    }

    fn totals(&self, leases: &[Lease]) -> Totals {
        let mut totals = Totals::default();
        totals.add("calls", self.calls.len());
        totals.add("grants", leases.len());
        totals.add("grants after a wait", leases.iter().filter(|lease| lease.waited > SLOW).count());
        // What shows the order of the queue.
        let long = |lease: &&Lease| lease.permits == 1 && lease.waited > self.room(lease.window());
        totals.add("grants after a long wait", leases.iter().filter(long).count());
        totals.add("leases that expired", leases.iter().filter(|lease| !lease.is_released).count());
        totals.add("moves of limits", self.moves.len());
        totals.add("cooldowns reported", self.reports.len());
        totals.add("renewals", self.renewals.iter().filter(|renewal| renewal.answer.is_some()).count());
        totals.add("connections cut", self.cut_connections);
        totals.add("slow beats", self.slow_beats.len());
        for call in &self.calls {
            match &call.end {
                End::Granted(grant) if grant.replayed => totals.add("replays", 1),
                End::Granted(_) => {}
                End::Refused(reason) => totals.add(&format!("refused {reason}"), 1),
                End::Cancelled => totals.add("cancels", 1),
                End::TimedOut if !call.is_faulty => totals.add("calls that timed out by themselves", 1),
                End::TimedOut | End::Failed(_) => totals.add("calls that failed on their way", 1),
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::made::{Made, granted};
    use super::*;

    #[test]
    fn a_run_that_was_too_quiet_does_not_pass() {
        let history = Made::default().call(granted(1, 0, 10)).history;
        assert_eq!(history.judge(&[("grants", 1)]).unwrap().of("grants"), 1);
        let told = history.judge(&[("grants", 2), ("cancels", 1)]).unwrap_err();
        assert!(told.contains("grants 1 times") && told.contains("cancels 0 times"), "{told}");
    }

    #[test]
    fn totals_of_the_server_must_have_each_answer_and_no_more_than_there_can_be() {
        let cancelled = Call { end: End::Cancelled, ..granted(0, 20, 30) };
        let history = Made::default().call(granted(1, 0, 10)).call(cancelled).release(1, 15, 16).history;
        let status = |granted, expired| BulkheadStatus { granted, expired, ..Default::default() };
        for (status, holds) in [
            (status(1, 0), true),
            (status(2, 1), true),
            (status(0, 0), false),
            (status(3, 0), false),
            (status(1, 2), false),
        ] {
            assert_eq!(history.agrees(0, &status).is_ok(), holds, "{status:?}");
        }
        let refused = [("QUEUE_FULL".to_owned(), 2)].into();
        assert!(history.agrees(0, &BulkheadStatus { refused, ..status(1, 0) }).is_err());
    }
}
