//! Port control of hosts behind NAT64 and DS-Lite (RFC 6887, RFC 7225).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Delta;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Filtering;
use nat::types::AddressUse;
use nat::types::Prefix;
use pcp::SERVER_PORT;
use pcp::mapped;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

const SUCCESS: u8 = 0;
const NOT_AUTHORIZED: u8 = 2;
const MALFORMED_REQUEST: u8 = 3;
const UNSUPP_OPTION: u8 = 5;
const MALFORMED_OPTION: u8 = 6;
const USER_EX_QUOTA: u8 = 10;
const ADDRESS_MISMATCH: u8 = 12;

const PREFIX64: u8 = 129;
/// The well-known prefix, as the option has it.
const WELL_KNOWN: [u8; 16] = [0, 12, 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Another host of the subscriber of [`C6`].
const C6_OTHER: &str = "2001:db8:c:177::7";
const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

fn with_pcp() -> Settings {
    let mut settings = settings6().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    settings
}

fn udp(port: u16) -> Ask {
    Ask::map(HOME, Protocol::Udp, port)
}

/// The answer to a NAT64 host.
fn told6(bed: &mut Bed6, host: &str, ask: &Ask) -> PcpReply {
    let message = ask.message6(v6(host), None);
    PcpReply::of(&bed.answer6((v6(host), 40_000), (v6(OWN6), SERVER_PORT), &message).expect("a reply"))
}

/// The answer to a B4 about the host of the request, outside of its softwire.
fn told_b4(bed: &mut Bed6, b4: &str, ask: &Ask) -> PcpReply {
    let message = ask.message6(v6(b4), None);
    PcpReply::of(&bed.answer6((v6(b4), 40_000), (v6(AFTR), SERVER_PORT), &message).expect("a reply"))
}

/// The answer to a host behind a B4, by its softwire.
fn answer_in_softwire(bed: &mut Bed6, b4: &str, message: &[u8]) -> Option<Vec<u8>> {
    let (from, to) = (at(HOME, 40_000), at(AFTR_INSIDE, SERVER_PORT));
    let [answers, out] = bed.inside(&softwire(v6(b4), v6(AFTR), &build::udp(from, to).payload(message).build()));
    assert_eq!(out, Vec::<Vec<u8>>::new());
    let answer = answers.first()?;
    assert_eq!((view6(answer).source(), view6(answer).destination()), (v6(AFTR), v6(b4)));
    assert_eq!((source(&answer[40..]), destination(&answer[40..])), (to, from));
    Some(payload(&answer[40..]).to_vec())
}

/// Where a stranger's datagram to this endpoint arrives: the IPv6 packet.
fn reached(bed: &mut Bed6, from: SocketAddrV4, external: SocketAddrV4) -> Option<Vec<u8>> {
    let [inside, _] = bed.outside(&build::udp(from, external).payload(b"stranger").build());
    inside.first().cloned()
}

#[test]
fn a_nat64_host_is_reached_by_the_port_that_it_asked_for() {
    covers!("6887-12.1", "6888-REQ-9", "6146-5");
    for workers in [1, 2, 8] {
        let mut bed = Bed6::with_workers(with_pcp(), workers);
        let told = told6(&mut bed, C6, &udp(7_000));
        assert_eq!((told.code, told.lifetime), (SUCCESS, 600));
        assert!(POOL.contains(told.external.ip()));
        assert_eq!(told.message[44..60], mapped(told.external.ip().to_bits()));
        let came = reached(&mut bed, at(E1, 9), told.external).expect("anyone may send");
        assert_eq!((source6(&came), destination6(&came)), ((behind(E1), 9), (v6(C6), 7_000)));
        // By hairpin, and by its own packets.
        let [came, _] = bed.inside(&udp6((v6(D6), 5), (behind(*told.external.ip()), told.external.port()), b"x"));
        assert_eq!(destination6(&came[0]), (v6(C6), 7_000));
        let [_, out] = bed.inside(&udp6((v6(C6), 7_000), (behind(E2), 53), b"x"));
        assert_eq!(source(&out[0]), told.external);
        assert_eq!(told6(&mut bed, C6, &udp(7_000)).external, told.external, "renewed");
        // Deleted: strangers are refused, and the connection goes on.
        assert_eq!(told6(&mut bed, C6, &udp(7_000).lifetime(0)).code, SUCCESS);
        assert_eq!(reached(&mut bed, at(E1, 10), told.external), None);
        assert!(reached(&mut bed, at(E2, 53), told.external).is_some());
    }
}

#[test]
fn a_nat64_host_names_remote_peers_by_its_prefix() {
    covers!("6887-12.1", "6887-13.3a");
    let mut bed = Bed6::new(with_pcp());
    let filter = |length: u8, address: u128| {
        let mut data = vec![0, length, 0, 0];
        data.extend(address.to_be_bytes());
        data
    };
    let told = told6(&mut bed, C6, &udp(7_000).option(3, &filter(128, behind(E1))));
    assert_eq!(told.code, SUCCESS);
    assert!(reached(&mut bed, at(E1, 9), told.external).is_some());
    assert_eq!(reached(&mut bed, at(E2, 9), told.external), None);
    // Of 192.0.2.0/24, and by an IPv4-mapped address.
    let told = told6(&mut bed, C6, &udp(7_001).option(3, &filter(120, behind(E1))));
    assert!(reached(&mut bed, at(E1, 9), told.external).is_some());
    assert_eq!(told6(&mut bed, C6, &udp(7_002).filter(128, at(E1, 0))).code, SUCCESS);
    for (length, address) in [(95, behind(E1)), (129, behind(E1)), (128, v6(D6))] {
        let code = told6(&mut bed, C6, &udp(7_003).option(3, &filter(length, address))).code;
        assert_eq!(code, MALFORMED_OPTION, "{length}");
    }

    let ask = Ask::peer(HOME, Protocol::Udp, 8_000, at(E1, 53));
    let mut peer = |remote: u128| {
        let message = ask.message6(v6(C6), Some(remote));
        PcpReply::of(&bed.answer6((v6(C6), 40_000), (v6(OWN6), SERVER_PORT), &message).expect("a reply"))
    };
    let told = peer(behind(E1));
    assert_eq!((told.code, &told.message[64..80]), (SUCCESS, &behind(E1).to_be_bytes()[..]));
    for wrong in [v6(D6), behind(Ipv4Addr::new(10, 0, 0, 1)), behind(Ipv4Addr::LOCALHOST)] {
        assert_eq!(peer(wrong).code, MALFORMED_REQUEST, "{wrong:x}");
    }
    bed.advance(Duration::from_secs(550));
    let came = reached(&mut bed, at(E1, 53), told.external).expect("the session is kept");
    assert_eq!(destination6(&came), (v6(C6), 8_000));
    assert_eq!(reached(&mut bed, at(E2, 53), told.external), None);
}

#[test]
fn a_client_that_asks_gets_the_prefix_of_its_nat64() {
    covers!("7225-3.1", "7225-4.3a", "7225-4.3b");
    let mut none = WELL_KNOWN;
    none[3..6].fill(0);
    let mut bed = Bed6::new(with_pcp());
    for ask in [udp(7_000), Ask::announce(HOME)] {
        let told = told6(&mut bed, C6, &ask.clone().option(PREFIX64, &none));
        let fixed = if ask.opcode == 0 { 24 } else { 60 };
        assert_eq!((told.code, &told.message[fixed..]), (SUCCESS, &[&[129, 0, 0, 16], &WELL_KNOWN[..]].concat()[..]));
        assert_eq!(told6(&mut bed, C6, &ask).message.len(), fixed, "only who asks");
        let twice = ask.clone().option(PREFIX64, &none).option(PREFIX64, &none);
        assert_eq!(told6(&mut bed, C6, &twice).code, MALFORMED_OPTION);
        assert_eq!(told6(&mut bed, C6, &ask.option(PREFIX64, &none[..12])).code, MALFORMED_OPTION);
    }
    let peer = Ask::peer(HOME, Protocol::Udp, 8_000, at(E1, 53)).option(PREFIX64, &none);
    assert_eq!(told6(&mut bed, C6, &peer).code, MALFORMED_OPTION);
    // Nobody else has one.
    let told = told_b4(&mut bed, C6, &udp(7_000).third_party(HOME).option(PREFIX64, &none));
    assert_eq!((told.code, told.options().len()), (SUCCESS, 1), "only THIRD_PARTY");
    let message = Ask::map(I1, Protocol::Udp, 7_000).option(PREFIX64, &none);
    let [reply, _] = bed.inside(&message.packet());
    let told = PcpReply::of(payload(&reply[0]));
    assert_eq!((told.code, told.options()), (SUCCESS, Vec::new()));
}

#[test]
fn a_prefix_of_another_length_is_sent_with_its_suffix() {
    covers!("7225-3.1", "6887-12.1");
    let mut settings = with_pcp();
    let prefix = translate::Prefix::new(v6("2001:db8:64::"), 48).expect("a prefix");
    settings.transition.nat64[0].prefix = prefix;
    let mut bed = Bed6::new(settings);
    let told = told6(&mut bed, C6, &udp(7_000).option(PREFIX64, &[0; 16]));
    assert_eq!(told.options()[0].1, [0, 6, 0x20, 1, 0xd, 0xb8, 0, 0x64, 0, 0, 0, 0, 0, 0, 0, 0]);
    // 88 bits are 32 of the address, with the "u" octet among them; 80 are 24.
    for (length, reaches_neighbour) in [(88, false), (80, true)] {
        let mut data = vec![0, length, 0, 0];
        data.extend(prefix.embed(E1.to_bits()).to_be_bytes());
        let port = 7_000 + u16::from(length);
        let told = told6(&mut bed, C6, &udp(port).option(3, &data));
        assert!(reached(&mut bed, at(E1, 9), told.external).is_some());
        let neighbour = Ipv4Addr::from_bits(E1.to_bits() ^ 1);
        assert_eq!(reached(&mut bed, at(neighbour, 9), told.external).is_some(), reaches_neighbour, "{length}");
    }
}

#[test]
fn a_b4_asks_for_hosts_behind_it() {
    covers!("6887-13.1c", "6333-5");
    for workers in [1, 2, 8] {
        let mut bed = Bed6::with_workers(with_pcp(), workers);
        let told = [C6, D6].map(|b4| told_b4(&mut bed, b4, &udp(7_000).third_party(HOME)));
        assert_ne!(told[0].external, told[1].external, "homes with equal addresses");
        for (b4, told) in [C6, D6].into_iter().zip(&told) {
            assert_eq!((told.code, told.options()), (SUCCESS, vec![(1, mapped(HOME.to_bits()).to_vec())]));
            let came = reached(&mut bed, at(E1, 9), told.external).expect("anyone may send");
            assert_eq!(view6(&came).destination(), v6(b4));
            assert_eq!((source(&came[40..]), destination(&came[40..])), (at(E1, 9), at(HOME, 7_000)));
        }
        // It has no IPv4 address itself.
        assert_eq!(told_b4(&mut bed, C6, &udp(7_000)).code, NOT_AUTHORIZED);
        assert_eq!(told_b4(&mut bed, C6, &Ask::announce(HOME)).code, SUCCESS);
        let foreign = udp(7_000).third_party(Ipv4Addr::new(10, 9, 9, 9));
        assert_eq!(told_b4(&mut bed, C6, &foreign).code, UNSUPP_OPTION, "not in `inner`");
        let oneself = udp(7_000).option(1, &v6(C6).to_be_bytes());
        assert_eq!(told_b4(&mut bed, C6, &oneself).code, MALFORMED_REQUEST);
        let other = udp(7_000).option(1, &v6(D6).to_be_bytes());
        assert_eq!(told_b4(&mut bed, C6, &other).code, UNSUPP_OPTION);
        let deleted = told_b4(&mut bed, C6, &udp(7_000).third_party(HOME).lifetime(0));
        assert_eq!(deleted.code, SUCCESS);
        assert_eq!(reached(&mut bed, at(E2, 9), told[0].external), None);
        assert!(reached(&mut bed, at(E2, 9), told[1].external).is_some(), "the other home keeps its port");
    }
}

#[test]
fn a_host_in_a_softwire_asks_at_192_0_0_1() {
    covers!("6887-13.1c", "6886-1");
    let mut settings = with_pcp();
    settings.port_control.nat_pmp = true;
    let mut bed = Bed6::new(settings);
    let reply = answer_in_softwire(&mut bed, C6, &udp(7_000).message()).expect("a reply");
    let told = PcpReply::of(&reply);
    assert_eq!(told.code, SUCCESS);
    let came = reached(&mut bed, at(E1, 9), told.external).expect("anyone may send");
    assert_eq!((view6(&came).destination(), destination(&came[40..])), (v6(C6), at(HOME, 7_000)));
    // For its B4 it is the same host.
    assert_eq!(told_b4(&mut bed, C6, &udp(7_000).third_party(HOME)).external, told.external);
    let other = answer_in_softwire(&mut bed, C6, &Ask { client: I1, ..udp(7_000) }.message()).expect("a reply");
    assert_eq!(PcpReply::of(&other).code, ADDRESS_MISMATCH);
    let third = answer_in_softwire(&mut bed, C6, &udp(7_001).third_party(I1).message()).expect("a reply");
    assert_eq!(PcpReply::of(&third).code, UNSUPP_OPTION);
    // NAT-PMP: its address, and TCP port 80.
    let reply = answer_in_softwire(&mut bed, C6, &[0, 0]).expect("a reply");
    assert_eq!((reply[1], &reply[8..]), (128, &told.external.ip().octets()[..]));
    let reply = answer_in_softwire(&mut bed, C6, &[0, 2, 0, 0, 0, 80, 0, 0, 0, 0, 2, 88]).expect("a reply");
    assert_eq!((reply[1], &reply[2..4], &reply[8..10]), (130, &[0, 0][..], &[0, 80][..]));
    let port = u16::from_be_bytes([reply[10], reply[11]]);
    let syn = build::tcp(at(E1, 9), at(*told.external.ip(), port), wire::tcp::Flags::SYN).sequence(1).build();
    let [came, _] = bed.outside(&syn);
    assert_eq!(destination(&came[0][40..]), at(HOME, 80));
    // Another port there is nobody's.
    let question = build::udp(at(HOME, 1), at(AFTR_INSIDE, 53)).payload(b"x").build();
    assert_eq!(bed.inside(&softwire(v6(C6), v6(AFTR), &question)), [Vec::<Vec<u8>>::new(), Vec::new()]);
}

#[test]
fn requests_are_answered_only_where_the_host_may_ask() {
    covers!("6887-8.2a", "6887-8.2c");
    let mut bed = Bed6::new(with_pcp());
    let message = udp(7_000).message6(v6(C6), None);
    let (client, server) = ((v6(C6), 40_000), (v6(OWN6), SERVER_PORT));
    let mut forged = message.clone();
    forged[8..24].copy_from_slice(&v6(D6).to_be_bytes());
    assert_eq!(PcpReply::of(&bed.answer6(client, server, &forged).expect("a reply")).code, ADDRESS_MISMATCH);
    assert_eq!(told6(&mut bed, C6, &udp(7_000).option(1, &v6(C6).to_be_bytes())).code, MALFORMED_REQUEST);
    assert_eq!(told6(&mut bed, C6, &udp(7_000).option(1, &v6(D6).to_be_bytes())).code, UNSUPP_OPTION);
    assert_eq!(told6(&mut bed, C6, &udp(7_000).third_party(I1)).code, UNSUPP_OPTION);
    for source in ["fe80::1", "::1", "ff02::1", "64:ff9b::198.51.100.7"] {
        assert_eq!(bed.answer6((v6(source), 40_000), server, &message), None, "{source}");
    }
    let mut broken = udp6(client, server, &message);
    let last = broken.len() - 1;
    broken[last] ^= 1;
    assert_eq!(bed.inside(&broken), [Vec::<Vec<u8>>::new(), Vec::new()], "a wrong checksum");
    assert_eq!(bed.answer6(client, (v6(AFTR), 53), &message), None);
    assert!(bed.grants().is_empty());
    // Nobody serves if it is off.
    let mut off = Bed6::new(settings6());
    assert_eq!(off.answer6(client, (v6(AFTR), SERVER_PORT), &message), None);
    assert_eq!(answer_in_softwire(&mut off, C6, &udp(7_000).message()), None);
}

#[test]
fn no_third_party_is_the_number_of_an_ipv6_host() {
    covers!("6887-13.1b");
    let mut settings = with_pcp();
    settings.port_control.third_party = vec![Prefix::new(Ipv4Addr::UNSPECIFIED, 0).expect("all")];
    let mut bed = Bed6::new(settings);
    assert_eq!(told6(&mut bed, C6, &udp(7_000)).code, SUCCESS);
    let number = bed.grant_views()[0].internal.address;
    assert!(number.to_bits() >= nat::types::HOSTS_FIRST);
    let [reply, _] = bed.inside(&Ask::map(I1, Protocol::Udp, 7_001).third_party(number).packet());
    assert_eq!(PcpReply::of(payload(&reply[0])).code, UNSUPP_OPTION);
    // The right to speak for others is that of IPv4 hosts.
    assert_eq!(told6(&mut bed, C6, &udp(7_000).third_party(I1)).code, UNSUPP_OPTION);
}

#[test]
fn hosts_of_a_prefix_share_what_a_subscriber_may_have() {
    covers!("6887-11.3o", "7785-2");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 2;
    let mut bed = Bed6::new(settings);
    assert_eq!(told6(&mut bed, C6, &udp(7_000)).code, SUCCESS);
    assert_eq!(told6(&mut bed, C6_OTHER, &udp(7_000)).code, SUCCESS);
    assert_eq!(told6(&mut bed, C6_OTHER, &udp(7_001)).code, USER_EX_QUOTA);
    assert_eq!(told_b4(&mut bed, C6, &udp(7_001).third_party(HOME)).code, USER_EX_QUOTA);
    assert_eq!(told6(&mut bed, D6, &udp(7_001)).code, SUCCESS, "another subscriber");
    // All that the nonce made for this host, and nothing of the other.
    let all = Ask { protocol: 0, ..udp(0) }.lifetime(0);
    assert_eq!(told6(&mut bed, C6, &all).code, SUCCESS);
    let left: Vec<_> = bed.grants().iter().filter_map(|grant| grant.host).map(|host| host.address.to_bits()).collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&v6(C6_OTHER)) && left.contains(&v6(D6)));
}

