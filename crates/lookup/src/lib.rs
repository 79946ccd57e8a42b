//! Who has, or had, an endpoint: the question of `natrix find`, and three sources of its answer.
//!
//! | source | answers from | knows |
//! |---|---|---|
//! | [`live`] | a running instance | all current holders |
//! | [`formula`] | a configuration alone | static mappings, deterministic pools (RFC 7422) |
//! | [`log`] | the event log | holders at an earlier time, except those by a formula |
//!
//! [`past`] joins the last two: the answer for a time, and what makes it uncertain. [`stored`] has
//! the JSON object of a holder in the log.
//!
//! The answers of the first two are objects of the control protocol ([`control::FindAnswer`]).

#![forbid(unsafe_code)]

mod asked;
pub mod convert;
pub mod formula;
pub mod live;
pub mod log;
pub mod past;
pub mod stored;

pub use asked::Asked;
