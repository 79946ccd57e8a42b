//! Routes of the kernel by which routing daemons learn what Natrix serves.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;

use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::Prefix;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteAddress;
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::route::RouteMessage;

use super::Follower;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::routing::announcement::Served;
use crate::routing::family::Family;

/// Tries to read all own routes while others change.
const DUMPS_MAX: usize = 5;
/// The metric that the kernel gives to a route of IPv6 without one, and how many more are tried
/// where it takes no second route that drops packets.
const METRIC6: u32 = 1_024;
const FURTHER_METRICS: u32 = 4;

impl Follower {
    /// The table of the kernel that something is announced in: pools in the main one, and what
    /// IPv6 hosts use in that of their realm, if the kernel has an interface of it.
    fn table_of(&self, served: Served) -> Option<u32> {
        let (Served::Nat64(realm, _) | Served::Softwire(realm, _)) = served else { return Some(netlink::TABLE_MAIN) };
        let mut all = self.interface_of.values();
        all.find(|(interface, _)| self.facing(*interface) == Facing::inside(realm)).map(|(_, table)| *table)
    }

    pub(super) fn announce(&mut self, wanted: &BTreeSet<Served>) {
        let wanted: BTreeMap<Served, u32> =
            wanted.iter().filter_map(|served| Some((*served, self.table_of(*served)?))).collect();
        for (served, table) in self.announced.clone() {
            if wanted.get(&served) != Some(&table) {
                self.withdraw(served, table);
                self.announced.remove(&served);
            }
        }
        let is_again = core::mem::take(&mut self.announces_again);
        for (served, table) in wanted {
            if !is_again && self.announced.contains_key(&served) {
                continue;
            }
            match self.put(served, table) {
                Ok(()) => {
                    self.announced.insert(served, table);
                }
                Err(error) => {
                    self.announced.remove(&served);
                    self.log.warn(&format_args!("prefix {served}: the kernel refuses its route: {error}"));
                }
            }
        }
        self.routing.counters.announced.store(self.announced.len() as u64, Ordering::Relaxed);
    }

    /// Sees to it that the kernel has a route of Natrix. One of somebody else stays beside it: the
    /// kernel takes both, of IPv6 only with different metrics.
    fn put(&mut self, served: Served, table: u32) -> io::Result<()> {
        let message = served.message(table);
        // Without NLM_F_REPLACE, which would take the place of another one.
        let mut made = self.make(message.clone());
        if !is_there_already(&made) {
            return made;
        }
        // One of IPv4 with another protocol is another route. If the own ones cannot be read now,
        // the next comparison asks again.
        if matches!(served, Served::Pool(_)) || has_own(&message).unwrap_or(true) {
            return Ok(());
        }
        for metric in (METRIC6 + 1)..=(METRIC6 + FURTHER_METRICS) {
            let mut message = message.clone();
            message.attributes.push(RouteAttribute::Priority(metric));
            made = self.make(message);
            if !is_there_already(&made) {
                break;
            }
        }
        made
    }

    fn make(&mut self, message: RouteMessage) -> io::Result<()> {
        self.socket.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE)
    }

    /// Removes what [`Follower::put`] made. The kernel removes no route of another protocol.
    fn withdraw(&mut self, served: Served, table: u32) {
        for _ in 0..=FURTHER_METRICS {
            // It may be gone already.
            if self.socket.request(RouteNetlinkMessage::DelRoute(served.message(table)), 0).is_err() {
                break;
            }
        }
    }

    /// Routes of a process before this one that was killed.
    pub(super) fn withdraw_old(&mut self) {
        // What is missing then is withdrawn by the next process.
        let mut old = own_routes::<Prefix>().unwrap_or_default();
        old.extend(own_routes::<Prefix6>().unwrap_or_default());
        for route in old {
            // It may be gone already.
            let _ = self.socket.request(RouteNetlinkMessage::DelRoute(route), 0);
        }
    }
}

fn is_there_already(made: &io::Result<()>) -> bool {
    made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

/// Whether the kernel has a route of IPv6 of Natrix with the table and prefix of this one.
fn has_own(wanted: &RouteMessage) -> io::Result<bool> {
    let of = |message: &RouteMessage| {
        let prefix = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(*address),
            _ => None,
        });
        let table = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
        (table, prefix, message.header.destination_prefix_length)
    };
    Ok(own_routes::<Prefix6>()?.iter().any(|own| of(own) == of(wanted)))
}

/// The routes of Natrix in the kernel.
fn own_routes<P: Family>() -> io::Result<Vec<RouteMessage>> {
    let mut reader = Netlink::open(&[])?;
    reader.filter_dumps();
    for _ in 0..DUMPS_MAX {
        let mut own = Vec::new();
        let read = reader.dump(netlink::routes_of_natrix::<P>(), |message| {
            // Older kernels send all routes.
            if let RouteNetlinkMessage::NewRoute(route) = message
                && u8::from(route.header.protocol) == netlink::PROTOCOL_NATRIX
            {
                own.push(route);
            }
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map(|()| own),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}
