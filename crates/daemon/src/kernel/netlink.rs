//! A socket to the kernel's links, addresses, routes and neighbours.
//!
//! Its messages are read and written by topic: `route`, `neighbour`, `device`.

use core::net::IpAddr;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use netlink_packet_core::NLM_F_ACK;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_core::NLM_F_DUMP_INTR;
use netlink_packet_core::NLM_F_REQUEST;
use netlink_packet_core::NetlinkMessage;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

mod device;
mod message;
mod neighbour;
mod route;

pub use device::AddressCheck;
pub use device::DeviceAddress;
pub use device::DeviceLink;
pub use device::address;
pub use device::all_addresses;
pub use device::all_links;
pub use device::device_address;
pub use device::device_link;
pub use device::device_of;
pub use device::own_arp_only;
pub use device::removed_device;
pub use device::station;
pub(super) use message::HEADER;
pub(super) use message::attributes;
pub(super) use message::half;
pub use message::messages;
pub use message::read_messages;
pub(super) use message::word;
pub use neighbour::NeighbourNews;
pub use neighbour::all_neighbours;
pub use neighbour::neighbour_news;
pub use neighbour::resolve;
pub(super) use route::HOP_IS_DEAD;
pub use route::KernelHop;
pub use route::RouteNews;
pub use route::all_routes;
pub use route::announcement;
pub use route::is_own_route_gone;
pub use route::is_replacement;
pub use route::is_route;
pub use route::object_of_route;
pub use route::place_of;
pub use route::route_news;
pub use route::routes_of_natrix;

/// Groups of messages (`linux/rtnetlink.h`).
pub const LINKS: u32 = 1;
/// Neighbours.
pub const NEIGHBOURS: u32 = 3;
/// Addresses of IPv4.
pub const ADDRESSES: u32 = 5;
/// Routes of IPv4.
pub const ROUTES: u32 = 7;
/// Addresses of IPv6.
pub const ADDRESSES6: u32 = 9;
/// Routes of IPv6.
pub const ROUTES6: u32 = 11;

/// Next hops of their own, which routes only name.
pub const NEXT_HOPS: u32 = 32;

/// The kernel's main table.
pub const TABLE_MAIN: u32 = 254;
/// The protocol number of routes and addresses that Natrix itself puts into the kernel: one that
/// iproute2 and FRR leave to others.
pub const PROTOCOL_NATRIX: u8 = 110;

/// Kinds of messages (`linux/netlink.h`, `linux/rtnetlink.h`), and where those that are only about
/// the exchange itself end.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADERS_END: u16 = 16;
pub(super) const NEW_NEXT_HOP: u16 = 104;
pub(super) const DELETED_NEXT_HOP: u16 = 105;
const GET_NEXT_HOP: u16 = 106;
/// Longest datagram: the kernel makes dumps of at most 32 KiB.
const DATAGRAM_MAX: usize = 64 * 1024;
/// Bytes of messages that may wait in the kernel.
const WAITING_BYTES: usize = 8 << 20;
/// Datagrams of one call of [`Netlink::receive`].
const DATAGRAMS_MAX: usize = 64;

