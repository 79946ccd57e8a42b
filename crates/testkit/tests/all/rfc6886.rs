//! RFC 6886, NAT-PMP.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::class::EXTRA_SESSION_BYTES;
use nat::class::MAPPING_BYTES;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Rate;
use nat::settings::SubscriberLimits;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SERVER: SocketAddrV4 = at(OWN_INSIDE, 5_351);

fn with_nat_pmp() -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.nat_pmp = true;
    settings
}

fn bed() -> Bed {
    Bed::new(with_nat_pmp())
}

struct Mapped {
    code: u16,
    port: u16,
    lifetime: u32,
    epoch: u32,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

fn request(protocol: Protocol, port: u16, suggested: u16, lifetime: u32) -> Vec<u8> {
    let mut message = vec![0, if protocol == Protocol::Tcp { 2 } else { 1 }, 0, 0];
    message.extend(port.to_be_bytes());
    message.extend(suggested.to_be_bytes());
    message.extend(lifetime.to_be_bytes());
    message
}

fn map(bed: &mut Bed, host: Ipv4Addr, protocol: Protocol, port: u16, suggested: u16, lifetime: u32) -> Mapped {
    let message = request(protocol, port, suggested, lifetime);
    let reply = bed.answer(at(host, 40_000), SERVER, &message).expect("a reply");
    assert_eq!((reply.len(), reply[0], reply[1]), (16, 0, message[1] | 0x80));
    assert_eq!(word(&reply, 8), port);
    Mapped { code: word(&reply, 2), port: word(&reply, 10), lifetime: long(&reply, 12), epoch: long(&reply, 4) }
}

fn address(bed: &mut Bed, host: Ipv4Addr) -> (u16, Ipv4Addr) {
    let reply = bed.answer(at(host, 40_000), SERVER, &[0, 0]).expect("a reply");
    assert_eq!((reply.len(), reply[1]), (12, 0x80));
    (word(&reply, 2), Ipv4Addr::from_bits(long(&reply, 8)))
}

#[test]
fn a_mapping_belongs_to_the_address_that_asked() {
    covers!("6886-2", "6886-5");
    for workers in [1, 8] {
        let mut bed = Bed::new(with_nat_pmp()).workers(workers).steering(Steering::Random);
        let (code, outside) = address(&mut bed, I1);
        assert_eq!(code, 0);
        let mapped = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 3_600);
        assert_eq!((mapped.code, mapped.lifetime), (0, 3_600));
        let external = at(outside, mapped.port);
        assert!(bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 7_000)));
        let again = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 3_600);
        assert_eq!(again.port, mapped.port, "a repeated request");
        assert_eq!(address(&mut bed, I1).1, outside);
    }
}

#[test]
fn the_twin_port_is_kept_but_leads_nowhere() {
    covers!("6886-3");
    let mut bed = Bed::new(with_nat_pmp().ports(2_000, 2_007).addresses(&POOL[..1]));
    let mapped = map(&mut bed, I1, Protocol::Tcp, 80, 0, 3_600);
    let external = at(POOL[0], mapped.port);
    assert!(bed.is_open(Protocol::Tcp, at(E1, 1), external, at(I1, 80)));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 80)), "the twin is not mapped");
    for port in 0..10 {
        let other = map(&mut bed, I2, Protocol::Udp, 9_000 + port, mapped.port, 3_600);
        assert_ne!((other.code, other.port), (0, mapped.port), "nobody else gets it");
    }
    let own = map(&mut bed, I1, Protocol::Udp, 80, mapped.port, 3_600);
    assert_eq!((own.code, own.port), (0, mapped.port), "the same client does");
}

