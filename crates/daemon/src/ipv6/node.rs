//! Addresses and routes of IPv6, and what a packet means to them.

use core::net::Ipv4Addr;
use std::sync::Arc;

use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::Verdict;
use nat::own_icmp6::Problem;
use nat::random::KeyedHash;
use nat::rate_limit::RateLimit;
use nat::rate_limit::Rates;
use nat::routes::live::LiveRoutes;
use nat::settings::IcmpPolicy;
use nat::settings::Nat64;
use nat::settings::Route6;
use nat::types::AddressUse;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Side;
use wire::ethernet::MacAddress;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv4;
use wire::ipv6;
use wire::ipv6::Chain;
use wire::ipv6::Ipv6;
use wire::listener;
use wire::listener::Record;
use wire::neighbour::Kind;
use wire::neighbour::Message;

use crate::ipv6::own::OwnAddresses;
use crate::routing::rib::Table;

/// How long a probe may stay unanswered before an address is used (RFC 4862 §5.4: one probe, and
/// RetransTimer of RFC 4861 §10).
const PROBE_TIME: Duration = Duration::from_secs(1);
/// Some drivers ask the kernel whether a link is up, so not in every poll.
const LOOK_AT_LINKS: Duration = Duration::from_millis(5);
/// Echo replies of a worker: all, and those to one /64 by one station. On a link, hosts have a
/// common /64, so the station counts too: a flood from one host does not end answers to others.
const ECHO_RATES: Rates = Rates { total: 10_000, each: 1_000 };
/// Answers to queries are spread over this time at most, or less if the querier says so.
const REPORT_DELAY_MAX_MS: u32 = 1_000;
/// ff02::1 and ff02::2.
const ALL_NODES: u128 = 0xff02 << 112 | 1;
const ALL_ROUTERS: u128 = 0xff02 << 112 | 2;
/// ::1.
const LOOPBACK: u128 = 1;

#[derive(Clone, Copy, Debug)]
struct Own {
    address: u128,
    prefix_length: u8,
    now: AddressUse,
    /// When the probe that this worker has sent is over.
    probed_until: Option<Instant>,
}

impl Own {
    fn is_usable(&self) -> bool {
        self.now == AddressUse::Preferred
    }
}

#[derive(Clone, Debug)]
struct Link {
    facing: Facing,
    /// Link-local first. Empty without IPv6.
    own: Vec<Own>,
    /// This worker sends the probes.
    probes: bool,
    /// The link was not up yet, so a probe or a report would be lost.
    is_awaited: bool,
    /// The kernel has the interface: it answers for its addresses and asks for neighbours.
    has_kernel: bool,
    /// When a report of the groups is due, and what it says.
    report: Option<(Instant, Record)>,
}

/// A station of a neighbour; workers exchange these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt6 {
    /// Interface it was seen on.
    pub interface: InterfaceId,
    /// IPv6 address, in host bit order.
    pub address: u128,
    /// Its link-layer address; `None` confirms the known one (RFC 4861 §7.2.5).
    pub station: Option<MacAddress>,
    /// It replaces another station that is known (RFC 4861 §7.2.5).
    pub override_known: bool,
}

/// What to do with an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome6 {
    /// Nothing.
    None,
    /// Send an advertisement to the station that asked.
    Advertise {
        /// The answer.
        reply: Message,
        /// The station that asked, if it is known.
        station: Option<MacAddress>,
    },
    /// Another station has an own address, which is no longer used.
    Duplicate(u128),
    /// Another station claims an own address that stays in use.
    Claimed(u128),
    /// Send an echo reply to the message that begins at `offset` of the packet.
    Echo {
        /// Behind all extension headers.
        offset: usize,
    },
    /// Send an ICMPv6 error about the packet.
    Error(Problem),
}

/// Verdict, what the packet says about a neighbour, and what to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The packet's verdict.
    pub verdict: Verdict,
    /// For the callers that asked.
    pub learnt: Option<Learnt6>,
    /// What to send.
    pub outcome: Outcome6,
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Judgement {
        Judgement { verdict, learnt: None, outcome: Outcome6::None }
    }
}

/// A probe or an announcement to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Interface it goes out by.
    pub interface: InterfaceId,
    /// The own address it is about.
    pub address: u128,
    /// True: a probe. False: the address is ours.
    pub is_probe: bool,
}

