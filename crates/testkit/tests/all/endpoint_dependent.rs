//! Endpoint-dependent translation beside endpoint-independent mappings: which packets get what,
//! both ways, and that neither breaks the other's promise.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::tcp::TcpState;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::Side;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::connection::SYN_ACK;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// Web traffic shares ports; each worker begins with one.
fn web() -> Settings {
    let mut settings = settings().endpoint_dependent(Prefix::ALL, (443, 443)).addresses(&POOL[..1]);
    settings.pools[0].shared_ports_min = 1;
    settings
}

fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// The n-th web server.
fn server(n: u32) -> SocketAddrV4 {
    at(Ipv4Addr::from_bits(0xc633_6400 + n), 443)
}

fn shared_ports(bed: &Bed) -> usize {
    bed.shards().map(|shard| shard.view().shared_ports_len()).sum()
}

fn flows(bed: &Bed) -> usize {
    bed.shards().map(|shard| shard.view().flows_len()).sum()
}

#[test]
fn one_external_port_serves_many_remote_endpoints() {
    covers!("7857-3a");
    for mut bed in beds(&web()) {
        for n in 1..200 {
            let internal = at(Ipv4Addr::from_bits(0x6440_0100 + n), 5_000);
            let external = bed.open_udp(internal, server(n));
            assert!(bed.udp_reaches(server(n), external, internal), "the answer to {n}");
            // Packets of other hosts do not: the endpoint is for this server only.
            assert!(!bed.udp_reaches(at(E2, 444), external, internal));
        }
        assert_eq!(flows(&bed), 199);
        let workers = bed.shards().count();
        assert_eq!(bed.ports_used(), shared_ports(&bed) as u64);
        assert!(shared_ports(&bed) <= workers, "one port a worker carries all: {}", shared_ports(&bed));
        assert_eq!(bed.count(Verdict::Filtered), 199);
        bed.run_out();
    }
}

#[test]
fn flows_to_one_remote_have_different_external_ports() {
    covers!("7857-3b");
    for protocol in Protocol::ALL {
        let mut settings = web().endpoint_dependent(Prefix::ALL, (0, 65_535));
        settings.pools[0].shared_ports_min = 1;
        for mut bed in beds(&settings) {
            let mut seen = HashSet::new();
            for n in 1..100_u32 {
                let internal = at(Ipv4Addr::from_bits(0x6440_0100 + n % 10), 5_000 + n as u16);
                let external = match protocol {
                    Protocol::Udp => bed.open_udp(internal, server(1)),
                    Protocol::Tcp => bed.connect(internal, server(1)),
                    Protocol::Icmp => bed.ping(*internal.ip(), internal.port(), *server(1).ip()),
                };
                assert!(seen.insert(external), "{external} is used twice towards one server");
                if protocol == Protocol::Icmp {
                    bed.outside(&build::echo_reply(*server(1).ip(), *external.ip(), external.port()).build());
                    assert_eq!(destination(&bed.only_inside()), internal);
                }
            }
            assert_eq!(bed.ports_used(), 99);
        }
    }
}

#[test]
fn an_endpoint_with_a_mapping_has_it_towards_everyone() {
    covers!("4787-REQ-1");
    for mut bed in beds(&web()) {
        let internal = at(I1, 5_000);
        let mapped = bed.open_udp(internal, at(E1, 9_999));
        // Where the rule would share a port: this endpoint has one already.
        assert_eq!(bed.open_udp(internal, server(7)), mapped);
        assert_eq!(bed.open_udp(internal, server(8)), mapped);
        assert_eq!(flows(&bed), 0);
        // A host that learns of it may send to it, as before, and is answered from there.
        assert!(bed.udp_reaches(server(9), mapped, internal));
        assert_eq!(bed.open_udp(internal, server(9)), mapped);
    }
}

