//! Studies and reports of the lab that need no privileges.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::process::Command;
use std::process::Output;

fn natrix(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_natrix")).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-binary-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_study_without_a_result_is_an_error_with_its_reason() {
    let folder = Folder::new("study");
    let results = folder.at("results");
    // With this CPU the lab cannot make the tester's namespace.
    let words = ["lab", "study", "cost", "--quick", "--results", &results, "--tester-cpu", "255"];
    let output = natrix(&words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(
        error.lines().last().unwrap().starts_with("error: study cost: none of its runs has a result (2 runs); "),
        "{error}"
    );
    // The failed attempt is kept, and the report shows it.
    let page = folder.at("report.html");
    let output = natrix(&["lab", "report", "--results", &results, "--output", &page]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("1 studies and 0 single results"), "{output:?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("How many packets a second does a thousand dollars buy?") && html.contains("No result"));
}

#[test]
fn a_report_of_nothing_is_an_error() {
    let folder = Folder::new("report");
    let output = natrix(&["lab", "report", "--results", &folder.at(""), "--output", &folder.at("report.html")]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("holds no result (0 files); measure first"), "{error}");
    let output = natrix(&["lab", "study", "cost", "--prices", &folder.at("none.csv")]);
    assert!(text(&output.stderr).starts_with("error: --prices: "), "{output:?}");
}
