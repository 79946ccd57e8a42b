//! The sweep frees memory and external ports of expired records, and answers held SYNs. No lookup
//! waits for it, because an expired record counts as absent.

use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::Shard;
use crate::shard::packet::local::Reason;
use crate::state::flow::OutsideKey;
use crate::state::session::HashedBy;
use crate::steps::door::Door;
use crate::steps::door::Towards;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::WorkerId;
use crate::upkeep::walk::Pace;
use crate::upkeep::walk::Walk;
use crate::verdict::Verdict;

/// Records visited per mapping created, so that expired ones stay below a third of the live ones.
const RECORDS_PER_CREATED: u64 = 4;
/// Records visited per expired mapping found, because these come together.
const RECORDS_PER_FOUND: u64 = 16;
/// Mappings ended in one call, beside those created since the last call. Keeps a call short when
/// millions expire at once.
const ENDS_PER_CALL_MIN: usize = 8;
/// One more for each such time since the last call.
const MICROS_PER_END: u64 = 4;
const ENDS_BY_TIME_MAX: u64 = 64;
/// More than a poll creates.
const ENDS_PER_CALL_MAX: usize = 1_024;
const DATAGRAMS_PER_CALL_MAX: usize = 16;
const SYNS_PER_CALL_MAX: usize = 16;

#[derive(Debug)]
pub(in crate::shard) struct Sweep {
    last: Instant,
    mapping_cursor: u32,
    sessions: Walk,
    pub(in crate::shard) flows: Walk,
    pub(in crate::shard) shared_ports: Walk,
    /// The counter at the last call.
    pub(in crate::shard) flows_created: u64,
    /// Expired mappings to end when the prefetched lines have arrived.
    due: Box<[u32; ENDS_PER_CALL_MAX]>,
    due_count: usize,
    created: u64,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep {
            last: Instant::ORIGIN,
            mapping_cursor: 1,
            sessions: Walk::default(),
            flows: Walk::default(),
            shared_ports: Walk::default(),
            flows_created: 0,
            due: Box::new([0; ENDS_PER_CALL_MAX]),
            due_count: 0,
            created: 0,
        }
    }
}

impl View<'_> {
    #[inline]
    fn is_to_end(&self, index: u32, now: Instant) -> bool {
        !self.state.is_alive(index, now) || self.is_overdue(index, now)
    }

    fn prefetch_end(&self, index: u32) {
        let mapping = self.state.mappings.get(index);
        let key = mapping.key();
        self.state.outbound.prefetch(self.state.hash_of(&key));
        self.state.subscribers.prefetch(mapping.subscriber);
        if let Some(address) = self.local.pool_address(mapping.external_address) {
            let ports = &self.snapshot.ports;
            let place = ports.place(address, key.protocol, mapping.external_port());
            ports.prefetch_bit(place);
            ports.prefetch(place);
        }
    }

    /// Mappings, including expired ones.
    pub fn mappings_len(&self) -> u32 {
        self.state.mappings.len()
    }

    /// Subscribers with at least one mapping.
    pub fn subscribers_len(&self) -> usize {
        self.state.subscribers.len()
    }
}

