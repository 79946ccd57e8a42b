//! Tester and device before all ordinary programs of the machine: a poller that waits for its time
//! slice measures its neighbours.

use std::fs;

use rustix::process::getpriority_process;
use rustix::process::setpriority_process;

/// The highest but one: the kernel's own threads stay before it.
pub(crate) const NICE: i32 = -19;

/// Where the kernel groups processes by session, niceness counts only within the group; the group
/// has one of its own.
const GROUP: &str = "/proc/self/autogroup";

/// A raised priority of this process and of those it starts from now on. The group is also of the
/// shell it was started from, so that gets its own back when this is dropped. If it is raised
/// already, a lab was killed, or another one runs: then it gets the ordinary one, and no shell
/// stays before the rest of the machine.
#[derive(Debug)]
pub struct Raised {
    /// What was reached, for the result: both devices get the same.
    pub told: String,
    /// Niceness of the process before: what is not of the lab goes on with it.
    pub nice_before: i32,
    /// Niceness of the group before, where it was another.
    group_before: Option<String>,
}

impl Raised {
    /// Raises it, as far as this process may.
    #[expect(clippy::new_without_default, reason = "it changes the process")]
    pub fn new() -> Raised {
        let before = fs::read_to_string(GROUP)
            .ok()
            .as_deref()
            .and_then(niceness_in)
            .map(|niceness| if niceness == NICE.to_string() { "0".to_owned() } else { niceness.to_owned() });
        let nice_before = getpriority_process(None).unwrap_or(0);
        let group = fs::write(GROUP, NICE.to_string()).is_ok();
        let told = match setpriority_process(None, NICE) {
            Ok(()) if group => format!("nice {NICE}, its group too"),
            Ok(()) => format!("nice {NICE}"),
            Err(error) => format!("ordinary ({error})"),
        };
        Raised { told, nice_before, group_before: before.filter(|_| group) }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(before) = &self.group_before {
            // Who could raise it can lower it; and if not, no result suffers.
            let _ = fs::write(GROUP, before);
        }
    }
}

/// The number in `/autogroup-123 nice 0`.
fn niceness_in(text: &str) -> Option<&str> {
    text.trim().rsplit_once("nice ").map(|(_, niceness)| niceness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_reached_is_reported_and_the_old_one_comes_back() {
        let group = || fs::read_to_string(GROUP).ok().as_deref().and_then(niceness_in).map(str::to_owned);
        let before = group();
        let raised = Raised::new();
        // Without privileges it stays as it was, and says so.
        assert!(raised.told.starts_with("nice -19") || raised.told.starts_with("ordinary ("), "{raised:?}");
        if raised.told.contains("its group") {
            assert_eq!(group().as_deref(), Some("-19"));
        }
        let second = Raised::new();
        drop(raised);
        drop(second);
        let left = group();
        // The second cannot know what was there before the first.
        assert!(left == before || left.as_deref() == Some("0"), "{left:?} after {before:?}");
    }

    #[test]
    fn the_niceness_of_a_group_is_the_number_at_its_end() {
        assert_eq!([niceness_in("/autogroup-7 nice -3\n"), niceness_in("")], [Some("-3"), None]);
    }
}
