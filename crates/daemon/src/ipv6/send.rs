//! What a worker receives and sends by IPv6.

use core::net::Ipv6Addr;

use nat::Verdict;
use nat::own_icmp6;
use nat::types::InterfaceId;
use packet_io::Buffer;
use packet_io::Io;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::listener;
use wire::neighbour::LENGTH_MAX;
use wire::neighbour::Message;

use crate::crossing::News;
use crate::ipv6::Conflict6;
use crate::ipv6::node::Learnt6;
use crate::ipv6::node::Outcome6;
use crate::ipv6::node::Report;
use crate::kernel::end::Ask;
use crate::neighbour::Action;
use crate::neighbour::Refusal;
use crate::next_hop::FrameHeader;
use crate::outlet::NEIGHBOUR_ACTIONS_MAX;
use crate::outlet::Outlet;
use crate::outlet::Waiting;
use crate::outlet::give_up_waiting;
use crate::outlet::packet_of;
use crate::outlet::source_of;
use crate::worker::LinkMode;

/// Longest packet that an echo reply copies.
const ECHO_MAX: usize = 9_216;

impl<I: Io> Outlet<I> {
    /// Takes an IPv6 packet, with padding, of an interface that has IPv6, and answers it. Returns
    /// its verdict.
    pub(crate) fn take_ipv6(&mut self, interface: InterfaceId, header: &LinkHeader, packet: &[u8]) -> Verdict {
        let Some(link) = self.links.link(interface) else { return Verdict::LocalIgnored };
        let station = self.links.station(link.port);
        let is_group = header.destination.is_multicast();
        let judgement = self.node.judge(self.now, interface, (station, header.source), is_group, packet);
        if let Some(learnt) = judgement.learnt {
            self.learn6(learnt);
            self.publish_news(News::Learnt6(learnt));
        }
        let packet = packet.get(..Ipv6::new_unchecked(packet).length()).unwrap_or_default();
        match judgement.outcome {
            Outcome6::None => {}
            Outcome6::Advertise { reply, station } => self.send_message(interface, &reply, station),
            Outcome6::Duplicate(address) => {
                self.counters.address_conflicts += 1;
                let station = header.source;
                self.conflicts.note6(Conflict6 { interface, address, station, is_given_up: true });
                self.node.give_up(interface, address);
            }
            Outcome6::Claimed(address) => {
                let station = header.source;
                self.conflicts.note6(Conflict6 { interface, address, station, is_given_up: false });
                self.defend6(interface, address);
            }
            Outcome6::Echo { offset } => self.send_echo(interface, header.source, packet, offset),
            Outcome6::Error(problem) => {
                let Some(own) = self.node.error_source(interface, packet) else { return judgement.verdict };
                let mut error = [0; own_icmp6::ERROR_MAX];
                let length = own_icmp6::write_error(&mut error, problem, own, packet);
                self.send_by_route(interface, header.source, error.get(..length).unwrap_or_default());
            }
        }
        judgement.verdict
    }

    /// Takes in a station, learned here or at another worker, and sends what waited for it.
    pub(crate) fn learn6(&mut self, learnt: Learnt6) {
        let Learnt6 { interface, address, station, override_known } = learnt;
        let Some(station) = station else {
            self.neighbours6.confirm(self.now, interface, address);
            return;
        };
        // RFC 4861 §7.2.5: without the flag, another station does not replace the known one.
        if !override_known && self.neighbours6.lookup(interface, address).is_some_and(|known| known != station) {
            return;
        }
        if self.neighbours6.learn(self.now, interface, address, station) {
            self.act_for_neighbours6();
        }
    }

    /// Takes in what the kernel knows of a neighbour.
    pub(crate) fn learn6_of_kernel(&mut self, interface: InterfaceId, address: u128, station: Option<MacAddress>) {
        match station {
            Some(station) => {
                if self.neighbours6.learn(self.now, interface, address, station) {
                    self.act_for_neighbours6();
                }
            }
            None => self.neighbours6.forget(self.now, interface, address),
        }
    }

    /// Probes, announcements, questions, timeouts.
    #[inline(never)]
    pub(crate) fn maintain6(&mut self) {
        if self.node.awaits_links(self.now) {
            let Outlet { node, links, io, .. } = self;
            let is_up = |interface| links.link(interface).is_none_or(|link| io.link_up(link.port));
            node.look_at_links(self.now, is_up);
        }
        while let Some(report) = self.node.next_report(self.now) {
            self.send_report(&report);
        }
        while let Some(due) = self.node.next_due(self.now) {
            let Some(link) = self.links.link(due.interface) else { continue };
            let message = match due.is_probe {
                true => Message::probe(due.address),
                false => Message::announcement(due.address, self.links.station(link.port)),
            };
            self.send_message(due.interface, &message, None);
        }
        self.act_for_neighbours6();
    }

