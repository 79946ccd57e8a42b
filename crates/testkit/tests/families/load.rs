//! One pool serves three families under random load and reloads. An account that knows only packets
//! says who owns which external endpoint.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::cell::RefCell;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::types::AddressIndex;
use nat::types::Prefix;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::bed6::*;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::hosts::Host;
use crate::hosts::Seen;
use crate::hosts::label;
use crate::hosts::seen;

/// What may change by a reload is drawn anew.
fn changed(mut settings: Settings, random: &mut SmallRng) -> Settings {
    let filtering = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    let pools = [&POOL[..1], &POOL[1..], &POOL[..2]];
    settings = settings
        .addresses(pools[random.random_range(0..3)])
        .filtering(filtering[random.random_range(0..3)])
        .pooling(if random.random() { Pooling::Paired } else { Pooling::Arbitrary });
    let last = 10_063 + 64 * random.random_range(0..4);
    settings = settings.ports(10_000, last);
    settings.pools[0].reuse_delay = Duration::from_secs([0, 2, 5][random.random_range(0..3)]);
    settings.pools[0].allocation = match random.random_range(0..3) {
        0 => Allocation::Blocks(Blocks {
            size: BlockSize::MIN,
            per_subscriber_max: random.random_range(1..4),
            idle: Duration::from_secs(5),
        }),
        _ => settings.pools[0].allocation,
    };
    let limits = [u32::MAX, random.random_range(3..20)];
    settings.subscriber.ports_max = [limits[random.random_range(0..2)]; Protocol::COUNT];
    settings.reload.drain_time = random.random::<bool>().then(|| Duration::from_secs(5));
    settings
}

fn first_settings(random: &mut SmallRng) -> Settings {
    let mut settings = settings6().short_timers().limits(|limits| {
        limits.mappings_max = 2_000;
        limits.extra_sessions_max = 2_000;
        limits.flows_max = 1_000;
        limits.external_addresses_max = 8;
    });
    settings.transition.hosts_max = [12, 2_000][random.random_range(0..2)];
    settings.transition.hosts_per_subscriber_max = [2, 100][random.random_range(0..2)];
    changed(settings, random)
}

struct World {
    hosts: Vec<Host>,
    /// Which host last used an external endpoint towards anyone.
    owners: BTreeMap<(Protocol, SocketAddrV4), u16>,
    remotes: BTreeMap<(Protocol, SocketAddrV4), SocketAddrV4>,
    /// Hosts that sent to an external endpoint: the packet may have been refused there, so that no
    /// packet shows the endpoint that its sender got.
    unseen: BTreeSet<(Protocol, u16)>,
    delivered: BTreeMap<&'static str, u32>,
}

impl World {
    fn number(&mut self, host: Host) -> u16 {
        let known = self.hosts.iter().position(|one| *one == host);
        known.unwrap_or_else(|| {
            self.hosts.push(host);
            self.hosts.len() - 1
        }) as u16
    }

    /// What left inside and outside after a packet to `sent_to`, an external endpoint if it is one.
    fn observe(&mut self, [inside, outside]: &[Vec<Vec<u8>>; 2], sent_to: Option<(Protocol, SocketAddrV4)>) {
        let all = inside.iter().map(|packet| (packet, true)).chain(outside.iter().map(|packet| (packet, false)));
        for (packet, is_inside) in all {
            let Some(Seen { protocol, source, destination, sender }) = seen(packet, is_inside) else { continue };
            if let Some(sender) = sender {
                self.owners.insert((protocol, source), sender);
                if let Ok(remote) = destination {
                    self.remotes.insert((protocol, source), remote);
                }
            }
            let (Err((host, _)), Some(sent_to)) = (destination, sent_to) else { continue };
            let receiver = self.number(host);
            if self.owners.get(&sent_to) != Some(&receiver) && self.unseen.remove(&(sent_to.0, receiver)) {
                self.owners.insert(sent_to, receiver);
            }
            let owner = self.owners.get(&sent_to).map(|owner| self.hosts[usize::from(*owner)]);
            assert_eq!(Some(host), owner, "{sent_to:?} belongs to another host: {packet:02x?}");
            let family = match host {
                Host::V4(_) => "nat44",
                Host::Nat64(_) => "nat64",
                Host::Home(..) => "dslite",
            };
            *self.delivered.entry(family).or_default() += 1;
        }
    }

