//! Requests that are wrong: each is refused by name, changes nothing, and the server answers the next one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use prost::Message;
use rand::Rng;
use tidegate_client::refusal;
use tidegate_tests::v1::{ReleaseState, RenewalState};
use tidegate_tests::{
    Instant, Raw, Server, ask, drain_and_refill, exercised, idles, in_time, millis, reason, seconds, size, v1,
};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

const INVALID: (Code, &str) = (Code::InvalidArgument, "INVALID_FIELD");
const CEILING: (Code, &str) = (Code::InvalidArgument, "PERMITS_EXCEED_CEILING");
const NOT_FOUND: (Code, &str) = (Code::NotFound, "BULKHEAD_NOT_FOUND");

/// A server with one lease in it, so that there is something to spoil.
struct Bench {
    server: Server,
    client: tidegate_tests::Client,
    lease: v1::Lease,
    before: v1::BulkheadStatus,
}

impl Bench {
    async fn start() -> Self {
        let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nceiling=4\nlease_ttl='1m'\nmax_lease_ttl='2m'\n");
        let client = server.client().await;
        // Long, and renewed at each look at it, so that it outlasts the test on any machine.
        let mine = v1::AcquireRequest { request_id: "mine".into(), lease_ttl: seconds(120), ..ask("db") };
        let lease = client.granted(mine).await;
        let before = without_refusals(server.status("db").await);
        Self { server, client, lease, before }
    }

    /// The refusal says what it should, and nothing has changed.
    async fn check<T>(&self, what: &str, result: Result<T, Status>, expected: (Code, &str), field: Option<&str>) {
        let status = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
        let ours = refusal(&status).unwrap_or_else(|| panic!("{what}: not an answer of ours: {status:.300?}"));
        assert_eq!((ours.code, &ours.reason[..]), expected, "{what}: {status:?}");
        let fields: Vec<_> = ours.violations.iter().map(|violation| &violation.field[..]).collect();
        assert_eq!(fields, field.into_iter().collect::<Vec<_>>(), "{what}");
        assert_eq!(ours.metadata.get("field").map(String::as_str), field, "{what}");
        assert_eq!((ours.hint(), ours.pushback), (None, None), "{what}: coming back later does not help");
        self.unchanged(what).await;
    }

    async fn unchanged(&self, what: &str) {
        assert_eq!(self.client.renew_one(&self.lease.lease_id).await, RenewalState::Renewed, "{what}");
        assert_eq!(without_refusals(self.server.status("db").await), self.before, "{what}");
    }

    async fn end(self) {
        assert_eq!(self.client.renew_one(&self.lease.lease_id).await, RenewalState::Renewed);
        assert_eq!(self.client.release(&self.lease.lease_id).await, ReleaseState::Released);
        drain_and_refill(&self.server, "db").await;
    }
}

fn without_refusals(mut status: v1::BulkheadStatus) -> v1::BulkheadStatus {
    status.refused.clear();
    v1::BulkheadStatus { held_back: 0, ..status }
}

/// Durations that no field takes.
fn malformed() -> Vec<prost_types::Duration> {
    let of = |seconds, nanos| prost_types::Duration { seconds, nanos };
    vec![
        of(-1, 0),
        of(0, -1),
        of(1, -1),
        of(-1, 1),
        of(-1, -1),
        of(0, 1_000_000_000),
        of(0, i32::MAX),
        of(0, i32::MIN),
        of(i64::MIN, 0),
        of(i64::MIN, i32::MIN),
        of(i64::MAX, i32::MAX),
    ]
}

/// Names that nothing can have.
fn bad_names() -> Vec<String> {
    let mut names: Vec<_> = ["\n", "a\0", "a\tb", "\u{7f}", "x\u{85}y", "\u{9f}"].map(String::from).into();
    names.extend(["a".repeat(257), "é".repeat(129)]);
    names
}

