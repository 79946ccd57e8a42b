use std::net::Ipv4Addr;
use std::path::PathBuf;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::event::BackPressure;
use nat::event::EventSettings;
use nat::origin::Origin;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::IcmpPolicy;
use nat::settings::Limits;
use nat::settings::MappingKind;
use nat::settings::Penalty;
use nat::settings::Pooling;
use nat::settings::PortControl;
use nat::settings::Rate;
use nat::settings::ReloadPolicy;
use nat::settings::Removed;
use nat::settings::ReuseAtOnce;
use nat::settings::RuleAction;
use nat::settings::Selection;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::settings::Timeouts;
use nat::types::PoolId;
use nat::types::RealmId;
use toml_edit::ImDocument;
use toml_edit::TableLike;

use super::*;
use crate::compile::parse;
use crate::manual::SMALLEST;
use crate::model::AgentX;
use crate::model::Config;
use crate::model::EventLog;
use crate::model::EventTarget;
use crate::model::HttpListen;
use crate::model::HttpRole;
use crate::model::HttpTls;
use crate::model::LogFormat;
use crate::model::LogLevel;
use crate::model::LogSink;
use crate::model::LogStore;
use crate::model::LogSync;
use crate::model::SinkKind;
use crate::model::SinkTransport;
use crate::model::Snmp;

const EVERY_KEY: &str = include_str!("../../tests/every_key.toml");
/// The keys of IPv6 hosts, beside which no event log may stand.
const EVERY_KEY_OF_IPV6: &str = include_str!("../../tests/every_key_of_ipv6.toml");
/// The keys of routing by the kernel, beside which no IPv6 hosts may stand.
const EVERY_KEY_OF_ROUTING: &str = include_str!("../../tests/every_key_of_routing.toml");

fn compiled(text: &str) -> Config {
    match parse(text, "natrix.toml") {
        Ok(config) => config,
        Err(faults) => panic!("{}", faults.iter().map(|fault| format!("{fault}\n")).collect::<String>()),
    }
}

