//! Workers on in-memory ports with a virtual clock: frames in, frames out.

mod arp;
mod bed;
mod bursts;
mod crossing;
mod ipv6;
mod link;
mod watching;

pub(crate) use bed::Bed;
pub(crate) use bed::FORWARDED;
pub(crate) use bed::INSIDE;
pub(crate) use bed::OUTSIDE;
pub(crate) use bed::POOL_OFF_LINK;
pub(crate) use bed::SERVER;
pub(crate) use bed::TARGETS;
pub(crate) use bed::WHOLE;
pub(crate) use bed::WHOLE_INSIDE;
pub(crate) use bed::settings;
pub(crate) use bed::subscriber;
