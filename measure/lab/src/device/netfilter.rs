//! Linux Netfilter as the device: source NAT by nf_tables in the device's namespace.

use core::fmt::Write as _;
use core::net::Ipv4Addr;
use core::time::Duration;
use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::time::Instant;

use super::Allocation;
use super::Device;
use super::DeviceError;
use super::DeviceTimers;
use super::Needs;
use super::PATIENCE;
use super::RulesKind;
use super::limits::BUCKETS;
use super::limits::Limits;
use super::limits::MAX;
use super::slabs::Slabs;
use crate::result::Settings;
use crate::topology;
use crate::topology::Topology;
use crate::topology::run;

const NAME: &str = "netfilter";
/// Entries that the tester's pings make, one on either side, before a trial: they are none of its
/// connections.
const TESTERS_OWN: u64 = 2;

/// How its connection tracking handles TCP. Each value is set, whatever the kernel's default is,
/// and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    /// A connection begins with its SYN, as with Natrix: what is on its way while the table is
    /// emptied opens none, so that every entry of a trial is one that a handshake of this trial
    /// made.
    Strict,
    /// Any segment may be the middle of a connection, as the kernel comes.
    Loose,
}

impl Tracking {
    /// By the end of the kernel's names. The kernel looks at windows in either case; a liberal
    /// check has less work.
    const fn values(self) -> [(&'static str, &'static str); 2] {
        let loose = match self {
            Tracking::Strict => "0",
            Tracking::Loose => "1",
        };
        [("tcp_loose", loose), ("tcp_be_liberal", "0")]
    }
}

/// As much of a ruleset goes into a result, bytes; it is ASCII.
const RULESET_TOLD: usize = 2000;

