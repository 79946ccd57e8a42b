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
fn set_of(told: &PcpReply) -> Option<(u16, u16, bool)> {
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
fn a_set_in_a_new_block_begins_at_the_suggested_port() {
    let mut settings = with_pcp();
    settings.pools[0].allocation = Allocation::Blocks(Blocks {
        size: BlockSize::of_ports(64).expect("a size"),
        per_subscriber_max: 1,
        idle: nat::Duration::from_secs(60),
    });
    // The block has 24 ports from there on, so a longer set begins before it.
    for (size, first) in [(16, 40_040), (24, 40_040), (32, 40_032)] {
        let mut bed = Bed::new(settings.clone());
        let told = bed.pcp(&udp(7_000).suggest(at(POOL[0], 40_040)).set(size, false));
        assert_eq!((told.code, set_of(&told)), (0, Some((size, 7_000, false))));
        assert_eq!(told.external, at(POOL[0], first));
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
    // Internal port, size of the set, and what one subscriber may have.
    for (port, size, quota) in
        [(7_000, 100, 32), (7_000, 8, 32), (7_000, 2, 2), (7_000, 100, 7), (65_500, 100, 64), (65_530, 64, 64)]
    {
        for single_ports in [true, false] {
            let mut settings = with_pcp();
            settings.port_control.mappings_per_subscriber = quota;
            if !single_ports {
                settings.pools[0].allocation = Allocation::Blocks(Blocks {
                    size: BlockSize::of_ports(64).expect("a size"),
                    per_subscriber_max: 2,
                    idle: nat::Duration::from_secs(60),
                });
            }
            let what = format!("{size} ports from {port} with a quota of {quota}");
            let mut bed = Bed::new(settings);
            let told = bed.pcp(&udp(port).set(size, false));
            let (got, first, _) = set_of(&told).expect(&what);
            assert_eq!((told.code, first), (0, port), "{what}");
            let most = u32::from(size).min(quota).min(0xffff - u32::from(port));
            assert!(u32::from(got) <= most && got >= 2, "{what}: {got}");
            assert!(!single_ports || u32::from(got) == most, "{what}: {got}, and all are free");
            // As many as the reply says, each beside the last, and none elsewhere.
            let mut mapped: Vec<_> = bed.mappings().iter().map(|it| (it.internal.port, it.external)).collect();
            mapped.sort_by_key(|(internal, _)| *internal);
            assert_eq!(mapped.len(), usize::from(got), "{what}");
            for (offset, (internal, external)) in (0..).zip(mapped) {
                assert_eq!(internal, port + offset, "{what}");
                assert_eq!(at(external.address, external.port - offset), told.external, "{what}");
            }
        }
    }
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
    for workers in [1, 8] {
        let mut bed = Bed::new(with_pcp()).workers(workers).steering(Steering::Random);
        // In the range, at both of its ends, a set that reaches beyond it, and beside it.
        let inside = [4_990, 5_000, 5_005];
        let mut known: Vec<_> = inside.map(|port| (port, bed.granted(&udp(port).lifetime(300)))).to_vec();
        let set = bed.pcp(&udp(5_009).lifetime(300).set(4, false));
        assert_eq!(set_of(&set), Some((4, 5_009, false)));
        known.extend((0..4).map(|offset| (5_009 + offset, at(*set.external.ip(), set.external.port() + offset))));
        let beside = [4_989, 5_013].map(|port| (port, bed.granted(&udp(port).lifetime(300))));
        let by_tcp = bed.granted(&Ask::map(I1, Protocol::Tcp, 5_000).lifetime(300));
        let before = bed.mappings().len();
        bed.advance_secs(100);
        bed.inside(&udp(4_990).lifetime(2_000).set(21, false).packet());
        bed.advance_secs(1);
        let updates: Vec<PcpReply> = bed.take_inside().iter().map(|packet| PcpReply::of(payload(packet))).collect();
        let mut told: Vec<_> = updates
            .iter()
            .map(|update| {
                assert_eq!((update.code, update.message[1]), (0, 0x81), "an update of a MAP");
                assert!((1_990..=2_000).contains(&update.lifetime), "{}", update.lifetime);
                (u16::from_be_bytes([update.message[40], update.message[41]]), update.external)
            })
            .collect();
        told.sort_by_key(|(port, _)| *port);
        assert_eq!(told, known, "one update for each mapping that was there, and no other answer");
        assert_eq!(bed.mappings().len(), before, "nothing new");
        bed.advance_secs(1_500);
        bed.take_inside();
        for (port, external) in known {
            assert!(bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, port)), "{port} is renewed");
        }
        for (port, external) in beside {
            assert!(!bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, port)), "{port} is not");
        }
        assert!(!bed.is_open(Protocol::Tcp, at(E1, 1), by_tcp, at(I1, 5_000)), "of another protocol");
    }
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

/// Its client then has a new set, and no reply names a port that is not its own.
#[test]
fn a_set_that_would_have_to_move_ends_as_one() {
    covers!("7753-4", "6887-14.2");
    for workers in [1, 2, 8] {
        // Whether a port is in use, and for how long the client waits before it asks again.
        for (in_use, waits_ms) in [(false, 100), (false, 5_000), (true, 100), (true, 5_000)] {
            let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
            let mut bed = Bed::new(settings.clone()).workers(workers);
            let ask = udp(7_000).lifetime(7_200).set(8, true);
            let before = bed.pcp(&ask);
            if in_use {
                bed.open_udp(at(I1, 7_003), at(E1, 53));
            }
            bed.reload(settings.addresses(&POOL[1..2]));
            (0..waits_ms / 10).for_each(|_| bed.advance(nat::Duration::from_millis(10)));
            let what = format!("{workers} workers, {in_use}, {waits_ms} ms");
            let updates: Vec<PcpReply> = bed.take_inside().iter().map(|packet| PcpReply::of(payload(packet))).collect();
            assert!(updates.iter().all(|update| update.lifetime == 0), "{what}: {updates:?}");
            if waits_ms >= 5_000 {
                assert_eq!(updates.len(), 3 * 8, "{what}: three for each port");
            }
            bed.inside(&ask.packet());
            // Updates of the end may still come.
            let replies: Vec<PcpReply> = bed.take_inside().iter().map(|packet| PcpReply::of(payload(packet))).collect();
            let [after] = &replies.iter().filter(|told| told.lifetime > 0).collect::<Vec<_>>()[..] else {
                panic!("{what}: {replies:?}")
            };
            let (size, first, _) = set_of(after).unwrap_or((1, 7_000, true));
            assert_eq!((after.code, first), (0, 7_000), "{what}");
            assert_eq!((*after.external.ip(), after.external.port() % 2), (POOL[1], 0), "{what}");
            assert!(size == 8 || in_use && size == 3, "{what}: {size}");
            let held = |port| bed.grants().into_iter().find(|grant| grant.internal.port == port);
            for offset in 0..size {
                let grant = held(7_000 + offset).expect("a grant for each port of the reply");
                let external = at(grant.external.address, grant.external.port);
                assert_eq!(external, at(*after.external.ip(), after.external.port() + offset), "{what}");
            }
            for offset in 0..size {
                let external = at(*after.external.ip(), after.external.port() + offset);
                assert!(bed.is_open(Protocol::Udp, at(E2, 5), external, at(I1, 7_000 + offset)), "{what}: {offset}");
            }
            if in_use {
                let external = at(*before.external.ip(), before.external.port() + 3);
                assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_003)), "{what}: its session goes on");
            }
            bed.run_out();
        }
    }
}
