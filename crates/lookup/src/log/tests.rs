use export::HostNames;
use export::Names;
use export::Own;
use export::store::HostPrefix;
use export::store::Until;
use export::store::What;
use export::write_line;
use export::write_own;
use nat::types::Endpoint;

use super::*;

const SECOND: u64 = 1_000_000;
/// Start of the log.
const T0: u64 = 1_795_289_400_000_000;

/// Lines, last numbers of the workers, names of IPv6 hosts.
#[derive(Default)]
struct Log(Vec<u8>, [u64; 2], HostNames);

impl Log {
    fn mapping(&mut self, at_s: u64, kind: EventKind, host: u8, internal: u16, external: u16, held_s: u32) -> &mut Log {
        let internal = Endpoint::new([100, 64, 0, host].into(), internal);
        let external = Endpoint::new([203, 0, 113, 1].into(), external);
        let event = Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        self.event(at_s, &Event { amount: held_s, ..event.because(Cause::Idle) })
    }

    fn event(&mut self, at_s: u64, event: &Event) -> &mut Log {
        self.event_of(0, at_s, event)
    }

    fn event_of(&mut self, worker: u8, at_s: u64, event: &Event) -> &mut Log {
        let formulas = [(1, 8)].into();
        let names = Names { realms: vec!["blue".to_owned()], formulas, ..Names::default() };
        let last = &mut self.1[usize::from(worker)];
        let event = Event { sequence: *last + 1, ..*event };
        *last += if event.kind == EventKind::Gap { u64::from(event.amount) } else { 1 };
        let who = self.2.subscriber_of(WorkerId(worker), &event);
        write_line(&mut self.0, WorkerId(worker), &event, who, T0 + at_s * SECOND, &names);
        self
    }

    fn own(&mut self, at_s: u64, own: &Own<'_>) -> &mut Log {
        write_own(&mut self.0, T0 + at_s * SECOND, own);
        self
    }

    /// Both workers' records before this time are complete.
    fn covered(&mut self, at_s: u64) -> &mut Log {
        let sequences = self.1;
        self.own(at_s, &Own { event: "covered", sequences: Some(&sequences), ..Own::default() })
    }

    fn stopped(&mut self, at_s: u64) -> &mut Log {
        let sequences = self.1;
        self.own(at_s, &Own { event: "stopped", sequences: Some(&sequences), ..Own::default() })
    }

    fn started(&mut self, at_s: u64) -> &mut Log {
        self.started_in(at_s, None)
    }

    fn started_in(&mut self, at_s: u64, file: Option<&str>) -> &mut Log {
        self.1 = [0; 2];
        self.own(at_s, &Own { event: "started", version: "0.1.0", file, formulas: Some(0), ..Own::default() })
    }

    fn opened(&mut self, at_s: u64, file: &str, earlier: &str) -> &mut Log {
        let (file, earlier, workers) = (Some(file), Some(earlier), Some(2));
        self.own(at_s, &Own { event: "opened", version: "0.1.0", file, earlier, workers, ..Own::default() })
    }

    /// A mapping older than the log; otherwise as [`Log::mapping`].
    fn lives(&mut self, at_s: u64, host: u8, internal: u16, external: u16, held_s: u32) -> &mut Log {
        let internal = Endpoint::new([100, 64, 0, host].into(), internal);
        let external = Endpoint::new([203, 0, 113, 1].into(), external);
        let kind = EventKind::MappingCreated;
        let event = Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        self.event(at_s, &Event { amount: held_s, ..event.because(Cause::LogOpened) })
    }

    /// Both workers have reported all state, the first `records`.
    fn snapshot_complete(&mut self, at_s: u64, records: u32) -> &mut Log {
        let event = Event::new(EventKind::SnapshotComplete, Instant::ORIGIN).because(Cause::LogOpened);
        self.event(at_s, &Event { amount: records, ..event }).event_of(1, at_s, &event)
    }

    fn ask(&self, at_s: u64, address: [u8; 4], port: Option<u16>) -> History {
        self.ask_of(at_s, Asked { address: address.into(), host: None, port, protocol: None, vrf: None })
    }

