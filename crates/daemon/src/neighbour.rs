//! Link-layer addresses of next hops (RFC 826, RFC 1122 §2.3.2, RFC 5227), without a clock, a
//! socket or a thread.
//!
//! Each worker that transmits has a cache of its own, so no lock is needed. A worker that receives
//! an ARP packet repeats what it learnt to the others in a small message ([`Learnt`]); a lost
//! message costs one more request.

pub mod announce;
pub mod answer;
pub mod cache;

pub use announce::Announcer;
pub use answer::Answer;
pub use answer::Answerer;
pub use answer::Learnt;
pub use cache::Action;
pub use cache::AnyView;
pub use cache::NeighbourLimits;
pub use cache::Neighbours;
pub use cache::Refusal;
pub use cache::RouterView;
