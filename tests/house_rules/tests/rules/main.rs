//! The rules that keep the tree in order: which crate may depend on which, where unsafe code may
//! be, what the engine must not know, and plain English.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot read the tree has failed")]

mod english;
mod rooms;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use cargo_metadata::DependencyKind;
use cargo_metadata::MetadataCommand;

/// Each crate and the crates of this workspace it may use: the table of ARCHITECTURE.md.
/// Dependencies point down only.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("alg", &[]),
    ("mem", &[]),
    ("pcp", &[]),
    ("translate", &["wire"]),
    ("packet-io", &["mem"]),
    ("control", &[]),
    ("nat", &["alg", "wire", "mem", "pcp", "translate"]),
    ("config", &["alg", "mem", "nat", "translate"]),
    ("export", &["mem", "nat"]),
    ("lookup", &["control", "nat", "export"]),
    ("daemon", &["alg", "wire", "mem", "pcp", "nat", "config", "packet-io", "control", "export", "lookup"]),
    ("cli", &["control"]),
    ("confine", &[]),
    ("api", &["confine", "control", "mem"]),
    ("snmp", &["confine", "control"]),
    ("chart", &[]),
    ("bench", &["alg", "wire", "mem", "translate", "nat", "packet-io", "daemon", "export", "chart"]),
    ("lab", &["wire", "translate", "mem", "packet-io", "chart"]),
    ("testkit", &["alg", "wire", "mem", "pcp", "translate", "nat", "packet-io", "daemon", "config"]),
    (
        "fuzz-targets",
        &[
            "alg",
            "api",
            "wire",
            "pcp",
            "translate",
            "nat",
            "config",
            "control",
            "packet-io",
            "daemon",
            "export",
            "lookup",
            "snmp",
            "testkit",
        ],
    ),
    ("measure", &["cli", "config", "bench", "lab", "packet-io", "chart"]),
    ("natrix", &["api", "cli", "config", "confine", "control", "daemon", "export", "lookup", "measure", "snmp"]),
    ("house_rules", &[]),
];

/// Crates that never see the world: all they know comes in as arguments.
const PURE: &[&str] = &["alg", "wire", "pcp", "translate", "nat"];

/// What a pure crate must not name: clocks, threads, files, sockets, processes, output.
const IMPURE: &[&str] = &[
    "std::time",
    "std::thread",
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::env",
    "println!",
    "eprintln!",
    "print!(",
    "log::",
    "Mutex",
    "RwLock",
];

/// Crates in which unsafe code may be, each block with its reason.
const UNSAFE_MAY_BE_IN: &[&str] = &["mem", "packet-io"];

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in tests/house_rules").to_owned()
}

/// Normal and build dependencies inside the workspace, by crate.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace_root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata works in the workspace");
    let members: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    metadata
        .packages
        .iter()
        .map(|package| {
            let inside = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind != DependencyKind::Development)
                .map(|dependency| dependency.name.clone())
                .filter(|name| members.contains(name))
                .collect();
            (package.name.to_string(), inside)
        })
        .collect()
}

/// Rust sources of a crate, without its tests.
fn sources(name: &str) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).expect("sources can be listed") {
            let path = entry.expect("sources can be listed").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && path.file_stem().is_none_or(|stem| stem != "tests")
                && !path.components().any(|part| part.as_os_str() == "tests")
            {
                let text = std::fs::read_to_string(&path).expect("sources are text");
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    let folder = [format!("crates/{name}"), format!("measure/{name}"), format!("{name}/commands")]
        .map(|part| workspace_root().join(part))
        .into_iter()
        .find(|at| at.exists());
    walk(&folder.expect("each crate of the table has a folder").join("src"), &mut found);
    assert!(!found.is_empty(), "crate {name} has sources");
    found
}

/// A line without its comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

#[test]
fn crates_depend_downwards_only_and_on_what_the_table_allows() {
    let found = dependencies();
    let known: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for (name, uses) in &found {
        let allowed = known
            .get(name.as_str())
            .unwrap_or_else(|| panic!("crate {name} is not in the table; add it here and in ARCHITECTURE.md"));
        for other in uses {
            assert!(allowed.contains(&other.as_str()), "crate {name} must not depend on {other}");
        }
    }
    for (name, _) in MAY_USE {
        assert!(found.contains_key(*name), "crate {name} is in the table but not in the workspace");
    }
}

#[test]
fn pure_crates_name_no_clock_thread_file_socket_lock_or_output() {
    for name in PURE {
        for (path, text) in sources(name) {
            for (number, line) in text.lines().enumerate() {
                for word in IMPURE {
                    assert!(
                        !code_of(line).contains(word),
                        "{}:{}: {word} does not belong into crate {name}",
                        path.display(),
                        number + 1
                    );
                }
            }
        }
    }
}

#[test]
fn unsafe_code_is_only_where_it_may_be() {
    for (name, _) in MAY_USE {
        if UNSAFE_MAY_BE_IN.contains(name) || *name == "house_rules" {
            continue;
        }
        for (path, text) in sources(name) {
            for (number, line) in text.lines().enumerate() {
                let code = code_of(line);
                let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "allow(unsafe_code"]
                    .iter()
                    .any(|form| code.contains(form));
                assert!(!is_unsafe, "{}:{}: unsafe code in crate {name}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    for name in UNSAFE_MAY_BE_IN {
        for (path, text) in sources(name) {
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in lines.iter().enumerate() {
                if !code_of(line).contains("unsafe {") && !code_of(line).contains("unsafe impl") {
                    continue;
                }
                let near = &lines[number.saturating_sub(6)..=number];
                assert!(
                    near.iter().any(|line| line.contains("SAFETY")),
                    "{}:{}: no SAFETY reason",
                    path.display(),
                    number + 1
                );
            }
        }
    }
}

#[test]
fn libdpdk_is_needed_only_with_the_feature_dpdk() {
    let manifest = std::fs::read_to_string(workspace_root().join("crates/packet-io/Cargo.toml"))
        .expect("the manifest of packet-io is there");
    assert!(!manifest.contains("default = [\"dpdk\"]"), "dpdk is not a default feature");
    let build = std::fs::read_to_string(workspace_root().join("crates/packet-io/build.rs"))
        .expect("packet-io has a build script");
    assert!(build.contains("CARGO_FEATURE_DPDK"), "the shim is compiled only with the feature");
}
