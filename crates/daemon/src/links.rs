//! Which logical interface is on which port and VLAN, and the Ethernet header of what leaves by it.

use nat::types::InterfaceId;
use packet_io::PortIndex;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::TAGGED_HEADER_LENGTH;
use wire::ethernet::VlanTag;

const VLANS: usize = 4096;
const NO_INTERFACE: u16 = u16::MAX;

/// Where a logical interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceLink {
    /// The port its frames go through.
    pub port: PortIndex,
    /// Its 802.1Q VLAN (1 to 4094); None: untagged.
    pub vlan: Option<u16>,
}

/// All logical interfaces and how their frames look. The same for every worker.
#[derive(Clone, Debug)]
pub struct Links {
    interfaces: Vec<InterfaceLink>,
    stations: Vec<MacAddress>,
    /// Interface by port and VLAN; VLAN 0 stands for "untagged".
    by_vlan: Vec<Vec<u16>>,
}

impl Links {
    /// `interfaces` in the order of `nat::Settings::interfaces`; `stations` are the ports' own addresses.
    pub fn new(interfaces: Vec<InterfaceLink>, stations: Vec<MacAddress>) -> Links {
        let mut by_vlan: Vec<Vec<u16>> = stations.iter().map(|_| vec![NO_INTERFACE; VLANS]).collect();
        for (index, link) in interfaces.iter().enumerate() {
            let vlan = link.vlan.unwrap_or(0) as usize;
            let place = by_vlan.get_mut(link.port.index()).and_then(|vlans| vlans.get_mut(vlan));
            // Where two have the same place, as a capture of several ports may, frames belong to the first.
            if let Some(place) = place.filter(|place| **place == NO_INTERFACE) {
                *place = index as u16;
            }
        }
        Links { interfaces, stations, by_vlan }
    }

    /// Logical interfaces there are.
    pub fn interface_count(&self) -> usize {
        self.interfaces.len()
    }

    /// Ports there are.
    pub fn port_count(&self) -> usize {
        self.stations.len()
    }

    /// The interface of frames with this tag on this port. A tag with VLAN 0 carries a priority only (IEEE 802.1Q
    /// §6.9), so the frame counts as untagged.
    #[inline]
    pub fn interface(&self, port: PortIndex, tag: Option<VlanTag>) -> Option<InterfaceId> {
        let vlan = tag.map_or(0, |tag| tag.id);
        let interface = *self.by_vlan.get(port.index())?.get(vlan as usize)?;
        (interface != NO_INTERFACE).then_some(InterfaceId(interface))
    }

    /// Where an interface is.
    #[inline]
    pub fn link(&self, interface: InterfaceId) -> Option<InterfaceLink> {
        self.interfaces.get(interface.index()).copied()
    }

    /// A port's own address.
    #[inline]
    pub fn station(&self, port: PortIndex) -> MacAddress {
        self.stations.get(port.index()).copied().unwrap_or_default()
    }

    /// Bytes of the Ethernet header of frames that leave by `link`.
    #[inline]
    pub fn header_length(link: InterfaceLink) -> usize {
        if link.vlan.is_some() { TAGGED_HEADER_LENGTH } else { HEADER_LENGTH }
    }

    /// The Ethernet header of frames to `destination` by `link`.
    #[inline]
    pub fn header(&self, link: InterfaceLink, destination: MacAddress, ether_type: u16) -> LinkHeader {
        let vlan = link.vlan.map(VlanTag::new);
        LinkHeader { destination, source: self.station(link.port), vlan, ether_type }
    }
}
