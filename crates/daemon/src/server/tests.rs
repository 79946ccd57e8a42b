//! The control server over a real socket, in front of workers on in-memory ports.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use control::Client;
use control::ClientError;
use control::Fault;
use control::Filter;
use control::Find;
use control::FindAnswer;
use control::List;
use control::Mapping;
use control::NewConfig;
use control::Object;
use control::Place;
use control::Reply;
use control::Request;
use control::Status;
use control::Trace;
use control::TraceRecord;
use control::Why;
use control::WhyAnswer;
use control::server::SILENCE_MAX;
use nat::types::AddressUse;
use nat::types::Endpoint;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::view;
use tracing_subscriber::layer::SubscriberExt;
use wire::ethernet::MacAddress;

use super::CLIENTS_MAX;
use super::Server;
use super::Socket;
use super::SocketError;
use super::Ticker;
use super::begin_change;
use super::change_subject;
use super::end_change;
use super::lists;
use super::lookup_of;
use super::ticker::LinkWatch;
use super::ticker::RouterWatch;
use crate::audit::Audit;
use crate::below::Seen;
use crate::change::Live;
use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::fleet::Idle;
use crate::fleet::ThreadOptions;
use crate::instance::Description;
use crate::instance::Instance;
use crate::instance::PortDescription;
use crate::kernel::netlink::DeviceLink;
use crate::links::InterfaceLink;
use crate::log::Log;
use crate::mailbox::Snapshot;
use crate::mailbox::mailbox;
use crate::neighbour::RouterView;
use crate::worker::tests::Bed;
use crate::worker::tests::FORWARDED;
use crate::worker::tests::INSIDE;
use crate::worker::tests::OUTSIDE;
use crate::worker::tests::POOL_OFF_LINK;
use crate::worker::tests::SERVER;
use crate::worker::tests::TARGETS;
use crate::worker::tests::WHOLE;
use crate::worker::tests::WHOLE_INSIDE;
use crate::worker::tests::settings;
use crate::worker::tests::subscriber;

const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of this test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("natrix-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Directory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Running {
    bed: Bed,
    directory: Directory,
    instance: Arc<Instance>,
    _server: Server,
    _ticker: Ticker,
    _fleet: Fleet,
}

impl Running {
    fn start(name: &str) -> Running {
        Running::start_with(name, settings())
    }

    fn start_with(name: &str, settings: nat::Settings) -> Running {
        Running::start_on(name, settings, "memory")
    }

    /// `wan`: the driver of the port outside, by its description.
    fn start_on(name: &str, settings: nat::Settings, wan: &str) -> Running {
        let directory = Directory::new(name);
        let clock = Clock::start();
        let Bed { ports, mut workers, .. } = Bed::of(settings, 2);
        let mut askers = Vec::new();
        for worker in &mut workers {
            let (asker, inbox) = mailbox();
            worker.set_mailbox(inbox);
            askers.push(asker);
        }
        let port = |name: &str, driver: &str| PortDescription {
            name: name.to_owned(),
            driver: driver.to_owned(),
            station: MacAddress([2, 0, 0, 0, 0, 0]),
        };
        let description = Description {
            version: "1.2.3".to_owned(),
            config_path: "test.toml".to_owned(),
            ports: vec![port("lan", "memory"), port("wan", wan)],
            links: vec![
                InterfaceLink { port: INSIDE, vlan: None },
                InterfaceLink { port: OUTSIDE, vlan: None },
                InterfaceLink { port: INSIDE, vlan: Some(100) },
            ],
            cpus: vec![None, None],
            users_without_group: Vec::new(),
        };
        let shared = Arc::clone(workers[0].shard().shared());
        let instance = Arc::new(Instance::new(description, shared, clock, askers));
        instance.set_state(control::RunState::Running);
        instance.set_own_addresses(Arc::clone(workers[0].own_addresses()));
        instance.set_audit(Audit::new(directory.0.join("audit.jsonl")).expect("a file of our own"));
        let (quarantine, _receiver) = sync_channel(1);
        let options = ThreadOptions { clock, idle: Idle::Sleep, quarantine };
        let fleet = Fleet::start(workers, &[], &options, || {}).expect("threads start");
        let log = Log::silent();
        let socket = Socket::open(&directory.socket(), 0o600).expect("the socket opens");
        let server = Server::start(socket, Arc::clone(&instance), log).expect("the server starts");
        let ticker = Ticker::start(Arc::clone(&instance), log).expect("the ticker starts");
        let bed = Bed { ports, workers: Vec::new(), now: clock.now() };
        Running { bed, directory, instance, _server: server, _ticker: ticker, _fleet: fleet }
    }

    fn client(&self) -> Client {
        Client::connect(&self.directory.socket(), "1.2.3", PATIENCE).expect("the server accepts")
    }

    /// Sends one packet from each of `hosts` and waits until all have left; returns their external
    /// endpoints.
    fn traffic(&self, hosts: core::ops::Range<u8>) -> Vec<(SocketAddrV4, SocketAddrV4)> {
        let start = Instant::now();
        let mut out = Vec::new();
        for host in hosts {
            self.bed.push_udp(usize::from(host) % 2, subscriber(host), SERVER, &[host]);
            // One after the other: only a few packets may wait for the server's station.
            while out.last().is_none_or(|(internal, _)| *internal != subscriber(host)) {
                assert!(start.elapsed() < PATIENCE, "the packet leaves");
                let sent = self.bed.sent(OUTSIDE);
                self.bed.answer_arp(0, OUTSIDE, &sent);
                out.extend(sent.iter().filter_map(|frame| {
                    let (source, _, payload) = frame.udp()?;
                    Some((subscriber(payload[0]), source))
                }));
                thread::sleep(Duration::from_micros(100));
            }
        }
        out
    }
}

fn all<T: Object>(client: &mut Client, make: impl Fn(List) -> Request, list: &List) -> Vec<T> {
    let mut objects = Vec::new();
    let mut cursor = None;
    loop {
        client.send(&make(List { cursor, ..list.clone() })).expect("the request is sent");
        cursor = loop {
            match client.receive().expect("a reply") {
                Reply::End(end) => break end.cursor,
                Reply::Error(fault) => panic!("{fault}"),
                reply => objects.push(T::from_reply(reply).expect("the kind asked for")),
            }
        };
        if cursor.is_none() {
            return objects;
        }
    }
}

fn one<T: Object>(client: &mut Client, request: Request) -> T {
    let mut objects = all(client, |_| request.clone(), &List::default());
    assert_eq!(objects.len(), 1);
    objects.remove(0)
}

