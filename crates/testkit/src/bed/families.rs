//! IPv6 hosts for tests that know IPv4 packets only. In front of each host stands what customers
//! have: a CLAT (RFC 6877) in front of NAT64 hosts, a B4 (RFC 6333) in front of homes.
//!
//! ```text
//!   test:  IPv4 from or to 224.0.0.0/4 ── CLAT ── IPv6 ─┐
//!   test:  IPv4 from or to 240.0.0.0/4 ── B4 ─── IPv6 ──┼── Natrix
//!   test:  IPv4 of subscribers ─────────────────────────┘
//! ```
//!
//! So a test names a host by an address that no IPv4 host can have, and rules, pools and limits
//! for 0.0.0.0/0 or [`Transition::HOSTS`] mean it too. Each host is a subscriber of its own.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::HashMap;

use nat::Settings;
use nat::event::Event;
use nat::event::HostName;
use nat::settings::Address6;
use nat::settings::Nat64;
use nat::settings::Route6;
use nat::settings::Softwire;
use nat::settings::Transition;
use nat::stand_in::Prefix6;
use nat::types::HOSTS_FIRST;
use nat::types::InsideHost;
use nat::types::RealmId;
use nat::types::SOFTWIRE_HOSTS_FIRST;
use nat::view::HostView;
use translate::Kind;
use translate::Limits;
use translate::Tuple4;
use translate::Tuple6;
use wire::build6;
use wire::checksum::Delta;
use wire::icmp;
use wire::icmp::Icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::verify::Fault;
use wire::verify6;

use crate::topology;

/// Natrix's own address inside.
pub(super) const OWN: u128 = 0x2001_0db8_0001 << 80 | 1;
/// Routers inside. All IPv6 hosts are behind the first one, unless routes of the kernel lead to
/// others.
pub const ROUTERS: [u128; 3] = [0x2001_0db8_0001 << 80 | 2, 0x2001_0db8_0001 << 80 | 3, 0x2001_0db8_0001 << 80 | 4];
/// Where softwires end.
const AFTR: u128 = 0x2001_0db8_0001 << 80 | 0xaaaa;
/// The AFTR inside its softwires.
pub(super) const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// Every home has the same address behind its B4.
const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// First bits of the addresses of NAT64 hosts, and of B4s.
const NETWORKS: [u128; 2] = [0x2001_0db8 << 96, 0x3fff << 112];
/// Room in front of a packet for longer headers.
const ROOM: usize = 128;

/// The settings with NAT64 and softwires inside. A pool serves the hosts if its subscribers include
/// [`Transition::HOSTS`].
#[must_use]
pub fn with_families(mut settings: Settings) -> Settings {
    settings.ipv6.addresses = vec![Address6 { interface: topology::INSIDE, address: OWN.into(), prefix_length: 64 }];
    settings.ipv6.routes = vec![Route6 {
        prefix: Ipv6Addr::UNSPECIFIED,
        prefix_length: 0,
        next_hop: ROUTERS[0].into(),
        interface: topology::INSIDE,
    }];
    let realm = RealmId::default();
    settings.transition = Transition {
        nat64: vec![Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 }],
        softwires: vec![Softwire {
            aftr: AFTR.into(),
            realm,
            inner: vec![topology::prefix([192, 168, 0, 0], 16)],
            subscribers: Vec::new(),
        }],
        hosts_max: 2_000,
        ..Transition::default()
    };
    settings
}

/// A host of NAT64.
pub const fn nat64_host(number: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(HOSTS_FIRST | number as u32)
}

/// A host behind a B4.
pub const fn home(number: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(SOFTWIRE_HOSTS_FIRST | number as u32)
}

/// Whether an address means an IPv6 host.
fn is_host(address: u32) -> bool {
    address >= HOSTS_FIRST && address != u32::MAX
}

/// The IPv6 address of a host or its B4: the last 24 bits of its name make a /56 of its own.
fn address_of(name: u32) -> u128 {
    let network = NETWORKS[usize::from(name >= SOFTWIRE_HOSTS_FIRST)];
    network | u128::from(name & 0x00ff_ffff) << 72 | 1
}

/// The IPv6 address of the host, or of its B4, that an address means, if it means one.
pub(super) fn ipv6_of(address: Ipv4Addr) -> Option<u128> {
    is_host(address.to_bits()).then(|| address_of(address.to_bits()))
}

