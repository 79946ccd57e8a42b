//! Natrix as the device: its release binary with one worker, in the device's namespace.

use core::fmt::Write as _;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::fs;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use super::Allocation;
use super::Device;
use super::DeviceError;
use super::DeviceTimers;
use super::Needs;
use super::PATIENCE;
use crate::edge;
use crate::edge::Family;
use crate::process::end;
use crate::process::not_outliving;
use crate::result::Settings;
use crate::topology;
use crate::topology::Topology;

const NAME: &str = "natrix";
/// Descriptors of each queue: as many as the tester's.
const DESCRIPTORS: u32 = 2048;

/// Natrix in a namespace.
#[derive(Debug)]
pub struct Natrix {
    binary: PathBuf,
    namespace: Option<String>,
    folder: PathBuf,
    needs: Needs,
    drivers: [String; 2],
    running: Option<Child>,
    /// How long its start took, with an empty table.
    start_took: Duration,
    timeouts: String,
    /// Sessions beyond the first of their mapping.
    extra_sessions: u64,
    table_bytes: Option<TableBytes>,
    stop: Arc<AtomicBool>,
    /// Each worker has a CPU, and uses it fully.
    is_polling: bool,
}

/// What a configuration says of the inside, and of its hosts.
struct Inside {
    /// Natrix's address, with the length of the link's prefix.
    address: String,
    /// Where all hosts are.
    hosts: &'static str,
    /// The tester's address.
    via: String,
    /// Lines of the pool: which subscribers it serves.
    of_pool: String,
    /// The table of the family.
    table: String,
}

impl Inside {
    fn of(family: Family) -> Inside {
        let table = match family {
            Family::Nat44 => {
                return Inside {
                    address: format!("{}/{}", topology::DEVICE_INSIDE, topology::LINK_PREFIX_LENGTH),
                    hosts: topology::INSIDE_PREFIX,
                    via: topology::TESTER_INSIDE.to_string(),
                    of_pool: format!("subscribers = [\"{}\"]\n", topology::INSIDE_PREFIX),
                    table: String::new(),
                };
            }
            Family::Nat64 => format!("[[nat64]]\nprefix = \"{}\"\npool = \"lab\"\n\n", edge::NAT64_PREFIX),
            Family::Dslite => format!(
                "[[softwire]]\naftr = \"{}\"\npool = \"lab\"\ninner = [\"{}\"]\n\n",
                edge::AFTR,
                topology::INSIDE_PREFIX
            ),
        };
        Inside {
            address: format!("{}/{}", edge::DEVICE_INSIDE6, edge::LINK_PREFIX6_LENGTH),
            hosts: edge::INSIDE_PREFIX6,
            via: edge::TESTER_INSIDE6.to_string(),
            of_pool: String::new(),
            table,
        }
    }
}

/// Bytes that the tables of a configuration take: those there are room for, and those of the ports
/// of its pools.
pub type TableBytes = fn(configuration: &str) -> Option<[u64; 2]>;

impl Natrix {
    /// This binary with ports of these driver strings, inside first, in the device's namespace of
    /// `topology` where there is one; its files go to `folder`.
    pub fn new(
        binary: &Path,
        topology: Option<&Topology>,
        drivers: [String; 2],
        folder: &Path,
        needs: Needs,
    ) -> Natrix {
        Natrix {
            timeouts: format!("udp = \"{} s\"\n", needs.udp_timeout_seconds),
            extra_sessions: needs.sessions,
            table_bytes: None,
            binary: binary.to_owned(),
            namespace: topology.map(Topology::device),
            folder: folder.to_owned(),
            needs,
            drivers,
            running: None,
            start_took: Duration::ZERO,
            stop: Arc::default(),
            is_polling: true,
        }
    }

    /// Its workers sleep when idle: for what is measured in seconds and not in packets.
    #[must_use]
    pub fn with_sleep(mut self) -> Natrix {
        self.is_polling = false;
        self
    }

