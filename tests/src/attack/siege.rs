//! How good clients fare during an attack, compared with how they fare while something else keeps the machine as busy.
//!
//! Attack and comparison take turns in short windows, so that what else the machine does meets both. In soak the median
//! of the pairs counts; in CI, where windows are short and neighbours loud, the best, and there are more pairs until one
//! is good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{Attack, Flood, own_time};
use crate::{Client, Instant, Server, ask, drain_and_refill, exercised, seconds, size, v1};

/// The bulkhead of the good clients.
const GOOD: &str = "good";
const CLIENTS: usize = 4;
/// Calls that a window must have seen.
const ENOUGH: usize = 50;
/// What counts as no delay: the scheduler's own grain.
const GRAIN: Duration = Duration::from_millis(1);
/// Promised (P22).
const MOST_RATIO: f64 = 5.0;
const MOST_MEMORY: u64 = 64 << 20;
const BACK_WITHIN: Duration = Duration::from_secs(1);
/// Whoever would have to be ended in one window is given so long on a slow machine.
const SURELY: Duration = Duration::from_secs(30);
/// The most pairs of windows in CI.
const MOST_PAIRS: usize = 10;
/// How the processor time of other threads is cut up.
const SLICE: Duration = Duration::from_millis(2);

/// What an attack did.
#[derive(Clone, Debug)]
pub struct Siege {
    /// The p99 of good clients during the attack over that during the comparison, of each pair of windows.
    pub ratios: Vec<f64>,
    /// How much more memory the server had at its most.
    pub grown: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Connections that the server ended.
    pub closed: u64,
    /// How often it said why.
    pub calmed: u64,
}

/// Attacks a server from 1 connection and from 50, and asserts what P22 promises. `closes` says whether one that
/// attacks alone must be ended.
pub async fn stand(attack: Attack, config: &str, closes: bool) -> Vec<Siege> {
    let mut sieges = Vec::new();
    for connections in [1, 50] {
        let server = Server::start(&format!("{config}[[bulkhead]]\nname='{GOOD}'\nlimit=64\nlease_ttl='30s'\n"));
        let siege = besiege(&server, attack, connections, closes && connections == 1).await;
        println!("{attack:?} from {connections}: {siege:.2?}");
        let mut ratios = siege.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        let ratio = size(ratios[0], ratios[0], ratios[ratios.len() / 2]);
        assert!(ratio <= MOST_RATIO, "good clients were {ratio:.1} times slower than on a machine as busy");
        assert!(siege.grown <= MOST_MEMORY, "the server grew by {} KiB", siege.grown >> 10);
        if closes && connections == 1 {
            exercised("connections ended by the server", siege.closed.try_into().unwrap(), 1);
        }
        let (start, stalled) = (Instant::now(), server.stalled());
        let client = server.client().await;
        client.release(&client.take(GOOD).await.lease_id).await;
        let took = start.elapsed().saturating_sub(server.stalled().saturating_sub(stalled));
        // A debug build among loud neighbours has not yet done all that it was sent.
        assert!(took <= BACK_WITHIN * size(10, 10, 1), "a new connection took {took:?}");
        drain_and_refill(&server, GOOD).await;
        sieges.push(siege);
    }
    sieges
}

