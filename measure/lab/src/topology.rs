//! The test hosts: two network namespaces, the tester's and the device's, with a virtual Ethernet
//! pair on each side.
//!
//! ```text
//!   PREFIX-tester                                              PREFIX-device
//!     inside   10.255.0.2/30   ──────── veth ────────  inside   10.255.0.1/30
//!     outside  172.16.255.2/30 ──────── veth ────────  outside  172.16.255.1/30
//! ```
//!
//! The tester is a router on both links: 10.0.0.0/16 is behind it inside, 198.19.0.0/16 outside
//! (RFC 9693 §4.1 has them on the links themselves; here the device needs one neighbour a side, so
//! that no trial measures ARP). External addresses are of 198.18.0.0/16.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::setpriority_process;
use rustix::thread::CapabilitySet;
use rustix::thread::CpuSet;
use rustix::thread::sched_setaffinity;

/// The device's address on the inside link.
pub const DEVICE_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// The tester's address on the inside link.
pub const TESTER_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 2);
/// The device's address on the outside link.
pub const DEVICE_OUTSIDE: Ipv4Addr = Ipv4Addr::new(172, 16, 255, 1);
/// The tester's address on the outside link.
pub const TESTER_OUTSIDE: Ipv4Addr = Ipv4Addr::new(172, 16, 255, 2);
/// Length of the prefix of either link.
pub const LINK_PREFIX_LENGTH: u8 = 30;
/// Where all inside endpoints are.
pub const INSIDE_PREFIX: &str = "10.0.0.0/16";
/// Where all remote endpoints are.
pub const REMOTE_PREFIX: &str = "198.19.0.0/16";
/// The first external address.
pub const FIRST_EXTERNAL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Name of either end of the inside pair.
pub const INSIDE: &str = "inside";
/// Name of either end of the outside pair.
pub const OUTSIDE: &str = "outside";

