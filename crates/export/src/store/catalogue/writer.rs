//! Appends entries, keeps the copy and signs the head.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use ed25519_dalek::SigningKey;

use super::COPY;
use super::Catalogue;
use super::FORMAT;
use super::HEAD;
use super::MAGIC;
use super::NAME;
use super::NO_HEAD;
use super::chained;
use super::entries::Entry;
use super::head::Head;
use super::keys::random_bytes;
use crate::store::aside;
use crate::store::error::StoreError;
use crate::store::folder::is_file_of;
use crate::store::folder::new_file;
use crate::store::journal::Hash;
use crate::store::lookups::Lines;

/// Begins the catalogue of a new store.
pub(crate) fn create(folder: &Path, key: &SigningKey, unix_us: u64) -> Result<(), StoreError> {
    let path = folder.join(NAME);
    let new = folder.join("catalogue.new");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let created = Entry::Created { store: random_bytes(folder)?, key: key.verifying_key().to_bytes(), unix_us };
    put_entry(&mut bytes, &created, &[0; 32]);
    write_whole(&new, &bytes)?;
    fs::rename(&new, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry, before: &Hash) -> Hash {
    let mut content = Vec::new();
    entry.put(&mut content);
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&content).to_le_bytes());
    out.extend_from_slice(&content);
    let hash = chained(before, &content);
    out.extend_from_slice(&hash);
    hash
}

/// Writes and syncs a file.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let error = StoreError::io(path);
    let mut file = new_file(path).map_err(&error)?;
    file.write_all(bytes).map_err(&error)?;
    file.sync_all().map_err(&error)
}

/// Syncs the names in a folder.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(StoreError::io(folder))
}

/// The catalogue of a store that is written.
#[derive(Debug)]
pub(crate) struct CatalogueWriter {
    folder: PathBuf,
    pub(crate) file: File,
    pub(crate) catalogue: Catalogue,
    key: SigningKey,
    /// The frames that are on the disk, and the last one of them.
    synced: (u64, Hash),
    /// The signed head as it was found.
    found: Option<Head>,
    /// The record of lookups.
    lookups: Lines,
}

