//! One interval: a subscriber, the external ports that it held, and from when to when.

use core::net::Ipv4Addr;

use nat::Protocol;
use nat::event::Event;
use nat::event::EventKind;

/// Kind of holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// A mapping: one external port of one transport.
    Mapping,
    /// A configured external endpoint.
    Static,
    /// A shared port towards one remote endpoint.
    Flow,
    /// A block of ports of all transports.
    Block,
}

impl What {
    pub(crate) const ALL: [What; 4] = [What::Mapping, What::Static, What::Flow, What::Block];

    /// `mapping`, `static`, `flow` or `block`.
    pub const fn name(self) -> &'static str {
        match self {
            What::Mapping => "mapping",
            What::Static => "static",
            What::Flow => "flow",
            What::Block => "block",
        }
    }

    /// What an event begins (true) or ends (false).
    pub(crate) const fn of(kind: EventKind) -> Option<(What, bool)> {
        Some(match kind {
            EventKind::MappingCreated => (What::Mapping, true),
            EventKind::MappingEnded => (What::Mapping, false),
            EventKind::BlockLeased => (What::Block, true),
            EventKind::BlockReturned => (What::Block, false),
            EventKind::StaticCreated => (What::Static, true),
            EventKind::StaticEnded => (What::Static, false),
            EventKind::FlowCreated => (What::Flow, true),
            EventKind::FlowEnded => (What::Flow, false),
            _ => return None,
        })
    }
}

/// What is known about the end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    /// It ended then.
    Exact,
    /// It had not ended at the end of the segment.
    Open,
    /// The record of its end was lost; it ended then at the latest.
    Lost,
}

/// The start of an interval whose record was lost comes from its age, and an age is the difference
/// of two times in whole seconds: it may be wrong by nearly a second either way.
pub(crate) const ROUNDED_US: u64 = 2_000_000;

/// One interval. Times are milliseconds of the boot's monotonic clock: `start` is rounded down,
/// `end` up, and `end` is the first millisecond without it. Of one that is open, `end` is when a
/// record last said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) external: u32,
    pub(crate) subscriber: u32,
    pub(crate) remote: u32,
    pub(crate) first_port: u16,
    pub(crate) last_port: u16,
    pub(crate) internal_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) realm: u16,
    pub(crate) what: What,
    /// None: all transports.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) until: End,
    /// The record of its start was lost: it is not before `start`, and less than [`ROUNDED_US`]
    /// after.
    pub(crate) is_start_rounded: bool,
}

/// The identity of a row in the order of segments: external endpoint, then start.
pub(crate) type Order = (u64, u64, u64, u64, u64);

impl Row {
    /// Everything but the end.
    #[inline]
    pub(crate) fn order(&self) -> Order {
        (
            self.endpoint(),
            self.start,
            u64::from(self.subscriber) << 32 | u64::from(self.internal_port) << 16 | u64::from(self.realm),
            u64::from(self.remote) << 32 | u64::from(self.remote_port) << 16 | u64::from(self.last_port),
            u64::from(self.flags() & !END_BITS),
        )
    }

    /// External address and first port.
    #[inline]
    pub(crate) fn endpoint(&self) -> u64 {
        u64::from(self.external) << 16 | u64::from(self.first_port)
    }

    /// True if it holds a single port.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.first_port == self.last_port
    }

    #[inline]
    pub(crate) fn flags(&self) -> u8 {
        let protocol = self.protocol.map_or(0, |protocol| protocol.index() as u8 + 1);
        self.what as u8 | protocol << 2 | (self.until as u8) << 4 | u8::from(self.is_start_rounded) << 6
    }

    /// Sets what [`Row::flags`] returned.
    pub(crate) fn set_flags(&mut self, flags: u8) -> Option<()> {
        self.what = What::ALL[usize::from(flags & 3)];
        let protocol = usize::from(flags >> 2 & 3);
        self.protocol = if protocol == 0 { None } else { Some(Protocol::from_index(protocol - 1)?) };
        self.until = match flags >> 4 & 3 {
            0 => End::Exact,
            1 => End::Open,
            2 => End::Lost,
            _ => return None,
        };
        self.is_start_rounded = flags & 0x40 != 0;
        (flags & 0x80 == 0).then_some(())
    }

    /// True if it holds an external port at a time within these milliseconds.
    pub(crate) fn is_within(&self, from_ms: u64, to_ms: u64) -> bool {
        self.start <= to_ms && (self.until == End::Open || self.end > from_ms)
    }

    /// External address as people write it.
    pub(crate) fn external_address(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.external)
    }

    pub(crate) const EMPTY: Row = Row {
        start: 0,
        end: 0,
        external: 0,
        subscriber: 0,
        remote: 0,
        first_port: 0,
        last_port: 0,
        internal_port: 0,
        remote_port: 0,
        realm: 0,
        what: What::Mapping,
        protocol: None,
        until: End::Exact,
        is_start_rounded: false,
    };

    /// The interval that an allocation's event is about, without its times.
    pub(crate) fn of_event(what: What, event: &Event) -> Row {
        Row {
            external: event.external.to_bits(),
            subscriber: event.subscriber.to_bits(),
            remote: event.remote.to_bits(),
            first_port: event.first_port,
            last_port: event.last_port,
            internal_port: event.internal_port,
            remote_port: event.remote_port,
            realm: event.realm.0,
            what,
            protocol: event.protocol,
            ..Row::EMPTY
        }
    }
}

/// The bits of [`Row::flags`] about the end.
const END_BITS: u8 = 0x30;
