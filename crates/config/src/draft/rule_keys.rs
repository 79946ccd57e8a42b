//! Where the keys of a rule stand: in a table, or in the columns of a line.

use std::borrow::Cow;

use toml_edit::Item;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values::ValueError;

/// A key of a rule or filter. Lines of files have its value at a known place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleKey {
    Action,
    Direction,
    Protocol,
    Vrf,
    Inside,
    InsidePorts,
    Outside,
    OutsidePorts,
    Pool,
    Mapping,
    Targets,
    To,
    Log,
    Name,
}

impl RuleKey {
    const NAMES: [&'static str; RuleKey::COUNT] = [
        "action",
        "direction",
        "protocol",
        "vrf",
        "inside",
        "inside_ports",
        "outside",
        "outside_ports",
        "pool",
        "mapping",
        "targets",
        "to",
        "log",
        "name",
    ];
    pub(crate) const COUNT: usize = RuleKey::Name as usize + 1;

    pub(crate) const fn name(self) -> &'static str {
        RuleKey::NAMES[self as usize]
    }

    /// The place of a key by its name.
    pub(crate) fn index(name: &str) -> Option<usize> {
        RuleKey::NAMES.iter().position(|known| *known == name)
    }
}

/// A value that may have one of two types.
pub(crate) enum Scalar<'a> {
    Number(i64),
    Text(Cow<'a, str>),
    /// Neither; as it stands there.
    Other(String),
}

/// The keys of one rule or filter. What the methods do is said at [`Section`]'s.
pub(crate) trait RuleKeys {
    fn place(&self) -> Place;
    fn place_of(&self, key: RuleKey, report: &Report) -> Place;
    fn has(&self, key: RuleKey) -> bool;
    /// What stands there, if anything does.
    fn scalar(&self, key: RuleKey) -> Option<Scalar<'_>>;
    fn text(&self, key: RuleKey, report: &mut Report) -> Option<Placed<String>>;
    fn choice(&self, key: RuleKey, report: &mut Report) -> Option<&'static str>;
    fn boolean(&self, key: RuleKey, report: &mut Report) -> Option<bool>;
    fn parsed<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>>;
    fn parsed_list<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>>;
}

impl RuleKeys for Section<'_> {
    fn place(&self) -> Place {
        self.place.clone()
    }

    fn place_of(&self, key: RuleKey, report: &Report) -> Place {
        self.place_of(key.name(), report)
    }

    fn has(&self, key: RuleKey) -> bool {
        self.has(key.name())
    }

    fn scalar(&self, key: RuleKey) -> Option<Scalar<'_>> {
        let item: &Item = self.item(key.name())?;
        Some(match (item.as_integer(), item.as_str()) {
            (Some(number), _) => Scalar::Number(number),
            (None, Some(text)) => Scalar::Text(Cow::Borrowed(text)),
            (None, None) => Scalar::Other(item.to_string()),
        })
    }

    fn text(&self, key: RuleKey, report: &mut Report) -> Option<Placed<String>> {
        self.text(key.name(), report)
    }

    fn choice(&self, key: RuleKey, report: &mut Report) -> Option<&'static str> {
        self.choice(key.name(), report)
    }

    fn boolean(&self, key: RuleKey, report: &mut Report) -> Option<bool> {
        self.boolean(key.name(), report)
    }

    fn parsed<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>> {
        self.parsed(key.name(), parse, report)
    }

    fn parsed_list<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>> {
        self.parsed_list(key.name(), parse, example, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::keys_of;

    #[test]
    fn every_key_of_rules_and_filters_has_its_place() {
        for key in ["rule", "filter"].into_iter().flat_map(keys_of) {
            assert!(RuleKey::index(key.name).is_some(), "{}", key.name);
        }
        let some = [RuleKey::Action, RuleKey::InsidePorts, RuleKey::OutsidePorts, RuleKey::To, RuleKey::Name];
        assert_eq!(some.map(RuleKey::name), ["action", "inside_ports", "outside_ports", "to", "name"]);
    }
}
