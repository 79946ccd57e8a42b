//! The steps of an explanation, which decisions report.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::rows::HostView;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::InsideHost;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// Steps an explanation has at most.
pub const STEPS_MAX: usize = 24;

/// What an IPv6 host does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// It sends the packet.
    Sender {
        /// It has a record.
        is_known: bool,
    },
    /// The packet goes to it.
    Receiver {
        /// Where it comes from, as the host sees it; `None` behind a softwire, which carries IPv4.
        remote: Option<Ipv6Addr>,
    },
}

/// A step of an explanation, in the order of the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An IPv6 host sends the packet, or receives it. Other steps name it by its number.
    Host {
        /// The number, which looks like an address.
        number: Ipv4Addr,
        /// The host.
        host: HostView,
        /// What it does.
        role: HostRole,
    },
    /// An IPv6 packet is dropped before it becomes IPv4.
    EdgeRefused {
        /// Its source.
        source: Ipv6Addr,
        /// The IPv4 address in its destination, or that behind the B4.
        about: Option<Ipv4Addr>,
        /// Why.
        verdict: Verdict,
    },
    /// The headers were read.
    Parsed {
        /// IP protocol number.
        protocol: u8,
        /// Source, with port or query identifier if any.
        source: Endpoint,
        /// Destination, likewise.
        destination: Endpoint,
    },
    /// The packet's worker.
    Owner(WorkerId),
    /// The destination is Natrix itself.
    OwnAddress(Ipv4Addr),
    /// The destination is an external address.
    Hairpin {
        /// Addressed endpoint.
        external: Endpoint,
    },
    /// A route was found.
    Routed {
        /// Index of the interface in the settings.
        interface: u16,
        /// Next hop.
        next_hop: Ipv4Addr,
        /// MTU of the interface, bytes.
        mtu: u16,
    },
    /// No route leads to the destination.
    NotRouted {
        /// Where the route would lead.
        towards: Facing,
        /// Looked up.
        destination: Ipv4Addr,
        /// There is a route, and it drops packets.
        by_route: bool,
    },
    /// The subscriber's pool.
    Pool(PoolId),
    /// Number of the subscriber's class, 0 for none.
    Class(u16),
    /// The guarantee for this protocol.
    Guaranteed {
        /// Reserved, including those it uses.
        ports: u32,
        /// Guaranteed, but not yet reserved.
        missing: u32,
    },
    /// Others' blocks still have ports of the subscriber's slice.
    SliceInBlocks {
        /// Lowest port of the slice.
        first: u16,
        /// Highest port.
        last: u16,
        /// Ports in these blocks.
        leased: u32,
        /// Ports given out.
        ports: u32,
    },
    /// The subscriber exceeded its limits too often: this pool serves it for a while.
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
        /// Free ports of the paired address, or of the whole pool.
        ports_free: u64,
    },
    /// A configured pair, used if there is no mapping yet.
    StaticMapping {
        /// Inside host.
        host: InsideHost,
        /// Its port.
        port: u16,
        /// External endpoint.
        external: Endpoint,
        /// True if the whole address is paired, not only this port.
        one_to_one: bool,
    },
    /// The remote endpoint belongs to this one of several targets.
    Target {
        /// Internal endpoint.
        internal: Endpoint,
        /// External endpoint.
        external: Endpoint,
        /// Its weight.
        weight: u32,
        /// Sum of all weights.
        total: u64,
    },
    /// Several targets; the sender's external port will decide.
    AnyTarget {
        /// External endpoint.
        external: Endpoint,
        /// Number of targets.
        targets: usize,
        /// The outcome is the same for each.
        agree: bool,
    },
    /// Another endpoint still uses this one, or it is held down.
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
    /// A flow would be made, with a shared external port.
    FlowWouldBeCreated {
        /// Remote endpoint outside.
        remote: Endpoint,
    },
    /// A rule asks for a flow, but no external port is available.
    NoSharedPort {
        /// Remote endpoint outside.
        remote: Endpoint,
        /// The subscriber's port limit prevented a new port.
        at_quota: bool,
    },
    /// No mapping exists, and this packet may not make one.
    NoMapping,
    /// The mapping's filtering.
    FilterAsked {
        /// Filtering in use.
        filtering: Filtering,
        /// True if it permits the packet.
        allowed: bool,
    },
    /// A grant of the internal endpoint decides about this remote endpoint.
    Granted {
        /// What asked for it.
        origin: Origin,
        /// What it is for.
        kind: Kind,
        /// True if it permits the packet.
        allowed: bool,
        /// Until it ends.
        expires_in: Duration,
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
    /// A fragment: it waits for the ports of its datagram, or has them.
    Fragment {
        /// Offset in bytes.
        offset: u16,
        /// More follow.
        more: bool,
    },
    /// An ICMP error about this packet.
    Quoted {
        /// Transport of the quoted packet.
        protocol: Protocol,
        /// Its source.
        source: Endpoint,
        /// Its destination.
        destination: Endpoint,
    },
    /// A rule passes the protocol; its position.
    PassRule(usize),
    /// A rule decides.
    Rule {
        /// In the order of the rules.
        position: usize,
        /// Its action.
        action: RuleAction,
    },
    /// A filter decides.
    PacketFilter {
        /// In the order of the filters.
        position: usize,
        /// True if it permits the packet.
        permits: bool,
    },
}
