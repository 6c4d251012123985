//! What happened how often, so that a run that tested nothing can tell.

use std::collections::BTreeMap;

use tidegate_core::Release;

use super::plain::Answer;

/// What has to happen at least once in a hundred cases, on average: else the run has tested nothing.
pub const FLOORS: &[(&str, &str)] = &[
    ("acquire", "granted"),
    ("acquire", "queued"),
    ("acquire", "replayed"),
    ("acquire", "CONCURRENCY_CAPACITY_EXHAUSTED"),
    ("acquire", "INVALID_FIELD"),
    ("acquire", "PERMITS_EXCEED_CEILING"),
    ("acquire", "QUEUE_FULL"),
    ("acquire", "REQUEST_ID_REUSED"),
    ("acquire", "REQUEST_ID_SPENT"),
    ("acquire", "WAIT_TIMEOUT"),
    ("acquire", "COOLDOWN_ACTIVE"),
    ("acquire", "COOLDOWN_EXCEEDS_DEADLINE"),
    ("acquire", "SERVER_CAP_REACHED"),
    ("acquire is granted in a ramp", "done"),
    ("acquire is held by the ramp", "done"),
    ("half the queue is held", "done"),
    ("repeat", "queued"),
    ("release", "released"),
    ("release", "already released"),
    ("release", "expired"),
    ("release", "ended"),
    ("release by request id", "released"),
    ("release by request id", "already released"),
    ("release by request id", "expired"),
    ("release by request id", "withdrawn"),
    ("release by request id", "unknown"),
    ("renew", "renewed"),
    ("renew", "already released"),
    ("renew", "expired"),
    ("renew", "ended"),
    ("set limit", "done"),
    ("set limit", "not done"),
    ("more run than the limit", "done"),
    ("leave", "done"),
    ("confirm", "done"),
    ("take back", "done"),
    ("stall", "done"),
    ("waiter", "granted"),
    ("waiter passes over a large one", "done"),
    ("waiter passes over a held one", "done"),
    ("waiter is granted in a ramp", "done"),
    ("waiter", "WAIT_TIMEOUT"),
    ("waiter", "COOLDOWN_ACTIVE"),
    ("waiter", "COOLDOWN_EXCEEDS_DEADLINE"),
    ("waiter", "DISPLACED"),
    ("report", "done"),
    ("report", "not done"),
    ("cool", "done"),
    ("clear", "done"),
    ("waiter", "SUPERSEDED"),
    ("waiter", "PERMITS_EXCEED_CEILING"),
    ("waiter", "REQUEST_ID_SPENT"),
];

#[derive(Debug, Default)]
pub struct Tally(BTreeMap<(&'static str, &'static str), u64>);

impl Tally {
    pub fn count(&mut self, verb: &'static str, outcome: &'static str) {
        *self.0.entry((verb, outcome)).or_default() += 1;
    }

    pub fn get(&self, verb: &'static str, outcome: &'static str) -> u64 {
        self.0.get(&(verb, outcome)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, other: &Self) {
        for (&what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|((verb, outcome), count)| writeln!(f, "{count:>10}  {verb} -> {outcome}"))
    }
}

/// What a call came to, in a word or two.
pub trait Outcome {
    fn outcome(&self) -> &'static str;
}

impl Outcome for Answer {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Granted { replayed: false, .. } => "granted",
            Self::Granted { replayed: true, .. } => "replayed",
            Self::Refused { reason, .. } => reason.as_str(),
            Self::Queued(_) => "queued",
        }
    }
}

impl Outcome for Release {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::AlreadyReleased => "already released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Withdrawn => "withdrawn",
            Self::Ended => "ended",
            Self::Unknown => "unknown",
        }
    }
}

impl Outcome for Result<u64, Release> {
    fn outcome(&self) -> &'static str {
        self.as_ref().map_or_else(Outcome::outcome, |_| "renewed")
    }
}

impl Outcome for bool {
    fn outcome(&self) -> &'static str {
        if *self { "done" } else { "not done" }
    }
}

impl Outcome for () {
    fn outcome(&self) -> &'static str {
        "done"
    }
}