    fn act_for_neighbours6(&mut self) {
        for _ in 0..NEIGHBOUR_ACTIONS_MAX {
            match self.neighbours6.next_action(self.now) {
                None => break,
                Some(Action::Request { interface, address, .. }) if self.has_kernel(interface) => {
                    if let Some(kernel) = &mut self.kernel {
                        // If the ring is full, the cache asks again.
                        let _ = kernel.asks.try_push(Ask { interface, address: Ipv6Addr::from_bits(address).into() });
                    }
                }
                Some(Action::Request { interface, address, station }) => {
                    let own = self.node.own_address(interface, address);
                    let (Some(source), Some(link)) = (own, self.links.link(interface)) else { continue };
                    let mut question = Message::solicitation(source, self.links.station(link.port), address);
                    if station.is_some() {
                        // Unreachability detection asks the neighbour itself (RFC 4861 §7.3.3).
                        question.destination = address;
                    }
                    self.send_message(interface, &question, station);
                }
                Some(Action::Send { packet: Waiting { buffer, verdict }, interface, station }) => {
                    if let Some(verdict) = verdict {
                        self.ledger.count(verdict, packet_of(buffer.bytes()), 1);
                        self.ledger.pending -= 1;
                    }
                    self.send_to6(interface, station, buffer, verdict);
                }
                Some(Action::Unresolved { packet, interface }) => {
                    self.give_up_waiting(packet.verdict, Verdict::NeighbourUnresolved);
                    self.keep_undelivered6(interface, packet);
                }
            }
        }
    }

    /// RFC 4861 §7.2.6.
    fn defend6(&mut self, interface: InterfaceId, address: u128) {
        self.counters.address_conflicts += 1;
        if !self.defences.may_announce(self.now, interface, address) {
            return;
        }
        let Some(link) = self.links.link(interface) else { return };
        let message = Message::announcement(address, self.links.station(link.port));
        self.send_message(interface, &message, None);
    }

    fn send_message(&mut self, interface: InterfaceId, message: &Message, to: Option<MacAddress>) {
        let Some(link) = self.links.link(interface) else { return };
        let mut packet = [0; LENGTH_MAX];
        let length = message.write(&mut packet);
        let group = MacAddress(ipv6::station_of_group(message.destination));
        let header = self.links.header(link, to.unwrap_or(group), ETHER_TYPE_IPV6);
        match self.frame(&header, packet.get(..length).unwrap_or_default()) {
            Some(buffer) => self.send_frame(link.port, interface, buffer, None),
            None => self.counters.originated_dropped += 1,
        }
    }

    fn send_report(&mut self, report: &Report) {
        let Some(link) = self.links.link(report.interface) else { return };
        let mut packet = [0; listener::REPORT_MAX];
        let groups = report.groups.get(..report.groups_len).unwrap_or_default();
        let length = listener::write_report(&mut packet, report.source, report.record, groups);
        let station = MacAddress(ipv6::station_of_group(listener::ALL_LISTENER_ROUTERS));
        let header = self.links.header(link, station, ETHER_TYPE_IPV6);
        match self.frame(&header, packet.get(..length).unwrap_or_default()) {
            Some(buffer) => self.send_frame(link.port, report.interface, buffer, None),
            None => self.counters.originated_dropped += 1,
        }
    }

    /// The reply has no extension headers, whatever the request has.
    fn send_echo(&mut self, interface: InterfaceId, sender: MacAddress, request: &[u8], offset: usize) {
        let mut copy = [0; ECHO_MAX];
        let message = request.get(offset..).unwrap_or_default();
        let parts = copy.get_mut(..ipv6::HEADER_LENGTH + message.len()).zip(request.get(..ipv6::HEADER_LENGTH));
        let Some((packet, header)) = parts else {
            self.counters.originated_dropped += 1;
            return;
        };
        let (to_header, to_message) = packet.split_at_mut(ipv6::HEADER_LENGTH);
        to_header.copy_from_slice(header);
        to_message.copy_from_slice(message);
        Ipv6::new_unchecked(&mut *packet).set_payload_length(message.len() as u16);
        own_icmp6::echo(packet);
        self.send_by_route(interface, sender, packet);
    }

