//! Devices under test: started with an empty table, emptied between trials, described in every
//! result.

mod external;
mod limits;
mod natrix;
mod netfilter;
mod slabs;
mod timers;
mod vpp;
mod wire;

use core::net::Ipv4Addr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

pub use external::External;
pub use limits::Limits;
pub use natrix::Natrix;
pub use natrix::TableBytes;
pub use netfilter::Netfilter;
pub use timers::DeviceTimers;
pub use vpp::Programs as VppPrograms;
pub use vpp::Vpp;
pub use wire::Wire;

use crate::edge::Family;
use crate::result::Settings;
use crate::tester;
use crate::topology;
use crate::topology::TopologyError;

/// How long a device that the lab starts may take to start, to connect, to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a device's rules are written, where it has several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RulesKind {
    /// One after the other: the device looks from the first on.
    List,
    /// One rule with a set of all addresses.
    Set,
    /// One rule with a map from each address to its external one.
    Map,
    /// One rule for all, and the address of the outside interface for all.
    Masquerade,
}

/// How a device gives out external ports, where it has several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// Any free port for each mapping.
    Ports,
    /// Blocks of ports for each subscriber.
    Blocks,
}

/// What a device is to be set up for. The same for each, so that results can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Sessions it has to hold.
    pub sessions: u64,
    /// External addresses it has.
    pub external_addresses: u32,
    /// External ports of each address.
    pub ports: RangeInclusive<u16>,
    /// Idle time of UDP, longer than any trial.
    pub udp_timeout_seconds: u32,
    /// CPUs it runs on, one at least; a worker on each where it has workers.
    pub cpus: Vec<usize>,
    /// Translation rules: the n-th is for the n-th inside address. 0: one for all.
    pub rules: u32,
    /// How these are written.
    pub rules_kind: RulesKind,
    /// Packet filters that match nothing of the traffic.
    pub filters: u32,
    /// How it gives out ports.
    pub allocation: Allocation,
    /// What its subscribers are.
    pub family: Family,
}

impl Needs {
    /// A device with one rule for all, no filters, all ports from 1024 on, any free port for each
    /// mapping.
    pub fn plain(sessions: u64, external_addresses: u32, udp_timeout_seconds: u32, cpu: usize) -> Needs {
        Needs {
            sessions,
            external_addresses,
            ports: 1024..=65_535,
            udp_timeout_seconds,
            cpus: vec![cpu],
            rules: 0,
            rules_kind: RulesKind::Map,
            filters: 0,
            allocation: Allocation::Ports,
            family: Family::Nat44,
        }
    }

    /// The last external address.
    fn last_external(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(topology::FIRST_EXTERNAL.to_bits() + self.external_addresses - 1)
    }

    /// The inside address of rule `rule`, from 0.
    fn inside_of_rule(rule: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_INSIDE.to_bits() + rule)
    }

    /// The outside address that filter `filter` is about, from 0: none of the traffic's.
    fn outside_of_filter(filter: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_FILTERED.to_bits() + filter)
    }

    /// What a result shows of it, whatever the device.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        let mut all = vec![
            ("cpus", cpus.join(" ")),
            ("sessions_max", self.sessions.to_string()),
            ("external_addresses", self.external_addresses.to_string()),
            ("external_ports", format!("{}-{}", self.ports.start(), self.ports.end())),
            ("rules", self.rules.max(1).to_string()),
            ("filters", self.filters.to_string()),
        ];
        if self.family != Family::Nat44 {
            all.push(("family", format!("{:?}", self.family).to_lowercase()));
        }
        if self.udp_timeout_seconds > 0 {
            // Where one timeout is for all; otherwise each timer is shown.
            all.push(("udp_timeout_seconds", self.udp_timeout_seconds.to_string()));
        }
        if self.rules > 0 || self.rules_kind == RulesKind::Masquerade {
            all.push(("rules_kind", format!("{:?}", self.rules_kind).to_lowercase()));
        }
        all
    }
}

