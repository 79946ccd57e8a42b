//! Devices under test: started with an empty table, emptied between trials, described in every result.

mod natrix;
mod netfilter;

use std::io;
use std::path::PathBuf;

use serde::Serialize;

pub use natrix::Natrix;
pub use netfilter::Netfilter;

use crate::topology::TopologyError;

/// What a device is to be set up for. The same for each, so that results can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Sessions it has to hold.
    pub sessions: u64,
    /// External addresses it has.
    pub external_addresses: u32,
    /// Idle time of UDP, longer than any trial.
    pub udp_timeout_seconds: u32,
    /// CPU it runs on.
    pub cpu: usize,
}

/// Why a device does not do what it has to.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A command around it failed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It does not start.
    #[error("device {device}: does not start ({told}); see {log}", log = .log.display())]
    Start {
        /// Which.
        device: &'static str,
        /// Its last words.
        told: String,
        /// All of them.
        log: PathBuf,
    },
    /// A file for it can not be written.
    #[error("device {device}: {path}: {source}; choose a folder that can be written", path = .path.display())]
    File {
        /// Which.
        device: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The table still has entries after it was emptied.
    #[error("device {device}: its table was not emptied ({left} entries left); no result is valid, so none is given")]
    NotEmptied {
        /// Which.
        device: &'static str,
        /// Entries left.
        left: u64,
    },
    /// The kernel holds fewer sessions than the test needs.
    #[error("device {device}: holds {room} sessions at most ({needed} are needed); {remedy}")]
    TooSmall {
        /// Which.
        device: &'static str,
        /// Room there is.
        room: u64,
        /// Room needed.
        needed: u64,
        /// What helps.
        remedy: &'static str,
    },
}

/// A NAT that is measured.
pub trait Device {
    /// `natrix`, `netfilter` or `external`.
    fn name(&self) -> &'static str;

    /// Starts it, its table empty.
    ///
    /// # Errors
    /// When it does not start.
    fn start(&mut self) -> Result<(), DeviceError>;

    /// Empties its table, by whatever way it has, and makes sure of it.
    ///
    /// # Errors
    /// When entries are left.
    fn empty(&mut self) -> Result<(), DeviceError>;

    /// Entries of its table now; None where it does not tell.
    ///
    /// # Errors
    /// When it can not be asked.
    fn sessions(&mut self) -> Result<Option<u64>, DeviceError>;

    /// Version, and every setting that matters (RFC 9693 §5: they have to be reported), by name.
    fn settings(&self) -> Vec<(&'static str, String)>;
}
