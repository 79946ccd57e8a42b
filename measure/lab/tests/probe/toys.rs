//! Toy NATs, each wrong in one way: the finding about it says so, and says the opposite of one that
//! is right.

use core::time::Duration;
use std::collections::VecDeque;

use lab::probe;
use lab::probe::Part;
use lab::probe::ProbeOptions;
use lab::probe::ProbeReport;
use lab::probe::Side;
use lab::probe::Verdict;
use lab::probe::World;
use lab::probe::WorldError;
use lab::probe::flow_state::FlowState;
use lab::probe::mapping::Dependence;
use lab::probe::seen::Protocol;
use lab::probe::seen::Seen;
use lab::probe::world::Arrival;

use super::expect;
use super::expect_time;
use super::expect_verdict;
use super::options;
use super::probed;
use super::toy::Full;
use super::toy::Hairpinning;
use super::toy::Ports;
use super::toy::Toy;
use super::toy::UnsolicitedSyn;
use super::toy::Ways;

fn probed_parts(ways: Ways, parts: &[Part]) -> ProbeReport {
    let options = ProbeOptions { parts: parts.to_vec(), ..options(60) };
    probed(&mut Toy::new(ways), Toy::site(), &options)
}

/// All findings about one part of one that is right, but for this.
fn with(part: Part, change: impl FnOnce(&mut Ways)) -> ProbeReport {
    let mut ways = Ways::default();
    change(&mut ways);
    probed_parts(ways, &[part])
}

#[test]
fn one_that_is_right_is_found_right() {
    let parts: Vec<Part> = Part::ALL.into_iter().filter(|part| *part != Part::Exhaustion).collect();
    let report = probed_parts(Ways::default(), &parts);
    let values = [
        ("mapping.udp", "endpoint-independent"),
        ("filtering.tcp", "endpoint-independent"),
        ("ports.preservation", "not kept"),
        ("ports.order", "random"),
        ("ports.range", "one for all hosts"),
        ("ports.low", "ports below 1024 stay below, others do not"),
        ("ports.overloading", "none"),
        ("pooling", "paired"),
        ("hairpinning.udp", "yes, with the external source"),
        ("hairpinning.tcp", "yes, with the external source"),
        ("hairpinning.icmp_error", "yes, quoting what was sent"),
        ("fragments.out.in_order", "passed"),
        ("fragments.in.out_of_order", "passed"),
        ("fragments.out.full_size", "passed"),
        ("fragments.in.full_size", "passed"),
        ("fragments.burst", "none of 2000 lost out, none of 2000 lost back"),
        ("fragments.burst.whole", "none of 2000 lost out, none of 2000 lost back"),
        ("ttl.out", "less by 1"),
        ("ttl.out.expired", "ICMP 11/0 in the sender's terms"),
        ("ttl.in.expired", "ICMP 11/0 in the sender's terms"),
        ("icmp.query", "answered, each host by itself"),
        ("icmp.errors.in.udp", "translated"),
        ("icmp.errors.in.tcp", "translated"),
        ("icmp.errors.survival.tcp", "the flow lives on"),
        ("icmp.errors.out", "translated"),
        ("icmp.errors.bad_checksum", "dropped"),
        ("icmp.errors.unknown", "dropped silently"),
        ("tcp.unsolicited_syn", "silence for 6 s, then ICMP 3/3"),
        ("tcp.simultaneous_open", "works"),
        ("tcp.stray_segment", "dropped"),
        ("refresh.udp.answered", "outbound packets"),
    ];
    for (name, value) in values {
        expect(&report, name, value);
    }
    expect_time(&report, FlowState::UdpAnswered, 20.0);
    expect_time(&report, FlowState::TcpEstablished, 20.0);
}

