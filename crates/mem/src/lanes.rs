//! Compares eight 16-bit lanes at once: tags of a bucket, a packet with a rule.

#![allow(unsafe_code, reason = "vector intrinsics are unsafe to call")]

/// A bit for each lane that equals `wanted`, lane 0 the lowest. Branch-free.
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
        // SAFETY: SSE2 is part of x86-64; the load reads exactly the 16 bytes of `lanes` and needs
        // no alignment. Without this, LLVM compares half of the lanes one by one.
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

/// True if no lane of `key` exceeds that of `first` by more than that of `spans`. Lanes count from
/// the lowest of the first word; one below `first` counts as 65 536 higher. Branch-free.
#[inline(always)]
pub fn are_lanes_within(key: [u64; 2], first: [u64; 2], spans: [u64; 2]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::_mm_cmpeq_epi16;
        use core::arch::x86_64::_mm_movemask_epi8;
        use core::arch::x86_64::_mm_set_epi64x;
        use core::arch::x86_64::_mm_setzero_si128;
        use core::arch::x86_64::_mm_sub_epi16;
        use core::arch::x86_64::_mm_subs_epu16;
        // SAFETY: SSE2 is part of x86-64, and none of these touches memory. Without this, LLVM
        // takes the lanes of two comparisons apart, which is slower than no vectors.
        unsafe {
            let lanes = |[low, high]: [u64; 2]| _mm_set_epi64x(high.cast_signed(), low.cast_signed());
            let beyond = _mm_subs_epu16(_mm_sub_epi16(lanes(key), lanes(first)), lanes(spans));
            _mm_movemask_epi8(_mm_cmpeq_epi16(beyond, _mm_setzero_si128())) == 0xffff
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    are_lanes_within_portable(key, first, spans)
}

/// The same without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn are_lanes_within_portable(key: [u64; 2], first: [u64; 2], spans: [u64; 2]) -> bool {
    let lane = |words: [u64; 2], at: usize| (words[at / 4] >> (at % 4 * 16)) as u16;
    (0..8).fold(true, |within, at| within & (lane(key, at).wrapping_sub(lane(first, at)) <= lane(spans, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_its_span() {
        // Just inside, just outside, below the first, and wrapped around.
        let borders = [
            (7, 7, 0, true),
            (8, 7, 0, false),
            (6, 7, 0, false),
            (6, 7, 0xffff, true),
            (0x8005, 5, 0x8000, true),
            (0x8006, 5, 0x8000, false),
            (3, 0xfffe, 5, true),
            (4, 0xfffe, 5, false),
        ];
        for at in 0..8 {
            let words = |value: u64| if at < 4 { [value << (at * 16), 0] } else { [0, value << (at % 4 * 16)] };
            for (key, first, span, is_within) in borders {
                let (key, first, spans) = (words(key), words(first), words(span));
                assert_eq!(are_lanes_within(key, first, spans), is_within, "lane {at}: {key:x?} {first:x?} {spans:x?}");
                assert_eq!(are_lanes_within_portable(key, first, spans), is_within);
            }
        }
    }

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
