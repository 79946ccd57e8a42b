//! What the bed drives: the workers of an instance, on in-memory ports, with all stations on their
//! links.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::collections::VecDeque;
use std::sync::Arc;

use daemon::InterfaceLink;
use daemon::Worker;
use daemon::WorkerOptions;
use daemon::adoption::Adoption;
use daemon::adoption::Expectation;
use daemon::build_workers;
use daemon::routing::family::Family;
use daemon::routing::fib::Fib;
use daemon::routing::rib::KernelRoute;
use daemon::routing::rib::RibOf;
use daemon::routing::rib::Table;
use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::BuildError;
use nat::Counters;
use nat::Delta;
use nat::GrantDelta;
use nat::Instant;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::event::Event;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::stand_in::Prefix6;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;
use packet_io::Buffer;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::arp;
use wire::build;
use wire::build6;
use wire::ethernet;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ipv6::Ipv6;
use wire::neighbour;

use crate::bed::families::OWN;
use crate::bed::families::ROUTERS;
use crate::topology;

/// Bytes of the longest link header.
const LINK_HEADER: usize = ethernet::TAGGED_HEADER_LENGTH;

/// Workers, ports, and the stations on the links. One port per interface, untagged.
pub(super) struct Machine {
    shared: Arc<Shared>,
    workers: Vec<Worker<MemoryIo>>,
    memory: MemoryBed,
    sent: VecDeque<(InterfaceId, Vec<u8>)>,
    watch: fn(bool),
    /// By worker; empty unless a test asked for events.
    events: Vec<Consumer<Record>>,
    /// By worker, where it leaves its changes of state.
    deltas: Vec<Consumer<Delta>>,
    /// Whose turns brought events, and how many that worker had recorded by the end of each.
    turns: Vec<(usize, u64)>,
    /// By worker, how many events it had recorded by the end of its last turn.
    events_recorded: Vec<u64>,
    /// By worker, how many of its events were taken.
    events_taken: Vec<u64>,
    logs_opened: Arc<LogsOpened>,
    /// ARP requests of Natrix that were answered.
    pub(super) arp_answers: u64,
    /// Addresses whose stations answer no ARP and no solicitations.
    pub(super) silent: HashSet<IpAddr>,
    /// With live routes.
    routes: Option<Routes>,
}

/// Live routes of both families.
struct Routes {
    fib: Fib,
    ipv4: OfFamily<Prefix>,
    ipv6: OfFamily<Prefix6>,
}

/// All routes of a family, and those of the kernel by prefix: what must follow from them is found
/// the slow way.
struct OfFamily<P: Family> {
    rib: RibOf<P>,
    kernel: BTreeMap<(Table, P), Vec<KernelRoute<P::Address>>>,
}

impl<P: Family> OfFamily<P> {
    /// The routes of the configuration, which the table has from now on.
    fn new(settings: &Settings, fib: &mut Fib) -> OfFamily<P> {
        let rib = RibOf::of(settings);
        for (table, prefix) in rib.fixed_prefixes() {
            fib.refresh(&rib, settings, table, prefix).expect("a test has few routes");
        }
        fib.publish();
        OfFamily { rib, kernel: BTreeMap::new() }
    }

    /// The kernel has these routes for a prefix from now on. `wait` is called until all workers
    /// know the next hops.
    fn set(
        &mut self,
        fib: &mut Fib,
        settings: &Settings,
        (table, prefix): (Table, P),
        wanted: &[KernelRoute<P::Address>],
        wait: &mut dyn FnMut(),
    ) {
        self.rib.set_kernel(table, prefix, wanted);
        self.kernel.insert((table, prefix), wanted.to_vec());
        fib.refresh_while(&self.rib, settings, table, prefix, wait).expect("a test has few routes");
        fib.publish();
        assert!(fib.agrees(&self.rib, settings), "the tables have the best routes");
    }
}

