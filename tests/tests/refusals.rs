//! The refusal table: every reason, from every rpc that has it, down to the code, the details and the trailers.
//!
//! Driven by a match over the reasons without a wildcard: a reason without a row does not compile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_client::{Pushback, refusal};
use tidegate_core::Reason;
use tidegate_proto::v1;
use tidegate_tests::{Client, Server, Waiter, ask, drain_and_refill, exercised, millis, seconds};
use tonic::{Code, Status};

const CONFIG: &str = "
[server]
max_bulkheads = 4
max_partitions = 1
[defaults]
limit = 1
max_wait = '1m'
lease_ttl = '10s'
[[bulkhead]]
name = 'db'
ceiling = 4
[[bulkhead]]
name = 'full'
max_queued = 1
[[bulkhead]]
name = 'displacing'
max_queued = 1
displace = true
[[bulkhead]]
name = 'last'
[[template]]
pattern = 'made/*'
";

/// What a refusal must look like.
struct Row {
    code: Code,
    /// In milliseconds; `None` when coming back later does not help.
    hint: Option<RangeInclusive<u64>>,
    /// The field that is wrong.
    field: Option<&'static str>,
}

fn row(code: Code) -> Row {
    Row { code, hint: None, field: None }
}

fn busy(hint: RangeInclusive<u64>) -> Row {
    Row { hint: Some(hint), ..row(Code::ResourceExhausted) }
}

fn bad(field: &'static str) -> Row {
    Row { field: Some(field), ..row(Code::InvalidArgument) }
}

