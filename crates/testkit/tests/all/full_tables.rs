//! A real shard against the reference model where tables are at their worst: a million mappings, up
//! to the last record and the last port of the pool, and hashes that collide because somebody knows
//! the secret.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::sync::Arc;

use nat::Duration;
use nat::Instant;
use nat::NextHopView;
use nat::Outcome;
use nat::Packet;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::Verdict;
use nat::packet::BURST_MAX;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::random::KeyedHash;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::types::AddressIndex;
use nat::types::InterfaceId;
use nat::types::Side;
use nat::types::WorkerId;
use nat::view::Filter;
use nat::view::Query;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::model::Expected;
use testkit::model::Internal;
use testkit::model::Model;
use testkit::*;
use wire::build;
use wire::tcp::Flags;
use wire::verify;

/// Idle time of all but established TCP.
const IDLE: Duration = Duration::from_secs(20);
/// The second word under which subscribers are hashed, and that of sessions found by address only.
const SUBSCRIBER_WORD: u64 = 0x5b5c;
const SESSION_ADDRESS_WORD: u64 = 1 << 16;
/// Port of all servers.
const SERVER_PORT: u16 = 443;
/// External ports each address gives to UDP and to TCP.
const PORTS: usize = 65_536 - 1_024;

/// What is tried.
struct Case {
    secret: [u64; 4],
    addresses: u8,
    mappings_max: u32,
    extra_sessions_max: u32,
    pooling: Pooling,
    filtering: Filtering,
    subscribers: u32,
    /// So many different internal endpoints use UDP; the others use TCP.
    udp_endpoints: u32,
    /// New flows and packets of old ones in each round between fillings.
    packets: usize,
}

impl Case {
    fn settings(&self) -> Settings {
        let addresses: Vec<Ipv4Addr> = (1..=self.addresses).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
        let mut settings = settings()
            .addresses(&addresses)
            .pooling(self.pooling)
            .filtering(self.filtering)
            .timers(|timeouts| {
                timeouts.udp = IDLE;
                timeouts.tcp_opening = IDLE;
                timeouts.tcp_closing = IDLE;
                timeouts.tcp_established = Duration::from_secs(60);
            })
            .limits(|limits| {
                limits.mappings_max = self.mappings_max;
                limits.extra_sessions_max = self.extra_sessions_max;
                limits.subscribers_max = self.subscribers + self.udp_endpoints;
            });
        settings.answer_unsolicited_syn = false;
        // Tables are to be full again at once: ports do not rest.
        settings.pools[0].reuse_delay = Duration::ZERO;
        // Refusals send no ICMP error, so that all that leaves is what was let through.
        settings.icmp.errors_per_second_max = 0;
        settings
    }
}

/// The shard sends nothing by itself in these tests.
struct Nobody;

impl Sink for Nobody {
    fn transmit(&mut self, _: Egress, parts: &[&[u8]]) -> bool {
        panic!("the shard sends by itself: {parts:02x?}");
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        panic!("one worker hands nothing over");
    }
}

struct World {
    case: Case,
    shared: Arc<Shared>,
    shard: Shard,
    model: Model,
    random: SmallRng,
    now: Instant,
    /// Internal endpoints that had a mapping at some time.
    seen: Vec<Internal>,
    refused: u64,
}

impl World {
    fn new(case: Case, seed: u64) -> World {
        let now = Instant::from_micros(3_600_000_000);
        let settings = case.settings();
        let shared = Arc::new(Shared::new(settings.clone(), 1).expect("the settings are in range"));
        let shard = Shard::new(Arc::clone(&shared), WorkerId(0), case.secret).expect("there is memory for a test");
        let model = Model::new(&settings, now);
        let random = SmallRng::seed_from_u64(seed);
        World { case, shared, shard, model, random, now, seen: Vec::new(), refused: 0 }
    }

    fn mappings_max(&self) -> usize {
        self.case.mappings_max as usize
    }

    fn is_full(&self) -> bool {
        self.model.mappings.len() == self.mappings_max()
    }

