//! Whether a record may stay under a snapshot, beside its timers: under the present one for pages
//! and the sweep, under the next one for `natrix plan`.

use crate::external::address_slots::Closed;
use crate::snapshot::orphaned::Orphaned;
use crate::snapshot::shared::Shared;
use crate::steps::view::View;
use crate::time::Instant;

/// What a snapshot says about a mapping or an endpoint-dependent session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Stay {
    Stays,
    /// `None`: by its timers only.
    Leaves(Option<Instant>),
}

impl Stay {
    /// Of a closed address, of an orphaned record, or of both.
    fn of(closed: Option<Closed>, orphaned: Option<Orphaned>) -> Stay {
        if closed.is_none() && orphaned.is_none() {
            return Stay::Stays;
        }
        let of_address = closed.and_then(|closed| closed.ends);
        let of_place = orphaned.and_then(|orphaned| orphaned.ends);
        Stay::Leaves(of_address.into_iter().chain(of_place).min())
    }

    #[inline]
    pub(in crate::shard) fn ends(self) -> Option<Instant> {
        match self {
            Stay::Stays => None,
            Stay::Leaves(ends) => ends,
        }
    }
}

impl View<'_> {
    pub(in crate::shard) fn stay_of_mapping(&self, snapshot: &Shared, index: u32) -> Stay {
        let mapping = self.state.mappings.get(index);
        let (key, external) = (self.static_key(&mapping.key()), mapping.external());
        // The configuration itself may put the mapping here, even if the address drains.
        let closed = snapshot.closing(external.address.to_bits()).filter(|_| !snapshot.is_at_home(&key, external));
        Stay::of(closed, snapshot.orphaned(&key, external, mapping.created_s()))
    }

    pub(in crate::shard) fn stay_of_flow(&self, snapshot: &Shared, index: u32) -> Stay {
        let flow = self.state.flows.get(index);
        let host = self.configured_host(flow.internal().0);
        let closed = snapshot.closing(flow.external().address).filter(|_| !snapshot.is_flow_at_home(flow, &host));
        Stay::of(closed, snapshot.orphaned_flow(flow, &host))
    }
}

#[cfg(test)]
mod tests {
    use super::Closed;
    use super::Orphaned;
    use super::Stay;
    use crate::time::Duration;
    use crate::time::Instant;

    #[test]
    fn the_earlier_deadline_counts() {
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        let closed = |ends| Some(Closed { removed: false, since: at(1), ends });
        let orphaned = |ends| Some(Orphaned { is_shut: true, ends });
        assert_eq!(Stay::of(None, None), Stay::Stays);
        assert_eq!(Stay::of(closed(None), None), Stay::Leaves(None));
        assert_eq!(Stay::of(closed(Some(at(9))), orphaned(None)), Stay::Leaves(Some(at(9))));
        assert_eq!(Stay::of(closed(Some(at(9))), orphaned(Some(at(5)))), Stay::Leaves(Some(at(5))));
        assert_eq!(Stay::of(None, orphaned(Some(at(5)))).ends(), Some(at(5)));
    }
}
