//! The short way gives what the long way gives.

use proptest::prelude::*;
use translate::Further;
use translate::Halves;
use translate::Limits;
use translate::PLAIN;
use translate::Tuple4;
use translate::Tuple6;
use translate::is_plain4;
use translate::is_plain6;
use translate::is_steady4;
use translate::plain_to_ipv4;
use translate::plain_to_ipv6;
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;

const ROOM: usize = 60;
const NO_HOP: Limits =
    Limits { mtu4: u16::MAX, mtu6: u16::MAX, lowest_mtu6: u16::MAX, copies_traffic_class: true, is_hop: false };

prop_compose! {
    /// Mostly what is plain, and sometimes not.
    fn transport()(mut bytes in prop::collection::vec(any::<u8>(), 18..1_400), is_udp in any::<bool>(), fits in 0..8u8)
        -> (u8, Vec<u8>) {
        if is_udp && fits != 0 {
            let length = (bytes.len() as u16).to_be_bytes();
            bytes[4..6].copy_from_slice(&length);
        }
        if fits == 1 {
            bytes[6..8].fill(0);
        }
        (if is_udp { 17 } else { 6 }, bytes)
    }
}

proptest! {
    #[test]
    fn to_ipv4_it_agrees_with_the_long_way(
        (protocol, transport) in transport(), padding in 0..9usize, class in any::<u8>(), label in any::<u32>(),
        hops in any::<u8>(), addresses in any::<(u128, u128)>(), new in any::<(u32, u32)>(),
        further in prop::option::of((any::<u16>(), any::<u16>())),
    ) {
        let further = further.map(|(port, identification)| Further { port, identification });
        let ports = further.map(|further| (further.port, u16::from_be_bytes([transport[2], transport[3]])));
        let limits = Limits { is_hop: further.is_some(), ..NO_HOP };
        let mut frame = vec![0; ROOM + 40 + transport.len() + padding];
        frame[ROOM + 40..ROOM + 40 + transport.len()].copy_from_slice(&transport);
        let mut header = Ipv6::new_unchecked(&mut frame[ROOM..]);
        header.set_class_and_label(class, label);
        header.set_payload_length(transport.len() as u16);
        header.set_next_header(protocol);
        header.set_hop_limit(hops);
        header.set_source(addresses.0);
        header.set_destination(addresses.1);
        let room = frame.len() - ROOM;
        let is_plain = frame[ROOM..].first_chunk().is_some_and(|bytes| is_plain6(bytes, room));
        let long = translate::read6(&frame[ROOM..]).ok().and_then(|headers| {
            let mut frame = frame.clone();
            let new = Tuple4 { source: new.0, destination: new.1, ports };
            // Atomic datagrams need none.
            let needed = further.filter(|_| translate::may_be_fragmented(20 + transport.len() as u16));
            let identification = needed.map_or(0, |further| further.identification);
            let written = translate::to_ipv4(&mut frame, ROOM, &headers, &new, None, identification, &limits).ok()?;
            assert_eq!((written.start, written.split), (ROOM + 20, None));
            Some(frame[written.start..written.start + written.length].to_vec())
        });
        // It does not look whether the packet may go another hop.
        let has_expired = hops <= 1 && further.is_some();
        prop_assert!(has_expired || is_plain == (long.is_some() && transport.len() >= 20));
        if let Some(long) = long.filter(|_| is_plain) {
            plain_to_ipv4(frame[ROOM..].first_chunk_mut().unwrap(), new.0, new.1, further);
            prop_assert_eq!(&frame[ROOM + 20..ROOM + 40 + transport.len()], long.as_slice());
        }
    }

    #[test]
    fn to_ipv6_it_agrees_with_the_long_way(
        (protocol, transport) in transport(), padding in 0..9usize, class in any::<u8>(), ttl in any::<u8>(),
        bits in prop_oneof![Just(0u16), Just(0x4000), any::<u16>()],
        addresses in any::<(u32, u32)>(), new in any::<(u128, u128)>(), port in any::<Option<u16>>(),
    ) {
        let ports = port.map(|port| (u16::from_be_bytes([transport[0], transport[1]]), port));
        let ttl = if port.is_some() { ttl.max(2) } else { ttl };
        let limits = Limits { is_hop: port.is_some(), ..NO_HOP };
        let mut frame = vec![0; ROOM + 20 + transport.len() + padding];
        frame[ROOM + 20..ROOM + 20 + transport.len()].copy_from_slice(&transport);
        let mut header = Ipv4::new_unchecked(&mut frame[ROOM..]);
        header.set_header_length(20);
        header.set_ds_field(class);
        header.set_total_length(20 + transport.len() as u16);
        header.set_fragment_bits(bits);
        header.set_ttl(ttl);
        header.set_protocol(protocol);
        header.set_source(addresses.0);
        header.set_destination(addresses.1);
        header.fill_checksum();
        let chunk: &[u8; PLAIN] = match frame[ROOM - 20..].first_chunk() {
            Some(chunk) => chunk,
            None => return Ok(()),
        };
        if is_plain4(chunk, 20 + transport.len()) {
            prop_assert!(is_steady4(chunk, 20 + transport.len()));
            let mut long = frame.clone();
            let headers = translate::read4(&long[ROOM..]).unwrap();
            let tuple = Tuple6 { source: new.0, destination: new.1, ports };
            let written = translate::to_ipv6(&mut long, ROOM, &headers, &tuple, None, &limits).unwrap();
            prop_assert_eq!((written.start, written.split), (ROOM - 20, None));
            let (source, destination) = (Halves::of(new.0), Halves::of(new.1));
            plain_to_ipv6(frame[ROOM - 20..].first_chunk_mut().unwrap(), source, destination, port);
            prop_assert_eq!(&frame[ROOM - 20..], &long[ROOM - 20..]);
        } else {
            let is_usual = transport.len() >= 20 && bits & 0x3fff == 0;
            prop_assert!(!is_usual || protocol == 17 || is_steady4(chunk, 20 + transport.len()));
            let has_checksum = protocol == 6 || transport[6..8] != [0, 0];
            let is_whole = bits & 0x3fff == 0;
            let is_read = translate::read4(&frame[ROOM..]).is_ok();
            prop_assert!(!(has_checksum && is_whole && is_read && transport.len() >= 20));
        }
    }
}
