//! First packets of flows, a burst at a time.
//!
//! A new mapping touches more cache lines than any other packet. Passes between
//! [`PacketPath::aim`](PacketPath) and the last one prefetch them:
//!
//! 1. [`PacketPath::find_further`] finds mappings beyond their home bucket, inside the next pass if
//!    the burst has first packets.
//! 2. [`PacketPath::find_subscribers`] prefetches subscribers' buckets, then their records.
//! 3. [`PacketPath::aim_ports`] prefetches port bits and new mapping records, then the entry of the
//!    chosen port.
//!
//! For new subscribers, `new_subscribers.rs` draws addresses.
//!
//! Unusual packets (limits, a full address, a hairpin, a fragment, a held SYN) stay untouched for
//! `outbound`, which decides alike.

use wire::tcp::Flags;

use crate::event::Cause;
use crate::external::ports::Parity;
use crate::external::ports::PortAim;
use crate::external::ports::PortClass;
use crate::external::ports::PortRange;
use crate::external::ports::Taker;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::parse::HEADERS;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::headers::parse::ip;
use crate::headers::parse::may_reach;
use crate::headers::rewrite::End;
use crate::headers::rewrite::rewrite_headers;
use crate::policy::rules::Permits;
use crate::shard::burst::established::Scratch;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::shard::commit::port_of_ended::port_class;
use crate::shard::packet::PacketPath;
use crate::snapshot::shared::NextHop;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::steps::opening::External;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Owner;
use crate::steps::opening::Source;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::HostNumber;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RemoteInside;
use crate::types::Side;

#[derive(Clone, Copy)]
pub(in crate::shard) struct Wanted {
    paired: AddressIndex,
    protocol: Protocol,
    class: PortClass,
    parity: Option<Parity>,
    range: Option<(PortRange, Taker)>,
    /// The long way must choose.
    has_guarantees: bool,
}

impl Wanted {
    pub(in crate::shard) const NONE: Wanted = Wanted {
        paired: UNPAIRED,
        protocol: Protocol::Udp,
        class: PortClass::High,
        parity: None,
        range: None,
        has_guarantees: false,
    };
}

#[inline(always)]
pub(super) fn source_of(packet: &Packet<'_>) -> u32 {
    u32::from_be_bytes(*packet.chunk(ip::SOURCE).unwrap_or(&[0; 4]))
}

pub(in crate::shard) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (next < BURST_MAX).then_some(next)
    })
}

impl PacketPath {
    pub(in crate::shard) fn find_further(&self, scratch: &mut Scratch) {
        for i in bits(core::mem::take(&mut scratch.further)) {
            if let Some(record) = self.ledger.state.outbound.first_candidate(scratch.place[i]) {
                scratch.record[i] = record;
                self.ledger.state.mappings.prefetch_write(record);
                scratch.unsettled &= !(1 << i);
            }
        }
    }

    pub(in crate::shard) fn find_subscribers(&self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        for i in bits(scratch.unsettled) {
            let source = source_of(&burst[i]);
            scratch.realm[i] = self.ledger.shared.realm_of(burst[i].meta.ingress);
            scratch.subscriber_hash[i] = self.ledger.state.subscribers.hash_of(scratch.realm[i], HostNumber(source));
        }
        for i in bits(scratch.unsettled) {
            self.ledger.state.subscribers.prefetch_table(scratch.subscriber_hash[i]);
        }
        // By now the further buckets have arrived.
        self.find_further(scratch);
        for i in bits(scratch.unsettled) {
            scratch.subscriber[i] = self.ledger.state.subscribers.candidate(scratch.subscriber_hash[i]);
        }
        for i in bits(scratch.unsettled) {
            self.ledger.state.subscribers.prefetch(scratch.subscriber[i]);
        }
    }

