//! All routes of the kernel against those that are known: what lost messages left is corrected.

use core::net::IpAddr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nat::stand_in::Prefix6;
use nat::types::Prefix;

use super::Follower;
use crate::instance::lock;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::kernel::netlink::RouteNews;
use crate::kernel::next_hop_objects::NextHopObjects;
use crate::routing::family::Family;
use crate::routing::rib::Leads;
use crate::routing::rib::Met;
use crate::routing::rib::RibOf;
use crate::routing::rib::Table;
use crate::routing::shared::RouteCounters;
use crate::routing::shared::Routing;

/// Tries to read all routes while they change.
const DUMPS_MAX: usize = 5;
/// Corrections that workers learn of together.
const CORRECTIONS_AT_ONCE: usize = 1_024;
/// Routes that are compared between two looks at links: about a millisecond.
pub(super) const COMPARED_AT_ONCE: usize = 256;

/// Corrections that are kept until messages explain them or not.
const SUSPECTS_MAX: usize = 65_536;

/// Why all routes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A message said that routes may have changed without one of their own, as when a device goes
    /// down.
    Asked,
    /// Messages were lost.
    Lost,
    /// It is done every few seconds.
    Time,
}

/// Where all routes are read.
pub(super) trait Source {
    /// Gives each route of a family as the kernel writes it.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    fn routes<P: Family>(&mut self, each: impl FnMut(&[u8])) -> io::Result<()>;

    /// The same of next hops that are objects.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    fn next_hops(&mut self, each: impl FnMut(&[u8])) -> io::Result<()>;
}

impl Source for Netlink {
    fn routes<P: Family>(&mut self, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.dump_bytes(netlink::all_routes::<P>(), each)
    }

    fn next_hops(&mut self, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.dump_next_hops(each)
    }
}

impl Follower {
    /// Reads all routes, and corrects what differs.
    pub(super) fn compare(&mut self, reader: &mut impl Source, cause: Cause) {
        if self.fib.is_none() {
            return;
        }
        self.read_objects(reader);
        let mut corrected = self.compare_family::<Prefix>(reader);
        if self.has_ipv6() {
            corrected += self.compare_family::<Prefix6>(reader);
        }
        // The first comparison reads what was there before.
        let is_first = self.routing.counters.compared.fetch_add(1, Ordering::Relaxed) == 0;
        let counters = &self.routing.counters;
        // A device may also have changed since.
        match cause {
            _ if is_first => self.suspects.clear(),
            Cause::Asked => RouteCounters::add(&counters.reread, corrected),
            _ if self.compares_now => RouteCounters::add(&counters.reread, corrected),
            Cause::Lost => RouteCounters::add(&counters.corrected, corrected),
            // The rest waits for messages.
            Cause::Time => RouteCounters::add(&counters.corrected, corrected - self.suspects.len().min(corrected)),
        }
        if cause != Cause::Time || self.compares_now {
            self.suspects.clear();
        }
        self.publish();
    }

    /// Reads all next hops that routes may name.
    fn read_objects(&mut self, reader: &mut impl Source) {
        for _ in 0..DUMPS_MAX {
            let mut objects = NextHopObjects::default();
            let read = reader.next_hops(|message| {
                let _ = objects.take_in(message);
            });
            match read {
                Ok(()) => self.objects = objects,
                // They change. The messages about it come, too.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Kernels before 5.3 have none.
                Err(_) => {}
            }
            break;
        }
    }

    /// The same of one family. Returns how many routes differed.
    fn compare_family<P: Family>(&mut self, reader: &mut impl Source) -> usize {
        let routing = Arc::clone(&self.routing);
        let (mut corrected, mut compared) = (0, 0_usize);
        let mut is_complete = false;
        for _ in 0..DUMPS_MAX {
            lock(P::rib(&routing)).begin_reading();
            let is_this = |address: &IpAddr| address.is_ipv4() == P::ip(P::Address::default()).is_ipv4();
            self.doubled.retain(|(_, address, ..)| !is_this(address));
            // Each route is compared when it comes: a list of a million would be larger than all
            // that is kept of them.
            let dump = reader.routes::<P>(|message| {
                if let Some(news) = netlink::route_news(message, &self.objects) {
                    self.meet::<P>(&routing, &news, &mut corrected);
                }
                self.look_between(&mut compared);
            });
            is_complete = dump.is_ok();
            if is_complete {
                break;
            }
        }
        if !is_complete {
            // Routes change faster than they can be read. What was read is right, so nothing is
            // removed, and the next comparison goes on.
            self.log.warn(&"routes change too fast for a comparison; trying again");
        }
        for table in Table::all(self.settings_of.settings().realms()).filter(|_| is_complete) {
            let gone = lock(P::rib(&routing)).unmet(table);
            for (prefix, metric) in gone {
                let mut rib = lock(P::rib(&routing));
                rib.change_kernel(table, prefix, metric, None);
                self.correct(&mut rib, table, prefix, &mut corrected);
                drop(rib);
                self.look_between(&mut compared);
            }
        }
        corrected
    }

    /// Links do not wait for the rest of the routes.
    fn look_between(&mut self, compared: &mut usize) {
        *compared += 1;
        if compared.is_multiple_of(COMPARED_AT_ONCE) {
            self.look_if_due();
            self.follow_links();
        }
    }

    fn meet<P: Family>(&mut self, routing: &Routing, news: &RouteNews<P>, corrected: &mut usize) {
        for (table, hops) in self.parts(news) {
            let mut rib = lock(P::rib(routing));
            let leads = Leads { protocol: news.protocol, hops: &hops, object: news.object };
            match rib.meet(table, news.prefix, news.metric, leads) {
                Met::Known => {}
                Met::Changed => self.correct(&mut rib, table, news.prefix, corrected),
                Met::Behind => {
                    let address = P::ip(news.prefix.first());
                    self.doubled.insert((table, address, news.prefix.bits(), news.metric));
                }
            }
        }
    }

    fn correct<P: Family>(&mut self, rib: &mut RibOf<P>, table: Table, prefix: P, corrected: &mut usize) {
        self.refresh(rib, table, prefix);
        *corrected += 1;
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert((table, P::ip(prefix.first()), prefix.bits()));
        }
        // Workers need not wait for the last of a million corrections.
        if corrected.is_multiple_of(CORRECTIONS_AT_ONCE)
            && let Some(fib) = &mut self.fib
        {
            fib.publish();
        }
    }
}
