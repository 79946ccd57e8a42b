//! Natrix itself as a host: ping and traceroute to its own addresses, and the ICMP errors it originates.

use core::net::Ipv4Addr;

use super::Arrival;
use super::Fate;
use super::Shard;
use super::inbound::Via;
use crate::own_icmp;
use crate::own_icmp::ERROR_MAX;
use crate::own_icmp::IcmpError;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::parse::get_u32;
use crate::parse::ip;
use crate::parse::parse;
use crate::parse::source_is_valid;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::Side;
use crate::verdict::Verdict;

/// Why Natrix tells a sender that its packet ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// RFC 5508 §7 REQ-10a2.
    TtlExpired,
    /// RFC 4787 §11 REQ-13, with the MTU of the next link.
    TooBig(u16),
    NetUnreachable,
    HostUnreachable,
    PortUnreachable,
    /// RFC 6888 REQ-11b or RFC 5508 REQ-8, with the configured code.
    NoResources(u8),
}

impl Reason {
    fn message(self) -> IcmpError {
        match self {
            Reason::TtlExpired => IcmpError::TtlExceeded,
            Reason::TooBig(next_hop_mtu) => IcmpError::TooBig { next_hop_mtu },
            Reason::NetUnreachable => IcmpError::Unreachable(0),
            Reason::HostUnreachable => IcmpError::Unreachable(1),
            Reason::PortUnreachable => IcmpError::Unreachable(3),
            Reason::NoResources(code) => IcmpError::Unreachable(code),
        }
    }
}

impl Shard {
    /// A packet to an address of Natrix itself.
    #[cold]
    #[inline(never)]
    pub(super) fn local_packet<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        side: Side,
        bytes: &mut [u8],
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        if let Some(verdict) = self.check_source(self.facing_towards(side, meta), parsed.source) {
            return Fate::Done(verdict);
        }
        match parsed.class {
            Class::IcmpRequest if self.shared.settings().icmp.answer_echo => {
                self.answer_echo(self.shared.facing(meta.ingress), bytes, parsed, sink)
            }
            // Traceroute ends at the port unreachable of its destination.
            Class::Udp => {
                self.send_error(now, side, meta, Reason::PortUnreachable, bytes, sink);
                Fate::Done(Verdict::Local)
            }
            _ => Fate::Done(Verdict::LocalIgnored),
        }
    }

    fn answer_echo<S: Sink>(&mut self, towards: Facing, bytes: &mut [u8], parsed: &Parsed, sink: &mut S) -> Fate {
        let Some(hop) = self.shared.route(towards, parsed.source).copied() else {
            return Fate::Done(Verdict::NoRoute);
        };
        let own = Ipv4Addr::from_bits(parsed.destination);
        let identification = self.identifications.next(own, Ipv4Addr::from_bits(parsed.source), parsed.protocol_number);
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let Some(length) = own_icmp::echo_reply(packet, identification) else {
            return Fate::Done(Verdict::LocalIgnored);
        };
        let egress = hop.egress(parsed.source);
        if length > usize::from(hop.mtu) {
            let Ok(reply) = parse(packet) else { return Fate::Done(Verdict::LocalIgnored) };
            return self.send_in_fragments(packet, &reply, hop.mtu, egress, Verdict::Local, sink);
        }
        self.counters.originated += 1;
        Fate::Forward { verdict: Verdict::Local, egress, length: length as u16 }
    }

    /// The way back of a packet that came from this side.
    fn facing_towards(&self, side: Side, meta: PacketMeta) -> Facing {
        match side {
            Side::Inside => Facing::inside(self.shared.realm_of(meta.ingress)),
            Side::Outside => Facing::OUTSIDE,
        }
    }

    /// Tells the sender of `bytes`, an untouched packet that came from `towards`, why it ends here; within
    /// the limits of RFC 1812 §4.3.2.7 and §4.3.2.8 and of the operator's policy.
    #[cold]
    #[inline(never)]
    pub(super) fn send_error<S: Sink>(
        &mut self,
        now: Instant,
        towards: Side,
        meta: PacketMeta,
        reason: Reason,
        bytes: &[u8],
        sink: &mut S,
    ) {
        let policy = self.shared.settings().icmp;
        let wanted = match towards {
            Side::Inside => policy.errors_to_inside,
            Side::Outside => policy.errors_to_outside,
        };
        let to = get_u32(bytes, ip::SOURCE);
        if !wanted || !own_icmp::may_answer(bytes) || !source_is_valid(to) {
            return;
        }
        let hairpinned = self.local.lookup(to).and_then(|local| local.pool_address()).is_some();
        if !hairpinned && self.local.lookup(to).is_some() {
            return;
        }
        // A hairpinned packet shows its sender's external address here, which no route leads to: any inside
        // address of Natrix will do as the source then.
        let towards = self.facing_towards(towards, meta);
        let from = if hairpinned {
            self.shared.any_own_address(towards)
        } else {
            self.shared.own_address_towards(towards, to)
        };
        let Some(from) = from else { return };
        if !self.icmp_limit.allow(now, (towards, Ipv4Addr::from_bits(to))) {
            self.counters.icmp_errors_suppressed += 1;
            return;
        }
        let identification = self.identifications.next(Ipv4Addr::from_bits(from), Ipv4Addr::from_bits(to), 1);
        let mut buffer = [0u8; ERROR_MAX];
        let length =
            own_icmp::write_error(&mut buffer, reason.message(), Ipv4Addr::from_bits(from), identification, bytes);
        let message = &mut buffer[..length];
        if hairpinned {
            self.send_error_through_hairpin(now, meta, message, sink);
            return;
        }
        let Some(hop) = self.shared.route(towards, to) else { return };
        if sink.transmit(hop.egress(to), &[message]) {
            self.counters.originated += 1;
        }
    }

    /// The sender of a hairpinned packet is known here by its external endpoint only: the error goes the way
    /// of any error about that endpoint, perhaps to another worker.
    fn send_error_through_hairpin<S: Sink>(
        &mut self,
        now: Instant,
        meta: PacketMeta,
        message: &mut [u8],
        sink: &mut S,
    ) {
        let Ok(parsed) = parse(message) else { return };
        match self.inbound_error(Arrival { now, meta, parsed: &parsed }, message, Via::Hairpin, sink) {
            Fate::Forward { egress, length, .. } => {
                // Natrix's own message is no packet received: it has no verdict.
                if sink.transmit(egress, &[message.get(..usize::from(length)).unwrap_or(message)]) {
                    self.counters.originated += 1;
                }
            }
            Fate::HandOff { worker, meta } => {
                let meta = PacketMeta { stage: Stage::OwnError, ..meta };
                if sink.hand_off(worker, meta, &[message]) {
                    self.counters.originated += 1;
                }
            }
            Fate::Done(_) | Fate::Held => {}
        }
    }
}