#[test]
fn grants_of_ipv6_hosts_are_there_after_a_restart() {
    covers!("6887-8.5b");
    let mut before = Bed6::with_workers(with_pcp(), 1);
    // Other hosts have the first numbers, then as now.
    before.inside(&udp6((v6(D6), 5), (behind(E1), 53), b"x"));
    let nat64 = told6(&mut before, C6, &udp(7_000));
    let b4 = told_b4(&mut before, C6, &udp(7_000).third_party(HOME));
    let ask = Ask::peer(HOME, Protocol::Udp, 8_000, at(E1, 53)).message6(v6(C6), Some(behind(E1)));
    before.answer6((v6(C6), 40_000), (v6(OWN6), SERVER_PORT), &ask).expect("a reply");
    before.advance(Duration::from_secs(100));
    let kept = before.grants();
    assert_eq!(kept.len(), 3);
    for grant in &kept {
        assert_eq!(grant.internal.address, Ipv4Addr::UNSPECIFIED, "no number leaves the process");
        assert_eq!(nat::GrantRecord::from(grant).delta(), Some(*grant));
    }
    for workers in [1, 4] {
        let mut after = Bed6::with_workers(with_pcp(), workers);
        after.inside(&udp6((v6("2001:db8:e::1"), 5), (behind(E1), 53), b"x"));
        after.restore(&kept).expect("there is room");
        after.sweep();
        let came = reached(&mut after, at(E2, 9), nat64.external).expect("anyone may send");
        assert_eq!(destination6(&came), (v6(C6), 7_000));
        let came = reached(&mut after, at(E2, 9), b4.external).expect("anyone may send");
        assert_eq!((view6(&came).destination(), destination(&came[40..])), (v6(C6), at(HOME, 7_000)));
        assert_eq!(after.grants().len(), 3, "the session of the PEER is there, too");
        let told = told6(&mut after, C6, &udp(7_000));
        assert_eq!((told.code, told.external), (SUCCESS, nat64.external), "its client may renew it");
        assert_eq!(told6(&mut after, C6, &udp(7_000).nonce(9)).code, NOT_AUTHORIZED);
        assert_eq!(told_b4(&mut after, C6, &udp(7_000).third_party(HOME).nonce(9)).code, NOT_AUTHORIZED);
        // What ended elsewhere ends here.
        let ended: Vec<_> =
            kept.iter().map(|grant| nat::GrantDelta { change: nat::delta::Change::Ended, ..*grant }).collect();
        after.restore(&ended).expect("the hosts are known");
        assert!(after.grants().is_empty());
    }
    // Without its prefix, a host has no place.
    let mut other = with_pcp();
    other.transition.nat64.clear();
    let lost: Vec<_> =
        kept.iter().filter(|grant| grant.host.is_some_and(|host| host.inner.is_none())).copied().collect();
    assert!(Bed6::new(other).restore(&lost).is_err());
}

