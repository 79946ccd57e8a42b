//! S2 and S3: UDP checksum 0, and incremental checksums.

use std::collections::HashSet;

use nat::Settings;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::beds;
use super::stream;
use super::word;

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
