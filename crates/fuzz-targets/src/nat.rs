//! Claims about the parts of the engine that read foreign bytes.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Verdict;
use nat::fragments::DatagramIndex;
use nat::fragments::FragmentInfo;
use nat::fragments::FragmentKey;
use nat::fragments::FragmentOutcome;
use nat::fragments::FragmentTracker;
use nat::icmp_quote;
use nat::icmp_quote::QuoteChange;
use nat::own_icmp;
use nat::own_icmp::ERROR_MAX;
use nat::own_icmp::IcmpError;
use nat::packet::PacketMeta;
use nat::random::KeyedHash;
use nat::settings::Limits;
use nat::split::split;
use nat::types::Endpoint;
use nat::types::Side;
use wire::checksum;
use wire::icmp::Icmp;
use wire::ipv4::Ipv4;
use wire::quoted::Quoted;

/// Corrects the checksums of an ICMP error, so that its other fields are read.
fn repair(packet: &mut [u8]) {
    let mut view = Ipv4::new_unchecked(packet);
    view.fill_checksum();
    let message = view.payload_mut();
    let quote = wire::icmp::extension_layout(message).quote;
    if let Some(quoted) = message.get_mut(quote)
        && quoted.len() >= wire::ipv4::HEADER_LENGTH_MIN
    {
        Ipv4::new_unchecked(quoted).fill_checksum();
    }
    if message.len() >= wire::icmp::HEADER_LENGTH {
        Icmp::new_unchecked(message).fill_checksum();
    }
}

/// A rewritten ICMP error has the given fields and right checksums, and is otherwise unchanged.
pub fn icmp_quote(bytes: &[u8]) {
    let _ = icmp_quote::parse(bytes);
    let Ok(view) = Ipv4::new_checked(bytes) else {
        return;
    };
    let mut packet = view.packet().to_vec();
    repair(&mut packet);
    let read = icmp_quote::parse(&packet);
    let is_unsupported = matches!(read, Err(Verdict::ProtocolUnsupported));
    assert_eq!(icmp_quote::parse_portless(&packet).is_some(), is_unsupported, "for a pass rule");
    let Ok(quote) = read else {
        return;
    };
    let before = packet.clone();
    let endpoint = |last, port| Endpoint::new(Ipv4Addr::new(203, 0, 113, last), port);
    // A query has one identifier for both ends.
    let ports = if quote.protocol == Protocol::Icmp { (7, 7) } else { (7, 8) };
    let change = QuoteChange {
        source: endpoint(1, ports.0),
        destination: endpoint(2, ports.1),
        outer_source: Ipv4Addr::new(192, 0, 2, 3),
        outer_destination: Ipv4Addr::new(192, 0, 2, 4),
        sequence: quote.sequence.map(|sequence| sequence.wrapping_add(70_000)),
    };
    icmp_quote::rewrite(&mut packet, &quote, &change);

    let after = Ipv4::new_unchecked(packet.as_slice());
    assert!(after.is_checksum_valid(), "outer header");
    assert!(checksum::is_icmp_valid(after.payload()), "message");
    let message = Icmp::new_unchecked(after.payload());
    assert!(Quoted::new_checked(message.quote()).is_ok_and(|quoted| quoted.is_checksum_valid()), "embedded header");
    let again = icmp_quote::parse(&packet);
    assert!(again.is_ok(), "no longer usable: {again:?}");
    let Ok(again) = again else {
        return;
    };
    assert_eq!(again.unchanged(), change);
    assert_eq!((again.icmp_type, again.code, again.protocol), (quote.icmp_type, quote.code, quote.protocol));

    // Outer header, ICMP header, longest embedded header, and TCP up to its checksum; behind that
    // nothing changes.
    let touched = after.header_length() + 8 + 60 + 18;
    assert_eq!(packet.get(touched..), before.get(touched..));
}

