//! Claims about what comes from the kernel by netlink, and about frames that go up to it.

use daemon::kernel::class::Class;
use daemon::kernel::class::Limiter;
use daemon::kernel::class::classify;
use daemon::kernel::netlink;
use daemon::kernel::next_hop_objects::NextHopObjects;
use daemon::routing::family::Family;
use nat::Duration;
use nat::Instant;
use nat::stand_in::Prefix6;
use nat::types::Prefix;
use netlink_packet_core::NetlinkPayload;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;

use crate::dice::Dice;

/// Bytes of the header of a netlink message (`linux/netlink.h`).
const NETLINK_HEADER: usize = 16;
/// Bytes of the smallest next hop among several (`struct rtnexthop`).
const NEXT_HOP: usize = 8;

/// A datagram of netlink has at most as many messages as fit into it. Each route in it is one that
/// packets can take, each neighbour has an address of its own.
pub fn messages(bytes: &[u8]) {
    let mut count = 0;
    routes::<Prefix>(bytes);
    routes::<Prefix6>(bytes);
    netlink::read_messages(bytes, |_, payload| {
        count += 1;
        let NetlinkPayload::InnerMessage(message) = payload else { return };
        if let Some(neighbour) = netlink::neighbour_news(&message) {
            assert!(neighbour.station.is_none() || !neighbour.is_asked, "{neighbour:?}");
        }
    });
    assert!(count <= bytes.len() / NETLINK_HEADER, "{count} messages in {} bytes", bytes.len());
}

fn routes<P: Family>(bytes: &[u8]) {
    let mut objects = NextHopObjects::default();
    for message in netlink::messages(bytes) {
        let _ = objects.take_in(message);
    }
    for route in netlink::messages(bytes).filter_map(|message| netlink::route_news::<P>(message, &objects)) {
        assert!(route.prefix.bits() <= P::LENGTH_MAX, "{route:?}");
        assert_ne!(route.protocol, netlink::PROTOCOL_NATRIX, "its own route: {route:?}");
        assert!(route.hops.len() <= 1 + bytes.len() / NEXT_HOP, "{} next hops", route.hops.len());
        assert!(route.hops.iter().all(|(.., weight)| *weight > 0), "{route:?}");
    }
}

/// A frame has one class, whatever its bytes: ARP is `neighbour`, only a neighbour sends `bfd`,
/// `bfd_echo` and `bgp`, and only a neighbour, or any sender to a group of the link, `routing`.
/// What a router has forwarded is no `bfd`. No class gets more than its rate, and none takes from
/// another.
///
/// A step is the time since the one before, in units of 50 microseconds, whether the source is on
/// the link, the length of the frame, and the frame.
pub fn frames(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let mut limiter = Limiter::new(u64::from(dice.word()));
    let begun = Instant::from_micros(1_000_000);
    let mut now = begun;
    let mut allowed = [0_u64; Class::ALL.len()];
    while !dice.is_empty() {
        now = now + Duration::from_micros(u64::from(dice.byte()) * 50);
        let (is_on_link, length) = (dice.byte() & 1 == 0, usize::from(dice.byte()));
        let frame = dice.bytes(length);
        let (class, source) = classify(frame, |_| is_on_link);
        assert_eq!(classify(frame, |_| is_on_link), (class, source), "the same frame has the same class");
        check_class(frame, is_on_link, class);
        // A frame may come many times.
        for _ in 0..=dice.byte() {
            let is_allowed = limiter.allows(now, class, source);
            allowed[class as usize] += u64::from(is_allowed);
            if !is_allowed {
                break;
            }
        }
        let passed = now.as_micros() - begun.as_micros();
        for class in Class::ALL {
            // The rate in the time that passed, a burst of 50 ms, and what 256 regular sources may
            // have at once: one frame each, or those of 50 ms.
            let of_regulars = 256 * (1 + class.rate() / 512 * 50_000 / 1_000_000);
            let most = (passed + 50_000) * class.rate() / 1_000_000 + 1 + of_regulars;
            assert!(allowed[class as usize] <= most, "{class:?}: {} frames in {passed} us", allowed[class as usize]);
        }
    }
    // After a pause each class is open again.
    let later = now + Duration::from_secs(1);
    assert!(Class::ALL.iter().all(|class| limiter.allows(later, *class, 1)), "a class stays shut");
}

fn check_class(frame: &[u8], is_on_link: bool, class: Class) {
    let Ok(header) = LinkHeader::parse(frame) else {
        assert_eq!(class, Class::Other, "bytes that are no frame");
        return;
    };
    let packet = frame.get(header.payload_offset()..).unwrap_or_default();
    let is_for_link = packet.get(16..19) == Some(&[224, 0, 0]);
    match header.ether_type {
        ETHER_TYPE_ARP => assert_eq!(class, Class::Neighbour, "ARP"),
        ETHER_TYPE_IPV4 => {
            assert_ne!(class, Class::Neighbour, "IPv4");
            let is_for_routing = is_for_link && class == Class::Routing;
            assert!(class == Class::Other || is_on_link || is_for_routing, "routing from afar: {frame:02x?}");
            let hop_limit = packet.get(8).copied().unwrap_or(0);
            check_hop_limit(frame, class, hop_limit);
        }
        ETHER_TYPE_IPV6 => {
            let is_on_link = is_on_link || packet.get(8) == Some(&0xfe);
            assert!(matches!(class, Class::Other | Class::Neighbour) || is_on_link, "routing from afar: {frame:02x?}");
            check_hop_limit(frame, class, packet.get(7).copied().unwrap_or(0));
        }
        ..=1_500 => assert_eq!(class, Class::Routing, "IEEE 802.3 has no type"),
        _ => assert_eq!(class, Class::Other, "no protocol that is known"),
    }
}

fn check_hop_limit(frame: &[u8], class: Class, hop_limit: u8) {
    let wanted = match class {
        Class::Bfd => 255,
        Class::BfdEcho => 254,
        _ => hop_limit,
    };
    assert_eq!(hop_limit, wanted, "BFD from afar: {frame:02x?}");
}
