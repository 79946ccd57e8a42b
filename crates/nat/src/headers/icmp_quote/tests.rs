use proptest::prelude::*;
use wire::checksum;
use wire::icmp::Icmp;
use wire::tcp::Tcp;
use wire::udp::Udp;

use super::*;

const INTERNAL: Endpoint = Endpoint::new(Ipv4Addr::new(100, 64, 0, 10), 5_000);
const EXTERNAL: Endpoint = Endpoint::new(Ipv4Addr::new(203, 0, 113, 1), 40_001);
const REMOTE: Endpoint = Endpoint::new(Ipv4Addr::new(198, 51, 100, 1), 443);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 99);

#[derive(Clone, Debug)]
struct Embedded {
    protocol: Protocol,
    source: Endpoint,
    destination: Endpoint,
    options: Vec<u8>,
    payload: Vec<u8>,
    /// RFC 768.
    without_checksum: bool,
    query_type: u8,
    fragment_bits: u16,
}

impl Embedded {
    fn new(protocol: Protocol, source: Endpoint, destination: Endpoint) -> Embedded {
        Embedded {
            protocol,
            source,
            destination,
            options: Vec::new(),
            payload: (0..101).map(|n| n as u8).collect(),
            without_checksum: false,
            query_type: 8,
            fragment_bits: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (from, to) = (self.source.address.to_bits(), self.destination.address.to_bits());
        let mut transport = match self.protocol {
            Protocol::Udp => vec![0; 8],
            Protocol::Tcp => vec![0; 20],
            Protocol::Icmp => vec![0; 8],
        };
        transport.extend(&self.payload);
        match self.protocol {
            Protocol::Udp => {
                let length = transport.len() as u16;
                let mut view = Udp::new_unchecked(&mut transport[..]);
                view.set_source_port(self.source.port);
                view.set_destination_port(self.destination.port);
                view.set_length(length);
                if !self.without_checksum {
                    view.fill_checksum(from, to);
                }
            }
            Protocol::Tcp => {
                let mut view = Tcp::new_unchecked(&mut transport[..]);
                view.set_source_port(self.source.port);
                view.set_destination_port(self.destination.port);
                view.set_sequence(0x0102_0304);
                view.set_header_length(20);
                view.fill_checksum(from, to);
            }
            Protocol::Icmp => {
                let mut view = Icmp::new_unchecked(&mut transport[..]);
                view.set_type_and_code(self.query_type, 0);
                let is_request = icmp::is_request(self.query_type);
                view.set_identifier(if is_request { self.source.port } else { self.destination.port });
                view.set_sequence(3);
                view.fill_checksum();
            }
        }
        ip_packet(self.protocol.number(), from, to, &self.options, self.fragment_bits, &transport)
    }
}

fn ip_packet(protocol: u8, source: u32, destination: u32, options: &[u8], bits: u16, payload: &[u8]) -> Vec<u8> {
    let header_length = 20 + options.len().next_multiple_of(4);
    let mut bytes = vec![0; header_length];
    bytes[20..20 + options.len()].copy_from_slice(options);
    bytes.extend(payload);
    let total = bytes.len() as u16;
    let mut view = Ipv4::new_unchecked(&mut bytes[..]);
    view.set_header_length(header_length);
    view.set_total_length(total);
    view.set_identification(0x2222);
    view.set_fragment_bits(bits);
    view.set_ttl(57);
    view.set_protocol(protocol);
    view.set_source(source);
    view.set_destination(destination);
    view.fill_checksum();
    bytes
}

/// `rest`: the four bytes behind the checksum.
fn error_packet(icmp_type: u8, code: u8, rest: [u8; 4], from: Ipv4Addr, to: Ipv4Addr, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![icmp_type, code, 0, 0];
    message.extend(rest);
    message.extend(quote);
    Icmp::new_unchecked(&mut message[..]).fill_checksum();
    ip_packet(1, from.to_bits(), to.to_bits(), &[], 0, &message)
}

fn cut(embedded: &Embedded, transport: usize) -> Vec<u8> {
    let mut bytes = embedded.bytes();
    let header_length = Ipv4::new_unchecked(&bytes[..]).header_length();
    bytes.truncate(header_length + transport);
    bytes
}

fn verify(packet: &[u8]) {
    let outer = Ipv4::new_checked(packet).expect("a sound outer packet");
    assert!(outer.is_checksum_valid(), "outer IP checksum");
    assert!(checksum::is_icmp_valid(outer.payload()), "ICMP checksum");
    let message = Icmp::new_unchecked(outer.payload());
    let quoted = Quoted::new_checked(message.quote()).expect("a quoted packet");
    assert!(quoted.is_checksum_valid(), "embedded IP checksum");
    let header = quoted.header();
    if quoted.is_complete() && !header.is_fragment() {
        let transport = quoted.transport();
        let right = match header.protocol() {
            17 => checksum::is_udp_valid(header.source(), header.destination(), transport),
            6 => checksum::is_tcp_valid(header.source(), header.destination(), transport),
            _ => checksum::is_icmp_valid(transport),
        };
        assert!(right, "embedded transport checksum");
    }
}

/// The error about `before` must become that about `after`, byte for byte.
#[track_caller]
fn assert_translates(before: &Embedded, after: &Embedded, transport: usize, error: (u8, u8, [u8; 4])) {
    let (icmp_type, code, rest) = error;
    let mut packet = error_packet(icmp_type, code, rest, ROUTER, before.source.address, &cut(before, transport));
    let expected = error_packet(icmp_type, code, rest, ROUTER, after.source.address, &cut(after, transport));
    let quote = parse(&packet).expect("a usable error");
    assert_eq!((quote.icmp_type, quote.code, quote.protocol), (icmp_type, code, before.protocol));
    assert_eq!(quote.source, before.source);
    let change = QuoteChange { source: after.source, outer_destination: after.source.address, ..quote.unchanged() };
    rewrite(&mut packet, &quote, &change);
    verify(&packet);
    assert_eq!(packet, expected);
}

fn outbound(protocol: Protocol) -> (Embedded, Embedded) {
    (Embedded::new(protocol, EXTERNAL, REMOTE), Embedded::new(protocol, INTERNAL, REMOTE))
}

const ERRORS: [(u8, u8, [u8; 4]); 6] = [
    (3, 1, [0; 4]),
    (3, 3, [0; 4]),
    (3, 4, [0, 0, 0x05, 0x78]),
    (11, 0, [0; 4]),
    (12, 0, [20, 0, 0, 0]),
    (12, 2, [0; 4]),
];

#[test]
fn quotes_of_every_length_become_what_the_subscriber_sent() {
    for error in ERRORS {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let (before, after) = outbound(protocol);
            // 8 bytes, around the TCP checksum, odd numbers, and the whole packet.
            for transport in [8, 9, 15, 16, 18, 19, 20, 28, 55, 1_000] {
                assert_translates(&before, &after, transport, error);
            }
        }
    }
}

