use proptest::prelude::*;

use super::*;

/// `options` are padded; the payload counts up.
fn packet(options: &[u8], payload_length: usize, bits: u16) -> Vec<u8> {
    let header_length = 20 + options.len().next_multiple_of(4);
    let mut bytes = vec![0; header_length];
    bytes[20..20 + options.len()].copy_from_slice(options);
    bytes.extend((0..payload_length).map(|n| (n * 7 % 251) as u8));
    let total = bytes.len() as u16;
    let mut view = Ipv4::new_unchecked(&mut bytes[..]);
    view.set_header_length(header_length);
    view.set_ds_field(0xb8);
    view.set_total_length(total);
    view.set_identification(0x1234);
    view.set_fragment_bits(bits);
    view.set_ttl(63);
    view.set_protocol(17);
    view.set_source(0xcb00_7101);
    view.set_destination(0xc633_6401);
    view.fill_checksum();
    bytes
}

fn pieces(packet: &[u8], mtu: u16) -> Vec<Vec<u8>> {
    let split = split(packet, mtu).expect("can be split");
    split.map(|piece| [piece.header.as_bytes(), &packet[piece.payload]].concat()).collect()
}

fn reassembled(pieces: &[Vec<u8>], mtu: usize, first_offset: usize) -> Vec<u8> {
    let mut payload: Vec<u8> = Vec::new();
    for piece in pieces {
        assert!(piece.len() <= mtu, "{} bytes with an MTU of {mtu}", piece.len());
        let view = Ipv4::new_checked(&piece[..]).expect("a sound packet");
        assert_eq!(usize::from(view.total_length()), piece.len());
        assert!(view.is_checksum_valid());
        assert_eq!(view.fragment_offset_bytes(), first_offset + payload.len(), "in order, without holes");
        assert_eq!((view.identification(), view.ttl(), view.protocol(), view.ds_field()), (0x1234, 63, 17, 0xb8));
        payload.extend(view.payload());
    }
    payload
}

#[test]
fn a_full_sized_packet_becomes_two_pieces_for_a_smaller_link() {
    let whole = packet(&[], 1_480, 0);
    let parts = pieces(&whole, 1_400);
    let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1_396, 124]);
    let bits: Vec<u16> = parts.iter().map(|part| Ipv4::new_unchecked(&part[..]).fragment_bits()).collect();
    assert_eq!(bits, [ipv4::FLAG_MORE_FRAGMENTS, 172]);
    assert_eq!(reassembled(&parts, 1_400, 0), whole[20..]);
}

#[test]
fn a_middle_fragment_can_be_split_again_and_stays_in_the_middle() {
    let middle = packet(&[], 1_480, ipv4::FLAG_MORE_FRAGMENTS | 185);
    let parts = pieces(&middle, 576);
    assert!(parts.iter().all(|part| Ipv4::new_unchecked(&part[..]).more_fragments()));
    assert_eq!(reassembled(&parts, 576, 1_480), middle[20..]);
}

#[test]
fn a_last_fragment_can_be_split_again_and_ends_the_datagram() {
    let last = packet(&[], 1_001, 185);
    let parts = pieces(&last, 576);
    let more: Vec<bool> = parts.iter().map(|part| Ipv4::new_unchecked(&part[..]).more_fragments()).collect();
    assert_eq!(more, [true, false]);
    assert_eq!(reassembled(&parts, 576, 1_480), last[20..]);
}

#[test]
fn only_options_with_the_copied_flag_follow_the_first_piece() {
    // Record route (not copied), no-operation, router alert (copied).
    let options = [7, 7, 4, 0, 0, 0, 0, 1, 148, 4, 0, 0];
    let whole = packet(&options, 1_000, 0);
    let parts = pieces(&whole, 500);
    assert_eq!(parts[0][20..32], options);
    for part in &parts[1..] {
        assert_eq!(Ipv4::new_unchecked(&part[..]).options(), [148, 4, 0, 0]);
    }
    assert_eq!(reassembled(&parts, 500, 0), whole[32..]);
}

#[test]
fn a_packet_that_fits_stays_as_it_is() {
    let whole = packet(&[148, 4, 0, 0], 400, 0);
    assert_eq!(pieces(&whole, 1_500), [whole]);
}

#[test]
fn df_bad_lengths_and_links_without_room_are_refused() {
    assert_eq!(split(&packet(&[], 1_480, ipv4::FLAG_DONT_FRAGMENT), 1_400).err(), Some(Fault::DontFragment));
    assert_eq!(split(&packet(&[], 100, 0)[..60], 1_400).err(), Some(Fault::Malformed));
    assert_eq!(split(&packet(&[], 100, 0), 27).err(), Some(Fault::MtuTooSmall));
    assert_eq!(pieces(&packet(&[], 100, 0), 28).len(), 13);
}

proptest! {
    #[test]
    fn pieces_put_together_are_the_packet(
        options in prop_oneof![Just(vec![]), Just(vec![148_u8, 4, 0, 0]), Just(vec![7, 3, 4, 1, 131, 3, 4])],
        units in 0_usize..1_000,
        odd in 0_usize..8,
        mtu in ipv4::MTU_MIN..3_000,
        offset in 0_u16..4_000,
        more in any::<bool>(),
    ) {
        let length = units * 8 + if more { 0 } else { odd };
        let bits = offset | if more { ipv4::FLAG_MORE_FRAGMENTS } else { 0 };
        let whole = packet(&options, length, bits);
        let header_length = Ipv4::new_unchecked(&whole[..]).header_length();
        let parts = pieces(&whole, mtu);
        prop_assert_eq!(reassembled(&parts, usize::from(mtu), usize::from(offset) * 8), &whole[header_length..]);
        let last = Ipv4::new_unchecked(&parts[parts.len() - 1][..]);
        prop_assert_eq!(last.more_fragments(), more);
    }

    #[test]
    fn no_bytes_and_no_mtu_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), mtu in any::<u16>()) {
        if let Ok(pieces) = split(&bytes, mtu) {
            for piece in pieces {
                prop_assert!(piece.payload.end <= bytes.len());
            }
        }
    }

    #[test]
    fn no_options_and_no_mtu_panic(options in prop::collection::vec(any::<u8>(), 0..40), mtu in 0_u16..120) {
        let bytes = packet(&options, 90, 0);
        if let Ok(pieces) = split(&bytes, mtu) {
            let payload: usize = pieces.map(|piece| piece.payload.len()).sum();
            prop_assert_eq!(payload, 90);
        }
    }
}
