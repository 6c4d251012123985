//! What a case consists of: settings, then commands with time between them, and how they are drawn at random.
//!
//! Whom a command is about is drawn as a number and resolved when it runs, against those that there are by then.

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::Mode;

use super::cooldowns::PARTITIONS;
use super::plain::{MS, Rules, SECOND};

#[derive(Clone, Debug)]
pub struct Case {
    pub rules: Rules,
    pub commands: Vec<(Step, Command)>,
}

/// How much time passes before a command.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    None,
    Millis(u64),
    /// To an instant at which something is due, or just before, or just after it.
    Border(Border, i64),
}

/// What may be due.
#[derive(Clone, Copy, Debug)]
pub enum Border {
    Wait,
    Lease,
    Stall,
    Memory,
    Cooldown,
    Revert,
}

#[derive(Clone, Debug)]
pub enum Command {
    Acquire(Wish),
    Release(Token),
    ReleaseRequest(u64),
    /// On the stream with that number, if on one.
    Renew(Token, Option<u64>),
    /// For so many milliseconds, or for good.
    SetLimit(Limit, Option<u64>),
    Leave(Call),
    /// A waiter that was granted hears of it.
    Confirm(Token),
    /// A waiter that was granted is gone.
    GiveBack(Token),
    /// The start limit and the mode, if they change, and the ceiling.
    Configure(Option<u32>, u32, Option<Mode>),
    SetMode(Mode),
    /// An operator takes a lease back, maybe at once.
    Revoke(Token, bool),
    /// The server is stopping.
    Drain,
    /// The server stands still for that many milliseconds.
    Stall(u64),
    Advance,
    /// A partition cools for that many milliseconds from now; the bulkhead is visited after so many commands more.
    Report(usize, u64, u32),
    /// An operator ends a partition's cooldown and ramp.
    Clear(usize),
    /// That many leases and waiters are its share of the server.
    Room(usize, usize),
}

/// A request for permits, with times in milliseconds from now.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub permits: u32,
    pub rank: u64,
    pub max_wait: Option<u64>,
    /// Deadline, and how much earlier to answer.
    pub deadline: Option<(i64, u64)>,
    pub ttl: Option<u64>,
    pub request: Option<u64>,
    /// What a repeat must not change is as usual for this request id.
    pub as_usual: bool,
    pub partition: usize,
    /// Waits while its partition cools.
    pub waits: bool,
}

/// Which limit.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Within(u32),
    /// That many more than one above the ceiling.
    Above(u32),
    Zero,
}

/// Which lease.
#[derive(Clone, Copy, Debug)]
pub enum Token {
    Live(usize),
    /// Granted to a waiter that has not heard of it.
    Unheard(usize),
    /// Any that ever was: live, over, given back.
    Any(usize),
    /// That many after the last one, wrapping.
    MadeUp(u64),
}

/// Which waiter.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Waiting(usize),
    /// Any that ever was: waiting, granted, refused, superseded.
    Any(usize),
}

pub fn case(length: usize) -> impl Strategy<Value = Case> {
    // So long on average, and short ones when a failure is shrunk.
    (rules(), prop::collection::vec((step(), command()), 1..2 * length))
        .prop_map(|(rules, commands)| Case { rules, commands })
}

