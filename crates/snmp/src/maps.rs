//! Subscribers, address maps and port maps: a picture of one moment, sorted as a walk goes.

use core::net::IpAddr;
use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use control::Client;
use control::ClientError;
use control::Filter;
use control::List;
use control::Mapping;
use control::PAGE_OBJECTS_MAX;
use control::Request;
use control::Subscriber;

use crate::controls::Of;
use crate::figures::protocol_number;
use crate::figures::realm;

/// A subscriber, with what the table says of it.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberRow {
    pub(crate) index: u32,
    /// The VRF as the configuration names it.
    pub(crate) vrf: Arc<str>,
    pub(crate) realm: Arc<str>,
    pub(crate) address: IpAddr,
    pub(crate) address_maps: u32,
    pub(crate) port_maps: u64,
    pub(crate) address_failures: u64,
    pub(crate) port_failures: u64,
    /// Most port maps it may have, over all transports; 0: no limit.
    pub(crate) port_maps_max: u64,
    /// Since when its counters count.
    pub(crate) since: Instant,
}

impl SubscriberRow {
    /// What managers set for it goes by this.
    pub(crate) fn of(&self) -> Of {
        Of::Subscriber(Arc::clone(&self.vrf), self.address)
    }
}

/// A pair of an internal and an external address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressMap {
    /// In the order of the index of the table: the length of the name of the realm comes first.
    pub(crate) realm: (usize, Arc<str>),
    pub(crate) internal: IpAddr,
    pub(crate) external: IpAddr,
    pub(crate) pool: Arc<str>,
    pub(crate) subscriber: u32,
}

/// A mapping.
#[derive(Clone, Debug)]
pub(crate) struct PortMap {
    pub(crate) protocol: u32,
    pub(crate) external: SocketAddr,
    pub(crate) realm: Arc<str>,
    pub(crate) internal: SocketAddr,
    pub(crate) pool: Arc<str>,
    pub(crate) subscriber: u32,
}

/// All of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    pub(crate) subscribers: Vec<SubscriberRow>,
    pub(crate) addresses: Vec<AddressMap>,
    pub(crate) ports: Vec<PortMap>,
    /// True if there are more subscribers or mappings than rows.
    pub(crate) is_cut: bool,
}

/// Which index a subscriber has. An index is never given to another subscriber.
#[derive(Debug, Default)]
pub(crate) struct Indices {
    known: HashMap<(u16, IpAddr), Known>,
    last: u32,
    /// Number of the picture that is being made.
    picture: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    index: u32,
    since: Instant,
    /// The last picture it was in.
    seen: u64,
}

/// Subscribers that are gone and keep their index, for each row there may be.
const GONE_PER_ROW: usize = 3;

impl Indices {
    /// The index of a subscriber, and since when it has it without a break.
    fn of(&mut self, realm: u16, address: IpAddr, now: Instant) -> (u32, Instant) {
        let (picture, last) = (self.picture, &mut self.last);
        let known = self.known.entry((realm, address)).or_insert_with(|| {
            // After four thousand million subscribers an index is given twice.
            *last = last.checked_add(1).unwrap_or(1);
            Known { index: *last, since: now, seen: picture }
        });
        // It was gone: its counters began again.
        if known.seen + 1 < picture {
            known.since = now;
        }
        known.seen = picture;
        (known.index, known.since)
    }

    /// Forgets those that are gone if there are too many.
    fn tidy(&mut self, rows_max: usize) {
        if self.known.len() > rows_max.saturating_mul(1 + GONE_PER_ROW) {
            let picture = self.picture;
            self.known.retain(|_, known| known.seen == picture);
        }
    }
}

/// One text for each name, however many rows have it.
#[derive(Debug, Default)]
struct Names(HashMap<String, Arc<str>>);

impl Names {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let text: Arc<str> = name.into();
        self.0.insert(name.to_owned(), Arc::clone(&text));
        text
    }
}

