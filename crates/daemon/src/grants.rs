//! The file of grants: what port control has granted survives a restart, also kill -9.
//!
//! ```text
//!   header   "NATRIX G" | version | when the common epoch time began, s since 1970
//!   record   one grant as it is now, or its end; with a CRC-32
//!   record   …
//! ```
//!
//! A clean stop adds "NATRIX E". Without it, and without the rings of a killed process, changes may
//! be missing, so the epoch time begins again.
//!
//! Workers put each change into a ring in memory that outlives the process, before the reply
//! leaves; one thread appends it and syncs. The next start reads the file, then what the rings
//! still have. A file of many outdated records is written anew beside the old one and takes its
//! place. Times in it are those of the system's clock. A torn record ends the file.

use std::collections::HashMap;
use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use export::FILE_MODE;
use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use mem::ring::file::TAG_BYTES;
use nat::Duration;
use nat::GrantDelta;
use nat::GrantRecord;
use nat::delta::Change;
use nat::delta::DeltaHost;

use crate::clock::Clock;
use crate::log::Log;

#[cfg(test)]
mod tests;

const MAGIC: [u8; 8] = *b"NATRIX G";
/// The end of a file that has all changes.
const CLOSED: [u8; 8] = *b"NATRIX E";
const VERSION: u32 = 3;
/// Its records name no IPv6 hosts.
const VERSION_IPV4: u32 = 2;
const HEADER: usize = 24;
const RECORD: usize = 152;
const RECORD_IPV4: usize = 128;
/// Outdated records before the file is written anew.
const OUTDATED_MAX: usize = 4_096;
/// Changes that may wait for the file, of one worker.
const RING_CHANGES: usize = 1 << 14;
/// More than any instance has.
const WORKERS_MAX: usize = 256;
/// A file system in memory.
const RINGS_FOLDER: &str = "/dev/shm";
const POLL: core::time::Duration = core::time::Duration::from_millis(5);

/// Identifies a grant in the file.
type Key = (u16, u8, Option<DeltaHost>, u32, u16, u8, Option<(u32, u16)>);

fn key_of(delta: &GrantDelta) -> Key {
    let internal = delta.internal;
    let address = internal.address.to_bits();
    (delta.realm.0, delta.protocol as u8, delta.host, address, internal.port, delta.kind as u8, delta.peer())
}

/// A grant with times of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    delta: GrantDelta,
    expires_ms: u64,
    epoch_began_s: u64,
}

