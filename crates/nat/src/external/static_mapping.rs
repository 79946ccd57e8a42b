//! External endpoints that always belong to one internal endpoint: static port forwards and
//! one-to-one pools.
//!
//! A static mapping has no record before a packet activates it, and none after its end. Its port is
//! never given to another endpoint.
//!
//! ```text
//!   forwards    by external  protocol | address | port ─► range ─► realm, inside address, port
//!               by inside    realm | protocol | address | port ─► range ─► external address, port
//!   one-to-one  by external  address ─► run of addresses ─► realm, inside address; the port stays
//!               by inside    realm | address ─► run ─► external address
//! ```
//!
//! IPv6 hosts are in keys by their position in the configuration: their numbers are temporary and
//! belong to one worker.
//!
//! The sorted lists are only searched when a mapping is made or missing, after a bitmap has
//! excluded subscribers without any.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::sync::Arc;

use crate::policy::rules::Hits;
use crate::policy::rules::RuleId;
use crate::rows::StaticView;
use crate::settings::Admission;
use crate::settings::Forward;
use crate::settings::Pool;
use crate::settings::Settings;
use crate::state::host::subscriber_prefix;
use crate::types::Endpoint;
use crate::types::HOSTS_FIRST;
use crate::types::HostNumber;
use crate::types::InsideHost;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::SOFTWIRE_HOSTS_FIRST;

#[cfg(test)]
mod tests;

const FILTER_BITS_PER_ADDRESS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticKey {
    pub(crate) realm: RealmId,
    pub(crate) protocol: Protocol,
    pub(crate) host: InsideHost,
    pub(crate) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) realm: RealmId,
    pub(crate) host: InsideHost,
    pub(crate) port: u16,
    pub(crate) kind: Kind,
    pub(crate) admission: Admission,
    pub(crate) number: u32,
}

impl Inside {
    pub(crate) fn key(&self, protocol: Protocol) -> StaticKey {
        StaticKey { realm: self.realm, protocol, host: self.host, port: self.port }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Forward,
    OneToOne,
}

/// Consecutive keys, and what the first stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<T> {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) to: T,
}

#[derive(Debug)]
pub(crate) struct Runs<T>(Box<[Run<T>]>);

impl<T: Copy> Runs<T> {
    pub(crate) fn new(mut runs: Vec<Run<T>>) -> Runs<T> {
        runs.sort_by_key(|run| run.first);
        debug_assert!(runs.windows(2).all(|two| two[0].last < two[1].first), "checked by who wrote the settings");
        Runs(runs.into_boxed_slice())
    }

    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<(&T, u64)> {
        let behind = self.0.partition_point(|run| run.first <= key);
        let run = self.0.get(behind.checked_sub(1)?)?;
        (key <= run.last).then(|| (&run.to, key - run.first))
    }

    pub(crate) fn overlaps(&self, first: u64, last: u64) -> bool {
        let next = self.0.partition_point(|run| run.last < first);
        self.0.get(next).is_some_and(|run| run.first <= last)
    }

    pub(crate) fn iter(&self) -> core::slice::Iter<'_, Run<T>> {
        self.0.iter()
    }
}

#[derive(Debug)]
pub(crate) struct StaticMappingTable {
    forwards_by_external: Runs<(RealmId, InsideHost, u16, Admission, u32)>,
    forwards_by_inside: Runs<(u32, u16)>,
    pairs_by_external: Runs<(RealmId, u32, Admission, u32)>,
    pairs_by_inside: Runs<u32>,
    homes: Runs<u32>,
    /// IPv6 hosts of forwards, sorted.
    hosts: Box<[InsideHost]>,
    /// Subscriber prefixes of these hosts, sorted.
    prefixes: Box<[u128]>,
    prefix_length: u8,
    /// By upper bits of the scattered [`StaticMappingTable::word`]. Empty if nothing is static.
    filter: Box<[u64]>,
    filter_shift: u32,
}

pub(crate) fn external_key(protocol: Protocol, address: u32, port: u16) -> u64 {
    (protocol as u64) << 48 | u64::from(address) << 16 | u64::from(port)
}

fn inside_key(realm: RealmId, protocol: Protocol, address: u32, port: u16) -> u64 {
    debug_assert!(realm.0 < 1 << 14, "a realm fits what is left of the key");
    u64::from(realm.0) << 50 | external_key(protocol, address, port)
}

fn host_key(realm: RealmId, address: u32) -> u64 {
    u64::from(realm.0) << 32 | u64::from(address)
}

fn word_of(prefix: u128) -> u32 {
    let half = (prefix >> 64) as u64 ^ (prefix as u64).rotate_left(32);
    (half >> 32) as u32 ^ half as u32
}

