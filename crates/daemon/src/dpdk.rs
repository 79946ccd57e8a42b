//! `natrix run` on DPDK ports.

use core::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use config::Config;
use config::DriverKind;
use config::Hugepages;
use nat::types::InterfaceId;
use packet_io::Claims;
use packet_io::PortIndex;
use packet_io::dpdk;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::DpdkNotice;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;

use crate::claims;
use crate::log::Log;
use crate::machine::NarrowDevice;
use crate::machine::mtu_of;
use crate::run::Opened;
use crate::run::RunError;
use crate::run::run_on;

/// Runs an instance on the ports of its configuration until SIGTERM or SIGINT. Once per process.
/// `claims` are those of its devices.
///
/// # Errors
/// [`RunError`] says why it did not come up.
pub fn run(config: &Config, config_path: &Path, version: &str, claims: &Claims) -> Result<(), RunError> {
    let open = |config: &Config, log: Log| {
        claims::warnings(claims, config).iter().for_each(|warning| log.warn(warning));
        open(config, log)
    };
    run_on(config, config_path, version, open, dpdk::register_thread)
}

fn open(config: &Config, log: Log) -> Result<Opened<DpdkIo>, Box<dyn Error + Send + Sync>> {
    let port = |port: &config::Port| DpdkPort {
        device: port.driver.clone(),
        is_pci: port.kind == DriverKind::Pci,
        mtu: port.mtu,
        rx_descriptors: port.rx_descriptors,
        tx_descriptors: port.tx_descriptors,
    };
    let settings = DpdkSettings {
        ports: config.ports.iter().map(port).collect(),
        workers: config.workers.count,
        hugepages: match config.dpdk.hugepages {
            Hugepages::Auto => dpdk::Hugepages::Auto,
            Hugepages::Off => dpdk::Hugepages::Off,
            Hugepages::Required => dpdk::Hugepages::Required,
        },
        memory_bytes: config.dpdk.memory_bytes,
        buffers: config.dpdk.buffers,
    };
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))?;
    }
    let ios = dpdk::start_patiently(&settings, &mut |waiting| {
        if waiting.looks == 0 {
            log.info(waiting);
        }
        !is_over.load(Ordering::Relaxed)
    })?;
    if let Some(io) = ios.first() {
        let is_with_ipv6 = |index: usize| {
            let interface = InterfaceId(index as u16);
            config.nat.ipv6.addresses.iter().any(|own| own.interface == interface)
        };
        let with_ipv6 = config.interfaces.iter().enumerate().filter(|(index, _)| is_with_ipv6(*index));
        for (index, port) in config.ports.iter().enumerate() {
            let index = PortIndex(index as u16);
            if !with_ipv6.clone().any(|(_, link)| link.port == index.index()) {
                continue;
            }
            // Virtual devices that have no such setting filter nothing.
            if let Err(reason) = io.receive_groups(index)
                && port.kind == DriverKind::Pci
            {
                let device = &port.driver;
                log.warn(&format_args!(
                    "port {device}: may lose IPv6, for its driver can receive neither all groups nor all frames \
                     ({reason}); neighbours find Natrix only if the card does not filter groups"
                ));
            }
        }
    }
    for narrow in config.ports.iter().filter_map(|port| NarrowDevice::of(port, mtu_of)) {
        log.warn(&narrow);
    }
    let mut missed_bytes = 0;
    for notice in ios.first().map(DpdkIo::notices).unwrap_or_default() {
        match notice {
            // Said once for buffers and tables together, when the tables are there too.
            DpdkNotice::NoHugepages { needed, .. } => missed_bytes = needed << 20,
            DpdkNotice::FewQueues { .. } | DpdkNotice::QueuesUnserved { .. } => log.warn(notice),
        }
    }
    Ok(Opened { ios, missed_bytes })
}
