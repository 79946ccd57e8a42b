//! How often addresses are defended against other stations that claim them.

use nat::Duration;
use nat::Instant;
use nat::types::InterfaceId;

/// Time between two announcements of an address that another station claims (RFC 5227 §1.1
/// DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Addresses defended within an interval. A station that claims every address of a pool causes no
/// more announcements.
const ADDRESSES_MAX: usize = 8;

/// The latest announcements: interface, address, and time. An IPv4 address has its number.
#[derive(Debug, Default)]
pub(crate) struct Defences([Option<(InterfaceId, u128, Instant)>; ADDRESSES_MAX]);

impl Defences {
    /// Whether to announce the address now. RFC 5227 §2.4(c), RFC 4861 §7.2.6: not again for ten
    /// seconds, so that two hosts do not argue without end.
    pub(crate) fn may_announce(&mut self, now: Instant, interface: InterfaceId, address: u128) -> bool {
        let is_old = |(_, _, at): &(InterfaceId, u128, Instant)| now >= *at + DEFEND_INTERVAL;
        let mut latest = self.0.iter().flatten();
        if latest.any(|known| (known.0, known.1) == (interface, address) && !is_old(known)) {
            return false;
        }
        let Some(place) = self.0.iter_mut().find(|place| place.as_ref().is_none_or(is_old)) else { return false };
        *place = Some((interface, address, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_defended_once_in_ten_seconds() {
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        let mut defences = Defences::default();
        for (address, interface) in [(1, 0), (1, 1), (2, 0)] {
            assert!(defences.may_announce(at(5), InterfaceId(interface), address));
            assert!(!defences.may_announce(at(14), InterfaceId(interface), address));
        }
        let others = (10..40).filter(|address| defences.may_announce(at(6), InterfaceId(0), *address));
        assert_eq!(others.count(), ADDRESSES_MAX - 3);
        assert!(defences.may_announce(at(15), InterfaceId(0), 1));
        assert!(!defences.may_announce(at(24), InterfaceId(0), 1));
    }
}
