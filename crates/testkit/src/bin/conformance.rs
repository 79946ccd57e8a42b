//! Writes `docs/conformance.md`; with `--check` only looks whether it is right. Exit status 1:
//! something is wrong.

use std::fs;
use std::process::ExitCode;

use testkit::conformance;

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(_) => {
            eprintln!("usage: conformance [--check]");
            return ExitCode::from(2);
        }
    };
    match run(check) {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            for fault in faults {
                eprintln!("conformance: {fault}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(check: bool) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let root = conformance::root();
    let requirements = conformance::requirements(&root)?;
    let tests = conformance::tests(&root)?;
    let mut faults = conformance::faults(&requirements, &tests);
    let page = conformance::render(&requirements, &tests);
    let path = root.join("docs/conformance.md");
    if !check {
        fs::write(&path, page)?;
    } else if fs::read_to_string(&path).unwrap_or_default() != page {
        faults.push("docs/conformance.md is out of date; `make conformance` writes it".to_owned());
    }
    Ok(faults)
}
