//! What an Acquire and its Release cost in this process: `cargo bench -p tidegate-client`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement, read by people")]

use tidegate_client::{Draft, LocalBulkhead};
use tokio::time::Instant;

const ROUNDS: usize = 11;
const CALLS: u32 = 500_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let draft = Draft { limit: Some(1_000), ..Draft::default() };
        let db = LocalBulkhead::with_settings("orders-db", draft).unwrap();
        let mut nanos = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..CALLS {
                drop(db.acquire().await.unwrap());
            }
            nanos.push(start.elapsed().as_nanos() / u128::from(CALLS));
        }
        nanos.sort_unstable();
        let (least, median, most) = (nanos[0], nanos[ROUNDS / 2], nanos[ROUNDS - 1]);
        println!("LocalBulkhead, acquire + release: {median} ns ({least} to {most}), goal at most 300 ns");
    });
}
