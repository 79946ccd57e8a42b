//! A whole instance changes its configuration by its control socket: plan, reload, refusals,
//! rollback.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::thread;
use std::time::Instant;

use crate::instance::Instance;
use crate::instance::NOBODY;
use crate::instance::PATIENCE;
use crate::instance::TEXT;
use crate::instance::ask;
use crate::instance::error;
use crate::instance::file;
use config::LogLevel;
use control::Client;
use control::NewConfig;
use control::PlanDenial;
use control::PlanFate;
use control::PlanRules;
use control::PlanSubject;
use control::Reply;
use control::Request;
use control::Unnamed;
use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::server::Socket;
use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use serde_json::Value;

#[test]
fn an_instance_is_changed_and_rolled_back_by_its_socket() {
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
    let replies = ask(&mut client, &Request::Reload(file(&faulty)));
    assert!(matches!(replies.first(), Some(Reply::ConfigFault(fault)) if fault.object == "wokrers"), "{replies:?}");
    assert!(error(&replies).contains("nothing was changed"), "{replies:?}");
    let restart = write("restart.toml", &text.replace("mappings = 1000", "mappings = 2000"));
    assert!(error(&ask(&mut client, &Request::Reload(file(&restart)))).contains("tables.mappings"));
    let back = Request::Reload(NewConfig { rollback: true, ..NewConfig::default() });
    assert!(error(&ask(&mut client, &back)).contains("no reload has changed anything"));
    assert_eq!(running.instance().shared().generation(), 0, "what is refused changes nothing");

    let replies = ask(&mut client, &Request::Reload(file(&second)));
    assert!(
        replies.iter().any(|reply| matches!(reply, Reply::Reloaded(done) if done.generation == 1 && done.workers == 2))
    );
    let shared = running.instance().shared();
    assert_eq!(shared.settings().pools[0].addresses.len(), 27);
    let closed = shared.addresses().filter(|(_, slot)| slot.closed.is_some()).count();
    assert_eq!((shared.addresses().count(), closed), (31, 4));
    assert_eq!(running.instance().config_path(), second.display().to_string());

    let replies = ask(&mut client, &back);
    assert!(replies.iter().any(|reply| matches!(reply, Reply::Reloaded(done) if done.generation == 2)), "{replies:?}");
    assert_eq!(running.instance().shared().settings(), &config.nat, "all is as before");
    assert_eq!(running.instance().config_path(), first.display().to_string());
    drop(client);
    running.stop();
    fs::remove_dir_all(&directory).expect("only our own files");
}

#[test]
fn a_reload_without_differences_keeps_the_rollback_target() {
    let mut one = Instance::start("again", "");
    let text = one.text.clone();
    let first = one.write("first.toml", &text);
    let done = |replies: &[Reply]| {
        let done =
            replies.iter().find_map(|reply| if let Reply::Reloaded(done) = reply { Some(done.clone()) } else { None });
        done.unwrap_or_else(|| panic!("it is made: {replies:?}"))
    };
    let back = NewConfig { rollback: true, ..NewConfig::default() };
    // The configuration of the start has no rollback target.
    assert_eq!(done(&one.reload(first.clone())).changes, 0);
    assert!(error(&one.reload(back.clone())).contains("no reload has changed anything"), "there is none");

    let next = text.replace("203.0.113.0/28", "203.0.113.16/28");
    let second = one.write("second.toml", &next);
    assert_eq!(done(&one.reload(second.clone())).addresses_changed, 32);
    // The same file twice, and a copy with another comment.
    let copy = one.write("copy.toml", &format!("# A remark.\n{next}"));
    for again in [&second, &second, &copy] {
        let replies = done(&one.reload(again.clone()));
        assert_eq!((replies.changes, replies.addresses_changed), (0, 0), "nobody used the addresses that are gone");
        assert_eq!(Some(replies.config), again.config, "the path of the file is reported");
    }
    let replies = one.reload(back.clone());
    assert!(replies.iter().any(|reply| matches!(reply, Reply::Change(_))), "{replies:?}");
    assert_eq!(
        (done(&replies).config, one.status().config),
        (first.config.clone().expect("a path"), first.config.expect("a path"))
    );
    assert_eq!(one.running.instance().shared().settings().pools[0].addresses[0], Ipv4Addr::new(203, 0, 113, 0));
    // And forward again.
    assert_eq!(Some(done(&one.reload(back)).config), copy.config);
    one.stop();
}

#[test]
fn a_file_that_is_not_text_is_reported_as_such() {
    let mut one = Instance::start("latin", "");
    let asked = one.write("next.toml", &one.text.clone());
    let path = asked.config.clone().expect("a path");
    fs::write(&path, b"# K\xf6ln\n[workers]\n").expect("a file of our own");
    let replies = error(&one.reload(asked));
    assert!(replies.contains("next.toml:1: is not UTF-8 (byte 0xf6)") && !replies.contains("permissions"), "{replies}");
    one.stop();
}

#[test]
fn a_reload_that_fails_changes_nothing() {
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
            "places cannot be added",
            text.replace("203.0.113.0/28", "203.0.112.0/24").replace("[tables]", "[tables]\nexternal_addresses = 400"),
            "tables.external_addresses",
        ),
        ("the log has no folder", text.replace("events.json", "missing/events.json"), "log.events"),
        ("the log is a folder", text.replace(&format!("{place}/events.json"), &place), "log.events"),
        ("the log is another file", text.replace("events.json", "first.toml"), "is not an event log"),
        ("the log is a device", text.replace(&format!("{place}/events.json"), "/dev/null"), "is not a regular file"),
        ("the log ends", text.replace("events = ", "# events = "), "log.events"),
    ];
    for (name, after, expected) in cases {
        let asked = one.write("next.toml", &after);
        let before = one.state();
        let replies = one.reload(asked);
        assert!(error(&replies).contains(expected) || format!("{replies:?}").contains(expected), "{name}: {replies:?}");
        assert!(!error(&replies).is_empty(), "{name} is refused");
        assert_eq!(one.state(), before, "{name} changes nothing");
    }
    // All differences that need a restart are named at once, without their consequences.
    let both = text.replace("count = 2", "count = 1").replace("events = ", "# events = ");
    let asked = one.write("next.toml", &both);
    let replies = error(&one.reload(asked));
    for named in ["workers.count 2 to 1", "log.events ", "workers start with the instance, and existing mappings"] {
        assert!(replies.contains(named), "{replies}");
    }
    assert!(!replies.contains("filter_rate") && !replies.contains("tables."), "{replies}");
    let missing = NewConfig { config: Some(format!("{place}/nowhere.toml")), ..NewConfig::default() };
    let before = one.state();
    assert!(error(&one.reload(missing)).contains("cannot be read"));
    assert_eq!(one.state(), before);
    // A valid change still works after all that.
    let asked = one.write("next.toml", &text.replace("203.0.113.0/28", "203.0.113.0/29"));
    assert_eq!(error(&one.reload(asked)), "");
    one.stop();
}

