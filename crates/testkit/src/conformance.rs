//! The conformance table: requirements from `docs/conformance.toml`, tests from the markers in
//! their sources.
//!
//! | language | marker | where |
//! |---|---|---|
//! | Rust | `covers!("4787-REQ-1", "7857-5a");` | first in a test of this crate |
//! | Rust | `// covers: 4787-REQ-7, 3022-11` | in the lines before or in a test of another crate |
//! | Python | `@shows("4787-REQ-1")` | above a test in `tests/netns` |

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use toml_edit::DocumentMut;
use toml_edit::Table;

/// What is claimed about a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Tests show it.
    Pass,
    /// Natrix does something else, for a reason.
    Deviation,
    /// There is nothing here the requirement is about.
    NotApplicable,
    /// Nothing is claimed yet.
    Open,
}

impl Verdict {
    fn parse(text: &str) -> Option<Verdict> {
        match text {
            "pass" => Some(Verdict::Pass),
            "deviation" => Some(Verdict::Deviation),
            "not applicable" => Some(Verdict::NotApplicable),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Deviation => "deviation",
            Verdict::NotApplicable => "not applicable",
            Verdict::Open => "open",
        }
    }
}

/// One requirement.
#[derive(Clone, Debug)]
pub struct Requirement {
    /// Such as `4787-REQ-1`.
    pub id: String,
    /// Such as `RFC 4787`.
    pub source: String,
    /// MUST, SHOULD and so on.
    pub level: String,
    /// In our words.
    pub text: String,
    /// What is claimed.
    pub verdict: Verdict,
    /// Why it is not a plain pass, or what to know about it.
    pub reason: String,
}

/// A test that shows some requirements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// File, from the root of the repository.
    pub file: String,
    /// Name of its function.
    pub name: String,
    /// Ids.
    pub requirements: Vec<String>,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The data file is no TOML.
    #[error("docs/conformance.toml: {0}")]
    Toml(#[from] toml_edit::TomlError),
    /// A requirement is written wrong.
    #[error("docs/conformance.toml: requirement {id}: {what}")]
    Requirement {
        /// Which, or its position.
        id: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads all requirements.
///
/// # Errors
/// [`ConformanceError`] when the file is missing or wrong.
pub fn requirements(root: &Path) -> Result<Vec<Requirement>, ConformanceError> {
    let path = root.join("docs/conformance.toml");
    let text = read(&path)?;
    let document: DocumentMut = text.parse()?;
    let tables = document.get("requirement").and_then(|item| item.as_array_of_tables());
    let mut found = Vec::new();
    let mut ids = BTreeSet::new();
    for (position, table) in tables.into_iter().flatten().enumerate() {
        let field = |name: &str| field(table, name);
        let id = field("id").unwrap_or_else(|| format!("number {position}"));
        let fault = |what| ConformanceError::Requirement { id: id.clone(), what };
        let verdict = match field("verdict") {
            None => Verdict::Open,
            Some(text) => Verdict::parse(&text).ok_or_else(|| fault("unknown verdict"))?,
        };
        let reason = field("reason").unwrap_or_default();
        if matches!(verdict, Verdict::Deviation | Verdict::NotApplicable) && reason.is_empty() {
            return Err(fault("a deviation, or what does not apply, needs a reason"));
        }
        if !ids.insert(id.clone()) {
            return Err(fault("is there twice"));
        }
        found.push(Requirement {
            source: field("source").ok_or_else(|| fault("has no source"))?,
            text: field("text").ok_or_else(|| fault("has no text"))?,
            level: field("level").unwrap_or_default(),
            id,
            verdict,
            reason,
        });
    }
    Ok(found)
}

fn field(table: &Table, name: &str) -> Option<String> {
    table.get(name).and_then(|item| item.as_str()).map(str::to_owned)
}

/// Collects the marked tests of the whole repository, in order of file and line.
///
/// # Errors
/// [`ConformanceError`] when a directory or file cannot be read.
pub fn tests(root: &Path) -> Result<Vec<Test>, ConformanceError> {
    let mut files = Vec::new();
    for directory in ["crates", "measure", "tests"] {
        list(&root.join(directory), &mut files)?;
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let text = read(&path)?;
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => rust_tests(&file, &text, &mut found),
            Some("py") => python_tests(&file, &text, &mut found),
            _ => {}
        }
    }
    Ok(found)
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), ConformanceError> {
    let fault = |source| ConformanceError::File { path: directory.to_owned(), source };
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, ConformanceError> {
    fs::read_to_string(path).map_err(|source| ConformanceError::File { path: path.to_owned(), source })
}

/// The name behind `keyword` in a line such as `fn name() {` or `def name(n):`.
fn function_name<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = line.trim_start().strip_prefix("pub ").unwrap_or(line.trim_start()).strip_prefix(keyword)?;
    rest.split(['(', '<']).next().map(str::trim)
}

fn rust_tests(file: &str, text: &str, found: &mut Vec<Test>) {
    let mut is_test = false;
    let mut function: Option<&str> = None;
    let mut pending: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed == "#[test]" {
            (is_test, function) = (true, None);
        } else if let Some(name) = function_name(line, "fn ") {
            function = is_test.then_some(name);
            is_test = false;
            if let Some(name) = function
                && !pending.is_empty()
            {
                let requirements = std::mem::take(&mut pending);
                found.push(Test { file: file.to_owned(), name: name.to_owned(), requirements });
            }
        } else if let Some(ids) = trimmed.strip_prefix("// covers: ") {
            let ids = ids.split(',').map(|id| id.trim().to_owned());
            match function {
                Some(name) => {
                    found.push(Test { file: file.to_owned(), name: name.to_owned(), requirements: ids.collect() })
                }
                None => pending.extend(ids),
            }
        } else if let Some(start) = trimmed.strip_prefix("covers!(") {
            let requirements = strings_until_close(start, &mut lines);
            if let Some(name) = function {
                found.push(Test { file: file.to_owned(), name: name.to_owned(), requirements });
            }
        }
    }
}

