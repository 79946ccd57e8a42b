//! How much memory there is left, asked before taking any.

use std::fs;

/// Bytes that can be taken without pushing the machine, or this process's control group, out of memory.
///
/// None when `/proc/meminfo` does not tell.
pub fn bytes() -> Option<u64> {
    let machine = parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(group_bytes().map_or(machine, |group| group.min(machine)))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the tightest memory limit among this process's control groups (version 2) leaves, when there is one.
fn group_bytes() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut least = None;
    loop {
        let directory = format!("/sys/fs/cgroup{path}");
        if let Some(left) = group_left(&directory) {
            least = Some(least.map_or(left, |other: u64| other.min(left)));
        }
        match path.rsplit_once('/') {
            Some((parent, name)) if !name.is_empty() => path = parent,
            _ => return least,
        }
    }
}

fn group_left(directory: &str) -> Option<u64> {
    let limit: u64 = fs::read_to_string(format!("{directory}/memory.max")).ok()?.trim().parse().ok()?;
    let used: u64 = fs::read_to_string(format!("{directory}/memory.current")).ok()?.trim().parse().ok()?;
    // Cached file pages count as used, but the kernel drops them when memory is needed.
    let statistics = fs::read_to_string(format!("{directory}/memory.stat")).unwrap_or_default();
    let cached: u64 = statistics
        .lines()
        .filter_map(|line| line.strip_prefix("inactive_file ").or_else(|| line.strip_prefix("active_file ")))
        .filter_map(|number| number.trim().parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:   24096000 kB\n";
        assert_eq!(parse_meminfo(text), Some(24_096_000 * 1024));
        assert_eq!(parse_meminfo("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn this_machine_tells_how_much_is_left() {
        assert!(bytes().is_some_and(|bytes| bytes > 0));
    }
}
