//! The side of operators: numbers that are true, lists in pages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

use tidegate_client::refusal;
use tidegate_tests::{Server, ask, drain_and_refill, exercised, millis, reason, seconds, span, v1};
use tonic::Code;

#[tokio::test]
async fn w11_a_bulkhead_is_readable_at_any_time() {
    let server = Server::start(
        "[defaults]\nlease_ttl='3s'\n[[bulkhead]]\nname='db'\nlimit=2\nceiling=5\nmax_queued=7\nmax_wait='1m'\n\
         max_lease_ttl='20s'\naging_step='3s'\n[[bulkhead]]\nname='plain'\nlimit=3\n",
    );
    let client = server.client().await;
    let before = SystemTime::now();
    let long = || v1::AcquireRequest { lease_ttl: seconds(20), ..ask("db") };
    let held = [client.granted(long()).await, client.granted(long()).await];
    let waiter = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;
    server.admin().await.set_limit("db", 1).await;

    let v1::Bulkhead { name, settings, status, etag: _ } = server.admin().await.bulkhead("db").await;
    let (settings, status) = (settings.unwrap(), status.unwrap());
    assert_eq!(name, "db");
    assert_eq!((settings.limit, settings.ceiling, settings.max_queued), (Some(2), Some(5), Some(7)));
    assert_eq!(
        (settings.max_wait, settings.lease_ttl, settings.max_lease_ttl, settings.aging_step),
        (seconds(60), seconds(3), seconds(20), seconds(3))
    );
    assert_eq!((status.limit, status.running, status.unheard, status.queued), (1, 2, 0, 1));
    assert_eq!((status.granted, status.waited, status.held_back, status.expired), (2, 1, 1, 0));
    assert!(status.refused.is_empty(), "{:?}", status.refused);
    let since = SystemTime::try_from(status.counted_since.unwrap()).unwrap();
    assert!(since <= before && before.duration_since(since).unwrap() < Duration::from_mins(1));

    // What nobody wrote down has its default.
    let plain = server.admin().await.bulkhead("plain").await.settings.unwrap();
    assert_eq!((plain.limit, plain.ceiling, plain.max_queued), (Some(3), Some(3), Some(24)));
    assert_eq!(
        (plain.max_wait, plain.lease_ttl, plain.max_lease_ttl, plain.aging_step),
        (seconds(2), seconds(3), seconds(3), millis(500))
    );

    for lease in held {
        client.release(&lease.lease_id).await;
    }
    client.release(&waiter.await.unwrap().unwrap().lease.unwrap().lease_id).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn w12_held_back_counts_who_waited_or_was_refused_and_readers_subtract() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nceiling=2\nmax_queued=1\nmax_wait='1m'\n");
    let client = server.client().await;
    let mut last = 0;
    let mut since_last = async || {
        let now = server.status("db").await.held_back;
        now - std::mem::replace(&mut last, now)
    };
    let lease = client.take("db").await;
    assert_eq!(since_last().await, 0, "a free permit holds nobody back");
    let waiter = client.start(ask("db"));
    server.until("db", |now| now.queued == 1).await;
    assert_eq!(since_last().await, 1, "one waits");
    client.refused(ask("db")).await;
    client.refused(v1::AcquireRequest { max_wait: seconds(0), ..ask("db") }).await;
    assert_eq!(since_last().await, 2, "two were refused");
    client.release(&lease.lease_id).await;
    let lease = waiter.await.unwrap().unwrap().lease.unwrap();
    assert_eq!(since_last().await, 0, "the waiter's grant is not another one");
    // One who waits and is refused then was held back once.
    client.refused(v1::AcquireRequest { max_wait: millis(50), ..ask("db") }).await;
    assert_eq!(since_last().await, 1);
    // What is wrong with a request is not for want of room.
    client.refused(v1::AcquireRequest { permits: 3, ..ask("db") }).await;
    client.refused(v1::AcquireRequest { lease_ttl: seconds(1), ..ask("db") }).await;
    assert_eq!(since_last().await, 0);

    let status = server.status("db").await;
    let expected = [
        ("QUEUE_FULL", 1),
        ("CONCURRENCY_CAPACITY_EXHAUSTED", 1),
        ("WAIT_TIMEOUT", 1),
        ("PERMITS_EXCEED_CEILING", 1),
        ("INVALID_FIELD", 1),
    ];
    assert_eq!(status.refused, expected.map(|(reason, count)| (reason.to_owned(), count)).into());
    assert_eq!((status.granted, status.waited, status.held_back), (2, 2, 4));
    client.release(&lease.lease_id).await;
    drain_and_refill(&server, "db").await;
}

