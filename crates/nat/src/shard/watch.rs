//! How full things are: pools, for thresholds and for timers that adapt; subscribers, for thresholds.
//!
//! Counting the ports in use of one address reads 16 KiB, so that a pool is looked at an address and protocol at a time, one a
//! call, by the first worker alone; the others read what it found. Where ports come in blocks it looks for those that nobody can
//! lease, in as many calls more as that has pieces. Subscribers are looked at when something of theirs begins
//! or ends, in the record that is at hand then.

use super::Shard;
use super::shorten::has_shorter;
use super::steady::SteadyTimers;
use crate::class::Marks;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::ports::PortRange;
use crate::ports::UNLEASABLE_PIECES;
use crate::settings::Settings;
use crate::shared::BlockFacts;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::WorkerId;

/// The worker that looks at the pools.
const WATCHMAN: WorkerId = WorkerId(0);
/// A round over all pools begins so long after the last one began, at the earliest.
const ROUND: Duration = Duration::from_millis(100);

/// Where the watch is in its round.
#[derive(Debug)]
pub(super) struct Watch {
    /// Somebody wants to know.
    is_needed: bool,
    begins: Instant,
    pool: usize,
    address: u32,
    /// Of that address: a protocol by its number, and then the pieces of its blocks.
    step: usize,
    /// Ports in use of that address.
    here: [u32; Protocol::COUNT],
    /// Ports of that address in blocks that nobody can lease any more.
    unleasable: u32,
    /// Of the addresses before it: what nobody else can have.
    used: [u64; Protocol::COUNT],
    total: [u64; Protocol::COUNT],
    fullest: [u8; Protocol::COUNT],
    /// By pool and protocol: its threshold has been crossed.
    is_above: Box<[[bool; Protocol::COUNT]]>,
}

impl Watch {
    pub(super) fn new(settings: &Settings) -> Watch {
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
    /// Takes over which thresholds are crossed; `pools_before` says by pool which number it had.
    pub(super) fn follow(&mut self, before: &Watch, pools_before: &[Option<PoolId>]) {
        for (is_above, pool) in self.is_above.iter_mut().zip(pools_before) {
            if let Some(was_above) = pool.and_then(|pool| before.is_above.get(pool.index())) {
                *is_above = *was_above;
            }
        }
    }
}

impl Shard {
    /// A bounded piece of the round over the pools, and what follows from the last one for the timers.
    pub(super) fn watch(&mut self, now: Instant) {
        if !self.watch.is_needed {
            return;
        }
        if self.worker == WATCHMAN {
            self.watch_an_address(now);
        }
        let before = *self.lifetimes.in_force();
        if self.lifetimes.adapt(self.shared.pressure.percent()) {
            self.timers = SteadyTimers::new(self.lifetimes.in_force(), self.shared.settings().inbound_refresh);
            if has_shorter(&before, self.lifetimes.in_force()) {
                self.shorten_lives();
            }
        }
    }

    fn watch_an_address(&mut self, now: Instant) {
        let watch = &mut self.watch;
        if watch.pool == 0 && watch.address == 0 && watch.step == 0 {
            if now < watch.begins {
                return;
            }
            watch.begins = now + ROUND;
        }
        let Some(facts) = self.shared.pools.get(watch.pool) else { return };
        // Of addresses that give nothing out any more it does not matter how full they are.
        if let Some(&address) = self.shared.choices(facts).get(watch.address as usize) {
            let ports = &self.shared.ports;
            match Protocol::from_index(watch.step) {
                Some(protocol) => {
                    watch.here[watch.step] = ports.used(address, protocol);
                    let offered = ports.available(address, protocol);
                    // Query identifiers are not bound to the pool's range, but to blocks where there are any.
                    let in_blocks = |blocks: BlockFacts| u32::from(blocks.last - blocks.first) + 1;
                    let blocks = facts.blocks.filter(|_| facts.slice_ports == 0);
                    watch.total[watch.step] +=
                        u64::from(blocks.map_or(offered, |blocks| offered.min(in_blocks(blocks))));
                }
                None => {
                    watch.unleasable += facts.blocks.map_or(0, |blocks| {
                        let range = PortRange { address, first: blocks.first, last: blocks.last };
                        ports.ports_unleasable_in(&range, blocks.size, watch.step - Protocol::COUNT)
                    });
                }
            }
            watch.step += 1;
            let steps = Protocol::COUNT + if facts.blocks.is_some() { UNLEASABLE_PIECES } else { 0 };
            if watch.step < steps {
                return;
            }
            // What is leased is nobody else's, used or not.
            let leased = if facts.blocks.is_some() { ports.ports_leased(address) } else { 0 };
            for (used, here) in watch.used.iter_mut().zip(watch.here) {
                *used += u64::from(here.max(leased + watch.unleasable));
            }
            (watch.address, watch.step, watch.unleasable) = (watch.address + 1, 0, 0);
        }
        if watch.address >= facts.count {
            Protocol::ALL.iter().for_each(|protocol| self.pool_was_watched(now, *protocol));
            let watch = &mut self.watch;
            (watch.address, watch.used, watch.total) = (0, [0; Protocol::COUNT], [0; Protocol::COUNT]);
            watch.pool += 1;
            if watch.pool >= self.shared.pools.len() {
                watch.pool = 0;
                self.shared.pressure.set(core::mem::take(&mut watch.fullest));
            }
        }
    }

