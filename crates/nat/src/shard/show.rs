//! Copies of the state, and the answer to `natrix why`.

pub(in crate::shard) mod pages;
pub(in crate::shard) mod why;
