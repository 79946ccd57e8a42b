//! Limits of the kernel that hold for all namespaces of the machine, and what they were before the
//! lab raised them.
//!
//! A run puts them back when it ends. For one that is killed they stand in a file until the next
//! run, or `natrix lab down`, finds it.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;

use crate::topology::is_gone;

/// Connections in all tables together.
pub(super) const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Buckets of the hash table.
pub(super) const BUCKETS: &str = "/proc/sys/net/netfilter/nf_conntrack_buckets";

/// What limits were, and who raised them.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    pid: u32,
    limits: Vec<(String, u64)>,
}

/// The file that says so.
#[derive(Debug)]
pub struct Limits(PathBuf);

impl Limits {
    /// That of this machine.
    pub fn of_this_machine() -> Limits {
        Limits("/run/natrix-lab.limits".into())
    }

    /// Writes down what limits were before this process raised them. Where it can't be written a
    /// run that is killed leaves them raised.
    pub(super) fn remember(&self, limits: &[(&str, u64)]) {
        if self.read().is_some_and(|before| before.pid != std::process::id()) {
            // Another run is at it, and its values are the machine's own.
            return;
        }
        let limits = limits.iter().map(|(path, value)| ((*path).to_owned(), *value)).collect();
        if let Ok(text) = serde_json::to_string(&Before { pid: std::process::id(), limits }) {
            let _ = fs::write(&self.0, text);
        }
    }

    /// This process has put them back.
    pub(super) fn forget(&self) {
        if self.read().is_some_and(|before| before.pid == std::process::id()) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Puts back what a run raised that has ended without doing so. What they are again, by path.
    pub fn put_back_left(&self) -> Vec<(String, u64)> {
        let Some(before) = self.read().filter(|before| is_gone(before.pid)) else { return Vec::new() };
        let _ = fs::remove_file(&self.0);
        let known = before.limits.into_iter().filter(|(path, _)| [MAX, BUCKETS].contains(&path.as_str()));
        // The one that was raised first was raised over the other's.
        let mut known: Vec<_> = known.collect();
        known.reverse();
        known.retain(|(path, value)| fs::write(path, value.to_string()).is_ok());
        known
    }

    fn read(&self) -> Option<Before> {
        read(&self.0)
    }
}

fn read(path: &Path) -> Option<Before> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_during_a_run_and_put_back_afterwards() {
        let path = std::env::temp_dir().join(format!("natrix-limits-{}", std::process::id()));
        let limits = Limits(path.clone());
        limits.remember(&[(MAX, 65_536)]);
        assert_eq!(read(&path).unwrap().limits, [(MAX.to_owned(), 65_536)]);
        assert_eq!(limits.put_back_left(), [], "its owner lives");
        limits.forget();
        assert!(!path.exists());
        // Of another that lives nothing is overwritten, nor taken away.
        let of = |pid: u32, limit: &str| Before { pid, limits: vec![(limit.to_owned(), 1)] };
        fs::write(&path, serde_json::to_string(&of(1, MAX)).unwrap()).unwrap();
        limits.remember(&[(MAX, 5)]);
        limits.forget();
        assert_eq!(read(&path).unwrap().limits, [(MAX.to_owned(), 1)]);
        // One that is gone; no other file than these two is written.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        fs::write(&path, serde_json::to_string(&of(child.id(), "/tmp/natrix-not-a-limit")).unwrap()).unwrap();
        assert_eq!(limits.put_back_left(), []);
        assert!(!path.exists() && !Path::new("/tmp/natrix-not-a-limit").exists());
    }
}
