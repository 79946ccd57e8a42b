//! Port blocks of IPv6 customers belong to a prefix, also after the host that needed one first.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::blocks::Lease;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Selection;
use nat::types::Endpoint;
use nat::view::HostView;
use pcp::SERVER_PORT;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::peer::Peer;
use testkit::peer::RING;
use testkit::*;
use wire::build;

/// The first and another host of one customer, and one of another customer.
const HOSTS: [&str; 3] = ["2001:db8:c:100::a", "2001:db8:c:1ff::b", "2001:db8:d:200::c"];
const CUSTOMERS: [&str; 2] = ["2001:db8:c:100::", "2001:db8:d:200::"];
const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);

fn with_blocks() -> Settings {
    let mut settings = settings6().short_timers().addresses(&POOL[..1]);
    let size = BlockSize::of_ports(256).expect("a power of two");
    let idle = Duration::from_secs(60);
    settings.pools[0].allocation = Allocation::Blocks(Blocks { size, per_subscriber_max: 2, idle });
    settings.pools[0].reuse_delay = Duration::ZERO;
    settings
}

/// Has a host open a mapping, by NAT64 or by its softwire; its external endpoint.
fn open(bed: &mut Bed6, host: &str, is_b4: bool) -> Endpoint {
    let packet = match is_b4 {
        true => softwire(v6(host), v6(AFTR), &build::udp(at(HOME, 5_000), at(E1, 53)).build()),
        false => udp6((v6(host), 5_000), (behind(E1), 53), b"x"),
    };
    let [_, out] = bed.inside(&packet);
    let from = source(&out[0]);
    Endpoint::new(*from.ip(), from.port())
}

fn lease_of(bed: &Bed6, external: Endpoint) -> Lease {
    let address = bed.shared().address_index(external.address).expect("an address of the pool");
    bed.shared().lease_of(address, external.port).expect("a leased block")
}

fn holder_of(bed: &Bed6, external: Endpoint) -> Option<HostView> {
    let address = lease_of(bed, external).holder.address;
    bed.shards().iter().find_map(|shard| shard.view().host(address))
}

/// The customer of a host, as lists show it.
fn customer(at: usize) -> Option<HostView> {
    let address = CUSTOMERS[at].parse().expect("an address");
    Some(HostView { address, prefix_length: 56, inner: None, is_softwire: false })
}

/// The first host leases a block, the other one uses it, the first one ends, and the other customer
/// comes: the external endpoints of the latter two.
fn first_host_ends(bed: &mut Bed6, is_b4: bool) -> [Endpoint; 2] {
    let first = open(bed, HOSTS[0], is_b4);
    let second = open(bed, HOSTS[1], is_b4);
    assert_eq!(lease_of(bed, first), lease_of(bed, second));
    assert_eq!(holder_of(bed, first), customer(0));
    let alone = bed.mappings();
    // Longer than the number of a host lingers, in steps that keep the second host's mapping.
    for _ in 0..40 {
        bed.advance(Duration::from_secs(1));
        assert_eq!(open(bed, HOSTS[1], is_b4), second);
    }
    assert_eq!(bed.mappings(), alone - 1, "the first host has ended");
    [second, open(bed, HOSTS[2], is_b4)]
}

#[test]
fn a_block_stays_its_prefixs_when_its_first_host_ends() {
    for workers in [1, 2] {
        for is_b4 in [false, true] {
            let mut bed = Bed6::with_workers(with_blocks(), workers);
            let [second, third] = first_host_ends(&mut bed, is_b4);
            assert_eq!((holder_of(&bed, second), holder_of(&bed, third)), (customer(0), customer(1)));
            let views = bed.subscriber_views();
            assert_eq!(views.len(), 2);
            for (at, external) in [second, third].into_iter().enumerate() {
                let view = views.iter().find(|view| view.host == customer(at)).expect("a subscriber");
                let own = bed.shared().subscriber_ports(view.own_pool, view.realm, view.address, view.external_address);
                let [own] = &own[..] else { panic!("{own:?}") };
                assert!((own.first..=own.last).contains(&external.port));
            }
        }
    }
}

/// Holder and range of each recorded lease, in order.
fn leases(events: &[Event]) -> Vec<(Option<HostName>, (u16, u16), Cause)> {
    let mut names = Vec::new();
    let mut leases = Vec::new();
    for event in events {
        if let Some(name) = HostName::of(event) {
            names.push((event.subscriber, name));
        } else if event.kind == EventKind::BlockLeased {
            let name = names.iter().rev().find(|(number, _)| *number == event.subscriber).map(|(_, name)| *name);
            leases.push((name, (event.first_port, event.last_port), event.cause));
        }
    }
    leases
}

#[test]
fn a_new_log_says_the_same_of_an_ipv6_customers_block() {
    for is_b4 in [false, true] {
        let mut bed = Bed6::new(with_blocks()).record_events(1 << 12);
        first_host_ends(&mut bed, is_b4);
        let told = leases(&bed.take_events());
        let name = |at: usize| Some(HostName { address: v6(CUSTOMERS[at]), prefix_length: 56, inner: None });
        assert_eq!(told.iter().map(|lease| lease.0).collect::<Vec<_>>(), [name(0), name(1)]);
        bed.open_event_log();
        bed.advance(Duration::from_secs(2));
        let events = bed.take_events();
        assert!(events.iter().any(|event| event.kind == EventKind::SnapshotComplete));
        let mut retold = leases(&events);
        retold.retain(|lease| lease.2 == Cause::LogOpened);
        retold.sort_by_key(|lease| lease.0);
        assert_eq!(retold, told.iter().map(|lease| (lease.0, lease.1, Cause::LogOpened)).collect::<Vec<_>>());
        assert!(events.iter().all(|event| event.kind != EventKind::MappingCreated), "the blocks say who it was");
    }
}

