//! The engine's configuration: plain values that the `config` crate has validated.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use crate::event::EventSettings;
use crate::policy::origin::Origins;
use crate::policy::redirection::Redirection;
use crate::policy::redirection::RedirectionId;
use crate::policy::redirection::Target;
use crate::policy::rules::Match;
use crate::policy::stand_in::Prefix6;
use crate::policy::stand_in::StandIn;
use crate::time::Duration;
use crate::types::BlockSize;
use crate::types::Facing;
use crate::types::InsideHost;
use crate::types::InterfaceId;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

/// Configuration of one engine instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The position is the [`InterfaceId`].
    pub interfaces: Vec<Interface>,
    /// The position is the [`RealmId`].
    pub realm_names: Vec<String>,
    /// Hairpinning between subscribers of different realms (RFC 4787 §6 REQ-9).
    pub hairpin_between_realms: bool,
    /// Static routes; longest prefix wins. Connected routes follow from `interfaces`.
    pub routes: Vec<Route>,
    /// Routes also come from the kernel and change while packets are looked up.
    pub live_routes: bool,
    /// Interfaces whose packets to Natrix itself go to a kernel device.
    pub kernel_interfaces: Vec<InterfaceId>,
    /// IPv6 addresses and routes.
    pub ipv6: Ipv6,
    /// How IPv6 hosts reach IPv4.
    pub transition: Transition,
    /// The position is the [`PoolId`].
    pub pools: Vec<Pool>,
    /// One internal endpoint each. They do not overlap, nor lie in one-to-one pools.
    pub forwards: Vec<Forward>,
    /// Several internal endpoints each. They overlap no other forward.
    pub balanced_forwards: Vec<BalancedForward>,
    /// Unsupported protocols to forward untranslated; the others are dropped.
    pub pass_rules: Vec<PassRule>,
    /// For new flows from inside: the first match counts; without one the subscriber's pool
    /// translates.
    pub rules: Vec<Rule>,
    /// The first match in a direction counts; without one packets pass.
    pub filters: Vec<FilterRule>,
    /// Filter names by position.
    pub filter_names: BTreeMap<u32, String>,
    /// Where the configuration defines rules and filters.
    pub origins: Origins,
    /// Targets of rules; the position is the [`RedirectionId`].
    pub redirections: Vec<Redirection>,
    /// Timers.
    pub timeouts: Timeouts,
    /// Table bounds, per worker.
    pub limits: Limits,
    /// For each subscriber without a class.
    pub subscriber: SubscriberLimits,
    /// Subscribers with their own limits.
    pub classes: Vec<Class>,
    /// Idle times by destination port.
    pub port_timeouts: Vec<PortTimeout>,
    /// ICMP messages that Natrix originates.
    pub icmp: IcmpPolicy,
    /// How a reload treats existing mappings.
    pub reload: ReloadPolicy,
    /// Inbound packets also refresh a mapping (RFC 4787 §4.3 REQ-6a MAY); for TCP they always do.
    pub inbound_refresh: bool,
    /// Hold an unsolicited inbound SYN for 6 s, then answer ICMP 3/3 (RFC 5382 §4.3 REQ-4).
    /// Otherwise drop it silently (REQ-4a).
    pub answer_unsolicited_syn: bool,
    /// Enabled application-level gateways.
    pub gateways: Vec<Gateway>,
    /// Control sessions that the gateways of a worker read at a time, at most
    /// [`CONTROL_SESSIONS_CEILING`].
    pub control_sessions_max: u32,
    /// What subscribers may ask for by PCP and NAT-PMP.
    pub port_control: PortControl,
    /// Needs a ring ([`crate::Shard::set_events`]).
    pub events: EventSettings,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interfaces: Vec::new(),
            realm_names: vec!["default".to_owned()],
            hairpin_between_realms: true,
            routes: Vec::new(),
            live_routes: false,
            kernel_interfaces: Vec::new(),
            ipv6: Ipv6::default(),
            transition: Transition::default(),
            pools: Vec::new(),
            forwards: Vec::new(),
            balanced_forwards: Vec::new(),
            pass_rules: Vec::new(),
            rules: Vec::new(),
            filters: Vec::new(),
            filter_names: BTreeMap::new(),
            origins: Origins::default(),
            redirections: Vec::new(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            subscriber: SubscriberLimits::default(),
            classes: Vec::new(),
            port_timeouts: Vec::new(),
            gateways: Vec::new(),
            control_sessions_max: 65_536,
            port_control: PortControl::default(),
            icmp: IcmpPolicy::default(),
            reload: ReloadPolicy::default(),
            inbound_refresh: false,
            answer_unsolicited_syn: true,
            events: EventSettings::default(),
        }
    }
}

