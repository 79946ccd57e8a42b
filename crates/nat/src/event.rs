//! What has to be known later: who had which external port or block and when, who was refused, what ran full.
//!
//! ```text
//!   shard ─► EventLog::record ─► ring of Event (48 bytes each), one per worker ─► exporter's thread ─► lines of text
//! ```
//!
//! An event holds numbers and no text. Its sequence number is its worker's own, so that a reader sees what is missing: each
//! number is either an event's, or lies in the range that a [`EventKind::Gap`] stands for. The remote endpoint of a mapping
//! is nobody's business (RFC 6888 §4 REQ-12); only what can not be traced without it has it, and what a filter was told to log.

use core::net::Ipv4Addr;

use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

mod filter_limit;
mod opened;
mod recorder;
mod refusals;
#[cfg(test)]
mod tests;

pub use opened::LogsOpened;
pub use recorder::BackPressure;
pub use recorder::EventCounters;
pub use recorder::EventSettings;

pub(crate) use recorder::EventLog;
pub(crate) use refusals::Refusal;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// An internal endpoint got an external port.
    MappingCreated,
    /// It lost it.
    MappingEnded,
    /// A subscriber got a range of ports, for all protocols.
    BlockLeased,
    /// It gave the range back.
    BlockReturned,
    /// An external endpoint of the configuration (a forward, a one-to-one address) began to be translated.
    StaticMade,
    /// It is translated no longer.
    StaticEnded,
    /// A flow got an external port that others may have at the same time, with other remote endpoints.
    FlowCreated,
    /// It lost it.
    FlowEnded,
    /// A packet that wanted a new mapping or session was refused; `amount` such packets since the last event of this
    /// subscriber and cause.
    Refused,
    /// A pool, or the address of it that a subscriber is paired with, has no port left; `amount` packets felt it since the
    /// last such event.
    PoolExhausted,
    /// What is watched rose to its threshold; `amount` is its use in per cent.
    ThresholdReached,
    /// It fell far enough below again; `amount` is its use in per cent.
    ThresholdCleared,
    /// A subscriber was refused too often, and gets new mappings from this pool for a while; `amount` refusals.
    PenaltyBegun,
    /// It was quiet for long enough, and gets them from its own pool again; `amount` seconds later.
    PenaltyEnded,
    /// This worker goes by a new configuration, number `amount`.
    ConfigurationAdopted,
    /// This worker has told the log that was opened all that lived then, in `amount` records with the cause
    /// [`Cause::LogOpened`].
    AllTold,
    /// A filter that logs let something be opened; `amount` is its position in the settings.
    FilterPermitted,
    /// A filter that logs denied a packet; `amount` is its position in the settings.
    FilterDenied,
    /// `amount` decisions of filters that log are in no record, as there were more than the configured rate since the last one
    /// that is.
    FilterUntold,
    /// `amount` records were lost because there was no room for them; they had the numbers from `sequence` on.
    Gap,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [EventKind; 20] = [
        EventKind::MappingCreated,
        EventKind::MappingEnded,
        EventKind::BlockLeased,
        EventKind::BlockReturned,
        EventKind::StaticMade,
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
        EventKind::AllTold,
        EventKind::FilterPermitted,
        EventKind::FilterDenied,
        EventKind::FilterUntold,
        EventKind::Gap,
    ];

    /// The stable name that logs use.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::MappingCreated => "mapping_created",
            EventKind::MappingEnded => "mapping_ended",
            EventKind::BlockLeased => "block_leased",
            EventKind::BlockReturned => "block_returned",
            EventKind::StaticMade => "static_made",
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
            EventKind::AllTold => "all_told",
            EventKind::FilterPermitted => "filter_permitted",
            EventKind::FilterDenied => "filter_denied",
            EventKind::FilterUntold => "filter_untold",
            EventKind::Gap => "gap",
        }
    }

    /// Whether an external port or range changed hands: what no log may miss.
    pub const fn is_allocation(self) -> bool {
        matches!(
            self,
            EventKind::MappingCreated
                | EventKind::MappingEnded
                | EventKind::BlockLeased
                | EventKind::BlockReturned
                | EventKind::StaticMade
                | EventKind::StaticEnded
                | EventKind::FlowCreated
                | EventKind::FlowEnded
        )
    }
}

/// Why it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// There is nothing to say.
    None,
    /// A packet from inside asked for it.
    Outbound,
    /// A packet from outside asked for it.
    Inbound,
    /// Nothing was heard of it for as long as its timer allows.
    Idle,
    /// Its TCP connections were closed by both sides, or reset, and the time for that is over.
    Closed,
    /// The configuration changed.
    Configuration,
    /// The last time granted to it while its address was drained is over.
    Drained,
    /// Its subscriber has another external address by now, and nothing of this one is in use any more.
    Moved,
    /// The packet it was made for, to another subscriber, was refused at that one's end.
    TakenBack,
    /// It lived when the log was opened; `amount` is how many seconds it existed by now.
    LogOpened,
    /// Ports in use of a pool.
    PoolPorts,
    /// Ports in use of a subscriber.
    SubscriberPorts,
    /// Sessions of a subscriber.
    SubscriberSessions,
    /// The refused packet ended with this verdict.
    Verdict(Verdict),
}

impl Cause {
    /// The stable name that logs use.
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
            Cause::TakenBack => "taken_back",
            Cause::PoolPorts => "pool_ports",
            Cause::SubscriberPorts => "subscriber_ports",
            Cause::SubscriberSessions => "subscriber_sessions",
            Cause::Verdict(verdict) => verdict.name(),
        }
    }

    /// For hashing: no two causes have the same.
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
            Cause::TakenBack => 12,
            Cause::Verdict(verdict) => 16 + verdict.index() as u64,
        }
    }
}

/// One record. Which fields mean something follows from the kind; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// Its number among its worker's; filled in when it is recorded.
    pub sequence: u64,
    /// Internal address.
    pub subscriber: Ipv4Addr,
    /// External address.
    pub external: Ipv4Addr,
    /// Remote address, of flows and filters only.
    pub remote: Ipv4Addr,
    /// A number; see [`EventKind`]. Of what ended, or is told of late, as the configuration changed or another log was opened: how
    /// many seconds it existed.
    pub amount: u32,
    /// Port (or query identifier) of the internal endpoint.
    pub internal_port: u16,
    /// External port, or the first of a range. Of filters the number of the IP protocol.
    pub first_port: u16,
    /// Last port of the range; the same for a single port. Of filters the lower bits of the number of the settings that have the filter: under
    /// later ones its position may be another's.
    pub last_port: u16,
    /// Remote port, of flows and filters only.
    pub remote_port: u16,
    /// Inside realm of the subscriber.
    pub realm: RealmId,
    /// Pool it is about, by the number of its name: it is written down under whatever settings are in force then.
    pub pool: PoolName,
    /// What happened.
    pub kind: EventKind,
    /// Why.
    pub cause: Cause,
    /// Transport; None: all of them.
    pub protocol: Option<Protocol>,
}

const _: () = assert!(size_of::<Event>() == 48, "an event is shorter than a cache line");

impl Event {
    /// An event of this kind, with everything else left empty.
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
