//! Lateness, which a busy machine may cause now and then: it is tried again. What is wrong is never tried again.

use std::time::Duration;

use tidegate_proto::v1;

use crate::Server;

/// How often what came too late is tried.
const ATTEMPTS: usize = 5;

/// Makes attempts, each of which answers how long something took, until one took no longer than `most`: a machine that stalls
/// makes one attempt late, and not each of five. What an attempt asserts by itself, such as that nothing came early, it must
/// keep each time.
pub async fn in_time(most: Duration, mut attempt: impl AsyncFnMut() -> Duration) {
    let mut late = Vec::new();
    while late.len() < ATTEMPTS {
        let took = attempt().await;
        if took <= most {
            return;
        }
        println!("tried again: {took:?}, at most {most:?}");
        late.push(took);
    }
    panic!("too late each time, at most {most:?}: {late:?}");
}

/// `status` tells what a call has done to waiters: `done`, and that at once. Only a server that stood still a moment ago grants
/// them nothing for some 50 ms (R6): then all is as before, its log tells why, and `done` follows. Both are permits that run
/// and waiters.
pub async fn at_once(
    server: &Server,
    bulkhead: &str,
    status: &v1::BulkheadStatus,
    before: (u32, u32),
    done: (u32, u32),
) {
    let counts = |status: &v1::BulkheadStatus| (status.running, status.queued);
    if counts(status) == before {
        server.until_logged("stood still", 1).await;
    } else {
        assert_eq!(counts(status), done, "running and queued");
    }
    server.until(bulkhead, |now| counts(now) == done).await;
}

/// The server uses less than a tenth of a processor while nothing happens; measured for so long.
pub async fn idles(server: &Server, span: Duration) {
    in_time(span / 10, async || {
        let used = server.cpu_time();
        tokio::time::sleep(span).await;
        let used = server.cpu_time().saturating_sub(used);
        println!("{used:?} of processor time in {span:?}");
        used
    })
    .await;
}
