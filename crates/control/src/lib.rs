//! Types of the control protocol: JSON lines over a Unix stream socket.
//!
//! ```text
//! client                                        server
//!   | -- {"natrix_control":1,"version":"0.1.0"} -> |   each side sends its hello at once
//!   | <- {"natrix_control":1,"version":"0.1.0"} -- |   and checks the hello of the other
//!   | -- {"request":"mappings","limit":2} -------> |
//!   | <- {"mapping":{...}} ----------------------- |   no, one or many objects,
//!   | <- {"mapping":{...}} ----------------------- |
//!   | <- {"end":{"cursor":"7"}} ------------------ |   then one end or one error
//! ```
//!
//! A list that exceeds its limit ends with a cursor; the same request with that cursor returns the
//! next page. Cursors are opaque: only the server that made one can read it. The field names of the
//! objects are a contract.
//!
//! This crate uses no other crate of Natrix. It repeats the few words it needs (`udp`, `inside`,
//! `paired`), so that a change of the engine cannot change the protocol by accident.

pub mod client;
mod fault;
mod filter;
mod hello;
pub mod line;
pub mod objects;
mod reply;
mod request;
pub mod server;
mod text;
mod values;

pub use client::Client;
pub use client::ClientError;
pub use fault::Fault;
pub use filter::Candidate;
pub use filter::Filter;
pub use filter::filters_of;
pub use filter::is_filter;
pub use hello::Actor;
pub use hello::Hello;
pub use hello::PROTOCOL_VERSION;
pub use objects::Alg;
pub use objects::AlgRefused;
pub use objects::Announcement;
pub use objects::AuditRecord;
pub use objects::BackPressure;
pub use objects::Change;
pub use objects::ConfigFault;
pub use objects::Counter;
pub use objects::CounterKind;
pub use objects::CurrentPortTimeout;
pub use objects::CurrentTimeouts;
pub use objects::Direction;
pub use objects::Drained;
pub use objects::DropReason;
pub use objects::EventLog;
pub use objects::Expectation;
pub use objects::FilteringByProtocol;
pub use objects::FindAnswer;
pub use objects::Grant;
pub use objects::Host;
pub use objects::Interface;
pub use objects::LogSink;
pub use objects::LogStore;
pub use objects::Mapping;
pub use objects::Nat64Prefix;
pub use objects::Neighbour;
pub use objects::PerProtocol;
pub use objects::Place;
pub use objects::Plan;
pub use objects::PlanDenial;
pub use objects::PlanDetail;
pub use objects::PlanFate;
pub use objects::PlanRules;
pub use objects::PlanSubject;
pub use objects::Pool;
pub use objects::PoolAddress;
pub use objects::PoolPlan;
pub use objects::PortLimits;
pub use objects::Refused;
pub use objects::Reloaded;
pub use objects::Resource;
pub use objects::Route;
pub use objects::RouteNextHop;
pub use objects::Rule;
pub use objects::RunState;
pub use objects::Session;
pub use objects::SinkKind;
pub use objects::Status;
pub use objects::Step;
pub use objects::Subscriber;
pub use objects::SubscriberPorts;
pub use objects::SystemClock;
pub use objects::TraceRecord;
pub use objects::Unnamed;
pub use objects::UserWithoutGroup;
pub use objects::WhyAnswer;
pub use objects::Withheld;
pub use objects::Worker;
pub use objects::WorkerPackets;
pub use reply::End;
pub use reply::Object;
pub use reply::Page;
pub use reply::Reply;
pub use request::Counters;
pub use request::Cursor;
pub use request::Drain;
pub use request::Find;
pub use request::List;
pub use request::NewConfig;
pub use request::PAGE_OBJECTS_DEFAULT;
pub use request::PAGE_OBJECTS_MAX;
pub use request::Record;
pub use request::Request;
pub use request::STARTED;
pub use request::TcpSegment;
pub use request::Trace;
pub use request::Why;
pub use text::CASE_BYTES_MAX;
pub use text::check_case;
pub use text::count_text;
pub use text::counted;
pub use text::duration_text;
pub use text::escaped;
pub use text::scaled_text;
pub use text::with_unit;
pub use values::AddressState;
pub use values::AnyPrefix;
pub use values::Filtering;
pub use values::FindAddress;
pub use values::HexBytes;
pub use values::ParseError;
pub use values::Pooling;
pub use values::Prefix;
pub use values::Prefix6;
pub use values::Protocol;
pub use values::RouteSource;
pub use values::Side;
pub use values::VerdictKind;
pub use values::ratio;

/// Object of the faults of the audit log. What cannot be recorded is not done.
pub const AUDIT_LOG: &str = "audit log";

/// The problem of a trace beyond those that the workers have room for.
pub const TOO_MANY_TRACES: &str = "too many traces";

/// Default path of the socket.
pub const SOCKET_PATH_DEFAULT: &str = "/run/natrix/control.sock";
