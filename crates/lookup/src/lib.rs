//! The present or past holder of an endpoint: three sources for `natrix find`.
//!
//! | source | answers from | knows |
//! |---|---|---|
//! | [`live`] | a running instance | all current holders |
//! | [`formula`] | a configuration alone | static mappings, deterministic pools (RFC 7422) |
//! | [`log`] | the event log | holders at an earlier time, except those by a formula |
//!
//! [`past`] joins the last two and says what makes the answer uncertain. [`stored`] writes a holder
//! in the log as JSON. The others answer in objects of the control protocol
//! ([`control::FindAnswer`]).

#![forbid(unsafe_code)]

mod asked;
pub mod convert;
pub mod formula;
pub mod live;
pub mod log;
pub mod past;
pub mod stored;

pub use asked::Asked;
