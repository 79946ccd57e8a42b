//! The event log against the engine's own state: the records give every mapping at any instant, and
//! if records cannot be written, what happens is what the configuration says.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::event::BackPressure;
use nat::event::Event;
use nat::event::EventKind;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Forward;
use nat::types::AddressIndex;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::view::Filter;
use nat::view::Query;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::ledger::ExternalEndpoint;
use testkit::ledger::Holder;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SUBSCRIBERS: u32 = 60;

fn subscriber(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0100 + number)
}

fn with_policy(back_pressure: BackPressure) -> Settings {
    let mut settings = settings().short_timers();
    settings.events.back_pressure = back_pressure;
    settings
}

/// The live mappings of the engine: external endpoint and holder.
fn alive(bed: &Bed) -> HashMap<ExternalEndpoint, Holder> {
    let mut held = HashMap::new();
    for (worker, shard) in bed.shards().enumerate() {
        let mut all = Query::all(Filter::default());
        shard.view().mappings_page(bed.now(), &mut all);
        for view in all.records {
            let holder =
                Holder { realm: view.realm, subscriber: view.internal.address, port: view.internal.port, worker };
            let before = held.insert((view.external.address, view.protocol, view.external.port), holder);
            assert!(before.is_none(), "the engine gave {} to two", view.external);
        }
    }
    held
}

/// The endpoints that have an owner in the port table, with the worker.
fn owned(bed: &Bed) -> HashMap<ExternalEndpoint, usize> {
    let shared = bed.shared();
    let mut owned = HashMap::new();
    for index in (0..shared.address_count() as u32).map(AddressIndex) {
        for protocol in Protocol::ALL {
            for port in 0..=u16::MAX {
                if let Some((worker, _)) = shared.owner(index, protocol, port) {
                    owned.insert((shared.address(index), protocol, port), worker.index());
                }
            }
        }
    }
    owned
}

/// A packet of some subscriber to somebody.
fn any_packet(random: &mut SmallRng) -> Vec<u8> {
    let from = at(subscriber(random.random_range(0..SUBSCRIBERS)), random.random_range(2_000..2_040));
    let to = at([198, 51, 100, random.random_range(1..5)].into(), 443);
    match random.random_range(0..3) {
        0 => build::udp(from, to).build(),
        1 => build::tcp(from, to, [Flags::SYN, Flags::RST, Flags::ACK][random.random_range(0..3)]).build(),
        _ => build::echo_request(*from.ip(), *to.ip(), from.port()).build(),
    }
}

/// Sends so many packets in bursts of any size, to any workers.
fn churn(bed: &mut Bed, random: &mut SmallRng, packets: usize) {
    for _ in 0..packets {
        bed.offer(Side::Inside, &any_packet(random));
        if random.random_ratio(1, 20) {
            bed.settle();
        }
    }
    bed.settle();
    bed.take_outside();
    bed.take_inside();
}

fn read_all(bed: &mut Bed, ledger: &mut Ledger, workers: usize) {
    for worker in 0..workers {
        ledger.read(worker, &bed.take_events(worker, usize::MAX));
    }
}

/// Everything the engine says now is what the books say of now.
fn compare(bed: &Bed, ledger: &Ledger) -> HashMap<ExternalEndpoint, Holder> {
    let (booked, alive) = (ledger.at(bed.now()), alive(bed));
    for (endpoint, holder) in &alive {
        assert_eq!(booked.get(endpoint), Some(holder), "{endpoint:?} is held and booked");
    }
    let owned = owned(bed);
    assert_eq!(owned.len(), booked.len(), "what has an owner is booked, and nothing else");
    for (endpoint, holder) in &booked {
        assert_eq!(owned.get(endpoint), Some(&holder.worker), "{endpoint:?} is booked and owned");
    }
    alive
}

