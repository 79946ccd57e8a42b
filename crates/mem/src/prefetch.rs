//! Requests cache lines before they are needed: only hints, so safe anywhere.
//!
//! Lines go to the second-level cache. A burst requests 64 at once, of which x86 drops some to the
//! first level. The way from the second level costs less than a request to the first.

#![allow(unsafe_code, reason = "prefetch instructions are exposed as unsafe intrinsics")]

/// Prefetches the cache line at the start of `value`, to be read soon.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_line(core::ptr::from_ref(value).cast());
}

/// Prefetches the cache line at the start of `value`, to be written soon.
///
/// Takes the line from other cores where the CPU can, so use it only for lines that this worker
/// owns. x86 has no such request for the second-level cache, and needs none for a line that no
/// other core has.
#[inline(always)]
pub fn prefetch_write<T: ?Sized>(value: &T) {
    prefetch_line_write(core::ptr::from_ref(value).cast());
}

/// Prefetches the cache line of an address, to be read soon. The address need not be mapped.
#[inline(always)]
pub fn prefetch_address(address: *const u8) {
    prefetch_line(address);
}

/// Prefetches the cache line at the start of `value` into the first-level cache. For lines that are
/// in the second-level cache as a rule: of many requests from farther away some get lost.
#[inline(always)]
pub fn prefetch_near<T: ?Sized>(value: &T) {
    let address: *const u8 = core::ptr::from_ref(value).cast();
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::_MM_HINT_T0;
        use core::arch::x86_64::_mm_prefetch;
        // SAFETY: a prefetch neither reads nor faults, whatever the address; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM neither reads nor faults, whatever the address, and touches no register.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
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
