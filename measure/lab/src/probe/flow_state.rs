//! The states a flow can be left in, how it gets there, and the packet from outside that asks
//! whether it is still there.
//!
//! ```text
//!   UDP   unanswered ── answer ──► answered ── both ways for 2.4 s ──► stream
//!   TCP   SYN sent ── SYN-ACK ──► SYN received ── ACK ──► established ─┬─ FIN, client ─┬─► closed
//!                                                                      ├─ FIN, server ─┘
//!                                                                      └─ RST, either
//!   ICMP  query
//! ```
//!
//! The question comes from the server of the flow itself, so that no filter answers it.

use core::net::SocketAddrV4;
use core::time::Duration;

use serde::Serialize;
use wire::build;
use wire::tcp::Flags;

use super::prober::Connection;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// When both sides talk before a UDP flow counts as a stream; Netfilter wants 2 s of it.
const TALKS: [Duration; 3] = [Duration::from_millis(800), Duration::from_millis(1_600), Duration::from_millis(2_400)];
/// The servers' port.
const PORT: u16 = 1_000;

/// What a flow was left in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// UDP: a datagram went out, none came back.
    UdpUnanswered,
    /// UDP: one out, one back.
    UdpAnswered,
    /// UDP: both ways for 2.4 seconds.
    UdpStream,
    /// TCP: a SYN went out.
    TcpSynSent,
    /// TCP: a SYN went out, a SYN-ACK came back.
    TcpSynReceived,
    /// TCP: the handshake is over.
    TcpEstablished,
    /// TCP: the client has sent a FIN, and it was acknowledged.
    TcpClientClosed,
    /// TCP: the server has.
    TcpServerClosed,
    /// TCP: both have.
    TcpClosed,
    /// TCP: the client has sent a RST.
    TcpClientReset,
    /// TCP: the server has.
    TcpServerReset,
    /// ICMP: an Echo went out.
    IcmpQuery,
}

impl FlowState {
    /// All, in the order of findings.
    pub const ALL: [FlowState; 12] = [
        FlowState::UdpUnanswered,
        FlowState::UdpAnswered,
        FlowState::UdpStream,
        FlowState::TcpSynSent,
        FlowState::TcpSynReceived,
        FlowState::TcpEstablished,
        FlowState::TcpClientClosed,
        FlowState::TcpServerClosed,
        FlowState::TcpClosed,
        FlowState::TcpClientReset,
        FlowState::TcpServerReset,
        FlowState::IcmpQuery,
    ];

    /// As in names of findings.
    pub const fn name(self) -> &'static str {
        match self {
            FlowState::UdpUnanswered => "udp.unanswered",
            FlowState::UdpAnswered => "udp.answered",
            FlowState::UdpStream => "udp.stream",
            FlowState::TcpSynSent => "tcp.syn_sent",
            FlowState::TcpSynReceived => "tcp.syn_received",
            FlowState::TcpEstablished => "tcp.established",
            FlowState::TcpClientClosed => "tcp.client_closed",
            FlowState::TcpServerClosed => "tcp.server_closed",
            FlowState::TcpClosed => "tcp.closed",
            FlowState::TcpClientReset => "tcp.client_reset",
            FlowState::TcpServerReset => "tcp.server_reset",
            FlowState::IcmpQuery => "icmp.query",
        }
    }

    /// How a flow gets there, for people.
    pub const fn how(self) -> &'static str {
        match self {
            FlowState::UdpUnanswered => "a datagram out",
            FlowState::UdpAnswered => "one out, one back",
            FlowState::UdpStream => "both ways for 2.4 s",
            FlowState::TcpSynSent => "SYN out",
            FlowState::TcpSynReceived => "SYN out, SYN-ACK back",
            FlowState::TcpEstablished => "handshake complete",
            FlowState::TcpClientClosed => "FIN out, acknowledged",
            FlowState::TcpServerClosed => "FIN in, acknowledged",
            FlowState::TcpClosed => "FIN both ways, acknowledged",
            FlowState::TcpClientReset => "RST out",
            FlowState::TcpServerReset => "RST in",
            FlowState::IcmpQuery => "Echo out",
        }
    }

    /// When both sides talk on the way there, counted from the opening.
    pub const fn talks(self) -> &'static [Duration] {
        match self {
            FlowState::UdpStream => &TALKS,
            _ => &[],
        }
    }

    /// How long it takes to get there.
    pub fn preparation(self) -> Duration {
        self.talks().last().copied().unwrap_or_default()
    }
}

/// A flow on its way into a state.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The state.
    pub state: FlowState,
    /// Addresses, and sequence numbers where there are some.
    pub connection: Connection,
}

impl Flow {
    /// Opens a flow of this state, as far as that goes at once; None when a packet of it is lost.
    ///
    /// # Errors
    /// When packets cannot be sent.
    pub fn open(prober: &mut Prober<'_>, state: FlowState) -> Result<Option<Flow>, ProbeError> {
        let internal = prober.fresh();
        let random = prober.random();
        let remote = prober.remote(random, PORT);
        let connection = match state {
            FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream => {
                open_endpoints(prober, Protocol::Udp, internal, remote)?
            }
            FlowState::IcmpQuery => open_endpoints(prober, Protocol::Icmp, internal, remote)?,
            FlowState::TcpSynSent | FlowState::TcpSynReceived => prober.half_open(internal, remote)?,
            _ => prober.connect(internal, remote)?,
        };
        let Some(connection) = connection else { return Ok(None) };
        let mut flow = Flow { state, connection };
        Ok(flow.complete(prober)?.then_some(flow))
    }

