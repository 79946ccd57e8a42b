//! Ports whose devices another instance has.

use daemon::claims::PortTaken;
use daemon::claims::REMEDY;

use super::Finding;
use super::Level;
use super::finding;

/// `running`: the process of the instance with this configuration, if it runs; the inner value is
/// None if its number is not known.
pub(super) fn check(taken: &[PortTaken], running: Option<Option<u32>>) -> Vec<Finding> {
    let is_own = |one: &&PortTaken| {
        running.is_some_and(|running| running.is_none() || one.held.pid.is_none() || running == one.held.pid)
    };
    let other = taken.iter().filter(|one| !is_own(one));
    other
        .map(|one| finding(&format!("port {}: instance", one.port), Level::Error, one.held.to_string(), REMEDY))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pid: Option<u32>) -> [PortTaken; 1] {
        let config = config();
        let claims = daemon::claims::take(&config).unwrap();
        let [mut found] = <[PortTaken; 1]>::try_from(daemon::claims::taken(&config)).unwrap();
        drop(claims);
        found.held.pid = pid;
        [found]
    }

    /// A device of this process alone.
    fn config() -> config::Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_ring0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_af_packet0,iface=dt{}\"\n\
             addresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n",
            std::process::id()
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_port_of_another_instance_is_an_error() {
        let one = taken(Some(17));
        let found = check(&one, None);
        assert_eq!((found.len(), found[0].level), (1, Level::Error), "no instance answers");
        assert_eq!(found[0].check, "port out: instance");
        assert!(found[0].seen.starts_with("another natrix already runs on dt"), "{found:?}");
        assert!(found[0].seen.ends_with(" (pid 17)"), "{found:?}");
        assert_eq!(found[0].remedy, "stop it, or give this port another device");
        assert_eq!(check(&one, Some(Some(18))).len(), 1, "the one that answers is another");
        assert_eq!(check(&one, Some(Some(17))), [], "it is the one with this configuration");
        for unknown in [check(&one, Some(None)), check(&taken(None), Some(Some(17)))] {
            assert_eq!(unknown, [], "whether it is the same is not known");
        }
        assert_eq!(check(&[], None), []);
    }
}