#[tokio::test]
async fn a_bad_acquire_names_its_field_and_changes_nothing() {
    let bench = Bench::start().await;
    let text = |length: usize| "x".repeat(length);
    let mut cases = vec![
        (v1::AcquireRequest { permits: 5, ..ask("db") }, CEILING, Some("permits")),
        (v1::AcquireRequest { permits: u32::MAX, ..ask("db") }, CEILING, Some("permits")),
        (v1::AcquireRequest { lease_ttl: seconds(0), ..ask("db") }, INVALID, Some("lease_ttl")),
        (v1::AcquireRequest { lease_ttl: seconds(1), ..ask("db") }, INVALID, Some("lease_ttl")),
        (v1::AcquireRequest { lease_ttl: millis(1999), ..ask("db") }, INVALID, Some("lease_ttl")),
        (v1::AcquireRequest { lease_ttl: millis(120_001), ..ask("db") }, INVALID, Some("lease_ttl")),
        (v1::AcquireRequest { request_id: text(129), ..ask("db") }, INVALID, Some("request_id")),
        (v1::AcquireRequest { holder: text(257), ..ask("db") }, INVALID, Some("holder")),
        (v1::AcquireRequest { partition: Some(String::new()), ..ask("db") }, INVALID, Some("partition")),
        (ask(""), INVALID, Some("bulkhead")),
        (ask("dB"), NOT_FOUND, None),
        (ask(&text(256)), NOT_FOUND, None),
    ];
    let longest = prost_types::Duration { seconds: i64::MAX, nanos: 999_999_999 };
    cases.push((v1::AcquireRequest { lease_ttl: Some(longest), ..ask("db") }, INVALID, Some("lease_ttl")));
    for unknown in [4, 99, -1, i32::MAX, i32::MIN] {
        cases.push((v1::AcquireRequest { priority: unknown, ..ask("db") }, INVALID, Some("priority")));
        cases.push((v1::AcquireRequest { on_cooldown: unknown, ..ask("db") }, INVALID, Some("on_cooldown")));
    }
    for bad in malformed() {
        cases.push((v1::AcquireRequest { max_wait: Some(bad), ..ask("db") }, INVALID, Some("max_wait")));
        cases.push((v1::AcquireRequest { lease_ttl: Some(bad), ..ask("db") }, INVALID, Some("lease_ttl")));
    }
    for bad in bad_names() {
        cases.push((ask(&bad), INVALID, Some("bulkhead")));
        cases.push((v1::AcquireRequest { partition: Some(bad), ..ask("db") }, INVALID, Some("partition")));
    }
    let count = cases.len();
    for (request, expected, field) in cases {
        let what = format!("{request:?}");
        bench.check(&what, bench.client.acquire(request).await, expected, field).await;
    }
    exercised("bad acquires", count, 50);
    bench.end().await;
}

#[tokio::test]
async fn an_overlong_text_costs_its_caller_no_more_than_a_refusal() {
    let bench = Bench::start().await;
    let (client, admin) = (bench.server.client().await, bench.server.admin().await.clone());
    let (neighbour, receiver) = mpsc::channel(1);
    let mut answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    for length in [1_000, 3_000, 5_000, 10_000, 30_000, 100_000, 200_000] {
        let text = "x".repeat(length);
        let what = format!("{length} bytes");
        let bulkhead = client.acquire(ask(&text)).await;
        let partition = client.acquire(v1::AcquireRequest { partition: Some(text.clone()), ..ask("db") }).await;
        let id = client.acquire(v1::AcquireRequest { request_id: text.clone(), ..ask("db") }).await;
        bench.check(&what, bulkhead, INVALID, Some("bulkhead")).await;
        bench.check(&what, partition, INVALID, Some("partition")).await;
        bench.check(&what, id, INVALID, Some("request_id")).await;
        let renewal = client.stub().renew(v1::RenewRequest { seq: 0, lease_ids: vec![text.clone()] }).await;
        bench.check(&what, renewal, INVALID, Some("lease_ids")).await;
        let request = v1::ReleaseRequest { bulkhead: text.clone(), request_id: "r".into(), ..Default::default() };
        bench.check(&what, client.stub().release(request).await, INVALID, Some("bulkhead")).await;
        for result in [
            admin.stub().get_bulkhead(v1::GetBulkheadRequest { name: text.clone() }).await.map(drop),
            admin
                .stub()
                .set_limit(v1::SetLimitRequest { name: text.clone(), limit: 1, ..Default::default() })
                .await
                .map(drop),
        ] {
            assert!(refusal(&result.unwrap_err()).is_some(), "{what}");
        }
        // Other calls on the connection go on.
        neighbour.send(v1::RenewLeasesRequest { seq: length as u64, lease_ids: Vec::new() }).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().seq, length as u64, "{what}");
    }
    bench.end().await;
}

