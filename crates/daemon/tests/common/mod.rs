//! A small configuration for tests of whole instances.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use core::net::Ipv4Addr;
use std::path::Path;

use config::Config;
use config::Control;
use config::Dpdk;
use config::DriverKind;
use config::Hugepages;
use config::InterfaceLink;
use config::Log;
use config::LogFormat;
use config::LogLevel;
use config::Port;
use config::Source;
use config::Workers;
use nat::Settings;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;

/// Inside 10.0.0.1/24, outside 10.0.1.1/24, one pool address 10.0.1.9, two workers, the control
/// socket in `directory`.
pub(crate) fn configuration(directory: &Path) -> Config {
    let interface = |name: &str, side, third| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address: Ipv4Addr::new(10, 0, third, 1), prefix_length: 24 }],
        mtu: 1_500,
    };
    let port = |name: &str| Port {
        name: name.to_owned(),
        driver: "memory".to_owned(),
        kind: DriverKind::Virtual,
        mtu: 1_500,
        rx_descriptors: 512,
        tx_descriptors: 512,
    };
    Config {
        nat: Settings {
            interfaces: vec![interface("lan", Side::Inside, 0), interface("wan", Side::Outside, 1)],
            pools: vec![Pool {
                name: "a".to_owned(),
                addresses: vec![Ipv4Addr::new(10, 0, 1, 9)],
                subscribers: vec![Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 24).expect("a prefix")],
                ..Pool::default()
            }],
            limits: Limits { mappings_max: 100, extra_sessions_max: 100, subscribers_max: 10, ..Limits::default() },
            ..Settings::default()
        },
        ports: vec![port("lan"), port("wan")],
        interfaces: vec![InterfaceLink { port: 0, vlan: None }, InterfaceLink { port: 1, vlan: None }],
        kernel: vec![None, None],
        kernel_tables: vec![None, None],
        workers: Workers { count: 2, cpus: Vec::new() },
        totals: config::Totals::default(),
        dpdk: Dpdk { hugepages: Hugepages::Off, memory_bytes: 0, buffers: 0 },
        control: Control { socket: directory.join("control.sock"), mode: 0o600, audit: directory.join("audit.jsonl") },
        http: None,
        snmp: None,
        grants_file: None,
        log: Log { level: LogLevel::Error, format: LogFormat::default() },
        event_log: None,
        log_sinks: Vec::new(),
        warnings: Vec::new(),
        source: Source::default(),
    }
}