/// Why there are no test hosts.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A command is not there.
    #[error("lab: {program} cannot be started ({source}); install it (scripts/setup.sh does)")]
    Program {
        /// Which.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A command failed.
    #[error("lab: `{command}` failed ({message}); {}`natrix lab down` removes what an earlier run left", as_root())]
    Command {
        /// The whole command.
        command: String,
        /// What it said.
        message: String,
    },
    /// Not root.
    #[error(
        "lab: network namespaces need root (user {user} asks); run it with sudo (tests of natrix over --transport memif need none)"
    )]
    NotRoot {
        /// Who it is.
        user: u32,
    },
    /// Root without all that root may do, as in a container.
    #[error(
        "lab: {what} needs {missing}, which this process lacks; run it with {missing} (in a container: --cap-add, or --privileged)"
    )]
    Capability {
        /// What needs them.
        what: &'static str,
        /// Their names.
        missing: String,
    },
    /// A thread of the kernel stays where it is.
    #[error(
        "lab: the device cannot be bound to its CPUs {cpus:?} ({source}); name CPUs that are on with --device-cpus"
    )]
    Pin {
        /// Where it should work.
        cpus: Vec<usize>,
        /// What the system said.
        source: io::Error,
    },
    /// The namespace cannot be entered.
    #[error("lab: namespace {name} cannot be entered ({source}); run as root")]
    Enter {
        /// Which.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Runs a command to its end. Its output, when it succeeded.
///
/// # Errors
/// When it is not there, or fails.
pub fn run(words: &[&str]) -> Result<String, TopologyError> {
    let output = output_of(words)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(TopologyError::Command {
        command: words.join(" "),
        message: message.lines().next().unwrap_or("no message").trim().to_owned(),
    })
}

fn output_of(words: &[&str]) -> Result<Output, TopologyError> {
    let (program, arguments) = words.split_first().unwrap_or((&"", &[]));
    let mut command = Command::new(program);
    // A signal for the lab is the lab's: what it has begun is brought to its end.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    command.output().map_err(|source| TopologyError::Program { program: (*program).to_owned(), source })
}

/// Removes namespaces; what is not there needs no removing. One program does it for all: on a busy
/// machine each takes a while to start.
pub(crate) fn remove_namespaces(names: &[String]) {
    let lines: String = names.iter().map(|name| format!("netns delete {name}\n")).collect();
    let mut ip = Command::new("ip");
    ip.args(["-force", "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = ip.process_group(0).spawn() else { return };
    // It reads all lines: without them it removes nothing, and nobody could do more about it.
    let _ = child.stdin.take().map(|mut input| input.write_all(lines.as_bytes()));
    let _ = child.wait();
}

/// What helps first who is not root.
fn as_root() -> &'static str {
    if rustix::process::geteuid().is_root() { "" } else { "run as root; " }
}

/// What namespaces, their links, and sockets that take whole frames need.
const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
];
/// What it needs to say where a thread of the kernel runs: that may do all that there is.
const NEEDED_TO_PIN: [(CapabilitySet, &str); 1] = [(CapabilitySet::SYS_NICE, "CAP_SYS_NICE")];

/// The names of those that are missing; None when none is.
fn missing(needed: &[(CapabilitySet, &str)], held: CapabilitySet) -> Option<String> {
    let missing: Vec<&str> = needed.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| *name).collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// Whether this process may do what needs these.
fn check_capabilities(what: &'static str, needed: &[(CapabilitySet, &str)]) -> Result<(), TopologyError> {
    // Where the kernel does not say, what needs them does.
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
    missing(needed, held).map_or(Ok(()), |missing| Err(TopologyError::Capability { what, missing }))
}

/// Whether this process may make namespaces: said before anything is made.
pub(crate) fn check_privileges() -> Result<(), TopologyError> {
    match rustix::process::geteuid().as_raw() {
        0 => check_capabilities("a network namespace, with ports for the tester,", &NEEDED),
        user => Err(TopologyError::NotRoot { user }),
    }
}

/// Makes a virtual Ethernet pair with these ends, each a name and a namespace, and sets it up.
fn connect(ends: [(&str, &str); 2]) -> Result<(), TopologyError> {
    let [(name, namespace), (peer, peer_namespace)] = ends;
    let queues = ["numrxqueues", "1", "numtxqueues", "1"];
    let mut words = vec!["ip", "link", "add", name, "netns", namespace];
    words.extend(queues);
    words.extend(["type", "veth", "peer", "name", peer, "netns", peer_namespace]);
    words.extend(queues);
    run(&words)?;
    for (name, namespace) in ends {
        // Frames are to cross as they are: nobody else finishes checksums, cuts or joins them.
        run(&[
            "ip", "netns", "exec", namespace, "ethtool", "-K", name, "tx", "off", "rx", "off", "tso", "off", "gso",
            "off", "gro", "off",
        ])?;
        run(&["ip", "-n", namespace, "link", "set", name, "up"])?;
    }
    Ok(())
}

/// The two namespaces. Removed when dropped, unless they are to stay.
#[derive(Debug)]
pub struct Topology {
    prefix: String,
    stays: bool,
}

impl Topology {
    /// The name of namespaces that `natrix lab up` makes.
    pub const STANDING: &'static str = "natrix-lab";

    /// Builds them; names begin with `prefix`. With `stays` they are left when this is dropped.
    ///
    /// # Errors
    /// When a command fails. What was built is removed again.
    pub fn build(prefix: &str, stays: bool) -> Result<Topology, TopologyError> {
        check_privileges()?;
        let mut topology = Topology { prefix: prefix.to_owned(), stays: false };
        let (tester, device) = (topology.tester(), topology.device());
        for name in [&tester, &device] {
            run(&["ip", "netns", "add", name])?;
            run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
            for key in ["all", "default"] {
                // A kernel without IPv6 needs nothing.
                let _ = topology.write(name, &format!("/proc/sys/net/ipv6/conf/{key}/disable_ipv6"), "1");
                topology.write(name, &format!("/proc/sys/net/ipv4/conf/{key}/rp_filter"), "0")?;
            }
        }
        for pair in [INSIDE, OUTSIDE] {
            connect([(pair, &tester), (pair, &device)])?;
        }
        topology.stays = stays;
        Ok(topology)
    }

    /// The tester's namespace alone, one pair from its inside to its outside port: for what the
    /// tester can do itself.
    ///
    /// # Errors
    /// When a command fails. What was built is removed again.
    pub fn straight(prefix: &str) -> Result<Topology, TopologyError> {
        check_privileges()?;
        let topology = Topology { prefix: prefix.to_owned(), stays: false };
        let tester = topology.tester();
        run(&["ip", "netns", "add", &tester])?;
        for key in ["all", "default"] {
            // A kernel without IPv6 needs nothing.
            let _ = topology.write(&tester, &format!("/proc/sys/net/ipv6/conf/{key}/disable_ipv6"), "1");
        }
        connect([(INSIDE, &tester), (OUTSIDE, &tester)])?;
        Ok(topology)
    }

    /// Namespaces that stand already; None when they do not.
    pub fn standing() -> Option<Topology> {
        let topology = Topology { prefix: Topology::STANDING.to_owned(), stays: true };
        let is_there = |name: String| Path::new("/run/netns").join(name).exists();
        (is_there(topology.tester()) && is_there(topology.device())).then_some(topology)
    }

    /// Removes standing namespaces. Whether there were any.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove_standing() -> Result<bool, TopologyError> {
        let Some(topology) = Topology::standing() else { return Ok(false) };
        for name in [topology.tester(), topology.device()] {
            run(&["ip", "netns", "delete", &name])?;
        }
        Ok(true)
    }

    /// Removes what runs left behind that have ended: their namespaces have the number of a process
    /// that is gone. Their names.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove_left() -> Result<Vec<String>, TopologyError> {
        let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let left: Vec<String> = names.filter(|name| owner_of(name).is_some_and(is_gone)).collect();
        for name in &left {
            run(&["ip", "netns", "delete", name])?;
        }
        Ok(left)
    }

    /// Gives all ends of the pairs this MTU: packets of a family that are longer inside fit.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), TopologyError> {
        for namespace in [self.tester(), self.device()] {
            // The tester's own ceiling is measured without a device.
            if Path::new("/run/netns").join(&namespace).exists() {
                for end in [INSIDE, OUTSIDE] {
                    run(&["ip", "-n", &namespace, "link", "set", end, "mtu", &mtu.to_string()])?;
                }
            }
        }
        Ok(())
    }

    /// Name of the tester's namespace.
    pub fn tester(&self) -> String {
        format!("{}-tester", self.prefix)
    }

    /// Name of the device's namespace.
    pub fn device(&self) -> String {
        format!("{}-device", self.prefix)
    }

    /// Moves the calling thread, and all that it starts from now on, to the tester's namespace.
    ///
    /// # Errors
    /// Without the privilege.
    pub fn enter_tester(&self) -> Result<(), TopologyError> {
        // Hosts that stand already were made by somebody who may more.
        check_privileges()?;
        let name = self.tester();
        let enter = || -> io::Result<()> {
            let file = File::open(format!("/run/netns/{name}"))?;
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            Ok(rustix::thread::move_into_link_name_space(file.as_fd(), kind)?)
        };
        enter().map_err(|source| TopologyError::Enter { name: name.clone(), source })
    }

    /// Writes a value into a file of the kernel as a namespace sees it.
    ///
    /// # Errors
    /// When there is no such file, or it cannot be written.
    pub fn write(&self, namespace: &str, path: &str, value: &str) -> Result<(), TopologyError> {
        run(&["ip", "netns", "exec", namespace, "sh", "-c", &format!("echo {value} > {path}")]).map(drop)
    }

    /// Lets a device that is the kernel itself work on these CPUs: threads of its own there take
    /// the frames that arrive (threaded NAPI). Otherwise a virtual pair works on the CPU of the
    /// sender, which would be the tester's. Receive packet steering instead would cost an interrupt
    /// of the other CPU per frame.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn thread_device_on(&self, cpus: &[usize]) -> Result<(), TopologyError> {
        check_capabilities("the device, whose threads are the kernel's and have a CPU of their own,", &NEEDED_TO_PIN)?;
        let device = self.device();
        let before = napi_threads();
        for pair in [INSIDE, OUTSIDE] {
            // A pair has NAPI only with GRO; there is nothing to join in datagrams.
            run(&["ip", "netns", "exec", &device, "ethtool", "-K", pair, "gro", "on"])?;
            self.defer(&device, pair, "0", "0")?;
            self.write(&device, &format!("/sys/class/net/{pair}/threaded"), "1")?;
        }
        let mut allowed = CpuSet::new();
        for cpu in cpus {
            allowed.set(*cpu);
        }
        for thread in napi_threads().into_iter().filter(|thread| !before.contains(thread)) {
            sched_setaffinity(Some(thread), &allowed)
                .map_err(|error| TopologyError::Pin { cpus: cpus.to_vec(), source: error.into() })?;
            // Before ordinary programs, as tester and other devices are; without the privilege it
            // stays as it is.
            let _ = setpriority_process(Some(thread), crate::priority::NICE);
        }
        Ok(())
    }

    /// Lets the thread that polls the sockets of a namespace's ports take their frames in on its
    /// own CPU: the kernel puts off its interrupts for them, and a timer there works off what has
    /// come.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn poll_by_socket(&self, namespace: &str) -> Result<(), TopologyError> {
        for pair in [INSIDE, OUTSIDE] {
            // Of hosts that stand, another device may have left it so; a pair without NAPI has no
            // threads to end.
            let _ = self.write(namespace, &format!("/sys/class/net/{pair}/threaded"), "0");
            run(&["ip", "netns", "exec", namespace, "ethtool", "-K", pair, "gro", "on"])?;
            self.defer(namespace, pair, "2", POLL_TIMEOUT_NS)?;
        }
        Ok(())
    }

    /// After so many polls that found something interrupts come again, and after this time without
    /// a poll.
    fn defer(&self, namespace: &str, pair: &str, polls: &str, nanoseconds: &str) -> Result<(), TopologyError> {
        self.write(namespace, &format!("/sys/class/net/{pair}/napi_defer_hard_irqs"), polls)?;
        self.write(namespace, &format!("/sys/class/net/{pair}/gro_flush_timeout"), nanoseconds)
    }
}

