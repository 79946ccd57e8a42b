//! Natrix configuration: TOML text to a validated, compiled snapshot, reporting every fault at
//! once.
//!
//! The text is walked by hand, value by value, because a derived reader stops at its first fault.
//! Types, ranges and defaults come from one table of keys, which is also what the manual is written
//! from ([`manual`]).

#![forbid(unsafe_code)]

mod change;
mod check;
mod compile;
mod draft;
mod driver;
mod event_file;
mod fault;
mod file;
mod keys;
mod manual;
mod memory;
mod model;
mod report;
mod section;
mod source;
mod text;
pub mod values;

pub use change::Change;
pub use change::changes;
pub use check::machine::Machine;
pub use compile::control;
pub use compile::parse;
pub use compile::parse_following;
pub use compile::parse_for;
pub use compile::parse_sent;
pub use draft::check_name;
pub use draft::singles::audit_beside;
pub use fault::Fault;
pub use fault::Warning;
pub use file::open_regular;
pub use manual::manual;
pub use memory::MemoryNeeded;
pub use model::AgentX;
pub use model::Config;
pub use model::Control;
pub use model::Dpdk;
pub use model::DriverKind;
pub use model::EventLog;
pub use model::EventTarget;
pub use model::Http;
pub use model::HttpListen;
pub use model::HttpRole;
pub use model::HttpTls;
pub use model::HttpUser;
pub use model::Hugepages;
pub use model::InterfaceLink;
pub use model::LOG_FOLDER;
pub use model::Log;
pub use model::LogFormat;
pub use model::LogLevel;
pub use model::LogSink;
pub use model::LogStore;
pub use model::LogSync;
pub use model::NO_LOG;
pub use model::Port;
pub use model::STATE_FOLDER;
pub use model::SinkKind;
pub use model::SinkTransport;
pub use model::Snmp;
pub use model::Totals;
pub use model::Workers;
pub use source::Source;
pub use text::text;
