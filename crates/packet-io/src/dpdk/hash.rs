//! DPDK's hash table (`rte_hash`), for the benchmark that sets it beside Natrix's own. Nothing that
//! carries traffic uses it.

#![allow(unsafe_code, reason = "calls into C")]

use core::ffi::c_char;
use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use super::DpdkError;
use super::DpdkSettings;
use super::Hugepages;
use super::ffi;

/// Keys of one [`DpdkHash::find_or_add`] at most.
pub const BULK_MAX: usize = 64;

/// `struct rte_hash`.
#[repr(C)]
struct RteHash {
    _private: [u8; 0],
    _not_send_sync: PhantomData<*mut u8>,
}

unsafe extern "C" {
    fn natrix_hash_create(name: *const c_char, entries: u32) -> *mut RteHash;
    fn natrix_hash_free(hash: *mut RteHash);
    fn natrix_hash_find_or_add(hash: *mut RteHash, keys: *const u64, count: u32, positions: *mut i32);
    fn natrix_last_error() -> c_int;
    fn natrix_heap_bytes() -> u64;
}

/// What the last call of DPDK that failed left.
pub(super) fn last_error() -> c_int {
    // SAFETY: no arguments.
    unsafe { natrix_last_error() }
}

/// Bytes in use in DPDK's heaps.
pub(super) fn heap_bytes() -> u64 {
    // SAFETY: no arguments.
    unsafe { natrix_heap_bytes() }
}

/// Starts DPDK without any port, with `memory_bytes` for tables, on hugepages if there are enough.
/// Only the first call in a process does anything; the others return what it did.
///
/// Returns whether it runs on hugepages.
///
/// # Errors
/// When DPDK does not start.
pub fn start_without_ports(memory_bytes: u64) -> Result<bool, DpdkError> {
    static STARTED: OnceLock<Result<bool, DpdkError>> = OnceLock::new();
    let start = || {
        let settings =
            DpdkSettings { ports: Vec::new(), workers: 1, hugepages: Hugepages::Auto, memory_bytes, buffers: 0 };
        super::start_environment(&settings, (memory_bytes >> 20).max(64))
    };
    STARTED.get_or_init(start).clone()
}

/// A cuckoo hash table from 64-bit keys to positions. One thread's own. See
/// [`start_without_ports`].
pub struct DpdkHash {
    hash: NonNull<RteHash>,
    bytes: u64,
}

#[allow(unsafe_code, reason = "a table may move to another thread")]
// SAFETY: made without multi-writer support, the table keeps nothing that belongs to a thread; its
// owner is exclusive.
unsafe impl Send for DpdkHash {}

impl DpdkHash {
    /// Room for `entries` keys. DPDK must have been started.
    ///
    /// It is a cuckoo table: the last few per cent may be refused, so give it more room than keys.
    ///
    /// # Errors
    /// When DPDK's memory is short.
    pub fn new(entries: u32) -> Result<DpdkHash, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("natrix{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let before = heap_bytes();
        // SAFETY: a string that ends in a zero byte; DPDK copies it.
        let hash = NonNull::new(unsafe { natrix_hash_create(name.as_ptr(), entries) })
            .ok_or_else(|| ffi::text(last_error()))?;
        let bytes = heap_bytes().saturating_sub(before);
        Ok(DpdkHash { hash, bytes })
    }

    /// Writes the position of each key to the front of `positions`; keys that are not there are
    /// entered. A position is below the entries asked for, and stays its key's. Negative where
    /// there is no room. At most [`BULK_MAX`] keys.
    #[inline]
    pub fn find_or_add(&mut self, keys: &[u64], positions: &mut [i32; BULK_MAX]) {
        let count = keys.len().min(BULK_MAX) as u32;
        // SAFETY: `count` keys and as many positions; the table is this value's own.
        unsafe { natrix_hash_find_or_add(self.hash.as_ptr(), keys.as_ptr(), count, positions.as_mut_ptr()) };
    }

    /// Bytes it took from DPDK's memory. Wrong if other threads took or gave back memory while it
    /// was made.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DpdkHash {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { natrix_hash_free(self.hash.as_ptr()) };
    }
}
