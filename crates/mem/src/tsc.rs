//! The time-stamp counter: the cheapest clock, for benchmarks and the daemon.

#![allow(
    unsafe_code,
    reason = "the counter is read by an intrinsic that older toolchains call unsafe, a thread's clock by a system call"
)]

/// Cycles at a constant rate, from any origin. Not ordered with surrounding loads and stores: an
/// error of a few cycles.
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
        // Without such a counter, one tick a nanosecond.
        let origin = *ORIGIN.get_or_init(std::time::Instant::now);
        origin.elapsed().as_nanos() as u64
    }
}

#[cfg(not(target_arch = "x86_64"))]
static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();

/// CPU time of this thread, by a system call. None if the system has no such clock.
#[must_use]
pub fn thread_seconds() -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, for which there is space.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    (answer == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Ticks a second, measured against the monotonic clock.
#[must_use]
pub fn frequency_hz(millis: u64) -> f64 {
    let clock = std::time::Instant::now();
    let before = read();
    std::thread::sleep(std::time::Duration::from_millis(millis));
    let ticks = read().wrapping_sub(before);
    ticks as f64 / clock.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_not_been_running() {
        let before = thread_seconds().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = thread_seconds().unwrap();
        assert!(slept >= before && slept - before < 0.05, "50 ms of sleep are not 50 ms of running");
        let mut sum = 0_u64;
        while thread_seconds().unwrap() < slept + 0.005 {
            sum = sum.wrapping_add(read());
        }
        assert!(sum != 0, "the clock went on, or we would wait for ever");
    }
}
