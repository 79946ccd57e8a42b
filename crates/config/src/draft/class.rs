//! `[[class]]`.

use nat::settings::SubscriberLimits;
use nat::types::Prefix;
use toml_edit::Array;
use toml_edit::Item;

use crate::draft::limits::limits;
use crate::draft::name;
use crate::draft::pool::vrfs;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;

/// One `[[class]]`; what is faulty is missing.
pub(crate) struct ClassDraft {
    pub(crate) name: Option<Placed<String>>,
    pub(crate) subscribers: Vec<Placed<Prefix>>,
    /// None named: of all VRFs.
    pub(crate) vrfs: Vec<Placed<String>>,
    pub(crate) limits: SubscriberLimits,
}

impl ClassDraft {
    /// `common` is what `[subscriber]` says.
    pub(crate) fn read(section: &Section, common: &SubscriberLimits, report: &mut Report) -> ClassDraft {
        let subscribers = section.parsed_list("subscribers", values::prefix, "\"100.64.0.0/16\"", report);
        if section.item("subscribers").and_then(Item::as_array).is_some_and(Array::is_empty) {
            let remedy = "write the prefixes of its subscribers";
            report.fault(&section.place_of("subscribers", report), "is empty, so that nobody is in it", "[]", remedy);
        }
        let vrfs = vrfs(section, report);
        ClassDraft { name: name(section, report), subscribers, vrfs, limits: limits(section, common, report) }
    }

    /// Whether some VRF could have subscribers of both.
    pub(crate) fn shares_vrf_with(&self, other: &ClassDraft) -> bool {
        let has = |vrf: &Placed<String>| other.vrfs.iter().any(|theirs| theirs.value == vrf.value);
        self.vrfs.is_empty() || other.vrfs.is_empty() || self.vrfs.iter().any(has)
    }
}
