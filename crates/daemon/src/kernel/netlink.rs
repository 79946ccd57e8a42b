//! A socket to the kernel's links, addresses, routes and neighbours, and its messages.

use core::net::IpAddr;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use netlink_packet_core::DefaultNla;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_core::NLM_F_APPEND;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_core::NLM_F_DUMP_INTR;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_core::NLM_F_REQUEST;
use netlink_packet_core::NetlinkMessage;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::address::AddressHeaderFlags;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::AfSpecInet;
use netlink_packet_route::link::AfSpecUnspec;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::NeighbourAddress;
use netlink_packet_route::neighbour::NeighbourAttribute;
use netlink_packet_route::neighbour::NeighbourFlags;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::neighbour::NeighbourState;
use netlink_packet_route::route::RouteAddress;
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::route::RouteScope;
use netlink_packet_route::route::RouteType;
use netlink_sys::Socket;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use wire::ethernet::MacAddress;
use wire::ipv6;

use crate::kernel::next_hop_objects::NextHopObjects;
use crate::routing::family::Family;

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
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
pub(super) const NEW_NEXT_HOP: u16 = 104;
pub(super) const DELETED_NEXT_HOP: u16 = 105;
const GET_NEXT_HOP: u16 = 106;
/// Attributes of a route.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const METRIC: u16 = 6;
const SEVERAL_HOPS: u16 = 9;
const TABLE: u16 = 15;
const VIA: u16 = 18;
const TUNNEL: u16 = 22;
const OBJECT: u16 = 30;
/// Attribute of an address (IFA_PROTO, `linux/if_addr.h`).
const SET_BY: u16 = 11;
/// Settings of IPv4 of a device (IFLA_INET_CONF), and two of them.
const INET_SETTINGS: u16 = 1;
const ARP_ANNOUNCE: u16 = 18;
const ARP_IGNORE: u16 = 19;
/// Types of a route, a flag of a next hop (RTNH_F_DEAD), one of a route that is a copy of another
/// (RTM_F_CLONED), and the families.
const KIND_UNICAST: u8 = 1;
const KIND_BLACKHOLE: u8 = 6;
const KIND_PROHIBIT: u8 = 8;
pub(super) const HOP_IS_DEAD: u8 = 1;
const IS_CLONED: u32 = 0x200;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
/// Bytes of the header of a message.
pub(super) const HEADER: usize = 16;
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

/// A route as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteNews<P: Family> {
    /// Added or replaced, else removed.
    pub is_there: bool,
    /// It takes the place of all others with its prefix and metric.
    pub replaces: bool,
    /// It stands behind those with its prefix and metric.
    pub is_appended: bool,
    /// The kernel's number of its table.
    pub table: u32,
    /// Destinations.
    pub prefix: P,
    /// The lowest counts.
    pub metric: u32,
    /// The kernel's number of the routing protocol.
    pub protocol: u8,
    /// Device, gateway (0: on the link) and weight of each next hop. Empty: packets are dropped.
    pub hops: Vec<KernelHop<P::Address>>,
    /// The object that it names for them.
    pub object: Option<u32>,
}

/// Device, gateway (0: on the link) and weight of a next hop.
pub type KernelHop<A> = (u32, A, u16);

/// A neighbour as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourNews {
    /// Its device.
    pub device: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address; None: it did not answer, or is forgotten.
    pub station: Option<MacAddress>,
    /// It has answered just now, or an operator says that it is there.
    pub is_confirmed: bool,
    /// The kernel still asks and has no answer yet.
    pub is_asked: bool,
    /// The kernel forgot it though it had answered: its table is full, or nobody asked for a while.
    pub is_collected: bool,
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

/// The messages of a datagram with their headers, up to one that is cut off.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let length = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize)?;
        let message = bytes.get(..length).filter(|_| length >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Reads the messages of a datagram. One that cannot be read is left out.
pub fn read_messages(bytes: &[u8], mut each: impl FnMut(u16, NetlinkPayload<RouteNetlinkMessage>)) {
    for message in messages(bytes) {
        let read = without_unread(message);
        if let Some(Ok(message)) = read.map(|read| NetlinkMessage::<RouteNetlinkMessage>::deserialize(&read)) {
            let (header, payload) = message.into_parts();
            each(header.flags, payload);
        }
    }
}

/// Two bytes of a message in the machine's order; 0 where it ends before.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |half| u16::from_ne_bytes(*half))
}

