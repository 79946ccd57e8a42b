//! Changes of routes: from a message of the kernel, or of the configuration, to the tables of the
//! workers.

use core::iter;
use core::ops::Bound;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;

use super::Follower;
use crate::instance::lock;
use crate::kernel::netlink::KernelHop;
use crate::kernel::netlink::RouteNews;
use crate::routing::family::Family;
use crate::routing::fib::FibError;
use crate::routing::rib::HOPS_MAX;
use crate::routing::rib::Hop;
use crate::routing::rib::Leads;
use crate::routing::rib::RibOf;
use crate::routing::rib::Table;
use crate::routing::shared::RouteCounters;

/// Changes made while readers of the routes wait: less than a millisecond.
pub(super) const CHANGES_LOCKED: usize = 64;

impl Follower {
    /// Whether there are tables of IPv6.
    pub(super) fn has_ipv6(&self) -> bool {
        self.settings_of.live_routes().is_some_and(|live| live.has_ipv6())
    }

    /// Takes in changes, in their order.
    pub(super) fn take_in<P: Family>(&mut self, news: &[RouteNews<P>]) {
        if news.is_empty() || self.fib.is_none() {
            return;
        }
        RouteCounters::add(&self.routing.counters.changes, news.len());
        let routing = Arc::clone(&self.routing);
        // Devices do not change meanwhile.
        let mut filled: HashMap<u32, Vec<Table>> = HashMap::new();
        for news in news.chunks(CHANGES_LOCKED) {
            let mut rib = lock(P::rib(&routing));
            let rib = &mut *rib;
            for news in news {
                let parts = self.parts(news);
                let tables = filled.entry(news.table).or_insert_with(|| self.tables_of(news.table));
                for &table in tables.iter() {
                    if !self.suspects.is_empty() {
                        self.suspects.remove(&(table, P::ip(news.prefix.first()), news.prefix.bits()));
                    }
                    let hops = parts.iter().find(|(other, _)| *other == table).map(|(_, hops)| hops.as_slice());
                    if !self.is_clear(rib, table, news, hops) {
                        continue;
                    }
                    let Some(hops) = after(rib, table, news, hops) else { continue };
                    let leads = |hops| Leads { protocol: news.protocol, hops, object: news.object };
                    let leads = hops.as_deref().map(leads);
                    if rib.change_kernel(table, news.prefix, news.metric, leads) {
                        self.refresh(rib, table, news.prefix);
                    }
                }
            }
        }
        self.publish();
    }

    /// Whether a message says what the route with its prefix and metric is from now on. The kernel
    /// may have several such routes, one behind the other. Then all are compared soon.
    fn is_clear<P: Family>(
        &mut self,
        rib: &RibOf<P>,
        table: Table,
        news: &RouteNews<P>,
        hops: Option<&[Hop<P::Address>]>,
    ) -> bool {
        let key = (table, P::ip(news.prefix.first()), news.prefix.bits(), news.metric);
        let is_doubled = !self.doubled.is_empty() && self.doubled.contains(&key);
        let said = match P::HOPS_GO_SINGLY {
            true => of_several6(rib, table, news, hops, is_doubled),
            false => of_several(rib, table, news, hops, is_doubled),
        };
        if said == Said::Behind && news.is_there {
            self.doubled.insert(key);
        }
        self.compares_soon |= said != Said::All;
        said != Said::Behind
    }

    /// Whether the kernel has several routes with this prefix and metric.
    pub(super) fn is_doubled<P: Family>(&self, table: Table, prefix: P, metric: u32) -> bool {
        let key = || (table, P::ip(prefix.first()), prefix.bits(), metric);
        !self.doubled.is_empty() && self.doubled.contains(&key())
    }

    pub(super) fn refresh<P: Family>(&mut self, rib: &mut RibOf<P>, table: Table, prefix: P) {
        let Err(error) = self.try_refresh(rib, table, prefix) else { return };
        if !self.has_said {
            self.has_said = true;
            self.log.error(&format_args!("route {prefix}: {error}; see routes_refused in natrix show counters"));
        }
    }

