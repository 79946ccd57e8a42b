//! The examples, and what they compile to.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests; a broken example should stop them")]
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use config::Config;
use config::DriverKind;
use config::Hugepages;
use config::InterfaceLink;
use config::Machine;
use mem::Stock;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Filtering;
use nat::settings::Limits;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;

fn example(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let text = fs::read_to_string(&path).expect("an example");
    compiled(&text)
}

fn compiled(text: &str) -> Config {
    config::parse(text, "natrix.toml").unwrap_or_else(|faults| {
        panic!("{}", faults.iter().map(|fault| format!("{fault}\n")).collect::<String>());
    })
}

/// The sample of the manual.
fn smallest() -> String {
    let manual = config::manual();
    let (_, after) = manual.split_once("```toml\n").expect("a sample");
    after.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn every_example_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in fs::read_dir(examples).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            compiled(&fs::read_to_string(&path).expect("readable"));
            count += 1;
        }
    }
    assert!(count >= 4, "{count} examples");
}

#[test]
fn two_interfaces_and_a_pool_suffice_the_rest_are_defaults() {
    let config = compiled(&smallest());
    let expected = Settings {
        interfaces: config.nat.interfaces.clone(),
        pools: config.nat.pools.clone(),
        // Twice as many as there are, at the least.
        limits: Limits { external_addresses_max: 32, ..Limits::default() },
        ..Settings::default()
    };
    assert_eq!(config.nat, expected);
    let [lan, wan] = config.nat.interfaces.as_slice() else { panic!("two interfaces") };
    assert_eq!((lan.side, lan.mtu, wan.side, wan.mtu), (Side::Inside, 1_500, Side::Outside, 1_500));
    let [pool] = config.nat.pools.as_slice() else { panic!("one pool") };
    assert_eq!((pool.addresses.len(), pool.port_min, pool.port_max), (16, 1_024, 65_535));
    assert_eq!(pool.subscribers, [Prefix::ALL]);
    assert_eq!((config.workers.count, config.workers.cpus.len()), (1, 0));
    assert_eq!(config.control.mode, 0o660);
}

#[test]
fn interfaces_of_one_port_share_it_by_vlan() {
    let config = example("vlan.toml");
    assert_eq!(config.ports.len(), 1);
    let link = |vlan| InterfaceLink { port: 0, vlan: Some(vlan) };
    assert_eq!(config.interfaces, [link(10), link(20), link(100)]);
    let filtering = config.nat.pools[1].filtering;
    assert_eq!(filtering[Protocol::Udp.index()], Filtering::AddressAndPortDependent);
    assert_eq!(filtering[Protocol::Tcp.index()], Filtering::AddressDependent);
    assert_eq!(filtering[Protocol::Icmp.index()], Filtering::EndpointIndependent);
}

#[test]
fn pools_need_not_be_contiguous_and_keep_their_order() {
    let config = example("veth-two-workers.toml");
    let addresses: Vec<String> = config.nat.pools[0].addresses.iter().map(Ipv4Addr::to_string).collect();
    assert_eq!(addresses, ["203.0.113.1", "203.0.113.9", "203.0.113.129", "198.51.100.77"]);
    assert_eq!(config.nat.routes[0].interface, InterfaceId(1));
}

#[test]
fn exclusions_leave_the_rest() {
    let pool = example("small-isp.toml").nat.pools.remove(0);
    assert_eq!(pool.addresses.len(), 14);
    assert_eq!(pool.addresses.first(), Some(&Ipv4Addr::new(203, 0, 113, 1)));
    assert_eq!(pool.addresses.last(), Some(&Ipv4Addr::new(203, 0, 113, 14)));
}

#[test]
fn limits_are_for_all_workers_together_with_an_eighth_more() {
    let config = example("dpdk-pci.toml");
    assert_eq!(config.workers.count, 8);
    assert_eq!(config.nat.limits.mappings_max, 20_000_000 / 8 * 9 / 8);
    assert_eq!(config.nat.icmp.errors_per_second_max, 125);
    let limits = Limits { external_addresses_max: 32, ..Limits::default() };
    assert_eq!(compiled(&smallest()).nat.limits, limits);
    assert_eq!(config.nat.pools[0].reserved_ports, [1723, 5060, 5061]);
    assert_eq!(config.ports[0].kind, DriverKind::Pci);
    assert_eq!(config.dpdk.hugepages, Hugepages::Required);
}

