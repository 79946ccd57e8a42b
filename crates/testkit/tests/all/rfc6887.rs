//! RFC 6887, the Port Control Protocol.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Pooling;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SUCCESS: u8 = 0;
const UNSUPP_VERSION: u8 = 1;
const NOT_AUTHORIZED: u8 = 2;
const MALFORMED_REQUEST: u8 = 3;
const UNSUPP_OPCODE: u8 = 4;
const UNSUPP_OPTION: u8 = 5;
const MALFORMED_OPTION: u8 = 6;
const NO_RESOURCES: u8 = 8;
const UNSUPP_PROTOCOL: u8 = 9;
const USER_EX_QUOTA: u8 = 10;
const CANNOT_PROVIDE_EXTERNAL: u8 = 11;
const ADDRESS_MISMATCH: u8 = 12;
const EXCESSIVE_REMOTE_PEERS: u8 = 13;

const BOTH: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

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

/// One for each way to give out ports, with the same address inside each.
fn all_ways() -> [(&'static str, Settings); 4] {
    let two =
        Blocks { size: BlockSize::of_ports(64).expect("a size"), per_subscriber_max: 4, idle: Duration::from_secs(60) };
    let with = |change: &dyn Fn(&mut nat::settings::Pool)| {
        let mut settings = with_pcp();
        change(&mut settings.pools[0]);
        settings
    };
    let few = || vec![topology::prefix([100, 64, 0, 0], 24)];
    [
        ("ports", with_pcp()),
        ("blocks", with(&|pool| pool.allocation = Allocation::Blocks(two))),
        (
            "slices",
            with(&|pool| {
                pool.subscribers = few();
                pool.allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: two };
            }),
        ),
        (
            "one to one",
            with(&|pool| {
                pool.subscribers = few();
                pool.addresses = (0..=255).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
                pool.one_to_one = true;
            }),
        ),
    ]
}

#[test]
fn a_granted_port_is_reached_from_outside_and_by_hairpin() {
    covers!("6887-11.3b", "6888-REQ-9");
    for (way, settings) in all_ways() {
        for workers in [1, 2, 8] {
            let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
            for protocol in BOTH {
                let external = bed.granted(&Ask::map(I1, protocol, 7_000));
                assert!(bed.is_open(protocol, at(E1, 9_000), external, at(I1, 7_000)), "{way}, {workers} workers");
                assert!(bed.is_open(protocol, at(E2, 9_000), external, at(I1, 7_000)), "{way}, {workers} workers");
                let packet = match protocol {
                    Protocol::Tcp => build::tcp(at(I2, 5), external, Flags::SYN).sequence(1).build(),
                    _ => build::udp(at(I2, 5), external).payload(b"neighbour").build(),
                };
                bed.inside(&packet);
                assert_eq!(destination(&bed.only_inside()), at(I1, 7_000), "{way}, {workers} workers");
            }
            bed.run_out();
        }
    }
}

#[test]
fn filters_apply_in_the_order_of_the_message() {
    covers!("6887-7.3a", "6887-13.3a");
    let mut bed = bed();
    let none = at(Ipv4Addr::UNSPECIFIED, 0);
    let external = bed.granted(&udp(7_000).filter(0, none).filter(128, at(E1, 0)));
    assert!(bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 7_000)));
    assert!(!bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)));
    bed.granted(&udp(7_000).filter(128, at(E1, 0)).filter(0, none));
    assert!(bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)), "no filter is left");
}

#[test]
fn filters_are_prefixes_of_ipv4_and_a_few() {
    covers!("6887-13.3b");
    for (length, code) in [(0, 0), (95, 6), (96, 0), (128, 0), (129, 6), (1, 6)] {
        let told = bed().pcp(&udp(7_000).filter(length, at(E1, 0)));
        assert_eq!(told.code, code, "a prefix of {length}");
    }
    let mut bed = bed();
    let many = (1..=5).fold(udp(7_000), |ask, last| ask.filter(128, at(Ipv4Addr::new(198, 51, 100, last), 0)));
    assert_eq!(bed.pcp(&many).code, EXCESSIVE_REMOTE_PEERS);
    assert!(bed.mappings().is_empty(), "nothing has changed");
    // Nor what is there.
    let known = bed.pcp(&udp(7_005).filter(128, at(E1, 0)));
    let more = (2..=6).fold(udp(7_005), |ask, last| ask.filter(128, at(Ipv4Addr::new(198, 51, 100, last), 0)));
    assert_eq!(bed.pcp(&more.lifetime(9_000)).code, EXCESSIVE_REMOTE_PEERS);
    assert!(bed.is_open(Protocol::Udp, at(E1, 1), known.external, at(I1, 7_005)));
    assert!(!bed.is_open(Protocol::Udp, at(E2, 1), known.external, at(I1, 7_005)));
    assert_eq!(bed.grants().first().map(|grant| grant.left.as_secs()), Some(600), "its lifetime");
    assert_eq!(bed.pcp(&udp(7_000).filter(128, at(E1, 0)).lifetime(0)).code, MALFORMED_OPTION);
    let external = bed.granted(&udp(7_000).filter(128, at(E1, 80)));
    assert!(bed.is_open(Protocol::Udp, at(E1, 80), external, at(I1, 7_000)));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 81), external, at(I1, 7_000)), "another port");
}

#[test]
fn an_error_changes_nothing() {
    covers!("6887-7.3b");
    let mut bed = bed();
    let told = bed.pcp(&udp(7_000).filter(128, at(E1, 0)).option(3, &[0; 19]));
    assert_eq!(told.code, MALFORMED_OPTION);
    assert!(bed.mappings().is_empty() && bed.ports_used() == 0);
    let sent = udp(7_000).filter(128, at(E1, 0)).option(3, &[0; 19]).message();
    assert_eq!((told.message.len(), &told.message[24..]), (sent.len(), &sent[24..]), "a copy of the request");
}

#[test]
fn an_option_may_be_repeated_only_if_it_says_so() {
    covers!("6887-7.3c");
    let told = bed().pcp(&udp(7_000).suggest(at(POOL[0], 5_000)).prefer_failure().prefer_failure());
    assert_eq!(told.code, MALFORMED_OPTION);
}

#[test]
fn an_option_beyond_the_datagram_is_malformed() {
    covers!("6887-7.3d");
    let mut ask = udp(7_000);
    ask.options = vec![200, 0, 0, 8, 1, 2, 3, 4];
    assert_eq!(bed().pcp(&ask).code, MALFORMED_OPTION);
}

#[test]
fn unknown_options_are_refused_or_skipped_by_their_code() {
    covers!("6887-7.3e", "6887-7.3f");
    assert_eq!(bed().pcp(&udp(7_000).option(100, &[])).code, UNSUPP_OPTION);
    assert_eq!(bed().pcp(&udp(7_000).option(3, &[0; 19])).code, MALFORMED_OPTION);
    let told = bed().pcp(&udp(7_000).option(200, &[1, 2, 3, 4]));
    assert_eq!((told.code, told.options()), (SUCCESS, Vec::new()));
}

