//! The configuration changes while the server runs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_tests::{Instant, PATIENCE, Server, ask, drain_and_refill, reason, seconds, span, v1};
use tonic::Code;

/// A file in a folder of its own.
struct File {
    folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("tidegate.toml");
        fs::write(&path, text).unwrap();
        Self { folder, path }
    }

    /// As editors and deployments do: another file takes the name.
    fn replace(&self, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.path).unwrap();
    }
}

/// A bulkhead of that name and limit under a ceiling of 16, with more settings.
fn bulkhead(name: &str, limit: u32, more: &str) -> String {
    format!("[[bulkhead]]\nname='{name}'\nlimit={limit}\nceiling=16\nmax_queued=100\n{more}\n")
}

fn db(limit: u32, more: &str) -> String {
    bulkhead("db", limit, more)
}

async fn settings(server: &Server, name: &str) -> v1::BulkheadSettings {
    server.admin().await.bulkhead(name).await.settings.unwrap()
}

async fn until_limit(server: &Server, name: &str, limit: u32) {
    server.until(name, |now| now.limit == limit).await;
}

async fn exists(server: &Server, name: &str) -> bool {
    let request = v1::GetBulkheadRequest { name: name.into() };
    match server.admin().await.stub().get_bulkhead(request).await {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::NotFound);
            false
        }
    }
}

/// An operator makes a bulkhead with a limit of 1.
async fn create(server: &Server, name: &str) {
    let settings = Some(v1::BulkheadSettings { limit: Some(1), ..Default::default() });
    let request = v1::CreateBulkheadRequest { name: name.into(), settings, ..Default::default() };
    server.admin().await.stub().create_bulkhead(request).await.unwrap();
}

async fn until_exists(server: &Server, name: &str, wanted: bool) {
    let start = Instant::now();
    while exists(server, name).await != wanted {
        assert!(start.elapsed() < PATIENCE, "{name} is there: {}", !wanted);
    }
}

