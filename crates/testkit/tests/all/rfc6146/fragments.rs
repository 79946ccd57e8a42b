//! Fragments and sizes.

use nat::Duration;
use nat::Verdict;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::e1;

#[test]
fn fragments_in_any_order_leave_as_one_datagram() {
    covers!("6146-8", "7915-5.1.1a");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 3_000]);
    let fragments = fragments6(&whole, &[1_232, 1_232], 0xabcd_0001);
    let mut left = Vec::new();
    for fragment in fragments.iter().rev() {
        let [inside, out] = bed.inside(fragment);
        assert!(inside.is_empty());
        left.extend(out);
        bed.advance(Duration::from_millis(600));
    }
    assert_eq!(left.len(), 3);
    let whole = build::reassemble(&left).expect("all fragments of one datagram");
    assert_eq!((destination(&whole), payload(&whole)), (at(E1, 53), &[7; 3_000][..]));
}

/// What a datagram in three fragments, the last one first and the others so much later, becomes.
fn last_first(settings: nat::Settings, later: Duration, is_inbound: bool) -> (Bed6, usize) {
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let answer = build::udp(at(E1, 53), source(&out[0])).payload_length(3_000).identification(77).build();
    let fragments = match is_inbound {
        true => build::fragment(&answer, 1_276),
        false => fragments6(&udp6((v6(C6), 5_000), e1(53), &[7; 3_000]), &[1_232, 1_232], 77),
    };
    assert_eq!(fragments.len(), 3);
    let mut left = Vec::new();
    for place in [2, 0, 1] {
        let [inside, out] = match is_inbound {
            true => bed.outside(&fragments[place]),
            false => bed.inside(&fragments[place]),
        };
        left.extend(if is_inbound { inside } else { out });
        if place == 2 {
            assert!(left.is_empty(), "the last one has no ports");
            bed.advance(later);
        }
    }
    let whole = match is_inbound {
        true => wire::build6::reassemble(&left).map_or(0, |whole| whole.len() - 48),
        false => build::reassemble(&left).map_or(0, |whole| payload(&whole).len()),
    };
    (bed, whole)
}

#[test]
fn fragments_wait_two_seconds_for_the_first_one() {
    covers!("6146-8");
    for is_inbound in [false, true] {
        // Two seconds by default, and as long as the operator wants.
        for (timeout, waits, gone) in [(None, 1_900, 2_600), (Some(5), 4_900, 5_600)] {
            let settings = || match timeout {
                None => settings6(),
                Some(seconds) => settings6().timers(|timeouts| timeouts.fragment = Duration::from_secs(seconds)),
            };
            let (_, whole) = last_first(settings(), Duration::from_millis(waits), is_inbound);
            assert_eq!(whole, 3_000, "after {waits} ms");
            let (bed, whole) = last_first(settings(), Duration::from_millis(gone), is_inbound);
            assert_eq!((whole, bed.count(Verdict::FragmentTimeout)), (0, 1), "after {gone} ms");
        }
    }
}

#[test]
fn fragments_of_a_datagram_may_come_in_every_order() {
    covers!("6146-8");
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut bed = Bed6::new(settings6());
        let fragments = fragments6(&udp6((v6(C6), 5_000), e1(53), &[7; 3_000]), &[1_232, 1_232], 9);
        let out: Vec<_> = order.into_iter().flat_map(|place| bed.inside(&fragments[place])[1].clone()).collect();
        assert_eq!(payload(&build::reassemble(&out).expect("whole")), &[7; 3_000][..], "{order:?}");
        let answer = build::udp(at(E1, 53), source(&out[0])).payload_length(3_000).identification(7).build();
        let fragments = build::fragment(&answer, 1_276);
        let back: Vec<_> = order.into_iter().flat_map(|place| bed.outside(&fragments[place])[0].clone()).collect();
        assert_eq!(wire::build6::reassemble(&back).expect("whole").len(), 3_048, "{order:?}");
    }
}

