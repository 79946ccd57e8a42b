//! What happens to frames before anybody looks at an IP header.

use nat::Verdict;
use packet_io::memory::MemorySettings;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_VLAN;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::MacAddress;

use super::bed::Bed;
use super::bed::INSIDE;
use super::bed::OUTSIDE;
use super::bed::SERVER;
use super::bed::VLAN;
use super::bed::station_of;
use super::bed::subscriber;

const PORT: MacAddress = MacAddress([2, 0, 0, 0, 0, 0]);
const HOST: MacAddress = MacAddress([6, 0, 10, 0, 0, 2]);

fn tagged(vlan: u16, to: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut inner = vlan.to_be_bytes().to_vec();
    inner.extend(ether_type.to_be_bytes());
    inner.extend(payload);
    build::frame(HOST, to, ETHER_TYPE_VLAN, &inner)
}

#[test]
fn each_frame_that_is_not_for_us_gets_the_verdict_that_says_why() {
    let packet = build::udp(subscriber(2), SERVER).payload(b"x").build();
    let multicast = MacAddress([0x01, 0, 0x5e, 0, 0, 1]);
    let cases: [(&str, Vec<u8>, Verdict); 11] = [
        ("runt", vec![0; 13], Verdict::LinkTruncated),
        ("cut tag", build::frame(HOST, PORT, ETHER_TYPE_VLAN, &[])[..16].to_vec(), Verdict::LinkTruncated),
        ("unknown VLAN", tagged(7, PORT, ETHER_TYPE_IPV4, &packet), Verdict::LinkUnknownVlan),
        ("IPv6", build::frame(HOST, PORT, 0x86dd, &packet), Verdict::LinkUnknownType),
        ("two tags", tagged(VLAN, PORT, ETHER_TYPE_VLAN, &packet), Verdict::LinkUnknownType),
        ("spanning tree", build::frame(HOST, multicast, 0x0026, &packet), Verdict::LinkUnknownType),
        (
            "other station",
            build::frame(HOST, station_of(*SERVER.ip()), ETHER_TYPE_IPV4, &packet),
            Verdict::LinkOtherDestination,
        ),
        ("IP as broadcast", build::frame(HOST, MacAddress::BROADCAST, ETHER_TYPE_IPV4, &packet), Verdict::LocalIgnored),
        ("IP as multicast", build::frame(HOST, multicast, ETHER_TYPE_IPV4, &packet), Verdict::LocalIgnored),
        ("short ARP", build::frame(HOST, PORT, 0x0806, &[0; 27])[..41].to_vec(), Verdict::ArpInvalid),
        ("ARP for no family", build::frame(HOST, PORT, 0x0806, &[0; 28]), Verdict::ArpInvalid),
    ];
    for (name, frame, verdict) in cases {
        let mut bed = Bed::new(1);
        bed.push(0, INSIDE, &frame);
        bed.settle();
        assert_eq!(bed.total().received, 1, "{name}");
        assert_eq!(bed.total().of(verdict), 1, "{name}: {:?}", bed.total());
    }
}

#[test]
fn a_priority_tag_counts_as_no_tag() {
    // covers: T12
    let mut bed = Bed::new(1).after_start();
    let packet = build::udp(subscriber(2), SERVER).payload(b"x").build();
    bed.push(0, INSIDE, &tagged(0xe000, PORT, ETHER_TYPE_IPV4, &packet));
    assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    assert_eq!(bed.total().of(Verdict::Outbound), 1);
}

#[test]
fn tagged_frames_reach_their_interface_and_replies_are_tagged() {
    let mut bed = Bed::new(1).after_start();
    let client = core::net::SocketAddrV4::new(core::net::Ipv4Addr::new(10, 1, 0, 9), 5_000);
    let packet = build::udp(client, SERVER).payload(b"question").build();
    bed.push(0, INSIDE, &tagged(VLAN, PORT, ETHER_TYPE_IPV4, &packet));
    let out = bed.settle_with_arp(OUTSIDE);
    let (external, server, payload) = out[0].udp().expect("UDP");
    assert_eq!((server, payload), (SERVER, &b"question"[..]));
    assert_eq!(out[0].header.vlan, None);
    assert_eq!(out[0].header.destination, station_of(*SERVER.ip()));

    bed.push_udp(0, SERVER, external, b"answer");
    let back = bed.settle_with_arp(INSIDE);
    assert_eq!(back[0].header.vlan.map(|tag| tag.id), Some(VLAN));
    assert_eq!(back[0].header.destination, station_of(*client.ip()));
    assert_eq!(back[0].udp().map(|(_, to, payload)| (to, payload)), Some((client, &b"answer"[..])));
    let counted = bed.workers[0].interface_counters()[2];
    assert!(
        counted.received_packets == 2 && counted.sent_packets == 4 + 2,
        "announcements, then packet and ARP each way: {counted:?}"
    );
}