    pub(in crate::shard) fn aim_ports(&mut self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        let workers = self.ledger.shared.workers();
        // Gives subscribers' records time to arrive.
        self.ledger.state.mappings.prefetch_free(scratch.unsettled.count_ones());
        for i in bits(scratch.unsettled) {
            if let Some((wanted, aim)) = self.first_aim(scratch, i, &burst[i], workers) {
                scratch.port[i] = Some(aim);
                scratch.wanted[i] = wanted;
                scratch.port_place[i] = self.ledger.shared.ports.place(wanted.paired, wanted.protocol, aim.port());
                scratch.aimed |= 1 << i;
            }
        }
        for i in bits(scratch.aimed) {
            self.ledger.shared.ports.prefetch_bit(scratch.port_place[i]);
        }
        let mut elsewhere = 0;
        for i in bits(scratch.aimed) {
            let Some(aim) = scratch.port[i] else { continue };
            let wanted = &scratch.wanted[i];
            let found = match self.closer(wanted, aim) {
                Some(found) => Some(found),
                None => {
                    elsewhere |= 1 << i;
                    self.elsewhere(wanted)
                }
            };
            if let Some(aim) = found {
                scratch.port_place[i] = self.ledger.shared.ports.place(wanted.paired, wanted.protocol, aim.port());
            }
            scratch.port[i] = found;
        }
        for i in bits(elsewhere) {
            self.ledger.shared.ports.prefetch_bit(scratch.port_place[i]);
        }
        for i in bits(elsewhere) {
            let Some(aim) = scratch.port[i] else { continue };
            let wanted = &scratch.wanted[i];
            scratch.port[i] = self.closer(wanted, aim).or(scratch.port[i]);
            if let Some(aim) = scratch.port[i] {
                scratch.port_place[i] = self.ledger.shared.ports.place(wanted.paired, wanted.protocol, aim.port());
            }
        }
        for i in bits(scratch.aimed) {
            self.ledger.shared.ports.prefetch(scratch.port_place[i]);
        }
        if scratch.aimed != scratch.unsettled {
            self.draw_addresses(scratch, burst);
        }
    }

    /// The port that a new mapping for this packet wants, and a place to look for it. `None` if the
    /// long way must choose, as for a subscriber that is not known or not paired.
    #[inline(always)]
    fn first_aim(
        &mut self,
        scratch: &mut Scratch,
        i: usize,
        packet: &Packet<'_>,
        workers: usize,
    ) -> Option<(Wanted, PortAim)> {
        let kind = scratch.kind[i];
        let candidate = core::mem::take(&mut scratch.subscriber[i]);
        let protocol = match (kind.is_tcp(), kind.is_steady()) {
            (true, _) => Protocol::Tcp,
            (false, true) => Protocol::Udp,
            (false, false) => return None,
        };
        let (realm, source) = (scratch.realm[i], source_of(packet));
        let slot = if self.ledger.state.subscribers.is(candidate, realm, HostNumber(source)) {
            candidate
        } else {
            self.ledger.state.subscribers.find_hashed(scratch.subscriber_hash[i], realm, HostNumber(source))?
        };
        scratch.subscriber[i] = slot;
        let subscriber = self.ledger.state.subscribers.get(slot);
        let paired = AddressIndex(subscriber.paired);
        // Under changed settings it may need another address.
        if paired == UNPAIRED || subscriber.generation != self.ledger.shared.short_generation() {
            return None;
        }
        let compiled = self.ledger.shared.compiled_pool(paired);
        let port = u16::from_be_bytes(*packet.chunk(ip::HEADER_MIN).unwrap_or(&[0; 2]));
        let class = port_class(port, compiled);
        let parity = compiled.parity.then(|| Parity::of(port));
        let ports = &self.ledger.shared.ports;
        let (range, aim) = if compiled.gives_single_ports() {
            let random = &mut self.ledger.random;
            (None, ports.aim(paired, protocol, class, self.ledger.worker, workers, random)?)
        } else {
            let within = self.view().usual_range(slot, compiled, protocol)?;
            (Some(within), ports.aim_within(&within.0, &mut self.ledger.random))
        };
        let has_guarantees = compiled.has_guarantees();
        Some((Wanted { paired, protocol, class, parity, range, has_guarantees }, aim))
    }

    #[inline(always)]
    fn closer(&self, wanted: &Wanted, aim: PortAim) -> Option<PortAim> {
        match &wanted.range {
            Some((range, taker)) => {
                self.ledger.shared.ports.aim_closer_within(range, wanted.protocol, wanted.parity, aim, *taker)
            }
            None => self.ledger.shared.ports.aim_closer(wanted.paired, wanted.protocol, wanted.parity, aim),
        }
    }