/// A logical interface.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// Configured name.
    pub name: String,
    /// What it faces.
    pub side: Side,
    /// Inside realm; ignored outside.
    pub realm: RealmId,
    /// Natrix's own addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Largest IP packet in bytes, 68 to 65535.
    pub mtu: u16,
}

impl Interface {
    /// What it faces.
    pub fn facing(&self) -> Facing {
        match self.side {
            Side::Inside => Facing::inside(self.realm),
            Side::Outside => Facing::OUTSIDE,
        }
    }
}

impl Settings {
    /// Number of inside realms, at least one.
    pub fn realms(&self) -> usize {
        self.interfaces.iter().map(|interface| interface.facing().realm.index() + 1).max().unwrap_or(1)
    }
}

/// Natrix's own address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Natrix's own address.
    pub address: Ipv4Addr,
    /// Length of the connected prefix.
    pub prefix_length: u8,
}

/// A static route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations it covers.
    pub prefix: Prefix,
    /// On the connected prefix of `interface`.
    pub next_hop: Ipv4Addr,
    /// Interface to leave by.
    pub interface: InterfaceId,
}

/// IPv6 of all interfaces; the IPv4 packet path does not see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipv6 {
    /// Natrix's own. An interface with one also has a link-local address.
    pub addresses: Vec<Address6>,
    /// Static routes; longest prefix wins. Connected routes follow from `addresses`.
    pub routes: Vec<Route6>,
}

/// Natrix's own IPv6 address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address6 {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Natrix's own address.
    pub address: Ipv6Addr,
    /// Length of the connected prefix.
    pub prefix_length: u8,
}

/// A static IPv6 route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route6 {
    /// Destinations it covers; bits behind the length are zero.
    pub prefix: Ipv6Addr,
    /// Length of the prefix.
    pub prefix_length: u8,
    /// On a connected prefix of `interface`, or link-local.
    pub next_hop: Ipv6Addr,
    /// Interface to leave by.
    pub interface: InterfaceId,
}

/// Which addresses of a pool mappings use (RFC 4787 §4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// One for all mappings of a subscriber (REQ-2; RFC 6888 REQ-2).
    #[default]
    Paired,
    /// Each mapping takes any address.
    Arbitrary,
}

/// Remote endpoints that may send to a mapping (RFC 4787 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Any (EIF).
    #[default]
    EndpointIndependent,
    /// Addresses the internal endpoint has sent to (ADF).
    AddressDependent,
    /// Endpoints it has sent to (APDF).
    AddressAndPortDependent,
}

/// How a pool gives out ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Any free port for each mapping.
    #[default]
    Ports,
    /// From leased blocks (RFC 6888 REQ-14).
    Blocks(Blocks),
    /// Slices of one address by formula (RFC 7422); needs paired pooling.
    Deterministic {
        /// Slices of each address for dynamic blocks (RFC 7422 parameter D).
        dynamic_slices: u16,
        /// For subscribers whose slice is used up.
        overflow: Blocks,
    },
}

/// Port blocks that subscribers lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Ports per block.
    pub size: BlockSize,
    /// Blocks of one subscriber at a time.
    pub per_subscriber_max: u16,
    /// An unused block is kept this long.
    pub idle: Duration,
}

/// Chooses the address of a subscriber or, under arbitrary pooling, of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Of two random addresses, the one with fewer subscribers.
    #[default]
    LeastUsed,
    /// One after the other.
    RoundRobin,
    /// By hash: the same address while the pool keeps its addresses and this one has room.
    Hash,
}

