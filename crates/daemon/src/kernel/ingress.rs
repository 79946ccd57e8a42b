//! Keeps the kernel's own stack from receiving what comes by a port that Natrix reads through a
//! packet socket.
//!
//! Such a socket gets copies. The device of the port in the kernel (`kernel = "NAME"`) gets the
//! frames to the machine from Natrix, so without this the kernel would have each of them twice, and
//! with `ip_forward` it would forward packets of subscribers untranslated. A chain of nftables at
//! the ingress of the port drops all frames behind the packet sockets. Its table belongs to a
//! socket of this process (NFT_TABLE_F_OWNER, since Linux 5.12), so it goes with the process,
//! however that ends.

use core::net::IpAddr;
use std::io;

use config::Config;
use config::Port;
use netlink_sys::Socket;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::kernel::netlink::messages;
use crate::kernel::setup::index_of;
use crate::log::Log;

/// Drivers that read copies of what the kernel receives.
const DRIVERS: [&str; 2] = ["net_af_packet", "net_pcap"];

/// Numbers of `linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = NFTABLES << 8;
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
const MAKE: u16 = REQUEST | 4 | 0x200 | 0x400;
const KIND_ERROR: u16 = 2;

/// Ports that the kernel's own stack does not receive from. It does again when this is dropped.
pub struct Ingress {
    /// Owns the tables.
    _socket: Socket,
}

impl core::fmt::Debug for Ingress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ingress")
    }
}

/// The device that a port reads copies from; None: another driver.
pub fn copied_from(port: &Port) -> Option<&str> {
    let mut words = port.driver.split(',');
    let driver = words.next().unwrap_or_default().trim_end_matches(|digit: char| digit.is_ascii_digit());
    words.find_map(|word| word.strip_prefix("iface=")).filter(|_| DRIVERS.contains(&driver))
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

/// Stops the kernel's own stack from receiving by these ports. A port with an IPv4 address of its
/// own is left alone: somebody may have come by it.
pub fn close(config: &Config, log: Log) -> Option<Ingress> {
    let mut socket = None;
    for (port, device) in copying_ports(config) {
        let name = &port.name;
        match addresses_of(device) {
            Ok(own) if !own.is_empty() => {
                let own: Vec<String> = own.iter().map(ToString::to_string).collect();
                log.warn(&format_args!(
                    "port {name}: {device} has the address {}, so the kernel also answers and forwards what comes \
                     there; remove it with ip address flush dev {device}, and start Natrix again",
                    own.join(", ")
                ));
                continue;
            }
            _ => {}
        }
        let done = open(&mut socket).and_then(|socket| drop_all(socket, device));
        if let Err(error) = done {
            log.warn(&format_args!(
                "port {name}: the kernel also answers and forwards what comes by {device}: its chain of nftables \
                 cannot be made: {error}; load the module nf_tables (Linux 5.12 or newer), or use net_af_xdp"
            ));
        }
    }
    socket.map(|socket| Ingress { _socket: socket })
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

/// The IPv4 addresses of a device.
///
/// # Errors
/// There is no such device, or the kernel does not answer.
pub fn addresses_of(device: &str) -> io::Result<Vec<IpAddr>> {
    let mut socket = Netlink::open(&[])?;
    let index = index_of(&mut socket, device)?;
    let mut found = Vec::new();
    socket.dump(netlink::all_addresses(), |message| {
        let own = netlink::device_address(&message).filter(|own| own.device == index && own.address.is_ipv4());
        found.extend(own.map(|own| own.address));
    })?;
    Ok(found)
}

/// Drops all that comes by a device, behind the packet sockets.
fn drop_all(socket: &mut Socket, device: &str) -> io::Result<()> {
    let table = format!("natrix-{}-{device}", std::process::id());
    socket.send_to(&batch(&table, device), &SocketAddr::new(0, 0), 0)?;
    // The kernel has answered before it returns from the call.
    let mut answers = 0;
    while answers < 2 {
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
        assert_eq!(found("net_af_packet0,iface=eth1", ""), [], "the kernel has no other way to hear anything");
        assert_eq!(found("net_af_xdp0,iface=eth1", device), [], "its program takes the frames");
        assert_eq!(found("net_tap0,iface=eth1", device), []);
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
