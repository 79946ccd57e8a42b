//! Room for the next start: a file without content that takes it, and that is removed when a start
//! finds the disk full.
//!
//! A start writes what the killed process had in its rings, a segment of the journal, and some
//! entries of the catalogue. Without room for that there would be no instance, and no traffic.

use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::error::StoreError;
use crate::FILE_MODE;

/// Name of the file.
pub(super) const NAME: &str = "reserve";
/// No more than this part of a file system.
const PART: u64 = 16;
/// Less than this is of no use.
const LEAST: u64 = 64 << 10;

/// Takes room for the next start, up to `bytes`, and half of what is free at most. What an earlier
/// call took stays.
pub(super) fn keep(folder: &Path, bytes: u64) {
    let path = folder.join(NAME);
    let Ok(disk) = rustix::fs::statvfs(folder) else { return };
    let taken = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    let of = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let free = of(disk.f_bavail).saturating_add(taken);
    let bytes = bytes.min(of(disk.f_blocks) / PART).min(free / 2);
    if bytes < LEAST || bytes <= taken {
        return;
    }
    let Ok(file) = File::options().write(true).create(true).truncate(false).mode(FILE_MODE).open(&path) else { return };
    // Not every file system can do it.
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).is_err() {
        let _ = file.set_len(taken);
        if taken == 0 {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Gives the room back. Returns false if there was none.
pub(super) fn release(folder: &Path) -> bool {
    let path = folder.join(NAME);
    let has_room = fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.len() > 0);
    has_room && fs::remove_file(&path).is_ok()
}

/// True if the disk, or what a user may use of it, is full.
pub(super) fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if is_no_room(source))
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