#[test]
fn the_twin_port_goes_with_its_mapping() {
    covers!("6886-3");
    let mut settings = with_nat_pmp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    settings.port_control.pcp = true;
    for moves in [false, true] {
        let mut bed = Bed::new(settings.clone());
        let mut port = map(&mut bed, I1, Protocol::Tcp, 80, 0, 86_400).port;
        if moves {
            bed.reload(settings.clone().addresses(&POOL[1..2]));
            // The notices of the new address end.
            bed.advance_secs(600);
            bed.take_inside();
            port = map(&mut bed, I1, Protocol::Tcp, 80, 0, 86_400).port;
            assert_eq!(address(&mut bed, I1), (0, POOL[1]));
        } else {
            assert_eq!(map(&mut bed, I1, Protocol::Tcp, 80, 0, 0).code, 0);
        }
        // Not by NAT-PMP, which would need the port of TCP for it.
        let twin = at(POOL[usize::from(moves)], port);
        let ask = |port| Ask::map(I2, Protocol::Udp, port).suggest(twin).lifetime(600);
        assert_ne!(bed.granted(&ask(9_000)), twin, "it is kept");
        // As long as an idle mapping of TCP, and then as any port.
        bed.advance_secs(7_440 + 240 + 120 + 10);
        assert_eq!(bed.granted(&ask(9_001)) == twin, !moves);
        bed.run_out();
    }
}

/// With ports of UDP up to this one in use by another subscriber.
fn bed_with_udp_taken(last: u16) -> Bed {
    let mut settings = with_nat_pmp().addresses(&POOL[..1]).ports(2_000, 2_007);
    settings.port_control.pcp = true;
    let mut bed = Bed::new(settings).record_events(1_024);
    for port in 2_000..=last {
        let taken = at(POOL[0], port);
        assert_eq!(bed.granted(&Ask::map(I2, Protocol::Udp, port).suggest(taken)), taken);
    }
    bed.take_events(0, usize::MAX);
    bed
}

#[test]
fn a_port_free_for_both_protocols_is_found_before_it_is_taken() {
    covers!("6886-3");
    let mut bed = bed_with_udp_taken(2_003);
    let mapped = map(&mut bed, I1, Protocol::Tcp, 80, 2_000, 3_600);
    assert!(mapped.code == 0 && mapped.port >= 2_004, "code {}, port {}", mapped.code, mapped.port);
    let twin = bed.mapping_of(Protocol::Udp, at(I1, 80)).expect("the twin is kept");
    assert_eq!(twin.external.port, mapped.port);
    let counters = bed.counters();
    assert_eq!((counters.mappings_created, counters.mappings_removed), ([5, 1, 0], [0; 3]));
}

#[test]
fn a_refused_request_leaves_no_port_and_no_record() {
    covers!("6886-3", "6886-4");
    let mut bed = bed_with_udp_taken(2_007);
    let before = bed.counters();
    for _ in 0..3 {
        assert_eq!(map(&mut bed, I1, Protocol::Tcp, 80, 2_000, 3_600).code, 4, "out of resources");
    }
    let after = bed.counters();
    assert_eq!(after.mappings_created, before.mappings_created);
    assert_eq!((after.sessions_created, after.grants_opened), (before.sessions_created, before.grants_opened));
    assert_eq!(bed.take_events(0, usize::MAX), []);
    // No port of TCP is held down.
    for port in 2_000..2_008 {
        bed.connect(at(I3, port), at(E1, 80));
    }
}

#[test]
fn limits_are_checked_for_both_ports_before_one_is_taken() {
    covers!("6886-3");
    // For a subscriber with so many mappings. Each port takes a mapping and a session.
    let limits: [fn(&mut SubscriberLimits, u32, u32); 5] = [
        |limits, less, _| limits.ports_max[Protocol::Udp.index()] = 1 - less,
        |limits, less, has| limits.sessions_max = has + 4 - less,
        |limits, less, has| {
            let bytes = u64::from(2 + has) * MAPPING_BYTES + 2 * EXTRA_SESSION_BYTES;
            limits.memory_max = bytes - u64::from(less);
        },
        |limits, less, has| limits.new_mappings = Some(Rate { per_second: 1, burst: has + 2 - less }),
        |limits, less, _| limits.new_sessions = Some(Rate { per_second: 1, burst: 2 - less }),
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        for (less, has) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let mut settings = with_nat_pmp();
            limit(&mut settings.subscriber, less, has);
            let mut bed = Bed::new(settings);
            for identifier in 0..has {
                bed.ping(I1, identifier as u16, E1);
            }
            let code = map(&mut bed, I1, Protocol::Tcp, 80, 0, 3_600).code;
            let counters = bed.counters();
            let made = (counters.mappings_created, counters.mappings_removed, counters.grants_opened);
            let expected = match less {
                0 => (0, ([1, 1, u64::from(has)], [0; 3], 1)),
                _ => (4, ([0, 0, u64::from(has)], [0; 3], 0)),
            };
            assert_eq!((code, made), expected, "limit {number}, {less} less, {has} mappings before");
        }
    }
}

