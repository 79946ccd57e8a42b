//! What rules and filters say about the packets of a burst, and the way of packets that a rule lets through untranslated.

use super::Arrival;
use super::Fate;
use super::Shard;
use super::local::Reason;
use super::opening::bits;
use super::outbound::remote_port;
use super::steady::Looks;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::mapping::InternalKey;
use crate::mapping::SessionRef;
use crate::packet::BURST_MAX;
use crate::packet::Packet;
use crate::packet::Sink;
use crate::parse::Parsed;
use crate::parse::get_u16;
use crate::parse::get_u32;
use crate::parse::ip;
use crate::rewrite::decrement_ttl;
use crate::rules::Permits;
use crate::rules::RuleBook;
use crate::rules::RuleKey;
use crate::rules::Ruling;
use crate::settings::MappingKind;
use crate::settings::RuleAction;
use crate::shared::NextHop;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

impl RuleKey {
    /// A packet between an internal endpoint and a remote one. A query identifier counts as the inside port.
    #[inline]
    pub(crate) fn of_flow(key: &InternalKey, remote: (u32, u16)) -> RuleKey {
        RuleKey::new(key.realm, key.protocol.number(), key.address, key.port, remote.0, remote.1)
    }

    /// A packet from inside.
    #[inline]
    pub(crate) fn outbound(realm: RealmId, parsed: &Parsed) -> RuleKey {
        let remote_port = parsed.protocol().map_or(0, |protocol| remote_port(protocol, parsed.destination_port));
        let (source, destination) = (parsed.source, parsed.destination);
        RuleKey::new(realm, parsed.protocol_number, source, parsed.source_port, destination, remote_port)
    }

    /// A packet from outside that is not translated.
    #[inline]
    pub(crate) fn inbound(realm: RealmId, parsed: &Parsed) -> RuleKey {
        let remote_port = parsed.protocol().map_or(0, |protocol| remote_port(protocol, parsed.source_port));
        let (source, destination) = (parsed.source, parsed.destination);
        RuleKey::new(realm, parsed.protocol_number, destination, parsed.destination_port, source, remote_port)
    }
}

impl Shard {
    /// What the filters say to a packet in this direction, and to the other one. A filter that logs tells of it, unless it lets a
    /// packet pass that `opens` nothing: of what is permitted each session is told once.
    ///
    /// # Errors
    /// The verdict of a packet that may not pass.
    #[inline]
    pub(super) fn filter(
        &mut self,
        now: Instant,
        is_out: bool,
        key: &RuleKey,
        opens: bool,
    ) -> Result<Permits, Verdict> {
        let filters = &self.shared.filters;
        if filters.is_empty() {
            return Ok(Permits::ALL);
        }
        let permits = filters.permits(key);
        let passes = if is_out { permits.out } else { permits.back };
        if let Some((position, filter)) = filters.deciding(is_out, key) {
            filters.count(self.worker, position);
            if filter.log && (opens || !passes) {
                self.note_filter(now, is_out, key, position, passes);
            }
        }
        if passes { Ok(permits) } else { Err(Verdict::DeniedByFilter) }
    }

    /// A filter that logs decided about a packet.
    #[cold]
    fn note_filter(&mut self, now: Instant, is_out: bool, key: &RuleKey, position: usize, passes: bool) {
        let kind = if passes { EventKind::FilterPermitted } else { EventKind::FilterDenied };
        let event = Event {
            subscriber: key.source(),
            internal_port: key.source_port(),
            remote: key.destination(),
            remote_port: key.destination_port(),
            realm: key.realm(),
            protocol: Protocol::from_number(key.protocol()),
            first_port: u16::from(key.protocol()),
            last_port: self.shared.stamp(),
            amount: position as u32,
            ..Event::new(kind, now).because(if is_out { Cause::Outbound } else { Cause::Inbound })
        };
        self.events.note_filter(event, self.shared.settings().events.filter_events_per_second);
    }

    /// Asks the filters about a packet of a session, unless its stamp says what they say.
    ///
    /// # Errors
    /// The verdict of a packet that may not pass.
    #[inline]
    pub(super) fn filter_session(
        &mut self,
        now: Instant,
        is_out: bool,
        index: u32,
        remote: (u32, u16),
    ) -> Result<(), Verdict> {
        if self.mappings.get(index).session_stamp() == self.stamps.current() {
            return Ok(());
        }
        let key = RuleKey::of_flow(&self.mappings.get(index).key(), remote);
        let permits = self.filter(now, is_out, &key, false)?;
        self.stamp(index, Some(SessionRef::Inline), permits);
        Ok(())
    }

    /// The same for a flow, of this internal endpoint.
    ///
    /// # Errors
    /// The verdict of a packet that may not pass.
    pub(super) fn filter_flow(
        &mut self,
        now: Instant,
        is_out: bool,
        index: u32,
        internal: &InternalKey,
    ) -> Result<(), Verdict> {
        let flow = self.flows.get(index);
        if flow.stamp() == self.stamps.current() {
            return Ok(());
        }
        let permits = self.filter(now, is_out, &RuleKey::of_flow(internal, flow.near()), false)?;
        if let Some(stamp) = self.stamps.to_give(permits) {
            self.flows.get_mut(index).set_stamp(stamp);
        }
        Ok(())
    }

