//! Names of IPv6 hosts: in events a host is a number, which may mean another host later.
//!
//! Each name gets an identifier that stays its own as long as anything in the store refers to it.
//! Intervals have the identifier instead of the number, so that sorting, merging and pairing need
//! not know of names. A segment has the names of its intervals, and those that events after it may
//! refer to.

use core::fmt;
use core::net::Ipv6Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::hash_map::Entry;

use nat::event::Event;
use nat::event::HostName;
use nat::event::UNKNOWN_HOST;
use nat::types::HOSTS_FIRST;
use nat::types::HostNumber;

use super::codec::Cursor;
use crate::subscriber::Subscriber;

/// Bytes of a name in a segment.
pub(crate) const NAME_BYTES: usize = 31;

const IS_CURRENT: u8 = 1;
const IS_SOFTWIRE: u8 = 2;

/// A name in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameRow {
    pub(crate) id: u32,
    /// The number in events, and the worker that gave it, while this name is current.
    pub(crate) number: u32,
    pub(crate) worker: u8,
    /// Later events with the number mean this host, until it is named again.
    pub(crate) is_current: bool,
    pub(crate) name: HostName,
}

impl NameRow {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let softwire = if self.name.inner.is_some() { IS_SOFTWIRE } else { 0 };
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&[self.worker, u8::from(self.is_current) | softwire, self.name.prefix_length]);
        out.extend_from_slice(&self.name.address.to_be_bytes());
        out.extend_from_slice(&self.name.inner.unwrap_or(0).to_le_bytes());
    }

    pub(crate) fn take(input: &mut Cursor<'_>) -> Option<NameRow> {
        let (id, number, worker, flags, prefix_length) =
            (input.u32()?, input.u32()?, input.u8()?, input.u8()?, input.u8()?);
        let (address, inner) = (u128::from_be_bytes(input.array()?), input.u32()?);
        let inner = (flags & IS_SOFTWIRE != 0).then_some(inner);
        let is_possible = HostNumber(id).is_ipv6() && flags <= (IS_CURRENT | IS_SOFTWIRE) && prefix_length <= 128;
        is_possible.then_some(NameRow {
            id,
            number,
            worker,
            is_current: flags & IS_CURRENT != 0,
            name: HostName { address, prefix_length, inner },
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    name: HostName,
    /// An event of this window, or an open interval, refers to it.
    is_used: bool,
}

/// The names that events refer to.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    /// By number: identifier and worker.
    current: HashMap<u32, (u32, u8)>,
    names: HashMap<u32, Known>,
    by_name: HashMap<HostName, u32>,
    next: u32,
}

/// What a segment says about names.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    /// Sorted by identifier.
    pub(crate) rows: Vec<NameRow>,
    /// The identifier after the last one that was given; 0 if none was. Segments that are merged
    /// must not have one identifier for two names.
    pub(crate) next: u32,
}

impl NameTable {
    /// The name of an identifier.
    pub(crate) fn get(&self, id: u32) -> Option<HostName> {
        let place = self.rows.binary_search_by_key(&id, |row| row.id).ok()?;
        self.rows.get(place).map(|row| row.name)
    }
}

impl Hosts {
    pub(crate) fn new() -> Hosts {
        Hosts::default()
    }

    /// Continues after a segment with these names.
    pub(crate) fn resume(&mut self, table: &NameTable) {
        for row in &table.rows {
            self.names.insert(row.id, Known { name: row.name, is_used: true });
            self.by_name.insert(row.name, row.id);
            if row.is_current {
                self.current.insert(row.number, (row.id, row.worker));
            }
        }
        self.next = table.next;
    }

    /// Names in memory.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The identifier of a name: the one that it has, or a new one.
    fn id_of(&mut self, name: HostName) -> u32 {
        if let Some(id) = self.by_name.get(&name) {
            return *id;
        }
        loop {
            let is_free = HostNumber(self.next).is_ipv6() && self.next != UNKNOWN_HOST.to_bits();
            let id = if is_free { self.next } else { HOSTS_FIRST };
            self.next = id + 1;
            // There are many more identifiers than names in memory.
            if let Entry::Vacant(place) = self.names.entry(id) {
                place.insert(Known { name, is_used: false });
                self.by_name.insert(name, id);
                return id;
            }
        }
    }