#[test]
fn a_taken_suggestion_gets_another_port() {
    covers!("6886-4");
    let mut bed = Bed::new(with_nat_pmp().addresses(&POOL[..1]));
    let first = map(&mut bed, I1, Protocol::Udp, 7_000, 5_000, 3_600);
    assert_eq!((first.code, first.port), (0, 5_000));
    let second = map(&mut bed, I2, Protocol::Udp, 7_000, 5_000, 3_600);
    assert!(second.code == 0 && second.port != 5_000);
    let mut full = Bed::new(with_nat_pmp().addresses(&POOL[..1]).ports(5_000, 5_000));
    assert_eq!(map(&mut full, I1, Protocol::Udp, 7_000, 0, 60).code, 0);
    assert_eq!(map(&mut full, I2, Protocol::Udp, 7_000, 0, 60).code, 4, "out of resources");
}

#[test]
fn no_more_is_granted_than_asked_for() {
    covers!("6886-6");
    for (asked, granted) in [(60, 60), (7_200, 7_200), (1_000_000, 86_400)] {
        assert_eq!(map(&mut bed(), I1, Protocol::Udp, 7_000, 0, asked).lifetime, granted);
    }
}

#[test]
fn deleting_is_answered_with_zeros_and_can_be_repeated() {
    covers!("6886-7");
    let mut bed = bed();
    let outside = address(&mut bed, I1).1;
    let mapped = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 600);
    for _ in 0..2 {
        let gone = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 0);
        assert_eq!((gone.code, gone.port, gone.lifetime), (0, 0, 0));
        assert!(!bed.is_open(Protocol::Udp, at(E1, 1), at(outside, mapped.port), at(I1, 7_000)));
    }
    assert_eq!(map(&mut bed, I1, Protocol::Udp, 9, 0, 0).code, 0, "never there");
    let short = map(&mut bed, I1, Protocol::Udp, 7_001, 0, 60);
    bed.advance_secs(61);
    assert!(!bed.is_open(Protocol::Udp, at(E1, 1), at(outside, short.port), at(I1, 7_001)), "expired");
}

/// RFC 6886 §3.4 resets what a destroyed mapping cuts off. Here the mapping stays as long as its
/// connections, as RFC 6887 §15 asks for, so there is nothing to reset.
#[test]
fn a_deleted_or_expired_map_cuts_off_no_connection() {
    covers!("6886-9");
    for is_deleted in [true, false] {
        let mut bed = bed();
        let outside = address(&mut bed, I1).1;
        let mapped = map(&mut bed, I1, Protocol::Tcp, 7_000, 0, 300);
        let (peer, inside, external) = (at(E1, 4_000), at(I1, 7_000), at(outside, mapped.port));
        bed.outside(&build::tcp(peer, external, Flags::SYN).sequence(1_000).mss(1_460).build());
        assert_eq!(destination(&bed.only_inside()), inside);
        let syn_ack = build::tcp(inside, peer, Flags::SYN.union(Flags::ACK)).sequence(5_000).acknowledgment(1_001);
        bed.inside(&syn_ack.mss(1_460).build());
        assert_eq!(source(&bed.only_outside()), external);
        let segment = |from, to, sequence, ack| build::tcp(from, to, Flags::ACK).sequence(sequence).acknowledgment(ack);
        bed.outside(&segment(peer, external, 1_001, 5_001).build());
        bed.only_inside();
        if is_deleted {
            assert_eq!(map(&mut bed, I1, Protocol::Tcp, 7_000, 0, 0).code, 0);
        } else {
            bed.advance_secs(301);
        }
        bed.assert_silent();
        assert!(!bed.is_open(Protocol::Tcp, at(E2, 4_001), external, inside), "nobody else comes in");
        bed.inside(&segment(inside, peer, 5_001, 1_001).payload(b"still").build());
        assert_eq!(source(&bed.only_outside()), external);
        bed.outside(&segment(peer, external, 1_001, 5_006).payload(b"there").build());
        assert_eq!(destination(&bed.only_inside()), inside);
        bed.run_out();
    }
}