#[test]
fn every_kind_of_state_is_shown() {
    let running = Running::start("kinds");
    let traffic = running.traffic(2..42);
    let mut client = running.client();
    assert_eq!(client.daemon_version(), "1.2.3");

    let status: Status = one(&mut client, Request::Status);
    assert_eq!((status.mappings, status.sessions, status.subscribers), (40, 40, 40));
    assert_eq!(status.workers.len(), 2);
    assert!(status.workers.iter().all(|worker| worker.mappings > 0), "both own subscribers");
    assert_eq!(status.packets_forwarded, 40);
    let own = status.port_timeouts.iter().map(|own| (own.protocol, own.first_port, own.last_port, own.idle_us));
    assert_eq!(own.collect::<Vec<_>>(), [(control::Protocol::Udp, 123, 123, 20_000_000)]);

    let mappings: Vec<Mapping> = all(&mut client, Request::Mappings, &List { limit: Some(7), ..List::default() });
    let shown: BTreeSet<_> = mappings.iter().map(|mapping| (mapping.internal, mapping.external)).collect();
    assert_eq!((mappings.len(), shown), (40, traffic.into_iter().collect()));
    assert!(mappings.iter().all(|mapping| mapping.idle_us <= 60_000_000 && mapping.expires_in_us > 0));

    let filter = Filter { internal_port: Some(4_007), ..Filter::default() };
    let filtered: Vec<control::Session> = all(&mut client, Request::Sessions, &List { filter, ..List::default() });
    assert_eq!(filtered.iter().map(|session| session.remote).collect::<Vec<_>>(), [SERVER]);
    let subscribers: Vec<control::Subscriber> = all(&mut client, Request::Subscribers, &List::default());
    assert_eq!(subscribers.len(), 40);

    let interfaces: Vec<control::Interface> = all(&mut client, |_| Request::Interfaces, &List::default());
    assert_eq!(interfaces.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["lan", "wan", "lan.100"]);
    assert_eq!(interfaces[0].rx_packets, 40);
    let pools: Vec<control::Pool> = all(&mut client, |_| Request::Pools, &List::default());
    assert_eq!((pools[0].ports_used.udp, pools[0].subscribers), (40, 40));
    assert_eq!((pools[0].ports_forwarded.tcp, pools[0].reuse_delay_us), (3, 120_000_000));
    assert_eq!(pools.iter().map(|pool| pool.allocation.as_str()).collect::<Vec<_>>(), ["ports", "one-to-one"]);
    let addresses: Vec<control::PoolAddress> =
        all(&mut client, Request::PoolAddresses, &List { limit: Some(1), ..List::default() });
    assert_eq!(addresses.iter().map(|address| address.ports_used.udp).sum::<u64>(), 40);
    let drops: Vec<control::DropReason> = all(&mut client, |_| Request::Drops, &List::default());
    assert!(drops.iter().all(|drop| drop.packets == 0 && drop.per_worker.len() == 2));
    let rules: Vec<control::Rule> = all(&mut client, Request::Rules, &List::default());
    let kinds: Vec<&str> = rules.iter().map(|rule| rule.kind.as_str()).collect();
    assert_eq!((kinds, rules[0].hits), (vec!["forward", "forward", "one-to-one"], Some(0)));

    let counters = |per_worker| move |_: List| Request::Counters(control::Counters { per_worker });
    let sums: Vec<control::Counter> = all(&mut client, counters(false), &List::default());
    let each: Vec<control::Counter> = all(&mut client, counters(true), &List::default());
    let value = |counters: &[control::Counter], name: &str| -> u64 {
        counters.iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
    };
    assert_eq!(each.len(), sums.len() * 2);
    for name in ["outbound", "received", "mappings_created_udp"] {
        assert_eq!(value(&sums, name), value(&each, name), "{name}");
    }
    assert_eq!(value(&sums, "outbound"), 40);
}

/// Each page ends after the first records of a worker.
#[test]
fn a_page_that_takes_long_to_search_ends_early() {
    let running = Running::start("late-page");
    running.traffic(2..42);
    let filter = Filter { internal_port: Some(4_007), ..Filter::default() };
    let mut list = List { filter, ..List::default() };
    let whole = lists::sessions(&running.instance, &list, Duration::MAX).unwrap();
    assert_eq!((whole.objects.len(), whole.cursor), (1, None));

    let (mut found, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = lists::sessions(&running.instance, &list, Duration::ZERO).unwrap();
        sizes.push(page.objects.len());
        found.extend(page.objects);
        list.cursor = page.cursor;
        if list.cursor.is_none() {
            break;
        }
    }
    assert!(sizes.len() > 1 && sizes.contains(&0), "{sizes:?}");
    let internal = |sessions: &[control::Session]| sessions.iter().map(|one| one.internal).collect::<Vec<_>>();
    assert_eq!(internal(&found), internal(&whole.objects));
}

#[test]
fn find_names_the_holder_from_either_side() {
    let running = Running::start("find");
    let (internal, external) = running.traffic(2..3)[0];
    let mut client = running.client();
    let mut find = |address: Ipv4Addr, port: Option<u16>| -> FindAnswer {
        one(
            &mut client,
            Request::Find(Find { address: address.into(), port, protocol: None, vrf: None, limit: None, cursor: None }),
        )
    };
    let answer = find(*external.ip(), Some(external.port()));
    assert_eq!((answer.place, answer.holder), (Place::External, Some(*internal.ip())));
    assert_eq!(answer.mapping.map(|mapping| mapping.internal), Some(internal));
    let answer = find(*internal.ip(), Some(internal.port()));
    assert_eq!((answer.place, answer.mapping.map(|mapping| mapping.external)), (Place::Internal, Some(external)));
    let answer = find(*external.ip(), None);
    assert_eq!(answer.holder, Some(*internal.ip()));
    let answer = find(*internal.ip(), None);
    assert_eq!(answer.external_address, Some(*external.ip()));
    assert_eq!(find(*external.ip(), Some(external.port() ^ 1)).holder, None);
    // Static mappings are found while they are not in use.
    for (address, port) in [(POOL_OFF_LINK, 444), (FORWARDED, 8_444)] {
        let answer = find(address, Some(port));
        assert_eq!((answer.holder, answer.external_address), (Some(FORWARDED), Some(POOL_OFF_LINK)));
        assert_eq!(answer.pool.as_deref(), Some("a"), "{}", answer.detail);
        assert!(answer.detail.contains("is statically forwarded to"), "{}", answer.detail);
    }
    // By their inside address, with all their ports.
    let owner = Find { address: FORWARDED.into(), port: None, protocol: None, vrf: None, limit: None, cursor: None };
    let (answers, _) = running.client().request::<FindAnswer>(&Request::Find(owner)).expect("an answer");
    let forwards = answers.iter().filter(|answer| answer.detail.contains("is statically forwarded to"));
    assert!(forwards.clone().count() > 0, "{answers:?}");
    assert!(forwards.clone().all(|answer| answer.holder == Some(FORWARDED) && answer.place == Place::Internal));
    for address in [WHOLE, WHOLE_INSIDE] {
        let answer = find(address, None);
        assert_eq!((answer.holder, answer.external_address), (Some(WHOLE_INSIDE), Some(WHOLE)), "{}", answer.detail);
        assert_eq!(answer.pool.as_deref(), Some("servers"));
    }
    assert_eq!(find(Ipv4Addr::new(10, 0, 0, 200), None).place, Place::Internal);
    assert_eq!(find(Ipv4Addr::new(198, 51, 100, 1), None).place, Place::Interface);
    assert_eq!(find(Ipv4Addr::new(192, 0, 2, 1), None).place, Place::Nowhere);
    // An unknown VRF is an error for any address.
    for address in [*external.ip(), *internal.ip(), Ipv4Addr::new(198, 51, 100, 1)] {
        let vrf = Some("nonesuch".to_owned());
        let asked = Find { address: address.into(), port: None, protocol: None, vrf, limit: None, cursor: None };
        let refused = running.client().request::<FindAnswer>(&Request::Find(asked)).expect_err("there is none");
        assert!(refused.to_string().contains("nonesuch"), "{refused}");
    }
}

