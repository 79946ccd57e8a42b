//! The files of the journal: their names, and the frames in them.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::FILE_MODE;
use crate::store::catalogue::sync_folder;
use crate::store::error::StoreError;
use crate::store::journal;
use crate::store::journal::FrameRead;
use crate::store::journal::Hash;

/// Name of a segment's file.
pub(crate) fn segment_path(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("segment-{id:08x}"))
}

pub(super) fn journal_path(folder: &Path, first_frame: u64) -> PathBuf {
    folder.join(format!("journal-{first_frame:016x}"))
}

/// The journal files of a store, by the number of their first frame.
pub(crate) fn journals(folder: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("journal-"));
        if let Some(first) = name.and_then(|name| u64::from_str_radix(name, 16).ok()) {
            found.push((first, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The frames after the last segment, in order, while they are whole and continue the chain.
/// Returns the number of bytes after the last whole one.
pub(crate) fn read_frames(
    folder: &Path,
    boot: u32,
    mut next: u64,
    mut last: Hash,
    mut each: impl FnMut(&FrameRead<'_>) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let mut left_over = 0;
    for (_, path) in journals(folder)? {
        let length = fs::metadata(&path).map_err(StoreError::io(&path))?.len();
        let mut reader = JournalFile::open(&path, length)?;
        let mut is_whole = reader.is_journal;
        while is_whole {
            let Some(frame) = reader.next()? else { break };
            if frame.number < next {
                continue;
            }
            if frame.number > next || frame.before != last || frame.boot != boot {
                is_whole = false;
                break;
            }
            (next, last) = (next.saturating_add(1), frame.hash);
            each(&frame)?;
        }
        let rest = if is_whole { reader.left() } else { length };
        left_over += rest;
    }
    Ok(left_over)
}

/// Reads the frames of one file with a buffer of at most one frame and a half.
pub(crate) struct JournalFile {
    path: PathBuf,
    file: File,
    is_journal: bool,
    buffer: Vec<u8>,
    /// Consumed bytes of the buffer.
    at: usize,
    /// Bytes of the file that are not in the buffer.
    unread: u64,
    /// Bytes of it that the disk cannot read.
    lost: u64,
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

impl JournalFile {
    pub(crate) fn open(path: &Path, length: u64) -> Result<JournalFile, StoreError> {
        let file = File::open(path).map_err(StoreError::io(path))?;
        let (path, buffer) = (path.to_owned(), Vec::new());
        let mut reader = JournalFile { path, file, is_journal: false, buffer, at: 0, unread: length, lost: 0 };
        reader.fill(journal::MAGIC.len())?;
        reader.is_journal = reader.buffer.starts_with(&journal::MAGIC);
        if reader.is_journal {
            reader.at = journal::MAGIC.len();
        }
        Ok(reader)
    }

    /// Makes at least `wanted` bytes available if the file has them.
    fn fill(&mut self, wanted: usize) -> Result<(), StoreError> {
        use std::io::Read;
        if self.buffer.len() - self.at >= wanted || self.unread == 0 {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let count = (wanted - self.buffer.len()).max(PIECE) as u64;
        let read = (&self.file).take(count.min(self.unread)).read_to_end(&mut self.buffer);
        match read.map_err(StoreError::io(&self.path)) {
            Ok(0) => self.unread = 0,
            Ok(read) => self.unread -= read as u64,
            // A bad sector: nothing after it.
            Err(error) if error.is_damage() => (self.lost, self.unread) = (self.lost + self.unread, 0),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<Option<FrameRead<'_>>, StoreError> {
        self.fill(journal::HEADER)?;
        let length = self.buffer.get(self.at..self.at + 4).and_then(|bytes| bytes.try_into().ok());
        let length = length.map_or(0, u32::from_le_bytes) as usize;
        if !(journal::HEADER..=journal::FRAME_MAX).contains(&length) {
            return Ok(None);
        }
        self.fill(length)?;
        let Some(frame) = FrameRead::parse(self.buffer.get(self.at..).unwrap_or_default()) else { return Ok(None) };
        self.at += frame.length;
        Ok(Some(frame))
    }

    /// Moves to the next whole frame of a boot, past bytes that are none. Returns false if there is
    /// none. `budget` is how many bytes of what looks like a frame and is none may be read.
    pub(crate) fn search(&mut self, boot: u32, budget: &mut u64) -> Result<bool, StoreError> {
        loop {
            self.fill(journal::HEADER)?;
            let Some(header) = self.buffer.get(self.at..self.at + journal::HEADER) else { return Ok(false) };
            if let Some(length) = journal::length_of(header, boot) {
                self.fill(length)?;
                if let Some(bytes) = self.buffer.get(self.at..self.at + length) {
                    if FrameRead::parse(bytes).is_some() {
                        return Ok(true);
                    }
                    // Bytes that only look like headers could make this take the square of time.
                    *budget = budget.saturating_sub(length as u64);
                    if *budget == 0 {
                        return Ok(false);
                    }
                }
            }
            self.at += journal::skipped(&self.buffer[self.at..]);
        }
    }

    /// Bytes that are not in a whole frame.
    fn left(&self) -> u64 {
        self.lost + self.unread + (self.buffer.len() - self.at) as u64
    }
}

/// Makes the journal of the frames from `first` on.
pub(super) fn create_journal(folder: &Path, first: u64) -> Result<(PathBuf, File), StoreError> {
    let path = journal_path(folder, first);
    let open = || {
        let mut file = File::options().create(true).append(true).mode(FILE_MODE).open(&path)?;
        file.set_len(0)?;
        file.write_all(&journal::MAGIC)?;
        Ok(file)
    };
    let file = open().map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    Ok((path, file))
}