/// The kernel's NAT in a namespace.
#[derive(Debug)]
pub struct Netfilter {
    topology_device: String,
    folder: PathBuf,
    needs: Needs,
    /// The kernel's limits for all namespaces, open: only who is in the first one can open them for
    /// writing, and the tester leaves it.
    limits: Vec<(&'static str, File)>,
    /// What was there before, to be put back.
    before: Vec<(&'static str, u64)>,
    /// The kernel's memory without connections.
    empty_slabs: Option<Slabs>,
    /// Connections when there were most of them, and the bytes each took.
    weighed: Option<(u64, f64)>,
    /// Seconds, by the end of their names.
    timeouts: Vec<(&'static str, u32)>,
    tracking: Tracking,
    /// Nothing but `masquerade`, as home routers have it: no range of ports, no port by chance.
    is_home_router: bool,
}

impl Netfilter {
    /// On the device's ends of the pairs. Its ruleset goes to `folder`.
    ///
    /// # Errors
    /// When it has not what is asked of it.
    pub fn new(topology: &Topology, folder: &Path, needs: Needs) -> Result<Netfilter, DeviceError> {
        super::check_family(NAME, needs.family)?;
        if needs.allocation == Allocation::Blocks {
            let (what, remedy) = ("port blocks", "leave --allocation out, or measure --dut natrix");
            return Err(DeviceError::Refused { device: NAME, what, remedy });
        }
        if needs.rules_kind == RulesKind::Masquerade && needs.rules > 0 {
            let (what, remedy) = ("several rules that masquerade", "leave --rules out, or choose another --rules-kind");
            return Err(DeviceError::Refused { device: NAME, what, remedy });
        }
        let udp = needs.udp_timeout_seconds;
        let timeouts = vec![("udp_timeout", udp), ("udp_timeout_stream", udp)];
        let folder = folder.to_owned();
        Ok(Netfilter {
            topology_device: topology.device(),
            folder,
            needs,
            limits: Vec::new(),
            before: Vec::new(),
            empty_slabs: None,
            weighed: None,
            timeouts,
            tracking: Tracking::Strict,
            is_home_router: false,
        })
    }

    /// As the kernel comes, where it is not measured but asked how it behaves. To be called before
    /// it is started.
    #[must_use]
    pub fn with_loose_tracking(mut self) -> Netfilter {
        self.tracking = Tracking::Loose;
        self
    }

    /// With the rule that home routers have, `masquerade` and nothing else: it keeps ports where
    /// nobody has them at the same server. Addresses and ports of its needs mean nothing then. To
    /// be called before it is started.
    #[must_use]
    pub fn as_home_router(mut self) -> Netfilter {
        self.is_home_router = true;
        self
    }

    /// With these timers; None for those it has when nobody says anything. To be called before it
    /// is started.
    #[must_use]
    pub fn with_timers(mut self, timers: Option<DeviceTimers>) -> Netfilter {
        self.timeouts = timers.map_or_else(Vec::new, |timers| {
            vec![
                ("udp_timeout", timers.udp_unanswered),
                ("udp_timeout_stream", timers.udp),
                ("tcp_timeout_syn_sent", timers.tcp_opening),
                ("tcp_timeout_syn_recv", timers.tcp_opening),
                ("tcp_timeout_established", timers.tcp_established),
                ("tcp_timeout_fin_wait", timers.tcp_closing),
                ("tcp_timeout_close_wait", timers.tcp_closing),
                ("tcp_timeout_last_ack", timers.tcp_closing),
                ("tcp_timeout_time_wait", timers.tcp_closing),
                ("tcp_timeout_close", timers.tcp_closing),
                ("icmp_timeout", timers.icmp),
            ]
        });
        self
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

    /// A value of its connection tracking, as its namespace has it.
    fn told(&self, key: &str) -> String {
        let text = self.shell(&format!("cat /proc/sys/net/netfilter/nf_conntrack_{key}"));
        text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    }

    fn external(&self) -> String {
        let Needs { ports, .. } = &self.needs;
        format!("{}-{}:{}-{}", topology::FIRST_EXTERNAL, self.needs.last_external(), ports.start(), ports.end())
    }

    /// Ruleset for nft, whole.
    fn ruleset(&self) -> String {
        let Needs { rules, rules_kind, filters, external_addresses, ports, .. } = &self.needs;
        let (mut sets, mut translate, mut forward) = (String::new(), String::new(), String::new());
        let all = format!("oifname \"{}\" meta l4proto {{ tcp, udp }}", topology::OUTSIDE);
        let external = self.external();
        let out = topology::OUTSIDE;
        let (first, last) = (topology::FIRST_EXTERNAL, self.needs.last_external());
        let addresses = |of: fn(u32) -> Ipv4Addr, count: u32| {
            (0..count).map(|number| of(number).to_string()).collect::<Vec<_>>().join(", ")
        };
        // Writing to a String does not fail.
        let _ = match (rules, rules_kind) {
            _ if self.is_home_router => Ok(()),
            (_, RulesKind::Masquerade) => {
                writeln!(translate, "{all} masquerade to :{}-{} fully-random", ports.start(), ports.end())
            }
            (0, _) => writeln!(translate, "{all} snat to {external} fully-random"),
            (count, RulesKind::List) => (0..*count).try_for_each(|rule| {
                writeln!(translate, "ip saddr {} {all} snat to {external} fully-random", Needs::inside_of_rule(rule))
            }),
            (count, RulesKind::Set) => {
                let elements = addresses(Needs::inside_of_rule, *count);
                let _ = writeln!(sets, "set inside {{ type ipv4_addr; elements = {{ {elements} }}; }}");
                writeln!(translate, "ip saddr @inside {all} snat to {external} fully-random")
            }
            (count, RulesKind::Map) => {
                let first = topology::FIRST_EXTERNAL.to_bits();
                let pair = |rule: u32| {
                    let own = Ipv4Addr::from_bits(first + rule % external_addresses);
                    format!("{} : {own} . {}-{}", Needs::inside_of_rule(rule), ports.start(), ports.end())
                };
                let elements = (0..*count).map(pair).collect::<Vec<_>>().join(", ");
                let kind = "type ipv4_addr : interval ipv4_addr . inet_service; flags interval";
                let _ = writeln!(sets, "map inside {{ {kind}; elements = {{ {elements} }}; }}");
                writeln!(translate, "{all} snat ip to ip saddr map @inside fully-random")
            }
        };
        let _ = match (filters, rules_kind) {
            (0, _) => Ok(()),
            (count, RulesKind::List) => (0..*count).try_for_each(|filter| {
                let outside = Needs::outside_of_filter(filter);
                writeln!(forward, "ip daddr {outside} drop\nip saddr {outside} drop")
            }),
            (count, _) => {
                let elements = addresses(Needs::outside_of_filter, *count);
                let _ = writeln!(sets, "set filtered {{ type ipv4_addr; elements = {{ {elements} }}; }}");
                writeln!(forward, "ip daddr @filtered drop\nip saddr @filtered drop")
            }
        };
        let rest = match rules_kind {
            _ if self.is_home_router => "masquerade".to_owned(),
            RulesKind::Masquerade => "meta l4proto icmp masquerade".to_owned(),
            _ => format!("meta l4proto icmp snat to {first}-{last}"),
        };
        format!(
            "table ip lab {{\n{sets}chain post {{ type nat hook postrouting priority srcnat;\n{translate}\
             oifname \"{out}\" {rest}\n}}\n\
             chain forward {{ type filter hook forward priority filter;\n{forward}}}\n}}\n"
        )
    }

    /// Makes room in the table of all namespaces, and remembers what there was.
    fn make_room(&mut self) -> Result<(), DeviceError> {
        let wanted = self.needs.sessions + self.needs.sessions / 8 + 1024;
        for (path, wanted) in [(MAX, wanted), (BUCKETS, self.needs.sessions.next_power_of_two().max(65_536))] {
            let Some(now) = number(path) else { continue };
            if now >= wanted {
                continue;
            }
            let room = self.set(path, wanted).unwrap_or(now);
            if path == MAX && room < self.needs.sessions {
                let remedy = "run as root of the first namespace, or ask for fewer sessions";
                return Err(DeviceError::TooSmall { device: NAME, room, needed: self.needs.sessions, remedy });
            }
        }
        Ok(())
    }

    /// Sets a limit of all namespaces, and remembers what it was. What it is then; None where the
    /// kernel does not say.
    fn set(&mut self, path: &'static str, value: u64) -> Option<u64> {
        let before = number(path)?;
        if let Some((_, file)) = self.limits.iter().find(|(other, _)| *other == path) {
            // Whether it worked is seen below.
            let _ = file.write_at(value.to_string().as_bytes(), 0);
        }
        let then = number(path)?;
        if then != before && !self.before.iter().any(|(other, _)| *other == path) {
            self.before.push((path, before));
            Limits::of_this_machine().remember(&self.before);
        }
        Some(then)
    }
}

/// A value of the kernel.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Device for Netfilter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        if self.limits.is_empty() {
            Limits::of_this_machine().put_back_left();
            let open = |path| Some((path, File::options().write(true).open(path).ok()?));
            self.limits = [MAX, BUCKETS].into_iter().filter_map(open).collect();
        }
        let length = topology::LINK_PREFIX_LENGTH;
        self.ip(&["addr", "replace", &format!("{}/{length}", topology::DEVICE_INSIDE), "dev", topology::INSIDE])?;
        self.ip(&["addr", "replace", &format!("{}/{length}", topology::DEVICE_OUTSIDE), "dev", topology::OUTSIDE])?;
        self.ip(&["route", "replace", topology::INSIDE_PREFIX, "via", &topology::TESTER_INSIDE.to_string()])?;
        self.ip(&["route", "replace", topology::REMOTE_PREFIX, "via", &topology::TESTER_OUTSIDE.to_string()])?;
        self.shell("echo 1 > /proc/sys/net/ipv4/ip_forward")?;
        self.shell("nft delete table ip lab 2>/dev/null || true")?;
        let path = self.folder.join("netfilter.nft");
        fs::write(&path, self.ruleset()).map_err(|source| DeviceError::File {
            device: NAME,
            path: path.clone(),
            source,
        })?;
        self.shell(&format!("nft -f '{}'", path.display()))?;
        for (key, seconds) in &self.timeouts {
            self.shell(&format!("echo {seconds} > /proc/sys/net/netfilter/nf_conntrack_{key}"))?;
        }
        for (key, value) in self.tracking.values() {
            self.shell(&format!("echo {value} > /proc/sys/net/netfilter/nf_conntrack_{key}"))?;
        }
        self.make_room()?;
        self.empty().map(drop)
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        let connections = self.sessions()?.unwrap_or(0);
        if connections > self.weighed.map_or(0, |(most, _)| most)
            && let (Some(now), Some(before)) = (Slabs::now(), &self.empty_slabs)
            && let Some(bytes) = now.bytes_each(before, connections)
        {
            self.weighed = Some((connections, bytes));
        }
        let begin = Instant::now();
        self.shell("conntrack -F 2>/dev/null")?;
        let took = begin.elapsed();
        match self.sessions()? {
            Some(left) if left > 0 => Err(DeviceError::NotEmptied { device: NAME, left }),
            _ => {
                self.empty_slabs = Slabs::now();
                Ok(took)
            }
        }
    }

    fn limit(&mut self) -> Result<(), DeviceError> {
        let wanted = self.needs.sessions + TESTERS_OWN;
        match self.set(MAX, wanted) {
            Some(limit) if limit == wanted => Ok(()),
            _ => {
                let (what, remedy) = ("limit that can be set from here", "run as root of the first namespace");
                Err(DeviceError::Refused { device: NAME, what, remedy })
            }
        }
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        let text = self.shell("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
        Ok(text.trim().parse().ok())
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn settings(&self) -> Settings {
        let timeouts = self.timeouts.iter().map(|(key, seconds)| format!("{key} = {seconds} s"));
        let read = |path| fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
        let mut ruleset = self.ruleset();
        if ruleset.len() > RULESET_TOLD {
            ruleset.truncate(RULESET_TOLD);
            ruleset.push_str(" ...");
        }
        let mut all = vec![
            ("version", format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
            ("ruleset", ruleset),
            ("nf_conntrack_max", read(MAX)),
            ("nf_conntrack_buckets", read(BUCKETS)),
            ("timeouts", timeouts.collect::<Vec<_>>().join(", ")),
            ("nf_conntrack_tcp_loose", self.told("tcp_loose")),
            ("nf_conntrack_tcp_be_liberal", self.told("tcp_be_liberal")),
        ];
        if let Some((connections, bytes)) = self.weighed {
            all.push(("bytes_per_connection", format!("{bytes:.1}")));
            all.push(("bytes_weighed", format!("slabs with {connections} connections, less those without")));
        }
        all.extend(self.needs.settings());
        Settings(all)
    }
}

impl Drop for Netfilter {
    fn drop(&mut self) {
        for (path, value) in core::mem::take(&mut self.before).into_iter().rev() {
            // The machine is left as it was, as far as it lets us.
            self.set(path, value);
        }
        Limits::of_this_machine().forget();
        let _ = self.shell("nft delete table ip lab 2>/dev/null || true");
    }
}
