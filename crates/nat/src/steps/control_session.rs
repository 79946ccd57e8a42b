//! Decides which gateway reads a packet's session, and whether its record begins, continues or
//! ends.

use alg::Alg;
use alg::AlgId;
use alg::Context;
use alg::Endpoint as AlgEndpoint;
use alg::Known;
use alg::Memory;

use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u32;
use crate::policy::gateways::CompiledGateway;
use crate::state::alg::AlgKey;
use crate::state::alg::Begun;
use crate::state::alg::KNOWN_MAX;
use crate::state::alg::ways;
use crate::state::grant::Grant;
use crate::state::grant::Origin;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::state::tcp;
use crate::steps::announcement::Asking;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::GatewayRefusal;
use wire::checksum;
use wire::tcp::Flags;

#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) index: u32,
    pub(crate) session: Option<SessionRef>,
}

#[derive(Clone, Copy)]
pub(crate) struct Control {
    pub(crate) asking: Asking,
    pub(crate) flow: Place,
    pub(crate) from: Side,
    pub(crate) disabled: u8,
}

struct Reader<'a> {
    gateway: &'a CompiledGateway,
    client_is_inside: bool,
    /// Between a registered endpoint and its registrar, not on servers' ports.
    is_of_registration: bool,
    /// The server opened it; reading begins with the client's next request.
    awaits_request: bool,
}

/// What a packet means for the record of its control session.
pub(crate) struct Served {
    pub(crate) key: AlgKey,
    pub(crate) alg: AlgId,
    pub(crate) disabled: u8,
    pub(crate) step: ServedStep,
}

pub(crate) enum ServedStep {
    Begins(Beginning),
    Goes(u32),
    /// A reload changed or removed the gateway. Nothing more is read, but the connection's numbers
    /// must remain shifted.
    EndsReading(u32),
    Ends(u32),
}

pub(crate) struct Beginning {
    pub(crate) begun: Begun,
    /// Not for a repeated first packet.
    pub(crate) is_counted: bool,
    /// An unanswered or ended session that gives way.
    pub(crate) replaces: Option<u32>,
    pub(crate) refusal: Option<GatewayRefusal>,
}

/// What a segment means before a connection is read.
pub(crate) enum Handshake {
    Syn,
    /// Both ends have sent a SYN before this segment.
    Over,
    /// Before the answer to the SYN. Outsiders can send this, and the end inside answers with an
    /// RST (RFC 9293 §3.10.7.3).
    Early,
    /// The answer came another way, so the first byte may be missed.
    Missed,
}

/// What a first fragment does, which is not read.
pub(crate) enum FirstFragment {
    Passes,
    /// Of a datagram.
    Unread(Control),
    EndsReading(u32),
    Drops,
}

/// Nothing of a damaged datagram.
pub(crate) fn payload_of<'a>(bytes: &'a [u8], parsed: &Parsed) -> &'a [u8] {
    let datagram = bytes.get(usize::from(parsed.header_length)..usize::from(parsed.total_length)).unwrap_or_default();
    let datagram = match datagram {
        [_, _, _, _, high, low, ..] => datagram.get(..usize::from(u16::from_be_bytes([*high, *low]))),
        _ => None,
    };
    let is_sound = |datagram: &&[u8]| checksum::is_udp_valid(parsed.source, parsed.destination, datagram);
    datagram.filter(is_sound).and_then(|datagram| datagram.get(8..)).unwrap_or_default()
}

/// Whether this could be a client's first request.
pub(crate) fn asks(alg: AlgId, payload: &[u8]) -> bool {
    alg.alg().and_then(Alg::is_first_request).is_some_and(|is_first_request| is_first_request(payload))
}

