//! When collections give memory back. They keep what they once needed, and after a burst that would be for ever.

/// The most entries that are moved for it at once, so that nobody waits for that.
const MOST_MOVED: usize = 16_384;
/// Less than this is not worth it.
const SPARE: usize = 1024;

/// Whether a collection with that many entries has far more room than it will use soon.
pub(crate) fn is_roomy(entries: usize, room: usize) -> bool {
    entries <= MOST_MOVED && room > 4 * entries + SPARE
}
