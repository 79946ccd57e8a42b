//! Idle times of sessions.
//!
//! The short way knows one lifetime a protocol, so sessions with a port's timer are marked.

use crate::settings::PortTimeout;
use crate::settings::Settings;
use crate::settings::Timeouts;
use crate::state::tcp;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::types::Protocol;
use crate::types::Side;

#[cfg(test)]
mod tests;

/// Bounds of [`Timers::adapt`] (RFC 4787 §4.3 REQ-5, RFC 5382 §5 REQ-5, RFC 5508 §3.2 REQ-2).
const FLOORS: Timeouts = Timeouts {
    udp: Duration::from_secs(120),
    udp_unanswered: Duration::from_secs(120),
    tcp_opening: Duration::from_secs(240),
    tcp_established: Duration::from_secs(7_440),
    tcp_closing: Duration::from_secs(240),
    icmp: Duration::from_secs(60),
    unsolicited_syn: Duration::from_secs(6),
    fragment: Duration::from_secs(2),
    adapt_above_percent: None,
};

type PortSet = Box<[u64; 1_024]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstLife {
    pub(crate) state: TcpState,
    pub(crate) lifetime: Duration,
    pub(crate) has_own_timer: bool,
}

#[derive(Debug)]
pub(crate) struct Timers {
    configured: Timeouts,
    current: Timeouts,
    /// True if UDP sessions start unanswered.
    has_two_states: bool,
    own: [Option<PortSet>; Protocol::COUNT],
    /// Server ports that gateways read.
    served: [Option<PortSet>; Protocol::COUNT],
    ports: Box<[PortTimeout]>,
}

impl Timers {
    pub(crate) fn new(settings: &Settings) -> Timers {
        let configured = settings.timeouts;
        let mut own = [None, None, None];
        for port_timeout in &settings.port_timeouts {
            let set: &mut PortSet = own[port_timeout.protocol.index()].get_or_insert_with(|| Box::new([0; 1_024]));
            for port in port_timeout.ports.clone() {
                set[usize::from(port / 64)] |= 1 << (port % 64);
            }
        }
        let mut served = [None, None, None];
        for gateway in &settings.gateways {
            for transport in gateway.alg.alg().map_or(&[][..], alg::Alg::transports) {
                let protocol = Protocol::from(*transport);
                let set: &mut PortSet = served[protocol.index()].get_or_insert_with(|| Box::new([0; 1_024]));
                for port in &gateway.ports {
                    set[usize::from(port / 64)] |= 1 << (port % 64);
                }
            }
        }
        Timers {
            served,
            configured,
            current: configured,
            has_two_states: configured.udp_unanswered < configured.udp,
            own,
            ports: settings.port_timeouts.clone().into_boxed_slice(),
        }
    }

    /// The idle times in use, ports' own timers aside.
    #[inline]
    pub(crate) fn current(&self) -> &Timeouts {
        &self.current
    }

    pub(crate) fn has_own(&self, protocol: Protocol) -> bool {
        self.own[protocol.index()].is_some()
    }

    pub(crate) fn has_other_ports(&self, than: &Timers) -> bool {
        self.ports != than.ports || self.served != than.served
    }

    #[inline]
    pub(crate) fn is_served(&self, protocol: Protocol, port: u16) -> bool {
        self.served[protocol.index()].as_ref().is_some_and(|set| set[usize::from(port / 64)] >> (port % 64) & 1 != 0)
    }

    /// Sessions of this server port may not take the short way.
    pub(crate) fn is_unusual(&self, protocol: Protocol, port: u16, side: Side) -> bool {
        self.is_served(protocol, port) || side == Side::Inside && self.own(protocol, port).is_some()
    }

    /// A destination port's timer; the first match in the file.
    #[inline]
    pub(crate) fn own(&self, protocol: Protocol, remote_port: u16) -> Option<Duration> {
        let set = self.own[protocol.index()].as_ref()?;
        if set[usize::from(remote_port / 64)] >> (remote_port % 64) & 1 == 0 {
            return None;
        }
        self.own_of_list(protocol, remote_port)
    }

