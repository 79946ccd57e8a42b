//! What follows on the decisions about a packet.

use crate::external::load_balancing::Aim;
use crate::external::static_mapping::Inside;
use crate::headers::icmp_quote;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::random::Random;
use crate::shard::packet::inbound::Via;
use crate::shard::show::why::Account;
use crate::show::view::Course;
use crate::show::view::Onward;
use crate::state::mapping::InternalKey;
use crate::steps::expired::Expired;
use crate::steps::expired::Vacancy;
use crate::steps::inbound::Act;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::OpenedFor;
use crate::steps::opening::Ask;
use crate::steps::opening::External;
use crate::steps::opening::Hints;
use crate::steps::opening::Source;
use crate::steps::outbound::Departure;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Leaves;
use crate::steps::outbound::Outbound;
use crate::steps::outbound::Question;
use crate::steps::outbound::Way;
use crate::steps::outbound::translated;
use crate::steps::quoted::ErrorAct;
use crate::steps::quoted::IcmpError;
use crate::steps::quoted::known_as;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::ExternalEndpoint;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::MappingIndex;
use crate::types::RealmId;
use crate::types::RemoteOutside;
use crate::verdict::Verdict;

/// `realm`: of the sender.
fn hairpinned(now: Instant, translated: &Parsed, realm: RealmId) -> Inbound<'_> {
    Inbound { now, parsed: translated, via: Via::Hairpin, realm, turn: 0, is_vacated: false }
}

