//! What becomes of a packet after the engine: whether its port has link, and its neighbour a
//! station. The last steps of `why`.

use core::net::IpAddr;
use core::net::Ipv4Addr;

use control::Fault;
use control::Step;
use nat::Verdict;
use nat::types::HostNumber;
use nat::types::InterfaceId;
use nat::verdict::VerdictKind;
use nat::view;
use nat::view::Explanation;

use super::lists::ALL;
use super::lists::for_each;
use super::routes::interface_name;
use crate::instance::Instance;
use crate::neighbour::AnyView;
use crate::routing::rib::Hop;
use crate::routing::rib::HopState;
use crate::routing::rib::Rib;

/// The steps of a packet that the engine sends, and the verdict it ends with.
pub(super) fn after(instance: &Instance, explained: &Explanation) -> Result<(Vec<Step>, Verdict), Fault> {
    let verdict = explained.verdict;
    let is_sent = verdict.kind() == VerdictKind::Forwarded;
    let routed = explained.steps.iter().rev().find_map(|step| match *step {
        view::Step::Routed { interface, next_hop, .. } => Some((InterfaceId(interface), next_hop)),
        _ => None,
    });
    // Packets to IPv6 hosts take routes and neighbours of IPv6.
    let routed = routed.filter(|(_, next_hop)| is_sent && !HostNumber::from(*next_hop).is_ipv6());
    let Some((interface, next_hop)) = routed else { return Ok((Vec::new(), verdict)) };
    let found = if next_hop.is_multicast() { Found::Station } else { find(instance, interface, next_hop)? };
    let is_known = found == Found::Station;
    let name = interface_name(instance.shared().settings(), interface);
    let state = state_of(instance, interface)?;
    let link = |detail: String| {
        let decision = match state {
            HopState::DeviceFault => {
                format!("the kernel device of interface \"{name}\" has a fault; the log of natrix run has the details")
            }
            _ => format!("interface \"{name}\" has no link"),
        };
        Step { step: "link".to_owned(), decision, detail }
    };
    let neighbour = |detail: &str| {
        let decision = format!("{next_hop} is not resolved");
        Step { step: "neighbour".to_owned(), decision, detail: detail.to_owned() }
    };
    let unresolved = Verdict::NeighbourUnresolved;
    Ok(match (state, is_known) {
        (HopState::Usable, true) => (Vec::new(), verdict),
        (HopState::DeviceFault, true) => {
            (vec![link(format!("sent all the same: the station of {next_hop} is known"))], verdict)
        }
        (HopState::Usable, false) if found == Found::Silent => {
            let dropped = "it did not answer the last questions, so packets to it are dropped at once";
            (vec![neighbour(dropped)], unresolved)
        }
        (HopState::Usable, false) => {
            let waits = "the packet waits for the answer; without one it is counted as neighbour_unresolved";
            (vec![neighbour(waits)], verdict)
        }
        (HopState::NoLink, true) => {
            let (counted, refused) = (verdict.name(), Verdict::TransmitFull.name());
            let lost = format!("lost there: counted as {counted}, or as {refused} if the driver refuses it");
            (vec![link(lost)], verdict)
        }
        (_, false) => {
            let unasked = neighbour("nobody can answer over this interface");
            (vec![link("no route over another interface is preferred".to_owned()), unasked], unresolved)
        }
    })
}

/// Whether packets can leave by an interface.
fn state_of(instance: &Instance, interface: InterfaceId) -> Result<HopState, Fault> {
    let port = instance.description.links.get(interface.index()).map(|link| link.port);
    let ports_up = instance.ports_up(&instance.snapshot(0)?.ports_up);
    let is_up = port.and_then(|port| ports_up.get(port.index()).copied()).unwrap_or(false);
    // The thread that follows the kernel also knows of devices that stand for ports.
    let hop = Hop { interface, gateway: 0, weight: 1 };
    Ok(match is_up {
        false => HopState::NoLink,
        true if instance.routing().is_none() => HopState::Usable,
        true => instance.with_routes(|rib: &Rib| rib.state(&hop)),
    })
}

/// What the workers know of a neighbour, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// Nothing yet: a packet waits for the answer.
    Nothing,
    /// It does not answer, and packets to it are dropped.
    Silent,
    /// Its station.
    Station,
}

fn find(instance: &Instance, interface: InterfaceId, address: Ipv4Addr) -> Result<Found, Fault> {
    let mut found = Found::Nothing;
    for worker in 0..instance.worker_count() {
        for_each::<AnyView>(instance, worker, ALL, view::Filter::default(), |view| {
            if view.interface == interface && view.address == IpAddr::V4(address) {
                found = found.max(match view.station {
                    Some(_) => Found::Station,
                    None if view.refuses => Found::Silent,
                    None => Found::Nothing,
                });
            }
        })?;
    }
    Ok(found)
}
