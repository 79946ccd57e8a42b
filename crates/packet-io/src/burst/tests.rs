use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use super::BURST_MAX;
use super::Burst;
use crate::io::Buffer;

/// A buffer that counts how often one was freed.
struct Counted(u8, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Buffer for Counted {
    fn bytes(&self) -> &[u8] {
        core::slice::from_ref(&self.0)
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        core::slice::from_mut(&mut self.0)
    }
    fn frame_mut(&mut self) -> (&mut [u8], u16) {
        (self.bytes_mut(), 0)
    }
    fn set_frame(&mut self, _start: u16, _len: u16) -> Option<&mut [u8]> {
        None
    }
    fn fill(&mut self, _parts: &[&[u8]]) -> bool {
        false
    }
}

fn burst_of(count: u8) -> (Burst<Counted>, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let mut burst = Burst::new();
    for number in 0..count {
        assert!(burst.push(Counted(number, Arc::clone(&freed))).is_ok());
    }
    (burst, freed)
}

fn numbers(burst: &Burst<Counted>) -> Vec<u8> {
    burst.iter().map(|buffer| buffer.0).collect()
}

#[test]
fn a_full_burst_gives_the_buffer_back() {
    let (mut burst, freed) = burst_of(BURST_MAX as u8);
    assert!(burst.is_full());
    assert!(burst.push(Counted(99, Arc::clone(&freed))).is_err_and(|buffer| buffer.0 == 99));
    drop(burst);
    assert_eq!(freed.load(Ordering::Relaxed), BURST_MAX + 1);
}

#[test]
fn draining_the_front_keeps_the_rest_in_order() {
    let (mut burst, freed) = burst_of(10);
    assert_eq!(burst.drain_front(4).map(|buffer| buffer.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(numbers(&burst), [4, 5, 6, 7, 8, 9]);
    assert_eq!(freed.load(Ordering::Relaxed), 4);
    assert_eq!(burst.pop().map(|buffer| buffer.0), Some(9));
    assert_eq!(burst.drain_front(100).len(), 5);
    assert!(burst.is_empty());
    assert_eq!(freed.load(Ordering::Relaxed), 10);
}

#[test]
fn a_drain_dropped_half_way_frees_each_buffer_once() {
    let (mut burst, freed) = burst_of(8);
    let mut drain = burst.drain_front(6);
    let first = drain.next();
    assert_eq!(drain.as_slice().len(), 5);
    drop(drain);
    assert_eq!(freed.load(Ordering::Relaxed), 5);
    drop(first);
    assert_eq!(numbers(&burst), [6, 7]);
    burst.clear();
    assert_eq!(freed.load(Ordering::Relaxed), 8);
}

#[test]
fn a_leaked_drain_frees_nothing_twice() {
    let (mut burst, freed) = burst_of(8);
    core::mem::forget(burst.drain());
    assert!(burst.is_empty());
    drop(burst);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}
