//! The steps of an explanation.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::rows::HostView;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::types::AddressUse;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::InsideHost;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// The most steps of an explanation.
pub const STEPS_MAX: usize = 24;

/// What a host does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// Sends it.
    Sender {
        /// Has a record.
        is_known: bool,
    },
    /// Receives it.
    Receiver {
        /// The source as the host sees it; `None` in a softwire, which carries IPv4.
        remote: Option<Ipv6Addr>,
    },
}

/// In the order of the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An IPv6 host's part. Other steps give its number.
    Host {
        /// Looks like an address.
        number: Ipv4Addr,
        /// The host.
        host: HostView,
        /// Its part.
        role: HostRole,
    },
    /// An IPv6 packet is dropped before it becomes IPv4.
    EdgeRefused {
        /// Of the packet.
        source: Ipv6Addr,
        /// In its destination, or behind the B4.
        about: Option<Ipv4Addr>,
        /// Why.
        verdict: Verdict,
    },
    /// The headers were read.
    Parsed {
        /// IP protocol number.
        protocol: u8,
        /// With port or query identifier if any.
        source: Endpoint,
        /// Likewise.
        destination: Endpoint,
    },
    /// The packet's worker.
    Owner(WorkerId),
    /// The destination is Natrix itself.
    OwnAddress(Ipv4Addr),
    /// The destination is Natrix itself, or where softwires end.
    OwnAddress6(Ipv6Addr),
    /// The packet needs an own address that must not be used.
    AddressNotUsed {
        /// The address.
        address: Ipv6Addr,
        /// Why.
        now: AddressUse,
    },
    /// An external address is the destination.
    Hairpin {
        /// The destination.
        external: Endpoint,
    },
    /// A route was found.
    Routed {
        /// Index in the settings.
        interface: u16,
        /// Next hop.
        next_hop: Ipv4Addr,
        /// Bytes.
        mtu: u16,
    },
    /// No route leads to the destination.
    NotRouted {
        /// Where the route would lead.
        towards: Facing,
        /// Looked up.
        destination: Ipv4Addr,
        /// A route drops the packet.
        by_route: bool,
    },
    /// The subscriber's pool.
    Pool(PoolId),
    /// The subscriber's class, 0 for none.
    Class(u16),
    /// Guaranteed for this protocol.
    Guaranteed {
        /// Reserved, including those in use.
        ports: u32,
        /// Not yet reserved.
        missing: u32,
    },
    /// Others' blocks still have ports of the subscriber's slice.
    SliceInBlocks {
        /// Lowest port.
        first: u16,
        /// Highest port.
        last: u16,
        /// In these blocks.
        leased: u32,
        /// Given out.
        ports: u32,
    },
    /// This pool serves an offender for a while.
    Penalty(PoolId),
    /// The subscriber's paired address.
    PairedWith(Ipv4Addr),
    /// A mapping exists.
    MappingFound {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Until it ends.
        expires_in: Duration,
        /// What asked for it; `None` if only packets did.
        origin: Option<Origin>,
    },
    /// A mapping would be made, with a random port.
    MappingWouldBeCreated {
        /// Of the paired address, or of the pool.
        ports_free: u64,
    },
    /// Configured, used if there is no mapping yet.
    StaticMapping {
        /// Inside host.
        host: InsideHost,
        /// Its port.
        port: u16,
        /// External endpoint.
        external: Endpoint,
        /// The whole address is paired, not only this port.
        one_to_one: bool,
    },
    /// The remote endpoint belongs to this target of several.
    Target {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Its share.
        weight: u32,
        /// Sum of all weights.
        total: u64,
    },
    /// The sender's external port will choose a target.
    AnyTarget {
        /// External endpoint.
        external: Endpoint,
        /// Their number.
        targets: usize,
        /// All have the same outcome.
        agree: bool,
    },
    /// In use by another endpoint, or held down.
    PortAwaited(Endpoint),
    /// A flow exists, on a shared external endpoint.
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
    /// A flow would be made.
    FlowWouldBeCreated {
        /// Remote endpoint outside.
        remote: Endpoint,
    },
    /// A rule asks for a flow, but no external port is available.
    NoSharedPort {
        /// Remote endpoint outside.
        remote: Endpoint,
        /// Because of the subscriber's port limit.
        at_quota: bool,
    },
    /// There is no mapping, and this packet may not make one.
    NoMapping,
    /// The mapping's filtering.
    FilterAsked {
        /// In use.
        filtering: Filtering,
        /// Permits the packet.
        allowed: bool,
    },
    /// A grant decides about this remote endpoint.
    Granted {
        /// What asked for it.
        origin: Origin,
        /// What it is for.
        kind: Kind,
        /// Permits the packet.
        allowed: bool,
        /// Until it ends.
        expires_in: Duration,
    },
    /// A session exists.
    SessionFound {
        /// `None` for UDP and ICMP.
        state: Option<TcpState>,
        /// Until it ends.
        expires_in: Duration,
    },
    /// A session would be made.
    SessionWouldBeCreated,
    /// A fragment waits for its datagram's ports, or has them.
    Fragment {
        /// Bytes.
        offset: u16,
        /// More follow.
        more: bool,
    },
    /// A fragment waits for the rest of its softwire's packet, or completes it.
    SoftwireFragment {
        /// Bytes.
        offset: u16,
        /// More follow.
        more: bool,
    },
    /// An ICMP error about this packet.
    Quoted {
        /// Transport.
        protocol: Protocol,
        /// Source.
        source: Endpoint,
        /// Destination.
        destination: Endpoint,
    },
    /// An ICMP error about this packet, whose protocol is not translated.
    QuotedPortless {
        /// IP protocol number.
        protocol: u8,
        /// Source.
        source: Ipv4Addr,
        /// Destination.
        destination: Ipv4Addr,
    },
    /// Position of the rule that passes the protocol.
    PassRule(usize),
    /// A rule decides.
    Rule {
        /// Among the rules.
        position: usize,
        /// Its action.
        action: RuleAction,
    },
    /// A filter decides.
    PacketFilter {
        /// Among the filters.
        position: usize,
        /// Permits the packet.
        permits: bool,
    },
}
