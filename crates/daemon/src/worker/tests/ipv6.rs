//! IPv6 as hosts on the link see it (RFC 4443, RFC 4861, RFC 4862).

use core::net::Ipv6Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Address6;
use nat::settings::Nat64;
use nat::settings::Route6;
use nat::settings::Softwire;
use nat::settings::Transition;
use nat::types::AddressUse;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::view::Step;
use packet_io::PortIndex;
use packet_io::memory::MemorySettings;
use wire::build;
use wire::build6;
use wire::build6::endpoint;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::MacAddress;
use wire::icmp6::Icmp6;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::neighbour::Kind;
use wire::neighbour::LENGTH_MAX;
use wire::neighbour::Message;

use super::bed::Bed;
use super::bed::INSIDE;
use super::bed::OUTSIDE;
use super::bed::SERVER;
use super::bed::Sent;
use super::bed::settings;
use crate::conflict::Conflicts;
use crate::mailbox::Question;
use crate::mailbox::Snapshot;
use crate::mailbox::mailbox;
use crate::trace::TraceFilter;
use crate::trace::tap;
use crate::worker::LinkMode;
use crate::worker::WorkerOptions;

const HOST_STATION: MacAddress = MacAddress([6, 0, 0, 0, 0, 7]);
const OWN: &str = "2001:db8:1::1";
const HOST: &str = "2001:db8:1::7";
const OWN_OUTSIDE: &str = "2001:db8:2::1";
const AFTR: &str = "2001:db8:1::aaaa";

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an IPv6 address")
}

fn bits(text: &str) -> u128 {
    v6(text).to_bits()
}

fn with_ipv6() -> Settings {
    let own = |interface, text| Address6 { interface: InterfaceId(interface), address: v6(text), prefix_length: 64 };
    let mut settings = settings();
    settings.ipv6.addresses = vec![own(0, OWN), own(1, OWN_OUTSIDE)];
    settings.ipv6.routes = vec![Route6 {
        prefix: v6("2001:db8:1::"),
        prefix_length: 48,
        next_hop: v6("2001:db8:1::fe"),
        interface: InterfaceId(0),
    }];
    settings
}

fn bed(workers: usize) -> Bed {
    Bed::of(with_ipv6(), workers).after_start()
}

fn station(bed: &Bed, port: PortIndex) -> MacAddress {
    use packet_io::Io;
    MacAddress(bed.ports.io(0).mac(port))
}

fn push_to(bed: &Bed, worker: usize, to: MacAddress, packet: &[u8]) {
    bed.push(worker, INSIDE, &build::frame(HOST_STATION, to, ETHER_TYPE_IPV6, packet));
}

/// A packet from the host, to Natrix's station.
fn push(bed: &Bed, packet: &[u8]) {
    push_to(bed, 0, station(bed, INSIDE), packet);
}

fn push_message(bed: &Bed, worker: usize, message: &Message) {
    let mut packet = [0; LENGTH_MAX];
    let length = message.write(&mut packet);
    let group = MacAddress(ipv6::station_of_group(message.destination));
    push_to(bed, worker, group, &packet[..length]);
}

fn messages(sent: &[Sent]) -> Vec<Message> {
    let of_ipv6 = sent.iter().filter(|frame| frame.header.ether_type == ETHER_TYPE_IPV6);
    of_ipv6.filter_map(|frame| Message::parse(&frame.payload).ok()).collect()
}

/// The one packet other than neighbour messages that was sent.
fn packet(sent: &[Sent]) -> Vec<u8> {
    let of_ipv6 = sent.iter().filter(|frame| frame.header.ether_type == ETHER_TYPE_IPV6);
    let packets: Vec<&Sent> = of_ipv6.filter(|frame| Message::parse(&frame.payload).is_err()).collect();
    assert_eq!(packets.len(), 1, "{packets:?}");
    let view = Ipv6::new_checked(packets[0].payload.as_slice()).expect("a packet");
    assert_eq!(wire::verify6::faults(view.packet()), []);
    view.packet().to_vec()
}

/// The host asks for the own address.
fn introduce(bed: &mut Bed, address: &str) {
    push_message(bed, 0, &Message::solicitation(bits(address), HOST_STATION, bits(OWN)));
    bed.settle();
}

/// Sends a packet, answers the question for the host, and returns what came.
fn exchange(bed: &mut Bed, sent: &[u8]) -> Vec<Sent> {
    push(bed, sent);
    bed.settle();
    let mut all = bed.sent(INSIDE);
    for question in messages(&all).iter().filter(|message| message.kind == Kind::Solicitation) {
        push_message(bed, 0, &question.reply(HOST_STATION));
    }
    bed.settle();
    all.extend(bed.sent(INSIDE));
    all
}

