use proptest::prelude::*;

use super::*;
use crate::types::HostNumber;
use crate::types::InterfaceId;

fn hash() -> KeyedHash {
    KeyedHash::new([7, 1, 2, 3])
}

const TIMEOUT: Duration = Duration::from_secs(2);
const PORTS: (u16, u16) = (5_000, 53);
const UDP: u8 = 17;
const TCP: u8 = 6;

fn tracker(datagrams: u32, held: u32) -> FragmentTracker {
    let limits = Limits { fragmented_datagrams_max: datagrams, fragments_held_max: held, ..Limits::default() };
    FragmentTracker::new(&limits, TIMEOUT, 0, hash())
}

fn at_ms(ms: u64) -> Instant {
    Instant::from_micros(ms * 1_000)
}

fn key_from(source: u32, protocol: u8, identification: u16) -> FragmentKey {
    let destination = Ipv4Addr::new(198, 51, 100, 1);
    FragmentKey::new(Side::Inside, Ipv4Addr::from_bits(source), destination, protocol, identification)
}

fn key(identification: u16) -> FragmentKey {
    key_from(0x6440_000a, UDP, identification)
}

fn piece(offset: u32, length: u32, more: bool) -> FragmentInfo {
    FragmentInfo { offset, length, more, first_ports: (offset == 0).then_some(PORTS), owner: HostNumber(0) }
}

fn meta(n: u16) -> PacketMeta {
    PacketMeta { ingress: InterfaceId(n), ..PacketMeta::default() }
}

/// With its offset as content and its source as owner.
fn give(tracker: &mut FragmentTracker, ms: u64, key: FragmentKey, info: FragmentInfo) -> FragmentOutcome {
    let info = FragmentInfo { owner: HostNumber((key.addresses >> 32) as u32), ..info };
    tracker.accept(at_ms(ms), key, info, &info.offset.to_be_bytes(), meta(info.offset as u16))
}

fn drain(tracker: &mut FragmentTracker, datagram: DatagramIndex) -> Vec<u32> {
    let mut buffer = vec![0; tracker.slot_bytes()];
    let mut offsets = Vec::new();
    while let Some((length, meta)) = tracker.next_held(datagram, &mut buffer) {
        assert_eq!(length, 4);
        let offset = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        assert_eq!(meta.ingress, InterfaceId(offset as u16), "metadata stays with its packet");
        offsets.push(offset);
    }
    offsets
}

fn resolved(outcome: FragmentOutcome) -> DatagramIndex {
    match outcome {
        FragmentOutcome::Resolved { datagram, ports } => {
            assert_eq!(ports, PORTS);
            datagram
        }
        other => panic!("expected ports, got {other:?}"),
    }
}

fn verdict(outcome: FragmentOutcome) -> (Verdict, u32) {
    match outcome {
        FragmentOutcome::Dropped { verdict, held_discarded } => (verdict, held_discarded),
        other => panic!("expected a drop, got {other:?}"),
    }
}

const THREE: [(u32, u32, bool); 3] = [(0, 1_480, true), (1_480, 1_480, true), (2_960, 100, false)];

#[test]
fn three_fragments_come_through_in_all_six_orders() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut tracker = tracker(16, 16);
        let (mut forwarded, mut held) = (Vec::new(), 0);
        for n in order {
            let (offset, length, more) = THREE[n];
            match give(&mut tracker, 0, key(1), piece(offset, length, more)) {
                FragmentOutcome::Held => held += 1,
                outcome => {
                    let datagram = resolved(outcome);
                    forwarded.push(offset);
                    let released = drain(&mut tracker, datagram);
                    assert!(released.is_sorted(), "{released:?}");
                    assert_eq!(released.len(), held);
                    held = 0;
                    forwarded.extend(released);
                }
            }
        }
        forwarded.sort_unstable();
        assert_eq!(forwarded, [0, 1_480, 2_960], "{order:?}");
        assert!(tracker.is_empty(), "a complete datagram leaves nothing behind: {order:?}");
        assert_eq!(tracker.held(), 0);
    }
}

#[test]
fn a_last_fragment_may_come_late_but_not_after_the_timeout() {
    for (ms, expected) in [(1_999, true), (2_000, false)] {
        let mut tracker = tracker(16, 16);
        resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
        resolved(give(&mut tracker, 1_500, key(1), piece(1_480, 1_480, true)));
        let outcome = give(&mut tracker, ms, key(1), piece(2_960, 100, false));
        assert_eq!(matches!(outcome, FragmentOutcome::Resolved { .. }), expected, "after {ms} ms");
    }
}