#[test]
fn mappings_of_any_instant_can_be_rebuilt_from_events() {
    covers!("6888-4", "T15");
    for_each_seed(6, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = [1, 2, 8][seed as usize % 3];
        let settings = with_policy(BackPressure::Refuse);
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random).record_events(1 << 14);
        let mut ledger = Ledger::default();
        let mut seen: Vec<(Instant, HashMap<ExternalEndpoint, Holder>)> = Vec::new();
        for _ in 0..30 {
            churn(&mut bed, &mut random, 120);
            read_all(&mut bed, &mut ledger, workers);
            seen.push((bed.now(), compare(&bed, &ledger)));
            bed.advance(Duration::from_millis(random.random_range(1..9_000)));
        }
        bed.advance_secs(60);
        bed.sweep();
        read_all(&mut bed, &mut ledger, workers);
        assert!(ledger.at(bed.now()).is_empty(), "in the end nobody has anything");
        // Once more from the times alone, like a reader of the log years later.
        for (at, alive) in &seen {
            let booked = ledger.at(*at);
            for (endpoint, holder) in alive {
                assert_eq!(booked.get(endpoint), Some(holder), "{endpoint:?} at {at:?}");
            }
        }
        assert_eq!(ledger.lost, 0);
        assert!(ledger.kinds[&EventKind::MappingCreated] > 1_000);
        assert_eq!(ledger.kinds[&EventKind::MappingCreated], ledger.kinds[&EventKind::MappingEnded]);
        let created: u64 = bed.counters().mappings_created.iter().sum();
        assert_eq!(ledger.kinds[&EventKind::MappingCreated], created);
    });
}

#[test]
fn a_log_opened_later_is_complete_by_itself() {
    covers!("6888-4");
    for_each_seed(8, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = [1, 2, 8][seed as usize % 3];
        let mut settings = with_policy([BackPressure::Refuse, BackPressure::Drop][seed as usize % 2]);
        if seed % 4 == 3 {
            let size = BlockSize::of_ports(64).expect("a power of two");
            settings.pools[0].allocation =
                Allocation::Blocks(Blocks { size, per_subscriber_max: 4, idle: Duration::from_secs(5) });
        }
        if seed % 4 > 1 {
            settings = settings.endpoint_dependent(Prefix::ALL, (443, 443));
        }
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random).record_events(1 << 14);
        let mut whole = Ledger::default();
        for _ in 0..10 {
            churn(&mut bed, &mut random, 120);
            read_all(&mut bed, &mut whole, workers);
            bed.advance(Duration::from_millis(random.random_range(1..3_000)));
        }
        // The queues still hold earlier records, or records that come twice.
        churn(&mut bed, &mut random, 120);
        bed.open_event_log();
        let mut later = Ledger::opened();
        let lived = whole.at(bed.now()).len() + whole.flows_at(bed.now()).len() + whole.blocks();
        assert!(lived > 50, "{lived}");
        let mut times = Vec::new();
        for _ in 0..20 {
            churn(&mut bed, &mut random, 10);
            for worker in 0..workers {
                let events = bed.take_events(worker, usize::MAX);
                whole.read(worker, &events);
                later.read(worker, &events);
            }
            times.push(bed.now());
            bed.advance(Duration::from_millis(random.random_range(1..200)));
        }
        assert!(later.is_snapshot_complete(workers), "each worker has reported all");
        assert_eq!((whole.lost, later.lost), (0, 0));
        // At any time since, also before the snapshot was complete.
        for at in times {
            later.assert_says_as(&whole, at);
        }
    });
}

#[test]
fn reporting_existing_state_leaves_room_for_changes() {
    for policy in [BackPressure::Refuse, BackPressure::Drop] {
        let mut bed = Bed::new(with_policy(policy)).record_events(64);
        let mut whole = Ledger::default();
        for port in 5_000..5_300 {
            bed.open_udp(at(I1, port), at(E1, 443));
            read_all(&mut bed, &mut whole, 1);
        }
        bed.open_event_log();
        // Nobody reads for a while.
        for _ in 0..50 {
            bed.advance(Duration::from_millis(1));
        }
        for port in 6_000..6_010 {
            bed.open_udp(at(I1, port), at(E1, 443));
        }
        let mut later = Ledger::opened();
        let begun = bed.now();
        for _ in 0..200 {
            let events = bed.take_events(0, 8);
            whole.read(0, &events);
            later.read(0, &events);
            bed.advance(Duration::from_millis(1));
        }
        assert!(later.is_snapshot_complete(1));
        later.assert_says_as(&whole, begun);
        assert_eq!((bed.count(Verdict::LogFull), whole.at(begun).len(), whole.lost), (0, 310, 0));
    }
}

