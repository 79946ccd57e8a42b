//! Claims about the parsers of `wire`.

use std::hint::black_box;

use wire::arp::Message;
use wire::build;
use wire::checksum::Delta;
use wire::checksum::Sum;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::field;
use wire::icmp::Icmp;
use wire::icmp6::Icmp6;
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;
use wire::neighbour;
use wire::quoted::Quoted;
use wire::tcp::Tcp;
use wire::udp::Udp;

/// True if `part` lies inside `whole`; an empty part is inside anything.
fn lies_inside(part: &[u8], whole: &[u8]) -> bool {
    part.is_empty()
        || whole.as_ptr_range().contains(&part.as_ptr()) && part.as_ptr_range().end <= whole.as_ptr_range().end
}

/// A link header that parses is the same when written.
pub fn ethernet(bytes: &[u8]) {
    let Ok(header) = LinkHeader::parse(bytes) else {
        return;
    };
    let mut written = vec![0; header.payload_offset()];
    assert_eq!(header.write(&mut written), Some(header.payload_offset()));
    assert_eq!(bytes.get(..written.len()), Some(written.as_slice()));
}

/// An ARP message that parses is the same when written.
pub fn arp(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    assert_eq!(bytes.get(..wire::arp::LENGTH), Some(message.to_bytes().as_slice()));
    assert_eq!(Message::parse(&message.reply(MacAddress::ZERO).to_bytes()), Ok(message.reply(MacAddress::ZERO)));
}

/// The parts of a checked packet have the lengths of its header and lie inside it. Filling in the
/// checksum makes it valid.
pub fn ipv4(bytes: &[u8]) {
    let unchecked = Ipv4::new_unchecked(bytes);
    black_box((unchecked.payload(), unchecked.options(), unchecked.header(), unchecked.packet()));
    black_box(unchecked.is_checksum_valid());
    let Ok(view) = Ipv4::new_checked(bytes) else {
        return;
    };
    assert_eq!(view.header().len(), view.header_length());
    assert_eq!(view.header().len() + view.payload().len(), usize::from(view.total_length()));
    assert!(lies_inside(view.payload(), bytes) && lies_inside(view.options(), bytes));
    assert_eq!(view.is_fragment(), view.more_fragments() || view.fragment_offset_bytes() != 0);
    let mut copy = bytes.to_vec();
    let mut view = Ipv4::new_unchecked(copy.as_mut_slice());
    view.fill_checksum();
    assert!(view.is_checksum_valid());
}

/// A walk over options ends, and its results lie inside.
pub fn ipv4_options(bytes: &[u8]) {
    let mut length = 0;
    for option in wire::ipv4::options(bytes) {
        assert!(lies_inside(option.data, bytes));
        length += option.data.len() + 2;
    }
    assert!(length <= bytes.len());
    black_box(wire::ipv4::has_source_route(bytes));
}

/// The payload of a checked datagram has the length of its header. Filling in the checksum makes it
/// valid.
pub fn udp(bytes: &[u8]) {
    black_box(Udp::new_unchecked(bytes).payload());
    let Ok(view) = Udp::new_checked(bytes) else {
        return;
    };
    assert_eq!(view.payload().len() + wire::udp::HEADER_LENGTH, usize::from(view.length()));
    let mut copy = bytes.to_vec();
    let mut view = Udp::new_unchecked(copy.as_mut_slice());
    view.fill_checksum(1, 2);
    assert_ne!(view.checksum(), 0);
    assert!(view.is_checksum_valid(1, 2));
}

