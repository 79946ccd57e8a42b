//! The bytes of a capture, with a name and a position for error messages.

use std::io;
use std::io::Read;

use super::CaptureError;

pub(super) struct Source<R: Read> {
    name: String,
    inner: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(name: &str, inner: R) -> Source<R> {
        Source { name: name.to_owned(), inner, offset: 0 }
    }

    /// The next `N` bytes, or none when the file ends before the first of them.
    pub(super) fn header<const N: usize>(&mut self) -> Result<Option<[u8; N]>, CaptureError> {
        let mut bytes = [0; N];
        match self.read(&mut bytes)? {
            0 => Ok(None),
            read if read == N => Ok(Some(bytes)),
            _ => Err(self.truncated("a header")),
        }
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CaptureError> {
        let mut bytes = [0; N];
        if self.read(&mut bytes)? == N { Ok(bytes) } else { Err(self.truncated(what)) }
    }

    /// Replaces the content of `bytes` by the next `len`. The caller has checked that `len` is not
    /// absurd.
    pub(super) fn bytes(&mut self, bytes: &mut Vec<u8>, len: usize, what: &'static str) -> Result<(), CaptureError> {
        bytes.resize(len, 0);
        if self.read(bytes)? == len { Ok(()) } else { Err(self.truncated(what)) }
    }

    /// Passes over the next `len` bytes.
    pub(super) fn skip(&mut self, len: u64, what: &'static str) -> Result<(), CaptureError> {
        let result = io::copy(&mut self.inner.by_ref().take(len), &mut io::sink());
        let skipped = result.map_err(|reason| self.failed(reason))?;
        self.offset += skipped;
        if skipped == len { Ok(()) } else { Err(self.truncated(what)) }
    }

    /// Fills `bytes` as far as the file goes; returns how far.
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, CaptureError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.inner.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
                Err(reason) => return Err(self.failed(reason)),
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }

    pub(super) fn empty(&self) -> CaptureError {
        CaptureError::Empty { name: self.name.clone() }
    }

    pub(super) fn unknown_format(&self, magic: [u8; 4]) -> CaptureError {
        CaptureError::UnknownFormat { name: self.name.clone(), magic: u32::from_be_bytes(magic) }
    }

    pub(super) fn link_type(&self, link_type: u32) -> CaptureError {
        CaptureError::LinkType { name: self.name.clone(), link_type }
    }

    pub(super) fn malformed(&self, what: &'static str, value: u64) -> CaptureError {
        CaptureError::Malformed { name: self.name.clone(), what, value, offset: self.offset }
    }

    fn truncated(&self, what: &'static str) -> CaptureError {
        CaptureError::Truncated { name: self.name.clone(), what, offset: self.offset }
    }

    fn failed(&self, reason: io::Error) -> CaptureError {
        CaptureError::Read { name: self.name.clone(), offset: self.offset, reason }
    }
}
