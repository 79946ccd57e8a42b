//! The rings of a store's workers: files in memory that outlive a killed process.
//!
//! Their names derive from the store, so the next writer of the store finds them. They belong to a
//! run of the store and a boot of the machine: after a reboot, or with a damaged file, records may
//! be missing, and the run ends like one without rings.

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use mem::ring::Consumer;
use mem::ring::Producer;
use mem::ring::file;
use mem::ring::file::Left;
use mem::ring::file::TAG_BYTES;
use nat::Instant;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::Record;

use super::catalogue::Moment;
use super::catalogue::hex;
use super::codec::Cursor;
use super::unwritten;
use super::unwritten::Unwritten;
use super::unwritten::UnwrittenLeft;

/// Longest time between clocks that are read at one moment, in µs, and how often to try.
const READING_US: i64 = 200;
const READINGS_MAX: u32 = 10;

/// Rings in the folder of a store that was put aside begin with this.
pub(crate) const RING: &str = "ring-";

/// A worker's ring.
pub type Ring = (Producer<Record>, Consumer<Record>);

/// Where the rings of one store are.
#[derive(Clone, Debug)]
pub(crate) struct Rings {
    folder: PathBuf,
    prefix: String,
}

/// What the rings of a run have.
#[derive(Debug, Default)]
pub(crate) struct RingRemains {
    /// What each worker's ring has, in order.
    pub(crate) rings: Vec<RingLeft>,
    /// The time until which these and the journal have all events, if the rings are whole.
    pub(crate) covered_us: Option<u64>,
    /// Time since the machine's boot less the run's clock, in µs.
    pub(crate) base_us: i64,
    /// What the catalogue did not have yet, if it is whole.
    pub(crate) unwritten: Option<UnwrittenLeft>,
}

/// What one ring has.
#[derive(Debug)]
pub(crate) struct RingLeft {
    pub(crate) worker: u8,
    /// The sequence number after the last record that the ring gave away: the journal had all
    /// before it.
    pub(crate) next: u64,
    /// Events, in order.
    pub(crate) events: Vec<Event>,
    /// What the worker lost after them, because there was no room, and could not report.
    pub(crate) lost: Option<Lost>,
}

/// Records that a worker lost last, and has no record of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The sequence number after them.
    pub(crate) next: u64,
    /// When the last of them was, or the attempt to report them.
    pub(crate) at: Instant,
    pub(crate) cause: Cause,
}

impl Lost {
    /// By the last record that found no room: one of them, or the gap that reports them.
    fn of(refused: &Event) -> Lost {
        let is_minor = refused.kind == EventKind::Gap && refused.cause == Cause::NoAllocation;
        let cause = if is_minor { Cause::NoAllocation } else { Cause::None };
        Lost { next: following(refused), at: refused.at, cause }
    }
}

/// The first and the last number that a ring has, of its records and of those that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingNumbers {
    pub(crate) worker: u8,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl RingNumbers {
    fn of(left: &Left<Record>) -> Option<RingNumbers> {
        let events: Vec<Event> = left.items.iter().chain(&left.refused).map_while(Record::event).collect();
        let (first, next) = (events.first()?.sequence, events.iter().map(following).max()?);
        Some(RingNumbers { worker: Tag::parse(&left.tag)?.worker, first, last: next.saturating_sub(1) })
    }
}

/// Whose ring it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    run: [u8; 16],
    machine: [u8; 16],
    worker: u8,
    workers: u8,
    /// Time since the machine's boot less the run's clock, in µs.
    base_us: i64,
}

impl Tag {
    fn parse(bytes: &[u8; TAG_BYTES]) -> Option<Tag> {
        let mut input = Cursor::new(bytes);
        Some(Tag {
            run: input.array()?,
            machine: input.array()?,
            worker: input.u8()?,
            workers: input.u8()?,
            base_us: input.u64()? as i64,
        })
    }

    fn bytes(&self) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes[..16].copy_from_slice(&self.run);
        bytes[16..32].copy_from_slice(&self.machine);
        (bytes[32], bytes[33]) = (self.worker, self.workers);
        bytes[34..42].copy_from_slice(&self.base_us.to_le_bytes());
        bytes
    }
}

/// The identity of this boot of the machine; zeros if the system has none.
fn machine_boot() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}

/// Time since the machine's boot in µs.
pub(crate) fn uptime_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000_000) + time.tv_nsec / 1_000
}

/// Reads both clocks and the time since the machine's boot at one moment. A thread that is
/// interrupted between them reads them again: to the next start it would look as if the clock had
/// been set.
pub(crate) fn with_uptime(clocks: impl Fn() -> Moment) -> (Moment, i64) {
    let read = || {
        let begin_us = uptime_us();
        let now = clocks();
        let end_us = uptime_us();
        (end_us - begin_us, now, end_us)
    };
    let mut best = read();
    for _ in 1..READINGS_MAX {
        if best.0 < READING_US {
            break;
        }
        let next = read();
        if next.0 < best.0 {
            best = next;
        }
    }
    (best.1, best.2)
}

/// The sequence number after an event: a gap stands for several.
pub(crate) fn following(event: &Event) -> u64 {
    let amount = if event.kind == EventKind::Gap { u64::from(event.amount).max(1) } else { 1 };
    event.sequence.saturating_add(amount)
}