    /// Sends an own packet, which answers one that the station `sender` sent to `interface`.
    fn send_by_route(&mut self, interface: InterfaceId, sender: MacAddress, packet: &[u8]) {
        let destination = Ipv6::new_unchecked(packet).destination();
        let way = self.node.leads(interface, destination);
        let Some((interface, neighbour)) = way else {
            self.counters.originated_dropped += 1;
            return;
        };
        let Some(link) = self.links.link(interface) else { return };
        let header = self.links.header(link, MacAddress::default(), ETHER_TYPE_IPV6);
        let Some(buffer) = self.frame(&header, packet) else {
            self.counters.originated_dropped += 1;
            return;
        };
        // All answers have the same source. What they answer may have any.
        let [a, b, c, d, e, f] = sender.0;
        let source = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.send_to_neighbour6(source, (interface, neighbour), buffer, None);
    }

    /// Sends an IPv6 packet whose buffer is exactly as long as the packet by the routes of an
    /// interface's realm.
    pub(crate) fn send_ipv6(&mut self, mut buffer: I::Buffer, interface: InterfaceId, verdict: Option<Verdict>) {
        let (frame, start) = buffer.frame_mut();
        let length = frame.len() as u16 - start;
        let packet = frame.get(usize::from(start)..).unwrap_or_default();
        if packet.len() < ipv6::HEADER_LENGTH {
            return self.drop_packet(verdict, packet, Verdict::NoRoute);
        }
        let destination = Ipv6::new_unchecked(packet).destination();
        let Some((interface, neighbour)) = self.node.leads(interface, destination) else {
            return self.drop_packet(verdict, packet, Verdict::NoRoute);
        };
        let source = source_of(packet);
        let Some(header) = FrameHeader::with_type(&self.links, interface, ETHER_TYPE_IPV6) else {
            return self.drop_packet(verdict, packet, Verdict::NoRoute);
        };
        if header.write(&mut buffer, start, length).is_none() {
            return self.drop_packet(verdict, buffer.bytes(), Verdict::NoBuffer);
        }
        self.send_to_neighbour6(source, (interface, neighbour), buffer, verdict);
    }

    /// Sends a frame that lacks its destination station, and comes from `source`.
    fn send_to_neighbour6(
        &mut self,
        source: u64,
        (interface, neighbour): (InterfaceId, u128),
        buffer: I::Buffer,
        verdict: Option<Verdict>,
    ) {
        let station = match self.mode {
            _ if ipv6::is_multicast(neighbour) => Some(MacAddress(ipv6::station_of_group(neighbour))),
            LinkMode::Live => self.neighbours6.lookup(interface, neighbour),
            LinkMode::Offline => Some(made_up_station(neighbour)),
        };
        if let Some(station) = station {
            return self.send_to6(interface, station, buffer, verdict);
        }
        let packet = packet_of(buffer.bytes());
        let is_router = Ipv6::new_checked(packet).is_ok_and(|packet| packet.destination() != neighbour);
        if let Some(verdict) = verdict {
            self.ledger.count(verdict, packet, -1);
        }
        let (ledger, counters) = (&mut self.ledger, &mut self.counters);
        let give_back = |given_up: Waiting<I::Buffer>| {
            give_up_waiting(ledger, counters, given_up.verdict, Verdict::NeighbourQueueFull);
        };
        let waiting = Waiting { buffer, verdict };
        let held = self.neighbours6.hold(self.now, source, (interface, neighbour), waiting, give_back);
        if is_router {
            self.neighbours6.note_router(interface, neighbour);
        }
        let refusal = held.err().map(|(waiting, refusal)| {
            if refusal == Refusal::Absent {
                self.keep_undelivered6(interface, waiting);
            }
            refusal
        });
        self.note_held(refusal, verdict);
    }

    /// Sends a frame that lacks its destination station to this one.
    fn send_to6(
        &mut self,
        interface: InterfaceId,
        station: MacAddress,
        mut buffer: I::Buffer,
        verdict: Option<Verdict>,
    ) {
        let Some(link) = self.links.link(interface) else {
            return self.drop_packet(verdict, packet_of(buffer.bytes()), Verdict::NoRoute);
        };
        station.write(buffer.bytes_mut(), 0);
        self.send_frame(link.port, interface, buffer, verdict);
    }

    fn publish_news(&mut self, news: News) {
        for ring in self.crossings.learnt_to.iter_mut().flatten() {
            // A full ring costs the other worker one more question.
            let _ = ring.try_push(news);
        }
    }
}

/// The station of a host where there is none to ask.
fn made_up_station(address: u128) -> MacAddress {
    let [a, b, c, d] = (address as u32).to_be_bytes();
    MacAddress([2, 0, a, b, c, d])
}
