//! Writes capture files for `tcpdump` and Wireshark.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Link type of Ethernet frames.
const LINK_TYPE_ETHERNET: u32 = 1;
/// Maximum bytes of one frame.
pub(crate) const SNAP_BYTES: u32 = 65_535;

/// A capture file that is complete after each frame, so that an interrupt loses nothing.
#[derive(Debug)]
pub(crate) struct PcapWriter<W> {
    out: W,
}

impl PcapWriter<File> {
    /// Creates or truncates the file. Only its user and group read it: it names subscribers.
    pub(crate) fn create(path: &Path) -> io::Result<PcapWriter<File>> {
        PcapWriter::new(File::options().write(true).create(true).truncate(true).mode(0o640).open(path)?)
    }
}

impl<W: Write> PcapWriter<W> {
    /// Writes the header: magic for microseconds, version 2.4, no time zone, snapshot length, link
    /// type.
    pub(crate) fn new(mut out: W) -> io::Result<PcapWriter<W>> {
        let mut header = Vec::with_capacity(24);
        header.extend(0xa1b2_c3d4_u32.to_le_bytes());
        header.extend(2_u16.to_le_bytes());
        header.extend(4_u16.to_le_bytes());
        header.extend([0; 8]);
        header.extend(SNAP_BYTES.to_le_bytes());
        header.extend(LINK_TYPE_ETHERNET.to_le_bytes());
        out.write_all(&header)?;
        Ok(PcapWriter { out })
    }

    /// Adds one frame; `frame` may be only its first part.
    pub(crate) fn frame(&mut self, unix_micros: u64, frame: &[u8], length_bytes: u32) -> io::Result<()> {
        let captured = frame.get(..SNAP_BYTES as usize).unwrap_or(frame);
        // Seconds since 1970 are 32 bits in this format; they last until 2106.
        let seconds = u32::try_from(unix_micros / 1_000_000).unwrap_or(u32::MAX);
        let micros = (unix_micros % 1_000_000) as u32;
        let captured_bytes = captured.len() as u32;
        let mut record = Vec::with_capacity(16 + captured.len());
        record.extend(seconds.to_le_bytes());
        record.extend(micros.to_le_bytes());
        record.extend(captured_bytes.to_le_bytes());
        record.extend(length_bytes.max(captured_bytes).to_le_bytes());
        record.extend(captured);
        self.out.write_all(&record)
    }
}