#[test]
fn a_mapping_made_later_leaves_flows_as_they_are() {
    for mut bed in beds(&web()) {
        let internal = at(I1, 5_000);
        let flow = bed.open_udp(internal, server(1));
        let mapped = bed.open_udp(internal, at(E1, 9_999));
        assert_ne!(flow, mapped, "no mapping's port is shared");
        assert_eq!(bed.open_udp(internal, server(1)), flow, "a flow that is under way goes on");
        assert_eq!(bed.open_udp(internal, server(2)), mapped, "a new one has the mapping");
        assert!(bed.udp_reaches(server(1), flow, internal));
        assert!(bed.udp_reaches(server(2), mapped, internal));
        // One inside five-tuple is one connection: not by two ways at once.
        assert!(!bed.udp_reaches(server(1), mapped, internal));
        assert!(!bed.udp_reaches(server(2), flow, internal));
        bed.run_out();
    }
}

#[test]
fn a_shared_port_is_nobodys_mapping_and_no_mapping_has_it() {
    let mut settings = web().ports(10_000, 10_015).filtering(Filtering::EndpointIndependent);
    settings.pools[0].shared_ports_min = 3;
    for mut bed in beds(&settings) {
        let mut externals = HashSet::new();
        for n in 0..40 {
            bed.inside(&build::udp(at(I1, 6_000 + n), server(u32::from(n))).build());
            bed.inside(&build::udp(at(I1, 7_000 + n), at(E1, 9_999)).build());
        }
        bed.take_inside();
        for packet in bed.take_outside() {
            if destination(&packet).port() == 9_999 {
                assert!(externals.insert(source(&packet)), "two mappings on one port");
            }
        }
        for session in bed.sessions().iter().filter(|session| session.shared) {
            assert!(!externals.contains(&at(session.external.address, session.external.port)));
        }
        assert_eq!(bed.ports_used(), 16, "to the last port");
        assert_eq!(bed.ports_used(), (externals.len() + shared_ports(&bed)) as u64);
        assert_eq!(bed.count(Verdict::Outbound), 40 + externals.len() as u64, "flows need no port of their own");
        bed.run_out();
    }
}

#[test]
fn tcp_connections_by_flows_live_and_end_as_others_do() {
    for mut bed in beds(&web()) {
        let mut connection = Connection::open(&mut bed, at(I1, 5_000), server(1));
        assert_eq!(connection.state(&bed), Some(TcpState::Established));
        connection.pass_data(&mut bed, Side::Inside, b"GET /");
        connection.pass_data(&mut bed, Side::Outside, b"200");
        assert_eq!(connection.expires_in(&bed), Duration::from_secs(7_440 + 240));
        // A forged RST does nothing (RFC 7857 §2.2).
        let forged = build::tcp(server(1), connection.external, Flags::RST).sequence(0x7000_0000).build();
        connection.send_raw(&mut bed, Side::Outside, &forged);
        assert_eq!(connection.state(&bed), Some(TcpState::Established));
        connection.close(&mut bed, Side::Inside);
        assert_eq!(connection.state(&bed), Some(TcpState::Closing));
        assert_eq!(connection.expires_in(&bed), Duration::from_secs(240));
        bed.advance_secs(241);
        assert_eq!(connection.state(&bed), None);
        assert_eq!(flows(&bed), 0);
        // A segment of no connection makes none.
        bed.inside(&build::tcp(at(I1, 5_001), server(1), Flags::ACK).build());
        bed.outside(&build::tcp(server(1), connection.external, Flags::ACK).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::TcpNoSession), 1);
        bed.run_out();
    }
}