#[test]
fn an_address_that_drains_moves_grants_of_ipv6_hosts() {
    covers!("6887-14.2", "6887-8.5c");
    let mut settings = with_pcp();
    settings.pools[0].addresses.truncate(2);
    let mut bed = Bed6::new(settings.clone());
    let before = told6(&mut bed, C6, &udp(7_000));
    let b4 = told_b4(&mut bed, C6, &udp(7_001).third_party(HOME));
    let inner = PcpReply::of(&answer_in_softwire(&mut bed, C6, &udp(7_002).message()).expect("a reply"));
    assert_eq!((before.external.ip(), before.external.ip()), (b4.external.ip(), inner.external.ip()), "paired");
    settings.pools[0].addresses.retain(|address| address != before.external.ip());
    bed.reload(settings, |_| {}).expect("it may be changed");
    let [sent, out] = bed.advance(Duration::from_secs(3));
    assert_eq!(out, Vec::<Vec<u8>>::new());
    let (inside, plain): (Vec<_>, Vec<_>) = sent.iter().partition(|packet| view6(packet).next_header() == 4);
    assert_eq!((plain.len(), inside.len()), (6, 3), "three times each");
    let updates: Vec<_> = plain.iter().map(|packet| (source6(packet), PcpReply::of(&packet[48..]))).collect();
    for (own, port, options) in [(OWN6, 7_000, 0), (AFTR, 7_001, 1)] {
        let of = |told: &&(At6, PcpReply)| told.1.message[40..42] == u16::to_be_bytes(port);
        let updates: Vec<_> = updates.iter().filter(of).collect();
        assert_eq!(updates.len(), 3);
        for (from, told) in updates {
            assert_eq!((*from, told.code, told.options().len()), ((v6(own), SERVER_PORT), SUCCESS, options));
            assert_ne!(told.external.ip(), before.external.ip());
            assert!(told.lifetime > 500 && told.epoch < 4);
            assert!(reached(&mut bed, at(E1, 9), told.external).is_some());
        }
    }
    for packet in inside {
        assert_eq!((source(&packet[40..]), destination(&packet[40..])), (at(AFTR_INSIDE, 5_351), at(HOME, 40_000)));
        assert_ne!(PcpReply::of(payload(&packet[40..])).external.ip(), before.external.ip());
    }
}

