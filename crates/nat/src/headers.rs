//! Bytes of packets; nothing here knows a mapping.

pub(crate) mod gre;
pub mod icmp_quote;
pub mod identification;
pub mod own_icmp;
pub mod own_icmp6;
pub mod packet;
pub(crate) mod parse;
pub(crate) mod rewrite;
pub mod split;
