//! Makes the devices of the kernel: a TAP for each port, and VLAN devices on it.

use core::net::IpAddr;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use config::Config;
use nat::settings::Interface;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_core::NLM_F_EXCL;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::InfoData;
use netlink_packet_route::link::InfoKind;
use netlink_packet_route::link::InfoVlan;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkInfo;
use netlink_packet_route::link::LinkMessage;
use packet_io::PortIndex;
use packet_io::tap::Tap;
use rustix::io::Errno;
use wire::ethernet::MacAddress;

use crate::kernel::ingress::Ingress;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::log::Log;
use crate::routing::keeper::addresses_of;

/// Alias of the VLAN devices that Natrix makes, by which it knows them from those of others.
const ALIAS: &str = "natrix";

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
#[error("interface \"{interface}\": kernel = \"{device}\": {what}: {source}; {remedy}")]
pub struct SetupError {
    interface: String,
    device: String,
    what: &'static str,
    source: io::Error,
    remedy: &'static str,
}

/// A TAP that stands for a port.
#[derive(Clone, Debug)]
pub struct PortDevice {
    /// The port.
    pub port: PortIndex,
    /// Its device.
    pub tap: Arc<Tap>,
    /// Name of the device.
    pub name: String,
    /// The port has link.
    pub link: Arc<AtomicBool>,
}

impl PortDevice {
    /// Whether the port has link.
    pub fn has_link(&self) -> bool {
        self.link.load(Ordering::Acquire)
    }
}

/// The devices of the kernel.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// TAPs of ports.
    pub ports: Vec<PortDevice>,
    /// Number of the kernel's device of each interface that has one.
    pub interfaces: Vec<(InterfaceId, u32)>,
    /// Link-layer address of each, by its number: that of its port.
    pub stations: HashMap<u32, MacAddress>,
    /// The kernel's table of the routes of these interfaces, by the configuration.
    pub tables: HashMap<InterfaceId, u32>,
    /// Ports that the kernel's own stack must not receive from.
    pub ingress: Option<Arc<Mutex<Ingress>>>,
}

