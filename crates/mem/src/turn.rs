//! One process at a time counts free hugepages and takes some.
//!
//! DPDK counts before it starts and cannot use ordinary pages instead if another process takes some
//! in between: its start fails.

use std::fs::File;
use std::fs::TryLockError;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

/// All Natrix processes of a machine lock this folder, which each user may read. `/sys` has one of
/// hugepages, but `ip netns exec` mounts another `/sys` with its own locks.
const MEMORY: &str = "/proc/sys/vm";
/// After this time the holder hangs and must not keep others from starting.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The right to count and take hugepages.
///
/// Other programs do not wait for it.
#[derive(Debug)]
pub struct Turn {
    /// None without such a folder, or after too long a wait.
    _locked: Option<File>,
}

impl Turn {
    /// Blocks until no other Natrix process takes hugepages, at most 10 s.
    pub fn wait() -> Turn {
        // Any user may hold the lock, and each further table would wait as long.
        static IS_HELD_TOO_LONG: AtomicBool = AtomicBool::new(false);
        if IS_HELD_TOO_LONG.load(Ordering::Relaxed) {
            return Turn { _locked: None };
        }
        let locked = locked(Path::new(MEMORY), WAIT_MAX);
        IS_HELD_TOO_LONG.store(locked.is_none(), Ordering::Relaxed);
        Turn { _locked: locked }
    }
}

fn locked(path: &Path, wait_max: Duration) -> Option<File> {
    let file = File::open(path).ok()?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < wait_max => thread::sleep(Duration::from_millis(2)),
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn one_holds_the_lock_at_a_time_and_a_wait_ends() {
        let folder = env::temp_dir();
        let first = locked(&folder, Duration::ZERO);
        assert!(first.is_some());
        assert!(locked(&folder, Duration::from_millis(10)).is_none());
        let second = thread::spawn(move || locked(&env::temp_dir(), WAIT_MAX).is_some());
        drop(first);
        assert!(second.join().unwrap());
    }

    #[test]
    fn without_the_folder_there_is_no_wait() {
        assert!(locked(Path::new("/proc/sys/no-vm"), WAIT_MAX).is_none());
    }
}
