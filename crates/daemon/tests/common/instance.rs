//! A whole instance on in-memory ports, with its own configuration files and a client of its
//! control socket.

#![allow(dead_code, clippy::expect_used, reason = "helpers of tests, of which each needs a part")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use control::Client;
use control::NewConfig;
use control::Reply;
use control::Request;
use control::Status;
use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::server::Socket;
use packet_io::Burst;
use packet_io::Io;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const TEXT: &str = r#"
[[interface]]
name = "lan"
realm = "inside"
driver = "net_tap0"
addresses = ["10.0.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_tap1"
addresses = ["192.0.2.2/24"]

[[pool]]
name = "a"
addresses = ["203.0.113.0/28"]

[tables]
mappings = 1000
extra_sessions = 1000
subscribers = 100
held_ports = 1000

[workers]
count = 2

[dpdk]
hugepages = "off"
"#;

pub(crate) fn ask(client: &mut Client, request: &Request) -> Vec<Reply> {
    client.send(request).expect("the daemon listens");
    let mut replies = Vec::new();
    loop {
        let reply = client.receive().expect("the daemon answers");
        let is_last = matches!(reply, Reply::End(_) | Reply::Error(_));
        replies.push(reply);
        if is_last {
            return replies;
        }
    }
}

pub(crate) fn file(path: &Path) -> NewConfig {
    NewConfig { config: Some(path.display().to_string()), ..NewConfig::default() }
}

pub(crate) fn error(replies: &[Reply]) -> String {
    match replies.last() {
        Some(Reply::Error(fault)) => fault.to_string(),
        _ => String::new(),
    }
}

/// Ports that stop the worker of this number, as if its CPU had been taken away.
pub(crate) struct Stalling {
    io: MemoryIo,
    worker: usize,
    stalled: Arc<AtomicUsize>,
}

pub(crate) const NOBODY: usize = usize::MAX;

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Relaxed);
    }
}

/// A stopped worker cannot be ended, so a failing test releases it first.
pub(crate) struct LetGo(Arc<AtomicUsize>);

impl Io for Stalling {
    type Buffer = <MemoryIo as Io>::Buffer;

    fn port_count(&self) -> usize {
        self.io.port_count()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>) {
        while self.stalled.load(Ordering::Relaxed) == self.worker {
            thread::sleep(Duration::from_millis(1));
        }
        self.io.receive(port, burst);
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>) {
        self.io.transmit(port, burst);
    }

    fn allocate(&mut self) -> Option<Self::Buffer> {
        self.io.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.io.mac(port)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.io.can_receive(port)
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.io.can_transmit(port)
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.io.link_up(port)
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.io.statistics(port)
    }
}

/// An instance with its own files.
pub(crate) struct Instance {
    _let_go: LetGo,
    pub(crate) directory: PathBuf,
    pub(crate) text: String,
    pub(crate) ports: MemoryBed,
    pub(crate) running: Running,
    pub(crate) client: Client,
    pub(crate) stalled: Arc<AtomicUsize>,
}

impl Instance {
    pub(crate) fn start(name: &str, more: &str) -> Instance {
        Instance::start_with(name, more, str::to_owned)
    }