#[test]
fn a_plan_shows_the_missing_part_of_a_guarantee() {
    let small = |text: &str| text.replace("[\"203.0.113.0/28\"]", "[\"203.0.113.1\"]\nports = \"1024-1063\"");
    let mut one = Instance::start_with("guarantee", "", small);
    one.traffic(5_000..5_030);
    let class =
        "[[class]]\nname = \"business\"\nsubscribers = [\"10.0.0.32/28\", \"10.0.0.10/31\"]\nreserved_ports = 1\n";
    let asked = one.write("next.toml", &format!("{}{class}", one.text));
    for request in [Request::Plan(asked.clone()), Request::Plan(asked.clone())] {
        let replies = ask(&mut one.client, &request);
        let pool = replies.iter().find_map(|reply| if let Reply::PoolPlan(pool) = reply { Some(pool) } else { None });
        let pool = pool.expect("the only pool");
        assert_eq!((pool.pool.as_str(), pool.guaranteed.udp, pool.guaranteed.tcp), ("a", 18, 18));
        assert_eq!(
            (pool.guarantee_missing.udp, pool.guarantee_missing.tcp),
            (6, 0),
            "ten of forty are free, and two of the 18 have theirs"
        );
        let plan = replies.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan) } else { None });
        assert_eq!(plan.expect("a plan").total.guarantee_missing.udp, 6);
    }
    let replies = one.reload(asked);
    let done = replies.iter().find_map(|reply| if let Reply::Reloaded(done) = reply { Some(done) } else { None });
    assert_eq!(done.expect("it is made").addresses_changed, 0, "it offers what it did");
    one.stop();
}

#[test]
fn a_plan_shows_slices_in_blocks_of_other_subscribers() {
    let in_blocks = "[\"203.0.113.1\"]\nports = \"1024-2047\"\nallocation = \"blocks\"\nblock_size = 128";
    let by_formula = "[\"203.0.113.1\"]\nports = \"1024-2047\"\nallocation = \"deterministic\"\ndynamic_slices = 0\n\
                      blocks_per_subscriber = 0\nsubscribers = [\"10.0.0.32/29\"]\n\n[[pool]]\nname = \"b\"\n\
                      addresses = [\"203.0.113.2\"]";
    let mut one = Instance::start_with("slices", "", |text: &str| text.replace("[\"203.0.113.0/28\"]", in_blocks));
    one.traffic(5_000..5_008);
    let text = one.text.replace(in_blocks, by_formula);
    let limited = one.write("limited.toml", &format!("{text}\n[reload]\ndrain_time = \"1 h\"\n"));
    let asked = one.write("next.toml", &text);
    for (asked, longest) in [(limited, Some(3_600_000_000..3_800_000_000_u64)), (asked.clone(), None)] {
        let replies = ask(&mut one.client, &Request::Plan(asked));
        let pool = replies.iter().find_map(|reply| if let Reply::PoolPlan(pool) = reply { Some(pool) } else { None });
        let plan = replies.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan) } else { None });
        for pool in [pool.expect("the pool there is"), &plan.expect("a plan").total] {
            assert_eq!((pool.slices, pool.slices_leased, pool.slices_leased_whole), (6, 6, 6), "{pool:?}");
            match (&longest, pool.slices_leased_us) {
                (Some(longest), Some(time)) => assert!(longest.contains(&time), "{pool:?}"),
                (longest, time) => assert!(longest.is_none() && time.is_none(), "{pool:?}"),
            }
        }
    }
    let replies = one.reload(asked);
    assert!(replies.iter().any(|reply| matches!(reply, Reply::Reloaded(_))), "{replies:?}");
    let source = "10.0.0.33:5000".parse().expect("an endpoint");
    let destination = "192.0.2.77:53".parse().expect("an endpoint");
    let protocol = control::Protocol::Udp;
    let why = control::Why {
        protocol,
        source,
        destination,
        b4: None,
        inbound: false,
        tcp_segment: None,
        length_bytes: None,
        dont_fragment: false,
        interface: None,
        vrf: None,
    };
    let answer: control::WhyAnswer = one.client.request_one(&Request::Why(why)).expect("an answer");
    assert_eq!(answer.verdict, "ports_exhausted");
    let step = answer.steps.last().expect("a step");
    assert!(step.decision.contains("170 of 170 ports are in port blocks of other subscribers"), "{step:?}");
    one.stop();
}

#[test]
fn a_plan_names_some_mappings_and_counts_the_others() {
    let mut one = Instance::start("names", "");
    one.traffic(5_000..5_030);
    let drains = one.text.replace("[\"203.0.113.0/28\"]", "[\"203.0.113.0/28\"]\ndraining = true");
    let asked = one.write("next.toml", &drains);
    let plan_of = |replies: &[Reply]| {
        let plan =
            replies.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan.clone()) } else { None });
        plan.expect("a plan")
    };
    let named = |replies: &[Reply]| -> Vec<_> {
        let details =
            replies.iter().filter_map(|reply| if let Reply::PlanDetail(detail) = reply { Some(detail) } else { None });
        details.filter(|detail| detail.what == PlanSubject::Mapping).cloned().collect()
    };
    let replies = ask(&mut one.client, &Request::Plan(NewConfig { details: 10, ..asked.clone() }));
    let (plan, mappings) = (plan_of(&replies), named(&replies));
    assert_eq!((plan.total.mappings_drain, mappings.len(), plan.unnamed.mappings), (30, 10, 20));
    for mapping in &mappings {
        assert_eq!((mapping.becomes, mapping.ends_in_us), (PlanFate::Drains, None));
        assert!(mapping.internal_port.is_some_and(|port| (5_000..5_030).contains(&port)), "{mapping:?}");
        assert!(mapping.external.is_some() && mapping.first_port.is_some(), "{mapping:?}");
    }
    // Unchanged mappings are named if requested, and none without details.
    let text = one.text.clone();
    let same = one.write("same.toml", &text);
    let replies = ask(&mut one.client, &Request::Plan(NewConfig { details: 100, ..same.clone() }));
    assert_eq!((named(&replies).len(), plan_of(&replies).unnamed), (0, Unnamed::default()));
    let replies = ask(&mut one.client, &Request::Plan(NewConfig { details: 12, kept: true, ..same }));
    assert!(named(&replies).iter().all(|mapping| mapping.becomes == PlanFate::Keeps));
    assert_eq!((named(&replies).len(), plan_of(&replies).unnamed.mappings), (12, 18));
    let replies = ask(&mut one.client, &Request::Plan(asked));
    assert_eq!((named(&replies).len(), plan_of(&replies).unnamed), (0, Unnamed::default()));
    one.stop();
}

