//! What people decide about a bulkhead, valid by construction.

use std::time::Duration;

use crate::decision::Invalid;

mod merge;

/// The highest `ceiling`.
pub const MAX_CEILING: u32 = 1_000_000_000;
/// The highest `max_queued`.
pub const MAX_QUEUED: u32 = 1_000_000;
/// The longest `max_wait` and `aging_step`.
pub const MAX_WAIT: Duration = Duration::from_hours(1);
/// The shortest `lease_ttl`.
pub const MIN_LEASE_TTL: Duration = Duration::from_secs(2);
/// The longest `max_lease_ttl`.
pub const MAX_LEASE_TTL: Duration = Duration::from_mins(5);

/// Waiters per permit of the start limit, unless `max_queued` says otherwise.
const QUEUE_FACTOR: u32 = 8;

/// What a bulkhead does with those who ask (R12). Leases run on in all modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The rules hold.
    #[default]
    Enforcing,
    /// Everything is granted at once; beside it the rules are played, and what they would do is counted.
    Shadow,
    /// Nothing is granted; the queue keeps its order and its ends.
    Paused,
    /// Everything is refused, waiters too.
    Closed,
}

impl Mode {
    /// Its name in files and for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforcing => "enforcing",
            Self::Shadow => "shadow",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }
}

/// Settings as somebody wrote them down: what is `None` takes its default. The only place where defaults are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The start limit, 1 to the ceiling; has no default.
    pub limit: Option<u32>,
    /// The most the limit may ever be, 1 to [`MAX_CEILING`]; default: the start limit.
    pub ceiling: Option<u32>,
    /// The most waiters, 0 to [`MAX_QUEUED`]; default: 8 × the start limit, within 8 to [`MAX_QUEUED`].
    pub max_queued: Option<u32>,
    /// The longest wait, 0 to [`MAX_WAIT`]; default 2 s.
    pub max_wait: Option<Duration>,
    /// How long a lease lasts unless its request says otherwise, [`MIN_LEASE_TTL`] to `max_lease_ttl`; default 10 s.
    pub lease_ttl: Option<Duration>,
    /// The longest a request may ask for, `lease_ttl` to [`MAX_LEASE_TTL`]; default: `lease_ttl`.
    pub max_lease_ttl: Option<Duration>,
    /// How much later a waiter is placed for each rank, 0 to [`MAX_WAIT`]; default: a quarter of `max_wait`.
    pub aging_step: Option<Duration>,
    /// The shortest retry hint, 1 ms to 1 h; default 50 ms.
    pub min_retry_hint: Option<Duration>,
    /// The longest retry hint, `min_retry_hint` to 1 h; default 1 min.
    pub max_retry_hint: Option<Duration>,
    /// A newcomer that meets a full queue pushes out the last waiter if that one's priority is lower; default: no.
    pub displace: Option<bool>,
    /// How long each doubling of the careful start after a cooldown takes, 0 (no ramp) to 1 min; default 1 s.
    pub ramp_step: Option<Duration>,
    /// What to do with those who ask; default: enforcing.
    pub mode: Option<Mode>,
}

/// Settings of a bulkhead, each within its range. Made from a [`Draft`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    limit: u32,
    ceiling: u32,
    max_queued: u32,
    max_wait: Duration,
    lease_ttl: Duration,
    max_lease_ttl: Duration,
    aging_step: Duration,
    min_retry_hint: Duration,
    max_retry_hint: Duration,
    displace: bool,
    ramp_step: Duration,
    mode: Mode,
}