impl Maps {
    /// Asks for all, but for at most `rows_max` subscribers and as many mappings.
    pub(crate) fn ask(client: &mut Client, indices: &mut Indices, rows_max: usize) -> Result<Maps, ClientError> {
        let mut maps = Maps::default();
        if rows_max == 0 {
            return Ok(maps);
        }
        indices.picture += 1;
        let now = Instant::now();
        let list = List { filter: Filter::default(), limit: Some(PAGE_OBJECTS_MAX), cursor: None };
        let mut names = Names::default();
        let mut pairs = BTreeSet::new();
        for mapping in client.pages::<Mapping>(list.clone(), Request::Mappings) {
            let mapping = mapping?;
            if maps.ports.len() == rows_max {
                maps.is_cut = true;
                break;
            }
            let (internal, external) = (SocketAddr::from(mapping.internal), SocketAddr::from(mapping.external));
            let (subscriber, _) = indices.of(mapping.realm, internal.ip(), now);
            let realm = names.shared(realm(&mapping.vrf));
            let pool = names.shared(&mapping.pool);
            pairs.insert(AddressMap {
                realm: (realm.len(), Arc::clone(&realm)),
                internal: internal.ip(),
                external: external.ip(),
                pool: Arc::clone(&pool),
                subscriber,
            });
            let protocol = protocol_number(mapping.protocol);
            maps.ports.push(PortMap { protocol, external, realm, internal, pool, subscriber });
        }
        maps.ports.sort_unstable_by_key(|map| (map.protocol, map.external));
        maps.ports.dedup_by_key(|map| (map.protocol, map.external));
        maps.addresses = pairs.into_iter().collect();
        // A reload in between may have given an address to another pool.
        maps.addresses.dedup_by(|one, kept| {
            (&one.realm, one.internal, one.external) == (&kept.realm, kept.internal, kept.external)
        });
        let mut pairs_of = HashMap::new();
        for pair in &maps.addresses {
            *pairs_of.entry(pair.subscriber).or_insert(0_u32) += 1;
        }
        for subscriber in client.pages::<Subscriber>(list, Request::Subscribers) {
            if maps.subscribers.len() == rows_max {
                maps.is_cut = true;
                break;
            }
            let subscriber = subscriber?;
            let address = IpAddr::from(subscriber.address);
            let (index, since) = indices.of(subscriber.realm, address, now);
            let refused = subscriber.refused;
            maps.subscribers.push(SubscriberRow {
                index,
                vrf: names.shared(&subscriber.vrf),
                realm: names.shared(realm(&subscriber.vrf)),
                address,
                address_maps: pairs_of.get(&index).copied().unwrap_or(0),
                port_maps: subscriber.mappings.total(),
                address_failures: refused.address_draining,
                port_failures: refused.ports_exhausted + refused.block_limit + refused.port_quota,
                port_maps_max: subscriber.ports_max.map_or(0, |max| max.total()),
                since,
            });
        }
        maps.subscribers.sort_unstable_by_key(|row| row.index);
        maps.subscribers.dedup_by_key(|row| row.index);
        indices.tidy(rows_max);
        Ok(maps)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_index_stays_and_is_given_to_nobody_else() {
        let mut indices = Indices::default();
        let (one, other) = ([100, 64, 0, 1].into(), [100, 64, 0, 2].into());
        let begun = Instant::now();
        indices.picture = 1;
        assert_eq!(indices.of(0, one, begun), (1, begun));
        assert_eq!(indices.of(1, one, begun), (2, begun), "another realm");
        indices.picture = 2;
        let later = begun + Duration::from_secs(1);
        assert_eq!(indices.of(0, one, later), (1, begun));
        indices.picture = 4;
        let back = begun + Duration::from_secs(3);
        assert_eq!(indices.of(0, one, back), (1, back), "it was not in the third picture");
        assert_eq!(indices.of(0, other, back), (3, back));
        indices.tidy(0);
        assert_eq!(indices.of(1, one, back), (4, back), "forgotten, and its index is not used again");
    }
}
