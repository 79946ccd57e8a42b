//! Keeps the kernel's own stack from receiving what comes by a port that Natrix reads through a
//! packet socket.
//!
//! Such a socket gets copies. The device of the port in the kernel (`kernel = "NAME"`) gets the
//! frames to the machine from Natrix, so without this the kernel would have each of them twice, and
//! with `ip_forward` it would forward packets of subscribers untranslated. A chain of nftables at
//! the ingress of the port drops all frames behind the packet sockets. Its table belongs to a
//! socket of this process (NFT_TABLE_F_OWNER, since Linux 5.12), so it goes with the process,
//! however that ends. The hook comes before VLAN devices and bridges, so a device that another
//! program uses is left alone: an operator may be connected through it.

use core::net::IpAddr;
use std::io;

use config::Config;
use config::Port;
use netlink_sys::Socket;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use packet_io::driver_of;

use crate::kernel::netlink;
use crate::kernel::netlink::DeviceAddress;
use crate::kernel::netlink::DeviceLink;
use crate::kernel::netlink::HEADER;
use crate::kernel::netlink::Netlink;
use crate::kernel::netlink::attributes;
use crate::kernel::netlink::half;
use crate::kernel::netlink::messages;
use crate::log::Log;

/// Drivers that read copies of what the kernel receives.
pub(crate) const DRIVERS_OF_COPIES: [&str; 2] = ["net_af_packet", "net_pcap"];

/// Numbers of `linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = NFTABLES << 8;
const GET_TABLE: u16 = NFTABLES << 8 | 1;
const DELETE_TABLE: u16 = NFTABLES << 8 | 2;
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const FAMILY_NETDEV: u8 = 5;
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const OWNED: u32 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const INGRESS: u32 = 0;
const DROP: u32 = 0;
const NESTED: u16 = 0x8000;
/// Flags of a request: request, acknowledge, exclusive and create (`linux/netlink.h`).
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const MAKE: u16 = REQUEST | ACKNOWLEDGE | 0x200 | 0x400;
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;

/// Keeps the kernel's own stack from receiving by ports. It does again when this is dropped.
pub struct Ingress {
    /// Owns the tables.
    socket: Option<Socket>,
    ports: Vec<Copying>,
    log: Log,
}

/// A port that reads copies.
#[derive(Debug)]
struct Copying {
    port: String,
    /// The device as the configuration names it, and in the name of the table.
    device: String,
    /// The kernel's number of it, whatever its name is now. None: it was not seen yet.
    index: Option<u32>,
    /// None: nothing was done yet.
    state: Option<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The kernel receives nothing.
    Closed,
    /// Another program uses the device.
    LeftAlone,
    /// The chain could not be made.
    Failed,
}

impl core::fmt::Debug for Ingress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ingress").field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// The device that a port reads copies from; None: another driver.
pub fn copied_from(port: &Port) -> Option<&str> {
    let (driver, mut named) = driver_of(&port.driver);
    named.next().filter(|_| DRIVERS_OF_COPIES.contains(&driver))
}

/// The ports of a configuration with a device in the kernel that read copies, each with the device
/// they read from.
pub fn copying_ports(config: &Config) -> impl Iterator<Item = (&Port, &str)> {
    let links = config.interfaces.iter().zip(&config.kernel);
    let with_device = links.filter(|(link, name)| link.vlan.is_none() && name.is_some());
    with_device.filter_map(|(link, _)| {
        let port = config.ports.get(link.port)?;
        Some((port, copied_from(port)?))
    })
}

impl Ingress {
    /// Stops the kernel's own stack from receiving by the ports of a configuration that read
    /// copies. None: there are none.
    pub fn begin(config: &Config, log: Log) -> Option<Ingress> {
        let copying = |(port, device): (&Port, &str)| Copying {
            port: port.name.clone(),
            device: device.to_owned(),
            index: None,
            state: None,
        };
        let ports: Vec<Copying> = copying_ports(config).map(copying).collect();
        if ports.is_empty() {
            return None;
        }
        let mut ingress = Ingress { socket: None, ports, log };
        let read = || {
            let mut socket = Netlink::open(&[])?;
            let (mut links, mut addresses) = (Vec::new(), Vec::new());
            socket.dump(netlink::all_links(), |message| links.extend(netlink::device_link(&message)))?;
            socket.dump(netlink::all_addresses(), |message| addresses.extend(netlink::device_address(&message)))?;
            io::Result::Ok((links, addresses))
        };
        // The next look knows more.
        if let Ok((links, addresses)) = read() {
            ingress.look(&links, &addresses);
        }
        Some(ingress)
    }

