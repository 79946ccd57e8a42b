use super::*;

const SECRET: [u64; 4] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// Of chi-square from its mean, in standard deviations.
fn chi_square_deviation(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let expected = total / counts.len() as f64;
    let sum: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (sum - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn each_input_bit_flips_each_output_bit_half_the_time() {
    const SAMPLES: u32 = 4_000;
    let hash = KeyedHash::new(SECRET);
    for input_bit in 0..128 {
        let mut flips = [0_u32; 64];
        for sample in 0..SAMPLES {
            // As in the tables: an address that counts up, and a port.
            let first = 0x0001_0a00_0000_u64 + u64::from(sample >> 4);
            let second = u64::from(sample & 15) + 1024;
            let bit = 1_u128 << input_bit;
            let difference = hash.hash(first, second) ^ hash.hash(first ^ bit as u64, second ^ (bit >> 64) as u64);
            for (output_bit, count) in flips.iter_mut().enumerate() {
                *count += (difference >> output_bit & 1) as u32;
            }
        }
        for (output_bit, &count) in flips.iter().enumerate() {
            let share = f64::from(count) / f64::from(SAMPLES);
            // Six standard deviations of a fair coin are 0.047.
            assert!((share - 0.5).abs() < 0.06, "input bit {input_bit} flips output bit {output_bit} with {share}");
        }
    }
}

#[test]
fn endpoints_in_a_row_spread_evenly_over_positions_and_tags() {
    for secret in [SECRET, [1, 2, 3, 4].map(|word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15))] {
        let hash = KeyedHash::new(secret);
        let (mut positions, mut tags) = (vec![0_u32; 1000], vec![0_u32; 1000]);
        for address in 0..1000_u64 {
            for port in 0..100_u64 {
                let value = hash.hash(0x0a00_0000 + address, 1024 + port);
                positions[(((value >> 32) * 1000) >> 32) as usize] += 1;
                tags[(((value & 0xffff) * 1000) >> 16) as usize] += 1;
            }
        }
        assert!(chi_square_deviation(&positions).abs() < 5.0, "{}", chi_square_deviation(&positions));
        // 65536 is no multiple of 1000, which shifts these a little.
        assert!(chi_square_deviation(&tags).abs() < 6.0, "{}", chi_square_deviation(&tags));
    }
}

#[test]
fn the_key_decides_the_hash() {
    for word in 0..4 {
        let mut other = SECRET;
        other[word] ^= 1;
        assert_ne!(KeyedHash::new(SECRET).hash(1, 2), KeyedHash::new(other).hash(1, 2));
    }
}

#[test]
fn no_two_endpoints_of_a_million_share_a_hash() {
    let hash = KeyedHash::new(SECRET);
    let mut hashes: Vec<u64> = (0..1_000_000_u64).map(|n| hash.hash(n >> 10, n & 1023)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 1_000_000);
}

#[test]
fn numbers_below_a_bound_are_uniform_and_below_it() {
    let mut random = Random::new(SECRET);
    for bound in [1_u32, 2, 3, 7, 100, 1009] {
        let mut counts = vec![0_u32; bound as usize];
        for _ in 0..bound * 200 {
            counts[random.below(bound) as usize] += 1;
        }
        if bound > 1 {
            assert!(chi_square_deviation(&counts).abs() < 6.0, "bound {bound}: {}", chi_square_deviation(&counts));
        }
    }
    assert_eq!(random.below(0), 0);
}

#[test]
fn successive_numbers_are_unrelated() {
    let mut random = Random::new(SECRET);
    let mut pairs = vec![0_u32; 32 * 32];
    let mut last = random.below(32);
    for _ in 0..200_000 {
        let next = random.below(32);
        pairs[(last * 32 + next) as usize] += 1;
        last = next;
    }
    assert!(chi_square_deviation(&pairs).abs() < 5.0, "{}", chi_square_deviation(&pairs));
}

#[test]
fn same_secret_same_numbers() {
    let numbers = |secret| {
        let mut random = Random::new(secret);
        [random.next_u64(), random.next_u64(), random.next_u64()]
    };
    assert_eq!(numbers(SECRET), numbers(SECRET));
    assert_ne!(numbers(SECRET), numbers([5; 4]));
}

#[test]
fn with_a_known_secret_every_hash_can_collide() {
    for second in [0, 1, 443, 0x5b5c, u64::MAX] {
        let hash = KeyedHash::new(KeyedHash::colliding_secret(second));
        let all = hash.hash(0, second);
        assert!((0..1_000).all(|first| hash.hash(first, second) == all && hash.hash(first << 40, second) == all));
        // Other second words hash as usual.
        let mut others: Vec<u64> = (0..1_000).map(|first| hash.hash(first, second ^ 2)).collect();
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), 1_000);
    }
    for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
        for position in 1..5 {
            assert_eq!(scatter(unscatter(word, position), position), word);
        }
    }
}
