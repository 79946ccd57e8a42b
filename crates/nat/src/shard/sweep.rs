//! The bounded sweep: reclaims what is out of date, so many entries a call, and answers held SYNs.
//!
//! Nothing waits for it: a lookup treats an entry that is out of date as absent. The sweep only gives the
//! memory and the external port back.

use super::Arrival;
use super::Fate;
use super::Shard;
use super::dependent::key_of_inbound;
use super::local::Reason;
use crate::flow::OutsideKey;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::time::Instant;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// A whole round over all records takes about this long, if calls come often enough.
const ROUND_MICROS: u64 = 4_000_000;
/// In large tables a round takes as long as it takes at this rate: more would cost established packets too much.
const RECORDS_PER_MICRO_MAX: u64 = 2;
/// And so many more for each mapping made since the last call: a table whose mappings come and go must not fill up with the
/// dead. At this rate they stay below a third of the living.
const RECORDS_PER_CREATED: u64 = 4;
/// And so many for each one that was found to be ended, as where one is there are more.
const RECORDS_PER_FOUND: u64 = 16;
/// Records visited in one call at most, of those that are due to time alone: about 2 µs, as the next ones are asked for in
/// time.
const RECORDS_PER_CALL_MAX: u64 = 256;
/// Records visited in one call at least, so that small tables are clean soon.
const RECORDS_PER_CALL_MIN: u64 = 16;
/// Mappings ended in one call, beyond as many as were made since the last one. It keeps a call short when millions end
/// at one instant; as many as were made, because otherwise the table could fill up with the dead.
const ENDS_PER_CALL_MIN: usize = 8;
/// And one more for each such time since the last call: who calls seldom has time for more.
const MICROS_PER_END: u64 = 4;
/// Mappings ended in one call at most, of those that are due to time alone.
const ENDS_BY_TIME_MAX: u64 = 64;
/// Mappings ended in one call at most: more than any poll makes.
const ENDS_PER_CALL_MAX: usize = 1_024;
/// Incomplete datagrams given up in one call at most.
const DATAGRAMS_PER_CALL_MAX: usize = 16;
/// Held SYNs answered in one call at most.
const SYNS_PER_CALL_MAX: usize = 16;

/// Where the sweep is.
#[derive(Debug)]
pub(super) struct Sweep {
    last: Instant,
    mapping_hand: u32,
    session_hand: u32,
    pub(super) flow_hand: u32,
    pub(super) shared_port_hand: u32,
    /// Flows made until the last call.
    pub(super) flows_created: u64,
    /// Mappings found out of date by the last call, to be ended by the next one: the lines this needs are on their way.
    due: Box<[u32; ENDS_PER_CALL_MAX]>,
    due_count: usize,
    /// Mappings made until the last call.
    created: u64,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep {
            last: Instant::ORIGIN,
            mapping_hand: 1,
            session_hand: 1,
            flow_hand: 1,
            shared_port_hand: 1,
            flows_created: 0,
            due: Box::new([0; ENDS_PER_CALL_MAX]),
            due_count: 0,
            created: 0,
        }
    }
}

impl Shard {
    /// Does a bounded piece of housekeeping. Call it once per poll, also when no packet came; the cost is at
    /// most some 20 µs, usually far less.
    pub fn maintain<S: Sink>(&mut self, now: Instant, sink: &mut S) {
        let elapsed = now.saturating_since(self.sweep.last).as_micros();
        self.sweep.last = now;
        self.former.note_time(now);
        let ended = self.sweep_mappings(now, elapsed);
        self.release_ports(now, elapsed, ended);
        self.sweep_sessions(now, elapsed);
        self.sweep_flows(now, elapsed);
        self.sweep_blocks(now, elapsed);
        self.sweep_offenders(now, elapsed);
        self.sweep_lapsed(now, elapsed);
        self.sweep_guarantees(now, elapsed);
        if self.worker == WorkerId(0) {
            self.shared.free_leftovers(now, &mut self.leftovers_hand);
        }
        self.sweep_stamps();
        self.watch(now);
        self.retell(now, elapsed);
        let counters = &mut self.counters;
        self.fragments.expire(now, DATAGRAMS_PER_CALL_MAX, |held| {
            counters.verdicts[Verdict::FragmentTimeout.index()] += u64::from(held);
        });
        self.counters.fragments_held = u64::from(self.fragments.held());
        self.answer_syns(now, sink);
        let settings = self.shared.settings().events;
        self.events.maintain(now, &settings);
    }

