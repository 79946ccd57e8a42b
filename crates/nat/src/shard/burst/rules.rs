use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Packet;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::policy::rules::Permits;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::settings::MappingKind;
use crate::settings::RuleAction;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::first_packet::bits;
use crate::shard::packet::PacketPath;
use crate::shard::packet::outbound::remote_port;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::steps::packet_filter::Judged;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteInside;

impl RuleKey {
    /// An ICMP identifier counts as the inside port.
    #[inline]
    pub(crate) fn of_flow(key: &InternalKey, remote: RemoteInside) -> RuleKey {
        RuleKey::new(key.realm, key.protocol.number(), key.address.0, key.port, remote.address, remote.port)
    }

    #[inline]
    pub(crate) fn outbound(realm: RealmId, parsed: &Parsed) -> RuleKey {
        let remote_port = parsed.protocol().map_or(0, |protocol| remote_port(protocol, parsed.destination_port));
        let (source, destination) = (parsed.source, parsed.destination);
        RuleKey::new(realm, parsed.protocol_number, source, parsed.source_port, destination, remote_port)
    }

    /// As rules see an untranslated packet from outside.
    #[inline]
    pub(crate) fn inbound(realm: RealmId, parsed: &Parsed) -> RuleKey {
        let remote_port = parsed.protocol().map_or(0, |protocol| remote_port(protocol, parsed.source_port));
        let (source, destination) = (parsed.source, parsed.destination);
        RuleKey::new(realm, parsed.protocol_number, destination, parsed.destination_port, source, remote_port)
    }
}

impl PacketPath {
    /// A filter with `log` records each refusal, and each permitted session once (`opens`).
    #[inline]
    pub(in crate::shard) fn note_judged(&mut self, now: Instant, judged: &Judged) {
        let Some(position) = self.count_judged(judged) else { return };
        let logs = self.ledger.shared.filters.filter(position).is_some_and(|filter| filter.log);
        if logs && (judged.opens || !judged.passes()) {
            self.note_filter(now, judged, position);
        }
    }

    /// The filter that decided.
    #[inline]
    pub(in crate::shard) fn count_judged(&self, judged: &Judged) -> Option<u32> {
        let position = judged.permits.by[usize::from(!judged.is_out)]?;
        self.ledger.shared.filters.count(self.ledger.worker, position as usize);
        Some(position)
    }

    #[cold]
    fn note_filter(&mut self, now: Instant, judged: &Judged, position: u32) {
        let key = &judged.key;
        let kind = if judged.passes() { EventKind::FilterPermitted } else { EventKind::FilterDenied };
        let subscriber = self.ledger.named(now, key.realm(), judged.internal.into());
        let event = Event {
            subscriber,
            internal_port: key.source_port(),
            remote: key.destination(),
            remote_port: key.destination_port(),
            realm: key.realm(),
            protocol: Protocol::from_number(key.protocol()),
            first_port: u16::from(key.protocol()),
            last_port: self.ledger.shared.short_generation(),
            amount: position,
            ..Event::new(kind, now).because(if judged.is_out { Cause::Outbound } else { Cause::Inbound })
        };
        self.ledger.events.note_filter(event, self.ledger.shared.settings().events.filter_events_per_second);
    }

    pub(in crate::shard) fn note_flow_permitted(&mut self, index: u32, permits: Permits) {
        if let Some(generation) = self.ledger.policy.generations.to_give(permits) {
            self.ledger.state.flows.get_mut(index).set_filter_generation(generation);
        }
    }

    #[inline]
    pub(in crate::shard) fn note_permitted(&mut self, index: u32, session: Option<SessionRef>, permits: Permits) {
        let Some(generation) = self.ledger.policy.generations.to_give(permits) else { return };
        let Some(session) = session.filter(|session| self.view().has_kept_way(index, *session)) else { return };
        match session {
            SessionRef::Inline => self.ledger.state.mappings.get_mut(index).set_session_generation(generation),
            SessionRef::Extra(slot) => self.ledger.state.sessions.get_mut(slot).set_filter_generation(generation),
            SessionRef::Flow(_) => {}
        }
    }

    /// All at once, so that memory accesses overlap.
    pub(in crate::shard) fn ask_rules(&self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        let (rules, filters) = (&self.ledger.shared.rules, &self.ledger.shared.filters);
        scratch.refused = 0;
        scratch.answers_permitted = u64::MAX;
        if rules.is_empty() && filters.is_empty() {
            return;
        }
        let view = self.view();
        let mut keys = [RuleKey::default(); BURST_MAX];
        let mut packets = [0_usize; BURST_MAX];
        let mut count = 0;
        for i in bits(scratch.unsettled) {
            let kind = scratch.kind[i];
            if !(kind.is_tcp() || kind.is_steady()) {
                continue;
            }
            let protocol = if kind.is_tcp() { Protocol::Tcp } else { Protocol::Udp };
            let bytes = burst[i].bytes();
            keys[count] = view.ruled(RuleKey::new(
                scratch.realm[i],
                protocol.number(),
                get_u32(bytes, ip::SOURCE),
                get_u16(bytes, ip::HEADER_MIN),
                get_u32(bytes, ip::DESTINATION),
                get_u16(bytes, ip::HEADER_MIN + 2),
            ));
            packets[count] = i;
            count += 1;
        }
        let mut rulings = [Ruling::DEFAULT; BURST_MAX];
        if !rules.is_empty() {
            rules.ruling_burst(&keys[..count], &mut rulings);
        }
        let mut permits = [Permits::ALL; BURST_MAX];
        filters.permits_burst(&keys[..count], &mut permits);
        for ((i, ruling), permits) in packets[..count].iter().zip(rulings).zip(permits) {
            scratch.ruling[*i] = ruling;
            scratch.filter[*i] = permits.by[0];
            // The general way applies other rules, and drops and logs by filters.
            let is_translated =
                matches!(ruling.action, RuleAction::Translate { mapping: MappingKind::EndpointIndependent, .. });
            let is_usual = is_translated && permits.out && !permits.is_logged;
            scratch.refused |= u64::from(!is_usual) << i;
            scratch.answers_permitted &= !(u64::from(!permits.back) << i);
        }
    }
}
