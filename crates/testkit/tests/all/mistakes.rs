//! The points NATs most often get wrong. At least one test for each, in order.

use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);

/// A router inside that is no subscriber.
const FAR_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// The same world with one worker and with several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// What a packet is behind one router: TTL less by one, nothing else changed.
fn behind_a_hop(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let mut view = Ipv4::new_unchecked(packet.as_mut_slice());
    view.set_ttl(view.ttl() - 1);
    view.fill_checksum();
    packet
}

fn word(packet: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([packet[offset], packet[offset + 1]])
}

/// Sends packets in bursts, and gives what came out on the other side to `check`.
fn stream(bed: &mut Bed, side: Side, packets: impl Iterator<Item = Vec<u8>>, mut check: impl FnMut(Vec<u8>)) {
    let mut burst = Vec::new();
    let mut burst_size = 1;
    let mut packets = packets.peekable();
    while let Some(packet) = packets.next() {
        burst.push(packet);
        // The first one goes alone, while the next hop's link-layer address is asked for.
        if burst.len() == burst_size || packets.peek().is_none() {
            burst_size = 64;
            bed.burst(side, &burst);
            let out = if side == Side::Inside { bed.take_outside() } else { bed.take_inside() };
            assert_eq!(out.len(), burst.len(), "{:?}", bed.verdicts());
            out.into_iter().for_each(&mut check);
            burst.clear();
        }
    }
}

// S1: the four checksums of an ICMP error.

/// Packets of every transport between two endpoints, of odd length, with Don't Fragment so that the
/// identification stays.
fn quotable(from: SocketAddrV4, to: SocketAddrV4) -> [Vec<u8>; 4] {
    let udp = build::udp(from, to).payload_length(33).dont_fragment();
    let tcp = build::tcp(from, to, Flags::SYN).mss(1460).payload_length(9).dont_fragment();
    let echo = build::echo_request(*from.ip(), *to.ip(), from.port()).payload_length(33).dont_fragment();
    [udp.build(), udp.clone().without_checksum().build(), tcp.build(), echo.build()]
}

/// Offset at which the transport checksum would be cut in half, if the quote ended behind it.
fn half_checksum(packet: &[u8]) -> usize {
    match packet[9] {
        6 => 37,
        _ => 0,
    }
}

fn check_quote(error: &[u8], original: &[u8], length: usize) {
    assert_eq!(wire::verify::faults(error), []);
    assert_eq!(error.len(), 28 + length, "nothing is added behind the quote");
    let (quoted, expected) = (&error[28..], &behind_a_hop(original)[..length]);
    if length == half_checksum(original) {
        // Without its low byte the high one cannot be computed; it stays as it was quoted.
        assert_eq!(quoted[..length - 1], expected[..length - 1]);
    } else {
        assert_eq!(quoted, expected, "{length} bytes quoted");
    }
}

#[test]
fn an_error_quotes_what_its_receiver_sent_at_any_length() {
    covers!("S1", "5508-REQ-4a", "5508-REQ-5a", "3022-7");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let left = bed.only_outside();
            for (kind, code) in [(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)] {
                // From 8 bytes of the transport to the whole packet: odd and even.
                for length in 28..=left.len() {
                    let error = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, code, &left[..length]);
                    // What a link puts behind the packet is not touched and does not leave.
                    let mut padded = error.build();
                    padded.extend([0xa5; 18]);
                    bed.outside(&padded);
                    let error = bed.only_inside();
                    assert!(is_icmp(&error, kind, code));
                    assert_eq!(destination(&error).ip(), &I1);
                    check_quote(&error, &sent, length);
                }
            }
        }
    }
}

#[test]
fn an_inside_error_quotes_what_its_receiver_sent_at_any_length() {
    covers!("S1", "5508-REQ-5a");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let external = source(&bed.only_outside());
            let came = match sent[9] {
                17 if word(&sent, 26) == 0 => build::udp(at(E1, 1000), external).payload_length(33).without_checksum(),
                17 => build::udp(at(E1, 1000), external).payload_length(33),
                6 => build::tcp(at(E1, 1000), external, SYN_ACK).mss(1460).payload_length(9),
                _ => build::echo_reply(E1, *external.ip(), external.port()).payload_length(33),
            };
            let came = came.dont_fragment().build();
            bed.outside(&came);
            let arrived = bed.only_inside();
            for (kind, code) in [(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)] {
                for length in 28..=arrived.len() {
                    bed.inside(&build::icmp_error(I1, E1, kind, code, &arrived[..length]).build());
                    let error = bed.only_outside();
                    assert_eq!(source(&error).ip(), external.ip());
                    check_quote(&error, &came, length);
                }
            }
        }
    }
}

#[test]
fn a_quote_of_less_than_the_ports_is_dropped() {
    covers!("S1");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let left = bed.only_outside();
            for length in 0..28 {
                bed.outside(&build::icmp_error(E1, *source(&left).ip(), 3, 1, &left[..length]).build());
            }
            bed.assert_silent();
        }
    }
}

#[test]
fn a_fragmentable_quote_differs_in_identification_only() {
    covers!("S1");
    // RFC 7857 §10: such a packet leaves with a new identification, and Natrix does not keep the
    // old one.
    let mut bed = Bed::new(settings());
    let sent = build::udp(at(I1, 5000), at(E1, 1000)).identification(77).payload_length(33).build();
    bed.inside(&sent);
    let left = bed.only_outside();
    bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 3, 1, &left).build());
    let error = bed.only_inside();
    let mut restored = quote(&error).to_vec();
    assert_eq!(word(&restored, 4), word(&left, 4));
    let mut view = Ipv4::new_unchecked(restored.as_mut_slice());
    view.set_identification(77);
    view.fill_checksum();
    assert_eq!(restored, behind_a_hop(&sent));
}

// S2: UDP checksum 0.

