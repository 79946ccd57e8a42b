//! What a result says besides its figures: the machine, the versions, the command, the time. Without these nobody can repeat it.

use std::fs;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use serde::Serialize;

/// The machine a result was taken on (RFC 9693 §5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Model of its CPUs.
    pub cpu: String,
    /// CPUs that are on.
    pub cpus: usize,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Distribution.
    pub system: String,
}

impl Machine {
    /// This one, as far as it tells.
    pub fn this() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, key: &str, separator: char| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal", ':').unwrap_or_default();
        let kib: u64 = memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Machine {
            cpu: after(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(|| "unknown".to_owned()),
            // Not those this thread may use: the tester is pinned.
            cpus: read("/proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: kib >> 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: after(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

/// One result, with all that is needed to repeat it.
#[derive(Clone, Debug, Serialize)]
pub struct Record<P: Serialize, R: Serialize> {
    /// `cps`, `throughput` and so on.
    pub test: &'static str,
    /// The device.
    pub dut: &'static str,
    /// How tester and device are connected.
    pub transport: String,
    /// The parameters.
    pub parameters: P,
    /// What came of it.
    pub result: R,
    /// The device's version and settings.
    pub device: Vec<(&'static str, String)>,
    /// The machine.
    pub machine: Machine,
    /// Release of the tester.
    pub version: &'static str,
    /// CPU of the tester, and of the device.
    pub cpus: [usize; 2],
    /// Seconds since 1970 when it began.
    pub started_unix: u64,
    /// How long it took.
    pub took_seconds: f64,
    /// The command.
    pub command: String,
}

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
