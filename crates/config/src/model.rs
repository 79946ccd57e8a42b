//! The compiled snapshot: everything a configuration file says, checked and in the types of the
//! crates that use it.

use std::net::SocketAddr;
use std::path::PathBuf;

use nat::Duration;
use nat::Settings;
use nat::event::Event;
use nat::settings::Limits;
use serde::Deserialize;
use serde::Serialize;

use crate::fault::Warning;
use crate::source::Source;

/// What is said of a configuration without [`Config::event_log`], after the name of that.
pub const NO_LOG: &str = "none, so who had an address and port cannot be answered later";

/// A valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The settings of the engine. Limits and rates are already per worker.
    pub nat: Settings,
    /// Physical (or virtual) ports, in the order of the file.
    pub ports: Vec<Port>,
    /// How each interface of `nat.interfaces` is reached; same length and order.
    pub interfaces: Vec<InterfaceLink>,
    /// Name of the device in the kernel of each interface of `nat.interfaces`.
    pub kernel: Vec<Option<String>>,
    /// The kernel's table of the routes of each interface of `nat.interfaces`; None: that of its
    /// VRF device, or the main one.
    pub kernel_tables: Vec<Option<u32>>,
    /// The threads that move packets.
    pub workers: Workers,
    /// What the file says for all workers together.
    pub totals: Totals,
    /// The settings of DPDK.
    pub dpdk: Dpdk,
    /// The control socket.
    pub control: Control,
    /// The API; None without one.
    pub http: Option<Http>,
    /// The subagent for SNMP; None without one.
    pub snmp: Option<Snmp>,
    /// What the process writes to standard error.
    pub log: Log,
    /// Where it keeps records of events; none: nowhere.
    pub event_log: Option<EventLog>,
    /// Collectors that get the records of its store.
    pub log_sinks: Vec<LogSink>,
    /// The file that keeps what port control granted over a restart.
    pub grants_file: Option<PathBuf>,
    /// What works, but perhaps not as meant.
    pub warnings: Vec<Warning>,
    /// The text it was read from.
    pub source: Source,
}

/// Table sizes and rates of the whole instance, of which each worker has its share in
/// [`Config::nat`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The tables, apart from that of IPv6 hosts.
    pub limits: Limits,
    /// `tables.ipv6_hosts`.
    pub hosts: u32,
    /// `icmp.error_rate`.
    pub icmp_errors_per_second: u32,
    /// `log.filter_rate`.
    pub filter_events_per_second: u32,
}

/// A port: one DPDK device. Several logical interfaces (802.1Q) may share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the interface that carries the `driver` key.
    pub name: String,
    /// The device, as DPDK's `--allow` or `--vdev` takes it: `0000:3b:00.0`,
    /// `net_af_packet0,iface=veth0`.
    pub driver: String,
    /// Whether `driver` is a PCI address or a virtual device.
    pub kind: DriverKind,
    /// Largest IP packet of its interfaces, bytes. Ethernet and 802.1Q headers come on top.
    pub mtu: u16,
    /// Receive descriptors per queue.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue.
    pub tx_descriptors: u16,
}

/// How a device is named to DPDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// A PCI address, given to `--allow`.
    Pci,
    /// A virtual device, given to `--vdev`.
    Virtual,
}

/// Where the packets of a logical interface are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceLink {
    /// Index into [`Config::ports`].
    pub port: usize,
    /// 802.1Q VLAN (1 to 4094) of its frames; none: untagged.
    pub vlan: Option<u16>,
}

/// The threads that move packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many, 1 to `WorkerId::COUNT_MAX`.
    pub count: usize,
    /// CPU of each worker, in order; empty: the kernel places them.
    pub cpus: Vec<u16>,
}

/// The settings of DPDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dpdk {
    /// Whether memory comes from hugepages.
    pub hugepages: Hugepages,
    /// Memory DPDK may take for packet buffers and queues, bytes.
    pub memory_bytes: u64,
    /// Packet buffers shared by all ports and workers.
    pub buffers: u32,
}

/// Use of hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hugepages {
    /// Take them where there are enough, else ordinary pages and a warning.
    Auto,
    /// Ordinary pages only.
    Off,
    /// Do not start without.
    Required,
}

/// Where the service keeps logs: the package's unit makes this folder.
pub const LOG_FOLDER: &str = "/var/log/natrix";

/// Where the service keeps grants: the package's unit makes this folder.
pub const STATE_FOLDER: &str = "/var/lib/natrix";

/// The control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where the socket is.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
    /// The file of the audit log.
    pub audit: PathBuf,
}

