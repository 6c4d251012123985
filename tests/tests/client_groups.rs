//! Rows of the origins, with groups, retries and what operators do meanwhile: the Rust client against the built server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_client::{Backoff, Bulkhead, Client, Error, Group, Groups, Retry, RetryError, Verdict};
use tidegate_tests::{Instant, PATIENCE, Server, drain_and_refill, in_time, v1};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

/// A server with one bulkhead whose leases and waits are long: no end of time frees or refuses anything.
async fn with_db(rest: &str) -> (Server, Client, Bulkhead) {
    let server = Server::start(&format!("[[bulkhead]]\nname='db'\nlease_ttl='60s'\nmax_wait='60s'\n{rest}"));
    let client = Client::connect(format!("http://{}", server.admission_address())).await.expect("the server serves");
    let db = client.bulkhead("db");
    (server, client, db)
}

async fn set_mode(server: &Server, mode: v1::Mode) {
    let request = v1::SetModeRequest { name: "db".into(), mode: mode.into(), ..Default::default() };
    server.admin().await.stub().set_mode(request).await.unwrap();
}

/// Work that tells when it starts, and ends when it is let.
#[derive(Clone)]
struct Works {
    started: Arc<Mutex<Vec<usize>>>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    ends: Arc<Semaphore>,
}

impl Works {
    fn new() -> Self {
        Self { started: Arc::default(), running: Arc::default(), most: Arc::default(), ends: Semaphore::new(0).into() }
    }