#[test]
fn half_a_quoted_checksum_is_left_as_it_is() {
    let (before, _) = outbound(Protocol::Tcp);
    let mut packet = error_packet(3, 3, [0; 4], ROUTER, EXTERNAL.address, &cut(&before, 17));
    let last = packet.last().copied();
    let quote = parse(&packet).unwrap();
    rewrite(&mut packet, &quote, &QuoteChange { source: INTERNAL, ..quote.unchanged() });
    verify(&packet);
    assert_eq!(packet.last().copied(), last);
}

#[test]
fn every_type_and_code_is_kept() {
    let (before, after) = outbound(Protocol::Udp);
    for code in 0..=15 {
        assert_translates(&before, &after, 8, (3, code, [0; 4]));
    }
    for (icmp_type, code) in [(11, 0), (11, 1), (12, 0), (12, 1), (12, 2)] {
        assert_translates(&before, &after, 8, (icmp_type, code, [0; 4]));
    }
}

#[test]
fn a_quoted_udp_checksum_of_zero_stays_zero() {
    let (mut before, mut after) = outbound(Protocol::Udp);
    before.without_checksum = true;
    after.without_checksum = true;
    for transport in [8, 28, 1_000] {
        assert_translates(&before, &after, transport, (3, 3, [0; 4]));
    }
}

#[test]
fn options_of_the_embedded_header_are_skipped() {
    for length in 1..=40 {
        let (mut before, mut after) = outbound(Protocol::Udp);
        let mut options = vec![ipv4::OPTION_NOP; length];
        if length >= 7 {
            options[..7].copy_from_slice(&[ipv4::OPTION_RECORD_ROUTE, 7, 4, 0, 0, 0, 0]);
        }
        before.options = options.clone();
        after.options = options;
        assert_translates(&before, &after, 8, (3, 3, [0; 4]));
        assert_translates(&before, &after, 1_000, (3, 3, [0; 4]));
    }
}

