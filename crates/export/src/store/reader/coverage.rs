//! Whether the records of a time are complete, and what limits an answer if they are not.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Holder;
use super::Question;
use super::Until;
use super::proof::Losses;
use super::proof::unrecorded;
use super::search::Search;
use super::time::Stretch;
use crate::Subscriber;
use crate::store::aside;
use crate::store::builder::Coverage;
use crate::store::builder::union;
use crate::store::catalogue::ADOPTED_US;
use crate::store::catalogue::Boot;
use crate::store::catalogue::FormulasInUse;
use crate::store::catalogue::Moment;
use crate::store::catalogue::Segment;
use crate::store::error::StoreError;
use crate::utc_text;

/// Times of day are before this one.
const UNIX_MAX_US: u64 = 1 << 60;

/// What pools had to do with the address in question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Assignment {
    /// The pools of that time are known.
    has_pools: bool,
    /// It was an address of one of them.
    is_of_pool: bool,
    /// The configuration gave it to one host.
    is_one_to_one: bool,
    /// It may have: an earlier version did not record that.
    may_be_one_to_one: bool,
}

impl Search<'_> {
    /// Notes the formulas in use between two moments. `end_us`: that of the records.
    pub(super) fn note_formulas(&mut self, boot: u32, from_us: u64, to_us: u64, end_us: u64) -> Result<(), StoreError> {
        let Some(known) = self.store.catalogue.boots.get(boot as usize) else { return Ok(()) };
        for (place, in_use) in known.formulas.iter().enumerate() {
            // Workers adopt a configuration after it was announced to the log.
            let until_us = known.formulas.get(place + 1).map_or(u64::MAX, adopted_us);
            if in_use.checksum != 0 && in_use.since_us <= to_us && from_us < until_us {
                self.found.formulas.push(in_use.checksum);
            }
        }
        self.found.formulas.sort_unstable();
        self.found.formulas.dedup();
        for change in changes(known).filter(|change| change.since_us <= to_us && from_us < change.until_us) {
            // By then every worker has a record of the change.
            let recorded_us = self.recorded_us(boot, &change)?.filter(|_| change.adopted_us <= end_us);
            if recorded_us.is_none_or(|recorded_us| from_us <= recorded_us) {
                self.found.are_formulas_doubtful = true;
                let note = "the formulas changed just before; a mapping that kept its port may not be recorded";
                self.limit(note.to_owned());
            }
        }
        Ok(())
    }

    /// Notes why an address without a holder may have had a holder all the same: the configuration
    /// decided, or it was no address of a pool. Between two moments of a boot.
    pub(super) fn note_assignment(&mut self, boot: u32, from_us: u64, to_us: u64) {
        let address = self.question.address;
        let Some(known) = self.store.catalogue.boots.get(boot as usize).filter(|_| self.question.host.is_none()) else {
            return;
        };
        let assignment = &mut self.assignment;
        for pools in known.pools_between(from_us, to_us) {
            let Some(range) = pools.range_of(address) else { continue };
            assignment.is_of_pool = true;
            assignment.is_one_to_one |= range.is_one_to_one;
            assignment.may_be_one_to_one |= pools.is_of_earlier_version();
        }
        assignment.has_pools |= known.pools.iter().any(|(_, pools)| !pools.ranges().is_empty());
    }

    /// Says what was noted of an address that has no holder, or none all the time.
    pub(super) fn assignments(&mut self) {
        let Question { address, from_us, to_us, .. } = self.question;
        let Assignment { has_pools, is_of_pool, is_one_to_one, may_be_one_to_one } = self.assignment;
        let is_held = !self.found.holders.is_empty();
        let is_held_throughout =
            self.found.holders.iter().any(|holder| self.found.is_throughout(holder, from_us, to_us));
        if is_one_to_one && !is_held_throughout {
            self.limit(format!(
                "the configuration of that time gave {address} to one host (one-to-one), which has a record only \
                 while it uses it; `natrix find {address} --config FILE` names the host"
            ));
        } else if may_be_one_to_one && !is_held_throughout {
            self.limit(format!(
                "an earlier version of Natrix recorded that time, and not whether the configuration gave {address} to one \
                 host (one-to-one), which would have a record only while it used it; `natrix find {address} --config FILE` \
                 with the configuration of that time says so"
            ));
        } else if has_pools && !is_of_pool && !is_held && !address.is_unspecified() {
            // An export asks about no address.
            self.found.notes.push(format!(
                "{address} was no external address of a pool: packets that pass untranslated have no record"
            ));
        }
    }

    /// When all workers had recorded the mappings that kept their ports at a change of formulas.
    pub(super) fn recorded_us(&mut self, boot: u32, change: &Change) -> Result<Option<u64>, StoreError> {
        let known = self.recorded_so_far_us(boot, change);
        let is_last = boot as usize + 1 == self.store.catalogue.boots.len();
        if known.is_some() || !is_last || self.journal.is_some() {
            return Ok(known);
        }
        self.journal()?;
        Ok(self.recorded_so_far_us(boot, change))
    }

    /// The same by the segments, and by the journal if it was read.
    fn recorded_so_far_us(&self, boot: u32, change: &Change) -> Option<u64> {
        let catalogue = &self.store.catalogue;
        let of_boot = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == boot);
        let journal = self.window(boot).map(|window| &window.coverage);
        let mut workers: BTreeMap<u8, Option<u64>> = BTreeMap::new();
        for coverage in of_boot.map(|segment| &segment.coverage).chain(journal) {
            for (worker, ..) in &coverage.workers {
                workers.entry(*worker).or_default();
            }
            for (worker, configuration, at_us) in &coverage.recorded {
                if change.configurations.contains(configuration) {
                    let first = workers.entry(*worker).or_default();
                    *first = Some(first.map_or(*at_us, |first| first.min(*at_us)));
                }
            }
        }
        let all: Option<Vec<u64>> = workers.into_values().collect();
        all?.into_iter().max()
    }

    /// The end of the records of a boot that has not ended.
    pub(super) fn live_end(&mut self, boot: u32, from_us: u64, known: &Boot) -> Result<u64, StoreError> {
        let sealed_us = self.store.catalogue.of_boot(boot).last().map(|segment| segment.coverage.covered_us);
        let began_us = known.clocks.first().map_or(0, |moment| moment.monotonic_us);
        let sealed_us = sealed_us.unwrap_or(began_us);
        // A question about an earlier time needs no journal.
        let lowest = known.clocks.iter().map(Moment::offset).min().unwrap_or(0);
        let to_us = self.question.to_us.max(from_us);
        if to_us < sealed_us.saturating_add_signed(lowest) {
            return Ok(sealed_us);
        }
        let covered = self.journal()?.get(&boot).map(|window| window.coverage.covered_us);
        Ok(covered.unwrap_or(sealed_us).max(sealed_us))
    }

    /// The periods of a boot in which records may be missing.
    pub(super) fn losses(&self, boot: u32) -> Losses {
        let catalogue = &self.store.catalogue;
        let of_boot = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == boot);
        let journal = self.window(boot).map(|window| &window.coverage);
        let mut periods = catalogue.boots.get(boot as usize).map(|boot| boot.uncertain.clone()).unwrap_or_default();
        let mut last: Option<&Coverage> = None;
        for coverage in of_boot.map(|segment| &segment.coverage).chain(journal) {
            periods.extend_from_slice(&coverage.uncertain);
            if last.is_none_or(|last| last.covered_us <= coverage.covered_us) {
                last = Some(coverage);
            }
        }
        Losses { periods: union(periods), is_ended: last.is_none_or(|last| !last.is_still_uncertain) }
    }

    fn is_uncertain(&self, boot: u32, from_us: u64, to_us: u64) -> bool {
        self.losses(boot).periods.iter().any(|(from, until)| *from <= to_us && from_us <= *until)
    }

    /// Notes what is missing between two moments.
    pub(super) fn check_covered(
        &mut self,
        stretch: &Stretch,
        segments: &[&Segment],
        from_us: u64,
        to_us: u64,
    ) -> Result<(), StoreError> {
        let store = self.store;
        if self.is_uncertain(stretch.boot, from_us, to_us) {
            let at = utc_text(stretch.unix_us(from_us));
            self.limit(format!("records were lost before {at}, and any of them may be the answer"));
        }
        // A clean stretch of segments and then the journal; what is missing was deleted.
        let mut covered_us = store.catalogue.boots[stretch.boot as usize].clocks.first().map_or(0, |c| c.monotonic_us);
        let mut hole = None;
        for segment in segments {
            if segment.coverage.from_us > covered_us {
                hole = hole.or((covered_us <= to_us && from_us < segment.coverage.from_us).then_some(()));
            }
            covered_us = covered_us.max(segment.coverage.covered_us);
        }
        let is_deleted = hole.is_some()
            || (to_us >= covered_us
                && store.catalogue.deleted.iter().any(|segment| {
                    segment.boot == stretch.boot && segment.coverage.covered_us > covered_us.max(from_us)
                }));
        if is_deleted {
            self.limit("records of that time were deleted by retention".to_owned());
        }
        Ok(())
    }

    /// A boot that did not stop cleanly ran for some time after its last record. What was open then
    /// may still have been held, and something else may have begun.
    pub(super) fn after_end(&mut self, known: &Boot, boot: u32, end_us: u64) -> Result<(), StoreError> {
        let Question { from_us, to_us, .. } = self.question;
        let next = self.store.catalogue.boots.get(boot as usize + 1);
        if !unrecorded(known, next, end_us).iter().any(|(begin, end)| from_us < *end && *begin <= to_us) {
            return Ok(());
        }
        let stretches = self.store.stretches(boot, known, end_us);
        let Some(stretch) = stretches.last().copied() else {
            self.limit("an instance of that time left no record".to_owned());
            return Ok(());
        };
        let end = utc_text(stretch.unix_us(stretch.to_us));
        self.limit(match known.ended {
            None => format!("the records end at {end}, before that time"),
            Some(_) if known.is_whole => format!("the instance was killed after {end}; when exactly is not known"),
            Some(_) => format!("the instance ended without a stop after {end}; its last records may be lost"),
        });
        let last_us = stretch.to_us.saturating_sub(1).max(stretch.from_us);
        let before = self.found.holders.len();
        // There are records after the time until which there are all.
        // Those that are listed already may come a second time.
        let holders_max = self.bounds.holders_max;
        self.bounds.holders_max = holders_max.saturating_add(before);
        self.stretch(&stretch, last_us, self.latest_us(boot).max(last_us))?;
        self.bounds.holders_max = holders_max;
        let mut late = self.found.holders.split_off(before);
        late.retain_mut(|holder| {
            let is_ended = match holder.until {
                Until::Ended(end) | Until::Lost(end) => end <= from_us,
                Until::Open | Until::Restart(_) => {
                    holder.is_certain = false;
                    false
                }
            };
            !is_ended && holder.since_us <= to_us
        });
        // A holder of the recorded part of the time is listed already.
        let known: BTreeSet<Holder> = self.found.holders.iter().map(Holder::interval).collect();
        late.retain(|holder| !known.contains(&holder.interval()));
        self.found.holders.extend(late);
        self.check_count(self.found.holders.len())
    }

    /// The time of the latest record of a boot.
    fn latest_us(&self, boot: u32) -> u64 {
        let segments = self.store.catalogue.of_boot(boot).map(|segment| &segment.coverage);
        let all = segments.chain(self.window(boot).map(|window| &window.coverage));
        all.map(|coverage| coverage.latest_us).max().unwrap_or(0)
    }

    pub(super) fn limit(&mut self, note: String) {
        self.found.is_complete = false;
        if !self.found.notes.contains(&note) {
            self.found.notes.push(note);
        }
    }

    /// Notes the parts of the time that no stretch shows.
    pub(super) fn limits(&mut self, mut shown: Vec<(u64, u64)>) {
        self.count_reads();
        let Question { from_us, to_us, .. } = self.question;
        shown.sort_unstable();
        let in_question = shown.iter().filter(|(begin, end)| from_us < *end && *begin <= to_us);
        let mut shown_to = 0;
        for (begin, end) in in_question {
            self.found.has_time_twice |= from_us.max(*begin) < shown_to;
            shown_to = shown_to.max(*end);
        }
        let began = self.store.catalogue.boots.iter().filter_map(|boot| boot.clocks.first()).map(|clock| clock.unix_us);
        let (first, last) =
            (shown.first().map(|first| first.0).or(began.min()), shown.iter().map(|shown| shown.1).max());
        let mut covered_to = from_us;
        for (begin, end) in &shown {
            if *begin <= covered_to {
                covered_to = covered_to.max(*end);
            }
        }
        match (first, last) {
            _ if to_us >= UNIX_MAX_US => self.limit("that is no time a clock can show".to_owned()),
            (Some(first), _) if from_us < first => {
                self.limit(format!("the records begin at {}, after that time", utc_text(first)));
            }
            (None, _) | (_, None) => self.limit("there is no record".to_owned()),
            (_, Some(last)) if to_us >= last => {
                // What limits the answer already says more.
                let note = format!("the records end at {}, before that time", utc_text(last));
                let is_first = self.found.is_complete;
                is_first.then_some(note).into_iter().for_each(|note| self.limit(note));
            }
            _ if covered_to <= to_us => {
                let at = utc_text(covered_to);
                self.limit(format!(
                    "no record covers {at}: the instance was not running, or its clock was set forward over that time"
                ));
            }
            _ => {}
        }
        if self.found.has_time_twice {
            let what = if from_us == to_us { "that time" } else { "a part of that time" };
            self.found.notes.push(format!(
                "the clock was set back: {what} occurred more than once, and the holders of each are listed"
            ));
        }
    }

    /// Notes what damage makes uncertain.
    pub(super) fn damages(&mut self) {
        let catalogue = &self.store.catalogue;
        if catalogue.is_cut {
            let entry = catalogue.entries + 1;
            self.limit(format!(
                "the catalogue of the store is damaged from entry {entry} on: no holder is certain, and later records \
                 are not found"
            ));
            self.found.holders.iter_mut().for_each(|holder| holder.is_certain = false);
        }
        let began_us = catalogue.boots.first().and_then(|boot| boot.clocks.first()).map(|clock| clock.unix_us);
        let is_before = began_us.is_none_or(|began_us| self.question.from_us < began_us);
        let stores = catalogue.asides.iter().filter(|aside| is_before && aside::is_store_place(&aside.place));
        for place in stores.map(|aside| self.store.folder.join(&aside.place)) {
            self.limit(format!(
                "earlier records were damaged and are in {}: also ask natrix find --dir with that folder",
                place.display()
            ));
        }
    }

    /// Notes why a moment has several holders, or an uncertain one.
    pub(super) fn ambiguity(&mut self) {
        let is_unknown = |holder: &Holder| holder.subscriber == Subscriber::Unknown;
        if self.found.holders.iter().any(is_unknown) {
            self.limit("the record that names an IPv6 host is missing".to_owned());
        }
        if self.found.holders.iter().any(|holder| !holder.is_certain && !is_unknown(holder)) {
            let note = "a holder marked uncertain may have ended before that time: the record of its end may be lost";
            self.limit(note.to_owned());
        }
        let behind = |holder: &Holder| match holder.subscriber {
            Subscriber::Host(name) if self.question.host.is_none() && self.question.is_of(&name) => Some(name.address),
            _ => None,
        };
        if self.found.holders.iter().filter_map(behind).collect::<BTreeSet<u128>>().len() > 1 {
            let note = "hosts behind several B4s have that inner address: ask for the B4 of the one that is meant";
            self.found.notes.push(note.to_owned());
        }
        if self.found.holders.iter().any(|holder| !holder.is_since_exact) {
            self.found.notes.push(
                "a beginning is known to two seconds only, from the time shown on: that moment has no record of its own"
                    .to_owned(),
            );
        }
    }

    /// Marks holders whose port may have been another's in the millisecond in which the time in
    /// question begins or ends. Returns the places of those with another holder in the answer.
    pub(super) fn share_milliseconds(&mut self) -> Vec<usize> {
        let Question { address, host, from_us, to_us, .. } = self.question;
        let holders = &self.found.holders;
        let is_near = |holder: &Holder| !holder.is_in_part(from_us, to_us) && holder.may_be_in_part(from_us, to_us);
        let (mut shared, mut with_rival) = (Vec::new(), Vec::new());
        for (place, holder) in holders.iter().enumerate().filter(|(_, holder)| is_near(holder)) {
            let is_rival = |other: &Holder| holder.has_port_of(other) && !holder.is_apart_by_remote(other);
            let has_rival = holders.iter().any(is_rival);
            // Others are searched by external address only, and their records may be missing.
            let is_alone = self.found.is_complete && host.is_none() && holder.external == address;
            shared.extend((has_rival || !is_alone).then_some(place));
            with_rival.extend(has_rival.then_some(place));
        }
        for place in shared {
            self.found.holders[place].is_ms_shared = true;
        }
        with_rival
    }

    /// Of several holders within a millisecond none is proved to have had the port at a moment of
    /// it, though no record is missing.
    pub(super) fn note_rivals(&mut self, with_rival: &[usize]) {
        let Question { from_us, to_us, .. } = self.question;
        if from_us < to_us || with_rival.is_empty() {
            return;
        }
        for place in with_rival {
            self.found.holders[*place].is_certain = false;
        }
        let note =
            "a port had several holders within a millisecond of that moment: which of them had it then is not known";
        self.found.notes.push(note.to_owned());
    }
}

