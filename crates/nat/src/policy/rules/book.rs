use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::key::RuleKey;
use super::set::BURST_MAX;
use super::set::RuleId;
use super::set::RuleSet;
use super::set::RuleSetError;
use crate::settings::FilterAction;
use crate::settings::FilterRule;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::types::WorkerId;

/// What a rule decides for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// `None` if no rule matches.
    pub rule: Option<RuleId>,
    /// What to do with it.
    pub action: RuleAction,
}

impl Ruling {
    /// Translated with the subscriber's own pool.
    pub const DEFAULT: Ruling = Ruling { rule: None, action: RuleAction::DEFAULT };
}

/// One row for each worker: no cache line has two writers, and counting needs no atomic
/// read-modify-write.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    rows: Vec<Vec<AtomicU64>>,
    carried: Vec<AtomicU64>,
}

impl Hits {
    pub(crate) fn new(workers: usize, rules: usize) -> Hits {
        let row = || (0..rules).map(|_| AtomicU64::new(0)).collect();
        Hits { rows: (0..workers).map(|_| row()).collect(), carried: row() }
    }

    pub(crate) fn len(&self) -> usize {
        self.carried.len()
    }

    #[inline]
    pub(crate) fn count(&self, worker: WorkerId, rule: RuleId) {
        if let Some(counter) = self.rows.get(worker.index()).and_then(|row| row.get(rule.index())) {
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn carry(&self, before: &Hits, same: impl Iterator<Item = (RuleId, RuleId)>) {
        for (old, new) in same {
            if let Some(counter) = self.carried.get(new.index()) {
                counter.store(before.of(old), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn of(&self, rule: RuleId) -> u64 {
        let rows = self.rows.iter().chain(core::iter::once(&self.carried));
        rows.filter_map(|row| row.get(rule.index())).map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// Rules with their actions.
pub struct RuleBook {
    set: RuleSet,
    actions: Vec<RuleAction>,
    /// Shared by books with the same rules: no count is lost while workers switch.
    hits: Arc<Hits>,
    passes: bool,
}

/// From `start` on, `old` rules are replaced by `new` ones.
#[derive(Clone, Copy, Debug)]
struct Differs {
    start: usize,
    old: usize,
    new: usize,
}

/// With more changed rules, the search is rebuilt.
const CHANGES_MAX: usize = 1_000;

/// Bytes a typical rule takes in the search, measured.
const SEARCH_BYTES: u64 = 144;

impl RuleBook {
    pub(crate) fn bytes_for(rules: usize, workers: usize) -> u64 {
        let each = SEARCH_BYTES + size_of::<Rule>() as u64 + size_of::<RuleAction>() as u64 + 8 * (workers as u64 + 1);
        rules as u64 * each
    }

    pub(crate) fn successor(rules: &[Rule], workers: usize, before: &RuleBook) -> Result<RuleBook, RuleSetError> {
        let differs = before.differs_from(rules.len(), |at| rules.get(at).copied());
        let Differs { start, old, new } = differs;
        if old + new == 0 {
            let (set, actions, hits) = (before.set.clone(), before.actions.clone(), Arc::clone(&before.hits));
            return Ok(RuleBook { set, actions, hits, passes: before.passes });
        }
        let anew = || -> Result<RuleBook, RuleSetError> {
            let book = RuleBook::new(rules, workers)?;
            book.carry_hits(before, differs);
            Ok(book)
        };
        if old + new > CHANGES_MAX {
            return anew();
        }
        let (mut set, mut actions) = (before.set.clone(), before.actions.clone());
        for (at, rule) in rules.iter().enumerate().skip(start).take(new) {
            let id =
                if at < start + old { set.replace(at, &rule.matches)? } else { Some(set.insert(at, &rule.matches)?) };
            let Some(id) = id else { return anew() };
            actions.resize(actions.len().max(id.index() + 1), rule.action);
            actions[id.index()] = rule.action;
        }
        for _ in new..old {
            set.remove(start + new)?;
        }
        let passes = rules.iter().any(|rule| rule.action == RuleAction::NoTranslation);
        let hits = Arc::new(Hits::new(workers, set.number_count()));
        let book = RuleBook { hits, set, actions, passes };
        book.carry_hits(before, differs);
        Ok(book)
    }

    fn differs_from(&self, new_count: usize, rule: impl Fn(usize) -> Option<Rule>) -> Differs {
        let old_count = self.set.len();
        let is_same = |old: usize, new: usize| self.rule_at(old).zip(rule(new)).is_some_and(|(old, new)| old == new);
        let shorter = old_count.min(new_count);
        let start = (0..shorter).take_while(|at| is_same(*at, *at)).count();
        let end = (1..=shorter - start).take_while(|back| is_same(old_count - back, new_count - back)).count();
        Differs { start, old: old_count - start - end, new: new_count - start - end }
    }

    /// Call it when no worker uses the old book any more.
    pub(crate) fn settle_hits(&self, before: &RuleBook) {
        if !Arc::ptr_eq(&self.hits, &before.hits) {
            self.carry_hits(before, before.differs_from(self.set.len(), |at| self.rule_at(at)));
        }
    }

    fn carry_hits(&self, before: &RuleBook, Differs { start, old, new }: Differs) {
        let id = |book: &RuleBook, at: usize| book.set.at(at).map(|(id, _)| id);
        let mut moved: HashMap<Rule, RuleId> =
            (start..start + old).filter_map(|at| before.rule_at(at).zip(id(before, at))).collect();
        let same = (0..self.set.len()).filter_map(|at| {
            let now = id(self, at)?;
            let then = match at {
                _ if at < start => id(before, at),
                _ if at < start + new => moved.remove(&self.rule_at(at)?),
                _ => id(before, at - new + old),
            };
            Some((then?, now))
        });
        self.hits.carry(&before.hits, same);
    }

    fn rule_at(&self, position: usize) -> Option<Rule> {
        let (id, matches) = self.set.at(position)?;
        Some(Rule { matches: *matches, action: *self.actions.get(id.index())? })
    }

    pub(crate) fn new(rules: &[Rule], workers: usize) -> Result<RuleBook, RuleSetError> {
        let matches: Vec<_> = rules.iter().map(|rule| rule.matches).collect();
        Ok(RuleBook {
            set: RuleSet::new(&matches)?,
            actions: rules.iter().map(|rule| rule.action).collect(),
            hits: Arc::new(Hits::new(workers, rules.len())),
            passes: rules.iter().any(|rule| rule.action == RuleAction::NoTranslation),
        })
    }

    /// The ruling of the first rule that matches.
    #[inline]
    pub fn ruling(&self, key: &RuleKey) -> Ruling {
        if self.set.is_empty() {
            return Ruling::DEFAULT;
        }
        self.ruling_of(self.set.lookup(key))
    }

    #[inline]
    fn ruling_of(&self, rule: Option<RuleId>) -> Ruling {
        let action = rule.and_then(|rule| self.actions.get(rule.index()));
        action.map_or(Ruling::DEFAULT, |action| Ruling { rule, action: *action })
    }

    #[inline]
    pub(crate) fn ruling_burst(&self, keys: &[RuleKey], rulings: &mut [Ruling]) {
        let mut found = [None; BURST_MAX];
        self.set.lookup_burst(keys, &mut found);
        for (ruling, rule) in rulings.iter_mut().zip(found).take(keys.len()) {
            *ruling = self.ruling_of(rule);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    pub(crate) fn passes(&self) -> bool {
        self.passes
    }

    #[inline]
    pub(crate) fn count(&self, worker: WorkerId, ruling: Ruling) {
        if let Some(rule) = ruling.rule {
            self.hits.count(worker, rule);
        }
    }

    /// The search.
    pub fn set(&self) -> &RuleSet {
        &self.set
    }

    /// A rule, its action, and how often it applied.
    pub fn at(&self, position: usize) -> Option<(&super::Match, RuleAction, u64)> {
        let (id, matches) = self.set.at(position)?;
        Some((matches, *self.actions.get(id.index())?, self.hits.of(id)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) out: bool,
    pub(crate) back: bool,
    pub(crate) is_logged: bool,
    /// Positions of the filters that decide about packets from inside and from outside.
    pub(crate) by: [Option<u32>; 2],
}

impl Permits {
    pub(crate) const ALL: Permits = Permits { out: true, back: true, is_logged: false, by: [None; 2] };
}

/// Filter generations are 1 to this, 0 for none. Records have room for one more, which never
/// matches.
pub(crate) const GENERATIONS: u8 = 30;

/// Filters by direction.
pub struct FilterBook {
    /// The sets have positions in this list.
    filters: Vec<FilterRule>,
    out: (RuleSet, Vec<u32>),
    back: (RuleSet, Vec<u32>),
    /// Both sets are the same: one search answers for both.
    is_one_set: bool,
    hits: Arc<Hits>,
    generation: u8,
    /// The latest generation that a worker may have adopted, over all snapshots of the instance.
    adopted: Arc<AtomicU8>,
    logs: bool,
}

impl FilterBook {
    pub(crate) fn bytes_for(filters: &[FilterRule], workers: usize) -> u64 {
        let directed: u64 = filters.iter().map(|filter| u64::from(filter.out) + u64::from(filter.back)).sum();
        // In the settings and here.
        let each = 2 * size_of::<FilterRule>() as u64 + 8 * (workers as u64 + 1);
        directed * (SEARCH_BYTES + size_of::<u32>() as u64) + filters.len() as u64 * each
    }

    /// After `before`, if any. If the flag is true, a session may have the same filters, but
    /// another way.
    pub(crate) fn new(
        filters: &[FilterRule],
        workers: usize,
        before: Option<(&FilterBook, bool)>,
    ) -> Result<FilterBook, RuleSetError> {
        let (before, has_other_ways) = (before.map(|(before, _)| before), before.is_some_and(|(_, other)| other));
        let of = |wanted: fn(&FilterRule) -> bool| -> Result<_, RuleSetError> {
            let positions: Vec<u32> =
                (0..filters.len() as u32).filter(|position| wanted(&filters[*position as usize])).collect();
            let matches: Vec<_> = positions.iter().map(|position| filters[*position as usize].matches).collect();
            Ok((RuleSet::new(&matches)?, positions))
        };
        let unchanged = before.filter(|before| before.filters == filters);
        let generation = match before {
            None => u8::from(!filters.is_empty()),
            Some(before) if before.filters == filters && !has_other_ways => before.generation,
            Some(before) => before.adopted.load(Ordering::Relaxed) % GENERATIONS + 1,
        };
        let adopted = before.map(|before| Arc::clone(&before.adopted));
        let is_one_set = filters.iter().all(|filter| filter.out == filter.back);
        let (out, back) = match unchanged {
            Some(before) => (before.out.clone(), before.back.clone()),
            None => {
                let out = of(|filter| filter.out)?;
                // A clone shares the search.
                let back = if is_one_set { out.clone() } else { of(|filter| filter.back)? };
                (out, back)
            }
        };
        Ok(FilterBook {
            is_one_set,
            out,
            back,
            logs: filters.iter().any(|filter| filter.log),
            filters: filters.to_vec(),
            hits: FilterBook::hits_after(filters, workers, before),
            generation,
            adopted: adopted.unwrap_or_else(|| Arc::new(AtomicU8::new(generation))),
        })
    }

    /// Some worker may give this generation to records from now on, so that no other filters have
    /// it next, even if the change is undone.
    pub(crate) fn note_adoption(&self) {
        self.adopted.store(self.generation, Ordering::Relaxed);
    }

    fn hits_after(filters: &[FilterRule], workers: usize, before: Option<&FilterBook>) -> Arc<Hits> {
        let Some(before) = before else { return Arc::new(Hits::new(workers, filters.len())) };
        if before.filters == filters {
            return Arc::clone(&before.hits);
        }
        let hits = Hits::new(workers, filters.len());
        FilterBook::carry_hits(&hits, filters, before);
        Arc::new(hits)
    }

    fn carry_hits(hits: &Hits, filters: &[FilterRule], before: &FilterBook) {
        let mut known: HashMap<FilterRule, RuleId> = before.filters.iter().copied().zip((0..).map(RuleId)).collect();
        let same = filters.iter().zip((0..).map(RuleId)).filter_map(|(filter, now)| Some((known.remove(filter)?, now)));
        hits.carry(&before.hits, same);
    }

    pub(crate) fn settle_hits(&self, before: &FilterBook) {
        if !Arc::ptr_eq(&self.hits, &before.hits) {
            FilterBook::carry_hits(&self.hits, &self.filters, before);
        }
    }

    /// The generation for sessions that are permitted both ways. It changes with the filters, and
    /// when Natrix gets other addresses.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u8 {
        self.generation
    }

    #[inline]
    pub(crate) fn logs(&self) -> bool {
        self.logs
    }

    /// True if everything is permitted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    #[inline]
    pub(crate) fn permits(&self, key: &RuleKey) -> Permits {
        let out = self.out.0.lookup(key);
        self.permits_of([out, if self.is_one_set { out } else { self.back.0.lookup(key) }])
    }

    pub(crate) fn permits_burst(&self, keys: &[RuleKey], permits: &mut [Permits]) {
        if self.is_empty() {
            return;
        }
        let (mut out, mut back) = ([None; BURST_MAX], [None; BURST_MAX]);
        self.out.0.lookup_burst(keys, &mut out);
        if self.is_one_set {
            back = out;
        } else {
            self.back.0.lookup_burst(keys, &mut back);
        }
        for ((permits, out), back) in permits.iter_mut().zip(out).zip(back).take(keys.len()) {
            *permits = self.permits_of([out, back]);
        }
    }

    /// By what the two sets have found.
    #[inline]
    fn permits_of(&self, [out, back]: [Option<RuleId>; 2]) -> Permits {
        let position = |(_, positions): &(RuleSet, Vec<u32>), found: Option<RuleId>| {
            found.and_then(|rule| positions.get(rule.index())).copied()
        };
        let by = [position(&self.out, out), position(&self.back, back)];
        let [out, back] = by.map(|position| self.filter(position?));
        let permits = |filter: Option<&FilterRule>| filter.is_none_or(|filter| filter.action == FilterAction::Permit);
        Permits { out: permits(out), back: permits(back), is_logged: out.is_some_and(|filter| filter.log), by }
    }

    #[inline]
    pub(crate) fn filter(&self, position: u32) -> Option<&FilterRule> {
        self.filters.get(position as usize)
    }

    pub(crate) fn deciding(&self, is_out: bool, key: &RuleKey) -> Option<(usize, &FilterRule)> {
        self.found(if is_out { &self.out } else { &self.back }, key)
    }

    fn found(&self, (set, positions): &(RuleSet, Vec<u32>), key: &RuleKey) -> Option<(usize, &FilterRule)> {
        let position = *positions.get(set.lookup(key)?.index())? as usize;
        Some((position, self.filters.get(position)?))
    }

    pub(crate) fn count(&self, worker: WorkerId, position: usize) {
        self.hits.count(worker, RuleId(position as u32));
    }

    /// A filter, and how often it decided: once for a session permitted both ways.
    pub fn at(&self, position: usize) -> Option<(&FilterRule, u64)> {
        Some((self.filters.get(position)?, self.hits.of(RuleId(position as u32))))
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.filters.len()
    }
}