#[test]
fn a_first_fragment_can_be_quoted() {
    let (mut before, mut after) = outbound(Protocol::Udp);
    before.fragment_bits = ipv4::FLAG_MORE_FRAGMENTS;
    after.fragment_bits = ipv4::FLAG_MORE_FRAGMENTS;
    assert_translates(&before, &after, 60, (11, 1, [0; 4]));
}

#[test]
fn quoted_queries_get_their_identifier_back() {
    for query_type in [8, 13] {
        let (mut before, mut after) = outbound(Protocol::Icmp);
        before.query_type = query_type;
        after.query_type = query_type;
        before.destination.port = 0;
        after.destination.port = 0;
        for transport in [8, 9, 40, 1_000] {
            assert_translates(&before, &after, transport, (11, 0, [0; 4]));
        }
    }
}

#[test]
fn an_error_about_a_reply_gets_the_external_identifier() {
    let mut before = Embedded::new(Protocol::Icmp, REMOTE, INTERNAL);
    let mut after = Embedded::new(Protocol::Icmp, REMOTE, EXTERNAL);
    before.query_type = 0;
    after.query_type = 0;
    let mut packet = error_packet(3, 3, [0; 4], INTERNAL.address, REMOTE.address, &cut(&before, 1_000));
    let expected = error_packet(3, 3, [0; 4], EXTERNAL.address, REMOTE.address, &cut(&after, 1_000));
    let quote = parse(&packet).unwrap();
    assert_eq!((quote.query_type, quote.destination), (Some(0), INTERNAL));
    let change = QuoteChange { destination: EXTERNAL, outer_source: EXTERNAL.address, ..quote.unchanged() };
    rewrite(&mut packet, &quote, &change);
    verify(&packet);
    assert_eq!(packet, expected);
}

#[test]
fn errors_from_inside_get_the_outside_form() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let before = Embedded::new(protocol, REMOTE, INTERNAL);
        let after = Embedded::new(protocol, REMOTE, EXTERNAL);
        for transport in [8, 28, 1_000] {
            let mut packet = error_packet(3, 3, [0; 4], ROUTER, REMOTE.address, &cut(&before, transport));
            let expected = error_packet(3, 3, [0; 4], EXTERNAL.address, REMOTE.address, &cut(&after, transport));
            let quote = parse(&packet).unwrap();
            let change = QuoteChange { destination: EXTERNAL, outer_source: EXTERNAL.address, ..quote.unchanged() };
            rewrite(&mut packet, &quote, &change);
            verify(&packet);
            assert_eq!(packet, expected);
        }
    }
}

#[test]
fn a_hairpinned_error_changes_both_ends() {
    let peer_internal = Endpoint::new(Ipv4Addr::new(100, 64, 0, 11), 6_000);
    let peer_external = Endpoint::new(Ipv4Addr::new(203, 0, 113, 2), 50_000);
    // The peer saw EXTERNAL -> its internal endpoint; the sender must see INTERNAL -> its external
    // one.
    let before = Embedded::new(Protocol::Tcp, EXTERNAL, peer_internal);
    let after = Embedded::new(Protocol::Tcp, INTERNAL, peer_external);
    let mut packet = error_packet(3, 3, [0; 4], peer_internal.address, EXTERNAL.address, &cut(&before, 1_000));
    let expected = error_packet(3, 3, [0; 4], peer_external.address, INTERNAL.address, &cut(&after, 1_000));
    let quote = parse(&packet).unwrap();
    let change = QuoteChange {
        source: INTERNAL,
        destination: peer_external,
        outer_source: peer_external.address,
        outer_destination: INTERNAL.address,
        ..quote.unchanged()
    };
    rewrite(&mut packet, &quote, &change);
    verify(&packet);
    assert_eq!(packet, expected);
}

