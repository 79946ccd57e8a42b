//! The account of what was seen, and the traffic, requests and reloads of a step.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::VecDeque;

use nat::Counters;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::settings::RuleAction;
use nat::types::PoolName;
use nat::types::Side;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::seq::SliceRandom;
use testkit::account::Account;
use testkit::account::Stage;
use testkit::account::Talk;
use testkit::account::TalkKey;
use testkit::account::keeps;
use testkit::account::limits_of;
use testkit::account::permits;
use testkit::account::rule_for;
use testkit::bed::families::is_probe;
use testkit::bed::families::name_of_inside;
use testkit::connection::SYN_ACK;
use testkit::ledger::ExternalEndpoint;
use testkit::ledger::FlowEndpoint;
use testkit::ledger::Holder;
use testkit::openers::Openers;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::checks::New;
use super::checks::OFFENCES;
use super::checks::REFUSALS;
use super::random_settings::PORTS;
use super::random_settings::SERVICE;
use super::random_settings::all_hosts;
use super::random_settings::any_host;
use super::random_settings::host;
use super::random_settings::impossible;
use super::random_settings::random_policy;
use super::random_settings::tweaked;
use crate::control_sessions;

/// Hosts that ask gateways and port control for ports, and send nothing else.
const ASKERS: Range<u8> = 50..56;

/// A packet from inside that is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) key: TalkKey,
    /// The talk as it was.
    pub(super) talk: Option<Talk>,
    /// It may open something.
    pub(super) opens: bool,
    resets: bool,
    /// The internal endpoint may have had a mapping.
    pub(super) was_mapped: bool,
}

/// Why a packet from inside may not have come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    Denied,
    Rule,
    NoSession,
    Refused,
}

/// A packet from outside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Probe {
    /// The remote end of a talk says something.
    Reply(TalkKey),
    /// Somebody who may be a stranger.
    Stranger { protocol: Protocol, remote: SocketAddrV4, external: SocketAddrV4 },
}

/// Whether a rule would send what answers somebody elsewhere, or from elsewhere.
pub(super) fn leads_away(settings: &Settings, key: &TalkKey) -> bool {
    let action = rule_for(settings, &key.rule_key()).map(|rule| rule.action);
    matches!(action, Some(RuleAction::Redirect(_) | RuleAction::NoTranslation))
}

/// At least and at most so many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Between {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Between {
    pub(super) fn holds(self, count: u64) -> bool {
        (self.least..=self.most).contains(&count)
    }
}

/// Ports that flows share, by the subscriber they count for.
type SharedPortCounts = HashMap<(Ipv4Addr, Protocol), u32>;

/// What a burst brought to light.
pub(super) struct Seen {
    pub(super) events: Vec<Event>,
    pub(super) booked: HashMap<ExternalEndpoint, Holder>,
    pub(super) flows: HashMap<FlowEndpoint, Holder>,
    /// Packets by verdict.
    pub(super) verdicts: Counters,
    pub(super) offenders_before: BTreeSet<Ipv4Addr>,
    /// Who opened a port for flows to share.
    pub(super) opened: BTreeSet<(Ipv4Addr, Protocol)>,
    /// The most of such ports that counted for anybody meanwhile.
    pub(super) opened_at_most: SharedPortCounts,
}

impl Seen {
    /// For people.
    pub(super) fn text(&self) -> String {
        let given = Verdict::ALL.iter().filter(|verdict| self.verdicts.of(**verdict) > 0);
        let verdicts: Vec<_> = given.map(|verdict| (verdict.name(), self.verdicts.of(*verdict))).collect();
        format!("{verdicts:?}, {:?}", self.events)
    }
}

pub(super) struct World {
    pub(super) random: SmallRng,
    pub(super) workers: usize,
    pub(super) account: Account,
    pub(super) openers: Openers,
    pub(super) ledger: Ledger,
    pub(super) counted: Counters,
    /// The settings in use: two during a change.
    pub(super) in_use: Vec<Settings>,
    /// Those before the last change.
    pub(super) before: Option<Settings>,
    /// External endpoints that led to several targets at some time. They rest after the last
    /// session before they are given out again, and till then nobody has them.
    pub(super) led_to_several: HashSet<(Protocol, SocketAddrV4)>,
    /// Talks that the plan of the present change says it keeps, all of them or none.
    pub(super) kept: BTreeSet<TalkKey>,
    /// Each with the pool it was sent to.
    pub(super) offenders: BTreeMap<Ipv4Addr, PoolName>,
    pub(super) offences: HashMap<Ipv4Addr, VecDeque<(Instant, u64)>>,
    pub(super) serial: u32,
    /// A host has asked for ports. What it was refused is an event without a packet.
    pub(super) has_asked: bool,
    pub(super) tally: BTreeMap<&'static str, u64>,
}

