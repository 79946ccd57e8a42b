use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);

fn at(millis: u64) -> Instant {
    Instant::from_micros(millis * 1_000)
}

fn part(offset: usize, more: bool, bytes: &[u8]) -> Part<'_> {
    Part { source: 7, subscriber: 7, realm: RealmId(0), way: 0, identification: 9, class: 0, offset, more, bytes }
}

fn accept(store: &mut Reassembly, now: u64, part: &Part<'_>) -> Outcome {
    store.accept(at(now), TIMEOUT, part)
}

fn dropped(verdict: Verdict, held: u32) -> Outcome {
    Outcome::Dropped { verdict, held }
}

#[test]
fn fragments_in_any_order_make_the_packet() {
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(16, false, &[3; 5])), Outcome::Held);
    assert_eq!(accept(&mut store, 1, &part(0, true, &[1; 8])), Outcome::Held);
    assert_eq!(store.held(), 2);
    assert_eq!(
        accept(&mut store, 2, &part(8, true, &[2; 8])),
        Outcome::Whole { slot: 0, length: 21, held: 2, class: 0 }
    );
    assert_eq!(store.held(), 0);
    assert_eq!(store.frame(0, 21)[ROOM..], [[1; 8].as_slice(), &[2; 8], &[3; 5]].concat());
}

#[test]
fn the_class_is_that_of_the_fragment_at_offset_0() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    // Classes of the three fragments, and that of the whole; `None` is a drop (RFC 3168 §5.3).
    for (classes, whole) in [
        ([0xb8, 0x28, 0x00], Some(0xb8)),
        ([0xba, 0x2a, 0x02], Some(0xba)),
        ([0xb9, 0xba, 0xb9], Some(0xb9)),
        ([0xba, 0x2b, 0x02], Some(0xbb)),
        ([0xb9, 0xb9, 0xbb], Some(0xbb)),
        ([0xbb, 0x01, 0x02], Some(0xbb)),
        ([0xb8, 0xbb, 0xba], None),
        ([0xbb, 0xba, 0xb8], None),
    ] {
        for order in orders {
            let mut store = Reassembly::new(true);
            let mut outcome = Outcome::Held;
            for place in order {
                let part = Part { class: classes[place], ..part(place * 8, place < 2, &[7; 8]) };
                outcome = accept(&mut store, 0, &part);
            }
            let expected = match whole {
                Some(class) => Outcome::Whole { slot: 0, length: 24, held: 2, class },
                None => dropped(Verdict::FragmentMalformed, 2),
            };
            assert_eq!((outcome, store.held()), (expected, 0), "{classes:02x?} in order {order:?}");
        }
    }
}

#[test]
fn an_overlap_ends_the_datagram_and_later_fragments() {
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(0, true, &[1; 16])), Outcome::Held);
    assert_eq!(accept(&mut store, 0, &part(8, true, &[2; 16])), dropped(Verdict::FragmentOverlap, 1));
    for (offset, more) in [(0, true), (16, false), (32, true)] {
        assert_eq!(accept(&mut store, 1_999, &part(offset, more, &[3; 8])), dropped(Verdict::FragmentOverlap, 0));
    }
    assert_eq!((store.held(), store.expire(at(2_000), TIMEOUT)), (0, 0));
    assert_eq!(accept(&mut store, 2_000, &part(0, true, &[3; 8])), Outcome::Held, "a datagram of its own now");
    assert_eq!(
        accept(&mut store, 2_000, &part(8, false, &[3; 8])),
        Outcome::Whole { slot: 0, length: 16, held: 1, class: 0 }
    );
}

#[test]
fn refused_datagrams_take_part_of_the_quota_and_end() {
    let mut store = Reassembly::new(true);
    for identification in 0..PER_SUBSCRIBER as u32 {
        let first = Part { identification, ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, 0, &first), Outcome::Held);
        assert_eq!(accept(&mut store, 0, &first), dropped(Verdict::FragmentOverlap, 1));
    }
    let other = Part { identification: 99, ..part(0, true, &[1; 8]) };
    assert_eq!(accept(&mut store, 1_999, &other), dropped(Verdict::ReassemblyQuota, 0));
    assert_eq!(store.expire(at(2_000), TIMEOUT), 0);
    assert_eq!(accept(&mut store, 2_000, &other), Outcome::Held);
}

#[test]
fn overlaps_without_checksum_end_what_was_kept() {
    let mut store = Reassembly::new(true);
    let first = Part { way: WITHOUT_CHECKSUM, ..part(0, true, &[1; 16]) };
    assert_eq!(accept(&mut store, 0, &first), Outcome::Held);
    assert_eq!(accept(&mut store, 0, &Part { offset: 8, ..first }), dropped(Verdict::FragmentOverlap, 1));
    assert_eq!(accept(&mut store, 0, &first), Outcome::Held, "of another datagram with its identification");
}