/// External addresses and how they are given out.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Configured name.
    pub name: String,
    /// External, in order; each is unique over all pools.
    pub addresses: Vec<Ipv4Addr>,
    /// Lowest external port, at least 1.
    pub port_min: u16,
    /// Highest external port, at least `port_min`.
    pub port_max: u16,
    /// Never given out, except for ICMP.
    pub reserved_ports: Vec<u16>,
    /// Inside prefixes; the longest match over all pools wins.
    pub subscribers: Vec<Prefix>,
    /// Inside realms it serves; empty means all.
    pub realms: Vec<RealmId>,
    /// When the use of its ports is reported.
    pub threshold: Option<Threshold>,
    /// How addresses are shared.
    pub pooling: Pooling,
    /// How ports are given out.
    pub allocation: Allocation,
    /// Order of subscribers in a deterministic pool.
    pub algorithm: Algorithm,
    /// Which address a subscriber gets.
    pub selection: Selection,
    /// Existing mappings stay, new mappings and subscribers are refused.
    pub draining: bool,
    /// The same for these addresses only.
    pub draining_addresses: Vec<Ipv4Addr>,
    /// By [`Protocol::index`]; for ICMP it applies to replies.
    pub filtering: [Filtering; Protocol::COUNT],
    /// Keep the internal port's parity (RFC 4787 §4.2.2 REQ-4, relaxed by RFC 7857 §8). Never for
    /// ICMP.
    pub parity: bool,
    /// Hold-down of an ended mapping's port (RFC 6888 REQ-8), at most a day.
    pub reuse_delay: Duration,
    /// Ports that need no hold-down.
    pub reuse_at_once: ReuseAtOnce,
    /// Ports of an address that a worker's flows use before they share one (RFC 6056).
    pub shared_ports_min: u16,
    /// The n-th address belongs to the n-th subscriber address, all ports untranslated (basic NAT,
    /// RFC 2663 §4.1.1). Needs as many of both, and one realm.
    pub one_to_one: bool,
}

/// Order of subscribers in a deterministic pool (RFC 7422 §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// One address after the other (algorithm 0).
    #[default]
    Sequential,
    /// Neighbours are on different addresses.
    Spread,
    /// A secret order from this key.
    Keyed(u64),
}

/// A static port forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Realm of the inside address.
    pub realm: RealmId,
    /// UDP or TCP.
    pub protocol: Protocol,
    /// Address of a pool.
    pub external: Ipv4Addr,
    /// First and last port.
    pub ports: (u16, u16),
    /// Some pool must serve it.
    pub inside: InsideHost,
    /// For the first external port; the others follow.
    pub inside_port: u16,
    /// Which remote endpoints may send to it.
    pub admission: Admission,
}

/// A port forward to several inside targets; each remote endpoint reaches one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedForward {
    /// Realm of the targets.
    pub realm: RealmId,
    /// UDP or TCP.
    pub protocol: Protocol,
    /// Address of a pool.
    pub external: Ipv4Addr,
    /// First and last port.
    pub ports: (u16, u16),
    /// At least one. A target's port belongs to the first external port.
    pub targets: Vec<Target>,
    /// Which remote endpoints may send to it.
    pub admission: Admission,
    /// All sessions of a remote address go to one target.
    pub is_sticky: bool,
}

/// Remote endpoints that may open a static mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Forwarded ports are meant to be reached.
    #[default]
    Anyone,
    /// As the filtering of the address's pool permits.
    AsPool,
}

/// The exceptions of RFC 6888 REQ-8 to hold-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseAtOnce {
    /// TCP, after both sides closed the last connection and `tcp_closing` is over (REQ-8A).
    pub tcp_closed: bool,
    /// Ports whose filtering by remote address stops late packets (REQ-8C).
    pub filtered: bool,
}

impl Default for ReuseAtOnce {
    /// Closed TCP: `tcp_closing` has already held it.
    fn default() -> ReuseAtOnce {
        ReuseAtOnce { tcp_closed: true, filtered: false }
    }
}

impl Pool {
    /// The realm of a one-to-one pool.
    pub fn realm(&self) -> RealmId {
        self.realms.first().copied().unwrap_or_default()
    }

    /// True if it serves this realm.
    pub fn serves(&self, realm: RealmId) -> bool {
        self.realms.is_empty() || self.realms.contains(&realm)
    }
}

