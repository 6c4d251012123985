//! What is asked of a bulkhead, and what it answers: plain values.

use std::net::SocketAddr;
use std::time::Duration;

use crate::id::{FencingToken, RequestKey, WaiterId};
use crate::time::Instant;

/// An answer, and what else happened on the way: others were granted or refused. The caller owes each effect its
/// delivery, in order.
#[derive(Debug, PartialEq)]
#[must_use]
pub struct Step<T> {
    /// To the one who called.
    pub answer: T,
    /// To the waiters it concerns.
    pub effects: Vec<Effect>,
}

/// What a call did besides its answer.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Its turn came.
    Granted(WaiterId, Grant),
    /// Its wait is over.
    Refused(WaiterId, Refusal),
    /// A partition has its first waiter here: from now on it must be told of a cooldown by
    /// [`cool`](crate::Bulkhead::cool). `None` is the bulkhead's own name.
    Waits(Option<Box<str>>),
    /// A partition has no waiter here any more.
    WaitsNoMore(Option<Box<str>>),
    /// The limit went back by itself, as an operator had told it to.
    Reverted {
        /// The limit until then.
        before: u32,
        /// The limit since.
        after: u32,
    },
}

/// How urgent a request is: its rank moves its place by whole `aging_step`s (R2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Rank 0.
    Critical,
    /// Rank 1.
    #[default]
    Normal,
    /// Rank 2.
    Sheddable,
}

/// What a request does while its partition cools down (R10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCooldown {
    /// It is refused at once.
    #[default]
    Refuse,
    /// It keeps or takes a place, if its wait lasts longer than the cooldown.
    Wait,
}

/// A request for permits.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// How many, at least 1; more than the ceiling is refused.
    pub permits: u32,
    /// How urgent.
    pub priority: Priority,
    /// The longest wait; `None` is the bulkhead's, which bounds it from above anyway. Zero: do not wait.
    pub max_wait: Option<Duration>,
    /// The call's own deadline; a call past it is never granted.
    pub deadline: Option<Instant>,
    /// When to answer at the latest so that the caller hears it before its deadline.
    pub answer_by: Option<Instant>,
    /// How long the lease lasts unless renewed; `None` is the bulkhead's.
    pub ttl: Option<Duration>,
    /// Recognises repeats (R8).
    pub request: Option<RequestKey>,
    /// Hash of what a repeat must not change (permits, partition and ttl as sent); the core only compares it.
    pub fingerprint: u64,
    /// The key that cools down together; `None` is the bulkhead's own name.
    pub partition: Option<Box<str>>,
    /// When the cooldown of that partition ends or ended, if it cools or ramps; looked up by the shell.
    pub cooldown: Option<Instant>,
    /// What to do while it lasts.
    pub on_cooldown: OnCooldown,
    /// Who asks, for operators to see.
    pub holder: Holder,
}

/// Who asks or has a lease, as operators see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// What the client calls itself; may be empty.
    pub name: Box<str>,
    /// Where it was asked from.
    pub address: Option<SocketAddr>,
}

/// The answer to an [`Acquire`].
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Go.
    Granted(Grant),
    /// No, and why.
    Refused(Refusal),
    /// In the queue. An [`Effect`] will tell; until then the call may [`leave`](crate::Bulkhead::leave).
    Queued(WaiterId),
}

/// A lease, as its holder is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Names the lease within its bulkhead.
    pub token: FencingToken,
    /// The lowest token that may still be live; may lag, never leads.
    pub floor: FencingToken,
    /// How many permits it holds.
    pub permits: u32,
    /// How long it lasts unless renewed.
    pub ttl: Duration,
    /// When it was granted.
    pub granted_at: Instant,
    /// A repeat was answered with it, which renewed it.
    pub replayed: bool,
}

