use core::net::Ipv4Addr;

use nat::Settings;
use nat::Verdict;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Pool;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::types::Side;
use wire::arp::Message;
use wire::ethernet::MacAddress;

use super::Answerer;

const OUTSIDE: InterfaceId = InterfaceId(0);
const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const HOST: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn settings() -> Settings {
    let address = |last, prefix_length| InterfaceAddress { address: Ipv4Addr::new(192, 0, 2, last), prefix_length };
    Settings {
        interfaces: vec![Interface {
            name: "wan".to_owned(),
            side: Side::Outside,
            realm: RealmId::default(),
            addresses: vec![address(1, 25), address(129, 25)],
            mtu: 1_500,
        }],
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: [5, 7, 6, 20].map(|last| Ipv4Addr::new(203, 0, 113, last)).to_vec(),
            subscribers: Vec::new(),
            ..Pool::default()
        }],
        ..Settings::default()
    }
}

#[test]
fn pool_addresses_are_found_in_any_order_of_configuration() {
    let answerer = Answerer::new(&settings());
    let ours: Vec<u8> =
        (0..=255).filter(|last| answerer.is_ours(OUTSIDE, Ipv4Addr::new(203, 0, 113, *last).to_bits())).collect();
    assert_eq!(ours, [5, 6, 7, 20]);
    assert_eq!(answerer.pool_ranges.len(), 2);
}

#[test]
fn requests_use_the_own_address_on_the_subnet_of_the_target() {
    let settings = settings();
    let answerer = Answerer::new(&settings);
    let own = |last| {
        let target = Ipv4Addr::new(192, 0, 2, last).to_bits();
        answerer.own_address(&settings, OUTSIDE, target).map(|own| Ipv4Addr::from_bits(own).octets()[3])
    };
    assert_eq!((own(77), own(200)), (Some(1), Some(129)));
}

#[test]
fn our_own_frames_and_group_senders_teach_nothing() {
    let answerer = Answerer::new(&settings());
    let target = Ipv4Addr::new(192, 0, 2, 1).to_bits();
    let from = |mac| answerer.judge(OUTSIDE, OURS, &Message::request(mac, 0xc000_0209, target));
    assert_eq!(from(OURS).learnt, None);
    assert_eq!(from(OURS).verdict, Verdict::LocalIgnored);
    assert_eq!(from(MacAddress::BROADCAST).verdict, Verdict::ArpInvalid);
    assert_eq!(from(MacAddress::ZERO).verdict, Verdict::ArpInvalid);
    assert!(from(HOST).reply && from(HOST).learnt.is_some());
}
