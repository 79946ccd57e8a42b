//! The test hosts: two network namespaces, the tester's and the device's, with a virtual Ethernet pair on each side.
//!
//! ```text
//!   PREFIX-tester                                              PREFIX-device
//!     inside   10.255.0.2/30   ──────── veth ────────  inside   10.255.0.1/30
//!     outside  172.16.255.2/30 ──────── veth ────────  outside  172.16.255.1/30
//! ```
//!
//! The tester is a router on both links: 10.0.0.0/16 is behind it inside, 198.19.0.0/16 outside (RFC 9693 §4.1 has them on
//! the links themselves; here the device needs one neighbour a side, so that no trial measures ARP). External addresses are of 198.18.0.0/16.

use core::net::Ipv4Addr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;

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
    #[error("lab: {program} can not be started ({source}); install it (scripts/setup.sh does)")]
    Program {
        /// Which.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A command failed.
    #[error("lab: `{command}` failed ({told}); run as root, and `natrix lab down` removes what an earlier run left")]
    Command {
        /// The whole command.
        command: String,
        /// What it said.
        told: String,
    },
    /// The namespace can not be entered.
    #[error("lab: namespace {name} can not be entered ({source}); run as root")]
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
    let told = String::from_utf8_lossy(&output.stderr);
    Err(TopologyError::Command {
        command: words.join(" "),
        told: told.lines().next().unwrap_or("no message").trim().to_owned(),
    })
}

fn output_of(words: &[&str]) -> Result<Output, TopologyError> {
    let (program, arguments) = words.split_first().unwrap_or((&"", &[]));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.output().map_err(|source| TopologyError::Program { program: (*program).to_owned(), source })
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
            run(&[
                "ip",
                "link",
                "add",
                pair,
                "netns",
                &tester,
                "numrxqueues",
                "1",
                "numtxqueues",
                "1",
                "type",
                "veth",
                "peer",
                "name",
                pair,
                "netns",
                &device,
                "numrxqueues",
                "1",
                "numtxqueues",
                "1",
            ])?;
            for name in [&tester, &device] {
                // Frames are to cross as they are: nobody else finishes checksums, cuts or joins them.
                run(&[
                    "ip", "netns", "exec", name, "ethtool", "-K", pair, "tx", "off", "rx", "off", "tso", "off", "gso",
                    "off", "gro", "off",
                ])?;
                run(&["ip", "-n", name, "link", "set", pair, "up"])?;
            }
        }
        topology.stays = stays;
        Ok(topology)
    }

    /// Namespaces that stand already; None when they do not.
    pub fn standing() -> Option<Topology> {
        let topology = Topology { prefix: Topology::STANDING.to_owned(), stays: true };
        let is_there = |name: String| std::path::Path::new("/run/netns").join(name).exists();
        (is_there(topology.tester()) && is_there(topology.device())).then_some(topology)
    }

    /// Removes standing namespaces. Whether there were any.
    ///
    /// # Errors
    /// When they can not be removed.
    pub fn remove_standing() -> Result<bool, TopologyError> {
        let Some(topology) = Topology::standing() else { return Ok(false) };
        for name in [topology.tester(), topology.device()] {
            run(&["ip", "netns", "delete", &name])?;
        }
        Ok(true)
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
    /// When there is no such file, or it can not be written.
    pub fn write(&self, namespace: &str, path: &str, value: &str) -> Result<(), TopologyError> {
        run(&["ip", "netns", "exec", namespace, "sh", "-c", &format!("echo {value} > {path}")]).map(drop)
    }

    /// Lets one CPU do what the kernel does with frames that arrive at the device: by receive packet steering, as virtual Ethernet pairs
    /// otherwise work on the CPU of whoever sends.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn steer_device_to(&self, cpu: usize) -> Result<(), TopologyError> {
        for pair in [INSIDE, OUTSIDE] {
            let path = format!("/sys/class/net/{pair}/queues/rx-0/rps_cpus");
            self.write(&self.device(), &path, &format!("{:x}", 1_u64 << cpu.min(63)))?;
        }
        Ok(())
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if !self.stays {
            for name in [self.tester(), self.device()] {
                // What is not there needs no removing.
                let _ = run(&["ip", "netns", "delete", &name]);
            }
        }
    }
}
