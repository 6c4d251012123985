//! The words of a story: how times, settings and requests are read, and how answers are told.

use std::time::Duration;

use tidegate_core::{
    Acquire, Draft, FencingToken, Grant, Instant, Mode, OnCooldown, Priority, QueuedWaiter, Reason, Refusal, Release,
    Renewal, RequestKey, Room, Settings, Totals,
};

pub fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

/// `1.5s`, `20ms`, `2m`.
pub fn span(word: &str) -> Result<Duration, String> {
    let at = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len());
    let unit = match &word[at..] {
        "ns" => 1,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        _ => return Err(format!("`{word}` is no time: write 1.5s, 20ms or 2m")),
    };
    let (whole, part) = word[..at].split_once('.').unwrap_or((&word[..at], ""));
    let mut nanos = number::<u64>(whole)? * unit;
    let mut digit_unit = unit;
    for digit in part.chars() {
        digit_unit /= 10;
        nanos += u64::from(digit.to_digit(10).ok_or(format!("`{word}` is no time"))?) * digit_unit;
    }
    Ok(Duration::from_nanos(nanos))
}

pub fn instant(word: &str) -> Result<Instant, String> {
    Ok(Instant::ORIGIN + span(word)?)
}

pub fn settings(words: &[&str]) -> Result<Settings, String> {
    let mut draft = Draft::default();
    for pair in words.chunks(2) {
        match *pair {
            ["limit", value] => draft.limit = Some(number(value)?),
            ["ceiling", value] => draft.ceiling = Some(number(value)?),
            ["max_queued", value] => draft.max_queued = Some(number(value)?),
            ["max_wait", value] => draft.max_wait = Some(span(value)?),
            ["lease_ttl", value] => draft.lease_ttl = Some(span(value)?),
            ["max_lease_ttl", value] => draft.max_lease_ttl = Some(span(value)?),
            ["aging_step", value] => draft.aging_step = Some(span(value)?),
            ["displace", "yes"] => draft.displace = Some(true),
            ["mode", value] => draft.mode = Some(mode(value)?),
            ["ramp_step", value] => draft.ramp_step = Some(span(value)?),
            ["min_retry_hint", value] => draft.min_retry_hint = Some(span(value)?),
            ["max_retry_hint", value] => draft.max_retry_hint = Some(span(value)?),
            _ => return Err(format!("no such setting: {}", pair.join(" "))),
        }
    }
    Settings::try_from(draft).map_err(|invalid| invalid.to_string())
}

/// `leases 3 waiters 2`: how much of what is capped for the server it may have; of the rest as much as it likes.
pub fn room(words: &[&str]) -> Result<Room, String> {
    let mut room = Room::default();
    for pair in words.chunks(2) {
        match *pair {
            ["leases", value] => room.leases = number(value)?,
            ["waiters", value] => room.waiters = number(value)?,
            ["remembered", value] => room.remembered = number(value)?,
            _ => return Err(format!("no such room: {}", pair.join(" "))),
        }
    }
    Ok(room)
}

/// `2 critical wait 1s request r1`: a request for permits.
pub fn acquire(words: &[&str]) -> Result<Acquire, String> {
    let [permits, rest @ ..] = words else { return Err("how many permits?".into()) };
    let mut ask = Acquire { permits: number(permits)?, ..Acquire::default() };
    let mut rest = rest;
    while !rest.is_empty() {
        rest = match rest {
            ["critical", rest @ ..] => {
                ask.priority = Priority::Critical;
                rest
            }
            ["sheddable", rest @ ..] => {
                ask.priority = Priority::Sheddable;
                rest
            }
            ["wait", value, rest @ ..] => {
                ask.max_wait = Some(span(value)?);
                rest
            }
            ["deadline", value, rest @ ..] => {
                ask.deadline = Some(instant(value)?);
                rest
            }
            ["answer_by", value, rest @ ..] => {
                ask.answer_by = Some(instant(value)?);
                rest
            }
            ["ttl", value, rest @ ..] => {
                ask.ttl = Some(span(value)?);
                rest
            }
            ["of", value, rest @ ..] => {
                ask.partition = Some((*value).into());
                rest
            }
            ["patiently", rest @ ..] => {
                ask.on_cooldown = OnCooldown::Wait;
                rest
            }
            ["request", value, rest @ ..] => {
                ask.request = Some(request(value));
                rest
            }
            [word, ..] => return Err(format!("unknown word `{word}` in a request")),
            [] => unreachable!(),
        };
    }
    // As the shell does: of what a repeat must not change.
    ask.fingerprint = u64::from(ask.permits) << 32 | ask.ttl.map_or(0, |ttl| ttl.as_secs());
    Ok(ask)
}