#[test]
fn a_loss_of_state_is_announced_to_all_nodes() {
    covers!("6887-14.1b");
    let mut bed = Bed6::new(with_pcp());
    bed.announce_loss();
    let [sent, _] = bed.advance(Duration::from_secs(200));
    let to_hosts: Vec<_> = sent.iter().filter(|packet| packet[0] >> 4 == 6).collect();
    assert_eq!(to_hosts.len(), 10);
    for packet in to_hosts {
        assert_eq!((source6(packet), destination6(packet)), ((v6(OWN6), SERVER_PORT), (v6("ff02::1"), 5_350)));
        assert_eq!((packet[48], packet[49], packet[51]), (2, 0x80, SUCCESS));
    }
}

#[test]
fn nothing_is_announced_from_a_tentative_address() {
    covers!("4862-5.4");
    let mut bed = Bed6::new(with_pcp());
    bed.set_address_use(v6(OWN6), AddressUse::Tentative);
    bed.announce_loss();
    let is_of_own = |packet: &&Vec<u8>| packet[0] >> 4 == 6 && source6(packet).0 == v6(OWN6);
    let [sent, _] = bed.advance(Duration::from_secs(1));
    assert_eq!(sent.iter().filter(is_of_own).count(), 0);
    bed.set_address_use(v6(OWN6), AddressUse::Preferred);
    let [sent, _] = bed.advance(Duration::from_secs(200));
    assert!((5..10).contains(&sent.iter().filter(is_of_own).count()), "the later ones");
}

