//! Timers of established sessions, in the form that the burst loop compares.

use crate::settings::Timeouts;
use crate::state::tcp;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;

/// UDP, then TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyTimers {
    lifetime: [Duration; 2],
    /// An established TCP session with less time left is transitory (RFC 7857 §2).
    margin: [Duration; 2],
    /// Packets from outside restart the timer (RFC 4787 §4.3 REQ-6).
    pub(crate) inbound_refresh: [bool; 2],
}

pub(crate) struct SteadyClock {
    /// For a session used now.
    pub(crate) end: [Instant; 2],
    /// Sessions that end earlier take the general way.
    pub(crate) due: [Instant; 2],
}

impl SteadyClock {
    /// UDP sessions have no margin.
    pub(crate) fn now(&self) -> Instant {
        self.due[0]
    }
}

impl SteadyTimers {
    pub(crate) fn new(timeouts: &Timeouts, inbound_refresh: bool) -> SteadyTimers {
        SteadyTimers {
            lifetime: [timeouts.udp, tcp::lifetime(TcpState::Established, timeouts)],
            margin: [Duration::ZERO, timeouts.tcp_closing],
            inbound_refresh: [inbound_refresh, true],
        }
    }

    #[inline]
    pub(crate) fn at(&self, now: Instant) -> SteadyClock {
        SteadyClock { end: self.lifetime.map(|length| now + length), due: self.margin.map(|length| now + length) }
    }
}
