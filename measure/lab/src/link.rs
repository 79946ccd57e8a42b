//! Whether a kernel interface of the tester has a link. The drivers that open sockets on such
//! interfaces always say that it has.

use crate::topology::TopologyError;
use crate::topology::run;

/// Whether an interface in this thread's namespace has no link, or is gone. Where the kernel can't
/// be asked nothing is said against it.
pub fn is_down(interface: &str) -> bool {
    match run(&["ip", "-o", "link", "show", "dev", interface]) {
        Ok(told) => !has_link(&told),
        Err(TopologyError::Command { .. }) => true,
        Err(_) => false,
    }
}

/// By the flags between the angle brackets.
fn has_link(told: &str) -> bool {
    let flags = told.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(flags, _)| flags);
    flags.split(',').any(|flag| flag == "LOWER_UP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_with_its_other_end_down_counts_as_down() {
        let whole = "3: inside@if4: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP";
        let half = "3: inside@if4: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state LOWERLAYERDOWN";
        let down = "3: inside@if4: <BROADCAST,MULTICAST> mtu 1500 qdisc noqueue state DOWN";
        assert_eq!([whole, half, down].map(has_link), [true, false, false]);
    }

    #[test]
    fn an_interface_that_is_not_there_is_down() {
        assert!(is_down("nobodys"));
    }
}