#[test]
fn a_flood_of_fragments_has_bounded_memory() {
    covers!("6146-8", "6146-30");
    let settings = settings6();
    let most = u64::from(settings.limits.fragments_held_max);
    let mut bed = Bed6::new(settings);
    let whole = |from: u16| udp6((v6(C6), from), e1(53), &[7; 2_000]);
    for identification in 0..5_000 {
        let later = &fragments6(&whole(5_000), &[1_232], identification)[1];
        assert_eq!(bed.inside(later).concat().len(), 0);
        assert!(bed.shards()[0].counters().fragments_held <= most);
    }
    let refused = [Verdict::FragmentBuffersFull, Verdict::FragmentTableFull].map(|verdict| bed.count(verdict));
    let held = bed.shards()[0].counters().fragments_held;
    assert!(held > 0 && refused.iter().sum::<u64>() == 5_000 - held, "{held} held, {refused:?}");
    assert_eq!(bed.mappings(), 0, "they make no state");
    // Afterwards all is free again.
    bed.advance(Duration::from_secs(3));
    let fragments = fragments6(&whole(6_000), &[1_232], 9_999);
    let out: Vec<_> = fragments.iter().flat_map(|piece| bed.inside(piece)[1].clone()).collect();
    assert_eq!(out.len(), 2);
    assert_eq!(bed.shards()[0].counters().fragments_held, 0);
}

#[test]
fn datagrams_with_equal_low_identifications_do_not_mix() {
    covers!("6146-8");
    let mut bed = Bed6::new(settings6());
    let datagrams = [5_000_u16, 5_001].map(|port| udp6((v6(C6), port), e1(53), &[port as u8; 2_000]));
    let one = fragments6(&datagrams[0], &[1_232], 0x0001_1234);
    let two = fragments6(&datagrams[1], &[1_232], 0x0002_1234);
    let mut left = Vec::new();
    for fragment in [&one[1], &two[1], &two[0], &one[0]] {
        left.extend(bed.inside(fragment)[1].clone());
    }
    assert_eq!(left.len(), 4);
    let identification = |packet: &Vec<u8>| u16::from_be_bytes([packet[4], packet[5]]);
    let mut groups: Vec<Vec<Vec<u8>>> = Vec::new();
    for packet in left {
        match groups.iter_mut().find(|group| identification(&group[0]) == identification(&packet)) {
            Some(group) => group.push(packet),
            None => groups.push(vec![packet]),
        }
    }
    let mut payloads: Vec<Vec<u8>> =
        groups.iter().map(|group| payload(&build::reassemble(group).expect("whole")).to_vec()).collect();
    payloads.sort();
    let mut expected = [5_000_u16, 5_001].map(|port| vec![port as u8; 2_000]);
    expected.sort();
    assert_eq!(payloads, expected);
}

#[test]
fn overlapping_and_tiny_fragments_are_dropped_by_name() {
    covers!("6146-9");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 2_000]);
    let one = fragments6(&whole, &[1_232], 1);
    bed.inside(&one[0]);
    let overlapping = fragments6(&whole, &[1_224], 1);
    let [_, out] = bed.inside(&overlapping[1]);
    assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::FragmentOverlap)));
    let tcp = tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), &[0; 64]);
    let tiny = fragments6(&tcp, &[16], 2);
    bed.inside(&tiny[0]);
    assert_eq!(bed.verdict(), Some(Verdict::FragmentTiny));
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), b"atomic");
    let atomic = fragments6(&whole, &[], 0x77);
    assert_eq!(atomic.len(), 1);
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!((payload(&out[0]), header(&out[0]).is_fragment()), (&b"atomic"[..], false));
}