    /// Ports of a protocol that all addresses together have left.
    fn ports_left(&self, protocol: Protocol) -> u32 {
        let addresses = (0..self.shared.address_count() as u32).map(AddressIndex);
        addresses
            .map(|address| self.shared.ports_available(address, protocol) - self.shared.ports_used(address, protocol))
            .sum()
    }

    fn any_internal(&mut self) -> Internal {
        let address = |number: u32| Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(100, 64, 1, 0)) + number);
        let is_udp = self.case.udp_endpoints > 0 && self.random.random();
        if is_udp {
            let number = self.random.random_range(0..self.case.udp_endpoints);
            return (Protocol::Udp, at(address(self.case.subscribers + number / 50), 5_000 + (number % 50) as u16));
        }
        let host = self.random.random_range(0..self.case.subscribers);
        (Protocol::Tcp, at(address(host), self.random.random_range(1_024..=u16::MAX)))
    }

    /// One of the servers.
    fn remote(&mut self) -> SocketAddrV4 {
        at(Ipv4Addr::new(198, 51, 100, self.random.random_range(1..6)), SERVER_PORT)
    }

    fn packet(&mut self, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4, flags: Flags) -> Vec<u8> {
        match protocol {
            Protocol::Tcp => build::tcp(from, to, flags).sequence(1_000).acknowledgment(1_001).build(),
            _ => build::udp(from, to).payload(&[1, 2, 3]).build(),
        }
    }

    /// The first packet of a flow from anybody.
    fn opens(&mut self) -> (Side, Vec<u8>) {
        let (protocol, internal) = self.any_internal();
        let remote = self.remote();
        (Side::Inside, self.packet(protocol, internal, remote, Flags::SYN))
    }

    /// A packet of somebody known, from either side, that belongs to a session, makes one, or does
    /// not fit.
    fn goes_on(&mut self) -> (Side, Vec<u8>) {
        let place = self.random.random_range(0..self.seen.len());
        let internal = self.seen[place];
        let remote = self.remote();
        let choices = [Flags::SYN, Flags::SYN.union(Flags::ACK), Flags::ACK, Flags::ACK, Flags::FIN.union(Flags::ACK)];
        let flags = choices[self.random.random_range(0..choices.len())];
        match self.model.mappings.get(&internal).map(|mapping| mapping.external) {
            Some(external) if self.random.random() => (Side::Outside, self.packet(internal.0, remote, external, flags)),
            _ => (Side::Inside, self.packet(internal.0, internal.1, remote, flags)),
        }
    }

    /// To an external endpoint that may be anybody's.
    fn strays(&mut self) -> (Side, Vec<u8>) {
        let address = Ipv4Addr::new(203, 0, 113, self.random.random_range(1..=self.case.addresses));
        let external = at(address, self.random.random());
        let remote = self.remote();
        (Side::Outside, self.packet(Protocol::Tcp, remote, external, Flags::SYN))
    }

    /// Gives a burst to the shard, and then one packet after the other to the model.
    fn burst(&mut self, packets: &[(Side, Vec<u8>)]) {
        assert!(packets.len() <= BURST_MAX);
        let mut buffers: Vec<Vec<u8>> = packets.iter().map(|(_, bytes)| bytes.clone()).collect();
        let mut burst: Vec<Packet<'_>> = buffers
            .iter_mut()
            .zip(packets)
            .map(|(bytes, (side, _))| {
                let meta = PacketMeta { ingress: InterfaceId(*side as u16), ..PacketMeta::default() };
                Packet::new(bytes, meta)
            })
            .collect();
        self.shard.process(self.now, &mut burst, &mut Nobody);
        let fates: Vec<(Outcome, Option<Verdict>)> =
            burst.iter().map(|packet| (packet.outcome, packet.verdict)).collect();
        let next_hops: Vec<NextHopView> = self.shard.shared().next_hops().collect();
        for (((side, before), (outcome, verdict)), bytes) in packets.iter().zip(fates).zip(&buffers) {
            let after = match outcome {
                Outcome::Transmit { egress, start, length } => {
                    let packet = &bytes[usize::from(start)..][..usize::from(length)];
                    Some((next_hops[egress.next_hop.index()].interface, packet))
                }
                _ => None,
            };
            self.compare(*side, before, after, verdict);
        }
    }

    fn compare(&mut self, side: Side, before: &[u8], after: Option<(InterfaceId, &[u8])>, verdict: Option<Verdict>) {
        let what = || format!("{:?} to {:?} from {}: {verdict:?}", source(before), destination(before), side.name());
        let mut expected = match side {
            Side::Inside => self.model.inside(before),
            Side::Outside => self.model.outside(before),
        };
        if let Expected::LeavesFromNew(internal, _) = expected {
            let Some((_, packet)) = after else {
                // Nobody is refused while there is room, and the reason is the true one.
                match verdict {
                    Some(Verdict::MappingTableFull) => assert!(self.is_full(), "{}", what()),
                    Some(Verdict::PortsExhausted) => assert_eq!(self.ports_left(internal.0), 0, "{}", what()),
                    _ => panic!("{}", what()),
                }
                self.refused += 1;
                return;
            };
            assert!(!self.is_full(), "one mapping too many: {}", what());
            let external = source(packet);
            expected = self.model.adopt(before, internal, external);
            self.seen.push(internal);
        }
        let got = after.map(|(interface, packet)| {
            assert_eq!(verify::faults(packet), [], "what leaves is sound: {}", what());
            let side = if interface == InterfaceId(0) { Side::Inside } else { Side::Outside };
            Expected::Leaves(side, source(packet), destination(packet))
        });
        assert_eq!(got.unwrap_or(Expected::Silence), expected, "{}", what());
    }

    fn bursts(&mut self, packets: usize, mut next: impl FnMut(&mut World) -> (Side, Vec<u8>)) {
        let mut left = packets;
        while left > 0 {
            let count = left.min(self.random.random_range(1..=BURST_MAX));
            let burst: Vec<(Side, Vec<u8>)> = (0..count).map(|_| next(self)).collect();
            self.burst(&burst);
            left -= count;
        }
    }

    /// New flows until there are so many mappings.
    fn fill_to(&mut self, mappings: usize) {
        while self.model.mappings.len() < mappings {
            let missing = mappings - self.model.mappings.len();
            self.bursts(missing, World::opens);
        }
    }

    /// Time passes, and all that ran out is given back.
    fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        let answered = self.model.advance(self.now);
        assert!(answered.is_empty());
        // Sixteen records a call at least, and mappings wait for their sessions: two rounds over
        // all records.
        let records = self.mappings_max() + self.case.extra_sessions_max as usize;
        for _ in 0..records / 8 + 100 {
            if self.shard.view().mappings_len() as usize == self.model.mappings.len() {
                return;
            }
            self.shard.maintain(self.now, &mut Nobody);
        }
        panic!("{} mappings instead of {}", self.shard.view().mappings_len(), self.model.mappings.len());
    }

    /// All mappings and sessions are those of the model, with the same time left.
    fn compare_all(&self) {
        let mut all = Query::all(Filter::default());
        self.shard.view().mappings_page(self.now, &mut all);
        let mappings = all.records;
        assert_eq!(mappings.len(), self.model.mappings.len());
        for view in &mappings {
            let internal = (view.protocol, at(view.internal.address, view.internal.port));
            let external = self.model.mappings.get(&internal).map(|mapping| mapping.external);
            assert_eq!(external, Some(at(view.external.address, view.external.port)), "{internal:?}");
        }
        drop(mappings);
        let mut all = Query::all(Filter::default());
        self.shard.view().sessions_page(self.now, &mut all);
        let sessions = all.records;
        assert_eq!(sessions.len(), self.model.mappings.values().map(|mapping| mapping.sessions.len()).sum::<usize>());
        for view in &sessions {
            let internal = (view.protocol, at(view.internal.address, view.internal.port));
            let mapping = self.model.mappings.get(&internal).expect("a session has its mapping");
            let session = mapping.sessions.get(&at(view.remote.address, view.remote.port));
            let left = session.map(|session| session.expires.saturating_since(self.now));
            assert_eq!(left, Some(view.expires_in), "{internal:?} with {}", view.remote);
        }
        let used = |protocol| {
            self.shared.ports_available(AddressIndex(0), protocol) * self.shared.address_count() as u32
                - self.ports_left(protocol)
        };
        let of = |protocol| self.model.mappings.keys().filter(|internal| internal.0 == protocol).count();
        for protocol in Protocol::ALL {
            assert_eq!(used(protocol) as usize, of(protocol), "ports of {protocol}");
        }
    }

    /// Fills the tables over ten seconds, and then keeps them full while a tenth runs out every
    /// second.
    fn run(mut self) {
        let full = self.mappings_max();
        for tenth in 1..=10 {
            self.fill_to(full * tenth / 10);
            self.advance(Duration::from_secs(1));
        }
        assert!(self.is_full());
        // Nobody is let in, and nobody is put out.
        let refused = self.refused;
        self.bursts(self.case.packets, World::opens);
        assert!(self.refused > refused, "at a full table new sessions are refused");
        self.bursts(self.case.packets, World::goes_on);
        self.compare_all();
        // The first mappings are twenty seconds old.
        self.advance(Duration::from_secs(10));
        for _ in 0..2 {
            self.bursts(self.case.packets, |world| match world.random.random_range(0..10) {
                0..=1 => world.opens(),
                2..=8 => world.goes_on(),
                _ => world.strays(),
            });
            self.fill_to(full);
            self.bursts(self.case.packets / 10, World::opens);
            self.advance(Duration::from_secs(1));
        }
        self.compare_all();
        // At the end nothing is left.
        self.advance(Duration::from_secs(200));
        for _ in 0..self.case.extra_sessions_max / 8 + 100 {
            self.shard.maintain(self.now, &mut Nobody);
        }
        assert!(self.model.mappings.is_empty() && self.shard.is_empty());
        self.compare_all();
    }
}

