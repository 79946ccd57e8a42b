//! What stands in the way of devices in the kernel (`kernel = "NAME"`), and what they need.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use config::Config;
use config::Port;
use daemon::kernel::ingress::copied_from;
use daemon::kernel::ingress::copying_ports;
use daemon::kernel::ingress::is_closed;
use daemon::kernel::ingress::is_reached;

use super::Finding;
use super::Level;
use super::XDP;
use super::finding;
use super::ok;
use crate::machine::Files;

/// All checks of devices. `addresses`: of this machine, by interface. `is_running`: an instance
/// with this configuration runs, so its devices are there.
pub(super) fn examine(
    files: &Files,
    config: &Config,
    addresses: &BTreeMap<String, Vec<(Ipv4Addr, u8)>>,
    is_running: bool,
) -> Vec<Finding> {
    let named = config.interfaces.iter().zip(&config.kernel).filter_map(|(link, name)| Some((link, name.as_ref()?)));
    let mut found = Vec::new();
    let mut has_vlans = false;
    for (link, name) in named {
        let is_vlan = link.vlan.is_some();
        has_vlans |= is_vlan;
        found.extend(name_is_free(files, name, is_vlan, is_running));
    }
    if has_vlans {
        found.push(vlans(files));
    }
    found.extend(copying_ports(config).map(|(port, device)| {
        let own = addresses.get(device).map_or(&[][..], Vec::as_slice);
        let own = own.iter().map(|(address, _)| IpAddr::V4(*address)).chain(addresses6(files, device)).collect();
        // Without CAP_NET_ADMIN, the kernel does not say.
        let is_closed = if is_running { is_closed(device).ok() } else { None };
        heard_twice(files, &format!("port {}: kernel", port.name), (device, own), is_closed)
    }));
    found.extend(also_received(files, config, addresses));
    found
}

/// Ports without a device in the kernel whose interface has an address of the kernel: it answers,
/// and it forwards what subscribers send as it is.
fn also_received(files: &Files, config: &Config, addresses: &BTreeMap<String, Vec<(Ipv4Addr, u8)>>) -> Vec<Finding> {
    let links = || config.interfaces.iter().zip(&config.kernel);
    let has_device =
        |port: usize| links().any(|(link, name)| link.port == port && link.vlan.is_none() && name.is_some());
    let mut found = Vec::new();
    for (_, port) in config.ports.iter().enumerate().filter(|(index, _)| !has_device(*index)) {
        // A queue of AF_XDP takes the packets away from the kernel while there is an instance.
        let when = if port.driver.starts_with(XDP) { " while no instance runs" } else { "" };
        let device = received_from(port).and_then(|device| Some((device, addresses.get(device)?.first()?.0)));
        let Some((device, address)) = device else { continue };
        let check = format!("port {}: kernel", port.name);
        let key = format!("net.ipv4.conf.{}.forwarding", device.replace('.', "/"));
        let of_device = files.text(&format!("proc/sys/net/ipv4/conf/{device}/forwarding"));
        let of_all = || files.text("proc/sys/net/ipv4/ip_forward");
        let forwards = if of_device.is_empty() { of_all() } else { of_device } == "1";
        let remedy = format!("ip address flush dev {device}");
        found.push(match forwards {
            true => {
                let seen = format!(
                    "{device} has the address {address}, and {key} is 1: the kernel forwards packets of subscribers \
                     untranslated{when}"
                );
                finding(&check, Level::Error, seen, format!("{remedy}; sysctl -w {key}=0"))
            }
            false => {
                let seen =
                    format!("{device} has the address {address}: the kernel answers what Natrix answers, too{when}");
                finding(&check, Level::Warning, seen, remedy)
            }
        });
    }
    found
}

/// The interface that a port receives from beside the kernel; none if the kernel never receives
/// what the port does.
fn received_from(port: &Port) -> Option<&str> {
    let of_xdp = || port.driver.split(',').find_map(|word| word.strip_prefix("iface="));
    copied_from(port).or_else(|| of_xdp().filter(|_| port.driver.starts_with(XDP)))
}