/// What a reason looks like, and its refusals from all rpcs that have it.
#[allow(clippy::too_many_lines, reason = "it is a table")]
async fn provoke(reason: Reason, server: &Server) -> (Row, Vec<(&'static str, Status)>) {
    let client = server.client().await;
    let admin = server.admin().await;
    let acquire = |request| async { ("Acquire", client.acquire(request).await.unwrap_err()) };
    let no_wait = |bulkhead| v1::AcquireRequest { max_wait: seconds(0), ..ask(bulkhead) };
    match reason {
        Reason::ConcurrencyCapacityExhausted => {
            let held = client.take("db").await;
            let refused = acquire(no_wait("db")).await;
            client.release(&held.lease_id).await;
            // The lease ends within 10 s, and the spread is a fifth; the rest is for a slow machine.
            (busy(5_000..=12_500), vec![refused])
        }
        Reason::QueueFull => {
            let (held, waiter) = (client.take("full").await, client.start(ask("full")));
            server.until("full", |now| now.queued == 1).await;
            let refused = acquire(ask("full")).await;
            leaves(waiter, server, "full").await;
            client.release(&held.lease_id).await;
            (busy(5_000..=12_500), vec![refused])
        }
        Reason::WaitTimeout => {
            let held = client.take("last").await;
            let refused = acquire(v1::AcquireRequest { max_wait: millis(30), ..ask("last") }).await;
            client.release(&held.lease_id).await;
            (busy(5_000..=12_500), vec![refused])
        }
        Reason::Displaced => {
            let held = client.take("displacing").await;
            let sheddable = v1::AcquireRequest { priority: v1::Priority::Sheddable.into(), ..ask("displacing") };
            let last = client.start(sheddable);
            server.until("displacing", |now| now.queued == 1).await;
            let more_urgent = client.start(ask("displacing"));
            let refused = last.await.unwrap().unwrap_err();
            leaves(more_urgent, server, "displacing").await;
            client.release(&held.lease_id).await;
            (busy(5_000..=12_500), vec![("Acquire", refused)])
        }
        Reason::CooldownActive => {
            cool(&client, "p", 5).await;
            let refused = acquire(v1::AcquireRequest { partition: Some("p".into()), ..ask("db") }).await;
            clear(server, "p").await;
            (busy(2_000..=6_000), vec![refused])
        }
        Reason::CooldownExceedsDeadline => {
            cool(&client, "p", 600).await;
            let request = || v1::AcquireRequest { partition: Some("p".into()), ..ask("db") };
            let hasty = client.acquire_within(request(), Duration::from_secs(5)).await.unwrap_err();
            let waits = v1::AcquireRequest { on_cooldown: v1::OnCooldown::Wait.into(), ..request() };
            let refused = vec![("Acquire", hasty), acquire(waits).await];
            clear(server, "p").await;
            (busy(580_000..=630_000), refused)
        }
        Reason::ServerCapReached => {
            cool(&client, "p", 5).await;
            let one_more = report("q", 5);
            let reported = client.stub().report_retry_after(one_more).await.unwrap_err();
            clear(server, "p").await;
            (busy(1_000..=2_000), vec![acquire(ask("made/one-more")).await, ("ReportRetryAfter", reported)])
        }
        Reason::BulkheadNotFound => {
            let name = || "nobody".to_owned();
            let release = v1::ReleaseRequest { bulkhead: name(), request_id: "r".into(), ..Default::default() };
            let leases = v1::ListLeasesRequest { bulkhead: Some(name()), ..Default::default() };
            let waiters = v1::ListWaitersRequest { bulkhead: Some(name()), ..Default::default() };
            let limit = v1::SetLimitRequest { name: name(), limit: 1, ..Default::default() };
            let mode = v1::Mode::Paused.into();
            let mode = v1::SetModeRequest { name: name(), mode, ..Default::default() };
            let bulkhead = Some(v1::Bulkhead { name: name(), ..Default::default() });
            let update = v1::UpdateBulkheadRequest { bulkhead, ..Default::default() };
            let delete = v1::DeleteBulkheadRequest { name: name(), ..Default::default() };
            let revoke = v1::RevokeLeaseRequest { bulkhead: name(), fencing_token: 1, ..Default::default() };
            let recovered = v1::EndRecoveryRequest { name: name(), ..Default::default() };
            let refused = vec![
                acquire(ask("nobody")).await,
                ("Release", client.stub().release(release).await.unwrap_err()),
                ("GetBulkhead", admin.stub().get_bulkhead(v1::GetBulkheadRequest { name: name() }).await.unwrap_err()),
                ("SetLimit", admin.stub().set_limit(limit).await.unwrap_err()),
                ("SetMode", admin.stub().set_mode(mode).await.unwrap_err()),
                ("UpdateBulkhead", admin.stub().update_bulkhead(update).await.unwrap_err()),
                ("DeleteBulkhead", admin.stub().delete_bulkhead(delete).await.unwrap_err()),
                ("RevokeLease", admin.stub().revoke_lease(revoke).await.unwrap_err()),
                ("EndRecovery", admin.stub().end_recovery(recovered).await.unwrap_err()),
                ("ListLeases", admin.stub().list_leases(leases).await.unwrap_err()),
                ("ListWaiters", admin.stub().list_waiters(waiters).await.unwrap_err()),
            ];
            // The audit of a bulkhead outlives it, so that its name need not be there.
            let audit = v1::ListAuditEventsRequest { bulkhead: Some(name()), ..Default::default() };
            assert!(admin.stub().list_audit_events(audit).await.unwrap().into_inner().events.is_empty());
            (row(Code::NotFound), refused)
        }
        Reason::InvalidField => {
            // Which field is told by the tests of bad input; here one from each side.
            let limit = v1::SetLimitRequest { name: "db".into(), limit: 5, ..Default::default() };
            let refused = vec![("SetLimit", admin.stub().set_limit(limit).await.unwrap_err())];
            (bad("limit"), refused)
        }
        Reason::PermitsExceedCeiling => {
            (bad("permits"), vec![acquire(v1::AcquireRequest { permits: 5, ..ask("db") }).await])
        }
        Reason::RequestIdReused => {
            let first = client.granted(with_id("reused")).await;
            let refused = acquire(v1::AcquireRequest { permits: 2, ..with_id("reused") }).await;
            client.release(&first.lease_id).await;
            (bad("request_id"), vec![refused])
        }
        Reason::Superseded => {
            let held = client.take("db").await;
            let original = client.start(with_id("superseded"));
            server.until("db", |now| now.queued == 1).await;
            let repeat = client.start(with_id("superseded"));
            let refused = original.await.unwrap().unwrap_err();
            leaves(repeat, server, "db").await;
            client.release(&held.lease_id).await;
            (row(Code::Aborted), vec![("Acquire", refused)])
        }
        Reason::RequestIdSpent => {
            let first = client.granted(with_id("spent")).await;
            client.release(&first.lease_id).await;
            let held = client.take("db").await;
            let withdrawn = client.start(with_id("withdrawn"));
            server.until("db", |now| now.queued == 1).await;
            client.release_request("db", "withdrawn").await;
            let refused = vec![acquire(with_id("spent")).await, ("Acquire", withdrawn.await.unwrap().unwrap_err())];
            client.release(&held.lease_id).await;
            (row(Code::Aborted), refused)
        }
        Reason::BulkheadClosed => {
            let held = client.take("db").await;
            let waiter = client.start(ask("db"));
            server.until("db", |now| now.queued == 1).await;
            set_mode(server, "db", v1::Mode::Closed).await;
            let refused = vec![acquire(ask("db")).await, ("Acquire", waiter.await.unwrap().unwrap_err())];
            assert!(refused.iter().all(|(_, status)| status.message().contains("moved away")), "{refused:?}");
            set_mode(server, "db", v1::Mode::Enforcing).await;
            client.release(&held.lease_id).await;
            (row(Code::FailedPrecondition), refused)
        }
        Reason::Draining => {
            let stopping = Server::start(CONFIG);
            let client = stopping.client().await;
            let held = client.take("db").await;
            let waiter = client.start(ask("db"));
            stopping.until("db", |now| now.queued == 1).await;
            stopping.ask_to_end();
            let told = waiter.await.unwrap().unwrap_err();
            let refused = vec![("Acquire", told), ("Acquire", client.acquire(ask("db")).await.unwrap_err())];
            client.release(&held.lease_id).await;
            (Row { code: Code::Unavailable, ..busy(1_000..=2_000) }, refused)
        }
        Reason::LeaseNotFound => {
            let request = v1::RevokeLeaseRequest { bulkhead: "db".into(), fencing_token: 1, ..Default::default() };
            (row(Code::NotFound), vec![("RevokeLease", admin.stub().revoke_lease(request).await.unwrap_err())])
        }
        Reason::BulkheadExists => {
            let settings = Some(v1::BulkheadSettings { limit: Some(1), ..Default::default() });
            let create = v1::CreateBulkheadRequest { name: "db".into(), settings, ..Default::default() };
            (
                row(Code::AlreadyExists),
                vec![("CreateBulkhead", admin.stub().create_bulkhead(create).await.unwrap_err())],
            )
        }
        Reason::BulkheadInUse => {
            let held = client.take("db").await;
            let delete = v1::DeleteBulkheadRequest { name: "db".into(), ..Default::default() };
            let refused = vec![("DeleteBulkhead", admin.stub().delete_bulkhead(delete).await.unwrap_err())];
            client.release(&held.lease_id).await;
            (row(Code::FailedPrecondition), refused)
        }
        Reason::EtagMismatch => {
            let etag = || "another".to_owned();
            let limit = v1::SetLimitRequest { name: "db".into(), limit: 1, etag: etag(), ..Default::default() };
            let mode = v1::Mode::Paused.into();
            let mode = v1::SetModeRequest { name: "db".into(), mode, etag: etag(), ..Default::default() };
            let bulkhead = Some(v1::Bulkhead { name: "db".into(), etag: etag(), ..Default::default() });
            let update = v1::UpdateBulkheadRequest { bulkhead, ..Default::default() };
            let delete = v1::DeleteBulkheadRequest { name: "db".into(), etag: etag(), ..Default::default() };
            let refused = vec![
                ("SetLimit", admin.stub().set_limit(limit).await.unwrap_err()),
                ("SetMode", admin.stub().set_mode(mode).await.unwrap_err()),
                ("UpdateBulkhead", admin.stub().update_bulkhead(update).await.unwrap_err()),
                ("DeleteBulkhead", admin.stub().delete_bulkhead(delete).await.unwrap_err()),
            ];
            (row(Code::Aborted), refused)
        }
    }
}

/// Cancels a call that waits, and sees it gone: otherwise it might be granted still, and keep a permit.
async fn leaves(waiter: Waiter, server: &Server, bulkhead: &str) {
    waiter.abort();
    server.until(bulkhead, |now| now.queued == 0).await;
}

async fn set_mode(server: &Server, name: &str, mode: v1::Mode) {
    let request =
        v1::SetModeRequest { name: name.into(), mode: mode.into(), detail: "moved away".into(), ..Default::default() };
    server.admin().await.stub().set_mode(request).await.unwrap();
}

fn with_id(request_id: &str) -> v1::AcquireRequest {
    v1::AcquireRequest { request_id: request_id.into(), ..ask("db") }
}

fn report(partition: &str, wait: u64) -> v1::ReportRetryAfterRequest {
    v1::ReportRetryAfterRequest { partition: partition.into(), retry_after: seconds(wait), detail: "429".into() }
}

async fn cool(client: &Client, partition: &str, wait: u64) {
    assert!(client.stub().report_retry_after(report(partition, wait)).await.unwrap().into_inner().extended);
}

async fn clear(server: &Server, partition: &str) {
    let request = v1::ClearCooldownRequest { partition: partition.into(), detail: String::new() };
    assert!(server.admin().await.stub().clear_cooldown(request).await.unwrap().into_inner().cleared);
}

fn check(reason: Reason, rpc: &str, row: &Row, status: &Status) {
    let what = format!("{} from {rpc}: {status:?}", reason.as_str());
    let told = refusal(status).unwrap_or_else(|| panic!("not an answer of ours: {what}"));
    assert_eq!((told.code, &told.reason[..]), (row.code, reason.as_str()), "{what}");
    assert_eq!(told.typed.as_ref().unwrap().reason, reason.as_str(), "{what}");
    let fields: Vec<_> = told.violations.iter().map(|violation| &violation.field[..]).collect();
    assert_eq!(fields, row.field.into_iter().collect::<Vec<_>>(), "{what}");
    assert!(!told.message.is_empty() && told.message.len() < 200, "{what}");
    match &row.hint {
        None => assert_eq!((told.hint(), told.retry_delay, told.retry_after, told.pushback), (None, None, None, None)),
        Some(hint) => {
            let millis = u64::try_from(told.hint().expect("a hint").as_millis()).unwrap();
            assert!(hint.contains(&millis), "hint {millis} ms: {what}");
            assert_eq!((told.retry_delay, told.retry_after), (told.hint(), told.hint()), "{what}");
            match told.pushback.expect("a pushback") {
                Pushback::After(after) => assert_eq!(Some(after), told.hint(), "{what}"),
                Pushback::Never => assert_eq!((reason, millis > 5_000), (Reason::CooldownExceedsDeadline, true)),
            }
        }
    }
}

#[tokio::test]
async fn p20_every_reason_has_its_code_details_hint_and_trailers() {
    let server = Server::start(CONFIG);
    let mut rows = 0;
    for reason in Reason::ALL {
        let (row, refused) = provoke(reason, &server).await;
        for (rpc, status) in &refused {
            check(reason, rpc, &row, status);
            rows += 1;
        }
    }
    exercised("rows of the refusal table", rows, 37);
    for bulkhead in ["db", "full", "displacing", "last"] {
        drain_and_refill(&server, bulkhead).await;
    }
}

#[tokio::test]
async fn p20_a_caller_that_obeys_the_hint_of_a_cooldown_is_not_refused_for_it_again() {
    let server = Server::start(CONFIG);
    let client = server.client().await;
    cool(&client, "p", 3).await;
    let request = || v1::AcquireRequest { partition: Some("p".into()), ..ask("db") };
    let status = client.acquire(request()).await.unwrap_err();
    let told = refusal(&status).unwrap();
    assert_eq!(told.reason, "COOLDOWN_ACTIVE");
    tokio::time::sleep(told.hint().unwrap()).await;
    let lease = client.granted(request()).await;
    client.release(&lease.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn p20_callers_refused_together_do_not_come_back_together() {
    // The hint before its spread is the same for all, however long the calls take: only the spread can part them.
    let hint = "[server]\nmin_retry_hint = '3s'\nmax_retry_hint = '3s'";
    let server = Server::start(&CONFIG.replace("[server]", hint).replace("lease_ttl = '10s'", "lease_ttl = '1m'"));
    let client = server.client().await;
    let held = client.take("db").await;
    let mut hints = Vec::new();
    for _ in 0..500 {
        let told = client.refused(v1::AcquireRequest { max_wait: seconds(0), ..ask("db") }).await;
        hints.push(told.hint().unwrap().as_millis());
    }
    let most =
        (0..hints.len()).map(|at| hints.iter().filter(|hint| (hints[at]..hints[at] + 10).contains(*hint)).count());
    let most = most.max().unwrap();
    assert!(hints.iter().all(|hint| (3_000..=4_000).contains(hint)), "3 s, and up to 1 s more: {hints:?}");
    assert!(most <= 500 / 20, "{most} of 500 come back in the same 10 ms");
    client.release(&held.lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_release_reports_the_partition_of_its_lease_before_it_frees() {
    let server = Server::start(CONFIG);
    let client = server.client().await;
    let of_p = |on_cooldown: v1::OnCooldown| v1::AcquireRequest {
        partition: Some("p".into()),
        on_cooldown: on_cooldown.into(),
        ..ask("db")
    };
    let lease = client.granted(of_p(v1::OnCooldown::Refuse)).await;
    let waiter = client.start(of_p(v1::OnCooldown::Refuse));
    server.until("db", |now| now.queued == 1).await;
    let release = |lease_id: &str, wait| v1::ReleaseRequest {
        lease_id: lease_id.into(),
        retry_after: Some(prost_types::Duration { seconds: wait, nanos: 0 }),
        ..Default::default()
    };
    let state = client.stub().release(release(&lease.lease_id, 5)).await.unwrap().into_inner().state();
    assert_eq!(state, v1::ReleaseState::Released);
    let status = waiter.await.unwrap().unwrap_err();
    assert_eq!(refusal(&status).unwrap().reason, "COOLDOWN_ACTIVE");
    let listed = server.admin().await.stub().list_cooldowns(v1::ListCooldownsRequest::default()).await.unwrap();
    let listed = listed.into_inner().cooldowns;
    assert_eq!((listed.len(), &listed[0].partition[..]), (1, "p"));
    // Others notice nothing, and a wait that is none changes nothing.
    let other = client.take("db").await;
    let state = client.stub().release(release(&other.lease_id, -1)).await.unwrap().into_inner().state();
    assert_eq!(state, v1::ReleaseState::Released);
    clear(&server, "p").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn r13_a_template_makes_a_bulkhead_for_each_name() {
    let server = Server::start(
        "[server]\nidle_after='1s'\n[[bulkhead]]\nname='db'\nlimit=1\n[[template]]\npattern='made/*'\nlimit=2\nmax_wait='3s'\n",
    );
    let (client, admin) = (server.client().await, server.admin().await);
    let names = || async {
        let listed = admin.stub().list_bulkheads(v1::ListBulkheadsRequest::default()).await.unwrap().into_inner();
        listed.bulkheads.into_iter().map(|bulkhead| bulkhead.name).collect::<Vec<_>>()
    };
    // Reads create nothing.
    admin.stub().get_bulkhead(v1::GetBulkheadRequest { name: "made/a".into() }).await.unwrap_err();
    assert_eq!(names().await, ["db"]);
    let lease = client.take("made/a").await;
    let again = client.take("made/a").await;
    assert_eq!((&lease.bulkhead[..], names().await), ("made/a", vec!["db".into(), "made/a".to_owned()]));
    client.take("made/b").await;
    // An operator's change keeps it.
    admin.set_limit("made/b", 1).await;
    for lease in [&lease, &again] {
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    drain_and_refill(&server, "made/a").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_pause_and_the_wrong_listener_are_told_in_words() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    set_mode(&server, "db", v1::Mode::Paused).await;
    let client = server.client().await;
    let status = client.acquire(v1::AcquireRequest { max_wait: seconds(0), ..ask("db") }).await.unwrap_err();
    assert!(status.message().ends_with("(0 of 1 running, 0 queued); it is paused: moved away"), "{status:?}");
    let elsewhere = Client::connect(server.admin_address()).await;
    let status = elsewhere.acquire(ask("db")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().starts_with("AdmissionService is served on [server] listen,"), "{status:?}");
}
