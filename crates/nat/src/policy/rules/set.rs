use core::hint::select_unpredictable;
use std::sync::Arc;

use mem::ArenaError;

use super::key::Match;
use super::key::RuleKey;
use super::mask::Mask;
use super::persistent::PersistentList;
use super::plan::plan;
use super::table::Best;
use super::table::Bucket;
use super::table::Table;
use crate::types::Prefix;

/// The most keys that [`RuleSet::lookup_burst`] takes.
pub const BURST_MAX: usize = 64;

const TABLES_MAX: usize = 64;
/// A rule whose cell is this long gets a table for its own kind.
const CELL_LENGTH_MAX: usize = 12;
/// Address bits that select tables: 4096 words a side fit in the L1 cache.
const PRUNE_BITS: u8 = 12;
/// Buckets that keys of a burst visit in turn before one of them is finished on its own.
const STEPS_MAX: u8 = 4;
/// Leaves room to insert rules between two orders. 2^24 rules take 47 bits.
const ORDER_STEP: u64 = 1 << 23;

/// Stays the same wherever the rule moves in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

impl RuleId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a set could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum RuleSetError {
    /// Out of memory.
    #[error("rules: {0}")]
    Memory(#[from] ArenaError),
    /// At most 2^24.
    #[error("rules: too many ({0}); at most 16777216 are possible")]
    TooMany(usize),
}

const RULES_MAX: usize = 1 << 24;

struct Waiting<'a> {
    buckets: [&'a Bucket; BURST_MAX],
    tables: [u64; BURST_MAX],
    ranks: [u64; BURST_MAX],
    rules: [u32; BURST_MAX],
    steps: [u8; BURST_MAX],
    queue: [u8; BURST_MAX],
    queued: usize,
}

/// See the [module](super). Clones share what is not changed.
#[derive(Clone)]
pub struct RuleSet {
    tables: Vec<Table>,
    /// By table: the highest rank from it on.
    ranks_max: [u64; TABLES_MAX],
    by_source: Arc<[u64; 1 << PRUNE_BITS]>,
    by_destination: Arc<[u64; 1 << PRUNE_BITS]>,
    rules: PersistentList<Match>,
    /// By rule number: the order; the lowest one wins.
    orders: PersistentList<u64>,
    /// Rule numbers in order.
    sequence: Arc<Vec<u32>>,
    free: Arc<Vec<u32>>,
}

impl RuleSet {
    /// Numbers the rules from 0. A million take about half a second.
    pub fn new(rules: &[Match]) -> Result<RuleSet, RuleSetError> {
        let sequence = (0..rules.len() as u32).collect();
        RuleSet::build(rules, sequence, Vec::new())
    }

    /// `sequence[i]` is the number of `in_order[i]`.
    fn build(in_order: &[Match], sequence: Vec<u32>, free: Vec<u32>) -> Result<RuleSet, RuleSetError> {
        let numbers = sequence.len() + free.len();
        if numbers > RULES_MAX {
            return Err(RuleSetError::TooMany(numbers));
        }
        let mut by_number = vec![(Match::ALL, 0); numbers];
        for (position, (number, rule)) in sequence.iter().zip(in_order).enumerate() {
            if let Some(slot) = by_number.get_mut(*number as usize) {
                *slot = (*rule, (position as u64 + 1) * ORDER_STEP);
            }
        }
        let (rules, orders): (Vec<_>, Vec<_>) = by_number.into_iter().unzip();
        let mut set = RuleSet {
            tables: Vec::new(),
            ranks_max: [0; TABLES_MAX],
            by_source: Arc::new([0; 1 << PRUNE_BITS]),
            by_destination: Arc::new([0; 1 << PRUNE_BITS]),
            rules: PersistentList::from_slice(&rules),
            orders: PersistentList::from_slice(&orders),
            sequence: Arc::new(sequence),
            free: Arc::new(free),
        };
        let mut tables = Vec::new();
        let mut crowded = Vec::new();
        for planned in plan(in_order) {
            let mut table = Table::new(planned.mask, planned.rules.len())?;
            for position in &planned.rules {
                let rule = &in_order[*position as usize];
                if Mask::of(rule) != planned.mask && table.cell_length(rule) >= CELL_LENGTH_MAX {
                    crowded.push(*position);
                    continue;
                }
                let number = set.sequence[*position as usize];
                table.append(rule, number, (u64::from(*position) + 1) * ORDER_STEP)?;
            }
            set.note_addresses(tables.len(), planned.rules.iter().map(|position| &in_order[*position as usize]));
            tables.push(table);
        }
        set.tables = tables;
        set.note_ranks();
        for position in crowded {
            let number = set.sequence[position as usize];
            set.enter(&in_order[position as usize], number, (u64::from(position) + 1) * ORDER_STEP)?;
        }
        Ok(set)
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.sequence.is_empty()
    }

