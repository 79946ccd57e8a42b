//! How full pools and subscribers are, for thresholds and adaptive timers.
//!
//! Counting an address's used ports reads 16 KiB, so the first worker counts one address and
//! protocol per call for all. Subscribers are checked when their records change.

use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::external::ports::PortRange;
use crate::external::ports::UNLEASABLE_PIECES;
use crate::policy::class::Marks;
use crate::policy::steady_timers::SteadyTimers;
use crate::settings::Settings;
use crate::shard::Ledger;
use crate::shard::upkeep::shorten::has_shorter;
use crate::snapshot::shared::CompiledBlocks;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::WorkerId;

const WATCHMAN: WorkerId = WorkerId(0);
/// Time between the starts of two rounds over all pools.
const ROUND: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(in crate::shard) struct Watch {
    is_needed: bool,
    begins: Instant,
    pool: usize,
    address: u32,
    /// Step at an address: first the protocols, then the pieces of its blocks.
    step: usize,
    here: [u32; Protocol::COUNT],
    /// Ports in blocks that no subscriber can lease.
    unleasable: u32,
    /// Ports of earlier addresses that no other subscriber can get.
    used: [u64; Protocol::COUNT],
    total: [u64; Protocol::COUNT],
    fullest: [u8; Protocol::COUNT],
    /// By pool and protocol: true if it is above the threshold.
    is_above: Box<[[bool; Protocol::COUNT]]>,
}

impl Watch {
    pub(in crate::shard) fn new(settings: &Settings) -> Watch {
        let has_threshold = settings.pools.iter().any(|pool| pool.threshold.is_some());
        Watch {
            is_needed: has_threshold || settings.timeouts.adapt_above_percent.is_some(),
            begins: Instant::ORIGIN,
            pool: 0,
            address: 0,
            step: 0,
            here: [0; Protocol::COUNT],
            unleasable: 0,
            used: [0; Protocol::COUNT],
            total: [0; Protocol::COUNT],
            fullest: [0; Protocol::COUNT],
            is_above: vec![[false; Protocol::COUNT]; settings.pools.len()].into_boxed_slice(),
        }
    }
}

impl Watch {
    pub(in crate::shard) fn follow(&mut self, before: &Watch, pools_before: &[Option<PoolId>]) {
        for (is_above, pool) in self.is_above.iter_mut().zip(pools_before) {
            if let Some(was_above) = pool.and_then(|pool| before.is_above.get(pool.index())) {
                *is_above = *was_above;
            }
        }
    }
}

impl Ledger {
    pub(in crate::shard) fn watch(&mut self, now: Instant) {
        if !self.upkeep.watch.is_needed {
            return;
        }
        if self.worker == WATCHMAN {
            self.watch_an_address(now);
        }
        let before = *self.policy.lifetimes.current();
        if self.policy.lifetimes.adapt(self.shared.pressure.percent()) {
            self.policy.timers =
                SteadyTimers::new(self.policy.lifetimes.current(), self.shared.settings().inbound_refresh);
            if has_shorter(&before, self.policy.lifetimes.current()) {
                self.shorten_lives();
            }
        }
    }

    fn watch_an_address(&mut self, now: Instant) {
        let watch = &mut self.upkeep.watch;
        if watch.pool == 0 && watch.address == 0 && watch.step == 0 {
            if now < watch.begins {
                return;
            }
            watch.begins = now + ROUND;
        }
        let Some(compiled) = self.shared.pools.get(watch.pool) else { return };
        // Only addresses that still give out ports count.
        if let Some(&address) = self.shared.choices(compiled).get(watch.address as usize) {
            let ports = &self.shared.ports;
            match Protocol::from_index(watch.step) {
                Some(protocol) => {
                    watch.here[watch.step] = ports.used(address, protocol);
                    let offered = ports.available(address, protocol);
                    // ICMP identifiers keep to the pool's blocks, if any, but not to its range.
                    let in_blocks = |blocks: CompiledBlocks| u32::from(blocks.last - blocks.first) + 1;
                    let blocks = compiled.blocks.filter(|_| compiled.slice_ports == 0);
                    watch.total[watch.step] +=
                        u64::from(blocks.map_or(offered, |blocks| offered.min(in_blocks(blocks))));
                }
                None => {
                    watch.unleasable += compiled.blocks.map_or(0, |blocks| {
                        let range = PortRange { address, first: blocks.first, last: blocks.last };
                        ports.ports_unleasable_in(&range, blocks.size, watch.step - Protocol::COUNT)
                    });
                }
            }
            watch.step += 1;
            let steps = Protocol::COUNT + if compiled.blocks.is_some() { UNLEASABLE_PIECES } else { 0 };
            if watch.step < steps {
                return;
            }
            // A leased port belongs to its holder, used or not.
            let leased = if compiled.blocks.is_some() { ports.ports_leased(address) } else { 0 };
            for (used, here) in watch.used.iter_mut().zip(watch.here) {
                *used += u64::from(here.max(leased + watch.unleasable));
            }
            (watch.address, watch.step, watch.unleasable) = (watch.address + 1, 0, 0);
        }
        if watch.address >= compiled.count {
            Protocol::ALL.iter().for_each(|protocol| self.pool_was_watched(now, *protocol));
            let watch = &mut self.upkeep.watch;
            (watch.address, watch.used, watch.total) = (0, [0; Protocol::COUNT], [0; Protocol::COUNT]);
            watch.pool += 1;
            if watch.pool >= self.shared.pools.len() {
                watch.pool = 0;
                self.shared.pressure.set(core::mem::take(&mut watch.fullest));
            }
        }
    }

