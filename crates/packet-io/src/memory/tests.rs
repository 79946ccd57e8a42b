use std::thread;

use super::HEADROOM;
use super::MemoryBed;
use super::MemoryPool;
use super::MemorySettings;
use crate::burst::BURST_MAX;
use crate::burst::Burst;
use crate::io::Buffer;
use crate::io::Io;
use crate::io::PortIndex;

const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);

#[test]
fn frames_arrive_in_order_and_buffers_return_to_the_pool() {
    let bed = MemoryBed::new(&MemorySettings { buffers: 100, queue_frames: 80, ..MemorySettings::default() });
    let mut io = bed.io(0);
    for number in 0..80u8 {
        assert!(bed.push(0, INSIDE, &[number; 60]));
    }
    assert!(!bed.push(0, INSIDE, &[0; 60]), "the queue holds 80 frames");
    assert_eq!((bed.waiting(), bed.free_buffers()), (80, 20));

    let mut burst = Burst::new();
    io.receive(INSIDE, &mut burst);
    assert_eq!(burst.len(), BURST_MAX);
    io.transmit(OUTSIDE, &mut burst);
    assert!(burst.is_empty());
    io.receive(INSIDE, &mut burst);
    assert_eq!(burst.len(), 16);
    io.transmit(OUTSIDE, &mut burst);

    for number in 0..80u8 {
        let (worker, frame) = bed.pull(OUTSIDE).expect("80 frames were sent");
        assert_eq!((worker, frame.bytes()), (0, &[number; 60][..]));
    }
    assert!(bed.pull(OUTSIDE).is_none());
    assert_eq!(bed.free_buffers(), 100);
    let inside = io.statistics(INSIDE);
    assert_eq!((inside.received_packets, inside.received_bytes, inside.receive_missed), (80, 4800, 1));
    assert_eq!(io.statistics(OUTSIDE).sent_packets, 80);
}

#[test]
fn a_full_transmit_queue_leaves_the_rest_in_the_burst() {
    let bed = MemoryBed::new(&MemorySettings { queue_frames: 3, ..MemorySettings::default() });
    let mut io = bed.io(0);
    let mut burst = Burst::new();
    for number in 0..5u8 {
        let mut buffer = io.allocate().expect("the pool is not empty");
        assert!(buffer.fill(&[&[number]]));
        assert!(burst.push(buffer).is_ok());
    }
    io.transmit(OUTSIDE, &mut burst);
    assert_eq!(burst.iter().map(|buffer| buffer.bytes()[0]).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn each_worker_has_its_own_receive_queue() {
    let bed = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let (mut first, mut second) = (bed.io(0), bed.io(1));
    assert!(bed.push(1, INSIDE, b"for the second"));
    assert!(!bed.push(2, INSIDE, b"there is no third"));
    let mut burst = Burst::new();
    first.receive(INSIDE, &mut burst);
    assert!(burst.is_empty());
    second.receive(INSIDE, &mut burst);
    assert_eq!(burst[0].bytes(), b"for the second");
    second.transmit(OUTSIDE, &mut burst);
    assert_eq!(bed.pull(OUTSIDE).map(|(worker, _)| worker), Some(1));
}

#[test]
fn headers_grow_and_shrink_at_the_front() {
    let pool = MemoryPool::new(1, 100);
    let mut buffer = pool.allocate().expect("one buffer");
    assert!(buffer.fill(&[b"header", b"body"]));
    assert_eq!(buffer.bytes(), b"headerbody");
    let (frame, start) = buffer.frame_mut();
    assert_eq!((usize::from(start), frame.len()), (HEADROOM, HEADROOM + 10));
    buffer.set_frame(start + 3, 5).expect("inside the buffer")[..3].copy_from_slice(b"tag");
    assert_eq!(buffer.bytes(), b"tagbo");
    assert!(buffer.set_frame(start, 101).is_none(), "the buffer is shorter");
    assert_eq!(buffer.bytes(), b"tagbo");
    assert_eq!(buffer.set_frame(0, start + 5).map(|frame| frame.len()), Some(HEADROOM + 5), "all the room in front");
    assert_eq!(buffer.set_frame(start, 0), Some(&mut [][..]));
    assert!(buffer.is_empty());
    assert!(!buffer.fill(&[&[0; 101]]), "longer than a frame may be");
    assert!(buffer.fill(&[&[7; 100]]));
    assert!(pool.allocate().is_none());
    drop(buffer);
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn no_two_threads_ever_hold_the_same_buffer() {
    let pool = MemoryPool::new(16, 8);
    thread::scope(|scope| {
        for number in 0..4u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..2_000 {
                    let mut held: Vec<_> = (0..4).filter_map(|_| pool.allocate()).collect();
                    for buffer in &mut held {
                        assert!(buffer.fill(&[&[number; 8]]));
                    }
                    for buffer in &held {
                        assert_eq!(buffer.bytes(), &[number; 8]);
                    }
                }
            });
        }
    });
    assert_eq!(pool.free_count(), 16);
}
