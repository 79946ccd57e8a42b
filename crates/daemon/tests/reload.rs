//! A whole instance goes over to other configurations by its control socket: plan, reload, refusals, rollback.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use config::LogLevel;
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
use serde_json::Value;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;

const PATIENCE: Duration = Duration::from_secs(60);

const TEXT: &str = r#"
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

fn ask(client: &mut Client, request: &Request) -> Vec<Reply> {
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

fn file(path: &Path) -> NewConfig {
    NewConfig { config: Some(path.display().to_string()), ..NewConfig::default() }
}

fn error(replies: &[Reply]) -> String {
    match replies.last() {
        Some(Reply::Error(fault)) => fault.to_string(),
        _ => String::new(),
    }
}

#[test]
fn an_instance_is_changed_by_its_socket_and_goes_back() {
    let directory = env::temp_dir().join(format!("natrix-{}-reload", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).expect("a file of our own");
        path
    };
    let text = format!("{TEXT}\n[control]\nsocket = \"{}\"\n", directory.join("control.sock").display());
    let first = write("first.toml", &text);
    let config = config::parse(&text, "first.toml").expect("a valid configuration");
    let socket = Socket::open(&config.control.socket, 0o600).expect("a socket");
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let ios: Vec<MemoryIo> = (0..2).map(|worker| ports.io(worker)).collect();
    let log = Log::new(LogLevel::Error);
    let start = Start { config: &config, config_path: &first, version: "0.1", socket, ios, log };
    let running = Running::start(start, || {}).expect("an instance");
    let mut client = Client::connect(&config.control.socket, "0.1", PATIENCE).expect("the daemon listens");

    let second = write("second.toml", &text.replace("203.0.113.0/28", "203.0.113.4-203.0.113.30"));
    let planned = ask(&mut client, &Request::Plan(file(&second)));
    let plan = planned.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan) } else { None });
    let plan = plan.expect("a plan");
    assert_eq!((plan.applies, plan.addresses_added, plan.addresses_closed), (true, 15, 4));
    let shared = running.instance().shared();
    assert_eq!(shared.generation(), 0, "a plan changes nothing");

    let faulty = write("faulty.toml", &text.replace("[workers]", "[wokrers]"));
    let told = ask(&mut client, &Request::Reload(file(&faulty)));
    assert!(matches!(told.first(), Some(Reply::ConfigFault(fault)) if fault.object == "wokrers"), "{told:?}");
    assert!(error(&told).contains("nothing was changed"), "{told:?}");
    let restart = write("restart.toml", &text.replace("mappings = 1000", "mappings = 2000"));
    assert!(error(&ask(&mut client, &Request::Reload(file(&restart)))).contains("tables.mappings"));
    let back = Request::Reload(NewConfig { rollback: true, ..NewConfig::default() });
    assert!(error(&ask(&mut client, &back)).contains("nothing was reloaded"));
    assert_eq!(running.instance().shared().generation(), 0, "what is refused changes nothing");

    let told = ask(&mut client, &Request::Reload(file(&second)));
    assert!(
        told.iter().any(|reply| matches!(reply, Reply::Reloaded(done) if done.generation == 1 && done.workers == 2))
    );
    let shared = running.instance().shared();
    assert_eq!(shared.settings().pools[0].addresses.len(), 27);
    let closed = shared.addresses().filter(|(_, slot)| slot.closed.is_some()).count();
    assert_eq!((shared.addresses().count(), closed), (31, 4));
    assert_eq!(running.instance().config_path(), second.display().to_string());

    let told = ask(&mut client, &back);
    assert!(told.iter().any(|reply| matches!(reply, Reply::Reloaded(done) if done.generation == 2)), "{told:?}");
    assert_eq!(running.instance().shared().settings(), &config.nat, "all is as before");
    assert_eq!(running.instance().config_path(), first.display().to_string());
    drop(client);
    running.stop();
    fs::remove_dir_all(&directory).expect("only our own files");
}

/// Ports whose worker stands still while the number is its own, as one does whose CPU is taken away.
struct Stalling {
    io: MemoryIo,
    worker: usize,
    stalled: Arc<AtomicUsize>,
}

const NOBODY: usize = usize::MAX;

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Relaxed);
    }
}

/// A worker that stands still can not be ended, so a test that fails lets it go first.
struct LetGo(Arc<AtomicUsize>);

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

