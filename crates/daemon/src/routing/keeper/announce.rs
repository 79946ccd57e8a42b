//! Routes of the kernel by which routing daemons learn what Natrix serves.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;

use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::Prefix;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::route::RouteMessage;

use super::Follower;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::routing::announcement::Served;
use crate::routing::family::Family;
use crate::routing::record::Place;

/// Tries to read all own routes while others change.
const DUMPS_MAX: usize = 5;
/// The metric that the kernel gives to a route of IPv6 without one, and how many more are tried
/// where it takes no second route that drops packets.
const METRIC6: u32 = 1_024;
const FURTHER_METRICS: u32 = 4;

impl Follower {
    /// The tables of the kernel that something is announced in. Pools: those of the VRF devices
    /// that the interfaces outside are in, the main one for interfaces in none. What IPv6 hosts
    /// use: that of their realm, if the kernel has an interface of it.
    fn tables_for(&self, served: Served) -> BTreeSet<u32> {
        let of = |facing| {
            let all = self.interface_of.iter();
            all.filter(move |(_, (interface, _))| self.facing(*interface) == facing)
        };
        match served {
            Served::Pool(_) => {
                let vrf = |device: &u32| self.vrf_tables.get(device).copied().unwrap_or(netlink::TABLE_MAIN);
                let tables: BTreeSet<u32> = of(Facing::OUTSIDE).map(|(device, _)| vrf(device)).collect();
                if tables.is_empty() { BTreeSet::from([netlink::TABLE_MAIN]) } else { tables }
            }
            Served::Nat64(realm, _) | Served::Softwire(realm, _) => {
                of(Facing::inside(realm)).map(|(_, (_, table))| *table).take(1).collect()
            }
        }
    }

    fn with_tables(&self, served: &BTreeSet<Served>) -> BTreeSet<(Served, u32)> {
        let placed = |served: Served| self.tables_for(served).into_iter().map(move |table| (served, table));
        served.iter().copied().flat_map(placed).collect()
    }

    pub(super) fn announce(&mut self, wanted: &BTreeSet<Served>) {
        let wanted = self.with_tables(wanted);
        self.put_on_record(&wanted);
        let is_again = core::mem::take(&mut self.announces_again);
        // A prefix that takes the place of others comes before they go.
        for &(served, table) in &wanted {
            if !is_again && self.announced.contains(&(served, table)) {
                continue;
            }
            match self.put(served, table) {
                Ok(()) => {
                    self.announced.insert((served, table));
                }
                Err(error) => {
                    self.announced.remove(&(served, table));
                    self.log.warn(&format_args!("prefix {served}: the kernel refuses its route: {error}"));
                }
            }
        }
        let gone: Vec<(Served, u32)> = self.announced.difference(&wanted).copied().collect();
        for &(served, table) in &gone {
            self.withdraw(served, table);
            self.announced.remove(&(served, table));
        }
        if !gone.is_empty() {
            self.put_on_record(&wanted);
        }
        self.routing.counters.announced.store(self.announced.len() as u64, Ordering::Relaxed);
    }

    /// Sees to it that the kernel has a route of Natrix. A route of another program stays beside
    /// it: the kernel takes both, of IPv6 only with different metrics.
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

    /// Routes of a process before this one that was killed: those of what is served now, and those
    /// on record. Another instance in this network namespace has routes like them.
    pub(super) fn withdraw_old(&mut self) {
        let served = Served::all(self.settings_of.settings(), &[]);
        let mut ours = self.record.read();
        ours.extend(self.with_tables(&served).into_iter().map(placed));
        // What is missing then is withdrawn by the next process.
        let mut old = own_routes::<Prefix>().unwrap_or_default();
        old.extend(own_routes::<Prefix6>().unwrap_or_default());
        let mut foreign = 0;
        for route in old {
            if netlink::place_of(&route).is_some_and(|place| ours.contains(&place)) {
                // It may be gone already.
                let _ = self.socket.request(RouteNetlinkMessage::DelRoute(route), 0);
            } else {
                foreign += 1;
            }
        }
        if foreign > 0 {
            self.log.info(&format_args!(
                "routes: {foreign} of protocol {} are left alone; if no other instance announces them, remove them \
                 with ip route del",
                netlink::PROTOCOL_NATRIX
            ));
        }
    }

    /// Puts on record what is about to be announced, before the kernel has it.
    fn put_on_record(&mut self, wanted: &BTreeSet<(Served, u32)>) {
        let all = self.announced.union(wanted).copied().map(placed).collect();
        if let Err(error) = self.record.write(all) {
            let path = self.record.path().display();
            self.log.warn(&format_args!(
                "routes: {path}: {error}; if Natrix is killed now, its next start leaves routes of removed pools"
            ));
        }
    }
}

/// What is served, as the kernel has it.
fn placed((served, table): (Served, u32)) -> Place {
    match served {
        Served::Pool(prefix) => (table, prefix.address().into(), prefix.length()),
        Served::Nat64(_, prefix) | Served::Softwire(_, prefix) => (table, Prefix6::ip(prefix.first()), prefix.bits()),
    }
}

fn is_there_already(made: &io::Result<()>) -> bool {
    made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

/// Whether the kernel has a route of IPv6 of Natrix with the table and prefix of this one.
fn has_own(wanted: &RouteMessage) -> io::Result<bool> {
    Ok(own_routes::<Prefix6>()?.iter().any(|own| netlink::place_of(own) == netlink::place_of(wanted)))
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