#[inline(always)]
fn scatter(address: u32) -> u32 {
    address.wrapping_mul(0x9e37_79b1)
}

impl StaticMappingTable {
    pub(crate) fn new(settings: &Settings, is_taken: impl Fn(u32) -> bool) -> StaticMappingTable {
        let forwards: Vec<(u32, &Forward)> =
            (0..).zip(&settings.forwards).filter(|(number, _)| !is_taken(*number)).collect();
        let prefix_length = settings.transition.prefix_length;
        let mut ipv6: Vec<InsideHost> = forwards.iter().map(|(_, forward)| forward.inside).collect();
        ipv6.retain(|host| host.ipv6().is_some());
        ipv6.sort_unstable();
        ipv6.dedup();
        let mut prefixes: Vec<u128> = ipv6.iter().filter_map(|host| prefix_of(host, prefix_length)).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let place = |host: &InsideHost| place_of(&ipv6, host).unwrap_or(HOSTS_FIRST);
        let home_of = |host: &InsideHost| home_place(&prefixes, prefix_length, host).unwrap_or(HOSTS_FIRST);
        let by_external = forwards.iter().map(|&(number, forward)| {
            let first = external_key(forward.protocol, forward.external.to_bits(), forward.ports.0);
            let to = (forward.realm, forward.inside, forward.inside_port, forward.admission, number);
            Run { first, last: first + forward.span(), to }
        });
        let by_inside = forwards.iter().map(|(_, forward)| {
            let first = inside_key(forward.realm, forward.protocol, place(&forward.inside), forward.inside_port);
            Run { first, last: first + forward.span(), to: (forward.external.to_bits(), forward.ports.0) }
        });
        let mut homes: Vec<Run<u32>> = Vec::new();
        let mut hosts: Vec<(u64, usize)> = forwards
            .iter()
            .enumerate()
            .map(|(position, (_, forward))| (host_key(forward.realm, home_of(&forward.inside)), position))
            .collect();
        hosts.sort_unstable();
        hosts.dedup_by_key(|host| host.0);
        homes.extend(hosts.iter().map(|(key, position)| Run {
            first: *key,
            last: *key,
            to: forwards[*position].1.external.to_bits(),
        }));
        let (pairs_by_external, pairs_by_inside) = pairs(settings);
        let paired: u64 = pairs_by_inside.iter().map(|run| run.last - run.first + 1).sum();
        let concerned = hosts.len() as u64 + paired;
        let bits =
            if concerned == 0 { 0 } else { (concerned as usize * FILTER_BITS_PER_ADDRESS).next_power_of_two().max(64) };
        let mut static_mappings = StaticMappingTable {
            forwards_by_external: Runs::new(by_external.collect()),
            forwards_by_inside: Runs::new(by_inside.collect()),
            pairs_by_external: Runs::new(pairs_by_external),
            pairs_by_inside: Runs::new(pairs_by_inside),
            homes: Runs::new(homes),
            hosts: ipv6.into_boxed_slice(),
            prefixes: prefixes.into_boxed_slice(),
            prefix_length,
            filter: vec![0; bits / 64].into_boxed_slice(),
            filter_shift: 32_u32.saturating_sub(bits.max(1).ilog2()),
        };
        for (_, position) in hosts {
            static_mappings.note(static_mappings.word(&forwards[position].1.inside));
        }
        for run in 0..static_mappings.pairs_by_inside.0.len() {
            let Run { first, last, .. } = static_mappings.pairs_by_inside.0[run];
            for key in first..=last {
                static_mappings.note(key as u32);
            }
        }
        static_mappings
    }

    fn note(&mut self, address: u32) {
        let bit = self.filter_bit(address);
        self.filter[bit / 64] |= 1 << (bit % 64);
    }

    #[inline(always)]
    fn filter_bit(&self, address: u32) -> usize {
        // A filter of 2^32 bits, the largest, needs no shift.
        (scatter(address) >> self.filter_shift) as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.filter.is_empty()
    }

    /// The word by which the filter knows a host.
    #[inline]
    fn word(&self, host: &InsideHost) -> u32 {
        match host {
            InsideHost::Ipv4(address) => address.to_bits(),
            _ => prefix_of(host, self.prefix_length).map_or(0, word_of),
        }
    }

    /// A quick check: `false` is certain, `true` may be wrong.
    #[inline(always)]
    pub(crate) fn may_concern(&self, host: &InsideHost) -> bool {
        if self.is_empty() {
            return false;
        }
        let bit = self.filter_bit(self.word(host));
        self.filter[bit / 64] >> (bit % 64) & 1 != 0
    }

