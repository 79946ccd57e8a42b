use export::Names;
use export::Own;
use export::write_line;
use export::write_own;
use nat::Instant;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::Endpoint;
use nat::types::RealmId;
use nat::types::WorkerId;

use super::*;

const SECOND: u64 = 1_000_000;
/// Start of the log.
const T0: u64 = 1_795_289_400_000_000;

#[derive(Default)]
struct Log(Vec<u8>);

impl Log {
    fn mapping(&mut self, at_s: u64, kind: EventKind, host: u8, internal: u16, external: u16, held_s: u32) -> &mut Log {
        let internal = Endpoint::new([100, 64, 0, host].into(), internal);
        let external = Endpoint::new([203, 0, 113, 1].into(), external);
        let event = Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        self.event(at_s, &Event { amount: held_s, ..event.because(Cause::Idle) })
    }

    fn event(&mut self, at_s: u64, event: &Event) -> &mut Log {
        let names = Names { realms: vec!["blue".to_owned()], ..Names::default() };
        write_line(&mut self.0, WorkerId(0), event, T0 + at_s * SECOND, &names);
        self
    }

    fn started(&mut self, at_s: u64) -> &mut Log {
        self.started_in(at_s, None)
    }

    fn started_in(&mut self, at_s: u64, file: Option<&str>) -> &mut Log {
        let own = Own { event: "started", version: "0.1.0", file, ..Own::default() };
        write_own(&mut self.0, T0 + at_s * SECOND, &own);
        self
    }

    /// For one worker.
    fn opened(&mut self, at_s: u64, file: &str, earlier: &str) -> &mut Log {
        let (file, earlier, workers) = (Some(file), Some(earlier), Some(1));
        let own = Own { event: "opened", version: "0.1.0", file, earlier, workers, formulas: None };
        write_own(&mut self.0, T0 + at_s * SECOND, &own);
        self
    }

    /// A mapping that existed when the log was opened; otherwise as [`Log::mapping`].
    fn lives(&mut self, at_s: u64, host: u8, internal: u16, external: u16, held_s: u32) -> &mut Log {
        let internal = Endpoint::new([100, 64, 0, host].into(), internal);
        let external = Endpoint::new([203, 0, 113, 1].into(), external);
        let kind = EventKind::MappingCreated;
        let event = Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        self.event(at_s, &Event { amount: held_s, ..event.because(Cause::LogOpened) })
    }

    fn snapshot_complete(&mut self, at_s: u64) -> &mut Log {
        self.event(at_s, &Event::new(EventKind::SnapshotComplete, Instant::ORIGIN).because(Cause::LogOpened))
    }

    fn ask(&self, at_s: u64, address: [u8; 4], port: Option<u16>) -> History {
        let asked = Asked { address: address.into(), port, protocol: None, vrf: None };
        let query = Query { asked, at_us: T0 + at_s * SECOND, formulas: None };
        let mut search = Search::new(query);
        self.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
        search.end()
    }

    fn holders(&self, at_s: u64, address: [u8; 4], port: Option<u16>) -> Vec<u8> {
        self.ask(at_s, address, port).holdings.iter().map(|holding| holding.subscriber.octets()[3]).collect()
    }
}

const P: [u8; 4] = [203, 0, 113, 1];

