//! What the thread does while it compares all routes with the kernel's.

use std::sync::Mutex;

use nat::settings::Route;

use super::compare::COMPARED_AT_ONCE;
use super::compare::Cause;
use super::compare::Source;
use super::*;
use crate::below::Seen;
use crate::routing::family::Family;
use crate::routing::rib::Hop;
use crate::routing::rib::HopState;
use crate::routing::rib::KernelRoute;

const LAN: usize = 0;
const WAN: usize = 1;
const SECOND_WAN: InterfaceId = InterfaceId(2);

/// By interface: whether its port has link.
type Links = Arc<Mutex<Vec<bool>>>;

/// The kernel's routes, read until the follower has seen what changes meanwhile.
struct Endless {
    change: Box<dyn FnMut()>,
    is_seen: Box<dyn Fn() -> bool>,
    read: usize,
}

impl Source for Endless {
    fn routes<P: Family>(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        (self.change)();
        // There is an end, so that a follower that does not look fails the test.
        while !(self.is_seen)() && self.read < 2 * COMPARED_AT_ONCE {
            // No route at all.
            each(&[]);
            self.read += 1;
        }
        Ok(())
    }

    fn next_hops(&mut self, _: impl FnMut(&[u8])) -> io::Result<()> {
        Ok(())
    }
}

/// Two interfaces outside, with a static default route over the first and one of the kernel over
/// the second. There are no pools, so nothing is announced to the kernel of the machine.
fn follower(links: &Links) -> (Follower, Arc<Routing>) {
    follower_of(links, true)
}

/// `live_routes`: whether the routes of the kernel count.
fn follower_of(links: &Links, live_routes: bool) -> (Follower, Arc<Routing>) {
    let mut settings = crate::routing::rib::tests::settings();
    settings.live_routes = live_routes;
    settings.interfaces.push(settings.interfaces[WAN].clone());
    let next_hop = core::net::Ipv4Addr::new(192, 0, 2, 254);
    settings.routes = vec![Route { prefix: Prefix::ALL, next_hop, interface: InterfaceId(WAN as u16) }];
    let shared = Arc::new(Shared::new(settings, 1).unwrap());
    let routing = Arc::new(Routing::new(&shared));
    let seen = Arc::clone(links);
    let health = move |_: &Seen| {
        let up = lock(&seen).clone();
        Health {
            now: nat::Instant::default(),
            ports_up: up.clone(),
            interfaces_up: up,
            devices_below: BTreeSet::new(),
            devices_down: BTreeSet::new(),
            devices_down6: BTreeSet::new(),
            workers_alive: true,
            log_healthy: true,
        }
    };
    let record = Record::beside(&std::env::temp_dir().join(format!("natrix-keeper-{}.sock", std::process::id())));
    let parts = (Devices::default(), record);
    let own = Arc::new(OwnAddresses::new(shared.settings(), |_| None, |_| false));
    let shared = Box::new(move || Arc::clone(&shared));
    let of_all = (Arc::clone(&routing), own);
    let mut follower = Follower::new(of_all, shared, Box::new(health), parts, Log::silent()).expect("sockets");
    // Whatever the links of the machine do.
    follower.links = Netlink::open(&[netlink::NEXT_HOPS]).expect("a socket");
    let hop = Hop { interface: SECOND_WAN, gateway: 7, weight: 1 };
    let route = KernelRoute { protocol: 186, metric: 20, hops: vec![hop], object: None };
    lock(&routing.rib).set_kernel(Table::Outside, Prefix::ALL, &[route]);
    follower.refresh_all(|_| ());
    (follower, routing)
}

fn default_route(routing: &Routing) -> Vec<InterfaceId> {
    let rib = lock(&routing.rib);
    rib.best(Table::Outside, Prefix::ALL).unwrap_or_default().iter().map(|hop| hop.interface).collect()
}

#[test]
fn a_link_goes_down_while_all_routes_are_compared() {
    let links: Links = Arc::new(Mutex::new(vec![true; 3]));
    let (mut follower, routing) = follower(&links);
    follower.look();
    assert_eq!((routing.pools().withheld, default_route(&routing)), (None, vec![InterfaceId(WAN as u16)]));

    let goes_down = |interface: usize| {
        let links = Arc::clone(&links);
        Box::new(move || lock(&links)[interface] = false)
    };
    let of = Arc::clone(&routing);
    let is_seen = Box::new(move || default_route(&of) == [SECOND_WAN]);
    let mut reader = Endless { change: goes_down(WAN), is_seen, read: 0 };
    follower.look_at = Instant::now();
    follower.compare(&mut reader, Cause::Time);
    assert!(reader.read <= COMPARED_AT_ONCE, "seen after {} routes, with no end of them", reader.read);
    let fib = follower.fib.as_ref().expect("live routes");
    assert!(fib.agrees(&*lock(&routing.rib), follower.settings_of.settings()), "the workers have the other route");

    let of = Arc::clone(&routing);
    let is_seen = Box::new(move || of.pools().withheld == Some(Withheld::NoLink));
    let mut reader = Endless { change: goes_down(LAN), is_seen, read: 0 };
    follower.look_at = Instant::now();
    follower.compare(&mut reader, Cause::Time);
    assert!(reader.read <= COMPARED_AT_ONCE, "seen after {} routes, with no end of them", reader.read);
}

