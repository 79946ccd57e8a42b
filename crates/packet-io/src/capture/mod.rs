//! Capture files: pcap (microseconds and nanoseconds, both byte orders) and pcapng in, pcap out.
//!
//! Files are read as a stream and trusted in nothing: lengths are checked before memory is taken,
//! and a bad file gives a [`CaptureError`] that says where it is bad.

mod error;
mod fields;
mod pcap;
mod pcapng;
mod source;
mod writer;

use std::fs::File;
use std::io::BufReader;
use std::io::Read;
use std::path::Path;

pub use error::CaptureError;
use source::Source;
pub use writer::CaptureWriter;

/// Longest frame a capture may hold, bytes: the largest snapshot length that capture tools use.
pub const FRAME_BYTES_MAX: usize = 262_144;

/// Link type of Ethernet frames.
const LINK_ETHERNET: u32 = 1;

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, nanoseconds since 1970 (or since whatever origin the capturing clock
    /// had).
    pub time_ns: u64,
    /// The bytes that were kept.
    pub bytes: &'a [u8],
    /// How long the frame was on the wire; more than is kept when the capture cut it.
    pub original_len: u32,
}

/// A record without its bytes, which the reader holds.
struct RecordHeader {
    time_ns: u64,
    original_len: u32,
}

enum Format {
    Pcap(pcap::Pcap),
    PcapNg(pcapng::PcapNg),
}

/// Reads the frames of a capture in the order of the file.
pub struct CaptureReader<R: Read> {
    source: Source<R>,
    format: Format,
    bytes: Vec<u8>,
}

impl CaptureReader<BufReader<File>> {
    /// Opens a capture file.
    ///
    /// # Errors
    /// When it can't be read or is no capture of Ethernet frames.
    pub fn open(path: &Path) -> Result<CaptureReader<BufReader<File>>, CaptureError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => CaptureReader::new(&name, BufReader::with_capacity(1 << 18, file)),
            Err(reason) => Err(CaptureError::Open { name, reason }),
        }
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads a capture from `source`; `name` is what errors call it.
    ///
    /// # Errors
    /// When the first bytes are no capture of Ethernet frames.
    pub fn new(name: &str, source: R) -> Result<CaptureReader<R>, CaptureError> {
        let mut source = Source::new(name, source);
        let magic = source.header::<4>()?.ok_or_else(|| source.empty())?;
        let format = if magic == pcapng::SECTION_HEADER.to_be_bytes() {
            Format::PcapNg(pcapng::PcapNg::open(&mut source)?)
        } else {
            Format::Pcap(pcap::Pcap::open(magic, &mut source)?)
        };
        Ok(CaptureReader { source, format, bytes: Vec::new() })
    }

    /// The next frame, or none at the end.
    ///
    /// # Errors
    /// When the file is damaged from here on.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let header = match &mut self.format {
            Format::Pcap(format) => format.next(&mut self.source, &mut self.bytes)?,
            Format::PcapNg(format) => format.next(&mut self.source, &mut self.bytes)?,
        };
        let record = |header: RecordHeader| Record {
            time_ns: header.time_ns,
            bytes: &self.bytes,
            original_len: header.original_len,
        };
        Ok(header.map(record))
    }
}

#[cfg(test)]
mod tests;
