//! Natrix as a host: replies to ping and traceroute, and its own ICMP errors.

use crate::steps::untranslated::LocalAnswer;
use core::net::Ipv4Addr;

use crate::headers::own_icmp;
use crate::headers::own_icmp::ERROR_MAX;
use crate::headers::own_icmp::HOST_ERROR_MAX;
use crate::headers::own_icmp::IcmpError;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::headers::parse::source_is_valid;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
pub(in crate::shard) use crate::steps::way::Reason;
use crate::time::Instant;
use crate::types::DUMMY;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::Side;
use crate::verdict::Verdict;

impl Reason {
    pub(in crate::shard) fn message(self) -> IcmpError {
        match self {
            Reason::TtlExpired => IcmpError::TtlExceeded,
            Reason::TooBig(next_hop_mtu) => IcmpError::TooBig { next_hop_mtu },
            Reason::NetUnreachable => IcmpError::Unreachable(0),
            Reason::HostUnreachable => IcmpError::Unreachable(1),
            Reason::PortUnreachable => IcmpError::Unreachable(3),
            Reason::SourceRouteFailed => IcmpError::Unreachable(5),
            Reason::NoResources(code) => IcmpError::Unreachable(code),
        }
    }
}

impl PacketPath {
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn local_packet(
        &mut self,
        at: Arrival<'_>,
        (side, answer): (Side, Result<LocalAnswer, Verdict>),
        bytes: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        match answer {
            Ok(LocalAnswer::EchoReply) => {
                self.answer_echo(self.ledger.shared.facing(meta.ingress), bytes, parsed, sink)
            }
            // IPv6 hosts are served at the edge, under other addresses.
            Ok(LocalAnswer::PortControl) if HostNumber(parsed.source).is_ipv6() => Fate::Done(Verdict::LocalIgnored),
            Ok(LocalAnswer::PortControl) => self.serve_port_control(at, bytes, sink),
            Ok(LocalAnswer::PortUnreachable) => {
                self.send_error(now, side, meta, Reason::PortUnreachable, bytes, sink);
                Fate::Done(Verdict::Local)
            }
            Err(verdict) => Fate::Done(verdict),
        }
    }

    fn answer_echo(&mut self, towards: Facing, bytes: &mut [u8], parsed: &Parsed, sink: &mut dyn Sink) -> Fate {
        let Some(hop) = self.ledger.shared.route(towards, parsed.source, parsed.destination) else {
            return Fate::Done(Verdict::NoRoute);
        };
        let own = Ipv4Addr::from_bits(parsed.destination);
        let identification = self.identifications.next(own, Ipv4Addr::from_bits(parsed.source), parsed.protocol_number);
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let is_host = towards.side == Side::Inside && HostNumber(parsed.source).is_ipv6();
        let reply = if is_host { own_icmp::echo_reply_to_host } else { own_icmp::echo_reply };
        let Some(length) = reply(packet, identification) else {
            return Fate::Done(Verdict::LocalIgnored);
        };
        let egress = hop.egress();
        if length > usize::from(hop.mtu) {
            let Ok(reply) = parse(packet) else { return Fate::Done(Verdict::LocalIgnored) };
            return self.send_in_fragments(packet, &reply, hop.mtu, egress, Verdict::Local, sink);
        }
        self.ledger.counters.originated += 1;
        Fate::Forward { verdict: Verdict::Local, egress, length: length as u16 }
    }

    /// A source route to an address with IPv6 hosts behind it is answered (RFC 7915 §4.1).
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn refuse_unread(
        &mut self,
        now: Instant,
        meta: PacketMeta,
        bytes: &[u8],
        verdict: Verdict,
        sink: &mut dyn Sink,
    ) -> Fate {
        let is_from_outside = meta.stage == Stage::Received && self.ledger.shared.side(meta.ingress) == Side::Outside;
        let is_to_hosts = !self.ledger.shared.transition.is_off()
            && self.ledger.local.lookup(get_u32(bytes, ip::DESTINATION)).is_some_and(|it| it.pool_address().is_some());
        let options = wire::ipv4::Ipv4::new_unchecked(bytes);
        if verdict == Verdict::SourceRoute
            && is_from_outside
            && is_to_hosts
            && wire::ipv4::has_unexpired_source_route(options.options())
        {
            self.send_error(now, Side::Outside, meta, Reason::SourceRouteFailed, bytes, sink);
        }
        Fate::Done(verdict)
    }

    fn facing_towards(&self, side: Side, meta: PacketMeta) -> Facing {
        match side {
            Side::Inside => Facing::inside(self.ledger.shared.realm_of(meta.ingress)),
            Side::Outside => Facing::OUTSIDE,
        }
    }

    /// `bytes` is an untouched packet from `towards`. RFC 1812 §4.3.2.7, §4.3.2.8 and policy limit
    /// errors.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn send_error(
        &mut self,
        now: Instant,
        towards: Side,
        meta: PacketMeta,
        reason: Reason,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) {
        let policy = self.ledger.shared.settings().icmp;
        let wanted = match towards {
            Side::Inside => policy.errors_to_inside,
            Side::Outside => policy.errors_to_outside,
        };
        let to = get_u32(bytes, ip::SOURCE);
        let is_host = towards == Side::Inside && HostNumber(to).is_ipv6();
        let may_answer =
            if is_host { own_icmp::may_answer_host(bytes) } else { own_icmp::may_answer(bytes) && source_is_valid(to) };
        if !wanted || !may_answer {
            return;
        }
        let hairpinned = self.ledger.local.lookup(to).and_then(|local| local.pool_address()).is_some();
        if !hairpinned && self.ledger.local.lookup(to).is_some() {
            return;
        }
        // No route leads to the external address `to`, and its holder is not known yet: the real
        // source comes with the receiver (`steps/quoted.rs`).
        let towards = self.facing_towards(towards, meta);
        let from = if hairpinned { Some(DUMMY) } else { self.ledger.shared.own_address_towards(towards, to) };
        let Some(from) = from else { return };
        if !self.ledger.policy.icmp_limit.allow(now, (towards, Ipv4Addr::from_bits(to))) {
            self.ledger.counters.icmp_errors_suppressed += 1;
            return;
        }
        let own = Ipv4Addr::from_bits(from);
        let mut buffer = [0; HOST_ERROR_MAX];
        let length = if is_host && HostNumber(to).is_nat64() {
            own_icmp::write_error_to_host(&mut buffer, reason.message(), own, bytes)
        } else {
            let identification = self.identifications.next(own, Ipv4Addr::from_bits(to), 1);
            let Some(buffer) = buffer.first_chunk_mut::<ERROR_MAX>() else { return };
            own_icmp::write_error(buffer, reason.message(), own, identification, bytes)
        };
        let message = &mut buffer[..length];
        if hairpinned {
            self.send_error_through_hairpin(now, meta, message, sink);
            return;
        }
        let Some(egress) = self.ledger.shared.route(towards, to, from).map(|hop| hop.egress()) else { return };
        if self.emit(egress, &[message], sink).is_ok() {
            self.ledger.counters.originated += 1;
        }
    }

    /// Only the sender's external endpoint is known, so its worker handles the error.
    fn send_error_through_hairpin(&mut self, now: Instant, meta: PacketMeta, message: &mut [u8], sink: &mut dyn Sink) {
        let Ok(parsed) = parse(message) else { return };
        let fate = self.inbound_error(Arrival { now, meta, parsed: &parsed }, message, Via::Hairpin, sink);
        self.send_own_error(fate, message, sink);
    }
}
