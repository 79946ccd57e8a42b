use core::net::Ipv6Addr;

use nat::settings::Address6;
use nat::settings::Interface;
use nat::stand_in::Prefix6;
use nat::types::RealmId;

use super::*;
use crate::routing::fib::Fib;
use crate::routing::rib::Hop;
use crate::routing::rib::KernelRoute;
use crate::routing::rib::Rib6;

const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const LAN: InterfaceId = InterfaceId(0);
const WAN: InterfaceId = InterfaceId(1);

fn bits(text: &str) -> u128 {
    address(text).to_bits()
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().expect("an IPv6 address")
}

fn settings() -> Settings {
    let interface = |name: &str, side| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: Vec::new(),
        mtu: 1_500,
    };
    let own = |interface, text: &str| Address6 { interface, address: address(text), prefix_length: 64 };
    let route = |prefix: &str, prefix_length, next_hop: &str, interface| Route6 {
        prefix: address(prefix),
        prefix_length,
        next_hop: address(next_hop),
        interface,
    };
    let mut settings = Settings {
        interfaces: vec![interface("lan", Side::Inside), interface("wan", Side::Outside), interface("4", Side::Inside)],
        ..Settings::default()
    };
    settings.ipv6.addresses = vec![own(LAN, "2001:db8:1::1"), own(WAN, "2001:db8:2::1")];
    settings.ipv6.routes = vec![
        route("::", 0, "2001:db8:2::fe", WAN),
        route("2001:db8:9::", 48, "fe80::99", WAN),
        route("2001:db8:1::", 48, "2001:db8:1::7", LAN),
    ];
    settings
}

fn own(settings: &Settings) -> Arc<OwnAddresses> {
    Arc::new(OwnAddresses::new(settings, |_| Some(STATION), |_| true))
}

fn node() -> Node {
    let settings = settings();
    Node::new(&settings, None, &own(&settings), |_| true, 7)
}

#[test]
fn the_longest_prefix_of_the_realm_leads() {
    let node = node();
    let leads = |from, to: &str| node.leads(from, bits(to));
    assert_eq!(leads(LAN, "2001:db8:1::55"), Some((LAN, bits("2001:db8:1::55"))), "on the link");
    assert_eq!(leads(LAN, "2001:db8:1:2::5"), Some((LAN, bits("2001:db8:1::7"))), "by the router");
    assert_eq!(leads(LAN, "2001:db8:9::1"), None, "the other realm has that route");
    assert_eq!(leads(WAN, "2001:db8:9::1"), Some((WAN, bits("fe80::99"))));
    assert_eq!(leads(WAN, "2001:db8:77::1"), Some((WAN, bits("2001:db8:2::fe"))));
    assert_eq!(leads(LAN, "fe80::5"), Some((LAN, bits("fe80::5"))));
    assert!(node.is_on(LAN) && !node.is_on(InterfaceId(2)) && !node.is_off());
}

/// All interfaces are in the kernel, and routes come from there.
fn node_of_kernel(settings: &Settings) -> (Node, Fib, Arc<LiveRoutes>) {
    let live = Arc::new(LiveRoutes::new(settings.realms(), 0, 1 << 10, true).unwrap());
    let (rib, mut fib) = (Rib6::of(settings), Fib::new(&live, 1 + settings.realms()));
    for (table, prefix) in rib.fixed_prefixes() {
        fib.refresh(&rib, settings, table, prefix).unwrap();
    }
    fib.publish();
    (Node::new(settings, Some(&live), &own(settings), |_| true, 7), fib, live)
}