#[test]
fn addresses_are_probed_and_then_announced() {
    // covers: 4862-5.4
    let mut bed = Bed::of(with_ipv6(), 1);
    bed.run_for(Duration::from_millis(900), Duration::from_millis(10));
    let probes = messages(&bed.sent(INSIDE));
    assert_eq!(probes.len(), 2, "link-local and global: {probes:?}");
    assert!(probes.iter().all(|probe| probe.source == 0 && probe.station.is_none()));
    assert_eq!(probes[1].target, bits(OWN));
    push_message(&bed, 0, &Message::solicitation(bits(HOST), HOST_STATION, bits(OWN)));
    bed.settle();
    assert_eq!(messages(&bed.sent(INSIDE)), [], "a tentative address does not answer");
    bed.run_for(Duration::from_millis(200), Duration::from_millis(10));
    let announced = messages(&bed.sent(INSIDE));
    assert_eq!(announced.iter().map(|message| message.target).collect::<Vec<_>>()[1], bits(OWN));
    assert!(announced.iter().all(|message| message.destination == bits("ff02::1")));
}

#[test]
fn a_duplicate_is_not_used_by_any_worker() {
    // covers: 4862-5.4
    for claim in [Message::announcement(bits(OWN), HOST_STATION), Message::probe(bits(OWN))] {
        let mut bed = Bed::of(with_ipv6(), 2);
        bed.run_for(Duration::from_millis(100), Duration::from_millis(10));
        push_message(&bed, 1, &claim);
        bed = bed.after_start();
        for worker in 0..2 {
            push_message(&bed, worker, &Message::solicitation(bits(HOST), HOST_STATION, bits(OWN)));
            bed.settle();
        }
        assert_eq!(messages(&bed.sent(INSIDE)), []);
        assert_eq!(bed.workers[1].link_counters().address_conflicts, 1);
        // Another reader asks for the numbers before the log does.
        let mut snapshots = [Snapshot::default(), Snapshot::default()];
        for snapshot in &mut snapshots {
            bed.workers[1].fill_snapshot(Instant::ORIGIN, snapshot);
        }
        let conflict = snapshots[1].conflicts.since6(&Conflicts::default()).next().expect("a conflict");
        assert_eq!((conflict.address, conflict.station, conflict.is_given_up), (bits(OWN), HOST_STATION, true));
        // Nor is a ping answered that comes to the station of Natrix.
        let ping = build6::echo_request(v6(HOST), v6(OWN), 7, b"hello");
        assert_eq!(exchange(&mut bed, &ping).len(), 0);
        let counters = bed.workers[0].counters();
        assert_eq!((counters.of(Verdict::LocalIgnored), counters.of(Verdict::AddressNotUsed)), (1, 1));
    }
}

/// A softwire whose end is an own address, and the packet in it.
fn softwire_to_own(b4: &str) -> (Settings, Vec<u8>) {
    let mut settings = with_ipv6();
    let inner = vec![Prefix::new([192, 168, 0, 0].into(), 16).expect("a prefix")];
    let softwire = Softwire { aftr: v6(OWN), realm: RealmId(0), inner, subscribers: Vec::new() };
    settings.transition.softwires = vec![softwire];
    settings.transition.hosts_max = 100;
    settings.pools[0].subscribers.push(Transition::HOSTS);
    let packet = build::udp(build::endpoint([192, 168, 1, 2], 5_000), SERVER).payload(b"question").build();
    (settings, build6::raw(v6(b4), v6(OWN), ipv6::PROTOCOL_IPV4, &packet))
}

#[test]
fn softwires_wait_for_the_probe_of_their_end() {
    // covers: 4862-5.4
    let (settings, packet) = softwire_to_own(HOST);
    for workers in [1, 2] {
        for is_claimed in [false, true] {
            let mut bed = Bed::of(settings.clone(), workers);
            let mut times = 0;
            while times < 30 {
                bed.run_for(Duration::from_millis(50), Duration::from_millis(10));
                if is_claimed && times == 5 {
                    push_message(&bed, workers - 1, &Message::announcement(bits(OWN), HOST_STATION));
                    bed.settle();
                }
                push_to(&bed, times % workers, station(&bed, INSIDE), &packet);
                bed.settle();
                times += 1;
            }
            let total = bed.total();
            // A packet in 50 ms: 20 or so are in the second of the probe.
            let [unused, waiting] =
                [total.of(Verdict::AddressNotUsed), total.neighbour_pending + total.of(Verdict::NeighbourUnresolved)];
            match is_claimed {
                true => assert_eq!((unused, waiting), (30, 0)),
                false => {
                    assert!((18..=21).contains(&unused), "{unused} of 30");
                    assert_eq!(waiting, 30 - unused, "the others wait for the server's station");
                }
            }
        }
    }
}