#[test]
fn without_a_log_nothing_begins_or_ends_unrecorded() {
    covers!("6888-4");
    for_each_seed(4, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = 1 + seed as usize % 4;
        let settings = with_policy(BackPressure::Refuse);
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random).record_events(64);
        let mut ledger = Ledger::default();
        for _ in 0..60 {
            churn(&mut bed, &mut random, 60);
            if random.random() {
                // The writer gets some of it done.
                for worker in 0..workers {
                    let max = random.random_range(0..64);
                    ledger.read(worker, &bed.take_events(worker, max));
                }
            }
            bed.advance(Duration::from_millis(random.random_range(1..3_000)));
        }
        assert!(bed.counters().of(Verdict::LogFull) > 0, "there was a time without room");
        // It recovers: all that waits is written, then as if nothing had been.
        for _ in 0..200 {
            read_all(&mut bed, &mut ledger, workers);
            bed.advance_secs(1);
        }
        bed.sweep();
        read_all(&mut bed, &mut ledger, workers);
        compare(&bed, &ledger);
        assert!(ledger.at(bed.now()).is_empty());
        let created: u64 = bed.counters().mappings_created.iter().sum();
        assert_eq!(ledger.kinds[&EventKind::MappingCreated], created, "each has its record");
        assert_eq!(ledger.kinds[&EventKind::MappingEnded], created, "and its end");
        bed.inside(&build::udp(at(I1, 5_000), at(E1, 443)).build());
        assert_eq!(bed.take_outside().len(), 1);
    });
}

#[test]
fn block_records_name_the_owner_of_every_port() {
    covers!("6888-4");
    for_each_seed(4, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = 1 + seed as usize % 4;
        let mut settings = with_policy(BackPressure::Refuse);
        let blocks = Blocks {
            size: BlockSize::of_ports(64).expect("a power of two"),
            per_subscriber_max: 4,
            idle: Duration::from_secs(5),
        };
        settings.pools[0].allocation = Allocation::Blocks(blocks);
        // A queue that is too short now and then.
        let queue = [64, 1 << 14][seed as usize % 2];
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random).record_events(queue);
        let mut ledger = Ledger::default();
        for _ in 0..30 {
            churn(&mut bed, &mut random, 120);
            read_all(&mut bed, &mut ledger, workers);
            for ((address, protocol, port), holder) in alive(&bed) {
                let block =
                    ledger.block_holder(address, port).map(|block| (block.realm, block.subscriber, block.worker));
                let expected = (holder.realm, holder.subscriber, holder.worker);
                assert_eq!(block, Some(expected), "{} {address}:{port}", protocol.name());
            }
            let leased = |shard: &nat::Shard| shard.counters().blocks_leased - shard.counters().blocks_returned;
            assert_eq!(ledger.blocks() as u64, bed.shards().map(leased).sum::<u64>());
            bed.advance(Duration::from_millis(random.random_range(1..9_000)));
            read_all(&mut bed, &mut ledger, workers);
        }
        for _ in 0..400 {
            bed.advance_secs(1);
            read_all(&mut bed, &mut ledger, workers);
        }
        assert_eq!(ledger.blocks(), 0, "in the end all blocks are back");
        assert!(ledger.lost == 0 || queue == 64, "only refusals may be lost, and only where there is no room for them");
        assert!(!ledger.kinds.contains_key(&EventKind::MappingCreated), "a mapping in a block needs no record");
        let created: u64 = bed.counters().mappings_created.iter().sum();
        assert!(ledger.kinds[&EventKind::BlockLeased] * 4 < created, "few records for {created} mappings");
    });
}