fn rules() -> impl Strategy<Value = Rules> {
    let max_queued = prop_oneof![1 => Just(0), 20 => 1_usize..=6];
    let max_wait = prop_oneof![1 => Just(0), 20 => select(vec![500 * MS, SECOND, 2 * SECOND, 3 * SECOND])];
    let aging_step = select(vec![0, 250 * MS, 500 * MS, SECOND]);
    let ramp_step = prop_oneof![1 => Just(0), 9 => select(vec![50 * MS, 200 * MS, SECOND])];
    (1..=5_u32, 0..=3_u32, max_queued, max_wait, aging_step, 2..=3_u64, any::<bool>(), ramp_step).prop_map(
        |(limit, more, max_queued, max_wait, aging_step, ttl, displace, ramp_step)| Rules {
            limit,
            ceiling: limit + more,
            max_queued,
            max_wait,
            aging_step,
            ttl: ttl * SECOND,
            max_ttl: 5 * SECOND,
            displace,
            ramp_step,
            mode: Mode::Enforcing,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let border = prop_oneof![
        8 => Just(Border::Wait),
        8 => Just(Border::Lease),
        4 => Just(Border::Stall),
        1 => Just(Border::Memory),
        8 => Just(Border::Cooldown),
        4 => Just(Border::Revert),
    ];
    prop_oneof![
        60 => Just(Step::None),
        30 => (1..100_u64).prop_map(Step::Millis),
        1 => (1_000..6_000_u64).prop_map(Step::Millis),
        9 => (border, -1..=1_i64).prop_map(|(border, side)| Step::Border(border, side)),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        32 => wish().prop_map(Command::Acquire),
        19 => token().prop_map(Command::Release),
        3 => (0..8_u64).prop_map(Command::ReleaseRequest),
        9 => (token(), prop::option::of(0..3_u64)).prop_map(|(token, stream)| Command::Renew(token, stream)),
        20 => (limit(), revert_after()).prop_map(|(limit, after)| Command::SetLimit(limit, after)),
        4 => call().prop_map(Command::Leave),
        3 => unheard().prop_map(Command::Confirm),
        3 => unheard().prop_map(Command::GiveBack),
        2 => (prop::option::of(1..=5_u32), 2..=8_u32, prop::option::weighted(0.2, mode()))
            .prop_map(|(limit, ceiling, mode)| Command::Configure(limit, ceiling, mode)),
        3 => operate(),
        4 => (token(), prop::bool::weighted(0.3)).prop_map(|(token, immediate)| Command::Revoke(token, immediate)),
        2 => select(vec![101, 300, 499, 501, 2_000, 10_000]).prop_map(Command::Stall),
        3 => Just(Command::Advance),
        6 => report(),
        1 => (0..PARTITIONS).prop_map(Command::Clear),
        2 => room(),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    let permits = prop_oneof![60 => Just(1), 20 => Just(2), 10 => Just(3), 7 => Just(4), 2 => Just(8), 1 => Just(0)];
    let max_wait = prop_oneof![
        10 => Just(None),
        2 => Just(Some(0)),
        8 => select(vec![1, 50, 200, 500, 1_000, 10_000]).prop_map(Some),
    ];
    let deadline = prop_oneof![
        6 => Just(None),
        1 => (-1..=1_i64, 0..=1_u64).prop_map(Some),
        2 => (20..2_000_i64, Just(20)).prop_map(Some),
    ];
    let ttl = prop_oneof![
        8 => Just(None),
        6 => select(vec![2_000, 2_500, 4_000, 5_000]).prop_map(Some),
        1 => select(vec![0, 1_999, 5_001]).prop_map(Some),
    ];
    let request = prop::option::weighted(0.4, 0..8_u64);
    let partition = (partition(), prop::bool::weighted(0.7));
    (permits, 0..=2_u64, max_wait, deadline, ttl, (request, prop::bool::weighted(0.9)), partition).prop_map(
        |(permits, rank, max_wait, deadline, ttl, (request, as_usual), (partition, waits))| Wish {
            permits,
            rank,
            max_wait,
            deadline,
            ttl,
            request,
            as_usual,
            partition,
            waits,
        },
    )
}

/// Rarely the last: whoever comes after that is refused.
fn operate() -> impl Strategy<Value = Command> {
    prop_oneof![40 => mode().prop_map(Command::SetMode), 1 => Just(Command::Drain)]
}

fn mode() -> impl Strategy<Value = Mode> {
    let modes = [(6, Mode::Enforcing), (2, Mode::Shadow), (2, Mode::Paused), (2, Mode::Closed)];
    prop::strategy::Union::new_weighted(modes.map(|(weight, mode)| (weight, Just(mode))).into())
}

fn revert_after() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.4, select(vec![1, 50, 300, 1_000, 5_000]))
}

/// One of them is in the most trouble.
fn partition() -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(0), 3 => Just(1), 1 => 2..PARTITIONS]
}

fn report() -> impl Strategy<Value = Command> {
    let span = prop_oneof![1 => Just(0), 8 => select(vec![1, 50, 200, 600, 1_000]), 1 => Just(3_000)];
    let visit_after = prop_oneof![2 => Just(0_u32), 1 => 1..10_u32];
    (partition(), span, visit_after).prop_map(|(partition, span, after)| Command::Report(partition, span, after))
}

/// Mostly as much as it likes.
fn room() -> impl Strategy<Value = Command> {
    let some = || prop_oneof![3 => Just(usize::MAX), 1 => 0..8_usize];
    (some(), some()).prop_map(|(leases, waiters)| Command::Room(leases, waiters))
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![15 => any::<u32>().prop_map(Limit::Within), 1 => select(vec![0, 1, u32::MAX / 2]).prop_map(Limit::Above), 1 => Just(Limit::Zero)]
}

fn token() -> impl Strategy<Value = Token> {
    prop_oneof![
        6 => any::<usize>().prop_map(Token::Live),
        3 => any::<usize>().prop_map(Token::Any),
        1 => select(vec![1, 2, 1 << 32, u64::MAX / 2, u64::MAX - 1]).prop_map(Token::MadeUp),
    ]
}

fn unheard() -> impl Strategy<Value = Token> {
    prop_oneof![5 => any::<usize>().prop_map(Token::Unheard), 1 => token()]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![3 => any::<usize>().prop_map(Call::Waiting), 1 => any::<usize>().prop_map(Call::Any)]
}
