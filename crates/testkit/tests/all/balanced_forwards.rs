//! Forwards with several targets: inbound load balancing.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;

use nat::BuildError;
use nat::Duration;
use nat::Fates;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::redirection::Target;
use nat::rules::Match;
use nat::settings::Admission;
use nat::settings::BalancedForward;
use nat::settings::FilterAction;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Interface;
use nat::settings::Removed;
use nat::settings::Route;
use nat::settings::RuleAction;
use nat::settings::SubscriberLimits;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use testkit::seeds::for_each_seed;
use testkit::topology::INSIDE;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const PORT: u16 = 8_080;
const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
/// Seconds that orphaned mappings may drain.
const DRAIN: u64 = 60;

/// The shared endpoint.
fn open() -> SocketAddrV4 {
    at(POOL[1], 443)
}

/// The n-th server.
fn server(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 0, 80 + n)
}

/// The n-th client outside.
fn client(n: u32) -> SocketAddrV4 {
    at(Ipv4Addr::from_bits(0xc633_6400 + n / 50), 10_000 + (n % 50) as u16)
}

fn targets(list: &[(u8, u32)]) -> Vec<Target> {
    list.iter().map(|(n, weight)| Target { address: server(*n).to_bits(), port: Some(PORT), weight: *weight }).collect()
}

fn forward(protocol: Protocol, list: &[(u8, u32)]) -> BalancedForward {
    BalancedForward {
        realm: RealmId::default(),
        protocol,
        external: *open().ip(),
        ports: (open().port(), open().port()),
        targets: targets(list),
        admission: Admission::Anyone,
        is_sticky: false,
    }
}

fn plain() -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent).limits(|limits| {
        limits.flows_max = 50_000;
        limits.external_addresses_max = 16;
    });
    settings.reload.drain_time = Some(Duration::from_secs(DRAIN));
    settings
}

/// TCP and UDP 443 lead to these servers.
fn balanced(list: &[(u8, u32)]) -> Settings {
    let mut settings = plain();
    settings.balanced_forwards = [Protocol::Tcp, Protocol::Udp].map(|protocol| forward(protocol, list)).to_vec();
    settings
}

/// The same with one worker and with several that get packets where they do not belong.
fn beds(settings: &Settings) -> [Bed; 2] {
    let bed = || Bed::new(settings.clone());
    [bed(), bed().workers(4).steering(Steering::Wrong)]
}

/// The target that a SYN of this client reaches.
fn knock(bed: &mut Bed, from: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::tcp(from, open(), Flags::SYN).sequence(1).mss(1_460).build());
    let came = bed.take_inside();
    assert!(came.len() < 2);
    came.first().map(|packet| {
        assert_eq!(source(packet), from, "the server sees who asks");
        destination(packet)
    })
}

/// The target that a datagram reaches.
fn call(bed: &mut Bed, from: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::udp(from, open()).payload(b"who is there").build());
    bed.take_inside().first().map(|packet| destination(packet))
}

/// Connects, and says to which server.
fn connect(bed: &mut Bed, from: SocketAddrV4) -> SocketAddrV4 {
    let server = knock(bed, from).expect("somebody answers");
    bed.inside(&build::tcp(server, from, SYN_ACK).sequence(9).acknowledgment(2).mss(1_460).build());
    let answer = bed.only_outside();
    assert_eq!((source(&answer), destination(&answer)), (open(), from));
    assert!(talks_on(bed, server, from));
    server
}

/// A segment of a connection that exists goes in, and one comes out.
fn talks_on(bed: &mut Bed, server: SocketAddrV4, remote: SocketAddrV4) -> bool {
    bed.take_outside();
    bed.outside(&build::tcp(remote, open(), Flags::ACK).sequence(2).acknowledgment(10).build());
    let came = bed.take_inside().first().map(|packet| destination(packet));
    bed.inside(&build::tcp(server, remote, Flags::ACK).sequence(10).acknowledgment(2).build());
    let went = bed.take_outside().first().map(|packet| source(packet));
    came == Some(server) && went == Some(open())
}

fn flows(bed: &Bed) -> usize {
    bed.shards().map(|shard| shard.view().flows_len()).sum()
}