#[test]
fn a_plan_follows_rules_and_counts_differences() {
    let mut one = Instance::start("rules", "");
    one.traffic(5_000..5_030);
    let other = "[[pool]]\nname = \"z\"\naddresses = [\"203.0.113.16/30\"]\nsubscribers = [\"10.0.0.200/29\"]\n";
    let web = "[[rule]]\naction = \"drop\"\nprotocol = \"udp\"\noutside_ports = 443\n";
    let asked = |one: &mut Instance, rules: &str| {
        let file = one.write("next.toml", &format!("{}{other}{web}{rules}", one.text));
        let replies = ask(&mut one.client, &Request::Plan(NewConfig { details: 1, ..file }));
        let plan =
            replies.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan.clone()) } else { None });
        assert!(plan.is_some(), "{replies:?}");
        let details =
            replies.into_iter().filter_map(|reply| if let Reply::PlanDetail(one) = reply { Some(one) } else { None });
        let one = details.into_iter().find(|detail| detail.what == PlanSubject::Subscriber);
        (plan.expect("a plan"), one)
    };
    let (plan, nobody) = asked(&mut one, "");
    let all = plan.total.subscribers_keep;
    assert!(all > 0 && nobody.is_none(), "{plan:?}");
    assert_eq!(plan.rules, PlanRules { added: 1, narrow: 1, compared: true, ..PlanRules::default() });
    let (plan, somebody) = asked(&mut one, "[[rule]]\naction = \"translate\"\npool = \"z\"\n");
    let somebody = somebody.expect("one by name");
    assert_eq!((plan.total.subscribers_keep, plan.total.subscribers_move), (0, all));
    assert_eq!((somebody.becomes, somebody.next_pool.as_deref()), (PlanFate::Moves, Some("z")));
    assert_eq!((plan.rules.added, plan.rules.narrow, plan.total.mappings_keep), (2, 1, 30));
    let (plan, somebody) = asked(&mut one, "[[rule]]\naction = \"drop\"\nprotocol = \"tcp\"\n");
    let somebody = somebody.expect("one by name");
    assert_eq!((plan.total.subscribers_drain, somebody.denied), (all, Some(PlanDenial::Dropped)));
    assert_eq!((somebody.becomes, somebody.protocols), (PlanFate::Drains, vec![control::Protocol::Tcp]));
    one.stop();
}

#[test]
fn a_plan_explains_why_a_change_is_impossible() {
    let mut one = Instance::start("follow", "");
    let text = one.text.replace("203.0.113.0/28", "203.0.112.0/24");
    let asked = one.write("next.toml", &text);
    for request in [Request::Plan(asked.clone()), Request::Reload(asked)] {
        let replies = ask(&mut one.client, &request);
        assert!(replies.iter().any(|reply| matches!(reply, Reply::Change(_))), "what would differ: {replies:?}");
        let fault =
            replies.iter().find_map(|reply| if let Reply::ConfigFault(fault) = reply { Some(fault) } else { None });
        let fault = fault.expect("the fault");
        assert_eq!(fault.object, "tables.external_addresses");
        assert_eq!(fault.problem, "has places for 32 addresses while this instance runs, and 272 are needed");
        assert_eq!(fault.seen, "256 configured, 16 removed that may be in use");
        assert_eq!(fault.remedy, "restart with this configuration, or write fewer addresses");
        assert!(error(&replies).contains("cannot replace the running one"), "{replies:?}");
    }
    one.stop();
}

