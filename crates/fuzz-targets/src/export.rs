//! Claims about the files of the log's store.

use export::store::fuzzing;

/// A block of a segment: decoded within its bounds or refused, and encoded again without a change.
pub fn block(bytes: &[u8]) {
    fuzzing::block(bytes);
}

/// A frame of the journal: every sequence number is taken once or is in a gap.
pub fn journal(bytes: &[u8]) {
    fuzzing::journal(bytes);
}

/// The footer of a segment.
pub fn footer(bytes: &[u8]) {
    fuzzing::footer(bytes);
}

/// The entries of a catalogue: segments never overlap.
pub fn catalogue(bytes: &[u8]) {
    fuzzing::catalogue(bytes);
}

/// The text of a signed head.
pub fn head(bytes: &[u8]) {
    fuzzing::head(bytes);
}