#[test]
fn the_timeout_counts_from_the_first_fragment_seen() {
    let mut tracker = tracker(16, 16);
    give(&mut tracker, 0, key(1), piece(1_480, 8, true));
    give(&mut tracker, 1_900, key(1), piece(1_488, 8, true));
    let mut dropped = 0;
    tracker.expire(at_ms(1_999), 10, |n| dropped += n);
    assert_eq!((dropped, tracker.held()), (0, 2));
    tracker.expire(at_ms(2_000), 10, |n| dropped += n);
    assert_eq!((dropped, tracker.held()), (2, 0));
    assert!(tracker.is_empty());
}

#[test]
fn fragments_without_a_first_never_join_another_datagram() {
    let mut tracker = tracker(16, 16);
    assert_eq!(give(&mut tracker, 0, key(1), piece(1_480, 100, false)), FragmentOutcome::Held);
    // Identification reused after the timeout: the old piece must not join the new datagram.
    let datagram = resolved(give(&mut tracker, 2_500, key(1), piece(0, 1_480, true)));
    assert!(drain(&mut tracker, datagram).is_empty());
    let mut dropped = 0;
    tracker.expire(at_ms(2_500), 10, |n| dropped += n);
    assert_eq!(dropped, 1);
}

#[test]
fn datagrams_differ_by_every_part_of_their_key() {
    let (a, b, c) = (Ipv4Addr::new(100, 64, 0, 10), Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2));
    let keys = [
        FragmentKey::new(Side::Inside, a, b, UDP, 1),
        FragmentKey::new(Side::Outside, a, b, UDP, 1),
        FragmentKey::new(Side::Inside, c, b, UDP, 1),
        FragmentKey::new(Side::Inside, a, c, UDP, 1),
        FragmentKey::new(Side::Inside, a, b, TCP, 1),
        FragmentKey::new(Side::Inside, a, b, UDP, 2),
    ];
    let mut tracker = tracker(64, 64);
    for key in keys {
        resolved(give(&mut tracker, 0, key, piece(0, 1_480, true)));
    }
    assert_eq!(tracker.datagrams(), keys.len());
}

#[test]
fn an_exact_duplicate_is_dropped_alone() {
    let mut tracker = tracker(16, 16);
    give(&mut tracker, 0, key(1), piece(1_480, 1_480, true));
    resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
    for (offset, length, more) in [THREE[0], THREE[1]] {
        let outcome = give(&mut tracker, 0, key(1), piece(offset, length, more));
        assert_eq!(verdict(outcome), (Verdict::FragmentOverlap, 0));
    }
    resolved(give(&mut tracker, 0, key(1), piece(2_960, 100, false)));
}

#[test]
fn an_overlap_gives_the_whole_datagram_up() {
    // (offset, length, more) against a held fragment of bytes 800 to 1600.
    for (offset, length, more) in
        [(792, 16, true), (1_592, 16, true), (808, 8, true), (800, 8, true), (1_592, 8, true), (0, 2_000, true)]
    {
        let mut tracker = tracker(16, 16);
        assert_eq!(give(&mut tracker, 0, key(1), piece(800, 800, true)), FragmentOutcome::Held);
        let outcome = give(&mut tracker, 0, key(1), piece(offset, length, more));
        assert_eq!(verdict(outcome), (Verdict::FragmentOverlap, 1), "{offset}+{length}");
        assert_eq!(tracker.held(), 0);
        let later = give(&mut tracker, 0, key(1), piece(0, 800, true));
        assert_eq!(verdict(later), (Verdict::FragmentOverlap, 0));
    }
}

#[test]
fn data_beyond_the_end_of_the_datagram_gives_it_up() {
    let mut tracker = tracker(64, 64);
    let cases = [
        ((800, 100, false), (904, 8, true)),
        ((800, 100, false), (896, 8, true)),
        ((800, 100, false), (1_600, 8, false)),
        ((800, 800, true), (160, 8, false)),
    ];
    for (n, (first, second)) in cases.into_iter().enumerate() {
        let key = key(n as u16);
        assert_eq!(give(&mut tracker, 0, key, piece(first.0, first.1, first.2)), FragmentOutcome::Held);
        let outcome = give(&mut tracker, 0, key, piece(second.0, second.1, second.2));
        assert_eq!(verdict(outcome), (Verdict::FragmentMalformed, 1), "case {n}");
    }
}

