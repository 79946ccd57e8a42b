//! The standard checks on every packet that comes out: the right side, the right addresses, all
//! checksums, TTL less by one, and nothing else changed. Each packet that goes in may come out
//! once.

use core::hash::Hash;
use core::hash::Hasher;
use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::VecDeque;
use std::hash::DefaultHasher;

use nat::Settings;
use nat::settings::RuleAction;
use nat::types::Side;
use wire::icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::quoted::Quoted;
use wire::udp;
use wire::udp::Udp;
use wire::verify;
use wire::verify::Fault;

use crate::bed::families::AFTR_INSIDE;
use crate::bed::families::is_probe;

/// Packets of a sort that are remembered, to be found again in pieces or in quotes.
const REMEMBERED_MAX: usize = 4_096;

/// Equal packets that went in and have not come out.
#[derive(Debug)]
struct Waiting {
    ttl: u8,
    faults: Vec<Fault>,
    count: u64,
}

impl Waiting {
    /// Whether a packet that came out has no fault but those it went in with.
    fn allows(&self, faults: &[Fault]) -> bool {
        faults.iter().all(|fault| self.faults.contains(fault))
    }
}

/// Watches what goes in and what comes out.
#[derive(Debug)]
pub struct Audit {
    pool: HashSet<Ipv4Addr>,
    own: [HashSet<Ipv4Addr>; 2],
    settings: Settings,
    /// By [`signature`].
    waiting: HashMap<u64, Vec<Waiting>>,
    /// Packets that had a fault when they went in: errors may quote them.
    faulty: VecDeque<Vec<u8>>,
    long: VecDeque<Vec<u8>>,
    mtu_min: usize,
    /// Ports of former gateways: the numbers of a connection stay shifted once they are.
    former: HashSet<u16>,
    /// Of endpoints that are registered: what their registrar sends there is read, too.
    registered: HashSet<u16>,
    /// Some packets are translated to IPv6 on their way, which changes more of their headers.
    has_families: bool,
    /// Packets that came out as they went in, but for what translation changes.
    pub translated: u64,
    /// The bytes of these, as they left.
    pub translated_bytes: u64,
    /// Pieces of packets that were too long for their way out.
    pub pieces: u64,
    /// Packets Natrix made itself.
    pub originated: u64,
}

impl Audit {
    /// Nothing seen yet.
    pub fn new(settings: &Settings) -> Audit {
        let own = |side| {
            let interfaces = settings.interfaces.iter().filter(|interface| interface.side == side);
            interfaces.flat_map(|interface| &interface.addresses).map(|own| own.address).collect::<HashSet<_>>()
        };
        let has_families = !settings.transition.is_off();
        let mut own_inside = own(Side::Inside);
        own_inside.extend(has_families.then_some(AFTR_INSIDE));
        let mtu_min = settings.interfaces.iter().map(|interface| usize::from(interface.mtu)).min().unwrap_or(0);
        Audit {
            pool: settings.pools.iter().flat_map(|pool| pool.addresses.iter().copied()).collect(),
            own: [own_inside, own(Side::Outside)],
            waiting: HashMap::new(),
            faulty: VecDeque::new(),
            former: HashSet::new(),
            registered: HashSet::new(),
            long: VecDeque::new(),
            mtu_min: if has_families { mtu_min.min(translate::DONT_FRAGMENT_ABOVE) } else { mtu_min },
            has_families,
            settings: settings.clone(),
            translated: 0,
            translated_bytes: 0,
            pieces: 0,
            originated: 0,
        }
    }

    /// Goes on under other settings. Addresses and subscribers of those before may still be in use.
    pub fn follow(&mut self, settings: &Settings) {
        self.pool.extend(settings.pools.iter().flat_map(|pool| pool.addresses.iter().copied()));
        let mut pools = settings.pools.clone();
        pools.append(&mut self.settings.pools);
        let subscribers: HashSet<_> = pools.iter().flat_map(|pool| pool.subscribers.iter().copied()).collect();
        pools.truncate(1);
        for pool in &mut pools {
            pool.subscribers = subscribers.iter().copied().collect();
        }
        self.former.extend(self.settings.gateways.iter().flat_map(|gateway| gateway.ports.iter().copied()));
        self.settings = Settings { pools, ..settings.clone() };
    }

