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

use super::Follower;
use crate::kernel::netlink;
use crate::routing::announcement::Served;

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
                // It may be gone already.
                let _ = self.socket.request(RouteNetlinkMessage::DelRoute(served.message(table)), 0);
                self.announced.remove(&served);
            }
        }
        let is_again = core::mem::take(&mut self.announces_again);
        for (served, table) in wanted {
            if !is_again && self.announced.contains_key(&served) {
                continue;
            }
            let message = RouteNetlinkMessage::NewRoute(served.message(table));
            // Without NLM_F_REPLACE: a route of somebody else stays beside it.
            match self.socket.request(message, NLM_F_CREATE) {
                Ok(()) => {
                    self.announced.insert(served, table);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.announced.insert(served, table);
                }
                Err(error) => {
                    self.log.warn(&format_args!("prefix {served}: the kernel refuses its route: {error}"));
                }
            }
        }
        self.routing.counters.announced.store(self.announced.len() as u64, Ordering::Relaxed);
    }

    /// Routes of a process before this one that was killed.
    pub(super) fn withdraw_old(&mut self) {
        let mut old = Vec::new();
        let mut keep = |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message
                && u8::from(route.header.protocol) == netlink::PROTOCOL_NATRIX
            {
                old.push(route);
            }
        };
        // What is missing then is withdrawn by the next process.
        let _ = self.socket.dump(netlink::all_routes::<Prefix>(), &mut keep);
        let _ = self.socket.dump(netlink::all_routes::<Prefix6>(), &mut keep);
        for route in old {
            // It may be gone already.
            let _ = self.socket.request(RouteNetlinkMessage::DelRoute(route), 0);
        }
    }
}