#[test]
fn no_udp_checksum_stays_none_in_both_directions() {
    covers!("S2", "3022-4");
    for mut bed in beds(&settings()) {
        for length in [0, 1, 100, 1_001] {
            let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(length).without_checksum();
            bed.inside(&sent.build());
            let left = bed.only_outside();
            assert_eq!(word(&left, 26), 0);
            bed.outside(&build::udp(at(E1, 1000), source(&left)).payload_length(length).without_checksum().build());
            assert_eq!(word(&bed.only_inside(), 26), 0);
            // And through the hairpin.
            bed.inside(&build::udp(at(I2, 5000), source(&left)).payload_length(length).without_checksum().build());
            assert_eq!(word(&bed.only_inside(), 26), 0);
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ffff() {
    covers!("S2");
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    for (side, from, to) in [(Side::Inside, at(I1, 5000), at(E1, 1000)), (Side::Outside, at(E1, 1000), external)] {
        let mut all_ones = 0;
        let packets = (0..=u16::MAX).map(|value| build::udp(from, to).payload(&value.to_be_bytes()).build());
        stream(&mut bed, side, packets, |out| {
            assert_ne!(word(&out, 26), 0, "a checksum was lost");
            assert_eq!(wire::verify::faults(&out), []);
            all_ones += usize::from(word(&out, 26) == 0xffff);
        });
        assert!(all_ones >= 1, "the sweep did come by the computed zero");
    }
}

// S3: incremental checksums.

/// Three pools of one address each, for one subscriber each.
fn three_pools() -> Settings {
    let mut settings = settings();
    let template = settings.pools.remove(0);
    for (address, host) in POOL.into_iter().zip([I1, I2, I3]) {
        let mut pool = template.clone();
        pool.name = host.to_string();
        pool.addresses = vec![address];
        pool.subscribers = vec![topology::prefix(host.octets(), 32)];
        settings.pools.push(pool);
    }
    settings
}

/// The packet, and once more with the other form of zero where a checksum is zero: both are right.
fn with_both_zeros(packet: Vec<u8>, checksums: [usize; 2], seen: &mut [HashSet<u16>; 2]) -> Vec<Vec<u8>> {
    let mut forms = vec![packet];
    for (offset, seen) in checksums.into_iter().zip(seen) {
        if word(&forms[0], offset) == 0 {
            let mut other = forms[0].clone();
            other[offset..offset + 2].fill(0xff);
            forms.push(other);
        }
        seen.extend(forms.iter().map(|form| word(form, offset)));
    }
    forms
}

#[test]
fn ip_and_tcp_checksums_are_right_from_every_old_checksum() {
    covers!("S3", "3022-3");
    // The bed computes every checksum of every packet that comes out from scratch.
    let mut bed = Bed::new(three_pools());
    for (host, address) in [I1, I2, I3].into_iter().zip(POOL) {
        let external = bed.connect(at(host, 5000), at(E1, 80));
        assert_eq!(external.ip(), &address);
        for (side, from, to) in [(Side::Inside, at(host, 5000), at(E1, 80)), (Side::Outside, at(E1, 80), external)] {
            let mut seen = [HashSet::new(), HashSet::new()];
            let packets = (0..=u16::MAX).flat_map(|value| {
                let segment = build::tcp(from, to, Flags::ACK).sequence(u32::from(value)).identification(value);
                with_both_zeros(segment.dont_fragment().build(), [10, 36], &mut seen)
            });
            let mut count = 0;
            stream(&mut bed, side, packets, |_| count += 1);
            assert!(count > 65_536);
            for seen in seen {
                assert!([0, 0xffff, 1, 0xfffe].iter().all(|value| seen.contains(value)));
            }
        }
    }
}

#[test]
fn icmp_checksums_are_right_for_every_identifier() {
    covers!("S3", "3022-5", "S13");
    let mut bed = Bed::new(three_pools());
    for (host, address) in [I1, I2, I3].into_iter().zip(POOL) {
        let mut seen = [HashSet::new(), HashSet::new()];
        // Every identifier but one: external identifiers are 1 to 65535.
        let packets = (0..u16::MAX).flat_map(|id| {
            let query = build::echo_request(host, E1, id).sequence(u32::from(id) * 7).identification(id);
            with_both_zeros(query.dont_fragment().payload(b"data").build(), [10, 22], &mut seen)
        });
        let mut externals = Vec::new();
        stream(&mut bed, Side::Inside, packets, |out| {
            assert_eq!(source(&out).ip(), &address);
            externals.push(identifier(&out));
        });
        assert!([0, 0xffff, 1, 0xfffe].iter().all(|value| seen[0].contains(value)));
        let replies = externals.iter().map(|id| build::echo_reply(E1, address, *id).payload(b"data").build());
        let mut back = HashSet::new();
        stream(&mut bed, Side::Outside, replies, |reply| {
            back.insert(identifier(&reply));
        });
        assert_eq!(back.len(), 65_535, "each reply came back with its own identifier");
    }
}

#[test]
fn icmp_checksums_are_right_from_every_old_checksum() {
    covers!("S3");
    let mut bed = Bed::new(settings());
    for id in [0, 7, 0xffff] {
        let external = bed.ping(I1, id, E1);
        for side in [Side::Inside, Side::Outside] {
            let mut seen = [HashSet::new(), HashSet::new()];
            let packets = (0..=u16::MAX).flat_map(|sequence| {
                let query = match side {
                    Side::Inside => build::echo_request(I1, E1, id),
                    Side::Outside => build::echo_reply(E1, *external.ip(), external.port()),
                };
                let query = query.sequence(u32::from(sequence)).dont_fragment().build();
                with_both_zeros(query, [10, 22], &mut seen)
            });
            stream(&mut bed, side, packets, |out| assert_eq!(wire::verify::faults(&out), []));
            assert!([0, 0xffff, 1, 0xfffe].iter().all(|value| seen[1].contains(value)));
        }
    }
}

// S4: fragments.

fn datagram(to: SocketAddrV4, id: u16, length: usize, fill: u8) -> Vec<Vec<u8>> {
    let whole = build::udp(at(E1, 9), to).identification(id).payload(&vec![fill; length]).build();
    build::fragment(&whole, 1_500)
}

/// Two subscribers behind one external address.
fn two_behind_one(bed: &mut Bed) -> [SocketAddrV4; 2] {
    [bed.open_udp(at(I1, 5000), at(E1, 9)), bed.open_udp(at(I2, 5000), at(E1, 9))]
}

#[test]
fn fragments_without_a_first_one_are_dropped_by_timeout() {
    covers!("S4");
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        let [first, second] = two_behind_one(&mut bed);
        let lost = datagram(first, 77, 4_000, b'a');
        assert_eq!(lost.len(), 3);
        bed.outside(&lost[2]);
        bed.outside(&lost[1]);
        bed.assert_silent();
        assert_eq!(bed.counters().fragments_held, 2);
        bed.advance(Duration::from_millis(2_100));
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::FragmentTimeout), 2);
        // The same identification comes for another subscriber, which gets only its own packets.
        for piece in datagram(second, 77, 4_000, b'b') {
            bed.outside(&piece);
        }
        let arrived = bed.take_inside();
        assert_eq!(arrived.len(), 3);
        assert!(arrived.iter().all(|piece| destination(piece).ip() == &I2));
        let whole = build::reassemble(&arrived).expect("they fit together");
        assert_eq!(payload(&whole), [b'b'; 4_000]);
        // And what comes late of the first one is nobody's.
        bed.outside(&lost[1]);
        bed.assert_silent();
    }
}

#[test]
fn a_repeated_identification_begins_a_new_datagram() {
    covers!("S4", "S5");
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        let externals = two_behind_one(&mut bed);
        for round in 0..20 {
            let (to, host) = if round % 2 == 0 { (externals[0], I1) } else { (externals[1], I2) };
            let mut pieces = datagram(to, 77, 4_000, round);
            if round % 4 < 2 {
                pieces.reverse();
            }
            for piece in &pieces {
                bed.outside(piece);
            }
            let arrived = bed.take_inside();
            assert!(arrived.iter().all(|piece| destination(piece).ip() == &host), "round {round}");
            let whole = build::reassemble(&arrived).expect("they fit together");
            assert_eq!(payload(&whole), vec![round; 4_000]);
        }
    }
}

#[test]
fn a_reused_identification_never_reaches_another_subscriber() {
    covers!("S4", "S5");
    // RFC 6864 §4.2 forbids it; senders behind one address do it all the same.
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        let [first, second] = two_behind_one(&mut bed);
        let mine = datagram(first, 77, 4_000, b'a');
        let other = datagram(second, 77, 4_000, b'b');
        // All of the first datagram but its last piece, then the second one.
        bed.outside(&mine[0]);
        bed.outside(&mine[1]);
        assert_eq!(bed.take_inside().len(), 2);
        for piece in other.iter().chain(&mine[2..]) {
            bed.outside(piece);
        }
        bed.assert_silent();
        assert!(bed.count(Verdict::FragmentOverlap) >= 3);
        // Two seconds after the first piece it is usable again.
        bed.advance(Duration::from_millis(2_100));
        for piece in &other {
            bed.outside(piece);
        }
        let whole = build::reassemble(&bed.take_inside()).expect("they fit together");
        assert_eq!((destination(&whole), payload(&whole)), (at(I2, 5000), &[b'b'; 4_000][..]));
    }
}