#[test]
fn find_names_all_targets_of_a_forward_from_either_side() {
    let running = Running::start("find-targets");
    let mut client = running.client();
    let mut find = |address: Ipv4Addr, port: Option<u16>| -> FindAnswer {
        one(
            &mut client,
            Request::Find(Find { address: address.into(), port, protocol: None, vrf: None, limit: None, cursor: None }),
        )
    };
    let all = "udp 10.0.0.9:7000 leads to one of 10.0.0.223:7001 weight 1, 10.0.0.224:7001 weight 1";
    let all = all.replace("10.0.0.9", &POOL_OFF_LINK.to_string());
    let answer = find(POOL_OFF_LINK, Some(7_000));
    assert_eq!((answer.place, answer.holder, answer.detail.as_str()), (Place::External, None, all.as_str()));
    for target in TARGETS {
        let answer = find(target, Some(7_001));
        assert_eq!((answer.place, answer.holder), (Place::Internal, Some(target)), "{}", answer.detail);
        assert_eq!((answer.external_address, answer.detail.as_str()), (Some(POOL_OFF_LINK), all.as_str()));
        assert_eq!(answer.pool.as_deref(), Some("a"));
    }
}

#[test]
fn why_explains_and_changes_nothing() {
    let running = Running::start("why");
    let (_, external) = running.traffic(2..3)[0];
    let mut client = running.client();
    let ask = |source: SocketAddrV4, destination: SocketAddrV4, inbound| {
        Request::Why(Why {
            protocol: control::Protocol::Udp,
            source: source.into(),
            destination: destination.into(),
            b4: None,
            inbound,
            tcp_segment: None,
            length_bytes: None,
            dont_fragment: false,
            interface: None,
            vrf: None,
        })
    };
    let answer: WhyAnswer = one(&mut client, ask(subscriber(9), SERVER, false));
    assert_eq!(answer.verdict, "outbound");
    assert!(answer.steps.len() >= 3, "{:?}", answer.steps);
    let answer: WhyAnswer = one(&mut client, ask(SERVER, external, true));
    assert_eq!(answer.verdict, "inbound");
    assert_eq!(answer.translated_destination, Some(subscriber(2).into()));
    for (dont_fragment, verdict) in [(false, "outbound"), (true, "too_big")] {
        let Request::Why(short) = ask(subscriber(9), SERVER, false) else { panic!("not a why") };
        let long = Why { length_bytes: Some(9_100), dont_fragment, ..short };
        let answer: WhyAnswer = one(&mut client, Request::Why(long));
        assert_eq!(answer.verdict, verdict);
    }
    let status: Status = one(&mut client, Request::Status);
    assert_eq!((status.mappings, status.packets_received), (1, 1 + arp_received(&status)));
}

/// Inside, with NAT64 and softwires.
fn with_ipv6_hosts() -> nat::Settings {
    let realm = RealmId(0);
    let mut settings = settings();
    let own = |interface, address: &str| nat::settings::Address6 {
        interface: InterfaceId(interface),
        address: address.parse().expect("an address"),
        prefix_length: 64,
    };
    settings.ipv6.addresses = vec![own(0, "2001:db8:1::1"), own(2, "2001:db8:2::1")];
    settings.transition.nat64 =
        vec![nat::settings::Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 }];
    settings.transition.softwires = ["2001:db8:1::aaaa", "2001:db8:2::1"]
        .map(|aftr| nat::settings::Softwire {
            aftr: aftr.parse().expect("an address"),
            realm,
            inner: vec![nat::types::Prefix::new(Ipv4Addr::new(192, 168, 0, 0), 16).expect("a prefix")],
            subscribers: Vec::new(),
        })
        .to_vec();
    settings.transition.hosts_max = 100;
    settings.pools[0].subscribers.push(nat::settings::Transition::HOSTS);
    settings
}

#[test]
fn addresses_that_another_station_has_are_marked() {
    let running = Running::start_with("duplicate", with_ipv6_hosts());
    let own = Arc::clone(running.instance.own_addresses().expect("known"));
    let start = Instant::now();
    let interfaces =
        || -> Vec<control::Interface> { all(&mut running.client(), |_| Request::Interfaces, &List::default()) };
    let settled = |interfaces: &[control::Interface]| interfaces.iter().all(|one| one.tentative_addresses.is_empty());
    let mut seen = interfaces();
    assert!(settled(&seen[1..2]) && seen[0].duplicate_addresses.is_empty());
    while !settled(&seen) {
        assert!(start.elapsed() < PATIENCE, "the probes end");
        thread::sleep(Duration::from_millis(20));
        seen = interfaces();
    }
    let address = "2001:db8:1::1".parse::<Ipv6Addr>().expect("an address");
    own.give_up(InterfaceId(0), address.to_bits());
    let seen = interfaces();
    assert_eq!(seen[0].duplicate_addresses, ["2001:db8:1::1/64"]);
    assert!(seen[0].addresses.contains(&seen[0].duplicate_addresses[0]));
    assert!(seen[2].duplicate_addresses.is_empty() && seen[2].addresses.contains(&"2001:db8:2::1/64".to_owned()));
}

#[test]
fn why_explains_packets_to_ipv6_addresses_of_natrix() {
    let running = Running::start_with("why6", with_ipv6_hosts());
    let own = Arc::clone(running.instance.own_addresses().expect("known"));
    let start = Instant::now();
    while own.all().iter().any(|own| own.now() != AddressUse::Preferred) {
        assert!(start.elapsed() < PATIENCE, "the probes end");
        thread::sleep(Duration::from_millis(20));
    }
    let ask = |source: &str, destination: &str, b4: Option<&str>| {
        let why = Why {
            protocol: control::Protocol::Icmp,
            source: source.parse().expect("an endpoint"),
            destination: destination.parse().expect("an endpoint"),
            b4: b4.map(|b4| b4.parse().expect("an address")),
            inbound: false,
            tcp_segment: None,
            length_bytes: None,
            dont_fragment: false,
            interface: None,
            vrf: None,
        };
        let answer = running.client().request_one::<WhyAnswer>(&Request::Why(why));
        answer.map(|answer| {
            let steps = answer.steps.iter().map(|step| format!("{}: {}: {}", step.step, step.decision, step.detail));
            (answer.verdict, steps.collect::<Vec<_>>().join("; "))
        })
    };
    let local = |whose: &str| ("local".to_owned(), format!("local: for Natrix itself: {whose}"));
    let host = "[2001:db8:1::7]:9";
    for (to, whose) in [
        ("[2001:db8:1::1]:0", "2001:db8:1::1 is Natrix's own address on interface \"lan\""),
        ("[2001:db8:1::aaaa]:0", "2001:db8:1::aaaa is the AFTR, where softwires end"),
        ("[fe80::ff:fe00:0]:0", "fe80::ff:fe00:0 is its link-local address"),
    ] {
        assert_eq!(ask(host, to, None).expect("an answer"), local(whose));
    }
    assert!(ask(host, "[2001:db8:99::1]:0", None).is_err());
    let (verdict, steps) = ask("192.168.1.2:9", "198.51.100.100:0", Some("2001:db8:1::7")).expect("an answer");
    assert_eq!(verdict, "outbound", "{steps}");
    // A duplicate is named as the reason.
    for interface in [0, 2] {
        for address in own.of(InterfaceId(interface)) {
            own.give_up(address.interface, address.address);
        }
    }
    let said = "local: its address is not used: another station on the link has 2001:db8:2::1 (RFC 4862 section 5.4); the \
                log names it: give one of them another address";
    let not_used = |found: (String, String)| (found.0 == "address_not_used" && found.1.contains(said), found.1);
    let (is_it, steps) = not_used(ask(host, "[2001:db8:2::1]:0", None).expect("an answer"));
    assert!(is_it, "{steps}");
}

