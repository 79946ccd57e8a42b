//! The black-box test bed: IP packets in, IP packets out, a virtual clock, and checks that never
//! sleep.

pub mod audit;
pub mod families;
mod machine;

use core::hash::Hash;
use core::hash::Hasher;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::hash::DefaultHasher;
use std::sync::Arc;

use daemon::routing::rib::KernelRoute;
use daemon::routing::rib::Table;
use mem::ring::Producer;
use nat::AlreadyHeld;
use nat::BuildError;
use nat::Census;
use nat::Counters;
use nat::Delta;
use nat::Duration;
use nat::GrantDelta;
use nat::Instant;
use nat::Named;
use nat::Outlook;
use nat::PoolCensus;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::SliceHolds;
use nat::SlicePlan;
use nat::Verdict;
use nat::change::GuaranteePlan;
use nat::event::Event;
use nat::event::Record;
use nat::stand_in::Prefix6;
use nat::types::AddressIndex;
use nat::types::HostNumber;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;
use nat::verdict::VerdictKind;
use nat::view::Filter;
use nat::view::MappingView;
use nat::view::Query;
use nat::view::SessionView;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::build;
use wire::ethernet::FRAME_LENGTH_MIN;
use wire::ethernet::HEADER_LENGTH;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use crate::packet;
use crate::topology;

/// Which worker a packet is received by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// The one that owns it, as far as that is known.
    Owner,
    /// Always another one than the owner.
    Wrong,
    /// Any, by the seed.
    Random,
    /// As a card does it: a hash, with this key, of addresses and ports (addresses only, for
    /// fragments).
    Hash(u64),
    /// Always this one.
    Fixed(usize),
}

/// A NAT with the world around it. See the [crate].
///
/// When it is dropped the books are checked: each packet received has exactly one verdict, or is
/// still held.
pub struct Bed {
    settings: Settings,
    workers: usize,
    seed: u64,
    ring_packets: usize,
    steering: Steering,
    machine: machine::Machine,
    audit: audit::Audit,
    /// If there are IPv6 hosts.
    families: Option<families::Families>,
    random: SmallRng,
    now: Instant,
    /// Counters when the test began.
    before: Counters,
    arp_answers_before: u64,
    records_peak: u64,
    /// The longest timer of all settings so far.
    longest: Duration,
    taken: [Vec<(InterfaceId, Vec<u8>)>; 2],
}

/// Longest time between two rounds of housekeeping while the clock advances.
const STEP_MAX: Duration = Duration::from_millis(500);
/// Shortest one.
const STEP_MIN: Duration = Duration::from_millis(10);
/// Steps one advance has at least, as far as the limits above allow.
const STEPS: u64 = 1_000;
/// Records times the time between two rounds of housekeeping: what keeps the sweep of a large table
/// in time.
const SWEEP_MICROS_TIMES_RECORDS: u64 = 2_000_000_000;
/// Rounds after which a bed that still has work counts as stuck.
const ROUNDS_MAX: usize = 100_000;

impl Bed {
    /// One worker, seed 1, time one hour after the origin of the clock.
    pub fn new(settings: Settings) -> Bed {
        Bed::with(settings, 1, 1, 1_024, Steering::Owner, Instant::from_micros(3_600_000_000))
    }

    fn with(
        settings: Settings,
        workers: usize,
        seed: u64,
        ring_packets: usize,
        steering: Steering,
        now: Instant,
    ) -> Bed {
        let mut bed = Bed {
            machine: machine::Machine::new(&settings, workers, seed, ring_packets, now),
            audit: audit::Audit::new(&settings),
            families: families::Families::of(&settings),
            random: SmallRng::seed_from_u64(seed),
            now,
            before: Counters::default(),
            arp_answers_before: 0,
            records_peak: 0,
            longest: Duration::ZERO,
            taken: [Vec::new(), Vec::new()],
            settings,
            workers,
            seed,
            ring_packets,
            steering,
        };
        bed.greet();
        bed
    }

    /// Has every worker learn the stations of the routers, so that tests need not think of ARP.
    /// What that counts is taken off the counters.
    fn greet(&mut self) {
        if self.families.is_some() {
            // The probes of duplicate address detection.
            self.settle();
            self.now = self.now + Duration::from_secs(2);
            self.settle();
        }
        self.meet_neighbours();
        self.taken = [Vec::new(), Vec::new()];
        self.audit = audit::Audit::new(&self.settings);
        let mut before = Counters::default();
        for one in self.machine.counters() {
            combine(&mut before, one, |sum, value| sum + value);
        }
        self.before = before;
        self.arp_answers_before = self.machine.arp_answers;
    }