    /// Its start ends early, and its end does not take long, once `stop` is set.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Natrix {
        self.stop = stop;
        self
    }

    /// For connections of which each has a mapping of its own. To be called before it is started.
    #[must_use]
    pub fn with_mappings_only(mut self) -> Natrix {
        self.extra_sessions = 1;
        self
    }

    /// The bytes of a connection, as this callback finds them in a configuration.
    #[must_use]
    pub fn with_table_bytes(mut self, table_bytes: TableBytes) -> Natrix {
        self.table_bytes = Some(table_bytes);
        self
    }

    /// What each connection there is room for takes: its part of what the tables have more than
    /// those for one, and of its pool one port.
    fn bytes_per_connection(&self) -> Option<f64> {
        let table_bytes = self.table_bytes?;
        let Needs { sessions, external_addresses, ports, .. } = &self.needs;
        let [all, pool] = table_bytes(&self.configuration(*sessions, self.extra_sessions))?;
        let [one, _] = table_bytes(&self.configuration(1, 1))?;
        let places = u64::from(*external_addresses) * ports.clone().count() as u64;
        Some(all.saturating_sub(one) as f64 / (*sessions).max(1) as f64 + pool as f64 / places.max(1) as f64)
    }

    /// With these timers; None for those it has when nobody says anything. To be called before it
    /// is started.
    #[must_use]
    pub fn with_timers(mut self, timers: Option<DeviceTimers>) -> Natrix {
        self.timeouts = timers.map_or_else(String::new, |timers| {
            let DeviceTimers { udp_unanswered, udp, tcp_opening, tcp_established, tcp_closing, icmp } = timers;
            format!(
                "allow_below_rfc = true\nudp_unanswered = \"{udp_unanswered} s\"\nudp = \"{udp} s\"\ntcp_opening = \"{tcp_opening} s\"\n\
                 tcp_established = \"{tcp_established} s\"\ntcp_closing = \"{tcp_closing} s\"\nicmp = \"{icmp} s\"\n"
            )
        });
        self
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("natrix.log")
    }

    /// The configuration it is measured with.
    fn configuration(&self, mappings: u64, extra_sessions: u64) -> String {
        let Needs { cpus, rules, filters, allocation, ports, .. } = &self.needs;
        let mut text = String::new();
        let inside = Inside::of(self.needs.family);
        let outside = format!("{}/{}", topology::DEVICE_OUTSIDE, topology::LINK_PREFIX_LENGTH);
        let sides =
            [(topology::INSIDE, &self.drivers[0], &inside.address), (topology::OUTSIDE, &self.drivers[1], &outside)];
        for (name, driver, address) in sides {
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "[[interface]]\nname = \"{name}\"\nrealm = \"{name}\"\ndriver = \"{driver}\"\naddresses = [\"{address}\"]\nmtu = {}\n\
                 rx_descriptors = {DESCRIPTORS}\ntx_descriptors = {DESCRIPTORS}\n\n",
                edge::mtu(self.needs.family)
            );
        }
        let routes =
            [(inside.hosts, inside.via.as_str()), (topology::REMOTE_PREFIX, &topology::TESTER_OUTSIDE.to_string())];
        for (prefix, via) in routes {
            let _ = write!(text, "[[route]]\nprefix = \"{prefix}\"\nvia = \"{via}\"\n\n");
        }
        let blocks = match allocation {
            Allocation::Ports => String::new(),
            Allocation::Blocks => "allocation = \"blocks\"\nblocks_per_subscriber = 1023\n".to_owned(),
        };
        for (count, table, path) in [(rules, "rule_file", self.rules()), (filters, "filter_file", self.filters())] {
            if *count > 0 {
                let _ = write!(text, "[[{table}]]\npath = \"{}\"\n\n", path.display());
            }
        }
        // All its threads are bound to these CPUs, as it is started.
        let polling = if self.is_polling { &cpus[..] } else { &[] };
        let numbers: Vec<String> = polling.iter().map(usize::to_string).collect();
        let _ = write!(
            text,
            "[[pool]]\nname = \"lab\"\naddresses = [\"{}-{}\"]\nports = \"{}-{}\"\n{}reuse_delay = \"0 s\"\n{blocks}\n\
             {}[timeouts]\n{}\n\
             [tables]\nmappings = {mappings}\nextra_sessions = {extra_sessions}\nsubscribers = 65536\n\n\
             [workers]\ncount = {}\ncpus = [{}]\n\n\
             [control]\nsocket = \"{}\"\n",
            topology::FIRST_EXTERNAL,
            self.needs.last_external(),
            ports.start(),
            ports.end(),
            inside.of_pool,
            inside.table,
            self.timeouts,
            cpus.len(),
            numbers.join(", "),
            self.socket().display(),
        );
        text
    }

    fn rules(&self) -> PathBuf {
        self.folder.join("rules.csv")
    }

    fn filters(&self) -> PathBuf {
        self.folder.join("filters.csv")
    }

    /// Writes the files the configuration names.
    fn write_files(&self) -> Result<PathBuf, DeviceError> {
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|source| DeviceError::File { device: NAME, path: path.to_owned(), source })
        };
        let mut rules = "action,inside,pool\n".to_owned();
        for rule in 0..self.needs.rules {
            let address = Needs::inside_of_rule(rule);
            let _ = match self.needs.family {
                Family::Nat44 => writeln!(rules, "translate,{address}/32,lab"),
                Family::Nat64 | Family::Dslite => {
                    let customer = edge::customer_of(address.to_bits());
                    writeln!(rules, "translate,{customer}/{},lab", edge::CUSTOMER_PREFIX_LENGTH)
                }
            };
        }
        write(&self.rules(), &rules)?;
        let mut filters = "action,outside\n".to_owned();
        for filter in 0..self.needs.filters {
            let _ = writeln!(filters, "deny,{}/32", Needs::outside_of_filter(filter));
        }
        write(&self.filters(), &filters)?;
        let configuration = self.folder.join("natrix.toml");
        write(&configuration, &self.configuration(self.needs.sessions, self.extra_sessions))?;
        Ok(configuration)
    }

    /// Its last words, for an error.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let error = text.lines().rev().find(|line| line.starts_with("error")).or_else(|| text.lines().next_back());
        error.unwrap_or("no message").to_owned()
    }

    /// Its log where it stays when its folder goes.
    fn kept_log(&self) -> PathBuf {
        let kept = std::env::temp_dir().join(format!("natrix-lab-{}.log", std::process::id()));
        // A log that cannot be kept is read where it is, as long as it is there.
        fs::copy(self.log(), &kept).map_or_else(|_| self.log(), |_| kept)
    }

    fn asked(&self, words: &[&str]) -> Option<serde_json::Value> {
        let socket = self.socket();
        let output = Command::new(&self.binary)
            .args(words)
            .arg("--socket")
            .arg(socket)
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn stop(&mut self) {
        if let Some(child) = self.running.take() {
            end(child, &self.stop);
        }
    }
}

