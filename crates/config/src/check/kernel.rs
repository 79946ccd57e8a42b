//! Devices in the kernel.

use std::collections::HashMap;

use crate::check::interfaces::Links;
use crate::draft::Draft;
use crate::draft::interface::Attachment;
use crate::draft::interface::InterfaceDraft;
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
                let remedy = "set kernel to a name of 1 to 15 characters on this interface";
                report.fault(place, "is too long for a device of the kernel", format!("\"{name}\""), remedy);
            } else if let Some(other) = taken.insert(name.clone(), interface.label()) {
                let problem = format!("is the device of interface \"{other}\"");
                report.fault(place, problem, format!("\"{name}\""), "write another name");
            }
        }
        if let Some(name) = &name
            && let Some(port) = interfaces.iter().find(|other| is_made_on(other, name))
        {
            let place = interface.kernel.as_ref().map_or(&interface.place, |kernel| &kernel.place);
            let problem = format!("is the device below the port of interface \"{}\"", port.label());
            report.fault(place, problem, format!("\"{name}\""), "write another name, such as \"nx-wan\"");
        }
        names.push(name);
    }
    check_tables(interfaces, &names, report);
    if draft.singles.routing_kernel && names.iter().all(Option::is_none) && !links.links.is_empty() {
        let remedy = "set kernel = \"NAME\" on the interfaces that routes lead to";
        report.fault(&draft.singles.routing_place, "has no interface with a device in the kernel", "true", remedy);
    }
    names
}

/// Whether the driver of an interface uses or makes a device of the kernel with this name.
fn is_made_on(interface: &InterfaceDraft, name: &str) -> bool {
    let Attachment::Port { driver, .. } = &interface.attachment else { return false };
    driver.value.text.split(',').any(|word| word.strip_prefix("iface=") == Some(name))
}

/// The kernel's table of its own addresses and broadcasts.
const TABLE_LOCAL: u32 = 255;

/// Each realm has one table: of two, routes of the same prefix and metric would have no order.
fn check_tables(interfaces: &[InterfaceDraft], names: &[Option<String>], report: &mut Report) {
    let in_kernel = || interfaces.iter().zip(names).filter(|(_, name)| name.is_some()).map(|(interface, _)| interface);
    for (interface, name) in interfaces.iter().zip(names) {
        let Some(table) = &interface.kernel_table else { continue };
        let value = table.value.to_string();
        if name.is_none() {
            let remedy = "set kernel = \"NAME\" on this interface, or remove the table";
            report.fault(&table.place, "is of an interface without a device in the kernel", value, remedy);
            continue;
        }
        if table.value == TABLE_LOCAL {
            let remedy = "write the number of the table that the routing daemon fills";
            report.fault(&table.place, "is the kernel's own table of local addresses", value, remedy);
            continue;
        }
        let has_other = |other: &&InterfaceDraft| {
            let is_beside = interface.facing().is_some() && other.facing() == interface.facing();
            is_beside && other.kernel_table.as_ref().is_none_or(|other| other.value != table.value)
        };
        if let Some(other) = in_kernel().find(has_other) {
            let problem = format!("is not the table of interface \"{}\", which is in the same network", other.label());
            report.fault(&table.place, problem, value, "set the same kernel_table on both");
        }
    }
}