#[test]
fn many_options_never_make_a_reply_too_long() {
    covers!("6887-7.3g");
    let mut settings = with_pcp();
    settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 0], 24)];
    let mut bed = Bed::new(settings);
    // All that a reply repeats, and what it does not: options of unknown codes.
    type Kind = (&'static str, u8, fn(Ask) -> Ask);
    let kinds: [Kind; 5] = [
        ("unknown", SUCCESS, |ask| ask.option(200, &[1; 8])),
        ("a filter again", SUCCESS, |ask| ask.filter(128, at(E1, 0))),
        ("a filter taken back", SUCCESS, |ask| ask.filter(0, at(Ipv4Addr::UNSPECIFIED, 0))),
        ("once at most", MALFORMED_OPTION, Ask::prefer_failure),
        ("once at most", MALFORMED_OPTION, |ask| ask.third_party(I2)),
    ];
    for (kind, code, more) in kinds {
        let mut ask = udp(7_000).suggest(at(POOL[0], 9_000)).set(2, false);
        let mut sizes = 0;
        while ask.message().len() <= 1_100 {
            let told = bed.pcp(&ask);
            assert!(told.message.len() <= ask.message().len().max(60), "{kind}: {} bytes", told.message.len());
            assert!(sizes < 2 || told.code == code, "{kind}: {} after {sizes}", told.code);
            ask = more(ask);
            sizes += 1;
            // Requests are limited to a rate.
            bed.advance_secs(1);
        }
        assert!(sizes > 40, "{kind}: {sizes} sizes");
        // One byte more than a reply may have is refused as a whole.
        let before = bed.grants();
        let told = bed.pcp(&ask.nonce(9));
        assert_eq!((told.code, told.message.len()), (MALFORMED_REQUEST, 1_100), "{kind}");
        assert_eq!(bed.grants(), before, "{kind}: nothing has changed");
    }
}

#[test]
fn only_an_inside_address_of_natrix_answers() {
    covers!("6887-8.2a", "6886-1");
    let mut settings = with_pcp();
    settings.port_control.nat_pmp = true;
    let mut bed = Bed::new(settings);
    for message in [udp(7_000).message(), vec![0, 0]] {
        assert_eq!(bed.answer(at(I1, 40_000), at(OWN_OUTSIDE, 5_351), &message), None);
        for to in [at(OWN_OUTSIDE, 5_351), at(OWN_INSIDE, 5_351), at(POOL[0], 5_351)] {
            bed.outside(&build::udp(at(E1, 40_000), to).payload(&message).build());
            bed.assert_silent();
        }
        assert_eq!(bed.answer(at(I1, 40_000), at(POOL[0], 5_351), &message), None, "not by hairpin");
    }
    assert!(bed.mappings().is_empty());
}

#[test]
fn malformed_datagrams_meet_the_checks_in_order() {
    covers!("6887-8.2b");
    let mut bed = bed();
    let whole = udp(7_000).message();
    let with = |version: u8, opcode: u8, length: usize| {
        let mut message = whole.clone();
        (message[0], message[1]) = (version, opcode);
        message.resize(length, 0);
        message
    };
    const MAP: u8 = 1;
    const REPLY: u8 = 0x80 | MAP;
    for (what, message, code) in [
        ("nothing", with(2, MAP, 0), None),
        ("one octet", with(2, MAP, 1), None),
        ("one octet of another version", with(1, MAP, 1), None),
        ("a reply", with(2, REPLY, 60), None),
        ("a reply of another version", with(1, REPLY, 60), None),
        ("a reply of an unknown opcode, too long", with(1, 0xff, 1_200), None),
        ("another version", with(1, MAP, 60), Some(UNSUPP_VERSION)),
        ("another version in two octets", with(1, MAP, 2), Some(UNSUPP_VERSION)),
        ("another version, too long and uneven", with(3, 96, 1_201), Some(UNSUPP_VERSION)),
        ("two octets", with(2, MAP, 2), None),
        ("no whole header", with(2, MAP, 23), None),
        ("no whole header, unknown opcode", with(2, 96, 20), None),
        ("too long", with(2, MAP, 1_104), Some(MALFORMED_REQUEST)),
        ("too long, unknown opcode", with(2, 96, 1_104), Some(MALFORMED_REQUEST)),
        ("not a multiple of four", with(2, MAP, 58), Some(MALFORMED_REQUEST)),
        ("not a multiple of four, unknown opcode", with(2, 96, 26), Some(MALFORMED_REQUEST)),
        ("too short for MAP", with(2, MAP, 56), Some(MALFORMED_REQUEST)),
        ("too short for PEER", with(2, 2, 76), Some(MALFORMED_REQUEST)),
        ("unknown opcode", with(2, 96, 24), Some(UNSUPP_OPCODE)),
        ("as short as ANNOUNCE may be", Ask::announce(I1).message(), Some(SUCCESS)),
    ] {
        let reply = bed.answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), &message);
        assert_eq!(reply.as_ref().map(|reply| reply[3]), code, "{what}");
        if let Some(reply) = reply {
            assert_eq!(reply.len(), message.len().next_multiple_of(4).clamp(24, 1_100), "{what}");
            assert_eq!(reply[0], 2, "{what}: the version that is spoken");
        }
        assert!(bed.grants().is_empty() && bed.mappings().is_empty(), "{what}: nothing has changed");
    }
    // The longest one is served.
    let longest = udp(7_000).option(200, &[0; 1_036]);
    assert_eq!(longest.message().len(), 1_100);
    assert_eq!(bed.pcp(&longest).code, SUCCESS);
}

#[test]
fn a_long_request_is_answered_with_its_beginning() {
    covers!("6887-8.2b", "6887-8.2f");
    let mut long = udp(7_000).message();
    long.resize(1_300, 7);
    let reply = bed().answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), &long).expect("a reply");
    assert_eq!((reply.len(), &reply[12..]), (1_100, &long[12..1_100]));
    // What is no number of words is padded with zeros.
    let odd = &udp(7_000).message()[..58];
    let reply = bed().answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), odd).expect("a reply");
    assert_eq!((reply.len(), &reply[12..58], &reply[58..]), (60, &odd[12..], &[0, 0][..]));
    let told = Told::of(&reply);
    assert_eq!((reply[..3].to_vec(), told.code, told.lifetime), (vec![2, 0x81, 0], MALFORMED_REQUEST, 1_800));
}

/// Of PCP and NAT-PMP, whatever they say: the bed compares each reply with its request.
#[test]
fn no_reply_is_longer_than_its_request_or_60_bytes() {
    let mut settings = with_pcp();
    settings.port_control.nat_pmp = true;
    let mut bed = Bed::new(settings);
    let sound = [udp(7_000).message(), Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).message()];
    let other_heads = [[2, 0], [2, 96], [1, 1], [3, 96], [0, 0], [0, 1], [0, 2], [0, 9]];
    let mut replies = 0;
    for length in 0..=1_104 {
        let cut = |head: Option<[u8; 2]>, body: &[u8]| {
            let mut message = [body, &[7; 1_104][..]].concat();
            if let Some(head) = head {
                message[..2].copy_from_slice(&head);
            }
            message.truncate(length);
            message
        };
        let messages = sound.iter().map(|body| cut(None, body));
        let messages = messages.chain(other_heads.iter().map(|head| cut(Some(*head), &sound[0])));
        for message in messages.collect::<Vec<_>>() {
            replies += u32::from(bed.answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), &message).is_some());
        }
        bed.advance(Duration::from_millis(50));
    }
    assert!(replies > 9_000, "{replies} replies");
}

#[test]
fn a_forged_client_address_is_refused() {
    covers!("6887-8.2c");
    let told = bed().pcp(&Ask { client: I2, ..udp(7_000) });
    assert_eq!((told.code, told.lifetime), (ADDRESS_MISMATCH, 1_800));
}

