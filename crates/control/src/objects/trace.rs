//! One traced packet.

use serde::Deserialize;
use serde::Serialize;

use crate::objects::question::Step;
use crate::values::HexBytes;
use crate::values::VerdictKind;

/// One packet and its fate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TraceRecord {
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Worker that gave the verdict.
    pub worker: u8,
    /// Interface it arrived on.
    pub interface: String,
    /// Interface it left by; null if it did not leave.
    pub interface_out: Option<String>,
    /// Name of its verdict.
    pub verdict: String,
    /// Sort of verdict.
    pub kind: VerdictKind,
    /// The packet as received, in one line: `udp 10.0.0.2:4000 > 198.51.100.1:53 len 60 ttl 64`.
    pub before: String,
    /// The packet as sent; null if it did not leave.
    pub after: Option<String>,
    /// What asked for its mapping: `pcp`, `nat_pmp`, or a gateway such as `ftp`; absent if only
    /// packets did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The decisions, where the tracer records them.
    pub steps: Vec<Step>,
    /// Length of the frame as it came.
    pub length_bytes: u32,
    /// First bytes of the Ethernet frame as received; null unless requested.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub frame: Option<HexBytes>,
    /// First bytes of the Ethernet frame as sent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub frame_out: Option<HexBytes>,
    /// Records lost just before this one, because the client was too slow.
    pub lost_before: u64,
}
