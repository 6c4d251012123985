//! What leaves the server as an opaque text, and what comes in as one: lease ids and request ids.
//!
//! A lease id carries the numbers that lead to its lease and a MAC over them, so it needs no table and cannot be guessed
//! or altered. Request ids are kept as keyed hashes, so their length costs no memory and nobody can choose collisions.
//! All of it is BLAKE3 in keyed mode, one key, with a byte in front of the input for each use.

use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use tidegate_core::{FencingToken, RequestKey};

const VERSION: u8 = 1;
/// Version, token, incarnation, permits, ttl, two hashes.
const BODY: usize = 1 + 8 + 4 + 4 + 4 + 8 + 8;
const MAC: usize = 16;

/// The numbers inside a lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseId {
    /// Epoch and counter.
    pub(crate) token: FencingToken,
    /// The cell that granted it.
    pub(crate) incarnation: u32,
    /// How many permits.
    pub(crate) permits: u32,
    /// How long it lasts unless renewed; at most some minutes.
    pub(crate) ttl: Duration,
    /// Under which request it was granted; zeros without a request id.
    pub(crate) request: RequestKey,
}

/// Seals and opens with one secret key.
#[derive(Debug)]
pub(crate) struct Seal {
    key: [u8; 32],
}

impl Seal {
    /// A seal with a key of its own: what others sealed does not open.
    pub(crate) fn draw() -> Self {
        Self { key: rand::random() }
    }

    /// The text that names the lease: URL-safe, always 71 characters.
    pub(crate) fn seal(&self, id: &LeaseId) -> String {
        let mut bytes = [0; BODY + MAC];
        let mut rest = &mut bytes[..];
        let mut put = |part: &[u8]| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        };
        put(&[VERSION]);
        put(&id.token.as_u64().to_be_bytes());
        put(&id.incarnation.to_be_bytes());
        put(&id.permits.to_be_bytes());
        put(&u32::try_from(id.ttl.as_millis()).unwrap_or(u32::MAX).to_be_bytes());
        put(&id.request.identity.to_be_bytes());
        put(&id.request.request.to_be_bytes());
        let mac = self.mac(&bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&mac);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// The numbers inside a genuine lease id; `None` for anything else.
    pub(crate) fn open(&self, text: &str) -> Option<LeaseId> {
        let mut bytes = [0; BODY + MAC];
        if BASE64URL_NOPAD.decode_len(text.len()) != Ok(bytes.len()) {
            return None;
        }
        BASE64URL_NOPAD.decode_mut(text.as_bytes(), &mut bytes).ok()?;
        let (body, mac) = bytes.split_at(BODY);
        // Takes as long whichever byte differs.
        let differs = self.mac(body).iter().zip(mac).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 || body[0] != VERSION {
            return None;
        }
        let mut rest = &body[1..];
        Some(LeaseId {
            token: FencingToken::from_u64(u64::from_be_bytes(take(&mut rest)?)),
            incarnation: u32::from_be_bytes(take(&mut rest)?),
            permits: u32::from_be_bytes(take(&mut rest)?),
            ttl: Duration::from_millis(u64::from(u32::from_be_bytes(take(&mut rest)?))),
            request: RequestKey {
                identity: u64::from_be_bytes(take(&mut rest)?),
                request: u64::from_be_bytes(take(&mut rest)?),
            },
        })
    }

    /// Under which key the core remembers a request id. Without authentication all callers are one.
    pub(crate) fn request_key(&self, request_id: &str) -> RequestKey {
        RequestKey { identity: 0, request: self.hash(b'r', &[request_id.as_bytes()]) }
    }

    /// What a repeat must not change, as sent (R8).
    pub(crate) fn fingerprint(&self, permits: u32, ttl: Option<Duration>, partition: Option<&str>) -> u64 {
        // An absent value is none of those that can be sent.
        let ttl = ttl.map_or(u128::MAX, |ttl| ttl.as_nanos());
        let partition = partition.unwrap_or("\0").as_bytes();
        self.hash(b'f', &[&permits.to_be_bytes(), &ttl.to_be_bytes(), partition])
    }

    fn mac(&self, body: &[u8]) -> [u8; MAC] {
        let mut mac = [0; MAC];
        mac.copy_from_slice(&self.digest(b'l', &[body])[..MAC]);
        mac
    }

    fn hash(&self, usage: u8, parts: &[&[u8]]) -> u64 {
        let mut rest = &self.digest(usage, parts)[..];
        take(&mut rest).map_or(0, u64::from_be_bytes)
    }

    fn digest(&self, usage: u8, parts: &[&[u8]]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[usage]);
        for part in parts {
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (here, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> LeaseId {
        LeaseId {
            token: FencingToken::from_u64((7 << 32) + 9),
            incarnation: 3,
            permits: 1_000_000_000,
            ttl: Duration::from_mins(5),
            request: RequestKey { identity: u64::MAX, request: 1 },
        }
    }

    #[test]
    fn what_was_sealed_opens_and_fits() {
        let seal = Seal::draw();
        let text = seal.seal(&some());
        assert_eq!(seal.open(&text), Some(some()));
        assert!(text.len() <= 96 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    }

    #[test]
    fn an_altered_or_foreign_id_does_not_open() {
        let seal = Seal::draw();
        let text = seal.seal(&some());
        for at in 0..text.len() {
            for other in ["A", "B", "=", "é"] {
                let altered = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                assert!(altered == text || seal.open(&altered).is_none(), "{altered}");
            }
        }
        assert_eq!(Seal::draw().open(&text), None);
        for odd in ["", "A", &text[..70], &format!("{text}A"), &"A".repeat(1 << 20)] {
            assert_eq!(seal.open(odd), None);
        }
    }

    #[test]
    fn a_repeat_is_told_by_what_was_sent() {
        let seal = Seal::draw();
        let print = |permits, ttl, partition| seal.fingerprint(permits, ttl, partition);
        let all = [
            print(1, None, None),
            print(2, None, None),
            print(1, Some(Duration::ZERO), None),
            print(1, None, Some("p")),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
        assert_eq!(all[0], print(1, None, None));
        assert_ne!(seal.request_key("a"), seal.request_key("b"));
    }
}
