//! `natrix run` on DPDK ports.

use core::error::Error;
use std::fs;
use std::path::Path;

use config::Config;
use config::DriverKind;
use config::Hugepages;
use packet_io::dpdk;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;

use crate::log::Log;
use crate::run::RunError;
use crate::run::run_on;

/// Runs an instance on the ports of its configuration until SIGTERM or SIGINT. Once per process.
///
/// # Errors
/// [`RunError`] says why it did not come up.
pub fn run(config: &Config, config_path: &Path, version: &str) -> Result<(), RunError> {
    run_on(config, config_path, version, open, dpdk::register_thread)
}

fn open(config: &Config, log: Log) -> Result<Vec<DpdkIo>, Box<dyn Error + Send + Sync>> {
    if config.dpdk.hugepages != Hugepages::Off && hugepages_free() == 0 {
        log.warn(
            &"hugepages: none are free, so tables and buffers lie on ordinary pages and packets take longer; \
              reserve some with: sysctl vm.nr_hugepages=1024",
        );
    }
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
    Ok(dpdk::start(&settings)?)
}

/// Hugepages of any size that nobody uses.
fn hugepages_free() -> u64 {
    let Ok(folders) = fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let free = |folder: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(folder.path().join("free_hugepages")).ok()?.trim().parse().ok()
    };
    folders.flatten().filter_map(free).sum()
}
