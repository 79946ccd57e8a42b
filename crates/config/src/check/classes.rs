//! Classes of subscribers and timers of ports, each against the others of its kind.

use std::collections::HashMap;

use nat::types::Prefix;

use crate::check::unique_names;
use crate::draft::Draft;
use crate::draft::class::ClassDraft;
use crate::report::Place;
use crate::report::Report;

/// Checks what `[[class]]` and `[[port_timeout]]` say together.
pub(crate) fn check(draft: &Draft, report: &mut Report) {
    unique_names("class", draft.classes.iter().filter_map(|class| class.name.as_ref()), report);
    let mut taken: HashMap<Prefix, Vec<(&ClassDraft, &Place)>> = HashMap::new();
    for class in &draft.classes {
        for prefix in &class.subscribers {
            let owners = taken.entry(prefix.value).or_default();
            match owners.iter().find(|(owner, _)| owner.shares_vrf_with(class)) {
                Some((_, first)) => {
                    let problem = format!("is in a class already, {}", first.on_line());
                    report.fault(&prefix.place, problem, prefix.value.to_string(), "leave it in one class only");
                }
                None => owners.push((class, &prefix.place)),
            }
        }
    }
    for (position, timeout) in draft.port_timeouts.iter().enumerate() {
        timeout.check(draft.singles.allow_below_rfc, report);
        let Some(ports) = &timeout.ports else { continue };
        let covers = |earlier: &&crate::draft::port_timeout::PortTimeoutDraft| {
            let range = earlier.ports.as_ref().map(|ports| &ports.value);
            earlier.protocol == timeout.protocol
                && range.is_some_and(|range| range.start() <= ports.value.start() && range.end() >= ports.value.end())
        };
        if let Some(earlier) = draft.port_timeouts[..position].iter().find(covers) {
            let problem = format!("has no effect: an earlier one has these ports, {}", earlier.place.on_line());
            let seen = format!("\"{}-{}\"", ports.value.start(), ports.value.end());
            report.fault(&ports.place, problem, seen, "remove one of them, or write the narrower one first");
        }
    }
}
