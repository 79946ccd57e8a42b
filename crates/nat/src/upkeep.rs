//! Housekeeping in bounded pieces; no packet waits for it.

pub(crate) mod looked_over;
pub(crate) mod walk;
