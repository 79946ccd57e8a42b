//! Claims of other stations to addresses of Natrix, for the log.
//!
//! A worker keeps them with a count, and the log remembers the count that it has reported. So other
//! readers of a snapshot take nothing away from the log.

use crate::ipv6::Conflict6;
use crate::neighbour::Learnt;

/// An address is given up once, so the log must not miss it: so many are kept between two of its
/// looks.
const GIVEN_UP_MAX: usize = 16;

/// The last `N` values, and the count of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest<T, const N: usize> {
    count: u64,
    places: [Option<T>; N],
}

impl<T, const N: usize> Default for Latest<T, N> {
    fn default() -> Latest<T, N> {
        Latest { count: 0, places: [const { None }; N] }
    }
}

impl<T: Copy, const N: usize> Latest<T, N> {
    fn note(&mut self, value: T) {
        let place = (self.count % N as u64) as usize;
        if let Some(place) = self.places.get_mut(place) {
            *place = Some(value);
        }
        self.count += 1;
    }

    /// Those after `earlier`, oldest first, as far as they are kept.
    fn since(&self, earlier: &Latest<T, N>) -> impl Iterator<Item = T> + use<'_, T, N> {
        let first = earlier.count.max(self.count.saturating_sub(N as u64));
        (first..self.count).filter_map(|number| *self.places.get((number % N as u64) as usize)?)
    }
}

/// What one worker heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// IPv4 claims. Each comes again, so the last one is enough.
    claims: Latest<Learnt, 1>,
    /// IPv6 claims to addresses that stay in use.
    claims6: Latest<Conflict6, 1>,
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

    /// The last claim to an IPv4 address, if one came after `earlier`.
    pub fn since(&self, earlier: &Conflicts) -> Option<Learnt> {
        self.claims.since(&earlier.claims).next()
    }

    /// The addresses given up after `earlier`, and the last claim to another one.
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
    fn of_claims_the_last_one_is_told_again_when_it_comes_again() {
        let mut heard = Conflicts::default();
        let claim = |address| Learnt { interface: InterfaceId(0), address, station: MacAddress([2; 6]) };
        heard.note(claim(7));
        heard.note(claim(8));
        let reported = heard;
        assert_eq!(heard.since(&Conflicts::default()), Some(claim(8)));
        assert_eq!(heard.since(&reported), None);
        heard.note(claim(8));
        assert_eq!(heard.since(&reported), Some(claim(8)));
    }
}
