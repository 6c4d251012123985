//! What a refusing status carries, decoded: the same answer stands in its details and in its trailers.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message;
use tidegate_proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::pb;

mod made;

/// The domain of every `ErrorInfo` of ours.
const DOMAIN: &str = "tidegate";
const RETRY_AFTER: &str = "retry-after-ms";
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Why a call was refused, and when to come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status code.
    pub code: Code,
    /// For people.
    pub message: String,
    /// For programs: upper snake case, for example `QUEUE_FULL`.
    pub reason: String,
    /// The numbers of the decision as texts, by lowerCamel names.
    pub metadata: HashMap<String, String>,
    /// The same, typed.
    pub typed: Option<v1::Refusal>,
    /// Which fields of the request are wrong.
    pub violations: Vec<Violation>,
    /// When to come back, at the earliest, as `google.rpc.RetryInfo` says.
    pub retry_delay: Option<Duration>,
    /// The same, as the trailer `retry-after-ms` says.
    pub retry_after: Option<Duration>,
    /// What the trailer `grpc-retry-pushback-ms` tells stock gRPC clients.
    pub pushback: Option<Pushback>,
}

/// A field of a request that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub field: String,
    /// What would be right.
    pub description: String,
}

/// What a stock gRPC client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// It retries after this time, if its policy has retries at all.
    After(Duration),
    /// It gives up: the hint does not fit its deadline.
    Never,
}

impl Refusal {
    /// When to come back, at the earliest; `None` when coming back later does not help.
    pub fn hint(&self) -> Option<Duration> {
        self.typed.as_ref().and_then(|typed| typed.retry_hint).and_then(span)
    }
}

/// The refusal inside a status; `None` if the status is not an answer of Tidegate's, but of the transport's.
pub fn refusal(status: &Status) -> Option<Refusal> {
    let details = pb::Status::decode(status.details()).ok()?.details;
    let info: pb::ErrorInfo =
        find(&details, "google.rpc.ErrorInfo").filter(|info: &pb::ErrorInfo| info.domain == DOMAIN)?;
    let violations = find::<pb::BadRequest>(&details, "google.rpc.BadRequest").unwrap_or_default().field_violations;
    let violations = violations
        .into_iter()
        .map(|violation| Violation { field: violation.field, description: violation.description });
    let retry: Option<pb::RetryInfo> = find(&details, "google.rpc.RetryInfo");
    Some(Refusal {
        code: status.code(),
        message: status.message().into(),
        reason: info.reason,
        metadata: info.metadata,
        typed: find(&details, "tidegate.v1.Refusal"),
        violations: violations.collect(),
        retry_delay: retry.and_then(|retry| retry.retry_delay).and_then(span),
        retry_after: trailer(status.metadata(), RETRY_AFTER).and_then(millis),
        // Whatever is not a number of milliseconds means no retry (gRFC A6).
        pushback: trailer(status.metadata(), PUSHBACK)
            .map(|text| millis(text).map_or(Pushback::Never, Pushback::After)),
    })
}

/// Whether a refusal says that this server, or this moment, is the wrong one, rather than that there is no permit.
pub(crate) fn is_passing(reason: &str) -> bool {
    matches!(reason, "DRAINING" | "NOT_DECIDER" | "STORE_UNAVAILABLE")
}

/// The first detail of that type.
fn find<M: Message + Default>(details: &[prost_types::Any], name: &str) -> Option<M> {
    let detail = details.iter().find(|detail| detail.type_url.rsplit('/').next() == Some(name))?;
    M::decode(detail.value.as_slice()).ok()
}

fn span(duration: prost_types::Duration) -> Option<Duration> {
    duration.try_into().ok()
}

fn trailer<'a>(trailers: &'a MetadataMap, name: &str) -> Option<&'a str> {
    trailers.get(name)?.to_str().ok()
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(domain: &str) -> Status {
        let any =
            |name: &str, value: Vec<u8>| prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value };
        let metadata = [("limit".to_owned(), "4".to_owned())].into();
        let info = pb::ErrorInfo { reason: "QUEUE_FULL".into(), domain: domain.into(), metadata };
        let delay = prost_types::Duration { seconds: 1, nanos: 500_000_000 };
        let typed = v1::Refusal { limit: 4, retry_hint: Some(delay), ..Default::default() };
        let details = vec![
            any("google.rpc.ErrorInfo", info.encode_to_vec()),
            any("tidegate.v1.Refusal", typed.encode_to_vec()),
            any("google.rpc.RetryInfo", pb::RetryInfo { retry_delay: Some(delay) }.encode_to_vec()),
        ];
        let status = pb::Status { code: 8, message: String::new(), details };
        let mut trailers = MetadataMap::new();
        trailers.insert(RETRY_AFTER, 1500.into());
        trailers.insert(PUSHBACK, (-1).into());
        Status::with_details_and_metadata(Code::ResourceExhausted, "full", status.encode_to_vec().into(), trailers)
    }

    #[test]
    fn details_and_trailers_become_one_value() {
        let refusal = refusal(&status(DOMAIN)).unwrap();
        let hint = Some(Duration::from_millis(1500));
        assert_eq!((refusal.hint(), refusal.retry_delay, refusal.retry_after), (hint, hint, hint));
        assert_eq!((refusal.code, refusal.pushback), (Code::ResourceExhausted, Some(Pushback::Never)));
        assert_eq!(
            (&refusal.reason[..], &refusal.message[..], &refusal.metadata["limit"][..]),
            ("QUEUE_FULL", "full", "4")
        );
    }

    #[test]
    fn what_is_not_ours_is_no_refusal() {
        assert_eq!(refusal(&status("somebody.else")), None);
        assert_eq!(refusal(&Status::cancelled("timeout")), None);
        assert_eq!(refusal(&Status::with_details(Code::Internal, "", vec![0xFF; 9].into())), None);
    }
}
