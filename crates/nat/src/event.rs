//! The event log: which subscriber used which external port or block and when, refusals, and
//! exhaustion.
//!
//! ```text
//!   shard ─► EventLog::record ─► ring of Record (48 bytes each), one per worker
//!         ─► exporter's thread ─► lines of text
//! ```
//!
//! Each worker numbers its records, so that a reader notices missing ones: a number belongs to an
//! event or to the range of an [`EventKind::Gap`]. For privacy (RFC 6888 §4 REQ-12) only events of
//! filters, and those that cannot be traced without it, have the remote endpoint.

use core::net::Ipv4Addr;

use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

mod filter_limit;
mod host_name;
mod opened;
mod record;
mod recorder;
mod refusals;
#[cfg(test)]
mod tests;

pub use host_name::HostName;
pub use host_name::UNKNOWN_HOST;
pub use opened::LogsOpened;
pub use record::Record;
pub use recorder::BackPressure;
pub use recorder::EventCounters;
pub use recorder::EventSettings;
pub use recorder::FINISHED;

pub(crate) use recorder::EventLog;
pub(crate) use refusals::Refusal;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// An internal endpoint got an external port.
    MappingCreated,
    /// The endpoint lost the port.
    MappingEnded,
    /// A subscriber got a range of ports, for all protocols.
    BlockLeased,
    /// It returned the range.
    BlockReturned,
    /// A configured external endpoint (forward, one-to-one) became active.
    StaticCreated,
    /// It became inactive.
    StaticEnded,
    /// A flow got an external port that flows to other remote endpoints share.
    FlowCreated,
    /// The flow lost the port.
    FlowEnded,
    /// Since the last such event, `amount` packets were refused a mapping or session.
    Refused,
    /// A pool, or a subscriber's paired address in it, had no port for `amount` packets.
    PoolExhausted,
    /// Use reached the threshold: `amount` percent.
    ThresholdReached,
    /// Use fell to the lower threshold: `amount` percent.
    ThresholdCleared,
    /// After `amount` refusals a subscriber gets mappings from this pool.
    PenaltyBegun,
    /// Its own pool serves it again, after `amount` seconds.
    PenaltyEnded,
    /// This worker uses configuration `amount`.
    ConfigurationAdopted,
    /// This worker has reported all live state to a new log: `amount` records with
    /// [`Cause::LogOpened`].
    SnapshotComplete,
    /// The logging filter at position `amount` permitted a packet.
    FilterPermitted,
    /// It denied a packet.
    FilterDenied,
    /// `amount` decisions of logging filters exceeded the rate and were not recorded.
    FilterSuppressed,
    /// `amount` records, numbered from `sequence` on, were lost.
    Gap,
    /// An address above 224.0.0.0 in this worker's later records is the number of this IPv6 host or
    /// prefix ([`HostName`]), until the number is named again.
    HostNamed,
    /// This worker has recorded all its mappings that kept their ports at the adoption of
    /// configuration `amount`, although the new formulas do not give it these ports. `first_port`
    /// workers record such an event.
    ConfigurationRecorded,
}

impl EventKind {
    /// A kind's place is its number in rings and journals: new ones come last.
    pub const ALL: [EventKind; 22] = [
        EventKind::MappingCreated,
        EventKind::MappingEnded,
        EventKind::BlockLeased,
        EventKind::BlockReturned,
        EventKind::StaticCreated,
        EventKind::StaticEnded,
        EventKind::FlowCreated,
        EventKind::FlowEnded,
        EventKind::Refused,
        EventKind::PoolExhausted,
        EventKind::ThresholdReached,
        EventKind::ThresholdCleared,
        EventKind::PenaltyBegun,
        EventKind::PenaltyEnded,
        EventKind::ConfigurationAdopted,
        EventKind::SnapshotComplete,
        EventKind::FilterPermitted,
        EventKind::FilterDenied,
        EventKind::FilterSuppressed,
        EventKind::Gap,
        EventKind::HostNamed,
        EventKind::ConfigurationRecorded,
    ];

