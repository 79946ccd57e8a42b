//! Rules that share packets and do different things with them, where neither is an exception to the
//! other.
//!
//! A rule before a wider one is meant as an exception. A rule after a wider one never applies,
//! which is a fault. The rest overlap partly: their order decides, which may not be intended.
//!
//! Prefixes nest or are apart. So the source prefixes of two rules that overlap are equal, or one
//! covers the other. Of each pair, the rule with the longer source looks for the other, in lists by
//! source and destination. The cost grows with the number of rules whose addresses overlap; at most
//! [`COMPARED_MAX`] pairs are compared.

use std::collections::BinaryHeap;
use std::collections::HashMap;

use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::FilterRule;
use nat::settings::Rule;
use nat::types::Prefix;

use crate::check::rules::origin::Sources;
use crate::fault::Warning;
use crate::report::Report;

/// Overlaps reported one by one; further ones are counted.
const REPORTED_MAX: usize = 20;
/// The most pairs compared: about a second.
const COMPARED_MAX: u64 = 20_000_000;

/// Overlaps of one list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The first of them, by the later rule: it, and the earlier one, which wins.
    pub(super) first: Vec<(usize, usize)>,
    pub(super) count: usize,
    /// Not all pairs were looked at.
    pub(super) is_partial: bool,
}

/// Where rules stand, and what their inside prefixes mean in text.
pub(super) type Named<'n> = (&'n Sources<'n>, &'n dyn Fn(Prefix) -> String);

/// Overlaps of rules.
pub(super) fn of_rules(rules: &[Rule], named: Named<'_>, report: &Report) -> Vec<Warning> {
    let matches: Vec<Match> = rules.iter().map(|rule| rule.matches).collect();
    let found = find(&matches, |one, other| rules[one].action != rules[other].action, COMPARED_MAX);
    reported("rule", &found, &matches, named, report)
}

/// Overlaps of filters: in the same direction.
pub(super) fn of_filters(filters: &[FilterRule], named: Named<'_>, report: &Report) -> Vec<Warning> {
    let matches: Vec<Match> = filters.iter().map(|filter| filter.matches).collect();
    let differ = |one: usize, other: usize| {
        let (one, other) = (&filters[one], &filters[other]);
        one.action != other.action && (one.out && other.out || one.back && other.back)
    };
    reported("filter", &find(&matches, differ, COMPARED_MAX), &matches, named, report)
}

/// A prefix as a number that sorts by address, then length.
fn number(prefix: Prefix) -> u64 {
    u64::from(prefix.address().to_bits()) << 8 | u64::from(prefix.length())
}

/// The prefix of this length that begins `prefix`.
fn shorter(prefix: Prefix, length: u8) -> u64 {
    let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
    u64::from(prefix.address().to_bits() & mask) << 8 | u64::from(length)
}

/// The lengths there are among these prefixes.
fn lengths(prefixes: impl Iterator<Item = Prefix>) -> Vec<u8> {
    let found = prefixes.fold(0_u64, |found, prefix| found | 1 << prefix.length());
    (0..=32).filter(|length| found >> length & 1 != 0).collect()
}