    /// IPv6 holders within a prefix; true if there was no other.
    fn hosts(&self, at_s: u64, prefix: &str, port: Option<u16>) -> (Vec<String>, bool) {
        let HostName { address, prefix_length, .. } = Subscriber::host(prefix, None).unwrap();
        let host = Some(HostPrefix { address, length: prefix_length });
        let asked = Asked { address: [0; 4].into(), host, port, protocol: None, vrf: None };
        let found = self.ask_of(at_s, asked).found;
        (found.holders.iter().map(|holder| holder.subscriber.to_string()).collect(), found.is_complete)
    }

    fn ask_of(&self, at_s: u64, asked: Asked<'_>) -> History {
        let query = Query::moment(asked, T0 + at_s * SECOND);
        let mut search = Search::new(query, usize::MAX);
        self.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
        search.end().unwrap()
    }

    fn holders(&self, at_s: u64, address: [u8; 4], port: Option<u16>) -> Vec<u8> {
        self.ask(at_s, address, port).found.holders.iter().map(last_octet).collect()
    }

    /// Holders, each with certainty; true if there is no other.
    fn answer(&self, at_s: u64, port: u16) -> (Vec<(u8, bool)>, bool) {
        let found = self.ask(at_s, P, Some(port)).found;
        let holders = found.holders.iter().map(|holder| (last_octet(holder), holder.is_certain));
        (holders.collect(), found.is_complete)
    }
}

const P: [u8; 4] = [203, 0, 113, 1];

fn last_octet(holder: &export::store::Holder) -> u8 {
    holder.subscriber.ipv4().unwrap().octets()[3]
}

#[test]
fn an_endpoint_belongs_to_each_of_its_holders_in_turn() {
    use EventKind::MappingCreated;
    use EventKind::MappingEnded;
    let mut log = Log::default();
    log.started(0)
        .mapping(10, MappingCreated, 10, 5_000, 4_444, 0)
        .mapping(11, MappingCreated, 12, 5_000, 4_445, 0)
        .mapping(20, MappingEnded, 10, 5_000, 4_444, 10)
        .mapping(30, MappingCreated, 11, 5_001, 4_444, 0)
        .covered(901);
    for (at_s, expected) in
        [(9, vec![]), (10, vec![10]), (19, vec![10]), (20, vec![]), (29, vec![]), (30, vec![11]), (900, vec![11])]
    {
        assert_eq!(log.holders(at_s, P, Some(4_444)), expected, "at {at_s}");
        assert!(log.answer(at_s, 4_444).1, "at {at_s}");
    }
    let history = log.ask(15, P, Some(4_444));
    let holder = &history.found.holders[0];
    assert_eq!((holder.internal_port, holder.vrf.as_deref()), (Some(5_000), Some("blue")));
    assert_eq!((holder.since_us, holder.until), (T0 + 10 * SECOND, Until::Ended(T0 + 20 * SECOND)));
    assert_eq!(log.ask(40, P, Some(4_444)).found.holders[0].until, Until::Open);
    assert_eq!(log.holders(15, P, None), [10, 12], "all of an address");
    assert_eq!(log.holders(15, [100, 64, 0, 12], None), [12], "from the inside");
    assert_eq!(log.holders(15, [100, 64, 0, 12], Some(5_000)), [12]);
    assert_eq!(log.holders(15, [100, 64, 0, 12], Some(5_001)), Vec::<u8>::new());
    assert!(!log.answer(902, 4_444).1 && !log.ask(0, P, None).found.notes.contains(&String::new()));
}

#[test]
fn addresses_with_equal_beginnings_are_distinguished() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    assert_eq!(log.holders(10, [203, 0, 113, 11], Some(4_444)), Vec::<u8>::new());
    assert_eq!(log.holders(10, [100, 64, 0, 1], None), Vec::<u8>::new());
}

#[test]
fn an_end_whose_beginning_is_in_no_file_says_how_long_it_was() {
    let mut log = Log(Vec::new(), [20, 3], HostNames::default());
    log.mapping(100, EventKind::MappingEnded, 10, 5_000, 4_444, 60).covered(110);
    assert_eq!(log.answer(50, 4_444), (vec![(10, true)], false));
    assert_eq!(log.answer(30, 4_444), (vec![], false));
    assert_eq!(log.answer(100, 4_444), (vec![], false), "an older mapping may be in a file that is gone");
}

