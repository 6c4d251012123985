//! Refusals that are made here: by a bulkhead in this process, and on their way into a status of gRPC's.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message;
use tidegate_core::Reason;
use tidegate_proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::pb;

use super::{DOMAIN, PUSHBACK, RETRY_AFTER, Refusal, Violation};

impl Refusal {
    /// One without numbers.
    pub(crate) fn plain(code: Code, reason: &str, message: String) -> Self {
        Self {
            code,
            message,
            reason: reason.into(),
            metadata: HashMap::new(),
            typed: None,
            violations: Vec::new(),
            retry_delay: None,
            retry_after: None,
            pushback: None,
        }
    }

    /// The refusal of a bulkhead in this process, as a server would tell it.
    pub(crate) fn decided(refusal: &tidegate_core::Refusal, bulkhead: &str, partition: &str) -> Self {
        let tidegate_core::Refusal { reason, limit, running, queued, ramp, hint, invalid, detail } = refusal;
        let hint = hint.map(|hint| whole_millis(hint + spread(*reason, hint).mul_f64(rand::random())));
        let mut metadata = HashMap::from([
            ("bulkhead".to_owned(), bulkhead.to_owned()),
            ("partition".to_owned(), partition.to_owned()),
            ("limit".to_owned(), limit.to_string()),
            ("running".to_owned(), running.to_string()),
            ("queued".to_owned(), queued.to_string()),
        ]);
        metadata.extend(ramp.map(|ramp| ("ramp".to_owned(), ramp.to_string())));
        let violations = invalid.iter().map(|invalid| Violation {
            field: invalid.field.into(),
            description: format!("must be {}", invalid.allowed),
        });
        let message = match (invalid, detail) {
            (Some(invalid), _) => invalid.to_string(),
            (None, Some(detail)) => format!("bulkhead {bulkhead:?} is closed: {detail}"),
            (None, None) => format!("bulkhead {bulkhead:?} has {running} of {limit} running and {queued} queued"),
        };
        Self {
            code: code(*reason),
            message,
            reason: reason.as_str().into(),
            metadata,
            typed: Some(v1::Refusal {
                reason: reason.as_str().into(),
                bulkhead: bulkhead.into(),
                partition: partition.into(),
                limit: *limit,
                running: *running,
                unheard: 0,
                queued: *queued,
                retry_hint: hint.and_then(|hint| hint.try_into().ok()),
            }),
            violations: violations.collect(),
            retry_delay: hint,
            retry_after: hint,
            pushback: None,
        }
    }

    /// The status that a server of yours answers with to pass the refusal on: the same details and trailers as
    /// Tidegate's own, so that clients treat it alike.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_client::Error> {
    /// use tidegate_client::{Error, LocalBulkhead, refusal};
    ///
    /// let db = LocalBulkhead::new("orders-db", 1)?;
    /// let _permit = db.acquire().await?;
    /// let Err(Error::Refused(refused)) = db.with_max_wait(std::time::Duration::ZERO).acquire().await else { panic!() };
    /// let status = refused.to_status();
    /// assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    /// assert_eq!(refusal(&status).unwrap().reason, refused.reason);
    /// # Ok(()) }
    /// ```
    pub fn to_status(&self) -> Status {
        let info = pb::ErrorInfo {
            reason: self.reason.clone(),
            domain: DOMAIN.into(),
            metadata: self.metadata.clone().into_iter().collect(),
        };
        let mut details = vec![any("google.rpc.ErrorInfo", &info)];
        details.extend(self.typed.as_ref().map(|typed| any("tidegate.v1.Refusal", typed)));
        let mut trailers = MetadataMap::new();
        if let Some(hint) = self.hint() {
            let delay = pb::RetryInfo { retry_delay: hint.try_into().ok() };
            details.push(any("google.rpc.RetryInfo", &delay));
            for name in [RETRY_AFTER, PUSHBACK] {
                trailers.insert(name, u64::try_from(hint.as_millis()).unwrap_or(u64::MAX).into());
            }
        }
        let message = self.message.clone();
        let status = pb::Status { code: self.code as i32, message: message.clone(), details };
        Status::with_details_and_metadata(self.code, message, status.encode_to_vec().into(), trailers)
    }
}

/// The code of each reason. A new reason does not compile until it has one.
fn code(reason: Reason) -> Code {
    match reason {
        Reason::ConcurrencyCapacityExhausted
        | Reason::QueueFull
        | Reason::WaitTimeout
        | Reason::Displaced
        | Reason::CooldownActive
        | Reason::CooldownExceedsDeadline
        | Reason::ServerCapReached => Code::ResourceExhausted,
        Reason::Draining => Code::Unavailable,
        Reason::BulkheadNotFound | Reason::LeaseNotFound => Code::NotFound,
        Reason::BulkheadClosed | Reason::BulkheadInUse => Code::FailedPrecondition,
        Reason::BulkheadExists => Code::AlreadyExists,
        Reason::InvalidField | Reason::PermitsExceedCeiling | Reason::RequestIdReused => Code::InvalidArgument,
        Reason::Superseded | Reason::RequestIdSpent | Reason::EtagMismatch => Code::Aborted,
    }
}

fn any(name: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

/// The widest spread upward, so that callers refused together do not come back together.
fn spread(reason: Reason, hint: Duration) -> Duration {
    match reason {
        Reason::CooldownActive | Reason::CooldownExceedsDeadline => (hint / 5).min(Duration::from_secs(30)),
        _ => (hint / 5).max(hint.min(Duration::from_secs(1))),
    }
}

fn whole_millis(hint: Duration) -> Duration {
    Duration::from_millis(u64::try_from(hint.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}