    /// Gateways read what comes to an endpoint with these ports, inside and outside.
    pub fn registers(&mut self, ports: [u16; 2]) {
        self.registered.extend(ports);
    }

    /// Takes note of a packet that goes in.
    pub fn goes_in(&mut self, packet: &[u8]) {
        let Some(signature) = signature(packet, self.has_families) else { return };
        let Ok(view) = Ipv4::new_checked(packet) else { return };
        let (ttl, faults) = (view.ttl(), verify::faults(packet));
        if !faults.is_empty() {
            remember(&mut self.faulty, view.packet());
        }
        let alike = self.waiting.entry(signature).or_default();
        match alike.iter_mut().find(|one| one.ttl == ttl && one.faults == faults) {
            Some(one) => one.count += 1,
            None => alike.push(Waiting { ttl, faults, count: 1 }),
        }
        if view.packet().len() > self.mtu_min {
            remember(&mut self.long, view.packet());
        }
    }

    /// Checks a packet that came out.
    ///
    /// # Panics
    /// When anything is wrong with it.
    pub fn comes_out(&mut self, side: Side, packet: &[u8]) {
        self.comes_out_with(side, packet, verify::faults(packet));
    }

    /// As [`Audit::comes_out`], with the faults that its receiver sees: an IPv6 host sees more of a
    /// quoted packet than fits into the IPv4 error that a CLAT makes of it.
    ///
    /// # Panics
    /// When anything is wrong with it.
    pub fn comes_out_with(&mut self, side: Side, packet: &[u8], mut faults: Vec<Fault>) {
        let view = Ipv4::new_checked(packet).expect("what comes out is an IPv4 packet");
        assert_eq!(view.packet().len(), packet.len(), "bytes behind the packet left with it: {packet:02x?}");
        let source = Ipv4Addr::from_bits(view.source());
        // Subscribers may ask Natrix by its outside address too; its inside address means nothing
        // outside.
        let is_own = self.own[side.index()].contains(&source)
            || (side == Side::Inside && self.own[Side::Outside.index()].contains(&source));
        self.check_addresses(side, &view, is_own, packet);
        let signature = signature(packet, self.has_families).unwrap_or(0);
        // An address can be Natrix's own and a pool's: then what no host sent is Natrix's.
        let is_known = self.waiting.get(&signature).is_some_and(|waiting| {
            self.pool.contains(&source) && waiting.iter().any(|one| one.ttl == view.ttl().wrapping_add(1))
        });
        let is_piece = view.is_fragment() && self.long.iter().any(|whole| is_piece_of(&view, whole, self.has_families));

        let is_of_somebody = is_known || self.pool.contains(&source) && (is_piece || self.is_of_gateway(packet));
        if is_own && !is_of_somebody {
            // RFC 5508 REQ-3c: the checksum of what it quotes is not judged, so a wrong one stays.
            if self.quotes_faulty(&view) {
                faults.retain(|fault| *fault != Fault::QuotedTransportChecksum);
            }
            assert_eq!(faults, [], "Natrix's own packet is wrong: {packet:02x?}");
            self.originated += 1;
            return;
        }
        // A piece may look like a fragment that came as one.
        let is_whole = |waiting: &[Waiting]| waiting.iter().any(|one| one.ttl == view.ttl().wrapping_add(1));
        if let Some(candidates) = self.waiting.get_mut(&signature)
            && (!is_piece || is_whole(candidates))
        {
            // RFC 1812 §5.3.1: less by one, also through a hairpin.
            let ttl = view.ttl().wrapping_add(1);
            // The same packet may have come in twice, sound and broken.
            let position = candidates.iter().position(|one| one.ttl == ttl && one.allows(&faults));
            let Some(position) = position else {
                panic!(
                    "TTL came out as {}, faults {faults:?}; went in as in {candidates:?}: {packet:02x?}",
                    view.ttl()
                );
            };
            let original = &mut candidates[position];
            original.count -= 1;
            if original.count == 0 {
                candidates.swap_remove(position);
            }
            if candidates.is_empty() {
                self.waiting.remove(&signature);
            }
            self.translated += 1;
            return;
        }
        assert!(view.is_checksum_valid(), "header checksum is wrong: {packet:02x?}");
        if self.has_families && side == Side::Inside && is_probe(packet) {
            assert_eq!(faults, [], "a probe is wrong: {packet:02x?}");
            self.originated += 1;
            return;
        }
        if self.is_of_gateway(packet) || self.quotes_gateway(&view) {
            // What it quotes may have been wrong before.
            faults.retain(|fault| *fault != Fault::QuotedTransportChecksum);
            assert_eq!(faults, [], "a changed packet is wrong: {packet:02x?}");
            self.translated += 1;
            return;
        }
        // What a gateway changed may be too long for its link.
        let is_transport = matches!(view.protocol(), 6 | 17);
        let is_changed_piece = view.is_fragment() && is_transport && !self.settings.gateways.is_empty();
        assert!(
            is_piece || is_changed_piece,
            "nobody sent this on the {} side, or it was altered: {packet:02x?}",
            side.name()
        );
        self.pieces += 1;
    }

