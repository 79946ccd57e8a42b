//! Keyed hashing and random numbers from the caller's secret.

use core::fmt;

/// Hashes two words under a secret key, in about 2 ns.
///
/// Each input bit flips each output bit with probability one half (tested), so any bits serve as
/// table position or tag. Without the key, colliding inputs cannot be chosen. Not cryptographic:
/// the output must not leave the machine.
#[derive(Clone, Copy)]
pub struct KeyedHash {
    key: [u64; 4],
}

impl KeyedHash {
    /// `secret` must be random and private. Its words are scattered, because small numbers, as in
    /// tests, hardly mix.
    pub const fn new(secret: [u64; 4]) -> KeyedHash {
        KeyedHash { key: [scatter(secret[0], 1), scatter(secret[1], 2), scatter(secret[2], 3), scatter(secret[3], 4)] }
    }

    /// For tests: all pairs with this second word collide, as under one in 2^64 secrets.
    #[doc(hidden)]
    pub const fn colliding_secret(second: u64) -> [u64; 4] {
        // Makes the first product zero for any first word.
        [1, unscatter(second, 2), 3, 4]
    }

    /// The hash of the pair.
    #[inline(always)]
    pub const fn hash(&self, first: u64, second: u64) -> u64 {
        let (low, high) = multiply(first ^ self.key[0], second ^ self.key[1]);
        let (low, high) = multiply(low ^ self.key[2], high ^ self.key[3]);
        low ^ high
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHash")
    }
}

/// The same in every run and for all workers.
pub(crate) const fn mix(word: u64) -> u64 {
    scatter(word, 1)
}

/// A bijection for each position: equal words at two positions give different keys.
const fn scatter(word: u64, position: u64) -> u64 {
    let word = word.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

const fn unscatter(word: u64, position: u64) -> u64 {
    let word = word ^ word >> 31 ^ word >> 62;
    let word = word.wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let word = word ^ word >> 27 ^ word >> 54;
    let word = word.wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    let word = word ^ word >> 30 ^ word >> 60;
    word.wrapping_sub(position.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Modulo 2^64, by Newton's method: each step doubles the correct bits.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

#[inline(always)]
const fn multiply(a: u64, b: u64) -> (u64, u64) {
    let product = a as u128 * b as u128;
    (product as u64, (product >> 64) as u64)
}

/// A random generator: the keyed hash of a counter and of its last output, in about 2 ns.
///
/// The counter rules out short cycles. Outsiders see at most 16 bits of an output and never the
/// 256-bit key, so predicting the next port (RFC 6056 §3.1) is as hard as guessing the key.
#[derive(Clone)]
pub struct Random {
    hash: KeyedHash,
    counter: u64,
    last: u64,
}

impl Random {
    /// The same secret gives the same numbers.
    pub const fn new(secret: [u64; 4]) -> Random {
        Random { hash: KeyedHash::new(secret), counter: 0, last: 0 }
    }

    /// 64 random bits.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        self.last = self.hash.hash(self.counter, self.last);
        self.last
    }

    /// In `0..bound`, each equally likely to within 2^-32; 0 if `bound` is 0.
    #[inline]
    pub const fn below(&mut self, bound: u32) -> u32 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u32
    }
}

#[cfg(test)]
mod tests;