    /// The routers on both sides ping every worker, so that each knows their stations again: after
    /// a long silence packets would wait for these, and too many at once would be dropped.
    pub fn meet_neighbours(&mut self) {
        if self.settings.icmp.answer_echo {
            for worker in 0..self.workers {
                // A host behind the inside router that belongs to this worker, so that this worker
                // gets the reply.
                let mut hosts = (0..u32::from(u16::MAX)).map(|host| 0x647f_0000 + host);
                let host =
                    hosts.find(|host| self.machine.shared().worker_of_subscriber(HostNumber(*host)).index() == worker);
                let host = Ipv4Addr::from_bits(host.expect("every worker has some subscriber of so many"));
                let pings = [
                    (Side::Inside, build::echo_request(host, topology::OWN_INSIDE, 1)),
                    (Side::Outside, build::echo_request(topology::OUTSIDE_ROUTER, topology::OWN_OUTSIDE, 1)),
                ];
                for (side, ping) in pings {
                    self.machine.receive(worker, side, &ping.build());
                }
            }
        }
        if self.families.is_some() {
            for worker in 0..self.workers {
                self.machine.ping_from_router6(worker);
            }
        }
        self.settle();
    }

    /// The station with this address answers no ARP, or no solicitations, from now on.
    pub fn silence(&mut self, address: impl Into<IpAddr>) {
        self.machine.silent.insert(address.into());
    }

    /// The kernel has these routes for a prefix from now on, once all packets have left.
    ///
    /// # Panics
    /// When the settings have no live routes.
    pub fn set_routes(&mut self, table: Table, prefix: Prefix, wanted: &[KernelRoute]) {
        self.settle();
        self.machine.set_routes(self.now, table, prefix, wanted);
    }

    /// As [`Bed::set_routes`], of IPv6.
    ///
    /// # Panics
    /// When the settings have no live routes.
    pub fn set_routes6(&mut self, table: Table, prefix: Prefix6, wanted: &[KernelRoute<u128>]) {
        self.settle();
        self.machine.set_routes6(self.now, table, prefix, wanted);
    }

    /// So many workers; to be called before the first packet.
    #[must_use]
    pub fn workers(self, workers: usize) -> Bed {
        Bed::with(self.settings.clone(), workers, self.seed, self.ring_packets, self.steering, self.now)
    }

    /// Seed of port choice and of random steering; to be called before the first packet.
    #[must_use]
    pub fn seed(self, seed: u64) -> Bed {
        Bed::with(self.settings.clone(), self.workers, seed, self.ring_packets, self.steering, self.now)
    }

    /// Packets each ring between two workers holds; to be called before the first packet.
    #[must_use]
    pub fn ring_packets(self, packets: usize) -> Bed {
        Bed::with(self.settings.clone(), self.workers, self.seed, packets, self.steering, self.now)
    }

    /// Which worker receives a packet.
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Bed {
        self.steering = steering;
        self
    }

    /// Packets of this endpoint may be changed, because it is registered (SIP) at a server that is
    /// known by its port.
    pub fn is_registered(&mut self, inside: SocketAddrV4, external: SocketAddrV4) {
        self.audit.registers([inside.port(), external.port()]);
    }

    /// Sets the clock; to be called before the first packet.
    #[must_use]
    pub fn clock(self, now: Instant) -> Bed {
        Bed::with(self.settings.clone(), self.workers, self.seed, self.ring_packets, self.steering, now)
    }

    /// Calls `watch` before (true) and after (false) each round of a worker.
    #[must_use]
    pub fn watch(mut self, watch: fn(bool)) -> Bed {
        self.machine.watch(watch);
        self
    }

    /// Has every worker record events, in a ring for so many of them; to be called before the first
    /// packet.
    #[must_use]
    pub fn record_events(mut self, capacity: usize) -> Bed {
        self.machine.record_events(capacity);
        self
    }

    /// Has every worker record events in one of these rings; to be called before the first packet.
    #[must_use]
    pub fn record_events_to(mut self, rings: Vec<Producer<Record>>) -> Bed {
        self.machine.record_events_to(rings);
        self
    }

    /// Has every worker leave its changes of state in a ring for so many of them; to be called
    /// before the first packet.
    #[must_use]
    pub fn record_deltas(mut self, capacity: usize) -> Bed {
        self.machine.record_deltas(capacity);
        self
    }

    /// Takes all changes of state of one worker.
    pub fn take_deltas(&mut self, worker: usize) -> Vec<Delta> {
        self.machine.take_deltas(worker)
    }