#[test]
fn impossible_offsets_and_lengths_leave_no_state() {
    let mut tracker = tracker(16, 16);
    let bad = [
        piece(8, 0, true),
        piece(8, 12, true),
        piece(0, 100, false),
        piece(4, 8, true),
        piece(65_528, 8, false),
        piece(65_512, 8, false),
        piece(65_512, u32::MAX, false),
    ];
    for info in bad {
        assert_eq!(verdict(give(&mut tracker, 0, key(1), info)), (Verdict::FragmentMalformed, 0), "{info:?}");
    }
    assert!(tracker.is_empty());
    assert_eq!(give(&mut tracker, 0, key(1), piece(65_504, 11, false)), FragmentOutcome::Held);
}

#[test]
fn tiny_and_overlaying_fragments_are_dropped() {
    let mut tracker = tracker(16, 16);
    let tcp = key_from(1, TCP, 1);
    for (offset, length) in [(0, 8), (0, 16), (8, 800), (16, 800)] {
        let outcome = give(&mut tracker, 0, tcp, piece(offset, length, true));
        assert_eq!(verdict(outcome), (Verdict::FragmentTiny, 0), "TCP {offset}+{length}");
    }
    resolved(give(&mut tracker, 0, tcp, piece(0, 24, true)));
    let without_ports = FragmentInfo { first_ports: None, ..piece(0, 800, true) };
    assert_eq!(verdict(give(&mut tracker, 0, key(1), without_ports)), (Verdict::FragmentTiny, 0));
    resolved(give(&mut tracker, 0, key(1), piece(0, 8, true)));
    resolved(give(&mut tracker, 0, key(1), piece(8, 8, true)));
}

#[test]
fn a_refused_datagram_takes_its_other_fragments_with_it() {
    let mut tracker = tracker(16, 16);
    give(&mut tracker, 0, key(1), piece(1_480, 1_480, true));
    let datagram = resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
    assert_eq!(tracker.refuse(datagram), 1);
    assert!(drain(&mut tracker, datagram).is_empty());
    let later = give(&mut tracker, 0, key(1), piece(2_960, 100, false));
    assert_eq!(verdict(later), (Verdict::FragmentRefused, 0));
}

#[test]
fn the_translated_identification_lives_as_long_as_the_datagram() {
    let mut tracker = tracker(16, 16);
    let datagram = resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
    assert_eq!(tracker.translated_identification(datagram), None);
    tracker.set_translated_identification(datagram, 777);
    let last = resolved(give(&mut tracker, 0, key(1), piece(1_480, 8, false)));
    assert_eq!(tracker.translated_identification(last), Some(777), "still there when the last one is processed");
    let again = resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
    assert_eq!(tracker.translated_identification(again), None);
}

#[test]
fn a_packet_larger_than_a_slot_is_not_held() {
    let mut tracker = tracker(16, 16);
    let large = vec![0; tracker.slot_bytes() + 1];
    let outcome = tracker.accept(at_ms(0), key(1), piece(1_480, 2_048, true), &large, meta(0));
    assert_eq!(verdict(outcome), (Verdict::FragmentBuffersFull, 0));
    // With its ports known it needs no slot.
    resolved(give(&mut tracker, 0, key(1), piece(0, 1_480, true)));
    resolved(tracker.accept(at_ms(0), key(1), piece(1_480, 2_048, true), &large, meta(0)));
}

#[test]
fn one_source_cannot_take_everything() {
    let mut tracker = tracker(4_096, 1_024);
    let flood = 0x0a00_0001;
    let mut held = 0;
    for n in 0..50_000_u32 {
        if give(&mut tracker, 0, key_from(flood, UDP, n as u16), piece(1_480, 8, true)) == FragmentOutcome::Held {
            held += 1;
        }
    }
    assert_eq!(held, 1_024 / 8);
    assert!(tracker.datagrams() <= 4_096 / 8);
    // Another source gets in order, and out of order.
    resolved(give(&mut tracker, 1, key(1), piece(0, 1_480, true)));
    resolved(give(&mut tracker, 1, key(1), piece(1_480, 8, false)));
    assert_eq!(give(&mut tracker, 1, key(2), piece(1_480, 8, false)), FragmentOutcome::Held);
    resolved(give(&mut tracker, 1, key(2), piece(0, 1_480, true)));
}