/// MPLS label stack (RFC 4950).
fn mpls_extension() -> Vec<u8> {
    let mut bytes = vec![0x20, 0, 0, 0, 0, 8, 1, 1, 0x12, 0x34, 0x51, 0x01];
    let sum = checksum::of_bytes(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn extensions_and_their_padding_stay_as_they_are() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        for payload in [0, 31, 400] {
            let (mut before, mut after) = outbound(protocol);
            before.payload.resize(payload, 7);
            after.payload.resize(payload, 7);
            // As in RFC 4884, and as from older senders.
            for length in [32, 0] {
                let with_extension = |embedded: &Embedded| {
                    let mut quote = embedded.bytes();
                    quote.resize(128, 0);
                    quote.extend(mpls_extension());
                    quote
                };
                let rest = [0, length, 0, 0];
                let mut packet = error_packet(11, 0, rest, ROUTER, EXTERNAL.address, &with_extension(&before));
                let expected = error_packet(11, 0, rest, ROUTER, INTERNAL.address, &with_extension(&after));
                let quote = parse(&packet).unwrap();
                let change = QuoteChange { source: INTERNAL, outer_destination: INTERNAL.address, ..quote.unchanged() };
                rewrite(&mut packet, &quote, &change);
                verify(&packet);
                assert_eq!(packet, expected);
                assert_eq!(packet[packet.len() - 12..], mpls_extension());
            }
        }
    }
}

#[test]
fn a_transport_checksum_that_lies_in_the_padding_is_not_touched() {
    // Quoted with 8 bytes, zeros up to 128, then an extension: the checksum's place is padding by
    // the length field, but not by the embedded total length.
    let (before, _) = outbound(Protocol::Tcp);
    let mut quote_bytes = cut(&before, 8);
    let declared = quote_bytes.len() as u8 / 4;
    quote_bytes.extend(mpls_extension());
    let mut packet = error_packet(11, 0, [0, declared, 0, 0], ROUTER, EXTERNAL.address, &quote_bytes);
    let quote = parse(&packet).unwrap();
    let tail = packet[20 + 8 + 28..].to_vec();
    rewrite(&mut packet, &quote, &QuoteChange { source: INTERNAL, ..quote.unchanged() });
    verify(&packet);
    assert_eq!(packet[20 + 8 + 28..], tail);
}

#[test]
fn unusable_errors_get_the_verdict_that_names_the_reason() {
    let (sound, _) = outbound(Protocol::Udp);
    let error = |quote: &[u8]| error_packet(3, 3, [0; 4], ROUTER, EXTERNAL.address, quote);
    assert!(parse(&error(&cut(&sound, 8))).is_ok());

    let mut bad_sum = error(&cut(&sound, 8));
    bad_sum[23] ^= 1;
    assert_eq!(parse(&bad_sum), Err(Verdict::IcmpBadChecksum));

    let mut bad_embedded = cut(&sound, 8);
    bad_embedded[10] ^= 1;
    assert_eq!(parse(&error(&bad_embedded)), Err(Verdict::IcmpQuoteMalformed), "REQ-3a");

    // REQ-3c: a wrong transport checksum is no reason.
    let mut bad_transport = sound.bytes();
    bad_transport[27] ^= 1;
    assert!(parse(&error(&bad_transport)).is_ok());

    for transport in 0..8 {
        assert_eq!(parse(&error(&cut(&sound, transport))), Err(Verdict::IcmpQuoteMalformed), "{transport} bytes");
    }
    assert_eq!(parse(&error(&sound.bytes()[..19])), Err(Verdict::IcmpQuoteMalformed));

    let mut later_fragment = sound.clone();
    later_fragment.fragment_bits = 1;
    assert_eq!(parse(&error(&later_fragment.bytes())), Err(Verdict::IcmpQuoteMalformed));

    let about_error = error(&cut(&sound, 8));
    assert_eq!(parse(&error(&about_error)), Err(Verdict::IcmpQuoteMalformed), "an error about an error");

    let gre = ip_packet(47, 1 << 24, 2 << 24, &[], 0, &[0; 20]);
    assert_eq!(parse(&error(&gre)), Err(Verdict::ProtocolUnsupported));

    for icmp_type in [4, 5, 9, 10, 37, 42] {
        let packet = error_packet(icmp_type, 0, [0; 4], ROUTER, EXTERNAL.address, &cut(&sound, 8));
        assert_eq!(parse(&packet), Err(Verdict::IcmpTypeUnsupported), "type {icmp_type}");
    }

    let short = ip_packet(1, 1 << 24, 2 << 24, &[], 0, &[3, 3, 0, 0]);
    assert_eq!(parse(&short), Err(Verdict::TransportMalformed));
    let whole = error(&cut(&sound, 8));
    let outer_fragment = ip_packet(1, 1 << 24, 2 << 24, &[], ipv4::FLAG_MORE_FRAGMENTS, &whole[20..]);
    assert_eq!(parse(&outer_fragment), Err(Verdict::TransportMalformed));
    assert_eq!(parse(&whole[..30]), Err(Verdict::IpMalformed));
}