#[test]
fn routes_of_the_kernel_lead_as_those_of_the_configuration_do() {
    let mut settings = settings();
    settings.kernel_interfaces = vec![LAN, WAN];
    let (node, mut fib, live) = node_of_kernel(&settings);
    let without = Node::new(&settings, None, &own(&settings), |_| true, 7);
    for from in [LAN, WAN] {
        for to in ["2001:db8:1::55", "2001:db8:1:2::5", "2001:db8:9::1", "2001:db8:77::1", "fe80::5", "3fff::1"] {
            assert_eq!(node.leads(from, bits(to)), without.leads(from, bits(to)), "{to} from {from:?}");
        }
    }
    // One of the kernel, by a link-local router, is in use at once, and so is its end.
    let mut rib = Rib6::of(&settings);
    let (table, prefix) = (Table::Inside(RealmId(0)), Prefix6::new(bits("2001:db8:65::"), 48).unwrap());
    let hop = Hop { interface: LAN, gateway: bits("fe80::7"), weight: 1 };
    rib.set_kernel(table, prefix, &[KernelRoute { protocol: 188, metric: 20, hops: vec![hop], object: None }]);
    fib.refresh(&rib, &settings, table, prefix).unwrap();
    assert_eq!(node.leads(LAN, bits("2001:db8:65::9")), Some((LAN, bits("fe80::7"))));
    assert_eq!(node.leads(WAN, bits("2001:db8:65::9")), Some((WAN, bits("2001:db8:2::fe"))), "in its realm only");
    rib.set_kernel(table, prefix, &[]);
    fib.refresh(&rib, &settings, table, prefix).unwrap();
    assert_eq!(node.leads(LAN, bits("2001:db8:65::9")), None);
    drop(live);
}

#[test]
fn the_kernel_gets_only_packets_to_its_own_addresses() {
    let mut settings = settings();
    settings.kernel_interfaces = vec![LAN, WAN];
    let (mut node, _, _) = node_of_kernel(&settings);
    assert_eq!(node.next_due(Instant::from_micros(5_000_000)), None, "the kernel probes");
    let local = Ipv6Addr::from_bits(ipv6::link_local_of(STATION.0)).to_string();
    for own in ["2001:db8:1::1", "ff02::5", "ff02::1", local.as_str()] {
        assert!(node.is_for_kernel(LAN, bits(own)), "{own}");
    }
    for other in ["2001:db8:1::55", "2001:db8:9::1", "2001:db8:2::1", "fe80::99"] {
        assert!(!node.is_for_kernel(LAN, bits(other)), "{other}");
    }
}

#[test]
fn probes_and_reports_wait_for_their_links() {
    // covers: 4862-5.4
    let mut node = node();
    node.await_links();
    let mut now = Instant::from_micros(1_000_000);
    let sent = |node: &mut Node, now| {
        let reports: Vec<InterfaceId> = reports(node, now).into_iter().map(|report| report.0).collect();
        let due: Vec<InterfaceId> = core::iter::from_fn(|| node.next_due(now)).map(|due| due.interface).collect();
        (reports, due)
    };
    let nothing = (vec![], vec![]);
    assert_eq!(sent(&mut node, now), nothing, "nobody has looked yet");
    for _ in 0..1_000 {
        assert!(node.awaits_links(now));
        node.look_at_links(now, |_| false);
        assert!(!node.awaits_links(now), "not in every poll");
        assert_eq!(sent(&mut node, now), nothing);
        now = now + LOOK_AT_LINKS;
    }
    node.look_at_links(now, |interface| interface == WAN);
    assert_eq!(sent(&mut node, now), (vec![WAN], vec![WAN, WAN]));
    now = now + PROBE_TIME;
    node.look_at_links(now, |_| true);
    assert_eq!(sent(&mut node, now), (vec![LAN], vec![LAN, LAN, WAN, WAN]));
    assert!(!node.awaits_links(now + PROBE_TIME), "all links were up");
}

#[test]
fn addresses_are_probed_before_they_are_used() {
    let mut node = node();
    let now = Instant::from_micros(1_000_000);
    let probes: Vec<Due> = core::iter::from_fn(|| node.next_due(now)).collect();
    let link_local = bits("fe80::ff:fe00:9");
    let expected = [(LAN, link_local), (LAN, bits("2001:db8:1::1")), (WAN, link_local), (WAN, bits("2001:db8:2::1"))];
    let expected = expected.map(|(interface, address)| Due { interface, address, is_probe: true });
    assert_eq!(probes, expected);
    assert_eq!(node.own_address(LAN, bits("2001:db8:1::5")), None, "still tentative");
    node.give_up(WAN, bits("2001:db8:2::1"));
    let later = now + PROBE_TIME;
    let announced: Vec<Due> = core::iter::from_fn(|| node.next_due(later)).collect();
    assert_eq!(announced.len(), 3);
    assert!(announced.iter().all(|due| !due.is_probe));
    assert_eq!(node.own_address(LAN, bits("2001:db8:1::5")), Some(bits("2001:db8:1::1")));
    assert_eq!(node.own_address(LAN, bits("fe80::5")), Some(link_local));
    assert_eq!(node.own_address(LAN, bits("2001:db8:77::5")), Some(bits("2001:db8:1::1")), "of the same scope");
    assert_eq!(node.own_address(WAN, bits("2001:db8:2::5")), Some(link_local), "the other is a duplicate");
    // No router forwards what comes from a link-local address.
    assert_eq!(node.own_address(WAN, bits("2001:db8:77::5")), None);
    assert_eq!(node.next_due(later + PROBE_TIME), None);
}

