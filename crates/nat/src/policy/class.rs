//! Classes of subscribers and their limits (RFC 6888 REQ-4, REQ-5), compiled for the packet path.
//!
//! The longest prefix with a subscriber's address gives its class, class 0 to all others.
//! [`crate::state::subscriber`] counts use. An unset limit is a number that nothing reaches.

use crate::routes::RouteError;
use crate::routes::RouteTable;
use crate::settings::Class;
use crate::settings::Penalty;
use crate::settings::SubscriberLimits;
use crate::settings::Threshold;
pub use crate::state::bucket::BURST_MAX;
use crate::state::bucket::Bucket;
use crate::state::bucket::BucketRate;
use crate::state::subscriber::Account;
pub use crate::state::subscriber::EXTRA_SESSION_BYTES;
pub use crate::state::subscriber::FLOW_BYTES;
pub use crate::state::subscriber::MAPPING_BYTES;
use crate::state::subscriber::Subscriber;
use crate::time::Instant;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct CompiledClass {
    ports_max: [u32; Protocol::COUNT],
    sessions_max: u32,
    memory_max: u64,
    new_mappings: BucketRate,
    new_sessions: BucketRate,
    has_marks: bool,
    counts_mappings: bool,
    /// Marks of ports by protocol, then the mark of sessions.
    pub(crate) marks: [Marks; Protocol::COUNT + 1],
    pub(crate) reserved: [u32; Protocol::COUNT],
    pub(crate) penalty: Option<Penalty>,
}

const _: () = assert!(
    core::mem::offset_of!(CompiledClass, marks) <= 64,
    "what every new mapping asks is in the first cache line"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) high: u32,
    pub(crate) low: u32,
    pub(crate) limit: u32,
}

impl Marks {
    const NEVER: Marks = Marks { high: u32::MAX, low: u32::MAX, limit: u32::MAX };

    pub(crate) fn new(threshold: Option<Threshold>, limit: u32) -> Marks {
        let Some(Threshold { high_percent, low_percent }) = threshold else { return Marks::NEVER };
        if limit == u32::MAX {
            return Marks::NEVER;
        }
        let share = |percent: u8| u64::from(limit) * u64::from(percent);
        Marks { high: (share(high_percent).div_ceil(100) as u32).max(1), low: (share(low_percent) / 100) as u32, limit }
    }
}

