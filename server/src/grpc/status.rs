//! The form of a refusal on the wire. The only place where a `tonic::Status` is made.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message;
use tidegate_core::{Instant, Invalid, Reason, Refusal};
use tidegate_proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::pb;

use super::convert::duration;
use crate::admission::Refused;

const DOMAIN: &str = "tidegate";
const RETRY_AFTER: &str = "retry-after-ms";
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The status of a refusal that is answered at `now`.
pub(crate) fn refuse(now: Instant, refused: &Refused) -> Status {
    let Refused { refusal, bulkhead, partition, deadline } = refused;
    let Refusal { reason, limit, running, queued, ramp, hint, invalid, detail } = refusal;
    let partition = partition.as_deref().unwrap_or_default();
    let hint = hint.map(|hint| whole_millis(hint + spread(*reason, hint).mul_f64(rand::random())));
    let typed = v1::Refusal {
        reason: reason.as_str().into(),
        bulkhead: bulkhead.as_ref().into(),
        partition: partition.into(),
        limit: *limit,
        running: *running,
        unheard: 0,
        queued: *queued,
        retry_hint: hint.map(duration),
    };
    let mut details =
        vec![any("google.rpc.ErrorInfo", &error_info(&typed, *ramp, invalid.as_ref(), detail.as_deref()))];
    details.push(any("tidegate.v1.Refusal", &typed));
    if let Some(invalid) = invalid {
        let field_violations = vec![pb::bad_request::FieldViolation {
            field: invalid.field.into(),
            description: format!("must be {}", invalid.allowed),
            reason: reason.as_str().into(),
            ..Default::default()
        }];
        details.push(any("google.rpc.BadRequest", &pb::BadRequest { field_violations }));
    }
    let mut trailers = MetadataMap::new();
    if let Some(hint) = hint {
        details.push(any("google.rpc.RetryInfo", &pb::RetryInfo { retry_delay: Some(duration(hint)) }));
        let outlasts = deadline.is_some_and(|deadline| now + hint >= deadline);
        trailers.insert(RETRY_AFTER, hint.as_millis().to_string().parse().unwrap_or_else(|_| 0.into()));
        // A stock client would sleep into its deadline, and lose the reason.
        let pushback = if outlasts { "-1".into() } else { hint.as_millis().to_string() };
        trailers.insert(PUSHBACK, pushback.parse().unwrap_or_else(|_| 0.into()));
    }
    let (code, message) = form(*reason, bulkhead, partition, refusal);
    let status = pb::Status { code: code as i32, message: message.clone(), details };
    Status::with_details_and_metadata(code, message, status.encode_to_vec().into(), trailers)
}

/// A field that is out of its range, before any bulkhead was asked.
pub(crate) fn invalid_field(bulkhead: &str, invalid: Invalid) -> Status {
    refuse(Instant::ORIGIN, &Refused::early(Reason::InvalidField, bulkhead, Some(invalid)))
}

/// A call that is refused because memory is short, or because there is no room for its messages.
pub(crate) fn too_much_under_way() -> Status {
    cap("the server has no room for more messages under way, or is short of memory".into())
}

/// A call whose request did not arrive.
pub(crate) fn too_slow(longest: Duration) -> Status {
    cap(format!("a request must arrive whole within {longest:?}"))
}

/// A call for a service of ours that this listener does not serve.
pub(crate) fn elsewhere() -> Status {
    Status::unimplemented("AdmissionService is served on [server] listen, AdminService on admin_listen")
}

fn cap(detail: String) -> Status {
    let mut refused = Refused::early(Reason::ServerCapReached, "", None);
    refused.refusal.detail = Some(detail.into());
    refuse(Instant::ORIGIN, &refused)
}

