//! Between the wire and what operators do and see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Draft, Invalid, Mode, Priority, Reason, Settings};
use tidegate_proto::v1;
use tonic::Request;

use crate::admission::{AuditChange, AuditEvent, CooldownView, LeaseView, View, WaiterView};
use crate::caps::Cap;
use crate::grpc::convert::{LONGEST_TEXT, duration, span, text, timestamp};
use crate::name;
use crate::transport::Connection;

/// For how long a limit may be moved.
const SHORTEST_REVERT: Duration = Duration::from_secs(1);
const LONGEST_REVERT: Duration = Duration::from_hours(7 * 24);
/// How often a watcher may look.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_mins(1);
/// The most names in a watch.
const MOST_WATCHED: usize = 1000;
/// The settings that a mask may name, within `settings`.
const PATHS: [&str; 9] =
    ["limit", "ceiling", "max_queued", "max_wait", "lease_ttl", "max_lease_ttl", "aging_step", "displace", "mode"];

/// Who calls, as the audit shows it.
pub(super) fn actor<T>(request: &Request<T>) -> String {
    request.extensions().get::<Arc<Connection>>().map(|on| on.address.to_string()).unwrap_or_default()
}

/// Why an operator changes something.
pub(super) fn detail(detail: &str) -> Result<(), Invalid> {
    text("detail", detail, LONGEST_TEXT)
}

/// A partition, and why an operator changes something about it.
pub(super) fn partition(partition: &str, why: &str) -> Result<(), Invalid> {
    name::check("partition", partition)?;
    detail(why)
}

pub(super) fn mode(value: i32) -> Result<Mode, Invalid> {
    match v1::Mode::try_from(value) {
        Ok(v1::Mode::Unspecified | v1::Mode::Enforcing) => Ok(Mode::Enforcing),
        Ok(v1::Mode::Shadow) => Ok(Mode::Shadow),
        Ok(v1::Mode::Paused) => Ok(Mode::Paused),
        Ok(v1::Mode::Closed) => Ok(Mode::Closed),
        Err(_) => Err(Invalid { field: "mode", allowed: "a value of tidegate.v1.Mode".into() }),
    }
}

/// A mode that must be said.
pub(super) fn new_mode(value: i32) -> Result<Mode, Invalid> {
    if value == v1::Mode::Unspecified as i32 {
        return Err(Invalid {
            field: "mode",
            allowed: "given: MODE_ENFORCING, MODE_SHADOW, MODE_PAUSED or MODE_CLOSED".into(),
        });
    }
    mode(value)
}

pub(super) fn revert_after(value: Option<prost_types::Duration>) -> Result<Option<Duration>, Invalid> {
    within("revert_after", value, SHORTEST_REVERT, LONGEST_REVERT)
}

/// Which bulkheads to watch, and how often to look.
pub(super) fn watch(message: v1::WatchBulkheadsRequest) -> Result<(Vec<String>, Duration), Invalid> {
    let v1::WatchBulkheadsRequest { mut names, interval } = message;
    if names.len() > MOST_WATCHED {
        return Err(Invalid { field: "names", allowed: format!("at most {MOST_WATCHED}, not {}", names.len()) });
    }
    names.iter().try_for_each(|name| name::check("names", name))?;
    names.sort_unstable();
    names.dedup();
    let interval = within("interval", interval, SHORTEST_LOOK, LONGEST_LOOK)?;
    Ok((names, interval.unwrap_or(Duration::from_secs(1))))
}

fn within(
    field: &'static str,
    value: Option<prost_types::Duration>,
    least: Duration,
    most: Duration,
) -> Result<Option<Duration>, Invalid> {
    let Some(value) = value.map(|value| span(field, value)).transpose()? else { return Ok(None) };
    if (least..=most).contains(&value) {
        Ok(Some(value))
    } else {
        Err(Invalid { field, allowed: format!("{least:?} to {most:?}, not {value:?}") })
    }
}