impl Default for Pool {
    /// Every subscriber, ports from 1024 on, paired, without filtering.
    fn default() -> Pool {
        Pool {
            name: String::new(),
            addresses: Vec::new(),
            port_min: 1_024,
            port_max: u16::MAX,
            reserved_ports: Vec::new(),
            subscribers: vec![Prefix::ALL],
            realms: Vec::new(),
            draining: false,
            draining_addresses: Vec::new(),
            threshold: None,
            pooling: Pooling::default(),
            allocation: Allocation::default(),
            algorithm: Algorithm::default(),
            selection: Selection::default(),
            filtering: [Filtering::default(); Protocol::COUNT],
            parity: false,
            reuse_delay: Duration::from_secs(120),
            reuse_at_once: ReuseAtOnce::default(),
            shared_ports_min: 64,
            one_to_one: false,
        }
    }
}

/// A rule for packets from inside that open a mapping or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which packets.
    pub matches: Match,
    /// What to do.
    pub action: RuleAction,
}

/// Remote endpoints for which an external endpoint stays the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MappingKind {
    /// All (RFC 4787 §4.1 REQ-1).
    #[default]
    EndpointIndependent,
    /// One: flows to others can use the same external port.
    EndpointDependent,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// Translates the source.
    Translate {
        /// `None`: the subscriber's own. An existing mapping takes precedence.
        pool: Option<PoolId>,
        /// Endpoint-independent or not.
        mapping: MappingKind,
    },
    /// Pass in both directions, without state (RFC 6888 REQ-6).
    NoTranslation,
    /// Change destination (twice NAT) and source, endpoint-dependently, with the subscriber's own
    /// pool.
    Redirect(RedirectionId),
    /// Drops the packet.
    Drop,
}

impl RuleAction {
    /// The action if no rule matches.
    pub const DEFAULT: RuleAction = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointIndependent };

    /// The translating pool; `None` for the subscriber's own or no translation.
    pub const fn pool(self) -> Option<PoolId> {
        match self {
            RuleAction::Translate { pool, .. } => pool,
            RuleAction::NoTranslation | RuleAction::Redirect(_) | RuleAction::Drop => None,
        }
    }
}

/// The action of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterAction {
    /// Lets packets pass.
    Permit,
    /// Drops them.
    Deny,
}

/// A stateless filter that sees packets as the inside does, before translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterRule {
    /// The source is the inside in both directions.
    pub matches: Match,
    /// What to do.
    pub action: FilterAction,
    /// From inside to outside.
    pub out: bool,
    /// From outside to inside.
    pub back: bool,
    /// Record denied packets, and sessions opened by permitted ones.
    pub log: bool,
}

/// Passes an unsupported protocol untranslated: outbound as written, inbound mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassRule {
    /// The realm; `None` for any.
    pub realm: Option<RealmId>,
    /// IP protocol; never TCP, UDP or ICMP.
    pub protocol: u8,
    /// Inside addresses.
    pub inside: Prefix,
    /// Outside addresses.
    pub outside: Prefix,
}

impl PassRule {
    /// The packets it passes.
    pub fn matches(&self) -> Match {
        let (source, destination) = (self.inside, self.outside);
        Match { realm: self.realm, protocol: Some(self.protocol), source, destination, ..Match::ALL }
    }
}

/// Timers; the defaults are at or above the RFCs' bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP mappings and sessions (RFC 4787 §4.3 REQ-5: at least 120 s, 300 s recommended).
    pub udp: Duration,
    /// UDP sessions until a packet comes back; no effect at `udp` or more.
    pub udp_unanswered: Duration,
    /// Partially open TCP session (RFC 5382 §5 REQ-5, RFC 7857 §2.1: at least 240 s recommended).
    pub tcp_opening: Duration,
    /// Established idle TCP session (RFC 5382 §5 REQ-5: at least 7440 s).
    pub tcp_established: Duration,
    /// Closing TCP session, and an established one after its idle time or a RST (RFC 7857 §2.1,
    /// §2.2: 240 s).
    pub tcp_closing: Duration,
    /// ICMP query session (RFC 5508 §3.2 REQ-2: at least 60 s).
    pub icmp: Duration,
    /// Until an unsolicited SYN is answered (RFC 5382 §4.3 REQ-4: 6 s).
    pub unsolicited_syn: Duration,
    /// State of an incomplete datagram (RFC 6146 §3.4: at least 2 s).
    pub fragment: Duration,
    /// Use of the fullest pool above which idle times shrink, down to the RFCs' bounds at 100.
    pub adapt_above_percent: Option<u8>,
}