#[test]
fn other_workers_use_an_address_only_after_its_probe() {
    // covers: 4862-5.4
    let settings = settings();
    let own = own(&settings);
    let [mut prober, mut other] = [true, false].map(|probes| Node::new(&settings, None, &own, |_| probes, 7));
    let (now, ours) = (Instant::from_micros(1_000_000), bits("2001:db8:1::1"));
    let advance = |node: &mut Node, now| core::iter::from_fn(|| node.next_due(now)).count();
    // Its own clock may be ahead: the probe leaves later.
    assert_eq!((advance(&mut other, now), advance(&mut prober, now + PROBE_TIME)), (0, 4));
    assert_eq!(advance(&mut other, now + PROBE_TIME), 0);
    other.follow();
    assert_eq!(other.own_address(LAN, bits("2001:db8:1::5")), None);
    assert_eq!(advance(&mut prober, now + PROBE_TIME + PROBE_TIME), 4);
    assert_eq!(other.own_address(LAN, bits("2001:db8:1::5")), None);
    assert!(other.take_changed() && !other.take_changed());
    other.follow();
    assert!(other.take_changed());
    assert_eq!(other.own_address(LAN, bits("2001:db8:1::5")), Some(ours));
}

#[test]
fn a_duplicate_that_another_worker_heard_is_not_announced() {
    // covers: 4862-5.4
    let settings = settings();
    let own = own(&settings);
    let [mut prober, mut other] = [true, false].map(|probes| Node::new(&settings, None, &own, |_| probes, 7));
    let (now, ours) = (Instant::from_micros(1_000_000), bits("2001:db8:1::1"));
    while prober.next_due(now).is_some() {}
    other.give_up(LAN, ours);
    let due: Vec<u128> = core::iter::from_fn(|| prober.next_due(now + PROBE_TIME)).map(|due| due.address).collect();
    assert!(due.len() == 3 && !due.contains(&ours), "{due:x?}");
    for node in [&mut prober, &mut other] {
        node.follow();
        assert_eq!(node.own_address(LAN, bits("2001:db8:1::5")), Some(bits("fe80::ff:fe00:9")));
    }
}

#[test]
fn group_addresses_and_our_own_station_are_not_neighbours() {
    let mut node = node();
    let now = Instant::from_micros(1);
    let groups = [MacAddress([1, 0, 0x5e, 0, 0, 1]), MacAddress([0xff; 6])];
    for station in [STATION].into_iter().chain(groups) {
        let message = Message {
            kind: Kind::Solicitation,
            source: bits("2001:db8:1::7"),
            destination: bits("2001:db8:1::1"),
            target: bits("2001:db8:1::1"),
            station: Some(station),
        };
        let mut packet = [0; wire::neighbour::LENGTH_MAX];
        let length = message.write(&mut packet);
        let sender = MacAddress([2, 0, 0, 0, 0, 7]);
        let judgement = node.judge(now, LAN, (STATION, sender), false, &packet[..length]);
        assert_eq!((judgement.verdict, judgement.learnt), (Verdict::NeighbourInvalid, None), "{station:?}");
    }
}

fn reports(node: &mut Node, now: Instant) -> Vec<(InterfaceId, u128, Record, Vec<u128>)> {
    core::iter::from_fn(|| node.next_report(now))
        .map(|report| (report.interface, report.source, report.record, report.groups[..report.groups_len].to_vec()))
        .collect()
}

