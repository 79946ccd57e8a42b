//! All routes of a family by table and prefix, and the one of each prefix that counts.
//!
//! There is one table outside, and one inside for each realm: a packet from inside is looked up
//! outside, and the reverse. For a prefix, a connected route is preferred to a static one, a static
//! one to those of the kernel, and of these the lowest metric. Next hops over interfaces without
//! link do not count, and a route that has no others counts only if all routes of its prefix are
//! so. A prefix that leads inside is excluded outside, unless a route outside has the same prefix
//! (RFC 6598 §4). With routes of the kernel, so are the prefixes of subscribers, which may be
//! unknown for a while. IPv6 excludes none.

use core::ops::Bound;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;

use nat::Settings;
use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;

use crate::routing::family::Family;

/// Next hops of one route that are used; further ones are left out.
pub const HOPS_MAX: usize = 16;

/// A routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The outside.
    Outside,
    /// An inside realm.
    Inside(RealmId),
}

impl Table {
    /// The table of what an interface faces.
    pub fn of(facing: Facing) -> Table {
        match facing.side {
            Side::Outside => Table::Outside,
            Side::Inside => Table::Inside(facing.realm),
        }
    }

    /// Position among all tables.
    pub fn index(self) -> usize {
        match self {
            Table::Outside => 0,
            Table::Inside(realm) => 1 + realm.index(),
        }
    }

    /// All tables of an instance with so many realms.
    pub fn all(realms: usize) -> impl Iterator<Item = Table> {
        core::iter::once(Table::Outside).chain((0..realms).map(|realm| Table::Inside(RealmId(realm as u16))))
    }
}

/// One next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop<A = u32> {
    /// Interface that leads to it.
    pub interface: InterfaceId,
    /// The router in host bit order; 0: destinations are on the link.
    pub gateway: A,
    /// Share of the subscribers, relative to the other next hops.
    pub weight: u16,
}

/// Where a route is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The prefix of an own address.
    Connected,
    /// The configuration.
    Static,
    /// The kernel.
    Kernel {
        /// The kernel's number of the routing protocol.
        protocol: u8,
        /// The lowest counts.
        metric: u32,
    },
    /// Leads inside.
    Excluded,
}

/// A route of the kernel for a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute<A = u32> {
    /// The kernel's number of the routing protocol.
    pub protocol: u8,
    /// The lowest counts.
    pub metric: u32,
    /// Next hops in ascending order. Empty: packets are dropped.
    pub hops: Vec<Hop<A>>,
    /// The object that it names for them, by the kernel's number.
    pub object: Option<u32>,
}

/// What a route of the kernel is, but for its prefix and metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Leads<'a, A = u32> {
    /// The kernel's number of the routing protocol.
    pub protocol: u8,
    /// Next hops in ascending order. Empty: packets are dropped.
    pub hops: &'a [Hop<A>],
    /// The object that it names for them, by the kernel's number.
    pub object: Option<u32>,
}

impl<A> Clone for Leads<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Leads<'_, A> {}

/// A route for a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<A = u32> {
    /// Where it is from.
    pub source: Source,
    /// Next hops. Empty: packets are dropped.
    pub hops: Vec<Hop<A>>,
}

/// Whether a next hop is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopState {
    /// It is.
    Usable,
    /// Its interface has no link.
    NoLink,
    /// Its interface has link, but the device of that in the kernel is not as it should be.
    DeviceFault,
}

/// Interfaces without link, or with a fault of their device in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dead(Vec<InterfaceId>);

impl Dead {
    fn has<A>(&self, hop: &Hop<A>) -> bool {
        self.0.contains(&hop.interface)
    }

    /// The next hops that are left; None: all of them.
    fn left<A: Copy>(&self, hops: &[Hop<A>]) -> Option<Vec<Hop<A>>> {
        let is_dead = hops.iter().any(|hop| self.has(hop));
        is_dead.then(|| hops.iter().filter(|hop| !self.has(hop)).copied().collect())
    }
}

/// The next hops of a route.
#[derive(Clone, Copy)]
struct NextHops<'a, A> {
    all: &'a [Hop<A>],
    /// Those with link.
    live: &'a [Hop<A>],
}