fn python_tests(file: &str, text: &str, found: &mut Vec<Test>) {
    let mut pending: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(start) = line.trim().strip_prefix("@shows(") {
            pending.extend(strings_until_close(start, &mut lines));
        } else if let Some(name) = function_name(line, "def ") {
            let requirements = std::mem::take(&mut pending);
            if !requirements.is_empty() {
                found.push(Test { file: file.to_owned(), name: name.to_owned(), requirements });
            }
        }
    }
}

/// The string literals from `start` to the next closing parenthesis, which may be some lines
/// further.
fn strings_until_close<'a>(start: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut strings = Vec::new();
    let mut line = Some(start);
    while let Some(text) = line {
        // Every second piece between quotation marks is inside of them.
        strings.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        if text.contains(')') {
            break;
        }
        line = lines.next();
    }
    strings
}

/// Everything wrong with the claims, one sentence each.
pub fn faults(requirements: &[Requirement], tests: &[Test]) -> Vec<String> {
    let known: BTreeSet<&str> = requirements.iter().map(|requirement| requirement.id.as_str()).collect();
    let shown: BTreeSet<&str> = tests.iter().flat_map(|test| &test.requirements).map(String::as_str).collect();
    let mut faults = Vec::new();
    for test in tests {
        for id in test.requirements.iter().filter(|id| !known.contains(id.as_str())) {
            faults.push(format!("{}: {} names {id}, which docs/conformance.toml does not have", test.file, test.name));
        }
    }
    for requirement in requirements {
        if requirement.verdict == Verdict::Pass && !shown.contains(requirement.id.as_str()) {
            faults.push(format!("{} is claimed to pass, but no test shows it", requirement.id));
        }
    }
    faults
}

/// `docs/conformance.md`.
pub fn render(requirements: &[Requirement], tests: &[Test]) -> String {
    let mut by_id: BTreeMap<&str, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for id in &test.requirements {
            by_id.entry(id).or_default().push(test);
        }
    }
    let mut page = String::from(
        "# Conformance\n\n\
         Written by `make conformance` from `docs/conformance.toml` and the markers in the tests; do not edit.\n\n\
         Each requirement is restated in our words; the RFC itself is binding.\n\n\
         - *pass*: the named tests show it, and they run in `make test` (files under `tests/netns` use real Linux kernels\n  \
         on both sides).\n\
         - *deviation*: Natrix behaves differently, for the given reason.\n\
         - *not applicable*: the requirement is about something that Natrix does not have.\n\n",
    );
    let mut sources: Vec<&str> = Vec::new();
    for requirement in requirements {
        if !sources.contains(&requirement.source.as_str()) {
            sources.push(&requirement.source);
        }
    }
    page.push_str("| Source | Requirements | pass | deviation | not applicable | open |\n|---|---|---|---|---|---|\n");
    for source in &sources {
        let of = |verdict: Option<Verdict>| {
            let rows = requirements.iter().filter(|requirement| requirement.source == *source);
            rows.filter(|requirement| verdict.is_none_or(|wanted| requirement.verdict == wanted)).count()
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| {source} | {} | {} | {} | {} | {} |",
            of(None),
            of(Some(Verdict::Pass)),
            of(Some(Verdict::Deviation)),
            of(Some(Verdict::NotApplicable)),
            of(Some(Verdict::Open))
        );
    }
    for source in &sources {
        let _ =
            write!(page, "\n## {source}\n\n| Id | Level | Requirement | Verdict | Tests |\n|---|---|---|---|---|\n");
        for requirement in requirements.iter().filter(|requirement| requirement.source == *source) {
            let mut verdict = requirement.verdict.name().to_owned();
            if !requirement.reason.is_empty() {
                let _ = write!(verdict, ": {}", requirement.reason);
            }
            let tests = by_id.get(requirement.id.as_str()).map(Vec::as_slice).unwrap_or_default();
            let mut names: Vec<String> = Vec::new();
            for test in tests {
                let stem = Path::new(&test.file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
                names.push(format!("[{}::{}](../{})", stem.unwrap_or_default(), test.name, test.file));
            }
            let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} |",
                requirement.id,
                cell(&requirement.level),
                cell(&requirement.text),
                cell(&verdict),
                names.join("<br>")
            );
        }
    }
    page
}

/// The root of the repository this crate was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
