//! What the shell does beside the bulkhead, in small: it keeps the end of each partition's cooldown, hands it to newcomers
//! and visits the bulkhead after a report.

use std::time::Duration;

use tidegate_core::{Instant, calm_at, extend};

use super::cooldowns::PARTITIONS;

const NAMES: [Option<&str>; PARTITIONS] = [None, Some("a"), Some("b"), Some("c")];

pub fn name(partition: usize) -> Option<&'static str> {
    NAMES[partition]
}

#[derive(Default)]
pub struct Shell {
    ends: [Option<u64>; PARTITIONS],
    /// Partitions whose end is written and the bulkhead not yet visited, with that end, and after how many commands it
    /// will be: maybe in another order.
    visits: Vec<(usize, u64, u32)>,
}

impl Shell {
    /// The end of its cooldown, while it cools or ramps anywhere.
    pub fn end(&self, now: u64, partition: usize, ramp_step: u64) -> Option<u64> {
        let is_on = |end: &u64| now < calm_at(Instant::from_nanos(*end), Duration::from_nanos(ramp_step)).as_nanos();
        self.ends[partition].filter(is_on)
    }

    /// Nothing of it may be granted to anyone: the report is answered.
    pub fn forbids(&self, now: u64, partition: usize) -> bool {
        self.ends[partition].is_some_and(|end| now < end) && self.visits.iter().all(|&(late, ..)| late != partition)
    }

    /// Answers whether it extended the cooldown. The bulkhead is visited after so many commands more.
    pub fn report(&mut self, now: u64, partition: usize, span: u64, visit_after: u32) -> bool {
        let old = self.ends[partition];
        let new = (span > 0).then_some(now + span);
        self.ends[partition] = old.max(new);
        let (at, day) = (Instant::from_nanos, Duration::from_hours(24));
        assert_eq!(extend(old.map(at), at(now), Duration::from_nanos(span), day), self.ends[partition].map(at));
        let extended = self.ends[partition] != old;
        self.visits.extend(self.ends[partition].filter(|_| extended).map(|end| (partition, end, visit_after)));
        extended
    }

    pub fn clear(&mut self, partition: usize) {
        self.ends[partition] = None;
        self.visits.retain(|&(other, ..)| other != partition);
    }

    /// All visits that were due are made: the reports are answered.
    pub fn visited(&mut self) {
        self.visits.retain(|&(_, _, after)| after > 0);
    }

    /// A command begins. Answers the visits that come before it, each with the end as it was written.
    pub fn due_visits(&mut self) -> Vec<(usize, u64)> {
        self.visits.iter_mut().for_each(|(_, _, after)| *after = after.saturating_sub(1));
        let due = self.visits.iter().filter(|&&(_, _, after)| after == 0);
        due.map(|&(partition, end, _)| (partition, end)).collect()
    }

    /// When some cooldown ends, and when some ramp takes a step next.
    pub fn borders(&self, now: u64, ramp_step: u64) -> Vec<u64> {
        let steps = |end: u64| (0..8).map(move |nth| end + nth * ramp_step).filter(move |&at| at > now);
        self.ends.iter().flatten().flat_map(|&end| steps(end)).collect()
    }
}