    fn sends_from_inside(&mut self, bed: &mut Bed6, random: &mut SmallRng, to: SocketAddrV4, is_hairpin: bool) {
        let host = Host::random(random);
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp][random.random_range(0..3)];
        let flags = [Flags::SYN, Flags::SYN, Flags::ACK, Flags::FIN.union(Flags::ACK), Flags::RST];
        let flags = flags[random.random_range(0..flags.len())];
        let number = self.number(host);
        if is_hairpin {
            self.unseen.insert((protocol, number));
        }
        let payload = label(number);
        let packet = host.packet(protocol, random.random_range(5_000..5_010), to, flags, &payload);
        let worker = random.random_range(0..bed.shards().len());
        let left = bed.receive(worker, topology::INSIDE, &packet);
        self.observe(&left, is_hairpin.then_some((protocol, to)));
    }

    fn sends_from_outside(&mut self, bed: &mut Bed6, random: &mut SmallRng) {
        let Some(nth) = self.owners.len().checked_sub(1).map(|last| random.random_range(0..=last)) else { return };
        let Some(&(protocol, external)) = self.owners.keys().nth(nth) else { return };
        let stranger = at(E2, 7_777);
        let remote = self.remotes.get(&(protocol, external)).copied().filter(|_| random.random_bool(0.9));
        let from = remote.unwrap_or(stranger);
        let packet = match protocol {
            Protocol::Tcp => build::tcp(from, external, Flags::SYN.union(Flags::ACK)).sequence(9).build(),
            _ => build::udp(from, external).payload(b"answer").build(),
        };
        let worker = random.random_range(0..bed.shards().len());
        let left = bed.receive(worker, topology::OUTSIDE, &packet);
        self.observe(&left, Some((protocol, external)));
    }

    fn step(&mut self, bed: &mut Bed6, random: &mut SmallRng) {
        match random.random_range(0..10) {
            0..5 => {
                let to = at([E1, E2][random.random_range(0..2)], random.random_range(80..84));
                self.sends_from_inside(bed, random, to, false);
            }
            5 => {
                let nth = random.random_range(0..self.owners.len().max(1));
                if let Some((_, external)) = self.owners.keys().nth(nth).copied() {
                    self.sends_from_inside(bed, random, external, true);
                }
            }
            _ => self.sends_from_outside(bed, random),
        }
    }
}

/// No external endpoint has two mappings, and every number has its host.
fn check_owners(bed: &Bed6) {
    let mut owned = BTreeSet::new();
    for view in bed.mapping_views() {
        let is_number = view.internal.address.to_bits() >= nat::types::HOSTS_FIRST;
        assert_eq!(is_number, view.host.is_some(), "a number with a host: {view:?}");
        let external = (view.protocol as u8, view.external.address, view.external.port);
        assert!(owned.insert(external), "{view:?} has the endpoint of another mapping");
    }
}

fn run(seed: u64) -> BTreeMap<&'static str, u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    let workers = [1, 2, 4][random.random_range(0..3)];
    let mut settings = first_settings(&mut random);
    let mut bed = Bed6::with_workers(settings.clone(), workers);
    let mut world = World {
        hosts: Vec::new(),
        owners: BTreeMap::new(),
        remotes: BTreeMap::new(),
        unseen: BTreeSet::new(),
        delivered: BTreeMap::new(),
    };
    for step in 0..400 {
        world.step(&mut bed, &mut random);
        if random.random_bool(0.03) {
            let left = bed.advance(Duration::from_millis(random.random_range(100..6_000)));
            world.observe(&left, None);
        }
        if random.random_bool(0.02) {
            settings = changed(settings, &mut random);
            let during = RefCell::new((&mut world, &mut random));
            let outcome = bed.reload(settings.clone(), |bed| {
                let (world, random) = &mut *during.borrow_mut();
                world.step(bed, random);
            });
            assert!(outcome.is_ok(), "seed {seed}: {outcome:?}");
        }
        if step % 20 == 0 {
            check_owners(&bed);
        }
    }
    bed.advance(Duration::from_secs(120));
    assert!(bed.shards().iter().all(Shard::is_empty), "seed {seed}: nothing is left");
    let shared = bed.shared();
    let addresses = (0..shared.address_count() as u32).map(AddressIndex);
    let used = addresses.flat_map(|address| Protocol::ALL.map(|protocol| shared.ports_used(address, protocol)));
    assert_eq!(used.map(u64::from).sum::<u64>(), 0, "seed {seed}: no port is left");
    world.delivered
}

#[test]
fn no_endpoint_has_two_owners_under_load_and_reloads() {
    let total = RefCell::new(BTreeMap::new());
    for_each_seed(40, |seed| {
        for (family, count) in run(seed) {
            *total.borrow_mut().entry(family).or_insert(0) += count;
        }
    });
    let total = total.into_inner();
    assert!(total.len() == 3 && total.values().all(|count| *count > 50), "each family got answers: {total:?}");
}

#[test]
fn three_families_fill_one_pool_to_the_last_port() {
    for workers in [1, 2, 4] {
        let mut random = SmallRng::seed_from_u64(workers as u64);
        let mut settings = settings6().addresses(&POOL[..1]).ports(10_000, 10_499).pooling(Pooling::Arbitrary);
        settings.pools[0].reuse_delay = Duration::ZERO;
        let mut bed = Bed6::with_workers(settings, workers);
        let mut families = BTreeMap::new();
        for n in 0..600_u32 {
            let host = match n % 3 {
                0 => Host::V4((u32::from_be_bytes([100, 64, 1, 0]) + n).into()),
                1 => Host::Nat64(v6("2001:db8:c::") + (u128::from(n) << 72) + 1),
                _ => Host::Home(v6("2001:db8:d::") + (u128::from(n) << 72) + 1, [192, 168, 1, 2].into()),
            };
            let packet = host.packet(Protocol::Udp, 5_000, at(E1, 53), Flags::SYN, b"x");
            bed.receive(random.random_range(0..workers), topology::INSIDE, &packet);
            let expected = if n < 500 { Verdict::Outbound } else { Verdict::PortsExhausted };
            assert_eq!(bed.verdict(), Some(expected), "{host:?}, the {n}th");
            *families.entry(n % 3).or_insert(0) += u32::from(n < 500);
        }
        check_owners(&bed);
        assert_eq!(bed.mapping_views().len(), 500);
        assert_eq!(families.into_values().collect::<Vec<u32>>(), [167, 167, 166]);
        assert!(Prefix::HOSTS.contains(nat::types::HOSTS_FIRST.into()));
    }
}