/// A report of the groups of an interface (RFC 3810), as switches that filter groups need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Interface it goes out by.
    pub interface: InterfaceId,
    /// An own address of the link, or 0 as long as there is none (RFC 3810 §5.2.13).
    pub source: u128,
    /// Unasked or as an answer.
    pub record: Record,
    /// The groups of neighbour messages to own addresses, each once.
    pub groups: [u128; listener::RECORDS_MAX],
    /// Of `groups`, those that count.
    pub groups_len: usize,
}

/// Knows which addresses are ours and where others are.
#[derive(Debug)]
pub struct Node {
    links: Vec<Link>,
    /// What all workers know of the addresses in `links`.
    own: Arc<OwnAddresses>,
    /// The version of `own` that `links` has.
    seen: u32,
    /// An address has changed since [`Node::take_changed`].
    has_changed: bool,
    /// Longest prefix first. Empty with routes of the kernel.
    routes: Vec<Route6>,
    /// Routes of the kernel, and those of the configuration among them.
    live: Option<Arc<LiveRoutes>>,
    /// Bits of the prefix of a subscriber, which keeps one of several next hops.
    subscriber_bits: u8,
    limit: RateLimit,
    echo_limit: RateLimit,
    answers_echo: bool,
    errors_to: [bool; 2],
    /// Where softwires end. They are for the NAT, all else for the node.
    aftrs: Vec<(Facing, u128)>,
    /// No packet comes from the addresses of these prefixes.
    nat64: Vec<Nat64>,
    /// No address waits for the probe of this worker.
    is_settled: bool,
    /// A report is due, at once or later.
    has_reports: bool,
    /// A link was not up when it was last looked at.
    awaits_links: bool,
    look_at: Instant,
    hash: KeyedHash,
}

impl Node {
    /// `probes_on` is true if this worker probes on an interface.
    pub fn new(
        settings: &Settings,
        live: Option<&Arc<LiveRoutes>>,
        own: &Arc<OwnAddresses>,
        probes_on: impl Fn(InterfaceId) -> bool,
        secret: u64,
    ) -> Node {
        let mut links = Vec::with_capacity(settings.interfaces.len());
        for (index, interface) in settings.interfaces.iter().enumerate() {
            let id = InterfaceId(index as u16);
            let has_kernel = settings.kernel_interfaces.contains(&id);
            let of_link = own.of(id).map(|own| Own {
                address: own.address,
                prefix_length: own.prefix_length,
                now: own.now(),
                probed_until: None,
            });
            let of_link: Vec<Own> = of_link.collect();
            let probes = probes_on(id);
            // RFC 4862 §5.4.2: the groups are joined before the first probe.
            let joins = !of_link.is_empty() && !has_kernel && probes;
            let report = joins.then_some((Instant::ORIGIN, Record::Joined));
            let facing = interface.facing();
            links.push(Link { facing, own: of_link, probes, is_awaited: false, has_kernel, report });
        }
        let live = live.filter(|live| live.has_ipv6()).cloned();
        let hash = KeyedHash::new([secret, 6, secret.rotate_left(32), 64]);
        let softwires = settings.transition.softwires.iter();
        let aftrs = softwires.map(|one| (Facing::inside(one.realm), one.aftr.to_bits())).collect();
        Node {
            links,
            own: Arc::clone(own),
            seen: own.version(),
            has_changed: true,
            routes: routes_of(settings),
            live,
            subscriber_bits: settings.transition.prefix_length,
            limit: RateLimit::new(&settings.icmp, hash),
            echo_limit: RateLimit::with_rates(ECHO_RATES, KeyedHash::new([secret, 6, secret.rotate_left(32), 128])),
            answers_echo: settings.icmp.answer_echo,
            errors_to: [settings.icmp.errors_to_inside, settings.icmp.errors_to_outside],
            aftrs,
            nat64: settings.transition.nat64.clone(),
            is_settled: false,
            has_reports: true,
            awaits_links: false,
            look_at: Instant::ORIGIN,
            hash,
        }
    }

