//! From wire to domain and back. A bad field becomes an `Invalid` that names it and what would be right.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::{Acquire, Holder, Instant, Invalid, OnCooldown, Priority, Release, Renewal};
use tidegate_proto::v1;
use tonic::Request;

use crate::admission::{Ask, DEFAULT, Granted};
use crate::name;
use crate::transport::Connection;

/// The header that carries the call's time-out.
const TIMEOUT: &str = "grpc-timeout";
/// The longest texts, in bytes.
const LONGEST_REQUEST_ID: usize = 128;
pub(crate) const LONGEST_TEXT: usize = 256;
const LONGEST_LEASE_ID: usize = 96;
/// The most lease ids in one request.
const MOST_RENEWED: usize = 1000;

/// A request that was received at `received`, its fields checked.
pub(crate) fn ask(received: Instant, request: Request<v1::AcquireRequest>) -> Result<Ask, Invalid> {
    let on = request.extensions().get::<Arc<Connection>>();
    let (address, waits) = (on.map(|on| on.address), on.map(|on| on.waits.clone()).unwrap_or_default());
    let timeout = timeout(&request)?;
    let message = request.into_inner();
    let bulkhead = bulkhead_name(message.bulkhead)?;
    if let Some(partition) = &message.partition {
        name::check("partition", partition)?;
    }
    text("holder", &message.holder, LONGEST_TEXT)?;
    text("request_id", &message.request_id, LONGEST_REQUEST_ID)?;
    let acquire = Acquire {
        permits: message.permits.max(1),
        priority: priority(message.priority)?,
        max_wait: message.max_wait.map(|wait| span("max_wait", wait)).transpose()?,
        deadline: timeout.map(|timeout| received + timeout),
        answer_by: timeout.map(|timeout| received + timeout.saturating_sub(margin(timeout))),
        ttl: message.lease_ttl.map(|ttl| span("lease_ttl", ttl)).transpose()?,
        request: None,
        fingerprint: 0,
        partition: message.partition.map(Into::into),
        cooldown: None,
        on_cooldown: on_cooldown(message.on_cooldown)?,
        crowded: false,
        holder: Holder { name: message.holder.into(), address },
    };
    let request_id = (!message.request_id.is_empty()).then_some(message.request_id);
    Ok(Ask { received, bulkhead, waits, request_id, acquire })
}

/// A Release, its fields checked.
pub(crate) struct Released {
    pub(crate) what: What,
    /// A wait to report, and for which partition; `None` is the lease's.
    pub(crate) retry_after: Option<(Duration, Option<String>)>,
}

/// How a Release names what it gives back.
pub(crate) enum What {
    Lease(String),
    Request { bulkhead: String, request_id: String },
}

pub(crate) fn released(message: v1::ReleaseRequest) -> Result<Released, Invalid> {
    if v1::Outcome::try_from(message.outcome).is_err() {
        return Err(Invalid { field: "outcome", allowed: "a value of tidegate.v1.Outcome".into() });
    }
    message.latency.map(|latency| span("latency", latency)).transpose()?;
    let wait = message.retry_after.map(|after| reported_wait("retry_after", after)).transpose()?;
    if let Some(partition) = &message.partition {
        name::check("partition", partition)?;
    }
    let retry_after = wait.filter(|wait| !wait.is_zero()).map(|wait| (wait, message.partition));
    let what = match (message.lease_id.is_empty(), message.request_id.is_empty()) {
        (false, true) if message.bulkhead.is_empty() => {
            text("lease_id", &message.lease_id, LONGEST_LEASE_ID)?;
            What::Lease(message.lease_id)
        }
        (true, false) => {
            text("request_id", &message.request_id, LONGEST_REQUEST_ID)?;
            What::Request { bulkhead: bulkhead_name(message.bulkhead)?, request_id: message.request_id }
        }
        _ => {
            let allowed = "given alone, or request_id with bulkhead instead".into();
            return Err(Invalid { field: "lease_id", allowed });
        }
    };
    Ok(Released { what, retry_after })
}