#[test]
fn overlapping_fragments_give_the_whole_datagram_up() {
    covers!("S4", "S6");
    // RFC 5722 §4 says so for IPv6; for IPv4 it is the only safe reading too (RFC 3128).
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let pieces = datagram(external, 77, 4_000, b'a');
        let piece = |id: u16, units: u16, length: usize, more: bool| {
            let bits = units | if more { 0x2000 } else { 0 };
            build::raw(E1, *external.ip(), 17).identification(id).fragment_bits(bits).payload_length(length).build()
        };
        let mut id = 100;
        // Offsets in units of 8 bytes: the real pieces are at 0, 185 and 370.
        for (units, length, more) in
            [(184, 1_480, true), (186, 1_480, true), (100, 8, true), (185, 1_488, true), (369, 2_000, false)]
        {
            id += 1;
            let renumbered: Vec<_> = datagram(external, id, 4_000, b'a');
            bed.outside(&renumbered[0]);
            bed.outside(&renumbered[1]);
            assert_eq!(bed.take_inside().len(), 2);
            bed.outside(&piece(id, units, length, more));
            bed.outside(&renumbered[2]);
            bed.assert_silent();
        }
        // A last piece that ends before another one, or two ends.
        for (units, length) in [(185, 1_480), (370, 800)] {
            id += 1;
            let renumbered: Vec<_> = datagram(external, id, 4_000, b'a');
            bed.outside(&renumbered[0]);
            bed.outside(&renumbered[2]);
            assert_eq!(bed.take_inside().len(), 2);
            bed.outside(&piece(id, units, length, false));
            bed.outside(&renumbered[1]);
            bed.assert_silent();
        }
        // Others are not touched by it.
        for piece in &pieces {
            bed.outside(piece);
        }
        assert_eq!(bed.take_inside().len(), 3);
    }
}

// S5: identifications of datagrams that many send from one address.

#[test]
fn interleaved_datagrams_of_one_identification_arrive_whole() {
    covers!("S5", "7857-10", "3022-12");
    let roomy = settings().limits(|limits| limits.fragments_held_max = 1_024);
    for mut bed in beds(&roomy.addresses(&POOL[..1])) {
        let hosts: Vec<Ipv4Addr> = (1..=60).map(|host| [100, 64, 7, host].into()).collect();
        let pieces: Vec<Vec<_>> = hosts
            .iter()
            .enumerate()
            .map(|(number, host)| {
                let whole = build::udp(at(*host, 5000), at(E1, 9)).identification(77).payload(&[number as u8; 4_000]);
                build::fragment(&whole.build(), 1_500)
            })
            .collect();
        let mut outside: HashMap<u16, Vec<Vec<u8>>> = HashMap::new();
        for position in [1, 0, 2] {
            for one in &pieces {
                bed.inside(&one[position]);
            }
        }
        for piece in bed.take_outside() {
            outside.entry(packet::header(&piece).identification()).or_default().push(piece);
        }
        assert_eq!(outside.len(), hosts.len(), "each datagram has an identification of its own");
        let contents: HashSet<u8> = outside
            .values()
            .map(|pieces| {
                let whole = build::reassemble(pieces).expect("the pieces of one identification fit together");
                assert_eq!(wire::verify::faults(&whole), []);
                let payload = payload(&whole);
                assert!(payload.len() == 4_000 && payload.iter().all(|byte| *byte == payload[0]));
                payload[0]
            })
            .collect();
        assert_eq!(contents.len(), hosts.len());
    }
}

#[test]
fn errors_with_equal_identification_differ_outside() {
    covers!("S5", "7857-10");
    // They leave with the same source and may be fragmented on their way too.
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        two_behind_one(&mut bed);
        let ids: Vec<u16> = [I1, I2]
            .into_iter()
            .map(|host| {
                let about = build::udp(at(E1, 9), at(host, 5000)).payload_length(40).build();
                bed.inside(&build::icmp_error(host, E1, 3, 3, &about).identification(77).build());
                packet::header(&bed.only_outside()).identification()
            })
            .collect();
        assert_ne!(ids[0], ids[1]);
    }
}

#[test]
fn identifications_are_used_up_before_one_comes_again() {
    covers!("S5", "7857-10");
    for workers in [1_u16, 4] {
        let mut bed = Bed::new(settings().addresses(&POOL[..1])).workers(workers.into());
        let mut seen: HashMap<Ipv4Addr, HashSet<u16>> = HashMap::new();
        // RFC 6864 §5.3.1: unique for one source, destination and protocol; each worker has its
        // share.
        let packets = (0..65_536 / u32::from(workers)).map(|number| {
            let host = if number % 2 == 0 { I1 } else { I2 };
            build::udp(at(host, 5000), at(E1, 9)).identification(77).payload(&number.to_be_bytes()).build()
        });
        let mut by_worker = HashSet::new();
        stream(&mut bed, Side::Inside, packets, |out| {
            let id = packet::header(&out).identification();
            by_worker.insert(id % workers);
            assert!(seen.entry(E1).or_default().insert(id), "identification {id} came twice");
        });
        assert!(by_worker.len() <= 2);
    }
    // A packet that may not be fragmented keeps its own (RFC 6864 §4.1).
    let mut bed = Bed::new(settings());
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).identification(77).dont_fragment().build());
    assert_eq!(packet::header(&bed.only_outside()).identification(), 77);
}

// S6: headers that are cut or lie about lengths.

#[test]
fn tiny_first_fragments_are_dropped_and_make_no_state() {
    covers!("S6");
    for mut bed in beds(&settings()) {
        let syn = build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).mss(1460).payload_length(64).build();
        let udp = build::udp(at(I1, 5000), at(E1, 9)).payload_length(64).build();
        let mut sent = 0;
        let piece = |whole: &[u8], id: usize, from: usize, to: usize, bits: u16| {
            let raw = build::raw(I1, E1, whole[9]).identification(id as u16).fragment_bits(bits);
            raw.payload(&whole[20 + from..20 + to]).build()
        };
        for length in [8, 16] {
            // The ports here, the flags in the next one (RFC 1858 §3).
            bed.inside(&piece(&syn, length, 0, length, 0x2000));
            bed.inside(&piece(&syn, length, length, syn.len() - 20, (length / 8) as u16));
            // And the other way round.
            bed.inside(&piece(&syn, 100 + length, length, syn.len() - 20, (length / 8) as u16));
            bed.inside(&piece(&syn, 100 + length, 0, length, 0x2000));
            sent += 4;
        }
        for (whole, shortest) in [(&syn, 20), (&udp, 8)] {
            for length in 0..shortest {
                bed.inside(&piece(whole, 1_000 + length, 0, length, 0x2000));
                sent += 1;
            }
        }
        bed.advance_secs(3);
        bed.assert_silent();
        assert_eq!((bed.mappings(), bed.sessions()), (vec![], vec![]));
        assert_eq!(bed.counters().verdicts_total(), sent, "each is counted: {:?}", bed.verdicts());
        assert!(bed.count(Verdict::FragmentTiny) > 0);
    }
}

#[test]
fn headers_with_wrong_lengths_are_dropped_without_state() {
    covers!("S6");
    let good = [
        build::udp(at(I1, 5000), at(E1, 9)).payload_length(40).build(),
        build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).mss(1460).build(),
        build::echo_request(I1, E1, 7).payload_length(40).build(),
        build::icmp_error(I1, E1, 3, 3, &build::udp(at(E1, 9), at(I1, 5000)).build()).build(),
    ];
    // Rewrites a header field and makes the header checksum right again.
    let changed = |packet: &[u8], offset: usize, bytes: &[u8]| {
        let mut packet = packet.to_vec();
        packet[offset..offset + bytes.len()].copy_from_slice(bytes);
        if usize::from(packet[0] & 15) >= 5 && usize::from(packet[0] & 15) * 4 <= packet.len() {
            Ipv4::new_unchecked(packet.as_mut_slice()).fill_checksum();
        }
        packet
    };
    let [udp, tcp, _, _] = &good;
    let mut bad = Vec::new();
    for length in [0_u16, 1, 7, 49, 100, 65_535] {
        bad.push(changed(udp, 24, &length.to_be_bytes()));
    }
    for offset in [0_u8, 1, 4, 7, 15] {
        bad.push(changed(tcp, 32, &[offset << 4]));
    }
    for packet in &good {
        // A link pads short frames, so that a little more than there is may look like it were
        // there.
        for length in [0_u16, 1, 19, packet.len() as u16 + 100, 65_535] {
            bad.push(changed(packet, 2, &length.to_be_bytes()));
        }
        // Whole IP header, and less than a transport header behind it: 4 bytes of ICMP and so on.
        let shortest = if packet[9] == 6 { 20 } else { 8 };
        for length in 20..20 + shortest {
            bad.push(changed(&packet[..length], 2, &(length as u16).to_be_bytes()));
        }
        for version_and_length in [0x05, 0x15, 0x55, 0x65, 0xf5, 0x40, 0x41, 0x44] {
            bad.push(changed(packet, 0, &[version_and_length]));
        }
        for length in 0..20 {
            bad.push(packet[..length].to_vec());
        }
    }
    for mut bed in beds(&settings()) {
        for packet in &bad {
            bed.inside(packet);
            bed.outside(packet);
        }
        bed.advance_secs(10);
        bed.assert_silent();
        assert_eq!((bed.mappings(), bed.sessions()), (vec![], vec![]));
        assert_eq!(bed.counters().verdicts_total(), 2 * bad.len() as u64, "{:?}", bed.verdicts());
        // And the good ones pass.
        for packet in &good[..3] {
            bed.inside(packet);
            bed.only_outside();
        }
    }
}

