//! Routes in messages: those of others, which are followed, and those that Natrix announces.

use core::net::IpAddr;

use netlink_packet_core::NLM_F_APPEND;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteAddress;
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::route::RouteScope;
use netlink_packet_route::route::RouteType;

use crate::kernel::netlink::PROTOCOL_NATRIX;
use crate::kernel::netlink::family_of;
use crate::kernel::netlink::message::DELETED_ROUTE;
use crate::kernel::netlink::message::HEADER;
use crate::kernel::netlink::message::NEW_ROUTE;
use crate::kernel::netlink::message::attributes;
use crate::kernel::netlink::message::half;
use crate::kernel::netlink::message::word;
use crate::kernel::next_hop_objects::NextHopObjects;
use crate::routing::family::Family;

/// Attributes of a route.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const METRIC: u16 = 6;
const SEVERAL_HOPS: u16 = 9;
const TABLE: u16 = 15;
const VIA: u16 = 18;
const TUNNEL: u16 = 22;
const OBJECT: u16 = 30;
/// Types of a route, a flag of a next hop (RTNH_F_DEAD), one of a route that is a copy of another
/// (RTM_F_CLONED), and the families.
const KIND_UNICAST: u8 = 1;
const KIND_BLACKHOLE: u8 = 6;
const KIND_PROHIBIT: u8 = 8;
pub(crate) const HOP_IS_DEAD: u8 = 1;
const IS_CLONED: u32 = 0x200;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

/// A route as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteNews<P: Family> {
    /// Added or replaced, else removed.
    pub is_there: bool,
    /// It takes the place of all others with its prefix and metric.
    pub replaces: bool,
    /// It stands behind those with its prefix and metric.
    pub is_appended: bool,
    /// The kernel's number of its table.
    pub table: u32,
    /// Destinations.
    pub prefix: P,
    /// The lowest counts.
    pub metric: u32,
    /// The kernel's number of the routing protocol.
    pub protocol: u8,
    /// Device, gateway (0: on the link) and weight of each next hop. Empty: packets are dropped.
    pub hops: Vec<KernelHop<P::Address>>,
    /// The object that it names for them.
    pub object: Option<u32>,
}

/// Device, gateway (0: on the link) and weight of a next hop.
pub type KernelHop<A> = (u32, A, u16);

/// Whether a message is about a route.
pub fn is_route(message: &[u8]) -> bool {
    matches!(half(message, 4), NEW_ROUTE | DELETED_ROUTE)
}

/// The next hop that a route names as an object, if it does.
pub fn object_of_route(message: &[u8]) -> Option<u32> {
    let mut all = attributes(message.get(HEADER + 12..).filter(|_| is_route(message))?);
    all.find_map(|(kind, value)| (kind == OBJECT && value.len() == 4).then(|| word(value, 0)))
}

/// Whether a message says that a route of Natrix itself was removed.
pub fn is_own_route_gone(message: &[u8]) -> bool {
    half(message, 4) == DELETED_ROUTE && message.get(HEADER + 5) == Some(&PROTOCOL_NATRIX)
}

/// Whether a message says that a route has taken the place of another one, whose protocol the
/// kernel does not name.
pub fn is_replacement(message: &[u8]) -> bool {
    half(message, 4) == NEW_ROUTE && half(message, 6) & NLM_F_REPLACE != 0
}

/// Whether a message is about a route of this family.
fn is_of<P: Family>(family: u8) -> bool {
    family == if P::LENGTH_MAX == 32 { FAMILY_IPV4 } else { FAMILY_IPV6 }
}

/// The address in an attribute, if it is one of this family.
fn address_in<P: Family>(value: &[u8]) -> Option<P::Address> {
    (value.len() == usize::from(P::LENGTH_MAX) / 8).then(|| P::read(value))
}