    /// Takes what a reload can change: routes, which [`routes_of`] has sorted, and the policy of
    /// own ICMP messages. Returns the previous routes in their place.
    pub fn adopt(&mut self, routes: &mut Vec<Route6>, icmp: &IcmpPolicy) {
        core::mem::swap(&mut self.routes, routes);
        self.limit.set_policy(icmp);
        self.answers_echo = icmp.answer_echo;
        self.errors_to = [icmp.errors_to_inside, icmp.errors_to_outside];
    }

    /// No interface has IPv6.
    pub fn is_off(&self) -> bool {
        self.links.iter().all(|link| link.own.is_empty())
    }

    /// Whether an interface has IPv6.
    pub fn is_on(&self, interface: InterfaceId) -> bool {
        self.links.get(interface.index()).is_some_and(|link| !link.own.is_empty())
    }

    /// Probes and reports wait for their links: see [`Node::look_at_links`].
    pub fn await_links(&mut self) {
        for link in &mut self.links {
            link.is_awaited = link.probes && !link.has_kernel && !link.own.is_empty();
        }
        self.awaits_links = true;
    }

    /// True if it is time to look whether links are up. Nothing is sent by a link before: a driver
    /// that still negotiates it loses what it gets.
    #[inline]
    pub fn awaits_links(&self, now: Instant) -> bool {
        self.awaits_links && now >= self.look_at
    }

    /// Finds out which of the awaited links are up.
    #[cold]
    pub fn look_at_links(&mut self, now: Instant, is_up: impl Fn(InterfaceId) -> bool) {
        self.look_at = now + LOOK_AT_LINKS;
        self.awaits_links = false;
        for (index, link) in self.links.iter_mut().enumerate() {
            link.is_awaited &= !is_up(InterfaceId(index as u16));
            self.awaits_links |= link.is_awaited;
        }
    }

    /// The next probe or announcement that is due, or None for now.
    #[inline]
    pub fn next_due(&mut self, now: Instant) -> Option<Due> {
        if self.is_settled { None } else { self.advance(now) }
    }

    fn advance(&mut self, now: Instant) -> Option<Due> {
        let mut is_settled = true;
        for (index, link) in self.links.iter_mut().enumerate() {
            // The kernel probes for itself.
            if !link.probes || link.has_kernel {
                continue;
            }
            if link.is_awaited {
                is_settled = false;
                continue;
            }
            let interface = InterfaceId(index as u16);
            for own in link.own.iter_mut().filter(|own| own.now == AddressUse::Tentative) {
                let is_probe = match own.probed_until {
                    None => {
                        own.probed_until = Some(now + PROBE_TIME);
                        true
                    }
                    Some(until) if now >= until => {
                        self.has_changed = true;
                        if !self.own.confirm(interface, own.address) {
                            own.now = AddressUse::Duplicate;
                            continue;
                        }
                        own.now = AddressUse::Preferred;
                        // From an address that snooping switches heed (RFC 3590 §4); also the
                        // second one that RFC 3810 §6.1 asks for.
                        link.report = Some((now, Record::Joined));
                        self.has_reports = true;
                        false
                    }
                    Some(_) => {
                        is_settled = false;
                        continue;
                    }
                };
                return Some(Due { interface, address: own.address, is_probe });
            }
        }
        self.is_settled = is_settled;
        None
    }

