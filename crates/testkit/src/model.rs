//! A NAT as the RFCs describe it, written to be obviously right and nothing else: hash maps, no
//! limits, no speed.
//!
//! Compared with the engine step by step. The model does not choose external ports: it takes the
//! engine's choice after checking that it was a valid one. Fragments, ICMP errors and full tables
//! are other tests' business.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::HashMap;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::tcp::TcpState;
use nat::types::Side;
use wire::icmp;
use wire::tcp::Flags;

use crate::packet;

/// An internal endpoint of one protocol.
pub type Internal = (Protocol, SocketAddrV4);

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// TCP only.
    pub state: Option<TcpState>,
    /// When it ends.
    pub expires: Instant,
}

/// A mapping and its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// What the Internet sees.
    pub external: SocketAddrV4,
    /// By remote endpoint (port 0 for ICMP).
    pub sessions: BTreeMap<SocketAddrV4, Session>,
    /// Life given by inbound packets that belong to no session, where those refresh.
    pub lives_until: Instant,
}

impl Mapping {
    fn is_alive(&self, now: Instant) -> bool {
        now < self.lives_until || self.sessions.values().any(|session| now < session.expires)
    }
}

/// What is to come of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing leaves.
    Silence,
    /// It leaves on this side between these endpoints.
    Leaves(Side, SocketAddrV4, SocketAddrV4),
    /// It leaves outside from an endpoint of the engine's choice, to be passed to [`Model::adopt`].
    LeavesFromNew(Internal, SocketAddrV4),
    /// As before, but it is hairpinned, to this external endpoint.
    HairpinsFromNew(Internal, SocketAddrV4),
    /// An ICMP error of this type and code goes back to where it came from.
    Error(Side, u8, u8),
}

/// The model. See the [module](self).
pub struct Model {
    settings: Settings,
    /// All mappings that are alive.
    pub mappings: HashMap<Internal, Mapping>,
    /// Whose each external endpoint is: the same once more, so that a million mappings are no
    /// million steps.
    externals: HashMap<Internal, Internal>,
    /// The external address of each subscriber's mappings, and their number; kept where a
    /// subscriber may have only one address.
    paired: HashMap<Ipv4Addr, (Ipv4Addr, usize)>,
    /// Unsolicited SYNs: external endpoint and remote endpoint, and when they are due.
    pub held_syns: BTreeMap<(SocketAddrV4, SocketAddrV4), Instant>,
    now: Instant,
}

/// What the model reads in a packet.
#[derive(Clone, Copy)]
struct Read {
    protocol: Protocol,
    source: SocketAddrV4,
    destination: SocketAddrV4,
    flags: Flags,
    is_reply: bool,
    ttl: u8,
    plausible_reset: bool,
}

impl Read {
    fn opens(&self) -> bool {
        self.protocol == Protocol::Tcp
            && self.flags.contains(Flags::SYN)
            && !self.flags.intersects(Flags::ACK.union(Flags::RST))
    }
}

/// RST with a sequence number that belongs to no connection of the tests. See [`Model::inside`].
pub const FORGED_SEQUENCE: u32 = 1 << 30;

fn read(bytes: &[u8]) -> Option<Read> {
    let header = packet::header(bytes);
    let protocol = Protocol::from_number(header.protocol())?;
    let is_tcp = protocol == Protocol::Tcp;
    Some(Read {
        protocol,
        source: packet::source(bytes),
        destination: packet::destination(bytes),
        flags: if is_tcp { packet::tcp(bytes).flags() } else { Flags::NONE },
        is_reply: protocol == Protocol::Icmp && icmp::is_reply(packet::icmp(bytes).icmp_type()),
        ttl: header.ttl(),
        plausible_reset: is_tcp && packet::tcp(bytes).sequence() < FORGED_SEQUENCE,
    })
}

fn remote_of(protocol: Protocol, endpoint: SocketAddrV4) -> SocketAddrV4 {
    if protocol == Protocol::Icmp { SocketAddrV4::new(*endpoint.ip(), 0) } else { endpoint }
}

impl Model {
    /// Nothing seen yet.
    pub fn new(settings: &Settings, now: Instant) -> Model {
        Model {
            settings: settings.clone(),
            mappings: HashMap::new(),
            externals: HashMap::new(),
            paired: HashMap::new(),
            held_syns: BTreeMap::new(),
            now,
        }
    }

