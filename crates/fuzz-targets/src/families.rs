//! Claims about hosts in softwires and hosts of NAT64, beside IPv4 subscribers in one pool.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Settings;
use nat::Shard;
use nat::Verdict;
use nat::settings::Filtering;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::view::MappingView;
use testkit::Variants;
use testkit::at;
use testkit::bed6::AFTR;
use testkit::bed6::Bed6;
use testkit::bed6::behind;
use testkit::bed6::settings6;
use testkit::bed6::v6;
use testkit::packet;
use testkit::packet6;

use testkit::topology::E1;
use testkit::topology::E2;
use testkit::topology::INSIDE;
use testkit::topology::OUTSIDE;
use testkit::topology::POOL;
use wire::build;
use wire::build6;
use wire::icmp;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::tcp::Flags;

use crate::dice::Dice;
use crate::engine::RESOURCES;

/// Steps of an input at most, so that each input takes milliseconds.
const STEPS_MAX: usize = 200;

/// Milliseconds.
const PAUSES: [u64; 8] = [1, 100, 1_000, 6_000, 21_000, 120_000, 300_000, 7_440_000];

/// Mostly addresses of B4s, two of one customer.
const B4S: [&str; 8] = [
    "2001:db8:c:100::6",
    "2001:db8:c:1ff::6",
    "2001:db8:d:200::6",
    "2001:db8:c:100::6",
    "fe80::1",
    "::1",
    AFTR,
    "64:ff9b::c633:6401",
];

const HOMES: [Ipv4Addr; 8] = [
    Ipv4Addr::new(192, 168, 1, 2),
    Ipv4Addr::new(192, 168, 1, 3),
    Ipv4Addr::new(192, 168, 1, 2),
    Ipv4Addr::new(192, 0, 0, 2),
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::new(224, 0, 0, 1),
    E1,
];

fn settings(dice: &mut Dice<'_>) -> Settings {
    let (how, sizes) = (dice.byte(), dice.byte());
    let filtering = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    let mtus = [1_500, 1_280, 1_281, 9_000];
    let mut settings = settings6()
        .addresses(&POOL[..1])
        .filtering(filtering[usize::from(how & 3) % 3])
        .mtu(mtus[usize::from(how >> 2 & 3)], mtus[usize::from(how >> 4 & 3)])
        .limits(|limits| {
            limits.mappings_max = 60;
            limits.extra_sessions_max = 40;
            limits.subscribers_max = if sizes & 1 == 0 { 20 } else { 3 };
            limits.fragmented_datagrams_max = 12;
            limits.fragments_held_max = 10;
            limits.unsolicited_syns_max = 8;
            limits.held_ports_max = 40;
        });
    settings.transition.hosts_max = if sizes & 2 == 0 { 60 } else { 4 };
    settings.transition.hosts_per_subscriber_max = if sizes & 4 == 0 { 20 } else { 1 };
    settings.icmp.answer_echo = sizes & 8 == 0;
    if how & 64 != 0 {
        settings = settings.ports(2_000, 2_003);
    }
    settings
}

/// Where the payload of UDP begins in an IPv4 packet without options.
const UDP_PAYLOAD: usize = 28;

struct Run {
    bed: Bed6,
    workers: usize,
    /// IPv4 packets that left outside.
    left: Vec<Vec<u8>>,
    /// IPv4 packets that hosts in softwires got.
    got: Vec<Vec<u8>>,
    /// What hosts sent behind the headers of UDP.
    sent: Vec<Vec<u8>>,
    identification: u32,
}

/// Lets all timers run out: those of fragments, then of sessions, then of ports that rest.
fn run_out(bed: &mut Bed6) {
    for pause in [60, 3 * 60 * 60, 60 * 60] {
        bed.jump(Duration::from_secs(pause));
        bed.sweep();
    }
}

/// Whatever comes in softwires: each packet has one verdict, a datagram that leaves has the payload
/// of one that came, an answer reaches the B4 and the address behind it that have the mapping, each
/// explanation comes true, and nothing is left in the end.
pub fn softwire_path(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let settings = settings(&mut dice);
    let workers = 1 + usize::from(dice.byte() & 1);
    let mut run = Run {
        bed: Bed6::with_workers(settings, workers),
        workers,
        left: Vec::new(),
        got: Vec::new(),
        sent: Vec::new(),
        identification: 0,
    };
    for _ in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        run.step(&mut dice);
    }
    run_out(&mut run.bed);
    assert!(run.bed.shards().iter().all(Shard::is_empty), "something is left");
}

