//! A whole instance with an event log: packets in, lines in a file, figures over the control
//! socket, and the holder of an endpoint.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use config::Config;
use config::EventLog;
use config::EventTarget;
use config::LogSync;
use control::Client;
use control::Request;
use control::Status;
use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::server::Socket;
use export::parse_utc;
use export::store::Until;
use lookup::Asked;
use lookup::log;
use lookup::log::Query;
use nat::Protocol;
use packet_io::Io;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use serde_json::Value;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;

const PATIENCE: Duration = Duration::from_secs(60);
const FLOWS: u16 = 20;

fn with_log(directory: &Path, file: PathBuf) -> Config {
    let log = EventLog {
        target: Some(EventTarget::File(file)),
        store: None,
        queue: 256,
        rotate_bytes: 1 << 20,
        rotate_interval: nat::Duration::from_secs(3_600),
        keep_files: 0,
        sync: LogSync::Always,
    };
    Config { event_log: Some(log), ..crate::common::configuration(directory) }
}

fn start(config: &Config, ports: &MemoryBed) -> Result<Running, daemon::running::StartError> {
    let ios: Vec<MemoryIo> = (0..2).map(|worker| ports.io(worker)).collect();
    let socket = Socket::open(&config.control.socket, 0o600).expect("a socket");
    let log = Log::silent();
    let config_path = Path::new("test.toml");
    Running::start(Start { config, config_path, version: "0.1", socket, ios, log }, || {})
}

#[test]
fn an_instance_logs_its_events_and_the_holder_is_found() {
    let directory = env::temp_dir().join(format!("natrix-{}-event-log", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let file = directory.join("events.json");
    let config = with_log(&directory, file.clone());
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let running = start(&config, &ports).expect("it comes up");
    let station = MacAddress(ports.io(0).mac(PortIndex(0)));
    for flow in 0..FLOWS {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10 + (flow % 4) as u8), 5_000 + flow);
        let packet = build::udp(from, SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 77), 53)).build();
        let frame = build::frame(MacAddress([6, 0, 0, 0, 0, 9]), station, ETHER_TYPE_IPV4, &packet);
        assert!(ports.push(usize::from(flow % 2), PortIndex(0), &frame), "the queue has room");
    }
    let mut client = Client::connect(&config.control.socket, "0.1", PATIENCE).expect("the socket answers");
    let begin = Instant::now();
    // A line for each mapping, and one for the start.
    let log = loop {
        let status: Status = client.request_one(&Request::Status).expect("a status");
        let log = status.event_log.expect("there is a log");
        if log.records_written > u64::from(FLOWS) {
            break log;
        }
        assert!(begin.elapsed() < PATIENCE, "records are written: {log:?}");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(log.destination, file.display().to_string());
    assert_eq!((log.records_lost, log.errors, log.failing), (0, 0, false));
    drop(client);
    running.stop();

    let text = fs::read_to_string(&file).expect("the log");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    assert_eq!((of("started").len(), of("stopped").len()), (1, 1));
    let created = of("mapping_created");
    assert_eq!(created.len(), usize::from(FLOWS));
    for line in &created {
        assert_eq!((&line["realm"], &line["external_address"]), (&Value::from("default"), &Value::from("10.0.1.9")));
        let at_us = parse_utc(line["time"].as_str().expect("a time")).expect("a time");
        let port = line["external_port"].as_u64().expect("a port") as u16;
        let address = Ipv4Addr::new(10, 0, 1, 9);
        let asked = Asked { address, host: None, port: Some(port), protocol: Some(Protocol::Udp), vrf: None };
        let query = Query::moment(asked, at_us);
        let history = log::look_up(std::slice::from_ref(&file), &query, |_, _| true).expect("the log can be read");
        let found = history.found;
        assert_eq!((found.holders.len(), found.is_complete, history.unreadable), (1, true, 0), "{found:?}");
        assert_eq!(Value::from(found.holders[0].subscriber.to_string()), line["subscriber"]);
        assert!(matches!(found.holders[0].until, Until::Restart(_)), "it stopped: {found:?}");
    }
    fs::remove_dir_all(&directory).expect("only our own files");
}

#[test]
fn an_instance_does_not_start_without_its_log() {
    let directory = env::temp_dir().join(format!("natrix-{}-event-log-missing", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let config = with_log(&directory, directory.join("missing").join("events.json"));
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let error = start(&config, &ports).err().expect("it does not start").to_string();
    assert!(error.starts_with("event log /") && error.contains("set another [log] events"), "{error}");
    fs::remove_dir_all(&directory).expect("only our own files");
}
