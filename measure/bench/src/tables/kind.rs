//! The names of the structures.

use core::fmt;
use core::str::FromStr;

use serde::Serialize;

/// Flows at which a linear search takes no more than about two seconds: each new flow is compared
/// with all others.
const LINEAR_SESSIONS_MAX: u32 = 100_000;

/// A structure of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing looked up: the work every packet costs.
    None,
    /// Linear search.
    Linear,
    /// Unbalanced binary search tree.
    Bst,
    /// Red-black tree.
    #[serde(rename = "rbtree")]
    RbTree,
    /// Hash table, collisions in lists.
    Chain,
    /// Hash table, collisions in trees.
    ChainTree,
    /// Hash table, collisions in lists of cache lines of two items.
    Bucket2,
    /// The same with three items.
    Bucket3,
    /// Rust's own hash table.
    Hashbrown,
    /// DPDK's hash table.
    DpdkHash,
    /// The engine's tables.
    Natrix,
}

impl Kind {
    /// All that are measured unless others are asked for: the paper's, the well-kept ones and
    /// Natrix's own.
    pub const STUDY: [Kind; 10] = [
        Kind::Linear,
        Kind::Bst,
        Kind::RbTree,
        Kind::Chain,
        Kind::ChainTree,
        Kind::Bucket2,
        Kind::Bucket3,
        Kind::Hashbrown,
        Kind::DpdkHash,
        Kind::Natrix,
    ];

    /// The word of the command line, of JSON and of CSV.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::None => "none",
            Kind::Linear => "linear",
            Kind::Bst => "bst",
            Kind::RbTree => "rbtree",
            Kind::Chain => "chain",
            Kind::ChainTree => "chain-tree",
            Kind::Bucket2 => "bucket2",
            Kind::Bucket3 => "bucket3",
            Kind::Hashbrown => "hashbrown",
            Kind::DpdkHash => "dpdk-hash",
            Kind::Natrix => "natrix",
        }
    }

    /// The largest size it is measured at.
    pub const fn sessions_max(self) -> u32 {
        match self {
            Kind::Linear => LINEAR_SESSIONS_MAX,
            _ => u32::MAX,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no structure of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "bench tables: no such structure ({0}); use linear, bst, rbtree, chain, chain-tree, bucket2, bucket3, hashbrown, dpdk-hash, natrix or none"
)]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(word: &str) -> Result<Kind, UnknownKind> {
        let all = Kind::STUDY.into_iter().chain([Kind::None]);
        all.into_iter().find(|kind| kind.name() == word).ok_or_else(|| UnknownKind(word.to_owned()))
    }
}
