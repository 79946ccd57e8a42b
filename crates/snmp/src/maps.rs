//! Subscribers, address maps and port maps: a picture of one moment, sorted as a walk goes.

use core::net::IpAddr;
use core::net::Ipv6Addr;
use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use control::Client;
use control::ClientError;
use control::Filter;
use control::Host;
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
    /// Its address; of a subscriber with IPv6 hosts, their prefix.
    pub(crate) address: IpAddr,
    pub(crate) prefix_length: u8,
    pub(crate) address_maps: u32,
    pub(crate) port_maps: u64,
    pub(crate) address_creations: u64,
    pub(crate) port_creations: u64,
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
    /// Where its packets come from; behind a softwire, the address of the B4.
    pub(crate) internal: IpAddr,
    /// The number of its row, besides realm and internal address.
    pub(crate) row: u32,
    /// The address that is translated; behind a softwire, the one inside.
    pub(crate) mapped: IpAddr,
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
    /// As for address maps.
    pub(crate) internal: IpAddr,
    pub(crate) mapped: IpAddr,
    pub(crate) internal_port: u16,
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

/// The number of the row of an address map. It stays while others come and go: pools are of IPv4,
/// so it is the external address, with the address inside a softwire, of which one B4 has several.
fn row_number(external: IpAddr, mapped: IpAddr, internal: IpAddr) -> u32 {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(_) => 0,
    };
    if mapped == internal { bits(external) } else { bits(external).rotate_left(16) ^ bits(mapped) }
}

/// The first address of the prefix.
fn first_of(address: Ipv6Addr, length: u8) -> IpAddr {
    let kept = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & kept).into()
}

/// The subscriber of an IPv6 host: all prefixes that are subscribers have one length. None before
/// one of them was seen.
fn subscriber_of(host: &Host, prefix_length: Option<u8>) -> Option<IpAddr> {
    prefix_length.map(|length| first_of(host.address, length))
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
        let mut prefix_length_of_hosts = None;
        for subscriber in client.pages::<Subscriber>(list.clone(), Request::Subscribers) {
            if maps.subscribers.len() == rows_max {
                maps.is_cut = true;
                break;
            }
            let subscriber = subscriber?;
            // The IPv4 address beside an IPv6 host is a number of its worker.
            let (address, prefix_length) = match (&subscriber.host, subscriber.address) {
                (Some(host), _) => (first_of(host.address, host.prefix_length), host.prefix_length),
                (None, Some(address)) => (IpAddr::from(address), 32),
                // Only IPv6 hosts lack an address.
                (None, None) => continue,
            };
            prefix_length_of_hosts = prefix_length_of_hosts.or(subscriber.host.map(|host| host.prefix_length));
            let (index, since) = indices.of(subscriber.realm, address, now);
            let refused = subscriber.refused;
            maps.subscribers.push(SubscriberRow {
                index,
                vrf: names.shared(&subscriber.vrf),
                realm: names.shared(realm(&subscriber.vrf)),
                address,
                prefix_length,
                address_maps: 0,
                port_maps: subscriber.mappings.total(),
                address_creations: subscriber.addresses_paired,
                port_creations: subscriber.mappings_created,
                address_failures: refused.address_draining,
                port_failures: refused.ports_exhausted + refused.block_limit + refused.port_quota,
                port_maps_max: subscriber.ports_max.map_or(0, |max| max.total()),
                since,
            });
        }
        maps.subscribers.sort_unstable_by_key(|row| row.index);
        maps.subscribers.dedup_by_key(|row| row.index);
        let mut pairs = BTreeSet::new();
        for mapping in client.pages::<Mapping>(list, Request::Mappings) {
            let mapping = mapping?;
            if maps.ports.len() == rows_max {
                maps.is_cut = true;
                break;
            }
            let external = SocketAddr::from(mapping.external);
            let (internal, mapped) = match &mapping.host {
                Some(host) => (host.address.into(), host.inner.map_or(host.address.into(), IpAddr::from)),
                None => (IpAddr::from(*mapping.internal.ip()), IpAddr::from(*mapping.internal.ip())),
            };
            let owner =
                mapping.host.as_ref().map_or(Some(internal), |host| subscriber_of(host, prefix_length_of_hosts));
            // 0 stands for a subscriber that is not known.
            let subscriber = owner.map_or(0, |owner| indices.of(mapping.realm, owner, now).0);
            let realm = names.shared(realm(&mapping.vrf));
            let pool = names.shared(&mapping.pool);
            pairs.insert(AddressMap {
                realm: (realm.len(), Arc::clone(&realm)),
                internal,
                row: row_number(external.ip(), mapped, internal),
                mapped,
                external: external.ip(),
                pool: Arc::clone(&pool),
                subscriber,
            });
            let protocol = protocol_number(mapping.protocol);
            let internal_port = mapping.internal.port();
            maps.ports.push(PortMap { protocol, external, realm, internal, mapped, internal_port, pool, subscriber });
        }
        maps.ports.sort_unstable_by_key(|map| (map.protocol, map.external));
        maps.ports.dedup_by_key(|map| (map.protocol, map.external));
        maps.addresses = numbered(pairs);
        let mut pairs_of = HashMap::new();
        for pair in &maps.addresses {
            *pairs_of.entry(pair.subscriber).or_insert(0_u32) += 1;
        }
        for row in &mut maps.subscribers {
            row.address_maps = pairs_of.get(&row.index).copied().unwrap_or(0);
        }
        indices.tidy(rows_max);
        Ok(maps)
    }
}

