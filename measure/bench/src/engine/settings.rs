//! The settings of an engine that holds the sessions.

use core::net::Ipv4Addr;

use nat::Settings;
use nat::blocks::BlockSize;
use nat::event::BackPressure;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Gateway;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::PortControl;
use nat::types::MappingIndex;
use nat::types::Prefix;

use super::Mode;
use super::Options;
use super::Ports;
use crate::traffic;
use crate::traffic::MAPPINGS_PER_SUBSCRIBER;
use crate::traffic::PORTS_PER_ADDRESS;

/// In the mixed mode: how long a new flow lives.
pub(super) const CHURN_LIFETIME: nat::Duration = nat::Duration::from_millis(10);
/// In the mixed mode: subscribers the new flows come from.
pub(super) const CHURN_SUBSCRIBERS: u32 = 4_096;
/// In the mixed mode: room for new flows that have run out and are not swept yet, beyond a quarter
/// of all.
pub(super) const CHURN_ROOM: u64 = 262_144;

/// Blocks one subscriber may have.
pub(super) const BLOCKS_PER_SUBSCRIBER_MAX: u16 = 64;
/// First port of the pool.
pub(super) const FIRST_PORT: u16 = 1_024;

/// In the mode `new`: of so many ports that the sessions need there is one more. With less,
/// addresses that got a few more subscribers than others would run full before all sessions are
/// there.
pub(super) const TIGHT_POOL_ROOM: u64 = 256;

/// Mappings one shard can have.
pub(super) const MAPPINGS_MAX: u64 = MappingIndex::COUNT_MAX as u64;

/// Ports that may rest beside so many sessions: as many as by default in a configuration.
pub(super) fn held_ports(sessions: u64) -> u32 {
    Limits::held_ports_for(u32::try_from(sessions).unwrap_or(u32::MAX))
}

/// The settings of an engine that is to hold these sessions.
pub(crate) fn settings(options: &Options) -> Settings {
    let per_protocol = options.sessions.div_ceil(2);
    // Room for the sessions and for those that the mixed mode opens while as many run out.
    let room = if options.mode == Mode::Mixed { per_protocol + per_protocol / 4 + CHURN_ROOM } else { per_protocol };
    // And for the ports of those that have run out, which rest.
    let workers = options.workers as u64;
    let held_down = if options.mode == Mode::Mixed {
        workers * u64::from(held_ports(options.sessions.div_ceil(workers)))
    } else {
        0
    };
    // When all sessions are new, hardly more ports than they need, so that they run short.
    let (addresses, ports) = match options.mode {
        Mode::New if options.allocation == Ports::Ports => {
            let needed = room + room / TIGHT_POOL_ROOM + 64;
            let addresses = needed.div_ceil(PORTS_PER_ADDRESS);
            (addresses, needed.div_ceil(addresses))
        }
        _ => {
            // A subscriber has half as many flows of a protocol as a block has ports.
            let factor = if options.allocation == Ports::Blocks { 2 } else { 1 };
            (((room + held_down) * factor).div_ceil(PORTS_PER_ADDRESS).max(1) + 1, PORTS_PER_ADDRESS)
        }
    };
    let per_worker = options.sessions.div_ceil(options.workers as u64);
    let mappings_max = match options.mode {
        Mode::Mixed => per_worker + per_worker / 4 + CHURN_ROOM,
        // One worker goes on to the last port.
        Mode::New if options.workers == 1 && options.allocation == Ports::Ports => addresses * ports * 2,
        _ => per_worker + 64,
    };
    let mut settings = Settings {
        interfaces: traffic::interfaces(),
        routes: traffic::routes(),
        pools: vec![Pool {
            name: "bench".to_owned(),
            addresses: traffic::addresses(Ipv4Addr::new(203, 0, 0, 1), addresses),
            port_min: FIRST_PORT,
            port_max: FIRST_PORT + (ports - 1) as u16,
            allocation: match options.allocation {
                Ports::Ports => Allocation::Ports,
                Ports::Blocks => Allocation::Blocks(Blocks {
                    size: BlockSize::MIN,
                    // The mixed mode opens all new flows from few subscribers.
                    per_subscriber_max: BLOCKS_PER_SUBSCRIBER_MAX,
                    idle: nat::Duration::from_secs(120),
                }),
            },
            ..Pool::default()
        }],
        limits: Limits {
            mappings_max: mappings_max.min(MAPPINGS_MAX) as u32,
            extra_sessions_max: 1_024,
            subscribers_max: (per_worker / MAPPINGS_PER_SUBSCRIBER) as u32 + CHURN_SUBSCRIBERS + 64,
            held_ports_max: held_ports(per_worker),
            ..Limits::default()
        },
        filters: filters(options.filters),
        ..Settings::default()
    };
    // What is measured is how fast events can be recorded and taken, not how refusals are.
    settings.events.back_pressure = BackPressure::Drop;
    // A sweep must not end what the benchmark calls established.
    settings.timeouts.udp = nat::Duration::from_secs(86_400);
    settings.timeouts.tcp_opening = match options.mode {
        // In the mixed mode the new flows are SYNs that nobody answers, and these run out soon.
        Mode::Mixed => CHURN_LIFETIME,
        _ => nat::Duration::from_secs(86_400),
    };
    if options.gateways {
        settings.gateways = (0..alg::ALGS.len()).map(|id| Gateway::new(alg::AlgId(id as u8))).collect();
        settings.port_control = PortControl { pcp: true, nat_pmp: true, ..settings.port_control };
    }
    options.family.extend(&mut settings);
    settings
}

/// Filters as an operator has them: many that deny services and hosts nobody here talks to, and
/// every fourth one permits what subscribers do.
pub(super) fn filters(count: u32) -> Vec<FilterRule> {
    let prefix = |address: u32, length: u8| Prefix::new(Ipv4Addr::from_bits(address), length).unwrap_or(Prefix::ALL);
    let filter = |i: u32| {
        // From 198.51.0.0 on, where none of the servers is; subscribers are in 10.0.0.0/8.
        let host = prefix(0xc633_0000 + i / 4, 32);
        let (matches, action) = match i % 4 {
            0 => (Match { source: prefix(0x0a00_0000 + i * 4, 28), ..Match::ALL }, FilterAction::Permit),
            1 => (Match { destination: host, ..Match::ALL }, FilterAction::Deny),
            2 => (
                Match {
                    protocol: Some(6),
                    destination: host,
                    destination_ports: PortRange { first: 137, last: 139 },
                    ..Match::ALL
                },
                FilterAction::Deny,
            ),
            _ => (Match { source: prefix(0x6440_0000 + i, 32), destination: host, ..Match::ALL }, FilterAction::Deny),
        };
        FilterRule { matches, action, out: true, back: true, log: false }
    };
    (0..count).map(filter).collect()
}
