//! ARP as hosts on both sides see it (RFC 826, RFC 1122 §2.3.2, RFC 5227).

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use packet_io::PortIndex;
use wire::arp::Message;
use wire::arp::Operation;
use wire::ethernet::MacAddress;

use super::bed::Bed;
use super::bed::FAR_SERVER;
use super::bed::INSIDE;
use super::bed::INSIDE_ADDRESS;
use super::bed::OUTSIDE;
use super::bed::OUTSIDE_ADDRESS;
use super::bed::POOL_OFF_LINK;
use super::bed::POOL_ON_LINK;
use super::bed::ROUTER;
use super::bed::SERVER;
use super::bed::Sent;
use super::bed::VLAN;
use super::bed::VLAN_ADDRESS;
use super::bed::station_of;
use super::bed::subscriber;
use crate::conflict::Conflicts;
use crate::neighbour::NeighbourLimits;

fn requests(sent: &[Sent]) -> Vec<(Message, MacAddress)> {
    let arps = sent.iter().filter_map(|frame| frame.arp().map(|arp| (arp, frame.header.destination)));
    arps.filter(|(arp, _)| arp.operation == Operation::Request).collect()
}

/// What comes back when a host at `from` asks for `target`.
fn ask(bed: &mut Bed, port: PortIndex, vlan: Option<u16>, from: Ipv4Addr, target: Ipv4Addr) -> Vec<Sent> {
    let request = Message::request(station_of(from), from.to_bits(), target.to_bits());
    bed.push_arp(0, port, vlan, MacAddress::BROADCAST, &request);
    bed.settle();
    bed.sent(port)
}

#[test]
fn requests_are_answered_only_on_the_interface_of_the_address() {
    let mut bed = Bed::new(1).after_start();
    let host = *subscriber(2).ip();
    let answers = ask(&mut bed, INSIDE, None, host, INSIDE_ADDRESS);
    let reply = answers[0].arp().expect("an ARP reply");
    assert_eq!(reply.operation, Operation::Reply);
    assert_eq!((reply.sender_mac, reply.sender_address), (MacAddress([2, 0, 0, 0, 0, 0]), INSIDE_ADDRESS.to_bits()));
    assert_eq!((reply.target_mac, reply.target_address), (station_of(host), host.to_bits()));
    assert_eq!(answers[0].header.destination, station_of(host), "the reply is not broadcast");

    let vlan_host = Ipv4Addr::new(10, 1, 0, 9);
    let answers = ask(&mut bed, INSIDE, Some(VLAN), vlan_host, VLAN_ADDRESS);
    assert_eq!(answers[0].header.vlan.map(|tag| tag.id), Some(VLAN));

    for (vlan, target) in [(None, VLAN_ADDRESS), (Some(VLAN), INSIDE_ADDRESS), (None, OUTSIDE_ADDRESS)] {
        assert!(ask(&mut bed, INSIDE, vlan, host, target).is_empty(), "{target} is not on this interface");
    }
    assert_eq!((bed.total().of(Verdict::Local), bed.total().of(Verdict::LocalIgnored)), (2, 3));
}

#[test]
fn pool_addresses_are_answered_for_outside_and_not_inside() {
    let mut bed = Bed::new(1).after_start();
    for target in [POOL_ON_LINK, POOL_OFF_LINK] {
        let answers = ask(&mut bed, OUTSIDE, None, *SERVER.ip(), target);
        assert_eq!(answers[0].arp().expect("a reply").sender_address, target.to_bits());
        assert!(ask(&mut bed, INSIDE, None, *subscriber(2).ip(), target).is_empty());
    }
    let neighbour = Ipv4Addr::from_bits(POOL_ON_LINK.to_bits() + 1);
    assert!(ask(&mut bed, OUTSIDE, None, *SERVER.ip(), neighbour).is_empty(), "not an address of the pool");
}