    /// From now on events go into a new log, which knows no earlier events: the workers record what
    /// exists in it.
    pub fn open_event_log(&self) {
        self.machine.open_event_log();
    }

    /// All workers announce that the state of port control was lost.
    pub fn announce_loss(&mut self) {
        self.machine.announce_loss(self.now);
    }

    /// The live grants of all workers.
    pub fn grants(&self) -> Vec<GrantDelta> {
        let mut grants = Vec::new();
        for shard in self.shards() {
            assert_eq!(shard.view().grant_deltas_page(self.now, 0, u32::MAX, &mut grants), None);
        }
        grants
    }

    /// Installs grants as after a restart.
    pub fn restore(&mut self, epoch_s: u32, grants: &[GrantDelta]) {
        self.machine.restore(self.now, epoch_s, grants);
    }

    /// Takes at most so many events of one worker.
    pub fn take_events(&mut self, worker: usize, max: usize) -> Vec<Event> {
        let events = self.machine.take_events(worker, max);
        events.into_iter().map(|event| self.named(worker, event)).collect()
    }

    /// The event with the names of IPv6 hosts.
    fn named(&mut self, worker: usize, event: Event) -> Event {
        match &mut self.families {
            Some(families) => families.name_event(worker, event),
            None => event,
        }
    }

    /// Takes all events, with their workers, in the order in which they happened.
    pub fn take_events_in_order(&mut self) -> Vec<(usize, Event)> {
        let events = self.machine.take_events_in_order();
        events.into_iter().map(|(worker, event)| (worker, self.named(worker, event))).collect()
    }

    /// Has every worker record what it holds back, as no packet follows.
    pub fn finish_events(&mut self) {
        self.machine.finish_events(self.now);
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the shards share.
    pub fn shared(&self) -> &Shared {
        self.machine.shared()
    }

    /// The shards, to look into.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.machine.shards()
    }

    /// Switches to other settings as a running instance does: the workers learn of new addresses
    /// one after the other in this order, ports that are no longer offered are taken out, the
    /// workers switch, and ports that are offered now are put in. `meanwhile` is called between
    /// all steps.
    ///
    /// # Errors
    /// When the settings cannot replace the present ones; nothing is changed then.
    pub fn reload_while(
        &mut self,
        settings: Settings,
        order: &[usize],
        mut meanwhile: impl FnMut(&mut Bed),
    ) -> Result<(), BuildError> {
        let next = self.machine.successor(settings.clone(), self.now)?;
        let reshapes = next.reshapes(self.machine.shared());
        self.audit.follow(&settings);
        let longest = |settings: &Settings| settings.timeouts.longest();
        self.longest = self.longest.max(longest(&self.settings)).max(longest(&settings));
        let before = self.machine.follow(&next);
        for worker in order {
            if self.machine.expect(*worker, &before, &next) {
                meanwhile(self);
            }
        }
        for reshape in &reshapes {
            next.withhold(reshape);
            meanwhile(self);
        }
        for worker in order {
            self.machine.adopt(*worker, self.now, &before, &next);
            meanwhile(self);
        }
        next.settle_hits(&before);
        next.settle();
        self.settings = settings;
        for reshape in &reshapes {
            next.offer(reshape);
            meanwhile(self);
        }
        Ok(())
    }

    /// Switches to other settings while no packets come.
    ///
    /// # Panics
    /// When the settings cannot replace the present ones.
    pub fn reload(&mut self, settings: Settings) {
        let order: Vec<usize> = (0..self.workers).collect();
        self.reload_while(settings, &order, |_| {}).expect("the settings can follow those before");
    }

    /// What a switch to other settings would do, by pool.
    ///
    /// # Panics
    /// When the settings cannot replace the present ones.
    pub fn census(&self, settings: Settings) -> Vec<PoolCensus> {
        self.census_with_names(settings, 0).pools
    }

    /// The same, naming at most so many of each kind.
    ///
    /// # Panics
    /// When the settings cannot replace the present ones.
    pub fn census_with_names(&self, settings: Settings, each: usize) -> Census {
        self.census_under(&self.candidate(settings), each)
    }

    /// By pool, the ports that these settings guarantee and other subscribers use.
    ///
    /// # Panics
    /// When the settings cannot replace the present ones.
    pub fn guarantee_plan(&self, settings: Settings) -> Vec<GuaranteePlan> {
        let candidate = self.candidate(settings);
        candidate.guarantee_plan(&self.census_under(&candidate, 0).already_held)
    }

