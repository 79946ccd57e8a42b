//! A logical interface.

use serde::Deserialize;
use serde::Serialize;

use crate::values::Side;

/// A port, or an 802.1Q sub-interface of one. Totals count from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Interface {
    /// Name in the configuration.
    pub name: String,
    /// Realm it faces.
    pub side: Side,
    /// Port it sends and receives through.
    pub port: String,
    /// Driver string of the port.
    pub driver: String,
    /// Ethernet address, `02:00:00:00:00:01`.
    pub mac: String,
    /// Own addresses, `192.0.2.1/24`.
    pub addresses: Vec<String>,
    /// IPv6 addresses that are not used because another station has them; perhaps the link-local
    /// one, which is not among `addresses`.
    #[serde(default)]
    pub duplicate_addresses: Vec<String>,
    /// IPv6 addresses that are not used yet because Natrix, or the kernel, still asks whether
    /// another station has them.
    #[serde(default)]
    pub tentative_addresses: Vec<String>,
    /// Largest IP packet it carries.
    pub mtu_bytes: u16,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Whether the port has link.
    pub link_up: bool,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, with Ethernet headers.
    pub rx_bytes: u64,
    /// Packets that the port lost because no worker took them in time.
    pub rx_missed: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, with Ethernet headers.
    pub tx_bytes: u64,
    /// Packets not sent because the transmit queue was full.
    pub tx_dropped: u64,
    /// Packets received in the last second.
    #[serde(default)]
    pub rx_packets_per_second: u64,
    /// Bits received in the last second, with Ethernet headers.
    #[serde(default)]
    pub rx_bits_per_second: u64,
    /// Packets sent in the last second.
    #[serde(default)]
    pub tx_packets_per_second: u64,
    /// Bits sent in the last second, with Ethernet headers.
    #[serde(default)]
    pub tx_bits_per_second: u64,
}