    /// Most tables a lookup visits.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// One past the highest number ever used.
    pub fn number_count(&self) -> usize {
        self.rules.len()
    }

    /// Includes what is shared with other sets.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(|table| table.bytes()).sum::<usize>()
            + (self.by_source.len() + self.by_destination.len()) * size_of::<u64>()
            + self.rules.bytes()
            + self.orders.bytes()
            + (self.sequence.len() + self.free.len()) * size_of::<u32>()
    }

    /// The rule at a position.
    pub fn at(&self, position: usize) -> Option<(RuleId, &Match)> {
        let number = *self.sequence.get(position)?;
        self.rules.get(number as usize).map(|rule| (RuleId(number), rule))
    }

    /// `None` if it was removed.
    pub fn position(&self, rule: RuleId) -> Option<usize> {
        let order = *self.orders.get(rule.index())?;
        let position = self.sequence.partition_point(|number| self.order(*number) < order);
        (self.sequence.get(position) == Some(&rule.0)).then_some(position)
    }

    pub(super) fn order(&self, number: u32) -> u64 {
        self.orders.get(number as usize).copied().unwrap_or(u64::MAX)
    }

    /// The first match. Costs a cache line for each table that can match.
    pub fn lookup(&self, key: &RuleKey) -> Option<RuleId> {
        let mut best = Best::NONE;
        let mut tables = self.tables_for(key);
        while tables != 0 {
            let table = &self.tables[tables.trailing_zeros() as usize];
            tables &= tables - 1;
            let (better, is_further) = table.aim(key, 0).find(key, best);
            best = if is_further { table.find_further(key, better) } else { better };
            if self.ranks_max[tables.trailing_zeros() as usize % TABLES_MAX] < best.rank {
                break;
            }
        }
        best.id()
    }

    /// [`RuleSet::lookup`] for up to [`BURST_MAX`] keys. All buckets are prefetched before the
    /// first look, which settles nearly all keys.
    pub fn lookup_burst(&self, keys: &[RuleKey], found: &mut [Option<RuleId>]) {
        let count = keys.len().min(found.len()).min(BURST_MAX);
        let (keys, found) = (&keys[..count], &mut found[..count]);
        let mut waiting = Waiting {
            buckets: [Table::EMPTY_BUCKET; BURST_MAX],
            tables: [0; BURST_MAX],
            ranks: [0; BURST_MAX],
            rules: [0; BURST_MAX],
            steps: [0; BURST_MAX],
            queue: [0; BURST_MAX],
            queued: 0,
        };
        for ((key, tables), bucket) in keys.iter().zip(&mut waiting.tables).zip(&mut waiting.buckets) {
            *tables = self.tables_for(key);
            if let Some(table) = self.tables.get(tables.trailing_zeros() as usize) {
                *bucket = table.aim(key, 0);
            }
        }
        for (i, (key, found)) in keys.iter().zip(found.iter_mut()).enumerate() {
            let here = waiting.tables[i];
            let (better, is_further) = waiting.buckets[i].find(key, Best::NONE);
            *found = better.id();
            // Tables are sorted by their first rules, so a match usually ends the search.
            let rest = here & here.wrapping_sub(1);
            let may_be_elsewhere = self.ranks_max[rest.trailing_zeros() as usize % TABLES_MAX] >= better.rank;
            if is_further | (rest != 0) & may_be_elsewhere {
                let next = if is_further { here } else { rest };
                waiting.tables[i] = next;
                waiting.ranks[i] = better.rank;
                waiting.rules[i] = better.rule;
                waiting.steps[i] = u8::from(is_further);
                waiting.buckets[i] = self.tables[next.trailing_zeros() as usize].aim(key, u8::from(is_further));
                waiting.queue[waiting.queued % BURST_MAX] = i as u8;
                waiting.queued += 1;
            }
        }
        if waiting.queued != 0 {
            let Waiting { queue, queued, .. } = waiting;
            self.look_further(keys, &mut waiting);
            for i in &queue[..queued] {
                let i = usize::from(*i);
                found[i] = Best { rank: waiting.ranks[i], rule: waiting.rules[i] }.id();
            }
        }
    }

