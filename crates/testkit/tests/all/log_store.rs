//! The log's store against the engine's own state. At random moments of random runs, with reloads,
//! kills, full disks, and steps of the clock, it is noted who has which external endpoint. In the
//! end the store is asked about all of that: no answer names another holder for sure, and none that
//! claims to be complete leaves the holder out.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use export::Subscriber;
use export::store::Found;
use export::store::Moment;
use export::store::Question;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::verify;
use mem::ring::Consumer;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::event::BackPressure;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::Record;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Removed;
use nat::types::Side;
use nat::types::WorkerId;
use nat::view::Filter;
use nat::view::Query;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::ledger::ExternalEndpoint;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::disk::Disk;

const SUBSCRIBERS: u32 = 40;
/// Few, so that many subscribers have an external endpoint one after the other.
const PORTS: (u16, u16) = (1_024, 2_047);
/// Steps of a run.
const STEPS: u32 = 150;
/// Steps of the clock up to this may go unrecorded, in µs.
const CLOCK_SLACK_US: u64 = 20_000;

/// Internal address and port.
type Internal = (Ipv4Addr, u16);

/// What may happen in a run.
#[derive(Clone, Copy, Debug)]
struct Faults {
    disk: bool,
    kills: bool,
    clock: bool,
}

/// All holders at a moment, and endpoints that nobody had.
struct Seen {
    unix_us: u64,
    holders: HashMap<ExternalEndpoint, Internal>,
    free: Vec<ExternalEndpoint>,
}

/// A time in which the clock was not set: by the clock of the run, and the time of day less that.
#[derive(Clone, Copy)]
struct Stretch {
    from_us: u64,
    to_us: u64,
    offset: i64,
}

/// How the store answered.
#[derive(Debug, Default)]
struct Answers {
    /// The holder, and surely no other one.
    right: usize,
    /// The holder, perhaps others.
    incomplete: usize,
    /// Not the holder, but not said to be complete.
    missing: usize,
}

/// An instance with its log, and what was seen of it.
struct Run {
    random: SmallRng,
    settings: Settings,
    workers: usize,
    bed: Bed,
    writer: StoreWriter,
    rings: Vec<Consumer<Record>>,
    /// Until when all events of each worker were read.
    known_us: Vec<u64>,
    offset: i64,
    stretches: Vec<Stretch>,
    seen: Vec<Seen>,
    options: StoreOptions,
    folder: PathBuf,
    disk: Disk,
    is_full: bool,
    kills: u32,
    losses: u32,
}

/// Writes into the store's folder `log` of a small disk.
fn open(folder: &std::path::Path, options: &StoreOptions, moment: Moment) -> StoreWriter {
    StoreWriter::open(folder, options.clone(), moment).expect("the disk has room")
}

impl Run {
    fn new(seed: u64, settings: Settings) -> Run {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = [1, 2, 8][seed as usize % 3];
        let disk = Disk::new();
        let folder = disk.path.join("log");
        // Tests of this file run side by side.
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let rings = std::env::temp_dir().join(format!("natrix-log-store-{}-{number}", std::process::id()));
        fs::create_dir_all(&rings).expect("a temporary folder");
        let options = StoreOptions {
            segment_rows: random.random_range(20..200),
            merge: random.random_range(2..5),
            frame_bytes: random.random_range(200..2_000),
            rings_folder: rings,
            has_threads: false,
            ..StoreOptions::default()
        };
        let (now_us, offset) = (5_000_000, 1_790_000_000_000_000);
        let moment = Moment { monotonic_us: now_us, unix_us: now_us.saturating_add_signed(offset) };
        let writer = open(&folder, &options, moment);
        let (bed, rings) = bed(&settings, workers, seed, now_us, &writer);
        let stretches = vec![Stretch { from_us: now_us, to_us: u64::MAX, offset }];
        Run {
            random,
            settings,
            workers,
            bed,
            writer,
            rings,
            known_us: vec![0; workers],
            offset,
            stretches,
            seen: Vec::new(),
            options,
            folder,
            disk,
            is_full: false,
            kills: 0,
            losses: 0,
        }
    }

    fn now_us(&self) -> u64 {
        self.bed.now().as_micros()
    }