#[test]
fn remotes_are_spread_by_weight_and_stay_with_their_server() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 2), (3, 5)])) {
        let mut counts: HashMap<SocketAddrV4, u32> = HashMap::new();
        const CLIENTS: u32 = 2_000;
        for n in 0..CLIENTS {
            let server = connect(&mut bed, client(n));
            assert_eq!(server.port(), PORT);
            assert_eq!(knock(&mut bed, client(n)), Some(server), "a SYN sent again");
            *counts.entry(server).or_default() += 1;
        }
        for (n, weight) in [(1, 1), (2, 2), (3, 5)] {
            let count = counts[&at(server(n), PORT)];
            let expected = f64::from(CLIENTS * weight) / 8.0;
            let spread = 4.0 * (expected * (1.0 - f64::from(weight) / 8.0)).sqrt();
            assert!((f64::from(count) - expected).abs() < spread, "{n}: {count} of {expected}");
        }
        assert_eq!((flows(&bed), bed.mappings().len(), bed.ports_used()), (CLIENTS as usize, 0, 0), "no port is used");
        let hits = bed.shared().balanced_hits(0);
        assert_eq!(hits.iter().sum::<u64>(), u64::from(CLIENTS));
        assert_eq!(hits[2], u64::from(counts[&at(server(3), PORT)]));
        let sessions = bed.sessions();
        assert!(
            sessions.iter().all(|session| session.opened_from == Side::Outside && session.external == endpoint(open()))
        );
        bed.run_out();
    }
}

fn endpoint(of: SocketAddrV4) -> nat::types::Endpoint {
    nat::types::Endpoint::new(*of.ip(), of.port())
}

#[test]
fn udp_is_spread_too_and_answers_leave_from_the_shared_endpoint() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1)])) {
        for n in 0..100 {
            let server = call(&mut bed, client(n)).expect("somebody is there");
            bed.inside(&build::udp(server, client(n)).payload(b"answer").build());
            let answer = bed.only_outside();
            assert_eq!((source(&answer), destination(&answer)), (open(), client(n)));
            assert_eq!(call(&mut bed, client(n)), Some(server));
        }
        bed.run_out();
    }
}

#[test]
fn a_client_without_answer_is_forgotten_soon() {
    let settings = balanced(&[(1, 1), (2, 1)]).timers(|timers| timers.udp_unanswered = Duration::from_secs(20));
    for mut bed in beds(&settings) {
        let answered = call(&mut bed, client(0)).expect("somebody is there");
        bed.inside(&build::udp(answered, client(0)).payload(b"answer").build());
        bed.only_outside();
        for n in 1..50 {
            assert!(call(&mut bed, client(n)).is_some());
        }
        bed.advance_secs(30);
        assert_eq!(flows(&bed), 1, "only who was answered is left");
        bed.run_out();
    }
}

#[test]
fn a_sticky_list_leads_all_of_an_address_to_one_server() {
    let mut settings = balanced(&[(1, 1), (2, 1), (3, 1)]);
    settings.balanced_forwards[0].is_sticky = true;
    for mut bed in beds(&settings) {
        let mut seen = HashMap::new();
        for n in 0..500 {
            let server = connect(&mut bed, client(n));
            assert_eq!(*seen.entry(*client(n).ip()).or_insert(server), server);
        }
        assert!(seen.values().any(|server| *server != seen[client(0).ip()]));
    }
}

#[test]
fn a_new_target_takes_new_clients_only() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1)])) {
        let before: Vec<SocketAddrV4> = (0..200).map(|n| connect(&mut bed, client(n))).collect();
        bed.reload(balanced(&[(1, 1), (2, 1), (3, 2)]));
        assert_eq!(bed.census(balanced(&[(1, 1), (2, 1), (3, 2)]))[0].flows, Fates { keep: 200, ..Fates::default() });
        for (n, server) in (0..).zip(&before) {
            assert!(talks_on(&mut bed, *server, client(n)), "who is there stays");
            assert_eq!(knock(&mut bed, client(n)), Some(*server));
        }
        let after: Vec<SocketAddrV4> = (200..400).map(|n| connect(&mut bed, client(n))).collect();
        let news = after.iter().filter(|to| **to == at(server(3), PORT)).count();
        assert!((60..140).contains(&news), "{news} of 200");
        bed.advance_secs(DRAIN * 2);
        for (n, server) in (0..).zip(before.iter().chain(&after)) {
            assert!(talks_on(&mut bed, *server, client(n)), "nobody drains who was not taken out");
        }
        bed.run_out();
    }
}

#[test]
fn a_removed_target_opens_nothing_and_ends_by_the_deadline() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1), (3, 1)])) {
        let before: Vec<SocketAddrV4> = (0..150).map(|n| connect(&mut bed, client(n))).collect();
        let leaves = |to: &SocketAddrV4| *to.ip() == server(3);
        let gone = before.iter().filter(|to| leaves(to)).count() as u64;
        assert!(gone > 20);
        let next = balanced(&[(1, 1), (2, 1)]);
        let fates = Fates { keep: 150 - gone, drain_until: gone, ..Fates::default() };
        assert_eq!(bed.census(next.clone())[0].flows, fates);
        bed.reload(next.clone());
        for n in 200..300 {
            assert_ne!(*connect(&mut bed, client(n)).ip(), server(3));
        }
        bed.advance_secs(DRAIN / 2);
        for (n, server) in (0..).zip(&before) {
            assert!(talks_on(&mut bed, *server, client(n)), "who is there may go on for a while");
        }
        bed.advance_secs(DRAIN / 2 + 10);
        for (n, to) in (0..).zip(&before) {
            assert_eq!(talks_on(&mut bed, *to, client(n)), !leaves(to));
        }
        bed.run_out();
    }
}

