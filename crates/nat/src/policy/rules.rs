//! Finds the first rule of an ordered list that a packet matches, at a cost independent of their
//! number.
//!
//! ```text
//!   key ─► by_source[12 bits] ∧ by_destination[12 bits] ─► tables that can match
//!       ─► one bucket of each, most important first
//!
//!   table   rules that fix alike many bits, such as destination/32 and port; a list of chunks
//!   bucket  one cache line, two whole rules: bits, ports, order
//! ```
//!
//! Tuple space search (Srinivasan, Suri, Varghese 1999). Tuples are merged if that crowds no cell
//! (TupleMerge, Daly et al. 2017), and tables hold whole rules, so a hit costs one cold line.
//!
//! A [`RuleSet`] is persistent: a change copies only the chunks it touches, so workers read one set
//! while the control thread makes the next.

mod book;
mod general;
mod key;
mod mask;
mod persistent;
mod plan;
mod set;
mod table;
#[cfg(test)]
mod tests;

pub use book::FilterBook;
pub(crate) use book::GENERATIONS;
pub(crate) use book::Hits;
pub(crate) use book::Permits;
pub use book::RuleBook;
pub use book::Ruling;
pub use general::General;
pub(crate) use general::is_narrow;
pub use key::Match;
pub use key::PortRange;
pub use key::RuleKey;
pub use set::BURST_MAX;
pub use set::RuleId;
pub use set::RuleSet;
pub use set::RuleSetError;
