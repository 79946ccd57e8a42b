//! External ports shared by flows, and this worker's flows on each.
//!
//! ```text
//!   group (external address, protocol, class) → number of ports        an array
//!   hash(group, 0..number)                    → record of one port     a random one: one lookup
//!   hash(address, protocol, port)             → the same record        only with several workers
//! ```
//!
//! The worker that takes a port from the port table is its *home*. When none is left, it also uses
//! those of other workers ([`between_workers`](crate::external::between_workers)). Ports without
//! flows are kept for a while.
//!
//! A port is charged to its *opener*, the subscriber of its first flow, while that has a flow
//! there; others share it without charge.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::random::KeyedHash;
use crate::random::Random;
use crate::state::table::BucketTable;
use crate::state::table::TableFull;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PortClass;
use crate::types::Protocol;

#[cfg(test)]
mod tests;

/// Bit of `load`: the port has no flows; the other bits are the second since which.
const IDLE: u32 = 1 << 31;
const CLASSES: u32 = 2;

/// Interchangeable ports of one external address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(u32);

impl Group {
    pub(crate) const fn count_of(addresses: usize) -> usize {
        addresses * Protocol::COUNT * CLASSES as usize
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Query identifiers have one class.
    pub(crate) const fn new(address: AddressIndex, protocol: Protocol, class: PortClass) -> Group {
        let class = if let Protocol::Icmp = protocol { PortClass::High } else { class };
        Group((address.0 * Protocol::COUNT as u32 + protocol as u32) * CLASSES + class as u32)
    }

    pub(crate) const fn address(self) -> AddressIndex {
        AddressIndex(self.0 / CLASSES / Protocol::COUNT as u32)
    }

    pub(crate) fn protocol(self) -> Protocol {
        Protocol::from_index((self.0 / CLASSES) as usize % Protocol::COUNT).unwrap_or(Protocol::Udp)
    }
}

#[derive(FromZeros)]
#[repr(C)]
pub(crate) struct SharedPort {
    group: u32,
    ordinal: u32,
    /// Number of this worker's flows, or [`IDLE`] and the second since which it has none.
    load: u32,
    port: u16,
    opener_flows: u16,
    /// 0 for none.
    opener: u32,
}

const _: () = assert!(size_of::<SharedPort>() == 20, "part of what a flow counts for (`class::FLOW_BYTES`)");

impl SharedPort {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn group(&self) -> Group {
        Group(self.group)
    }

    pub(crate) fn flows(&self) -> u32 {
        if self.load & IDLE != 0 { 0 } else { self.load }
    }

    pub(crate) fn is_last_of_opener(&self, subscriber: u32) -> bool {
        self.opener == subscriber && self.opener_flows == 1
    }

    fn can_count(&self, subscriber: u32) -> bool {
        self.opener != subscriber || self.opener_flows < u16::MAX
    }

