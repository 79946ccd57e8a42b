//! Packets whose neighbour is not known yet, and what the caches know.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::Verdict;
use nat::packet::Egress;
use nat::types::InterfaceId;
use nat::verdict::VerdictKind;
use nat::view::Query;
use packet_io::Buffer;
use packet_io::Io;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;

use super::LinkCounters;
use super::Outlet;
use super::ledger::Ledger;
use super::made_up_station;
use super::queues::Queue;
use super::source_of;
use super::station_of_group;
use crate::crossing::Crossing;
use crate::crossing::Neighbour;
use crate::kernel::end::Ask;
use crate::neighbour::Action;
use crate::neighbour::AnyView;
use crate::neighbour::Refusal;
use crate::neighbour::RouterView;
use crate::neighbour::cache::NeighbourView;
use crate::worker::LinkMode;

/// Neighbour actions taken in one poll: bounds the time a storm of timeouts can take from the
/// packets.
pub(crate) const NEIGHBOUR_ACTIONS_MAX: usize = 64;

/// Dropped packets kept in one poll, to report them to their senders.
pub(crate) const UNDELIVERED_MAX: usize = 64;

/// What waits for a neighbour.
#[derive(Debug)]
pub(crate) struct Waiting<B> {
    pub(crate) buffer: B,
    /// The verdict to count when it is sent; None when Natrix made it itself.
    pub(crate) verdict: Option<Verdict>,
}

impl<I: Io> Outlet<I> {
    /// As [`Outlet::send_packet`], for a next hop whose header is not ready.
    #[inline(never)]
    pub(super) fn send_by_neighbour(
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
        let refusal = held.err().map(|(waiting, refusal)| {
            if refusal == Refusal::Absent {
                self.keep_undelivered(to.interface, waiting);
            }
            refusal
        });
        self.note_held(refusal, verdict);
    }

    /// Keeps a dropped packet, unless Natrix made it itself, until the shard reports it to its
    /// sender.
    fn keep_undelivered(&mut self, interface: InterfaceId, Waiting { buffer, verdict }: Waiting<I::Buffer>) {
        // Forwarded fragments have no verdict either.
        let is_forwarded = verdict.map(|verdict| verdict.kind() == VerdictKind::Forwarded);
        if is_forwarded.unwrap_or_else(|| is_fragment(buffer.bytes())) {
            // Without a place there is no error. The rate limit permits few more in any case.
            let _ = self.undelivered.try_push((interface, buffer));
        }
    }

    /// The same for a packet that has a link header.
    pub(crate) fn keep_undelivered6(&mut self, interface: InterfaceId, mut waiting: Waiting<I::Buffer>) {
        let header = LinkHeader::parse(waiting.buffer.bytes()).map_or(0, |header| header.payload_offset());
        let (frame, start) = waiting.buffer.frame_mut();
        let (start, end) = (usize::from(start) + header, frame.len());
        if waiting.buffer.set_frame(start as u16, end.saturating_sub(start) as u16).is_some() {
            self.keep_undelivered(interface, waiting);
        }
    }

    /// After a packet was held, or refused. Its verdict was taken back.
    pub(crate) fn note_held(&mut self, refusal: Option<Refusal>, verdict: Option<Verdict>) {
        let reason = refusal.map(|refusal| match refusal {
            Refusal::Full => Verdict::NeighbourQueueFull,
            Refusal::Silent | Refusal::Absent => Verdict::NeighbourUnresolved,
        });
        match (reason, verdict) {
            (None, Some(_)) => self.ledger.pending += 1,
            (None, None) => {}
            (Some(reason), Some(_)) => self.ledger.add(reason, 1),
            (Some(_), None) => self.counters.originated_dropped += 1,
        }
    }

    /// Takes in what an ARP packet said, here or at another worker, and sends what waited for it.
    pub(crate) fn learn(&mut self, interface: InterfaceId, address: u32, station: MacAddress) -> bool {
        let known = self.neighbours.learn(self.now, interface, address, station);
        if known {
            self.act_for_neighbours();
        }
        known
    }

    pub(super) fn act_for_neighbours(&mut self) {
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
                Some(Action::Unresolved { packet, interface }) => {
                    self.give_up_waiting(packet.verdict, Verdict::NeighbourUnresolved);
                    self.keep_undelivered(interface, packet);
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
}

/// True also for a fragment in a softwire.
fn is_fragment(packet: &[u8]) -> bool {
    let is_fragment4 = |packet| Ipv4::new_checked(packet).is_ok_and(|packet| packet.is_fragment());
    match Ipv6::new_checked(packet) {
        Ok(outer) if outer.next_header() == ipv6::PROTOCOL_IPV4 => is_fragment4(outer.payload()),
        Ok(packet) => packet.next_header() == ipv6::HEADER_FRAGMENT,
        Err(_) => is_fragment4(packet),
    }
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
