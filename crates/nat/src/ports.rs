//! temporary
use crate::random::Random;
use crate::types::*;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use mem::Arena;
use mem::ArenaError;
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortClass {
    Low,
    High,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parity {
    Even,
    Odd,
}
impl Parity {
    pub fn of(p: u16) -> Parity {
        if p & 1 == 0 { Parity::Even } else { Parity::Odd }
    }
}
pub struct AddressSpec {
    pub port_min: u16,
    pub port_max: u16,
    pub reserved: Vec<u16>,
}
pub struct PortTable {
    bits: Arena<AtomicU64>,
    entries: Arena<AtomicU32>,
    avail: Vec<[u32; 3]>,
    pairs: Vec<AtomicU32>,
}
impl PortTable {
    pub fn new(specs: &[AddressSpec]) -> Result<PortTable, ArenaError> {
        let n = specs.len();
        let t = PortTable {
            bits: Arena::zeroed((n * 3 * 1024).max(1))?,
            entries: Arena::zeroed((n * 3 * 65536).max(1))?,
            avail: specs
                .iter()
                .map(|s| {
                    let c = u32::from(s.port_max) - u32::from(s.port_min) + 1
                        - s.reserved.iter().filter(|p| **p >= s.port_min && **p <= s.port_max).count() as u32;
                    [c, c, 65535]
                })
                .collect(),
            pairs: (0..n).map(|_| AtomicU32::new(0)).collect(),
        };
        for (i, s) in specs.iter().enumerate() {
            for pr in 0..3 {
                for p in 0..=65535u16 {
                    let no = p == 0 || (pr < 2 && (p < s.port_min || p > s.port_max || s.reserved.contains(&p)));
                    if no {
                        t.bits[(i * 3 + pr) * 1024 + usize::from(p >> 6)].fetch_or(1 << (p & 63), Relaxed);
                    }
                }
            }
        }
        Ok(t)
    }
    fn b(a: AddressIndex, p: Protocol) -> usize {
        (a.index() * 3 + p.index()) * 1024
    }
    fn e(a: AddressIndex, p: Protocol, port: u16) -> usize {
        (a.index() * 3 + p.index()) * 65536 + usize::from(port)
    }
    pub fn allocate(
        &self,
        a: AddressIndex,
        p: Protocol,
        class: PortClass,
        parity: Option<Parity>,
        _w: WorkerId,
        _n: usize,
        r: &mut Random,
    ) -> Option<u16> {
        let (lo, hi) = if p == Protocol::Icmp {
            (0u32, 1024u32)
        } else if class == PortClass::Low {
            (0, 16)
        } else {
            (16, 1024)
        };
        let mask = match parity {
            None => u64::MAX,
            Some(Parity::Even) => 0x5555_5555_5555_5555,
            Some(Parity::Odd) => 0xaaaa_aaaa_aaaa_aaaa,
        };
        let start = r.below(hi - lo);
        let rot = r.below(64);
        for i in 0..hi - lo {
            let w = (lo + (start + i) % (hi - lo)) as usize;
            loop {
                let free = !self.bits[Self::b(a, p) + w].load(Relaxed) & mask;
                if free == 0 {
                    break;
                }
                let k = (free.rotate_right(rot).trailing_zeros() + rot) % 64;
                if self.bits[Self::b(a, p) + w].fetch_or(1 << k, AcqRel) >> k & 1 == 0 {
                    return Some((w * 64) as u16 + k as u16);
                }
            }
        }
        None
    }
    pub fn publish(&self, a: AddressIndex, p: Protocol, port: u16, w: WorkerId, m: MappingIndex) {
        self.entries[Self::e(a, p, port)].store(u32::from(w.0) << 26 | m.0, Release)
    }
    pub fn lookup(&self, a: AddressIndex, p: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        let v = self.entries[Self::e(a, p, port)].load(Acquire);
        if v == 0 { None } else { Some((WorkerId((v >> 26) as u8), MappingIndex(v & ((1 << 26) - 1)))) }
    }
    pub fn prefetch(&self, a: AddressIndex, p: Protocol, port: u16) {
        self.entries.prefetch(Self::e(a, p, port))
    }
    pub fn release(&self, a: AddressIndex, p: Protocol, port: u16) {
        self.entries[Self::e(a, p, port)].store(0, Release);
        self.bits[Self::b(a, p) + usize::from(port >> 6)].fetch_and(!(1 << (port & 63)), AcqRel);
    }
    pub fn used(&self, a: AddressIndex, p: Protocol) -> u32 {
        let c: u32 = (0..1024).map(|w| self.bits[Self::b(a, p) + w].load(Relaxed).count_ones()).sum();
        c - (65536 - self.avail[a.index()][p.index()])
    }
    pub fn available(&self, a: AddressIndex, p: Protocol) -> u32 {
        self.avail[a.index()][p.index()]
    }
    pub fn bytes(&self) -> usize {
        self.bits.len() * 8 + self.entries.len() * 4
    }
    pub fn pair(&self, a: AddressIndex) {
        self.pairs[a.index()].fetch_add(1, Relaxed);
    }
    pub fn unpair(&self, a: AddressIndex) {
        self.pairs[a.index()].fetch_sub(1, Relaxed);
    }
    pub fn paired_subscribers(&self, a: AddressIndex) -> u32 {
        self.pairs[a.index()].load(Relaxed)
    }
    pub fn choose_address(
        &self,
        first: AddressIndex,
        count: u32,
        p: Protocol,
        _c: PortClass,
        r: &mut Random,
    ) -> Option<AddressIndex> {
        if count == 0 {
            return None;
        }
        let s = r.below(count);
        (0..count).map(|i| AddressIndex(first.0 + (s + i) % count)).find(|a| self.used(*a, p) < self.available(*a, p))
    }
}