#[test]
fn an_unknown_opcode_is_refused_with_its_payload() {
    covers!("6887-8.2d", "6887-8.2f");
    let mut message = udp(7_000).message();
    message[1] = 96;
    message.truncate(64);
    message.extend([9; 4]);
    let reply = bed().answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), &message).expect("a reply");
    assert_eq!((reply[0], reply[1], reply[3]), (2, 96 | 0x80, UNSUPP_OPCODE));
    assert_eq!(reply[12..], message[12..], "the address of the client and all that follows");
}

#[test]
fn a_flood_of_requests_leaves_traffic_alone() {
    covers!("6887-8.2e");
    let mut bed = bed();
    let external = bed.open_udp(at(I2, 5_000), at(E1, 53));
    for number in 0..20_000_u32 {
        bed.inside(&Ask { port: number as u16, ..udp(0) }.packet());
    }
    let counters = bed.counters();
    assert!(counters.port_control_limited > 19_000, "{} limited", counters.port_control_limited);
    assert!(bed.mappings().len() < 66);
    bed.take_inside();
    assert!(bed.udp_reaches(at(E1, 53), external, at(I2, 5_000)));
    bed.inside(&Ask::map(I3, Protocol::Udp, 1).packet());
    assert_eq!(Told::of(payload(&bed.only_inside())).code, SUCCESS, "another client is served");
}

/// Of spoofed sources, forged clients, third parties, and one that scans ports: established traffic
/// of others loses nothing, whatever the number of workers.
#[test]
fn floods_of_any_kind_leave_established_traffic_alone() {
    covers!("6887-8.2e");
    let run = |workers: usize| {
        let mut settings = with_pcp().limits(|limits| {
            (limits.mappings_max, limits.extra_sessions_max, limits.subscribers_max) = (6_000, 6_000, 2_000);
        });
        settings.port_control.nat_pmp = true;
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 12], 32)];
        let mut bed = Bed::new(settings).workers(workers);
        let flows: Vec<_> = (0..40_u16)
            .map(|number| {
                let (inside, remote) = (at(if number % 2 == 0 { I1 } else { I2 }, 5_000 + number), at(E1, 53));
                let external =
                    if number % 4 < 2 { bed.open_udp(inside, remote) } else { bed.connect(inside, at(E1, 80)) };
                (number % 4 < 2, inside, external)
            })
            .collect();
        let victim = |number: u32| Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(100, 64, 32, 0)) + number);
        for number in 0..24_000_u32 {
            let ask = Ask { port: 1_024 + (number % 60_000) as u16, ..Ask::map(victim(number), Protocol::Udp, 0) };
            let packet = match number % 6 {
                0 => ask.packet(),
                1 => Ask { from: at(I3, 40_000), ..ask }.packet(),
                // One host may, the other may not.
                2 => Ask { from: at(I3, 40_000), client: I3, ..ask }.third_party(victim(number)).packet(),
                3 => Ask { from: at(I1, 40_000), client: I1, ..ask }.third_party(I2).packet(),
                4 => Ask { from: at(I3, 40_001), client: I3, ..ask }
                    .suggest(at(POOL[0], 1_024 + (number % 60_000) as u16))
                    .prefer_failure()
                    .packet(),
                _ => {
                    let request = [0, 1, 0, 0, (number >> 8) as u8, number as u8, 0, 0, 0, 0, 2, 0];
                    build::udp(at(victim(number), 40_000), at(OWN_INSIDE, 5_351)).payload(&request).build()
                }
            };
            bed.inside(&packet);
            if number % 64 == 0 {
                for reply in bed.take_inside() {
                    assert!(payload(&reply).len() <= 100, "no reply is longer than a request");
                }
                assert!(bed.take_outside().is_empty(), "nothing goes outside");
                bed.advance(Duration::from_micros(500));
            }
            if number % 480 == 0 {
                bed.take_inside();
                for (is_udp, inside, external) in &flows {
                    let remote = at(E1, if *is_udp { 53 } else { 80 });
                    let (out, back) = if *is_udp {
                        (build::udp(*inside, remote), build::udp(remote, *external))
                    } else {
                        let segment = |from, to| build::tcp(from, to, Flags::ACK).sequence(1).acknowledgment(1);
                        (segment(*inside, remote), segment(remote, *external))
                    };
                    bed.inside(&out.build());
                    assert_eq!(source(&bed.only_outside()), *external);
                    bed.outside(&back.build());
                    assert_eq!(destination(&bed.only_inside()), *inside);
                }
            }
        }
        let counters = bed.counters();
        assert!(counters.port_control_limited > 0, "{} limited", counters.port_control_limited);
        let of_scanner = bed.grants().iter().filter(|grant| grant.internal.address == I3).count();
        assert!(of_scanner <= 64, "{of_scanner} grants of the host that scans");
        bed.check_books();
        bed.run_out();
        assert!(bed.grants().is_empty());
        assert_eq!(bed.ports_used(), 0);
    };
    [1, 2, 8].into_iter().for_each(run);
}

#[test]
fn a_reply_repeats_the_request_and_adds_what_was_assigned() {
    covers!("6887-8.2g", "6887-11.3a");
    let ask = Ask::map(I1, Protocol::Tcp, 7_000).filter(128, at(E1, 80));
    let mut bed = bed();
    let told = bed.pcp(&ask);
    let sent = ask.message();
    assert_eq!(told.message[..4], [2, 0x81, 0, 0]);
    assert_eq!(told.message[12..24], [0; 12], "reserved");
    assert_eq!(told.message[24..42], sent[24..42], "nonce, protocol and internal port");
    assert!(POOL.contains(told.external.ip()) && told.external.port() >= 1_024);
    assert_eq!(told.message[44..60], pcp::mapped(told.external.ip().to_bits()), "an IPv4 address within IPv6");
    assert_eq!(told.message[60..], sent[60..], "the options");
    assert_eq!((told.lifetime, told.code), (600, SUCCESS));
}

#[test]
fn the_epoch_time_counts_seconds_in_every_reply() {
    covers!("6887-8.5a");
    let mut bed = bed();
    let first = bed.pcp(&udp(7_000)).epoch;
    for step in 1..=3 {
        bed.advance_secs(33);
        let told = bed.pcp(&if step == 2 { Ask { client: I2, ..udp(7_000) } } else { Ask::announce(I1) });
        assert!(told.epoch.abs_diff(first + 33 * step) <= 1, "errors have it, too");
    }
}

/// Whether a client takes an epoch time for one of the same server that has lost nothing. Both are
/// the client's clock and the server's epoch time (RFC 6887 §8.5).
fn is_epoch_valid(before: (u64, u32), now: (u64, u32)) -> bool {
    let (client, server) = (now.0 - before.0, u64::from(now.1.saturating_sub(before.1)));
    now.1 + 1 >= before.1 && client + 2 >= server - server / 16 && server + 2 >= client - client / 16
}

#[test]
fn no_client_is_alarmed_for_a_day_with_restarts() {
    covers!("6887-8.5d", "6887-8.5b");
    let mut bed = bed();
    let client_s = |bed: &Bed| bed.now().as_micros() / 1_000_000;
    let ask = udp(7_000).lifetime(86_400);
    let first = bed.pcp(&ask);
    let mut before = (client_s(&bed), first.epoch);
    for step in 1..=288_u32 {
        bed.advance_secs(300);
        if step % 100 == 0 {
            // An instance that was not there for three seconds has the grants and the time it kept.
            let (grants, kept) = (bed.grants(), before.1 + 300);
            let back = bed.now() + Duration::from_secs(3);
            bed = Bed::new(with_pcp()).clock(back);
            bed.restore(kept + 3, &grants);
        }
        let told = bed.pcp(&ask);
        assert_eq!(told.external, first.external, "step {step}");
        let now = (client_s(&bed), told.epoch);
        assert!(is_epoch_valid(before, now), "step {step}: {before:?}, then {now:?}");
        before = now;
    }
    assert!(before.1 > 86_000, "a day has passed");
    // The same client notices a loss.
    let back = bed.now() + Duration::from_secs(3);
    bed = Bed::new(with_pcp()).clock(back);
    bed.restore(0, &[]);
    let now = (client_s(&bed), bed.pcp(&ask).epoch);
    assert!(!is_epoch_valid(before, now) && now.1 <= 1, "{before:?}, then {now:?}");
}