#[test]
fn each_mapping_and_filtering_class_is_recognized() {
    let classes = [Dependence::Endpoint, Dependence::Address, Dependence::AddressAndPort];
    for mapping in classes {
        let report = with(Part::Mapping, |ways| ways.mapping = mapping);
        expect(&report, "mapping.udp", mapping.words());
        expect(&report, "mapping.tcp", mapping.words());
        let verdict = Verdict::of(mapping == Dependence::Endpoint);
        expect_verdict(&report, "mapping.udp", "RFC 4787 REQ-1", verdict);
        let report = with(Part::Filtering, |ways| ways.filtering = mapping);
        expect(&report, "filtering.udp", mapping.words());
        expect(&report, "filtering.tcp", mapping.words());
    }
}

#[test]
fn a_symmetric_nat_that_keeps_ports_is_seen_through() {
    let report = with(Part::Mapping, |ways| {
        ways.mapping = Dependence::AddressAndPort;
        ways.ports = Ports::Kept;
        ways.addresses = 1;
    });
    expect_verdict(&report, "mapping.udp", "RFC 4787 REQ-1", Verdict::NotMet);
}

#[test]
fn ports_shared_towards_different_servers_are_found_out() {
    for mapping in [Dependence::Address, Dependence::AddressAndPort] {
        let ranges = [0..=u16::MAX, 2_000..=8_999];
        for (addresses, port_range) in
            [1, 4, 256].into_iter().flat_map(|count| ranges.clone().map(|range| (count, range)))
        {
            let report = with(Part::Mapping, |ways| {
                ways.mapping = mapping;
                ways.ports = Ports::Reused;
                ways.port_range = port_range;
                ways.addresses = addresses;
            });
            for (protocol, requirement) in
                [("udp", "RFC 4787 REQ-1"), ("tcp", "RFC 5382 REQ-1"), ("icmp", "RFC 5508 REQ-1a")]
            {
                // Queries have no port at the server.
                let class = if protocol == "icmp" { Dependence::Address } else { mapping };
                let name = format!("mapping.{protocol}");
                expect(&report, &name, &format!("{}, once another host has the port", class.words()));
                expect_verdict(&report, &name, requirement, Verdict::NotMet);
            }
        }
    }
    // What keeps ports, and gives each to one host only, is independent indeed.
    for addresses in [1, 4, 256] {
        let report = with(Part::Mapping, |ways| {
            ways.ports = Ports::Kept;
            ways.addresses = addresses;
        });
        for protocol in ["udp", "tcp", "icmp"] {
            expect(&report, &format!("mapping.{protocol}"), "endpoint-independent");
        }
    }
}

#[test]
fn ports_are_kept_or_given_in_order_or_at_random() {
    let report = with(Part::Ports, |ways| {
        ways.ports = Ports::Kept;
        ways.addresses = 1;
    });
    expect(&report, "ports.preservation", "kept, another one when it is taken");
    expect(&report, "ports.parity", "not kept");
    expect(&report, "pooling", "one external address");
    let report = with(Part::Ports, |ways| {
        ways.ports = Ports::Overloaded;
        ways.addresses = 1;
    });
    expect(&report, "ports.preservation", "kept, also when another host has the same");
    expect(&report, "ports.parity", "kept");
    expect(&report, "ports.overloading", "external endpoints are shared");
    expect_verdict(&report, "ports.overloading", "RFC 4787 REQ-3", Verdict::NotMet);
    let report = with(Part::Ports, |ways| ways.ports = Ports::Sequential);
    expect(&report, "ports.order", "one after the other");
    expect_verdict(&report, "ports.order", "RFC 6888 REQ-15", Verdict::NotMet);
    let report = with(Part::Ports, |ways| ways.is_paired = false);
    expect(&report, "pooling", "arbitrary");
    expect_verdict(&report, "pooling", "RFC 6888 REQ-2", Verdict::NotMet);
    // Neighbours have the same address, and others another one.
    let report = with(Part::Ports, |ways| {
        ways.hosts_an_address = Some(1_024);
        ways.addresses = 256;
    });
    expect(&report, "pooling", "paired");
    expect_verdict(&report, "pooling", "RFC 4787 REQ-2", Verdict::Met);
    // Each of the eight hosts that are asked has another address, but not for itself.
    let report = with(Part::Ports, |ways| {
        ways.ports = Ports::Reused;
        ways.mapping = Dependence::AddressAndPort;
        ways.hosts_an_address = Some(1_024);
        ways.addresses = 256;
    });
    expect(&report, "pooling", "paired");
    let report = with(Part::Ports, |ways| ways.low_ports_apart = false);
    expect(&report, "ports.low", "all lead to 1024 or more");
    expect_verdict(&report, "ports.low", "RFC 4787 REQ-3a", Verdict::NotMet);
}

