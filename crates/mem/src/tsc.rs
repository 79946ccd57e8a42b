//! The time-stamp counter: the cheapest clock there is, for benchmarks and for the daemon's clock.

#![allow(
    unsafe_code,
    reason = "reading the counter is an intrinsic without preconditions that older toolchains call unsafe"
)]

/// Cycles since some moment in the past, at a constant rate. Not ordered with surrounding loads and
/// stores; a few cycles of blur are nothing beside a burst.
#[inline(always)]
#[must_use]
pub fn read() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC exists on every x86-64 processor and touches no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // One tick a nanosecond where there is no such counter.
        let origin = *ORIGIN.get_or_init(std::time::Instant::now);
        origin.elapsed().as_nanos() as u64
    }
}

#[cfg(not(target_arch = "x86_64"))]
static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();

/// Ticks a second, measured against the monotonic clock over `millis` milliseconds.
#[must_use]
pub fn frequency_hz(millis: u64) -> f64 {
    let clock = std::time::Instant::now();
    let before = read();
    std::thread::sleep(std::time::Duration::from_millis(millis));
    let ticks = read().wrapping_sub(before);
    ticks as f64 / clock.elapsed().as_secs_f64()
}