/// So long has a device that was asked to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// After this time the kernel takes frames in. Half of it costs the tester a third of its rate, as
/// it works for fewer frames each time; twice of it costs Natrix a quarter of its throughput, as a
/// pair holds 256 frames, and 100 µs of delay on each of two ways.
const POLL_TIMEOUT_NS: &str = "100000";

/// The kernel's threads that take frames in.
fn napi_threads() -> Vec<Pid> {
    let is_napi =
        |name: &str| fs::read_to_string(format!("/proc/{name}/comm")).is_ok_and(|comm| comm.starts_with("napi/"));
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_napi(name));
    names.filter_map(|name| Pid::from_raw(name.parse().ok()?)).collect()
}

/// The process that made a namespace of this name for a run of its own.
fn owner_of(namespace: &str) -> Option<u32> {
    let rest = namespace.strip_prefix(Topology::STANDING)?.strip_prefix('-')?;
    let (process, host) = rest.split_once('-')?;
    let is_nat = || host.strip_prefix("nat").is_some_and(|number| number.parse::<u8>().is_ok());
    (HOSTS.contains(&host) || is_nat()).then(|| process.parse().ok())?
}

/// The hosts of a run: those of a test, and those of several NATs side by side.
const HOSTS: [&str; 6] = ["tester", "device", "subs", "access", "border", "server"];

