//! The newer format: sections of blocks, several interfaces with clocks of their own.
//!
//! ```text
//!   block: type(4) length(4) body(length - 12) length(4)
//! ```
//! Blocks other than section, interface and packets are passed over.

use std::io::Read;

use super::CaptureError;
use super::FRAME_BYTES_MAX;
use super::LINK_ETHERNET;
use super::RecordHeader;
use super::fields::Fields;
use super::fields::Order;
use super::source::Source;

/// Block type that starts a section; the same in both byte orders.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET_OBSOLETE: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Shows the byte order of a section.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;

/// Bytes of type and both lengths.
const BLOCK_OVERHEAD: u32 = 12;
/// Longest block that is read rather than passed over: a frame, its header and options.
const BLOCK_BYTES_MAX: u32 = FRAME_BYTES_MAX as u32 + (1 << 16);
/// Most interfaces in a section.
const INTERFACES_MAX: usize = 4096;

/// A clock's unit: a power of ten or of two below the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clock {
    units_per_second: u64,
    offset_seconds: i64,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u16,
    snaplen: u32,
    clock: Clock,
}

/// What the section so far says.
pub(super) struct PcapNg {
    order: Order,
    interfaces: Vec<Interface>,
    /// Simple packets carry no time; they get that of the packet before.
    last_time_ns: u64,
    block: Vec<u8>,
}

impl PcapNg {
    /// Reads the first section header behind its block type.
    pub(super) fn open<R: Read>(source: &mut Source<R>) -> Result<PcapNg, CaptureError> {
        let mut file = PcapNg { order: Order::Little, interfaces: Vec::new(), last_time_ns: 0, block: Vec::new() };
        file.section(source)?;
        Ok(file)
    }

    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<RecordHeader>, CaptureError> {
        // Each turn consumes a block of at least twelve bytes, so the loop ends with the file.
        while let Some(kind) = source.header::<4>()? {
            let kind = self.order.u32(kind);
            if kind == SECTION_HEADER {
                self.section(source)?;
                continue;
            }
            let length = self.order.u32(source.array("a block")?);
            let body = length.checked_sub(BLOCK_OVERHEAD).filter(|body| body % 4 == 0);
            let Some(body) = body else { return Err(source.malformed("length of a block", u64::from(length))) };
            if !matches!(kind, INTERFACE_DESCRIPTION | PACKET_OBSOLETE | SIMPLE_PACKET | ENHANCED_PACKET) {
                source.skip(u64::from(body), "a block")?;
                self.trailer(length, source)?;
                continue;
            }
            if length > BLOCK_BYTES_MAX {
                return Err(source.malformed("length of a block", u64::from(length)));
            }
            source.bytes(&mut self.block, body as usize, "a block")?;
            self.trailer(length, source)?;
            let fields = Fields { bytes: &self.block, order: self.order };
            if kind == INTERFACE_DESCRIPTION {
                let interface = interface(fields, source)?;
                if self.interfaces.len() >= INTERFACES_MAX {
                    return Err(source.malformed("number of interfaces", self.interfaces.len() as u64 + 1));
                }
                self.interfaces.push(interface);
                continue;
            }
            let packet = packet(kind, fields, &self.interfaces, self.last_time_ns, source)?;
            bytes.clear();
            bytes.extend_from_slice(packet.bytes);
            self.last_time_ns = packet.time_ns;
            return Ok(Some(RecordHeader { time_ns: packet.time_ns, original_len: packet.original_len }));
        }
        Ok(None)
    }

    /// Reads a section header behind its block type.
    fn section<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), CaptureError> {
        let length = source.array::<4>("a section header")?;
        let magic = source.array::<4>("a section header")?;
        self.order = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (BYTE_ORDER_MAGIC, _) => Order::Little,
            (_, BYTE_ORDER_MAGIC) => Order::Big,
            (other, _) => return Err(source.malformed("byte order of a section", u64::from(other))),
        };
        let length = self.order.u32(length);
        // Version, section length and options follow; the byte-order magic is already read.
        let rest = length.checked_sub(BLOCK_OVERHEAD + 4).filter(|rest| *rest >= 12 && rest % 4 == 0);
        let Some(rest) = rest else { return Err(source.malformed("length of a section header", u64::from(length))) };
        let [a, b, _, _] = source.array::<4>("a section header")?;
        let major = self.order.u16([a, b]);
        if major != 1 {
            return Err(source.malformed("version of a section", u64::from(major)));
        }
        source.skip(u64::from(rest) - 4, "a section header")?;
        self.interfaces.clear();
        self.trailer(length, source)
    }

    /// Reads the length at the end of a block.
    fn trailer<R: Read>(&self, length: u32, source: &mut Source<R>) -> Result<(), CaptureError> {
        let repeated = self.order.u32(source.array("a block")?);
        if repeated == length {
            Ok(())
        } else {
            Err(source.malformed("length at the end of a block", u64::from(repeated)))
        }
    }
}

