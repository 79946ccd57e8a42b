//! Wrong logins: how many guesses a minute allows, from one place and with one name.
//!
//! Two bounds hold, each for the wrong logins of the last 60 seconds:
//!
//! - A place has ten, with whatever names. Further logins from there are refused.
//! - A name has a hundred from all places. Further logins with it are refused unless their secret
//!   is a random one: that cannot be guessed, and its owner need not wait for others.
//!
//! No bound refuses a login with another name from another place. Nothing is counted before a
//! secret was verified, which takes tens of milliseconds, so the tables cannot be filled by
//! connections alone.

use core::hash::Hash;
use core::net::IpAddr;
use core::net::Ipv6Addr;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

/// Wrong logins from one place.
const OF_PLACE_MAX: usize = 10;
/// Wrong logins with one name from all places.
const OF_NAME_MAX: usize = 100;
/// How long a wrong login counts.
const PAUSE: Duration = Duration::from_secs(60);
/// Places and names to remember. If there are more, the one with the fewest wrong logins is
/// forgotten.
const PLACES_MAX: usize = 4096;
const NAMES_MAX: usize = 4096;

/// A keyed hash of a name.
pub(crate) type NameKey = u64;

/// What limits count by: where a client could take another address at will, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// 127.0.0.0/8 and ::1: each process of the machine may use all of them.
    Loopback,
    /// An IPv4 address, or the first address of a /64, which one link has (RFC 4291 §2.5.4).
    Address(IpAddr),
    /// A user of the machine, on a Unix socket.
    User(u32),
}

impl Place {
    /// The place of a client with this address.
    pub(crate) fn of(address: IpAddr) -> Place {
        // A listener for both families sees IPv4 clients as ::ffff:0:0/96.
        match address.to_canonical() {
            address if address.is_loopback() => Place::Loopback,
            IpAddr::V6(address) => Place::Address(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address => Place::Address(address),
        }
    }
}

/// The times of wrong logins, the oldest first. Those of the last minute count, so that no minute,
/// whenever it begins, has more guesses than a bound.
#[derive(Debug, Default)]
struct Latest(VecDeque<Instant>);

impl Latest {
    /// How many count.
    fn recent(&self, now: Instant) -> usize {
        self.0.iter().filter(|at| now.duration_since(**at) < PAUSE).count()
    }

    /// Adds one, and keeps `max` at most.
    fn add(&mut self, max: usize, now: Instant) {
        self.forget(now);
        if self.0.len() >= max {
            self.0.pop_front();
        }
        self.0.push_back(now);
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= PAUSE) {
            self.0.pop_front();
        }
    }
}

/// The wrong logins of `key`. `table` keeps at most `max` keys.
fn of<K: Copy + Eq + Hash>(table: &mut HashMap<K, Latest>, key: K, max: usize, now: Instant) -> &mut Latest {
    if table.len() >= max && !table.contains_key(&key) {
        table.retain(|_, latest| {
            latest.forget(now);
            !latest.0.is_empty()
        });
        let fewest = table.iter().min_by_key(|(_, latest)| latest.0.len()).map(|(key, _)| *key);
        if let Some(fewest) = fewest.filter(|_| table.len() >= max) {
            table.remove(&fewest);
        }
    }
    table.entry(key).or_default()
}

/// The wrong logins of the last minute.
#[derive(Debug, Default)]
pub(crate) struct WrongLogins {
    places: HashMap<Place, Latest>,
    names: HashMap<NameKey, Latest>,
}

impl WrongLogins {
    /// True if a login with this name from this place is not verified now.
    pub(crate) fn refuse(&self, place: Place, name: NameKey, is_random: bool, now: Instant) -> bool {
        let here = self.places.get(&place).map_or(0, |latest| latest.recent(now));
        let with_name = || self.names.get(&name).map_or(0, |latest| latest.recent(now));
        here >= OF_PLACE_MAX || !is_random && with_name() >= OF_NAME_MAX
    }