    fn try_refresh<P: Family>(&mut self, rib: &mut RibOf<P>, table: Table, prefix: P) -> Result<(), FibError> {
        let Some(fib) = &mut self.fib else { return Ok(()) };
        let done = fib.refresh(rib, self.settings_of.settings(), table, prefix);
        let is_default = table == Table::Outside && prefix.bits() == 0 && P::ip(prefix.first()).is_ipv4();
        if is_default && rib.best(table, prefix).is_some_and(|hops| !hops.is_empty()) {
            self.default_route.note();
        }
        if rib.note_refused(table, prefix, done.is_err()) && done.is_err() {
            RouteCounters::add(&self.routing.counters.refused, 1);
        }
        done
    }

    /// Tries routes again that the workers could not take over.
    pub(super) fn retry<P: Family>(&mut self) {
        let routing = Arc::clone(&self.routing);
        let mut rib = lock(P::rib(&routing));
        let refused: Vec<(Table, P)> = rib.refused().skip(self.retried).take(CHANGES_LOCKED).collect();
        self.retried = if refused.len() < CHANGES_LOCKED { 0 } else { self.retried + CHANGES_LOCKED };
        for (table, prefix) in refused {
            // A worker that does not poll costs a second each time.
            if self.try_refresh(&mut rib, table, prefix) == Err(FibError::Stuck) {
                break;
            }
        }
    }

    /// Lets the routes over interfaces whose link has changed follow.
    pub(super) fn refresh_over<P: Family>(&mut self, changed: &[InterfaceId]) {
        let routing = Arc::clone(&self.routing);
        for table in Table::all(self.settings_of.settings().realms()) {
            let prefixes = lock(P::rib(&routing)).prefixes_over(table, changed);
            for some in prefixes.chunks(CHANGES_LOCKED) {
                let mut rib = lock(P::rib(&routing));
                for prefix in some {
                    self.refresh(&mut rib, table, *prefix);
                }
                drop(rib);
                self.publish();
                self.look_if_due();
            }
        }
    }

    pub(super) fn publish(&mut self) {
        let Some(fib) = &mut self.fib else { return };
        fib.publish();
        let counters = &self.routing.counters;
        counters.installed.store(fib.len() as u64, Ordering::Relaxed);
        let routes = lock(&self.routing.rib).kernel_len() + lock(&self.routing.rib6).kernel_len();
        counters.routes.store(routes as u64, Ordering::Relaxed);
    }

    /// The next hops of a route by the table that its devices belong to. A route that drops packets
    /// is one of each table.
    pub(super) fn parts<P: Family>(&self, news: &RouteNews<P>) -> Vec<(Table, Vec<Hop<P::Address>>)> {
        if news.prefix.is_of_link() {
            return Vec::new();
        }
        if news.hops.is_empty() {
            return self.tables_of(news.table).into_iter().map(|table| (table, Vec::new())).collect();
        }
        self.parts_of_hops(news.table, &news.hops)
    }

    /// The same of next hops of a route in a table of the kernel.
    pub(super) fn parts_of_hops<A: Copy + Ord>(&self, kernel: u32, hops: &[KernelHop<A>]) -> Vec<(Table, Vec<Hop<A>>)> {
        let mut parts: Vec<(Table, Vec<Hop<A>>)> = Vec::new();
        for &(device, gateway, weight) in hops {
            let Some(&(interface, table)) = self.interface_of.get(&device) else { continue };
            if table != kernel {
                continue;
            }
            let (table, hop) = (Table::of(self.facing(interface)), Hop { interface, gateway, weight });
            match parts.iter_mut().find(|(other, _)| *other == table) {
                Some((_, hops)) => hops.push(hop),
                None => parts.push((table, vec![hop])),
            }
        }
        for (_, hops) in &mut parts {
            hops.sort_unstable();
            hops.truncate(HOPS_MAX);
        }
        parts
    }

    pub(super) fn facing(&self, interface: InterfaceId) -> Facing {
        let found = self.settings_of.settings().interfaces.get(interface.index());
        found.map_or(Facing::OUTSIDE, nat::settings::Interface::facing)
    }