/// All pages of a list.
async fn leases(server: &Server, bulkhead: Option<&str>, page_size: u32) -> Vec<Vec<v1::HeldLease>> {
    let mut pages = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListLeasesRequest { bulkhead: bulkhead.map(Into::into), page_size, page_token };
        let page = server.admin().await.stub().list_leases(request).await.unwrap().into_inner();
        pages.push(page.leases);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return pages;
        }
    }
}

#[tokio::test]
async fn leases_are_listed_in_pages_by_bulkhead_and_token() {
    let server = Server::start(
        "[defaults]\nlimit=200\nlease_ttl='1m'\n[[bulkhead]]\nname='b'\n[[bulkhead]]\nname='a'\n\
         [[bulkhead]]\nname='a/b'\n[[bulkhead]]\nname='empty'\n",
    );
    let client = server.client().await;
    let mut granted = Vec::new();
    for (name, count) in [("b", 130), ("a", 110), ("a/b", 7)] {
        for _ in 0..count {
            granted.push(client.take(name).await);
        }
    }
    let mut expected: Vec<_> = granted.iter().map(|lease| (&lease.bulkhead[..], lease.fencing_token)).collect();
    expected.sort_unstable();
    for (page_size, first_page) in [(0, 100), (1, 1), (7, 7), (247, 247), (248, 247), (u32::MAX, 247)] {
        let pages = leases(&server, None, page_size).await;
        assert_eq!(pages[0].len(), first_page, "a page of {page_size}");
        assert!(pages.iter().all(|page| !page.is_empty()), "a page of {page_size}");
        let listed = pages.iter().flatten().map(|lease| (&lease.bulkhead[..], lease.fencing_token));
        assert_eq!(listed.collect::<Vec<_>>(), expected);
    }
    for (name, count) in [("b", 130), ("a", 110), ("a/b", 7), ("empty", 0)] {
        let listed: Vec<_> = leases(&server, Some(name), 20).await.concat();
        assert_eq!(listed.len(), count);
        assert!(listed.iter().all(|lease| lease.bulkhead == name));
    }
    // A list that is being read goes on after leases on it have ended.
    let request = v1::ListLeasesRequest { bulkhead: None, page_size: 5, page_token: String::new() };
    let page = server.admin().await.stub().list_leases(request).await.unwrap().into_inner();
    for lease in &granted {
        client.release(&lease.lease_id).await;
    }
    let request = v1::ListLeasesRequest { bulkhead: None, page_size: 5, page_token: page.next_page_token };
    let rest = server.admin().await.stub().list_leases(request).await.unwrap().into_inner();
    assert_eq!((page.leases.len(), rest.leases.len(), &rest.next_page_token[..]), (5, 0, ""));
    for name in ["a", "b", "a/b", "empty"] {
        drain_and_refill(&server, name).await;
    }
}

