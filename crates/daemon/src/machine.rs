//! The resources of the machine, to check a configuration before anything is allocated.

use core::fmt;
use std::fs;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use config::DriverKind;
use config::Machine;
use config::Port;
use mem::Stock;
use packet_io::driver_of;

/// CPUs and memory of this machine, as far as known.
pub fn this_machine() -> Machine {
    Machine { cpus: cpus(), memory: Some(Stock::of_this_machine()), has_folders: true }
}

/// Makes the folder of a file if it is one that the unit of the package would have made. If that
/// fails, so does making the file.
pub(crate) fn make_folder_of(file: &Path) {
    let of_package = [config::LOG_FOLDER, config::STATE_FOLDER].map(Path::new);
    if let Some(folder) = file.parent().filter(|folder| of_package.contains(folder)) {
        let _ = DirBuilder::new().mode(0o750).create(folder);
    }
}

/// One more than the highest number of an online CPU.
fn cpus() -> Option<usize> {
    parse_cpus(&fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

fn parse_cpus(list: &str) -> Option<usize> {
    let last: usize = list.trim().rsplit([',', '-']).next()?.parse().ok()?;
    last.checked_add(1)
}

/// The MTU of a device of the kernel; none if there is no such device.
pub fn mtu_of(device: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/class/net/{device}/mtu")).ok()?.trim().parse().ok()
}

/// A device of the kernel whose MTU is smaller than that of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowDevice<'a> {
    port: &'a Port,
    device: &'a str,
    mtu: u64,
}

impl<'a> NarrowDevice<'a> {
    /// The device below a port, if it is one. `mtu_of`: of a device, if it is known. A device that
    /// DPDK makes itself gets the MTU of its port.
    pub fn of(port: &'a Port, mtu_of: impl Fn(&str) -> Option<u64>) -> Option<NarrowDevice<'a>> {
        let (driver, mut named) = driver_of(&port.driver);
        let device = named.next().filter(|_| port.kind == DriverKind::Virtual && driver != "net_tap")?;
        let mtu = mtu_of(device).filter(|mtu| *mtu < u64::from(port.mtu))?;
        Some(NarrowDevice { port, device, mtu })
    }

    /// What is wrong.
    pub fn problem(&self) -> String {
        let NarrowDevice { port, device, mtu } = self;
        let wanted = port.mtu;
        format!("{device} has the MTU {mtu}, and the interface mtu = {wanted}: larger packets are lost, uncounted")
    }

    /// What to do.
    pub fn remedy(&self) -> String {
        let NarrowDevice { port, device, mtu } = self;
        format!("ip link set {device} mtu {}; or write mtu = {mtu}", port.mtu)
    }
}

impl fmt::Display for NarrowDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: {}; {}", self.port.name, self.problem(), self.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_end_with_the_highest() {
        assert_eq!(parse_cpus("0-3\n"), Some(4));
        assert_eq!(parse_cpus("0,2-5,7\n"), Some(8));
        assert_eq!(parse_cpus("0\n"), Some(1));
        assert_eq!(parse_cpus(""), None);
    }

    #[test]
    fn a_device_narrower_than_its_port_is_found() {
        let found = |driver: &str, mtu: Option<u64>| {
            let kind = if driver.starts_with("net_") { DriverKind::Virtual } else { DriverKind::Pci };
            let (name, driver) = ("out".to_owned(), driver.to_owned());
            let port = Port { name, driver, kind, mtu: 1_500, rx_descriptors: 512, tx_descriptors: 512 };
            let of = |device: &str| mtu.filter(|_| device == "eth1");
            NarrowDevice::of(&port, of).map(|narrow| narrow.to_string())
        };
        let said = "port out: eth1 has the MTU 1300, and the interface mtu = 1500: larger packets are lost, uncounted; \
                    ip link set eth1 mtu 1500; or write mtu = 1300";
        for driver in ["net_af_packet0,iface=eth1,qpairs=2", "net_af_xdp0,iface=eth1", "net_pcap0,rx_iface=eth1"] {
            assert_eq!(found(driver, Some(1_300)).as_deref(), Some(said), "{driver}");
            assert_eq!(
                [found(driver, Some(1_500)), found(driver, Some(9_000)), found(driver, None)],
                [const { None }; 3]
            );
        }
        assert_eq!(found("net_tap0,iface=eth1", Some(1_300)), None, "it gets the MTU of the port");
        assert_eq!(found("0000:3b:00.0", Some(1_300)), None);
        assert_eq!(mtu_of("no-such-device"), None);
        assert!(mtu_of("lo").is_some_and(|mtu| mtu > 0));
    }

    #[test]
    fn this_machine_reports_its_cpus_and_memory() {
        let machine = this_machine();
        assert!(machine.cpus.is_some_and(|cpus| cpus > 0) && machine.memory.is_some());
    }
}