#[test]
fn a_target_ends_with_the_change_where_the_settings_say_so() {
    let list = |list| {
        let mut settings = balanced(list);
        settings.reload.removed = Removed::End;
        settings
    };
    let mut bed = Bed::new(list(&[(1, 1), (2, 1)])).workers(2).record_events(10_000);
    let before: Vec<SocketAddrV4> = (0..60).map(|n| connect(&mut bed, client(n))).collect();
    let gone = before.iter().filter(|to| *to.ip() == server(2)).count();
    bed.reload(list(&[(1, 1)]));
    bed.advance_secs(6);
    assert_eq!(flows(&bed), 60 - gone);
    for (n, to) in (0..).zip(&before) {
        if *to.ip() == server(2) {
            assert_eq!(
                connect(&mut bed, client(n)),
                at(server(1), PORT),
                "the client may come again, to another target"
            );
        }
    }
    bed.finish_events();
    let events: Vec<_> = (0..2).flat_map(|worker| bed.take_events(worker, 10_000)).collect();
    let of = |kind, cause| events.iter().filter(|event| event.kind == kind && event.cause == cause).count();
    assert_eq!(
        of(EventKind::FlowCreated, Cause::Inbound),
        60 + gone,
        "each session is reported, with its remote endpoint"
    );
    assert_eq!(of(EventKind::FlowEnded, Cause::Configuration), gone);
    let reported = events.iter().find(|event| event.kind == EventKind::FlowCreated).expect("some");
    assert_eq!((reported.external, reported.first_port), (*open().ip(), open().port()));
}

#[test]
fn each_session_has_one_server_across_changes_of_the_list() {
    for_each_seed(12, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = random.random_range(1..=4);
        let mut list: Vec<(u8, u32)> = vec![(0, 1), (1, 1), (2, 1)];
        let mut base = balanced(&list);
        base.reload.drain_time = None;
        let mut bed = Bed::new(base.clone()).workers(workers).seed(seed).steering(Steering::Random);
        let mut sessions: HashMap<SocketAddrV4, SocketAddrV4> = HashMap::new();
        let mut next_client = 0;
        for _ in 0..8 {
            let weights: Vec<(u8, u32)> = (0..6).map(|n| (n, random.random_range(0..4))).collect();
            list = weights.into_iter().filter(|(_, weight)| *weight > 0).collect();
            if list.is_empty() {
                list.push((random.random_range(0..6), 1));
            }
            let mut next = base.clone();
            for forward in &mut next.balanced_forwards {
                forward.targets = targets(&list);
            }
            let mut order: Vec<usize> = (0..workers).collect();
            order.shuffle(&mut random);
            let mut clients: Vec<u32> = (0..next_client).collect();
            clients.shuffle(&mut random);
            clients.truncate(20);
            bed.reload_while(next, &order, |bed| {
                clients.extend(next_client..next_client + 10);
                next_client += 10;
                // Two at a time, at whichever workers: they must not open two sessions.
                for n in &clients {
                    for _ in 0..2 {
                        bed.offer(Side::Outside, &build::udp(client(*n), open()).payload(b"x").build());
                    }
                }
                bed.settle();
                for packet in bed.take_inside() {
                    let (from, to) = (source(&packet), destination(&packet));
                    assert_eq!(*sessions.entry(from).or_insert(to), to, "{from} was led elsewhere (seed {seed})");
                }
            })
            .expect("the settings can follow");
            let mut seen = std::collections::HashSet::new();
            for session in bed.sessions() {
                assert!(seen.insert((session.external, session.remote)), "one session for a remote endpoint");
            }
        }
        for (from, to) in &sessions {
            bed.inside(&build::udp(*to, *from).payload(b"answer").build());
            assert_eq!(source(&bed.only_outside()), open());
            assert_eq!(call(&mut bed, *from), Some(*to));
        }
        bed.run_out();
    });
}

