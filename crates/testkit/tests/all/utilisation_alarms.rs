//! RFC 7422 §3 and RFC 6888 REQ-11: use of pools and subscribers is reported when it crosses a
//! threshold, once each way, in each mode of allocation.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use nat::Duration;
use nat::blocks::BlockSize;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::types::Prefix;
use testkit::topology::prefix;
use testkit::*;
use wire::build;

const FAR: SocketAddrV4 = at(E1, 80);

fn crossings(bed: &mut Bed, workers: usize) -> Vec<(EventKind, Cause, u32)> {
    let events = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect::<Vec<_>>();
    let is_one = |kind| matches!(kind, EventKind::ThresholdReached | EventKind::ThresholdCleared);
    events.into_iter().filter(|event| is_one(event.kind)).map(|event| (event.kind, event.cause, event.amount)).collect()
}

fn open(bed: &mut Bed, subscriber: Ipv4Addr, ports: core::ops::Range<u16>) {
    for port in ports {
        bed.inside(&build::udp(SocketAddrV4::new(subscriber, port), FAR).build());
    }
    bed.take_outside();
    bed.take_inside();
}

/// Long enough for a round over the pools.
fn watch(bed: &mut Bed) {
    for _ in 0..40 {
        bed.advance(Duration::from_millis(100));
    }
}

#[test]
fn a_pool_of_blocks_is_as_full_as_it_is_leased() {
    covers!("6888-REQ-11c");
    for workers in [1, 4] {
        let mut settings = settings().ports(1_024, 2_047).addresses(&POOL[..1]);
        let size = BlockSize::of_ports(64).expect("a size");
        let idle = Duration::from_secs(5);
        settings.pools[0].allocation = Allocation::Blocks(Blocks { size, per_subscriber_max: 1, idle });
        settings.pools[0].threshold = Some(Threshold { high_percent: 75, low_percent: 25 });
        settings.pools[0].reuse_delay = Duration::ZERO;
        let mut bed = Bed::new(settings).workers(workers).record_events(1_000);
        let subscriber = |n: u32| Ipv4Addr::from_bits(0x6440_0100 + n);
        // One mapping each is a block each, of sixteen.
        (0..11).for_each(|n| open(&mut bed, subscriber(n), 5_000..5_001));
        watch(&mut bed);
        assert_eq!(crossings(&mut bed, workers), []);
        open(&mut bed, subscriber(11), 5_000..5_001);
        watch(&mut bed);
        let leased = (EventKind::ThresholdReached, Cause::PoolPorts, 75);
        assert_eq!(crossings(&mut bed, workers), [leased; 3], "blocks are for all three protocols");
        bed.advance_secs(400);
        watch(&mut bed);
        // Blocks go back one by one: the crossing is reported on the way, once for each protocol.
        let over = crossings(&mut bed, workers);
        let is_over = |it: &(EventKind, Cause, u32)| it.0 == EventKind::ThresholdCleared && it.2 <= 25;
        assert!(over.len() == 3 && over.iter().all(is_over), "{over:?}");
    }
}