#[test]
fn equal_sources_in_two_realms_have_separate_shares() {
    let mut tracker = tracker(4_096, 1_024);
    let flood = 0x0a00_0001;
    for n in 0..50_000_u32 {
        give(&mut tracker, 0, key_from(flood, UDP, n as u16).in_realm(RealmId(1)), piece(1_480, 8, true));
    }
    for realm in [RealmId(0), RealmId(2)] {
        let other = key_from(flood, UDP, 1).in_realm(realm);
        assert_eq!(give(&mut tracker, 1, other, piece(1_480, 8, false)), FragmentOutcome::Held);
    }
}

#[test]
fn a_flood_from_one_side_leaves_room_for_the_other() {
    let mut tracker = tracker(1_024, 256);
    for n in 0..20_000_u32 {
        let source = Ipv4Addr::from_bits(0x0b00_0000 + n);
        let key = FragmentKey::new(Side::Outside, source, Ipv4Addr::new(203, 0, 113, 1), UDP, n as u16);
        give(&mut tracker, 0, key, piece(1_480, 8, true));
    }
    assert!(tracker.datagrams() <= 768 && tracker.held() <= 192);
    resolved(give(&mut tracker, 1, key(1), piece(0, 1_480, true)));
    assert_eq!(give(&mut tracker, 1, key(2), piece(1_480, 8, false)), FragmentOutcome::Held);
}

#[test]
fn a_full_table_evicts_nothing_and_recovers_after_the_timeout() {
    let mut tracker = tracker(8, 8);
    let keys: Vec<FragmentKey> = (0..100).map(|n| key_from(0x6440_0000 + n, UDP, 1)).collect();
    let taken: Vec<&FragmentKey> = keys
        .iter()
        .filter(|key| matches!(give(&mut tracker, 0, **key, piece(0, 8, true)), FragmentOutcome::Resolved { .. }))
        .collect();
    assert_eq!(taken.len(), 6, "three quarters for one side");
    for key in taken {
        resolved(give(&mut tracker, 1_000, *key, piece(8, 8, true)));
    }
    assert_eq!(verdict(give(&mut tracker, 1_999, key(9), piece(0, 8, true))), (Verdict::FragmentTableFull, 0));
    resolved(give(&mut tracker, 2_000, key(9), piece(0, 8, true)));
}

#[test]
fn expiry_does_no_more_than_its_budget() {
    let mut tracker = tracker(64, 64);
    for n in 0..40_u32 {
        give(&mut tracker, 0, key_from(n, UDP, 1), piece(1_480, 8, true));
    }
    let mut dropped = 0;
    tracker.expire(at_ms(5_000), 10, |n| dropped += n);
    assert_eq!(dropped, 10);
    tracker.expire(at_ms(5_000), 100, |n| dropped += n);
    assert_eq!((dropped, tracker.held(), tracker.is_empty()), (40, 0, true));
}

#[test]
fn a_tracker_without_room_refuses_and_does_not_panic() {
    let (mut nothing, mut no_slots) = (tracker(0, 0), tracker(8, 0));
    assert_eq!(verdict(give(&mut nothing, 0, key(1), piece(0, 8, true))), (Verdict::FragmentTableFull, 0));
    assert_eq!(verdict(give(&mut no_slots, 0, key(1), piece(8, 8, true))), (Verdict::FragmentBuffersFull, 0));
}

/// Cut at random; some pieces twice, in random order.
fn shuffled_datagram() -> impl Strategy<Value = Vec<(u32, u32, bool)>> {
    (prop::collection::vec(1_u32..40, 1..12), 1_u32..=8)
        .prop_map(|(units, last)| {
            let mut pieces: Vec<(u32, u32, bool)> = Vec::new();
            let mut offset = 0;
            for length in units.iter().map(|units| units * 8) {
                pieces.push((offset, length, true));
                offset += length;
            }
            pieces.push((offset, last, false));
            pieces
        })
        .prop_flat_map(|pieces| {
            let copies = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
            (Just(pieces), copies)
        })
        .prop_map(|(mut pieces, copies)| {
            let extra: Vec<_> = copies.iter().map(|index| *index.get(&pieces)).collect();
            pieces.extend(extra);
            pieces
        })
        .prop_shuffle()
}