impl<'a> View<'a> {
    pub(crate) fn decide_control(
        &self,
        now: Instant,
        parsed: &Parsed,
        bytes: &[u8],
        flow: Place,
        from: Side,
    ) -> Option<Served> {
        let session = flow.session?;
        let (remote, _) = self.state.remote_of(flow.index, session)?;
        let mapping = self.state.mappings.get(flow.index);
        let key = AlgKey::of(flow.index, mapping, remote);
        let store = self.state.control_sessions.as_ref()?;
        let known = store.find(&key);
        let is_opening = self.state.session_state(flow.index, session).0.is_opening();
        let opens = parsed.class != Class::Udp && tcp::opens(Flags(parsed.tcp_flags)) && is_opening;
        let Some(reader) = self.gateway_of(now, flow.index, session, known) else {
            return Some(self.no_longer_served(parsed, key, known?, opens));
        };
        let Reader { gateway, client_is_inside, is_of_registration, awaits_request } = reader;
        let (alg, disabled) = (gateway.alg, gateway.disabled);
        let read = known.filter(|place| store.get(*place).alg == alg);
        let is_first = match parsed.class {
            Class::Udp => {
                let is_asked = || from == Side::Outside && asks(alg, payload_of(bytes, parsed));
                read.is_none() && (!awaits_request || is_asked())
            }
            // Read from the first byte or never. Within a connection, a SYN leaves the state alone;
            // one that opens is new, repeated before its answer, or follows an ended connection.
            _ => opens && (from == Side::Inside) == client_is_inside,
        };
        let step = match read {
            _ if is_first => {
                let (inside, subscriber) = (mapping.key(), mapping.subscriber);
                let begun = Begun { key, inside, subscriber, alg, client_is_inside, is_of_registration };
                let (replaces, refusal) = self.control_to_replace(&begun);
                ServedStep::Begins(Beginning { begun, is_counted: read.is_none(), replaces, refusal })
            }
            Some(place) => ServedStep::Goes(place),
            None => return Some(self.no_longer_served(parsed, key, known?, opens)),
        };
        Some(Served { key, alg, disabled, step })
    }

    fn no_longer_served(&self, parsed: &Parsed, key: AlgKey, place: u32, opens: bool) -> Served {
        let session = self.state.control_sessions.as_ref().map(|store| store.get(place));
        let is_answered = session.is_some_and(|session| session.streams.iter().all(Option::is_some));
        let step = match parsed.class == Class::Tcp && !opens && is_answered {
            true => ServedStep::EndsReading(place),
            false => ServedStep::Ends(place),
        };
        Served { key, alg: session.map_or(AlgId(0), |session| session.alg), disabled: 0, step }
    }

    fn control_to_replace(&self, begun: &Begun) -> (Option<u32>, Option<GatewayRefusal>) {
        let store = self.state.control_sessions.as_ref().filter(|store| store.find(&begun.key).is_none());
        let Some(store) = store else { return (None, None) };
        let has_room = begun.is_of_client() && store.has_room_for(begun.subscriber, Side::Outside);
        match store.client_to_replace(begun.subscriber).filter(|_| has_room) {
            Some(oldest) => (Some(oldest), Some(GatewayRefusal::SubscriberLimit)),
            None => (store.to_replace(begun.subscriber, begun.from()), None),
        }
    }