#[test]
fn after_a_reload_blocks_name_all_hosts_of_a_prefix() {
    let mut bed = Bed6::new(with_blocks()).record_events(1 << 12);
    open(&mut bed, HOSTS[0], false);
    open(&mut bed, HOSTS[1], false);
    bed.reload(with_blocks(), |_| {}).expect("settings");
    bed.advance(Duration::from_millis(500));
    let events = bed.take_events();
    assert!(events.iter().all(|event| event.kind != EventKind::MappingCreated), "{events:?}");
}

#[test]
fn a_host_gets_the_port_it_suggests_in_its_prefixs_block() {
    let mut settings = with_blocks();
    settings.port_control.pcp = true;
    let mut bed = Bed6::new(settings);
    let first = open(&mut bed, HOSTS[0], false);
    let lease = lease_of(&bed, first).block;
    let mut told = |host: &str, port: u16| {
        let ask = Ask::map(HOME, Protocol::Udp, 7_000 + port % 16).suggest(at(first.address, port));
        let answer = bed.answer6((v6(host), 40_000), (v6(OWN6), SERVER_PORT), &ask.message6(v6(host), None));
        PcpReply::of(&answer.expect("a reply")).external.port()
    };
    let free = |port: &u16| *port != first.port;
    let mut ports = (lease.first_port()..=lease.last_port()).filter(free);
    for host in [HOSTS[0], HOSTS[1], "2001:db8:c:133::1"] {
        let port = ports.next().expect("a free port");
        assert_eq!(told(host, port), port, "{host}");
    }
    let foreign = ports.next().expect("a free port");
    assert_ne!(told(HOSTS[2], foreign), foreign, "it is not the other customer's");
}

#[test]
fn a_peer_gives_a_prefixs_block_to_all_its_hosts() {
    let mut bed = Bed6::new(with_blocks()).record_deltas(RING);
    let mut peer = Peer::new(with_blocks(), 1);
    let [second, third] = first_host_ends(&mut bed, false);
    peer.install(bed.now(), &bed.take_deltas());
    for external in [second, third] {
        let address = peer.shared.address_index(external.address).expect("an address of the pool");
        let lease = peer.shared.lease_of(address, external.port).expect("a leased block");
        let at = usize::from(external == third);
        assert_eq!(peer.shards[0].view().host(lease.holder.address), customer(at));
    }
}

#[test]
fn refusals_are_those_of_a_prefix_and_outlast_its_numbers() {
    let mut settings = settings6().short_timers();
    settings.subscriber.ports_max = [0; Protocol::COUNT];
    let mut bed = Bed6::new(settings);
    for host in [HOSTS[0], HOSTS[1], HOSTS[0]] {
        assert_eq!(bed.inside(&udp6((v6(host), 5_000), (behind(E1), 53), b"x"))[1].len(), 0);
    }
    // Until its numbers may mean other hosts.
    bed.advance(Duration::from_secs(40));
    bed.inside(&udp6((v6(HOSTS[2]), 5_000), (behind(E1), 53), b"x"));
    let views = bed.subscriber_views();
    let mut refused: Vec<_> = views.iter().map(|view| (view.host, view.refused.iter().sum::<u32>())).collect();
    refused.sort_by_key(|(_, count)| *count);
    assert_eq!(refused, [(customer(1), 1), (customer(0), 3)]);
    // A number that is no longer its own would be that of another host.
    let numbers = views.iter().map(|view| (view.host, !view.address.is_unspecified()));
    let mut numbers: Vec<_> = numbers.filter(|(_, has_number)| !has_number).map(|(host, _)| host).collect();
    numbers.sort_by_key(|host| host.map(|host| host.address));
    assert_eq!(numbers[0], customer(0));
}

#[test]
fn selection_by_hash_is_the_same_for_all_hosts_of_a_prefix() {
    let mut settings = settings6().short_timers().addresses(&POOL).pooling(nat::settings::Pooling::Arbitrary);
    settings.pools[0].selection = Selection::Hash;
    let mut differ = false;
    for customer in 0..16_u128 {
        // Whatever numbers the hosts have.
        let mut bed = Bed6::new(settings.clone());
        for other in 0..customer {
            bed.inside(&udp6((v6("2001:db8:f::") + (other << 72), 5_000), (behind(E1), 53), b"x"));
        }
        let host = |last: u128| v6("2001:db8:c:100::") + (customer << 72) + last;
        let mut address = |last| source(&bed.inside(&udp6((host(last), 5_000), (behind(E1), 53), b"x"))[1][0]);
        let (one, another) = (address(1), address(2));
        assert_eq!(one.ip(), another.ip());
        let mut alone = Bed6::new(settings.clone());
        let again = source(&alone.inside(&udp6((host(3), 5_000), (behind(E1), 53), b"x"))[1][0]);
        assert_eq!(one.ip(), again.ip(), "always the same for a subscriber");
        differ |= *one.ip() != POOL[0];
    }
    assert!(differ, "not all have one address");
}