    #[cold]
    fn own_of_list(&self, protocol: Protocol, remote_port: u16) -> Option<Duration> {
        let is_meant = |it: &&PortTimeout| it.protocol == protocol && it.ports.contains(&remote_port);
        self.ports.iter().find(is_meant).map(|it| it.idle)
    }

    /// `port`: the server's, which is remote unless the session is from outside.
    #[inline(always)]
    pub(crate) fn first(&self, protocol: Protocol, port: u16, side: Side) -> FirstLife {
        // Port timers apply to destination ports. A session from outside is never unanswered.
        let own = if side == Side::Inside { self.own(protocol, port) } else { None };
        let state = match protocol {
            Protocol::Tcp => TcpState::opening(side),
            Protocol::Udp if self.has_two_states && own.is_none() && side == Side::Inside => TcpState::UNANSWERED,
            Protocol::Udp | Protocol::Icmp => TcpState::Established,
        };
        FirstLife {
            state,
            lifetime: self.lifetime(protocol, state, own),
            has_own_timer: own.is_some() || self.is_served(protocol, port),
        }
    }

    /// Unanswered until the target answers: any UDP packet from outside can take memory here.
    pub(crate) fn first_of_target(&self, protocol: Protocol) -> FirstLife {
        let first = self.first(protocol, 0, Side::Outside);
        if protocol != Protocol::Udp || !self.has_two_states {
            return first;
        }
        let state = TcpState::UNANSWERED;
        FirstLife { state, lifetime: self.lifetime(protocol, state, None), has_own_timer: false }
    }

    #[inline]
    pub(crate) fn lifetime(&self, protocol: Protocol, state: TcpState, own: Option<Duration>) -> Duration {
        match (protocol, own) {
            (Protocol::Udp, Some(own)) => own,
            (Protocol::Udp, None) if state == TcpState::UNANSWERED => self.current.udp_unanswered,
            (Protocol::Udp, None) => self.current.udp,
            (Protocol::Tcp, Some(own)) if state.is_established() => own + self.current.tcp_closing,
            (Protocol::Tcp, _) => tcp::lifetime(state, &self.current),
            (Protocol::Icmp, _) => self.current.icmp,
        }
    }

    /// By the fullest pool: linear from `adapt_above_percent` to the RFCs' bounds at 100. Timers
    /// below the bounds stay.
    pub(crate) fn adapt(&mut self, used_percent: [u8; Protocol::COUNT]) -> bool {
        let Some(above) = self.configured.adapt_above_percent else { return false };
        let shortened = |protocol: Protocol, configured: Duration, floor: Duration| {
            let used = used_percent[protocol.index()].min(100);
            let span = u64::from(100 - above.min(99));
            let left = u64::from(100 - used).min(span);
            let more = configured.as_micros().saturating_sub(floor.as_micros());
            // In milliseconds, so that `show` reports the exact value.
            let cut = (more - more * left / span) / 1_000 * 1_000;
            Duration::from_micros(configured.as_micros() - cut)
        };
        let timeouts = &self.configured;
        let adapted = Timeouts {
            udp: shortened(Protocol::Udp, timeouts.udp, FLOORS.udp),
            udp_unanswered: shortened(Protocol::Udp, timeouts.udp_unanswered, FLOORS.udp_unanswered),
            tcp_opening: shortened(Protocol::Tcp, timeouts.tcp_opening, FLOORS.tcp_opening),
            tcp_established: shortened(Protocol::Tcp, timeouts.tcp_established, FLOORS.tcp_established),
            icmp: shortened(Protocol::Icmp, timeouts.icmp, FLOORS.icmp),
            // `tcp_closing` is also the time to find out whether an idle connection is dead.
            ..*timeouts
        };
        let is_other = adapted != self.current;
        self.current = adapted;
        is_other
    }
}