#[test]
fn groups_are_reported_before_probes_and_from_the_new_address() {
    // covers: 4861-7.2.1, 4862-5.4.2, 3810-6.1
    let mut node = node();
    let now = Instant::from_micros(1_000_000);
    let link_local = bits("fe80::ff:fe00:9");
    let groups = [bits("ff02::1:ff00:9"), bits("ff02::1:ff00:1")].to_vec();
    let of_both = |source| [LAN, WAN].map(|interface| (interface, source, Record::Joined, groups.clone())).to_vec();
    assert_eq!(reports(&mut node, now), of_both(0));
    while node.next_due(now).is_some() {}
    assert_eq!(reports(&mut node, now), []);
    let later = now + PROBE_TIME;
    node.give_up(WAN, bits("2001:db8:2::1"));
    while node.next_due(later).is_some() {}
    let mut expected = of_both(link_local);
    expected[1].3.truncate(1);
    assert_eq!(reports(&mut node, later), expected, "a duplicate's group is not joined any longer");
    assert_eq!(reports(&mut node, later + PROBE_TIME), []);
}

/// A General Query with a link-local source.
fn query(delay_ms: u16, hop_limit: u8) -> Vec<u8> {
    let mut packet = vec![0; 40 + 8 + 28];
    let (source, destination) = (bits("fe80::7"), bits("ff02::1"));
    let mut header = Ipv6::new_unchecked(packet.as_mut_slice());
    header.set_class_and_label(0, 0);
    header.set_payload_length(36);
    header.set_next_header(ipv6::HEADER_HOP_BY_HOP);
    header.set_hop_limit(hop_limit);
    header.set_source(source);
    header.set_destination(destination);
    packet[40..48].copy_from_slice(&[ipv6::PROTOCOL_ICMP6, 0, 5, 2, 0, 0, 1, 0]);
    let mut icmp = Icmp6::new_unchecked(&mut packet[48..]);
    icmp.set_type_and_code(icmp6::TYPE_LISTENER_QUERY, 0);
    icmp.set_parameter(u32::from(delay_ms) << 16);
    icmp.fill_checksum(source, destination);
    packet
}

#[test]
fn a_query_is_answered_within_its_time() {
    // covers: 3810-6.2
    let mut node = node();
    let now = Instant::from_micros(60_000_000);
    for _ in 0..2 {
        while node.next_due(now + PROBE_TIME).is_some() {}
        let _ = reports(&mut node, now);
        while node.next_due(now + PROBE_TIME + PROBE_TIME).is_some() {}
        let _ = reports(&mut node, now + PROBE_TIME + PROBE_TIME);
    }
    let asked = now + Duration::from_secs(10);
    let stations = (STATION, MacAddress([2, 0, 0, 0, 0, 7]));
    let from_afar = node.judge(asked, LAN, stations, true, &query(100, 2));
    assert_eq!((from_afar.verdict, reports(&mut node, asked + PROBE_TIME)), (Verdict::LocalIgnored, vec![]));
    assert_eq!(node.judge(asked, LAN, stations, true, &query(100, 1)).verdict, Verdict::Local);
    let answers = reports(&mut node, asked + Duration::from_millis(100));
    let groups = [bits("ff02::1:ff00:9"), bits("ff02::1:ff00:1")].to_vec();
    assert_eq!(answers, [(LAN, bits("fe80::ff:fe00:9"), Record::Current, groups)]);
    assert_eq!(reports(&mut node, asked + PROBE_TIME), [], "once for a query");
}

#[test]
fn the_kernel_reports_its_own_groups() {
    let mut settings = settings();
    settings.kernel_interfaces = vec![LAN, WAN];
    let (mut node, _, _) = node_of_kernel(&settings);
    let now = Instant::from_micros(60_000_000);
    let stations = (STATION, MacAddress([2, 0, 0, 0, 0, 7]));
    let _ = node.judge(now, LAN, stations, true, &query(0, 1));
    assert_eq!(reports(&mut node, now + PROBE_TIME), []);
}

#[test]
fn a_reload_exchanges_the_routes() {
    let mut node = node();
    let mut next = settings();
    next.ipv6.routes.truncate(1);
    let mut routes = routes_of(&next);
    node.adopt(&mut routes, &next.icmp);
    assert_eq!(routes.iter().map(|route| route.prefix_length).collect::<Vec<_>>(), [48, 48, 0]);
    assert_eq!(node.leads(WAN, bits("2001:db8:9::1")), Some((WAN, bits("2001:db8:2::fe"))));
    assert_eq!(node.leads(LAN, bits("2001:db8:1:2::5")), None);
}
