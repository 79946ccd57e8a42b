//! The file of grants: what port control has granted survives a restart, also kill -9.
//!
//! ```text
//!   header   "NATRIX G" | version | when the common epoch time began, s since 1970
//!   record   one grant as it is now, or its end; with a CRC-32
//!   record   …
//! ```
//!
//! Workers put each change into a ring; one thread appends it and syncs. A file of many outdated
//! records is written anew beside the old one and takes its place. Times in it are those of the
//! system's clock, since they outlive the process. A torn record ends the file.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use mem::ring::Consumer;
use nat::Duration;
use nat::GrantDelta;
use nat::Protocol;
use nat::delta::Change;
use nat::grant::Kind;
use nat::grant::Origin;
use nat::grant::Remote;
use nat::grant::Remotes;
use nat::grant::Requester;
use nat::types::Endpoint;
use nat::types::RealmId;

use crate::log::Log;

#[cfg(test)]
mod tests;

const MAGIC: [u8; 8] = *b"NATRIX G";
const VERSION: u32 = 1;
const HEADER: usize = 24;
const RECORD: usize = 128;
/// Outdated records before the file is written anew.
const OUTDATED_MAX: usize = 4_096;
const POLL: core::time::Duration = core::time::Duration::from_millis(5);

/// Identifies a grant in the file.
type Key = (u16, u8, u32, u16, u8, Option<(u32, u16)>);

fn key_of(delta: &GrantDelta) -> Key {
    let internal = delta.internal;
    let address = internal.address.to_bits();
    (delta.realm.0, delta.protocol as u8, address, internal.port, delta.kind as u8, delta.peer())
}

/// A grant with times of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    delta: GrantDelta,
    expires_ms: u64,
    epoch_began_s: u64,
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
}

impl Kept {
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
        let live = self.grants.values().filter(|stored| stored.expires_ms > now_ms);
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

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn endpoint(&mut self) -> Option<Endpoint> {
        let address = Ipv4Addr::from_bits(u32::from_le_bytes(self.take()?));
        Some(Endpoint::new(address, u16::from_le_bytes(self.take()?)))
    }
}

fn put_endpoint(to: &mut Writer, endpoint: Endpoint) {
    to.put(&endpoint.address.to_bits().to_le_bytes());
    to.put(&endpoint.port.to_le_bytes());
}

