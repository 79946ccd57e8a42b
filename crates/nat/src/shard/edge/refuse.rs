//! Errors to hosts about refused packets, and the answers of the AFTR itself.

use core::net::Ipv4Addr;

use wire::ipv6::Ipv6;

use crate::headers::own_icmp;
use crate::headers::own_icmp::IcmpError;
use crate::headers::own_icmp6;
use crate::headers::own_icmp6::Problem;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::Sink;
use crate::headers::parse::ip;
use crate::shard::edge::verdict_of;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::RealmId;
use crate::verdict::Verdict;

const PROTOCOL_UDP: u8 = wire::ipv4::PROTOCOL_UDP;

pub(super) enum Refusal {
    Drop(Verdict),
    Answer(Verdict, Problem),
}

impl Refusal {
    pub(super) const fn verdict(&self) -> Verdict {
        match self {
            Refusal::Drop(verdict) | Refusal::Answer(verdict, _) => *verdict,
        }
    }
}

impl From<Verdict> for Refusal {
    fn from(verdict: Verdict) -> Refusal {
        Refusal::Drop(verdict)
    }
}

impl From<translate::Reason> for Refusal {
    fn from(reason: translate::Reason) -> Refusal {
        Refusal::Drop(verdict_of(reason))
    }
}

impl From<translate::Refused> for Refusal {
    fn from(refused: translate::Refused) -> Refusal {
        let verdict = verdict_of(refused.reason);
        match refused.reply {
            None => Refusal::Drop(verdict),
            Some(reply) => Refusal::Answer(
                verdict,
                Problem { icmp_type: reply.icmp_type, code: reply.code, parameter: reply.parameter },
            ),
        }
    }
}

/// The ICMPv6 error to the sender of a refused packet (RFC 7915 §5.4, RFC 6146 §3.5.1.1). Packets
/// with a forged source are dropped silently.
const fn problem_of(verdict: Verdict) -> Option<Problem> {
    match verdict {
        Verdict::EmbeddedAddress | Verdict::EmbeddedPrivate | Verdict::ChecksumMissing | Verdict::Ipv6Header => {
            Some(Problem::PROHIBITED)
        }
        Verdict::HostLimit | Verdict::HostTableFull => Some(Problem::NO_RESOURCES),
        _ => None,
    }
}

impl PacketPath {
    /// RFC 6333 §6.5.
    #[cold]
    pub(super) fn answer_in_softwire(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        offset: usize,
        key: &HostKey,
        sink: &mut dyn Sink,
    ) -> Result<(), Verdict> {
        let inner = packet.bytes().get(offset..).unwrap_or_default();
        let is_udp = inner.get(ip::PROTOCOL) == Some(&PROTOCOL_UDP);
        if is_udp {
            let length = inner.len();
            let served = self.serve_in_softwire(now, packet, offset..offset + length, key, sink);
            if let Err(Verdict::HostLimit | Verdict::HostTableFull) = served {
                self.refuse_in_softwire(now, packet, offset, key, sink);
            }
            return served;
        }
        let identification =
            self.identifications.next(Ipv4Addr::from_bits(AFTR_INSIDE), Ipv4Addr::from_bits(key.inner), 1);
        let inner = packet.bytes_mut().get_mut(offset..).unwrap_or_default();
        let (aftr, egress, length) = self.echo_in_softwire(inner, key.way, identification)?;
        let inner = inner.get(..length).unwrap_or_default();
        let sent = self.put_in_softwire(egress, (aftr, key.address), inner, sink);
        self.ledger.counters.originated += u64::from(sent.is_ok());
        Err(sent.err().unwrap_or(Verdict::Local))
    }

    /// Answers a host for which there is no room as if its ports were used up (RFC 6888 REQ-11b),
    /// inside its softwire.
    #[cold]
    pub(super) fn refuse_in_softwire(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        offset: usize,
        key: &HostKey,
        sink: &mut dyn Sink,
    ) {
        let inner = packet.bytes().get(offset..).unwrap_or_default();
        let (policy, transition) = (self.ledger.shared.settings().icmp, &self.ledger.shared.transition);
        let Some(code) = policy.no_resources_code else { return };
        let Way::Softwire(position) = key.way else { return };
        let Some((aftr, realm)) = transition.softwire(position).map(|end| (end.aftr, end.realm)) else { return };
        let Some(egress) = self.hop_to_hosts(realm) else { return };
        if !policy.errors_to_inside || !own_icmp::may_answer(inner) || !self.may_send_error6(now, realm, key.address) {
            return;
        }
        let (from, to) = (Ipv4Addr::from_bits(AFTR_INSIDE), Ipv4Addr::from_bits(key.inner));
        let identification = self.identifications.next(from, to, 1);
        let mut buffer = [0; own_icmp::ERROR_MAX];
        let length = own_icmp::write_error(&mut buffer, IcmpError::Unreachable(code), from, identification, inner);
        let error = buffer.get(..length).unwrap_or_default();
        let sent = self.put_in_softwire(egress, (aftr, key.address), error, sink);
        self.ledger.counters.originated += u64::from(sent.is_ok());
    }

