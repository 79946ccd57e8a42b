//! What a reload keeps, ends and reports while traffic flows.

pub(crate) mod already_held;
pub mod change;
pub(crate) mod outlook;
