//! S4 and S5: fragments, and identifications of datagrams.

use std::collections::HashMap;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Verdict;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::beds;
use super::stream;

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