    /// Takes over what other threads have found out about own addresses.
    #[inline]
    pub fn follow(&mut self) {
        if self.own.version() != self.seen {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&mut self) {
        self.seen = self.own.version();
        for (index, link) in self.links.iter_mut().enumerate() {
            for own in &mut link.own {
                let now = self.own.now(InterfaceId(index as u16), own.address).unwrap_or(own.now);
                self.has_changed |= own.now != now;
                own.now = now;
            }
        }
    }

    /// Whether own addresses have changed since the last call.
    #[inline]
    pub fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.has_changed)
    }

    /// The own addresses, and whether they may be used.
    pub fn uses(&self) -> impl Iterator<Item = (InterfaceId, u128, AddressUse)> + '_ {
        let links = (0..).map(InterfaceId).zip(&self.links);
        links.flat_map(|(interface, link)| link.own.iter().map(move |own| (interface, own.address, own.now)))
    }

    /// What all threads know of the own addresses.
    pub const fn own_addresses(&self) -> &Arc<OwnAddresses> {
        &self.own
    }

    /// The next report that is due, or None for now.
    #[inline]
    pub fn next_report(&mut self, now: Instant) -> Option<Report> {
        if self.has_reports { self.report(now) } else { None }
    }

    #[inline(never)]
    fn report(&mut self, now: Instant) -> Option<Report> {
        let mut later = false;
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some((at, record)) = link.report else { continue };
            if now < at || link.is_awaited {
                later = true;
                continue;
            }
            link.report = None;
            let mut groups = [0; listener::RECORDS_MAX];
            let mut groups_len = 0;
            for own in link.own.iter().filter(|own| own.now != AddressUse::Duplicate) {
                let group = ipv6::solicited_node(own.address);
                let (before, rest) = groups.split_at_mut(groups_len);
                if !before.contains(&group)
                    && let Some(place) = rest.first_mut()
                {
                    *place = group;
                    groups_len += 1;
                }
            }
            let usable = |own: &&Own| own.is_usable() && ipv6::is_link_local(own.address);
            let source = link.own.iter().find(usable).map_or(0, |own| own.address);
            return Some(Report { interface: InterfaceId(index as u16), source, record, groups, groups_len });
        }
        self.has_reports = later;
        None
    }

    /// A query for listeners: the answer is due within the time it gives, at random so that not all
    /// hosts of a link answer at once (RFC 3810 §6.2).
    fn hear_query(&mut self, now: Instant, interface: InterfaceId, packet: &[u8]) -> Judgement {
        let Some(within) = listener::query_delay_ms(packet) else { return Verdict::LocalIgnored.into() };
        let delay =
            self.hash.hash(now.as_micros(), u64::from(interface.0)) % u64::from(within.min(REPORT_DELAY_MAX_MS) + 1);
        let asked = self.links.get_mut(interface.index()).filter(|link| link.probes && !link.has_kernel);
        if let Some(link) = asked
            && link.report.is_none()
        {
            link.report = Some((now + Duration::from_millis(delay), Record::Current));
            self.has_reports = true;
        }
        Verdict::Local.into()
    }

    /// Stops using an address that another station has, in all workers.
    pub fn give_up(&mut self, interface: InterfaceId, address: u128) {
        self.own.give_up(interface, address);
        self.take_over();
    }

    /// Judges a packet that came in on an interface with IPv6, whose own station is `station`.
    /// `sender` is the station that sent the frame; `is_group` is true if the frame was sent to
    /// several.
    pub fn judge(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        (station, sender): (MacAddress, MacAddress),
        is_group: bool,
        packet: &[u8],
    ) -> Judgement {
        let Ok(view) = Ipv6::new_checked(packet) else { return Verdict::Ipv6Malformed.into() };
        let packet = view.packet();
        let Ok(chain) = ipv6::chain_at_destination(packet) else { return Verdict::Ipv6Malformed.into() };
        let (source, destination) = (view.source(), view.destination());
        if sender == station {
            // Our own packet, come back over a loop in the network or from a capture of both
            // directions.
            return Verdict::LocalIgnored.into();
        }
        if destination == LOOPBACK || destination == 0 {
            return Verdict::DestinationInvalid.into();
        }
        let icmp_type = icmp_type_of(packet, &chain);
        let is_of_neighbour = chain.fragment.is_none()
            && matches!(icmp_type, icmp6::TYPE_NEIGHBOUR_SOLICITATION | icmp6::TYPE_NEIGHBOUR_ADVERTISEMENT);
        if let Err(verdict) = self.check_source(interface, source, is_of_neighbour) {
            return verdict.into();
        }
        if !is_of_neighbour && self.is_unusable(interface, destination) {
            return Verdict::AddressNotUsed.into();
        }
        if self.is_to_us(interface, destination) {
            if is_of_neighbour {
                return match Message::parse(packet) {
                    Ok(message) => self.judge_message(interface, (station, sender), &message),
                    Err(_) => Verdict::NeighbourInvalid.into(),
                };
            }
            if icmp_type == icmp6::TYPE_LISTENER_QUERY {
                return self.hear_query(now, interface, packet);
            }
            return self.judge_local(now, (interface, sender), is_group, packet, &chain);
        }
        if is_group || ipv6::is_multicast(destination) {
            return Verdict::LocalIgnored.into();
        }
        if self.is_aftr(interface, destination) {
            return self.judge_local(now, (interface, sender), is_group, packet, &chain);
        }
        if source == 0 {
            return Verdict::SourceInvalid.into();
        }
        // RFC 4291 §2.5.6: never forwarded.
        if ipv6::is_link_local(source) || ipv6::is_link_local(destination) {
            return Verdict::DestinationInvalid.into();
        }
        let (verdict, problem) = if view.hop_limit() <= 1 {
            (Verdict::TtlExpired, Problem::HOP_LIMIT)
        } else if self.leads(interface, destination).is_some() {
            (Verdict::Ipv6NotForwarded, Problem::PROHIBITED)
        } else {
            (Verdict::NoRoute, Problem::NO_ROUTE)
        };
        self.with_error(now, interface, is_group, packet, verdict, problem)
    }

    /// What would become of a packet to an own address or where softwires end; `None` for another.
    pub fn preview(&self, interface: InterfaceId, packet: &[u8]) -> Option<Verdict> {
        let view = Ipv6::new_checked(packet).ok()?;
        let packet = view.packet();
        let destination = view.destination();
        if !self.is_to_us(interface, destination) && !self.is_aftr(interface, destination) {
            return None;
        }
        let Ok(chain) = ipv6::chain_at_destination(packet) else { return Some(Verdict::Ipv6Malformed) };
        Some(match self.check_source(interface, view.source(), false) {
            Err(verdict) => verdict,
            Ok(()) if self.is_unusable(interface, destination) => Verdict::AddressNotUsed,
            Ok(()) => self.decide_local(packet, &chain).verdict,
        })
    }

    /// A packet to an own address or group, or to where softwires end, other than a neighbour
    /// message.
    fn judge_local(
        &mut self,
        now: Instant,
        (interface, sender): (InterfaceId, MacAddress),
        is_group: bool,
        packet: &[u8],
        chain: &Chain,
    ) -> Judgement {
        let decided = self.decide_local(packet, chain);
        match decided.outcome {
            Outcome6::Error(problem) => self.with_error(now, interface, is_group, packet, decided.verdict, problem),
            Outcome6::Echo { .. } => {
                let source = Ipv6::new_unchecked(packet).source();
                let facing = self.links.get(interface.index()).map_or(Facing::OUTSIDE, |link| link.facing);
                let [a, b, c, d, e, f] = sender.0;
                let station = u32::from_be_bytes([a ^ e, b ^ f, c, d]).rotate_left(16);
                let bucket = Ipv4Addr::from_bits(bucket_of(source).to_bits() ^ station);
                match self.echo_limit.allow(now, (facing, bucket)) {
                    true => decided,
                    false => Verdict::LocalIgnored.into(),
                }
            }
            _ => decided,
        }
    }

    /// As [`Node::judge_local`], without limits.
    fn decide_local(&self, packet: &[u8], chain: &Chain) -> Judgement {
        let problem = |code, offset: usize| {
            let problem = Problem { icmp_type: icmp6::TYPE_PARAMETER_PROBLEM, code, parameter: offset as u32 };
            Judgement { verdict: Verdict::LocalIgnored, learnt: None, outcome: Outcome6::Error(problem) }
        };
        if let Some(pointer) = chain.segments_left {
            return problem(icmp6::CODE_ERRONEOUS_FIELD, pointer);
        }
        // RFC 8200 §4.2.
        match ipv6::unknown_option(packet) {
            Some(option) if option.is_reported => return problem(icmp6::CODE_UNKNOWN_OPTION, option.offset),
            Some(_) => return Verdict::LocalIgnored.into(),
            None => {}
        }
        if chain.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
            // Nothing is reassembled here.
            return Verdict::LocalIgnored.into();
        }
        let view = Ipv6::new_unchecked(packet);
        match chain.protocol {
            ipv6::PROTOCOL_ICMP6 => {
                let bytes = packet.get(chain.offset..).unwrap_or_default();
                let message = Icmp6::new_unchecked(bytes);
                if message.icmp_type() != icmp6::TYPE_ECHO_REQUEST
                    || bytes.len() < icmp6::HEADER_LENGTH
                    || !self.answers_echo
                    || view.source() == 0
                    || ipv6::is_multicast(view.destination())
                {
                    return Verdict::LocalIgnored.into();
                }
                if !message.is_checksum_valid(view.source(), view.destination()) {
                    return Verdict::IcmpBadChecksum.into();
                }
                Judgement { verdict: Verdict::Local, learnt: None, outcome: Outcome6::Echo { offset: chain.offset } }
            }
            // No server is here, and none says so, as for IPv4.
            ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP | ipv6::HEADER_NONE => Verdict::LocalIgnored.into(),
            // RFC 4443 §3.4.
            _ => problem(icmp6::CODE_UNKNOWN_NEXT_HEADER, chain.number_offset),
        }
    }

    /// Whether a packet can come from this address. Claims of neighbours to own addresses are
    /// judged elsewhere.
    fn check_source(&self, interface: InterfaceId, source: u128, is_of_neighbour: bool) -> Result<(), Verdict> {
        if ipv6::is_multicast(source) || source == LOOPBACK {
            return Err(Verdict::SourceInvalid);
        }
        if is_of_neighbour {
            return Ok(());
        }
        let is_mapped = source >> 32 == 0xffff || source >> 32 == 0 && source != 0;
        if is_mapped || self.is_own(interface, source) {
            return Err(Verdict::SourceInvalid);
        }
        let facing = self.links.get(interface.index()).map(|link| link.facing);
        let is_of = |one: &Nat64| Some(Facing::inside(one.realm)) == facing && one.prefix.contains(source);
        if self.nat64.iter().any(is_of) { Err(Verdict::SourceInPrefix) } else { Ok(()) }
    }

    /// An address of Natrix, which no host has: in use, or to be. A link-local one is of its link
    /// only.
    fn is_own(&self, interface: InterfaceId, address: u128) -> bool {
        let is_near = ipv6::is_link_local(address);
        let links = self.links.iter().enumerate().filter(|(index, _)| !is_near || *index == interface.index());
        let mut own = links.flat_map(|(_, link)| &link.own);
        own.any(|own| own.address == address && own.now != AddressUse::Duplicate)
            || self.aftrs.iter().any(|(_, aftr)| *aftr == address && !self.is_unusable(interface, address))
    }

    fn judge_message(
        &self,
        interface: InterfaceId,
        (station, sender): (MacAddress, MacAddress),
        message: &Message,
    ) -> Judgement {
        let mut judgement = Judgement::from(Verdict::LocalIgnored);
        // No other station has our address: what goes there would come back to us.
        let is_station = |other: MacAddress| other.is_unicast() && other != station;
        if !sender.is_unicast() || !message.station.is_none_or(is_station) {
            judgement.verdict = Verdict::NeighbourInvalid;
            return judgement;
        }
        let state = self.state_of(interface, message.target);
        match message.kind {
            Kind::Solicitation => {
                // Another station sends from an address of ours. Only an address in use is
                // defended; one that was given up belongs to the station (RFC 4862 §5.4.5).
                match self.state_of(interface, message.source) {
                    Some(AddressUse::Preferred) => {
                        judgement.outcome = Outcome6::Claimed(message.source);
                        return judgement;
                    }
                    Some(AddressUse::Tentative) => return judgement,
                    Some(AddressUse::Duplicate) | None => {}
                }
                match state {
                    // RFC 4862 §5.4.3: two stations that probe at once both give up.
                    Some(AddressUse::Tentative) => {
                        if message.source == 0 {
                            judgement.outcome = Outcome6::Duplicate(message.target);
                        }
                        return judgement;
                    }
                    Some(AddressUse::Preferred) => {}
                    Some(AddressUse::Duplicate) | None => return judgement,
                }
                judgement.verdict = Verdict::Local;
                let is_on_link = self.is_on_link(interface, message.source);
                if message.station.is_some() && is_on_link {
                    let (address, station, override_known) = (message.source, message.station, true);
                    judgement.learnt = Some(Learnt6 { interface, address, station, override_known });
                }
                let reply = message.reply(station);
                // The answer goes to the station that asked: none has to be asked for it.
                let to = if message.source == 0 { None } else { Some(message.station.unwrap_or(sender)) };
                judgement.outcome = Outcome6::Advertise { reply, station: to };
            }
            Kind::Advertisement { override_known, solicited, .. } => match state {
                Some(AddressUse::Tentative) => judgement.outcome = Outcome6::Duplicate(message.target),
                Some(AddressUse::Preferred) => judgement.outcome = Outcome6::Claimed(message.target),
                Some(AddressUse::Duplicate) => {}
                None => {
                    // The answer to a unicast solicitation may leave out the station (§7.2.4).
                    if (message.station.is_some() || solicited) && self.is_on_link(interface, message.target) {
                        let (address, station) = (message.target, message.station);
                        judgement.learnt = Some(Learnt6 { interface, address, station, override_known });
                        judgement.verdict = Verdict::Local;
                    }
                }
            },
        }
        judgement
    }

    /// With the error that RFC 4443 §2.4 (e) and the rates permit.
    fn with_error(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        is_group: bool,
        packet: &[u8],
        verdict: Verdict,
        problem: Problem,
    ) -> Judgement {
        let view = Ipv6::new_unchecked(packet);
        let source = view.source();
        let may_answer = nat::own_icmp6::may_answer(packet)
            && !is_group
            && self.own_address(interface, source).is_some()
            && self.leads(interface, source).is_some();
        let Some(link) = self.links.get(interface.index()).filter(|_| may_answer) else { return verdict.into() };
        let facing = link.facing;
        let permitted = self.errors_to.get(if facing.side == Side::Inside { 0 } else { 1 });
        if permitted != Some(&true) || !self.limit.allow(now, (facing, bucket_of(source))) {
            return verdict.into();
        }
        Judgement { verdict, learnt: None, outcome: Outcome6::Error(problem) }
    }

    /// An own address or a group of the interface. Own addresses of other interfaces of the realm
    /// count, except for link-local ones.
    fn is_to_us(&self, interface: InterfaceId, destination: u128) -> bool {
        let Some(link) = self.links.get(interface.index()) else { return false };
        if ipv6::is_multicast(destination) {
            return matches!(destination, ALL_NODES | ALL_ROUTERS)
                || link.own.iter().any(|own| destination == ipv6::solicited_node(own.address));
        }
        if link.own.iter().any(|own| own.address == destination) {
            return true;
        }
        let others = self.links.iter().filter(|other| other.facing == link.facing);
        !ipv6::is_link_local(destination) && others.flat_map(|other| &other.own).any(|own| own.address == destination)
    }

    fn is_aftr(&self, interface: InterfaceId, destination: u128) -> bool {
        let facing = self.links.get(interface.index()).map(|link| link.facing);
        facing.is_some_and(|facing| self.aftrs.contains(&(facing, destination)))
    }

    /// An own address that is not to be used yet, or no more. Where softwires end may be an address
    /// of any interface.
    fn is_unusable(&self, interface: InterfaceId, destination: u128) -> bool {
        let Some(link) = self.links.get(interface.index()) else { return false };
        let is_end = self.is_aftr(interface, destination);
        let may_have = |other: &&Link| is_end || other.facing == link.facing;
        let known = |links: &mut dyn Iterator<Item = &Link>| {
            links.flat_map(|link| &link.own).find(|own| own.address == destination).map(Own::is_usable)
        };
        let is_usable = known(&mut core::iter::once(link)).or_else(|| known(&mut self.links.iter().filter(may_have)));
        is_usable == Some(false)
    }

    fn state_of(&self, interface: InterfaceId, address: u128) -> Option<AddressUse> {
        let link = self.links.get(interface.index())?;
        link.own.iter().find(|own| own.address == address).map(|own| own.now)
    }

    /// True for addresses whose station may be asked for on this link: link-local ones and those of
    /// its prefixes. Nothing else is ever asked for (RFC 6583 §6).
    pub fn is_on_link(&self, interface: InterfaceId, address: u128) -> bool {
        let Some(link) = self.links.get(interface.index()) else { return false };
        link.own.iter().any(|own| shares_prefix(own.address, address, own.prefix_length))
    }

    /// An own address to send with: of the scope of `other`, best of its prefix. A link-local one
    /// only for this link: no router forwards packets from it (RFC 4291 §2.5.6).
    pub fn own_address(&self, interface: InterfaceId, other: u128) -> Option<u128> {
        let link = self.links.get(interface.index())?;
        let scope = ipv6::is_link_local(other);
        let usable = || link.own.iter().filter(|own| own.is_usable());
        let same = usable().find(|own| shares_prefix(own.address, other, own.prefix_length));
        let same = same.or_else(|| usable().find(|own| ipv6::is_link_local(own.address) == scope));
        same.or_else(|| usable().next().filter(|_| self.is_on_link(interface, other))).map(|own| own.address)
    }

    /// The source of an own error about this packet, which came by `interface`: the address that it
    /// went to, if that is one (RFC 4443 §2.2).
    pub fn error_source(&self, interface: InterfaceId, packet: &[u8]) -> Option<u128> {
        let view = Ipv6::new_unchecked(packet);
        let (source, destination) = (view.source(), view.destination());
        let is_ours = !ipv6::is_multicast(destination)
            && (self.is_to_us(interface, destination) || self.is_aftr(interface, destination))
            && !self.is_unusable(interface, destination);
        if is_ours { Some(destination) } else { self.own_address(interface, source) }
    }

    /// True if the kernel gets a packet to this destination that came by one of its interfaces:
    /// one to a group or an own address. What is only passing through is not for it, because it
    /// might send it on, past the NAT.
    pub fn is_for_kernel(&self, interface: InterfaceId, destination: u128) -> bool {
        ipv6::is_multicast(destination) || self.is_to_us(interface, destination)
    }

    /// Where a packet to `destination` goes that came, or would come, by `interface`: the interface
    /// to leave by, and the neighbour. With routes of the kernel, all packets to a subscriber go by
    /// one of several next hops.
    pub fn leads(&self, interface: InterfaceId, destination: u128) -> Option<(InterfaceId, u128)> {
        if ipv6::is_link_local(destination) || ipv6::is_multicast(destination) {
            return Some((interface, destination));
        }
        let facing = self.links.get(interface.index())?.facing;
        if let Some(live) = &self.live {
            let subscriber = subscriber_word(destination, self.subscriber_bits);
            let hop = live.lookup6(Table::of(facing).index(), destination, subscriber)?;
            return Some((hop.interface, if hop.gateway == 0 { destination } else { hop.gateway }));
        }
        let mut best: Option<(u8, InterfaceId, u128)> = None;
        for (index, link) in self.links.iter().enumerate().filter(|(_, link)| link.facing == facing) {
            for own in &link.own {
                let is_better = best.is_none_or(|(length, ..)| own.prefix_length > length);
                if is_better && shares_prefix(own.address, destination, own.prefix_length) {
                    best = Some((own.prefix_length, InterfaceId(index as u16), destination));
                }
            }
        }
        let is_of_realm = |route: &&Route6| {
            self.links.get(route.interface.index()).is_some_and(|link| link.facing == facing)
                && shares_prefix(route.prefix.to_bits(), destination, route.prefix_length)
        };
        if let Some(route) = self.routes.iter().find(is_of_realm)
            && best.is_none_or(|(length, ..)| route.prefix_length > length)
        {
            return Some((route.interface, route.next_hop.to_bits()));
        }
        best.map(|(_, interface, neighbour)| (interface, neighbour))
    }
}