    /// Notes in a mapping's first session that its packets may pass in both directions: they are as usual then.
    #[inline]
    pub(super) fn stamp(&mut self, index: u32, session: Option<SessionRef>, permits: Permits) {
        if session == Some(SessionRef::Inline)
            && let Some(stamp) = self.stamps.to_give(permits)
        {
            self.mappings.get_mut(index).set_session_stamp(stamp);
        }
    }

    /// Rules and filters for the packets that may open something, all in one go, so that they are waited for together.
    pub(super) fn ask_rules(&self, looks: &mut Looks, burst: &[Packet<'_>]) {
        let (rules, filters) = (&self.shared.rules, &self.shared.filters);
        looks.refused = 0;
        looks.stampable = u64::MAX;
        if rules.is_empty() && filters.is_empty() {
            return;
        }
        let mut keys = [RuleKey::default(); BURST_MAX];
        let mut packets = [0_usize; BURST_MAX];
        let mut count = 0;
        for i in bits(looks.unsettled) {
            let kind = looks.kind[i];
            if !(kind.is_tcp() || kind.is_steady()) {
                continue;
            }
            let protocol = if kind.is_tcp() { Protocol::Tcp } else { Protocol::Udp };
            let bytes = &burst[i].bytes;
            keys[count] = RuleKey::new(
                looks.realm[i],
                protocol.number(),
                get_u32(bytes, ip::SOURCE),
                get_u16(bytes, ip::HEADER_MIN),
                get_u32(bytes, ip::DESTINATION),
                get_u16(bytes, ip::HEADER_MIN + 2),
            );
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
            looks.ruling[*i] = ruling;
            // The long way does what the rule says, and counts the filter.
            let is_translated =
                matches!(ruling.action, RuleAction::Translate { mapping: MappingKind::EndpointIndependent, .. });
            let is_usual = is_translated && permits.out && !permits.is_logged;
            looks.refused |= u64::from(!is_usual) << i;
            looks.stampable &= !(u64::from(!permits.back) << i);
        }
    }

    /// A packet from inside that a rule lets through as it is (RFC 6888 REQ-6).
    pub(super) fn pass_out<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], hop: &NextHop, sink: &mut S) -> Fate {
        decrement_ttl(bytes);
        self.finish(bytes, at.parsed, hop, at.parsed.destination, Verdict::Passed, sink)
    }

    /// The realm in which one of `rules` lets this packet from outside through as it is: it has a way to the destination there.
    /// None where that is so in more than one: nothing says whose subscriber is meant, and it must not reach another's.
    pub(super) fn passes_in(&self, rules: &RuleBook, key_in: impl Fn(RealmId) -> RuleKey) -> Option<(RealmId, Ruling)> {
        if !rules.passes() {
            return None;
        }
        let mut fitting = (0..self.shared.settings().realms()).filter_map(|number| {
            let realm = RealmId(number as u16);
            let key = key_in(realm);
            self.shared.route_in(realm, key.source().to_bits())?;
            let ruling = rules.ruling(&key);
            (ruling.action == RuleAction::NoTranslation).then_some((realm, ruling))
        });
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// A packet from outside to an address that no pool has: let through as it is by a rule, or dropped.
    pub(super) fn pass_in<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { parsed, .. } = at;
        let Some((realm, ruling)) = self.passes_in(&self.shared.rules, |realm| RuleKey::inbound(realm, parsed)) else {
            return Fate::Done(Verdict::DestinationNotPool);
        };
        if let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source) {
            return Fate::Done(verdict);
        }
        if let Err(verdict) = self.filter(at.now, false, &RuleKey::inbound(realm, parsed), true) {
            return Fate::Done(verdict);
        }
        self.shared.rules.count(self.worker, ruling);
        self.deliver_untranslated(at, bytes, realm, sink)
    }

    /// A packet from outside goes to its destination as it is.
    pub(super) fn deliver_untranslated<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        realm: RealmId,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        if parsed.ttl <= 1 {
            self.send_error(now, Side::Outside, meta, Reason::TtlExpired, bytes, sink);
            return Fate::Done(Verdict::TtlExpired);
        }
        let Some(hop) = self.shared.route_in(realm, parsed.destination).copied() else {
            self.send_error(now, Side::Outside, meta, Reason::HostUnreachable, bytes, sink);
            return Fate::Done(Verdict::NoRoute);
        };
        if parsed.total_length > hop.mtu && parsed.dont_fragment {
            self.send_error(now, Side::Outside, meta, Reason::TooBig(hop.mtu), bytes, sink);
            return Fate::Done(Verdict::TooBig);
        }
        decrement_ttl(bytes);
        self.finish(bytes, parsed, &hop, parsed.destination, Verdict::Passed, sink)
    }
}