    pub(crate) fn by_external(&self, address: u32, protocol: Protocol, port: u16) -> Option<Inside> {
        if self.is_empty() {
            return None;
        }
        if let Some((to, offset)) = self.forwards_by_external.find(external_key(protocol, address, port)) {
            let (realm, host, first, admission, number) = *to;
            return Some(Inside { realm, host, port: first + offset as u16, kind: Kind::Forward, admission, number });
        }
        let (to, offset) = self.pairs_by_external.find(u64::from(address))?;
        let (realm, first, admission, number) = *to;
        let host = Ipv4Addr::from_bits(first + offset as u32).into();
        Some(Inside { realm, host, port, kind: Kind::OneToOne, admission, number })
    }

    pub(crate) fn by_internal(&self, key: &StaticKey) -> Option<(Endpoint, Kind)> {
        if !self.may_concern(&key.host) {
            return None;
        }
        let place = place_of(&self.hosts, &key.host)?;
        let internal = inside_key(key.realm, key.protocol, place, key.port);
        if let Some((to, offset)) = self.forwards_by_inside.find(internal) {
            return Some((Endpoint::new(Ipv4Addr::from_bits(to.0), to.1 + offset as u16), Kind::Forward));
        }
        let (first, offset) = self.pairs_by_inside.find(host_key(key.realm, place))?;
        Some((Endpoint::new(Ipv4Addr::from_bits(first + offset as u32), key.port), Kind::OneToOne))
    }

    /// External address of a subscriber's static mappings, also for its others (RFC 4787 §4.1
    /// REQ-2). Hosts of an IPv6 prefix share it.
    pub(crate) fn home(&self, realm: RealmId, host: &InsideHost) -> Option<u32> {
        if !self.may_concern(host) {
            return None;
        }
        let pair = match host {
            InsideHost::Ipv4(address) => self.own_address(realm, (*address).into()),
            _ => None,
        };
        let place = home_place(&self.prefixes, self.prefix_length, host);
        pair.or_else(|| self.homes.find(host_key(realm, place?)).map(|(home, _)| *home))
    }

    /// The external address of an IPv4 subscriber in a one-to-one pool; `None` for any other.
    pub(crate) fn own_address(&self, realm: RealmId, inside: HostNumber) -> Option<u32> {
        if !self.may_concern(&InsideHost::Ipv4(inside.into())) {
            return None;
        }
        let (first, offset) = self.pairs_by_inside.find(host_key(realm, inside.0))?;
        Some(first + offset as u32)
    }

    pub(crate) fn view_of_external(&self, external: Endpoint, protocol: Protocol) -> Option<StaticView> {
        let inside = self.by_external(external.address.to_bits(), protocol, external.port)?;
        Some(StaticView {
            protocol,
            realm: inside.realm,
            host: inside.host,
            internal_port: inside.port,
            external,
            one_to_one: inside.kind == Kind::OneToOne,
        })
    }

    pub(crate) fn view_of_internal(&self, key: &StaticKey) -> Option<StaticView> {
        let (external, kind) = self.by_internal(key)?;
        Some(StaticView {
            protocol: key.protocol,
            realm: key.realm,
            host: key.host,
            internal_port: key.port,
            external,
            one_to_one: kind == Kind::OneToOne,
        })
    }

    pub(crate) fn is_forwarded(&self, address: u32, protocol: Protocol, port: u16) -> bool {
        self.forwards_by_external.find(external_key(protocol, address, port)).is_some()
    }
}

/// The static mappings of a configuration, for use without an instance.
#[derive(Debug)]
pub struct StaticMappings(StaticMappingTable);

impl StaticMappings {
    /// Compiles the static mappings of these settings.
    pub fn of(settings: &Settings) -> StaticMappings {
        StaticMappings(StaticMappingTable::new(settings, |_| false))
    }

    /// The static mapping of an external endpoint.
    pub fn of_external(&self, external: Endpoint, protocol: Protocol) -> Option<StaticView> {
        self.0.view_of_external(external, protocol)
    }