impl Run {
    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.byte() % 16 {
            0..=6 => self.softwire(dice),
            7 | 8 => self.answer(dice),
            9 => self.error(dice),
            10 => {
                let to = self.destination(dice);
                let port = 5_000 + u16::from(dice.byte() & 3);
                let host = v6(B4S[usize::from(dice.byte() & 3)]);
                self.sent.push(b"nat64".to_vec());
                self.feed(dice, INSIDE, &packet6::udp6((host, port), (behind(*to.ip()), to.port()), b"nat64"));
            }
            11 => {
                let (to, host) = (self.destination(dice), Ipv4Addr::new(100, 64, 0, 10 + (dice.byte() & 3)));
                self.sent.push(b"nat44".to_vec());
                self.feed(dice, INSIDE, &build::udp(at(host, 5_000), to).payload(b"nat44").build());
            }
            12 | 13 => {
                let pause = Duration::from_millis(dice.pick(&PAUSES));
                let outs = if pause > Duration::from_secs(30) {
                    self.bed.jump(pause);
                    [Vec::new(), Vec::new()]
                } else {
                    self.bed.advance(pause)
                };
                self.note(outs);
            }
            14 => {
                let outs = self.bed.sweep();
                self.note(outs);
            }
            _ => {
                let length = usize::from(dice.byte());
                let bytes = dice.bytes(length);
                let packet = build6::raw(v6(B4S[0]).into(), v6(AFTR).into(), dice.byte(), bytes);
                self.sent.extend(bytes.get(UDP_PAYLOAD..).map(<[u8]>::to_vec));
                self.feed(dice, INSIDE, &packet);
            }
        }
    }

    /// A server, another host's external endpoint, or the AFTR itself.
    fn destination(&self, dice: &mut Dice<'_>) -> SocketAddrV4 {
        match (dice.byte() & 7, dice.pick_some(&self.left)) {
            (0, Some(sent)) => packet::source(sent),
            (1, _) => at(Ipv4Addr::new(192, 0, 0, 1), 7),
            (2, _) => at(E2, 53),
            _ => at(E1, 443),
        }
    }

    fn softwire(&mut self, dice: &mut Dice<'_>) {
        let b4 = v6(B4S[usize::from(dice.byte() & 15) % 8 * usize::from(dice.byte() & 3 == 0)]);
        let how = dice.byte();
        let home = HOMES[usize::from(how & 7)];
        let (to, port) = (self.destination(dice), 5_000 + u16::from(dice.byte() & 3));
        let length = [8, 8, 100, 1_400, 1_460, 4_000, 0, 8][usize::from(how >> 3 & 7)];
        let (from, flags) = (at(home, port), Flags(dice.byte()));
        let mut inner = match dice.byte() % 8 {
            0..3 => build::udp(from, to).payload_length(length).build(),
            3..5 => build::tcp(from, to, flags).payload_length(length).build(),
            5 => build::echo_request(home, *to.ip(), port).payload_length(length).build(),
            6 => match dice.pick_some(&self.got) {
                // About a packet that the host got.
                Some(about) => {
                    let quote = about.get(..100).unwrap_or(about);
                    build::icmp_error(home, *packet::source(about).ip(), 3, dice.byte() % 16, quote).build()
                }
                None => build::raw(home, *to.ip(), 47).payload_length(20).build(),
            },
            _ => packet6::softwire(b4, v6(AFTR), &build::udp(from, to).payload(b"nested").build()),
        };
        let spoil = dice.byte();
        if spoil & 1 != 0 {
            // Any byte of the header, which its checksum shows; or one that means nothing to the
            // transport's, with a right checksum.
            let is_right = spoil & 2 != 0;
            let offset =
                if is_right { [1, 2, 3, 6, 7, 8][usize::from(spoil >> 2) % 6] } else { usize::from(spoil >> 2) };
            if let Some(byte) = inner.get_mut(offset).filter(|_| offset < 20) {
                *byte ^= dice.byte();
            }
            if is_right && inner.len() >= 20 && inner[0] == 0x45 {
                Ipv4::new_unchecked(inner.as_mut_slice()).fill_checksum();
            }
        }
        self.sent.extend(inner.get(UDP_PAYLOAD..).map(<[u8]>::to_vec));
        let mut outer = packet6::softwire(b4, v6(AFTR), &inner);
        if spoil & 4 != 0 {
            outer = build6::with_extension(&outer, ipv6::HEADER_DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]);
        }
        if spoil & 8 != 0 {
            let offset = usize::from(dice.byte()) % ipv6::HEADER_LENGTH;
            outer[offset] ^= dice.byte();
        }
        if spoil & 16 == 0 || outer.len() <= ipv6::HEADER_LENGTH + 8 || spoil & 4 != 0 {
            return self.feed(dice, INSIDE, &outer);
        }
        self.identification += 1;
        let first = 8 * (1 + usize::from(dice.byte()));
        let order = dice.byte();
        let gap = 8 * (1 + usize::from(order >> 4));
        let lengths: &[usize] = if order & 8 == 0 { &[first] } else { &[first, gap] };
        let mut pieces = packet6::fragments6(&outer, lengths, self.identification);
        if let [_, behind, last] = &mut *pieces {
            // As many bytes as are missing, but behind the end.
            let header = Fragment { offset: 8_000, more: true, identification: self.identification };
            header.write(behind, ipv6::HEADER_LENGTH, 4);
            core::mem::swap(behind, last);
        }
        if order & 1 != 0 {
            pieces.reverse();
        }
        if order & 2 != 0 {
            pieces.extend(pieces.first().cloned());
        }
        if order & 4 != 0 {
            pieces.truncate(1);
        }
        for piece in pieces {
            self.feed(dice, INSIDE, &piece);
        }
    }

    fn answer(&mut self, dice: &mut Dice<'_>) {
        let Some(sent) = dice.pick_some(&self.left) else { return };
        let (mut from, to) = (packet::destination(sent), packet::source(sent));
        let (protocol, how) = (packet::header(sent).protocol(), dice.byte());
        if how & 1 != 0 {
            from = at(E2, 4_444);
        }
        let length = [8, 8, 1_200, 1_232, 1_240, 1_460, 1_472, 3_000][usize::from(how >> 1 & 7)];
        let builder = match protocol {
            6 => build::tcp(from, to, Flags(dice.byte())).payload_length(length),
            17 => build::udp(from, to).payload_length(length),
            _ => build::echo_reply(*from.ip(), *to.ip(), to.port()).payload_length(length),
        };
        let builder = if how & 16 != 0 { builder.dont_fragment() } else { builder };
        let builder = if how & 32 != 0 && protocol == 17 { builder.without_checksum() } else { builder };
        let answer = builder.build();
        let pieces = if how & 64 != 0 { build::fragment(&answer, 600) } else { vec![answer] };
        for piece in pieces {
            self.feed(dice, OUTSIDE, &piece);
        }
    }

    fn error(&mut self, dice: &mut Dice<'_>) {
        let Some(about) = dice.pick_some(&self.left) else { return };
        let length = [28, 64, 548, about.len()][usize::from(dice.byte() & 3)];
        let (icmp_type, code) = dice.pick(&[(3, 3), (3, 4), (11, 0), (12, 0)]);
        let quote = about.get(..length).unwrap_or(about);
        let error =
            build::icmp_error(E2, *packet::source(about).ip(), icmp_type, code, quote).next_hop_mtu(dice.word());
        self.feed(dice, OUTSIDE, &error.build());
    }

    /// A packet from one side, explained first.
    fn feed(&mut self, dice: &mut Dice<'_>, ingress: InterfaceId, packet: &[u8]) {
        let worker = usize::from(dice.byte()) % self.workers;
        let explained = self.explained(ingress, packet);
        let owner = if ingress == OUTSIDE { self.owner(packet) } else { None };
        let before: Vec<u64> = Verdict::ALL.iter().map(|verdict| self.bed.count(*verdict)).collect();
        let outs = self.bed.receive(worker, ingress, packet);
        let after = Verdict::ALL.iter().zip(&before);
        let given: Vec<Verdict> = after
            .filter(|(verdict, before)| self.bed.count(**verdict) > **before)
            .map(|(verdict, _)| *verdict)
            .collect();
        // `why` does not predict in full what is exhausted.
        if let Some(explained) = explained.filter(|explained| *explained != Verdict::Local)
            && !given.iter().all(|verdict| RESOURCES.contains(verdict))
        {
            assert_eq!(given, [explained], "what was explained comes true for {packet:02x?}");
        }
        if let Some(view) = owner {
            for packet in &outs[0] {
                check_receiver(packet, &view);
            }
        }
        self.note(outs);
    }

    fn explained(&self, ingress: InterfaceId, packet: &[u8]) -> Option<Verdict> {
        let shard = self.bed.shards().first().filter(|_| self.workers == 1)?;
        let from = if ingress == INSIDE { Facing::inside(RealmId(0)) } else { Facing::OUTSIDE };
        let (ip, is_whole) = match packet.first()? >> 4 {
            6 => {
                let chain = ipv6::chain(packet).ok()?;
                (packet.get(chain.offset..).filter(|_| chain.protocol == 4), chain.fragment.is_none())
            }
            _ => (Some(packet), true),
        };
        if let Some(ip) = ip {
            let view = Ipv4::new_checked(ip).ok()?;
            let is_error = view.protocol() == 1 && view.payload().first().is_some_and(|kind| icmp::is_error(*kind));
            // As for IPv4: errors, fragments and the first packet of a hairpin are not explained.
            let is_hairpin = self.bed.shared().address_index(view.destination().into()).is_some();
            if is_error || view.is_fragment() || is_hairpin && ingress == INSIDE {
                return None;
            }
        } else if packet6::view6(packet).destination() != v6(AFTR) && self.is_hairpin6(packet) {
            return None;
        }
        is_whole.then(|| shard.explain(self.bed.now(), from, packet).verdict)
    }

    fn is_hairpin6(&self, packet: &[u8]) -> bool {
        let to = translate::Prefix::WELL_KNOWN.extract(packet6::view6(packet).destination());
        self.bed.shared().address_index(to.into()).is_some()
    }

    /// The mapping that a whole TCP or UDP packet from outside goes to.
    fn owner(&self, packet: &[u8]) -> Option<MappingView> {
        let view = Ipv4::new_checked(packet).ok().filter(|view| !view.is_fragment())?;
        let protocol = nat::Protocol::from_number(view.protocol()).filter(|_| view.protocol() != 1)?;
        let to = packet::destination(packet);
        let mut views = self.bed.mapping_views().into_iter();
        views.find(|view| {
            view.protocol == protocol && view.external.address == *to.ip() && view.external.port == to.port()
        })
    }

    fn note(&mut self, [inside, outside]: [Vec<Vec<u8>>; 2]) {
        let is_whole = |packet: &Vec<u8>| !packet::header(packet).is_fragment();
        for packet in outside.iter().filter(|packet| is_whole(packet) && packet::header(packet).protocol() == 17) {
            let payload = packet.get(UDP_PAYLOAD..).unwrap_or_default();
            assert!(self.sent.iter().any(|sent| sent == payload), "no host sent these bytes: {packet:02x?}");
        }
        self.left.extend(outside.into_iter().filter(is_whole));
        for packet in inside.iter().filter(|packet| packet[0] >> 4 == 6) {
            if packet6::view6(packet).next_header() == 4 {
                self.got.push(packet[ipv6::HEADER_LENGTH..].to_vec());
            }
        }
        for packets in [&mut self.left, &mut self.got] {
            packets.drain(..packets.len().saturating_sub(8));
        }
    }
}

