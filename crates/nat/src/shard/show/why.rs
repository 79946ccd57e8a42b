//! What would happen to a packet now, step by step, for `natrix why`. The functions of the packet
//! path decide, and nothing changes; a test compares both.

mod decisions;
mod everywhere;

use crate::headers::icmp_quote;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::parse;
use crate::random::Random;
use crate::shard::Arrival;
use crate::shard::PACKET_BUFFER_BYTES;
use crate::shard::Shard;
use crate::shard::edge::ROOM;
use crate::shard::edge::preview::Arrived;
use crate::shard::edge::preview::Numbering;
use crate::shard::edge::preview::source_of;
use crate::shard::packet::inbound::Via;
use crate::show::view::Course;
use crate::show::view::Explanation;
use crate::show::view::Onward;
use crate::state::calls::CALL_SPACE;
use crate::state::host::HostKey;
use crate::steps::control_session::asks;
use crate::steps::control_session::payload_of;
use crate::steps::door::Towards;
use crate::steps::expired::Vacancy;
use crate::steps::inbound::Inbound;
use crate::steps::report::Report;
use crate::steps::step::HostRole;
use crate::steps::step::STEPS_MAX;
use crate::steps::step::Step;
use crate::steps::view::NewHost;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::InsideHost;
use crate::types::InterfaceId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use alg::AlgId;

struct Account {
    realm: RealmId,
    steps: Vec<Step>,
    source_after: Option<Endpoint>,
    destination_after: Option<Endpoint>,
    onward: Option<Onward>,
    /// The address of a new mapping, if there is no choice.
    address: Option<AddressIndex>,
    /// The sender, if it has no record.
    new_host: Option<NewHost>,
    /// The receiver, if it has no record.
    receiver: Option<HostKey>,
    /// A bit for each gateway to whose servers it could be a first request.
    asks: u64,
    /// A copy, which draws the same numbers.
    random: Random,
}

impl Account {
    fn new(realm: RealmId, random: &Random, steps: Vec<Step>) -> Account {
        let random = random.clone();
        let new_host = None;
        Account {
            realm,
            steps,
            source_after: None,
            destination_after: None,
            onward: None,
            address: None,
            new_host,
            receiver: None,
            asks: 0,
            random,
        }
    }

    /// Gateways read first requests over UDP only.
    fn look_into(&mut self, packet: &[u8], parsed: &Parsed) {
        if parsed.class != Class::Udp || parsed.is_fragment() {
            return;
        }
        for number in 0..alg::ALGS.len() as u8 {
            self.asks |= u64::from(asks(AlgId(number), payload_of(packet, parsed))) << number;
        }
    }

    fn asks(&self, alg: AlgId) -> bool {
        self.asks >> alg.0 & 1 != 0
    }

    fn parsed(&mut self, parsed: &Parsed) {
        self.step(|| Step::Parsed {
            protocol: parsed.protocol_number,
            source: Endpoint::new(parsed.source.into(), parsed.source_port),
            destination: Endpoint::new(parsed.destination.into(), parsed.destination_port),
        });
    }

    fn end(self, verdict: Verdict) -> Explanation {
        Explanation {
            steps: self.steps,
            verdict,
            source_after: self.source_after,
            destination_after: self.destination_after,
            onward: self.onward,
        }
    }
}

impl Report for Account {
    const LISTENS: bool = true;

    fn step(&mut self, step: impl FnOnce() -> Step) {
        let step = step();
        if let Step::Host { number, host, role: HostRole::Sender { is_known: false } } = &step {
            let name = match host.inner {
                Some(inner) => InsideHost::BehindB4 { b4: host.address, inner },
                None => InsideHost::Ipv6(host.address),
            };
            self.new_host = Some(((*number).into(), name));
        }
        self.steps.push(step);
    }
}

impl View<'_> {
    /// The worker that can explain this IP packet.
    pub fn worker_to_ask(&self, now: Instant, side: Side, packet: &[u8]) -> WorkerId {
        if let Some(source) = source_of(packet) {
            return self.snapshot.worker_of_host(source);
        }
        let Ok(parsed) = parse(packet) else { return self.worker };
        match side {
            Side::Inside => self.snapshot.worker_of_subscriber(HostNumber(parsed.source)),
            Side::Outside => self.worker_of_external(now, &parsed, 0),
        }
    }

    fn worker_of_external(&self, now: Instant, parsed: &Parsed, turn: u8) -> WorkerId {
        let space = if parsed.class == Class::Call { Some(CALL_SPACE) } else { parsed.protocol() };
        let Some(protocol) = space else { return self.worker };
        let door = self.door(&Towards::of(parsed, protocol, turn), now);
        self.worker_behind(&door)
    }
}