#[test]
fn a_refused_subscriber_is_shown_found_and_later_served() {
    const NOTHING: &str = "[[class]]\nname = \"none\"\nsubscribers = [\"10.0.0.9/32\"]\nports = 0\n";
    let mut one = Instance::start("refused", NOTHING);
    let of = Ipv4Addr::new(10, 0, 0, 9);
    one.traffic(5_000..5_016);
    for port in 7_000..7_005 {
        one.push(SocketAddrV4::new(of, port));
    }
    let shown = |one: &mut Instance| -> Vec<control::Subscriber> {
        let listed = ask(&mut one.client, &Request::Subscribers(control::List::default()));
        let subscribers = listed.into_iter();
        let all = subscribers.filter_map(|reply| if let Reply::Subscriber(it) = reply { Some(it) } else { None });
        all.filter(|subscriber| subscriber.refused.total() > 0).collect()
    };
    let begin = Instant::now();
    let refused = loop {
        let refused = shown(&mut one);
        if refused.iter().any(|subscriber| subscriber.refused.port_quota == 5) {
            break refused;
        }
        assert!(begin.elapsed() < PATIENCE, "five refusals: {refused:?}");
        thread::sleep(Duration::from_millis(2));
    };
    assert_eq!((refused.len(), refused[0].address, refused[0].refused_only), (1, Some(of), true));
    assert_eq!((refused[0].class.as_deref(), refused[0].mappings.total()), (Some("none"), 0));
    assert_eq!(one.status().subscribers, 8, "it is not counted among the subscribers with mappings");
    let all = control::Find { address: of.into(), port: None, protocol: None, vrf: None, limit: None, cursor: None };
    let find = Request::Find(all);
    let found = |one: &mut Instance| format!("{:?}", ask(&mut one.client, &find));
    let replies = "may use pool \\\"a\\\" and has no mapping now; refused packets: port_quota 5";
    assert!(found(&mut one).contains(replies), "{}", found(&mut one));
    let asked = one.write("next.toml", &one.text.replace("ports = 0", "ports = 2"));
    assert_eq!(error(&one.reload(asked)), "");
    let wanted = one.status().mappings_created + 2;
    for port in 8_000..8_004 {
        one.push(SocketAddrV4::new(of, port));
    }
    let begin = Instant::now();
    while shown(&mut one).iter().all(|subscriber| subscriber.refused.port_quota != 7) {
        assert!(begin.elapsed() < PATIENCE, "two of four more are refused");
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(one.status().mappings_created, wanted);
    assert!(shown(&mut one).iter().all(|subscriber| !subscriber.refused_only));
    assert!(found(&mut one).contains("has 2 mappings; refused packets: port_quota 7"), "{}", found(&mut one));
    one.stop();
}

#[test]
fn a_pool_of_blocks_has_as_many_identifiers_as_ports() {
    const BLOCKS: &str = "subscribers = [\"10.0.0.0/24\"]\nports = \"1024-1279\"\nallocation = \"blocks\"\nblock_size = 64\n\
                          reserved_ports = [\"1024-1087\", \"1100-1109\"]\n";
    let mut one = Instance::start("blocks", "");
    let pools = |one: &mut Instance| -> Vec<control::Pool> {
        let listed = ask(&mut one.client, &Request::Pools);
        listed.into_iter().filter_map(|reply| if let Reply::Pool(pool) = reply { Some(pool) } else { None }).collect()
    };
    let of = |[udp, tcp, icmp]: [u64; 3]| control::PerProtocol { udp, tcp, icmp };
    // Single ports: the range does not limit identifiers, which reach no service.
    assert_eq!(pools(&mut one)[0].ports_total, of([16 * 64_512, 16 * 64_512, 16 * 65_535]));
    let text = one.text.replace("203.0.113.0/28\"]", &format!("203.0.113.1\"]\n{BLOCKS}"));
    let asked = one.write("next.toml", &text);
    assert_eq!(error(&one.reload(asked)), "");
    // Four blocks: one is reserved, another has ten fewer ports.
    assert_eq!(pools(&mut one)[0].ports_total, of([182, 182, 192]));
    let subscribers = [10, 11, 12].map(|last| Ipv4Addr::new(10, 0, 0, last));
    let wanted = one.status().mappings_created + 3;
    for subscriber in subscribers {
        one.push(SocketAddrV4::new(subscriber, 4_000));
    }
    let begin = Instant::now();
    while one.status().mappings_created < wanted {
        assert!(begin.elapsed() < PATIENCE, "each gets a block");
        thread::sleep(Duration::from_millis(2));
    }
    let pool = &pools(&mut one)[0];
    assert!(pool.ports_used.udp == 3 && pool.ports_leased == 192, "three blocks: {pool:?}");
    assert_eq!(pool.utilisation_ratio, 1.0, "nobody else can have any");
    one.stop();
}

#[test]
fn blocks_with_shared_ports_are_shown_and_found() {
    const BLOCKS: &str = "addresses = [\"203.0.113.1\"]\nsubscribers = [\"10.0.0.0/24\"]\nports = \"1024-1279\"\n\
                          allocation = \"blocks\"\nblock_size = 64\nshared_ports = 1\n";
    let rule =
        "[[rule]]\naction = \"translate\"\nprotocol = \"udp\"\noutside_ports = 53\nmapping = \"endpoint-dependent\"\n";
    let mut one = Instance::start_with("torn-blocks", rule, |text| {
        let text = text.replace("addresses = [\"203.0.113.0/28\"]\n", BLOCKS);
        text.replace("mappings = 1000\n", "mappings = 1000\nflows = 1000\n")
    });
    // Towards one server each flow needs a port of its own: one more than a block has.
    for port in 4_000..4_065 {
        one.push(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10), port));
    }
    let begin = Instant::now();
    let listed = |one: &mut Instance, request| {
        let mut listed = ask(&mut one.client, &request).into_iter();
        listed.next().expect("one pool, of one address")
    };
    let pool = loop {
        let Reply::Pool(pool) = listed(&mut one, Request::Pools) else { panic!("a pool") };
        if pool.ports_used.udp == 65 {
            break pool;
        }
        assert!(begin.elapsed() < PATIENCE, "each flow gets a port: {pool:?}");
        thread::sleep(Duration::from_millis(2));
    };
    assert_eq!((pool.ports_leased, pool.ports_unleasable, pool.utilisation_ratio), (0, 128, 0.5));
    let Reply::PoolAddress(address) = listed(&mut one, Request::PoolAddresses(control::List::default())) else {
        panic!("an address of a pool")
    };
    assert_eq!((address.ports_leased, address.ports_unleasable, address.utilisation_ratio), (0, 128, 0.5));
    let sessions = ask(&mut one.client, &Request::Sessions(control::List { limit: Some(100), ..Default::default() }));
    let used: Vec<u16> = sessions
        .iter()
        .filter_map(|reply| if let Reply::Session(session) = reply { Some(session.external.port()) } else { None })
        .collect();
    let mut find = |port: u16| {
        let find = control::Find {
            address: Ipv4Addr::new(203, 0, 113, 1).into(),
            port: Some(port),
            protocol: None,
            vrf: None,
            limit: None,
            cursor: None,
        };
        format!("{:?}", ask(&mut one.client, &Request::Find(find)))
    };
    // The block with only one used port.
    let alone = used.iter().copied().find(|port| used.iter().filter(|other| *other / 64 == port / 64).count() == 1);
    let alone = alone.expect("64 in one block, one in another");
    let (block, free) = (alone / 64 * 64, alone ^ 1);
    let replies = format!(
        "no subscriber has the block {block}-{} of 203.0.113.1, which is reserved for flows that share ports (1 now); port {free} is not in use",
        block + 63
    );
    assert!(find(free).contains(&replies), "{}", find(free));
    assert!(find(alone).contains("and shares it"), "{}", find(alone));
    let nobodys =
        (1_024..1_280).find(|port| used.iter().all(|used| used / 64 != port / 64)).expect("two blocks are free");
    assert!(find(nobodys).contains("no subscriber holds"), "{}", find(nobodys));
    one.stop();
}

