//! Keys that need the event log, in a configuration without one; and a log that forgets soon.

use nat::Duration;

use crate::draft::Draft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;
use crate::section::duration_text;

/// What to do about it.
pub(crate) const REMEDY: &str = "write [log] events = \"/var/log/natrix/events.json\", or remove it";

/// A retention for less is a mistake of the unit more often than meant.
const RETENTION_USUAL: Duration = Duration::from_secs(86_400);

/// Warns of a store that soon has no answers.
pub(crate) fn short_retention(draft: &Draft, report: &Report) -> Option<Warning> {
    let kept = draft.singles.event_log.as_ref()?.store.as_ref()?.retention?;
    let place = draft.singles.log_retention_place.as_ref()?;
    let problem = format!(
        "keeps records for less than a day ({}): who had an address and port cannot be answered later",
        duration_text(kept.as_micros())
    );
    (kept < RETENTION_USUAL).then(|| report.warning(None, place, problem, "write it in days, as retention = \"180 d\""))
}

/// Warns of thresholds, and of keys of `[log]`, that have no effect. Filters have their own check.
pub(crate) fn unreported(draft: &Draft, report: &Report) -> Vec<Warning> {
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
        warn(place, format!("has no effect: thresholds are reported only in the event log, which is off ({high} %)"));
    }
    for place in &singles.event_keys {
        warn(place, "has no effect without an event log: log.events is not set".to_owned());
    }
    warnings
}