/// The same of four bytes.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Attributes (`struct rtattr`): kind without its flags, and value. Ends at one that is cut off.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let [low, high, kind @ ..] = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes(*kind) & 0x3fff, value))
    })
}

/// A message without the attributes that nobody reads here; None: nobody reads it. The library
/// panics at some attributes that are shorter than they should be.
fn without_unread(message: &[u8]) -> Option<Vec<u8>> {
    let kind = message.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |kind| u16::from_ne_bytes(*kind));
    // Length of what stands before the attributes, and which of them are read
    // (`linux/rtnetlink.h`, `linux/if_link.h`, `linux/if_addr.h`, `linux/neighbour.h`).
    let (fixed, read): (usize, &[u16]) = match kind {
        // Station, name, device below, controller, what it is, and its alias.
        16 | 17 => (16, &[1, 3, 5, 10, 18, 20]),
        // Address of the other end, own address, and who set it.
        20 | 21 => (8, &[1, 2, 11]),
        // Destination, device, gateway, metric, several next hops, table.
        NEW_ROUTE | DELETED_ROUTE => (12, &[1, 4, 5, 6, 9, 15]),
        // Destination and station.
        28 | 29 => (12, &[1, 2]),
        // Ends and errors.
        0..=15 => return Some(message.to_vec()),
        // Requests, too: the kernel receives them, but for RTM_GETNEIGH, with which it asks daemons
        // for a station if `app_solicit` is above 0. Natrix leaves neighbours to the kernel.
        _ => return None,
    };
    let (head, attributes) = message.split_at(message.len().min(HEADER + fixed));
    let mut kept = head.to_vec();
    keep_attributes(attributes, read, matches!(kind, NEW_ROUTE | DELETED_ROUTE), &mut kept);
    let length = kept.len() as u32;
    if let Some(field) = kept.first_chunk_mut() {
        *field = length.to_ne_bytes();
    }
    Some(kept)
}

