//! How ports that flows share count towards a subscriber's limit of external ports: a port counts
//! for the subscriber that used it first, as long as it has a flow there; others share it for free.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::cell::Cell;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::Class;
use nat::settings::Pooling;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::types::Prefix;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::openers::Openers;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// Web traffic shares ports; a hundred of them, of which one subscriber may have `quota` of each
/// protocol.
fn web(quota: u32) -> Settings {
    let mut settings = settings().endpoint_dependent(Prefix::ALL, (443, 443)).addresses(&POOL[..1]);
    settings = settings.ports(10_000, 10_099).short_timers();
    settings.pools[0].reuse_delay = Duration::ZERO;
    settings.subscriber.ports_max = [quota; Protocol::COUNT];
    settings
}

fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// The n-th web server.
fn server(n: u32) -> SocketAddrV4 {
    at(Ipv4Addr::from_bits(0xc633_6400 + n), 443)
}

fn neighbour(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0200 + n)
}

fn view(bed: &Bed, subscriber: Ipv4Addr) -> Option<SubscriberView> {
    bed.subscribers().into_iter().find(|view| view.address == subscriber)
}

/// Sends what opens something; the external endpoint it left from, if it did.
fn send(bed: &mut Bed, protocol: Protocol, internal: SocketAddrV4, remote: SocketAddrV4) -> Option<SocketAddrV4> {
    let packet = match protocol {
        Protocol::Udp => build::udp(internal, remote).payload_length(8).build(),
        Protocol::Tcp => build::tcp(internal, remote, Flags::SYN).build(),
        Protocol::Icmp => build::echo_request(*internal.ip(), *remote.ip(), internal.port()).build(),
    };
    bed.inside(&packet);
    let left = bed.take_outside();
    assert!(left.len() < 2);
    left.first().map(|packet| source(packet))
}

#[test]
fn flows_of_one_subscriber_take_no_more_ports_than_it_may_have() {
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        for shared_ports_min in [1, 64] {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let mut settings = web(5).pooling(pooling);
                settings.pools[0].shared_ports_min = shared_ports_min;
                for mut bed in beds(&settings) {
                    // Towards one server each flow needs a port of its own.
                    let mut externals = HashSet::new();
                    for n in 0..90 {
                        externals.extend(send(&mut bed, protocol, at(I1, 5_000 + n), server(1)));
                    }
                    assert_eq!((externals.len(), bed.ports_used()), (5, 5));
                    assert_eq!(bed.count(Verdict::SubscriberPortQuota), 85);
                    assert!(
                        bed.take_inside().iter().all(|packet| is_icmp(packet, 3, 1)),
                        "the sender gets an ICMP error"
                    );
                    let he = view(&bed, I1).expect("it has flows");
                    assert_eq!((he.shared_ports[protocol.index()], he.sessions), (5, 5));
                    let cause = SubscriberView::CAUSES.iter().position(|cause| *cause == Verdict::SubscriberPortQuota);
                    assert_eq!(he.refused[cause.expect("one of the causes")], 85);
                    // Those five ports serve other servers, with any number of flows.
                    for n in 2..40 {
                        let external = send(&mut bed, protocol, at(I1, 5_000), server(n)).expect("a port is there");
                        assert!(externals.contains(&external));
                    }
                    // A port for everyone it talks to would be the sixth.
                    assert_eq!(send(&mut bed, protocol, at(I1, 7_000), at(E1, 9_999)), None);
                    // The other protocols have limits of their own.
                    assert!(send(&mut bed, Protocol::Icmp, at(I1, 7_000), at(E1, 0)).is_some());
                    // And all others have all the other ports.
                    for n in 0..40 {
                        let plain = send(&mut bed, protocol, at(neighbour(n), 5_000), at(E1, 80));
                        assert!(plain.is_some_and(|external| !externals.contains(&external)));
                    }
                    bed.run_out();
                    assert_eq!(view(&bed, I1), None);
                }
            }
        }
    }
}

#[test]
fn mappings_and_shared_ports_are_counted_together() {
    for mut bed in beds(&web(5)) {
        for n in 0..3 {
            assert!(send(&mut bed, Protocol::Udp, at(I1, 6_000 + n), at(E1, 9_999)).is_some());
        }
        let flows = (0..5).filter(|n| send(&mut bed, Protocol::Udp, at(I1, 5_000 + n), server(1)).is_some()).count();
        assert_eq!(flows, 2);
        let he = view(&bed, I1).expect("it has both");
        assert_eq!((he.mappings[0], he.shared_ports[0]), (3, 2));
        assert_eq!(send(&mut bed, Protocol::Udp, at(I1, 6_003), at(E1, 9_999)), None);
        bed.run_out();
    }
}

