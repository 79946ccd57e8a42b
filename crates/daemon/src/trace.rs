//! Copies of packets for `natrix trace`: as received, as sent, and the verdict.
//!
//! ```text
//!   worker: Tracer ──── full records ───► TraceReader: control thread
//!                  ◄─── empty records ───
//! ```
//!
//! Records circulate between two rings, so the worker allocates nothing. If the reader is slow and
//! no empty record is left, the packet is counted and not recorded. Without a tap a burst costs one
//! branch.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use control::AnyPrefix;
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
use nat::verdict::VerdictKind;
use nat::view::STEPS_MAX;
use nat::view::Step;
use packet_io::Buffer;
use packet_io::Io;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::TAGGED_HEADER_LENGTH;
use wire::field;
use wire::icmp6;
use wire::ipv6;

use crate::outlet::Outlet;

/// Maximum bytes to keep of a frame.
pub const SNAP_BYTES_MAX: usize = 2_048;
/// Minimum bytes to keep: enough for the headers, which the text of a record needs.
pub const SNAP_BYTES_MIN: usize = 128;
/// Maximum traces of one worker at a time.
pub const TAPS_MAX: usize = 4;

/// Which packets to record. All given conditions must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Transport.
    pub protocol: Option<Protocol>,
    /// Prefix of source or destination, before or after translation.
    pub address: Option<AnyPrefix>,
    /// Source or destination port or ICMP query identifier, before or after translation.
    pub port: Option<u16>,
    /// Interface the packet arrived on.
    pub interface: Option<InterfaceId>,
    /// Its verdict.
    pub verdict: Option<Verdict>,
    /// Only dropped packets.
    pub dropped_only: bool,
}

/// The record of one packet.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Time of its verdict.
    pub time: Instant,
    /// The verdict. A packet that is lost later (no neighbour, full queue) shows its earlier
    /// verdict.
    pub verdict: Verdict,
    /// Interface it arrived on; None if no interface has its VLAN.
    pub interface: Option<InterfaceId>,
    /// Interface it leaves by.
    pub interface_out: Option<InterfaceId>,
    /// Length of the whole received frame.
    pub length: u32,
    /// The received frame, cut to the snap length. Packets from another worker have an artificial
    /// link header.
    pub before: Vec<u8>,
    /// The sent frame, with zeros for the destination station; empty if the packet does not leave.
    pub after: Vec<u8>,
    /// The decisions of the engine, in order; empty for frames that ended at the link layer.
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

/// The two ends of a trace for `records` records.
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
        // The ring has this capacity.
        let _ = empty.try_push(Box::new(record));
    }
    (Tap { id, filter, snap, full: full_producer, empty: empty_consumer, lost: 0 }, TraceReader { full, empty })
}

impl TraceReader {
    /// Passes the next record to `take`. Returns false if there is none now.
    pub fn read(&mut self, take: impl FnOnce(&TraceRecord)) -> bool {
        let Some(record) = self.full.try_pop() else { return false };
        take(&record);
        // The ring has capacity for all records.
        let _ = self.empty.try_push(record);
        true
    }
}

/// The readable endpoints of an IP packet; of one in a softwire, those of the packet inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IP protocol number.
    pub protocol: u8,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source and destination port, or twice the query identifier of an ICMP echo; None without
    /// ports.
    pub ports: Option<(u16, u16)>,
    /// Source and destination of the softwire.
    pub softwire: Option<(Ipv6Addr, Ipv6Addr)>,
}

impl Flow {
    /// Reads a packet; None if it has no IP header.
    pub fn of(packet: &[u8]) -> Option<Flow> {
        if packet.first()? >> 4 == 6 { Flow::of_ipv6(packet) } else { Flow::of_ipv4(packet) }
    }

    /// Reads the packet of a frame; None if it has none, or no IP header.
    fn in_frame(frame: &[u8]) -> Option<Flow> {
        let header = LinkHeader::parse(frame).ok()?;
        let is_ip = matches!(header.ether_type, ETHER_TYPE_IPV4 | ETHER_TYPE_IPV6);
        Flow::of(frame.get(header.payload_offset()..)?).filter(|_| is_ip)
    }

