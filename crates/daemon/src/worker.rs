//! One worker: takes packets from its ports and from other workers, has its shard decide, and sends
//! what leaves.
//!
//! ```text
//!   ports ──► link header ──► ARP ─────────────► answer, learn ──────────────┐
//!                  │ IPv4                                                    ▼
//!   rings ───────► ready ──► Shard::process ──► Outlet: neighbour, header ──► transmit queues
//!                                  │                             └──► packets waiting for ARP
//!                                  └──► HandOff ──► rings to other workers
//! ```
//!
//! A worker has no thread and no clock of its own: its caller calls [`Worker::poll`] with the time.
//! So the same code runs on a pinned thread, over a capture, and in a simulation with a virtual
//! clock.

use core::array;
use core::slice;
use std::sync::Arc;

use arrayvec::ArrayVec;
use mem::ring::Producer;
use nat::BuildError;
use nat::Counters;
use nat::Instant;
use nat::Outcome;
use nat::Packet;
use nat::Shard;
use nat::Shared;
use nat::Verdict;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::packet::PacketMeta;
use nat::types::InterfaceId;
use nat::types::WorkerId;
use packet_io::BURST_MAX;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use wire::arp::Message;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ipv6::Ipv6;

use crate::conflict::Conflicts;
use crate::crossing::Crossing;
use crate::crossing::Crossings;
use crate::crossing::News;
use crate::crossing::mesh;
use crate::ipv6::OwnAddresses;
use crate::kernel::KernelEnd;
use crate::links::InterfaceLink;
use crate::links::Links;
use crate::mailbox::Mailbox;
use crate::neighbour::Learnt;
use crate::neighbour::NeighbourLimits;
use crate::outlet::InterfaceCounters;
use crate::outlet::LinkCounters;
use crate::outlet::Outlet;
use crate::outlet::packet_of;
use crate::rounds::Rounds;
use crate::trace::Tracer;

/// Bytes of an untagged link header.
const PLAIN_HEADER: u16 = HEADER_LENGTH as u16;
/// Items taken from one ring in one poll.
const RING_ITEMS_MAX: usize = BURST_MAX;
/// ARP news taken from one ring in one poll.
const LEARNT_MAX: usize = 16;

/// Verdicts of packets to Natrix itself that the shard has no use for, but perhaps the kernel.
const FOR_KERNEL: [Verdict; 6] = [
    Verdict::LocalIgnored,
    Verdict::ProtocolUnsupported,
    Verdict::NoMapping,
    Verdict::TcpNoSession,
    Verdict::IcmpTypeUnsupported,
    Verdict::IcmpQuoteNoMapping,
];

/// What the shard decided about a packet, and where the packet begins in its buffer by then.
pub(crate) type Decided = (Outcome, Option<Verdict>, u16);

/// The packets of a burst, as the shard sees them.
type PacketArray<'a> = ArrayVec<Packet<'a>, BURST_MAX>;

/// Writes down what the shard decided about the packets of a burst; returns how many they are. Each
/// goes straight to its place: collected through an iterator, it takes a way over the stack that
/// costs 11 cycles a packet.
#[inline(always)]
fn note_results(results: &mut [Decided; BURST_MAX], packets: &[Packet<'_>]) -> usize {
    for (result, packet) in results.iter_mut().zip(packets) {
        result.0 = packet.outcome;
        result.1 = packet.verdict;
        result.2 = packet.start();
    }
    packets.len()
}

/// Whether there are stations on the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// There are: frames for others are not for us, and next hops are asked for by ARP.
    #[default]
    Live,
    /// There are none, as with a capture taken elsewhere: every unicast frame is for us, whatever
    /// station it was sent to, and next hops have made-up stations (`02:00`, then the address), so
    /// that no station needs to answer.
    Offline,
}

