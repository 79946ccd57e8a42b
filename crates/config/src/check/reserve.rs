//! Whether pools can hold what classes guarantee to their subscribers.

use nat::Protocol;
use nat::Settings;
use nat::deterministic::Formula;
use nat::reserve::Reservation;
use nat::reserve::reservations;
use nat::settings::Allocation;
use nat::settings::Pool;
use nat::settings::Pooling;

use crate::draft::class::ClassDraft;
use crate::report::Place;
use crate::report::Report;

/// Checks a configuration that is sound otherwise.
pub(crate) fn check(settings: &Settings, classes: &[ClassDraft], report: &mut Report) {
    let guarantees = |class: &&ClassDraft| class.limits.reserved_ports != [0; Protocol::COUNT];
    let Some(place) = classes.iter().find(guarantees).map(|class| &class.reserved_ports) else { return };
    // What can not be compiled is told when the instance is built.
    let Ok(found) = reservations(settings) else { return };
    for (pool, reservation) in settings.pools.iter().zip(&found) {
        if reservation.subscribers > 0 {
            of_pool(pool, reservation, place, report);
        }
    }
}

fn of_pool(pool: &Pool, reservation: &Reservation, place: &Place, report: &mut Report) {
    let of_pool = format!("pool \"{}\"", pool.name);
    let name = &pool.name;
    let mut fault = |problem: String, seen: String, remedy: String| report.fault(place, problem, seen, remedy);
    match pool.allocation {
        // Its address is all its own.
        _ if pool.one_to_one => {}
        Allocation::Blocks(blocks) => fault(
            format!("guarantees nothing in {of_pool}, whose subscribers have the ports of their blocks"),
            format!("block_size = {}", blocks.size.ports()),
            format!("remove it, or write allocation = \"ports\" in pool \"{name}\""),
        ),
        Allocation::Deterministic { .. } => {
            let slice = Formula::of(pool).ok().flatten().map_or(0, |formula| formula.slice_ports());
            let largest = reservation.largest.into_iter().max().unwrap_or_default();
            if largest > slice {
                fault(
                    format!("is more than a slice of {of_pool} has, {slice} ports"),
                    largest.to_string(),
                    format!("write at most {slice}, or give pool \"{name}\" more addresses"),
                );
            }
        }
        Allocation::Ports if pool.pooling == Pooling::Arbitrary => fault(
            format!("needs paired pooling, as ports are set aside by address, and {of_pool} has none"),
            "pooling = \"arbitrary\"".to_owned(),
            format!("write pooling = \"paired\" in pool \"{name}\""),
        ),
        Allocation::Ports if pool.port_min < 1_024 => fault(
            format!(
                "can not be kept in {of_pool}, some of whose ports are for some internal ports only (RFC 4787 REQ-3a)"
            ),
            format!("ports = \"{}-{}\"", pool.port_min, pool.port_max),
            format!("write ports = \"1024-{}\" in pool \"{name}\"", pool.port_max.max(1_024)),
        ),
        Allocation::Ports => {
            let addresses = pool.addresses.len() as u64;
            let there = u64::from(pool.port_max - pool.port_min) + 1 - pool.reserved_ports.len() as u64;
            let each = reservation.of_each_address(addresses);
            for protocol in Protocol::ALL {
                let has = if protocol == Protocol::Icmp { 65_535 } else { there };
                let (wanted, largest) = (each[protocol.index()], u64::from(reservation.largest[protocol.index()]));
                if wanted <= has {
                    continue;
                }
                let subscribers = reservation.subscribers;
                let at_most = has / subscribers.div_ceil(addresses).max(1);
                let needed = subscribers.div_ceil((has / largest).max(1));
                fault(
                    format!(
                        "guarantees {subscribers} subscribers more {protocol} ports than {of_pool} has: {wanted} of {has} on each address"
                    ),
                    format!("{largest} ports each, {addresses} addresses"),
                    format!("write at most {at_most}, name fewer subscribers, or give the pool {needed} addresses"),
                );
            }
        }
    }
}