#[test]
fn both_ends_may_open_at_once() {
    covers!("5382-REQ-2");
    for mut bed in beds(&web()) {
        // A port is shared already, so that the other's SYN has somewhere to go.
        let external = bed.open_tcp(at(I1, 5_000), server(1));
        let early = build::tcp(server(2), external, Flags::SYN).sequence(9_000).build();
        bed.outside(&early);
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::UnsolicitedSyn), 1);
        // The same subscriber's SYN to the same server, which may get another port; only one of the
        // same is the answer.
        let answered = bed.open_tcp(at(I1, 5_001), server(2));
        assert_eq!(u64::from(answered == external), bed.counters().unsolicited_syns_matched);
        bed.outside(&build::tcp(server(2), answered, Flags::SYN).sequence(9_000).build());
        assert_eq!(destination(&bed.only_inside()), at(I1, 5_001));
        bed.outside(&build::tcp(server(2), answered, SYN_ACK).sequence(9_000).acknowledgment(1_001).build());
        assert_eq!(destination(&bed.only_inside()), at(I1, 5_001));
        let open = bed.sessions().into_iter().find(|session| session.internal.port == 5_001);
        assert_eq!(open.and_then(|session| session.state), Some(TcpState::Established));
        // RFC 5382 REQ-4: those that were not are answered after six seconds.
        bed.advance_secs(7);
        assert_eq!(bed.take_outside().len(), usize::from(answered != external));
    }
}

#[test]
fn errors_about_flows_are_translated_and_change_nothing() {
    covers!("5508-REQ-4", "5508-REQ-5");
    let settings = settings().endpoint_dependent(Prefix::ALL, (0, 65_535));
    for mut bed in beds(&settings) {
        for (protocol, sent) in [
            (Protocol::Udp, build::udp(at(I1, 5_000), server(1)).payload_length(80).dont_fragment().build()),
            (Protocol::Tcp, build::tcp(at(I1, 5_000), server(1), Flags::SYN).mss(1_460).dont_fragment().build()),
            (
                Protocol::Icmp,
                build::echo_request(I1, *server(1).ip(), 5_000).payload_length(80).dont_fragment().build(),
            ),
        ] {
            bed.inside(&sent);
            let left = bed.only_outside();
            let before = bed.sessions();
            bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 3, 4, &left).build());
            let reported = bed.only_inside();
            assert!(is_icmp(&reported, 3, 4) && *destination(&reported).ip() == I1, "{protocol}");
            assert_eq!(*source(&reported).ip(), OUTSIDE_ROUTER);
            assert_eq!((source(quote(&reported)), destination(quote(&reported))), (source(&sent), destination(&sent)));
            // About somebody else's flow on the same port: nobody's.
            let other = match protocol {
                Protocol::Udp => build::udp(source(&left), server(2)).payload_length(8).build(),
                Protocol::Tcp => build::tcp(source(&left), server(2), Flags::SYN).build(),
                Protocol::Icmp => {
                    build::echo_request(*source(&left).ip(), *server(2).ip(), source(&left).port()).build()
                }
            };
            bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 3, 4, &other).build());
            bed.assert_silent();
            // And from inside about what the server sent.
            let answer = match protocol {
                Protocol::Udp => build::udp(server(1), source(&left)).payload_length(8),
                Protocol::Tcp => build::tcp(server(1), source(&left), SYN_ACK),
                Protocol::Icmp => build::echo_reply(*server(1).ip(), *source(&left).ip(), source(&left).port()),
            };
            let answer = answer.dont_fragment().build();
            bed.outside(&answer);
            let arrived = bed.only_inside();
            bed.inside(&build::icmp_error(I1, *source(&arrived).ip(), 3, 3, &arrived).build());
            let reported = bed.only_outside();
            assert!(is_icmp(&reported, 3, 3), "{protocol}");
            assert_eq!(*source(&reported).ip(), *source(&left).ip(), "no inside address leaves");
            assert_eq!(
                (source(quote(&reported)), destination(quote(&reported))),
                (source(&answer), destination(&answer))
            );
            let count = |sessions: &[nat::view::SessionView]| sessions.iter().filter(|one| one.shared).count();
            assert_eq!(count(&bed.sessions()), count(&before), "errors end nothing");
        }
        assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 3);
        assert_eq!(bed.counters().icmp_errors_translated, 6);
        bed.run_out();
    }
}

