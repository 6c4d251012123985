//! HTTP/2 frames by hand, also such as no library would send.

use prost::Message;

use crate::v1;

/// What a connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Bytes of a header.
pub(crate) const HEADER: usize = 9;

/// Appends a frame.
pub(crate) fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("frames are small");
    out.extend(&length.to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// SETTINGS with one setting.
pub(crate) fn put_setting(out: &mut Vec<u8>, key: u16, value: u32) {
    let mut payload = key.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    put(out, SETTINGS, 0, 0, &payload);
}

/// The header block of a gRPC call, nothing of it indexed.
pub(crate) fn call(method: &str) -> Vec<u8> {
    // `:method: POST`, `:scheme: http`, then `:path`, `:authority`, `content-type` and `te` as literals.
    let mut block = vec![0x83, 0x86];
    text(&mut block, &[0x04], &format!("/tidegate.v1.AdmissionService/{method}"));
    text(&mut block, &[0x01], "attacker");
    text(&mut block, &[0x0f, 0x10], "application/grpc");
    text(&mut block, &[0x00, 2, b't', b'e'], "trailers");
    block
}

/// A header block that is small on the wire and 4,000 bytes times `times` when it is unpacked: one entry of the table,
/// named again and again.
pub(crate) fn bomb(times: usize) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x44, 1, b'/'];
    // Literal with indexing, `x: 3900 bytes`; a length of 7 bits with a carry of 3900 - 127 = 0x1d * 128 + 0x3d.
    block.extend([0x40, 1, b'x', 0x7f, 0x80 | 0x3d, 0x1d]);
    block.extend([b'y'; 3900]);
    // It is the newest of the table, so number 62.
    block.extend(std::iter::repeat_n(0x80 | 0x3e, times));
    block
}

/// A message as gRPC frames it.
pub(crate) fn message(message: &impl Message) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.encoded_len()).expect("messages are small").to_be_bytes());
    message.encode(&mut framed).expect("a vector grows");
    framed
}

/// A renewal of so many leases that nobody has, with ids as long as they may be.
pub(crate) fn renewal(leases: usize) -> Vec<u8> {
    let lease_ids = (0..leases).map(|number| format!("{number:0>96}")).collect();
    message(&v1::RenewRequest { seq: 1, lease_ids })
}

fn text(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend(name);
    block.push(u8::try_from(value.len()).expect("values are short"));
    block.extend(value.as_bytes());
}
