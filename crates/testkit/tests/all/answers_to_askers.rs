//! Rules apply to what the inside opens. A remote host that sends to a mapping from outside gets
//! its replies from that mapping, also where a rule redirects packets to this host, or exempts them
//! from translation (ADR 4).

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::rules::Match;
use nat::settings::Admission;
use nat::settings::Forward;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::types::Prefix;
use nat::types::RealmId;
use testkit::*;
use wire::build;

/// Remote hosts that a rule matches, each named after what the rule does.
const UNTRANSLATED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 3);
const DROPPED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
const REDIRECTED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 200);
/// A remote host that no rule matches.
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 102, 9);
const ASKERS: [Ipv4Addr; 3] = [UNTRANSLATED, REDIRECTED, OTHER];
/// An inside host with a forward, and one with a one-to-one address.
const SERVER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 80);
const WHOLE: Ipv4Addr = Ipv4Addr::new(100, 64, 9, 2);
const WHOLE_OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);

fn with_rules() -> Settings {
    let mut settings = settings();
    settings.forwards = [Protocol::Udp, Protocol::Tcp]
        .map(|protocol| Forward {
            realm: RealmId::default(),
            protocol,
            external: POOL[1],
            ports: (53, 53),
            inside: SERVER.into(),
            inside_port: 53,
            admission: Admission::Anyone,
        })
        .to_vec();
    settings.pools.push(Pool {
        name: "whole".into(),
        addresses: (64..68).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect(),
        subscribers: vec![topology::prefix([100, 64, 9, 0], 30)],
        one_to_one: true,
        ..Pool::default()
    });
    let to = |destination: Ipv4Addr| Match { destination: Prefix::host(destination), ..Match::ALL };
    settings.rule(to(UNTRANSLATED), RuleAction::NoTranslation).rule(to(DROPPED), RuleAction::Drop).redirected(
        Prefix::host(REDIRECTED),
        (0, 65_535),
        Redirection::Targets(vec![Target { address: E2.to_bits(), port: None, weight: 1 }]),
    )
}

fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// One datagram from outside, and the answer to it.
fn ask_and_answer(bed: &mut Bed, asker: SocketAddrV4, external: SocketAddrV4, internal: SocketAddrV4) {
    bed.outside(&build::udp(asker, external).build());
    let asked = bed.only_inside();
    assert_eq!((source(&asked), destination(&asked)), (asker, internal));
    bed.inside(&build::udp(internal, asker).build());
    let answer = bed.only_outside();
    assert_eq!((source(&answer), destination(&answer)), (external, asker));
}

#[test]
fn a_forward_answers_each_asker() {
    for mut bed in beds(&with_rules()) {
        for round in 0..3 {
            for asker in ASKERS {
                ask_and_answer(&mut bed, at(asker, 999 + round), at(POOL[1], 53), at(SERVER, 53));
            }
            bed.advance_secs(20);
        }
        bed.run_out();
    }
}

#[test]
fn mappings_answer_remotes_and_rules_hold_for_what_they_open() {
    for mut bed in beds(&with_rules()) {
        let internal = at(I1, 5_000);
        bed.inside(&build::udp(internal, at(E1, 53)).build());
        let external = source(&bed.only_outside());
        for asker in ASKERS {
            ask_and_answer(&mut bed, at(asker, 999), external, internal);
        }
        // What is to be dropped is, and takes no session.
        bed.outside(&build::udp(at(DROPPED, 999), external).build());
        assert_eq!(destination(&bed.only_inside()), internal);
        assert_eq!(bed.sessions().len(), 1 + ASKERS.len());
        bed.inside(&build::udp(internal, at(DROPPED, 999)).build());
        bed.assert_silent();
        // Nobody asked from these ports.
        bed.inside(&build::udp(internal, at(DROPPED, 1_000)).build());
        bed.assert_silent();
        bed.inside(&build::udp(internal, at(UNTRANSLATED, 1_000)).build());
        assert_eq!(source(&bed.only_outside()), internal);
        bed.inside(&build::udp(internal, at(REDIRECTED, 1_000)).build());
        assert_eq!(destination(&bed.only_outside()), at(E2, 1_000));
        bed.run_out();
    }
}

#[test]
fn a_host_with_an_address_of_its_own_answers_pings() {
    for mut bed in beds(&with_rules()) {
        for asker in ASKERS.into_iter().chain(ASKERS) {
            bed.outside(&build::echo_request(asker, WHOLE_OUTSIDE, 7).build());
            assert_eq!(*destination(&bed.only_inside()).ip(), WHOLE);
            bed.inside(&build::echo_reply(WHOLE, asker, 7).build());
            let answer = bed.only_outside();
            assert_eq!((*source(&answer).ip(), *destination(&answer).ip()), (WHOLE_OUTSIDE, asker));
        }
        bed.run_out();
    }
}

#[test]
fn askers_take_no_more_than_there_is_and_keep_no_mapping_alive() {
    let mut settings = with_rules().limits(|limits| limits.sessions_per_mapping_max = 5);
    settings.inbound_refresh = false;
    let idle = settings.timeouts.udp;
    let mut bed = Bed::new(settings);
    let internal = at(I1, 5_000);
    bed.inside(&build::udp(internal, at(E1, 53)).build());
    let external = source(&bed.only_outside());
    // A remote host sends from many ports, and passes as before.
    for port in 1_000..1_100 {
        bed.outside(&build::udp(at(REDIRECTED, port), external).build());
        assert_eq!(destination(&bed.only_inside()), internal);
    }
    assert_eq!(bed.sessions().len(), 5);
    let asks = idle.as_micros() / 10_000_000 - 1;
    for _ in 0..asks {
        bed.advance(Duration::from_secs(10));
        bed.outside(&build::udp(at(UNTRANSLATED, 999), external).build());
        assert_eq!(destination(&bed.only_inside()), internal);
    }
    bed.advance(Duration::from_secs(11));
    bed.outside(&build::udp(at(UNTRANSLATED, 999), external).build());
    bed.assert_silent();
    bed.run_out();
}

#[test]
fn a_packet_that_ends_here_opens_nothing() {
    let mut bed = Bed::new(with_rules());
    bed.inside(&build::udp(at(I1, 5_000), at(E1, 53)).build());
    let external = source(&bed.only_outside());
    bed.outside(&build::udp(at(REDIRECTED, 999), external).ttl(1).build());
    assert_eq!(bed.take_outside().len(), 1, "time exceeded");
    assert_eq!(bed.sessions().len(), 1);
    bed.run_out();
}
