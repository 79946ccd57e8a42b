//! Copies of packets for `natrix trace`: how a packet came, how it left, and its verdict.
//!
//! ```text
//!   worker: Tracer ──── full records ───► TraceReader: control thread
//!                  ◄─── empty records ───
//! ```
//!
//! Records go round between two rings, so the worker allocates nothing. When the reader is slow and no empty record is
//! left, the packet is not recorded but counted. With no tap open a burst costs one branch.

use core::net::Ipv4Addr;

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Instant;
use nat::Outcome;
use nat::Protocol;
use nat::Verdict;
use nat::packet::BURST_MAX;
use nat::packet::PacketMeta;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::verdict::VerdictKind;
use nat::view::STEPS_MAX;
use nat::view::Step;
use packet_io::Buffer;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;
use wire::ethernet::TAGGED_HEADER_LENGTH;
use wire::field;

use crate::links::Links;

/// Bytes kept of a frame at most.
pub const SNAP_BYTES_MAX: usize = 2_048;
/// Bytes kept at least: enough for the headers, so that a record can be put into words.
pub const SNAP_BYTES_MIN: usize = 128;
/// Traces one worker serves at a time.
pub const TAPS_MAX: usize = 4;

/// Which packets to record; all conditions that are set must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Transport.
    pub protocol: Option<Protocol>,
    /// Source or destination lies here, before or after translation.
    pub address: Option<Prefix>,
    /// Source or destination port or ICMP query identifier, before or after translation.
    pub port: Option<u16>,
    /// Interface the packet came in by.
    pub interface: Option<InterfaceId>,
    /// Its verdict.
    pub verdict: Option<Verdict>,
    /// Only what is dropped.
    pub dropped_only: bool,
}

/// What is known of one packet.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// When its verdict was given.
    pub time: Instant,
    /// The verdict. A packet that is lost behind this point (no neighbour, full queue) shows the verdict it had before.
    pub verdict: Verdict,
    /// Where it came in; None when no interface has its VLAN.
    pub interface: Option<InterfaceId>,
    /// Where it leaves.
    pub interface_out: Option<InterfaceId>,
    /// Length of the whole frame as it came.
    pub length: u32,
    /// The frame as it came, cut to the snap length. Packets taken over from another worker have a made-up link header.
    pub before: Vec<u8>,
    /// The frame as it leaves, with zeros for the destination station; empty when it does not.
    pub after: Vec<u8>,
    /// The decisions on its way through the engine, in order; empty for frames that ended at the link layer.
    pub steps: Vec<Step>,
    /// Bytes of link header in front of `before`.
    pub link_length: usize,
    /// Records that were lost just before this one.
    pub lost_before: u64,
}

/// The worker's end of one trace.
#[derive(Debug)]
pub struct Tap {
    id: u64,
    filter: TraceFilter,
    snap: usize,
    full: Producer<Box<TraceRecord>>,
    empty: Consumer<Box<TraceRecord>>,
    lost: u64,
}

/// The control thread's end of one trace.
#[derive(Debug)]
pub struct TraceReader {
    full: Consumer<Box<TraceRecord>>,
    empty: Producer<Box<TraceRecord>>,
}

/// The two ends of a trace with room for `records` records.
pub fn tap(id: u64, filter: TraceFilter, snap_bytes: usize, records: usize) -> (Tap, TraceReader) {
    let snap = snap_bytes.clamp(SNAP_BYTES_MIN, SNAP_BYTES_MAX);
    let (full_producer, full) = ring::channel(records);
    let (mut empty, empty_consumer) = ring::channel(records);
    for _ in 0..records {
        let record = TraceRecord {
            time: Instant::ORIGIN,
            verdict: Verdict::Local,
            interface: None,
            interface_out: None,
            length: 0,
            before: Vec::with_capacity(snap),
            after: Vec::with_capacity(snap),
            steps: Vec::with_capacity(STEPS_MAX),
            link_length: 0,
            lost_before: 0,
        };
        // The ring has room for as many.
        let _ = empty.try_push(Box::new(record));
    }
    (Tap { id, filter, snap, full: full_producer, empty: empty_consumer, lost: 0 }, TraceReader { full, empty })
}

impl TraceReader {
    /// Gives the next record to `take`. Returns false when there is none now.
    pub fn read(&mut self, take: impl FnOnce(&TraceRecord)) -> bool {
        let Some(record) = self.full.try_pop() else { return false };
        take(&record);
        // The ring has room for all records there are.
        let _ = self.empty.try_push(record);
        true
    }
}