/// Pieces fit, are contiguous, and hold the payload of the packet.
pub fn split_packet(bytes: &[u8]) {
    let Some((mtu, packet)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let mtu = u16::from_be_bytes(*mtu);
    let Ok(pieces) = split(packet, mtu) else {
        return;
    };
    let view = Ipv4::new_unchecked(packet);
    let (mut at, mut offset) = (view.header_length(), view.fragment_offset_bytes());
    for piece in pieces {
        let header = Ipv4::new_unchecked(piece.header.as_bytes());
        assert_eq!(header.header_length(), piece.header.as_bytes().len());
        assert_eq!(usize::from(header.total_length()), header.header_length() + piece.payload.len());
        assert!(header.total_length() <= mtu && header.is_checksum_valid());
        assert_eq!(piece.payload.start, at);
        // The offset of a hostile fragment may wrap around: it has only 13 bits.
        assert_eq!(header.fragment_offset_bytes(), offset & 0xffff);
        at = piece.payload.end;
        offset += piece.payload.len();
        assert!(header.more_fragments() == (at < usize::from(view.total_length()) || view.more_fragments()));
    }
    assert_eq!(at, usize::from(view.total_length()));
}

/// The view of bytes that must be a packet.
fn sound(bytes: &[u8]) -> Ipv4<&[u8]> {
    let fault = Ipv4::new_checked(bytes).err();
    assert!(fault.is_none(), "not a packet: {fault:?}");
    Ipv4::new_unchecked(bytes)
}

/// Messages of Natrix are right whatever they answer, and never answer an ICMP error.
pub fn own_icmp(bytes: &[u8]) {
    let mut buffer = [0; ERROR_MAX];
    let length = own_icmp::write_error(&mut buffer, IcmpError::TtlExceeded, Ipv4Addr::new(192, 0, 2, 1), 9, bytes);
    let error = buffer.get(..length).unwrap_or(&[]);
    let view = sound(error);
    assert!(view.is_checksum_valid() && checksum::is_icmp_valid(view.payload()));
    assert!(!own_icmp::may_answer(error), "an error about an error");
    assert!(bytes.starts_with(view.payload().get(8..).unwrap_or(&[])));

    let mut reply = bytes.to_vec();
    match own_icmp::echo_reply(&mut reply, 9) {
        Some(length) => {
            let view = sound(&reply);
            assert_eq!(usize::from(view.total_length()), length);
            assert!(view.is_checksum_valid() && checksum::is_icmp_valid(view.payload()));
            assert_eq!(reply.get(length..), bytes.get(length..));
        }
        None => assert_eq!(reply, bytes),
    }
}

/// Forwarded fragments of one datagram never overlap, and each fragment ends in one way. Five bytes
/// make one fragment: datagram and flags, offset, length, milliseconds since the previous one.
pub fn fragments(bytes: &[u8]) {
    let limits = Limits { fragmented_datagrams_max: 5, fragments_held_max: 7, ..Limits::default() };
    let mut tracker = FragmentTracker::new(&limits, Duration::from_secs(2), 0, KeyedHash::new([0x5eed, 1, 2, 3]));
    let mut buffer = vec![0; tracker.slot_bytes()];
    let (mut now, mut given, mut ended) = (Instant::ORIGIN, 0, 0);
    let mut lengths: HashMap<(u8, u32), u32> = HashMap::new();
    for step in bytes.as_chunks::<5>().0 {
        let [flags, high, low, length, wait] = *step;
        now = now + Duration::from_millis(u64::from(wait) * 4);
        let datagram = flags & 3;
        let side = if flags & 4 == 0 { Side::Inside } else { Side::Outside };
        let address = Ipv4Addr::new(10, 0, 0, datagram);
        let key = FragmentKey::new(side, address, address, if flags & 8 == 0 { 17 } else { 6 }, 1);
        let offset = u32::from(u16::from_be_bytes([high, low])) & !7;
        let length = u32::from(length) * if flags & 16 == 0 { 8 } else { 1 };
        let more = flags & 32 != 0;
        let first_ports = (offset == 0).then_some((1, 2));
        let info = FragmentInfo { offset, length, more, first_ports, owner: address.into() };
        let outcome = tracker.accept(now, key, info, &offset.to_be_bytes(), PacketMeta::default());
        given += 1;
        let name = flags & 15;
        if !matches!(outcome, FragmentOutcome::Dropped { .. }) {
            lengths.insert((name, offset), length);
        }
        match outcome {
            FragmentOutcome::Held => {}
            FragmentOutcome::Dropped { held_discarded, .. } => ended += 1 + held_discarded,
            FragmentOutcome::Resolved { datagram, ports } => {
                assert_eq!(ports, (1, 2));
                if flags & 64 != 0 {
                    ended += 1 + tracker.refuse(datagram);
                    continue;
                }
                let mut forwarded = released(&mut tracker, datagram, &mut buffer);
                assert!(forwarded.is_sorted(), "held fragments come in order");
                forwarded.push(offset);
                ended += forwarded.len() as u32;
                forwarded.sort_unstable();
                for pair in forwarded.windows(2) {
                    let [first, second] = pair else { continue };
                    let end = first + lengths.get(&(name, *first)).copied().unwrap_or(0);
                    assert!(end <= *second, "{first} reaches into {second}");
                }
            }
        }
    }
    tracker.expire(now + Duration::from_secs(10), 100, |discarded| ended += discarded);
    assert_eq!(ended, given);
    assert!(tracker.is_empty());
}

fn released(tracker: &mut FragmentTracker, datagram: DatagramIndex, buffer: &mut [u8]) -> Vec<u32> {
    let mut offsets = Vec::new();
    while let Some((length, _)) = tracker.next_held(datagram, buffer) {
        assert_eq!(length, 4);
        offsets.push(buffer.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)));
    }
    offsets
}