    /// Follows what the kernel has. A device that another program also uses is left alone.
    pub fn look(&mut self, links: &[DeviceLink], addresses: &[DeviceAddress]) {
        for port in &mut self.ports {
            // One that is gone took its chain along.
            let is_own = |link: &&DeviceLink| port.index.map_or(link.name == port.device, |index| link.index == index);
            let Some(device) = links.iter().find(is_own) else { continue };
            port.index = Some(device.index);
            let (name, device_name, table) = (&port.port, &device.name, table_of(&port.device));
            let users = users(device, links, addresses);
            let before = port.state;
            if !users.is_empty() {
                port.state = Some(State::LeftAlone);
                if before == port.state {
                    continue;
                }
                let mut again = "";
                if before == Some(State::Closed) {
                    again = "again ";
                    if let Err(error) = self.socket.as_ref().map_or(Ok(()), |socket| admit_all(socket, &table)) {
                        port.state = before;
                        self.log.warn(&format_args!(
                            "port {name}: {device_name} {}, but the kernel still drops what comes there: {error}; \
                             remove that, or restart Natrix",
                            users.join(" and ")
                        ));
                        continue;
                    }
                }
                self.log.warn(&format_args!(
                    "port {name}: {device_name} {}, so the kernel {again}also receives, answers and forwards what comes \
                     there; remove that: ip address flush dev {device_name}, ip link del, or ip link set {device_name} \
                     nomaster",
                    users.join(" and ")
                ));
            } else if !matches!(before, Some(State::Closed | State::Failed)) {
                let done = open(&mut self.socket).and_then(|socket| drop_all(socket, &table, device_name));
                port.state = Some(if done.is_ok() { State::Closed } else { State::Failed });
                match done {
                    Ok(()) => self.log.info(&format_args!(
                        "port {name}: the kernel itself receives nothing by {device_name} while Natrix runs: the nftables \
                         table {} drops it behind the packet sockets",
                        table
                    )),
                    Err(error) => self.log.warn(&format_args!(
                        "port {name}: the kernel also answers and forwards what comes by {device_name}: its chain of \
                         nftables cannot be made: {error}; load the module nf_tables (Linux 5.12 or newer), or use \
                         net_af_xdp"
                    )),
                }
            }
        }
    }
}

/// What else uses a device: what it has, or is.
fn users(device: &DeviceLink, links: &[DeviceLink], addresses: &[DeviceAddress]) -> Vec<String> {
    let own = addresses.iter().filter(|own| own.device == device.index && is_reached(own.address));
    let own = own.map(|own| format!("has the address {}", own.address));
    let above = links.iter().filter(|link| link.lower == Some(device.index));
    let above = above.map(|link| format!("is below {}", link.name));
    let master = links.iter().filter(|link| Some(link.index) == device.master && !link.is_vrf);
    let master = master.map(|link| format!("is part of {}", link.name));
    own.chain(above).chain(master).collect()
}

/// Whether a host farther away may use an address. Those of the link, the kernel makes itself.
pub fn is_reached(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_multicast(),
    }
}

/// Whether a running instance keeps the kernel from receiving by a device.
///
/// # Errors
/// The kernel does not say, as to users without CAP_NET_ADMIN.
pub fn is_closed(device: &str) -> io::Result<bool> {
    let mut socket = None;
    let socket = open(&mut socket)?;
    socket.send_to(&message(GET_TABLE, REQUEST | DUMP, (FAMILY_NETDEV, 0), &[]), &SocketAddr::new(0, 0), 0)?;
    let mut found = false;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for message in messages(&bytes) {
            match (half(message, 4), error_in(message)) {
                (KIND_DONE, _) => return Ok(found),
                (_, Some(code)) => return Err(io::Error::from_raw_os_error(code)),
                (NEW_TABLE, _) => {
                    let mut names = attributes(message.get(HEADER + 4..).unwrap_or_default());
                    let name = names.find(|(kind, _)| *kind == TABLE_NAME).map_or(&[][..], |(_, name)| name);
                    found |= is_table_of(name, device);
                }
                _ => {}
            }
        }
    }
}