    /// Takes an event that names a host.
    pub(crate) fn name(&mut self, worker: u8, event: &Event) {
        let number = event.subscriber.to_bits();
        // The unknown host has no name.
        let name = HostName::of(event).filter(|_| event.subscriber != UNKNOWN_HOST);
        let Some(name) = name else {
            self.current.remove(&number);
            return;
        };
        let id = self.id_of(name);
        self.current.insert(number, (id, worker));
    }

    /// The identifier of a name without a number.
    pub(crate) fn intern(&mut self, name: HostName) -> u32 {
        let id = self.id_of(name);
        self.names.insert(id, Known { name, is_used: true });
        id
    }

    /// Records of a worker are missing: its numbers may have new names.
    pub(crate) fn forget(&mut self, worker: u8) {
        self.current.retain(|_, (_, of)| *of != worker);
    }

    /// The event with an identifier instead of a number.
    #[cold]
    pub(crate) fn with_identifier(&mut self, event: &Event) -> Event {
        let id = self.current.get(&event.subscriber.to_bits()).map(|(id, _)| *id);
        if let Some(known) = id.and_then(|id| self.names.get_mut(&id)) {
            known.is_used = true;
        }
        Event { subscriber: id.map_or(UNKNOWN_HOST, Into::into), ..*event }
    }

    /// The identifier of a name, if it has one.
    pub(crate) fn find(&self, name: &HostName) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&HostName> {
        self.names.get(&id).map(|known| &known.name)
    }

    /// Forgets names that nothing refers to but ended intervals that are gone.
    pub(crate) fn retain(&mut self, is_used: impl Fn(u32) -> bool) {
        let current: HashSet<u32> = self.current.values().map(|(id, _)| *id).collect();
        self.names.retain(|id, known| {
            known.is_used = is_used(*id);
            known.is_used || current.contains(id)
        });
        let names = &self.names;
        self.by_name.retain(|_, id| names.contains_key(id));
    }

    /// The names for a segment, sorted. Then forgets those that nothing later can refer to: all
    /// but the current ones and those of open intervals.
    pub(crate) fn cut(&mut self, open: &HashSet<u32>) -> NameTable {
        if self.names.is_empty() {
            return NameTable { rows: Vec::new(), next: self.next };
        }
        // A name may have several numbers, of which all but one are old.
        let mut numbers: HashMap<u32, Vec<(u32, u8)>> = HashMap::new();
        for (number, (id, worker)) in &self.current {
            numbers.entry(*id).or_default().push((*number, *worker));
        }
        let mut rows: Vec<NameRow> = Vec::new();
        for (id, Known { name, is_used }) in &self.names {
            let row = NameRow { id: *id, number: 0, worker: 0, is_current: false, name: *name };
            match numbers.get(id) {
                Some(numbers) => rows.extend(numbers.iter().map(|(number, worker)| NameRow {
                    number: *number,
                    worker: *worker,
                    is_current: true,
                    ..row
                })),
                None if *is_used => rows.push(row),
                None => {}
            }
        }
        rows.sort_unstable_by_key(|row| row.id);
        self.retain(|id| open.contains(&id));
        NameTable { rows, next: self.next }
    }
}

/// A question about IPv6 hosts: what their addresses begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPrefix {
    /// The first address.
    pub address: u128,
    /// 128 for a host.
    pub length: u8,
}

impl HostPrefix {
    /// True if some address is in both.
    pub fn overlaps(&self, name: &HostName) -> bool {
        let length = u32::from(self.length.min(name.prefix_length).min(128));
        (self.address ^ name.address).leading_zeros() >= length
    }
}

impl fmt::Display for HostPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.address);
        if self.length < 128 { write!(f, "{address}/{}", self.length) } else { write!(f, "{address}") }
    }
}

/// What the subscriber of an interval is.
pub(crate) fn subscriber_of(bits: u32, name: impl FnOnce(u32) -> Option<HostName>) -> Subscriber {
    if HostNumber(bits).is_ipv6() {
        name(bits).map_or(Subscriber::Unknown, Subscriber::Host)
    } else {
        Subscriber::Ipv4(bits.into())
    }
}
