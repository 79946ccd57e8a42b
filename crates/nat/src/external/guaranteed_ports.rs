//! Ports each address must keep for guaranteed minimums.

use crate::policy::class::Classes;
use crate::routes::RouteError;
use crate::routes::RouteTable;
use crate::settings::Allocation;
use crate::settings::Pool;
use crate::settings::Pooling;
use crate::settings::Settings;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

/// What a pool's subscribers are guaranteed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Addresses in classes with a guarantee.
    pub subscribers: u64,
    /// Sum of the guaranteed ports, by [`Protocol::index`].
    pub ports: [u64; Protocol::COUNT],
    /// The largest guarantee of a subscriber.
    pub largest: [u32; Protocol::COUNT],
    /// Subscribers have different guarantees.
    pub is_mixed: bool,
}

impl Reservation {
    /// Ports to keep for another guarantee to fit at any time, in any order of subscribers.
    pub fn of_each_address(&self, addresses: u64) -> [u64; Protocol::COUNT] {
        let addresses = addresses.max(1);
        [0, 1, 2].map(|protocol| match self.is_mixed {
            true => self.ports[protocol].div_ceil(addresses) + u64::from(self.largest[protocol]),
            false => self.subscribers.div_ceil(addresses) * u64::from(self.largest[protocol]),
        })
    }
}

/// What each pool's subscribers are guaranteed.
pub fn reservations(settings: &Settings) -> Result<Vec<Reservation>, RouteError> {
    let mut found = vec![Reservation::default(); settings.pools.len()];
    if settings.classes.iter().all(|class| class.limits.reserved_ports == [0; Protocol::COUNT]) {
        return Ok(found);
    }
    let classes = Classes::new(&settings.subscriber, &settings.classes, settings.realms())?;
    for realm in (0..settings.realms() as u16).map(RealmId) {
        let pools = settings.pools.iter().enumerate().filter(|(_, pool)| pool.serves(realm));
        let mut prefixes = Vec::new();
        for (position, pool) in pools {
            prefixes.extend(pool.subscribers.iter().map(|prefix| (*prefix, position as u32)));
        }
        let routes = RouteTable::new(&prefixes)?;
        // Between two borders of any prefixes all addresses are alike.
        let all = prefixes.iter().map(|(prefix, _)| *prefix);
        let all = all.chain(settings.classes.iter().flat_map(|class| class.subscribers.iter().copied()));
        let mut borders: Vec<u64> = all
            .flat_map(|prefix| [u64::from(prefix.address().to_bits()), u64::from(prefix.last().to_bits()) + 1])
            .collect();
        borders.sort_unstable();
        borders.dedup();
        for pair in borders.windows(2) {
            let Ok(first) = u32::try_from(pair[0]) else { continue };
            let Some(pool) = routes.lookup(first) else { continue };
            let reserved = classes.compiled(classes.of(realm, first)).reserved;
            if reserved == [0; Protocol::COUNT] {
                continue;
            }
            let (count, of_pool) = (pair[1] - pair[0], &mut found[PoolId(pool as u16).index()]);
            of_pool.is_mixed |= of_pool.subscribers > 0 && of_pool.largest != reserved;
            of_pool.subscribers += count;
            for (protocol, ports) in reserved.into_iter().enumerate() {
                of_pool.ports[protocol] += count * u64::from(ports);
                of_pool.largest[protocol] = of_pool.largest[protocol].max(ports);
            }
        }
    }
    Ok(found)
}

pub(crate) fn guarantees_ports(settings: &Settings) -> bool {
    let found = reservations(settings).unwrap_or_default();
    let for_guarantees =
        |pool: &Pool| pool.allocation == Allocation::Ports && pool.pooling == Pooling::Paired && !pool.one_to_one;
    settings.pools.iter().zip(&found).any(|(pool, reservation)| reservation.subscribers > 0 && for_guarantees(pool))
}

#[cfg(test)]
mod tests;
