//! What is to be told in the event log of a configuration that has none.

use crate::draft::Draft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;

/// What to do about it.
pub(crate) const REMEDY: &str = "write [log] events = \"/var/log/natrix/events.json\", or remove it";

/// Tells thresholds, and keys of `[log]`, that nothing comes of. Of filters their own check tells.
pub(crate) fn untold(draft: &Draft, report: &Report) -> Vec<Warning> {
    let singles = &draft.singles;
    if singles.event_log.is_some() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    let mut warn = |place: &Place, problem: String| warnings.push(report.warning(None, place, problem, REMEDY));
    let pools = draft.pools.iter().filter_map(|pool| Some((&pool.threshold_place, pool.threshold?)));
    let common = singles.threshold.as_ref().zip(singles.subscriber.threshold);
    let classes = draft.classes.iter().filter_map(|class| class.threshold.as_ref().zip(class.limits.threshold));
    for (place, threshold) in pools.chain(common).chain(classes) {
        let high = threshold.high_percent;
        warn(place, format!("is told in events, and there is no event log: nobody hears of it ({high} %)"));
    }
    for place in &singles.event_keys {
        warn(place, "is about the event log, and there is none: log.events is not set".to_owned());
    }
    warnings
}
