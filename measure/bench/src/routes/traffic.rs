//! What routes cost packets: established traffic with routes of the configuration and with those of
//! the kernel, in turns; then while routes change, and while the configuration does.
//!
//! ```text
//!   worker:        traffic ── traffic ── traffic ── …     burst times
//!   other thread:  1 ms of changes ── pause ── …          as the routing thread makes them
//! ```

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use mem::tsc;
use nat::Settings;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use super::Options;
use super::RoutesError;
use super::structure::Natrix;
use super::structure::RouteTable as _;
use super::workload::NEXT_HOPS;
use super::workload::Route;
use crate::burst_times::Times;
use crate::stalls::Bed;
use crate::traffic::BURST;
use crate::traffic::Flow;

/// Turns that the tables take.
const TURNS: u32 = 9;
/// Traffic before anything is measured, seconds of the engine's time.
const WARM_UP_SECONDS: f64 = 0.2;
/// Changes come in steps of so long.
const STEP: Duration = Duration::from_millis(1);

/// Figures of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct TrafficReport {
    /// Established sessions, to 1,024 servers all over the table.
    pub sessions: u64,
    /// Cycles a packet with two routes of the configuration: median of the turns' median bursts.
    pub static_cycles: f64,
    /// The same two, and the kernel's routes are followed, of which there are none.
    pub followed_cycles: f64,
    /// With all routes.
    pub full_cycles: f64,
    /// Changes a second that were asked for.
    pub changes_asked: u32,
    /// Changes a second that were made.
    pub changes_made: f64,
    /// TSC cycles a second.
    pub tsc_hz: f64,
    /// Bursts with all routes, while none changes.
    pub undisturbed: Times,
    /// While they change.
    pub changing: Times,
    /// While the configuration changes, again and again, and no route does.
    pub reloading: Times,
    /// Changes of the configuration.
    pub reloads: u64,
}

fn bed(options: &Options, hz: f64, adapt: impl FnOnce(&mut Settings)) -> Result<Bed, RoutesError> {
    let mut bed = Bed::of_traffic(options.sessions, hz, adapt)?;
    bed.flows.iter_mut().for_each(Flow::spread);
    Ok(bed)
}

fn started(mut bed: Bed) -> Result<Bed, RoutesError> {
    bed.establish()?;
    bed.start();
    bed.run_for(WARM_UP_SECONDS);
    Ok(bed)
}

/// A bed that follows the routes of the kernel, and what changes them.
fn followed(options: &Options, hz: f64, routes: &[Route]) -> Result<(Bed, Natrix), RoutesError> {
    let bed = bed(options, hz, |settings| settings.live_routes = true)?;
    let live = bed.shared.live_routes().map(Arc::clone).ok_or(RoutesError::NotFollowed)?;
    let mut natrix = Natrix::over(&live, bed.shared.settings().clone());
    natrix.set_fixed()?;
    for (prefix, next_hop) in routes {
        natrix.set(*prefix, *next_hop)?;
    }
    natrix.publish();
    Ok((started(bed)?, natrix))
}

/// Measures.
pub(super) fn measure(options: &Options, routes: &[Route], hz: f64) -> Result<TrafficReport, RoutesError> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.first() {
        core_affinity::set_for_current(*core);
    }
    let fixed = started(bed(options, hz, |_| {})?)?;
    let (empty, _) = followed(options, hz, &[])?;
    let (full, mut natrix) = followed(options, hz, routes)?;
    let mut beds = [fixed, empty, full];
    let mut cycles = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for (bed, cycles) in beds.iter_mut().zip(&mut cycles) {
            bed.reset();
            bed.run_for(options.seconds / f64::from(TURNS));
            cycles.push(bed.times.times().p50_cycles);
        }
    }
    let [static_cycles, followed_cycles, full_cycles] = cycles.map(|mut cycles| {
        cycles.sort_unstable();
        cycles[cycles.len() / 2] as f64 / BURST as f64
    });
    let [_, _, mut full] = beds;
    full.reset();
    full.run_for(options.seconds);
    let undisturbed = full.times.times();

    full.reset();
    let stop = AtomicBool::new(false);
    let changes_made = thread::scope(|scope| {
        let changer = scope.spawn(|| {
            // A thread begins on the core of the one that starts it.
            if let Some(core) = cores.last() {
                core_affinity::set_for_current(*core);
            }
            change(&mut natrix, routes, options, &stop)
        });
        full.run_for(options.seconds);
        stop.store(true, Ordering::Relaxed);
        // The last changes wait for the worker, as a change of next hops does.
        while !changer.is_finished() {
            full.run_for(WARM_UP_SECONDS / 100.0);
        }
        changer.join().map_err(|_| RoutesError::Thread)?
    })?;
    full.expect_no_drops()?;
    let changing = full.times.times();

    full.reset();
    let reloads = full.reload(options.seconds)?.records;
    full.expect_no_drops()?;
    Ok(TrafficReport {
        sessions: options.sessions,
        static_cycles,
        followed_cycles,
        full_cycles,
        changes_asked: options.changes,
        changes_made,
        tsc_hz: hz,
        undisturbed,
        changing,
        reloading: full.times.times(),
        reloads,
    })
}

/// Changes routes at the rate asked for until `stop`; returns the rate. A third of the changes
/// remove a route, a third bring it back, and a third give one another next hop. The first is made
/// at once, so that there is one even if this thread gets no core before `stop`.
fn change(natrix: &mut Natrix, routes: &[Route], options: &Options, stop: &AtomicBool) -> Result<f64, RoutesError> {
    let mut random = SmallRng::seed_from_u64(options.seed ^ 0x6368_616e_6765);
    let begun = Instant::now();
    let mut changes = 0_u64;
    let mut removed: Option<Route> = None;
    while changes == 0 || !stop.load(Ordering::Relaxed) {
        let due = ((begun.elapsed().as_secs_f64() * f64::from(options.changes)) as u64).max(1);
        if changes >= due {
            thread::sleep(STEP);
            continue;
        }
        // As many as the kernel hands over at a time.
        for _ in 0..(due - changes).min(1_000) {
            let (prefix, next_hop) = routes[random.random_range(0..routes.len())];
            match (changes % 3, removed.take()) {
                (0, _) => {
                    natrix.remove(prefix)?;
                    removed = Some((prefix, next_hop));
                }
                (1, Some((prefix, next_hop))) => natrix.set(prefix, next_hop)?,
                _ => natrix.set(prefix, (next_hop + 1) % NEXT_HOPS)?,
            }
            changes += 1;
        }
        natrix.publish();
    }
    let rate = changes as f64 / begun.elapsed().as_secs_f64();
    if let Some((prefix, next_hop)) = removed {
        natrix.set(prefix, next_hop)?;
    }
    Ok(rate)
}

/// Nanoseconds of the longest burst in which nobody else had the core.
pub fn longest_ns(times: &Times, hz: f64) -> f64 {
    times.max_cycles as f64 / hz * 1e9
}

/// The frequency of the counter.
pub(super) fn frequency_hz() -> f64 {
    tsc::frequency_hz(100)
}
