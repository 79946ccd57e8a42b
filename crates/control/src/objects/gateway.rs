//! Application-level gateways, and what they expect.

use core::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::values::Protocol;

/// One application-level gateway, enabled or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Alg {
    /// `ftp`, `sip` and so on.
    pub name: String,
    /// It serves all subscribers, except of classes that list their own gateways.
    pub enabled: bool,
    /// What its control sessions run over.
    pub transports: Vec<Protocol>,
    /// Ports of the servers.
    pub ports: Vec<u16>,
    /// Commands that are rewritten; empty if the gateway has no switches for commands.
    pub commands: Vec<String>,
    /// Names of the pools it serves; empty for all.
    pub pools: Vec<String>,
    /// Classes that list it.
    pub classes: Vec<String>,
    /// Classes that list others and not this one.
    pub classes_without: Vec<String>,
    /// Control sessions that it reads now.
    pub sessions: u64,
    /// Control sessions that it has begun to read.
    pub sessions_total: u64,
    /// Messages that it has rewritten.
    pub messages_changed: u64,
    /// Expectations now; those in use, too.
    pub expectations: u64,
    /// Expectations made.
    pub expectations_total: u64,
    /// What it did not do, and why.
    pub refused: AlgRefused,
}

/// What a gateway refused, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AlgRefused {
    /// Streams that are another protocol, or ambiguous. They pass unread.
    pub unreadable: u64,
    /// No room for another control session or incomplete message, or the subscriber's share is
    /// full. They pass unread.
    pub table_full: u64,
    /// Messages that announce or change too much. They pass as they are.
    pub message_limit: u64,
    /// Expectations beyond those of one control session.
    pub session_limit: u64,
    /// Expectations beyond those of one subscriber, and unanswered clients of its servers over UDP
    /// that were forgotten for others.
    pub subscriber_limit: u64,
    /// Expectations without a free external port.
    pub no_port: u64,
}

impl AlgRefused {
    /// Names and numbers of the reasons that occurred.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let all = [
            ("unreadable", self.unreadable),
            ("table_full", self.table_full),
            ("message_limit", self.message_limit),
            ("session_limit", self.session_limit),
            ("subscriber_limit", self.subscriber_limit),
            ("no_port", self.no_port),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

/// An external port that a payload announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Expectation {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub internal: SocketAddrV4,
    /// External endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub external: SocketAddrV4,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// Name of the gateway.
    pub alg: String,
    /// `once`: for one connection or flow; `map`: for as many as come.
    pub kind: String,
    /// Remote addresses that may use it.
    pub remotes: Vec<String>,
    /// True once its connection or flow has come. With `once`, no other session may use it then,
    /// and the mapping lives on with its sessions; with `map`, it is true while a session uses its
    /// port.
    pub used: bool,
    /// Time since it was made.
    pub age_us: u64,
    /// Time until it ends: with `map`, used or not; with `once`, null once it is used.
    pub expires_in_us: Option<u64>,
}