/// Address maps in the order of their rows, each row with a number of its own.
fn numbered(pairs: BTreeSet<AddressMap>) -> Vec<AddressMap> {
    let mut maps: Vec<AddressMap> = pairs.into_iter().collect();
    // A reload in between may have given an address to another pool.
    maps.dedup_by(|one, kept| {
        (&one.realm, one.internal, one.mapped, one.external) == (&kept.realm, kept.internal, kept.mapped, kept.external)
    });
    let mut previous: Option<((usize, Arc<str>), IpAddr, u32)> = None;
    for map in &mut maps {
        let place = (map.realm.clone(), map.internal);
        if let Some((realm, internal, row)) = previous.take()
            && (realm, internal) == place
        {
            map.row = map.row.max(row.saturating_add(1));
        }
        previous = Some((place.0, place.1, map.row));
    }
    maps
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_index_is_kept_and_never_reused() {
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

    #[test]
    fn hosts_behind_one_b4_have_rows_of_their_own() {
        let b4: IpAddr = "2001:db8::b4".parse().unwrap();
        let map = |mapped: &str, external: &str| {
            let (mapped, external) = (mapped.parse().unwrap(), external.parse().unwrap());
            let realm: Arc<str> = "internal".into();
            AddressMap {
                realm: (realm.len(), realm),
                internal: b4,
                row: row_number(external, mapped, b4),
                mapped,
                external,
                pool: "public".into(),
                subscriber: 1,
            }
        };
        let pairs =
            [map("192.168.1.2", "203.0.113.1"), map("192.168.1.3", "203.0.113.1"), map("10.0.0.1", "203.0.113.9")];
        // Equal numbers, as if by chance.
        let clash = AddressMap { row: pairs[0].row, ..map("192.168.9.9", "203.0.113.7") };
        let rows = numbered(pairs.into_iter().chain([clash]).collect());
        assert_eq!(rows.len(), 4);
        assert!(rows.windows(2).all(|pair| pair[0].row < pair[1].row), "{rows:?}");
    }

    #[test]
    fn the_prefix_of_a_host_is_its_subscriber() {
        let host = Host { address: "2001:db8:c:1ff::9".parse().unwrap(), prefix_length: 128, inner: None };
        assert_eq!(subscriber_of(&host, Some(56)), Some("2001:db8:c:100::".parse().unwrap()));
        assert_eq!(subscriber_of(&host, None), None);
        assert_eq!(first_of(host.address, 128), IpAddr::from(host.address));
        assert_eq!(first_of(host.address, 0), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    }
}