#[test]
fn links_are_followed_without_routes_of_the_kernel() {
    let links: Links = Arc::new(Mutex::new(vec![true; 3]));
    let (mut follower, routing) = follower_of(&links, false);
    let state = |interface: usize| {
        let hop = Hop { interface: InterfaceId(interface as u16), gateway: 0, weight: 1 };
        lock(&routing.rib).state(&hop)
    };
    follower.look();
    assert_eq!([state(LAN), state(WAN)], [HopState::Usable; 2]);
    lock(&links)[WAN] = false;
    follower.look();
    follower.follow_links();
    assert_eq!([state(LAN), state(WAN)], [HopState::Usable, HopState::NoLink]);
    lock(&links)[WAN] = true;
    follower.look();
    assert_eq!(state(WAN), HopState::Usable);
}

#[test]
fn only_what_no_message_explains_counts_as_corrected() {
    let (mut follower, routing) = follower(&Arc::new(Mutex::new(vec![true; 3])));
    follower.look_at = Instant::now() + Duration::from_secs(3_600);
    let mut compare = |cause: Cause, is_told: bool| {
        let hop = Hop { interface: SECOND_WAN, gateway: 7, weight: 1 };
        let route = KernelRoute { protocol: 186, metric: 20, hops: vec![hop], object: None };
        lock(&routing.rib).set_kernel(Table::Outside, Prefix::ALL, &[route]);
        // The kernel has no route any more.
        let mut reader = Endless { change: Box::new(|| ()), is_seen: Box::new(|| true), read: 0 };
        follower.compare(&mut reader, cause);
        if is_told {
            let news = |table| RouteNews {
                is_there: false,
                replaces: false,
                is_appended: false,
                table,
                prefix: Prefix::ALL,
                metric: 20,
                protocol: 186,
                hops: vec![(5, 7, 1)],
                object: None,
            };
            follower.interface_of = HashMap::from([(5, (SECOND_WAN, netlink::TABLE_MAIN))]);
            follower.take_in(&[news(netlink::TABLE_MAIN)]);
        }
        follower.count_suspects();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (count(&routing.counters.corrected), count(&routing.counters.reread))
    };
    assert_eq!(compare(Cause::Time, false), (0, 0), "the first comparison reads what was there before");
    assert_eq!(compare(Cause::Asked, false), (0, 1), "a device has changed");
    assert_eq!(compare(Cause::Time, true), (0, 1), "the message was on its way");
    assert_eq!(compare(Cause::Time, false), (1, 1), "no message has said why");
    assert_eq!(compare(Cause::Lost, true), (2, 1), "messages were lost");
}

#[test]
fn a_device_changes_while_all_routes_are_compared() {
    let (mut follower, routing) = follower(&Arc::new(Mutex::new(vec![true; 3])));
    follower.look_at = Instant::now() + Duration::from_secs(3_600);
    // As if the first device of the kernel, `lo`, were one of Natrix.
    follower.devices.interfaces.push((InterfaceId(0), 1));
    // The answer stands for what the kernel reports by itself.
    follower.links.send(netlink::all_links(), netlink_packet_core::NLM_F_DUMP).expect("the kernel's links");
    let is_seen = Box::new(move || routing.looks.load(Ordering::Relaxed) > 0);
    let mut reader = Endless { change: Box::new(|| ()), is_seen, read: 0 };
    follower.compare(&mut reader, Cause::Time);
    assert!(reader.read <= COMPARED_AT_ONCE, "seen after {} routes, with no end of them", reader.read);
    assert!(follower.compares_now, "routes that went with the device are found by another comparison");
}

#[test]
fn devices_of_others_that_change_cost_no_comparison() {
    let (mut follower, _) = follower(&Arc::new(Mutex::new(vec![true; 3])));
    follower.look_at = Instant::now() + Duration::from_secs(3_600);
    let change = |follower: &mut Follower| {
        follower.links.send(netlink::all_links(), netlink_packet_core::NLM_F_DUMP).expect("the kernel's links");
        follower.look_if_due();
        (follower.seen.links.is_some(), follower.reads_links, follower.compares_now)
    };
    assert_eq!(change(&mut follower), (false, true, false), "read at the next look");
    follower.look_at = Instant::now();
    assert_eq!(change(&mut follower), (true, false, false));
    follower.look_at = Instant::now() + Duration::from_secs(3_600);
    (follower.seen.links, follower.below) = (None, BTreeSet::from([1]));
    assert_eq!(change(&mut follower), (true, false, false), "below a port: read at once");
    follower.masters = BTreeSet::from([1]);
    assert!(change(&mut follower).2, "a VRF device of Natrix");
}
