//! The store against a list of all that happened: random events, clock steps, losses, kills, torn
//! files, retention. No answer may name a wrong holder with certainty, and an answer that claims to
//! be complete must be the list's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use core::cell::Cell;
use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use export::FILE_MODE;
use export::FOLDER_MODE;
use export::Subscriber;
use export::store::Bounds;
use export::store::Edition;
use export::store::Found;
use export::store::Generated;
use export::store::Generator;
use export::store::Holder;
use export::store::HostPrefix;
use export::store::Interval;
use export::store::Moment;
use export::store::Question;
use export::store::Store;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Until;
use export::store::lookups;
use export::store::verify;
use export::store::verify_text;
use nat::Instant;
use nat::Protocol;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::RealmId;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    external: u32,
    first_port: u16,
    last_port: u16,
    protocol: Option<Protocol>,
    subscriber: Subscriber,
    internal_port: u16,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    key: Key,
    boot: usize,
    start_us: u64,
    end_us: Option<u64>,
    worker: u8,
}

/// A clock setting of a boot, from this monotonic time on.
#[derive(Clone, Copy, Debug)]
struct Setting {
    boot: usize,
    from_us: u64,
    to_us: u64,
    offset: i64,
}

const FIRST_EXTERNAL: u32 = 0xcb00_7101;
const FIRST_SUBSCRIBER: u32 = 0x6440_0001;
const WORKERS: usize = 3;
/// Numbers of a worker: fewer than hosts, so that each is that of several hosts.
const NUMBERS: u32 = 4;
const FIRST_HOST: u128 = 0x2001_0db8 << 96;

/// IPv4 and IPv6 hosts, two of them behind one B4, and prefixes.
fn subscriber(place: u32, is_block: bool) -> Subscriber {
    let host = |high: u128, low: u128, prefix_length, inner| {
        Subscriber::Host(HostName { address: FIRST_HOST | high << 72 | low, prefix_length, inner })
    };
    match (place, is_block) {
        (0..5, _) => Subscriber::Ipv4(Ipv4Addr::from_bits(FIRST_SUBSCRIBER + place)),
        (_, true) => host(u128::from(place % 3), 0, 56, None),
        (5..10, _) => host(u128::from(place % 3), u128::from(place), 128, None),
        (_, _) => host(7, 0xb4, 128, Some(0xc0a8_0100 + place)),
    }
}

#[derive(Clone, Copy, Default)]
struct Faults {
    clock: bool,
    loss: bool,
    kills: bool,
    retention: bool,
}

struct World {
    random: SmallRng,
    folder: PathBuf,
    options: StoreOptions,
    writer: Option<StoreWriter>,
    now_us: u64,
    /// When the writer read the clock last.
    read_us: u64,
    offset: i64,
    boot: usize,
    next: [u64; WORKERS],
    open: BTreeMap<Key, Held>,
    ended: Vec<Held>,
    settings: Vec<Setting>,
    faults: Faults,
    unreported: [u32; WORKERS],
    /// Time of a loss that no later record shows yet.
    lost_us: [u64; WORKERS],
    /// Which host has which number of a worker, and whether that was recorded since the last loss.
    numbers: [BTreeMap<u32, (HostName, bool)>; WORKERS],
}

