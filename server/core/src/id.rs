//! Names that the core counts itself, or gets as numbers: none is drawn here.

use std::hash::{BuildHasherDefault, Hasher};

/// A grant's number: epoch (31 bits) above a counter (32 bits). Strictly growing in grant order of a bulkhead, for ever;
/// a counter that overflows carries into the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token before the first one of `epoch`; only the lower 31 bits of `epoch` count.
    pub const fn floor_of(epoch: u32) -> Self {
        Self(((epoch & 0x7FFF_FFFF) as u64) << 32)
    }

    /// The token with that number.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// Its number, as on the wire; below 2^63.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The one granted after it.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One call's place in the queue. A repeat that takes a place over gets a new id; the old one is dead from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId {
    pub(crate) slot: u32,
    pub(crate) call: u64,
}

/// A request id as the core remembers it: keyed hashes, made by the shell, of the caller's identity and of the id itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// Hash of who calls.
    pub identity: u64,
    /// Hash of the request id.
    pub request: u64,
}

/// A map keyed by [`RequestKey`]s. They are keyed hashes already, so nothing is hashed again and nobody outside can
/// choose collisions.
pub(crate) type RequestMap<V> = std::collections::HashMap<RequestKey, V, BuildHasherDefault<Prehashed>>;

/// Takes the numbers it is fed as the hash.
#[derive(Default)]
pub(crate) struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.rotate_left(32) ^ number;
    }
}