#[test]
fn every_documented_key_is_accepted_and_has_its_effect() {
    let documents =
        [EVERY_KEY, EVERY_KEY_OF_IPV6, EVERY_KEY_OF_ROUTING].map(|text| ImDocument::parse(text).expect("TOML"));
    for section in sections() {
        let items = documents.iter().filter_map(|document| {
            let mut path = section.name.split('.');
            path.try_fold(document.as_item(), |item, name| item.get(name))
        });
        let items: Vec<_> = items.collect();
        for key in section.keys {
            let is_there = items.iter().any(|item| match item.as_array_of_tables() {
                Some(tables) => tables.iter().any(|table| table.contains_key(key.name)),
                None => item.as_table_like().is_some_and(|table: &dyn TableLike| table.contains_key(key.name)),
            });
            assert!(is_there, "no file has {}.{}", section.name, key.name);
        }
    }

    let config = compiled(EVERY_KEY);
    let nat = &config.nat;
    assert_eq!((nat.interfaces[0].mtu, nat.interfaces[1].mtu, config.ports[0].mtu), (9_000, 1_400, 9_000));
    assert_eq!((config.ports[0].rx_descriptors, config.ports[0].tx_descriptors), (2_048, 512));
    let pool = &nat.pools[0];
    assert_eq!((pool.addresses.len(), pool.port_min, pool.port_max), (15 + 9 + 1, 512, 59_967));
    assert_eq!((pool.pooling, pool.parity, pool.shared_ports_min), (Pooling::Arbitrary, true, 9));
    let filtering = [Filtering::AddressDependent, Filtering::AddressAndPortDependent, Filtering::EndpointIndependent];
    assert_eq!(pool.filtering, filtering);
    let blocks = |ports, per_subscriber_max, idle| Blocks {
        size: BlockSize::of_ports(ports).expect("a block size"),
        per_subscriber_max,
        idle: Duration::from_secs(idle),
    };
    assert_eq!((pool.allocation, pool.selection), (Allocation::Blocks(blocks(64, 3, 7)), Selection::Hash));
    let deterministic = Allocation::Deterministic { dynamic_slices: 9, overflow: blocks(512, 8, 120) };
    assert_eq!((nat.pools[1].allocation, nat.pools[1].selection), (deterministic, Selection::LeastUsed));
    assert_eq!(pool.realms, [RealmId(1)]);
    assert_eq!(
        (nat.interfaces[0].realm, nat.realm_names.as_slice()),
        (RealmId(1), ["default", "red"].map(String::from).as_slice())
    );
    assert!(!nat.hairpin_between_realms);
    assert_eq!(pool.reuse_delay, Duration::from_secs(10));
    assert_eq!(pool.reuse_at_once, ReuseAtOnce { tcp_closed: false, filtered: true });
    let forward = nat.forwards[1];
    assert_eq!((nat.forwards.len(), nat.forwards[0].protocol, forward.protocol), (2, Protocol::Tcp, Protocol::Udp));
    assert_eq!((forward.realm, forward.external, forward.ports), (RealmId(1), [203, 0, 113, 33].into(), (400, 409)));
    assert_eq!((forward.inside, forward.inside_port), (Ipv4Addr::new(10, 0, 0, 80).into(), 80));
    assert_eq!(forward.admission, Admission::AsPool);
    let several = &nat.balanced_forwards[0];
    assert_eq!((nat.balanced_forwards.len(), several.protocol, several.realm), (1, Protocol::Udp, RealmId(1)));
    assert_eq!((several.external, several.ports), ([203, 0, 113, 33].into(), (500, 501)));
    assert!(several.is_sticky);
    let server = |last: u8, port, weight| Target { address: u32::from_be_bytes([10, 0, 0, last]), port, weight };
    assert_eq!(several.targets, [server(81, None, 1), server(82, Some(7_000), 3)]);
    assert_eq!(nat.pass_rules[0].protocol, 47);
    let dependent = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent };
    assert!(nat.rules.iter().any(|rule| rule.action == dependent));
    let target = |last: u8, port, weight| Target { address: u32::from_be_bytes([192, 0, 2, last]), port, weight };
    let targets = Redirection::Targets(vec![target(54, Some(5_353), 3), target(55, None, 1)]);
    assert_eq!(nat.redirections[0], targets);
    let prefix = nat::types::Prefix::new([192, 0, 2, 144].into(), 28).expect("a prefix");
    assert_eq!(nat.redirections[2], Redirection::Prefix(prefix));
    let redirected = nat.rules.iter().filter(|rule| matches!(rule.action, RuleAction::Redirect(_)));
    assert_eq!(redirected.map(|rule| rule.matches.destination_ports.first).collect::<Vec<_>>(), [53, 53, 0]);
    // Lines of the file, between the rules before and behind it.
    let targets = Redirection::Targets(vec![target(98, Some(5_353), 2), target(97, None, 1)]);
    assert_eq!(nat.redirections[1], targets);
    assert_eq!(nat.rules[nat.rules.len() - 4].action, RuleAction::Drop);
    let ports: Vec<u16> = nat.filters.iter().map(|filter| filter.matches.destination_ports.first).collect();
    assert_eq!(ports, [25, 1_900, 25]);
    assert!(nat.filters[0].back && !nat.filters[0].out);
    assert!(nat.filters[2].log && !nat.filters[1].log);
    assert_eq!(nat.filter_names.iter().collect::<Vec<_>>(), [(&2, &"smtp".to_owned())]);
    // Positions are those that messages show: `pass` rules count among the tables, and lines
    // include comments.
    let places = |of: &[Origin]| (0..of.len()).map(|at| nat.origins.place(of, at)).collect::<Vec<_>>();
    let lines = ["tests/rules.csv:3", "tests/rules.csv:5", "tests/rules.csv:6"];
    assert_eq!(places(&nat.origins.pass_rules), ["0"]);
    assert_eq!(places(&nat.origins.rules), [&["1", "2", "3", "4"], &lines[..], &["5"]].concat());
    assert_eq!(places(&nat.origins.filters).last().map(String::as_str), Some("0"));
    assert_eq!(places(&nat.origins.filters)[0], "tests/filters.csv:2");
    let timeouts = Timeouts {
        udp: Duration::from_secs(2),
        udp_unanswered: Duration::from_secs(1),
        tcp_opening: Duration::from_secs(3),
        tcp_established: Duration::from_secs(4),
        tcp_closing: Duration::from_secs(5),
        icmp: Duration::from_secs(6),
        unsolicited_syn: Duration::from_secs(1),
        fragment: Duration::from_millis(250),
        adapt_above_percent: Some(80),
    };
    assert_eq!(nat.timeouts, timeouts);
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let threshold = |high_percent, low_percent| Some(Threshold { high_percent, low_percent });
    assert_eq!(pool.threshold, threshold(95, 85));
    let subscriber = SubscriberLimits {
        ports_max: [100, 200, 20],
        sessions_max: 400,
        memory_max: 64 << 10,
        new_mappings: rate(10, 50),
        new_sessions: rate(30, 60),
        threshold: threshold(75, 50),
        reserved_ports: [0; 3],
        penalty: None,
    };
    assert_eq!(nat.subscriber, subscriber);
    // What a class does not say is as for everybody.
    let business = SubscriberLimits {
        ports_max: [1_000, 200, 20],
        sessions_max: 4_000,
        memory_max: 1 << 20,
        new_mappings: rate(1_000, 2_000),
        new_sessions: rate(30, 90),
        threshold: threshold(90, 60),
        reserved_ports: [0; 3],
        penalty: Some(Penalty {
            pool: PoolId(2),
            refusals: 500,
            window: Duration::from_secs(30),
            release: Duration::from_secs(3_600),
        }),
    };
    let sensors = SubscriberLimits { ports_max: [4; 3], new_sessions: rate(1, 1), ..subscriber };
    let by_formula = SubscriberLimits { reserved_ports: [100, 200, 0], ..subscriber };
    let limits: Vec<_> = nat.classes.iter().map(|class| class.limits).collect();
    assert_eq!(limits, [business, by_formula, sensors]);
    assert_eq!((nat.classes[0].name.as_str(), nat.classes[0].subscribers.len()), ("business", 2));
    let port_timeouts: Vec<_> = nat.port_timeouts.iter().map(|it| (it.protocol, it.ports.clone(), it.idle)).collect();
    let expected =
        [(Protocol::Udp, 53..=53, Duration::from_secs(10)), (Protocol::Tcp, 22..=22, Duration::from_secs(86_400))];
    assert_eq!(port_timeouts, expected);
    // Two workers: half each, and an eighth on top.
    let limits = Limits {
        mappings_max: 5625,
        extra_sessions_max: 564,
        flows_max: 565,
        sessions_per_mapping_max: 100,
        subscribers_max: 564,
        fragmented_datagrams_max: 58,
        fragments_held_max: 59,
        unsolicited_syns_max: 60,
        held_ports_max: 62,
        external_addresses_max: 50,
    };
    assert_eq!(nat.limits, limits);
    let icmp = IcmpPolicy {
        errors_to_inside: false,
        errors_to_outside: false,
        errors_per_second_max: 500,
        errors_per_second_per_destination_max: 7,
        no_resources_code: Some(13),
        answer_echo: false,
    };
    assert_eq!(nat.icmp, icmp);
    let port_control = PortControl {
        pcp: true,
        nat_pmp: true,
        lifetime_min: Duration::from_secs(180),
        lifetime_max: Duration::from_secs(18_000),
        mappings_per_subscriber: 7,
        third_party: vec![nat::types::Prefix::new([10, 0, 0, 9].into(), 32).expect("a prefix")],
    };
    assert_eq!(nat.port_control, port_control);
    assert_eq!(config.grants_file, Some(PathBuf::from("/var/lib/natrix/grants")));
    let reload = ReloadPolicy { removed: Removed::End, drain_time: Some(Duration::from_secs(90)) };
    assert_eq!(nat.reload, reload);
    assert!(pool.draining);
    assert_eq!(pool.draining_addresses, [Ipv4Addr::new(203, 0, 113, 33)]);
    assert!(nat.inbound_refresh && !nat.answer_unsolicited_syn);
    assert_eq!((config.workers.count, config.workers.cpus.as_slice()), (2, [0, 1].as_slice()));
    assert_eq!((config.dpdk.memory_bytes, config.dpdk.buffers), (1 << 30, 30_000));
    assert_eq!((config.control.socket, config.control.mode), (PathBuf::from("/tmp/natrix.sock"), 0o600));
    assert_eq!(config.control.audit, PathBuf::from("/tmp/natrix-audit.jsonl"));
    let tls = HttpTls {
        certificate: PathBuf::from("/tmp/natrix-cert.pem"),
        key: PathBuf::from("/tmp/natrix-key.pem"),
        client_authorities: Some(PathBuf::from("/tmp/natrix-clients.pem")),
    };
    let http = config.http.expect("an API");
    assert_eq!(http.listen, HttpListen::Tcp("192.0.2.9:8443".parse().expect("an address")));
    assert_eq!((http.hosts, http.tls), (vec!["nat.example.net".to_owned()], Some(tls)));
    let user = http.users.first().expect("a user");
    assert_eq!((user.name.as_str(), user.role, user.group.as_deref()), ("noc", HttpRole::Operate, Some("noc")));
    assert!(user.token.as_ref().is_some_and(|token| token.starts_with("$argon2id$")));
    let agentx = AgentX::Tcp("127.0.0.1:705".parse().expect("an address"));
    let state = Some(PathBuf::from("/var/lib/natrix/snmp/thresholds"));
    assert_eq!(config.snmp, Some(Snmp { agentx, alias: "cgn-1".to_owned(), rows: 1000, state }));
    assert_eq!((config.log.level, config.log.format), (LogLevel::Debug, LogFormat::Json));
    let events = EventSettings {
        back_pressure: BackPressure::Drop,
        block_mappings: true,
        refusal_interval: Duration::from_secs(3),
        // Of two workers each.
        filter_events_per_second: 4,
    };
    assert_eq!(config.nat.events, events);
    let event_log = EventLog {
        target: Some(EventTarget::File(PathBuf::from("/tmp/natrix-events.json"))),
        store: Some(LogStore {
            path: PathBuf::from("/tmp/natrix-log"),
            retention: Some(Duration::from_secs(180 * 86_400)),
            sync_interval: Duration::from_millis(500),
            segment_rows: 4_096,
            segment_interval: Duration::from_secs(600),
            signing_key: Some(PathBuf::from("/tmp/natrix-log.key")),
        }),
        queue: 1_000,
        rotate_bytes: 8 << 20,
        rotate_interval: Duration::from_secs(7_200),
        keep_files: 9,
        sync: LogSync::Interval(Duration::from_millis(250)),
    };
    assert_eq!(event_log.queue_bytes(), 1_024 * 48);
    let sink = LogSink {
        name: "nine".to_owned(),
        kind: SinkKind::Syslog,
        transport: SinkTransport::Tls,
        host: "collector.example".to_owned(),
        port: 6_514,
        certificates: Some(PathBuf::from("/tmp/natrix-collectors.pem")),
        own: Some((PathBuf::from("/tmp/natrix-own.pem"), PathBuf::from("/tmp/natrix-own.key"))),
        domain: 7,
        mtu: 1_400,
        template_interval: Duration::from_secs(30),
        spool_bytes: 1 << 30,
    };
    assert_eq!(config.log_sinks, [sink]);
    assert_eq!(config.event_log, Some(event_log));
}

