//! The folder of a store: one writer at a time, and nothing in it that is not the store's.

use std::collections::BTreeSet;
use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::aside;
use super::catalogue;
use super::catalogue::Catalogue;
use super::error::StoreError;
use super::follow;
use crate::FILE_MODE;
use crate::FOLDER_MODE;

/// Keeps other writers out of a folder until it is dropped.
#[derive(Debug)]
pub(super) struct FolderLock(File);

impl FolderLock {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    ///
    /// Another writer has it; it has files that are not of a store; or it cannot be made or read.
    pub(super) fn of(folder: &Path) -> Result<FolderLock, StoreError> {
        let error = StoreError::io(folder);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(&error)?;
        // A store that lost its catalogue is one, too.
        let is_store = [catalogue::NAME, catalogue::COPY].iter().any(|name| folder.join(name).exists());
        if !is_store && !aside::has_store(folder) {
            let ours = ["lock", catalogue::KEY, "catalogue.new"];
            for entry in fs::read_dir(folder).map_err(&error)? {
                let name = entry.map_err(&error)?.file_name();
                let is_ours = ours.iter().any(|our| name == *our) || name.to_str().is_some_and(aside::is_place);
                if !is_ours {
                    return Err(StoreError::Foreign { path: folder.to_owned() });
                }
            }
        }
        let path = folder.join("lock");
        let lock =
            File::options().create(true).append(true).mode(FILE_MODE).open(&path).map_err(StoreError::io(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(FolderLock(lock)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(StoreError::Io { path, source }),
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process has it open too until it runs another
        // program, and the lock belongs to all processes that have it open.
        let _ = self.0.unlock();
    }
}

/// Makes a file, or empties it.
pub(super) fn new_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

/// Removes files of work that was not completed, and files that the catalogue says are gone.
pub(super) fn clean(folder: &Path, catalogue: &Catalogue) -> Result<(), StoreError> {
    let known: BTreeSet<u64> = catalogue.segments.values().map(|segment| segment.id).collect();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let segment = name.strip_prefix("segment-").and_then(|id| u64::from_str_radix(id, 16).ok());
        let is_incomplete = name.strip_prefix(follow::NEW).is_some_and(|name| name.starts_with(follow::CURSOR))
            || name.ends_with(".new") && !name.starts_with(follow::CURSOR);
        if is_incomplete || segment.is_some_and(|id| !known.contains(&id)) {
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
    }
    Ok(())
}

/// True if the path leads to this open file: it was not deleted, moved or replaced. What cannot be
/// read is no proof of that.
pub(crate) fn is_file_of(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child process has between `fork` and `exec`.
    #[test]
    fn a_lock_ends_with_its_owner_though_a_child_has_the_file_open() {
        let folder = std::env::temp_dir().join(format!("natrix-folder-lock-{}", std::process::id()));
        let lock = FolderLock::of(&folder).unwrap();
        let inherited = lock.0.try_clone().unwrap();
        assert!(matches!(FolderLock::of(&folder), Err(StoreError::Locked { .. })));
        drop(lock);
        assert!(FolderLock::of(&folder).is_ok());
        drop(inherited);
        fs::remove_dir_all(&folder).unwrap();
    }
}
