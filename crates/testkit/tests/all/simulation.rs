//! Whole runs under bad conditions, decided by a seed: several workers, any steering, loss,
//! reordering, duplication, fragments, errors, hairpins, churn and exhaustion. What must hold holds
//! all the time, and at the end nothing is left.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use daemon::routing::rib::Hop;
use daemon::routing::rib::KernelRoute;
use daemon::routing::rib::Table;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::settings::ReuseAtOnce;
use nat::stand_in::Prefix6;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::view::MappingView;
use nat::view::SessionView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::bed::families::ROUTERS;
use testkit::bed::families::home;
use testkit::bed::families::nat64_host;
use testkit::bed::families::prefix_of;
use testkit::bed::families::with_families;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::icmp;
use wire::ipv4;
use wire::tcp::Flags;

fn pick<T: Copy>(random: &mut SmallRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

fn random_settings(random: &mut SmallRng) -> Settings {
    let mut settings = settings().short_timers();
    for protocol in Protocol::ALL {
        let filterings =
            [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
        settings = settings.filtering_of(protocol, pick(random, &filterings));
    }
    settings = settings.pooling(pick(random, &[Pooling::Paired, Pooling::Arbitrary]));
    settings = settings.mtu(pick(random, &[1_500, 1_400]), pick(random, &[1_500, 1_400, 600]));
    settings.pools[0].parity = random.random();
    settings.pools[0].reuse_delay = Duration::from_secs(pick(random, &[0, 5, 120]));
    settings.pools[0].reuse_at_once = ReuseAtOnce { tcp_closed: random.random(), filtered: random.random() };
    settings.inbound_refresh = random.random();
    settings.answer_unsolicited_syn = random.random();
    // Many runs have too little of something.
    if random.random() {
        settings = settings.ports(10_000, 10_000 + random.random_range(7..60));
    }
    settings = settings.limits(|limits| {
        limits.mappings_max = pick(random, &[20, 10_000]);
        limits.extra_sessions_max = pick(random, &[20, 10_000]);
        limits.sessions_per_mapping_max = pick(random, &[3, 4_096]);
        limits.subscribers_max = pick(random, &[8, 1_000]);
        limits.fragmented_datagrams_max = pick(random, &[4, 256]);
        limits.fragments_held_max = pick(random, &[2, 64]);
        limits.unsolicited_syns_max = pick(random, &[2, 64]);
        limits.held_ports_max = pick(random, &[0, 3, 50, 10_000]);
    });
    if random.random() {
        // Web or DNS or both by shared ports, for all or some.
        let ports = pick(random, &[(443, 443), (53, 80), (0, 65_535)]);
        let destination = pick(random, &[Prefix::ALL, topology::prefix([198, 51, 100, 2], 31)]);
        settings = settings.endpoint_dependent(destination, ports);
        settings.limits.flows_max = pick(random, &[8, 10_000]);
        settings.pools[0].shared_ports_min = pick(random, &[1, 3, 64]);
    }
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (random.random(), random.random());
    settings.port_control.mappings_per_subscriber = pick(random, &[1, 3, 64]);
    settings.port_control.lifetime_min = Duration::from_secs(2);
    settings.port_control.lifetime_max = Duration::from_secs(20);
    if random.random() {
        settings.subscriber.ports_max = Protocol::ALL.map(|_| random.random_range(2..12));
    }
    settings.live_routes = random.random();
    if settings.live_routes && random.random() {
        return settings;
    }
    settings.pools[0].subscribers.push(Prefix::HOSTS);
    settings = with_families(settings);
    settings.transition.hosts_max = pick(random, &[6, 2_000]);
    settings
}

/// A label in each payload, so that the receiver knows whether the packet was meant for it.
///
/// | bytes | meaning |
/// |---|---|
/// | 0..4 | the subscriber it is from or for |
/// | 4..6 | the port of that subscriber |
/// | 6..12 | where it was sent to |
const LABEL: usize = 12;

fn label(subscriber: SocketAddrV4, sent_to: SocketAddrV4) -> Vec<u8> {
    let bytes = |endpoint: SocketAddrV4| {
        let [a, b, c, d] = endpoint.ip().octets();
        let [high, low] = endpoint.port().to_be_bytes();
        [a, b, c, d, high, low]
    };
    [bytes(subscriber), bytes(sent_to)].concat()
}

fn read_label(payload: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4)> {
    let label = payload.get(..LABEL)?;
    let endpoint = |bytes: &[u8]| match *bytes {
        [a, b, c, d, high, low] => Some(at(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))),
        _ => None,
    };
    Some((endpoint(&label[..6])?, endpoint(&label[6..])?))
}

/// An external endpoint as the Internet came to know it.
#[derive(Clone, Copy, Debug)]
struct Known {
    protocol: Protocol,
    external: SocketAddrV4,
    internal: SocketAddrV4,
    remote: SocketAddrV4,
}

struct Simulation {
    bed: Bed,
    workers: usize,
    random: SmallRng,
    serial: u32,
    known: Vec<Known>,
    /// Packets that came out, to be quoted by errors, and who sent them.
    left: Vec<(Vec<u8>, SocketAddrV4)>,
    /// Packets on the links, with the worker they go to: reordering happens here.
    in_flight: Vec<(Side, usize, Vec<u8>)>,
    /// Who ever had a flow on an external endpoint.
    users: HashMap<(Protocol, Endpoint), HashSet<Ipv4Addr>>,
    /// Packets that reached the right host.
    reached: u64,
    /// Prefixes that had a route of the kernel.
    routed: HashSet<(Table, Prefix)>,
    /// The same of IPv6.
    routed6: HashSet<(Table, Prefix6)>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = pick(&mut random, &[1, 2, 2, 3, 4]);
        let steering = pick(&mut random, &[Steering::Owner, Steering::Random, Steering::Wrong]);
        let ring_packets = pick(&mut random, &[4, 1_024]);
        let bed = Bed::new(random_settings(&mut random)).workers(workers).seed(seed).ring_packets(ring_packets);
        Simulation {
            bed: bed.steering(steering),
            workers,
            random,
            serial: 0,
            known: Vec::new(),
            left: Vec::new(),
            in_flight: Vec::new(),
            users: HashMap::new(),
            reached: 0,
            routed: HashSet::new(),
            routed6: HashSet::new(),
        }
    }

    fn has_ipv6(&self) -> bool {
        !self.bed.settings().ipv6.addresses.is_empty()
    }

    fn subscriber(&mut self) -> SocketAddrV4 {
        let host = self.random.random_range(0..12);
        let address = match host % 3 {
            1 if self.has_ipv6() => nat64_host(host.into()),
            2 if self.has_ipv6() => home(host.into()),
            _ => [100, 64, 0, 10 + host].into(),
        };
        at(address, pick(&mut self.random, &[53, 5_000, 5_001, 5_002, 40_000]))
    }

    fn remote(&mut self) -> SocketAddrV4 {
        at([198, 51, 100, self.random.random_range(1..6)].into(), pick(&mut self.random, &[53, 80, 443]))
    }

    fn builder(&mut self, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4, side: Side) -> build::Builder {
        match protocol {
            Protocol::Udp => build::udp(from, to),
            Protocol::Icmp if side == Side::Inside => build::echo_request(*from.ip(), *to.ip(), from.port()),
            Protocol::Icmp => build::echo_reply(*from.ip(), *to.ip(), to.port()),
            Protocol::Tcp => {
                let choices = [
                    Flags::SYN,
                    Flags::SYN,
                    Flags::SYN.union(Flags::ACK),
                    Flags::ACK,
                    Flags::ACK.union(Flags::PSH),
                    Flags::FIN.union(Flags::ACK),
                    Flags::RST,
                ];
                let flags = pick(&mut self.random, &choices);
                build::tcp(from, to, flags).sequence(self.random.random_range(0..3_000)).acknowledgment(1)
            }
        }
    }

    /// A packet that carries the label of its subscriber, whole or in pieces.
    fn labelled(&mut self, side: Side, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4, of: SocketAddrV4) {
        self.serial += 1;
        let mut payload = label(of, to);
        let length = pick(&mut self.random, &[0, 1, 30, 500, 1_400, 3_000]);
        // Different in each packet, so that no piece is taken for a piece of another one.
        let filling = SmallRng::seed_from_u64(u64::from(self.serial)).random_iter::<u8>();
        payload.extend(filling.take(length));
        let mut builder = self.builder(protocol, from, to, side).payload(&payload).identification(self.random.random());
        if self.random.random_ratio(1, 30) {
            builder = builder.ttl(self.random.random_range(0..3));
        }
        if self.random.random_ratio(1, 4) {
            builder = builder.dont_fragment();
        }
        if self.random.random_ratio(1, 20) {
            builder = builder.ip_options(&[7, 7, 4, 0, 0, 0, 0]);
        }
        let interfaces = &self.bed.settings().interfaces;
        let mtu = interfaces.iter().find(|interface| interface.side == side).map_or(1_500, |one| usize::from(one.mtu));
        for piece in build::fragment(&builder.build(), mtu) {
            self.send(side, piece);
        }
    }

    /// Onto the link, where it may be lost, doubled or overtaken.
    fn send(&mut self, side: Side, packet: Vec<u8>) {
        if self.random.random_ratio(1, 20) {
            return;
        }
        let worker =
            if self.random.random_ratio(1, 30) { Some(self.random.random_range(0..self.workers)) } else { None };
        let copies = if self.random.random_ratio(1, 30) { 2 } else { 1 };
        for _ in 0..copies {
            let worker = worker.unwrap_or(usize::MAX);
            let end = self.in_flight.len();
            let overtakes = end > 0 && self.random.random_ratio(1, 10);
            let place = if overtakes { self.random.random_range(0..end) } else { end };
            self.in_flight.insert(place, (side, worker, packet.clone()));
        }
    }

    /// A request for port control, now and then of something that cannot be.
    fn asks_for_a_port(&mut self) {
        let host = at([100, 64, 0, 10 + self.random.random_range(0..12)].into(), self.subscriber().port());
        let protocol = pick(&mut self.random, &Protocol::ALL);
        let lifetime = pick(&mut self.random, &[0, 0, 3, 10, 1_000]);
        if self.random.random_ratio(1, 3) {
            let mut message = vec![0, self.random.random_range(0..4), 0, 0];
            message.extend(host.port().to_be_bytes());
            message.extend(self.random.random_range(9_990..10_020_u16).to_be_bytes());
            message.extend(u32::to_be_bytes(lifetime));
            let server = at(OWN_INSIDE, 5_351);
            return self.send(Side::Inside, build::udp(at(*host.ip(), 40_100), server).payload(&message).build());
        }
        let mut ask = Ask::map(*host.ip(), protocol, host.port());
        if self.random.random_ratio(1, 4) {
            ask = Ask::peer(*host.ip(), protocol, host.port(), self.remote());
        } else if self.random.random_ratio(1, 4) {
            ask = ask.set(self.random.random_range(0..9), self.random.random());
        }
        ask = ask.lifetime(lifetime).nonce(pick(&mut self.random, &[1, 1, 1, 2]));
        if self.random.random_ratio(1, 3) {
            ask = ask.suggest(at(pick(&mut self.random, &POOL), self.random.random_range(9_990..10_020)));
        }
        if ask.opcode == 1 && self.random.random_ratio(1, 4) {
            let remote = self.remote();
            ask = ask.filter(pick(&mut self.random, &[0, 96, 120, 128]), remote);
        }
        if self.random.random_ratio(1, 6) {
            ask = ask.prefer_failure();
        }
        self.send(Side::Inside, ask.packet());
    }

    fn sends_something(&mut self) {
        if self.random.random_ratio(1, 12) {
            return self.asks_for_a_port();
        }
        let protocol = pick(&mut self.random, &Protocol::ALL);
        match self.random.random_range(0..20) {
            // From inside to the Internet.
            0..=7 => {
                let (from, to) = (self.subscriber(), self.remote());
                let to = if protocol == Protocol::Icmp { at(*to.ip(), from.port()) } else { to };
                self.labelled(Side::Inside, protocol, from, to, from);
            }
            // An answer, or somebody who heard of the external endpoint.
            8..=14 if !self.known.is_empty() => {
                let known = pick(&mut self.random, &self.known);
                let stranger = self.remote();
                let from = if self.random.random_ratio(1, 5) { stranger } else { known.remote };
                self.labelled(Side::Outside, known.protocol, from, known.external, known.internal);
            }
            // One subscriber to another.
            15..=16 if !self.known.is_empty() => {
                let known = pick(&mut self.random, &self.known);
                let from = self.subscriber();
                self.labelled(Side::Inside, known.protocol, from, known.external, known.internal);
            }
            // A router or host reports about a packet that left.
            17..=18 if !self.left.is_empty() => {
                let place = self.random.random_range(0..self.left.len());
                let (packet, _) = self.left[place].clone();
                let kind = pick(&mut self.random, &[(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)]);
                let quoted = self.random.random_range(28..=packet.len().clamp(28, 500)).min(packet.len());
                let is_outbound = POOL.contains(source(&packet).ip()) && !is_inside(*destination(&packet).ip());
                let (side, from) = match is_outbound {
                    true => (Side::Outside, pick(&mut self.random, &[OUTSIDE_ROUTER, E1, E2])),
                    false => (Side::Inside, *destination(&packet).ip()),
                };
                let error = build::icmp_error(from, *source(&packet).ip(), kind.0, kind.1, &packet[..quoted]);
                self.send(side, error.build());
            }
            // Rubbish.
            _ => {
                let side = pick(&mut self.random, &[Side::Inside, Side::Outside]);
                let mut packet = build::udp(self.subscriber(), at(pick(&mut self.random, &POOL), 10_001)).build();
                for _ in 0..3 {
                    let place = self.random.random_range(0..packet.len());
                    packet[place] = self.random.random();
                }
                packet.truncate(self.random.random_range(0..=packet.len()));
                self.send(side, packet);
            }
        }
    }

    /// A route of the kernel comes, changes or goes. The bed checks that each packet leaves by the
    /// best one.
    fn changes_a_route(&mut self) {
        let (table, interface, prefixes, gateways) = if self.random.random_ratio(2, 3) {
            let prefixes =
                [([0, 0, 0, 0], 0), ([198, 51, 100, 0], 24), ([198, 51, 100, 0], 30), ([198, 51, 100, 2], 32)];
            (Table::Outside, topology::OUTSIDE, prefixes, [2, 3, 4].map(|last| Ipv4Addr::new(192, 0, 2, last)))
        } else {
            let prefixes =
                [([100, 64, 0, 8], 29), ([100, 64, 0, 16], 30), ([100, 64, 0, 12], 32), ([100, 64, 0, 0], 24)];
            (
                Table::Inside(RealmId::default()),
                topology::INSIDE,
                prefixes,
                [2, 3, 4].map(|last| Ipv4Addr::new(100, 64, 0, last)),
            )
        };
        let (address, length) = pick(&mut self.random, &prefixes);
        let prefix = topology::prefix(address, length);
        let routes = self.random_routes(interface, &gateways.map(Ipv4Addr::to_bits));
        self.bed.set_routes(table, prefix, &routes);
        self.routed.insert((table, prefix));
        self.look();
    }

    /// The same of a route inside to IPv6 hosts: of all NAT64 hosts or B4s, some, or one.
    fn changes_a_route6(&mut self) {
        let number = self.random.random_range(0..12);
        let host = pick(&mut self.random, &[nat64_host(number), home(number)]);
        let prefix = prefix_of(host, pick(&mut self.random, &[0, 16, 32, 53, 55, 56, 64, 128]));
        let table = Table::Inside(RealmId::default());
        let routes = self.random_routes(topology::INSIDE, &ROUTERS);
        self.bed.set_routes6(table, prefix, &routes);
        self.routed6.insert((table, prefix));
        self.look();
    }

    /// Routes of a prefix: none, one, or two of different metrics, by some of these routers.
    fn random_routes<A: Copy + Ord>(&mut self, interface: InterfaceId, routers: &[A; 3]) -> Vec<KernelRoute<A>> {
        let routes = pick(&mut self.random, &[0, 1, 1, 2]);
        let mut route = |metric| {
            // None: packets are dropped.
            let count = pick(&mut self.random, &[0, 1, 1, 2, 3]);
            let first = self.random.random_range(0..routers.len());
            let chosen = routers.iter().cycle().skip(first).take(count);
            let mut hops: Vec<Hop<A>> = chosen
                .map(|gateway| Hop { interface, gateway: *gateway, weight: self.random.random_range(1..4) })
                .collect();
            hops.sort_unstable();
            KernelRoute { protocol: 186, metric, hops, object: None }
        };
        (0..routes).map(&mut route).collect()
    }

    fn arrives(&mut self, count: usize) {
        for (side, worker, packet) in self.in_flight.drain(..count.min(self.in_flight.len())) {
            match worker {
                usize::MAX => self.bed.offer(side, &packet),
                worker => self.bed.offer_to(worker, side, &packet),
            }
        }
    }

    /// Looks at everything that came out. The bed has checked addresses, checksums, TTL and payload
    /// already.
    fn look(&mut self) {
        for packet in self.bed.take_outside() {
            self.outside_sees(packet);
        }
        for packet in self.bed.take_inside() {
            self.inside_sees(packet);
        }
        let excess = self.known.len().saturating_sub(200);
        self.known.drain(..excess);
        let excess = self.left.len().saturating_sub(50);
        self.left.drain(..excess);
    }

    fn outside_sees(&mut self, packet: Vec<u8>) {
        let header = packet::header(&packet);
        if header.is_fragment() || is_error(&packet) {
            return;
        }
        let Some(protocol) = Protocol::from_number(header.protocol()) else { return };
        let Some((subscriber, _)) = read_label(payload(&packet)) else { return };
        let (external, remote) = (source(&packet), destination(&packet));
        self.known.push(Known { protocol, external, internal: subscriber, remote });
        self.left.push((packet, subscriber));
    }

    fn inside_sees(&mut self, packet: Vec<u8>) {
        let header = packet::header(&packet);
        if source(&packet) == at(OWN_INSIDE, 5_351) {
            return;
        }
        if is_error(&packet) {
            // An error to a subscriber quotes a packet that the subscriber sent, as it was sent.
            let to = *destination(&packet).ip();
            if *source(&packet).ip() != OWN_INSIDE {
                assert_eq!(*source(quote(&packet)).ip(), to, "an error about somebody else's packet: {packet:02x?}");
            }
            return;
        }
        if header.fragment_offset_bytes() != 0 {
            return;
        }
        let Some(protocol) = Protocol::from_number(header.protocol()) else { return };
        let Some((subscriber, sent_to)) = read_label(payload(&packet)) else { return };
        // An external endpoint may have a new owner since the Internet heard of it; nobody else may
        // get the packet.
        let to = destination(&packet);
        let owner = self.bed.mappings().into_iter().find(|mapping| {
            mapping.protocol == protocol && at(mapping.external.address, mapping.external.port) == sent_to
        });
        let owner = owner.map(|mapping| at(mapping.internal.address, mapping.internal.port));
        let owner = owner.or_else(|| self.owner_of_flow(protocol, sent_to, source(&packet)));
        assert_eq!(owner, Some(to), "a packet to {sent_to}, which was {subscriber}");
        self.reached += u64::from(subscriber == to);
        self.left.push((packet, subscriber));
    }

    /// Who shares the external endpoint and speaks to this remote one.
    fn owner_of_flow(&self, protocol: Protocol, external: SocketAddrV4, remote: SocketAddrV4) -> Option<SocketAddrV4> {
        let found = self.bed.sessions().into_iter().find(|session| {
            session.shared
                && session.protocol == protocol
                && at(session.external.address, session.external.port) == external
                && session.remote.address == *remote.ip()
                && (protocol == Protocol::Icmp || session.remote.port == remote.port())
        });
        found.map(|session| at(session.internal.address, session.internal.port))
    }

    /// External endpoints are unique, and every port in use has its mapping.
    fn check(&mut self) {
        self.bed.settle();
        self.look();
        let mappings = self.bed.mappings();
        let mut externals = HashSet::new();
        let mut internals = HashSet::new();
        for mapping in &mappings {
            assert!(externals.insert((mapping.protocol, mapping.external)), "{} twice", mapping.external);
            assert!(internals.insert((mapping.protocol, mapping.internal)), "{} twice", mapping.internal);
        }
        let flows: Vec<_> = self.bed.sessions().into_iter().filter(|session| session.shared).collect();
        let mut outside = HashSet::new();
        let mut inside = HashSet::new();
        for flow in &flows {
            assert!(!externals.contains(&(flow.protocol, flow.external)), "{} is a mapping's too", flow.external);
            assert!(outside.insert((flow.protocol, flow.external, flow.remote)), "{flow:?} twice outside");
            assert!(inside.insert((flow.protocol, flow.internal, flow.remote)), "{flow:?} twice inside");
        }
        for session in self.bed.sessions().iter().filter(|session| !session.shared) {
            assert!(!inside.contains(&(session.protocol, session.internal, session.remote)), "{session:?} and a flow");
        }
        let in_records: u64 = self
            .bed
            .shards()
            .map(|shard| u64::from(shard.view().mappings_len()) + shard.view().shared_ports_len() as u64)
            .sum();
        let held = self.bed.ports_held();
        assert!(held <= u64::from(self.bed.settings().limits.held_ports_max) * self.workers as u64);
        assert!(self.bed.ports_used() <= in_records + held);
        assert!(self.bed.ports_used() >= mappings.len() as u64 + held);
        if self.bed.settings().pools[0].pooling == Pooling::Paired {
            let mut address_of = HashMap::new();
            for mapping in &mappings {
                let address = address_of.entry(mapping.internal.address).or_insert(mapping.external.address);
                assert_eq!(*address, mapping.external.address, "one subscriber, one address");
            }
            for flow in &flows {
                let address = address_of.entry(flow.internal.address).or_insert(flow.external.address);
                assert_eq!(*address, flow.external.address, "one subscriber, one address");
            }
        }
        self.note_users();
        self.check_ports(&mappings, &flows);
        let limits = self.bed.settings().limits;
        assert!(self.bed.counters().fragments_held <= u64::from(limits.fragments_held_max) * self.workers as u64);
        self.bed.check_books();
    }

    /// Takes notice of who has flows where.
    fn note_users(&mut self) {
        for flow in self.bed.sessions().into_iter().filter(|session| session.shared) {
            let users = self.users.entry((flow.protocol, flow.external)).or_default();
            users.insert(flow.internal.address);
        }
    }

    /// No subscriber has more ports than it may, including ports of flows that it used first; a
    /// subscriber that is alone has no others.
    fn check_ports(&self, mappings: &[MappingView], flows: &[SessionView]) {
        let settings = self.bed.settings();
        for view in self.bed.subscribers() {
            for protocol in Protocol::ALL {
                let is_his = |of: Protocol, internal: Ipv4Addr| of == protocol && internal == view.address;
                let mapped = mappings.iter().filter(|one| is_his(one.protocol, one.internal.address)).count();
                let his = flows.iter().filter(|one| is_his(one.protocol, one.internal.address));
                let ports = his.map(|one| one.external).collect::<HashSet<_>>();
                let (mappings, shared) = (view.mappings[protocol.index()], view.shared_ports[protocol.index()]);
                let most = settings.subscriber.ports_max[protocol.index()];
                assert!(mappings.saturating_add(shared) <= most, "{view:?} may have {most}");
                assert!(mapped as u32 <= mappings, "{view:?} has {mapped} mappings of {protocol}");
                // A port that no other subscriber ever had anything on counts for this one.
                let is_his_alone = |external: &Endpoint| self.users[&(protocol, *external)].len() == 1;
                let alone = ports.into_iter().filter(is_his_alone).count() as u32;
                assert!(alone <= shared, "{view:?} has {alone} shared ports of {protocol} alone");
            }
        }
    }

    fn run(mut self) -> Bed {
        for _ in 0..60 {
            for _ in 0..self.random.random_range(1..40) {
                self.sends_something();
            }
            while !self.in_flight.is_empty() {
                let count = self.random.random_range(1..20);
                self.arrives(count);
                let worker = self.random.random_range(0..self.workers);
                self.bed.poll(worker);
                self.look();
                if self.random.random_ratio(1, 4) {
                    let millis = self.random.random_range(0..50);
                    self.bed.jump(Duration::from_millis(millis));
                }
            }
            self.bed.settle();
            self.look();
            // Before some of them end.
            self.note_users();
            if self.bed.settings().live_routes && self.random.random_ratio(1, 3) {
                self.changes_a_route();
            }
            if self.bed.settings().live_routes && self.has_ipv6() && self.random.random_ratio(1, 3) {
                self.changes_a_route6();
            }
            if self.random.random_ratio(1, 10) {
                let seconds = pick(&mut self.random, &[1, 3, 7, 11, 45]);
                self.bed.advance_secs(seconds);
            }
            self.check();
        }
        for (table, prefix) in self.routed.clone() {
            self.bed.set_routes(table, prefix, &[]);
        }
        for (table, prefix) in self.routed6.clone() {
            self.bed.set_routes6(table, prefix, &[]);
        }
        self.bed.run_out();
        assert!(self.reached > 0, "the run shows nothing: no packet from outside reached anybody");
        for address in 0..self.bed.shared().address_count() as u32 {
            assert_eq!(self.bed.shared().paired_subscribers(AddressIndex(address)), 0, "somebody is still paired");
        }
        self.bed.take_inside();
        self.bed.take_outside();
        self.bed
    }
}

fn is_inside(address: Ipv4Addr) -> bool {
    topology::prefix([100, 64, 0, 0], 10).contains(address) || Prefix::HOSTS.contains(address)
}

fn is_error(packet: &[u8]) -> bool {
    let header = packet::header(packet);
    header.protocol() == ipv4::PROTOCOL_ICMP
        && header.fragment_offset_bytes() == 0
        && header.payload().first().is_some_and(|kind| icmp::is_error(*kind))
}

#[test]
fn what_must_hold_holds_under_bad_conditions() {
    covers!("S15");
    for_each_seed(30, |seed| {
        Simulation::new(seed).run();
    });
}