    fn look_further<'a>(&'a self, keys: &[RuleKey], waiting: &mut Waiting<'a>) {
        let Waiting { buckets, tables, ranks, rules, steps, queue, queued } = waiting;
        let (mut first, mut end) = (0_usize, *queued);
        while first != end {
            let i = usize::from(queue[first % BURST_MAX]) % BURST_MAX;
            first += 1;
            let key = &keys[i];
            let (mut best, is_further) = buckets[i].find(key, Best { rank: ranks[i], rule: rules[i] });
            let is_far = steps[i] == STEPS_MAX;
            if is_further & is_far {
                best = self.tables[tables[i].trailing_zeros() as usize].find_further(key, best);
            }
            (ranks[i], rules[i]) = (best.rank, best.rule);
            let stays = is_further & !is_far;
            steps[i] = select_unpredictable(stays, steps[i] + 1, 0);
            let rest = select_unpredictable(stays, tables[i], tables[i] & (tables[i] - 1));
            tables[i] = rest;
            if rest != 0 && self.ranks_max[rest.trailing_zeros() as usize % TABLES_MAX] >= best.rank {
                buckets[i] = self.tables[rest.trailing_zeros() as usize].aim(key, steps[i]);
                queue[end % BURST_MAX] = i as u8;
                end += 1;
            }
        }
    }

    #[inline(always)]
    fn tables_for(&self, key: &RuleKey) -> u64 {
        let source = (key.addresses as u32) >> (32 - PRUNE_BITS);
        let destination = key.addresses >> (64 - PRUNE_BITS);
        self.by_source[source as usize] & self.by_destination[destination as usize]
    }

    /// The first earlier rule that covers this one.
    pub fn hidden_by(&self, position: usize) -> Option<RuleId> {
        let (id, rule) = self.at(position)?;
        let key = rule.first();
        let order = self.order(id.0);
        // A rule that covers this one matches its first packet.
        let tables = self.tables_for(&key);
        let candidates = (0..self.tables.len()).filter(|table| tables >> table & 1 != 0);
        let candidates = candidates.flat_map(|table| self.tables[table].all_matches(&key));
        candidates
            .filter(|number| {
                self.order(*number) < order && self.rules.get(*number as usize).is_some_and(|other| other.covers(rule))
            })
            .min_by_key(|number| self.order(*number))
            .map(RuleId)
    }

    /// Inserts before `position`. Copies a few MiB at most, unless a table grows.
    ///
    /// # Errors
    /// The set is unusable then.
    pub fn insert(&mut self, position: usize, rule: &Match) -> Result<RuleId, RuleSetError> {
        let position = position.min(self.len());
        let before = position.checked_sub(1).map_or(0, |before| self.order(self.sequence[before]));
        let after = self.sequence.get(position).map(|number| self.order(*number));
        let order = match after {
            Some(after) => before + (after - before) / 2,
            None => before + ORDER_STEP,
        };
        let number = match Arc::make_mut(&mut self.free).pop() {
            Some(number) => {
                self.rules.set(number as usize, *rule);
                number
            }
            None => {
                if self.rules.len() >= RULES_MAX {
                    return Err(RuleSetError::TooMany(self.rules.len() + 1));
                }
                self.rules.push(*rule);
                self.orders.push(0);
                self.rules.len() as u32 - 1
            }
        };
        Arc::make_mut(&mut self.sequence).insert(position, number);
        if order == before {
            // After 23 insertions at one place, no order is left between its neighbours.
            self.rebuild()?;
        } else {
            self.orders.set(number as usize, order);
            self.enter(rule, number, order)?;
        }
        Ok(RuleId(number))
    }

    /// The number may be reused.
    pub fn remove(&mut self, position: usize) -> Result<Option<RuleId>, RuleSetError> {
        let Some((id, rule)) = self.at(position) else { return Ok(None) };
        let rule = *rule;
        self.leave(&rule, id)?;
        Arc::make_mut(&mut self.sequence).remove(position);
        Arc::make_mut(&mut self.free).push(id.0);
        Ok(Some(id))
    }

    /// The rule keeps its number.
    pub fn replace(&mut self, position: usize, rule: &Match) -> Result<Option<RuleId>, RuleSetError> {
        let Some((id, old)) = self.at(position) else { return Ok(None) };
        let old = *old;
        if old != *rule {
            self.leave(&old, id)?;
            self.rules.set(id.index(), *rule);
            self.enter(rule, id.0, self.order(id.0))?;
        }
        Ok(Some(id))
    }

    fn leave(&mut self, rule: &Match, id: RuleId) -> Result<(), RuleSetError> {
        let own = Mask::of(rule);
        for table in &mut self.tables {
            if table.mask().suits(&own) && table.remove(rule, id.0)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Uses the most specific suitable table, or a new one if the rule's cell is crowded there.
    fn enter(&mut self, rule: &Match, number: u32, order: u64) -> Result<(), RuleSetError> {
        let own = Mask::of(rule);
        let suiting = (0..self.tables.len()).filter(|table| self.tables[*table].mask().suits(&own));
        let (found, crowding) = suiting
            .map(|table| (table, self.tables[table].cell_length(rule)))
            .min_by_key(|(table, length)| {
                (*length >= CELL_LENGTH_MAX, core::cmp::Reverse(self.tables[*table].mask().bits()))
            })
            .unzip();
        let is_poor = |table: usize| {
            let mask = self.tables[table].mask();
            let crowded = crowding.is_some_and(|length| length >= CELL_LENGTH_MAX) && *mask != own;
            // A table that looks at no address is visited for every packet.
            crowded || mask.source + mask.destination == 0 && own.source + own.destination > 8
        };
        let index = match found {
            Some(table) if !is_poor(table) || self.tables.len() == TABLES_MAX => table,
            None if self.tables.len() == TABLES_MAX => return self.rebuild(),
            _ => {
                self.tables.push(Table::new(own, 64)?);
                self.tables.len() - 1
            }
        };
        self.note_addresses(index, core::iter::once(rule));
        self.tables[index].insert(rule, number, order)?;
        self.note_ranks();
        Ok(())
    }

    fn note_ranks(&mut self) {
        let mut highest = 0;
        for (table, rank_max) in self.tables.iter().zip(&mut self.ranks_max[..]).rev() {
            highest = highest.max(table.rank_max());
            *rank_max = highest;
        }
    }

    fn rebuild(&mut self) -> Result<(), RuleSetError> {
        let in_order: Vec<Match> =
            (0..self.len()).filter_map(|position| self.at(position)).map(|(_, rule)| *rule).collect();
        *self = RuleSet::build(&in_order, self.sequence.to_vec(), self.free.to_vec())?;
        Ok(())
    }

    fn note_addresses<'a>(&mut self, table: usize, rules: impl Iterator<Item = &'a Match>) {
        let bit = 1 << table;
        // Short prefixes set many words; do each once.
        let mut seen = [vec![false; 1 << (PRUNE_BITS + 1)], vec![false; 1 << (PRUNE_BITS + 1)]];
        let sides = [Arc::make_mut(&mut self.by_source), Arc::make_mut(&mut self.by_destination)];
        let [by_source, by_destination] = sides;
        let note = |words: &mut [u64], prefix: Prefix, seen: &mut [bool]| {
            let bits = prefix.address().to_bits();
            let length = prefix.length().min(PRUNE_BITS);
            let name = 1 << length | bits.checked_shr(32 - u32::from(length)).unwrap_or(0);
            if !core::mem::replace(&mut seen[name as usize], true) {
                let shift = 32 - PRUNE_BITS;
                for word in &mut words[(bits >> shift) as usize..=(prefix.last().to_bits() >> shift) as usize] {
                    *word |= bit;
                }
            }
        };
        for rule in rules {
            note(by_source, rule.source, &mut seen[0]);
            note(by_destination, rule.destination, &mut seen[1]);
        }
    }
}
