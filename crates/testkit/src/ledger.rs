//! What the events of a run say: the holder of each external endpoint, at any time. Knows nothing
//! of the engine but its events.

use core::fmt::Debug;
use core::hash::Hash;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Instant;
use nat::Protocol;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::RealmId;

/// An external endpoint of one protocol.
pub type ExternalEndpoint = (Ipv4Addr, Protocol, u16);

/// An external endpoint with a remote one: what a flow has for itself.
pub type FlowEndpoint = (ExternalEndpoint, (Ipv4Addr, u16));

/// The holder: realm, internal address and port, and the worker that reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Inside realm.
    pub realm: RealmId,
    /// Internal address.
    pub subscriber: Ipv4Addr,
    /// Internal port.
    pub port: u16,
    /// The worker whose event it was.
    pub worker: usize,
}

/// One stretch of time in which an endpoint had a holder.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    holder: Holder,
    since: Instant,
    until: Option<Instant>,
}

impl Stretch {
    fn is_his(&self, internal: SocketAddrV4, at: Instant) -> bool {
        (self.holder.subscriber, self.holder.port) == (*internal.ip(), internal.port())
            && self.since <= at
            && self.until.is_none_or(|until| at <= until)
    }
}

/// The books.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Those that are open, and whether their beginning was recorded as static.
    is_static: HashMap<(usize, (ExternalEndpoint, Holder)), bool>,
    /// By worker: number of the next event.
    next: BTreeMap<usize, u64>,
    stretches: HashMap<ExternalEndpoint, Vec<Stretch>>,
    /// Flows by what they have outside: others use the same external endpoint with other remote
    /// ones.
    flows: HashMap<FlowEndpoint, Vec<Stretch>>,
    /// Blocks that are leased: external address, first and last port.
    blocks: HashMap<(Ipv4Addr, u16, u16), Holder>,
    /// Records read, by kind.
    pub kinds: HashMap<EventKind, u64>,
    /// The packets that refusals stand for.
    pub packets_refused: u64,
    /// Numbers that gaps stand for.
    pub lost: u64,
    /// Set if the log was opened while much existed already: the workers that have recorded all of
    /// it.
    opened: Option<HashSet<usize>>,
}

impl Ledger {
    /// The books of a log that was opened while the instance ran.
    pub fn opened() -> Ledger {
        Ledger { opened: Some(HashSet::new()), ..Ledger::default() }
    }

    /// Whether this many workers have recorded all that existed when the log was opened.
    pub fn is_snapshot_complete(&self, workers: usize) -> bool {
        self.opened.as_ref().is_none_or(|reported| reported.len() == workers)
    }

    /// Whether something may end here whose beginning is in no record.
    fn is_excused(&self, worker: usize) -> bool {
        self.lost > 0 || self.opened.as_ref().is_some_and(|reported| !reported.contains(&worker))
    }

