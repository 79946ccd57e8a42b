//! Keys that need the event log, in a configuration without one; and what the log cannot be.

use nat::Duration;

use crate::draft::Draft;
use crate::fault::Warning;
use crate::model::EventLog;
use crate::model::EventTarget;
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

/// One path cannot be a file and a folder. A start would find out only when the store is open.
pub(crate) fn one_path_for_both(draft: &Draft, report: &mut Report) {
    let singles = &draft.singles;
    let (Some(log), Some(place)) = (&singles.event_log, &singles.event_log_place) else { return };
    if is_one_path(log) {
        let seen = log.store.as_ref().map_or_else(String::new, |store| store.path.display().to_string());
        let remedy = "name a file elsewhere, or remove one of them";
        report.fault(place, "is the folder of log.store.path, too", seen, remedy);
    }
}

/// Whether the file of lines and the store are at one path.
pub(crate) fn is_one_path(log: &EventLog) -> bool {
    match (&log.target, &log.store) {
        (Some(EventTarget::File(file)), Some(store)) => *file == store.path,
        _ => false,
    }
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