impl Shard {
    /// What would happen now to an IP packet from an interface that faces `from`.
    ///
    /// Ask the shard of [`View::worker_to_ask`]. Other workers explain the rest
    /// ([`Explanation::onward`]).
    pub fn explain(&self, now: Instant, from: Facing, packet: &[u8]) -> Explanation {
        self.explain_as(now, from, None, packet)
    }

    /// Continues the explanation of another worker.
    pub fn explain_onward(&self, now: Instant, onward: Onward, packet: &[u8]) -> Explanation {
        let from = if onward.via() == Some(Via::Outside) { Facing::OUTSIDE } else { Facing::inside(onward.realm) };
        self.explain_as(now, from, Some(onward), packet)
    }

    fn explain_as(&self, now: Instant, from: Facing, onward: Option<Onward>, packet: &[u8]) -> Explanation {
        let Facing { side, realm } = from;
        let (vacancy, onward) = match onward.map(|onward| (onward, onward.course)) {
            Some((onward, Course::Vacate { asker, protocol, external })) => {
                return self.explain_vacancy(now, onward, (asker, protocol, external));
            }
            Some((_, Course::Leave(vacancy))) => (vacancy, None),
            Some((onward, Course::Enter { .. })) => (Vacancy::Unasked, Some(onward)),
            None => (Vacancy::Unasked, None),
        };
        let mut account = Account::new(realm, &self.path.ledger.random, Vec::new());
        let mut frame = [&[0; ROOM], packet].concat();
        let numbering = if onward.is_some() { Numbering::Any } else { Numbering::Here };
        let start = match self.pass_edge(now, self.ingress(from), &mut frame, numbering, &mut account) {
            Ok(start) => start,
            Err(verdict) => {
                if let (true, None, Ok(parsed)) = (account.steps.is_empty(), onward, parse(packet)) {
                    account.parsed(&parsed);
                }
                return account.end(verdict);
            }
        };
        if let Some(change) = onward.and_then(|onward| onward.quoted)
            && let Some(packet) = frame.get_mut(start..)
            && let Ok(quote) = icmp_quote::parse(packet)
        {
            icmp_quote::rewrite(packet, &quote, &change);
        }
        let packet = frame.get(start..).unwrap_or_default();
        let mut parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        let is_error = parsed.class == Class::IcmpError;
        account.look_into(packet, &parsed);
        // The first half of a hairpin has said it.
        if onward.is_none_or(|onward| onward.via() == Some(Via::Outside)) {
            account.parsed(&parsed);
        }
        let (here, to_ask) = (self.view().worker, || self.view().worker_to_ask(now, side, packet));
        account.step(|| Step::Owner(if onward.is_some() || is_error { here } else { to_ask() }));
        if let Some(onward) = onward {
            (parsed.source, parsed.source_port) = (onward.source.address.to_bits(), onward.source.port);
        }
        let (via, turn, is_vacated) = match onward.map(|onward| onward.course) {
            Some(Course::Enter { via, turn, is_vacated }) => (via, turn, is_vacated),
            _ => (Via::Outside, 0, false),
        };
        let new_host = account.new_host;
        let verdict = match (onward, side) {
            _ if is_error => {
                let entering = (onward.is_some() || side == Side::Outside).then_some((via, turn));
                let bytes = frame.get_mut(start..).unwrap_or_default();
                self.view_with(new_host.as_ref()).explain_error((now, &parsed), bytes, entering, &mut account)
            }
            (None, Side::Inside) => {
                self.view_with(new_host.as_ref()).explain_leaving(now, &parsed, vacancy, &mut account)
            }
            _ => {
                let packet = Inbound { now, parsed: &parsed, via, realm, turn, is_vacated };
                self.view().explain_entering(&packet, &mut account)
            }
        };
        let source = match onward {
            Some(onward) if via == Via::Outside && !is_error => onward.source,
            _ => self.source_of_departure(&parsed, side == Side::Inside, &account),
        };
        let verdict = self.explain_output(&mut frame, start, source, verdict, &mut account);
        self.name_hosts(source, &mut account);
        account.end(verdict)
    }