/// Settings as they were sent: what is absent is `None`.
pub(super) fn draft(settings: v1::BulkheadSettings) -> Result<Draft, Invalid> {
    let time = |field, value: Option<prost_types::Duration>| value.map(|value| span(field, value)).transpose();
    Ok(Draft {
        limit: settings.limit,
        ceiling: settings.ceiling,
        max_queued: settings.max_queued,
        max_wait: time("max_wait", settings.max_wait)?,
        lease_ttl: time("lease_ttl", settings.lease_ttl)?,
        max_lease_ttl: time("max_lease_ttl", settings.max_lease_ttl)?,
        aging_step: time("aging_step", settings.aging_step)?,
        displace: settings.displace,
        mode: (settings.mode != v1::Mode::Unspecified as i32).then(|| mode(settings.mode)).transpose()?,
        ..Draft::default()
    })
}

/// What is to be changed about settings.
pub(super) struct Patch {
    sent: Draft,
    /// Which of them count: of [`PATHS`].
    paths: Vec<&'static str>,
    names_limit: bool,
}

impl Patch {
    pub(super) fn new(settings: v1::BulkheadSettings, mask: Option<prost_types::FieldMask>) -> Result<Self, Invalid> {
        let sent = draft(settings)?;
        let Some(mask) = mask else {
            let paths = PATHS.into_iter().filter(|path| is_there(&sent, path)).collect();
            return Ok(Self { sent, paths, names_limit: false });
        };
        let mut paths = Vec::new();
        for path in &mask.paths {
            if matches!(path.as_str(), "*" | "settings") {
                paths.extend(PATHS);
                continue;
            }
            let known = path.strip_prefix("settings.").and_then(|path| PATHS.into_iter().find(|known| *known == path));
            paths.push(known.ok_or_else(|| {
                let known = PATHS.map(|path| format!("settings.{path}")).join(", ");
                Invalid { field: "update_mask", allowed: format!("some of *, settings, {known}; not {path:?}") }
            })?);
        }
        let names_limit = mask.paths.iter().any(|path| path == "settings.limit");
        Ok(Self { sent, paths, names_limit })
    }

    /// All that was sent, for a bulkhead that is to be made.
    pub(super) fn whole(&self) -> Result<Settings, Invalid> {
        Settings::try_from(self.sent.clone())
    }

    /// Those settings with what is to be changed, and whether the limit in force moves as well: if the mask names the limit,
    /// or another start limit was sent. A bulkhead that only had to be there keeps its limit.
    pub(super) fn merge(&self, present: &Settings, keeps_limit: bool) -> Result<(Settings, bool), Invalid> {
        let (mut draft, sent) = (Draft::from(present), &self.sent);
        let mut limit = None;
        for path in &self.paths {
            match *path {
                "limit" if keeps_limit && !self.names_limit => {}
                "limit" => limit = Some(sent.limit),
                "ceiling" => draft.ceiling = sent.ceiling,
                "max_queued" => draft.max_queued = sent.max_queued,
                "max_wait" => draft.max_wait = sent.max_wait,
                "lease_ttl" => draft.lease_ttl = sent.lease_ttl,
                "max_lease_ttl" => draft.max_lease_ttl = sent.max_lease_ttl,
                "aging_step" => draft.aging_step = sent.aging_step,
                "displace" => draft.displace = sent.displace,
                _ => draft.mode = sent.mode,
            }
        }
        let moves_limit = limit.is_some_and(|limit| self.names_limit || limit != Some(present.limit()));
        draft.limit = match limit {
            Some(limit) => limit,
            // A lower ceiling lowers the limit with it.
            None => draft.limit.map(|limit| draft.ceiling.map_or(limit, |ceiling| limit.min(ceiling))),
        };
        Ok((Settings::try_from(draft)?, moves_limit))
    }
}

fn is_there(sent: &Draft, path: &str) -> bool {
    match path {
        "limit" => sent.limit.is_some(),
        "ceiling" => sent.ceiling.is_some(),
        "max_queued" => sent.max_queued.is_some(),
        "max_wait" => sent.max_wait.is_some(),
        "lease_ttl" => sent.lease_ttl.is_some(),
        "max_lease_ttl" => sent.max_lease_ttl.is_some(),
        "aging_step" => sent.aging_step.is_some(),
        "displace" => sent.displace.is_some(),
        _ => sent.mode.is_some(),
    }
}