impl World {
    fn new(seed: u64, folder: &Path, faults: Faults) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let options = StoreOptions {
            segment_rows: random.random_range(5..60),
            merge: random.random_range(2..5),
            frame_bytes: random.random_range(100..2_000),
            frame_interval_us: random.random_range(1_000..50_000),
            segment_interval_us: random.random_range(200_000..5_000_000),
            retention_us: faults.retention.then_some(4_000_000),
            has_threads: random.random_bool(0.3),
            ..StoreOptions::default()
        };
        let mut world = World {
            random,
            folder: folder.to_owned(),
            options,
            writer: None,
            now_us: 5_000_000,
            read_us: 0,
            offset: 1_790_000_000_000_000,
            boot: 0,
            next: [1; WORKERS],
            open: BTreeMap::new(),
            ended: Vec::new(),
            settings: Vec::new(),
            faults,
            unreported: [0; WORKERS],
            lost_us: [u64::MAX; WORKERS],
            numbers: Default::default(),
        };
        world.begin();
        world
    }

    fn moment(&self) -> Moment {
        Moment { monotonic_us: self.now_us, unix_us: self.now_us.saturating_add_signed(self.offset) }
    }

    fn begin(&mut self) {
        self.next = [1; WORKERS];
        self.unreported = [0; WORKERS];
        self.lost_us = [u64::MAX; WORKERS];
        self.numbers = Default::default();
        let moment = self.moment();
        self.writer = Some(StoreWriter::open(&self.folder, self.options.clone(), moment).unwrap());
        self.set();
    }

    fn set(&mut self) {
        let setting = Setting { boot: self.boot, from_us: self.now_us, to_us: u64::MAX, offset: self.offset };
        if let Some(last) = self.settings.last_mut().filter(|last| last.to_us == u64::MAX) {
            last.to_us = self.now_us;
        }
        self.settings.push(setting);
    }

    /// Records an event as a worker does: the name of a host comes before the first event with its
    /// number, again after a loss, and an event whose name is lost is lost, too.
    fn push_of(&mut self, worker: u8, key: &Key, event: Event) {
        let Subscriber::Host(name) = key.subscriber else {
            self.push(worker, event, true);
            return;
        };
        let number = self.number(worker, name);
        let event = Event { subscriber: number.into(), ..event };
        let place = usize::from(worker);
        let is_named = self.numbers[place][&number].1;
        if !is_named && self.push(worker, name.event(event.at, RealmId(0), number.into()), true) {
            self.numbers[place].insert(number, (name, true));
        }
        let may_follow = self.numbers[place][&number].1;
        self.push_or_lose(worker, event, !may_follow);
    }

    /// The number of a host: one that it has, or one that no open holding needs.
    fn number(&mut self, worker: u8, name: HostName) -> u32 {
        let place = usize::from(worker);
        if let Some((number, _)) = self.numbers[place].iter().find(|(_, (known, _))| *known == name) {
            return *number;
        }
        let is_open = |host: HostName| {
            self.open.values().any(|held| held.worker == worker && held.key.subscriber == Subscriber::Host(host))
        };
        let base = if name.inner.is_some() { 0xf000_0000 } else { 0xe000_0000 };
        let mut number = base + 1_000 * u32::from(worker) + self.random.random_range(0..NUMBERS);
        while self.numbers[place].get(&number).is_some_and(|(host, _)| is_open(*host)) {
            number += 1;
        }
        self.numbers[place].insert(number, (name, false));
        number
    }

    fn push(&mut self, worker: u8, event: Event, may_lose: bool) -> bool {
        let is_lost = may_lose && self.faults.loss && self.random.random_bool(0.02);
        self.push_or_lose(worker, event, is_lost)
    }

    fn push_or_lose(&mut self, worker: u8, mut event: Event, is_lost: bool) -> bool {
        let place = usize::from(worker);
        event.sequence = self.next[place];
        self.next[place] += 1;
        if is_lost {
            self.forget_names(place);
            // Silently, or with a gap record later.
            if self.random.random_bool(0.5) {
                self.unreported[place] += 1;
            }
            self.lost_us[place] = self.lost_us[place].min(event.at.as_micros());
            return false;
        }
        if self.unreported[place] > 0 {
            let amount = core::mem::take(&mut self.unreported[place]);
            // The gap has the numbers before this one.
            let mut gap = Event::new(EventKind::Gap, event.at);
            gap.sequence = event.sequence - u64::from(amount);
            gap.amount = amount;
            self.writer.as_mut().unwrap().push(WorkerId(worker), &gap);
        }
        self.lost_us[place] = u64::MAX;
        self.writer.as_mut().unwrap().push(WorkerId(worker), &event);
        if self.random.random_bool(0.01) {
            // A repeated record is skipped.
            self.writer.as_mut().unwrap().push(WorkerId(worker), &event);
        }
        true
    }

    fn forget_names(&mut self, place: usize) {
        self.numbers[place].values_mut().for_each(|(_, is_named)| *is_named = false);
    }

    fn event(key: &Key, is_begin: bool, at_us: u64) -> Event {
        let is_block = key.first_port != key.last_port;
        let kind = match (is_block, is_begin) {
            (true, true) => EventKind::BlockLeased,
            (true, false) => EventKind::BlockReturned,
            (false, true) => EventKind::MappingCreated,
            (false, false) => EventKind::MappingEnded,
        };
        Event {
            subscriber: key.subscriber.ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED),
            external: Ipv4Addr::from_bits(key.external),
            internal_port: key.internal_port,
            first_port: key.first_port,
            last_port: key.last_port,
            realm: RealmId(0),
            protocol: key.protocol,
            ..Event::new(kind, Instant::from_micros(at_us))
        }
    }

    fn step(&mut self) {
        self.now_us += self.random.random_range(100..20_000);
        let at_us = self.now_us - self.random.random_range(0..50);
        match self.random.random_range(0..100) {
            0..48 => {
                let is_block = self.random.random_bool(0.2);
                let first_port: u16 = if is_block {
                    2_048 + 64 * self.random.random_range(0..8)
                } else {
                    self.random.random_range(1_024..1_044)
                };
                let key = Key {
                    external: FIRST_EXTERNAL + self.random.random_range(0..2),
                    first_port,
                    last_port: first_port + if is_block { 63 } else { 0 },
                    protocol: (!is_block).then_some(Protocol::Udp),
                    subscriber: subscriber(self.random.random_range(0..14), is_block),
                    internal_port: if is_block { 0 } else { self.random.random_range(1..4) },
                };
                let is_taken = |other: &Key| (other.external, other.first_port) == (key.external, key.first_port);
                if !self.open.keys().any(is_taken) {
                    let worker = self.random.random_range(0..WORKERS as u8);
                    self.open.insert(key, Held { key, boot: self.boot, start_us: at_us, end_us: None, worker });
                    self.push_of(worker, &key, World::event(&key, true, at_us));
                }
            }
            48..88 => {
                let place = self.random.random_range(0..self.open.len().max(1));
                if let Some(key) = self.open.keys().nth(place).copied() {
                    let held = self.open[&key];
                    let at_us = at_us.max(held.start_us);
                    let mut event = World::event(&key, false, at_us);
                    event.amount = age_s(held.start_us, at_us);
                    self.push_of(held.worker, &key, event);
                    self.open.remove(&key);
                    self.ended.push(Held { end_us: Some(at_us), ..held });
                }
            }
            88..90 => {
                let event = Event::new(EventKind::Refused, Instant::from_micros(at_us));
                self.push(0, event, true);
            }
            90 if self.faults.loss => self.report_all(),
            // Of two steps between two readings, the first one leaves no trace.
            91 if self.faults.clock && self.settings.last().unwrap().from_us < self.read_us => {
                let far = if self.random.random_bool(0.5) { 3_000_000 } else { 30_000 };
                self.offset += self.random.random_range(-far..far);
                // The thread that reads the clock may be busy: it notices this later.
                if self.settings.last().unwrap().offset.abs_diff(self.offset) > 10_000 {
                    self.set();
                }
            }
            92..94 if self.faults.kills && self.random.random_bool(0.03) => self.kill(),
            94 if self.faults.kills && self.random.random_bool(0.03) => self.stop(),
            _ => self.advance(),
        }
        if self.random.random_bool(0.3) {
            self.advance();
        }
    }

    /// Workers report all live state, as to a log that was just opened.
    fn report_all(&mut self) {
        for worker in 0..WORKERS as u8 {
            self.forget_names(usize::from(worker));
            let held: Vec<Held> = self.open.values().filter(|held| held.worker == worker).copied().collect();
            for held in &held {
                let mut event = World::event(&held.key, true, self.now_us).because(Cause::LogOpened);
                event.amount = age_s(held.start_us, self.now_us);
                self.push_of(worker, &held.key, event);
            }
            let mut complete = Event::new(EventKind::SnapshotComplete, Instant::from_micros(self.now_us));
            complete.amount = held.len() as u32;
            self.push(worker, complete, true);
        }
    }

    fn advance(&mut self) {
        let moment = self.moment();
        self.read_us = self.now_us;
        let last = self.settings.last().unwrap().offset;
        if last.abs_diff(self.offset) > 10_000 {
            self.set();
        }
        let covered_us = self.covered_us();
        self.writer.as_mut().unwrap().advance(moment, covered_us).unwrap();
    }

    /// No record before this time will follow.
    fn covered_us(&self) -> u64 {
        self.lost_us.iter().map(|lost| lost.saturating_sub(1)).min().unwrap().min(self.now_us - 60)
    }

    fn end_boot(&mut self) {
        for held in core::mem::take(&mut self.open).into_values() {
            self.ended.push(Held { end_us: None, ..held });
        }
        self.settings.last_mut().unwrap().to_us = self.now_us;
        self.boot += 1;
        // Another machine start: the monotonic clock begins again, the time of day may be wrong.
        let unix_us = self.moment().unix_us + self.random.random_range(10_000..500_000);
        self.now_us = self.random.random_range(1_000_000..9_000_000);
        self.offset = unix_us as i64 - self.now_us as i64;
        if self.faults.clock && self.random.random_bool(0.3) {
            self.offset -= self.random.random_range(0..2_000_000);
        }
    }

    /// Ends without a word, and tears the end of the journal.
    fn kill(&mut self) {
        self.writer = None;
        let mut journals: Vec<PathBuf> =
            fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        journals.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("journal-"));
        journals.sort();
        if let Some(last) = journals.last() {
            let length = fs::metadata(last).unwrap().len();
            let file = fs::File::options().write(true).open(last).unwrap();
            match self.random.random_range(0..3) {
                0 => file.set_len(length.saturating_sub(self.random.random_range(0..300))).unwrap(),
                1 => file.set_len(length + self.random.random_range(0..300)).unwrap(),
                _ => {}
            }
        }
        self.end_boot();
        self.begin();
    }

    fn stop(&mut self) {
        let moment = self.moment();
        if self.settings.last().unwrap().offset.abs_diff(self.offset) > 10_000 {
            self.set();
        }
        let covered_us = self.covered_us();
        self.writer.take().unwrap().finish(moment, covered_us, self.random.random_bool(0.5)).unwrap();
        self.end_boot();
        self.begin();
    }

    /// Holders by the list. Times count as the milliseconds of the boot's clock that they are in.
    fn holders(&self, question: &Question) -> Vec<(Key, u64)> {
        let mut holders = Vec::new();
        for setting in &self.settings {
            let at_us = question.from_us.saturating_add_signed(-setting.offset);
            if !(setting.from_us..setting.to_us).contains(&at_us) {
                continue;
            }
            let is_held = |held: &&Held| {
                held.boot == setting.boot
                    && held.start_us / 1_000 <= at_us / 1_000
                    && held.end_us.is_none_or(|end| at_us / 1_000 < end.div_ceil(1_000).max(held.start_us / 1_000 + 1))
                    && is_asked(question, &held.key)
            };
            holders.extend(self.open.values().chain(&self.ended).filter(is_held).map(|held| (held.key, held.start_us)));
        }
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    fn question(&mut self) -> Question {
        let setting = self.settings[self.random.random_range(0..self.settings.len())];
        let to_us = setting.to_us.min(self.now_us.max(setting.from_us + 1));
        let at_us = self.random.random_range(setting.from_us..to_us.max(setting.from_us + 1)) + 2_000;
        let unix_us = at_us.saturating_add_signed(setting.offset);
        let port = if self.random.random_bool(0.3) {
            self.random.random_range(2_048..2_600)
        } else {
            self.random.random_range(1_024..1_044)
        };
        let (mut address, mut host) = (FIRST_EXTERNAL + self.random.random_range(0..2), None);
        let mut port = Some(port).filter(|_| self.random.random_bool(0.9));
        if self.random.random_bool(0.3) {
            port = None;
            match subscriber(self.random.random_range(0..14), self.random.random_bool(0.3)) {
                Subscriber::Host(HostName { address: of, prefix_length, .. }) => {
                    (address, host) = (0, Some(HostPrefix { address: of, length: prefix_length }));
                }
                known => address = known.ipv4().unwrap().to_bits(),
            }
        }
        Question { address: Ipv4Addr::from_bits(address), host, port, protocol: None, from_us: unix_us, to_us: unix_us }
    }

    /// Compares answers. Returns how many were complete with a holder, and complete at all.
    fn compare(&mut self, questions: usize, seed: u64) -> (usize, usize) {
        let store = Store::open(&self.folder).unwrap();
        let (mut complete_held, mut complete) = (0, 0);
        for _ in 0..questions {
            let question = self.question();
            let expected = self.holders(&question);
            let found = store.look_up(&question).unwrap();
            self.check(seed, &question, &expected, &found);
            complete += usize::from(found.is_complete);
            complete_held += usize::from(found.is_complete && !expected.is_empty());
        }
        (complete_held, complete)
    }

    fn check(&self, seed: u64, question: &Question, expected: &[(Key, u64)], found: &Found) {
        let context = || {
            let settings = &self.settings;
            format!("seed {seed}: {question:?}\nexpected {expected:?}\nfound {found:?}\nsettings {settings:?}")
        };
        let key_of = |holder: &Holder| Key {
            external: holder.external.to_bits(),
            first_port: holder.first_port,
            last_port: holder.last_port,
            protocol: holder.protocol,
            subscriber: holder.subscriber,
            internal_port: holder.internal_port.unwrap_or(0),
        };
        for holder in found.holders.iter().filter(|holder| holder.is_certain) {
            let key = key_of(holder);
            let held = expected.iter().find(|(known, _)| *known == key);
            let (_, start_us) = held.unwrap_or_else(|| panic!("a wrong holder: {}", context()));
            if holder.is_since_exact && matches!(holder.until, Until::Ended(_)) && !self.faults.clock {
                let held = self.ended.iter().find(|held| held.key == key && held.start_us == *start_us).unwrap();
                let offset = self.settings.iter().find(|setting| setting.boot == held.boot).unwrap().offset;
                let unix_us = |us: u64| us.saturating_add_signed(offset);
                assert_eq!(holder.since_us, unix_us(start_us / 1_000 * 1_000), "{}", context());
                let end_us = held.end_us.unwrap().div_ceil(1_000).max(held.start_us / 1_000 + 1) * 1_000;
                assert_eq!(holder.until, Until::Ended(unix_us(end_us)), "{}", context());
            }
        }
        if found.is_complete {
            let mut keys: Vec<Key> = found.holders.iter().map(key_of).collect();
            keys.sort_unstable();
            let mut known: Vec<Key> = expected.iter().map(|(key, _)| *key).collect();
            known.sort_unstable();
            assert_eq!(keys, known, "{}", context());
        }
    }
}