    #[cold]
    #[inline(never)]
    fn elsewhere(&mut self, wanted: &Wanted) -> Option<PortAim> {
        let (ports, workers) = (&self.ledger.shared.ports, self.ledger.shared.workers());
        let Wanted { paired, protocol, class, parity, .. } = *wanted;
        match &wanted.range {
            Some((range, _)) => ports.aim_elsewhere_within(range, protocol, parity, &mut self.ledger.random),
            None => ports.aim_elsewhere(
                paired,
                protocol,
                class,
                parity,
                self.ledger.worker,
                workers,
                &mut self.ledger.random,
            ),
        }
    }

    /// False if an earlier packet of the burst got another block.
    #[inline(always)]
    fn is_wanted_still(&self, subscriber: u32, wanted: &Wanted) -> bool {
        let record = self.ledger.state.subscribers.get(subscriber);
        let is_held = match wanted.range {
            Some((range, Taker::Holder)) => {
                record.active_block(wanted.protocol).map(PortRange::of_block) == Some(range)
            }
            _ => true,
        };
        (record.paired == wanted.paired.0) & is_held
    }

    #[inline(always)]
    fn external_near(&self, wanted: &Wanted, aim: PortAim) -> Option<External> {
        let Wanted { paired: address, protocol, parity, .. } = *wanted;
        let (found, taker) = match &wanted.range {
            None if wanted.has_guarantees => (None, Taker::Anyone),
            None => (self.ledger.shared.ports.near(address, protocol, parity, aim), Taker::Anyone),
            Some((range, taker)) => {
                (self.ledger.shared.ports.aim_closer_within(range, protocol, parity, aim, *taker), *taker)
            }
        };
        let source = Source::Free { taker, guaranteed: None, activates: None };
        Some(External { address, port: found?.port(), source })
    }

    /// Earlier packets of the burst took the candidate, or some ports are guaranteed.
    #[cold]
    #[inline(never)]
    fn commit_anywhere(&mut self, now: Instant, new: NewMapping, session: &NewSession) -> Option<u32> {
        let (view, random) = self.ledger.deciding();
        let (paired, key) = (new.external.address, new.key);
        let compiled = view.snapshot.compiled_pool(paired);
        let external =
            view.external_for(&new.owner, paired, &key, compiled, port_class(key.port, compiled), None, random);
        self.ledger.commit_mapping(now, &NewMapping { external: external.ok()?, ..new }, session).ok()
    }