#[test]
fn nothing_behind_the_end_counts_for_what_is_missing() {
    for end in [1_304, 64 * UNIT, 63 * UNIT, 8] {
        let mut store = Reassembly::new(true);
        assert_eq!(accept(&mut store, 0, &part(4_096, true, &[1; 1_208])), Outcome::Held);
        let last = part(end, false, &[2; 96]);
        assert_eq!(accept(&mut store, 0, &last), dropped(Verdict::FragmentOverlap, 1), "{end}");
    }
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(512, true, &[1; 8])), Outcome::Held);
    assert_eq!(accept(&mut store, 0, &part(504, false, &[2; 3])), dropped(Verdict::FragmentOverlap, 1));
    // And one behind an end that is known.
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(16, false, &[3; 4])), Outcome::Held);
    assert_eq!(accept(&mut store, 0, &part(32, true, &[3; 8])), dropped(Verdict::FragmentOverlap, 1), "behind the end");
}

#[test]
fn a_new_datagram_finds_no_bytes_of_the_last_one() {
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(8, false, &[7; 2_000])), Outcome::Held);
    assert_eq!(store.expire(at(2_000), TIMEOUT), 1);
    assert_eq!(accept(&mut store, 2_000, &part(0, true, &[1; 8])), Outcome::Held);
    assert!(store.frame(0, BYTES_MAX)[ROOM + 8..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_new_datagram_evicts_the_oldest_of_the_largest() {
    let mut store = Reassembly::new(true);
    let softwires = (DATAGRAMS - WITHOUT_CHECKSUM_MAX) as u32;
    // The oldest of all is its subscriber's only one.
    let lone = Part { subscriber: 99, identification: 99, ..part(0, true, &[1; 8]) };
    assert_eq!(accept(&mut store, 0, &lone), Outcome::Held);
    for identification in 1..softwires {
        let subscriber = u128::from(identification) / PER_SUBSCRIBER as u128;
        let part = Part { identification, subscriber, ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, u64::from(identification), &part), Outcome::Held);
    }
    assert_eq!((store.take_evicted(), store.held()), (0, softwires));
    let flood_had = |store: &Reassembly, id| store.has(at(100), TIMEOUT, 7, 0, id);
    let new_datagram = Part { subscriber: 100, identification: 100, ..lone };
    assert_eq!(accept(&mut store, 100, &new_datagram), Outcome::Held);
    assert_eq!((store.take_evicted(), store.held()), (1, softwires));
    // Subscriber 0 has only seven, so subscriber 1 loses its oldest.
    assert!(flood_had(&store, 99) && flood_had(&store, 1) && flood_had(&store, 7) && flood_had(&store, 9));
    assert!(!flood_had(&store, 8));
    let last = Part { offset: 8, more: false, ..lone };
    let Outcome::Whole { length: 16, held: 1, .. } = accept(&mut store, 101, &last) else {
        panic!("the lone one is still there");
    };
}

#[test]
fn datagrams_without_checksum_leave_room_for_softwires() {
    let mut store = Reassembly::new(true);
    for identification in 0..100 {
        let subscriber = u128::from(identification);
        let part = Part { way: WITHOUT_CHECKSUM, identification, subscriber, ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, 0, &part), Outcome::Held);
    }
    assert_eq!((store.take_evicted(), store.held()), (100 - WITHOUT_CHECKSUM_MAX as u32, WITHOUT_CHECKSUM_MAX as u32));
    for identification in 0..(DATAGRAMS - WITHOUT_CHECKSUM_MAX) as u32 {
        let part = Part { identification, subscriber: identification.into(), ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, 0, &part), Outcome::Held);
    }
    assert_eq!(store.take_evicted(), 0);
}

#[test]
fn impossible_fragments_are_refused() {
    let mut store = Reassembly::new(true);
    assert_eq!(accept(&mut store, 0, &part(0, true, &[1; 9])), dropped(Verdict::FragmentMalformed, 0));
    assert_eq!(accept(&mut store, 0, &part(0, false, &[])), dropped(Verdict::FragmentMalformed, 0));
    assert_eq!(accept(&mut store, 0, &part(BYTES_MAX, false, &[1])), dropped(Verdict::TooBig, 0));
    assert_eq!(store.held(), 0);
}