/// As the engine, which keeps starts in whole seconds.
fn age_s(start_us: u64, now_us: u64) -> u32 {
    (now_us / 1_000_000 - start_us / 1_000_000) as u32
}

fn is_asked(question: &Question, key: &Key) -> bool {
    match (question.host, key.subscriber) {
        (Some(host), Subscriber::Host(name)) => host.overlaps(&name),
        (Some(_), _) => false,
        (None, Subscriber::Ipv4(address)) if address == question.address => true,
        (None, _) => {
            key.external == question.address.to_bits()
                && question.port.is_none_or(|port| (key.first_port..=key.last_port).contains(&port))
        }
    }
}

/// Compares an export of a moment with the list. Returns how many it had.
fn compare_export(world: &mut World, seed: u64) -> usize {
    let moment = Question { host: None, port: None, ..world.question() };
    let store = Store::open(&world.folder).unwrap();
    let (mut expected, mut exported) = (Vec::new(), Vec::new());
    for place in 0..2 {
        let question = Question { address: Ipv4Addr::from_bits(FIRST_EXTERNAL + place), ..moment };
        if !store.look_up(&question).unwrap().is_complete {
            return 0;
        }
        expected.extend(
            world.holders(&question).into_iter().map(|(key, _)| (key.external, key.first_port, key.subscriber)),
        );
    }
    let each = |Interval { holder, .. }: &Interval| {
        exported.push((holder.external.to_bits(), holder.first_port, holder.subscriber));
        Ok::<(), StoreError>(())
    };
    store.intervals(moment.from_us, moment.to_us, each).unwrap();
    expected.sort_unstable();
    exported.sort_unstable();
    assert_eq!(exported, expected, "seed {seed}: {moment:?}");
    expected.len()
}