#[test]
fn a_port_counts_only_for_its_opener_while_it_has_flows() {
    let mut settings = web(1);
    // So that the port stays, whatever is over on it.
    settings.pools[0].reuse_delay = Duration::from_secs(120);
    settings.pools[0].shared_ports_min = 1;
    let mut bed = Bed::new(settings);
    let of = |bed: &Bed, subscriber| view(bed, subscriber).map(|view| view.shared_ports[0]);
    let opened = send(&mut bed, Protocol::Udp, at(I1, 5_000), server(1)).expect("the first port");
    bed.advance_secs(5);
    // The subscriber has two flows there now, and a neighbour shares the port for free.
    assert_eq!(send(&mut bed, Protocol::Udp, at(I1, 5_000), server(2)), Some(opened));
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(3)), Some(opened));
    assert_eq!((of(&bed, I1), of(&bed, I2)), (Some(1), Some(0)));
    // The flow that opened the port is over, another of the same subscriber is not.
    bed.advance_secs(6);
    assert_eq!(bed.sessions().len(), 2);
    assert_eq!((of(&bed, I1), of(&bed, I2)), (Some(1), Some(0)));
    assert_eq!(send(&mut bed, Protocol::Udp, at(I1, 6_000), at(E1, 9_999)), None);
    // Only the neighbour's flow goes on: the port counts for nobody, even if another joins.
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(3)), Some(opened));
    bed.advance_secs(6);
    assert_eq!((of(&bed, I1), of(&bed, I2)), (None, Some(0)));
    assert_eq!(send(&mut bed, Protocol::Udp, at(I1, 5_000), server(4)), Some(opened));
    assert_eq!(of(&bed, I1), Some(0));
    // When all of it is over, it counts for the first one on it.
    bed.advance_secs(30);
    assert_eq!((of(&bed, I1), of(&bed, I2), bed.ports_used()), (None, None, 1));
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(5)), Some(opened));
    assert_eq!((of(&bed, I1), of(&bed, I2)), (None, Some(1)));
    bed.run_out();
}

#[test]
fn a_quota_of_no_ports_joins_shared_ports_and_opens_none() {
    let mut settings = web(3);
    settings.pools[0].shared_ports_min = 1;
    let limits = SubscriberLimits { ports_max: [0; Protocol::COUNT], ..SubscriberLimits::default() };
    settings.classes.push(Class {
        name: "none".to_owned(),
        subscribers: vec![Prefix::host(I2)],
        realms: Vec::new(),
        limits,
        gateways: None,
    });
    let mut bed = Bed::new(settings);
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(1)), None);
    assert_eq!(view(&bed, I2), None, "it has nothing");
    let opened = send(&mut bed, Protocol::Udp, at(I1, 5_000), server(1));
    assert!(opened.is_some());
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(2)), opened);
    assert_eq!(send(&mut bed, Protocol::Udp, at(I2, 5_000), server(1)), None, "it is taken towards server 1");
    assert_eq!(bed.count(Verdict::SubscriberPortQuota), 2);
    bed.run_out();
}

#[test]
fn a_threshold_counts_shared_ports_too() {
    let mut settings = web(4);
    settings.subscriber.threshold = Some(Threshold { high_percent: 75, low_percent: 25 });
    let mut bed = Bed::new(settings).record_events(1 << 12);
    let reported = |bed: &mut Bed| {
        let is_reported = |kind| matches!(kind, EventKind::ThresholdReached | EventKind::ThresholdCleared);
        let mut events = bed.take_events(0, 1 << 12);
        events.retain(|event| is_reported(event.kind) && event.cause == Cause::SubscriberPorts);
        events.iter().map(|event| (event.kind, event.subscriber, event.amount)).collect::<Vec<_>>()
    };
    for n in 0..2 {
        assert!(send(&mut bed, Protocol::Udp, at(I1, 5_000 + n), server(1)).is_some());
    }
    assert_eq!(reported(&mut bed), []);
    assert!(send(&mut bed, Protocol::Udp, at(I1, 5_002), server(1)).is_some());
    assert_eq!(reported(&mut bed), [(EventKind::ThresholdReached, I1, 75)]);
    bed.advance_secs(12);
    assert_eq!(reported(&mut bed), [(EventKind::ThresholdCleared, I1, 25)]);
    bed.run_out();
}

