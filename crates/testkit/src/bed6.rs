//! Shards between IPv6 hosts inside and IPv4 hosts outside, without links: packets in, packets out,
//! a virtual clock.
//!
//! Each packet that leaves is checked: lengths and checksums of all headers, and no address of an
//! inside host outside.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::VecDeque;
use std::sync::Arc;

use mem::ring;
use mem::ring::Consumer;
use nat::BuildError;
use nat::Counters;
use nat::Delta;
use nat::Duration;
use nat::GrantDelta;
use nat::Instant;
use nat::Outcome;
use nat::Packet;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::Successor;
use nat::Verdict;
use nat::event::Event;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::settings::Address6;
use nat::settings::Nat64;
use nat::settings::Softwire;
use nat::settings::Transition;
use nat::stand_in::Prefix6;
use nat::types::AddressUse;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::types::WorkerId;
use nat::view::Filter;
use nat::view::GrantView;
use nat::view::MappingView;
use nat::view::Query;
use nat::view::SubscriberView;
use translate::Prefix;

use crate::packet6::At6;
use crate::packet6::destination6;
use crate::packet6::source6;
use crate::packet6::udp6;
use crate::topology;

/// An IPv6 host.
pub const C6: &str = "2001:db8:c:100::6";
/// A host of another subscriber.
pub const D6: &str = "2001:db8:d:200::6";
/// Natrix's own IPv6 address inside.
pub const OWN6: &str = "2001:db8:1::1";
/// Where softwires end.
pub const AFTR: &str = "2001:db8:1::aaaa";

/// Room in front of a packet, as a card leaves it.
const ROOM: usize = 128;
/// Room behind.
const TAIL: usize = 64;

/// An address from text.
///
/// # Panics
/// When it is none.
pub fn v6(text: &str) -> u128 {
    text.parse::<Ipv6Addr>().expect("an IPv6 address").to_bits()
}

/// A prefix from text.
///
/// # Panics
/// When it is none.
pub fn prefix6(text: &str) -> Prefix6 {
    let (address, length) = text.split_once('/').expect("a prefix has a length");
    Prefix6::new(v6(address), length.parse().expect("a length")).expect("a length")
}

/// The IPv6 address that stands for an IPv4 address behind 64:ff9b::/96.
pub const fn behind(address: Ipv4Addr) -> u128 {
    Prefix::WELL_KNOWN.embed(address.to_bits())
}

/// The topology of [`topology::settings`], with NAT64 and softwires beside IPv4 subscribers, all in
/// one realm and one pool.
pub fn settings6() -> Settings {
    let mut settings = topology::settings();
    settings.ipv6.addresses =
        vec![Address6 { interface: topology::INSIDE, address: v6(OWN6).into(), prefix_length: 64 }];
    settings.transition = Transition {
        nat64: vec![Nat64 { prefix: Prefix::WELL_KNOWN, realm: RealmId::default(), lowest_mtu6: 1_280 }],
        softwires: vec![Softwire {
            aftr: v6(AFTR).into(),
            realm: RealmId::default(),
            inner: vec![topology::prefix([192, 168, 0, 0], 16), topology::prefix([192, 0, 0, 0], 29)],
            subscribers: Vec::new(),
        }],
        hosts_max: 20_000,
        ..Transition::default()
    };
    settings.pools[0].subscribers.push(Transition::HOSTS);
    settings
}

/// See the [module](self).
pub struct Bed6 {
    shared: Arc<Shared>,
    shards: Vec<Shard>,
    now: Instant,
    queue: VecDeque<(usize, PacketMeta, Vec<u8>)>,
    left: [Vec<Vec<u8>>; 2],
    last: Option<Verdict>,
    /// By worker, if changes are recorded.
    deltas: Vec<Consumer<Delta>>,
    events: Vec<Consumer<Record>>,
    logs_opened: Arc<LogsOpened>,
}

struct Out<'a> {
    shared: &'a Shared,
    queue: &'a mut VecDeque<(usize, PacketMeta, Vec<u8>)>,
    left: &'a mut [Vec<Vec<u8>>; 2],
}