async fn besiege(server: &Server, attack: Attack, connections: usize, closes: bool) -> Siege {
    let window = size(Duration::from_millis(200), Duration::from_millis(250), Duration::from_secs(10));
    let good = Good::start(server).await;
    good.window(server, window).await;
    let before = server.resident();
    let flood = Flood::start(attack, server.admission_address(), connections, attack.rate());
    let (mut ratios, mut grown, mut calls) = (Vec::<f64>::new(), 0, 0);
    let is_good = |ratios: &[f64]| ratios.iter().any(|ratio| *ratio <= MOST_RATIO);
    let (pairs, most) = size((2, MOST_PAIRS), (3, MOST_PAIRS), (6, 6));
    while ratios.len() < pairs || !is_good(&ratios) && ratios.len() < most {
        let quiet = good.window(server, window).await;
        let flooded = flood.cpu_time();
        flood.active(true);
        let attacked = good.window(server, window).await;
        flood.active(false);
        grown = server.resident().saturating_sub(before).max(grown);
        let usual = quiet.server.mul_f64(attacked.length.as_secs_f64() / quiet.length.as_secs_f64());
        let cost = attacked.server.saturating_sub(usual) + flood.cpu_time().saturating_sub(flooded);
        let burner = Burner::start(cost.as_secs_f64() / attacked.length.as_secs_f64());
        let compared = good.window(server, window).await;
        drop(burner);
        let ratio = attacked.p99.max(GRAIN).as_secs_f64() / compared.p99.max(GRAIN).as_secs_f64();
        println!(
            "  p99 {:?} quiet, {:?} attacked, {:?} compared, cost {cost:?}",
            quiet.p99, attacked.p99, compared.p99
        );
        ratios.push(ratio);
        calls += attacked.calls;
    }
    exercised("calls of good clients during the attack", calls, 20);
    // A slow attacker has not sent enough in such short windows.
    let start = Instant::now();
    while closes && flood.closed() == 0 && start.elapsed() < SURELY {
        flood.active(true);
        tokio::time::sleep(SLICE).await;
    }
    flood.active(false);
    let siege = Siege { ratios, grown, sent: flood.sent(), closed: flood.closed(), calmed: flood.calmed() };
    drop(flood);
    good.end().await;
    siege
}

/// Clients that take a permit and give it back, over and over.
struct Good {
    took: Arc<Mutex<Vec<Duration>>>,
    ended: Arc<AtomicBool>,
    loops: JoinSet<()>,
}

/// What a window showed.
struct Window {
    p99: Duration,
    calls: usize,
    /// Processor time of the server.
    server: Duration,
    length: Duration,
}

impl Good {
    async fn start(server: &Server) -> Self {
        let mut good = Self { took: Arc::default(), ended: Arc::default(), loops: JoinSet::new() };
        for client in server.clients(CLIENTS).await {
            let (took, ended) = (good.took.clone(), good.ended.clone());
            good.loops.spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    turn(&client).await;
                    took.lock().push(start.elapsed());
                }
            });
        }
        good
    }

    async fn window(&self, server: &Server, length: Duration) -> Window {
        self.took.lock().clear();
        let before = server.cpu_time();
        let start = Instant::now();
        tokio::time::sleep(length).await;
        // Longer, if the machine is so busy that there is little to see.
        while self.took.lock().len() < ENOUGH && start.elapsed() < length * 10 {
            tokio::time::sleep(SLICE).await;
        }
        let length = start.elapsed();
        let server = server.cpu_time().saturating_sub(before);
        let mut took = std::mem::take(&mut *self.took.lock());
        // One that hangs for the whole window has no duration yet, and is no good sign.
        if took.is_empty() {
            took.push(length);
        }
        took.sort();
        Window { p99: took[(took.len() - 1) * 99 / 100], calls: took.len(), server, length }
    }

    async fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.loops.join_all().await;
    }
}

async fn turn(client: &Client) {
    let lease = client.granted(v1::AcquireRequest { max_wait: seconds(2), ..ask(GOOD) }).await;
    assert_eq!(client.release(&lease.lease_id).await, v1::ReleaseState::Released);
}

/// Threads that use so much of a processor and do nothing. Dropped, they end.
struct Burner(Arc<AtomicBool>);

impl Burner {
    /// `share` of one processor, over two threads.
    fn start(share: f64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let ended = ended.clone();
            std::thread::spawn(move || {
                let start = Instant::now();
                while !ended.load(Ordering::Relaxed) {
                    let owed = start.elapsed().mul_f64((share / 2.0).min(1.0));
                    if Duration::from_nanos(own_time()) < owed {
                        (0..1000).for_each(|_| std::hint::spin_loop());
                    } else {
                        std::thread::sleep(SLICE);
                    }
                }
            });
        }
        Self(ended)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
