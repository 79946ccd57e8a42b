//! `[[route]]`.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::types::Prefix;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;
use crate::values::Either;

/// One `[[route]]`; what is faulty is missing.
pub(crate) struct RouteDraft {
    pub(crate) place: Place,
    pub(crate) prefix: Option<Placed<Prefix>>,
    pub(crate) via: Option<Placed<Ipv4Addr>>,
    pub(crate) interface: Option<Placed<String>>,
    /// Instead of `prefix` and `via`, for IPv6.
    pub(crate) prefix6: Option<Placed<(Ipv6Addr, u8)>>,
    pub(crate) via6: Option<Placed<Ipv6Addr>>,
}

impl RouteDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> RouteDraft {
        let (prefix, prefix6) = split(section.parsed("prefix", values::any_prefix, report));
        let (via, via6) = split(section.parsed("via", values::any_address, report));
        let place = section.place.clone();
        if (prefix.is_some() && via6.is_some()) || (prefix6.is_some() && via.is_some()) {
            report.fault(&place, "has a prefix and a router of different families", "", "write both of one family");
        }
        RouteDraft { place, prefix, via, interface: section.text("interface", report), prefix6, via6 }
    }
}

/// A value of one family, or of the other.
fn split<A, B>(found: Option<Placed<Either<A, B>>>) -> (Option<Placed<A>>, Option<Placed<B>>) {
    match found {
        None => (None, None),
        Some(Placed { value: Either::V4(value), place, given }) => (Some(Placed { value, place, given }), None),
        Some(Placed { value: Either::V6(value), place, given }) => (None, Some(Placed { value, place, given })),
    }
}
