//! Static forwards to hosts behind NAT64 and behind B4s (RFC 6146 §3.1: static BIB entries).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::types::InsideHost;
use nat::types::RealmId;
use nat::types::Side;
use nat::view::Step;
use pcp::SERVER_PORT;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SUCCESS: u8 = 0;
const NOT_AUTHORIZED: u8 = 2;
const CANNOT_PROVIDE_EXTERNAL: u8 = 11;
/// Another host of the subscriber of [`C6`].
const C6_OTHER: &str = "2001:db8:c:177::7";
const B4: &str = "2001:db8:b:400::1";
const OTHER_B4: &str = "2001:db8:b:500::1";
const INNER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// Outside the range of the pool.
const WEB: SocketAddrV4 = SocketAddrV4::new(POOL[1], 443);
const CAMERA: SocketAddrV4 = SocketAddrV4::new(POOL[2], 8_080);

fn forward(external: SocketAddrV4, inside: InsideHost, inside_port: u16) -> Forward {
    Forward {
        realm: RealmId::default(),
        protocol: Protocol::Udp,
        external: *external.ip(),
        ports: (external.port(), external.port()),
        inside,
        inside_port,
        admission: Admission::Anyone,
    }
}

fn ipv6(text: &str) -> InsideHost {
    InsideHost::Ipv6(v6(text).into())
}

fn behind_b4(b4: &str) -> InsideHost {
    InsideHost::BehindB4 { b4: v6(b4).into(), inner: INNER }
}

/// [`WEB`] leads to port 80 of [`C6`], [`CAMERA`] to port 81 of [`INNER`] behind [`B4`].
fn forwarded() -> Settings {
    let mut settings = settings6().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    settings.forwards = vec![forward(WEB, ipv6(C6), 80), forward(CAMERA, behind_b4(B4), 81)];
    settings
}

/// What a datagram from outside becomes inside.
fn came(bed: &mut Bed6, from: SocketAddrV4, to: SocketAddrV4) -> Option<Vec<u8>> {
    let [inside, out] = bed.outside(&build::udp(from, to).payload(b"hello").build());
    assert!(out.is_empty());
    inside.into_iter().next()
}

/// Where a datagram of a NAT64 host leaves from.
fn left_from(bed: &mut Bed6, host: &str, port: u16, to: SocketAddrV4) -> Option<SocketAddrV4> {
    let [_, out] = bed.inside(&udp6((v6(host), port), (behind(*to.ip()), to.port()), b"x"));
    out.first().map(|packet| source(packet))
}

fn left_from_b4(bed: &mut Bed6, b4: &str, port: u16, to: SocketAddrV4) -> Option<SocketAddrV4> {
    let [_, out] = bed.inside(&softwire(v6(b4), v6(AFTR), &build::udp(at(INNER, port), to).payload(b"x").build()));
    out.first().map(|packet| source(packet))
}

#[test]
fn a_forward_leads_to_an_ipv6_host_however_long_it_was_idle() {
    covers!("6146-3");
    for workers in [1, 2, 8] {
        let mut bed = Bed6::with_workers(forwarded(), workers);
        for round in 0..3 {
            // Anyone reaches the host, which has not sent anything.
            let packet = came(&mut bed, at(E1, 1_000 + round), WEB).expect("it is forwarded");
            assert_eq!(bed.verdict(), Some(Verdict::Inbound));
            assert_eq!((source6(&packet), destination6(&packet)), ((behind(E1), 1_000 + round), (v6(C6), 80)));
            assert_eq!(left_from(&mut bed, C6, 80, at(E1, 1_000 + round)), Some(WEB));
            // Ten times the timer, and long after its record has gone.
            bed.advance(Duration::from_secs(10 * 300));
            assert_eq!(bed.mapping_views(), []);
        }
    }
}