#[test]
fn another_version_is_answered_with_the_one_that_is_spoken() {
    covers!("6887-9");
    for version in [0, 1, 3, 255] {
        let mut message = udp(7_000).message();
        message[0] = version;
        let reply = bed().answer(at(I1, 40_000), at(OWN_INSIDE, 5_351), &message).expect("a reply");
        assert_eq!((reply[0], reply[3]), (2, UNSUPP_VERSION));
    }
}

#[test]
fn an_empty_suggestion_gets_the_address_of_other_mappings() {
    covers!("6887-10", "6887-11.3k");
    let mut bed = bed();
    let first = bed.granted(&udp(7_000));
    let second = bed.granted(&udp(7_001));
    assert_eq!(first.ip(), second.ip());
    let free = at(*first.ip(), first.port() ^ 1);
    assert_eq!(bed.granted(&udp(7_002).suggest(free)), free);
    // What packets made, and what the configuration has: a static mapping on any address of the
    // pool.
    let mut bed = Bed::new(with_pcp());
    let external = bed.open_udp(at(I1, 5_000), at(E1, 53));
    assert_eq!(bed.granted(&udp(7_000)).ip(), external.ip());
    for address in POOL {
        for workers in [1, 8] {
            let mut bed = Bed::new(with_forward(address)).workers(workers).steering(Steering::Random);
            for protocol in BOTH {
                assert_eq!(*bed.granted(&Ask::map(I1, protocol, 7_000)).ip(), address, "{workers} workers");
            }
        }
    }
}

/// A static mapping of `I1`, port 80, at this address.
fn with_forward(external: Ipv4Addr) -> Settings {
    let mut settings = with_pcp();
    settings.forwards.push(Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external,
        ports: (80, 80),
        inside: I1.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    });
    settings
}

#[test]
fn a_suggested_address_is_honoured_beside_others() {
    covers!("6887-10");
    // Beside a static mapping elsewhere, in pools of both kinds.
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        for address in POOL {
            let mut settings = with_forward(POOL[0]);
            settings.pools[0].pooling = pooling;
            let mut bed = Bed::new(settings);
            let wish = at(address, 40_000);
            assert_eq!(bed.granted(&udp(7_000).suggest(wish)), wish, "{pooling:?}");
        }
    }
    // And beside mappings of packets and grants, where a subscriber may have several addresses.
    let mut settings = with_pcp();
    settings.pools[0].pooling = Pooling::Arbitrary;
    let mut bed = Bed::new(settings);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    for address in POOL {
        let given = bed.granted(&udp(7_000 + address.to_bits() as u16 % 256).suggest(at(address, 40_000)));
        assert_eq!(given, at(address, 40_000));
    }
    // A paired subscriber has one (RFC 4787 REQ-2), and keeps it.
    let mut bed = Bed::new(with_pcp());
    let paired = bed.open_udp(at(I1, 5_000), at(E1, 53));
    for address in POOL {
        let given = bed.granted(&udp(7_000 + address.to_bits() as u16 % 256).suggest(at(address, 40_000)));
        assert_eq!(given.ip(), paired.ip());
    }
}

#[test]
fn after_a_loss_a_client_gets_its_endpoint_back() {
    covers!("6887-11.3k");
    for address in POOL {
        for (way, settings) in all_ways().into_iter().take(2) {
            let mut bed = Bed::new(settings);
            assert_eq!(bed.granted(&udp(7_000).suggest(at(address, 40_000))), at(address, 40_000), "{way}");
            assert_eq!(*bed.granted(&udp(7_001)).ip(), address, "{way}: and is paired with its address");
            bed.run_out();
        }
    }
}

#[test]
fn a_suggestion_is_honoured_in_blocks_and_slices() {
    covers!("6887-11.3k");
    for (way, settings) in all_ways() {
        let mut bed = Bed::new(settings);
        let first = bed.granted(&udp(7_000));
        let free = at(*first.ip(), first.port() ^ 1);
        let given = bed.granted(&udp(7_002).suggest(free));
        assert_eq!(given, if way == "one to one" { at(*first.ip(), 7_002) } else { free }, "{way}");
    }
}

#[test]
fn other_protocols_and_all_ports_are_not_mapped() {
    covers!("6887-11.3b", "6887-11.3c", "6887-11.3d");
    let code = |protocol, port| bed().pcp(&Ask { protocol, ..udp(port) }).code;
    assert_eq!([code(132, 7_000), code(1, 7_000)], [UNSUPP_PROTOCOL; 2]);
    assert_eq!([code(17, 0), code(0, 0)], [UNSUPP_PROTOCOL; 2]);
    assert_eq!(code(0, 7_000), MALFORMED_REQUEST);
}

#[test]
fn another_nonce_is_refused_for_as_long_as_the_mapping_lasts() {
    covers!("6887-11.3e");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    bed.advance_secs(100);
    let told = bed.pcp(&udp(7_000).nonce(1));
    assert_eq!((told.code, told.lifetime), (NOT_AUTHORIZED, 500));
    assert_eq!(bed.granted(&udp(7_000)), external);
}

#[test]
fn a_forward_is_returned_to_every_nonce() {
    covers!("6887-11.3f", "6887-15.1b");
    let mut settings = with_pcp();
    settings.forwards = vec![Forward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external: POOL[1],
        ports: (8_080, 8_080),
        inside: I1.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    }];
    let mut bed = Bed::new(settings);
    for nonce in [1, 2] {
        let told = bed.pcp(&Ask::map(I1, Protocol::Tcp, 80).nonce(nonce));
        assert_eq!((told.code, told.external, told.lifetime), (SUCCESS, at(POOL[1], 8_080), u32::MAX));
    }
    assert_eq!(bed.pcp(&Ask::map(I1, Protocol::Tcp, 80).lifetime(0)).code, NOT_AUTHORIZED);
    let other = Ask::map(I1, Protocol::Tcp, 80).suggest(at(POOL[1], 80)).prefer_failure();
    assert_eq!(bed.pcp(&other).code, CANNOT_PROVIDE_EXTERNAL);
}

#[test]
fn prefer_failure_needs_a_mapping_and_a_port() {
    covers!("6887-11.3g", "6887-13.2a");
    let code = |ask: Ask| bed().pcp(&ask.prefer_failure()).code;
    assert_eq!(code(udp(7_000).suggest(at(POOL[0], 9_000)).lifetime(0)), MALFORMED_OPTION);
    assert_eq!(code(udp(7_000).suggest(at(POOL[0], 0))), MALFORMED_OPTION);
}

#[test]
fn prefer_failure_refuses_anything_else() {
    covers!("6887-11.3h");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    let other = at(*external.ip(), external.port() ^ 1);
    assert_eq!(bed.pcp(&udp(7_000).suggest(other).prefer_failure()).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.pcp(&udp(7_000).suggest(external).prefer_failure()).external, external);
    assert_eq!(bed.pcp(&udp(7_001).suggest(external).prefer_failure()).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.granted(&udp(7_001).suggest(other).prefer_failure()), other);
    assert_eq!(bed.mappings().len(), 2);
}

