//! Gateways without an engine: a host that grants each port, and streams that arrive in pieces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod ftp;
#[allow(dead_code, reason = "shared with the tests inside the crate")]
mod host;
mod pptp;
mod rtsp;
mod sip;
mod slipstream;
mod stream;
mod tftp;