/// Refuses a family that the lab does not set up for this device.
///
/// # Errors
/// For every family but NAT44.
pub fn check_family(device: &'static str, family: Family) -> Result<(), DeviceError> {
    match family {
        Family::Nat44 => Ok(()),
        Family::Nat64 | Family::Dslite => Err(DeviceError::Refused {
            device,
            what: "IPv6 hosts in this lab",
            remedy: "leave --family out, or measure a device that you set up yourself (--dut external)",
        }),
    }
}

/// The first inside address (RFC 9693 §4.1).
pub const FIRST_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The first address that filters are about.
const FIRST_FILTERED: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 0);

/// Why a device does not do what it has to.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A command around it failed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It does not start.
    #[error("device {device}: does not start ({message}); see {log}", log = .log.display())]
    Start {
        /// Which.
        device: &'static str,
        /// Its last words.
        message: String,
        /// All of them.
        log: PathBuf,
    },
    /// It ended while it was measured.
    #[error("device {device}: ended while it was measured ({message}), so there is no result; see {log}", log = .log.display())]
    Ended {
        /// Which.
        device: &'static str,
        /// Its last words.
        message: String,
        /// All of them.
        log: PathBuf,
    },
    /// A program that it needs is not there.
    #[error("device {device}: there is no program `{program}` on the path ({path}); {remedy}")]
    NoProgram {
        /// Which device.
        device: &'static str,
        /// Name of the program.
        program: &'static str,
        /// Where it was looked for.
        path: String,
        /// What helps.
        remedy: &'static str,
    },
    /// A file for it cannot be written.
    #[error("device {device}: {path}: {source}; choose a folder that can be written", path = .path.display())]
    File {
        /// Which.
        device: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The table still has entries after it was emptied.
    #[error(
        "device {device}: its table was not emptied ({left} entries left), so no result is valid; see that nobody else uses it, and that it can be emptied"
    )]
    NotEmptied {
        /// Which.
        device: &'static str,
        /// Entries left.
        left: u64,
    },
    /// It has no such thing.
    #[error("device {device}: has no {what}; {remedy}")]
    Refused {
        /// Which.
        device: &'static str,
        /// What was asked of it.
        what: &'static str,
        /// What helps.
        remedy: &'static str,
    },
    /// A signal came while it was started or emptied.
    #[error("lab: interrupted while the device was started or emptied; start it again")]
    Interrupted,
    /// The command that empties the table of a device from elsewhere failed.
    #[error(
        "--empty-command: `{command}` failed ({message}); give one that empties the device's table and then ends with status 0"
    )]
    EmptyCommand {
        /// The command.
        command: String,
        /// Its status and first line.
        message: String,
    },
    /// The kernel holds fewer sessions than the test needs.
    #[error("device {device}: holds {room} sessions at most ({needed} are needed); {remedy}")]
    TooSmall {
        /// Which.
        device: &'static str,
        /// Room there is.
        room: u64,
        /// Room needed.
        needed: u64,
        /// What helps.
        remedy: &'static str,
    },
}

/// A NAT that is measured.
pub trait Device {
    /// `natrix`, `netfilter`, `vpp`, `external` or `wire`.
    fn name(&self) -> &'static str;

    /// Starts it, its table empty.
    ///
    /// # Errors
    /// When it does not start.
    fn start(&mut self) -> Result<(), DeviceError>;

    /// Empties its table, by whatever way it has, and makes sure of it. How long the emptying alone
    /// took: what is looked at before and after does not count.
    ///
    /// # Errors
    /// When entries are left.
    fn empty(&mut self) -> Result<Duration, DeviceError>;

    /// Entries of its table now; None where it does not report them.
    ///
    /// # Errors
    /// When the device does not answer.
    fn sessions(&mut self) -> Result<Option<u64>, DeviceError>;

    /// Holds no more sessions than it was set up for, where it would.
    ///
    /// # Errors
    /// When it cannot be limited.
    fn limit(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Whether it still runs, where that can be known.
    ///
    /// # Errors
    /// When it ended.
    fn alive(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// How long it may take to connect its links, and to answer ARP, while it is alive.
    fn patience(&self) -> Duration {
        tester::PATIENCE
    }

    /// Version, and every setting that matters (RFC 9693 §5: they have to be reported), by name.
    fn settings(&self) -> Settings;
}
