//! How long threads had a CPU, by the kernel's count: on a busy machine others take their share, of
//! every program alike.

use std::fs;
use std::path::Path;

/// Nanoseconds the calling thread has been running; None where the kernel does not report it.
pub(super) fn of_this_thread() -> Option<u64> {
    running_ns(Path::new("/proc/thread-self/schedstat"))
}

/// Nanoseconds all threads of a process have been running.
pub(super) fn of_process(id: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).ok()?;
    threads.flatten().map(|thread| running_ns(&thread.path().join("schedstat"))).sum()
}

/// The first of the numbers is the time on a CPU, the second the time waited for one.
fn running_ns(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.split_whitespace().next()?.parse().ok()
}

/// The share of `wall_ns` between two readings; all of it where the kernel does not report it.
pub(super) fn share(before: Option<u64>, after: Option<u64>, wall_ns: f64) -> f64 {
    match (before, after) {
        (Some(before), Some(after)) if after > before && wall_ns > 0.0 => ((after - before) as f64 / wall_ns).min(1.0),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_most_all_and_all_if_unknown() {
        assert_eq!(share(Some(1_000), Some(1_500), 1_000.0), 0.5);
        assert_eq!(share(Some(1_000), Some(3_000), 1_000.0), 1.0);
        assert_eq!(share(None, Some(3_000), 1_000.0), 1.0);
        assert_eq!(share(Some(3), Some(3), 1_000.0), 1.0);
    }

    #[test]
    fn a_thread_that_works_is_seen_running() {
        let before = of_this_thread();
        // The kernel counts at its ticks, so it takes a few readings.
        let moved = (0..1_000_000).any(|_| of_this_thread() > before);
        assert_eq!(moved, before.is_some());
        assert_eq!(of_process(std::process::id()).is_some(), before.is_some());
    }
}
