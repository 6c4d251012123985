//! The life of one client: it thinks, asks, holds, and gives back, or fails to.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tidegate_client::refusal;
use tonic::Status;

use super::{Chances, Stage};
use crate::history::{Call, End, Grant, History, Release, Renewal, Report, What, Window};
use crate::{Client, ask, millis, span, v1};

/// How long a client behind a faulty proxy waits for an answer beyond what it may take.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Life {
    stage: Arc<Stage>,
    client: Client,
    is_unlucky: bool,
    chances: Chances,
    rng: StdRng,
    seen: History,
}

/// A lease that the client holds.
struct Held {
    lease: v1::Lease,
    call: Call,
}

impl Life {
    pub(super) fn new(stage: Arc<Stage>, number: usize, client: Client, is_unlucky: bool) -> Self {
        let (rng, chances) = (stage.rng("client", number), stage.load.chances.clone());
        Self { stage, client, is_unlucky, chances, rng, seen: History::default() }
    }

    pub(super) async fn live(mut self) -> History {
        while self.stage.goes_on() {
            self.pause(self.stage.load.think.clone()).await;
            let call = self.choose();
            let patience =
                self.draw(self.chances.cancel).then(|| Duration::from_micros(self.rng.random_range(0..400_000)));
            match self.ask(call, patience).await {
                Ok(held) => self.hold(held).await,
                Err(call) => self.give_up(call).await,
            }
        }
        self.seen
    }

    fn draw(&mut self, chance: f64) -> bool {
        self.rng.random_bool(chance)
    }

    async fn pause(&mut self, millis: Range<u64>) {
        let micros = self.rng.random_range(millis.start * 1000..millis.end * 1000);
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }

    fn choose(&mut self) -> Call {
        let bulkhead = self.rng.random_range(0..self.stage.load.rules.len());
        let ceiling = self.stage.load.rules[bulkhead].ceiling;
        let permits = if self.draw(self.chances.heavy) { self.rng.random_range(2..=3).min(ceiling) } else { 1 };
        let has_partition = self.stage.load.partitions > 0 && self.draw(0.5);
        let max_wait = if self.draw(self.chances.max_wait) { Some(self.rng.random_range(0..4) * 250) } else { None };
        let timeout = self.draw(self.chances.deadline).then(|| Duration::from_millis(self.rng.random_range(200..1500)));
        Call {
            bulkhead,
            permits,
            partition: has_partition.then(|| self.rng.random_range(0..self.stage.load.partitions)),
            rank: self.rng.random_range(0..3),
            max_wait: max_wait.map(Duration::from_millis),
            timeout,
            waits_for_cooldown: self.draw(0.5),
            request_id: self.draw(self.chances.request_id).then(|| self.rng.random()),
            is_faulty: self.is_unlucky,
            window: Window::default(),
            end: End::Cancelled,
        }
    }

    /// Makes the call and writes down how it ended; drops it after `patience`. Answers the call if there is no lease.
    async fn ask(&mut self, mut call: Call, patience: Option<Duration>) -> Result<Held, Call> {
        self.stage.begun.fetch_add(1, Ordering::Relaxed);
        let rule = &self.stage.load.rules[call.bulkhead];
        let bound = rule.max_wait + PATIENCE;
        let request = request(&rule.name, &call);
        let (client, deadline) = (self.client.clone(), call.timeout);
        let answer = async move {
            match deadline {
                Some(timeout) => client.acquire_within(request, timeout).await,
                None => client.acquire(request).await,
            }
        };
        let from = self.stage.now();
        let longest = patience.or(self.is_unlucky.then_some(bound)).unwrap_or(Duration::MAX);
        let answer = tokio::time::timeout(longest, answer).await;
        call.window = Window { from, to: self.stage.now() };
        let lease = match answer {
            Err(_) => {
                call.end = if patience.is_some() { End::Cancelled } else { End::Failed("no answer".into()) };
                None
            }
            Ok(Ok(response)) => {
                let lease = response.lease.expect("a grant has a lease");
                call.end = End::Granted(Grant {
                    token: lease.fencing_token,
                    permits: lease.permits,
                    ttl: span(lease.ttl),
                    waited: span(response.waited),
                    replayed: response.replayed,
                });
                Some(lease)
            }
            Ok(Err(status)) => {
                call.end = end(&status, &call);
                None
            }
        };
        self.seen.calls.push(call.clone());
        lease.map(|lease| Held { lease, call: call.clone() }).ok_or(call)
    }

    /// What it does with a lease.
    async fn hold(&mut self, held: Held) {
        if self.draw(self.chances.abandon) {
            return;
        }
        if self.draw(self.chances.renew) {
            self.renew_for_long(&held).await;
        } else {
            self.pause(self.stage.load.hold.clone()).await;
        }
        // The answer might have been lost: ask for it again.
        if held.call.request_id.is_some() && self.draw(0.3) {
            let _ = self.ask(held.call.clone(), None).await;
        }
        let report = self.choose_report(&held.call);
        if let Some((partition, retry_after)) = report
            && self.draw(0.5)
        {
            self.report(partition, retry_after).await;
            self.release(&held, None).await;
        } else {
            self.release(&held, report).await;
        }
        if self.draw(self.chances.again) {
            self.release(&held, None).await;
        }
    }