impl<A> NextHops<'_, A> {
    /// Whether the route counts. One that drops packets needs no link.
    fn count(self) -> bool {
        self.all.is_empty() || !self.live.is_empty()
    }
}

/// A list of next hops, written out in its routes or named by them.
#[derive(Debug)]
struct HopList<A> {
    hops: Vec<Hop<A>>,
    object: Option<u32>,
    /// Those with link; None: all of them.
    live: Option<Vec<Hop<A>>>,
    uses: u32,
}

/// Lists of next hops, each kept once.
#[derive(Debug)]
struct HopLists<A> {
    lists: Vec<HopList<A>>,
    free: Vec<u32>,
    /// By the object that their routes name.
    by_hops: HashMap<Option<u32>, HashMap<Vec<Hop<A>>, u32>>,
}

impl<A: Copy + Eq + core::hash::Hash> HopLists<A> {
    fn new() -> HopLists<A> {
        HopLists { lists: Vec::new(), free: Vec::new(), by_hops: HashMap::new() }
    }

    fn add(&mut self, hops: &[Hop<A>], object: Option<u32>, dead: &Dead) -> u32 {
        let by_hops = self.by_hops.entry(object).or_default();
        if let Some(&number) = by_hops.get(hops) {
            if let Some(list) = self.lists.get_mut(number as usize) {
                list.uses += 1;
            }
            return number;
        }
        let entry = HopList { hops: hops.to_vec(), object, live: dead.left(hops), uses: 1 };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(place) = self.lists.get_mut(number as usize) {
                    *place = entry;
                }
                number
            }
            None => {
                self.lists.push(entry);
                self.lists.len() as u32 - 1
            }
        };
        by_hops.insert(hops.to_vec(), number);
        number
    }

    fn remove(&mut self, number: u32) {
        let Some(list) = self.lists.get_mut(number as usize) else { return };
        list.uses = list.uses.saturating_sub(1);
        if list.uses == 0 {
            if let Some(by_hops) = self.by_hops.get_mut(&list.object) {
                by_hops.remove(&list.hops);
                if by_hops.is_empty() {
                    self.by_hops.remove(&list.object);
                }
            }
            (list.hops, list.live) = (Vec::new(), None);
            self.free.push(number);
        }
    }

    fn get(&self, number: u32) -> &[Hop<A>] {
        self.lists.get(number as usize).map_or(&[], |list| list.hops.as_slice())
    }

    fn object(&self, number: u32) -> Option<u32> {
        self.lists.get(number as usize).and_then(|list| list.object)
    }

    /// Those with link.
    fn live(&self, number: u32) -> &[Hop<A>] {
        let list = self.lists.get(number as usize);
        list.map_or(&[], |list| list.live.as_deref().unwrap_or(&list.hops))
    }
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    metric: u32,
    hops: u32,
    protocol: u8,
    /// The reading of all routes that last met it, or in which it came.
    reading: u8,
}

/// What a reading of all routes finds of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// As it is known.
    Known,
    /// New, or other than it was known.
    Changed,
    /// Another one with its prefix and metric came before it in this reading, and stays.
    Behind,
}

/// The routes of one table, in the order of their prefixes.
#[derive(Debug)]
struct Routes<P: Family> {
    /// Connected and static.
    fixed: BTreeMap<P, Candidate<P::Address>>,
    /// The preferred route of the kernel.
    kernel: BTreeMap<P, Stored>,
    /// Its further routes, in the order of preference. Few prefixes have any.
    further: BTreeMap<P, Vec<Stored>>,
}

impl<P: Family> Routes<P> {
    fn new() -> Routes<P> {
        Routes { fixed: BTreeMap::new(), kernel: BTreeMap::new(), further: BTreeMap::new() }
    }
}

/// All routes of IPv4.
pub type Rib = RibOf<Prefix>;
/// All routes of IPv6.
pub type Rib6 = RibOf<Prefix6>;

