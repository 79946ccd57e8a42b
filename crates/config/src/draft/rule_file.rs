//! Files with a rule or filter on each line: columns as the first line names them.

use core::ops::Range;
use std::borrow::Cow;
use std::fs::File;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read as _;
use std::path::Component;
use std::path::Path;
use std::sync::Arc;

use crate::compile::BARE_RETURN;
use crate::compile::BARE_RETURN_REMEDY;
use crate::compile::bare_return;
use crate::draft::rule_keys::RuleKey;
use crate::draft::rule_keys::RuleKeys;
use crate::draft::rule_keys::Scalar;
use crate::file::open_regular;
use crate::keys::Key;
use crate::keys::Kind;
use crate::keys::Preset;
use crate::keys::keys_of;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::Section;
use crate::section::choose;
use crate::section::parse_text;
use crate::section::quoted;
use crate::source::FileText;
use crate::source::Lines;
use crate::values::ValueError;

/// Rules, or filters, of all files together.
pub(crate) const LINES_MAX: u32 = 1 << 22;
/// What some editors and spreadsheets write before the first line of a file in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Bytes of a line.
const LINE_MAX: usize = 4_096;

/// One `[[rule_file]]` or `[[filter_file]]`.
pub(crate) struct RuleFileDraft {
    pub(crate) place: Place,
    pub(crate) path: Option<Placed<String>>,
}

impl RuleFileDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> RuleFileDraft {
        RuleFileDraft { place: section.place.clone(), path: section.text("path", report) }
    }
}

/// A file that is read line by line.
pub(crate) struct RuleFile {
    what: &'static str,
    reader: BufReader<File>,
    columns: Vec<&'static Key>,
    /// By [`RuleKey`]: the key in the table of keys, and its column.
    places: [(Option<&'static Key>, Option<usize>); RuleKey::COUNT],
    /// The line read last, and its fields.
    text: Vec<u8>,
    fields: Vec<Range<usize>>,
    /// Its number, from 1.
    number: u32,
    lines: Lines,
    /// The number that this line had in the file before.
    before: Option<u32>,
}

/// Whether a file lies in a folder or below it, wherever links lead. Of a file that is not there,
/// only what its path says.
fn is_within(folder: &Path, file: &Path) -> bool {
    let folder_of_name = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(real_folder) = folder_of_name.canonicalize() else { return false };
    match file.canonicalize() {
        Ok(file) => file.starts_with(real_folder),
        Err(_) => file
            .strip_prefix(folder)
            .is_ok_and(|rest| rest.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))),
    }
}

/// What a line is.
enum Read {
    Line,
    /// Empty, or a remark.
    Nothing,
    /// It was reported, and is left out.
    Faulty,
}

impl RuleFile {
    /// Opens the file that a configuration in `folder` names, and reads its columns. From then on
    /// the report is about this file, until the caller leaves it. Returns None, after a report, if
    /// the file cannot be read or has no columns.
    pub(crate) fn open(
        what: &'static str,
        draft: &RuleFileDraft,
        folder: &Path,
        lines: Lines,
        report: &mut Report,
    ) -> Option<RuleFile> {
        let path = draft.path.as_ref()?;
        let whole = folder.join(&path.value);
        if report.is_sent() && !is_within(folder, &whole) {
            let remedy = format!("put the file into {}, or below it", std::path::absolute(folder).ok()?.display());
            report.fault(&path.place, "is not in the folder of the running configuration", &path.value, remedy);
            return None;
        }
        let file = match open_regular(&whole) {
            Ok(file) => file,
            Err(error) => {
                let seen = format!("{}: {error}", whole.display());
                report.fault(&path.place, "cannot be read", seen, "check the path and its permissions");
                return None;
            }
        };
        report.enter(&whole.display().to_string());
        let reader = BufReader::with_capacity(1 << 16, file);
        let mut file = RuleFile {
            what,
            reader,
            columns: Vec::new(),
            places: Default::default(),
            text: Vec::with_capacity(LINE_MAX),
            fields: Vec::new(),
            number: 0,
            lines,
            before: None,
        };
        if file.columns(report).is_none() {
            report.leave();
            return None;
        }
        if file.before.is_none() {
            // Other columns: no line means what it meant.
            file.lines.forget_before();
        }
        Some(file)
    }

