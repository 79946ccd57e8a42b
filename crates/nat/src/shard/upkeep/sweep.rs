//! Frees memory and external ports of expired records. No lookup waits for it: an expired record
//! counts as absent.

use crate::shard::Ledger;
use crate::state::mapping::earliest_end::EarliestEnds;
use crate::state::mapping::earliest_end::GROUP;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::upkeep::walk::Pace;
use crate::upkeep::walk::Walk;

/// Records to look at per mapping created.
const RECORDS_PER_CREATED: u64 = 4;
/// Per expired mapping found, because these come together.
const RECORDS_PER_FOUND: u64 = 16;
/// Passing over a group counts as so many records. While most mappings live on, a round takes one
/// new mapping for each 64 records, so expired ones stay below a fiftieth of the table.
const RECORDS_PER_GROUP_PASSED: i64 = 4;
const GROUPS_PER_CALL_MAX: usize = 32;
/// Beside the mappings created since the last call. Keeps a call short when millions expire at
/// once.
const ENDS_PER_CALL_MIN: usize = 8;
const MICROS_PER_END: u64 = 4;
const ENDS_BY_TIME_MAX: u64 = 64;
/// More than a poll creates.
const ENDS_PER_CALL_MAX: usize = 1_024;

#[derive(Debug)]
pub(in crate::shard) struct Sweep {
    pub(in crate::shard) last: Instant,
    mapping_cursor: u32,
    sessions: Walk,
    pub(in crate::shard) flows: Walk,
    pub(in crate::shard) shared_ports: Walk,
    pub(in crate::shard) flows_created: u64,
    /// Expired, to end when the prefetched lines have arrived.
    due: Box<[u32; ENDS_PER_CALL_MAX]>,
    due_count: usize,
    created: u64,
    groups: Groups,
}

/// A walk over groups of records, as mappings are created. It reads the records of those groups
/// only of which one may have ended.
#[derive(Debug, Default)]
struct Groups {
    cursor: u32,
    /// Records that may still be looked at. Negative if too many were.
    credit: i64,
    /// To look over when the prefetched lines have arrived.
    pending: [u32; GROUPS_PER_CALL_MAX],
    pending_count: usize,
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
            groups: Groups::default(),
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

    /// Includes expired mappings.
    pub fn mappings_len(&self) -> u32 {
        self.state.mappings.len()
    }

    /// Subscribers with at least one mapping.
    pub fn subscribers_len(&self) -> usize {
        self.state.subscribers.len()
    }
}

impl Ledger {
    pub(in crate::shard) fn sweep_mappings(&mut self, now: Instant, elapsed: u64) -> usize {
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
        let is_shortening = self.upkeep.shortening.has_mappings();
        let looks_at_each = self.shared.has_deadlines() || is_shortening;
        let mut visits = Pace::RECORDS.due(end, elapsed);
        if looks_at_each {
            visits = visits.saturating_add(more as u32).min(end);
        } else {
            self.sweep_groups(now, more, ends_max);
        }
        self.note_unreported(now, visits);
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

    fn sweep_groups(&mut self, now: Instant, more: u64, ends_max: usize) {
        for i in 0..core::mem::take(&mut self.upkeep.sweep.groups.pending_count).min(GROUPS_PER_CALL_MAX) {
            let group = self.upkeep.sweep.groups.pending[i];
            if !self.look_over(group, now, ends_max) {
                // The rest of the group, and the groups behind it, remain due.
                self.upkeep.sweep.groups.cursor = group;
                break;
            }
        }
        let end = self.state.mappings.walk_end();
        let groups = end.div_ceil(GROUP);
        let mut credit = self.upkeep.sweep.groups.credit.saturating_add_unsigned(more);
        for _ in 0..groups {
            let Groups { cursor, pending, pending_count, .. } = &mut self.upkeep.sweep.groups;
            if credit < RECORDS_PER_GROUP_PASSED || *pending_count == pending.len() {
                break;
            }
            let group = if *cursor < groups { *cursor } else { 0 };
            *cursor = group + 1;
            if !self.state.mappings.is_due(group, now) {
                credit -= RECORDS_PER_GROUP_PASSED;
                continue;
            }
            // May leave a debt: a single new mapping is enough to find expired ones.
            credit -= i64::from(GROUP);
            pending[*pending_count] = group;
            *pending_count += 1;
            self.state.mappings.prefetch_range(EarliestEnds::records(group, end));
        }
        // What a small table cannot use up is not saved.
        self.upkeep.sweep.groups.credit = credit.min(RECORDS_PER_GROUP_PASSED);
    }

    /// False if too much is due already.
    fn look_over(&mut self, group: u32, now: Instant, ends_max: usize) -> bool {
        let records = EarliestEnds::records(group, self.state.mappings.walk_end());
        let mut next = records.start;
        while let Some(index) = self.state.mappings.next_unsettled(next..records.end, now) {
            if self.upkeep.sweep.due_count >= ends_max {
                return false;
            }
            self.find_due(index, now);
            next = index + 1;
        }
        self.state.mappings.settle_group(group, now);
        true
    }

    #[inline(never)]
    fn find_due(&mut self, index: u32, now: Instant) {
        if self.state.mappings.get(index).is_in_use() && self.view().is_to_end(index, now) {
            self.upkeep.sweep.due[self.upkeep.sweep.due_count] = index;
            self.upkeep.sweep.due_count += 1;
            self.view().prefetch_end(index);
        }
    }

    pub(in crate::shard) fn sweep_sessions(&mut self, now: Instant, elapsed: u64) {
        let end = self.state.sessions.walk_end();
        for slot in self.upkeep.sweep.sessions.next(Pace::RECORDS.due(end, elapsed), end) {
            self.rehash_session(slot);
            self.shorten_session(now, slot);
            let session = self.state.sessions.get(slot);
            let mapping = session.mapping;
            // A hold ends with its grant.
            let is_over = !session.is_alive(now) && !session.is_hold();
            if mapping != 0 && (is_over || self.state.mappings.get(mapping).is_condemned()) {
                self.end_extra_session(now, slot);
            }
        }
    }

    /// Changed filtering finds sessions by another hash.
    #[inline]
    fn rehash_session(&mut self, slot: u32) {
        if self.state.sessions.is_unsure() {
            let mapping = self.state.sessions.get(slot).mapping;
            let compiled = if mapping == 0 { None } else { self.view().pool_of_mapping(mapping) };
            let by = compiled.map(|compiled| hashed_by(compiled, self.state.mappings.get(mapping).protocol()));
            self.state.sessions.rehash(slot, by);
        }
    }
}

#[cfg(test)]
mod tests;