    /// Returns how many were ended.
    fn sweep_mappings(&mut self, now: Instant, elapsed: u64) -> usize {
        let mut ended = 0;
        let found = self.sweep.due_count as u64;
        for i in 0..core::mem::take(&mut self.sweep.due_count).min(ENDS_PER_CALL_MAX) {
            let index = self.sweep.due[i];
            // A packet may have ended it meanwhile, or begun a new mapping in its place.
            let is_over = self.mappings.get(index).is_in_use() && self.is_to_end(index, now);
            // What can not be recorded now is found again.
            if is_over && self.may_end(index) {
                self.end_mapping(now, index);
                ended += 1;
            }
        }
        let total = self.counters.mappings_created.iter().sum::<u64>();
        let created = total - self.sweep.created;
        self.sweep.created = total;
        let by_time = (elapsed / MICROS_PER_END).min(ENDS_BY_TIME_MAX);
        let ends_max = ENDS_PER_CALL_MIN + (created + by_time) as usize;
        let ends_max = ends_max.min(ENDS_PER_CALL_MAX);

        let end = self.mappings.walk_end();
        let visits = budget(end, elapsed, created * RECORDS_PER_CREATED + found.min(created) * RECORDS_PER_FOUND);
        self.note_untold(now, visits as u32);
        let is_shortening = self.shortening.has_mappings();
        let looks_at_each = self.shared.has_deadlines() || is_shortening;
        let (mut hand, mut left) = (self.sweep.mapping_hand, visits as u32);
        while left > 0 && hand < end && self.sweep.due_count < ends_max {
            let stop = hand.saturating_add(left).min(end);
            // Nearly all records are settled, and where one is not, more are.
            let unsettled = if looks_at_each { Some(hand) } else { self.mappings.next_unsettled(hand..stop, now) };
            let next = unsettled.map_or(stop, |index| index + 1);
            // The next call will be there, if it has as much time.
            self.mappings.prefetch_range(hand.saturating_add(visits as u32)..next.saturating_add(visits as u32));
            if let Some(index) = unsettled {
                if is_shortening {
                    self.shorten_mapping(now, index);
                }
                self.find_due(index, now);
            }
            left -= next - hand;
            self.shortening.looked_at_mappings(hand..next);
            hand = if next >= end { 1 } else { next };
        }
        self.sweep.mapping_hand = hand;
        ended
    }

    /// Takes notice of a mapping that is to be ended, if this is one.
    #[inline(never)]
    fn find_due(&mut self, index: u32, now: Instant) {
        if self.mappings.get(index).is_in_use() && self.is_to_end(index, now) {
            self.sweep.due[self.sweep.due_count] = index;
            self.sweep.due_count += 1;
            self.prefetch_end(index);
        }
    }

    /// Whether a mapping that exists is to be ended.
    #[inline]
    fn is_to_end(&self, index: u32, now: Instant) -> bool {
        !self.is_alive(index, now) || self.is_overdue(index, now)
    }

    /// Asks for all lines that ending a mapping will touch.
    fn prefetch_end(&self, index: u32) {
        let mapping = self.mappings.get(index);
        let key = mapping.key();
        self.outbound.prefetch(self.hash_of(&key));
        self.subscribers.prefetch(mapping.subscriber);
        if let Some(address) = self.local.pool_address(mapping.external_address) {
            let ports = &self.shared.ports;
            let place = ports.place(address, key.protocol, mapping.external_port());
            ports.prefetch_bit(place);
            ports.prefetch(place);
        }
    }

    fn sweep_sessions(&mut self, now: Instant, elapsed: u64) {
        let end = self.sessions.walk_end();
        for _ in 0..budget(end, elapsed, 0) {
            let slot = self.sweep.session_hand;
            self.sweep.session_hand = if slot + 1 >= end { 1 } else { slot + 1 };
            if slot >= end {
                continue;
            }
            self.rehash_session(slot);
            self.shorten_session(now, slot);
            let session = self.sessions.get(slot);
            let mapping = session.mapping;
            if mapping != 0 && (!session.is_alive(now) || self.mappings.get(mapping).is_condemned()) {
                self.end_extra_session(now, slot);
            }
        }
    }

    /// After a change of filtering sessions are found by something else than they were made with.
    #[inline]
    fn rehash_session(&mut self, slot: u32) {
        if self.sessions.is_unsure() {
            let mapping = self.sessions.get(slot).mapping;
            let facts = if mapping == 0 { None } else { self.facts_of_mapping(mapping) };
            let by = facts.map(|facts| Shard::hashed_by(&facts, self.mappings.get(mapping).protocol()));
            self.sessions.rehash(slot, by);
        }
    }

