use core::net::Ipv4Addr;

use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Pool;
use nat::types::RealmId;
use nat::types::Side;

use super::Announcer;

#[test]
fn a_large_pool_on_the_link_is_announced_without_a_flood() {
    let own = InterfaceAddress { address: Ipv4Addr::new(100, 64, 0, 1), prefix_length: 16 };
    let settings = Settings {
        interfaces: vec![Interface {
            name: "wan".to_owned(),
            side: Side::Outside,
            realm: RealmId::default(),
            addresses: vec![own],
            mtu: 1_500,
        }],
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: (0..4_096_u32).map(|n| Ipv4Addr::from_bits(0x6440_1000 + n)).collect(),
            subscribers: Vec::new(),
            ..Pool::default()
        }],
        ..Settings::default()
    };
    let mut announcer = Announcer::new(&settings, Instant::ORIGIN, |_| true);
    let mut sent = [0_u32; 2];
    for millis in 0..60_000 {
        let now = Instant::ORIGIN + Duration::from_millis(millis);
        let mut burst = 0;
        while let Some(announcement) = announcer.next(now) {
            sent[usize::from(announcement.probe)] += 1;
            burst += 1;
        }
        assert!(burst <= 8, "at once");
    }
    assert_eq!(sent, [3 * 4_097, 4_097], "three announcements and one probe of each address");
}