#[test]
fn a_capture_has_no_station_that_could_have_an_address() {
    let (settings, packet) = softwire_to_own(HOST);
    let options = WorkerOptions { mode: LinkMode::Offline, ..WorkerOptions::default() };
    let mut bed = Bed::with_settings(settings, 1, &MemorySettings::default(), &options, |_, io| io);
    push(&bed, &packet);
    bed.settle();
    assert_eq!(bed.total().of(Verdict::Outbound), 1, "the first packet passes");
}

#[test]
fn an_address_in_use_is_defended() {
    let mut bed = bed(1);
    for _ in 0..3 {
        push_message(&bed, 0, &Message::announcement(bits(OWN), HOST_STATION));
        bed.settle();
    }
    let defended = messages(&bed.sent(INSIDE));
    assert_eq!(defended, [Message::announcement(bits(OWN), station(&bed, INSIDE))], "once in ten seconds");
    assert_eq!(bed.workers[0].link_counters().address_conflicts, 3);
}

#[test]
fn solicitations_are_answered_to_the_station_that_asked() {
    // covers: 4861-7.2.4
    let mut bed = bed(1);
    introduce(&mut bed, HOST);
    let sent = bed.sent(INSIDE);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.destination, HOST_STATION);
    let reply = messages(&sent)[0];
    assert_eq!((reply.source, reply.destination, reply.target), (bits(OWN), bits(HOST), bits(OWN)));
    assert_eq!(reply.station, Some(station(&bed, INSIDE)));
    // A probe of another host is answered to all nodes.
    push_message(&bed, 0, &Message::probe(bits(OWN)));
    bed.settle();
    let sent = bed.sent(INSIDE);
    assert_eq!(messages(&sent)[0].destination, bits("ff02::1"));
    assert_eq!(sent[0].header.destination, MacAddress([0x33, 0x33, 0, 0, 0, 1]));
    assert_eq!(bed.total().of(Verdict::Local), 2);
}

#[test]
fn messages_from_behind_a_router_are_dropped_by_name() {
    // covers: 4861-6.1
    let mut bed = bed(1);
    let mut packet = [0; LENGTH_MAX];
    Message::solicitation(bits(HOST), HOST_STATION, bits(OWN)).write(&mut packet);
    packet[7] = 254;
    push(&bed, &packet);
    bed.settle();
    assert_eq!(bed.total().of(Verdict::NeighbourInvalid), 1);
    assert!(bed.sent(INSIDE).is_empty());
}

#[test]
fn echo_is_answered_on_each_own_address() {
    // covers: 4443-4.2
    let mut bed = bed(1);
    for own in [OWN, "fe80::ff:fe00:0"] {
        let from = if own == OWN { HOST } else { "fe80::7" };
        let sent = exchange(&mut bed, &build6::echo_request(v6(from), v6(own), 77, b"ping"));
        let reply = packet(&sent);
        let view = Ipv6::new_unchecked(reply.as_slice());
        assert_eq!((view.source(), view.destination()), (bits(own), bits(from)));
        let message = Icmp6::new_unchecked(view.payload());
        assert_eq!((message.icmp_type(), message.identifier(), message.sequence()), (129, 77, 1));
        assert_eq!(&view.payload()[8..], b"ping");
    }
    // The address of the other realm is not ours here.
    let sent = exchange(&mut bed, &build6::echo_request(v6(HOST), v6(OWN_OUTSIDE), 77, b"ping"));
    assert_eq!(packet(&sent)[40..42], [1, 0]);
    // By the router behind which the host is.
    let sent = exchange(&mut bed, &build6::echo_request(v6("2001:db8:1:5::1"), v6(OWN), 78, b"ping"));
    assert_eq!(packet(&sent)[40], 129);
    assert_eq!(messages(&sent)[0].target, bits("2001:db8:1::fe"), "the router was asked for");
}

/// Where softwires end: at an address that no interface has, and at one of another interface.
fn with_softwires() -> Settings {
    let mut settings = with_ipv6();
    let softwire = |aftr, realm| Softwire { aftr: v6(aftr), realm, inner: Vec::new(), subscribers: Vec::new() };
    settings.transition.softwires = vec![softwire(AFTR, RealmId(0)), softwire(OWN_OUTSIDE, RealmId(0))];
    let realm = RealmId(0);
    settings.transition.nat64 = vec![Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 }];
    settings.transition.hosts_max = 100;
    settings
}