    /// Turns an echo request into the AFTR's reply. Returns the AFTR, the hop and the length.
    pub(super) fn echo_in_softwire(
        &self,
        inner: &mut [u8],
        way: Way,
        identification: u16,
    ) -> Result<(u128, Egress, usize), Verdict> {
        let Way::Softwire(position) = way else { return Err(Verdict::LocalIgnored) };
        let end = self.ledger.shared.transition.softwire(position).ok_or(Verdict::LocalIgnored)?;
        if !self.ledger.shared.settings().icmp.answer_echo {
            return Err(Verdict::LocalIgnored);
        }
        let length = own_icmp::echo_reply(inner, identification).ok_or(Verdict::LocalIgnored)?;
        let egress = self.hop_to_hosts(end.realm).ok_or(Verdict::NoRoute)?;
        Ok((end.aftr, egress, length))
    }

    /// A next hop for IPv6.
    pub(super) fn hop_to_hosts(&self, realm: RealmId) -> Option<Egress> {
        let hop = self.ledger.shared.route_in(realm, crate::types::HOSTS_FIRST)?;
        (hop.egress().next_hop >= self.ledger.shared.transition.first_hop).then(|| hop.egress())
    }

    #[cold]
    #[inline(never)]
    pub(super) fn refuse_at_edge(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        refusal: &Refusal,
        sink: &mut dyn Sink,
    ) {
        let verdict = match refusal {
            Refusal::Drop(verdict) => {
                // RFC 7915 §5.4: not about ICMPv6 messages. Hosts in softwires have been answered.
                let realm = self.ledger.shared.realm_of(packet.meta.ingress);
                let is_answered =
                    matches!(verdict, Verdict::HostLimit | Verdict::HostTableFull) && self.is_to_aftr(realm, packet);
                let is_silent = is_answered || own_icmp6::is_icmp6(packet.bytes());
                if let Some(problem) = problem_of(*verdict).filter(|_| !is_silent) {
                    self.send_error6(now, realm, problem, packet.bytes(), sink);
                }
                *verdict
            }
            Refusal::Answer(verdict, problem) => {
                let realm = self.ledger.shared.realm_of(packet.meta.ingress);
                self.send_error6(now, realm, *problem, packet.bytes(), sink);
                *verdict
            }
        };
        if matches!(verdict, Verdict::HostLimit | Verdict::HostTableFull) {
            self.note_host_refused(now, packet, verdict);
        }
        self.ledger.counters.count(verdict);
        packet.verdict = Some(verdict);
        packet.outcome = Outcome::Done;
    }

    fn is_to_aftr(&self, realm: RealmId, packet: &Packet<'_>) -> bool {
        let Ok(view) = Ipv6::new_checked(packet.bytes()) else { return false };
        matches!(self.ledger.shared.transition.way_of(realm, view.destination()), Some(Way::Softwire(_)))
    }

    /// Counts a refusal. A prefix without a host so far has no subscriber.
    #[cold]
    fn note_host_refused(&mut self, now: Instant, packet: &Packet<'_>, verdict: Verdict) {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let Ok(view) = Ipv6::new_checked(packet.bytes()) else { return };
        let subscriber = self.ledger.state.subscribers.hosts.find_subscriber(view.source(), realm);
        self.ledger.note_no_room(now, (realm, subscriber.map(Ipv4Addr::from)), verdict);
    }

    /// Whether the rate of own errors to this address allows another. All addresses of a /64 share
    /// one.
    fn may_send_error6(&mut self, now: Instant, realm: RealmId, address: u128) -> bool {
        let half = (address >> 64) as u64;
        let folded = Ipv4Addr::from_bits((half >> 32) as u32 ^ half as u32);
        let may_send = self.ledger.policy.icmp_limit.allow(now, (Facing::inside(realm), folded));
        self.ledger.counters.icmp_errors_suppressed += u64::from(!may_send);
        may_send
    }

    /// RFC 4443 §2.4.
    fn send_error6(&mut self, now: Instant, realm: RealmId, problem: Problem, bytes: &[u8], sink: &mut dyn Sink) {
        let Ok(view) = Ipv6::new_checked(bytes) else { return };
        let offending = view.packet();
        if !self.ledger.shared.settings().icmp.errors_to_inside || !own_icmp6::may_answer(offending) {
            return;
        }
        let (Some(own), Some(egress)) = (self.own_address6(realm), self.hop_to_hosts(realm)) else { return };
        if !self.may_send_error6(now, realm, view.source()) {
            return;
        }
        let mut buffer = [0; own_icmp6::ERROR_MAX];
        let length = own_icmp6::write_error(&mut buffer, problem, own, offending);
        if sink.transmit(egress, &[buffer.get(..length).unwrap_or_default()]) {
            self.ledger.counters.originated += 1;
        }
    }
}