/// The number that a packet carries.
fn serial_of(packet: &[u8]) -> Option<u32> {
    let bytes = payload(packet).get(..4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

pub(super) fn without_port(protocol: Protocol, endpoint: SocketAddrV4) -> SocketAddrV4 {
    if protocol == Protocol::Icmp { at(*endpoint.ip(), 0) } else { endpoint }
}

pub(super) fn endpoint_of(protocol: Protocol, external: SocketAddrV4) -> ExternalEndpoint {
    (*external.ip(), protocol, external.port())
}

fn is_of(holder: &Holder, internal: SocketAddrV4) -> bool {
    (holder.subscriber, holder.port) == (*internal.ip(), internal.port())
}

pub(super) fn is_error(packet: &[u8]) -> bool {
    (0..=13).any(|code| is_icmp(packet, 3, code))
}

/// An answer, an announcement or an update, which comes unasked.
fn is_of_port_control(packet: &[u8]) -> bool {
    !is_error(packet) && packet[9] == Protocol::Udp.number() && source(packet) == at(OWN_INSIDE, pcp::SERVER_PORT)
}

/// What Natrix sends inside by itself.
fn is_unasked(packet: &[u8]) -> bool {
    is_of_port_control(packet) || is_probe(packet)
}

impl World {
    pub(super) fn count(&mut self, what: &'static str, amount: u64) {
        *self.tally.entry(what).or_default() += amount;
    }

    /// What was made in the midst of a change may be what it ends.
    fn follow(&mut self) {
        if let [before, next] = &self.in_use[..] {
            self.account.follow(before, next, &self.kept);
        }
    }

    /// Reads what the events and counters say since the last time.
    pub(super) fn look(&mut self, bed: &mut Bed) -> Seen {
        let offenders_before = self.offenders.keys().copied().collect();
        bed.finish_events();
        let reported = bed.take_events_in_order();
        for worker in 0..self.workers {
            let of_worker: Vec<Event> =
                reported.iter().filter(|(of, _)| *of == worker).map(|(_, event)| *event).collect();
            self.ledger.read(worker, &of_worker);
        }
        let events: Vec<Event> = reported.into_iter().map(|(_, event)| event).collect();
        for event in &events {
            let Cause::Verdict(cause) = event.cause else { continue };
            if event.kind == EventKind::Refused && OFFENCES.contains(&cause) {
                let offences = self.offences.entry(event.subscriber).or_default();
                offences.push_back((bed.now(), u64::from(event.amount)));
            }
        }
        for event in &events {
            match event.kind {
                EventKind::PenaltyBegun => {
                    self.offenders.insert(event.subscriber, event.pool);
                    self.check_penalty(bed, event);
                }
                EventKind::PenaltyEnded => {
                    let begun = self.offenders.remove(&event.subscriber);
                    assert_eq!(begun, Some(event.pool), "a penalty ends where it began: {event:?}");
                }
                _ => {}
            }
        }
        let counters = bed.counters();
        let mut verdicts = counters.clone();
        for (since, before) in verdicts.verdicts.iter_mut().zip(&self.counted.verdicts) {
            *since -= before;
        }
        self.counted = counters;
        self.check_ends(&events);
        let (opened, opened_at_most) = self.follow_shared_ports(&events);
        let (booked, flows) = (self.ledger.at(bed.now()), self.ledger.flows_at(bed.now()));
        let seen = Seen { events, booked, flows, verdicts, offenders_before, opened, opened_at_most };
        self.check_counts(&seen);
        seen
    }

    /// Who opened ports for flows to share, and the most that counted for anybody meanwhile.
    fn follow_shared_ports(&mut self, events: &[Event]) -> (BTreeSet<(Ipv4Addr, Protocol)>, SharedPortCounts) {
        let (mut opened, mut most) = (BTreeSet::new(), SharedPortCounts::new());
        for whose in self.openers.all() {
            *most.entry(whose).or_default() += 1;
        }
        for event in events {
            let Some(protocol) = event.protocol else { continue };
            let external = at(event.external, event.first_port);
            let flow = (at(event.subscriber, event.internal_port), at(event.remote, event.remote_port));
            if event.kind == EventKind::FlowEnded {
                self.openers.end(protocol, external, flow);
            }
            // What comes in by a forward shares no port of a pool.
            let begins = event.kind == EventKind::FlowCreated && event.cause == Cause::Outbound;
            if begins && self.openers.begin(protocol, external, flow) {
                let whose = (event.subscriber, protocol);
                opened.insert(whose);
                let count = self.openers.of(event.subscriber, protocol);
                most.entry(whose).and_modify(|most| *most = count.max(*most)).or_insert(count);
            }
        }
        (opened, most)
    }

    /// Forgets what the events say is over.
    fn close(&mut self, seen: &Seen) {
        for event in &seen.events {
            let Some(protocol) = event.protocol else { continue };
            let internal = at(event.subscriber, event.internal_port);
            let external = at(event.external, event.first_port);
            let endpoint = endpoint_of(protocol, external);
            match event.kind {
                EventKind::MappingEnded | EventKind::StaticEnded => {
                    let has_it_again = seen.booked.get(&endpoint).is_some_and(|holder| is_of(holder, internal));
                    if !has_it_again {
                        self.account.ended(protocol, internal, external);
                    }
                }
                EventKind::FlowEnded => {
                    let remote_outside = (event.remote, event.remote_port);
                    let has_it_again =
                        seen.flows.get(&(endpoint, remote_outside)).is_some_and(|holder| is_of(holder, internal));
                    if !has_it_again {
                        self.account.flow_ended(protocol, internal, (external, at(remote_outside.0, remote_outside.1)));
                    }
                }
                _ => {}
            }
        }
    }

    /// The next packet of a talk, or its first.
    fn packet_out(&mut self, now: Instant, key: &TalkKey) -> (Sent, Vec<u8>) {
        self.serial += 1;
        let label = self.serial.to_be_bytes();
        let talk = self.account.talks.get(key).copied();
        let was_mapped = self.account.may_have_mapping(now, key.protocol, key.internal);
        let sent = Sent { key: *key, talk, opens: true, resets: false, was_mapped };
        let (from, to) = (key.internal, key.remote_inside);
        match key.protocol {
            Protocol::Udp => (sent, build::udp(from, to).payload(&label).build()),
            Protocol::Icmp => (sent, build::echo_request(*from.ip(), *to.ip(), from.port()).payload(&label).build()),
            Protocol::Tcp => {
                let stage = talk.map_or(Stage::Reset, |talk| talk.stage);
                let answers = talk.is_some_and(|talk| talk.is_inbound);
                let resets = stage == Stage::Established && self.random.random_ratio(1, 12);
                let (flags, sequence) = match stage {
                    _ if resets => (Flags::RST, 1_005),
                    Stage::Established => (Flags::ACK, 1_005),
                    Stage::Opened if answers => (SYN_ACK, 1_000),
                    Stage::Opened | Stage::Reset => (Flags::SYN, 1_000),
                };
                let opens = flags == Flags::SYN;
                let segment =
                    build::tcp(from, to, flags).sequence(sequence).acknowledgment(if opens { 0 } else { 5_005 });
                (Sent { opens, resets, ..sent }, segment.payload(&label).build())
            }
        }
    }

    /// Packets from inside, one of each talk, in one burst or several. Returns the talks whose
    /// packet came out.
    fn outbound(&mut self, bed: &mut Bed, keys: &[TalkKey]) -> Vec<TalkKey> {
        let now = bed.now();
        self.account.forget(now);
        let mut sent: BTreeMap<u32, Sent> = BTreeMap::new();
        for key in keys {
            let (one, packet) = self.packet_out(now, key);
            sent.insert(self.serial, one);
            bed.offer(Side::Inside, &packet);
            if self.random.random_ratio(1, 8) {
                bed.settle();
            }
        }
        bed.settle();
        let came_out: Vec<_> = bed.take_outside().into_iter().filter(|packet| !is_error(packet)).collect();
        let mut reported = bed.take_inside();
        reported.retain(|packet| !is_unasked(packet));
        assert!(reported.iter().all(|packet| is_error(packet)), "only errors go back");
        let seen = self.look(bed);

        let mut passed = Vec::new();
        let mut new = New::default();
        for packet in &came_out {
            let one =
                serial_of(packet).and_then(|serial| sent.remove(&serial)).expect("it was sent, and came out once");
            let external = source(packet);
            let remote_outside = without_port(one.key.protocol, destination(packet));
            self.check_out(bed, &seen, &one, external, remote_outside);
            // The rule for the packet that made the mapping counts, and those that found it go
            // where it is.
            if self.enter(now, &one, (external, remote_outside), &mut new) {
                self.check_place(&seen, &one, external);
            }
            passed.push(one.key);
        }
        self.check_reasons(now, &seen, sent.values());
        self.check_causes(bed, &seen);
        self.close(&seen);
        self.follow();
        self.check_limits(now, &new, &seen);
        self.count("passed out", passed.len() as u64);
        self.count("new mappings", new.mappings.len() as u64);
        self.count("new flows", new.flows);
        self.count("opened shared ports", seen.opened.len() as u64);
        passed
    }

    /// Enters a packet that came out into the account. Whether it made a mapping for certain.
    fn enter(&mut self, now: Instant, one: &Sent, ends: (SocketAddrV4, SocketAddrV4), new: &mut New) -> bool {
        let (key, (external, remote_outside)) = (one.key, ends);
        let flow = (endpoint_of(key.protocol, external), (*remote_outside.ip(), remote_outside.port()));
        let is_flow = self.ledger.had_flow(&flow, key.internal, now);
        self.account.passed_out(now, key, ends);
        let talk = self.account.talks.get_mut(&key).expect("it was entered");
        talk.is_flow = is_flow;
        if let Some(before) = one.talk.filter(|_| one.resets) {
            // One that was idle for long, or reset before, has no more time by this (RFC 7857
            // §7.1).
            talk.sure_until = talk.sure_until.min(before.sure_until);
        }
        talk.stage = match talk.stage {
            _ if one.resets => Stage::Reset,
            Stage::Opened if !one.opens => Stage::Established,
            Stage::Reset => Stage::Opened,
            other => other,
        };
        let was_there = one.talk.is_some_and(|talk| talk.is_possible(now));
        let is_new_mapping = !is_flow && !one.was_mapped && new.mappings.insert((key.protocol, key.internal));
        let is_new_flow = is_flow && !was_there;
        new.flows += u64::from(is_new_flow);
        if !was_there {
            new.sessions.insert(*key.internal.ip());
        }
        if is_new_mapping || is_new_flow {
            let rate = match &self.in_use[..] {
                [settings] => limits_of(settings, *key.internal.ip()).new_mappings,
                _ => None,
            };
            self.account.made_one(now, *key.internal.ip(), rate);
        }
        is_new_mapping
    }

    /// Packets from outside.
    fn inbound(&mut self, bed: &mut Bed, probes: &[Probe]) {
        let now = bed.now();
        let mut sent: BTreeMap<u32, Probe> = BTreeMap::new();
        for probe in probes {
            let (protocol, remote, external, stage) = match *probe {
                Probe::Reply(key) => {
                    let Some(talk) = self.account.talks.get(&key) else { continue };
                    (key.protocol, talk.remote_outside, talk.external, talk.stage)
                }
                Probe::Stranger { protocol, remote, external } => (protocol, remote, external, Stage::Reset),
            };
            self.serial += 1;
            let label = self.serial.to_be_bytes();
            let packet = match (protocol, stage) {
                (Protocol::Udp, _) => build::udp(remote, external),
                (Protocol::Icmp, _) => build::echo_reply(*remote.ip(), *external.ip(), external.port()),
                (Protocol::Tcp, Stage::Opened) => {
                    build::tcp(remote, external, SYN_ACK).sequence(5_000).acknowledgment(1_005)
                }
                (Protocol::Tcp, Stage::Established) => {
                    build::tcp(remote, external, Flags::ACK).sequence(5_005).acknowledgment(1_009)
                }
                (Protocol::Tcp, Stage::Reset) => build::tcp(remote, external, Flags::SYN).sequence(5_000),
            };
            sent.insert(self.serial, *probe);
            bed.offer(Side::Outside, &packet.payload(&label).build());
        }
        bed.settle();
        let mut came_in = bed.take_inside();
        came_in.retain(|packet| !is_unasked(packet));
        let reported = bed.take_outside();
        assert!(reported.iter().all(|packet| is_error(packet)), "only errors go back");
        let seen = self.look(bed);
        for packet in &came_in {
            let probe =
                serial_of(packet).and_then(|serial| sent.remove(&serial)).expect("it was sent, and came in once");
            self.check_in(now, &probe, destination(packet), source(packet));
        }
        for probe in sent.values() {
            let Probe::Reply(key) = probe else { continue };
            let talk = &self.account.talks[key];
            let is_permitted = self.in_use.iter().all(|settings| permits(settings, &key.rule_key(), false));
            // What is on an address that is only just added is answered once all workers know it.
            let is_known = self.in_use[0].pools.iter().any(|pool| pool.addresses.contains(talk.external.ip()));
            let was_lost = talk.is_sure(now) && is_permitted && (is_known || self.in_use.len() == 1);
            assert!(!was_lost, "an answer was lost: {key:?} {talk:?}; {}", seen.text());
        }
        let refused = REFUSALS.iter().map(|verdict| seen.verdicts.of(*verdict)).sum::<u64>();
        assert!(refused <= sent.len() as u64, "{refused} refused");
        self.check_causes(bed, &seen);
        self.close(&seen);
        self.follow();
        self.count("passed in", came_in.len() as u64);
    }

    /// A host asks for a port, or has a gateway ask. Then somebody comes to the port.
    pub(super) fn ask(&mut self, bed: &mut Bed) {
        let random = &mut self.random;
        let inside = at(host(random.random_range(ASKERS)), random.random_range(3_000..3_006));
        let remote = at(E1, random.random_range(4_000..4_200));
        let protocol = [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
        self.has_asked = true;
        let resets = random.random_range(0..4) > 0;
        // A client uses no port twice.
        self.serial += 1;
        let client = at(*inside.ip(), 10_000 + (self.serial % 50_000) as u16);
        let granted = match random.random_range(0..7) {
            0..2 => {
                let lifetime = [0, 120, 600, 600][random.random_range(0..4)];
                bed.inside(&Ask::map(*inside.ip(), protocol, inside.port()).lifetime(lifetime).packet());
                let reply = bed.take_inside().into_iter().find(|packet| is_of_port_control(packet));
                // NAT-PMP alone answers with another version.
                let told = reply.filter(|reply| payload(reply)[0] == 2).map(|reply| PcpReply::of(payload(&reply)));
                let is_granted = |told: &PcpReply| told.code == 0 && lifetime > 0;
                told.filter(is_granted).map(|told| (protocol, inside, told.external))
            }
            2 => {
                bed.inside(&build::udp(inside, at(E1, 69)).payload(b"\0\x01film\0octet\0").build());
                let sent = bed.take_outside().into_iter().find(|packet| !is_error(packet));
                sent.map(|packet| (Protocol::Udp, inside, source(&packet)))
            }
            3 => {
                control_sessions::ftp(bed, client, inside.port(), resets).inspect(|_| self.count("announced by ftp", 1))
            }
            4 => control_sessions::rtsp(bed, client, 5_010, resets).inspect(|_| self.count("announced by rtsp", 1)),
            5 => {
                if let Some(found) = control_sessions::pptp(bed, client, 7, resets) {
                    assert_eq!(found, (*inside.ip(), 7), "a call leads to somebody else");
                    self.count("called by pptp", 1);
                }
                None
            }
            _ => {
                let phone = at(*inside.ip(), 5_060);
                let invite = crate::gateways::INVITE.replace("100.64.0.10", &inside.ip().to_string());
                bed.inside(&build::udp(phone, at(E1, 5_060)).payload(invite.as_bytes()).build());
                let sent = bed.take_outside().into_iter().find(|packet| !is_error(packet));
                sent.and_then(|packet| {
                    let text = String::from_utf8_lossy(payload(&packet)).into_owned();
                    let word = |before: &str| text.split(before).nth(1)?.split_ascii_whitespace().next();
                    let media: u16 = word("m=audio ")?.parse().ok()?;
                    let external = at(word("c=IN IP4 ")?.parse().ok()?, media);
                    // Nothing was asked for without the gateway.
                    (media != 5_004).then_some((Protocol::Udp, at(*inside.ip(), 5_004), external))
                })
            }
        };
        bed.take_inside();
        if let Some((protocol, inside, external)) = granted {
            self.count("granted", 1);
            bed.outside(&match protocol {
                Protocol::Tcp => build::tcp(remote, external, Flags::SYN).sequence(1).build(),
                _ => build::udp(remote, external).build(),
            });
            for packet in bed.take_inside().iter().filter(|packet| !is_error(packet) && !is_unasked(packet)) {
                assert_eq!(destination(packet), inside, "{external} leads to somebody else");
                self.count("reached", 1);
            }
        }
        bed.take_outside();
        let seen = self.look(bed);
        self.close(&seen);
        self.has_asked = false;
    }

    fn new_key(&mut self) -> TalkKey {
        let random = &mut self.random;
        let protocol = Protocol::ALL[random.random_range(0..3)];
        let number = if random.random_ratio(1, 8) { random.random_range(40..47) } else { random.random_range(8..32) };
        let internal = at(any_host(number), random.random_range(2_000..2_012));
        let remote_inside = match random.random_range(0..5) {
            0 => at(SERVICE, 80),
            1 => at(E1, 5_000),
            _ => at(Ipv4Addr::new(198, 51, 100, random.random_range(1..9)), PORTS[random.random_range(0..PORTS.len())]),
        };
        TalkKey { protocol, internal, remote_inside: without_port(protocol, remote_inside) }
    }

    /// A burst each way: so many of the talks there are, and so many new ones.
    pub(super) fn traffic(&mut self, bed: &mut Bed, known: usize, fresh: usize) {
        let mut keys: Vec<TalkKey> = self.account.talks.keys().copied().collect();
        keys.shuffle(&mut self.random);
        keys.truncate(known);
        // Some subscriber wants many at once now and then.
        let greedy = self.random.random_ratio(1, 6).then(|| any_host(self.random.random_range(8..32)));
        for number in 0..if greedy.is_some() { fresh * 4 } else { fresh } {
            let mut key = self.new_key();
            if let Some(subscriber) = greedy {
                key.internal = at(subscriber, 2_000 + number as u16 % 40);
            }
            keys.push(key);
        }
        keys.sort();
        keys.dedup();
        keys.shuffle(&mut self.random);
        let passed = self.outbound(bed, &keys);
        let mut probes: Vec<Probe> = passed.iter().copied().map(Probe::Reply).collect();
        for _ in 0..known / 4 {
            let remote = at(Ipv4Addr::new(198, 51, 101, self.random.random_range(1..9)), 443);
            let Some(key) = keys.choose(&mut self.random) else { continue };
            let Some(talk) = self.account.talks.get(key).filter(|_| key.protocol == Protocol::Udp) else { continue };
            probes.push(Probe::Stranger { protocol: Protocol::Udp, remote, external: talk.external });
        }
        let settings = self.in_use[0].clone();
        let single = settings.forwards.iter().map(|one| (one.protocol, one.external, one.ports));
        let balanced = settings.balanced_forwards.iter().map(|one| (one.protocol, one.external, one.ports));
        for (protocol, external, (first, last)) in single.chain(balanced) {
            let remote =
                at(Ipv4Addr::new(198, 51, 102, self.random.random_range(1..9)), self.random.random_range(4_000..4_003));
            let external = at(external, self.random.random_range(first..=last));
            probes.push(Probe::Stranger { protocol, remote, external });
        }
        probes.shuffle(&mut self.random);
        self.inbound(bed, &probes);
    }

    /// Switches to other settings during traffic, or is refused.
    pub(super) fn reload(&mut self, bed: &mut Bed) {
        let present = bed.settings().clone();
        let can_not_be = self.random.random_ratio(1, 6);
        let next = match self.random.random_range(0..6) {
            _ if can_not_be => impossible(&present, &mut self.random),
            0 if self.before.is_some() => {
                self.count("taken back", 1);
                self.before.clone().expect("it is there")
            }
            1..=3 => tweaked(&present, &mut self.random),
            _ => random_policy(&mut self.random),
        };
        let mut order: Vec<usize> = (0..self.workers).collect();
        order.shuffle(&mut self.random);
        if can_not_be {
            let (generation, used) = (bed.shared().generation(), bed.ports_used());
            let outcome = bed.reload_while(next, &order, |_| panic!("an impossible change was begun"));
            assert!(outcome.is_err());
            assert_eq!((bed.shared().generation(), bed.ports_used()), (generation, used), "nothing changed");
            assert_eq!(*bed.settings(), present);
            self.count("refused reloads", 1);
            return;
        }
        let now = bed.now();
        self.account.forget(now);
        let census = bed.census(next.clone());
        let fates = |of: &dyn Fn(&nat::Fates) -> u64| {
            census.iter().map(|pool| of(&pool.mappings) + of(&pool.flows)).sum::<u64>()
        };
        self.account.mark_static(&present);
        self.account.mark_static(&next);
        let kept = self.account.talks.iter().filter(|(_, talk)| talk.is_sure(now) && keeps(&next, talk));
        let kept: HashSet<_> =
            kept.map(|(key, talk)| (key.protocol, key.internal, talk.is_flow.then_some(key.remote_inside))).collect();
        assert!(fates(&|one| one.keep) >= kept.len() as u64, "the plan keeps {census:?}, and these {kept:?}");
        self.kept.clear();
        if fates(&|one| one.drain + one.drain_until + one.end) == 0 {
            self.kept.extend(self.account.talks.keys());
        }
        self.count("kept by plans", fates(&|one| one.keep));
        self.in_use = vec![present.clone(), next.clone()];
        self.account.follow(&present, &next, &self.kept);
        for one in &present.balanced_forwards {
            let ports = one.ports.0..=one.ports.1;
            self.led_to_several.extend(ports.map(|port| (one.protocol, at(one.external, port))));
        }
        all_hosts().for_each(|host| self.forget_rate_if_other(host));
        bed.reload_while(next.clone(), &order, |bed| {
            if self.random.random_ratio(1, 3) {
                self.traffic(bed, 6, 2);
            }
        })
        .expect("it can be");
        // Mappings that no formula or block explains any more are recorded.
        bed.sweep();
        all_hosts().for_each(|host| self.forget_rate_if_other(host));
        self.in_use = vec![next];
        self.before = Some(present);
        self.count("reloads", 1);
    }

    fn forget_rate_if_other(&mut self, subscriber: Ipv4Addr) {
        let rates: Vec<_> = self.in_use.iter().map(|settings| limits_of(settings, subscriber).new_mappings).collect();
        if rates.first() != rates.last() {
            self.account.forget_rate(subscriber);
        }
    }

    /// Time passes, with the housekeeping of a running instance or, more often, with all of it at
    /// the end.
    pub(super) fn time_passes(&mut self, bed: &mut Bed) {
        let time = match self.random.random_range(0..12) {
            0 => Duration::from_secs(self.random.random_range(50..400)),
            _ => Duration::from_millis(self.random.random_range(10..9_000)),
        };
        if self.random.random_ratio(1, 8) {
            bed.advance(time);
        } else {
            bed.jump(time);
        }
        bed.sweep();
        bed.meet_neighbours();
        bed.take_inside();
        bed.take_outside();
        let seen = self.look(bed);
        self.close(&seen);
        self.account.forget(bed.now());
    }
}

/// Where the forwards lead what comes to an external endpoint.
pub(super) fn leads_to(settings: &Settings, protocol: Protocol, external: SocketAddrV4) -> Vec<SocketAddrV4> {
    let offset = |of: Protocol, address: Ipv4Addr, (first, last): (u16, u16)| {
        let is_one = (of, address) == (protocol, *external.ip()) && (first..=last).contains(&external.port());
        is_one.then(|| external.port() - first)
    };
    let single = settings.forwards.iter().filter_map(|one| {
        let port = one.inside_port + offset(one.protocol, one.external, one.ports)?;
        Some(at(name_of_inside(&one.inside)?, port))
    });
    let balanced = settings.balanced_forwards.iter().flat_map(|one| {
        let offset = offset(one.protocol, one.external, one.ports);
        one.targets.iter().filter_map(move |target| Some(at(target.address.into(), target.port? + offset?)))
    });
    single.chain(balanced).collect()
}