    /// The first line.
    fn columns(&mut self, report: &mut Report) -> Option<()> {
        let known = keys_of(self.what);
        let names = || known.iter().map(|key| key.name);
        let faults = report.fault_count();
        loop {
            if !self.advance(report) {
                if report.fault_count() > faults {
                    return None;
                }
                let remedy = format!("name its columns in the first line, such as {}", example_columns(self.what));
                report.fault(&Place::default(), "is empty", "", remedy);
                return None;
            }
            match self.split(report) {
                Read::Line => break,
                Read::Nothing => {}
                Read::Faulty => return None,
            }
        }
        let place = |path: &'static str| Place { path: path.into(), line: Some(self.number) };
        let mut columns = Vec::new();
        let text = core::str::from_utf8(&self.text).unwrap_or_default();
        for range in &self.fields {
            let name = field(text, range);
            match known.iter().find(|key| key.name == name) {
                Some(key) if columns.iter().any(|other: &&Key| other.name == key.name) => {
                    report.fault(&place("columns"), "has a column twice", quoted(name), "remove one of them");
                    return None;
                }
                Some(key) => columns.push(key),
                None => {
                    if let Some(separators) = wrong_separators(name, names()) {
                        let problem = format!("has {separators} between the columns");
                        report.fault(&place("columns"), problem, quoted(name), "separate columns by commas");
                        return None;
                    }
                    let remedy = match nearest(name, names()) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("the first line names the columns: write {}", one_of(names())),
                    };
                    report.fault(&place("columns"), "has an unknown column", quoted(name), remedy);
                    return None;
                }
            }
        }
        for key in known.iter().filter(|key| matches!(key.default, Preset::Required(_))) {
            if !columns.iter().any(|column| column.name == key.name) {
                let remedy = format!("add it, as in {}", example_columns(self.what));
                report.fault(&place("columns"), "lacks a column", quoted(key.name), remedy);
                return None;
            }
        }
        for key in known {
            let column = columns.iter().position(|column| column.name == key.name);
            if let Some(place) = RuleKey::index(key.name).and_then(|index| self.places.get_mut(index)) {
                *place = (Some(key), column);
            }
        }
        self.columns = columns;
        Some(())
    }

    /// Reads the next line of any kind. False at the end, and after a fault that ends reading.
    pub(crate) fn advance(&mut self, report: &mut Report) -> bool {
        self.text.clear();
        let read = (&mut self.reader).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut self.text);
        let place = |number| Place { path: self.what.into(), line: Some(number) };
        match read {
            Err(error) => {
                let remedy = "check the disk and the file's permissions";
                report.fault(&place(self.number + 1), "cannot be read", error.to_string(), remedy);
                return false;
            }
            Ok(0) => return false,
            Ok(_) => self.number += 1,
        }
        if self.number == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
            self.text.drain(..BYTE_ORDER_MARK.len());
        }
        if self.number == 1 && bare_return(&self.text).is_some_and(|at| at + 1 < self.text.len()) {
            report.fault(&place(1), BARE_RETURN, "", BARE_RETURN_REMEDY);
            return false;
        }
        if self.text.len() > LINE_MAX {
            let remedy = format!("write one rule a line, at most {LINE_MAX} bytes");
            report.fault(&place(self.number), "is too long", "", remedy);
            return false;
        }
        self.before = self.lines.read(&self.text);
        true
    }

    /// Number of the line that was read, from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Number that the line had in the file before, from 1, if it was there.
    pub(crate) fn number_before(&self) -> Option<u32> {
        self.before
    }

    /// The fields of the line that was read. None if it is empty or a remark, or, after a report,
    /// if it has not as many fields as there are columns.
    pub(crate) fn line(&mut self, report: &mut Report) -> Option<Line<'_>> {
        match self.split(report) {
            Read::Line if self.fields.len() == self.columns.len() => {}
            Read::Line => {
                let place = Place { path: self.what.into(), line: Some(self.number) };
                let problem = format!("has {} fields, and there are {} columns", self.fields.len(), self.columns.len());
                let seen = String::from_utf8_lossy(&self.text);
                report.fault(&place, problem, seen, "write one field for each column, empty ones too");
                return None;
            }
            Read::Nothing | Read::Faulty => return None,
        }
        Some(Line {
            what: self.what,
            places: &self.places,
            // It was found to be UTF-8.
            text: core::str::from_utf8(&self.text).unwrap_or_default(),
            fields: &self.fields,
            number: self.number,
        })
    }

    /// All lines that were read, to find them in the next file.
    pub(crate) fn into_text(self) -> Option<Arc<FileText>> {
        self.lines.into_text()
    }

    /// Finds the fields of the line that was read.
    fn split(&mut self, report: &mut Report) -> Read {
        let place = |number| Place { path: self.what.into(), line: Some(number) };
        let Ok(text) = core::str::from_utf8(&self.text) else {
            let seen = String::from_utf8_lossy(&self.text);
            report.fault(&place(self.number), "is not UTF-8", seen, "write plain text");
            return Read::Faulty;
        };
        let begins_a_field = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_a_field && (text.trim().is_empty() || text.trim_start().starts_with('#')) {
            return Read::Nothing;
        }
        if !split(text, &mut self.fields) {
            let remedy = "write quotes around the whole field, and none in it";
            report.fault(&place(self.number), "has a quote that does not end with its field", text.trim(), remedy);
            return Read::Faulty;
        }
        Read::Line
    }
}

