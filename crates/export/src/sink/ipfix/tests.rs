use std::collections::BTreeMap;

use nat::Protocol;
use nat::Verdict;
use nat::event::Cause;
use nat::event::HostName;
use nat::types::Endpoint;
use nat::types::RealmId;

use super::*;
use crate::line::Names;
use crate::pools::PoolRange;
use crate::pools::PoolRanges;
use crate::subscriber::HostNames;

type Fields = BTreeMap<u16, Vec<u8>>;

/// Reads messages as a collector does: by the templates it was sent.
#[derive(Default)]
struct Reader {
    templates: BTreeMap<u16, Vec<(u16, u16)>>,
}

impl Reader {
    /// Sequence, domain and records.
    fn read(&mut self, message: &[u8]) -> (u32, u32, Vec<Fields>) {
        let u16_at = |at: usize| u16::from_be_bytes(message[at..at + 2].try_into().unwrap());
        let u32_at = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
        assert_eq!((u16_at(0), usize::from(u16_at(2))), (10, message.len()));
        let (mut at, mut records) = (16, Vec::new());
        while at < message.len() {
            let (set, end) = (u16_at(at), at + usize::from(u16_at(at + 2)));
            at += 4;
            while at < end {
                if set == 2 {
                    let (id, count) = (u16_at(at), usize::from(u16_at(at + 2)));
                    let fields = (0..count).map(|i| (u16_at(at + 4 + 4 * i), u16_at(at + 6 + 4 * i))).collect();
                    self.templates.insert(id, fields);
                    at += 4 + 4 * count;
                    continue;
                }
                let mut record = Fields::new();
                for (field, length) in &self.templates[&set] {
                    let (skip, length) = match *length {
                        template::VARIABLE => (1, usize::from(message[at])),
                        length => (0, usize::from(length)),
                    };
                    record.insert(*field, message[at + skip..at + skip + length].to_vec());
                    at += skip + length;
                }
                records.push(record);
            }
            assert_eq!(at, end, "a set ends with its last record");
        }
        (u32_at(8), u32_at(12), records)
    }
}

