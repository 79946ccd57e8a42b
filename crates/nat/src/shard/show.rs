//! Copies of the state for people and programs, and the answer to `natrix why`.

pub(in crate::shard) mod pages;
pub(in crate::shard) mod why;
