//! How much memory a configuration takes. All of it is taken at start, so it can be reported in
//! advance.

use mem::Need;
use mem::NotEnough;
use mem::Plan;
use mem::Stock;
use nat::settings::Address6;

use crate::model::Config;
use crate::model::EventLog;
use crate::model::Hugepages;

/// Memory a configuration takes, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeded {
    /// Mappings, sessions, subscribers, fragments and waiting records of events of all workers.
    pub tables_bytes: u64,
    /// External ports of all pools.
    pub pools_bytes: u64,
    /// Rules and filters.
    pub rules_bytes: u64,
    /// Packet buffers and queues.
    pub packets_bytes: u64,
}

impl MemoryNeeded {
    /// All together.
    pub fn total_bytes(&self) -> u64 {
        self.tables_bytes
            .saturating_add(self.pools_bytes)
            .saturating_add(self.rules_bytes)
            .saturating_add(self.packets_bytes)
    }
}

impl Config {
    /// Stations for which the subnets of interfaces with a device of the kernel have room, in IPv4
    /// and in IPv6. The kernel has each of them that speaks in its table of neighbours. A subnet of
    /// IPv6 has room for more than any table.
    pub fn kernel_stations(&self) -> (u64, u64) {
        let with_device = self.nat.interfaces.iter().zip(&self.kernel).filter(|(_, name)| name.is_some());
        let subnets = with_device.flat_map(|(interface, _)| &interface.addresses);
        let stations = subnets.map(|own| 1_u64 << 32_u8.saturating_sub(own.prefix_length)).sum();
        let has_device = |own: &&Address6| self.kernel.get(own.interface.index()).is_some_and(Option::is_some);
        let subnets = self.nat.ipv6.addresses.iter().filter(has_device);
        let room = |own: &Address6| 1_u64.checked_shl(128_u32.saturating_sub(own.prefix_length.into()));
        let stations6 = subnets.map(|own| room(own).unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
        (stations, stations6)
    }

    /// The memory this configuration takes.
    pub fn memory_needed(&self) -> MemoryNeeded {
        let sum = |needs: Vec<Need>| needs.into_iter().fold(0_u64, |sum, need| sum.saturating_add(need.bytes()));
        MemoryNeeded {
            tables_bytes: sum(nat::memory::shard_needs(&self.nat, self.workers.count))
                .saturating_add(self.event_queue_bytes())
                .saturating_mul(self.workers.count as u64),
            pools_bytes: sum(nat::memory::shared_needs(&self.nat, self.workers.count)),
            rules_bytes: nat::memory::rule_need(&self.nat, self.workers.count).bytes(),
            packets_bytes: self.dpdk.memory_bytes,
        }
    }

    /// Where all of it goes on a machine with this `stock`. Takes nothing.
    ///
    /// # Errors
    /// [`NotEnough`] when it does not fit.
    pub fn memory_plan(&self, stock: &Stock) -> Result<Plan, NotEnough> {
        let packets = match self.dpdk.hugepages {
            Hugepages::Off => Need::Heap(self.dpdk.memory_bytes),
            Hugepages::Auto | Hugepages::Required => Need::Packets(self.dpdk.memory_bytes),
        };
        // In the order in which they are taken.
        let queues = Need::Heap(self.event_queue_bytes().saturating_mul(self.workers.count as u64));
        let needs = core::iter::once(packets).chain(nat::memory::needs(&self.nat, self.workers.count));
        stock.plan(needs.chain([queues]))
    }

    /// Whether `stock` has what the control sessions of gateways take if this configuration, which
    /// has more of them than `before`, follows it without a restart. All other tables keep their
    /// sizes. What they may take under `before` counts, too: memory comes as they are first used,
    /// so most of it may be part of the stock yet.
    ///
    /// # Errors
    /// [`NotEnough`] when it does not fit.
    pub fn check_memory_after(&self, before: &Config, stock: impl FnOnce() -> Stock) -> Result<(), NotEnough> {
        let need = |config: &Config| {
            let each = nat::memory::control_sessions_need(&config.nat).bytes();
            each.saturating_mul(before.workers.count as u64)
        };
        match need(self) {
            all if all > need(before) => stock().plan([Need::Heap(all)]).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// What one worker's queue of events takes.
    fn event_queue_bytes(&self) -> u64 {
        self.event_log.as_ref().map_or(0, EventLog::queue_bytes)
    }
}

/// Memory DPDK needs for so many buffers: their data room with headroom, their headers, and queues;
/// whole MiB.
pub(crate) fn packet_memory_bytes(buffers: u64, mtu: u16) -> u64 {
    const HEADROOM: u64 = 128;
    const HEADERS: u64 = 128 + 64;
    const LINK: u64 = 26;
    const REST: u64 = 64 << 20;
    let room = (u64::from(mtu) + LINK).max(2_048) + HEADROOM + HEADERS;
    (buffers.saturating_mul(room) + REST).next_multiple_of(1 << 20)
}