impl Rings {
    /// Of the store with this identity in this folder: a copy of it has rings of its own.
    pub(crate) fn new(folder: &Path, store_folder: &Path, store: &[u8; 16]) -> Rings {
        let place = fs::canonicalize(store_folder).unwrap_or_else(|_| store_folder.to_owned());
        let mut hasher = blake3::Hasher::new();
        hasher.update(store);
        hasher.update(place.as_os_str().as_encoded_bytes());
        let name = hex(&hasher.finalize().as_bytes()[..8]);
        Rings { folder: folder.to_owned(), prefix: format!("natrix-log-{name}-") }
    }

    fn path(&self, worker: u8) -> PathBuf {
        self.folder.join(format!("{}{worker}", self.prefix))
    }

    fn unwritten_path(&self) -> PathBuf {
        self.folder.join(format!("{}due", self.prefix))
    }

    /// Keeps what the catalogue does not have yet beside the rings of a run.
    pub(crate) fn keep(&self, run: [u8; 16], unwritten: &Unwritten) -> io::Result<()> {
        unwritten.keep(self.unwritten_path(), &run, &machine_boot())
    }

    /// Makes the rings of a run.
    pub(crate) fn create(&self, run: [u8; 16], base_us: i64, workers: usize, capacity: usize) -> io::Result<Vec<Ring>> {
        let workers = u8::try_from(workers).map_err(|_| io::Error::other("more than 255 workers"))?;
        let machine = machine_boot();
        (0..workers)
            .map(|worker| {
                let tag = Tag { run, machine, worker, workers, base_us };
                file::create(&self.path(worker), capacity, &tag.bytes())
            })
            .collect()
    }

    /// What the rings of this run have.
    pub(crate) fn left(&self, run: [u8; 16]) -> RingRemains {
        let machine = machine_boot();
        let mut remains = RingRemains::default();
        let (mut workers, mut covered_us) = (1, Some(u64::MAX));
        let mut worker = 0;
        while worker < workers {
            let left: Option<Left<Record>> = file::read(&self.path(worker)).ok();
            let left = left.and_then(|left| Some((Tag::parse(&left.tag)?, left)));
            let is_ours = |tag: &Tag| (tag.run, tag.machine, tag.worker) == (run, machine, worker);
            match left.filter(|(tag, _)| is_ours(tag)) {
                Some((tag, left)) => {
                    (workers, remains.base_us) = (workers.max(tag.workers), tag.base_us);
                    // Nothing after a record that cannot be read.
                    let events: Vec<Event> = left.items.iter().map_while(Record::event).collect();
                    // Numbers begin with 1.
                    let next = left.note.unwrap_or(1).max(1);
                    let fits = events.first().is_none_or(|event| event.sequence <= next)
                        && events.last().is_none_or(|event| next <= following(event));
                    // A damaged number must not hide what the ring has.
                    let next = events.first().filter(|_| !fits).map_or(next, |event| next.min(event.sequence));
                    let lost = left.refused.map(|record| record.event());
                    let is_whole = events.len() == left.items.len()
                        && left.note.is_some()
                        && fits
                        && lost.is_none_or(|lost| lost.is_some());
                    let lost = lost.flatten().map(|refused| Lost::of(&refused));
                    covered_us = covered_us.filter(|_| is_whole).map(|covered| covered.min(left.mark & !FINISHED));
                    remains.rings.push(RingLeft { worker, next, events, lost });
                }
                // Others may be there.
                None if worker == 0 => (workers, covered_us) = (self.files().len().clamp(1, 255) as u8, None),
                None => covered_us = None,
            }
            worker += 1;
        }
        remains.unwritten = unwritten::left(&self.unwritten_path(), &run, &machine);
        // How the clock was set after its last reading is not known.
        let read_us = remains.unwritten.as_ref().map(|left| left.read_us);
        let covered_us = covered_us.filter(|covered| *covered > 0 && *covered != u64::MAX);
        remains.covered_us = covered_us.zip(read_us).map(|(covered, read)| covered.min(read));
        remains
    }

    /// Moves all into a folder of a store that was put aside, where they are named `ring-…`.
    /// Returns the numbers of each worker. What cannot be moved stays.
    pub(crate) fn put_aside(&self, place: &Path) -> Vec<RingNumbers> {
        let mut found = Vec::new();
        for path in self.files() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let moved = place.join(format!("{RING}{}", name.strip_prefix(&self.prefix).unwrap_or(name)));
            let left: Option<Left<Record>> = file::read(&path).ok();
            found.extend(left.and_then(|left| RingNumbers::of(&left)));
            // Memory is another file system.
            if fs::copy(&path, &moved).is_ok() {
                let _ = fs::remove_file(&path);
            }
        }
        found
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_ours = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&self.prefix))
        };
        entries.map(|entry| entry.path()).filter(is_ours).collect()
    }

    /// Removes all.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.files().iter().try_for_each(fs::remove_file)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::time::Duration;

    use super::*;

    #[test]
    fn an_interrupted_reading_of_the_clocks_is_read_again() {
        let calls = Cell::new(0);
        let (now, uptime_us) = with_uptime(|| {
            calls.set(calls.get() + 1);
            let monotonic_us = uptime_us() as u64;
            // Much longer than one that is not interrupted.
            if calls.get() == 1 {
                std::thread::sleep(Duration::from_millis(200));
            }
            Moment { monotonic_us, unix_us: 0 }
        });
        assert!(calls.get() > 1);
        assert!(uptime_us - (now.monotonic_us as i64) < 200_000, "not the first one");
    }
}