#[test]
fn datagrams_in_pieces_pass_by_flows_in_any_order() {
    covers!("4787-REQ-14");
    let mut settings = web();
    settings.limits.fragmented_datagrams_max = 256;
    for mut bed in beds(&settings) {
        for (n, reversed) in [(1, false), (2, true)] {
            let sent = build::udp(at(I1, 5_000), server(n)).payload_length(4_000).identification(n as u16).build();
            let mut pieces = build::fragment(&sent, 1_500);
            if reversed {
                pieces.reverse();
            }
            for piece in &pieces {
                bed.inside(piece);
            }
            let left = build::reassemble(&bed.take_outside()).expect("all pieces left");
            assert_eq!((destination(&left), payload(&left)), (server(n), payload(&sent)));
            let answer = build::udp(server(n), source(&left)).payload_length(3_000).identification(7).build();
            let mut pieces = build::fragment(&answer, 1_500);
            if reversed {
                pieces.reverse();
            }
            for piece in &pieces {
                bed.outside(piece);
            }
            let arrived = build::reassemble(&bed.take_inside()).expect("all pieces arrived");
            assert_eq!((destination(&arrived), payload(&arrived)), (at(I1, 5_000), payload(&answer)));
        }
        assert_eq!(flows(&bed), 2);
    }
}

#[test]
fn an_unused_shared_port_goes_back_after_two_minutes() {
    let mut bed = Bed::new(web().short_timers());
    let first = bed.open_udp(at(I1, 5_000), server(1));
    bed.advance_secs(20);
    assert_eq!((flows(&bed), bed.ports_used()), (0, 1), "kept, for the next flow");
    assert_eq!(bed.open_udp(at(I2, 5_000), server(2)), first, "which another subscriber's may be");
    bed.advance_secs(125);
    assert_eq!(bed.ports_used(), 1, "less than two minutes since it carried nothing");
    bed.advance_secs(10);
    assert_eq!(bed.ports_used(), 0);
}

#[test]
fn a_full_table_refuses_and_takes_nothing() {
    covers!("6888-REQ-11a", "6888-REQ-11b", "6888-REQ-11d");
    for mut bed in beds(&web().limits(|limits| limits.flows_max = 4)) {
        for n in 0..40 {
            bed.inside(&build::udp(at(I1, 5_000 + n), server(u32::from(n))).build());
        }
        let left = bed.take_outside().len();
        assert_eq!(left, 4, "one subscriber is on one worker");
        assert_eq!(bed.count(Verdict::FlowTableFull), 36);
        let cause = SubscriberView::CAUSES.iter().position(|cause| *cause == Verdict::FlowTableFull);
        let cause = cause.expect("one of the causes a subscriber is refused for");
        assert_eq!(bed.subscribers()[0].refused[cause], 36, "counted for the subscriber, too");
        assert!(bed.take_inside().iter().all(|packet| is_icmp(packet, 3, 1)), "the sender gets an ICMP error");
        // What is there goes on.
        assert!(bed.sessions().iter().all(|session| session.remote.port == 443));
        bed.run_out();
    }
}

fn blocks_of(ports: u16) -> Blocks {
    Blocks {
        size: BlockSize::of_ports(u32::from(ports)).expect("a size of blocks"),
        per_subscriber_max: 4,
        idle: Duration::from_secs(60),
    }
}

#[test]
fn shared_ports_lie_outside_the_blocks_of_subscribers() {
    let mut settings = web();
    settings.pools[0].allocation = Allocation::Blocks(blocks_of(64));
    for mut bed in beds(&settings) {
        for n in 0..60 {
            let internal = at(Ipv4Addr::from_bits(0x6440_0100 + n % 6), 5_000 + n as u16);
            let flow = bed.open_udp(internal, server(n));
            assert!(bed.udp_reaches(server(n), flow, internal));
            bed.open_udp(at(*internal.ip(), 6_000 + n as u16), at(E1, 9_999));
        }
        let grain = |address: Ipv4Addr, port: u16| (address, port / 64);
        let blocks: HashSet<_> =
            bed.mappings().iter().map(|mapping| grain(mapping.external.address, mapping.external.port)).collect();
        let flows = bed.sessions().into_iter().filter(|session| session.shared);
        for flow in flows {
            assert!(!blocks.contains(&grain(flow.external.address, flow.external.port)), "{flow:?} is in a block");
        }
        bed.run_out();
    }
}