    /// Answers another worker, whose static mapping waits for the port of this worker's mapping.
    fn explain_vacancy(
        &self,
        now: Instant,
        onward: Onward,
        (asker, protocol, external): (WorkerId, Protocol, Endpoint),
    ) -> Explanation {
        let view = self.view();
        let address = view.snapshot.address_index(external.address);
        let expired = address.and_then(|address| view.expired_at(now, address, protocol, external.port));
        let ends = expired.is_some_and(|index| view.may_end(index));
        let course = Course::Leave(if ends { Vacancy::Vacant } else { Vacancy::Asked });
        let mut account = Account::new(onward.realm, &self.path.ledger.random, Vec::new());
        account.onward = Some(Onward { worker: asker, course, ..onward });
        account.end(Verdict::NoMapping)
    }

    /// Where the receiver sees a packet come from. Instead of an external address that is not
    /// chosen yet, one of a pool.
    fn source_of_departure(&self, parsed: &Parsed, is_from_inside: bool, account: &Account) -> Endpoint {
        let (view, as_it_is) = (self.view(), Endpoint::new(parsed.source.into(), parsed.source_port));
        let is_of_pool = |address| view.local.lookup(address).is_some_and(|local| local.pool_address().is_some());
        account.source_after.unwrap_or_else(|| match is_from_inside && !is_of_pool(parsed.source) {
            true => {
                let chosen = account.address.map(|index| view.snapshot.address(index));
                Endpoint::new(chosen.unwrap_or(parsed.destination.into()), 0)
            }
            false => as_it_is,
        })
    }

    /// Names the IPv6 hosts that steps mean by their numbers, where no step has named them.
    fn name_hosts(&self, remote: Endpoint, account: &mut Account) {
        let mut next = 0;
        while let Some(step) = account.steps.get(next).copied() {
            next += 1;
            let (number, interface) = match step {
                Step::MappingFound { internal, .. } | Step::FlowFound { internal, .. } => (internal.address, None),
                Step::Routed { interface, next_hop, .. } => (next_hop, Some(InterfaceId(interface))),
                _ => continue,
            };
            let is_named = |step: &Step| matches!(step, Step::Host { number: named, .. } if *named == number);
            if !HostNumber::from(number).is_ipv6()
                || account.steps.len() >= STEPS_MAX
                || account.steps.iter().any(is_named)
            {
                continue;
            }
            // A host without a record was found by its static mapping.
            let realm = interface.map(|interface| self.path.ledger.shared.realm_of(interface));
            let planned = account.steps.iter().find_map(|step| match step {
                Step::StaticMapping { host, .. } => self.path.ledger.shared.transition.host_key(realm?, host),
                _ => None,
            });
            let before = account.steps.len();
            self.path.preview_receiver(remote, (Endpoint::new(number, 0), planned), account);
            // Behind the step that means it.
            if account.steps.len() > before {
                account.steps.get_mut(next..).unwrap_or_default().rotate_right(1);
                next += 1;
            }
        }
    }

    fn view_with<'a>(&'a self, new_host: Option<&'a NewHost>) -> View<'a> {
        View { new_host, ..self.view() }
    }

    fn ingress(&self, from: Facing) -> InterfaceId {
        let interfaces = &self.path.ledger.shared.settings().interfaces;
        let position = interfaces.iter().position(|interface| interface.facing() == from);
        InterfaceId(position.unwrap_or_default() as u16)
    }

    /// Returns where the IPv4 packet begins.
    fn pass_edge(
        &self,
        now: Instant,
        ingress: InterfaceId,
        frame: &mut [u8],
        numbering: Numbering,
        account: &mut Account,
    ) -> Result<usize, Verdict> {
        if self.path.ledger.shared.transition.is_off() {
            return Ok(ROOM);
        }
        let mut packet = Packet::in_frame(frame, ROOM as u16, PacketMeta { ingress, ..PacketMeta::default() });
        match self.path.preview_arrival(now, &mut packet, numbering, account) {
            Arrived::Ipv4 => Ok(usize::from(packet.start())),
            Arrived::Elsewhere(owner) => {
                account.step(|| Step::Owner(owner));
                Err(Verdict::NoMapping)
            }
            Arrived::Ended(verdict) => Err(verdict),
            Arrived::Held => Err(Verdict::Reassembled),
        }
    }