#[test]
fn lists_name_the_ipv6_host_of_a_grant() {
    covers!("6888-REQ-9");
    let mut bed = Bed6::new(with_pcp()).record_deltas(64);
    told6(&mut bed, C6, &udp(7_000));
    told_b4(&mut bed, D6, &udp(7_000).third_party(HOME));
    let hosts: Vec<_> = bed.grant_views().iter().filter_map(|view| view.host).collect();
    assert_eq!(
        hosts.iter().map(|host| (host.address.to_bits(), host.inner)).collect::<Vec<_>>(),
        [(v6(C6), None), (v6(D6), Some(HOME))]
    );
    let mappings = bed.mapping_views();
    assert!(mappings.iter().all(|mapping| mapping.origin == Some(nat::grant::Origin::Pcp)));
    let named: Vec<Delta> = bed.take_deltas();
    assert!(named.iter().all(|delta| delta.host.is_some()) && named.len() >= 2);
}

#[test]
fn a_number_means_its_host_for_as_long_as_a_grant_is_held_down() {
    covers!("6887-15c");
    let mut bed = Bed6::new(with_pcp());
    let told = told6(&mut bed, C6, &udp(7_000));
    assert_eq!(told6(&mut bed, C6, &udp(7_000).lifetime(0)).code, SUCCESS);
    bed.advance(Duration::from_secs(60));
    let views = bed.grant_views();
    assert!(views[0].is_held_down);
    assert_eq!(views[0].host.expect("known").address.to_bits(), v6(C6));
    let again = told6(&mut bed, C6, &udp(7_000).suggest(told.external));
    assert_eq!(again.external, told.external, "its client may have it back");
    bed.advance(Duration::from_secs(1_000));
    bed.sweep();
    assert_eq!((bed.grants().len(), bed.mappings()), (0, 0));
}