    /// All addresses of a pool were looked at: what that says of one protocol.
    fn pool_was_watched(&mut self, now: Instant, protocol: Protocol) {
        let (pool, index) = (self.watch.pool, protocol.index());
        // Rounded down: 100 is said only when no port is left.
        let percent = (self.watch.used[index] * 100).checked_div(self.watch.total[index]).unwrap_or(0).min(100) as u8;
        self.watch.fullest[index] = self.watch.fullest[index].max(percent);
        let threshold = self.shared.settings().pools.get(pool).and_then(|pool| pool.threshold);
        if let (Some(threshold), Some(is_above)) = (threshold, self.watch.is_above.get_mut(pool)) {
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

    /// Compares what a subscriber uses with its thresholds. To be called when its mappings of `protocol` or its sessions have
    /// become others.
    #[inline]
    pub(super) fn watch_subscriber(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        self.update_class(subscriber);
        let record = self.subscribers.get(subscriber);
        if self.shared.classes.facts(record.class).has_marks() || record.is_above_any() {
            self.compare_with_marks(now, subscriber, protocol, 0);
        }
    }

    /// [`Shard::watch_subscriber`] just before a mapping of it is taken off the books, with which it may go itself.
    #[inline]
    pub(super) fn watch_leaving(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        if self.subscribers.get(subscriber).is_above_any() {
            // What ends may be the first of it since the settings changed.
            self.update_class(subscriber);
            self.compare_with_marks(now, subscriber, protocol, 1);
        }
    }

    /// The same once a flow of it is off the books.
    pub(super) fn watch_left(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        if self.subscribers.get(subscriber).is_above_any() {
            // What ends may be the first of it since the settings changed.
            self.update_class(subscriber);
            self.compare_with_marks(now, subscriber, protocol, 0);
        }
    }

    #[inline(never)]
    fn compare_with_marks(&mut self, now: Instant, subscriber: u32, protocol: Protocol, less: u32) {
        let record = self.subscribers.get(subscriber);
        let marks = self.shared.classes.facts(record.class).marks;
        let used = record.mappings[protocol.index()]
            .saturating_add(self.subscribers.shared_ports(subscriber)[protocol.index()]);
        let ports = (protocol.index(), used, Cause::SubscriberPorts, Some(protocol));
        let sessions = (Protocol::COUNT, record.sessions(), Cause::SubscriberSessions, None);
        for (mark, used, cause, protocol) in [ports, sessions] {
            let used = used.saturating_sub(less);
            let Marks { high, low, limit } = marks[mark];
            let record = self.subscribers.get_mut(subscriber);
            let was_above = record.is_above(mark);
            let is_above = if was_above { used > low } else { used >= high };
            if is_above == was_above {
                continue;
            }
            record.set_above(mark, is_above);
            let percent = (u64::from(used) * 100).checked_div(u64::from(limit)).unwrap_or(0).min(100) as u8;
            let pool = self.pool_in_use(subscriber).map_or(PoolName::NONE, |pool| self.shared.name_of_pool(pool));
            let record = self.subscribers.get(subscriber);
            let event = Event {
                realm: RealmId(record.realm),
                subscriber: record.address.into(),
                pool,
                protocol,
                ..crossing(is_above, now, cause, percent)
            };
            self.events.record_minor(event);
        }
    }
}

/// A threshold was crossed, upwards or back.
fn crossing(upwards: bool, now: Instant, cause: Cause, percent: u8) -> Event {
    let kind = if upwards { EventKind::ThresholdReached } else { EventKind::ThresholdCleared };
    Event { amount: u32::from(percent), ..Event::new(kind, now).because(cause) }
}