#[tokio::test]
async fn the_largest_of_what_is_allowed_is_taken() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=2\nceiling=4\nlease_ttl='1m'\nmax_lease_ttl='2m'\n");
    let client = server.client().await;
    let longest = prost_types::Duration { seconds: i64::MAX, nanos: 999_999_999 };
    let request = v1::AcquireRequest {
        permits: 2,
        max_wait: Some(longest),
        lease_ttl: millis(120_000),
        partition: Some("é".repeat(128)),
        request_id: "r".repeat(128),
        holder: "h\n".repeat(128),
        ..ask("db")
    };
    let lease = client.granted(request.clone()).await;
    // A wait as long as that ends with the bulkhead's own bound, here by the call's deadline.
    let other = v1::AcquireRequest { request_id: String::new(), ..request };
    let bound = Duration::from_millis(300);
    in_time(bound, async || {
        let start = Instant::now();
        let status = client.acquire_within(other.clone(), bound).await.unwrap_err();
        let took = start.elapsed();
        assert!(reason(&status) == "WAIT_TIMEOUT" || took >= bound, "{status:?}");
        took
    })
    .await;
    let request = v1::ReleaseRequest {
        lease_id: lease.lease_id,
        latency: Some(longest),
        retry_after: Some(longest),
        partition: Some("p".repeat(256)),
        ..Default::default()
    };
    let response = client.stub().release(request).await.unwrap().into_inner();
    assert_eq!(response.state(), ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_bad_release_names_its_field_and_changes_nothing() {
    let bench = Bench::start().await;
    let good = || v1::ReleaseRequest { lease_id: bench.lease.lease_id.clone(), ..Default::default() };
    let by_id = |request_id: &str| v1::ReleaseRequest {
        bulkhead: "db".into(),
        request_id: request_id.into(),
        ..Default::default()
    };
    let mut cases = vec![
        (v1::ReleaseRequest::default(), "lease_id"),
        (v1::ReleaseRequest { bulkhead: "db".into(), ..Default::default() }, "lease_id"),
        (v1::ReleaseRequest { bulkhead: "db".into(), ..good() }, "lease_id"),
        (v1::ReleaseRequest { request_id: "mine".into(), ..good() }, "lease_id"),
        (v1::ReleaseRequest { lease_id: "x".repeat(97), ..Default::default() }, "lease_id"),
        (by_id(&"x".repeat(129)), "request_id"),
        (v1::ReleaseRequest { bulkhead: String::new(), ..by_id("mine") }, "bulkhead"),
        (v1::ReleaseRequest { bulkhead: "a\nb".into(), ..by_id("mine") }, "bulkhead"),
        (v1::ReleaseRequest { partition: Some(String::new()), ..good() }, "partition"),
    ];
    for unknown in [4, -1, i32::MAX] {
        cases.push((v1::ReleaseRequest { outcome: unknown, ..good() }, "outcome"));
    }
    for bad in malformed() {
        cases.push((v1::ReleaseRequest { latency: Some(bad), ..good() }, "latency"));
        // A negative wait, well formed, says that there is none to report.
        if bad.seconds > 0 || !(-999_999_999..=0).contains(&bad.nanos) {
            cases.push((v1::ReleaseRequest { retry_after: Some(bad), ..good() }, "retry_after"));
        }
    }
    for bad in bad_names() {
        cases.push((v1::ReleaseRequest { partition: Some(bad), ..good() }, "partition"));
    }
    let count = cases.len();
    for (request, field) in cases {
        let what = format!("{request:?}");
        bench.check(&what, bench.client.stub().release(request).await, INVALID, Some(field)).await;
    }
    let request = v1::ReleaseRequest { bulkhead: "dB".into(), ..by_id("mine") };
    bench.check("an unknown name", bench.client.stub().release(request).await, NOT_FOUND, None).await;
    exercised("bad releases", count, 30);
    bench.end().await;
}

#[tokio::test]
async fn a_bad_renewal_or_question_of_operators_names_its_field_and_changes_nothing() {
    let bench = Bench::start().await;
    for lease_ids in [vec!["x".repeat(97)], vec![String::new(); 1001], vec![bench.lease.lease_id.clone(); 1001]] {
        let what = format!("{} lease ids", lease_ids.len());
        let request = v1::RenewRequest { seq: 1, lease_ids };
        bench.check(&what, bench.client.stub().renew(request).await, INVALID, Some("lease_ids")).await;
    }
    let admin = bench.server.admin().await.clone();
    let set = |name: &str, limit, detail: String| v1::SetLimitRequest {
        name: name.into(),
        limit,
        detail,
        ..Default::default()
    };
    for (request, expected, field) in [
        (set("db", 0, String::new()), INVALID, Some("limit")),
        (set("db", 5, String::new()), INVALID, Some("limit")),
        (set("db", u32::MAX, String::new()), INVALID, Some("limit")),
        (set("db", 3, "x".repeat(257)), INVALID, Some("detail")),
        (set("dB", 3, String::new()), NOT_FOUND, None),
    ] {
        let what = format!("{request:?}");
        bench.check(&what, admin.stub().set_limit(request).await, expected, field).await;
    }
    let request = |name: &str| v1::GetBulkheadRequest { name: name.into() };
    bench.check("no name", admin.stub().get_bulkhead(request("")).await, INVALID, Some("name")).await;
    let of = |bulkhead: &str| v1::ListLeasesRequest { bulkhead: Some(bulkhead.into()), ..Default::default() };
    for name in ["dB", "a\nb", &"x".repeat(1000)] {
        bench.check(name, admin.stub().get_bulkhead(request(name)).await, NOT_FOUND, None).await;
        bench.check(name, admin.stub().list_leases(of(name)).await, NOT_FOUND, None).await;
    }
    bench.end().await;
}

#[tokio::test]
async fn a_bad_change_or_page_of_operators_names_its_field_and_changes_nothing() {
    let bench = Bench::start().await;
    let admin = bench.server.admin().await.clone();
    let token = bench.lease.fencing_token;
    let wait = v1::ReportRetryAfterRequest { partition: "p".into(), retry_after: seconds(600), ..Default::default() };
    bench.client.stub().report_retry_after(wait).await.unwrap();
    let long = "x".repeat(257);
    for (bulkhead, detail, fields) in [("db", &long[..], ["detail"; 2]), ("", "", ["name", "bulkhead"])] {
        let (bulkhead, detail) = (bulkhead.to_owned(), detail.to_owned());
        let end = v1::EndRecoveryRequest { name: bulkhead.clone(), detail: detail.clone() };
        bench.check("EndRecovery", admin.stub().end_recovery(end).await, INVALID, Some(fields[0])).await;
        let revoke = v1::RevokeLeaseRequest { bulkhead, fencing_token: token, detail, immediate: true };
        bench.check("RevokeLease", admin.stub().revoke_lease(revoke).await, INVALID, Some(fields[1])).await;
    }
    let of =
        |partition: &str, detail: &str| v1::ClearCooldownRequest { partition: partition.into(), detail: detail.into() };
    for (clear, field) in [(of("p", &long), "detail"), (of("", ""), "partition"), (of("a\nb", ""), "partition")] {
        bench.check("ClearCooldown", admin.stub().clear_cooldown(clear).await, INVALID, Some(field)).await;
    }
    for page_token in ["?", "AAAA"].map(String::from) {
        let list = v1::ListCooldownsRequest { page_size: 1, page_token: page_token.clone() };
        bench.check("ListCooldowns", admin.stub().list_cooldowns(list).await, INVALID, Some("page_token")).await;
        let list = v1::ListAuditEventsRequest { bulkhead: Some("db".into()), page_size: 1, page_token };
        bench.check("ListAuditEvents", admin.stub().list_audit_events(list).await, INVALID, Some("page_token")).await;
    }
    let watch = |names| v1::WatchBulkheadsRequest { names, interval: None };
    for names in [vec!["db".to_owned(); 1001], vec!["a\nb".into()], vec![String::new()]] {
        bench.check("WatchBulkheads", admin.stub().watch_bulkheads(watch(names)).await, INVALID, Some("names")).await;
    }
    let most = (0..1000).map(|number| format!("{number}")).collect();
    let first = admin.stub().watch_bulkheads(watch(most)).await.unwrap().into_inner().message().await.unwrap();
    assert!(first.unwrap().complete, "so many may be watched");
    let listed = admin.stub().list_cooldowns(v1::ListCooldownsRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.cooldowns.len(), 1, "it is not cleared");
    bench.end().await;
}

#[tokio::test]
async fn r7_made_up_and_altered_lease_ids_are_unknown() {
    let bench = Bench::start().await;
    let other_server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let foreign = other_server.client().await.take("db").await.lease_id;
    let own = &bench.lease.lease_id;
    let mut ids = vec![foreign, own.to_uppercase(), format!("{own}A"), format!(" {own}"), own[1..].into()];
    for at in 0..own.len() {
        // Every character, also the last one, whose spare bits carry nothing.
        let altered = if own[at..].starts_with('A') { "B" } else { "A" };
        ids.push(format!("{}{altered}{}", &own[..at], &own[at + 1..]));
    }
    let mut random = rand::rng();
    for _ in 0..size(200, 2000, 100_000) {
        let length = random.random_range(0..=96);
        ids.push((0..length).map(|_| char::from(random.random_range(b' '..=b'~'))).collect());
    }
    let renewals: Vec<_> = ids.iter().map(String::as_str).collect();
    for ids in renewals.chunks(1000) {
        for renewal in bench.client.renew(ids.iter().copied()).await {
            assert_eq!(renewal.state(), RenewalState::Unknown, "{renewal:?}");
        }
    }
    for id in ids.iter().filter(|id| !id.is_empty()) {
        assert_eq!(bench.client.release(id).await, ReleaseState::Unknown, "{id}");
    }
    bench.unchanged("made-up lease ids").await;
    exercised("lease ids that are not genuine", ids.len(), 250);
    bench.end().await;
}

/// All methods of both services whose answers end, with a request of theirs: about no bulkhead that is there.
fn methods(lease: &v1::Lease) -> Vec<(bool, String, Vec<u8>)> {
    let admission = |method: &str, message| (true, method.to_owned(), message);
    let admin = |method: &str, message| (false, method.to_owned(), message);
    let nowhere = v1::GetBulkheadRequest { name: "nowhere".into() }.encode_to_vec();
    let renew = v1::RenewRequest { seq: 1, lease_ids: vec![lease.lease_id.clone()] };
    let release = v1::ReleaseRequest { bulkhead: "db".into(), request_id: "other".into(), ..Default::default() };
    let mut methods = vec![
        admission("AdmissionService/Acquire", v1::AcquireRequest { permits: 3, ..ask("nowhere") }.encode_to_vec()),
        admission("AdmissionService/Release", release.encode_to_vec()),
        admission("AdmissionService/Renew", renew.encode_to_vec()),
        admission("AdmissionService/RenewLeases", renew.encode_to_vec()),
        admin("AdminService/GetBulkhead", v1::GetBulkheadRequest { name: "db".into() }.encode_to_vec()),
        admin("AdminService/ListBulkheads", v1::ListBulkheadsRequest::default().encode_to_vec()),
        admin("AdminService/ListLeases", v1::ListLeasesRequest::default().encode_to_vec()),
    ];
    // The others begin with the name of what they are about.
    let known: Vec<_> = methods.iter().map(|(_, method, _)| method.clone()).collect();
    let set = prost_types::FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
    for service in set.file.iter().flat_map(|file| &file.service) {
        for method in &service.method {
            let method = format!("{}/{}", service.name(), method.name());
            if !known.contains(&method) && method != "AdminService/WatchBulkheads" {
                methods.push((service.name() == "AdmissionService", method, nowhere.clone()));
            }
        }
    }
    methods
}

#[tokio::test]
async fn p24_any_bytes_as_a_request_are_answered_and_change_nothing() {
    let bench = Bench::start().await;
    let methods = methods(&bench.lease);
    let mut random = rand::rng();
    let (mut answered, mut reset) = (0, 0);
    exercised("methods", methods.len(), 19);
    let rounds = size(100, 1000, 50_000);
    for round in 0..rounds {
        // Connections may be closed by what came over them, so they are not kept for long.
        let admission = Raw::connect(bench.server.admission_address()).await;
        let admin = Raw::connect(bench.server.admin_address()).await;
        for (is_admission, method, good) in &methods {
            let raw = if *is_admission { &admission } else { &admin };
            let method = format!("tidegate.v1.{method}");
            let noise = |random: &mut rand::rngs::ThreadRng| {
                let length = random.random_range(0..200);
                (0..length).map(|_| random.random()).collect::<Vec<u8>>()
            };
            let reply = match round % 4 {
                0 => raw.call(&method, &[], &noise(&mut random)).await,
                1 => {
                    // A request of its kind with some bits turned.
                    let mut message = good.clone();
                    for _ in 0..=random.random_range(0..3) {
                        if let Some(byte) = (!message.is_empty()).then(|| random.random_range(0..message.len())) {
                            message[byte] ^= 1 << random.random_range(0..8);
                        }
                    }
                    raw.call(&method, &[], &message).await
                }
                2 => raw.call(&method, &[], &good[..random.random_range(0..=good.len())]).await,
                _ => raw.send(&method, &[], noise(&mut random).into()).await,
            };
            answered += usize::from(reply.code.is_some());
            reset += usize::from(reply.code.is_none());
        }
        bench.unchanged("random bytes").await;
    }
    println!("{reset} streams were reset");
    exercised("random requests answered with a status", answered, rounds * 4);
    bench.end().await;
}

#[tokio::test]
async fn a_broken_stream_ends_and_keeps_nobody_busy() {
    let bench = Bench::start().await;
    let raw = Raw::connect(bench.server.admission_address()).await;
    // A good request, and then something that is none.
    let good = v1::RenewLeasesRequest { seq: 7, lease_ids: vec![bench.lease.lease_id.clone()] }.encode_to_vec();
    let mut body = vec![0, 0, 0, 0, u8::try_from(good.len()).unwrap()];
    body.extend(&good);
    body.extend([0, 0, 0, 0, 3, 0xFF, 0xFF, 0xFF]);
    for _ in 0..20 {
        let reply = raw.send("tidegate.v1.AdmissionService/RenewLeases", &[], body.clone().into()).await;
        assert!(reply.code.is_some_and(|code| code != 0), "{reply:?}");
    }
    idles(&bench.server, Duration::from_secs(1)).await;
    bench.end().await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_unread() {
    let bench = Bench::start().await;
    for size in [300 << 10, 2 << 20] {
        let status =
            bench.client.acquire(v1::AcquireRequest { holder: "x".repeat(size), ..ask("db") }).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        bench.unchanged("a large request").await;
    }
    bench.end().await;
}

#[tokio::test]
async fn any_text_as_a_time_out_is_answered() {
    let bench = Bench::start().await;
    let raw = Raw::connect(bench.server.admission_address()).await;
    let full = v1::AcquireRequest { permits: 2, max_wait: seconds(0), ..ask("db") }.encode_to_vec();
    let mut random = rand::rng();
    let mut values: Vec<Vec<u8>> =
        ["", "m", "1", "-1S", "1.5S", "123456789S", "1s", " 1S", "1S ", "S1", "99999999999999999999S", "1e3m", "0x1S"]
            .map(|value| value.as_bytes().to_vec())
            .into();
    let malformed = values.len();
    for _ in 0..size(300, 3000, 100_000) {
        let length = random.random_range(0..12);
        values.push((0..length).map(|_| random.random_range(b' '..=b'~')).collect());
        let (number, unit) = (random.random_range(1000..100_000_000), b"HMSmun"[random.random_range(0..6)]);
        values.push(format!("{number}{}", char::from(unit)).into_bytes());
    }
    let mut codes = std::collections::BTreeMap::<_, usize>::new();
    for (at, value) in values.iter().enumerate() {
        let reply = raw.call("tidegate.v1.AdmissionService/Acquire", &[("grpc-timeout", value)], &full).await;
        let told = String::from_utf8_lossy(value);
        // INVALID_ARGUMENT, or RESOURCE_EXHAUSTED, since no two permits are free.
        let code = reply.code.unwrap_or_else(|| panic!("{told:?}: {reply:?}"));
        assert!(code == 3 || code == 8 && at >= malformed, "{told:?}: {reply:?}");
        assert!(code == 8 || reply.message.contains("grpc-timeout"), "{told:?}: {reply:?}");
        *codes.entry(code).or_default() += 1;
    }
    bench.unchanged("random time-outs").await;
    exercised("malformed time-outs", codes[&3], 200);
    exercised("well-formed time-outs", codes[&8], 200);
    bench.end().await;
}