/// Why a request is refused. Public: the names on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No permit free, and no waiting wanted or allowed.
    ConcurrencyCapacityExhausted,
    /// The queue is full.
    QueueFull,
    /// Waited to the end, or past the deadline on arrival.
    WaitTimeout,
    /// Pushed out of a full queue by a more urgent one.
    Displaced,
    /// Its partition cools down.
    CooldownActive,
    /// Its partition cools down longer than the call has time.
    CooldownExceedsDeadline,
    /// A cap of the server.
    ServerCapReached,
    /// No bulkhead has that name.
    BulkheadNotFound,
    /// A field is out of its range.
    InvalidField,
    /// More permits than the limit may ever be.
    PermitsExceedCeiling,
    /// A repeat asks for something else than the first did.
    RequestIdReused,
    /// A repeat took this call's place.
    Superseded,
    /// The request id's lease has ended, or it was withdrawn.
    RequestIdSpent,
    /// An operator closed the bulkhead.
    BulkheadClosed,
    /// The server is stopping.
    Draining,
    /// No live lease has that fencing token.
    LeaseNotFound,
    /// A bulkhead of that name is there.
    BulkheadExists,
    /// Permits run, waiters wait, or it is on its way out.
    BulkheadInUse,
    /// Somebody changed it meanwhile.
    EtagMismatch,
}

impl Reason {
    /// All of them, in the order of their totals.
    pub const ALL: [Self; 19] = [
        Self::ConcurrencyCapacityExhausted,
        Self::QueueFull,
        Self::WaitTimeout,
        Self::Displaced,
        Self::CooldownActive,
        Self::CooldownExceedsDeadline,
        Self::ServerCapReached,
        Self::BulkheadNotFound,
        Self::InvalidField,
        Self::PermitsExceedCeiling,
        Self::RequestIdReused,
        Self::Superseded,
        Self::RequestIdSpent,
        Self::BulkheadClosed,
        Self::Draining,
        Self::LeaseNotFound,
        Self::BulkheadExists,
        Self::BulkheadInUse,
        Self::EtagMismatch,
    ];

    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConcurrencyCapacityExhausted => "CONCURRENCY_CAPACITY_EXHAUSTED",
            Self::QueueFull => "QUEUE_FULL",
            Self::WaitTimeout => "WAIT_TIMEOUT",
            Self::Displaced => "DISPLACED",
            Self::CooldownActive => "COOLDOWN_ACTIVE",
            Self::CooldownExceedsDeadline => "COOLDOWN_EXCEEDS_DEADLINE",
            Self::ServerCapReached => "SERVER_CAP_REACHED",
            Self::BulkheadNotFound => "BULKHEAD_NOT_FOUND",
            Self::InvalidField => "INVALID_FIELD",
            Self::PermitsExceedCeiling => "PERMITS_EXCEED_CEILING",
            Self::RequestIdReused => "REQUEST_ID_REUSED",
            Self::Superseded => "SUPERSEDED",
            Self::RequestIdSpent => "REQUEST_ID_SPENT",
            Self::BulkheadClosed => "BULKHEAD_CLOSED",
            Self::Draining => "DRAINING",
            Self::LeaseNotFound => "LEASE_NOT_FOUND",
            Self::BulkheadExists => "BULKHEAD_EXISTS",
            Self::BulkheadInUse => "BULKHEAD_IN_USE",
            Self::EtagMismatch => "ETAG_MISMATCH",
        }
    }
}

/// A refusal with the numbers it was decided on. A value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The limit in force.
    pub limit: u32,
    /// Permits granted and not given back.
    pub running: u32,
    /// Waiters in the queue.
    pub queued: u32,
    /// How many permits the ramp of its partition allows, where that is what held it.
    pub ramp: Option<u32>,
    /// When to come back, at the earliest, without spread; `None` when coming back later does not help.
    pub hint: Option<Duration>,
    /// Which field is wrong, for the reasons that speak of one.
    pub invalid: Option<Invalid>,
    /// What an operator has to say about it, where one closed the bulkhead.
    pub detail: Option<Box<str>>,
}

