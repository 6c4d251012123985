//! How long to wait before the next attempt: arithmetic, with the randomness handed in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anybody waits, and short enough to be multiplied.
const LONGEST: Duration = Duration::from_hours(24 * 366);

/// How long to wait before a retry. The retries of one call are counted from 1.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::Backoff;
///
/// let backoff = Backoff::full_jitter();
/// assert_eq!(backoff.delay(3, 0.5), Duration::from_secs(2)); // half of 1 s × 2²
/// assert_eq!(Backoff::constant(Duration::from_secs(7)).delay(3, 0.5), Duration::from_secs(7));
/// ```
#[derive(Clone)]
pub struct Backoff(Strategy);

#[derive(Clone)]
enum Strategy {
    Exponential {
        first: Duration,
        cap: Duration,
        jitter: Jitter,
    },
    Constant(Duration),
    /// As it is: whoever writes a function decides about jitter, too.
    Custom(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

/// How a delay is spread, so that callers that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Not at all.
    None,
    /// Anywhere from zero to the delay.
    Full,
    /// By at most this share of the delay, 0 to 1, either way; then to whole milliseconds, and never above the cap.
    Within(f64),
}

impl Backoff {
    /// `min(1 s × 2^(n-1), 30 s)`, anywhere from zero to that.
    pub const fn full_jitter() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(30), Jitter::Full)
    }

    /// `1 s × 2^(n-1)` ± 20 %, at most 60 s: for operations that are stored and retried later.
    pub const fn stored() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_mins(1), Jitter::Within(0.2))
    }

    /// `100 ms × 2^(n-1)` ± 20 %, at most 2 s: for somebody who waits for the answer.
    pub const fn quick() -> Self {
        Self::exponential(Duration::from_millis(100), Duration::from_secs(2), Jitter::Within(0.2))
    }

    /// `first × 2^(n-1)`, spread, never above `cap`.
    pub const fn exponential(first: Duration, cap: Duration, jitter: Jitter) -> Self {
        Self(Strategy::Exponential { first, cap, jitter })
    }

    /// Always the same, without jitter.
    pub const fn constant(delay: Duration) -> Self {
        Self(Strategy::Constant(delay))
    }

    /// What the function says of the retry, counted from 1; without jitter.
    pub fn custom(delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        Self(Strategy::Custom(Arc::new(delay)))
    }

    /// The delay before that retry (1 is the first one; 0 counts as 1), with `random` drawn evenly from 0 to 1.
    pub fn delay(&self, retry: u32, random: f64) -> Duration {
        match &self.0 {
            Strategy::Exponential { first, cap, jitter } => {
                let doublings = retry.saturating_sub(1).min(31);
                let plain = first.saturating_mul(1 << doublings).min(*cap).min(LONGEST);
                let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 1.0 };
                match jitter {
                    Jitter::None => plain,
                    Jitter::Full => plain.mul_f64(random),
                    Jitter::Within(share) => {
                        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
                        let spread = plain.mul_f64(1.0 - share + 2.0 * share * random);
                        // Capped after the jitter, or the cap would be no cap.
                        whole_millis(spread).min(*cap)
                    }
                }
            }
            Strategy::Constant(delay) => *delay,
            Strategy::Custom(delay) => delay(retry.max(1)),
        }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Strategy::Exponential { first, cap, jitter } => {
                f.debug_struct("Exponential").field("first", first).field("cap", cap).field("jitter", jitter).finish()
            }
            Strategy::Constant(delay) => f.debug_tuple("Constant").field(delay).finish(),
            Strategy::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// The nearest whole milliseconds.
fn whole_millis(delay: Duration) -> Duration {
    let rounded = delay.saturating_add(Duration::from_micros(500));
    Duration::from_millis(u64::try_from(rounded.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &Backoff, random: f64) -> Vec<u128> {
        (1..=8).map(|retry| backoff.delay(retry, random).as_millis()).collect()
    }

    #[test]
    fn q05_full_jitter_lies_between_zero_and_the_capped_delay() {
        let backoff = Backoff::full_jitter();
        assert_eq!(millis(&backoff, 1.0), [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(millis(&backoff, 0.0), [0; 8]);
        assert_eq!(backoff.delay(5, 0.25), Duration::from_secs(4));
    }

    #[test]
    fn q05_a_number_or_a_function_is_taken_as_it_is() {
        let constant = Backoff::constant(Duration::from_millis(1_234));
        let custom = Backoff::custom(|retry| Duration::from_secs(90) * retry);
        for random in [0.0, 0.7, 1.0] {
            assert_eq!(millis(&constant, random), [1_234; 8]);
            assert_eq!(custom.delay(2, random), Duration::from_mins(3));
        }
    }

    #[test]
    fn y01_stored_delays_are_spread_by_a_fifth_in_whole_milliseconds_and_never_above_the_cap() {
        let backoff = Backoff::stored();
        assert_eq!(millis(&backoff, 0.5), [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(millis(&backoff, 0.0), [800, 1_600, 3_200, 6_400, 12_800, 25_600, 48_000, 48_000]);
        assert_eq!(millis(&backoff, 1.0), [1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 60_000, 60_000]);
        assert_eq!(backoff.delay(1, 0.123_456).subsec_nanos() % 1_000_000, 0);
    }

    #[test]
    fn s06_quick_delays_start_at_a_tenth_of_a_second_and_end_at_two() {
        let backoff = Backoff::quick();
        assert_eq!(millis(&backoff, 0.5), [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
        assert_eq!(millis(&backoff, 0.0)[..2], [80, 160]);
        assert_eq!(millis(&backoff, 1.0), [120, 240, 480, 960, 1_920, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn odd_numbers_do_no_harm() {
        // Also where rounding would go beyond it.
        let cap = Duration::from_micros(1_000_600);
        assert_eq!(Backoff::exponential(cap, cap, Jitter::Within(0.2)).delay(1, 1.0), cap);
        for jitter in [Jitter::None, Jitter::Full, Jitter::Within(1.0)] {
            let backoff = Backoff::exponential(Duration::MAX, Duration::MAX, jitter);
            assert!(backoff.delay(u32::MAX, f64::NAN) >= LONGEST);
        }
        assert_eq!(Backoff::quick().delay(0, f64::INFINITY), Duration::from_millis(120));
    }
}
