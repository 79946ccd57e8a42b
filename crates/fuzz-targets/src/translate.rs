//! Claims about translation between IPv4 and IPv6.

use translate::Headers4;
use translate::Headers6;
use translate::Kind;
use translate::Limits;
use translate::Prefix;
use translate::ROOM;
use translate::Reason;
use translate::Refused;
use translate::Tuple;
use translate::Written;
use wire::build6;
use wire::checksum;
use wire::field;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6;

/// Nothing is refused for its size.
const WIDE: Limits =
    Limits { mtu4: u16::MAX, mtu6: u16::MAX, lowest_mtu6: u16::MAX, copies_traffic_class: true, is_hop: true };
/// In front of and behind each packet.
const AROUND: u8 = 0xa5;

/// A right packet is translated to a right packet or refused, and then comes back with the same
/// addresses, ports and payload. Bytes outside are never written, and no byte of a refused packet.
/// Checksums are repaired first, so that changed packets are not all refused for them.
pub fn roundtrip(bytes: &[u8]) {
    let mut packet = bytes.to_vec();
    if field::u8_at(bytes, 0) >> 4 == 6 {
        build6::fill_checksum(&mut packet);
        from_ipv6(&packet);
    } else {
        repair4(&mut packet);
        from_ipv4(&packet);
    }
}

fn from_ipv4(packet: &[u8]) {
    let embed = |address| Prefix::WELL_KNOWN.embed(address);
    let Some((headers, there)) = to_ipv6(packet, embed) else { return };
    if !wire::verify::faults(packet).is_empty() {
        return;
    }
    assert_eq!(wire::verify6::faults(&there), []);
    let back = to_ipv4(&there, |address| Prefix::WELL_KNOWN.extract(address));
    let Some((between, back)) = back else {
        // RFC 7915 §5.1.1 drops fragments of an AH packet, §4.1 does not.
        let is_ah_fragment = headers.protocol == ipv6::HEADER_AUTHENTICATION && headers.fragment.is_some();
        assert!(headers.hop_limit == 2 || is_ah_fragment, "only an expired packet does not come back");
        return;
    };
    assert_eq!((between.ports, between.fragment.is_some()), (headers.ports, headers.fragment.is_some()));
    assert_eq!(wire::verify::faults(&back), []);
    let again = translate::read4(&back);
    assert!(again.is_ok(), "the result can be read again");
    let Ok(again) = again else { return };
    assert_eq!((again.source, again.destination, again.ports), (headers.source, headers.destination, headers.ports));
    assert_eq!((again.kind, again.protocol), (headers.kind, headers.protocol));
    assert_eq!((again.fragment, again.traffic_class), (headers.fragment, headers.traffic_class));
    if headers.kind != Kind::Error {
        let checksum = if headers.kind == Kind::Udp { 6..8 } else { 0..0 };
        let mut before = packet.get(headers.transport..headers.length).unwrap_or_default().to_vec();
        let mut after = back.get(again.transport..again.length).unwrap_or_default().to_vec();
        // A datagram without checksum got one.
        before.get_mut(checksum.clone()).unwrap_or_default().fill(0);
        after.get_mut(checksum).unwrap_or_default().fill(0);
        assert_eq!(before, after);
    }
}

fn from_ipv6(packet: &[u8]) {
    let Some((headers, there)) = to_ipv4(packet, |address| address as u32) else { return };
    if !wire::verify6::faults(packet).is_empty() {
        return;
    }
    assert_eq!(wire::verify::faults(&there), []);
    if headers.source as u32 == headers.destination as u32 {
        // One IPv4 address is not enough for the way back.
        return;
    }
    let same = |address| if address == headers.source as u32 { headers.source } else { headers.destination };
    let Some((between, back)) = to_ipv6(&there, same) else {
        assert!(headers.hop_limit == 2, "only an expired packet does not come back");
        return;
    };
    assert_eq!((between.ports, between.kind), (headers.ports, headers.kind));
    assert_eq!(wire::verify6::faults(&back), []);
    let again = translate::read6(&back);
    assert!(again.is_ok(), "the result can be read again");
    let Ok(again) = again else { return };
    assert_eq!((again.ports, again.kind, again.protocol), (headers.ports, headers.kind, headers.protocol));
    if headers.kind != Kind::Error {
        let before = packet.get(headers.transport..headers.length).unwrap_or_default();
        let after = back.get(again.transport..again.length).unwrap_or_default();
        assert_eq!(before.get(..6), after.get(..6));
        assert_eq!(before.get(20..), after.get(20..));
    }
}