    /// Time passes. Returns the endpoints, external and remote, of SYNs that are to be answered
    /// with ICMP 3/3 in it.
    pub fn advance(&mut self, now: Instant) -> Vec<(SocketAddrV4, SocketAddrV4)> {
        self.now = now;
        for mapping in self.mappings.values_mut() {
            mapping.sessions.retain(|_, session| now < session.expires);
        }
        let Model { mappings, externals, paired, .. } = self;
        mappings.retain(|(protocol, internal), mapping| {
            if mapping.is_alive(now) {
                return true;
            }
            externals.remove(&(*protocol, mapping.external));
            if let Some((_, count)) = paired.get_mut(internal.ip()) {
                *count -= 1;
            }
            false
        });
        paired.retain(|_, (_, count)| *count > 0);
        let due = self.held_syns.iter().filter(|(_, due)| **due <= now).map(|(ends, _)| *ends).collect();
        self.held_syns.retain(|_, due| now < *due);
        due
    }

    fn is_external(&self, address: Ipv4Addr) -> bool {
        self.settings.pools.iter().any(|pool| pool.addresses.contains(&address))
    }

    fn by_external(&self, protocol: Protocol, external: SocketAddrV4) -> Option<Internal> {
        self.externals.get(&(protocol, external)).copied()
    }

    fn idle_time(&self, protocol: Protocol) -> Duration {
        match protocol {
            Protocol::Udp => self.settings.timeouts.udp,
            Protocol::Tcp => self.settings.timeouts.tcp_opening,
            Protocol::Icmp => self.settings.timeouts.icmp,
        }
    }

    /// A packet from inside. A RST counts as one of its connection when its sequence number is
    /// under [`FORGED_SEQUENCE`].
    pub fn inside(&mut self, bytes: &[u8]) -> Expected {
        let Some(read) = read(bytes) else { return Expected::Silence };
        if read.is_reply {
            return Expected::Silence;
        }
        let internal = (read.protocol, read.source);
        let remote = remote_of(read.protocol, read.destination);
        if read.ttl <= 1 {
            return Expected::Error(Side::Inside, 11, 0);
        }
        let hairpin = self.is_external(*read.destination.ip());
        if hairpin && (read.protocol == Protocol::Icmp || self.by_external(read.protocol, read.destination).is_none()) {
            // RFC 5508 REQ-7: a NAPT hairpins no queries.
            return Expected::Silence;
        }
        let has_session = self.mappings.get(&internal).is_some_and(|mapping| mapping.sessions.contains_key(&remote));
        if !has_session && read.protocol == Protocol::Tcp && !read.opens() {
            return Expected::Silence;
        }
        let Some(mapping) = self.mappings.get(&internal) else {
            return match hairpin {
                true => Expected::HairpinsFromNew(internal, read.destination),
                false => Expected::LeavesFromNew(internal, remote),
            };
        };
        let external = mapping.external;
        self.touch(internal, remote, Side::Inside, read);
        match hairpin {
            true => self.inbound(Read { source: external, ..read }, true),
            false => Expected::Leaves(Side::Outside, external, read.destination),
        }
    }

    /// The engine chose an external endpoint for the packet that [`Model::inside`] expected to
    /// leave from a new one.
    ///
    /// # Panics
    /// When the choice breaks a rule.
    pub fn adopt(&mut self, bytes: &[u8], internal: Internal, external: SocketAddrV4) -> Expected {
        let (protocol, endpoint) = internal;
        let pool = self.settings.pools.iter().find(|pool| pool.addresses.contains(external.ip()));
        let pool = pool.expect("the external address is of a pool");
        if protocol != Protocol::Icmp {
            assert!(
                (pool.port_min..=pool.port_max).contains(&external.port()),
                "port {} is out of range",
                external.port()
            );
            assert!(!pool.reserved_ports.contains(&external.port()), "port {} is reserved", external.port());
            assert!(!pool.parity || external.port() % 2 == endpoint.port() % 2, "parity is kept");
        }
        assert_eq!(self.by_external(protocol, external), None, "{external} is given out already");
        if pool.pooling == Pooling::Paired {
            let (address, count) = self.paired.entry(*endpoint.ip()).or_insert((*external.ip(), 0));
            assert_eq!(address, external.ip(), "one subscriber, one address");
            *count += 1;
        }
        let mapping = Mapping { external, sessions: BTreeMap::new(), lives_until: self.now };
        self.mappings.insert(internal, mapping);
        self.externals.insert((protocol, external), internal);
        self.inside(bytes)
    }

    /// A packet from outside.
    pub fn outside(&mut self, bytes: &[u8]) -> Expected {
        let Some(read) = read(bytes) else { return Expected::Silence };
        if read.protocol == Protocol::Icmp && !read.is_reply {
            return Expected::Silence;
        }
        self.inbound(read, false)
    }