/// All routes of a family.
#[derive(Debug)]
pub struct RibOf<P: Family> {
    tables: Vec<Routes<P>>,
    hops: HopLists<P::Address>,
    /// By object: the prefixes with a route of the kernel that names it.
    named: HashMap<u32, BTreeSet<(Table, P)>>,
    dead: Dead,
    /// Of the dead interfaces, those that have link.
    faulty: Vec<InterfaceId>,
    /// Prefixes of subscribers: see [`Family::subscribers`].
    subscribers: BTreeSet<P>,
    /// Prefixes whose best route is not in the tables of the workers.
    refused: BTreeSet<(Table, P)>,
    /// The last reading of all routes of the kernel. Its number comes again after 256 others.
    reading: u8,
}

impl<P: Family> RibOf<P> {
    /// The routes of a configuration.
    pub fn of(settings: &Settings) -> RibOf<P> {
        let mut rib = RibOf {
            tables: Vec::new(),
            hops: HopLists::new(),
            named: HashMap::new(),
            dead: Dead::default(),
            faulty: Vec::new(),
            subscribers: BTreeSet::new(),
            refused: BTreeSet::new(),
            reading: 0,
        };
        rib.set_fixed(settings);
        rib
    }

    /// Replaces connected and static routes by those of `settings`, and keeps those of the kernel.
    pub fn set_fixed(&mut self, settings: &Settings) {
        self.tables.resize_with(1 + settings.realms(), Routes::new);
        for routes in &mut self.tables {
            routes.fixed.clear();
        }
        self.subscribers = P::subscribers(settings);
        for (table, prefix, source, hop) in P::fixed(settings) {
            if let Some(routes) = self.tables.get_mut(table.index()) {
                routes.fixed.insert(prefix, Candidate { source, hops: vec![hop] });
            }
        }
    }

    /// Number of tables.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Routes of the kernel.
    pub fn kernel_len(&self) -> usize {
        let further = |routes: &Routes<P>| routes.further.values().map(Vec::len).sum::<usize>();
        self.tables.iter().map(|routes| routes.kernel.len() + further(routes)).sum()
    }

    /// Sets the routes of the kernel for a prefix, whatever their order; none: it has no more.
    /// Returns whether anything changed. Whether a reading of all routes has met the others of the
    /// prefix stays as it is.
    pub fn set_kernel(&mut self, table: Table, prefix: P, wanted: &[KernelRoute<P::Address>]) -> bool {
        let mut wanted: Vec<KernelRoute<P::Address>> = wanted.to_vec();
        wanted.sort_by_key(|route| route.metric);
        let before = self.kernel(table, prefix);
        if before == wanted {
            return false;
        }
        let Some(routes) = self.tables.get_mut(table.index()) else { return false };
        let old = routes.kernel.remove(&prefix).into_iter().chain(routes.further.remove(&prefix).unwrap_or_default());
        let old: Vec<Stored> = old.collect();
        let reading_of = |metric| old.iter().find(|stored| stored.metric == metric).map(|stored| stored.reading);
        let stored: Vec<Stored> = wanted
            .iter()
            .map(|route| Stored {
                metric: route.metric,
                hops: self.hops.add(&route.hops, route.object, &self.dead),
                protocol: route.protocol,
                reading: reading_of(route.metric).unwrap_or(self.reading),
            })
            .collect();
        for stored in &old {
            self.hops.remove(stored.hops);
        }
        if let Some((first, further)) = stored.split_first() {
            routes.kernel.insert(prefix, *first);
            if !further.is_empty() {
                routes.further.insert(prefix, further.to_vec());
            }
        }
        for object in before.iter().filter_map(|route| route.object) {
            self.unname(object, table, prefix);
        }
        for object in wanted.iter().filter_map(|route| route.object) {
            self.name(object, table, prefix);
        }
        true
    }

    fn name(&mut self, object: u32, table: Table, prefix: P) {
        self.named.entry(object).or_default().insert((table, prefix));
    }

    fn unname(&mut self, object: u32, table: Table, prefix: P) {
        if let Some(named) = self.named.get_mut(&object) {
            named.remove(&(table, prefix));
            if named.is_empty() {
                self.named.remove(&object);
            }
        }
    }

    /// The prefixes with a route of the kernel that names an object.
    pub fn naming(&self, object: u32) -> Vec<(Table, P)> {
        self.named.get(&object).into_iter().flatten().copied().collect()
    }