#[test]
fn large_counts_in_steps_have_separators() {
    let (internal, external) = (Endpoint::new(*subscriber(2).ip(), 2), Endpoint::new(POOL_OFF_LINK, 40_001));
    let steps = [
        (view::Step::Guaranteed { ports: 1_000, missing: 0 }, "1,000 ports guaranteed"),
        (view::Step::Guaranteed { ports: 1_000, missing: 63_000 }, "1,000 of 64,000 guaranteed ports"),
        (view::Step::Guaranteed { ports: 1_000, missing: 63_000 }, "63,000 are in use by other subscribers"),
        (
            view::Step::SliceInBlocks { first: 1_024, last: 5_119, leased: 1_024, ports: 4_096 },
            "slice 1024-5119: 1,024",
        ),
        (view::Step::MappingWouldBeCreated { ports_free: 1_032_192 }, "a random port of 1,032,192 free ones"),
        (view::Step::Target { internal, external, weight: 1_000, total: 12_000 }, "of weight 1,000 among 12,000"),
        (view::Step::AnyTarget { external, targets: 1_024, agree: true }, ":40001 leads to one of 1,024 targets"),
        (view::Step::Fragment { offset: 1_480, more: true }, "at 1,480, more follow"),
    ];
    let shared = nat::Shared::new(settings(), 1).expect("memory");
    let texts = super::why::steps_of(&shared, &steps.map(|(step, _)| step));
    for (text, (_, expected)) in texts.iter().zip(steps) {
        let both = format!("{}; {}", text.decision, text.detail);
        assert!(both.contains(expected), "{both}: no {expected:?}");
    }
}

#[test]
fn steps_of_icmp_name_identifiers_and_times_are_short() {
    let (source, destination) = (Endpoint::new(*subscriber(2).ip(), 2), Endpoint::new(POOL_OFF_LINK, 0));
    let mapping = view::Step::MappingWouldBeCreated { ports_free: 65_535 };
    let found = view::Step::SessionFound { state: None, expires_in: nat::Duration::from_micros(298_500_000) };
    let shared = nat::Shared::new(settings(), 1).expect("memory");
    for (protocol, expected) in [(1, "a random identifier of 65,535"), (17, "a random port of 65,535")] {
        let parsed = view::Step::Parsed { protocol, source, destination };
        let texts = super::why::steps_of(&shared, &[parsed, mapping, found]);
        assert!(texts[1].detail.starts_with(expected), "{:?}", texts[1]);
        assert_eq!(texts[2].detail, "expires in 4m58s");
    }
}

#[test]
fn why_asks_about_the_vrf_that_is_named() {
    let in_blue = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 78), 9_443);
    let mut settings = settings();
    settings.realm_names = vec!["default".to_owned(), "blue".to_owned()];
    settings.interfaces[2].realm = RealmId(1);
    settings.forwards.push(nat::settings::Forward {
        realm: RealmId(1),
        ports: (446, 446),
        inside: (*in_blue.ip()).into(),
        inside_port: in_blue.port(),
        ..settings.forwards[0]
    });
    let running = Running::start_with("why-vrf", settings);
    let ask = |vrf: Option<&str>, interface: Option<&str>, inbound| {
        let why = Why {
            protocol: control::Protocol::Tcp,
            source: in_blue.into(),
            destination: SERVER.into(),
            b4: None,
            inbound,
            tcp_segment: None,
            length_bytes: None,
            dont_fragment: false,
            interface: interface.map(str::to_owned),
            vrf: vrf.map(str::to_owned),
        };
        let answer = running.client().request_one::<WhyAnswer>(&Request::Why(why));
        answer.map(|answer| (answer.vrf, answer.translated_source)).map_err(|error| error.to_string())
    };
    let forwarded = Ok((Some("blue".to_owned()), Some(SocketAddrV4::new(POOL_OFF_LINK, 446).into())));
    assert_eq!(ask(Some("blue"), None, false), forwarded);
    assert_eq!(ask(Some("blue"), Some("lan.100"), false), forwarded);
    for vrf in [None, Some("default")] {
        // A new mapping, whose port is chosen when a packet comes.
        assert_eq!(ask(vrf, None, false), Ok((Some("default".to_owned()), None)), "{vrf:?}");
    }
    // A packet from outside is answered with the VRF that it is led to.
    let why = Why {
        protocol: control::Protocol::Tcp,
        source: SERVER.into(),
        destination: SocketAddrV4::new(POOL_OFF_LINK, 446).into(),
        b4: None,
        inbound: true,
        tcp_segment: None,
        length_bytes: None,
        dont_fragment: false,
        interface: None,
        vrf: None,
    };
    let answer = running.client().request_one::<WhyAnswer>(&Request::Why(why)).expect("an answer");
    assert_eq!(answer.vrf.as_deref(), Some("blue"), "{:?}", answer.steps);
    for (vrf, interface, inbound, refusal) in [
        ("nonesuch", None, false, "VRF \"nonesuch\": does not exist; use one of: default, blue"),
        ("blue", None, true, "vrf: is for packets from inside (blue); omit it, or omit inbound"),
        ("blue", Some("wan"), false, "vrf: is for packets from inside (blue); omit it, or use an inside interface"),
        ("blue", Some("lan"), false, "interface \"lan\": is in VRF \"default\""),
    ] {
        let refused = ask(Some(vrf), interface, inbound).expect_err("no packet of this VRF");
        assert!(refused.starts_with(refusal), "{refused}");
    }
}

/// ARP replies are received packets too.
fn arp_received(status: &Status) -> u64 {
    status.packets_received - status.packets_forwarded
}