/// A change of the formulas of deterministic pools, by the clock of its boot.
pub(super) struct Change {
    /// Since when the new ones may have been in use.
    pub(super) since_us: u64,
    /// By then all workers have adopted them.
    pub(super) adopted_us: u64,
    /// Until when they may have been in use.
    pub(super) until_us: u64,
    /// Numbers of the configurations with them.
    configurations: core::ops::Range<u32>,
}

/// The changes of formulas in a boot. It begins without mappings, so its first ones are none.
pub(super) fn changes(boot: &Boot) -> impl Iterator<Item = Change> {
    boot.formulas.iter().enumerate().skip(1).filter_map(|(place, in_use)| {
        let before = boot.formulas.get(place - 1)?;
        let next = boot.formulas.get(place..)?.iter().find(|next| next.checksum != in_use.checksum);
        (before.checksum != in_use.checksum).then(|| Change {
            since_us: in_use.since_us,
            adopted_us: adopted_us(in_use),
            until_us: next.map_or(u64::MAX, adopted_us),
            configurations: in_use.configuration..next.map_or(u32::MAX, |next| next.configuration),
        })
    })
}

/// When all workers have adopted a configuration that was announced.
fn adopted_us(in_use: &FormulasInUse) -> u64 {
    in_use.at_us.saturating_add(ADOPTED_US)
}
