//! What comes into an admission, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Acquire, Grant, Instant, Invalid, Reason, Refusal};

use super::DEFAULT;
use crate::name;
use crate::waits::Waits;

/// A request as it came in, its fields checked.
#[derive(Debug)]
pub struct Ask {
    /// When the call was received.
    pub received: Instant,
    /// The name asked for.
    pub bulkhead: String,
    /// The calls that wait on the connection it came on.
    pub waits: Waits,
    /// Recognises repeats; `None` recognises none.
    pub request_id: Option<String>,
    /// The rest of it; `request` and `fingerprint` are filled in here.
    pub acquire: Acquire,
}

/// A granted request.
#[derive(Debug)]
pub struct Granted {
    /// Names the lease, for its holder alone.
    pub lease_id: String,
    /// The bulkhead that granted it.
    pub bulkhead: Arc<str>,
    /// The lease.
    pub grant: Grant,
    /// From the receipt of the call to the grant.
    pub waited: Duration,
}

/// A refusal, and of whom.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why, and the numbers it was decided on.
    pub refusal: Refusal,
    /// The bulkhead that refused, or the name asked for when there is none.
    pub bulkhead: Arc<str>,
    /// The partition of the request; `None` when no bulkhead was reached.
    pub partition: Option<Box<str>>,
    /// The call's own deadline.
    pub deadline: Option<Instant>,
}

impl Refused {
    /// Refused before any bulkhead was asked. A name that is too long to be one is not repeated.
    pub fn early(reason: Reason, bulkhead: &str, invalid: Option<Invalid>) -> Self {
        let hint = (reason == Reason::ServerCapReached).then_some(Duration::from_secs(1));
        let refusal = Refusal { reason, limit: 0, running: 0, queued: 0, ramp: None, hint, invalid, detail: None };
        let bulkhead = if bulkhead.len() <= name::LONGEST { bulkhead } else { "" };
        Self { refusal, bulkhead: bulkhead.into(), partition: None, deadline: None }
    }
}

impl Refused {
    /// A field or setting that is out of its range.
    pub fn invalid(bulkhead: &str, invalid: Invalid) -> Self {
        Self::early(Reason::InvalidField, bulkhead, Some(invalid))
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { refusal: Refusal { reason, invalid, .. }, bulkhead, .. } = self;
        match invalid {
            Some(invalid) => write!(f, "bulkhead {bulkhead:?}: {invalid}"),
            None => write!(f, "bulkhead {bulkhead:?}: {}", reason.as_str()),
        }
    }
}

impl std::error::Error for Refused {}

pub(super) fn not_found(name: &str) -> Refused {
    if name.is_empty() {
        let allowed = "given: the name of a bulkhead".into();
        return Refused::early(Reason::InvalidField, name, Some(Invalid { field: "bulkhead", allowed }));
    }
    if name == DEFAULT {
        let allowed = format!("the name of a bulkhead: none is called {DEFAULT}");
        return Refused::early(Reason::InvalidField, name, Some(Invalid { field: "bulkhead", allowed }));
    }
    Refused::early(Reason::BulkheadNotFound, name, None)
}
