//! Damaged files that a start cannot use. They stay in a folder of the store until they are as old
//! as the retention: they may have the only record of something.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::SystemTime;

use super::catalogue;
use super::catalogue::Catalogue;
use super::catalogue::sync_folder;
use super::error::StoreError;
use super::follow;
use super::follow::Unsent;
use super::journal;
use super::lookups;
use super::rings::RING;
use super::rings::Rings;
use super::segment;
use crate::FOLDER_MODE;

/// Folders of single files begin with this, and a number follows.
const FILES: &str = "damaged-";
/// The same for all files of a store.
const STORE: &str = "damaged-store-";
/// Files of a store have these names, or begin with the second ones.
const NAMES: [&str; 6] = [catalogue::COPY, catalogue::HEAD, lookups::NAME, "sealing.new", "merging.new", "journal.new"];
const BEGINNINGS: [&str; 4] = ["journal-", "spool-", "segment-", follow::CURSOR];

/// True if this is the name of a folder with damaged files.
pub(super) fn is_place(name: &str) -> bool {
    name.starts_with(FILES)
}

/// True if it has a whole store.
pub(super) fn is_store_place(name: &str) -> bool {
    name.starts_with(STORE)
}

/// The folders with damaged files, in no order.
///
/// # Errors
/// The store cannot be listed.
pub(super) fn places(folder: &Path) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let entry = entry.map_err(StoreError::io(folder))?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        found.extend(name.to_str().filter(|name| is_folder && is_place(name)).map(str::to_owned));
    }
    Ok(found)
}

/// The folders that the catalogue does not name yet.
///
/// # Errors
/// The store cannot be listed.
pub(super) fn unrecorded(folder: &Path, known: &Catalogue) -> Result<Vec<String>, StoreError> {
    let recorded: BTreeSet<&str> = known.asides.iter().map(|aside| aside.place.as_str()).collect();
    let mut places = places(folder)?;
    places.retain(|place| !recorded.contains(place.as_str()));
    places.sort_unstable();
    Ok(places)
}

/// Makes the next folder whose name begins so.
fn make(folder: &Path, beginning: &str) -> Result<PathBuf, StoreError> {
    let mut number = 1_u32;
    loop {
        let path = folder.join(format!("{beginning}{number}"));
        match DirBuilder::new().mode(FOLDER_MODE).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(StoreError::io(&path)(error)),
        }
    }
}

/// Keeps these files under their names in a new folder of the store, also when they are replaced or
/// deleted. Returns its name.
///
/// # Errors
/// The disk failed.
pub(super) fn link(folder: &Path, paths: &[PathBuf]) -> Result<String, StoreError> {
    let place = make(folder, FILES)?;
    for path in paths {
        let kept = place.join(path.file_name().unwrap_or_default());
        // Some file systems have no second name for a file.
        fs::hard_link(path, &kept).or_else(|_| fs::copy(path, &kept).map(drop)).map_err(StoreError::io(path))?;
    }
    sync_folder(&place)?;
    sync_folder(folder)?;
    Ok(place.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Moves all files of a store into a new folder of it, and its rings from `rings_folder` with what
/// was in memory only. Its key stays, unless it `is_key_damaged`. Returns what its sinks had not
/// sent.
///
/// # Errors
/// The disk failed. The next start moves the rest.
pub(super) fn keep_store(
    folder: &Path,
    rings_folder: &Path,
    is_key_damaged: bool,
    unix_us: u64,
) -> Result<Unsent, StoreError> {
    let mut moved: Vec<OsString> = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let name = entry.map_err(StoreError::io(folder))?.file_name();
        if name.to_str().is_some_and(is_of_store) {
            moved.push(name);
        }
    }
    if is_key_damaged {
        moved.push(catalogue::KEY.into());
    }
    // The last one: without it the rest would belong to no run.
    moved.push(catalogue::NAME.into());
    let place = make(folder, STORE)?;
    for name in &moved {
        let path = folder.join(name);
        match fs::rename(&path, place.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::io(&path)(error)),
            _ => {}
        }
    }
    sync_folder(&place)?;
    sync_folder(folder)?;
    let remains = Catalogue::remains_in(&place);
    let rings = remains.map(|(store, _)| Rings::new(rings_folder, folder, &store).put_aside(&place));
    let (rings, last_run) = (rings.unwrap_or_default(), remains.map_or(0, |(_, run)| run));
    let names = moved.iter().filter_map(|name| name.to_str()).filter(|name| name.starts_with(follow::CURSOR));
    let names: Vec<String> = names.map(str::to_owned).collect();
    follow::unsent_in(&place, &names, (&rings, last_run), unix_us)
}

fn is_of_store(name: &str) -> bool {
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// True if a folder has files of a store, whatever its catalogue is.
pub(super) fn has_store(folder: &Path) -> bool {
    let begins = |path: &Path, with: &[u8]| {
        let mut bytes = vec![0; with.len()];
        File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).is_ok() && bytes == with
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (name.starts_with("journal-") && begins(&path, &journal::MAGIC))
            || (name.starts_with("segment-") && begins(&path, &segment::MAGIC))
            || (name == catalogue::HEAD && begins(&path, b"natrix log head\n"))
    })
}

/// Deletes records in damaged files that are older than the retention. Where they end is not known:
/// a file was written last after that.
///
/// # Errors
/// A folder cannot be read, or a file not deleted.
pub(super) fn expire(folder: &Path, retention_us: u64) -> Result<(), StoreError> {
    for place in places(folder)? {
        let place = folder.join(place);
        for entry in fs::read_dir(&place).map_err(StoreError::io(&place))? {
            let entry = entry.map_err(StoreError::io(&place))?;
            let has_records = entry.file_name().to_str().is_some_and(|name| {
                let beginnings = ["journal-", "spool-", "segment-", RING];
                beginnings.iter().any(|beginning| name.starts_with(beginning))
            });
            let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
            if has_records && age.is_some_and(|age| age.as_micros() > u128::from(retention_us)) {
                let path = entry.path();
                fs::remove_file(&path).map_err(StoreError::io(&path))?;
            }
        }
        // It stays if it has something else.
        let _ = fs::remove_dir(&place);
    }
    Ok(())
}