    /// By pool, the slices of these settings that overlap blocks of other subscribers.
    ///
    /// # Panics
    /// When the settings cannot replace the present ones.
    pub fn slice_plan(&self, settings: Settings) -> Vec<SlicePlan> {
        let candidate = self.candidate(settings);
        candidate.slice_plan(&self.census_under(&candidate, 0).slice_holds)
    }

    fn candidate(&self, settings: Settings) -> Arc<Shared> {
        self.machine.successor(settings, self.now).expect("the settings can follow those before")
    }

    fn census_under(&self, candidate: &Shared, each: usize) -> Census {
        let pools = vec![PoolCensus::default(); self.shared().pools().count()];
        let affected = Vec::with_capacity(each);
        let named = || Named::with_room(each);
        let already_held = AlreadyHeld::under(candidate);
        let outlook = Outlook::between(self.shared(), candidate);
        let slice_holds = SliceHolds::under(candidate);
        let mut census =
            Census { pools, affected, concerned: named(), kept: named(), already_held, slice_holds, outlook };
        for shard in self.shards() {
            census.already_held.begin_worker();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                cursor = shard.view().census_page(self.now, candidate, from, 7, &mut census);
            }
        }
        census
    }

    /// A packet from a subscriber (or a router inside) arrives and is dealt with.
    pub fn inside(&mut self, packet: &[u8]) {
        self.offer(Side::Inside, packet);
        self.settle();
    }

    /// A packet from the Internet arrives and is dealt with.
    pub fn outside(&mut self, packet: &[u8]) {
        self.offer(Side::Outside, packet);
        self.settle();
    }

    /// Packets that arrive at the same time, so that workers see them in bursts.
    pub fn burst(&mut self, side: Side, packets: &[Vec<u8>]) {
        for packet in packets {
            self.offer(side, packet);
        }
        self.settle();
    }

    /// A packet arrives in the receive queue of a worker; no worker looks at it before the next
    /// [`Bed::poll`] or [`Bed::settle`].
    pub fn offer(&mut self, side: Side, packet: &[u8]) {
        let worker = self.steer(side, packet);
        self.offer_to(worker, side, packet);
    }

    /// As [`Bed::offer`], at this worker.
    pub fn offer_to(&mut self, worker: usize, side: Side, packet: &[u8]) {
        // The padding of a short frame makes a truncated packet whole.
        let mut padded = packet.to_vec();
        padded.resize(packet.len().max(FRAME_LENGTH_MIN - HEADER_LENGTH), 0);
        self.audit.goes_in(&padded);
        let on_the_link = self.on_the_link(side, packet);
        self.machine.receive(worker, side, &on_the_link);
    }

    /// A packet as it is on the link to Natrix: IPv6, if it comes from an IPv6 host.
    pub fn on_the_link(&self, side: Side, packet: &[u8]) -> Vec<u8> {
        let as_ipv6 = if side == Side::Inside && self.families.is_some() { families::to_ipv6(packet) } else { None };
        as_ipv6.unwrap_or_else(|| packet.to_vec())
    }

    /// A packet arrives by this interface, from a subscriber behind it, and is dealt with.
    pub fn inside_by(&mut self, interface: InterfaceId, packet: &[u8]) {
        let worker = self.steer(Side::Inside, packet);
        self.audit.goes_in(packet);
        self.machine.receive_by(worker, interface, packet);
        self.settle();
    }

    /// A frame of any kind arrives in the receive queue of a worker.
    pub fn offer_frame(&mut self, worker: usize, interface: InterfaceId, frame: &[u8]) {
        self.machine.receive_frame(worker, interface, frame);
    }

    /// One round of one worker. Returns how many packets it took.
    pub fn poll(&mut self, worker: usize) -> usize {
        let taken = self.machine.poll(worker, self.now);
        self.collect();
        taken
    }

    /// Rounds of all workers until nothing is on its way.
    ///
    /// # Panics
    /// When that does not end: packets go round in a circle.
    pub fn settle(&mut self) {
        // Housekeeping, too, may give a packet to another worker: two rounds in which no worker
        // took any.
        let mut idle = 0;
        for _ in 0..ROUNDS_MAX {
            let taken: usize = (0..self.workers).map(|worker| self.machine.poll(worker, self.now)).sum();
            self.collect();
            idle = if taken == 0 && !self.machine.has_waiting() { idle + 1 } else { 0 };
            if idle == 2 || (idle == 1 && self.workers == 1) {
                return;
            }
        }
        panic!("packets go from worker to worker without end");
    }

    fn steer(&mut self, side: Side, packet: &[u8]) -> usize {
        if self.workers == 1 {
            return 0;
        }
        match self.steering {
            Steering::Fixed(worker) => worker,
            Steering::Hash(key) => hash(key, packet) as usize % self.workers,
            Steering::Random => self.random.random_range(0..self.workers),
            Steering::Owner => self.owner(side, packet),
            Steering::Wrong => (self.owner(side, packet) + self.random.random_range(1..self.workers)) % self.workers,
        }
    }

    /// The worker that owns a packet; 0 if no worker does.
    fn owner(&self, side: Side, packet: &[u8]) -> usize {
        let Ok(view) = Ipv4::new_checked(packet) else { return 0 };
        let shared = self.machine.shared();
        if let Some(host) = families::ipv6_of(view.source().into()).filter(|_| self.families.is_some()) {
            return shared.worker_of_host(host).index();
        }
        if side == Side::Inside {
            return shared.worker_of_subscriber(HostNumber(view.source())).index();
        }
        let Some(protocol) = Protocol::from_number(view.protocol()) else { return 0 };
        let endpoint = packet::destination(packet);
        let address = shared.address_index(*endpoint.ip());
        let owner = address.and_then(|address| shared.owner(address, protocol, endpoint.port()));
        owner.map_or(0, |(worker, _)| worker.index())
    }

    /// Lets time pass, with housekeeping in small steps, smaller ones where there is more to look
    /// after.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let step = Duration::from_micros(time.as_micros() / STEPS).clamp(STEP_MIN, STEP_MAX);
        while self.now < end {
            let records =
                self.shards().map(|shard| u64::from(shard.view().mappings_len()).max(shard.sessions_len())).max();
            self.records_peak = self.records_peak.max(records.unwrap_or(0));
            let busy_step = Duration::from_micros(SWEEP_MICROS_TIMES_RECORDS / self.records_peak.max(1));
            self.now = (self.now + step.min(busy_step)).min(end);
            self.settle();
        }
    }

    /// Lets so many seconds pass.
    pub fn advance_secs(&mut self, seconds: u64) {
        self.advance(Duration::from_secs(seconds));
    }

    /// Gives back all that is out of date now, however large the tables are.
    pub fn sweep(&mut self) {
        let records = self.shards().map(|shard| u64::from(shard.view().mappings_len()).max(shard.sessions_len())).max();
        self.records_peak = self.records_peak.max(records.unwrap_or(0));
        // One call visits 16 records at least; some more calls for those that come back from the
        // end.
        for _ in 0..self.records_peak / 16 + 4 {
            self.settle();
        }
    }

    /// Sets the clock forward at once, without housekeeping on the way.
    pub fn jump(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Lets all timers run out and checks that nothing is left: no record, no port in use.
    ///
    /// # Panics
    /// When something is left.
    pub fn run_out(&mut self) {
        let longest = self.longest.max(self.settings.timeouts.longest());
        if let Some(granted) = self.grants().iter().map(|grant| grant.left).max() {
            self.advance(granted);
            // The port is held down for its client as long as an idle mapping.
            self.advance(longest);
        }
        self.advance(longest);
        let rest = self.settings.pools.iter().map(|pool| pool.reuse_delay).max().unwrap_or(Duration::ZERO);
        self.advance(rest);
        for _ in 0..ROUNDS_MAX {
            if self.machine.shards().all(Shard::is_empty) {
                break;
            }
            self.now = self.now + Duration::from_millis(100);
            self.settle();
        }
        assert!(self.machine.shards().all(Shard::is_empty), "records are left after all timers ran out");
        assert_eq!(self.ports_used(), 0, "ports are in use though there is no mapping");
        let counters = self.counters();
        assert_eq!(counters.mappings_created, counters.mappings_removed, "mappings created and removed");
        assert_eq!(counters.sessions_created, counters.sessions_removed, "sessions created and removed");
    }

    fn collect(&mut self) {
        while let Some((interface, packet)) = self.machine.next_sent() {
            let side = self.machine.shared().settings().interfaces[interface.index()].side;
            let (bytes, translated) = (packet.len() as u64, self.audit.translated);
            let families = self.families.as_mut().filter(|_| packet.first().is_some_and(|first| first >> 4 == 6));
            let taken = match families {
                None => {
                    let faults = wire::verify::faults(&packet);
                    Some((packet, faults))
                }
                Some(families) => families.take(&packet),
            };
            // Otherwise the rest of it is on its way.
            let Some((packet, faults)) = taken else { continue };
            self.audit.comes_out_with(side, &packet, faults);
            self.audit.translated_bytes += bytes * (self.audit.translated - translated);
            self.taken[side.index()].push((interface, packet));
        }
    }

    /// What left inside since the last call, in order.
    pub fn take_inside(&mut self) -> Vec<Vec<u8>> {
        self.take_inside_by().into_iter().map(|(_, packet)| packet).collect()
    }

    /// As [`Bed::take_inside`], each with the interface it left by.
    pub fn take_inside_by(&mut self) -> Vec<(InterfaceId, Vec<u8>)> {
        std::mem::take(&mut self.taken[Side::Inside.index()])
    }

    /// What left outside since the last call, in order.
    pub fn take_outside(&mut self) -> Vec<Vec<u8>> {
        self.taken[Side::Outside.index()].drain(..).map(|(_, packet)| packet).collect()
    }

    /// The one packet that left inside.
    ///
    /// # Panics
    /// When there is not exactly one.
    pub fn only_inside(&mut self) -> Vec<u8> {
        let mut packets = self.take_inside();
        assert_eq!(packets.len(), 1, "packets inside: {packets:02x?}; verdicts: {:?}", self.verdicts());
        packets.remove(0)
    }

    /// The one packet that left outside.
    ///
    /// # Panics
    /// When there is not exactly one.
    pub fn only_outside(&mut self) -> Vec<u8> {
        let mut packets = self.take_outside();
        assert_eq!(packets.len(), 1, "packets outside: {packets:02x?}; verdicts: {:?}", self.verdicts());
        packets.remove(0)
    }

    /// Checks that nothing left since the last look.
    ///
    /// # Panics
    /// When something did.
    pub fn assert_silent(&mut self) {
        let (inside, outside) = (self.take_inside(), self.take_outside());
        assert!(inside.is_empty(), "left inside: {inside:02x?}");
        assert!(outside.is_empty(), "left outside: {outside:02x?}");
    }

    /// Counters of all workers together.
    pub fn counters(&self) -> Counters {
        let mut total = Counters::default();
        for one in self.machine.counters() {
            combine(&mut total, one, |sum, value| sum + value);
        }
        combine(&mut total, &self.before, u64::saturating_sub);
        // The answers to Natrix's ARP requests are part of the bed, not of the test.
        let answers = self.machine.arp_answers - self.arp_answers_before;
        total.received = total.received.saturating_sub(answers);
        let local = &mut total.verdicts[Verdict::Local.index()];
        *local = local.saturating_sub(answers);
        total
    }

    /// Packets with this verdict so far.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.counters().of(verdict)
    }

    /// All verdicts that were given, with their names.
    pub fn verdicts(&self) -> Vec<(&'static str, u64)> {
        let counters = self.counters();
        let given = Verdict::ALL.iter().filter(|verdict| counters.of(**verdict) > 0);
        given.map(|verdict| (verdict.name(), counters.of(*verdict))).collect()
    }

    /// All live mappings.
    pub fn mappings(&self) -> Vec<MappingView> {
        let mut found = Vec::new();
        for shard in self.machine.shards() {
            let mut all = Query::all(Filter::default());
            shard.view().mappings_page(self.now, &mut all);
            found.append(&mut all.records);
        }
        for view in &mut found {
            view.internal.address = families::name_of_view(view.internal.address, view.host.as_ref());
        }
        found
    }

    /// All live sessions.
    pub fn sessions(&self) -> Vec<SessionView> {
        let mut found = Vec::new();
        for shard in self.machine.shards() {
            let mut all = Query::all(Filter::default());
            shard.view().sessions_page(self.now, &mut all);
            found.append(&mut all.records);
        }
        for view in &mut found {
            view.internal.address = families::name_of_view(view.internal.address, view.host.as_ref());
        }
        found
    }

    /// All subscribers that have something.
    pub fn subscribers(&self) -> Vec<SubscriberView> {
        let (known, _) = self.subscribers_and_refused();
        known
    }

    /// The subscribers that were refused and have nothing.
    pub fn refused_subscribers(&self) -> Vec<SubscriberView> {
        let (_, refused_subscribers) = self.subscribers_and_refused();
        refused_subscribers
    }

    fn subscribers_and_refused(&self) -> (Vec<SubscriberView>, Vec<SubscriberView>) {
        let mut found = Vec::new();
        for shard in self.machine.shards() {
            let mut all = Query::all(Filter::default());
            shard.view().subscribers_page(self.now, &mut all);
            found.append(&mut all.records);
        }
        for view in &mut found {
            view.address = families::name_of_view(view.address, view.host.as_ref());
        }
        found.into_iter().partition(|view| !view.is_refused_only)
    }

    /// The live mapping of an internal endpoint.
    pub fn mapping_of(&self, protocol: Protocol, internal: SocketAddrV4) -> Option<MappingView> {
        self.mappings().into_iter().find(|mapping| {
            mapping.protocol == protocol
                && mapping.internal.address == *internal.ip()
                && mapping.internal.port == internal.port()
        })
    }

    /// External ports that rest before they are given out again.
    pub fn ports_held(&self) -> u64 {
        self.machine.shards().map(|shard| u64::from(shard.view().held_ports_len())).sum()
    }

    /// External ports in use or at rest, over all addresses and protocols.
    pub fn ports_used(&self) -> u64 {
        let shared = self.machine.shared();
        let addresses = (0..shared.address_count() as u32).map(AddressIndex);
        addresses
            .flat_map(|address| Protocol::ALL.map(|protocol| u64::from(shared.ports_used(address, protocol))))
            .sum()
    }

    /// Sends one UDP datagram from inside and returns the external endpoint it left from.
    ///
    /// # Panics
    /// When it did not leave.
    pub fn open_udp(&mut self, internal: SocketAddrV4, remote: SocketAddrV4) -> SocketAddrV4 {
        self.inside(&build::udp(internal, remote).payload_length(16).build());
        packet::source(&self.only_outside())
    }

    /// Sends a SYN from inside and returns the external endpoint it left from.
    ///
    /// # Panics
    /// When it did not leave.
    pub fn open_tcp(&mut self, internal: SocketAddrV4, remote: SocketAddrV4) -> SocketAddrV4 {
        self.inside(&build::tcp(internal, remote, Flags::SYN).sequence(1_000).mss(1460).build());
        packet::source(&self.only_outside())
    }

    /// Opens a TCP connection from inside with all three segments and returns the external
    /// endpoint. The next sequence number of the inside is 1001, that of the outside 5001.
    ///
    /// # Panics
    /// When a segment is not forwarded.
    pub fn connect(&mut self, internal: SocketAddrV4, remote: SocketAddrV4) -> SocketAddrV4 {
        let external = self.open_tcp(internal, remote);
        let answer = build::tcp(remote, external, Flags::SYN.union(Flags::ACK)).sequence(5_000).acknowledgment(1_001);
        self.outside(&answer.mss(1460).build());
        assert_eq!(packet::destination(&self.only_inside()), internal, "the SYN-ACK reaches the client");
        let ack = build::tcp(internal, remote, Flags::ACK).sequence(1_001).acknowledgment(5_001).build();
        self.inside(&ack);
        assert_eq!(packet::source(&self.only_outside()), external, "the ACK leaves from the same endpoint");
        external
    }

    /// Sends an Echo from inside and returns the external address and identifier it left with.
    ///
    /// # Panics
    /// When it did not leave.
    pub fn ping(&mut self, internal: Ipv4Addr, identifier: u16, remote: Ipv4Addr) -> SocketAddrV4 {
        self.inside(&build::echo_request(internal, remote, identifier).payload_length(32).build());
        packet::source(&self.only_outside())
    }

    /// Whether a UDP datagram from `remote` to `external` reaches `internal` now.
    pub fn udp_reaches(&mut self, remote: SocketAddrV4, external: SocketAddrV4, internal: SocketAddrV4) -> bool {
        self.outside(&build::udp(remote, external).payload_length(16).build());
        let arrived = self.take_inside();
        assert!(arrived.iter().all(|packet| packet::destination(packet) == internal), "reached somebody else");
        arrived.len() == 1
    }

    /// Checks the books; also done when the bed is dropped.
    ///
    /// # Panics
    /// When they do not balance.
    pub fn check_books(&mut self) {
        self.settle();
        for (worker, one) in self.machine.counters().enumerate() {
            let came = one.received + one.taken_over;
            let went = one.verdicts_total() + one.handed_off + one.fragments_held + one.neighbour_pending;
            assert_eq!(came, went, "packets that came to worker {worker} and what became of them: {one:?}");
        }
        let counters = self.counters();
        let accounted = counters.verdicts_total() + counters.fragments_held + counters.neighbour_pending;
        assert_eq!(counters.received, accounted, "received packets and verdicts: {:?}", self.verdicts());
        let forwarded: u64 = Verdict::ALL
            .iter()
            .filter(|verdict| verdict.kind() == VerdictKind::Forwarded)
            .map(|verdict| counters.of(*verdict))
            .sum();
        // Pieces, and fragments that waited for their first one, may be lost behind the shard,
        // which has counted them.
        let in_pieces = counters.fragmented + self.machine.lost_behind_the_shard();
        // A piece may look exactly like a fragment that came as one and was dropped.
        let is_at_most = self.audit.translated <= forwarded || counters.fragmented > 0;
        assert!(
            is_at_most && forwarded <= self.audit.translated + in_pieces,
            "{forwarded} packets count as forwarded; {} came out whole, {in_pieces} in pieces; {:?}",
            self.audit.translated,
            self.verdicts()
        );
        // Otherwise pieces have headers, or bytes left, that no packet had by itself.
        let in_whole_packets = in_pieces + self.audit.pieces + counters.of(Verdict::Reassembled) == 0;
        let bytes: u64 = counters.bytes_forwarded.iter().sum();
        if in_whole_packets {
            assert_eq!(bytes, self.audit.translated_bytes, "bytes that count as forwarded and left");
        }
        let live = self.machine.shards().map(|shard| u64::from(shard.view().mappings_len())).sum::<u64>();
        let held = self.ports_held();
        let shared = self.machine.shards().map(|shard| shard.view().shared_ports_len() as u64).sum::<u64>();
        let used = self.ports_used();
        assert!(
            used <= live + held + shared,
            "{used} ports in use by {live} mappings, {held} rest, {shared} are shared"
        );
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_books();
        }
    }
}