    /// Counts a wrong login.
    pub(crate) fn count(&mut self, place: Place, name: NameKey, now: Instant) {
        of(&mut self.places, place, PLACES_MAX, now).add(OF_PLACE_MAX, now);
        of(&mut self.names, name, NAMES_MAX, now).add(OF_NAME_MAX, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> Place {
        Place::User(number)
    }

    #[test]
    fn wrong_logins_are_forgotten_after_a_minute() {
        let mut wrong = WrongLogins::default();
        let first = Instant::now();
        (0..10).for_each(|_| wrong.count(place(1), 3, first));
        assert!(wrong.refuse(place(1), 3, true, first + Duration::from_secs(59)));
        assert!(wrong.refuse(place(1), 4, true, first), "another name");
        assert!(!wrong.refuse(place(2), 3, true, first), "another place");
        assert!(!wrong.refuse(place(1), 3, true, first + PAUSE));
        wrong.count(place(1), 3, first + PAUSE);
        assert_eq!((wrong.places[&place(1)].0.len(), wrong.names[&3].0.len()), (1, 1));
    }

    #[test]
    fn no_minute_has_more_guesses_whenever_it_begins() {
        let (mut wrong, begin) = (WrongLogins::default(), Instant::now());
        // One guess, nine just before its minute is over, and as many as pass afterwards.
        let mut verified = vec![0];
        wrong.count(place(1), 3, begin);
        for ms in (59_000..240_000).step_by(100) {
            let now = begin + Duration::from_millis(ms);
            if !wrong.refuse(place(1), 3, true, now) {
                wrong.count(place(1), 3, now);
                verified.push(ms);
            }
        }
        let most = verified.iter().map(|from| verified.iter().filter(|at| (*from..from + 60_000).contains(at)).count());
        assert_eq!(most.max(), Some(10), "{verified:?}");
        assert!(verified.len() > 30, "{verified:?}");
    }

    #[test]
    fn guesses_at_many_names_are_bounded_in_any_minute() {
        let (mut wrong, begin) = (WrongLogins::default(), Instant::now());
        let mut verified = Vec::new();
        for (number, ms) in (0..200_000).step_by(200).enumerate() {
            let (name, now) = (number as NameKey, begin + Duration::from_millis(ms));
            if !wrong.refuse(place(1), name, true, now) {
                wrong.count(place(1), name, now);
                verified.push(ms);
            }
        }
        let most = verified.iter().map(|from| verified.iter().filter(|at| (*from..from + 60_000).contains(at)).count());
        assert_eq!(most.max(), Some(OF_PLACE_MAX), "{verified:?}");
    }

    #[test]
    fn no_guesses_lock_out_another_name_at_another_place() {
        let (mut wrong, now) = (WrongLogins::default(), Instant::now());
        for number in 0..12_000 {
            wrong.count(place(number % 7_000), NameKey::from(number % 100), now);
        }
        assert!(!wrong.refuse(place(10_000), 1_000, false, now));
        assert!(!wrong.refuse(place(10_000), 1, true, now), "a random secret");
        assert!(wrong.refuse(place(10_000), 1, false, now), "one that somebody made up");
    }

    #[test]
    fn the_tables_stay_small_and_keep_what_is_guessed_at_most() {
        let (mut wrong, now) = (WrongLogins::default(), Instant::now());
        (0..10).for_each(|_| wrong.count(place(1), 1, now));
        for number in 2..6_000 {
            wrong.count(place(number), number.into(), now);
        }
        assert_eq!((wrong.places.len(), wrong.names.len()), (PLACES_MAX, NAMES_MAX));
        assert!(wrong.refuse(place(1), 1, false, now));
    }

    #[test]
    fn an_ipv6_client_is_counted_by_its_64_bit_prefix() {
        let of = |text: &str| Place::of(text.parse().unwrap());
        assert_eq!((of("127.0.0.1"), of("::1"), of("::ffff:127.9.9.9")), (of("127.1.2.3"), Place::Loopback, of("::1")));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