/// Sizes of what stands between workers and in front of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Packets that fit in each ring between two workers.
    pub ring_packets: usize,
    /// Bounds of each worker's neighbour cache.
    pub neighbours: NeighbourLimits,
    /// Whether there are stations on the links.
    pub mode: LinkMode,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { ring_packets: 2_048, neighbours: NeighbourLimits::default(), mode: LinkMode::Live }
    }
}

/// One worker over its view of the ports.
pub struct Worker<I: Io> {
    id: WorkerId,
    pub(crate) shard: Shard,
    pub(crate) outlet: Outlet<I>,
    /// IP packets for the shard. Here and not on the stack, so that a burst the shard fails on can
    /// be looked at.
    ready: Burst<I::Buffer>,
    metas: [PacketMeta; BURST_MAX],
    /// What was decided about the packets of `ready`.
    results: [Decided; BURST_MAX],
    /// Where the IP packet of each begins in its buffer.
    starts: [u16; BURST_MAX],
    /// Instead of what `starts` says, each is behind an untagged link header.
    is_plain: bool,
    receiving: bool,
    pub(crate) tracer: Tracer,
    mailbox: Option<Mailbox>,
    /// True after a poll in which it answered a question.
    was_asked: bool,
    /// Time spent in polls that had something to do, if the caller of [`Worker::poll`] measures it.
    pub(crate) busy_us: u64,
    /// Those polls by their time.
    pub(crate) rounds: Rounds,
    /// The generation of live routes that this worker has reported, and the version of their next
    /// hops.
    pub(crate) live_seen: (u64, u64),
    /// The interface of a burst of plain frames.
    plain_ingress: InterfaceId,
}

/// Builds the workers of an instance, one per element of `ios` and in that order, and the rings
/// between them.
///
/// `links` says where each interface of the settings is; `secret` are 256 bits that outsiders must
/// not know.
///
/// # Errors
/// [`BuildError`] when memory is short.
pub fn build_workers<I: Io>(
    shared: &Arc<Shared>,
    links: &[InterfaceLink],
    ios: Vec<I>,
    options: &WorkerOptions,
    secret: [u64; 4],
    now: Instant,
) -> Result<Vec<Worker<I>>, BuildError> {
    let port_count = ios.first().map_or(0, Io::port_count);
    let ports = (0..port_count).map(|port| PortIndex(port as u16));
    let stations = ports.clone().map(|port| MacAddress(ios.first().map_or([0; 6], |io| io.mac(port))));
    let links = Arc::new(Links::new(links.to_vec(), stations.collect()));
    // Which workers can send on each port.
    let capable: Vec<Vec<WorkerId>> = ports
        .map(|port| {
            let able = ios.iter().enumerate().filter(|(_, io)| io.can_transmit(port));
            able.map(|(worker, _)| WorkerId(worker as u8)).collect()
        })
        .collect();
    let settings = Arc::new(shared.settings().clone());
    // Offline there is no station that could have an address.
    let prober = |interface: InterfaceId| {
        let link = links.link(interface).filter(|_| options.mode == LinkMode::Live);
        link.and_then(|link| capable.get(link.port.index())).and_then(|able| able.first()).copied()
    };
    let station_of = |interface| links.link(interface).map(|link| links.station(link.port));
    let own = Arc::new(OwnAddresses::new(&settings, station_of, |interface| prober(interface).is_some()));
    let crossings = mesh::<I::Buffer>(ios.len(), options.ring_packets);
    let mut workers = Vec::with_capacity(ios.len());
    for (index, (io, crossings)) in ios.into_iter().zip(crossings).enumerate() {
        let id = WorkerId(index as u8);
        let senders: Vec<Option<WorkerId>> =
            capable.iter().map(|able| able.get(index.checked_rem(able.len()).unwrap_or(0)).copied()).collect();
        let announces = |interface: InterfaceId| prober(interface) == Some(id);
        let secret = secret_of(secret, index as u64);
        let shard = Shard::new(Arc::clone(shared), id, secret)?;
        let ends = Ends { crossings, senders, own: Arc::clone(&own) };
        let outlet = Outlet::new(io, &links, shared, &settings, ends, announces, options, secret[0], now);
        workers.push(Worker {
            id,
            shard,
            outlet,
            ready: Burst::new(),
            metas: [PacketMeta::default(); BURST_MAX],
            results: [(Outcome::Done, None, 0); BURST_MAX],
            starts: [0; BURST_MAX],
            is_plain: false,
            receiving: true,
            tracer: Tracer::default(),
            mailbox: None,
            was_asked: false,
            busy_us: 0,
            rounds: Rounds::default(),
            live_seen: (0, 0),
            plain_ingress: InterfaceId::default(),
        });
    }
    Ok(workers)
}

