//! Every call is answered, and no wait ends early or late (P8).
//!
//! Late is what comes more than *g* after the end of the wait, the server's own stalls and the machine's pauses (beats of
//! [`PAUSE`](super::PAUSE) and more while the call was under way) allowed for. A deadline is met by the server if the client need not
//! end the call itself; since it leaves as little as 20 ms for the way back, misses while a beat was slow do not count, and
//! one in a hundred of the others is allowed. So is one late answer in a thousand, since a thread may have been held up
//! where no beat could see it, but not one that looks forgotten. Calls through faulty proxies are not judged.

use std::time::Duration;

use super::{At, Call, End, History, Window};

/// Clocks are read in nanoseconds, waits are told in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// One in so many deadlines may be missed.
const MISSES: usize = 100;
/// One in so many answers may be late,
const LATE: usize = 1000;
/// but none by more than this.
const FORGOTTEN: Duration = Duration::from_secs(2);

/// How long before its deadline a call is answered (R3).
fn margin(timeout: Duration) -> Duration {
    Duration::from_millis(20).max(timeout / 100).min(timeout / 4)
}

pub(super) fn check(history: &History, findings: &mut Vec<String>) {
    let (mut bounded, mut missed, mut answers, mut late) = (0, 0, 0, Vec::new());
    for call in history.calls.iter().filter(|call| !call.is_faulty) {
        bounded += usize::from(call.timeout.is_some());
        match &call.end {
            End::Granted(_) | End::Refused(_) => {
                answers += 1;
                if let Some(by) = late_by(history, call) {
                    let told = format!("answered late, by {by:?}: {call:?}");
                    if by > FORGOTTEN { &mut *findings } else { &mut late }.push(told);
                }
                is_not_early(history, call, findings);
            }
            End::TimedOut => missed += usize::from(!is_excused(history, call)),
            End::Failed(_) => findings.push(format!("not answered: {call:?}")),
            End::Cancelled => {}
        }
    }
    if missed * MISSES > bounded {
        findings.push(format!("{missed} of {bounded} deadlines missed"));
    }
    if late.len() * LATE > answers {
        findings.append(&mut late);
    }
}

/// By how much an answer came too late, whatever was the matter with the machine.
fn late_by(history: &History, call: &Call) -> Option<Duration> {
    let took = call.window.to.saturating_sub(call.window.from);
    let bound = history.longest_wait(call) + history.stalled + history.room(call.window);
    took.checked_sub(bound).filter(|by| !by.is_zero())
}

fn is_not_early(history: &History, call: &Call, findings: &mut Vec<String>) {
    let took = call.window.to.saturating_sub(call.window.from);
    let wait = history.longest_wait(call);
    // Repeats end at the earlier of both ends.
    let is_over = call.request_id.is_none() && call.end == End::Refused("WAIT_TIMEOUT".into());
    let earliest = call.timeout.map_or(wait, |timeout| wait.min(timeout.saturating_sub(margin(timeout))));
    if is_over && took + ROUNDING < earliest {
        findings.push(format!("its wait ended early, after {took:?}: {call:?}"));
    }
}

/// A beat was slow while the call was on its way there or back.
fn is_excused(history: &History, call: &Call) -> bool {
    let Window { from, .. } = call.window;
    let timeout = call.timeout.unwrap_or_default();
    let (room, end) = (margin(timeout), from + timeout);
    let overlaps = |from: At, to: At| history.slow_beats.iter().any(|beat| beat.from < to && beat.to > from);
    overlaps(from, from + room) || overlaps(end.saturating_sub(room), end)
}

#[cfg(test)]
mod tests {
    use super::super::made::{Made, at, granted, refused, window};
    use super::*;

    fn findings(made: &Made) -> usize {
        let mut findings = Vec::new();
        check(&made.history, &mut findings);
        findings.len()
    }

    #[test]
    fn a_wait_ends_in_its_window() {
        let ends = |call| findings(&Made::default().call(call));
        assert_eq!(ends(refused("WAIT_TIMEOUT", 0, 1010)), 0);
        assert_eq!(ends(refused("WAIT_TIMEOUT", 0, 990)), 1, "early");
        assert_eq!(ends(refused("WAIT_TIMEOUT", 0, 1260)), 1, "late");
        assert_eq!(ends(granted(1, 0, 1260)), 1, "late");
        assert_eq!(ends(Call { max_wait: Some(at(100)), ..refused("WAIT_TIMEOUT", 0, 105) }), 0);
        assert_eq!(ends(Call { max_wait: Some(at(100)), ..refused("WAIT_TIMEOUT", 0, 360) }), 1);
        assert_eq!(ends(Call { timeout: Some(at(200)), ..refused("WAIT_TIMEOUT", 0, 181) }), 0);
        assert_eq!(ends(Call { timeout: Some(at(200)), ..refused("WAIT_TIMEOUT", 0, 170) }), 1, "early");
    }

    #[test]
    fn a_pause_of_the_machine_or_a_stall_of_the_server_makes_late_what_ran_beside_it() {
        let mut made = Made::default().call(refused("WAIT_TIMEOUT", 0, 1390));
        assert_eq!(findings(&made), 1);
        made.history.slow_beats = vec![window(600, 750), window(2000, 9000)];
        assert_eq!(findings(&made), 0);
        made.history.slow_beats = vec![window(600, 650)];
        assert_eq!(findings(&made), 1, "not a pause");
        made.history.stalled = at(150);
        assert_eq!(findings(&made), 0);
    }

    #[test]
    fn one_answer_in_a_thousand_may_be_late_and_none_forgotten() {
        let crowd = |late| (0..1000).fold(late, |made: Made, token| made.call(granted(token, 0, 10)));
        let late = || refused("WAIT_TIMEOUT", 0, 3200);
        assert_eq!(findings(&crowd(Made::default().call(late()))), 0);
        assert_eq!(findings(&crowd(Made::default().call(late()).call(late()))), 2);
        assert_eq!(findings(&crowd(Made::default().call(refused("WAIT_TIMEOUT", 0, 3300)))), 1);
    }

    #[test]
    fn every_call_is_answered_by_us() {
        let failed = || Call { end: End::Failed("broken".into()), ..granted(0, 0, 10) };
        assert_eq!(findings(&Made::default().call(failed())), 1);
        assert_eq!(findings(&Made::default().call(Call { is_faulty: true, ..failed() })), 0);
        let missed = Call { timeout: Some(at(200)), end: End::TimedOut, ..granted(0, 0, 200) };
        let mut made = Made::default().call(missed);
        assert_eq!(findings(&made), 1);
        made.history.slow_beats = vec![window(170, 190)];
        assert_eq!(findings(&made), 0);
    }
}
