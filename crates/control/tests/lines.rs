//! Lines of any content, in pieces of any size: never a panic, never more memory than the limit,
//! nothing lost.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::io;
use std::io::Read;
use std::thread;
use std::time::Duration;

use control::Reply;
use control::Request;
use control::line::LineError;
use control::line::LineReader;
use control::line::REPLY_BYTES_MAX;
use control::server::Connection;
use proptest::prelude::*;

/// Returns its bytes in pieces; a piece of length 0 is a read that would block.
struct Pieces {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.sizes.pop().unwrap_or(usize::MAX);
        if size == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = size.min(buffer.len()).min(self.bytes.len());
        let rest = self.bytes.split_off(size);
        buffer[..size].copy_from_slice(&self.bytes);
        self.bytes = rest;
        Ok(size)
    }
}

/// All lines, continuing where a read would block.
fn lines_of(reader: &mut LineReader<Pieces>) -> Result<Vec<Vec<u8>>, LineError> {
    let mut lines = Vec::new();
    loop {
        match reader.next_line() {
            Ok(Some(line)) => lines.push(line.to_vec()),
            Ok(None) => return Ok(lines),
            Err(LineError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

proptest! {
    #[test]
    fn lines_are_the_same_whatever_the_pieces(
        lines in prop::collection::vec(prop::collection::vec(any::<u8>().prop_filter("line end", |b| *b != b'\n'), 0..40), 0..20),
        sizes in prop::collection::vec(0_usize..50, 0..60),
    ) {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
        let mut reader = LineReader::new(Pieces { bytes, sizes }, 40);
        prop_assert_eq!(lines_of(&mut reader).unwrap(), lines);
    }

    #[test]
    fn arbitrary_bytes_never_panic_either_side(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        sizes in prop::collection::vec(0_usize..50, 0..20),
    ) {
        let mut reader = LineReader::new(Pieces { bytes: bytes.clone(), sizes: sizes.clone() }, REPLY_BYTES_MAX);
        while let Ok(Some(_)) | Err(LineError::Unreadable(_)) = reader.next_value::<Reply>() {}
        let mut connection = Connection::new(Pieces { bytes, sizes }, io::sink(), "0.1.0").unwrap();
        for _ in 0..500 {
            let _ = connection.next_request();
        }
    }

    #[test]
    fn damaged_golden_lines_never_panic(position in 0_usize..40_000, byte in any::<u8>(), cut in 0_usize..3) {
        let mut text = [include_str!("replies.jsonl"), include_str!("requests.jsonl")].concat().into_bytes();
        let position = position % text.len();
        match cut {
            0 => text[position] = byte,
            1 => { text.remove(position); }
            _ => text.truncate(position),
        }
        for line in text.split(|byte| *byte == b'\n') {
            let _ = serde_json::from_slice::<Reply>(line);
            let _ = serde_json::from_slice::<Request>(line);
        }
    }
}

#[test]
fn a_line_without_end_stops_at_the_limit() {
    let mut reader = LineReader::new(io::repeat(b'x'), 100_000);
    assert!(matches!(reader.next_line(), Err(LineError::TooLong { limit: 100_000 })));
}

/// One byte, again and again, with a pause before each.
struct Dripping(u8);

impl Read for Dripping {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        thread::sleep(Duration::from_millis(1));
        buffer[0] = self.0;
        Ok(1)
    }
}

#[test]
fn a_client_that_sends_single_bytes_does_not_hold_the_server() {
    for byte in [b' ', b'\n', b'{'] {
        let mut connection = Connection::new(Dripping(byte), io::sink(), "0.1.0").unwrap();
        connection.return_within(Duration::from_millis(20));
        for _ in 0..3 {
            let outcome = connection.next_request();
            let is_timeout = matches!(&outcome, Err(LineError::Io(error)) if error.kind() == io::ErrorKind::TimedOut);
            assert!(is_timeout, "{outcome:?}");
        }
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let line = "[".repeat(60_000);
    assert!(serde_json::from_str::<Request>(&line).is_err());
    let line = format!("{{\"request\":\"mappings\",\"filter\":{}", "{\"a\":".repeat(10_000));
    assert!(serde_json::from_str::<Request>(&line).is_err());
}

#[test]
fn a_stream_that_ends_inside_a_line_says_so() {
    let mut reader = LineReader::new(&b"{}\n{"[..], 100);
    assert_eq!(reader.next_line().unwrap(), Some(&b"{}"[..]));
    assert!(matches!(reader.next_line(), Err(LineError::Truncated)));
}