/// `natrix run` makes the device itself, and refuses one of the same name that it did not make.
fn name_is_free(files: &Files, name: &str, is_vlan: bool, is_running: bool) -> Option<Finding> {
    let folder = format!("sys/class/net/{name}");
    if !files.exists(&folder) {
        return None;
    }
    let check = format!("kernel device {name}");
    let is_tap = files.exists(&format!("{folder}/tun_flags"));
    let is_vlan_device = files.text(&format!("{folder}/uevent")).lines().any(|line| line == "DEVTYPE=vlan");
    // A VLAN device that is right is used, even one made by hand. Only `natrix run` knows its port.
    if is_vlan && is_vlan_device || !is_vlan && is_tap && is_running {
        return Some(ok(&check, "is there"));
    }
    let remedy = format!("choose another name for kernel; or remove the device: ip link del {name}");
    Some(match is_tap && !is_vlan {
        // The service manager may keep it for the next start.
        true => finding(&check, Level::Warning, "a TAP has the name, and no instance runs", remedy),
        false => finding(&check, Level::Error, "the name belongs to another device", remedy),
    })
}

/// Whether the kernel has VLAN devices, or a module for them.
fn vlans(files: &Files) -> Finding {
    let release = files.text("proc/sys/kernel/osrelease");
    let is_module = |list: &str| files.text(&format!("lib/modules/{}/{list}", release.trim())).contains("/8021q.ko");
    let has = files.exists("proc/net/vlan") || files.exists("sys/module/8021q");
    if has || is_module("modules.dep") || is_module("modules.builtin") {
        return ok("VLAN devices", "the kernel has them");
    }
    let remedy =
        "install the module 8021q of this kernel; or remove kernel from interfaces whose port has sub-interfaces";
    finding("VLAN devices", Level::Error, "this kernel has none (8021q)", remedy)
}

/// The IPv6 addresses of a device that others than stations of its link may use.
fn addresses6(files: &Files, device: &str) -> Vec<IpAddr> {
    let all = files.text("proc/net/if_inet6");
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let bits = u128::from_str_radix(fields.first()?, 16).ok()?;
        (*fields.last()? == device).then(|| IpAddr::from(Ipv6Addr::from_bits(bits)))
    };
    all.lines().filter_map(address).filter(|address| is_reached(*address)).collect()
}

