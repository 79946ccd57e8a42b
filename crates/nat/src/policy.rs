//! What may be translated, and how much of it: rules, filters, classes, rates and refusals.

pub mod class;
pub mod origin;
pub mod rate_limit;
pub mod redirection;
pub(crate) mod refused;
pub mod rules;
