//! The kernel's devices: which interface each is, the table of its routes, its link and addresses.

use core::net::IpAddr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use nat::Settings;
use nat::types::InterfaceId;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::InfoData;
use netlink_packet_route::link::InfoVrf;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkInfo;

use super::Follower;
use crate::kernel::netlink;

impl Follower {
    /// Which interface each device is, and which table of the kernel its routes are in: that of the
    /// configuration, else that of its VRF device, else the main one.
    pub(super) fn read_links(&mut self) {
        let (mut masters, mut tables, mut without_link) = (HashMap::new(), HashMap::new(), HashSet::new());
        let read = self.socket.dump(netlink::all_links(), |message| {
            let RouteNetlinkMessage::NewLink(link) = message else { return };
            for attribute in &link.attributes {
                match attribute {
                    LinkAttribute::IfName(name) if !link.header.flags.contains(LinkFlags::Running) => {
                        without_link.insert(name.clone());
                    }
                    LinkAttribute::Controller(master) => {
                        masters.insert(link.header.index, *master);
                    }
                    LinkAttribute::LinkInfo(infos) => {
                        for info in infos {
                            if let LinkInfo::Data(InfoData::Vrf(vrf)) = info {
                                let table = vrf.iter().find_map(|info| match info {
                                    InfoVrf::TableId(table) => Some(*table),
                                    _ => None,
                                });
                                tables.extend(table.map(|table| (link.header.index, table)));
                            }
                        }
                    }
                    _ => {}
                }
            }
        });
        if read.is_err() {
            return;
        }
        self.without_link = without_link;
        let table_of = |device: &u32| masters.get(device).and_then(|master| tables.get(master)).copied();
        self.interface_of = self
            .devices
            .interfaces
            .iter()
            .map(|(interface, device)| {
                let configured = self.devices.tables.get(interface).copied();
                let table = configured.or_else(|| table_of(device)).unwrap_or(netlink::TABLE_MAIN);
                (*device, (*interface, table))
            })
            .collect();
    }

    /// The kernel sends the addresses of its devices to all listeners again. Routing daemons that
    /// hear of links and addresses in different threads (FRR 8.4) lose the address of a new
    /// device that they do not know yet.
    pub(super) fn repeat_addresses(&mut self) {
        let shared = Arc::clone(&self.settings_of);
        for (interface, device) in &self.devices.interfaces {
            for (address, prefix_length) in addresses_of(shared.settings(), *interface) {
                // The device may have been removed by hand.
                let _ = self.socket.request(netlink::address(*device, address, prefix_length), NLM_F_REPLACE);
            }
        }
    }
}

/// The own addresses of an interface, with the lengths of their prefixes.
pub(crate) fn addresses_of(settings: &Settings, interface: InterfaceId) -> Vec<(IpAddr, u8)> {
    let own = settings.interfaces.get(interface.index()).into_iter().flat_map(|interface| &interface.addresses);
    let own6 = settings.ipv6.addresses.iter().filter(|own| own.interface == interface);
    own.map(|own| (own.address.into(), own.prefix_length))
        .chain(own6.map(|own| (own.address.into(), own.prefix_length)))
        .collect()
}