    fn moment(&self) -> Moment {
        let monotonic_us = self.now_us();
        Moment { monotonic_us, unix_us: monotonic_us.saturating_add_signed(self.offset) }
    }

    fn step(&mut self, faults: Faults) {
        match self.random.random_range(0..100) {
            0..40 => self.churn(),
            40..55 => self.see(),
            55..60 => self.reload(),
            60..64 if faults.disk && self.is_full => self.make_room(),
            60..63 if faults.disk && !self.is_full => {
                self.disk.fill();
                self.is_full = true;
            }
            64..66 if faults.clock => self.set_clock(),
            66 if faults.kills => self.end(true),
            67 if faults.kills && !self.is_full => self.end(false),
            _ => {
                let time_ms = self.random.random_range(1..4_000);
                self.bed.advance(Duration::from_millis(time_ms));
            }
        }
        // The writer comes to some of it, or to all.
        if self.random.random_bool(0.7) {
            let most = if self.random.random_bool(0.3) { 20 } else { usize::MAX };
            self.write(most);
        }
        // After a loss, the workers report all that lives.
        if self.losses > 0 && self.random.random_bool(0.1) {
            self.losses = 0;
            self.bed.open_event_log();
        }
    }

    /// Packets of some subscribers.
    fn churn(&mut self) {
        for _ in 0..self.random.random_range(1..80) {
            let subscriber = Ipv4Addr::from_bits(0x6440_0100 + self.random.random_range(0..SUBSCRIBERS));
            let from = at(subscriber, self.random.random_range(2_000..2_020));
            let packet = match self.random.random_range(0..3) {
                0 => build::udp(from, at(E1, 443)).build(),
                1 => build::tcp(from, at(E1, 443), Flags::SYN).build(),
                _ => build::echo_request(*from.ip(), E1, from.port()).build(),
            };
            self.bed.offer(Side::Inside, &packet);
        }
        self.bed.settle();
        self.bed.take_outside();
        self.bed.take_inside();
    }

    /// Who has which external endpoint, by the engine's tables.
    fn holders(&self) -> HashMap<ExternalEndpoint, Internal> {
        let mut held = HashMap::new();
        for shard in self.bed.shards() {
            let mut all = Query::all(Filter::default());
            shard.view().mappings_page(self.bed.now(), &mut all);
            for view in all.records {
                let endpoint = (view.external.address, view.protocol, view.external.port);
                held.insert(endpoint, (view.internal.address, view.internal.port));
            }
        }
        held
    }

    /// Notes who had what for the four milliseconds around a moment.
    fn see(&mut self) {
        let mut before = self.holders();
        let time = Duration::from_millis(2);
        self.bed.advance(time);
        let unix_us = self.moment().unix_us;
        self.bed.advance(time);
        let after = self.holders();
        let addresses = self.settings.pools[0].addresses.clone();
        let mut free = Vec::new();
        for _ in 0..5 {
            let address = addresses[self.random.random_range(0..addresses.len())];
            let endpoint = (address, Protocol::Udp, self.random.random_range(PORTS.0..=PORTS.1));
            if !before.contains_key(&endpoint) && !after.contains_key(&endpoint) {
                free.push(endpoint);
            }
        }
        before.retain(|endpoint, holder| after.get(endpoint) == Some(holder));
        self.seen.push(Seen { unix_us, holders: before, free });
    }

    fn reload(&mut self) {
        let first = self.random.random_range(0..3);
        let pool = &mut self.settings.pools[0];
        pool.addresses = POOL.iter().cycle().skip(first).take(2).copied().collect();
        self.settings.reload.removed = if self.random.random_bool(0.5) { Removed::End } else { Removed::Drain };
        self.bed.reload(self.settings.clone());
    }

    fn set_clock(&mut self) {
        let far = if self.random.random_bool(0.5) { 60_000_000 } else { 30_000 };
        self.offset += self.random.random_range(-far..far);
        let now_us = self.now_us();
        self.begin_stretch(now_us, now_us);
        // As each round of the exporter does.
        self.write(0);
    }

    fn begin_stretch(&mut self, ended_us: u64, from_us: u64) {
        self.stretches.last_mut().expect("there is one").to_us = ended_us;
        self.stretches.push(Stretch { from_us, to_us: u64::MAX, offset: self.offset });
    }

