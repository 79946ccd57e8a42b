//! The classic format: a file header of 24 bytes, then frames with headers of 16 bytes.
//!
//! ```text
//!   file:  magic(4) major(2) minor(2) zone(4) sigfigs(4) snaplen(4) link type(4)
//!   frame: seconds(4) fraction(4) kept(4) original(4) bytes(kept)
//! ```

use std::io::Read;

use super::CaptureError;
use super::FRAME_BYTES_MAX;
use super::LINK_ETHERNET;
use super::RecordHeader;
use super::fields::Fields;
use super::fields::Order;
use super::source::Source;

/// Magic number of files with fractions in microseconds.
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
/// Magic number of files with fractions in nanoseconds.
pub(super) const MAGIC_NANOS: u32 = 0xa1b2_3c4d;

/// What the file header says.
pub(super) struct Pcap {
    order: Order,
    ns_per_fraction: u64,
}

impl Pcap {
    /// Reads the file header behind its magic number.
    pub(super) fn open<R: Read>(magic: [u8; 4], source: &mut Source<R>) -> Result<Pcap, CaptureError> {
        let (order, ns_per_fraction) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MAGIC_MICROS, _) => (Order::Little, 1_000),
            (MAGIC_NANOS, _) => (Order::Little, 1),
            (_, MAGIC_MICROS) => (Order::Big, 1_000),
            (_, MAGIC_NANOS) => (Order::Big, 1),
            _ => return Err(source.unknown_format(magic)),
        };
        let [a, b, _, _, _, _, _, _, _, _, _, _, _, _, _, _, w, x, y, z] = source.array::<20>("the file header")?;
        let major = order.u16([a, b]);
        if major != 2 {
            return Err(source.malformed("version", u64::from(major)));
        }
        // The upper half says whether frames end in a checksum; like padding, it does no harm
        // behind the IP packet.
        let link_type = order.u32([w, x, y, z]) & 0xffff;
        if link_type != LINK_ETHERNET {
            return Err(source.link_type(link_type));
        }
        Ok(Pcap { order, ns_per_fraction })
    }

    pub(super) fn next<R: Read>(
        &self,
        source: &mut Source<R>,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<RecordHeader>, CaptureError> {
        let Some(header) = source.header::<16>()? else { return Ok(None) };
        let mut fields = Fields { bytes: &header, order: self.order };
        let mut next = || fields.u32().unwrap_or_default();
        let (seconds, fraction, kept, original_len) = (next(), next(), next(), next());
        if kept as usize > FRAME_BYTES_MAX {
            return Err(source.malformed("length of a frame", u64::from(kept)));
        }
        source.bytes(bytes, kept as usize, "a frame")?;
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.ns_per_fraction;
        Ok(Some(RecordHeader { time_ns, original_len }))
    }
}
