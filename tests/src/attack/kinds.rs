//! What attackers send.

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, bomb, call, message,
    put, put_setting, renewal,
};
use super::peer::Peer;
use crate::calls::ask;

/// `SETTINGS_INITIAL_WINDOW_SIZE`.
const WINDOW: u16 = 4;
/// Leases whose ids fit into the window of a stream.
const FITTING: usize = 600;
/// The most in a turn of what is large: more would break the rules of the connection's window, and end it.
const A_TURN: u32 = 4;
/// Frames of a call with a message that is too long.
const OVERSIZE_FRAMES: u32 = 5;

/// What each connection of an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Opens calls and resets them at once.
    RapidReset,
    /// Headers that never end.
    Continuation,
    /// Frames of a message with nothing in them.
    EmptyData,
    /// SETTINGS, each to be acknowledged.
    Settings,
    /// PING, each to be answered.
    Ping,
    /// Headers that are large only when they are unpacked.
    HeaderBomb,
    /// Messages that are longer than any may be.
    OversizeMessage,
    /// Opens a connection and falls silent, again and again.
    HalfOpen,
    /// Never sends the whole preface.
    SlowHandshake,
    /// Calls on and on, as large as a stream takes, and takes no answer, though it lives.
    ZeroWindow,
    /// Renews on a stream and reads nothing.
    UnreadRenewals,
    /// Waits on every stream it may have, and goes on asking.
    Waiters,
}

impl Attack {
    /// What a connection begins with.
    pub(crate) fn opening(self) -> Vec<u8> {
        let mut out = PREFACE.to_vec();
        match self {
            Self::SlowHandshake => return Vec::new(),
            Self::ZeroWindow => put_setting(&mut out, WINDOW, 0),
            _ => put(&mut out, SETTINGS, 0, 0, &[]),
        }
        out
    }

    /// Appends about `most` frames; answers how many.
    pub(crate) fn turn(self, peer: &mut Peer, most: f64, out: &mut Vec<u8>) -> u32 {
        let most = most.clamp(1.0, 10_000.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded in the line before")]
        let most = most as u32;
        match self {
            Self::RapidReset => {
                for _ in 0..most.div_ceil(2) {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS, stream, &call("Acquire"));
                    put(out, RST_STREAM, 0, stream, &8_u32.to_be_bytes());
                }
                most.div_ceil(2) * 2
            }
            Self::Continuation => {
                if peer.step == 0 {
                    let stream = peer.next_stream();
                    put(out, HEADERS, 0, stream, &call("Acquire"));
                    peer.step = 1;
                }
                (0..most).for_each(|_| put(out, CONTINUATION, 0, peer.stream, &[0x00, 1, b'x', 1, b'y']));
                most
            }
            Self::EmptyData => {
                if peer.step == 0 {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS, stream, &call("Acquire"));
                    peer.step = 1;
                }
                (0..most).for_each(|_| put(out, DATA, 0, peer.stream, &[]));
                most
            }
            Self::Settings => {
                (0..most).for_each(|_| put_setting(out, WINDOW, 65_535));
                most
            }
            Self::Ping => {
                (0..most).for_each(|_| put(out, PING, 0, 0, &[7; 8]));
                most
            }
            Self::HeaderBomb => {
                let bombs = most.min(A_TURN);
                for _ in 0..bombs {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS | END_STREAM, stream, &bomb(12_000));
                }
                bombs
            }
            Self::OversizeMessage => {
                let calls = most.div_ceil(OVERSIZE_FRAMES).min(A_TURN);
                for _ in 0..calls {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS, stream, &call("Acquire"));
                    // The length says 4 GiB in every second call, and just more than the largest in the others.
                    peer.step += 1;
                    let length: u32 = if peer.step.is_multiple_of(2) { u32::MAX } else { (256 << 10) + 1 };
                    let mut begin = vec![0];
                    begin.extend(length.to_be_bytes());
                    put(out, DATA, 0, stream, &begin);
                    (2..OVERSIZE_FRAMES).for_each(|_| put(out, DATA, 0, stream, &[0; 16 << 10]));
                }
                calls * OVERSIZE_FRAMES
            }
            Self::SlowHandshake => {
                if let Some(&byte) = PREFACE.get(peer.step as usize / 20) {
                    if peer.step.is_multiple_of(20) {
                        out.push(byte);
                    }
                    peer.step += 1;
                }
                1
            }
            Self::ZeroWindow => {
                let stream = peer.next_stream();
                put(out, HEADERS, END_HEADERS, stream, &call("Renew"));
                put_body(out, stream, &renewal(FITTING), true) + 1
            }
            Self::UnreadRenewals => {
                if peer.step == 0 {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS, stream, &call("RenewLeases"));
                    peer.step = 1;
                }
                put_body(out, peer.stream, &renewal(10), false)
            }
            Self::Waiters => {
                for _ in 0..most.div_ceil(2) {
                    let stream = peer.next_stream();
                    put(out, HEADERS, END_HEADERS, stream, &call("Acquire"));
                    put(out, DATA, END_STREAM, stream, &message(&ask("crowded")));
                }
                most.div_ceil(2) * 2
            }
            Self::HalfOpen => 0,
        }
    }

    /// The most frames a second that it sends, over all its connections.
    pub(crate) fn rate(self) -> u32 {
        match self {
            // Its frames are large, and each call of it is 600 renewals.
            Self::ZeroWindow => 2_000,
            _ => 20_000,
        }
    }

    /// Whether it reads what the server sends.
    pub(crate) fn reads(self) -> bool {
        !matches!(self, Self::UnreadRenewals)
    }

    /// Whether it answers, so that the server takes it for alive.
    pub(crate) fn lives(self) -> bool {
        matches!(self, Self::ZeroWindow | Self::Waiters)
    }
}

/// A body in frames; answers how many.
fn put_body(out: &mut Vec<u8>, stream: u32, body: &[u8], ends: bool) -> u32 {
    let mut frames = 0;
    let mut chunks = body.chunks(16 << 10).peekable();
    while let Some(chunk) = chunks.next() {
        let is_last = chunks.peek().is_none();
        put(out, DATA, if ends && is_last { END_STREAM } else { 0 }, stream, chunk);
        frames += 1;
    }
    frames
}
