//! `[[nat64]]` and `[[softwire]]`.

use core::net::Ipv6Addr;

use nat::stand_in::Prefix6;
use nat::types::Prefix;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;
use crate::values::Either;

/// One `[[nat64]]`; what is faulty is missing.
pub(crate) struct Nat64Draft {
    pub(crate) prefix: Option<Placed<(Ipv6Addr, u8)>>,
    pub(crate) lowest_mtu6: Option<Placed<u64>>,
    pub(crate) served: Served,
}

/// One `[[softwire]]`; what is faulty is missing.
pub(crate) struct SoftwireDraft {
    pub(crate) aftr: Option<Placed<Ipv6Addr>>,
    pub(crate) inner: Vec<Placed<Prefix>>,
    pub(crate) subscribers: Vec<Placed<Prefix6>>,
    pub(crate) served: Served,
}

/// Where the hosts are, and the pool that serves them.
pub(crate) struct Served {
    pub(crate) place: Place,
    pub(crate) vrf: Option<Placed<String>>,
    pub(crate) pool: Option<Placed<String>>,
}

impl Served {
    fn read(section: &Section, report: &mut Report) -> Served {
        let place = section.place.clone();
        Served { place, vrf: section.text("vrf", report), pool: section.text("pool", report) }
    }
}

impl Nat64Draft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> Nat64Draft {
        let parse = |text: &str| match values::any_prefix(text)? {
            Either::V6(prefix) => Ok(prefix),
            Either::V4(_) => Err(values::ValueError::Form("an IPv6 prefix")),
        };
        Nat64Draft {
            prefix: section.parsed("prefix", parse, report),
            lowest_mtu6: section.integer("lowest_ipv6_mtu", report),
            served: Served::read(section, report),
        }
    }
}

impl SoftwireDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> SoftwireDraft {
        let ipv6 = |text: &str| match values::hosts(text)? {
            Either::V6(prefix) => Ok(prefix),
            Either::V4(_) => Err(values::ValueError::Form("an IPv6 prefix")),
        };
        SoftwireDraft {
            aftr: section.parsed("aftr", values::address6, report),
            inner: section.parsed_list("inner", values::prefix, "\"192.168.0.0/16\"", report),
            subscribers: section.parsed_list("subscribers", ipv6, "\"2001:db8::/32\"", report),
            served: Served::read(section, report),
        }
    }
}
