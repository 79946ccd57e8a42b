//! Wrong logins: how many guesses a minute allows, from one place and with one name.
//!
//! Three bounds hold, each until a minute after the first wrong login it counts:
//!
//! - A place has ten wrong logins with a name, or one with it and ten in all. Further logins with
//!   this name from this place are refused.
//! - A place has wrong logins with 64 names. Logins from it with any other name are refused, so it
//!   has at most 73 verifications a minute.
//! - A name has a hundred wrong logins from all places. Further logins with it are refused unless
//!   their secret is a random one: nobody guesses that, and its owner need not wait for others.
//!
//! No bound refuses a login with another name from another place. Nothing is counted before a
//! secret was verified, which takes tens of milliseconds, so the tables cannot be filled by
//! connections alone.

use core::hash::Hash;
use core::net::IpAddr;
use core::net::Ipv6Addr;
use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

/// Wrong logins from one place, with one name or in all, before it must wait.
const OF_PLACE_MAX: u32 = 10;
/// Names in the wrong logins of one place. A name that nobody has counts too, so that nothing shows
/// which names exist.
const NAMES_OF_PLACE_MAX: usize = 64;
/// Wrong logins with one name from all places.
const OF_NAME_MAX: u32 = 100;
/// How long a count lasts.
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

/// A number of wrong logins since the first of them.
trait Counted {
    fn since(&self) -> Instant;
    fn count(&self) -> u32;
}

#[derive(Debug)]
struct OfPlace {
    since: Instant,
    all: u32,
    by_name: Vec<(NameKey, u32)>,
}

#[derive(Debug)]
struct OfName {
    since: Instant,
    all: u32,
}

impl Counted for OfPlace {
    fn since(&self) -> Instant {
        self.since
    }

    fn count(&self) -> u32 {
        self.all
    }
}

impl Counted for OfName {
    fn since(&self) -> Instant {
        self.since
    }

    fn count(&self) -> u32 {
        self.all
    }
}

fn is_recent(counted: &impl Counted, now: Instant) -> bool {
    now.duration_since(counted.since()) < PAUSE
}

/// The count of `key`, begun anew if it is over. `table` keeps at most `max`.
fn current<K: Copy + Eq + Hash, V: Counted>(
    table: &mut HashMap<K, V>,
    key: K,
    max: usize,
    now: Instant,
    none: V,
) -> &mut V {
    if table.get(&key).is_some_and(|counted| !is_recent(counted, now)) {
        table.remove(&key);
    }
    if table.len() >= max && !table.contains_key(&key) {
        table.retain(|_, counted| is_recent(counted, now));
        let fewest = table.iter().min_by_key(|(_, counted)| counted.count()).map(|(key, _)| *key);
        if let Some(fewest) = fewest.filter(|_| table.len() >= max) {
            table.remove(&fewest);
        }
    }
    table.entry(key).or_insert(none)
}

/// The wrong logins of the last minute.
#[derive(Debug, Default)]
pub(crate) struct WrongLogins {
    places: HashMap<Place, OfPlace>,
    names: HashMap<NameKey, OfName>,
}

impl WrongLogins {
    /// True if a login with this name from this place is not verified now.
    pub(crate) fn refuse(&self, place: Place, name: NameKey, is_random: bool, now: Instant) -> bool {
        let of_place = self.places.get(&place).filter(|of_place| is_recent(*of_place, now));
        let of_name = self.names.get(&name).filter(|of_name| is_recent(*of_name, now));
        let too_many_here = of_place.is_some_and(|OfPlace { all, by_name, .. }| {
            match by_name.iter().find(|(named, _)| *named == name) {
                Some((_, own)) => *own >= OF_PLACE_MAX || *all >= OF_PLACE_MAX,
                None => by_name.len() >= NAMES_OF_PLACE_MAX,
            }
        });
        too_many_here || !is_random && of_name.is_some_and(|of_name| of_name.all >= OF_NAME_MAX)
    }

    /// Counts a wrong login.
    pub(crate) fn count(&mut self, place: Place, name: NameKey, now: Instant) {
        let none = OfPlace { since: now, all: 0, by_name: Vec::new() };
        let of_place = current(&mut self.places, place, PLACES_MAX, now, none);
        of_place.all += 1;
        match of_place.by_name.iter_mut().find(|(named, _)| *named == name) {
            Some((_, own)) => *own += 1,
            None => of_place.by_name.push((name, 1)),
        }
        current(&mut self.names, name, NAMES_MAX, now, OfName { since: now, all: 0 }).all += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> Place {
        Place::User(number)
    }

    #[test]
    fn wrong_logins_are_forgotten_a_minute_after_the_first() {
        let mut wrong = WrongLogins::default();
        let first = Instant::now();
        (0..10).for_each(|_| wrong.count(place(1), 3, first));
        assert!(wrong.refuse(place(1), 3, true, first + Duration::from_secs(59)));
        assert!(!wrong.refuse(place(1), 4, true, first) && !wrong.refuse(place(2), 3, true, first));
        assert!(!wrong.refuse(place(1), 3, true, first + PAUSE));
        wrong.count(place(1), 3, first + PAUSE);
        assert_eq!((wrong.places[&place(1)].all, wrong.names[&3].all), (1, 1));
    }

    #[test]
    fn no_guesses_lock_out_another_name_at_another_place() {
        let (mut wrong, now) = (WrongLogins::default(), Instant::now());
        for number in 0..40_000 {
            wrong.count(place(number % 7_000), NameKey::from(number % 300), now);
        }
        assert!(!wrong.refuse(place(10_000), 1_000, false, now));
        assert!(!wrong.refuse(place(10_000), 1, true, now), "a random secret");
        assert!(wrong.refuse(place(10_000), 1, false, now), "one that somebody made up");
    }

    #[test]
    fn the_tables_stay_small_and_keep_what_is_guessed_at_most() {
        let (mut wrong, now) = (WrongLogins::default(), Instant::now());
        (0..10).for_each(|_| wrong.count(place(1), 1, now));
        for number in 2..20_000 {
            wrong.count(place(number), number.into(), now);
        }
        assert_eq!((wrong.places.len(), wrong.names.len()), (PLACES_MAX, NAMES_MAX));
        assert!(wrong.refuse(place(1), 1, false, now));
    }

    #[test]
    fn a_place_is_all_that_one_client_can_send_from() {
        let of = |text: &str| Place::of(text.parse().unwrap());
        assert_eq!((of("127.0.0.1"), of("::1"), of("::ffff:127.9.9.9")), (of("127.1.2.3"), Place::Loopback, of("::1")));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
