//! `docs/configuration.md` is what the table of keys says.

use std::env;
use std::fs;
use std::path::Path;

#[test]
fn the_manual_in_the_repository_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, config::manual()).expect("the manual is written");
    }
    let written = fs::read_to_string(&path).expect("the manual");
    assert!(written == config::manual(), "write it anew: UPDATE=1 cargo test -p config --test manual");
}