#[test]
fn shared_ports_leave_the_blocks_of_a_pool_to_its_subscribers() {
    let mut settings = web().addresses(&POOL[..1]).ports(1_024, 1_024 + 64 * 64 - 1);
    settings.pools[0].allocation = Allocation::Blocks(blocks_of(64));
    settings.pools[0].shared_ports_min = 64;
    for mut bed in beds(&settings) {
        let workers = bed.shards().count();
        for n in 0..600 {
            let internal = at(Ipv4Addr::from_bits(0x6440_0100 + n % 40), 5_000 + n as u16);
            bed.open_udp(internal, server(n));
            bed.open_tcp(internal, server(n));
        }
        let flows: Vec<_> = bed.sessions().into_iter().filter(|session| session.shared).collect();
        let ports: HashSet<_> = flows.iter().map(|flow| (flow.protocol, flow.external.port)).collect();
        let taken: HashSet<_> = flows.iter().map(|flow| flow.external.port / 64).collect();
        assert!(ports.len() >= 100, "{} shared ports", ports.len());
        // 64 of each protocol and worker, of which those of both protocols lie in one block; one
        // more where that is full by chance.
        assert!(taken.len() <= 2 * workers, "{} of 64 blocks have {} shared ports", taken.len(), ports.len());
        // All others are leased to the last.
        let leased = (0..64 - taken.len() as u32)
            .filter(|n| {
                let internal = at(Ipv4Addr::from_bits(0x6440_0200 + n), 5_000);
                bed.inside(&build::udp(internal, at(E1, 9_999)).build());
                !bed.take_outside().is_empty()
            })
            .count();
        assert_eq!(leased, 64 - taken.len());
        bed.run_out();
    }
}

#[test]
fn with_all_blocks_leased_flows_use_the_subscribers_block() {
    // Two blocks, each with an owner, and none to share ports from.
    let mut settings = web().addresses(&POOL[..1]).ports(1_024, 1_024 + 2 * 64 - 1);
    settings.pools[0].allocation = Allocation::Blocks(Blocks { per_subscriber_max: 1, ..blocks_of(64) });
    for mut bed in beds(&settings) {
        let owners = [1, 2].map(|n| Ipv4Addr::from_bits(0x6440_0200 + n));
        let blocks = owners.map(|owner| bed.open_udp(at(owner, 5_000), at(E1, 9_999)).port() / 64);
        for (owner, block) in owners.into_iter().zip(blocks) {
            let internal = at(owner, 6_000);
            let external = bed.open_udp(internal, server(1));
            assert_eq!(external.port() / 64, block);
            assert_eq!(bed.open_udp(internal, server(2)), external, "an endpoint-independent mapping");
        }
        assert_eq!((flows(&bed), bed.mappings().len()), (0, 4));
        // A subscriber without a block gets nothing.
        bed.inside(&build::udp(at(I1, 6_000), server(1)).build());
        assert!(bed.take_outside().is_empty());
        bed.run_out();
    }
}

#[test]
fn ports_of_a_formula_are_never_shared() {
    let mut settings = web();
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 0, 0], 26)];
    settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 2, overflow: blocks_of(64) };
    let mut bed = Bed::new(settings);
    let mapped = bed.open_udp(at(I1, 5_000), server(1));
    assert_eq!(bed.open_udp(at(I1, 5_000), server(2)), mapped, "an endpoint-independent mapping");
    assert_eq!((flows(&bed), bed.mappings().len()), (0, 1));
}

