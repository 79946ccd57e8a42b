//! Devices in messages: links, addresses and settings.

use core::net::IpAddr;

use netlink_packet_core::DefaultNla;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::address::AddressHeaderFlags;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::AfSpecInet;
use netlink_packet_route::link::AfSpecUnspec;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkMessage;
use wire::ethernet::MacAddress;

use crate::kernel::netlink::PROTOCOL_NATRIX;
use crate::kernel::netlink::family_of;

/// Attribute of an address (IFA_PROTO, `linux/if_addr.h`).
const SET_BY: u16 = 11;
/// Settings of IPv4 of a device (IFLA_INET_CONF), and two of them.
const INET_SETTINGS: u16 = 1;
const ARP_ANNOUNCE: u16 = 18;
const ARP_IGNORE: u16 = 19;

/// Asks for all links.
pub fn all_links() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(LinkMessage::default())
}

/// The name of a device that is there and has no link.
pub fn without_link(message: &RouteNetlinkMessage) -> Option<String> {
    let RouteNetlinkMessage::NewLink(link) = message else { return None };
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    name.filter(|_| !link.header.flags.contains(LinkFlags::Running))
}

/// Asks for all addresses of both families.
pub fn all_addresses() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// An address of a device, the length of its prefix, and whether Natrix set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// Its device.
    pub device: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix.
    pub prefix_length: u8,
    /// Natrix set it. Kernels before 5.18 do not remember this.
    pub is_of_natrix: bool,
    /// Whether it can be used.
    pub check: AddressCheck,
}

/// What the kernel has found out about an address of IPv6: whether another station has it (RFC 4862
/// §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressCheck {
    /// Nobody else has it.
    Done,
    /// It is being found out.
    UnderWay,
    /// Another station has it. The kernel does not use it and does not ask again.
    Failed,
}

/// The address in a message about one that is there.
pub fn device_address(message: &RouteNetlinkMessage) -> Option<DeviceAddress> {
    let RouteNetlinkMessage::NewAddress(AddressMessage { header, attributes, .. }) = message else { return None };
    // On links between two ends, the other attribute is the far end.
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let only = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    let of_natrix = AddressAttribute::Other(DefaultNla::new(SET_BY, vec![PROTOCOL_NATRIX]));
    Some(DeviceAddress {
        device: header.index,
        address: local.or(only)?,
        prefix_length: header.prefix_len,
        is_of_natrix: attributes.contains(&of_natrix),
        check: match header.flags {
            flags if flags.contains(AddressHeaderFlags::Dadfailed) => AddressCheck::Failed,
            flags if flags.contains(AddressHeaderFlags::Tentative) => AddressCheck::UnderWay,
            _ => AddressCheck::Done,
        },
    })
}

/// Has a device answer ARP for its own addresses only (`arp_ignore` 1), and ask with one of them
/// (`arp_announce` 2): other devices may be of other VRFs with the same addresses.
pub fn own_arp_only(device: u32) -> RouteNetlinkMessage {
    // Attributes of IFLA_INET_CONF: number of the setting (`linux/ip.h`) and value.
    let settings = [(ARP_IGNORE, 1_u32), (ARP_ANNOUNCE, 2)].map(|(setting, value)| {
        let mut attribute = [0; 8];
        let fields = [8_u16.to_ne_bytes(), setting.to_ne_bytes()].concat();
        for (place, byte) in attribute.iter_mut().zip(fields.into_iter().chain(value.to_ne_bytes())) {
            *place = byte;
        }
        attribute
    });
    let all = AfSpecInet::Other(DefaultNla::new(INET_SETTINGS, settings.concat()));
    let mut message = LinkMessage::default();
    message.header.index = device;
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![all])]));
    RouteNetlinkMessage::NewLink(message)
}

/// Gives a device a link-layer address.
pub fn station(device: u32, station: MacAddress) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = device;
    message.attributes.push(LinkAttribute::Address(station.0.to_vec()));
    RouteNetlinkMessage::NewLink(message)
}

/// An address for a device.
pub fn address(device: u32, address: IpAddr, prefix_length: u8) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(address);
    message.header.prefix_len = prefix_length;
    message.header.index = device;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    if let IpAddr::V4(address) = address
        && prefix_length < 31
    {
        let host = u32::MAX.checked_shr(prefix_length.into()).unwrap_or(0);
        message.attributes.push(AddressAttribute::Broadcast((address.to_bits() | host).into()));
    }
    message.attributes.push(AddressAttribute::Other(DefaultNla::new(SET_BY, vec![PROTOCOL_NATRIX])));
    RouteNetlinkMessage::NewAddress(message)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use netlink_packet_core::NetlinkPayload;

    use super::*;
    use crate::kernel::netlink::message::HEADER;
    use crate::kernel::netlink::message::attributes;
    use crate::kernel::netlink::message::read_messages;
    use crate::kernel::netlink::message::word;
    use crate::kernel::netlink::tests::bytes_of;

    #[test]
    fn settings_of_arp_have_the_form_of_the_kernel() {
        let bytes = bytes_of(own_arp_only(7));
        let nested = attributes(&bytes[HEADER + 16..]).next().unwrap();
        // IFLA_AF_SPEC, AF_INET, IFLA_INET_CONF.
        assert_eq!(nested.0, 26);
        let (family, inet) = attributes(nested.1).next().unwrap();
        let (settings, all) = attributes(inet).next().unwrap();
        assert_eq!((family, settings), (2, 1));
        let all: Vec<(u16, u32)> = attributes(all).map(|(kind, value)| (kind, word(value, 0))).collect();
        assert_eq!(all, [(19, 1), (18, 2)]);
    }

    #[test]
    fn addresses_of_natrix_are_told_from_those_of_others() {
        let of_natrix = address(7, Ipv4Addr::new(192, 0, 2, 9).into(), 24);
        let read = |message: &RouteNetlinkMessage| {
            let mut found = None;
            read_messages(&bytes_of(message.clone()), |_, payload| {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    found = device_address(&message);
                }
            });
            found.unwrap()
        };
        let found = read(&of_natrix);
        assert_eq!((found.device, found.prefix_length, found.is_of_natrix), (7, 24, true));
        assert_eq!(found.address, Ipv4Addr::new(192, 0, 2, 9));
        let RouteNetlinkMessage::NewAddress(mut other) = of_natrix else { return };
        other.attributes.pop();
        assert!(!read(&RouteNetlinkMessage::NewAddress(other.clone())).is_of_natrix);
        for (flags, check) in [
            (AddressHeaderFlags::Tentative, AddressCheck::UnderWay),
            (AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed, AddressCheck::Failed),
            (AddressHeaderFlags::Permanent, AddressCheck::Done),
        ] {
            other.header.flags = flags;
            assert_eq!(read(&RouteNetlinkMessage::NewAddress(other.clone())).check, check);
        }
    }
}
