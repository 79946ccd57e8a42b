//! `[[class]]`.

use nat::Duration;
use nat::settings::SubscriberLimits;
use nat::stand_in::Prefix6;
use nat::types::Prefix;
use toml_edit::Array;
use toml_edit::Item;

use crate::draft::gateway;
use crate::draft::limits::limits;
use crate::draft::limits::per_protocol;
use crate::draft::name;
use crate::draft::pool::vrfs;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;
use crate::values::Either;

/// One `[[class]]`; what is faulty is missing.
pub(crate) struct ClassDraft {
    pub(crate) name: Option<Placed<String>>,
    pub(crate) subscribers: Vec<Placed<Prefix>>,
    /// Those of IPv6.
    pub(crate) subscribers6: Vec<Placed<Prefix6>>,
    /// None named: of all VRFs.
    pub(crate) vrfs: Vec<Placed<String>>,
    pub(crate) limits: SubscriberLimits,
    /// Where it says how many ports each of them may have, if it does.
    pub(crate) ports: Option<Place>,
    /// Where the file says what is guaranteed to its subscribers.
    pub(crate) reserved_ports: Place,
    /// Where it says how much memory each of them may use, if it does.
    pub(crate) memory: Option<Place>,
    /// The place of the threshold from which a subscriber's use is reported, if there is one.
    pub(crate) threshold: Option<Place>,
    pub(crate) penalty: Option<PenaltyDraft>,
    /// None without the key.
    pub(crate) gateways: Option<Vec<alg::AlgId>>,
}

/// What makes an offender, and where it is sent.
pub(crate) struct PenaltyDraft {
    pub(crate) pool: Placed<String>,
    pub(crate) refusals: u32,
    pub(crate) window: Duration,
    pub(crate) release: Duration,
}

/// Keys that say something of offenders only.
const OF_PENALTY: [&str; 3] = ["penalty_refusals", "penalty_window", "penalty_release"];

impl PenaltyDraft {
    fn read(section: &Section, report: &mut Report) -> Option<PenaltyDraft> {
        if !section.has("penalty_pool") {
            for key in OF_PENALTY.into_iter().filter(|key| section.has(key)) {
                let remedy = format!("write penalty_pool too, or remove {key}");
                let problem = "has no effect without penalty_pool";
                report.fault(&section.place_of(key, report), problem, "", remedy);
            }
            return None;
        }
        let pool = section.text("penalty_pool", report);
        let refusals = section.integer("penalty_refusals", report);
        let window = section.duration("penalty_window", report);
        let release = section.duration("penalty_release", report);
        Some(PenaltyDraft {
            pool: pool?,
            refusals: u32::try_from(refusals?.value).unwrap_or(u32::MAX),
            window: window?.value,
            release: release?.value,
        })
    }
}

impl ClassDraft {
    /// `common` is what `[subscriber]` says.
    pub(crate) fn read(section: &Section, common: &SubscriberLimits, report: &mut Report) -> ClassDraft {
        let (mut subscribers, mut subscribers6) = (Vec::new(), Vec::new());
        for Placed { value, place, given } in
            section.parsed_list("subscribers", values::hosts, "\"100.64.0.0/16\"", report)
        {
            match value {
                Either::V4(value) => subscribers.push(Placed { value, place, given }),
                Either::V6(value) => subscribers6.push(Placed { value, place, given }),
            }
        }
        if section.item("subscribers").and_then(Item::as_array).is_some_and(Array::is_empty) {
            let remedy = "write the prefixes of its subscribers";
            report.fault(
                &section.place_of("subscribers", report),
                "is empty, so the class has no subscribers",
                "[]",
                remedy,
            );
        }
        let vrfs = vrfs(section, report);
        let reserved_ports = per_protocol(section, "reserved_ports", report).map(Option::unwrap_or_default);
        ClassDraft {
            name: name(section, report),
            subscribers,
            subscribers6,
            vrfs,
            limits: SubscriberLimits { reserved_ports, ..limits(section, common, report) },
            ports: section.has("ports").then(|| section.place_of("ports", report)),
            reserved_ports: section.place_of("reserved_ports", report),
            memory: section.has("memory").then(|| section.place_of("memory", report)),
            threshold: section.has("threshold").then(|| section.place_of("threshold", report)),
            penalty: PenaltyDraft::read(section, report),
            gateways: gateway::of_class(section, report),
        }
    }

    /// Whether some VRF could have subscribers of both.
    pub(crate) fn shares_vrf_with(&self, other: &ClassDraft) -> bool {
        let has = |vrf: &Placed<String>| other.vrfs.iter().any(|theirs| theirs.value == vrf.value);
        self.vrfs.is_empty() || other.vrfs.is_empty() || self.vrfs.iter().any(has)
    }
}
