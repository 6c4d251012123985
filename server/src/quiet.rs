//! Log lines that others cause, held to a bounded rate.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many lines of one kind pass in a second.
const A_SECOND: u32 = 10;

/// Lets a few lines a second through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    second: Mutex<Second>,
}

#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    passed: u32,
    held_back: u64,
}

impl Quiet {
    /// Whether a line may be written now; if so, how many were held back since the last one.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut second = self.second.lock();
        if second.began.is_none_or(|began| began.elapsed() >= Duration::from_secs(1)) {
            second.began = Some(Instant::now());
            second.passed = 0;
        }
        if second.passed == A_SECOND {
            second.held_back += 1;
            return None;
        }
        second.passed += 1;
        Some(std::mem::take(&mut second.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_lines_a_second_pass_and_the_next_one_tells_how_many_did_not() {
        let quiet = Quiet::default();
        let passed: Vec<_> = (0..15).filter_map(|_| quiet.pass()).collect();
        assert_eq!(passed, [0; 10]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((quiet.pass(), quiet.pass()), (Some(5), Some(0)));
    }
}