/// Whether a table, by its name with a zero at the end, is that of an instance for a device.
fn is_table_of(name: &[u8], device: &str) -> bool {
    let name = core::str::from_utf8(name).unwrap_or_default().trim_end_matches('\0');
    let number = name.strip_prefix("natrix-").and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(process, of)| of == device && process.bytes().all(|digit| digit.is_ascii_digit()))
}

fn open(socket: &mut Option<Socket>) -> io::Result<&mut Socket> {
    if socket.is_none() {
        let mut new = Socket::new(NETLINK_NETFILTER)?;
        new.bind_auto()?;
        new.set_non_blocking(true)?;
        *socket = Some(new);
    }
    socket.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn table_of(device: &str) -> String {
    format!("natrix-{}-{device}", std::process::id())
}

/// Drops all that comes by a device, behind the packet sockets.
fn drop_all(socket: &Socket, table: &str, device: &str) -> io::Result<()> {
    carry_out(socket, &batch(table, device), 2)
}

/// Lets the kernel receive by the device of a table again.
fn admit_all(socket: &Socket, table: &str) -> io::Result<()> {
    let table = attribute(TABLE_NAME, &text(table));
    let batch = [
        message(BATCH_BEGIN, REQUEST, (0, NFTABLES), &[]),
        message(DELETE_TABLE, REQUEST | ACKNOWLEDGE, (FAMILY_NETDEV, 0), &table),
        message(BATCH_END, REQUEST, (0, NFTABLES), &[]),
    ];
    carry_out(socket, &batch.concat(), 1)
}

/// Sends a batch in which so many messages ask for an answer.
fn carry_out(socket: &Socket, batch: &[u8], wanted: usize) -> io::Result<()> {
    socket.send_to(batch, &SocketAddr::new(0, 0), 0)?;
    // The kernel has answered before it returns from the call.
    let mut answers = 0;
    while answers < wanted {
        let (bytes, _) = match socket.recv_from_full() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            received => received?,
        };
        for message in messages(&bytes) {
            answers += 1;
            match error_in(message) {
                Some(0) => {}
                Some(code) => return Err(io::Error::from_raw_os_error(code)),
                None => answers -= 1,
            }
        }
    }
    Ok(())
}

/// The number of the error in an answer, 0 for none.
fn error_in(message: &[u8]) -> Option<i32> {
    if message.get(4..6) != Some(&KIND_ERROR.to_ne_bytes()) {
        return None;
    }
    let code = message.get(16..).and_then(<[u8]>::first_chunk)?;
    Some(i32::from_ne_bytes(*code).saturating_abs())
}

/// The table and its chain, which are made together or not at all.
fn batch(table: &str, device: &str) -> Vec<u8> {
    let hook = [
        attribute(HOOK_NUMBER, &INGRESS.to_be_bytes()),
        attribute(HOOK_PRIORITY, &0_u32.to_be_bytes()),
        attribute(HOOK_DEVICE, &text(device)),
    ];
    let of_table = [attribute(TABLE_NAME, &text(table)), attribute(TABLE_FLAGS, &OWNED.to_be_bytes())];
    let of_chain = [
        attribute(CHAIN_TABLE, &text(table)),
        attribute(CHAIN_NAME, &text("ingress")),
        attribute(CHAIN_HOOK | NESTED, &hook.concat()),
        attribute(CHAIN_POLICY, &DROP.to_be_bytes()),
        attribute(CHAIN_TYPE, &text("filter")),
    ];
    [
        message(BATCH_BEGIN, REQUEST, (0, NFTABLES), &[]),
        message(NEW_TABLE, MAKE, (FAMILY_NETDEV, 0), &of_table.concat()),
        message(NEW_CHAIN, MAKE, (FAMILY_NETDEV, 0), &of_chain.concat()),
        message(BATCH_END, REQUEST, (0, NFTABLES), &[]),
    ]
    .concat()
}

