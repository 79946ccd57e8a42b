//! Tester and device before all ordinary programs of the machine: a poller that waits for its time slice measures its neighbours.

use std::fs;

use rustix::process::setpriority_process;

/// The highest but one: the kernel's own threads stay before it.
pub(crate) const NICE: i32 = -19;

/// Raises the priority of this process and of those it starts from now on. What was reached, for the result: both devices get the
/// same.
pub fn raise() -> String {
    // Where the kernel groups processes by session, niceness counts only within the group; the group has one of its own.
    let group = fs::write("/proc/self/autogroup", "-19").is_ok();
    match setpriority_process(None, NICE) {
        Ok(()) if group => format!("nice {NICE}, its group too"),
        Ok(()) => format!("nice {NICE}"),
        Err(error) => format!("ordinary ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reached_is_told() {
        // Without privileges it stays as it was, and says so.
        let told = raise();
        assert!(told.starts_with("nice -19") || told.starts_with("ordinary ("), "{told}");
    }
}
