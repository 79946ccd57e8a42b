//! The way out of a worker: neighbour, Ethernet header, transmit queue, or the ring to another
//! worker.
//!
//! The shard has counted a forwarded packet before the outlet sees it. When the packet then waits
//! for its neighbour, crosses to another worker or is dropped, the outlet takes that back: verdict,
//! bytes and protocol.
//! It cannot reach the shard's counters while the shard runs, so it writes corrections in a
//! [`Ledger`] that the worker adds at the end of the burst.

mod arp;
mod defence;
mod kernel;
mod ledger;
mod neighbours;
mod queues;

use std::sync::Arc;

use arrayvec::ArrayVec;
use nat::Instant;
use nat::Outcome;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::packet::Stage;
use nat::types::InterfaceId;
use nat::types::WorkerId;
use packet_io::BURST_MAX;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::TAGGED_HEADER_LENGTH;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::conflict::Conflicts;
use crate::crossing::Crossing;
use crate::crossing::Crossings;
use crate::ipv6::Node;
use crate::kernel::KernelEnd;
use crate::links::Links;
use crate::neighbour::Announcer;
use crate::neighbour::Answerer;
use crate::neighbour::NeighbourLimits;
use crate::neighbour::Neighbours;
use crate::next_hop::FrameHeader;
use crate::next_hop::NextHop;
use crate::worker::Decided;
use crate::worker::Ends;
use crate::worker::LinkMode;
use crate::worker::WorkerOptions;

use self::defence::Defences;
pub use self::ledger::Ledger;
pub(crate) use self::neighbours::NEIGHBOUR_ACTIONS_MAX;
pub(crate) use self::neighbours::UNDELIVERED_MAX;
pub(crate) use self::neighbours::Waiting;
pub(crate) use self::neighbours::give_up_waiting;
use self::queues::Mark;
use self::queues::Queue;

/// Bounds of the neighbours of IPv6. What waits has its own share of the buffers (RFC 6583 §6). For
/// one neighbour as many may wait as with ARP, but only while no other source needs the places.
const LIMITS6: NeighbourLimits =
    NeighbourLimits { neighbours_max: 4_096, unresolved_max: 256, waiting_per_neighbour_max: 128, waiting_max: 256 };

/// Without IPv6.
const LIMITS6_OFF: NeighbourLimits =
    NeighbourLimits { neighbours_max: 1, unresolved_max: 0, waiting_per_neighbour_max: 0, waiting_max: 0 };

/// Bursts of fewer packets wait in the queue for those of other ports, so that a card gets few
/// doorbells.
const WHOLE_MIN: usize = 16;

/// Packets and bytes of one logical interface, Ethernet headers included. Only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Frames received.
    pub received_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames not sent, because the transmit queue was full.
    pub unsent_packets: u64,
}

/// What happened on the links, beside the verdicts. Only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// ARP requests answered.
    pub arp_replies: u64,
    /// ARP requests and probes sent.
    pub arp_requests: u64,
    /// ARP packets (RFC 5227 §2.4) and neighbour messages in which another station claimed an
    /// address of ours.
    pub address_conflicts: u64,
    /// Packets Natrix made itself that found no neighbour, no buffer, or a full queue.
    pub originated_dropped: u64,
}

/// Everything between a worker's shard and its transmit queues.
pub struct Outlet<I: Io> {
    pub(crate) io: I,
    pub(crate) links: Arc<Links>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) answerer: Answerer,
    pub(crate) crossings: Crossings<I::Buffer>,
    pub(crate) ledger: Ledger,
    pub(crate) interfaces: Vec<InterfaceCounters>,
    pub(crate) counters: LinkCounters,
    /// The instant of the running poll.
    pub(crate) now: Instant,
    pub(crate) mode: LinkMode,
    /// Those of the shard's snapshot.
    pub(crate) next_hops: Vec<NextHop>,
    queues: Vec<Queue<I::Buffer>>,
    neighbours: Neighbours<Waiting<I::Buffer>>,
    /// Packets whose neighbour is absent, and the interface to it. Empty between two polls.
    pub(crate) undelivered: ArrayVec<(InterfaceId, I::Buffer), UNDELIVERED_MAX>,
    pub(crate) node: Node,
    /// What waits is a frame without destination station. Its bounds are its own, so that a scan of
    /// an IPv6 prefix takes nothing from IPv4 (RFC 6583 §6).
    pub(crate) neighbours6: Neighbours<Waiting<I::Buffer>, u128>,
    /// Some interface has IPv6.
    has_ipv6: bool,
    /// The way to the kernel, if any port has a device there.
    pub(crate) kernel: Option<Box<KernelEnd<I::Buffer>>>,
    pub(crate) announcer: Announcer,
    pub(crate) defences: Defences,
    /// The last time that another station had or claimed an own IPv6 address.
    pub(crate) conflicts: Conflicts,
}

