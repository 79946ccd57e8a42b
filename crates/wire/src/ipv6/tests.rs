use super::*;

/// 2001:db8::1 to 2001:db8::2, hop limit 64.
fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LENGTH];
    let mut view = Ipv6::new_unchecked(bytes.as_mut_slice());
    view.set_class_and_label(0xb8, 0x1_2345);
    view.set_payload_length(payload.len() as u16);
    view.set_next_header(next_header);
    view.set_hop_limit(64);
    view.set_source(0x2001_0db8_0000_0000_0000_0000_0000_0001);
    view.set_destination(0x2001_0db8_0000_0000_0000_0000_0000_0002);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn getters_read_what_setters_write() {
    let bytes = packet(17, &[1, 2, 3]);
    assert_eq!(bytes[..8], [0x6b, 0x81, 0x23, 0x45, 0, 3, 17, 64]);
    let view = Ipv6::new_checked(bytes.as_slice()).expect("a packet");
    assert_eq!((view.traffic_class(), view.flow_label(), view.payload_length()), (0xb8, 0x1_2345, 3));
    assert_eq!((view.next_header(), view.hop_limit(), view.length()), (17, 64, 43));
    assert_eq!(view.source() + 1, view.destination());
    assert_eq!(view.payload(), [1, 2, 3]);
}

#[test]
fn packets_with_wrong_lengths_are_refused_by_name() {
    let bytes = packet(17, &[1, 2, 3]);
    assert_eq!(Ipv6::new_checked(&bytes[..39]).err(), Some(Fault::Truncated));
    assert_eq!(Ipv6::new_checked(&bytes[..42]).err(), Some(Fault::Truncated));
    let mut other = bytes.clone();
    other[0] = 0x45;
    assert_eq!(Ipv6::new_checked(other.as_slice()).err(), Some(Fault::Version));
    let padded = [bytes.as_slice(), &[0; 5]].concat();
    assert_eq!(Ipv6::new_checked(padded.as_slice()).expect("a packet").packet(), bytes);
}

#[test]
fn extension_headers_are_followed_to_the_transport() {
    // Hop-by-hop options of 8 bytes, a routing header of 24 without segments left, destination
    // options of 8.
    let mut payload = vec![43, 0, 1, 4, 0, 0, 0, 0];
    payload.extend([60, 2, 4, 0]);
    payload.extend([0; 20]);
    payload.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    payload.extend([0; 20]);
    let found = chain(&packet(0, &payload)).expect("a chain");
    assert_eq!((found.protocol, found.offset, found.number_offset), (6, 80, 72));
    assert_eq!((found.fragment, found.segments_left), (None, None));
}

#[test]
fn a_destination_looks_behind_an_atomic_fragment_header() {
    // Fragment header, destination options, another Fragment header, ICMPv6.
    let payload = |first: u8, second: u8| {
        let fragments = [first, second].map(|bits| [0, bits, 0, 0, 0, 7]);
        let options = [44, 0, 1, 4, 0, 0, 0, 0];
        [&[60, 0][..], &fragments[0], &options, &[58, 0], &fragments[1], &[128; 8]].concat()
    };
    let at = |first, second| {
        let bytes = packet(44, &payload(first, second));
        let found = chain_at_destination(&bytes).expect("a chain");
        (found.protocol, found.offset, found.number_offset, found.fragment.map(|fragment| fragment.is_atomic()))
    };
    assert_eq!(at(0, 0), (58, 64, 56, Some(true)));
    assert_eq!(at(1, 0), (60, 48, 40, Some(false)), "more fragments follow");
    assert_eq!(at(8, 0), (60, 48, 40, Some(false)), "a later one");
    assert_eq!(at(0, 1), (58, 64, 56, Some(false)));
    let found = chain(&packet(44, &payload(0, 0))).expect("a chain");
    assert_eq!((found.protocol, found.offset), (60, 48), "others do not");
    let shown = |first, second| chain_to_transport(&packet(44, &payload(first, second))).expect("a chain").protocol;
    assert_eq!((shown(0, 1), shown(1, 1), shown(8, 0)), (58, 58, 60), "a first fragment shows its transport");
}