/// Headers and result of a packet that was translated.
fn to_ipv6(packet: &[u8], map: impl Fn(u32) -> u128) -> Option<(Headers4, Vec<u8>)> {
    let headers = translate::read4(packet).ok()?;
    let tuple = |headers: &Headers4| Tuple {
        source: map(headers.source),
        destination: map(headers.destination),
        ports: Some(headers.ports),
    };
    let inner = translate::quoted4(packet, &headers).ok().map(|inner| tuple(&inner));
    let result = translated(packet, |frame, start| {
        translate::to_ipv6(frame, start, &headers, &tuple(&headers), inner.as_ref(), &WIDE)
    });
    result.map(|packet| (headers, packet))
}

fn to_ipv4(packet: &[u8], map: impl Fn(u128) -> u32) -> Option<(Headers6, Vec<u8>)> {
    let headers = translate::read6(packet).ok()?;
    let tuple = |headers: &Headers6| Tuple {
        source: map(headers.source),
        destination: map(headers.destination),
        ports: Some(headers.ports),
    };
    let inner = translate::quoted6(packet, &headers).ok().map(|inner| tuple(&inner));
    let result = translated(packet, |frame, start| {
        translate::to_ipv4(frame, start, &headers, &tuple(&headers), inner.as_ref(), 7, &WIDE)
    });
    result.map(|packet| (headers, packet))
}

fn translated(packet: &[u8], translate: impl Fn(&mut [u8], usize) -> Result<Written, Refused>) -> Option<Vec<u8>> {
    let mut frame = vec![AROUND; ROOM];
    frame.extend_from_slice(packet);
    frame.extend([AROUND; 8]);
    let before = frame.clone();
    let written = match translate(&mut frame, ROOM) {
        Ok(written) => written,
        Err(refused) => {
            assert_eq!(frame, before, "{:?}", refused.reason);
            assert_ne!(refused.reason, Reason::NoRoom, "there is room for every packet");
            return None;
        }
    };
    let end = written.start + written.length;
    assert!(end <= ROOM + packet.len());
    assert_eq!(frame.get(ROOM + packet.len()..), before.get(ROOM + packet.len()..));
    frame.get(written.start..end).map(<[u8]>::to_vec)
}

fn repair4(packet: &mut [u8]) {
    if Ipv4::new_checked(&*packet).is_err() {
        return;
    }
    let mut view = Ipv4::new_unchecked(&mut *packet);
    view.fill_checksum();
    let (source, destination, protocol) = (view.source(), view.destination(), view.protocol());
    if view.is_fragment() {
        return;
    }
    let transport = view.payload_mut();
    match protocol {
        ipv4::PROTOCOL_ICMP => wire::icmp::Icmp::new_unchecked(transport).fill_checksum(),
        ipv4::PROTOCOL_TCP => {
            field::set_u16(transport, wire::tcp::CHECKSUM_OFFSET, 0);
            let sum = checksum::pseudo_header(source, destination, protocol, transport.len() as u16);
            let sum = sum.add_bytes(transport).checksum();
            field::set_u16(transport, wire::tcp::CHECKSUM_OFFSET, sum);
        }
        ipv4::PROTOCOL_UDP if field::u16_at(transport, wire::udp::CHECKSUM_OFFSET) != 0 => {
            wire::udp::Udp::new_unchecked(transport).fill_checksum(source, destination);
        }
        _ => {}
    }
}