/// What came out inside goes to the host of this mapping.
fn check_receiver(packet: &[u8], view: &MappingView) {
    if packet.first().is_none_or(|first| first >> 4 != 6) {
        assert!(view.host.is_none(), "an IPv4 subscriber got a packet of {view:?}");
        return;
    }
    let outer = packet6::view6(packet);
    assert!(view.host.is_some(), "an IPv6 host got a packet of {view:?}");
    let Some(host) = view.host else { return };
    assert_eq!(outer.destination(), host.address.to_bits(), "{view:?}");
    if let Some(inner) = host.inner.filter(|_| outer.next_header() == 4) {
        assert_eq!(packet::header(outer.payload()).destination(), inner.to_bits(), "{view:?}");
    }
}

/// Bytes of the datagrams that fragments are made of, with the UDP header.
const DATAGRAM: usize = 2_000;

/// What may come behind the end of a datagram.
const BEHIND: usize = 2_048;

/// A datagram of a host: its bytes behind the IPv6 header, others behind its end, and what is in
/// front of them inside IPv4.
struct Datagram {
    source: u128,
    destination: u128,
    next_header: u8,
    length: usize,
    bytes: Vec<u8>,
}

fn datagram(number: u8) -> Datagram {
    let payload: Vec<u8> = (0..DATAGRAM - 8).map(|at| (at / 7) as u8 ^ number).collect();
    let source = v6(B4S[usize::from(number >> 1)]);
    let (destination, whole, next_header) = match number & 1 {
        0 => {
            let inner = build::udp(at(HOMES[0], 5_000), at(E1, 443)).payload(&payload).build();
            (v6(AFTR), inner, 4)
        }
        _ => {
            let whole = packet6::udp6((source, 5_000), (behind(E1), 443), &payload);
            (behind(E1), whole[ipv6::HEADER_LENGTH..].to_vec(), 17)
        }
    };
    let length = whole.len();
    let bytes = [whole, vec![!number; BEHIND]].concat();
    Datagram { source, destination, next_header, length, bytes }
}