#[test]
fn sizes_and_dont_fragment_follow_the_rfc() {
    covers!("7915-4.1a", "7915-4.1b", "7915-4.1c", "7915-5a");
    let mut settings = settings6();
    settings.interfaces[0].mtu = 1_280;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_232]));
    let mapped = source(&out[0]);
    assert!(!header(&out[0]).dont_fragment(), "1,280 bytes of IPv6 may be fragmented");

    let packet = |length: usize| build::udp(at(E1, 53), mapped).payload_length(length - 28);
    let [back, _] = bed.outside(&packet(500).build());
    assert_eq!((back.len(), view6(&back[0]).next_header()), (1, 17), "no Fragment header without need");
    let [back, out] = bed.outside(&packet(1_261).dont_fragment().build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::TooBig)));
    assert_eq!((out[0][20], out[0][21], u16::from_be_bytes([out[0][26], out[0][27]])), (3, 4, 1_260));
    let [back, _] = bed.outside(&packet(1_260).dont_fragment().build());
    assert_eq!(back[0].len(), 1_280);
    let [back, _] = bed.outside(&packet(1_500).identification(0x4242).build());
    assert!(back.len() > 1 && back.iter().all(|piece| piece.len() <= 1_280));
    let whole = wire::build6::reassemble(&back).expect("fragments of one packet");
    assert_eq!(whole.len(), 1_520);
}

#[test]
fn a_large_ipv6_packet_may_not_be_fragmented() {
    covers!("7915-5a", "7915-5.2c");
    let mut settings = settings6();
    settings.interfaces[1].mtu = 1_400;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_233]));
    assert!(header(&out[0]).dont_fragment());
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_400]));
    assert!(out.is_empty());
    assert_eq!(icmp6_of(&inside[0]), (2, 0, 1_420));
}

#[test]
fn atomic_fragments_belong_to_no_other_fragments() {
    covers!("6946-4");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 2_000]);
    let fragments = fragments6(&whole, &[1_232], 0x77);
    let atomic = fragments6(&udp6((v6(C6), 5_000), e1(53), b"atomic"), &[], 0x77);
    // With the identification of a datagram that is not whole yet.
    assert!(bed.inside(&fragments[1])[1].is_empty());
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!((out.len(), payload(&out[0])), (1, &b"atomic"[..]));
    let [_, left] = bed.inside(&fragments[0]);
    assert_eq!(payload(&build::reassemble(&left).expect("one datagram")), &[7; 2_000][..]);
    // In a softwire, too.
    let inner = build::udp(at([192, 168, 1, 2].into(), 5_000), at(E1, 53)).payload(b"inner").build();
    let atomic = fragments6(&softwire(v6(D6), v6(AFTR), &inner), &[], 9);
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!(payload(&out[0]), b"inner");
}

#[test]
fn a_datagram_with_an_overlap_is_dropped_whole() {
    covers!("5722-4");
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 3_000]);
    let fragments = fragments6(&whole, &[1_232, 1_232], 1);
    let overlapping = fragments6(&whole, &[1_224, 1_232], 1);
    let mut bed = Bed6::new(settings6());
    bed.inside(&fragments[2]);
    bed.inside(&fragments[1]);
    assert!(bed.inside(&overlapping[1])[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    // Nor those that come later.
    assert!(bed.inside(&fragments[0])[1].is_empty());
    assert_eq!(bed.count(Verdict::FragmentOverlap), 4);
    // In a softwire, too.
    let inner = build::udp(at([192, 168, 1, 2].into(), 5_000), at(E1, 53)).payload_length(1_400).build();
    let outer = softwire(v6(D6), v6(AFTR), &inner);
    let fragments = fragments6(&outer, &[512, 512], 9);
    bed.inside(&fragments[0]);
    assert!(bed.inside(&fragments6(&outer, &[504, 512], 9)[1])[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    for later in &fragments {
        assert!(bed.inside(later)[1].is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    }
    bed.advance(Duration::from_secs(3));
    let left: Vec<_> = fragments.iter().flat_map(|piece| bed.inside(piece)[1].clone()).collect();
    assert_eq!(left.len(), 1, "a datagram with the same identification, long after");
}