#[test]
fn a_renewal_keeps_the_external_endpoint() {
    covers!("6887-11.3i");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000).lifetime(300));
    bed.advance_secs(200);
    let told = bed.pcp(&udp(7_000).suggest(at(*external.ip(), external.port() ^ 1)).lifetime(1_000));
    assert_eq!((told.external, told.lifetime), (external, 1_000));
    bed.advance_secs(900);
    assert!(bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)));
    bed.advance_secs(101);
    assert!(!bed.is_open(Protocol::Udp, at(E2, 2), external, at(I1, 7_000)));
}

#[test]
fn a_mapping_of_packets_is_taken_over_and_outlives_its_grant() {
    covers!("6887-11.3j");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    assert_eq!(bed.granted(&udp(7_000)), external);
    assert!(bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)));
    bed.pcp(&udp(7_000).lifetime(0));
    assert!(!bed.is_open(Protocol::Udp, at(E2, 2), external, at(I1, 7_000)));
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)), "the session lives");
}

#[test]
fn an_impossible_suggestion_gets_another_port() {
    covers!("6887-11.3l", "6887-11.3m");
    let mut bed = bed();
    let taken = bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    let bad = [
        at(Ipv4Addr::LOCALHOST, 9_000),
        at(Ipv4Addr::new(224, 0, 0, 1), 9_000),
        at(Ipv4Addr::new(198, 51, 100, 9), 9_000),
        taken,
        at(*taken.ip(), 5_350),
        at(*taken.ip(), 5_351),
        at(*taken.ip(), 80),
    ];
    for (port, suggested) in (7_100..).zip(bad) {
        let given = bed.granted(&udp(port).suggest(suggested));
        assert!(given != suggested && POOL.contains(given.ip()) && !(5_350..=5_351).contains(&given.port()));
    }
}

#[test]
fn the_ports_of_pcp_are_never_given() {
    covers!("6887-11.3m");
    let mut bed = Bed::new(with_pcp().ports(5_348, 5_353).addresses(&POOL[..1]));
    let mut given: Vec<u16> = Vec::new();
    for port in 7_000..7_008 {
        let told = bed.pcp(&udp(port));
        given.extend((told.code == SUCCESS).then(|| told.external.port()));
    }
    given.sort_unstable();
    assert_eq!(given, [5_348, 5_349, 5_352, 5_353]);
}

#[test]
fn only_the_protocol_that_was_asked_for_is_mapped() {
    covers!("6887-11.3n");
    let mut bed = bed();
    let external = bed.granted(&Ask::map(I1, Protocol::Tcp, 7_000));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 7_000)));
    assert!(bed.is_open(Protocol::Tcp, at(E1, 1), external, at(I1, 7_000)));
}

#[test]
fn a_subscriber_has_a_limited_number_of_mappings() {
    covers!("6887-11.3o");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 3;
    let mut bed = Bed::new(settings);
    let codes: Vec<u8> = (7_000..7_004).map(|port| bed.pcp(&udp(port)).code).collect();
    assert_eq!(codes, [SUCCESS, SUCCESS, SUCCESS, USER_EX_QUOTA]);
    assert_eq!(bed.pcp(&Ask::map(I2, Protocol::Udp, 7_000)).code, SUCCESS);
    bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(bed.pcp(&udp(7_003)).code, SUCCESS, "one was given up");
}

#[test]
fn grants_count_against_the_ports_of_the_subscriber() {
    covers!("6887-11.3o");
    let mut settings = with_pcp();
    settings.subscriber.ports_max = [2, 2, 2];
    let mut bed = Bed::new(settings);
    bed.open_udp(at(I1, 6_999), at(E1, 53));
    let told: Vec<u8> = (7_000..7_002).map(|port| bed.pcp(&udp(port)).code).collect();
    assert_eq!(told, [SUCCESS, USER_EX_QUOTA]);
    assert_eq!(bed.pcp(&udp(7_001)).lifetime, 30, "a short error");
    bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(bed.pcp(&udp(7_001)).code, SUCCESS, "a port held down for its client makes room");
}

#[test]
fn a_peer_reply_repeats_the_request() {
    covers!("6887-12.3a", "6887-12.3c");
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    let mut bed = bed();
    let told = bed.pcp(&ask);
    let sent = ask.message();
    assert_eq!((told.code, told.message.len()), (SUCCESS, 80));
    assert_eq!((&told.message[24..42], &told.message[60..]), (&sent[24..42], &sent[60..]));
    assert!(bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 54), told.external, at(I1, 7_000)), "only its peer");
    assert_eq!(bed.open_udp(at(I1, 7_000), at(E1, 53)), told.external, "packets use it");
}

#[test]
fn a_bad_peer_is_malformed() {
    covers!("6887-12.3b");
    for remote in [at(Ipv4Addr::LOCALHOST, 53), at(Ipv4Addr::new(224, 0, 0, 1), 53), at(E1, 0)] {
        assert_eq!(bed().pcp(&Ask::peer(I1, Protocol::Udp, 7_000, remote)).code, MALFORMED_REQUEST);
    }
}

#[test]
fn a_peer_suggestion_is_all_or_nothing() {
    covers!("6887-12.3d", "6887-12.3c");
    let mut bed = bed();
    let taken = bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    let before = bed.mappings().len();
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    assert_eq!(bed.pcp(&ask.clone().suggest(taken)).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.mappings().len(), before, "no state");
    let own = bed.granted(&udp(7_001));
    let free = at(*own.ip(), own.port() ^ 1);
    assert_eq!(bed.pcp(&ask.suggest(free)).external, free);
}

#[test]
fn a_peer_of_an_existing_flow_gets_its_endpoint() {
    covers!("6887-12.3e", "6887-12.3f");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    for lifetime in [600, 1_200] {
        let told = bed.pcp(&ask.clone().suggest(at(POOL[0], 9)).lifetime(lifetime));
        assert_eq!((told.code, told.external, told.lifetime), (SUCCESS, external, lifetime));
    }
    assert_eq!(bed.pcp(&ask.nonce(9)).code, NOT_AUTHORIZED);
}

#[test]
fn a_peer_outlives_the_idle_time_and_then_is_like_any_other() {
    covers!("6887-12.3g", "6887-12.3h");
    let mut bed = bed();
    let idle = bed.settings().timeouts.udp.as_micros() / 1_000_000;
    let told = bed.pcp(&Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).lifetime(3_600));
    assert!(u64::from(told.lifetime) > idle);
    bed.open_udp(at(I1, 7_000), at(E1, 53));
    bed.advance_secs(3_000);
    assert!(bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
    bed.advance_secs(600 + idle + 10);
    assert!(!bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
}

/// Idle, a mapping without a PEER is gone after this time.
fn idle_secs(bed: &Bed) -> u64 {
    bed.settings().timeouts.udp.as_micros() / 1_000_000 + 10
}

#[test]
fn a_deleted_peer_leaves_the_timers_of_packets() {
    covers!("6887-12.3h", "6887-15b");
    for has_packets in [false, true] {
        let mut bed = bed();
        let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
        if has_packets {
            bed.open_udp(at(I1, 7_000), at(E1, 53));
        }
        let told = bed.pcp(&ask.clone().lifetime(86_400));
        bed.advance_secs(5);
        let left = bed.pcp(&ask.lifetime(0));
        let idle = idle_secs(&bed);
        assert_eq!(left.code, SUCCESS);
        assert!((1..=idle).contains(&u64::from(left.lifetime)), "{} s are left of {idle}", left.lifetime);
        bed.advance_secs(u64::from(left.lifetime) - 2);
        assert_eq!(bed.mappings().len(), 1, "not before packets alone would let it end");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 53), told.external, at(I1, 7_000)));
        bed.advance_secs(15);
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (0, 0), "with packets: {has_packets}");
    }
}

