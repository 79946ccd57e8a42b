//! Devices in the kernel.

use std::collections::HashMap;

use crate::check::interfaces::Links;
use crate::draft::Draft;
use crate::draft::interface::Attachment;
use crate::report::Report;

/// The name of the device of each interface: its own, or one made of that of its port.
pub(crate) fn check(draft: &Draft, links: &Links, report: &mut Report) -> Vec<Option<String>> {
    let interfaces = &draft.interfaces;
    let has_own = |attachment: &Attachment| matches!(attachment, Attachment::Port { .. });
    let mut names: Vec<Option<String>> = Vec::new();
    let mut taken = HashMap::new();
    for interface in interfaces {
        let parent = match &interface.attachment {
            Attachment::Parent(name) => {
                interfaces.iter().find(|other| other.name.as_ref().is_some_and(|other| other.value == name.value))
            }
            _ => None,
        };
        let of_port = parent.and_then(|parent| parent.kernel.as_ref());
        let derived = of_port.zip(interface.vlan.as_ref()).map(|(port, vlan)| format!("{}.{}", port.value, vlan.value));
        if let Some(name) = &interface.kernel {
            if has_own(&interface.attachment) && interface.vlan.is_some() {
                let remedy = "give the port an interface without vlan, and this one parent = and vlan =";
                report.fault(&name.place, "is on a port whose own interface has a VLAN", "", remedy);
            } else if parent.is_some() && of_port.is_none() {
                let remedy = "set kernel on the interface of the port, too";
                report.fault(&name.place, "is on a port without a device in the kernel", "", remedy);
            }
        }
        let name = interface.kernel.as_ref().map(|name| name.value.clone()).or(derived);
        if let Some(name) = &name {
            let place = interface.kernel.as_ref().map_or(&interface.place, |kernel| &kernel.place);
            if name.len() > 15 {
                let remedy = "set kernel = with 1 to 15 characters on this interface";
                report.fault(place, "is too long for a device of the kernel", format!("\"{name}\""), remedy);
            } else if let Some(other) = taken.insert(name.clone(), interface.label()) {
                let problem = format!("is the device of interface \"{other}\"");
                report.fault(place, problem, format!("\"{name}\""), "write another name");
            }
            if let Some(own) = interface.addresses6.first() {
                let remedy = "remove one of them: neighbours of IPv6 cannot be shared with the kernel so far";
                report.fault(&own.place, "is on an interface with a device in the kernel", "", remedy);
            }
        }
        names.push(name);
    }
    if draft.singles.routing_kernel && names.iter().all(Option::is_none) && !links.links.is_empty() {
        let remedy = "set kernel = \"NAME\" on the interfaces that routes lead to";
        report.fault(&draft.singles.routing_place, "has no interface with a device in the kernel", "true", remedy);
    }
    names
}