    fn of_ipv4(packet: &[u8]) -> Option<Flow> {
        let header_length = usize::from(packet.first()? & 0x0f) * 4;
        if packet.len() < 20 || packet.first()? >> 4 != 4 || header_length < 20 {
            return None;
        }
        let protocol = field::u8_at(packet, 9);
        let later_fragment = field::u16_at(packet, 6) & 0x1fff != 0;
        let transport = packet.get(header_length..).filter(|_| !later_fragment);
        Some(Flow {
            protocol,
            source: Ipv4Addr::from_bits(field::u32_at(packet, 12)).into(),
            destination: Ipv4Addr::from_bits(field::u32_at(packet, 16)).into(),
            ports: transport.and_then(|transport| ports_of(protocol, transport)),
            softwire: None,
        })
    }

    fn of_ipv6(packet: &[u8]) -> Option<Flow> {
        let view = ipv6::Ipv6::new_unchecked(packet.get(..ipv6::HEADER_LENGTH)?);
        let (source, destination) = (Ipv6Addr::from_bits(view.source()), Ipv6Addr::from_bits(view.destination()));
        let (protocol, offset, is_first) = match ipv6::chain(packet) {
            Ok(chain) => (chain.protocol, chain.offset, chain.fragment.is_none_or(|fragment| fragment.offset == 0)),
            Err(_) => (view.next_header(), packet.len(), false),
        };
        let transport = packet.get(offset..).filter(|_| is_first);
        if protocol == ipv6::PROTOCOL_IPV4
            && let Some(inner) = transport.and_then(Flow::of_ipv4)
        {
            return Some(Flow { softwire: Some((source, destination)), ..inner });
        }
        let ports = transport.and_then(|transport| ports_of(protocol, transport));
        Some(Flow { protocol, source: source.into(), destination: destination.into(), ports, softwire: None })
    }

    fn touches(&self, prefix: AnyPrefix) -> bool {
        let around = self.softwire.is_some_and(|(from, to)| prefix.contains(from.into()) || prefix.contains(to.into()));
        around || prefix.contains(self.source) || prefix.contains(self.destination)
    }

    fn is_of(&self, protocol: Protocol) -> bool {
        let is_icmp6 = self.protocol == ipv6::PROTOCOL_ICMP6 && protocol == Protocol::Icmp;
        is_icmp6 || self.protocol == protocol.number()
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.is_some_and(|(source, destination)| source == port || destination == port)
    }
}

/// Ports, or twice the query identifier of an echo.
fn ports_of(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    let transport = transport.get(..8)?;
    let query = field::u16_at(transport, 4);
    match (protocol, field::u8_at(transport, 0)) {
        (6 | 17, _) => Some((field::u16_at(transport, 0), field::u16_at(transport, 2))),
        (1, 0 | 8) => Some((query, query)),
        (ipv6::PROTOCOL_ICMP6, icmp6::TYPE_ECHO_REQUEST | icmp6::TYPE_ECHO_REPLY) => Some((query, query)),
        _ => None,
    }
}

const fn ether_type_of(packet: &[u8]) -> u16 {
    match packet.first() {
        Some(first) if *first >> 4 == 6 => ETHER_TYPE_IPV6,
        _ => ETHER_TYPE_IPV4,
    }
}

impl TraceFilter {
    /// True if a packet with these properties matches.
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
            && self.protocol.is_none_or(|wanted| before.is_some_and(|flow| flow.is_of(wanted)))
            && self.address.is_none_or(|prefix| either(&|flow| flow.touches(prefix)))
            && self.port.is_none_or(|port| either(&|flow| flow.has_port(port)))
    }
}

/// The received form of a packet, saved before processing.
#[derive(Debug)]
struct Noted {
    link: [u8; TAGGED_HEADER_LENGTH],
    link_length: usize,
    packet: Vec<u8>,
    packet_length: usize,
    steps: Vec<Step>,
}

/// The worker's part: its open taps, and the received packets of one burst.
#[derive(Debug, Default)]
pub struct Tracer {
    taps: Vec<Tap>,
    noted: Vec<Noted>,
}