#[test]
fn every_key_of_routing_has_its_effect() {
    let config = compiled(EVERY_KEY_OF_ROUTING);
    assert_eq!(config.kernel, ["nx-lan", "nx-wan"].map(|name| Some(name.to_owned())));
    assert!(config.nat.live_routes);
}

#[test]
fn every_key_of_ipv6_hosts_has_its_effect() {
    let nat = &compiled(EVERY_KEY_OF_IPV6).nat;
    let transition = &nat.transition;
    let nat64 = transition.nat64[0];
    assert_eq!((nat64.prefix.address() >> 80, nat64.prefix.length(), nat64.realm), (0x2001_0db8_0064, 96, RealmId(1)));
    assert_eq!(nat64.lowest_mtu6, 1_400);
    let softwire = &transition.softwires[0];
    assert_eq!(
        (softwire.realm, softwire.inner.len(), softwire.aftr.to_string()),
        (RealmId(1), 1, "2001:db8:1::aaaa".into())
    );
    let subscribers: Vec<String> = softwire.subscribers.iter().map(ToString::to_string).collect();
    assert_eq!(subscribers, ["2001:db8:c000::/36"]);
    assert_eq!((transition.prefix_length, transition.hosts_per_subscriber_max, transition.hosts_max), (60, 99, 566));
    assert!(nat.pools[0].subscribers.contains(&nat::settings::Transition::HOSTS));
    let server = nat::types::InsideHost::Ipv6("2001:db8:1::80".parse().expect("an address"));
    let b4 = "2001:db8:c000:100::1".parse().expect("an address");
    let camera = nat::types::InsideHost::BehindB4 { b4, inner: Ipv4Addr::new(192, 168, 1, 2) };
    let to: Vec<_> = nat.forwards.iter().map(|one| (one.inside, one.ports, one.inside_port, one.realm)).collect();
    assert_eq!(to, [(server, (443, 443), 8_443, RealmId(1)), (camera, (500, 509), 500, RealmId(1))]);
}