#[test]
fn of_ports_from_which_nothing_gets_out_nothing_is_known() {
    let report = with(Part::Ports, |ways| {
        // The hosts before take all.
        ways.capacity = 200;
        ways.full = Full::RefuseSilently;
    });
    expect(&report, "ports.low", "not known: none gets out");
    expect_verdict(&report, "ports.low", "RFC 4787 REQ-3a", Verdict::Undecided);
}

#[test]
fn ports_in_order_are_no_ranges() {
    let report = with(Part::Ports, |ways| {
        ways.ports = Ports::Sequential;
        ways.addresses = 1;
    });
    expect(&report, "ports.order", "one after the other");
    expect(&report, "ports.range", "one for all hosts");
}

#[test]
fn hairpinning_is_missing_or_shows_the_inside() {
    let report = with(Part::Hairpinning, |ways| ways.hairpinning = Hairpinning::Never);
    expect(&report, "hairpinning.udp", "no");
    expect(&report, "hairpinning.icmp_error", "no");
    expect_verdict(&report, "hairpinning.udp", "RFC 4787 REQ-9a", Verdict::NotApplicable);
    let report = with(Part::Hairpinning, |ways| ways.hairpinning = Hairpinning::Internal);
    expect(&report, "hairpinning.tcp", "yes, with the internal source");
    expect_verdict(&report, "hairpinning.udp", "RFC 4787 REQ-9a", Verdict::NotMet);
    let report = with(Part::Hairpinning, |ways| ways.filtering = Dependence::AddressAndPort);
    expect(&report, "hairpinning.udp", "yes, with the external source, once both have sent");
}

#[test]
fn fragments_are_lost_or_only_taken_in_order() {
    let report = with(Part::Fragments, |ways| ways.passes_fragments = false);
    expect(&report, "fragments.out.in_order", "lost");
    expect_verdict(&report, "fragments.in.in_order", "RFC 4787 REQ-14", Verdict::NotMet);
    let report = with(Part::Fragments, |ways| ways.needs_fragments_in_order = true);
    expect(&report, "fragments.out.in_order", "passed");
    expect(&report, "fragments.out.out_of_order", "lost");
    expect(&report, "fragments.out.full_size", "passed in 1 of 3 orders");
}

#[test]
fn fragments_as_large_as_a_frame_differ_from_small_ones() {
    for (fragment_bytes_max, value, verdict) in [(1_500, "passed", Verdict::Met), (1_499, "lost", Verdict::NotMet)] {
        let report = with(Part::Fragments, |ways| ways.fragment_bytes_max = fragment_bytes_max);
        for direction in ["out", "in"] {
            expect(&report, &format!("fragments.{direction}.out_of_order"), "passed");
            expect(&report, &format!("fragments.{direction}.full_size"), value);
            expect_verdict(&report, &format!("fragments.{direction}.full_size"), "RFC 4787 REQ-14", verdict);
        }
    }
    // Ports that join fragments, and cut what is long then, are no fault of the NAT.
    let options = ProbeOptions { parts: vec![Part::Fragments], arrive_whole: true, ..options(60) };
    let report = probed(&mut Toy::new(Ways::default()), Toy::site(), &options);
    expect(&report, "fragments.in.out_of_order", "passed");
    expect(&report, "fragments.in.full_size", "not to be seen over packet sockets");
    expect_verdict(&report, "fragments.in.full_size", "RFC 4787 REQ-14", Verdict::Undecided);
}