#[test]
fn what_a_server_opens_itself_gets_a_port_of_its_pool() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1)])) {
        let to = connect(&mut bed, client(0));
        let external = bed.open_tcp(to, at(E2, 80));
        assert_ne!(external, open());
        assert_ne!(bed.open_udp(at(server(1), PORT), at(E2, 53)), open());
        assert!(talks_on(&mut bed, to, client(0)), "and its sessions stay where they are");
        // The two speak by the mapping already: led to the same server, inside both would be one
        // connection.
        let both = (1..).map(client).find(|one| {
            let group = bed.shared().balanced_workers(endpoint(open()), Protocol::Udp, endpoint(*one));
            group.len() == 1 && call(&mut bed, *one) == Some(at(server(1), PORT))
        });
        let both = both.expect("some are led there");
        bed.jump(Duration::from_secs(400));
        let external = bed.open_udp(at(server(1), PORT), both);
        assert_ne!(external, open());
        assert_eq!(call(&mut bed, both), None);
        assert!(bed.udp_reaches(both, external, at(server(1), PORT)));
        bed.run_out();
    }
}

#[test]
fn a_subscriber_is_led_to_a_server_by_hairpin() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1), (3, 1)])) {
        let mut seen = HashMap::new();
        for n in 0..40 {
            let from = at(I1, 20_000 + n);
            bed.inside(&build::tcp(from, open(), Flags::SYN).sequence(1).mss(1_460).build());
            let came = bed.only_inside();
            let (public, to) = (source(&came), destination(&came));
            assert!(POOL.contains(public.ip()), "the server sees an external address");
            bed.inside(&build::tcp(to, public, SYN_ACK).sequence(9).acknowledgment(2).mss(1_460).build());
            let answer = bed.only_inside();
            assert_eq!((source(&answer), destination(&answer)), (open(), from));
            for _ in 0..2 {
                bed.inside(&build::tcp(from, open(), Flags::ACK).sequence(2).acknowledgment(10).build());
                assert_eq!(destination(&bed.only_inside()), to);
                bed.inside(&build::tcp(to, public, Flags::ACK).sequence(10).acknowledgment(2).build());
                assert_eq!(source(&bed.only_inside()), open());
            }
            // Nobody outside can pretend to be that subscriber.
            bed.outside(&build::tcp(public, open(), Flags::ACK).sequence(2).acknowledgment(10).build());
            bed.assert_silent();
            *seen.entry(to).or_insert(0) += 1;
            let datagram = build::udp(from, open()).payload(b"x").build();
            bed.inside(&datagram);
            let came = bed.only_inside();
            let error = build::icmp_error(*destination(&came).ip(), *source(&came).ip(), 3, 3, &came).build();
            bed.inside(&error);
            let reported = bed.only_inside();
            assert_eq!((*source(&reported).ip(), *destination(&reported).ip()), (*open().ip(), I1));
            assert_eq!((source(quote(&reported)), destination(quote(&reported))), (from, open()));
        }
        assert!(seen.len() > 1, "{seen:?}");
        assert!(bed.sessions().iter().any(|session| session.hairpin && session.opened_from == Side::Outside));
        bed.run_out();
    }
}

/// The address goes from the pool to a customer of another realm, whose packets pass untranslated.
#[test]
fn a_server_reaches_no_new_owner_of_a_clients_address() {
    const BLUE: InterfaceId = InterfaceId(2);
    for mut bed in beds(&{
        let mut settings = balanced(&[(1, 1)]);
        let like_red = settings.interfaces[usize::from(INSIDE.0)].clone();
        settings.interfaces.push(Interface { name: "blue".to_owned(), realm: RealmId(1), ..like_red });
        settings.realm_names = ["red", "blue"].map(str::to_owned).to_vec();
        settings.pools[0].realms = vec![RealmId(0)];
        settings.reload.removed = Removed::End;
        settings
    }) {
        let mut clients = (0..30).map(|n| at(Ipv4Addr::new(100, 64, 7, n), 20_000));
        let (server, public) = clients
            .find_map(|from| {
                bed.inside(&build::tcp(from, open(), Flags::SYN).sequence(1).mss(1_460).build());
                let came = bed.only_inside();
                let (public, server) = (source(&came), destination(&came));
                bed.inside(&build::tcp(server, public, SYN_ACK).sequence(9).acknowledgment(2).mss(1_460).build());
                bed.only_inside();
                bed.inside(&build::tcp(from, open(), Flags::ACK).sequence(2).acknowledgment(10).build());
                bed.only_inside();
                let subscribers = bed.subscribers();
                let of_server = subscribers.iter().find(|one| one.address == *server.ip()).expect("it is one");
                let is_its_own = of_server.external_address != Some(*public.ip()) && public.ip() != open().ip();
                is_its_own.then_some((server, public))
            })
            .expect("one of them has an address that the others lack");
        let mut settings = bed.settings().clone();
        settings.pools[0].addresses.retain(|address| address != public.ip());
        bed.reload(settings.clone());
        bed.sweep();
        bed.advance_secs(200);
        // Nothing of the address is left. Now it has another use.
        let customer = Prefix::host(*public.ip());
        let way = Route { prefix: customer, interface: BLUE, ..settings.routes[0] };
        settings.routes.push(way);
        let of_customer = Match { realm: Some(RealmId(1)), source: customer, ..Match::ALL };
        bed.reload(settings.rule(of_customer, RuleAction::NoTranslation));
        bed.outside(&build::udp(at(E1, 53), public).payload(b"for the customer").build());
        assert_eq!(bed.take_inside_by().len(), 1, "the customer is there: {:?}", bed.verdicts());
        let late = build::tcp(server, public, Flags::ACK).sequence(10).acknowledgment(2).build();
        bed.inside(&late);
        assert_eq!(bed.take_inside_by(), [], "another realm's customer");
        assert_eq!(bed.count(Verdict::NoMapping), 1);
    }
}