/// An instance with files of its own.
struct Instance {
    _let_go: LetGo,
    directory: PathBuf,
    text: String,
    ports: MemoryBed,
    running: Running,
    client: Client,
    stalled: Arc<AtomicUsize>,
}

impl Instance {
    fn start(name: &str, more: &str) -> Instance {
        let directory = env::temp_dir().join(format!("natrix-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("a temporary directory");
        let place = directory.display().to_string();
        let text = format!("{TEXT}\n[control]\nsocket = \"{place}/control.sock\"\n{}", more.replace("HERE", &place));
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

    fn write(&self, name: &str, text: &str) -> NewConfig {
        let path = self.directory.join(name);
        fs::write(&path, text).expect("a file of our own");
        file(&path)
    }

    fn reload(&mut self, asked: NewConfig) -> Vec<Reply> {
        ask(&mut self.client, &Request::Reload(asked))
    }

    fn status(&mut self) -> Status {
        self.client.request_one(&Request::Status).expect("a status")
    }

    /// Has so many subscribers open something, and waits until all of it is there.
    fn traffic(&mut self, ports: core::ops::Range<u16>) {
        let station = MacAddress(self.ports.io(0).mac(PortIndex(0)));
        let begin = Instant::now();
        let wanted = self.status().mappings_created + u64::from(ports.end - ports.start);
        for port in ports {
            let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10 + (port % 8) as u8), port);
            let packet = build::udp(from, SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 77), 53)).build();
            let frame = build::frame(MacAddress([6, 0, 0, 0, 0, 9]), station, ETHER_TYPE_IPV4, &packet);
            assert!(self.ports.push(usize::from(port % 2), PortIndex(0), &frame), "the queue has room");
        }
        while self.status().mappings_created < wanted {
            assert!(begin.elapsed() < PATIENCE, "everybody gets his mapping");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// All that a reload could change: what is in force, where it is from, every address's ports, files, mappings.
    fn state(&mut self) -> String {
        let shared = self.running.instance().shared();
        let ports = |(place, slot): (nat::types::AddressIndex, &nat::slots::Slot)| {
            let all = nat::Protocol::ALL;
            (*slot, all.map(|protocol| (shared.ports_available(place, protocol), shared.ports_used(place, protocol))))
        };
        let addresses: Vec<_> = shared.addresses().map(ports).collect();
        let mut files: Vec<_> =
            fs::read_dir(&self.directory).expect("our own").map(|entry| entry.expect("a file").file_name()).collect();
        files.sort();
        let status = self.status();
        let log = status.event_log.map(|log| (log.destination, log.back_pressure.to_string()));
        format!("{} {:?} {addresses:?} {files:?} {} {log:?}", status.config, shared.settings(), status.mappings)
    }

    fn stop(self) {
        let Instance { directory, running, client, .. } = self;
        drop(client);
        running.stop();
        fs::remove_dir_all(&directory).expect("only our own files");
    }
}

#[test]
fn a_reload_that_fails_changes_nothing_whatever_it_fails_for() {
    let mut one = Instance::start("fails", "[log]\nevents = \"HERE/events.json\"\n");
    one.traffic(5_000..5_040);
    let text = one.text.clone();
    let place = one.directory.display().to_string();
    let cases = [
        ("a fault", text.replace("[workers]", "[wokrers]"), "has faults"),
        ("no TOML", format!("{text}\n[["), "has faults"),
        ("needs a restart", text.replace("count = 2", "count = 1"), "workers.count"),
        ("flows have no table", text.replace("[tables]", "[tables]\nflows = 50000"), "tables.flows"),
        ("more addresses than places", text.replace("203.0.113.0/28", "203.0.112.0/24"), "external_addresses"),
        (
            "places can not be added",
            text.replace("203.0.113.0/28", "203.0.112.0/24").replace("[tables]", "[tables]\nexternal_addresses = 400"),
            "tables.external_addresses",
        ),
        ("the log has no folder", text.replace("events.json", "missing/events.json"), "log.events"),
        ("the log is a folder", text.replace(&format!("{place}/events.json"), &place), "log.events"),
        ("the log ends", text.replace("events = ", "# events = "), "log.events"),
    ];
    for (name, after, expected) in cases {
        let asked = one.write("next.toml", &after);
        let before = one.state();
        let told = one.reload(asked);
        assert!(error(&told).contains(expected) || format!("{told:?}").contains(expected), "{name}: {told:?}");
        assert!(!error(&told).is_empty(), "{name} is refused");
        assert_eq!(one.state(), before, "{name} changes nothing");
    }
    let missing = NewConfig { config: Some(format!("{place}/nowhere.toml")), ..NewConfig::default() };
    let before = one.state();
    assert!(error(&one.reload(missing)).contains("can not be read"));
    assert_eq!(one.state(), before);
    // And what is right is done after all that.
    let asked = one.write("next.toml", &text.replace("203.0.113.0/28", "203.0.113.0/29"));
    assert_eq!(error(&one.reload(asked)), "");
    one.stop();
}

#[test]
fn a_worker_that_does_not_answer_undoes_the_change_and_follows_when_it_goes_on() {
    let mut one = Instance::start("stalls", "");
    one.traffic(5_000..5_040);
    let settings = one.running.instance().shared().settings().clone();
    let asked = one.write("next.toml", &one.text.replace("203.0.113.0/28", "203.0.113.4-203.0.113.30"));
    for stalled in [1, 0] {
        one.stalled.store(stalled, Ordering::Relaxed);
        let told = one.reload(asked.clone());
        let expected = format!("worker {stalled}: does not answer");
        assert!(error(&told).contains(&expected) && error(&told).contains("nothing was changed"), "{told:?}");
        let shared = one.running.instance().shared();
        assert_eq!(shared.settings(), &settings, "what was in force is in force");
        assert!(one.running.instance().config_path().ends_with("first.toml"));
        one.stalled.store(NOBODY, Ordering::Relaxed);
        // All workers go by it: one question each.
        let begin = Instant::now();
        while one.running.instance().snapshots().is_err() {
            assert!(begin.elapsed() < PATIENCE, "it goes on");
        }
        let planned = ask(&mut one.client, &Request::Plan(file(&one.directory.join("first.toml"))));
        let plan = planned.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan) } else { None });
        let plan = plan.expect("a plan");
        assert_eq!((plan.changes, plan.total.mappings_keep, plan.total.mappings_drain), (0, 40, 0));
        assert_eq!((plan.addresses_added, plan.addresses_closed), (0, 0));
    }
    // New ones get addresses of the configuration in force only.
    one.traffic(6_000..6_040);
    let told = one.reload(asked);
    assert_eq!(error(&told), "", "{told:?}");
    one.traffic(7_000..7_040);
    let shared = one.running.instance().shared();
    assert_eq!(shared.settings().pools[0].addresses.len(), 27);
    one.stop();
}