    /// An ICMP error about a packet that was not right when it went in.
    fn quotes_faulty(&self, view: &Ipv4<&[u8]>) -> bool {
        let error = icmp::Icmp::new_checked(view.payload()).ok().filter(|_| view.protocol() == ipv4::PROTOCOL_ICMP);
        let Some(error) = error.filter(|error| icmp::is_error(error.icmp_type())) else { return false };
        let Ok(quoted) = Quoted::new_checked(error.quote()) else { return false };
        let protocol = quoted.header().protocol();
        let masked = |transport: &[u8]| {
            let mut transport = transport.to_vec();
            mask_transport(&mut transport, protocol, false);
            if protocol == ipv4::PROTOCOL_UDP {
                mask(&mut transport, udp::CHECKSUM_OFFSET, 2);
            }
            transport
        };
        let quote = masked(quoted.transport());
        self.faulty.iter().any(|whole| {
            let whole = Ipv4::new_unchecked(whole.as_slice());
            whole.protocol() == protocol && masked(whole.payload()).starts_with(&quote)
        })
    }

    /// An ICMP error about a segment of a gateway's session: the sequence number may have changed.
    fn quotes_gateway(&self, view: &Ipv4<&[u8]>) -> bool {
        if view.protocol() != 1 || view.is_fragment() {
            return false;
        }
        let error = icmp::Icmp::new_checked(view.payload()).ok();
        let Some(error) = error.filter(|error| icmp::can_carry_extensions(error.icmp_type())) else {
            return false;
        };
        let ports = Quoted::new_checked(error.quote()).ok().filter(|quoted| quoted.header().protocol() == 6);
        let Some((source, destination)) = ports.and_then(|quoted| quoted.ports()) else { return false };
        self.is_port_of_gateway(6, [source, destination])
    }

    /// A gateway may change the payload and the sequence numbers of its sessions.
    fn is_of_gateway(&self, packet: &[u8]) -> bool {
        let header = crate::packet::header(packet);
        if !matches!(header.protocol(), 6 | 17) || header.is_fragment() {
            return false;
        }
        let ports = [crate::packet::source(packet).port(), crate::packet::destination(packet).port()];
        self.is_port_of_gateway(header.protocol(), ports)
    }

    fn is_port_of_gateway(&self, protocol: u8, ports: [u16; 2]) -> bool {
        let is_former = protocol == 6 && ports.iter().any(|port| self.former.contains(port));
        let is_registered = ports.iter().any(|port| self.registered.contains(port));
        is_former
            || is_registered
            || self.settings.gateways.iter().flat_map(|gateway| &gateway.ports).any(|port| ports.contains(port))
    }

    fn check_addresses(&self, side: Side, view: &Ipv4<&[u8]>, is_own: bool, packet: &[u8]) {
        let source = Ipv4Addr::from_bits(view.source());
        let destination = Ipv4Addr::from_bits(view.destination());
        let is_inside = |address| {
            self.settings.pools.iter().flat_map(|pool| &pool.subscribers).any(|prefix| prefix.contains(address))
        };
        let passes = |protocol, inside, outside| {
            let mut rules = self.settings.pass_rules.iter();
            rules
                .any(|rule| rule.protocol == protocol && rule.inside.contains(inside) && rule.outside.contains(outside))
        };
        let (inside, outside) = if side == Side::Outside { (source, destination) } else { (destination, source) };
        let passed = passes(view.protocol(), inside, outside)
            || quoted_ends(view).is_some_and(|(protocol, from, to)| {
                let (inside, outside) = if side == Side::Outside { (to, from) } else { (from, to) };
                from == destination && passes(protocol, inside, outside)
            });
        let untranslated = self.settings.rules.iter().any(|rule| {
            rule.action == RuleAction::NoTranslation
                && rule.matches.source.contains(inside)
                && rule.matches.destination.contains(outside)
        });
        if passed || untranslated {
            return;
        }
        match side {
            Side::Outside => {
                assert!(
                    is_own || self.pool.contains(&source),
                    "source {source} left outside, which is no pool's: {packet:02x?}"
                );
                assert!(!is_inside(destination), "destination {destination} is inside but left outside: {packet:02x?}");
            }
            Side::Inside => {
                assert!(
                    is_own || !is_inside(source),
                    "inside source {source} was shown to a subscriber: {packet:02x?}"
                );
                assert!(
                    !self.pool.contains(&destination),
                    "external destination {destination} left inside: {packet:02x?}"
                );
            }
        }
    }
}

