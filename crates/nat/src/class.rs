//! Classes of subscribers and what each may use (RFC 6888 REQ-4, REQ-5), compiled for the packet path.
//!
//! A subscriber's class is the one with the longest prefix that contains its address; class 0 is that of everybody else.
//! What it uses stands in its record ([`crate::subscriber`]); here is only what is allowed, one cache line a class, and
//! the pure questions "may there be one more?". A limit that is not set is a number nothing reaches, so that no question
//! has a special case.

use zerocopy::FromZeros;

use crate::route::RouteError;
use crate::route::RouteTable;
use crate::settings::Class;
use crate::settings::Penalty;
use crate::settings::Rate;
use crate::settings::SubscriberLimits;
use crate::settings::Threshold;
use crate::subscriber::Account;
use crate::subscriber::Subscriber;
use crate::time::Instant;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// Bytes a mapping with its first session counts for in a subscriber's memory: its record and its share of the table that
/// finds it.
pub const MAPPING_BYTES: u64 = 73;
/// Bytes a further session of a mapping counts for.
pub const EXTRA_SESSION_BYTES: u64 = 58;
/// Bytes an endpoint-dependent flow counts for.
pub const FLOW_BYTES: u64 = 110;

/// Buckets count time in sixteenths of a microsecond, so that the most a rate can be wrong by is small.
const TICKS_PER_MICRO: u64 = 16;
const TICKS_PER_SECOND: u64 = 1_000_000 * TICKS_PER_MICRO;
/// Bits of a bucket: it comes round in 203 days, and what is further ahead than any burst is long past.
const BUCKET_BITS: u32 = 48;
const BUCKET_MASK: u64 = (1 << BUCKET_BITS) - 1;
/// The largest burst there can be, so that a bucket can not be mistaken: 12 days at one a second.
pub const BURST_MAX: u32 = 1_000_000;

/// A token bucket (GCRA): the time at which it will be full again, modulo 2^48 ticks. A full one is the same as one never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub(crate) struct Bucket([u16; 3]);

impl Bucket {
    #[inline]
    fn full_again(self) -> u64 {
        let [low, middle, high] = self.0.map(u64::from);
        low | middle << 16 | high << 32
    }

    #[inline]
    fn at(full_again: u64) -> Bucket {
        // All zeros are kept for a bucket that was never used: a tick less is nearly the same.
        let full_again = if full_again & BUCKET_MASK == 0 { BUCKET_MASK } else { full_again };
        Bucket([full_again as u16, (full_again >> 16) as u16, (full_again >> 32) as u16])
    }

    /// One that tests can tell from others.
    #[cfg(test)]
    pub(crate) fn numbered(full_again: u64) -> Bucket {
        Bucket::at(full_again)
    }
}

/// A token bucket's rate and size. Nothing ever has to be refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketRate {
    /// Ticks one token takes to come back; 0 without a limit.
    interval: u64,
    /// How far ahead of now the full-again time may be for a token to be there.
    tolerance: u64,
}

impl BucketRate {
    /// No limit.
    const UNLIMITED: BucketRate = BucketRate { interval: 0, tolerance: u64::MAX };

    fn new(rate: Option<Rate>) -> BucketRate {
        let Some(Rate { per_second, burst }) = rate else { return BucketRate::UNLIMITED };
        // Rounded up: never more than the rate in the long run.
        let interval = TICKS_PER_SECOND.div_ceil(u64::from(per_second.max(1)));
        BucketRate { interval, tolerance: interval * (u64::from(burst.clamp(1, BURST_MAX)) - 1) }
    }

    /// How far ahead of now the bucket is full again; 0 when it is full.
    #[inline]
    fn ahead(self, bucket: Bucket, now: Instant) -> u64 {
        let ahead = bucket.full_again().wrapping_sub(ticks(now)) & BUCKET_MASK;
        // Never used; or further ahead than it can be: that was in the past, or under another rate.
        let is_full = bucket == Bucket::default() || ahead > self.tolerance.saturating_add(self.interval);
        if is_full { 0 } else { ahead }
    }