// S7: TTL.

#[test]
fn ttl_falls_by_one_in_a_hairpin_and_expiry_makes_no_state() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ttl(1).payload(b"x").build());
        let error = bed.only_inside();
        assert!(is_icmp(&error, 11, 0));
        assert_eq!(source(quote(&error)), at(I1, 5000));
        assert_eq!((bed.mappings(), bed.ports_used()), (vec![], 0));
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ttl(2).payload(b"x").build());
        let left = bed.only_outside();
        assert_eq!(ttl(&left), 1);
        for ttl_sent in [2, 3, 64, 255] {
            bed.outside(&build::udp(at(E1, 9), source(&left)).ttl(ttl_sent).payload(b"x").build());
            assert_eq!(ttl(&bed.only_inside()), ttl_sent - 1);
            bed.inside(&build::udp(at(I2, 5000), source(&left)).ttl(ttl_sent).payload(b"x").build());
            assert_eq!(ttl(&bed.only_inside()), ttl_sent - 1, "once for the two halves of a hairpin");
        }
        bed.inside(&build::udp(at(I3, 5000), source(&left)).ttl(1).payload(b"x").build());
        let error = bed.only_inside();
        assert!(is_icmp(&error, 11, 0));
        assert_eq!((destination(&error).ip(), source(quote(&error))), (&I3, at(I3, 5000)));
        assert!(bed.mapping_of(Protocol::Udp, at(I3, 5000)).is_none());
    }
}

#[test]
fn a_packet_to_an_unmapped_endpoint_does_not_loop() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        let mut sent = 0;
        for address in POOL {
            for (inside, from) in [(true, I1), (false, E1)] {
                let packets = [
                    build::udp(at(from, 5000), at(address, 40_000)).ttl(255).payload(b"x").build(),
                    build::tcp(at(from, 5000), at(address, 40_000), Flags::ACK).ttl(255).build(),
                    build::echo_request(from, address, 7).ttl(255).build(),
                    build::raw(from, address, 47).ttl(255).payload_length(20).build(),
                ];
                for packet in packets {
                    if inside {
                        bed.inside(&packet)
                    } else {
                        bed.outside(&packet)
                    }
                    sent += 1;
                }
            }
        }
        bed.assert_silent();
        assert_eq!(bed.counters().verdicts_total(), sent, "one drop each: {:?}", bed.verdicts());
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn traceroute_shows_sensible_hops_from_both_sides() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        let probe =
            |ttl: u8| build::udp(at(I1, 5000), at(E1, 33_434)).ttl(ttl).dont_fragment().payload(b"probe").build();
        bed.inside(&probe(1));
        let hop = bed.only_inside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OWN_INSIDE, &probe(1)[..]));
        // The probe that lives one hop longer ends at the next router.
        bed.inside(&probe(2));
        let left = bed.only_outside();
        let external = source(&left);
        bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &left).build());
        let hop = bed.only_inside();
        assert!(is_icmp(&hop, 11, 0));
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OUTSIDE_ROUTER, &probe(1)[..]));

        let probe = |ttl: u8| build::udp(at(E1, 7), external).ttl(ttl).dont_fragment().payload(b"probe").build();
        bed.outside(&probe(1));
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OWN_OUTSIDE, &probe(1)[..]));
        bed.outside(&probe(2));
        let arrived = bed.only_inside();
        bed.inside(&build::icmp_error(FAR_ROUTER, E1, 11, 0, &arrived).build());
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), destination(&hop).ip()), (external.ip(), &E1));
        assert_eq!(quote(&hop), probe(1));
        bed.outside(&probe(3));
        let arrived = bed.only_inside();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &arrived).build());
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (external.ip(), &probe(2)[..]));
    }
}

// S8: errors through a hairpin.

/// A hairpinned packet of I1 to I2, as it was sent, as it arrived, and the external endpoint it was
/// sent to.
fn hairpinned(bed: &mut Bed, protocol: Protocol, length: usize) -> (Vec<u8>, Vec<u8>, SocketAddrV4) {
    let sent = match protocol {
        Protocol::Tcp => {
            let to = bed.open_tcp(at(I2, 6000), at(E1, 9));
            build::tcp(at(I1, 5000), to, Flags::SYN).payload_length(length)
        }
        _ => {
            let to = bed.open_udp(at(I2, 6000), at(E1, 9));
            build::udp(at(I1, 5000), to).payload_length(length)
        }
    };
    let sent = sent.dont_fragment().build();
    bed.inside(&sent);
    let arrived = bed.only_inside();
    assert_eq!(destination(&arrived), at(I2, 6000));
    let to = destination(&sent);
    (sent, arrived, to)
}

#[test]
fn errors_through_a_hairpin_come_from_a_public_source() {
    covers!("S8", "5508-REQ-7", "5508-REQ-7a");
    for mut bed in beds(&settings()) {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let (sent, arrived, to) = hairpinned(&mut bed, protocol, 200);
            let sender = source(&arrived);
            // The host itself, routers in front of it that have no mapping, and one that has one.
            bed.open_udp(at(I3, 1), at(E1, 9));
            for from in [I2, INSIDE_ROUTER, FAR_ROUTER, I3] {
                for (kind, code, mtu) in [(3, 3, 0), (3, 1, 0), (11, 0, 0), (11, 1, 0), (12, 0, 0), (3, 4, 1_280)] {
                    for length in [28, 61, arrived.len()] {
                        let error = build::icmp_error(from, *sender.ip(), kind, code, &arrived[..length]);
                        bed.inside(&error.next_hop_mtu(mtu).build());
                        let error = bed.only_inside();
                        assert!(is_icmp(&error, kind, code));
                        assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &I1), "not {from}");
                        assert_eq!(packet::icmp(&error).next_hop_mtu(), mtu);
                        assert_eq!(quote(&error), &behind_a_hop(&sent)[..length], "exactly what was sent");
                        assert_eq!(wire::verify::faults(&error), []);
                    }
                }
            }
            assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn own_errors_about_hairpinned_packets_quote_what_was_sent() {
    covers!("S8", "S12", "5508-REQ-10a1", "5508-REQ-10a2");
    for mut bed in beds(&settings().mtu(1400, 1500)) {
        let (_, _, to) = hairpinned(&mut bed, Protocol::Udp, 200);
        for host in [I1, I3] {
            let sent = build::udp(at(host, 5000), to).payload_length(1_400).dont_fragment().build();
            bed.inside(&sent);
            let error = bed.only_inside();
            assert!(is_icmp(&error, 3, 4), "{host}: {:?}", bed.verdicts());
            assert_eq!(packet::icmp(&error).next_hop_mtu(), 1_400);
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &host));
            assert_eq!(quote(&error), &sent[..548]);

            let sent = build::udp(at(host, 5000), to).ttl(1).payload_length(100).dont_fragment().build();
            bed.inside(&sent);
            let error = bed.only_inside();
            assert!(is_icmp(&error, 11, 0));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &host));
            assert_eq!(quote(&error), sent);
        }
        // Without Don't Fragment it arrives in pieces.
        bed.inside(&build::udp(at(I1, 5000), to).payload_length(1_400).build());
        let pieces = bed.take_inside();
        assert_eq!(pieces.len(), 2);
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(destination(&whole), at(I2, 6000));
    }
}

