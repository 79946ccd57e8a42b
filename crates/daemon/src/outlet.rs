//! The way out of a worker: neighbour, Ethernet header, transmit queue, or the ring to another
//! worker.
//!
//! The shard has counted a forwarded packet before the outlet sees it. When the packet then waits
//! for its neighbour, crosses to another worker or is dropped, the outlet takes that back: verdict,
//! bytes and protocol.
//! It cannot reach the shard's counters while the shard runs, so it writes corrections in a
//! [`Ledger`] that the worker adds at the end of the burst.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use std::sync::Arc;

use nat::Counters;
use nat::Duration;
use nat::Instant;
use nat::Outcome;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::packet::Stage;
use nat::types::InterfaceId;
use nat::types::WorkerId;
use nat::verdict::Forwarded;
use nat::view::Query;
use packet_io::BURST_MAX;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use wire::arp::Message;
use wire::ethernet::ETHER_TYPE_ARP;
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
use crate::crossing::Neighbour;
use crate::ipv6::Node;
use crate::kernel::KernelEnd;
use crate::kernel::end::Ask;
use crate::kernel::end::Down;
use crate::kernel::end::Given;
use crate::kernel::end::Told;
use crate::links::Links;
use crate::neighbour::Action;
use crate::neighbour::Announcer;
use crate::neighbour::Answerer;
use crate::neighbour::AnyView;
use crate::neighbour::NeighbourLimits;
use crate::neighbour::Neighbours;
use crate::neighbour::Refusal;
use crate::neighbour::RouterView;
use crate::neighbour::cache::NeighbourView;
use crate::next_hop::FrameHeader;
use crate::next_hop::NextHop;
use crate::worker::Decided;
use crate::worker::Ends;
use crate::worker::LinkMode;
use crate::worker::WorkerOptions;

/// Neighbour actions taken in one poll: bounds the time a storm of timeouts can take from the
/// packets.
pub(crate) const NEIGHBOUR_ACTIONS_MAX: usize = 64;
/// Time between two announcements of an address that somebody else claims (RFC 5227 §1.1
/// DEFEND_INTERVAL).
pub(crate) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Bounds of the neighbours of IPv6. What waits has its own share of the buffers (RFC 6583 §6). For
/// one neighbour as many may wait as with ARP, but only while no other source needs the places.
const LIMITS6: NeighbourLimits =
    NeighbourLimits { neighbours_max: 4_096, unresolved_max: 256, waiting_per_neighbour_max: 128, waiting_max: 256 };
/// Without IPv6.
const LIMITS6_OFF: NeighbourLimits =
    NeighbourLimits { neighbours_max: 1, unresolved_max: 0, waiting_per_neighbour_max: 0, waiting_max: 0 };

/// Frames of the kernel taken in one poll, behind all packets.
const KERNEL_FRAMES_MAX: usize = 32;
/// News of neighbours taken in one poll.
const KERNEL_NEWS_MAX: usize = 64;

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
    /// ARP packets (RFC 5227 §2.4) and neighbour messages in which somebody else claimed an address
    /// of ours.
    pub address_conflicts: u64,
    /// Packets Natrix made itself that found no neighbour, no buffer, or a full queue.
    pub originated_dropped: u64,
}

/// Verdicts to add and to take back.
#[derive(Debug)]
pub struct Ledger {
    dirty: bool,
    verdicts: [i64; Verdict::COUNT],
    bytes_forwarded: [i64; 3],
    translated: [i64; Protocol::COUNT],
    pub(crate) pending: i64,
    handed_off: u64,
}