    /// A call that ended without a lease is repeated or withdrawn if it has an id to do so.
    async fn give_up(&mut self, call: Call) {
        let is_unknown = !matches!(call.end, End::Granted(_) | End::Refused(_));
        let Some(id) = call.request_id.filter(|_| is_unknown) else { return };
        if self.draw(0.5) {
            if let Ok(held) = self.ask(call, None).await {
                self.hold_briefly(held).await;
            }
            return;
        }
        let request = v1::ReleaseRequest {
            bulkhead: self.stage.load.rules[call.bulkhead].name.clone(),
            request_id: request_id(id),
            ..Default::default()
        };
        self.send_release(call.bulkhead, What::Request(id), request).await;
    }

    async fn hold_briefly(&mut self, held: Held) {
        self.pause(self.stage.load.hold.clone()).await;
        self.release(&held, None).await;
    }

    /// Only those on a good line report, so that every report is answered.
    fn choose_report(&mut self, call: &Call) -> Option<(usize, Duration)> {
        let partition = call.partition.filter(|_| !self.is_unlucky)?;
        // Only one in two calls has a partition.
        let reports = self.draw((2.0 * self.chances.report).min(1.0));
        reports.then(|| (partition, Duration::from_millis(self.rng.random_range(100..800))))
    }

    async fn report(&mut self, partition: usize, retry_after: Duration) {
        let request = v1::ReportRetryAfterRequest {
            partition: partition_name(partition),
            retry_after: prost_types::Duration::try_from(retry_after).ok(),
            detail: String::new(),
        };
        let from = self.stage.now();
        self.client.stub().report_retry_after(request).await.expect("a report is answered");
        let window = Window { from, to: self.stage.now() };
        self.seen.reports.push(Report { partition, retry_after, window });
    }

    async fn release(&mut self, held: &Held, report: Option<(usize, Duration)>) {
        let request = v1::ReleaseRequest {
            lease_id: held.lease.lease_id.clone(),
            retry_after: report.and_then(|(_, retry_after)| prost_types::Duration::try_from(retry_after).ok()),
            ..Default::default()
        };
        let window = self.send_release(held.call.bulkhead, What::Lease(held.lease.fencing_token), request).await;
        if let Some((partition, retry_after)) = report {
            self.seen.reports.push(Report { partition, retry_after, window });
        }
    }

    async fn send_release(&mut self, bulkhead: usize, what: What, request: v1::ReleaseRequest) -> Window {
        let from = self.stage.now();
        let mut stub = self.client.stub();
        let answer = self.bounded(async move { stub.release(request).await }).await;
        let window = Window { from, to: self.stage.now() };
        let state = answer.map(|answer| answer.into_inner().state());
        self.seen.releases.push(Release { bulkhead, what, window, state });
        window
    }

    /// Renews as it should, beyond the lease's first end.
    async fn renew_for_long(&mut self, held: &Held) {
        let every = span(held.lease.renew_interval);
        for _ in 0..5 {
            tokio::time::sleep(every).await;
            let request = v1::RenewRequest { seq: 0, lease_ids: vec![held.lease.lease_id.clone()] };
            let from = self.stage.now();
            let mut stub = self.client.stub();
            let answer = self.bounded(async move { stub.renew(request).await }).await;
            let window = Window { from, to: self.stage.now() };
            let answer = answer.map(|answer| {
                let renewal = &answer.get_ref().renewals[0];
                (renewal.ttl.map_or(Duration::ZERO, |ttl| span(Some(ttl))), renewal.state())
            });
            let (bulkhead, token) = (held.call.bulkhead, held.lease.fencing_token);
            self.seen.renewals.push(Renewal { bulkhead, token, window, answer });
        }
    }

    /// Waits for an answer that must come, unless a proxy is in between.
    async fn bounded<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Option<T> {
        if self.is_unlucky {
            return tokio::time::timeout(PATIENCE, answer).await.ok()?.ok();
        }
        Some(answer.await.expect("it is answered"))
    }
}

fn request(bulkhead: &str, call: &Call) -> v1::AcquireRequest {
    let on_cooldown = if call.waits_for_cooldown { v1::OnCooldown::Wait } else { v1::OnCooldown::Refuse };
    let priority = match call.rank {
        0 => v1::Priority::Critical,
        1 => v1::Priority::Normal,
        _ => v1::Priority::Sheddable,
    };
    v1::AcquireRequest {
        permits: call.permits,
        max_wait: call.max_wait.and_then(|wait| millis(u64::try_from(wait.as_millis()).ok()?)),
        partition: call.partition.map(partition_name),
        priority: priority.into(),
        on_cooldown: on_cooldown.into(),
        request_id: call.request_id.map(request_id).unwrap_or_default(),
        ..ask(bulkhead)
    }
}

fn partition_name(partition: usize) -> String {
    format!("partition-{partition}")
}

fn request_id(id: u64) -> String {
    format!("{id:016x}")
}

/// How a call without a lease ended.
fn end(status: &Status, call: &Call) -> End {
    if let Some(refusal) = refusal(status) {
        return End::Refused(refusal.reason);
    }
    let took = call.window.to.saturating_sub(call.window.from);
    if call.timeout.is_some_and(|timeout| took >= timeout) {
        return End::TimedOut;
    }
    End::Failed(format!("{:?} {}", status.code(), status.message()))
}