#[test]
fn a_forward_is_not_deleted() {
    covers!("6886-7");
    let mut settings = with_nat_pmp();
    settings.forwards = vec![Forward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external: POOL[1],
        ports: (8_080, 8_080),
        inside: I1.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    }];
    assert_eq!(map(&mut Bed::new(settings), I1, Protocol::Tcp, 80, 0, 0).code, 2);
}

#[test]
fn port_zero_deletes_all_of_the_protocol() {
    covers!("6886-8");
    let mut settings = with_nat_pmp();
    settings.port_control.pcp = true;
    let mut bed = Bed::new(settings);
    let outside = address(&mut bed, I1).1;
    let udp: Vec<u16> = (7_000..7_003).map(|port| map(&mut bed, I1, Protocol::Udp, port, 0, 600).port).collect();
    let tcp = map(&mut bed, I1, Protocol::Tcp, 7_010, 0, 600).port;
    assert_eq!(map(&mut bed, I1, Protocol::Udp, 0, 0, 0).code, 0);
    for (external, port) in udp.into_iter().zip(7_000..) {
        assert!(!bed.is_open(Protocol::Udp, at(E1, 1), at(outside, external), at(I1, port)));
    }
    assert!(bed.is_open(Protocol::Tcp, at(E1, 1), at(outside, tcp), at(I1, 7_010)));
    bed.granted(&Ask::map(I1, Protocol::Udp, 7_020));
    assert_eq!(map(&mut bed, I1, Protocol::Udp, 0, 0, 0).code, 2, "one of PCP is left");
}

#[test]
fn other_versions_and_opcodes_are_refused() {
    covers!("6886-10");
    let mut bed = bed();
    let mut ask = |message: &[u8]| bed.answer(at(I1, 40_000), SERVER, message);
    let reply = ask(&[2, 0, 0, 0]).expect("a reply");
    assert_eq!((reply.len(), &reply[..4]), (8, [0, 0, 0, 1].as_slice()));
    assert_eq!(ask(&[0, 128]), None);
    assert_eq!(ask(&[0, 200, 1, 2]), None);
    let reply = ask(&[0, 77, 0, 0, 1, 2, 3, 4]).expect("a reply");
    assert_eq!(reply, [0, 77 | 0x80, 0, 5, 1, 2, 3, 4]);
    // Without room for the code, which RFC 6886 §3.5 wants to be set.
    assert_eq!(ask(&[0, 77]).expect("a reply"), [0, 77 | 0x80, 0, 5]);
    assert_eq!(ask(&[0, 77, 9]).expect("a reply"), [0, 77 | 0x80, 0, 5]);
    assert_eq!(ask(&[0, 1, 0, 0]), None, "too short");
}

#[test]
fn the_epoch_time_counts_and_begins_again_when_state_is_lost() {
    covers!("6886-11");
    let mut bed = bed();
    // RFC 6886 §3.6: a client is alarmed by less than 7/8 of its own time, but for 2 s.
    let alarms = |before: u32, elapsed_s: u32, now: u32| now + 2 < before + elapsed_s * 7 / 8;
    let mut before = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 600).epoch;
    for elapsed_s in [100, 7, 3_600, 40_000] {
        bed.advance_secs(elapsed_s);
        let now = map(&mut bed, I1, Protocol::Udp, 7_000, 0, 600).epoch;
        assert!(now.abs_diff(before + elapsed_s as u32) <= 1 && !alarms(before, elapsed_s as u32, now));
        before = now;
    }
    bed.restore(0, &[]);
    bed.advance_secs(100);
    let after = map(&mut bed, I2, Protocol::Udp, 7_000, 0, 600).epoch;
    assert!((99..=101).contains(&after) && alarms(before, 100, after), "{before} before, {after} after");
}