/// The endpoints of an IP packet, as far as they can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IP protocol number.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Source and destination port; the query identifier twice for ICMP echo; None when there are none.
    pub ports: Option<(u16, u16)>,
}

impl Flow {
    /// Reads what is there; None when this is no IPv4 header.
    pub fn of(packet: &[u8]) -> Option<Flow> {
        let header_length = usize::from(packet.first()? & 0x0f) * 4;
        if packet.len() < 20 || packet.first()? >> 4 != 4 || header_length < 20 {
            return None;
        }
        let protocol = field::u8_at(packet, 9);
        let later_fragment = field::u16_at(packet, 6) & 0x1fff != 0;
        let transport = packet.get(header_length..).filter(|rest| rest.len() >= 8 && !later_fragment);
        let ports = transport.and_then(|rest| match protocol {
            6 | 17 => Some((field::u16_at(rest, 0), field::u16_at(rest, 2))),
            // Echo request and reply.
            1 if matches!(field::u8_at(rest, 0), 0 | 8) => Some((field::u16_at(rest, 4), field::u16_at(rest, 4))),
            _ => None,
        });
        Some(Flow {
            protocol,
            source: Ipv4Addr::from_bits(field::u32_at(packet, 12)),
            destination: Ipv4Addr::from_bits(field::u32_at(packet, 16)),
            ports,
        })
    }

    fn touches(&self, prefix: Prefix) -> bool {
        prefix.contains(self.source) || prefix.contains(self.destination)
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.is_some_and(|(source, destination)| source == port || destination == port)
    }
}

impl TraceFilter {
    /// Whether a packet with these properties is wanted.
    fn matches(
        &self,
        interface: Option<InterfaceId>,
        verdict: Verdict,
        before: Option<Flow>,
        after: Option<Flow>,
    ) -> bool {
        let either = |test: &dyn Fn(Flow) -> bool| before.is_some_and(test) || after.is_some_and(test);
        (!self.dropped_only || verdict.kind() == VerdictKind::Dropped)
            && self.verdict.is_none_or(|wanted| wanted == verdict)
            && self.interface.is_none_or(|wanted| Some(wanted) == interface)
            && self.protocol.is_none_or(|wanted| before.is_some_and(|flow| flow.protocol == wanted.number()))
            && self.address.is_none_or(|prefix| either(&|flow| flow.touches(prefix)))
            && self.port.is_none_or(|port| either(&|flow| flow.has_port(port)))
    }
}

/// What is remembered of a packet from before it was processed.
#[derive(Debug)]
struct Noted {
    link: [u8; TAGGED_HEADER_LENGTH],
    link_length: usize,
    packet: Vec<u8>,
    packet_length: usize,
    steps: Vec<Step>,
}

/// The worker's part: its open taps, and room for the packets of one burst as they came.
#[derive(Debug, Default)]
pub struct Tracer {
    taps: Vec<Tap>,
    noted: Vec<Noted>,
}

impl Tracer {
    /// Whether anybody is tracing.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Starts a trace; gives the tap back when there are as many as may be. Not for the packet path: it allocates.
    ///
    /// # Errors
    /// The tap, when [`TAPS_MAX`] are open.
    pub fn start(&mut self, tap: Tap) -> Result<(), Tap> {
        self.taps.retain(|tap| !tap.full.is_abandoned());
        if self.taps.len() >= TAPS_MAX {
            return Err(tap);
        }
        if self.noted.is_empty() {
            let empty = || Noted {
                link: [0; TAGGED_HEADER_LENGTH],
                link_length: 0,
                packet: Vec::with_capacity(SNAP_BYTES_MAX),
                packet_length: 0,
                steps: Vec::with_capacity(STEPS_MAX),
            };
            self.noted = (0..BURST_MAX).map(|_| empty()).collect();
        }
        self.taps.push(tap);
        Ok(())
    }

    /// Ends a trace, and those whose reader is gone.
    pub fn stop(&mut self, id: u64) {
        self.taps.retain(|tap| tap.id != id && !tap.full.is_abandoned());
    }

    /// Remembers the link header of the packet at `position` of the burst, before it is cut off.
    pub(crate) fn note_link_header(&mut self, position: usize, frame: &[u8], length: usize) {
        let Some(noted) = self.noted.get_mut(position) else { return };
        if let (Some(place), Some(header)) = (noted.link.get_mut(..length), frame.get(..length)) {
            place.copy_from_slice(header);
            noted.link_length = length;
        }
    }

