//! Rules one by one, named as sentences: what the model cannot name and the stories cannot show well. Rows of the source
//! systems (W03, …) and rules (R1, …) stand in the names. Every test ends with drain and refill.
#![allow(clippy::needless_for_each, clippy::unchecked_time_subtraction, clippy::unwrap_used, unreachable_pub)]

#[path = "rules/desk.rs"]
mod desk;
#[path = "rules/extremes.rs"]
mod extremes;
#[path = "rules/leases.rs"]
mod leases;
#[path = "rules/limit.rs"]
mod limit;
#[path = "rules/queue.rs"]
mod queue;
#[path = "rules/repeats.rs"]
mod repeats;
#[path = "rules/stall.rs"]
mod stall;
