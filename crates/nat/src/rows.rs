//! Rows of the pages that `show` prints, and what to ask for.

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
    /// The IPv6 host, if the internal address is the number of one.
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
    /// Its worker.
    pub worker: WorkerId,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since a packet last restarted its timer.
    pub idle: Duration,
    /// Until it ends if nothing refreshes it.
    pub expires_in: Duration,
    /// Live sessions.
    pub sessions: u32,
    /// What asked for it to be kept; `None` if only packets do.
    pub origin: Option<Origin>,
}

/// An IPv6 host, or the prefix that is its subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its address: behind a softwire, that of the B4.
    pub address: Ipv6Addr,
    /// 128 for a host.
    pub prefix_length: u8,
    /// Its IPv4 address behind a softwire.
    pub inner: Option<Ipv4Addr>,
    /// It is behind a softwire.
    pub is_softwire: bool,
}

/// One grant of port control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// The IPv6 host that the internal address is the number of.
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
    /// Its worker.
    pub worker: WorkerId,
    /// What asked for it.
    pub origin: Origin,
    /// What it is for.
    pub kind: Kind,
    /// Who may send.
    pub remotes: Remotes,
    /// Where the request came from.
    pub client: Endpoint,
    /// Since it was made, whole seconds.
    pub age: Duration,
    /// Until it ends.
    pub expires_in: Duration,
    /// Deleted or expired: its port is only held down for its client.
    pub is_held_down: bool,
    /// For a gateway: its session has come. With [`Kind::Once`] no other may come.
    pub is_used: bool,
}

/// One expectation of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectationView(pub GrantView);

/// What a gateway has at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayNow {
    /// Control sessions that it reads.
    pub sessions: u32,
    /// Expectations, used ones too.
    pub expectations: u32,
}

/// One session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The IPv6 host, if the internal address is the number of one.
    pub host: Option<HostView>,
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
    /// The remote endpoint outside, if the destination is translated, too.
    pub target: Option<Endpoint>,
    /// A flow: sessions of other remote endpoints share the external endpoint.
    pub shared: bool,
    /// Its worker.
    pub worker: WorkerId,
    /// Side of the first packet.
    pub opened_from: Side,
    /// State of the connection; `None` for UDP and ICMP.
    pub state: Option<TcpState>,
    /// True if the remote endpoint is another subscriber's external endpoint.
    pub hairpin: bool,
    /// Since creation, whole seconds.
    pub age: Duration,
    /// Since a packet last restarted its timer.
    pub idle: Duration,
    /// Until it ends if nothing refreshes it.
    pub expires_in: Duration,
}

/// One subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberView {
    /// The IPv6 host, if the internal address is the number of one.
    pub host: Option<HostView>,
    /// Internal address.
    pub address: Ipv4Addr,
    /// Inside realm.
    pub realm: RealmId,
    /// Pool of its paired address; without one the pool that serves it.
    pub pool: PoolId,
    /// Pool that serves it without rules.
    pub own_pool: PoolId,
    /// Paired external address; `None` with arbitrary pooling.
    pub external_address: Option<Ipv4Addr>,
    /// The latest external address that a rule gave it in another pool.
    pub elsewhere: Option<Ipv4Addr>,
    /// That pool.
    pub pool_elsewhere: Option<PoolId>,
    /// Its worker.
    pub worker: WorkerId,
    /// Mappings by [`Protocol::index`].
    pub mappings: [u32; Protocol::COUNT],
    /// Shared ports charged to it, by [`Protocol::index`].
    pub shared_ports: [u32; Protocol::COUNT],
    /// Its class: 0 for none, else its position in the settings plus one.
    pub class: u16,
    /// Sessions of all mappings.
    pub sessions: u32,
    /// Bytes of its state; see [`crate::policy::class`].
    pub memory_bytes: u64,
    /// Mappings made since it is a subscriber.
    pub mappings_created: u64,
    /// How often it was paired with an external address since then.
    pub addresses_paired: u32,
    /// Refusals by [`SubscriberView::CAUSES`].
    pub refused: [u32; SubscriberView::CAUSES.len()],
    /// What its class guarantees it in its pool.
    pub guarantee: Guarantee,
    /// Its new mappings come from a penalty pool.
    pub is_offender: bool,
    /// Listed only because of a refusal within the last hour.
    pub is_refused_only: bool,
}

/// Ports that a subscriber can have however full its pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guarantee {
    /// Reserved, including those in use, by [`Protocol::index`].
    pub ports: [u32; Protocol::COUNT],
    /// Also guaranteed by its class, but still in use by others.
    pub missing: [u32; Protocol::COUNT],
}

impl SubscriberView {
    /// What a subscriber can be refused for.
    pub const CAUSES: [Verdict; 13] = crate::state::subscriber::Account::CAUSES;
}

/// Ports reserved for one subscriber, for all transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPorts {
    /// External address.
    pub address: Ipv4Addr,
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// When the block was leased, in seconds; `None` for a slice.
    pub leased_s: Option<u32>,
    /// Its ports in use or held down, by [`Protocol::index`].
    pub used: [u32; Protocol::COUNT],
}

/// An unleased block that nobody can lease, because some of its ports are taken singly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornBlock {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
    /// Ports, over all protocols, for shared flows.
    pub shared: u32,
    /// Ports of mappings from other settings, or held down.
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
    /// True if the whole address is paired, not only some ports.
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
    /// Internal endpoints with their weights; empty if the forward was removed.
    pub targets: Vec<(Endpoint, u32)>,
}

/// Cursors of flows: between those of mappings' first and further sessions.
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

/// A question for a page of records.
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
    /// Asks for all that match, in one page.
    pub fn all(filter: Filter) -> Query<V> {
        Query { cursor: 0, limit: usize::MAX, scan_max: usize::MAX, filter, records: Vec::new(), next: None }
    }

    /// Adds records until the page is full. `record` may move its cursor ahead; it returns the
    /// record there if that matches, None at the end.
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

/// What happens to a subscriber, or to one of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Unchanged.
    Keeps,
    /// The subscriber's next mapping is on another address.
    Moves,
    /// Nothing new. Its state stays while used, at most until the instant.
    Drains(Option<Instant>),
    /// Nothing new: no pool serves it, or its state ends.
    Leaves,
    /// It ends with the change.
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