    /// Found by the server's port, by the registration the session leads to, or because a server
    /// inside opened it for a client that found no place. `known`: its record, if it is read
    /// already.
    fn gateway_of(&self, now: Instant, index: u32, session: SessionRef, known: Option<u32>) -> Option<Reader<'a>> {
        let mapping = self.state.mappings.get(index);
        let (remote, side) = self.state.remote_of(index, session)?;
        let client_is_inside = side == Side::Inside;
        // An IPv6 host has no IPv4 address to rewrite.
        if mapping.key().address.is_ipv6() {
            return None;
        }
        let port = if client_is_inside { remote.1 } else { mapping.internal_port() };
        if self.policy.lifetimes.is_served(mapping.protocol(), port) {
            let pool = self.pool_of_mapping(index)?.id;
            let class = self.class_now(mapping.subscriber);
            if let Some(gateway) = self.snapshot.gateways.find(mapping.protocol(), port, pool, class) {
                let is_of_registration = false;
                return Some(Reader { gateway, client_is_inside, is_of_registration, awaits_request: false });
            }
        }
        // Sessions on the long way have a mark.
        if session == SessionRef::Inline && !mapping.has_own_timer() {
            return None;
        }
        // Reading goes on even if the registration ends.
        let store = self.state.control_sessions.as_ref()?;
        let begun = known.map(|place| store.get(place)).filter(|session| session.is_of_registration);
        let alg = match begun {
            Some(session) => session.alg,
            None => match self.registration(now, index, remote).map(Grant::origin) {
                Some(Origin::Alg(alg)) => alg,
                Some(Origin::Pcp | Origin::NatPmp) => return None,
                None => {
                    let gateway = self.gateway_of_server(index).filter(|_| client_is_inside)?;
                    let (client_is_inside, is_of_registration) = (false, false);
                    return Some(Reader { gateway, client_is_inside, is_of_registration, awaits_request: true });
                }
            },
        };
        let gateway = self.snapshot.gateways.of(alg).filter(|_| self.gateway_serving(alg, index).is_some())?;
        Some(Reader { gateway, client_is_inside, is_of_registration: true, awaits_request: false })
    }

    /// The next step of a connection that may not be open yet.
    pub(crate) fn handshake(&self, control: &Control, flags: Flags) -> Handshake {
        let Some(store) = self.state.control_sessions.as_ref() else { return Handshake::Early };
        if flags.contains(Flags::SYN) {
            return Handshake::Syn;
        }
        match store.get(control.asking.place).streams.iter().all(Option::is_some) {
            true => Handshake::Over,
            false if control.from == Side::Inside && !flags.contains(Flags::RST) => Handshake::Missed,
            false => Handshake::Early,
        }
    }

    /// Of a TCP segment, a first fragment ends reading and passes, unless the connection's numbers
    /// are shifted. Forged fragments end nothing.
    pub(crate) fn decide_first_fragment(
        &self,
        now: Instant,
        parsed: &Parsed,
        bytes: &[u8],
        flow: Place,
        from: Side,
    ) -> FirstFragment {
        let found = flow.session.and_then(|session| self.state.remote_of(flow.index, session));
        let (Some((remote, _)), Some(store)) = (found, self.state.control_sessions.as_ref()) else {
            return FirstFragment::Passes;
        };
        let key = AlgKey::of(flow.index, self.state.mappings.get(flow.index), remote);
        let Some(place) = store.find(&key) else { return FirstFragment::Passes };
        let session = store.get(place);
        if parsed.class == Class::Udp {
            let asking = Asking { now, place, key, alg: session.alg };
            return FirstFragment::Unread(Control { asking, flow, from, disabled: 0 });
        }
        let (own, other) = ways(from);
        let sequence = get_u32(bytes, usize::from(parsed.header_length) + 4);
        let (held, held_back) = (store.held(place, own), store.held(place, other));
        let (Some(stream), Some(back)) = (&session.streams[own], &session.streams[other]) else {
            return FirstFragment::Passes;
        };
        match () {
            () if !stream.is_unchanged(held) || !back.is_unchanged(held_back) => FirstFragment::Drops,
            () if stream.may_begin_at(sequence, held.len()) => FirstFragment::EndsReading(place),
            () => FirstFragment::Passes,
        }
    }

    /// True if nothing more is read of the session, and its numbers are not shifted.
    pub(crate) fn is_let_go(&self, asking: &Asking) -> bool {
        let store = self.state.control_sessions.as_ref().filter(|store| store.is_in_use(asking.place));
        // A hairpin's second half may have taken the place.
        store.filter(|store| store.get(asking.place).key == asking.key).is_some_and(|store| {
            let mut streams = store.get(asking.place).streams.iter().enumerate();
            streams.all(|(way, it)| it.as_ref().is_some_and(|it| it.is_transparent(store.held(asking.place, way))))
        })
    }

    /// True while the session may be idle for longer than usual.
    pub(crate) fn is_busy(&self, place: u32) -> bool {
        let store = self.state.control_sessions.as_ref().filter(|store| store.is_in_use(place));
        let session = store.map(|store| store.get(place));
        session.is_some_and(|session| session.alg.alg().is_some_and(|alg| alg.is_busy(&session.memory)))
    }

    /// Lets the gateway read, and returns what it remembers afterwards.
    pub(crate) fn in_context<R>(
        &self,
        control: &Control,
        act: impl FnOnce(&'static dyn Alg, &mut Memory, &Context<'_>) -> R,
    ) -> Option<(R, Memory)> {
        let Control { asking, flow, from, disabled } = *control;
        let mapping = self.state.mappings.get(flow.index);
        let (internal, external, protocol) = (mapping.internal(), mapping.external(), mapping.protocol());
        let (known, known_len) = self.known_of(&asking);
        let session = self.state.control_sessions.as_ref()?.get(asking.place);
        let from_inside = from == Side::Inside;
        let context = Context {
            transport: if protocol == Protocol::Tcp { alg::Transport::Tcp } else { alg::Transport::Udp },
            from_inside,
            from_client: from_inside == session.client_is_inside,
            serves: self.is_static(flow.index) && self.policy.lifetimes.is_served(protocol, internal.port),
            internal: AlgEndpoint { address: internal.address.to_bits(), port: internal.port },
            external: AlgEndpoint { address: external.address.to_bits(), port: external.port },
            remote: AlgEndpoint { address: asking.key.remote.0, port: asking.key.remote.1 },
            known: &known[..known_len],
            disabled,
            time_s: (asking.now.as_micros() / 1_000_000) as u32,
        };
        let mut memory = session.memory;
        let result = act(asking.alg.alg()?, &mut memory, &context);
        Some((result, memory))
    }

    /// Whether the store has this mapping's first session.
    pub(crate) fn has_control_session(&self, index: u32) -> bool {
        let mapping = self.state.mappings.get(index);
        let key = AlgKey::of(index, mapping, (mapping.remote_address(), mapping.remote_port()));
        self.state.control_sessions.as_ref().is_some_and(|store| store.find(&key).is_some())
    }

    /// A phone over UDP may send from one port and listen at others, named in its `REGISTER`. This
    /// is its session with the same remote endpoint at another of these, where requests may be
    /// answered.
    pub(crate) fn other_session(&self, asking: &Asking) -> Option<u32> {
        let Asking { now, key, .. } = *asking;
        let store = self.state.control_sessions.as_ref()?;
        let own = self.state.mappings.get(key.mapping).key();
        if own.protocol != Protocol::Udp || self.state.grants.is_empty() {
            return None;
        }
        let at_port = |port: u16| {
            let index = self.state.find_live_mapping(&InternalKey { port, ..own }, now)?;
            store.find(&AlgKey::of(index, self.state.mappings.get(index), key.remote))
        };
        let sends_from = self.registration(now, key.mapping, key.remote).map(|grant| grant.requester.port);
        sends_from.filter(|port| *port != own.port).and_then(at_port).or_else(|| {
            let mut listens_at = self.registrations_elsewhere(now, key.mapping, key.remote);
            listens_at.find_map(|grant| at_port(grant.key().port))
        })
    }

    /// The session's announcements, and how many entries count. The endpoint and the announcements
    /// of a phone's [other session](Self::other_session) come first.
    fn known_of(&self, asking: &Asking) -> ([Known; 2 * KNOWN_MAX + 1], usize) {
        let (mut known, mut len) = ([Known::default(); 2 * KNOWN_MAX + 1], 0);
        let mut add = |more: &[Known]| {
            known[len..len + more.len()].copy_from_slice(more);
            len += more.len();
        };
        if let Some(store) = self.state.control_sessions.as_ref() {
            if let Some(other) = self.other_session(asking).map(|other| store.get(other)) {
                let mapping = self.state.mappings.get(other.key.mapping);
                let (external, inside) = (mapping.external().port, mapping.internal_port());
                add(&[Known { external, inside, peer: None }]);
                add(other.known());
            }
            add(store.get(asking.place).known());
        }
        (known, len)
    }

    pub(crate) fn has_data(&self, now: Instant, key: &AlgKey, known: &[Known]) -> bool {
        let of_control = self.state.mappings.get(key.mapping).key();
        known.iter().any(|known| {
            let inside = InternalKey { port: known.inside, ..of_control };
            let found = self.state.find_live_mapping(&inside, now);
            found.is_some_and(|mapping| self.has_real_session(now, mapping))
        })
    }
}