/// A pool that has exactly as many ports as the table has records, filled to the last one of both.
#[test]
fn a_million_mappings_up_to_the_last_record_and_the_last_port() {
    covers!("6888-REQ-11d");
    const ADDRESSES: u8 = 16;
    let case = Case {
        secret: [2, 7, 1, 8],
        addresses: ADDRESSES,
        // All TCP ports of the pool, and twenty UDP endpoints: the last records are used up by
        // either.
        mappings_max: (ADDRESSES as usize * PORTS) as u32 + 20,
        extra_sessions_max: 300_000,
        pooling: Pooling::Arbitrary,
        filtering: Filtering::EndpointIndependent,
        subscribers: 20_000,
        udp_endpoints: 20,
        packets: 30_000,
    };
    World::new(case, 1).run();
}

/// Thousands of endpoints have one hash: to find one of them is to look at hundreds of buckets. The
/// table has a million mappings in `make soak`, and a quarter of that otherwise.
#[test]
fn large_tables_in_which_thousands_of_mappings_collide() {
    covers!("4787-REQ-11");
    let scale = if seeds::is_soak() { 4 } else { 1 };
    let case = Case {
        secret: KeyedHash::colliding_secret(Protocol::Udp as u64),
        addresses: 20,
        mappings_max: scale * 250_000,
        extra_sessions_max: scale * 75_000,
        pooling: Pooling::Paired,
        filtering: Filtering::EndpointIndependent,
        subscribers: 20_000,
        udp_endpoints: 2_000,
        packets: 20_000,
    };
    World::new(case, 2).run();
}

/// Everything of one kind collides, in tables filled to the last record.
#[test]
fn full_tables_in_which_everything_collides() {
    covers!("4787-REQ-11", "6888-REQ-11d");
    let words =
        [Protocol::Udp as u64, Protocol::Tcp as u64, SUBSCRIBER_WORD, u64::from(SERVER_PORT), SESSION_ADDRESS_WORD];
    for (seed, word) in (3..).zip(words) {
        for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
            let case = Case {
                secret: KeyedHash::colliding_secret(word),
                addresses: 2,
                mappings_max: 4_000,
                extra_sessions_max: 20_000,
                pooling: Pooling::Paired,
                filtering,
                subscribers: 700,
                udp_endpoints: 3_000,
                packets: 5_000,
            };
            World::new(case, seed).run();
        }
    }
}