    pub(crate) fn may_carry(&self, subscriber: u32, may_open: bool, are_flows: impl FnOnce() -> bool) -> bool {
        self.can_count(subscriber) && (may_open || self.flows() > 0 || are_flows())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenBack {
    pub(crate) is_idle: bool,
    pub(crate) counts_no_more: bool,
}

pub(crate) struct SharedPorts {
    records: Arena<SharedPort>,
    table: BucketTable,
    /// `None` with a single worker.
    by_port: Option<BucketTable>,
    hash: KeyedHash,
    counts: Arena<u32>,
    free: u32,
    untouched: u32,
}

fn second(at: Instant) -> u32 {
    (at.as_micros() / 1_000_000) as u32 & !IDLE
}

/// Rounded up, or the port would go back before its hold-down ends.
fn next_second(at: Instant) -> u32 {
    at.as_micros().div_ceil(1_000_000) as u32 & !IDLE
}

impl SharedPorts {
    pub(crate) fn new(
        ports_max: u32,
        addresses: usize,
        workers: usize,
        hash: KeyedHash,
    ) -> Result<SharedPorts, ArenaError> {
        let by_port = (workers > 1).then(|| BucketTable::with_capacity(ports_max as usize));
        Ok(SharedPorts {
            records: Arena::zeroed(ports_max as usize + 1)?,
            table: BucketTable::with_capacity(ports_max as usize)?,
            by_port: by_port.transpose()?,
            hash,
            counts: Arena::zeroed(Group::count_of(addresses))?,
            free: 0,
            untouched: 1,
        })
    }

    pub(crate) fn needs(ports_max: u32, addresses: usize, workers: usize) -> Vec<Need> {
        let table = BucketTable::need(ports_max as usize);
        let mut needs = vec![
            Arena::<SharedPort>::need(ports_max as usize + 1),
            table,
            Arena::<u32>::need(Group::count_of(addresses)),
        ];
        needs.extend((workers > 1).then_some(table));
        needs
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    pub(crate) fn bytes(&self) -> usize {
        let by_port = self.by_port.as_ref().map_or(0, BucketTable::bytes);
        self.records.bytes() + self.table.bytes() + self.counts.bytes() + by_port
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&SharedPort> {
        self.records.get(slot as usize).filter(|record| record.port != 0)
    }

    pub(crate) fn count(&self, group: Group) -> u32 {
        self.counts.get(group.0 as usize).copied().unwrap_or(0)
    }

    fn hash_of(&self, group: u32, ordinal: u32) -> u64 {
        self.hash.hash(u64::from(group), u64::from(ordinal))
    }

    fn find(&self, group: u32, ordinal: u32) -> Option<u32> {
        self.table.find(self.hash_of(group, ordinal), |slot| {
            let record = &self.records[slot as usize];
            record.group == group && record.ordinal == ordinal
        })
    }

    /// Unlike the hash of any ordinal. Covers both classes: a port has one record.
    fn hash_of_port(&self, group: u32, port: u16) -> u64 {
        self.hash.hash(u64::from(group / CLASSES), 1 << 32 | u64::from(port))
    }

    pub(crate) fn find_port(&self, group: Group, port: u16) -> Option<u32> {
        self.by_port.as_ref()?.find(self.hash_of_port(group.0, port), |slot| {
            let record = &self.records[slot as usize];
            record.group / CLASSES == group.0 / CLASSES && record.port == port
        })
    }

    /// The n-th port of a group, cyclically from `first`.
    pub(crate) fn nth_from(&self, group: Group, first: u32, n: u32) -> Option<u32> {
        let count = self.count(group);
        let ordinal = (u64::from(first) + u64::from(n)).checked_rem(u64::from(count))?;
        self.find(group.0, ordinal as u32)
    }

    pub(crate) fn pick(&self, group: Group, random: &mut Random) -> Option<u32> {
        let count = self.count(group);
        if count == 0 {
            return None;
        }
        self.find(group.0, random.below(count))
    }

    /// Changes nothing if full.
    pub(crate) fn add(&mut self, group: Group, port: u16, now: Instant) -> Result<u32, TableFull> {
        debug_assert!(port != 0, "port 0 is never given out");
        let ordinal = self.count(group);
        if self.counts.get(group.0 as usize).is_none() {
            return Err(TableFull);
        }
        let slot = if self.free != 0 { self.free } else { self.untouched };
        self.table.insert(self.hash_of(group.0, ordinal), slot)?;
        if slot == self.free {
            self.free = self.records[slot as usize].ordinal;
        } else {
            self.untouched += 1;
        }
        self.records[slot as usize] =
            SharedPort { group: group.0, ordinal, load: IDLE | next_second(now), port, opener_flows: 0, opener: 0 };
        self.counts[group.0 as usize] += 1;
        let hash = self.hash_of_port(group.0, port);
        if let Some(by_port) = &mut self.by_port {
            by_port.insert(hash, slot)?;
        }
        Ok(slot)
    }

    /// `opens`: the flow is the first on any worker, and is charged.
    pub(crate) fn take(&mut self, slot: u32, subscriber: u32, opens: bool) {
        let record = &mut self.records[slot as usize];
        debug_assert!(record.can_count(subscriber), "it was asked for");
        record.load = record.flows() + 1;
        if opens {
            (record.opener, record.opener_flows) = (subscriber, 0);
        }
        if record.opener == subscriber {
            record.opener_flows = record.opener_flows.saturating_add(1);
        }
    }

    pub(crate) fn give_back(&mut self, slot: u32, subscriber: u32, now: Instant) -> GivenBack {
        let record = &mut self.records[slot as usize];
        let flows = record.flows();
        debug_assert!(flows > 0, "no more flows end than began");
        record.load = if flows > 1 { flows - 1 } else { IDLE | next_second(now) };
        let is_idle = flows <= 1;
        if record.opener != subscriber {
            return GivenBack { is_idle, counts_no_more: false };
        }
        debug_assert!(record.opener_flows > 0, "an opener has a flow");
        record.opener_flows = record.opener_flows.saturating_sub(1);
        let counts_no_more = record.opener_flows == 0;
        if counts_no_more {
            record.opener = 0;
        }
        GivenBack { is_idle, counts_no_more }
    }

    /// For a port that lost this worker's last flow.
    pub(crate) fn begin_idling(&mut self, slot: u32, now: Instant) {
        let record = &mut self.records[slot as usize];
        debug_assert!(record.load & IDLE != 0, "only what is idle begins to be so anew");
        record.load = IDLE | next_second(now);
    }

    pub(crate) fn is_idle_for(&self, slot: u32, seconds: u32, now: Instant) -> bool {
        let has_been = |since: u32| second(now).saturating_sub(since) >= seconds;
        self.get(slot).is_some_and(|record| record.load & IDLE != 0 && has_been(record.load & !IDLE))
    }

    /// The caller settles the port table.
    pub(crate) fn remove(&mut self, slot: u32) {
        let record = &self.records[slot as usize];
        debug_assert!(record.port != 0 && record.load & IDLE != 0, "only a port that carries nothing is removed");
        let (group, ordinal, port) = (record.group, record.ordinal, record.port);
        let hash = self.hash_of_port(group, port);
        if let Some(by_port) = &mut self.by_port {
            let was_there = by_port.remove(hash, slot);
            debug_assert!(was_there, "every shared port is in both tables");
        }
        let was_there = self.table.remove(self.hash_of(group, ordinal), slot);
        debug_assert!(was_there, "every shared port is in the table");
        let last = self.counts[group as usize] - 1;
        self.counts[group as usize] = last;
        if ordinal != last
            && let Some(moved) = self.find(group, last)
        {
            // The last port gets the free ordinal, to leave no gap.
            self.table.remove(self.hash_of(group, last), moved);
            self.records[moved as usize].ordinal = ordinal;
            let entered = self.table.insert(self.hash_of(group, ordinal), moved);
            debug_assert!(entered.is_ok(), "two were taken out");
        }
        let free = self.free;
        let record = &mut self.records[slot as usize];
        record.port = 0;
        record.ordinal = free;
        self.free = slot;
    }
}