fn encode(stored: &Stored) -> [u8; RECORD] {
    let Stored { delta, expires_ms, epoch_began_s } = stored;
    let mut to = Writer(Vec::with_capacity(RECORD));
    to.put(&[u8::from(delta.change == Change::Lives), delta.protocol as u8, delta.origin as u8, delta.kind as u8]);
    to.put(&delta.realm.0.to_le_bytes());
    put_endpoint(&mut to, delta.internal);
    put_endpoint(&mut to, delta.external);
    to.put(&expires_ms.to_le_bytes());
    to.put(&epoch_began_s.to_le_bytes());
    let requester = &delta.requester;
    to.put(&requester.nonce);
    to.put(&requester.address.to_le_bytes());
    to.put(&requester.port.to_le_bytes());
    to.put(&requester.set_size.to_le_bytes());
    to.put(&requester.set_first.to_le_bytes());
    let remotes = delta.remotes.as_slice();
    to.put(&[remotes.len() as u8]);
    for remote in remotes {
        let (address, length) = remote.prefix();
        put_endpoint(&mut to, Endpoint::new(address, remote.port()));
        to.put(&[length]);
    }
    let mut record = [0; RECORD];
    let (body, check) = record.split_at_mut(RECORD - 4);
    for (place, byte) in body.iter_mut().zip(&to.0) {
        *place = *byte;
    }
    check.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<Stored> {
    let (body, check) = record.split_at_checked(RECORD - 4)?;
    if crc32fast::hash(body).to_le_bytes() != *check {
        return None;
    }
    let mut from = Reader(body);
    let change = if from.byte()? == 1 { Change::Lives } else { Change::Ended };
    let protocol = Protocol::from_index(usize::from(from.byte()?))?;
    let (origin, kind) = (Origin::from_number(from.byte()?)?, Kind::from_number(from.byte()?)?);
    let realm = RealmId(u16::from_le_bytes(from.take()?));
    let (internal, external) = (from.endpoint()?, from.endpoint()?);
    let (expires_ms, epoch_began_s) = (u64::from_le_bytes(from.take()?), u64::from_le_bytes(from.take()?));
    let nonce = from.take()?;
    let requester = Requester::new(nonce, from.endpoint()?);
    let (set_size, set_first) = (u16::from_le_bytes(from.take()?), u16::from_le_bytes(from.take()?));
    let mut remotes = Remotes::default();
    for _ in 0..from.byte()? {
        let (endpoint, length) = (from.endpoint()?, from.byte()?);
        remotes.add(Remote::new(endpoint.address, length, endpoint.port)).then_some(())?;
    }
    let requester = requester.in_set(set_first, set_size);
    let (left, epoch_s) = (Duration::ZERO, 0);
    let delta =
        GrantDelta { change, realm, protocol, internal, external, origin, kind, remotes, requester, left, epoch_s };
    Some(Stored { delta, expires_ms, epoch_began_s })
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

fn epoch_of(header: &[u8]) -> Option<u64> {
    let (body, check) = header.split_at_checked(20)?;
    let is_sound = check == crc32fast::hash(body).to_le_bytes() && body.starts_with(&MAGIC);
    let mut from = Reader(body.get(8..)?);
    let version = u32::from_le_bytes(from.take()?);
    let began = u64::from_le_bytes(from.take()?);
    (is_sound && version == VERSION).then_some(began)
}

/// Reads a file; one that is missing or not of this kind keeps nothing.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<Kept> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(error) => return Err(error),
    };
    let mut kept = Kept::default();
    let Some((head, records)) = bytes.split_at_checked(HEADER) else { return Ok(kept) };
    kept.epoch_began_s = epoch_of(head);
    if kept.epoch_began_s.is_none() {
        return Ok(kept);
    }
    for record in records.chunks(RECORD) {
        let Some(stored) = (record.len() == RECORD).then(|| decode(record)).flatten() else {
            kept.is_torn = true;
            break;
        };
        match stored.delta.change {
            Change::Lives => kept.grants.insert(key_of(&stored.delta), stored),
            Change::Ended => kept.grants.remove(&key_of(&stored.delta)),
        };
    }
    Ok(kept)
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

    fn append(&mut self, changes: &[GrantDelta]) -> io::Result<()> {
        let now_ms = unix_ms();
        let mut bytes = Vec::with_capacity(changes.len() * RECORD);
        for delta in changes {
            let expires_ms = now_ms + delta.left.as_micros() / 1_000;
            let epoch_began_s = (now_ms / 1_000).saturating_sub(u64::from(delta.epoch_s));
            let stored = Stored { delta: *delta, expires_ms, epoch_began_s };
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
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&beside)?;
    let mut bytes = header(epoch_began_s).to_vec();
    bytes.extend(grants.values().flat_map(encode));
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()?;
    Ok(file)
}

/// The thread that writes the file. Dropping it writes what is left and ends it.
#[derive(Debug)]
pub(crate) struct GrantKeeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GrantKeeper {
    /// Begins the file anew, with what was kept, and follows the rings of the workers.
    ///
    /// # Errors
    /// The file cannot be written, or no thread started.
    pub(crate) fn start(
        path: &Path,
        kept: Kept,
        mut rings: Vec<Consumer<GrantDelta>>,
        log: Log,
    ) -> io::Result<GrantKeeper> {
        let began = kept.epoch_began_s.unwrap_or_else(|| unix_ms() / 1_000);
        let mut book = Book::begin(path.to_owned(), began, kept.grants)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("grants".to_owned()).spawn(move || {
            let mut is_failing = false;
            loop {
                let is_last = stopped.load(Ordering::Acquire);
                let mut changes = Vec::new();
                for ring in &mut rings {
                    ring.pop_burst(1_024, |change| changes.push(change));
                }
                if !changes.is_empty() {
                    match book.append(&changes) {
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
                } else if is_last {
                    return;
                } else {
                    thread::sleep(POLL);
                }
            }
        })?;
        Ok(GrantKeeper { stop, thread: Some(thread) })
    }
}

impl Drop for GrantKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Its panic is in the log.
            let _ = thread.join();
        }
    }
}