/// The API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Where it listens.
    pub listen: HttpListen,
    /// Names of the server besides its address.
    pub hosts: Vec<String>,
    /// Its certificate; there is one unless it listens on loopback or a Unix socket.
    pub tls: Option<HttpTls>,
    /// Users that may use it.
    pub users: Vec<HttpUser>,
}

/// Where the API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpListen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// Files of the certificate of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTls {
    /// Certificate and chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Authorities of client certificates.
    pub client_authorities: Option<PathBuf>,
}

/// The subagent for SNMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snmp {
    /// Where the master agent listens.
    pub agentx: AgentX,
    /// Name of the instance in the MIB.
    pub alias: String,
    /// Most rows of each of the large tables.
    pub rows: usize,
    /// File that keeps what managers set.
    pub state: Option<PathBuf>,
}

/// Where the master agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentX {
    /// A TCP address of this machine.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A user of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUser {
    /// Name.
    pub name: String,
    /// What the user may do.
    pub role: HttpRole,
    /// Hash of the token.
    pub token: Option<String>,
    /// Unix group.
    pub group: Option<String>,
}

/// What a user of the API may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpRole {
    /// See.
    View,
    /// Change.
    Operate,
    /// Look up subscribers.
    Audit,
}

/// What the process writes to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: LogLevel,
    /// How it is written.
    pub format: LogFormat,
}

/// Where records of events are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLog {
    /// Where lines go, if there are lines.
    pub target: Option<EventTarget>,
    /// The store, if there is one.
    pub store: Option<LogStore>,
    /// Records that may wait, per worker.
    pub queue: u32,
    /// A file that would grow beyond so many bytes is put aside.
    pub rotate_bytes: u64,
    /// A file that was begun so long ago is put aside.
    pub rotate_interval: Duration,
    /// Files put aside that are kept; 0: all.
    pub keep_files: usize,
    /// When they have to be on the disk.
    pub sync: LogSync,
}

/// The store of the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStore {
    /// Its folder.
    pub path: PathBuf,
    /// No ended interval stays longer; none: all do.
    pub retention: Option<Duration>,
    /// What a power failure may lose.
    pub sync_interval: Duration,
    /// Ended intervals of a segment.
    pub segment_rows: usize,
    /// Longest time of a segment before it is merged.
    pub segment_interval: Duration,
    /// File of the key of its head; none: in the store.
    pub signing_key: Option<PathBuf>,
}

/// A collector that gets the records of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSink {
    /// Its name.
    pub name: String,
    /// Format of the records.
    pub kind: SinkKind,
    /// The way to the collector.
    pub transport: SinkTransport,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// File of the authorities of TLS.
    pub certificates: Option<PathBuf>,
    /// Files of our own certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
    /// Observation domain in IPFIX.
    pub domain: u32,
    /// Largest IP packet on the way.
    pub mtu: u16,
    /// Interval of templates in datagrams.
    pub template_interval: Duration,
    /// Journal that is kept while the collector is away.
    pub spool_bytes: u64,
}

impl LogSink {
    /// Its address as in the file.
    pub fn address(&self) -> String {
        let LogSink { transport, host, port, .. } = self;
        let scheme = match transport {
            SinkTransport::Udp => "udp",
            SinkTransport::Tcp => "tcp",
            SinkTransport::Tls => "tls",
        };
        if host.contains(':') { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
    }
}

/// Format of a sink's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// IPFIX.
    Ipfix,
    /// Syslog.
    Syslog,
    /// Lines of JSON.
    Json,
}

/// The way to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkTransport {
    /// Datagrams.
    Udp,
    /// A stream.
    Tcp,
    /// A stream in TLS.
    Tls,
}

/// Where records of events go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventTarget {
    /// Into this file and those it was before.
    File(PathBuf),
    /// To standard output.
    StandardOutput,
}

/// When what was written has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSync {
    /// When the system likes.
    Never,
    /// When a file is put aside.
    OnRotation,
    /// Once in so long, and when a file is put aside.
    Interval(Duration),
    /// After each piece that is written.
    Always,
}

impl EventLog {
    /// Memory the waiting records of one worker take, bytes.
    pub fn queue_bytes(&self) -> u64 {
        u64::from(self.queue.next_power_of_two()) * size_of::<Event>() as u64
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// To the journal if it reads standard error, otherwise as text.
    #[default]
    Auto,
    /// `warning: object: what is wrong`, a line each.
    Text,
    /// One JSON object a line.
    Json,
    /// Fields of the journal of systemd.
    Journald,
}

/// Severity of a log line, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something will fail, or works less well than asked for.
    Warn,
    /// Start, stop and changes.
    Info,
    /// Everything else.
    Debug,
}