/// A rule may send web flows to a pool of their own. What the subscriber has from its usual pool
/// makes no difference to that, nor the other way round.
#[test]
fn flows_leave_from_the_pool_that_their_rule_names() {
    let mut settings = settings().addresses(&POOL[..1]);
    settings.pools.push(Pool {
        name: "web".to_owned(),
        addresses: vec![POOL[1]],
        subscribers: Vec::new(),
        ..settings.pools[0].clone()
    });
    let mapping = MappingKind::EndpointDependent;
    let matches = Match { destination_ports: PortRange { first: 443, last: 443 }, ..Match::ALL };
    settings.limits.flows_max = 10_000;
    let settings = settings.rule(matches, RuleAction::Translate { pool: Some(PoolId(1)), mapping });
    for mut bed in beds(&settings) {
        for first_is_web in [false, true] {
            let subscriber = Ipv4Addr::from_bits(0x6440_0100 + u32::from(first_is_web));
            for round in 0..3_u16 {
                let web = |bed: &mut Bed| *bed.open_udp(at(subscriber, 5_000 + round), server(u32::from(round))).ip();
                let own = |bed: &mut Bed| *bed.open_udp(at(subscriber, 6_000 + round), at(E1, 53)).ip();
                if first_is_web {
                    assert_eq!(web(&mut bed), POOL[1]);
                }
                assert_eq!(own(&mut bed), POOL[0], "round {round}");
                assert_eq!(web(&mut bed), POOL[1], "round {round}");
                // The same goes on under other settings.
                let mut other = settings.clone();
                other.timeouts.udp = Duration::from_secs(400 + u64::from(round));
                bed.reload(other);
            }
        }
        bed.run_out();
    }
}

/// The naive model: what a subscriber's packet is to leave with.
#[derive(Default)]
struct Model {
    /// By internal endpoint: external endpoint, and the end of each session.
    mappings: HashMap<(Protocol, SocketAddrV4), (SocketAddrV4, HashMap<SocketAddrV4, Instant>)>,
    /// By internal and remote endpoint: external endpoint and end.
    flows: HashMap<(Protocol, SocketAddrV4, SocketAddrV4), (SocketAddrV4, Instant)>,
}

impl Model {
    fn forget(&mut self, now: Instant) {
        for (_, sessions) in self.mappings.values_mut() {
            sessions.retain(|_, end| now < *end);
        }
        self.mappings.retain(|_, (_, sessions)| !sessions.is_empty());
        self.flows.retain(|_, (_, end)| now < *end);
    }

    /// A packet left from `external`: was that right?
    fn leaves(
        &mut self,
        protocol: Protocol,
        internal: SocketAddrV4,
        remote: SocketAddrV4,
        external: SocketAddrV4,
        is_shared: bool,
        end: Instant,
    ) {
        if let Some((own, sessions)) = self.mappings.get_mut(&(protocol, internal))
            && sessions.contains_key(&remote)
        {
            assert_eq!(external, *own, "a session of a mapping leaves from the mapping's endpoint");
            sessions.insert(remote, end);
        } else if let Some((own, life)) = self.flows.get_mut(&(protocol, internal, remote)) {
            assert_eq!(external, *own, "a flow stays");
            *life = end;
        } else if let Some((own, sessions)) = self.mappings.get_mut(&(protocol, internal)) {
            assert_eq!(external, *own, "an existing mapping is used");
            sessions.insert(remote, end);
        } else {
            let mapped = self.mappings.iter().any(|(known, (own, _))| known.0 == protocol && *own == external);
            assert!(!mapped, "{external} is a mapping's");
            let mut others = self.flows.iter().filter(|(known, (own, _))| known.0 == protocol && *own == external);
            if is_shared {
                assert!(others.all(|(known, _)| known.2 != remote), "{external} is taken towards {remote}");
                self.flows.insert((protocol, internal, remote), (external, end));
            } else {
                assert_eq!(others.count(), 0, "{external} is shared by flows");
                self.mappings.insert((protocol, internal), (external, HashMap::from([(remote, end)])));
            }
        }
    }

