//! Timers a device is set to.

use serde::Serialize;

/// Idle times, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceTimers {
    /// UDP, nothing came back.
    pub udp_unanswered: u32,
    /// UDP.
    pub udp: u32,
    /// TCP, handshake not complete.
    pub tcp_opening: u32,
    /// TCP, established.
    pub tcp_established: u32,
    /// TCP, closed or reset.
    pub tcp_closing: u32,
    /// ICMP queries.
    pub icmp: u32,
}

impl DeviceTimers {
    /// Each another one, and all so short that a probe finds them within a minute.
    pub const SHORT: DeviceTimers =
        DeviceTimers { udp_unanswered: 3, udp: 5, tcp_opening: 4, tcp_established: 7, tcp_closing: 2, icmp: 6 };
}
