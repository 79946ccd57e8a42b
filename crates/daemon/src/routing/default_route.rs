//! Notices that the default route outside is gone although pools are announced: another program,
//! such as a DHCP client, may have taken the place of what a routing daemon has learned.

/// Looks without the route before it counts as gone: a daemon may remove it and add another.
const LOOKS: u32 = 5;

/// What a look at the routes shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Gone,
    Back,
}

/// The default route outside by the looks so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DefaultRoute {
    /// It was there while pools were announced.
    is_expected: bool,
    /// Looks without it since then, while pools were announced.
    missed: u32,
    /// It was there since the last look.
    was_there: bool,
}

impl DefaultRoute {
    /// It is there. A look may come too late to see that.
    pub(super) fn note(&mut self) {
        self.was_there = true;
    }

    /// What changes by another look.
    pub(super) fn look(&mut self, is_there: bool, is_announced: bool) -> Option<Change> {
        self.is_expected |= core::mem::take(&mut self.was_there) && is_announced;
        if is_there {
            self.is_expected |= is_announced;
            let missed = core::mem::take(&mut self.missed);
            return (missed >= LOOKS).then_some(Change::Back);
        }
        if !self.is_expected || !is_announced {
            return None;
        }
        self.missed = self.missed.saturating_add(1);
        (self.missed == LOOKS).then_some(Change::Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_that_goes_is_noticed_once() {
        let mut route = DefaultRoute::default();
        let mut looks = |count, is_there, is_announced| {
            (0..count).filter_map(|_| route.look(is_there, is_announced)).collect::<Vec<_>>()
        };
        assert_eq!(looks(9, false, true), [], "there was none");
        assert_eq!(looks(1, true, true), []);
        assert_eq!(looks(LOOKS - 1, false, true), [], "a moment");
        assert_eq!(looks(1, true, true), []);
        assert_eq!(looks(9, false, true), [Change::Gone]);
        assert_eq!(looks(9, true, true), [Change::Back]);
        assert_eq!(looks(9, false, false), [], "nothing is announced, which has a line of its own");
        assert_eq!(looks(9, false, true), [Change::Gone]);
    }

    #[test]
    fn a_default_route_that_was_there_between_two_looks_counts() {
        let mut route = DefaultRoute::default();
        assert_eq!(route.look(false, true), None);
        route.note();
        let seen: Vec<Change> = (0..9).filter_map(|_| route.look(false, true)).collect();
        assert_eq!(seen, [Change::Gone]);
    }
}