#[test]
fn errors_about_hairpinned_fragments_reach_the_sender() {
    covers!("S8", "S4");
    for mut bed in beds(&settings()) {
        let to = bed.open_udp(at(I2, 6000), at(E1, 9));
        let whole = build::udp(at(I1, 5000), to).payload_length(4_000).build();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let pieces = build::fragment(&whole, 1_500);
            for piece in order {
                bed.inside(&pieces[piece]);
            }
            let arrived = bed.take_inside();
            let joined = build::reassemble(&arrived).expect("they fit together");
            assert_eq!((destination(&joined), payload(&joined)), (at(I2, 6000), payload(&whole)));
            let first = arrived.iter().find(|piece| packet::header(piece).fragment_offset_bytes() == 0);
            let first = first.expect("one of them is the first");
            let sender = source(first);
            // RFC 792: reassembly time exceeded quotes the first fragment.
            bed.inside(&build::icmp_error(I2, *sender.ip(), 11, 1, &first[..548]).build());
            let error = bed.only_inside();
            assert!(is_icmp(&error, 11, 1));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &I1));
            assert_eq!((source(quote(&error)), destination(quote(&error))), (at(I1, 5000), to));
        }
    }
}

// S9: timers of RST and FIN.

#[test]
fn after_a_reset_the_same_endpoints_connect_again_at_once() {
    covers!("S9", "7857-2.2b");
    for from_inside in [true, false] {
        let mut bed = Bed::new(settings());
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.connect(inside, remote);
        if from_inside {
            bed.inside(&build::tcp(inside, remote, Flags::RST).sequence(1_001).build());
            bed.only_outside();
        } else {
            bed.outside(&build::tcp(remote, external, Flags::RST).sequence(5_001).build());
            bed.only_inside();
        }
        bed.advance_secs(1);
        assert_eq!(bed.connect(inside, remote), external);
        bed.advance_secs(3_600);
        bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"alive").build());
        assert_eq!(payload(&bed.only_inside()), b"alive");
    }
}

#[test]
fn a_reset_out_of_the_window_does_not_end_the_connection() {
    covers!("S9", "7857-2.2c");
    let mut bed = Bed::new(settings());
    let (inside, remote) = (at(I1, 5000), at(E1, 80));
    let external = bed.connect(inside, remote);
    for sequence in [0, 1, 5_001 + 0x1000_0000, 5_001 + 0x7fff_ffff, u32::MAX] {
        bed.outside(&build::tcp(remote, external, Flags::RST).sequence(sequence).build());
    }
    bed.take_inside();
    assert_eq!(bed.counters().tcp_resets_ignored, 5);
    bed.advance_secs(7_000);
    bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"alive").build());
    assert_eq!(payload(&bed.only_inside()), b"alive");
}

#[test]
fn a_half_closed_transfer_goes_on_for_hours() {
    covers!("S9", "7857-2");
    for from_inside in [true, false] {
        let mut bed = Bed::new(settings());
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.connect(inside, remote);
        if from_inside {
            bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
            bed.only_outside();
        } else {
            bed.outside(&build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_001).build());
            bed.only_inside();
        }
        // The other side sends on: every three minutes, then more rarely than any short timer.
        for pause in [180, 180, 180, 180, 600, 3_600, 7_000] {
            bed.advance_secs(pause);
            if from_inside {
                bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"data").build());
                assert_eq!(payload(&bed.only_inside()), b"data", "after {pause} s");
            } else {
                bed.inside(&build::tcp(inside, remote, Flags::ACK).sequence(1_001).payload(b"data").build());
                assert_eq!(source(&bed.only_outside()), external, "after {pause} s");
            }
        }
    }
}

#[test]
fn retransmitted_fins_pass_for_240_s_when_the_last_ack_is_lost() {
    covers!("S9", "7857-2");
    let mut bed = Bed::new(settings());
    let (inside, remote) = (at(I1, 5000), at(E1, 80));
    let external = bed.connect(inside, remote);
    bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
    let fin = build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_002).build();
    let last_ack = build::tcp(inside, remote, Flags::ACK).sequence(1_002).acknowledgment(5_002).build();
    bed.outside(&fin);
    bed.only_outside();
    bed.only_inside();
    let mut elapsed = 0;
    for at_second in [1, 3, 7, 15, 31, 63, 127, 239] {
        bed.advance_secs(at_second - elapsed);
        elapsed = at_second;
        bed.outside(&fin);
        assert_eq!(destination(&bed.only_inside()), inside, "at {at_second} s");
        bed.inside(&last_ack);
        assert_eq!(source(&bed.only_outside()), external, "at {at_second} s");
    }
    // Also when not one packet came in between.
    let mut bed = Bed::new(settings());
    let external = bed.connect(inside, remote);
    bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
    let fin = build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_002).build();
    bed.outside(&fin);
    bed.take_inside();
    bed.advance_secs(239);
    bed.outside(&fin);
    assert_eq!(destination(&bed.only_inside()), inside);
}

// S10: the 6-second rule.

/// One address with one port, so that the external endpoint of the next mapping is known before it
/// is made.
fn one_port() -> Settings {
    settings().addresses(&POOL[..1]).ports(10_000, 10_000)
}

#[test]
fn an_unsolicited_syn_is_answered_once_between_6_and_7_seconds() {
    covers!("S10", "5382-REQ-4");
    for mut bed in beds(&one_port()) {
        let syn = build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).mss(1460).build();
        bed.outside(&syn);
        // Retransmissions change nothing.
        bed.advance_secs(1);
        bed.outside(&syn);
        bed.advance_secs(2);
        bed.outside(&syn);
        bed.advance(Duration::from_millis(2_990));
        bed.assert_silent();
        bed.advance(Duration::from_millis(1_010));
        let error = bed.only_outside();
        assert!(is_icmp(&error, 3, 3));
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_OUTSIDE, &E1));
        assert!(syn.starts_with(quote(&error)) && quote(&error).len() >= 28);
        bed.advance_secs(30);
        bed.assert_silent();
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn a_matching_syn_from_inside_drops_the_held_one() {
    covers!("S10", "5382-REQ-4");
    for mut bed in beds(&one_port()) {
        bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).build());
        bed.advance_secs(3);
        bed.assert_silent();
        assert_eq!(bed.open_tcp(at(I1, 5000), at(E1, 80)), at(POOL[0], 10_000));
        bed.advance_secs(60);
        bed.assert_silent();
        assert_eq!(bed.counters().originated, 0);
        // The retransmitted SYN of the other side is now a simultaneous open.
        bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).build());
        assert_eq!(destination(&bed.only_inside()), at(I1, 5000));
    }
}

#[test]
fn a_syn_that_a_filter_refuses_is_held_like_one_without_mapping() {
    covers!("S10", "5382-REQ-4");
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&one_port().filtering(filtering)) {
            let external = bed.open_tcp(at(I1, 5000), at(E2, 80));
            let syn = build::tcp(at(E1, 80), external, Flags::SYN).sequence(7).build();
            bed.outside(&syn);
            bed.advance(Duration::from_millis(5_990));
            bed.assert_silent();
            bed.advance(Duration::from_millis(1_010));
            assert!(is_icmp(&bed.only_outside(), 3, 3));
            // And forgotten when the inside opens to the same peer in time.
            bed.outside(&syn);
            bed.advance_secs(3);
            assert_eq!(bed.open_tcp(at(I1, 5000), at(E1, 80)), external);
            bed.advance_secs(30);
            bed.assert_silent();
        }
    }
}

