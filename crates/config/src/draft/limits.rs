//! What a subscriber may use: the same keys in `[subscriber]`, for everybody, and in `[[class]]`,
//! for some.

use nat::Protocol;
use nat::settings::Rate;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use toml_edit::Item;

use crate::keys::SUBSCRIBER_PORTS_MAX;
use crate::report::Place;
use crate::report::Report;
use crate::section::Section;
use crate::section::unknown_key;

/// Reads the limits of one table; what it does not say is as in `common`.
pub(crate) fn limits(section: &Section, common: &SubscriberLimits, report: &mut Report) -> SubscriberLimits {
    let mut limits = *common;
    for (limit, given) in limits.ports_max.iter_mut().zip(per_protocol(section, "ports", report)) {
        *limit = given.unwrap_or(*limit);
    }
    if let Some(sessions) = section.integer("sessions", report) {
        limits.sessions_max = u32::try_from(sessions.value).unwrap_or(u32::MAX);
    }
    if let Some(memory) = section.size("memory", report) {
        limits.memory_max = memory.value;
    }
    limits.new_mappings = rate(section, "new_mappings", "new_mappings_burst", common.new_mappings, report);
    limits.new_sessions = rate(section, "new_sessions", "new_sessions_burst", common.new_sessions, report);
    if section.has("threshold") || section.has("threshold_clear") {
        limits.threshold = threshold(section, report);
    }
    limits
}

/// `threshold` and beside it `threshold_clear`; without one ten percent less.
pub(crate) fn threshold(section: &Section, report: &mut Report) -> Option<Threshold> {
    let high = section.integer("threshold", report);
    let low = section.integer("threshold_clear", report);
    let Some(high) = high else {
        if let Some(low) = low.filter(|_| !section.has("threshold")) {
            let remedy = "write threshold = 80 too, or remove it";
            report.fault(&low.place, "is set without its threshold", low.value.to_string(), remedy);
        }
        return None;
    };
    if let Some(low) = &low
        && low.value >= high.value
    {
        let problem = format!("is not below threshold = {}", high.value);
        let remedy = format!("write threshold_clear = {}", high.value.saturating_sub(10));
        report.fault(&low.place, problem, low.value.to_string(), remedy);
        return None;
    }
    let low = low.map_or(high.value.saturating_sub(10), |low| low.value);
    let percent = |value| u8::try_from(value).unwrap_or(100);
    Some(Threshold { high_percent: percent(high.value), low_percent: percent(low) })
}

/// A rate, and beside it the burst; without one a second's worth.
fn rate(section: &Section, rate: &str, burst: &str, common: Option<Rate>, report: &mut Report) -> Option<Rate> {
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let given = section.has(rate).then(|| section.rate(rate, report)).flatten().map(narrow);
    let given_burst = section.integer(burst, report);
    match (given, common, given_burst) {
        (Some(per_second), _, burst) => {
            Some(Rate { per_second, burst: burst.map_or(per_second, |burst| narrow(burst.value)) })
        }
        (None, Some(common), Some(burst)) => Some(Rate { burst: narrow(burst.value), ..common }),
        (None, None, Some(found)) if !section.has(rate) => {
            let remedy = format!("write {rate} = \"100/s\" too, or remove it");
            report.fault(&found.place, "is a burst without its rate", found.value.to_string(), remedy);
            None
        }
        (None, common, _) => common,
    }
}

/// One number for all protocols, or a table with a number for some.
pub(crate) fn per_protocol(section: &Section, name: &str, report: &mut Report) -> [Option<u32>; Protocol::COUNT] {
    let Some(item) = section.item(name) else { return [None; Protocol::COUNT] };
    let whole = section.place_of(name, report);
    let Some(table) = item.as_table_like() else {
        return [number(item, &whole, name, report); Protocol::COUNT];
    };
    let mut numbers = [None; Protocol::COUNT];
    for (key, item) in table.iter() {
        let line = table.get_key_value(key).and_then(|(key, _)| report.line(key.span())).or(whole.line);
        let place = Place { path: format!("{}.{key}", whole.path).into(), line };
        match Protocol::ALL.into_iter().find(|protocol| protocol.name() == key) {
            Some(protocol) => numbers[protocol.index()] = number(item, &place, key, report),
            None => unknown_key(&place, key, Protocol::ALL.iter().map(|protocol| protocol.name()), report),
        }
    }
    numbers
}

fn number(item: &Item, place: &Place, name: &str, report: &mut Report) -> Option<u32> {
    let number = item.as_integer();
    let found = number.and_then(|number| u32::try_from(number).ok()).filter(|found| *found <= SUBSCRIBER_PORTS_MAX);
    if found.is_none() {
        let problem = if number.is_some() { "is out of range" } else { "is not a number of ports" };
        let seen = item.to_string();
        report.fault(place, problem, seen, format!("write {name} = 1000, from 0 to {SUBSCRIBER_PORTS_MAX}"));
    }
    found
}
