//! What the engine shows of its state: copies, made a page at a time so that traffic never waits.

use core::net::Ipv4Addr;

use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::types::Endpoint;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// One mapping as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm.
    pub realm: RealmId,
    /// Internal endpoint.
    pub internal: Endpoint,
    /// External endpoint.
    pub external: Endpoint,
    /// Pool of the external address.
    pub pool: PoolId,
    /// Owner.
    pub worker: WorkerId,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since a packet last restarted its timer.
    pub idle: Duration,
    /// Until the mapping ends if nothing refreshes it.
    pub expires_in: Duration,
    /// Live sessions.
    pub sessions: u32,
}

/// One session as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm.
    pub realm: RealmId,
    /// Internal endpoint.
    pub internal: Endpoint,
    /// External endpoint.
    pub external: Endpoint,
    /// Remote endpoint, as the inside knows it.
    pub remote: Endpoint,
    /// The remote endpoint outside, where the destination is translated too.
    pub target: Option<Endpoint>,
    /// A flow: the external endpoint is shared with sessions of other remote endpoints.
    pub shared: bool,
    /// Owner.
    pub worker: WorkerId,
    /// Who sent the first packet.
    pub opened_from: Side,
    /// State of the connection; None for UDP and ICMP.
    pub state: Option<TcpState>,
    /// Whether the remote endpoint is another subscriber's external endpoint.
    pub hairpin: bool,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since a packet last restarted its timer.
    pub idle: Duration,
    /// Until the session ends if nothing refreshes it.
    pub expires_in: Duration,
}

/// One subscriber as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberView {
    /// Internal address.
    pub address: Ipv4Addr,
    /// Inside realm.
    pub realm: RealmId,
    /// Pool of the address it is paired with, which a rule may have chosen; of one that is paired with none the pool that serves it.
    pub pool: PoolId,
    /// Pool that serves it where no rule says otherwise.
    pub own_pool: PoolId,
    /// Paired external address; None with arbitrary pooling.
    pub external_address: Option<Ipv4Addr>,
    /// The external address of another pool on which it got something last, as a rule said; it may have nothing there by now.
    pub elsewhere: Option<Ipv4Addr>,
    /// That pool.
    pub pool_elsewhere: Option<PoolId>,
    /// Owner.
    pub worker: WorkerId,
    /// Mappings by [`Protocol::index`].
    pub mappings: [u32; Protocol::COUNT],
    /// Ports that flows share and that count for it, as it was the first on them, by [`Protocol::index`].
    pub shared_ports: [u32; Protocol::COUNT],
    /// Its class: 0 for none of the settings, else its position there plus one.
    pub class: u16,
    /// Sessions of all mappings.
    pub sessions: u32,
    /// Bytes of state it counts for; see [`crate::class`].
    pub memory_bytes: u64,
    /// Refusals by [`SubscriberView::CAUSES`].
    pub refused: [u32; SubscriberView::CAUSES.len()],
    /// What its class guarantees it in its pool.
    pub guarantee: Guarantee,
    /// Its new mappings come from its class's penalty pool.
    pub is_offender: bool,
    /// It has nothing, and is shown because it was refused something within the last hour.
    pub is_turned_away: bool,
}

/// Ports that a subscriber can have however full its pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guarantee {
    /// Set aside for it now, those of them in use included, by [`Protocol::index`].
    pub ports: [u32; Protocol::COUNT],
    /// What its class guarantees more, and others still have.
    pub missing: [u32; Protocol::COUNT],
}

impl SubscriberView {
    /// What a subscriber can be refused for, each the verdict of the packets it was refused to.
    pub const CAUSES: [Verdict; 13] = crate::subscriber::Account::CAUSES;
}

/// Ports that a subscriber has for itself, for all transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPorts {
    /// External address.
    pub address: Ipv4Addr,
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// When the block was leased, in seconds; None for a slice, which a formula gives.
    pub leased_s: Option<u32>,
}

/// A block that nobody has leased, and nobody can: some of its ports are taken singly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornBlock {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// Of its ports, over all protocols, those that flows share, or are kept for the next ones that do.
    pub shared: u32,
    /// Those of mappings from other settings, or at rest.
    pub others: u32,
}

/// An internal and an external endpoint that the configuration gives to each other, awake or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm.
    pub realm: RealmId,
    /// Internal endpoint.
    pub internal: Endpoint,
    /// External endpoint.
    pub external: Endpoint,
    /// Whether the whole address is given, not only some ports.
    pub one_to_one: bool,
}

/// An external endpoint that leads to several internal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm of the targets.
    pub realm: RealmId,
    /// External endpoint.
    pub external: Endpoint,
    /// Internal endpoints with their weights; none when the forward is gone and only sessions are left of it.
    pub targets: Vec<(Endpoint, u32)>,
}

/// Cursors of sessions that are flows: after those of the mappings' first sessions, before those of their further ones.
pub const FLOW_CURSORS: core::ops::Range<u32> = 1 << 30..1 << 31;

/// Which mappings or sessions to show; None matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Transport.
    pub protocol: Option<Protocol>,
    /// Internal addresses.
    pub internal: Option<Prefix>,
    /// Internal port.
    pub internal_port: Option<u16>,
    /// External addresses.
    pub external: Option<Prefix>,
    /// External port.
    pub external_port: Option<u16>,
    /// Remote addresses (sessions only).
    pub remote: Option<Prefix>,
    /// Remote port (sessions only).
    pub remote_port: Option<u16>,
    /// Pool.
    pub pool: Option<PoolId>,
    /// Inside realm.
    pub realm: Option<RealmId>,
    /// TCP state (sessions only).
    pub state: Option<TcpState>,
}

