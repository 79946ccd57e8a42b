//! `natrix doctor`: what of this machine stands in the way, each with the command that mends it.

mod default_route;
mod devices;
mod event_log;
mod taken;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::io::Write;
use std::path::Path;

use cli::Align;
use cli::Doctor;
use cli::Table;
use config::Config;
use config::DriverKind;
use config::Hugepages;
use control::Fault;
use control::count_text;
use daemon::claims;
use daemon::http_group;
use daemon::kernel::setup::NeighbourTable;
use daemon::kernel::setup::neighbour_tables;
use daemon::kernel::setup::room_text;
use daemon::machine::NarrowDevice;
use serde_json::json;

use crate::data_plane;
use crate::failure::Failure;
use crate::link;
use crate::link::OtherEnd;
use crate::machine;
use crate::machine::Files;
use crate::machine::FreeHugepages;
use crate::machine::PAGE_2M_KIB;
use crate::offloads;

/// Capabilities that `natrix run` needs without being root: their names, and their bits in
/// `CapEff`.
const CAPABILITIES: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13), ("CAP_IPC_LOCK", 14)];

/// What ports with AF_XDP need besides: its library opens a program by number.
const CAPABILITY_OF_XDP: (&str, u32) = ("CAP_SYS_ADMIN", 21);
/// Driver of such ports.
const XDP: &str = "net_af_xdp";
/// How the drivers begin that open sockets on an interface of the kernel.
const SOCKETS: &str = "net_af_";
/// Driver of ports that are a TAP.
const TAP: &str = "net_tap";

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    /// Nothing is wrong, but it may not be intended.
    Note,
    Warning,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    check: String,
    level: Level,
    seen: String,
    /// What to do; empty exactly if all is well.
    remedy: String,
}

fn ok(check: &str, seen: impl Into<String>) -> Finding {
    Finding { check: check.to_owned(), level: Level::Ok, seen: seen.into(), remedy: String::new() }
}

fn finding(check: &str, level: Level, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { check: check.to_owned(), level, seen: seen.into(), remedy: remedy.into() }
}

impl Finding {
    /// The cells of its row.
    fn cells(&self) -> Vec<String> {
        let remedy = if self.remedy.is_empty() { "-" } else { &self.remedy };
        vec![self.level.name().to_owned(), self.check.clone(), self.seen.clone(), remedy.to_owned()]
    }
}

/// `natrix doctor`. Fails if something stands in the way of `natrix run`.
pub(crate) fn run(arguments: &Doctor, out: &mut dyn Write) -> Result<(), Failure> {
    let config = arguments.config.as_deref().map(data_plane::config_of).transpose()?;
    let files = Files::new(Path::new("/"));
    let mut findings =
        examine(&files, config.as_ref(), &Kernel { offloads: &offloads::active, other_end: &link::other_end });
    let of_devices = config.iter().flat_map(|config| {
        let running = claims::process_at(&config.control.socket);
        let mut found = devices::examine(&files, config, &machine::own_addresses(), running.is_some());
        found.extend(taken::check(&claims::taken(config), running));
        found
    });
    findings.extend(of_devices);
    if arguments.json {
        for one in &findings {
            let object =
                json!({ "check": one.check, "state": one.level.name(), "seen": one.seen, "remedy": one.remedy });
            writeln!(out, "{object}")?;
        }
    } else {
        let mut table = Table::new(&[
            ("STATE", Align::Left),
            ("CHECK", Align::Left),
            ("SEEN", Align::Left),
            ("WHAT TO DO", Align::Left),
        ]);
        for one in &findings {
            table.row(one.cells());
        }
        table.flush(out)?;
    }
    if findings.iter().any(|one| one.level == Level::Error) { Err(Failure::Reported) } else { Ok(()) }
}

/// What the kernel says of an interface and no file does.
struct Kernel<'a> {
    /// Which offloads it uses.
    offloads: &'a dyn Fn(&str) -> io::Result<BTreeSet<String>>,
    /// Its other end, if it is a virtual cable.
    other_end: &'a dyn Fn(&str) -> io::Result<Option<OtherEnd>>,
}

/// All checks. With a configuration they know what it needs.
fn examine(files: &Files, config: Option<&Config>, kernel: &Kernel<'_>) -> Vec<Finding> {
    let mut found = vec![privileges(files, config), hugepages(files, config), transparent(files), locked(files)];
    found.extend(ports(files, config, kernel));
    found.extend(config.into_iter().flat_map(|config| neighbours(files, config)));
    found.extend(config.and_then(|config| reverse_path(files, config)));
    found.extend(config.and_then(|config| default_route::check(files, config)));
    found.extend(config.and_then(groups));
    found.extend(config.into_iter().flat_map(event_log::check));
    found.push(clock_source(files));
    found.push(clock_is_set(files));
    found.extend(cpus(files, config));
    found
}

/// Whether a configuration has a port with a driver that begins so.
fn has_port(config: &Config, driver: &str) -> bool {
    config.ports.iter().any(|port| port.driver.starts_with(driver))
}

/// The capabilities that this process lacks, and what to do about it.
fn missing_capabilities(files: &Files, config: Option<&Config>) -> (Vec<&'static str>, &'static str) {
    let effective = u64::from_str_radix(&files.field("proc/self/status", "CapEff"), 16).unwrap_or(0);
    let has_xdp = config.is_some_and(|config| has_port(config, XDP));
    let needed = CAPABILITIES.iter().chain(has_xdp.then_some(&CAPABILITY_OF_XDP));
    let missing = needed.filter(|(_, bit)| effective >> bit & 1 == 0).map(|(name, _)| *name).collect();
    let remedy = match has_xdp {
        true => {
            "run it as root, or by natrix.service with /usr/share/doc/natrix/examples/af-xdp.conf, which says how to \
             install it"
        }
        false => "run it as root, or by natrix.service, which has them",
    };
    (missing, remedy)
}