impl Settings {
    /// The start limit.
    pub fn limit(&self) -> u32 {
        self.limit
    }
    /// The most the limit may ever be.
    pub fn ceiling(&self) -> u32 {
        self.ceiling
    }
    /// The most waiters.
    pub fn max_queued(&self) -> u32 {
        self.max_queued
    }
    /// The longest wait.
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }
    /// How long a lease lasts unless its request says otherwise.
    pub fn lease_ttl(&self) -> Duration {
        self.lease_ttl
    }
    /// The longest a request may ask for.
    pub fn max_lease_ttl(&self) -> Duration {
        self.max_lease_ttl
    }
    /// How much later a waiter is placed for each rank.
    pub fn aging_step(&self) -> Duration {
        self.aging_step
    }
    /// A newcomer may push out a less urgent waiter.
    pub fn displace(&self) -> bool {
        self.displace
    }
    /// How long each doubling of the ramp takes.
    pub fn ramp_step(&self) -> Duration {
        self.ramp_step
    }

    /// The shortest retry hint.
    pub fn min_retry_hint(&self) -> Duration {
        self.min_retry_hint
    }
    /// The longest retry hint.
    pub fn max_retry_hint(&self) -> Duration {
        self.max_retry_hint
    }
    /// What to do with those who ask.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The same in another mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// `hint` within the bounds of retry hints.
    pub(crate) fn clamp_hint(&self, hint: Duration) -> Duration {
        hint.clamp(self.min_retry_hint, self.max_retry_hint)
    }
}

/// All of them written down, to change some and to check the whole again.
impl From<&Settings> for Draft {
    fn from(settings: &Settings) -> Self {
        Self {
            limit: Some(settings.limit),
            ceiling: Some(settings.ceiling),
            max_queued: Some(settings.max_queued),
            max_wait: Some(settings.max_wait),
            lease_ttl: Some(settings.lease_ttl),
            max_lease_ttl: Some(settings.max_lease_ttl),
            aging_step: Some(settings.aging_step),
            min_retry_hint: Some(settings.min_retry_hint),
            max_retry_hint: Some(settings.max_retry_hint),
            displace: Some(settings.displace),
            ramp_step: Some(settings.ramp_step),
            mode: Some(settings.mode),
        }
    }
}

impl TryFrom<Draft> for Settings {
    type Error = Invalid;

    fn try_from(draft: Draft) -> Result<Self, Invalid> {
        let ceiling = number("ceiling", draft.ceiling.or(draft.limit).unwrap_or(0), 1, MAX_CEILING);
        let limit = match draft.limit {
            Some(limit) => number("limit", limit, 1, draft.ceiling.unwrap_or(MAX_CEILING))?,
            None => return Err(Invalid { field: "limit", allowed: format!("given, 1 to {MAX_CEILING}") }),
        };
        let ceiling = ceiling?;
        let max_queued = draft.max_queued.unwrap_or(limit.saturating_mul(QUEUE_FACTOR).clamp(QUEUE_FACTOR, MAX_QUEUED));
        let max_wait = span("max_wait", draft.max_wait.unwrap_or(Duration::from_secs(2)), Duration::ZERO, MAX_WAIT)?;
        let lease_ttl = draft.lease_ttl.unwrap_or(Duration::from_secs(10));
        let max_lease_ttl = draft.max_lease_ttl.unwrap_or(lease_ttl);
        let min_retry_hint = draft.min_retry_hint.unwrap_or(Duration::from_millis(50));
        Ok(Self {
            limit,
            ceiling,
            max_queued: number("max_queued", max_queued, 0, MAX_QUEUED)?,
            max_wait,
            lease_ttl: span(
                "lease_ttl",
                lease_ttl,
                MIN_LEASE_TTL,
                draft.max_lease_ttl.unwrap_or(MAX_LEASE_TTL).min(MAX_LEASE_TTL),
            )?,
            max_lease_ttl: span("max_lease_ttl", max_lease_ttl, lease_ttl, MAX_LEASE_TTL)?,
            aging_step: span("aging_step", draft.aging_step.unwrap_or(max_wait / 4), Duration::ZERO, MAX_WAIT)?,
            min_retry_hint: span("min_retry_hint", min_retry_hint, Duration::from_millis(1), MAX_WAIT)?,
            max_retry_hint: span(
                "max_retry_hint",
                draft.max_retry_hint.unwrap_or(Duration::from_mins(1)),
                min_retry_hint,
                MAX_WAIT,
            )?,
            displace: draft.displace.unwrap_or(false),
            ramp_step: span(
                "ramp_step",
                draft.ramp_step.unwrap_or(Duration::from_secs(1)),
                Duration::ZERO,
                Duration::from_mins(1),
            )?,
            mode: draft.mode.unwrap_or_default(),
        })
    }
}