#[test]
fn a_small_machine_is_refused_with_needed_and_present_memory() {
    let text = smallest() + "[workers]\ncount = 4\ncpus = [0, 1, 2, 7]\n";
    let machine = Machine { cpus: Some(2), memory: Some(Stock::ordinary(64 << 30)), ..Machine::default() };
    let faults = config::parse_for(&text, "natrix.toml", &machine).expect_err("too few CPUs");
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "error: natrix.toml:17: workers.count: is over the 2 CPUs of this machine (4); write 2 or less",
            "error: natrix.toml:18: workers.cpus[2]: is a CPU this machine does not have (2); write a number from 0 to 1",
            "error: natrix.toml:18: workers.cpus[3]: is a CPU this machine does not have (7); write a number from 0 to 1",
        ]
    );

    let machine = Machine { cpus: Some(2), memory: Some(Stock::ordinary(100 << 20)), ..Machine::default() };
    let faults = config::parse_for(&smallest(), "natrix.toml", &machine).expect_err("too little memory");
    let needed = compiled(&smallest()).memory_needed();
    let [fault] = faults.as_slice() else { panic!("one fault: {faults:?}") };
    let mib = needed.total_bytes().div_ceil(1 << 20);
    assert!(fault.problem.starts_with(&format!("needs {mib} MiB of memory in all")), "{fault}");
    assert!(fault.seen == "100 MiB available", "{fault}");
    let machine = Machine { cpus: Some(2), memory: Some(Stock::ordinary(needed.total_bytes())), ..Machine::default() };
    assert!(config::parse_for(&smallest(), "natrix.toml", &machine).is_ok());
}

