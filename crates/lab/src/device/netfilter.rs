//! Linux Netfilter as the device: source NAT by nf_tables in the device's namespace.

use core::net::Ipv4Addr;
use std::fs;

use super::Device;
use super::DeviceError;
use super::Needs;
use crate::topology;
use crate::topology::Topology;
use crate::topology::run;

const NAME: &str = "netfilter";
/// Connections that all namespaces together may have. Only the first namespace may change it.
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Buckets of the one table of all namespaces.
const BUCKETS: &str = "/proc/sys/net/netfilter/nf_conntrack_buckets";

/// The kernel's NAT in a namespace.
#[derive(Debug)]
pub struct Netfilter {
    topology_device: String,
    needs: Needs,
    /// What was there before, to be put back.
    before: Vec<(&'static str, String)>,
}

impl Netfilter {
    /// On the device's ends of the pairs. What the kernel does for it is steered to the device's CPU.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn new(topology: &Topology, needs: Needs) -> Result<Netfilter, DeviceError> {
        topology.steer_device_to(needs.cpu)?;
        Ok(Netfilter { topology_device: topology.device(), needs, before: Vec::new() })
    }

    fn ip(&self, words: &[&str]) -> Result<(), DeviceError> {
        let mut all = vec!["ip", "-n", self.topology_device.as_str()];
        all.extend(words);
        run(&all)?;
        Ok(())
    }

    fn shell(&self, script: &str) -> Result<String, DeviceError> {
        Ok(run(&["ip", "netns", "exec", &self.topology_device, "sh", "-c", script])?)
    }

    fn ruleset(&self) -> String {
        let first = topology::FIRST_EXTERNAL;
        let last = Ipv4Addr::from_bits(first.to_bits() + self.needs.external_addresses - 1);
        format!(
            "table ip lab {{ chain post {{ type nat hook postrouting priority srcnat; oifname \"{}\" meta l4proto {{ tcp, udp }} \
             snat to {first}-{last}:1024-65535 fully-random; }}; }}",
            topology::OUTSIDE
        )
    }

    /// Makes room in the table of all namespaces, and remembers what there was.
    fn make_room(&mut self) -> Result<(), DeviceError> {
        let wanted = self.needs.sessions + self.needs.sessions / 8 + 1024;
        for (path, wanted) in [(MAX, wanted), (BUCKETS, self.needs.sessions.next_power_of_two().max(65_536))] {
            let read = || fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
            let Some(now) = read() else { continue };
            if now >= wanted {
                continue;
            }
            // Whether it worked is seen below.
            let _ = fs::write(path, wanted.to_string());
            if read().is_some_and(|then| then != now) {
                self.before.push((path, now.to_string()));
            }
            let room = read().unwrap_or(now);
            if path == MAX && room < self.needs.sessions {
                let remedy = "run as root of the first namespace, or ask for fewer sessions";
                return Err(DeviceError::TooSmall { device: NAME, room, needed: self.needs.sessions, remedy });
            }
        }
        Ok(())
    }
}

impl Device for Netfilter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        let length = topology::LINK_PREFIX_LENGTH;
        self.ip(&["addr", "replace", &format!("{}/{length}", topology::DEVICE_INSIDE), "dev", topology::INSIDE])?;
        self.ip(&["addr", "replace", &format!("{}/{length}", topology::DEVICE_OUTSIDE), "dev", topology::OUTSIDE])?;
        self.ip(&["route", "replace", topology::INSIDE_PREFIX, "via", &topology::TESTER_INSIDE.to_string()])?;
        self.ip(&["route", "replace", topology::REMOTE_PREFIX, "via", &topology::TESTER_OUTSIDE.to_string()])?;
        self.shell("echo 1 > /proc/sys/net/ipv4/ip_forward")?;
        self.shell("nft delete table ip lab 2>/dev/null || true")?;
        self.shell(&format!("nft '{}'", self.ruleset()))?;
        let seconds = self.needs.udp_timeout_seconds;
        for key in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
            self.shell(&format!("echo {seconds} > /proc/sys/net/netfilter/{key}"))?;
        }
        self.make_room()?;
        self.empty()
    }

    fn empty(&mut self) -> Result<(), DeviceError> {
        self.shell("conntrack -F 2>/dev/null")?;
        match self.sessions()? {
            Some(left) if left > 0 => Err(DeviceError::NotEmptied { device: NAME, left }),
            _ => Ok(()),
        }
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        let text = self.shell("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
        Ok(text.trim().parse().ok())
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let Needs { sessions, external_addresses, udp_timeout_seconds, cpu } = self.needs;
        let read = |path| fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
        vec![
            ("version", format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
            ("ruleset", self.ruleset()),
            ("steered_to", format!("CPU {cpu} (receive packet steering)")),
            ("sessions_needed", sessions.to_string()),
            ("nf_conntrack_max", read(MAX)),
            ("nf_conntrack_buckets", read(BUCKETS)),
            ("external_addresses", external_addresses.to_string()),
            ("udp_timeout_seconds", udp_timeout_seconds.to_string()),
        ]
    }
}

impl Drop for Netfilter {
    fn drop(&mut self) {
        for (path, value) in self.before.drain(..).rev() {
            // The machine is left as it was, as far as it lets us.
            let _ = fs::write(path, value);
        }
        let _ = self.shell("nft delete table ip lab 2>/dev/null || true");
    }
}
