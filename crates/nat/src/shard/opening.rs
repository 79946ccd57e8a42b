//! The usual opening, a burst at a time: first packets of subscribers who have other mappings already.
//!
//! A new mapping touches more lines than any other packet: the subscriber's bucket and record, the port's bit and its entry,
//! the new record. The passes between [`Shard::aim`](super::Shard) and the last one ask for them, each pass in one tight loop
//! (see [`steady`](super::steady)), and find out what the next one needs:
//!
//! 1. [`Shard::find_further`] looks for mappings beyond their home bucket; packets that have one are as usual after all. In a
//!    burst with new flows it comes in the middle of the next pass.
//! 2. [`Shard::find_subscribers`] asks for the subscribers' buckets, then for the records these name.
//! 3. [`Shard::aim_ports`] chooses where to look for a port and asks for its bit and for new mapping records; then, as the
//!    bits have arrived, chooses among the free ones and asks for that one's entry.
//!
//! [`Shard::open_usual`] makes mapping and session at once. Whatever is not as usual (a new subscriber, an address that has
//! run full, a hairpin, a fragment, a held SYN) is left untouched for `open_outbound`, which decides alike.

use wire::tcp::Flags;

use super::Shard;
use super::port_choice::UNPAIRED;
use super::port_choice::port_class;
use super::steady::Looks;
use crate::mapping::InternalKey;
use crate::mapping::NewSession;
use crate::packet::BURST_MAX;
use crate::packet::Egress;
use crate::packet::Packet;
use crate::parse::HEADERS;
use crate::parse::be16;
use crate::parse::be32;
use crate::parse::destination_is_valid;
use crate::parse::get_u16;
use crate::parse::get_u32;
use crate::parse::ip;
use crate::ports::Parity;
use crate::ports::PortAim;
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::ports::Taker;
use crate::rewrite::End;
use crate::rewrite::rewrite_headers;
use crate::rules::Permits;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::Side;

/// What the port of a new mapping has to be like.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    paired: AddressIndex,
    protocol: Protocol,
    class: PortClass,
    parity: Option<Parity>,
    /// Where the subscriber has ports of its own: in its block, or its slice.
    range: Option<(PortRange, Taker)>,
    /// Some ports of the pool are guaranteed to somebody: which one it gets is not for the aim to say.
    is_guarded: bool,
}

impl Wanted {
    /// Nothing yet.
    pub(super) const NONE: Wanted = Wanted {
        paired: UNPAIRED,
        protocol: Protocol::Udp,
        class: PortClass::High,
        parity: None,
        range: None,
        is_guarded: false,
    };
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (next < BURST_MAX).then_some(next)
    })
}

impl Shard {
    /// Packets whose home bucket has no mapping, though a further bucket may.
    pub(super) fn find_further(&self, looks: &mut Looks) {
        for i in bits(core::mem::take(&mut looks.further)) {
            if let Some(record) = self.outbound.first_candidate(looks.place[i]) {
                looks.record[i] = record;
                self.mappings.prefetch_write(record);
                looks.unsettled &= !(1 << i);
            }
        }
    }