#[test]
fn mappings_in_blocks_are_recorded_where_that_is_asked_for() {
    let mut settings = with_policy(BackPressure::Refuse);
    settings.pools[0].allocation = Allocation::Blocks(Blocks {
        size: BlockSize::of_ports(64).expect("a power of two"),
        per_subscriber_max: 4,
        idle: Duration::from_secs(5),
    });
    settings.events.block_mappings = true;
    let mut bed = Bed::new(settings).record_events(1 << 10);
    bed.inside(&build::udp(at(I1, 5_000), at(E1, 443)).build());
    let kinds: Vec<EventKind> = bed.take_events(0, usize::MAX).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::BlockLeased, EventKind::MappingCreated]);
}

#[test]
fn a_static_mapping_that_wakes_is_recorded_in_any_pool() {
    let inside = Ipv4Addr::new(100, 64, 0, 80);
    for in_blocks in [false, true] {
        let mut settings = with_policy(BackPressure::Refuse);
        if in_blocks {
            settings.pools[0].allocation = Allocation::Blocks(Blocks {
                size: BlockSize::of_ports(64).expect("a power of two"),
                per_subscriber_max: 4,
                idle: Duration::from_secs(5),
            });
        }
        settings.forwards = vec![Forward {
            realm: RealmId::default(),
            protocol: Protocol::Udp,
            external: POOL[1],
            ports: (8_000, 8_000),
            inside: inside.into(),
            inside_port: 80,
            admission: Admission::Anyone,
        }];
        let mut bed = Bed::new(settings).record_events(1 << 10);
        bed.outside(&build::udp(at(E1, 443), at(POOL[1], 8_000)).build());
        assert_eq!(bed.take_inside().len(), 1);
        let events = bed.take_events(0, usize::MAX);
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].kind, events[0].subscriber, events[0].internal_port),
            (EventKind::StaticCreated, inside, 80)
        );
        assert_eq!((events[0].external, events[0].first_port, events[0].last_port), (POOL[1], 8_000, 8_000));
        bed.advance_secs(60);
        let kinds: Vec<EventKind> = bed.take_events(0, usize::MAX).iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::StaticEnded]);
    }
}