#[test]
fn a_peer_is_shortened_by_a_renewal() {
    covers!("6887-12.3e", "6887-15b");
    let mut bed = bed();
    let idle = idle_secs(&bed);
    bed.open_udp(at(I1, 7_000), at(E1, 53));
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    bed.pcp(&ask.clone().lifetime(86_400));
    assert_eq!(bed.pcp(&ask.lifetime(120)).lifetime, 120);
    bed.advance_secs(idle.max(120) + 10);
    assert_eq!((bed.grants().len(), bed.mappings().len(), bed.sessions().len()), (0, 0, 0));
}

/// What a client gives up does not stay beyond the limit.
#[test]
fn deleted_peers_leave_nothing_beyond_their_timers() {
    covers!("6887-11.3o", "6887-15b");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 3;
    let mut bed = Bed::new(settings);
    for port in 7_000..7_200 {
        let ask = Ask::peer(I1, Protocol::Udp, port, at(E1, 53));
        assert_eq!(bed.pcp(&ask.clone().lifetime(86_400)).code, SUCCESS, "{port}");
        assert_eq!(bed.pcp(&ask.lifetime(0)).code, SUCCESS, "{port}");
        bed.advance_secs(1);
    }
    let idle = idle_secs(&bed);
    bed.advance_secs(idle);
    assert_eq!((bed.grants().len(), bed.mappings().len(), bed.sessions().len()), (0, 0, 0));
}

#[test]
fn a_peer_ends_with_its_connection() {
    covers!("6887-12.3h");
    let mut bed = bed();
    let external = bed.connect(at(I1, 7_000), at(E1, 80));
    assert_eq!(bed.pcp(&Ask::peer(I1, Protocol::Tcp, 7_000, at(E1, 80)).lifetime(20_000)).external, external);
    bed.advance_secs(9_000);
    assert_eq!(bed.sessions().len(), 1, "longer than an idle connection");
    bed.inside(&build::tcp(at(I1, 7_000), at(E1, 80), Flags::RST).sequence(2).build());
    bed.outside(&build::tcp(at(E1, 80), external, Flags::RST).sequence(2).build());
    bed.advance_secs(600);
    assert_eq!((bed.sessions().len(), bed.mappings().len()), (0, 0));
}

#[test]
fn third_party_is_off_but_for_listed_prefixes() {
    covers!("6887-13.1a", "6887-13.1b");
    assert_eq!(bed().pcp(&udp(7_000).third_party(I2)).code, UNSUPP_OPTION);
    let mut settings = with_pcp();
    settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
    for workers in [1, 8] {
        let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
        assert_eq!(bed.pcp(&udp(7_000).third_party(I1)).code, MALFORMED_REQUEST, "itself");
        assert_eq!(bed.pcp(&udp(7_000).third_party(E1)).code, UNSUPP_OPTION, "nobody inside");
        assert_eq!(bed.pcp(&Ask::map(I2, Protocol::Udp, 7_000).third_party(I3)).code, UNSUPP_OPTION, "not listed");
        let told = bed.pcp(&udp(7_000).third_party(I2));
        assert_eq!((told.code, told.options().len()), (SUCCESS, 1));
        assert!(bed.is_open(Protocol::Udp, at(E1, 1), told.external, at(I2, 7_000)));
    }
}

#[test]
fn prefer_failure_cannot_scan_ports_fast() {
    covers!("6887-13.2b");
    let mut bed = bed();
    bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    // All ports in 20 s.
    for port in 1..=65_535_u16 {
        bed.inside(&udp(7_000).suggest(at(POOL[0], port)).prefer_failure().packet());
        if port.is_multiple_of(33) {
            bed.advance(Duration::from_millis(10));
        }
    }
    let answered = bed.take_inside().len();
    // 400 a second, and 100 at once.
    let most = 400 * 20 + 100;
    assert!((most - 200..=most).contains(&answered), "{answered} of 65,535 were answered");
    assert_eq!(bed.counters().port_control_limited, 65_535 - answered as u64);
}

#[test]
fn an_announce_is_answered_without_a_change() {
    covers!("6887-14.1a", "6887-14a");
    let mut bed = bed();
    let told = bed.pcp(&Ask::announce(I1));
    assert_eq!((told.code, told.lifetime, told.message.len()), (SUCCESS, 0, 24));
    assert_eq!(bed.pcp(&Ask { client: I2, ..Ask::announce(I1) }).code, ADDRESS_MISMATCH);
    assert!(bed.mappings().is_empty());
}

#[test]
fn lifetimes_are_within_their_bounds() {
    covers!("6887-15a");
    let mut settings = with_pcp();
    for (asked, granted) in [(1, 120), (600, 600), (1_000_000_000, 86_400)] {
        assert_eq!(Bed::new(settings.clone()).pcp(&udp(7_000).lifetime(asked)).lifetime, granted);
    }
    settings.port_control.lifetime_min = Duration::from_secs(10);
    settings.port_control.lifetime_max = Duration::from_secs(20);
    for (asked, granted) in [(1, 10), (15, 15), (600, 20)] {
        assert_eq!(Bed::new(settings.clone()).pcp(&udp(7_000).lifetime(asked)).lifetime, granted);
    }
}

#[test]
fn a_deletion_ends_no_flow() {
    covers!("6887-15b");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    bed.inside(&build::udp(at(I1, 7_000), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    let told = bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(told.code, SUCCESS);
    assert!(told.lifetime > 100, "the time that the flow has left");
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)));
    // One that had no packets, and one that has had none for longer than they would keep it.
    for (port, had_packets) in [(7_001, false), (7_002, true)] {
        let idle = bed.granted(&udp(port).lifetime(7_200));
        if had_packets {
            bed.inside(&build::udp(at(I1, port), at(E1, 53)).payload(b"x").build());
            bed.take_outside();
            bed.advance_secs(bed.settings().timeouts.udp.as_secs() + 1);
        }
        assert_eq!(bed.pcp(&udp(port).lifetime(0)).lifetime, 0, "{port}");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 1), idle, at(I1, port)), "{port} is gone");
    }
}

#[test]
fn a_freed_port_is_held_down_for_its_client() {
    covers!("6887-15c");
    for protocol in BOTH {
        for is_deleted in [true, false] {
            let mut bed = Bed::new(with_pcp().ports(2_000, 2_003).addresses(&POOL[..1]));
            let timeouts = bed.settings().timeouts;
            let idle = if protocol == Protocol::Tcp { timeouts.tcp_established } else { timeouts.udp };
            let reuse = bed.settings().pools[0].reuse_delay;
            let own = Ask::map(I1, protocol, 7_000);
            let external = bed.granted(&own);
            for port in 0..3 {
                bed.granted(&Ask::map(I2, protocol, 7_000 + port).lifetime(86_400));
            }
            if is_deleted {
                bed.pcp(&own.clone().lifetime(0));
            } else {
                bed.advance_secs(601);
            }
            // Its idle time as if a packet had made it, and then the hold-down of all ports.
            let what = format!("{protocol:?}, deleted: {is_deleted}");
            for pause in [0, idle.as_secs() - 10, reuse.as_secs()] {
                bed.advance_secs(pause);
                for (who, ask) in [
                    ("another subscriber", Ask::map(I2, protocol, 7_003)),
                    ("another port", Ask::map(I1, protocol, 7_001)),
                ] {
                    let told = bed.pcp(&ask.suggest(external));
                    assert_eq!(told.code, NO_RESOURCES, "{what}: not for {who} after {pause} s");
                }
            }
            bed.advance_secs(60 + timeouts.tcp_closing.as_secs());
            assert_eq!(bed.granted(&Ask::map(I2, protocol, 7_003)), external, "{what}: free in the end");
        }
    }
}