impl Out<'_> {
    fn send(&mut self, egress: Egress, packet: Vec<u8>) {
        let hop = self.shared.next_hops().nth(egress.next_hop.index()).expect("a next hop of the snapshot");
        if hop.is_ipv6 {
            assert_eq!(wire::verify6::faults(&packet), [], "a right IPv6 packet: {packet:02x?}");
        } else {
            assert_eq!(wire::verify::faults(&packet), [], "a right IPv4 packet: {packet:02x?}");
            let view = wire::ipv4::Ipv4::new_unchecked(packet.as_slice());
            let is_notice = view.destination() == u32::from_be_bytes(pcp::ALL_CLIENTS);
            let is_host = |address: u32| address >= nat::types::HOSTS_FIRST;
            assert!(!is_host(view.source()) && (is_notice || !is_host(view.destination())));
        }
        self.left[self.shared.settings().interfaces[hop.interface.index()].side.index()].push(packet);
    }
}

impl Sink for Out<'_> {
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool {
        self.send(egress, parts.concat());
        true
    }

    fn hand_off(&mut self, worker: WorkerId, meta: PacketMeta, parts: &[&[u8]]) -> bool {
        self.queue.push_back((worker.index(), meta, parts.concat()));
        true
    }
}

impl Bed6 {
    /// One worker, an hour after the origin of the clock.
    ///
    /// # Panics
    /// When the settings cannot be compiled.
    pub fn new(settings: Settings) -> Bed6 {
        Bed6::with_workers(settings, 1)
    }

    /// So many workers.
    ///
    /// # Panics
    /// When the settings cannot be compiled.
    pub fn with_workers(settings: Settings, workers: usize) -> Bed6 {
        mem::arena::provide_on_demand();
        let shared = Arc::new(Shared::new(settings, workers).expect("valid settings"));
        let shard =
            |worker: usize| Shard::new(Arc::clone(&shared), WorkerId(worker as u8), [1, 2, 3, worker as u64 + 4]);
        let shards = (0..workers).map(|worker| shard(worker).expect("enough memory")).collect();
        let now = Instant::from_micros(3_600_000_000);
        Bed6 {
            shared,
            shards,
            now,
            queue: VecDeque::new(),
            left: [Vec::new(), Vec::new()],
            last: None,
            deltas: Vec::new(),
            events: Vec::new(),
            logs_opened: Arc::default(),
        }
    }

    /// Has every worker record its events in a ring for so many of them.
    #[must_use]
    pub fn record_events(mut self, capacity: usize) -> Bed6 {
        for shard in &mut self.shards {
            let (producer, consumer) = ring::channel(capacity);
            shard.set_events(producer);
            shard.follow_logs(Arc::clone(&self.logs_opened));
            self.events.push(consumer);
        }
        self
    }

    /// From now on events go into a new log, in which the workers record what exists.
    pub fn open_event_log(&self) {
        self.logs_opened.count_one();
    }