#[test]
fn a_full_log_refuses_new_mappings_only_and_says_so() {
    let mut bed = Bed::new(with_policy(BackPressure::Refuse)).record_events(16);
    let mut port = 5_000;
    let first = loop {
        bed.inside(&build::udp(at(I1, port), at(E1, 443)).build());
        let out = bed.take_outside();
        if out.is_empty() {
            break port;
        }
        port += 1;
    };
    assert!(first > 5_002);
    let reported = bed.take_inside();
    assert_eq!(reported.len(), 1);
    assert!(is_icmp(&reported[0], 3, 1), "the code for lack of resources");
    assert_eq!(bed.counters().of(Verdict::LogFull), 1);
    // The list of subscribers shows the refusal, too, and also a subscriber that got nothing.
    let refused = |view: &SubscriberView| {
        SubscriberView::CAUSES.iter().zip(view.refused).filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    assert_eq!(refused(&bed.subscribers()[0]), [(&Verdict::LogFull, 1)]);
    bed.inside(&build::udp(at(I2, 5_000), at(E1, 443)).build());
    bed.take_inside();
    let [new_subscriber] = &bed.refused_subscribers()[..] else { panic!("{:?}", bed.refused_subscribers()) };
    assert_eq!((new_subscriber.address, refused(new_subscriber)), (I2, vec![(&Verdict::LogFull, 1)]));
    // Who has a mapping goes on, and opens sessions in it.
    bed.inside(&build::udp(at(I1, 5_000), at(E1, 443)).build());
    bed.inside(&build::udp(at(I1, 5_000), at(E2, 443)).build());
    assert_eq!(bed.take_outside().len(), 2);
}

#[test]
fn a_forward_on_a_foreign_port_is_refused_by_a_full_log() {
    let settings = with_policy(BackPressure::Refuse);
    let mut bed = Bed::new(settings.clone()).workers(2).record_events(16);
    let on = |bed: &Bed, worker: usize, n: usize| {
        let hosts = (1..250).map(|host| Ipv4Addr::new(100, 64, 1, host));
        let mut his = hosts.filter(|host| bed.shared().worker_of_subscriber((*host).into()).index() == worker);
        his.nth(n).expect("there are some")
    };
    let (before, other, server) = (on(&bed, 0, 0), on(&bed, 0, 1), on(&bed, 1, 0));
    let external = bed.open_udp(at(before, 5_000), at(E1, 443));
    let mut with_forward = settings;
    with_forward.forwards = vec![Forward {
        realm: RealmId::default(),
        protocol: Protocol::Udp,
        external: *external.ip(),
        ports: (external.port(), external.port()),
        inside: server.into(),
        inside_port: 80,
        admission: Admission::Anyone,
    }];
    bed.reload(with_forward);
    // Nobody reads: beginnings fill their part of the log, and ends the rest.
    for port in 5_000..5_020 {
        bed.inside(&build::udp(at(other, port), at(E1, 443)).build());
    }
    bed.take_outside();
    bed.take_inside();
    assert!(bed.counters().of(Verdict::LogFull) > 0);
    // The subscriber's mapping is the last to run out.
    bed.advance_secs(1);
    assert_eq!(bed.open_udp(at(before, 5_000), at(E1, 443)), external);
    let longest = bed.settings().timeouts.longest();
    bed.advance(longest);
    bed.advance(longest);
    let known = bed.counters().of(Verdict::LogFull);
    let reported = |bed: &Bed| {
        let all = bed.subscribers().into_iter().chain(bed.refused_subscribers());
        let his: Vec<_> = all.filter(|view| view.address == server).collect();
        his.iter().map(|view| (view.worker.index(), view.refused.iter().sum::<u32>())).collect::<Vec<_>>()
    };
    assert_eq!(reported(&bed), []);
    bed.outside(&build::udp(at(E2, 443), external).build());
    assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
    assert_eq!(bed.counters().of(Verdict::LogFull), known + 1);
    assert_eq!(reported(&bed), [(1, 1)], "once, and on the worker that would have the mapping");
    let refusals = bed.take_events(1, usize::MAX);
    let is_his = |event: &&Event| event.kind == EventKind::Refused && event.subscriber == server;
    bed.finish_events();
    let refusals = refusals.into_iter().chain(bed.take_events(1, usize::MAX)).collect::<Vec<_>>();
    assert_eq!(refusals.iter().filter(is_his).count(), 1, "{refusals:?}");
    // When the log is read again, the port is given up and the forward is activated.
    bed.take_events(0, usize::MAX);
    bed.outside(&build::udp(at(E2, 443), external).build());
    assert_eq!(bed.take_inside().len(), 1);
}

#[test]
fn with_drop_traffic_goes_on_and_gaps_count_lost_records() {
    for_each_seed(4, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = 1 + seed as usize % 3;
        let settings = with_policy(BackPressure::Drop);
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random).record_events(64);
        let mut ledger = Ledger::default();
        for _ in 0..40 {
            churn(&mut bed, &mut random, 100);
            if random.random_ratio(1, 4) {
                read_all(&mut bed, &mut ledger, workers);
            }
            bed.advance(Duration::from_millis(random.random_range(1..3_000)));
        }
        read_all(&mut bed, &mut ledger, workers);
        bed.finish_events();
        read_all(&mut bed, &mut ledger, workers);
        assert_eq!(bed.counters().of(Verdict::LogFull), 0, "nobody is refused");
        let counted = bed.shards().map(|shard| shard.event_counters());
        let lost: u64 = counted.map(|counters| counters.lost).sum();
        assert!(lost > 0);
        assert_eq!(ledger.lost, lost, "gaps count all missing records");
    });
}

