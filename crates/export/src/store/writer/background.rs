//! Work that a thread of its own may do: sealing a window, and merging segments.

use core::sync::atomic::AtomicBool;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::thread::JoinHandle;

use super::segment_path;
use crate::store::builder::Window;
use crate::store::catalogue::CatalogueWriter;
use crate::store::catalogue::Entry;
use crate::store::catalogue::Segment;
use crate::store::catalogue::sync_folder;
use crate::store::error::StoreError;
use crate::store::journal::Hash;
use crate::store::merge;
use crate::store::segment;
use crate::store::segment::SegmentFile;
use crate::store::segment::Written;

/// A window that becomes a segment.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) path: PathBuf,
    pub(super) window: Window,
    pub(super) frames: (u64, u64),
    pub(super) last_frame: Hash,
    pub(super) hashes: Vec<Hash>,
    pub(super) boot: u32,
}

impl Job {
    pub(super) fn run(&self) -> Result<Written, StoreError> {
        let Window { rows, others, names, .. } = &self.window;
        segment::write(&self.path, rows, others, (names, self.frames.1), &self.hashes)
    }
}

/// Work in progress, by a thread or already done.
#[derive(Debug)]
pub(super) enum Work<T> {
    Thread(JoinHandle<T>),
    Done(T),
}

impl<T: Send + 'static> Work<T> {
    pub(super) fn start(has_threads: bool, work: impl FnOnce() -> T + Send + 'static) -> Work<T> {
        if !has_threads {
            return Work::Done(work());
        }
        Work::Thread(thread::spawn(work))
    }

    pub(super) fn is_finished(&self) -> bool {
        match self {
            Work::Thread(thread) => thread.is_finished(),
            Work::Done(_) => true,
        }
    }

    /// Waits, and forgets what came of it.
    pub(super) fn end(self) {
        if let Work::Thread(thread) = self {
            // A panic there was reported by its own message.
            let _ = thread.join();
        }
    }

    pub(super) fn wait(self) -> T {
        match self {
            Work::Thread(thread) => match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Work::Done(result) => result,
        }
    }
}

pub(super) type Sealing = Work<(Box<Job>, Result<Written, StoreError>)>;
pub(super) type Merging = Work<(Box<Segment>, Result<Written, StoreError>)>;

/// Merges segment files to one.
pub(super) fn merge_files(
    path: &Path,
    sources: &[(PathBuf, Written)],
    is_ending: &AtomicBool,
) -> Result<Written, StoreError> {
    let open = |(path, written): &(PathBuf, Written)| SegmentFile::open(path, written.footer_offset, written.bytes);
    let mut segments = sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    merge::merge(path, &mut segments, is_ending)
}

/// Gives a written segment its name and enters it in the catalogue.
pub(super) fn enter(
    catalogue: &mut CatalogueWriter,
    folder: &Path,
    job: &Job,
    written: Written,
) -> Result<(), StoreError> {
    let id = catalogue.catalogue.next_segment;
    let path = segment_path(folder, id);
    fs::rename(&job.path, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    let segment = Segment {
        id,
        boot: job.boot,
        frames: job.frames,
        last_frame: job.last_frame,
        is_merged: false,
        coverage: job.window.coverage.clone(),
        written,
    };
    catalogue.append(Entry::Sealed(Box::new(segment)))
}