/// The route of a family in a message, if it is one that packets can take. `objects` are the next
/// hops that routes only name. It is read where it lies, without the library: a full table comes as
/// a million messages.
pub fn route_news<P: Family>(message: &[u8], objects: &NextHopObjects) -> Option<RouteNews<P>> {
    let is_there = match half(message, 4) {
        NEW_ROUTE => true,
        DELETED_ROUTE => false,
        _ => return None,
    };
    let replaces = half(message, 6) & NLM_F_REPLACE != 0;
    let is_appended = half(message, 6) & NLM_F_APPEND != 0;
    // `struct rtmsg`: family, lengths of destination and source, type of service, table, protocol,
    // scope, type, flags.
    let [family, length, source_length, service, table, protocol, _, kind, ..] =
        *message.get(HEADER..)?.first_chunk::<12>()?;
    // Routes by source or type of service are of no use to a NAT, and its own routes are for
    // others.
    let is_special = source_length != 0 || service != 0 || word(message, HEADER + 8) & IS_CLONED != 0;
    if !is_of::<P>(family) || is_special || protocol == PROTOCOL_NATRIX {
        return None;
    }
    let drops = match kind {
        KIND_UNICAST => false,
        KIND_BLACKHOLE..=KIND_PROHIBIT => true,
        _ => return None,
    };
    let mut address = P::Address::default();
    let (mut table, mut metric, mut device, mut gateway) = (u32::from(table), 0, None, P::Address::default());
    let (mut hops, mut is_plain, mut object) = (Vec::new(), true, None);
    for (kind, value) in attributes(message.get(HEADER + 12..)?) {
        match (kind, value.len()) {
            (DESTINATION, _) => address = address_in::<P>(value).unwrap_or(address),
            (DEVICE, 4) => device = Some(word(value, 0)),
            (GATEWAY, _) => gateway = address_in::<P>(value).unwrap_or(gateway),
            // A router of the other family (RFC 8950), whose station is not asked for here, or a
            // tunnel that the kernel would put the packet into.
            (VIA | TUNNEL, _) => is_plain = false,
            (METRIC, 4) => metric = word(value, 0),
            (TABLE, 4) => table = word(value, 0),
            (SEVERAL_HOPS, _) => hops.extend(several_hops::<P>(value)),
            (OBJECT, 4) => object = Some(word(value, 0)),
            _ => {}
        }
    }
    match (device, object) {
        // Its attributes may repeat it, but not all of them: dead next hops and weights above 256.
        (_, Some(id)) if objects.has(id) => hops = objects.hops_of::<P>(id),
        (Some(device), _) if hops.is_empty() && is_plain => hops.push((device, gateway, 1)),
        _ => {}
    }
    match drops {
        true => hops.clear(),
        // By a router of the other family, by a tunnel, or by nothing.
        false if hops.is_empty() && is_there => return None,
        false => {}
    }
    let prefix = P::of(address, length)?;
    Some(RouteNews { is_there, replaces, is_appended, table, prefix, metric, protocol, hops, object })
}

/// The next hops (`struct rtnexthop`) that are not dead.
fn several_hops<P: Family>(mut bytes: &[u8]) -> impl Iterator<Item = KernelHop<P::Address>> {
    core::iter::from_fn(move || {
        loop {
            let [_, _, flags, weight, ..] = *bytes.first_chunk::<8>()?;
            let length = usize::from(half(bytes, 0));
            let hop = bytes.get(..length).filter(|_| length >= 8)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            let (mut gateway, mut is_plain) = (P::Address::default(), true);
            for (kind, value) in attributes(hop.get(8..)?) {
                match kind {
                    GATEWAY => gateway = address_in::<P>(value).unwrap_or(gateway),
                    VIA | TUNNEL => is_plain = false,
                    _ => {}
                }
            }
            if is_plain && flags & HOP_IS_DEAD == 0 {
                // The kernel's numbers begin at 0.
                return Some((word(hop, 4), gateway, u16::from(weight) + 1));
            }
        }
    })
}

/// Asks for all routes of a family.
pub fn all_routes<P: Family>() -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(P::ip(P::Address::default()));
    RouteNetlinkMessage::GetRoute(message)
}

/// Asks for the routes of a family that Natrix made: see [`Netlink::filter_dumps`].
pub fn routes_of_natrix<P: Family>() -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(P::ip(P::Address::default()));
    message.header.protocol = RouteProtocol::from(PROTOCOL_NATRIX);
    RouteNetlinkMessage::GetRoute(message)
}

