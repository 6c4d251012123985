//! Counts the HTTP/2 frames that a client sends, and ends the connection of one that sends too many of those that carry
//! no call. h2 answers each PING and SETTINGS and has no bound for them; what it does bound it bounds by itself.
//!
//! Honest clients send a few such frames for each call: window updates, a PING to measure the line (Go sends up to one
//! for each DATA frame), a reset. So what is allowed in a second grows with the calls of that second.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The first bytes of a connection; h2 looks at what they are.
const PREFACE: usize = 24;
const HEADER: usize = 9;
/// What is counted together.
const SPAN: Duration = Duration::from_secs(1);
/// Frames beside calls that are allowed in any case, and for each frame that carries a call.
const BESIDE: u32 = 2_000;
const BESIDE_A_CALL: u32 = 2;
/// The same for resets: half of the calls may be cancelled for ever, and many at once.
const RESETS: u32 = 1_000;
const CALLS_A_RESET: u32 = 2;
/// GOAWAY, `ENHANCE_YOUR_CALM`, no stream was the last.
const GOAWAY: [u8; HEADER + 8] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// A socket whose incoming frames are counted.
#[derive(Debug)]
pub(crate) struct Counted<T> {
    socket: T,
    frames: Frames,
    opened: Arc<AtomicBool>,
}

impl<T> Counted<T> {
    pub(crate) fn new(socket: T) -> Self {
        Self { socket, frames: Frames::new(Instant::now()), opened: Arc::default() }
    }

    /// Becomes true when the client has sent what every client begins with: the preface and a whole frame.
    pub(crate) fn opened(&self) -> Arc<AtomicBool> {
        self.opened.clone()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let was_open = self.frames.whole;
        if let Err(flood) = self.frames.read(&buffer.filled()[before..], Instant::now()) {
            // Best effort: the socket may be full, or in the middle of a frame of ours. The connection ends in any case.
            let _ = Pin::new(&mut self.socket).poll_write(cx, &GOAWAY);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, flood)));
        }
        if !was_open && self.frames.whole {
            self.opened.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }
}

/// What a client sends too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flood {
    #[error("too many resets")]
    Resets,
    #[error("too many frames that carry no call")]
    Beside,
}

/// Where in the stream of frames the client is, and what it sent in this second.
#[derive(Debug)]
struct Frames {
    since: Instant,
    calls: u32,
    resets: u32,
    beside: u32,
    /// Bytes until the next header begins.
    skip: usize,
    header: [u8; HEADER],
    /// How much of it is there.
    known: usize,
    /// A whole frame was there.
    whole: bool,
}

impl Frames {
    fn new(now: Instant) -> Self {
        Self { since: now, calls: 0, resets: 0, beside: 0, skip: PREFACE, header: [0; HEADER], known: 0, whole: false }
    }

    fn read(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        if now - self.since >= SPAN {
            *self = Self { since: now, calls: 0, resets: 0, beside: 0, ..*self };
        }
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            if self.known == HEADER {
                self.known = 0;
                self.whole = true;
            }
            let taken = (HEADER - self.known).min(bytes.len());
            self.header[self.known..][..taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEADER {
                self.count()?;
            }
        }
        self.whole |= self.known == HEADER && self.skip == 0;
        Ok(())
    }

    fn count(&mut self) -> Result<(), Flood> {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let is_end = flags & END_STREAM != 0;
        match kind {
            HEADERS => self.calls = self.calls.saturating_add(1),
            DATA if self.skip > 0 || is_end => self.calls = self.calls.saturating_add(1),
            RST_STREAM => self.resets = self.resets.saturating_add(1),
            _ => self.beside = self.beside.saturating_add(1),
        }
        if self.resets > RESETS.saturating_add(self.calls / CALLS_A_RESET) {
            return Err(Flood::Resets);
        }
        if self.beside > BESIDE.saturating_add(self.calls.saturating_mul(BESIDE_A_CALL)) {
            return Err(Flood::Beside);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER + usize::from(length), 0xff);
        frame
    }

    fn opened() -> Frames {
        let mut frames = Frames::new(Instant::now());
        frames.read(&[b'x'; PREFACE], frames.since).unwrap();
        frames
    }

    /// How many of them pass in one second.
    fn pass(frames: &mut Frames, sent: &[Vec<u8>]) -> (u32, Flood) {
        for passed in 0..100_000 {
            for frame in sent {
                if let Err(flood) = frames.read(frame, frames.since) {
                    return (passed, flood);
                }
            }
        }
        panic!("nothing is too much")
    }

    #[test]
    fn frames_that_carry_no_call_are_bounded_in_a_second() {
        for (kind, flags, length) in
            [(PING, 0, 8), (PING, 1, 8), (4, 0, 0), (2, 0, 5), (8, 0, 4), (9, 0, 1), (DATA, 0, 0)]
        {
            let frames = &mut opened();
            assert_eq!(pass(frames, &[frame(kind, flags, length)]), (BESIDE, Flood::Beside));
            assert_eq!(frames.read(&frame(PING, 0, 8), frames.since + SPAN), Ok(()));
        }
    }

    #[test]
    fn calls_and_what_goes_with_them_are_not() {
        let call = [
            frame(HEADERS, 4, 50),
            frame(DATA, 1, 20),
            frame(PING, 0, 8),
            frame(8, 0, 4),
            frame(8, 0, 4),
            frame(PING, 1, 8),
        ];
        let frames = &mut opened();
        for _ in 0..100_000 {
            for frame in &call {
                frames.read(frame, frames.since).unwrap();
            }
        }
        assert_eq!(pass(frames, &[frame(PING, 0, 8)]), (BESIDE, Flood::Beside));
    }

    #[test]
    fn half_of_the_calls_may_be_reset_and_a_thousand_at_once() {
        let reset = || frame(RST_STREAM, 0, 4);
        assert_eq!(pass(&mut opened(), &[reset()]), (RESETS, Flood::Resets));
        // One frame for each call, as in a call without a body.
        assert_eq!(pass(&mut opened(), &[frame(HEADERS, 5, 9), reset()]), (2 * RESETS, Flood::Resets));
        let (frames, half) = (&mut opened(), [frame(HEADERS, 5, 9), frame(HEADERS, 5, 9), reset()]);
        for _ in 0..100_000 {
            for frame in &half {
                frames.read(frame, frames.since).unwrap();
            }
        }
    }

    #[test]
    fn it_does_not_matter_where_reads_end() {
        let mut bytes = vec![b'x'; PREFACE];
        for length in [0, 1, 8, 200] {
            bytes.extend(frame(HEADERS, 4, length));
            bytes.extend(frame(PING, 0, 8));
        }
        for chunk in 1..bytes.len() {
            let mut frames = Frames::new(Instant::now());
            bytes.chunks(chunk).for_each(|chunk| frames.read(chunk, frames.since).unwrap());
            assert_eq!((frames.calls, frames.beside, frames.skip), (4, 4, 0), "{chunk}");
        }
    }

    #[test]
    fn it_is_open_when_the_first_frame_is_whole() {
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(4, 0, 6));
        let mut frames = Frames::new(Instant::now());
        for byte in &bytes[..bytes.len() - 1] {
            frames.read(&[*byte], frames.since).unwrap();
            assert!(!frames.whole);
        }
        frames.read(&bytes[bytes.len() - 1..], frames.since).unwrap();
        assert!(frames.whole);
    }
}
