//! Routes whose next hops are objects of the kernel that change or go, which the kernel does not
//! report route by route.

use core::mem;
use std::collections::BTreeSet;
use std::sync::Arc;

use nat::stand_in::Prefix6;
use nat::types::InterfaceId;
use nat::types::Prefix;

use super::Follower;
use super::changes::CHANGES_LOCKED;
use crate::instance::lock;
use crate::kernel::netlink::RouteNews;
use crate::routing::family::Family;
use crate::routing::rib::Hop;
use crate::routing::rib::Leads;
use crate::routing::rib::Table;

/// Changes that workers learn of together.
const CHANGES_AT_ONCE: usize = 16 * CHANGES_LOCKED;

/// Tables of the kernel, and those of Natrix that they fill, in which routes can have the next hops
/// of an object.
type Places = BTreeSet<(u32, Table)>;

/// Next hops in a table of Natrix.
type Part<P> = (Table, Vec<Hop<<P as Family>::Address>>);

impl Follower {
    /// Takes in a message about an object, and the changes of routes that came before it.
    pub(super) fn take_in_object(
        &mut self,
        message: &[u8],
        news: &mut Vec<RouteNews<Prefix>>,
        news6: &mut Vec<RouteNews<Prefix6>>,
    ) {
        let changed = self.objects.changed_by(message);
        if changed.is_empty() {
            self.objects.take_in(message);
            return;
        }
        self.take_in(&mem::take(news));
        if self.has_ipv6() {
            self.take_in(&mem::take(news6));
        }
        let before: Vec<Option<Places>> = changed.iter().map(|id| self.places(*id)).collect();
        self.objects.take_in(message);
        for (id, before) in changed.into_iter().zip(before) {
            match (before, self.places(id)) {
                (Some(before), Some(now)) if now.is_subset(&before) => {
                    self.follow_object::<Prefix>(id);
                    if self.has_ipv6() {
                        self.follow_object::<Prefix6>(id);
                    }
                }
                // Routes count that did not before, and are not known.
                _ => self.compares_soon = true,
            }
        }
    }

    /// None: its routes may be others than those that name it in the messages of the kernel.
    fn places(&self, id: u32) -> Option<Places> {
        let of = |device: u32| {
            let (interface, kernel) = *self.interface_of.get(&device)?;
            Some((kernel, Table::of(self.facing(interface))))
        };
        let devices = self.objects.hops_of::<Prefix>(id).into_iter().map(|hop| hop.0);
        let devices6 = self.objects.hops_of::<Prefix6>(id).into_iter().map(|hop| hop.0);
        let places = devices.chain(devices6).filter_map(of).collect();
        (!self.objects.is_useless(id)).then_some(places)
    }

    /// Gives the routes that name an object its next hops, or removes them.
    fn follow_object<P: Family>(&mut self, id: u32) {
        let routing = Arc::clone(&self.routing);
        let hops = self.objects.hops_of::<P>(id);
        // By table of the kernel; there are few.
        let mut parts: Vec<(u32, Vec<Part<P>>)> = Vec::new();
        let routes = lock(P::rib(&routing)).naming(id);
        for routes in routes.chunks(CHANGES_AT_ONCE) {
            for routes in routes.chunks(CHANGES_LOCKED) {
                let mut rib = lock(P::rib(&routing));
                for &(table, prefix) in routes {
                    for route in rib.kernel(table, prefix).into_iter().filter(|route| route.object == Some(id)) {
                        let Some(kernel) = route.hops.first().and_then(|hop| self.kernel_table(hop.interface)) else {
                            self.compares_soon = true;
                            continue;
                        };
                        if !parts.iter().any(|(known, _)| *known == kernel) {
                            parts.push((kernel, self.parts_of_hops(kernel, &hops)));
                        }
                        let of_table = parts.iter().find(|(known, _)| *known == kernel).map(|(_, parts)| parts);
                        let part = of_table.into_iter().flatten().find(|(other, _)| *other == table);
                        let leads = part.map(|(_, hops)| Leads { protocol: route.protocol, hops, object: Some(id) });
                        // Another one may have stood behind it.
                        self.compares_soon |= leads.is_none() && self.is_doubled(table, prefix, route.metric);
                        if rib.change_kernel(table, prefix, route.metric, leads) {
                            self.refresh(&mut rib, table, prefix);
                        }
                    }
                }
            }
            self.publish();
            self.look_if_due();
        }
    }

    /// The kernel's table of an interface.
    fn kernel_table(&self, interface: InterfaceId) -> Option<u32> {
        self.interface_of.values().find(|(other, _)| *other == interface).map(|(_, table)| *table)
    }
}