impl Devices {
    /// Makes all devices, or takes over those that the service manager kept, and brings them into
    /// line with the configuration.
    ///
    /// # Errors
    /// [`SetupError`] names the interface.
    pub fn make(config: &Config, station: impl Fn(PortIndex) -> MacAddress, log: Log) -> Result<Devices, SetupError> {
        let mut devices = Devices::default();
        let mut kept = take_over(config, log);
        if config.kernel.iter().all(Option::is_none) {
            return Ok(devices);
        }
        let all = config.nat.interfaces.iter().zip(&config.interfaces).zip(&config.kernel).enumerate();
        let named =
            all.filter_map(|(number, ((interface, link), name))| Some((number, interface, link, name.as_ref()?)));
        let (of_ports, on_ports): (Vec<_>, Vec<_>) = named.partition(|(.., link, _)| link.vlan.is_none());
        for (number, interface, link, name) in of_ports.into_iter().chain(on_ports) {
            let failed = |what, remedy| {
                move |source| SetupError {
                    interface: interface.name.clone(),
                    device: name.clone(),
                    what,
                    source,
                    remedy,
                }
            };
            let rights = "run Natrix as root or with CAP_NET_ADMIN, and load the module tun";
            let free = "choose a name that no other device has";
            let mut socket = Netlink::open(&[]).map_err(failed("cannot ask the kernel", rights))?;
            let port = PortIndex(link.port as u16);
            let mut is_made = false;
            if let Some(id) = link.vlan {
                let parent = devices.ports.iter().find(|device| device.port == port).map(|device| &device.name);
                let parent = parent.ok_or_else(|| io::ErrorKind::NotFound.into());
                let parent = parent.and_then(|parent| index_of(&mut socket, parent));
                let parent = parent.map_err(failed("has no port", rights))?;
                let links = read_links(&mut socket).map_err(failed("cannot ask the kernel", rights))?;
                let module = "load the module 8021q";
                let plan = plan_vlan(&links, name, parent, id);
                is_made = plan.makes();
                match plan {
                    Plan::Keep => {}
                    Plan::Make { instead_of } => {
                        instead_of
                            .map_or(Ok(()), |old| delete(&mut socket, old))
                            .map_err(failed("cannot go", rights))?;
                        let made = socket.request(vlan(name, parent, id), NLM_F_CREATE | NLM_F_EXCL);
                        made.map_err(failed("cannot be made", module))?;
                    }
                    Plan::Refuse => {
                        let taken = io::ErrorKind::AlreadyExists.into();
                        return Err(failed("is another device", free)(taken));
                    }
                }
            } else {
                let kept = kept.remove(name);
                let is_new = kept.is_none();
                let tap = match kept {
                    Some(tap) => tap,
                    None => Tap::open(name).map_err(|error| match error.kind() {
                        io::ErrorKind::ResourceBusy => {
                            failed("is another device", free)(io::ErrorKind::AlreadyExists.into())
                        }
                        _ => failed("cannot be made", rights)(error),
                    })?,
                };
                // A kept one may stand for another port now.
                tap.set_address(name, station(port).0).map_err(failed("cannot have the port's address", free))?;
                if is_new {
                    crate::notify::store(log, name, &tap);
                }
                devices.ports.push(PortDevice {
                    port,
                    tap: Arc::new(tap),
                    name: name.clone(),
                    link: Arc::new(true.into()),
                });
            }
            let index = index_of(&mut socket, name).map_err(failed("is not there", rights))?;
            let id = InterfaceId(number as u16);
            let addresses = addresses_of(&config.nat, id);
            let sysctl = "write 0 to its disable_ipv6 in /proc/sys/net/ipv6/conf, or remove its IPv6 addresses";
            let has_ipv6 = addresses.iter().any(|(address, _)| address.is_ipv6());
            prepare_ipv6(name, has_ipv6, log).map_err(failed("cannot have IPv6", sysctl))?;
            // Before the others come: with the first address of a subnet, its others may go.
            remove_old_addresses(&mut socket, index, &addresses).map_err(failed("keeps old addresses", rights))?;
            for (address, prefix_length) in addresses {
                let added = socket.request(netlink::address(index, address, prefix_length), NLM_F_CREATE | NLM_F_EXCL);
                added.or_else(already).map_err(failed("cannot have its addresses", rights))?;
            }
            socket.request(up(index, interface.mtu, is_made), 0).map_err(failed("cannot be set up", rights))?;
            if let Err(error) = socket.request(netlink::own_arp_only(index), 0) {
                log.warn(&format_args!(
                    "kernel device {name}: it answers ARP for addresses of other devices: {error}; set \
                     net.ipv4.conf.{name}.arp_ignore=1 by sysctl"
                ));
            }
            devices.interfaces.push((id, index));
            devices.stations.insert(index, station(port));
            let table = config.kernel_tables.get(number).copied().flatten();
            devices.tables.extend(table.map(|table| (id, table)));
        }
        devices.remove_old_vlans(log);
        devices.ingress = Ingress::begin(config, log).map(Mutex::new).map(Arc::new);
        warn_of_neighbours(config, log);
        Ok(devices)
    }

    /// VLAN devices of an earlier process on kept devices go if no interface has them now.
    fn remove_old_vlans(&self, log: Log) {
        let Ok(mut socket) = Netlink::open(&[]) else { return };
        let links = read_links(&mut socket).unwrap_or_default();
        let ours = |index: u32| self.interfaces.iter().any(|(_, ours)| *ours == index);
        for link in old_vlans(&links, ours) {
            if let Err(error) = delete(&mut socket, link.index) {
                let name = &link.name;
                log.warn(&format_args!(
                    "kernel device {name}: no interface uses it now, and it cannot be deleted: {error}"
                ));
            }
        }
    }
}

/// Names of the devices of interfaces outside, and the kernel's table of their routes by the
/// configuration.
pub fn devices_outside(config: &Config) -> impl Iterator<Item = (&str, Option<u32>)> {
    let named = config.nat.interfaces.iter().zip(&config.kernel).zip(&config.kernel_tables);
    let outside = named.filter(|((interface, _), _)| interface.side == Side::Outside);
    outside.filter_map(|((_, name), table)| Some((name.as_deref()?, *table)))
}

/// Whether the configuration itself has a default route outside.
pub fn has_default_outside(config: &Config) -> bool {
    config.nat.routes.iter().filter(|route| route.prefix == Prefix::ALL).any(|route| {
        let interface = config.nat.interfaces.get(route.interface.index());
        interface.is_some_and(|interface| interface.side == Side::Outside)
    })
}