/// A report: the partition, its wait, and why.
pub(crate) fn report(message: v1::ReportRetryAfterRequest) -> Result<(String, Duration, String), Invalid> {
    name::check("partition", &message.partition)?;
    text("detail", &message.detail, LONGEST_TEXT)?;
    let wait = message.retry_after.map(|after| reported_wait("retry_after", after)).transpose()?;
    Ok((message.partition, wait.unwrap_or_default(), message.detail))
}

/// What somebody was told to wait: a well-formed duration. Only a positive one counts (R10).
fn reported_wait(field: &'static str, value: prost_types::Duration) -> Result<Duration, Invalid> {
    match (value.seconds, value.nanos) {
        (..0, -999_999_999..=0) | (0, -999_999_999..0) => Ok(Duration::ZERO),
        _ => span(field, value),
    }
}

pub(crate) fn lease_ids(lease_ids: &[String]) -> Result<(), Invalid> {
    if lease_ids.len() > MOST_RENEWED {
        let allowed = format!("at most {MOST_RENEWED}, not {}", lease_ids.len());
        return Err(Invalid { field: "lease_ids", allowed });
    }
    lease_ids.iter().try_for_each(|lease_id| text("lease_ids", lease_id, LONGEST_LEASE_ID))
}

pub(crate) fn text(field: &'static str, value: &str, longest: usize) -> Result<(), Invalid> {
    if value.len() <= longest {
        Ok(())
    } else {
        Err(Invalid { field, allowed: format!("at most {longest} bytes, not {}", value.len()) })
    }
}

/// The name asked for; an empty one means the default bulkhead (R13).
fn bulkhead_name(bulkhead: String) -> Result<String, Invalid> {
    if bulkhead.is_empty() {
        return Ok(DEFAULT.into());
    }
    name::check("bulkhead", &bulkhead)?;
    Ok(bulkhead)
}

fn priority(value: i32) -> Result<Priority, Invalid> {
    match v1::Priority::try_from(value) {
        Ok(v1::Priority::Critical) => Ok(Priority::Critical),
        Ok(v1::Priority::Unspecified | v1::Priority::Normal) => Ok(Priority::Normal),
        Ok(v1::Priority::Sheddable) => Ok(Priority::Sheddable),
        Err(_) => Err(Invalid { field: "priority", allowed: "a value of tidegate.v1.Priority".into() }),
    }
}

fn on_cooldown(value: i32) -> Result<OnCooldown, Invalid> {
    match v1::OnCooldown::try_from(value) {
        Ok(v1::OnCooldown::Unspecified | v1::OnCooldown::Refuse) => Ok(OnCooldown::Refuse),
        Ok(v1::OnCooldown::Wait) => Ok(OnCooldown::Wait),
        Err(_) => Err(Invalid { field: "on_cooldown", allowed: "a value of tidegate.v1.OnCooldown".into() }),
    }
}

/// A well-formed duration of 0 or more.
pub(crate) fn span(field: &'static str, value: prost_types::Duration) -> Result<Duration, Invalid> {
    let bad =
        || Invalid { field, allowed: format!("a duration of 0s or more, not {} s {} ns", value.seconds, value.nanos) };
    let seconds = u64::try_from(value.seconds).map_err(|_| bad())?;
    match u32::try_from(value.nanos) {
        Ok(nanos @ ..1_000_000_000) => Ok(Duration::new(seconds, nanos)),
        _ => Err(bad()),
    }
}

/// The time-out that the client sent: at most eight digits and a unit.
fn timeout<T>(request: &Request<T>) -> Result<Option<Duration>, Invalid> {
    let Some(sent) = request.metadata().get(TIMEOUT) else { return Ok(None) };
    let parse = || {
        let (digits, unit) = sent.to_str().ok()?.split_at_checked(sent.len().checked_sub(1)?)?;
        if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let number: u64 = digits.parse().ok()?;
        match unit {
            "H" => Some(Duration::from_hours(number)),
            "M" => Some(Duration::from_mins(number)),
            "S" => Some(Duration::from_secs(number)),
            "m" => Some(Duration::from_millis(number)),
            "u" => Some(Duration::from_micros(number)),
            "n" => Some(Duration::from_nanos(number)),
            _ => None,
        }
    };
    match parse() {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(Invalid { field: TIMEOUT, allowed: "1 to 8 digits and one of H, M, S, m, u, n".into() }),
    }
}