    /// Starts with [`TEXT`] after `change`.
    pub(crate) fn start_with(name: &str, more: &str, change: impl FnOnce(&str) -> String) -> Instance {
        let directory = env::temp_dir().join(format!("natrix-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("a temporary directory");
        let place = directory.display().to_string();
        let text =
            format!("{}\n[control]\nsocket = \"{place}/control.sock\"\n{}", change(TEXT), more.replace("HERE", &place));
        let path = directory.join("first.toml");
        fs::write(&path, &text).expect("a file of our own");
        let config = config::parse(&text, "first.toml").expect("a valid configuration");
        let socket = Socket::open(&config.control.socket, 0o600).expect("a socket");
        let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
        let stalled = Arc::new(AtomicUsize::new(NOBODY));
        let io = |worker| Stalling { io: ports.io(worker), worker, stalled: Arc::clone(&stalled) };
        let ios: Vec<Stalling> = (0..2).map(io).collect();
        let start = Start { config: &config, config_path: &path, version: "0.1", socket, ios, log: Log::silent() };
        let running = Running::start(start, || {}).expect("an instance");
        let client = Client::connect(&config.control.socket, "0.1", PATIENCE).expect("the daemon listens");
        Instance { _let_go: LetGo(Arc::clone(&stalled)), directory, text, ports, running, client, stalled }
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> NewConfig {
        let path = self.directory.join(name);
        fs::write(&path, text).expect("a file of our own");
        file(&path)
    }

    pub(crate) fn reload(&mut self, asked: NewConfig) -> Vec<Reply> {
        ask(&mut self.client, &Request::Reload(asked))
    }

    /// Packets whose verdict has changed, because their next hop does not answer.
    pub(crate) fn unsent(&self) -> u64 {
        let all = self.running.instance().snapshots().expect("numbers");
        let of = |verdict| all.iter().map(|snapshot| snapshot.counters.of(verdict)).sum::<u64>();
        let waiting: u64 = all.iter().map(|snapshot| snapshot.counters.neighbour_pending).sum();
        waiting + of(nat::Verdict::NeighbourUnresolved) + of(nat::Verdict::NeighbourQueueFull)
    }

    pub(crate) fn status(&mut self) -> Status {
        self.client.request_one(&Request::Status).expect("a status")
    }

    /// A UDP packet of an inside endpoint.
    pub(crate) fn push(&mut self, from: SocketAddrV4) {
        self.push_to(from, 53);
    }

    /// The same to this outside port.
    pub(crate) fn push_to(&mut self, from: SocketAddrV4, port: u16) {
        let station = MacAddress(self.ports.io(0).mac(PortIndex(0)));
        let packet = build::udp(from, SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 77), port)).build();
        let frame = build::frame(MacAddress([6, 0, 0, 0, 0, 9]), station, ETHER_TYPE_IPV4, &packet);
        assert!(self.ports.push(usize::from(from.port() % 2), PortIndex(0), &frame), "the queue has room");
    }

    /// Opens sessions of this many subscribers and waits until all exist.
    pub(crate) fn traffic(&mut self, ports: core::ops::Range<u16>) {
        let begin = Instant::now();
        let wanted = self.status().mappings_created + u64::from(ports.end - ports.start);
        for port in ports {
            self.push(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10 + (port % 8) as u8), port));
        }
        while self.status().mappings_created < wanted {
            assert!(begin.elapsed() < PATIENCE, "every subscriber gets its mapping");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// All that a reload could change: the configuration and its path, the ports of every address,
    /// files, mappings.
    pub(crate) fn state(&mut self) -> String {
        let shared = self.running.instance().shared();
        let ports = |(place, slot): (nat::types::AddressIndex, &nat::address_slots::Slot)| {
            let all = nat::Protocol::ALL;
            (*slot, all.map(|protocol| (shared.ports_available(place, protocol), shared.ports_used(place, protocol))))
        };
        let addresses: Vec<_> = shared.addresses().map(ports).collect();
        let mut files: Vec<_> =
            fs::read_dir(&self.directory).expect("our own").map(|entry| entry.expect("a file").file_name()).collect();
        // Refused changes are recorded, too.
        files.retain(|name| name != "control.audit.jsonl");
        files.sort();
        let status = self.status();
        let log = status.event_log.map(|log| (log.destination, log.back_pressure.to_string()));
        format!("{} {:?} {addresses:?} {files:?} {} {log:?}", status.config, shared.settings(), status.mappings)
    }

    pub(crate) fn stop(self) {
        let Instance { directory, running, client, .. } = self;
        drop(client);
        running.stop();
        fs::remove_dir_all(&directory).expect("only our own files");
    }
}
