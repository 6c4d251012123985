//! A load of many clients, some of them unlucky or careless, recorded as a [`History`].
//!
//! Every choice comes from one seed; what the machine makes of it does not, so a seed repeats the load and not the run.
//! It ends by itself, by time and by the number of calls.

mod client;

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::history::{At, History, Move, Rule, SLOW, Window};
use crate::{Client, Faults, Instant, Proxy, Server, Way};

use client::Life;

/// How long a step of a partition's careful start takes in [`Load::config`].
const RAMP_STEP: Duration = Duration::from_millis(50);
/// More of them than any ceiling here needs.
const RAMP_STEPS: u32 = 10;
/// A sleep of this and a call without a bulkhead are a beat.
const BEAT: Duration = Duration::from_millis(4);

/// Who asks for what, and what goes wrong. [`Load::of`] gives a mixture of everything; a test changes what it is about.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where every choice comes from.
    pub seed: u64,
    /// The bulkheads.
    pub rules: Vec<Rule>,
    /// How many partitions may be told to cool down; about half of the calls are of one.
    pub partitions: usize,
    /// How many clients, each on a connection of its own.
    pub clients: usize,
    /// How many of them are behind faulty proxies.
    pub unlucky: usize,
    /// How many proxies they share.
    pub proxies: usize,
    /// No call is begun after this time.
    pub span: Duration,
    /// Nor are more begun than this.
    pub most_calls: usize,
    /// How long a client thinks between two requests, in milliseconds.
    pub think: Range<u64>,
    /// How long it holds a lease, in milliseconds.
    pub hold: Range<u64>,
    /// The pause between two moves of limits, in milliseconds; an empty range means no operator.
    pub operator: Range<u64>,
    /// What else clients do.
    pub chances: Chances,
}

/// How often clients do what, from 0 to 1.
#[derive(Clone, Debug)]
pub struct Chances {
    /// Asks for two or three permits.
    pub heavy: f64,
    /// Asks for another wait than the bulkhead's, a quarter of them for none.
    pub max_wait: f64,
    /// Gives the call a gRPC deadline.
    pub deadline: f64,
    /// Drops the call after a while.
    pub cancel: f64,
    /// Sends a request id; then repeats and releases by it happen, too.
    pub request_id: f64,
    /// Never releases its lease.
    pub abandon: f64,
    /// Holds its lease for longer than its ttl, and renews it.
    pub renew: f64,
    /// Releases again.
    pub again: f64,
    /// Tells that its partition was asked to come back later.
    pub report: f64,
}