/// Puts the copy of the catalogue into its place if it is missing or damaged. The damaged one is
/// kept in a folder of the store. Returns true if it was missing.
///
/// # Errors
/// The disk failed.
pub(crate) fn restore(folder: &Path) -> Result<bool, StoreError> {
    let Some(length) = length_of_better_copy(folder) else { return Ok(false) };
    let (path, copy) = (folder.join(NAME), folder.join(COPY));
    let mut bytes = fs::read(&copy).map_err(StoreError::io(&copy))?;
    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    let is_missing = !path.exists();
    if !is_missing {
        aside::link(folder, core::slice::from_ref(&path))?;
    }
    let new = folder.join("catalogue.new");
    write_whole(&new, &bytes)?;
    fs::rename(&new, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    Ok(is_missing)
}

/// How many bytes of the copy to use instead of the catalogue; None if the catalogue is whole, or
/// the copy no better.
fn length_of_better_copy(folder: &Path) -> Option<u64> {
    let mut hashes: Vec<Hash> = Vec::new();
    let (copy, _) = Catalogue::read_file(folder, COPY, |_, hash| hashes.push(*hash)).ok()?;
    let head = Head::text_in(folder);
    let signed = Head::entries_in(head.as_deref(), folder, &copy);
    let is_better = copy.entries >= signed.unwrap_or(0);
    let is_better = is_better
        && match Catalogue::read(folder, |_, _| {}) {
            // The catalogue has more, or the copy is of another store.
            Ok((known, _)) if known.store != copy.store || known.entries >= copy.entries => false,
            Ok((known, length)) => {
                let continues = hashes.get((known.entries - 1) as usize) == Some(&known.hash);
                let is_damaged = length > known.length || signed.is_some_and(|entries| known.entries < entries);
                continues && is_damaged
            }
            Err(StoreError::Later { .. }) => false,
            // A later release writes the copy, too.
            Err(_) => true,
        };
    is_better.then_some(copy.length)
}

impl CatalogueWriter {
    /// Opens the catalogue; a torn entry at its end is cut off.
    pub(crate) fn open(folder: &Path, key: SigningKey) -> Result<CatalogueWriter, StoreError> {
        let (catalogue, length) = Catalogue::read(folder, |_, _| {})?;
        let path = folder.join(NAME);
        let error = StoreError::io(&path);
        let signed = Head::read(&folder.join(HEAD), &catalogue.key).ok();
        if let Some(head) = signed.as_ref().filter(|head| head.entries > catalogue.entries) {
            let what = format!("{} entries instead of {} in its signed head", catalogue.entries, head.entries);
            return Err(StoreError::damaged(&path, what));
        }
        if length > catalogue.length && signed.is_none() {
            // Nothing says that no whole entry follows.
            let what = format!("entry {} cannot be read, and there is no head", catalogue.entries + 1);
            return Err(StoreError::damaged(&path, what));
        }
        if key.verifying_key().to_bytes() != catalogue.key {
            let what = "it is not the key of this store".to_owned();
            return Err(StoreError::Key { path: folder.to_owned(), what });
        }
        let file = File::options().append(true).open(&path).map_err(&error)?;
        if length > catalogue.length {
            file.set_len(catalogue.length).map_err(&error)?;
            file.sync_all().map_err(&error)?;
        }
        let found = signed.filter(|head| head.store == catalogue.store);
        let lookups = Lines::after(found.map_or((0, [0; 32]), |head| head.lookups));
        let folder = folder.to_owned();
        let writer = CatalogueWriter { folder, file, catalogue, key, synced: (0, [0; 32]), found, lookups };
        let copy = writer.folder.join(COPY);
        if fs::read(&path).map_err(&error)? != fs::read(&copy).unwrap_or_default() {
            // Without it a start goes on as with it.
            let _ = writer.write_copy();
        }
        Ok(writer)
    }

    /// Writes the whole copy.
    fn write_copy(&self) -> Result<(), StoreError> {
        let (path, copy) = (self.folder.join(NAME), self.folder.join(COPY));
        let mut bytes = fs::read(&path).map_err(StoreError::io(&path))?;
        bytes.truncate(usize::try_from(self.catalogue.length).unwrap_or(usize::MAX));
        let new = self.folder.join("catalogue.copy.new");
        write_whole(&new, &bytes)?;
        fs::rename(&new, &copy).map_err(StoreError::io(&copy))?;
        sync_folder(&self.folder)
    }

    /// Appends an entry to the copy. One that could not be written is written with the next one:
    /// the catalogue has it.
    fn append_to_copy(&self, bytes: &[u8]) {
        let before = self.catalogue.length - bytes.len() as u64;
        let append = || {
            let mut copy = File::options().append(true).open(self.folder.join(COPY))?;
            if copy.metadata()?.len() != before {
                return Err(std::io::Error::other("it has other entries"));
            }
            copy.write_all(bytes)?;
            copy.sync_all()
        };
        if append().is_err() {
            let _ = self.write_copy();
        }
    }

    /// True if the file that is written is still the one of the folder.
    pub(crate) fn is_in_place(&self) -> bool {
        is_file_of(&self.file, &self.folder.join(NAME))
    }

    /// Of these frames from `first` on, the first that is not what the signed head says was on the
    /// disk, and how many frames that head has. Without a head, the frame after these and
    /// [`NO_HEAD`]: frames and head may have been removed together.
    pub(crate) fn first_wrong(&self, first: u64, hashes: &[Hash]) -> Option<(u64, u64)> {
        let Some(Head { frames, frame, .. }) = self.found else {
            return Some((first + hashes.len() as u64, NO_HEAD));
        };
        let place = frames.checked_sub(first)?.checked_sub(1)?;
        match usize::try_from(place).ok().and_then(|place| hashes.get(place)) {
            Some(hash) if *hash == frame => None,
            Some(_) => Some((frames - 1, frames)),
            None => Some((first + hashes.len() as u64, frames)),
        }
    }

    /// Signs the head of a store that has had no run yet. If it is missing later, it was removed.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn sign_first(&mut self) -> Result<(), StoreError> {
        if !self.catalogue.boots.is_empty() {
            return Ok(());
        }
        self.sign()?;
        sync_folder(&self.folder)
    }

    /// Signs a head with the frames that are now on the disk.
    pub(crate) fn sign_synced(&mut self, frames: u64, last: Hash) {
        self.synced = (frames, last);
        // As for an entry, an older head is no fault.
        let _ = self.sign();
    }

    /// Appends an entry to the disk and signs the new head.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let path = self.folder.join(NAME);
        let mut bytes = Vec::new();
        let hash = put_entry(&mut bytes, &entry, &self.catalogue.hash);
        let written = (&self.file).write_all(&bytes).and_then(|()| self.file.sync_all());
        if let Err(source) = written {
            // What was written in part is cut off, or at the next start.
            let _ = self.file.set_len(self.catalogue.length);
            return Err(StoreError::Io { path, source });
        }
        self.catalogue.length += bytes.len() as u64;
        self.catalogue
            .add(entry, hash)
            .ok_or_else(|| StoreError::damaged(&path, "a new entry contradicts the earlier ones"))?;
        self.append_to_copy(&bytes);
        // The entry counts already. A head that could not be written is older than the catalogue,
        // which every reader accepts, and the next entry writes it again.
        let _ = self.sign();
        Ok(())
    }

    /// Writes the signed head.
    fn sign(&mut self) -> Result<(), StoreError> {
        let Catalogue { entries, hash, next_frame, last_frame, store, .. } = self.catalogue;
        let sealed = (next_frame, last_frame);
        let (frames, frame) = if self.synced.0 > next_frame { self.synced } else { sealed };
        // What cannot be read now is in the next head.
        let _ = self.lookups.read_on(&self.folder);
        let head = Head { store, entries, hash, frames, frame, lookups: self.lookups.signed() };
        let (new, path) = (self.folder.join("head.new"), self.folder.join(HEAD));
        // Some file systems (XFS) keep a new name over a power cut, but an empty file with it,
        // unless it was synced before.
        write_whole(&new, head.text(&self.key).as_bytes())?;
        fs::rename(&new, &path).map_err(StoreError::io(&path))
    }
}