    fn inbound(&mut self, read: Read, hairpin: bool) -> Expected {
        let Some(internal) = self.by_external(read.protocol, read.destination) else {
            return self.unsolicited(read, hairpin);
        };
        let Some(mapping) = self.mappings.get(&internal) else { return Expected::Silence };
        let remote = remote_of(read.protocol, read.source);
        let has_session = mapping.sessions.contains_key(&remote);
        let pool = self.settings.pools.iter().find(|pool| pool.addresses.contains(read.destination.ip()));
        let filtering = pool.map(|pool| pool.filtering[read.protocol.index()]).unwrap_or_default();
        let allowed = has_session
            || match filtering {
                Filtering::EndpointIndependent => true,
                Filtering::AddressDependent => mapping.sessions.keys().any(|known| known.ip() == remote.ip()),
                Filtering::AddressAndPortDependent => false,
            };
        if !allowed {
            return self.unsolicited(read, hairpin);
        }
        if !has_session && read.protocol == Protocol::Tcp && !read.opens() {
            return Expected::Silence;
        }
        if read.ttl <= 1 {
            return Expected::Error(Side::Outside, 11, 0);
        }
        if has_session || read.protocol == Protocol::Tcp {
            self.touch(internal, remote, Side::Outside, read);
        } else if self.settings.inbound_refresh {
            let until = self.now + self.idle_time(read.protocol);
            if let Some(mapping) = self.mappings.get_mut(&internal) {
                mapping.lives_until = mapping.lives_until.max(until);
            }
        }
        Expected::Leaves(Side::Inside, read.source, internal.1)
    }

    /// RFC 5382 REQ-4: nothing for six seconds, whatever it is; then an answer if it is a SYN.
    fn unsolicited(&mut self, read: Read, hairpin: bool) -> Expected {
        if read.opens() && !hairpin && self.settings.answer_unsolicited_syn {
            let due = self.now + self.settings.timeouts.unsolicited_syn;
            self.held_syns.entry((read.destination, read.source)).or_insert(due);
        }
        Expected::Silence
    }

    /// A packet of a session passes, the first one or a later one.
    fn touch(&mut self, internal: Internal, remote: SocketAddrV4, from: Side, read: Read) {
        let now = self.now;
        let idle = self.idle_time(internal.0);
        let timeouts = self.settings.timeouts;
        let inbound_refresh = self.settings.inbound_refresh;
        let Some(mapping) = self.mappings.get_mut(&internal) else { return };
        let external = mapping.external;
        let session = mapping.sessions.entry(remote);
        let is_new = matches!(session, std::collections::btree_map::Entry::Vacant(_));
        let session = session.or_insert(Session { state: None, expires: now + idle });
        if read.protocol != Protocol::Tcp {
            if from == Side::Inside || inbound_refresh {
                session.expires = now + idle;
            }
            return;
        }
        if is_new {
            session.state = Some(TcpState::opening(from));
            if from == Side::Inside {
                self.held_syns.remove(&(external, remote));
            }
            return;
        }
        let established = timeouts.tcp_established + timeouts.tcp_closing;
        let mut state = session.state.unwrap_or(TcpState::Transitory);
        // RFC 7857 §2: an established session whose idle time has passed is in TRANS.
        let is_established =
            |state| matches!(state, TcpState::Established | TcpState::FinInside | TcpState::FinOutside);
        if is_established(state) && session.expires.saturating_since(now) <= timeouts.tcp_closing {
            state = TcpState::Transitory;
        }
        if read.flags.contains(Flags::RST) {
            // RFC 7857 §2.2: an established connection lives on for the transitory time; else
            // nothing changes.
            if read.plausible_reset && is_established(state) {
                session.state = Some(TcpState::Transitory);
                session.expires = now + timeouts.tcp_closing;
            }
            return;
        }
        let syn = read.flags.contains(Flags::SYN);
        let fin = read.flags.contains(Flags::FIN);
        let (own_fin, both) = match from {
            Side::Inside => (TcpState::FinInside, TcpState::FinOutside),
            Side::Outside => (TcpState::FinOutside, TcpState::FinInside),
        };
        let after = match state {
            TcpState::OpeningOutbound if syn && from == Side::Outside => TcpState::Established,
            TcpState::OpeningInbound if syn && from == Side::Inside => TcpState::Established,
            TcpState::Closing | TcpState::Transitory if read.opens() => TcpState::opening(from),
            TcpState::Transitory if !syn => TcpState::Established,
            other => other,
        };
        let after = match after {
            TcpState::Established if fin => own_fin,
            fin_of_other if fin && fin_of_other == both => TcpState::Closing,
            other => other,
        };
        session.state = Some(after);
        session.expires = now
            + match after {
                TcpState::OpeningOutbound | TcpState::OpeningInbound => timeouts.tcp_opening,
                TcpState::Closing | TcpState::Transitory => timeouts.tcp_closing,
                _ => established,
            };
    }
}