    /// Whether the bucket has a token at `now`.
    #[inline]
    pub(crate) fn has_token(self, bucket: Bucket, now: Instant) -> bool {
        self.interval == 0 || self.ahead(bucket, now) <= self.tolerance
    }

    /// Whether the bucket is as if it had never been used.
    fn is_full(self, bucket: Bucket, now: Instant) -> bool {
        self.interval == 0 || self.ahead(bucket, now) == 0
    }

    /// The bucket after one token is taken from it.
    #[inline]
    pub(crate) fn take(self, bucket: Bucket, now: Instant) -> Bucket {
        if self.interval == 0 {
            return bucket;
        }
        Bucket::at(ticks(now).wrapping_add(self.ahead(bucket, now)).wrapping_add(self.interval))
    }
}

#[inline]
fn ticks(at: Instant) -> u64 {
    at.as_micros().wrapping_mul(TICKS_PER_MICRO)
}

/// What the packet path needs of a class, one cache line, and behind it what only thresholds need.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct ClassFacts {
    /// Ports (and query identifiers) at once, by protocol.
    ports_max: [u32; Protocol::COUNT],
    sessions_max: u32,
    /// Bytes at once: [`MAPPING_BYTES`], [`EXTRA_SESSION_BYTES`].
    memory_max: u64,
    new_mappings: BucketRate,
    new_sessions: BucketRate,
    has_marks: bool,
    /// There is a limit, or a mark, that new mappings have to do with.
    counts_mappings: bool,
    /// Use of ports and of sessions at which a subscriber is reported, and below which it is no longer: by protocol, then
    /// sessions. The numbers are those of the first above and of the last below.
    pub(crate) marks: [Marks; Protocol::COUNT + 1],
    /// Asked where a pool guarantees ports.
    pub(crate) reserved: [u32; Protocol::COUNT],
    /// Asked when something was refused.
    pub(crate) penalty: Option<Penalty>,
}

const _: () =
    assert!(core::mem::offset_of!(ClassFacts, marks) <= 64, "what every new mapping asks is in the first cache line");

/// A threshold in numbers; with hysteresis, so that use that goes up and down around one number is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// At this much use it is crossed.
    pub(crate) high: u32,
    /// At this much or less it is over again.
    pub(crate) low: u32,
    /// What both are a share of.
    pub(crate) limit: u32,
}

impl Marks {
    /// Nothing reaches it; what was above another is not above this.
    const NEVER: Marks = Marks { high: u32::MAX, low: u32::MAX, limit: u32::MAX };

    /// The threshold of a limit; none where there is no limit to have a share of.
    pub(crate) fn new(threshold: Option<Threshold>, limit: u32) -> Marks {
        let Some(Threshold { high_percent, low_percent }) = threshold else { return Marks::NEVER };
        if limit == u32::MAX {
            return Marks::NEVER;
        }
        let share = |percent: u8| u64::from(limit) * u64::from(percent);
        Marks { high: (share(high_percent).div_ceil(100) as u32).max(1), low: (share(low_percent) / 100) as u32, limit }
    }
}

