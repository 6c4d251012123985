//! The rules of admission, as a synchronous state machine that is handed the time.
//!
//! A [`Bulkhead`] owns a limit, the leases that run under it and the queue of those who wait. Every change is one call
//! `verb(&mut self, now, …)` that returns what was decided and whom else it concerns ([`Step`]). There is no clock, no
//! randomness, no lock, no I/O and no task here; the shell (`tidegate-server`) owns those. R1 to R16 in the comments are
//! the rules of admission as ARCHITECTURE.md numbers them.
//!
//! # Words
//!
//! *Limit*: how many permits may run now; *ceiling*: the most the limit may ever be. *Running*: permits granted and not
//! given back. *Lease*: a grant of one or more permits to a holder, with an end. *Waiter*: a call in the queue; it is
//! *eligible* when nothing but the number of free permits holds it back.
//!
//! # Invariants
//!
//! Checked after every mutator in debug builds:
//! - `running` is the sum of the live leases' permits, and the ledger knows each of them as live;
//! - no eligible waiter at the head fits into the limit, unless grants pause after a stall (no lost wake-up);
//! - every waiter has exactly one place and one end, and its request id leads back to it.

mod bulkhead;
mod cooldown;
mod decision;
mod ends;
mod id;
mod lease;
mod ledger;
mod memory;
mod partition;
mod queue;
mod rate;
mod replay;
mod settings;
mod time;

pub use bulkhead::{Bulkhead, Room};
pub use cooldown::{calm_at, extend};
pub use decision::{
    Acquire, Decision, Effect, Grant, HeldLease, Holder, Invalid, OnCooldown, Place, Priority, QueuedWaiter, Reason,
    Refusal, Release, Renewal, Revert, Revoked, Status, Step, Totals,
};
pub use id::{FencingToken, RequestKey, WaiterId};
pub use memory::Shed;
pub use settings::{Draft, MAX_CEILING, MAX_LEASE_TTL, MAX_QUEUED, MAX_WAIT, MIN_LEASE_TTL, Mode, Settings};
pub use time::{Instant, Stall, slack};