/// Why the ports of a configuration cannot be opened by this process: it lacks what sockets of
/// their kind need. DPDK says only that there is no such device.
pub(crate) fn unprivileged(files: &Files, config: &Config) -> Option<Fault> {
    let (missing, remedy) = missing_capabilities(files, Some(config));
    let lacks = |(name, _): (&'static str, u32)| missing.contains(&name);
    let cannot_open = has_port(config, SOCKETS) && lacks(CAPABILITIES[1]);
    let cannot_load = has_port(config, XDP) && lacks(CAPABILITY_OF_XDP);
    let fault = Fault::new("privileges", "do not suffice to open the ports", remedy);
    (cannot_open || cannot_load).then(|| fault.seen(format!("without {}", missing.join(", "))))
}

fn privileges(files: &Files, config: Option<&Config>) -> Finding {
    let (missing, remedy) = missing_capabilities(files, config);
    if missing.is_empty() {
        return ok("privileges", "enough to open ports");
    }
    let has_device = |config: &Config| has_port(config, TAP) || config.kernel.iter().any(Option::is_some);
    let cannot_run = |config: &Config| {
        unprivileged(files, config).is_some() || has_device(config) && missing.contains(&CAPABILITIES[0].0)
    };
    // Cards need fewer of them.
    let level = if config.is_none_or(cannot_run) { Level::Error } else { Level::Warning };
    finding("privileges", level, format!("without {}", missing.join(", ")), remedy)
}

fn hugepages(files: &Files, config: Option<&Config>) -> Finding {
    let FreeHugepages { small, large, small_in_use } = files.free_hugepages();
    let free_bytes = files.free_hugepages().bytes();
    let needed = config.map(|config| config.memory_needed().total_bytes());
    let seen = format!("{small} of 2 MiB and {large} of 1 GiB free");
    let wanted = match needed {
        Some(needed) if free_bytes >= needed => return ok("hugepages", seen),
        None if free_bytes > 0 => return ok("hugepages", seen),
        // What natrix run asks for at most; it prints the exact number.
        needed => needed.unwrap_or(512 << 20).div_ceil(PAGE_2M_KIB << 10),
    };
    let level = match config.map(|config| config.dpdk.hugepages) {
        Some(Hugepages::Off) => return ok("hugepages", format!("{seen}; the configuration uses none")),
        Some(Hugepages::Required) => Level::Error,
        _ => Level::Warning,
    };
    let file = format!("/sys/kernel/mm/hugepages/hugepages-{PAGE_2M_KIB}kB/nr_hugepages");
    finding("hugepages", level, seen, format!("echo {} > {file}", small_in_use + wanted))
}

/// With devices of the kernel, each subscriber on a link is a neighbour of the kernel.
fn neighbours(files: &Files, config: &Config) -> Vec<Finding> {
    let tables = neighbour_tables(config, |path| Some(files.text(path)));
    let found = tables.into_iter().map(|NeighbourTable { family, limit, stations, remedy }| {
        let room = room_text(stations);
        let seen = format!("{limit} of {family} at most; the subnets of interfaces with kernel have room for {room}");
        match remedy {
            None => ok("neighbours", seen),
            Some(remedy) => finding("neighbours", Level::Warning, seen, remedy),
        }
    });
    found.collect()
}

/// With rp_filter = 1, the kernel drops packets and ARP that come from a subnet by another device
/// than that of its route. Of two VRFs with one subnet, this hits one.
fn reverse_path(files: &Files, config: &Config) -> Option<Finding> {
    let shared = daemon::kernel::setup::devices_with_shared_subnets(config);
    if shared.is_empty() {
        return None;
    }
    let setting = |device: &str| files.text(&format!("proc/sys/net/ipv4/conf/{device}/rp_filter"));
    let number = |text: String| text.trim().parse::<u8>().ok();
    let of_all = number(setting("all")).unwrap_or(0);
    let strict = |device: &&str| {
        let own = number(setting(device)).or_else(|| number(setting("default"))).unwrap_or(0);
        of_all.max(own) == 1
    };
    let strict: Vec<&str> = shared.into_iter().filter(strict).collect();
    if strict.is_empty() {
        return Some(ok("reverse path", "not strict on devices of VRFs that share a subnet"));
    }
    let seen = format!("rp_filter is strict on {}, whose subnet another VRF has, too", strict.join(", "));
    Some(finding("reverse path", Level::Warning, seen, "sysctl -w net.ipv4.conf.all.rp_filter=2"))
}

/// Packets pass without the groups of the API, but no user is a member of them.
fn groups(config: &Config) -> Option<Finding> {
    let http = config.http.as_ref().filter(|http| http.users.iter().any(|user| user.group.is_some()))?;
    let missing: Vec<&str> = http_group::users_without_group(http).map(|(_, group)| group).collect();
    let Some(first) = missing.first() else { return Some(ok("groups of the API", "exist")) };
    let remedy = format!("groupadd {first}, or name another in http.user.group; then start the instance again");
    Some(finding("groups of the API", Level::Warning, format!("do not exist: {}", missing.join(", ")), remedy))
}

fn transparent(files: &Files) -> Finding {
    let text = files.text("sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("not there");
    if ["always", "madvise"].contains(&chosen) {
        return ok("transparent hugepages", chosen);
    }
    let remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    finding("transparent hugepages", Level::Warning, chosen, remedy)
}

fn locked(files: &Files) -> Finding {
    let limits = files.text("proc/self/limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap_or_default();
    let limit = line.split_whitespace().next().unwrap_or("unlimited");
    if limit == "unlimited" || limit.parse::<u64>().is_ok_and(|bytes| bytes >= 1 << 30) {
        return ok("locked memory", limit);
    }
    let remedy = "ulimit -l unlimited (natrix.service has LimitMEMLOCK=infinity)";
    let size = |bytes: u64| match bytes.is_multiple_of(1 << 20) {
        true => format!("{} MiB", bytes >> 20),
        false => format!("{} KiB", count_text(bytes >> 10)),
    };
    let seen = limit.parse().map_or_else(|_| limit.to_owned(), size);
    finding("locked memory", Level::Warning, seen, remedy)
}

/// Ports of the configuration; without one, whether PCI devices could be used at all.
fn ports(files: &Files, config: Option<&Config>, kernel: &Kernel<'_>) -> Vec<Finding> {
    let Some(config) = config else {
        let known = machine::devices(files, &BTreeMap::new());
        let interfaces = known.iter().map(|one| joining(&one.name, &one.name, &JOINING, Level::Ok, kernel));
        return [iommu(files, Level::Ok), vfio(files)].into_iter().chain(interfaces).collect();
    };
    let mut found = Vec::new();
    let device_of = |driver: &str| driver.split(',').next().unwrap_or_default().to_owned();
    let mut cards = config.ports.iter().filter(|port| port.kind == DriverKind::Pci);
    if cards.any(|port| Access::of(&driver_of(files, &device_of(&port.driver))).needs_iommu()) {
        found.push(iommu(files, Level::Error));
    }
    for port in &config.ports {
        let device = &device_of(&port.driver);
        let name = format!("port {}", port.name);
        if port.kind == DriverKind::Pci {
            found.push(pci_port(files, &name, device));
        } else if let Some(interface) = port.driver.split(',').find_map(|one| one.strip_prefix("iface="))
            && !device.starts_with("net_tap")
        {
            found.extend(kernel_port(files, &name, (&port.driver, interface), kernel));
        }
        let mtu_of = |device: &str| Some(files.number(&format!("sys/class/net/{device}/mtu"))).filter(|mtu| *mtu > 0);
        if let Some(narrow) = NarrowDevice::of(port, mtu_of) {
            found.push(finding(&format!("{name}: mtu"), Level::Error, narrow.problem(), narrow.remedy()));
        }
    }
    found
}

fn iommu(files: &Files, without: Level) -> Finding {
    let groups = files.names("sys/kernel/iommu_groups").len();
    if groups > 0 {
        return ok("IOMMU", format!("{groups} groups"));
    }
    if without == Level::Ok {
        return ok("IOMMU", "off; only PCI ports by vfio-pci need it");
    }
    let remedy = "add to the kernel's command line: intel_iommu=on iommu=pt (AMD: iommu=pt); in a virtual machine \
                  without one: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    let unsafe_mode = files.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    let level = if ["1", "Y"].contains(&unsafe_mode.as_str()) { Level::Warning } else { without };
    finding("IOMMU", level, "off", remedy)
}

fn vfio(files: &Files) -> Finding {
    if files.exists("sys/bus/pci/drivers/vfio-pci") {
        return ok("vfio-pci", "loaded");
    }
    ok("vfio-pci", "not loaded; only PCI ports need it (modprobe vfio-pci)")
}

/// How DPDK reaches a PCI device, by the kernel's driver of the device ("Linux Drivers" in DPDK's
/// guide).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The kernel has given the device up; the IOMMU keeps it to the memory of DPDK.
    Vfio,
    /// The kernel has given the device up; it reads and writes physical addresses.
    Uio,
    /// Bifurcated: the device stays with the kernel's driver, and DPDK uses it through verbs of
    /// RDMA, which this module of the kernel provides.
    Bifurcated(&'static str),
    /// The kernel has the device.
    Kernel,
}

impl Access {
    fn of(driver: &str) -> Access {
        match driver {
            "vfio-pci" => Access::Vfio,
            "uio_pci_generic" | "igb_uio" => Access::Uio,
            "mlx4_core" => Access::Bifurcated("mlx4_ib"),
            "mlx5_core" => Access::Bifurcated("mlx5_ib"),
            "mana" => Access::Bifurcated("mana_ib"),
            _ => Access::Kernel,
        }
    }

    /// Whether DPDK needs the IOMMU for it, or will once it is bound as the remedy says.
    fn needs_iommu(self) -> bool {
        matches!(self, Access::Vfio | Access::Kernel)
    }
}

/// The kernel's driver of a PCI device.
fn driver_of(files: &Files, address: &str) -> String {
    files.link(&format!("sys/bus/pci/devices/{address}/driver")).unwrap_or_else(|| "none".to_owned())
}

fn pci_port(files: &Files, name: &str, address: &str) -> Finding {
    let folder = format!("sys/bus/pci/devices/{address}");
    if !files.exists(&folder) {
        return finding(name, Level::Error, format!("no device {address}"), "lspci -D | grep -i ethernet");
    }
    let driver = driver_of(files, address);
    let seen = format!("{address} by {driver}");
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py --bind=vfio-pci {address}");
    match Access::of(&driver) {
        Access::Vfio => ok(name, seen),
        Access::Uio => {
            let group = files.link(&format!("{folder}/iommu_group")).unwrap_or_default();
            let kind = files.text(&format!("sys/kernel/iommu_groups/{group}/type"));
            if group.is_empty() || kind == "identity" {
                return ok(name, format!("{seen}, without the protection of an IOMMU"));
            }
            let remedy = format!("{bind}; or add iommu=pt to the kernel's command line");
            finding(name, Level::Error, format!("{seen}, behind an IOMMU that translates ({kind})"), remedy)
        }
        Access::Bifurcated(_) if !files.names(&format!("{folder}/infiniband_verbs")).is_empty() => {
            ok(name, format!("{seen}, beside the kernel"))
        }
        Access::Bifurcated(module) => finding(
            name,
            Level::Error,
            format!("{seen}, without verbs of RDMA"),
            format!("modprobe -a ib_uverbs {module}"),
        ),
        Access::Kernel => finding(name, Level::Error, seen, bind),
    }
}

/// Offloads that join received packets to longer ones than a frame: by the kernel's name, and as
/// `ethtool -K` calls them.
const JOINING: [(&str, &str); 3] = [("rx-gro", "gro"), ("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")];
/// Those that a device does itself, for which AF_XDP has no room either.
const JOINING_BY_DEVICE: [(&str, &str); 2] = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")];

fn kernel_port(files: &Files, name: &str, (driver, interface): (&str, &str), kernel: &Kernel<'_>) -> Vec<Finding> {
    let device = driver.split(',').next().unwrap_or_default();
    let known = machine::devices(files, &BTreeMap::new());
    if !known.iter().any(|one| one.name == interface) {
        let names: Vec<&str> = known.iter().map(|one| one.name.as_str()).collect();
        let remedy = format!("correct the name in the configuration: {}", names.join(", "));
        return vec![finding(name, Level::Error, format!("no interface {interface}"), remedy)];
    }
    let state = files.text(&format!("sys/class/net/{interface}/operstate"));
    let mut findings = vec![if state == "down" {
        finding(name, Level::Error, format!("{interface} is down"), format!("ip link set {interface} up"))
    } else {
        ok(name, format!("{interface} is {}", if state.is_empty() { "there" } else { &state }))
    }];
    findings.extend(other_end(files, &format!("{name}: offloads"), interface, kernel));
    let check = format!("{name}: joining");
    if device.starts_with("net_af_packet") {
        findings.push(joining(&check, interface, &JOINING, Level::Warning, kernel));
    } else if device.starts_with(XDP) {
        findings.push(joining(&check, interface, &JOINING_BY_DEVICE, Level::Warning, kernel));
        findings.push(xdp_queues(files, &format!("{name}: queues"), (driver, interface), kernel));
    }
    findings
}

/// What arrives on a queue without an AF_XDP socket goes to the kernel, and past Natrix.
fn xdp_queues(files: &Files, check: &str, (driver, interface): (&str, &str), kernel: &Kernel<'_>) -> Finding {
    let count = driver.split(',').find_map(|one| one.strip_prefix("queue_count="));
    let served: usize = count.and_then(|count| count.parse().ok()).unwrap_or(1);
    let queues = files.receive_queues(interface);
    if queues <= served {
        return ok(check, format!("Natrix serves all queues of {interface}"));
    }
    let is_virtual_cable = matches!((kernel.other_end)(interface), Ok(Some(_)));
    let seen = format!(
        "{interface} has {queues} queues, and Natrix serves {served}: packets on the other queues do not reach it"
    );
    finding(check, Level::Warning, seen, machine::queues_command(interface, served, is_virtual_cable))
}

/// The other end of a virtual cable: what it sends has no checksums while it leaves them to a
/// device. None if the interface is no virtual cable.
fn other_end(files: &Files, check: &str, interface: &str, kernel: &Kernel<'_>) -> Option<Finding> {
    let (other, is_here) = match (kernel.other_end)(interface) {
        Ok(None) => return None,
        Ok(Some(OtherEnd::Here(index))) => (index, true),
        Ok(Some(OtherEnd::Elsewhere(index))) => (index, false),
        Err(error) => {
            let seen = format!("the kernel does not say what {interface} is: {error}");
            let remedy = format!("ip -d link show {interface}; if it is a veth: ethtool -K OTHER-END tx off");
            return Some(finding(check, Level::Warning, seen, remedy));
        }
    };
    let index_of = |name: &String| files.number(&format!("sys/class/net/{name}/ifindex"));
    let peer = files.names("sys/class/net").into_iter().find(|name| is_here && index_of(name) == u64::from(other));
    let Some(peer) = peer else {
        let seen =
            format!("{interface} is a virtual cable into another namespace: its end there must compute checksums");
        let remedy = format!(
            "in the namespace that has interface {other} (ip -all netns exec ip -o link | grep ^{other}:): \
             ethtool -K NAME tx off"
        );
        return Some(finding(check, Level::Warning, seen, remedy));
    };
    let remedy = format!("ethtool -K {peer} tx off");
    Some(match (kernel.offloads)(&peer) {
        Err(error) => finding(check, Level::Warning, format!("offloads of {peer} cannot be read: {error}"), remedy),
        Ok(active) => match active.iter().find(|name| name.starts_with("tx-checksum-")) {
            None => ok(check, format!("{peer}, the other end of {interface}, computes checksums")),
            Some(name) => {
                let seen = format!("{peer}, the other end of {interface}, leaves checksums to a device ({name})");
                finding(check, Level::Warning, seen, remedy)
            }
        },
    })
}

/// Whether an interface joins packets, which is as bad as `level` says.
fn joining(check: &str, interface: &str, wrong: &[(&str, &str)], level: Level, kernel: &Kernel<'_>) -> Finding {
    let command = |names: &[&str]| format!("ethtool -K {interface} {} off", names.join(" off "));
    let active = match (kernel.offloads)(interface) {
        Ok(active) => active,
        Err(error) => {
            let all: Vec<&str> = wrong.iter().map(|(_, name)| *name).collect();
            let seen = format!("offloads of {interface} cannot be read: {error}");
            return if level == Level::Ok { ok(check, seen) } else { finding(check, level, seen, command(&all)) };
        }
    };
    let on: Vec<&str> = wrong.iter().filter(|(kernel, _)| active.contains(*kernel)).map(|(_, name)| *name).collect();
    if on.is_empty() {
        return ok(check, format!("{interface} does not merge packets"));
    }
    let seen = format!("{interface} merges received packets into larger ones ({} on)", on.join(", "));
    if level == Level::Ok {
        return ok(check, format!("{seen}; only a port of Natrix must not ({})", command(&on)));
    }
    finding(check, level, seen, command(&on))
}

fn clock_source(files: &Files) -> Finding {
    let folder = "sys/devices/system/clocksource/clocksource0";
    let current = files.text(&format!("{folder}/current_clocksource"));
    if ["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"].contains(&current.as_str()) {
        return ok("clock", current);
    }
    let available = files.text(&format!("{folder}/available_clocksource"));
    let remedy = match available.split_whitespace().any(|one| one == "tsc") {
        true => format!("echo tsc > /{folder}/current_clocksource"),
        false => "each reading costs a system call; add to the kernel's command line: tsc=reliable".to_owned(),
    };
    finding("clock", Level::Warning, if current.is_empty() { "unknown".to_owned() } else { current }, remedy)
}

/// The log names subscribers by time, so the clock must be right.
fn clock_is_set(files: &Files) -> Finding {
    let check = "time";
    if files.exists("run/systemd/timesync/synchronized") {
        return ok(check, "set by systemd-timesyncd");
    }
    let keepers = ["chronyd", "ntpd", "ptp4l", "openntpd", "ntpsec"];
    let processes = files.names("proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let names = processes.map(|process| files.text(&format!("proc/{process}/comm")));
    match names.into_iter().find(|name| keepers.contains(&name.as_str())) {
        Some(keeper) => ok(check, format!("set by {keeper}")),
        None => finding(check, Level::Warning, "nothing sets the clock", "apt install chrony"),
    }
}

fn cpus(files: &Files, config: Option<&Config>) -> Vec<Finding> {
    let online = machine::numbers(&files.text("sys/devices/system/cpu/online"));
    let isolated = machine::numbers(&files.text("sys/devices/system/cpu/isolated"));
    let wanted = config.map(|config| config.workers.cpus.clone()).unwrap_or_default();
    let mut found = Vec::new();
    let absent: Vec<u16> = wanted.iter().copied().filter(|cpu| !online.contains(cpu)).collect();
    let shared: Vec<u16> =
        wanted.iter().copied().filter(|cpu| online.contains(cpu) && !isolated.contains(cpu)).collect();
    if !absent.is_empty() {
        let remedy = format!("use CPUs of {} in workers.cpus", list(&online));
        found.push(finding("CPUs", Level::Error, format!("{} are not online", list(&absent)), remedy));
    } else if !shared.is_empty() {
        let cpus = list(&shared);
        let seen = format!("{cpus} also run other programs");
        found.push(finding("CPUs", Level::Warning, seen, isolation(&cpus)));
    } else if let Some(config) = config.filter(|_| wanted.is_empty()) {
        found.push(not_pinned(&online, &isolated, config.workers.count));
    } else {
        let seen =
            if isolated.is_empty() { "none isolated".to_owned() } else { format!("isolated: {}", list(&isolated)) };
        found.push(ok("CPUs", seen));
    }
    let governors = if wanted.is_empty() { &online } else { &wanted };
    let slow =
        governors.iter().map(|cpu| files.text(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")));
    if let Some(governor) = slow.into_iter().find(|governor| !governor.is_empty() && governor != "performance") {
        found.push(finding("CPU frequency", Level::Warning, governor, "cpupower frequency-set -g performance"));
    }
    found
}

/// No CPUs are named, so each worker runs where the system puts it: never on an isolated CPU.
fn not_pinned(online: &[u16], isolated: &[u16], workers: usize) -> Finding {
    // One CPU, the first, stays for all other programs.
    let proposed = if isolated.is_empty() { online.get(1..).unwrap_or_default() } else { isolated };
    let proposed = &proposed[proposed.len().saturating_sub(workers)..];
    if proposed.is_empty() {
        return ok("CPUs", "workers are not pinned: there is no CPU to spare for them");
    }
    let cpus = list(proposed);
    let mut remedy = format!("write workers.cpus = [{}] in place of workers.count", cpus.replace(',', ", "));
    let seen = if isolated.is_empty() {
        remedy += &format!("; {}", isolation(&cpus));
        "workers are not pinned: they share CPUs with other programs".to_owned()
    } else {
        format!("workers are not pinned: they do not use the isolated CPUs {}", list(isolated))
    };
    finding("CPUs", Level::Warning, seen, remedy)
}

fn list(cpus: &[u16]) -> String {
    cpus.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// How to keep other programs off these CPUs.
fn isolation(cpus: &str) -> String {
    format!("add to the kernel's command line: isolcpus={cpus} nohz_full={cpus} rcu_nocbs={cpus}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Tree;

    const HEALTHY: &[(&str, &str)] = &[
        ("proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n"),
        ("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes"),
        ("proc/712/comm", "chronyd\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4096\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/cpu/isolated", "2-3\n"),
        ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n"),
        ("sys/kernel/iommu_groups/0/type", "DMA\n"),
        ("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x8086\n"),
        ("sys/class/net/eth1/ifindex", "3"),
        ("sys/class/net/eth1/operstate", "up"),
    ];

    fn none(_: &str) -> io::Result<BTreeSet<String>> {
        Ok(BTreeSet::new())
    }

    /// Interfaces without offloads, and a cable into another namespace.
    const NONE: Kernel<'_> = Kernel { offloads: &none, other_end: &|_| Ok(Some(OtherEnd::Elsewhere(9))) };

    fn config(cpus: &str) -> Config {
        with_workers(&format!("cpus = [{cpus}]"))
    }

    fn with_workers(workers: &str) -> Config {
        configured("net_af_packet0,iface=eth1", workers)
    }

    fn with_driver(driver: &str) -> Config {
        configured(driver, "cpus = [2, 3]")
    }

    fn configured(driver: &str, workers: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"0000:3b:00.0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"{driver}\"\naddresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n\
             [workers]\n{workers}\n"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        findings.iter().find(|one| one.check == check).unwrap_or_else(|| panic!("no {check} in {findings:?}"))
    }

    #[test]
    fn strict_filters_between_vrfs_with_one_subnet_are_found() {
        let vrf = |name: &str, address: &str| {
            format!(
                "[[interface]]\nname = \"{name}\"\nrealm = \"inside\"\nvrf = \"{name}\"\nkernel = \"nx-{name}\"\n\
                 driver = \"net_af_packet{0},iface={name}\"\naddresses = [\"{address}\"]\n\
                 [[pool]]\nname = \"{name}\"\nvrfs = [\"{name}\"]\naddresses = [\"203.0.113.{0}\"]\n\
                 subscribers = [\"10.0.0.0/8\"]\n",
                name.len()
            )
        };
        let found = |red: &str, files: &[(&str, &str)]| {
            let text = format!(
                "{}{}[[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_af_packet9,iface=eth9\"\n\
                 addresses = [\"192.0.2.2/30\"]\n",
                vrf("blue", "10.0.0.1/24"),
                vrf("red", red)
            );
            let config = config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"));
            reverse_path(&Tree::new("filters", files).files(), &config)
        };
        let (all, default) = ("proc/sys/net/ipv4/conf/all/rp_filter", "proc/sys/net/ipv4/conf/default/rp_filter");
        assert_eq!(found("10.0.1.1/24", &[(all, "1")]), None, "no subnet in common");
        let one = found("10.0.0.254/25", &[(all, "1"), (default, "0")]).unwrap();
        assert_eq!(one.level, Level::Warning);
        assert!(one.seen.contains("nx-blue, nx-red"), "{one:?}");
        let before = found("10.0.0.254/24", &[(all, "0"), (default, "1")]).unwrap();
        assert_eq!(before.level, Level::Warning, "devices that are not there yet");
        let loose = found("10.0.0.254/24", &[(all, "2"), (default, "1")]).unwrap();
        assert_eq!(loose.level, Level::Ok);
        let red = ("proc/sys/net/ipv4/conf/nx-red/rp_filter", "1");
        let one = found("10.0.0.254/24", &[(all, "0"), red]).unwrap();
        assert!(one.seen.contains("on nx-red,"), "{one:?}");
    }

    #[test]
    fn a_healthy_machine_has_nothing_to_mend() {
        let tree = Tree::new("healthy", HEALTHY);
        let found = examine(&tree.files(), None, &NONE);
        assert!(found.iter().all(|one| one.level == Level::Ok && one.remedy.is_empty()), "{found:?}");
    }

    #[test]
    fn doctor_reports_what_an_unprepared_machine_lacks() {
        let tree = Tree::new("empty", &[("proc/self/limits", "Max locked memory         65536   65536  bytes")]);
        let found = examine(&tree.files(), None, &NONE);
        let locked = |limit: &str| {
            let line = format!("Max locked memory {limit} {limit} bytes");
            locked(&Tree::new(&format!("locked{limit}"), &[("proc/self/limits", line.as_str())]).files()).seen
        };
        assert_eq!([locked("8388608"), locked("65536")], ["8 MiB", "64 KiB"]);
        assert_eq!(of(&found, "privileges").level, Level::Error);
        for check in ["hugepages", "transparent hugepages", "locked memory", "clock", "time"] {
            let one = of(&found, check);
            assert!(one.level == Level::Warning && !one.remedy.is_empty(), "{one:?}");
        }
    }

    #[test]
    fn a_small_table_of_neighbours_is_a_warning() {
        let tree = Tree::new("neighbours", &[("proc/sys/net/ipv4/neigh/default/gc_thresh3", "1024\n")]);
        let text = |length: u8| {
            format!(
                "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"0000:3b:00.0\"\n\
                 addresses = [\"100.64.0.1/{length}\"]\nkernel = \"nx-in\"\n\
                 [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_af_packet0,iface=eth1\"\n\
                 addresses = [\"192.0.2.2/30\"]\n\
                 [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/{length}\"]\n"
            )
        };
        let found = |length| {
            let config = config::parse(&text(length), "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"));
            neighbours(&tree.files(), &config).pop().unwrap()
        };
        let small = found(20);
        assert_eq!(small.level, Level::Warning);
        assert!(small.seen.contains("room for 4096"), "{small:?}");
        assert!(small.remedy.contains("net.ipv4.neigh.default.gc_thresh3=8192"), "{small:?}");
        assert_eq!(found(24).level, Level::Ok);
    }

    #[test]
    fn a_small_table_of_ipv6_neighbours_is_a_warning() {
        let text = "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"0000:3b:00.0\"\n\
             addresses = [\"100.64.0.1/24\", \"2001:db8:64::1/64\"]\nkernel = \"nx-in\"\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_af_packet0,iface=eth1\"\n\
             addresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n";
        let config = config::parse(text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"));
        let path = |net: &str| format!("proc/sys/net/{net}/neigh/default/gc_thresh3");
        let found = |limit: &str| {
            let tree = Tree::new("neighbours6", &[(&path("ipv4"), "1024\n"), (&path("ipv6"), limit)]);
            neighbours(&tree.files(), &config)
        };
        let [of_ipv4, of_ipv6] = &found("1024\n")[..] else { panic!("one for each family") };
        assert_eq!((of_ipv4.level, of_ipv6.level), (Level::Ok, Level::Warning));
        assert!(
            of_ipv6.seen.contains("billions") && of_ipv6.remedy.contains("net.ipv6.neigh.default.gc_thresh3=65536")
        );
        assert_eq!(found("65536\n")[1].level, Level::Ok);
    }

    #[test]
    fn hugepages_in_use_stay_with_their_users() {
        let folder = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let names = ["nr_hugepages", "free_hugepages", "resv_hugepages"].map(|name| format!("{folder}/{name}"));
        let tree = Tree::new("shared", &[(&names[0], "1000"), (&names[1], "20"), (&names[2], "5")]);
        let config = config("2");
        let needed = config.memory_needed().total_bytes().div_ceil(2 << 20);
        let found = hugepages(&tree.files(), Some(&config));
        assert_eq!(found.seen, "15 of 2 MiB and 0 of 1 GiB free");
        assert_eq!(found.remedy, format!("echo {} > /{folder}/nr_hugepages", 985 + needed));
    }

    #[test]
    fn ports_of_the_configuration_are_checked() {
        let tree = Tree::new("ports", HEALTHY);
        let found = examine(&tree.files(), Some(&config("2, 3")), &NONE);
        let port = of(&found, "port in");
        assert_eq!((port.level, port.seen.as_str()), (Level::Error, "0000:3b:00.0 by none"));
        assert!(port.remedy.contains("dpdk-devbind.py --bind=vfio-pci 0000:3b:00.0"), "{port:?}");
        assert_eq!(of(&found, "port out").level, Level::Ok);
        // Its other end is not here.
        let far = of(&found, "port out: offloads");
        assert!(far.level == Level::Warning && far.remedy.contains("interface 9 ("), "{far:?}");
        assert_eq!(of(&found, "port out: joining").level, Level::Ok);
        let driver = tree.0.join("sys/bus/pci/devices/0000:3b:00.0/driver");
        std::os::unix::fs::symlink("../../../../bus/pci/drivers/vfio-pci", driver).unwrap();
        assert_eq!(of(&examine(&tree.files(), Some(&config("2, 3")), &NONE), "port in").level, Level::Ok);
    }

    #[test]
    fn a_device_that_takes_less_than_its_port_is_an_error() {
        let found = |mtu: &str| {
            let tree = Tree::new("mtu", &[HEALTHY, &[("sys/class/net/eth1/mtu", mtu)]].concat());
            let found = examine(&tree.files(), Some(&config("2, 3")), &NONE);
            found.into_iter().find(|one| one.check == "port out: mtu")
        };
        let narrow = found("1300\n").unwrap();
        assert_eq!(
            (narrow.level, narrow.remedy.as_str()),
            (Level::Error, "ip link set eth1 mtu 1500; or write mtu = 1300")
        );
        assert!(narrow.seen.starts_with("eth1 has the MTU 1300, and the interface mtu = 1500"), "{narrow:?}");
        assert_eq!([found("1500\n"), found("9000\n"), found("")], [const { None }; 3]);
    }

    #[test]
    fn each_driver_of_a_card_is_judged_by_how_dpdk_uses_it() {
        // The driver, the type of the IOMMU's group if there is one, whether there are verbs; then
        // the level of the IOMMU's finding, and level and words of the port's.
        let cases = [
            ("vfio-pci", Some("DMA"), false, Some(Level::Ok), (Level::Ok, "by vfio-pci", "")),
            ("vfio-pci", None, false, Some(Level::Error), (Level::Ok, "by vfio-pci", "")),
            ("ixgbe", None, false, Some(Level::Error), (Level::Error, "by ixgbe", "--bind=vfio-pci 0000:3b:00.0")),
            ("mlx5_core", None, true, None, (Level::Ok, "by mlx5_core, beside the kernel", "")),
            ("mlx5_core", Some("DMA"), false, None, (Level::Error, "without verbs", "modprobe -a ib_uverbs mlx5_ib")),
            ("mlx4_core", None, false, None, (Level::Error, "without verbs", "modprobe -a ib_uverbs mlx4_ib")),
            ("mana", None, true, None, (Level::Ok, "by mana, beside the kernel", "")),
            ("uio_pci_generic", None, false, None, (Level::Ok, "without the protection of an IOMMU", "")),
            ("igb_uio", Some("identity"), false, None, (Level::Ok, "without the protection of an IOMMU", "")),
            ("uio_pci_generic", Some("DMA-FQ"), false, None, (Level::Error, "translates (DMA-FQ)", "iommu=pt")),
        ];
        for (place, (driver, group, has_verbs, of_iommu, (level, seen, remedy))) in cases.into_iter().enumerate() {
            let device = "sys/bus/pci/devices/0000:3b:00.0";
            let mut files: Vec<(&str, &str)> =
                HEALTHY.iter().copied().filter(|(path, _)| !path.contains("iommu_groups")).collect();
            if let Some(group) = group {
                files.push(("sys/kernel/iommu_groups/7/type", group));
            }
            if has_verbs {
                files.push(("sys/bus/pci/devices/0000:3b:00.0/infiniband_verbs/uverbs0/abi_version", "1"));
            }
            let tree = Tree::new(&format!("card{place}"), &files);
            let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, tree.0.join(device).join(name)).unwrap();
            link(&format!("../../../../bus/pci/drivers/{driver}"), "driver");
            if group.is_some() {
                link("../../../../kernel/iommu_groups/7", "iommu_group");
            }
            let found = examine(&tree.files(), Some(&config("2, 3")), &NONE);
            let iommu = found.iter().find(|one| one.check == "IOMMU").map(|one| one.level);
            assert_eq!(iommu, of_iommu, "{driver} {group:?}: {found:?}");
            let port = of(&found, "port in");
            assert_eq!(port.level, level, "{driver} {group:?}: {port:?}");
            assert!(port.seen.contains(seen) && port.remedy.contains(remedy), "{driver} {group:?}: {port:?}");
        }
    }

    #[test]
    fn a_port_with_af_xdp_needs_more_than_others() {
        let queues = [0, 1, 2, 3].map(|queue| format!("sys/class/net/eth1/queues/rx-{queue}/rps_cpus"));
        let mut files = HEALTHY.to_vec();
        files.extend(queues.iter().map(|path| (path.as_str(), "0")));
        files.push(("sys/class/net/eth1/queues/tx-0/xps_cpus", "0"));
        // What natrix.service has.
        files[0] = ("proc/self/status", "CapEff:\t0000000000007000\n");
        let tree = Tree::new("af-xdp", &files);
        let found = |driver: &str, check: &str, other_end: &dyn Fn(&str) -> io::Result<Option<OtherEnd>>| {
            let config = with_driver(driver);
            let found = examine(&tree.files(), Some(&config), &Kernel { other_end, ..NONE });
            found.into_iter().find(|one| one.check == check).map(|one| (one.level, one.seen, one.remedy))
        };
        let (xdp, card): (_, &dyn Fn(&str) -> _) = ("net_af_xdp0,iface=eth1", &|_| Ok(None));
        let seen = "eth1 has 4 queues, and Natrix serves 1: packets on the other queues do not reach it".to_owned();
        let mends = |command: &str| Some((Level::Warning, seen.clone(), command.to_owned()));
        assert_eq!(found(xdp, "port out: queues", card), mends("ethtool -L eth1 combined 1"));
        let cable = |_: &str| Ok(Some(OtherEnd::Elsewhere(9)));
        assert_eq!(found(xdp, "port out: queues", &cable), mends("ethtool -L eth1 rx 1 tx 1"));
        let two = found("net_af_xdp0,iface=eth1,queue_count=2", "port out: queues", card).unwrap();
        assert_eq!((two.0, two.2.as_str()), (Level::Warning, "ethtool -L eth1 combined 2"));
        let all = found("net_af_xdp0,iface=eth1,queue_count=4", "port out: queues", card).unwrap();
        assert_eq!(all.0, Level::Ok, "{all:?}");
        assert_eq!(found("net_af_packet0,iface=eth1", "port out: queues", card), None);
        let (level, seen, remedy) = found(xdp, "privileges", card).unwrap();
        assert_eq!((level, seen.as_str()), (Level::Error, "without CAP_SYS_ADMIN"));
        assert!(remedy.contains("af-xdp.conf"), "{remedy}");
        assert_eq!(found("net_af_packet0,iface=eth1", "privileges", card).unwrap().0, Level::Ok);
    }

    #[test]
    fn ports_that_cannot_be_opened_name_the_privileges() {
        let refused = |capabilities: &str, driver: &str| {
            let status = format!("CapEff:\t{capabilities}\n");
            let tree = Tree::new("unprivileged", &[("proc/self/status", &status)]);
            let found = unprivileged(&tree.files(), &with_driver(driver));
            let level = privileges(&tree.files(), Some(&with_driver(driver))).level;
            assert!(found.is_none() || level == Level::Error, "{level:?}");
            found.map(|fault| fault.to_string())
        };
        let (none, of_service) = ("0000000000000000", "0000000000007000");
        let text = refused(none, "net_af_packet0,iface=eth1").unwrap();
        assert_eq!(
            text,
            "privileges: do not suffice to open the ports (without CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK); run it as \
             root, or by natrix.service, which has them"
        );
        assert_eq!(refused(of_service, "net_af_packet0,iface=eth1"), None);
        assert!(refused(of_service, "net_af_xdp0,iface=eth1").unwrap().contains("(without CAP_SYS_ADMIN)"));
        assert_eq!(refused(none, "0000:3b:00.1"), None, "a card may be its user's");
    }

    #[test]
    fn offloads_in_the_way_are_named_with_their_interface() {
        let tree = Tree::new("offloads", &[HEALTHY, &[("sys/class/net/eth9/ifindex", "9")]].concat());
        let all = |name: &str| -> io::Result<BTreeSet<String>> {
            let active: &[&str] = match name {
                "eth1" => &["rx-gro", "tx-checksum-ip-generic"],
                _ => &["tx-checksum-ip-generic"],
            };
            Ok(active.iter().map(|name| (*name).to_owned()).collect())
        };
        let here = |_: &str| Ok(Some(OtherEnd::Here(9)));
        let (all, without) = (Kernel { offloads: &all, other_end: &here }, Kernel { other_end: &here, ..NONE });
        let found = examine(&tree.files(), Some(&config("2, 3")), &all);
        let of_check = |found: &[Finding], check: &str| {
            let one = of(found, check).clone();
            (one.level, one.remedy)
        };
        assert_eq!(of_check(&found, "port out: joining"), (Level::Warning, "ethtool -K eth1 gro off".to_owned()));
        assert_eq!(of_check(&found, "port out: offloads"), (Level::Warning, "ethtool -K eth9 tx off".to_owned()));
        // Nothing is in the way before there is a configuration.
        let found = examine(&tree.files(), None, &all);
        assert_eq!(of_check(&found, "eth1"), (Level::Ok, String::new()));
        assert!(of(&found, "eth1").seen.ends_with("must not (ethtool -K eth1 gro off)"), "{found:?}");
        assert_eq!(of_check(&found, "eth9"), (Level::Ok, String::new()));
        // Mended, and unknown.
        let found = examine(&tree.files(), Some(&config("2, 3")), &without);
        assert_eq!(of_check(&found, "port out: joining"), (Level::Ok, String::new()));
        assert_eq!(of_check(&found, "port out: offloads"), (Level::Ok, String::new()));
        let unknown = |_: &str| Err(io::ErrorKind::Unsupported.into());
        let found = examine(&tree.files(), Some(&config("2, 3")), &Kernel { offloads: &unknown, ..NONE });
        let remedy = "ethtool -K eth1 gro off lro off rx-gro-hw off".to_owned();
        assert_eq!(of_check(&found, "port out: joining"), (Level::Warning, remedy));
    }

    #[test]
    fn the_other_end_of_a_virtual_cable_is_where_the_kernel_says() {
        // An interface here may have the number that the other end has in its namespace.
        let tree = Tree::new("other-end", &[HEALTHY, &[("sys/class/net/eth9/ifindex", "9")]].concat());
        let found = |other_end: &dyn Fn(&str) -> io::Result<Option<OtherEnd>>| {
            let found = examine(&tree.files(), Some(&config("2, 3")), &Kernel { other_end, ..NONE });
            found.into_iter().find(|one| one.check == "port out: offloads")
        };
        let of_index = |index: u32| found(&|_| Ok(Some(OtherEnd::Elsewhere(index)))).unwrap();
        for index in [9, 3] {
            let far = of_index(index);
            assert_eq!(far.level, Level::Warning);
            assert!(far.remedy.contains(&format!("interface {index} (")), "{far:?}");
        }
        assert_eq!(found(&|_| Ok(Some(OtherEnd::Here(9)))).map(|one| one.level), Some(Level::Ok));
        assert_eq!(found(&|_| Ok(None)), None, "a VLAN or a macvlan");
        let unknown = found(&|_| Err(io::ErrorKind::PermissionDenied.into())).unwrap();
        assert!(unknown.level == Level::Warning && unknown.remedy.contains("ip -d link show eth1"), "{unknown:?}");
    }

    #[test]
    fn workers_want_cpus_of_their_own() {
        let tree = Tree::new("cpus", HEALTHY);
        let level = |cpus: &str| of(&examine(&tree.files(), Some(&config(cpus)), &NONE), "CPUs").clone();
        assert_eq!(level("2, 3").level, Level::Ok);
        let shared = level("1, 2");
        assert!(shared.level == Level::Warning && shared.remedy.contains("isolcpus=1 nohz_full=1"), "{shared:?}");
        assert_eq!(level("2, 9").level, Level::Error);
    }

    #[test]
    fn workers_that_are_not_pinned_are_a_warning() {
        let found = |tree: &Tree, workers: &str| {
            let one = of(&examine(&tree.files(), Some(&with_workers(workers)), &NONE), "CPUs").clone();
            (one.level, one.seen, one.remedy)
        };
        let shared = "workers are not pinned: they share CPUs with other programs".to_owned();
        let usual: Vec<_> = HEALTHY.iter().copied().filter(|(path, _)| !path.ends_with("isolated")).collect();
        let tree = Tree::new("not-isolated", &usual);
        let remedy = "write workers.cpus = [2, 3] in place of workers.count; \
                      add to the kernel's command line: isolcpus=2,3 nohz_full=2,3 rcu_nocbs=2,3";
        assert_eq!(found(&tree, "count = 2"), (Level::Warning, shared, remedy.to_owned()));
        // A worker for each CPU leaves none for other programs.
        assert!(found(&tree, "count = 4").2.starts_with("write workers.cpus = [1, 2, 3] in"));
        let isolated = "workers are not pinned: they do not use the isolated CPUs 2,3".to_owned();
        let remedy = "write workers.cpus = [3] in place of workers.count".to_owned();
        let tree = Tree::new("isolated", HEALTHY);
        assert_eq!(found(&tree, "count = 1"), (Level::Warning, isolated, remedy));
        let tree = Tree::new("one-cpu", &[("sys/devices/system/cpu/online", "0\n")]);
        assert_eq!(found(&tree, "count = 1").0, Level::Ok);
    }
}