/// The station of an address: everybody has one of their own.
fn station(address: Ipv4Addr) -> MacAddress {
    let [a, b, c, d] = address.octets();
    MacAddress([2, 1, a, b, c, d])
}

/// The station of a router of the IPv6 hosts.
fn station6(router: u128) -> MacAddress {
    let [high, low] = (router as u16).to_be_bytes();
    MacAddress([2, 1, 6, 6, high, low])
}

fn own_station(interface: InterfaceId) -> MacAddress {
    let [high, low] = interface.0.to_be_bytes();
    MacAddress([2, 0, 0, 0, high, low])
}

/// One poll of each worker, none of which has anything to do.
fn poll_idle(workers: &mut [Worker<MemoryIo>], now: Instant) {
    workers.iter_mut().for_each(|worker| assert_eq!(worker.poll(now), 0, "packets are on their way"));
}

impl Machine {
    pub(super) fn new(settings: &Settings, workers: usize, seed: u64, ring_packets: usize, now: Instant) -> Machine {
        mem::arena::provide_on_demand();
        let shared = Arc::new(Shared::new(settings.clone(), workers).expect("settings of a test are in range"));
        let mtu = settings.interfaces.iter().map(|interface| usize::from(interface.mtu)).max().unwrap_or(0);
        let memory = MemoryBed::new(&MemorySettings {
            ports: settings.interfaces.len(),
            workers,
            queue_frames: 1_024,
            buffers: 4_096,
            frame_bytes: mtu.max(2_048) + LINK_HEADER,
        });
        let links: Vec<InterfaceLink> = (0..settings.interfaces.len())
            .map(|port| InterfaceLink { port: PortIndex(port as u16), vlan: None })
            .collect();
        let ios = (0..workers).map(|worker| memory.io(worker)).collect();
        let secret = SmallRng::seed_from_u64(seed).random();
        let options = WorkerOptions { ring_packets, ..WorkerOptions::default() };
        let workers = build_workers(&shared, &links, ios, &options, secret, now).expect("there is memory for a test");
        let routes = shared.live_routes().map(|live| {
            let mut fib = Fib::new(live, 1 + settings.realms());
            let ipv4 = OfFamily::new(settings, &mut fib);
            let ipv6 = match live.has_ipv6() {
                true => OfFamily::new(settings, &mut fib),
                false => OfFamily { rib: RibOf::of(settings), kernel: BTreeMap::new() },
            };
            Routes { fib, ipv4, ipv6 }
        });
        Machine {
            shared,
            workers,
            memory,
            sent: VecDeque::new(),
            watch: |_| {},
            events: Vec::new(),
            deltas: Vec::new(),
            turns: Vec::new(),
            events_recorded: Vec::new(),
            events_taken: Vec::new(),
            logs_opened: Arc::default(),
            arp_answers: 0,
            silent: HashSet::new(),
            routes,
        }
    }

    /// The kernel has these routes for a prefix from now on. No packet may be on its way through
    /// Natrix.
    pub(super) fn set_routes(&mut self, now: Instant, table: Table, prefix: Prefix, wanted: &[KernelRoute]) {
        let Some(Routes { fib, ipv4, .. }) = &mut self.routes else { panic!("the settings have no live routes") };
        let mut wait = || poll_idle(&mut self.workers, now);
        ipv4.set(fib, self.shared.settings(), (table, prefix), wanted, &mut wait);
    }

    /// The same of IPv6.
    pub(super) fn set_routes6(&mut self, now: Instant, table: Table, prefix: Prefix6, wanted: &[KernelRoute<u128>]) {
        let Some(Routes { fib, ipv6, .. }) = &mut self.routes else { panic!("the settings have no live routes") };
        let mut wait = || poll_idle(&mut self.workers, now);
        ipv6.set(fib, self.shared.settings(), (table, prefix), wanted, &mut wait);
    }

