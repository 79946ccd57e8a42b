use proptest::prelude::*;

use super::*;

/// The checksum as RFC 1071 §4.1 writes it, word by word.
fn plain_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Pairs that reach both zeros: nothing changes, everything changes, one bit, wrap-around.
const CHANGES: [(u16, u16); 14] = [
    (0, 0),
    (0xffff, 0xffff),
    (0, 0xffff),
    (0xffff, 0),
    (0, 1),
    (1, 0),
    (0xfffe, 0xffff),
    (0xffff, 0xfffe),
    (0x8000, 0x7fff),
    (0x7fff, 0x8000),
    (0x1234, 0x1234),
    (0x6440, 0xc633),
    (0xc633, 0x6440),
    (0x1234, 0xedcb),
];

#[test]
fn the_example_of_rfc_1624_section_4_gives_zero() {
    // RFC 1624 §4: HC = 0xdd2f, m = 0x5555, m' = 0x3285 gives 0x0000; RFC 1141's equation gives
    // 0xffff.
    assert_eq!(Delta::of_u16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
}

#[test]
fn every_updated_checksum_equals_a_recomputation() {
    // A header with a word that is never zero (version 4) represents all unchanged data.
    for filler in 0..=u16::MAX {
        for (old, new) in CHANGES {
            let sum = Sum::ZERO.add_u16(0x4500).add_u16(filler);
            let before = sum.add_u16(old).checksum();
            let after = sum.add_u16(new).checksum();
            let delta = Delta::of_u16(old, new);
            assert_eq!(delta.apply(before), after, "filler {filler:#06x} {old:#06x} -> {new:#06x}");
            assert_eq!(delta.inverse().apply(after), before, "back, filler {filler:#06x} {old:#06x} -> {new:#06x}");
        }
    }
}

#[test]
fn every_updated_udp_checksum_equals_a_recomputation() {
    for filler in 0..=u16::MAX {
        for (old, new) in CHANGES {
            let sum = pseudo_header(0, 0, 17, 8).add_u16(filler);
            let before = sum.add_u16(old).udp_checksum();
            let after = sum.add_u16(new).udp_checksum();
            assert_ne!(after, 0);
            assert_eq!(
                Delta::of_u16(old, new).apply_udp(before),
                after,
                "filler {filler:#06x} {old:#06x} -> {new:#06x}"
            );
        }
    }
}

#[test]
fn updated_checksums_verify_for_both_zeros_of_the_sender() {
    // All values of a checksum field, 0xffff for 0x0000 included, over data that makes it right.
    for checksum in 0..=u16::MAX {
        for (old, new) in CHANGES {
            let fixed = Sum::ZERO.add_u16(0x4500);
            let without = fixed.add_u16(old).add_u16(checksum).fold();
            let rest = !without;
            let before = fixed.add_u16(rest).add_u16(old).add_u16(checksum);
            assert!(before.is_valid());
            let updated = Delta::of_u16(old, new).apply(checksum);
            let after = fixed.add_u16(rest).add_u16(new).add_u16(updated);
            assert!(after.is_valid(), "checksum {checksum:#06x} {old:#06x} -> {new:#06x}: {updated:#06x}");
        }
    }
}

#[test]
fn udp_without_checksum_stays_without() {
    for new in 0..=u16::MAX {
        assert_eq!(Delta::of_u16(0x0a00, new).apply_udp(0), 0);
    }
}

#[test]
fn an_echo_reply_that_becomes_all_zeros_gets_the_other_zero() {
    for external in 1..=u16::MAX {
        let mut message = [0_u8; 16];
        message[4..6].copy_from_slice(&external.to_be_bytes());
        let before = of_bytes(&message);
        message[2..4].copy_from_slice(&before.to_be_bytes());
        message[4..6].copy_from_slice(&[0, 0]);
        let after = Delta::of_u16(external, 0).apply_icmp(before, &message);
        assert_eq!(after, 0xffff);
        message[2..4].copy_from_slice(&after.to_be_bytes());
        assert!(is_icmp_valid(&message));
        message[4..6].copy_from_slice(&external.to_be_bytes());
        assert_eq!(Delta::of_u16(0, external).apply_icmp(after, &message), before);
    }
}

#[test]
fn every_updated_icmp_identifier_equals_a_recomputation() {
    for icmp_type in [0_u8, 8] {
        for payload in [[0_u8, 0], [0xff, 0xff], [0x12, 0x34]] {
            for old in [0_u16, 1, 0x1234, 0xfffe, 0xffff] {
                for new in 0..=u16::MAX {
                    let message = |identifier: u16| {
                        let [high, low] = identifier.to_be_bytes();
                        [icmp_type, 0, 0, 0, high, low, 0, 0, payload[0], payload[1]]
                    };
                    let updated = Delta::of_u16(old, new).apply_icmp(of_bytes(&message(old)), &message(new));
                    assert_eq!(updated, of_bytes(&message(new)), "type {icmp_type} {old:#06x} -> {new:#06x}");
                }
            }
        }
    }
}

#[test]
fn delta_of_u32_is_the_delta_of_its_halves() {
    for (old, new) in CHANGES {
        for (other_old, other_new) in CHANGES {
            let whole =
                Delta::of_u32(u32::from(old) << 16 | u32::from(other_old), u32::from(new) << 16 | u32::from(other_new));
            assert_eq!(whole, Delta::of_u16(old, new).combine(Delta::of_u16(other_old, other_new)));
        }
    }
}

#[test]
fn no_change_leaves_every_checksum_as_it_is() {
    for checksum in 0..=u16::MAX {
        assert_eq!(Delta::NONE.apply(checksum), checksum);
        assert_eq!(Delta::NONE.apply_udp(checksum), checksum);
        assert_eq!(Delta::from_bits(Delta::NONE.to_bits()).apply(checksum), checksum);
    }
}

#[test]
fn the_sum_of_many_words_carries_all_the_way() {
    let bytes = vec![0xff_u8; 65_535];
    assert_eq!(of_bytes(&bytes), plain_checksum(&bytes));
    let mut sum = Sum::ZERO;
    for _ in 0..100_000 {
        sum = sum.add_u32(u32::MAX).add_u16(u16::MAX);
    }
    assert_eq!(sum.fold(), 0xffff);
}

#[test]
fn ipv4_header_checksum_skips_the_checksum_field() {
    let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
    assert_eq!(ipv4_header_checksum(&header), 0xb861);
    assert!(is_ipv4_header_valid(&header));
}

proptest! {
    #[test]
    fn fast_sum_equals_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(of_bytes(&bytes), plain_checksum(&bytes));
    }

    #[test]
    fn a_sum_does_not_depend_on_where_data_is_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut in any::<proptest::sample::Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1) & !1;
        let (head, tail) = bytes.split_at(cut.min(bytes.len()));
        prop_assert_eq!(Sum::ZERO.add_bytes(head).add_bytes(tail).checksum(), plain_checksum(&bytes));
    }

    #[test]
    fn rewriting_words_and_updating_equals_recomputing(
        mut words in proptest::collection::vec(any::<u16>(), 1..40),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u16>()), 0..10),
    ) {
        words.push(0x4500);
        let checksum = |words: &[u16]| words.iter().fold(Sum::ZERO, |sum, word| sum.add_u16(*word)).checksum();
        let before = checksum(&words);
        let mut delta = Delta::NONE;
        let last = words.len() - 1;
        for (index, new) in changes {
            let index = index.index(last);
            delta = delta.combine(Delta::of_u16(words[index], new));
            words[index] = new;
        }
        prop_assert_eq!(delta.apply(before), checksum(&words));
    }

    #[test]
    fn addresses_update_like_a_recomputation(
        old in any::<u32>(), new in any::<u32>(), other in any::<u32>(), length in any::<u16>(),
    ) {
        let before = pseudo_header(old, other, 6, length).checksum();
        let after = pseudo_header(new, other, 6, length).checksum();
        prop_assert_eq!(Delta::of_u32(old, new).apply(before), after);
    }

    /// Words of all ones and of zeros reach both zeros of the sum, and carries out of 64 bits.
    #[test]
    fn wide_words_update_like_a_recomputation(
        old in prop::array::uniform4(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]),
        new in prop::array::uniform2(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]),
        rest in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let covered = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            // The version of IP stands for all that does not change.
            of_bytes(&[&[0x45, 0], bytes.as_slice(), &rest].concat())
        };
        let before = u16::from_be(covered(&old));
        prop_assert_eq!(u16::from_be(WideDelta::of_words(old, new).apply(before)), covered(&new));
    }
}