/// Protocol, source and destination of the packet that an ICMP error quotes.
fn quoted_ends(view: &Ipv4<&[u8]>) -> Option<(u8, Ipv4Addr, Ipv4Addr)> {
    let message = view.payload();
    let is_error = view.protocol() == ipv4::PROTOCOL_ICMP && message.first().is_some_and(|kind| [3, 11].contains(kind));
    let quoted = message.get(8..).filter(|quoted| is_error && quoted.len() >= ipv4::HEADER_LENGTH_MIN)?;
    let header = Ipv4::new_unchecked(quoted);
    Some((header.protocol(), Ipv4Addr::from_bits(header.source()), Ipv4Addr::from_bits(header.destination())))
}

/// Whether a fragment's bytes are those of `whole` at the same place, but for what translation
/// changes; that to IPv6 loses Don't Fragment.
fn is_piece_of(piece: &Ipv4<&[u8]>, whole: &[u8], has_families: bool) -> bool {
    let Ok(whole) = Ipv4::new_checked(whole) else { return false };
    let Some(start) = piece.fragment_offset_bytes().checked_sub(whole.fragment_offset_bytes()) else { return false };
    if piece.protocol() != whole.protocol()
        || piece.ds_field() != whole.ds_field()
        || piece.ttl().wrapping_add(1) != whole.ttl()
        || piece.dont_fragment() != whole.dont_fragment() && !has_families
    {
        return false;
    }
    // What may have changed is known of the whole only: put the piece in its place there.
    let mut spliced = whole.payload().to_vec();
    let Some(place) = spliced.get_mut(start..start + piece.payload().len()) else { return false };
    place.copy_from_slice(piece.payload());
    let is_first = start == 0 && whole.fragment_offset_bytes() == 0 && whole.protocol() == ipv4::PROTOCOL_UDP;
    if has_families && is_first && checksum_of_udp(whole.payload()) == 0 && checksum_of_udp(&spliced) != 0 {
        // RFC 7915 §4.5: translation to IPv6 computes the checksum that is missing.
        let length = usize::from(Udp::new_unchecked(spliced.as_slice()).length());
        let datagram = spliced.get(..length).unwrap_or_default();
        if !wire::checksum::is_udp_valid(piece.source(), piece.destination(), datagram) {
            return false;
        }
        mask(&mut spliced, udp::CHECKSUM_OFFSET, 2);
    }
    if whole.fragment_offset_bytes() == 0 {
        mask_transport(&mut spliced, whole.protocol(), true);
    }
    spliced == masked_transport(&whole)
}

/// Of a datagram; 0 for none.
fn checksum_of_udp(datagram: &[u8]) -> u16 {
    datagram.get(udp::CHECKSUM_OFFSET..).and_then(<[u8]>::first_chunk).map_or(0, |sum| u16::from_be_bytes(*sum))
}