    /// Gives each worker a ring for so many events.
    pub(super) fn record_events(&mut self, capacity: usize) {
        let rings = self.workers.iter().map(|_| ring::channel(capacity));
        let (producers, consumers) = rings.unzip();
        self.record_events_to(producers);
        self.events = consumers;
    }

    /// Gives each worker one of these rings, which the caller empties.
    pub(super) fn record_events_to(&mut self, rings: Vec<Producer<Record>>) {
        self.events = Vec::new();
        self.events_taken = vec![0; self.workers.len()];
        self.events_recorded = vec![0; self.workers.len()];
        for (worker, producer) in self.workers.iter_mut().zip(rings) {
            worker.set_events(producer, Arc::clone(&self.logs_opened));
        }
    }

    pub(super) fn record_deltas(&mut self, capacity: usize) {
        for worker in &mut self.workers {
            let (producer, consumer) = ring::channel(capacity);
            worker.set_deltas(producer);
            self.deltas.push(consumer);
        }
    }

    pub(super) fn take_deltas(&mut self, worker: usize) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some(ring) = self.deltas.get_mut(worker) {
            ring.pop_burst(usize::MAX, |delta| deltas.push(delta));
        }
        deltas
    }

    pub(super) fn announce_loss(&mut self, now: Instant) {
        for worker in &mut self.workers {
            worker.shard_mut().announce_loss(now);
        }
    }

    /// Installs grants as after a restart, each on its worker.
    pub(super) fn restore(&mut self, now: Instant, epoch_s: u32, grants: &[GrantDelta]) {
        for worker in &mut self.workers {
            worker.shard_mut().set_epoch(now, epoch_s);
        }
        for grant in grants {
            let owner = self.shared.worker_of_grant(grant);
            self.workers[owner.index()].shard_mut().install_grant(now, grant).expect("there is room");
        }
    }

    /// Another log is opened.
    pub(super) fn open_event_log(&self) {
        self.logs_opened.count_one();
    }

    /// Takes the events of one worker, at most so many.
    pub(super) fn take_events(&mut self, worker: usize, max: usize) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(ring) = self.events.get_mut(worker) {
            ring.pop_burst(max, |record| events.extend(record.event()));
            self.events_taken[worker] += events.len() as u64;
        }
        events
    }

    /// Takes all events, with their workers, in the order in which they happened.
    pub(super) fn take_events_in_order(&mut self) -> Vec<(usize, Event)> {
        let mut taken = self.events_taken.clone();
        let mut by_worker: Vec<VecDeque<Event>> =
            (0..self.events.len()).map(|worker| self.take_events(worker, usize::MAX).into()).collect();
        let mut in_order = Vec::new();
        for (worker, recorded) in std::mem::take(&mut self.turns) {
            let count = recorded.saturating_sub(taken[worker]).min(by_worker[worker].len() as u64);
            taken[worker] += count;
            in_order.extend(by_worker[worker].drain(..count as usize).map(|event| (worker, event)));
        }
        // What was recorded between the rounds.
        for (worker, events) in by_worker.into_iter().enumerate() {
            in_order.extend(events.into_iter().map(|event| (worker, event)));
        }
        in_order
    }

    /// A worker has had its turn.
    fn end_turn(&mut self, worker: usize) {
        let recorded = self.workers[worker].shard().event_counters().recorded;
        if let Some(before) = self.events_recorded.get_mut(worker).filter(|before| **before != recorded) {
            *before = recorded;
            self.turns.push((worker, recorded));
        }
    }

    /// Has every worker record what it holds back.
    pub(super) fn finish_events(&mut self, now: Instant) {
        self.workers.iter_mut().for_each(|worker| worker.finish_events(now));
    }

    /// Calls `watch` before (true) and after (false) each round of a worker.
    pub(super) fn watch(&mut self, watch: fn(bool)) {
        self.watch = watch;
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A snapshot that can follow the present one.
    pub(super) fn successor(&self, settings: Settings, now: Instant) -> Result<Arc<Shared>, BuildError> {
        Ok(Arc::new(self.shared.successor(settings, now)?))
    }

    /// The bed steers and checks by this snapshot from now on; the one before comes back.
    pub(super) fn follow(&mut self, next: &Arc<Shared>) -> Arc<Shared> {
        std::mem::replace(&mut self.shared, Arc::clone(next))
    }

    /// One worker learns of addresses that are new; whether there are any.
    pub(super) fn expect(&mut self, worker: usize, before: &Shared, next: &Shared) -> bool {
        let Some(mut expectation) = Expectation::new(before, next) else { return false };
        self.workers[worker].expect(&mut expectation);
        true
    }

    /// Switches one worker.
    pub(super) fn adopt(&mut self, worker: usize, now: Instant, before: &Shared, next: &Arc<Shared>) {
        let mut adoption = Adoption::new(before, next);
        self.workers[worker].adopt(now, &mut adoption);
        self.end_turn(worker);
        assert!(std::ptr::eq(before, &**adoption.shared()), "what it had before comes back");
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.workers.iter().map(Worker::shard)
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.workers.iter().map(Worker::counters)
    }

    /// Packets that the shard made or had kept, and that found no neighbour, no buffer, or a full
    /// queue.
    pub(super) fn lost_behind_the_shard(&self) -> u64 {
        self.workers.iter().map(|worker| worker.link_counters().originated_dropped).sum()
    }

    /// The first interface of a side.
    fn interface(&self, side: Side) -> InterfaceId {
        let interfaces = &self.shared.settings().interfaces;
        InterfaceId(interfaces.iter().position(|interface| interface.side == side).unwrap_or(0) as u16)
    }

    /// Puts a packet into the receive queue of a worker, in a frame from the router of that side.
    pub(super) fn receive(&mut self, worker: usize, side: Side, packet: &[u8]) {
        self.receive_by(worker, self.interface(side), packet);
    }

    /// The same by this interface.
    pub(super) fn receive_by(&mut self, worker: usize, interface: InterfaceId, packet: &[u8]) {
        let ether_type = match packet.first().map(|first| first >> 4) {
            Some(6) if self.has_ipv6(interface) => ethernet::ETHER_TYPE_IPV6,
            _ => ethernet::ETHER_TYPE_IPV4,
        };
        let frame = build::frame(MacAddress([2, 2, 0, 0, 0, 0]), own_station(interface), ether_type, packet);
        self.receive_frame(worker, interface, &frame);
    }

    /// Puts a frame into the receive queue of a worker.
    pub(super) fn receive_frame(&mut self, worker: usize, interface: InterfaceId, frame: &[u8]) {
        let pushed = self.memory.push(worker, PortIndex(interface.0), frame);
        assert!(pushed, "receive queue of worker {worker} is full, or {} bytes are too long", frame.len());
    }

    /// One round of one worker. Returns how many packets it took.
    pub(super) fn poll(&mut self, worker: usize, now: Instant) -> usize {
        (self.watch)(true);
        let taken = self.workers[worker].poll(now);
        (self.watch)(false);
        self.end_turn(worker);
        for port in 0..self.shared.settings().interfaces.len() as u16 {
            while let Some((_, buffer)) = self.memory.pull(PortIndex(port)) {
                self.frame_left(InterfaceId(port), buffer.bytes());
            }
        }
        taken
    }

    /// Whether frames wait in a receive queue.
    pub(super) fn has_waiting(&self) -> bool {
        self.memory.waiting() > 0
    }

    fn frame_left(&mut self, interface: InterfaceId, frame: &[u8]) {
        let header = LinkHeader::parse(frame).expect("what leaves is an Ethernet frame");
        let payload = &frame[header.payload_offset()..];
        assert_eq!(header.vlan, None, "a tag left on an untagged interface");
        assert_eq!(header.source, own_station(interface), "frames leave from the port's own station");
        if header.ether_type == ethernet::ETHER_TYPE_ARP {
            let message = arp::Message::parse(payload).expect("what leaves is right ARP");
            return self.answer(interface, &message);
        }
        if header.ether_type == ethernet::ETHER_TYPE_IPV6 {
            return self.packet6_left(interface, header.destination, payload);
        }
        assert_eq!(header.ether_type, ethernet::ETHER_TYPE_IPV4, "only IP and ARP leave");
        let Some(&[a, b, c, d]) = payload.get(16..20) else { panic!("a frame without packet left: {frame:02x?}") };
        if Ipv4Addr::new(a, b, c, d).is_multicast() {
            let group = MacAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d]);
            assert_eq!(header.destination, group, "the station of the group (RFC 1112 §6.4)");
        } else {
            let next_hops = self.next_hops(interface, Ipv4Addr::new(a, b, c, d));
            let is_right = next_hops.iter().any(|next_hop| header.destination == station(*next_hop));
            assert!(is_right, "the frame goes to {}, not to one of {next_hops:?}", header.destination);
        }
        self.sent.push_back((interface, payload.to_vec()));
    }

    fn has_ipv6(&self, interface: InterfaceId) -> bool {
        self.shared.settings().ipv6.addresses.iter().any(|own| own.interface == interface)
    }

    /// The routers that are not silent answer solicitations at once; everything else goes to the
    /// one that routes lead to.
    fn packet6_left(&mut self, interface: InterfaceId, to: MacAddress, packet: &[u8]) {
        assert!(self.has_ipv6(interface), "IPv6 leaves by an interface without IPv6");
        match neighbour::Message::parse(packet) {
            Ok(message) if ROUTERS.contains(&message.target) => {
                if self.silent.contains(&Ipv6Addr::from_bits(message.target).into()) {
                    return;
                }
                self.arp_answers += 1;
                self.send_from_router6(message.target, &message.reply(station6(message.target)));
            }
            // Probes and announcements of own addresses.
            Ok(_) => {}
            Err(_) => {
                let destination = Ipv6::new_unchecked(packet).destination();
                if destination >> 120 == 0xff {
                    // A report of own groups (RFC 3810 §5.2.14).
                    let low = (destination as u32).to_be_bytes();
                    assert_eq!(
                        to.0,
                        [[0x33; 2].as_slice(), &low].concat()[..],
                        "the station of the group (RFC 2464 §7)"
                    );
                    return;
                }
                let routers = self.next_hops6(destination);
                let is_right = routers.iter().any(|router| to == station6(*router));
                assert!(is_right, "a frame for {destination:x} goes to {to}, not to one of {routers:x?}");
                // Answers to their own pings.
                if ROUTERS.contains(&destination) {
                    return;
                }
                self.sent.push_back((interface, packet.to_vec()));
            }
        }
    }

    /// The first router of the IPv6 hosts pings a worker, which asks for its station to answer: an
    /// announcement has no effect on one that has not asked.
    pub(super) fn ping_from_router6(&mut self, worker: usize) {
        let ping = build6::echo_request(Ipv6Addr::from_bits(ROUTERS[0]), Ipv6Addr::from_bits(OWN), 1, &[]);
        self.receive(worker, Side::Inside, &ping);
    }

    /// Where an IPv6 packet may go inside: longest prefix, found the slow way.
    fn next_hops6(&self, destination: u128) -> Vec<u128> {
        let ipv6 = &self.shared.settings().ipv6;
        let connected = ipv6.addresses.iter().filter_map(|own| {
            let prefix = Prefix6::new(own.address.to_bits(), own.prefix_length)?;
            prefix.contains(destination).then(|| (own.prefix_length, vec![destination]))
        });
        let routed = ipv6.routes.iter().filter_map(|route| {
            let prefix = Prefix6::new(route.prefix.to_bits(), route.prefix_length)?;
            prefix.contains(destination).then(|| (route.prefix_length, vec![route.next_hop.to_bits()]))
        });
        let of_kernel =
            self.routes.iter().flat_map(|routes| &routes.ipv6.kernel).filter_map(|((_, prefix), routes)| {
                let best = routes.iter().min_by_key(|route| route.metric)?;
                let routers = best.hops.iter().map(|hop| hop.gateway).collect();
                prefix.contains(destination).then(|| (prefix.length(), routers))
            });
        // The last of several with the same length is taken: fixed routes are preferred.
        let ways = of_kernel.chain(routed).chain(connected);
        let (_, routers) = ways.max_by_key(|(length, _)| *length).expect("nothing leaves that has no route");
        routers
    }

    /// To the first worker, as everything that is for Natrix itself.
    fn send_from_router6(&mut self, router: u128, message: &neighbour::Message) {
        let mut packet = [0; neighbour::LENGTH_MAX];
        let length = message.write(&mut packet);
        let interface = topology::INSIDE;
        let to = match wire::ipv6::is_multicast(message.destination) {
            true => MacAddress(wire::ipv6::station_of_group(message.destination)),
            false => own_station(interface),
        };
        let frame = build::frame(station6(router), to, ethernet::ETHER_TYPE_IPV6, &packet[..length]);
        self.receive_frame(0, interface, &frame);
    }

    /// Everybody else than the silent answers ARP at once, to the first worker, as cards that
    /// spread flows do.
    fn answer(&mut self, interface: InterfaceId, request: &arp::Message) {
        let target = Ipv4Addr::from_bits(request.target_address);
        let own = &self.shared.settings().interfaces[interface.index()].addresses;
        let on_link = own
            .iter()
            .any(|own| Prefix::new(own.address, own.prefix_length).is_some_and(|prefix| prefix.contains(target)));
        // Natrix asks for its own addresses, the pools' among them, to see that no other station
        // has them.
        let is_external = self.shared.addresses().any(|(_, slot)| slot.address == target);
        let is_announcement = own.iter().any(|own| own.address == target) || is_external;
        let is_silent = self.silent.contains(&IpAddr::V4(target));
        if request.operation == arp::Operation::Request && on_link && !is_announcement && !is_silent {
            let reply = build::arp_frame(None, &request.reply(station(target)));
            self.receive_frame(0, interface, &reply);
            self.arp_answers += 1;
        }
    }

    /// Where a packet to `destination` may go on this interface: longest prefix, found the slow
    /// way.
    fn next_hops(&self, interface: InterfaceId, destination: Ipv4Addr) -> Vec<Ipv4Addr> {
        let settings = self.shared.settings();
        let connected = settings.interfaces[interface.index()].addresses.iter().filter_map(|own| {
            let prefix = Prefix::new(own.address, own.prefix_length)?;
            prefix.contains(destination).then(|| (prefix.length(), vec![destination]))
        });
        let routed = settings.routes.iter().filter(|route| route.interface == interface);
        let routed = routed.filter(|route| route.prefix.contains(destination));
        let fixed = connected.chain(routed.map(|route| (route.prefix.length(), vec![route.next_hop])));
        let table = Table::of(settings.interfaces[interface.index()].facing());
        let of_kernel =
            self.routes.iter().flat_map(|routes| &routes.ipv4.kernel).filter_map(|((of, prefix), routes)| {
                let best = routes.iter().min_by_key(|route| route.metric)?;
                let hops = best.hops.iter().map(|hop| match hop.gateway {
                    0 => destination,
                    gateway => Ipv4Addr::from_bits(gateway),
                });
                (*of == table && prefix.contains(destination)).then(|| (prefix.length(), hops.collect()))
            });
        // The last of several with the same length is taken: fixed routes are preferred.
        let ways = of_kernel.chain(fixed);
        let (_, next_hops) = ways.max_by_key(|(length, _)| *length).expect("nothing leaves that has no route");
        next_hops
    }

    /// The oldest packet that left, and by which interface.
    pub(super) fn next_sent(&mut self) -> Option<(InterfaceId, Vec<u8>)> {
        self.sent.pop_front()
    }
}