#[test]
fn a_flow_that_gets_no_port_is_no_lost_fragment() {
    let few = |capacity: usize| {
        with(Part::Fragments, |ways| {
            ways.capacity = capacity;
            ways.full = Full::RefuseAndTell;
        })
    };
    // One flow shows that something passes; then there are ports for two, one in order and one of
    // the five out of order.
    let report = few(3);
    expect(&report, "fragments.out.in_order", "passed");
    expect(&report, "fragments.out.out_of_order", "passed in 1 of 1 orders, the others got no port");
    expect(&report, "fragments.in.full_size", "not asked: no flow gets a port");
    expect(&report, "fragments.burst", "none of 0 lost out, none of 0 lost back (2000 more flows got no port)");
    for name in ["fragments.out.out_of_order", "fragments.in.full_size", "fragments.burst"] {
        expect_verdict(&report, name, "RFC 4787 REQ-14", Verdict::Undecided);
    }
    // Those of the burst that have one lose nothing.
    let report = few(1_000);
    let values =
        ["fragments.burst", "fragments.burst.whole"].map(|name| &report.finding(name).expect("it is there").value);
    for value in values {
        let (had, refused) = value.split_once(" (").expect("some are refused");
        let refused: usize = refused.split_once(' ').expect("a number").0.parse().expect("a number");
        let asked = 2_000 - refused;
        assert_eq!(had, format!("none of {asked} lost out, none of {asked} lost back"));
        assert!((900..1_000).contains(&asked), "{asked}");
    }
    expect_verdict(&report, "fragments.burst", "RFC 4787 REQ-14", Verdict::Met);
    // A NAT that has ports and loses fragments is judged as before.
    let report = with(Part::Fragments, |ways| {
        ways.capacity = 1_000;
        ways.passes_fragments = false;
    });
    let value = &report.finding("fragments.burst").expect("it is there").value;
    assert!(value.contains("(100.00 %) out, none of 0 lost back ("), "{value}");
    expect_verdict(&report, "fragments.out.in_order", "RFC 4787 REQ-14", Verdict::NotMet);
}

#[test]
fn lost_fragments_of_a_burst_count_by_datagram() {
    let report = with(Part::Fragments, |ways| ways.passes_fragments = false);
    expect(&report, "fragments.burst", "2000 of 2000 lost (100.00 %) out, none of 0 lost back");
    expect(&report, "fragments.burst.whole", "none of 2000 lost out, none of 2000 lost back");
    let report = with(Part::Fragments, |ways| ways.loses_fragment_in = Some(5));
    let value = &report.finding("fragments.burst").expect("there is one").value;
    // Two of five datagrams, give or take one for where the count begins; the burst has no
    // retransmission.
    assert!(value.contains(" of 2000 lost (40.0") || value.contains(" of 2000 lost (39.9"), "{value}");
    expect_verdict(&report, "fragments.burst", "RFC 4787 REQ-14", Verdict::Undecided);
}

#[test]
fn ttl_stays_or_runs_out_in_silence() {
    let report = with(Part::Ttl, |ways| ways.decrements_ttl = false);
    expect(&report, "ttl.out", "unchanged");
    expect(&report, "ttl.in.expired", "the packet passes");
    let report = with(Part::Ttl, |ways| ways.answers_ttl = false);
    expect(&report, "ttl.out.expired", "no answer");
    expect_verdict(&report, "ttl.in.expired", "RFC 5508 REQ-10a", Verdict::NotMet);
}

