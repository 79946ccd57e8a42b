//! What `/sys` and `/proc` say about this machine.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::path::PathBuf;

/// The files of a machine below a folder, which is `/` except in tests.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(root: &Path) -> Files {
        Files(root.to_owned())
    }

    /// The text of a file without white space at its ends; empty if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn number(&self, path: &str) -> u64 {
        self.text(path).parse().unwrap_or(0)
    }

    /// Hugepages that are neither used nor asked for.
    pub(crate) fn free_hugepages(&self) -> FreeHugepages {
        let number = |kib: u64, name: &str| self.number(&format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}"));
        let free = |kib: u64| number(kib, "free_hugepages").saturating_sub(number(kib, "resv_hugepages"));
        let (small, large) = (free(PAGE_2M_KIB), free(PAGE_1G_KIB));
        let small_in_use = number(PAGE_2M_KIB, "nr_hugepages").saturating_sub(small);
        FreeHugepages { small, large, small_in_use }
    }

    /// Receive queues of an interface; 0 if the number is not known.
    pub(crate) fn receive_queues(&self, interface: &str) -> usize {
        let queues = self.names(&format!("sys/class/net/{interface}/queues"));
        queues.iter().filter(|name| name.starts_with("rx-")).count()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Names in a folder, sorted.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a link leads to.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.0.join(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// A field of a file with lines `name: value`.
    pub(crate) fn field(&self, path: &str, name: &str) -> String {
        let text = self.text(path);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }
}

/// Size of a small hugepage.
pub(crate) const PAGE_2M_KIB: u64 = 2 << 10;
const PAGE_1G_KIB: u64 = 1 << 20;

/// Free hugepages by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeHugepages {
    /// Of 2 MiB.
    pub(crate) small: u64,
    /// Of 1 GiB.
    pub(crate) large: u64,
    /// Pages of 2 MiB that are not free: they count in the kernel's setting, too.
    pub(crate) small_in_use: u64,
}

impl FreeHugepages {
    pub(crate) fn bytes(self) -> u64 {
        (self.small * PAGE_2M_KIB + self.large * PAGE_1G_KIB) << 10
    }
}

/// The command that leaves an interface as many queues as have an AF_XDP socket. A virtual cable
/// has queues of each direction, and never more than one socket.
pub(crate) fn queues_command(interface: &str, served: usize, is_virtual_cable: bool) -> String {
    match is_virtual_cable {
        true => format!("ethtool -L {interface} rx 1 tx 1"),
        false => format!("ethtool -L {interface} combined {served}"),
    }
}

/// A network interface of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// PCI address; None for virtual ones.
    pub(crate) pci: Option<String>,
    /// The kernel's driver; None for virtual ones.
    pub(crate) driver: Option<String>,
    /// IPv4 addresses with prefix lengths.
    pub(crate) addresses: Vec<(Ipv4Addr, u8)>,
}

/// Interfaces besides loopback, with `addresses` by name.
pub(crate) fn devices(files: &Files, addresses: &BTreeMap<String, Vec<(Ipv4Addr, u8)>>) -> Vec<Device> {
    let names = files.names("sys/class/net").into_iter();
    let device = |name: String| {
        let at = |file: &str| format!("sys/class/net/{name}/{file}");
        let pci = files.link(&at("device")).filter(|device| is_pci(device));
        Device {
            driver: files.link(&at("device/driver")),
            pci,
            addresses: addresses.get(&name).cloned().unwrap_or_default(),
            name,
        }
    };
    names.filter(|name| name != "lo" && name != "bonding_masters").map(device).collect()
}

/// True for `0000:3b:00.0`.
pub(crate) fn is_pci(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 12 && bytes[4] == b':' && bytes[7] == b':' && bytes[10] == b'.'
}

/// IPv4 addresses of this machine by interface.
pub(crate) fn own_addresses() -> BTreeMap<String, Vec<(Ipv4Addr, u8)>> {
    let mut found: BTreeMap<String, Vec<(Ipv4Addr, u8)>> = BTreeMap::new();
    for entry in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let ip = |address: Option<nix::sys::socket::SockaddrStorage>| Some(address?.as_sockaddr_in()?.ip());
        if let (Some(address), Some(mask)) = (ip(entry.address), ip(entry.netmask)) {
            found.entry(entry.interface_name).or_default().push((address, mask.to_bits().count_ones() as u8));
        }
    }
    found
}

/// Interface and next hop of the kernel's default route.
pub(crate) fn default_route(files: &Files) -> Option<(String, Ipv4Addr)> {
    let table = files.text("proc/net/route");
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, destination, gateway) = (fields.next()?, fields.next()?, fields.next()?);
        let mask = fields.nth(4)?;
        let hop = u32::from_str_radix(gateway, 16).ok().filter(|hop| *hop != 0)?;
        // The kernel prints addresses as numbers in its own byte order.
        (destination == "00000000" && mask == "00000000")
            .then(|| (name.to_owned(), Ipv4Addr::from_bits(u32::from_be_bytes(hop.to_ne_bytes()))))
    })
}

/// Numbers of a list such as `0,2-5`.
pub(crate) fn numbers(list: &str) -> Vec<u16> {
    let part = |part: &str| -> Option<core::ops::RangeInclusive<u16>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(part).flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering;

    use super::*;

    /// A folder with these files, which is deleted when dropped.
    pub(crate) struct Tree(pub(crate) PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            // Several tests that run side by side may use the same name.
            static TREES: AtomicU32 = AtomicU32::new(0);
            let number = TREES.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("natrix-machine-{}-{number}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }

        pub(crate) fn files(&self) -> Files {
            Files::new(&self.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_default_route_is_found_among_others() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                     eth0\t000A0A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                     eth1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n";
        let tree = Tree::new("route", &[("proc/net/route", table)]);
        assert_eq!(default_route(&tree.files()), Some(("eth1".to_owned(), Ipv4Addr::new(192, 0, 2, 1))));
    }

    #[test]
    fn interfaces_have_their_kind_and_addresses() {
        let tree = Tree::new(
            "devices",
            &[
                ("sys/class/net/lo/ifindex", "1"),
                ("sys/class/net/eth0/ifindex", "2"),
                ("sys/class/net/veth/ifindex", "3"),
            ],
        );
        std::os::unix::fs::symlink("../../../0000:3b:00.0", tree.0.join("sys/class/net/eth0/device")).unwrap();
        let own = BTreeMap::from([("eth0".to_owned(), vec![(Ipv4Addr::new(192, 0, 2, 2), 30)])]);
        let found = devices(&tree.files(), &own);
        let seen: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.pci.as_deref())).collect();
        assert_eq!(seen, [("eth0", Some("0000:3b:00.0")), ("veth", None)]);
        assert_eq!(found[0].addresses, own["eth0"]);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(numbers("0,2-5\n"), [0, 2, 3, 4, 5]);
        assert_eq!(numbers(""), [0_u16; 0]);
    }
}