/// Appends these kinds of attributes; of several next hops of a route (9) only their gateways.
fn keep_attributes(mut attributes: &[u8], read: &[u16], is_route: bool, kept: &mut Vec<u8>) {
    while let Some([low, high, kind @ ..]) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let Some(attribute) = attributes.get(..length).filter(|_| length >= 4) else { break };
        // Two bits are flags: nested, and byte order.
        let kind = u16::from_ne_bytes(*kind) & 0x3fff;
        if kind == 9 && is_route {
            let start = kept.len();
            kept.extend_from_slice(attribute.get(..4).unwrap_or_default());
            keep_hops(attribute.get(4..).unwrap_or_default(), kept);
            set_length(kept, start);
        } else if read.contains(&kind) {
            kept.extend_from_slice(attribute);
            kept.resize(kept.len().next_multiple_of(4), 0);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Appends next hops (`struct rtnexthop`) with their gateways (5) only.
fn keep_hops(mut hops: &[u8], kept: &mut Vec<u8>) {
    while let Some(length) = hops.first_chunk().map(|length| usize::from(u16::from_ne_bytes(*length))) {
        let Some(hop) = hops.get(..length).filter(|_| length >= 8) else { break };
        let start = kept.len();
        let (head, attributes) = hop.split_at(8);
        kept.extend_from_slice(head);
        keep_attributes(attributes, &[5], false, kept);
        set_length(kept, start);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Writes the length of what begins at `start` into its first two bytes.
fn set_length(kept: &mut [u8], start: usize) {
    let length = (kept.len() - start) as u16;
    if let Some(field) = kept.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *field = length.to_ne_bytes();
    }
}

/// Whether a message is about a route.
pub fn is_route(message: &[u8]) -> bool {
    matches!(half(message, 4), NEW_ROUTE | DELETED_ROUTE)
}

/// The next hop that a route names as an object, if it does.
pub fn object_of_route(message: &[u8]) -> Option<u32> {
    let mut all = attributes(message.get(HEADER + 12..).filter(|_| is_route(message))?);
    all.find_map(|(kind, value)| (kind == OBJECT && value.len() == 4).then(|| word(value, 0)))
}

/// Whether a message says that a route of Natrix itself was removed.
pub fn is_own_route_gone(message: &[u8]) -> bool {
    half(message, 4) == DELETED_ROUTE && message.get(HEADER + 5) == Some(&PROTOCOL_NATRIX)
}

/// Whether a message says that a route has taken the place of another one, whose protocol the
/// kernel does not name.
pub fn is_replacement(message: &[u8]) -> bool {
    half(message, 4) == NEW_ROUTE && half(message, 6) & NLM_F_REPLACE != 0
}

/// Whether a message is about a route of this family.
fn is_of<P: Family>(family: u8) -> bool {
    family == if P::LENGTH_MAX == 32 { FAMILY_IPV4 } else { FAMILY_IPV6 }
}

/// The address in an attribute, if it is one of this family.
fn address_in<P: Family>(value: &[u8]) -> Option<P::Address> {
    (value.len() == usize::from(P::LENGTH_MAX) / 8).then(|| P::read(value))
}

/// The route of a family in a message, if it is one that packets can take. `objects` are the next
/// hops that routes only name. It is read where it lies, without the library: a full table comes as
/// a million messages.
pub fn route_news<P: Family>(message: &[u8], objects: &NextHopObjects) -> Option<RouteNews<P>> {
    let is_there = match half(message, 4) {
        NEW_ROUTE => true,
        DELETED_ROUTE => false,
        _ => return None,
    };
    let replaces = half(message, 6) & NLM_F_REPLACE != 0;
    let is_appended = half(message, 6) & NLM_F_APPEND != 0;
    // `struct rtmsg`: family, lengths of destination and source, type of service, table, protocol,
    // scope, type, flags.
    let [family, length, source_length, service, table, protocol, _, kind, ..] =
        *message.get(HEADER..)?.first_chunk::<12>()?;
    // Routes by source or type of service are of no use to a NAT, and its own routes are for
    // others.
    let is_special = source_length != 0 || service != 0 || word(message, HEADER + 8) & IS_CLONED != 0;
    if !is_of::<P>(family) || is_special || protocol == PROTOCOL_NATRIX {
        return None;
    }
    let drops = match kind {
        KIND_UNICAST => false,
        KIND_BLACKHOLE..=KIND_PROHIBIT => true,
        _ => return None,
    };
    let mut address = P::Address::default();
    let (mut table, mut metric, mut device, mut gateway) = (u32::from(table), 0, None, P::Address::default());
    let (mut hops, mut is_plain, mut object) = (Vec::new(), true, None);
    for (kind, value) in attributes(message.get(HEADER + 12..)?) {
        match (kind, value.len()) {
            (DESTINATION, _) => address = address_in::<P>(value).unwrap_or(address),
            (DEVICE, 4) => device = Some(word(value, 0)),
            (GATEWAY, _) => gateway = address_in::<P>(value).unwrap_or(gateway),
            // A router of the other family (RFC 8950), whose station nobody here asks for, or a
            // tunnel that the kernel would put the packet into.
            (VIA | TUNNEL, _) => is_plain = false,
            (METRIC, 4) => metric = word(value, 0),
            (TABLE, 4) => table = word(value, 0),
            (SEVERAL_HOPS, _) => hops.extend(several_hops::<P>(value)),
            (OBJECT, 4) => object = Some(word(value, 0)),
            _ => {}
        }
    }
    match (device, object) {
        // Its attributes may repeat it, but not all of them: dead next hops and weights above 256.
        (_, Some(id)) if objects.has(id) => hops = objects.hops_of::<P>(id),
        (Some(device), _) if hops.is_empty() && is_plain => hops.push((device, gateway, 1)),
        _ => {}
    }
    match drops {
        true => hops.clear(),
        // By a router of the other family, by a tunnel, or by nothing.
        false if hops.is_empty() && is_there => return None,
        false => {}
    }
    let prefix = P::of(address, length)?;
    Some(RouteNews { is_there, replaces, is_appended, table, prefix, metric, protocol, hops, object })
}

/// The next hops (`struct rtnexthop`) that are not dead.
fn several_hops<P: Family>(mut bytes: &[u8]) -> impl Iterator<Item = KernelHop<P::Address>> {
    core::iter::from_fn(move || {
        loop {
            let [_, _, flags, weight, ..] = *bytes.first_chunk::<8>()?;
            let length = usize::from(half(bytes, 0));
            let hop = bytes.get(..length).filter(|_| length >= 8)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            let (mut gateway, mut is_plain) = (P::Address::default(), true);
            for (kind, value) in attributes(hop.get(8..)?) {
                match kind {
                    GATEWAY => gateway = address_in::<P>(value).unwrap_or(gateway),
                    VIA | TUNNEL => is_plain = false,
                    _ => {}
                }
            }
            if is_plain && flags & HOP_IS_DEAD == 0 {
                // The kernel's numbers begin at 0.
                return Some((word(hop, 4), gateway, u16::from(weight) + 1));
            }
        }
    })
}

/// The neighbour in a message.
pub fn neighbour_news(message: &RouteNetlinkMessage) -> Option<NeighbourNews> {
    let (neighbour, is_there) = match message {
        RouteNetlinkMessage::NewNeighbour(neighbour) => (neighbour, true),
        RouteNetlinkMessage::DelNeighbour(neighbour) => (neighbour, false),
        _ => return None,
    };
    let NeighbourMessage { header, attributes, .. } = neighbour;
    let address = attributes.iter().find_map(|attribute| match (header.family, attribute) {
        (AddressFamily::Inet, NeighbourAttribute::Destination(NeighbourAddress::Inet(address))) => {
            Some(IpAddr::V4(*address))
        }
        (AddressFamily::Inet6, NeighbourAttribute::Destination(NeighbourAddress::Inet6(address))) => {
            // Stations of groups follow from their addresses.
            Some(IpAddr::V6(*address)).filter(|_| !ipv6::is_multicast(address.to_bits()))
        }
        _ => None,
    })?;
    let station = attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLocalAddress(bytes) => bytes.as_slice().try_into().ok().map(MacAddress),
        _ => None,
    });
    let is_known = matches!(
        header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let is_confirmed = is_there
        && matches!(header.state, NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp);
    let is_asked = is_there && matches!(header.state, NeighbourState::Incomplete | NeighbourState::None);
    let station = station.filter(|_| is_there && is_known);
    let is_collected = !is_there && is_known;
    Some(NeighbourNews { device: header.ifindex, address, station, is_confirmed, is_asked, is_collected })
}

/// Asks the kernel to resolve a neighbour, or to check that it is still there.
pub fn resolve(device: u32, address: IpAddr) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address);
    message.header.ifindex = device;
    message.header.state = NeighbourState::None;
    message.header.flags = NeighbourFlags::Use;
    message.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }));
    RouteNetlinkMessage::NewNeighbour(message)
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Asks for all neighbours of both families.
pub fn all_neighbours() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default())
}