impl Ledger {
    fn new() -> Ledger {
        Ledger {
            dirty: false,
            verdicts: [0; Verdict::COUNT],
            bytes_forwarded: [0; 3],
            translated: [0; Protocol::COUNT],
            pending: 0,
            handed_off: 0,
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, verdict: Verdict, count: i64) {
        self.dirty = true;
        if let Some(place) = self.verdicts.get_mut(verdict.index()) {
            *place += count;
        }
    }

    /// Replaces the verdict of a packet that the shard has not forwarded.
    #[inline]
    fn change(&mut self, from: Verdict, to: Verdict) {
        self.add(from, -1);
        self.add(to, 1);
    }

    /// Counts a packet with its verdict (1), or takes back what was counted for it (-1).
    pub(crate) fn count(&mut self, verdict: Verdict, packet: &[u8], count: i64) {
        self.add(verdict, count);
        let Some(forwarded) = Forwarded::of(verdict, packet) else { return };
        if let Some(bytes) = self.bytes_forwarded.get_mut(forwarded.way) {
            *bytes += i64::from(forwarded.bytes) * count;
        }
        if let Some(packets) = forwarded.protocol.and_then(|protocol| self.translated.get_mut(protocol.index())) {
            *packets += count;
        }
    }

    /// Adds everything to `counters` and starts afresh.
    #[inline]
    pub fn settle(&mut self, counters: &mut Counters) {
        counters.handed_off += core::mem::take(&mut self.handed_off);
        if !self.dirty {
            return;
        }
        let verdicts = counters.verdicts.iter_mut().zip(&mut self.verdicts);
        let bytes = counters.bytes_forwarded.iter_mut().zip(&mut self.bytes_forwarded);
        let translated = counters.translated.iter_mut().zip(&mut self.translated);
        for (counter, change) in verdicts.chain(bytes).chain(translated) {
            *counter = counter.wrapping_add_signed(core::mem::take(change));
        }
        counters.neighbour_pending = counters.neighbour_pending.wrapping_add_signed(core::mem::take(&mut self.pending));
        self.dirty = false;
    }
}

/// What waits for a neighbour.
#[derive(Debug)]
pub(crate) struct Waiting<B> {
    pub(crate) buffer: B,
    /// The verdict to count when it is sent; None when Natrix made it itself.
    pub(crate) verdict: Option<Verdict>,
}

/// What is remembered of a frame in a transmit queue, should it not fit.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    interface: InterfaceId,
    verdict: Option<Verdict>,
    length: u16,
}

struct Queue<B: Buffer> {
    burst: Burst<B>,
    marks: [Mark; BURST_MAX],
    /// The worker that can send on this port; None: this one can.
    sender: Option<WorkerId>,
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
    pub(crate) node: Node,
    /// What waits is a frame without destination station. Its bounds are its own, so that a scan of
    /// an IPv6 prefix takes nothing from IPv4 (RFC 6583 §6).
    pub(crate) neighbours6: Neighbours<Waiting<I::Buffer>, u128>,
    /// Some interface has IPv6.
    has_ipv6: bool,
    /// The way to the kernel, if any port has a device there.
    pub(crate) kernel: Option<Box<KernelEnd<I::Buffer>>>,
    pub(crate) announcer: Announcer,
    pub(crate) defended_at: Option<Instant>,
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
        let station_of = |interface| links.link(interface).map(|link| links.station(link.port));
        let node = Node::new(settings, shared.live_routes(), station_of, &announces, secret);
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
            kernel: None,
            announcer: Announcer::new(settings, now, announces),
            defended_at: None,
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

