//! Makes the devices of the kernel: a TAP for each port, and VLAN devices on it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use config::Config;
use nat::types::InterfaceId;
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

use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::log::Log;
use crate::routing::keeper::addresses_of;

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
}

/// The devices of the kernel.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// TAPs of ports.
    pub ports: Vec<PortDevice>,
    /// Number of the kernel's device of each interface that has one.
    pub interfaces: Vec<(InterfaceId, u32)>,
    /// The kernel's table of the routes of these interfaces, by the configuration.
    pub tables: HashMap<InterfaceId, u32>,
}

impl Devices {
    /// Makes all devices, or takes over those that the service manager kept.
    ///
    /// # Errors
    /// [`SetupError`] names the interface.
    pub fn make(config: &Config, station: impl Fn(PortIndex) -> MacAddress, log: Log) -> Result<Devices, SetupError> {
        let mut devices = Devices::default();
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
            let mut socket = Netlink::open(&[]).map_err(failed("cannot ask the kernel", rights))?;
            let port = PortIndex(link.port as u16);
            if link.vlan.is_none() {
                let kept = Tap::inherited(name);
                let is_new = kept.is_none();
                let tap = match kept {
                    Some(tap) => tap,
                    None => Tap::open(name).map_err(failed("cannot be made", rights))?,
                };
                if is_new {
                    let free = "choose a name that no other device has";
                    tap.set_address(name, station(port).0).map_err(failed("cannot have the port's address", free))?;
                    crate::notify::store(log, name, &tap);
                }
                devices.ports.push(PortDevice { port, tap: Arc::new(tap), name: name.clone() });
            } else if let Some(parent) = devices.ports.iter().find(|device| device.port == port) {
                let parent = index_of(&mut socket, &parent.name).map_err(failed("has no port", rights))?;
                let made = socket.request(vlan(name, parent, link.vlan.unwrap_or(0)), NLM_F_CREATE | NLM_F_EXCL);
                made.or_else(already).map_err(failed("cannot be made", "load the module 8021q"))?;
            }
            let index = index_of(&mut socket, name).map_err(failed("is not there", rights))?;
            let id = InterfaceId(number as u16);
            let addresses = addresses_of(&config.nat, id);
            if addresses.iter().any(|(address, _)| address.is_ipv6()) {
                let sysctl = "write 0 to its disable_ipv6 in /proc/sys/net/ipv6/conf, or remove its IPv6 addresses";
                prepare_ipv6(name, log).map_err(failed("cannot have IPv6", sysctl))?;
            }
            for (address, prefix_length) in addresses {
                let added = socket.request(netlink::address(index, address, prefix_length), NLM_F_CREATE | NLM_F_EXCL);
                added.or_else(already).map_err(failed("cannot have its addresses", rights))?;
            }
            socket.request(up(index, interface.mtu), 0).map_err(failed("cannot be set up", rights))?;
            devices.interfaces.push((id, index));
            let table = config.kernel_tables.get(number).copied().flatten();
            devices.tables.extend(table.map(|table| (id, table)));
        }
        Ok(devices)
    }
}

/// Gives a device IPv6 of the kind that Natrix has itself: its link-local address is that of its
/// station (RFC 4291 appendix A), and routers on the link do not configure it (RFC 4861 §6.2).
///
/// # Errors
/// The device cannot have IPv6 at all. Where the system keeps its settings from being written, as
/// a service manager may, the others are left as they are, with a warning.
fn prepare_ipv6(name: &str, log: Log) -> io::Result<()> {
    let folder = Path::new("/proc/sys/net/ipv6/conf").join(name);
    for (key, wanted) in [("disable_ipv6", "0"), ("addr_gen_mode", "0"), ("accept_ra", "0")] {
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
    let mut found = None;
    socket.dump(netlink::all_links(), |message| {
        if let RouteNetlinkMessage::NewLink(link) = message
            && link.attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::IfName(own) if own == name))
        {
            found = Some(link.header.index);
        }
    })?;
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

fn up(index: u32, mtu: u16) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![LinkAttribute::Mtu(mtu.into())];
    RouteNetlinkMessage::NewLink(message)
}
