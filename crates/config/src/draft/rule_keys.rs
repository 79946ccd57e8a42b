//! Where the keys of a rule stand: in a table, or in the columns of a line.

use std::borrow::Cow;

use toml_edit::Item;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values::ValueError;

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
    fn place_of(&self, key: &'static str, report: &Report) -> Place;
    fn has(&self, key: &str) -> bool;
    /// What stands there, if anything does.
    fn scalar(&self, key: &str) -> Option<Scalar<'_>>;
    fn text(&self, key: &'static str, report: &mut Report) -> Option<Placed<String>>;
    fn choice(&self, key: &'static str, report: &mut Report) -> Option<&'static str>;
    fn boolean(&self, key: &'static str, report: &mut Report) -> Option<bool>;
    fn parsed<T>(
        &self,
        key: &'static str,
        parse: fn(&str) -> Result<T, ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>>;
    fn parsed_list<T>(
        &self,
        key: &'static str,
        parse: fn(&str) -> Result<T, ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>>;
}

impl RuleKeys for Section<'_> {
    fn place(&self) -> Place {
        self.place.clone()
    }

    fn place_of(&self, key: &'static str, report: &Report) -> Place {
        self.place_of(key, report)
    }

    fn has(&self, key: &str) -> bool {
        self.has(key)
    }

    fn scalar(&self, key: &str) -> Option<Scalar<'_>> {
        let item: &Item = self.item(key)?;
        Some(match (item.as_integer(), item.as_str()) {
            (Some(number), _) => Scalar::Number(number),
            (None, Some(text)) => Scalar::Text(Cow::Borrowed(text)),
            (None, None) => Scalar::Other(item.to_string()),
        })
    }

    fn text(&self, key: &'static str, report: &mut Report) -> Option<Placed<String>> {
        self.text(key, report)
    }

    fn choice(&self, key: &'static str, report: &mut Report) -> Option<&'static str> {
        self.choice(key, report)
    }

    fn boolean(&self, key: &'static str, report: &mut Report) -> Option<bool> {
        self.boolean(key, report)
    }

    fn parsed<T>(
        &self,
        key: &'static str,
        parse: fn(&str) -> Result<T, ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>> {
        self.parsed(key, parse, report)
    }

    fn parsed_list<T>(
        &self,
        key: &'static str,
        parse: fn(&str) -> Result<T, ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>> {
        self.parsed_list(key, parse, example, report)
    }
}