    fn explain_output(
        &self,
        frame: &mut [u8],
        start: usize,
        source: Endpoint,
        verdict: Verdict,
        account: &mut Account,
    ) -> Verdict {
        let is_sent = matches!(verdict, Verdict::Inbound | Verdict::Hairpin) && account.onward.is_none();
        let Some(internal) = account.destination_after.filter(|_| is_sent) else { return verdict };
        self.path.preview_receiver(source, (internal, account.receiver), account);
        if !HostNumber::from(internal.address).is_ipv6() {
            return verdict;
        }
        let refused = self.path.preview_departure(frame, start, (source, internal), account.receiver).err();
        if refused == Some(Verdict::AddressNotUsed) {
            self.path.report_unused_source(internal.address, account.receiver, account);
        }
        refused.unwrap_or(verdict)
    }

    /// For traces: replaces `steps`; call it just before [`Shard::process`]. Allocates nothing
    /// while `steps` has room for [`crate::steps::step::STEPS_MAX`].
    pub fn explain_packet(&self, now: Instant, meta: PacketMeta, packet: &[u8], steps: &mut Vec<Step>) {
        steps.clear();
        let is_ipv6 = source_of(packet).is_some() && matches!(meta.stage, Stage::Received | Stage::Steered);
        let mut account = Account::new(
            self.path.ledger.shared.realm_of(meta.ingress),
            &self.path.ledger.random,
            core::mem::take(steps),
        );
        if is_ipv6 {
            self.explain_ipv6_packet(now, meta, packet, &mut account);
        } else {
            self.explain_ipv4_packet(now, meta, packet, &mut account);
        }
        *steps = account.steps;
    }

    #[inline(never)]
    fn explain_ipv6_packet(&self, now: Instant, meta: PacketMeta, packet: &[u8], account: &mut Account) {
        let mut frame = [0; ROOM + PACKET_BUFFER_BYTES];
        let end = ROOM + packet.len();
        let Some(place) = frame.get_mut(ROOM..end) else { return };
        place.copy_from_slice(packet);
        let mut packet = Packet::in_frame(&mut frame[..end], ROOM as u16, meta);
        match self.path.preview_arrival(now, &mut packet, Numbering::Here, account) {
            Arrived::Ipv4 => self.explain_ipv4_packet(now, packet.meta, packet.bytes(), account),
            Arrived::Elsewhere(owner) => account.step(|| Step::Owner(owner)),
            Arrived::Ended(_) | Arrived::Held => {}
        }
    }

    #[inline(never)]
    fn explain_error_packet(
        &self,
        at: (Instant, &Parsed),
        packet: &[u8],
        entering: Option<(Via, u8)>,
        account: &mut Account,
    ) {
        let mut bytes = [0; PACKET_BUFFER_BYTES];
        let Some(place) = bytes.get_mut(..packet.len()) else { return };
        place.copy_from_slice(packet);
        // Only the steps in `account` count.
        let _ = self.view().explain_error(at, place, entering, account);
    }

    fn explain_ipv4_packet(&self, now: Instant, meta: PacketMeta, packet: &[u8], account: &mut Account) {
        let Ok(parsed) = parse(packet) else { return };
        let hairpin = matches!(meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::OwnError);
        let via = if hairpin { Via::Hairpin } else { Via::Outside };
        let side = self.path.ledger.shared.side(meta.ingress);
        account.look_into(packet, &parsed);
        account.parsed(&parsed);
        let at = Arrival { now, meta, parsed: &parsed };
        let inbound = self.view().inbound_of(at, via);
        if parsed.class == Class::IcmpError {
            let entering = (hairpin || side == Side::Outside).then_some((via, meta.turn));
            self.explain_error_packet((now, &parsed), packet, entering, account);
        } else if parsed.is_fragment() {
            let offset = parsed.fragment_offset;
            account.step(|| Step::Fragment { offset, more: parsed.more_fragments });
        } else if hairpin {
            self.view().explain_entering(&inbound, account);
        } else {
            let owner = match side {
                Side::Inside => self.path.ledger.shared.worker_of_subscriber(HostNumber(parsed.source)),
                Side::Outside => self.view().worker_of_external(now, &parsed, meta.turn),
            };
            account.step(|| Step::Owner(owner));
            match side {
                _ if owner != self.path.ledger.worker => {}
                Side::Inside => {
                    let new_host = account.new_host;
                    self.view_with(new_host.as_ref()).explain_leaving(now, &parsed, Vacancy::at(meta.stage), account);
                }
                Side::Outside => {
                    self.view().explain_entering(&inbound, account);
                }
            }
        }
        let source = self.source_of_departure(&parsed, side == Side::Inside, account);
        if let Some(internal) = account.destination_after {
            self.path.preview_receiver(source, (internal, account.receiver), account);
        }
        if !self.path.ledger.shared.transition.is_off() {
            self.name_hosts(source, account);
        }
    }
}