#[test]
fn a_forward_leads_into_a_softwire() {
    covers!("6333-5", "6146-3");
    for workers in [1, 2, 8] {
        let mut bed = Bed6::with_workers(forwarded(), workers);
        let packet = came(&mut bed, at(E1, 1_000), CAMERA).expect("it is forwarded");
        assert_eq!((view6(&packet).source(), view6(&packet).destination()), (v6(AFTR), v6(B4)));
        assert_eq!((source(&packet[40..]), destination(&packet[40..])), (at(E1, 1_000), at(INNER, 81)));
        assert_eq!(left_from_b4(&mut bed, B4, 81, at(E2, 53)), Some(CAMERA));
        // The same inner endpoint behind another B4 is another host.
        assert_ne!(left_from_b4(&mut bed, OTHER_B4, 81, at(E2, 53)), Some(CAMERA));
    }
}

#[test]
fn a_host_uses_its_forwards_port_before_any_inbound_packet() {
    for workers in [1, 2] {
        let mut bed = Bed6::with_workers(forwarded(), workers);
        assert_eq!(left_from(&mut bed, C6, 80, at(E1, 53)), Some(WEB));
        assert_eq!(left_from_b4(&mut bed, B4, 81, at(E1, 53)), Some(CAMERA));
        // Other ports of the subscriber's hosts share the address (RFC 4787 REQ-2).
        let other = left_from(&mut bed, C6_OTHER, 80, at(E1, 53)).expect("it leaves");
        assert_eq!((other.ip(), other == WEB), (WEB.ip(), false));
    }
}

#[test]
fn the_first_host_of_a_prefix_gets_the_address_of_its_forward() {
    for _ in 0..8 {
        let mut bed = Bed6::new(forwarded());
        let first = left_from(&mut bed, C6_OTHER, 5_000, at(E1, 53)).expect("it leaves");
        assert_eq!(first.ip(), WEB.ip(), "RFC 4787 REQ-2, for all hosts of the subscriber");
    }
}

#[test]
fn subscribers_of_all_families_reach_a_forward_by_hairpin() {
    covers!("6146-29");
    for workers in [1, 2, 8] {
        let mut bed = Bed6::with_workers(forwarded(), workers);
        let [inside, _] = bed.inside(&udp6((v6(D6), 5_000), (behind(*WEB.ip()), WEB.port()), b"hello"));
        assert_eq!(bed.verdict(), Some(Verdict::Hairpin));
        let (from, port) = source6(&inside[0]);
        assert_eq!(destination6(&inside[0]), (v6(C6), 80));
        let [inside, _] = bed.inside(&udp6((v6(C6), 80), (from, port), b"answer"));
        let answered = (source6(&inside[0]), destination6(&inside[0]));
        assert_eq!(answered, ((behind(*WEB.ip()), WEB.port()), (v6(D6), 5_000)));
        let [inside, _] = bed.inside(&build::udp(at(I1, 5_000), CAMERA).payload(b"hello").build());
        assert_eq!(destination(&inside[0][40..]), at(INNER, 81));
        let [inside, _] = bed.inside(&softwire(v6(B4), v6(AFTR), &build::udp(at(INNER, 9), WEB).build()));
        assert_eq!(destination6(&inside[0]), (v6(C6), 80));
        // To itself.
        let [inside, _] = bed.inside(&udp6((v6(C6), 9), (behind(*WEB.ip()), WEB.port()), b"hello"));
        assert_eq!(destination6(&inside[0]), (v6(C6), 80));
    }
}

#[test]
fn a_connection_through_a_forward_is_tracked() {
    let mut settings = forwarded();
    settings.forwards.iter_mut().for_each(|one| one.protocol = Protocol::Tcp);
    let mut bed = Bed6::new(settings);
    let [inside, _] = bed.outside(&build::tcp(at(E1, 1_000), WEB, Flags(2)).build());
    assert_eq!(destination6(&inside[0]), (v6(C6), 80));
    let [_, out] = bed.inside(&tcp6((v6(C6), 80), (behind(E1), 1_000), 0x12, (7, 1), b""));
    assert_eq!(source(&out[0]), WEB);
    let [inside, _] = bed.outside(&build::tcp(at(E1, 1_000), WEB, Flags(0x10)).build());
    assert_eq!(inside.len(), 1);
    bed.advance(Duration::from_secs(7_000));
    let [inside, _] = bed.outside(&build::tcp(at(E1, 1_000), WEB, Flags(0x10)).build());
    assert_eq!(inside.len(), 1, "it is established");
}