#[test]
fn a_flood_of_syns_makes_bounded_state_no_storm_and_no_reset() {
    covers!("S10", "S11", "5382-REQ-4");
    for workers in [1, 4] {
        let mut bed = Bed::new(settings()).workers(workers).steering(Steering::Random);
        let mut answers = Vec::new();
        for round in 0..100_u32 {
            let syns: Vec<_> = (0..1_000_u32)
                .map(|number| {
                    let from = at((0xc612_0000 + round * 1_000 + number).into(), 80);
                    build::tcp(from, at(POOL[0], 2_000 + number as u16), Flags::SYN).sequence(round).build()
                })
                .collect();
            bed.burst(Side::Outside, &syns);
            bed.advance(Duration::from_millis(100));
            answers.extend(bed.take_outside());
        }
        bed.advance_secs(10);
        answers.extend(bed.take_outside());
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
        assert!(answers.iter().all(|answer| is_icmp(answer, 3, 3)), "no RST, nothing else");
        // The store holds 64 on each worker, and is emptied every 6 s.
        let bound = settings().limits.unsolicited_syns_max as usize * workers * 3;
        assert!((1..=bound).contains(&answers.len()), "{} answers", answers.len());
        assert_eq!(bed.count(Verdict::UnsolicitedSyn), 100_000);
        assert!(bed.counters().unsolicited_syns_overflow >= 100_000 - bound as u64);
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn where_policy_forbids_it_an_unsolicited_syn_is_not_answered() {
    covers!("S10", "5382-REQ-4a");
    let mut wanted = settings();
    wanted.answer_unsolicited_syn = false;
    let mut bed = Bed::new(wanted);
    bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).build());
    bed.advance_secs(30);
    bed.assert_silent();
}

// S11: errors about errors.

#[test]
fn no_error_is_sent_about_an_error_without_resources() {
    covers!("S11", "5508-REQ-10e");
    for mut bed in beds(&one_port()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let about = build::udp(at(E1, 9), at(I2, 5000)).payload_length(40).build();
        for (kind, code) in [(3, 0), (3, 1), (3, 3), (3, 4), (11, 0), (11, 1), (12, 0)] {
            for ttl in [1, 64] {
                bed.inside(&build::icmp_error(I2, E1, kind, code, &about).ttl(ttl).build());
                bed.inside(&build::icmp_error(I2, *external.ip(), kind, code, &about).ttl(ttl).build());
                bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &about).ttl(ttl).build());
            }
        }
        for id in 0..10 {
            bed.inside(
                &build::udp(at(I2, 5000), at(E1, 9)).identification(id).fragment_bits(185).payload_length(8).build(),
            );
        }
        bed.inside(&build::udp(at(I2, 5000), at([239, 1, 1, 1].into(), 9)).ttl(1).build());
        bed.inside(&build::udp(at(I2, 5000), at([239, 1, 1, 1].into(), 9)).build());
        bed.advance_secs(5);
        bed.assert_silent();
        // About a datagram it does.
        bed.inside(&build::udp(at(I2, 5000), at(E1, 9)).payload(b"x").build());
        assert!(is_icmp(&bed.only_inside(), 3, 1));
        bed.inside(&build::echo_request(I2, E1, 7).ttl(1).build());
        assert!(is_icmp(&bed.only_inside(), 11, 0));
    }
}

#[test]
fn an_error_about_an_error_is_dropped() {
    covers!("S11");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let about = build::udp(at(E1, 9), at(I1, 5000)).payload_length(40).build();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &about).build());
        let left = bed.only_outside();
        bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &left).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::IcmpQuoteMalformed), 1);
    }
}

// S12: path MTU discovery.

#[test]
fn dont_fragment_stays_as_it_is_in_both_directions() {
    covers!("S12");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        for is_set in [false, true] {
            let variant = |builder: build::Builder| match is_set {
                true => builder.dont_fragment().payload_length(1_472).build(),
                false => builder.payload_length(1_472).build(),
            };
            bed.inside(&variant(build::udp(at(I1, 5000), at(E1, 9))));
            let out = bed.only_outside();
            assert_eq!((packet::header(&out).dont_fragment(), out.len()), (is_set, 1_500));
            bed.outside(&variant(build::udp(at(E1, 9), external)));
            let back = bed.only_inside();
            assert_eq!((packet::header(&back).dont_fragment(), back.len()), (is_set, 1_500));
            bed.inside(&variant(build::udp(at(I2, 5000), external)));
            let hairpin = bed.only_inside();
            assert_eq!((packet::header(&hairpin).dont_fragment(), hairpin.len()), (is_set, 1_500));
        }
    }
}

#[test]
fn a_too_big_of_any_mtu_is_passed_on_and_never_applied_here() {
    covers!("S12");
    for mut bed in beds(&settings()) {
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).payload_length(1_472).dont_fragment().build());
        let left = bed.only_outside();
        for mtu in [0, 1, 67, 68, 1_000, 1_500, 1_501, 65_535] {
            bed.outside(&build::icmp_error(E1, *source(&left).ip(), 3, 4, &left[..28]).next_hop_mtu(mtu).build());
            assert_eq!(packet::icmp(&bed.only_inside()).next_hop_mtu(), mtu);
            for host in [I1, I2] {
                for to in [at(E1, 9), at(E2, 9)] {
                    bed.inside(&build::udp(at(host, 5000), to).payload_length(1_472).dont_fragment().build());
                    assert_eq!(bed.only_outside().len(), 1_500);
                }
            }
        }
    }
}

#[test]
fn a_large_error_that_may_be_fragmented_leaves_in_fragments() {
    covers!("S12", "S1");
    // A host may quote all of a packet, and an error has no Don't Fragment.
    for mut bed in beds(&settings().mtu(1_300, 1_500)) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let left = build::udp(external, at(E1, 9)).payload_length(1_400).build();
        bed.outside(&build::icmp_error(E1, *external.ip(), 3, 3, &left).build());
        let pieces = bed.take_inside();
        assert_eq!(pieces.len(), 2, "{:?}", bed.verdicts());
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(source(quote(&whole)), at(I1, 5000));
    }
    for mut bed in beds(&settings().mtu(1_500, 1_300)) {
        bed.open_udp(at(I1, 5000), at(E1, 9));
        let came = build::udp(at(E1, 9), at(I1, 5000)).payload_length(1_400).build();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &came).build());
        let pieces = bed.take_outside();
        assert_eq!(pieces.len(), 2, "{:?}", bed.verdicts());
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(destination(quote(&whole)).ip(), source(&whole).ip());
    }
}

// S13: port 0 and reserved ports.

#[test]
fn a_million_external_ports_are_never_0_and_never_reserved() {
    covers!("S13");
    let reserved = [1, 80, 443, 1_024, 3_478, 5_350, 5_351, 8_080, 65_535];
    for seed in 0..6 {
        let mut bed = Bed::new(settings().ports(1, 65_535).reserved(&reserved)).seed(seed);
        let mut seen = HashSet::new();
        // Three addresses, each protocol: 29 000 ports of each, at half load and with low ports
        // asked for too.
        let packets = (0..174_000_u32).map(|number| {
            let from = at(
                (0x6442_0000 + number / 64).into(),
                if number % 128 < 2 { number as u16 % 1_024 } else { 2_000 + number as u16 % 60_000 },
            );
            match number % 2 {
                0 => build::udp(from, at(E1, 9)).payload(&number.to_be_bytes()).build(),
                _ => build::tcp(from, at(E1, 9), Flags::SYN).sequence(number).build(),
            }
        });
        stream(&mut bed, Side::Inside, packets, |out| {
            let external = source(&out);
            assert_ne!(external.port(), 0);
            assert!(!reserved.contains(&external.port()), "{external}");
            assert!(seen.insert((out[9], external)), "{external} was given out twice");
        });
        assert_eq!(seen.len(), bed.mappings().len());
    }
}

#[test]
fn port_0_is_a_port_like_any_other_on_both_sides() {
    covers!("S13");
    for mut bed in beds(&settings().ports(1, 65_535)) {
        for port in [0, 1, 65_535] {
            let udp = bed.open_udp(at(I1, port), at(E1, 9));
            assert_ne!(udp.port(), 0);
            assert_eq!(bed.open_udp(at(I1, port), at(E1, 0)), udp, "consistently");
            assert!(bed.udp_reaches(at(E1, 0), udp, at(I1, port)));
            let tcp = bed.open_tcp(at(I1, port), at(E1, 0));
            bed.outside(&build::tcp(at(E1, 0), tcp, SYN_ACK).build());
            assert_eq!(destination(&bed.only_inside()), at(I1, port));
        }
        for id in [0, 0xffff] {
            let external = bed.ping(I1, id, E1);
            bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
            assert_eq!(destination(&bed.only_inside()), at(I1, id));
        }
        for address in POOL {
            bed.outside(&build::udp(at(E1, 9), at(address, 0)).build());
            bed.outside(&build::echo_reply(E1, address, 0).build());
        }
        bed.assert_silent();
    }
}