/// Fragments of datagrams of four hosts, in any order, with any overlaps and ends, and behind the
/// end. What leaves has the bytes of its datagram, at their places. Six bytes make a fragment:
/// datagram and flags, offset, length, wait.
pub fn fragments6(bytes: &[u8]) {
    let mut settings = settings6().addresses(&POOL[..1]).mtu(9_000, 9_000).limits(|limits| {
        limits.mappings_max = 60;
        limits.extra_sessions_max = 40;
        limits.subscribers_max = 20;
        limits.fragmented_datagrams_max = 5;
        limits.fragments_held_max = 7;
        limits.unsolicited_syns_max = 8;
        limits.held_ports_max = 40;
    });
    settings.transition.hosts_max = 60;
    let datagrams: Vec<Datagram> = (0..4).map(datagram).collect();
    let mut bed = Bed6::new(settings);
    for step in bytes.as_chunks::<6>().0.iter().take(STEPS_MAX) {
        let [flags, high, low, length, more, wait] = *step;
        let outs = bed.advance(Duration::from_millis(u64::from(wait & 0x3f) * 16));
        check_pieces(&outs[1], &datagrams);
        let datagram = &datagrams[usize::from(flags & 3)];
        let identification = u32::from(flags >> 2 & 3) << 14 | 1;
        let offset = usize::from(u16::from_be_bytes([high, low]));
        let is_behind = flags & 32 != 0;
        let offset = match is_behind {
            true => datagram.length.next_multiple_of(8) + offset % (BEHIND / 2),
            false => offset % DATAGRAM,
        } & !7;
        let length = usize::from(length) * if flags & 16 == 0 { 8 } else { 1 };
        let is_last = more & 1 != 0;
        let end_max = if is_behind { datagram.bytes.len() & !7 } else { datagram.length };
        let end = if is_last && more & 2 != 0 { end_max } else { (offset + length).min(end_max) };
        let part = datagram.bytes.get(offset..end).unwrap_or_default();
        let payload = [&[0; ipv6::FRAGMENT_HEADER_LENGTH], part].concat();
        let mut packet = packet6::packet6(datagram.source, datagram.destination, ipv6::HEADER_FRAGMENT, &payload);
        let header = Fragment { offset: offset as u16, more: !is_last, identification };
        header.write(&mut packet, ipv6::HEADER_LENGTH, datagram.next_header);
        let outs = bed.receive(0, INSIDE, &packet);
        check_pieces(&outs[1], &datagrams);
    }
    run_out(&mut bed);
    assert!(bed.shards().iter().all(Shard::is_empty), "something is left");
}

/// Whether all bytes behind the UDP header are those of one of the datagrams.
fn check_pieces(packets: &[Vec<u8>], datagrams: &[Datagram]) {
    for packet in packets {
        let view = packet::header(packet);
        if view.protocol() != 17 {
            continue;
        }
        let (offset, payload) = (view.fragment_offset_bytes(), view.payload());
        let skipped = 8_usize.saturating_sub(offset);
        let rest = payload.get(skipped..).unwrap_or_default();
        let is_of = |datagram: &Datagram| {
            let udp = if datagram.next_header == 4 { &datagram.bytes[20..] } else { &datagram.bytes[..] };
            udp.get(offset + skipped..).is_some_and(|from_there| from_there.starts_with(rest))
        };
        assert!(datagrams.iter().any(is_of), "no datagram has these bytes at {offset}: {packet:02x?}");
        let is_whole = !view.is_fragment();
        assert!(!is_whole || payload.len() == DATAGRAM, "cut to {} bytes", payload.len());
    }
}
