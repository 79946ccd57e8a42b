//! Slices with ports in blocks of other subscribers, leased before the formula applied. The slice's
//! owner cannot have these ports while the block is in use.

use crate::external::deterministic::Formula;
use crate::external::deterministic::Owner;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortRange;
use crate::external::ports::never_offered;
use crate::rows::Prospect;
use crate::snapshot::shared::Shared;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::HostNumber;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

/// A pool's slices with ports in others' blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// The pool.
    pub pool: PoolId,
    /// Subscribers of its formula.
    pub slices: u64,
    /// Slices with some port in such a block.
    pub leased: u64,
    /// Slices with all ports in such blocks.
    pub leased_whole: u64,
    /// When the last of these blocks is returned; `None` if that depends on its use.
    pub until: Option<Instant>,
}

/// Until when such blocks remain, by pool.
#[derive(Clone, Debug, Default)]
pub struct SliceHolds {
    latest: Vec<Latest>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Latest {
    #[default]
    Nothing,
    At(Instant),
    Open,
}

impl SliceHolds {
    /// For a census of the effect of these settings.
    pub fn under(candidate: &Shared) -> SliceHolds {
        SliceHolds { latest: vec![Latest::Nothing; candidate.pools.len()] }
    }

    /// `becomes` is what the change does to the block.
    pub(crate) fn count(
        &mut self,
        candidate: &Shared,
        range: PortRange,
        (realm, inside): (RealmId, HostNumber),
        becomes: Prospect,
        now: Instant,
    ) {
        let Some(slot) = candidate.slot(range.address).filter(|slot| slot.closed.is_none()) else { return };
        let pool = slot.pool;
        let Some((latest, formula)) = self.latest.get_mut(pool.index()).zip(candidate.formula(pool)) else { return };
        let mut slices = formula.slices_over(range.first, range.last);
        if !slices.any(|slice| candidate.is_slice_of_another(range.address, slice.0, realm, inside)) {
            return;
        }
        let ends = match becomes {
            Prospect::Drains(Some(ends)) => Latest::At(ends),
            Prospect::Ends => Latest::At(now),
            _ => Latest::Open,
        };
        *latest = match (*latest, ends) {
            (Latest::At(one), Latest::At(other)) => Latest::At(one.max(other)),
            (Latest::Open, _) | (_, Latest::Open) => Latest::Open,
            (Latest::Nothing, other) | (other, Latest::Nothing) => other,
        };
    }

    fn until(&self, pool: PoolId) -> Option<Instant> {
        match self.latest.get(pool.index()) {
            Some(Latest::At(ends)) => Some(*ends),
            _ => None,
        }
    }
}

/// Offered ports of a slice, and those of them in others' blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceUse {
    pub(crate) offered: u32,
    pub(crate) leased: u32,
}

impl Shared {
    fn is_slice_of_another(&self, address: AddressIndex, port: u16, realm: RealmId, inside: HostNumber) -> bool {
        matches!(self.slice_owner(address, port), Some(Owner::Subscriber(_)))
            && !self.is_by_formula(address, port, realm, inside.into())
    }

    /// Slices in others' blocks, by pool. Not for the packet path.
    pub fn slice_plan(&self, holds: &SliceHolds) -> Vec<SlicePlan> {
        let mut found: Vec<SlicePlan> = Vec::new();
        if self.pools.iter().all(|compiled| compiled.slice_ports == 0) {
            return found;
        }
        for (address, spec) in (0..).map(AddressIndex).zip(self.specs()) {
            let Some(slot) = self.slot(address).filter(|slot| slot.closed.is_none()) else { continue };
            let Some(formula) = self.formula(slot.pool) else { continue };
            let slices = self.slices_in_blocks(address, formula, &spec);
            let leased = slices.iter().filter(|slice| slice.leased > 0).count() as u64;
            if leased == 0 {
                continue;
            }
            let whole = slices.iter().filter(|slice| slice.leased > 0 && slice.leased == slice.offered).count() as u64;
            match found.iter_mut().find(|plan| plan.pool == slot.pool) {
                Some(plan) => (plan.leased, plan.leased_whole) = (plan.leased + leased, plan.leased_whole + whole),
                None => found.push(SlicePlan {
                    pool: slot.pool,
                    slices: formula.subscribers(),
                    leased,
                    leased_whole: whole,
                    until: holds.until(slot.pool),
                }),
            }
        }
        found
    }

    fn slices_in_blocks(&self, address: AddressIndex, formula: &Formula, spec: &AddressSpec) -> Vec<SliceUse> {
        let mut leases = self.ports.leases_on(address).peekable();
        if leases.peek().is_none() {
            return Vec::new();
        }
        // Blocks are for all protocols: an offer for one counts.
        let masks = [Protocol::Udp, Protocol::Tcp].map(|protocol| never_offered(spec, protocol));
        let offered = |first, last| {
            let range = PortRange { address, first, last };
            let (begin, end) = range.words();
            let bits = (begin..end).map(|word| !(masks[0][word] & masks[1][word]) & range.mask(word));
            bits.map(u64::count_ones).sum::<u32>()
        };
        let mut found: Vec<(u16, SliceUse)> = Vec::new();
        for lease in leases {
            let (block, holder) = (lease.block, lease.holder);
            for (first, last) in formula.slices_over(block.first_port(), block.last_port()) {
                if !self.is_slice_of_another(address, first, holder.realm, holder.address) {
                    continue;
                }
                let leased = offered(first.max(block.first_port()), last.min(block.last_port()));
                // Leases come in the order of their ports.
                match found.last_mut().filter(|(begin, _)| *begin == first) {
                    Some((_, slice)) => slice.leased += leased,
                    None => found.push((first, SliceUse { offered: offered(first, last), leased })),
                }
            }
        }
        found.into_iter().map(|(_, slice)| slice).collect()
    }

    pub(crate) fn slice_in_blocks(
        &self,
        slice: PortRange,
        protocol: Protocol,
        realm: RealmId,
        inside: HostNumber,
    ) -> SliceUse {
        let leases = self.ports.leases_on(slice.address).filter(|lease| {
            let (block, holder) = (lease.block, lease.holder);
            let is_own = (holder.realm, holder.address) == (realm, inside);
            !is_own && block.first_port() <= slice.last && slice.first <= block.last_port()
        });
        let leased = leases.map(|lease| {
            let (first, last) = (slice.first.max(lease.block.first_port()), slice.last.min(lease.block.last_port()));
            self.ports.available_within(&PortRange { first, last, ..slice }, protocol)
        });
        SliceUse { leased: leased.sum(), offered: self.ports.available_within(&slice, protocol) }
    }
}