/// Rules, filters and classes name IPv6 prefixes; the engine gets what stands for each.
#[test]
fn ipv6_prefixes_become_what_stands_for_them() {
    let more = r#"
[[rule]]
action = "drop"
inside = "2001:db8:c:100::/56"

[[rule]]
action = "drop"
inside = "10.0.0.0/28"

[[filter]]
action = "deny"
vrf = "red"
inside = "::/0"

[[class]]
name = "some"
subscribers = ["10.0.0.0/28", "2001:db8:c::/48"]
"#;
    let config = compiled(&(EVERY_KEY_OF_IPV6.to_owned() + more));
    let (nat, transition) = (&config.nat, &config.nat.transition);
    let shown = |prefix| transition.shown(prefix);
    assert_eq!(shown(nat.rules[0].matches.source), "2001:db8:c:100::/56");
    assert_eq!(shown(nat.rules[1].matches.source), "10.0.0.0/28");
    assert_eq!(shown(nat.filters[0].matches.source), "::/0");
    let of_class: Vec<String> = nat.classes[0].subscribers.iter().map(|prefix| shown(*prefix)).collect();
    assert_eq!(of_class, ["10.0.0.0/28", "2001:db8:c::/48"]);
    let [class, rule] = [nat.classes[0].subscribers[1], nat.rules[0].matches.source];
    assert!(class.contains(rule.address()) && class.contains(rule.last()), "{rule} is in {class}");
    assert_eq!(nat.filters[0].matches.source, nat::settings::Transition::HOSTS);
}