/// The name of the host with this IPv6 address, or of the subscriber with this prefix.
fn name_of(address: u128) -> Option<Ipv4Addr> {
    let number = (address >> 72) as u32 & 0x00ff_ffff;
    let [nat64, softwire] = NETWORKS.map(|network| address >> 96 == network >> 96);
    let first = if softwire { SOFTWIRE_HOSTS_FIRST } else { HOSTS_FIRST };
    (nat64 || softwire).then(|| Ipv4Addr::from_bits(first | number))
}

/// The host of this name, as the configuration names it.
pub fn inside_host(name: Ipv4Addr) -> InsideHost {
    match ipv6_of(name) {
        Some(address) if name.to_bits() < SOFTWIRE_HOSTS_FIRST => InsideHost::Ipv6(address.into()),
        Some(address) => InsideHost::BehindB4 { b4: address.into(), inner: HOME },
        None => InsideHost::Ipv4(name),
    }
}

/// The name of a host of the configuration, if it is one of these.
pub fn name_of_inside(host: &InsideHost) -> Option<Ipv4Addr> {
    match host {
        InsideHost::Ipv4(address) => Some(*address),
        InsideHost::Ipv6(address) | InsideHost::BehindB4 { b4: address, .. } => name_of(address.to_bits()),
    }
}

/// Whether a packet is what Natrix asks a NAT64 host before it ends an idle connection (RFC 6146
/// §3.5.2.2), behind the CLAT of the host.
pub fn is_probe(packet: &[u8]) -> bool {
    let view = Ipv4::new_unchecked(packet);
    let is_to_nat64 = (HOSTS_FIRST..SOFTWIRE_HOSTS_FIRST).contains(&view.destination());
    let segment = packet.get(ipv4::HEADER_LENGTH_MIN..).unwrap_or_default();
    // An empty ACK without numbers.
    let numbers = segment.get(4..12).is_some_and(|numbers| numbers.iter().all(|byte| *byte == 0));
    is_to_nat64 && view.protocol() == ipv4::PROTOCOL_TCP && segment.len() == 20 && numbers && segment[13] == 0x10
}

/// The IPv6 prefix of this length that a host is in.
///
/// # Panics
/// When the length is over 128.
pub fn prefix_of(host: Ipv4Addr, length: u8) -> Prefix6 {
    Prefix6::new(address_of(host.to_bits()), length).expect("a prefix length")
}

/// The address by which rules, filters and classes know an inside host, found the slow way.
pub fn ruled(settings: &Settings, host: Ipv4Addr) -> Ipv4Addr {
    let Some(address) = ipv6_of(host) else { return host };
    let all = settings.transition.stand_ins.iter().filter(|one| one.prefix.contains(address));
    let longest = all.max_by_key(|one| one.prefix.length());
    longest.map_or(Ipv4Addr::from_bits(HOSTS_FIRST), |one| one.block.last())
}

/// The devices in front of the hosts, and what they know.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// By worker and number in its events.
    numbers: HashMap<(usize, Ipv4Addr), Ipv4Addr>,
    /// Fragments of softwires that wait for the rest, by destination and identification.
    pieces: HashMap<(u128, u32), Vec<Vec<u8>>>,
}

impl Families {
    /// Without IPv6 hosts there is nothing to do.
    pub(super) fn of(settings: &Settings) -> Option<Families> {
        (!settings.transition.is_off()).then(Families::default)
    }

    /// The names of hosts instead of the numbers that they have for a while.
    pub(super) fn name_event(&mut self, worker: usize, mut event: Event) -> Event {
        if let Some(name) = HostName::of(&event).and_then(|host| name_of(host.address)) {
            self.numbers.insert((worker, event.subscriber), name);
        } else if is_host(event.subscriber.to_bits()) {
            let known = self.numbers.get(&(worker, event.subscriber));
            event.subscriber = *known.expect("the log has named each number before it uses it");
        }
        event
    }
}

/// The address of a subscriber as tests know it.
pub(super) fn name_of_view(address: Ipv4Addr, host: Option<&HostView>) -> Ipv4Addr {
    host.and_then(|host| name_of(host.address.to_bits())).unwrap_or(address)
}