    /// Reads the events of one worker, in their order.
    ///
    /// # Panics When a number is missing, a time goes back, an endpoint is given to a second holder
    /// while it has one, or ends for another than its holder. Only a gap excuses the last.
    pub fn read(&mut self, worker: usize, events: &[Event]) {
        for event in events {
            let first = if self.opened.is_some() { event.sequence } else { 1 };
            let next = self.next.entry(worker).or_insert(first);
            assert_eq!(event.sequence, *next, "the numbers of worker {worker} are without holes: {event:?}");
            *next += if event.kind == EventKind::Gap { u64::from(event.amount) } else { 1 };
            *self.kinds.entry(event.kind).or_default() += 1;
            match event.kind {
                EventKind::MappingCreated | EventKind::StaticCreated => {
                    self.is_static.insert((worker, parties(worker, event)), event.kind == EventKind::StaticCreated);
                    self.begin(worker, event);
                }
                EventKind::MappingEnded | EventKind::StaticEnded => {
                    let was_static = self.is_static.remove(&(worker, parties(worker, event)));
                    let is_static = event.kind == EventKind::StaticEnded;
                    assert!(was_static.is_none_or(|was| was == is_static), "it ends as what it began: {event:?}");
                    self.end(worker, event);
                }
                EventKind::FlowCreated => {
                    let (endpoint, holder) = parties(worker, event);
                    let stretches = self.flows.entry((endpoint, (event.remote, event.remote_port))).or_default();
                    begin(stretches, holder, event, self.lost > 0);
                }
                EventKind::FlowEnded => {
                    let is_excused = self.is_excused(worker);
                    let (endpoint, holder) = parties(worker, event);
                    let stretches = self.flows.entry((endpoint, (event.remote, event.remote_port))).or_default();
                    end(stretches, holder, event, is_excused);
                }
                EventKind::BlockLeased => {
                    let holder = holder_of(worker, event);
                    let before = self.blocks.insert(block_of(event), holder);
                    let is_told_again = event.cause == Cause::LogOpened && before == Some(holder);
                    assert!(before.is_none() || is_told_again, "a block has two holders: {before:?} and {event:?}");
                }
                EventKind::BlockReturned => {
                    let holder = self.blocks.remove(&block_of(event));
                    let is_known = holder.is_some() || !self.is_excused(worker);
                    assert!(
                        !is_known || holder == Some(holder_of(worker, event)),
                        "who returns a block had it: {event:?}"
                    );
                }
                EventKind::SnapshotComplete => {
                    let is_first = self.opened.as_mut().is_none_or(|reported| reported.insert(worker));
                    assert!(is_first, "a worker completes its snapshot only once: {event:?}");
                }
                EventKind::Refused => self.packets_refused += u64::from(event.amount),
                EventKind::Gap => self.lost += u64::from(event.amount),
                _ => {}
            }
        }
    }

    fn begin(&mut self, worker: usize, event: &Event) {
        let (endpoint, holder) = parties(worker, event);
        begin(self.stretches.entry(endpoint).or_default(), holder, event, self.lost > 0);
    }

    fn end(&mut self, worker: usize, event: &Event) {
        let (endpoint, holder) = parties(worker, event);
        let is_excused = self.is_excused(worker);
        end(self.stretches.entry(endpoint).or_default(), holder, event, is_excused);
    }

    /// Whether these books say the same of this time as others, and of the blocks that are leased
    /// now.
    ///
    /// # Panics
    /// When they do not.
    pub fn assert_says_as(&self, other: &Ledger, at: Instant) {
        assert_eq!(self.at(at), other.at(at), "mappings at {at:?}");
        assert_eq!(self.flows_at(at), other.flows_at(at), "flows at {at:?}");
        assert_eq!(self.blocks, other.blocks, "blocks");
    }

    /// Blocks that are leased now.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The holder of the block that this port is in.
    ///
    /// # Panics
    /// When two blocks overlap.
    pub fn block_holder(&self, external: Ipv4Addr, port: u16) -> Option<Holder> {
        let has = |block: &(Ipv4Addr, u16, u16)| block.0 == external && (block.1..=block.2).contains(&port);
        let mut holders = self.blocks.iter().filter(|(block, _)| has(block)).map(|(_, holder)| *holder);
        let holder = holders.next();
        assert!(holders.next().is_none(), "{external}:{port} is in two blocks");
        holder
    }

    /// Ports of an address that a mapping or a flow of this protocol had at some time since then,
    /// or that are in a block now.
    pub fn ports_used_since(&self, external: Ipv4Addr, protocol: Protocol, since: Instant) -> HashSet<u16> {
        let is_one = |endpoint: &ExternalEndpoint, stretches: &[Stretch]| {
            (endpoint.0, endpoint.1) == (external, protocol)
                && stretches.iter().any(|one| one.until.is_none_or(|until| until >= since))
        };
        let mappings =
            self.stretches.iter().filter(|(endpoint, of)| is_one(endpoint, of)).map(|(endpoint, _)| endpoint.2);
        let flows = self.flows.iter().filter(|(flow, of)| is_one(&flow.0, of)).map(|(flow, _)| flow.0.2);
        let blocks = self.blocks.keys().filter(|block| block.0 == external).flat_map(|block| block.1..=block.2);
        mappings.chain(flows).chain(blocks).collect()
    }

    /// Whether an internal endpoint had this external one at this instant, or until then.
    pub fn had(&self, endpoint: &ExternalEndpoint, internal: SocketAddrV4, at: Instant) -> bool {
        self.stretches.get(endpoint).is_some_and(|all| all.iter().any(|one| one.is_his(internal, at)))
    }

