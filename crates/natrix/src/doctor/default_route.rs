//! A default route of the machine itself, which takes the place of the one that a routing daemon
//! has learned.

use config::Config;
use daemon::kernel::setup::devices_outside;
use daemon::kernel::setup::has_default_outside;

use crate::doctor::Finding;
use crate::doctor::Level;
use crate::doctor::finding;
use crate::doctor::ok;
use crate::machine::Files;

/// The kernel's number of the main table.
const MAIN: u32 = 254;

/// Whether the main table has a default route by a device that is no port of Natrix. None if
/// Natrix does not take its routes outside from there.
pub(super) fn check(files: &Files, config: &Config) -> Option<Finding> {
    if !config.nat.live_routes {
        return None;
    }
    // Routes of a VRF device are in its table.
    let is_in_vrf = |name: &str| files.exists(&format!("sys/class/net/{name}/master"));
    let is_main = |(name, table): (&str, Option<u32>)| table.map_or_else(|| !is_in_vrf(name), |table| table == MAIN);
    if !devices_outside(config).any(is_main) {
        return None;
    }
    if has_default_outside(config) {
        return Some(ok("default route", "in the configuration, so none of the kernel counts outside"));
    }
    // BIRD adds its own beside others.
    if files.exists("run/bird/bird.ctl") && !files.exists("run/frr/zserv.api") {
        return Some(ok("default route", "BIRD leaves the one it has learned beside others"));
    }
    let routes = files.text("proc/net/route");
    let mut others: Vec<&str> = routes.lines().skip(1).filter_map(default_by).collect();
    others.retain(|name| !config.kernel.iter().flatten().any(|own| own == name));
    others.sort_unstable();
    others.dedup();
    if others.is_empty() {
        return Some(ok("default route", "none through a device that is not a port of Natrix"));
    }
    let seen = format!(
        "a default route uses {}, which is not a port of Natrix; FRR prefers it to the route it has learned",
        others.join(", ")
    );
    let remedy = "give that device a routing table of its own: docs/routing.md, \"A management port\"";
    Some(finding("default route", Level::Warning, seen, remedy))
}

/// The device of a default route, from a line of `/proc/net/route`.
fn default_by(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (name, destination, mask) = (fields.first()?, fields.get(1)?, fields.get(7)?);
    let leads = [destination, mask].iter().all(|part| part.bytes().all(|digit| digit == b'0'));
    // A route that drops packets has no device.
    (leads && **name != *"*").then_some(*name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Tree;

    fn config(table: &str, routing: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"0000:3b:00.0\"\n\
             addresses = [\"100.64.0.1/24\"]\nkernel = \"nx-in\"\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"0000:3b:00.1\"\n\
             addresses = [\"192.0.2.2/30\"]\nkernel = \"nx-out\"\n{table}\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n{routing}"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_default_route_by_another_device_is_found() {
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let own = "nx-out\t00000000\t010200C0\t0003\t0\t0\t20\t00000000\t0\t0\t0\n";
        let dropped = "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n";
        let subnet = "eth0\t000010AC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let by = |name: &str| format!("{name}\t00000000\t010010AC\t0003\t0\t0\t1024\t00000000\t0\t0\t0\n");
        let follows = "[routing]\nkernel = true\n";
        let found = |routes: &str, config: &Config, more: &[(&str, &str)]| {
            let text = format!("{head}{routes}");
            let mut tree = vec![("proc/net/route", text.as_str())];
            tree.extend(more);
            check(&Tree::new("default", &tree).files(), config)
        };
        let usual = config("", follows);
        let calm = found(&format!("{own}{subnet}{dropped}"), &usual, &[]).unwrap();
        assert_eq!(calm.level, Level::Ok, "{calm:?}");
        let both = format!("{own}{}{}{subnet}", by("wlan0"), by("eth0"));
        let warned = found(&both, &usual, &[]).unwrap();
        assert_eq!(warned.level, Level::Warning, "{warned:?}");
        assert!(warned.seen.starts_with("a default route uses eth0, wlan0, which"), "{warned:?}");
        let fixed = config("", &format!("{follows}[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.1\"\n"));
        assert_eq!(found(&both, &fixed, &[]).unwrap().level, Level::Ok, "Natrix prefers its own");
        let bird = ("run/bird/bird.ctl", "");
        assert_eq!(found(&both, &usual, &[bird]).unwrap().level, Level::Ok);
        assert_eq!(found(&both, &usual, &[bird, ("run/frr/zserv.api", "")]).unwrap().level, Level::Warning);
        assert_eq!(found(&both, &config("", ""), &[]), None, "routes are those of the file");
        assert_eq!(found(&both, &config("kernel_table = 10\n", follows), &[]), None, "another table");
        assert_eq!(found(&both, &usual, &[("sys/class/net/nx-out/master/ifindex", "7")]), None, "a VRF device");
    }
}
