//! Prefetching: asks the CPU for a cache line before it is needed. A hint only, so it is safe everywhere.
//!
//! Lines are asked for into the second cache. A burst asks for 64 at once, and of so many into the first cache x86 drops
//! a part; what is left of the way from the second one costs less than what each request into the first one does.

#![allow(unsafe_code, reason = "prefetch instructions are exposed as unsafe intrinsics")]

/// Asks for the cache line holding the start of `value`, to be read soon.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_line(core::ptr::from_ref(value).cast());
}

/// Asks for the cache line holding the start of `value`, to be written soon.
///
/// Taking a line for writing steals it from other cores, where the CPU makes a difference: use it only for lines this
/// worker owns. x86 has no such request for the second cache, and needs none for a line that no other core holds.
#[inline(always)]
pub fn prefetch_write<T: ?Sized>(value: &T) {
    prefetch_line_write(core::ptr::from_ref(value).cast());
}

#[inline(always)]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::_MM_HINT_T1;
        use core::arch::x86_64::_mm_prefetch;
        // SAFETY: a prefetch neither reads nor faults, whatever the address; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM neither reads nor faults, whatever the address, and touches no register.
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[inline(always)]
fn prefetch_line_write(address: *const u8) {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM neither reads nor faults, whatever the address, and touches no register.
    unsafe {
        core::arch::asm!("prfm pstl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "aarch64"))]
    prefetch_line(address);
}
