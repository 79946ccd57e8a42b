//! Reads and writes lines of bounded length.

use std::io;
use std::io::Read;
use std::io::Write;
use std::time::Duration;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line a server reads: a configuration of 1 MiB as a JSON string.
pub const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Longest line a client reads: two frames of 64 KiB in hexadecimal, and some room.
pub const REPLY_BYTES_MAX: usize = 1024 * 1024;

/// A fault of a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The stream failed. `WouldBlock` and `TimedOut` lose nothing: the next read continues.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The line is too long. The stream cannot be used any more.
    #[error("line of more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The stream ended inside a line.
    #[error("connection closed in the middle of a line")]
    Truncated,
    /// The line has wrong content. The next line can be read.
    #[error("unreadable line: {0}")]
    Unreadable(String),
}

/// Splits a stream into lines of at most `limit` bytes.
#[derive(Debug)]
pub struct LineReader<R> {
    stream: R,
    limit: usize,
    buffer: Vec<u8>,
    /// Start of the bytes that were not returned yet.
    start: usize,
    /// Offset up to which there is no line end.
    scanned: usize,
    /// See [`LineReader::return_within`].
    patience: Option<Duration>,
}

/// Bytes to read at once.
const CHUNK_BYTES: usize = 16 * 1024;

impl<R: Read> LineReader<R> {
    /// Reads lines of at most `limit` bytes from `stream`.
    pub fn new(stream: R, limit: usize) -> LineReader<R> {
        LineReader { stream, limit, buffer: Vec::new(), start: 0, scanned: 0, patience: None }
    }

    /// Makes each call that waits for a line return `TimedOut` after `patience`, even while bytes
    /// arrive. Without this, a peer that sends single bytes keeps the caller from its clock.
    pub fn return_within(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// The underlying stream.
    pub fn stream(&self) -> &R {
        &self.stream
    }

    /// The next line without its end; None if the stream ended between lines.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        self.next_line_since(Instant::now())
    }

    /// The next line, for a caller that waits since `asked`.
    fn next_line_since(&mut self, asked: Instant) -> Result<Option<&[u8]>, LineError> {
        loop {
            let end = self.buffer.get(self.scanned..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n'));
            if let Some(offset) = end {
                let line_start = self.start;
                let line_end = self.scanned + offset;
                self.start = line_end + 1;
                self.scanned = self.start;
                if line_end - line_start > self.limit {
                    return Err(LineError::TooLong { limit: self.limit });
                }
                return Ok(self.buffer.get(line_start..line_end));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() - self.start > self.limit {
                return Err(LineError::TooLong { limit: self.limit });
            }
            if self.patience.is_some_and(|patience| asked.elapsed() >= patience) {
                return Err(LineError::Io(io::ErrorKind::TimedOut.into()));
            }
            if self.read_chunk()? == 0 {
                let between_lines = self.start == self.buffer.len();
                return if between_lines { Ok(None) } else { Err(LineError::Truncated) };
            }
        }
    }

    /// Appends the bytes of one read and returns their number; 0 at the end of the stream.
    fn read_chunk(&mut self) -> Result<usize, LineError> {
        // Free returned lines first, so that the buffer never holds more than one line and one
        // chunk.
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        let filled = self.buffer.len();
        self.buffer.resize(filled + CHUNK_BYTES, 0);
        let outcome = loop {
            match self.stream.read(self.buffer.get_mut(filled..).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        let count = outcome.as_ref().map_or(0, |count| *count);
        self.buffer.truncate(filled + count);
        outcome.map_err(LineError::Io)
    }

    /// The next line as a value; None if the stream has ended. Skips empty lines.
    pub fn next_value<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let asked = Instant::now();
        loop {
            let Some(line) = self.next_line_since(asked)? else { return Ok(None) };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return match serde_json::from_slice(line) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(LineError::Unreadable(error.to_string())),
            };
        }
    }
}

/// Writes `value` as one line.
pub fn write_line<T: Serialize>(stream: &mut impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}