    /// The same of a flow.
    pub fn had_flow(&self, flow: &FlowEndpoint, internal: SocketAddrV4, at: Instant) -> bool {
        self.flows.get(flow).is_some_and(|all| all.iter().any(|one| one.is_his(internal, at)))
    }

    /// Blocks that a subscriber has.
    pub fn blocks_of(&self, subscriber: Ipv4Addr) -> usize {
        self.blocks.values().filter(|holder| holder.subscriber == subscriber).count()
    }

    /// The holder of each endpoint at this time.
    ///
    /// # Panics
    /// When one had two holders.
    pub fn at(&self, at: Instant) -> HashMap<ExternalEndpoint, Holder> {
        held_at(&self.stretches, at)
    }

    /// The holder of each flow at this time, by what it has outside.
    ///
    /// # Panics
    /// When one had two holders.
    pub fn flows_at(&self, at: Instant) -> HashMap<FlowEndpoint, Holder> {
        held_at(&self.flows, at)
    }
}

fn begin(stretches: &mut Vec<Stretch>, holder: Holder, event: &Event, is_excused: bool) {
    // Workers are read one after the other, so what came before may be read later: times decide.
    let is_open = |one: &&Stretch| one.until.is_none() && one.since <= event.at && one.holder.worker == holder.worker;
    let open = stretches.iter().find(is_open);
    if event.cause == Cause::LogOpened && open.is_some_and(|open| open.holder == holder) {
        return;
    }
    assert!(open.is_none() || is_excused, "two holders: {open:?} and {event:?}");
    // A mapping recorded late existed before; its creation is known to the second.
    let second = event.at.as_micros() / 1_000_000;
    let since = match event.cause {
        Cause::LogOpened => Instant::from_micros((second - u64::from(event.amount)) * 1_000_000),
        Cause::Configuration if event.kind == EventKind::MappingCreated => {
            Instant::from_micros((second - u64::from(event.amount)) * 1_000_000)
        }
        _ => event.at,
    };
    stretches.push(Stretch { holder, since, until: None });
}

fn end(stretches: &mut Vec<Stretch>, holder: Holder, event: &Event, is_excused: bool) {
    let open = stretches.iter_mut().find(|one| one.until.is_none() && one.holder == holder);
    match open {
        Some(stretch) => {
            let held_s = event.at.as_micros() / 1_000_000 - stretch.since.as_micros() / 1_000_000;
            assert_eq!(u64::from(event.amount), held_s, "the record says how long it was: {event:?}");
            stretch.until = Some(event.at);
        }
        None => {
            assert!(is_excused, "an end without a begin: {event:?}");
            let since_s = event.at.as_micros() / 1_000_000 - u64::from(event.amount);
            let since = Instant::from_micros(since_s * 1_000_000);
            stretches.push(Stretch { holder, since, until: Some(event.at) });
        }
    }
}

fn held_at<E: Copy + Eq + Hash + Debug>(stretches: &HashMap<E, Vec<Stretch>>, at: Instant) -> HashMap<E, Holder> {
    let mut held = HashMap::new();
    for (endpoint, stretches) in stretches {
        // An endpoint that ends and is given out again at one instant belongs to the second.
        for stretch in stretches.iter().filter(|one| one.since <= at && one.until.is_none_or(|until| at < until)) {
            let before = held.insert(*endpoint, stretch.holder);
            assert!(before.is_none(), "{endpoint:?} had two holders at {at:?}: {before:?} and {stretch:?}");
        }
    }
    held
}

fn parties(worker: usize, event: &Event) -> (ExternalEndpoint, Holder) {
    let protocol = event.protocol.expect("a mapping has a protocol");
    assert_eq!(event.first_port, event.last_port, "a mapping has one port");
    ((event.external, protocol, event.first_port), holder_of(worker, event))
}

fn holder_of(worker: usize, event: &Event) -> Holder {
    Holder { realm: event.realm, subscriber: event.subscriber, port: event.internal_port, worker }
}

fn block_of(event: &Event) -> (Ipv4Addr, u16, u16) {
    assert!(event.first_port <= event.last_port && event.protocol.is_none(), "a block is a range for all: {event:?}");
    (event.external, event.first_port, event.last_port)
}
