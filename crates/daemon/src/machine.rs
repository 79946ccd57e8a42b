//! The resources of the machine, to check a configuration before anything is allocated.

use std::fs;

use config::Machine;
use mem::Stock;

/// CPUs and memory of this machine, as far as known.
pub fn this_machine() -> Machine {
    Machine { cpus: cpus(), memory: Some(Stock::of_this_machine()), has_folders: true }
}

/// One more than the highest number of an online CPU.
fn cpus() -> Option<usize> {
    parse_cpus(&fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

fn parse_cpus(list: &str) -> Option<usize> {
    let last: usize = list.trim().rsplit([',', '-']).next()?.parse().ok()?;
    last.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_end_with_the_highest() {
        assert_eq!(parse_cpus("0-3\n"), Some(4));
        assert_eq!(parse_cpus("0,2-5,7\n"), Some(8));
        assert_eq!(parse_cpus("0\n"), Some(1));
        assert_eq!(parse_cpus(""), None);
    }

    #[test]
    fn this_machine_reports_its_cpus_and_memory() {
        let machine = this_machine();
        assert!(machine.cpus.is_some_and(|cpus| cpus > 0) && machine.memory.is_some());
    }
}
