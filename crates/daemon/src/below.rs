//! Devices of the kernel that ports are on top of (AF_XDP, packet sockets), and their links.
//!
//! The drivers of such ports report a link that is up, whatever the device does. A device that is
//! removed, or moved to another network namespace, is lost to its port permanently: the kernel has
//! closed the port's socket, and a new device of the same name is not the old one.

use packet_io::driver_of;

use crate::kernel::ingress::DRIVERS_OF_COPIES;
use crate::kernel::netlink::DeviceLink;

/// The device below a port.
#[derive(Debug)]
struct Device {
    name: String,
    /// The kernel's number of it when the instance began.
    index: Option<u32>,
    /// Its port ends with it.
    is_bound: bool,
    link: LinkBelow,
}

/// What the kernel says of the device below a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkBelow {
    /// It has link, or there is none, or nothing is known.
    #[default]
    Up,
    /// It is there and has no link.
    Down,
    /// It is gone.
    Gone,
    /// It is gone, and another one has its name now.
    Replaced,
}

/// What a reading of the kernel's devices finds.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// All of them; None: they could not be read.
    pub(crate) links: Option<Vec<DeviceLink>>,
    /// Those that the kernel has removed meanwhile.
    pub(crate) removed: Vec<u32>,
}

/// The devices below all ports.
#[derive(Debug, Default)]
pub(crate) struct Below {
    devices: Vec<Option<Device>>,
}

impl Below {
    /// Of ports with these driver strings.
    pub(crate) fn of<'a>(drivers: impl Iterator<Item = &'a str>) -> Below {
        let device = |driver: &str| {
            let (driver, mut named) = driver_of(driver);
            let name = named.next()?.to_owned();
            let is_bound = driver == "net_af_xdp" || DRIVERS_OF_COPIES.contains(&driver);
            Some(Device { name, index: None, is_bound, link: LinkBelow::Up })
        };
        Below { devices: drivers.map(device).collect() }
    }

    /// Whether any port is on top of a device.
    pub(crate) fn is_empty(&self) -> bool {
        self.devices.iter().all(Option::is_none)
    }

    /// Takes over what was seen.
    pub(crate) fn take(&mut self, seen: &Seen) {
        seen.removed.iter().for_each(|index| self.removed(*index));
        if let Some(links) = &seen.links {
            self.look(links);
        }
    }

    fn look(&mut self, links: &[DeviceLink]) {
        for device in self.devices.iter_mut().flatten() {
            let named = links.iter().find(|link| link.name == device.name);
            // A name that the kernel lists elsewhere, such as an alternative one, is never found.
            device.index = device.index.or(named.map(|link| link.index));
            // Whatever its name is now.
            let is_own = |link: &&DeviceLink| Some(link.index) == device.index;
            let own = if device.is_bound { links.iter().find(is_own) } else { named };
            device.link = match own {
                _ if device.is_gone() && named.is_some() => LinkBelow::Replaced,
                _ if device.is_gone() => LinkBelow::Gone,
                Some(link) if link.is_running => LinkBelow::Up,
                Some(_) => LinkBelow::Down,
                None if device.is_bound && device.index.is_some() && named.is_some() => LinkBelow::Replaced,
                None if device.is_bound && device.index.is_some() => LinkBelow::Gone,
                None => LinkBelow::Up,
            };
        }
    }

    /// A device that was moved may be back with the same number.
    fn removed(&mut self, index: u32) {
        for device in self.devices.iter_mut().flatten().filter(|device| device.is_bound && !device.is_gone()) {
            if device.index == Some(index) {
                device.link = LinkBelow::Gone;
            }
        }
    }

    /// The numbers of the devices.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        self.devices.iter().flatten().filter_map(|device| device.index)
    }

    /// The name of the device below a port, and what the kernel says of it.
    pub(crate) fn port(&self, port: usize) -> Option<(&str, LinkBelow)> {
        let device = self.devices.get(port)?.as_ref()?;
        Some((&device.name, device.link))
    }
}

impl Device {
    fn is_gone(&self) -> bool {
        matches!(self.link, LinkBelow::Gone | LinkBelow::Replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, is_running: bool) -> DeviceLink {
        DeviceLink { index, name: name.to_owned(), is_running, ..DeviceLink::default() }
    }

    fn below(driver: &str) -> Below {
        Below::of([driver].into_iter())
    }

    #[test]
    fn the_devices_of_a_driver_string_are_found() {
        let found = |words: &'static str| driver_of(words).1.collect::<Vec<_>>();
        assert_eq!(found("net_af_xdp0,iface=eth7,start_queue=1"), ["eth7"]);
        assert_eq!(found("net_pcap1,tx_iface=eth2,rx_iface=eth1"), ["eth1", "eth2"]);
        assert_eq!(found("net_pcap1,rx_iface_in=eth1"), ["eth1"]);
        assert_eq!(found("net_af_packet1,rx_iface=eth1"), [""; 0], "no word of this driver");
        assert_eq!(found("0000:3b:00.0"), [""; 0]);
        assert!(below("0000:3b:00.0").is_empty());
    }

    #[test]
    fn a_device_is_followed_by_its_number_and_never_comes_back() {
        let mut below = below("net_af_packet1,iface=eth1");
        assert_eq!(below.port(0), Some(("eth1", LinkBelow::Up)), "nothing is known yet");
        let state = |below: &mut Below, links: &[DeviceLink]| {
            below.look(links);
            below.port(0).unwrap().1
        };
        assert_eq!(state(&mut below, &[link(1, "lo", true), link(7, "eth1", true)]), LinkBelow::Up);
        assert_eq!(state(&mut below, &[link(7, "eth1", false)]), LinkBelow::Down);
        assert_eq!(state(&mut below, &[link(7, "uplink", true), link(8, "eth1", false)]), LinkBelow::Up, "renamed");
        assert_eq!(state(&mut below, &[link(7, "uplink", false)]), LinkBelow::Down);
        assert_eq!(state(&mut below, &[link(1, "lo", true)]), LinkBelow::Gone);
        assert_eq!(state(&mut below, &[link(9, "eth1", true)]), LinkBelow::Replaced);
        assert_eq!(state(&mut below, &[link(7, "uplink", true)]), LinkBelow::Gone, "its socket is closed");
    }

    #[test]
    fn a_device_that_was_away_between_two_looks_is_gone() {
        let mut below = below("net_af_xdp1,iface=eth1");
        let all = [link(7, "eth1", true)];
        below.look(&all);
        below.removed(8);
        assert_eq!(below.port(0), Some(("eth1", LinkBelow::Up)));
        below.removed(7);
        below.look(&all);
        assert_eq!(below.port(0), Some(("eth1", LinkBelow::Replaced)));
    }

    #[test]
    fn a_tap_of_the_driver_may_be_elsewhere() {
        let mut below = below("net_tap1,iface=dtap1");
        below.look(&[link(7, "dtap1", false)]);
        assert_eq!(below.port(0), Some(("dtap1", LinkBelow::Down)));
        below.look(&[]);
        assert_eq!(below.port(0), Some(("dtap1", LinkBelow::Up)), "somebody moved it to another namespace");
    }
}
