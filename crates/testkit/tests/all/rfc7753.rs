//! RFC 7753, sets of ports in PCP.

use core::net::Ipv4Addr;

use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use testkit::*;

fn with_pcp() -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    settings
}

fn bed() -> Bed {
    Bed::new(with_pcp())
}

fn udp(port: u16) -> Ask {
    Ask::map(I1, Protocol::Udp, port)
}

/// Size, first internal port and parity of the set in a reply.
fn set_of(told: &Told) -> Option<(u16, u16, bool)> {
    let options = told.options();
    let (_, data) = options.iter().find(|(code, _)| *code == 130)?;
    assert_eq!(data.len(), 5);
    let word = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    Some((word(0), word(2), data[4] & 1 == 1))
}

#[test]
fn a_set_maps_each_port_to_the_one_beside() {
    covers!("7753-1", "7753-7", "7753-4");
    let two = Blocks {
        size: BlockSize::of_ports(64).expect("a size"),
        per_subscriber_max: 2,
        idle: nat::Duration::from_secs(60),
    };
    let mut blocks = with_pcp();
    blocks.pools[0].allocation = Allocation::Blocks(two);
    for settings in [with_pcp(), blocks] {
        for workers in [1, 8] {
            let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
            let told = bed.pcp(&udp(7_000).set(16, false));
            assert_eq!((told.code, set_of(&told)), (0, Some((16, 7_000, false))));
            for offset in 0..16 {
                let external = at(*told.external.ip(), told.external.port() + offset);
                assert!(bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 7_000 + offset)), "{offset}");
            }
        }
    }
}

#[test]
fn a_malformed_set_is_refused() {
    covers!("7753-2");
    assert_eq!(bed().pcp(&udp(7_000).set(4, false).set(4, false)).code, 6);
    assert_eq!(bed().pcp(&udp(7_000).set(0, false)).code, 6);
    let both = udp(7_000).suggest(at(POOL[0], 9_000)).set(4, false).prefer_failure();
    assert_eq!(bed().pcp(&both).code, 6);
}

#[test]
fn a_set_is_as_large_as_the_subscriber_may_have() {
    covers!("7753-3", "7753-4");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 32;
    let mut bed = Bed::new(settings);
    let told = bed.pcp(&udp(7_000).set(100, false));
    assert_eq!((told.code, set_of(&told)), (0, Some((32, 7_000, false))));
    assert_eq!(bed.mappings().len(), 32);
    assert!(bed.mappings().iter().all(|mapping| (7_000..7_032).contains(&mapping.internal.port)));
}

#[test]
fn one_port_is_no_set() {
    covers!("7753-5");
    let told = bed().pcp(&udp(7_000).set(1, false));
    assert_eq!((told.code, set_of(&told)), (0, None));
    let mut bed = Bed::new(with_pcp().addresses(&POOL[..1]).ports(5_000, 5_000));
    let told = bed.pcp(&udp(7_000).set(8, false));
    assert_eq!((told.code, set_of(&told)), (0, None), "only one was free");
}

#[test]
fn the_parity_of_a_set_is_kept_on_request() {
    covers!("7753-6", "7857-8b");
    for port in [7_000, 7_001, 7_002, 7_003, 7_101, 7_102] {
        let told = bed().pcp(&udp(port).set(6, true));
        assert_eq!(told.external.port() % 2, port % 2);
        assert!(set_of(&told).is_some_and(|(_, _, parity)| parity));
    }
}