/// Header and payload of a checked segment cover it. An MSS option is where it says.
pub fn tcp(bytes: &[u8]) {
    black_box((Tcp::new_unchecked(bytes).payload(), Tcp::new_unchecked(bytes).sequence_length()));
    let mut length = 0;
    for option in wire::tcp::options(bytes) {
        length += 2;
        match option {
            wire::tcp::TcpOption::MaximumSegmentSize { size, offset } => {
                assert_eq!(field::u16_at(bytes, offset), size);
            }
            wire::tcp::TcpOption::Other { data, .. } => length += data.len(),
            _ => {}
        }
    }
    assert!(length <= bytes.len());
    let Ok(view) = Tcp::new_checked(bytes) else {
        return;
    };
    assert_eq!(view.header_length() + view.payload().len(), bytes.len());
    black_box(view.options().maximum_segment_size());
    if bytes.len() <= usize::from(u16::MAX) {
        let mut copy = bytes.to_vec();
        let mut view = Tcp::new_unchecked(copy.as_mut_slice());
        view.fill_checksum(1, 2);
        assert!(view.is_checksum_valid(1, 2));
    }
}

/// Quote and extension of a message lie inside it, do not overlap, and leave no gap.
pub fn icmp(bytes: &[u8]) {
    let layout = wire::icmp::extension_layout(bytes);
    assert!(layout.quote.start <= layout.quote.end && layout.quote.end <= bytes.len());
    assert_eq!((layout.quote.end, layout.extension.end), (layout.extension.start, bytes.len()));
    let Ok(view) = Icmp::new_checked(bytes) else {
        return;
    };
    assert_eq!(Some(view.quote()), bytes.get(layout.quote));
    let mut copy = bytes.to_vec();
    let mut view = Icmp::new_unchecked(copy.as_mut_slice());
    view.fill_checksum();
    assert!(view.is_checksum_valid());

    // Changing the identifier as the engine does equals a recomputation.
    let before = view.checksum();
    let delta = Delta::of_u16(view.identifier(), view.sequence());
    let identifier = view.sequence();
    view.set_identifier(identifier);
    view.set_checksum(0);
    let updated = delta.apply_icmp(before, &copy);
    let mut view = Icmp::new_unchecked(copy.as_mut_slice());
    view.fill_checksum();
    assert_eq!(updated, view.checksum());
}

/// The parts of a checked packet lie inside it. The walk over extension headers ends inside it, at
/// a header it does not follow.
pub fn ipv6(bytes: &[u8]) {
    let unchecked = Ipv6::new_unchecked(bytes);
    black_box((unchecked.payload(), unchecked.packet(), wire::ipv6::chain(bytes).is_ok()));
    let Ok(view) = Ipv6::new_checked(bytes) else {
        return;
    };
    assert_eq!(view.packet().len(), view.length());
    assert!(lies_inside(view.payload(), bytes));
    if let Ok(chain) = wire::ipv6::chain(view.packet()) {
        assert!(chain.offset <= view.length() && chain.number_offset < chain.offset);
        assert_eq!(field::u8_at(bytes, chain.number_offset), chain.protocol);
        assert!(chain.segments_left.is_none_or(|at| at < chain.offset && field::u8_at(bytes, at) != 0));
        assert!(chain.fragment.is_some() || !matches!(chain.protocol, 0 | 43 | 44 | 60));
    }
    black_box(wire::verify6::faults(bytes));
}

/// Quote and extension of a message lie inside it, do not overlap, and leave no gap.
pub fn icmp6(bytes: &[u8]) {
    let layout = wire::icmp6::extension_layout(bytes);
    assert!(layout.quote.start <= layout.quote.end && layout.quote.end <= bytes.len());
    assert_eq!((layout.quote.end, layout.extension.end), (layout.extension.start, bytes.len()));
    let Ok(view) = Icmp6::new_checked(bytes) else {
        return;
    };
    assert_eq!(Some(view.quote()), bytes.get(layout.quote));
    let mut copy = bytes.to_vec();
    Icmp6::new_unchecked(copy.as_mut_slice()).fill_checksum(1, 2);
    assert!(Icmp6::new_unchecked(copy.as_slice()).is_checksum_valid(1, 2));
}

