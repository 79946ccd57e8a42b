//! Cursors: the files that have the positions of followers, and what they keep from being deleted.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::SystemTime;

use super::Ends;
use super::Position;
use super::PutAside;
use super::SPOOL;
use super::Start;
use super::files;
use crate::store::error::StoreError;
use crate::store::folder::new_file;

/// Names of cursors begin with this.
pub(crate) const CURSOR: &str = "cursor-";
/// A cursor while it is written: names of sinks may end with anything.
pub(crate) const NEW: &str = "new-";
/// A longer file is damage.
const CURSOR_MAX: u64 = 64 << 10;

/// The file of a follower's position.
#[derive(Clone, Debug)]
pub struct CursorFile {
    path: PathBuf,
    /// Bytes that may be kept for it.
    spool_bytes: u64,
}

impl CursorFile {
    /// The cursor with this name in a store. Nothing is written yet.
    pub fn new(folder: &Path, name: &str, spool_bytes: u64) -> CursorFile {
        CursorFile { path: folder.join(format!("{CURSOR}{name}")), spool_bytes }
    }

    /// Reads where its follower begins.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<Start, StoreError> {
        Ok(match read_cursor(&self.path)? {
            Kept::Nothing => Start::Now,
            Kept::At(position, _) => Start::At(position),
            Kept::Damaged => Start::Oldest,
        })
    }

    /// When it was written last, µs since 1970.
    pub(crate) fn written_unix_us(&self) -> Option<u64> {
        let modified = fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok()?;
        u64::try_from(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_micros()).ok()
    }

    /// Writes the position. A power failure may leave the one before, but nothing else.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, position: &Position) -> Result<(), StoreError> {
        let mut text = format!("natrix cursor\nspool {}\nframe {}\n", self.spool_bytes, position.frame);
        if let Some(boot) = position.boot {
            // Builds before 0.1.0 read the first three words only.
            text += &format!("run {boot} {}", u8::from(position.is_from_start));
            match position.ends {
                Ends::Pending => {}
                Ends::From(address) => text += &format!(" ends {address}"),
                Ends::Reported => text += " ends reported",
            }
            if position.has_gap {
                text += " gap 1";
            }
            if position.datagram != 0 {
                text += &format!(" datagram {}", position.datagram);
            }
            text += "\n";
        }
        for (worker, next) in &position.workers {
            text += &format!("worker {worker} {next}\n");
        }
        if position.is_unknown {
            text += "begin unknown 1\n";
        }
        if position.boot.is_none() && position.datagram != 0 {
            text += &format!("begin datagram {}\n", position.datagram);
        }
        if let Some(PutAside { place, unix_us, is_known, gaps }) = &position.aside {
            text += &format!("aside {place} {unix_us} {}\n", u8::from(*is_known));
            for (worker, first, count) in gaps {
                text += &format!("unsent {worker} {first} {count}\n");
            }
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let new = self.path.with_file_name(format!("{NEW}{name}"));
        let write = |mut file: File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        // Some file systems (XFS) keep a new name over a power cut, but an empty file with it,
        // unless it was synced before.
        new_file(&new).and_then(write).map_err(StoreError::io(&new))?;
        fs::rename(&new, &self.path).map_err(StoreError::io(&self.path))
    }

    /// Deletes what no cursor of the store needs.
    ///
    /// # Errors
    /// The folder cannot be read, or a file not deleted.
    pub fn trim(&self) -> Result<(), StoreError> {
        self.path.parent().map_or(Ok(()), |folder| trim(folder, None))
    }

    /// Deletes the cursors of a store that have none of these names.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn keep_only(folder: &Path, names: &[&str]) -> Result<(), StoreError> {
        for path in cursor_paths(folder)? {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(CURSOR));
            if name.is_some_and(|name| !names.contains(&name)) {
                fs::remove_file(&path).map_err(StoreError::io(&path))?;
            }
        }
        Ok(())
    }
}

fn cursor_paths(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(CURSOR) {
            found.push(path);
        }
    }
    Ok(found)
}

/// What the file of a cursor has.
pub(super) enum Kept {
    /// It is not there.
    Nothing,
    /// It is not what was written.
    Damaged,
    /// A position, and the bytes that may be kept for it.
    At(Position, u64),
}

