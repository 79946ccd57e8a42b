//! A whole instance goes over to other configurations by its control socket: plan, reload, refusals, rollback.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::time::Duration;
use std::env;
use std::fs;
use std::path::Path;

use config::LogLevel;
use control::Client;
use control::NewConfig;
use control::Reply;
use control::Request;
use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::server::Socket;
use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;

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
    NewConfig { config: Some(path.display().to_string()), rollback: false }
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
    let back = Request::Reload(NewConfig { config: None, rollback: true });
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