/// A name is hashed, as the shell does.
pub fn request(name: &str) -> RequestKey {
    let hash = name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    RequestKey { identity: 0, request: hash }
}

pub fn token(token: FencingToken) -> String {
    format!("#{}", token.as_u64())
}

pub fn at(instant: Instant) -> String {
    format!("{:?}", instant.since(Instant::ORIGIN))
}

pub fn mode(word: &str) -> Result<Mode, String> {
    match word {
        "enforcing" => Ok(Mode::Enforcing),
        "shadow" => Ok(Mode::Shadow),
        "paused" => Ok(Mode::Paused),
        "closed" => Ok(Mode::Closed),
        _ => Err(format!("`{word}` is no mode")),
    }
}

pub fn waiter(waiter: &QueuedWaiter) -> String {
    let QueuedWaiter { permits, priority, since, end, passed_over, .. } = waiter;
    let over = if *passed_over { " passed over" } else { "" };
    format!("{permits} {priority:?} since {} until {}{over}", at(*since), at(*end))
}

pub fn granted(grant: &Grant, now: Instant) -> String {
    let (again, start) = if grant.replayed { (" again", now) } else { ("", grant.granted_at) };
    format!("granted {}{again} until {}", token(grant.token), at(start + grant.ttl))
}

pub fn refused(refusal: &Refusal) -> String {
    let Refusal { reason, limit, running, queued, ramp, hint, invalid, detail } = refusal;
    let name = reason.as_str();
    let partition = match (reason, ramp, hint) {
        (Reason::CooldownActive | Reason::CooldownExceedsDeadline, _, Some(left)) => format!(", cools for {left:?}"),
        (_, Some(permits), Some(hint)) => format!(", ramp {permits}, retry after {hint:?}"),
        _ => String::new(),
    };
    match (invalid, detail) {
        (Some(invalid), _) => format!("refused {name}: {invalid}"),
        (None, Some(detail)) if *reason == Reason::BulkheadClosed => format!("refused {name}: {detail}"),
        (None, detail) => {
            let paused = detail.as_ref().map(|detail| format!(", paused: {detail}")).unwrap_or_default();
            format!("refused {name} (limit {limit}, running {running}, queued {queued}{partition}{paused})")
        }
    }
}

pub fn renewed(renewal: Renewal, now: Instant) -> String {
    match renewal {
        Renewal::Renewed { ttl, .. } => format!("renewed until {}", at(now + ttl)),
        Renewal::Released => "released before".into(),
        Renewal::Expired => "expired".into(),
        Renewal::Revoked => "revoked".into(),
        Renewal::Ended => "ended".into(),
    }
}

pub fn released(release: Release) -> &'static str {
    match release {
        Release::Released => "released",
        Release::AlreadyReleased => "already released",
        Release::Expired => "expired",
        Release::Revoked => "revoked",
        Release::Withdrawn => "withdrawn",
        Release::Ended => "ended",
        Release::Unknown => "unknown",
    }
}

/// The ones that are not zero.
pub fn totals(totals: &Totals) -> String {
    let Totals { granted, waited, held_back, expired, forgotten, revoked, would_wait, would_refuse, .. } = *totals;
    let counts = [("granted", granted), ("waited", waited), ("held back", held_back), ("expired", expired)];
    let counts = counts.into_iter().chain([("forgotten", forgotten), ("revoked", revoked)]);
    let counts = counts.chain([("would wait", would_wait), ("would refuse", would_refuse)]);
    let refused = Reason::ALL.into_iter().map(|reason| (reason.as_str(), totals.refused(reason)));
    let some = counts.chain(refused).filter(|&(_, count)| count > 0);
    some.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