impl Stored {
    fn at(delta: &GrantDelta, now_ms: u64) -> Stored {
        Stored {
            delta: *delta,
            expires_ms: now_ms + delta.left.as_micros() / 1_000,
            epoch_began_s: (now_ms / 1_000).saturating_sub(u64::from(delta.epoch_s)),
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// What a file says about the time before.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// When the common epoch time began; `None` without a file.
    epoch_began_s: Option<u64>,
    grants: HashMap<Key, Stored>,
    /// The file ends in a torn record.
    pub(crate) is_torn: bool,
    /// What is wrong with the file, if something is, and what it costs.
    pub(crate) damage: Option<String>,
    /// A change may be missing, so the epoch time is lost (RFC 6887 §8.5).
    pub(crate) is_incomplete: bool,
}

impl Kept {
    /// What a change means, if it happened at this time of the system's clock.
    fn apply(&mut self, delta: &GrantDelta, now_ms: u64) {
        match delta.change {
            Change::Lives => self.grants.insert(key_of(delta), Stored::at(delta, now_ms)),
            Change::Ended => self.grants.remove(&key_of(delta)),
        };
    }

    /// The common epoch time now; `None` if it is lost.
    pub(crate) fn epoch_s(&self) -> Option<u32> {
        let began = self.epoch_began_s?;
        u32::try_from((unix_ms() / 1_000).checked_sub(began)?).ok()
    }

    /// Clients are to renew: the epoch time begins now.
    pub(crate) fn forget_epoch(&mut self) {
        self.epoch_began_s = None;
        let now_s = unix_ms() / 1_000;
        self.grants.values_mut().for_each(|stored| stored.epoch_began_s = now_s);
    }

    /// The grants that are not over.
    pub(crate) fn grants(&self) -> Vec<GrantDelta> {
        let now_ms = unix_ms();
        // Earlier versions kept what gateways expected.
        let is_kept = |stored: &&Stored| stored.expires_ms > now_ms && !stored.delta.origin.is_alg();
        let live = self.grants.values().filter(is_kept);
        let mut live: Vec<_> = live.collect();
        // The same order in every run.
        live.sort_unstable_by_key(|stored| key_of(&stored.delta));
        let now = live.into_iter().map(|stored| GrantDelta {
            left: Duration::from_millis(stored.expires_ms - now_ms),
            epoch_s: (now_ms / 1_000).saturating_sub(stored.epoch_began_s) as u32,
            ..stored.delta
        });
        now.collect()
    }
}

fn encode(stored: &Stored) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let (body, check) = record.split_at_mut(RECORD - 4);
    let numbers = [stored.expires_ms, stored.epoch_began_s].map(u64::to_ne_bytes);
    let all = GrantRecord::from(&stored.delta).to_bytes().into_iter().chain(numbers.into_iter().flatten());
    for (place, byte) in body.iter_mut().zip(all) {
        *place = byte;
    }
    check.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<Stored> {
    let (body, check) = record.split_at_checked(record.len().checked_sub(4)?)?;
    if crc32fast::hash(body).to_le_bytes() != *check {
        return None;
    }
    let (grant, rest) = match record.len() {
        RECORD_IPV4 => {
            let (known, rest) = body.split_at_checked(GrantRecord::BYTES_WITHOUT_HOST)?;
            let mut grant = [0; GrantRecord::BYTES];
            grant.get_mut(..known.len())?.copy_from_slice(known);
            (grant, rest)
        }
        _ => body.split_first_chunk().map(|(grant, rest)| (*grant, rest))?,
    };
    let (expires, rest) = rest.split_first_chunk()?;
    let delta = GrantRecord::from_bytes(grant).delta()?;
    let epoch_began_s = u64::from_ne_bytes(*rest.first_chunk()?);
    Some(Stored { delta, expires_ms: u64::from_ne_bytes(*expires), epoch_began_s })
}

fn header(epoch_began_s: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..20].copy_from_slice(&epoch_began_s.to_le_bytes());
    let check = crc32fast::hash(&header[..20]);
    header[20..].copy_from_slice(&check.to_le_bytes());
    header
}

/// When the epoch time began, and the size of the records.
fn read_header(header: &[u8]) -> Option<(u64, usize)> {
    let (body, check) = header.split_at_checked(20)?;
    let is_sound = check == crc32fast::hash(body).to_le_bytes() && body.starts_with(&MAGIC);
    let version = u32::from_le_bytes(*body.get(8..)?.first_chunk()?);
    let began = u64::from_le_bytes(*body.get(12..)?.first_chunk()?);
    let record = match version {
        VERSION => RECORD,
        VERSION_IPV4 => RECORD_IPV4,
        _ => return None,
    };
    is_sound.then_some((began, record))
}

/// Reads a file and what the rings of a killed process still have. A file that is missing or not of
/// this kind keeps nothing.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<Kept> {
    let (mut kept, end) = read_file(path)?;
    if kept.epoch_began_s.is_some() {
        let rings = (0..WORKERS_MAX).filter(|worker| read_ring(path, *worker, &mut kept)).count();
        // The rings have what was being written to the file.
        kept.is_incomplete = match end {
            End::Closed => false,
            End::Open | End::Cut => rings == 0,
            End::Damaged => true,
        };
        if kept.is_incomplete {
            kept.forget_epoch();
        }
    }
    Ok(kept)
}

/// How a file ends.
enum End {
    /// By a clean stop.
    Closed,
    /// After a whole record.
    Open,
    /// Within a record.
    Cut,
    /// Before a whole record that is none, and all after it.
    Damaged,
}