#[test]
fn a_hairpinned_syn_to_a_forward_that_is_gone_is_held() {
    let mut bed = Bed::new(balanced(&[(1, 1)])).workers(4).steering(Steering::Random);
    connect(&mut bed, client(0));
    // That session keeps the port from all others.
    bed.reload(plain());
    for n in 0..40 {
        bed.inside(&build::tcp(at(I1, 20_000 + n), open(), Flags::SYN).sequence(1).mss(1_460).build());
    }
    assert_eq!(bed.count(Verdict::UnsolicitedSyn), 40);
}

#[test]
fn errors_about_sessions_are_translated_both_ways() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1), (3, 1)])) {
        let clients: Vec<_> = (0..30).map(|n| (client(n), call(&mut bed, client(n)).expect("somebody"))).collect();
        // Other lists, so that errors have to look for their session as packets do.
        bed.reload(balanced(&[(3, 1), (4, 1), (5, 4)]));
        for (client, server) in clients {
            bed.inside(&build::udp(server, client).payload(b"answer").build());
            let left = bed.only_outside();
            bed.outside(&build::icmp_error(E2, *open().ip(), 3, 1, &left).build());
            let reported = bed.only_inside();
            assert_eq!(*destination(&reported).ip(), *server.ip());
            assert_eq!((source(quote(&reported)), destination(quote(&reported))), (server, client));
            bed.outside(&build::udp(client, open()).payload(b"more").build());
            let came = bed.only_inside();
            bed.inside(&build::icmp_error(*server.ip(), *client.ip(), 3, 3, &came).build());
            let reported = bed.only_outside();
            assert_eq!((*source(&reported).ip(), *destination(&reported).ip()), (*open().ip(), *client.ip()));
            assert_eq!((source(quote(&reported)), destination(quote(&reported))), (client, open()));
        }
        // One about nobody's session.
        let never = build::udp(open(), client(500)).payload(b"never sent").build();
        bed.outside(&build::icmp_error(E2, *open().ip(), 3, 1, &never).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 1);
        bed.run_out();
    }
}

#[test]
fn fragments_reach_a_server_in_any_order() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 1), (3, 1)])) {
        for n in 0..20 {
            let sent = build::udp(client(n), open()).identification(n as u16 + 1).payload_length(3_000).build();
            let mut pieces = build::fragment(&sent, 1_500);
            if n % 2 == 0 {
                pieces.reverse();
            }
            for piece in &pieces {
                bed.outside(piece);
            }
            let came = bed.take_inside();
            assert_eq!(came.len(), pieces.len());
            let whole = build::reassemble(&came).expect("all pieces came");
            assert_eq!(source(&whole), client(n));
            let to = destination(&whole);
            let answer = build::udp(to, client(n)).identification(7).payload_length(3_000).build();
            for piece in build::fragment(&answer, 1_500).iter().rev() {
                bed.inside(piece);
            }
            let whole = build::reassemble(&bed.take_outside()).expect("all pieces went");
            assert_eq!((source(&whole), destination(&whole)), (open(), client(n)));
        }
        bed.run_out();
    }
}