impl Load {
    /// 240 clients on 20 bulkheads, a sixth of them behind 4 faulty proxies, four partitions, and everything that goes wrong.
    pub fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            seed,
            rules: (0..20).map(|number| rule(number, &mut rng)).collect(),
            partitions: 4,
            clients: 240,
            unlucky: 40,
            proxies: 4,
            span: Duration::from_secs(5),
            most_calls: 1_000_000,
            think: 20..200,
            hold: 5..60,
            operator: 20..100,
            chances: Chances {
                heavy: 0.2,
                max_wait: 0.3,
                deadline: 0.2,
                cancel: 0.1,
                request_id: 0.3,
                abandon: 0.02,
                renew: 0.01,
                again: 0.05,
                report: 0.02,
            },
        }
    }

    /// The server's configuration.
    pub fn config(&self) -> String {
        // A pause of the machine is no reason to take a client for dead.
        let mut config = "[server]\nkeepalive_interval='1h'\nkeepalive_timeout='1h'\n".to_owned();
        let _ = writeln!(config, "ramp_step='{}ms'", RAMP_STEP.as_millis());
        for rule in &self.rules {
            let Rule { name, limit, ceiling, max_queued, max_wait, lease_ttl, aging_step, displace } = rule;
            let [max_wait, lease_ttl, aging_step] = [max_wait, lease_ttl, aging_step].map(Duration::as_millis);
            let _ = writeln!(
                config,
                "[[bulkhead]]\nname='{name}'\nlimit={limit}\nceiling={ceiling}\nmax_queued={max_queued}\n\
                 max_wait='{max_wait}ms'\nlease_ttl='{lease_ttl}ms'\naging_step='{aging_step}ms'\ndisplace={displace}",
            );
        }
        config
    }

    /// Lets all of them go at a server of that [`config`](Self::config) and returns when the last one is through. Whatever
    /// was on its way through a proxy is cut off then.
    pub async fn run(&self, server: &Server) -> History {
        let mut proxies = Vec::new();
        for _ in 0..self.proxies {
            proxies.push(Proxy::start(server.admission_address()).await);
        }
        // Trouble begins when all are connected.
        let mut clients = Vec::new();
        for number in 0..self.clients {
            let proxy = (number < self.unlucky).then(|| proxies[number % proxies.len()].address());
            clients.push((Client::connect(proxy.unwrap_or(server.admission_address())).await, proxy.is_some()));
        }
        let stage = Arc::new(Stage {
            load: self.clone(),
            start: Instant::now(),
            begun: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let (mut lives, mut troubles) = (JoinSet::new(), JoinSet::new());
        for (number, (client, is_unlucky)) in clients.into_iter().enumerate() {
            lives.spawn(Life::new(stage.clone(), number, client, is_unlucky).live());
        }
        for (number, proxy) in proxies.into_iter().enumerate() {
            troubles.spawn(trouble(stage.clone(), number, proxy));
        }
        let all = async {
            let (lives, proxies) = tokio::join!(lives.join_all(), troubles.join_all());
            stage.is_over.store(true, Ordering::Relaxed);
            (lives, proxies.iter().map(Proxy::ended).sum())
        };
        let ((lives, cut_connections), moves, slow_beats) =
            tokio::join!(all, operator(&stage, server), beats(&stage, server.client().await));
        let mut history = History {
            rules: self.rules.clone(),
            moves,
            ramp: RAMP_STEP * RAMP_STEPS,
            slow_beats,
            stalled: server.stalled(),
            cut_connections,
            ..Default::default()
        };
        for life in lives {
            history.append(life);
        }
        history
    }
}

/// Small ones, so that they are full: some have a short queue, some displace.
fn rule(number: usize, rng: &mut StdRng) -> Rule {
    let ceiling = rng.random_range(4..=8);
    Rule {
        name: format!("bulkhead-{number}"),
        limit: rng.random_range(1..=4),
        ceiling,
        max_queued: if number.is_multiple_of(4) { 4 } else { 100 },
        max_wait: Duration::from_millis(rng.random_range(500..2000)),
        lease_ttl: Duration::from_secs(2),
        aging_step: Duration::from_millis(rng.random_range(0..600)),
        displace: number.is_multiple_of(8),
    }
}

/// What all who take part share.
#[derive(Debug)]
struct Stage {
    load: Load,
    start: Instant,
    begun: AtomicUsize,
    is_over: AtomicBool,
}

impl Stage {
    fn now(&self) -> At {
        self.start.elapsed()
    }

    fn goes_on(&self) -> bool {
        self.now() < self.load.span && self.begun.load(Ordering::Relaxed) < self.load.most_calls
    }

    /// The choices of one of them.
    fn rng(&self, who: &str, number: usize) -> StdRng {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.load.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&number.to_le_bytes());
        seed[16..16 + who.len()].copy_from_slice(who.as_bytes());
        StdRng::from_seed(seed)
    }
}

/// Looks how the machine is: the beats that were slow.
async fn beats(stage: &Stage, client: Client) -> Vec<Window> {
    let mut slow = Vec::new();
    while !stage.is_over.load(Ordering::Relaxed) {
        let from = stage.now();
        tokio::time::sleep(BEAT).await;
        client.renew([]).await;
        let to = stage.now();
        if to.saturating_sub(from) > SLOW {
            slow.push(Window { from, to });
        }
    }
    slow
}

/// Moves limits, one after the other.
async fn operator(stage: &Stage, server: &Server) -> Vec<Move> {
    let (mut rng, mut moves) = (stage.rng("operator", 0), Vec::new());
    let (admin, pause) = (server.admin().await, stage.load.operator.clone());
    while stage.goes_on() && !pause.is_empty() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(pause.clone()))).await;
        let bulkhead = rng.random_range(0..stage.load.rules.len());
        let Rule { name, ceiling, .. } = &stage.load.rules[bulkhead];
        let limit = rng.random_range(1..=*ceiling);
        let from = stage.now();
        admin.set_limit(name, limit).await;
        moves.push(Move { bulkhead, limit, window: Window { from, to: stage.now() } });
    }
    moves
}

/// Troubles a proxy again and again, and leaves it in order.
async fn trouble(stage: Arc<Stage>, number: usize, proxy: Proxy) -> Proxy {
    let faults = [
        Faults { delay: Duration::from_millis(20), ..Faults::NONE },
        Faults { bandwidth: Some(50_000), ..Faults::NONE },
        Faults { to_server: Way::Held, ..Faults::NONE },
        Faults { to_client: Way::Held, ..Faults::NONE },
        Faults { cut_after: Some(500), ..Faults::NONE },
        Faults::DROP_REPLIES,
        Faults::NONE,
    ];
    let mut rng = stage.rng("trouble", number);
    while stage.goes_on() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(100..500))).await;
        let fault = *faults.choose(&mut rng).expect("there are some");
        proxy.set(fault);
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..300))).await;
        proxy.set(Faults::NONE);
        // What has lost bytes is of no use any more. Where there was no fault, the reset is it.
        if fault == Faults::DROP_REPLIES || fault == Faults::NONE {
            proxy.reset();
        }
    }
    proxy
}