#[test]
fn a_client_gets_a_port_back_that_it_deleted() {
    covers!("6887-15c");
    for protocol in BOTH {
        for workers in [1, 8] {
            let mut bed = Bed::new(with_pcp()).workers(workers).steering(Steering::Random);
            let timeouts = bed.settings().timeouts;
            let idle = if protocol == Protocol::Tcp { timeouts.tcp_established } else { timeouts.udp };
            let own = Ask::map(I1, protocol, 7_000);
            let external = bed.granted(&own);
            for pause in [0, idle.as_secs() - 20] {
                bed.pcp(&own.clone().lifetime(0));
                assert!(!bed.is_open(protocol, at(E1, 9), external, at(I1, 7_000)), "it is deleted");
                // A SYN that nobody expects is answered after some seconds.
                bed.advance_secs(pause + 10);
                bed.take_outside();
                assert_eq!(bed.granted(&own.clone().suggest(external)), external, "{protocol:?} after {pause} s");
                assert!(bed.is_open(protocol, at(E2, 9), external, at(I1, 7_000)), "it is open again");
            }
        }
    }
}

#[test]
fn a_deletion_copies_the_suggested_endpoint() {
    covers!("6887-15.1a", "6887-15.1c");
    let mut bed = bed();
    bed.granted(&udp(7_000));
    let ask = udp(7_000).suggest(at(E1, 1_234)).lifetime(0);
    for _ in 0..2 {
        let told = bed.pcp(&ask);
        assert_eq!((told.code, told.lifetime, told.external), (SUCCESS, 0, at(E1, 1_234)));
    }
    assert_eq!(bed.pcp(&udp(9).lifetime(0)).code, SUCCESS, "never there");
}

#[test]
fn an_outbound_mapping_is_not_deleted() {
    covers!("6887-15.1b");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    assert_eq!(bed.pcp(&udp(7_000).lifetime(0)).code, NOT_AUTHORIZED);
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)));
}

#[test]
fn the_end_of_a_connection_ends_no_mapping_that_was_asked_for() {
    covers!("6887-15.1d");
    for end in [Flags::RST, Flags::FIN.union(Flags::ACK)] {
        let mut bed = bed();
        let (peer, inside) = (at(E1, 9_000), at(I1, 7_000));
        let external = bed.granted(&Ask::map(I1, Protocol::Tcp, 7_000).lifetime(7_200));
        assert!(bed.is_open(Protocol::Tcp, peer, external, inside));
        let answer = build::tcp(inside, peer, Flags::SYN.union(Flags::ACK)).sequence(1).acknowledgment(2);
        bed.inside(&answer.build());
        bed.outside(&build::tcp(peer, external, end).sequence(2).acknowledgment(2).build());
        bed.inside(&build::tcp(inside, peer, end).sequence(2).acknowledgment(3).build());
        bed.take_inside();
        bed.take_outside();
        bed.advance_secs(3_600);
        assert!(bed.sessions().is_empty(), "{end:?}: the connection is over");
        assert!(bed.is_open(Protocol::Tcp, at(E2, 9_000), external, inside), "{end:?}");
    }
}

#[test]
fn deleting_all_needs_the_nonce_of_each() {
    covers!("6887-15.1e");
    let mut bed = bed();
    let own = [bed.granted(&udp(7_000)), bed.granted(&udp(7_001))];
    let other = bed.granted(&udp(7_002).nonce(3));
    let all = Ask { protocol: 0, ..udp(0).lifetime(0) };
    assert_eq!(bed.pcp(&all.clone().nonce(9)).code, SUCCESS);
    assert!(bed.is_open(Protocol::Udp, at(E1, 1), own[0], at(I1, 7_000)));
    assert_eq!(bed.pcp(&all).code, SUCCESS);
    for (external, port) in own.into_iter().zip([7_000, 7_001]) {
        assert!(!bed.is_open(Protocol::Udp, at(E1, 2), external, at(I1, port)));
    }
    assert!(bed.is_open(Protocol::Udp, at(E1, 2), other, at(I1, 7_002)));
}

/// The first address drains with the reload: an idle mapping moves at once.
#[test]
fn a_renumbered_pool_sends_updates_and_resets_the_epoch_time() {
    covers!("6887-8.5c", "6887-14.2", "6887-14a");
    for workers in [1, 2, 8] {
        let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        let mut bed = Bed::new(settings.clone()).workers(workers);
        bed.advance_secs(1_000);
        let ask = udp(7_000).filter(128, at(E1, 0));
        let external = bed.granted(&ask);
        bed.reload(settings.addresses(&POOL[1..2]));
        let mut updates = Vec::new();
        for step in 0..300 {
            bed.advance(Duration::from_millis(10));
            for packet in bed.take_inside() {
                assert_eq!((source(&packet), destination(&packet)), (ask.to, ask.from));
                updates.push((step * 10, Told::of(payload(&packet))));
            }
        }
        assert_eq!(updates.len(), 3, "{workers} workers");
        assert!(updates[1].0 - updates[0].0 >= 250 && updates[2].0 - updates[1].0 >= 500);
        let (_, first) = &updates[0];
        assert_eq!((first.code, *first.external.ip()), (SUCCESS, POOL[1]));
        assert!(first.epoch <= 3 && (590..=600).contains(&first.lifetime), "{first:?}");
        assert_ne!(first.external, external);
        assert!(bed.is_open(Protocol::Udp, at(E1, 5), first.external, at(I1, 7_000)), "the filter moved along");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 5), first.external, at(I1, 7_000)));
        assert_eq!(bed.granted(&udp(7_000)), first.external);
        assert!(bed.pcp(&Ask::announce(I2)).epoch > 1_000, "others need not renew");
        assert_eq!(bed.counters().port_control_updates, 3);
    }
}

#[test]
fn an_update_for_a_third_party_goes_to_the_host_that_asked() {
    covers!("6887-14.2");
    for workers in [1, 2, 8] {
        let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let ask = udp(7_000).third_party(I2);
        bed.granted(&ask);
        bed.reload(settings.addresses(&POOL[1..2]));
        (0..300).for_each(|_| bed.advance(Duration::from_millis(10)));
        let updates = bed.take_inside();
        assert_eq!(updates.len(), 3, "{workers} workers");
        for update in updates {
            assert_eq!((source(&update), destination(&update)), (ask.to, ask.from));
            let told = Told::of(payload(&update));
            assert_eq!((told.code, *told.external.ip()), (SUCCESS, POOL[1]));
            assert_eq!(told.options(), [(1, pcp::mapped(I2.to_bits()).to_vec())], "THIRD_PARTY is repeated");
            assert!(bed.is_open(Protocol::Udp, at(E1, 5), told.external, at(I2, 7_000)));
        }
    }
}

