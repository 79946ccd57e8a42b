//! The bits of a key by which a table distinguishes its cells.

use super::key::Match;
use super::key::PortRange;
use super::key::RuleKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Mask {
    pub(super) source: u8,
    pub(super) destination: u8,
    /// As a power of 2: 0 distinguishes single ports, 16 none.
    pub(super) source_block: u8,
    pub(super) destination_block: u8,
    pub(super) protocol: bool,
    pub(super) realm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) addresses: u64,
    pub(super) rest: u64,
}

/// Few sizes mean few tables.
fn block_of(range: PortRange) -> u8 {
    match range.last - range.first {
        0 => 0,
        1..=15 => 4,
        16..=255 => 8,
        256..=4095 => 12,
        _ => 16,
    }
}

const fn prefix_mask(length: u8) -> u64 {
    (u32::MAX as u64) << (32 - length) & u32::MAX as u64
}

impl Mask {
    pub(super) const NONE: Mask =
        Mask { source: 0, destination: 0, source_block: 16, destination_block: 16, protocol: false, realm: false };

    pub(super) fn of(rule: &Match) -> Mask {
        Mask {
            source: rule.source.length(),
            destination: rule.destination.length(),
            source_block: block_of(rule.source_ports),
            destination_block: block_of(rule.destination_ports),
            protocol: rule.protocol.is_some(),
            realm: rule.realm.is_some(),
        }
    }

    pub(super) fn suits(&self, finer: &Mask) -> bool {
        self.meet(finer) == *self
    }

    pub(super) fn meet(&self, other: &Mask) -> Mask {
        Mask {
            source: self.source.min(other.source),
            destination: self.destination.min(other.destination),
            source_block: self.source_block.max(other.source_block),
            destination_block: self.destination_block.max(other.destination_block),
            protocol: self.protocol && other.protocol,
            realm: self.realm && other.realm,
        }
    }

    pub(super) fn addresses_only(&self) -> Mask {
        Mask { source: self.source, destination: self.destination, ..Mask::NONE }
    }

    pub(super) fn bits(&self) -> u32 {
        u32::from(self.source)
            + u32::from(self.destination)
            + u32::from(16 - self.source_block)
            + u32::from(16 - self.destination_block)
            + if self.protocol { 2 } else { 0 }
            + if self.realm { 2 } else { 0 }
    }

    pub(super) fn word(&self) -> Cell {
        let ports = |block: u8| 0xffff_u64 << block & 0xffff;
        Cell {
            addresses: prefix_mask(self.source) | prefix_mask(self.destination) << 32,
            rest: ports(self.destination_block)
                | ports(self.source_block) << 16
                | if self.protocol { 0xffff << 32 } else { 0 }
                | if self.realm { 0xffff << 48 } else { 0 },
        }
    }

    /// A port range that crosses a block's border has two cells, each with its part of the rule. No
    /// range is longer than its table's blocks.
    pub(super) fn cells(&self, rule: &Match) -> impl Iterator<Item = (Cell, Match)> {
        let (word, rule) = (self.word(), *rule);
        let destinations = parts(rule.destination_ports, self.destination_block);
        let sources = parts(rule.source_ports, self.source_block);
        sources.into_iter().flatten().flat_map(move |source_ports| {
            destinations.into_iter().flatten().map(move |destination_ports| {
                let part = Match { source_ports, destination_ports, ..rule };
                (word.of(&part.first()), part)
            })
        })
    }
}

fn parts(range: PortRange, block: u8) -> [Option<PortRange>; 2] {
    if block >= 16 || range.first >> block == range.last >> block {
        return [Some(range), None];
    }
    let border = range.last >> block << block;
    [PortRange { last: border - 1, ..range }, PortRange { first: border, ..range }].map(Some)
}

impl Cell {
    #[inline(always)]
    pub(super) fn of(&self, key: &RuleKey) -> Cell {
        Cell { addresses: key.addresses & self.addresses, rest: key.rest & self.rest }
    }

    /// A folded multiplication, without a secret: senders of packets do not choose rules.
    #[inline(always)]
    pub(super) fn hash(&self) -> u64 {
        let product =
            u128::from(self.addresses ^ 0x9e37_79b9_7f4a_7c15) * u128::from(self.rest ^ 0xbf58_476d_1ce4_e5b9);
        product as u64 ^ (product >> 64) as u64
    }
}
