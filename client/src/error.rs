//! What goes wrong between asking for a permit and giving it back, each with what to do about it.

use std::time::Duration;

use tidegate_core::Invalid;

use crate::classify::Verdict;
use crate::lease::Loss;
use crate::refusal::Refusal;

/// Why there is no permit, or no longer one. The text says what to do; [`reason`](Self::reason) and
/// [`hint`](Self::hint) are for programs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
/// use std::time::Duration;
/// use tidegate_client::{Error, LocalBulkhead};
///
/// let db = LocalBulkhead::new("orders-db", 1)?;
/// let permit = db.acquire().await?;
/// match db.with_max_wait(Duration::ZERO).acquire().await {
///     Err(Error::Refused(refusal)) => {
///         assert_eq!(refusal.reason, "CONCURRENCY_CAPACITY_EXHAUSTED");
///         assert_eq!(refusal.metadata["running"], "1");
///         println!("busy; come back in {:?}", refusal.hint());
///     }
///     other => panic!("there was one permit: {other:?}"),
/// }
/// # drop(permit); Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bulkhead, or the server before it, said no; the work has not started.
    #[error("refused with {}: {}{}{}", .0.reason, .0.message, come_back(.0), advice(&.0.reason))]
    Refused(Box<Refusal>),
    /// No answer of Tidegate's arrived in time; the work has not started.
    #[error(
        "no answer from {endpoints}: {detail}; check the address (the admission port, by default 7600, with http:// or \
         https://), that the server runs, and TLS on both sides; a fallback lets work go on meanwhile"
    )]
    Unreachable {
        /// Where was asked.
        endpoints: String,
        /// How it failed.
        detail: String,
    },
    /// Something answers there, but it does not understand this client.
    #[error(
        "{endpoints} does not serve {rpc}: it is no Tidegate, its admin port, or a version too old for this client; \
         use the admission port (by default 7600) of a server at least as new as this client"
    )]
    WrongServer {
        /// Where was asked.
        endpoints: String,
        /// What it did not know, or said wrongly.
        rpc: &'static str,
    },
    /// The lease ended while its work ran, or before the grant arrived: others may have its permits.
    #[error(
        "the lease on bulkhead {bulkhead:?} is lost: {loss}; the work was stopped, and what it left half done is for \
         the caller to check; a longer lease_ttl outlives longer outages"
    )]
    Lost {
        /// Which bulkhead.
        bulkhead: String,
        /// How it was lost.
        loss: Loss,
    },
    /// A value that was handed in is out of its range; nothing has happened.
    #[error("{field} must be {allowed}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What would be right.
        allowed: String,
    },
    /// A lease that nobody renews would end before its work; the work has not started.
    #[error(
        "a lease of {ttl:?} that is not renewed must be longer than {least:?} (the work's time-out of {work:?} and a \
         margin): ask for a longer one with with_lease_ttl, shorten the time-out, or let it be renewed"
    )]
    LeaseTooShort {
        /// How long the lease would last.
        ttl: Duration,
        /// What it must exceed.
        least: Duration,
        /// The time-out of the work.
        work: Duration,
    },
    /// Queueing, attempts and delays together would take longer than allowed.
    #[error(
        "the budget of {budget:?} is spent ({spent:?} so far, and the next delay would be {delay:?}): come back later, \
         or allow a larger budget"
    )]
    BudgetSpent {
        /// All that was allowed.
        budget: Duration,
        /// What queueing, attempts and delays took.
        spent: Duration,
        /// What would have come next; zero if an attempt was cut.
        delay: Duration,
    },
    /// No group has that name.
    #[error("no group is called {name:?}; there are: {known}; work of unknown groups runs in the default one")]
    UnknownGroup {
        /// The name that was asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The caller, or the scope the work belonged to, cancelled it.
    #[error("cancelled before it ended")]
    Cancelled,
    /// The work panicked in a task of its own.
    #[error("the work panicked: see the panic's own message")]
    Panicked,
}

impl Error {
    /// Upper snake case: the reason of a refusal as on the wire, else one of this library's own.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.reason,
            Self::Unreachable { .. } => "UNREACHABLE",
            Self::WrongServer { .. } => "WRONG_SERVER",
            Self::Lost { .. } => "LEASE_LOST",
            Self::Invalid { .. } => "INVALID",
            Self::LeaseTooShort { .. } => "LEASE_TOO_SHORT",
            Self::BudgetSpent { .. } => "BUDGET_SPENT",
            Self::UnknownGroup { .. } => "UNKNOWN_GROUP",
            Self::Cancelled => "CANCELLED",
            Self::Panicked => "PANICKED",
        }
    }

    /// When to come back, at the earliest; `None` when coming back later does not help, or nobody knows.
    pub fn hint(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.hint(),
            _ => None,
        }
    }

    /// Whether asking again may help, and after what time. Cancelled work is never retried.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Refused(refusal) => match refusal.hint() {
                Some(hint) => Verdict::NotBefore(hint),
                // Whoever lost its request id may ask with a new one.
                None if refusal.reason == "REQUEST_ID_SPENT" => Verdict::Retry,
                None => Verdict::Fail,
            },
            Self::Unreachable { .. } => Verdict::Retry,
            _ => Verdict::Fail,
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid { field: invalid.field, allowed: invalid.allowed }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

fn come_back(refusal: &Refusal) -> String {
    refusal.hint().map(|hint| format!("; come back in {hint:?}")).unwrap_or_default()
}

/// What to do where coming back later is not the answer, or not all of it.
fn advice(reason: &str) -> &'static str {
    match reason {
        "BULKHEAD_NOT_FOUND" => "; define it, a template for it, or a bulkhead named default in the server's settings",
        "NO_CREDENTIALS" => "; send credentials with ClientBuilder::metadata, or a client certificate",
        "NOT_ALLOWED" => "; this identity may not use it: ask an operator for the permission, or check the credentials",
        "BULKHEAD_CLOSED" => "; an operator closed it and must open it again",
        "PERMITS_EXCEED_CEILING" => "; ask for fewer permits, or have the ceiling raised",
        "CLIENT_CAP_REACHED" => "; bound the work that may wait, or use one Client more",
        "CONCURRENCY_CAPACITY_EXHAUSTED" => "; or wait for a permit by a longer max_wait",
        _ => "",
    }
}