/// A portal hears of its subjects from their workers, and must never see the epoch time jump
/// between them.
#[test]
fn a_portal_sees_one_epoch_time_across_a_reload() {
    covers!("6887-8.5a", "6887-8.5d", "6887-13.1b");
    for workers in [1, 2, 8] {
        let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        bed.advance_secs(1_000);
        bed.granted(&udp(7_000).third_party(I2));
        bed.reload(settings.addresses(&POOL[1..2]));
        bed.advance_secs(10);
        bed.take_inside();
        let mut seen = Vec::new();
        // A subject that moved, one without anything, and the portal itself.
        for ask in [udp(7_000).third_party(I2), udp(7_001).third_party(I3), Ask::announce(I1)] {
            let told = bed.pcp(&ask);
            assert_eq!(told.code, SUCCESS);
            seen.push(told.epoch);
        }
        assert!(seen.iter().all(|epoch| epoch.abs_diff(seen[0]) <= 1), "{seen:?} with {workers} workers");
        assert!(seen[0] <= 11, "its subjects' addresses have changed: {seen:?}");
        assert!(bed.pcp(&Ask::announce(I2)).epoch > 1_000, "the subject asked for nothing itself");
    }
}

#[test]
fn the_client_of_a_peer_learns_that_its_address_is_gone() {
    covers!("6887-14.2");
    let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    settings.reload.drain_time = Some(Duration::from_secs(300));
    let mut bed = Bed::new(settings.clone());
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).lifetime(7_200);
    let external = bed.granted(&ask);
    bed.reload(settings.addresses(&POOL[1..2]));
    let mut updates = Vec::new();
    for _ in 0..7_000 {
        bed.advance(Duration::from_millis(100));
        updates.extend(bed.take_inside().iter().map(|packet| Told::of(payload(packet))));
    }
    assert_eq!(updates.len(), 3);
    let sent = ask.message();
    for told in updates {
        assert_eq!((told.code, told.lifetime, told.external, told.message[1]), (SUCCESS, 0, external, 0x82));
        assert_eq!((told.message.len(), &told.message[60..]), (80, &sent[60..]), "its remote endpoint is repeated");
        assert_eq!(told.message[24..42], sent[24..42]);
    }
    assert!(bed.grants().is_empty());
}

/// What `plan` says of a mapping is what happens to it.
#[test]
fn a_census_knows_what_becomes_of_grants() {
    let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    let mut bed = Bed::new(settings.clone());
    bed.granted(&udp(7_000).lifetime(7_200));
    bed.granted(&udp(7_001).lifetime(7_200));
    bed.inside(&build::udp(at(I1, 7_001), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    let mut off = settings.clone();
    off.port_control.pcp = false;
    let mappings = bed.census(off)[0].mappings;
    assert_eq!((mappings.keep, mappings.end), (1, 1), "the idle one ends without a server");
    let mappings = bed.census(settings.clone())[0].mappings;
    assert_eq!((mappings.keep, mappings.end), (2, 0));
    let moved = settings.addresses(&POOL[1..2]);
    let mappings = bed.census(moved.clone())[0].mappings;
    assert_eq!((mappings.drain + mappings.drain_until, mappings.end), (1, 1), "the idle one moves at once");
    bed.reload(moved);
    bed.advance_secs(5);
    let on = |bed: &Bed, address| bed.grants().iter().filter(|grant| grant.external.address == address).count();
    assert_eq!((on(&bed, POOL[0]), on(&bed, POOL[1])), (1, 1));
}

#[test]
fn a_mapping_in_use_drains_before_it_moves() {
    covers!("6887-14.2");
    let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    let mut bed = Bed::new(settings.clone());
    let external = bed.granted(&udp(7_000).lifetime(7_200));
    bed.inside(&build::udp(at(I1, 7_000), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    bed.reload(settings.addresses(&POOL[1..2]));
    bed.advance_secs(20);
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)), "its session goes on");
    bed.take_inside();
    bed.advance_secs(600);
    let updates = bed.take_inside();
    assert_eq!(updates.len(), 3);
    assert_eq!(*Told::of(payload(&updates[0])).external.ip(), POOL[1]);
}

/// Its client could neither renew nor delete it.
#[test]
fn disabled_port_control_ends_what_it_granted() {
    covers!("6887-14.2");
    for workers in [1, 2, 8] {
        let settings = with_pcp();
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let ask = udp(7_000).lifetime(7_200);
        let external = bed.granted(&ask);
        let in_use = bed.granted(&udp(7_001));
        bed.inside(&build::udp(at(I1, 7_001), at(E1, 53)).payload(b"x").build());
        bed.take_outside();
        let mut off = settings;
        off.port_control.pcp = false;
        bed.reload(off);
        (0..300).for_each(|_| bed.advance(Duration::from_millis(10)));
        let updates: Vec<Told> = bed.take_inside().iter().map(|packet| Told::of(payload(packet))).collect();
        for granted in [external, in_use] {
            let of_it: Vec<_> = updates.iter().filter(|told| told.external == granted).collect();
            assert_eq!(of_it.len(), 3, "{workers} workers");
            assert!(of_it.iter().all(|told| (told.code, told.lifetime) == (SUCCESS, 0)));
        }
        assert!(bed.grants().is_empty());
        assert!(!bed.udp_reaches(at(E2, 5), external, at(I1, 7_000)));
        assert!(bed.udp_reaches(at(E1, 53), in_use, at(I1, 7_001)), "its session goes on");
        bed.run_out();
    }
}

#[test]
fn a_loss_of_state_is_announced_to_all() {
    covers!("6887-14.1b", "6887-8.5b");
    let mut bed = bed();
    bed.restore(0, &[]);
    bed.announce_loss();
    let mut times = Vec::new();
    for step in 0..13_500_u64 {
        bed.advance(Duration::from_millis(10));
        for packet in bed.take_inside() {
            assert_eq!(source(&packet), at(OWN_INSIDE, 5_351));
            assert_eq!(destination(&packet), at(Ipv4Addr::new(224, 0, 0, 1), 5_350));
            let told = Told::of(payload(&packet));
            assert_eq!((told.code, told.lifetime, told.message[1]), (SUCCESS, 0, 0x80));
            assert!(u64::from(told.epoch).abs_diff(step / 100) <= 1, "{}: seconds since the loss", told.epoch);
            times.push(step * 10);
        }
    }
    assert_eq!(times.len(), 10);
    let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps[0] >= 250 && gaps.windows(2).all(|two| two[1] + 20 >= 2 * two[0]), "{gaps:?}");
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
}

#[test]
fn without_port_control_its_port_is_unreachable() {
    let mut bed = Bed::new(settings());
    bed.inside(&udp(7_000).packet());
    assert!(is_icmp(&bed.only_inside(), 3, 3));
}

#[test]
fn replies_of_any_number_of_workers_are_the_same() {
    let told = |workers| {
        let mut bed = Bed::new(with_pcp()).workers(workers).steering(Steering::Random);
        (0..64_u16)
            .map(|host| {
                let host = Ipv4Addr::new(100, 64, 1, host as u8);
                let told = bed.pcp(&Ask::map(host, Protocol::Tcp, 80));
                (told.code, told.lifetime, told.message[..42].to_vec())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(told(1), told(2));
    assert_eq!(told(1), told(8));
}

#[test]
fn a_request_with_a_wrong_checksum_is_ignored() {
    let mut bed = bed();
    let mut packet = udp(7_000).packet();
    packet[26] ^= 0x55;
    bed.inside(&packet);
    bed.assert_silent();
    assert_eq!((bed.count(Verdict::LocalIgnored), bed.counters().port_control_ignored), (1, 1));
}