    /// The stable name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::MappingCreated => "mapping_created",
            EventKind::MappingEnded => "mapping_ended",
            EventKind::BlockLeased => "block_leased",
            EventKind::BlockReturned => "block_returned",
            EventKind::StaticCreated => "static_created",
            EventKind::StaticEnded => "static_ended",
            EventKind::FlowCreated => "flow_created",
            EventKind::FlowEnded => "flow_ended",
            EventKind::Refused => "refused",
            EventKind::PoolExhausted => "pool_exhausted",
            EventKind::ThresholdReached => "threshold_reached",
            EventKind::ThresholdCleared => "threshold_cleared",
            EventKind::PenaltyBegun => "penalty_begun",
            EventKind::PenaltyEnded => "penalty_ended",
            EventKind::ConfigurationAdopted => "configuration_adopted",
            EventKind::SnapshotComplete => "snapshot_complete",
            EventKind::FilterPermitted => "filter_permitted",
            EventKind::FilterDenied => "filter_denied",
            EventKind::FilterSuppressed => "filter_suppressed",
            EventKind::Gap => "gap",
            EventKind::HostNamed => "host_named",
            EventKind::ConfigurationRecorded => "configuration_recorded",
        }
    }

    /// True if an external port or range changed its owner. No log may miss that.
    pub const fn is_allocation(self) -> bool {
        matches!(
            self,
            EventKind::MappingCreated
                | EventKind::MappingEnded
                | EventKind::BlockLeased
                | EventKind::BlockReturned
                | EventKind::StaticCreated
                | EventKind::StaticEnded
                | EventKind::FlowCreated
                | EventKind::FlowEnded
        )
    }
}

/// Why it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No cause.
    None,
    /// A packet from inside.
    Outbound,
    /// A packet from outside.
    Inbound,
    /// A timer expired.
    Idle,
    /// Both sides closed or reset the TCP connections, and `tcp_closing` is over.
    Closed,
    /// A changed configuration.
    Configuration,
    /// The drain time of the address is over.
    Drained,
    /// The subscriber moved to another address, and no port of the block is in use.
    Moved,
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
    NatPmp,
    /// An application-level gateway expected it.
    Alg,
    /// Created for a hairpinned packet that the other subscriber's side refused.
    RolledBack,
    /// Older than the log; `amount` is its age in seconds.
    LogOpened,
    /// The lost records include no allocation or end.
    NoAllocation,
    /// A pool's ports in use.
    PoolPorts,
    /// A subscriber's ports in use.
    SubscriberPorts,
    /// A subscriber's sessions.
    SubscriberSessions,
    /// Datagrams put together.
    Reassembly,
    /// The verdict of the refused packet.
    Verdict(Verdict),
}

/// Verdicts have the numbers from here on, other causes those below.
const VERDICTS_FROM: u8 = 32;

