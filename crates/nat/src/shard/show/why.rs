//! What would happen to a packet now, step by step, for `natrix why`. The functions of the packet
//! path decide, and nothing changes; a test compares both.

mod everywhere;
mod flows;

use alg::AlgId;

use crate::headers::icmp_quote;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::parse;
use crate::policy::rules::RuleKey;
use crate::random::Random;
use crate::shard::Arrival;
use crate::shard::PACKET_BUFFER_BYTES;
use crate::shard::Shard;
use crate::shard::control_session::asks;
use crate::shard::control_session::payload_of;
use crate::shard::edge::ROOM;
use crate::shard::edge::preview::Arrived;
use crate::shard::edge::preview::Numbering;
use crate::shard::edge::preview::source_of;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::outbound::remote_port;
use crate::show::view::Explanation;
use crate::show::view::Onward;
use crate::state::calls::CALL_SPACE;
use crate::state::flow::endpoint;
use crate::state::host::HostKey;
use crate::state::mapping::InternalKey;
use crate::steps::door::Towards;
use crate::steps::inbound::Act;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::OpenedFor;
use crate::steps::new_mapping::Preview;
use crate::steps::opening::Ask;
use crate::steps::opening::External;
use crate::steps::opening::Hints;
use crate::steps::opening::Source;
use crate::steps::outbound::Belongs;
use crate::steps::outbound::Departure;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Outbound;
use crate::steps::outbound::Question;
use crate::steps::outbound::Way;
use crate::steps::outbound::translated;
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
use crate::types::InsideHost;
use crate::types::InterfaceId;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::types::is_host_number;
use crate::verdict::Verdict;

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

fn from_outside(now: Instant, parsed: &Parsed, turn: u8) -> Inbound<'_> {
    Inbound { now, parsed, via: Via::Outside, realm: RealmId::default(), turn, is_vacated: false }
}