impl From<View> for v1::Bulkhead {
    fn from(view: View) -> Self {
        let View { name, settings, status, counted_since, revert_time, mode_detail, deleting, etag } = view;
        let totals = status.totals;
        let refused = Reason::ALL.map(|reason| (reason.as_str().to_owned(), totals.refused(reason)));
        Self {
            name: name.as_ref().into(),
            settings: Some(decided(&settings)),
            status: Some(v1::BulkheadStatus {
                limit: status.limit,
                running: status.running,
                unheard: 0,
                queued: status.queued,
                counted_since: Some(timestamp(counted_since)),
                granted: totals.granted,
                waited: totals.waited,
                held_back: totals.held_back,
                refused: refused.into_iter().filter(|(_, count)| *count > 0).collect(),
                expired: totals.expired,
                revoked: totals.revoked,
                would_wait: totals.would_wait,
                would_refuse: totals.would_refuse,
                forgotten: totals.forgotten,
                revert_limit: status.revert.map(|revert| revert.limit),
                revert_time: revert_time.map(timestamp),
                mode_detail: mode_detail.into(),
                deleting,
            }),
            etag,
        }
    }
}

fn decided(settings: &Settings) -> v1::BulkheadSettings {
    v1::BulkheadSettings {
        limit: Some(settings.limit()),
        ceiling: Some(settings.ceiling()),
        max_queued: Some(settings.max_queued()),
        max_wait: Some(duration(settings.max_wait())),
        lease_ttl: Some(duration(settings.lease_ttl())),
        max_lease_ttl: Some(duration(settings.max_lease_ttl())),
        aging_step: Some(duration(settings.aging_step())),
        displace: Some(settings.displace()),
        mode: match settings.mode() {
            Mode::Enforcing => v1::Mode::Enforcing,
            Mode::Shadow => v1::Mode::Shadow,
            Mode::Paused => v1::Mode::Paused,
            Mode::Closed => v1::Mode::Closed,
        }
        .into(),
    }
}

impl From<LeaseView> for v1::HeldLease {
    fn from(lease: LeaseView) -> Self {
        Self {
            bulkhead: lease.bulkhead.as_ref().into(),
            fencing_token: lease.token.as_u64(),
            permits: lease.permits,
            partition: lease.partition.into(),
            holder: lease.holder.name.into(),
            address: lease.holder.address.as_ref().map(SocketAddr::to_string).unwrap_or_default(),
            grant_time: Some(timestamp(lease.granted_at)),
            ttl_left: Some(duration(lease.ttl_left)),
            revoked: lease.revoked,
        }
    }
}

impl From<WaiterView> for v1::QueuedWaiter {
    fn from(waiter: WaiterView) -> Self {
        Self {
            bulkhead: waiter.bulkhead.as_ref().into(),
            permits: waiter.permits,
            priority: match waiter.priority {
                Priority::Critical => v1::Priority::Critical,
                Priority::Normal => v1::Priority::Normal,
                Priority::Sheddable => v1::Priority::Sheddable,
            }
            .into(),
            partition: waiter.partition.into(),
            holder: waiter.holder.name.into(),
            address: waiter.holder.address.as_ref().map(SocketAddr::to_string).unwrap_or_default(),
            queue_time: Some(timestamp(waiter.queued_at)),
            wait_left: Some(duration(waiter.wait_left)),
            passed_over: waiter.passed_over,
        }
    }
}

impl From<CooldownView> for v1::Cooldown {
    fn from(cooldown: CooldownView) -> Self {
        let CooldownView { partition, remaining, detail } = cooldown;
        Self { partition: partition.as_ref().into(), remaining: Some(duration(remaining)), detail }
    }
}

impl From<AuditEvent> for v1::AuditEvent {
    fn from(event: AuditEvent) -> Self {
        let AuditEvent { id, time, action, actor, bulkhead, partition, detail, changes } = event;
        Self {
            id,
            time: Some(timestamp(time)),
            actor: actor.into(),
            action: action.into(),
            bulkhead: bulkhead.as_ref().into(),
            partition: partition.into(),
            detail: detail.into(),
            changes: changes.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<AuditChange> for v1::AuditChange {
    fn from(change: AuditChange) -> Self {
        let AuditChange { field, before, after } = change;
        Self { field: field.into(), before, after }
    }
}

impl From<Cap> for v1::ServerCap {
    fn from(cap: Cap) -> Self {
        Self { name: cap.name.into(), taken: cap.taken as u64, most: cap.most as u64 }
    }
}
