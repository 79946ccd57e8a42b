//! Comparing eight 16-bit lanes at once: what a bucket of tags needs.

#![allow(unsafe_code, reason = "vector intrinsics are unsafe to call")]

/// One bit for each lane that equals `wanted`; lane 0 is bit 0. Without branches.
#[inline(always)]
pub fn equal_lanes(lanes: &[u16; 8], wanted: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::_mm_cmpeq_epi16;
        use core::arch::x86_64::_mm_loadu_si128;
        use core::arch::x86_64::_mm_movemask_epi8;
        use core::arch::x86_64::_mm_packs_epi16;
        use core::arch::x86_64::_mm_set1_epi16;
        use core::arch::x86_64::_mm_setzero_si128;
        // SAFETY: SSE2 is part of x86-64; the load reads exactly the 16 bytes of `lanes` and needs no alignment.
        // Left to itself LLVM compares half of the lanes one by one.
        let mask = unsafe {
            let lanes = _mm_loadu_si128(lanes.as_ptr().cast());
            let equal = _mm_cmpeq_epi16(lanes, _mm_set1_epi16(wanted.cast_signed()));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128()))
        };
        mask.cast_unsigned()
    }
    #[cfg(not(target_arch = "x86_64"))]
    equal_lanes_portable(lanes, wanted)
}

/// The same without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_lanes_portable(lanes: &[u16; 8], wanted: u16) -> u32 {
    lanes.iter().enumerate().fold(0, |mask, (lane, &value)| mask | u32::from(value == wanted) << lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_its_bit() {
        for wanted in [0, 1, 0x7fff, 0x8000, 0xffff] {
            for mask in 0..256_u32 {
                let lanes = core::array::from_fn(|lane| if mask >> lane & 1 == 1 { wanted } else { wanted ^ 0x0100 });
                assert_eq!(equal_lanes(&lanes, wanted), mask);
                assert_eq!(equal_lanes_portable(&lanes, wanted), mask);
            }
        }
    }
}