impl Shard {
    /// Limited housekeeping: at most 20 µs, usually far less. Call it once per poll.
    pub fn maintain<S: Sink>(&mut self, now: Instant, sink: &mut S) {
        let elapsed = now.saturating_since(self.upkeep.sweep.last).as_micros();
        self.upkeep.sweep.last = now;
        self.policy.former.note_time(now);
        let ended = self.sweep_mappings(now, elapsed);
        self.release_ports(now, elapsed, ended);
        self.sweep_sessions(now, elapsed);
        self.sweep_flows(now, elapsed);
        self.sweep_blocks(now, elapsed);
        self.sweep_offenders(now, elapsed);
        self.sweep_lapsed(now, elapsed);
        self.sweep_guarantees(now, elapsed);
        if self.worker == WorkerId(0) {
            self.shared.free_removed_forwards(now, &mut self.upkeep.removed_forwards);
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

    fn sweep_mappings(&mut self, now: Instant, elapsed: u64) -> usize {
        let mut ended = 0;
        let found = self.upkeep.sweep.due_count as u64;
        for i in 0..core::mem::take(&mut self.upkeep.sweep.due_count).min(ENDS_PER_CALL_MAX) {
            let index = self.upkeep.sweep.due[i];
            // A packet may have ended the mapping, or created another in its record.
            let is_over = self.state.mappings.get(index).is_in_use() && self.view().is_to_end(index, now);
            // If its end cannot be recorded, a later call finds it again.
            if is_over && self.may_end(index) {
                self.end_mapping(now, index);
                ended += 1;
            }
        }
        let total = self.counters.mappings_created.iter().sum::<u64>();
        let created = total - self.upkeep.sweep.created;
        self.upkeep.sweep.created = total;
        let by_time = (elapsed / MICROS_PER_END).min(ENDS_BY_TIME_MAX);
        let ends_max = ENDS_PER_CALL_MIN + (created + by_time) as usize;
        let ends_max = ends_max.min(ENDS_PER_CALL_MAX);

        let end = self.state.mappings.walk_end();
        let more = created * RECORDS_PER_CREATED + found.min(created) * RECORDS_PER_FOUND;
        let visits = Pace::RECORDS.due(end, elapsed).saturating_add(more as u32).min(end);
        self.note_unreported(now, visits);
        let is_shortening = self.upkeep.shortening.has_mappings();
        let looks_at_each = self.shared.has_deadlines() || is_shortening;
        let (mut cursor, mut left) = (self.upkeep.sweep.mapping_cursor, visits);
        while left > 0 && cursor < end && self.upkeep.sweep.due_count < ends_max {
            let stop = cursor.saturating_add(left).min(end);
            let unsettled =
                if looks_at_each { Some(cursor) } else { self.state.mappings.next_unsettled(cursor..stop, now) };
            let next = unsettled.map_or(stop, |index| index + 1);
            self.state.mappings.prefetch_range(cursor.saturating_add(visits)..next.saturating_add(visits));
            if let Some(index) = unsettled {
                if is_shortening {
                    self.shorten_mapping(now, index);
                }
                self.find_due(index, now);
            }
            left -= next - cursor;
            self.upkeep.shortening.looked_at_mappings(cursor..next);
            cursor = if next >= end { 1 } else { next };
        }
        self.upkeep.sweep.mapping_cursor = cursor;
        ended
    }

    #[inline(never)]
    fn find_due(&mut self, index: u32, now: Instant) {
        if self.state.mappings.get(index).is_in_use() && self.view().is_to_end(index, now) {
            self.upkeep.sweep.due[self.upkeep.sweep.due_count] = index;
            self.upkeep.sweep.due_count += 1;
            self.view().prefetch_end(index);
        }
    }

    fn sweep_sessions(&mut self, now: Instant, elapsed: u64) {
        let end = self.state.sessions.walk_end();
        for slot in self.upkeep.sweep.sessions.next(Pace::RECORDS.due(end, elapsed), end) {
            self.rehash_session(slot);
            self.shorten_session(now, slot);
            let session = self.state.sessions.get(slot);
            let mapping = session.mapping;
            if mapping != 0 && (!session.is_alive(now) || self.state.mappings.get(mapping).is_condemned()) {
                self.end_extra_session(now, slot);
            }
        }
    }

    /// After a change of filtering, sessions are found by a different hash.
    #[inline]
    fn rehash_session(&mut self, slot: u32) {
        if self.state.sessions.is_unsure() {
            let mapping = self.state.sessions.get(slot).mapping;
            let compiled = if mapping == 0 { None } else { self.view().pool_of_mapping(mapping) };
            let by = compiled.map(|compiled| hashed_by(compiled, self.state.mappings.get(mapping).protocol()));
            self.state.sessions.rehash(slot, by);
        }
    }

    /// RFC 5382 §4.3 REQ-4: six seconds have passed without a matching SYN from inside.
    fn answer_syns<S: Sink>(&mut self, now: Instant, sink: &mut S) {
        for _ in 0..SYNS_PER_CALL_MAX {
            let Some(syn) = self.syns.pop_due(now) else { return };
            let meta = PacketMeta { ingress: syn.ingress, ..PacketMeta::default() };
            let towards = self.shared.side(syn.ingress);
            let remote_outside = (syn.remote.address.to_bits(), syn.remote.port);
            let external = (syn.external.address.to_bits(), syn.external.port);
            let key = OutsideKey { protocol: Protocol::Tcp, external, remote_outside };
            // Another worker may have created the mapping that the SYN waited for. Only that worker
            // sees its sessions.
            if let Door::Elsewhere { worker, turn: 0 } = self.view().door(&Towards::between(key), now) {
                let meta = PacketMeta { stage: Stage::HeldSyn, ..meta };
                // A full ring means silence, which is always allowed (REQ-4a).
                let _ = sink.hand_off(worker, meta, &[syn.quote()]);
                continue;
            }
            self.send_error(now, towards, meta, Reason::PortUnreachable, syn.quote(), sink);
        }
    }

    /// The external endpoint of the SYN has a mapping here by now.
    pub(in crate::shard) fn answer_held_syn<S: Sink>(&mut self, at: Arrival<'_>, bytes: &[u8], sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let key = Towards::of(parsed, Protocol::Tcp, 0).key;
        let matched = match self.view().door(&Towards::between(key), now) {
            Door::Session(_) => true,
            Door::Mapping(index) => {
                let compiled = self.view().pool_of_mapping(index);
                let by = compiled.map_or(HashedBy::Endpoint, |compiled| hashed_by(compiled, Protocol::Tcp));
                self.state.find_session(index, parsed.source, parsed.source_port, by, now).is_some()
            }
            // Now the endpoint of a third worker: silence.
            Door::Elsewhere { turn: 0, .. } => true,
            _ => false,
        };
        if matched {
            self.counters.unsolicited_syns_matched += 1;
        } else {
            let meta = PacketMeta { stage: Stage::Received, ..meta };
            self.send_error(now, self.shared.side(meta.ingress), meta, Reason::PortUnreachable, bytes, sink);
        }
        Fate::Done(Verdict::UnsolicitedSyn)
    }

    /// Whether no mapping, session, subscriber, fragment, SYN or held-down port is left.
    pub fn is_empty(&self) -> bool {
        self.state.mappings.len() == 0
            && self.state.sessions.len() == 0
            && self.state.flows.has_no_records()
            && self.state.shared_ports.len() == 0
            && self.state.subscribers.len() == 0
            && self.fragments.is_empty()
            && self.syns.is_empty()
            && self.state.outbound.is_empty()
            && self.state.held_ports.len() == 0
    }

    /// Sessions in the tables, including expired ones.
    pub fn sessions_len(&self) -> u64 {
        self.counters.sessions_created - self.counters.sessions_removed
    }
}
