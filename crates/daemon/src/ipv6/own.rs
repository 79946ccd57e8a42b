//! Which own IPv6 addresses may be used (RFC 4862 §5.4), for all threads of an instance.
//!
//! ```text
//!   worker that probes on the link ──┐
//!   worker that hears another station┼──► state of each address, version ──► all workers, lists
//!   thread that follows the kernel ──┘
//! ```
//!
//! Nothing can get lost on the way: it is state, not messages, and workers compare its version in
//! each poll.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

use nat::Settings;
use nat::types::AddressUse;
use nat::types::InterfaceId;
use wire::ethernet::MacAddress;
use wire::ipv6;

const TENTATIVE: u8 = AddressUse::Tentative as u8;
const PREFERRED: u8 = AddressUse::Preferred as u8;
const DUPLICATE: u8 = AddressUse::Duplicate as u8;

/// One own address.
#[derive(Debug)]
pub struct OwnAddress {
    /// Its interface.
    pub interface: InterfaceId,
    /// The address, in host bit order.
    pub address: u128,
    /// Length of its prefix.
    pub prefix_length: u8,
    now: AtomicU8,
}

impl OwnAddress {
    /// Whether it may be used.
    pub fn now(&self) -> AddressUse {
        match self.now.load(Ordering::Acquire) {
            TENTATIVE => AddressUse::Tentative,
            PREFERRED => AddressUse::Preferred,
            _ => AddressUse::Duplicate,
        }
    }
}

/// The own addresses of an instance.
#[derive(Debug)]
pub struct OwnAddresses {
    /// Of each interface, the link-local one first.
    all: Box<[OwnAddress]>,
    /// Grows with each change, after it.
    version: AtomicU32,
}

impl OwnAddresses {
    /// Those of the settings, and a link-local one for each interface with others. `station_of`
    /// gives the station of an interface; `is_probed` is true if a worker probes there. Other
    /// addresses may be used at once.
    pub fn new(
        settings: &Settings,
        station_of: impl Fn(InterfaceId) -> Option<MacAddress>,
        is_probed: impl Fn(InterfaceId) -> bool,
    ) -> OwnAddresses {
        let mut all = Vec::new();
        for id in (0..settings.interfaces.len() as u16).map(InterfaceId) {
            let waits = is_probed(id) && !settings.kernel_interfaces.contains(&id);
            let now = if waits { TENTATIVE } else { PREFERRED };
            let mut own = settings.ipv6.addresses.iter().filter(|own| own.interface == id).peekable();
            let link_local =
                own.peek().and_then(|_| station_of(id)).map(|station| (ipv6::link_local_of(station.0), 64));
            let configured = own.map(|own| (own.address.to_bits(), own.prefix_length));
            all.extend(link_local.into_iter().chain(configured).map(|(address, prefix_length)| OwnAddress {
                interface: id,
                address,
                prefix_length,
                now: AtomicU8::new(now),
            }));
        }
        OwnAddresses { all: all.into_boxed_slice(), version: AtomicU32::new(0) }
    }

    /// All, by interface.
    pub fn all(&self) -> &[OwnAddress] {
        &self.all
    }

    /// Those of an interface.
    pub fn of(&self, interface: InterfaceId) -> impl Iterator<Item = &OwnAddress> {
        self.all.iter().filter(move |own| own.interface == interface)
    }

    /// Whether an address may be used; `None` if the interface does not have it.
    pub fn now(&self, interface: InterfaceId, address: u128) -> Option<AddressUse> {
        self.find(interface, address).map(OwnAddress::now)
    }

    /// Another number after each change.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// No other station has answered the probe. False if one was heard meanwhile.
    pub fn confirm(&self, interface: InterfaceId, address: u128) -> bool {
        let Some(own) = self.find(interface, address) else { return false };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let is_confirmed = own.now.compare_exchange(TENTATIVE, PREFERRED, order.0, order.1) != Err(DUPLICATE);
        self.version.fetch_add(1, Ordering::AcqRel);
        is_confirmed
    }

    /// Another station has the address. True if that is new.
    pub fn give_up(&self, interface: InterfaceId, address: u128) -> bool {
        self.set(interface, address, AddressUse::Duplicate)
    }

    /// What the kernel has found out about an address of one of its devices. True if that is new.
    pub fn set(&self, interface: InterfaceId, address: u128, now: AddressUse) -> bool {
        let Some(own) = self.find(interface, address) else { return false };
        let is_new = own.now.swap(now as u8, Ordering::AcqRel) != now as u8;
        if is_new {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    fn find(&self, interface: InterfaceId, address: u128) -> Option<&OwnAddress> {
        self.of(interface).find(|own| own.address == address)
    }
}

#[cfg(test)]
mod tests {
    use nat::settings::Address6;
    use nat::settings::Interface;
    use nat::types::RealmId;
    use nat::types::Side;

    use super::*;

    const LAN: InterfaceId = InterfaceId(0);
    const OWN: u128 = 0x2001_0db8_0001_0000_0000_0000_0000_0001;

    fn own() -> OwnAddresses {
        let interface = |name: &str| Interface {
            name: name.to_owned(),
            side: Side::Inside,
            realm: RealmId::default(),
            addresses: Vec::new(),
            mtu: 1_500,
        };
        let mut settings =
            Settings { interfaces: vec![interface("lan"), interface("4"), interface("tap")], ..Settings::default() };
        let of = |number| Address6 { interface: InterfaceId(number), address: OWN.into(), prefix_length: 64 };
        settings.ipv6.addresses = vec![of(0), of(2)];
        settings.kernel_interfaces = vec![InterfaceId(2)];
        OwnAddresses::new(&settings, |_| Some(MacAddress([2, 0, 0, 0, 0, 9])), |_| true)
    }

    #[test]
    fn only_addresses_that_are_probed_wait() {
        let own = own();
        let found: Vec<_> = own.all().iter().map(|own| (own.interface.0, own.address, own.now())).collect();
        let link_local = 0xfe80 << 112 | 0x00ff_fe00_0009;
        let (waits, used) = (AddressUse::Tentative, AddressUse::Preferred);
        assert_eq!(found, [(0, link_local, waits), (0, OWN, waits), (2, link_local, used), (2, OWN, used)]);
        assert_eq!(own.now(InterfaceId(1), OWN), None);
    }

    #[test]
    fn an_address_that_was_given_up_is_not_confirmed() {
        let own = own();
        let before = own.version();
        assert!(own.give_up(LAN, OWN) && !own.give_up(LAN, OWN));
        assert_ne!(own.version(), before);
        assert!(!own.confirm(LAN, OWN));
        assert_eq!(own.now(LAN, OWN), Some(AddressUse::Duplicate));
        assert!(own.confirm(LAN, 0xfe80 << 112 | 0x00ff_fe00_0009));
    }

    #[test]
    fn what_the_kernel_finds_out_is_taken_over_both_ways() {
        let own = own();
        for now in [AddressUse::Tentative, AddressUse::Duplicate, AddressUse::Preferred] {
            let before = own.version();
            assert!(own.set(InterfaceId(2), OWN, now) && !own.set(InterfaceId(2), OWN, now));
            assert_eq!((own.now(InterfaceId(2), OWN), own.version()), (Some(now), before + 1));
        }
    }
}