/// A message of neighbours that parses is the same when written and read again. Its checksum is
/// repaired first.
pub fn neighbour(bytes: &[u8]) {
    black_box(neighbour::Message::parse(bytes).is_ok());
    let mut copy = bytes.to_vec();
    wire::build6::fill_checksum(&mut copy);
    let Ok(message) = neighbour::Message::parse(&copy) else {
        return;
    };
    let mut written = [0; neighbour::LENGTH_MAX];
    let length = message.write(&mut written);
    assert_eq!(neighbour::Message::parse(&written[..length]), Ok(message));
    let reply = message.reply(MacAddress::ZERO);
    let length = reply.write(&mut written);
    // RFC 4861 §7.1.2: what the rules forbid in the question may make the answer wrong, too.
    if !wire::ipv6::is_multicast(message.source) {
        assert_eq!(neighbour::Message::parse(&written[..length]), Ok(reply));
    }
}

/// Everything read from a quote lies inside it, wherever it was cut.
pub fn quoted(bytes: &[u8]) {
    let Ok(view) = Quoted::new_checked(bytes) else {
        return;
    };
    assert!(lies_inside(view.transport(), bytes));
    assert!(view.transport_offset() <= bytes.len());
    if view.is_complete() {
        assert_eq!(view.transport_offset() + view.transport().len(), usize::from(view.header().total_length()));
    }
    assert!(view.ports().is_none() || view.icmp_query().is_none());
    black_box((view.is_checksum_valid(), view.header().options()));
}

/// The fast sum equals the plain sum, wherever the data is cut; an update equals a recomputation.
pub fn checksum(bytes: &[u8]) {
    let mut plain = 0_u64;
    for pair in bytes.chunks(2) {
        plain += u64::from(field::u8_at(pair, 0)) << 8 | u64::from(field::u8_at(pair, 1));
    }
    while plain > 0xffff {
        plain = (plain & 0xffff) + (plain >> 16);
    }
    let fast = Sum::ZERO.add_bytes(bytes);
    assert_eq!(u64::from(fast.fold()), plain);
    let cut = usize::from(field::u8_at(bytes, 0)).min(bytes.len()) & !1;
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(Sum::ZERO.add_bytes(head).add_bytes(tail).fold(), fast.fold());

    let (old, new) = (field::u32_at(bytes, 0), field::u32_at(bytes, 4));
    let rest = Sum::ZERO.add_u16(0x4500).add_bytes(bytes.get(8..).unwrap_or(&[]));
    let delta = Delta::of_u32(old, new);
    assert_eq!(delta.apply(rest.add_u32(old).checksum()), rest.add_u32(new).checksum());
    assert_eq!(delta.apply_udp(rest.add_u32(old).udp_checksum()), rest.add_u32(new).udp_checksum());
    assert_eq!(delta.inverse().apply(rest.add_u32(new).checksum()), rest.add_u32(old).checksum());
    assert_eq!(Delta::from_bits(delta.to_bits()), delta);
}

/// The first two bytes choose an MTU, the rest is a packet. Its fragments fit and reassemble to it.
pub fn fragments(bytes: &[u8]) {
    let Some((mtu, packet)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let mtu = usize::from(u16::from_be_bytes(*mtu)).max(usize::from(wire::ipv4::MTU_MIN));
    let Ok(view) = Ipv4::new_checked(packet) else {
        return;
    };
    let pieces = build::fragment(packet, mtu);
    assert!(pieces.iter().all(|piece| piece.len() <= mtu));
    // Malformed options are not copied, and the reserved bit is lost: compare the rest.
    if !view.is_fragment()
        && let Some(whole) = build::reassemble(&pieces)
    {
        assert_eq!(Ipv4::new_unchecked(whole.as_slice()).payload(), view.payload());
    } else {
        assert!(view.is_fragment(), "the fragments of a datagram always reassemble");
    }
}

/// The standard check never panics. Padding behind a packet does not change its result.
pub fn verify(bytes: &[u8]) {
    let faults = wire::verify::faults(bytes);
    if let Ok(view) = Ipv4::new_checked(bytes) {
        assert_eq!(wire::verify::faults(view.packet()), faults);
    }
}

/// Text that is an address prints as the same address.
pub fn mac_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(address) = text.parse::<MacAddress>() {
        assert_eq!(address.to_string(), text.to_ascii_lowercase().replace('-', ":"));
    }
}
