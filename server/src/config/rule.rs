//! What `[defaults]`, each `[[bulkhead]]` and each `[[template]]` say.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::{Draft, MAX_CEILING, MAX_LEASE_TTL, MAX_QUEUED, MAX_WAIT, MIN_LEASE_TTL, Settings};

use super::section::{Kind, Section};

/// The settings of a bulkhead as somebody wrote them. What a bulkhead leaves out stands in `[server]` or has a default.
pub(super) fn read(keys: &mut Section<'_>) -> Draft {
    let waits = || Duration::ZERO..=MAX_WAIT;
    let ttls = || MIN_LEASE_TTL..=MAX_LEASE_TTL;
    Draft {
        limit: keys.given_within("limit", 1..=MAX_CEILING),
        ceiling: keys.given_within("ceiling", 1..=MAX_CEILING),
        max_queued: keys.given_within("max_queued", 0..=MAX_QUEUED),
        max_wait: keys.given_within("max_wait", waits()),
        lease_ttl: keys.given_within("lease_ttl", ttls()),
        max_lease_ttl: keys.given_within("max_lease_ttl", ttls()),
        aging_step: keys.given_within("aging_step", waits()),
        displace: keys.given("displace"),
        mode: keys.given("mode"),
        ..Draft::default()
    }
}

/// Remembers what a draft says.
pub(super) fn hold(keys: &mut Section<'_>, draft: &Draft) {
    fn one<T: Kind>(keys: &mut Section<'_>, key: &'static str, value: Option<&T>) {
        if let Some(value) = value {
            keys.hold(key, value, default_of(key));
        }
    }
    one(keys, "limit", draft.limit.as_ref());
    one(keys, "ceiling", draft.ceiling.as_ref());
    one(keys, "max_queued", draft.max_queued.as_ref());
    one(keys, "max_wait", draft.max_wait.as_ref());
    one(keys, "lease_ttl", draft.lease_ttl.as_ref());
    one(keys, "max_lease_ttl", draft.max_lease_ttl.as_ref());
    one(keys, "aging_step", draft.aging_step.as_ref());
    one(keys, "displace", draft.displace.as_ref());
    one(keys, "mode", draft.mode.as_ref());
}

/// The settings that follow from a draft, all of them remembered; `None` if something is wrong with it.
pub(super) fn settings(keys: &mut Section<'_>, server: &Draft) -> Option<Settings> {
    let mut draft = read(keys);
    draft.ramp_step = server.ramp_step;
    draft.min_retry_hint = server.min_retry_hint;
    draft.max_retry_hint = server.max_retry_hint;
    let mut faulty = BTreeSet::new();
    // The core tells one fault at a time. What it complains about is put right, to hear of the next.
    let settings = loop {
        let invalid = match Settings::try_from(draft.clone()) {
            Ok(settings) => break settings,
            Err(invalid) => invalid,
        };
        keys.fault(invalid.field, &invalid.allowed);
        if !faulty.insert(invalid.field) {
            return None;
        }
        match invalid.field {
            "limit" => draft.limit = Some(1),
            "lease_ttl" => draft.lease_ttl = Some(MIN_LEASE_TTL),
            _ => return None,
        }
    };
    hold(keys, &Draft::from(&settings));
    faulty.is_empty().then_some(settings)
}

/// Where a value comes from that nobody gave.
fn default_of(key: &str) -> &'static str {
    match key {
        "ceiling" => "default, limit",
        "max_queued" => "default, limit x 8",
        "max_lease_ttl" => "default, lease_ttl",
        "aging_step" => "default, max_wait / 4",
        _ => "default",
    }
}