#[test]
fn a_trace_streams_packets_until_its_count_or_its_stop() {
    let running = Running::start("trace");
    running.traffic(2..3);
    let mut client = running.client();
    let wanted = Trace { protocol: Some(control::Protocol::Udp), count: Some(3), snap_bytes: 100, ..Trace::default() };
    client.send(&Request::Trace(wanted)).expect("the request is sent");
    let mut other = running.client();
    let start = Instant::now();
    let mut records: Vec<TraceRecord> = Vec::new();
    // The trace begins some time after the request: send packets until it has seen three.
    client.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket option");
    loop {
        running.bed.push_udp(0, subscriber(2), SERVER, &[2]);
        match client.receive() {
            Ok(Reply::Trace(record)) => records.push(record),
            Ok(Reply::End(_)) => break,
            Ok(other) => panic!("{other:?}"),
            Err(_not_yet) => {}
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(records.len(), 3);
    let record = &records[0];
    assert_eq!((record.verdict.as_str(), record.interface.as_str()), ("outbound", "lan"));
    assert!(record.before.starts_with("udp 10.0.0.2:4002 > 198.51.100.100:53 len 29 ttl 64"), "{}", record.before);
    assert!(record.after.as_ref().is_some_and(|after| after.contains(" > 198.51.100.100:53 ")));
    let steps: Vec<&str> = record.steps.iter().map(|step| step.step.as_str()).collect();
    assert_eq!(steps, ["parse", "owner", "route", "lookup", "session"], "{:?}", record.steps);
    assert_eq!(record.frame.as_ref().map(|frame| frame.0.len()), Some(60));

    other.send(&Request::Trace(Trace::default())).expect("the request is sent");
    other.send(&Request::TraceStop).expect("the request is sent");
    let end = loop {
        match other.receive().expect("a reply") {
            Reply::Trace(_) => {}
            reply => break reply,
        }
    };
    assert!(matches!(end, Reply::End(_)));
    let _: Status = one(&mut other, Request::Status);
}

#[test]
fn wrong_requests_are_refused_and_the_connection_stays() {
    let running = Running::start("wrong");
    let mut client = running.client();
    let filter = Filter { pool: Some("b".to_owned()), ..Filter::default() };
    client.send(&Request::Mappings(List { filter, ..List::default() })).expect("sent");
    let Reply::Error(fault) = client.receive().expect("a reply") else { panic!("a fault") };
    assert_eq!(fault.to_string(), "pool \"b\": does not exist; use one of: a, servers");
    client.send(&Request::Mappings(List { cursor: Some("x".to_owned()), ..List::default() })).expect("sent");
    let Reply::Error(fault) = client.receive().expect("a reply") else { panic!("a fault") };
    assert_eq!(fault.to_string(), "cursor: is not from this list (x); omit it to start from the beginning");
    // Unknown names are errors and not empty lists.
    let of = |filter: Filter| List { filter, ..List::default() };
    let state = of(Filter { state: Some("open".to_owned()), ..Filter::default() });
    let worker = of(Filter { worker: Some(2), ..Filter::default() });
    let pool = of(Filter { pool: Some("b".to_owned()), ..Filter::default() });
    let remote = of(Filter { remote: "8.8.8.8".parse().ok(), ..Filter::default() });
    let protocol = of(Filter { protocol: Some(control::Protocol::Udp), ..Filter::default() });
    let no_remote = "filter remote: does not apply to mappings; use one of: protocol, internal, host, internal_port, \
                     external, external_port, port, pool, vrf, worker";
    let states = "active, opening_outbound, opening_inbound, established, fin_inside, fin_outside, closing, transitory";
    let (no_state, no_worker) = (
        format!("state \"open\": does not exist; use one of: {states}"),
        "worker 2: does not exist; workers are 0 to 1",
    );
    for (request, told) in [
        (Request::Sessions(state), no_state.as_str()),
        (Request::Mappings(worker.clone()), no_worker),
        (Request::Sessions(worker.clone()), no_worker),
        (Request::Subscribers(worker), no_worker),
        (Request::PoolAddresses(pool), "pool \"b\": does not exist; use one of: a, servers"),
        (Request::Mappings(remote), no_remote),
        (Request::Rules(protocol), "filter protocol: does not apply to rules; omit it: this list takes no filter"),
    ] {
        client.send(&request).expect("sent");
        let Reply::Error(fault) = client.receive().expect("a reply") else { panic!("{request:?}: a fault") };
        assert_eq!(fault.to_string(), told);
    }
    // Each state of a session can be a condition.
    for state in states.split(", ") {
        let filter = Filter { state: Some(state.to_owned()), ..Filter::default() };
        let sessions: Vec<control::Session> = all(&mut client, Request::Sessions, &List { filter, ..List::default() });
        assert!(sessions.is_empty(), "nothing was sent");
    }
    let _: Status = one(&mut client, Request::Status);
}

#[test]
fn clients_beyond_the_limit_are_refused() {
    let running = Running::start("limit");
    let clients: Vec<Client> = (0..CLIENTS_MAX).map(|_| running.client()).collect();
    let socket = running.directory.socket();
    let connect = || Client::connect(&socket, "1.2.3", PATIENCE);
    let refused = connect().and_then(|mut client| client.receive());
    // The reason may arrive before the hello has left.
    assert!(
        matches!(&refused, Ok(Reply::Error(fault)) | Err(ClientError::Refused(fault)) if fault.problem == "too many clients"),
        "{refused:?}"
    );
    drop(clients);
    let start = Instant::now();
    loop {
        let ask = |mut client: Client| client.send(&Request::Status).and_then(|()| client.receive());
        let answered = connect().and_then(ask);
        match answered {
            Ok(Reply::Status(_)) => break,
            Ok(_) | Err(ClientError::Lost { .. } | ClientError::Refused(_)) => {
                assert!(start.elapsed() < PATIENCE, "places become free");
            }
            Err(error) => panic!("{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_silent_client_is_disconnected() {
    let running = Running::start("silent");
    let silent = UnixStream::connect(running.directory.socket()).expect("it connects");
    silent.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let start = Instant::now();
    let mut asking = running.client();
    let mut hello_and_end = Vec::new();
    let reader = thread::spawn(move || (&silent).read_to_end(&mut hello_and_end).map(|_| Instant::now()));
    while !reader.is_finished() {
        assert!(start.elapsed() < PATIENCE, "the silent client is let go");
        asking.request_one::<Status>(&Request::Status).expect("a client that asks is served");
        thread::sleep(Duration::from_millis(100));
    }
    let ended = reader.join().expect("it reads").expect("the connection ends");
    assert!(ended - start >= SILENCE_MAX - Duration::from_millis(500), "not before its time");
    asking.request_one::<Status>(&Request::Status).expect("a client that asks is served");
}

/// Clients that send one byte ten times a second and never a whole request, until they are
/// dropped.
struct Dripping {
    streams: Vec<UnixStream>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Dripping {
    fn start(socket: &Path, count: usize) -> Dripping {
        let hello = format!("{}\n", serde_json::to_string(&control::Hello::new("1.2.3")).expect("JSON"));
        let streams: Vec<UnixStream> = (0..count).map(|_| UnixStream::connect(socket).expect("it connects")).collect();
        // Before the hello, between requests, and inside a request.
        let kinds = [("", " "), (hello.as_str(), "\n"), (hello.as_str(), "{")];
        let mut senders = Vec::new();
        for (stream, (first, byte)) in streams.iter().zip(kinds.iter().cycle()) {
            let mut sender = stream.try_clone().expect("a second handle");
            sender.write_all(first.as_bytes()).expect("the hello leaves");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            senders.push((sender, byte.as_bytes()[0]));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let drip = move || {
            while !stopped.load(Ordering::Relaxed) {
                // A client that is disconnected sends no more.
                senders.retain_mut(|(sender, byte)| sender.write_all(&[*byte]).is_ok());
                thread::sleep(Duration::from_millis(100));
            }
        };
        Dripping { streams, stop, thread: Some(thread::spawn(drip)) }
    }

    /// Waits until the server has disconnected all.
    fn wait_for_end(&self) {
        for mut stream in &self.streams {
            // The end may arrive as a reset: bytes were not read.
            if let Err(error) = stream.read_to_end(&mut Vec::new()) {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            }
        }
    }
}

impl Drop for Dripping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn clients_that_send_single_bytes_are_disconnected() {
    let running = Running::start("drip");
    let start = Instant::now();
    let dripping = Dripping::start(&running.directory.socket(), CLIENTS_MAX - 1);
    dripping.wait_for_end();
    let took = start.elapsed();
    assert!(took >= SILENCE_MAX - Duration::from_millis(500), "{took:?}");
    running.client().request_one::<Status>(&Request::Status).expect("others are served");
}

#[test]
fn the_server_stops_while_clients_send_single_bytes() {
    let running = Running::start("drip-stop");
    let Running { directory, _server: server, .. } = running;
    let dripping = Dripping::start(&directory.socket(), CLIENTS_MAX - 1);
    thread::sleep(Duration::from_secs(1));
    drop(server);
    dripping.wait_for_end();
}

#[test]
fn an_idle_client_reconnects() {
    let running = Running::start("idle");
    let mut client = running.client();
    client.request_one::<Status>(&Request::Status).expect("it is served");
    thread::sleep(SILENCE_MAX + Duration::from_secs(1));
    client.request_one::<Status>(&Request::Status).expect("it is served after a pause");
}

#[test]
fn one_place_is_reserved_for_the_owner_of_the_socket() {
    assert!(rustix::process::geteuid().is_root(), "run as root: the test needs a second user");
    let running = Running::start("owner");
    let socket = running.directory.socket();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("others may connect");
    let program = "import socket, sys, time\n\
        held = []\n\
        for _ in range(int(sys.argv[2])):\n\
        \x20   s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); held.append(s)\n\
        \x20   s.recv(4096)\n\
        print('connected', flush=True)\n\
        sys.stdin.read()\n";
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(&socket).arg(CLIENTS_MAX.to_string()).uid(65_534).gid(65_534);
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut said = String::new();
    BufReader::new(other.stdout.take().expect("a pipe")).read_line(&mut said).expect("it says so");
    assert_eq!(said, "connected\n");
    running.client().request_one::<Status>(&Request::Status).expect("the owner is served");
    drop(other.stdin.take());
    other.wait().expect("it ends");
}

#[test]
fn the_socket_is_guarded() {
    let directory = Directory::new("guard");
    let path = directory.socket();
    let first = Socket::open(&path, 0o640).expect("it opens");
    assert_eq!(fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o640);
    assert!(matches!(Socket::open(&path, 0o640), Err(SocketError::InUse(_))), "a second instance is refused");
    drop(first);
    assert!(!path.exists(), "the file goes with the socket");

    // A killed instance leaves its file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("it binds"));
    assert!(path.exists() && UnixStream::connect(&path).is_err());
    drop(Socket::open(&path, 0o600).expect("a stale file is replaced"));

    fs::write(&path, "precious").expect("a file");
    assert!(matches!(Socket::open(&path, 0o600), Err(SocketError::Occupied(_))));
    assert_eq!(fs::read_to_string(&path).expect("a file"), "precious");
}

#[test]
fn every_request_that_names_a_subscriber_is_a_lookup() {
    const LOOKUPS: [&str; 10] =
        ["find", "subscribers", "neighbours", "mappings", "sessions", "grants", "expectations", "why", "trace", "plan"];
    const OTHERS: [&str; 15] = [
        "status",
        "interfaces",
        "pools",
        "pool_addresses",
        "algs",
        "rules",
        "routes",
        "counters",
        "drops",
        "reload",
        "drain",
        "audit",
        "record",
        "trace_stop",
        "hello",
    ];
    for line in include_str!("../../../control/tests/requests.jsonl").lines() {
        let name = serde_json::from_str::<serde_json::Value>(line).expect("JSON")["request"].clone();
        let name = name.as_str().unwrap_or("hello");
        let Ok(request) = serde_json::from_str::<Request>(line) else { continue };
        let names_some = LOOKUPS.contains(&name);
        assert!(names_some || OTHERS.contains(&name), "{name}: decide whether it is a lookup");
        assert_eq!(lookup_of(&request).is_some(), names_some, "{line}");
    }
}

#[test]
fn a_list_of_several_pages_has_a_record_of_its_end() {
    let running = Running::start("ends");
    running.traffic(2..42);
    let list = List { limit: Some(7), ..List::default() };
    let mut client = running.client();
    assert_eq!(all::<Mapping>(&mut client, Request::Mappings, &list).len(), 40);
    let records = |client: &mut Client| -> Vec<(String, String)> {
        let latest = List { limit: Some(10), ..List::default() };
        let (found, _) = client.request::<control::AuditRecord>(&Request::Audit(latest)).expect("records");
        found.into_iter().rev().map(|record| (record.action, record.result)).collect()
    };
    let text = |action: &str, result: &str| (action.to_owned(), result.to_owned());
    let mut wanted = vec![text("show mappings", "found 7 so far"), text("show mappings", "ended: found 40")];
    assert_eq!(records(&mut client), wanted);

    // A client that asks for one page, and one that leaves between two.
    let (_, cursor) = running.client().request::<control::Session>(&Request::Sessions(list.clone())).expect("a page");
    let mut leaving = running.client();
    let sessions = Request::Sessions(list.clone());
    leaving.request::<control::Session>(&sessions).expect("a page");
    leaving.request::<control::Session>(&Request::Sessions(List { cursor, ..list })).expect("a page");
    drop(leaving);
    wanted
        .extend(["found 7 so far", "found 7 so far", "ended: found 14 so far"].map(|seen| text("show sessions", seen)));
    let start = Instant::now();
    while records(&mut client) != wanted {
        assert!(start.elapsed() < PATIENCE, "{:?}", records(&mut client));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_cannot_be_recorded_is_not_done() {
    let running = Running::start("unrecorded");
    let text = "version = 1\n";
    let reload = || Request::Reload(NewConfig { text: Some(text.to_owned()), ..NewConfig::default() });
    let drain = || Request::Drain(control::Drain { undo: false });
    let rollback = || Request::Reload(NewConfig { rollback: true, ..NewConfig::default() });
    let refused = |client: &mut Client, request: Request| -> Fault {
        client.send(&request).expect("the request is sent");
        match client.receive().expect("a reply") {
            Reply::Error(fault) => fault,
            other => panic!("{other:?}"),
        }
    };
    // There is nothing to change here, which the audit log says; before that it said who asked.
    let mut client = running.client();
    for request in [reload(), rollback(), drain()] {
        assert_ne!(refused(&mut client, request).object, control::AUDIT_LOG);
    }
    let latest = Request::Audit(List { limit: Some(4), ..List::default() });
    let (records, _) = client.request::<control::AuditRecord>(&latest).expect("records");
    let seen: Vec<(&str, &str)> = records
        .iter()
        .rev()
        .map(|record| (record.action.as_str(), record.result.split(':').next().unwrap_or_default()))
        .collect();
    assert_eq!(seen, ["reload", "rollback", "drain"].map(|action| (action, "failed")));
    let log = running.directory.0.join("audit.jsonl");
    let written = fs::read_to_string(&log).expect("the log");
    let began = |line: &&str| line.contains("\"result\":\"started\"");
    assert_eq!((written.lines().count(), written.lines().step_by(2).filter(began).count()), (6, 3), "{written}");

    fs::remove_file(&log).expect("the log is removed");
    fs::create_dir(&log).expect("a folder is in its place");
    let mappings = || Request::Mappings(List::default());
    for request in [reload(), rollback(), drain(), mappings()] {
        let fault = refused(&mut client, request.clone());
        assert_eq!((fault.object.as_str(), fault.problem.as_str()), (control::AUDIT_LOG, "cannot be written"));
        assert!(fault.remedy.ends_with("nothing was done"), "{request:?}: {fault}");
    }
}

/// What is logged, as text.
#[derive(Clone, Debug, Default)]
struct Written(Arc<Mutex<String>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Written {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut text = event.metadata().level().to_string();
        event.record(&mut |_: &tracing::field::Field, value: &dyn core::fmt::Debug| {
            text.push_str(&format!(" {value:?}"));
        });
        self.0.lock().expect("no panic").push_str(&text);
    }
}

#[test]
fn what_the_audit_log_lacks_of_a_change_is_in_the_log() {
    let running = Running::start("late");
    let text = "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"100.64.0.1/24\"]\n\
                [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"192.0.2.2/30\"]\n\
                [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n";
    let config = config::parse(text, "test.toml").expect("no faults");
    let log = Log::new(config::LogLevel::Info);
    let path = "test.toml".to_owned();
    running.instance.set_live(Live { config, started: path.clone(), path, previous: None, log });
    let (path, kept) = (running.directory.0.join("audit.jsonl"), running.directory.0.join("kept"));
    let noc = control::Actor { who: "noc".to_owned(), from: "http 192.0.2.9".to_owned(), case: None };
    let begun = begin_change(&running.instance, &noc, "reload", "a text").expect("a record");
    let listed = || {
        let (records, _) =
            running.client().request::<control::AuditRecord>(&Request::Audit(List::default())).expect("records");
        records.into_iter().map(|record| (record.action, record.result)).collect::<Vec<_>>()
    };
    let of_reload = |result: &str| vec![("reload".to_owned(), result.to_owned())];
    assert_eq!(listed(), of_reload("started"));
    // As if the disk filled while the change is made.
    fs::rename(&path, &kept).expect("the log is moved");
    fs::create_dir(&path).expect("a folder is in its place");
    let written = Written::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(written.clone()), || {
        end_change(&running.instance, begun, "a text: change 2: timeouts.icmp", "done");
    });
    let said = written.0.lock().expect("no panic").clone();
    assert!(said.contains("ERROR") && said.contains("audit log") && said.contains("cannot be written"), "{said}");
    let lacks = "it lacks: noc http 192.0.2.9: reload a text: change 2: timeouts.icmp: done";
    assert!(said.contains(lacks), "{said}");
    fs::remove_dir(&path).expect("nothing is in it");
    fs::rename(&kept, &path).expect("the log is back");
    assert_eq!(listed(), of_reload("not known: no end was recorded"));
}

/// An instance with the ports `lan`, a card, and `wan`, on top of the kernel's `eth7`.
fn with_two_ports() -> Instance {
    let port = |name: &str, driver: &str| PortDescription {
        name: name.to_owned(),
        driver: driver.to_owned(),
        station: MacAddress([2, 0, 0, 0, 0, 0]),
    };
    let description = Description {
        version: "1.2.3".to_owned(),
        config_path: "test.toml".to_owned(),
        ports: vec![port("lan", "0000:3b:00.0"), port("wan", "net_af_xdp0,iface=eth7,start_queue=1")],
        links: Vec::new(),
        cpus: Vec::new(),
        users_without_group: Vec::new(),
    };
    let shared = Arc::new(nat::Shared::new(settings(), 1).expect("memory"));
    Instance::new(description, shared, Clock::start(), Vec::new())
}

/// One look of `watch` at the links of all ports, at a second of the clock: the log then has this.
fn look_at_links(watch: &mut LinkWatch, instance: &Instance, up: &[bool], second: u64) -> String {
    let written = Written::default();
    let at = nat::Instant::ORIGIN + nat::Duration::from_secs(second);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(written.clone()), || {
        watch.report(instance, Log::new(config::LogLevel::Info), up, at);
    });
    written.0.lock().expect("no panic").clone()
}

#[test]
fn routes_show_a_link_that_is_down_without_the_kernels_routes() {
    let running = Running::start_on("no-link", settings(), "net_af_packet0,iface=natrix-none");
    let mut client = running.client();
    let mut shown = || {
        let interfaces: Vec<control::Interface> = all(&mut client, |_| Request::Interfaces, &List::default());
        let routes: Vec<control::Route> = all(&mut client, Request::Routes, &List::default());
        let hops = routes.iter().flat_map(|route| route.next_hops.iter().map(move |hop| (route, hop)));
        for (route, hop) in hops.clone() {
            let interface = interfaces.iter().find(|interface| interface.name == hop.interface).expect("its interface");
            assert_eq!(hop.link_up, interface.link_up, "{route:?}");
            assert_eq!(route.reason.contains("its interface has no link"), !hop.link_up, "{route:?}");
        }
        let of_wan = hops.filter(|(_, hop)| hop.interface == "wan").map(|(_, hop)| hop.link_up);
        of_wan.collect::<BTreeSet<bool>>()
    };
    assert_eq!(shown(), BTreeSet::from([true]));
    let link = DeviceLink { index: 7_777_777, name: "natrix-none".to_owned(), ..DeviceLink::default() };
    running.instance.below().take(&Seen { links: Some(vec![link]), removed: Vec::new() });
    assert_eq!(shown(), BTreeSet::from([false]));
}

#[test]
fn a_link_that_comes_up_after_the_start_is_no_news() {
    let instance = with_two_ports();
    let mut watch = LinkWatch::default();
    let mut look = |second: u64, up: [bool; 2]| look_at_links(&mut watch, &instance, &up, second);
    let is_of = |said: &str, port: &str, words: &str| said.contains(port) && said.contains(words);
    assert_eq!(look(7, [false, false]), "", "the first look");
    assert_eq!(look(8, [true, false]), "", "the first link has come up");
    assert!(is_of(&look(8, [false, false]), "port lan", "the link is down"), "a link that was up");
    let said = look(9, [false, false]);
    assert!(is_of(&said, "port wan", "the link is down (it has not been up"), "{said}");
    assert!(said.contains("WARN") && !said.contains("port lan"), "{said}");
    assert_eq!(look(10, [false, false]), "", "said once");
    assert!(is_of(&look(11, [false, true]), "port wan", "the link is up"));
    assert!(is_of(&look(12, [false, false]), "port wan", "the link is down"));
}

#[test]
fn a_link_that_the_kernel_says_is_down_is_down_and_logged_once() {
    let instance = with_two_ports();
    let link = |index: u32, name: &str, is_running: bool| DeviceLink {
        index,
        name: name.to_owned(),
        is_running,
        ..DeviceLink::default()
    };
    let look = |links: Vec<DeviceLink>| instance.below().take(&Seen { links: Some(links), removed: Vec::new() });
    let mut watch = LinkWatch::default();
    let mut tick = |by_driver: [bool; 2]| {
        let now = instance.ports_up(&by_driver);
        let said = look_at_links(&mut watch, &instance, &now, 1);
        (now, said.matches("the link is").count(), said)
    };
    let (now, lines, _) = tick([true, true]);
    assert_eq!((now, lines), (vec![true, true], 0));
    look(vec![link(7, "eth7", false), link(8, "eth8", false)]);
    let (now, lines, said) = tick([true, true]);
    assert_eq!((now, lines), (vec![true, false], 1), "{said}");
    assert!(said.contains("WARN") && said.contains("port wan") && said.contains("the link is down"), "{said}");
    assert_eq!(tick([true, true]).1, 0, "it is still down");
    let (now, lines, said) = tick([false, true]);
    assert_eq!((now, lines), (vec![false, false], 1), "{said}");
    look(vec![link(7, "eth7", true)]);
    let (now, lines, said) = tick([true, true]);
    assert_eq!((now, lines), (vec![true, true], 2), "{said}");
    assert!(said.contains("INFO") && said.contains("the link is up"), "{said}");
    look(vec![link(8, "eth8", true)]);
    let (now, lines, said) = tick([true, true]);
    assert_eq!((now, lines), (vec![true, false], 1), "{said}");
    assert!(said.contains("WARN") && said.contains("port wan") && said.contains("its device eth7 is gone"), "{said}");
    look(vec![link(9, "eth7", true)]);
    let (now, lines, said) = tick([true, true]);
    assert_eq!((now, lines), (vec![true, false], 1), "{said}");
    assert!(said.contains("restart Natrix to use it"), "{said}");
    assert_eq!(tick([true, true]).1, 0, "said once");
}

#[test]
fn a_case_is_one_short_line_of_plain_text() {
    let running = Running::start("case");
    let ask = |case: &str| {
        let actor = Some(control::Actor { case: Some(case.to_owned()), ..control::Actor::default() });
        let client = Client::connect_for(&running.directory.socket(), "1.2.3", PATIENCE, actor);
        client.expect("the server accepts").request::<Mapping>(&Request::Mappings(List::default()))
    };
    assert!(ask("AZ 17/2026, Müller").is_ok());
    let long = "x".repeat(control::CASE_BYTES_MAX);
    assert!(ask(&long).is_ok());
    for case in ["a\nb", "a\u{1b}[2J", "a\u{202e}b", &format!("{long}y")] {
        let error = ask(case).expect_err("a case that is refused");
        assert!(error.to_string().starts_with("case: "), "{case:?}: {error}");
    }
    let latest = Request::Audit(List::default());
    let (records, _) = running.client().request::<control::AuditRecord>(&latest).expect("records");
    let cases: Vec<Option<&str>> = records.iter().map(|record| record.case.as_deref()).collect();
    assert_eq!(cases, [Some(long.as_str()), Some("AZ 17/2026, Müller")]);
}

#[test]
fn the_record_of_a_change_names_subscribers_prefixes() {
    let change = |object: &str, after: &str| {
        Reply::Change(control::Change {
            object: object.to_owned(),
            before: None,
            after: Some(after.to_owned()),
            live: true,
            reason: None,
        })
    };
    let replies = [
        change("timeouts.icmp", "60 s"),
        change("filter", "1 filter; first difference at filter[0]; added: 100.64.0.7/32"),
        change("pool \"one\"", "1 address for 100.64.0.9/32"),
        change("pool \"a\".addresses", "20 addresses"),
        change("forward tcp 203.0.113.1:443", "to 100.64.0.80:443"),
    ];
    // Each object once.
    let wanted = "a text: timeouts.icmp, pool \"a\".addresses, filter (none -> 1 filter; first difference at filter[0]; \
                  added: 100.64.0.7/32), pool \"one\" (none -> 1 address for 100.64.0.9/32), \
                  forward tcp 203.0.113.1:443 (none -> to 100.64.0.80:443)";
    assert_eq!(change_subject("a text", &replies), wanted);

    let same = control::Reloaded {
        config: "natrix.toml".to_owned(),
        generation: 3,
        changes: 0,
        addresses_changed: 0,
        workers: 2,
        took_us: 9,
        adoption_us: 1,
        not_saved: None,
        warnings: Vec::new(),
    };
    assert_eq!(change_subject("natrix.toml", &[same.into()]), "natrix.toml: change 3 (no differences)");
}

#[test]
fn a_file_of_another_configuration_is_a_warning_in_the_log() {
    let reloaded = control::Reloaded {
        config: "/new.toml".to_owned(),
        generation: 3,
        changes: 1,
        addresses_changed: 0,
        workers: 2,
        took_us: 9,
        adoption_us: 1,
        not_saved: Some("/old.toml has another configuration, which a restart would bring back".to_owned()),
        warnings: Vec::new(),
    };
    let said = |asked: &NewConfig, reloaded: &control::Reloaded| {
        let written = Written::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(written.clone()), || {
            crate::change::log_reloaded(Log::new(config::LogLevel::Warn), asked, reloaded);
        });
        written.0.lock().expect("no panic").clone()
    };
    let file = NewConfig { config: Some("/new.toml".to_owned()), ..NewConfig::default() };
    let rollback = NewConfig { rollback: true, ..NewConfig::default() };
    for asked in [&file, &rollback] {
        let said = said(asked, &reloaded);
        assert!(said.starts_with("WARN") && said.contains("(/old.toml has another configuration"), "{said}");
    }
    // The client asked to save it, and that has failed.
    let saved = NewConfig { text: Some(String::new()), save: true, ..NewConfig::default() };
    assert!(said(&saved, &reloaded).starts_with("ERROR"));
    assert_eq!(said(&file, &control::Reloaded { not_saved: None, ..reloaded }), "");
}

#[test]
fn the_last_place_is_kept_for_the_owner_and_root() {
    let [root, natrix, other] = [0, 990, 1_000].map(rustix::process::Uid::from_raw);
    assert!(super::keeps_place(natrix, natrix) && super::keeps_place(root, natrix));
    assert!(!super::keeps_place(other, natrix) && !super::keeps_place(natrix, root));
}

#[test]
fn a_silent_next_hop_has_one_line_a_minute() {
    let address = IpAddr::from([198, 51, 100, 77]);
    let at = |second: u64| nat::Instant::ORIGIN + nat::Duration::from_secs(second);
    let view = |second, answers| RouterView { interface: InterfaceId(1), address, answers, at: at(second) };
    let snapshot =
        |now, view: RouterView<IpAddr>| Snapshot { now: at(now), routers: vec![view], ..Snapshot::default() };
    let mut watch = RouterWatch::default();
    let mut said = |now, views: &[RouterView<IpAddr>]| {
        let snapshots: Vec<_> = views.iter().map(|view| snapshot(now, *view)).collect();
        watch.changes(&snapshots).iter().map(|change| change.answers).next()
    };
    assert_eq!(said(99, &[view(3, false)]), None, "an old silence");
    assert_eq!(said(100, &[view(99, false), view(98, true)]), Some(false), "the worker that knew it last is right");
    assert_eq!(said(101, &[view(100, false)]), None, "said already");
    assert_eq!(said(120, &[view(119, false), view(118, true)]), None);
    assert_eq!(said(121, &[view(119, false), view(121, true)]), Some(true));
    assert_eq!(said(130, &[view(130, false)]), None, "within a minute");
    assert_eq!(said(161, &[view(160, false)]), Some(false));
    // Nobody sends to it any more, and after a while it is as new.
    assert_eq!(said(800, &[view(161, false)]), None);
    assert_eq!(said(801, &[view(801, false)]), Some(false));
}