fn number(field: &'static str, value: u32, least: u32, most: u32) -> Result<u32, Invalid> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Invalid { field, allowed: format!("{least} to {most}, not {value}") })
    }
}

/// `value`, in whole milliseconds, if it is within `least..=most`.
pub(crate) fn span(field: &'static str, value: Duration, least: Duration, most: Duration) -> Result<Duration, Invalid> {
    if (least..=most).contains(&value) {
        Ok(whole_millis(value))
    } else {
        Err(Invalid { field, allowed: format!("{} to {}, not {}", shown(least), shown(most), shown(value)) })
    }
}

/// As people write it: whole seconds, or what is left in smaller units.
fn shown(span: Duration) -> String {
    if span.subsec_nanos() == 0 { format!("{}s", span.as_secs()) } else { format!("{span:?}") }
}

/// The rest below a millisecond is cut off.
pub(crate) fn whole_millis(value: Duration) -> Duration {
    Duration::from_millis(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value)]
    fn check(draft: Draft, field: &str, allowed: &str) {
        let invalid = Settings::try_from(Draft { limit: draft.limit.or(Some(4)), ..draft }).unwrap_err();
        assert_eq!((invalid.field, invalid.allowed.as_str()), (field, allowed));
    }

    #[test]
    fn w02_defaults_follow_from_the_start_limit() {
        let settings = Settings::try_from(Draft { limit: Some(4), ..Draft::default() }).unwrap();
        assert_eq!((settings.ceiling, settings.max_queued), (4, 32));
        assert_eq!((settings.max_wait, settings.aging_step), (Duration::from_secs(2), Duration::from_millis(500)));
        assert_eq!((settings.lease_ttl, settings.max_lease_ttl), (Duration::from_secs(10), Duration::from_secs(10)));
        let large = Settings::try_from(Draft { limit: Some(MAX_CEILING), ..Draft::default() }).unwrap();
        assert_eq!(large.max_queued, MAX_QUEUED);
    }

    #[test]
    fn a_value_out_of_range_names_its_field_and_the_range() {
        let some = Duration::from_secs;
        let none = Settings::try_from(Draft::default()).unwrap_err();
        assert_eq!((none.field, none.allowed.as_str()), ("limit", "given, 1 to 1000000000"));
        check(Draft { limit: Some(0), ..Draft::default() }, "limit", "1 to 1000000000, not 0");
        check(Draft { limit: Some(9), ceiling: Some(8), ..Draft::default() }, "limit", "1 to 8, not 9");
        check(Draft { ceiling: Some(2_000_000_000), ..Draft::default() }, "ceiling", "1 to 1000000000, not 2000000000");
        check(Draft { max_queued: Some(1_000_001), ..Draft::default() }, "max_queued", "0 to 1000000, not 1000001");
        check(Draft { max_wait: Some(some(3601)), ..Draft::default() }, "max_wait", "0s to 3600s, not 3601s");
        check(Draft { lease_ttl: Some(some(1)), ..Draft::default() }, "lease_ttl", "2s to 300s, not 1s");
        check(
            Draft { lease_ttl: Some(some(20)), max_lease_ttl: Some(some(15)), ..Draft::default() },
            "lease_ttl",
            "2s to 15s, not 20s",
        );
        check(Draft { max_lease_ttl: Some(some(301)), ..Draft::default() }, "max_lease_ttl", "10s to 300s, not 301s");
        check(Draft { aging_step: Some(some(3601)), ..Draft::default() }, "aging_step", "0s to 3600s, not 3601s");
        check(Draft { min_retry_hint: Some(some(0)), ..Draft::default() }, "min_retry_hint", "1ms to 3600s, not 0s");
        check(Draft { max_retry_hint: Some(some(0)), ..Draft::default() }, "max_retry_hint", "50ms to 3600s, not 0s");
        check(Draft { ramp_step: Some(some(61)), ..Draft::default() }, "ramp_step", "0s to 60s, not 61s");
    }
}
