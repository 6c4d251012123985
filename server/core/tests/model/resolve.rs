//! What a command's numbers stand for, when it runs.

use super::commands::{Border, Call, Step, Token, Wish};
use super::pair::Pair;
use super::plain::{Ask, MS, SECOND};

impl Pair {
    pub fn ask(&self, wish: &Wish) -> Ask {
        let deadline = wish.deadline.map(|(millis, _)| self.now.saturating_add_signed(millis * MS.cast_signed()));
        let mut ask = Ask {
            permits: wish.permits,
            rank: wish.rank,
            max_wait: wish.max_wait.map(|millis| millis * MS),
            deadline,
            answer_by: deadline.zip(wish.deadline).map(|(deadline, (_, margin))| deadline - margin * MS),
            ttl: wish.ttl.map(|millis| millis * MS),
            request: wish.request,
            print: 1 + wish.partition as u64,
            partition: wish.partition,
            cooldown: None,
            waits: wish.waits,
        };
        if let (Some(request), true) = (wish.request, wish.as_usual) {
            (ask.permits, ask.print) = (1 + u32::try_from(request).unwrap() / 2 % 3, 0);
            ask.ttl = (request % 2 == 0).then_some(4 * SECOND);
            ask.partition = usize::try_from(request).unwrap() % 3;
        }
        ask.cooldown = self.shell.end(self.now, ask.partition, self.oracle.rules.ramp_step);
        ask
    }

    /// The next instant of that kind at which something is due, moved by that much; now, if there is none.
    pub fn after(&self, step: Step) -> u64 {
        let leases = &self.oracle.leases;
        let (border, side) = match step {
            Step::None => return self.now,
            Step::Millis(millis) => return self.now + millis * MS,
            Step::Border(border, side) => (border, side),
        };
        let ends: Vec<u64> = match border {
            Border::Wait => self.oracle.queue.iter().map(|waiter| waiter.end).collect(),
            Border::Lease => leases.live(|_| true).iter().map(|token| leases.all[token].end).collect(),
            Border::Stall => vec![leases.quiet_until, self.oracle.grants_resume],
            Border::Revert => self.oracle.revert.iter().map(|revert| revert.0).collect(),
            Border::Cooldown => self.shell.borders(self.now, self.oracle.rules.ramp_step),
            Border::Memory => {
                let ended = leases.all.values().filter_map(|lease| lease.over).map(|(_, until)| until);
                ended.chain(leases.spent.iter().map(|spent| spent.2)).collect()
            }
        };
        let moved = ends.into_iter().map(|end| end.saturating_add_signed(side));
        moved.filter(|&end| end > self.now).min().unwrap_or(self.now)
    }

    pub fn token(&self, token: Token) -> u64 {
        let last = self.oracle.leases.last_token;
        let (of, nth) = match token {
            Token::Live(nth) => (self.oracle.leases.live(|_| true), nth),
            Token::Unheard(nth) => (self.oracle.leases.live(|lease| !lease.told), nth),
            Token::Any(nth) => (self.oracle.leases.all.keys().copied().collect(), nth),
            Token::MadeUp(more) => return last.wrapping_add(more),
        };
        if of.is_empty() { last + 1 } else { of[nth % of.len()] }
    }

    pub fn call(&self, call: Call) -> Option<usize> {
        match call {
            Call::Waiting(nth) => self.oracle.queue.get(nth % self.oracle.queue.len().max(1)).map(|waiter| waiter.call),
            Call::Any(nth) => (!self.ids.is_empty()).then(|| 1 + nth % self.ids.len()),
        }
    }
}
