//! What to do with a packet: a decision reads a [`View`](view::View), changes nothing, and is
//! carried out by `commit`. [`report::Report`] collects its steps for `natrix why` and traces.
//! `natrix plan` decides nothing: it asks where a subscriber's next mapping would be under the next
//! snapshot, by those steps that need no room (`shard/reload/next_mapping.rs`).

pub(crate) mod address_choice;
pub(crate) mod announcement;
pub(crate) mod call;
pub(crate) mod control_session;
pub(crate) mod dependent;
pub(crate) mod door;
pub(crate) mod expired;
pub(crate) mod grant;
pub(crate) mod guarantee;
pub(crate) mod inbound;
pub(crate) mod new_mapping;
pub(crate) mod opening;
pub(crate) mod outbound;
pub(crate) mod packet_filter;
pub(crate) mod pairing;
pub(crate) mod port_choice;
pub(crate) mod quoted;
pub(crate) mod report;
pub(crate) mod session;
pub(crate) mod step;
pub(crate) mod subscriber;
pub(crate) mod to_server;
pub(crate) mod untranslated;
pub(crate) mod view;
pub(crate) mod way;