fn alive(bed: &Bed) -> HashMap<(Protocol, SocketAddrV4, SocketAddrV4), SocketAddrV4> {
    let endpoint = |endpoint: nat::types::Endpoint| at(endpoint.address, endpoint.port);
    let flows = bed.sessions().into_iter().filter(|session| session.shared);
    let key = |one: &nat::view::SessionView| (one.protocol, endpoint(one.internal), endpoint(one.remote));
    flows.map(|one| (key(&one), endpoint(one.external))).collect()
}

fn run_against_the_model(seed: u64) -> [u64; 4] {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut settings = web(random.random_range(1..8)).ports(10_000, 10_000 + random.random_range(10..60));
    settings = settings.pooling(if random.random() { Pooling::Paired } else { Pooling::Arbitrary });
    settings.pools[0].shared_ports_min = random.random_range(1..20);
    let workers = random.random_range(1..4);
    let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random);
    let mut openers = Openers::default();
    // Flows that opened a port, that shared one, and those that were refused by the limit; reloads.
    let mut counts = [0; 4];
    for _ in 0..500 {
        if random.random_ratio(1, 40) {
            let mut other = bed.settings().clone();
            other.subscriber.ports_max = [random.random_range(0..8); Protocol::COUNT];
            bed.reload(other);
            counts[3] += 1;
        }
        if random.random_ratio(1, 8) {
            let before = alive(&bed);
            bed.advance(Duration::from_millis(random.random_range(1..9_000)));
            bed.sweep();
            let left = alive(&bed);
            for ((protocol, internal, remote), external) in before.iter().filter(|(key, _)| !left.contains_key(*key)) {
                openers.end(*protocol, *external, (*internal, *remote));
            }
        }
        let protocol = [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
        let subscriber = neighbour(random.random_range(0..5));
        let internal = at(subscriber, 5_000 + random.random_range(0..12));
        let is_web = random.random_ratio(3, 4);
        let remote = if is_web { server(random.random_range(0..6)) } else { at(E1, 9_999) };
        let quota = bed.settings().subscriber.ports_max[protocol.index()];
        let mapped = |bed: &Bed| {
            let of = |one: &&nat::view::MappingView| one.protocol == protocol && one.internal.address == subscriber;
            bed.mappings().iter().filter(of).count() as u32
        };
        let known = alive(&bed);
        let had_mapping = bed.mapping_of(protocol, internal).is_some();
        let had = known.contains_key(&(protocol, internal, remote)) || had_mapping;
        let used = mapped(&bed) + openers.of(subscriber, protocol);
        let refused_before = bed.count(Verdict::SubscriberPortQuota);
        let external = send(&mut bed, protocol, internal, remote);
        bed.take_inside();
        let was_refused = bed.count(Verdict::SubscriberPortQuota) > refused_before;
        let now = alive(&bed);
        let is_new_flow = !known.contains_key(&(protocol, internal, remote)) && now.len() > known.len();
        if had {
            assert!(external.is_some(), "what is there goes on");
        }
        // Each worker has its own ports: with several workers it is not known which one has which.
        let fits = workers == 1 && openers.has_room_towards(protocol, remote);
        if was_refused {
            assert!(!had && used >= quota, "{subscriber} uses {used} of {quota}");
            assert!(!is_web || !fits, "a port that carries flows was to be had");
            counts[2] += 1;
        } else if !had && used >= quota && external.is_some() {
            assert!(is_new_flow, "over the limit nothing but shares is given");
        }
        if let Some(external) = external.filter(|_| is_new_flow) {
            if openers.begin(protocol, external, (internal, remote)) {
                assert!(used < quota, "{subscriber} opens a port with {used} of {quota}");
                counts[0] += 1;
            } else {
                counts[1] += 1;
            }
        }
        for view in bed.subscribers().iter().filter(|view| !view.is_refused_only) {
            let expected = Protocol::ALL.map(|protocol| openers.of(view.address, protocol));
            assert_eq!(view.shared_ports, expected, "{view:?}");
        }
    }
    bed.run_out();
    counts
}

#[test]
fn shared_ports_count_as_in_a_naive_model() {
    let total = Cell::new([0; 4]);
    for_each_seed(24, |seed| {
        let (before, more) = (total.get(), run_against_the_model(seed));
        total.set([0, 1, 2, 3].map(|kind| before[kind] + more[kind]));
    });
    assert!(total.get().iter().all(|count| *count > 0), "opened, shared, refused, reloads: {total:?}");
}
