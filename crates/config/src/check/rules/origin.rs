//! Where each rule stands: in the configuration, or on a line of a file.

use nat::origin::Origin;

use crate::draft::rule_file::RuleFileDraft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;

/// Where the rules of one kind stand, by their position in the order.
pub(super) struct Sources<'d> {
    what: &'static str,
    tables: Vec<&'d Place>,
    files: Vec<String>,
    origins: Vec<Origin>,
}

impl<'d> Sources<'d> {
    pub(super) fn new(what: &'static str, tables: Vec<&'d Place>, files: &[RuleFileDraft]) -> Sources<'d> {
        let path = |file: &RuleFileDraft| file.path.as_ref().map_or_else(String::new, |path| path.value.clone());
        Sources { what, tables, files: files.iter().map(path).collect(), origins: Vec::new() }
    }

    /// The next rule in order stands here.
    pub(super) fn push(&mut self, origin: Origin) {
        self.origins.push(origin);
    }

    /// The files, and where each rule stands.
    pub(super) fn into_parts(self) -> (Vec<String>, Vec<Origin>) {
        (self.files, self.origins)
    }

    fn file(&self, file: u16) -> &str {
        self.files.get(usize::from(file)).map_or("", String::as_str)
    }

    /// `on line 7`, `on line 7 of web.csv`.
    pub(super) fn on_line(&self, position: usize) -> String {
        match self.origins.get(position) {
            Some(Origin::Table(index)) => {
                self.tables.get(*index as usize).map_or_else(String::new, |place| place.on_line())
            }
            Some(Origin::Line(file, line)) => format!("on line {line} of {}", self.file(*file)),
            None => String::new(),
        }
    }

    /// A fault of the rule at a position.
    pub(super) fn fault(&self, position: usize, problem: String, seen: &str, remedy: &str, report: &mut Report) {
        match self.origins.get(position) {
            Some(Origin::Table(index)) => {
                if let Some(place) = self.tables.get(*index as usize) {
                    report.fault(place, problem, seen, remedy);
                }
            }
            Some(Origin::Line(file, line)) => {
                let place = Place { path: self.what.into(), line: Some(*line) };
                report.fault_in(self.file(*file), &place, problem, seen, remedy);
            }
            None => {}
        }
    }

    /// A warning about the rule at a position.
    pub(super) fn warning(&self, position: usize, problem: String, remedy: &str, report: &Report) -> Option<Warning> {
        match self.origins.get(position)? {
            Origin::Table(index) => Some(report.warning(None, self.tables.get(*index as usize)?, problem, remedy)),
            Origin::Line(file, line) => {
                let place = Place { path: self.what.into(), line: Some(*line) };
                Some(report.warning(Some(self.file(*file)), &place, problem, remedy))
            }
        }
    }
}
