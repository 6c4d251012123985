//! Clients that do harm: raw HTTP/2 on sockets, from one thread, so many frames a second and no more.
//!
//! An [`Attack`] is what each of its connections sends when it opens and in each turn. [`Flood`] sends it; [`Siege`] sees
//! how good clients fare meanwhile, compared with a machine that is as busy with something else.

mod frames;
mod kinds;
mod peer;
mod siege;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Instant;

pub use kinds::Attack;
use peer::Peer;
pub use siege::{Siege, stand};

/// How often the connections take turns.
const TURN: Duration = Duration::from_millis(5);

/// A thread that attacks. Dropped, it ends and closes its connections.
#[derive(Debug)]
pub struct Flood {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    active: AtomicBool,
    ended: AtomicBool,
    sent: AtomicU64,
    closed: AtomicU64,
    ended_once: AtomicU64,
    open: AtomicU64,
    calm: AtomicU64,
    processor: AtomicU64,
}

impl Flood {
    /// Opens so many connections, and sends at most `rate` frames a second over all of them while it is [`active`](Self::active).
    pub fn start(attack: Attack, address: SocketAddr, connections: usize, rate: u32) -> Self {
        let state = Arc::new(State::default());
        let shared = state.clone();
        let thread = std::thread::spawn(move || run(attack, address, connections, rate, &shared));
        Self { state, thread: Some(thread) }
    }

    /// Starts or pauses it. While it is paused its connections stay open.
    pub fn active(&self, active: bool) {
        self.state.active.store(active, Ordering::Relaxed);
    }

    /// Frames sent so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// How often the server ended one of its connections.
    pub fn closed(&self) -> u64 {
        self.state.closed.load(Ordering::Relaxed)
    }

    /// How many of its connections the server ended at least once.
    pub fn ended(&self) -> u64 {
        self.state.ended_once.load(Ordering::Relaxed)
    }

    /// How often the server said `ENHANCE_YOUR_CALM`.
    pub fn calmed(&self) -> u64 {
        self.state.calm.load(Ordering::Relaxed)
    }

    /// How many connections it has now.
    pub fn open(&self) -> u64 {
        self.state.open.load(Ordering::Relaxed)
    }

    /// The processor time that its thread has used.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.state.processor.load(Ordering::Relaxed))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("it was started").expect("the attacker does not fail by itself");
        }
    }
}

fn run(attack: Attack, address: SocketAddr, connections: usize, rate: u32, state: &State) {
    let mut peers: Vec<_> = (0..connections).map(|_| Peer::new(attack, address)).collect();
    let a_turn = f64::from(rate) * TURN.as_secs_f64();
    let mut owed = 0.0;
    let mut first = 0;
    while !state.ended.load(Ordering::Relaxed) {
        let began = Instant::now();
        if state.active.load(Ordering::Relaxed) {
            owed = (owed + a_turn).min(2.0 * a_turn);
            // Each turn begins with another connection, so that all come to send when the rate is low.
            for index in (first..connections).chain(0..first) {
                if owed >= 1.0 {
                    let sent = peers[index].send(owed);
                    owed -= f64::from(sent);
                    state.sent.fetch_add(u64::from(sent), Ordering::Relaxed);
                }
            }
            first = (first + 1) % connections;
        }
        for peer in &mut peers {
            peer.listen();
        }
        let sum = |of: fn(&Peer) -> u64| peers.iter().map(of).sum();
        state.closed.store(sum(|peer| peer.closed), Ordering::Relaxed);
        state.ended_once.store(sum(|peer| peer.closed.min(1)), Ordering::Relaxed);
        state.calm.store(sum(|peer| peer.calmed), Ordering::Relaxed);
        state.open.store(sum(|peer| u64::from(peer.is_open())), Ordering::Relaxed);
        state.processor.store(own_time(), Ordering::Relaxed);
        std::thread::sleep(TURN.saturating_sub(began.elapsed()));
    }
}

/// What this thread has used of the processor, in nanoseconds.
pub(crate) fn own_time() -> u64 {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux tells it");
    Duration::from(used).as_nanos().try_into().expect("a thread is young")
}
