//! Whether ports can be given out as a pool says: blocks that divide its range, a formula that
//! works out.

use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use nat::blocks::BlockSize;
use nat::deterministic::Formula;
use nat::deterministic::FormulaError;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Pooling;
use nat::types::Prefix;

use crate::draft::pool::PoolDraft;
use crate::keys::POOL_ADDRESSES_MAX;
use crate::report::Placed;
use crate::report::Report;
use crate::report::many;

/// Ports from 1024 on.
const PORTS_MAX: u64 = 64_512;

/// Checks one pool with the addresses it has, of an instance with so many VRFs.
pub(crate) fn check(pool: &PoolDraft, addresses: &[Ipv4Addr], vrfs: usize, report: &mut Report) {
    let Some(ports) = &pool.ports else { return };
    match pool.allocation.value {
        None | Some(Allocation::Ports) => {}
        Some(Allocation::Blocks(blocks)) => {
            divides(pool, blocks.size, &ports.value, report);
            blocks_keep_their_ports(pool, blocks.size, &ports.value, report);
        }
        Some(Allocation::Deterministic { dynamic_slices, overflow }) => {
            one_subscriber_each(pool, vrfs, report);
            if !addresses.is_empty() {
                works_out(pool, addresses.len(), dynamic_slices, overflow, &ports.value, report);
            }
        }
    }
}

/// Blocks are aligned to their size: what stands over at the ends of the range could not be given
/// out.
fn divides(pool: &PoolDraft, size: BlockSize, ports: &RangeInclusive<u16>, report: &mut Report) {
    let size = size.ports();
    let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let (aligned_first, end) = (first.next_multiple_of(size), (last + 1) / size * size);
    if (aligned_first, end) == (first, last + 1) {
        return;
    }
    let over = format!("ports {first}-{last}, blocks of {size}");
    let remedy = if aligned_first < end {
        format!("write ports = \"{aligned_first}-{}\", or blocks that fit", end - 1)
    } else {
        let whole = |size: u32| (first.next_multiple_of(size), (last + 1) / size * size);
        let smaller = (6..size.ilog2()).rev().map(|bits| 1 << bits).find(|size| whole(*size).0 < whole(*size).1);
        match smaller {
            Some(smaller) => {
                let (first, end) = whole(smaller);
                format!(
                    "write ports = \"{first}-{}\" and block_size = {smaller}, or a range that has room for one",
                    end - 1
                )
            }
            None => format!("write a range that has room for one, such as ports = \"{}\"", around(first, last, size)),
        }
    };
    report.fault(&pool.allocation.block_size, "does not divide the ports of the pool", over, remedy);
}

/// The block that begins nearest below a range, with all after it that the range has ports of.
fn around(first: u32, last: u32, size: u32) -> String {
    let first = (first / size * size).max(1024_u32.next_multiple_of(size));
    let end = (last + 1).next_multiple_of(size).clamp(first + size, 1 << 16);
    format!("{first}-{}", end - 1)
}

/// A leased block counts against the few blocks of a subscriber, so it must not be mostly reserved.
/// A block that is reserved as a whole is never leased.
fn blocks_keep_their_ports(pool: &PoolDraft, size: BlockSize, ports: &RangeInclusive<u16>, report: &mut Report) {
    let Some(reserved) = pool.reserved_ports.first() else { return };
    let is_reserved = marked(&pool.reserved_ports);
    let size = size.ports() as usize;
    let (first, end) = (usize::from(*ports.start()).next_multiple_of(size), usize::from(*ports.end()) + 1);
    let usable = |block: &usize| is_reserved[*block..block + size].iter().filter(|port| !**port).count();
    let blocks = (first..).step_by(size).take_while(|block| block + size <= end);
    let short: Vec<(usize, usize)> = blocks.map(|block| (block, usable(&block))).collect();
    let short: Vec<&(usize, usize)> = short.iter().filter(|(_, usable)| (1..size / 2).contains(usable)).collect();
    let Some((block, usable)) = short.first() else { return };
    report.fault(
        &reserved.place,
        "leaves port blocks with less than half of their ports",
        format!("{} on each address, the first with {usable} of {size} ports", many(short.len() as u64, "block")),
        format!("reserve fewer ports of this block, or all of {block}-{}: it is then never leased", block + size - 1),
    );
}

/// By port: whether one of the ranges has it.
fn marked(ranges: &[Placed<RangeInclusive<u16>>]) -> Vec<bool> {
    let mut marked = vec![false; 1 << 16];
    for range in ranges {
        range.value.clone().for_each(|port| marked[usize::from(port)] = true);
    }
    marked
}

/// The formula knows inside addresses, and of each only one.
fn one_subscriber_each(pool: &PoolDraft, vrfs: usize, report: &mut Report) {
    let place = &pool.allocation.place;
    if pool.pooling == Pooling::Arbitrary {
        let remedy = "write pooling = \"paired\": the formula gives each subscriber one address";
        report.fault(place, "cannot be combined with arbitrary pooling", "pooling = \"arbitrary\"", remedy);
    }
    let served = if pool.vrfs.is_empty() { vrfs } else { pool.vrfs.len() };
    if served > 1 {
        let problem =
            "serves more than one VRF: two subscribers may have the same inside address, and so the same ports";
        report.fault(
            place,
            problem,
            format!("VRFs: {served}"),
            "write vrfs = [\"...\"] with one of them, and a pool for each",
        );
    }
}