    /// Sets the route of the kernel for a prefix with this metric; None: removes it. Returns
    /// whether anything changed.
    pub fn change_kernel(
        &mut self,
        table: Table,
        prefix: P,
        metric: u32,
        leads: Option<Leads<'_, P::Address>>,
    ) -> bool {
        let Some(routes) = self.tables.get_mut(table.index()) else { return false };
        let is_only = match routes.kernel.get(&prefix) {
            Some(stored) => stored.metric == metric && !routes.further.contains_key(&prefix),
            None => true,
        };
        if !is_only {
            // Several metrics, which few prefixes have.
            let mut wanted = self.kernel(table, prefix);
            wanted.retain(|other| other.metric != metric);
            let route = |route: Leads<'_, P::Address>| KernelRoute {
                protocol: route.protocol,
                metric,
                hops: route.hops.to_vec(),
                object: route.object,
            };
            wanted.extend(leads.map(route));
            return self.set_kernel(table, prefix, &wanted);
        }
        let reading = self.reading;
        let stored = leads.map(|Leads { protocol, hops, object }| {
            let hops = self.hops.add(hops, object, &self.dead);
            Stored { metric, hops, protocol, reading }
        });
        let before = match stored {
            Some(stored) => routes.kernel.insert(prefix, stored),
            None => routes.kernel.remove(&prefix),
        };
        let named_before = before.and_then(|before| self.hops.object(before.hops));
        if let Some(before) = before {
            self.hops.remove(before.hops);
        }
        let named = leads.and_then(|leads| leads.object);
        if named_before != named {
            if let Some(object) = named_before {
                self.unname(object, table, prefix);
            }
            if let Some(object) = named {
                self.name(object, table, prefix);
            }
        }
        let what = |stored: Stored| (stored.hops, stored.protocol);
        before.map(what) != stored.map(what)
    }

    /// All routes of the kernel are read from the beginning: see [`RibOf::meet`].
    pub fn begin_reading(&mut self) {
        self.reading = self.reading.wrapping_add(1);
    }

    /// Takes over a route of the kernel that a reading of all routes finds.
    pub fn meet(&mut self, table: Table, prefix: P, metric: u32, leads: Leads<'_, P::Address>) -> Met {
        let reading = self.reading;
        if let Some(stored) = self.stored_mut(table, prefix, metric) {
            if stored.reading == reading {
                return Met::Behind;
            }
            stored.reading = reading;
            let (protocol, hops) = (stored.protocol, stored.hops);
            if leads == (Leads { protocol, hops: self.hops.get(hops), object: self.hops.object(hops) }) {
                return Met::Known;
            }
        }
        self.change_kernel(table, prefix, metric, Some(leads));
        Met::Changed
    }

    /// Routes of the kernel, by prefix and metric, that this reading of all routes has not met.
    pub fn unmet(&self, table: Table) -> Vec<(P, u32)> {
        let Some(routes) = self.tables.get(table.index()) else { return Vec::new() };
        let further = routes.further.iter().flat_map(|(prefix, all)| all.iter().map(move |stored| (prefix, stored)));
        let unmet = routes.kernel.iter().chain(further).filter(|(_, stored)| stored.reading != self.reading);
        unmet.map(|(prefix, stored)| (*prefix, stored.metric)).collect()
    }

    fn stored_mut(&mut self, table: Table, prefix: P, metric: u32) -> Option<&mut Stored> {
        let routes = self.tables.get_mut(table.index())?;
        let first = routes.kernel.get_mut(&prefix)?;
        if first.metric == metric {
            return Some(first);
        }
        routes.further.get_mut(&prefix)?.iter_mut().find(|stored| stored.metric == metric)
    }

    /// Notes which of the interfaces that cannot be used have link, for people.
    pub fn set_faulty(&mut self, faulty: Vec<InterfaceId>) {
        self.faulty = faulty;
    }

    /// Takes over which interfaces can be used. Returns those for which that has changed.
    pub fn set_links(&mut self, is_up: &[bool]) -> Vec<InterfaceId> {
        let down = is_up.iter().enumerate().filter(|(_, is_up)| !**is_up);
        let dead = Dead(down.map(|(number, _)| InterfaceId(number as u16)).collect());
        let before = core::mem::replace(&mut self.dead, dead);
        if before == self.dead {
            return Vec::new();
        }
        for list in &mut self.hops.lists {
            list.live = self.dead.left(&list.hops);
        }
        let (before, now) = (&before.0, &self.dead.0);
        let gone = before.iter().filter(|interface| !now.contains(interface));
        now.iter().filter(|interface| !before.contains(interface)).chain(gone).copied().collect()
    }

    /// The prefixes of a table with a route over one of these interfaces.
    pub fn prefixes_over(&self, table: Table, interfaces: &[InterfaceId]) -> Vec<P> {
        let Some(routes) = self.tables.get(table.index()) else { return Vec::new() };
        let is_over = |hops: &[Hop<P::Address>]| hops.iter().any(|hop| interfaces.contains(&hop.interface));
        let lists: Vec<bool> = self.hops.lists.iter().map(|list| is_over(&list.hops)).collect();
        let is_meant = |stored: &Stored| lists.get(stored.hops as usize).copied().unwrap_or(false);
        let fixed = routes.fixed.iter().filter(|(_, candidate)| is_over(&candidate.hops)).map(|(prefix, _)| *prefix);
        let kernel = routes.kernel.iter().filter(|(_, stored)| is_meant(stored)).map(|(prefix, _)| *prefix);
        let further = routes.further.iter().filter(|(_, all)| all.iter().any(is_meant)).map(|(prefix, _)| *prefix);
        let mut found: Vec<P> = fixed.chain(kernel).chain(further).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Notes whether the workers could not take over the best route of a prefix. Returns whether
    /// that is news.
    pub fn note_refused(&mut self, table: Table, prefix: P, is_refused: bool) -> bool {
        if is_refused {
            self.refused.insert((table, prefix))
        } else {
            !self.refused.is_empty() && self.refused.remove(&(table, prefix))
        }
    }

    /// Whether the workers could not take over the best route of a prefix.
    pub fn is_refused(&self, table: Table, prefix: P) -> bool {
        self.refused.contains(&(table, prefix))
    }

    /// Prefixes whose best route the workers could not take over.
    pub fn refused(&self) -> impl Iterator<Item = (Table, P)> + '_ {
        self.refused.iter().copied()
    }

    /// The next hops of each route of a prefix in the order of preference.
    fn in_order<'a>(&'a self, routes: &'a Routes<P>, prefix: P) -> impl Iterator<Item = NextHops<'a, P::Address>> {
        let fixed = routes.fixed.get(&prefix).map(|candidate| {
            let all = candidate.hops.as_slice();
            // They have one next hop each.
            let is_dead = all.iter().any(|hop| self.dead.has(hop));
            NextHops { all, live: if is_dead { &[] } else { all } }
        });
        let further = routes.further.get(&prefix).into_iter().flatten();
        let kernel = routes.kernel.get(&prefix).into_iter().chain(further);
        let kernel =
            kernel.map(|stored| NextHops { all: self.hops.get(stored.hops), live: self.hops.live(stored.hops) });
        fixed.into_iter().chain(kernel)
    }

    /// The next hops of the route of a prefix that counts.
    pub fn best(&self, table: Table, prefix: P) -> Option<&[Hop<P::Address>]> {
        let routes = self.tables.get(table.index())?;
        let mut first = None;
        for hops in self.in_order(routes, prefix) {
            if hops.count() {
                return Some(hops.live);
            }
            first = first.or(Some(hops.all));
        }
        first.or_else(|| (table == Table::Outside && self.leads_inside(prefix)).then_some(&[]))
    }

    /// Which of the routes of a prefix counts, by its place among the candidates.
    pub fn used(&self, table: Table, prefix: P) -> usize {
        let Some(routes) = self.tables.get(table.index()) else { return 0 };
        self.in_order(routes, prefix).position(|hops| hops.count()).unwrap_or(0)
    }

    /// Whether a next hop is used.
    pub fn state(&self, hop: &Hop<P::Address>) -> HopState {
        match self.dead.has(hop) {
            false => HopState::Usable,
            true if self.faulty.contains(&hop.interface) => HopState::DeviceFault,
            true => HopState::NoLink,
        }
    }

    /// The routes of the kernel for a prefix, in the order of preference.
    pub fn kernel(&self, table: Table, prefix: P) -> Vec<KernelRoute<P::Address>> {
        let Some(routes) = self.tables.get(table.index()) else { return Vec::new() };
        let further = routes.further.get(&prefix).into_iter().flatten();
        let all = routes.kernel.get(&prefix).into_iter().chain(further);
        all.map(|stored| KernelRoute {
            protocol: stored.protocol,
            metric: stored.metric,
            hops: self.hops.get(stored.hops).to_vec(),
            object: self.hops.object(stored.hops),
        })
        .collect()
    }

    /// All prefixes with connected or static routes, and those of subscribers.
    pub fn fixed_prefixes(&self) -> impl Iterator<Item = (Table, P)> + '_ {
        let tables = Table::all(self.tables.len().saturating_sub(1)).zip(&self.tables);
        let fixed = tables.flat_map(|(table, routes)| routes.fixed.keys().map(move |prefix| (table, *prefix)));
        fixed.chain(self.subscribers.iter().map(|prefix| (Table::Outside, *prefix)))
    }

    /// Whether a route that counts in a table has a next hop of this kind.
    pub fn any_used(&self, table: Table, is_meant: impl Fn(&Hop<P::Address>) -> bool) -> bool {
        let Some(routes) = self.tables.get(table.index()) else { return false };
        let leads = |prefix: &P| self.best(table, *prefix).is_some_and(|hops| hops.iter().any(&is_meant));
        // There may be a million routes, and few lists.
        let is_listed = || self.hops.lists.iter().any(|list| list.hops.iter().any(&is_meant));
        routes.fixed.keys().any(leads) || is_listed() && routes.kernel.keys().any(leads)
    }

    /// All routes for a prefix in the order of preference. [`RibOf::used`] says which counts.
    pub fn candidates(&self, table: Table, prefix: P) -> Vec<Candidate<P::Address>> {
        let fixed = self.tables.get(table.index()).and_then(|routes| routes.fixed.get(&prefix)).cloned();
        let kernel = self.kernel(table, prefix).into_iter().map(|route| Candidate {
            source: Source::Kernel { protocol: route.protocol, metric: route.metric },
            hops: route.hops,
        });
        let excluded = (table == Table::Outside && self.leads_inside(prefix))
            .then(|| Candidate { source: Source::Excluded, hops: Vec::new() });
        fixed.into_iter().chain(kernel).chain(excluded).collect()
    }

    fn leads_inside(&self, prefix: P) -> bool {
        if !P::EXCLUDES_INSIDE {
            return false;
        }
        let leads = |routes: &Routes<P>| {
            let by_kernel = || routes.kernel.get(&prefix).is_some_and(|stored| !self.hops.get(stored.hops).is_empty());
            routes.fixed.contains_key(&prefix) || by_kernel()
        };
        self.subscribers.contains(&prefix) || self.tables.iter().skip(1).any(leads)
    }

    /// The first prefix of a table from `from` on, in the order of address and length.
    pub fn next_prefix(&self, table: Table, from: Bound<P>) -> Option<P> {
        let range = (from, Bound::Unbounded);
        let first = |routes: &Routes<P>| {
            let fixed = routes.fixed.range(range).next().map(|(prefix, _)| *prefix);
            let kernel = routes.kernel.range(range).next().map(|(prefix, _)| *prefix);
            [fixed, kernel].into_iter().flatten().min()
        };
        let own = self.tables.get(table.index()).and_then(first);
        if table != Table::Outside || !P::EXCLUDES_INSIDE {
            return own;
        }
        // Excluded prefixes have no entry of their own.
        let subscribers = self.subscribers.range((from, Bound::Unbounded)).next().copied();
        self.tables.iter().skip(1).filter_map(first).chain(own).chain(subscribers).min()
    }

    /// The longest prefix of a table that contains `address` and has a route.
    pub fn longest(&self, table: Table, address: P::Address) -> Option<P> {
        let prefixes = (0..=P::LENGTH_MAX).rev().filter_map(|length| P::of(address, length));
        prefixes.into_iter().find(|prefix| !self.candidates(table, *prefix).is_empty())
    }
}

#[cfg(test)]
pub(crate) mod tests;
