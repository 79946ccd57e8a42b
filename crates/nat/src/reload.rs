//! Changes of the settings while traffic flows: what a reload keeps, ends and reports.

pub(crate) mod already_held;
pub mod change;
pub(crate) mod outlook;