#[test]
fn source_routes_are_refused_in_both_headers() {
    for option in [ipv4::OPTION_LOOSE_SOURCE_ROUTE, ipv4::OPTION_STRICT_SOURCE_ROUTE] {
        let (mut embedded, _) = outbound(Protocol::Udp);
        let whole = error_packet(3, 3, [0; 4], ROUTER, EXTERNAL.address, &cut(&embedded, 8));
        let options = [ipv4::OPTION_NOP, option, 7, 4, 10, 0, 0, 1];
        let outer = ip_packet(1, 1 << 24, 2 << 24, &options, 0, &whole[20..]);
        assert_eq!(parse(&outer), Err(Verdict::SourceRoute));
        embedded.options = options.to_vec();
        let inner = error_packet(3, 3, [0; 4], ROUTER, EXTERNAL.address, &cut(&embedded, 8));
        assert_eq!(parse(&inner), Err(Verdict::SourceRoute));
    }
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    any::<(u32, u16)>().prop_map(|(address, port)| Endpoint::new(Ipv4Addr::from_bits(address), port))
}

proptest! {
    #[test]
    fn rewriting_equals_building_anew(
        tcp in any::<bool>(),
        old in (endpoint(), endpoint()),
        new in (endpoint(), endpoint()),
        outer in any::<(u32, u32)>(),
        payload in prop::collection::vec(any::<u8>(), 0..80),
        transport in 8_usize..140,
        error in prop::sample::select(&ERRORS[..]),
    ) {
        // Half a checksum cannot be updated.
        prop_assume!(!tcp || transport != 17);
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let before = Embedded { payload, ..Embedded::new(protocol, old.0, old.1) };
        let after = Embedded { source: new.0, destination: new.1, ..before.clone() };
        let (icmp_type, code, rest) = error;
        let outer = (Ipv4Addr::from_bits(outer.0), Ipv4Addr::from_bits(outer.1));
        let mut packet = error_packet(icmp_type, code, rest, ROUTER, old.0.address, &cut(&before, transport));
        let expected = error_packet(icmp_type, code, rest, outer.0, outer.1, &cut(&after, transport));
        let quote = parse(&packet).expect("usable");
        let change = QuoteChange {
            source: new.0, destination: new.1, outer_source: outer.0, outer_destination: outer.1, ..quote.unchanged()
        };
        rewrite(&mut packet, &quote, &change);
        verify(&packet);
        prop_assert_eq!(packet, expected);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if let Ok(quote) = parse(&bytes) {
            rewrite(&mut bytes, &quote, &quote.unchanged());
        }
    }

    #[test]
    fn no_quote_panics(
        icmp_type in prop::sample::select(&[3_u8, 11, 12][..]),
        rest in any::<[u8; 4]>(),
        flips in prop::collection::vec((0_usize..120, any::<u8>()), 0..4),
        transport in 0_usize..120,
    ) {
        let (before, _) = outbound(Protocol::Tcp);
        let mut quote_bytes = cut(&before, transport);
        for (at, value) in flips {
            if let Some(byte) = quote_bytes.get_mut(at) {
                *byte = value;
            }
        }
        if quote_bytes.len() >= 20 {
            Ipv4::new_unchecked(&mut quote_bytes[..]).fill_checksum();
        }
        let mut packet = error_packet(icmp_type, 0, rest, ROUTER, EXTERNAL.address, &quote_bytes);
        let length = packet.len();
        if let Ok(quote) = parse(&packet) {
            rewrite(&mut packet, &quote, &QuoteChange { source: INTERNAL, ..quote.unchanged() });
            prop_assert!(checksum::is_icmp_valid(&packet[20..]));
            prop_assert_eq!(packet.len(), length);
        }
    }

    #[test]
    fn the_unchanged_change_changes_nothing(transport in 8_usize..140) {
        let (before, _) = outbound(Protocol::Udp);
        let original = error_packet(3, 3, [0; 4], ROUTER, EXTERNAL.address, &cut(&before, transport));
        let mut packet = original.clone();
        let quote = parse(&packet).expect("usable");
        rewrite(&mut packet, &quote, &quote.unchanged());
        prop_assert_eq!(packet, original);
    }
}
