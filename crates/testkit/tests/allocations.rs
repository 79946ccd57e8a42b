//! After start a worker takes no memory from the allocator and gives none back, whatever passes
//! through it.

#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;

use nat::Duration;
use nat::Verdict;
use nat::settings::Filtering;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

thread_local! {
    static IN_A_WORKER: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // Not there any more while the thread ends; nothing is counted then.
    let _ = IN_A_WORKER.try_with(|inside| {
        if inside.get() {
            let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        }
    });
}

// SAFETY: every call is passed on to the system allocator unchanged; counting touches only
// thread-local cells without destructors, which does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn watched(bed: Bed) -> Bed {
    bed.watch(|inside| IN_A_WORKER.with(|cell| cell.set(inside)))
}

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

/// One of everything.
fn traffic(bed: &mut Bed, round: u16) {
    let (x, y) = (5_000 + round * 8, 6_000 + round * 8);
    let first = bed.open_udp(at(I1, x), at(E1, 9));
    let second = bed.open_udp(at(I2, y), at(E1, 9));
    for remote in 1..40 {
        bed.open_udp(at(I1, x), at([198, 51, 100, remote].into(), 9));
    }
    bed.udp_reaches(at(E1, 9), first, at(I1, x));
    bed.udp_reaches(at(E2, 7777), first, at(I1, x));
    bed.inside(&build::udp(at(I1, x), second).payload(b"hairpin").build());
    bed.take_inside();
    let external = bed.connect(at(I1, x + 1), at(E1, 80));
    bed.outside(&build::tcp(at(E1, 80), external, Flags::RST).sequence(5_001).build());
    bed.take_inside();
    bed.outside(&build::tcp(at(E2, 80), at(POOL[2], 2_000 + round), Flags::SYN).build());
    let ping = bed.ping(I3, round, E1);
    bed.outside(&build::echo_reply(E1, *ping.ip(), ping.port()).build());
    bed.inside(&build::echo_request(I3, OWN_INSIDE, 1).build());
    bed.inside(&build::udp(at(I1, x + 2), at(E1, 9)).ttl(1).build());
    bed.inside(&build::udp(at(I1, x + 2), at(E1, 9)).payload_length(1_472).dont_fragment().build());
    bed.inside(&build::udp(at(I1, x + 2), at(E1, 9)).payload_length(1_472).build());
    let left = build::udp(first, at(E1, 9)).payload_length(40).build();
    bed.outside(&build::icmp_error(E1, *first.ip(), 3, 1, &left).build());
    for (number, whole) in [
        build::udp(at(E1, 9), first).identification(round).payload_length(4_000).build(),
        build::udp(at(E1, 9), second).identification(round + 1_000).payload_length(4_000).build(),
    ]
    .iter()
    .enumerate()
    {
        let mut pieces = build::fragment(whole, 1_500);
        if number == 0 {
            pieces.reverse();
        }
        bed.burst(Side::Outside, &pieces);
    }
    bed.outside(
        &build::udp(at(E2, 9), first).identification(round + 2_000).payload_length(64).fragment_bits(185).build(),
    );
    for length in [0, 10, 20, 24] {
        bed.outside(&left[..length]);
    }
    bed.inside(&build::raw(I1, E1, 132).build());
    bed.take_inside();
    bed.take_outside();
}

#[test]
fn no_packet_and_no_timer_makes_a_worker_allocate() {
    for workers in [1, 3] {
        let settings =
            settings().short_timers().mtu(1500, 1400).filtering_of(nat::Protocol::Tcp, Filtering::AddressDependent);
        let mut bed = watched(Bed::new(settings).workers(workers).steering(Steering::Random));
        let before = calls();
        for round in 0..50 {
            traffic(&mut bed, round);
            bed.advance(Duration::from_millis(700));
            bed.take_inside();
            bed.take_outside();
        }
        bed.run_out();
        assert_eq!(calls() - before, 0, "calls of the allocator inside a worker, {workers} workers");
        for verdict in [Verdict::Outbound, Verdict::Inbound, Verdict::Hairpin, Verdict::TooBig, Verdict::TtlExpired] {
            assert!(bed.count(verdict) > 0, "{}", verdict.name());
        }
        assert!(bed.count(Verdict::FragmentTimeout) > 0 && bed.counters().fragmented > 0);
    }
}

#[test]
fn a_flood_into_full_tables_makes_no_worker_allocate() {
    let small = settings().ports(10_000, 10_499).limits(|limits| {
        limits.mappings_max = 1_000;
        limits.extra_sessions_max = 500;
        limits.subscribers_max = 100;
        limits.sessions_per_mapping_max = 20;
    });
    let mut bed = watched(Bed::new(small).workers(2).steering(Steering::Random));
    let before = calls();
    for number in 0..20_000_u32 {
        let host = (0x6440_0100 + number % 250).into();
        bed.offer(Side::Inside, &build::udp(at(host, (number % 50_000) as u16 + 1), at(E1, 9)).build());
        bed.offer(Side::Inside, &build::tcp(at(host, 77), at((0xc633_6400 + number).into(), 9), Flags::SYN).build());
        if number % 100 == 0 {
            bed.settle();
            bed.take_inside();
            bed.take_outside();
        }
    }
    bed.settle();
    assert_eq!(calls() - before, 0, "calls of the allocator inside a worker");
    for verdict in [Verdict::PortsExhausted, Verdict::SessionTableFull, Verdict::SubscriberTableFull] {
        assert!(bed.count(verdict) > 0, "{}: {:?}", verdict.name(), bed.verdicts());
    }
}

#[test]
fn the_count_sees_an_allocation() {
    let before = calls();
    IN_A_WORKER.with(|cell| cell.set(true));
    let vector = std::hint::black_box(vec![1_u8; 100]);
    IN_A_WORKER.with(|cell| cell.set(false));
    assert_eq!(calls() - before, 1, "{}", vector.len());
}