#[test]
fn an_address_shows_whether_it_drains_and_how_long() {
    let mut one = Instance::start("address-states", "");
    one.traffic(5_000..5_001);
    let shown = |one: &mut Instance| -> Vec<control::PoolAddress> {
        let listed = ask(&mut one.client, &Request::PoolAddresses(control::List::default())).into_iter();
        listed.filter_map(|reply| if let Reply::PoolAddress(address) = reply { Some(address) } else { None }).collect()
    };
    let active = |one: &control::PoolAddress| one.state == control::AddressState::Active && one.ends_in_us.is_none();
    let before = shown(&mut one);
    assert!(before.len() == 16 && before.iter().all(active), "{before:?}");
    assert!(before.iter().all(|address| address.announced.is_none()), "nothing is announced: {before:?}");
    let used = before.iter().find(|address| address.ports_used.udp > 0).expect("one mapping").address;
    let limit = "[reload]\ndrain_time = \"1 h\"\n";
    let text = one.text.replace("\"203.0.113.0/28\"]", &format!("\"203.0.113.0/28\"]\ndrain = [\"{used}\"]"));
    let asked = one.write("draining.toml", &format!("{text}\n{limit}"));
    assert_eq!(error(&one.reload(asked)), "");
    let during = shown(&mut one);
    let (own, others): (Vec<_>, Vec<_>) = during.iter().partition(|address| address.address == used);
    assert_eq!((own.len(), own[0].state), (1, control::AddressState::Draining), "{own:?}");
    assert!(own[0].ends_in_us.is_some_and(|left| (1..=3_600_000_000).contains(&left)), "{own:?}");
    assert!(others.len() == 15 && others.into_iter().all(active), "{during:?}");
    // Only the address of the mapping is left of these.
    let text = one.text.replace("203.0.113.0/28", "203.0.113.32/29");
    let asked = one.write("removed.toml", &text);
    assert_eq!(error(&one.reload(asked)), "");
    let begin = Instant::now();
    let after = loop {
        let after = shown(&mut one);
        if after.len() == 9 {
            break after;
        }
        assert!(begin.elapsed() < PATIENCE, "unused addresses are given up: {after:?}");
        thread::sleep(Duration::from_millis(50));
    };
    let removed: Vec<_> = after.iter().filter(|address| !active(address)).collect();
    assert_eq!((removed.len(), removed[0].address), (1, used), "{removed:?}");
    assert_eq!((removed[0].state, removed[0].ends_in_us), (control::AddressState::Removed, None));
    one.stop();
}

#[test]
fn find_and_why_name_the_subscriber_that_waits_for_a_port() {
    let mut one = Instance::start("waits", "");
    one.traffic(5_000..5_001);
    let listed = ask(&mut one.client, &Request::Mappings(control::List::default()));
    let mapping = listed.iter().find_map(|reply| if let Reply::Mapping(it) = reply { Some(it.clone()) } else { None });
    let external = mapping.expect("one mapping").external;
    let find = |one: &mut Instance| {
        let port = Some(external.port());
        let find = control::Find {
            address: (*external.ip()).into(),
            port,
            protocol: None,
            vrf: None,
            limit: None,
            cursor: None,
        };
        format!("{:?}", ask(&mut one.client, &Request::Find(find)))
    };
    let inside = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 99), 9_999);
    let why = |one: &mut Instance| {
        let destination = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 77), 53);
        let protocol = control::Protocol::Udp;
        let why = control::Why {
            protocol,
            source: inside.into(),
            destination: destination.into(),
            b4: None,
            inbound: false,
            tcp_segment: None,
            dont_fragment: false,
            interface: None,
            vrf: None,
            length_bytes: None,
        };
        format!("{:?}", ask(&mut one.client, &Request::Why(why)))
    };
    let (found, explained) = (find(&mut one), why(&mut one));
    assert!(!found.contains("waits") && explained.contains("verdict: \"outbound\""), "{found} {explained}");
    let forward = format!(
        "[[forward]]\nprotocol = \"udp\"\nexternal = \"{}\"\nports = {}\ninside = \"10.0.0.99\"\ninside_port = 9999\n",
        external.ip(),
        external.port()
    );
    let asked = one.write("next.toml", &format!("{}\n{forward}", one.text));
    let planned = ask(&mut one.client, &Request::Plan(asked.clone()));
    let plan = planned.iter().find_map(|reply| if let Reply::Plan(plan) = reply { Some(plan) } else { None });
    let total = &plan.expect("a plan").total;
    assert_eq!(total.forwards_wait_drain + total.forwards_wait_drain_until, 1, "{total:?}");
    assert_eq!(error(&one.reload(asked)), "");
    let replies = "the port is forwarded to 10.0.0.99:9999, which waits until this mapping ends";
    assert!(find(&mut one).contains(replies), "{}", find(&mut one));
    let explained = why(&mut one);
    let waits = explained.contains("ports_exhausted") && explained.contains(&format!("{external}"));
    assert!(waits && explained.contains("still"), "{explained}");
    // The engine does what `why` says, and remotes reach the old holder only while its mapping
    // lasts.
    one.push(inside);
    let begin = Instant::now();
    let exhausted = |one: &Instance| -> u64 {
        let all = one.running.instance().snapshots().expect("numbers");
        all.iter().map(|snapshot| snapshot.counters.of(nat::Verdict::PortsExhausted)).sum()
    };
    while exhausted(&one) == 0 {
        assert!(begin.elapsed() < PATIENCE, "it is refused");
        thread::sleep(Duration::from_millis(2));
    }
    one.stop();
}