#[test]
fn echo_is_answered_where_softwires_end() {
    // covers: 4443-4.2
    let mut bed = Bed::of(with_softwires(), 1);
    bed = bed.after_start();
    for aftr in [AFTR, OWN_OUTSIDE] {
        let sent = exchange(&mut bed, &build6::echo_request(v6(HOST), v6(aftr), 77, b"ping"));
        let reply = packet(&sent);
        let view = Ipv6::new_unchecked(reply.as_slice());
        assert_eq!((view.source(), view.destination(), reply[40]), (bits(aftr), bits(HOST), 129));
        let asked = Message::solicitation(bits(HOST), HOST_STATION, bits(aftr));
        push_message(&bed, 0, &asked);
        bed.settle();
        assert_eq!(messages(&bed.sent(INSIDE)), [], "no interface has it");
    }
}

/// A whole packet with a Fragment header.
fn atomic(packet: &[u8]) -> Vec<u8> {
    build6::with_extension(packet, ipv6::HEADER_FRAGMENT, &[0, 0, 0, 0, 0, 0, 9])
}

#[test]
fn echo_with_extension_headers_is_answered_without_them() {
    // covers: 4443-4.2, 6946-4
    let mut bed = Bed::of(with_softwires(), 1).after_start();
    introduce(&mut bed, HOST);
    let _ = bed.sent(INSIDE);
    // Router Alert, which may be skipped, and another option that may.
    let options = |packet: &[u8], header| build6::with_extension(packet, header, &[0, 5, 2, 0, 0, 0x1e, 0]);
    for own in [OWN, AFTR] {
        let plain = build6::echo_request(v6(HOST), v6(own), 77, b"ping");
        let wrapped = [
            atomic(&plain),
            options(&plain, ipv6::HEADER_HOP_BY_HOP),
            options(&plain, ipv6::HEADER_DESTINATION_OPTIONS),
            options(&atomic(&options(&plain, ipv6::HEADER_DESTINATION_OPTIONS)), ipv6::HEADER_HOP_BY_HOP),
            build6::with_extension(&plain, ipv6::HEADER_ROUTING, &[0; 7]),
        ];
        let expected = packet(&exchange(&mut bed, &plain));
        for request in wrapped {
            assert_eq!(packet(&exchange(&mut bed, &request)), expected, "to {request:02x?}");
        }
    }
    let first = bed.total().of(Verdict::Local);
    for (own, bits) in [(OWN, 1), (AFTR, 8)] {
        let plain = build6::echo_request(v6(HOST), v6(own), 77, b"ping");
        let fragment = build6::with_extension(&plain, ipv6::HEADER_FRAGMENT, &[0, 0, bits, 0, 0, 0, 9]);
        assert_eq!(exchange(&mut bed, &fragment).len(), 0, "nothing is reassembled");
    }
    assert_eq!(bed.total().of(Verdict::Local), first);
}

#[test]
fn where_softwires_end_headers_are_judged_as_elsewhere() {
    // covers: 4443-3.4, 8200-4.2
    let mut bed = Bed::of(with_softwires(), 1).after_start();
    introduce(&mut bed, HOST);
    let _ = bed.sent(INSIDE);
    for own in [OWN, AFTR] {
        let plain = build6::echo_request(v6(HOST), v6(own), 77, b"ping");
        let option =
            |kind: u8| build6::with_extension(&plain, ipv6::HEADER_DESTINATION_OPTIONS, &[0, kind, 0, 0, 0, 0, 0]);
        let raw = |protocol| build6::raw(v6(HOST), v6(own), protocol, &[7; 20]);
        // What comes back: code and pointer of a Parameter Problem.
        for (sent, expected) in [
            (raw(132), Some((1, 6))),
            (raw(41), Some((1, 6))),
            (atomic(&raw(132)), Some((1, 40))),
            (build6::with_extension(&plain, ipv6::HEADER_ROUTING, &[0, 0, 1, 0, 0, 0, 0]), Some((0, 43))),
            (option(0x80), Some((2, 42))),
            (option(0xc0), Some((2, 42))),
            (option(0x40), None),
            (build6::udp(endpoint(HOST, 5_000), endpoint(own, 53), b"x"), None),
            (raw(6), None),
            (raw(59), None),
        ] {
            let answers = exchange(&mut bed, &sent);
            let error = expected.map(|(code, pointer): (u8, u32)| {
                let error = packet(&answers);
                assert_eq!(Ipv6::new_unchecked(error.as_slice()).source(), bits(own), "RFC 4443 section 2.2");
                (error[40], error[41], error[44..48].to_vec()) == (4, code, pointer.to_be_bytes().to_vec())
            });
            assert!(error.unwrap_or(answers.is_empty()), "{sent:02x?} to {own}: {answers:02x?}");
            bed.run_for(Duration::from_millis(500), Duration::from_millis(100));
            let _ = bed.sent(INSIDE);
        }
    }
    let ignored = bed.total().of(Verdict::LocalIgnored);
    // Their rate is that of all errors.
    for _ in 0..100 {
        push(&bed, &build6::raw(v6(HOST), v6(AFTR), 132, &[7; 20]));
        bed.settle();
    }
    assert_eq!(bed.total().of(Verdict::LocalIgnored), ignored + 100);
    assert!(bed.sent(INSIDE).len() <= 20);
}