/// A packet socket gets copies. `natrix run` keeps the kernel from receiving by such a port, but
/// not while another program uses it. `is_closed`: whether a running instance does so; None: not
/// known.
fn heard_twice(files: &Files, check: &str, (device, own): (&str, Vec<IpAddr>), is_closed: Option<bool>) -> Finding {
    let folder = format!("sys/class/net/{device}");
    let others = files.names(&folder).into_iter().filter_map(|name| name.strip_prefix("upper_").map(str::to_owned));
    let is_vrf = |name: &String| {
        let kind = files.text(&format!("sys/class/net/{name}/uevent"));
        kind.lines().any(|line| line == "DEVTYPE=vrf")
    };
    let others: Vec<String> = others.filter(|name| !is_vrf(name)).collect();
    let forwards = files.text("proc/sys/net/ipv4/ip_forward").trim() == "1";
    let (used, remedy) = match (own.first(), others.as_slice()) {
        (None, []) if is_closed == Some(false) => {
            let remedy = "see the log of natrix run; load the module nf_tables; or use net_af_xdp".to_owned();
            ("the running instance has no nftables table for it".to_owned(), remedy)
        }
        (None, []) => {
            let when = if is_closed.is_some() { "now" } else { "while Natrix runs" };
            return ok(check, format!("the kernel does not receive by {device} {when}"));
        }
        (Some(first), _) => {
            (format!("{device} has the address {first}"), format!("ip address flush dev {device}; or use net_af_xdp"))
        }
        (None, others) => {
            let remedy = "use a device that no other device uses; or use net_af_xdp".to_owned();
            (format!("{device} is below {}", others.join(", ")), remedy)
        }
    };
    if is_closed == Some(true) {
        // Between two looks of the instance.
        let seen = format!("{used}, but the running instance still drops what comes there for the kernel");
        return finding(check, Level::Warning, seen, remedy);
    }
    if forwards {
        let seen = format!("{used}, and ip_forward is 1: the kernel forwards packets of subscribers untranslated");
        return finding(check, Level::Error, seen, remedy);
    }
    finding(check, Level::Warning, format!("{used}: the kernel answers what Natrix answers, too"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Tree;

    const OUT: &str = "[[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"0000:3b:00.1\"\n\
                       addresses = [\"192.0.2.2/30\"]\n\
                       [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/23\"]\n";

    fn config(driver: &str, more: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"{driver}\"\nkernel = \"nx-in\"\n\
             addresses = [\"100.64.0.1/24\"]\n{more}{OUT}"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    fn found(config: &Config, files: &[(&str, &str)], addresses: &[&str], is_running: bool) -> Vec<(Level, String)> {
        let own = addresses.iter().map(|address| (address.parse().unwrap(), 24)).collect();
        let addresses = BTreeMap::from([("eth1".to_owned(), own)]);
        let found = examine(&Tree::new("devices", files).files(), config, &addresses, is_running);
        found.into_iter().map(|one| (one.level, one.seen)).collect()
    }

    #[test]
    fn a_name_that_another_device_has_is_an_error() {
        let config = config("0000:3b:00.0", "");
        let taken = vec![(Level::Error, "the name belongs to another device".to_owned())];
        assert_eq!(found(&config, &[], &[], false), []);
        assert_eq!(found(&config, &[("sys/class/net/nx-in/uevent", "IFINDEX=4\n")], &[], true), taken);
        let tap = [("sys/class/net/nx-in/tun_flags", "0x1002")];
        assert_eq!(found(&config, &tap, &[], false)[0].0, Level::Warning, "possibly another program's TAP");
        assert_eq!(found(&config, &tap, &[], true), [(Level::Ok, "is there".to_owned())]);
    }

    #[test]
    fn a_kernel_without_vlans_is_an_error() {
        let more = "[[interface]]\nname = \"v\"\nrealm = \"inside\"\nparent = \"in\"\nvlan = 7\n\
                    addresses = [\"100.64.1.1/24\"]\n";
        let config = config("0000:3b:00.0", more);
        let level = |files: &[(&str, &str)]| found(&config, files, &[], false)[0].0;
        let release = ("proc/sys/kernel/osrelease", "6.1.0\n");
        assert_eq!(level(&[release]), Level::Error);
        assert_eq!(level(&[("proc/net/vlan/config", "")]), Level::Ok);
        let module = "kernel/net/8021q/8021q.ko.xz: kernel/net/llc/llc.ko.xz\n";
        assert_eq!(level(&[release, ("lib/modules/6.1.0/modules.dep", module)]), Level::Ok);
        let other = [release, ("lib/modules/6.1.0/modules.dep", module), ("sys/class/net/nx-in.7/uevent", "")];
        assert_eq!(found(&config, &other, &[], false)[0].0, Level::Error, "the name");
        let vlan = [release, ("sys/class/net/nx-in.7/uevent", "DEVTYPE=vlan\n"), ("proc/net/vlan/config", "")];
        assert!(found(&config, &vlan, &[], false).iter().all(|(level, _)| *level == Level::Ok));
    }

    #[test]
    fn a_port_that_the_kernel_hears_too_must_have_no_address() {
        let forwards = ("proc/sys/net/ipv4/ip_forward", "1\n");
        let packet = config("net_af_packet0,iface=eth1", "");
        let level = |files: &[(&str, &str)], addresses: &[&str]| found(&packet, files, addresses, false)[0].0;
        assert_eq!(level(&[forwards], &[]), Level::Ok, "natrix run keeps the kernel from hearing it");
        assert_eq!(level(&[], &["192.168.7.1"]), Level::Warning);
        assert_eq!(level(&[forwards], &["192.168.7.1"]), Level::Error);
        let address = |kind: &str| format!("{kind}0000000000000000000000000002 04 40 00 80 eth1\n");
        let (of_link, global) = (address("fe80"), address("2001"));
        assert_eq!(level(&[("proc/net/if_inet6", &of_link)], &[]), Level::Ok, "every device has one");
        assert_eq!(level(&[("proc/net/if_inet6", &global)], &[]), Level::Warning);
        let above = [("sys/class/net/eth1/upper_mv0/ifindex", "8\n")];
        assert_eq!(
            found(&packet, &above, &[], false)[0].1,
            "eth1 is below mv0: the kernel answers what Natrix answers, too"
        );
        let vrf = [("sys/class/net/eth1/upper_red/ifindex", "9\n"), ("sys/class/net/red/uevent", "DEVTYPE=vrf\n")];
        assert_eq!(level(&vrf, &[]), Level::Ok, "a VRF takes nothing away");
        let files = Tree::new("ingress", &[]).files();
        let seen = |own: &[&str], is_closed| {
            let own = own.iter().map(|address| address.parse().unwrap()).collect();
            let found = heard_twice(&files, "port in: kernel", ("eth1", own), is_closed);
            (found.level, found.seen)
        };
        assert_eq!(seen(&[], Some(true)), (Level::Ok, "the kernel does not receive by eth1 now".to_owned()));
        assert_eq!(seen(&[], Some(false)).0, Level::Warning, "the chain could not be made");
        assert!(seen(&["192.168.7.1"], Some(true)).1.contains("still drops"));
        assert_eq!(found(&config("net_af_xdp0,iface=eth1", ""), &[forwards], &["192.168.7.1"], false), []);
    }

    #[test]
    fn an_address_of_the_kernel_on_a_port_is_found() {
        let text = |driver: &str| {
            format!(
                "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"{driver}\"\n\
                 addresses = [\"100.64.0.1/24\"]\n{OUT}"
            )
        };
        let parse =
            |driver: &str| config::parse(&text(driver), "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"));
        let [packet, xdp] = ["net_af_packet0,iface=eth1", "net_af_xdp0,iface=eth1"].map(parse);
        let own = &["192.168.7.1"][..];
        assert_eq!(found(&packet, &[], &[], false), []);
        let answers = "eth1 has the address 192.168.7.1: the kernel answers what Natrix answers, too";
        assert_eq!(found(&packet, &[], own, false), [(Level::Warning, answers.to_owned())]);
        assert_eq!(found(&xdp, &[], own, false), [(Level::Warning, format!("{answers} while no instance runs"))]);
        let forwards = ("proc/sys/net/ipv4/ip_forward", "1\n");
        let of_device = |on: &'static str| ("proc/sys/net/ipv4/conf/eth1/forwarding", on);
        for files in [&[forwards][..], &[of_device("1\n")], &[forwards, of_device("1\n")]] {
            for config in [&packet, &xdp] {
                let one = found(config, files, own, false);
                assert_eq!((one.len(), one[0].0), (1, Level::Error), "{one:?}");
                assert!(one[0].1.contains("the kernel forwards packets of subscribers untranslated"), "{one:?}");
            }
        }
        assert_eq!(found(&packet, &[forwards, of_device("0\n")], own, false)[0].0, Level::Warning, "not by this one");
        assert_eq!(found(&packet, &[forwards], &[], false), []);
        let addresses = BTreeMap::from([("eth1".to_owned(), vec![("192.168.7.1".parse().unwrap(), 24)])]);
        let one = &examine(&Tree::new("forwards", &[forwards]).files(), &packet, &addresses, false)[0];
        assert_eq!(one.remedy, "ip address flush dev eth1; sysctl -w net.ipv4.conf.eth1.forwarding=0");
        assert_eq!(found(&parse("net_tap0,iface=eth1"), &[forwards], own, false), [], "the kernel sends into it");
        assert_eq!(found(&parse("0000:3b:00.0"), &[forwards], own, false), []);
    }
}