impl Cause {
    /// The stable name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::None => "none",
            Cause::Outbound => "outbound",
            Cause::Inbound => "inbound",
            Cause::Idle => "idle",
            Cause::Configuration => "configuration",
            Cause::Drained => "drained",
            Cause::Closed => "closed",
            Cause::Moved => "moved",
            Cause::LogOpened => "log_opened",
            Cause::RolledBack => "rolled_back",
            Cause::NoAllocation => "no_allocation",
            Cause::Pcp => "pcp",
            Cause::NatPmp => "nat_pmp",
            Cause::Alg => "alg",
            Cause::PoolPorts => "pool_ports",
            Cause::SubscriberPorts => "subscriber_ports",
            Cause::SubscriberSessions => "subscriber_sessions",
            Cause::Reassembly => "reassembly",
            Cause::Verdict(verdict) => verdict.name(),
        }
    }

    /// The stable number in the log's store; [`Cause::from_code`] is the inverse.
    pub const fn code(self) -> u8 {
        // At most 240 verdicts, asserted below.
        self.number() as u8
    }

    /// The cause with this number, if any.
    pub fn from_code(code: u8) -> Option<Cause> {
        Some(match code {
            0 => Cause::None,
            1 => Cause::Outbound,
            2 => Cause::Inbound,
            3 => Cause::Idle,
            4 => Cause::Configuration,
            5 => Cause::Drained,
            6 => Cause::PoolPorts,
            7 => Cause::SubscriberPorts,
            8 => Cause::SubscriberSessions,
            9 => Cause::Closed,
            10 => Cause::Moved,
            11 => Cause::LogOpened,
            12 => Cause::RolledBack,
            13 => Cause::NoAllocation,
            14 => Cause::Pcp,
            15 => Cause::NatPmp,
            16 => Cause::Alg,
            17 => Cause::Reassembly,
            _ => Cause::Verdict(*Verdict::ALL.get(usize::from(code.checked_sub(VERDICTS_FROM)?))?),
        })
    }

    const fn number(self) -> u64 {
        match self {
            Cause::None => 0,
            Cause::Outbound => 1,
            Cause::Inbound => 2,
            Cause::Idle => 3,
            Cause::Configuration => 4,
            Cause::Drained => 5,
            Cause::PoolPorts => 6,
            Cause::SubscriberPorts => 7,
            Cause::SubscriberSessions => 8,
            Cause::Closed => 9,
            Cause::Moved => 10,
            Cause::LogOpened => 11,
            Cause::RolledBack => 12,
            Cause::NoAllocation => 13,
            Cause::Pcp => 14,
            Cause::NatPmp => 15,
            Cause::Alg => 16,
            Cause::Reassembly => 17,
            Cause::Verdict(verdict) => VERDICTS_FROM as u64 + verdict.index() as u64,
        }
    }
}

const _: () = assert!(Verdict::COUNT <= 240, "the code of a cause is one byte");

/// Its kind determines which fields are used; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// Its number among its worker's; set when it is recorded.
    pub sequence: u64,
    /// Internal address.
    pub subscriber: Ipv4Addr,
    /// External address.
    pub external: Ipv4Addr,
    /// Remote address, for flows and filters only.
    pub remote: Ipv4Addr,
    /// See [`EventKind`]. For an end or a late report: age in seconds.
    pub amount: u32,
    /// Port or query identifier.
    pub internal_port: u16,
    /// External port, or first of a range. For filters the IP protocol.
    pub first_port: u16,
    /// Last port of a range. For filters the low bits of the settings' generation: positions may
    /// change.
    pub last_port: u16,
    /// Remote port, for flows and filters only.
    pub remote_port: u16,
    /// Inside realm of the subscriber.
    pub realm: RealmId,
    /// A name's number: the settings may change before the event is written.
    pub pool: PoolName,
    /// What happened.
    pub kind: EventKind,
    /// Why.
    pub cause: Cause,
    /// Transport; `None` for all.
    pub protocol: Option<Protocol>,
}

impl Event {
    /// An event of this kind, otherwise empty.
    #[inline]
    pub const fn new(kind: EventKind, at: Instant) -> Event {
        Event {
            at,
            sequence: 0,
            subscriber: Ipv4Addr::UNSPECIFIED,
            external: Ipv4Addr::UNSPECIFIED,
            remote: Ipv4Addr::UNSPECIFIED,
            amount: 0,
            internal_port: 0,
            first_port: 0,
            last_port: 0,
            remote_port: 0,
            realm: RealmId(0),
            pool: PoolName(0),
            kind,
            cause: Cause::None,
            protocol: None,
        }
    }

    /// An event about a mapping.
    #[inline]
    pub const fn of_mapping(
        kind: EventKind,
        at: Instant,
        realm: RealmId,
        protocol: Protocol,
        internal: Endpoint,
        external: Endpoint,
    ) -> Event {
        Event {
            subscriber: internal.address,
            external: external.address,
            internal_port: internal.port,
            first_port: external.port,
            last_port: external.port,
            realm,
            protocol: Some(protocol),
            ..Event::new(kind, at)
        }
    }

    /// The same event with this cause.
    #[inline]
    #[must_use]
    pub const fn because(self, cause: Cause) -> Event {
        Event { cause, ..self }
    }
}