/// The folder that a run of this process has for the device's files.
pub fn run_folder(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{}-{process}", Topology::STANDING))
}

/// The process whose run has this folder.
fn owner_of_folder(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix(Topology::STANDING)?.strip_prefix('-')?.parse().ok()
}

/// The folder of the run that a process with this command line, its words ended by zero bytes, is a
/// device of.
fn folder_of_device(command_line: &[u8]) -> Option<PathBuf> {
    let words: Vec<&str> = command_line.split(|byte| *byte == 0).map(str::from_utf8).collect::<Result<_, _>>().ok()?;
    let (configuration, name) = match words[..] {
        [_, "run", "-c", configuration, ..] => (configuration, ".toml"),
        [program, "-c", configuration, ..] if program.ends_with("/vpp") => (configuration, "vpp.conf"),
        // A routing daemon beside one of several NATs.
        [_, "-f", configuration, ..] => {
            let folder = Path::new(configuration).parent()?.parent()?;
            return owner_of_folder(folder).map(|_| folder.to_owned());
        }
        _ => return None,
    };
    let folder = Path::new(configuration).parent().filter(|_| configuration.ends_with(name))?;
    owner_of_folder(folder).map(|_| folder.to_owned())
}

/// What runs left that have ended, besides namespaces: devices that run still, and folders.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Numbers of processes that were ended.
    pub devices: Vec<u32>,
    /// Folders that were removed.
    pub folders: Vec<PathBuf>,
}

/// Ends the devices of runs that have ended, and removes their folders.
pub fn end_left() -> Left {
    let mut left = Left::default();
    let is_left = |folder: &Path| owner_of_folder(folder).is_some_and(is_gone);
    let mut folders = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Some(folder) = fs::read(entry.path().join("cmdline")).ok().as_deref().and_then(folder_of_device) else {
            continue;
        };
        if is_left(&folder) {
            left.devices.push(process);
            folders.push(folder);
        }
    }
    for process in &left.devices {
        end(*process);
    }
    let here = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.extend(here.filter(|path| is_left(path) && path.is_dir()));
    folders.sort();
    folders.dedup();
    left.folders = folders.into_iter().filter(|folder| fs::remove_dir_all(folder).is_ok()).collect();
    left
}