    async fn one(self, number: usize) {
        self.started.lock().push(number);
        self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.ends.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins so many in that group of bulkhead `db`, one after the other as the server sees it.
    async fn begin(&self, server: &Server, group: &Group, count: usize) -> Vec<JoinHandle<Result<(), Error>>> {
        let mut tasks = Vec::new();
        for number in 0..count {
            let (group, work) = (group.clone(), self.clone().one(number));
            tasks.push(tokio::spawn(async move { group.run(work).await }));
            server.until("db", |now| (now.running + now.queued) as usize == number + 1).await;
        }
        tasks
    }

    fn let_end(&self, count: usize) {
        self.ends.add_permits(count);
    }

    fn started(&self) -> Vec<usize> {
        self.started.lock().clone()
    }

    async fn until_started(&self, count: usize) {
        let start = Instant::now();
        while self.started.lock().len() < count {
            assert!(start.elapsed() < PATIENCE, "started: {:?}", self.started());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn q01_of_twenty_started_at_limit_five_five_run_at_a_time_and_all_end_in_order() {
    let (server, client, db) = with_db("limit=5\n").await;
    let groups = Groups::builder().default_group(db).build().unwrap();
    let works = Works::new();
    let tasks = works.begin(&server, groups.get("any"), 20).await;
    works.until_started(5).await;
    let group = groups.default_group().status();
    assert_eq!((group.running, group.waiting, group.executions), (5, 15, 20));
    for started in 6..=20 {
        works.let_end(1);
        works.until_started(started).await;
    }
    works.let_end(5);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let first = works.started()[..5].iter().copied().max();
    assert_eq!((first, &works.started()[5..]), (Some(4), &(5..20).collect::<Vec<_>>()[..]));
    assert_eq!(works.most.load(Ordering::SeqCst), 5);
    client.flush().await;
    let status = server.status("db").await;
    assert_eq!((status.granted, status.waited), (20, 15));
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn q03_groups_are_bulkheads_of_the_servers_independent_and_the_rest_is_in_the_default_one() {
    let (server, client, db) = with_db("limit=1\n[[bulkhead]]\nname='images'\nlimit=1\nlease_ttl='60s'\n").await;
    // The explicit default wins over the general limit.
    let groups = Groups::builder().limit(7).default_group(db).group("images", client.bulkhead("images"));
    let groups = groups.build().unwrap();
    let stands = async |bulkhead: &str| {
        let status = server.status(bulkhead).await;
        (status.running, status.queued)
    };
    // Full, with one that waits: the other one does not notice.
    let works = Works::new();
    let tasks = works.begin(&server, groups.get("no such group"), 2).await;
    works.until_started(1).await;
    assert_eq!(groups.get("images").run(stands("images")).await, Ok((1, 0)));
    assert_eq!((stands("db").await, works.started()), ((1, 1), vec![0]));
    works.let_end(2);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    // And the other way round.
    let permit = groups.named("images").unwrap().bulkhead().acquire().await.unwrap();
    let waits = tokio::spawn({
        let images = groups.get("images").clone();
        async move { images.run(async {}).await }
    });
    server.until("images", |now| now.queued == 1).await;
    assert_eq!(groups.get("").run(stands("db")).await, Ok((1, 0)));
    let numbers = groups.status().into_iter().map(|group| (group.name, group.running, group.waiting));
    assert_eq!(numbers.collect::<Vec<_>>(), [("default".into(), 0, 0), ("images".to_owned(), 1, 1)]);
    drop(permit);
    waits.await.unwrap().unwrap();
    client.flush().await;
    drain_and_refill(&server, "db").await;
    drain_and_refill(&server, "images").await;
}

#[tokio::test]
async fn q04_a_retry_gives_its_permit_back_before_the_delay_and_joins_the_tail() {
    let (server, client, db) = with_db("limit=1\n").await;
    let groups = Groups::builder().group("api", db).build().unwrap();
    // A delay that no test outlives, then hardly any.
    for (delay, is_back) in [(Duration::from_hours(1), false), (Duration::from_millis(10), true)] {
        let (works, tries) = (Works::new(), Works::new());
        let policy = Retry::new(Backoff::constant(delay), |(): &()| Verdict::Retry).retries(1);
        let retrying = tokio::spawn({
            let (group, works, tries) = (groups.get("api").clone(), works.clone(), tries.clone());
            async move {
                let attempt = || {
                    works.started.lock().push(usize::MAX);
                    let attempt = tries.clone().one(0);
                    async move {
                        attempt.await;
                        Err::<(), _>(())
                    }
                };
                group.retry(&policy, attempt).await
            }
        });
        works.until_started(1).await;
        let mut others = Vec::new();
        for number in 0..2 {
            let (group, work) = (groups.get("api").clone(), works.clone().one(number));
            others.push(tokio::spawn(async move { group.run(work).await }));
            server.until("db", |now| now.queued as usize == number + 1).await;
        }
        // It fails, and the first of the others has its permit.
        tries.let_end(2);
        works.until_started(2).await;
        if is_back {
            server.until("db", |now| now.queued == 2).await;
        } else {
            let group = groups.named("api").unwrap().status();
            assert_eq!((group.running, group.waiting, group.executions), (1, 1, 3), "the delay is an execution");
            retrying.abort();
        }
        works.let_end(1);
        works.until_started(3).await;
        works.let_end(1);
        for other in others {
            other.await.unwrap().unwrap();
        }
        let ended = retrying.await;
        let last = is_back.then(|| ended.unwrap().unwrap_err());
        assert_eq!(last, is_back.then_some(RetryError::Work { error: (), attempts: 2 }));
        let order = [usize::MAX, 0, 1, usize::MAX];
        assert_eq!(works.started(), order[..if is_back { 4 } else { 3 }]);
        client.flush().await;
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn s01_an_operator_moves_the_limit_and_pauses_while_callers_wait_in_their_places() {
    let (server, client, db) = with_db("limit=2\nceiling=6\n").await;
    let group = Groups::builder().default_group(db).build().unwrap().default_group().clone();
    let works = Works::new();
    let tasks = works.begin(&server, &group, 11).await;
    let stands = async |limit, running, queued| {
        let stands = |now: &v1::BulkheadStatus| (now.limit, now.running, now.queued) == (limit, running, queued);
        server.until("db", stands).await;
    };
    stands(2, 2, 9).await;
    server.admin().await.set_limit("db", 6).await;
    works.until_started(6).await;
    stands(6, 6, 5).await;
    // None now: those that run may end, and the others keep their places.
    set_mode(&server, v1::Mode::Paused).await;
    works.let_end(6);
    stands(6, 0, 5).await;
    server.admin().await.set_limit("db", 2).await;
    stands(2, 0, 5).await;
    assert_eq!(works.started().len(), 6);
    set_mode(&server, v1::Mode::Enforcing).await;
    for started in 8..=11 {
        works.until_started(started).await;
        works.let_end(1);
    }
    works.let_end(1);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    // Those that were let in together may start in any order.
    let mut started = works.started();
    for together in [0..2, 2..6, 6..8] {
        started[together].sort_unstable();
    }
    assert_eq!(started, (0..11).collect::<Vec<_>>());
    assert_eq!(works.most.load(Ordering::SeqCst), 6);
    client.flush().await;
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn s04_one_budget_covers_what_a_full_bulkhead_of_the_servers_costs() {
    let full = "[[bulkhead]]\nname='full'\nlimit=1\nmax_queued=0\nlease_ttl='60s'\n";
    let (server, client, db) = with_db(&format!("limit=1\n{full}")).await;
    let full = client.bulkhead("full");
    let held = [db.acquire().await.unwrap(), full.acquire().await.unwrap()];
    let policy = |budget| {
        let backoff = Backoff::constant(Duration::from_millis(1));
        Retry::new(backoff, |(): &()| Verdict::Retry).retries(9).budget(budget)
    };
    let spent = |failed| match failed {
        RetryError::Budget { error: Error::BudgetSpent { budget, spent, delay }, last: None } => (budget, spent, delay),
        failed => panic!("{failed:?}"),
    };
    let begun = AtomicUsize::new(0);
    let work = || {
        begun.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(7))
    };
    // The server says to come back when the lease may have ended: later than there is budget for, which is told now.
    let start = Instant::now();
    let (budget, so_far, delay) = spent(policy(20 * SECOND).run(&full, work).await.unwrap_err());
    assert!(so_far + delay >= budget && delay > 20 * SECOND, "{so_far:?} {delay:?}");
    assert!(start.elapsed() < 10 * SECOND, "it slept: {:?}", start.elapsed());
    // Queueing counts.
    in_time(SECOND + SECOND / 4, async || {
        let start = Instant::now();
        let (budget, so_far, _) = spent(policy(SECOND).run(&db, work).await.unwrap_err());
        let took = start.elapsed();
        assert!(budget == SECOND && so_far <= took, "{so_far:?}");
        assert!(took >= Duration::from_millis(900), "it gave up after {took:?}");
        server.until("db", |now| now.queued == 0).await;
        took
    })
    .await;
    assert_eq!(begun.load(Ordering::SeqCst), 0, "there was no permit");
    // What is left of it is enough for one that is let in.
    let waits = tokio::spawn({
        let (policy, db) = (policy(60 * SECOND), db.clone());
        async move { policy.run(&db, || std::future::ready(Ok(7))).await }
    });
    server.until("db", |now| now.queued == 1).await;
    drop(held);
    assert_eq!(waits.await.unwrap(), Ok(7));
    client.flush().await;
    drain_and_refill(&server, "db").await;
    drain_and_refill(&server, "full").await;
}