#[test]
fn an_export_has_what_ended_later_or_is_in_the_journal() {
    let mut exported = 0;
    for seed in 600..606 {
        let folder = Folder::new(&format!("export-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults::default());
        for _ in 0..8 {
            for _ in 0..250 {
                world.step();
            }
            for _ in 0..10 {
                exported += compare_export(&mut world, seed);
            }
        }
    }
    assert!(exported > 1_000, "{exported}");
}

/// While an export is read, an instance merges its segments and deletes some by retention.
#[test]
fn an_export_of_a_store_that_goes_on_meanwhile_is_whole() {
    let (mut gone, mut exported) = (0, 0);
    for seed in 620..624 {
        let folder = Folder::new(&format!("export-live-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults { retention: true, ..Faults::default() });
        for _ in 0..6 {
            (0..400).for_each(|_| world.step());
            let store = Store::open(&folder.0).unwrap();
            let before = segments(&folder.0);
            let intervals = |each: &mut dyn FnMut()| {
                let mut found = Vec::new();
                let put = |interval: &Interval| {
                    found.push(format!("{interval:?}"));
                    each();
                    Ok::<(), StoreError>(())
                };
                store.intervals(0, 1 << 60, put).map(|()| {
                    // A merge brings them in another order.
                    found.sort_unstable();
                    found
                })
            };
            let expected = intervals(&mut || {}).unwrap();
            let mut calls = 0;
            let found = intervals(&mut || {
                calls += 1;
                (0..if calls == 1 { 400 } else { 0 }).for_each(|_| world.step());
            });
            assert!(found.unwrap() == expected, "seed {seed}");
            let now = segments(&folder.0);
            gone += before.iter().filter(|path| !now.contains(path)).count();
            exported += expected.len();
        }
    }
    assert!(gone > 20 && exported > 1_000, "{gone} {exported}");
}

/// What is the same in all rows about one interval.
type Identity = ([u8; 16], u64, u32, (u16, u16), Option<Protocol>, Subscriber, Option<u16>);

/// Rows of exports that were made one after the other; of each interval the newest.
#[derive(Default)]
struct Collected(BTreeMap<Identity, (u64, Interval)>);

impl Collected {
    /// Adds an export of the time between two moments.
    fn add(&mut self, folder: &Path, from_us: u64, to_us: u64) {
        let put = |edition: Edition, interval: &Interval| {
            let Interval { holder, run, started_ms, .. } = interval;
            let ports = (holder.first_port, holder.last_port);
            let owner = (holder.protocol, holder.subscriber, holder.internal_port);
            let identity = (*run, *started_ms, holder.external.to_bits(), ports, owner.0, owner.1, owner.2);
            let known = self.0.entry(identity).or_insert_with(|| (0, interval.clone()));
            if known.0 <= edition.version {
                *known = (edition.version, interval.clone());
            }
            Ok::<(), StoreError>(())
        };
        Store::open(folder).unwrap().intervals_with(from_us, to_us, put, |_, _| {}).unwrap();
    }

    /// Who may have had an address at a time, and whether that is proved.
    fn at(&self, external: Ipv4Addr, at_us: u64) -> Vec<(u16, Subscriber, bool)> {
        let is_held = |interval: &&Interval| {
            let Interval { holder, .. } = interval;
            let is_ended = match holder.until {
                Until::Open => false,
                Until::Ended(end) | Until::Restart(end) | Until::Lost(end) => end <= at_us,
            };
            holder.external == external && holder.since_us <= at_us && !is_ended
        };
        let held = self.0.values().map(|(_, interval)| interval).filter(is_held);
        let mut held: Vec<_> = held
            .map(|interval| {
                let is_proved =
                    interval.known_us.is_some_and(|(since_us, until_us)| since_us <= at_us && at_us < until_us);
                assert!(is_proved || !interval.holder.is_certain, "{interval:?}");
                (interval.holder.first_port, interval.holder.subscriber, is_proved)
            })
            .collect();
        held.sort_unstable();
        held
    }
}

/// Compares exports, one a round, with lookups about any time. Returns how many holders were proved
/// and how many were only possible.
fn compare_rows(name: &str, seeds: core::ops::Range<u64>, faults: Faults) -> (usize, usize) {
    let (mut proved, mut possible) = (0, 0);
    for seed in seeds {
        let folder = Folder::new(&format!("{name}-{seed}"));
        let mut world = World::new(seed, &folder.0, faults);
        let (mut daily, mut to_us) = (Collected::default(), 0);
        for _ in 0..8 {
            (0..150).for_each(|_| world.step());
            let until_us = world.now_us.saturating_add_signed(world.offset);
            let mut whole = Collected::default();
            whole.add(&folder.0, 0, 1 << 60);
            daily.add(&folder.0, to_us, if faults.clock { 1 << 60 } else { until_us });
            // What is recorded late is in the next one.
            to_us = if faults.clock { 0 } else { until_us.saturating_sub(5_000_000) };
            let store = Store::open(&folder.0).unwrap();
            let first_us = world.settings.iter().map(|setting| setting.from_us.saturating_add_signed(setting.offset));
            let first_us = first_us.min().unwrap();
            for _ in 0..40 {
                let at_us = world.random.random_range(first_us..until_us.max(first_us + 1) + 3_000_000);
                let external = Ipv4Addr::from_bits(FIRST_EXTERNAL + world.random.random_range(0..2));
                let question = Question {
                    address: external,
                    host: None,
                    port: None,
                    protocol: None,
                    from_us: at_us,
                    to_us: at_us,
                };
                let truth = world.holders(&question);
                let found = store.look_up(&question).unwrap().holders;
                // Rows do not say what a millisecond leaves open of a moment.
                let shared: HashSet<(u16, Subscriber)> = found
                    .iter()
                    .filter(|holder| holder.is_ms_shared)
                    .map(|holder| (holder.first_port, holder.subscriber))
                    .collect();
                let mut found: Vec<_> =
                    found.iter().map(|holder| (holder.first_port, holder.subscriber, holder.is_certain)).collect();
                found.sort_unstable();
                let mut moment = Collected::default();
                moment.add(&folder.0, at_us, at_us);
                for (what, rows) in [("all", &whole), ("moment", &moment), ("daily", &daily)] {
                    let rows = rows.at(external, at_us);
                    let all = format!("{rows:?}");
                    let context = || format!("seed {seed}, {what}, at {at_us}: {all}\nfound {found:?}");
                    for (port, subscriber, is_certain) in &found {
                        let is_shared = shared.contains(&(*port, *subscriber));
                        let may_be_less_sure = faults.clock || what == "daily" || is_shared;
                        let is_as_sure = |row: &&(u16, Subscriber, bool)| row.2 == *is_certain || may_be_less_sure;
                        let same = rows.iter().filter(|row| (row.0, row.1) == (*port, *subscriber));
                        assert!(same.filter(is_as_sure).count() > 0, "{port} is missing: {}", context());
                    }
                    for (port, subscriber, is_proved) in rows {
                        let is_true =
                            truth.iter().any(|(key, _)| (key.first_port, key.subscriber) == (port, subscriber));
                        assert!(is_true || !is_proved, "{port} is wrong: {}", context());
                        // A torn journal may have lost what an earlier export has; where records
                        // were lost, a lookup may miss what a later segment has.
                        let is_less_sure = shared.contains(&(port, subscriber)) && is_proved;
                        let is_there = found.contains(&(port, subscriber, is_proved))
                            || (is_less_sure && found.contains(&(port, subscriber, false)));
                        let may_be_more = faults.clock || what == "daily" || (faults.loss && !is_proved);
                        assert!(is_there || may_be_more, "{port}: {}", context());
                        *(if is_proved { &mut proved } else { &mut possible }) += 1;
                    }
                }
            }
        }
    }
    (proved, possible)
}

#[test]
fn rows_of_exports_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows", 700..704, Faults::default());
    assert!(proved > 1_000 && possible > 0, "{proved} {possible}");
}

#[test]
fn rows_of_killed_runs_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows-kills", 710..718, Faults { kills: true, ..Faults::default() });
    assert!(proved > 1_000 && possible > 500, "{proved} {possible}");
}

#[test]
fn rows_about_lost_records_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows-loss", 720..726, Faults { loss: true, ..Faults::default() });
    assert!(proved > 100 && possible > 500, "{proved} {possible}");
}

#[test]
fn rows_by_a_clock_that_is_set_are_never_surer_than_lookups() {
    let faults = Faults { clock: true, loss: true, kills: true, retention: false };
    let (proved, possible) = compare_rows("rows-clock", 730..738, faults);
    assert!(proved > 100 && possible > 500, "{proved} {possible}");
}

fn compare_all(name: &str, seeds: core::ops::Range<u64>, faults: Faults) -> (usize, usize, usize) {
    let mut totals = (0, 0, 0);
    for seed in seeds {
        let folder = Folder::new(&format!("{name}-{seed}"));
        let mut world = World::new(seed, &folder.0, faults);
        for round in 0..6 {
            for _ in 0..250 {
                world.step();
            }
            if round % 2 == 1 {
                world.advance();
            }
            let (held, complete) = world.compare(60, seed);
            totals = (totals.0 + held, totals.1 + complete, totals.2 + 60);
        }
    }
    totals
}

#[test]
fn answers_without_faults_are_those_of_the_list() {
    let (held, complete, asked) = compare_all("plain", 0..12, Faults::default());
    // All but times after the last frame.
    assert!(complete * 100 > asked * 95, "{complete} of {asked}");
    assert!(held * 10 > asked, "{held} of {asked}");
}

#[test]
fn clock_steps_lose_no_holder_and_name_both() {
    let (held, complete, asked) = compare_all("clock", 100..112, Faults { clock: true, ..Faults::default() });
    assert!(complete * 100 > asked * 50 && held * 20 > asked, "{held} and {complete} of {asked}");
}

#[test]
fn kills_and_torn_journals_never_name_a_wrong_holder() {
    let (held, complete, asked) = compare_all("kills", 200..212, Faults { kills: true, ..Faults::default() });
    assert!(complete * 100 > asked * 40 && held * 20 > asked, "{held} and {complete} of {asked}");
}

#[test]
fn lost_records_never_name_a_wrong_holder() {
    let (held, complete, asked) = compare_all("loss", 300..312, Faults { loss: true, ..Faults::default() });
    // A report of all live state makes answers complete again.
    assert!(complete * 100 > asked * 5 && held > 0, "{held} and {complete} of {asked}");
}

#[test]
fn retention_deletes_and_never_says_no_record() {
    let (held, complete, asked) = compare_all("retention", 400..410, Faults { retention: true, ..Faults::default() });
    assert!(complete * 100 > asked * 10 && complete * 100 < asked * 90 && held > 0, "{complete} of {asked}");
}

#[test]
fn nothing_that_ended_longer_ago_than_retention_is_answered() {
    let mut ended = 0;
    for seed in 420..426 {
        let folder = Folder::new(&format!("maximum-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults { retention: true, ..Faults::default() });
        world.options.merge = 64;
        for _ in 0..20 {
            (0..60).for_each(|_| world.step());
            // Twice: what was sealed is entered by the second, which deletes what became too old.
            (0..2).for_each(|_| world.advance());
            let retention_us = world.options.retention_us.unwrap();
            let oldest = (world.now_us - retention_us).saturating_add_signed(world.offset);
            let put = |Interval { holder, .. }: &Interval| {
                if let Until::Ended(end_us) = holder.until {
                    ended += 1;
                    // The segment that is written may span a 64th; it is looked at when it is full.
                    assert!(end_us + retention_us / 8 > oldest, "seed {seed}: {holder:?}, oldest {oldest}");
                }
                Ok::<(), StoreError>(())
            };
            Store::open(&folder.0).unwrap().intervals(0, 1 << 60, put).unwrap();
        }
    }
    assert!(ended > 1_000, "{ended}");
}

#[test]
fn all_faults_together_never_name_a_wrong_holder() {
    let faults = Faults { clock: true, loss: true, kills: true, retention: true };
    compare_all("all", 500..516, faults);
}

#[test]
fn a_store_cut_at_any_byte_answers_or_refuses() {
    let folder = Folder::new("cut");
    let mut world = World::new(7, &folder.0, Faults::default());
    for _ in 0..600 {
        world.step();
    }
    world.writer = None;
    let mut random = SmallRng::seed_from_u64(3);
    let cut = Folder::new("cut-copy");
    let names: Vec<PathBuf> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    for _ in 0..150 {
        let _ = fs::remove_dir_all(&cut.0);
        copy(&folder.0, &cut.0);
        let path = cut.0.join(names[random.random_range(0..names.len())].file_name().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let place = random.random_range(0..bytes.len());
        if random.random_bool(0.5) {
            bytes.truncate(place)
        } else {
            bytes[place] ^= 1 << random.random_range(0..8)
        }
        fs::write(&path, &bytes).unwrap();
        let Ok(store) = Store::open(&cut.0) else { continue };
        for _ in 0..10 {
            let question = world.question();
            let expected = world.holders(&question);
            match store.look_up(&question) {
                Ok(found) => {
                    // What a damaged catalogue or journal no longer has is not "no record".
                    if !found.is_complete {
                        continue;
                    }
                    world.check(7, &question, &expected, &found);
                }
                Err(StoreError::Damaged { .. } | StoreError::Io { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn foreign_newer_and_locked_stores_are_refused() {
    let folder = Folder::new("refused");
    fs::create_dir_all(&folder.0).unwrap();
    let moment = Moment { monotonic_us: 1, unix_us: 1_790_000_000_000_000 };
    let open = || StoreWriter::open(&folder.0, StoreOptions::default(), moment);
    fs::write(folder.0.join("letter.txt"), "hello").unwrap();
    assert!(matches!(open().unwrap_err(), StoreError::Foreign { .. }));
    assert!(matches!(Store::open(&folder.0).unwrap_err(), StoreError::Foreign { .. }));
    fs::remove_file(folder.0.join("letter.txt")).unwrap();
    let first = open().unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }) && error.to_string().contains("another process"), "{error}");
    drop(first);
    // A later release writes the copy, too.
    let paths = ["catalogue", "catalogue.copy"].map(|name| folder.0.join(name));
    let mut bytes = fs::read(&paths[0]).unwrap();
    assert_eq!(bytes, fs::read(&paths[1]).unwrap());
    let write = |bytes: &[u8]| paths.iter().for_each(|path| fs::write(path, bytes).unwrap());
    bytes[14] = 2;
    write(&bytes);
    let error = open().unwrap_err();
    assert!(matches!(error, StoreError::Newer { version: 2, .. }), "{error}");
    bytes.truncate(30);
    bytes[14] = 1;
    write(&bytes);
    assert!(matches!(Store::open(&folder.0).unwrap_err(), StoreError::Damaged { .. }));
}

/// Damages a file in some way, and says which.
fn damage(random: &mut SmallRng, path: &Path) -> &'static str {
    let mut bytes = fs::read(path).unwrap();
    let place = random.random_range(0..bytes.len());
    let what = match random.random_range(0..10) {
        0..4 => {
            bytes[place] ^= 1 << random.random_range(0..8);
            "a flipped bit"
        }
        4..6 => {
            let sector = place..bytes.len().min(place + 512);
            bytes[sector].fill(0);
            "a sector of zeros"
        }
        6..9 => {
            bytes.truncate(place);
            "a cut"
        }
        _ => {
            fs::remove_file(path).unwrap();
            return "a removed file";
        }
    };
    fs::write(path, &bytes).unwrap();
    what
}

/// All files of a folder and of the folders in it.
fn contents(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(contents(&path)) } else { found.push(fs::read(&path).unwrap()) }
    }
    found
}

#[test]
fn any_damaged_file_lets_a_store_begin_and_answers_say_so() {
    let mut random = SmallRng::seed_from_u64(17);
    let (mut complete, mut asked, mut of_segments) = (0, 0, 0);
    for seed in 0..6 {
        let folder = Folder::new(&format!("damage-{seed}"));
        let faults = Faults { loss: seed % 3 == 1, kills: seed % 3 == 2, ..Faults::default() };
        let mut world = World::new(900 + seed, &folder.0, faults);
        while segments(&folder.0).len() < 5 || world.boot < usize::from(faults.kills) {
            world.step();
        }
        (0..30).for_each(|_| world.step());
        world.writer.as_mut().unwrap().flush().unwrap();
        world.writer = None;
        let (unix_us, options) = (world.moment().unix_us + 1_000_000, world.options.clone());
        let hurt = Folder::new(&format!("damage-{seed}-copy"));
        for round in 0..12 {
            let _ = fs::remove_dir_all(&hurt.0);
            copy(&folder.0, &hurt.0);
            let mut paths: Vec<PathBuf> = fs::read_dir(&hurt.0).unwrap().map(|entry| entry.unwrap().path()).collect();
            // Work that was not completed is not read.
            paths.retain(|path| !path.to_str().unwrap().ends_with(".new") && fs::metadata(path).unwrap().len() > 0);
            paths.sort();
            let name_of = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            // The last segment is the one that a start needs.
            let last = segments(&hurt.0).pop().unwrap();
            let is_last = round % 3 == 0;
            let path = if is_last { last } else { paths.swap_remove(random.random_range(0..paths.len())) };
            let name = name_of(&path);
            let what = format!("seed {seed}, round {round}: {} of {name}", damage(&mut random, &path));
            let damaged = fs::read(&path).ok().filter(|_| name != "catalogue.copy" && name != "head");
            let moment = Moment { monotonic_us: 3_000_000, unix_us };
            let opened = StoreWriter::open(&hurt.0, options.clone(), moment);
            let mut writer = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            // Nothing of it was deleted; what a power cut could have torn off is no damage.
            let is_torn = name.starts_with("journal-") && writer.damage().is_empty();
            let is_kept = damaged.is_none_or(|damaged| contents(&hurt.0).contains(&damaged));
            assert!(is_kept || is_torn, "{what}");
            let found = verify(&hurt.0, None, |_, _| {}).unwrap().faults;
            let is_catalogue = name == "catalogue" && !what.contains("removed");
            let must_show = name.starts_with("segment-") || is_catalogue || name == "head";
            assert!(!must_show || !found.is_empty(), "{what}");
            of_segments += u64::from(name.starts_with("segment-") && !writer.damage().is_empty());
            let mut ask = |world: &mut World, what: &str| {
                let store = Store::open(&hurt.0).unwrap_or_else(|error| panic!("{what}: {error}"));
                for _ in 0..25 {
                    let question = world.question();
                    let expected = world.holders(&question);
                    let found = store.look_up(&question).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(found.is_complete || !found.notes.is_empty(), "{what}");
                    world.check(900 + seed, &question, &expected, &found);
                    (asked, complete) = (asked + 1, complete + u32::from(found.is_complete));
                }
            };
            ask(&mut world, &what);
            // It goes on to write, to merge and to stop.
            for second in 4..8 {
                let at_us = second * 1_000_000;
                let key = Key {
                    external: FIRST_EXTERNAL + 9,
                    first_port: second as u16,
                    last_port: second as u16,
                    protocol: Some(Protocol::Udp),
                    subscriber: subscriber(0, false),
                    internal_port: 1,
                };
                let event = Event { sequence: second - 3, ..World::event(&key, true, at_us) };
                writer.push(WorkerId(0), &event);
                let now = Moment { monotonic_us: at_us, unix_us: unix_us + at_us - 3_000_000 };
                (0..3).for_each(|_| writer.advance(now, at_us).unwrap_or_else(|error| panic!("{what}: {error}")));
                writer.seal().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let now = Moment { monotonic_us: 9_000_000, unix_us: unix_us + 6_000_000 };
            let ended = writer.finish(now, 9_000_000, true);
            ended.unwrap_or_else(|error| panic!("{what}: {error}"));
            ask(&mut world, &what);
            let again = Moment { monotonic_us: 1, unix_us: unix_us + 60_000_000 };
            let again = StoreWriter::open(&hurt.0, options.clone(), again);
            assert_eq!(again.unwrap_or_else(|error| panic!("{what}: {error}")).damage(), [""; 0], "{what}");
        }
    }
    println!("{asked} answers, {complete} complete; {of_segments} starts without all that was open");
    assert!(complete * 4 > asked, "{complete} of {asked} are complete");
    assert!(of_segments > 5, "{of_segments}");
}

/// A store of some segments, one of them merged, and a journal. Returns an exported head.
fn stored(folder: &Path, key: Option<&Path>) -> String {
    let mut world = World::new(11, folder, Faults::default());
    while Store::open(folder).unwrap().stat().unwrap().segments < 4 {
        for _ in 0..50 {
            world.step();
        }
    }
    world.writer.as_mut().unwrap().flush().unwrap();
    world.writer = None;
    Store::open(folder).unwrap().head(key).unwrap()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"));
    found.sort();
    found
}

#[test]
fn verify_finds_each_kind_of_tampering() {
    let (folder, changed) = (Folder::new("verify"), Folder::new("verify-copy"));
    let head = folder.0.with_extension("head");
    fs::write(&head, stored(&folder.0, None)).unwrap();
    let faults = |folder: &Path| verify(folder, Some(&head), |_, _| {}).unwrap().faults;
    assert_eq!(faults(&folder.0), Vec::<String>::new());
    let mut random = SmallRng::seed_from_u64(5);
    let again = || {
        let _ = fs::remove_dir_all(&changed.0);
        copy(&folder.0, &changed.0);
    };
    // A flipped byte anywhere in a segment.
    for _ in 0..40 {
        again();
        let all = segments(&changed.0);
        let path = &all[random.random_range(0..all.len())];
        let mut bytes = fs::read(path).unwrap();
        let place = random.random_range(0..bytes.len());
        bytes[place] ^= 1 << random.random_range(0..8);
        fs::write(path, bytes).unwrap();
        let found = faults(&changed.0);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(found.len() == 1 && found[0].contains(name) && found[0].contains("worker"), "{found:?}");
    }
    // A removed segment, and two that were swapped.
    again();
    let all = segments(&changed.0);
    fs::remove_file(&all[1]).unwrap();
    let found = faults(&changed.0);
    assert!(found.len() == 1 && found[0].contains("no deletion was recorded"), "{found:?}");
    again();
    fs::copy(&all[0], changed.0.join("other")).unwrap();
    fs::rename(&all[1], &all[0]).unwrap();
    fs::rename(changed.0.join("other"), &all[1]).unwrap();
    assert_eq!(faults(&changed.0).len(), 2);
    // The journal's end, and a byte in it.
    for is_cut in [true, false] {
        again();
        let journal = fs::read_dir(&changed.0).unwrap().map(|entry| entry.unwrap().path());
        let journal =
            journal.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("journal")).max().unwrap();
        let mut bytes = fs::read(&journal).unwrap();
        if is_cut {
            bytes.truncate(16);
        } else {
            bytes[40] ^= 4;
        }
        fs::write(&journal, bytes).unwrap();
        let found = faults(&changed.0);
        assert!(found.iter().any(|fault| fault.contains("exported head") && fault.contains("cut off")), "{found:?}");
    }
    // The journal of a run that has not ended, though nothing of it was synced.
    again();
    for entry in fs::read_dir(&changed.0).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with("journal-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let found = verify(&changed.0, None, |_, _| {}).unwrap().faults;
    assert!(found.iter().any(|fault| fault.starts_with("journal: boot 0 has not ended")), "{found:?}");
    // The catalogue's end; its own head shows that, too.
    again();
    let path = changed.0.join("catalogue");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let found = faults(&changed.0);
    assert!(found.iter().any(|fault| fault.contains("exported head")), "{found:?}");
    assert!(found.iter().any(|fault| fault.contains("head of the store")), "{found:?}");
    // A start has it from its copy, and nothing that the exported head has is missing.
    let moment = Moment { monotonic_us: 0, unix_us: 1_790_001_000_000_000 };
    drop(StoreWriter::open(&changed.0, StoreOptions::default(), moment).unwrap());
    let found = faults(&changed.0);
    assert!(found.len() == 1 && found[0].starts_with("damaged-1: "), "{found:?}");
    // If that was cut, too, a new store begins.
    again();
    for name in ["catalogue", "catalogue.copy"] {
        fs::write(changed.0.join(name), &bytes[..bytes.len() - 10]).unwrap();
    }
    drop(StoreWriter::open(&changed.0, StoreOptions::default(), moment).unwrap());
    let found = faults(&changed.0);
    assert!(found.iter().any(|fault| fault == "exported head: it is of another store"), "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("damaged-store-1: ")), "{found:?}");
    // A forged head.
    again();
    let text = fs::read_to_string(&head).unwrap().replace("entries ", "entries 1");
    fs::write(changed.0.join("head"), text).unwrap();
    assert!(faults(&changed.0)[0].contains("signature"));
    // A line of it that is not signed.
    again();
    let own = fs::read_to_string(changed.0.join("head")).unwrap();
    let (before, after) = own.split_once("\nkey ").unwrap();
    let other = if after.starts_with('0') { '1' } else { '0' };
    fs::write(changed.0.join("head"), format!("{before}\nkey {other}{}", &after[1..])).unwrap();
    assert!(faults(&changed.0)[0].contains("signature"));
    fs::remove_file(&head).unwrap();
}

#[test]
fn verify_finds_removed_lookups() {
    let folder = Folder::new("lookups");
    let now = |second: u64| Moment { monotonic_us: second * 1_000_000, unix_us: (1_800_000_000 + second) * 1_000_000 };
    let record = |count: u64| {
        for number in 0..count {
            lookups::record_export(&folder.0, (number, number), Some("case"), number).unwrap();
        }
    };
    let faults = |head: Option<&Path>| verify(&folder.0, head, |_, _| {}).unwrap().faults;
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), now(0)).unwrap();
    record(3);
    for second in [2, 4] {
        writer.advance(now(second), second * 1_000_000).unwrap();
    }
    let path = folder.0.join("lookups");
    let three = fs::read_to_string(&path).unwrap();
    record(2);
    let head = folder.0.with_extension("head");
    fs::write(&head, Store::open(&folder.0).unwrap().head(None).unwrap()).unwrap();
    assert_eq!(faults(Some(&head)), Vec::<String>::new());
    // Those after the last head: only one that was exported later knows them.
    fs::write(&path, &three).unwrap();
    assert_eq!(faults(None), Vec::<String>::new());
    assert_eq!(faults(Some(&head)), ["exported head: 3 lines of lookups instead of 5; the end was cut off"]);
    drop(writer);
    // Without a running instance, and with one that starts, and after further lookups.
    let cut = "head of the store: 2 lines of lookups instead of 3; the end was cut off";
    let two: String = three.split_inclusive('\n').take(2).collect();
    fs::write(&path, &two).unwrap();
    assert_eq!(faults(None), [cut]);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), now(9)).unwrap();
    assert_eq!(faults(None), [cut]);
    record(4);
    for second in [12, 14] {
        writer.advance(now(second), second * 1_000_000).unwrap();
    }
    let other = ["head of the store: line 3 of lookups is another one; the record was rewritten"];
    assert_eq!(faults(None), other);
    drop(writer);
    drop(StoreWriter::open(&folder.0, StoreOptions::default(), now(20)).unwrap());
    assert_eq!(faults(None), other, "and still after the next start");
    fs::remove_file(&path).unwrap();
    assert_eq!(faults(None), ["head of the store: 0 lines of lookups instead of 3; the end was cut off"]);
    fs::remove_file(&head).unwrap();
}

#[test]
fn another_store_with_the_same_name_is_not_the_exported_one() {
    let (one, other) = (Folder::new("one"), Folder::new("other"));
    let head = one.0.with_extension("head");
    fs::write(&head, stored(&one.0, None)).unwrap();
    // The whole store written again, with the stolen key.
    let key = one.0.with_extension("key");
    fs::copy(one.0.join("signing.key"), &key).unwrap();
    let moment = Moment { monotonic_us: 1, unix_us: 1_790_000_000_000_000 };
    let options = StoreOptions { signing_key: Some(key.clone()), ..StoreOptions::default() };
    StoreWriter::open(&other.0, options, moment).unwrap().finish(moment, 1, false).unwrap();
    let found = verify(&other.0, Some(&head), |_, _| {}).unwrap().faults;
    assert_eq!(found, ["exported head: it is of another store"]);
    // What is no head is no fault of the store.
    let nowhere = one.0.join("nowhere");
    let error = verify(&one.0, Some(&nowhere), |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with(&format!("head {}: No such file", nowhere.display())), "{error}");
    let text = fs::read_to_string(&head).unwrap();
    let torn = one.0.join("torn");
    fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let error = verify(&one.0, Some(&torn), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("not what natrix log head prints"), "{error}");
    // Of this store, but changed.
    fs::write(&torn, text.replace("\nframes ", "\nframes 1")).unwrap();
    let found = verify(&one.0, Some(&torn), |_, _| {}).unwrap().faults;
    assert_eq!(found, ["exported head: its signature is wrong; it was changed, or another key signed it"]);
    fs::remove_file(&torn).unwrap();
    fs::remove_file(&head).unwrap();
    fs::remove_file(&key).unwrap();
}

#[test]
fn deletion_by_retention_is_not_tampering() {
    let folder = Folder::new("deleted");
    let mut world = World::new(21, &folder.0, Faults { retention: true, ..Faults::default() });
    for _ in 0..1_500 {
        world.step();
    }
    world.writer = None;
    let found = verify(&folder.0, None, |_, _| {}).unwrap();
    assert!(found.deleted > 0 && found.faults.is_empty(), "{found:?}");
}

/// While it is verified, an instance seals, merges and deletes segments and writes its journal.
#[test]
fn a_store_that_goes_on_meanwhile_is_whole() {
    let folder = Folder::new("live");
    let mut world = World::new(21, &folder.0, Faults { retention: true, ..Faults::default() });
    let mut deleted = 0;
    for _ in 0..30 {
        (0..60).for_each(|_| world.step());
        let mut calls = 0;
        let found = verify_text(&folder.0, None, &mut |_, _| {
            calls += 1;
            (0..if calls < 6 { 20 } else { 0 }).for_each(|_| world.step());
            true
        });
        let found = found.unwrap().expect("nobody stopped it");
        assert_eq!(found.faults, Vec::<String>::new());
        deleted = found.deleted;
    }
    assert!(deleted > 0);
    world.writer = None;
    // And it can be stopped.
    let mut asked = 0;
    let stopped = verify_text(&folder.0, None, &mut |_, _| {
        asked += 1;
        false
    });
    assert_eq!((stopped.unwrap(), asked), (None, 1));
}

/// The writer of a store with all of a generated log, the time of its end, and what began.
fn generated(folder: &Folder, kind: Generated, seed: u64) -> (StoreWriter, Moment, Vec<Event>) {
    let mut generator = Generator::new(kind, seed);
    let options = StoreOptions { segment_rows: 10_000, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder.0, options, Generator::begin()).unwrap();
    let (mut events, mut begun) = (Vec::new(), Vec::new());
    loop {
        events.clear();
        generator.fill(4_096, &mut events);
        if events.is_empty() {
            return (writer, generator.now(), begun);
        }
        begun.extend(events.iter().copied().filter(|event| event.cause == Cause::Outbound));
        writer.push_all(Generator::WORKER, &events);
        writer.advance(generator.now(), generator.now().monotonic_us).unwrap();
    }
}

#[test]
fn a_generated_log_has_all_that_began() {
    for (kind, bytes_max) in [(Generated::Mappings(60_000), 10.0), (Generated::Leases(30_000), 9.0)] {
        let folder = Folder::new(&format!("generated-{}", bytes_max as u32));
        let (writer, now, begun) = generated(&folder, kind, 3);
        writer.finish(now, now.monotonic_us, true).unwrap();
        let store = Store::open(&folder.0).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!(stat.mappings + stat.leases, begun.len() as u64);
        let bytes = stat.bytes_per_mapping.or(stat.bytes_per_lease).unwrap();
        assert!(bytes < bytes_max, "{bytes}");
        let mut reads = 0;
        for event in begun.iter().step_by(97).filter(|event| event.at.as_micros() < now.monotonic_us) {
            let at_us = Generator::begin().unix_us + event.at.as_micros();
            let (address, port, protocol) = (event.external, Some(event.first_port), event.protocol);
            let question = Question { address, host: None, port, protocol, from_us: at_us, to_us: at_us };
            let found = store.look_up(&question).unwrap();
            assert!(found.is_complete, "{found:?}");
            assert!(found.holders.iter().any(|holder| holder.subscriber.ipv4() == Some(event.subscriber)), "{found:?}");
            reads = reads.max(found.reads);
            // The same by its subscriber.
            let question = Question { address: event.subscriber, port: None, ..question };
            let found = store.look_up(&question).unwrap();
            assert!(found.holders.iter().any(|holder| holder.first_port == event.first_port), "{found:?}");
        }
        assert!(reads <= 10, "{reads}");
    }
}

#[test]
fn only_user_and_group_read_a_store() {
    let folder = Folder::new("modes");
    let (writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = |folder: &Path| -> Vec<(PathBuf, u32)> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), mode(&path))).collect()
    };
    let while_open = modes(&folder.0);
    writer.finish(now, now.monotonic_us, true).unwrap();
    let question = Question {
        address: begun[0].external,
        host: None,
        port: None,
        protocol: None,
        from_us: Generator::begin().unix_us,
        to_us: Generator::begin().unix_us + now.monotonic_us,
    };
    let found = Store::open(&folder.0).unwrap().look_up(&question).unwrap();
    let (holders, is_complete) = (found.holders.len(), found.is_complete);
    let lookup = lookups::Lookup { question: &question, vrf: None, remote: None, formulas: None, holders, is_complete };
    lookups::record(&folder.0, &lookup, None, now.unix_us).unwrap();
    let all = [while_open, modes(&folder.0)].concat();
    for kind in ["segment-", "journal-", "catalogue", "lookups", "lock"] {
        let is_kind = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(kind);
        assert!(all.iter().any(|(path, _)| is_kind(path)), "{kind}: {all:?}");
    }
    assert_eq!(mode(&folder.0) & !FOLDER_MODE, 0);
    for (path, mode) in all {
        assert_eq!(mode & !FILE_MODE, 0, "{}: {mode:o}", path.display());
    }
}