/// The IPv6 packet of a host that sends this IPv4 packet; `None` for what no CLAT or B4 would
/// send on.
pub(super) fn to_ipv6(packet: &[u8]) -> Option<Vec<u8>> {
    let view = Ipv4::new_checked(packet).ok()?;
    let (name, packet) = (view.source(), view.packet());
    if !is_host(name) {
        return None;
    }
    if name >= SOFTWIRE_HOSTS_FIRST {
        let inner = renumbered(packet, name, HOME.to_bits())?;
        return Some(crate::packet6::softwire(address_of(name), AFTR, &inner));
    }
    let mut frame = [vec![0; ROOM].as_slice(), packet].concat();
    let headers = translate::read4(packet).ok()?;
    let prefix = translate::Prefix::WELL_KNOWN;
    let new = Tuple6 { source: address_of(name), destination: prefix.embed(headers.destination), ports: None };
    let quoted = match headers.kind {
        Kind::Error => {
            let quoted = translate::quoted4(packet, &headers).ok()?;
            Some(Tuple6 { source: prefix.embed(quoted.source), destination: address_of(name), ports: None })
        }
        _ => None,
    };
    let limits = Limits { mtu6: u16::MAX, lowest_mtu6: u16::MAX, is_hop: false, ..Limits::default() };
    let written = translate::to_ipv6(&mut frame, ROOM, &headers, &new, quoted.as_ref(), &limits).ok()?;
    Some(frame.get(written.start..written.start + written.length)?.to_vec())
}

impl Families {
    /// The IPv4 packet that a host gets out of this IPv6 packet, with the faults that it or the
    /// host sees; `None` while fragments are missing.
    ///
    /// # Panics
    /// When no CLAT or B4 would take the packet.
    pub(super) fn take(&mut self, packet: &[u8]) -> Option<(Vec<u8>, Vec<Fault>)> {
        let seen = fault_seen(packet);
        let packet = self.taken(packet)?;
        let mut faults = wire::verify::faults(&packet);
        faults.extend(seen.filter(|fault| !faults.contains(fault)));
        Some((packet, faults))
    }

    fn taken(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let view = Ipv6::new_unchecked(packet);
        let (source, destination) = (view.source(), view.destination());
        let Some(name) = name_of(destination).map(Ipv4Addr::to_bits) else {
            check_answer_to_stranger(packet);
            return None;
        };
        if name >= SOFTWIRE_HOSTS_FIRST {
            if view.next_header() == ipv6::PROTOCOL_ICMP6 && source == OWN {
                // An error about the softwire is for the B4 alone.
                return None;
            }
            assert_eq!(source, AFTR, "softwires come from the AFTR: {packet:02x?}");
            let whole = self.reassembled(packet)?;
            let inner = &whole[ipv6::HEADER_LENGTH..];
            return Some(renumbered(inner, HOME.to_bits(), name).expect("a softwire has an IPv4 packet"));
        }
        // Fragments of ICMPv6 are no CLAT's, but the host's itself.
        let packet = &if is_icmp6_fragment(packet) { self.reassembled(packet)? } else { packet.to_vec() }[..];
        let headers = translate::read6(packet).expect("a CLAT takes the packet");
        let prefix = translate::Prefix::WELL_KNOWN;
        let remote = if source == OWN { topology::OWN_INSIDE.to_bits() } else { prefix.extract(source) };
        let new = Tuple4 { source: remote, destination: name, ports: None };
        let quoted = (headers.kind == Kind::Error).then(|| {
            let quoted = translate::quoted6(packet, &headers).expect("an error quotes a packet");
            assert_eq!(quoted.source, destination, "an error about another host's packet: {packet:02x?}");
            Tuple4 { source: name, destination: prefix.extract(quoted.destination), ports: None }
        });
        let mut frame = [vec![0; ROOM].as_slice(), packet].concat();
        let limits = Limits { mtu4: u16::MAX, mtu6: u16::MAX, is_hop: false, ..Limits::default() };
        let written = translate::to_ipv4(&mut frame, ROOM, &headers, &new, quoted.as_ref(), 0, &limits);
        let written = written.expect("a CLAT translates the packet");
        Some(frame[written.start..written.start + written.length].to_vec())
    }

    /// A B4 puts the packets of its softwire together (RFC 6333 §5.3).
    fn reassembled(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let view = Ipv6::new_unchecked(packet);
        if view.next_header() != ipv6::HEADER_FRAGMENT {
            return Some(packet.to_vec());
        }
        let identification = ipv6::Fragment::at(packet, ipv6::HEADER_LENGTH).identification;
        let key = (view.destination(), identification);
        let pieces = self.pieces.entry(key).or_default();
        pieces.push(packet.to_vec());
        let whole = build6::reassemble(pieces)?;
        self.pieces.remove(&key);
        Some(whole)
    }
}

