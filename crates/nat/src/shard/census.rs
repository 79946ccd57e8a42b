//! What a change of the configuration would do to the state of one worker, counted a bounded piece at a time.

use super::Shard;
use super::penalty::pool_under;
use super::port_choice::UNPAIRED;
use crate::flow::endpoint;
use crate::settings::Pooling;
use crate::shared::Shared;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::PoolId;
use crate::types::Protocol;

/// Cursors from here on walk the flows.
const FLOW_CURSOR: u32 = 1 << 30;
/// Cursors from here on walk the subscribers.
const SUBSCRIBER_CURSOR: u32 = 1 << 31;

/// What becomes of the state of one pool; flows that share ports count as mappings. By its number in the present settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCensus {
    /// Subscribers who notice nothing.
    pub subscribers_keep: u64,
    /// Subscribers whose next mapping is on another external address.
    pub subscribers_move: u64,
    /// Subscribers whom no pool serves any more: they get no further mapping.
    pub subscribers_leave: u64,
    /// Mappings that nothing happens to.
    pub mappings_keep: u64,
    /// Mappings that stay as long as they are used, on an endpoint that is not given out again.
    pub mappings_drain: u64,
    /// Mappings that stay as long as they are used, but no longer than the drain time.
    pub mappings_drain_until: u64,
    /// Mappings that end with the change.
    pub mappings_end: u64,
}

impl PoolCensus {
    /// Adds another count.
    pub fn add(&mut self, other: &PoolCensus) {
        self.subscribers_keep += other.subscribers_keep;
        self.subscribers_move += other.subscribers_move;
        self.subscribers_leave += other.subscribers_leave;
        self.mappings_keep += other.mappings_keep;
        self.mappings_drain += other.mappings_drain;
        self.mappings_drain_until += other.mappings_drain_until;
        self.mappings_end += other.mappings_end;
    }
}

impl Shard {
    /// Counts what `candidate`, a successor of the present snapshot, would do to the next `scan_max` records from `cursor` on
    /// (0 to begin). `counts` has a place for each pool of [`Shared::pools`]. Returns the cursor to go on with; None at the
    /// end. Changes nothing.
    pub fn census_page(
        &self,
        now: Instant,
        candidate: &Shared,
        cursor: u32,
        scan_max: usize,
        counts: &mut [PoolCensus],
    ) -> Option<u32> {
        let mut cursor = cursor.max(1);
        for _ in 0..scan_max {
            if cursor < FLOW_CURSOR && cursor >= self.mappings.walk_end() {
                cursor = FLOW_CURSOR | 1;
            }
            if (FLOW_CURSOR..SUBSCRIBER_CURSOR).contains(&cursor) && cursor & !FLOW_CURSOR >= self.flows.walk_end() {
                cursor = SUBSCRIBER_CURSOR | 1;
            }
            if cursor < FLOW_CURSOR {
                self.count_mapping_under(now, candidate, cursor, counts);
            } else if cursor < SUBSCRIBER_CURSOR {
                self.count_flow_under(now, candidate, cursor & !FLOW_CURSOR, counts);
            } else if cursor & !SUBSCRIBER_CURSOR >= self.subscribers.walk_end() {
                return None;
            } else {
                self.count_subscriber_under(candidate, cursor & !SUBSCRIBER_CURSOR, counts);
            }
            cursor += 1;
        }
        Some(cursor)
    }

    fn count_mapping_under(&self, now: Instant, candidate: &Shared, index: u32, counts: &mut [PoolCensus]) {
        let mapping = self.mappings.get(index);
        if !mapping.is_in_use() || !self.is_alive(index, now) {
            return;
        }
        self.count_endpoint_under(now, candidate, mapping.external(), mapping.protocol(), counts);
    }

    fn count_flow_under(&self, now: Instant, candidate: &Shared, index: u32, counts: &mut [PoolCensus]) {
        let flow = self.flows.get(index);
        if flow.is_in_use() && flow.is_alive(now) {
            self.count_endpoint_under(now, candidate, endpoint(flow.external()), flow.protocol(), counts);
        }
    }

    fn count_endpoint_under(
        &self,
        now: Instant,
        candidate: &Shared,
        external: Endpoint,
        protocol: Protocol,
        counts: &mut [PoolCensus],
    ) {
        let here = self.shared.address_index(external.address);
        let pool = here.map_or_else(PoolId::default, |address| self.shared.pool_of(address));
        let Some(count) = counts.get_mut(pool.index()) else { return };
        // A successor knows every address that has mappings.
        let slot = here.and_then(|address| Some((candidate.slot(address)?, address)));
        match slot.map(|(slot, address)| (slot.closed, address)) {
            None => count.mappings_end += 1,
            Some((Some(closed), _)) => match closed.ends {
                Some(ends) if ends <= now => count.mappings_end += 1,
                Some(_) => count.mappings_drain_until += 1,
                None => count.mappings_drain += 1,
            },
            Some((None, address)) if candidate.offers(address, protocol, external.port) => {
                count.mappings_keep += 1;
            }
            Some(_) => count.mappings_drain += 1,
        }
    }

    fn count_subscriber_under(&self, candidate: &Shared, slot: u32, counts: &mut [PoolCensus]) {
        let subscriber = self.subscribers.get(slot);
        if !subscriber.is_in_use() {
            return;
        }
        let Some(here) = pool_under(&self.shared, subscriber) else { return };
        let Some(count) = counts.get_mut(here.index()) else { return };
        let Some(there) = pool_under(candidate, subscriber) else {
            count.subscribers_leave += 1;
            return;
        };
        let paired = AddressIndex(subscriber.paired);
        let stays = match candidate.pool(there).map(|pool| pool.pooling) {
            Some(Pooling::Paired) => {
                paired != UNPAIRED && candidate.pool_of(paired) == there && candidate.closed(paired).is_none()
            }
            _ => paired == UNPAIRED,
        };
        if stays {
            count.subscribers_keep += 1;
        } else {
            count.subscribers_move += 1;
        }
    }
}
