//! HTTP for one instance: REST API, metrics and page.
//!
//! ```text
//!   browser, curl, Prometheus ─► listen (TCP, TLS, Unix) ─► access (Host, login, role, rate)
//!                                                              ▼
//!   daemon ◄── control socket ── ask ◄── state, lookups, changes, trace, metrics, page
//! ```
//!
//! It is a process of its own, started by `natrix run`, and knows the instance only through the
//! control protocol. So nothing that happens here can stop a worker: not a crash, not a thousand
//! slow clients.

#![forbid(unsafe_code)]
#![allow(unused_qualifications, reason = "the macros of utoipa write whole paths")]

mod access;
mod answer;
mod ask;
mod changes;
mod connections;
mod document;
mod event_log;
mod followers;
pub mod fuzzing;
mod listen;
mod lookups;
mod metrics;
mod notifications;
mod page;
mod restconf;
mod routes;
mod settings;
mod state;
mod tls;
mod token;
mod trace;
mod wrong_logins;

pub use event_log::EventLog;
pub use event_log::Export;
pub use event_log::ExportFormat;
pub use event_log::ExportQuestion;
pub use event_log::LogExport;
pub use event_log::LogHead;
pub use event_log::LogStat;
pub use event_log::LogVerify;
pub use event_log::NotAnswered;
pub use event_log::Prepared;
pub use event_log::Progress;
pub use event_log::result_of_verify;
pub use listen::ServeError;
pub use listen::serve;
pub use lookups::Past;
pub use lookups::PastAnswer;
pub use lookups::PastFound;
pub use lookups::PastQuestion;
pub use lookups::PastTime;
pub use lookups::Times;
pub use settings::Listen;
pub use settings::Role;
pub use settings::Settings;
pub use settings::Tls;
pub use settings::User;
pub use token::Token;