impl<I: Io> Outlet<I> {
    #[allow(clippy::too_many_arguments, reason = "called in one place, which has all of these at hand")]
    pub(crate) fn new(
        io: I,
        links: &Arc<Links>,
        shared: &Shared,
        settings: &Arc<Settings>,
        ends: Ends<I::Buffer>,
        announces: impl Fn(InterfaceId) -> bool,
        options: &WorkerOptions,
        secret: u64,
        now: Instant,
    ) -> Outlet<I> {
        let queues = (0..links.port_count()).map(|port| {
            let can_transmit = io.can_transmit(PortIndex(port as u16));
            let sender = if can_transmit { None } else { ends.senders.get(port).copied().flatten() };
            Queue { burst: Burst::new(), marks: [Mark::default(); BURST_MAX], sender }
        });
        let mut node = Node::new(settings, shared.live_routes(), &ends.own, &announces, secret);
        node.await_links();
        let mut outlet = Outlet {
            has_ipv6: !node.is_off(),
            neighbours6: Neighbours::new(if node.is_off() { LIMITS6_OFF } else { LIMITS6 }, secret),
            node,
            queues: queues.collect(),
            next_hops: NextHop::all_of(shared),
            answerer: Answerer::new(settings),
            crossings: ends.crossings,
            ledger: Ledger::new(),
            interfaces: vec![InterfaceCounters::default(); links.interface_count()],
            counters: LinkCounters::default(),
            now,
            mode: options.mode,
            neighbours: Neighbours::new(options.neighbours, secret),
            undelivered: ArrayVec::new(),
            kernel: None,
            announcer: Announcer::new(settings, now, announces),
            defences: Defences::default(),
            conflicts: Conflicts::default(),
            io,
            links: Arc::clone(links),
            settings: Arc::clone(settings),
        };
        outlet.place_next_hops();
        outlet
    }

    /// Finds out where the next hops of another snapshot are.
    pub(crate) fn place_next_hops(&mut self) {
        for hop in &mut self.next_hops {
            hop.place(&self.links);
        }
    }

    /// Takes over next hops that have changed in the live routes.
    pub(crate) fn refresh_next_hops(&mut self, shared: &Shared) {
        for (known, now) in self.next_hops.iter_mut().zip(shared.next_hops()) {
            if !known.is(&now) {
                *known = NextHop::new(&now);
                known.place(&self.links);
            }
        }
    }

    /// Whether a frame is for this station and not for others.
    #[inline]
    pub(crate) fn is_for_us(&self, port: PortIndex, header: &LinkHeader) -> bool {
        header.destination == self.links.station(port)
            || (self.mode == LinkMode::Offline && header.destination.is_unicast())
    }

    /// Where the packet for the shard begins in a frame for this station, and the interface the
    /// frame is of. An IPv6 packet is one if it goes to an IPv4 host, or ends a softwire.
    #[inline(never)]
    pub(crate) fn packet_for_us(&self, shared: &Shared, port: PortIndex, frame: &[u8]) -> Option<(InterfaceId, usize)> {
        let header = LinkHeader::parse(frame).ok()?;
        let interface = self.links.interface(port, header.vlan)?;
        let is_packet = match header.ether_type {
            ETHER_TYPE_IPV4 => true,
            ETHER_TYPE_IPV6 => shared.takes_ipv6(interface, frame.get(header.payload_offset()..)?),
            _ => false,
        };
        let is_packet = is_packet && self.is_for_us(port, &header);
        is_packet.then_some((interface, header.payload_offset()))
    }

    /// Counts frames received on an interface, and their bytes.
    #[inline]
    pub(crate) fn count_received(&mut self, (interface, packets, bytes): (InterfaceId, u64, u64)) {
        if let Some(counters) = self.interfaces.get_mut(interface.index()) {
            counters.received_packets += packets;
            counters.received_bytes += bytes;
        }
    }

