//! What the events of a run say: who had which external endpoint, at any time. Knows nothing of the engine but its events.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::HashMap;

use nat::Instant;
use nat::Protocol;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::RealmId;

/// An external endpoint of one protocol.
pub type ExternalEndpoint = (Ipv4Addr, Protocol, u16);

/// Who has it: realm, internal address and port, and the worker that said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// One stretch of time in which somebody had an endpoint.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    holder: Holder,
    since: Instant,
    until: Option<Instant>,
}

/// The books.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By worker: number of the next event.
    next: BTreeMap<usize, u64>,
    stretches: HashMap<ExternalEndpoint, Vec<Stretch>>,
    /// Blocks that are leased: external address, first and last port.
    blocks: HashMap<(Ipv4Addr, u16, u16), Holder>,
    /// Records read, by kind.
    pub kinds: HashMap<EventKind, u64>,
    /// Packets that refusals tell of.
    pub packets_refused: u64,
    /// Numbers that gaps stand for.
    pub lost: u64,
}

impl Ledger {
    /// Reads the events of one worker, in their order.
    ///
    /// # Panics
    /// When a number is missing, a time goes back, an endpoint is given to a second holder while it has one, or ends for
    /// another one than who has it. Only a gap excuses the last.
    pub fn read(&mut self, worker: usize, events: &[Event]) {
        for event in events {
            let next = self.next.entry(worker).or_insert(1);
            assert_eq!(event.sequence, *next, "the numbers of worker {worker} are without holes: {event:?}");
            *next += if event.kind == EventKind::Gap { u64::from(event.amount) } else { 1 };
            *self.kinds.entry(event.kind).or_default() += 1;
            match event.kind {
                EventKind::MappingCreated => self.begin(worker, event),
                EventKind::MappingEnded => self.end(worker, event),
                EventKind::BlockLeased => {
                    let before = self.blocks.insert(block_of(event), holder_of(worker, event));
                    assert!(before.is_none(), "a block has two holders: {before:?} and {event:?}");
                }
                EventKind::BlockReturned => {
                    let holder = self.blocks.remove(&block_of(event));
                    assert_eq!(holder, Some(holder_of(worker, event)), "who returns a block had it: {event:?}");
                }
                EventKind::Refused => self.packets_refused += u64::from(event.amount),
                EventKind::Gap => self.lost += u64::from(event.amount),
                _ => {}
            }
        }
    }

    fn begin(&mut self, worker: usize, event: &Event) {
        let (endpoint, holder) = parties(worker, event);
        let stretches = self.stretches.entry(endpoint).or_default();
        // Workers are read one after the other, so what came before may be read later: times decide.
        let open =
            stretches.iter().find(|one| one.until.is_none() && one.since <= event.at && one.holder.worker == worker);
        assert!(open.is_none() || self.lost > 0, "{endpoint:?} has two holders: {open:?} and {holder:?}");
        stretches.push(Stretch { holder, since: event.at, until: None });
    }

    fn end(&mut self, worker: usize, event: &Event) {
        let (endpoint, holder) = parties(worker, event);
        let stretches = self.stretches.entry(endpoint).or_default();
        let open = stretches.iter_mut().find(|one| one.until.is_none() && one.holder == holder);
        match open {
            Some(stretch) => {
                let held_s = event.at.as_micros() / 1_000_000 - stretch.since.as_micros() / 1_000_000;
                assert_eq!(u64::from(event.amount), held_s, "the record says how long it was: {event:?}");
                stretch.until = Some(event.at);
            }
            None => assert!(self.lost > 0, "an end without a begin: {event:?}"),
        }
    }

    /// Blocks that are leased now.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Who has the block that this port is in.
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

    /// Who had each endpoint at this time.
    ///
    /// # Panics
    /// When one had two holders.
    pub fn at(&self, at: Instant) -> HashMap<ExternalEndpoint, Holder> {
        let mut held = HashMap::new();
        for (endpoint, stretches) in &self.stretches {
            // An endpoint that ends and is given out again at one instant belongs to the second.
            for stretch in stretches.iter().filter(|one| one.since <= at && one.until.is_none_or(|until| at < until)) {
                let before = held.insert(*endpoint, stretch.holder);
                assert!(before.is_none(), "{endpoint:?} had two holders at {at:?}: {before:?} and {stretch:?}");
            }
        }
        held
    }
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