#[test]
fn the_endpoint_belongs_to_each_of_its_holders_in_his_time() {
    use EventKind::MappingCreated;
    use EventKind::MappingEnded;
    let mut log = Log::default();
    log.started(0)
        .mapping(10, MappingCreated, 10, 5_000, 4_444, 0)
        .mapping(11, MappingCreated, 12, 5_000, 4_445, 0)
        .mapping(20, MappingEnded, 10, 5_000, 4_444, 10)
        .mapping(30, MappingCreated, 11, 5_001, 4_444, 0);
    for (at_s, expected) in
        [(9, vec![]), (10, vec![10]), (19, vec![10]), (20, vec![]), (29, vec![]), (30, vec![11]), (900, vec![11])]
    {
        assert_eq!(log.holders(at_s, P, Some(4_444)), expected, "at {at_s}");
    }
    let history = log.ask(15, P, Some(4_444));
    let holding = &history.holdings[0];
    assert_eq!((holding.internal_port, holding.realm.as_str()), (Some(5_000), "blue"));
    assert_eq!((holding.since_us, holding.until), (T0 + 10 * SECOND, Until::Ended(T0 + 20 * SECOND)));
    assert_eq!(log.ask(40, P, Some(4_444)).holdings[0].until, Until::Open);
    assert_eq!((history.first_us, history.last_us), (Some(T0), Some(T0 + 30 * SECOND)));
    assert_eq!(log.holders(15, P, None), [10, 12], "all of an address");
    assert_eq!(log.holders(15, [100, 64, 0, 12], None), [12], "from the inside");
    assert_eq!(log.holders(15, [100, 64, 0, 12], Some(5_000)), [12]);
    assert_eq!(log.holders(15, [100, 64, 0, 12], Some(5_001)), Vec::<u8>::new());
}

#[test]
fn addresses_that_start_alike_are_told_apart() {
    let mut log = Log::default();
    log.mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    assert_eq!(log.holders(10, [203, 0, 113, 11], Some(4_444)), Vec::<u8>::new());
    assert_eq!(log.holders(10, [100, 64, 0, 1], None), Vec::<u8>::new());
}

#[test]
fn an_end_whose_beginning_is_in_no_file_says_how_long_it_was() {
    let mut log = Log::default();
    log.mapping(100, EventKind::MappingEnded, 10, 5_000, 4_444, 60);
    assert_eq!(log.holders(50, P, Some(4_444)), [10]);
    assert_eq!(log.holders(30, P, Some(4_444)), Vec::<u8>::new());
    assert_eq!(log.holders(100, P, Some(4_444)), Vec::<u8>::new());
}

#[test]
fn a_restart_ends_what_was_open() {
    let mut log = Log::default();
    log.started(0).mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0).started(50);
    assert_eq!(log.ask(40, P, Some(4_444)).holdings[0].until, Until::Restart(T0 + 50 * SECOND));
    assert_eq!(log.holders(50, P, Some(4_444)), Vec::<u8>::new());
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
    log.event(10, &block).event(90, &Event { kind: EventKind::BlockReturned, ..block });
    for (port, expected) in [(2_047, vec![]), (2_048, vec![10]), (2_111, vec![10]), (2_112, vec![])] {
        assert_eq!(log.holders(50, P, Some(port)), expected, "{port}");
    }
    assert_eq!(log.holders(95, P, Some(2_050)), Vec::<u8>::new());
    assert_eq!(log.ask(50, P, Some(2_050)).holdings[0].what, What::Block);
}

#[test]
fn what_is_missing_before_the_time_is_told() {
    let mut log = Log::default();
    let gap = |amount| Event { amount, ..Event::new(EventKind::Gap, Instant::ORIGIN) };
    log.started(0).event(5, &gap(7)).started(10).event(20, &gap(3)).event(60, &gap(1));
    assert_eq!([5, 15, 30, 70].map(|at_s| log.ask(at_s, P, Some(1)).lost), [7, 0, 3, 4]);
    log.0.extend_from_slice(b"{\"time\":\"2026-11-21T1");
    log.0.extend_from_slice(b"\n\n{\"time\":\"2026-11-21T19:40:00.000000Z\",\"event\":\"gap\"\n");
    assert_eq!(log.ask(70, P, Some(1)).unreadable, 2);
}

#[test]
fn only_the_transport_that_was_asked_about_counts() {
    let mut log = Log::default();
    log.mapping(10, EventKind::MappingCreated, 10, 5_000, 4_444, 0);
    let asked = Asked { address: P.into(), port: Some(4_444), protocol: Some(Protocol::Tcp), vrf: None };
    let query = Query { asked, at_us: T0 + 20 * SECOND, formulas: None };
    let mut search = Search::new(query);
    log.0.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
    assert_eq!(search.end().holdings, []);
}

