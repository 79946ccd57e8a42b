//! One change of the state, for a second instance with the same mappings, sessions and ports.
//!
//! It has endpoints, hosts and remaining times, no record numbers or instants, so that an instance
//! with another clock and number of workers can [install](crate::Shard::install) it. Commit and the
//! sweep emit deltas ([`Shard::set_deltas`](crate::Shard::set_deltas)). A walk over live state
//! ([`View::deltas_page`](crate::View::deltas_page)) initialises a peer, and refreshes established
//! sessions, whose packets emit none.
//!
//! Hold-downs are not carried: as after a restart, a port may be reused too early (RFC 6888 REQ-8).

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remotes;
use crate::state::grant::Requester;
use crate::state::tcp::SequenceTracker;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// New, or reported again.
    Lives,
    /// It ended.
    Ended,
}

/// A delta's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSession {
    /// Remote endpoint outside.
    pub remote: Endpoint,
    /// Side of the first packet.
    pub opened_from: Side,
    /// The remote is an external endpoint of Natrix.
    pub is_hairpin: bool,
    /// TCP state; for others whether it was answered.
    pub state: TcpState,
    /// Remaining time without packets.
    pub left: Duration,
    /// Empty in the report of a new session, which precedes what its first packet notes. A walk
    /// carries it.
    pub(crate) tracker: SequenceTracker,
}

/// The IPv6 host of a mapping; its number is local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeltaHost {
    /// Behind a softwire, the B4's.
    pub address: Ipv6Addr,
    /// Address behind the softwire.
    pub inner: Option<Ipv4Addr>,
    /// In the translation prefix that it uses, or the AFTR's.
    pub towards: Ipv6Addr,
}

/// A change of a mapping, of a session, or of an endpoint-dependent session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// What happened.
    pub change: Change,
    /// Inside realm.
    pub realm: RealmId,
    /// Transport.
    pub protocol: Protocol,
    /// With a host, only the port counts.
    pub internal: Endpoint,
    /// The NAT64 or softwire host.
    pub host: Option<DeltaHost>,
    /// External endpoint.
    pub external: Endpoint,
    /// Since the mapping's creation.
    pub age: Duration,
    /// Remaining time of the mapping without packets.
    pub left: Duration,
    /// `None` for the whole mapping.
    pub session: Option<DeltaSession>,
    /// The remote endpoint of an endpoint-dependent session as known inside.
    pub remote_inside: Option<Endpoint>,
}

/// A change of a grant, including its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantDelta {
    /// What happened.
    pub change: Change,
    /// Inside realm.
    pub realm: RealmId,
    /// Transport.
    pub protocol: Protocol,
    /// With a host, only the port counts, as in the requester.
    pub internal: Endpoint,
    /// The NAT64 or softwire host.
    pub host: Option<DeltaHost>,
    /// External endpoint.
    pub external: Endpoint,
    /// What asked for it.
    pub origin: Origin,
    /// What it is for.
    pub kind: Kind,
    /// Remote endpoints that may send.
    pub remotes: Remotes,
    /// The client that asked.
    pub requester: Requester,
    /// Remaining time.
    pub left: Duration,
    /// The client's epoch time (RFC 6887 §8.5).
    pub epoch_s: u32,
}

impl GrantDelta {
    /// The remote endpoint of a grant for one peer.
    pub fn peer(&self) -> Option<(u32, u16)> {
        let remote = self.remotes.as_slice().first().filter(|_| self.kind == Kind::Peer)?;
        Some((remote.prefix().0.to_bits(), remote.port()))
    }
}
