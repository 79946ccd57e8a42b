//! Random events with faults, a store of them, and the list of all that happened.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use export::Subscriber;
use export::store::Found;
use export::store::Holder;
use export::store::HostPrefix;
use export::store::Moment;
use export::store::Question;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Until;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) external: u32,
    pub(crate) first_port: u16,
    pub(crate) last_port: u16,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) subscriber: Subscriber,
    pub(crate) internal_port: u16,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) key: Key,
    pub(crate) boot: usize,
    pub(crate) start_us: u64,
    pub(crate) end_us: Option<u64>,
    pub(crate) worker: u8,
}

/// A clock setting of a boot, from this monotonic time on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) boot: usize,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) offset: i64,
}

pub(crate) const FIRST_EXTERNAL: u32 = 0xcb00_7101;
pub(crate) const FIRST_SUBSCRIBER: u32 = 0x6440_0001;
pub(crate) const WORKERS: usize = 3;
/// Numbers of a worker: fewer than hosts, so that each is that of several hosts.
pub(crate) const NUMBERS: u32 = 4;
pub(crate) const FIRST_HOST: u128 = 0x2001_0db8 << 96;

/// IPv4 and IPv6 hosts, two of them behind one B4, and prefixes.
pub(crate) fn subscriber(place: u32, is_block: bool) -> Subscriber {
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
pub(crate) struct Faults {
    pub(crate) clock: bool,
    pub(crate) loss: bool,
    pub(crate) kills: bool,
    pub(crate) retention: bool,
}

pub(crate) struct World {
    pub(crate) random: SmallRng,
    pub(crate) folder: PathBuf,
    pub(crate) options: StoreOptions,
    pub(crate) writer: Option<StoreWriter>,
    pub(crate) now_us: u64,
    /// When the writer read the clock last.
    pub(crate) read_us: u64,
    pub(crate) offset: i64,
    pub(crate) boot: usize,
    pub(crate) next: [u64; WORKERS],
    pub(crate) open: BTreeMap<Key, Held>,
    pub(crate) ended: Vec<Held>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) faults: Faults,
    pub(crate) unreported: [u32; WORKERS],
    /// Time of a loss that no later record shows yet.
    pub(crate) lost_us: [u64; WORKERS],
    /// Which host has which number of a worker, and whether that was recorded since the last loss.
    pub(crate) numbers: [BTreeMap<u32, (HostName, bool)>; WORKERS],
}

impl World {
    pub(crate) fn new(seed: u64, folder: &Path, faults: Faults) -> World {
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

    pub(crate) fn moment(&self) -> Moment {
        Moment { monotonic_us: self.now_us, unix_us: self.now_us.saturating_add_signed(self.offset) }
    }

    pub(crate) fn begin(&mut self) {
        self.next = [1; WORKERS];
        self.unreported = [0; WORKERS];
        self.lost_us = [u64::MAX; WORKERS];
        self.numbers = Default::default();
        let moment = self.moment();
        self.writer = Some(StoreWriter::open(&self.folder, self.options.clone(), moment).unwrap());
        self.set();
    }

    pub(crate) fn set(&mut self) {
        let setting = Setting { boot: self.boot, from_us: self.now_us, to_us: u64::MAX, offset: self.offset };
        if let Some(last) = self.settings.last_mut().filter(|last| last.to_us == u64::MAX) {
            last.to_us = self.now_us;
        }
        self.settings.push(setting);
    }

    /// Records an event as a worker does: the name of a host comes before the first event with its
    /// number, again after a loss, and an event whose name is lost is lost, too.
    pub(crate) fn push_of(&mut self, worker: u8, key: &Key, event: Event) {
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
    pub(crate) fn number(&mut self, worker: u8, name: HostName) -> u32 {
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

    pub(crate) fn push(&mut self, worker: u8, event: Event, may_lose: bool) -> bool {
        let is_lost = may_lose && self.faults.loss && self.random.random_bool(0.02);
        self.push_or_lose(worker, event, is_lost)
    }

    pub(crate) fn push_or_lose(&mut self, worker: u8, mut event: Event, is_lost: bool) -> bool {
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

    pub(crate) fn forget_names(&mut self, place: usize) {
        self.numbers[place].values_mut().for_each(|(_, is_named)| *is_named = false);
    }

    pub(crate) fn event(key: &Key, is_begin: bool, at_us: u64) -> Event {
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

    pub(crate) fn step(&mut self) {
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
    pub(crate) fn report_all(&mut self) {
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

    pub(crate) fn advance(&mut self) {
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
    pub(crate) fn covered_us(&self) -> u64 {
        self.lost_us.iter().map(|lost| lost.saturating_sub(1)).min().unwrap().min(self.now_us - 60)
    }

    pub(crate) fn end_boot(&mut self) {
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
    pub(crate) fn kill(&mut self) {
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

    pub(crate) fn stop(&mut self) {
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
    pub(crate) fn holders(&self, question: &Question) -> Vec<(Key, u64)> {
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

    pub(crate) fn question(&mut self) -> Question {
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
    pub(crate) fn compare(&mut self, questions: usize, seed: u64) -> (usize, usize) {
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

    pub(crate) fn check(&self, seed: u64, question: &Question, expected: &[(Key, u64)], found: &Found) {
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
pub(crate) fn age_s(start_us: u64, now_us: u64) -> u32 {
    (now_us / 1_000_000 - start_us / 1_000_000) as u32
}

pub(crate) fn is_asked(question: &Question, key: &Key) -> bool {
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