impl Tracer {
    /// True if a trace is open.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Starts a trace. Not for the packet path, because it allocates.
    ///
    /// # Errors
    /// Returns the tap if [`TAPS_MAX`] are open.
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

    /// Ends a trace, and all traces without a reader.
    pub fn stop(&mut self, id: u64) {
        self.taps.retain(|tap| tap.id != id && !tap.full.is_abandoned());
    }

    /// Saves the link header of the packet at `position` of the burst, before it is cut off.
    pub(crate) fn note_link_header(&mut self, position: usize, frame: &[u8], length: usize) {
        let Some(noted) = self.noted.get_mut(position) else { return };
        if let (Some(place), Some(header)) = (noted.link.get_mut(..length), frame.get(..length)) {
            place.copy_from_slice(header);
            noted.link_length = length;
        }
    }

    /// Saves the received packets of a burst.
    pub(crate) fn note_packets<B: Buffer>(&mut self, burst: &mut [B], starts: &[u16]) {
        for ((noted, buffer), start) in self.noted.iter_mut().zip(burst).zip(starts) {
            let bytes = buffer.frame_mut().0;
            let bytes = bytes.get(usize::from(*start)..).unwrap_or_default();
            noted.packet_length = bytes.len();
            noted.packet.clear();
            noted.packet.extend_from_slice(bytes.get(..SNAP_BYTES_MAX).unwrap_or(bytes));
        }
    }

    /// The place for the steps of the packet at `position` of the burst.
    pub(crate) fn steps_of(&mut self, position: usize) -> Option<&mut Vec<Step>> {
        self.noted.get_mut(position).map(|noted| &mut noted.steps)
    }

    /// Records the packets of a burst after their verdicts.
    pub(crate) fn record_packets<I: Io>(
        &mut self,
        now: Instant,
        burst: &mut [I::Buffer],
        metas: &[PacketMeta],
        results: impl Iterator<Item = (Outcome, Option<Verdict>)>,
        outlet: &Outlet<I>,
    ) {
        let links = &outlet.links;
        for (((noted, buffer), meta), (outcome, verdict)) in self.noted.iter_mut().zip(burst).zip(metas).zip(results) {
            let link_length = core::mem::take(&mut noted.link_length);
            let Some(verdict) = verdict else { continue };
            let mut link = noted.link;
            let link_length = match (link_length, links.link(meta.ingress)) {
                // From another worker, which has cut off the link header.
                (0, Some(place)) => {
                    let header = links.header(place, links.station(place.port), ether_type_of(&noted.packet));
                    header.write(&mut link).unwrap_or(0)
                }
                (length, _) => length,
            };
            let mut link_out = [0; TAGGED_HEADER_LENGTH];
            let mut verdict = verdict;
            let out = match outcome {
                Outcome::Transmit { egress, start, length } => outlet.interface_of(egress).and_then(|interface| {
                    let packet: &[u8] = buffer.frame_mut().0.get(usize::from(start)..)?.get(..usize::from(length))?;
                    let interface = match packet.first_chunk::<{ ipv6::HEADER_LENGTH }>() {
                        Some(header) if header[0] >> 4 == 6 => {
                            let destination = ipv6::Ipv6::new_unchecked(header).destination();
                            let way = outlet.node.leads(interface, destination);
                            verdict = if way.is_some() { verdict } else { Verdict::NoRoute };
                            way?.0
                        }
                        _ => interface,
                    };
                    let header = links.header(links.link(interface)?, MacAddress::ZERO, ether_type_of(packet));
                    let header_length = header.write(&mut link_out)?;
                    Some((interface, header_length, packet))
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
        let flow = Flow::in_frame(frame);
        for tap in &mut self.taps {
            if !tap.filter.matches(interface, verdict, flow, None) {
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
        // The ring has capacity for all records.
        let _ = self.full.try_push(record);
    }
}

/// Replaces the content of `place`, at most `snap` bytes, by the beginning of `parts`.
fn put(place: &mut Vec<u8>, parts: &[&[u8]], snap: usize) {
    place.clear();
    for part in parts {
        let room = snap - place.len().min(snap);
        place.extend_from_slice(part.get(..room).unwrap_or(part));
    }
}