    fn make_room(&mut self) {
        self.disk.make_room();
        self.is_full = false;
    }

    /// A round of the exporter: at most so many events of each worker go to the writer.
    fn write(&mut self, most: usize) {
        let now_us = self.now_us();
        let mut events = Vec::new();
        for (worker, ring) in self.rings.iter_mut().enumerate() {
            if most == 0 || !self.writer.has_room() {
                break;
            }
            // Read before the ring: what was published before this time is found below.
            let mark = ring.mark();
            events.clear();
            let count = ring.hold_burst(most, |record| events.extend(record.event()));
            let known_us = if count < most { mark } else { events.last().map_or(0, |last| last.at.as_micros()) };
            self.known_us[worker] = self.known_us[worker].max(known_us);
            self.losses += events.iter().filter(|event| event.kind == EventKind::Gap).count() as u32;
            self.writer.push_all(WorkerId(worker as u8), &events);
        }
        let covered_us = self.known_us.iter().copied().min().unwrap_or(0).min(now_us);
        let moment = self.moment();
        // Whatever fails is repeated by the next call.
        let done = self.writer.advance(moment, covered_us).and_then(|()| self.writer.flush());
        assert!(done.is_ok() || self.is_full, "{done:?}");
        if self.writer.is_all_written() {
            self.rings.iter_mut().for_each(Consumer::release);
        }
    }

    /// The process is killed, or stops, and another one starts on the same store.
    fn end(&mut self, is_killed: bool) {
        if self.is_full {
            self.make_room();
        }
        let moment = self.moment();
        if is_killed {
            self.kills += 1;
        } else {
            // A worker whose ring is full has room for its last records after the first round.
            for _ in 0..2 {
                self.bed.finish_events();
                self.write(usize::MAX);
            }
            assert!(self.known_us.iter().all(|known| known & FINISHED != 0), "all workers have ended");
        }
        let pause_us = self.random.random_range(20_000..900_000);
        let from_us = self.random.random_range(1_000_000..9_000_000);
        self.offset = (moment.unix_us + pause_us) as i64 - from_us as i64;
        self.begin_stretch(moment.monotonic_us, from_us);
        let next = Moment { monotonic_us: from_us, unix_us: moment.unix_us + pause_us };
        // The folder has one writer at a time.
        let held = self.folder.with_extension("held");
        let unused = open(&held, &self.options, next);
        let writer = core::mem::replace(&mut self.writer, unused);
        if is_killed {
            drop(writer);
        } else {
            writer.finish(moment, moment.monotonic_us, self.random.random_bool(0.5)).expect("the disk has room");
        }
        self.writer = open(&self.folder, &self.options, next);
        fs::remove_dir_all(&held).expect("our own folder");
        let seed = self.random.random();
        (self.bed, self.rings) = bed(&self.settings, self.workers, seed, from_us, &self.writer);
        self.known_us = vec![0; self.workers];
        self.losses = 0;
    }

    /// How often it was this time, by the clock, give or take what is not recorded.
    fn times(&self, unix_us: u64) -> usize {
        let is_within = |stretch: &&Stretch| {
            let at_us = unix_us.saturating_add_signed(-stretch.offset);
            stretch.from_us.saturating_sub(CLOCK_SLACK_US) <= at_us
                && at_us <= stretch.to_us.saturating_add(CLOCK_SLACK_US)
        };
        self.stretches.iter().filter(is_within).count()
    }

    /// Asks the store about everything that was seen. A wrong holder fails the test.
    fn compare(&self) -> Answers {
        let store = Store::open(&self.folder).expect("a store");
        let mut answers = Answers::default();
        let ask = |(address, protocol, port): ExternalEndpoint, unix_us| {
            let (port, protocol) = (Some(port), Some(protocol));
            let question = Question { host: None, address, port, protocol, from_us: unix_us, to_us: unix_us };
            store.look_up(&question).expect("an answer")
        };
        for Seen { unix_us, holders, free } in &self.seen {
            let is_once = self.times(*unix_us) == 1;
            for (endpoint, internal) in holders {
                let found = ask(*endpoint, *unix_us);
                answers.count(&found, *internal, is_once, || format!("{endpoint:?} at {unix_us}"));
            }
            for endpoint in free.iter().filter(|_| is_once && self.settings.pools[0].allocation == Allocation::Ports) {
                let found = ask(*endpoint, *unix_us);
                let is_wrong = found.holders.iter().any(|holder| holder.is_certain);
                assert!(!is_wrong, "{endpoint:?} was free at {unix_us}: {found:?}");
            }
        }
        answers
    }
}

