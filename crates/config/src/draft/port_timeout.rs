//! `[[port_timeout]]`.

use core::ops::RangeInclusive;

use nat::Duration;
use nat::Protocol;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::duration_text;
use crate::section::quoted;
use crate::values;

/// Destination ports of services that everybody knows, for which RFC 4787 allows any timer.
const WELL_KNOWN_MAX: u16 = 1_023;

/// One `[[port_timeout]]`; what is faulty is missing.
pub(crate) struct PortTimeoutDraft {
    pub(crate) place: Place,
    pub(crate) protocol: Protocol,
    pub(crate) ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) idle: Option<Placed<Duration>>,
}

impl PortTimeoutDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> PortTimeoutDraft {
        PortTimeoutDraft {
            place: section.place.clone(),
            protocol: match section.choice("protocol", report) {
                Some("tcp") => Protocol::Tcp,
                _ => Protocol::Udp,
            },
            ports: section.parsed("ports", values::ports, report),
            idle: section.duration("idle", report),
        }
    }

    /// Reports an idle time below what the RFC asks for.
    pub(crate) fn check(&self, allow_below_rfc: bool, report: &mut Report) {
        let (Some(ports), Some(idle)) = (&self.ports, &self.idle) else { return };
        let (requirement, least, hint) = match self.protocol {
            Protocol::Tcp => ("RFC 5382 §5 REQ-5", Duration::from_secs(7_440), ""),
            _ if *ports.value.end() <= WELL_KNOWN_MAX => return,
            _ => ("RFC 4787 §4.3 REQ-5", Duration::from_secs(120), ", keep to ports up to 1023"),
        };
        if idle.value < least && !allow_below_rfc {
            let least = duration_text(least.as_micros());
            let remedy = format!("write \"{least}\" or more{hint}, or set timeouts.allow_below_rfc = true");
            let seen = quoted(&duration_text(idle.value.as_micros()));
            report.fault(&idle.place, format!("is below the {least} of {requirement}"), seen, remedy);
        }
    }
}