/// What separates the columns in a first line without commas, if not commas.
fn wrong_separators<'k>(line: &str, mut known: impl Iterator<Item = &'k str>) -> Option<&'static str> {
    let (first, separators) = [(';', "semicolons"), ('\t', "tabs"), ('|', "vertical bars")]
        .into_iter()
        .find_map(|(separator, name)| Some((line.split_once(separator)?.0, name)))?;
    known.any(|known| known == first.trim().trim_matches('"')).then_some(separators)
}

/// Where the fields of a line are, without the quotes and blanks around them. False: a quote is not
/// closed, or something follows it.
fn split(text: &str, fields: &mut Vec<Range<usize>>) -> bool {
    fields.clear();
    let mut start = 0;
    loop {
        let rest = text.get(start..).unwrap_or_default();
        let (bare, after) = match rest.trim_start().strip_prefix('"') {
            // A comma in quotes parts nothing.
            Some(quoted) => match quoted.split_once('"') {
                Some((bare, after)) => (bare.trim(), after.trim_start()),
                None => return false,
            },
            None => {
                let (part, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                (part.trim(), after)
            }
        };
        let offset = bare.as_ptr() as usize - text.as_ptr() as usize;
        fields.push(offset..offset + bare.len());
        match after.strip_prefix(',') {
            Some(next) => start = text.len() - next.len(),
            None => return after.is_empty(),
        }
    }
}

/// One line of a file, by the columns of its first.
pub(crate) struct Line<'a> {
    what: &'static str,
    places: &'a [(Option<&'static Key>, Option<usize>); RuleKey::COUNT],
    text: &'a str,
    fields: &'a [Range<usize>],
    /// Its number, from 1.
    pub(crate) number: u32,
}

/// The text of a field.
fn field<'a>(text: &'a str, range: &Range<usize>) -> &'a str {
    text.get(range.clone()).unwrap_or_default()
}

