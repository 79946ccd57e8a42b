//! Asks the packet filters; counting and logging come later.

use crate::policy::rules::Permits;
use crate::policy::rules::RuleKey;
use crate::settings::FilterAction;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::types::HostNumber;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    /// The packet as the filters see it.
    pub(crate) key: RuleKey,
    pub(crate) internal: HostNumber,
    pub(crate) is_out: bool,
    pub(crate) permits: Permits,
    /// It opens a session, which is logged once if permitted.
    pub(crate) opens: bool,
}

impl Judged {
    pub(crate) fn passes(&self) -> bool {
        if self.is_out { self.permits.out } else { self.permits.back }
    }

    pub(crate) fn check(&self) -> Result<(), Verdict> {
        if self.passes() { Ok(()) } else { Err(Verdict::DeniedByFilter) }
    }
}

impl View<'_> {
    #[inline]
    pub(crate) fn judge<T: Report>(&self, is_out: bool, key: RuleKey, opens: bool, report: &mut T) -> Judged {
        self.report_filter(is_out, &key, report);
        let internal = HostNumber::from(key.source());
        let key = self.ruled(key);
        let filters = &self.snapshot.filters;
        let permits = if filters.is_empty() { Permits::ALL } else { filters.permits(&key) };
        Judged { key, internal, is_out, permits, opens }
    }

    #[inline]
    pub(crate) fn report_filter<T: Report>(&self, is_out: bool, key: &RuleKey, report: &mut T) {
        if T::LISTENS
            && let Some((position, filter)) = self.snapshot.filters.deciding(is_out, &self.ruled(*key))
        {
            report.step(|| Step::PacketFilter { position, permits: filter.action == FilterAction::Permit });
        }
    }
}