#[test]
fn filters_and_the_pools_filtering_apply_to_forwards() {
    let mut settings = forwarded();
    settings.forwards.iter_mut().for_each(|one| one.admission = Admission::AsPool);
    let mut bed = Bed6::new(settings);
    assert_eq!(came(&mut bed, at(E1, 1_000), WEB), None);
    assert_eq!(bed.verdict(), Some(Verdict::Filtered));
    assert_eq!(left_from(&mut bed, C6, 80, at(E1, 1_000)), Some(WEB));
    assert!(came(&mut bed, at(E1, 1_000), WEB).is_some());
}

#[test]
fn the_port_of_a_forward_is_never_granted() {
    covers!("6887-11.3f");
    let mut bed = Bed6::new(forwarded());
    let mut told = |host: &str, ask: &Ask| {
        let message = ask.message6(v6(host), None);
        PcpReply::of(&bed.answer6((v6(host), 40_000), (v6(OWN6), SERVER_PORT), &message).expect("a reply"))
    };
    let ask = |port| Ask::map(Ipv4Addr::UNSPECIFIED, Protocol::Udp, port).suggest(WEB);
    let other = told(D6, &ask(7_000));
    assert_eq!((other.code, other.external == WEB), (SUCCESS, false));
    assert_eq!(told(D6, &ask(7_001).prefer_failure()).code, CANNOT_PROVIDE_EXTERNAL);
    // The host itself has it already, and cannot end it.
    let own = told(C6, &ask(80));
    assert_eq!((own.code, own.external), (SUCCESS, WEB));
    assert_eq!(told(C6, &ask(80).lifetime(0)).code, NOT_AUTHORIZED);
}

#[test]
fn a_reload_adds_moves_and_removes_forwards_to_ipv6_hosts() {
    for workers in [1, 2] {
        let mut before = forwarded();
        before.forwards.clear();
        let mut bed = Bed6::with_workers(before.clone(), workers);
        let of_c6 = left_from(&mut bed, C6, 5_000, at(E1, 53)).expect("it leaves");
        assert_eq!(came(&mut bed, at(E2, 9), WEB), None);
        // A host with mappings gets a forward, and keeps what it has.
        bed.reload(forwarded(), |_| {}).expect("valid settings");
        assert!(came(&mut bed, at(E1, 53), of_c6).is_some());
        assert_eq!(left_from(&mut bed, C6, 5_000, at(E1, 53)), Some(of_c6));
        assert_eq!(destination6(&came(&mut bed, at(E2, 9), WEB).expect("it is forwarded")), (v6(C6), 80));
        assert!(came(&mut bed, at(E2, 9), CAMERA).is_some());
        // To another host: the old mapping accepts nobody new, and ends.
        let mut moved = forwarded();
        moved.forwards[0].inside = ipv6(D6);
        bed.reload(moved, |_| {}).expect("valid settings");
        assert!(came(&mut bed, at(E2, 9), WEB).is_some_and(|packet| destination6(&packet) == (v6(C6), 80)));
        assert_eq!(came(&mut bed, at(E2, 10), WEB), None);
        bed.advance(Duration::from_secs(600));
        assert_eq!(destination6(&came(&mut bed, at(E2, 10), WEB).expect("it is forwarded")), (v6(D6), 80));
        assert!(came(&mut bed, at(E2, 10), CAMERA).is_some());
        // Removed: nobody new comes in.
        bed.reload(before, |_| {}).expect("valid settings");
        assert_eq!(came(&mut bed, at(E2, 11), WEB), None);
        assert_eq!(came(&mut bed, at(E2, 11), CAMERA), None);
        assert!(came(&mut bed, at(E2, 10), CAMERA).is_some(), "what is in use drains");
    }
}