/// Overlaps among `matches`, in their order, of those that `differ`; of so many pairs at most.
pub(super) fn find(matches: &[Match], differ: impl Fn(usize, usize) -> bool, compared_max: u64) -> Found {
    // By source, and where that is the same by destination.
    let mut sorted: Vec<(u64, u64, u32)> = (0_u32..)
        .zip(matches)
        .map(|(position, rule)| (number(rule.source), number(rule.destination), position))
        .collect();
    sorted.sort_unstable();
    let mut by_source: HashMap<u64, (usize, usize)> = HashMap::new();
    for (at, (source, ..)) in sorted.iter().enumerate() {
        by_source.entry(*source).or_insert((at, at)).1 = at + 1;
    }
    let sources = lengths(matches.iter().map(|rule| rule.source));
    let destinations = lengths(matches.iter().map(|rule| rule.destination));

    let mut first: BinaryHeap<(usize, usize)> = BinaryHeap::new();
    let mut found = Found::default();
    let mut compared = 0;
    'rules: for (position, rule) in matches.iter().enumerate() {
        for length in sources.iter().take_while(|length| **length <= rule.source.length()) {
            let Some((start, end)) = by_source.get(&shorter(rule.source, *length)) else { continue };
            let group = &sorted[*start..*end];
            let from = |destination: u64| group.partition_point(|(_, other, _)| *other < destination);
            let own = u64::from(rule.destination.address().to_bits()) << 8;
            // Destinations within the own one, and those that begin where it does.
            let within = from(own)..from((u64::from(rule.destination.last().to_bits()) << 8) + 256);
            let around = destinations
                .iter()
                .take_while(|length| **length < rule.destination.length())
                .map(|length| shorter(rule.destination, *length))
                .filter(|destination| *destination >> 8 != own >> 8)
                .map(|destination| from(destination)..from(destination + 1));
            for (.., other) in core::iter::once(within).chain(around).flat_map(|range| &group[range]) {
                let other = *other as usize;
                let (earlier, later) = (position.min(other), position.max(other));
                // Rules with the same source find each other twice.
                if *length == rule.source.length() && other >= position {
                    continue;
                }
                compared += 1;
                if compared > compared_max {
                    found.is_partial = true;
                    break 'rules;
                }
                let (before, after) = (&matches[earlier], &matches[later]);
                let is_reported =
                    before.overlaps(after) && !before.covers(after) && !after.covers(before) && differ(earlier, later);
                if is_reported {
                    found.count += 1;
                    first.push((later, earlier));
                    if first.len() > REPORTED_MAX {
                        first.pop();
                    }
                }
            }
        }
    }
    found.first = first.into_sorted_vec();
    found
}

/// The packets that are of both.
fn common(one: &Match, other: &Match, shown: &dyn Fn(Prefix) -> String) -> String {
    let longer = |one: Prefix, other: Prefix| if one.length() >= other.length() { one } else { other };
    let both = |one: PortRange, other: PortRange| PortRange {
        first: one.first.max(other.first),
        last: one.last.min(other.last),
    };
    let ports = |ports: PortRange| if ports == PortRange::ALL { String::new() } else { format!(" port {ports}") };
    format!(
        "inside {}{}, outside {}{}",
        shown(longer(one.source, other.source)),
        ports(both(one.source_ports, other.source_ports)),
        longer(one.destination, other.destination),
        ports(both(one.destination_ports, other.destination_ports)),
    )
}

fn reported(
    what: &str,
    found: &Found,
    matches: &[Match],
    (sources, shown): Named<'_>,
    report: &Report,
) -> Vec<Warning> {
    let mut reported = Vec::new();
    for (later, earlier) in &found.first {
        let problem = format!(
            "partly overlaps the {what} {}, which does something else: packets that match both ({}) follow the earlier {what}",
            sources.on_line(*earlier),
            common(&matches[*later], &matches[*earlier], shown),
        );
        reported.extend(sources.warning(
            *later,
            problem,
            "narrow one of them, or leave them if this order is intended",
            report,
        ));
    }
    if let Some((last, _)) = found.first.last().filter(|_| found.count > found.first.len()) {
        let problem = format!("is the last one reported; {} more overlap like this", found.count - found.first.len());
        reported.extend(sources.warning(*last, problem, "correct those reported and check again", report));
    }
    if found.is_partial {
        let problem = format!("list: so many {what}s overlap by their addresses that not all pairs were compared");
        let place = crate::report::Place { path: what.to_owned().into(), line: None };
        reported.push(report.warning(None, &place, problem, "there may be overlaps that are not reported"));
    }
    reported
}

#[cfg(test)]
mod tests;
