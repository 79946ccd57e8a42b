//! Sinks: where records go besides the store, as IPFIX, syslog or lines of JSON.
//!
//! ```text
//!   store ─► Follower (cursor) ─► Encoder ─► messages ─► Outlet: UDP, TCP, TLS ─► collector
//!                  └────────── one thread a sink ──────────┘
//! ```
//!
//! The store is the spool: a sink reads what the store has written, so a slow one delays no other,
//! and one that was away continues where it was.

mod encoder;
mod ipfix;
mod outlet;
mod quotas;
mod run;
mod syslog;

pub use encoder::Encoder;
pub use encoder::Item;
pub use encoder::Kind;
pub use encoder::Known;
pub use encoder::Message;
pub use encoder::Over;
pub use ipfix::Ipfix;
pub use ipfix::file::IpfixFile;
pub use outlet::Security;
pub use outlet::Target;
pub use outlet::TargetError;
pub use outlet::Transport;
pub use quotas::Quotas;
pub use run::News;
pub use run::Sink;
pub use run::SinkError;
pub use run::SinkFigures;
pub use run::SinkOptions;