pub(super) fn read_cursor(path: &Path) -> Result<Kept, StoreError> {
    let read = || {
        let is_long = fs::metadata(path)?.len() > CURSOR_MAX;
        if is_long { Ok(Vec::new()) } else { fs::read(path) }
    };
    let bytes = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::Nothing),
        bytes => bytes.map_err(StoreError::io(path)),
    };
    let bytes = match bytes {
        Err(error) if error.is_damage() => return Ok(Kept::Damaged),
        bytes => bytes?,
    };
    let parsed = core::str::from_utf8(&bytes).ok().and_then(parse_cursor);
    Ok(parsed.map_or(Kept::Damaged, |(position, spool_bytes)| Kept::At(position, spool_bytes)))
}

pub(super) fn parse_cursor(text: &str) -> Option<(Position, u64)> {
    let mut lines = text.lines();
    (lines.next()? == "natrix cursor").then_some(())?;
    let spool_bytes = lines.next()?.strip_prefix("spool ")?.parse().ok()?;
    let mut position = Position { frame: lines.next()?.strip_prefix("frame ")?.parse().ok()?, ..Position::default() };
    for line in lines {
        let mut words = line.split(' ');
        match (words.next()?, words.next()?, words.next()?) {
            ("run", boot, start) => {
                (position.boot, position.is_from_start) = (Some(boot.parse().ok()?), start == "1");
                while let (Some(name), Some(value)) = (words.next(), words.next()) {
                    match (name, value) {
                        ("ends", "reported") => position.ends = Ends::Reported,
                        ("ends", address) => position.ends = Ends::From(address.parse().ok()?),
                        ("gap", _) => position.has_gap = true,
                        ("datagram", number) => position.datagram = number.parse().ok()?,
                        // Of a later release.
                        _ => {}
                    }
                }
            }
            ("worker", worker, next) => {
                position.workers.insert(worker.parse().ok()?, next.parse().ok()?);
            }
            ("begin", "unknown", _) => position.is_unknown = true,
            ("begin", "datagram", number) => position.datagram = number.parse().ok()?,
            ("aside", place, unix_us) => {
                let (place, unix_us) = (place.to_owned(), unix_us.parse().ok()?);
                let is_known = words.next()? == "1";
                position.aside = Some(PutAside { place, unix_us, is_known, gaps: Vec::new() });
            }
            ("unsent", worker, first) => {
                let (worker, first, count) = (worker.parse().ok()?, first.parse().ok()?, words.next()?.parse().ok()?);
                position.aside.as_mut()?.gaps.push((worker, first, count));
            }
            _ => return None,
        }
    }
    Some((position, spool_bytes))
}

/// Deletes a journal whose window is sealed, or keeps it for followers. `next` is the frame after
/// all that are sealed.
pub(crate) fn retire(folder: &Path, first: u64, next: u64, path: &Path) -> Result<(), StoreError> {
    let error = StoreError::io(path);
    if first >= next || cursor_paths(folder)?.is_empty() {
        return fs::remove_file(path).map_err(error);
    }
    fs::rename(path, folder.join(format!("{SPOOL}{first:016x}"))).map_err(error)
}

/// Deletes spool files that no cursor needs, or that are beyond the bytes of all cursors that do,
/// or older than the retention.
pub(crate) fn trim(folder: &Path, retention_us: Option<u64>) -> Result<(), StoreError> {
    let mut cursors = Vec::new();
    for path in cursor_paths(folder)? {
        match read_cursor(&path)? {
            Kept::Nothing => {}
            Kept::At(position, bytes) => cursors.push((position.frame, bytes)),
            // Its sink begins with the oldest, and writes it soon.
            Kept::Damaged => cursors.push((0, u64::MAX)),
        }
    }
    let (mut until, mut bytes) = (u64::MAX, 0_u64);
    for (first, path) in files(folder)?.into_iter().rev() {
        let is_spool = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(SPOOL));
        if is_spool && let Ok(metadata) = fs::metadata(&path) {
            bytes = bytes.saturating_add(metadata.len());
            let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            let is_old = retention_us.is_some_and(|most| age.is_some_and(|age| age.as_micros() > u128::from(most)));
            let is_needed = cursors.iter().any(|(frame, most)| *frame < until && bytes <= *most);
            if is_old || !is_needed {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::io(&path)(error)),
                    _ => {}
                }
            }
        }
        until = first;
    }
    Ok(())
}