    /// The interface a next hop is on.
    pub(crate) fn interface_of(&self, egress: Egress) -> Option<InterfaceId> {
        self.next_hops.get(egress.next_hop.index()).map(|hop| hop.interface)
    }

    /// Sends a burst in which each packet leaves by the same next hop, without a queue between.
    /// Returns false, having sent nothing, for any other burst.
    #[inline]
    pub(crate) fn send_whole(&mut self, burst: &mut Burst<I::Buffer>, results: &[Decided]) -> bool {
        let Some((Outcome::Transmit { egress: first, .. }, ..)) = results.first() else { return false };
        let Some(hop) = self.next_hops.get(first.next_hop.index()) else { return false };
        let Some(header) = hop.ready(self.neighbours.generation()).copied() else { return false };
        let (port, interface) = (hop.port, hop.interface);
        let leaves = |(outcome, ..): &Decided| matches!(outcome, Outcome::Transmit { egress, .. } if egress == first);
        if burst.len() < WHOLE_MIN || !results.iter().all(leaves) {
            return false;
        }
        let mut is_written = true;
        let mut bytes = 0;
        for (buffer, (outcome, ..)) in burst.iter_mut().zip(results) {
            let Outcome::Transmit { start, length, .. } = *outcome else { continue };
            let written = header.write(buffer, start, length);
            is_written &= written.is_some();
            bytes += u64::from(written.unwrap_or(0));
        }
        if !is_written {
            // Without room for its header one has to be dropped. Nothing of the others was changed
            // that is not changed again.
            return false;
        }
        // What is queued there was decided before.
        self.flush(port);
        self.io.transmit(port, burst);
        let unsent = burst.len();
        let sent = results.len() - unsent;
        bytes -= burst.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        for (buffer, (_, verdict, _)) in burst.iter().zip(results.iter().skip(sent)) {
            self.drop_packet(*verdict, packet_of(buffer.bytes()), Verdict::TransmitFull);
        }
        burst.clear();
        if let Some(interface) = self.interfaces.get_mut(interface.index()) {
            interface.sent_packets += sent as u64;
            interface.sent_bytes += bytes;
            interface.unsent_packets += unsent as u64;
        }
        true
    }

    /// Sends the IP packet of `length` bytes that begins at `start` of its buffer.
    #[inline(always)]
    pub(crate) fn send_packet(
        &mut self,
        mut buffer: I::Buffer,
        egress: Egress,
        (start, length): (u16, u16),
        verdict: Option<Verdict>,
    ) {
        if let Some(hop) = self.next_hops.get(egress.next_hop.index())
            && let Some(header) = hop.ready(self.neighbours.generation())
            && let Some(length) = header.write(&mut buffer, start, length)
        {
            let (port, interface) = (hop.port, hop.interface);
            return self.enqueue(port, buffer, Mark { interface, verdict, length });
        }
        self.send_by_neighbour(buffer, egress, (start, length), verdict);
    }

    /// Sends an IP packet whose buffer is exactly as long as the packet to a station.
    fn send_to(&mut self, buffer: I::Buffer, interface: InterfaceId, to: MacAddress, verdict: Option<Verdict>) {
        let (Some(link), Some(header)) = (self.links.link(interface), FrameHeader::of(&self.links, interface)) else {
            return self.drop_packet(verdict, buffer.bytes(), Verdict::NoRoute);
        };
        self.send_frame_to(buffer, &header.to(to), link.port, interface, verdict);
    }

    /// Writes the Ethernet header in front of an IP packet whose buffer is exactly as long as the
    /// packet, and puts the frame into the transmit queue.
    #[inline]
    fn send_frame_to(
        &mut self,
        mut buffer: I::Buffer,
        header: &FrameHeader,
        port: PortIndex,
        interface: InterfaceId,
        verdict: Option<Verdict>,
    ) {
        let (frame, start) = buffer.frame_mut();
        let length = frame.len() as u16 - start;
        match header.write(&mut buffer, start, length) {
            Some(length) => self.enqueue(port, buffer, Mark { interface, verdict, length }),
            None => self.drop_packet(verdict, buffer.bytes(), Verdict::NoBuffer),
        }
    }

    /// Sends a complete frame; one that Natrix made itself has no verdict.
    pub(crate) fn send_frame(
        &mut self,
        port: PortIndex,
        interface: InterfaceId,
        buffer: I::Buffer,
        verdict: Option<Verdict>,
    ) {
        match self.queues.get(port.index()) {
            Some(Queue { sender: Some(sender), .. }) => {
                self.cross(*sender, Crossing::Frame { buffer, interface, verdict }, verdict);
            }
            _ => {
                let mark = Mark { interface, verdict, length: buffer.len() as u16 };
                self.enqueue(port, buffer, mark);
            }
        }
    }