#[test]
fn the_log_goes_elsewhere_while_it_is_written_and_loses_nothing() {
    let log = "[log]\nevents = \"HERE/events.json\"\nback_pressure = \"refuse\"\n";
    let mut one = Instance::start("moves", log);
    one.traffic(5_000..5_100);
    let text = one.text.clone();
    let elsewhere = text.replace("events.json", "elsewhere.json").replace("\"refuse\"", "\"drop\"");
    let steps = [
        (elsewhere.clone(), "elsewhere.json", "drop"),
        (format!("{elsewhere}rotate_size = \"1 MiB\"\nsync = \"always\"\nkeep_files = 3\n"), "elsewhere.json", "drop"),
        (text.clone(), "events.json", "refuse"),
    ];
    for (step, (after, name, policy)) in (0..).zip(steps) {
        let asked = one.write("next.toml", &after);
        assert_eq!(error(&one.reload(asked)), "", "step {step}");
        let status = one.status().event_log.expect("there is a log");
        assert!(status.destination.ends_with(name), "{}", status.destination);
        assert_eq!(status.back_pressure.to_string(), policy, "what is in force is shown");
        one.traffic(6_000 + step * 100..6_100 + step * 100);
    }
    let directory = one.directory.clone();
    let Instance { running, client, .. } = one;
    drop(client);
    running.stop();
    let mut sequences: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut created = 0;
    for name in ["events.json", "elsewhere.json"] {
        for line in fs::read_to_string(directory.join(name)).expect("both are there").lines() {
            let line: Value = serde_json::from_str(line).expect("whole lines");
            created += u32::from(line["event"] == "mapping_created");
            if let (Some(worker), Some(sequence)) = (line["worker"].as_u64(), line["sequence"].as_u64()) {
                sequences.entry(worker).or_default().push(sequence);
            }
        }
    }
    assert_eq!(created, 400);
    for (worker, mut numbers) in sequences {
        numbers.sort_unstable();
        let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "worker {worker}: each number once, over both files");
    }
    fs::remove_dir_all(&directory).expect("only our own files");
}