    /// RFC 5382 §4.3 REQ-4: six seconds have passed and nobody inside sent a matching SYN.
    fn answer_syns<S: Sink>(&mut self, now: Instant, sink: &mut S) {
        for _ in 0..SYNS_PER_CALL_MAX {
            let Some(syn) = self.syns.pop_due(now) else { return };
            let meta = PacketMeta { ingress: syn.ingress, ..PacketMeta::default() };
            let towards = self.shared.side(syn.ingress);
            let address = self.local.pool_address(syn.external.address.to_bits());
            let far = (syn.remote.address.to_bits(), syn.remote.port);
            let external = (syn.external.address.to_bits(), syn.external.port);
            let key = OutsideKey { protocol: Protocol::Tcp, external, far };
            let owner = address.and_then(|address| self.shared.owner_towards(address, &key));
            // A mapping that another worker made meanwhile may be the one the SYN was waiting for; only that
            // worker sees its sessions.
            if let Some((worker, _)) = owner
                && worker != self.worker
            {
                let meta = PacketMeta { stage: Stage::HeldSyn, ..meta };
                // A full ring means silence, which is always allowed (REQ-4a).
                let _ = sink.hand_off(worker, meta, &[syn.quote()]);
                continue;
            }
            self.send_error(now, towards, meta, Reason::PortUnreachable, syn.quote(), sink);
        }
    }

    /// A SYN held by another worker, whose external endpoint has a mapping here by now: forgotten if a matching SYN
    /// went out, else answered.
    pub(super) fn answer_held_syn<S: Sink>(&mut self, at: Arrival<'_>, bytes: &[u8], sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let address = self.shared.address_index(parsed.destination.into());
        let key = key_of_inbound(parsed, Protocol::Tcp);
        let owner = address.and_then(|address| self.shared.owner_towards(address, &key));
        let matched = match (address, owner) {
            (_, Some((worker, MappingIndex::SHARED))) if worker == self.worker => {
                self.live_flow_outside(&key, now).is_some()
            }
            (Some(address), Some((worker, index))) if worker == self.worker => {
                let by = Shard::hashed_by(self.shared.facts(address), Protocol::Tcp);
                self.find_session(index.0, parsed.source, parsed.source_port, by, now).is_some()
            }
            // Given to yet another worker since: silence.
            (_, owner) => owner.is_some(),
        };
        if matched {
            self.counters.unsolicited_syns_matched += 1;
        } else {
            let meta = PacketMeta { stage: Stage::Received, ..meta };
            self.send_error(now, self.shared.side(meta.ingress), meta, Reason::PortUnreachable, bytes, sink);
        }
        Fate::Done(Verdict::UnsolicitedSyn)
    }

    /// Whether no mapping, session, subscriber, fragment, SYN or resting port is left.
    pub fn is_empty(&self) -> bool {
        self.mappings.len() == 0
            && self.sessions.len() == 0
            && self.flows.has_no_records()
            && self.shared_ports.len() == 0
            && self.subscribers.len() == 0
            && self.fragments.is_empty()
            && self.syns.is_empty()
            && self.outbound.is_empty()
            && self.held_ports.len() == 0
    }

    /// Mappings in the table, including those out of date and not yet reclaimed.
    pub fn mappings_len(&self) -> u32 {
        self.mappings.len()
    }

    /// Sessions in the tables, including those out of date and not yet reclaimed.
    pub fn sessions_len(&self) -> u64 {
        self.counters.sessions_created - self.counters.sessions_removed
    }

    /// Subscribers with at least one mapping.
    pub fn subscribers_len(&self) -> usize {
        self.subscribers.len()
    }
}

/// Records to visit now, of so many, when the last visit was so long ago, and so many more.
pub(super) fn budget(records: u32, elapsed_micros: u64, more: u64) -> u64 {
    // More than a whole round there is not, and products stay below 2^64.
    let round = u64::from(records) * elapsed_micros.min(ROUND_MICROS) / ROUND_MICROS;
    let due = round.min(elapsed_micros.saturating_mul(RECORDS_PER_MICRO_MAX));
    let due = due.clamp(RECORDS_PER_CALL_MIN, RECORDS_PER_CALL_MAX);
    due.saturating_add(more).min(u64::from(records))
}