#[test]
fn a_silent_worker_undoes_the_change_and_follows_later() {
    let mut one = Instance::start("stalls", "");
    one.traffic(5_000..5_040);
    let settings = one.running.instance().shared().settings().clone();
    let asked = one.write("next.toml", &one.text.replace("203.0.113.0/28", "203.0.113.4-203.0.113.30"));
    for stalled in [1, 0] {
        one.stalled.store(stalled, Ordering::Relaxed);
        let replies = one.reload(asked.clone());
        let expected = format!("worker {stalled}: does not answer");
        assert!(error(&replies).contains(&expected) && error(&replies).contains("nothing was changed"), "{replies:?}");
        let shared = one.running.instance().shared();
        assert_eq!(shared.settings(), &settings, "the old settings are in use");
        assert!(one.running.instance().config_path().ends_with("first.toml"));
        one.stalled.store(NOBODY, Ordering::Relaxed);
        // All workers use it: one question each.
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
    // New subscribers get only addresses of the current configuration.
    one.traffic(6_000..6_040);
    let replies = one.reload(asked);
    assert_eq!(error(&replies), "", "{replies:?}");
    one.traffic(7_000..7_040);
    let shared = one.running.instance().shared();
    assert_eq!(shared.settings().pools[0].addresses.len(), 27);
    one.stop();
}

/// However many questions wait for it already.
#[test]
fn a_silent_worker_with_many_questions_goes_back_too() {
    let mut one = Instance::start("many-questions", "");
    let why = |one: &mut Instance, host: u8| {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), 5_000);
        let why = control::Why {
            protocol: control::Protocol::Udp,
            source: source.into(),
            destination: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 77), 53).into(),
            b4: None,
            inbound: false,
            tcp_segment: None,
            dont_fragment: false,
            interface: None,
            vrf: None,
            length_bytes: None,
        };
        one.client.request_one::<control::WhyAnswer>(&Request::Why(why)).map(|answer| answer.verdict)
    };
    let asked = one.write("next.toml", &format!("{}\n[[rule]]\naction = \"drop\"\n", one.text));
    // The server itself asks once a second, so one of these meets the last place.
    for waiting in 9..14 {
        one.stalled.store(1, Ordering::Relaxed);
        for _ in 0..waiting {
            assert!(one.running.instance().snapshot(1).is_err());
        }
        let replies = one.reload(asked.clone());
        assert!(error(&replies).contains("nothing was changed"), "{waiting}: {replies:?}");
        one.stalled.store(NOBODY, Ordering::Relaxed);
        let begin = Instant::now();
        while one.running.instance().snapshots().is_err() {
            assert!(begin.elapsed() < PATIENCE, "it goes on");
        }
        for host in 10..30 {
            assert_eq!(why(&mut one, host).expect("an answer"), "outbound", "after {waiting} questions: 10.0.0.{host}");
        }
    }
    one.stop();
}

/// The change that is undone has one more pool, in front of the others.
#[test]
fn an_undone_change_reports_no_full_pool_again() {
    let pool = |name: &str, address: &str, subscribers: &str| {
        format!(
            "[[pool]]\nname = \"{name}\"\naddresses = [\"{address}\"]\nsubscribers = [\"{subscribers}\"]\n\
             ports = \"1024-1063\"\nthreshold = 50\n"
        )
    };
    let pools = pool("a", "203.0.113.1", "10.0.0.0/25") + &pool("b", "203.0.113.2", "10.0.0.128/25");
    let only = "[[pool]]\nname = \"a\"\naddresses = [\"203.0.113.0/28\"]\n";
    let log = "[log]\nevents = \"HERE/events.json\"\n";
    let mut one = Instance::start_with("full-again", log, |text| text.replace(only, &pools));
    one.traffic(5_000..5_030);
    let reached = |one: &Instance| {
        let text = fs::read_to_string(one.directory.join("events.json")).expect("it is there");
        text.lines().filter(|line| line.contains("threshold_")).map(str::to_owned).collect::<Vec<_>>()
    };
    let begin = Instant::now();
    while reached(&one).is_empty() {
        assert!(begin.elapsed() < PATIENCE, "the pool is nearly full");
        thread::sleep(Duration::from_millis(5));
    }
    let further = pool("further", "203.0.113.3", "10.0.0.99/32") + &pools;
    let asked = one.write("next.toml", &one.text.replace(&pools, &further));
    one.stalled.store(1, Ordering::Relaxed);
    let replies = one.reload(asked);
    assert!(error(&replies).contains("nothing was changed"), "{replies:?}");
    one.stalled.store(NOBODY, Ordering::Relaxed);
    // Several rounds over the pools.
    thread::sleep(Duration::from_secs(1));
    let all = reached(&one);
    assert_eq!(all.len(), 1, "{all:?}");
    one.stop();
}

