//! Devices in messages: links, addresses and settings.

use core::net::IpAddr;

use netlink_packet_core::DefaultNla;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::address::AddressHeaderFlags;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::AfSpecInet;
use netlink_packet_route::link::AfSpecUnspec;
use netlink_packet_route::link::InfoKind;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkInfo;
use netlink_packet_route::link::LinkMessage;
use wire::ethernet::MacAddress;

use crate::kernel::netlink::HEADER;
use crate::kernel::netlink::PROTOCOL_NATRIX;
use crate::kernel::netlink::family_of;
use crate::kernel::netlink::half;
use crate::kernel::netlink::word;

/// Kinds of messages (`linux/rtnetlink.h`).
const NEW_LINK: u16 = 16;
const DELETED_LINK: u16 = 17;
const DELETED_ADDRESS: u16 = 21;
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

/// A device that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLink {
    /// The kernel's number of it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// It has link.
    pub is_running: bool,
    /// The device that it is on top of, such as the port of a VLAN.
    pub lower: Option<u32>,
    /// The device that it is a part of, such as a bridge.
    pub master: Option<u32>,
    /// It is a VRF.
    pub is_vrf: bool,
}

/// The device in a message about one that is there.
pub fn device_link(message: &RouteNetlinkMessage) -> Option<DeviceLink> {
    let RouteNetlinkMessage::NewLink(link) = message else { return None };
    let mut found = DeviceLink {
        index: link.header.index,
        is_running: link.header.flags.contains(LinkFlags::Running),
        ..DeviceLink::default()
    };
    let (mut is_pair, mut is_elsewhere) = (false, false);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name.clone_from(name),
            LinkAttribute::Link(lower) => found.lower = Some(*lower),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::Controller(master) => found.master = Some(*master),
            LinkAttribute::LinkInfo(infos) => {
                is_pair |= infos.contains(&LinkInfo::Kind(InfoKind::Veth));
                found.is_vrf |= infos.contains(&LinkInfo::Kind(InfoKind::Vrf));
            }
            _ => {}
        }
    }
    // Of a pair, it is the other end; of others, a device of another network namespace.
    found.lower = found.lower.filter(|_| !is_pair && !is_elsewhere);
    Some(found)
}

/// The number of the device that a message about a link or an address names.
pub fn device_of(message: &[u8]) -> Option<u32> {
    // `struct ifinfomsg` and `struct ifaddrmsg` have it at the same place.
    let is_known = (NEW_LINK..=DELETED_ADDRESS).contains(&half(message, 4));
    (is_known && message.len() >= HEADER + 8).then(|| word(message, HEADER + 4))
}

/// The number of a device that is gone.
pub fn removed_device(message: &[u8]) -> Option<u32> {
    // A bridge also reports a port that leaves it so, with its own family.
    let is_gone = half(message, 4) == DELETED_LINK && message.get(HEADER) == Some(&0);
    device_of(message).filter(|_| is_gone)
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
    /// No other station has it.
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
    fn stacked_devices_differ_from_ends_of_pairs() {
        let read = |attributes: &[LinkAttribute]| {
            let mut message = LinkMessage::default();
            message.header.index = 7;
            message.attributes.push(LinkAttribute::IfName("mv0".to_owned()));
            message.attributes.extend_from_slice(attributes);
            let mut found = None;
            read_messages(&bytes_of(RouteNetlinkMessage::NewLink(message)), |_, payload| {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    found = device_link(&message);
                }
            });
            found.unwrap()
        };
        let kind = |kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
        let plain = DeviceLink { index: 7, name: "mv0".to_owned(), ..DeviceLink::default() };
        let on_top = DeviceLink { lower: Some(3), ..plain.clone() };
        assert_eq!(read(&[LinkAttribute::Link(3), kind(InfoKind::MacVlan)]), on_top);
        assert_eq!(read(&[LinkAttribute::Link(3), kind(InfoKind::Veth)]), plain, "the other end");
        assert_eq!(read(&[LinkAttribute::Link(3), LinkAttribute::LinkNetNsId(0)]), plain, "another namespace");
        let in_vrf = DeviceLink { master: Some(9), ..plain.clone() };
        assert_eq!(read(&[LinkAttribute::Controller(9)]), in_vrf);
        assert_eq!(read(&[kind(InfoKind::Vrf)]), DeviceLink { is_vrf: true, ..plain });
    }

    #[test]
    fn the_device_of_a_message_is_found() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        let of_link = bytes_of(RouteNetlinkMessage::NewLink(link.clone()));
        assert_eq!((device_of(&of_link), removed_device(&of_link)), (Some(7), None));
        let gone = bytes_of(RouteNetlinkMessage::DelLink(link.clone()));
        assert_eq!((device_of(&gone), removed_device(&gone)), (Some(7), Some(7)));
        link.header.interface_family = netlink_packet_route::AddressFamily::Bridge;
        let left = bytes_of(RouteNetlinkMessage::DelLink(link));
        assert_eq!((device_of(&left), removed_device(&left)), (Some(7), None), "it only left its bridge");
        let of_address = bytes_of(address(8, Ipv4Addr::new(192, 0, 2, 9).into(), 24));
        assert_eq!(device_of(&of_address), Some(8));
        assert_eq!(device_of(&of_address[..20]), None, "cut off");
    }

    #[test]
    fn addresses_of_natrix_differ_from_other_addresses() {
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
