//! Why a store cannot be read or written.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why a store cannot be read or written. `Display` prints one sentence with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("store {path}: {source}; check the folder, its permissions and the disk", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder has no store.
    #[error("store {path}: no store of Natrix here; give the folder of [log.store] path", path = .path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// A later release wrote it.
    #[error("store {path}: written in format {version} by a later release; use that release", path = .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Number of its format.
        version: u16,
    },
    /// A later release wrote a part of it.
    #[error("store {path}: {what} is of a later release; use that release, or another folder", path = .path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// The part.
        what: String,
    },
    /// Another process writes it.
    #[error("store {path}: another process is writing to it; stop that process or use another folder", path = .path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The files that this process writes are no longer those of the folder.
    #[error(
        "store {path}: its files were moved or deleted while Natrix wrote to them, so nothing is recorded; put the \
         folder back, or if it is lost, restart Natrix with an empty folder",
        path = .path.display()
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The content is not what was written.
    #[error("store {path}: damaged: {what}; run natrix log verify", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The place and the problem.
        what: String,
    },
    /// There are more holders than the caller takes.
    #[error("more than {max} holders; name a port or a shorter time, or use natrix log export")]
    TooMany {
        /// As many were wanted.
        max: usize,
    },
    /// The caller no longer wants the answer.
    #[error("store {path}: the search was ended; ask again", path = .path.display())]
    Ended {
        /// The folder.
        path: PathBuf,
    },
    /// The head to verify against is none.
    #[error("head {path}: {what}; give a file or text of natrix log head", path = .path.display())]
    Head {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// No key signs the head.
    #[error("signing key {path}: {what}; restore the key, or begin a new store", path = .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
}

impl StoreError {
    /// True if a file is missing, or is not what was written. Not if the system refuses, or if a
    /// later release wrote it.
    pub(crate) fn is_damage(&self) -> bool {
        use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
        // What a disk with bad sectors and a damaged file system say.
        let of_disk = [Errno::IO, Errno::BADMSG, Errno::UCLEAN].map(Errno::raw_os_error);
        match self {
            StoreError::Damaged { .. } => true,
            StoreError::Io { source, .. } => {
                matches!(source.kind(), NotFound | UnexpectedEof | InvalidData)
                    || source.raw_os_error().is_some_and(|code| of_disk.contains(&code))
            }
            _ => false,
        }
    }

    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> StoreError + '_ {
        move |source| StoreError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: path.to_owned(), what: what.into() }
    }
}
