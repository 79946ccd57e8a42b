//! Plans the tables for a list of rules: one for each kind, merged if that crowds no cell.

use std::collections::HashMap;
use std::collections::HashSet;

use super::key::Match;
use super::mask::Mask;

const CELL_MAX: u8 = 2;
/// One in this many rules of a table may be in a crowded cell.
const CROWDED_SHARE: usize = 16;
const PLANNED_MAX: usize = 56;
const KINDS_MAX: usize = 192;
/// Masks that differ in more bits are not merged.
const DISTANCE_MAX: u32 = 24;

#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) mask: Mask,
    pub(super) rules: Vec<u32>,
}

struct Planner<'a> {
    rules: &'a [Match],
    budget: usize,
    counts: Vec<u8>,
}

/// The first rule's table comes first. Looks at a rule about twenty times at most.
pub(super) fn plan(rules: &[Match]) -> Vec<Planned> {
    let mut planner = Planner { rules, budget: 16 * rules.len() + 100_000, counts: Vec::new() };
    let mut tables = Vec::new();
    for alike in by_addresses(kinds(rules)) {
        planner.merge_alike(alike, &mut tables);
    }
    planner.merge_near(&mut tables);
    while tables.len() > PLANNED_MAX {
        merge_smallest(&mut tables);
    }
    for table in &mut tables {
        table.rules.sort_unstable();
    }
    tables.sort_by_key(|table| table.rules.first().copied());
    tables
}

fn kinds(rules: &[Match]) -> Vec<Planned> {
    for step in [1, 2, 4, 8, 33] {
        let mut by_mask: HashMap<Mask, Vec<u32>> = HashMap::new();
        for (position, rule) in rules.iter().enumerate() {
            let mask = Mask::of(rule);
            let floor = |length: u8| length - length % step;
            let addresses =
                Mask { source: floor(mask.source), destination: floor(mask.destination), ..mask.addresses_only() };
            let mask = if step == 1 { mask } else { addresses };
            by_mask.entry(mask).or_default().push(position as u32);
        }
        if by_mask.len() <= KINDS_MAX || step == 33 {
            let mut kinds: Vec<_> = by_mask.into_iter().map(|(mask, rules)| Planned { mask, rules }).collect();
            // Independent of the map's iteration order.
            kinds.sort_by_key(|kind| (core::cmp::Reverse(kind.rules.len()), kind.mask));
            return kinds;
        }
    }
    Vec::new()
}

fn by_addresses(kinds: Vec<Planned>) -> Vec<Vec<Planned>> {
    let mut groups: Vec<Vec<Planned>> = Vec::new();
    for kind in kinds {
        match groups.iter_mut().find(|group| group[0].mask.addresses_only() == kind.mask.addresses_only()) {
            Some(group) => group.push(kind),
            None => groups.push(vec![kind]),
        }
    }
    groups
}

fn merge_smallest(tables: &mut Vec<Planned>) {
    let Some(smallest) = (0..tables.len()).min_by_key(|index| tables[*index].rules.len()) else { return };
    let small = tables.swap_remove(smallest);
    let Some(nearest) = tables.iter_mut().min_by_key(|table| distance(&table.mask, &small.mask)) else { return };
    nearest.mask = nearest.mask.meet(&small.mask);
    nearest.rules.extend(small.rules);
}

fn distance(one: &Mask, other: &Mask) -> u32 {
    one.bits() + other.bits() - 2 * one.meet(other).bits()
}

impl Planner<'_> {
    fn merge_alike(&mut self, alike: Vec<Planned>, tables: &mut Vec<Planned>) {
        let start = tables.len();
        let common = alike[1..].iter().fold(alike[0].mask, |common, kind| common.meet(&kind.mask));
        if alike.len() > 1 && self.fits(&common, alike.iter().flat_map(|kind| &kind.rules)) {
            let rules = alike.into_iter().flat_map(|kind| kind.rules).collect();
            tables.push(Planned { mask: common, rules });
            return;
        }
        for kind in alike {
            let fitting = tables[start..].iter_mut().find(|table| {
                let meet = table.mask.meet(&kind.mask);
                self.fits(&meet, table.rules.iter().chain(&kind.rules))
            });
            match fitting {
                Some(table) => {
                    table.mask = table.mask.meet(&kind.mask);
                    table.rules.extend(kind.rules);
                }
                None => tables.push(kind),
            }
        }
    }

    fn merge_near(&mut self, tables: &mut Vec<Planned>) {
        let mut refused: HashSet<(Mask, Mask)> = HashSet::new();
        loop {
            let mut nearest: Option<(u32, usize, usize)> = None;
            for one in 0..tables.len() {
                for other in one + 1..tables.len() {
                    let far = distance(&tables[one].mask, &tables[other].mask);
                    if far <= DISTANCE_MAX
                        && nearest.is_none_or(|(nearest, ..)| far < nearest)
                        && !refused.contains(&(tables[one].mask, tables[other].mask))
                    {
                        nearest = Some((far, one, other));
                    }
                }
            }
            let Some((_, one, other)) = nearest else { return };
            let meet = tables[one].mask.meet(&tables[other].mask);
            if self.budget == 0 {
                return;
            }
            if self.fits(&meet, tables[one].rules.iter().chain(&tables[other].rules)) {
                let merged = tables.swap_remove(other);
                tables[one].mask = meet;
                tables[one].rules.extend(merged.rules);
            } else {
                refused.insert((tables[one].mask, tables[other].mask));
            }
        }
    }

    /// True if almost no cell is crowded; false once the budget of rules is used up.
    fn fits<'a>(&mut self, mask: &Mask, rules: impl Iterator<Item = &'a u32> + Clone) -> bool {
        let count = rules.clone().count();
        if count > self.budget {
            self.budget = 0;
            return false;
        }
        self.budget -= count;
        // Cells may share a counter by chance: slightly pessimistic.
        let bits = (8 * count.max(8)).next_power_of_two().trailing_zeros();
        self.counts.clear();
        self.counts.resize(1 << bits, 0);
        let mut crowded = 0;
        for position in rules {
            for (cell, ..) in mask.cells(&self.rules[*position as usize]) {
                let counter = &mut self.counts[(cell.hash() >> (64 - bits)) as usize];
                *counter = counter.saturating_add(1);
                crowded += match (*counter).cmp(&(CELL_MAX + 1)) {
                    core::cmp::Ordering::Less => 0,
                    core::cmp::Ordering::Equal => usize::from(CELL_MAX) + 1,
                    core::cmp::Ordering::Greater => 1,
                };
            }
        }
        crowded * CROWDED_SHARE <= count
    }
}
