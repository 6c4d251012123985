//! Between the core's values and the plain ones.

use std::time::Duration;

use tidegate_core::{
    Acquire, Draft, Grant, Holder, Instant, OnCooldown, Priority, Reason, Refusal, Release, Renewal, RequestKey,
    Settings,
};

use super::plain::{Answer, Ask, Rules};
use super::shell;

pub fn settings(rules: &Rules) -> Settings {
    let draft = Draft {
        limit: Some(rules.limit),
        ceiling: Some(rules.ceiling),
        max_queued: Some(u32::try_from(rules.max_queued).unwrap()),
        max_wait: Some(Duration::from_nanos(rules.max_wait)),
        lease_ttl: Some(Duration::from_nanos(rules.ttl)),
        max_lease_ttl: Some(Duration::from_nanos(rules.max_ttl)),
        aging_step: Some(Duration::from_nanos(rules.aging_step)),
        displace: Some(rules.displace),
        ramp_step: Some(Duration::from_nanos(rules.ramp_step)),
        ..Draft::default()
    };
    Settings::try_from(draft).unwrap()
}

pub fn acquire(ask: &Ask) -> Acquire {
    Acquire {
        permits: ask.permits,
        priority: [Priority::Critical, Priority::Normal, Priority::Sheddable][usize::try_from(ask.rank).unwrap()],
        max_wait: ask.max_wait.map(Duration::from_nanos),
        deadline: ask.deadline.map(Instant::from_nanos),
        answer_by: ask.answer_by.map(Instant::from_nanos),
        ttl: ask.ttl.map(Duration::from_nanos),
        request: ask.request.map(request),
        fingerprint: ask.print,
        partition: shell::name(ask.partition).map(Into::into),
        cooldown: ask.cooldown.map(Instant::from_nanos),
        on_cooldown: if ask.waits { OnCooldown::Wait } else { OnCooldown::Refuse },
        holder: Holder::default(),
    }
}

pub fn request(number: u64) -> RequestKey {
    RequestKey { identity: number % 2, request: number / 2 }
}

pub fn granted(grant: &Grant) -> Answer {
    Answer::Granted {
        token: grant.token.as_u64(),
        permits: grant.permits,
        ttl: nanos(grant.ttl),
        granted_at: grant.granted_at.as_nanos(),
        replayed: grant.replayed,
    }
}

/// Also checks what the oracle does not tell: that a hint is there where coming back helps.
pub fn refused(refusal: &Refusal) -> Answer {
    let Refusal { reason, limit, running, queued, ramp, hint, .. } = *refusal;
    let cools = matches!(reason, Reason::CooldownActive | Reason::CooldownExceedsDeadline);
    let helps = cools
        || matches!(
            reason,
            Reason::ConcurrencyCapacityExhausted
                | Reason::QueueFull
                | Reason::WaitTimeout
                | Reason::Displaced
                | Reason::ServerCapReached
        );
    let within = |hint| cools || (Duration::from_millis(50)..=Duration::from_mins(1)).contains(&hint);
    assert_eq!(hint.is_some_and(within), helps, "the hint of {refusal:?}");
    let cooldown = hint.filter(|_| cools).map(nanos);
    Answer::Refused { reason, limit, running, queued: queued as usize, ramp, cooldown }
}

/// The ttl, or what a release would answer.
pub fn renewed(renewal: Renewal) -> Result<u64, Release> {
    match renewal {
        Renewal::Renewed { ttl, .. } => Ok(nanos(ttl)),
        Renewal::Released => Err(Release::AlreadyReleased),
        Renewal::Expired => Err(Release::Expired),
        Renewal::Revoked => Err(Release::Revoked),
        Renewal::Ended => Err(Release::Ended),
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}
