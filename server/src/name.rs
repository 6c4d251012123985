//! Names of bulkheads and partitions (R13).

use tidegate_core::Invalid;

/// The longest name, in bytes.
pub(crate) const LONGEST: usize = 256;

/// A name is 1 to 256 bytes of UTF-8 without control characters.
pub(crate) fn check(field: &'static str, name: &str) -> Result<(), Invalid> {
    if (1..=LONGEST).contains(&name.len()) && !name.contains(char::is_control) {
        Ok(())
    } else {
        Err(Invalid { field, allowed: format!("1 to {LONGEST} bytes without control characters") })
    }
}
