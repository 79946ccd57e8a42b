//! Answers to `find` and `why`.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::SocketAddr;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::session::Direction;
use crate::objects::session::Host;
use crate::objects::session::Mapping;
use crate::objects::session::SubscriberPorts;
use crate::values::ParseError;
use crate::values::Protocol;
use crate::values::VerdictKind;
use crate::values::words;

words!(
    /// Where an address belongs.
    Place, "internal, external, interface or nowhere", {
        /// A subscriber's address.
        Internal = "internal",
        /// An address of a pool.
        External = "external",
        /// An address of Natrix itself.
        Interface = "interface",
        /// None of these.
        Nowhere = "nowhere",
    }
);

/// The holder of an endpoint, or a user of an address. An endpoint without a holder has one answer
/// too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FindAnswer {
    /// What was asked, `address` or `address:port`.
    pub queried: String,
    /// Where the address belongs.
    pub place: Place,
    /// Internal address of the subscriber that holds it; null without a holder, and if an IPv6 host
    /// holds it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub holder: Option<Ipv4Addr>,
    /// The IPv6 host, B4 or prefix that holds it; absent if an IPv4 host does, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Inside realm of the holder, by number.
    pub realm: Option<u16>,
    /// VRF of the holder.
    pub vrf: Option<String>,
    /// External address of the holder, if it has one of its own.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub external_address: Option<Ipv4Addr>,
    /// Pool of the address.
    pub pool: Option<String>,
    /// Port blocks and slice of the holder; if an external port was asked for, the range that
    /// contains it.
    #[serde(default)]
    pub subscriber_ports: Vec<SubscriberPorts>,
    /// The mapping, if a port was asked for and one exists.
    pub mapping: Option<Mapping>,
    /// One sentence for people.
    pub detail: String,
}

/// One decision on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Step {
    /// Where: `parse`, `lookup`, `filter`, `port`, `route`, ...
    pub step: String,
    /// What was decided.
    pub decision: String,
    /// On what grounds.
    pub detail: String,
}

/// What would happen to a packet now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyAnswer {
    /// Transport.
    pub protocol: Protocol,
    /// Source asked about.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub source: SocketAddr,
    /// Destination asked about.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub destination: SocketAddr,
    /// The IPv6 host that sends or receives it; absent if an IPv4 host does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// VRF of the sender inside, or of the receiver inside; absent if the packet goes to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Where it comes from.
    pub direction: Direction,
    /// Name of the verdict it would get.
    pub verdict: String,
    /// Sort of verdict.
    pub kind: VerdictKind,
    /// The verdict as a sentence.
    pub description: String,
    /// Translated source; null if the packet would not leave.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub translated_source: Option<SocketAddr>,
    /// Translated destination, inside the softwire if it leaves in one; null if the packet would
    /// not leave.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub translated_destination: Option<SocketAddr>,
    /// Worker that would decide.
    pub worker: u8,
    /// The way to the verdict.
    pub steps: Vec<Step>,
    /// Always false: asking changes nothing.
    pub state_changed: bool,
}