impl Timeouts {
    /// After this time without packets all sessions, fragments and held SYNs are gone.
    pub fn longest(&self) -> Duration {
        let idle = [self.udp, self.icmp, self.tcp_opening, self.tcp_established];
        let idle = idle.into_iter().max().unwrap_or(Duration::ZERO);
        idle + self.tcp_closing + self.unsolicited_syn + self.fragment
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            udp: Duration::from_secs(300),
            udp_unanswered: Duration::from_secs(300),
            tcp_opening: Duration::from_secs(240),
            tcp_established: Duration::from_secs(7_440),
            tcp_closing: Duration::from_secs(240),
            icmp: Duration::from_secs(60),
            unsolicited_syn: Duration::from_secs(6),
            fragment: Duration::from_secs(2),
            adapt_above_percent: None,
        }
    }
}

/// Mappings on removed addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removed {
    /// Stay until they end by themselves, or the drain time is over.
    #[default]
    Drain,
    /// They end with the change.
    End,
}

/// How a reload treats existing mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadPolicy {
    /// Mappings on removed addresses.
    pub removed: Removed,
    /// Lifetime of mappings on draining addresses; `None`: while they are used.
    pub drain_time: Option<Duration>,
}

/// Bounds of one worker's tables, allocated at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Mappings, at most `MappingIndex::COUNT_MAX`.
    pub mappings_max: u32,
    /// Sessions beyond the first of their mapping.
    pub extra_sessions_max: u32,
    /// Sessions of one mapping (RFC 6888 REQ-5).
    pub sessions_per_mapping_max: u32,
    /// Endpoint-dependent translations.
    pub flows_max: u32,
    /// Subscribers with at least one mapping.
    pub subscribers_max: u32,
    /// Fragmented datagrams tracked at once.
    pub fragmented_datagrams_max: u32,
    /// Fragments held until the first one of their datagram arrives.
    pub fragments_held_max: u32,
    /// Unsolicited SYNs that are held.
    pub unsolicited_syns_max: u32,
    /// Ports held down (RFC 6888 REQ-8).
    pub held_ports_max: u32,
    /// Of the whole instance: present, future, and removed but draining. At least as many as the
    /// pools have.
    pub external_addresses_max: u32,
}

impl Limits {
    /// Default number of held-down ports: costs little compared to the mappings.
    pub const fn held_ports_for(mappings_max: u32) -> u32 {
        match mappings_max / 16 {
            0..65_536 => 65_536,
            share @ 65_536..500_000 => share,
            _ => 500_000,
        }
    }

    /// Grants of port control and ALGs.
    pub const fn grants_max(&self) -> u32 {
        match self.mappings_max / 8 {
            few @ 0..65_536 => few,
            _ => 65_536,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            mappings_max: 1_000_000,
            extra_sessions_max: 500_000,
            sessions_per_mapping_max: 4_096,
            flows_max: 0,
            subscribers_max: 100_000,
            fragmented_datagrams_max: 4_096,
            fragments_held_max: 1_024,
            unsolicited_syns_max: 4_096,
            held_ports_max: Limits::held_ports_for(1_000_000),
            external_addresses_max: 0,
        }
    }
}

/// How IPv6 hosts reach IPv4: NAT64 (RFC 6146) and DS-Lite (RFC 6333).
///
/// A host number replaces the IPv4 address of a subscriber, so a pool serves the hosts of its
/// realms if its subscribers include [`Transition::HOSTS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Translation prefixes.
    pub nat64: Vec<Nat64>,
    /// Ends of softwires.
    pub softwires: Vec<Softwire>,
    /// Hosts that share this many leading bits, 32 to 128, are one subscriber.
    pub prefix_length: u8,
    /// Hosts and their subscribers, per worker.
    pub hosts_max: u32,
    /// Hosts of one subscriber at a time.
    pub hosts_per_subscriber_max: u32,
    /// Blocks that replace IPv6 prefixes in rules, filters and classes; see
    /// [`crate::stand_in::stand_ins`].
    pub stand_ins: Vec<StandIn>,
}

