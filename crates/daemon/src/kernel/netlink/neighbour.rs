//! Neighbours in messages.

use core::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::NeighbourAddress;
use netlink_packet_route::neighbour::NeighbourAttribute;
use netlink_packet_route::neighbour::NeighbourFlags;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::neighbour::NeighbourState;
use wire::ethernet::MacAddress;
use wire::ipv6;

use crate::kernel::netlink::family_of;

/// A neighbour as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourNews {
    /// Its device.
    pub device: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address; None: it did not answer, or is forgotten.
    pub station: Option<MacAddress>,
    /// It has answered just now, or an operator says that it is there.
    pub is_confirmed: bool,
    /// The kernel still asks and has no answer yet.
    pub is_asked: bool,
    /// An operator has set it; the kernel never asks for it.
    pub is_fixed: bool,
    /// The kernel forgot it though it had answered: its table is full, or no program asked for a
    /// while.
    pub is_collected: bool,
}

/// The neighbour in a message.
pub fn neighbour_news(message: &RouteNetlinkMessage) -> Option<NeighbourNews> {
    let (neighbour, is_there) = match message {
        RouteNetlinkMessage::NewNeighbour(neighbour) => (neighbour, true),
        RouteNetlinkMessage::DelNeighbour(neighbour) => (neighbour, false),
        _ => return None,
    };
    let NeighbourMessage { header, attributes, .. } = neighbour;
    let address = attributes.iter().find_map(|attribute| match (header.family, attribute) {
        (AddressFamily::Inet, NeighbourAttribute::Destination(NeighbourAddress::Inet(address))) => {
            Some(IpAddr::V4(*address))
        }
        (AddressFamily::Inet6, NeighbourAttribute::Destination(NeighbourAddress::Inet6(address))) => {
            // Stations of groups follow from their addresses.
            Some(IpAddr::V6(*address)).filter(|_| !ipv6::is_multicast(address.to_bits()))
        }
        _ => None,
    })?;
    let station = attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLocalAddress(bytes) => bytes.as_slice().try_into().ok().map(MacAddress),
        _ => None,
    });
    let is_known = matches!(
        header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let is_fixed = is_there && matches!(header.state, NeighbourState::Permanent | NeighbourState::Noarp);
    let is_confirmed = is_fixed || is_there && header.state == NeighbourState::Reachable;
    let is_asked = is_there && matches!(header.state, NeighbourState::Incomplete | NeighbourState::None);
    let station = station.filter(|_| is_there && is_known);
    let is_collected = !is_there && is_known;
    Some(NeighbourNews { device: header.ifindex, address, station, is_confirmed, is_asked, is_fixed, is_collected })
}

/// Asks the kernel to resolve a neighbour. Since Linux 5.16 this makes an ordinary entry of a
/// permanent one, so it is only safe with `NLM_F_EXCL`.
pub fn resolve(device: u32, address: IpAddr) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address);
    message.header.ifindex = device;
    message.header.state = NeighbourState::None;
    message.header.flags = NeighbourFlags::Use;
    message.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }));
    RouteNetlinkMessage::NewNeighbour(message)
}

/// Asks for all neighbours of both families.
pub fn all_neighbours() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default())
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn neighbours_of_both_families_are_read() {
        let station = MacAddress([2, 0, 0, 0, 0, 9]);
        for address in ["192.0.2.9", "2001:db8::9", "fe80::9"] {
            let address: IpAddr = address.parse().unwrap();
            let RouteNetlinkMessage::NewNeighbour(mut message) = resolve(7, address) else { panic!("a neighbour") };
            message.header.state = NeighbourState::Reachable;
            message.attributes.push(NeighbourAttribute::LinkLocalAddress(station.0.to_vec()));
            let read = neighbour_news(&RouteNetlinkMessage::NewNeighbour(message)).unwrap();
            assert_eq!((read.device, read.address, read.station), (7, address, Some(station)));
            assert!(read.is_confirmed && !read.is_fixed);
        }
        let RouteNetlinkMessage::NewNeighbour(mut stale) = resolve(7, Ipv4Addr::new(192, 0, 2, 9).into()) else {
            return;
        };
        stale.header.state = NeighbourState::Stale;
        assert!(!neighbour_news(&RouteNetlinkMessage::NewNeighbour(stale)).unwrap().is_confirmed);
        assert_eq!(neighbour_news(&resolve(7, "ff02::1".parse().unwrap())), None, "a group is no neighbour");
    }

    #[test]
    fn a_neighbour_that_an_operator_has_set_is_fixed() {
        let RouteNetlinkMessage::NewNeighbour(mut message) = resolve(7, Ipv4Addr::new(192, 0, 2, 9).into()) else {
            panic!("a neighbour")
        };
        for state in [NeighbourState::Permanent, NeighbourState::Noarp] {
            message.header.state = state;
            let read = neighbour_news(&RouteNetlinkMessage::NewNeighbour(message.clone())).unwrap();
            assert!(read.is_fixed && read.is_confirmed, "{state:?}");
            assert!(!neighbour_news(&RouteNetlinkMessage::DelNeighbour(message.clone())).unwrap().is_fixed);
        }
    }

    #[test]
    fn a_deleted_neighbour_differs_from_a_failed_one() {
        let RouteNetlinkMessage::NewNeighbour(mut message) = resolve(7, Ipv4Addr::new(192, 0, 2, 9).into()) else {
            panic!("a neighbour")
        };
        let mut collected = |state| {
            message.header.state = state;
            neighbour_news(&RouteNetlinkMessage::DelNeighbour(message.clone())).unwrap().is_collected
        };
        assert!(collected(NeighbourState::Stale));
        assert!(!collected(NeighbourState::Failed));
    }
}