/// A worker limits requests of hosts of others before they take room in a ring, as it does those of
/// IPv4 hosts.
#[test]
fn requests_are_limited_before_they_are_handed_over() {
    let ask = udp(7_000);
    let nat64 = udp6((v6(C6), 40_000), (v6(OWN6), SERVER_PORT), &ask.message6(v6(C6), None));
    let by_b4 = udp6((v6(C6), 40_000), (v6(AFTR), SERVER_PORT), &ask.message6(v6(C6), None));
    let inner = build::udp(at(HOME, 40_000), at(AFTR_INSIDE, SERVER_PORT)).payload(&ask.message()).build();
    let in_softwire = softwire(v6(C6), v6(AFTR), &inner);
    for packet in [nat64, by_b4, in_softwire] {
        let mut bed = Bed6::with_workers(with_pcp(), 2);
        let owner = bed.shared().worker_of_host(view6(&packet).source()).index();
        let other = 1 - owner;
        let [answers, _] = bed.receive(other, topology::INSIDE, &packet);
        assert_eq!(answers.len(), 1, "it is answered by its own worker");
        let mut answered = 1;
        for _ in 1..2_000 {
            answered += bed.receive(other, topology::INSIDE, &packet)[0].len();
        }
        let counters = bed.shards().iter().map(|shard| shard.counters().handed_off);
        let handed_off: Vec<u64> = counters.collect();
        assert!((90..=110).contains(&answered), "{answered} answered");
        assert_eq!(handed_off[other], answered as u64, "no more than are answered");
        let limited = bed.shards()[other].counters().port_control_limited;
        assert_eq!(limited, 2_000 - answered as u64);
    }
}