impl View<'_> {
    /// An ICMP error, which is rewritten as it would leave. `entering`: from outside, or the second
    /// half of a hairpin.
    pub(super) fn explain_error(
        &self,
        (now, parsed): (Instant, &Parsed),
        bytes: &mut [u8],
        entering: Option<(Via, u8)>,
        account: &mut Account,
    ) -> Verdict {
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else { return Verdict::IpMalformed };
        let error = IcmpError::read(now, parsed, Facing::inside(account.realm), packet);
        let decided = match entering {
            Some(entering) => self.decide_error_in(&error, entering, account),
            None => self.decide_error_out(&error, account),
        };
        let [source, destination] = [parsed.source, parsed.destination].map(|address| Endpoint::new(address.into(), 0));
        let (quote, change, is_hairpin) = match decided {
            Err(verdict) => return verdict,
            Ok(ErrorAct::HandOff { worker, turn }) => {
                let course = match entering {
                    Some((via, _)) => Course::Enter { via, turn, is_vacated: false },
                    None => Course::Leave(Vacancy::Unasked),
                };
                let quoted = error.quote.ok().map(|quote| quote.unchanged());
                account.onward = Some(Onward { worker, realm: account.realm, source, quoted, course });
                return if entering.is_some_and(|(via, _)| via == Via::Hairpin) {
                    Verdict::Hairpin
                } else {
                    Verdict::NoMapping
                };
            }
            Ok(ErrorAct::Pass { .. }) => {
                (account.source_after, account.destination_after) = (Some(source), Some(destination));
                return Verdict::Passed;
            }
            Ok(ErrorAct::Translate { quote, change, .. }) => (quote, change, false),
            Ok(ErrorAct::Hairpin { quote, change }) => (quote, change, true),
        };
        icmp_quote::rewrite(packet, &quote, &change);
        account.source_after = Some(Endpoint::new(change.outer_source, 0));
        if is_hairpin {
            let translated = Parsed { source: change.outer_source.to_bits(), ..*parsed };
            return self.explain_error((now, &translated), bytes, Some((Via::Hairpin, 0)), account);
        }
        account.destination_after = Some(Endpoint::new(change.outer_destination, 0));
        entering.map_or(Verdict::Outbound, |(via, _)| via.verdict())
    }

    /// A packet from outside, or the second half of a hairpin. No ICMP errors.
    pub(super) fn explain_entering(&self, packet: &Inbound<'_>, account: &mut Account) -> Verdict {
        let act = self.decide_inbound(packet, account).act;
        self.explain_act(packet, act, account)
    }

    /// What would follow, if it could be done.
    fn explain_act(&self, packet: &Inbound<'_>, act: Act, account: &mut Account) -> Verdict {
        let Inbound { now, parsed, via, .. } = *packet;
        let verdict = act.verdict(via).unwrap_or(Verdict::NoMapping);
        let mut source = Endpoint::new(parsed.source.into(), parsed.source_port);
        let internal = match act {
            Act::Enter { mapping, .. } | Act::EnterByCall { mapping, .. } => self.internal(mapping),
            Act::Open { mapping, new, purpose, .. } => {
                let asks = || self.gateway_of_server(mapping).is_some_and(|gateway| account.asks(gateway.alg));
                let remote = RemoteOutside { address: new.remote_address, port: new.remote_port };
                if purpose == OpenedFor::Gateway && self.decide_to_server(now, mapping, remote, asks()).is_read {
                    account.step(|| Step::SessionWouldBeCreated);
                }
                self.internal(mapping)
            }
            Act::EnterFlow { flow, .. } => {
                let flow = self.state.flows.get(flow);
                source = known_as(flow.remote_inside().into(), flow.protocol(), source);
                flow.internal().into()
            }
            Act::Activate { inside, expired, .. } => match self.explain_activation(packet, &inside, expired, account) {
                Ok(internal) => internal,
                Err(verdict) => return verdict,
            },
            Act::Lead { aim, .. } => {
                if let Err(verdict) = self.check_lead(packet, &aim, &account.random) {
                    return verdict;
                }
                account.step(|| Step::SessionWouldBeCreated);
                Endpoint::new(aim.address.into(), aim.port)
            }
            // Untranslated: it keeps its endpoints. What has no ports has none to show.
            Act::Pass { .. } if parsed.protocol().is_some() => packet.external(),
            Act::Vacate { expired, .. } if !self.may_end(expired) => return Verdict::LogFull,
            Act::HandOff { .. } | Act::Vacate { .. } => {
                account.onward = Onward::by(packet, &act);
                return verdict;
            }
            Act::Pass { .. } | Act::Local(_) | Act::Hold { .. } => return verdict,
            Act::Drop(_) | Act::Refuse { .. } | Act::Return(_) => return verdict,
        };
        account.destination_after = Some(internal);
        if via == Via::Outside || verdict == Verdict::Passed {
            account.source_after = Some(source);
        }
        verdict
    }

    fn internal(&self, mapping: u32) -> Endpoint {
        self.state.mappings.get(mapping).internal()
    }

    /// Only the target's worker knows whether there is room for a session.
    fn check_lead(&self, packet: &Inbound<'_>, aim: &Aim, random: &Random) -> Result<(), Verdict> {
        let is_here = self.snapshot.worker_of_subscriber(aim.address) == self.worker;
        let Some(protocol) = packet.parsed.protocol().filter(|_| is_here) else { return Ok(()) };
        self.decide_lead(packet.now, aim, &packet.towards(protocol).key, &mut random.clone()).map(|_| ())
    }

    /// Returns the internal endpoint of the static mapping.
    fn explain_activation(
        &self,
        packet: &Inbound<'_>,
        inside: &Inside,
        expired: Expired,
        account: &mut Account,
    ) -> Result<Endpoint, Verdict> {
        let protocol = packet.parsed.protocol().ok_or(Verdict::ProtocolUnsupported)?;
        account.realm = inside.realm;
        let (key, new_host) = self.endpoint_of_static(packet.now, inside, protocol)?;
        if new_host.is_some() {
            account.receiver = self.snapshot.transition.host_key(inside.realm, &inside.host);
        }
        let view = View { new_host: new_host.as_ref(), ..*self };
        let hash = self.state.hash_of(&key);
        let ask = Ask { now: packet.now, key: &key, wanted: None, hints: Hints::of(hash), expired };
        let preview = view.decide_mapping(&ask, &mut account.random.clone(), account)?;
        if !matches!(preview.mapping.external.source, Source::Static(_)) {
            account.address = preview.address;
        }
        account.step(|| Step::SessionWouldBeCreated);
        Ok(Endpoint::new(key.address.into(), key.port))
    }

    /// A packet from inside. No ICMP errors.
    pub(super) fn explain_leaving(
        &self,
        now: Instant,
        parsed: &Parsed,
        vacancy: Vacancy,
        account: &mut Account,
    ) -> Verdict {
        let realm = account.realm;
        let Some(protocol) = parsed.protocol() else {
            let leaves = self.leave_portless(now, realm, parsed, account).leaves;
            let leaves = leaves.map(|(mapping, way)| Leaves::ByMapping { mapping, session: None, way });
            return self.explain_departure(now, parsed, leaves.map(Departure::Leave), None, account);
        };
        let key = InternalKey { realm, protocol, address: HostNumber(parsed.source), port: parsed.source_port };
        let hash = self.state.hash_of(&key);
        let found = self.state.find_mapping(&key, hash);
        let packet = Outbound { now, parsed, key, hints: Hints::of(hash), found, vacancy };
        let (mut asked, random) = (None, &mut account.random.clone());
        let mut departure = self.decide_outbound(&packet, &mut asked, random, account).departure;
        if let (Err(Ending::Expire { expired, way }), Some(question)) = (&departure, &asked) {
            departure = self.map(&packet, question, (*expired, *way), random, account);
        }
        if let Err(Ending::Ask { worker, external }) = departure {
            let course = Course::Vacate { asker: self.worker, protocol, external };
            let source = Endpoint::new(parsed.source.into(), parsed.source_port);
            account.onward = Some(Onward { worker, realm, source, quoted: None, course });
        }
        self.explain_departure(now, parsed, departure, asked.as_ref().map(|question| (&packet, question)), account)
    }

    /// `opens`: what was asked about a packet that no session was found for at once.
    fn explain_departure(
        &self,
        now: Instant,
        parsed: &Parsed,
        departure: Result<Departure, Ending>,
        opens: Option<(&Outbound<'_>, &Question)>,
        account: &mut Account,
    ) -> Verdict {
        let mut destination = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        // Otherwise the second half finds all that it asks for.
        let opens = opens.filter(|_| !matches!(departure, Ok(Departure::Leave(_))));
        let (source, way) = match departure {
            Ok(Departure::Leave(Leaves::ByDependent { index, way })) => {
                let flow = self.state.flows.get(index);
                destination = known_as(flow.remote_outside().into(), flow.protocol(), destination);
                (Some(flow.external().into()), way)
            }
            Ok(Departure::Leave(Leaves::ByMapping { mapping, way, .. }) | Departure::Open { mapping, way, .. }) => {
                (Some(self.state.mappings.get(mapping).external()), way)
            }
            Ok(Departure::Map { mapping, way, .. }) => {
                let External { address, port, source } = mapping.mapping.external;
                let is_static = matches!(source, Source::Static(_));
                account.address = if is_static { None } else { mapping.address };
                (is_static.then(|| Endpoint::new(self.snapshot.address(address), port)), way)
            }
            Ok(Departure::OpenDependent { new, way }) => {
                destination = known_as(new.outside.remote_outside.into(), new.outside.protocol, destination);
                (None, way)
            }
            Err(ending) => {
                if matches!(ending, Ending::Pass(_)) && parsed.protocol().is_some() {
                    account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
                    account.destination_after = Some(destination);
                }
                return ending.verdict();
            }
        };
        // A call has no port.
        let is_call = parsed.class == Class::Call;
        account.source_after = source.map(|source| if is_call { Endpoint { port: 0, ..source } } else { source });
        if let Way::Out(_) = way {
            account.destination_after = Some(destination);
            return Verdict::Outbound;
        }
        if let Some((packet, question)) = opens {
            return self.explain_second_half(packet, question, account);
        }
        let source = source.unwrap_or(Endpoint::new(parsed.source.into(), 0));
        self.explain_hairpin(now, &translated(parsed, source.into()), account)
    }

    /// The sender's worker only hands it off, if need be.
    fn explain_hairpin(&self, now: Instant, translated: &Parsed, account: &mut Account) -> Verdict {
        match self.explain_entering(&hairpinned(now, translated, account.realm), account) {
            _ if account.onward.is_some() => Verdict::Hairpin,
            verdict => verdict,
        }
    }

    /// The second half of a hairpin whose session would be new.
    fn explain_second_half(&self, packet: &Outbound<'_>, question: &Question, account: &mut Account) -> Verdict {
        let Outbound { now, parsed, ref key, .. } = *packet;
        let (owner, is_balanced) = (self.owner_of_destination(packet), question.is_balanced);
        let own = question.alive.map(|index| (self.worker, MappingIndex(index)));
        let is_to_itself = match own {
            Some(_) => owner == own,
            None => account.source_after == Some(packet.destination()),
        };
        if !is_balanced && is_to_itself {
            // To its own external endpoint, perhaps by the forward that it activates.
            let entered = self.enter_by_session(parsed, key, packet.remote(), account);
            return entered.map_or_else(
                |verdict| verdict,
                |_| {
                    account.destination_after = Some(Endpoint::new(key.address.into(), key.port));
                    Verdict::Hairpin
                },
            );
        }
        // A new mapping's port is unknown, its address only known without a choice.
        let translated = match account.source_after {
            Some(source) => translated(parsed, source.into()),
            None => {
                let chosen = account.address.map(|index| self.snapshot.address(index).to_bits());
                Parsed { source: chosen.unwrap_or(parsed.source), source_port: 0, ..*parsed }
            }
        };
        let has_mapping = owner.is_some_and(|(_, mapping)| mapping != MappingIndex::SHARED);
        if is_balanced && account.source_after.is_none() && !has_mapping {
            return self.explain_any_target(&hairpinned(now, &translated, account.realm), account);
        }
        self.explain_hairpin(now, &translated, account)
    }

    /// The target depends on the external port, which does not exist yet.
    fn explain_any_target(&self, packet: &Inbound<'_>, account: &mut Account) -> Verdict {
        let parsed = packet.parsed;
        let Some(protocol) = parsed.protocol() else { return Verdict::ProtocolUnsupported };
        let generation =
            self.new_targets(ExternalEndpoint { address: parsed.destination, port: parsed.destination_port }, protocol);
        let (length, realm) = (account.steps.len(), account.realm);
        let mut said: Option<Verdict> = None;
        let mut agree = true;
        let mut passes = false;
        for aim in generation.iter().flat_map(|generation| generation.aims(parsed.destination_port)) {
            account.steps.truncate(length);
            account.realm = realm;
            let act = self.enter_target(packet, protocol, &aim, &mut None, account).unwrap_or_else(|act| act);
            let verdict = self.explain_act(packet, act, account);
            agree &= *said.get_or_insert(verdict) == verdict;
            passes |= verdict == Verdict::Hairpin;
        }
        let (Some(first), Some(generation)) = (said, generation) else { return self.explain_entering(packet, account) };
        if generation.targets().len() == 1 {
            return first;
        }
        account.steps.truncate(length);
        account.destination_after = None;
        let external = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        account.step(|| Step::AnyTarget { external, targets: generation.targets().len(), agree });
        if passes { Verdict::Hairpin } else { first }
    }
}