#[test]
fn filters_limits_and_the_pools_filtering_hold() {
    // A filter in front of one server.
    let denied = Match { source: Prefix::host(server(1)), ..Match::ALL };
    let filtered = balanced(&[(1, 1), (2, 1)]).filter(denied, FilterAction::Deny);
    for mut bed in beds(&filtered) {
        let answers: Vec<_> = (0..60).map(|n| knock(&mut bed, client(n))).collect();
        assert!(answers.contains(&None) && answers.contains(&Some(at(server(2), PORT))));
        assert!(!answers.contains(&Some(at(server(1), PORT))));
        assert_eq!(bed.count(Verdict::DeniedByFilter), answers.iter().filter(|to| to.is_none()).count() as u64);
        bed.run_out();
    }
    // Sessions of a server count as its own, and more are refused.
    let mut limited = balanced(&[(1, 1), (2, 1)]);
    limited.subscriber = SubscriberLimits { sessions_max: 10, ..SubscriberLimits::default() };
    for mut bed in beds(&limited) {
        let first: Vec<_> = (0..200).filter_map(|n| knock(&mut bed, client(n))).collect();
        assert_eq!(first.len(), 20, "ten of each");
        assert!(bed.subscribers().iter().all(|subscriber| subscriber.sessions == 10));
        bed.run_out();
    }
    // Where the forward does as the pool says, strangers are strangers.
    let mut closed = balanced(&[(1, 1), (2, 1)]);
    closed.balanced_forwards[0].admission = Admission::AsPool;
    for mut bed in beds(&closed) {
        assert_eq!(knock(&mut bed, client(0)), None);
        assert!(call(&mut bed, client(0)).is_some(), "UDP is another forward");
    }
    // Nothing is opened by what opens nothing.
    for mut bed in beds(&balanced(&[(1, 1)])) {
        bed.outside(&build::tcp(client(0), open(), Flags::ACK).sequence(1).acknowledgment(1).build());
        bed.outside(&build::tcp(client(0), open(), Flags::RST).sequence(1).build());
        bed.outside(&build::udp(client(0), open()).ttl(1).payload(b"x").build());
        assert_eq!((bed.take_inside().len(), flows(&bed)), (0, 0));
        bed.take_outside();
        bed.run_out();
    }
}

#[test]
fn one_list_too_many_is_reported_beside_other_faults() {
    let mut bed = Bed::new(balanced(&[(1, 1)]));
    for n in 1..16 {
        connect(&mut bed, client(u32::from(n)));
        bed.advance_secs(1);
        bed.reload(balanced(&[(n + 1, 1)]));
    }
    connect(&mut bed, client(20));
    bed.advance_secs(1);
    let refused = |bed: &mut Bed, settings| bed.reload_while(settings, &[0], |_| {}).expect_err("there are 16 lists");
    let error = refused(&mut bed, balanced(&[(99, 1)]));
    let BuildError::TooManyTargetLists { protocol, external, limit } = error else { panic!("{error}") };
    assert_eq!((protocol, external.address, external.port, limit), (Protocol::Tcp, *open().ip(), open().port(), 16));
    let mut more = balanced(&[(99, 1)]);
    more.pools[0].addresses.extend((0..20).map(|n| Ipv4Addr::new(203, 0, 114, n)));
    let error = refused(&mut bed, more);
    let BuildError::Several(errors) = &error else { panic!("{error}") };
    assert!(matches!(errors[..], [BuildError::NoRoomForAddresses { places: 16, .. }, _]), "{error}");
    // When sessions of earlier lists have ended there is room.
    bed.run_out();
    bed.reload(balanced(&[(99, 1)]));
    connect(&mut bed, client(21));
}

#[test]
fn a_full_table_refuses_new_sessions_and_evicts_none() {
    let mut settings = balanced(&[(1, 1), (2, 1)]);
    settings.limits.flows_max = 16;
    let mut bed = Bed::new(settings);
    let there: Vec<_> = (0..16).map(|n| connect(&mut bed, client(n))).collect();
    assert_eq!(knock(&mut bed, client(16)), None);
    assert_eq!(bed.count(Verdict::FlowTableFull), 1);
    for (n, server) in (0..).zip(there) {
        assert!(talks_on(&mut bed, server, client(n)));
    }
    bed.run_out();
}

/// A forward of the same endpoint to one server.
fn to_one(n: u8) -> Settings {
    let mut settings = plain();
    let one = |protocol| Forward {
        realm: RealmId::default(),
        protocol,
        external: *open().ip(),
        ports: (open().port(), open().port()),
        inside: server(n).into(),
        inside_port: PORT,
        admission: Admission::Anyone,
    };
    settings.forwards = [Protocol::Tcp, Protocol::Udp].map(one).to_vec();
    settings
}

#[test]
fn one_target_becomes_several_and_several_become_one() {
    for mut bed in beds(&to_one(1)) {
        assert_eq!(connect(&mut bed, client(0)), at(server(1), PORT));
        bed.reload(balanced(&[(1, 1), (2, 1)]));
        assert!(talks_on(&mut bed, at(server(1), PORT), client(0)), "the mapping before goes on");
        let led: Vec<_> = (1..40).map(|n| connect(&mut bed, client(n))).collect();
        assert!(led.contains(&at(server(2), PORT)), "strangers do not wait for its end");
        assert!(talks_on(&mut bed, at(server(1), PORT), client(0)));
        bed.advance_secs(DRAIN + 10);
        assert_eq!(bed.mappings(), [], "it drains as a forward that is gone");
        bed.reload(to_one(2));
        for (n, to) in (1..).zip(&led) {
            assert!(talks_on(&mut bed, *to, client(n)));
        }
        for n in 50..80 {
            assert_eq!(connect(&mut bed, client(n)), at(server(2), PORT));
        }
        bed.advance_secs(DRAIN + 10);
        for (n, to) in (1..).zip(&led) {
            assert_eq!(talks_on(&mut bed, *to, client(n)), *to.ip() == server(2));
        }
        bed.run_out();
    }
}