#[test]
fn what_is_explained_of_packets_to_natrix_itself_happens() {
    let mut bed = Bed::of(with_softwires(), 1).after_start();
    introduce(&mut bed, HOST);
    bed.workers[0].outlet.node.own_addresses().give_up(InterfaceId(1), bits(OWN_OUTSIDE));
    bed.settle();
    let (mut asker, inbox) = mailbox();
    bed.workers[0].set_mailbox(inbox);
    let ping = |from, to| build6::echo_request(v6(from), v6(to), 7, b"ping");
    let near = "fe80::ff:fe00:0";
    for (to, packet, verdict) in [
        (OWN, ping(HOST, OWN), Verdict::Local),
        (AFTR, ping(HOST, AFTR), Verdict::Local),
        (AFTR, atomic(&ping(HOST, AFTR)), Verdict::Local),
        (near, ping("fe80::7", near), Verdict::Local),
        (OWN_OUTSIDE, ping(HOST, OWN_OUTSIDE), Verdict::AddressNotUsed),
        (OWN, ping(OWN, OWN), Verdict::SourceInvalid),
        (AFTR, build6::raw(v6(HOST), v6(AFTR), 132, &[0; 8]), Verdict::LocalIgnored),
        (OWN, build6::udp(endpoint(HOST, 5_000), endpoint(OWN, 53), b"x"), Verdict::LocalIgnored),
    ] {
        let question = Question::Explain {
            from: Facing::inside(RealmId(0)),
            onward: None,
            packet: packet.clone(),
            explanation: None,
        };
        assert!(asker.ask(question).is_ok());
        let before = bed.total().of(verdict);
        bed.settle();
        let Some(Question::Explain { explanation: Some(explained), .. }) = asker.answer() else { panic!("an answer") };
        assert_eq!((explained.verdict, explained.steps[0]), (verdict, Step::OwnAddress6(v6(to))), "{packet:02x?}");
        let is_duplicate = |step: &Step| matches!(step, Step::AddressNotUsed { now: AddressUse::Duplicate, .. });
        assert_eq!(explained.steps.iter().any(is_duplicate), verdict == Verdict::AddressNotUsed);
        assert_eq!(bed.total().of(verdict), before, "asking changes nothing");
        push(&bed, &packet);
        bed.settle();
        assert_eq!(bed.total().of(verdict), before + 1, "{packet:02x?}");
    }
}

#[test]
fn a_trace_selects_packets_to_natrix_itself_by_their_flow() {
    let mut bed = bed(1);
    introduce(&mut bed, HOST);
    let all = TraceFilter::default();
    let filters = [
        TraceFilter { address: Some("2001:db8:1::7/128".parse().expect("a prefix")), ..all },
        TraceFilter { address: Some("2001:db8:1::8/128".parse().expect("a prefix")), ..all },
        TraceFilter { protocol: Some(Protocol::Icmp), port: Some(77), ..all },
        TraceFilter { port: Some(5_000), ..all },
        TraceFilter { protocol: Some(Protocol::Tcp), ..all },
    ];
    let packets = [
        build6::echo_request(v6(HOST), v6(OWN), 77, b"ping"),
        build6::udp(endpoint(HOST, 5_000), endpoint("2001:db8:99::1", 53), b"x"),
    ];
    for (filter, expected) in filters.into_iter().zip([2, 0, 1, 1, 0]) {
        let (end, mut reader) = tap(1, filter, 2_048, 64);
        assert!(bed.workers[0].tracer.start(end).is_ok());
        packets.iter().for_each(|packet| push(&bed, packet));
        bed.settle();
        bed.workers[0].tracer.stop(1);
        let mut seen = 0;
        while reader.read(|_| seen += 1) {}
        assert_eq!(seen, expected, "{filter:?}");
    }
}