#[test]
fn a_log_opened_later_says_when_it_begins_and_ages_of_mappings() {
    let mut log = Log::default();
    log.opened(100, "/b.json", "/a.json");
    log.mapping(101, EventKind::MappingEnded, 11, 5_000, 4_445, 51);
    log.lives(102, 10, 5_000, 4_444, 62);
    // Created since then, and so recorded twice.
    log.mapping(103, EventKind::MappingCreated, 12, 5_000, 4_446, 0).lives(104, 12, 5_000, 4_446, 1);
    log.snapshot_complete(105).mapping(120, EventKind::MappingEnded, 10, 5_000, 4_444, 80);
    for (at_s, expected) in [(100, vec![10]), (102, vec![10]), (110, vec![10]), (120, vec![])] {
        assert_eq!(log.holders(at_s, P, Some(4_444)), expected, "at {at_s}");
    }
    assert_eq!(log.holders(100, P, Some(4_445)), [11], "a mapping that ended before the snapshot is in its end");
    assert_eq!((log.holders(102, P, Some(4_446)), log.holders(103, P, Some(4_446))), (vec![], vec![12]));
    // Of the time before, it knows only mappings that still existed.
    let before = log.ask(60, P, Some(4_444));
    assert_eq!(before.holdings.len(), 1);
    let opened = Opened { at_us: T0 + 100 * SECOND, earlier: "/a.json".to_owned() };
    assert_eq!((before.opened.as_ref(), before.incomplete), (Some(&opened), None));
    assert_eq!(log.ask(110, P, Some(4_444)).incomplete, None);
}

#[test]
fn who_asks_before_all_is_told_is_told_so() {
    let mut log = Log::default();
    log.opened(100, "/b.json", "/a.json").lives(102, 10, 5_000, 4_444, 62);
    let opened = Opened { at_us: T0 + 100 * SECOND, earlier: "/a.json".to_owned() };
    assert_eq!(log.ask(110, P, Some(4_445)).incomplete, Some(opened));
    // Unless the earlier log was read too.
    let mut both = Log::default();
    both.started_in(1, Some("/a.json")).mapping(10, EventKind::MappingCreated, 13, 5_000, 4_445, 0);
    both.0.extend_from_slice(&log.0);
    let found = both.ask(110, P, Some(4_445));
    assert_eq!((found.incomplete, found.opened, found.holdings.len()), (None, None, 1));
    assert_eq!(found.holdings[0].since_us, T0 + 10 * SECOND);
}

#[test]
fn a_reopened_log_knows_what_ended_while_it_was_closed() {
    let mut log = Log::default();
    log.started_in(1, Some("/a.json"));
    for (host, port) in [(10, 4_444), (11, 4_445), (12, 4_446)] {
        log.mapping(10, EventKind::MappingCreated, host, 5_000, port, 0);
    }
    // From here on records went to /b.json: 10 ended, and 13 got the same port.
    log.mapping(50, EventKind::MappingCreated, 14, 5_000, 4_447, 0).opened(100, "/a.json", "/b.json");
    log.lives(101, 13, 5_000, 4_444, 20).lives(101, 11, 5_000, 4_445, 91);
    log.mapping(102, EventKind::MappingEnded, 12, 5_000, 4_446, 92).snapshot_complete(103);
    assert_eq!(log.holders(110, P, Some(4_444)), [13], "and not who had it at the time before");
    assert_eq!(log.holders(110, P, Some(4_445)), [11]);
    assert_eq!(log.ask(110, P, Some(4_445)).holdings[0].since_us, T0 + 10 * SECOND, "as precise as it was");
    assert_eq!(log.ask(40, P, Some(4_444)).holdings[0].until, Until::Elsewhere(T0 + 50 * SECOND));
    assert_eq!((log.holders(100, P, Some(4_446)), log.holders(102, P, Some(4_446))), (vec![12], vec![]));
    // For the time between it names the known holders, and the log with the rest.
    let between = log.ask(70, P, Some(4_444));
    assert_eq!(between.holdings, []);
    assert_eq!(between.away.map(|away| away.earlier), Some("/b.json".to_owned()));
    assert_eq!((log.ask(40, P, None).away, log.ask(110, P, None).away), (None, None));
}