#[test]
fn blocks_with_shared_ports_count_as_used() {
    covers!("6888-REQ-11c");
    for workers in [1, 4] {
        let mut settings =
            settings().ports(1_024, 2_047).addresses(&POOL[..1]).endpoint_dependent(Prefix::ALL, (443, 443));
        let size = BlockSize::of_ports(64).expect("a size");
        let idle = Duration::from_secs(5);
        settings.pools[0].allocation = Allocation::Blocks(Blocks { size, per_subscriber_max: 1, idle });
        settings.pools[0].threshold = Some(Threshold { high_percent: 75, low_percent: 25 });
        settings.pools[0].reuse_delay = Duration::ZERO;
        settings.pools[0].shared_ports_min = 1;
        settings.limits.flows_max = 10_000;
        settings.timeouts.adapt_above_percent = Some(60);
        let mut bed = Bed::new(settings).workers(workers).record_events(10_000);
        let address = bed.shared().address_index(POOL[0]).expect("an address of the pool");
        let blocks = |bed: &Bed| bed.sessions().iter().map(|flow| flow.external.port / 64).collect::<HashSet<_>>();
        let unleasable = |bed: &Bed| bed.shared().ports_unleasable(address);
        watch(&mut bed);
        let idle_times = |bed: &Bed| bed.shards().map(|shard| shard.timeouts().udp).collect::<Vec<_>>();
        let before = idle_times(&bed);
        // Each has a port of its own towards the one server, so that block after block is taken for
        // them.
        let mut n = 0;
        while blocks(&bed).len() < 12 {
            let flow = at(Ipv4Addr::from_bits(0x6440_0100 + n / 8), 5_000 + (n % 8) as u16);
            bed.inside(&build::udp(flow, at(E1, 443)).build());
            assert_eq!(bed.take_outside().len(), 1, "flow {n}");
            n += 1;
        }
        assert_eq!(
            (unleasable(&bed), bed.shared().ports_leased(address)),
            (12 * 64, 0),
            "{workers} workers, {n} flows"
        );
        watch(&mut bed);
        let reached = (EventKind::ThresholdReached, Cause::PoolPorts, 75);
        assert_eq!(crossings(&mut bed, workers), [reached; 3], "what nobody can lease is out for all three protocols");
        assert!(before.iter().zip(idle_times(&bed)).all(|(before, now)| now < *before), "timers shrink");
        // The rest is leased, to the last block; then nothing is left.
        for owner in 0..4 {
            bed.open_udp(at(Ipv4Addr::from_bits(0x6440_2000 + owner), 5_000), at(E1, 9_999));
        }
        assert_eq!((unleasable(&bed), bed.shared().ports_leased(address)), (12 * 64, 4 * 64));
        let torn = bed.sessions().iter().find(|session| session.shared).map(|flow| flow.external.port).expect("a flow");
        let torn = bed.shared().torn_block(address, torn).expect("a block that nobody can lease");
        assert!(torn.first % 64 == 0 && torn.last == torn.first + 63, "{torn:?}");
        assert!(torn.shared > 0 && torn.others == 0, "{torn:?}");
        let leased = bed.mappings().first().map(|mapping| mapping.external.port).expect("a mapping");
        assert_eq!(bed.shared().torn_block(address, leased), None, "a subscriber's");
        bed.advance_secs(800);
        watch(&mut bed);
        assert_eq!(unleasable(&bed), 0, "shared ports have gone back");
        let over = crossings(&mut bed, workers);
        let is_over = |it: &(EventKind, Cause, u32)| it.0 == EventKind::ThresholdCleared && it.2 <= 25;
        assert!(over.len() == 3 && over.iter().all(is_over), "{over:?}");
    }
}

#[test]
fn a_deterministic_pool_and_its_subscribers_have_thresholds_too() {
    covers!("7422-11", "6888-REQ-11c");
    for workers in [1, 3] {
        let mut settings = settings().ports(1_024, 1_123).addresses(&POOL[..1]);
        let size = BlockSize::of_ports(64).expect("a size");
        let overflow = Blocks { size, per_subscriber_max: 0, idle: Duration::ZERO };
        settings.pools[0].subscribers = vec![prefix([100, 64, 1, 0], 31)];
        settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 0, overflow };
        settings.pools[0].threshold = Some(Threshold { high_percent: 60, low_percent: 40 });
        settings.pools[0].reuse_delay = Duration::ZERO;
        let threshold = Some(Threshold { high_percent: 80, low_percent: 50 });
        settings.subscriber = SubscriberLimits { ports_max: [50; 3], threshold, ..SubscriberLimits::default() };
        let mut bed = Bed::new(settings).workers(workers).record_events(1_000);
        let (one, other) = (Ipv4Addr::new(100, 64, 1, 0), Ipv4Addr::new(100, 64, 1, 1));
        open(&mut bed, one, 5_000..5_039);
        watch(&mut bed);
        assert_eq!(crossings(&mut bed, workers), []);
        open(&mut bed, one, 5_039..5_050);
        watch(&mut bed);
        assert_eq!(crossings(&mut bed, workers), [(EventKind::ThresholdReached, Cause::SubscriberPorts, 80)]);
        open(&mut bed, other, 5_000..5_010);
        watch(&mut bed);
        assert_eq!(crossings(&mut bed, workers), [(EventKind::ThresholdReached, Cause::PoolPorts, 60)]);
        bed.advance_secs(400);
        watch(&mut bed);
        let mut over = crossings(&mut bed, workers);
        over.sort_by_key(|(_, cause, _)| cause.name());
        let over: Vec<_> = over.into_iter().map(|(kind, cause, _)| (kind, cause)).collect();
        let cleared = EventKind::ThresholdCleared;
        assert_eq!(over, [(cleared, Cause::PoolPorts), (cleared, Cause::SubscriberPorts)]);
    }
}