#[test]
fn echo_from_an_address_that_no_host_has_is_not_answered() {
    let mut bed = Bed::of(with_softwires(), 1).after_start();
    introduce(&mut bed, HOST);
    let _ = bed.sent(INSIDE);
    let invalid =
        [OWN, OWN_OUTSIDE, AFTR, "fe80::ff:fe00:0", "::ffff:192.0.2.1", "::192.0.2.1", "ff02::7", "::1", "::"];
    for to in [OWN, AFTR] {
        for from in invalid.into_iter().chain(["64:ff9b::c000:201"]) {
            assert_eq!(exchange(&mut bed, &build6::echo_request(v6(from), v6(to), 7, b"ping")).len(), 0, "{from}");
        }
        assert_eq!(packet(&exchange(&mut bed, &build6::echo_request(v6(HOST), v6(to), 7, b"ping")))[40], 129);
    }
    let total = bed.total();
    let of = [Verdict::SourceInvalid, Verdict::SourceInPrefix, Verdict::LocalIgnored].map(|verdict| total.of(verdict));
    assert_eq!(of, [16, 2, 2]);
}

#[test]
fn echo_replies_have_a_limit() {
    for to in [OWN, AFTR] {
        let mut bed = Bed::of(with_softwires(), 1).after_start();
        // Natrix knows their stations, and the bucket is full again.
        for from in [HOST, "2001:db8:1::8", "fe80::7"] {
            assert_eq!(packet(&exchange(&mut bed, &build6::echo_request(v6(from), v6(to), 0, b"ping")))[40], 129);
        }
        bed.run_for(Duration::from_secs(1), Duration::from_millis(100));
        let _ = bed.sent(INSIDE);
        let ask_by = |bed: &mut Bed, by: MacAddress, from: Ipv6Addr, times| {
            for number in 0..times {
                let request = build6::echo_request(from, v6(to), number, b"ping");
                bed.push(0, INSIDE, &build::frame(by, station(bed, INSIDE), ETHER_TYPE_IPV6, &request));
                bed.poll_all();
            }
            bed.settle();
            bed.sent(INSIDE).iter().filter(|sent| sent.payload.get(40) == Some(&129)).count()
        };
        let ask = |bed: &mut Bed, from: Ipv6Addr, times| ask_by(bed, HOST_STATION, from, times);
        let first = ask(&mut bed, v6(HOST), 1_000);
        assert!((250..=262).contains(&first), "{first} at once");
        // Addresses that it invents in its /64 have the same limit, and other stations their own.
        assert!(ask(&mut bed, v6("2001:db8:1::8"), 100) <= 3);
        let other = MacAddress([6, 0, 0, 0, 0, 8]);
        assert_eq!(ask_by(&mut bed, other, v6("2001:db8:1::8"), 100), 100, "another station");
        assert_eq!(ask(&mut bed, v6("fe80::7"), 100), 100, "another /64");
        bed.run_for(Duration::from_secs(2), Duration::from_millis(100));
        let _ = bed.sent(INSIDE);
        assert!((250..=262).contains(&ask(&mut bed, v6(HOST), 1_000)), "again");
    }
}

#[test]
fn an_answer_without_station_keeps_a_known_neighbour() {
    // covers: 4861-7.2.5
    let mut bed = bed(2);
    exchange(&mut bed, &build6::echo_request(v6(HOST), v6(OWN), 1, b""));
    let solicited = |solicited| {
        let kind = Kind::Advertisement { router: true, solicited, override_known: false };
        Message { kind, source: bits(HOST), destination: bits(OWN), target: bits(HOST), station: None }
    };
    let mut asked = 0;
    for _ in 0..300 {
        // In use, so that it is asked before it is forgotten.
        push(&bed, &build6::echo_request(v6(HOST), v6(OWN), 1, b""));
        bed.run_for(Duration::from_secs(1), Duration::from_millis(100));
        for question in messages(&bed.sent(INSIDE)) {
            assert_eq!((question.target, question.destination), (bits(HOST), bits(HOST)), "by unicast");
            asked += 1;
            push_message(&bed, 0, &solicited(true));
        }
    }
    assert!((3..=10).contains(&asked), "{asked} probes in five minutes");
    // An unsolicited one confirms nothing, and one about a stranger teaches nothing.
    let stranger = Message { target: bits("2001:db8:1::99"), ..solicited(true) };
    for message in [solicited(false), stranger] {
        let ignored = bed.total().of(Verdict::LocalIgnored);
        push_message(&bed, 0, &message);
        bed.settle();
        assert_eq!(bed.total().of(Verdict::LocalIgnored), ignored + u64::from(message.target == bits(HOST)));
    }
    push(&bed, &build6::echo_request(v6("2001:db8:1::99"), v6(OWN), 1, b""));
    bed.settle();
    assert_eq!(messages(&bed.sent(INSIDE))[0].target, bits("2001:db8:1::99"), "it is asked for");
}