fn works_out(
    pool: &PoolDraft,
    addresses: usize,
    dynamic_slices: u16,
    overflow: Blocks,
    ports: &RangeInclusive<u16>,
    report: &mut Report,
) {
    let place = &pool.allocation.place;
    let prefixes: Vec<Prefix> = pool.subscribers.iter().map(|prefix| prefix.value).collect();
    let (first, last) = (*ports.start(), *ports.end());
    let formula = match Formula::new(&prefixes, addresses, dynamic_slices, first, last) {
        Ok(formula) => formula,
        Err(error) => {
            let (problem, seen, remedy) = reported(&error);
            return report.fault(place, problem, seen, remedy);
        }
    };
    every_slice_has_ports(pool, &formula, first, report);
    if overflow.per_subscriber_max == 0 {
        return;
    }
    let size = overflow.size.ports();
    match formula.dynamic() {
        None => {
            let remedy = "write dynamic_slices = 1 or more, or blocks_per_subscriber = 0 for none";
            report.fault(
                place,
                "leaves no ports for dynamic blocks",
                format!("dynamic_slices = {dynamic_slices}"),
                remedy,
            );
        }
        Some((low, high)) => {
            let has_one = u32::from(low).next_multiple_of(size) + size <= u32::from(high) + 1;
            if !has_one {
                let problem = format!("has no block of {size} ports among its dynamic ones");
                let could_have_one = u32::from(first).next_multiple_of(size) + size <= u32::from(last) + 1;
                let remedy = if could_have_one {
                    "write smaller blocks, more dynamic_slices, or blocks_per_subscriber = 0 for none"
                } else {
                    "write smaller blocks, or blocks_per_subscriber = 0 for none"
                };
                report.fault(place, problem, format!("ports {low}-{high}"), remedy);
            }
            blocks_keep_their_ports(pool, overflow.size, &(low..=high), report);
        }
    }
}

/// Reserved ports may lie in slices, but must leave each of them some: the owner of the slice would
/// never get a port.
fn every_slice_has_ports(pool: &PoolDraft, formula: &Formula, port_min: u16, report: &mut Report) {
    let Some(reserved) = pool.reserved_ports.first() else { return };
    let is_reserved = marked(&pool.reserved_ports);
    let slice = |number: u32| {
        let first = usize::from(port_min) + (number * formula.slice_ports()) as usize;
        first..first + formula.slice_ports() as usize
    };
    let bare: Vec<u32> = (0..formula.slices()).filter(|number| slice(*number).all(|port| is_reserved[port])).collect();
    let Some(first) = bare.first().map(|number| slice(*number)) else { return };
    report.fault(
        &reserved.place,
        "takes all ports of some subscribers",
        format!(
            "{} of {} slices on each address, the first ports {}-{}",
            bare.len(),
            formula.slices(),
            first.start,
            first.end - 1
        ),
        "reserve fewer ports, or start ports above them",
    );
}

/// What is wrong, the numbers seen, and a remedy with numbers.
fn reported(error: &FormulaError) -> (String, String, String) {
    match error {
        FormulaError::TooMany { slices, dynamic_slices, ports, .. } if dynamic_slices >= ports => (
            "leaves no ports for subscribers".to_owned(),
            format!("{dynamic_slices} dynamic slices of {ports} ports"),
            fewer_dynamic_slices(*slices, *dynamic_slices, *ports),
        ),
        FormulaError::TooMany { subscribers, addresses, slices, dynamic_slices, ports } => (
            format!(
                "does not have one port for each subscriber: {slices} slices on an address and {dynamic_slices} dynamic \
                 slices share {ports} ports"
            ),
            format!("{}, {}", many(*subscribers, "subscriber"), many(*addresses, "address")),
            more_addresses(*subscribers, *addresses, *dynamic_slices, *ports),
        ),
        FormulaError::Nobody { subscribers, addresses } => (
            "has no subscriber to give ports to".to_owned(),
            format!("{}, {}", many(*subscribers, "subscriber"), many(*addresses, "address")),
            "write subscribers that hold a host".to_owned(),
        ),
        FormulaError::Overlap(inner, outer) => (
            "gives a subscriber two slices, because two prefixes overlap".to_owned(),
            format!("{inner}, {outer}"),
            "write each inside address once".to_owned(),
        ),
    }
}

/// What leaves room for subscribers where dynamic slices take all of an address.
fn fewer_dynamic_slices(slices: u64, dynamic_slices: u64, ports: u64) -> String {
    let few = dynamic_slices.min(2);
    if few < dynamic_slices && slices + few <= ports {
        return "write dynamic_slices = 2, or another small number".to_owned();
    }
    match Some(slices + few).filter(|needed| *needed <= PORTS_MAX) {
        Some(needed) if few == dynamic_slices => format!("write a range of {needed} ports or more"),
        Some(needed) => format!("write dynamic_slices = {few}, and a range of {needed} ports or more"),
        None => "serve fewer subscribers, and write more ports".to_owned(),
    }
}

/// How many addresses would do, if a pool may have as many, and how many would give each subscriber
/// a good deal.
fn more_addresses(subscribers: u64, addresses: u64, dynamic_slices: u64, ports: u64) -> String {
    let needed = |each: u64| {
        let per_address = (ports / each).checked_sub(dynamic_slices).filter(|slices| *slices > 0)?;
        Some(subscribers.div_ceil(per_address)).filter(|needed| *needed <= POOL_ADDRESSES_MAX)
    };
    let Some(least) = needed(1) else {
        let most = addresses * ports.saturating_sub(dynamic_slices);
        return format!("serve fewer subscribers: with these addresses there is one port for each of {most}");
    };
    let remedy = format!("serve fewer subscribers, or add addresses: {least} give each one port");
    match [1_000, 100, 10].into_iter().find_map(|each| Some((each, needed(each)?))) {
        Some((each, more)) => format!("{remedy}, {more} give each {each}"),
        None => remedy,
    }
}