    /// Remembers the packets of a burst as they came.
    pub(crate) fn note_packets<B: Buffer>(&mut self, burst: &[B]) {
        for (noted, buffer) in self.noted.iter_mut().zip(burst) {
            let bytes = buffer.bytes();
            noted.packet_length = bytes.len();
            noted.packet.clear();
            noted.packet.extend_from_slice(bytes.get(..SNAP_BYTES_MAX).unwrap_or(bytes));
        }
    }

    /// Where to write the steps of the packet at `position` of the burst.
    pub(crate) fn steps_of(&mut self, position: usize) -> Option<&mut Vec<Step>> {
        self.noted.get_mut(position).map(|noted| &mut noted.steps)
    }

    /// Records the packets of a burst that got their verdict.
    pub(crate) fn record_packets<B: Buffer>(
        &mut self,
        now: Instant,
        burst: &[B],
        metas: &[PacketMeta],
        results: &[(Outcome, Option<Verdict>)],
        links: &Links,
    ) {
        for (((noted, buffer), meta), (outcome, verdict)) in self.noted.iter_mut().zip(burst).zip(metas).zip(results) {
            let link_length = core::mem::take(&mut noted.link_length);
            let Some(verdict) = *verdict else { continue };
            let mut link = noted.link;
            let link_length = match (link_length, links.link(meta.ingress)) {
                // Taken over from another worker, which has cut off the link header.
                (0, Some(place)) => {
                    let header = links.header(place, links.station(place.port), ETHER_TYPE_IPV4);
                    header.write(&mut link).unwrap_or(0)
                }
                (length, _) => length,
            };
            let mut link_out = [0; TAGGED_HEADER_LENGTH];
            let out = match outcome {
                Outcome::Transmit { egress, length } => links.link(egress.interface).and_then(|place| {
                    let header = links.header(place, MacAddress::ZERO, ETHER_TYPE_IPV4);
                    let header_length = header.write(&mut link_out)?;
                    let packet = buffer.bytes().get(..usize::from(*length))?;
                    Some((egress.interface, header_length, packet))
                }),
                _ => None,
            };
            let before = Flow::of(&noted.packet);
            let after = out.and_then(|(_, _, packet)| Flow::of(packet));
            for tap in &mut self.taps {
                if !tap.filter.matches(Some(meta.ingress), verdict, before, after) {
                    continue;
                }
                let Some(mut record) = tap.take_empty() else { continue };
                record.time = now;
                record.verdict = verdict;
                record.interface = Some(meta.ingress);
                record.interface_out = out.map(|(interface, _, _)| interface);
                record.length = (link_length + noted.packet_length) as u32;
                record.link_length = link_length;
                record.steps.clear();
                record.steps.extend_from_slice(&noted.steps);
                let link = link.get(..link_length).unwrap_or_default();
                put(&mut record.before, &[link, &noted.packet], tap.snap);
                match out {
                    Some((_, header_length, packet)) => {
                        let link_out = link_out.get(..header_length).unwrap_or_default();
                        put(&mut record.after, &[link_out, packet], tap.snap);
                    }
                    None => record.after.clear(),
                }
                tap.give(record);
            }
        }
    }

    /// Records a frame that ended at the link layer.
    pub(crate) fn record_link(&mut self, now: Instant, interface: Option<InterfaceId>, frame: &[u8], verdict: Verdict) {
        for tap in &mut self.taps {
            if !tap.filter.matches(interface, verdict, None, None) {
                continue;
            }
            let Some(mut record) = tap.take_empty() else { continue };
            record.time = now;
            record.verdict = verdict;
            record.interface = interface;
            record.interface_out = None;
            record.length = frame.len() as u32;
            record.link_length = frame.len();
            record.steps.clear();
            put(&mut record.before, &[frame], tap.snap);
            record.after.clear();
            tap.give(record);
        }
    }
}

impl Tap {
    fn take_empty(&mut self) -> Option<Box<TraceRecord>> {
        let Some(mut record) = self.empty.try_pop() else {
            self.lost += 1;
            return None;
        };
        record.lost_before = core::mem::take(&mut self.lost);
        Some(record)
    }

    fn give(&mut self, record: Box<TraceRecord>) {
        // The ring has room for all records there are.
        let _ = self.full.try_push(record);
    }
}

/// Replaces the content of `place`, which has room for `snap` bytes, by the beginning of `parts`.
fn put(place: &mut Vec<u8>, parts: &[&[u8]], snap: usize) {
    place.clear();
    for part in parts {
        let room = snap - place.len().min(snap);
        place.extend_from_slice(part.get(..room).unwrap_or(part));
    }
}