/// `realm`: of the sender.
fn hairpinned(now: Instant, translated: &Parsed, realm: RealmId) -> Inbound<'_> {
    Inbound { now, parsed: translated, via: Via::Hairpin, realm, turn: 0, is_vacated: false }
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
            self.new_host = Some((number.to_bits(), name));
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
            Side::Inside => self.snapshot.worker_of_subscriber(parsed.source),
            Side::Outside => self.worker_of_external(now, &parsed, 0),
        }
    }

    fn worker_of_external(&self, now: Instant, parsed: &Parsed, turn: u8) -> WorkerId {
        let space = if parsed.class == Class::Call { Some(CALL_SPACE) } else { parsed.protocol() };
        let Some(protocol) = space else { return self.worker };
        let door = self.door(&Towards::of(parsed, protocol, turn), now);
        self.worker_behind(&door)
    }

    fn explain_error(&self, at: Arrival<'_>, packet: &[u8], is_from_inside: bool, account: &mut Account) {
        let Ok(quote) = icmp_quote::parse(packet) else { return };
        account.step(|| Step::Quoted {
            protocol: quote.protocol,
            source: quote.source,
            destination: quote.destination,
        });
        let Arrival { now, meta, parsed } = at;
        // Only the steps in `account` count.
        let _ = if is_from_inside {
            self.decide_error_out(now, parsed, &quote, (account.realm, false), account)
        } else {
            self.decide_error_in(now, parsed, &quote, meta.turn, account)
        };
    }

    fn explain_inbound(&self, packet: &Inbound<'_>, account: &mut Account) -> Verdict {
        if packet.parsed.class == Class::IcmpError {
            return Verdict::IcmpQuoteNoMapping;
        }
        let decided = self.decide_inbound(packet, account);
        self.explain_act(packet, decided.act, account)
    }

    fn explain_act(&self, packet: &Inbound<'_>, act: Act, account: &mut Account) -> Verdict {
        let Inbound { now, parsed, via, .. } = *packet;
        let source = Endpoint::new(parsed.source.into(), parsed.source_port);
        let verdict = act.verdict(via).unwrap_or(Verdict::NoMapping);
        let internal = match act {
            Act::Open { mapping, new, purpose: OpenedFor::Gateway, .. } => {
                let asks = self.gateway_of_server(mapping).is_some_and(|gateway| account.asks(gateway.alg));
                let remote = (new.remote_address, new.remote_port);
                if self.decide_to_server(now, mapping, remote, asks).is_read {
                    account.step(|| Step::SessionWouldBeCreated);
                }
                self.state.mappings.get(mapping).internal()
            }
            Act::Enter { mapping, .. } | Act::Open { mapping, .. } | Act::EnterByCall { mapping, .. } => {
                self.state.mappings.get(mapping).internal()
            }
            Act::EnterFlow { flow, .. } => {
                let flow = self.state.flows.get(flow);
                account.destination_after = Some(endpoint(flow.internal()));
                if via == Via::Outside {
                    let port =
                        if flow.protocol() == Protocol::Icmp { parsed.source_port } else { flow.remote_inside().1 };
                    account.source_after = Some(Endpoint::new(flow.remote_inside().0.into(), port));
                }
                return verdict;
            }
            Act::Activate { inside, .. } => {
                let Some(protocol) = parsed.protocol() else { return Verdict::ProtocolUnsupported };
                account.realm = inside.realm;
                let source_after = account.source_after;
                let (key, new_host) = match self.endpoint_of_static(now, &inside, protocol) {
                    Ok(endpoint) => endpoint,
                    Err(verdict) => return verdict,
                };
                if new_host.is_some() {
                    account.receiver = self.snapshot.transition.host_key(inside.realm, &inside.host);
                }
                let view = View { new_host: new_host.as_ref(), ..*self };
                let made = view.explain_new_mapping(now, &key, None, account);
                account.source_after = source_after;
                if let Some(verdict) = made {
                    return verdict;
                }
                account.step(|| Step::SessionWouldBeCreated);
                Endpoint::new(key.address.into(), key.port)
            }
            Act::Lead { aim, .. } => {
                let is_here = self.snapshot.worker_of_subscriber(aim.address) == self.worker;
                let outside = parsed.protocol().map(|protocol| packet.towards(protocol).key);
                if let Some(outside) = outside.filter(|_| is_here)
                    && let Err(verdict) = self.decide_lead(now, &aim, &outside, &mut account.random.clone())
                {
                    return verdict;
                }
                account.step(|| Step::SessionWouldBeCreated);
                Endpoint::new(aim.address.into(), aim.port)
            }
            Act::Pass { .. } if parsed.protocol().is_none() => return verdict,
            Act::Pass { .. } => {
                account.source_after = Some(source);
                account.destination_after = Some(Endpoint::new(parsed.destination.into(), parsed.destination_port));
                return verdict;
            }
            Act::HandOff { .. } | Act::Vacate { .. } => {
                account.onward = Onward::by(packet, &act);
                return verdict;
            }
            Act::Local(_) | Act::Hold { .. } | Act::Drop(_) | Act::Refuse { .. } | Act::Return(_) => return verdict,
        };
        account.destination_after = Some(internal);
        if via == Via::Outside {
            account.source_after = Some(source);
        }
        verdict
    }

    fn explain_second_half(
        &self,
        now: Instant,
        parsed: &Parsed,
        key: &InternalKey,
        (alive, owner, is_balanced): (Option<u32>, Option<(WorkerId, MappingIndex)>, bool),
        account: &mut Account,
    ) -> Verdict {
        let addressed = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        let is_own = alive.is_some() && owner == alive.map(|index| (self.worker, MappingIndex(index)));
        if !is_balanced && (is_own || alive.is_none() && account.source_after == Some(addressed)) {
            // To its own external endpoint, perhaps by the forward that it activates: its session
            // lets it in, unless a filter refuses it.
            let remote = (parsed.destination, remote_port(key.protocol, parsed.destination_port));
            let judged = self.judge(false, RuleKey::of_flow(key, remote), false, account);
            if let Err(verdict) = judged.check() {
                return verdict;
            }
            account.destination_after = Some(Endpoint::new(key.address.into(), key.port));
            return self.explain_route(Side::Inside, key.address, parsed, account).unwrap_or(Verdict::Hairpin);
        }
        // A new mapping's port is unknown, its address only known without a choice.
        let address = account.address.map_or(parsed.source.into(), |index| self.snapshot.address(index));
        let is_known = account.source_after.is_some();
        let translated = match account.source_after {
            Some(source) => translated(parsed, (source.address.to_bits(), source.port)),
            None => Parsed { source: address.to_bits(), source_port: 0, ..*parsed },
        };
        let has_mapping = owner.is_some_and(|(_, mapping)| mapping != MappingIndex::SHARED);
        if is_balanced && !is_known && !has_mapping {
            return self.explain_any_target(&hairpinned(now, &translated, account.realm), account);
        }
        self.explain_translated(now, &translated, account)
    }

    fn explain_translated(&self, now: Instant, translated: &Parsed, account: &mut Account) -> Verdict {
        match self.explain_inbound(&hairpinned(now, translated, account.realm), account) {
            _ if account.onward.is_some() => Verdict::Hairpin,
            verdict => verdict,
        }
    }

    fn explain_route(&self, side: Side, destination: u32, parsed: &Parsed, account: &mut Account) -> Option<Verdict> {
        let towards = match side {
            Side::Inside => Facing::inside(account.realm),
            Side::Outside => Facing::OUTSIDE,
        };
        self.way(towards, destination, parsed, account).err().map(|no_way| no_way.verdict)
    }

    fn explain_outbound(&self, now: Instant, parsed: &Parsed, account: &mut Account) -> Verdict {
        let Some(protocol) = parsed.protocol() else { return self.explain_portless(now, parsed, account) };
        if parsed.class == Class::IcmpError {
            return Verdict::IcmpQuoteNoMapping;
        }
        let key = InternalKey { realm: account.realm, protocol, address: parsed.source, port: parsed.source_port };
        let hash = self.state.hash_of(&key);
        let found = self.state.find_mapping(&key, hash);
        let packet = Outbound { now, parsed, key, hints: Hints::of(hash), found };
        match self.belongs(&packet) {
            Belongs::First(mapping) => return self.explain_first(&packet, mapping, account),
            Belongs::Dependent(flow) => return self.explain_dependent(&packet, flow, account),
            Belongs::Neither => {}
        }
        let question = match self.question(&packet, account).question {
            Ok(question) => question,
            Err(ending) => return self.explain_ending(&packet, &ending, account),
        };
        if let Some(remote_outside) = question.shares
            && let Some(verdict) = self.explain_sharing(&packet, remote_outside, question.ruling.action, account)
        {
            return verdict;
        }
        let mut departure = self.decide_departure(&packet, &question, &mut account.random.clone(), account);
        if let Err(Ending::Expire { way, .. }) = departure {
            departure = self.map(&packet, &question, way, &mut account.random.clone(), account);
        }
        match departure {
            Ok(departure) => self.explain_departure(&packet, &question, departure, account),
            Err(ending) => self.explain_ending(&packet, &ending, account),
        }
    }

    fn explain_first(&self, packet: &Outbound<'_>, mapping: u32, account: &mut Account) -> Verdict {
        let way = match self.leave_by_first(packet, mapping, account).way {
            Ok(way) => way,
            Err(ending) => return self.explain_ending(packet, &ending, account),
        };
        let external = self.state.mappings.get(mapping).external();
        account.source_after = Some(external);
        if let Way::Hairpin { .. } = way {
            let translated = translated(packet.parsed, (external.address.to_bits(), external.port));
            return self.explain_translated(packet.now, &translated, account);
        }
        account.destination_after = Some(packet.destination());
        Verdict::Outbound
    }

    fn explain_ending(&self, packet: &Outbound<'_>, ending: &Ending, account: &mut Account) -> Verdict {
        if let Ending::Pass(_) = ending {
            account.source_after = Some(Endpoint::new(packet.parsed.source.into(), packet.parsed.source_port));
            account.destination_after = Some(packet.destination());
        }
        ending.verdict()
    }

    fn explain_departure(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        departure: Departure,
        account: &mut Account,
    ) -> Verdict {
        let way = match departure {
            Departure::Leave { mapping, way, .. } | Departure::Open { mapping, way, .. } => {
                account.source_after = Some(self.state.mappings.get(mapping).external());
                way
            }
            Departure::Map { mapping, way, .. } => {
                self.note_preview(&mapping, account);
                way
            }
        };
        if let Way::Hairpin { .. } = way {
            let owner = self.owner_of_destination(packet);
            let half = (question.alive, owner, question.is_balanced);
            return self.explain_second_half(packet.now, packet.parsed, &packet.key, half, account);
        }
        account.destination_after = Some(packet.destination());
        Verdict::Outbound
    }

    fn explain_new_mapping(
        &self,
        now: Instant,
        key: &InternalKey,
        wanted: Option<PoolId>,
        account: &mut Account,
    ) -> Option<Verdict> {
        let hash = self.state.hash_of(key);
        let expired = self.state.find_mapping(key, hash);
        let ask = Ask { now, key, wanted, hints: Hints::of(hash), expired };
        let preview = match self.decide_mapping(&ask, &mut account.random.clone(), account) {
            Ok(preview) => preview,
            Err(verdict) => return Some(verdict),
        };
        self.note_preview(&preview, account);
        None
    }

    fn note_preview(&self, preview: &Preview, account: &mut Account) {
        let External { address, port, source } = preview.mapping.external;
        if matches!(source, Source::Static(_)) {
            account.source_after = Some(Endpoint::new(self.snapshot.address(address), port));
        } else {
            account.address = preview.address;
        }
    }

    fn explain_portless(&self, now: Instant, parsed: &Parsed, account: &mut Account) -> Verdict {
        let (mapping, way) = match self.leave_portless(now, account.realm, parsed, account).leaves {
            Ok(leaves) => leaves,
            Err(ending) => return ending.verdict(),
        };
        let external = self.state.mappings.get(mapping).external();
        account.source_after = Some(Endpoint::new(external.address, 0));
        if let Way::Hairpin { .. } = way {
            let translated = translated(parsed, (external.address.to_bits(), external.port));
            return self.explain_translated(now, &translated, account);
        }
        account.destination_after = Some(Endpoint::new(parsed.destination.into(), parsed.destination_port));
        Verdict::Outbound
    }
}