/// Table, first address and length of a route's prefix.
pub fn place_of(route: &RouteMessage) -> Option<(u32, IpAddr, u8)> {
    let all = || route.attributes.iter();
    let address = all().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    let table = all().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    Some((table?, address?, route.header.destination_prefix_length))
}

/// A route of Natrix that shows the kernel and routing daemons that a prefix is served here: of a
/// pool, or of IPv6 hosts on their way to it.
pub fn announcement<P: Family>(table: u32, prefix: P) -> RouteMessage {
    let mut message = RouteMessage::default();
    let first = P::ip(prefix.first());
    message.header.address_family = family_of(first);
    message.header.destination_prefix_length = prefix.bits();
    // A table that does not fit is in its attribute only.
    message.header.table = u8::try_from(table).unwrap_or(0);
    message.header.protocol = RouteProtocol::from(PROTOCOL_NATRIX);
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::BlackHole;
    message.attributes.push(RouteAttribute::Destination(match first {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }));
    message.attributes.push(RouteAttribute::Table(table));
    message
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use nat::stand_in::Prefix6;
    use nat::types::Prefix;
    use netlink_packet_route::AddressFamily;
    use netlink_packet_route::route::RouteNextHop;
    use netlink_packet_route::route::RouteNextHopFlags;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::netlink::NEW_NEXT_HOP;
    use crate::kernel::netlink::TABLE_MAIN;
    use crate::kernel::netlink::tests::bytes_of;
    use crate::kernel::netlink::tests::gateway;
    use crate::kernel::netlink::tests::route;

    /// The route in a message as the library reads it.
    fn by_library(message: &RouteNetlinkMessage) -> Option<RouteNews<Prefix>> {
        let (route, is_there) = match message {
            RouteNetlinkMessage::NewRoute(route) => (route, true),
            RouteNetlinkMessage::DelRoute(route) => (route, false),
            _ => return None,
        };
        let RouteMessage { header, attributes, .. } = route;
        let protocol = u8::from(header.protocol);
        // Routes by type of service are of no use to a NAT, and its own routes are for others.
        if header.address_family != AddressFamily::Inet || header.tos != 0 || protocol == PROTOCOL_NATRIX {
            return None;
        }
        let drops = match header.kind {
            RouteType::Unicast => false,
            RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => true,
            _ => return None,
        };
        let mut news = RouteNews {
            is_there,
            replaces: false,
            is_appended: false,
            table: header.table.into(),
            prefix: Prefix::new(Ipv4Addr::UNSPECIFIED, header.destination_prefix_length)?,
            metric: 0,
            protocol,
            hops: Vec::new(),
            object: None,
        };
        let (mut device, mut gateway) = (None, 0);
        for attribute in attributes {
            match attribute {
                RouteAttribute::Table(table) => news.table = *table,
                RouteAttribute::Priority(metric) => news.metric = *metric,
                RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                    news.prefix = Prefix::new(*address, header.destination_prefix_length)?;
                }
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = address.to_bits(),
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops.iter().filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead)) {
                        let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                            RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(address.to_bits()),
                            _ => None,
                        });
                        // The kernel's numbers begin at 0.
                        news.hops.push((hop.interface_index, gateway.unwrap_or(0), u16::from(hop.hops) + 1));
                    }
                }
                _ => {}
            }
        }
        if let Some(device) = device.filter(|_| news.hops.is_empty()) {
            news.hops.push((device, gateway, 1));
        }
        match drops {
            true => news.hops.clear(),
            // By a device of IPv6, or by nothing.
            false if news.hops.is_empty() && is_there => return None,
            false => {}
        }
        Some(news)
    }

    /// As the kernel sends it.
    fn news(message: RouteNetlinkMessage) -> Option<RouteNews<Prefix>> {
        let by_library = by_library(&message);
        let read = route_news(&bytes_of(message), &NextHopObjects::default());
        assert_eq!(read, by_library);
        read
    }

    proptest! {
        #[test]
        fn routes_are_read_as_the_library_reads_them(
            (is_new, kind, protocol, service, length) in (any::<bool>(), 0_u8..12, any::<u8>(), 0_u8..2, 0_u8..40),
            (metric, table) in (option::of(any::<u32>()), option::of(any::<u32>())),
            (device, via) in (option::of(any::<u32>()), option::of(any::<u8>())),
            several in option::of(vec((any::<u32>(), any::<u8>(), any::<bool>(), option::of(any::<u8>())), 0..5)),
        ) {
            let mut message = RouteMessage::default();
            message.header.address_family = AddressFamily::Inet;
            message.header.destination_prefix_length = length;
            message.header.tos = service;
            message.header.table = TABLE_MAIN as u8;
            message.header.protocol = protocol.into();
            message.header.kind = kind.into();
            let hops = several.map(|several| {
                let hop = |(device, weight, is_dead, via): (u32, u8, bool, Option<u8>)| {
                    let mut hop = RouteNextHop::default();
                    (hop.interface_index, hop.hops) = (device, weight);
                    hop.flags = if is_dead { RouteNextHopFlags::Dead } else { RouteNextHopFlags::empty() };
                    hop.attributes = via.map(gateway).into_iter().collect();
                    hop
                };
                RouteAttribute::MultiPath(several.into_iter().map(hop).collect())
            });
            let given = [
                Some(RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(198, 51, 100, 0)))),
                metric.map(RouteAttribute::Priority),
                table.map(RouteAttribute::Table),
                device.map(RouteAttribute::Oif),
                via.map(gateway),
                hops,
            ];
            message.attributes = given.into_iter().flatten().collect();
            news(if is_new { RouteNetlinkMessage::NewRoute(message) } else { RouteNetlinkMessage::DelRoute(message) });
        }

        #[test]
        fn any_bytes_parse_as_a_route_or_are_ignored(bytes in vec(any::<u8>(), 0..120), kind in 24_u16..26) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(4..6) {
                place.copy_from_slice(&kind.to_ne_bytes());
            }
            // A family, so that more than the first look happens.
            for family in [FAMILY_IPV4, FAMILY_IPV6] {
                if let Some(place) = bytes.get_mut(HEADER) {
                    *place = family;
                }
                if let Some(news) = route_news::<Prefix>(&bytes, &NextHopObjects::default()) {
                    prop_assert!(news.prefix.length() <= 32 && news.hops.len() <= 1 + bytes.len() / 8);
                }
                if let Some(news) = route_news::<Prefix6>(&bytes, &NextHopObjects::default()) {
                    prop_assert!(news.prefix.length() <= 128 && news.hops.len() <= 1 + bytes.len() / 8);
                }
            }
        }
    }

    #[test]
    fn next_hops_of_a_route_are_read() {
        let one = route(RouteType::Unicast, vec![RouteAttribute::Oif(7), gateway(1), RouteAttribute::Priority(20)]);
        let read = news(one).unwrap();
        assert_eq!((read.metric, read.protocol, read.table), (20, 186, 254));
        assert_eq!(read.hops, [(7, 0xc000_0201, 1)]);
        let hop = |interface_index, hops, last| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.hops, hop.attributes) = (interface_index, hops, vec![gateway(last)]);
            hop
        };
        let several = RouteAttribute::MultiPath(vec![hop(7, 0, 1), hop(8, 2, 2)]);
        let read = news(route(RouteType::Unicast, vec![several])).unwrap();
        assert_eq!(read.hops, [(7, 0xc000_0201, 1), (8, 0xc000_0202, 3)]);
    }

    fn address6(text: &str) -> u128 {
        text.parse::<core::net::Ipv6Addr>().unwrap().to_bits()
    }

    fn route6(attributes: Vec<RouteAttribute>) -> Vec<u8> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.destination_prefix_length = 56;
        message.header.table = TABLE_MAIN as u8;
        message.header.protocol = RouteProtocol::Ospf;
        message.header.kind = RouteType::Unicast;
        message.attributes = attributes;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet6("2001:db8:1:2300::".parse().unwrap())));
        bytes_of(RouteNetlinkMessage::NewRoute(message))
    }

    #[test]
    fn routes_of_ipv6_are_read_with_link_local_routers() {
        let gateway = |text: &str| RouteAttribute::Gateway(RouteAddress::Inet6(text.parse().unwrap()));
        let one = route6(vec![RouteAttribute::Oif(7), gateway("fe80::1"), RouteAttribute::Priority(20)]);
        let read = route_news::<Prefix6>(&one, &NextHopObjects::default()).unwrap();
        assert_eq!((read.metric, read.protocol, read.table), (20, 188, 254));
        assert_eq!(read.prefix.to_string(), "2001:db8:1:2300::/56");
        assert_eq!(read.hops, [(7, address6("fe80::1"), 1)]);
        assert_eq!(route_news::<Prefix>(&one, &NextHopObjects::default()), None, "it is of the other family");
        let hop = |interface_index, hops, text| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.hops, hop.attributes) = (interface_index, hops, vec![gateway(text)]);
            hop
        };
        let several = RouteAttribute::MultiPath(vec![hop(7, 0, "fe80::1"), hop(8, 2, "2001:db8::2")]);
        let read = route_news::<Prefix6>(&route6(vec![several]), &NextHopObjects::default()).unwrap();
        assert_eq!(read.hops, [(7, address6("fe80::1"), 1), (8, address6("2001:db8::2"), 3)]);
    }

    #[test]
    fn a_router_of_the_other_family_is_no_next_hop() {
        let via = RouteAttribute::Via(netlink_packet_route::route::RouteVia::Inet6("fe80::1".parse().unwrap()));
        let message = route(RouteType::Unicast, vec![RouteAttribute::Oif(7), via]);
        assert_eq!(route_news::<Prefix>(&bytes_of(message), &NextHopObjects::default()), None);
    }

    #[test]
    fn routes_that_no_packet_can_take_are_left_out() {
        assert_eq!(news(route(RouteType::Local, vec![RouteAttribute::Oif(7)])), None);
        assert_eq!(news(route(RouteType::Unicast, Vec::new())), None);
        assert_eq!(news(route(RouteType::BlackHole, Vec::new())).unwrap().hops, []);
        let own = announcement(TABLE_MAIN, Prefix::host(Ipv4Addr::new(203, 0, 113, 1)));
        assert_eq!(news(RouteNetlinkMessage::NewRoute(own)), None);
    }

    #[test]
    fn a_route_that_names_its_next_hop_has_those_of_the_object() {
        let mut objects = NextHopObjects::default();
        let mut message = bytes_of(route(RouteType::Unicast, Vec::new()));
        let named = [&8_u16.to_ne_bytes()[..], &OBJECT.to_ne_bytes(), &6_u32.to_ne_bytes()].concat();
        message.extend_from_slice(&named);
        assert_eq!(object_of_route(&message), Some(6));
        assert_eq!(route_news::<Prefix>(&message, &objects), None, "it is not known yet");
        // Number 6: by device 3.
        let mut object = vec![0; HEADER + 8];
        object[4..6].copy_from_slice(&NEW_NEXT_HOP.to_ne_bytes());
        for (kind, value) in [(1_u16, 6_u32), (5, 3)] {
            object.extend([&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat());
        }
        assert!(objects.take_in(&object));
        let read = route_news::<Prefix>(&message, &objects).unwrap();
        assert_eq!((read.hops, read.object), (vec![(3, 0, 1)], Some(6)));
        assert_eq!(object_of_route(&object), None, "no route");
    }

    #[test]
    fn own_routes_that_go_are_noticed() {
        let own = || announcement(TABLE_MAIN, Prefix::host(Ipv4Addr::new(203, 0, 113, 1)));
        assert!(is_own_route_gone(&bytes_of(RouteNetlinkMessage::DelRoute(own()))));
        assert!(!is_own_route_gone(&bytes_of(RouteNetlinkMessage::NewRoute(own()))));
        let RouteNetlinkMessage::NewRoute(other) = route(RouteType::Unicast, vec![gateway(1)]) else { return };
        assert!(!is_own_route_gone(&bytes_of(RouteNetlinkMessage::DelRoute(other))));
    }
}