/// A value outside its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field or setting.
    pub field: &'static str,
    /// What would be right, for people: `"1 to 16"`.
    pub allowed: String,
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} must be {}", self.field, self.allowed)
    }
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The ttl has started anew, and the permits are in the count.
    Renewed {
        /// How long from now.
        ttl: Duration,
        /// The lowest token that may still be live.
        floor: FencingToken,
    },
    /// Released before.
    Released,
    /// Expired before.
    Expired,
    /// An operator took it back.
    Revoked,
    /// No longer remembered.
    Ended,
}

/// What a release found (R7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Live until now; its permits are free.
    Released,
    /// Released before.
    AlreadyReleased,
    /// Expired before.
    Expired,
    /// An operator had taken it back. The first release of one that still ran frees its permits.
    Revoked,
    /// A waiter was withdrawn.
    Withdrawn,
    /// No longer remembered.
    Ended,
    /// Never seen.
    Unknown,
}

/// A live lease, as operators see it.
#[derive(Debug)]
pub struct HeldLease<'a> {
    /// Names it within its bulkhead.
    pub token: FencingToken,
    /// How many permits it holds.
    pub permits: u32,
    /// Its partition; `None` is the bulkhead's own name.
    pub partition: Option<&'a str>,
    /// Who has it.
    pub holder: &'a Holder,
    /// Since when.
    pub granted_at: Instant,
    /// When it ends unless renewed.
    pub end: Instant,
    /// An operator took it back; it runs until its release or its end.
    pub revoked: bool,
}

/// A waiter, as operators see it.
#[derive(Debug)]
pub struct QueuedWaiter<'a> {
    /// Where it stands: smaller is nearer to its turn.
    pub place: Place,
    /// How many permits it asks for.
    pub permits: u32,
    /// How urgent.
    pub priority: Priority,
    /// Its partition; `None` is the bulkhead's own name.
    pub partition: Option<&'a str>,
    /// Who waits.
    pub holder: &'a Holder,
    /// Since when.
    pub since: Instant,
    /// When its wait ends.
    pub end: Instant,
    /// Passed over now: its partition cools or ramps, or it asks for more than the limit.
    pub passed_over: bool,
}

/// A place in the order of a queue (R2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Nanoseconds of the instant it counts from.
    pub nanos: u64,
    /// The number of its arrival.
    pub arrival: u64,
}

/// A lease that an operator took back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// How many permits it holds, or held until now.
    pub permits: u32,
    /// Its ttl.
    pub ttl: Duration,
    /// The request id it was granted to.
    pub request: Option<RequestKey>,
    /// The shell's number for the stream that last renewed it.
    pub stream: Option<u64>,
}

/// A limit that will go back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revert {
    /// When.
    pub at: Instant,
    /// To what, or to the ceiling if that is lower then.
    pub limit: u32,
}

/// How a bulkhead stands (R16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The limit in force.
    pub limit: u32,
    /// Permits granted and not given back.
    pub running: u32,
    /// Waiters in the queue.
    pub queued: u32,
    /// The limit goes back then.
    pub revert: Option<Revert>,
    /// What happened so far.
    pub totals: Totals,
}

/// Counts that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// Leases whose holder was told, replays not counted.
    pub granted: u64,
    /// Requests that were queued.
    pub waited: u64,
    /// Requests that were queued or refused, each counted once (W12).
    pub held_back: u64,
    /// Leases that expired.
    pub expired: u64,
    /// Leases that an operator took back.
    pub revoked: u64,
    /// In SHADOW: requests that the rule would have queued.
    pub would_wait: u64,
    /// In SHADOW: requests that the rule would have refused.
    pub would_refuse: u64,
    /// Ended leases and spent request ids forgotten before their time, for want of room.
    pub forgotten: u64,
    refused: [u64; Reason::ALL.len()],
}

impl Totals {
    /// Refusals for that reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason as usize]
    }

    pub(crate) fn count_refused(&mut self, reason: Reason) {
        self.refused[reason as usize] += 1;
    }
}
