//! One change of the state, by value, for a second instance with the same mappings, sessions and
//! ports.
//!
//! A delta names endpoints, hosts and remaining times, never record numbers or instants. So an
//! instance with another clock and number of workers can [install](crate::Shard::install) it.
//! Commit and the sweep emit deltas ([`Shard::set_deltas`](crate::Shard::set_deltas)). A walk over
//! all live state ([`View::deltas_page`](crate::View::deltas_page)) initialises a new peer, and
//! refreshes established sessions, whose packets emit nothing.
//!
//! Hold-downs are not carried: after a takeover a port may be given out too early (RFC 6888 REQ-8),
//! as after a restart.

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

/// What happened to a mapping or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new, or reported again.
    Lives,
    /// It ended.
    Ended,
}

/// The session that a delta is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSession {
    /// The remote endpoint outside.
    pub remote: Endpoint,
    /// The side that opened it.
    pub opened_from: Side,
    /// The remote endpoint is an external endpoint of Natrix.
    pub is_hairpin: bool,
    /// For protocols other than TCP whether it was answered.
    pub state: TcpState,
    /// Time until it ends without another packet.
    pub left: Duration,
    pub(crate) tracker: SequenceTracker,
}

/// The IPv6 host that has a mapping. Its number means nothing to another instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeltaHost {
    /// Its address; behind a softwire, that of the B4.
    pub address: Ipv6Addr,
    /// Its address behind the softwire.
    pub inner: Option<Ipv4Addr>,
    /// An address of the translation prefix that it uses, or the AFTR.
    pub towards: Ipv6Addr,
}

/// A change of a mapping, of one of its sessions, or of an endpoint-dependent session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// What happened.
    pub change: Change,
    /// Realm of the internal endpoint.
    pub realm: RealmId,
    /// Protocol.
    pub protocol: Protocol,
    /// Internal endpoint. If there is a host, only the port counts.
    pub internal: Endpoint,
    /// The host, if it is one of NAT64 or behind a softwire.
    pub host: Option<DeltaHost>,
    /// External endpoint.
    pub external: Endpoint,
    /// How long the mapping has existed.
    pub age: Duration,
    /// Time until the mapping ends without another packet.
    pub left: Duration,
    /// `None` for the mapping as a whole.
    pub session: Option<DeltaSession>,
    /// Of an endpoint-dependent session, which has no mapping: the remote endpoint known inside.
    pub remote_inside: Option<Endpoint>,
}

/// A change of a grant. Its mapping has no delta of its own: this one contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantDelta {
    /// What happened.
    pub change: Change,
    /// Realm of the internal endpoint.
    pub realm: RealmId,
    /// Protocol.
    pub protocol: Protocol,
    /// Internal endpoint. If there is a host, only the port counts, here and in the requester.
    pub internal: Endpoint,
    /// The host, if it is one of NAT64 or behind a softwire.
    pub host: Option<DeltaHost>,
    /// External endpoint.
    pub external: Endpoint,
    /// What asked for it.
    pub origin: Origin,
    /// What it is for.
    pub kind: Kind,
    /// Who may send.
    pub remotes: Remotes,
    /// Who asked.
    pub requester: Requester,
    /// Time until it ends.
    pub left: Duration,
    /// The epoch time of its client (RFC 6887 §8.5).
    pub epoch_s: u32,
}

impl GrantDelta {
    /// The remote endpoint of a grant for one peer.
    pub fn peer(&self) -> Option<(u32, u16)> {
        let remote = self.remotes.as_slice().first().filter(|_| self.kind == Kind::Peer)?;
        Some((remote.prefix().0.to_bits(), remote.port()))
    }
}
