//! `natrix drain`: leaves the routing, and returns to it.

use control::Announcement;
use control::Drained;
use control::Fault;

use crate::instance::Instance;
use crate::instance::SEE_LOG;
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
    let status = super::numbers::status(instance).map_err(|silent| {
        let done = if undo { "the drain has ended" } else { "the instance is drained" };
        let problem = format!("{done}, but {} {}, so what is left is not known", silent.object, silent.problem);
        Fault::new("drain", problem, SEE_LOG)
    })?;
    Ok(Drained {
        drained: !undo,
        changed,
        announcement: announcement(routing),
        subscribers: status.subscribers,
        mappings: status.mappings,
        sessions: status.sessions,
        packets_per_second: status.packets_per_second,
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