/// Steps an explanation has at most.
pub const STEPS_MAX: usize = 20;

/// One step of an explanation, in the order the packet path takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The headers were read.
    Parsed {
        /// IP protocol number.
        protocol: u8,
        /// Source, with port or query identifier when there is one.
        source: Endpoint,
        /// Destination, likewise.
        destination: Endpoint,
    },
    /// The worker that owns the packet.
    Owner(WorkerId),
    /// The destination is an address of Natrix itself.
    OwnAddress(Ipv4Addr),
    /// The destination is an external address: the packet is hairpinned.
    Hairpin {
        /// External endpoint addressed.
        external: Endpoint,
    },
    /// Longest-prefix match found the way out.
    Routed {
        /// Index of the interface in the settings.
        interface: u16,
        /// Next hop.
        next_hop: Ipv4Addr,
        /// MTU of the interface, bytes.
        mtu: u16,
    },
    /// The source is a subscriber of this pool.
    Pool(PoolId),
    /// The subscriber is of this class: 0 for none of the settings, else its position there plus one.
    Class(u16),
    /// Of its class's guarantee, ports of this protocol that are set aside for it, and those that are not yet, as others have them.
    Guaranteed {
        /// Set aside, those it uses included.
        ports: u32,
        /// Not yet.
        missing: u32,
    },
    /// Of the ports of this protocol in the subscriber's slice some, or all, are in port blocks of others still.
    SliceInBlocks {
        /// Lowest port of the slice.
        first: u16,
        /// Highest.
        last: u16,
        /// Ports in blocks of others.
        leased: u32,
        /// Ports of the slice that are given out.
        ports: u32,
    },
    /// The subscriber ran against its limits too often: it is served by this pool for a while.
    Penalty(PoolId),
    /// The subscriber is already paired with this address.
    PairedWith(Ipv4Addr),
    /// A mapping exists.
    MappingFound {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Until it ends.
        expires_in: Duration,
    },
    /// No mapping exists; one would be made, with a port chosen at random then.
    MappingWouldBeCreated {
        /// Ports of the paired address (or of the whole pool) still free.
        ports_free: u64,
    },
    /// The configuration gives these two to each other; a mapping would be made with them, if there is none.
    StaticMapping {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Whether the whole address is given, not only this port.
        one_to_one: bool,
    },
    /// The external endpoint leads to several internal ones; the remote endpoint belongs to this one.
    Target {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// The target's weight.
        weight: u32,
        /// The weights of all targets together.
        total: u64,
    },
    /// The external endpoint leads to several internal ones; which it is depends on the external port that the sender is given.
    AnyTarget {
        /// External endpoint.
        external: Endpoint,
        /// How many there are.
        targets: usize,
        /// Whether the packet ends alike at each.
        agree: bool,
    },
    /// Somebody else has this external endpoint still, from before the configuration gave it away, or it rests after that.
    PortAwaited(Endpoint),
    /// A flow exists, whose external endpoint others share.
    FlowFound {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Remote endpoint outside.
        remote: Endpoint,
        /// Until it ends.
        expires_in: Duration,
    },
    /// A flow would be made, as a rule says, with an external port shared by others.
    FlowWouldBeCreated {
        /// Remote endpoint outside.
        remote: Endpoint,
    },
    /// A flow was to be made, as a rule says, but no external port is to be had for it.
    NoSharedPort {
        /// Remote endpoint outside.
        remote: Endpoint,
        /// The subscriber has as many ports as it may have: none was to be opened for it.
        at_quota: bool,
    },
    /// No mapping exists, and none may be made by this packet.
    NoMapping,
    /// The filter was asked.
    FilterAsked {
        /// Filtering in force.
        filtering: Filtering,
        /// Whether it lets the packet in.
        allowed: bool,
    },
    /// A session exists.
    SessionFound {
        /// State of the connection; None for UDP and ICMP.
        state: Option<TcpState>,
        /// Until it ends.
        expires_in: Duration,
    },
    /// A session would be made.
    SessionWouldBeCreated,
    /// A fragment: it waits for the ports of its datagram, or has them already.
    Fragment {
        /// Offset in bytes.
        offset: u16,
        /// Whether more follow.
        more: bool,
    },
    /// An ICMP error, about this packet.
    Quoted {
        /// Transport of the quoted packet.
        protocol: Protocol,
        /// Its source.
        source: Endpoint,
        /// Its destination.
        destination: Endpoint,
    },
    /// An explicit rule passes the protocol.
    PassRule(usize),
    /// A rule says what is done; its position.
    Rule {
        /// In the order of the rules.
        position: usize,
        /// What is done.
        action: RuleAction,
    },
    /// A filter decides; its position.
    PacketFilter {
        /// In the order of the filters.
        position: usize,
        /// Whether it lets the packet pass.
        permits: bool,
    },
}

/// What would happen to a packet now, and why. Nothing is changed to find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Decisions in order.
    pub steps: Vec<Step>,
    /// How it would end.
    pub verdict: Verdict,
    /// The packet's source when it leaves, if it leaves.
    pub source_after: Option<Endpoint>,
    /// The packet's destination when it leaves, if it leaves.
    pub destination_after: Option<Endpoint>,
    /// The second half of hairpinning is another worker's to explain; the verdict is that of the first.
    pub onward: Option<Onward>,
}

/// A packet that is to be hairpinned, behind the translation of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Onward {
    /// Where it came from.
    pub realm: RealmId,
    /// Its source then. Of a mapping that is still to be made the port is 0, and the address the sender's own if it is paired with none.
    pub source: Endpoint,
}
