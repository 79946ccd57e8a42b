//! What can be wrong with a capture file.

use std::io;

/// Why a capture cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file can't be opened.
    #[error("capture {name}: cannot be opened ({reason}); check the path and its permissions")]
    Open {
        /// The file.
        name: String,
        /// What the system says.
        reason: io::Error,
    },
    /// Reading failed.
    #[error("capture {name}: reading at byte {offset} failed ({reason}); check the disk")]
    Read {
        /// The file.
        name: String,
        /// Where.
        offset: u64,
        /// What the system says.
        reason: io::Error,
    },
    /// The first bytes are of no known format.
    #[error("capture {name}: is neither pcap nor pcapng (starts with {magic:08x}); convert it with editcap -F pcap")]
    UnknownFormat {
        /// The file.
        name: String,
        /// The first four bytes.
        magic: u32,
    },
    /// There is nothing in it.
    #[error("capture {name}: is empty (0 bytes); a capture without frames still has a file header")]
    Empty {
        /// The file.
        name: String,
    },
    /// Frames are not Ethernet.
    #[error("capture {name}: frames are not Ethernet (link type {link_type}); capture on an Ethernet interface")]
    LinkType {
        /// The file.
        name: String,
        /// The link type in the file.
        link_type: u32,
    },
    /// The file ends inside something.
    #[error("capture {name}: ends in the middle of {what} (at byte {offset}); keep the whole frames with editcap")]
    Truncated {
        /// The file.
        name: String,
        /// What was being read.
        what: &'static str,
        /// Where the file ends.
        offset: u64,
    },
    /// A field contradicts the format.
    #[error("capture {name}: {what} is impossible ({value}, before byte {offset}); the file is damaged")]
    Malformed {
        /// The file.
        name: String,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The first byte behind it.
        offset: u64,
    },
    /// The file can't be created.
    #[error("capture {name}: cannot be created ({reason}); check the folder and its permissions")]
    Create {
        /// The file.
        name: String,
        /// What the system says.
        reason: io::Error,
    },
    /// Writing failed.
    #[error("capture {name}: writing failed ({reason}); check the space on the disk")]
    Write {
        /// The file.
        name: String,
        /// What the system says.
        reason: io::Error,
    },
}
