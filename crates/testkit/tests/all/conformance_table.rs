//! The conformance table claims nothing that no test shows.

use testkit::conformance;
use testkit::conformance::Test;
use testkit::conformance::Verdict;

#[test]
fn every_claim_has_a_test_and_every_marker_names_a_requirement() {
    let root = conformance::root();
    let requirements = conformance::requirements(&root).expect("docs/conformance.toml");
    let tests = conformance::tests(&root).expect("test sources");
    assert_eq!(conformance::faults(&requirements, &tests), Vec::<String>::new());
}

#[test]
fn the_page_is_what_the_data_and_the_markers_say() {
    let root = conformance::root();
    let requirements = conformance::requirements(&root).expect("docs/conformance.toml");
    let tests = conformance::tests(&root).expect("test sources");
    let page = std::fs::read_to_string(root.join("docs/conformance.md")).expect("docs/conformance.md");
    assert!(page == conformance::render(&requirements, &tests), "out of date; `make conformance` writes it");
}

#[test]
fn no_requirement_of_the_five_rfcs_is_left_out() {
    let requirements = conformance::requirements(&conformance::root()).expect("docs/conformance.toml");
    let count = |source: &str| requirements.iter().filter(|requirement| requirement.source == source).count();
    assert_eq!(count("RFC 3022"), 12);
    assert_eq!(count("RFC 4787"), 26);
    assert_eq!(count("RFC 5382"), 18);
    assert_eq!(count("RFC 5508"), 37);
    assert_eq!(count("RFC 7857"), 29);
    assert_eq!(count("Points implementations get wrong"), 15);
}

#[test]
fn a_claim_without_test_and_an_unknown_id_are_faults() {
    let requirement = conformance::Requirement {
        id: "1-2".into(),
        source: "RFC 1".into(),
        level: "MUST".into(),
        text: "Something".into(),
        verdict: Verdict::Pass,
        reason: String::new(),
    };
    let test = Test { file: "a.rs".into(), name: "b".into(), requirements: vec!["3-4".into()] };
    assert_eq!(conformance::faults(&[requirement], &[test]).len(), 2);
}