/// Names of the devices with a subnet that a device of another VRF, or of the outside, has too.
pub fn devices_with_shared_subnets(config: &Config) -> Vec<&str> {
    let named = config.nat.interfaces.iter().zip(&config.kernel);
    let named: Vec<_> = named.filter_map(|(interface, name)| Some((interface, name.as_deref()?))).collect();
    let subnets = |interface: &Interface| -> Vec<Prefix> {
        let own = interface.addresses.iter();
        own.filter_map(|own| Prefix::new(own.address, own.prefix_length)).collect()
    };
    let overlap = |one: &Prefix, other: &Prefix| one.contains(other.address()) || other.contains(one.address());
    let shares = |interface: &Interface| {
        let own = subnets(interface);
        let mut others = named.iter().filter(|(other, _)| other.facing() != interface.facing());
        others.any(|(other, _)| subnets(other).iter().any(|theirs| own.iter().any(|own| overlap(own, theirs))))
    };
    named.iter().filter(|(interface, _)| shares(interface)).map(|(_, name)| *name).collect()
}

/// The kernel's table of the neighbours of one family, on all interfaces together (ip-sysctl.rst of
/// Linux).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourTable {
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// Most neighbours.
    pub limit: u64,
    /// Stations for which the subnets of interfaces with a device have room.
    pub stations: u64,
    /// The command that makes room for them; None if there is enough.
    pub remedy: Option<String>,
}

/// Stations of a subnet of IPv6 that a table should have room for. The subnet has room for more
/// than any table.
const NEIGHBOURS_ENOUGH: u64 = 1 << 16;

/// The tables that devices of these interfaces use. `read` gives the text of a file by its path
/// from the root.
pub fn neighbour_tables(config: &Config, read: impl Fn(&str) -> Option<String>) -> Vec<NeighbourTable> {
    let (stations, stations6) = config.kernel_stations();
    let table = |(family, net, stations): (&'static str, &str, u64)| {
        let limit: u64 = read(&format!("proc/sys/net/{net}/neigh/default/gc_thresh3"))?.trim().parse().ok()?;
        let wanted = if net == "ipv6" { stations.min(NEIGHBOURS_ENOUGH) } else { stations };
        let remedy = (wanted > limit).then(|| {
            let limit = if wanted == NEIGHBOURS_ENOUGH { wanted } else { (wanted + 1_024).next_power_of_two() };
            // Above `gc_thresh2`, the kernel removes what was not confirmed for five seconds.
            format!("sysctl -w net.{net}.neigh.default.gc_thresh2={limit} net.{net}.neigh.default.gc_thresh3={limit}")
        });
        Some(NeighbourTable { family, limit, stations, remedy })
    };
    let both = [("IPv4", "ipv4", stations), ("IPv6", "ipv6", stations6)];
    both.into_iter().filter(|(.., stations)| *stations > 0).filter_map(table).collect()
}

/// Where there are more subscribers on links than the kernel keeps, it resolves the rest by turns.
fn warn_of_neighbours(config: &Config, log: Log) {
    let read = |path: &str| fs::read_to_string(Path::new("/").join(path)).ok();
    for NeighbourTable { family, limit, stations, remedy } in neighbour_tables(config, read) {
        if let Some(remedy) = remedy {
            let room = room_text(stations);
            log.warn(&format_args!(
                "kernel devices: their subnets of {family} have room for {room} stations, and the kernel keeps {limit} \
                 neighbours; if more stations than that are active, packets are lost: {remedy}"
            ));
        }
    }
}

/// A number of stations: that of a subnet of IPv6 need not be written out.
pub fn room_text(stations: u64) -> String {
    if stations > u64::from(u32::MAX) { "billions of".to_owned() } else { stations.to_string() }
}