    /// Takes all events, worker by worker.
    pub fn take_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for ring in &mut self.events {
            ring.pop_burst(usize::MAX, |record| events.extend(record.event()));
        }
        events
    }

    /// Has every worker leave its changes of state in a ring for so many of them.
    #[must_use]
    pub fn record_deltas(mut self, capacity: usize) -> Bed6 {
        for shard in &mut self.shards {
            let (producer, consumer) = ring::channel(capacity);
            shard.set_deltas(producer);
            self.deltas.push(consumer);
        }
        self
    }

    /// Takes all changes of state, worker by worker.
    pub fn take_deltas(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        for ring in &mut self.deltas {
            ring.pop_burst(usize::MAX, |delta| deltas.push(delta));
        }
        deltas
    }

    /// Switches to other settings as a running instance does; `meanwhile` is called between all
    /// steps.
    ///
    /// # Errors
    /// When the settings cannot replace the present ones; nothing is changed then.
    pub fn reload(&mut self, settings: Settings, mut meanwhile: impl FnMut(&mut Bed6)) -> Result<(), BuildError> {
        let next = Arc::new(self.shared.successor(settings, self.now)?);
        let before = std::mem::replace(&mut self.shared, Arc::clone(&next));
        let reshapes = next.reshapes(&before);
        for worker in 0..self.shards.len() {
            if let Some(mut local) = next.expected(&before) {
                self.shards[worker].expect(&mut local);
                meanwhile(self);
            }
        }
        for reshape in &reshapes {
            next.withhold(reshape);
            meanwhile(self);
        }
        for worker in 0..self.shards.len() {
            self.shards[worker].adopt(&mut Successor::new(&before, &next));
            meanwhile(self);
        }
        next.settle_hits(&before);
        next.settle();
        for reshape in &reshapes {
            next.offer(reshape);
            meanwhile(self);
        }
        Ok(())
    }

    /// The live grants of all workers.
    pub fn grants(&self) -> Vec<GrantDelta> {
        let mut grants = Vec::new();
        for shard in &self.shards {
            assert_eq!(shard.view().grant_deltas_page(self.now, 0, u32::MAX, &mut grants), None);
        }
        grants
    }

    /// The live grants as a list shows them.
    pub fn grant_views(&self) -> Vec<GrantView> {
        let page = |shard: &Shard| {
            let mut page = Query::all(Filter::default());
            shard.view().grants_page(self.now, &mut page);
            assert_eq!(page.next, None, "one page has room for all");
            page.records
        };
        self.shards.iter().flat_map(page).collect()
    }

    /// Installs grants as after a restart.
    ///
    /// # Errors
    /// The reason why the first of them has no place.
    pub fn restore(&mut self, grants: &[GrantDelta]) -> Result<(), Verdict> {
        grants.iter().try_for_each(|grant| {
            let worker = self.shared.worker_of_grant(grant).index();
            self.shards[worker].install_grant(self.now, grant)
        })
    }

    /// Every worker hears whether this address of the inside interface may be used.
    pub fn set_address_use(&mut self, address: u128, now: AddressUse) {
        for shard in &mut self.shards {
            shard.set_address_use(topology::INSIDE, address, now);
        }
    }

    /// Every worker announces that state was lost.
    pub fn announce_loss(&mut self) {
        for shard in &mut self.shards {
            shard.announce_loss(self.now);
        }
    }

    /// The answer to a datagram to the port-control server, which must come from where it was sent
    /// to.
    pub fn answer6(&mut self, from: At6, to: At6, message: &[u8]) -> Option<Vec<u8>> {
        let [answers, out] = self.inside(&udp6(from, to, message));
        assert_eq!(out, Vec::<Vec<u8>>::new(), "nothing goes outside");
        assert!(answers.len() <= 1, "one answer at most");
        let answer = answers.first()?;
        assert_eq!((source6(answer), destination6(answer)), (to, from));
        Some(answer[48..].to_vec())
    }

    /// All live mappings.
    pub fn mapping_views(&self) -> Vec<MappingView> {
        let page = |shard: &Shard| {
            let mut page = Query::all(Filter::default());
            shard.view().mappings_page(self.now, &mut page);
            assert_eq!(page.next, None, "one page has room for all");
            page.records
        };
        self.shards.iter().flat_map(page).collect()
    }

    /// All subscribers, also those that only were refused.
    pub fn subscriber_views(&self) -> Vec<SubscriberView> {
        let page = |shard: &Shard| {
            let mut page = Query::all(Filter::default());
            shard.view().subscribers_page(self.now, &mut page);
            assert_eq!(page.next, None, "one page has room for all");
            page.records
        };
        self.shards.iter().flat_map(page).collect()
    }

    /// A packet of any family from inside, received by the first worker. Returns what left on
    /// either side: inside, outside.
    pub fn inside(&mut self, packet: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.receive(0, topology::INSIDE, packet)
    }

    /// A packet from outside.
    pub fn outside(&mut self, packet: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.receive(0, topology::OUTSIDE, packet)
    }

    /// A packet that this worker receives.
    pub fn receive(&mut self, worker: usize, ingress: InterfaceId, packet: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.shards[worker].counters_mut().received += 1;
        self.queue.push_back((worker, PacketMeta { ingress, ..PacketMeta::default() }, packet.to_vec()));
        self.settle();
        self.take()
    }

    /// A packet that left a worker by this interface, to a neighbour that does not answer.
    pub fn undelivered(&mut self, worker: usize, interface: InterfaceId, packet: &[u8]) -> [Vec<Vec<u8>>; 2] {
        let mut out = Out { shared: &self.shared, queue: &mut self.queue, left: &mut self.left };
        self.shards[worker].report_undelivered(self.now, interface, packet, &mut out);
        self.settle();
        self.take()
    }

    /// A burst that the first worker receives. As with a card, packets that the engine sends by
    /// itself leave before those it returns.
    pub fn burst(&mut self, ingress: InterfaceId, packets: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
        let mut frames: Vec<Vec<u8>> =
            packets.iter().map(|packet| [&[0xee; ROOM], packet.as_slice(), &[0xa5; TAIL]].concat()).collect();
        let meta = PacketMeta { ingress, ..PacketMeta::default() };
        let shard = &mut self.shards[0];
        shard.counters_mut().received += packets.len() as u64;
        let mut out = Out { shared: &self.shared, queue: &mut self.queue, left: &mut self.left };
        let mut burst: Vec<Packet<'_>> = frames
            .iter_mut()
            .zip(packets)
            .map(|(frame, packet)| Packet::in_frame(&mut frame[..ROOM + packet.len()], ROOM as u16, meta))
            .collect();
        shard.process(self.now, &mut burst, &mut out);
        let results: Vec<_> = burst.iter().map(|packet| (packet.outcome, packet.start())).collect();
        for ((outcome, start), frame) in results.into_iter().zip(&frames) {
            match outcome {
                Outcome::Done => {}
                Outcome::Transmit { egress, start, length } => {
                    out.send(egress, frame[usize::from(start)..usize::from(start) + usize::from(length)].to_vec());
                }
                Outcome::HandOff { worker, meta } => {
                    shard.counters_mut().handed_off += 1;
                    let end = frame.len() - TAIL;
                    out.queue.push_back((worker.index(), meta, frame[usize::from(start)..end].to_vec()));
                }
            }
        }
        self.settle();
        self.take()
    }

    fn settle(&mut self) {
        let mut steps = 0;
        while let Some((worker, meta, packet)) = self.queue.pop_front() {
            steps += 1;
            assert!(steps < 1_000, "a packet goes round in circles");
            let is_own = meta.stage.is_own();
            let mut frame = [vec![0xee; ROOM].as_slice(), &packet, &[0xa5; TAIL]].concat();
            let end = ROOM + packet.len();
            let shard = &mut self.shards[worker];
            if steps > 1 && !is_own {
                shard.counters_mut().taken_over += 1;
            }
            let mut out = Out { shared: &self.shared, queue: &mut self.queue, left: &mut self.left };
            // The frame of a short packet has padding.
            let frame_end = end.max(ROOM + 46).min(frame.len());
            let mut burst = [Packet::in_frame(&mut frame[..frame_end], ROOM as u16, meta)];
            shard.process(self.now, &mut burst, &mut out);
            let [packet] = burst;
            let (outcome, verdict, start) = (packet.outcome, packet.verdict, usize::from(packet.start()));
            match outcome {
                Outcome::Done => self.last = verdict,
                Outcome::Transmit { egress, start, length } => {
                    self.last = verdict;
                    let bytes = frame[usize::from(start)..usize::from(start) + usize::from(length)].to_vec();
                    out.send(egress, bytes);
                }
                Outcome::HandOff { worker, meta } => {
                    shard.counters_mut().handed_off += 1;
                    self.queue.push_back((worker.index(), meta, frame[start..frame_end].to_vec()));
                }
            }
        }
    }

    fn take(&mut self) -> [Vec<Vec<u8>>; 2] {
        core::mem::take(&mut self.left)
    }

    /// The verdict of the last packet; `None` if it waits.
    pub fn verdict(&self) -> Option<Verdict> {
        self.last
    }

    /// Lets time pass, with housekeeping every half second. Returns what left.
    pub fn advance(&mut self, duration: Duration) -> [Vec<Vec<u8>>; 2] {
        let until = self.now + duration;
        while self.now < until {
            self.now = (self.now + Duration::from_millis(500)).min(until);
            for shard in &mut self.shards {
                let mut out = Out { shared: &self.shared, queue: &mut self.queue, left: &mut self.left };
                shard.maintain(self.now, &mut out);
            }
            self.settle();
        }
        self.take()
    }

    /// Lets time pass without housekeeping, so that packets meet expired state.
    pub fn jump(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Housekeeping until nothing expired is left, without letting time pass.
    pub fn sweep(&mut self) -> [Vec<Vec<u8>>; 2] {
        for shard in &mut self.shards {
            let mut out = Out { shared: &self.shared, queue: &mut self.queue, left: &mut self.left };
            (0..200).for_each(|_| shard.maintain(self.now, &mut out));
        }
        self.settle();
        self.take()
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The shards.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// What the shards share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Packets with this verdict, of all workers.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.shards.iter().map(|shard| shard.counters().of(verdict)).sum()
    }

    /// Mappings of all workers that have not been swept.
    pub fn mappings(&self) -> u64 {
        let left = |counters: &Counters| {
            let created: u64 = counters.mappings_created.iter().sum();
            created - counters.mappings_removed.iter().sum::<u64>()
        };
        self.shards.iter().map(|shard| left(shard.counters())).sum()
    }
}

impl Drop for Bed6 {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (mut received, mut accounted) = (0, 0);
        for counters in self.shards.iter().map(Shard::counters) {
            received += counters.received + counters.taken_over;
            accounted += counters.verdicts_total() + counters.handed_off + counters.fragments_held;
        }
        assert_eq!(received, accounted, "each packet has one verdict");
    }
}