fn text(words: &str) -> Vec<u8> {
    [words.as_bytes(), &[0]].concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message with `struct nfgenmsg`: family, version, and a number.
fn message(kind: u16, flags: u16, (family, number): (u8, u16), attributes: &[u8]) -> Vec<u8> {
    let length = 16 + 4 + attributes.len() as u32;
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    [&head, &[family, 0][..], &number.to_be_bytes(), attributes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(driver: &str, kernel: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"{driver}\"\naddresses = [\"10.0.0.1/24\"]\n\
             {kernel}\n[[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\n\
             addresses = [\"192.0.2.2/24\"]\n[[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\n\
             subscribers = [\"10.0.0.0/24\"]\n"
        );
        config::parse(&text, "a.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn ports_that_read_copies_beside_a_device_are_closed() {
        let found = |driver: &str, kernel: &str| {
            let config = config(driver, kernel);
            copying_ports(&config).map(|(port, device)| (port.name.clone(), device.to_owned())).collect::<Vec<_>>()
        };
        let device = "kernel = \"nx-in\"";
        let port = vec![("in".to_owned(), "eth1".to_owned())];
        assert_eq!(found("net_af_packet0,iface=eth1,qpairs=2", device), port);
        assert_eq!(found("net_pcap0,iface=eth1", device), port);
        assert_eq!(found("net_pcap0,rx_iface=eth1,tx_iface=eth1", device), port);
        assert_eq!(found("net_pcap0,tx_iface=eth1,rx_iface_in=eth1", device), port);
        assert_eq!(found("net_af_packet0,iface=eth1", ""), [], "the kernel has no other way to hear anything");
        assert_eq!(found("net_af_xdp0,iface=eth1", device), [], "its program takes the frames");
        assert_eq!(found("net_tap0,iface=eth1", device), []);
    }

    #[test]
    fn a_device_that_others_use_is_known() {
        use crate::kernel::netlink::AddressCheck;
        let link = |index: u32, name: &str| DeviceLink { index, name: name.to_owned(), ..DeviceLink::default() };
        let address = |device: u32, address: &str| DeviceAddress {
            device,
            address: address.parse().unwrap(),
            prefix_length: 24,
            is_of_natrix: false,
            check: AddressCheck::Done,
        };
        let port = link(7, "eth1");
        let above = DeviceLink { lower: Some(7), ..link(8, "eth1.50") };
        let elsewhere = DeviceLink { lower: Some(6), ..link(9, "mv0") };
        let all = [port.clone(), above, elsewhere, link(10, "br0"), DeviceLink { is_vrf: true, ..link(11, "red") }];
        assert_eq!(users(&port, &all[..1], &[address(6, "192.0.2.1"), address(7, "fe80::1")]), [""; 0]);
        assert_eq!(users(&port, &all, &[]), ["is below eth1.50"]);
        let own = [address(7, "192.0.2.1"), address(7, "2001:db8::1")];
        assert_eq!(users(&port, &[], &own), ["has the address 192.0.2.1", "has the address 2001:db8::1"]);
        assert_eq!(users(&DeviceLink { master: Some(10), ..port.clone() }, &all[2..], &[]), ["is part of br0"]);
        assert_eq!(
            users(&DeviceLink { master: Some(11), ..port }, &all[2..], &[]),
            [""; 0],
            "a VRF takes nothing away"
        );
    }

    #[test]
    fn tables_of_instances_are_known_by_their_names() {
        assert!(is_table_of(b"natrix-123-eth1\0", "eth1"));
        assert!(is_table_of(b"natrix-123-br-lan\0", "br-lan"));
        assert!(!is_table_of(b"natrix-123-eth11\0", "eth1"));
        assert!(!is_table_of(b"natrix-local\0", "local"));
    }

    #[test]
    fn messages_have_their_lengths() {
        let bytes = batch("natrix-1-eth1", "eth1");
        let kinds: Vec<u16> = messages(&bytes).map(|message| u16::from_ne_bytes([message[4], message[5]])).collect();
        assert_eq!(kinds, [BATCH_BEGIN, NEW_TABLE, NEW_CHAIN, BATCH_END]);
        assert_eq!(messages(&bytes).map(<[u8]>::len).sum::<usize>(), bytes.len());
        assert_eq!(
            attribute(7, &[1, 2, 3, 4, 5]),
            [[9, 0, 7, 0], [1, 2, 3, 4], [5, 0, 0, 0]].concat(),
            "little-endian"
        );
    }
}