/// Asks for all routes of a family.
pub fn all_routes<P: Family>() -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(P::ip(P::Address::default()));
    RouteNetlinkMessage::GetRoute(message)
}

/// Asks for the routes of a family that Natrix made: see [`Netlink::filter_dumps`].
pub fn routes_of_natrix<P: Family>() -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(P::ip(P::Address::default()));
    message.header.protocol = RouteProtocol::from(PROTOCOL_NATRIX);
    RouteNetlinkMessage::GetRoute(message)
}

/// Asks for all links.
pub fn all_links() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(LinkMessage::default())
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
    /// Nobody else has it.
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

/// Table, first address and length of a route's prefix.
pub fn place_of(route: &RouteMessage) -> Option<(u32, IpAddr, u8)> {
    let all = || route.attributes.iter();
    let address = all().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    let table = all().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    Some((table?, address?, route.header.destination_prefix_length))
}

/// A route of Natrix that shows the kernel and routing daemons that a prefix is served here: of a
/// pool, or of IPv6 hosts on their way to it.
pub fn announcement<P: Family>(table: u32, prefix: P) -> RouteMessage {
    let mut message = RouteMessage::default();
    let first = P::ip(prefix.first());
    message.header.address_family = family_of(first);
    message.header.destination_prefix_length = prefix.bits();
    // A table that does not fit is in its attribute only.
    message.header.table = u8::try_from(table).unwrap_or(0);
    message.header.protocol = RouteProtocol::from(PROTOCOL_NATRIX);
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::BlackHole;
    message.attributes.push(RouteAttribute::Destination(match first {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }));
    message.attributes.push(RouteAttribute::Table(table));
    message
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use nat::stand_in::Prefix6;
    use nat::types::Prefix;
    use netlink_packet_route::route::RouteNextHop;
    use netlink_packet_route::route::RouteNextHopFlags;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    /// The route in a message as the library reads it.
    fn by_library(message: &RouteNetlinkMessage) -> Option<RouteNews<Prefix>> {
        let (route, is_there) = match message {
            RouteNetlinkMessage::NewRoute(route) => (route, true),
            RouteNetlinkMessage::DelRoute(route) => (route, false),
            _ => return None,
        };
        let RouteMessage { header, attributes, .. } = route;
        let protocol = u8::from(header.protocol);
        // Routes by type of service are of no use to a NAT, and its own routes are for others.
        if header.address_family != AddressFamily::Inet || header.tos != 0 || protocol == PROTOCOL_NATRIX {
            return None;
        }
        let drops = match header.kind {
            RouteType::Unicast => false,
            RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => true,
            _ => return None,
        };
        let mut news = RouteNews {
            is_there,
            replaces: false,
            is_appended: false,
            table: header.table.into(),
            prefix: Prefix::new(Ipv4Addr::UNSPECIFIED, header.destination_prefix_length)?,
            metric: 0,
            protocol,
            hops: Vec::new(),
            object: None,
        };
        let (mut device, mut gateway) = (None, 0);
        for attribute in attributes {
            match attribute {
                RouteAttribute::Table(table) => news.table = *table,
                RouteAttribute::Priority(metric) => news.metric = *metric,
                RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                    news.prefix = Prefix::new(*address, header.destination_prefix_length)?;
                }
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = address.to_bits(),
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops.iter().filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead)) {
                        let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                            RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(address.to_bits()),
                            _ => None,
                        });
                        // The kernel's numbers begin at 0.
                        news.hops.push((hop.interface_index, gateway.unwrap_or(0), u16::from(hop.hops) + 1));
                    }
                }
                _ => {}
            }
        }
        if let Some(device) = device.filter(|_| news.hops.is_empty()) {
            news.hops.push((device, gateway, 1));
        }
        match drops {
            true => news.hops.clear(),
            // By a device of IPv6, or by nothing.
            false if news.hops.is_empty() && is_there => return None,
            false => {}
        }
        Some(news)
    }

    fn bytes_of(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::from(message);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    /// As the kernel sends it.
    fn news(message: RouteNetlinkMessage) -> Option<RouteNews<Prefix>> {
        let by_library = by_library(&message);
        let read = route_news(&bytes_of(message), &NextHopObjects::default());
        assert_eq!(read, by_library);
        read
    }

    proptest! {
        #[test]
        fn routes_are_read_as_the_library_reads_them(
            (is_new, kind, protocol, service, length) in (any::<bool>(), 0_u8..12, any::<u8>(), 0_u8..2, 0_u8..40),
            (metric, table) in (option::of(any::<u32>()), option::of(any::<u32>())),
            (device, via) in (option::of(any::<u32>()), option::of(any::<u8>())),
            several in option::of(vec((any::<u32>(), any::<u8>(), any::<bool>(), option::of(any::<u8>())), 0..5)),
        ) {
            let mut message = RouteMessage::default();
            message.header.address_family = AddressFamily::Inet;
            message.header.destination_prefix_length = length;
            message.header.tos = service;
            message.header.table = TABLE_MAIN as u8;
            message.header.protocol = protocol.into();
            message.header.kind = kind.into();
            let hops = several.map(|several| {
                let hop = |(device, weight, is_dead, via): (u32, u8, bool, Option<u8>)| {
                    let mut hop = RouteNextHop::default();
                    (hop.interface_index, hop.hops) = (device, weight);
                    hop.flags = if is_dead { RouteNextHopFlags::Dead } else { RouteNextHopFlags::empty() };
                    hop.attributes = via.map(gateway).into_iter().collect();
                    hop
                };
                RouteAttribute::MultiPath(several.into_iter().map(hop).collect())
            });
            let given = [
                Some(RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(198, 51, 100, 0)))),
                metric.map(RouteAttribute::Priority),
                table.map(RouteAttribute::Table),
                device.map(RouteAttribute::Oif),
                via.map(gateway),
                hops,
            ];
            message.attributes = given.into_iter().flatten().collect();
            news(if is_new { RouteNetlinkMessage::NewRoute(message) } else { RouteNetlinkMessage::DelRoute(message) });
        }

        #[test]
        fn any_bytes_are_a_route_or_none(bytes in vec(any::<u8>(), 0..120), kind in 24_u16..26) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(4..6) {
                place.copy_from_slice(&kind.to_ne_bytes());
            }
            // A family, so that more than the first look happens.
            for family in [FAMILY_IPV4, FAMILY_IPV6] {
                if let Some(place) = bytes.get_mut(HEADER) {
                    *place = family;
                }
                if let Some(news) = route_news::<Prefix>(&bytes, &NextHopObjects::default()) {
                    prop_assert!(news.prefix.length() <= 32 && news.hops.len() <= 1 + bytes.len() / 8);
                }
                if let Some(news) = route_news::<Prefix6>(&bytes, &NextHopObjects::default()) {
                    prop_assert!(news.prefix.length() <= 128 && news.hops.len() <= 1 + bytes.len() / 8);
                }
            }
        }
    }

    fn route(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteNetlinkMessage {
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

    fn gateway(last: u8) -> RouteAttribute {
        RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(192, 0, 2, last)))
    }

    #[test]
    fn next_hops_of_a_route_are_read() {
        let one = route(RouteType::Unicast, vec![RouteAttribute::Oif(7), gateway(1), RouteAttribute::Priority(20)]);
        let read = news(one).unwrap();
        assert_eq!((read.metric, read.protocol, read.table), (20, 186, 254));
        assert_eq!(read.hops, [(7, 0xc000_0201, 1)]);
        let hop = |interface_index, hops, last| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.hops, hop.attributes) = (interface_index, hops, vec![gateway(last)]);
            hop
        };
        let several = RouteAttribute::MultiPath(vec![hop(7, 0, 1), hop(8, 2, 2)]);
        let read = news(route(RouteType::Unicast, vec![several])).unwrap();
        assert_eq!(read.hops, [(7, 0xc000_0201, 1), (8, 0xc000_0202, 3)]);
    }

    fn address6(text: &str) -> u128 {
        text.parse::<core::net::Ipv6Addr>().unwrap().to_bits()
    }

    fn route6(attributes: Vec<RouteAttribute>) -> Vec<u8> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.destination_prefix_length = 56;
        message.header.table = TABLE_MAIN as u8;
        message.header.protocol = RouteProtocol::Ospf;
        message.header.kind = RouteType::Unicast;
        message.attributes = attributes;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet6("2001:db8:1:2300::".parse().unwrap())));
        bytes_of(RouteNetlinkMessage::NewRoute(message))
    }

    #[test]
    fn routes_of_ipv6_are_read_with_link_local_routers() {
        let gateway = |text: &str| RouteAttribute::Gateway(RouteAddress::Inet6(text.parse().unwrap()));
        let one = route6(vec![RouteAttribute::Oif(7), gateway("fe80::1"), RouteAttribute::Priority(20)]);
        let read = route_news::<Prefix6>(&one, &NextHopObjects::default()).unwrap();
        assert_eq!((read.metric, read.protocol, read.table), (20, 188, 254));
        assert_eq!(read.prefix.to_string(), "2001:db8:1:2300::/56");
        assert_eq!(read.hops, [(7, address6("fe80::1"), 1)]);
        assert_eq!(route_news::<Prefix>(&one, &NextHopObjects::default()), None, "it is of the other family");
        let hop = |interface_index, hops, text| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.hops, hop.attributes) = (interface_index, hops, vec![gateway(text)]);
            hop
        };
        let several = RouteAttribute::MultiPath(vec![hop(7, 0, "fe80::1"), hop(8, 2, "2001:db8::2")]);
        let read = route_news::<Prefix6>(&route6(vec![several]), &NextHopObjects::default()).unwrap();
        assert_eq!(read.hops, [(7, address6("fe80::1"), 1), (8, address6("2001:db8::2"), 3)]);
    }

    #[test]
    fn a_router_of_the_other_family_is_no_next_hop() {
        let via = RouteAttribute::Via(netlink_packet_route::route::RouteVia::Inet6("fe80::1".parse().unwrap()));
        let message = route(RouteType::Unicast, vec![RouteAttribute::Oif(7), via]);
        assert_eq!(route_news::<Prefix>(&bytes_of(message), &NextHopObjects::default()), None);
    }

    #[test]
    fn neighbours_of_both_families_are_read() {
        let station = MacAddress([2, 0, 0, 0, 0, 9]);
        for address in ["192.0.2.9", "2001:db8::9", "fe80::9"] {
            let address: IpAddr = address.parse().unwrap();
            let RouteNetlinkMessage::NewNeighbour(mut message) = resolve(7, address) else { panic!("a neighbour") };
            message.header.state = NeighbourState::Reachable;
            message.attributes.push(NeighbourAttribute::LinkLocalAddress(station.0.to_vec()));
            let read = neighbour_news(&RouteNetlinkMessage::NewNeighbour(message)).unwrap();
            assert_eq!((read.device, read.address, read.station), (7, address, Some(station)));
            assert!(read.is_confirmed);
        }
        let RouteNetlinkMessage::NewNeighbour(mut stale) = resolve(7, Ipv4Addr::new(192, 0, 2, 9).into()) else {
            return;
        };
        stale.header.state = NeighbourState::Stale;
        assert!(!neighbour_news(&RouteNetlinkMessage::NewNeighbour(stale)).unwrap().is_confirmed);
        assert_eq!(neighbour_news(&resolve(7, "ff02::1".parse().unwrap())), None, "a group is no neighbour");
    }

    #[test]
    fn routes_that_no_packet_can_take_are_left_out() {
        assert_eq!(news(route(RouteType::Local, vec![RouteAttribute::Oif(7)])), None);
        assert_eq!(news(route(RouteType::Unicast, Vec::new())), None);
        assert_eq!(news(route(RouteType::BlackHole, Vec::new())).unwrap().hops, []);
        let own = announcement(TABLE_MAIN, Prefix::host(Ipv4Addr::new(203, 0, 113, 1)));
        assert_eq!(news(RouteNetlinkMessage::NewRoute(own)), None);
    }

    #[test]
    fn a_route_that_names_its_next_hop_has_those_of_the_object() {
        let mut objects = NextHopObjects::default();
        let mut message = bytes_of(route(RouteType::Unicast, Vec::new()));
        let named = [&8_u16.to_ne_bytes()[..], &OBJECT.to_ne_bytes(), &6_u32.to_ne_bytes()].concat();
        message.extend_from_slice(&named);
        assert_eq!(object_of_route(&message), Some(6));
        assert_eq!(route_news::<Prefix>(&message, &objects), None, "it is not known yet");
        // Number 6: by device 3.
        let mut object = vec![0; HEADER + 8];
        object[4..6].copy_from_slice(&NEW_NEXT_HOP.to_ne_bytes());
        for (kind, value) in [(1_u16, 6_u32), (5, 3)] {
            object.extend([&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat());
        }
        assert!(objects.take_in(&object));
        let read = route_news::<Prefix>(&message, &objects).unwrap();
        assert_eq!((read.hops, read.object), (vec![(3, 0, 1)], Some(6)));
        assert_eq!(object_of_route(&object), None, "no route");
    }

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
    fn a_message_comes_back_from_its_bytes() {
        let bytes = bytes_of(route(RouteType::Unicast, vec![RouteAttribute::Oif(7), gateway(1)]));
        let both = [bytes.as_slice(), bytes.as_slice()].concat();
        let mut found = 0;
        for length in 0..=both.len() {
            found = 0;
            read_messages(&both[..length], |_, payload| {
                found += usize::from(matches!(payload, NetlinkPayload::InnerMessage(_)));
            });
        }
        assert_eq!(found, 2);
    }

    #[test]
    fn own_routes_that_go_are_noticed() {
        let own = || announcement(TABLE_MAIN, Prefix::host(Ipv4Addr::new(203, 0, 113, 1)));
        assert!(is_own_route_gone(&bytes_of(RouteNetlinkMessage::DelRoute(own()))));
        assert!(!is_own_route_gone(&bytes_of(RouteNetlinkMessage::NewRoute(own()))));
        let RouteNetlinkMessage::NewRoute(other) = route(RouteType::Unicast, vec![gateway(1)]) else { return };
        assert!(!is_own_route_gone(&bytes_of(RouteNetlinkMessage::DelRoute(other))));
    }

    #[test]
    fn a_forgotten_neighbour_is_told_from_one_that_failed() {
        let RouteNetlinkMessage::NewNeighbour(mut message) = resolve(7, Ipv4Addr::new(192, 0, 2, 9).into()) else {
            panic!("a neighbour")
        };
        let mut collected = |state| {
            message.header.state = state;
            neighbour_news(&RouteNetlinkMessage::DelNeighbour(message.clone())).unwrap().is_collected
        };
        assert!(collected(NeighbourState::Stale));
        assert!(!collected(NeighbourState::Failed));
    }

    #[test]
    fn addresses_of_natrix_are_told_from_those_of_others() {
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
