//! Bursts that leave as a whole, and those that do not.

use nat::Duration;
use nat::Verdict;
use packet_io::memory::MemorySettings;
use wire::arp::Message;
use wire::arp::Operation;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::MacAddress;

use super::bed::Bed;
use super::bed::FAR_SERVER;
use super::bed::INSIDE;
use super::bed::OUTSIDE;
use super::bed::ROUTER;
use super::bed::SERVER;
use super::bed::Sent;
use super::bed::station_of;
use super::bed::subscriber;

/// Packets of a burst that leaves as a whole.
const MANY: u8 = 40;

fn push_many(bed: &Bed) {
    for number in 0..MANY {
        bed.push_udp(0, subscriber(2), FAR_SERVER, &[number]);
    }
}

fn payloads(sent: &[Sent]) -> Vec<u8> {
    sent.iter().filter_map(|frame| frame.udp().and_then(|(_, _, payload)| payload.first().copied())).collect()
}

fn all() -> Vec<u8> {
    (0..MANY).collect()
}

fn router_is_at(bed: &Bed, station: MacAddress) {
    let message = Message {
        operation: Operation::Request,
        sender_mac: station,
        sender_address: ROUTER.to_bits(),
        target_mac: MacAddress::ZERO,
        target_address: ROUTER.to_bits(),
    };
    bed.push_arp(0, OUTSIDE, None, MacAddress::BROADCAST, &message);
}

/// A bed in which the router is known.
fn bed() -> Bed {
    let mut bed = Bed::new(1).after_start();
    bed.push_udp(0, subscriber(2), FAR_SERVER, b"first");
    assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    bed
}

#[test]
fn a_burst_to_one_router_leaves_in_order() {
    let mut bed = bed();
    let before = bed.workers[0].interface_counters()[1];
    push_many(&bed);
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    assert_eq!(payloads(&sent), all());
    assert!(sent.iter().all(|frame| frame.header.destination == station_of(ROUTER)));
    let counters = bed.workers[0].interface_counters()[1];
    assert_eq!(counters.sent_packets - before.sent_packets, u64::from(MANY));
    assert_eq!(counters.sent_bytes - before.sent_bytes, u64::from(MANY) * (14 + 20 + 8 + 1));
}

#[test]
fn what_was_queued_before_a_burst_leaves_before_it() {
    let mut bed = bed();
    // Queued, as the two are too few for a burst of their own.
    bed.push_udp(0, subscriber(2), FAR_SERVER, &[100]);
    bed.poll_all();
    push_many(&bed);
    bed.poll_all();
    assert_eq!(payloads(&bed.sent(OUTSIDE)), [&[100][..], &all()].concat());
}

#[test]
fn a_router_that_moves_is_followed_by_the_next_burst() {
    let mut bed = bed();
    let elsewhere = MacAddress([0x06, 9, 9, 9, 9, 9]);
    router_is_at(&bed, elsewhere);
    bed.settle();
    bed.sent(OUTSIDE);
    push_many(&bed);
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    assert_eq!(payloads(&sent), all());
    assert!(sent.iter().all(|frame| frame.header.destination == elsewhere), "none goes to the old station");
}

#[test]
fn a_router_in_use_is_probed_and_never_missed() {
    let mut bed = bed();
    for _ in 0..150 {
        bed.run_for(Duration::from_secs(1), Duration::from_millis(500));
        push_many(&bed);
        let sent = bed.settle_with_arp(OUTSIDE);
        assert_eq!(payloads(&sent), all(), "no packet is lost");
    }
    assert_eq!(bed.total().of(Verdict::NeighbourUnresolved), 0);
    assert!(bed.workers[0].link_counters().arp_requests > 2, "it was asked again");
}

#[test]
fn a_burst_that_does_not_fit_the_queue_is_counted() {
    let sizes = MemorySettings { queue_frames: 64, ..MemorySettings::default() };
    let mut bed = Bed::with_io(1, &sizes, |_, io| io).after_start();
    bed.push_udp(0, subscriber(2), FAR_SERVER, b"first");
    assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    for _ in 0..3 {
        push_many(&bed);
        bed.settle();
    }
    let unsent = u64::from(MANY) * 3 - 64;
    assert_eq!((bed.total().of(Verdict::Outbound), bed.total().of(Verdict::TransmitFull)), (1 + 64, unsent));
    assert_eq!(bed.total().bytes_forwarded, [28 + 5 + 64 * 29, 0, 0], "of those that left");
    assert_eq!(bed.workers[0].interface_counters()[1].unsent_packets, unsent);
    bed.assert_balance();
}

#[test]
fn other_frames_in_a_burst_leave_its_packets_in_order() {
    let mut bed = bed();
    let ipv6 = build::frame(station_of(ROUTER), MacAddress([0x33; 6]), ETHER_TYPE_IPV6, &[0; 40]);
    let packet = build::udp(subscriber(2), FAR_SERVER).payload(b"x").build();
    let for_others = build::frame(station_of(ROUTER), MacAddress([2; 6]), ETHER_TYPE_IPV4, &packet);
    for number in 0..MANY {
        if number % 7 == 0 {
            bed.push(0, INSIDE, &ipv6);
            bed.push(0, INSIDE, &[1, 2, 3]);
        }
        if number % 11 == 0 {
            bed.push(0, INSIDE, &for_others);
        }
        bed.push_udp(0, subscriber(2), FAR_SERVER, &[number]);
    }
    bed.settle();
    assert_eq!(payloads(&bed.sent(OUTSIDE)), all());
    let total = bed.total();
    assert_eq!(total.of(Verdict::LinkUnknownType), 6);
    assert_eq!(total.of(Verdict::LinkTruncated), 6);
    assert_eq!(total.of(Verdict::LinkOtherDestination), 4);
    bed.assert_balance();
}

#[test]
fn a_burst_for_several_next_hops_leaves_in_order() {
    let mut bed = bed();
    bed.push_udp(0, subscriber(2), SERVER, b"first");
    assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    for number in 0..MANY {
        let to = if number % 3 == 0 { SERVER } else { FAR_SERVER };
        bed.push_udp(0, subscriber(2), to, &[number]);
    }
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    assert_eq!(payloads(&sent), all());
    for (number, frame) in sent.iter().enumerate() {
        let expected = if number % 3 == 0 { *SERVER.ip() } else { ROUTER };
        assert_eq!(frame.header.destination, station_of(expected));
    }
}