#[test]
fn a_removed_target_opens_nothing_new_from_the_endpoint() {
    for mut bed in beds(&to_one(3)) {
        let old = at(server(3), PORT);
        assert_eq!(connect(&mut bed, client(0)), old);
        bed.reload(balanced(&[(1, 1), (2, 1)]));
        let to = connect(&mut bed, client(1));
        bed.take_outside();
        // To somebody who speaks with a target, and to anybody else: on which worker that is known
        // nobody here can say.
        for remote in [client(1), client(2)] {
            bed.inside(&build::tcp(old, remote, Flags::SYN).sequence(7).mss(1_460).build());
            assert!(bed.take_outside().is_empty(), "two would have one 5-tuple");
            assert_eq!(bed.take_inside().len(), 1, "the sender gets an ICMP error");
        }
        assert!(talks_on(&mut bed, to, client(1)), "the target keeps its client");
        assert!(talks_on(&mut bed, old, client(0)), "what was there goes on");
        bed.advance_secs(DRAIN + 10);
        assert_ne!(bed.open_tcp(old, client(2)), open(), "then it has an endpoint of its pool");
        bed.run_out();
    }
}

#[test]
fn an_earlier_owner_of_the_endpoint_reaches_no_new_remote() {
    for mut bed in beds(&to_one(3)) {
        let old = at(server(3), PORT);
        assert_eq!(call(&mut bed, client(0)), Some(old));
        bed.inside(&build::udp(old, client(0)).payload(b"I am").build());
        assert_eq!(source(&bed.only_outside()), open());
        bed.reload(balanced(&[(1, 1), (2, 1)]));
        let to = call(&mut bed, client(1)).expect("somebody is led there");
        assert_ne!(to, old);
        for remote in [client(1), client(2)] {
            bed.inside(&build::udp(old, remote).payload(b"and you").build());
            assert!(bed.take_outside().is_empty(), "two would have one 5-tuple");
            bed.take_inside();
        }
        assert_eq!(call(&mut bed, client(1)), Some(to), "the target keeps its client");
        bed.run_out();
    }
}

#[test]
fn the_port_of_a_removed_forward_is_kept_for_its_sessions() {
    // Exactly the forwarded port and one other.
    let only = |settings: Settings| settings.addresses(&POOL[1..2]).ports(443, 444);
    for mut bed in beds(&only(balanced(&[(1, 1), (2, 1)]))) {
        let to = connect(&mut bed, client(0));
        bed.reload(only(plain()));
        assert!(talks_on(&mut bed, to, client(0)));
        assert_eq!(knock(&mut bed, client(1)), None, "nobody new");
        assert_eq!(bed.open_tcp(at(I1, 5_000), at(E1, 80)).port(), 444);
        bed.reload(only(plain()));
        bed.inside(&build::tcp(at(I1, 5_001), at(E1, 80), Flags::SYN).sequence(1).mss(1_460).build());
        bed.take_inside();
        assert!(bed.take_outside().is_empty(), "the other port is not free");
        bed.advance_secs(DRAIN + 10);
        assert_eq!(flows(&bed), 0);
        bed.advance_secs(120);
        bed.take_outside();
        assert_eq!(bed.open_tcp(at(I1, 5_001), at(E1, 80)).port(), 443);
        bed.run_out();
    }
}

