//! Housekeeping, a bounded piece at each call: nothing on the packet path waits for it.

pub(crate) mod looked_over;
pub(crate) mod walk;