    /// The inside host that a packet from outside is for.
    fn enters(&self, protocol: Protocol, remote: SocketAddrV4, external: SocketAddrV4) -> Option<SocketAddrV4> {
        let flow = self.flows.iter().find(|(known, (own, _))| (known.0, known.2, *own) == (protocol, remote, external));
        if let Some((known, _)) = flow {
            return Some(known.1);
        }
        let mapping = self.mappings.iter().find(|(known, (own, _))| (known.0, *own) == (protocol, external));
        let (internal, sessions) = mapping.map(|(known, (_, sessions))| (known.1, sessions))?;
        let by_flow = self.flows.contains_key(&(protocol, internal, remote)) && !sessions.contains_key(&remote);
        (!by_flow).then_some(internal)
    }
}

/// UDP and ICMP without inbound refresh live as long after each packet from inside; of TCP only
/// SYNs are sent, likewise.
const IDLE: Duration = Duration::from_secs(10);

fn run_against_the_model(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut settings = settings().short_timers().addresses(&POOL[..1]).endpoint_dependent(Prefix::ALL, (400, 500));
    // Pings to some, too: their remote port is 0.
    settings = settings.endpoint_dependent(Prefix::host(E1), (0, 0));
    settings.pools[0].shared_ports_min = random.random_range(1..4);
    let workers = random.random_range(1..5);
    let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random);
    let mut model = Model::default();
    let mut known = Vec::new();
    let (mut left, mut arrived, mut shared_packets) = (0, 0, 0);
    for _ in 0..1_500 {
        let protocol = Protocol::ALL[random.random_range(0..3)];
        let remote = at(if random.random() { E1 } else { E2 }, [443, 444, 80][random.random_range(0..3)]);
        let remote = if protocol == Protocol::Icmp { at(*remote.ip(), 0) } else { remote };
        if known.is_empty() || random.random_ratio(3, 5) {
            let host = random.random_range(0..6);
            let internal = at([100, 64, 0, 10 + host].into(), 5_000 + random.random_range(0..4));
            let packet = match protocol {
                Protocol::Udp => build::udp(internal, remote).payload_length(8).build(),
                Protocol::Tcp => build::tcp(internal, remote, Flags::SYN).build(),
                Protocol::Icmp => build::echo_request(*internal.ip(), *remote.ip(), internal.port()).build(),
            };
            bed.inside(&packet);
            let external = source(&bed.only_outside());
            let is_shared = (400..=500).contains(&remote.port()) || (remote.port() == 0 && *remote.ip() == E1);
            model.leaves(protocol, internal, remote, external, is_shared, bed.now() + IDLE);
            known.push((protocol, external));
            left += 1;
            shared_packets += u64::from(is_shared);
        } else {
            let (protocol, external) = known[random.random_range(known.len().saturating_sub(50)..known.len())];
            if protocol == Protocol::Tcp {
                // What a SYN from outside does to mappings is other tests' business.
                continue;
            }
            let remote = if protocol == Protocol::Icmp { at(*remote.ip(), 0) } else { remote };
            let packet = match protocol {
                Protocol::Icmp => build::echo_reply(*remote.ip(), *external.ip(), external.port()).build(),
                _ => build::udp(remote, external).payload_length(8).build(),
            };
            bed.outside(&packet);
            let reached = bed.take_inside();
            assert!(reached.len() < 2 && bed.take_outside().is_empty());
            let reached = reached.first().map(|packet| destination(packet));
            assert_eq!(reached, model.enters(protocol, remote, external), "{protocol} {remote} to {external}");
            arrived += u64::from(reached.is_some());
        }
        if random.random_ratio(1, 6) {
            bed.advance(Duration::from_millis(random.random_range(1..4_000)));
        }
        model.forget(bed.now());
    }
    assert!(
        left > 500 && arrived > 20 && shared_packets > 100,
        "{left} left, {arrived} arrived, {shared_packets} shared"
    );
    bed.run_out();
}

#[test]
fn packets_go_where_a_naive_model_says() {
    for_each_seed(12, run_against_the_model);
}
