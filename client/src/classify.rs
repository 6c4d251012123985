//! What an error says about trying again: helpers for HTTP and gRPC, and the answer that a classifier of yours gives.

use std::time::{Duration, SystemTime};

use prost::Message;
use tonic::{Code, Status};
use tonic_types::pb;

/// What a failed attempt says about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt will not help.
    Fail,
    /// Another attempt may help, after the usual delay.
    Retry,
    /// The guarded thing said when to come back: not before this time has passed. All of the partition cool down
    /// together, as it is reported with the Release.
    RetryAfter(Duration),
    /// As [`RetryAfter`](Self::RetryAfter), but it concerns this call alone: nothing is reported.
    NotBefore(Duration),
}

impl Verdict {
    /// What is to be told of the guarded thing, if it said something.
    pub(crate) fn report(self) -> Option<Duration> {
        match self {
            Self::RetryAfter(wait) => Some(wait),
            _ => None,
        }
    }

    /// The shortest delay before another attempt; `None` if there is to be none.
    pub(crate) fn floor(self) -> Option<Duration> {
        match self {
            Self::Fail => None,
            Self::Retry => Some(Duration::ZERO),
            Self::RetryAfter(wait) | Self::NotBefore(wait) => Some(wait),
        }
    }
}

/// What an HTTP answer says: `429` and `503` with their `Retry-After` (seconds or a date, compared with `now`); other
/// `5xx`, `408` and `425` may be retried; the rest may not.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_client::{Verdict, http_verdict};
///
/// let now = SystemTime::UNIX_EPOCH;
/// assert_eq!(http_verdict(429, Some("2"), now), Verdict::RetryAfter(Duration::from_secs(2)));
/// let date = Some("Thu, 01 Jan 1970 00:01:00 GMT");
/// assert_eq!(http_verdict(503, date, now), Verdict::RetryAfter(Duration::from_secs(60)));
/// assert_eq!(http_verdict(404, None, now), Verdict::Fail);
/// ```
pub fn http_verdict(status: u16, retry_after: Option<&str>, now: SystemTime) -> Verdict {
    match (status, retry_after.and_then(|text| self::retry_after(text, now))) {
        (429 | 503, Some(wait)) => Verdict::RetryAfter(wait),
        (408 | 425 | 429 | 500 | 502 | 503 | 504, _) => Verdict::Retry,
        _ => Verdict::Fail,
    }
}

/// The wait that a `Retry-After` header tells: whole seconds, or a date that is compared with `now` (a past one means
/// zero). `None` for anything else.
pub fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than a century is for ever.
        return Some(Duration::from_secs(text.parse().unwrap_or(u32::MAX).into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// What a gRPC status says: its pushback (the trailer `grpc-retry-pushback-ms`, where a negative or odd one means no
/// retry) or its `google.rpc.RetryInfo`; without either, UNAVAILABLE may be retried and all else may not. A status of
/// `RESOURCE_EXHAUSTED` or `UNAVAILABLE` with a wait speaks for its partition; a cancelled call is never retried.
///
/// ```
/// use tidegate_client::{Verdict, grpc_verdict};
/// use tonic::Status;
///
/// assert_eq!(grpc_verdict(&Status::unavailable("restarting")), Verdict::Retry);
/// assert_eq!(grpc_verdict(&Status::invalid_argument("no such field")), Verdict::Fail);
/// ```
pub fn grpc_verdict(status: &Status) -> Verdict {
    if matches!(status.code(), Code::Ok | Code::Cancelled) {
        return Verdict::Fail;
    }
    let pushback = status.metadata().get("grpc-retry-pushback-ms").map(|text| text.to_str().ok()?.parse::<u32>().ok());
    let wait = match pushback {
        Some(None) => return Verdict::Fail,
        Some(Some(millis)) => Some(Duration::from_millis(millis.into())),
        None => retry_info(status),
    };
    match (status.code(), wait) {
        (Code::ResourceExhausted | Code::Unavailable, Some(wait)) => Verdict::RetryAfter(wait),
        (_, Some(wait)) => Verdict::NotBefore(wait),
        (Code::Unavailable, None) => Verdict::Retry,
        (_, None) => Verdict::Fail,
    }
}

fn retry_info(status: &Status) -> Option<Duration> {
    let details = pb::Status::decode(status.details()).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    pb::RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn l09_retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |text| retry_after(text, now);
        assert_eq!(wait(" 120 "), Some(120 * SECOND));
        assert_eq!(wait("0"), Some(Duration::ZERO));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30 * SECOND));
        assert_eq!(wait("Sunday, 06-Nov-94 08:50:07 GMT"), Some(30 * SECOND));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO), "past");
        assert_eq!(wait("99999999999999999999999"), Some(SECOND * u32::MAX));
        for odd in ["", "-1", "1.5", "soon", "+3"] {
            assert_eq!(wait(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn l09_http_answers_are_told_apart() {
        let verdict = |status, header| http_verdict(status, header, SystemTime::UNIX_EPOCH);
        for status in [429, 503] {
            assert_eq!(verdict(status, Some("3")), Verdict::RetryAfter(3 * SECOND));
            assert_eq!(verdict(status, Some("soon")), Verdict::Retry);
            assert_eq!(verdict(status, None), Verdict::Retry);
        }
        assert_eq!(verdict(502, Some("3")), Verdict::Retry, "only 429 and 503 speak for everybody");
        assert_eq!([200, 400, 401, 404, 409, 501].map(|status| verdict(status, Some("3"))), [Verdict::Fail; 6]);
    }

    fn status(code: Code, pushback: Option<&str>, info: Option<i64>) -> Status {
        let detail = info.map(|seconds| {
            let retry_delay = Some(prost_types::Duration { seconds, nanos: 0 });
            prost_types::Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
                value: pb::RetryInfo { retry_delay }.encode_to_vec(),
            }
        });
        let details = pb::Status { code: code as i32, message: String::new(), details: detail.into_iter().collect() };
        let mut status = Status::with_details(code, "", details.encode_to_vec().into());
        if let Some(pushback) = pushback {
            status.metadata_mut().insert("grpc-retry-pushback-ms", pushback.parse().unwrap());
        }
        status
    }

    #[test]
    fn s05_grpc_statuses_say_whether_they_are_retryable() {
        let verdict = |code, pushback, info| grpc_verdict(&status(code, pushback, info));
        let busy = Code::ResourceExhausted;
        assert_eq!(verdict(busy, Some("1500"), Some(9)), Verdict::RetryAfter(SECOND * 3 / 2));
        assert_eq!(verdict(busy, None, Some(9)), Verdict::RetryAfter(9 * SECOND));
        assert_eq!([Some("-1"), Some("soon"), None].map(|text| verdict(busy, text, None)), [Verdict::Fail; 3]);
        assert_eq!(verdict(Code::Aborted, None, Some(1)), Verdict::NotBefore(SECOND));
        assert_eq!(verdict(Code::Unavailable, None, None), Verdict::Retry);
        assert_eq!(verdict(Code::Cancelled, Some("5"), Some(9)), Verdict::Fail, "a cancel is never retried");
        assert_eq!(verdict(Code::Internal, None, None), Verdict::Fail);
    }
}
