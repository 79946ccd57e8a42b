//! Test beds: frames in, frames out, virtual clock, simulated network, reference model.
//!
//! ```no_run
//! use testkit::*;
//! use wire::build;
//!
//! let mut bed = Bed::new(settings()).workers(2).seed(7);
//! bed.inside(&build::udp(at(I1, 5000), at(E1, 1000)).build());
//! let out = bed.take_outside();
//! assert_eq!(destination(&out[0]), at(E1, 1000));
//! ```

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test kit stops the test when it cannot go on; there is nobody to hand an error to"
)]

pub mod account;
pub mod bed;
pub mod bed6;
pub mod captures;
pub mod conformance;
pub mod connection;
pub mod ledger;
pub mod model;
pub mod openers;
pub mod packet;
pub mod packet6;
pub mod peer;
pub mod port_control;
pub mod random_pools;
pub mod seeds;
pub mod topology;

pub use bed::Bed;
pub use bed::Steering;
pub use connection::Connection;
pub use ledger::Ledger;
pub use mem::arena::provide_on_demand;
pub use packet::destination;
pub use packet::identifier;
pub use packet::is_icmp;
pub use packet::payload;
pub use packet::quote;
pub use packet::source;
pub use packet::ttl;
pub use port_control::Ask;
pub use port_control::PcpReply;
pub use topology::E1;
pub use topology::E2;
pub use topology::I1;
pub use topology::I2;
pub use topology::I3;
pub use topology::INSIDE_ROUTER;
pub use topology::OUTSIDE_ROUTER;
pub use topology::OWN_INSIDE;
pub use topology::OWN_OUTSIDE;
pub use topology::POOL;
pub use topology::Variants;
pub use topology::at;
pub use topology::settings;

/// Says which requirements of `docs/conformance.toml` a test shows. Put it first in the test:
/// `covers!("4787-REQ-1", "7857-5a");`. Nothing happens at run time; `conformance` reads it in the
/// source.
#[macro_export]
macro_rules! covers {
    ($($id:literal),+ $(,)?) => {
        const _: &[&str] = &[$($id),+];
    };
}
