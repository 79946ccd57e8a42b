//! Writes captures: classic pcap with nanoseconds, in the byte order of this machine.

use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;

use super::CaptureError;
use super::FRAME_BYTES_MAX;
use super::LINK_ETHERNET;
use super::pcap::MAGIC_NANOS;

/// Writes frames to a capture. Call [`CaptureWriter::finish`], or the last frames may be lost
/// without a word.
pub struct CaptureWriter<W: Write> {
    name: String,
    inner: W,
}

impl CaptureWriter<BufWriter<File>> {
    /// Creates a capture file, replacing one that is there.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn create(path: &Path) -> Result<CaptureWriter<BufWriter<File>>, CaptureError> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => CaptureWriter::new(&name, BufWriter::with_capacity(1 << 18, file)),
            Err(reason) => Err(CaptureError::Create { name, reason }),
        }
    }
}

impl<W: Write> CaptureWriter<W> {
    /// Starts a capture in `inner`; `name` is what errors call it.
    ///
    /// # Errors
    /// When writing fails.
    pub fn new(name: &str, mut inner: W) -> Result<CaptureWriter<W>, CaptureError> {
        let header = || -> io::Result<()> {
            inner.write_all(&MAGIC_NANOS.to_ne_bytes())?;
            for version in [2u16, 4] {
                inner.write_all(&version.to_ne_bytes())?;
            }
            for field in [0, 0, FRAME_BYTES_MAX as u32, LINK_ETHERNET] {
                inner.write_all(&field.to_ne_bytes())?;
            }
            Ok(())
        }();
        match header {
            Ok(()) => Ok(CaptureWriter { name: name.to_owned(), inner }),
            Err(reason) => Err(CaptureError::Write { name: name.to_owned(), reason }),
        }
    }

    /// Appends a frame. Frames longer than [`FRAME_BYTES_MAX`] are cut, as captures do.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&mut self, time_ns: u64, frame: &[u8]) -> Result<(), CaptureError> {
        let kept = &frame[..frame.len().min(FRAME_BYTES_MAX)];
        // The format's seconds end in the year 2106.
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let fraction = (time_ns % 1_000_000_000) as u32;
        let mut header = [0; 16];
        for (place, field) in header.chunks_exact_mut(4).zip([seconds, fraction, kept.len() as u32, frame.len() as u32])
        {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        let written = self.inner.write_all(&header).and_then(|()| self.inner.write_all(kept));
        written.map_err(|reason| CaptureError::Write { name: self.name.clone(), reason })
    }

    /// Writes out what is buffered and gives the destination back.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> Result<W, CaptureError> {
        match self.inner.flush() {
            Ok(()) => Ok(self.inner),
            Err(reason) => Err(CaptureError::Write { name: self.name, reason }),
        }
    }
}