#[test]
fn a_lookup_ends_when_its_answer_is_no_longer_wanted() {
    let folder = Folder::new("unwanted");
    let (_writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let from_us = Generator::begin().unix_us;
    let to_us = from_us + now.monotonic_us;
    let question = Question { address: begun[0].external, host: None, port: None, protocol: None, from_us, to_us };
    let store = Store::open(&folder.0).unwrap();
    let looks = Cell::new(0);
    let all = store.look_up_within(
        &question,
        Bounds {
            goes_on: &|| {
                looks.set(looks.get() + 1);
                true
            },
            ..Bounds::NONE
        },
    );
    assert_eq!(all.unwrap().holders, store.look_up(&question).unwrap().holders);
    let all = looks.get();
    assert!(all > 10, "{all} looks");
    // At whichever place it is: at the beginning, among the segments, among their rows.
    for last in [0, 1, all / 2, all - 1] {
        looks.set(0);
        let goes_on = || {
            looks.set(looks.get() + 1);
            looks.get() <= last
        };
        let ended = store.look_up_within(&question, Bounds { goes_on: &goes_on, ..Bounds::NONE }).unwrap_err();
        assert!(matches!(ended, StoreError::Ended { .. }), "{ended}");
        assert_eq!(looks.get(), last + 1, "it goes no further");
    }
}

#[test]
fn a_question_beyond_the_records_lists_each_holder_once() {
    let folder = Folder::new("beyond");
    // The instance goes on: what its records do not cover yet may have other holders.
    let (_writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let mut by_address = HashMap::new();
    begun.iter().for_each(|event| *by_address.entry(event.external).or_insert(0) += 1);
    let (address, count) = by_address.into_iter().max_by_key(|(_, count)| *count).unwrap();
    assert!(count > 10, "{count}");
    let from_us = Generator::begin().unix_us;
    let to_us = from_us + now.monotonic_us + 60_000_000;
    let question = Question { address, host: None, port: None, protocol: None, from_us, to_us };
    let store = Store::open(&folder.0).unwrap();
    let all = store.look_up(&question).unwrap();
    assert_eq!((all.holders.len(), all.is_complete), (count, false));
    let found = store.look_up_within(&question, Bounds { holders_max: 2 * count, ..Bounds::NONE }).unwrap();
    assert_eq!(found.holders, all.holders);
    let ports: HashSet<_> = found.holders.iter().map(|holder| (holder.first_port, holder.since_us)).collect();
    assert_eq!(ports.len(), count, "each once");
    for max in [0, 1, count / 2] {
        let refused = store.look_up_within(&question, Bounds { holders_max: max, ..Bounds::NONE }).unwrap_err();
        assert!(matches!(refused, StoreError::TooMany { max: named, .. } if named == max), "{refused}");
        assert!(refused.to_string().contains(&format!("more than {max} holders; name a port")), "{refused}");
    }
}
