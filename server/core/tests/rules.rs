//! Rules one by one, named as sentences: what the model cannot name and the stories cannot show well. Rows of the source
//! systems (W03, …) and rules (R1, …) stand in the names. Every test ends with drain and refill.
#![allow(clippy::needless_for_each, clippy::unchecked_time_subtraction, clippy::unwrap_used, unreachable_pub)]

#[path = "rules/caps.rs"]
mod caps;
#[path = "rules/cooldowns.rs"]
mod cooldowns;
#[path = "rules/desk.rs"]
mod desk;
#[path = "rules/displace.rs"]
mod displace;
#[path = "rules/extremes.rs"]
mod extremes;
#[path = "rules/hints.rs"]
mod hints;
#[path = "rules/leases.rs"]
mod leases;
#[path = "rules/limit.rs"]
mod limit;
#[path = "rules/operators.rs"]
mod operators;
#[path = "rules/queue.rs"]
mod queue;
#[path = "rules/ramp.rs"]
mod ramp;
#[path = "rules/repeats.rs"]
mod repeats;
#[path = "rules/stall.rs"]
mod stall;
#[path = "shared/told.rs"]
mod told;
