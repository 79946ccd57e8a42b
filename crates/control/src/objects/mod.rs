//! The objects of the server's answers. Their field names are a contract: commands print them with
//! `--json`.
//!
//! Names carry the unit: `_us` microseconds, `_bytes`, `_per_second`, `_ratio` from 0 to 1. Absent
//! values are `null`.

mod audit;
mod change;
mod counter;
mod gateway;
mod interface;
mod pool;
mod question;
mod routing;
mod session;
mod status;
mod trace;

pub use audit::AuditRecord;
pub use change::Change;
pub use change::ConfigFault;
pub use change::Plan;
pub use change::PlanDenial;
pub use change::PlanDetail;
pub use change::PlanFate;
pub use change::PlanRules;
pub use change::PlanSubject;
pub use change::PoolPlan;
pub use change::Reloaded;
pub use change::Unnamed;
pub use counter::Counter;
pub use counter::CounterKind;
pub use counter::DropReason;
pub use counter::Resource;
pub use counter::Rule;
pub use counter::WorkerPackets;
pub use gateway::Alg;
pub use gateway::AlgRefused;
pub use gateway::Expectation;
pub use interface::Interface;
pub use pool::FilteringByProtocol;
pub use pool::PerProtocol;
pub use pool::Pool;
pub use pool::PoolAddress;
pub use question::FindAnswer;
pub use question::Place;
pub use question::Step;
pub use question::WhyAnswer;
pub use routing::Announcement;
pub use routing::Drained;
pub use routing::Neighbour;
pub use routing::Route;
pub use routing::RouteNextHop;
pub use routing::Withheld;
pub use session::Direction;
pub use session::Grant;
pub use session::Host;
pub use session::Mapping;
pub use session::Refused;
pub use session::Session;
pub use session::Subscriber;
pub use session::SubscriberPorts;
pub use status::BackPressure;
pub use status::CurrentPortTimeout;
pub use status::CurrentTimeouts;
pub use status::EventLog;
pub use status::LogSink;
pub use status::LogStore;
pub use status::Nat64Prefix;
pub use status::PortLimits;
pub use status::RunState;
pub use status::SinkKind;
pub use status::Status;
pub use status::SystemClock;
pub use status::UserWithoutGroup;
pub use status::Worker;
pub use trace::TraceRecord;