#[test]
fn refused_fragments_are_logged_with_their_source() {
    covers!("8158-E11");
    let mut bed = Bed::new(with_policy(BackPressure::Refuse)).record_events(1 << 10);
    let external = bed.open_udp(at(I1, 5_000), at(E1, 9));
    for id in 0..6_000_u16 {
        let later = |packet: build::Builder| packet.identification(id).payload_length(100).fragment_bits(185).build();
        bed.inside(&later(build::udp(at(I2, 9), at(E2, 9))));
        bed.outside(&later(build::udp(at(E2, 9), external)));
    }
    let events = bed.take_events(0, usize::MAX);
    let mut ledger = Ledger::default();
    ledger.read(0, &events);
    let refused: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Refused).collect();
    let of = |subscriber| refused.iter().filter(|event| event.subscriber == subscriber).count();
    assert!((1..=2).contains(&of(I2)), "once for each cause: {refused:?}");
    assert!((1..=2).contains(&of(Ipv4Addr::UNSPECIFIED)), "those from outside are nobody's: {refused:?}");
    assert!(refused.iter().all(|event| event.cause.name().starts_with("fragment_")));
    bed.finish_events();
    ledger.read(0, &bed.take_events(0, usize::MAX));
    let counted = bed.count(Verdict::FragmentTableFull) + bed.count(Verdict::FragmentBuffersFull);
    assert!(counted > 1_000);
    assert_eq!(ledger.packets_refused, counted, "and each is counted");
}

#[test]
fn refusals_and_exhausted_pools_are_logged_with_packets() {
    covers!("6888-REQ-11c");
    let ports = 20;
    let mut settings = with_policy(BackPressure::Refuse).ports(10_000, 10_000 + ports - 1).addresses(&POOL[..1]);
    settings.pools[0].name = "small".into();
    let mut bed = Bed::new(settings).record_events(1 << 10);
    for port in 0..ports {
        bed.inside(&build::udp(at(I1, 5_000 + port), at(E1, 443)).build());
    }
    for round in 0..50 {
        bed.inside(&build::udp(at(I1, 6_000 + round), at(E1, 443)).build());
        bed.inside(&build::udp(at(I2, 6_000 + round), at(E1, 443)).build());
        bed.advance(Duration::from_millis(10));
    }
    let events = bed.take_events(0, usize::MAX);
    let refused: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Refused).collect();
    assert_eq!(refused.len(), 2, "one for each subscriber, although each was refused fifty times");
    assert_eq!(refused[0].subscriber, I1);
    assert_eq!(refused[0].cause.name(), "ports_exhausted");
    assert_eq!(refused[1].subscriber, I2);
    let exhausted = events.iter().filter(|event| event.kind == EventKind::PoolExhausted).count();
    assert!((1..=2).contains(&exhausted), "{exhausted}: by address, once in the interval");
    let mut ledger = Ledger::default();
    ledger.read(0, &events);
    bed.finish_events();
    ledger.read(0, &bed.take_events(0, usize::MAX));
    assert_eq!(ledger.packets_refused, 100, "and none of them is forgotten");
    assert_eq!(ledger.packets_refused, bed.counters().of(Verdict::PortsExhausted));
}

#[test]
fn no_record_names_the_remote_endpoint() {
    covers!("6888-REQ-12");
    let mut bed = Bed::new(with_policy(BackPressure::Refuse)).record_events(1 << 10);
    let remote: SocketAddrV4 = at(E1, 4_433);
    bed.inside(&build::udp(at(I1, 5_000), remote).build());
    bed.inside(&build::tcp(at(I1, 5_001), remote, Flags::SYN).build());
    bed.inside(&build::echo_request(I1, E1, 77).build());
    bed.advance_secs(60);
    let events = bed.take_events(0, usize::MAX);
    assert_eq!(events.len(), 6);
    for event in &events {
        assert_eq!((event.remote, event.remote_port), (Ipv4Addr::UNSPECIFIED, 0));
        assert_ne!(event.subscriber, E1);
        assert_ne!(event.external, E1);
    }
}