    /// Asks for what the subscribers of unsettled packets are found in.
    pub(super) fn find_subscribers(&self, looks: &mut Looks, burst: &[Packet<'_>]) {
        for i in bits(looks.unsettled) {
            let source = get_u32(burst[i].bytes, ip::SOURCE);
            looks.realm[i] = self.shared.realm_of(burst[i].meta.ingress);
            looks.subscriber_hash[i] = self.subscribers.hash_of(looks.realm[i], source);
        }
        for i in bits(looks.unsettled) {
            self.subscribers.prefetch_table(looks.subscriber_hash[i]);
        }
        // Only now, so that the further buckets have had time.
        self.find_further(looks);
        for i in bits(looks.unsettled) {
            looks.subscriber[i] = self.subscribers.candidate(looks.subscriber_hash[i]);
        }
        for i in bits(looks.unsettled) {
            self.subscribers.prefetch(looks.subscriber[i]);
        }
    }

    /// Chooses where to look for the port of a new mapping of a known subscriber.
    pub(super) fn aim_ports(&mut self, looks: &mut Looks, burst: &[Packet<'_>]) {
        let workers = self.shared.workers();
        // First, so that the subscribers' records have time to arrive.
        self.mappings.prefetch_free(looks.unsettled.count_ones());
        for i in bits(looks.unsettled) {
            let kind = looks.kind[i];
            let candidate = core::mem::take(&mut looks.subscriber[i]);
            // Of odd packets the ports are not known here.
            let protocol = match (kind.is_tcp(), kind.is_steady()) {
                (true, _) => Protocol::Tcp,
                (false, true) => Protocol::Udp,
                (false, false) => continue,
            };
            let (realm, source) = (looks.realm[i], get_u32(burst[i].bytes, ip::SOURCE));
            let known = if self.subscribers.is(candidate, realm, source) {
                Some(candidate)
            } else {
                self.subscribers.find_hashed(looks.subscriber_hash[i], realm, source)
            };
            let Some(slot) = known else { continue };
            looks.subscriber[i] = slot;
            let subscriber = self.subscribers.get(slot);
            let paired = AddressIndex(subscriber.paired);
            // Who was not looked at under the present settings may need another address.
            if paired == UNPAIRED || subscriber.generation != self.shared.stamp() {
                continue;
            }
            let facts = self.shared.facts(paired);
            let port = get_u16(burst[i].bytes, ip::HEADER_MIN);
            let class = port_class(port, facts);
            let parity = facts.parity.then(|| Parity::of(port));
            let (range, aim) = if facts.gives_single_ports() {
                (None, self.shared.ports.aim(paired, protocol, class, self.worker, workers, &mut self.random))
            } else {
                // Who has no block yet is not as usual.
                let Some((range, taker)) = self.usual_range(slot, facts, protocol) else { continue };
                (Some((range, taker)), Some(self.shared.ports.aim_within(&range, &mut self.random)))
            };
            if let Some(aim) = aim {
                looks.port[i] = Some(aim);
                looks.wanted[i] = Wanted { paired, protocol, class, parity, range, is_guarded: facts.is_guarded() };
                looks.port_place[i] = self.shared.ports.place(paired, protocol, aim.port());
                looks.aimed |= 1 << i;
            }
        }
        for i in bits(looks.aimed) {
            self.shared.ports.prefetch_bit(looks.port_place[i]);
        }
        let mut elsewhere = 0;
        for i in bits(looks.aimed) {
            let Some(aim) = looks.port[i] else { continue };
            let wanted = looks.wanted[i];
            looks.port[i] = self.closer(&wanted, aim);
            if looks.port[i].is_none() {
                elsewhere |= 1 << i;
                looks.port[i] = self.elsewhere(&wanted);
            }
            if let Some(aim) = looks.port[i] {
                looks.port_place[i] = self.shared.ports.place(wanted.paired, wanted.protocol, aim.port());
            }
        }
        // In addresses that are nearly full, those whose word had no port left.
        for i in bits(elsewhere) {
            self.shared.ports.prefetch_bit(looks.port_place[i]);
        }
        for i in bits(elsewhere) {
            let Some(aim) = looks.port[i] else { continue };
            let wanted = looks.wanted[i];
            looks.port[i] = self.closer(&wanted, aim).or(looks.port[i]);
            if let Some(aim) = looks.port[i] {
                looks.port_place[i] = self.shared.ports.place(wanted.paired, wanted.protocol, aim.port());
            }
        }
        for i in bits(looks.aimed) {
            self.shared.ports.prefetch(looks.port_place[i]);
        }
    }

    /// The free port next to the one aimed at.
    #[inline(always)]
    fn closer(&self, wanted: &Wanted, aim: PortAim) -> Option<PortAim> {
        match &wanted.range {
            Some((range, _)) => self.shared.ports.aim_closer_within(range, wanted.protocol, wanted.parity, aim),
            None => self.shared.ports.aim_closer(wanted.paired, wanted.protocol, wanted.parity, aim),
        }
    }

    /// Another place to look for a port, as there is none where it was looked for.
    fn elsewhere(&mut self, wanted: &Wanted) -> Option<PortAim> {
        let (ports, workers) = (&self.shared.ports, self.shared.workers());
        let Wanted { paired, protocol, class, parity, .. } = *wanted;
        match &wanted.range {
            Some((range, _)) => ports.aim_elsewhere_within(range, protocol, parity, &mut self.random),
            None => ports.aim_elsewhere(paired, protocol, class, parity, self.worker, workers, &mut self.random),
        }
    }

    /// Whether the subscriber still is to have such a port: packets before in the burst may have got it another block.
    #[inline(always)]
    fn is_wanted_still(&self, subscriber: u32, wanted: &Wanted) -> bool {
        let record = self.subscribers.get(subscriber);
        let is_held = match wanted.range {
            Some((range, Taker::Holder)) => {
                record.active_block(wanted.protocol).map(PortRange::of_block) == Some(range)
            }
            _ => true,
        };
        (record.paired == wanted.paired.0) & is_held
    }

    /// Takes the port that was aimed at for a packet, or one next to it.
    #[inline(always)]
    fn take_near(&self, wanted: &Wanted, aim: PortAim) -> Option<u16> {
        let Wanted { paired, protocol, parity, .. } = *wanted;
        match wanted.range {
            None if wanted.is_guarded => None,
            None => self.shared.ports.allocate_near(paired, protocol, parity, aim),
            Some((range, taker)) => self.shared.ports.allocate_near_within(&range, protocol, parity, aim, taker),
        }
    }

    /// Takes another port than those aimed at, as the long way does.
    #[cold]
    #[inline(never)]
    fn take_anywhere(
        &mut self,
        now: Instant,
        key: &InternalKey,
        subscriber: u32,
        paired: AddressIndex,
    ) -> Option<(AddressIndex, u16)> {
        let facts = *self.shared.facts(paired);
        let class = port_class(key.port, &facts);
        self.take_port(now, key, &facts, class, subscriber, None).ok()
    }

    /// Opens mapping and session of packet `i`, one that looks found unsettled; where it leaves, or None when it is not as
    /// usual and nothing was changed.
    #[inline]
    pub(super) fn open_usual(
        &mut self,
        now: Instant,
        header: &mut [u8; HEADERS],
        looks: &Looks,
        i: usize,
    ) -> Option<Egress> {
        let aim = looks.port[i]?;
        if looks.refused >> i & 1 != 0 {
            return None;
        }
        let is_tcp = looks.kind[i].is_tcp();
        let flags = Flags(header[33]);
        let opens = flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK.union(Flags::RST).union(Flags::FIN));
        if is_tcp && !(opens && self.syns.is_empty()) {
            return None;
        }
        let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
        let (source, destination) = (be32::<12>(header), be32::<16>(header));
        let key = InternalKey { realm: looks.realm[i], protocol, address: source, port: be16::<20>(header) };
        if self.shared.statics.may_concern(source) {
            return None;
        }
        // The source was checked when the subscriber became one.
        if !self.subscribers.is(looks.subscriber[i], key.realm, source)
            || !destination_is_valid(destination)
            || self.local.lookup(destination).is_some()
        {
            return None;
        }
        let hop = *self.shared.route_out(destination)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        let hash = looks.place[i];
        // A packet before in the burst may have made it.
        if self.mappings.is_full() || self.outbound.is_full() || self.find_mapping(&key, hash).is_some() {
            return None;
        }
        let near = (destination, be16::<22>(header));
        if self.live_flow(&key, near, now).is_some() {
            return None;
        }
        let subscriber = looks.subscriber[i];
        // An offender may have become one by a packet before, and may be none any more.
        if self.subscribers.get(subscriber).is_offender() {
            return None;
        }
        if !self.shared.rules.is_empty() {
            // Some rules send its flows to one pool and others to another: only those to the one it is entered with are as usual.
            let own = || self.shared.pool_for(key.realm, source.into());
            let wanted = looks.ruling[i].action.pool().or_else(own);
            if wanted != Some(PoolId(self.subscribers.get(subscriber).pool)) {
                return None;
            }
        }
        let wanted = looks.wanted[i];
        if !self.is_wanted_still(subscriber, &wanted) {
            return None;
        }
        // The long way counts the refusal.
        if wanted.range.is_none() || self.shared.settings().events.block_mappings {
            self.admit_record().ok()?;
        }
        self.admit_mapping(now, subscriber, protocol).ok()?;
        let (address, port) = match self.take_near(&wanted, aim) {
            Some(port) => (wanted.paired, port),
            // Packets before in the burst have taken the last one there, or some are guaranteed.
            None => self.take_anywhere(now, &key, subscriber, wanted.paired)?,
        };
        let external = Endpoint::new(self.shared.address(address), port);
        let index = self.mappings.insert(&key, subscriber, external, now)?;
        let entered = self.outbound.insert(hash, index.0);
        debug_assert!(entered.is_ok(), "it was not full");
        self.count_mapping(now, subscriber, protocol);
        let remote_port = be16::<22>(header);
        let first = self.lifetimes.first(protocol, remote_port, Side::Inside);
        let mapping = self.mappings.get_mut(index.0);
        mapping.set_inline_session(&NewSession {
            remote_address: destination,
            remote_port,
            state: first.state,
            opened_from: Side::Inside,
            hairpin: false,
            has_own_timer: first.has_own_timer,
            expires: now + first.lifetime,
        });
        if is_tcp {
            let headers = 20 + u32::from(header[32] >> 4) * 4;
            let payload = u32::from(be16::<2>(header)).saturating_sub(headers);
            mapping.tracker.observe(Side::Inside, be32::<24>(header), payload + 1, be32::<28>(header), flags);
        }
        let permits = Permits { back: looks.stampable >> i & 1 != 0, ..Permits::ALL };
        if let Some(stamp) = self.stamps.to_give(permits) {
            mapping.set_session_stamp(stamp);
        }
        self.shared.rules.count(self.worker, looks.ruling[i]);
        // Last, because from here on other workers find the owner of the external endpoint.
        self.shared.ports.publish(address, protocol, port, self.worker, index);
        self.counters.mappings_created[protocol.index()] += 1;
        self.counters.sessions_created += 1;
        self.note_mapping_created(now, index.0, wanted.range.is_none());
        let external_address = external.address.to_bits();
        let identification = self.plain_identification(header, external_address, destination);
        rewrite_headers(header, is_tcp, End::Source, external_address, port, identification);
        Some(hop.egress(destination))
    }
}