fn number(record: &Fields, field: u16) -> u64 {
    record[&field].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn of_mapping(kind: EventKind) -> Event {
    let internal = Endpoint::new([100, 64, 0, 10].into(), 5_000);
    let external = Endpoint::new([203, 0, 113, 1].into(), 15_007);
    Event::of_mapping(kind, Instant::ORIGIN, RealmId(1), Protocol::Udp, internal, external)
}

/// What a collector reads of these events after a start.
fn records_of(events: &[Event], message_max: usize) -> (Vec<Fields>, Vec<usize>) {
    let addresses = PoolRanges::of(vec![PoolRange::of_address([203, 0, 113, 1].into(), 3)]).into();
    let names = Names { realms: vec!["red".to_owned(), "blue".to_owned()], addresses, ..Names::default() };
    let quotas = Quotas {
        mappings: 7,
        sessions: 8,
        subscribers: 9,
        fragmented_datagrams: 10,
        fragments_held: 11,
        ..Quotas::default()
    };
    let (mut ipfix, mut out, mut reader) = (Ipfix::new(77, message_max), Vec::new(), Reader::default());
    let mut hosts = HostNames::default();
    ipfix.begin();
    for mut preface in ipfix.templates() {
        ipfix.stamp(&mut preface, 5_000_000);
        assert!(preface.bytes.len() <= message_max, "templates of {} bytes", preface.bytes.len());
        assert_eq!(reader.read(&preface.bytes).2, []);
    }
    for event in events {
        let unix_us = 1_795_289_400_123_456;
        let subscriber = hosts.subscriber_of(WorkerId(0), event);
        let item = Item { worker: WorkerId(0), event, subscriber, unix_us, names: &names, quotas: &quotas };
        ipfix.push(&item, &mut out);
    }
    ipfix.end(&mut out);
    let (mut all, mut sizes, mut next) = (Vec::new(), Vec::new(), 0);
    for mut message in out {
        ipfix.stamp(&mut message, 5_000_000);
        if message.bytes.is_empty() {
            next += message.skipped;
            continue;
        }
        let (sequence, domain, records) = reader.read(&message.bytes);
        assert_eq!((sequence, domain), (next, 77));
        next += records.len() as u32;
        sizes.push(message.bytes.len());
        all.extend(records);
    }
    (all, sizes)
}

#[test]
fn a_mapping_is_a_bib_entry_between_the_ends_of_a_binding() {
    // covers: 8158-E3, 8158-E16
    let events = [of_mapping(EventKind::MappingCreated), of_mapping(EventKind::MappingEnded)];
    let (records, _) = records_of(&events, 1_400);
    let kinds: Vec<u64> = records.iter().map(|record| number(record, 230)).collect();
    assert_eq!(kinds, [14, 8, 9, 15]);
    let bib = &records[1];
    assert_eq!(number(bib, 323), 1_795_289_400_123);
    assert_eq!((&bib[&8][..], &bib[&225][..]), (&[100, 64, 0, 10][..], &[203, 0, 113, 1][..]));
    assert_eq!((number(bib, 4), number(bib, 7), number(bib, 227)), (17, 5_000, 15_007));
    assert_eq!((number(bib, 463), number(bib, 234), &bib[&464][..]), (77, 1, &b"blue"[..]));
    assert!(records.iter().all(|record| number(record, 283) == 3), "the pool of the external address");
    // No destination (RFC 6888 REQ-12).
    assert!([11, 12, 226, 228].iter().all(|field| !bib.contains_key(field)));
    assert_eq!((&records[0][&8][..], &records[0][&225][..]), (&[100, 64, 0, 10][..], &[203, 0, 113, 1][..]));
}

#[test]
fn a_flow_is_a_session_with_its_destination() {
    // covers: 8158-E1
    let flow = Event { remote: [192, 0, 2, 9].into(), remote_port: 443, ..of_mapping(EventKind::FlowCreated) };
    let (records, _) = records_of(&[flow, Event { kind: EventKind::FlowEnded, ..flow }], 1_400);
    let kinds: Vec<u64> = records.iter().map(|record| number(record, 230)).collect();
    assert_eq!(kinds, [14, 4, 5, 15]);
    assert_eq!((&records[1][&12][..], number(&records[1], 11)), (&[192, 0, 2, 9][..], 443));
}

#[test]
fn a_block_has_its_start_end_and_size() {
    // covers: 8158-E17
    let block = Event {
        first_port: 4_096,
        last_port: 4_607,
        internal_port: 0,
        protocol: None,
        ..of_mapping(EventKind::BlockLeased)
    };
    let (records, _) = records_of(&[block, Event { kind: EventKind::BlockReturned, ..block }], 1_400);
    let kinds: Vec<u64> = records.iter().map(|record| number(record, 230)).collect();
    assert_eq!(kinds, [14, 16, 17, 15]);
    for record in &records[1..3] {
        assert_eq!((number(record, 361), number(record, 362), number(record, 364)), (4_096, 4_607, 512));
    }
}

#[test]
fn refusals_and_thresholds_have_their_limits() {
    // covers: 8158-E5, 8158-E6, 8158-E7, 8158-E8, 8158-E9, 8158-E10, 8158-E11, 8158-E12, 8158-E14
    let exhausted = Event {
        pool: PoolName(4),
        protocol: Some(Protocol::Udp),
        ..Event::new(EventKind::PoolExhausted, Instant::ORIGIN)
    };
    let refused = |verdict: Verdict| {
        Event { kind: EventKind::Refused, ..of_mapping(EventKind::Refused) }.because(Cause::Verdict(verdict))
    };
    let crossed = |kind: EventKind, cause: Cause| Event { amount: 80, ..of_mapping(kind) }.because(cause);
    let events = [
        exhausted,
        Event { external: [203, 0, 113, 1].into(), ..exhausted },
        refused(Verdict::SessionTableFull),
        refused(Verdict::MappingTableFull),
        refused(Verdict::SubscriberPortQuota),
        refused(Verdict::SubscriberTableFull),
        refused(Verdict::FragmentTableFull),
        refused(Verdict::FragmentBuffersFull),
        refused(Verdict::ReassemblyFull),
        refused(Verdict::ReassemblyQuota),
        crossed(EventKind::ThresholdReached, Cause::PoolPorts),
        crossed(EventKind::ThresholdCleared, Cause::PoolPorts),
        crossed(EventKind::ThresholdReached, Cause::SubscriberPorts),
        // RFC 8158 has nothing for these.
        refused(Verdict::LogFull),
        Event::new(EventKind::ConfigurationAdopted, Instant::ORIGIN),
    ];
    let (records, _) = records_of(&events, 1_400);
    let seen: Vec<(u64, u64)> = records
        .iter()
        .map(|record| {
            let reason = [466, 467].iter().find(|field| record.contains_key(field));
            (number(record, 230), reason.map_or(0, |field| number(record, *field)))
        })
        .collect();
    assert_eq!(
        seen,
        [
            (3, 0),
            (12, 0),
            (13, 1),
            (13, 2),
            (13, 3),
            (13, 4),
            (13, 5),
            (13, 5),
            (13, 5),
            (13, 5),
            (18, 1),
            (18, 2),
            (18, 4)
        ]
    );
    assert_eq!((number(&records[0], 283), number(&records[1], 4)), (4, 17));
    assert_eq!(&records[1][&225][..], &[203, 0, 113, 1][..]);
    assert_eq!((number(&records[2], 471), number(&records[3], 472), number(&records[5], 474)), (8, 7, 9));
    assert_eq!(number(&records[4], 473), u64::from(u32::MAX), "no limit");
    assert_eq!([6, 7, 8, 9].map(|place| number(&records[place], 475)), [10, 11, 64, 8]);
    assert_eq!(&records[6][&8][..], &[100, 64, 0, 10][..], "whose fragments");
    assert_eq!((number(&records[10], 476), number(&records[11], 477), number(&records[12], 480)), (80, 80, 80));
}

#[test]
fn messages_keep_within_their_size_and_gaps_are_missing_numbers() {
    // covers: 8158-G1, 8158-G2
    let mut events: Vec<Event> = (0..500).map(|_| of_mapping(EventKind::StaticCreated)).collect();
    events[250] = Event { amount: 40, ..Event::new(EventKind::Gap, Instant::ORIGIN) };
    let (records, sizes) = records_of(&events, 600);
    assert_eq!(records.len(), 500, "a binding, and all but the gap");
    assert!(sizes.len() > 20 && sizes.iter().all(|size| *size <= 600), "{sizes:?}");
}

#[test]
fn bindings_are_silent_after_a_gap_and_do_not_count_reports() {
    let report = of_mapping(EventKind::MappingCreated).because(Cause::LogOpened);
    let gap = Event { amount: 1, ..Event::new(EventKind::Gap, Instant::ORIGIN) };
    let ended = of_mapping(EventKind::MappingEnded);
    let (records, _) = records_of(&[of_mapping(EventKind::MappingCreated), report, gap, ended], 1_400);
    let kinds: Vec<u64> = records.iter().map(|record| number(record, 230)).collect();
    assert_eq!(kinds, [14, 8, 8, 9]);
}

#[test]
fn a_record_of_what_is_older_has_its_true_start() {
    let of_age = |cause| Event { amount: 6, ..of_mapping(EventKind::MappingCreated).because(cause) };
    let events = [of_mapping(EventKind::MappingCreated), of_age(Cause::LogOpened), of_age(Cause::Configuration)];
    let (records, _) = records_of(&events, 1_400);
    let times: Vec<u64> = records.iter().filter(|record| number_of(record) == 8).map(|at| number(at, 323)).collect();
    assert_eq!(times.iter().map(|time| times[0] - time).collect::<Vec<_>>(), [0, 6_000, 6_000]);
}

#[test]
fn ipv6_hosts_and_softwires_have_fields_of_their_own() {
    // covers: 6333-11
    // covers: 8158-E2, 8158-E4
    let host = core::net::Ipv4Addr::new(224, 0, 0, 1);
    let named = |prefix_length, inner| {
        let name = HostName { address: 0x2001_0db8 << 96, prefix_length, inner };
        name.event(Instant::ORIGIN, RealmId(1), host)
    };
    let of_host = |event: Event| Event { subscriber: host, ..event };
    let flow = Event { remote: [192, 0, 2, 9].into(), remote_port: 443, ..of_mapping(EventKind::FlowCreated) };
    let flow = of_host(flow);
    let block = Event { internal_port: 0, protocol: None, last_port: 15_100, ..of_mapping(EventKind::BlockLeased) };
    let events = [
        named(128, None),
        of_host(of_mapping(EventKind::MappingCreated)),
        flow,
        Event { kind: EventKind::FlowEnded, ..flow },
        of_host(of_mapping(EventKind::MappingEnded)),
        named(56, None),
        of_host(block),
        // The same number, now of a host behind a softwire.
        named(128, Some(0xc0a8_0102)),
        of_host(of_mapping(EventKind::MappingCreated)),
        flow,
        // Nobody knows the host after lost records.
        Event { amount: 1, ..Event::new(EventKind::Gap, Instant::ORIGIN) },
        of_host(of_mapping(EventKind::MappingEnded)),
    ];
    let (records, _) = records_of(&events, 1_400);
    let kinds: Vec<u64> = records.iter().map(number_of).collect();
    assert_eq!(kinds, [14, 10, 6, 7, 11, 15, 14, 16, 14, 8, 4, 11]);
    let address: &[u8] = &(0x2001_0db8_u128 << 96).to_be_bytes();
    assert!(records[..11].iter().all(|record| record[&27] == address));
    assert!(records[..8].iter().all(|record| !record.contains_key(&8)));
    assert_eq!((&records[2][&226][..], number(&records[2], 228)), (&[192, 0, 2, 9][..], 443));
    assert_eq!((&records[7][&29][..], number(&records[7], 361)), (&[56][..], 15_007));
    assert!(records[8..11].iter().all(|record| record[&8] == [192, 168, 1, 2]));
    assert_eq!((&records[10][&12][..], number(&records[10], 11)), (&[192, 0, 2, 9][..], 443));
    assert_eq!(records[11][&27], [0; 16]);
}

fn number_of(record: &Fields) -> u64 {
    number(record, 230)
}

#[test]
fn the_end_of_a_run_ends_mappings_and_then_bindings() {
    // covers: 8158-G3
    let names = Names { realms: vec!["red".to_owned(), "blue".to_owned()], ..Names::default() };
    let (quotas, unix_us, mut out) = (Quotas::default(), 1_795_289_400_123_456, Vec::new());
    let mut ipfix = Ipfix::new(7, 1_400);
    let known = (&names, &quotas);
    fn item<'a>(event: &'a Event, subscriber: Subscriber, unix_us: u64, known: (&'a Names, &'a Quotas)) -> Item<'a> {
        Item { worker: WorkerId(0), event, subscriber, unix_us, names: known.0, quotas: known.1 }
    }
    let host = HostName { address: 5, prefix_length: 128, inner: None };
    let created = |address: u8, port: u16| Event {
        external: [203, 0, 113, address].into(),
        first_port: port,
        ..of_mapping(EventKind::MappingCreated)
    };
    // The sink has seen some of them begin, and one that it knows nothing else of.
    ipfix.begin();
    for event in [created(1, 10), created(1, 11), created(3, 10)] {
        ipfix.push(&item(&event, Subscriber::Ipv4(event.subscriber), unix_us, known), &mut out);
    }
    let of_host = Event { subscriber: [224, 0, 0, 1].into(), ..created(2, 10) };
    ipfix.push(&item(&of_host, Subscriber::Host(host), unix_us, known), &mut out);
    let end = |event: Event| Event { kind: EventKind::MappingEnded, pool: PoolName(4), ..event };
    let block = Event { last_port: 20, ..created(1, 10) };
    let block = Event { kind: EventKind::BlockReturned, pool: PoolName(4), ..block };
    let later = unix_us + 9_000_000;
    for (event, subscriber) in [
        (end(created(1, 10)), None),
        (end(created(1, 11)), None),
        (block, None),
        (end(of_host), Some(Subscriber::Host(host))),
        (end(created(4, 10)), None),
    ] {
        let subscriber = subscriber.unwrap_or(Subscriber::Ipv4(event.subscriber));
        ipfix.push_end(&item(&event, subscriber, later, known), &mut out);
    }
    let over = |are_ends_known| Over { unix_us: later, sequences: None, are_ends_known, names: &names };
    ipfix.finish(&over(true), &mut out);
    ipfix.finish(&over(false), &mut out);
    ipfix.end(&mut out);
    let mut reader = Reader::default();
    ipfix.templates().iter_mut().for_each(|preface| {
        ipfix.stamp(preface, 0);
        reader.read(&preface.bytes);
    });
    let skipped = out.iter().map(|message| message.skipped).collect::<Vec<_>>();
    let mut records = Vec::new();
    for message in out.iter_mut().filter(|message| !message.bytes.is_empty()) {
        ipfix.stamp(message, 0);
        records.extend(reader.read(&message.bytes).2);
    }
    let ends = &records[records.len() - 9..];
    let said: Vec<(u64, u8)> = ends.iter().map(|record| (number_of(record), record[&225][3])).collect();
    assert_eq!(said, [(9, 1), (9, 1), (17, 1), (15, 1), (11, 2), (15, 2), (9, 4), (15, 4), (15, 3)]);
    assert!(ends.iter().all(|record| number(record, 323) == later / 1_000));
    assert_eq!(skipped.iter().sum::<u32>(), 1, "ends that are not known are a missing number");
}