proptest! {
    /// In any order and with duplicates.
    #[test]
    fn every_fragment_is_forwarded_exactly_once(pieces in shuffled_datagram()) {
        let mut tracker = tracker(64, 128);
        let mut forwarded = Vec::new();
        let mut whole: Vec<u32> = pieces.iter().map(|(offset, ..)| *offset).collect();
        whole.sort_unstable();
        whole.dedup();
        for (offset, length, more) in pieces {
            if forwarded.len() == whole.len() {
                break;
            }
            match give(&mut tracker, 0, key(1), piece(offset, length, more)) {
                FragmentOutcome::Resolved { datagram, .. } => {
                    forwarded.push(offset);
                    forwarded.extend(drain(&mut tracker, datagram));
                }
                FragmentOutcome::Held => {}
                FragmentOutcome::Dropped { verdict, held_discarded } => {
                    prop_assert_eq!((verdict, held_discarded), (Verdict::FragmentOverlap, 0));
                }
            }
        }
        forwarded.sort_unstable();
        prop_assert_eq!(forwarded, whole);
        prop_assert!(tracker.is_empty());
    }

    /// No byte is forwarded twice, and each fragment gets one verdict.
    #[test]
    fn hostile_fragments_never_overlap_and_all_are_accounted_for(
        given in prop::collection::vec((0_u16..3, 0_u32..30, 1_u32..80, any::<bool>(), 0_u64..800), 0..200),
    ) {
        let mut tracker = tracker(4, 6);
        let (mut now, mut ended) = (0, 0);
        let total = given.len() as u32;
        let mut lengths = std::collections::HashMap::new();
        for (identification, unit, length, more, wait) in given {
            now += wait / 20;
            let info = piece(unit * 8, length, more);
            let outcome = give(&mut tracker, now, key(identification), info);
            if outcome == FragmentOutcome::Held || matches!(outcome, FragmentOutcome::Resolved { .. }) {
                lengths.insert((identification, info.offset), length);
            }
            match outcome {
                FragmentOutcome::Resolved { datagram, .. } => {
                    let mut offsets = drain(&mut tracker, datagram);
                    offsets.push(info.offset);
                    ended += offsets.len() as u32;
                    offsets.sort_unstable();
                    for pair in offsets.windows(2) {
                        let end = pair[0] + lengths[&(identification, pair[0])];
                        prop_assert!(end <= pair[1], "{} overlaps {}", pair[0], pair[1]);
                    }
                    if wait % 7 == 0 {
                        ended += tracker.refuse(datagram);
                    }
                }
                FragmentOutcome::Held => {}
                FragmentOutcome::Dropped { held_discarded, .. } => ended += 1 + held_discarded,
            }
            if wait % 5 == 0 {
                tracker.expire(at_ms(now), 1, |n| ended += n);
            }
        }
        prop_assert_eq!(ended + tracker.held(), total);
        tracker.expire(at_ms(now + 10_000), 100, |n| ended += n);
        prop_assert_eq!(ended, total);
        prop_assert!(tracker.is_empty());
        prop_assert_eq!(tracker.sources.iter().map(|share| share.datagrams + share.held).sum::<u32>(), 0);
        prop_assert_eq!(tracker.sides.iter().map(|share| share.datagrams + share.held).sum::<u32>(), 0);
        prop_assert!(tracker.units.iter().all(|units| units.fit(0, 8_191) == Fit::New));
    }
}

#[test]
fn the_computed_bytes_are_those_allocated() {
    for (datagrams, held, slot) in [(4, 8, 1_500), (300, 1_000, 9_000), (1_000, 7, 100_000)] {
        let limits = Limits { fragmented_datagrams_max: datagrams, fragments_held_max: held, ..Limits::default() };
        let tracker = FragmentTracker::new(&limits, TIMEOUT, slot, hash());
        let taken = size_of_val(&*tracker.units)
            + size_of_val(&*tracker.bytes)
            + size_of_val(&*tracker.slots)
            + size_of_val(&*tracker.sources)
            + tracker.datagrams.bytes();
        let computed = FragmentTracker::bytes_for(&limits, slot);
        // The map rounds its buckets up to a power of two.
        assert!(
            computed >= taken as u64 && computed <= taken as u64 + u64::from(datagrams) * 8,
            "{computed} computed, {taken} taken"
        );
    }
}