struct Packet<'a> {
    time_ns: u64,
    original_len: u32,
    bytes: &'a [u8],
}

fn packet<'a, R: Read>(
    kind: u32,
    mut fields: Fields<'a>,
    interfaces: &[Interface],
    last_time_ns: u64,
    source: &Source<R>,
) -> Result<Packet<'a>, CaptureError> {
    let short = || source.malformed("length of a packet block", 0);
    let index = match kind {
        ENHANCED_PACKET => fields.u32().ok_or_else(short)?,
        PACKET_OBSOLETE => {
            let index = fields.u16().ok_or_else(short)?;
            fields.u16().ok_or_else(short)?;
            u32::from(index)
        }
        _ => 0,
    };
    let Some(interface) = interfaces.get(index as usize) else {
        return Err(source.malformed("interface of a packet", u64::from(index)));
    };
    if u32::from(interface.link_type) != LINK_ETHERNET {
        return Err(source.link_type(u32::from(interface.link_type)));
    }
    let (time_ns, kept, original_len) = if kind == SIMPLE_PACKET {
        let original = fields.u32().ok_or_else(short)?;
        // A snapshot length of zero means no limit.
        let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        (last_time_ns, original.min(limit), original)
    } else {
        let high = fields.u32().ok_or_else(short)?;
        let low = fields.u32().ok_or_else(short)?;
        let kept = fields.u32().ok_or_else(short)?;
        let original = fields.u32().ok_or_else(short)?;
        (interface.clock.nanoseconds(u64::from(high) << 32 | u64::from(low)), kept, original)
    };
    if kept as usize > FRAME_BYTES_MAX {
        return Err(source.malformed("length of a frame", u64::from(kept)));
    }
    match fields.bytes.get(..kept as usize) {
        Some(bytes) => Ok(Packet { time_ns, original_len, bytes }),
        None => Err(source.malformed("length of a frame", u64::from(kept))),
    }
}

fn interface<R: Read>(mut fields: Fields<'_>, source: &Source<R>) -> Result<Interface, CaptureError> {
    let short = || source.malformed("length of an interface block", 0);
    let link_type = fields.u16().ok_or_else(short)?;
    fields.u16().ok_or_else(short)?;
    let snaplen = fields.u32().ok_or_else(short)?;
    let mut clock = Clock { units_per_second: 1_000_000, offset_seconds: 0 };
    // Options: code(2) length(2) value, padded to four bytes; code 0 ends them. What is cut off is
    // passed over.
    while let (Some(code), Some(length)) = (fields.u16(), fields.u16()) {
        let padded = usize::from(length).next_multiple_of(4);
        let (Some(value), Some(rest)) = (fields.bytes.get(..usize::from(length)), fields.bytes.get(padded..)) else {
            break;
        };
        match (code, value) {
            (0, _) => break,
            (OPTION_TIME_RESOLUTION, [resolution]) => {
                clock.units_per_second = units_per_second(*resolution)
                    .ok_or_else(|| source.malformed("time resolution of an interface", u64::from(*resolution)))?;
            }
            (OPTION_TIME_OFFSET, value) => {
                let seconds = Fields { bytes: value, order: fields.order }.u64();
                // Two's complement, as the format has it.
                clock.offset_seconds = seconds.unwrap_or_default() as i64;
            }
            _ => {}
        }
        fields.bytes = rest;
    }
    Ok(Interface { link_type, snaplen, clock })
}

/// The top bit says power of two, otherwise power of ten.
fn units_per_second(resolution: u8) -> Option<u64> {
    let exponent = u32::from(resolution & 0x7f);
    if resolution & 0x80 == 0 { 10u64.checked_pow(exponent) } else { 1u64.checked_shl(exponent) }
}

impl Clock {
    /// Nanoseconds since 1970, within what 64 bits hold.
    fn nanoseconds(self, units: u64) -> u64 {
        let since_offset = u128::from(units) * 1_000_000_000 / u128::from(self.units_per_second);
        let total = since_offset as i128 + i128::from(self.offset_seconds) * 1_000_000_000;
        u64::try_from(total.max(0)).unwrap_or(u64::MAX)
    }
}