/// Asks a process to end, and kills it where it does not.
fn end(process: u32) {
    crate::process::ask_to_end(process);
    let deadline = Instant::now() + PATIENCE;
    while !is_gone(process) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw).filter(|_| !is_gone(process)) {
        // It may have ended a moment ago.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Whether there is no such process.
pub(crate) fn is_gone(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

impl Drop for Topology {
    fn drop(&mut self) {
        if !self.stays {
            remove_namespaces(&[self.tester(), self.device()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_are_missing_are_named() {
        let all = CapabilitySet::all();
        assert_eq!(missing(&NEEDED, all), None);
        assert_eq!(missing(&NEEDED, all - CapabilitySet::NET_RAW).as_deref(), Some("CAP_NET_RAW"));
        assert_eq!(missing(&NEEDED, CapabilitySet::SYS_ADMIN).as_deref(), Some("CAP_NET_ADMIN and CAP_NET_RAW"));
        assert_eq!(missing(&NEEDED_TO_PIN, CapabilitySet::empty()).as_deref(), Some("CAP_SYS_NICE"));
        let error = TopologyError::Capability { what: "a namespace", missing: "CAP_NET_RAW".to_owned() };
        let message = "lab: a namespace needs CAP_NET_RAW, which this process lacks; run it with CAP_NET_RAW (in a container: --cap-add, or --privileged)";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn namespaces_of_runs_and_standing_ones_are_distinguished() {
        assert_eq!(owner_of("natrix-lab-4711-tester"), Some(4711));
        assert_eq!(owner_of("natrix-lab-4711-device"), Some(4711));
        for host in ["subs", "access", "border", "server", "nat1", "nat4"] {
            assert_eq!(owner_of(&format!("natrix-lab-4711-{host}")), Some(4711), "{host}");
        }
        for other in
            ["natrix-lab-tester", "natrix-lab-4711", "natrix-lab-x-device", "natrix-lab-1-native", "blue-1-device"]
        {
            assert_eq!(owner_of(other), None, "{other}");
        }
        assert!(!is_gone(std::process::id()));
    }

    #[test]
    fn devices_of_runs_are_known_by_their_configuration() {
        let folder = run_folder(4711);
        let message = |words: &[&str]| folder_of_device(words.join("\0").as_bytes());
        let configuration = folder.join("natrix.toml");
        assert_eq!(message(&["/x/natrix", "run", "-c", &configuration.to_string_lossy(), ""]), Some(folder.clone()));
        let of_vpp = folder.join("vpp.conf");
        assert_eq!(message(&["/usr/bin/vpp", "-c", &of_vpp.to_string_lossy(), ""]), Some(folder.clone()));
        let of_frr = folder.join("frr-natrix-lab-4711-nat1/ospfd.conf");
        assert_eq!(message(&["/usr/lib/frr/ospfd", "-f", &of_frr.to_string_lossy(), ""]), Some(folder));
        assert_eq!(message(&["/usr/lib/frr/ospfd", "-f", "/etc/frr/ospfd.conf", ""]), None);
        assert_eq!(message(&["/usr/bin/vi", "-c", &of_vpp.to_string_lossy(), ""]), None);
        for other in [
            "/etc/natrix/natrix.toml",
            "/tmp/natrix-lab-x/natrix.toml",
            "/tmp/natrix-lab-4711/natrix.conf",
            "/natrix.toml",
        ] {
            assert_eq!(message(&["/x/natrix", "run", "-c", other]), None, "{other}");
        }
        assert_eq!(message(&["vi", "/tmp/natrix-lab-4711/natrix.toml"]), None);
    }

    #[test]
    fn a_device_whose_run_is_gone_ends_and_its_folder_is_removed() {
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let folder = run_folder(gone.id());
        fs::create_dir_all(&folder).unwrap();
        // As a device is started; it only sleeps.
        let configuration = folder.join("natrix.toml");
        let script = folder.join("run");
        fs::write(&script, "sleep 600 & trap 'kill $!; exit' TERM; touch ready; wait").unwrap();
        let mut device =
            Command::new("/bin/sh").args(["run", "-c"]).arg(&configuration).current_dir(&folder).spawn().unwrap();
        let number = device.id();
        // Its words can be read only once it runs.
        let is_ready = (0..2_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            folder.join("ready").exists()
        });
        assert!(is_ready, "a shell starts within 20 s");
        let reaper = std::thread::spawn(move || device.wait());
        let left = end_left();
        assert!(left.devices.contains(&number), "{left:?}");
        assert!(left.folders.contains(&folder) && !folder.exists(), "{left:?}");
        reaper.join().unwrap().unwrap();
        let own = run_folder(std::process::id());
        assert!(!end_left().folders.contains(&own), "its owner lives");
    }
}
