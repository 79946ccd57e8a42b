//! The standard topology of the conformance tests.
//!
//! ```text
//!  I1 100.64.0.10 ─┐                                                       ┌─ E1 198.51.100.1
//!  I2 100.64.0.11 ─┤ 100.64.0.1 ┌─────────┐ 192.0.2.1                      ├─ E2 198.51.100.2
//!  I3 100.64.0.12 ─┼────────────┤ Natrix  ├────────────── router 192.0.2.2 ┴─ everything else
//!  router    .0.2 ─┘            └─────────┘
//!  (100.64.0.0/10 behind it)     pool 203.0.113.1, 203.0.113.2, 203.0.113.129
//! ```

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Settings;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::MappingKind;
use nat::settings::PassRule;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Route;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::settings::Timeouts;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Protocol;
use nat::types::RealmId;
use nat::types::Side;

/// Subscriber A.
pub const I1: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 10);
/// Subscriber B.
pub const I2: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 11);
/// Subscriber C.
pub const I3: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 12);
/// First external host.
pub const E1: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Second external host.
pub const E2: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Natrix's own address inside.
pub const OWN_INSIDE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
/// The router in front of the subscribers outside 100.64.0.0/24.
pub const INSIDE_ROUTER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);
/// Natrix's own address outside.
pub const OWN_OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The default router.
pub const OUTSIDE_ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The external addresses, deliberately not contiguous.
pub const POOL: [Ipv4Addr; 3] =
    [Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2), Ipv4Addr::new(203, 0, 113, 129)];

/// The inside interface of [`settings`].
pub const INSIDE: InterfaceId = InterfaceId(0);
/// The outside interface of [`settings`].
pub const OUTSIDE: InterfaceId = InterfaceId(1);

/// An endpoint, short enough to read in a test.
pub const fn at(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}

/// The standard topology with default timers and ports 1024 to 65535.
pub fn settings() -> Settings {
    Settings {
        interfaces: vec![
            Interface {
                name: "inside".into(),
                side: Side::Inside,
                realm: RealmId::default(),
                addresses: vec![InterfaceAddress { address: OWN_INSIDE, prefix_length: 24 }],
                mtu: 1500,
            },
            Interface {
                name: "outside".into(),
                side: Side::Outside,
                realm: RealmId::default(),
                addresses: vec![InterfaceAddress { address: OWN_OUTSIDE, prefix_length: 24 }],
                mtu: 1500,
            },
        ],
        routes: vec![
            Route { prefix: prefix([100, 64, 0, 0], 10), next_hop: INSIDE_ROUTER, interface: INSIDE },
            Route { prefix: Prefix::ALL, next_hop: OUTSIDE_ROUTER, interface: OUTSIDE },
        ],
        pools: vec![Pool {
            name: "main".into(),
            addresses: POOL.to_vec(),
            subscribers: vec![prefix([100, 64, 0, 0], 10)],
            ..Pool::default()
        }],
        limits: Limits {
            mappings_max: 200_000,
            extra_sessions_max: 200_000,
            subscribers_max: 20_000,
            fragmented_datagrams_max: 256,
            fragments_held_max: 64,
            unsolicited_syns_max: 64,
            ..Limits::default()
        },
        ..Settings::default()
    }
}

/// A prefix from literals.
///
/// # Panics
/// When the length is over 32.
pub fn prefix(address: [u8; 4], length: u8) -> Prefix {
    Prefix::new(address.into(), length).expect("prefix length is at most 32")
}

