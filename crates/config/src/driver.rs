//! Driver strings: which device, and whether DPDK knows such a kind.

use crate::model::DriverKind;

/// A virtual device and what it cannot do without.
struct VirtualKind {
    name: &'static str,
    /// Arguments one of which it needs; none when it needs none.
    needs: &'static [&'static str],
    example: &'static str,
}

const VIRTUAL_KINDS: [VirtualKind; 8] = [
    VirtualKind { name: "net_af_xdp", needs: &["iface"], example: "net_af_xdp0,iface=eth1" },
    VirtualKind { name: "net_af_packet", needs: &["iface"], example: "net_af_packet0,iface=eth1" },
    VirtualKind { name: "net_tap", needs: &[], example: "net_tap0" },
    VirtualKind { name: "net_memif", needs: &[], example: "net_memif0" },
    VirtualKind { name: "net_virtio_user", needs: &["path"], example: "net_virtio_user0,path=/dev/vhost-net" },
    VirtualKind { name: "net_ring", needs: &[], example: "net_ring0" },
    VirtualKind {
        name: "net_pcap",
        needs: &["iface", "rx_pcap", "rx_iface", "rx_iface_in"],
        example: "net_pcap0,iface=eth1",
    },
    VirtualKind { name: "net_null", needs: &[], example: "net_null0" },
];

/// A driver string taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    /// As written; a PCI address with its domain and in lower case.
    pub(crate) text: String,
    pub(crate) kind: DriverKind,
    /// What no two ports may share: the PCI address or the name of the virtual device.
    pub(crate) device: String,
    /// The kernel's interface it takes packets from.
    pub(crate) kernel_interface: Option<String>,
}

/// What is wrong with a driver string, and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverFault {
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

fn fault(problem: impl Into<String>, remedy: impl Into<String>) -> DriverFault {
    DriverFault { problem: problem.into(), remedy: remedy.into() }
}

/// Takes a driver string apart.
pub(crate) fn parse(text: &str) -> Result<Driver, DriverFault> {
    let kinds = || {
        let names: Vec<&str> = VIRTUAL_KINDS.iter().map(|kind| kind.name).collect();
        format!("write a PCI address such as \"0000:3b:00.0\", or one of {} with its arguments", names.join(", "))
    };
    if text.is_empty() {
        return Err(fault("is empty", kinds()));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(fault("contains white space", "remove it: DPDK takes driver strings literally"));
    }
    let (device, arguments) = text.split_once(',').map_or((text, None), |(device, rest)| (device, Some(rest)));
    if let Some(address) = pci_address(device) {
        let text = arguments.map_or_else(|| address.clone(), |arguments| format!("{address},{arguments}"));
        return Ok(Driver { text, kind: DriverKind::Pci, device: address, kernel_interface: None });
    }
    let Some(kind) = VIRTUAL_KINDS.iter().find(|kind| is_instance(device, kind.name)) else {
        return Err(fault("is not a known kind of driver", kinds()));
    };
    let mut pairs = Vec::new();
    for argument in arguments.into_iter().flat_map(|arguments| arguments.split(',')) {
        match argument.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => pairs.push((name, value)),
            _ => {
                let problem = format!("has the argument \"{argument}\", which is not name=value");
                return Err(fault(problem, format!("write it as in \"{}\"", kind.example)));
            }
        }
    }
    if !kind.needs.is_empty() && !pairs.iter().any(|(name, _)| kind.needs.contains(name)) {
        let problem = format!("does not say which {}", kind.needs.first().copied().unwrap_or_default());
        return Err(fault(problem, format!("write it as in \"{}\"", kind.example)));
    }
    // The interfaces that net_tap makes are its own: two of the same name clash just as well.
    let kernel_interface = pairs.iter().find(|(name, _)| *name == "iface").map(|(_, value)| (*value).to_owned());
    if let Some(name) = kernel_interface.as_deref().filter(|name| name.len() > 15) {
        let problem = format!("names the interface \"{name}\" of {} characters", name.len());
        return Err(fault(problem, "write a name of at most 15 characters, which is what Linux allows"));
    }
    Ok(Driver { text: text.to_owned(), kind: DriverKind::Virtual, device: device.to_owned(), kernel_interface })
}

/// `net_tap`, `net_tap0`, `net_tap_wan`.
fn is_instance(device: &str, kind: &str) -> bool {
    device.strip_prefix(kind).is_some_and(|rest| {
        let starts_well = rest.chars().next().is_none_or(|c| c.is_ascii_digit() || c == '_');
        starts_well && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// `[dddd:]bb:dd.f` in lower case with its domain.
fn pci_address(text: &str) -> Option<String> {
    let (before, function) = text.rsplit_once('.')?;
    let parts: Vec<&str> = before.split(':').collect();
    let (domain, bus, device) = match parts.as_slice() {
        [bus, device] => ("0000", *bus, *device),
        [domain, bus, device] => (*domain, *bus, *device),
        _ => return None,
    };
    let is_hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_function = matches!(function.as_bytes(), [b'0'..=b'7']);
    let is_address = (is_hex(domain, 4) || is_hex(domain, 8)) && is_hex(bus, 2) && is_hex(device, 2) && is_function;
    is_address.then(|| format!("{domain}:{bus}:{device}.{function}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_gets_its_domain() {
        let driver = parse("3B:00.0").expect("a PCI address");
        assert_eq!((driver.text.as_str(), driver.kind), ("0000:3b:00.0", DriverKind::Pci));
        assert_eq!(parse("0000:3b:00.1,arg=1").map(|driver| driver.text).as_deref(), Ok("0000:3b:00.1,arg=1"));
        assert!(parse("3b:00.9").is_err());
    }

    #[test]
    fn every_example_is_a_driver() {
        for kind in &VIRTUAL_KINDS {
            assert!(parse(kind.example).is_ok_and(|driver| driver.kind == DriverKind::Virtual), "{}", kind.example);
        }
    }

    #[test]
    fn a_virtual_device_is_a_known_kind_with_an_instance() {
        assert_eq!(parse("net_tap0,iface=wan").map(|driver| driver.kernel_interface), Ok(Some("wan".to_owned())));
        assert!(parse("net_tap_wan").is_ok());
        assert!(parse("net_tapwan").is_err());
        assert!(parse("net_af_xdp0").is_err());
        assert!(parse("net_tap0,iface").is_err());
    }
}