impl Answers {
    fn count(&mut self, found: &Found, (address, port): Internal, is_once: bool, what: impl Fn() -> String) {
        let mut has_holder = false;
        for holder in &found.holders {
            let is_right = holder.subscriber == Subscriber::Ipv4(address)
                && holder.internal_port.is_none_or(|internal| internal == port);
            assert!(is_right || !holder.is_certain || !is_once, "{} was of {address}:{port}: {found:?}", what());
            has_holder |= is_right;
        }
        match (has_holder, found.is_complete) {
            (true, true) => self.right += 1,
            (true, false) => self.incomplete += 1,
            (false, false) => self.missing += 1,
            (false, true) => panic!("{} was of {address}:{port}, and is said not to: {found:?}", what()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.options.rings_folder);
    }
}

/// A packet path whose events go into rings of the store.
fn bed(
    settings: &Settings,
    workers: usize,
    seed: u64,
    now_us: u64,
    writer: &StoreWriter,
) -> (Bed, Vec<Consumer<Record>>) {
    let rings = writer.create_rings(workers, 256).expect("room for the rings");
    let (producers, consumers) = rings.into_iter().unzip();
    let bed = Bed::new(settings.clone()).workers(workers).seed(seed).steering(Steering::Random);
    (bed.clock(Instant::from_micros(now_us)).record_events_to(producers), consumers)
}

fn run(seed: u64, policy: BackPressure, faults: Faults) -> (Answers, u32) {
    let mut settings = settings().short_timers().ports(PORTS.0, PORTS.1);
    settings.events.back_pressure = policy;
    settings.limits.external_addresses_max = 16;
    settings.pools[0].addresses.truncate(2);
    if seed.is_multiple_of(2) {
        let size = BlockSize::of_ports(64).expect("a power of two");
        settings.pools[0].allocation =
            Allocation::Blocks(Blocks { size, per_subscriber_max: 4, idle: Duration::from_secs(2) });
    }
    let mut run = Run::new(seed, settings);
    for _ in 0..STEPS {
        run.step(faults);
    }
    run.end(false);
    let faults = verify(&run.folder, None, |_, _| {}).expect("it can be read").faults;
    assert_eq!(faults, Vec::<String>::new());
    (run.compare(), run.kills)
}

/// Runs with these seeds; returns the sum of their answers, and how many kills there were.
fn all(runs: u64, policy: BackPressure, faults: Faults) -> (Answers, u32) {
    let sum = std::sync::Mutex::new((Answers::default(), 0));
    for_each_seed(runs, |seed| {
        let (answers, kills) = run(seed, policy, faults);
        let mut sum = sum.lock().expect("nobody failed");
        sum.0.right += answers.right;
        sum.0.incomplete += answers.incomplete;
        sum.0.missing += answers.missing;
        sum.1 += kills;
    });
    sum.into_inner().expect("nobody failed")
}

#[test]
fn each_holder_of_a_run_with_reloads_is_found() {
    covers!("6888-4", "6302-X");
    let (answers, _) = all(4, BackPressure::Refuse, Faults { disk: false, kills: false, clock: false });
    assert!(answers.right > 3_000, "{answers:?}");
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
}

#[test]
fn no_full_disk_or_kill_costs_a_holder_with_refuse() {
    let (answers, kills) = all(6, BackPressure::Refuse, Faults { disk: true, kills: true, clock: false });
    assert!(answers.right > 3_000 && kills > 3, "{answers:?} after {kills} kills");
    assert_eq!(answers.missing, 0, "{answers:?} after {kills} kills");
}

#[test]
fn no_fault_of_any_kind_names_a_wrong_holder() {
    let (answers, kills) = all(8, BackPressure::Drop, Faults { disk: true, kills: true, clock: true });
    let lacking = answers.incomplete + answers.missing;
    assert!(answers.right > 2_000 && lacking > 50 && kills > 3, "{answers:?} after {kills} kills");
}
