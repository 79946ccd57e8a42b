//! CPUs of the tester and of the device: those of the command line, or those that this process may
//! use.

use cli::LabProbe;
use cli::LabTest;

/// CPUs that the calling thread may use, the lowest first. Ask before it is pinned.
fn allowed() -> Vec<u8> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().filter_map(|core| u8::try_from(core.id).ok()).collect()
}

/// The options with a CPU for the tester and at least one for the device.
pub(super) fn of_test(options: &LabTest) -> LabTest {
    let (tester, device) = choose(options.tester_cpu, &options.device_cpus, &allowed());
    LabTest { tester_cpu: Some(tester), device_cpus: device, ..options.clone() }
}

/// The same of a probe.
pub(super) fn of_probe(options: &LabProbe) -> LabProbe {
    let (tester, device) = choose(options.tester_cpu, options.device_cpu.as_slice(), &allowed());
    LabProbe { tester_cpu: Some(tester), device_cpu: device.first().copied(), ..options.clone() }
}

/// The CPU of the tester and those of the device. What is given stays as it is. Otherwise the
/// lowest allowed CPU that the other does not have; both share it if there is only one.
fn choose(tester: Option<u8>, device: &[u8], allowed: &[u8]) -> (u8, Vec<u8>) {
    let lowest_but = |taken: &[u8]| {
        let free = allowed.iter().find(|cpu| !taken.contains(cpu));
        free.or_else(|| allowed.first()).copied().unwrap_or_default()
    };
    let tester = tester.unwrap_or_else(|| lowest_but(device));
    let device = if device.is_empty() { vec![lowest_but(&[tester])] } else { device.to_vec() };
    (tester, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tester_and_device_get_the_lowest_allowed_cpus() {
        assert_eq!(choose(None, &[], &[0, 1, 2]), (0, vec![1]));
        assert_eq!(choose(None, &[], &[4, 6]), (4, vec![6]));
        assert_eq!(choose(None, &[], &[1]), (1, vec![1]), "both share the only one");
    }

    #[test]
    fn a_given_cpu_stays_and_the_other_gets_another() {
        assert_eq!(choose(Some(1), &[], &[0, 1]), (1, vec![0]));
        assert_eq!(choose(None, &[0, 1], &[0, 1, 2]), (2, vec![0, 1]));
        assert_eq!(choose(Some(7), &[], &[2, 3]), (7, vec![2]), "one that is not allowed is refused later");
        assert_eq!(choose(Some(3), &[3], &[2, 3]), (3, vec![3]));
    }
}
