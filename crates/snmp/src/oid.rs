//! Object identifiers.

use core::fmt;

/// Most sub-identifiers (RFC 2578 §3.5).
pub(crate) const SUBIDS_MAX: usize = 128;

/// An object identifier. Their order is the order of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Oid(Vec<u32>);

impl Oid {
    /// From its sub-identifiers; those beyond [`SUBIDS_MAX`] are cut off.
    pub(crate) fn new(subids: &[u32]) -> Oid {
        Oid(subids.iter().copied().take(SUBIDS_MAX).collect())
    }

    /// This identifier with more sub-identifiers behind it.
    pub(crate) fn with(&self, more: &[u32]) -> Oid {
        Oid(self.0.iter().chain(more).copied().take(SUBIDS_MAX).collect())
    }

    /// Its sub-identifiers.
    pub(crate) fn subids(&self) -> &[u32] {
        &self.0
    }

    /// The null object identifier, which stands for "none".
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_empty()
    }

    /// What follows `prefix`; None if it does not begin with it.
    pub(crate) fn after(&self, prefix: &Oid) -> Option<&[u32]> {
        self.0.strip_prefix(prefix.0.as_slice())
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|subid| write!(f, ".{subid}"))
    }
}