/// A hash of all bytes of a packet that translation must not change. None: not an IPv4 packet.
///
/// Left out are addresses, ports, query identifier, checksums, identification, TTL; in a quoted
/// packet the same but identification and TTL. Whether a UDP checksum is zero stays in. Translation
/// to IPv6 also loses options and Don't Fragment, computes a UDP checksum, and changes the MTU and
/// the quoted header of an ICMP error (RFC 7915).
fn signature(packet: &[u8], has_families: bool) -> Option<u64> {
    let view = Ipv4::new_checked(packet).ok()?;
    let mut hasher = DefaultHasher::new();
    if has_families {
        let place = (view.fragment_offset_bytes(), view.more_fragments());
        (view.ds_field(), view.protocol(), place).hash(&mut hasher);
        let mut transport = masked_transport(&view);
        if view.protocol() == ipv4::PROTOCOL_UDP && place.0 == 0 {
            mask(&mut transport, 6, 2);
        }
        if view.protocol() == ipv4::PROTOCOL_ICMP
            && place.0 == 0
            && transport.first().is_some_and(|kind| icmp::is_error(*kind))
        {
            // The MTU, and the header of the quoted packet.
            mask(&mut transport, 4, 4);
            mask(&mut transport, icmp::HEADER_LENGTH, ipv4::HEADER_LENGTH_MIN);
            // RFC 4884 §3: in ICMPv6 the quote in front of an extension is padded to eight bytes,
            // and a Packet Too Big has none.
            let layout = icmp::extension_layout(view.payload());
            let is_too_big =
                transport.starts_with(&[icmp::TYPE_DESTINATION_UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED]);
            if !layout.extension.is_empty() && !is_too_big {
                transport.get(layout.extension).hash(&mut hasher);
            }
            transport.truncate(layout.quote.end);
            while transport.last() == Some(&0) {
                transport.pop();
            }
        }
        transport.hash(&mut hasher);
        return Some(hasher.finish());
    }
    let mut header = view.header().to_vec();
    mask(&mut header, ipv4::IDENTIFICATION_OFFSET, 2);
    mask(&mut header, ipv4::TTL_OFFSET, 1);
    mask(&mut header, ipv4::CHECKSUM_OFFSET, 2);
    mask(&mut header, ipv4::SOURCE_OFFSET, 8);
    header.hash(&mut hasher);
    masked_transport(&view).hash(&mut hasher);
    Some(hasher.finish())
}

fn remember(packets: &mut VecDeque<Vec<u8>>, packet: &[u8]) {
    if packets.len() == REMEMBERED_MAX {
        packets.pop_front();
    }
    packets.push_back(packet.to_vec());
}

fn masked_transport(view: &Ipv4<&[u8]>) -> Vec<u8> {
    let mut transport = view.payload().to_vec();
    if view.fragment_offset_bytes() == 0 {
        mask_transport(&mut transport, view.protocol(), true);
    }
    transport
}

fn mask_transport(transport: &mut [u8], protocol: u8, may_quote: bool) {
    match protocol {
        ipv4::PROTOCOL_UDP => {
            mask(transport, 0, 4);
            if transport.get(6..8) != Some(&[0, 0]) {
                mask(transport, 6, 2);
                // Distinguishes "some checksum" from "none".
                if let Some(byte) = transport.get_mut(7) {
                    *byte = 1;
                }
            }
        }
        ipv4::PROTOCOL_TCP => {
            mask(transport, 0, 4);
            mask(transport, 16, 2);
        }
        // The call identifier of PPTP.
        47 if transport.get(2..4) == Some(&[0x88, 0x0b]) => mask(transport, 6, 2),
        ipv4::PROTOCOL_ICMP => {
            mask(transport, icmp::CHECKSUM_OFFSET, 2);
            match transport.first() {
                Some(&icmp_type) if icmp::is_query(icmp_type) => mask(transport, icmp::IDENTIFIER_OFFSET, 2),
                Some(&icmp_type) if icmp::is_error(icmp_type) && may_quote => {
                    if let Some(quote) = transport.get_mut(icmp::HEADER_LENGTH..) {
                        mask_quote(quote);
                    }
                }
                _ => {}
            }
        }
        _ => {}
    }
}

fn mask_quote(quote: &mut [u8]) {
    let Some(&first) = quote.first() else { return };
    mask(quote, ipv4::CHECKSUM_OFFSET, 2);
    mask(quote, ipv4::SOURCE_OFFSET, 8);
    let is_later = quote.get(6..8).is_some_and(|bits| bits[0] & 0x1f != 0 || bits[1] != 0);
    let protocol = quote.get(ipv4::PROTOCOL_OFFSET).copied().unwrap_or(0);
    if let Some(transport) = quote.get_mut(usize::from(first & 15) * 4..)
        && !is_later
    {
        mask_transport(transport, protocol, false);
    }
}

fn mask(bytes: &mut [u8], offset: usize, length: usize) {
    let end = (offset + length).min(bytes.len());
    if let Some(field) = bytes.get_mut(offset..end) {
        field.fill(0);
    }
}