    /// The tables that a table of the kernel fills.
    fn tables_of(&self, kernel: u32) -> Vec<Table> {
        let of_table = self.interface_of.values().filter(|(_, table)| *table == kernel);
        let mut tables: Vec<Table> = of_table.map(|(interface, _)| Table::of(self.facing(*interface))).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Routes of the configuration, after it has changed too. `between` is called between the
    /// pieces.
    pub(super) fn refresh_all(&mut self, between: fn(&mut Follower)) {
        self.refresh_family::<Prefix>(between);
        if self.has_ipv6() {
            self.refresh_family::<Prefix6>(between);
        }
        self.publish();
    }

    fn refresh_family<P: Family>(&mut self, between: fn(&mut Follower)) {
        let routing = Arc::clone(&self.routing);
        for table in Table::all(self.settings_of.settings().realms()) {
            let mut from = Some(Bound::Unbounded);
            while let Some(first) = from {
                let mut rib = lock(P::rib(&routing));
                let next = |prefix: &P| rib.next_prefix(table, Bound::Excluded(*prefix));
                let some = iter::successors(rib.next_prefix(table, first), next);
                let some: Vec<P> = some.take(CHANGES_LOCKED).collect();
                for prefix in &some {
                    self.refresh(&mut rib, table, *prefix);
                }
                drop(rib);
                between(self);
                from = some.last().copied().map(Bound::Excluded);
            }
        }
    }

    /// Takes over the routes of a changed configuration.
    pub(super) fn replace_fixed<P: Family>(&mut self) {
        let routing = Arc::clone(&self.routing);
        let mut rib = lock(P::rib(&routing));
        let before: Vec<(Table, P)> = rib.fixed_prefixes().collect();
        rib.set_fixed(self.settings_of.settings());
        for (table, prefix) in before {
            self.refresh(&mut rib, table, prefix);
        }
    }
}

/// What a message is about, if the kernel may have several routes with its prefix and metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// The only one.
    All,
    /// The first of several, which counts.
    First,
    /// Another one than the first.
    Behind,
}

fn of_several<P: Family>(
    rib: &RibOf<P>,
    table: Table,
    news: &RouteNews<P>,
    hops: Option<&[Hop<P::Address>]>,
    is_doubled: bool,
) -> Said {
    if is_doubled {
        return Said::Behind;
    }
    let known = rib.kernel(table, news.prefix).into_iter().find(|route| route.metric == news.metric);
    let Some(known) = known else { return Said::All };
    // Routes that name different objects are different ones, even if they lead to the same routers.
    let is_same = hops == Some(&known.hops[..]) && news.object == known.object;
    match (news.is_there, is_same) {
        (true, true) | (false, true) => Said::All,
        (true, false) if news.replaces => Said::All,
        (true, false) if news.is_appended => Said::Behind,
        (true, false) => Said::First,
        (false, false) => Said::Behind,
    }
}

/// The same of IPv6. Only next hops by routers, which no object stands for, become one route. The
/// kernel uses the first of the others: those that drop packets, lead to the link, or name an
/// object.
fn of_several6<P: Family>(
    rib: &RibOf<P>,
    table: Table,
    news: &RouteNews<P>,
    hops: Option<&[Hop<P::Address>]>,
    is_doubled: bool,
) -> Said {
    if is_doubled {
        return Said::Behind;
    }
    let known = rib.kernel(table, news.prefix).into_iter().find(|route| route.metric == news.metric);
    let (true, Some(known), Some(hops)) = (news.is_there, known, hops) else { return Said::All };
    let becomes_one = |hops: &[Hop<P::Address>], object: Option<u32>| {
        !hops.is_empty() && object.is_none() && hops.iter().all(|hop| hop.gateway != P::Address::default())
    };
    let drops = |hops: &[Hop<P::Address>]| hops.is_empty();
    let kinds = [becomes_one(&known.hops, known.object), becomes_one(hops, news.object)];
    match kinds {
        [true, true] => Said::All,
        [false, false] if known.hops == hops && known.object == news.object => Said::All,
        [false, false] if news.replaces && drops(&known.hops) == drops(hops) => Said::All,
        _ => Said::Behind,
    }
}