#[test]
fn without_the_oldest_file_an_unlogged_holder_is_possible() {
    let mut log = Log(Vec::new(), [20, 3], HostNames::default());
    log.mapping(100, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(200, EventKind::MappingEnded, 10, 5_000, 4_444, 100).covered(210);
    assert_eq!(log.answer(150, 4_445), (vec![], false));
    assert_eq!(log.answer(150, 4_444), (vec![(10, true)], false));
    // Until the workers have reported all.
    log.lives(300, 11, 5_000, 4_445, 280).snapshot_complete(301, 1).covered(310);
    assert_eq!(log.answer(305, 4_445), (vec![(11, true)], true));
    assert_eq!(log.answer(305, 4_444), (vec![], true));
    assert_eq!(log.answer(150, 4_445), (vec![(11, true)], false));
}

#[test]
fn a_restart_ends_what_was_open() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(45).stopped(48).started(50);
    log.covered(60);
    assert_eq!(log.ask(40, P, Some(4_444)).found.holders[0].until, Until::Restart(T0 + 48 * SECOND));
    assert_eq!(log.answer(40, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(49, 4_444), (vec![], false), "nothing ran");
    assert_eq!(log.answer(50, 4_444), (vec![], true));
}

#[test]
fn after_a_kill_the_last_holders_are_uncertain() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(45);
    log.mapping(46, EventKind::MappingCreated, 11, 5_000, 4_445, 0).started(50).covered(60);
    assert_eq!(log.answer(44, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(47, 4_444), (vec![(10, false)], false));
    assert_eq!(log.answer(47, 4_445), (vec![(11, false)], false));
    assert_eq!(log.answer(47, 4_446), (vec![], false));
    assert_eq!(log.answer(55, 4_444), (vec![], true));
}

#[test]
fn a_stop_without_all_records_ends_no_holder() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(40);
    log.own(48, &Own { event: "stopped", ..Own::default() }).started(50).covered(60);
    assert_eq!(log.answer(39, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(45, 4_444), (vec![(10, false)], false));
}

#[test]
fn a_log_of_an_earlier_release_names_holders_and_claims_nothing() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(20, EventKind::MappingEnded, 10, 5_000, 4_444, 10);
    log.own(48, &Own { event: "stopped", ..Own::default() });
    assert_eq!(log.answer(15, 4_444), (vec![(10, true)], false));
    assert_eq!(log.answer(25, 4_444), (vec![], false));
}

#[test]
fn a_block_answers_for_each_of_its_ports_and_any_transport() {
    let mut log = Log::default();
    let block = Event {
        subscriber: [100, 64, 0, 10].into(),
        external: P.into(),
        first_port: 2_048,
        last_port: 2_111,
        ..Event::new(EventKind::BlockLeased, Instant::ORIGIN)
    };
    log.started(0).event(10, &block).event(90, &Event { kind: EventKind::BlockReturned, amount: 80, ..block });
    for (port, expected) in [(2_047, vec![]), (2_048, vec![10]), (2_111, vec![10]), (2_112, vec![])] {
        assert_eq!(log.holders(50, P, Some(port)), expected, "{port}");
    }
    assert_eq!(log.holders(95, P, Some(2_050)), Vec::<u8>::new());
    assert_eq!(log.ask(50, P, Some(2_050)).found.holders[0].what, What::Block);
}

#[test]
fn a_gap_makes_later_answers_incomplete_until_the_next_start() {
    let mut log = Log::default();
    let gap = |amount| Event { amount, ..Event::new(EventKind::Gap, Instant::ORIGIN) };
    log.started(0).event(5, &gap(7)).covered(9).started(10).covered(19).event(20, &gap(3)).covered(80);
    assert_eq!([2, 8, 15, 30, 70].map(|at_s| log.answer(at_s, 1).1), [false, false, true, false, false]);
    log.0.extend_from_slice(b"{\"time\":\"2026-11-21T1");
    log.0.extend_from_slice(b"\n\n{\"time\":\"2026-11-21T19:40:00.000000Z\",\"event\":\"gap\"\n");
    assert_eq!(log.ask(70, P, Some(1)).unreadable, 2);
}

