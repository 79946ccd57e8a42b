//! RFC 6146, stateful NAT64.

mod errors;
mod fragments;
mod hostile;
mod prefixes;
mod sessions;
mod translation;

use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;

/// The endpoint of E1 as an IPv6 host knows it.
fn e1(port: u16) -> At6 {
    (behind(E1), port)
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
