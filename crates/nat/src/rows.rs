//! Rows and queries of `show`.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remotes;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::InsideHost;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingView {
    /// `None` for IPv4.
    pub host: Option<HostView>,
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
    /// Worker.
    pub worker: WorkerId,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since its timer restarted.
    pub idle: Duration,
    /// Until it ends without packets.
    pub expires_in: Duration,
    /// Live sessions.
    pub sessions: u32,
    /// What asked to keep it, if anything did.
    pub origin: Option<Origin>,
}

/// An IPv6 host, whose number is the internal address, or a subscriber's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Behind a softwire, the B4's.
    pub address: Ipv6Addr,
    /// 128 for a host.
    pub prefix_length: u8,
    /// IPv4 address behind a softwire.
    pub inner: Option<Ipv4Addr>,
    /// Behind a softwire.
    pub is_softwire: bool,
}

/// One grant of port control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// `None` for IPv4.
    pub host: Option<HostView>,
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
    /// Worker.
    pub worker: WorkerId,
    /// What asked for it.
    pub origin: Origin,
    /// What it is for.
    pub kind: Kind,
    /// Remote endpoints that may send.
    pub remotes: Remotes,
    /// Source of the request.
    pub client: Endpoint,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Until it ends.
    pub expires_in: Duration,
    /// Ended; the port is only held down for its client.
    pub is_held_down: bool,
    /// Its gateway session has come; with [`Kind::Once`] no other may.
    pub is_used: bool,
}

/// An expectation of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectationView(pub GrantView);

/// A gateway's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayNow {
    /// Control sessions.
    pub sessions: u32,
    /// Expectations, including used ones.
    pub expectations: u32,
}

/// One session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// `None` for IPv4.
    pub host: Option<HostView>,
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm.
    pub realm: RealmId,
    /// Internal endpoint.
    pub internal: Endpoint,
    /// External endpoint.
    pub external: Endpoint,
    /// Remote endpoint as the inside knows it.
    pub remote: Endpoint,
    /// Remote endpoint outside, if it differs.
    pub target: Option<Endpoint>,
    /// A flow, whose external endpoint others share.
    pub shared: bool,
    /// Worker.
    pub worker: WorkerId,
    /// Side of the first packet.
    pub opened_from: Side,
    /// `None` for UDP and ICMP.
    pub state: Option<TcpState>,
    /// The remote is a subscriber's external endpoint.
    pub hairpin: bool,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since its timer restarted.
    pub idle: Duration,
    /// Until it ends without packets.
    pub expires_in: Duration,
}

/// One subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberView {
    /// `None` for IPv4.
    pub host: Option<HostView>,
    /// Internal address; unspecified for a prefix of IPv6 hosts that has no number.
    pub address: Ipv4Addr,
    /// Inside realm.
    pub realm: RealmId,
    /// Pool of its paired address, else the serving pool.
    pub pool: PoolId,
    /// Its pool without rules.
    pub own_pool: PoolId,
    /// Paired external address; `None` with arbitrary pooling.
    pub external_address: Option<Ipv4Addr>,
    /// Latest external address from a rule's pool.
    pub elsewhere: Option<Ipv4Addr>,
    /// That pool.
    pub pool_elsewhere: Option<PoolId>,
    /// Worker.
    pub worker: WorkerId,
    /// Mappings by [`Protocol::index`].
    pub mappings: [u32; Protocol::COUNT],
    /// Shared ports charged, by [`Protocol::index`].
    pub shared_ports: [u32; Protocol::COUNT],
    /// 0 for none, else its position in the settings plus one.
    pub class: u16,
    /// Sessions of all mappings.
    pub sessions: u32,
    /// State bytes, see [`crate::policy::class`].
    pub memory_bytes: u64,
    /// Mappings made since its record began.
    pub mappings_created: u64,
    /// Pairings since then.
    pub addresses_paired: u32,
    /// Refusals by [`SubscriberView::CAUSES`].
    pub refused: [u32; SubscriberView::CAUSES.len()],
    /// Ports its class guarantees in its pool.
    pub guarantee: Guarantee,
    /// Its new mappings come from a penalty pool.
    pub is_offender: bool,
    /// Listed only for a refusal within the last hour.
    pub is_refused_only: bool,
}