/// The fault that a right packet of Natrix may have, if it has it. Translation updates the
/// transport checksum of a quoted packet like that of any other and does not judge it (RFC 7915
/// §4.3, RFC 5508 REQ-3c), so one that was wrong stays wrong. Whether it was is known to the audit.
///
/// # Panics
/// When anything else is wrong.
fn fault_seen(packet: &[u8]) -> Option<Fault> {
    match verify6::faults(packet)[..] {
        [] => None,
        [verify6::Fault::QuotedTransportChecksum] => Some(Fault::QuotedTransportChecksum),
        ref faults => panic!("a wrong IPv6 packet leaves, {faults:?}: {packet:02x?}"),
    }
}

/// Bytes of a test may be an IPv6 packet of any source: it gets an ICMPv6 error about that packet
/// at most (RFC 4443 §2.4).
///
/// # Panics
/// When it gets anything else.
fn check_answer_to_stranger(packet: &[u8]) {
    let view = Ipv6::new_unchecked(packet);
    let is_error = view.next_header() == ipv6::PROTOCOL_ICMP6 && view.payload().first().is_some_and(|kind| *kind < 128);
    let quote = view.payload().get(icmp::HEADER_LENGTH..).unwrap_or_default();
    let is_about_it = quote.len() >= ipv6::HEADER_LENGTH && Ipv6::new_unchecked(quote).source() == view.destination();
    assert!(is_error && is_about_it && view.source() == OWN, "only hosts get packets: {packet:02x?}");
}

fn is_icmp6_fragment(packet: &[u8]) -> bool {
    let view = Ipv6::new_unchecked(packet);
    view.next_header() == ipv6::HEADER_FRAGMENT && view.payload().first() == Some(&ipv6::PROTOCOL_ICMP6)
}

/// The packet with another address of the inside host, also where an ICMP error quotes it. Wrong
/// checksums stay wrong.
fn renumbered(packet: &[u8], from: u32, to: u32) -> Option<Vec<u8>> {
    let view = Ipv4::new_checked(packet).ok()?;
    let (header, is_first) = (view.header_length(), view.fragment_offset_bytes() == 0);
    let is_icmp = view.protocol() == ipv4::PROTOCOL_ICMP;
    let end = view.packet().len();
    let mut packet = packet[..end].to_vec();
    replace(&mut packet, from, to);
    let message = packet.get_mut(header..).unwrap_or_default();
    if is_icmp && is_first && message.first().is_some_and(|kind| icmp::is_error(*kind)) {
        let was_valid = wire::checksum::is_icmp_valid(message);
        if let Some(quote) = message.get_mut(icmp::HEADER_LENGTH..).filter(|quote| quote.len() >= 20) {
            replace(quote, from, to);
        }
        if was_valid {
            Icmp::new_unchecked(message).fill_checksum();
        }
    }
    Some(packet)
}

/// Replaces an address wherever the header has it, and adjusts the checksums that cover it.
fn replace(packet: &mut [u8], from: u32, to: u32) {
    let delta = Delta::of_u32(from, to);
    for offset in [ipv4::SOURCE_OFFSET, ipv4::SOURCE_OFFSET + 4] {
        if packet.get(offset..offset + 4) != Some(&from.to_be_bytes()) {
            continue;
        }
        packet[offset..offset + 4].copy_from_slice(&to.to_be_bytes());
        adjust(packet, ipv4::CHECKSUM_OFFSET, |sum| delta.apply(sum));
        let view = Ipv4::new_unchecked(&*packet);
        let (start, protocol) = (view.header_length(), view.protocol());
        if view.fragment_offset_bytes() != 0 {
            continue;
        }
        match protocol {
            ipv4::PROTOCOL_UDP => adjust(packet, start + 6, |sum| delta.apply_udp(sum)),
            ipv4::PROTOCOL_TCP => adjust(packet, start + 16, |sum| delta.apply(sum)),
            _ => {}
        }
    }
}

fn adjust(packet: &mut [u8], offset: usize, change: impl Fn(u16) -> u16) {
    if let Some(field) = packet.get_mut(offset..).and_then(<[u8]>::first_chunk_mut::<2>) {
        *field = change(u16::from_be_bytes(*field)).to_be_bytes();
    }
}