/// A socket.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket. With groups it receives what changes, and its calls do not wait.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn open(groups: &[u32]) -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for group in groups {
            socket.add_membership(*group)?;
        }
        if !groups.is_empty() {
            socket.set_non_blocking(true)?;
            // Without CAP_NET_ADMIN, the system cuts it to net.core.rmem_max.
            if set_socket_recv_buffer_size_force(&socket, WAITING_BYTES).is_err() {
                socket.set_rx_buf_sz(WAITING_BYTES as i32)?;
            }
        }
        Ok(Netlink { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM_MAX) })
    }

    /// Has the kernel look at more of a request for all objects than their kind. Kernels before
    /// 4.20 do not, and send all.
    pub fn filter_dumps(&mut self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// Receives messages of one more group.
    ///
    /// # Errors
    /// The kernel is too old to have it.
    pub fn join(&mut self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Sends a message without waiting for an answer.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        self.sequence = self.sequence.wrapping_add(1);
        message.header.sequence_number = self.sequence;
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.send_bytes(&bytes)
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0).map(|_| ())
    }

    /// Sends a message and waits until the kernel has carried it out.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, flags | NLM_F_ACK)?;
        loop {
            let mut answer = None;
            self.read(|_, payload| {
                if let NetlinkPayload::Error(error) = payload {
                    answer = Some(match error.code {
                        None => Ok(()),
                        Some(code) => Err(io::Error::from_raw_os_error(code.get().saturating_abs())),
                    });
                }
            })?;
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Asks for all objects of a kind.
    ///
    /// # Errors
    /// What the kernel answers; [`io::ErrorKind::Interrupted`] if something changed meanwhile, so
    /// that the answer may be incomplete.
    pub fn dump(&mut self, message: RouteNetlinkMessage, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        self.dump_bytes(message, |message| {
            read_messages(message, |_, payload| {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    each(message);
                }
            });
        })
    }

    /// The same; each message as the kernel wrote it, with its header.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    pub fn dump_bytes(&mut self, message: RouteNetlinkMessage, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(message, NLM_F_DUMP)?;
        self.read_dump(each)
    }

    /// The same of next hops that are objects, which the library does not know.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    pub fn dump_next_hops(&mut self, each: impl FnMut(&[u8])) -> io::Result<()> {
        // `struct nlmsghdr` and `struct nhmsg`, of any family.
        let mut request = [0; HEADER + 8];
        self.sequence = self.sequence.wrapping_add(1);
        let fields = [
            (0, &(request.len() as u32).to_ne_bytes()[..]),
            (4, &GET_NEXT_HOP.to_ne_bytes()),
            (6, &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes()),
            (8, &self.sequence.to_ne_bytes()),
        ];
        for (at, value) in fields {
            if let Some(field) = request.get_mut(at..at + value.len()) {
                field.copy_from_slice(value);
            }
        }
        self.send_bytes(&request)?;
        self.read_dump(each)
    }

    fn read_dump(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut is_interrupted = false;
        loop {
            let mut end = None;
            self.read_datagram()?;
            for message in messages(&self.buffer) {
                is_interrupted |= half(message, 6) & NLM_F_DUMP_INTR != 0;
                match half(message, 4) {
                    DONE => end = Some(Ok(())),
                    ERROR => {
                        let code = message.get(HEADER..).and_then(<[u8]>::first_chunk);
                        let code = code.map_or(0, |code| i32::from_ne_bytes(*code).saturating_abs());
                        end = Some(Err(io::Error::from_raw_os_error(code)));
                    }
                    0..HEADERS_END => {}
                    _ => each(message),
                }
            }
            match end {
                Some(Ok(())) if is_interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Some(end) => return end,
                None => {}
            }
        }
    }

    /// Takes what has changed, without waiting. Returns whether there may be more.
    ///
    /// # Errors
    /// ENOBUFS: messages were lost.
    pub fn receive(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<bool> {
        self.receive_bytes(|message| {
            read_messages(message, |_, payload| {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    each(message);
                }
            });
        })
    }

    /// The same; each message as the kernel wrote it, with its header.
    ///
    /// # Errors
    /// As [`Netlink::receive`].
    pub fn receive_bytes(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        for _ in 0..DATAGRAMS_MAX {
            match self.read_datagram() {
                Ok(()) => messages(&self.buffer).for_each(&mut each),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn read(&mut self, each: impl FnMut(u16, NetlinkPayload<RouteNetlinkMessage>)) -> io::Result<()> {
        self.read_datagram()?;
        read_messages(&self.buffer, each);
        Ok(())
    }

    fn read_datagram(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.reserve(DATAGRAM_MAX);
        self.socket.recv(&mut self.buffer, 0).map(|_| ())
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    //! Messages for the tests of all of them.

    use core::net::Ipv4Addr;

    use netlink_packet_route::route::RouteAddress;
    use netlink_packet_route::route::RouteAttribute;
    use netlink_packet_route::route::RouteMessage;
    use netlink_packet_route::route::RouteProtocol;
    use netlink_packet_route::route::RouteType;

    use super::*;

    pub(super) fn bytes_of(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::from(message);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    pub(super) fn route(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteNetlinkMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 24;
        message.header.table = TABLE_MAIN as u8;
        message.header.protocol = RouteProtocol::Bgp;
        message.header.kind = kind;
        message.attributes = attributes;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(198, 51, 100, 0))));
        RouteNetlinkMessage::NewRoute(message)
    }

    pub(super) fn gateway(last: u8) -> RouteAttribute {
        RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(192, 0, 2, last)))
    }
}