fn example_columns(what: &str) -> &'static str {
    if what == "rule" {
        "action,protocol,inside,outside,outside_ports,pool"
    } else {
        "action,protocol,inside,outside,outside_ports"
    }
}

impl Line<'_> {
    fn key(&self, key: RuleKey) -> Option<&'static Key> {
        self.places[key as usize].0
    }

    /// What stands in a column, if it is there and not empty.
    fn field(&self, key: RuleKey) -> Option<&str> {
        let text = field(self.text, self.fields.get(self.places[key as usize].1?)?);
        (!text.is_empty()).then_some(text)
    }

    /// The same, or the default.
    fn field_or_default(&self, key: RuleKey) -> Option<(&str, bool)> {
        match (self.field(key), self.key(key)?.default) {
            (Some(text), _) => Some((text, true)),
            (None, Preset::Value(text)) => Some((text.trim_matches('"'), false)),
            (None, _) => None,
        }
    }

    fn at(&self, name: &'static str) -> Place {
        Place { path: name.into(), line: Some(self.number) }
    }
}

impl RuleKeys for Line<'_> {
    fn place(&self) -> Place {
        self.at(self.what)
    }

    fn place_of(&self, key: RuleKey, _: &Report) -> Place {
        self.at(key.name())
    }

    fn has(&self, key: RuleKey) -> bool {
        self.field(key).is_some()
    }

    fn scalar(&self, key: RuleKey) -> Option<Scalar<'_>> {
        let text = self.field(key)?;
        Some(text.parse().map_or(Scalar::Text(Cow::Borrowed(text)), Scalar::Number))
    }

    fn text(&self, key: RuleKey, report: &mut Report) -> Option<Placed<String>> {
        if let Some((text, given)) = self.field_or_default(key) {
            return Some(Placed { value: text.to_owned(), place: self.at(key.name()), given });
        }
        if let Preset::Required(example) = self.key(key)?.default {
            report.fault(&self.at(key.name()), "is empty", "", format!("write {}", example.trim_matches('"')));
        }
        None
    }

    fn choice(&self, key: RuleKey, report: &mut Report) -> Option<&'static str> {
        let Kind::Choice(words) = self.key(key)?.kind else { return None };
        // Without a copy where it is one of them, as it mostly is.
        let known = |(text, _)| words.iter().find(|word| **word == text);
        if let Some(found) = self.field_or_default(key).and_then(known) {
            return Some(found);
        }
        choose(&self.text(key, report)?, words, report)
    }

    fn boolean(&self, key: RuleKey, report: &mut Report) -> Option<bool> {
        match self.text(key, report)?.value.as_str() {
            "true" => Some(true),
            "false" => Some(false),
            other => {
                report.fault(&self.at(key.name()), "is not true or false", other, "write true or false");
                None
            }
        }
    }

    fn parsed<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>> {
        let parsed = |(text, given)| Some((parse(text).ok()?, given));
        if let Some((value, given)) = self.field_or_default(key).and_then(parsed) {
            return Some(Placed { value, place: self.at(key.name()), given });
        }
        let text = self.text(key, report)?;
        let example = self.key(key)?.default.example().trim_matches('"');
        let value = parse_text(&text, parse, &format!("write {example}"), report)?;
        Some(Placed { value, place: text.place, given: text.given })
    }

    fn parsed_list<T>(
        &self,
        key: RuleKey,
        parse: fn(&str) -> Result<T, ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>> {
        let parts = self.field(key).into_iter().flat_map(|text| text.split(';'));
        let texts = parts.map(|part| Placed { value: part.trim().to_owned(), place: self.at(key.name()), given: true });
        let remedy = format!("write {}", example.trim_matches('"'));
        texts
            .filter_map(|text| {
                let value = parse_text(&text, parse, &remedy, report)?;
                Some(Placed { value, place: text.place, given: true })
            })
            .collect()
    }
}
