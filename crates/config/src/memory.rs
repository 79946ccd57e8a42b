//! How much memory a configuration takes: all of it is taken at start, so that it can be told beforehand.

use crate::model::Config;

/// Bytes of one mapping: its record of 64, and its place in a hash table that is never full. A test compares.
const MAPPING_BYTES: u64 = 74;
/// Bytes of one further session, likewise.
const EXTRA_SESSION_BYTES: u64 = 58;
/// Bytes of one subscriber, likewise.
const SUBSCRIBER_BYTES: u64 = 42;
/// Bytes of one fragmented datagram's state.
const DATAGRAM_BYTES: u64 = 128;
/// Bytes of one held SYN: the segment and whose it is.
const SYN_BYTES: u64 = 128;
/// Least and largest slot of a held fragment.
const FRAGMENT_SLOT_BYTES: (u64, u64) = (2_048, 9_216);
/// Bytes of one external address: 32 bits and a few for each port of each protocol.
const ADDRESS_BYTES: u64 = 65_536 * 3 * 42 / 10;

/// Memory a configuration takes, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeded {
    /// Mappings, sessions, subscribers and fragments of all workers.
    pub tables_bytes: u64,
    /// External ports of all pools.
    pub pools_bytes: u64,
    /// Packet buffers and queues.
    pub packets_bytes: u64,
}

impl MemoryNeeded {
    /// All together.
    pub fn total_bytes(&self) -> u64 {
        self.tables_bytes.saturating_add(self.pools_bytes).saturating_add(self.packets_bytes)
    }
}

impl Config {
    /// The memory this configuration takes, within a few percent.
    pub fn memory_needed(&self) -> MemoryNeeded {
        let limits = &self.nat.limits;
        let mtu = self.nat.interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
        let slot = u64::from(mtu).clamp(FRAGMENT_SLOT_BYTES.0, FRAGMENT_SLOT_BYTES.1);
        let parts = [
            (limits.mappings_max, MAPPING_BYTES),
            (limits.extra_sessions_max, EXTRA_SESSION_BYTES),
            (limits.subscribers_max, SUBSCRIBER_BYTES),
            (limits.fragmented_datagrams_max, DATAGRAM_BYTES),
            (limits.fragments_held_max, slot),
            (limits.unsolicited_syns_max, SYN_BYTES),
        ];
        let worker_bytes: u64 = parts.iter().map(|(count, bytes)| u64::from(*count) * bytes).sum();
        let addresses: u64 = self.nat.pools.iter().map(|pool| pool.addresses.len() as u64).sum();
        MemoryNeeded {
            tables_bytes: worker_bytes.saturating_mul(self.workers.count as u64),
            pools_bytes: addresses * ADDRESS_BYTES,
            packets_bytes: self.dpdk.memory_bytes,
        }
    }
}

/// Memory DPDK needs for so many buffers: their data room with headroom, their headers, and queues; whole MiB.
pub(crate) fn packet_memory_bytes(buffers: u64, mtu: u16) -> u64 {
    const HEADROOM: u64 = 128;
    const HEADERS: u64 = 128 + 64;
    const LINK: u64 = 26;
    const REST: u64 = 64 << 20;
    let room = (u64::from(mtu) + LINK).max(2_048) + HEADROOM + HEADERS;
    (buffers.saturating_mul(room) + REST).next_multiple_of(1 << 20)
}
