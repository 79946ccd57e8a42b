//! Questions between bursts, and traces.

use nat::Verdict;

use super::bed::Bed;
use super::bed::INSIDE;
use super::bed::OUTSIDE;
use super::bed::SERVER;
use super::bed::subscriber;
use crate::mailbox::Question;
use crate::mailbox::Snapshot;
use crate::mailbox::mailbox;
use crate::trace::Flow;
use crate::trace::TraceFilter;
use crate::trace::TraceReader;
use crate::trace::TraceRecord;
use crate::trace::tap;

fn tapped(bed: &mut Bed, filter: TraceFilter, records: usize) -> TraceReader {
    let (end, reader) = tap(1, filter, 2_048, records);
    assert!(bed.workers[0].tracer.start(end).is_ok());
    reader
}

fn records(reader: &mut TraceReader) -> Vec<TraceRecord> {
    let mut records = Vec::new();
    while reader.read(|record| records.push(record.clone())) {}
    records
}

#[test]
fn a_trace_shows_a_packet_before_and_after() {
    let mut bed = Bed::new(1).after_start();
    let mut reader = tapped(&mut bed, TraceFilter::default(), 64);
    bed.push_udp(0, subscriber(2), SERVER, b"hello");
    let sent = bed.settle_with_arp(OUTSIDE);
    let traced = records(&mut reader);
    let record = traced.iter().find(|record| record.verdict == Verdict::Outbound).expect("the packet");
    let before = Flow::of(&record.before[record.link_length..]).expect("IPv4");
    assert_eq!((before.source, before.ports), ((*subscriber(2).ip()).into(), Some((4_002, 53))));
    assert_eq!(&record.before[..6], &[2, 0, 0, 0, 0, 0], "with its Ethernet header");
    assert_eq!(record.length, 60);
    assert_eq!(record.after[14..], sent[0].payload, "as it left");
    assert_eq!(record.interface_out.map(|interface| interface.0), Some(1));
    assert!(traced.iter().any(|record| record.verdict == Verdict::Local), "the ARP reply is there too");
}

#[test]
fn a_trace_shows_only_what_its_filter_lets_through() {
    let mut bed = Bed::new(1).after_start();
    let wanted = TraceFilter { port: Some(4_003), ..TraceFilter::default() };
    let mut by_port = tapped(&mut bed, wanted, 64);
    let mut drops = tapped(&mut bed, TraceFilter { dropped_only: true, ..TraceFilter::default() }, 64);
    for host in 2..6 {
        bed.push_udp(0, subscriber(host), SERVER, b"x");
    }
    bed.push(0, INSIDE, &[0; 13]);
    bed.settle();
    let by_port = records(&mut by_port);
    assert_eq!(by_port.len(), 1);
    assert_eq!(Flow::of(&by_port[0].before[14..]).map(|flow| flow.source), Some((*subscriber(3).ip()).into()));
    let drops = records(&mut drops);
    assert_eq!(drops.iter().map(|record| record.verdict).collect::<Vec<_>>(), [Verdict::LinkTruncated]);
}

#[test]
fn a_slow_reader_loses_records_and_learns_how_many() {
    let mut bed = Bed::new(1).after_start();
    let mut reader = tapped(&mut bed, TraceFilter::default(), 4);
    for _ in 0..10 {
        bed.push_udp(0, subscriber(2), SERVER, b"x");
    }
    bed.settle();
    assert_eq!(records(&mut reader).len(), 4);
    bed.push_udp(0, subscriber(2), SERVER, b"x");
    bed.settle();
    assert_eq!(records(&mut reader)[0].lost_before, 6);
}

#[test]
fn tracing_ends_with_its_reader() {
    let mut bed = Bed::new(1).after_start();
    drop(tapped(&mut bed, TraceFilter::default(), 4));
    bed.workers[0].tracer.stop(0);
    assert!(!bed.workers[0].tracer.is_on());
}

#[test]
fn questions_are_answered_between_bursts() {
    let mut bed = Bed::new(1).after_start();
    let (mut asker, inbox) = mailbox();
    bed.workers[0].set_mailbox(inbox);
    bed.push_udp(0, subscriber(2), SERVER, b"x");
    bed.settle_with_arp(OUTSIDE);
    assert!(asker.ask(Question::Snapshot(Box::default())).is_ok());
    assert!(asker.answer().is_none(), "the worker has not polled yet");
    bed.settle();
    let Some(Question::Snapshot(snapshot)) = asker.answer() else { panic!("a snapshot") };
    let Snapshot { counters, interfaces, ports, .. } = *snapshot;
    assert_eq!(counters.of(Verdict::Outbound), 1);
    assert_eq!((interfaces.len(), ports.len()), (3, 2));
    assert_eq!(interfaces[0].received_packets, 1);
}
