//! The kernel's devices: which interface each is, the table of its routes, its link and addresses.

use core::fmt;
use core::net::IpAddr;
use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use nat::Settings;
use nat::types::AddressUse;
use nat::types::InterfaceId;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::InfoData;
use netlink_packet_route::link::InfoVrf;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkInfo;
use wire::ethernet::MacAddress;

use super::Follower;
use crate::instance::lock;
use crate::ipv6::OwnAddresses;
use crate::kernel::netlink;
use crate::kernel::netlink::AddressCheck;
use crate::kernel::netlink::DeviceAddress;

/// Time between two attempts to use an address that another station has.
const CHECK_INTERVAL: Duration = Duration::from_secs(9);

impl Follower {
    /// Which interface each device is, and which table of the kernel its routes are in: that of the
    /// configuration, else that of its VRF device, else the main one.
    pub(super) fn read_links(&mut self) {
        let (mut masters, mut tables, mut links) = (HashMap::new(), HashMap::new(), Vec::new());
        let (mut set_up, mut stations, mut mtus) = (HashSet::new(), HashMap::new(), HashMap::new());
        let read = self.socket.dump(netlink::all_links(), |message| {
            links.extend(netlink::device_link(&message));
            let RouteNetlinkMessage::NewLink(link) = message else { return };
            // Those that are there, and whether they are set up.
            set_up.insert((link.header.index, link.header.flags.contains(LinkFlags::Up)));
            for attribute in &link.attributes {
                match attribute {
                    LinkAttribute::Mtu(mtu) => {
                        mtus.insert(link.header.index, *mtu);
                    }
                    LinkAttribute::Address(station) => {
                        stations.insert(link.header.index, station.clone());
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
        self.seen.links = Some(links);
        self.reads_links = false;
        self.masters = self.devices.interfaces.iter().filter_map(|(_, own)| masters.get(own)).copied().collect();
        self.look_at_devices(&set_up, &mtus);
        self.check_addresses_again();
        self.put_back_stations(&stations);
        self.vrf_tables = masters.iter().filter_map(|(device, master)| Some((*device, *tables.get(master)?))).collect();
        let table_of = |device: &u32| self.vrf_tables.get(device).copied();
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

    /// Finds devices that were set down or deleted, or lost an address. The kernel then resolves no
    /// neighbours for Natrix, or no router finds it. A device whose MTU was changed still does all
    /// that Natrix needs.
    fn look_at_devices(&mut self, set_up: &HashSet<(u32, bool)>, mtus: &HashMap<u32, u32>) {
        let mut all = Vec::new();
        let read = self.socket.dump(netlink::all_addresses(), |message| all.extend(netlink::device_address(&message)));
        if read.is_err() {
            // With the next look.
            self.reads_links = true;
            return;
        }
        if let (Some(ingress), Some(links)) = (&self.devices.ingress, &self.seen.links) {
            lock(ingress).look(links, &all);
        }
        note_checks(&self.own, &self.devices.interfaces, &all);
        let has: HashMap<(u32, IpAddr, u8), AddressCheck> =
            all.iter().map(|found| ((found.device, found.address, found.prefix_length), found.check)).collect();
        let shared = Arc::clone(&self.settings_of);
        let before = core::mem::take(&mut self.faults);
        let fault = |interface: InterfaceId, device: u32| {
            let mut own = addresses_of(shared.settings(), interface).into_iter();
            let of_address = |(address, length): (IpAddr, u8)| {
                let twice = DeviceFault::Twice(address);
                match has.get(&(device, address, length)) {
                    None => Some(DeviceFault::Lacks(address)),
                    Some(AddressCheck::Failed) => Some(twice),
                    // It was there twice, and may still be.
                    Some(AddressCheck::UnderWay) => Some(twice).filter(|twice| before.get(&interface) == Some(twice)),
                    Some(AddressCheck::Done) => None,
                }
            };
            let of_mtu = || {
                let wanted = shared.settings().interfaces.get(interface.index())?.mtu.into();
                let seen = mtus.get(&device).copied().filter(|seen| *seen != wanted)?;
                Some(DeviceFault::Mtu { seen, wanted })
            };
            match (set_up.contains(&(device, true)), set_up.contains(&(device, false))) {
                (true, _) => own.find_map(of_address).or_else(of_mtu),
                (_, true) => Some(DeviceFault::Down),
                _ => Some(DeviceFault::Deleted),
            }
        };
        let all = self.devices.interfaces.iter().filter_map(|&(id, device)| Some((id, fault(id, device)?)));
        self.faults = all.collect();
        let own = self.devices.interfaces.iter().flat_map(|&(id, device)| {
            addresses_of(shared.settings(), id)
                .into_iter()
                .map(move |(address, length)| (id, (device, address, length)))
        });
        let duplicates = own.filter(|(_, address)| has.get(address) == Some(&AddressCheck::Failed));
        self.duplicates = duplicates.map(|(id, (_, address, _))| (id, address)).collect();
        for (interface, _) in &self.devices.interfaces {
            let (now, then) = (self.faults.get(interface), before.get(interface));
            if now == then {
                continue;
            }
            if then == Some(&DeviceFault::Down) {
                // The kernel took its IPv6 addresses away with it.
                self.looks = 0;
            }
            let name = shared.settings().interfaces.get(interface.index()).map_or("", |interface| &interface.name);
            match now {
                Some(fault) => self.log.warn(&format_args!("interface {name}: its kernel device {fault}")),
                None => self.log.info(&format_args!("interface {name}: its kernel device is correct again")),
            }
        }
    }

    /// Lets the kernel find out again whether other stations have addresses that they had.
    fn check_addresses_again(&mut self) {
        let now = Instant::now();
        if self.checked_at.is_some_and(|at| now.duration_since(at) < CHECK_INTERVAL) {
            return;
        }
        let shared = Arc::clone(&self.settings_of);
        for (interface, twice) in core::mem::take(&mut self.duplicates) {
            self.checked_at = Some(now);
            let device =
                self.devices.interfaces.iter().find(|(other, _)| *other == interface).map(|(_, device)| *device);
            let own = addresses_of(shared.settings(), interface).into_iter().find(|(address, _)| *address == twice);
            let (Some(device), Some((address, prefix_length))) = (device, own) else { continue };
            let message = netlink::address(device, address, prefix_length);
            if let RouteNetlinkMessage::NewAddress(old) = message.clone() {
                // It may be gone already.
                let _ = self.socket.request(RouteNetlinkMessage::DelAddress(old), 0);
            }
            // If it fails, the address is reported as missing.
            let _ = self.socket.request(message, NLM_F_CREATE);
        }
    }

    /// The link-layer address of a device was changed. The kernel would announce it, and the port
    /// receives no frames to it.
    fn put_back_stations(&mut self, found: &HashMap<u32, Vec<u8>>) {
        let shared = Arc::clone(&self.settings_of);
        for (interface, device) in &self.devices.interfaces {
            let Some(own) = self.devices.stations.get(device) else { continue };
            let Some(seen) = found.get(device).filter(|seen| ***seen != own.0) else { continue };
            let name = shared.settings().interfaces.get(interface.index()).map_or("", |interface| &interface.name);
            let seen = seen.as_slice().try_into().map_or_else(|_| "none".to_owned(), |six| MacAddress(six).to_string());
            match self.socket.request(netlink::station(*device, *own), 0) {
                Ok(()) => self.log.warn(&format_args!(
                    "interface {name}: its kernel device was given the address {seen}; put back to {own}, which the \
                     port has"
                )),
                Err(error) => self.log.warn(&format_args!(
                    "interface {name}: its kernel device has the address {seen}, and cannot have {own}: {error}; \
                     frames to it are lost"
                )),
            }
        }
    }

    /// The kernel sends the addresses of its devices to all listeners again. Routing daemons that
    /// hear of links and addresses in different threads (FRR 8.4) lose the address of a new
    /// device that they do not know yet. With `restores`, addresses that are not there come back.
    pub(super) fn repeat_addresses(&mut self, restores: bool) {
        let mut there = HashSet::new();
        let read = self.socket.dump(netlink::all_addresses(), |message| {
            let found = netlink::device_address(&message);
            there.extend(found.map(|found| (found.device, found.address, found.prefix_length)));
        });
        if read.is_err() {
            return;
        }
        let shared = Arc::clone(&self.settings_of);
        for (interface, device) in &self.devices.interfaces {
            for (address, prefix_length) in addresses_of(shared.settings(), *interface) {
                // The kernel would add an address that was removed.
                if restores || there.contains(&(*device, address, prefix_length)) {
                    // The device may have been removed by hand.
                    let _ = self.socket.request(netlink::address(*device, address, prefix_length), NLM_F_REPLACE);
                }
            }
        }
    }
}

/// Passes on what the kernel has found out about own IPv6 addresses of its devices. While it tries
/// one again that another station had, that station may still have it. An address that was removed
/// from its device is in use, because the kernel has found no other station.
fn note_checks(own: &OwnAddresses, devices: &[(InterfaceId, u32)], found: &[DeviceAddress]) {
    for (interface, device) in devices {
        for own_address in own.of(*interface) {
            let address = IpAddr::from(Ipv6Addr::from_bits(own_address.address));
            let found = found.iter().find(|found| (found.device, found.address) == (*device, address));
            let now = match found.map(|found| found.check) {
                Some(AddressCheck::Failed) => AddressUse::Duplicate,
                Some(AddressCheck::UnderWay) | None if own_address.now() == AddressUse::Duplicate => continue,
                Some(AddressCheck::UnderWay) => AddressUse::Tentative,
                Some(AddressCheck::Done) | None => AddressUse::Preferred,
            };
            own.set(*interface, own_address.address, now);
        }
    }
}

/// What is wrong with a device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceFault {
    Down,
    Deleted,
    Lacks(IpAddr),
    Twice(IpAddr),
    Mtu { seen: u32, wanted: u32 },
}

impl DeviceFault {
    /// Packets and routes go on as before.
    pub(super) fn is_harmless(self) -> bool {
        matches!(self, DeviceFault::Mtu { .. })
    }

    /// It concerns an address of IPv6 alone.
    pub(super) fn is_of_ipv6(self) -> bool {
        matches!(self, DeviceFault::Lacks(IpAddr::V6(_)) | DeviceFault::Twice(IpAddr::V6(_)))
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceFault::Down => f.write_str("was set down; nothing can be resolved there until it is set up"),
            DeviceFault::Deleted => f.write_str("was deleted; restart Natrix to make it anew"),
            DeviceFault::Mtu { seen, wanted } => {
                write!(f, "was given an MTU of {seen} bytes; set it back to {wanted}, which the interface has")
            }
            DeviceFault::Lacks(address) => write!(f, "lacks the address {address}; add it, or restart Natrix"),
            DeviceFault::Twice(address) => {
                write!(
                    f,
                    "cannot use {address}, which another station on the link has; change the address of that station"
                )
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

#[cfg(test)]
mod tests {
    use nat::settings::Address6;
    use nat::settings::Interface;
    use nat::types::RealmId;
    use nat::types::Side;

    use super::*;

    const LAN: InterfaceId = InterfaceId(0);
    const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);

    #[test]
    fn an_address_is_used_once_the_kernel_has_checked_it() {
        // covers: 4862-5.4
        let (side, realm) = (Side::Inside, RealmId::default());
        let lan = Interface { name: "lan".to_owned(), side, realm, addresses: Vec::new(), mtu: 1_500 };
        let mut settings = Settings { interfaces: vec![lan], kernel_interfaces: vec![LAN], ..Settings::default() };
        settings.ipv6.addresses = vec![Address6 { interface: LAN, address: OWN, prefix_length: 64 }];
        let own = OwnAddresses::new(&settings, |_| Some(MacAddress([2, 0, 0, 0, 0, 9])), |_| true);
        own.set(LAN, OWN.to_bits(), AddressUse::Tentative);
        let found = |device, check| {
            let address = IpAddr::from(OWN);
            DeviceAddress { device, address, prefix_length: 64, is_of_natrix: true, check }
        };
        let now = |found: &[DeviceAddress]| {
            note_checks(&own, &[(LAN, 7)], found);
            own.now(LAN, OWN.to_bits()).unwrap()
        };
        use AddressCheck::Done;
        use AddressCheck::Failed;
        use AddressCheck::UnderWay;
        assert_eq!(now(&[found(7, UnderWay), found(8, Done)]), AddressUse::Tentative);
        assert_eq!(now(&[found(8, UnderWay), found(7, Done)]), AddressUse::Preferred);
        assert_eq!(now(&[found(7, Failed)]), AddressUse::Duplicate);
        assert_eq!(now(&[]), AddressUse::Duplicate, "between two attempts");
        assert_eq!(now(&[found(7, UnderWay)]), AddressUse::Duplicate, "another attempt");
        assert_eq!(now(&[found(7, Done)]), AddressUse::Preferred, "the other station is gone");
        assert_eq!(now(&[]), AddressUse::Preferred, "somebody took it from the device");
    }
}