#[tokio::test]
async fn a_listed_lease_tells_who_has_it_and_not_its_id() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=3\nlease_ttl='10s'\nmax_lease_ttl='1m'\n");
    let client = server.client().await;
    let before = SystemTime::now();
    let request = v1::AcquireRequest {
        permits: 2,
        holder: "worker-7".into(),
        partition: Some("nightly".into()),
        lease_ttl: seconds(30),
        ..ask("db")
    };
    let lease = client.granted(request).await;
    let plain = client.take("db").await;
    let listed = server.admin().await.leases("db").await;
    let [first, second] = &listed[..] else { panic!("two leases, not {listed:?}") };
    assert_eq!((&first.bulkhead[..], first.fencing_token, first.permits), ("db", lease.fencing_token, 2));
    assert_eq!((&first.partition[..], &first.holder[..]), ("nightly", "worker-7"));
    assert!(first.address.starts_with("127.0.0.1:"), "{}", first.address);
    let granted = SystemTime::try_from(first.grant_time.unwrap()).unwrap();
    // Wall clocks and the server's own may differ by a little, and more where a thread was held up between the two.
    assert!(granted + Duration::from_secs(1) >= before && granted <= SystemTime::now() + Duration::from_secs(1));
    let left = span(first.ttl_left);
    assert!(left <= Duration::from_secs(30) && left > Duration::from_secs(20), "{left:?}");
    assert_eq!((&second.partition[..], &second.holder[..], second.permits), ("db", "", 1));
    for lease in [lease, plain] {
        assert!(!format!("{listed:?}").contains(&lease.lease_id));
        client.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn bulkheads_are_listed_in_pages_by_name() {
    let mut names: Vec<_> = (0..230).map(|number| format!("tenant/{number}")).chain(["é".into(), "A".into()]).collect();
    let config: Vec<_> = names.iter().map(|name| format!("[[bulkhead]]\nname='{name}'\nlimit=1\n")).collect();
    let server = Server::start(&config.concat());
    names.sort_unstable();
    for (page_size, first_page) in [(0, 100), (1, 1), (58, 58), (232, 232), (1000, 232)] {
        let (mut listed, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListBulkheadsRequest { page_size, page_token };
            let page = server.admin().await.stub().list_bulkheads(request).await.unwrap().into_inner();
            assert!(!page.bulkheads.is_empty());
            if listed.is_empty() {
                assert_eq!(page.bulkheads.len(), first_page);
            }
            listed.extend(page.bulkheads.into_iter().map(|bulkhead| bulkhead.name));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(listed, names);
    }
    drain_and_refill(&server, "tenant/7").await;
}

#[tokio::test]
async fn a_list_in_pages_misses_nobody_and_repeats_nobody_while_others_come_and_go() {
    let stays: Vec<_> = (0..30).map(|number| format!("{number:02}/stays")).collect();
    let config: Vec<_> = stays.iter().map(|name| format!("[[bulkhead]]\nname='{name}'\nlimit=1\n")).collect();
    let server = Server::start(&config.concat());
    let mut stub = server.admin().await.stub();
    let settings = Some(v1::BulkheadSettings { limit: Some(1), ..Default::default() });
    let create = |name: &str| v1::CreateBulkheadRequest { name: name.into(), settings, ..Default::default() };
    let delete = |name: &str| v1::DeleteBulkheadRequest { name: name.into(), ..Default::default() };
    for page_size in [1, 2, 3, 7] {
        let mut others: BTreeSet<_> = (0..30).map(|number| format!("{number:02}/goes")).collect();
        for name in &others {
            stub.create_bulkhead(create(name)).await.unwrap();
        }
        let (mut listed, mut page_token) = (Vec::new(), String::new());
        let (mut gone_before, mut come_behind, mut come_before) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let page =
                stub.list_bulkheads(v1::ListBulkheadsRequest { page_size, page_token }).await.unwrap().into_inner();
            listed.extend(page.bulkheads.into_iter().map(|bulkhead| bulkhead.name));
            assert!(listed.len() < 1_000, "it never ends");
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
            // The next page begins behind this one: it goes itself, if it may, and so does one that is not yet told.
            let last = listed.last().unwrap().clone();
            let next = others.range::<String, _>((Bound::Excluded(&last), Bound::Unbounded)).next().cloned();
            for name in [others.contains(&last).then(|| last.clone()), next.clone()].into_iter().flatten() {
                stub.delete_bulkhead(delete(&name)).await.unwrap();
                others.remove(&name);
            }
            gone_before.extend(next);
            // One comes on either side of that place; behind it at most once, or this would never end.
            let mut new = vec![format!("00/{}", listed.len())];
            come_before.extend(new.clone());
            if !last.ends_with('+') {
                new.push(format!("{last}+"));
                come_behind.push(format!("{last}+"));
            }
            for name in new {
                stub.create_bulkhead(create(&name)).await.unwrap();
                others.insert(name);
            }
        }
        assert!(listed.is_sorted_by(|earlier, later| earlier < later), "told twice: {listed:?}");
        let told: BTreeSet<_> = listed.into_iter().collect();
        let is_told = |name: &String| told.contains(name);
        assert!(stays.iter().all(is_told) && come_behind.iter().all(is_told), "missed, pages of {page_size}: {told:?}");
        assert!(!gone_before.iter().any(is_told) && !come_before.iter().any(is_told), "pages of {page_size}: {told:?}");
        exercised("bulkheads that went or came", gone_before.len() + come_behind.len(), 8);
        for name in &others {
            stub.delete_bulkhead(delete(name)).await.unwrap();
        }
    }
    drain_and_refill(&server, "07/stays").await;
}

#[tokio::test]
async fn a_page_token_of_another_list_is_refused() {
    let server =
        Server::start("[defaults]\nlimit=3\n[[bulkhead]]\nname='a'\n[[bulkhead]]\nname='b'\n[[bulkhead]]\nname='c'\n");
    let client = server.client().await;
    let mut held = Vec::new();
    for name in ["a", "a", "b", "b"] {
        held.push(client.take(name).await);
    }
    let mut stub = server.admin().await.stub();
    let of_leases = |bulkhead: Option<&str>, page_token: &str| v1::ListLeasesRequest {
        bulkhead: bulkhead.map(Into::into),
        page_size: 1,
        page_token: page_token.into(),
    };
    let of_a = stub.list_leases(of_leases(Some("a"), "")).await.unwrap().into_inner().next_page_token;
    let of_all = stub.list_leases(of_leases(None, "")).await.unwrap().into_inner().next_page_token;
    let request = v1::ListBulkheadsRequest { page_size: 1, page_token: String::new() };
    let of_bulkheads = stub.list_bulkheads(request).await.unwrap().into_inner().next_page_token;
    assert!(![&of_a, &of_all, &of_bulkheads].iter().any(|token| token.is_empty()));

    let mut refused = Vec::new();
    for (bulkhead, token) in [
        (Some("b"), &of_a[..]),
        (None, &of_a),
        (Some("a"), &of_all),
        (Some("a"), &of_bulkheads),
        (None, &of_bulkheads),
        (None, "?"),
        (None, "AAAA"),
    ] {
        refused.push((bulkhead, token, stub.list_leases(of_leases(bulkhead, token)).await.map(drop)));
    }
    for token in [&of_a[..], &of_all, "made up"] {
        let request = v1::ListBulkheadsRequest { page_size: 1, page_token: token.into() };
        refused.push((Some("the list of bulkheads"), token, stub.list_bulkheads(request).await.map(drop)));
    }
    for (list, token, result) in refused {
        let status = result.expect_err(&format!("{list:?} took {token}"));
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(tidegate_client::refusal(&status).unwrap().violations[0].field, "page_token");
    }
    for lease in held {
        client.release(&lease.lease_id).await;
    }
    drain_and_refill(&server, "a").await;
    drain_and_refill(&server, "b").await;
}

fn settings(limit: Option<u32>, ceiling: Option<u32>) -> v1::BulkheadSettings {
    v1::BulkheadSettings { limit, ceiling, ..Default::default() }
}

fn update(name: &str, settings: v1::BulkheadSettings, paths: &[&str]) -> v1::UpdateBulkheadRequest {
    let bulkhead = v1::Bulkhead { name: name.into(), settings: Some(settings), ..Default::default() };
    let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
    let update_mask = (!paths.is_empty()).then_some(prost_types::FieldMask { paths });
    v1::UpdateBulkheadRequest { bulkhead: Some(bulkhead), update_mask, ..Default::default() }
}

#[tokio::test]
async fn r4_a_lower_ceiling_never_raises_a_limit_that_an_operator_lowered() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=8\nceiling=16\n");
    let admin = server.admin().await;
    let send = async |request: v1::UpdateBulkheadRequest| {
        let dry = v1::UpdateBulkheadRequest { validate_only: true, ..request.clone() };
        let told = admin.stub().update_bulkhead(dry).await.unwrap().into_inner().bulkhead.unwrap();
        let done = admin.stub().update_bulkhead(request).await.unwrap().into_inner().bulkhead.unwrap();
        // What would be is what came to be.
        let (told, now) = (told.status.unwrap(), done.status.unwrap());
        assert_eq!((told.limit, told.revert_limit), (now.limit, now.revert_limit));
        (done.settings.unwrap().limit.unwrap(), now.limit, now.revert_limit)
    };
    let for_a_while =
        v1::SetLimitRequest { name: "db".into(), limit: 2, revert_after: seconds(3600), ..Default::default() };
    admin.stub().set_limit(for_a_while).await.unwrap();
    assert_eq!(send(update("db", settings(None, Some(4)), &[])).await, (4, 2, Some(8)));
    // What was read and is written back moves nothing; who names the limit moves both.
    assert_eq!(send(update("db", settings(Some(4), Some(5)), &[])).await, (4, 2, Some(8)));
    assert_eq!(send(update("db", settings(Some(4), None), &["settings.limit"])).await, (4, 4, None));
    assert_eq!(send(update("db", settings(Some(3), None), &[])).await, (3, 3, None));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn an_etag_changes_with_what_is_decided_and_with_a_restart_and_with_nothing_else() {
    let config = "[[bulkhead]]\nname='db'\nlimit=2\n";
    let server = Server::start(config);
    let admin = server.admin().await;
    let first = admin.bulkhead("db").await.etag;
    let same = v1::SetLimitRequest { name: "db".into(), limit: 2, etag: first.clone(), ..Default::default() };
    let after = admin.stub().set_limit(same.clone()).await.unwrap().into_inner().bulkhead.unwrap();
    assert_eq!(after.etag, first, "nothing is different");
    let other = v1::SetLimitRequest { limit: 1, ..same.clone() };
    let after = admin.stub().set_limit(other).await.unwrap().into_inner().bulkhead.unwrap();
    assert_ne!(after.etag, first);
    drop(server);
    let server = Server::start(config);
    let refused = server.admin().await.stub().set_limit(same).await.unwrap_err();
    assert_eq!(reason(&refused), "ETAG_MISMATCH");
}

#[tokio::test]
async fn what_would_be_refused_is_refused_when_it_is_only_validated() {
    let server = Server::start("[server]\nmax_bulkheads=1\n[[bulkhead]]\nname='db'\nlimit=1\n");
    let (admin, client) = (server.admin().await, server.client().await);
    for validate_only in [true, false] {
        let name = "other".into();
        let create = v1::CreateBulkheadRequest {
            name,
            settings: Some(settings(Some(1), None)),
            validate_only,
            ..Default::default()
        };
        assert_eq!(reason(&admin.stub().create_bulkhead(create).await.unwrap_err()), "SERVER_CAP_REACHED");
        let missing = update("other", settings(Some(1), None), &[]);
        let missing = v1::UpdateBulkheadRequest { allow_missing: true, validate_only, ..missing };
        assert_eq!(reason(&admin.stub().update_bulkhead(missing).await.unwrap_err()), "SERVER_CAP_REACHED");
    }
    let lease = client.take("db").await;
    let delete = v1::DeleteBulkheadRequest { name: "db".into(), drain: true, ..Default::default() };
    admin.stub().delete_bulkhead(delete).await.unwrap();
    for validate_only in [true, false] {
        let late = v1::UpdateBulkheadRequest { validate_only, ..update("db", settings(Some(1), None), &[]) };
        assert_eq!(reason(&admin.stub().update_bulkhead(late).await.unwrap_err()), "BULKHEAD_IN_USE");
    }
    let mode = v1::SetModeRequest { name: "db".into(), mode: v1::Mode::Paused.into(), ..Default::default() };
    assert_eq!(reason(&admin.stub().set_mode(mode).await.unwrap_err()), "BULKHEAD_IN_USE");
    let recovery = v1::EndRecoveryRequest { name: "db".into(), ..Default::default() };
    assert_eq!(reason(&admin.stub().end_recovery(recovery).await.unwrap_err()), "BULKHEAD_IN_USE");
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
}

#[tokio::test]
async fn a_watch_tells_of_many_that_go_at_once_in_messages_of_500() {
    let config = "[server]\nidle_after='8s'\n[[bulkhead]]\nname='db'\nlimit=1\n\
        [[template]]\npattern='made/*'\nlimit=1\nlease_ttl='2s'\n";
    let server = Server::start(config);
    let client = server.client().await;
    for number in 0..1_200 {
        // Refused, but its bulkhead is made.
        let too_many = v1::AcquireRequest { permits: 2, ..ask(&format!("made/{number:0>200}")) };
        client.acquire(too_many).await.unwrap_err();
    }
    let watch = v1::WatchBulkheadsRequest { interval: seconds(10), ..Default::default() };
    let mut told = server.admin().await.stub().watch_bulkheads(watch).await.unwrap().into_inner();
    let (mut there, mut gone, mut messages) = (0, 0, 0);
    while there == 0 || gone < there - 1 {
        let message = told.message().await.expect("it goes on").unwrap();
        assert!(message.bulkheads.len() <= 500 && message.deleted.len() <= 500, "{}", message.deleted.len());
        there += message.bulkheads.len();
        gone += message.deleted.len();
        messages += usize::from(!message.deleted.is_empty());
    }
    exercised("messages about what is gone", messages, 2);
}

/// Sends a request that is wrong in that field, and sees that the answer names it.
macro_rules! names {
    ($admin:expr, $method:ident, $field:literal, $request:expr) => {
        let status = $admin.stub().$method($request).await.unwrap_err();
        assert_eq!((status.code(), &*reason(&status)), (Code::InvalidArgument, "INVALID_FIELD"), stringify!($method));
        assert_eq!(refusal(&status).unwrap().violations[0].field, $field, stringify!($method));
    };
}

#[tokio::test]
async fn every_rpc_of_operators_names_the_field_that_is_wrong() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\n");
    let admin = server.admin().await;
    let (long, name, page_token) = ("x".repeat(257), String::from("db"), String::from("forged"));
    let detail = long.clone();
    names!(admin, get_bulkhead, "name", v1::GetBulkheadRequest { name: String::new() });
    names!(
        admin,
        list_bulkheads,
        "page_token",
        v1::ListBulkheadsRequest { page_token: page_token.clone(), page_size: 1 }
    );
    names!(admin, create_bulkhead, "name", v1::CreateBulkheadRequest { name: long.clone(), ..Default::default() });
    names!(admin, update_bulkhead, "bulkhead.name", update(&long, settings(Some(1), None), &[]));
    let delete = v1::DeleteBulkheadRequest { name: name.clone(), detail: detail.clone(), ..Default::default() };
    names!(admin, delete_bulkhead, "detail", delete);
    names!(admin, set_limit, "limit", v1::SetLimitRequest { name: name.clone(), ..Default::default() });
    names!(admin, set_mode, "mode", v1::SetModeRequest { name: name.clone(), ..Default::default() });
    names!(
        admin,
        list_leases,
        "page_token",
        v1::ListLeasesRequest { page_token: page_token.clone(), ..Default::default() }
    );
    names!(
        admin,
        list_waiters,
        "page_token",
        v1::ListWaitersRequest { page_token: page_token.clone(), ..Default::default() }
    );
    let revoke = v1::RevokeLeaseRequest { bulkhead: name.clone(), detail: detail.clone(), ..Default::default() };
    names!(admin, revoke_lease, "detail", revoke);
    names!(admin, end_recovery, "detail", v1::EndRecoveryRequest { name: name.clone(), detail: detail.clone() });
    names!(
        admin,
        list_cooldowns,
        "page_token",
        v1::ListCooldownsRequest { page_token: page_token.clone(), page_size: 1 }
    );
    names!(admin, clear_cooldown, "partition", v1::ClearCooldownRequest { partition: long, detail: String::new() });
    let watch = v1::WatchBulkheadsRequest { interval: millis(1), ..Default::default() };
    names!(admin, watch_bulkheads, "interval", watch);
    names!(admin, list_audit_events, "page_token", v1::ListAuditEventsRequest { page_token, ..Default::default() });
    // The one without a field.
    admin.stub().get_server_info(v1::GetServerInfoRequest {}).await.unwrap();
    drain_and_refill(&server, "db").await;
}
