//! Typed views of Ethernet, 802.1Q, ARP, IPv4, IPv6, TCP, UDP, ICMP, ICMPv6 and Neighbor Discovery,
//! and incremental checksums (RFC 1624).
//!
//! A view borrows bytes and names their fields. `new_checked` checks every length once; afterwards
//! no accessor can reach outside the bytes. No function of this crate panics on any input.
//!
//! Numbers are in host bit order; an IPv4 address is a `u32`, an IPv6 address a `u128`. Only
//! [`build`], [`build6`], [`verify`] and [`verify6`], which are for tests and tools, allocate.
//!
//! The hot path of the engine does not build views. It reads and writes with [`field`] at the
//! `..._OFFSET` constants of each module.

#![forbid(unsafe_code)]

pub mod arp;
pub mod build;
pub mod build6;
pub mod checksum;
pub mod ethernet;
pub mod field;
pub mod icmp;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod listener;
pub mod neighbour;
pub mod quoted;
pub mod tcp;
pub mod udp;
pub mod verify;
pub mod verify6;