/// Variants of settings, to be chained: `settings().short_timers().mtu(1500, 1400)`.
pub trait Variants: Sized {
    /// Filtering of all protocols.
    #[must_use]
    fn filtering(self, filtering: Filtering) -> Self;
    /// Filtering of one protocol.
    #[must_use]
    fn filtering_of(self, protocol: Protocol, filtering: Filtering) -> Self;
    /// Pooling of all pools.
    #[must_use]
    fn pooling(self, pooling: Pooling) -> Self;
    /// External ports of all pools.
    #[must_use]
    fn ports(self, first: u16, last: u16) -> Self;
    /// Ports never given out.
    #[must_use]
    fn reserved(self, ports: &[u16]) -> Self;
    /// External addresses of the first pool.
    #[must_use]
    fn addresses(self, addresses: &[Ipv4Addr]) -> Self;
    /// Keeps the parity of ports.
    #[must_use]
    fn parity(self) -> Self;
    /// All idle times 10 s but established TCP, 30 s.
    #[must_use]
    fn short_timers(self) -> Self;
    /// Timers.
    #[must_use]
    fn timers(self, change: impl FnOnce(&mut Timeouts)) -> Self;
    /// Bounds of the tables.
    #[must_use]
    fn limits(self, change: impl FnOnce(&mut Limits)) -> Self;
    /// MTU inside and outside.
    #[must_use]
    fn mtu(self, inside: u16, outside: u16) -> Self;
    /// UDP and ICMP from outside refresh too.
    #[must_use]
    fn inbound_refresh(self) -> Self;
    /// Flows to these destinations and ports are translated endpoint-dependently, ten thousand of
    /// them at most.
    #[must_use]
    fn endpoint_dependent(self, destination: Prefix, ports: (u16, u16)) -> Self;
    /// What is sent to these destinations goes elsewhere, in ten thousand flows at most.
    #[must_use]
    fn redirected(self, destination: Prefix, ports: (u16, u16), redirection: Redirection) -> Self;
    /// One more rule.
    #[must_use]
    fn rule(self, matches: Match, action: RuleAction) -> Self;
    /// One more filter, of both directions.
    #[must_use]
    fn filter(self, matches: Match, action: FilterAction) -> Self;
    /// Lets a protocol through untranslated.
    #[must_use]
    fn pass(self, protocol: u8, inside: Prefix, outside: Prefix) -> Self;
}

impl Variants for Settings {
    fn filtering(mut self, filtering: Filtering) -> Settings {
        for pool in &mut self.pools {
            pool.filtering = [filtering; Protocol::COUNT];
        }
        self
    }

    fn filtering_of(mut self, protocol: Protocol, filtering: Filtering) -> Settings {
        for pool in &mut self.pools {
            pool.filtering[protocol.index()] = filtering;
        }
        self
    }

    fn pooling(mut self, pooling: Pooling) -> Settings {
        for pool in &mut self.pools {
            pool.pooling = pooling;
        }
        self
    }

    fn ports(mut self, first: u16, last: u16) -> Settings {
        for pool in &mut self.pools {
            (pool.port_min, pool.port_max) = (first, last);
        }
        self
    }

    fn reserved(mut self, ports: &[u16]) -> Settings {
        for pool in &mut self.pools {
            pool.reserved_ports = ports.to_vec();
        }
        self
    }

    fn addresses(mut self, addresses: &[Ipv4Addr]) -> Settings {
        if let Some(pool) = self.pools.first_mut() {
            pool.addresses = addresses.to_vec();
        }
        self
    }

    fn parity(mut self) -> Settings {
        for pool in &mut self.pools {
            pool.parity = true;
        }
        self
    }

    fn short_timers(self) -> Settings {
        self.timers(|timeouts| {
            let short = Duration::from_secs(10);
            timeouts.udp = short;
            timeouts.icmp = short;
            timeouts.tcp_opening = short;
            timeouts.tcp_closing = short;
            timeouts.tcp_established = Duration::from_secs(30);
        })
    }

    fn timers(mut self, change: impl FnOnce(&mut Timeouts)) -> Settings {
        change(&mut self.timeouts);
        self
    }

    fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Settings {
        change(&mut self.limits);
        self
    }

    fn mtu(mut self, inside: u16, outside: u16) -> Settings {
        for interface in &mut self.interfaces {
            interface.mtu = match interface.side {
                Side::Inside => inside,
                Side::Outside => outside,
            };
        }
        self
    }

    fn inbound_refresh(mut self) -> Settings {
        self.inbound_refresh = true;
        self
    }

    fn endpoint_dependent(mut self, destination: Prefix, (first, last): (u16, u16)) -> Settings {
        let matches = Match { destination, destination_ports: PortRange { first, last }, ..Match::ALL };
        self.limits.flows_max = 10_000;
        self.rule(matches, RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent })
    }

    fn redirected(mut self, destination: Prefix, (first, last): (u16, u16), redirection: Redirection) -> Settings {
        let matches = Match { destination, destination_ports: PortRange { first, last }, ..Match::ALL };
        let id = RedirectionId(self.redirections.len() as u32);
        self.redirections.push(redirection);
        self.limits.flows_max = 10_000;
        self.rule(matches, RuleAction::Redirect(id))
    }

    fn rule(mut self, matches: Match, action: RuleAction) -> Settings {
        self.rules.push(Rule { matches, action });
        self
    }

    fn filter(mut self, matches: Match, action: FilterAction) -> Settings {
        self.filters.push(FilterRule { matches, action, out: true, back: true, log: false });
        self
    }

    fn pass(mut self, protocol: u8, inside: Prefix, outside: Prefix) -> Settings {
        self.pass_rules.push(PassRule { realm: None, protocol, inside, outside });
        self
    }
}