    /// What follows the opening. Whether all of it got through.
    fn complete(&mut self, prober: &mut Prober<'_>) -> Result<bool, ProbeError> {
        let ack = Flags::ACK;
        let connection = &mut self.connection;
        let steps: &[(Side, Flags)] = match self.state {
            FlowState::UdpUnanswered | FlowState::TcpSynSent | FlowState::TcpEstablished | FlowState::IcmpQuery => &[],
            FlowState::UdpAnswered | FlowState::UdpStream => {
                let answer = prober.udp(connection.remote, connection.external);
                return Ok(prober.pass(Side::Outside, &answer)?.passed.is_some());
            }
            FlowState::TcpSynReceived => {
                let answer = connection.from_server(Flags::SYN | ack, &[]);
                // Its sequence number stays: the question repeats it.
                return Ok(prober.pass(Side::Outside, &answer)?.passed.is_some());
            }
            FlowState::TcpClientClosed => &[(Side::Inside, Flags(Flags::FIN.0 | Flags::ACK.0)), (Side::Outside, ack)],
            FlowState::TcpServerClosed => &[(Side::Outside, Flags(Flags::FIN.0 | Flags::ACK.0)), (Side::Inside, ack)],
            FlowState::TcpClosed => &[
                (Side::Inside, Flags(Flags::FIN.0 | Flags::ACK.0)),
                (Side::Outside, Flags(Flags::FIN.0 | Flags::ACK.0)),
                (Side::Inside, ack),
            ],
            FlowState::TcpClientReset => &[(Side::Inside, Flags(Flags::RST.0 | Flags::ACK.0))],
            FlowState::TcpServerReset => &[(Side::Outside, Flags(Flags::RST.0 | Flags::ACK.0))],
        };
        for (side, flags) in steps {
            let segment = match side {
                Side::Inside => connection.from_client(*flags, &[]),
                Side::Outside => connection.from_server(*flags, &[]),
            };
            if prober.pass(*side, &segment)?.passed.is_none() {
                return Ok(false);
            }
            if flags.contains(Flags::FIN) {
                let next = match side {
                    Side::Inside => &mut connection.client_next,
                    Side::Outside => &mut connection.server_next,
                };
                *next = next.wrapping_add(1);
            }
        }
        Ok(true)
    }

    /// Talks once more both ways, as part of the preparation. Nobody waits for what becomes of it.
    ///
    /// # Errors
    /// When packets cannot be sent.
    pub fn talk(&self, prober: &mut Prober<'_>) -> Result<(), ProbeError> {
        let Connection { internal, external, remote, .. } = self.connection;
        let out = prober.udp(internal, remote);
        prober.send(Side::Inside, &out)?;
        let back = prober.udp(remote, external);
        prober.send(Side::Outside, &back)
    }

    /// The packet of the server that asks whether the flow is still there.
    pub fn question(&self, prober: &mut Prober<'_>) -> Vec<u8> {
        let Connection { external, remote, .. } = self.connection;
        let payload = prober.payload();
        match self.state {
            FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream => prober.udp(remote, external),
            FlowState::IcmpQuery => {
                build::echo_reply(*remote.ip(), *external.ip(), external.port()).payload(&payload).build()
            }
            FlowState::TcpSynSent | FlowState::TcpSynReceived => {
                self.connection.from_server(Flags::SYN | Flags::ACK, &[])
            }
            FlowState::TcpEstablished | FlowState::TcpClientClosed => {
                self.connection.from_server(Flags::ACK | Flags::PSH, &payload)
            }
            FlowState::TcpServerClosed | FlowState::TcpClosed => {
                // The server's FIN once more: it occupies the number before.
                let again = Connection { server_next: self.connection.server_next.wrapping_sub(1), ..self.connection };
                again.from_server(Flags::FIN | Flags::ACK, &[])
            }
            FlowState::TcpClientReset | FlowState::TcpServerReset => self.connection.from_server(Flags::ACK, &[]),
        }
    }

    /// A packet of the flow from this side that changes nothing, to see whether it refreshes.
    pub fn refresh(&self, prober: &mut Prober<'_>, side: Side) -> Vec<u8> {
        let Connection { internal, external, remote, .. } = self.connection;
        let payload = prober.payload();
        match (self.state, side) {
            (FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream, Side::Inside) => {
                prober.udp(internal, remote)
            }
            (FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream, Side::Outside) => {
                prober.udp(remote, external)
            }
            (FlowState::IcmpQuery, Side::Inside) => prober.echo(internal, *remote.ip()),
            (FlowState::IcmpQuery, Side::Outside) => {
                build::echo_reply(*remote.ip(), *external.ip(), external.port()).payload(&payload).build()
            }
            // A keepalive (RFC 9293 §3.8.4): the byte before the next one.
            (_, Side::Inside) => {
                let before = Connection { client_next: self.connection.client_next.wrapping_sub(1), ..self.connection };
                before.from_client(Flags::ACK, &[])
            }
            (_, Side::Outside) => {
                let before = Connection { server_next: self.connection.server_next.wrapping_sub(1), ..self.connection };
                before.from_server(Flags::ACK, &[])
            }
        }
    }

    /// Whether `seen`, which came inside, is the answer to a question of this flow.
    pub fn is_mine(&self, seen: &Seen) -> bool {
        seen.destination == self.connection.internal
    }
}

fn open_endpoints(
    prober: &mut Prober<'_>,
    protocol: Protocol,
    internal: SocketAddrV4,
    remote: SocketAddrV4,
) -> Result<Option<Connection>, ProbeError> {
    let external = prober.open(protocol, internal, remote)?;
    Ok(external.map(|external| Connection { internal, external, remote, client_next: 0, server_next: 0 }))
}
