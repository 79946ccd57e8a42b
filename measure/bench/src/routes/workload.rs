//! Routes like those of a full table, and addresses that they lead to.

use std::collections::HashSet;

use nat::types::Prefix;
use rand::Rng;
use rand::rngs::SmallRng;

/// A route: its prefix, and the number of its next hop.
pub(super) type Route = (Prefix, u32);

/// Next hops of all routes together.
pub(super) const NEXT_HOPS: u32 = 64;
/// Addresses looked up again and again: the servers that most packets go to.
pub(super) const POPULAR: usize = 1_024;

/// Lengths in parts of a thousand, as in the routes of the Internet (BGP table reports of 2025),
/// and 1 % longer ones, which a network has of its own.
const LENGTHS: [(u8, u32); 16] = [
    (12, 1),
    (13, 1),
    (14, 1),
    (15, 2),
    (16, 13),
    (17, 8),
    (18, 13),
    (19, 24),
    (20, 43),
    (21, 51),
    (22, 118),
    (23, 104),
    (24, 611),
    (27, 2),
    (29, 4),
    (32, 4),
];

/// So many different routes, in random order.
pub(super) fn routes(count: u32, random: &mut SmallRng) -> Vec<Route> {
    let mut known = HashSet::with_capacity(count as usize);
    let mut routes = Vec::with_capacity(count as usize);
    while routes.len() < count as usize {
        let address = random.random_range(1_u32 << 24..224 << 24);
        let Some(prefix) = Prefix::new(address.into(), length(random)) else { continue };
        // Those of the benchmark's own network and of private ones stay out.
        if prefix.address().octets()[0] != 10 && known.insert(prefix) {
            routes.push((prefix, random.random_range(0..NEXT_HOPS)));
        }
    }
    routes
}

fn length(random: &mut SmallRng) -> u8 {
    let mut place = random.random_range(0..LENGTHS.iter().map(|(_, share)| share).sum());
    for (length, share) in LENGTHS {
        match u32::checked_sub(place, share) {
            Some(rest) => place = rest,
            None => return length,
        }
    }
    24
}

/// So many addresses, each anywhere in a random route.
pub(super) fn addresses(routes: &[Route], count: usize, random: &mut SmallRng) -> Vec<u32> {
    let within = |(prefix, _): &Route, bits: u32| prefix.address().to_bits() | bits & !prefix.mask();
    (0..count).map(|_| within(&routes[random.random_range(0..routes.len())], random.random())).collect()
}

/// /24 prefixes with longer routes.
#[cfg(feature = "dpdk")]
pub(super) fn groups(routes: &[Route]) -> u32 {
    let longer = routes.iter().filter(|(prefix, _)| prefix.length() > 24);
    longer.map(|(prefix, _)| prefix.address().to_bits() >> 8).collect::<HashSet<_>>().len() as u32
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn lengths_are_those_of_the_internet() {
        let mut random = SmallRng::seed_from_u64(1);
        assert_eq!(LENGTHS.iter().map(|(_, share)| share).sum::<u32>(), 1_000);
        let routes = routes(20_000, &mut random);
        assert_eq!(routes.iter().map(|(prefix, _)| prefix).collect::<HashSet<_>>().len(), 20_000);
        let share = |length| routes.iter().filter(|(prefix, _)| prefix.length() == length).count();
        assert!((11_500..12_900).contains(&share(24)), "{} of 20,000 are /24", share(24));
        assert!((2_000..2_800).contains(&share(22)), "{} of 20,000 are /22", share(22));
        let addresses = addresses(&routes, 1_000, &mut random);
        let is_reached = |address: &u32| routes.iter().any(|(prefix, _)| prefix.contains((*address).into()));
        assert!(addresses.iter().all(is_reached));
    }
}