/// What connects an outlet to the other workers.
pub(crate) struct Ends<B> {
    pub(crate) crossings: Crossings<B>,
    /// Per port, the worker that sends there when this one cannot.
    pub(crate) senders: Vec<Option<WorkerId>>,
    /// Whether own IPv6 addresses may be used.
    pub(crate) own: Arc<OwnAddresses>,
}

/// Independent secrets for each worker from one (the output function of SplitMix64).
fn secret_of(secret: [u64; 4], worker: u64) -> [u64; 4] {
    secret.map(|word| {
        let mut mixed = word.wrapping_add((worker + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

impl<I: Io> Worker<I> {
    /// Which worker this is.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Its verdicts and events. In balance between two polls:
    /// `received + taken_over == verdicts + handed_off + fragments_held + neighbour_pending`.
    pub fn counters(&self) -> &Counters {
        self.shard.counters()
    }

    /// What happened on the links.
    pub fn link_counters(&self) -> LinkCounters {
        self.outlet.counters
    }

    /// Packets and bytes by logical interface, as far as this worker received and sent them.
    pub fn interface_counters(&self) -> &[InterfaceCounters] {
        &self.outlet.interfaces
    }

    /// The shard, to look into.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The worker's view of the ports.
    pub fn io(&self) -> &I {
        &self.outlet.io
    }

    /// The worker's view of the ports, to feed it.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.outlet.io
    }

    /// The worker's view of the ports, when the worker is no longer needed.
    pub fn into_io(self) -> I {
        self.outlet.io
    }

    /// Whether the last poll answered a question of the control server.
    pub(crate) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Where the control server leaves its questions.
    pub fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.mailbox = Some(mailbox);
    }

    /// Leaves each change of the state in `ring` from now on, for a peer to take in.
    pub fn set_deltas(&mut self, ring: Producer<nat::Delta>) {
        self.shard.set_deltas(ring);
    }

    /// Leaves each change of a grant in `ring` from now on.
    pub fn set_grant_deltas(&mut self, ring: Producer<nat::GrantRecord>) {
        self.shard.set_grant_deltas(ring);
    }

    /// For what happens before it runs: grants are restored.
    pub fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Where its shard leaves records of what happens, and where it sees that they go into another
    /// log.
    pub fn set_events(&mut self, ring: Producer<Record>, opened: Arc<LogsOpened>) {
        self.shard.set_events(ring);
        self.shard.follow_logs(opened);
    }

    /// Records what is held back, as no packet follows.
    pub fn finish_events(&mut self, now: Instant) {
        self.shard.finish_events(now);
    }

    /// Stops (or resumes) taking packets from ports. Rings and packets waiting for ARP are still
    /// served.
    pub fn set_receiving(&mut self, receiving: bool) {
        self.receiving = receiving;
    }

    /// Whether nothing is on its way through this worker.
    pub fn is_quiet(&self) -> bool {
        self.outlet.crossings.waiting() == 0 && self.outlet.waiting_count() == 0
    }

    /// Gives up the packets that still wait for their neighbour.
    pub fn abandon_waiting(&mut self) {
        self.outlet.abandon_waiting();
        self.settle();
    }

    /// What others claimed of our addresses.
    pub const fn conflicts(&self) -> &Conflicts {
        &self.outlet.conflicts
    }

    /// One round: at most one burst from each ring and each port, then timers, then at most one
    /// question of the control server. Returns the number of packets taken. `now` must not go back.
    pub fn poll(&mut self, now: Instant) -> usize {
        self.outlet.now = now;
        self.follow_routes();
        self.follow_addresses();
        let mut taken = self.take_from_rings(now);
        if self.receiving {
            for port in 0..self.outlet.links.port_count() {
                taken += self.take_from_port(now, PortIndex(port as u16));
            }
        }
        if self.outlet.kernel.is_some() {
            taken += self.outlet.take_from_kernel();
        }
        self.outlet.maintain();
        self.shard.maintain(now, &mut self.outlet);
        if !self.outlet.undelivered.is_empty() {
            self.report_undelivered(now);
        }
        self.outlet.flush_all();
        self.settle();
        if self.mailbox.is_some() {
            self.answer_mailbox(now);
        }
        taken
    }

    /// Has the shard answer the senders of packets whose neighbour is absent.
    #[cold]
    fn report_undelivered(&mut self, now: Instant) {
        for (interface, buffer) in core::mem::take(&mut self.outlet.undelivered) {
            self.shard.report_undelivered(now, interface, buffer.bytes(), &mut self.outlet);
        }
    }

    /// Takes over changed next hops of live routes, and reports that all earlier polls are over.
    #[inline]
    fn follow_routes(&mut self) {
        let Some(live) = self.shard.shared().live_routes() else { return };
        let generation = live.generation();
        if generation == self.live_seen.0 {
            return;
        }
        let version = live.hops_version();
        if version != self.live_seen.1 {
            self.outlet.refresh_next_hops(self.shard.shared());
        }
        live.report(self.id.index(), generation);
        self.live_seen = (generation, version);
    }

    /// Gives the shard what has changed of own IPv6 addresses, before it sees the next packet.
    #[inline]
    fn follow_addresses(&mut self) {
        self.outlet.node.follow();
        if self.outlet.node.take_changed() {
            for (interface, address, now) in self.outlet.node.uses() {
                self.shard.set_address_use(interface, address, now);
            }
        }
    }

    /// What all threads know of the own IPv6 addresses.
    pub const fn own_addresses(&self) -> &Arc<OwnAddresses> {
        self.outlet.node.own_addresses()
    }

    /// Where the kernel's frames come from and go to.
    pub fn set_kernel(&mut self, end: KernelEnd<I::Buffer>) {
        self.outlet.kernel = Some(Box::new(end));
    }

    fn settle(&mut self) {
        self.outlet.ledger.settle(self.shard.counters_mut());
    }

    fn answer_mailbox(&mut self, now: Instant) {
        let Some(mut mailbox) = self.mailbox.take() else { return };
        let question = mailbox.next_question();
        self.was_asked = question.is_some();
        if let Some(question) = question {
            let answer = self.answer(now, question);
            mailbox.answer(answer);
        }
        self.mailbox = Some(mailbox);
    }

    fn take_from_rings(&mut self, now: Instant) -> usize {
        let mut taken = 0;
        for from in 0..self.outlet.crossings.from.len() {
            for _ in 0..LEARNT_MAX {
                let ring = self.outlet.crossings.learnt_from.get_mut(from).and_then(Option::as_mut);
                match ring.and_then(|ring| ring.try_pop()) {
                    None => break,
                    Some(News::Learnt(Learnt { interface, address, station })) => {
                        self.outlet.learn(interface, address, station);
                    }
                    Some(News::Learnt6(learnt)) => self.outlet.learn6(learnt),
                }
            }
            for _ in 0..RING_ITEMS_MAX {
                let ring = self.outlet.crossings.from.get_mut(from).and_then(Option::as_mut);
                let Some(item) = ring.and_then(|ring| ring.try_pop()) else { break };
                taken += 1;
                self.take_crossing(now, item);
            }
        }
        self.process_taken(now);
        taken
    }

    #[inline]
    fn take_crossing(&mut self, now: Instant, item: Crossing<I::Buffer>) {
        match item {
            Crossing::Process { buffer, meta } => {
                // Its lines are another core's. They are on their way until the packets behind it
                // have been taken, too.
                buffer.prefetch();
                // An error Natrix made itself is no packet received, so it is in no balance.
                if !meta.stage.is_own() {
                    self.shard.counters_mut().taken_over += 1;
                }
                if let Some(place) = self.metas.get_mut(self.ready.len()) {
                    *place = meta;
                }
                // There is room: a full burst is processed at once.
                let _ = self.ready.push(buffer);
                if self.ready.is_full() {
                    self.process_taken(now);
                }
            }
            Crossing::Transmit { buffer, to, verdict } => {
                if let Some(verdict) = verdict {
                    self.shard.counters_mut().taken_over += 1;
                    self.outlet.ledger.count(verdict, buffer.bytes(), 1);
                }
                self.outlet.send(buffer, to, verdict);
            }
            Crossing::Frame { buffer, interface, verdict } => {
                if let Some(verdict) = verdict {
                    self.shard.counters_mut().taken_over += 1;
                    self.outlet.ledger.count(verdict, packet_of(buffer.bytes()), 1);
                }
                if let Some(link) = self.outlet.links.link(interface) {
                    self.outlet.send_frame(link.port, interface, buffer, verdict);
                }
            }
        }
    }

    /// Processes packets that came from other workers: their buffers begin with the IP packet.
    fn process_taken(&mut self, now: Instant) {
        for (start, buffer) in self.starts.iter_mut().zip(self.ready.iter_mut()) {
            *start = buffer.frame_mut().1;
        }
        self.process_ready(now);
    }

    #[inline]
    fn take_from_port(&mut self, now: Instant, port: PortIndex) -> usize {
        // Received where they are processed. Nothing else is there: what came before was processed
        // at once.
        self.outlet.io.receive(port, &mut self.ready);
        let count = self.ready.len();
        if count == 0 {
            return 0;
        }
        self.shard.counters_mut().received += count as u64;
        if !self.tracer.is_on() && self.process_plain(now, port) {
            return count;
        }
        let others = self.read_link_headers(port);
        if others != 0 {
            self.take_others(now, port, others);
        }
        if self.tracer.is_on() {
            for (position, (buffer, start)) in self.ready.iter_mut().zip(&self.starts).enumerate() {
                let (frame, from) = buffer.frame_mut();
                let frame = frame.get(usize::from(from)..).unwrap_or_default();
                self.tracer.note_link_header(position, frame, usize::from(*start - from));
            }
        }
        self.process_ready(now);
        count
    }

    /// Has the shard decide on a burst as it was received, if all of it is untagged IPv4 packets
    /// for this station.
    fn process_plain(&mut self, now: Instant, port: PortIndex) -> bool {
        let Some(gate) = self.outlet.links.gate(port) else { return false };
        let meta = PacketMeta { ingress: gate.interface(), ..PacketMeta::default() };
        let count = self.ready.len();
        let (mut are_plain, mut bytes) = (true, 0);
        let mut packets = PacketArray::new();
        packets.extend(self.ready.iter_mut().map(|buffer| {
            let (frame, from) = buffer.frame_mut();
            let received = frame.get(usize::from(from)..).unwrap_or_default();
            are_plain &= gate.is_plain(received);
            bytes += received.len() as u64;
            Packet::in_frame(frame, from + PLAIN_HEADER, meta)
        }));
        if !are_plain {
            return false;
        }
        self.outlet.count_received((gate.interface(), count as u64, bytes));
        self.is_plain = true;
        self.plain_ingress = gate.interface();
        self.shard.process(now, &mut packets, &mut self.outlet);
        let count = note_results(&mut self.results, &packets);
        drop(packets);
        self.send_ready(count);
        true
    }

    /// Finds the packet for the shard in each frame of the burst. Returns a bit for each frame that
    /// has none.
    #[inline]
    fn read_link_headers(&mut self, port: PortIndex) -> u64 {
        let gate = self.outlet.links.gate(port);
        let mut others = 0;
        let mut tally = (InterfaceId::default(), 0, 0);
        for (i, buffer) in self.ready.iter_mut().enumerate() {
            let (frame, from) = buffer.frame_mut();
            let frame = frame.get(usize::from(from)..).unwrap_or_default();
            let found = match gate.filter(|gate| gate.is_plain(frame)) {
                Some(gate) => Some((gate.interface(), HEADER_LENGTH)),
                None => self.outlet.packet_for_us(self.shard.shared(), port, frame),
            };
            let Some((interface, offset)) = found else {
                others |= 1 << i;
                continue;
            };
            if interface != tally.0 {
                self.outlet.count_received(tally);
                tally = (interface, 0, 0);
            }
            tally.1 += 1;
            tally.2 += frame.len() as u64;
            if let (Some(start), Some(meta)) = (self.starts.get_mut(i), self.metas.get_mut(i)) {
                *start = from + offset as u16;
                *meta = PacketMeta { ingress: interface, ..PacketMeta::default() };
            }
        }
        self.outlet.count_received(tally);
        others
    }

    /// Takes the frames with a bit in `others` out of the burst, and answers or drops them.
    #[cold]
    fn take_others(&mut self, now: Instant, port: PortIndex, others: u64) {
        let (mut packets, mut frames) = (Burst::new(), Burst::new());
        for (i, buffer) in self.ready.drain().enumerate() {
            if others >> i & 1 != 0 {
                // As many come out as go in, here and below.
                let _ = frames.push(buffer);
                continue;
            }
            if packets.len() < i {
                self.starts.copy_within(i..=i, packets.len());
                self.metas.copy_within(i..=i, packets.len());
            }
            let _ = packets.push(buffer);
        }
        self.ready = packets;
        for buffer in frames.drain() {
            self.take_frame(now, port, buffer);
        }
    }

    /// Takes a frame without a packet for the shard. It gets its verdict here.
    fn take_frame(&mut self, now: Instant, port: PortIndex, buffer: I::Buffer) {
        let frame = buffer.bytes();
        let Ok(header) = LinkHeader::parse(frame) else {
            return self.refuse(now, None, frame, Verdict::LinkTruncated);
        };
        let Some(interface) = self.outlet.links.interface(port, header.vlan) else {
            return self.refuse(now, None, frame, Verdict::LinkUnknownVlan);
        };
        self.outlet.count_received((interface, 1, frame.len() as u64));
        if !self.outlet.is_for_us(port, &header) && !header.destination.is_multicast() {
            return self.refuse(now, Some(interface), frame, Verdict::LinkOtherDestination);
        }
        if self.outlet.has_kernel(interface) {
            return self.take_kernel_frame(now, (interface, port), &header, buffer);
        }
        match header.ether_type {
            // RFC 1122 §3.3.6, RFC 1812 §5.3.4: what came as a link-layer broadcast is never
            // forwarded; the protocols that broadcast (DHCP, routing) have no one here to listen.
            ETHER_TYPE_IPV4 => self.refuse(now, Some(interface), frame, Verdict::LocalIgnored),
            ETHER_TYPE_ARP => {
                let verdict = self.take_arp(interface, port, frame.get(header.payload_offset()..).unwrap_or_default());
                self.refuse(now, Some(interface), frame, verdict);
            }
            ETHER_TYPE_IPV6 if self.outlet.node.is_on(interface) => {
                let packet = frame.get(header.payload_offset()..).unwrap_or_default();
                let verdict = self.outlet.take_ipv6(interface, &header, packet);
                self.refuse(now, Some(interface), frame, verdict);
            }
            _ => self.refuse(now, Some(interface), frame, Verdict::LinkUnknownType),
        }
    }

    /// As [`Worker::take_frame`], on an interface that the kernel has: it gets all that Natrix has
    /// no use for.
    fn take_kernel_frame(
        &mut self,
        now: Instant,
        (interface, port): (InterfaceId, PortIndex),
        header: &LinkHeader,
        buffer: I::Buffer,
    ) {
        let payload = buffer.bytes().get(header.payload_offset()..).unwrap_or_default();
        if header.ether_type == ETHER_TYPE_ARP
            && let Some(verdict) = self.take_arp_of_pool(interface, port, payload)
        {
            return self.refuse(now, Some(interface), buffer.bytes(), verdict);
        }
        if header.ether_type == ETHER_TYPE_IPV6 && self.outlet.node.is_on(interface) {
            let destination = payload.first_chunk().map(|packet: &[u8; 40]| Ipv6::new_unchecked(packet).destination());
            if !destination.is_some_and(|destination| self.outlet.node.is_for_kernel(interface, destination)) {
                let verdict = self.outlet.take_ipv6(interface, header, payload);
                return self.refuse(now, Some(interface), buffer.bytes(), verdict);
            }
        }
        // The trace has a copy, because the frame itself goes away.
        let copy = if self.tracer.is_on() { buffer.bytes().to_vec() } else { Vec::new() };
        let verdict = self.outlet.give_to_kernel(interface, buffer);
        self.refuse(now, Some(interface), &copy, verdict);
    }

    /// ARP about pool addresses, which the kernel does not have. None: it is for the kernel.
    fn take_arp_of_pool(&mut self, interface: InterfaceId, port: PortIndex, payload: &[u8]) -> Option<Verdict> {
        let Ok(message) = Message::parse(payload) else { return Some(Verdict::ArpInvalid) };
        let is_kernels = |outlet: &Outlet<I>, address: u32| {
            outlet.kernel.as_ref().is_some_and(|kernel| kernel.owns(interface, address))
        };
        let answer = self.outlet.answerer.judge(interface, self.outlet.links.station(port), &message);
        if answer.conflict && !is_kernels(&self.outlet, message.sender_address) {
            self.outlet.defend(interface, message.sender_address);
            let (address, station) = (message.sender_address, message.sender_mac);
            self.outlet.conflicts.note(Learnt { interface, address, station });
            return Some(answer.verdict);
        }
        if !answer.reply || is_kernels(&self.outlet, message.target_address) {
            return None;
        }
        self.outlet.send_reply(interface, &message);
        Some(answer.verdict)
    }

    /// Counts a frame that ends at the link layer.
    fn refuse(&mut self, now: Instant, interface: Option<InterfaceId>, frame: &[u8], verdict: Verdict) {
        self.shard.counters_mut().count(verdict);
        if self.tracer.is_on() {
            self.tracer.record_link(now, interface, frame, verdict);
        }
    }

    fn take_arp(&mut self, interface: InterfaceId, port: PortIndex, payload: &[u8]) -> Verdict {
        let Ok(message) = Message::parse(payload) else { return Verdict::ArpInvalid };
        let answer = self.outlet.answerer.judge(interface, self.outlet.links.station(port), &message);
        if answer.conflict {
            self.outlet.defend(interface, message.sender_address);
            let (address, station) = (message.sender_address, message.sender_mac);
            self.outlet.conflicts.note(Learnt { interface, address, station });
        }
        if let Some(learnt) = answer.learnt {
            self.outlet.learn(learnt.interface, learnt.address, learnt.station);
            // What is said to us may be the answer another worker waits for. What is said to others
            // is not worth a message.
            if answer.verdict == Verdict::Local {
                for ring in self.outlet.crossings.learnt_to.iter_mut().flatten() {
                    // A full ring costs the other worker one more request.
                    let _ = ring.try_push(News::Learnt(learnt));
                }
            }
        }
        if answer.reply {
            self.outlet.send_reply(interface, &message);
        }
        answer.verdict
    }

    /// Has the shard decide on the packets that are ready.
    fn process_ready(&mut self, now: Instant) {
        if self.ready.is_empty() {
            return;
        }
        self.is_plain = false;
        let tracing = self.tracer.is_on();
        if tracing {
            self.tracer.note_packets(&mut self.ready, &self.starts);
        }
        let mut packets = PacketArray::new();
        let ready = self.ready.iter_mut().zip(self.starts.iter().zip(&self.metas));
        packets.extend(ready.map(|(buffer, (start, meta))| Packet::in_frame(buffer.frame_mut().0, *start, *meta)));
        if tracing {
            // One by one, so that the traced steps are those of this packet, after all earlier
            // packets.
            for (position, packet) in packets.iter_mut().enumerate() {
                if let Some(steps) = self.tracer.steps_of(position) {
                    self.shard.explain_packet(now, packet.meta, packet.bytes_mut(), steps);
                }
                self.shard.process(now, slice::from_mut(packet), &mut self.outlet);
            }
        } else {
            self.shard.process(now, &mut packets, &mut self.outlet);
        }
        let count = note_results(&mut self.results, &packets);
        drop(packets);
        if tracing {
            let results = self.results[..count].iter().map(|(outcome, verdict, _)| (*outcome, *verdict));
            self.tracer.record_packets(now, &mut self.ready, &self.metas, results, &self.outlet);
        }
        self.send_ready(count);
    }

    /// Does with each packet of the burst what the shard decided.
    #[inline]
    fn send_ready(&mut self, count: usize) {
        let results = &self.results[..count.min(BURST_MAX)];
        if !self.outlet.send_whole(&mut self.ready, results) {
            for (i, (mut buffer, (outcome, verdict, start))) in self.ready.drain().zip(results).enumerate() {
                match *outcome {
                    Outcome::Done => {
                        if let Some(verdict) = verdict.filter(|verdict| FOR_KERNEL.contains(verdict))
                            && self.outlet.kernel.is_some()
                        {
                            let ingress = self.metas.get(i).filter(|_| !self.is_plain).map(|meta| meta.ingress);
                            let ingress = ingress.unwrap_or(self.plain_ingress);
                            self.outlet.offer_to_kernel(ingress, buffer, *start, verdict);
                        }
                    }
                    Outcome::Transmit { egress, start, length } => {
                        self.outlet.send_packet(buffer, egress, (start, length), *verdict);
                    }
                    Outcome::HandOff { worker, meta } => {
                        let end = buffer.frame_mut().0.len() as u16;
                        // The packet, to the end of its frame: inside the buffer.
                        let _ = buffer.set_frame(*start, end.saturating_sub(*start));
                        self.outlet.hand_off_buffer(worker, buffer, meta);
                    }
                }
            }
        }
        self.settle();
    }

    /// After a panic inside [`Worker::poll`]: takes the packets the shard was working on, gives
    /// each to `keep`, and brings the counters back into balance with [`Verdict::Quarantined`].
    /// Returns how many packets were lost.
    pub fn recover(&mut self, mut keep: impl FnMut(&[u8])) -> u64 {
        if self.is_plain {
            self.starts =
                array::from_fn(|i| self.ready.get_mut(i).map_or(0, |buffer| buffer.frame_mut().1) + PLAIN_HEADER);
        }
        for (mut buffer, start) in self.ready.drain().zip(&self.starts) {
            keep(buffer.frame_mut().0.get(usize::from(*start)..).unwrap_or_default());
        }
        self.outlet.publish();
        self.settle();
        let counters = self.shard.counters_mut();
        let accounted =
            counters.verdicts_total() + counters.handed_off + counters.fragments_held + counters.neighbour_pending;
        let lost = (counters.received + counters.taken_over).saturating_sub(accounted);
        if let Some(place) = counters.verdicts.get_mut(Verdict::Quarantined.index()) {
            *place += lost;
        }
        lost
    }
}

#[cfg(test)]
pub(crate) mod tests;
