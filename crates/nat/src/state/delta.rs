//! One change of the state, by value: what a second instance needs to hold the same mappings,
//! sessions and ports.
//!
//! A delta names endpoints and remaining times, never record numbers or instants of this clock. So
//! a shard of an instance with another clock and number of workers can
//! [install](crate::Shard::install) it. Commit and the sweep emit deltas
//! ([`Shard::set_deltas`](crate::Shard::set_deltas)). A walk over all live state
//! ([`View::deltas_page`](crate::View::deltas_page)) initialises a new peer, and refreshes
//! established sessions, whose packets emit nothing.
//!
//! Hold-downs are not carried: an instance that takes over may give a port out again too early (RFC
//! 6888 REQ-8), as after a restart.

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
    /// It exists as described: it is new, or reported again.
    Lives,
    /// It ended.
    Ended,
}

/// The session that a delta is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSession {
    /// The remote endpoint, as seen from outside.
    pub remote: Endpoint,
    /// The side that opened it.
    pub opened_from: Side,
    /// The remote endpoint is an external endpoint of Natrix.
    pub is_hairpin: bool,
    /// Its state; for protocols other than TCP whether it was answered.
    pub state: TcpState,
    /// Time until it ends without another packet.
    pub left: Duration,
    /// Sequence numbers seen, to judge a RST by.
    pub(crate) tracker: SequenceTracker,
}

/// A change of one mapping, of one of its sessions, or of one endpoint-dependent session. See the
/// [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// What happened.
    pub change: Change,
    /// Realm of the internal endpoint.
    pub realm: RealmId,
    /// Protocol.
    pub protocol: Protocol,
    /// Internal endpoint.
    pub internal: Endpoint,
    /// External endpoint.
    pub external: Endpoint,
    /// How long the mapping has existed.
    pub age: Duration,
    /// Time until the mapping ends without another packet.
    pub left: Duration,
    /// The session; `None` for the mapping as a whole.
    pub session: Option<DeltaSession>,
    /// For an endpoint-dependent session, which has no mapping: the remote endpoint as the inside
    /// knows it.
    pub remote_inside: Option<Endpoint>,
}