#[test]
fn a_new_address_is_announced_to_all() {
    covers!("6886-12");
    for (addresses, wanted) in [(&POOL[..1], POOL[0]), (&POOL[..], Ipv4Addr::UNSPECIFIED)] {
        let mut bed = Bed::new(with_nat_pmp().addresses(addresses));
        bed.announce_loss();
        let mut times = Vec::new();
        for step in 0..13_500_u64 {
            bed.advance(Duration::from_millis(10));
            for packet in bed.take_inside() {
                assert_eq!((source(&packet), destination(&packet)), (SERVER, at(Ipv4Addr::new(224, 0, 0, 1), 5_350)));
                let notice = payload(&packet);
                assert_eq!((notice.len(), &notice[..4]), (12, [0, 0x80, 0, 0].as_slice()));
                assert_eq!(Ipv4Addr::from_bits(long(notice, 8)), wanted);
                times.push(step * 10);
            }
        }
        assert_eq!(times.len(), 10);
        let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps[0] >= 250 && gaps.windows(2).all(|two| two[1] + 20 >= 2 * two[0]), "{gaps:?}");
    }
}

#[test]
fn a_changed_address_is_announced_to_all() {
    covers!("6886-12");
    for workers in [1, 8] {
        let settings = with_nat_pmp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        let mut bed = Bed::new(settings.clone()).workers(workers);
        bed.advance_secs(1_000);
        map(&mut bed, I1, Protocol::Udp, 7_000, 0, 7_200);
        bed.reload(settings.clone());
        bed.advance_secs(5);
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new(), "nothing has changed");
        bed.reload(settings.addresses(&POOL[1..2]));
        let mut times = Vec::new();
        for step in 0..13_500_u64 {
            bed.advance(Duration::from_millis(10));
            for packet in bed.take_inside() {
                assert_eq!((source(&packet), destination(&packet)), (SERVER, at(Ipv4Addr::new(224, 0, 0, 1), 5_350)));
                let notice = payload(&packet);
                assert_eq!((notice.len(), &notice[..4]), (12, [0, 0x80, 0, 0].as_slice()));
                assert_eq!(Ipv4Addr::from_bits(long(notice, 8)), POOL[1]);
                assert!(u64::from(long(notice, 4)).abs_diff(step / 100) <= 1, "seconds since the change");
                times.push(step * 10);
            }
        }
        assert_eq!(times.len(), 10, "{workers} workers");
        let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps[0] >= 250 && gaps.windows(2).all(|two| two[1] + 20 >= 2 * two[0]), "{gaps:?}");
        let again = map(&mut bed, I2, Protocol::Udp, 7_000, 0, 7_200);
        assert!(again.epoch.abs_diff(135) <= 1, "{}: replies agree with the notices", again.epoch);
    }
}

#[test]
fn without_an_address_the_field_is_zero() {
    covers!("6886-13");
    let mut settings = with_nat_pmp().addresses(&POOL[..1]).ports(5_000, 5_000);
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 0, 0], 24)];
    let mut bed = Bed::new(settings);
    assert_eq!(address(&mut bed, Ipv4Addr::new(100, 65, 0, 1)), (3, Ipv4Addr::UNSPECIFIED), "no subscriber");
    assert_eq!(address(&mut bed, I1), (0, POOL[0]));
}

#[test]
fn nat_pmp_alone_answers_no_pcp_and_the_other_way_round() {
    let mut bed = bed();
    let reply = bed.answer(at(I1, 40_000), SERVER, &Ask::map(I1, Protocol::Udp, 7_000).message());
    assert_eq!(reply.expect("a reply")[..4], [0, 0, 0, 1]);
    let mut settings = with_nat_pmp();
    (settings.port_control.nat_pmp, settings.port_control.pcp) = (false, true);
    let reply = Bed::new(settings).answer(at(I1, 40_000), SERVER, &[0, 0]).expect("a reply");
    assert_eq!((reply[0], reply[3], reply.len()), (2, 1, 24), "version 2 is spoken");
}
