//! What translation does to packets, as the RFCs have it.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod addresses;
mod errors;
mod hostile;
mod packets;
mod plain;
mod properties;
mod sizes;
mod support;
mod tables;