#[test]
fn a_damaged_echo_is_not_answered() {
    let mut bed = bed(1);
    introduce(&mut bed, HOST);
    let _ = bed.sent(INSIDE);
    let mut request = build6::echo_request(v6(HOST), v6(OWN), 77, b"ping");
    request[50] ^= 1;
    push(&bed, &request);
    bed.settle();
    assert!(bed.sent(INSIDE).is_empty());
    assert_eq!(bed.total().of(Verdict::IcmpBadChecksum), 1);
}

#[test]
fn forwarded_packets_get_a_named_drop_and_an_error() {
    // covers: 4443-2.4a, 4443-3.1, 4443-3.3
    let mut bed = bed(1);
    let to = |destination: &str| build6::udp(endpoint(HOST, 5000), endpoint(destination, 53), &[7; 1400]);
    let error = |bed: &mut Bed, sent: &[u8]| packet(&exchange(bed, sent));
    let no_route = error(&mut bed, &to("2001:db8:99::1"));
    assert_eq!((no_route.len(), &no_route[40..42]), (1280, &[1, 0][..]), "at most 1,280 bytes");
    assert_eq!(Ipv6::new_unchecked(no_route.as_slice()).source(), bits(OWN));
    let prohibited = error(&mut bed, &to("2001:db8:1:9::1"));
    assert_eq!(prohibited[40..42], [1, 1], "there is a route");
    let mut expiring = to("2001:db8:99::1");
    expiring[7] = 1;
    assert_eq!(error(&mut bed, &expiring)[40..42], [3, 0]);
    let total = bed.total();
    let counts = [Verdict::NoRoute, Verdict::Ipv6NotForwarded, Verdict::TtlExpired].map(|verdict| total.of(verdict));
    assert_eq!(counts, [1, 1, 1]);
}

#[test]
fn errors_are_rate_limited_and_never_about_errors() {
    // covers: 4443-2.4e, 4443-2.4f
    let mut bed = bed(1);
    introduce(&mut bed, HOST);
    let _ = bed.sent(INSIDE);
    let udp = build6::udp(endpoint(HOST, 5000), endpoint("2001:db8:99::1", 53), b"x");
    for count in 0..100_u16 {
        // Other addresses of the /64 share the limit.
        let mut other = udp.clone();
        other[22..24].copy_from_slice(&(0x100 + count).to_be_bytes());
        push(&bed, &other);
        if count % 10 == 0 {
            bed.settle();
        }
    }
    bed.settle();
    assert_eq!(bed.total().of(Verdict::NoRoute), 100);
    let waiting = bed.workers[0].link_counters().originated_dropped;
    assert!(waiting + bed.sent(INSIDE).len() as u64 <= 40, "20 a second, and the questions for their hosts");
    let quiet = bed.total().of(Verdict::NoRoute);
    bed.run_for(Duration::from_secs(10), Duration::from_millis(100));
    let _ = bed.sent(INSIDE);
    let error = build6::icmp(v6(HOST), v6("2001:db8:99::1"), (1, 4), [0; 4], &udp);
    let to_group = build6::udp(endpoint(HOST, 5000), endpoint("ff0e::1", 53), b"x");
    for packet in [&error, &to_group] {
        push(&bed, packet);
    }
    push_to(&bed, 0, MacAddress([0x33, 0x33, 0, 0, 0, 1]), &udp);
    bed.settle();
    assert!(bed.sent(INSIDE).is_empty());
    assert_eq!(bed.total().of(Verdict::NoRoute), quiet + 1);
}

#[test]
fn a_scan_asks_only_on_the_link_and_for_a_bounded_number() {
    // covers: 6583-6, 4861-7.2.2
    let mut bed = bed(1);
    // Echo requests from many invented hosts of the link, and of no link.
    for number in 0..800_u32 {
        let host = v6("2001:db8:1::").to_bits() + 0x1_0000 + u128::from(number);
        push(&bed, &build6::echo_request(host.into(), v6(OWN), 1, b""));
        push(&bed, &build6::echo_request(v6("2001:db8:77::1"), v6(OWN), 1, b""));
        bed.settle();
        // So that more than 256 replies get past the limit on echo.
        if number % 200 == 199 && number < 799 {
            bed.run_for(Duration::from_millis(200), Duration::from_millis(50));
        }
    }
    let asked = messages(&bed.sent(INSIDE));
    assert!(!asked.is_empty() && asked.len() <= 256, "{}", asked.len());
    assert!(asked.iter().all(|question| question.target >> 64 == bits(OWN) >> 64));
    assert!(bed.workers[0].link_counters().originated_dropped >= 250, "without route, or over the bounds");
}