#[test]
fn ethernet_padding_is_not_forwarded() {
    let mut bed = Bed::new(1).after_start();
    let packet = build::udp(subscriber(2), SERVER).payload(b"x").build();
    bed.push_ip(0, INSIDE, *subscriber(2).ip(), &packet);
    let out = bed.settle_with_arp(OUTSIDE);
    assert_eq!(out[0].payload.len(), packet.len(), "29 bytes came in a frame of 60");
}

#[test]
fn frames_that_do_not_fit_the_transmit_queue_are_counted() {
    let sizes = MemorySettings { queue_frames: 64, ..MemorySettings::default() };
    let mut bed = Bed::with_io(1, &sizes, |_, io| io).after_start();
    bed.push_udp(0, subscriber(2), SERVER, b"first");
    assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    for round in 0..3 {
        for _ in 0..40 {
            bed.push_udp(0, subscriber(2), SERVER, &[round]);
        }
        bed.settle();
    }
    let total = bed.total();
    assert_eq!((total.of(Verdict::Outbound), total.of(Verdict::TransmitFull)), (1 + 64, 120 - 64));
    assert_eq!(total.bytes_forwarded, [28 + 5 + 64 * 29, 0, 0], "of those that left");
    assert_eq!(bed.workers[0].interface_counters()[1].unsent_packets, 120 - 64);
}

#[test]
fn a_burst_the_shard_failed_on_is_given_out_and_counted() {
    // As received, behind a link header, and as taken over from another worker, without one.
    for is_plain in [true, false] {
        let mut bed = Bed::new(1).after_start();
        let worker = &mut bed.workers[0];
        let mut buffer = packet_io::Io::allocate(worker.io_mut()).expect("a buffer");
        let link: &[u8] = if is_plain { &[0; HEADER_LENGTH] } else { &[] };
        assert!(packet_io::Buffer::fill(&mut buffer, &[link, b"poison"]));
        worker.shard.counters_mut().received += 1;
        // As if the shard had panicked: the packet is in the burst, and nothing is counted for it.
        worker.is_plain = is_plain;
        worker.starts[0] = packet_io::Buffer::frame_mut(&mut buffer).1;
        assert!(worker.ready.push(buffer).is_ok());
        let mut kept = Vec::new();
        assert_eq!(worker.recover(|packet| kept.push(packet.to_vec())), 1);
        assert_eq!(kept, [b"poison"]);
        assert_eq!(bed.total().of(Verdict::Quarantined), 1);
        bed.push_udp(0, subscriber(2), SERVER, b"life goes on");
        assert_eq!(bed.settle_with_arp(OUTSIDE).len(), 1);
    }
}

#[test]
fn without_stations_all_unicast_frames_are_ours_and_arp_is_off() {
    let mut bed = Bed::offline();
    let packet = build::udp(subscriber(2), SERVER).payload(b"x").build();
    let router_of_the_capture = MacAddress([6, 7, 7, 7, 7, 7]);
    bed.push(0, INSIDE, &build::frame(HOST, router_of_the_capture, ETHER_TYPE_IPV4, &packet));
    bed.push(0, INSIDE, &build::frame(HOST, MacAddress::BROADCAST, ETHER_TYPE_IPV4, &packet));
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    assert_eq!(sent.len(), 1, "no announcement, no request");
    assert_eq!(sent[0].header.destination, MacAddress([2, 0, 198, 51, 100, 100]));
    assert_eq!((bed.total().of(Verdict::Outbound), bed.total().of(Verdict::LocalIgnored)), (1, 1));
}