/// The devices that the service manager kept and that a port has now, by name. The others, which
/// would keep addresses and routes that Natrix no longer has, are given back and deleted.
fn take_over(config: &Config, log: Log) -> HashMap<String, Tap> {
    let ports = config.interfaces.iter().zip(&config.kernel).filter(|(link, _)| link.vlan.is_none());
    let wanted: Vec<&str> = ports.filter_map(|(_, name)| name.as_deref()).collect();
    let mut taken = HashMap::new();
    let mut left = Vec::new();
    for kept in Tap::inherited() {
        let is_wanted = wanted.contains(&kept.stored_as.as_str()) && kept.device.as_ref() == Some(&kept.stored_as);
        match is_wanted && !taken.contains_key(&kept.stored_as) {
            true => drop(taken.insert(kept.stored_as, kept.tap)),
            false => left.push(kept),
        }
    }
    for old in &left {
        crate::notify::give_back(log, &old.stored_as);
        if let Some(again) = taken.get(&old.stored_as) {
            // A descriptor of a deleted device had the same name.
            crate::notify::store(log, &old.stored_as, again);
        }
        let Some(device) = &old.device else { continue };
        // At once: the service manager may take a while, and then its addresses are there twice.
        let gone = Netlink::open(&[]).and_then(|mut socket| {
            let index = index_of(&mut socket, device)?;
            delete(&mut socket, index)
        });
        match gone {
            Ok(()) => log.info(&format_args!("kernel device {device}: no interface uses it now; deleted")),
            Err(error) => log.warn(&format_args!(
                "kernel device {device}: no interface uses it now, and it cannot be deleted: {error}"
            )),
        }
    }
    taken
}

/// Addresses that an earlier process set and the configuration no longer has.
///
/// # Errors
/// What the kernel answers.
fn remove_old_addresses(socket: &mut Netlink, device: u32, wanted: &[(IpAddr, u8)]) -> io::Result<()> {
    let mut old = Vec::new();
    socket.dump(netlink::all_addresses(), |message| {
        old.extend(netlink::device_address(&message).filter(|found| {
            let is_wanted = wanted.contains(&(found.address, found.prefix_length));
            found.device == device && found.is_of_natrix && !is_wanted
        }));
    })?;
    for found in old {
        let RouteNetlinkMessage::NewAddress(message) = netlink::address(device, found.address, found.prefix_length)
        else {
            continue;
        };
        let removed = socket.request(RouteNetlinkMessage::DelAddress(message), 0);
        // It may have gone with another one of its subnet.
        removed.or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL) => Ok(()),
            _ => Err(error),
        })?;
    }
    Ok(())
}

/// A device of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    index: u32,
    name: String,
    /// The device it is on.
    below: Option<u32>,
    /// Its VLAN, if it is a VLAN device.
    vlan: Option<u16>,
    /// Natrix made it.
    is_of_natrix: bool,
}

/// What becomes of a VLAN device that an interface wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// It is there.
    Keep,
    /// It is missing, or an earlier process made it with another VLAN.
    Make { instead_of: Option<u32> },
    /// The name belongs to another program's device.
    Refuse,
}

impl Plan {
    /// Whether Natrix makes the device, and so marks it and may delete it later. A device that an
    /// operator made by hand is left alone.
    fn makes(self) -> bool {
        matches!(self, Plan::Make { .. })
    }
}

fn plan_vlan(links: &[Link], name: &str, parent: u32, id: u16) -> Plan {
    match links.iter().find(|link| link.name == name) {
        None => Plan::Make { instead_of: None },
        Some(link) if link.below == Some(parent) && link.vlan == Some(id) => Plan::Keep,
        Some(link) if link.is_of_natrix && link.vlan.is_some() => Plan::Make { instead_of: Some(link.index) },
        Some(_) => Plan::Refuse,
    }
}

/// VLAN devices that Natrix made on one of its devices, but those that `ours` names.
fn old_vlans(links: &[Link], ours: impl Fn(u32) -> bool) -> Vec<&Link> {
    let is_old =
        |link: &&Link| link.is_of_natrix && link.vlan.is_some() && link.below.is_some_and(&ours) && !ours(link.index);
    links.iter().filter(is_old).collect()
}

fn read_links(socket: &mut Netlink) -> io::Result<Vec<Link>> {
    let mut links = Vec::new();
    socket.dump(netlink::all_links(), |message| {
        let RouteNetlinkMessage::NewLink(message) = message else { return };
        let mut link = Link { index: message.header.index, ..Link::default() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Link(below) => link.below = Some(below),
                LinkAttribute::IfAlias(alias) => link.is_of_natrix = alias == ALIAS,
                LinkAttribute::LinkInfo(infos) => link.vlan = infos.iter().find_map(vlan_of),
                _ => {}
            }
        }
        links.push(link);
    })?;
    Ok(links)
}

fn vlan_of(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(vlan)) = info else { return None };
    vlan.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

fn delete(socket: &mut Netlink, device: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = device;
    socket.request(RouteNetlinkMessage::DelLink(message), 0)
}