#[test]
fn icmp_errors_are_lost_wrong_or_deadly() {
    let report = with(Part::Icmp, |ways| ways.passes_errors = false);
    expect(&report, "icmp.errors.in.udp", "lost");
    expect(&report, "icmp.errors.out", "lost");
    let report = with(Part::Icmp, |ways| ways.forgets_quotes = true);
    expect(&report, "icmp.errors.in.udp", "wrong");
    expect(&report, "icmp.errors.out", "wrong");
    expect_verdict(&report, "icmp.errors.in.tcp", "RFC 5382 REQ-9", Verdict::NotMet);
    let report = with(Part::Icmp, |ways| ways.errors_end_flows = true);
    expect(&report, "icmp.errors.survival.udp", "the flow is gone");
    expect_verdict(&report, "icmp.errors.survival.tcp", "RFC 5382 REQ-10", Verdict::NotMet);
    let report = with(Part::Icmp, |ways| ways.checks_errors = false);
    expect(&report, "icmp.errors.bad_checksum", "passed on");
}

#[test]
fn unsolicited_syns_are_answered_too_early_or_never() {
    let answers = [
        (UnsolicitedSyn::Silence, "silence for 7.5 s", Verdict::Met),
        (UnsolicitedSyn::ResetAtOnce, "RST at once", Verdict::NotMet),
        (UnsolicitedSyn::ErrorAtOnce, "ICMP 3/3 at once", Verdict::NotMet),
    ];
    for (way, value, verdict) in answers {
        let report = with(Part::Tcp, |ways| ways.unsolicited_syn = way);
        expect(&report, "tcp.unsolicited_syn", value);
        expect_verdict(&report, "tcp.unsolicited_syn", "RFC 5382 REQ-4", verdict);
    }
    let report = with(Part::Tcp, |ways| {
        ways.takes_syn_of_server = false;
        ways.resets_stray_segments = true;
    });
    expect(&report, "tcp.simultaneous_open", "the server's SYN is lost");
    expect(&report, "tcp.stray_segment", "answered with RST");
}

