//! `natrix drain`: leaves the routing, and returns to it.

use control::Announcement;
use control::Drained;
use control::Fault;
use control::Status;

use crate::instance::Instance;
use crate::routing::shared::Routing;

/// Withdraws the pools, or announces them again.
pub(crate) fn drain(instance: &Instance, undo: bool) -> Result<Drained, Fault> {
    let announces = instance.routing().filter(|routing| routing.announces());
    let routing = announces.ok_or_else(|| {
        let remedy = "set [routing] kernel = true, or leave the routing by other means";
        Fault::new("drain", "this instance announces nothing", remedy)
    })?;
    let changed = routing.drain(!undo).map_err(|stuck| {
        Fault::new("drain", stuck.to_string(), "run natrix show status; the drain happens once it does")
    })?;
    // It has taken effect, whether or not the workers can be asked.
    let status = super::numbers::status(instance);
    let unknown = status.as_ref().err().map(|silent| format!("{} {}", silent.object, silent.problem));
    let status = status.ok();
    let count = |of: fn(&Status) -> u64| status.as_ref().map(of);
    Ok(Drained {
        drained: !undo,
        changed,
        announcement: announcement(routing),
        subscribers: count(|status| status.subscribers),
        mappings: count(|status| status.mappings),
        sessions: count(|status| status.sessions),
        packets_per_second: count(|status| status.packets_per_second),
        unknown,
    })
}

/// Whether the pools are announced now.
pub(crate) fn announcement(routing: &Routing) -> Announcement {
    let pools = routing.pools();
    Announcement {
        prefixes: pools.announced.len() as u64,
        withheld: pools.withheld,
        drained_us: pools.drained_at.map(|at| at.elapsed().as_micros() as u64),
    }
}