fn read_file(path: &Path) -> io::Result<(Kept, End)> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Kept::default(), End::Damaged)),
        Err(error) => return Err(error),
    };
    let mut kept = Kept::default();
    let head = bytes.split_at_checked(HEADER).and_then(|(head, records)| Some((read_header(head)?, records)));
    let Some(((began_s, size), records)) = head else {
        kept.damage = Some(format!("is no file of grants of this version ({} bytes); none is restored", bytes.len()));
        return Ok((kept, End::Damaged));
    };
    kept.epoch_began_s = Some(began_s);
    let (records, mut end) = match records.strip_suffix(&CLOSED) {
        Some(records) => (records, End::Closed),
        None => (records, End::Open),
    };
    for (number, record) in records.chunks(size).enumerate() {
        if record.len() < size {
            kept.is_torn = true;
            end = End::Cut;
            break;
        }
        let Some(stored) = decode(record) else {
            let (at, length) = (HEADER + number * size, bytes.len());
            let rest = records.len().div_ceil(size) - number;
            kept.damage = Some(format!(
                "is damaged at byte {at} of {length}; {} from there on are lost, and what was granted before is restored",
                control::counted(rest as u64, "change")
            ));
            end = End::Damaged;
            break;
        };
        match stored.delta.change {
            Change::Lives => kept.grants.insert(key_of(&stored.delta), stored),
            Change::Ended => kept.grants.remove(&key_of(&stored.delta)),
        };
    }
    Ok((kept, end))
}

/// Gives a damaged file a name beside its own that no file has, and returns it. The file keeps its
/// own name, too, where the system lets it, until a new one replaces it.
pub(crate) fn put_aside(path: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    let aside = loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        if fs::symlink_metadata(&name).is_err() {
            break PathBuf::from(name);
        }
        number += 1;
    };
    fs::hard_link(path, &aside).or_else(|_| fs::rename(path, &aside))?;
    Ok(aside)
}

/// Where the ring of a worker is.
fn ring_path(path: &Path, worker: usize) -> PathBuf {
    let name = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let hash = crc32fast::hash(name.as_os_str().as_encoded_bytes());
    Path::new(RINGS_FOLDER).join(format!("natrix-grants-{hash:08x}-{worker}"))
}

/// False for a ring that is not there, or not whole, and so has nothing.
fn read_ring(path: &Path, worker: usize, kept: &mut Kept) -> bool {
    let Ok(left) = ring::file::read::<GrantRecord>(&ring_path(path, worker)) else { return false };
    let began_us = u64::from_le_bytes(*left.tag.first_chunk().unwrap_or(&[0; 8]));
    let now_ms = (began_us + left.mark) / 1_000;
    for delta in left.items.iter().filter_map(GrantRecord::delta) {
        kept.apply(&delta, now_ms);
    }
    true
}

fn remove_ring(path: &Path, worker: usize) {
    // One that is not there is gone.
    let _ = fs::remove_file(ring_path(path, worker));
}

/// A ring for each worker, in memory that outlives a kill. Without such memory, a kill may lose
/// what was granted some milliseconds before.
fn make_rings(
    path: &Path,
    workers: usize,
    clock: Clock,
    log: &Log,
) -> (Vec<Producer<GrantRecord>>, Vec<Consumer<GrantRecord>>) {
    let mut tag = [0; TAG_BYTES];
    tag[..8].copy_from_slice(&clock.unix_us(nat::Instant::ORIGIN).to_le_bytes());
    let made = (0..workers).map(|worker| {
        let path = ring_path(path, worker);
        ring::file::create(&path, RING_CHANGES, &tag).unwrap_or_else(|error| {
            log.warn(&format_args!("grants: {}: {error}; a kill may lose the latest grants", path.display()));
            ring::channel(RING_CHANGES)
        })
    });
    made.unzip()
}

/// The file and what it says.
struct Book {
    path: PathBuf,
    file: File,
    epoch_began_s: u64,
    grants: HashMap<Key, Stored>,
    outdated: usize,
}

