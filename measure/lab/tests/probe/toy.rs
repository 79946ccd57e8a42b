//! A toy NAT that can be wrong in every way the probe has a word for. Its table is a list; its
//! clock is the probe's own.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::VecDeque;

use lab::probe::Side;
use lab::probe::Site;
use lab::probe::World;
use lab::probe::mapping::Dependence;
use lab::probe::seen::Protocol;
use lab::probe::seen::Seen;
use lab::probe::world::Arrival;
use lab::probe::world::WorldError;
use wire::build;
use wire::tcp::Flags;

/// How a port is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// The inside port; the next free one when it is taken.
    Kept,
    /// The inside port, even if another host has it.
    Overloaded,
    /// As Linux does: what the inside endpoint has already, else the inside port, else by chance;
    /// each unless another has it towards the same server.
    Reused,
    /// One after the other.
    Sequential,
    /// By chance.
    Random,
}

/// What becomes of packets between two hosts inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hairpinning {
    Never,
    External,
    Internal,
}

/// What is done with a SYN for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnsolicitedSyn {
    Silence,
    ResetAtOnce,
    ErrorAtOnce,
    ErrorAfterSixSeconds,
}

/// What is done when the table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    RefuseSilently,
    RefuseAndTell,
    EvictOldest,
}

/// How it behaves. The default is right in everything it does.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    pub(crate) mapping: Dependence,
    pub(crate) filtering: Dependence,
    pub(crate) ports: Ports,
    /// Of those that are reused.
    pub(crate) port_range: RangeInclusive<u16>,
    pub(crate) low_ports_apart: bool,
    pub(crate) addresses: u32,
    pub(crate) is_paired: bool,
    /// So many hosts one after the other have the same address, and the next ones the next.
    pub(crate) hosts_an_address: Option<u32>,
    pub(crate) hairpinning: Hairpinning,
    pub(crate) passes_fragments: bool,
    pub(crate) needs_fragments_in_order: bool,
    /// Fragments of more bytes are lost.
    pub(crate) fragment_bytes_max: usize,
    /// Every n-th fragment is lost.
    pub(crate) loses_fragment_in: Option<usize>,
    pub(crate) decrements_ttl: bool,
    pub(crate) answers_ttl: bool,
    /// Errors are passed on with what they quote untouched.
    pub(crate) forgets_quotes: bool,
    pub(crate) passes_errors: bool,
    pub(crate) errors_end_flows: bool,
    pub(crate) checks_errors: bool,
    pub(crate) unsolicited_syn: UnsolicitedSyn,
    /// A SYN that is held is forgotten when the host opens the same connection.
    pub(crate) forgets_held_syns: bool,
    pub(crate) takes_syn_of_server: bool,
    pub(crate) resets_stray_segments: bool,
    pub(crate) idle: Duration,
    pub(crate) outbound_refreshes: bool,
    pub(crate) inbound_refreshes: bool,
    pub(crate) errors_refresh: bool,
    pub(crate) capacity: usize,
    pub(crate) full: Full,
}

impl Default for Ways {
    fn default() -> Ways {
        Ways {
            mapping: Dependence::Endpoint,
            filtering: Dependence::Endpoint,
            ports: Ports::Random,
            port_range: 0..=u16::MAX,
            low_ports_apart: true,
            addresses: 4,
            is_paired: true,
            hosts_an_address: None,
            hairpinning: Hairpinning::External,
            passes_fragments: true,
            needs_fragments_in_order: false,
            fragment_bytes_max: usize::MAX,
            loses_fragment_in: None,
            decrements_ttl: true,
            answers_ttl: true,
            forgets_quotes: false,
            passes_errors: true,
            errors_end_flows: false,
            checks_errors: true,
            unsolicited_syn: UnsolicitedSyn::ErrorAfterSixSeconds,
            forgets_held_syns: true,
            takes_syn_of_server: true,
            resets_stray_segments: false,
            idle: Duration::from_secs(20),
            outbound_refreshes: true,
            inbound_refreshes: false,
            errors_refresh: false,
            capacity: usize::MAX,
            full: Full::RefuseAndTell,
        }
    }
}