/// How long before its deadline a call is answered, so that it hears our answer and not its own time-out (R3).
fn margin(timeout: Duration) -> Duration {
    Duration::from_millis(20).max(timeout / 100).min(timeout / 4)
}

pub(crate) fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    prost_types::Timestamp::from(time)
}

impl From<Granted> for v1::AcquireResponse {
    fn from(granted: Granted) -> Self {
        let Granted { lease_id, bulkhead, grant, waited } = granted;
        let lease = v1::Lease {
            lease_id,
            bulkhead: bulkhead.as_ref().into(),
            permits: grant.permits,
            fencing_token: grant.token.as_u64(),
            fencing_floor: grant.floor.as_u64(),
            ttl: Some(duration(grant.ttl)),
            renew_interval: Some(duration(grant.ttl / 3)),
        };
        Self { lease: Some(lease), waited: Some(duration(waited)), replayed: grant.replayed }
    }
}

pub(crate) fn release_state(release: Release) -> v1::ReleaseState {
    match release {
        Release::Released => v1::ReleaseState::Released,
        Release::AlreadyReleased => v1::ReleaseState::AlreadyReleased,
        Release::Expired => v1::ReleaseState::Expired,
        Release::Revoked => v1::ReleaseState::Revoked,
        Release::Withdrawn => v1::ReleaseState::Withdrawn,
        Release::Ended => v1::ReleaseState::Ended,
        Release::Unknown => v1::ReleaseState::Unknown,
    }
}

/// `None` is an id that is not genuine.
pub(crate) fn renewal(lease_id: String, renewal: Option<Renewal>) -> v1::Renewal {
    let (state, ttl, floor) = match renewal {
        Some(Renewal::Renewed { ttl, floor }) => (v1::RenewalState::Renewed, Some(ttl), floor.as_u64()),
        Some(Renewal::Released) => (v1::RenewalState::Released, None, 0),
        Some(Renewal::Revoked) => (v1::RenewalState::Revoked, None, 0),
        Some(Renewal::Expired) => (v1::RenewalState::Expired, None, 0),
        Some(Renewal::Ended) => (v1::RenewalState::Ended, None, 0),
        None => (v1::RenewalState::Unknown, None, 0),
    };
    v1::Renewal { lease_id, state: state.into(), ttl: ttl.map(duration), fencing_floor: floor }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(timeout_header: &'static str) -> Result<Option<Duration>, Invalid> {
        let mut request = Request::new(());
        request.metadata_mut().insert(TIMEOUT, timeout_header.parse().unwrap());
        timeout(&request)
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        assert_eq!(sent("99999999H").unwrap(), Some(Duration::from_hours(99_999_999)));
        assert_eq!(sent("250m").unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(sent("0n").unwrap(), Some(Duration::ZERO));
        for odd in ["", "m", "12", "+1S", "-1S", "1.5S", "123456789S", "1X", "1s", " 1S"] {
            assert_eq!(sent(odd).unwrap_err().field, "grpc-timeout", "{odd}");
        }
    }

    #[test]
    fn the_margin_is_a_hundredth_within_20_ms_and_a_quarter() {
        let margin = |millis| margin(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 8, 80, 1_000, 2_000, 60_000].map(margin), [0, 2, 20, 20, 20, 600]);
    }

    #[test]
    fn a_malformed_or_negative_duration_names_its_field() {
        let of = |seconds, nanos| span("max_wait", prost_types::Duration { seconds, nanos });
        assert_eq!(of(i64::MAX, 999_999_999).unwrap(), Duration::new(i64::MAX as u64, 999_999_999));
        for (seconds, nanos) in [(-1, 0), (0, -1), (1, -1), (-1, 1), (0, 1_000_000_000), (i64::MIN, i32::MIN)] {
            assert_eq!(of(seconds, nanos).unwrap_err().field, "max_wait");
        }
    }
}