impl Book {
    /// Begins the file anew with what is known.
    fn begin(path: PathBuf, epoch_began_s: u64, grants: HashMap<Key, Stored>) -> io::Result<Book> {
        let file = write_anew(&path, epoch_began_s, &grants)?;
        Ok(Book { path, file, epoch_began_s, grants, outdated: 0 })
    }

    /// After the last change.
    fn close(&mut self) -> io::Result<()> {
        self.file.write_all(&CLOSED)?;
        self.file.sync_data()
    }

    fn append(&mut self, changes: &[GrantDelta]) -> io::Result<()> {
        let now_ms = unix_ms();
        let mut bytes = Vec::with_capacity(changes.len() * RECORD);
        for delta in changes {
            let stored = Stored::at(delta, now_ms);
            bytes.extend(encode(&stored));
            let before = match delta.change {
                Change::Lives => self.grants.insert(key_of(delta), stored),
                Change::Ended => self.grants.remove(&key_of(delta)),
            };
            self.outdated += usize::from(before.is_some()) + usize::from(delta.change == Change::Ended);
        }
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        if self.outdated > OUTDATED_MAX && self.outdated > self.grants.len() {
            self.grants.retain(|_, stored| stored.expires_ms > now_ms);
            self.file = write_anew(&self.path, self.epoch_began_s, &self.grants)?;
            self.outdated = 0;
        }
        Ok(())
    }
}

/// Writes a whole file beside the old one, which it then replaces.
fn write_anew(path: &Path, epoch_began_s: u64, grants: &HashMap<Key, Stored>) -> io::Result<File> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(FILE_MODE).open(&beside)?;
    let mut bytes = header(epoch_began_s).to_vec();
    bytes.extend(grants.values().flat_map(encode));
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()?;
    Ok(file)
}

/// The thread that writes the file. Dropping it writes what is left and ends it.
#[derive(Debug)]
pub(crate) struct GrantKeeper {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GrantKeeper {
    /// Begins the file anew, with what was kept, and follows rings, one for each worker.
    ///
    /// # Errors
    /// The file cannot be written, or no thread started.
    pub(crate) fn start(
        path: &Path,
        kept: Kept,
        (workers, clock): (usize, Clock),
        log: Log,
    ) -> io::Result<(GrantKeeper, Vec<Producer<GrantRecord>>)> {
        let began = kept.epoch_began_s.unwrap_or_else(|| unix_ms() / 1_000);
        let mut book = Book::begin(path.to_owned(), began, kept.grants)?;
        // The file has what old rings had.
        (0..WORKERS_MAX).for_each(|worker| remove_ring(path, worker));
        let (producers, mut rings) = make_rings(path, workers, clock, &log);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("grants".to_owned()).spawn(move || {
            let (mut is_failing, mut is_whole) = (false, true);
            loop {
                let is_last = stopped.load(Ordering::Acquire);
                let mut changes = Vec::new();
                for ring in &mut rings {
                    ring.hold_burst(1_024, |record| changes.extend(record.delta()));
                }
                if !changes.is_empty() {
                    let written = book.append(&changes);
                    is_whole &= written.is_ok();
                    match written {
                        Ok(()) => is_failing = false,
                        Err(error) if !is_failing => {
                            is_failing = true;
                            let path = book.path.display();
                            log.error(&format_args!(
                                "grants: {path}: {error}; make room, or set another [port_control] state"
                            ));
                        }
                        Err(_) => {}
                    }
                    rings.iter_mut().for_each(Consumer::release);
                } else if is_last {
                    if is_whole && let Err(error) = book.close() {
                        log.error(&format_args!("grants: {}: {error}; clients must renew", book.path.display()));
                    }
                    return;
                } else {
                    thread::sleep(POLL);
                }
            }
        })?;
        Ok((GrantKeeper { path: path.to_owned(), stop, thread: Some(thread) }, producers))
    }
}

impl Drop for GrantKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Its panic is in the log.
            let _ = thread.join();
        }
        (0..WORKERS_MAX).for_each(|worker| remove_ring(&self.path, worker));
    }
}