#[derive(Clone, Debug)]
struct Mapping {
    protocol: Protocol,
    internal: SocketAddrV4,
    external: SocketAddrV4,
    /// What it is for, as far as it depends on that.
    remote: Option<SocketAddrV4>,
    /// Servers this host has sent to.
    known: Vec<SocketAddrV4>,
    ends: Duration,
}

/// See the module.
pub(crate) struct Toy {
    ways: Ways,
    now: Duration,
    mappings: Vec<Mapping>,
    next_port: u16,
    random: u32,
    /// Of each: when to answer it, its source and external endpoint, and the answer.
    held_syns: Vec<(Duration, [SocketAddrV4; 2], Vec<u8>)>,
    pieces: Vec<Vec<u8>>,
    pieces_seen: usize,
    arrived: VecDeque<Arrival>,
}

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OWN_OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FIRST_EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
const SIX_SECONDS: Duration = Duration::from_secs(6);

impl Toy {
    pub(crate) fn new(ways: Ways) -> Toy {
        Toy {
            ways,
            now: Duration::ZERO,
            mappings: Vec::new(),
            next_port: 30_000,
            random: 1,
            held_syns: Vec::new(),
            pieces: Vec::new(),
            pieces_seen: 0,
            arrived: VecDeque::new(),
        }
    }

    pub(crate) fn site() -> Site {
        Site {
            first_inside: [10, 0, 1, 0].into(),
            inside_hosts: 8_192,
            first_remote: [198, 51, 100, 1].into(),
            remotes: 32,
            transit: [192, 0, 2, 77].into(),
        }
    }

    fn emit(&mut self, side: Side, packet: Vec<u8>) {
        self.arrived.push_back(Arrival { side, at: self.now, packet });
    }