#[test]
fn a_forward_to_an_ipv6_host_begins_after_sessions_of_targets() {
    let mut before = forwarded();
    before.limits.flows_max = 100;
    let after = before.clone();
    let only = before.forwards.remove(0);
    before.balanced_forwards = vec![nat::settings::BalancedForward {
        realm: only.realm,
        protocol: only.protocol,
        external: only.external,
        ports: only.ports,
        targets: vec![nat::redirection::Target { address: I1.to_bits(), port: Some(80), weight: 1 }],
        admission: Admission::Anyone,
        is_sticky: false,
    }];
    let mut bed = Bed6::new(before);
    let [inside, _] = bed.outside(&build::udp(at(E1, 9), WEB).build());
    assert_eq!(destination(&inside[0]), at(I1, 80));
    bed.reload(after, |_| {}).expect("valid settings");
    let [inside, _] = bed.outside(&build::udp(at(E1, 9), WEB).build());
    assert_eq!(destination(&inside[0]), at(I1, 80), "its session goes on");
    assert_eq!(came(&mut bed, at(E1, 10), WEB), None);
    bed.advance(Duration::from_secs(1_200));
    assert_eq!(destination6(&came(&mut bed, at(E1, 10), WEB).expect("it is forwarded")), (v6(C6), 80));
}

#[test]
fn an_explanation_says_what_a_forward_would_do() {
    for workers in [1, 2] {
        let mut bed = Bed6::with_workers(forwarded(), workers);
        for (external, host, port) in [(WEB, ipv6(C6), 80), (CAMERA, behind_b4(B4), 81)] {
            let packet = build::udp(at(E1, 1_000), external).payload(b"hello").build();
            for round in 0..2 {
                let owner = bed.shards()[0].view().worker_to_ask(bed.now(), Side::Outside, &packet);
                let told = bed.shards()[owner.index()].explain(bed.now(), Side::Outside.into(), &packet);
                assert_eq!(told.verdict, Verdict::Inbound, "{host}, {round}");
                let is_host = |step: &Step| match step {
                    Step::Host { host: named, .. } => Some(named.address) == host.ipv6(),
                    _ => false,
                };
                assert!(told.steps.iter().any(is_host), "{:?}", told.steps);
                let leads = Step::StaticMapping { host, port, external: engine(external), one_to_one: false };
                assert_eq!(told.steps.contains(&leads), round == 0, "{:?}", told.steps);
                assert!(came(&mut bed, at(E1, 1_000), external).is_some());
            }
        }
    }
}

fn engine(external: SocketAddrV4) -> nat::types::Endpoint {
    nat::types::Endpoint::new(*external.ip(), external.port())
}

#[test]
fn a_full_host_table_refuses_a_forward_and_nothing_is_left() {
    let mut settings = forwarded();
    settings.transition.hosts_max = 2;
    let mut bed = Bed6::new(settings);
    assert!(left_from(&mut bed, D6, 1, at(E1, 53)).is_some());
    assert_eq!(came(&mut bed, at(E1, 1_000), WEB), None);
    assert_eq!(bed.verdict(), Some(Verdict::HostTableFull));
    bed.advance(Duration::from_secs(600));
    assert!(came(&mut bed, at(E1, 1_000), WEB).is_some());
}

#[test]
fn errors_about_an_idle_forward_reach_its_host() {
    covers!("6146-13");
    let mut bed = Bed6::with_workers(forwarded(), 2);
    assert!(came(&mut bed, at(E1, 1_000), WEB).is_some());
    let [_, out] = bed.inside(&udp6((v6(C6), 80), (behind(E1), 1_000), b"answer"));
    bed.jump(Duration::from_secs(301));
    // The host has its number still, the mapping is over.
    let error = build::icmp_error(E2, *WEB.ip(), 3, 1, &out[0]).build();
    let [inside, _] = bed.outside(&error);
    assert_eq!(view6(&inside[0]).destination(), v6(C6));
}
