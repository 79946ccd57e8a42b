//! All routes of the kernel against those that are known: what lost messages left is corrected.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nat::stand_in::Prefix6;
use nat::types::Prefix;

use super::Follower;
use crate::instance::lock;
use crate::kernel::netlink;
use crate::kernel::netlink::RouteNews;
use crate::routing::family::Family;
use crate::routing::rib::KernelRoute;
use crate::routing::rib::Table;
use crate::routing::shared::RouteCounters;

/// Tries to read all routes while they change.
const DUMPS_MAX: usize = 5;
/// Corrections that workers learn of together.
const CORRECTIONS_AT_ONCE: usize = 1_024;

impl Follower {
    /// Reads all routes, and corrects what differs.
    pub(super) fn compare(&mut self) {
        self.read_links();
        if self.fib.is_none() {
            return;
        }
        let mut corrected = self.compare_family::<Prefix>();
        if self.has_ipv6() {
            corrected += self.compare_family::<Prefix6>();
        }
        // The first comparison reads what was there before.
        let is_first = self.routing.counters.compared.fetch_add(1, Ordering::Relaxed) == 0;
        if !is_first {
            RouteCounters::add(&self.routing.counters.corrected, corrected);
        }
        self.publish();
    }

    /// The same of one family. Returns how many prefixes differed.
    fn compare_family<P: Family>(&mut self) -> usize {
        let mut wanted: BTreeMap<(Table, P), Vec<KernelRoute<P::Address>>> = BTreeMap::new();
        let mut is_complete = false;
        for _ in 0..DUMPS_MAX {
            let mut news: Vec<RouteNews<P>> = Vec::new();
            let dump =
                self.socket.dump_bytes(netlink::all_routes::<P>(), |message| news.extend(netlink::route_news(message)));
            wanted.clear();
            let is_this = |address: &IpAddr| address.is_ipv4() == P::ip(P::Address::default()).is_ipv4();
            self.doubled.retain(|(_, address, ..)| !is_this(address));
            for news in &news {
                for (table, hops) in self.parts(news) {
                    let routes = wanted.entry((table, news.prefix)).or_default();
                    if routes.iter().all(|route| route.metric != news.metric) {
                        routes.push(KernelRoute { protocol: news.protocol, metric: news.metric, hops });
                    } else {
                        let address = P::ip(news.prefix.first());
                        self.doubled.insert((table, address, news.prefix.bits(), news.metric));
                    }
                }
            }
            is_complete = dump.is_ok();
            if is_complete {
                break;
            }
        }
        if !is_complete {
            // Routes change faster than they can be read. What was read is right, so nothing is
            // removed, and the next comparison goes on.
            self.log.warn(&"routes: they change too fast to be compared; trying again");
        }
        let routing = Arc::clone(&self.routing);
        let mut corrected = 0;
        let mut correct = |this: &mut Follower, table, prefix, routes: &[KernelRoute<P::Address>]| {
            let mut rib = lock(P::rib(&routing));
            if rib.set_kernel(table, prefix, routes) {
                corrected += 1;
                this.refresh(&mut rib, table, prefix);
                drop(rib);
                // Workers need not wait for the last of a million corrections.
                if corrected % CORRECTIONS_AT_ONCE == 0 {
                    this.publish();
                }
            }
        };
        for table in Table::all(self.settings_of.settings().realms()).filter(|_| is_complete) {
            let gone: Vec<P> = {
                let rib = lock(P::rib(&routing));
                rib.kernel_prefixes(table).filter(|prefix| !wanted.contains_key(&(table, *prefix))).collect()
            };
            for prefix in gone {
                correct(self, table, prefix, &[]);
            }
        }
        for ((table, prefix), routes) in &wanted {
            correct(self, *table, *prefix, routes);
        }
        corrected
    }
}
