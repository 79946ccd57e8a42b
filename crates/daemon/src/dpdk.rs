//! `natrix run` on DPDK ports.

use core::error::Error;
use std::path::Path;

use config::Config;
use config::DriverKind;
use config::Hugepages;
use packet_io::dpdk;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::DpdkNotice;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;

use crate::log::Log;
use crate::run::Opened;
use crate::run::RunError;
use crate::run::run_on;

/// Runs an instance on the ports of its configuration until SIGTERM or SIGINT. Once per process.
///
/// # Errors
/// [`RunError`] says why it did not come up.
pub fn run(config: &Config, config_path: &Path, version: &str) -> Result<(), RunError> {
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
    let ios = dpdk::start(&settings)?;
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
