//! IPv6 prefixes that rules, filters and classes name, and what stands for them.
//!
//! All prefixes must be known before it is decided what stands for each ([`nat::stand_in`]). Until
//! then a rule has a number: an address of 224.0.0.0/3, which cannot be written.

use std::cell::RefCell;
use std::collections::HashMap;

use nat::Settings;
use nat::rules::Match;
use nat::stand_in::NoRoom;
use nat::stand_in::Prefix6;
use nat::stand_in::StandIn;
use nat::stand_in::stand_ins;
use nat::types::HOSTS_FIRST;
use nat::types::Prefix;

/// The prefixes so far.
#[derive(Default)]
pub(super) struct Prefixes6 {
    list: RefCell<Vec<Prefix6>>,
    numbers: RefCell<HashMap<Prefix6, u32>>,
    /// Of rules that are taken as they were before.
    before: HashMap<Prefix, Prefix6>,
}

impl Prefixes6 {
    /// `before` are the settings in use, if rules may be taken from there.
    pub(super) fn new(before: Option<&Settings>) -> Prefixes6 {
        let known = before.map_or(&[][..], |before| &before.transition.stand_ins);
        let before = known.iter().map(|one| (one.block, one.prefix)).collect();
        Prefixes6 { before, ..Prefixes6::default() }
    }

    /// What a rule has for a prefix until all are known.
    pub(super) fn number(&self, prefix: Prefix6) -> Prefix {
        let mut list = self.list.borrow_mut();
        let number = *self.numbers.borrow_mut().entry(prefix).or_insert_with(|| {
            list.push(prefix);
            list.len() as u32 - 1
        });
        Prefix::host((HOSTS_FIRST | number).into())
    }

    /// The same of a rule as it was before.
    pub(super) fn number_of_before(&self, source: Prefix) -> Prefix {
        self.before.get(&source).map_or(source, |prefix| self.number(*prefix))
    }

    /// What a number or an IPv4 prefix means, in text.
    pub(super) fn shown(&self, source: Prefix) -> String {
        self.of_number(source).map_or_else(|| source.to_string(), |prefix| prefix.to_string())
    }

    fn of_number(&self, source: Prefix) -> Option<Prefix6> {
        let number = source.address().to_bits().checked_sub(HOSTS_FIRST)?;
        self.list.borrow().get(number as usize).copied()
    }

    /// What stands for all of them, and for those of classes.
    pub(super) fn stand_ins(&self, of_classes: impl Iterator<Item = Prefix6>) -> Result<Vec<StandIn>, NoRoom> {
        stand_ins(self.list.borrow().iter().copied().chain(of_classes))
    }

    /// Puts what stands for the prefixes in the place of their numbers.
    pub(super) fn settle<'m>(&self, found: &[StandIn], matches: impl Iterator<Item = &'m mut Match>) {
        let blocks: HashMap<Prefix6, Prefix> = found.iter().map(|one| (one.prefix, one.block)).collect();
        for matches in matches {
            if let Some(block) = self.of_number(matches.source).and_then(|prefix| blocks.get(&prefix)) {
                matches.source = *block;
            }
        }
    }
}
