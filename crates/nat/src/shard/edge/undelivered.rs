//! Packets to an IPv6 host whose neighbour does not answer (RFC 4861 §7.2.2).
//!
//! The error that a router would send is taken from the host as its other errors are: translated,
//! or out of its softwire.

use core::net::Ipv4Addr;

use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::headers::icmp_quote;
use crate::headers::own_icmp;
use crate::headers::own_icmp6;
use crate::headers::own_icmp6::Problem;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::shard::edge::ROOM;
use crate::shard::edge::arrive::Incoming;
use crate::shard::edge::enter::take_from_softwire;
use crate::shard::packet::PacketPath;
use crate::shard::packet::local::Reason;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::time::Instant;
use crate::types::InterfaceId;
use crate::types::Side;

/// What an error quotes of a packet: as IPv4, no more than other own errors.
const QUOTED_MAX: usize = own_icmp::ERROR_MAX - ip::HEADER_MIN - wire::icmp::HEADER_LENGTH;
/// The same as IPv6, whose header is longer.
const QUOTED6_MAX: usize = QUOTED_MAX + ipv6::HEADER_LENGTH - ip::HEADER_MIN;

impl PacketPath {
    /// As [`PacketPath::report_undelivered`]. Only the worker of a host sends to it.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn report_undelivered_to_host(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        packet: &[u8],
        sink: &mut dyn Sink,
    ) {
        let facing = self.ledger.shared.facing(interface);
        let Ok(view) = Ipv6::new_checked(packet) else { return };
        if facing.side == Side::Outside || !own_icmp6::may_answer(view.packet()) {
            return;
        }
        let mut frame = [0; ROOM + own_icmp6::ERROR_MAX];
        let meta = PacketMeta { ingress: interface, ..PacketMeta::default() };
        // Packets of Natrix itself have another source.
        let taken = match self.ledger.shared.transition.way_of(facing.realm, view.source()) {
            Some(Way::Nat64(_)) => self.take_error_from_nat64(now, meta, view.packet(), &mut frame),
            Some(way @ Way::Softwire(_)) => self.take_error_from_softwire(meta, way, view.packet(), &mut frame),
            None => None,
        };
        let Some(message) = taken.and_then(|(start, end)| frame.get_mut(start..end)) else { return };
        let Ok(quote) = icmp_quote::parse(message) else { return };
        let flow = (Some(quote.protocol), quote.source, quote.destination);
        let sender = self.view().sender_of(now, flow, Side::Inside);
        if self.may_report(now, sender) {
            self.report_by(now, interface, message, sink);
        }
    }

    /// Writes the error about a translated packet, as IPv4, and returns where in the frame it is.
    fn take_error_from_nat64(
        &mut self,
        now: Instant,
        meta: PacketMeta,
        undelivered: &[u8],
        frame: &mut [u8; ROOM + own_icmp6::ERROR_MAX],
    ) -> Option<(usize, usize)> {
        let from = Ipv6::new_unchecked(undelivered).destination();
        let quoted = undelivered.get(..QUOTED6_MAX).unwrap_or(undelivered);
        let room = frame.get_mut(ROOM..)?.first_chunk_mut()?;
        let end = ROOM + own_icmp6::write_error(room, Problem::ADDRESS_UNREACHABLE, from, quoted);
        let mut error = Packet::in_frame(frame.get_mut(..end)?, ROOM as u16, meta);
        match self.look_at_edge(&mut error).ok()? {
            Incoming::Nat64 { headers, destination, key, hash } => {
                self.enter_by_nat64(now, &mut error, &headers, destination, (key, hash)).ok()?;
            }
            _ => return None,
        }
        Some((usize::from(error.start()), end))
    }

    /// Writes the error about a packet in a softwire, and returns where in the frame it is.
    fn take_error_from_softwire(
        &self,
        meta: PacketMeta,
        way: Way,
        undelivered: &[u8],
        frame: &mut [u8; ROOM + own_icmp6::ERROR_MAX],
    ) -> Option<(usize, usize)> {
        let chain = ipv6::chain_to_transport(undelivered).ok()?;
        let inner = undelivered.get(chain.offset..)?;
        let is_own = get_u32(inner, ip::SOURCE) == AFTR_INSIDE;
        if chain.protocol != ipv6::PROTOCOL_IPV4 || is_own || !own_icmp::may_answer(inner) {
            return None;
        }
        let (b4, host) = (Ipv6::new_unchecked(undelivered).destination(), get_u32(inner, ip::DESTINATION));
        let key = HostKey { address: b4, inner: host, way };
        let hosts = &self.ledger.state.subscribers.hosts;
        let number = hosts.find(hosts.hash_of(&key), &key)?;
        let from = Ipv4Addr::from_bits(host);
        let room = frame.first_chunk_mut::<{ own_icmp::ERROR_MAX }>()?;
        let end = own_icmp::write_error(room, Reason::HostUnreachable.message(), from, 0, inner);
        let mut error = Packet::in_frame(frame.get_mut(..end)?, 0, meta);
        let parsed = parse(error.bytes()).ok()?;
        take_from_softwire(&mut error, 0, &parsed, (number, &key), hosts).ok()?;
        Some((0, end))
    }
}