/// Gives a device IPv6 of the kind that Natrix has itself: its link-local address is that of its
/// station (RFC 4291 appendix A). Routers on the link do not configure it (RFC 4861 §6.2), even if
/// its interface has no IPv6.
///
/// # Errors
/// The device cannot have IPv6 at all. Where the system keeps its settings from being written, as
/// a service manager may, the others are left as they are, with a warning.
fn prepare_ipv6(name: &str, has_ipv6: bool, log: Log) -> io::Result<()> {
    let folder = Path::new("/proc/sys/net/ipv6/conf").join(name);
    if !has_ipv6 && !folder.exists() {
        return Ok(());
    }
    let own: &[(&str, &str)] = if has_ipv6 { &[("disable_ipv6", "0"), ("addr_gen_mode", "0")] } else { &[] };
    for &(key, wanted) in own.iter().chain(&[("accept_ra", "0")]) {
        let path = folder.join(key);
        if fs::read_to_string(&path)?.trim() == wanted {
            continue;
        }
        match fs::write(&path, wanted) {
            Err(error) if key == "disable_ipv6" => return Err(error),
            Err(error) => {
                let file = path.display();
                log.warn(&format_args!("kernel device {name}: {file} should be {wanted}: {error}; set it by sysctl.d"));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// What is there already, from an earlier process, is fine.
fn already(error: io::Error) -> io::Result<()> {
    if Errno::from_io_error(&error) == Some(Errno::EXIST) { Ok(()) } else { Err(error) }
}

/// The kernel's number of a device.
pub fn index_of(socket: &mut Netlink, name: &str) -> io::Result<u32> {
    let links = read_links(socket)?;
    let found = links.iter().find(|link| link.name == name).map(|link| link.index);
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn vlan(name: &str, parent: u32, id: u16) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Link(parent),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vlan),
            LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(id)])),
        ]),
    ];
    RouteNetlinkMessage::NewLink(message)
}

/// Sets a device up. One that Natrix made is marked, so that a later process knows it.
fn up(index: u32, mtu: u16, is_made: bool) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![LinkAttribute::Mtu(mtu.into())];
    message.attributes.extend(is_made.then(|| LinkAttribute::IfAlias(ALIAS.to_owned())));
    RouteNetlinkMessage::NewLink(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, vlan: Option<(u32, u16)>, is_of_natrix: bool) -> Link {
        let (below, vlan) = vlan.unzip();
        Link { index, name: name.to_owned(), below, vlan, is_of_natrix }
    }

    #[test]
    fn a_vlan_device_is_kept_made_again_or_refused() {
        let links = [
            link(7, "nx-out", None, false),
            link(8, "nx-v20", Some((7, 20)), true),
            link(9, "theirs", Some((7, 20)), false),
            link(10, "mgmt0", None, false),
            link(11, "aliased", None, true),
        ];
        let plan = |name, parent, id| plan_vlan(&links, name, parent, id);
        assert_eq!(plan("nx-v30", 7, 30), Plan::Make { instead_of: None });
        assert_eq!(plan("nx-v20", 7, 20), Plan::Keep);
        assert_eq!(plan("nx-v20", 7, 30), Plan::Make { instead_of: Some(8) }, "another VLAN");
        assert_eq!(plan("nx-v20", 6, 20), Plan::Make { instead_of: Some(8) }, "another port");
        assert_eq!(plan("theirs", 7, 20), Plan::Keep, "made by hand as it should be");
        assert!(!plan("theirs", 7, 20).makes() && plan("nx-v30", 7, 30).makes(), "it stays theirs");
        assert_eq!(plan("theirs", 7, 30), Plan::Refuse);
        assert_eq!(plan("mgmt0", 7, 20), Plan::Refuse, "no VLAN device at all");
        assert_eq!(plan("aliased", 7, 20), Plan::Refuse);
    }

    #[test]
    fn vlan_devices_that_no_interface_has_are_old() {
        let links = [
            link(7, "nx-out", None, false),
            link(8, "nx-v20", Some((7, 20)), true),
            link(9, "nx-v30", Some((7, 30)), true),
            link(10, "by-hand", Some((7, 40)), false),
            link(11, "elsewhere", Some((3, 40)), true),
        ];
        let old = old_vlans(&links, |index| [7, 8].contains(&index));
        assert_eq!(old.iter().map(|link| link.index).collect::<Vec<_>>(), [9]);
    }
}