impl Shard {
    /// What would happen now to an IP packet from an interface that faces `from`.
    ///
    /// Ask the shard of [`View::worker_to_ask`]. Other workers explain the rest
    /// ([`Explanation::onward`]).
    pub fn explain(&self, now: Instant, from: Facing, packet: &[u8]) -> Explanation {
        let Facing { side, realm } = from;
        let mut account = Account::new(realm, &self.path.ledger.random, Vec::new());
        let mut frame = [&[0; ROOM], packet].concat();
        let start = match self.pass_edge(now, self.ingress(from), &mut frame, Numbering::Here, &mut account) {
            Ok(start) => start,
            Err(verdict) => {
                if let (true, Ok(parsed)) = (account.steps.is_empty(), parse(packet)) {
                    account.parsed(&parsed);
                }
                return account.end(verdict);
            }
        };
        let packet = frame.get(start..).unwrap_or_default();
        let parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        account.look_into(packet, &parsed);
        account.parsed(&parsed);
        account.step(|| Step::Owner(self.view().worker_to_ask(now, side, packet)));
        let new_host = account.new_host;
        let verdict = match side {
            Side::Inside => self.view_with(new_host.as_ref()).explain_outbound(now, &parsed, &mut account),
            Side::Outside => self.view().explain_inbound(&from_outside(now, &parsed, 0), &mut account),
        };
        let source = self.source_of_departure(&parsed, side == Side::Inside, &account);
        let verdict = self.explain_output(&mut frame, start, source, verdict, &mut account);
        self.name_hosts(source, &mut account);
        account.end(verdict)
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
            if !is_host_number(number.to_bits())
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

    /// Continues the explanation of another worker.
    pub fn explain_onward(&self, now: Instant, onward: Onward, packet: &[u8]) -> Explanation {
        let Onward { realm, source, via, turn, is_vacated, .. } = onward;
        let mut account = Account::new(realm, &self.path.ledger.random, Vec::new());
        let from = if via == Via::Outside { Facing::OUTSIDE } else { Facing::inside(realm) };
        let mut frame = [&[0; ROOM], packet].concat();
        let start = match self.pass_edge(now, self.ingress(from), &mut frame, Numbering::Any, &mut account) {
            Ok(start) => start,
            Err(verdict) => return account.end(verdict),
        };
        let packet = frame.get(start..).unwrap_or_default();
        let parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        account.look_into(packet, &parsed);
        if via == Via::Outside {
            account.parsed(&parsed);
        }
        account.step(|| Step::Owner(self.view().worker));
        let parsed = Parsed { source: source.address.to_bits(), source_port: source.port, ..parsed };
        let verdict =
            self.view().explain_inbound(&Inbound { now, parsed: &parsed, via, realm, turn, is_vacated }, &mut account);
        let source = match via {
            Via::Hairpin => self.source_of_departure(&parsed, true, &account),
            Via::Outside => source,
        };
        let verdict = self.explain_output(&mut frame, start, source, verdict, &mut account);
        self.name_hosts(source, &mut account);
        account.end(verdict)
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
        if !is_host_number(internal.address.to_bits()) {
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
            self.view().explain_error(at, packet, side == Side::Inside && !hairpin, account);
        } else if parsed.is_fragment() {
            let offset = parsed.fragment_offset;
            account.step(|| Step::Fragment { offset, more: parsed.more_fragments });
        } else if hairpin {
            self.view().explain_inbound(&inbound, account);
        } else {
            let owner = match side {
                Side::Inside => self.path.ledger.shared.worker_of_subscriber(parsed.source),
                Side::Outside => self.view().worker_of_external(now, &parsed, meta.turn),
            };
            account.step(|| Step::Owner(owner));
            match side {
                _ if owner != self.path.ledger.worker => {}
                Side::Inside => {
                    let new_host = account.new_host;
                    self.view_with(new_host.as_ref()).explain_outbound(now, &parsed, account);
                }
                Side::Outside => {
                    self.view().explain_inbound(&inbound, account);
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