impl ClassFacts {
    fn new(limits: &SubscriberLimits) -> ClassFacts {
        let mark = |limit| Marks::new(limits.threshold, limit);
        let [udp, tcp, icmp] = limits.ports_max;
        ClassFacts {
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

    /// Whether anything of its subscribers is reported from some share on.
    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// Whether new mappings have to be compared with anything: where not, they are only counted.
    #[inline(always)]
    pub(crate) fn counts_mappings(&self) -> bool {
        self.counts_mappings
    }

    /// Whether `subscriber` may have one more port of `protocol`, beside its mappings' and so many that count for it though flows
    /// share them.
    #[inline]
    pub(crate) fn admits_port(&self, subscriber: &Subscriber, shared: u32, protocol: Protocol) -> bool {
        subscriber.mappings[protocol.index()].saturating_add(shared) < self.ports_max[protocol.index()]
    }

    /// Whether `subscriber`, for whom so many ports count that flows share, may have one more mapping of `protocol`, with its first
    /// session.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
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

    /// Whether `subscriber` may have one more endpoint-dependent flow, which is made as fast as mappings are. Whether a port may be
    /// taken for it is asked where none is there ([`ClassFacts::admits_port`]).
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    pub(crate) fn admits_flow(&self, subscriber: &Subscriber, now: Instant) -> Result<(), Verdict> {
        self.has_room(subscriber, FLOW_BYTES)?;
        if !self.new_mappings.has_token(subscriber.mapping_bucket, now) {
            return Err(Verdict::SubscriberRateLimit);
        }
        Ok(())
    }

    /// Whether `subscriber` may have one more session in a mapping of its own. `takes_record`: it is not the mapping's
    /// first, and needs a record of its own.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    pub(crate) fn admits_session(
        &self,
        (subscriber, account): (&Subscriber, &Account),
        takes_record: bool,
        now: Instant,
    ) -> Result<(), Verdict> {
        if takes_record {
            self.has_room(subscriber, EXTRA_SESSION_BYTES)?;
        } else if subscriber.sessions() > self.sessions_max {
            // It takes no more room than the one before it had, but who is above a limit that was lowered gets nothing new.
            return Err(Verdict::SubscriberSessionQuota);
        } else if subscriber.memory() > self.memory_max {
            return Err(Verdict::SubscriberMemoryQuota);
        }
        if !self.new_sessions.has_token(account.session_bucket, now) {
            return Err(Verdict::SubscriberRateLimit);
        }
        Ok(())
    }

    /// One more session, and so many bytes more.
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

    /// Whether nothing that a subscriber did counts any more: its buckets are full, and no offence is remembered.
    pub(crate) fn has_no_past(&self, subscriber: &Subscriber, account: &Account, now: Instant) -> bool {
        let has_offences = || self.penalty.is_some_and(|penalty| account.has_offences(now, penalty.window));
        self.new_mappings.is_full(subscriber.mapping_bucket, now)
            && self.new_sessions.is_full(account.session_bucket, now)
            && !has_offences()
    }

    /// The bucket of new mappings after one more.
    #[inline]
    pub(crate) fn charge_mapping(&self, bucket: Bucket, now: Instant) -> Bucket {
        self.new_mappings.take(bucket, now)
    }

    /// The bucket of new sessions in existing mappings after one more.
    #[inline]
    pub(crate) fn charge_session(&self, bucket: Bucket, now: Instant) -> Bucket {
        self.new_sessions.take(bucket, now)
    }
}

/// All classes, and which subscriber is in which.
pub(crate) struct Classes {
    facts: Vec<ClassFacts>,
    /// By realm: value is the position in the settings.
    prefixes: Vec<RouteTable>,
}

impl Classes {
    /// `common` is what holds for subscribers of no class.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(common: &SubscriberLimits, classes: &[Class], realms: usize) -> Result<Classes, RouteError> {
        let facts = core::iter::once(common).chain(classes.iter().map(|class| &class.limits)).map(ClassFacts::new);
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
            facts: facts.collect(),
            prefixes: (0..realms as u16).map(|realm| of_realm(RealmId(realm))).collect::<Result<_, _>>()?,
        })
    }

    /// The number of the class a subscriber is in: 0 for none of the file, else its position there plus one.
    #[inline]
    pub(crate) fn of(&self, realm: RealmId, address: u32) -> u16 {
        let table = self.prefixes.get(usize::from(realm.0));
        table.and_then(|table| table.lookup(address)).map_or(0, |position| position as u16 + 1)
    }

    /// The facts of a class; of one that is no more, those of class 0.
    #[inline]
    pub(crate) fn facts(&self, class: u16) -> &ClassFacts {
        self.facts.get(usize::from(class)).unwrap_or(&self.facts[0])
    }
}