#[test]
fn plan_and_reload_warn_of_a_shorter_retention() {
    let mut one = Instance::start("shorter", "[log.store]\npath = \"HERE/store\"\nretention = \"180 d\"\n");
    let kept = |one: &Instance, retention: &str| {
        let text = one.text.replace("retention = \"180 d\"", retention);
        one.write("next.toml", &text)
    };
    let warnings = |replies: &[Reply]| -> Vec<String> {
        let found = replies.iter().find_map(|reply| match reply {
            Reply::Plan(plan) => Some(plan.warnings.clone()),
            Reply::Reloaded(reloaded) => Some(reloaded.warnings.clone()),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("{replies:?}"))
    };
    let asked = kept(&one, "retention = \"2 min\"");
    let planned = warnings(&ask(&mut one.client, &Request::Plan(asked.clone())));
    assert_eq!(planned.len(), 2, "natrix check warns of it, too: {planned:?}");
    let said = "(kept 180d00h before, 2m00s from now on); a rollback does not bring them back";
    assert!(planned[0].starts_with("log.store.retention: ") && planned[0].ends_with(said), "{planned:?}");
    assert_eq!(warnings(&one.reload(asked)), planned);
    // Longer, and for ever.
    for retention in ["retention = \"1 d\"", "retention = \"180 d\"", ""] {
        let asked = kept(&one, retention);
        assert_eq!(warnings(&one.reload(asked)), Vec::<String>::new(), "{retention}");
    }
    let asked = kept(&one, "retention = \"1 d\"");
    let planned = warnings(&ask(&mut one.client, &Request::Plan(asked)));
    assert!(planned[0].contains("(kept for ever before, 1d00h from now on)"), "{planned:?}");
    one.stop();
}

#[test]
fn a_change_of_the_log_loses_no_record() {
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
        assert_eq!(status.back_pressure.to_string(), policy, "the current policy is shown");
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
            // A newly opened file repeats the existing state.
            created += u32::from(line["event"] == "mapping_created" && line["cause"] == "outbound");
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

#[test]
fn a_new_log_has_all_holders_by_itself() {
    let log = "[log]\nevents = \"HERE/events.json\"\n";
    let mut one = Instance::start("moves-with-all", log);
    one.traffic(5_000..5_100);
    let elsewhere = one.text.replace("events.json", "elsewhere.json");
    let asked = one.write("next.toml", &elsewhere);
    assert_eq!(error(&one.reload(asked)), "");
    let (old, new) = (one.directory.join("events.json"), one.directory.join("elsewhere.json"));
    // Both workers report all state, without another packet.
    let begin = Instant::now();
    let lines = loop {
        let text = fs::read_to_string(&new).expect("it is there");
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.iter().filter(|line| line["event"] == "snapshot_complete").count() == 2 {
            break lines;
        }
        assert!(begin.elapsed() < PATIENCE, "{text}");
        thread::sleep(Duration::from_millis(5));
    };
    let opened = lines.iter().find(|line| line["event"] == "opened").expect("where it begins");
    let name = |path: &std::path::Path| Value::from(path.display().to_string());
    assert_eq!((&opened["earlier"], &opened["file"], &opened["workers"]), (&name(&old), &name(&new), &Value::from(2)));
    let lived = lines.iter().filter(|line| line["cause"] == "log_opened" && line["event"] == "mapping_created");
    let mut holders: Vec<(String, u64)> = Vec::new();
    for line in lived {
        holders.push((line["external_address"].to_string(), line["external_port"].as_u64().expect("a port")));
        let asked = lookup::Asked {
            address: serde_json::from_value(line["external_address"].clone()).expect("an address"),
            host: None,
            port: Some(line["external_port"].as_u64().expect("a port") as u16),
            protocol: Some(nat::Protocol::Udp),
            vrf: None,
        };
        let query = lookup::log::Query::at(asked, opened["time"].as_str().expect("a time")).expect("a time");
        let history = lookup::log::look_up(std::slice::from_ref(&new), &query, |_, _| true).expect("it can be read");
        assert_eq!(history.found.holders.len(), 1, "{history:?}");
        assert_eq!(Value::from(history.found.holders[0].subscriber.to_string()), line["subscriber"]);
    }
    holders.sort();
    holders.dedup();
    assert_eq!(holders.len(), 100);
    one.stop();
}

#[test]
fn a_sent_text_reads_no_files_outside_the_folder() {
    let mut one = Instance::start("sent", "");
    let text = one.text.clone();
    // Relative to the file that runs, by its whole path.
    let first = one.write("first.toml", &text);
    one.reload(first);
    let elsewhere = one.directory.with_extension("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a folder of our own");
    let secret = elsewhere.join("audit.jsonl");
    fs::write(&secret, "a record of lookups\n").expect("a file of our own");
    std::os::unix::fs::symlink(&secret, one.directory.join("link.csv")).expect("a link of our own");
    fs::write(one.directory.join("wrong.csv"), "a record of lookups\n").expect("a file of our own");
    let secret = secret.display().to_string();
    let outside = "is not in the folder of the running configuration";
    let up = format!("../{}/audit.jsonl", elsewhere.file_name().expect("a name").display());
    let missing = elsewhere.join("missing").display().to_string();
    for (path, problem, seen) in [
        (secret.as_str(), outside, secret.as_str()),
        (&up, outside, &up),
        (&missing, outside, &missing),
        ("link.csv", outside, "link.csv"),
        ("wrong.csv", "has an unknown column", ""),
    ] {
        let text = format!("{text}\n[[rule_file]]\npath = \"{path}\"\n");
        let asked = NewConfig { text: Some(text), ..NewConfig::default() };
        for request in [Request::Plan(asked.clone()), Request::Reload(asked)] {
            let replies = ask(&mut one.client, &request);
            let faults = replies.iter().filter_map(|reply| match reply {
                Reply::ConfigFault(fault) => Some((fault.problem.as_str(), fault.seen.as_str())),
                _ => None,
            });
            assert_eq!(faults.collect::<Vec<_>>(), [(problem, seen)], "{path}: {replies:?}");
            assert!(!format!("{replies:?}").contains("record of lookups"), "{replies:?}");
        }
    }
    fs::write(one.directory.join("rules.csv"), "action,inside,outside\n").expect("a file");
    let good = format!("{text}\n[[rule_file]]\npath = \"rules.csv\"\n");
    let replies = one.reload(NewConfig { text: Some(good), ..NewConfig::default() });
    assert_eq!(error(&replies), "");
    fs::remove_dir_all(&elsewhere).expect("only our own files");
    one.stop();
}

fn records(one: &mut Instance) -> Vec<String> {
    let list = control::List { limit: Some(100), ..control::List::default() };
    let replies = ask(&mut one.client, &Request::Audit(list));
    let records = replies.iter().filter_map(|reply| match reply {
        Reply::Audit(record) => {
            Some(format!("{} {}: {}: {}", record.who, record.action, record.subject, record.result))
        }
        _ => None,
    });
    records.collect()
}

#[test]
fn a_record_of_a_change_names_its_number_and_what_differs() {
    let mut one = Instance::start("recorded", "");
    let text = one.text.replace("203.0.113.0/28", "203.0.113.0/29");
    let first = one.write("first.toml", &one.text.clone());
    one.reload(first);
    one.reload(NewConfig { text: Some(text), save: true, ..NewConfig::default() });
    let mut found = records(&mut one);
    found.truncate(1);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(found, [format!("uid {uid} reload --save: a text: change 2: pool \"a\".addresses: done")]);
    one.stop();
}

#[test]
fn a_change_that_cannot_be_saved_is_still_a_change() {
    let mut one = Instance::start("unsaved", "");
    let text = one.text.replace("203.0.113.0/28", "203.0.113.0/29");
    let first = one.write("first.toml", &one.text.clone());
    one.reload(first);
    // A folder where the new file is to be written first: not even root can.
    fs::create_dir(one.directory.join("first.toml.new")).expect("a folder of our own");
    let replies = one.reload(NewConfig { text: Some(text), save: true, ..NewConfig::default() });
    assert_eq!(error(&replies), "");
    assert!(matches!(&replies[0], Reply::Change(change) if change.object == "pool \"a\".addresses"), "{replies:?}");
    let reloaded = replies.iter().find_map(|reply| if let Reply::Reloaded(it) = reply { Some(it) } else { None });
    let reloaded = reloaded.expect("what was changed");
    assert_eq!(reloaded.generation, one.running.instance().shared().generation());
    let why = reloaded.not_saved.clone().expect("why it is not saved");
    let newest = records(&mut one).remove(0);
    assert!(newest.ends_with(&format!(": change 2: pool \"a\".addresses: done: not saved: {why}")), "{newest}");
    assert_eq!(fs::read_to_string(one.directory.join("first.toml")).expect("the old file"), one.text);
    one.stop();
}

/// Why a restart would bring another configuration, of the answer to a reload that was done.
fn not_saved(replies: &[Reply]) -> Option<&str> {
    assert_eq!(error(replies), "");
    let reloaded = replies.iter().find_map(|reply| if let Reply::Reloaded(it) = reply { Some(it) } else { None });
    reloaded.expect("what was changed").not_saved.as_deref()
}

#[test]
fn a_rollback_says_if_the_file_has_something_else() {
    let mut one = Instance::start("rolled_back", "");
    let path = one.directory.join("first.toml");
    let (old, new) = (one.text.clone(), one.text.replace("203.0.113.0/28", "203.0.113.0/29"));
    let back = || NewConfig { rollback: true, ..NewConfig::default() };
    let save = |text: &str| NewConfig { text: Some(text.to_owned()), save: true, ..NewConfig::default() };
    // The file was edited before its text was sent, so what ran before is nowhere.
    fs::write(&path, &new).expect("a file of our own");
    assert_eq!(not_saved(&one.reload(save(&new))), None);
    let replies = one.reload(back());
    let why = not_saved(&replies).expect("a restart would bring the new one");
    assert!(why.ends_with("first.toml has another configuration, which a restart would bring back"), "{why}");
    assert_eq!(fs::read_to_string(&path).expect("the file"), new);
    // The second rollback makes the change again, and the file has it.
    assert_eq!(not_saved(&one.reload(back())), None);
    // Somebody has put back by hand what the rollback brings.
    fs::write(&path, format!("{old}# by hand\n")).expect("a file of our own");
    assert_eq!(not_saved(&one.reload(back())), None);
    one.stop();
}

#[test]
fn a_reload_of_another_file_says_what_a_restart_reads() {
    let mut one = Instance::start("other_file", "");
    let other = one.write("other.toml", &one.text.replace("203.0.113.0/28", "203.0.113.0/29"));
    let equal = one.write("equal.toml", &format!("{}# the same\n", one.text));
    let differs = "first.toml has another configuration, which a restart would bring back";
    // Also if it is in use already.
    for _ in 0..2 {
        let replies = one.reload(other.clone());
        let why = not_saved(&replies).expect("a restart reads the first file");
        assert!(why.ends_with(differs), "{why}");
    }
    let newest = records(&mut one).remove(0);
    assert!(newest.contains(": done: not saved: ") && newest.ends_with(differs), "{newest}");
    assert_eq!(not_saved(&one.reload(equal)), None, "a file that says the same");
    let text = one.text.replace("203.0.113.0/28", "203.0.113.0/30");
    let replies = one.reload(NewConfig { text: Some(text.clone()), ..NewConfig::default() });
    assert!(not_saved(&replies).is_some_and(|why| why.ends_with(differs)), "{replies:?}");
    let first = one.write("first.toml", &text);
    assert_eq!(not_saved(&one.reload(first)), None, "the file that a restart reads");
    fs::remove_file(one.directory.join("first.toml")).expect("it is there");
    let replies = one.reload(other);
    assert!(not_saved(&replies).is_some_and(|why| why.contains("No such file")), "{replies:?}");
    one.stop();
}

#[test]
fn records_of_subscribers_change_only_if_the_client_may() {
    let mut one = Instance::start("keep_records", "");
    let text = one.text.clone();
    let with = |more: &str, keep_records| NewConfig {
        text: Some(format!("{text}\n{more}")),
        keep_records,
        ..NewConfig::default()
    };
    let first = one.write("first.toml", &text);
    one.reload(first);
    let generation = one.running.instance().shared().generation();
    for (more, object) in [
        ("[log]\nrefusal_interval = \"1 s\"\n", "log.refusal_interval"),
        ("[[filter]]\naction = \"deny\"\nprotocol = 6\nlog = true\n", "filter"),
    ] {
        let asked = with(more, true);
        for request in [Request::Plan(asked.clone()), Request::Reload(asked)] {
            let replies = ask(&mut one.client, &request);
            let text = error(&replies);
            assert!(text.contains("needs the role audit") && text.contains(&format!("({object})")), "{text}");
            assert!(matches!(&replies[0], Reply::Change(change) if change.object == object), "{replies:?}");
        }
    }
    assert_eq!(one.running.instance().shared().generation(), generation, "what is refused changes nothing");
    let silent = "[[filter]]\naction = \"deny\"\nprotocol = 6\n";
    assert_eq!(error(&one.reload(with(silent, true))), "");
    let allowed = with("[log]\nrefusal_interval = \"1 s\"\n", false);
    assert_eq!(error(&one.reload(allowed)), "");
    // The way back is a change too.
    let back = |keep_records| NewConfig { rollback: true, keep_records, ..NewConfig::default() };
    assert!(error(&one.reload(back(true))).contains("needs the role audit"));
    assert_eq!(error(&one.reload(back(false))), "");
    one.stop();
}

#[test]
fn lists_for_snmp_are_recorded_once_over_all_connections() {
    let mut one = Instance::start("snmp", "");
    let socket = one.directory.join("control.sock");
    let list = || Request::Mappings(control::List::default());
    for (who, from) in [("snmp", "agentx"), ("snmp", "agentx"), ("snmp", "198.51.100.7"), ("snmp", "198.51.100.7")] {
        let actor = control::Actor { who: who.to_owned(), from: from.to_owned(), case: None };
        let mut client = Client::connect_for(&socket, "0.1", PATIENCE, Some(actor)).expect("it listens");
        ask(&mut client, &list());
        let record =
            control::Record { action: "snmp set".to_owned(), subject: from.to_owned(), result: None, id: None };
        ask(&mut client, &Request::Record(record));
    }
    let found = records(&mut one);
    let of = |text: &str| found.iter().filter(|record| record.contains(text)).count();
    assert_eq!((of("show mappings"), of("snmp set: agentx: asked")), (3, 2), "{found:?}");
    one.stop();
}
