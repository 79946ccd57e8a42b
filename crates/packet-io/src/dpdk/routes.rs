//! DPDK's tables for the longest prefix of IPv4 (`rte_lpm`, `rte_fib`), for the benchmark that sets
//! them beside Natrix's own (ADR 20). Nothing that carries traffic uses them.

#![allow(unsafe_code, reason = "calls into C")]

use core::ffi::c_char;
use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use super::ffi;
use super::hash::heap_bytes;
use super::hash::last_error;

/// Addresses of one lookup at most.
pub const BULK_MAX: usize = 64;
/// The next hop of addresses without route.
pub const NONE: u32 = u32::MAX;

/// `struct rte_lpm`.
#[repr(C)]
struct RteLpm {
    _private: [u8; 0],
    _not_send_sync: PhantomData<*mut u8>,
}

/// `struct rte_fib`.
#[repr(C)]
struct RteFib {
    _private: [u8; 0],
    _not_send_sync: PhantomData<*mut u8>,
}

unsafe extern "C" {
    fn natrix_lpm_create(name: *const c_char, routes: u32, groups: u32) -> *mut RteLpm;
    fn natrix_lpm_free(lpm: *mut RteLpm);
    fn natrix_lpm_add(lpm: *mut RteLpm, address: u32, length: u8, next_hop: u32) -> c_int;
    fn natrix_lpm_delete(lpm: *mut RteLpm, address: u32, length: u8) -> c_int;
    fn natrix_lpm_lookup(lpm: *const RteLpm, addresses: *const u32, count: u32, next_hops: *mut u32);
    fn natrix_fib_create(name: *const c_char, routes: u32, groups: u32) -> *mut RteFib;
    fn natrix_fib_free(fib: *mut RteFib);
    fn natrix_fib_add(fib: *mut RteFib, address: u32, length: u8, next_hop: u32) -> c_int;
    fn natrix_fib_delete(fib: *mut RteFib, address: u32, length: u8) -> c_int;
    fn natrix_fib_lookup(fib: *mut RteFib, addresses: *const u32, count: u32, next_hops: *mut u32);
}

/// What both tables are asked to have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Routes.
    pub routes: u32,
    /// /24 prefixes with longer routes.
    pub groups: u32,
}

/// A name that no other table of the process has.
fn fresh_name(kind: &str) -> Result<CString, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("natrix_{kind}{number}")).map_err(|error| error.to_string())
}

/// Makes a table; returns it with the bytes that it took from DPDK's memory.
fn made<T>(create: impl FnOnce() -> *mut T) -> Result<(NonNull<T>, u64), String> {
    let before = heap_bytes();
    let table = NonNull::new(create()).ok_or_else(|| ffi::text(last_error()))?;
    Ok((table, heap_bytes().saturating_sub(before)))
}

fn result(status: c_int) -> Result<(), String> {
    if status < 0 { Err(ffi::text(status)) } else { Ok(()) }
}

/// DPDK's older table: 24 bits, then 8. One thread's own. DPDK must have been started
/// ([`super::hash::start_without_ports`]).
pub struct DpdkLpm {
    lpm: NonNull<RteLpm>,
    bytes: u64,
}

impl DpdkLpm {
    /// An empty table.
    ///
    /// # Errors
    /// When DPDK's memory is short.
    pub fn new(room: Room) -> Result<DpdkLpm, String> {
        let name = fresh_name("lpm")?;
        // SAFETY: a string that ends in a zero byte; DPDK copies it.
        let (lpm, bytes) = made(|| unsafe { natrix_lpm_create(name.as_ptr(), room.routes, room.groups) })?;
        Ok(DpdkLpm { lpm, bytes })
    }

    /// Sets the route of a prefix. Costs a walk over all routes of the same length. A next hop has
    /// 24 bits.
    ///
    /// # Errors
    /// There is no room, or the length is 0.
    pub fn add(&mut self, address: u32, length: u8, next_hop: u32) -> Result<(), String> {
        // SAFETY: the table is this value's own.
        result(unsafe { natrix_lpm_add(self.lpm.as_ptr(), address, length, next_hop) })
    }

    /// Removes the route of a prefix. Costs as much as [`DpdkLpm::add`].
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&mut self, address: u32, length: u8) -> Result<(), String> {
        // SAFETY: the table is this value's own.
        result(unsafe { natrix_lpm_delete(self.lpm.as_ptr(), address, length) })
    }

    /// Writes the next hop of each address to the front of `next_hops`, or [`NONE`]. At most
    /// [`BULK_MAX`] addresses.
    #[inline]
    pub fn lookup(&self, addresses: &[u32], next_hops: &mut [u32; BULK_MAX]) {
        let count = addresses.len().min(BULK_MAX) as u32;
        // SAFETY: `count` addresses and as many next hops; no thread changes the table meanwhile.
        unsafe { natrix_lpm_lookup(self.lpm.as_ptr(), addresses.as_ptr(), count, next_hops.as_mut_ptr()) };
    }

    /// Bytes it took from DPDK's memory. Wrong if other threads took or gave back memory while it
    /// was made.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DpdkLpm {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { natrix_lpm_free(self.lpm.as_ptr()) };
    }
}

/// DPDK's newer table: DIR24-8, with next hops of 4 bytes, over a tree of all routes. One thread's
/// own. DPDK must have been started ([`super::hash::start_without_ports`]).
pub struct DpdkFib {
    fib: NonNull<RteFib>,
    bytes: u64,
}

impl DpdkFib {
    /// An empty table.
    ///
    /// # Errors
    /// When DPDK's memory is short.
    pub fn new(room: Room) -> Result<DpdkFib, String> {
        let name = fresh_name("fib")?;
        // SAFETY: a string that ends in a zero byte; DPDK copies it.
        let (fib, bytes) = made(|| unsafe { natrix_fib_create(name.as_ptr(), room.routes, room.groups) })?;
        Ok(DpdkFib { fib, bytes })
    }

    /// Sets the route of a prefix. A next hop has 31 bits, and not all set.
    ///
    /// # Errors
    /// There is no room.
    pub fn add(&mut self, address: u32, length: u8, next_hop: u32) -> Result<(), String> {
        // SAFETY: the table is this value's own.
        result(unsafe { natrix_fib_add(self.fib.as_ptr(), address, length, next_hop) })
    }

    /// Removes the route of a prefix.
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&mut self, address: u32, length: u8) -> Result<(), String> {
        // SAFETY: the table is this value's own.
        result(unsafe { natrix_fib_delete(self.fib.as_ptr(), address, length) })
    }

    /// Writes the next hop of each address to the front of `next_hops`, or [`NONE`]. At most
    /// [`BULK_MAX`] addresses.
    #[inline]
    pub fn lookup(&self, addresses: &[u32], next_hops: &mut [u32; BULK_MAX]) {
        let count = addresses.len().min(BULK_MAX) as u32;
        // SAFETY: `count` addresses and as many next hops; a lookup changes nothing in the table.
        unsafe { natrix_fib_lookup(self.fib.as_ptr(), addresses.as_ptr(), count, next_hops.as_mut_ptr()) };
    }

    /// Bytes it took from DPDK's memory. Wrong if other threads took or gave back memory while it
    /// was made.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DpdkFib {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { natrix_fib_free(self.fib.as_ptr()) };
    }
}
