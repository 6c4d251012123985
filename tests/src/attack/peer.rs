//! One connection of an attacker.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::frames::{ACK, GOAWAY, HEADER, PING, SETTINGS, put};
use super::kinds::Attack;

const CONNECT: Duration = Duration::from_secs(2);
const ENHANCE_YOUR_CALM: u32 = 11;

/// A connection, opened anew when the server ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    attack: Attack,
    address: SocketAddr,
    socket: Option<TcpStream>,
    unsent: Vec<u8>,
    unread: Vec<u8>,
    /// The stream that was opened last; clients have the odd ones.
    pub(crate) stream: u32,
    /// How far the attack has come on this connection, as it counts itself.
    pub(crate) step: u32,
    pub(crate) closed: u64,
    pub(crate) calmed: u64,
}

impl Peer {
    pub(crate) fn new(attack: Attack, address: SocketAddr) -> Self {
        let mut peer = Self {
            attack,
            address,
            socket: None,
            unsent: Vec::new(),
            unread: Vec::new(),
            stream: 0,
            step: 0,
            closed: 0,
            calmed: 0,
        };
        peer.open();
        peer
    }

    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// The next stream of this client.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        self.stream
    }

    /// Sends what the attack sends in a turn, at most about `most` frames; answers how many.
    pub(crate) fn send(&mut self, most: f64) -> u32 {
        if self.socket.is_none() {
            self.open();
        }
        self.flush();
        // What was not taken yet comes first, so that a pause is one.
        if !self.unsent.is_empty() {
            return 0;
        }
        let attack = self.attack;
        let mut out = std::mem::take(&mut self.unsent);
        let sent = attack.turn(self, most, &mut out);
        self.unsent = out;
        self.flush();
        sent
    }

    /// Reads what there is, if the attack reads at all.
    pub(crate) fn listen(&mut self) {
        self.flush();
        if !self.attack.reads() {
            return;
        }
        let mut buffer = [0; 16 << 10];
        while let Some(socket) = &mut self.socket {
            match socket.read(&mut buffer) {
                Ok(0) => self.end(),
                Ok(read) => {
                    self.unread.extend(&buffer[..read]);
                    self.hear();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.end(),
            }
        }
    }

    /// Answers PINGs if the attack wants to live, and hears a GOAWAY.
    fn hear(&mut self) {
        while let Some(&[high, middle, low, kind, flags, ..]) = self.unread.get(..HEADER) {
            let end = HEADER + usize::from(high) * 65_536 + usize::from(middle) * 256 + usize::from(low);
            let Some(frame) = self.unread.get(..end) else { return };
            let payload = &frame[HEADER..];
            match kind {
                PING if flags & ACK == 0 && self.attack.lives() => put(&mut self.unsent, PING, ACK, 0, payload),
                SETTINGS if flags & ACK == 0 && self.attack.lives() => put(&mut self.unsent, SETTINGS, ACK, 0, &[]),
                GOAWAY if payload.get(4..8) == Some(&ENHANCE_YOUR_CALM.to_be_bytes()[..]) => self.calmed += 1,
                _ => {}
            }
            self.unread.drain(..end);
        }
    }

    fn open(&mut self) {
        self.stream = 0;
        self.step = 0;
        self.unread.clear();
        self.unsent = self.attack.opening();
        if let Ok(socket) = TcpStream::connect_timeout(&self.address, CONNECT) {
            socket.set_nonblocking(true).expect("a socket has options");
            socket.set_nodelay(true).expect("a socket has options");
            self.socket = Some(socket);
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some(socket) = &mut self.socket
            && !self.unsent.is_empty()
        {
            match socket.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.end(),
            }
        }
    }

    fn end(&mut self) {
        self.socket = None;
        self.closed += 1;
    }
}