/// The smallest file with every default of the manual written out.
fn with_defaults_written() -> String {
    let mut text = String::new();
    let mut open = "";
    let defaults = |name: &str| -> String {
        let keys = keys_of(name).iter();
        keys.filter_map(|key| match key.default {
            Preset::Value(value) => Some(format!("{} = {value}\n", key.name)),
            Preset::Required(_) | Preset::Derived { .. } => None,
        })
        .collect()
    };
    for line in SMALLEST.lines().chain(["[end]"]) {
        if line.starts_with('[') {
            text += &defaults(open);
            open = line.trim_matches(['[', ']']);
        }
        if open != "end" {
            text += line;
            text.push('\n');
        }
    }
    for section in sections().iter().filter(|section| !section.repeats) {
        text += &format!("[{}]\n{}", section.name, defaults(section.name));
    }
    text
}

#[test]
fn the_documented_defaults_are_the_compiled_ones() {
    assert_eq!(compiled(&with_defaults_written()), compiled(SMALLEST));
}

#[test]
fn the_documented_defaults_are_those_of_the_engine() {
    let config = compiled(SMALLEST);
    let engine = Settings::default();
    assert_eq!(config.nat.timeouts, engine.timeouts);
    let (pool, engine_pool) = (&config.nat.pools[0], nat::settings::Pool::default());
    assert_eq!((pool.reuse_delay, pool.reuse_at_once), (engine_pool.reuse_delay, engine_pool.reuse_at_once));
    assert_eq!(config.nat.subscriber, engine.subscriber);
    // Spare room for addresses that a reload adds is for instances, not for a bare engine.
    let limits = Limits { external_addresses_max: 0, ..config.nat.limits };
    assert_eq!(limits, engine.limits);
    assert_eq!(config.nat.limits.external_addresses_max, 32);
    assert_eq!(config.nat.reload, engine.reload);
    assert_eq!(config.nat.icmp, engine.icmp);
    assert_eq!(config.nat.port_control, engine.port_control);
    assert_eq!(config.nat.inbound_refresh, engine.inbound_refresh);
    assert_eq!(config.nat.answer_unsolicited_syn, engine.answer_unsolicited_syn);
    assert_eq!(config.nat.events, engine.events);
    assert_eq!(config.event_log, None, "nobody is logged who did not ask for it");
}

#[test]
fn every_default_and_example_is_toml() {
    for key in sections().iter().flat_map(|section| section.keys) {
        let example = key.default.example();
        assert!(example.parse::<toml_edit::Value>().is_ok(), "{}: {example}", key.name);
    }
}

#[test]
fn defaults_are_not_below_what_the_rfcs_ask_for() {
    for key in keys_of("timeouts") {
        let Kind::Duration { bound: Some(bound), .. } = key.kind else { continue };
        let default = crate::values::duration(key.default.example().trim_matches('"')).expect("a duration");
        assert!(default.as_micros() >= bound.min_us, "{}", key.name);
    }
}