    fn chance(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    /// The address of a host, or any.
    fn address(&mut self, internal: SocketAddrV4) -> Ipv4Addr {
        if let Some(hosts) = self.ways.hosts_an_address {
            let number = (internal.ip().to_bits() & 0xffff) / hosts;
            return Ipv4Addr::from_bits(FIRST_EXTERNAL.to_bits() + number % self.ways.addresses);
        }
        let number = if self.ways.is_paired { internal.ip().to_bits() } else { self.chance() };
        Ipv4Addr::from_bits(FIRST_EXTERNAL.to_bits() + number % self.ways.addresses)
    }

    /// A part of a remote endpoint that matters.
    fn part(dependence: Dependence, remote: SocketAddrV4) -> Option<SocketAddrV4> {
        match dependence {
            Dependence::Endpoint => None,
            Dependence::Address => Some(SocketAddrV4::new(*remote.ip(), 0)),
            Dependence::AddressAndPort => Some(remote),
        }
    }

    fn is_free(&self, protocol: Protocol, external: SocketAddrV4) -> bool {
        !self.mappings.iter().any(|mapping| mapping.protocol == protocol && mapping.external == external)
    }

    /// A port that is free towards this remote, even if others use it towards other remotes.
    fn shared(&mut self, protocol: Protocol, internal: SocketAddrV4, remote: Option<SocketAddrV4>) -> SocketAddrV4 {
        let of_protocol = |mapping: &&Mapping| mapping.protocol == protocol;
        let own = self.mappings.iter().filter(of_protocol).find(|mapping| mapping.internal == internal);
        let mut external = match own {
            Some(own) => own.external,
            None => SocketAddrV4::new(self.address(internal), internal.port()),
        };
        let is_taken = |toy: &Toy, external| {
            toy.mappings.iter().filter(of_protocol).any(|other| other.external == external && other.remote == remote)
        };
        let range = self.ways.port_range.clone();
        while is_taken(self, external) || !range.contains(&external.port()) {
            external.set_port(self.chance() as u16);
        }
        external
    }

    fn choose(&mut self, protocol: Protocol, internal: SocketAddrV4, remote: Option<SocketAddrV4>) -> SocketAddrV4 {
        if self.ways.ports == Ports::Reused {
            return self.shared(protocol, internal, remote);
        }
        let address = self.address(internal);
        let is_low = internal.port() < 1_024 && protocol != Protocol::Icmp && self.ways.low_ports_apart;
        loop {
            let port = match self.ways.ports {
                Ports::Overloaded | Ports::Reused => return SocketAddrV4::new(address, internal.port()),
                Ports::Kept if self.is_free(protocol, SocketAddrV4::new(address, internal.port())) => internal.port(),
                Ports::Kept | Ports::Sequential => {
                    self.next_port = self.next_port.checked_add(1).unwrap_or(30_000);
                    self.next_port
                }
                Ports::Random => 1_024 + (self.chance() % 64_512) as u16,
            };
            let port = if is_low { port % 1_023 + 1 } else { port };
            let external = SocketAddrV4::new(address, port);
            if self.is_free(protocol, external) {
                return external;
            }
        }
    }

    fn translated(&self, seen: &Seen, source: SocketAddrV4, destination: SocketAddrV4) -> Vec<u8> {
        let ttl = seen.ttl - u8::from(self.ways.decrements_ttl);
        let packet = match seen.protocol {
            Some(Protocol::Udp) => build::udp(source, destination).payload(&seen.payload),
            Some(Protocol::Tcp) => build::tcp(source, destination, seen.flags)
                .sequence(seen.sequence)
                .acknowledgment(seen.acknowledgment)
                .payload(&seen.payload),
            _ => {
                let (icmp_type, _) = seen.icmp.unwrap_or_default();
                let identifier = if icmp_type == 8 { source.port() } else { destination.port() };
                build::icmp_query(*source.ip(), *destination.ip(), icmp_type, identifier)
                    .sequence(seen.sequence)
                    .payload(&seen.payload)
            }
        };
        let identification = u16::from_be_bytes([seen.packet[4], seen.packet[5]]);
        packet.ttl(ttl).identification(identification).build()
    }

    fn live(&mut self) {
        let now = self.now;
        self.mappings.retain(|mapping| mapping.ends > now);
    }

    fn take_inside(&mut self, packet: &[u8]) {
        let Some(seen) = Seen::read(packet) else { return };
        if seen.is_icmp_error() {
            return self.error_from_inside(&seen);
        }
        let Some(protocol) = seen.protocol else { return };
        if seen.ttl <= 1 && self.ways.decrements_ttl {
            if self.ways.answers_ttl {
                let answer = build::icmp_error(OWN, *seen.source.ip(), 11, 0, &seen.packet).build();
                self.emit(Side::Inside, answer);
            }
            return;
        }
        let remote = Self::part(self.ways.mapping, seen.destination);
        let is_mine = |mapping: &Mapping| {
            mapping.protocol == protocol && mapping.internal == seen.source && mapping.remote == remote
        };
        let index = match self.mappings.iter().position(is_mine) {
            Some(index) => index,
            None => {
                if protocol == Protocol::Tcp && !seen.flags.contains(Flags::SYN) {
                    if self.ways.resets_stray_segments {
                        let reset = build::tcp(seen.destination, seen.source, Flags::RST).build();
                        self.emit(Side::Inside, reset);
                    }
                    return;
                }
                if self.mappings.len() >= self.ways.capacity {
                    match self.ways.full {
                        Full::RefuseSilently => return,
                        Full::RefuseAndTell => {
                            let told = build::icmp_error(OWN, *seen.source.ip(), 3, 1, &seen.packet).build();
                            return self.emit(Side::Inside, told);
                        }
                        Full::EvictOldest => drop(self.mappings.remove(0)),
                    }
                }
                let external = self.choose(protocol, seen.source, remote);
                let ends = self.now + self.ways.idle;
                let mapping = Mapping { protocol, internal: seen.source, external, remote, known: Vec::new(), ends };
                self.mappings.push(mapping);
                self.mappings.len() - 1
            }
        };
        let (now, refreshes, idle) = (self.now, self.ways.outbound_refreshes, self.ways.idle);
        let mapping = &mut self.mappings[index];
        if refreshes {
            mapping.ends = now + idle;
        }
        if !mapping.known.contains(&seen.destination) {
            mapping.known.push(seen.destination);
        }
        let external = mapping.external;
        if self.ways.forgets_held_syns && seen.flags == Flags::SYN {
            self.held_syns.retain(|(_, ends, _)| *ends != [seen.destination, external]);
        }
        if seen.destination.ip().octets()[..3] == FIRST_EXTERNAL.octets()[..3] {
            let source = match self.ways.hairpinning {
                Hairpinning::Never => return,
                Hairpinning::External => external,
                Hairpinning::Internal => seen.source,
            };
            return self.take_for_mapping(&seen, protocol, source);
        }
        let out = self.translated(&seen, external, seen.destination);
        self.emit(Side::Outside, out);
    }

    /// A packet for an external endpoint.
    fn take_for_mapping(&mut self, seen: &Seen, protocol: Protocol, source: SocketAddrV4) {
        let filtering = self.ways.filtering;
        let found = self.mappings.iter().position(|mapping| {
            mapping.protocol == protocol
                && mapping.external == seen.destination
                // Several may have the same external endpoint.
                && mapping.remote.is_none_or(|remote| Some(remote) == Self::part(self.ways.mapping, source))
                && (protocol == Protocol::Icmp
                    || Self::part(filtering, source).is_none()
                    || mapping.known.iter().any(|known| Self::part(filtering, *known) == Self::part(filtering, source)))
        });
        let Some(index) = found else { return self.unsolicited(seen) };
        if seen.flags == Flags::SYN && !self.ways.takes_syn_of_server && seen.source == source {
            return;
        }
        if seen.ttl <= 1 && self.ways.decrements_ttl {
            if self.ways.answers_ttl {
                let answer = build::icmp_error(OWN_OUTSIDE, *seen.source.ip(), 11, 0, &seen.packet).build();
                self.emit(Side::Outside, answer);
            }
            return;
        }
        if self.ways.inbound_refreshes {
            self.mappings[index].ends = self.now + self.ways.idle;
        }
        let internal = self.mappings[index].internal;
        let packet = self.translated(seen, source, internal);
        self.emit(Side::Inside, packet);
    }

    fn unsolicited(&mut self, seen: &Seen) {
        if seen.flags != Flags::SYN {
            return;
        }
        let error = build::icmp_error(OWN_OUTSIDE, *seen.source.ip(), 3, 3, &seen.packet).build();
        match self.ways.unsolicited_syn {
            UnsolicitedSyn::Silence => {}
            UnsolicitedSyn::ResetAtOnce => {
                let reset = build::tcp(seen.destination, seen.source, Flags::RST | Flags::ACK).build();
                self.emit(Side::Outside, reset);
            }
            UnsolicitedSyn::ErrorAtOnce => self.emit(Side::Outside, error),
            UnsolicitedSyn::ErrorAfterSixSeconds => {
                self.held_syns.push((self.now + SIX_SECONDS, [seen.source, seen.destination], error));
            }
        }
    }

    fn take_outside(&mut self, packet: &[u8]) {
        let Some(seen) = Seen::read(packet) else { return };
        match seen.protocol {
            _ if seen.is_icmp_error() => self.error_from_outside(&seen),
            Some(protocol) => self.take_for_mapping(&seen, protocol, seen.source),
            None => {}
        }
    }

    /// The quoted packet once more, with another source or destination.
    fn quote_of(seen: &Seen, source: Option<SocketAddrV4>, destination: Option<SocketAddrV4>) -> Vec<u8> {
        let Some(inner) = Seen::read(&seen.payload) else { return Vec::new() };
        let (source, destination) = (source.unwrap_or(inner.source), destination.unwrap_or(inner.destination));
        let packet = match inner.protocol {
            Some(Protocol::Tcp) => build::tcp(source, destination, inner.flags)
                .sequence(inner.sequence)
                .acknowledgment(inner.acknowledgment)
                .payload(&inner.payload),
            _ => build::udp(source, destination).payload(&inner.payload),
        };
        packet.ttl(inner.ttl).build()
    }

    fn mtu_of(seen: &Seen) -> u16 {
        u16::from_be_bytes([seen.packet[26], seen.packet[27]])
    }

    fn error_from_outside(&mut self, seen: &Seen) {
        if self.ways.checks_errors && !seen.faults().is_empty() {
            return;
        }
        let Some((from, _)) = seen.quoted() else { return };
        let Some(index) = self.mappings.iter().position(|mapping| mapping.external == from) else { return };
        let internal = self.mappings[index].internal;
        if self.ways.errors_end_flows {
            self.mappings.remove(index);
        } else if self.ways.errors_refresh {
            self.mappings[index].ends = self.now + self.ways.idle;
        }
        if !self.ways.passes_errors {
            return;
        }
        let quote =
            if self.ways.forgets_quotes { seen.payload.clone() } else { Self::quote_of(seen, Some(internal), None) };
        let (icmp_type, code) = seen.icmp.unwrap_or_default();
        let error = build::icmp_error(*seen.source.ip(), *internal.ip(), icmp_type, code, &quote);
        self.emit(Side::Inside, error.next_hop_mtu(Self::mtu_of(seen)).build());
    }

    fn error_from_inside(&mut self, seen: &Seen) {
        let Some((from, to)) = seen.quoted() else { return };
        let Some(mapping) = self.mappings.iter_mut().find(|mapping| mapping.internal == to) else { return };
        if self.ways.errors_refresh {
            mapping.ends = self.now + self.ways.idle;
        }
        if !self.ways.passes_errors {
            return;
        }
        let external = mapping.external;
        let (icmp_type, code) = seen.icmp.unwrap_or_default();
        // What is hairpinned goes back to a host inside.
        let peer = self.mappings.iter().find(|mapping| mapping.external == from).map(|mapping| mapping.internal);
        let source = if self.ways.forgets_quotes { *seen.source.ip() } else { *external.ip() };
        let quote =
            if self.ways.forgets_quotes { seen.payload.clone() } else { Self::quote_of(seen, peer, Some(external)) };
        let target = peer.unwrap_or(from);
        let error = build::icmp_error(source, *target.ip(), icmp_type, code, &quote).build();
        self.emit(if peer.is_some() { Side::Inside } else { Side::Outside }, error);
    }

    /// Fragments wait for one another; the datagram is translated whole and cut again.
    fn fragment(&mut self, side: Side, packet: &[u8]) {
        self.pieces_seen += 1;
        let is_nth = self.ways.loses_fragment_in.is_some_and(|nth| self.pieces_seen.is_multiple_of(nth));
        if !self.ways.passes_fragments || is_nth || packet.len() > self.ways.fragment_bytes_max {
            return;
        }
        // Pieces of another datagram have lost their others.
        if self.pieces.last().is_some_and(|last| last[4..6] != packet[4..6]) {
            self.pieces.clear();
        }
        let offset = |packet: &[u8]| u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff;
        let last = self.pieces.last().map(|last| offset(last));
        if self.ways.needs_fragments_in_order && last.is_some_and(|last| last > offset(packet)) {
            self.pieces.clear();
            return;
        }
        if self.ways.needs_fragments_in_order && last.is_none() && offset(packet) != 0 {
            return;
        }
        self.pieces.push(packet.to_vec());
        let Some(whole) = build::reassemble(&self.pieces) else { return };
        self.pieces.clear();
        let before = self.arrived.len();
        match side {
            Side::Inside => self.take_inside(&whole),
            Side::Outside => self.take_outside(&whole),
        }
        for arrival in self.arrived.split_off(before) {
            for piece in build::fragment(&arrival.packet, 576) {
                self.emit(arrival.side, piece);
            }
        }
    }
}

impl World for Toy {
    fn now(&self) -> Duration {
        self.now
    }

    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError> {
        self.live();
        let is_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
        match side {
            _ if is_fragment => self.fragment(side, packet),
            Side::Inside => self.take_inside(packet),
            Side::Outside => self.take_outside(packet),
        }
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError> {
        if self.arrived.is_empty() {
            match self.held_syns.first() {
                Some((due, ..)) if *due <= until => {
                    let (due, _, error) = self.held_syns.remove(0);
                    self.now = self.now.max(due);
                    self.emit(Side::Outside, error);
                }
                _ => self.now = self.now.max(until),
            }
        }
        Ok(self.arrived.pop_front())
    }
}