    #[inline(always)]
    pub(super) fn usual_flow(
        &self,
        now: Instant,
        header: &[u8; HEADERS],
        scratch: &Scratch,
        i: usize,
    ) -> Option<(InternalKey, NextHop)> {
        if scratch.refused >> i & 1 != 0 {
            return None;
        }
        let is_tcp = scratch.kind[i].is_tcp();
        let flags = Flags(header[33]);
        let opens = flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK.union(Flags::RST).union(Flags::FIN));
        if is_tcp && !(opens && self.ledger.syns.is_empty()) {
            return None;
        }
        let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
        let (source, destination) = (be32::<12>(header), be32::<16>(header));
        let key =
            InternalKey { realm: scratch.realm[i], protocol, address: HostNumber(source), port: be16::<20>(header) };
        if self.ledger.may_have_static_mapping(HostNumber(source))
            || !may_reach(HostNumber(source), destination)
            || self.ledger.local.lookup(destination).is_some()
            // A gateway reads it from its first packet.
            || self.ledger.policy.lifetimes.is_served(protocol, be16::<22>(header))
        {
            return None;
        }
        let hop = self.ledger.shared.route_out(destination, source)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        // An earlier packet of the burst may have created it.
        if self.ledger.state.mappings.is_full()
            || self.ledger.state.outbound.is_full()
            || self.ledger.created.may_have(scratch.place[i])
                && self.ledger.state.find_mapping(&key, scratch.place[i]).is_some()
            || self.ledger.state.has_live_flow(
                key,
                RemoteInside { address: destination, port: be16::<22>(header) },
                now,
            )
        {
            return None;
        }
        Some((key, hop))
    }

    /// The source was checked when the subscriber was created.
    #[inline(always)]
    fn is_usual_subscriber(&self, key: &InternalKey, scratch: &Scratch, i: usize) -> bool {
        let subscriber = scratch.subscriber[i];
        if !self.ledger.state.subscribers.is(subscriber, key.realm, key.address) {
            return false;
        }
        let record = self.ledger.state.subscribers.get(subscriber);
        // Rules may use several pools. Only the pool the subscriber is settled in is usual.
        let own = || self.ledger.shared.pool_for(key.realm, key.address.into());
        let is_ruled_away = !self.ledger.shared.rules.is_empty()
            && scratch.ruling[i].action.pool().or_else(own) != Some(PoolId(record.pool));
        // A penalty may have begun with an earlier packet, or have ended.
        !record.is_offender() && !is_ruled_away && self.is_wanted_still(subscriber, &scratch.wanted[i])
    }

    /// As [`PacketPath::steady_out`].
    #[inline]
    pub(in crate::shard) fn open_first_packet(
        &mut self,
        now: Instant,
        header: &mut [u8; HEADERS],
        scratch: &Scratch,
        i: usize,
    ) -> Option<Egress> {
        let Some(aim) = scratch.port[i] else { return self.open_for_new_subscriber(now, header, scratch, i) };
        let (key, hop) = self.usual_flow(now, header, scratch, i)?;
        if !self.is_usual_subscriber(&key, scratch, i) {
            return None;
        }
        let (wanted, subscriber) = (&scratch.wanted[i], scratch.subscriber[i]);
        if wanted.range.is_none() || self.ledger.shared.settings().events.block_mappings {
            self.ledger.admit_record().ok()?;
        }
        let class = self.ledger.class_now(subscriber);
        self.view().admit_known(now, subscriber, class, key.protocol).ok()?;
        let session = self.session_of(now, &key, header);
        let near = self.external_near(wanted, aim);
        let new = NewMapping {
            key,
            hash: scratch.place[i],
            owner: Owner { slot: Some(subscriber), past: Some(subscriber), class, penalty: None, released: None },
            entered: None,
            external: near.unwrap_or(External { address: wanted.paired, port: 0, source: Source::SINGLE }),
            notes_place: false,
            gives_single_ports: wanted.range.is_none(),
            turn: None,
            cause: Cause::Outbound,
        };
        let index = match near {
            Some(_) => self.ledger.commit_mapping(now, &new, &session).ok()?,
            None => self.commit_anywhere(now, new, &session)?,
        };
        Some(self.leave_first(header, scratch, i, (&key, &hop), index))
    }

    #[inline(always)]
    pub(super) fn session_of(&self, now: Instant, key: &InternalKey, header: &[u8; HEADERS]) -> NewSession {
        let (destination, remote_port) = (be32::<16>(header), be16::<22>(header));
        let first = self.ledger.policy.lifetimes.first(key.protocol, remote_port, Side::Inside);
        NewSession {
            remote_address: destination,
            remote_port,
            state: first.state,
            opened_from: Side::Inside,
            hairpin: false,
            has_own_timer: first.has_own_timer,
            expires: now + first.lifetime,
        }
    }

    #[inline(always)]
    pub(super) fn leave_first(
        &mut self,
        header: &mut [u8; HEADERS],
        scratch: &Scratch,
        i: usize,
        (key, hop): (&InternalKey, &NextHop),
        index: u32,
    ) -> Egress {
        let mapping = self.ledger.state.mappings.get_mut(index);
        let is_tcp = key.protocol == Protocol::Tcp;
        if is_tcp {
            let headers = 20 + u32::from(header[32] >> 4) * 4;
            let payload = u32::from(be16::<2>(header)).saturating_sub(headers);
            let (sequence, ack) = (be32::<24>(header), be32::<28>(header));
            mapping.tracker.observe(Side::Inside, sequence, payload + 1, ack, Flags(header[33]));
        }
        let permits = Permits { back: scratch.answers_permitted >> i & 1 != 0, ..Permits::ALL };
        if let Some(generation) = self.ledger.policy.generations.to_give(permits) {
            mapping.set_session_generation(generation);
        }
        let (external_address, port) = (mapping.external_address, mapping.external_port());
        self.ledger.shared.rules.count(self.ledger.worker, scratch.ruling[i]);
        if let Some(filter) = scratch.filter[i] {
            self.ledger.shared.filters.count(self.ledger.worker, filter as usize);
        }
        let identification = self.plain_identification(header, external_address, be32::<16>(header));
        rewrite_headers(header, is_tcp, End::Source, external_address, port, identification);
        hop.egress()
    }
}
