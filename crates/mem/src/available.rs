//! How much memory is left.

use std::fs;

/// Ordinary memory to take without exhausting the machine or this process's control group.
///
/// None if `/proc/meminfo` does not say.
pub fn bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = parse_meminfo(&meminfo, "MemAvailable:")?;
    let limits = [group_bytes(), commit_bytes(&meminfo), address_space_bytes()];
    Some(limits.into_iter().flatten().fold(machine, u64::min))
}

/// In bytes, from `/proc/meminfo` or a file in its format.
fn parse_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the kernel may still promise, if it does not overcommit.
fn commit_bytes(meminfo: &str) -> Option<u64> {
    if fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?.trim() != "2" {
        return None;
    }
    Some(parse_meminfo(meminfo, "CommitLimit:")?.saturating_sub(parse_meminfo(meminfo, "Committed_AS:")?))
}

/// For thread stacks and small mappings.
const ADDRESS_SPACE_KEPT: u64 = 64 << 20;

/// Bytes that this process may still map, on pages of any kind. None without a limit (`ulimit -v`).
pub(crate) fn address_space_bytes() -> Option<u64> {
    let limit = parse_address_space(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let mapped = parse_meminfo(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:").unwrap_or(0);
    Some(limit.saturating_sub(mapped).saturating_sub(ADDRESS_SPACE_KEPT))
}

fn parse_address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of this process on transparent hugepages. None if the kernel does not say.
pub(crate) fn transparent_bytes() -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "AnonHugePages:")
}

/// What the tightest memory limit among the control groups leaves, if one is set.
fn group_bytes() -> Option<u64> {
    let version_2 = least_of_groups("", "/sys/fs/cgroup", |group| {
        // The kernel drops cached file pages under pressure.
        let cached = sum_of_lines(group, "memory.stat", &["inactive_file ", "active_file "]);
        Some(number(group, "memory.max")?.saturating_sub(number(group, "memory.current")?.saturating_sub(cached)))
    });
    let version_1 = least_of_groups("memory", "/sys/fs/cgroup/memory", |group| {
        let cached = sum_of_lines(group, "memory.stat", &["total_inactive_file ", "total_active_file "]);
        let used = number(group, "memory.usage_in_bytes")?.saturating_sub(cached);
        Some(number(group, "memory.limit_in_bytes")?.saturating_sub(used))
    });
    [version_1, version_2].into_iter().flatten().min()
}

/// What the tightest limit on hugepages of this size (`2MB`, `1GB`) leaves, if one is set.
pub(crate) fn group_hugepage_bytes(size: &str) -> Option<u64> {
    let left = |group: &str, limit: &str, used: &str| {
        let [limit, used] = [limit, used].map(|name| number(group, &format!("hugetlb.{size}.{name}")));
        Some(limit?.saturating_sub(used?))
    };
    let version_2 = least_of_groups("", "/sys/fs/cgroup", |group| left(group, "max", "current"));
    let version_1 =
        least_of_groups("hugetlb", "/sys/fs/cgroup/hugetlb", |group| left(group, "limit_in_bytes", "usage_in_bytes"));
    [version_1, version_2].into_iter().flatten().min()
}

/// The minimum of `left` over this process's groups under the controller (none in version 2).
fn least_of_groups(controller: &str, root: &str, left: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut path = group_path(&membership, controller)?;
    let mut least = None;
    loop {
        if let Some(left) = left(&format!("{root}{path}")) {
            least = Some(least.map_or(left, |other: u64| other.min(left)));
        }
        match path.rsplit_once('/') {
            Some((parent, name)) if !name.is_empty() => path = parent,
            _ => return least,
        }
    }
}

/// From lines like `4:memory:/a/b`, or `0::/a/b` in version 2.
fn group_path<'m>(membership: &'m str, controller: &str) -> Option<&'m str> {
    membership.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

fn number(group: &str, file: &str) -> Option<u64> {
    fs::read_to_string(format!("{group}/{file}")).ok()?.trim().parse().ok()
}

/// The sum of the numbers behind these words.
fn sum_of_lines(group: &str, file: &str, words: &[&str]) -> u64 {
    let text = fs::read_to_string(format!("{group}/{file}")).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| words.iter().find_map(|word| line.strip_prefix(word)));
    numbers.filter_map(|number| number.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:   24096000 kB\n";
        assert_eq!(parse_meminfo(text, "MemAvailable:"), Some(24_096_000 * 1024));
        assert_eq!(parse_meminfo("MemTotal: 100 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn address_space_is_limited_only_where_it_says_so() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max address space         1073741824           unlimited            bytes     \n";
        assert_eq!(parse_address_space(limits), Some(1 << 30));
        assert_eq!(parse_address_space(&limits.replace("1073741824", "unlimited ")), None);
    }

    #[test]
    fn control_groups_of_both_versions_are_found() {
        let membership = "9:name=systemd:/\n4:memory,hugetlb:/a/b\n0::/c\n";
        assert_eq!(group_path(membership, "memory"), Some("/a/b"));
        assert_eq!(group_path(membership, "hugetlb"), Some("/a/b"));
        assert_eq!(group_path(membership, ""), Some("/c"));
        assert_eq!(group_path(membership, "cpu"), None);
    }

    #[test]
    fn this_machine_reports_its_available_memory() {
        assert!(bytes().is_some_and(|bytes| bytes > 0));
    }
}