/// The next hops of a route in a table after a message that has `hops` for it; Some(None): it has
/// none any more, None: the message is about other tables.
///
/// A message of IPv4 is about the whole route. Those of IPv6 report each next hop that goes, and
/// routes of a prefix with the same metric over different devices stand beside each other unless
/// one replaces the others.
fn after<P: Family>(
    rib: &RibOf<P>,
    table: Table,
    news: &RouteNews<P>,
    hops: Option<&[Hop<P::Address>]>,
) -> Option<Option<Vec<Hop<P::Address>>>> {
    if !P::HOPS_GO_SINGLY {
        return Some(hops.filter(|_| news.is_there).map(<[_]>::to_vec));
    }
    match (news.is_there, hops) {
        (true, Some(hops)) => Some(Some(hops.to_vec())),
        (true, None) => news.replaces.then_some(None),
        (false, None) => None,
        (false, Some(gone)) => {
            let before = rib.kernel(table, news.prefix).into_iter().find(|route| route.metric == news.metric)?;
            let is_gone = |hop: &Hop<P::Address>| {
                gone.iter().any(|gone| gone.interface == hop.interface && gone.gateway == hop.gateway)
            };
            let left: Vec<_> = before.hops.iter().copied().filter(|hop| !is_gone(hop)).collect();
            match (before.hops.is_empty(), gone.is_empty()) {
                (true, true) => Some(None),
                (false, false) => Some((!left.is_empty()).then_some(left)),
                // Another route with the same metric.
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nat::types::RealmId;

    use super::*;
    use crate::routing::rib::KernelRoute;
    use crate::routing::rib::Rib6;

    /// What is left of a route of IPv6 over these next hops after a message.
    fn left(before: &[u128], is_there: bool, replaces: bool, said: Option<&[u128]>) -> Option<Option<Vec<u128>>> {
        let hop = |gateway: &u128| Hop { interface: InterfaceId(0), gateway: *gateway, weight: 1 };
        let hops = |all: &[u128]| all.iter().map(hop).collect::<Vec<_>>();
        let prefix = Prefix6::new(0x2001_0db8 << 96, 56).unwrap();
        let table = Table::Inside(RealmId(0));
        let mut rib = Rib6::of(&crate::routing::rib::tests::settings());
        if !before.is_empty() {
            rib.set_kernel(
                table,
                prefix,
                &[KernelRoute { protocol: 188, metric: 20, hops: hops(before), object: None }],
            );
        }
        let news = RouteNews {
            is_there,
            replaces,
            is_appended: false,
            table: 254,
            prefix,
            metric: 20,
            protocol: 188,
            hops: Vec::new(),
            object: None,
        };
        let said = said.map(hops);
        let after = after(&rib, table, &news, said.as_deref());
        after.map(|after| after.map(|hops| hops.iter().map(|hop| hop.gateway).collect()))
    }

    #[test]
    fn a_route_of_ipv6_loses_its_next_hops_one_by_one() {
        assert_eq!(left(&[1, 2, 3], false, false, Some(&[2])), Some(Some(vec![1, 3])));
        assert_eq!(left(&[1], false, false, Some(&[1])), Some(None), "the last one goes");
        assert_eq!(left(&[1, 2], false, false, Some(&[1, 2])), Some(None), "all go at once");
        assert_eq!(left(&[], false, false, Some(&[1])), None, "it was not known");
        assert_eq!(left(&[1], false, false, None), None, "it was over a device of another table");
        assert_eq!(left(&[1], true, false, Some(&[1, 2])), Some(Some(vec![1, 2])), "one comes");
        assert_eq!(left(&[1], true, false, None), None, "one beside it, over a device of another table");
        assert_eq!(left(&[1], true, true, None), Some(None), "one over a device of another table in its place");
        assert_eq!(left(&[1], false, false, Some(&[])), None, "one that dropped packets, beside it");
    }

    #[test]
    fn a_message_of_ipv4_is_about_one_of_several_routes() {
        let hop = |gateway: u32| Hop { interface: InterfaceId(1), gateway, weight: 1 };
        let prefix = Prefix::new([198, 18, 0, 0].into(), 24).unwrap();
        let mut rib = crate::routing::rib::Rib::of(&crate::routing::rib::tests::settings());
        let route = KernelRoute { protocol: 186, metric: 20, hops: vec![hop(1)], object: None };
        rib.set_kernel(Table::Outside, prefix, &[route]);
        let said = |is_there, [replaces, is_appended]: [bool; 2], hops: Option<&[Hop]>, metric, is_doubled| {
            let news = RouteNews {
                is_there,
                replaces,
                is_appended,
                table: 254,
                prefix,
                metric,
                protocol: 186,
                hops: Vec::new(),
                object: None,
            };
            of_several(&rib, Table::Outside, &news, hops, is_doubled)
        };
        let (same, other) = ([hop(1)], [hop(2)]);
        let (plain, replaces, appended) = ([false, false], [true, false], [false, true]);
        assert_eq!(said(true, plain, Some(&other), 30, false), Said::All, "another metric");
        assert_eq!(said(true, replaces, Some(&other), 20, false), Said::All);
        assert_eq!(said(true, appended, Some(&other), 20, false), Said::Behind, "the kernel uses the first");
        assert_eq!(said(true, plain, Some(&other), 20, false), Said::First, "ahead of the known one");
        assert_eq!(said(false, plain, Some(&same), 20, false), Said::All);
        assert_eq!(said(false, plain, Some(&other), 20, false), Said::Behind, "another one goes");
        assert_eq!(said(false, plain, None, 20, false), Said::Behind, "one over a device of another table");
        assert_eq!(said(false, plain, Some(&same), 20, true), Said::Behind, "there is another one behind it");
    }

    #[test]
    fn routes_that_name_different_objects_are_different_routes() {
        let hops = [Hop { interface: InterfaceId(1), gateway: 1_u32, weight: 1 }];
        let prefix = Prefix::new([198, 18, 0, 0].into(), 24).unwrap();
        let mut rib = crate::routing::rib::Rib::of(&crate::routing::rib::tests::settings());
        let route = KernelRoute { protocol: 186, metric: 20, hops: hops.to_vec(), object: Some(81) };
        rib.set_kernel(Table::Outside, prefix, &[route]);
        let said = |is_there, is_appended, object| {
            let news = RouteNews {
                is_there,
                replaces: false,
                is_appended,
                table: 254,
                prefix,
                metric: 20,
                protocol: 186,
                hops: Vec::new(),
                object,
            };
            of_several(&rib, Table::Outside, &news, Some(&hops), false)
        };
        assert_eq!(said(true, true, Some(81)), Said::All);
        assert_eq!(said(true, true, Some(82)), Said::Behind, "the object of the first one still decides");
        assert_eq!(said(true, false, Some(82)), Said::First);
        assert_eq!((said(false, false, Some(82)), said(false, false, Some(81))), (Said::Behind, Said::All));
        assert_eq!(said(false, false, None), Said::Behind, "the same routers without an object");
    }

    #[test]
    fn routes_of_ipv6_of_different_kinds_stand_beside_each_other() {
        let hop = |gateway: u128| Hop { interface: InterfaceId(0), gateway, weight: 1 };
        let prefix = Prefix6::new(0x2001_0db8 << 96, 48).unwrap();
        let table = Table::Inside(RealmId(0));
        let said = |known: (&[u128], Option<u32>), is_there, replaces, new: (&[u128], Option<u32>), is_doubled| {
            let hops = |all: &[u128]| all.iter().copied().map(hop).collect::<Vec<_>>();
            let mut rib = Rib6::of(&crate::routing::rib::tests::settings());
            let route = KernelRoute { protocol: 188, metric: 20, hops: hops(known.0), object: known.1 };
            rib.set_kernel(table, prefix, &[route]);
            let news = RouteNews {
                is_there,
                replaces,
                is_appended: false,
                table: 254,
                prefix,
                metric: 20,
                protocol: 188,
                hops: Vec::new(),
                object: new.1,
            };
            of_several6(&rib, table, &news, Some(&hops(new.0)), is_doubled)
        };
        let (router, both, link, drops) = (&[7][..], &[7, 8][..], &[0][..], &[][..]);
        assert_eq!(said((router, None), true, false, (both, None), false), Said::All, "they become one");
        assert_eq!(said((router, None), true, true, (&[8], None), false), Said::All);
        assert_eq!(said((router, None), true, false, (drops, None), false), Said::Behind);
        assert_eq!(said((router, None), true, false, (link, None), false), Said::Behind);
        assert_eq!(said((router, None), true, true, (link, None), false), Said::Behind, "the kernel keeps the first");
        assert_eq!(said((link, None), true, false, (router, None), false), Said::Behind);
        assert_eq!(said((router, None), true, false, (router, Some(6)), false), Said::Behind);
        assert_eq!(said((router, Some(6)), true, true, (&[8], Some(7)), false), Said::All, "one object for another");
        assert_eq!(said((link, None), true, false, (link, None), false), Said::All, "it is the same");
        assert_eq!(said((drops, None), true, true, (link, None), false), Said::Behind);
        assert_eq!(said((router, None), false, false, (router, None), false), Said::All);
        assert_eq!(said((router, None), false, false, (router, None), true), Said::Behind, "another one is behind it");
    }
}
