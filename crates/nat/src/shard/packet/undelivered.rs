//! Packets to a neighbour that does not answer (RFC 1812 §5.2.7.1, RFC 4861 §7.2.2).
//!
//! By then the packet is translated. So Natrix makes the error that a router behind the interface
//! would send, and translates it as it translates errors of routers. Only the source of the error
//! is then an address of Natrix itself. Packets to IPv6 hosts are in `edge/undelivered.rs`.

use core::net::Ipv4Addr;

use wire::ipv4::Ipv4;

use crate::headers::own_icmp;
use crate::headers::own_icmp::ERROR_MAX;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::local::Reason;
use crate::time::Instant;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::InterfaceId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;

impl PacketPath {
    /// See [`crate::Shard::report_undelivered`].
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn report_undelivered(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        packet: &[u8],
        sink: &mut dyn Sink,
    ) {
        if packet.first().is_some_and(|first| first >> 4 == 6) {
            return self.report_undelivered_to_host(now, interface, packet, sink);
        }
        if !own_icmp::may_answer(packet) {
            return;
        }
        let Ok(undelivered) = parse(packet) else { return };
        let side = self.ledger.shared.side(interface);
        let source = Endpoint::new(undelivered.source.into(), undelivered.source_port);
        let destination = Endpoint::new(undelivered.destination.into(), undelivered.destination_port);
        let sender = self.view().sender_of(now, (undelivered.protocol(), source, destination), side);
        if !self.may_report(now, sender) {
            return;
        }
        let from = match side {
            Side::Inside => destination.address,
            Side::Outside => Ipv4Addr::from_bits(DUMMY),
        };
        let identification = self.identifications.next(from, source.address, 1);
        let mut buffer = [0; ERROR_MAX];
        let length =
            own_icmp::write_error(&mut buffer, Reason::HostUnreachable.message(), from, identification, packet);
        let Some(message) = buffer.get_mut(..length) else { return };
        self.report_by(now, interface, message, sink);
    }

    /// True if the policy and the rate of errors permit one more to this sender.
    pub(in crate::shard) fn may_report(&mut self, now: Instant, sender: (Facing, Ipv4Addr)) -> bool {
        let policy = self.ledger.shared.settings().icmp;
        let wanted = match sender.0.side {
            Side::Inside => policy.errors_to_inside,
            Side::Outside => policy.errors_to_outside,
        };
        if !wanted {
            return false;
        }
        let may_report = self.ledger.policy.icmp_limit.allow(now, sender);
        self.ledger.counters.icmp_errors_suppressed += u64::from(!may_report);
        may_report
    }

    /// Translates and sends an error as if it had come by this interface.
    pub(in crate::shard) fn report_by(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        message: &mut [u8],
        sink: &mut dyn Sink,
    ) {
        let Ok(parsed) = parse(message) else { return };
        let meta = PacketMeta { ingress: interface, ..PacketMeta::default() };
        let at = Arrival { now, meta, parsed: &parsed };
        let fate = match self.ledger.shared.side(interface) {
            Side::Inside => self.outbound_error(at, message, sink),
            Side::Outside => self.inbound_error(at, message, Via::Hairpin, sink),
        };
        self.sign(&fate, message);
        self.send_own_error(fate, message, sink);
    }

    /// Continues on the worker of the silent host.
    #[cold]
    pub(in crate::shard) fn continue_undelivered(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let fate = self.outbound_error(at, bytes, sink);
        self.sign(&fate, bytes);
        let Fate::HandOff { worker, meta } = fate else { return fate };
        if meta.stage != Stage::Hairpin {
            // During a change two workers may each take the other for the host's.
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        }
        let message = bytes.get_mut(..usize::from(at.parsed.total_length)).unwrap_or_default();
        // A full ring means silence.
        let _ = hand_own_error_off(worker, meta, message, sink);
        Fate::Done(Verdict::IcmpQuoteNoMapping)
    }

    /// Sends an own error that was translated like another host's, or hands it to the next worker.
    pub(in crate::shard) fn send_own_error(&mut self, fate: Fate, message: &mut [u8], sink: &mut dyn Sink) {
        let is_sent = match fate {
            Fate::Forward { verdict, egress, length } => {
                let message = message.get(..usize::from(length)).unwrap_or(message);
                self.uncount_unsent(verdict, message);
                self.emit(egress, &[message], sink).is_ok()
            }
            Fate::HandOff { worker, meta } => hand_own_error_off(worker, meta, message, sink),
            Fate::Done(verdict) => {
                // Sent in fragments, or not at all.
                self.uncount_unsent(verdict, message);
                verdict.kind() == VerdictKind::Forwarded
            }
            Fate::Held => false,
        };
        self.ledger.counters.originated += u64::from(is_sent);
    }

    /// Replaces the source, which is a host's or a pool's so far.
    fn sign(&self, fate: &Fate, message: &mut [u8]) {
        let Fate::Forward { egress, .. } = *fate else { return };
        let shared = &self.ledger.shared;
        let Some(interface) = shared.interface_of(egress.next_hop) else { return };
        let (towards, to) = (shared.facing(interface), get_u32(message, ip::DESTINATION));
        let own = match towards.side {
            Side::Inside => Some(shared.own_source_towards(towards.realm, to.into()).to_bits()),
            Side::Outside => shared.own_address_towards(towards, to),
        };
        if let Some(own) = own {
            set_source(message, own);
        }
    }
}

/// `meta`: as for an error of another host. False if the ring is full.
fn hand_own_error_off(worker: WorkerId, meta: PacketMeta, message: &mut [u8], sink: &mut dyn Sink) -> bool {
    let is_hairpin = meta.stage == Stage::Hairpin;
    if is_hairpin {
        // Replaced once the receiver is known (`steps/quoted.rs`).
        set_source(message, DUMMY);
    }
    let stage = if is_hairpin { Stage::OwnError } else { Stage::Undelivered };
    sink.hand_off(worker, PacketMeta { stage, ..meta }, &[message])
}

fn set_source(message: &mut [u8], source: u32) {
    let mut header = Ipv4::new_unchecked(message);
    header.set_source(source);
    header.fill_checksum();
}
