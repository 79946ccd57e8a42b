//! `[[route]]`.

use core::net::Ipv4Addr;

use nat::types::Prefix;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;

/// One `[[route]]`; what is faulty is missing.
pub(crate) struct RouteDraft {
    pub(crate) place: Place,
    pub(crate) prefix: Option<Placed<Prefix>>,
    pub(crate) via: Option<Placed<Ipv4Addr>>,
    pub(crate) interface: Option<Placed<String>>,
}

impl RouteDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> RouteDraft {
        RouteDraft {
            place: section.place.clone(),
            prefix: section.parsed("prefix", values::prefix, report),
            via: section.parsed("via", values::address, report),
            interface: section.text("interface", report),
        }
    }
}