#[test]
fn the_port_of_a_removed_forward_is_freed_after_its_sessions() {
    const REST: u64 = 60;
    let only = |settings: Settings| {
        let mut settings = settings.addresses(&POOL[1..2]).ports(443, 443);
        settings.pools[0].reuse_delay = Duration::from_secs(REST);
        settings
    };
    for mut bed in beds(&only(balanced(&[(1, 1), (2, 1)]))) {
        let to = connect(&mut bed, client(0));
        let tries = |bed: &mut Bed| {
            bed.inside(&build::tcp(at(I1, 5_001), at(E1, 80), Flags::SYN).sequence(1).mss(1_460).build());
            bed.take_inside();
            !bed.take_outside().is_empty()
        };
        assert!(!tries(&mut bed));
        bed.reload(only(plain()));
        assert!(!tries(&mut bed), "the port is not given out while a session is left");
        assert!(talks_on(&mut bed, to, client(0)));
        bed.advance_secs(DRAIN + 10);
        assert_eq!(flows(&bed), 0);
        assert!(!tries(&mut bed), "the port is held down like those of mappings (RFC 6888 REQ-8)");
        bed.advance_secs(REST);
        assert!(tries(&mut bed), "the port is free");
        let external = SocketAddrV4::new(POOL[1], 443);
        assert!(bed.shared().balanced(endpoint(external), Protocol::Tcp).is_none());
        let answer = build::tcp(at(E1, 80), external, Flags::SYN.union(Flags::ACK)).sequence(9).acknowledgment(2);
        bed.outside(&answer.mss(1_460).build());
        assert_eq!(bed.take_inside().len(), 1, "and who has it now is reached");

        // A forward comes back to the port: its present mapping drains from then on.
        bed.reload(only(balanced(&[(3, 1)])));
        bed.advance_secs(DRAIN - 10);
        bed.inside(&build::tcp(at(I1, 5_001), at(E1, 80), Flags::ACK).sequence(2).acknowledgment(10).build());
        assert_eq!(bed.take_outside().len(), 1, "the mapping may still drain");
        assert_eq!(connect(&mut bed, client(5)), at(server(3), PORT));
        bed.run_out();
    }
}

#[test]
fn the_port_of_a_removed_forward_waits_for_all_workers() {
    let only = |settings: Settings| {
        let mut settings = settings.addresses(&POOL[1..2]).ports(443, 443);
        settings.pools[0].reuse_delay = Duration::ZERO;
        settings
    };
    let mut bed = Bed::new(only(balanced(&[(1, 1), (2, 1)]))).workers(3);
    let mut led = None;
    bed.reload_while(only(plain()), &[0, 1, 2], |bed| {
        bed.settle();
        // A client that a worker without the change still leads to a target.
        if led.is_none() {
            led = (0..16).find_map(|n| Some((knock(bed, client(n))?, client(n))));
        }
    })
    .expect("the settings can follow those before");
    let (to, from) = led.expect("somebody was led to a target in the midst of the change");
    bed.settle();
    assert_eq!(knock(&mut bed, client(99)), None);
    bed.inside(&build::tcp(at(I1, 5_001), at(E1, 80), Flags::SYN).sequence(1).mss(1_460).build());
    bed.take_inside();
    assert!(bed.take_outside().is_empty(), "a session of the client has the port");
    bed.inside(&build::tcp(to, from, SYN_ACK).sequence(9).acknowledgment(2).mss(1_460).build());
    assert!(talks_on(&mut bed, to, from));
    bed.run_out();
}

#[test]
fn all_workers_find_the_clients_of_a_new_forward() {
    let mut bed = Bed::new(plain()).workers(3);
    let (mut number, mut led) = (0, Vec::new());
    bed.reload_while(balanced(&[(1, 1), (2, 1), (3, 1)]), &[0, 1, 2], |bed| {
        bed.settle();
        for _ in 0..20 {
            number += 1;
            led.extend(call(bed, client(number)).map(|to| (client(number), to)));
        }
        for (from, to) in &led {
            for worker in 0..3 {
                bed.offer_to(worker, Side::Outside, &build::udp(*from, open()).payload(b"and").build());
                bed.settle();
                let came = bed.take_inside();
                assert_eq!(came.first().map(|packet| destination(packet)), Some(*to), "worker {worker} knows it");
            }
        }
    })
    .expect("the settings can follow those before");
    assert!(call(&mut bed, client(1_000)).is_some());
    bed.run_out();
}

#[test]
fn why_says_what_happens() {
    for mut bed in beds(&balanced(&[(1, 1), (2, 3)])) {
        for n in 0..50 {
            let syn = build::tcp(client(n), open(), Flags::SYN).sequence(1).mss(1_460).build();
            let explain = |bed: &Bed| {
                let workers = bed.shared().balanced_workers(endpoint(open()), Protocol::Tcp, endpoint(client(n)));
                let worker = workers.last().expect("one of them").index();
                let shard = bed.shards().nth(worker).expect("there is this worker");
                assert_eq!(shard.view().worker_to_ask(bed.now(), Side::Outside, &syn).index(), worker);
                shard.explain(bed.now(), Facing::OUTSIDE, &syn)
            };
            let preview = explain(&bed);
            assert_eq!(preview.verdict, Verdict::Inbound);
            assert!(preview.steps.iter().any(|step| matches!(step, nat::view::Step::Target { total: 4, .. })));
            let to = knock(&mut bed, client(n)).expect("somebody answers");
            assert_eq!(preview.destination_after, Some(endpoint(to)));
            assert_eq!(explain(&bed).destination_after, Some(endpoint(to)));
        }
    }
}