#[test]
fn the_own_files_have_to_have_a_place_on_this_machine() {
    let here = Machine { has_folders: true, ..Machine::default() };
    let reported = |more: &str, machine: &Machine| {
        let faults = config::parse_for(&(smallest() + more), "natrix.toml", machine).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let folder = std::env::temp_dir().join(format!("natrix-own-files-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder of our own");
    fs::write(folder.join("file"), "").expect("a file of our own");
    let place = folder.display();
    let socket = |name: &str| format!("[control]\nsocket = \"{place}/{name}\"\n");
    let audit = |name: &str| format!("[control]\naudit = \"{place}/{name}\"\n");
    let state = |name: &str| format!("[port_control]\nstate = \"{place}/{name}\"\n");
    let elsewhere = format!("; make {place}/none, or name a file elsewhere");
    let missing = |name: &str| format!("is in a folder that does not exist ({place}/{name}){elsewhere}");
    let is_folder = |name: &str| format!("is a folder ({place}/{name}); name a file in it, or a file elsewhere");
    fs::create_dir_all(folder.join("folder")).expect("a folder of our own");
    for (more, fault) in [
        (
            socket("file"),
            format!("control.socket: exists and is not a socket ({place}/file); remove it, or name another path"),
        ),
        (
            socket("folder"),
            format!("control.socket: exists and is not a socket ({place}/folder); remove it, or name another path"),
        ),
        (audit("folder"), format!("control.audit: {}", is_folder("folder"))),
        (audit("none/audit.jsonl"), format!("control.audit: {}", missing("none/audit.jsonl"))),
        (state("folder"), format!("port_control.state: {}", is_folder("folder"))),
        (state("none/grants"), format!("port_control.state: {}", missing("none/grants"))),
    ] {
        let found = reported(&more, &here);
        assert!(found.len() == 1 && found[0].ends_with(&fault), "{more}: {found:?}");
        assert_eq!(reported(&more, &Machine::default()), [""; 0], "on any machine: {more}");
    }
    // What a start makes, and a socket whose instance has ended.
    let listener = std::os::unix::net::UnixListener::bind(folder.join("ended.sock")).expect("a socket");
    drop(listener);
    let made = socket("none/control.sock") + &state("none/grants");
    let of_package = "[port_control]\nstate = \"/var/lib/natrix/grants\"\n".to_owned();
    for more in [made, of_package, socket("ended.sock"), audit("file"), state("file")] {
        assert_eq!(reported(&more, &here), [""; 0], "{more}");
    }
    fs::remove_dir_all(&folder).expect("only our own files");
}

#[test]
fn an_event_log_has_to_have_a_place_on_this_machine() {
    let here = Machine { has_folders: true, ..Machine::default() };
    let reported = |path: &str, machine: &Machine| {
        let text = smallest() + &format!("[log]\nevents = \"{path}\"\n");
        let faults = config::parse_for(&text, "natrix.toml", machine).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let folder = std::env::temp_dir().display().to_string();
    let is_folder = format!("log.events: is a folder ({folder}); name a file in it, such as \"{folder}/events.json\"");
    assert!(reported(&folder, &here)[0].ends_with(&is_folder), "{:?}", reported(&folder, &here));
    let missing = format!("{folder}/natrix-is-not-here/events.json");
    let is_missing = format!(
        "is in a folder that does not exist ({missing}); make {folder}/natrix-is-not-here, or name a file elsewhere"
    );
    assert!(reported(&missing, &here)[0].ends_with(&is_missing), "{:?}", reported(&missing, &here));
    for (path, machine) in
        [(format!("{folder}/events.json"), &here), (missing, &Machine::default()), ("-".to_owned(), &here)]
    {
        assert_eq!(reported(&path, machine), [""; 0], "{path}");
    }
}

#[test]
fn opening_and_closing_timeouts_differ_and_opening_may_be_short() {
    // covers: 7857-2.1b, 7857-2.1a, 5382-REQ-5a
    let config = compiled(&format!("{}\n[timeouts]\ntcp_opening = \"30 s\"\ntcp_closing = \"5 min\"\n", smallest()));
    let timeouts = config.nat.timeouts;
    assert_eq!((timeouts.tcp_opening, timeouts.tcp_closing), (Duration::from_secs(30), Duration::from_secs(300)));
    assert_eq!(timeouts.tcp_established, Settings::default().timeouts.tcp_established);
}

#[test]
fn vrfs_may_share_a_link_under_a_rule_for_all_of_them() {
    let text = |routers: &str| {
        let lan = |name: &str, vrf: &str| {
            format!(
                "[[interface]]\nname = \"{name}\"\nrealm = \"inside\"\nvrf = \"{vrf}\"\n\
                 driver = \"net_tap_{name}\"\naddresses = [\"10.255.0.1/30\"]\n"
            )
        };
        let wan = "[[interface]]\nname = \"wan\"\nrealm = \"outside\"\ndriver = \"net_tap_w\"\naddresses = [\"192.0.2.2/24\"]\n";
        let rest = "[[pool]]\nname = \"a\"\naddresses = [\"203.0.113.1\"]\n\
                    [[rule]]\naction = \"no-translation\"\noutside = \"192.0.2.128/25\"\n";
        let default = "[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.1\"\n";
        format!("{}{}{wan}{rest}{default}{routers}", lan("a", "red"), lan("b", "blue"))
    };
    let route = |interface: &str, prefix: &str| {
        format!("[[route]]\nprefix = \"{prefix}\"\nvia = \"10.255.0.2\"\ninterface = \"{interface}\"\n")
    };
    let apart = text(&(route("a", "100.64.0.0/16") + &route("b", "100.65.0.0/16")));
    assert_eq!(compiled(&apart).warnings, []);
    // The same subscribers, or hosts on the subnet of one VRF: an answer could be for either.
    let same = text(&(route("a", "100.64.0.0/16") + &route("b", "100.64.0.0/16")));
    let hosts = text(&route("a", "100.64.0.0/16"));
    for text in [same, hosts] {
        let faults = config::parse(&text, "natrix.toml").expect_err("it is ambiguous");
        assert!(faults.iter().all(|fault| fault.problem.contains("could be for either")), "{faults:?}");
    }
}