/// The server of the bed, by NAT64.
const SERVER_BEHIND: &str = "64:ff9b::c633:6464";

/// A bed with hosts of NAT64, and the external endpoint of one whose station is not known.
fn bed_with_a_silent_host(workers: usize) -> (Bed, SocketAddrV4) {
    let mut settings = with_softwires();
    settings.pools[0].subscribers.push(Transition::HOSTS);
    let mut bed = Bed::of(settings, workers).after_start();
    push(&bed, &build6::udp(endpoint(HOST, 5_000), endpoint(SERVER_BEHIND, 53), b"x"));
    let out = bed.settle_with_arp(OUTSIDE);
    let external = out[0].udp().expect("a datagram").0;
    (bed, external)
}

#[test]
fn the_sender_learns_that_an_ipv6_host_is_silent() {
    // covers: 4861-7.2.2b
    for workers in [1, 2] {
        let (mut bed, external) = bed_with_a_silent_host(workers);
        // The second in fragments, which have no verdict of their own.
        bed.push_udp(0, SERVER, external, b"waits");
        bed.run_for(Duration::from_millis(2_500), Duration::from_millis(10));
        for piece in build::fragment(&build::udp(SERVER, external).payload(&[7; 1_480]).build(), 1_500) {
            bed.push_ip(0, OUTSIDE, *SERVER.ip(), &piece);
        }
        bed.run_for(Duration::from_millis(700), Duration::from_millis(10));
        // The neighbour is absent by now.
        bed.push_udp(0, SERVER, external, b"late");
        bed.settle();
        assert_eq!((bed.total().neighbour_pending, bed.total().fragments_held), (0, 0));
        let sent = bed.sent(OUTSIDE);
        let errors: Vec<_> = sent.iter().filter_map(Sent::icmp).collect();
        assert_eq!(errors.len(), 3, "{sent:?}");
        for (icmp_type, code, quote) in errors {
            assert_eq!((icmp_type, code), (3, 1));
            assert_eq!((&quote[12..16], &quote[16..20]), (&SERVER.ip().octets()[..], &external.ip().octets()[..]));
        }
        assert_eq!(bed.workers.iter().map(|worker| worker.counters().originated).sum::<u64>(), 3);
    }
}

#[test]
fn own_packets_to_a_silent_ipv6_host_are_not_reported() {
    let mut bed = Bed::of(with_softwires(), 1).after_start();
    push(&bed, &build6::echo_request(v6(HOST), v6(OWN), 77, b"ping"));
    push(&bed, &build6::udp(endpoint(HOST, 5_000), endpoint("2001:db8:99::1", 53), b"x"));
    bed.run_for(Duration::from_secs(5), Duration::from_millis(10));
    assert_eq!(bed.workers[0].link_counters().originated_dropped, 2, "a reply and an error");
    assert_eq!((bed.workers[0].counters().originated, bed.sent(OUTSIDE).len()), (0, 0));
}

#[test]
fn an_interface_without_ipv6_does_not_answer() {
    let mut bed = Bed::new(1).after_start();
    push(&bed, &build6::echo_request(v6("fe80::7"), v6("fe80::ff:fe00:0"), 77, b"ping"));
    push_message(&bed, 0, &Message::solicitation(bits(HOST), HOST_STATION, bits(OWN)));
    bed.settle();
    assert!(bed.sent(INSIDE).is_empty() && bed.sent(OUTSIDE).is_empty());
    assert_eq!(bed.total().of(Verdict::LinkUnknownType), 2);
}

#[test]
fn malformed_packets_are_counted_and_not_answered() {
    let mut bed = bed(1);
    let udp = build6::udp(endpoint(HOST, 5000), endpoint(OWN, 53), b"x");
    let mut wrong = udp.clone();
    wrong[0] = 0x45;
    push(&bed, &wrong);
    let mut chain = udp;
    for _ in 0..64 {
        chain = build6::with_extension(&chain, 60, &[0, 1, 4, 0, 0, 0, 0]);
    }
    push(&bed, &chain);
    bed.settle();
    assert!(bed.sent(INSIDE).is_empty());
    assert_eq!(bed.total().of(Verdict::Ipv6Malformed), 2);
}