#[test]
fn options_say_what_becomes_of_the_packet() {
    // PadN, Router Alert, Pad1 and an unknown option that may be skipped.
    let skipped = [58, 1, 1, 0, 5, 2, 0, 0, 0, 0x1e, 4, 9, 9, 9, 9, 0];
    assert_eq!(unknown_option(&packet(0, &skipped)), None);
    for (kind, is_reported) in [(0x41, false), (0x81, true), (0xc2, true)] {
        let option = [58, 0, 0, kind, 2, 0, 0, 0];
        let expected = Some(UnknownOption { offset: 43, is_reported });
        assert_eq!(unknown_option(&packet(0, &option)), expected);
        assert_eq!(unknown_option(&packet(60, &option)), expected);
        assert_eq!(unknown_option(&packet(43, &option)), None, "a routing header has none");
        let behind = [&[60, 0, 0, 0, 0, 0, 0, 7][..], &option].concat();
        assert_eq!(unknown_option(&packet(44, &behind)), Some(UnknownOption { offset: 51, is_reported }));
        let of_fragment = [&[60, 0, 0, 1, 0, 0, 0, 7][..], &option].concat();
        assert_eq!(unknown_option(&packet(44, &of_fragment)), None);
    }
    let overlong = [58, 0, 1, 5, 0, 0, 0, 0];
    assert_eq!(unknown_option(&packet(0, &overlong)), Some(UnknownOption { offset: 42, is_reported: false }));
}

#[test]
fn segments_left_are_found_where_they_stand() {
    let found = chain(&packet(43, &[17, 0, 0, 1, 0, 0, 0, 0])).expect("a chain");
    assert_eq!((found.protocol, found.segments_left), (17, Some(43)));
}

#[test]
fn a_fragment_header_ends_the_walk() {
    let found = chain(&packet(44, &[17, 0, 0x05, 0xa9, 0xde, 0xad, 0xbe, 0xef, 1])).expect("a chain");
    let fragment = Fragment { offset: 0x5a8, more: true, identification: 0xdead_beef };
    assert_eq!((found.protocol, found.offset, found.fragment), (17, 48, Some(fragment)));
    assert!(!found.has_extension_behind_fragment() && !fragment.is_atomic());
    for (protocol, is_extension) in
        [(0, true), (43, true), (44, true), (51, true), (60, true), (50, false), (58, false)]
    {
        let found = chain(&packet(44, &[protocol, 0, 0, 0, 0, 0, 0, 1])).expect("a chain");
        assert_eq!(found.has_extension_behind_fragment(), is_extension, "{protocol}");
    }
    let mut written = [0xff; 8];
    fragment.write(&mut written, 0, 17);
    assert_eq!(written, [17, 0, 0x05, 0xa9, 0xde, 0xad, 0xbe, 0xef]);
}

#[test]
fn chains_that_do_not_end_are_refused() {
    let options = |count: usize| {
        let mut payload = Vec::new();
        for i in 0..count {
            payload.extend([if i + 1 == count { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        packet(60, &payload)
    };
    assert_eq!(chain(&options(EXTENSIONS_MAX)).map(|found| found.protocol), Ok(17));
    assert_eq!(chain(&options(EXTENSIONS_MAX + 1)), Err(ChainFault::TooMany));
    assert_eq!(chain(&options(64)), Err(ChainFault::TooMany));
    assert_eq!(chain(&packet(60, &[17, 1, 0, 0, 0, 0, 0, 0])), Err(ChainFault::Truncated));
    assert_eq!(chain(&packet(44, &[17, 0, 0, 0])), Err(ChainFault::Truncated));
    assert_eq!(chain(&packet(60, &[0, 0, 1, 4, 0, 0, 0, 0])), Err(ChainFault::Misplaced));
}

#[test]
fn groups_and_link_local_addresses_are_those_of_the_rfcs() {
    use core::net::Ipv6Addr;
    let bits = |text: &str| text.parse::<Ipv6Addr>().expect("an address").to_bits();
    // RFC 4291 §2.7.1.
    assert_eq!(solicited_node(bits("4037::01:800:200e:8c6c")), bits("ff02::1:ff0e:8c6c"));
    // RFC 2464 §7.
    assert_eq!(station_of_group(bits("ff02::1:ff0e:8c6c")), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    // RFC 4291 appendix A.
    assert_eq!(link_local_of([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]), bits("fe80::3656:78ff:fe9a:bcde"));
    assert!(is_link_local(bits("febf::1")) && !is_link_local(bits("fec0::1")));
    assert!(is_multicast(bits("ff02::1")) && !is_multicast(bits("fe80::1")));
}