#[tokio::test]
async fn a_file_that_is_replaced_or_written_anew_is_read_again() {
    let file = File::new(&db(4, ""));
    let server = Server::start_on(&file.path, &[]);
    file.replace(&db(6, "max_wait='7s'"));
    until_limit(&server, "db", 6).await;
    assert_eq!(span(settings(&server, "db").await.max_wait), Duration::from_secs(7));
    fs::write(&file.path, db(3, "")).unwrap();
    until_limit(&server, "db", 3).await;
    assert_eq!(span(settings(&server, "db").await.max_wait), Duration::from_secs(2));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_config_map_whose_link_is_swapped_is_read_again() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let write = |version: &str, text: &str| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("tidegate.toml"), text).unwrap();
    };
    write("..1", &db(4, ""));
    symlink("..1", at("..data")).unwrap();
    symlink("..data/tidegate.toml", at("tidegate.toml")).unwrap();
    let server = Server::start_on(&at("tidegate.toml"), &[]);
    // The first may be seen by the look at the start; the old files go later, since their going would be seen, too.
    for (version, limit) in [("..2", 6), ("..3", 2), ("..4", 5)] {
        write(version, &db(limit, ""));
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        until_limit(&server, "db", limit).await;
    }
    fs::remove_dir_all(at("..3")).unwrap();
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn sighup_reads_again_what_no_watch_has_seen() {
    // The file itself is in another folder than its name.
    let (file, names) = (File::new(&db(4, "")), TempDir::new().unwrap());
    let name = names.path().join("tidegate.toml");
    symlink(&file.path, &name).unwrap();
    let server = Server::start_on(&name, &[]);
    file.replace(&db(6, ""));
    server.hang_up();
    until_limit(&server, "db", 6).await;
    server.until_logged("configuration reloaded changed=1 applied_so_far=1 refused_so_far=0", 1).await;
    // Again, and nothing is different.
    server.hang_up();
    server.until_logged("configuration reloaded changed=0 applied_so_far=2 refused_so_far=0", 1).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_told() {
    let file = File::new(&db(4, ""));
    let server = Server::start_on(&file.path, &[]);
    let bad = bulkhead("new", 1, "") + &db(6, "") + &bulkhead("worse", 20, "max_wait='soon'");
    file.replace(&bad);
    server
        .until_logged("the configuration is not reloaded; nothing is changed applied_so_far=0 refused_so_far=1", 1)
        .await;
    assert!(server.logged("\"worse\" limit must be 1 to 16, not 20 (file "));
    assert!(server.logged("\"worse\" max_wait must be a duration"));
    assert!(!exists(&server, "new").await);
    assert_eq!(server.status("db").await.limit, 4);
    // A file that is gone is a bad one, too.
    fs::remove_file(&file.path).unwrap();
    server.until_logged("nothing is changed applied_so_far=0 refused_so_far=2", 1).await;
    assert_eq!(server.status("db").await.limit, 4);
    file.replace(&(bulkhead("new", 1, "") + &db(6, "")));
    server.until_logged("configuration reloaded changed=2 applied_so_far=1 refused_so_far=2", 1).await;
    assert_eq!(server.status("db").await.limit, 6);
    drain_and_refill(&server, "new").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn a_file_with_more_bulkheads_than_there_is_room_for_changes_nothing() {
    let file = File::new(&format!("[server]\nmax_bulkheads=2\n{}", db(4, "")));
    let server = Server::start_on(&file.path, &[]);
    // The new cap is in force only after a restart.
    let two = bulkhead("one", 1, "") + &bulkhead("two", 1, "");
    file.replace(&format!("[server]\nmax_bulkheads=9\n{}{two}", db(6, "")));
    server.until_logged("the configuration is not reloaded; nothing is changed", 1).await;
    assert_eq!(server.status("db").await.limit, 4);
    assert!(!exists(&server, "one").await && !exists(&server, "two").await);
    // No room was lost.
    file.replace(&format!("[server]\nmax_bulkheads=9\n{}{}", db(6, ""), bulkhead("one", 1, "")));
    until_exists(&server, "one", true).await;
    server.until_logged("in force only after the next: max_bulkheads", 1).await;
    drain_and_refill(&server, "one").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn an_operators_limit_stays_until_the_file_says_another() {
    let file = File::new(&db(4, ""));
    let server = Server::start_on(&file.path, &[]);
    let admin = server.admin().await;
    admin.set_limit("db", 8).await;
    file.replace(&db(4, "max_wait='9s'"));
    server.until_logged("configuration reloaded changed=1", 1).await;
    assert_eq!(span(settings(&server, "db").await.max_wait), Duration::from_secs(9));
    assert_eq!(server.status("db").await.limit, 8, "the file says nothing new about the limit");
    file.replace(&db(6, "max_wait='9s'"));
    until_limit(&server, "db", 6).await;
    // Away from it and back to it by the file alone.
    admin.set_limit("db", 2).await;
    file.replace(&db(5, "max_wait='9s'"));
    until_limit(&server, "db", 5).await;
    // Also if an operator moved the start limit there before, and then the limit in force.
    let settings = Some(v1::BulkheadSettings { limit: Some(6), ..Default::default() });
    let bulkhead = Some(v1::Bulkhead { name: "db".into(), settings, ..Default::default() });
    let request = v1::UpdateBulkheadRequest { bulkhead, ..Default::default() };
    admin.stub().update_bulkhead(request).await.unwrap();
    admin.set_limit("db", 2).await;
    file.replace(&db(6, "max_wait='9s'"));
    until_limit(&server, "db", 6).await;
    file.replace(&db(5, "max_wait='9s'"));
    until_limit(&server, "db", 5).await;
    admin.set_limit("db", 16).await;
    file.replace(&db(5, "max_wait='9s'").replace("ceiling=16", "ceiling=7"));
    until_limit(&server, "db", 7).await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn leases_and_waiters_stay() {
    let file = File::new(&db(1, "max_wait='1m'"));
    let server = Server::start_on(&file.path, &[]);
    let client = server.client().await;
    let first = client.take("db").await;
    let mut waiters = Vec::new();
    for queued in 1..=3 {
        waiters.push(client.start(ask("db")));
        server.until("db", |now| now.queued == queued).await;
    }
    file.replace(&db(1, "max_wait='50s'\nlease_ttl='20s'"));
    server.until_logged("configuration reloaded changed=1", 1).await;
    assert_eq!(server.status("db").await.queued, 3);
    assert_eq!(client.renew_one(&first.lease_id).await, v1::RenewalState::Renewed);
    // Raised: one more starts, the first in the queue. Lowered: nobody is cancelled.
    file.replace(&db(2, "max_wait='50s'\nlease_ttl='20s'"));
    server.until("db", |now| now.running == 2).await;
    let second = waiters.remove(0).await.unwrap().unwrap().lease.unwrap();
    assert!(second.fencing_token > first.fencing_token);
    file.replace(&db(1, "max_wait='50s'\nlease_ttl='20s'"));
    until_limit(&server, "db", 1).await;
    let status = server.status("db").await;
    assert_eq!((status.running, status.queued), (2, 2));
    for lease in [&first, &second] {
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    let third = waiters.remove(0).await.unwrap().unwrap().lease.unwrap();
    assert_eq!(client.release(&third.lease_id).await, v1::ReleaseState::Released);
    let fourth = waiters.remove(0).await.unwrap().unwrap().lease.unwrap();
    assert_eq!(client.release(&fourth.lease_id).await, v1::ReleaseState::Released);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn bulkheads_come_and_go_with_the_file() {
    let file = File::new(&db(4, ""));
    let server = Server::start_on(&file.path, &[]);
    file.replace(&(db(4, "") + &bulkhead("new", 1, "max_wait='1m'")));
    until_exists(&server, "new", true).await;
    drain_and_refill(&server, "new").await;
    file.replace(&db(4, ""));
    until_exists(&server, "new", false).await;
    assert_eq!(server.client().await.refused(ask("new")).await.reason, "BULKHEAD_NOT_FOUND");
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn what_leaves_the_file_drains_and_may_come_back() {
    let with = |limit: u32| db(4, "") + &bulkhead("old", limit, "max_wait='1m'");
    let file = File::new(&with(1));
    let server = Server::start_on(&file.path, &[]);
    let client = server.client().await;
    let lease = client.take("old").await;
    let waiter = client.start(ask("old"));
    server.until("old", |now| now.queued == 1).await;
    file.replace(&db(4, ""));
    assert_eq!(reason(&waiter.await.unwrap().unwrap_err()), "BULKHEAD_CLOSED");
    assert_eq!(server.status("old").await.running, 1);
    assert_eq!(client.renew_one(&lease.lease_id).await, v1::RenewalState::Renewed);
    // It comes back before it is gone: as the file has it, with the lease that is left.
    file.replace(&with(2));
    until_limit(&server, "old", 2).await;
    assert_eq!(settings(&server, "old").await.mode(), v1::Mode::Enforcing);
    assert_eq!(server.status("old").await.running, 1);
    let other = client.take("old").await;
    // Again, and now it goes with its last lease.
    file.replace(&db(4, ""));
    server.until_logged("configuration reloaded changed=1", 3).await;
    for lease in [lease, other] {
        assert!(exists(&server, "old").await);
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    until_exists(&server, "old", false).await;
    file.replace(&with(3));
    until_exists(&server, "old", true).await;
    drain_and_refill(&server, "old").await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn what_an_operator_made_or_deleted_stays_so_until_the_file_speaks_of_it() {
    let file = File::new(&(db(4, "") + &bulkhead("gone", 1, "")));
    let server = Server::start_on(&file.path, &[]);
    create(&server, "by hand").await;
    server
        .admin()
        .await
        .stub()
        .delete_bulkhead(v1::DeleteBulkheadRequest { name: "gone".into(), ..Default::default() })
        .await
        .unwrap();
    file.replace(&(db(5, "") + &bulkhead("gone", 1, "")));
    until_limit(&server, "db", 5).await;
    server.until_logged("configuration reloaded changed=1", 1).await;
    assert!(!exists(&server, "gone").await, "the file says nothing new about it");
    assert_eq!(server.status("by hand").await.limit, 1);
    // Now it does.
    file.replace(&(db(5, "") + &bulkhead("gone", 2, "") + &bulkhead("by hand", 3, "")));
    until_limit(&server, "by hand", 3).await;
    until_exists(&server, "gone", true).await;
    assert_eq!(server.status("gone").await.limit, 2);
    for name in ["db", "gone", "by hand"] {
        drain_and_refill(&server, name).await;
    }
}

#[tokio::test]
async fn reloads_are_in_the_audit() {
    let file = File::new(&db(4, ""));
    let server = Server::start_on(&file.path, &[]);
    file.replace(&format!("[server]\nramp_step='3s'\n{}", db(4, "max_wait='9s'")));
    server.until_logged("configuration reloaded changed=1", 1).await;
    let request = v1::ListAuditEventsRequest { page_size: 9, ..Default::default() };
    let events = server.admin().await.stub().list_audit_events(request).await.unwrap().into_inner().events;
    let told = |bulkhead: &str| -> Vec<String> {
        let of =
            |event: &&v1::AuditEvent| event.bulkhead == bulkhead && event.actor == "file" && event.action == "Reload";
        let event = events.iter().find(of).expect("the reload was noted");
        event.changes.iter().map(|change| format!("{} {} {}", change.field, change.before, change.after)).collect()
    };
    assert_eq!(told(""), ["ramp_step 1s 3s"]);
    assert_eq!(
        told("db"),
        ["settings.max_wait 2s 9s", "settings.aging_step 500ms 2s 250ms", "settings.ramp_step 1s 3s"]
    );
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn templates_change_what_they_made_and_what_they_will_make() {
    let template = |limit: u32, more: &str| {
        format!("{}[[template]]\npattern='x/*'\nlimit={limit}\nceiling=9\n{more}\n", db(4, ""))
    };
    let file = File::new(&template(2, "lease_ttl='40s'"));
    let server = Server::start_on(&file.path, &[]);
    let client = server.client().await;
    let lease = client.take("x/a").await;
    let moved = client.take("x/b").await;
    server.admin().await.set_limit("x/b", 7).await;
    file.replace(&template(3, "lease_ttl='50s'"));
    until_limit(&server, "x/a", 3).await;
    assert_eq!(client.renew_one(&lease.lease_id).await, v1::RenewalState::Renewed);
    until_limit(&server, "x/b", 3).await;
    let request = v1::ListAuditEventsRequest { bulkhead: Some("x/*".into()), ..Default::default() };
    let events = server.admin().await.stub().list_audit_events(request).await.unwrap().into_inner().events;
    let changes: Vec<_> =
        events[0].changes.iter().map(|change| (&*change.field, &*change.before, &*change.after)).collect();
    assert!(changes.contains(&("settings.limit", "2", "3")), "{changes:?}");
    assert!(changes.contains(&("settings.lease_ttl", "40s", "50s")), "{changes:?}");
    client.take("x/c").await;
    assert_eq!(server.status("x/c").await.limit, 3);
    server.admin().await.set_limit("x/b", 7).await;
    file.replace(&template(3, "lease_ttl='60s'"));
    server.until_logged("configuration reloaded changed=3", 1).await;
    assert_eq!(server.status("x/b").await.limit, 7, "the template says nothing new about the limit");
    // Gone: what was made stays while it is in use, nothing new is made.
    file.replace(&db(4, ""));
    server.until_logged("configuration reloaded changed=0", 1).await;
    assert_eq!(client.refused(ask("x/d")).await.reason, "BULKHEAD_NOT_FOUND");
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    assert_eq!(client.release(&moved.lease_id).await, v1::ReleaseState::Released);
    // Named now: it takes what the file says of it.
    file.replace(&(db(4, "") + &bulkhead("x/b", 1, "")));
    until_limit(&server, "x/b", 1).await;
    drain_and_refill(&server, "x/b").await;
}

#[tokio::test]
async fn of_the_server_only_what_bulkheads_do_is_reloaded() {
    let file = File::new(&db(1, ""));
    let server = Server::start_on(&file.path, &[]);
    let client = server.client().await;
    let lease = client.take("db").await;
    create(&server, "before").await;
    let before = client.take("before").await;
    file.replace(&format!("[server]\nmin_retry_hint='40s'\nmax_leases=3\nkeepalive_timeout='6s'\n{}", db(1, "")));
    server.until_logged(r#"changes="min_retry_hint: 50ms -> 40s""#, 1).await;
    server.until_logged("in force only after the next: keepalive_timeout, max_leases", 1).await;
    // Also in those that an operator made, before or after.
    assert!(!exists(&server, "later").await);
    create(&server, "later").await;
    for (name, lease) in [("db", lease), ("before", before), ("later", client.take("later").await)] {
        let refused = client.refused(v1::AcquireRequest { max_wait: seconds(0), ..ask(name) }).await;
        assert!(refused.retry_after.unwrap() >= Duration::from_secs(40), "{name}: {refused:?}");
        assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn what_the_environment_says_holds_for_every_reload() {
    let file = File::new("[defaults]\nmax_wait='3s'\n[[bulkhead]]\nname='db'\nlimit=4\n");
    let variables =
        [("TIDEGATE__DEFAULTS__MAX_WAIT", "5s"), ("TIDEGATE_PORT", "tcp://10.0.0.1:7600"), ("TIDEGATE_ENDPOINT", "x")];
    let server = Server::start_on(&file.path, &variables);
    assert_eq!(span(settings(&server, "db").await.max_wait), Duration::from_secs(5));
    file.replace("[defaults]\nmax_wait='4s'\n[[bulkhead]]\nname='db'\nlimit=6\n");
    until_limit(&server, "db", 6).await;
    assert_eq!(span(settings(&server, "db").await.max_wait), Duration::from_secs(5));
    drain_and_refill(&server, "db").await;
}
