//! Who changed what, when, and from what to what: the latest changes, in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tidegate_core::Settings;
use tracing::info;

use super::View;
use crate::quiet::Quiet;

/// The most changes that are remembered.
const REMEMBERED: usize = 10_000;

/// What the log tells of a bulkhead that was made or is gone: all else is in the audit.
const IN_SHORT: [&str; 3] = ["limit", "settings.ceiling", "settings.mode"];

/// Somebody changes something. The default: the server itself, whatever was there before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    /// What is done, by the name that the audit shows.
    pub action: &'static str,
    /// Who does it.
    pub actor: &'a str,
    /// Why, as told; at most 256 bytes.
    pub detail: &'a str,
    /// If not empty, the etag that the bulkhead must have.
    pub etag: &'a str,
}

impl Change<'_> {
    /// The configuration is applied.
    pub fn file() -> Self {
        Self { action: "Reload", actor: "file", ..Self::default() }
    }
}

/// A change that was made.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// Grows by one with each.
    pub id: u64,
    /// When.
    pub time: SystemTime,
    /// What was done.
    pub action: &'static str,
    /// Who did it.
    pub actor: Box<str>,
    /// To which bulkhead; may be empty.
    pub bulkhead: Arc<str>,
    /// To which partition; may be empty.
    pub partition: Box<str>,
    /// Why, as told.
    pub detail: Box<str>,
    /// What is different since.
    pub changes: Vec<AuditChange>,
}

/// A value before and after a change; what is not there is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChange {
    /// Which.
    pub field: &'static str,
    /// Before.
    pub before: String,
    /// After.
    pub after: String,
}

impl std::fmt::Display for AuditChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, before, after } = self;
        match (&before[..], &after[..]) {
            ("", after) => write!(f, "{field}: {after}"),
            (before, "") => write!(f, "{field}: no more {before}"),
            (before, after) => write!(f, "{field}: {before} -> {after}"),
        }
    }
}

impl AuditChange {
    /// If the two differ.
    pub(crate) fn between(field: &'static str, before: String, after: String) -> Option<Self> {
        (before != after).then_some(Self { field, before, after })
    }
}

/// The latest changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Audit {
    events: Mutex<VecDeque<AuditEvent>>,
    quiet: Quiet,
}

/// What is empty is not told.
fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl Audit {
    /// Remembers a change of a bulkhead.
    pub(super) fn bulkhead(&self, change: Change<'_>, bulkhead: Arc<str>, changes: Vec<AuditChange>) {
        self.push(change, bulkhead, "", changes);
    }

    /// Remembers a change of a partition.
    pub(super) fn partition(&self, change: Change<'_>, partition: &str, changes: Vec<AuditChange>) {
        self.push(change, "".into(), partition, changes);
    }

    fn push(&self, change: Change<'_>, bulkhead: Arc<str>, partition: &str, changes: Vec<AuditChange>) {
        let Change { action, actor, detail, etag: _ } = change;
        // A reload may change thousands; what people do is all told.
        let is_by_file = actor == Change::file().actor;
        if let Some(held_back) = if is_by_file { self.quiet.pass() } else { Some(0) } {
            let is_made = changes.iter().all(|change| change.before.is_empty());
            let is_gone = changes.iter().all(|change| change.after.is_empty());
            let told = changes.iter().filter(|change| !(is_made || is_gone) || IN_SHORT.contains(&change.field));
            let told: Vec<_> = told.map(ToString::to_string).collect();
            let (bulkhead, partition, detail) = (some(&bulkhead), some(partition), some(detail));
            let held_back = (held_back > 0).then_some(held_back);
            info!(action, actor, bulkhead, partition, detail, changes = some(&told.join(", ")), held_back, "changed");
        }
        let mut events = self.events.lock();
        let id = events.back().map_or(1, |last| last.id + 1);
        if events.len() == REMEMBERED {
            events.pop_front();
        }
        events.push_back(AuditEvent {
            id,
            time: SystemTime::now(),
            action,
            actor: actor.into(),
            bulkhead,
            partition: partition.into(),
            detail: detail.into(),
            changes,
        });
    }

    /// Those before an id, or all, newest first: of one bulkhead or of all, at most `most`.
    pub(super) fn list(&self, only: Option<&str>, before: Option<u64>, most: usize) -> Vec<AuditEvent> {
        let events = self.events.lock();
        let older = events.iter().rev().filter(|event| before.is_none_or(|before| event.id < before));
        older.filter(|event| only.is_none_or(|only| *event.bulkhead == *only)).take(most).cloned().collect()
    }
}

/// What differs between two views of a bulkhead; one that is not there has no values.
pub(super) fn differences(before: Option<&View>, after: Option<&View>) -> Vec<AuditChange> {
    let fields = |view: Option<&View>| view.map(fields);
    let (before, after) = (fields(before), fields(after));
    let value = |fields: &Option<[(&'static str, String); FIELDS]>, at: usize| {
        fields.as_ref().map(|fields| fields[at].1.clone()).unwrap_or_default()
    };
    let names = before.as_ref().or(after.as_ref()).map(|fields| fields.each_ref().map(|(name, _)| *name));
    let each = names.into_iter().flatten().enumerate();
    each.filter_map(|(at, name)| AuditChange::between(name, value(&before, at), value(&after, at))).collect()
}

/// How many values of a bulkhead people decide.
const FIELDS: usize = 16;

/// All that people decide about a bulkhead, told for people.
fn fields(view: &View) -> [(&'static str, String); FIELDS] {
    let (settings, status): (&Settings, _) = (&view.settings, &view.status);
    let time = |time: std::time::Duration| humantime::format_duration(time).to_string();
    let revert = status
        .revert
        .zip(view.revert_time)
        .map(|(revert, at)| format!("to {} at {}", revert.limit, humantime::format_rfc3339_seconds(at)));
    [
        ("limit", status.limit.to_string()),
        ("revert", revert.unwrap_or_default()),
        ("settings.limit", settings.limit().to_string()),
        ("settings.ceiling", settings.ceiling().to_string()),
        ("settings.max_queued", settings.max_queued().to_string()),
        ("settings.max_wait", time(settings.max_wait())),
        ("settings.lease_ttl", time(settings.lease_ttl())),
        ("settings.max_lease_ttl", time(settings.max_lease_ttl())),
        ("settings.aging_step", time(settings.aging_step())),
        ("settings.displace", settings.displace().to_string()),
        ("settings.ramp_step", time(settings.ramp_step())),
        ("settings.min_retry_hint", time(settings.min_retry_hint())),
        ("settings.max_retry_hint", time(settings.max_retry_hint())),
        ("settings.mode", settings.mode().as_str().into()),
        ("mode_detail", view.mode_detail.to_string()),
        ("deleting", view.deleting.to_string()),
    ]
}