// S14: what refreshes.

/// What is sent every three seconds, with the external endpoint.
type Traffic = fn(&mut Bed, SocketAddrV4);

#[test]
fn inside_traffic_refreshes_and_outside_traffic_if_configured() {
    covers!("S14", "4787-REQ-6", "4787-REQ-6a", "7857-7a", "7857-7.1a", "5508-REQ-6");
    const REMOTE: SocketAddrV4 = at(E1, 9);
    const INSIDE: SocketAddrV4 = at(I1, 5000);
    let udp: [(&str, Traffic, [bool; 2]); 8] = [
        ("datagrams from inside", |bed, _| bed.inside(&build::udp(INSIDE, REMOTE).payload(b"x").build()), [true, true]),
        (
            "datagrams from inside to another host",
            |bed, _| bed.inside(&build::udp(INSIDE, at(E2, 53)).payload(b"x").build()),
            [true, true],
        ),
        (
            "datagrams from outside",
            |bed, external| bed.outside(&build::udp(REMOTE, external).payload(b"x").build()),
            [false, true],
        ),
        (
            "datagrams from outside that the filter refuses",
            |bed, external| bed.outside(&build::udp(at(E2, 9), external).payload(b"x").build()),
            [false, false],
        ),
        (
            "rubbish from outside",
            |bed, external| {
                let good = build::udp(REMOTE, external).payload_length(100).build();
                let mut bad_header = good.clone();
                bad_header[10] ^= 1;
                bed.outside(&bad_header);
                bed.outside(&good[..60]);
                bed.outside(&build::tcp(REMOTE, external, Flags::ACK).build());
                bed.outside(&build::raw(E1, *external.ip(), 47).payload_length(20).build());
                bed.outside(&build::udp(REMOTE, external).ttl(1).payload(b"x").build());
            },
            [false, false],
        ),
        (
            "errors from outside",
            |bed, external| {
                let about = build::udp(external, REMOTE).payload_length(40).build();
                bed.outside(&build::icmp_error(E1, *external.ip(), 3, 3, &about).build());
                bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &about).build());
            },
            [false, false],
        ),
        (
            "errors from inside",
            |bed, _| {
                let about = build::udp(REMOTE, INSIDE).payload_length(40).build();
                bed.inside(&build::icmp_error(I1, E1, 3, 3, &about).build());
            },
            [false, false],
        ),
        (
            "datagrams from inside that end here",
            |bed, _| {
                bed.inside(&build::udp(INSIDE, REMOTE).ttl(1).payload(b"x").build());
            },
            [false, false],
        ),
    ];
    for (name, traffic, refreshes) in udp {
        for (inbound_refresh, refreshes) in [false, true].into_iter().zip(refreshes) {
            let mut wanted = settings().short_timers().filtering(Filtering::AddressDependent);
            wanted.inbound_refresh = inbound_refresh;
            for mut bed in beds(&wanted) {
                let external = bed.open_udp(INSIDE, REMOTE);
                for _ in 0..3 {
                    bed.advance_secs(3);
                    traffic(&mut bed, external);
                }
                bed.advance(Duration::from_millis(1_100));
                let alive = bed.mapping_of(Protocol::Udp, INSIDE).is_some();
                assert_eq!(alive, refreshes, "{name}, inbound refresh {inbound_refresh}");
            }
        }
    }
}

#[test]
fn resets_and_replies_refresh_nothing() {
    covers!("S14", "7857-7.1a");
    for mut bed in beds(&settings().short_timers()) {
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.open_tcp(inside, remote);
        let id = bed.ping(I1, 7, E1);
        for _ in 0..3 {
            bed.advance_secs(3);
            bed.inside(&build::tcp(inside, remote, Flags::RST).sequence(1_001).build());
            bed.outside(&build::tcp(at(E2, 80), external, SYN_ACK).build());
            bed.outside(&build::tcp(at(E2, 80), external, Flags::ACK).build());
            bed.outside(&build::echo_reply(E1, *id.ip(), id.port()).build());
            bed.inside(&build::echo_reply(I1, E1, 7).build());
        }
        bed.advance(Duration::from_millis(1_100));
        assert_eq!(bed.mappings(), []);
    }
}

// S15: many workers, and exhaustion.

/// Which queue a card with `queues` queues and this key puts a packet into: the two directions of a
/// flow differ.
fn queue(key: u64, packet: &[u8], queues: usize) -> usize {
    (dice((key, packet[9], source(packet), destination(packet))) % queues as u64) as usize
}