#[test]
fn a_held_syn_may_be_forgotten_when_the_host_connects_itself() {
    let filtered = |change: fn(&mut Ways)| {
        with(Part::Tcp, |ways| {
            ways.filtering = Dependence::Address;
            change(ways);
        })
    };
    type Case = (fn(&mut Ways), &'static str, Verdict);
    let cases: [Case; 4] = [
        (|_| (), "dropped silently", Verdict::Met),
        (|ways| ways.forgets_held_syns = false, "ICMP 3/3 all the same", Verdict::NotMet),
        (|ways| ways.unsolicited_syn = UnsolicitedSyn::ResetAtOnce, "RST at once", Verdict::NotMet),
        (
            |ways| ways.mapping = Dependence::AddressAndPort,
            "not to be seen: the host's SYN leaves from another endpoint",
            Verdict::NotApplicable,
        ),
    ];
    for (change, value, verdict) in cases {
        let report = filtered(change);
        expect(&report, "tcp.matching_syn", value);
        expect_verdict(&report, "tcp.matching_syn", "RFC 5382 REQ-4", verdict);
    }
    let open = with(Part::Tcp, |_| ());
    expect(&open, "tcp.matching_syn", "not to be seen: the filter lets the stranger's SYN in");
}

#[test]
fn each_direction_of_refresh_is_seen_by_itself() {
    let directions = [
        (true, true, false, "outbound packets, inbound packets"),
        (false, true, false, "inbound packets"),
        (true, false, true, "outbound packets, ICMP errors from outside, ICMP errors from inside"),
        (false, false, false, "nothing"),
    ];
    for (outbound, inbound, errors, value) in directions {
        let report = with(Part::Timers, |ways| {
            ways.idle = Duration::from_millis(7_700);
            ways.outbound_refreshes = outbound;
            ways.inbound_refreshes = inbound;
            ways.errors_refresh = errors;
        });
        expect(&report, "refresh.udp.answered", value);
        expect_verdict(&report, "refresh.udp.answered", "RFC 4787 REQ-6", Verdict::of(outbound));
        expect_verdict(&report, "refresh.udp.answered", "RFC 7857 §7.1", Verdict::of(!errors));
        expect_time(&report, FlowState::UdpUnanswered, 7.7);
    }
}

#[test]
fn the_record_of_a_timer_has_every_flow_that_was_asked() {
    let report = with(Part::Timers, |ways| ways.idle = Duration::from_millis(7_700));
    let timer = report.timers.iter().find(|timer| timer.state == FlowState::UdpAnswered).expect("it was asked");
    let record = timer.record();
    let samples = record["samples"].as_array().expect("a list");
    let (plain, refreshed): (Vec<_>, Vec<_>) = samples.iter().partition(|sample| sample["refresher"].is_null());
    assert_eq!(plain.len(), timer.flows as usize);
    let asked: Vec<f64> = plain.iter().filter_map(|sample| sample["asked_seconds"].as_f64()).collect();
    assert!(asked.len() == plain.len() && asked.is_sorted(), "{asked:?}");
    assert!(plain.iter().all(|sample| sample["there"] == (sample["asked_seconds"].as_f64() < Some(7.7))), "{plain:?}");
    let by: Vec<_> = refreshed.iter().map(|sample| (sample["refresher"].as_str(), sample["there"].as_bool())).collect();
    assert_eq!(by.len(), 4, "{by:?}");
    assert!(by.contains(&(Some("outbound"), Some(true))) && by.contains(&(Some("inbound"), Some(false))), "{by:?}");
    assert!(refreshed.iter().all(|sample| sample["refreshed_seconds"].as_f64() < sample["asked_seconds"].as_f64()));
}

#[test]
fn a_time_beyond_the_limit_is_said_to_be_beyond() {
    let report = with(Part::Timers, |ways| ways.idle = Duration::from_secs(61));
    expect(&report, "timer.udp.answered", "> 60 s");
    expect_verdict(&report, "timer.udp.answered", "RFC 4787 REQ-5", Verdict::Undecided);
    expect_verdict(&report, "timer.icmp.query", "RFC 5508 REQ-2", Verdict::Met);
}

#[test]
fn a_full_nat_refuses_with_or_without_an_error_or_evicts() {
    let ends = [
        (Full::RefuseAndTell, "refused with ICMP 3/1", "those that are there stay"),
        (Full::RefuseSilently, "refused silently", "those that are there stay"),
        (Full::EvictOldest, "never refused", "flows are evicted to make room"),
    ];
    for (full, refusal, eviction) in ends {
        let report = with(Part::Exhaustion, |ways| {
            ways.capacity = 700;
            ways.full = full;
        });
        expect(&report, "exhaustion.refusal", refusal);
        expect(&report, "exhaustion.eviction", eviction);
        expect_verdict(&report, "exhaustion.eviction", "RFC 6888 REQ-11d", Verdict::of(full != Full::EvictOldest));
        if full != Full::EvictOldest {
            expect(&report, "exhaustion.limit", "of all hosts together");
        }
    }
    // Nothing was short: what happens when it is was not seen, whatever that is.
    for full in [Full::RefuseAndTell, Full::EvictOldest] {
        let report = with(Part::Exhaustion, |ways| ways.full = full);
        expect(&report, "exhaustion.refusal", "no end found");
        expect(&report, "exhaustion.eviction", "not known: no end was found, so that none had to go");
        expect_verdict(&report, "exhaustion.eviction", "RFC 6888 REQ-11d", Verdict::Undecided);
    }
}

#[test]
fn a_device_through_which_nothing_passes_is_no_result() {
    let ways = Ways { capacity: 0, full: Full::RefuseSilently, ..Ways::default() };
    let told = probe::probe(&mut Toy::new(ways), Toy::site(), &options(10), &mut |_| {});
    let error = told.expect_err("nothing passes").to_string();
    assert_eq!(
        error,
        "device: no datagram gets out and is answered (10 sent, 0 came out); see that it runs, translates 10.0.1.0 and routes 198.51.100.1"
    );
}

/// A router: it passes everything as it is, or all but some protocols translated.
struct Router {
    toy: Toy,
    untranslated: &'static [Protocol],
    arrived: VecDeque<Arrival>,
}

impl Router {
    fn of(untranslated: &'static [Protocol]) -> Router {
        Router { toy: Toy::new(Ways::default()), untranslated, arrived: VecDeque::new() }
    }
}

impl World for Router {
    fn now(&self) -> Duration {
        self.toy.now()
    }

    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError> {
        let protocol = Seen::read(packet).and_then(|seen| seen.protocol);
        if !protocol.is_some_and(|protocol| self.untranslated.contains(&protocol)) {
            return self.toy.send(side, packet);
        }
        self.arrived.push_back(Arrival { side: side.other(), at: self.toy.now(), packet: packet.to_vec() });
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError> {
        self.arrived.pop_front().map_or_else(|| self.toy.next(until), |arrival| Ok(Some(arrival)))
    }
}

#[test]
fn a_router_is_no_nat() {
    let mut router = Router::of(&[Protocol::Udp, Protocol::Tcp, Protocol::Icmp]);
    let told = probe::probe(&mut router, Toy::site(), &options(10), &mut |_| {});
    assert_eq!(
        told.expect_err("nothing is translated").to_string(),
        "device: passes what comes from 10.0.1.0 to 198.51.100.1 without translating it; see that it translates 10.0.1.0"
    );
    // One that forgets a protocol.
    let only = ProbeOptions { parts: vec![Part::Mapping, Part::Icmp], ..options(10) };
    let report = probed(&mut Router::of(&[Protocol::Icmp]), Toy::site(), &only);
    expect(&report, "mapping.udp", "endpoint-independent");
    expect(&report, "mapping.icmp", "not translated");
    expect_verdict(&report, "mapping.icmp", "RFC 5508 REQ-1a", Verdict::NotMet);
    expect(&report, "icmp.query", "not translated");
    expect_verdict(&report, "icmp.query", "RFC 5508 REQ-1", Verdict::NotMet);
}

/// A world that a signal ends.
struct Ended {
    toy: Toy,
    at: Duration,
}

impl World for Ended {
    fn now(&self) -> Duration {
        self.toy.now()
    }

    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError> {
        self.toy.send(side, packet)
    }

    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError> {
        if until >= self.at {
            return Err(WorldError::Interrupted);
        }
        self.toy.next(until)
    }
}

#[test]
fn an_interrupted_probe_keeps_what_it_found() {
    let ways = || Ways { idle: Duration::from_secs(40), ..Ways::default() };
    let of = |at: u64| {
        let mut world = Ended { toy: Toy::new(ways()), at: Duration::from_secs(at) };
        let options = ProbeOptions { parts: vec![Part::Mapping, Part::Timers], ..options(60) };
        probe::probe(&mut world, Toy::site(), &options, &mut |_| {}).expect("something passes")
    };
    // While the first flows wait: it is known that they last for so long, and not how long.
    let early = of(20);
    assert!(early.interrupted);
    expect(&early, "mapping.udp", "endpoint-independent");
    let timer = early.timers.iter().find(|timer| timer.state == FlowState::UdpAnswered).expect("it was asked");
    assert!(timer.gone_seconds.is_none() && timer.alive_seconds.is_some_and(|alive| alive > 5.0 && alive <= 20.0));
    let value = &early.finding("timer.udp.answered").expect("it is there").value;
    assert!(value.starts_with("> 1") && value.ends_with(" s"), "{value}");
    expect_verdict(&early, "timer.udp.answered", "RFC 4787 REQ-5", Verdict::Undecided);
    // In the second pass: between two times of the first.
    let late = of(90);
    let timer = late.timers.iter().find(|timer| timer.state == FlowState::UdpAnswered).expect("it was asked");
    let (alive, gone) = (timer.alive_seconds.unwrap_or(0.0), timer.gone_seconds.unwrap_or(0.0));
    assert!(late.interrupted && alive <= 40.0 && (40.0..60.0).contains(&gone), "{alive} to {gone}");
}