#[test]
fn a_holder_whose_end_may_be_lost_is_uncertain() {
    let mut log = Log::default();
    let gap = Event { amount: 3, ..Event::new(EventKind::Gap, Instant::ORIGIN) };
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(15).event(20, &gap);
    // Another subscriber has the same port.
    log.mapping(30, EventKind::MappingCreated, 11, 5_000, 4_444, 0).covered(80);
    assert_eq!(log.answer(12, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(17, 4_444), (vec![(10, false)], false), "the gap may have begun then");
    assert_eq!(log.answer(25, 4_444), (vec![(10, false)], false));
    assert!(log.answer(40, 4_444).0.contains(&(10, false)) && !log.answer(40, 4_444).1);
    // A gap of refusals only makes no answer uncertain.
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.event(20, &gap.because(Cause::NoAllocation)).covered(80);
    assert_eq!(log.answer(25, 4_444), (vec![(10, true)], true));
}

#[test]
fn a_missing_line_or_file_is_noticed_by_the_numbers() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(15);
    // Lost: the first mapping's end and the second worker's records.
    log.1 = [2, 4];
    log.covered(30);
    assert_eq!(log.answer(12, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(25, 4_444), (vec![(10, false)], false));
    assert_eq!(log.answer(25, 4_445), (vec![], false));
    // A whole start is missing: the numbers begin again.
    log.1 = [0, 0];
    log.mapping(50, EventKind::MappingCreated, 12, 5_000, 4_446, 0).covered(60);
    assert!(!log.answer(45, 4_446).1 && !log.answer(35, 4_445).1);
    assert_eq!(log.holders(55, P, Some(4_446)), [12]);
}

#[test]
fn a_record_that_was_sent_twice_counts_once() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    let begin = log.0.len();
    log.mapping(20, EventKind::MappingEnded, 10, 5_000, 4_444, 10);
    log.mapping(21, EventKind::MappingCreated, 11, 5_000, 4_444, 0);
    let again = log.0[begin..].to_vec();
    log.0.extend_from_slice(&again);
    log.covered(30);
    assert_eq!(log.answer(15, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(25, 4_444), (vec![(11, true)], true));
}

#[test]
fn both_holders_of_a_time_that_came_twice_are_named() {
    let mut log = Log::default();
    log.started(0).mapping(100, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(120, EventKind::MappingEnded, 10, 5_000, 4_444, 20).covered(130);
    // The clock shows 110 again.
    log.own(110, &Own { event: "clock_set", by_us: Some(-20_000_000), ..Own::default() });
    log.mapping(112, EventKind::MappingCreated, 11, 5_000, 4_444, 0).covered(150);
    let (holders, is_complete) = log.answer(115, 4_444);
    assert_eq!((holders, is_complete), (vec![(10, true), (11, true)], true));
    let notes = log.ask(115, P, Some(4_444)).found.notes;
    assert!(notes.iter().any(|note| note.contains("the clock was set back")), "{notes:?}");
    assert_eq!(log.answer(105, 4_444), (vec![(10, true)], true));
    assert_eq!(log.answer(140, 4_444), (vec![(11, true)], true));
}

#[test]
fn a_wrong_time_while_a_disk_was_slow_names_both_holders() {
    let mut log = Log::default();
    log.started(0).mapping(2, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(20, EventKind::MappingEnded, 10, 5_000, 4_444, 18).covered(23);
    // From 26 to 36 the clock was 18 s behind; records of that time were written later.
    for (at_s, by_us) in [(8, -18_000_000), (36, 18_000_000)] {
        log.own(at_s, &Own { event: "clock_set", by_us: Some(by_us), unclear_us: Some(0), ..Own::default() });
    }
    log.mapping(25, EventKind::MappingCreated, 11, 5_000, 4_444, 0);
    log.mapping(35, EventKind::MappingEnded, 11, 5_000, 4_444, 10).covered(60);
    assert_eq!(log.answer(12, 4_444), (vec![(10, true), (11, true)], true));
    assert!(log.ask(12, P, Some(4_444)).found.notes.iter().any(|note| note.contains("the clock was set back")));
    // The machine never showed this time.
    assert_eq!(log.answer(30, 4_444), (vec![], false));
}

#[test]
fn neither_time_is_sure_until_a_step_was_noticed() {
    let mut log = Log::default();
    log.started(0).mapping(100, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(124);
    // By 20 s, within the last five seconds: 125 to 130, or 105 to 110.
    let (by_us, unclear_us) = (Some(-20_000_000), Some(5_000_000));
    log.own(110, &Own { event: "clock_set", by_us, unclear_us, ..Own::default() }).covered(150);
    for (at_s, is_complete) in [(103, true), (107, false), (115, true), (122, true), (127, false), (140, true)] {
        assert_eq!(log.ask(at_s, P, Some(4_444)).found.is_complete, is_complete, "at {at_s}");
    }
}

#[test]
fn a_changed_formula_proves_nothing_until_all_is_recorded() {
    let of_configuration = |kind| Event { amount: 1, ..Event::new(kind, Instant::ORIGIN) };
    let adopted = of_configuration(EventKind::ConfigurationAdopted);
    let recorded = of_configuration(EventKind::ConfigurationRecorded);
    let internal = Endpoint::new([100, 64, 0, 10].into(), 5_000);
    let external = Endpoint::new(P.into(), 4_444);
    let kept = EventKind::MappingCreated;
    let kept = Event::of_mapping(kept, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
    let kept = Event { amount: 95, ..kept.because(Cause::Configuration) };
    let mut log = Log::default();
    log.own(0, &Own { event: "started", formulas: Some(7), ..Own::default() });
    log.event(10, &adopted).event_of(1, 10, &adopted).event(11, &recorded);
    // The second worker waits for room.
    log.covered(90);
    let answer = |log: &Log, at_s| {
        let found = log.ask(at_s, P, Some(4_444)).found;
        (found.holders.len(), found.is_complete, found.are_formulas_doubtful)
    };
    assert_eq!(answer(&log, 9), (0, true, false));
    assert_eq!(answer(&log, 50), (0, false, true));
    log.event_of(1, 100, &kept).event_of(1, 101, &recorded).covered(200);
    assert_eq!(answer(&log, 50), (1, false, true), "it has had the port all the time");
    assert_eq!(answer(&log, 150), (1, true, false));
    // The next run begins without mappings.
    log.stopped(210).own(220, &Own { event: "started", formulas: Some(8), ..Own::default() });
    log.1 = [0; 2];
    log.covered(300);
    assert_eq!(answer(&log, 250), (0, true, false));
}

#[test]
fn a_short_time_has_all_its_holders_and_changes() {
    let adopted = Event { amount: 1, ..Event::new(EventKind::ConfigurationAdopted, Instant::ORIGIN) };
    let recorded = Event { amount: 1, ..Event::new(EventKind::ConfigurationRecorded, Instant::ORIGIN) };
    let mut log = Log::default();
    log.own(0, &Own { event: "started", formulas: Some(7), ..Own::default() });
    log.mapping(5, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(10, EventKind::MappingEnded, 10, 5_000, 4_444, 5);
    log.mapping(12, EventKind::MappingCreated, 11, 5_001, 4_444, 0);
    log.event(20, &adopted).event_of(1, 20, &adopted).event(21, &recorded).event_of(1, 21, &recorded).covered(90);
    let ask = |from_s: u64, to_s: u64| {
        let asked = Asked { address: P.into(), host: None, port: Some(4_444), protocol: None, vrf: None };
        let query = Query { from_us: T0 + from_s * SECOND, to_us: T0 + to_s * SECOND, ..Query::moment(asked, 0) };
        let mut search = Search::new(query, usize::MAX);
        log.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
        let History { found, changed_us, .. } = search.end().unwrap();
        let changed_s = changed_us.map(|changed_us| (changed_us - T0) / SECOND);
        (found.holders.iter().map(last_octet).collect::<Vec<_>>(), found.is_complete, changed_s)
    };
    assert_eq!(ask(9, 13), (vec![10, 11], true, None));
    assert_eq!(ask(11, 11), (vec![], true, None));
    assert_eq!(ask(11, 13), (vec![11], true, None));
    // Which ports were kept is recorded only after that time began.
    assert_eq!(ask(19, 30), (vec![11], false, Some(20)));
    assert_eq!(ask(20, 30), (vec![11], false, None));
    assert_eq!(ask(22, 30), (vec![11], true, None));
    assert!(!ask(85, 95).1, "the records end in that time");
    assert_eq!(ask(13, 18), (vec![11], true, None));
}

#[test]
fn a_step_back_that_no_line_says_is_never_a_confident_answer() {
    let mut log = Log::default();
    log.started(0).mapping(100, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    log.mapping(120, EventKind::MappingEnded, 10, 5_000, 4_444, 20);
    log.mapping(112, EventKind::MappingCreated, 11, 5_000, 4_444, 0).covered(150);
    let (holders, is_complete) = log.answer(115, 4_444);
    assert!(!is_complete && holders.iter().any(|(host, _)| *host == 10), "{holders:?}");
}

#[test]
fn only_the_transport_that_was_asked_about_counts() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    let asked = Asked { address: P.into(), host: None, port: Some(4_444), protocol: Some(Protocol::Tcp), vrf: None };
    let query = Query::moment(asked, T0 + 20 * SECOND);
    let mut search = Search::new(query, usize::MAX);
    log.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
    assert_eq!(search.end().unwrap().found.holders, []);
}

#[test]
fn more_holders_than_the_caller_takes_are_refused() {
    let mut log = Log::default();
    log.started(0);
    for port in 0..3 {
        log.mapping(10, EventKind::MappingCreated, 10, 5_000 + port, 4_444 + port, 0);
    }
    let asked = Asked { address: P.into(), host: None, port: None, protocol: None, vrf: None };
    let query = Query::moment(asked, T0 + 20 * SECOND);
    let found = |holders_max| {
        let mut search = Search::new(query, holders_max);
        log.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
        search.end()
    };
    assert_eq!(found(3).unwrap().found.holders.len(), 3);
    assert!(found(2).unwrap_err().to_string().contains("more than 2 holders"));
}

#[test]
fn a_log_opened_later_has_the_ages_of_mappings() {
    let mut log = Log(Vec::new(), [50, 50], HostNames::default());
    log.opened(100, "/b.json", "/a.json");
    log.mapping(101, EventKind::MappingEnded, 11, 5_000, 4_445, 51);
    log.lives(102, 10, 5_000, 4_444, 62);
    // Created since then, and so recorded twice.
    log.mapping(103, EventKind::MappingCreated, 12, 5_000, 4_446, 0).lives(104, 12, 5_000, 4_446, 1);
    log.covered(104).snapshot_complete(105, 2).mapping(120, EventKind::MappingEnded, 10, 5_000, 4_444, 80);
    log.covered(130);
    for (at_s, expected) in [(100, vec![10]), (102, vec![10]), (110, vec![10]), (120, vec![])] {
        assert_eq!(log.holders(at_s, P, Some(4_444)), expected, "at {at_s}");
    }
    assert_eq!(log.holders(100, P, Some(4_445)), [11], "a mapping that ended before the snapshot is in its end");
    assert_eq!(log.holders(103, P, Some(4_446)), [12]);
    // Of the time before, it knows only mappings that still existed.
    let before = log.ask(60, P, Some(4_444)).found;
    assert_eq!((before.holders.len(), before.is_complete), (1, false));
    assert!(before.notes.iter().any(|note| note.contains("records went to /a.json")), "{:?}", before.notes);
    assert!(!log.answer(103, 4_447).1 && log.answer(110, 4_447).1);
    // Unless the earlier log is read, too.
    let mut both = Log::default();
    both.started_in(1, Some("/a.json")).mapping(10, EventKind::MappingCreated, 13, 5_000, 4_445, 0);
    both.covered(11).opened(100, "/b.json", "/a.json").covered(101);
    assert_eq!(both.answer(90, 4_445), (vec![(13, true)], true));
}

#[test]
fn a_reopened_log_knows_what_ended_while_it_was_closed() {
    let mut log = Log::default();
    log.started_in(1, Some("/a.json"));
    for (host, port) in [(10, 4_444), (11, 4_445), (12, 4_446)] {
        log.mapping(10, EventKind::MappingCreated, host, 5_000, port, 0);
    }
    log.covered(50);
    // Records went to /b.json: 10 ended, and 13 got the same port.
    log.1 = [40, 9];
    log.opened(100, "/a.json", "/b.json").lives(101, 13, 5_000, 4_444, 20).lives(101, 11, 5_000, 4_445, 91);
    log.mapping(102, EventKind::MappingEnded, 12, 5_000, 4_446, 92).snapshot_complete(103, 2).covered(120);
    assert_eq!(log.answer(110, 4_444), (vec![(13, true)], true), "and not the holder of the time before");
    assert_eq!(log.answer(110, 4_445), (vec![(11, true)], true));
    assert_eq!(log.ask(110, P, Some(4_445)).found.holders[0].since_us, T0 + 10 * SECOND, "as precise as it was");
    assert_eq!((log.holders(100, P, Some(4_446)), log.holders(102, P, Some(4_446))), (vec![12], vec![]));
    // It names the other log, and nobody for sure.
    let between = log.ask(70, P, Some(4_444)).found;
    assert!(!between.is_complete && between.holders.iter().all(|holder| !holder.is_certain), "{between:?}");
    assert!(between.notes.iter().any(|note| note.contains("records went to /b.json")), "{between:?}");
    assert_eq!(log.answer(9, 4_444), (vec![], true));
}

#[test]
fn lines_of_any_bytes_are_no_answer_and_no_panic() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(15).stopped(20);
    for cut in 0..log.0.len() {
        let mut bytes = vec![12, 1, 0];
        bytes.extend_from_slice(&log.0[..cut]);
        bytes.extend_from_slice(&log.0);
        fuzzing::lines(&bytes);
    }
    for line in [
        "\"event\":\"clock_set\",\"by_us\":-9223372036854775808",
        "\"event\":\"covered\",\"sequences\":[18446744073709551615]",
    ] {
        let bytes = format!("abc{{\"time\":\"1970-01-01T00:00:00.000000Z\",{line}}}\n").repeat(3);
        fuzzing::lines(bytes.as_bytes());
    }
}

#[test]
fn lines_name_ipv6_hosts_by_address_and_prefix() {
    let external = |port| Endpoint::new(P.into(), port);
    // covers: 6333-11
    let number = |last| Ipv4Addr::new(224, 0, 0, last);
    let mapping = |kind, last, port| {
        let internal = Endpoint::new(number(last), 5_000);
        Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external(port))
    };
    let named = |text: &str, inner: Option<[u8; 4]>, last| {
        let name = Subscriber::host(text, inner.map(Ipv4Addr::from)).unwrap();
        name.event(Instant::ORIGIN, RealmId(0), number(last))
    };
    let block =
        Event { internal_port: 0, protocol: None, last_port: 2_111, ..mapping(EventKind::BlockLeased, 3, 2_048) };
    let mut log = Log::default();
    log.started(0)
        .event(10, &named("2001:db8:0:100::7", None, 1))
        .event(10, &mapping(EventKind::MappingCreated, 1, 4_444))
        .event(11, &named("2001:db8::b4", Some([192, 168, 1, 2]), 2))
        .event(11, &mapping(EventKind::MappingCreated, 2, 4_445))
        .event(12, &named("2001:db8:0:100::/56", None, 3))
        .event(12, &block)
        .event(20, &mapping(EventKind::MappingEnded, 1, 4_444))
        // The number is another host's now.
        .event(30, &named("2001:db8:0:200::7", None, 1))
        .event(30, &mapping(EventKind::MappingCreated, 1, 4_444))
        .covered(60);
    let holder = |at_s, port| {
        let found = log.ask(at_s, P, Some(port)).found;
        let names: Vec<String> = found.holders.iter().map(|holder| holder.subscriber.to_string()).collect();
        (names.join(", "), found.is_complete)
    };
    assert_eq!(holder(15, 4_444), ("2001:db8:0:100::7".to_owned(), true));
    assert_eq!(holder(25, 4_444), (String::new(), true));
    assert_eq!(holder(35, 4_444), ("2001:db8:0:200::7".to_owned(), true));
    assert_eq!(holder(35, 4_445), ("192.168.1.2 behind 2001:db8::b4".to_owned(), true));
    assert_eq!(holder(35, 2_050), ("2001:db8:0:100::/56".to_owned(), true));
    // A host is in the prefix that holds the block.
    let of_host = vec!["2001:db8:0:100::7".to_owned(), "2001:db8:0:100::/56".to_owned()];
    assert_eq!(log.hosts(15, "2001:db8:0:100::7", None), (of_host, true));
    assert_eq!(log.hosts(35, "2001:db8:0:200::/56", Some(5_000)), (vec!["2001:db8:0:200::7".to_owned()], true));
    assert_eq!(log.hosts(35, "2001:db8::b4", None).0, ["192.168.1.2 behind 2001:db8::b4"]);
    assert_eq!(log.hosts(35, "2001:db8:0:300::/56", None), (vec![], true));
    // Without its B4, an inner address may be anybody's.
    assert_eq!(log.ask(35, [192, 168, 1, 2], None).found.holders.len(), 1);
    let found = log.ask(35, [192, 168, 1, 3], None).found;
    assert!(found.is_complete && found.holders.is_empty(), "{found:?}");
    // A number is no address.
    assert_eq!(log.ask(15, [224, 0, 0, 1], None).found.holders, []);
}

#[test]
fn a_lost_name_in_lines_is_no_holder_that_is_certain() {
    let internal = Endpoint::new(Ipv4Addr::new(224, 0, 0, 1), 5_000);
    let (realm, external) = (RealmId(0), Endpoint::new(P.into(), 4_444));
    let event = Event::of_mapping(EventKind::MappingCreated, Instant::ORIGIN, realm, Protocol::Udp, internal, external);
    let mut log = Log::default();
    log.started(0).event(10, &event).covered(60);
    let found = log.ask(20, P, Some(4_444)).found;
    assert_eq!((found.holders.len(), found.is_complete), (1, false));
    assert_eq!((found.holders[0].subscriber, found.holders[0].is_certain), (Subscriber::Unknown, false));
    assert!(found.notes.iter().any(|note| note.contains("names an IPv6 host")), "{:?}", found.notes);
}

#[test]
fn a_log_that_another_program_took_says_what_is_missing() {
    let taken = |cause: &'static str, earlier: Option<&'static str>| {
        let mut log = Log(Vec::new(), [20, 3], HostNames::default());
        let (file, workers) = (Some("/log/events.json"), Some(2));
        log.own(
            100,
            &Own { event: "opened", version: "0.1.0", file, earlier, cause: Some(cause), workers, ..Own::default() },
        );
        log.lives(101, 11, 5_000, 4_445, 280).snapshot_complete(102, 1).covered(110);
        log
    };
    let at = utc_text(T0 + 100 * SECOND);
    for (cause, earlier, note) in [
        ("renamed", Some("/log/events.json.1"), "renamed the log: also give /log/events.json.1"),
        ("renamed", None, "renamed the log: earlier lines may be missing"),
        ("deleted", None, "deleted the log: earlier lines may be missing"),
        ("cut", None, "cut the log: earlier lines may be missing"),
    ] {
        let log = taken(cause, earlier);
        let found = log.ask(50, P, Some(4_446)).found;
        let note = format!("at {at} another program {note}");
        assert!(!found.is_complete && found.notes.contains(&note), "{cause}: {found:?}");
        assert_eq!(log.answer(105, 4_445), (vec![(11, true)], true), "{cause}: all that was held is reported");
        assert_eq!(log.answer(105, 4_446), (vec![], true), "{cause}");
    }
    // With the file that was renamed before it, nothing is missing.
    let mut log = Log::default();
    log.started_in(0, Some("/log/events.json")).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).covered(90);
    let (file, earlier) = (Some("/log/events.json"), Some("/log/events.json.1"));
    log.own(100, &Own { event: "opened", file, earlier, cause: Some("renamed"), workers: Some(2), ..Own::default() });
    log.lives(101, 10, 5_000, 4_444, 91).snapshot_complete(102, 1).covered(110);
    for at_s in [50, 105] {
        assert_eq!(log.answer(at_s, 4_444), (vec![(10, true)], true), "at {at_s}");
    }
}
