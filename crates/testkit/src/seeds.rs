//! Seeds of random tests: by default always the same, so that a test that passed passes again.
//!
//! | variable | meaning |
//! |---|---|
//! | `NATRIX_SEED` | run this one seed only, to repeat a failure |
//! | `NATRIX_RUNS` | so many seeds instead of the test's own number |

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::panic::resume_unwind;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// True if the tests may take long, as in `make soak`.
pub fn is_soak() -> bool {
    number("NATRIX_RUNS").is_some()
}

/// Calls `run` with each seed; when one fails, says which.
pub fn for_each_seed(runs: u64, run: impl Fn(u64)) {
    let first = number("NATRIX_SEED");
    let seeds = match first {
        Some(seed) => seed..seed + 1,
        None => 1..number("NATRIX_RUNS").unwrap_or(runs) + 1,
    };
    for seed in seeds {
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("failed with NATRIX_SEED={seed}");
            resume_unwind(cause);
        }
    }
}