/// Ports available however full the pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guarantee {
    /// Reserved, including those in use, by [`Protocol::index`].
    pub ports: [u32; Protocol::COUNT],
    /// Guaranteed, but still in use by others.
    pub missing: [u32; Protocol::COUNT],
}

impl SubscriberView {
    /// Causes of a refusal.
    pub const CAUSES: [Verdict; 13] = crate::state::subscriber::Account::CAUSES;
}

/// Ports of one subscriber, for all transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberPorts {
    /// External address.
    pub address: Ipv4Addr,
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// Lease time in seconds; `None` for a slice.
    pub leased_s: Option<u32>,
    /// In use or held down, by [`Protocol::index`].
    pub used: [u32; Protocol::COUNT],
}

/// An unleased block that cannot be leased, because some ports are taken singly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornBlock {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// Ports of shared flows, over all protocols.
    pub shared: u32,
    /// Ports held down, or mapped under other settings.
    pub others: u32,
}

/// A configured pair of endpoints, active or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm.
    pub realm: RealmId,
    /// Inside host.
    pub host: InsideHost,
    /// Its port.
    pub internal_port: u16,
    /// External endpoint.
    pub external: Endpoint,
    /// Pairs whole addresses, not ports.
    pub one_to_one: bool,
}

/// An external endpoint for several internal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedView {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm of the targets.
    pub realm: RealmId,
    /// External endpoint.
    pub external: Endpoint,
    /// Internal endpoints and weights; empty if the forward was removed.
    pub targets: Vec<(Endpoint, u32)>,
}

/// Cursors of flows, between those of mappings' first and further sessions.
pub const FLOW_CURSORS: core::ops::Range<u32> = 1 << 30..1 << 31;

/// Which records to show; `None` matches all.
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

/// A query for a page of records.
#[derive(Debug)]
pub struct Query<V> {
    /// Start of the page: 0 at first, then `next` of the previous page.
    pub cursor: u32,
    /// Maximum records to return.
    pub limit: usize,
    /// Maximum records to examine.
    pub scan_max: usize,
    /// Conditions on records.
    pub filter: Filter,
    /// Out: the records.
    pub records: Vec<V>,
    /// Out: start of the next page, if any.
    pub next: Option<u32>,
}

impl<V> Query<V> {
    /// Everything that matches, in one page.
    pub fn all(filter: Filter) -> Query<V> {
        Query { cursor: 0, limit: usize::MAX, scan_max: usize::MAX, filter, records: Vec::new(), next: None }
    }

    /// Fills the page. `record` may advance its cursor; it returns the record there if that
    /// matches, `None` at the end.
    pub(crate) fn fill(&mut self, mut record: impl FnMut(&mut u32, &Filter) -> Option<Option<V>>) {
        let mut cursor = self.cursor.max(1);
        for _ in 0..self.scan_max {
            let Some(found) = record(&mut cursor, &self.filter) else {
                self.next = None;
                return;
            };
            if let Some(view) = found {
                if self.records.len() == self.limit {
                    break;
                }
                self.records.push(view);
            }
            cursor += 1;
        }
        self.next = Some(cursor);
    }
}

/// What a change does to a subscriber or a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Unchanged.
    Keeps,
    /// The next mapping is on another address.
    Moves,
    /// Nothing new; its state stays while used, until the instant at most.
    Drains(Option<Instant>),
    /// Nothing new: no pool serves it, or its state ends.
    Leaves,
    /// Ends with the change.
    Ends,
}

impl Prospect {
    pub(crate) fn rank(self) -> u8 {
        match self {
            Prospect::Keeps => 0,
            Prospect::Moves => 1,
            Prospect::Drains(_) => 2,
            Prospect::Leaves | Prospect::Ends => 3,
        }
    }
}
