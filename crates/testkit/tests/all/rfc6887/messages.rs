//! Requests and replies: their checks, options, versions and times.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Verdict;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::ADDRESS_MISMATCH;
use super::BOTH;
use super::EXCESSIVE_REMOTE_PEERS;
use super::MALFORMED_OPTION;
use super::MALFORMED_REQUEST;
use super::SUCCESS;
use super::UNSUPP_OPCODE;
use super::UNSUPP_OPTION;
use super::UNSUPP_VERSION;
use super::all_ways;
use super::bed;
use super::udp;
use super::with_pcp;

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
    let told = PcpReply::of(&reply);
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
fn an_announce_is_answered_without_a_change() {
    covers!("6887-14.1a", "6887-14a");
    let mut bed = bed();
    let told = bed.pcp(&Ask::announce(I1));
    assert_eq!((told.code, told.lifetime, told.message.len()), (SUCCESS, 0, 24));
    assert_eq!(bed.pcp(&Ask { client: I2, ..Ask::announce(I1) }).code, ADDRESS_MISMATCH);
    assert!(bed.mappings().is_empty());
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