/// What a card that spreads flows over queues looks at. Like a card it knows nothing of the two
/// directions of a flow.
fn hash(key: u64, packet: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let (source, destination) = (packet::source(packet), packet::destination(packet));
    match packet::header(packet).is_fragment() {
        true => (key, source.ip(), destination.ip()).hash(&mut hasher),
        false => (key, source, destination).hash(&mut hasher),
    }
    hasher.finish()
}

/// Combines all numbers of `one` into `total`.
fn combine(total: &mut Counters, one: &Counters, how: impl Fn(u64, u64) -> u64) {
    let pairs = [
        (&mut total.received, one.received),
        (&mut total.handed_off, one.handed_off),
        (&mut total.taken_over, one.taken_over),
        (&mut total.fragments_held, one.fragments_held),
        (&mut total.neighbour_pending, one.neighbour_pending),
        (&mut total.fragmented, one.fragmented),
        (&mut total.originated, one.originated),
        (&mut total.icmp_errors_suppressed, one.icmp_errors_suppressed),
        (&mut total.icmp_errors_translated, one.icmp_errors_translated),
        (&mut total.addresses_paired, one.addresses_paired),
        (&mut total.blocks_leased, one.blocks_leased),
        (&mut total.blocks_returned, one.blocks_returned),
        (&mut total.penalties_begun, one.penalties_begun),
        (&mut total.penalties_ended, one.penalties_ended),
        (&mut total.refusals_unlisted, one.refusals_unlisted),
        (&mut total.flows_created, one.flows_created),
        (&mut total.flows_removed, one.flows_removed),
        (&mut total.sessions_created, one.sessions_created),
        (&mut total.sessions_removed, one.sessions_removed),
        (&mut total.tcp_resets_ignored, one.tcp_resets_ignored),
        (&mut total.unsolicited_syns_matched, one.unsolicited_syns_matched),
        (&mut total.unsolicited_syns_overflow, one.unsolicited_syns_overflow),
        (&mut total.ports_held, one.ports_held),
        (&mut total.ports_held_short, one.ports_held_short),
        (&mut total.port_control_ignored, one.port_control_ignored),
        (&mut total.port_control_limited, one.port_control_limited),
        (&mut total.port_control_updates, one.port_control_updates),
        (&mut total.expectations_created, one.expectations_created),
        (&mut total.expectations_refused, one.expectations_refused),
        (&mut total.grants_opened, one.grants_opened),
        (&mut total.grants_deleted, one.grants_deleted),
    ];
    for (sum, value) in pairs {
        *sum = how(*sum, value);
    }
    for (total, one) in total.gateways.iter_mut().zip(&one.gateways) {
        total.expected = how(total.expected, one.expected);
        for (sum, value) in total.refused.iter_mut().zip(one.refused) {
            *sum = how(*sum, value);
        }
    }
    let arrays: [(&mut [u64], &[u64]); 9] = [
        (&mut total.control_sessions, &one.control_sessions),
        (&mut total.messages_changed, &one.messages_changed),
        (&mut total.pcp_results, &one.pcp_results),
        (&mut total.nat_pmp_results, &one.nat_pmp_results),
        (&mut total.verdicts, &one.verdicts),
        (&mut total.mappings_created, &one.mappings_created),
        (&mut total.ports_refused, &one.ports_refused),
        (&mut total.mappings_removed, &one.mappings_removed),
        (&mut total.bytes_forwarded, &one.bytes_forwarded),
    ];
    for (sums, values) in arrays {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = how(*sum, *value);
        }
    }
}