    /// Counts a packet that does not leave. `counted`: its verdict so far.
    #[cold]
    pub(crate) fn drop_packet(&mut self, counted: Option<Verdict>, packet: &[u8], reason: Verdict) {
        drop_packet(&mut self.ledger, &mut self.counters, (counted, packet), reason);
    }

    /// Announcements, requests, timeouts.
    #[inline]
    pub(crate) fn maintain(&mut self) {
        while let Some(announcement) = self.announcer.next(self.now) {
            // RFC 5227 §2.1.1: a probe has no sender address, so that it spoils no cache.
            let sender = if announcement.probe { 0 } else { announcement.address };
            self.send_request(announcement.interface, sender, announcement.address, None);
        }
        self.act_for_neighbours();
        if self.has_ipv6 {
            self.maintain6();
        }
    }

    pub(crate) fn frame(&mut self, header: &LinkHeader, payload: &[u8]) -> Option<I::Buffer> {
        let mut bytes = [0; TAGGED_HEADER_LENGTH];
        let length = header.write(&mut bytes)?;
        let mut buffer = self.io.allocate()?;
        buffer.fill(&[bytes.get(..length)?, payload]).then_some(buffer)
    }
}

/// As [`Outlet::drop_packet`].
fn drop_packet(
    ledger: &mut Ledger,
    counters: &mut LinkCounters,
    (counted, packet): (Option<Verdict>, &[u8]),
    reason: Verdict,
) {
    match counted {
        Some(counted) => {
            ledger.count(counted, packet, -1);
            ledger.add(reason, 1);
        }
        None => counters.originated_dropped += 1,
    }
}

/// The IP packet in a frame of this worker.
pub(crate) fn packet_of(frame: &[u8]) -> &[u8] {
    let header = LinkHeader::parse(frame);
    header.ok().and_then(|header| frame.get(header.payload_offset()..)).unwrap_or_default()
}

/// Stands for the source of a packet in the neighbour cache. All packets of a softwire come from
/// its AFTR, so there it is the inner source.
pub(crate) fn source_of(packet: &[u8]) -> u64 {
    match Ipv6::new_checked(packet) {
        Ok(outer) if outer.next_header() == ipv6::PROTOCOL_IPV4 => source_of_ipv4(outer.payload()),
        Ok(packet) => (packet.source() >> 64 ^ packet.source()) as u64,
        Err(_) => source_of_ipv4(packet),
    }
}

fn source_of_ipv4(packet: &[u8]) -> u64 {
    Ipv4::new_checked(packet).map_or(0, |packet| packet.source().into())
}

/// The station of a host where there is none to ask.
fn made_up_station(address: u32) -> MacAddress {
    let [a, b, c, d] = address.to_be_bytes();
    MacAddress([2, 0, a, b, c, d])
}

/// RFC 1112 §6.4.
fn station_of_group(group: u32) -> MacAddress {
    let [_, a, b, c] = group.to_be_bytes();
    MacAddress([0x01, 0x00, 0x5e, a & 0x7f, b, c])
}

impl<I: Io> Sink for Outlet<I> {
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool {
        let Some(mut buffer) = self.io.allocate() else {
            self.counters.originated_dropped += 1;
            return false;
        };
        if !buffer.fill(parts) {
            self.counters.originated_dropped += 1;
            return false;
        }
        let (frame, start) = buffer.frame_mut();
        let length = frame.len() as u16 - start;
        self.send_packet(buffer, egress, (start, length), None);
        true
    }

    fn hand_off(&mut self, worker: WorkerId, meta: PacketMeta, parts: &[&[u8]]) -> bool {
        let Some(mut buffer) = self.io.allocate() else { return false };
        if !buffer.fill(parts) {
            return false;
        }
        let ring = self.crossings.to.get_mut(worker.index()).and_then(Option::as_mut);
        // The shard counts this one itself.
        ring.is_some_and(|ring| {
            let reserved = if meta.stage == Stage::PortControl { ring.capacity() / 2 } else { 0 };
            ring.room(reserved + 1) > reserved && ring.try_push(Crossing::Process { buffer, meta }).is_ok()
        })
    }
}
