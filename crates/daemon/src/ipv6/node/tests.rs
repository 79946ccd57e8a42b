use core::net::Ipv6Addr;

use nat::settings::Address6;
use nat::settings::Interface;
use nat::types::RealmId;

use super::*;

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

fn node() -> Node {
    Node::new(&settings(), |_| Some(STATION), |_| true, 7)
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
    assert_eq!(node.next_due(later + PROBE_TIME), None);
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