impl CompiledClass {
    fn new(limits: &SubscriberLimits) -> CompiledClass {
        let mark = |limit| Marks::new(limits.threshold, limit);
        let [udp, tcp, icmp] = limits.ports_max;
        CompiledClass {
            ports_max: limits.ports_max,
            sessions_max: limits.sessions_max,
            memory_max: limits.memory_max,
            new_mappings: BucketRate::new(limits.new_mappings),
            new_sessions: BucketRate::new(limits.new_sessions),
            has_marks: limits.threshold.is_some(),
            counts_mappings: SubscriberLimits { new_sessions: None, ..*limits } != SubscriberLimits::default(),
            marks: [mark(udp), mark(tcp), mark(icmp), mark(limits.sessions_max)],
            reserved: limits.reserved_ports,
            penalty: limits.penalty,
        }
    }

    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.has_marks
    }

    #[inline(always)]
    pub(crate) fn counts_mappings(&self) -> bool {
        self.counts_mappings
    }

    #[inline]
    pub(crate) fn admits_port(&self, subscriber: &Subscriber, shared: u32, protocol: Protocol) -> bool {
        subscriber.mappings[protocol.index()].saturating_add(shared) < self.ports_max[protocol.index()]
    }

    #[inline]
    pub(crate) fn admits_mapping(
        &self,
        subscriber: &Subscriber,
        shared: u32,
        protocol: Protocol,
        now: Instant,
    ) -> Result<(), Verdict> {
        if !self.admits_port(subscriber, shared, protocol) {
            return Err(Verdict::SubscriberPortQuota);
        }
        self.has_room(subscriber, MAPPING_BYTES)?;
        if !self.new_mappings.has_token(subscriber.mapping_bucket, now) {
            return Err(Verdict::SubscriberRateLimit);
        }
        Ok(())
    }

    /// A flow counts as a new mapping; [`CompiledClass::admits_port`] checks its port.
    pub(crate) fn admits_flow(&self, subscriber: &Subscriber, now: Instant) -> Result<(), Verdict> {
        self.has_room(subscriber, FLOW_BYTES)?;
        if !self.new_mappings.has_token(subscriber.mapping_bucket, now) {
            return Err(Verdict::SubscriberRateLimit);
        }
        Ok(())
    }

    /// `takes_record`: the session does not fit the mapping's inline slot.
    pub(crate) fn admits_session(
        &self,
        (subscriber, account): (&Subscriber, &Account),
        takes_record: bool,
        now: Instant,
    ) -> Result<(), Verdict> {
        if takes_record {
            self.has_room(subscriber, EXTRA_SESSION_BYTES)?;
        } else if subscriber.sessions() > self.sessions_max {
            // Above a lowered limit, not even a place is reused.
            return Err(Verdict::SubscriberSessionQuota);
        } else if subscriber.memory() > self.memory_max {
            return Err(Verdict::SubscriberMemoryQuota);
        }
        if !self.new_sessions.has_token(account.session_bucket, now) {
            return Err(Verdict::SubscriberRateLimit);
        }
        Ok(())
    }

    #[inline]
    fn has_room(&self, subscriber: &Subscriber, bytes: u64) -> Result<(), Verdict> {
        if subscriber.sessions() >= self.sessions_max {
            return Err(Verdict::SubscriberSessionQuota);
        }
        if subscriber.memory() + bytes > self.memory_max {
            return Err(Verdict::SubscriberMemoryQuota);
        }
        Ok(())
    }

    pub(crate) fn has_no_past(&self, subscriber: &Subscriber, account: &Account, now: Instant) -> bool {
        let has_offences = || self.penalty.is_some_and(|penalty| account.has_offences(now, penalty.window));
        self.new_mappings.is_full(subscriber.mapping_bucket, now)
            && self.new_sessions.is_full(account.session_bucket, now)
            && !has_offences()
    }

    #[inline]
    pub(crate) fn charge_mapping(&self, bucket: Bucket, now: Instant) -> Bucket {
        self.new_mappings.take(bucket, now)
    }

    #[inline]
    pub(crate) fn charge_session(&self, bucket: Bucket, now: Instant) -> Bucket {
        self.new_sessions.take(bucket, now)
    }
}

pub(crate) struct Classes {
    compiled: Vec<CompiledClass>,
    prefixes: Vec<RouteTable>,
}

impl Classes {
    /// `common` is class 0.
    pub(crate) fn new(common: &SubscriberLimits, classes: &[Class], realms: usize) -> Result<Classes, RouteError> {
        let compiled =
            core::iter::once(common).chain(classes.iter().map(|class| &class.limits)).map(CompiledClass::new);
        let of_realm = |realm: RealmId| {
            let mut list: Vec<(Prefix, u32)> = Vec::new();
            for (position, class) in classes.iter().enumerate() {
                if class.realms.is_empty() || class.realms.contains(&realm) {
                    list.extend(class.subscribers.iter().map(|prefix| (*prefix, position as u32)));
                }
            }
            RouteTable::new(&list)
        };
        Ok(Classes {
            compiled: compiled.collect(),
            prefixes: (0..realms as u16).map(|realm| of_realm(RealmId(realm))).collect::<Result<_, _>>()?,
        })
    }

    /// The class of a subscriber: 0 for none, otherwise its position in the file plus one.
    #[inline]
    pub(crate) fn of(&self, realm: RealmId, address: u32) -> u16 {
        let table = self.prefixes.get(usize::from(realm.0));
        table.and_then(|table| table.lookup(address)).map_or(0, |position| position as u16 + 1)
    }

    #[inline]
    pub(crate) fn compiled(&self, class: u16) -> &CompiledClass {
        self.compiled.get(usize::from(class)).unwrap_or(&self.compiled[0])
    }
}