/// Code and message of each reason. A new reason does not compile until it has both.
fn form(reason: Reason, bulkhead: &str, partition: &str, refusal: &Refusal) -> (Code, String) {
    let Refusal { limit, running, queued, invalid, detail, .. } = refusal;
    let field = invalid.as_ref().map(Invalid::to_string).unwrap_or_default();
    // A free permit and no queue look wrong if nobody says that it is paused.
    let paused = match detail.as_deref() {
        None => String::new(),
        Some("") => "; it is paused".into(),
        Some(detail) => format!("; it is paused: {detail}"),
    };
    match reason {
        Reason::ConcurrencyCapacityExhausted => (
            Code::ResourceExhausted,
            format!("bulkhead {bulkhead:?} has no permit free ({running} of {limit} running, {queued} queued){paused}"),
        ),
        Reason::QueueFull => (
            Code::ResourceExhausted,
            format!(
                "the queue of bulkhead {bulkhead:?} is full ({queued} queued, {running} of {limit} running){paused}"
            ),
        ),
        Reason::WaitTimeout => (
            Code::ResourceExhausted,
            format!(
                "the wait for bulkhead {bulkhead:?} is over ({running} of {limit} running, {queued} queued){paused}"
            ),
        ),
        Reason::Displaced => (
            Code::ResourceExhausted,
            format!("pushed out of the full queue of bulkhead {bulkhead:?} by a more urgent request"),
        ),
        Reason::CooldownActive => (Code::ResourceExhausted, format!("partition {partition:?} cools down")),
        Reason::CooldownExceedsDeadline => {
            (Code::ResourceExhausted, format!("partition {partition:?} cools down for longer than this call has time"))
        }
        Reason::ServerCapReached => {
            (Code::ResourceExhausted, detail.as_deref().unwrap_or("the server has reached a cap").into())
        }
        Reason::BulkheadNotFound => (Code::NotFound, format!("no bulkhead is called {bulkhead:?}")),
        Reason::InvalidField | Reason::PermitsExceedCeiling | Reason::RequestIdReused => (Code::InvalidArgument, field),
        Reason::Superseded => (Code::Aborted, "a repeat with the same request_id took this call's place".into()),
        Reason::BulkheadClosed => {
            let detail = detail.as_deref().filter(|detail| !detail.is_empty()).unwrap_or("no reason was given");
            (Code::FailedPrecondition, format!("bulkhead {bulkhead:?} is closed: {detail}"))
        }
        Reason::Draining => (Code::Unavailable, "the server is stopping".into()),
        Reason::LeaseNotFound => {
            (Code::NotFound, format!("no live lease of bulkhead {bulkhead:?} has that fencing_token"))
        }
        Reason::BulkheadExists => (Code::AlreadyExists, format!("a bulkhead is called {bulkhead:?}")),
        Reason::BulkheadInUse => (
            Code::FailedPrecondition,
            format!("bulkhead {bulkhead:?} has leases or waiters, or is deleted and waits for its last lease"),
        ),
        Reason::EtagMismatch => (Code::Aborted, format!("bulkhead {bulkhead:?} was changed meanwhile: read it again")),
        Reason::RequestIdSpent => (Code::Aborted, "the lease of this request_id has ended, or it was withdrawn".into()),
    }
}

/// The same for tools that know only Google's details.
fn error_info(
    refusal: &v1::Refusal,
    ramp: Option<u32>,
    invalid: Option<&Invalid>,
    detail: Option<&str>,
) -> pb::ErrorInfo {
    let mut metadata = HashMap::new();
    let mut tell = |key: &str, value: String| {
        if !value.is_empty() {
            metadata.insert(key.to_owned(), value);
        }
    };
    tell("bulkhead", refusal.bulkhead.clone());
    tell("partition", refusal.partition.clone());
    if refusal.limit > 0 {
        tell("limit", refusal.limit.to_string());
        tell("running", refusal.running.to_string());
        tell("unheard", refusal.unheard.to_string());
        tell("queued", refusal.queued.to_string());
    }
    if let Some(ramp) = ramp {
        tell("ramp", ramp.to_string());
    }
    if let Some(invalid) = invalid {
        tell("field", invalid.field.to_owned());
        tell("allowed", invalid.allowed.clone());
    }
    if let Some(detail) = detail {
        tell("detail", detail.to_owned());
    }
    pb::ErrorInfo { reason: refusal.reason.clone(), domain: DOMAIN.into(), metadata }
}

fn any(name: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

/// The widest spread upward, so that callers refused together do not come back together. A cooldown is long, and who
/// waited for it must not be much later than it.
fn spread(reason: Reason, hint: Duration) -> Duration {
    match reason {
        Reason::CooldownActive | Reason::CooldownExceedsDeadline => (hint / 5).min(Duration::from_secs(30)),
        _ => (hint / 5).max(hint.min(Duration::from_secs(1))),
    }
}

fn whole_millis(hint: Duration) -> Duration {
    Duration::from_millis(u64::try_from(hint.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_spread_by_a_fifth_or_a_second_at_most_and_a_cooldown_by_a_fifth_within_half_a_minute() {
        let spread = |reason, millis| super::spread(reason, Duration::from_millis(millis)).as_millis();
        assert_eq!([50, 1_000, 3_000, 60_000].map(|hint| spread(Reason::QueueFull, hint)), [50, 1_000, 1_000, 12_000]);
        assert_eq!([50, 3_000, 600_000].map(|hint| spread(Reason::CooldownActive, hint)), [10, 600, 30_000]);
        assert_eq!(whole_millis(Duration::from_nanos(1)), Duration::from_millis(1));
    }
}