    fn pool_was_watched(&mut self, now: Instant, protocol: Protocol) {
        let (pool, index) = (self.upkeep.watch.pool, protocol.index());
        // Rounded down: 100 means that no port is left.
        let percent =
            (self.upkeep.watch.used[index] * 100).checked_div(self.upkeep.watch.total[index]).unwrap_or(0).min(100)
                as u8;
        self.upkeep.watch.fullest[index] = self.upkeep.watch.fullest[index].max(percent);
        let threshold = self.shared.settings().pools.get(pool).and_then(|pool| pool.threshold);
        if let (Some(threshold), Some(is_above)) = (threshold, self.upkeep.watch.is_above.get_mut(pool)) {
            let was_above = is_above[index];
            is_above[index] =
                if was_above { percent > threshold.low_percent } else { percent >= threshold.high_percent };
            if is_above[index] != was_above {
                let pool = self.shared.name_of_pool(PoolId(pool as u16));
                let crossing = Event { pool, ..crossing(!was_above, now, Cause::PoolPorts, percent) };
                self.events.record_minor(Event { protocol: Some(protocol), ..crossing });
            }
        }
    }

    /// Call it when sessions, or mappings of `protocol`, have changed.
    #[inline]
    pub(in crate::shard) fn watch_subscriber(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        self.update_class(subscriber);
        let record = self.state.subscribers.get(subscriber);
        if self.shared.classes.compiled(record.class).has_marks() || record.is_above_any() {
            self.compare_with_marks(now, subscriber, protocol, 0);
        }
    }

    /// Before a mapping is uncounted, because the subscriber may leave then.
    #[inline]
    pub(in crate::shard) fn watch_leaving(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        if self.state.subscribers.get(subscriber).is_above_any() {
            self.update_class(subscriber);
            self.compare_with_marks(now, subscriber, protocol, 1);
        }
    }

    pub(in crate::shard) fn watch_left(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        if self.state.subscribers.get(subscriber).is_above_any() {
            self.update_class(subscriber);
            self.compare_with_marks(now, subscriber, protocol, 0);
        }
    }

    #[inline(never)]
    fn compare_with_marks(&mut self, now: Instant, subscriber: u32, protocol: Protocol, less: u32) {
        let record = self.state.subscribers.get(subscriber);
        let marks = self.shared.classes.compiled(record.class).marks;
        let used = record.mappings[protocol.index()]
            .saturating_add(self.state.subscribers.shared_ports(subscriber)[protocol.index()]);
        let ports = (protocol.index(), used, Cause::SubscriberPorts, Some(protocol));
        let sessions = (Protocol::COUNT, record.sessions(), Cause::SubscriberSessions, None);
        for (mark, used, cause, protocol) in [ports, sessions] {
            let used = used.saturating_sub(less);
            let Marks { high, low, limit } = marks[mark];
            let record = self.state.subscribers.get_mut(subscriber);
            let was_above = record.is_above(mark);
            let is_above = if was_above { used > low } else { used >= high };
            if is_above == was_above {
                continue;
            }
            record.set_above(mark, is_above);
            let percent = (u64::from(used) * 100).checked_div(u64::from(limit)).unwrap_or(0).min(100) as u8;
            let pool =
                self.view().pool_in_use(subscriber).map_or(PoolName::NONE, |pool| self.shared.name_of_pool(pool));
            let record = self.state.subscribers.get(subscriber);
            let realm = RealmId(record.realm);
            let subscriber = self.named(now, realm, record.address.into());
            let event = Event { realm, subscriber, pool, protocol, ..crossing(is_above, now, cause, percent) };
            self.events.record_minor(event);
        }
    }
}

pub(in crate::shard) fn crossing(upwards: bool, now: Instant, cause: Cause, percent: u8) -> Event {
    let kind = if upwards { EventKind::ThresholdReached } else { EventKind::ThresholdCleared };
    Event { amount: u32::from(percent), ..Event::new(kind, now).because(cause) }
}