impl Transition {
    /// The IPv6 prefix that this block of a rule, filter or class stands for.
    pub fn prefix6_of(&self, block: Prefix) -> Option<Prefix6> {
        if !Prefix::HOSTS.contains(block.address()) {
            return None;
        }
        self.stand_ins.iter().find(|one| one.block == block).map(|one| one.prefix)
    }

    /// The block that stands for this prefix.
    pub fn block_of(&self, prefix: Prefix6) -> Option<Prefix> {
        let found = self.stand_ins.binary_search_by_key(&prefix, |one| one.prefix).ok()?;
        self.stand_ins.get(found).map(|one| one.block)
    }

    /// As text; a block as its IPv6 prefix.
    pub fn shown(&self, prefix: Prefix) -> String {
        self.prefix6_of(prefix).map_or_else(|| prefix.to_string(), |prefix6| prefix6.to_string())
    }

    /// All host numbers.
    pub const HOSTS: Prefix = Prefix::HOSTS;

    /// Most translation prefixes, and most ends of softwires: a host identifies its own by 8 bits,
    /// of which two values mean something else.
    pub const TABLES_MAX: usize = 254;

    /// No IPv6 host reaches IPv4.
    pub fn is_off(&self) -> bool {
        self.nat64.is_empty() && self.softwires.is_empty()
    }
}

impl Default for Transition {
    fn default() -> Transition {
        Transition {
            nat64: Vec::new(),
            softwires: Vec::new(),
            prefix_length: 56,
            hosts_max: 200_000,
            hosts_per_subscriber_max: 1_024,
            stand_ins: Vec::new(),
        }
    }
}

/// A NAT64 translation prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat64 {
    /// Embeds IPv4 addresses (RFC 6052).
    pub prefix: translate::Prefix,
    /// Realm of the hosts.
    pub realm: RealmId,
    /// IPv6 packets of this size, at least 1,280, reach every host: IPv4 packets that may be
    /// fragmented are cut to it (RFC 7915 §4.1).
    pub lowest_mtu6: u16,
}

/// The end of one realm's softwires (RFC 6333 §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Softwire {
    /// AFTR address.
    pub aftr: Ipv6Addr,
    /// Realm of the hosts.
    pub realm: RealmId,
    /// Sources permitted inside the softwires.
    pub inner: Vec<Prefix>,
    /// Permitted softwire sources; empty for all.
    pub subscribers: Vec<Prefix6>,
}

/// Limits of one subscriber (RFC 6888 REQ-4, REQ-5), by default unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberLimits {
    /// Ports and query identifiers, by [`Protocol::index`]; [`u32::MAX`] for no limit.
    pub ports_max: [u32; Protocol::COUNT],
    /// Sessions of all mappings; [`u32::MAX`] for no limit.
    pub sessions_max: u32,
    /// Bytes of state, counted as in [`crate::policy::class`]; [`u64::MAX`] for no limit.
    pub memory_max: u64,
    /// New mappings (RFC 6888 REQ-4c).
    pub new_mappings: Option<Rate>,
    /// New sessions in existing mappings, opened from either side (RFC 6888 REQ-5b).
    pub new_sessions: Option<Rate>,
    /// When the subscriber's use is reported.
    pub threshold: Option<Threshold>,
    /// Guaranteed ports and query identifiers, by [`Protocol::index`]. Only for classes, in pools
    /// with single ports and paired pooling.
    pub reserved_ports: [u32; Protocol::COUNT],
    /// What happens if a subscriber keeps exceeding these limits.
    pub penalty: Option<Penalty>,
}

/// A penalty pool for subscribers with too many refused packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The pool of their new mappings.
    pub pool: PoolId,
    /// Packets from inside refused by the subscriber's own limits, at least 1.
    pub refusals: u32,
    /// Within this time, counted from the first of them.
    pub window: Duration,
    /// Ends the penalty after this time without such a refusal.
    pub release: Duration,
}

impl Default for SubscriberLimits {
    fn default() -> SubscriberLimits {
        SubscriberLimits {
            ports_max: [u32::MAX; Protocol::COUNT],
            sessions_max: u32::MAX,
            memory_max: u64::MAX,
            new_mappings: None,
            new_sessions: None,
            threshold: None,
            reserved_ports: [0; Protocol::COUNT],
            penalty: None,
        }
    }
}