    /// Whether the kernel has this interface.
    #[inline]
    pub(crate) fn has_kernel(&self, interface: InterfaceId) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.has(interface))
    }

    /// Gives a frame to the kernel. Returns its verdict.
    pub(crate) fn give_to_kernel(&mut self, interface: InterfaceId, buffer: I::Buffer) -> Verdict {
        let (Some(kernel), Some(link)) = (&mut self.kernel, self.links.link(interface)) else {
            return Verdict::LocalIgnored;
        };
        match kernel.give(self.now, interface, link.port, buffer) {
            Given::Yes => Verdict::LocalKernel,
            Given::Limited => Verdict::KernelLimited,
            Given::RingFull => Verdict::KernelRingFull,
        }
    }

    /// Gives an IP packet that the shard has no use for to the kernel, if it is for the kernel.
    /// `counted` is the verdict so far.
    #[cold]
    pub(crate) fn offer_to_kernel(
        &mut self,
        ingress: InterfaceId,
        mut buffer: I::Buffer,
        start: u16,
        counted: Verdict,
    ) {
        let (bytes, from) = buffer.frame_mut();
        let length = bytes.len() as u16;
        let destination = bytes.get(usize::from(start) + 16..).and_then(<[u8]>::first_chunk);
        let Some(destination) = destination.map(|bytes| u32::from_be_bytes(*bytes)) else { return };
        let is_its =
            self.kernel.as_ref().is_some_and(|kernel| kernel.has(ingress) && kernel.owns_anywhere(destination));
        if !is_its {
            return;
        }
        if from == start {
            // Another worker received it, and took off the Ethernet header.
            let Some(link) = self.links.link(ingress) else { return };
            let header = FrameHeader::of(&self.links, ingress).map(|header| header.to(self.links.station(link.port)));
            let written = header.and_then(|header| header.write(&mut buffer, start, length.saturating_sub(start)));
            if written.is_none() {
                return;
            }
        }
        let verdict = self.give_to_kernel(ingress, buffer);
        self.ledger.change(counted, verdict);
    }

    /// Takes what the kernel learned, and sends its frames.
    #[cold]
    pub(crate) fn take_from_kernel(&mut self) -> usize {
        for _ in 0..KERNEL_NEWS_MAX {
            let told = self.kernel.as_mut().and_then(|kernel| kernel.told.try_pop());
            match told {
                None => break,
                Some(Told { interface, address: IpAddr::V4(address), station }) => match station {
                    Some(station) => {
                        self.learn(interface, address.to_bits(), station);
                    }
                    None => self.neighbours.forget(self.now, interface, address.to_bits()),
                },
                Some(Told { interface, address: IpAddr::V6(address), station }) => {
                    self.learn6_of_kernel(interface, address.to_bits(), station);
                }
            }
        }
        let mut taken = 0;
        while taken < KERNEL_FRAMES_MAX {
            let Some(Down { port, bytes, length }) = self.kernel.as_mut().and_then(|kernel| kernel.down.try_pop())
            else {
                break;
            };
            taken += 1;
            let frame = bytes.get(..length).unwrap_or_default();
            let tag = LinkHeader::parse(frame).ok().map(|header| header.vlan);
            let interface = tag.and_then(|tag| self.links.interface(port, tag));
            let buffer = self.io.allocate().and_then(|mut buffer| buffer.fill(&[frame]).then_some(buffer));
            let is_sent = interface.is_some() && buffer.is_some();
            if let (Some(interface), Some(buffer)) = (interface, buffer) {
                self.send_frame(port, interface, buffer, None);
            }
            if let Some(kernel) = &mut self.kernel {
                *if is_sent { &mut kernel.counters.sent } else { &mut kernel.counters.unsent } += 1;
                // As many fit as the kernel's thread has made.
                let _ = kernel.back.try_push(Down { port, bytes, length });
            }
        }
        taken
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

    /// As [`Outlet::send_packet`], for a next hop whose header is not ready.
    #[inline(never)]
    fn send_by_neighbour(
        &mut self,
        mut buffer: I::Buffer,
        egress: Egress,
        (start, length): (u16, u16),
        verdict: Option<Verdict>,
    ) {
        let Some(packet) = buffer.set_frame(start, length) else {
            // The shard has it in its buffer, so this cannot be.
            return self.drop_packet(verdict, &[], Verdict::NoBuffer);
        };
        let Some(hop) = self.next_hops.get(egress.next_hop.index()).copied() else {
            return self.drop_packet(verdict, packet, Verdict::NoRoute);
        };
        if hop.is_ipv6 {
            return self.send_ipv6(buffer, hop.interface, verdict);
        }
        let (interface, port) = (hop.interface, hop.port);
        let Some(address) = hop.neighbour(packet) else {
            return self.drop_packet(verdict, packet, Verdict::NoRoute);
        };
        let sends_here = self.queues.get(port.index()).is_some_and(|queue| queue.sender.is_none());
        let to = Neighbour { interface, address };
        if sends_here && let Some(station) = self.station_of(to) {
            if let Some(header) = hop.on_link().map(|header| header.to(station)) {
                return self.send_frame_to(buffer, &header, port, interface, verdict);
            }
            let generation = self.neighbours.generation();
            if let Some(hop) = self.next_hops.get_mut(egress.next_hop.index()) {
                hop.learn(station, generation);
            }
        }
        self.send(buffer, to, verdict);
    }

    /// The link-layer address of a neighbour, if it is known and no packet waits for it.
    #[inline]
    fn station_of(&mut self, to: Neighbour) -> Option<MacAddress> {
        if Ipv4Addr::from_bits(to.address).is_multicast() {
            return Some(station_of_group(to.address));
        }
        match self.mode {
            LinkMode::Live => self.neighbours.lookup(to.interface, to.address),
            LinkMode::Offline => Some(made_up_station(to.address)),
        }
    }

    /// Sends an IP packet whose buffer is exactly as long as the packet.
    pub(crate) fn send(&mut self, buffer: I::Buffer, to: Neighbour, verdict: Option<Verdict>) {
        let Some(link) = self.links.link(to.interface) else {
            return self.drop_packet(verdict, buffer.bytes(), Verdict::NoRoute);
        };
        if let Some(Queue { sender: Some(sender), .. }) = self.queues.get(link.port.index()) {
            return self.cross(*sender, Crossing::Transmit { buffer, to, verdict }, verdict);
        }
        match self.station_of(to) {
            Some(station) => self.send_to(buffer, to.interface, station, verdict),
            None => self.wait(buffer, to, verdict),
        }
    }

    fn wait(&mut self, buffer: I::Buffer, to: Neighbour, verdict: Option<Verdict>) {
        let packet = buffer.bytes();
        let source = source_of(packet);
        let is_router = Ipv4::new_checked(packet).is_ok_and(|packet| packet.destination() != to.address);
        if let Some(verdict) = verdict {
            self.ledger.count(verdict, packet, -1);
        }
        let waiting = Waiting { buffer, verdict };
        let (ledger, counters) = (&mut self.ledger, &mut self.counters);
        let give_back = |given_up: Waiting<I::Buffer>| {
            give_up_waiting(ledger, counters, given_up.verdict, Verdict::NeighbourQueueFull);
        };
        let held = self.neighbours.hold(self.now, source, (to.interface, to.address), waiting, give_back);
        if is_router {
            self.neighbours.note_router(to.interface, to.address);
        }
        self.note_held(held.err().map(|(_, refusal)| refusal), verdict);
    }

    /// After a packet was held, or refused. Its verdict was taken back.
    pub(crate) fn note_held(&mut self, refusal: Option<Refusal>, verdict: Option<Verdict>) {
        let reason = refusal.map(|refusal| match refusal {
            Refusal::Full => Verdict::NeighbourQueueFull,
            Refusal::Silent => Verdict::NeighbourUnresolved,
        });
        match (reason, verdict) {
            (None, Some(_)) => self.ledger.pending += 1,
            (None, None) => {}
            (Some(reason), Some(_)) => self.ledger.add(reason, 1),
            (Some(_), None) => self.counters.originated_dropped += 1,
        }
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

    #[inline(always)]
    fn enqueue(&mut self, port: PortIndex, buffer: I::Buffer, mark: Mark) {
        let Some(queue) = self.queues.get_mut(port.index()) else {
            return self.drop_packet(mark.verdict, packet_of(buffer.bytes()), Verdict::NoRoute);
        };
        if let Some(place) = queue.marks.get_mut(queue.burst.len()) {
            *place = mark;
        }
        // There is room: a full burst is flushed at once.
        let _ = queue.burst.push(buffer);
        if queue.burst.is_full() {
            self.flush(port);
        }
    }

    /// Hands all queued frames to the ports, and shows the other workers what was handed off to
    /// them.
    #[inline]
    pub(crate) fn flush_all(&mut self) {
        self.publish();
        for port in 0..self.queues.len() {
            self.flush(PortIndex(port as u16));
        }
    }

    /// Shows the other workers what was handed off to them.
    #[inline]
    pub(crate) fn publish(&mut self) {
        for ring in self.crossings.to.iter_mut().flatten() {
            ring.publish();
        }
    }

    fn flush(&mut self, port: PortIndex) {
        let Some(queue) = self.queues.get_mut(port.index()) else { return };
        let count = queue.burst.len();
        if count == 0 {
            return;
        }
        self.io.transmit(port, &mut queue.burst);
        let sent = count - queue.burst.len();
        let Some(marks) = queue.marks.get(..count) else { return };
        let first = marks.first().map_or_else(InterfaceId::default, |mark| mark.interface);
        if sent == count && marks.iter().all(|mark| mark.interface == first) {
            if let Some(interface) = self.interfaces.get_mut(first.index()) {
                interface.sent_packets += count as u64;
                interface.sent_bytes += marks.iter().map(|mark| u64::from(mark.length)).sum::<u64>();
            }
            return;
        }
        for (position, mark) in marks.iter().enumerate() {
            let Some(interface) = self.interfaces.get_mut(mark.interface.index()) else { continue };
            if position < sent {
                interface.sent_packets += 1;
                interface.sent_bytes += u64::from(mark.length);
                continue;
            }
            interface.unsent_packets += 1;
            let unsent = queue.burst.get(position - sent).map_or(&[][..], |buffer| packet_of(buffer.bytes()));
            match mark.verdict {
                Some(verdict) => {
                    self.ledger.count(verdict, unsent, -1);
                    self.ledger.add(Verdict::TransmitFull, 1);
                }
                None => self.counters.originated_dropped += 1,
            }
        }
        queue.burst.clear();
    }

    /// Gives an item to another worker; `verdict` was counted here and goes with it.
    fn cross(&mut self, worker: WorkerId, item: Crossing<I::Buffer>, verdict: Option<Verdict>) {
        if let Some(verdict) = verdict {
            self.ledger.count(verdict, item.packet(), -1);
        }
        let ring = self.crossings.to.get_mut(worker.index()).and_then(Option::as_mut);
        let pushed = ring.is_some_and(|ring| ring.try_push(item).is_ok());
        match (pushed, verdict) {
            (true, Some(_)) => self.ledger.handed_off += 1,
            (true, None) => {}
            (false, Some(_)) => self.ledger.add(Verdict::HandOffRingFull, 1),
            (false, None) => self.counters.originated_dropped += 1,
        }
    }

    /// Gives a packet that the shard does not own to the worker that does, which sees it at the end
    /// of this poll. It has no verdict yet.
    #[inline]
    pub(crate) fn hand_off_buffer(&mut self, worker: WorkerId, buffer: I::Buffer, meta: PacketMeta) {
        let ring = self.crossings.to.get_mut(worker.index()).and_then(Option::as_mut);
        let pushed = ring.is_some_and(|ring| ring.stage(Crossing::Process { buffer, meta }).is_ok());
        if pushed {
            self.ledger.handed_off += 1;
        } else {
            self.ledger.add(Verdict::HandOffRingFull, 1);
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

    /// Takes in what an ARP packet said, here or at another worker, and sends what waited for it.
    pub(crate) fn learn(&mut self, interface: InterfaceId, address: u32, station: MacAddress) -> bool {
        let known = self.neighbours.learn(self.now, interface, address, station);
        if known {
            self.act_for_neighbours();
        }
        known
    }

    /// Announcements, requests, timeouts.
    #[inline]
    pub(crate) fn maintain(&mut self) {
        while let Some(announcement) = self.announcer.next(self.now) {
            // RFC 5227 §2.1.1: a probe has no sender address, so that it spoils nobody's cache.
            let sender = if announcement.probe { 0 } else { announcement.address };
            self.send_request(announcement.interface, sender, announcement.address, None);
        }
        self.act_for_neighbours();
        if self.has_ipv6 {
            self.maintain6();
        }
    }

    fn act_for_neighbours(&mut self) {
        for _ in 0..NEIGHBOUR_ACTIONS_MAX {
            match self.neighbours.next_action(self.now) {
                None => break,
                Some(Action::Request { interface, address, .. }) if self.has_kernel(interface) => {
                    if let Some(kernel) = &mut self.kernel {
                        // If the ring is full, the cache asks again.
                        let _ = kernel.asks.try_push(Ask { interface, address: Ipv4Addr::from_bits(address).into() });
                    }
                }
                Some(Action::Request { interface, address, station }) => {
                    let sender = self.answerer.own_address(&self.settings, interface, address).unwrap_or(0);
                    self.send_request(interface, sender, address, station);
                }
                Some(Action::Send { packet, interface, station }) => {
                    let Waiting { buffer, verdict } = packet;
                    if let Some(verdict) = verdict {
                        self.ledger.count(verdict, buffer.bytes(), 1);
                        self.ledger.pending -= 1;
                    }
                    self.send_to(buffer, interface, station, verdict);
                }
                Some(Action::Unresolved(Waiting { buffer, verdict })) => {
                    drop(buffer);
                    self.give_up_waiting(verdict, Verdict::NeighbourUnresolved);
                }
            }
        }
    }

    pub(crate) fn give_up_waiting(&mut self, verdict: Option<Verdict>, reason: Verdict) {
        give_up_waiting(&mut self.ledger, &mut self.counters, verdict, reason);
    }

    /// Drops what still waits for a neighbour; used at the end of a drain.
    pub(crate) fn abandon_waiting(&mut self) {
        while let Some(Waiting { buffer, verdict }) = self.neighbours.take_waiting() {
            drop(buffer);
            self.give_up_waiting(verdict, Verdict::NeighbourUnresolved);
        }
        while let Some(Waiting { buffer, verdict }) = self.neighbours6.take_waiting() {
            drop(buffer);
            self.give_up_waiting(verdict, Verdict::NeighbourUnresolved);
        }
    }

    /// A page of the neighbours of both families. The cursor counts those of IPv4 first.
    pub(crate) fn neighbours_page(&self, page: &mut Query<AnyView>) {
        let view = |view: NeighbourView| AnyView {
            interface: view.interface,
            address: Ipv4Addr::from_bits(view.address).into(),
            station: view.station,
            state: view.state,
            waiting: view.waiting,
            refuses: view.refuses,
            is_kernel: self.has_kernel(view.interface),
        };
        let view6 = |view: NeighbourView<u128>| AnyView {
            interface: view.interface,
            address: Ipv6Addr::from_bits(view.address).into(),
            station: view.station,
            state: view.state,
            waiting: view.waiting,
            refuses: view.refuses,
            is_kernel: self.has_kernel(view.interface),
        };
        let start = page.cursor as usize;
        let count = self.neighbours.len().0 as usize;
        let rest6 = self.neighbours6.views(start.saturating_sub(count)).map(view6);
        let mut rest = self.neighbours.views(start).map(view).chain(rest6);
        page.records.extend(rest.by_ref().take(page.limit));
        page.next = rest.next().is_some().then(|| page.cursor.saturating_add(page.records.len() as u32));
    }

    /// Routers of both families that were found silent or answering last.
    pub(crate) fn routers(&self) -> impl Iterator<Item = RouterView<IpAddr>> + '_ {
        let routers = self.neighbours.routers().iter().map(|view| {
            let address = Ipv4Addr::from_bits(view.address).into();
            RouterView { interface: view.interface, address, answers: view.answers, at: view.at }
        });
        let routers6 = self.neighbours6.routers().iter().map(|view| {
            let address = Ipv6Addr::from_bits(view.address).into();
            RouterView { interface: view.interface, address, answers: view.answers, at: view.at }
        });
        routers.chain(routers6)
    }

    /// Neighbours in the cache, and those of them without an answer.
    pub(crate) fn neighbours_len(&self) -> (u64, u64) {
        let (all, unresolved) = self.neighbours.len();
        (u64::from(all), u64::from(unresolved))
    }

    /// Packets waiting for a neighbour, those that Natrix made itself included.
    pub(crate) fn waiting_count(&self) -> u32 {
        self.neighbours.waiting_count() + self.neighbours6.waiting_count()
    }

    fn send_request(&mut self, interface: InterfaceId, sender: u32, target: u32, to: Option<MacAddress>) {
        let Some(link) = self.links.link(interface) else { return };
        let message = Message::request(self.links.station(link.port), sender, target).to_bytes();
        let header = self.links.header(link, to.unwrap_or(MacAddress::BROADCAST), ETHER_TYPE_ARP);
        let Some(buffer) = self.frame(&header, &message) else {
            self.counters.originated_dropped += 1;
            return;
        };
        self.counters.arp_requests += 1;
        self.send_frame(link.port, interface, buffer, None);
    }

    /// Answers an ARP request: the target address is here.
    pub(crate) fn send_reply(&mut self, interface: InterfaceId, request: &Message) {
        let Some(link) = self.links.link(interface) else { return };
        let message = request.reply(self.links.station(link.port)).to_bytes();
        let header = self.links.header(link, request.sender_mac, ETHER_TYPE_ARP);
        let Some(buffer) = self.frame(&header, &message) else {
            self.counters.originated_dropped += 1;
            return;
        };
        self.counters.arp_replies += 1;
        self.send_frame(link.port, interface, buffer, None);
    }

    /// Another station claims an address of ours. RFC 5227 §2.4(c): an address that cannot be given
    /// up is defended by one announcement, and not again for ten seconds, so that two hosts do not
    /// argue without end.
    pub(crate) fn defend(&mut self, interface: InterfaceId, address: u32) {
        self.counters.address_conflicts += 1;
        if self.defended_at.is_some_and(|at| self.now < at + DEFEND_INTERVAL) {
            return;
        }
        self.defended_at = Some(self.now);
        self.send_request(interface, address, address, None);
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

/// Counts a packet that waits no longer for its neighbour, and was not sent.
pub(crate) fn give_up_waiting(
    ledger: &mut Ledger,
    counters: &mut LinkCounters,
    verdict: Option<Verdict>,
    reason: Verdict,
) {
    match verdict {
        Some(_) => {
            ledger.pending -= 1;
            ledger.add(reason, 1);
        }
        None => counters.originated_dropped += 1,
    }
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