/// A number that looks random and is the same in each run.
fn dice(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

const WORKERS: usize = 16;

/// The packet of one direction of a flow, the `number`-th of its flow.
fn flow_packet(from: SocketAddrV4, to: SocketAddrV4, protocol: Protocol, number: u32) -> Vec<u8> {
    let payload = number.to_be_bytes();
    match protocol {
        Protocol::Udp => build::udp(from, to).payload(&payload).build(),
        Protocol::Tcp if number == 0 => build::tcp(from, to, Flags::SYN).build(),
        Protocol::Tcp => build::tcp(from, to, Flags::ACK).sequence(1).acknowledgment(1).payload(&payload).build(),
        Protocol::Icmp if to.port() == 0 => {
            build::echo_request(*from.ip(), *to.ip(), from.port()).payload(&payload).build()
        }
        Protocol::Icmp => build::echo_reply(*from.ip(), *to.ip(), to.port()).payload(&payload).build(),
    }
}

#[test]
fn sixteen_workers_share_no_endpoint_and_lose_no_reply() {
    covers!("S15", "4787-REQ-3", "5382-REQ-7");
    const FLOWS: u32 = 480_000;
    const KEY: u64 = 0x6d5a_56da_255b_0ec2;
    let mut wanted = settings().pooling(Pooling::Arbitrary);
    wanted.limits.mappings_max = 40_000;
    wanted.limits.extra_sessions_max = 1_000;
    wanted.limits.subscribers_max = 1_000;
    let mut bed = Bed::new(wanted).workers(WORKERS);
    // One subscriber of each worker and more, so that all know the next hops before the bursts
    // come.
    for number in 0..200_u32 {
        let internal = at((0x6445_0000 + number).into(), 5_000);
        let external = bed.open_udp(internal, at(E1, 443));
        assert!(bed.udp_reaches(at(E1, 443), external, internal));
    }
    let mut seen = HashSet::new();
    let hosts = |number: u32| Ipv4Addr::from(0x6443_0000 + number / 60);
    let protocol = |number: u32| Protocol::ALL[number as usize % 3];
    let mut chunk_start = 0;
    while chunk_start < FLOWS {
        let chunk = chunk_start..(chunk_start + 960).min(FLOWS);
        chunk_start = chunk.end;
        let internals: Vec<(SocketAddrV4, Protocol)> =
            chunk.map(|number| (at(hosts(number), 2_000 + (number % 60) as u16), protocol(number))).collect();
        let remote = |protocol| if protocol == Protocol::Icmp { at(E1, 0) } else { at(E1, 443) };
        // Each flow three packets, all flows mixed.
        let mut externals: HashMap<(u8, SocketAddrV4), Vec<u32>> = HashMap::new();
        for number in 0..3 {
            for (internal, protocol) in &internals {
                let packet = flow_packet(*internal, remote(*protocol), *protocol, number);
                bed.offer_to(queue(KEY, &packet, WORKERS), Side::Inside, &packet);
            }
        }
        bed.settle();
        for packet in bed.take_outside() {
            let data = payload(&packet);
            let number = if data.is_empty() { 0 } else { u32::from_be_bytes([data[0], data[1], data[2], data[3]]) };
            externals.entry((packet[9], source(&packet))).or_default().push(number);
        }
        assert_eq!(externals.len(), internals.len(), "each flow has one external endpoint of its own");
        assert!(externals.values().all(|numbers| numbers == &[0, 1, 2]), "in order and without loss");
        for external in externals.keys() {
            assert!(seen.insert(*external), "{external:?} was given out twice");
        }
        // The replies, each by the queue its own hash says.
        for number in 0..3 {
            for (kind, external) in externals.keys() {
                let protocol = Protocol::from_number(*kind).expect("one of the three");
                let from = at(E1, 443);
                let packet = match (protocol, number) {
                    (Protocol::Tcp, 0) => build::tcp(from, *external, SYN_ACK).acknowledgment(1).build(),
                    _ => flow_packet(from, *external, protocol, number),
                };
                bed.offer_to(queue(KEY, &packet, WORKERS), Side::Outside, &packet);
            }
        }
        bed.settle();
        let mut back: HashMap<(u8, SocketAddrV4), Vec<u32>> = HashMap::new();
        for packet in bed.take_inside() {
            let data = payload(&packet);
            let number = if data.is_empty() { 0 } else { u32::from_be_bytes([data[0], data[1], data[2], data[3]]) };
            back.entry((packet[9], destination(&packet))).or_default().push(number);
        }
        assert!(back.values().all(|numbers| numbers == &[0, 1, 2]), "in order and without loss");
        for (internal, protocol) in &internals {
            assert!(back.contains_key(&(protocol.number(), *internal)), "{internal} got its replies");
        }
    }
    assert_eq!(seen.len(), FLOWS as usize);
    assert_eq!(bed.ports_used(), u64::from(FLOWS) + 200);
    let busy = bed.shards().filter(|shard| shard.view().mappings_len() > FLOWS / WORKERS as u32 / 2).count();
    assert_eq!(busy, WORKERS, "the work is spread");
}

#[test]
fn sixteen_workers_use_the_last_port_and_evict_nothing() {
    covers!("S15", "6888-REQ-11a", "6888-REQ-11b", "6888-REQ-11d");
    let mut wanted = settings().pooling(Pooling::Arbitrary).ports(10_000, 10_999);
    wanted.limits.mappings_max = 4_000;
    let mut bed = Bed::new(wanted).workers(WORKERS).steering(Steering::Random);
    let mut firsts = HashMap::new();
    for number in 0..3_000_u32 {
        let internal = at((0x6443_0000 + number / 10).into(), 2_000 + (number % 10) as u16);
        let external = bed.open_udp(internal, at(E1, 9));
        assert!(firsts.insert(external, internal).is_none(), "{external} was given out twice");
    }
    assert_eq!(bed.ports_used(), 3_000, "every port of every address");
    let mut reported = 0;
    for number in 0..500_u32 {
        let internal = at((0x6444_0000 + number).into(), 5_000);
        bed.inside(&build::udp(internal, at(E1, 9)).payload(b"x").build());
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new(), "neither translated nor leaked");
        for error in bed.take_inside() {
            assert!(is_icmp(&error, 3, 1));
            assert_eq!(source(quote(&error)), internal);
            reported += 1;
        }
        bed.advance(Duration::from_millis(1));
    }
    assert_eq!((bed.count(Verdict::PortsExhausted), reported), (500, 500));
    for (external, internal) in firsts {
        assert!(bed.udp_reaches(at(E2, 7), external, internal), "the first ones still work");
    }
}

#[test]
fn sixteen_workers_route_errors_and_fragments_to_their_owner() {
    covers!("S15", "S8", "S4");
    let mut wanted = settings();
    wanted.limits.mappings_max = 4_000;
    let mut bed = Bed::new(wanted).workers(WORKERS).steering(Steering::Random);
    for round in 0..200_u16 {
        let host = |number: u16| Ipv4Addr::from(0x6443_0000 + u32::from(round * 2 + number));
        let (one, two) = (host(0), host(1));
        let to = bed.open_udp(at(two, 6000), at(E1, 9));
        let whole = build::udp(at(one, 5000), to).identification(round).payload_length(4_000).build();
        let mut pieces = build::fragment(&whole, 1_500);
        pieces.rotate_left(usize::from(round) % 3);
        for piece in &pieces {
            bed.inside(piece);
        }
        let joined = build::reassemble(&bed.take_inside()).expect("all pieces came out");
        assert_eq!((destination(&joined), payload(&joined)), (at(two, 6000), payload(&whole)));
        let sender = source(&joined);
        bed.inside(&build::icmp_error(two, *sender.ip(), 3, 3, &joined[..100]).build());
        let error = bed.only_inside();
        assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &one));

        let whole = build::udp(at(E1, 9), sender).identification(round).payload_length(4_000).build();
        let mut pieces = build::fragment(&whole, 1_500);
        pieces.rotate_left(usize::from(round) % 3);
        for piece in &pieces {
            bed.outside(piece);
        }
        let joined = build::reassemble(&bed.take_inside()).expect("all pieces came out");
        assert_eq!((destination(&joined), payload(&joined)), (at(one, 5000), payload(&whole)));
        bed.inside(&build::icmp_error(one, E1, 3, 3, &joined[..100]).build());
        assert_eq!(destination(quote(&bed.only_outside())), sender);
    }
    assert_eq!(bed.counters().fragments_held, 0);
}

#[test]
fn nothing_leaves_untranslated_whatever_comes() {
    covers!("S15");
    // The bed looks at both addresses, the checksums and every byte of what leaves on either side.
    // Natrix sends no errors here: they would quote broken packets, as they should.
    let mut quiet = settings();
    (quiet.icmp.errors_to_inside, quiet.icmp.errors_to_outside) = (false, false);
    let mut bed = Bed::new(quiet).workers(4).steering(Steering::Random);
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let tcp = bed.connect(at(I1, 5000), at(E1, 80));
    let id = bed.ping(I1, 7, E1);
    let outbound = [
        build::udp(at(I1, 5000), at(E1, 9)).payload_length(40).build(),
        build::tcp(at(I1, 5000), at(E1, 80), Flags::ACK).sequence(1_001).payload_length(40).build(),
        build::echo_request(I1, E1, 7).payload_length(40).build(),
        build::icmp_error(I1, E1, 3, 3, &build::udp(at(E1, 9), at(I1, 5000)).payload_length(40).build()).build(),
        build::udp(at(I2, 6000), external).payload_length(40).build(),
    ];
    let inbound = [
        build::udp(at(E1, 9), external).payload_length(40).build(),
        build::tcp(at(E1, 80), tcp, Flags::ACK).sequence(5_001).payload_length(40).build(),
        build::echo_reply(E1, *id.ip(), id.port()).payload_length(40).build(),
        build::icmp_error(E1, *id.ip(), 3, 3, &build::udp(external, at(E1, 9)).payload_length(40).build()).build(),
    ];
    for round in 0..20_000_u32 {
        for (side, packets) in [(Side::Inside, &outbound[..]), (Side::Outside, &inbound[..])] {
            let thrown = dice((round, side.index()));
            let mut packet = packets[thrown as usize % packets.len()].clone();
            // One to three bytes of the headers become others, and the header checksum is mostly
            // made right again.
            for change in 0..=thrown >> 8 & 1 {
                let byte = dice((thrown, change));
                let offset = (byte >> 16) as usize % packet.len().min(56);
                packet[offset] = byte as u8;
            }
            let header_length = usize::from(packet[0] & 15) * 4;
            if thrown >> 16 & 7 != 0 && (20..=packet.len()).contains(&header_length) {
                Ipv4::new_unchecked(packet.as_mut_slice()).fill_checksum();
            }
            bed.burst(side, &[packet]);
        }
        if round % 64 == 0 {
            bed.advance(Duration::from_millis(50));
        }
        bed.take_inside();
        bed.take_outside();
    }
    let counters = bed.counters();
    assert!(counters.of(Verdict::Outbound) > 1_000 && counters.of(Verdict::Inbound) > 1_000);
}
