//! Claims of other stations to addresses of Natrix, for the log.
//!
//! A worker keeps them with a count, and the log remembers the count that it has reported. So other
//! readers of a snapshot take nothing away from the log.

use crate::ipv6::Conflict6;
use crate::neighbour::Learnt;

/// An address is given up once, so the log must not miss it: so many are kept between two of its
/// looks.
const GIVEN_UP_MAX: usize = 16;
/// Claims that are kept, each of another address or station. Each comes again, but many claims of
/// one station must not hide a claim of another.
const CLAIMS_MAX: usize = 16;

/// The last `N` values, and the count of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest<T, const N: usize> {
    count: u64,
    /// With their numbers.
    places: [Option<(u64, T)>; N],
}

impl<T, const N: usize> Default for Latest<T, N> {
    fn default() -> Latest<T, N> {
        Latest { count: 0, places: [const { None }; N] }
    }
}

impl<T: Copy + PartialEq, const N: usize> Latest<T, N> {
    /// Takes the place of an equal value, a free one, or that of the oldest value.
    fn note(&mut self, value: T) {
        let known = self.places.iter().position(|place| place.is_some_and(|(_, known)| known == value));
        let number = |position: &usize| self.places.get(*position).copied().flatten().map(|(number, _)| number);
        let position = known.or_else(|| (0..N).min_by_key(number));
        if let Some(place) = position.and_then(|position| self.places.get_mut(position)) {
            *place = Some((self.count, value));
        }
        self.count += 1;
    }

    /// Those after `earlier`, oldest first, as far as they are kept.
    fn since(&self, earlier: &Latest<T, N>) -> impl Iterator<Item = T> + use<'_, T, N> {
        let mut after = Some(earlier.count);
        core::iter::from_fn(move || {
            let newer = self.places.iter().flatten().filter(|(number, _)| after.is_some_and(|after| *number >= after));
            let next = newer.min_by_key(|(number, _)| *number);
            after = next.map(|(number, _)| number + 1);
            next.map(|(_, value)| *value)
        })
    }
}

/// What one worker heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// IPv4 claims.
    claims: Latest<Learnt, CLAIMS_MAX>,
    /// IPv6 claims to addresses that stay in use.
    claims6: Latest<Conflict6, CLAIMS_MAX>,
    given_up: Latest<Conflict6, GIVEN_UP_MAX>,
}

impl Conflicts {
    pub(crate) fn note(&mut self, claim: Learnt) {
        self.claims.note(claim);
    }

    pub(crate) fn note6(&mut self, claim: Conflict6) {
        if claim.is_given_up {
            self.given_up.note(claim);
        } else {
            self.claims6.note(claim);
        }
    }

    /// The claims to IPv4 addresses that came after `earlier`, each once.
    pub fn since(&self, earlier: &Conflicts) -> impl Iterator<Item = Learnt> + use<'_> {
        self.claims.since(&earlier.claims)
    }

    /// The addresses given up after `earlier`, and the claims to others, each once.
    pub fn since6(&self, earlier: &Conflicts) -> impl Iterator<Item = Conflict6> + use<'_> {
        self.given_up.since(&earlier.given_up).chain(self.claims6.since(&earlier.claims6))
    }

    /// Addresses given up after `earlier` that are not kept any more.
    pub fn unnamed(&self, earlier: &Conflicts) -> u64 {
        (self.given_up.count - earlier.given_up.count).saturating_sub(GIVEN_UP_MAX as u64)
    }
}

#[cfg(test)]
mod tests {
    use nat::types::InterfaceId;
    use wire::ethernet::MacAddress;

    use super::*;

    fn claim(address: u128, is_given_up: bool) -> Conflict6 {
        Conflict6 { interface: InterfaceId(0), address, station: MacAddress([2; 6]), is_given_up }
    }

    fn addresses(now: &Conflicts, earlier: &Conflicts) -> Vec<u128> {
        now.since6(earlier).map(|conflict| conflict.address).collect()
    }

    #[test]
    fn every_address_given_up_is_named_however_often_one_looks() {
        let (none, mut heard) = (Conflicts::default(), Conflicts::default());
        for address in 1..=3 {
            heard.note6(claim(address, true));
            heard.note6(claim(10, false));
        }
        for _ in 0..3 {
            assert_eq!(addresses(&heard, &none), [1, 2, 3, 10]);
        }
        let reported = heard;
        assert_eq!(addresses(&heard, &reported), []);
        heard.note6(claim(4, true));
        assert_eq!(addresses(&heard, &reported), [4]);
        for address in 5..=20 {
            heard.note6(claim(address, true));
        }
        assert_eq!((addresses(&heard, &reported), heard.unnamed(&reported)), ((5..=20).collect(), 1));
    }

    #[test]
    fn each_claim_is_named_once_and_again_when_it_comes_again() {
        let mut heard = Conflicts::default();
        let arp = |address| Learnt { interface: InterfaceId(0), address, station: MacAddress([2; 6]) };
        let since = |heard: &Conflicts, earlier: &Conflicts| heard.since(earlier).collect::<Vec<_>>();
        heard.note(arp(9));
        // A station that repeats its claims hides no other.
        for _ in 0..50 {
            heard.note(arp(7));
            heard.note(arp(8));
            heard.note6(claim(10, false));
        }
        heard.note6(claim(11, false));
        let (none, reported) = (Conflicts::default(), heard);
        assert_eq!(since(&heard, &none), [arp(9), arp(7), arp(8)]);
        assert_eq!(addresses(&heard, &none), [10, 11]);
        assert_eq!((since(&heard, &reported), addresses(&heard, &reported)), (vec![], vec![]));
        heard.note(arp(8));
        assert_eq!(since(&heard, &reported), [arp(8)]);
        // With more than are kept, the oldest go.
        (20..40).for_each(|address| heard.note(arp(address)));
        assert_eq!(since(&heard, &none), (24..40).map(arp).collect::<Vec<_>>());
    }
}