#[test]
fn a_set_is_renewed_and_deleted_as_one() {
    covers!("7753-8");
    let mut bed = bed();
    let told = bed.pcp(&udp(7_000).lifetime(300).set(4, false));
    bed.advance_secs(200);
    let again = bed.pcp(&udp(7_000).lifetime(1_000).set(4, false));
    assert_eq!((again.external, set_of(&again), again.lifetime), (told.external, Some((4, 7_000, false)), 1_000));
    bed.advance_secs(500);
    let external = |offset| at(*told.external.ip(), told.external.port() + offset);
    for offset in 0..4 {
        assert!(bed.is_open(Protocol::Udp, at(E1, 1), external(offset), at(I1, 7_000 + offset)));
    }
    assert_eq!(bed.pcp(&udp(7_000).nonce(9).set(4, false)).code, 2, "another nonce");
    assert_eq!(bed.pcp(&udp(7_000).lifetime(0).set(4, false)).code, 0);
    for offset in 0..4 {
        assert!(!bed.is_open(Protocol::Udp, at(E2, 1), external(offset), at(I1, 7_000 + offset)));
    }
}

#[test]
fn a_set_that_overlaps_renews_each_mapping_by_itself() {
    covers!("7753-9");
    let mut bed = bed();
    let single = bed.granted(&udp(5_000).lifetime(300));
    bed.advance_secs(100);
    bed.inside(&udp(4_990).lifetime(2_000).set(21, false).packet());
    bed.advance_secs(1);
    let updates: Vec<Told> = bed.take_inside().iter().map(|packet| Told::of(payload(packet))).collect();
    assert_eq!(updates.len(), 1, "one for the mapping that was there");
    assert_eq!((updates[0].code, updates[0].external), (0, single));
    assert!((1_990..=2_000).contains(&updates[0].lifetime), "{}", updates[0].lifetime);
    assert_eq!(bed.mappings().len(), 1, "nothing new");
    bed.advance_secs(1_500);
    assert!(bed.is_open(Protocol::Udp, at(E1, 1), single, at(I1, 5_000)));
}

/// The rules of MAP hold for each port of a set (RFC 6887 §11.3).
#[test]
fn another_nonce_is_refused_at_every_port_of_a_set() {
    covers!("6887-11.3e", "7753-8", "7753-9");
    let mut bed = bed();
    bed.granted(&udp(7_000).lifetime(1_000).set(4, false));
    for ask in [udp(7_002), udp(7_001).set(2, false), udp(6_999).set(3, false), udp(7_000)] {
        let told = bed.pcp(&ask.nonce(9).lifetime(9_000));
        assert_eq!((told.code, told.lifetime), (2, 1_000), "NOT_AUTHORIZED for as long as it lasts");
    }
    assert!(bed.grants().iter().all(|grant| grant.left.as_secs() <= 1_000), "nothing has changed");
    bed.advance_secs(1);
    assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new(), "no update");
}

#[test]
fn prefer_failure_refuses_another_port_for_a_set() {
    covers!("6887-11.3h");
    let mut bed = bed();
    let first = bed.granted(&udp(7_000).lifetime(1_000).set(4, false));
    for port in [7_000, 7_001] {
        let other = at(*first.ip(), first.port() + 9);
        assert_eq!(bed.pcp(&udp(port).suggest(other).prefer_failure()).code, 11, "CANNOT_PROVIDE_EXTERNAL");
    }
    assert_eq!(bed.pcp(&udp(7_000).suggest(first).prefer_failure()).external, first);
}

#[test]
fn a_filter_is_added_to_those_of_a_set() {
    covers!("6887-13.3b");
    let mut bed = bed();
    let ask = || udp(7_000).lifetime(1_000).set(2, false);
    let first = bed.granted(&ask().filter(128, at(E1, 0)));
    assert_eq!(bed.granted(&ask().filter(128, at(E2, 0))), first);
    for (offset, from) in [(0, E1), (0, E2), (1, E1), (1, E2)] {
        let external = at(*first.ip(), first.port() + offset);
        assert!(bed.is_open(Protocol::Udp, at(from, 9), external, at(I1, 7_000 + offset)), "{from} at {offset}");
    }
    // One too many for the set as it is now, and nothing has changed.
    let many = (1..=3).fold(ask(), |ask, last| ask.filter(128, at(Ipv4Addr::new(192, 0, 2, last), 0)));
    assert_eq!(bed.pcp(&many).code, 13, "EXCESSIVE_REMOTE_PEERS");
}
