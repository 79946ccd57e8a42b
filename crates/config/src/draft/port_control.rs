//! `[port_control]`.

use std::path::PathBuf;

use nat::Duration;
use nat::settings::PortControl;

use crate::report::Place;
use crate::report::Report;
use crate::section::Section;
use crate::section::duration_text;
use crate::section::quoted;
use crate::values;

pub(crate) struct PortControlDraft {
    pub(crate) policy: PortControl,
    pub(crate) state: Option<PathBuf>,
    pub(crate) state_place: Place,
}

impl PortControlDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> PortControlDraft {
        let mut lifetime = |name: &str| section.duration(name, report);
        let (shortest, longest) = (lifetime("lifetime_min"), lifetime("lifetime_max"));
        if let (Some(shortest), Some(longest)) = (&shortest, &longest)
            && shortest.value > longest.value
        {
            let most = duration_text(longest.value.as_micros());
            let problem = format!("is longer than lifetime_max, {most}");
            let seen = quoted(&duration_text(shortest.value.as_micros()));
            report.fault(&shortest.place, problem, seen, format!("write \"{most}\" or less"));
        }
        let value = |found: Option<crate::report::Placed<Duration>>| found.map_or(Duration::ZERO, |found| found.value);
        let per_subscriber = section.integer("mappings_per_subscriber", report);
        let third_party = section.parsed_list("third_party", values::prefix, "\"100.64.0.5/32\"", report);
        PortControlDraft {
            policy: PortControl {
                pcp: section.boolean("pcp", report).unwrap_or_default(),
                nat_pmp: section.boolean("nat_pmp", report).unwrap_or_default(),
                lifetime_min: value(shortest),
                lifetime_max: value(longest),
                mappings_per_subscriber: per_subscriber.map_or(0, |found| found.value as u32),
                third_party: third_party.into_iter().map(|found| found.value).collect(),
            },
            state: state(section, "/var/lib/natrix/grants", report),
            state_place: section.place_of("state", report),
        }
    }
}

/// The key `state` of a section: the file that keeps something over a restart.
pub(super) fn state(section: &Section, example: &str, report: &mut Report) -> Option<PathBuf> {
    let text = section.text("state", report)?;
    if text.value.is_empty() {
        return None;
    }
    if !text.value.starts_with('/') || text.value.ends_with('/') || text.value.contains('\0') {
        let remedy = format!("write the path from the root, such as \"{example}\", or \"\" for none");
        report.fault(&text.place, "is not the absolute path of a file", quoted(&text.value), remedy);
        return None;
    }
    Some(PathBuf::from(text.value))
}