/// A class of subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Configured name.
    pub name: String,
    /// Inside prefixes; the longest match over all classes wins.
    pub subscribers: Vec<Prefix>,
    /// Inside realms; empty means all.
    pub realms: Vec<RealmId>,
    /// Limits of each of its subscribers.
    pub limits: SubscriberLimits,
    /// The gateways of this class; `None`: those that serve everyone.
    pub gateways: Option<Vec<alg::AlgId>>,
}

/// A rate with a burst, each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Average a second.
    pub per_second: u32,
    /// Largest burst after a pause.
    pub burst: u32,
}

/// Percent of a limit: reported from `high` up, cleared from `low` down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// 1 to 100.
    pub high_percent: u8,
    /// Below `high_percent`.
    pub low_percent: u8,
}

/// Idle time of sessions by destination port; for TCP, of established ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTimeout {
    /// UDP or TCP.
    pub protocol: Protocol,
    /// Destination ports, as seen from inside.
    pub ports: core::ops::RangeInclusive<u16>,
    /// RFC 4787 §4.3 REQ-5a: below 120 s only for ports 0-1023.
    pub idle: Duration,
}

/// ICMP messages that Natrix originates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpPolicy {
    /// Errors out of inside interfaces (RFC 5508 §6 REQ-9).
    pub errors_to_inside: bool,
    /// Errors out of outside interfaces.
    pub errors_to_outside: bool,
    /// Errors per second from one worker (RFC 1812 §4.3.2.8).
    pub errors_per_second_max: u32,
    /// Errors per second from one worker to one destination address.
    pub errors_per_second_per_destination_max: u32,
    /// Type 3 code if no mapping can be made: 1 (RFC 6888 REQ-11b), 13 (RFC 5508 REQ-8), or `None`
    /// for silence.
    pub no_resources_code: Option<u8>,
    /// Answer echo requests to Natrix's own interface addresses.
    pub answer_echo: bool,
}

impl Default for IcmpPolicy {
    fn default() -> IcmpPolicy {
        IcmpPolicy {
            errors_to_inside: true,
            errors_to_outside: true,
            errors_per_second_max: 1_000,
            errors_per_second_per_destination_max: 20,
            no_resources_code: Some(1),
            answer_echo: true,
        }
    }
}

/// Address space is reserved for this many, per worker.
pub const CONTROL_SESSIONS_CEILING: u32 = 1 << 18;

/// An application-level gateway (RFC 2663 §2.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its protocol.
    pub alg: alg::AlgId,
    /// Ports of its servers.
    pub ports: Vec<u16>,
    /// Ignored commands, by position in [`alg::Alg::commands`].
    pub disabled: u8,
    /// Names of the pools it serves; empty means all.
    pub pools: Vec<String>,
    /// Subscribers whose class lists no gateways are served, too.
    pub serves_everyone: bool,
    /// Expectations of one subscriber, over all gateways.
    pub expectations_per_subscriber: u32,
    /// An unused expectation ends after this time.
    pub timeout: Duration,
}

impl Gateway {
    /// The protocol's defaults.
    pub fn new(alg: alg::AlgId) -> Gateway {
        Gateway {
            alg,
            ports: alg.alg().map(|alg| alg.ports().to_vec()).unwrap_or_default(),
            disabled: 0,
            pools: Vec::new(),
            serves_everyone: true,
            expectations_per_subscriber: 64,
            timeout: Duration::from_secs(30),
        }
    }
}

/// External ports on request (RFC 6887, RFC 6886).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortControl {
    /// PCP is answered.
    pub pcp: bool,
    /// NAT-PMP is answered.
    pub nat_pmp: bool,
    /// Bounds of what is granted; NAT-PMP never gets more than it asks for.
    pub lifetime_min: Duration,
    /// See `lifetime_min`.
    pub lifetime_max: Duration,
    /// Grants of one inside address.
    pub mappings_per_subscriber: u32,
    /// Addresses that may ask for others (RFC 6887 §13.1).
    pub third_party: Vec<Prefix>,
}

impl Default for PortControl {
    fn default() -> PortControl {
        PortControl {
            pcp: false,
            nat_pmp: false,
            lifetime_min: Duration::from_secs(120),
            lifetime_max: Duration::from_secs(24 * 60 * 60),
            mappings_per_subscriber: 64,
            third_party: Vec::new(),
        }
    }
}