/// One for each /64, in which a host can have any address.
fn bucket_of(source: u128) -> Ipv4Addr {
    let network = (source >> 64) as u64;
    Ipv4Addr::from_bits((network ^ network >> 32) as u32)
}

/// That of a whole ICMPv6 message; 0 for anything else.
fn icmp_type_of(packet: &[u8], chain: &Chain) -> u8 {
    let is_whole = chain.fragment.is_none_or(|fragment| fragment.is_atomic());
    let is_icmp = chain.protocol == ipv6::PROTOCOL_ICMP6 && is_whole;
    packet.get(chain.offset).copied().filter(|_| is_icmp).unwrap_or(0)
}

/// The prefix of a subscriber in a word.
pub(crate) fn subscriber_word(address: u128, bits: u8) -> u32 {
    let prefix = (address >> (128 - u32::from(bits.clamp(1, 64)))) as u64;
    (prefix ^ prefix >> 32) as u32
}

/// The routes of the settings, longest prefix first.
pub fn routes_of(settings: &Settings) -> Vec<Route6> {
    let mut routes = settings.ipv6.routes.clone();
    routes.sort_by_key(|route| core::cmp::Reverse(route.prefix_length));
    routes
}

fn shares_prefix(a: u128, b: u128, length: u8) -> bool {
    (a ^ b).checked_shr(128 - u32::from(length.min(128))).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests;