impl Device for Natrix {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.stop();
        let begin = Instant::now();
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| DeviceError::File { device: NAME, path, source }
        };
        let configuration = self.write_files()?;
        let log = File::create(self.log()).map_err(file_error(&self.log()))?;
        let errors = log.try_clone().map_err(file_error(&self.log()))?;
        let cpus: Vec<String> = self.needs.cpus.iter().map(usize::to_string).collect();
        let cpus = cpus.join(",");
        let mut words = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace]);
        }
        // The tester's own CPU is not for the device's threads, which inherit it.
        words.extend(["taskset", "-c", &cpus]);
        let child = not_outliving(words[0])
            .args(&words[1..])
            .arg(&self.binary)
            .args(["run", "-c"])
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // A signal for the lab is the lab's: it ends the device itself when all is written
            // down.
            .process_group(0)
            .spawn()
            .map_err(file_error(&self.binary))?;
        self.running = Some(child);
        while begin.elapsed() < PATIENCE {
            if self.stop.load(Ordering::Relaxed) {
                return Err(DeviceError::Interrupted);
            }
            let has_ended = self.running.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended {
                break;
            }
            if self.sessions()?.is_some() {
                self.start_took = begin.elapsed();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stop();
        Err(DeviceError::Start { device: NAME, message: self.last_words(), log: self.kept_log() })
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        if self.running.is_some() && self.sessions()? == Some(0) {
            return Ok(self.start_took);
        }
        // Its table goes with it.
        let begin = Instant::now();
        self.start()?;
        let took = begin.elapsed();
        match self.sessions()? {
            Some(left) if left > 0 => Err(DeviceError::NotEmptied { device: NAME, left }),
            _ => Ok(took),
        }
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(self.asked(&["show", "status"]).and_then(|status| status["sessions"].as_u64()))
    }

    fn alive(&mut self) -> Result<(), DeviceError> {
        match self.running.as_mut().map(Child::try_wait) {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(status))) => {
                let message = format!("{status}; {}", self.last_words());
                Err(DeviceError::Ended { device: NAME, message, log: self.kept_log() })
            }
            Some(Err(error)) => {
                Err(DeviceError::Ended { device: NAME, message: error.to_string(), log: self.kept_log() })
            }
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn settings(&self) -> Settings {
        let mut all = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("drivers", self.drivers.join(" ")),
            ("workers", self.needs.cpus.len().to_string()),
            ("allocation", format!("{:?}", self.needs.allocation).to_lowercase()),
            ("timeouts", self.timeouts.trim().replace('\n', ", ")),
            ("reuse_delay", "0 s".to_owned()),
            ("emptied_by", "a new start".to_owned()),
            ("extra_sessions_max", self.extra_sessions.to_string()),
        ];
        all.extend(self.bytes_per_connection().map(|bytes| ("bytes_per_connection", format!("{bytes:.1}"))));
        all.extend(self.needs.settings());
        Settings(all)
    }
}

impl Drop for Natrix {
    fn drop(&mut self) {
        self.stop();
    }
}