    /// The static mapping of an internal endpoint.
    pub fn of_internal(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Option<StaticView> {
        let key = StaticKey { realm, protocol, host: internal.address.into(), port: internal.port };
        self.0.view_of_internal(&key)
    }
}

/// What stands for a host in keys: its IPv4 address, or a number no IPv4 host has.
fn place_of(hosts: &[InsideHost], host: &InsideHost) -> Option<u32> {
    match host {
        InsideHost::Ipv4(address) => Some(address.to_bits()),
        _ => hosts.binary_search(host).ok().map(|position| HOSTS_FIRST + position as u32),
    }
}

fn home_place(prefixes: &[u128], prefix_length: u8, host: &InsideHost) -> Option<u32> {
    match (host, prefix_of(host, prefix_length)) {
        (InsideHost::Ipv4(address), _) => Some(address.to_bits()),
        (_, Some(prefix)) => {
            prefixes.binary_search(&prefix).ok().map(|position| SOFTWIRE_HOSTS_FIRST + position as u32)
        }
        (_, None) => None,
    }
}

fn prefix_of(host: &InsideHost, prefix_length: u8) -> Option<u128> {
    host.ipv6().map(|address| subscriber_prefix(address.to_bits(), prefix_length))
}

impl Forward {
    fn span(&self) -> u64 {
        u64::from(self.ports.1 - self.ports.0)
    }
}

/// A static entry.
#[derive(Clone, Copy, Debug)]
pub enum Static<'s> {
    /// Static port forward.
    Forward(&'s Forward),
    /// One-to-one pool.
    OneToOne(&'s Pool),
}

/// Forwards first, then one-to-one pools.
pub(crate) fn static_at(settings: &Settings, place: usize) -> Option<Static<'_>> {
    match settings.forwards.get(place) {
        Some(forward) => Some(Static::Forward(forward)),
        None => {
            let mut pools = settings.pools.iter().filter(|pool| pool.one_to_one);
            pools.nth(place - settings.forwards.len()).map(Static::OneToOne)
        }
    }
}

/// Identifies a static entry across configurations. Its admission may change.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'s> {
    Forward { realm: RealmId, protocol: Protocol, external: Ipv4Addr, ports: (u16, u16), inside: (InsideHost, u16) },
    Pool(&'s str),
}

fn identities(settings: &Settings) -> impl Iterator<Item = Identity<'_>> {
    let forwards = settings.forwards.iter().map(|forward| Identity::Forward {
        realm: forward.realm,
        protocol: forward.protocol,
        external: forward.external,
        ports: forward.ports,
        inside: (forward.inside, forward.inside_port),
    });
    let pools = settings.pools.iter().filter(|pool| pool.one_to_one);
    forwards.chain(pools.map(|pool| Identity::Pool(&pool.name)))
}

/// Unchanged entries share counters with `before`: nothing is lost while workers switch.
pub(crate) fn hits_after(settings: &Settings, workers: usize, before: Option<(&Settings, &Arc<Hits>)>) -> Arc<Hits> {
    match before {
        Some((known, hits)) if identities(settings).eq(identities(known)) => Arc::clone(hits),
        _ => {
            let hits = Arc::new(Hits::new(workers, static_count(settings)));
            if let Some(before) = before {
                carry_hits((settings, &hits), before);
            }
            hits
        }
    }
}

/// Repeat it when no worker uses the old settings any more.
pub(crate) fn carry_hits(now: (&Settings, &Arc<Hits>), before: (&Settings, &Arc<Hits>)) {
    if Arc::ptr_eq(now.1, before.1) {
        return;
    }
    let known: HashMap<Identity<'_>, RuleId> = identities(before.0).zip((0..).map(RuleId)).collect();
    let numbered = identities(now.0).zip((0..).map(RuleId));
    now.1.carry(before.1, numbered.filter_map(|(identity, now)| Some((*known.get(&identity)?, now))));
}

pub(crate) fn static_count(settings: &Settings) -> usize {
    settings.forwards.len() + settings.pools.iter().filter(|pool| pool.one_to_one).count()
}

/// The n-th address belongs to the n-th subscriber.
#[expect(clippy::type_complexity, reason = "two lists of runs, taken apart at once")]
fn pairs(settings: &Settings) -> (Vec<Run<(RealmId, u32, Admission, u32)>>, Vec<Run<u32>>) {
    let (mut by_external, mut by_inside) = (Vec::<Run<(RealmId, u32, Admission, u32)>>::new(), Vec::<Run<u32>>::new());
    let pools = settings.pools.iter().filter(|pool| pool.one_to_one);
    for (number, pool) in (settings.forwards.len() as u32..).zip(pools) {
        let inside = pool.subscribers.iter().flat_map(|prefix| prefix.address().to_bits()..=prefix.last().to_bits());
        for (external, inside) in pool.addresses.iter().zip(inside) {
            let external = external.to_bits();
            let realm = pool.realm();
            match (by_external.last_mut(), by_inside.last_mut()) {
                (Some(outer), Some(inner))
                    if outer.last + 1 == u64::from(external)
                        && inner.last + 1 == host_key(realm, inside)
                        && outer.to.0 == realm
                        && outer.to.3 == number
                        && outer.to.1 + (outer.last - outer.first) as u32 + 1 == inside =>
                {
                    outer.last += 1;
                    inner.last += 1;
                }
                _ => {
                    let admission = Admission::AsPool;
                    let key = u64::from(external);
                    by_external.push(Run { first: key, last: key, to: (realm, inside, admission, number) });
                    let key = host_key(realm, inside);
                    by_inside.push(Run { first: key, last: key, to: external });
                }
            }
        }
    }
    (by_external, by_inside)
}