#[test]
fn packets_wait_for_their_neighbour_and_leave_in_order() {
    let mut bed = Bed::new(1).after_start();
    for number in 0..8 {
        bed.push_udp(0, subscriber(2), SERVER, &[number]);
        bed.settle();
    }
    assert_eq!(bed.total().neighbour_pending, 8);
    assert_eq!(bed.total().of(Verdict::Outbound), 0, "what waits has no verdict yet");
    let asked = bed.sent(OUTSIDE);
    assert_eq!(asked.len(), 1, "one request for all eight");
    let (request, to) = requests(&asked)[0];
    assert_eq!(to, MacAddress::BROADCAST);
    assert_eq!((request.sender_address, request.target_address), (OUTSIDE_ADDRESS.to_bits(), SERVER.ip().to_bits()));

    bed.answer_arp(0, OUTSIDE, &asked);
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    let order: Vec<u8> = sent.iter().map(|frame| frame.udp().expect("UDP").2[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(sent.iter().all(|frame| frame.header.destination == station_of(*SERVER.ip())));
    assert_eq!((bed.total().neighbour_pending, bed.total().of(Verdict::Outbound)), (0, 8));
}

#[test]
fn packets_are_dropped_after_three_unanswered_arp_requests() {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    let mut asked_at = Vec::new();
    let start = bed.now;
    for _ in 0..60 {
        bed.run_for(Duration::from_millis(100), Duration::from_millis(10));
        asked_at.extend(requests(&bed.sent(OUTSIDE)).iter().map(|_| bed.now.saturating_since(start).as_millis() / 500));
    }
    assert_eq!(asked_at, [0, 2, 4], "one request a second");
    assert_eq!(bed.total().of(Verdict::NeighbourUnresolved), 1);
    assert_eq!(bed.total().neighbour_pending, 0);

    bed.push_udp(0, subscriber(2), SERVER, b"b");
    bed.settle();
    assert_eq!(requests(&bed.sent(OUTSIDE)).len(), 1, "the next packet asks anew");
}

#[test]
fn the_sender_learns_that_a_neighbour_is_silent() {
    let mut bed = Bed::new(1).after_start();
    for host in [2, 3] {
        bed.push_udp(0, subscriber(host), SERVER, b"a");
    }
    bed.run_for(Duration::from_secs(4), Duration::from_millis(10));
    // The errors wait for their neighbours, too.
    assert_eq!((bed.total().of(Verdict::NeighbourUnresolved), bed.total().neighbour_pending), (2, 0));
    let errors = bed.settle_with_arp(INSIDE);
    assert_eq!(errors.len(), 2);
    for (error, host) in errors.iter().zip([2, 3].map(subscriber)) {
        assert_eq!(error.header.destination, station_of(*host.ip()));
        let (icmp_type, code, quote) = error.icmp().expect("an ICMP error");
        assert_eq!((icmp_type, code), (3, 1));
        assert_eq!((&quote[12..16], &quote[20..22]), (&host.ip().octets()[..], &host.port().to_be_bytes()[..]));
    }
    let counters = bed.workers[0].counters();
    assert_eq!((counters.originated, counters.bytes_forwarded), (2, [0; 3]));
}

#[test]
fn no_error_about_an_error_is_sent_to_a_silent_neighbour() {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    bed.run_for(Duration::from_secs(8), Duration::from_millis(10));
    let counters = bed.workers[0].counters();
    assert_eq!((counters.originated, counters.of(Verdict::NeighbourUnresolved)), (1, 1));
    assert_eq!(bed.workers[0].link_counters().originated_dropped, 1, "the sender is silent, too");
}

#[test]
fn bytes_of_packets_that_do_not_leave_do_not_count() {
    let mut bed = Bed::new(1).after_start();
    for number in 0..40 {
        bed.push_udp(0, subscriber(2), FAR_SERVER, &[number; 72]);
    }
    bed.settle();
    assert_eq!(
        (bed.total().neighbour_pending, bed.total().bytes_forwarded, bed.total().translated[0]),
        (40, [0; 3], 0)
    );
    let asked = bed.sent(OUTSIDE);
    bed.answer_arp(0, OUTSIDE, &asked);
    bed.settle();
    let total = bed.total();
    assert_eq!((total.of(Verdict::Outbound), total.bytes_forwarded), (40, [40 * 100, 0, 0]));
    assert_eq!(total.translated.iter().sum::<u64>(), 40);
}

#[test]
fn a_router_that_does_not_answer_is_silent_until_it_answers() {
    let mut bed = Bed::new(1).after_start();
    let (step, second) = (Duration::from_millis(10), Duration::from_secs(1));
    let most = u64::from(NeighbourLimits::default().waiting_per_neighbour_max);
    let mut number = 0;
    let mut send = |bed: &mut Bed, packets: u64| {
        for _ in 0..packets {
            bed.push_udp(0, subscriber(2), FAR_SERVER, &[number]);
            number = number.wrapping_add(1);
        }
        bed.settle();
    };
    send(&mut bed, most + 5);
    assert_eq!(bed.total().of(Verdict::NeighbourQueueFull), 5, "in the first second");
    bed.run_for(second, step);
    let (mut asked, mut lost) = (0, 0);
    for _ in 0..20 {
        send(&mut bed, 7);
        lost += 7;
        asked += requests(&bed.sent(OUTSIDE)).len();
        bed.run_for(second, step);
    }
    let total = bed.total();
    assert_eq!(total.of(Verdict::NeighbourQueueFull), 5, "it has missed its first answer");
    assert_eq!((total.of(Verdict::NeighbourUnresolved), total.neighbour_pending), (most + lost, 0));
    assert_eq!((total.of(Verdict::Outbound), total.bytes_forwarded), (0, [0; 3]));
    assert!((18..=22).contains(&asked), "asked {asked} times in 20 s");
    let routers =
        |bed: &Bed| bed.workers[0].outlet.routers().map(|view| (view.address, view.answers)).collect::<Vec<_>>();
    assert_eq!(routers(&bed), [(ROUTER.into(), false)]);
    send(&mut bed, 1);
    bed.run_for(second, step);
    let asked = bed.sent(OUTSIDE);
    assert!(bed.answer_arp(0, OUTSIDE, &asked) > 0, "it is asked again");
    bed.settle();
    send(&mut bed, 3);
    assert_eq!((bed.total().of(Verdict::Outbound), routers(&bed)), (3, vec![(ROUTER.into(), true)]));
}

#[test]
fn a_silent_host_on_the_link_is_no_router() {
    let mut bed = Bed::new(1).after_start();
    for _ in 0..5 {
        bed.push_udp(0, subscriber(2), SERVER, b"a");
        bed.run_for(Duration::from_secs(1), Duration::from_millis(10));
    }
    assert!(bed.total().of(Verdict::NeighbourUnresolved) > 0);
    assert_eq!(bed.workers[0].outlet.routers().count(), 0);
}

#[test]
fn packets_waiting_for_one_neighbour_are_bounded() {
    let mut bed = Bed::new(1).after_start();
    let most = NeighbourLimits::default().waiting_per_neighbour_max;
    for number in 0..most + 3 {
        bed.push_udp(0, subscriber(2), SERVER, &[number]);
    }
    bed.settle();
    assert_eq!(bed.total().neighbour_pending, u64::from(most));
    assert_eq!(bed.total().of(Verdict::NeighbourQueueFull), 3);
}

#[test]
fn a_first_burst_to_a_new_station_loses_nothing() {
    let mut bed = Bed::new(1).after_start();
    let burst: Vec<u8> = (0..100).collect();
    for number in &burst {
        bed.push_udp(0, subscriber(2), SERVER, &[*number]);
    }
    let sent = bed.settle_with_arp(OUTSIDE);
    let payloads: Vec<u8> = sent.iter().filter_map(|frame| frame.udp().map(|(_, _, payload)| payload[0])).collect();
    assert_eq!(payloads, burst);
    assert_eq!(bed.total().of(Verdict::NeighbourQueueFull), 0);
}

#[test]
fn a_neighbour_in_use_is_probed_by_unicast_and_never_missed() {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    bed.settle_with_arp(OUTSIDE);
    let mut probes = 0;
    for _ in 0..300 {
        bed.push_udp(0, subscriber(2), SERVER, b"b");
        bed.run_for(Duration::from_secs(1), Duration::from_millis(100));
        let sent = bed.sent(OUTSIDE);
        assert!(requests(&sent).iter().all(|(_, to)| *to == station_of(*SERVER.ip())), "unicast only");
        probes += bed.answer_arp(0, OUTSIDE, &sent);
        assert_eq!(sent.iter().filter(|frame| frame.udp().is_some()).count(), 1, "no packet waits for a probe");
    }
    assert!((4..=5).contains(&probes), "one probe a minute: {probes}");
}

#[test]
fn a_neighbour_that_vanishes_is_forgotten_after_three_probes() {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    bed.settle_with_arp(OUTSIDE);
    bed.push_udp(0, subscriber(2), SERVER, b"b");
    bed.run_for(Duration::from_secs(64), Duration::from_millis(100));
    assert_eq!(requests(&bed.sent(OUTSIDE)).len(), 3);
    bed.push_udp(0, subscriber(2), SERVER, b"c");
    bed.settle();
    let asked = requests(&bed.sent(OUTSIDE));
    assert_eq!(asked[0].1, MacAddress::BROADCAST, "it is looked for from scratch");
}

#[test]
fn unasked_arp_packets_do_not_fill_the_cache() {
    let mut bed = Bed::new(1).after_start();
    for number in 1..=250 {
        let host = Ipv4Addr::new(198, 51, 100, number);
        let claim = Message::request(station_of(host), host.to_bits(), OUTSIDE_ADDRESS.to_bits());
        if host != OUTSIDE_ADDRESS && host != POOL_ON_LINK {
            bed.push_arp(0, OUTSIDE, None, MacAddress::BROADCAST, &claim);
        }
        bed.settle();
    }
    let _ = bed.sent(OUTSIDE);
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    bed.settle();
    assert_eq!(requests(&bed.sent(OUTSIDE)).len(), 1, "the claim of 198.51.100.100 was answered and not kept");
}

#[test]
fn a_station_that_moves_is_followed() {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"a");
    bed.settle_with_arp(OUTSIDE);
    let moved = MacAddress([6, 1, 1, 1, 1, 1]);
    let announcement = Message::request(moved, SERVER.ip().to_bits(), SERVER.ip().to_bits());
    bed.push_arp(0, OUTSIDE, None, MacAddress::BROADCAST, &announcement);
    bed.settle();
    bed.push_udp(0, subscriber(2), SERVER, b"b");
    bed.settle();
    assert_eq!(bed.sent(OUTSIDE)[0].header.destination, moved);
}

#[test]
fn addresses_are_probed_and_then_announced_at_start() {
    let mut bed = Bed::new(2);
    bed.run_for(Duration::from_secs(10), Duration::from_millis(10));
    let said = |sent: &[Sent], address: Ipv4Addr| -> (usize, usize) {
        let about = requests(sent).into_iter().filter(|(arp, _)| arp.target_address == address.to_bits());
        let (probes, announcements): (Vec<_>, Vec<_>) = about.partition(|(arp, _)| arp.sender_address == 0);
        assert!(announcements.iter().all(|(arp, _)| arp.is_gratuitous()));
        (probes.len(), announcements.len())
    };
    let (inside, outside) = (bed.sent(INSIDE), bed.sent(OUTSIDE));
    for (sent, address) in
        [(&inside, INSIDE_ADDRESS), (&inside, VLAN_ADDRESS), (&outside, OUTSIDE_ADDRESS), (&outside, POOL_ON_LINK)]
    {
        assert_eq!(said(sent, address), (1, 3), "{address}");
    }
    assert_eq!(said(&outside, POOL_OFF_LINK), (0, 0), "it is not on the link");
}

#[test]
fn a_station_with_our_address_gets_an_answer_every_ten_seconds() {
    let mut bed = Bed::new(1).after_start();
    let thief = MacAddress([6, 6, 6, 6, 6, 6]);
    let claim = Message::request(thief, POOL_ON_LINK.to_bits(), POOL_ON_LINK.to_bits());
    for _ in 0..40 {
        bed.push_arp(0, OUTSIDE, None, MacAddress::BROADCAST, &claim);
        bed.run_for(Duration::from_millis(500), Duration::from_millis(100));
    }
    assert_eq!(bed.workers[0].link_counters().address_conflicts, 40);
    let conflict = bed.workers[0].conflicts().since(&Conflicts::default()).next().expect("a conflict");
    assert_eq!((conflict.address, conflict.station), (POOL_ON_LINK.to_bits(), thief));
    let defences = requests(&bed.sent(OUTSIDE));
    assert_eq!(defences.len(), 2, "in twenty seconds");
    assert!(defences.iter().all(|(arp, _)| arp.is_gratuitous() && arp.sender_address == POOL_ON_LINK.to_bits()));
}

#[test]
fn probes_of_others_for_our_address_are_answered() {
    let mut bed = Bed::new(1).after_start();
    // RFC 5227 §2.1.1: the sender address of a probe is 0; the reply makes the newcomer keep off.
    let answers = ask(&mut bed, INSIDE, None, Ipv4Addr::UNSPECIFIED, INSIDE_ADDRESS);
    assert_eq!(answers[0].arp().map(|arp| arp.operation), Some(Operation::Reply));
}
