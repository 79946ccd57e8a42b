//! The port and VLAN of each logical interface, and the Ethernet header of its frames.

use nat::types::InterfaceId;
use packet_io::PortIndex;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::VlanTag;

const VLANS: usize = 4096;
const NO_INTERFACE: u16 = u16::MAX;

/// Place of a logical interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceLink {
    /// Port of its frames.
    pub port: PortIndex,
    /// Its 802.1Q VLAN (1 to 4094); None: untagged.
    pub vlan: Option<u16>,
}

/// All logical interfaces and their frames. The same for every worker.
#[derive(Clone, Debug)]
pub struct Links {
    interfaces: Vec<InterfaceLink>,
    stations: Vec<MacAddress>,
    /// Interface by port and VLAN; VLAN 0 stands for "untagged".
    by_vlan: Vec<Vec<u16>>,
}

/// Recognises untagged IPv4 packets to a port's own station.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The station as the first six bytes of a frame, then zeros.
    station: u64,
    interface: InterfaceId,
}

impl Gate {
    /// The interface of untagged frames.
    #[inline(always)]
    pub fn interface(&self) -> InterfaceId {
        self.interface
    }

    /// True for such a frame.
    #[inline(always)]
    pub fn is_plain(&self, frame: &[u8]) -> bool {
        let Some(header) = frame.first_chunk::<HEADER_LENGTH>() else { return false };
        let [a, b, c, d, e, f, ..] = *header;
        (u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]) == self.station)
            & ([header[12], header[13]] == ETHER_TYPE_IPV4.to_be_bytes())
    }
}

impl Links {
    /// `interfaces` in the order of `nat::Settings::interfaces`; `stations` are the ports' own
    /// addresses.
    pub fn new(interfaces: Vec<InterfaceLink>, stations: Vec<MacAddress>) -> Links {
        let mut by_vlan: Vec<Vec<u16>> = stations.iter().map(|_| vec![NO_INTERFACE; VLANS]).collect();
        for (index, link) in interfaces.iter().enumerate() {
            let vlan = link.vlan.unwrap_or(0) as usize;
            let place = by_vlan.get_mut(link.port.index()).and_then(|vlans| vlans.get_mut(vlan));
            // If two have the same place, as in a capture of several ports, frames belong to the
            // first.
            if let Some(place) = place.filter(|place| **place == NO_INTERFACE) {
                *place = index as u16;
            }
        }
        Links { interfaces, stations, by_vlan }
    }

    /// Number of logical interfaces.
    pub fn interface_count(&self) -> usize {
        self.interfaces.len()
    }

    /// Number of ports.
    pub fn port_count(&self) -> usize {
        self.stations.len()
    }

    /// The interface of frames with this tag on this port. A tag with VLAN 0 carries only a
    /// priority (IEEE 802.1Q §6.9), so the frame counts as untagged.
    #[inline]
    pub fn interface(&self, port: PortIndex, tag: Option<VlanTag>) -> Option<InterfaceId> {
        let vlan = tag.map_or(0, |tag| tag.id);
        let interface = *self.by_vlan.get(port.index())?.get(vlan as usize)?;
        (interface != NO_INTERFACE).then_some(InterfaceId(interface))
    }

    /// The form of most frames received on a port; None if all have a tag.
    #[inline]
    pub fn gate(&self, port: PortIndex) -> Option<Gate> {
        let [a, b, c, d, e, f] = self.station(port).0;
        let interface = self.interface(port, None)?;
        Some(Gate { station: u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]), interface })
    }

    /// Place of an interface.
    #[inline]
    pub fn link(&self, interface: InterfaceId) -> Option<InterfaceLink> {
        self.interfaces.get(interface.index()).copied()
    }

    /// A port's own address.
    #[inline]
    pub fn station(&self, port: PortIndex) -> MacAddress {
        self.stations.get(port.index()).copied().unwrap_or_default()
    }

    /// The Ethernet header of frames to `destination` by `link`.
    #[inline]
    pub fn header(&self, link: InterfaceLink, destination: MacAddress, ether_type: u16) -> LinkHeader {
        let vlan = link.vlan.map(VlanTag::new);
        LinkHeader { destination, source: self.station(link.port), vlan, ether_type }
    }
}