#[test]
fn a_subscriber_has_a_share_and_a_timeout() {
    let mut store = Reassembly::new(true);
    for identification in 0..PER_SUBSCRIBER as u32 {
        let part = Part { identification, ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, 0, &part), Outcome::Held);
    }
    let more = Part { identification: 99, ..part(0, true, &[1; 8]) };
    assert_eq!(accept(&mut store, 1_000, &more), dropped(Verdict::ReassemblyQuota, 0));
    let other = Part { source: 8, subscriber: 8, ..more };
    assert_eq!(accept(&mut store, 1_000, &Part { source: 8, ..more }), dropped(Verdict::ReassemblyQuota, 0));
    assert_eq!(accept(&mut store, 1_000, &other), Outcome::Held);
    assert_eq!(store.expire(at(1_999), TIMEOUT), 0);
    assert_eq!(store.expire(at(2_000), TIMEOUT), PER_SUBSCRIBER as u32);
    assert_eq!((accept(&mut store, 2_000, &more), store.held()), (Outcome::Held, 2));
}

/// Never in a fragment.
const POISON: u8 = 0xa5;

proptest! {
    /// Whatever fragments come.
    #[test]
    fn a_whole_packet_has_only_bytes_of_its_fragments(
        steps in proptest::collection::vec((0_usize..8, 1_usize..6, 0_usize..8, any::<bool>(), 0_u32..2), 1..80),
    ) {
        const PLACES: usize = 16 * UNIT;
        let mut store = Reassembly::new(true);
        store.bytes.fill(POISON);
        let mut kept = [[None; PLACES]; 2];
        for (number, (unit, units, cut, more, identification)) in (0..).zip(steps) {
            let length = if more { units * UNIT } else { units * UNIT - cut };
            let bytes = vec![number; length];
            let offset = unit * UNIT;
            let of_datagram = &mut kept[identification as usize];
            // After an overlap, such a datagram begins again at once.
            let fragment = Part { identification, way: WITHOUT_CHECKSUM, ..part(offset, more, &bytes) };
            match accept(&mut store, 0, &fragment) {
                Outcome::Dropped { .. } => of_datagram.fill(None),
                outcome => {
                    of_datagram[offset..offset + length].fill(Some(number));
                    if let Outcome::Whole { slot, length, .. } = outcome {
                        let whole = store.frame(slot, length)[ROOM..].to_vec();
                        let expected: Vec<_> = whole.iter().map(|byte| Some(*byte)).collect();
                        prop_assert_eq!(&of_datagram[..length], &expected[..]);
                        prop_assert!(of_datagram[length..].iter().all(Option::is_none), "more came behind its end");
                        of_datagram.fill(None);
                        store.frame(slot, BYTES_MAX).fill(POISON);
                    }
                }
            }
        }
    }

    /// Whatever else is held.
    #[test]
    fn any_cut_and_order_gives_the_packet(
        length in 1_usize..3_000,
        cuts in proptest::collection::vec(1_usize..40, 0..10),
        order in any::<u64>(),
    ) {
        let packet: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let mut parts = Vec::new();
        let mut at = 0;
        for cut in cuts {
            let end = at + cut * 8;
            if end >= length {
                break;
            }
            parts.push((at, true, packet[at..end].to_vec()));
            at = end;
        }
        parts.push((at, false, packet[at..].to_vec()));
        let count = parts.len();
        let mut order = order;
        for i in (1..count).rev() {
            order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            parts.swap(i, (order >> 33) as usize % (i + 1));
        }
        let mut store = Reassembly::new(true);
        let mut last = None;
        for (offset, more, bytes) in &parts {
            prop_assert!(last.is_none());
            match accept(&mut store, 0, &part(*offset, *more, bytes)) {
                Outcome::Whole { slot, length, held, .. } => last = Some((slot, length, held)),
                outcome => prop_assert_eq!(outcome, Outcome::Held),
            }
        }
        let (slot, found, held) = last.expect("the last fragment completes it");
        prop_assert_eq!((found, held as usize + 1), (length, count));
        prop_assert_eq!(&store.frame(slot, length)[ROOM..], &packet[..]);
    }
}

#[test]
fn prefixes_of_two_realms_have_a_quota_each() {
    let mut store = Reassembly::new(true);
    for identification in 0..PER_SUBSCRIBER as u32 {
        let part = Part { realm: RealmId(1), way: 1, identification, ..part(0, true, &[1; 8]) };
        assert_eq!(accept(&mut store, 0, &part), Outcome::Held);
    }
    let full = Part { realm: RealmId(1), way: 1, identification: 99, ..part(0, true, &[1; 8]) };
    assert_eq!(accept(&mut store, 0, &full), dropped(Verdict::ReassemblyQuota, 0));
    assert_eq!(accept(&mut store, 0, &part(0, true, &[1; 8])), Outcome::Held);
}
